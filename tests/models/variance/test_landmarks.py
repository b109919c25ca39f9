"""Landmarks: distinct rows, a factor close to the kernel matrix, no more of them than the kernel calls for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.cluster import worker_cache
from dkgp.data import FactorWriter, ModelRecord, open_factor, open_model, save_model
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels import SquaredExponential
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.variance.batch import BatchOptions, solve_batch
from dkgp.models.variance.landmarks import WIDEST_LATENT, Landmarks, choose_landmarks, is_enough, jitter
from dkgp.models.variance.nystrom import FactorSource, NystromFactor, factor_bytes
from dkgp.operators.low_rank import pivots
from tests.models.variance.variance_problems import VarianceProblem, draw

pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")

N, D, NOISE = 500, 4, 0.05


def stored_model(folder: Path, X: np.ndarray, kernel: SquaredExponential, noise: float = NOISE) -> ModelRecord:
    dataset = dataset_from_arrays(str(folder / "train"), X, np.sin(X[:, 0]) + np.arange(len(X)) % 3, chunk_rows=150)
    save_model(
        str(folder / "model"),
        kernel=kernel.to_json(),
        noise_variance=noise,
        alpha=np.zeros(len(X)),
        dataset=dataset,
    )
    return open_model(str(folder / "model"))


@pytest.fixture(scope="module")
def inputs() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(N, D))


ROUGH = SquaredExponential((0.5, 0.5, 0.5, 0.5), 1.7)
SMOOTH = SquaredExponential((0.02, 0.01, 0.02, 0.01), 1.7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, inputs: np.ndarray) -> ModelRecord:
    return stored_model(tmp_path_factory.mktemp("landmarks"), inputs, ROUGH)


def residual(model: ModelRecord, kernel: SquaredExponential, chosen: np.ndarray) -> np.ndarray:
    """K - Q, dense, with the pseudo-inverse of the landmarks' own matrix."""
    X = model.inputs(0, model.n_samples)
    K, columns = kernel(X, X), kernel(X, X[chosen])
    return np.asarray(K - columns @ np.linalg.pinv(columns[chosen], rcond=1e-12, hermitian=True) @ columns.T)


def test_so_many_distinct_rows_of_the_model(model: ModelRecord) -> None:
    found = choose_landmarks(model, ROUGH, gap=1e-6, largest_rank=260)
    assert found.rank == 260 == len(np.unique(found.indices))
    assert 0 <= found.indices.min() <= found.indices.max() < N
    assert found.indices.dtype.kind == "i"


def test_trace_and_dimension_are_the_dense_ones(model: ModelRecord, inputs: np.ndarray) -> None:
    """All samples are in the subset here, so nothing is extrapolated."""
    found = choose_landmarks(model, ROUGH, gap=1e-6, largest_rank=200, fixed=True)
    left = residual(model, ROUGH, found.indices)
    assert found.residual_trace == pytest.approx(np.trace(left), rel=1e-6)
    X = model.inputs(0, N)
    eigenvalues = np.linalg.eigvalsh(ROUGH(X, X) - left)
    assert found.effective_dimension == pytest.approx(np.sum(eigenvalues / (eigenvalues + NOISE)), rel=1e-6)
    # Where the rank is not fixed, that of a smaller one will do if it shows that the factor is not enough.
    free = choose_landmarks(model, ROUGH, gap=1e-6, largest_rank=200)
    assert 0.8 * found.effective_dimension < free.effective_dimension <= (1 + 1e-9) * found.effective_dimension


def test_a_subset_stands_for_all(model: ModelRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = dataclasses.replace(model, noise_variance=5.0)  # so that the number of samples counts in every dimension
    whole = choose_landmarks(noisy, ROUGH, gap=1e-6, largest_rank=40)
    monkeypatch.setattr(pivots, "LEAST_SUBSET", 250)
    half = choose_landmarks(noisy, ROUGH, gap=1e-6, largest_rank=40)
    assert half.rank == 40
    assert not np.array_equal(half.indices, whole.indices)
    left = np.trace(residual(model, ROUGH, half.indices))
    assert half.residual_trace == pytest.approx(left, rel=0.15)  # extrapolated from 250 to 500
    assert half.effective_dimension == pytest.approx(whole.effective_dimension, rel=0.15)


def test_better_than_uniform_sampling_where_samples_crowd(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X = np.concatenate([0.02 * rng.normal(size=(570, D)), 2.0 * rng.normal(size=(30, D))])
    crowded = stored_model(tmp_path, X, ROUGH)
    found = choose_landmarks(crowded, ROUGH, gap=1e-6, largest_rank=60)
    uniform = min(np.trace(residual(crowded, ROUGH, rng.choice(600, 60, replace=False))) for _ in range(5))
    assert found.residual_trace < 0.5 * uniform


def test_a_smooth_kernel_needs_few(model: ModelRecord) -> None:
    """No more than the rank at which the factor is expected to do, and it says so."""
    found = choose_landmarks(model, SMOOTH, gap=0.02, largest_rank=600)
    assert found.rank < 300
    assert is_enough(found.residual_trace, found.effective_dimension, NOISE, 0.02, N)
    fixed = choose_landmarks(model, SMOOTH, gap=0.02, largest_rank=250, fixed=True)
    assert fixed.rank == 250 > found.rank
    assert fixed.residual_trace < 0.01 * found.residual_trace


def test_tighter_gaps_need_more(model: ModelRecord) -> None:
    kernel = SquaredExponential((0.2, 0.2, 0.2, 0.2))
    ranks = [choose_landmarks(model, kernel, gap=gap, largest_rank=N).rank for gap in (5.0, 0.5, 0.02)]
    assert ranks[0] < ranks[1] < ranks[2]
    latent = choose_landmarks(model, kernel, gap=5.0, largest_rank=N, latent=True)
    assert latent.rank >= ranks[0]
    # Of a smoother kernel the function's own variance is far below the noise.
    smoother = SquaredExponential((0.05, 0.05, 0.05, 0.05))
    own, noisy = (
        choose_landmarks(model, smoother, gap=1e-4, largest_rank=N, latent=latent).rank for latent in (True, False)
    )
    assert own > noisy > 128


def test_the_numerical_rank_is_the_end(tmp_path: Path) -> None:
    """Only 30 different samples: no landmark is drawn twice, nor a copy of one."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(30, D))[rng.integers(0, 30, 500)]
    copies = stored_model(tmp_path, X, ROUGH)
    found = choose_landmarks(copies, ROUGH, gap=1e-6, largest_rank=200, fixed=True)
    chosen = copies.input_rows(found.indices)
    assert found.rank == 30 == len(np.unique(chosen, axis=0))
    assert found.residual_trace < 1e-6
    # What the factor inverts is well away from singular.
    assert np.linalg.cond(ROUGH(chosen, chosen)) < 1e8


def test_samples_all_but_equal_need_one(tmp_path: Path) -> None:
    kernel = SquaredExponential((1e-14,) * D)
    flat = stored_model(tmp_path, np.random.default_rng(1).normal(size=(40, D)), kernel)
    assert choose_landmarks(flat, kernel, gap=0.02, largest_rank=40, fixed=True).rank == 1


def test_more_landmarks_than_samples_are_all_samples(tmp_path: Path) -> None:
    kernel = SquaredExponential((9.0,) * D)
    few = stored_model(tmp_path, np.random.default_rng(1).normal(size=(5, D)), kernel)
    found = choose_landmarks(few, kernel, gap=1e-9, largest_rank=64)
    assert sorted(found.indices) == [0, 1, 2, 3, 4]


def test_the_seed_decides(model: ModelRecord) -> None:
    def chosen(seed: int) -> Landmarks:
        return choose_landmarks(model, ROUGH, gap=1e-6, largest_rank=50, seed=seed)

    assert np.array_equal(chosen(3).indices, chosen(3).indices)
    assert not np.array_equal(chosen(3).indices, chosen(4).indices)


@given(st.integers(1, 5000), st.floats(1e-6, 1e6))
def test_jitter_is_small_and_above_what_a_factorisation_rounds_to(rank: int, largest: float) -> None:
    found = jitter(rank, largest)
    # Twice R times the largest entry of what rounding takes off, (R + 1) u and a few eps: the worst case.
    worst = rank * (0.5 * (rank + 1) + 64.0) * np.finfo(np.float64).eps * largest
    assert 2.0 * worst < found < 1e-8 * largest
    assert jitter(rank, 2.0 * largest) == 2.0 * found
    assert jitter(rank, largest, 1e6) >= jitter(rank, largest)
    assert jitter(10 * rank, largest) >= found


@pytest.mark.parametrize(("n", "noise", "dimension"), [(1000, 0.01, 50.0), (200, 1.0, 3.0), (10**6, 1e-4, 1e4)])
def test_enough_is_the_stated_inequality(n: int, noise: float, dimension: float) -> None:
    """At the threshold, the excess trace(K - Q) dimension / n, or what it comes to, is `gap` of the variance."""
    for latent, typical in ((False, noise), (True, noise * dimension / n / WIDEST_LATENT)):
        at = 0.02 * typical * n / dimension
        assert is_enough(0.999 * at, dimension, noise, 0.02, n, latent=latent)
        assert not is_enough(1.001 * at, dimension, noise, 0.02, n, latent=latent)


# The partial Cholesky factor: what it is, dense; what it does to vectors; how it is built, cached and loaded.


RANK = 90
LANDMARKS = np.random.default_rng(0).permutation(650)[:RANK]
PRECISIONS = pytest.mark.parametrize("precision", ["single", "double"])
# Relative to the amplitude; the columns are float32 either way.
SINGLE = 1e-5


@pytest.fixture(scope="module")
def problem() -> VarianceProblem:
    """More samples than a piece has rows, in several blocks, the last one short."""
    return draw(1, 650, 4, gamma=1.5, noise=0.03, variance=1.7)


@pytest.fixture(scope="module")
def factors(problem: VarianceProblem) -> dict[str, NystromFactor]:
    return {name: problem.factor(LANDMARKS, precision=name) for name in ("single", "double")}


def minorant(problem: VarianceProblem) -> np.ndarray:
    """Q, dense, in float64 and without dkgp's kernels' tiles."""
    columns = problem.kernel(problem.X, problem.X[LANDMARKS])
    inner = columns[LANDMARKS] + jitter(RANK, problem.kernel.variance) * np.eye(RANK)
    return np.asarray(columns @ np.linalg.solve(inner, columns.T))


@PRECISIONS
def test_columns_are_the_nystrom_approximation(
    problem: VarianceProblem, factors: dict[str, NystromFactor], precision: str
) -> None:
    factor, Q = factors[precision], minorant(problem)
    assert factor.columns.dtype == np.float32
    assert (factor.n, factor.rank) == (650, RANK)
    F = factor.columns.astype(np.float64)
    np.testing.assert_allclose(F @ F.T, Q, atol=SINGLE * 1.7)
    np.testing.assert_allclose(factor.residual_diagonal, 1.7 - np.diag(Q), atol=SINGLE * 1.7)
    assert factor.residual_diagonal.min() >= 0.0
    # Far from trivial: the landmarks explain some samples wholly, others hardly.
    assert factor.residual_diagonal.max() > 0.5 > 1e-4 > factor.residual_diagonal.min()


@PRECISIONS
def test_triangles(problem: VarianceProblem, factors: dict[str, NystromFactor], precision: str) -> None:
    factor = factors[precision]
    dtype = np.float32 if precision == "single" else np.float64
    assert factor.lower.dtype == factor.gram_lower.dtype == dtype
    L, G = (np.asarray(a, dtype=np.float64) for a in (factor.lower, factor.gram_lower))
    assert (np.triu(L, 1) == 0.0).all()
    own = problem.kernel(problem.X[LANDMARKS], problem.X[LANDMARKS]) + jitter(RANK, 1.7) * np.eye(RANK)
    np.testing.assert_allclose(L @ L.T, own, atol=1e-12 if precision == "double" else SINGLE)
    F = factor.columns.astype(np.float64)
    np.testing.assert_allclose(np.tril(G) @ np.tril(G).T, F.T @ F + 0.03 * 1.7 * np.eye(RANK), rtol=1e-4, atol=1e-4)


def test_the_minorant_is_one_in_double_precision(problem: VarianceProblem, factors: dict[str, NystromFactor]) -> None:
    """K - Q with the L that is stored, in extended precision: no eigenvalue below what its entries round to."""
    L = factors["double"].lower
    columns = problem.kernel(problem.X, problem.X[LANDMARKS])
    half = np.linalg.solve(L, columns.T)
    left = np.linalg.eigvalsh(problem.kernel(problem.X, problem.X) - half.T @ half)
    assert left.min() > -1e-12
    assert left.max() > 1.0


@PRECISIONS
def test_preconditioning_is_a_solve_with_q_plus_noise(
    problem: VarianceProblem, factors: dict[str, NystromFactor], rng: np.random.Generator, precision: str
) -> None:
    factor, s2 = factors[precision], problem.noise_variance
    M = minorant(problem) + s2 * np.eye(650)
    r = problem.kernel(problem.X, problem.T)
    r[:, 0] = rng.normal(size=650)
    found, z = factor.preconditioner().solve(r)
    assert found.shape == r.shape
    assert z.shape == (RANK, r.shape[1])
    error = np.linalg.norm(found - np.linalg.solve(M, r), axis=0)
    assert (error <= 1e-3 * np.linalg.norm(r, axis=0)).all()
    # F z = K_nI beta
    beta = factor.landmark_weights(z)
    assert beta.dtype == np.float64
    columns = problem.kernel(problem.X, problem.X[LANDMARKS])
    np.testing.assert_allclose(columns @ beta, factor.columns @ z, atol=1e-3)


def test_pieces_are_all_samples_in_order(problem: VarianceProblem, factors: dict[str, NystromFactor]) -> None:
    evaluator = factors["double"].evaluator
    everything = evaluator.prepare(problem.X).values[:, :650]
    stops = [0]
    for rows, where in factors["double"].pieces():
        assert where.start == stops[-1]
        assert np.array_equal(rows.values[:, : rows.n], everything[:, where])
        stops.append(where.stop)
    assert len(stops) > 3
    assert stops[-1] == 650


@PRECISIONS
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_do_not_depend_on_threads(
    problem: VarianceProblem,
    factors: dict[str, NystromFactor],
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    threads: int,
) -> None:
    expected = factors[precision]
    monkeypatch.setattr("dkgp.cluster.threads._process_threads", threads)
    factor = problem.factor(LANDMARKS, precision=precision)
    for name in ("columns", "lower", "gram_lower", "residual_diagonal"):
        assert getattr(factor, name).tobytes() == getattr(expected, name).tobytes()


@PRECISIONS
def test_bytes_are_as_announced(factors: dict[str, NystromFactor], precision: Precision) -> None:
    held = factors[precision].nbytes
    assert factor_bytes(650, RANK, precision) <= held < 1.1 * factor_bytes(650, RANK, precision)


def test_a_process_builds_it_once_and_keeps_it(problem: VarianceProblem) -> None:
    source, other = problem.source(LANDMARKS), problem.source(LANDMARKS[:50])
    cache = worker_cache()
    before = cache.budget_bytes
    try:
        cache.budget_bytes = 1000  # a worker's budget for features knows nothing of factors
        first = source.factor()
        assert source.factor() is first
        assert other.factor() is not first
        assert other.factor().rank == 50
    finally:
        cache.budget_bytes = before


def test_other_landmarks_are_another_factor(problem: VarianceProblem) -> None:
    source = problem.source(LANDMARKS)
    reversed_order = FactorSource(source.context, source.noise_variance, problem.X[LANDMARKS[::-1]])
    assert not np.array_equal(source.factor().columns, reversed_order.factor().columns)


def test_landmarks_that_are_copies_of_each_other(problem: VarianceProblem) -> None:
    """Their own matrix is singular but for the jitter."""
    factor = problem.factor(np.repeat(LANDMARKS[:20], 3), precision="double")
    once = problem.factor(LANDMARKS[:20], precision="double")
    assert np.isfinite(factor.columns).all()
    np.testing.assert_allclose(factor.residual_diagonal, once.residual_diagonal, atol=1e-4)


def test_one_sample() -> None:
    tiny = draw(2, 1, 3, gamma=1.0, noise=0.5)
    factor = tiny.factor([0], precision="double")
    assert factor.columns[0, 0] == pytest.approx(1.0)
    assert factor.residual_diagonal[0] == pytest.approx(jitter(1, 1.0), abs=1e-13)


# --------------------------------------------------------------------------------------------------- kept with a model


@pytest.fixture
def nystrom_model(problem: VarianceProblem, tmp_path: Path) -> ModelRecord:
    dataset = dataset_from_arrays(str(tmp_path / "train"), problem.X, np.arange(650.0), chunk_rows=200)
    save_model(
        str(tmp_path / "model"),
        kernel=problem.kernel.to_json(),
        noise_variance=problem.noise_variance,
        alpha=np.zeros(650),
        dataset=dataset,
    )
    return open_model(str(tmp_path / "model"))


@PRECISIONS
def test_what_was_kept_comes_back_as_it_was(
    problem: VarianceProblem, factors: dict[str, NystromFactor], nystrom_model: ModelRecord, precision: str
) -> None:
    """Bit by bit, type by type: bounds rest on which precision the triangles have."""
    factor = factors[precision]
    metadata = {"fingerprint": nystrom_model.fingerprint, "precision": precision}
    with FactorWriter.create(nystrom_model.url, metadata, 650, RANK, chunk_rows=100) as writer:
        for start, stop in writer.row_chunks():
            writer.write_columns(start, factor.columns[start:stop])
        writer.commit(LANDMARKS, factor.lower.astype(float), factor.gram_lower.astype(float), factor.residual_diagonal)
    stored = open_factor(nystrom_model.url, fingerprint=nystrom_model.fingerprint)
    loaded = problem.factor(LANDMARKS, precision=precision, stored=stored)
    for name in ("columns", "lower", "gram_lower", "residual_diagonal"):
        assert getattr(loaded, name).dtype == getattr(factor, name).dtype, name
        assert np.array_equal(getattr(loaded, name), getattr(factor, name)), name
    options = BatchOptions(gap=1e-4, max_passes=3.0, factor_first=False)
    here, there = (solve_batch(each, problem.T, options) for each in (factor, loaded))
    assert here.lower.tobytes() == there.lower.tobytes()
    assert here.upper.tobytes() == there.upper.tobytes()
