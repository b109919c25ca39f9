"""The low-rank factor as a preconditioner, held by the workers or evaluated as it is needed, against dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.operators.low_rank import factor as factor_module
from dkgp.operators.low_rank.factor import HELD_BYTES, LowRankFactor, LowRankPreconditioner, low_rank_bytes
from dkgp.operators.low_rank.products import FEW_VECTORS, PIECE_COLUMNS, PIECE_ROWS, FactorRows

N, RANK = 900, 60
KERNEL = SquaredExponential(gamma=(3.0, 3.0))


@pytest.fixture(params=["held", "evaluated"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(factor_module, "HELD_BYTES", HELD_BYTES if request.param == "held" else 0)
    return bool(request.param == "held")


def preconditioner(threads: int, noise: Any) -> tuple[BlockedKernelOperator, LowRankPreconditioner]:
    X = np.random.default_rng(0).standard_normal((N, 2))
    operator = BlockedKernelOperator(KERNEL, noise, ArrayInputs(X), LocalExecutor(threads))
    factor = LowRankFactor(operator, np.arange(0, N, N // RANK, dtype=np.intp)[:RANK])
    return operator, LowRankPreconditioner(factor, operator.noise_variance)


@pytest.mark.parametrize("by_sample", [False, True])
def test_it_is_the_inverse_of_the_low_rank_matrix(held: bool, by_sample: bool, rng: np.random.Generator) -> None:
    noise = 0.01 * np.exp(rng.standard_normal(N)) if by_sample else 0.01
    operator, found = preconditioner(2, noise)
    X = operator.inputs(np.arange(N))
    landmarks = X[:: N // RANK][:RANK]
    # Leading directions, of which a small difference of large numbers is left, and any others.
    right = np.column_stack([np.ones(N), KERNEL(X, X[:1])[:, 0], rng.standard_normal((N, 6))])
    cross, inner = KERNEL(X, landmarks), KERNEL(landmarks, landmarks)
    dense = cross @ np.linalg.solve(inner + 1e-12 * np.eye(RANK), cross.T) + np.diag(np.broadcast_to(noise, N))
    expected = np.linalg.solve(dense, right)
    applied = found.apply(right)
    np.testing.assert_allclose(applied, expected, atol=2e-4 * np.abs(expected).max(axis=0).min())
    # What is one factor in every product is symmetric.
    against = right.T @ applied
    np.testing.assert_allclose(against, against.T, atol=1e-7 * np.abs(against).max())


@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_its_parts_are_those_of_dense_algebra(
    held: bool, by_sample: bool, weighed: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of blocks in several pieces each: F'WF, F'V and F Z, with F's rows times the roots of the noise's shares."""
    monkeypatch.setattr(factor_module, "PIECE_ROWS", 100)
    noise = 0.01 * np.exp(rng.standard_normal(N)) if by_sample else 0.01
    operator, found = preconditioner(2, noise)
    X = operator.inputs(np.arange(N))
    landmarks = X[:: N // RANK][:RANK]
    lower = np.linalg.cholesky(KERNEL(landmarks, landmarks) + 1e-9 * np.eye(RANK))
    F = np.linalg.solve(lower, KERNEL(landmarks, X)).T * np.sqrt(np.min(noise) / np.broadcast_to(noise, N))[:, None]
    weights = rng.uniform(0.0, 2.0, N) if weighed else None
    told: list[tuple[str, int, int, str]] = []
    with operator.watched(lambda progress: told.append((progress.phase, progress.done, progress.total, progress.unit))):
        gram = found._factor.gram(weights)
    expected = F.T @ (F if weights is None else weights[:, None] * F)
    np.testing.assert_allclose(gram, expected, atol=1e-4 * np.abs(expected).max())
    blocks = operator.context.n_blocks
    assert told == [("factor", min(done, blocks), blocks, "blocks") for done in range(2, blocks + 2, 2)]
    scale = 1.0 if found._scale is None else found._scale
    V, Z = scale * rng.standard_normal((N, 3)), rng.standard_normal((RANK, 2))
    rows = F if held else F / scale  # what is not held is multiplied where it is evaluated
    assert found._factor.rank == found.rank == RANK
    np.testing.assert_allclose(found._factor.project(V), F.T @ V, atol=1e-4 * np.abs(F.T @ V).max())
    np.testing.assert_allclose(found._factor.expand(Z), F @ Z, atol=1e-4 * np.abs(rows @ Z).max())


def test_threads_change_no_bit(held: bool, rng: np.random.Generator) -> None:
    right = rng.standard_normal((N, 2))
    one, three = (preconditioner(threads, 0.01)[1].apply(right) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_what_is_evaluated_takes_entries_instead_of_memory(held: bool, rng: np.random.Generator) -> None:
    operator, found = preconditioner(1, 0.01)
    before = operator.kernel_evaluations
    found.apply(rng.standard_normal((N, 1)))
    assert operator.kernel_evaluations - before == (0 if held else 2 * N * RANK)


def test_bytes_stay_bounded_as_samples_grow() -> None:
    largest = max(low_rank_bytes(n, rank, 2) for n in (10**5, 10**6, 10**7) for rank in (100, 600, 2000))
    assert low_rank_bytes(10**6, 200) == 4 * 10**6 * 200 + 16 * 200**2
    assert largest < 1.2 * HELD_BYTES
    # Of one that is not held, by default with one thread at work: two pieces of columns, float64, and two triangles.
    assert low_rank_bytes(10**7, 500) == 16 * 500**2 + 8 * 500 * (2 * PIECE_ROWS + 2 * 500)
    assert low_rank_bytes(10**7, 500, 3) == 16 * 500**2 + 3 * 8 * 500 * (2 * PIECE_ROWS + 2 * 500)


# Products of a float32 factor with float64 vectors, against NumPy's on a float64 copy.


SHAPES = [(1, 1), (1, 40), (3, 16), (4, 17), (5, 15), (1027, 33), (130, 129)]


def problem(rows: int, rank: int, vectors: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([rows, rank, vectors])
    factor = rng.standard_normal((rows, rank)).astype(np.float32)
    return factor, rng.standard_normal((rank, vectors)), rng.standard_normal((rows, vectors))


@pytest.mark.parametrize("vectors", [1, 2, FEW_VECTORS, FEW_VECTORS + 1])
@pytest.mark.parametrize(("rows", "rank"), SHAPES)
def test_against_a_double_copy(rows: int, rank: int, vectors: int) -> None:
    factor, weights, left = problem(rows, rank, vectors)
    copy = factor.astype(np.float64)
    scale = np.abs(copy).sum()
    found = FactorRows(factor)
    np.testing.assert_allclose(found.expand(weights), copy @ weights, rtol=0, atol=1e-15 * scale)
    np.testing.assert_allclose(found.project(left), copy.T @ left, rtol=0, atol=1e-15 * scale)
    np.testing.assert_allclose(found.gram(), copy.T @ copy, rtol=0, atol=1e-15 * scale**2)


def test_products_are_summed_in_double() -> None:
    # In float32 the small terms would vanish beside the first.
    factor = np.ones((1, 1001), np.float32)
    weights = np.full((1001, 1), 1e-9)
    weights[0] = 1.0
    assert FactorRows(factor).expand(weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)
    assert FactorRows(factor.T.copy()).project(weights)[0, 0] == pytest.approx(1.0 + 1e-6, rel=1e-12)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    factor, weights, _ = problem(41, 70, 2)
    whole = FactorRows(factor).expand(weights)
    for start in (0, 1, 2, 3, 38):
        np.testing.assert_array_equal(FactorRows(factor[start:]).expand(weights), whole[start:])


@pytest.mark.parametrize("precision", ["single", "double"])
def test_threads_change_nothing_and_precision_the_last_digits(precision: str) -> None:
    factor, weights, left = problem(2100, PIECE_COLUMNS + 30, FEW_VECTORS + 1)
    copy = factor.astype(np.float64)
    one, three = (FactorRows(factor, precision, threads) for threads in (1, 3))  # type: ignore[arg-type]
    eps = float(np.finfo(np.float32 if precision == "single" else np.float64).eps)
    for name, argument, expected in (
        ("expand", (weights,), copy @ weights),
        ("project", (left,), copy.T @ left),
        ("gram", (), copy.T @ copy),
    ):
        found = getattr(one, name)(*argument)
        assert found.dtype == np.float64
        assert found.tobytes() == getattr(three, name)(*argument).tobytes()
        np.testing.assert_allclose(found, expected, rtol=0, atol=100 * eps * np.sqrt(np.mean(expected**2)) * 50)
    # Few vectors are multiplied in float64 either way, whatever type they come in.
    few = FactorRows(factor, precision).expand(weights[:, :2].astype(np.float32))  # type: ignore[arg-type]
    np.testing.assert_allclose(few, copy @ weights[:, :2].astype(np.float32), rtol=0, atol=1e-9)


def test_a_product_with_itself_is_whole() -> None:
    """Both triangles, to the last bit: the upper one is what a factorisation that fails goes back to."""
    gram = FactorRows(problem(300, 2 * PIECE_COLUMNS + 5, 1)[0], "single").gram()
    assert np.array_equal(gram, gram.T)
    assert (gram.diagonal() > 0.0).all()
