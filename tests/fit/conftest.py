"""A fit of a messy table, once for all tests that look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dkgp.data import Dataset
from dkgp.kernels import Kernel
from dkgp.plan.machine import MachineFigures
from dkgp.solvers.prices import Prices
from tests.cli.invoke import run_json
from tests.drawing import pictures_are_rendered_once as pictures_are_rendered_once
from tests.fit.tables import HOSTILE, write_messy

PRICE = "price & <b>$tax"


def nominal_machine(dataset: Dataset, kernel: Kernel, noise_variance: float) -> MachineFigures:
    """Figures that no busy machine changes."""
    return MachineFigures(dataset.n_features, Prices.nominal(dataset.n_features), (1.0, 1.9))


@pytest.fixture(scope="package", autouse=True)
def machine() -> Any:
    """Foresee for the nominal machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkgp.fit.choice.measure_machine", nominal_machine)
        patch.setattr("dkgp.fit.budget.Budget.slowness", lambda budget: 1.0)
        yield


@pytest.fixture(scope="package")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A messy table whose names would be HTML, formulas and scripts if they were not escaped."""
    return write_messy(tmp_path_factory.mktemp("table") / "cars.csv", 160, carat=HOSTILE, price=PRICE)


@pytest.fixture(scope="package")
def fitted(table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document of a whole fit."""
    out = tmp_path_factory.mktemp("fit") / "fit"
    return run_json("fit", table, "--target", PRICE, "--drop", "kind", "--out", out)
