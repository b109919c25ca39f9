"""Classifiers with a likelihood foreseen: products and entries against those of a run, memory as the run plans it."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.data import Dataset, memory_dataset
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.basis import BasisSettings, train_on_basis
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.classification.logistic import RiskSettings, train_logistic
from dkgp.models.classification.near import STEPS, NearSettings, train_near
from dkgp.models.memory import TrainingSizes
from dkgp.plan.foreseen import LikelihoodSettings, foresee_likelihood

N = 1500
FOUND = Hyperparameters(SquaredExponential((1.0, 1.0), 5.0), 1.0)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    y = (np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(N) > 0).astype(float)
    return memory_dataset(X, y, classes=("a", "b"))


@pytest.mark.slow
def test_products_are_foreseen_from_subsets(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both subsets are smaller than the data.
    monkeypatch.setattr("dkgp.models.classification.logistic.SUBSETS", (200, 500))
    settings = LikelihoodSettings("logistic")
    foreseen = foresee_likelihood(dataset, FOUND, settings, 2**30, 1)
    with closing(LocalExecutor(1)) as executor:
        labels = labels_of(dataset)
        risk = RiskSettings(settings.likelihood(labels), method="auto")
        taken = train_logistic(LabelledData(dataset, labels), FOUND, executor, risk).summary
    products = foreseen.record["products"]
    assert products["low"] <= taken["column_passes"] <= products["high"]
    assert products["low"] < products["expected"] < products["high"]
    room = foreseen.memory(2, 1)
    with pytest.raises(MemoryBudgetError, match="projected to need"):
        room.require(2**20)
    assert sum(phase.times for phase in foreseen.phases if phase.name == "products") >= products["low"]


def test_a_basis_is_foreseen_as_a_run_takes_it(dataset: Dataset) -> None:
    settings = LikelihoodSettings("gp", basis_size=60)
    foreseen = foresee_likelihood(dataset, FOUND, settings, 2**30, 1)
    assert foreseen.record["products"] is None
    with closing(LocalExecutor(1)) as executor:
        labels, basis = labels_of(dataset), BasisSettings(60)
        likelihood = settings.likelihood(labels)
        data = LabelledData(dataset, labels)
        taken = train_on_basis(data, FOUND, executor, basis, likelihood=likelihood, form="gp").summary
    entries = foreseen.record["kernel_evaluations"]
    assert taken["kernel_evaluations"] / 3.0 < entries < 3.0 * taken["kernel_evaluations"]
    assert [phase.name for phase in foreseen.phases] == ["choice", "steps", "Hessians"]


@pytest.mark.parametrize("kept_bytes", [0, 2**40])
def test_neighbours_are_foreseen_as_a_run_takes_them(dataset: Dataset, kept_bytes: int) -> None:
    settings = LikelihoodSettings("gp", 30, None, 40)
    foreseen = foresee_likelihood(dataset, FOUND, settings, 2**20, 1, kept_bytes)
    near, labels = settings.on_basis(), labels_of(dataset)
    assert isinstance(near, NearSettings)
    with closing(LocalExecutor(2)) as executor:
        executor.tiles = TileBudget(kept_bytes)
        data, likelihood = LabelledData(dataset, labels), settings.likelihood(labels)
        taken = train_near(data, FOUND, executor, near, likelihood=likelihood).summary
        expected = near.memory(TrainingSizes(N, 2, 1, executor, 2**20))
    steps = STEPS / taken["steps"][0]
    assert 0.4 < steps < 2.5
    entries = foreseen.record["kernel_evaluations"] / taken["kernel_evaluations"]
    # What is kept is made once, whatever the steps.
    assert 0.6 < (entries if kept_bytes else entries / steps) < 1.6
    few, many = foreseen.memory(1, 2), foreseen.memory(4, 2)
    kept = expected.useful_bytes if kept_bytes else 0
    assert few.worker_parts == expected.worker_parts + kept
    assert few.worker_parts - many.worker_parts == kept - -(-kept // 4)
    assert few.coordinator_bytes == expected.coordinator_bytes - expected.worker_parts
    assert [phase.name for phase in foreseen.phases] == ["choice", "neighbours", "leaves", "steps"]


def test_targets_that_are_no_labels_are_refused() -> None:
    rng = np.random.default_rng(0)
    plain = memory_dataset(rng.standard_normal((50, 2)), rng.standard_normal(50))
    with pytest.raises(InputError, match="no label"):
        foresee_likelihood(plain, FOUND, LikelihoodSettings("gp"), 2**30, 1)
