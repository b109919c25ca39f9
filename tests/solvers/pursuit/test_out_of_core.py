"""X'X by products over row blocks, and kernels by blocks of samples: the dense path, the same bits anywhere."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import CheckpointError, InputError, InterruptedRunError
from dkgp.kernels import Matern32
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers import Checkpointing, KernelSystem, PursuitPath, PursuitSettings, RowSystem, pursue
from dkgp.solvers.driver import Watch
from dkgp.solvers.pursuit.systems import INTERCEPT_SHARE
from tests.workers import on_dask


@pytest.fixture
def executor() -> Any:
    executor = LocalExecutor(2)
    yield executor
    executor.close()


def rows(rng: np.random.Generator, n: int = 900, d: int = 40) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d)) * np.exp(0.3 * rng.standard_normal(d)) + 0.2
    return X, X @ (rng.standard_normal((d, 2)) * (rng.random((d, 1)) < 0.3)) + 0.3 * rng.standard_normal((n, 2))


def same(one: PursuitPath, other: PursuitPath) -> None:
    assert np.array_equal(one.order, other.order)
    assert np.array_equal(one.lower, other.lower)
    assert np.array_equal(one.half, other.half)


@pytest.mark.parametrize("candidates", [None, 7])
@pytest.mark.parametrize("score", ["gradient", "refit"])
def test_rows_have_the_path_of_their_gram(
    candidates: int | None, score: Any, executor: LocalExecutor, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    settings = PursuitSettings(12, candidates=candidates, score=score)
    system = RowSystem(ArrayInputs(X), executor)
    found, dense = pursue(system, y, settings), pursue(X.T @ X, X.T @ y, settings)
    assert np.array_equal(found.order, dense.order)
    np.testing.assert_allclose(found.weights_at(12), dense.weights_at(12), rtol=1e-9)
    assert found.residuals is not None
    for k in (0, 5, 12):
        left = y - X[:, found.order[:k]] @ found.weights_at(k)
        assert found.residuals[k] == pytest.approx(np.sum(left**2), rel=1e-10)
    # X'y, and a pass for each choice.
    assert system.passes == 13


def test_shift_and_scale_are_those_of_the_columns(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X, y = rows(rng)
    system = RowSystem(ArrayInputs(X), executor)
    shift, scale = system.means(), rng.uniform(0.5, 2.0, 40)
    np.testing.assert_allclose(shift, X.mean(axis=0), rtol=1e-12)
    Z = (X - shift) * scale
    found = pursue(RowSystem(ArrayInputs(X), executor, shift=shift, scale=scale), y, PursuitSettings(9))
    dense = pursue(Z.T @ Z, Z.T @ y, PursuitSettings(9))
    assert np.array_equal(found.order, dense.order)
    np.testing.assert_allclose(found.weights_at(9), dense.weights_at(9), rtol=1e-9)


def test_a_constant_column_has_its_value_for_mean(executor: LocalExecutor, rng: np.random.Generator) -> None:
    """Sums over 997 rows round: what centring left of it would be a regressor, and one that `refit` likes."""
    values = np.array([0.1, -7.3e5, 1.0 / 3.0, 0.0])
    X = np.column_stack([np.tile(values, (997, 1)), rng.standard_normal(997) + 1e6])
    assert (X.mean(axis=0)[:3] != values[:3]).any()
    means = RowSystem(ArrayInputs(X), executor).means()
    assert np.array_equal(means[:4], values)
    assert means[4] == pytest.approx(X[:, 4].mean(), rel=1e-15)


def test_a_pass_tells_how_far_it_is(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X, y = rows(rng)
    heard: list[tuple[int, int]] = []
    system = RowSystem(ArrayInputs(X), executor, told=lambda done, of: heard.append((done, of)))
    pursue(system, y, PursuitSettings(3))
    assert max(done for done, _ in heard) == heard[0][1] > 1
    assert heard.count(heard[-1]) >= system.passes == 4

    def enough(done: int, of: int) -> None:
        raise InterruptedRunError("enough")

    with pytest.raises(InterruptedRunError, match="enough"):
        pursue(RowSystem(ArrayInputs(X), executor, told=enough), y, PursuitSettings(3))


KILLED = """
import os, signal, sys
from dkgp.cluster import LocalExecutor
from dkgp.data import open_dataset
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.solvers import Checkpointing, PursuitSettings, RowSystem, Watch, pursue

folder, candidates, at = sys.argv[1], int(sys.argv[2]) or None, int(sys.argv[3])
dataset = open_dataset(folder + "/a.zarr")
passes = 0


def told(done, of):
    global passes
    passes += done == of
    if passes == at:
        os.kill(os.getpid(), signal.SIGKILL)


kept = Checkpointing(CheckpointStore(folder + "/kept"), 0.0, {"data": dataset.fingerprint})
pursue(
    RowSystem(dataset, LocalExecutor(2), told=told), dataset.all_targets(), PursuitSettings(10, candidates=candidates),
    watch=Watch(checkpointing=kept),
)
"""


@pytest.mark.faults
@pytest.mark.parametrize("candidates", [None, 9])
def test_a_path_whose_process_is_killed_within_a_round_is_resumed_to_the_same_bits(
    candidates: int | None, executor: LocalExecutor, tmp_path: Path, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    dataset = dataset_from_arrays(tmp_path / "a.zarr", X, y, chunk_rows=100)
    settings, targets = PursuitSettings(10, candidates=candidates), dataset.all_targets()
    whole = pursue(RowSystem(dataset, executor), targets, settings)
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(candidates or 0), "6"]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    rounds: list[int] = []
    kept = Checkpointing(CheckpointStore(tmp_path / "kept"), 0.0, {"data": dataset.fingerprint}, resume=True)
    resumed = pursue(
        RowSystem(dataset, executor),
        targets,
        settings,
        watch=Watch(checkpointing=kept, callback=lambda progress: rounds.append(progress.round)),
    )
    assert rounds[0] > 3, "nothing was kept of the rounds before"
    same(resumed, whole)
    np.testing.assert_array_equal(resumed.solution(), whole.solution())


def test_a_residual_near_nothing_is_found_from_residuals(executor: LocalExecutor, rng: np.random.Generator) -> None:
    X = rng.standard_normal((80, 200))
    w = np.zeros(200)
    w[[4, 90, 150]] = 1.0, -1.0, 1.0
    y = X @ w + 1e-7 * rng.standard_normal(80)
    square = float(y @ y)
    path = pursue(RowSystem(ArrayInputs(X), executor), y, PursuitSettings(residual=2e-14 * square))
    left = y - X @ path.solution()[:, 0]
    assert path.reason.rule == "residual"
    assert path.residuals is not None
    assert path.residuals[-1] == pytest.approx(left @ left, rel=1e-9)
    assert set(path.order.tolist()) == {4, 90, 150}


def test_rows_that_are_no_numbers_are_refused(executor: LocalExecutor, rng: np.random.Generator) -> None:
    class Source:
        n_samples, n_features = 30, 3

        def inputs(self, start: int, stop: int) -> np.ndarray:
            values = np.ones((stop - start, 3))
            values[0, 1] = np.nan
            return values

    with pytest.raises(InputError, match="column 1"):
        pursue(RowSystem(Source(), executor), np.ones(30))
    with pytest.raises(InputError, match="column 1"):
        RowSystem(Source(), executor).means()
    with pytest.raises(InputError, match=r"\(30, t\)"):
        pursue(RowSystem(Source(), executor), np.ones(29))
    with pytest.raises(InputError, match="`shift`"):
        RowSystem(Source(), executor, shift=np.zeros(2))


@pytest.mark.parametrize("candidates", [pytest.param(None, marks=pytest.mark.slow), 9])
def test_the_same_bits_on_any_number_of_workers(
    candidates: int | None, tmp_path: Path, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    dataset = dataset_from_arrays(tmp_path / "a.zarr", X, y, chunk_rows=100)
    targets, settings = dataset.all_targets(), PursuitSettings(8, candidates=candidates, per_round=3)
    found = []
    for threads in (1, 3):
        local = LocalExecutor(threads)
        found.append(pursue(RowSystem(dataset, local), targets, settings))
        local.close()
    with on_dask(5, processes=False) as (cluster, _):
        found.append(pursue(RowSystem(dataset, cluster), targets, settings))
    for other in found[1:]:
        same(found[0], other)
    assert len(found[0]) == 8


@pytest.mark.parametrize("more", [{}, {"candidates": 9}, {"score": "refit", "per_round": 3}])
def test_an_interrupted_path_is_resumed_to_the_same_bits(
    more: dict[str, Any], executor: LocalExecutor, tmp_path: Path, rng: np.random.Generator
) -> None:
    X, y = rows(rng)
    source, settings = ArrayInputs(X), PursuitSettings(12, residual=1e-30, **more)
    whole = pursue(RowSystem(source, executor), y, settings)
    store, rounds = CheckpointStore(tmp_path / "kept"), []

    def checkpointing(resume: bool, **identity: Any) -> Checkpointing:
        return Checkpointing(store, 0.0, identity, resume)

    def tired() -> bool:
        rounds.append(1)
        return len(rounds) > 3

    with pytest.raises(InterruptedRunError):
        pursue(
            RowSystem(source, executor), y, settings, watch=Watch(checkpointing=checkpointing(False), interrupted=tired)
        )
    system = RowSystem(source, executor)
    resumed = pursue(system, y, settings, watch=Watch(checkpointing=checkpointing(True)))
    same(resumed, whole)
    assert resumed.misfits == whole.misfits
    assert [record.size for record in resumed.history] == [record.size for record in whole.history]
    assert len(resumed.history) > 3
    # Once more at its end: nothing is left to do but X'y.
    system = RowSystem(source, executor)
    same(pursue(system, y, settings, watch=Watch(checkpointing=checkpointing(True))), whole)
    assert system.passes <= 1
    with pytest.raises(CheckpointError, match="another run"):
        pursue(
            RowSystem(source, executor),
            y,
            PursuitSettings(12, seed=5, **more),
            watch=Watch(checkpointing=checkpointing(True)),
        )
    with pytest.raises(CheckpointError, match="12 regressors"):
        pursue(
            RowSystem(source, executor), y, PursuitSettings(4, **more), watch=Watch(checkpointing=checkpointing(True))
        )


class KernelProblem:
    """Equation (29) densely."""

    def __init__(self, by_sample: bool, intercept: bool, rng: np.random.Generator) -> None:
        self.X, n, m = rng.standard_normal((300, 3)), 300, 40
        self.Z = self.X[:m]
        self.noise: Any = rng.uniform(0.05, 0.2, n) if by_sample else 0.1
        self.y = np.sign(np.sin(2.0 * self.X[:, :1]) + 0.3 + 0.2 * rng.standard_normal((n, 1)))
        self.kernel = Matern32(gamma=(0.6, 0.9, 0.4), variance=1.2)
        K, D = self.kernel(self.X, self.Z), 1.0 / np.broadcast_to(self.noise, (n,))
        H = np.hstack([K, np.ones((n, int(intercept)))])
        self.A, self.b = H.T @ (D[:, None] * H), H.T @ (D[:, None] * self.y)
        self.A[:m, :m] += self.kernel(self.Z, self.Z)
        if intercept:
            self.A[m, m] += INTERCEPT_SHARE * D.sum()
        self.H, self.D, self.m = H, D, m

    def system(self, executor: LocalExecutor, intercept: bool) -> KernelSystem:
        operator = BlockedKernelOperator(self.kernel, self.noise, ArrayInputs(self.X), executor)
        return KernelSystem(CrossKernel(operator, self.Z), intercept)


@pytest.mark.parametrize("candidates", [None, 6])
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("first", [None, (), (40,)])
def test_kernels_have_the_path_of_equation_29(
    candidates: int | None,
    by_sample: bool,
    first: tuple[int, ...] | None,
    executor: LocalExecutor,
    rng: np.random.Generator,
) -> None:
    """Without an intercept, with one that competes, and with one that comes first."""
    problem = KernelProblem(by_sample, first is not None, rng)
    settings = PursuitSettings(11, candidates=candidates, first=first or ())
    system = problem.system(executor, first is not None)
    found, dense = pursue(system, problem.y, settings), pursue(problem.A, problem.b, settings)
    assert np.array_equal(found.order, dense.order)
    np.testing.assert_allclose(found.weights_at(11), dense.weights_at(11), rtol=1e-7)
    np.testing.assert_allclose(system.diagonal(), np.diagonal(problem.A), rtol=1e-12)
    w = found.solution()
    left = problem.y - problem.H @ w
    penalty = w.T @ (problem.A - problem.H.T @ (problem.D[:, None] * problem.H)) @ w
    expected = np.sum(left**2 * problem.D[:, None]) + penalty.item()
    assert system.misfit(problem.y, found.order, found.weights_at(11)) == pytest.approx(expected, rel=1e-10)
    assert found.residuals is not None
    assert found.residuals[-1] == pytest.approx(expected, rel=1e-9)
    system.close()


def test_an_intercept_is_drawn_like_any_other(executor: LocalExecutor, rng: np.random.Generator) -> None:
    problem = KernelProblem(False, True, rng)
    settings = PursuitSettings(20, candidates=41, per_round=2)
    found = pursue(problem.system(executor, True), problem.y, settings)
    assert np.array_equal(found.order, pursue(problem.A, problem.b, settings).order)
    assert 40 in found.order
