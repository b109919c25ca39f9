"""The tiles of a squared exponential: sizes around every boundary of the loops, digits that are kept, misuse."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dkgp.cluster.threads import in_parallel
from dkgp.errors import InputError
from dkgp.kernels import EntryCount, SquaredExponential, TileEvaluator, count_entries, counting
from dkgp.kernels.stationary import EXP2
from dkgp.kernels.tiles.evaluator import FEW_ROWS, Precision
from tests.kernels.table import CASES, Case, features_of
from tests.kernels.tiles.programs import leaf_kernel
from tests.kernels.tiles.test_programs import BOUND, check

# Around one vector (16 rows), around the largest tile (512 rows), and across it; around one tile's columns (16) and
# around a flush to float64 (128).
SHAPES = [
    *((rows, 21) for rows in (1, 15, 16, 17, 511, 512, 513)),
    *((70, n) for n in (1, 4, 15, 17, 127, 128, 129, 300)),
]


def random_kernel(rng: np.random.Generator, d: int, variance: float = 1.7) -> SquaredExponential:
    """Length scales such that kernel values spread over (0, v) at any d."""
    return SquaredExponential(gamma=tuple(rng.uniform(0.2, 1.0, d) / d), variance=variance)


@pytest.mark.covering
@pytest.mark.parametrize("targets", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_around_vector_tile_and_flush_boundaries(
    rng: np.random.Generator, shape: tuple[int, int], targets: int, precision: str, expanded: bool
) -> None:
    X, Z = rng.standard_normal((shape[0], 3)), rng.standard_normal((shape[1], 3))
    check(leaf_kernel(EXP2, 3, amplitude=0.4), X, Z, precision, expanded, targets)


@pytest.mark.parametrize("d", [6, 7, 9, 10, 11, 12, 20])
def test_numbers_of_features(rng: np.random.Generator, d: int, precision: str, expanded: bool) -> None:
    """Beside those that every profile is tested with."""
    kernel = leaf_kernel(EXP2, d, scale=rng.uniform(0.4, 1.4, d) / np.sqrt(d), amplitude=1.7)
    check(kernel, rng.standard_normal((83, d)), rng.standard_normal((37, d)), precision, expanded, 3)


def test_float32_sums_do_not_lose_digits_with_the_number_of_columns(rng: np.random.Generator) -> None:
    # All entries positive: a float32 running total over 20,000 of them would be off by far more than one rounding.
    kernel = SquaredExponential(gamma=(0.01, 0.01))
    evaluator = TileEvaluator(kernel, "single")
    X, Z = rng.standard_normal((17, 2)), rng.standard_normal((20_000, 2))
    W = rng.uniform(0.5, 1.5, (20_000, 1))
    product = evaluator.matmat(evaluator.prepare(X), evaluator.prepare(Z), W)
    np.testing.assert_allclose(product, kernel(X, Z) @ W, rtol=3e-7)


def test_features_with_zero_gamma_change_nothing(rng: np.random.Generator, precision: str, expanded: bool) -> None:
    full = SquaredExponential(gamma=(0.0, 0.4, 0.0, 0.2), variance=1.3)
    reduced = SquaredExponential(gamma=(0.4, 0.2), variance=1.3)
    X, W = rng.standard_normal((40, 4)), rng.standard_normal((40, 2))
    wide, narrow = (TileEvaluator(kernel, precision, expanded=expanded) for kernel in (full, reduced))
    A, B = wide.prepare(X), narrow.prepare(X[:, [1, 3]])
    np.testing.assert_array_equal(wide.tile(A, A), narrow.tile(B, B))
    np.testing.assert_array_equal(wide.matmat(A, A, W), narrow.matmat(B, B, W))
    assert np.abs(wide.tile(A, A) - full(X, X)).max() <= BOUND[precision] * full.variance


@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("d", [4, 12])
def test_expanded_form_loses_no_more_than_the_norms_rounding(
    rng: np.random.Generator, d: int, spread: float, precision: str
) -> None:
    # Pairs of equal and of close rows, far from the origin: the worst that the expanded form can meet.
    kernel = random_kernel(rng, d, variance=2.7)
    evaluator = TileEvaluator(kernel, precision, expanded=True)
    X = spread * rng.standard_normal((300, d))
    Z = X + 0.2 * rng.standard_normal((300, d))
    A, B = evaluator.prepare(X), evaluator.prepare(Z)
    largest_squared_norm = float(A.squared_norms.max())
    bound = 2.7 * (largest_squared_norm + 4.0) * 4 * np.finfo(np.float32 if precision == "single" else np.float64).eps
    assert np.abs(evaluator.tile(A, A) - kernel(X, X)).max() <= bound
    assert np.abs(evaluator.tile(A, B) - kernel(X, Z)).max() <= bound


def test_float64_tiles_are_positive_definite_with_a_little_noise(rng: np.random.Generator, expanded: bool) -> None:
    # Nearly equal rows: the kernel matrix alone is singular to working precision.
    X = np.repeat(rng.standard_normal((30, 6)), 5, axis=0) + 1e-7 * rng.standard_normal((150, 6))
    evaluator = TileEvaluator(random_kernel(rng, 6, variance=1.0), "double", expanded=expanded)
    A = evaluator.prepare(X)
    K = np.array(evaluator.tile(A, A))
    K = (K + K.T) / 2
    noise_variance = 1e-9
    assert np.linalg.eigvalsh(K).min() < noise_variance
    assert np.linalg.eigvalsh(K + noise_variance * np.eye(150)).min() > 0.9 * noise_variance


@pytest.mark.parametrize(
    ("precision", "d", "gamma", "chosen"),
    [
        ("single", 2, 0.5, False),
        ("single", 40, 0.5, True),
        # Many short length scales: the expanded form would lose too many of float32's digits.
        ("single", 40, 5.0, False),
        # What is proven is evaluated in double precision.
        ("double", 40, 0.5, False),
    ],
)
def test_default_form_is_accurate_and_as_documented(
    rng: np.random.Generator, precision: str, d: int, gamma: float, chosen: bool
) -> None:
    kernel = SquaredExponential(gamma=(gamma,) * d)
    X = rng.standard_normal((60, d))
    Z = X + 0.1 * rng.standard_normal((60, d)) / np.sqrt(d)
    tiles = {}
    for form in (None, False, True):
        evaluator = TileEvaluator(kernel, precision, expanded=form)
        tiles[form] = evaluator.tile(evaluator.prepare(X), evaluator.prepare(Z))
    assert not np.array_equal(tiles[False], tiles[True])
    np.testing.assert_array_equal(tiles[None], tiles[chosen])
    # At the threshold of 64 for the expected squared norm the expanded form is at its worst.
    assert np.abs(tiles[None] - kernel(X, Z)).max() <= (5e-5 if precision == "single" else 1e-12)


def test_misuse_is_told() -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(0.5, 0.5)))
    with pytest.raises(InputError, match='precision must be "single" or "double"; got \'half\''):
        TileEvaluator(evaluator.kernel, "half")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected rows of 2 features; got an array of shape \(4, 3\)"):
        evaluator.prepare(np.zeros((4, 3)))
    A, B = evaluator.prepare(np.zeros((4, 2))), evaluator.prepare(np.zeros((3, 2)))
    for weights in (np.zeros((4, 1)), np.zeros(3)):
        with pytest.raises(InputError, match=r"expected weights of shape \(3, t\) for 3 kernel columns"):
            evaluator.matmat(A, B, weights)
    for weights in (np.zeros((3, 1)), np.zeros((4, 2))):
        with pytest.raises(InputError, match=r"expected weights \(3, t\) and \(4, t\)"):
            evaluator.pair(A, B, np.zeros((3, 1)), weights)


@pytest.mark.spread(10)
@pytest.mark.covering
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("expanded", [None, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_few_rows_have_the_bits_of_many(
    rng: np.random.Generator, case: Case, precision: Precision, expanded: bool | None
) -> None:
    """Rows of a small product equal the first rows of a larger one, for any number of columns and targets."""
    d = features_of(case)
    kernel = case.kernel if case.kernel.n_features else case.kernel.on(range(3), 3)
    evaluator = TileEvaluator(kernel, precision, expanded=expanded)
    X, Z = 1.3 * rng.normal(size=(FEW_ROWS + 9, d)), rng.normal(size=(1100, d))
    Z[700] = X[1]
    many = evaluator.prepare(X)
    for columns in (1, 129, 512, 1100):
        weights = rng.normal(size=(columns, 2))
        right = evaluator.prepare(Z[:columns])
        expected = evaluator.matmat(many, right, weights)
        for rows in (1, FEW_ROWS):
            for left in (many.first(rows), evaluator.prepare(X[:rows])):
                product = evaluator.matmat(left, right, weights)
                np.testing.assert_array_equal(product, expected[:rows])
        assert evaluator.matmat(many.first(1), right.first(columns), weights[:, :0]).shape == (1, 0)


# Counting kernel entries: by every method of the evaluator, on any thread, for whoever asked.


KERNEL = SquaredExponential(gamma=(0.5, 0.2))


@pytest.mark.parametrize("precision", ["single", "double"])
def test_every_method_counts_its_entries(precision: Precision, rng: np.random.Generator) -> None:
    entries = EntryCount()
    evaluator = TileEvaluator(KERNEL, precision, entries=entries)
    A, B = evaluator.prepare(rng.standard_normal((37, 2))), evaluator.prepare(rng.standard_normal((21, 2)))
    assert entries.value == 0
    evaluator.matmat(A, B, np.ones((21, 3)))
    assert entries.value == 37 * 21
    evaluator.pair(A, B, np.ones((21, 2)), np.ones((37, 2)))
    assert entries.value == 2 * 37 * 21
    evaluator.tile(A.first(5), B.take(np.arange(4)))
    assert entries.value == 2 * 37 * 21 + 20


def test_without_a_count_of_its_own_the_innermost_open_one_gets_them(rng: np.random.Generator) -> None:
    own = EntryCount()
    evaluator = TileEvaluator(KERNEL, entries=own)
    sent = pickle.loads(pickle.dumps(evaluator))  # as to a worker, where nobody holds the count
    A = sent.prepare(rng.standard_normal((10, 2)))
    sent.tile(A, A)
    with counting() as outer:
        sent.tile(A, A)
        with counting() as inner:
            sent.tile(A, A)
            sent.tile(A, A)
            evaluator.tile(A, A)
        count_entries(7)
    sent.tile(A, A)
    assert (outer.value, inner.value, own.value) == (107, 200, 100)


def test_threads_lose_nothing(rng: np.random.Generator) -> None:
    evaluator = TileEvaluator(KERNEL)
    A = evaluator.prepare(rng.standard_normal((16, 2)))
    with counting() as count:
        in_parallel(lambda piece: [evaluator.tile(A, A) for _ in range(200)] and None, 16, threads=4)
    assert count.value == 16 * 200 * 256

    def one(number: int) -> int:
        with counting() as own:  # tasks that share a process
            for _ in range(number):
                evaluator.tile(A, A)
        return own.value

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(20))) == [number * 256 for number in range(20)]
