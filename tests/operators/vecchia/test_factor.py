"""The factor as a whole: the formula, in dense algebra; definiteness; and one result wherever its leaves are."""

from __future__ import annotations

import errno
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
from dkgp.operators.vecchia.factor import VecchiaFactor

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
