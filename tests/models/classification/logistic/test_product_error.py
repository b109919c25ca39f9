"""Products within a bound: decisions within the tolerance against dense Newton steps, or a refusal before any work."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern12, Matern32, Spherical, SquaredExponential, Wendland
from dkgp.models.classification.exact import ExactSettings, train_exact
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.likelihoods import LikelihoodName
from dkgp.models.classification.logistic import RiskSettings, TrainedLogistic, product_limit, train_logistic
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.operators.cells.forecast import Forecast
from dkgp.operators.product_error import ProductError
from dkgp.solvers import MaxIterations
from tests.models.classification.logistic.dense_risk import dense_minimiser
from tests.models.classification.logistic.problems import RiskProblem

KERNELS: dict[str, Kernel] = {
    "steep": SquaredExponential((0.3, 0.3), 100.0),
    "rough": Matern12((1.0, 1.0), 4.0),
    "smooth": Matern32((0.5, 0.5)),
    "compact": Wendland((0.3, 0.3)),
    "spherical": Spherical((0.5, 0.5), 10.0),
}


def problem(kernel: Kernel, n_classes: int = 2, n: int = 300) -> RiskProblem:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1.7, 1.7, (n, 2))
    score = np.sin(X @ [3.0, -2.0]) + 0.4 * rng.standard_normal(n)
    codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    name: LikelihoodName = "logit" if n_classes == 2 else "softmax"
    return RiskProblem(X, codes, X[:1], kernel, 1.0, name)


def trained(found: RiskProblem, error: Any, **more: Any) -> TrainedLogistic:
    settings = RiskSettings(found.likelihood, found.regularisation, limits=MaxIterations(300), **more)
    with closing(LocalExecutor(1)) as executor:
        context = RunContext(executor, product_error=ProductError.of(error))
        data = LabelledData(found.dataset, found.labels, found.weights)
        return train_logistic(data, Hyperparameters(found.kernel, 1.0), context, settings)


def largest(message: str) -> float:
    """The number that a refusal advises."""
    return float(re.findall(r"Give ([\d.e+-]+) or less", message)[0])


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have auto take products by cells of few samples, with pairs that are far."""
    monkeypatch.setattr("dkgp.operators.product_error.choose", lambda kernel, n: Forecast(True, "as the test says"))
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper", lambda cost, n: True)
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper_in_double", lambda cost, n: True)
    monkeypatch.setattr("dkgp.operators.cells.operator.reaches_sooner", lambda terms, n, tolerance, loose: True)
    monkeypatch.setattr("dkgp.operators.cells.plan.LEAF", (8,))


@pytest.mark.covering
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_the_largest_number_that_a_refusal_names_works(name: str, n_classes: int, cells: None) -> None:
    found = problem(KERNELS[name], n_classes)
    with pytest.raises(
        InputError, match=r"got 0\.0001\. Give .* or less, or auto or none, or a `tolerance` of"
    ) as error:
        trained(found, 1e-4, tolerance=1e-3)
    number = largest(str(error.value))
    assert number < 1e-4
    made = trained(found, number, tolerance=1e-3)
    assert made.summary["converged"], made.summary["reason"]
    assert 0.0 < made.product_error <= number * 1.01
    assert max(made.summary["decision_error"]) <= 1e-3
    X, y, _, kernel, risk, penalty, _ = found.reference
    exact = kernel(X, X) @ dense_minimiser(kernel(X, X), y, risk, penalty)
    assert np.abs(kernel(X, X) @ made.alpha - exact).max() <= 1e-3
    with pytest.raises(InputError, match="or its errors decide them"):
        trained(found, 1.1 * number, tolerance=1e-3)


def test_the_tolerance_that_a_refusal_names_works() -> None:
    found = problem(KERNELS["smooth"])
    with pytest.raises(InputError) as error:
        trained(found, 1e-5, tolerance=1e-4)
    tolerance = float(re.findall(r"a `tolerance` of ([\d.e+-]+) or more", str(error.value))[0])
    assert 1e-4 < tolerance < 1e-2
    assert trained(found, 1e-5, tolerance=tolerance).summary["converged"]


@pytest.mark.covering
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_auto_keeps_decisions_within_the_tolerance(name: str, n_classes: int, tolerance: float, cells: None) -> None:
    found = problem(KERNELS[name], n_classes)
    made = trained(found, "auto", tolerance=tolerance)
    assert made.summary["products"]["kind"] == "cells"
    assert made.summary["converged"], made.summary["reason"]
    # Roundings of sums, which say nothing on when to stop, are in the bound; they are those of every entry's sums.
    every = trained(found, "none", tolerance=tolerance).summary["decision_error"]
    assert max(made.summary["decision_error"]) <= max(tolerance, 1.1 * max(every))
    X, y, _, kernel, risk, penalty, _ = found.reference
    exact = kernel(X, X) @ dense_minimiser(kernel(X, X), y, risk, penalty)
    assert np.abs(kernel(X, X) @ made.alpha - exact).max() <= tolerance


def test_the_limit_follows_from_the_risk() -> None:
    found = problem(Matern32((0.5, 0.5), 3.0), 4)
    data, settings = LabelledData(found.dataset, found.labels, None), RiskSettings(found.likelihood, 2.0)
    # lambda tol / (c sqrt(p) n k): softmax's curvature is at most 1/2.
    assert product_limit(data, found.kernel, settings) == pytest.approx(2.0 * 1e-3 / (0.5 * 2.0 * 300 * 3.0))
    weighted = replace(data, weights=np.full(300, 2.0))
    assert product_limit(weighted, found.kernel, settings) == pytest.approx(2.0 * 1e-3 / (0.5 * 2.0 * 600 * 3.0))
    assert product_limit(data, found.kernel, replace(settings, gap=1e-3)) is None


def test_a_gap_that_products_do_not_reach_is_told_with_its_remedy() -> None:
    made = trained(problem(KERNELS["steep"]), 1e-4, gap=1e-9)
    assert not made.summary["converged"]
    assert "product_error" in made.summary["advice"]


def test_least_squares_machines_refuse_too() -> None:
    found = problem(KERNELS["smooth"])
    data = LabelledData(found.dataset, found.labels, None)
    with closing(LocalExecutor(1)) as executor:
        context = RunContext(executor, product_error=ProductError(1e-3))
        with pytest.raises(InputError, match=r"decisions within `tolerance` 0\.001 .* got 0\.001\. Give"):
            train_exact(data, Hyperparameters(found.kernel, 0.1), context, ExactSettings())
