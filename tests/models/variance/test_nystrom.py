"""The partial Cholesky factor: what it is, dense; what it does to vectors; how it is built, cached and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import worker_cache
from dkgp.data import FactorWriter, ModelRecord, open_factor, open_model, save_model
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.variance.batch import BatchOptions, solve_batch
from dkgp.models.variance.landmarks import jitter
from dkgp.models.variance.nystrom import FactorSource, NystromFactor, factor_bytes
from tests.models.variance.variance_problems import VarianceProblem, draw

pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")

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
def model(problem: VarianceProblem, tmp_path: Path) -> ModelRecord:
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
    problem: VarianceProblem, factors: dict[str, NystromFactor], model: ModelRecord, precision: str
) -> None:
    """Bit by bit, type by type: bounds rest on which precision the triangles have."""
    factor = factors[precision]
    metadata = {"fingerprint": model.fingerprint, "precision": precision}
    with FactorWriter.create(model.url, metadata, 650, RANK, chunk_rows=100) as writer:
        for start, stop in writer.row_chunks():
            writer.write_columns(start, factor.columns[start:stop])
        writer.commit(LANDMARKS, factor.lower.astype(float), factor.gram_lower.astype(float), factor.residual_diagonal)
    stored = open_factor(model.url, fingerprint=model.fingerprint)
    loaded = problem.factor(LANDMARKS, precision=precision, stored=stored)
    for name in ("columns", "lower", "gram_lower", "residual_diagonal"):
        assert getattr(loaded, name).dtype == getattr(factor, name).dtype, name
        assert np.array_equal(getattr(loaded, name), getattr(factor, name)), name
    options = BatchOptions(gap=1e-4, max_passes=3.0, factor_first=False)
    here, there = (solve_batch(each, problem.T, options) for each in (factor, loaded))
    assert here.lower.tobytes() == there.lower.tobytes()
    assert here.upper.tobytes() == there.upper.tobytes()
