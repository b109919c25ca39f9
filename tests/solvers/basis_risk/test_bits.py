"""The same bits on any number of workers, in any number of passes, and after any interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import InterruptedRunError
from dkgp.solvers import Checkpointing
from dkgp.solvers.basis_risk import problem
from dkgp.solvers.basis_risk.minimise import BasisDescent, BasisRiskSolution
from dkgp.solvers.basis_risk.problem import BasisRisk
from dkgp.solvers.driver import NOBODY, Loop, Watch
from dkgp.solvers.losses import LogisticLoss, SoftmaxLoss
from dkgp.solvers.risk import Risk
from tests.solvers.basis_risk.test_minimise import cross_of, inputs, targets_of
from tests.workers import on_dask

ARRAYS = ("weights", "whitened", "values", "gradient", "risk", "distance")


def same(one: BasisRiskSolution, other: BasisRiskSolution) -> None:
    for name in ARRAYS:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert one.hessian is not None
    assert other.hessian is not None
    for left, right in zip(one.hessian.lowers, other.hessian.lowers, strict=True):
        assert left.tobytes() == right.tobytes()
    assert one.passes == other.passes


def solved(
    X: np.ndarray,
    Y: np.ndarray,
    loss: Any,
    executor: Any,
    watch: Watch = NOBODY,
) -> BasisRiskSolution:
    cross = cross_of(X, X[:30], executor)
    descent = BasisDescent(BasisRisk(cross, Y, Risk(loss, 0.01)), 1e-6, hessian=True)
    found = descent.run(Loop(watch, {}, unit="step", waits=False))
    assert found.reason.converged
    return found


@pytest.mark.parametrize("loss", [LogisticLoss(), SoftmaxLoss()], ids=["ovr", "softmax"])
def test_any_number_of_workers(loss: Any, rng: np.random.Generator, executor: LocalExecutor) -> None:
    X = inputs(rng, 900)
    Y = targets_of(loss, X, rng)
    two = solved(X, Y, loss, executor)
    for count in (1, 5):
        local = LocalExecutor(count)
        same(two, solved(X, Y, loss, local))
        local.close()
    with on_dask(5, processes=False) as (cluster, _):
        same(two, solved(X, Y, loss, cluster))


def test_grams_in_several_passes(
    rng: np.random.Generator, executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = inputs(rng)
    Y = targets_of(LogisticLoss(), X, rng)
    together = solved(X, Y, LogisticLoss(), executor)
    monkeypatch.setattr(problem, "GRAM_BYTES", 8 * 30 * 30)
    apart = solved(X, Y, LogisticLoss(), executor)
    assert apart.gram_passes > together.gram_passes
    for one, other in zip(together.hessian.lowers, apart.hessian.lowers, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [LogisticLoss(), SoftmaxLoss()], ids=["ovr", "softmax"])
def test_interrupted_after_any_step(
    loss: Any, rng: np.random.Generator, executor: LocalExecutor, tmp_path: Path
) -> None:
    X = inputs(rng)
    Y = targets_of(loss, X, rng)
    whole = solved(X, Y, loss, executor)
    for stop in range(1, whole.history[-1].iteration + 1):
        asked = 0

        def enough(stop: int = stop) -> bool:
            nonlocal asked
            asked += 1
            return asked == stop

        settings = Checkpointing(CheckpointStore(str(tmp_path / f"{stop}")), 1e9)
        with pytest.raises(InterruptedRunError, match=f"interrupted after {stop - 1} steps; {stop - 1} steps are sav"):
            solved(X, Y, loss, executor, Watch(checkpointing=settings, interrupted=enough))
        settings = Checkpointing(settings.store, 1e9, resume=True)
        again = solved(X, Y, loss, executor, Watch(checkpointing=settings))
        same(whole, again)
        assert [step.objective for step in again.history] == [step.objective for step in whole.history]
