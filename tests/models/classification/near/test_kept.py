"""What workers keep of leaves between the steps to a mode: no bit depends on it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget
from dkgp.data import memory_dataset
from dkgp.kernels import Matern32
from dkgp.models import Hyperparameters
from dkgp.models.classification import near as mode
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.near import NearSettings, TrainedNear, train_near
from dkgp.models.context import RunContext
from dkgp.models.sparse.vif.kept import KeptTerms, rows_bytes
from dkgp.models.sparse.vif.objective import Neighbourhood, Neighbours, kept_bytes
from dkgp.operators import ArrayInputs
from dkgp.operators.keeping import Keeping
from dkgp.operators.kept_tiles import worker_tiles
from tests.workers import on_dask

N, M, NEIGHBOURS = 700, 12, 32
ALL = kept_bytes(N, M, Neighbours.of(NEIGHBOURS))
# T of a bundle; T of all, and matrices of some bundles; everything.
BUDGETS = (8 * 32 * 32, ALL // 2, ALL)


def trained(executor: Any, budget: int) -> TrainedNear:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((N, 2))
    codes = (np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(N) > 0.0).astype(np.int64)
    labels = Labels(("a", "b"), codes)
    data = LabelledData(memory_dataset(X, codes, classes=labels.classes), labels)
    executor.tiles = TileBudget(budget)
    settings = NearSettings(M, neighbours=NEIGHBOURS)
    hyperparameters = Hyperparameters(Matern32((1.0, 1.0), 4.0), 1.0)
    return train_near(data, hyperparameters, executor, settings, likelihood=Likelihood.of("logit", "ovr", 2))


def same(found: TrainedNear, expected: TrainedNear) -> None:
    for name in ("targets", "noise", "whitened", "normal"):
        np.testing.assert_array_equal(getattr(found.near, name), getattr(expected.near, name))
    np.testing.assert_array_equal(found.values, expected.values)


@pytest.mark.long
def test_no_bit_depends_on_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    step = mode.ModeSearch.step

    def noted(*arguments: Any) -> None:
        step(*arguments)
        held.append(worker_tiles().nbytes)

    monkeypatch.setattr(mode.ModeSearch, "step", noted)
    expected = trained(LocalExecutor(2), 0)
    assert max(held) == 0
    entries = [expected.summary["kernel_evaluations"]]
    for budget in BUDGETS:
        held.clear()
        found = trained(LocalExecutor(2), budget)
        same(found, expected)
        assert 0 < max(held) <= budget
        assert worker_tiles().nbytes == 0  # forgotten
        entries.append(found.summary["kernel_evaluations"])
    # The more is kept, the fewer entries are evaluated: in the end none after the second step.
    assert all(more > fewer for more, fewer in itertools.pairwise(entries))
    assert len({record["kernel_evaluations"] for record in found.history[1:]}) == 1


def test_a_cluster_keeps_it_too() -> None:
    expected = trained(LocalExecutor(1), 0)
    with on_dask(2, processes=False) as (executor, _):
        found = trained(executor, ALL)
    same(found, expected)
    assert found.summary["kernel_evaluations"] < 0.5 * expected.summary["kernel_evaluations"]


def test_rows_of_another_noise_are_not_taken() -> None:
    rng = np.random.default_rng(6)
    X, Y, s2 = rng.standard_normal((90, 2)), rng.standard_normal((90, 1)), rng.uniform(1.0, 5.0, 90)
    with RunContext.of(LocalExecutor(1)).operator(Matern32((1.0, 1.0), 2.0), 1.0, ArrayInputs(X)) as operator:
        held = Neighbourhood(operator, Neighbours(8, 16))
        plain = held.described(operator, X[:5])
        terms = KeptTerms("of-a-test", Keeping(TileBudget(2**24), 1), rows_bytes(90, held.leaves))
        keeping = type(plain)(plain.leaves, plain.context, plain.prototypes, terms)
        try:
            for noise in (s2, s2 + 1.0):
                noisy = operator.with_noise(noise)
                expected = held.joint(noisy, plain, Y)
                joint = held.joint(noisy, keeping, Y)
                np.testing.assert_array_equal(joint.normal, expected.normal)
                for other in (noise, noise + 0.5):
                    by = operator.with_noise(other)
                    np.testing.assert_array_equal(
                        held.weights(by, keeping, joint, Y), held.weights(by, plain, joint, Y)
                    )
        finally:
            worker_tiles().discard_run("of-a-test")
