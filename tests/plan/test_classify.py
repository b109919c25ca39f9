"""Classifiers foreseen: counts against those of a run, memory as the run plans it."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings, explored
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.labels import LabelledData, labels_of
from dkgp.models.memory import TrainingSizes
from dkgp.operators.block_tasks import feature_width
from dkgp.plan.foreseen import foresee_classifier

N = 1200
FOUND = Hyperparameters(SquaredExponential((1.0, 1.0)), 0.1)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    y = (np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(N) > 0).astype(float)
    return memory_dataset(X, y, classes=("a", "b"))


@pytest.mark.parametrize("search", ["none", "profile", "shared"])
def test_entries_are_foreseen_as_a_run_takes_them(dataset: Dataset, search: str) -> None:
    settings = FixedSizeSettings(pool=100, folds=5, search=search)
    foreseen = foresee_classifier(dataset, FOUND, settings, 2**30).record
    with closing(LocalExecutor(1)) as executor:
        data = LabelledData(dataset, labels_of(dataset))
        taken = train_fixed_size(data, settings, executor, kernel=FOUND.kernel).summary
    assert 0.5 * taken["kernel_evaluations"] < foreseen["kernel_evaluations"] < 2.0 * taken["kernel_evaluations"]
    assert 0.4 * taken["passes"] <= foreseen["passes"] <= 2.5 * taken["passes"]


def test_memory_is_what_the_run_asks_for(dataset: Dataset) -> None:
    settings = FixedSizeSettings(pool=300, max_basis=100)
    foreseen = foresee_classifier(dataset, FOUND, settings, 2**20)
    with closing(LocalExecutor(2)) as executor:
        expected = settings.memory(TrainingSizes(N, 2, 1, executor, 2**20, feature_width(FOUND.kernel)))
    found = foreseen.memory(4, 2)
    assert found["worker_bytes"] == expected["worker_bytes"]
    # Workers are elsewhere in a plan.
    assert found.coordinator_bytes <= expected.coordinator_bytes


def test_work_grows_with_the_pool_and_the_kernels(dataset: Dataset) -> None:
    def phases(**given: object) -> dict[str, float]:
        foreseen = foresee_classifier(dataset, FOUND, FixedSizeSettings(**given), 2**30)  # type: ignore[arg-type]
        return {phase.name: phase.times * phase.shared.double_operations for phase in foreseen.phases}

    small, large = phases(pool=100), phases(pool=200)
    assert list(small) == ["prototypes", "search", "all prototypes", "errors", "penalties", "paths", "fit"]
    assert large["search"] == pytest.approx(4.0 * small["search"], rel=0.02)
    assert phases(pool=100, search="none")["search"] == pytest.approx(small["search"] / 7.0)
    # A part of a large pool judges the kernels of a search, and all of it the last one.
    large = phases(pool=1100)
    assert large["all prototypes"] == pytest.approx(1.21 * large["search"] / 7.0, rel=0.01)
    # A path that nothing stops goes through the pool.
    ends = [explored(FixedSizeSettings(pool=400, stop=stop), N) for stop in ((10, 1e-3), None)]
    assert ends == [80.0, 400.0]
    # No pool is larger than the data.
    assert phases(pool=10**6) == phases(pool=N)


def test_targets_that_are_no_labels_are_refused() -> None:
    rng = np.random.default_rng(0)
    plain = memory_dataset(rng.standard_normal((50, 2)), rng.standard_normal(50))
    with pytest.raises(InputError, match="no label"):
        foresee_classifier(plain, FOUND, FixedSizeSettings(), 2**30)
