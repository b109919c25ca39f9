"""Variances under noise by sample: intervals of every way hold those of dense algebra and of 50 digits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.data import ModelRecord, dataset_from_arrays, memory_dataset, open_model, open_prediction
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Linear, SquaredExponential, parse_kernel
from dkgp.models.exact import save, train
from dkgp.models.prediction.pathwise import PosteriorFunctions
from dkgp.models.prediction.posterior import forget
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.variance.iterative import IterativeRun
from dkgp.models.variance.run import Request
from dkgp.models.variance.scaled import ScaledInputs, ScaledSupport, Subject, scaled_kernel
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.whole_matrix import keep_whole
from dkgp.operators.block_tasks import ArrayInputs, BlockContext
from dkgp.solvers import ConjugateGradient, GradientInfNorm
from tests.models.posteriors import exact_posterior
from tests.models.proof_problems import Problem
from tests.models.test_noise import SAMPLE_NOISE_CASES, Case, trained_on

RUNS = count()
WAYS: dict[str, dict[str, Any]] = {
    "cholesky": {"way": "cholesky"},
    "iterative": {"way": "iterative"},
    "narrow": {"gap": 1e-5, "rank": 40, "halo": 32},
    "factor alone": {"max_passes": 0.0},
    "auto": {},
}
every_case = pytest.mark.parametrize("case", SAMPLE_NOISE_CASES.values(), ids=SAMPLE_NOISE_CASES)


def model_of(case: Case, executor: LocalExecutor) -> ModelRecord:
    dataset = memory_dataset(case.X, case.y)
    return trained_on(case, executor, stopping=GradientInfNorm(1e-8)).model(dataset).resident()


def dense(case: Case, tests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and the function's variance, in the target's units; nothing of dkgp but the kernel in it."""
    Z, alpha = case.dense()
    T = (tests - case.X.mean(axis=0)) / case.X.std(axis=0)
    lower = scipy.linalg.cholesky(case.kernel(Z, Z) + np.diag(case.noise_variance + case.sample_noise), lower=True)
    half = scipy.linalg.solve_triangular(lower, case.kernel(Z, T), lower=True)
    variance = case.kernel.diagonal(T) - np.sum(half**2, axis=0)
    return case.kernel(T, Z) @ alpha * case.y.std() + case.y.mean(), variance * case.y.var()


def places(case: Case) -> np.ndarray:
    """At samples, between them, and far out."""
    middle = 0.5 * (case.X[:20] + case.X[20:40])
    return np.vstack([case.X[:20], middle, case.X[:5] + 3.0 * case.X.std(axis=0)])


@pytest.mark.covering(2)
@every_case
@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("latent", [True, False])
def test_intervals_hold_the_dense_variance(
    case: Case, settings: dict[str, Any], latent: bool, executor: LocalExecutor
) -> None:
    version = f"known-noise-{next(RUNS)}"
    chosen = VarianceSettings(latent=latent, **settings)
    predicted = exact_posterior(model_of(case, executor), version, chosen, n_test=45)(places(case))
    forget(version)
    mean, variance = dense(case, places(case))
    variance = variance if latent else variance + case.noise_variance * case.y.var()
    slack = 1e-9 * case.y.var()  # of the dense formula, which cancels
    lower, upper = predicted["variance_lower"], predicted["variance_upper"]
    assert lower is not None
    assert upper is not None
    assert (lower[:, 0] <= variance + slack).all()
    assert (variance <= upper[:, 0] + slack).all()
    if "max_passes" not in settings:
        assert (upper - lower <= 1.01 * chosen.gap * upper + slack).all()
    assert (np.abs(predicted["mean"][:, 0] - mean) <= predicted["mean_error_bound"][:, 0]).all()


@every_case
def test_one_noise_for_all_would_be_too_sure(case: Case, executor: LocalExecutor) -> None:
    dataset, version = memory_dataset(case.X, case.y), f"one-noise-{next(RUNS)}"
    model = replace(trained_on(case, executor).model(dataset), sample_noise=None).resident()
    plain = exact_posterior(model, version, VarianceSettings(latent=True, way="cholesky"))(places(case))
    forget(version)
    assert (plain["variance"][:, 0] < 0.9 * dense(case, places(case))[1]).any()


@pytest.mark.long
@pytest.mark.covering
@every_case
@pytest.mark.parametrize("settings", [{}, {"basis": 100, "gap": 0.05}, {"way": "cholesky"}])
def test_predictions_of_a_store(case: Case, settings: dict[str, Any], executor: LocalExecutor, tmp_path: Path) -> None:
    dataset = dataset_from_arrays(tmp_path / "data.zarr", case.X, case.y)
    trained = train(dataset, case.kernel, case.noise_variance, executor, sample_noise=case.sample_noise)
    save(trained, str(tmp_path / "model.zarr"), dataset)
    tests = places(case)
    test_set = dataset_from_arrays(tmp_path / "test.zarr", tests, tests[:, 0])
    variance = VarianceSettings(**settings)
    url = str(tmp_path / "predictions.zarr")
    predict(open_model(str(tmp_path / "model.zarr")), test_set, Destination(url), executor, variance=variance)
    stored = open_prediction(url)
    mean, exact = dense(case, tests)
    noise = case.noise_variance * case.y.var()
    np.testing.assert_allclose(stored.attributes["noise_variance"], [noise], rtol=1e-12)
    slack = 1e-9 * case.y.var()
    assert (stored.read("variance_lower")[:, 0] <= exact + noise + slack).all()
    assert (exact + noise <= stored.read("variance_upper")[:, 0] + slack).all()
    assert (np.abs(stored.read("mean")[:, 0] - mean) <= stored.read("mean_error_bound")[:, 0]).all()


def test_a_factor_of_the_whole_matrix_is_kept(executor: LocalExecutor, tmp_path: Path) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    dataset = dataset_from_arrays(tmp_path / "data.zarr", case.X, case.y)
    problem = (dataset, case.kernel, case.noise_variance, executor)
    save(train(*problem, sample_noise=case.sample_noise), str(tmp_path / "model.zarr"), dataset)
    model = open_model(str(tmp_path / "model.zarr"))
    keep_whole(model, executor)
    notes: list[str] = []
    destination = Destination(str(tmp_path / "predictions.zarr"))
    predict(model, dataset, destination, executor, variance=VarianceSettings(), note=notes.append)
    assert any("Cholesky factor of all 240 samples" in note and "loaded" in note for note in notes)
    assert not any("of no use" in note for note in notes)
    lower, upper = (open_prediction(destination.url).read(name)[:, 0] for name in ("variance_lower", "variance"))
    exact = dense(case, case.X)[1] + case.noise_variance * case.y.var()
    assert (lower <= exact * (1 + 1e-9)).all()
    assert (exact <= upper * (1 + 1e-9)).all()


def test_a_partial_factor_is_not_kept(executor: LocalExecutor) -> None:
    model = model_of(SAMPLE_NOISE_CASES["growing"], executor)
    with pytest.raises(InputError, match="`keep_factor` needs a model .* whose samples have one noise"):
        exact_posterior(model, "refused", VarianceSettings(keep_factor=True))


def test_noise_too_far_apart_is_refused(executor: LocalExecutor) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    trained = trained_on(case, executor).model(memory_dataset(case.X, case.y))
    model = replace(trained, sample_noise=np.full(240, 1e300)).resident()
    with pytest.raises(InputError, match="too far for variances"):
        exact_posterior(model, "refused", VarianceSettings())


@pytest.mark.long
@pytest.mark.parametrize(
    "kernel", [SquaredExponential((0.5, 0.4), 1.3), pytest.param(Linear((1.0, 0.5), 0.7), marks=pytest.mark.slow)]
)
def test_functions_drawn_have_the_posteriors_moments(kernel: Any, executor: LocalExecutor) -> None:
    case = SAMPLE_NOISE_CASES["growing"]
    case = Case(case.X, case.y, 30.0 * case.v, kernel, 0.01)
    version = f"drawn-{next(RUNS)}"
    draws = PosteriorFunctions(model_of(case, executor), version, count=1500, seed=1, tolerance=1e-6)
    tests = places(case)[20:30]
    T = (tests - case.X.mean(axis=0)) / case.X.std(axis=0)
    values = draws(T)[:, 0]
    mean, variance = dense(case, tests)
    np.testing.assert_allclose(values.mean(axis=1), mean, rtol=0, atol=5.0 * np.sqrt(variance.max() / 1500))
    np.testing.assert_allclose(values.var(axis=1), variance, rtol=0.25)


def attacks() -> dict[str, Problem]:
    rng = np.random.default_rng(8)
    X, T = rng.normal(size=(26, 2)), rng.normal(size=(3, 2))
    y, rbf = np.sin(3.0 * X[:, :1]), SquaredExponential((0.7, 0.4), 2.0)
    orders = Problem(X, y, T, rbf, 1e-6, sample_noise=10.0 ** rng.uniform(-12.0, 12.0, 26))
    twice = np.vstack([X[:13]] * 2)
    repeats = Problem(twice, y, T, rbf, 1e-9, sample_noise=np.repeat([0.0, 1e3], 13))
    far = Problem(np.where(np.arange(26)[:, None] == 7, 1e6, X), y, T, rbf, 0.01, sample_noise=np.linspace(0, 1, 26))
    unsolved = Problem(
        X, y, T, rbf, 0.01, solver=ConjugateGradient(), tolerance=0.3, sample_noise=np.linspace(0.0, 9.0, 26)
    )
    return {"24 orders": orders, "repeats": repeats, "one far out": far, "hardly solved": unsolved}


@pytest.mark.parametrize("name", attacks())
def test_attacks_in_50_digits(name: str) -> None:
    problem = attacks()[name]
    for latent, settings in ((True, {}), (False, {}), (True, {"max_passes": 0.0}), (True, {"way": "iterative"})):
        predicted = problem.predicted(latent=latent, **settings)  # type: ignore[arg-type]
        wrong, _ = problem.variance_violations(predicted, latent)
        assert wrong.max() <= 0.0
    assert problem.mean_ratios(predicted).max() <= 1.0


FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples in memory, and the precision of their noise."""

    X: FloatArray
    W: FloatArray
    centre: FloatArray | None = None

    @property
    def n_samples(self) -> int:
        return len(self.X)

    @property
    def n_features(self) -> int:
        return self.X.shape[1]

    def inputs(self, start: int, stop: int) -> FloatArray:
        return self.X[start:stop]

    def precision_roots(self, column: int, start: int, stop: int) -> FloatArray:
        return np.sqrt(self.W[start:stop, column])


def intervals(
    rows: Rows, kernel: Kernel, test: FloatArray, threads: int = 2, **settings: object
) -> tuple[FloatArray, FloatArray]:
    source = ScaledInputs(rows, partial(rows.precision_roots, 0))
    context = BlockContext(f"scaled-{next(RUNS)}", source, scaled_kernel(kernel, rows.n_features), rows.n_samples)
    subject, queries = Subject(ScaledSupport(source), context.kernel, context), ArrayInputs(test)
    executor = LocalExecutor(threads)
    try:
        chosen = VarianceSettings(latent=True, **settings)  # type: ignore[arg-type]
        run = IterativeRun(Request(subject, None, queries, executor, chosen))
        run.prepare()
        ends = run.collect(run.submit(queries, 0, len(test)).result())
    finally:
        executor.close()
    assert ends.mean.shape == (len(test), 0)
    return ends.lower, ends.upper


def dense_scaled(rows: Rows, kernel: Kernel, test: FloatArray) -> FloatArray:
    roots = np.sqrt(rows.W[:, 0])
    B = np.eye(rows.n_samples) + roots[:, None] * kernel(rows.X, rows.X) * roots
    half = np.linalg.solve(np.linalg.cholesky(B), roots[:, None] * kernel(rows.X, test))
    return np.asarray(kernel.diagonal(test) - (half**2).sum(axis=0))


def noisy(rng: np.random.Generator, n: int) -> Rows:
    """Curvatures of all sizes: zeros, ones that underflow when squared, and some that are usual."""
    W = rng.uniform(0.0, 0.25, (n, 1)) ** 3
    W[:20], W[20:40], W[40:60] = 0.0, 1e-300, 1e-12
    W[60:70] = 1e6
    return Rows(rng.standard_normal((n, 3)), W)


@pytest.mark.parametrize("expression", ["rbf", "matern32 + 0.3 * linear", "rbf[0, 1] * matern52[2]"])
@pytest.mark.parametrize("settings", [{}, {"max_passes": 0.0}, {"gap": 1e-5, "rank": 40, "halo": 32}])
def test_intervals_of_scaled_rows_hold_the_dense_variance(
    expression: str, settings: dict[str, float], rng: np.random.Generator
) -> None:
    rows, kernel = noisy(rng, 300), parse_kernel(expression, 3)
    test = 1.5 * rng.standard_normal((40, 3))
    lower, upper = intervals(rows, kernel, test, **settings)
    exact = dense_scaled(rows, kernel, test)
    slack = 1e-9 * kernel.diagonal(test)  # of the dense_scaled formula, which cancels
    assert (lower <= exact + slack).all()
    assert (exact <= upper + slack).all()
    if "max_passes" not in settings:
        assert ((upper - lower) <= 0.021 * upper).all()


def test_no_bit_depends_on_the_number_of_threads(rng: np.random.Generator) -> None:
    rows, kernel = noisy(rng, 300), parse_kernel("rbf", 3)
    test = rng.standard_normal((20, 3))
    first, second = (intervals(rows, kernel, test, threads, batch_size=10) for threads in (1, 5))
    np.testing.assert_array_equal(first, second)


def test_with_hardly_any_curvature_the_variance_is_the_priors(rng: np.random.Generator) -> None:
    rows = Rows(rng.standard_normal((100, 3)), np.full((100, 1), 1e-30))
    lower, upper = intervals(rows, parse_kernel("2.0 * rbf", 3), rng.standard_normal((5, 3)))
    np.testing.assert_allclose([lower, upper], 2.0, rtol=1e-12)


def test_rows_are_read_in_their_order_and_the_centre_has_none_for_the_scale(rng: np.random.Generator) -> None:
    rows = noisy(rng, 500)
    rows = dataclasses.replace(rows, centre=np.ones(3))
    support = ScaledSupport(ScaledInputs(rows, partial(rows.precision_roots, 0)))
    chosen = rng.permutation(500)[:60]
    np.testing.assert_array_equal(support.input_rows(chosen), support.source.inputs(0, 500)[chosen])
    assert support.source.centre is not None
    np.testing.assert_array_equal(support.source.centre, [1.0, 1.0, 1.0, 0.0])


def test_a_factor_is_not_kept(rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match="keep_factor"):
        intervals(noisy(rng, 100), parse_kernel("rbf", 3), np.zeros((1, 3)), keep_factor=True)
