"""The factor as a whole: the formula, in dense algebra; definiteness; and one result wherever its leaves are."""

from __future__ import annotations

import errno
import itertools
import pickle
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import LocalExecutor
from dkgp.data import Progress
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.kernels.expression import parse_kernel
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.vecchia import halos
from dkgp.operators.vecchia.factor import VecchiaFactor
from dkgp.operators.vecchia.halos import OrderedPoints, kd_order, leaf_count

N, D = 700, 3
KERNEL = SquaredExponential(gamma=(0.5, 0.8, 1.1), variance=1.3)
MARKS = np.arange(0, N, 20)

MakeOperator = Callable[..., BlockedKernelOperator]


@pytest.fixture
def make(two_threads: LocalExecutor) -> Iterator[MakeOperator]:
    opened = []

    def operator(
        kernel: Kernel = KERNEL, noise: Any = 0.02, X: np.ndarray | None = None, executor: Any = two_threads
    ) -> BlockedKernelOperator:
        opened.append(BlockedKernelOperator(kernel, noise, ArrayInputs(inputs() if X is None else X), executor))
        return opened[-1]

    yield operator
    for each in opened:
        each.close()


def inputs(n: int = N, d: int = D) -> np.ndarray:
    return np.random.default_rng([n, d]).standard_normal((n, d))


def vectors(n: int = N, t: int = 1) -> np.ndarray:
    return np.random.default_rng([n, t]).standard_normal((n, t))


def kbar(operator: BlockedKernelOperator) -> np.ndarray:
    every = np.arange(operator.n)
    return operator.submatrix(every, every)


def columns(factor: VecchiaFactor) -> np.ndarray:
    """M^-1, a few columns at a time as a solver would ask for it."""
    n = factor.recipe.leaves.context.n
    return np.hstack([factor.apply(part.T) for part in np.array_split(np.eye(n), n // 7)])


def by_the_formula(factor: VecchiaFactor, operator: BlockedKernelOperator) -> np.ndarray:
    """T' (I - V (I + V'V)^-1 V') T in float64, with T and V made row by row from dense matrices."""
    n, leaves = operator.n, factor.recipe.leaves
    K, points = kbar(operator), leaves.points()
    F = np.zeros((n, 0))
    if factor.rank:
        marks = np.array(
            [int(np.argmin(((operator.inputs(np.arange(n)) - x) ** 2).sum(1))) for x in leaves.landmark_inputs]
        )
        corner = K[np.ix_(marks, marks)] - np.diag(np.full(len(marks), operator.noise_variance))
        corner += 1e-9 * np.diag(corner.diagonal())
        noiseless = K - operator.noise_variance * np.eye(n)
        F = scipy.linalg.solve_triangular(np.linalg.cholesky(corner), noiseless[marks], lower=True).T
    S, T = K - F @ F.T, np.zeros((n, n))
    for leaf in range(leaves.n_leaves):
        places = np.r_[points.halo(leaf, leaves.halo), points.bounds[leaf] : points.bounds[leaf + 1]].astype(int)
        I, halo = points.order[places], len(places) - int(np.diff(points.bounds)[leaf])
        lower = np.linalg.cholesky(S[np.ix_(I, I)])
        rows = scipy.linalg.solve_triangular(lower, np.eye(len(I)), lower=True)[halo:]
        T[np.ix_(I[halo:], I)] = rows
    V = T @ F
    return T.T @ (np.eye(n) - V @ np.linalg.solve(np.eye(V.shape[1]) + V.T @ V, V.T)) @ T


def steps(K: np.ndarray, y: np.ndarray, apply: Callable[[np.ndarray], np.ndarray], tolerance: float = 1e-6) -> int:
    """Steps of preconditioned conjugate gradients that |r| takes to fall to `tolerance` of |y|."""
    r, x = y.copy(), np.zeros_like(y)
    p = z = apply(r)
    rho = np.vdot(r, z)
    for step in range(1, 300):
        image = K @ p
        size = rho / np.vdot(p, image)
        x += size * p
        r -= size * image
        if np.linalg.norm(r) <= tolerance * np.linalg.norm(y):
            return step
        z = apply(r)
        rho, before = np.vdot(r, z), rho
        p = z + rho / before * p
    return 300


@pytest.mark.spread(2)
@pytest.mark.covering
@pytest.mark.parametrize("marks", [None, MARKS])
@pytest.mark.parametrize(("halo", "leaf"), [(90, 40), (0, 25), (100, 700)])
def test_the_formula(make: MakeOperator, halo: int, leaf: int, marks: np.ndarray | None) -> None:
    operator = make()
    factor = VecchiaFactor(operator, halo, leaf, marks)
    expected = by_the_formula(factor, operator)
    scale = np.abs(expected).max()
    found = columns(factor)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4 * scale)
    np.testing.assert_allclose(found, found.T, rtol=0, atol=1e-12 * scale)
    assert scipy.linalg.eigvalsh(found)[0] > 0.0
    assert factor.rank == (0 if marks is None else len(marks))
    assert factor.nbytes == factor.memory_bytes > 0


@pytest.mark.parametrize("marks", [None, MARKS])
def test_with_everything_before_it_for_a_halo_it_is_the_inverse(make: MakeOperator, marks: np.ndarray | None) -> None:
    operator = make(noise=np.random.default_rng(1).uniform(0.02, 0.5, N))
    r = vectors()
    found = VecchiaFactor(operator, N, 64, marks).apply(r)
    expected = np.linalg.solve(kbar(operator), r)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


@pytest.mark.portable
def test_steps_fall_as_halos_grow(make: MakeOperator) -> None:
    X = np.random.default_rng(3).uniform(-3.0, 3.0, (900, 2))
    operator = make(SquaredExponential(gamma=(4.0, 4.0)), 1e-3, X)
    K, y = kbar(operator), vectors(900)
    plain = steps(K, y, lambda r: r.copy())
    counts = [steps(K, y, VecchiaFactor(operator, halo, 45).apply) for halo in (0, 45, 90, 180, 360)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] <= 8 < counts[1] < plain / 3
    marks = np.arange(0, 900, 9)
    assert steps(K, y, VecchiaFactor(operator, 45, 45, marks).apply) < counts[1]


@pytest.mark.parametrize("count", [2, 9, 150])
@pytest.mark.parametrize("marks", [None, MARKS])
def test_several_vectors_are_one_after_the_other(make: MakeOperator, marks: np.ndarray | None, count: int) -> None:
    factor, r = VecchiaFactor(make(), 80, 35, marks), vectors(t=count)
    before = r.copy()
    found = factor.apply(r)
    one = np.hstack([factor.apply(r[:, [k]]) for k in range(count)])
    np.testing.assert_allclose(found, one, rtol=0, atol=2e-6 * np.abs(one).max())
    np.testing.assert_array_equal(r, before)


@pytest.mark.parametrize(
    ("expression", "noise"),
    [
        ("linear + rbf", 0.02),
        ("polynomial(degree=2)", 0.02),
        ("matern32", 0.02),
        ("matern32 * periodic + rbf", 0.02),
        ("rbf", 1e-8),
        ("linear", 1e-6),
    ],
)
@pytest.mark.parametrize("rank", [0, 30])
def test_any_kernel_and_duplicates_of_every_row(make: MakeOperator, expression: str, noise: float, rank: int) -> None:
    X = np.repeat(inputs(250), 2, axis=0)
    operator = make(parse_kernel(expression, D), noise, X)
    K = kbar(operator)
    factor = VecchiaFactor(operator, 150, 50, np.arange(0, 500, 500 // rank) if rank else None)
    found = factor.apply(np.eye(500)[:, :8])
    assert np.isfinite(found).all()
    r = vectors(500, 3)
    quadratic = np.einsum("nt,nt->t", r, factor.apply(r))
    assert (quadratic > 0.0).all()
    # As a preconditioner it is worth more than the diagonal, by far.
    y = K @ vectors(500)
    assert steps(K, y, factor.apply, 1e-5) <= 0.5 * steps(K, y, lambda r: r / K.diagonal()[:, None], 1e-5)


def test_ninety_features(make: MakeOperator) -> None:
    X = inputs(600, 90)
    operator = make(SquaredExponential(gamma=(0.004,) * 90), 0.01, X)
    factor = VecchiaFactor(operator, 150, 50)
    expected = by_the_formula(factor, operator)
    np.testing.assert_allclose(columns(factor), expected, rtol=0, atol=3e-4 * np.abs(expected).max())


def test_threads_and_places_of_leaves_change_no_bit(make: MakeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    r, found = vectors(t=2), []
    many = vectors(t=20)
    for threads in (1, 2, 3):
        executor = LocalExecutor(threads)
        factor = VecchiaFactor(make(executor=executor), 80, 35, MARKS)
        found.append((factor.apply(r), factor.apply(many)))
        executor.close()
    for threads in (1, 3):
        local = factor.recipe.local(threads)
        found.append((local.apply(r), local.apply(many)))
    worker_cache().clear()  # everything is made again
    local = pickle.loads(pickle.dumps(factor.recipe)).local(2)
    found.append((local.apply(r), local.apply(many)))
    monkeypatch.setattr(worker_cache(), "budget_bytes", 250_000)
    worker_cache().clear()
    spilled = VecchiaFactor(make(), 80, 35, MARKS)
    assert spilled.disk_bytes > spilled.memory_bytes
    found.append((spilled.apply(r), spilled.apply(many)))
    for one, other in found:
        np.testing.assert_array_equal(one, found[0][0])
        np.testing.assert_array_equal(other, found[0][1])


def test_on_a_full_disk_leaves_are_made_again(make: MakeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    r = vectors()
    expected = VecchiaFactor(make(), 80, 35).apply(r)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(worker_cache(), "budget_bytes", 200_000)
    worker_cache().clear()
    operator = make()
    factor = VecchiaFactor(operator, 80, 35)
    assert factor.disk_bytes == 0
    entries = operator.kernel_evaluations
    np.testing.assert_array_equal(factor.apply(r), expected)
    assert operator.kernel_evaluations > entries


def test_what_is_kept_is_not_made_again(make: MakeOperator) -> None:
    operator = make()
    factor = VecchiaFactor(operator, 80, 35, MARKS)
    entries = operator.kernel_evaluations
    assert entries > 0
    factor.apply(vectors())
    assert operator.kernel_evaluations == entries


def test_points_that_were_evicted_take_no_leaf_with_them(make: MakeOperator) -> None:
    operator = make()
    factor = VecchiaFactor(operator, 80, 35)
    leaves = factor.recipe.leaves
    worker_cache().discard(*leaves.key("points"))
    leaves.points()
    entries = operator.kernel_evaluations
    factor.apply(vectors())
    assert operator.kernel_evaluations == entries


def test_vectors_in_flight_are_bounded(make: MakeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    factor, r = VecchiaFactor(make(), 80, 35), vectors(t=12)
    expected = factor.apply(r)
    seen = []
    apply = factor._apply
    monkeypatch.setattr(factor, "_apply", lambda part, out: (seen.append(part.shape[1]), apply(part, out)))
    monkeypatch.setattr("dkgp.operators.vecchia.factor.BYTES_AT_ONCE", 5 * 8 * 3 * N)
    np.testing.assert_allclose(factor.apply(r), expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert max(seen) < 12
    assert sum(seen) == 12


def test_its_progress_is_told(make: MakeOperator) -> None:
    told: list[Progress] = []
    operator = make()
    with operator.watched(told.append):
        VecchiaFactor(operator, 80, 35)
    assert list(dict.fromkeys(each.phase for each in told)) == ["order", "halos", "factor"]
    done = [each.done for each in told if each.phase == "factor"]
    assert done == sorted(done)
    assert done[-1] == told[-1].total == 20


def test_a_new_factor_takes_the_place_of_the_one_before(make: MakeOperator) -> None:
    operator = make()
    first = VecchiaFactor(operator, 80, 35)
    r = vectors()
    expected = first.apply(r)
    second = VecchiaFactor(operator, 160, 70)
    assert worker_cache().bytes_of(*first.recipe.leaves.key("leaf")) == 0
    assert worker_cache().bytes_of(*second.recipe.leaves.key("leaf")) == second.nbytes
    np.testing.assert_array_equal(first.apply(r), expected)


def test_bad_settings_are_refused(make: MakeOperator) -> None:
    for halo, leaf in ((-1, 10), (10, 0)):
        with pytest.raises(InputError, match=f"got {halo} and {leaf}"):
            VecchiaFactor(make(), halo, leaf)


# Halos against all distances, in features few and many, with ties and with parts that are too far to look at.


def ordered(points: np.ndarray, leaf: int) -> OrderedPoints:
    order, bounds = kd_order(points, leaf)
    return OrderedPoints(points[order], order, bounds)


def by_force(points: np.ndarray, found: OrderedPoints, leaf: int, size: int) -> np.ndarray:
    placed = points[found.order].astype(np.float64)
    start, stop = found.bounds[leaf], found.bounds[leaf + 1]
    squares = ((placed[:start, None] - placed[None, start:stop]) ** 2).sum(axis=2).min(axis=1)
    return np.sort(np.argsort(squares, kind="stable")[:size])


@pytest.mark.parametrize(("n", "features", "leaf", "size"), [(600, 2, 30, 50), (600, 10, 37, 100), (500, 90, 50, 64)])
def test_they_are_the_nearest(rng: np.random.Generator, n: int, features: int, leaf: int, size: int) -> None:
    points = rng.standard_normal((n, features)).astype(np.float32)
    found = ordered(points, leaf)
    for number in range(len(found.bounds) - 1):
        np.testing.assert_array_equal(found.halo(number, size), by_force(points, found, number, size))


def test_of_equal_distances_the_first_places_count() -> None:
    points = np.repeat(np.arange(40, dtype=np.float32)[:, None], 10, axis=0)
    found = ordered(points, 20)
    for number in range(20):
        np.testing.assert_array_equal(found.halo(number, 15), by_force(points, found, number, 15))


def test_the_first_leaves_have_all_that_come_before_them(rng: np.random.Generator) -> None:
    found = ordered(rng.standard_normal((100, 2)).astype(np.float32), 10)
    assert len(found.halo(0, 25)) == 0
    np.testing.assert_array_equal(found.halo(2, 25), np.arange(20))
    assert len(found.halo(3, 0)) == 0


def test_far_leaves_are_not_looked_at(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ordered(rng.uniform(size=(20_000, 2)).astype(np.float32), 50)
    looked = 0
    search = halos._search

    def counting(*arguments: object) -> tuple[bool, int]:
        nonlocal looked
        is_proven, of_one = search(*arguments)
        looked += of_one
        return is_proven, of_one

    monkeypatch.setattr(halos, "_search", counting)
    for number in range(len(found.bounds) - 1):
        found.halo(number, 100)
    assert looked < 400 * 1000  # of 400 leaves times 10,000 samples before them on average


# The kd order: a permutation in leaves of even sizes, whose parts do not overlap along the feature that cut the.


@pytest.mark.parametrize(("n", "leaf"), [(1, 1), (7, 10), (100, 1), (1000, 64), (1013, 37)])
def test_it_is_a_permutation_in_even_leaves(rng: np.random.Generator, n: int, leaf: int) -> None:
    order, bounds = kd_order(rng.standard_normal((n, 3)).astype(np.float32), leaf)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1], len(sizes)) == (0, n, leaf_count(n, leaf))
    assert 1 <= sizes.min() <= sizes.max() <= leaf
    assert sizes.max() - sizes.min() <= max(2, leaf // 8)
    for start, stop in itertools.pairwise(bounds):
        assert (np.diff(order[start:stop]) > 0).all()


def test_halves_are_cut_at_the_median_of_the_widest_feature(rng: np.random.Generator) -> None:
    points = (rng.standard_normal((1024, 3)) * [1.0, 4.0, 1.0]).astype(np.float32)
    order, _ = kd_order(points, 512)
    assert points[order[:512], 1].max() < points[order[512:], 1].min()
    order, _ = kd_order(points, 256)
    first, second = points[order[:256]], points[order[256:512]]
    axis = int(points[order[:512]].var(axis=0).argmax())
    assert first[:, axis].max() < second[:, axis].min()


def test_duplicates_and_both_zeros_are_told_apart_by_their_number() -> None:
    points = np.zeros((64, 2), np.float32)
    points[::2] = -0.0
    order, bounds = kd_order(points, 8)
    np.testing.assert_array_equal(order, np.arange(64))
    assert np.diff(bounds).tolist() == [8] * 8


def test_leaves_are_compact(rng: np.random.Generator) -> None:
    points = rng.uniform(size=(4096, 2)).astype(np.float32)
    order, bounds = kd_order(points, 64)
    spread = [np.ptp(points[order[a:b]], axis=0).prod() for a, b in itertools.pairwise(bounds)]
    assert sum(spread) < 1.0  # boxes of 64 leaves cover the unit square about once
