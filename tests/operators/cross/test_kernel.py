"""K(X, Z), its products and sums, against NumPy's, and against themselves on other executors."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import split_evenly
from dkgp.cluster.executors.dask import DaskGraph
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, NumericalError
from dkgp.kernels import Features, Kernel, Linear, SquaredExponential, TileEvaluator
from dkgp.models.sparse.bounds import sample_sum_roundings
from dkgp.operators import ArrayInputs, BlockedKernelOperator, exact_sums
from dkgp.operators.cross import kernel as cross_kernel
from dkgp.operators.cross import tasks as cross_tasks
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.cross.tasks import cross_bytes, piece_rows, runs_of
from dkgp.operators.exact_sums import unit_count
from dkgp.operators.low_rank import products
from dkgp.operators.low_rank.pivots import jitter
from dkgp.progress import Progress
from tests.workers import on_dask

N, D, M, T = 2100, 3, 70, 2
KERNELS = [SquaredExponential(gamma=(0.5, 0.8, 1.1), variance=1.3), Linear(weight=(1.0, 0.4, 2.0), variance=0.7)]
Problem = tuple[BlockedKernelOperator, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(params=KERNELS, ids=["stationary", "linear"])
def problem(request: pytest.FixtureRequest, two_threads: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """Operator, prototypes, right-hand sides, variances, and the dense K(X, Z); pieces are short."""
    monkeypatch.setattr(cross_tasks, "LARGEST_PIECE", 128)
    monkeypatch.setattr(cross_tasks, "SMALLEST_PIECE", 64)
    rng = np.random.default_rng(0)
    kernel: Kernel = request.param
    X, noise = rng.standard_normal((N, D)), rng.uniform(0.05, 0.3, N)
    # Prototypes that are samples, and some that are not.
    Z = np.concatenate([X[:: N // 50][:50], rng.standard_normal((M - 50, D))])
    operator = BlockedKernelOperator(kernel, noise, ArrayInputs(X), two_threads)
    return operator, Z, rng.standard_normal((N, T)), noise, kernel(X, Z)


def test_products(problem: Problem, rng: np.random.Generator) -> None:
    operator, Z, V, noise, dense = problem
    cross, W = CrossKernel(operator, Z), rng.standard_normal((M, T))
    np.testing.assert_allclose(cross.columns(W), dense @ W, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(cross.project(V), dense.T @ V, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(cross.normal(W), dense.T @ (dense @ W), rtol=1e-12, atol=1e-8)
    weighted = dense.T @ ((dense @ W) / noise[:, None])
    np.testing.assert_allclose(cross.normal(W, noise), weighted, rtol=1e-12, atol=1e-7)
    np.testing.assert_allclose(cross.inner(W), operator.kernel(Z, Z) @ W, rtol=1e-12, atol=1e-11)


def test_residuals(problem: Problem, rng: np.random.Generator) -> None:
    operator, Z, V, noise, dense = problem
    W = rng.standard_normal((M, T))
    r = V - dense @ W
    found = CrossKernel(operator, Z).residual(W, V, noise, returned=True)
    assert found.values is not None
    np.testing.assert_allclose(found.values, r, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(found.squares, np.sum(r**2 / noise[:, None], axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.projected, dense.T @ (r / noise[:, None]), rtol=1e-11, atol=1e-7)
    assert CrossKernel(operator, Z).residual(W, V).values is None


def test_grams(problem: Problem) -> None:
    operator, Z, V, noise, dense = problem
    found = CrossKernel(operator, Z).gram(V, noise)
    np.testing.assert_allclose(found.matrix, dense.T @ (dense / noise[:, None]), rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(found.projected, dense.T @ (V / noise[:, None]), rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(found.squares, np.sum(dense**2, axis=1), rtol=1e-12)
    plain = CrossKernel(operator, Z).gram()
    np.testing.assert_allclose(plain.matrix, dense.T @ dense, rtol=1e-11, atol=1e-9)
    assert plain.projected.shape == (M, 0)


@pytest.mark.parametrize("fitc", [False, True])
def test_whitened_grams(problem: Problem, fitc: bool) -> None:
    operator, Z, V, noise, dense = problem
    cross = CrossKernel(operator, Z)
    F = scipy.linalg.solve_triangular(cross.lower, dense.T, lower=True).T
    left = operator.kernel.diagonal(operator.inputs(np.arange(N))) - np.sum(F**2, axis=1)
    variances = noise + np.maximum(left, 0.0) if fitc else noise
    found = cross.whitened(V, noise, fitc=fitc)
    scale = np.abs(F.T @ F).max() / noise.min()
    np.testing.assert_allclose(found.squares, np.sum(F**2, axis=1), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.matrix, F.T @ (F / variances[:, None]), atol=1e-6 * scale)
    np.testing.assert_array_equal(found.matrix, found.matrix.T)
    np.testing.assert_allclose(found.projected, F.T @ (V / variances[:, None]), atol=1e-6 * scale)


def test_the_triangle_is_the_prototypes_own_with_no_more_than_its_jitter(problem: Problem) -> None:
    operator, Z, *_ = problem
    inner = operator.kernel(Z, Z)
    left = CrossKernel(operator, Z).lower @ CrossKernel(operator, Z).lower.T - inner
    # Never below K_mm: F F' is never above K.
    assert np.linalg.eigvalsh(left).min() > 0.0
    assert np.linalg.norm(left, 2) <= 2.0 * jitter(M, float(inner.diagonal().max()), 1e3)


def test_entries_are_counted_and_each_is_evaluated_once(problem: Problem, rng: np.random.Generator) -> None:
    operator, Z, V, noise, _ = problem
    cross, W = CrossKernel(operator, Z), rng.standard_normal((M, T))
    operator.prior()  # once, of a kernel that is not stationary
    cross.lower  # noqa: B018
    for work in (
        lambda: cross.normal(W, noise),
        lambda: cross.residual(W, V, noise, returned=True),
        lambda: cross.whitened(V, noise, fitc=True),
    ):
        before = operator.kernel_evaluations
        work()
        assert operator.kernel_evaluations - before == N * M


def test_progress_is_told_and_ends_the_work_of_who_raises(problem: Problem) -> None:
    operator, Z, V, *_ = problem
    told: list[Progress] = []
    with operator.watched(told.append):
        CrossKernel(operator, Z).whitened(V)
    assert (told[-1].phase, told[-1].unit) == ("factor", "tasks")
    assert told[-1].done == told[-1].total == 2

    def stop(progress: Progress) -> None:
        raise InterruptedRunError("enough")

    with operator.watched(stop), pytest.raises(InterruptedRunError):
        CrossKernel(operator, Z).whitened(V)


@pytest.mark.parametrize(
    ("prototypes", "words"),
    [
        (np.zeros((0, D)), r"shape \(m, 3\), one at least; got \(0, 3\)"),
        (np.zeros((4, D + 1)), r"got \(4, 4\)"),
        (np.array([[0.0, 1.0, 2.0], [0.0, np.nan, 1.0]]), r"must be finite; got \[ *0. +nan +1. *\] in row 1"),
    ],
)
def test_prototypes_that_are_none_are_refused(prototypes: np.ndarray, words: str, one_thread: LocalExecutor) -> None:
    operator = BlockedKernelOperator(KERNELS[0], 0.1, ArrayInputs(np.zeros((10, D))), one_thread)
    with pytest.raises(InputError, match=words):
        CrossKernel(operator, prototypes)


def test_duplicates_have_a_triangle_what_overflows_is_refused(one_thread: LocalExecutor) -> None:
    X = np.random.default_rng(0).standard_normal((300, D))
    operator = BlockedKernelOperator(KERNELS[0], 0.1, ArrayInputs(X), one_thread)
    found = CrossKernel(operator, np.repeat(X[:3], 5, axis=0)).whitened(X)
    assert np.isfinite(found.matrix).all()
    far = BlockedKernelOperator(KERNELS[1], 0.1, ArrayInputs(X), one_thread)
    with pytest.raises(NumericalError, match="of the 3 basis samples overflows"):
        CrossKernel(far, X[:3] * 1e200).whitened(X)


def test_what_is_no_covariance_is_refused(one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).standard_normal((300, D))
    operator = BlockedKernelOperator(KERNELS[0], 0.1, ArrayInputs(X), one_thread)
    monkeypatch.setattr(products, "jittered", lambda matrix, error: matrix - 2.0 * np.eye(len(matrix)))
    with pytest.raises(NumericalError, match="3 basis samples is not positive definite .*is not a covariance"):
        CrossKernel(operator, X[:3]).whitened(X)


@pytest.mark.slow
def test_one_gram_comes_to_the_coordinator_however_many_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of all that is fetched from worker processes, beside the vectors of the samples."""
    fetched: list[int] = []
    fetch = DaskGraph._fetch

    def counted(self: Any, seconds: float) -> None:
        known = len(self._fetched)
        fetch(self, seconds)
        fetched.append(len(pickle.dumps(list(self._fetched.values())[known:])))

    monkeypatch.setattr(DaskGraph, "_fetch", counted)
    rng, m, received = np.random.default_rng(0), 150, {}
    with on_dask(2, processes=True) as (executor, _):
        for n in (4_000, 120_000):
            X = rng.standard_normal((n, D))
            source = dataset_from_arrays(tmp_path / f"of {n}", X, X[:, :1], chunk_rows=2_000)
            with BlockedKernelOperator(KERNELS[0], 0.1, source, executor, coordinator_input_bytes=0) as operator:
                fetched.clear()
                CrossKernel(operator, X[:m]).whitened(source.all_targets())
                received[n] = sum(fetched)
                assert received[n] < 1.1 * 8 * (m * m + m + n) + 2_000
    # Eight runs and fifteen: no more of them comes.
    assert received[120_000] - received[4_000] == pytest.approx(8 * 116_000, rel=0.01)


def test_runs_depend_on_the_samples_alone(one_thread: LocalExecutor) -> None:
    operator = BlockedKernelOperator(KERNELS[0], 0.1, ArrayInputs(np.zeros((N, D))), one_thread)
    V = np.arange(float(N))[:, None]
    for most in (1, 4, None):
        runs = runs_of(operator.context, {"right": V, "none": None}, most=most)
        assert [run.blocks for run in runs] == split_evenly(range(operator.context.n_blocks), most or 2)
        np.testing.assert_array_equal(np.concatenate([run.rows["right"] for run in runs]), V)
        assert all(set(run.rows) == {"right"} for run in runs)
        for run in runs:
            rows = [row for _, where in run.pieces(operator.context, "double", 96) for row in range(N)[where]]
            assert rows == list(range(run.samples(operator.context)))


def test_bits_do_not_depend_on_the_cut_into_tasks(
    rng: np.random.Generator, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = BlockedKernelOperator(KERNELS[0], 0.1, ArrayInputs(rng.standard_normal((N, D))), one_thread)
    monkeypatch.setattr(cross_tasks, "unit_count", lambda n: 9)
    monkeypatch.setattr(exact_sums, "UNITS_A_TASK", 1)
    cross, V = CrossKernel(operator, rng.standard_normal((21, D))), rng.standard_normal((N, 2))
    expected = cross.whitened(V), cross.residual(V[:21], V, returned=True)
    for tasks in (1, 3, 5):
        monkeypatch.setattr(exact_sums, "FEWEST_TASKS", tasks)
        monkeypatch.setattr(exact_sums, "TASKS_A_THREAD", 1)
        for theirs, mine in zip(expected, (cross.whitened(V), cross.residual(V[:21], V, returned=True)), strict=True):
            for name, values in vars(theirs).items():
                np.testing.assert_array_equal(getattr(mine, name), values)


def test_memory_does_not_grow_with_the_samples_but_for_vectors() -> None:
    small, large = (cross_bytes(n, 10, 1000) for n in (10**5, 10**6))
    assert large.process == small.process
    assert large.coordinator - small.coordinator == 8 * 9 * 10**5 * 3
    assert large.in_process(2) < 2 * 1024**3


# What proofs count for sums over samples: no term passes through more additions, however samples are cut.


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 1025, 8193, 70_000, 300_000, 530_000, 10**7])
def test_no_term_is_added_more_often_than_is_counted(n: int) -> None:
    """A piece's rows in any order, the pieces of a run, the digits of runs; a few products besides."""
    executor = LocalExecutor(1)
    operator = BlockedKernelOperator(
        SquaredExponential(gamma=(1.0,)), 0.1, ArrayInputs(np.broadcast_to(0.0, (n, 1))), executor
    )
    context, most = operator.context, 0
    runs = runs_of(context, {})
    assert len(runs) <= unit_count(n)
    for prototypes, run in itertools.product((1, 1500, 2048, 5000, 10**6), runs):
        longest, pieces, largest = piece_rows(prototypes), 0, 0
        for block in run.blocks:
            start, stop = context.bounds(block)
            pieces += -(-(stop - start) // longest)
            largest = max(largest, min(longest, stop - start))
        most = max(most, largest + pieces + 3)
    executor.close()
    # Weights of a row, its square root and quotient; the sums of such terms are counted with three more at most.
    assert most + 3 <= sample_sum_roundings(n)
    print(f"\nn = {n:,}: {most} additions at most, {sample_sum_roundings(n):.0f} counted")


# Farthest-first traversals by candidates: the samples that looking at all of them for every prototype chooses.


RNG = np.random.default_rng(3)


def one_by_one(evaluator: TileEvaluator, parts: list[Features], prior: np.ndarray, size: int, place: int) -> list[int]:
    """All samples looked at for every prototype."""
    owner = np.repeat(np.arange(len(parts)), [part.n for part in parts])
    within = np.concatenate([np.arange(part.n) for part in parts])
    nearest, places = np.full(len(prior), np.inf), [place]
    while len(places) < min(size, len(prior)):
        point = parts[owner[place]].take(within[[place]])
        column = np.concatenate([np.array(evaluator.tile(part, point))[:, 0] for part in parts])
        nearest = np.minimum(nearest, prior + prior[place] - 2.0 * column)
        nearest[place] = 0.0
        place = int(np.argmax(nearest))
        if not nearest[place] > cross_kernel.LEAST_DISTANCE * prior[place]:
            break
        places.append(place)
    return places


INPUTS = {
    "uniform": RNG.uniform(0.0, 1.0, (300, 2)),
    "normal": RNG.standard_normal((301, 30)),
    "grid": np.stack(np.meshgrid(np.arange(17.0), np.arange(18.0)), axis=-1).reshape(-1, 2),
    "duplicates": np.repeat(RNG.integers(0, 9, (50, 3)).astype(float), 6, axis=0),
    "clusters": RNG.integers(0, 3, (300, 2)) * 100.0 + 1e-3 * RNG.standard_normal((300, 2)),
    "far out": np.concatenate([RNG.standard_normal((299, 2)), [[1e200, -1e200]]]),
    "same": np.ones((300, 2)),
}


@pytest.mark.covering
@pytest.mark.parametrize("few", [1, 40])
@pytest.mark.parametrize("kernel", [Linear, SquaredExponential], ids=["linear", "rbf"])
@pytest.mark.parametrize("name", INPUTS)
def test_the_same_samples_are_chosen(
    name: str, kernel: Callable[[tuple[float, ...]], Kernel], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_kernel, "LEAST_CANDIDATES", few)
    monkeypatch.setattr(cross_kernel, "CANDIDATES_SHARE", 100)
    monkeypatch.setattr(cross_kernel, "POINTS_AT_ONCE", 5)
    monkeypatch.setattr(cross_kernel, "ROWS_AT_ONCE", 64)
    inputs = INPUTS[name]
    made = kernel((0.7,) * inputs.shape[1])
    evaluator = TileEvaluator(made, "double")
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [evaluator.prepare(part) for part in np.split(inputs, [64, 129])]
        prior = np.asarray(made.diagonal(inputs), dtype=np.float64)
        for size, place in ((1, 5), (40, 0), (len(inputs), 200)):
            expected = one_by_one(evaluator, parts, prior, size, place)
            assert cross_kernel._traverse(evaluator, parts, prior, size, place) == expected
            # One part of few samples is traversed by compiled code.
            together = [evaluator.prepare(inputs)]
            expected = one_by_one(evaluator, together, prior, size, place)
            assert cross_kernel._traverse(evaluator, together, prior, size, place) == expected
    assert (len(expected) == 1) == (name == "same" or (name == "far out" and kernel is Linear))


def test_few_distances_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a third of the n entries a prototype come in single columns."""
    kernel = Linear((1.0,) * 3)
    evaluator = TileEvaluator(kernel, "double")
    inputs = RNG.standard_normal((20_000, 3))
    features, entries = evaluator.prepare(inputs), [0]
    plain = TileEvaluator.tile

    def counted(self: TileEvaluator, rows: Features, columns: Features) -> np.ndarray:
        entries[0] += rows.n if columns.n == 1 else 0
        return plain(self, rows, columns)

    monkeypatch.setattr(TileEvaluator, "tile", counted)
    cross_kernel._traverse(evaluator, [features], np.asarray(kernel.diagonal(inputs)), 300, 0)
    assert 0 < entries[0] < 0.33 * 300 * 20_000
