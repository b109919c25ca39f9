"""Training and predictions for other kernels than a squared exponential, against dense float64 algebra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.data import open_factor, open_model
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential, TileEvaluator, UserKernel, White, parse_kernel
from dkgp.models import Hyperparameters
from dkgp.models.certificate import Certificate
from dkgp.models.exact import save, train
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.variance.landmarks import choose_landmarks
from dkgp.models.variance.nystrom import FactorSource, NystromFactor
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import Cholesky, GradientInfNorm, GreedyBlockCoordinateDescent
from tests.covering import few
from tests.models.kernel_world import KERNELS, NOISE, VARYING, D, Fitted, N, fit

ROUNDING = 1e-11  # of the dense reference, relative to k(x, x)


@pytest.fixture(scope="module", params=few(KERNELS, "matern32", *VARYING[:2]))
def fitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, executor: BlockExecutor) -> Fitted:
    return fit(request.param, tmp_path_factory.mktemp("kernel"), executor)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory, executor: BlockExecutor) -> Fitted:
    """A cubic polynomial with three samples ten times as far out: k(x, x) over six orders of magnitude."""
    return fit("polynomial(degree=3)", tmp_path_factory.mktemp("far"), executor, outliers=10.0)


def test_coefficients_and_means_are_the_dense_ones(fitted: Fitted, executor: BlockExecutor) -> None:
    np.testing.assert_allclose(fitted.model.alpha, fitted.alpha, rtol=0.0, atol=1e-9 * np.abs(fitted.alpha).max())
    values, _ = fitted.predicted("means", executor)
    np.testing.assert_allclose(values["mean"], fitted.mean[:, 0], rtol=0.0, atol=1e-9 * np.abs(fitted.mean).max())


def test_the_bound_of_a_rough_solution_holds_at_every_sample(fitted: Fitted, executor: BlockExecutor) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=40)
    trained = train(fitted.train, fitted.kernel, NOISE, executor, solver=solver, stopping=GradientInfNorm(3e-2))
    url = str(fitted.folder / "rough.zarr")
    save(trained, url, fitted.train, overwrite=True)
    values, summary = replace(fitted, model=open_model(url)).predicted("rough means", executor)
    bound, off = values["mean_error_bound"], np.abs(values["mean"] - fitted.mean[:, 0])
    assert (off <= bound).all()
    assert off.max() > 1e-6
    residual = np.linalg.norm(fitted.matrix @ trained.solution.alpha - fitted.y)
    expected = np.sqrt(fitted.kernel.diagonal(fitted.T) / NOISE) * residual
    np.testing.assert_allclose(bound, expected, rtol=1e-6)
    # In the targets' own units.
    scale = float(fitted.model.standardisation.target_std[0])
    assert summary.largest_mean_error_bound == pytest.approx(scale * bound.max(), rel=1e-12)
    assert np.linalg.norm(trained.solution.alpha - fitted.alpha) <= trained.certificate.alpha_error_bound[0]


@pytest.mark.covering
@pytest.mark.parametrize(
    "settings",
    [
        VarianceSettings(gap=0.02, latent=True, rank=25),
        VarianceSettings(gap=1e-5, rank=25, batch_size=13),
        VarianceSettings(gap=0.02, rank=120, max_passes=0),
    ],
    ids=["latent", "narrow", "factor alone"],
)
def test_intervals_hold_the_exact_variance(fitted: Fitted, settings: VarianceSettings, executor: BlockExecutor) -> None:
    values, summary = fitted.predicted("variances", executor, settings)
    exact = fitted.latent + (0.0 if settings.latent else NOISE)
    slack = ROUNDING * fitted.kernel.diagonal(fitted.T)
    assert (values["variance_lower"] <= exact + slack).all()
    assert (values["variance_upper"] >= exact - slack).all()
    assert (values["variance_lower"] >= (0.0 if settings.latent else NOISE * (1.0 - 1e-15))).all()
    assert summary.variance is not None
    if settings.max_passes:
        assert summary.variance["unmet"] == 0


@pytest.mark.spread(1)
def test_a_kept_factor_gives_the_same_intervals(fitted: Fitted, executor: BlockExecutor) -> None:
    first, _ = fitted.predicted("kept", executor, VarianceSettings(gap=1e-3, rank=40, keep_factor=True))
    assert open_factor(fitted.model.url, fingerprint=fitted.model.fingerprint) is not None
    again, summary = fitted.predicted("kept", executor, VarianceSettings(gap=1e-3))
    assert summary.variance is not None
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)


def test_the_factors_residual_diagonal_and_weights(fitted: Fitted) -> None:
    landmarks = choose_landmarks(fitted.model, fitted.kernel, gap=0.02, largest_rank=60, fixed=True)
    context = BlockContext(f"factor of {fitted.folder}", ArrayInputs(fitted.X), fitted.kernel, N)
    factor = NystromFactor.of(FactorSource(context, NOISE, fitted.X[landmarks.indices], "double"))
    K = fitted.kernel(fitted.X, fitted.X)
    chosen = landmarks.indices
    Q = K[:, chosen] @ np.linalg.lstsq(K[np.ix_(chosen, chosen)], K[chosen], rcond=1e-13)[0]
    prior = fitted.kernel.diagonal(fitted.X)
    assert (np.abs(factor.residual_diagonal - np.diag(K - Q)) <= 1e-5 * prior).all()
    assert landmarks.residual_trace == pytest.approx(np.trace(K - Q), abs=1e-7 * np.trace(K))
    assert landmarks.kernel_trace == pytest.approx(np.trace(K))
    assert landmarks.effective_dimension == pytest.approx(np.trace(np.linalg.solve(Q + NOISE * np.eye(N), Q)), rel=1e-4)
    errors = TileEvaluator(fitted.kernel, "double", expanded=False).row_errors(fitted.X)
    excess = np.maximum(errors / np.median(errors), 1.0)
    np.testing.assert_allclose(factor.weights, excess * np.sqrt((prior + NOISE) / (prior + NOISE).max()))
    scale = excess[chosen] * np.sqrt(prior[chosen] / (prior + NOISE).max())
    np.testing.assert_allclose(factor.landmark_scale, scale)
    # Where errors are as usual, they change nothing that weights are there for.
    assert excess.max() < 2.0


def test_a_kernel_of_finite_rank_ends_at_it(executor: BlockExecutor, tmp_path_factory: pytest.TempPathFactory) -> None:
    linear = fit("linear", tmp_path_factory.mktemp("linear"), executor)
    values, summary = linear.predicted("linear", executor, VarianceSettings(gap=1e-3, way="iterative"))
    assert summary.variance is not None
    assert (summary.variance["rank"], summary.variance["column_passes"]) == (D, 0.0)
    np.testing.assert_allclose(values["variance"], linear.latent + NOISE, rtol=2e-3)


def test_samples_far_out_spoil_nothing_of_the_others(far: Fitted, executor: BlockExecutor) -> None:
    """Rounding is bounded by what is proven of each sample, and not by the largest k(x, x) of all."""
    prior, tests = far.kernel.diagonal(far.X), far.kernel.diagonal(far.T)
    assert prior.max() > 1e4 * np.median(prior)
    values, summary = far.predicted("far", executor, VarianceSettings(gap=0.05))
    exact = far.latent + NOISE
    slack = ROUNDING * tests
    assert (values["variance_lower"] <= exact + slack).all()
    assert (values["variance_upper"] >= exact - slack).all()
    near = tests < 10.0
    width = (values["variance_upper"] - values["variance_lower"]) / values["variance_upper"]
    assert (width[near] <= 0.05).all()
    assert (np.abs(values["mean"] - far.mean[:, 0]) <= values["mean_error_bound"]).all()
    certificate = Certificate.from_json(dict(far.model.certificate))
    alpha, errors = far.model.alpha, TileEvaluator(far.kernel, "double").row_errors(far.X)
    uniform = Certificate.of(alpha, far.matrix @ alpha - far.y, far.y, NOISE, float(prior.max()), errors)
    ordinary = np.ones(1)
    assert certificate.mean_error_bound(ordinary)[0, 0] < 0.05 * uniform.mean_error_bound(ordinary)[0, 0]
    assert summary.largest_mean_error_bound > 10.0 * np.median(values["mean_error_bound"])


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
def test_mixed_precision_reaches_the_tolerance_with_large_entries(
    far: Fitted, tolerance: float, executor: BlockExecutor
) -> None:
    solver = GreedyBlockCoordinateDescent(block_size=64)
    trained = train(far.train, far.kernel, NOISE, executor, solver=solver, stopping=GradientInfNorm(tolerance))
    assert trained.solution.converged
    assert np.abs(far.matrix @ trained.solution.alpha - far.y).max() <= 1.01 * tolerance + 1e-9


def test_white_noise_is_part_of_the_noise_bit_for_bit(far: Fitted, executor: BlockExecutor) -> None:
    fitted = replace(far, kernel=parse_kernel("rbf", D))
    with_white, without = fitted.kernel + White(0.1), fitted.kernel
    found = [
        train(fitted.train, kernel, noise, executor, solver=Cholesky(), stopping=GradientInfNorm(1e-8))
        for kernel, noise in ((with_white, 0.01), (without, 0.01 + 0.1))
    ]
    np.testing.assert_array_equal(found[0].solution.alpha, found[1].solution.alpha)
    assert found[0].kernel == found[1].kernel == without
    assert found[0].noise_variance == found[1].noise_variance == 0.01 + 0.1
    first, second = (Problem(fitted.train, *pair) for pair in ((with_white, Noise(0.01)), (without, Noise(0.01 + 0.1))))
    assert first.identity() == second.identity()
    given = Hyperparameters(with_white, 0.01)
    assert (given.kernel, given.noise_variance) == (without, 0.01 + 0.1)
    assert Hyperparameters.from_json({"kernel": with_white.to_json(), "noise_variance": 0.01}) == given
    predictions = []
    for number, trained in enumerate(found):
        url = str(fitted.folder / f"white model {number}.zarr")
        save(trained, url, fitted.train, overwrite=True)
        model = open_model(url)
        if not number:  # as somebody may have written it
            model = replace(model, kernel=with_white.to_json(), noise_variance=0.01)
        predictions.append(replace(fitted, model=model).predicted(f"white {number}", executor, VarianceSettings())[0])
    for name, value in predictions[0].items():
        np.testing.assert_array_equal(value, predictions[1][name])


def test_white_noise_that_varies_is_refused() -> None:
    with pytest.raises(InputError, match="another variance at every sample"):
        Hyperparameters(parse_kernel("linear", D) * White(0.1), 0.01)
    with pytest.raises(InputError, match="nothing but white noise"):
        Hyperparameters(White(0.1), 0.01)


@pytest.mark.parametrize("text", VARYING)
def test_the_certificate_allows_for_rounding(text: str, rng: np.random.Generator) -> None:
    """Sums in float32 stand for float64 ones: what they are off by, in its units, is below the bound."""
    X = rng.normal(size=(200, D)) * np.where(np.arange(200) < 4, 20.0, 1.0)[:, None]
    kernel = parse_kernel(text, D)
    K, alpha = kernel(X, X), rng.normal(size=(200, 2))
    nothing, errors = np.zeros((200, 2)), TileEvaluator(kernel, "double").row_errors(X)
    certificate = Certificate.of(alpha, nothing, nothing, NOISE, kernel.diagonal(X), errors)
    coarse = float(np.finfo(np.float32).eps / np.finfo(np.float64).eps)
    Kbar = K + NOISE * np.eye(200)
    off = (Kbar.astype(np.float32) @ alpha.astype(np.float32)).astype(np.float64) - Kbar @ alpha
    assert (np.linalg.norm(off, axis=0) <= coarse * certificate.proven_residual_norm).all()
    mean_off = np.abs((K.astype(np.float32) @ alpha.astype(np.float32)).astype(np.float64) - K @ alpha)
    of_means = replace(certificate, residual_rounding=(0.0, 0.0)).mean_error_bound(kernel.diagonal(X), errors)
    assert (mean_off <= coarse * of_means).all()
    assert Certificate.from_json(certificate.to_json()) == certificate


def test_a_constant_diagonal_is_certified_alike_however_it_is_given(rng: np.random.Generator) -> None:
    alpha, gradient = rng.normal(size=(50, 2)), rng.normal(size=(50, 2))
    errors = np.full(50, 9.0)
    once = Certificate.of(alpha, gradient, gradient, NOISE, 1.3, errors)
    each = Certificate.of(alpha, gradient, gradient, NOISE, np.full(50, 1.3), errors)
    np.testing.assert_allclose(each.proven_residual_norm, once.proven_residual_norm, rtol=1e-14)
    np.testing.assert_allclose(each.mean_error_bound(np.ones(3)), once.mean_error_bound(np.ones(3)), rtol=1e-10)


def test_gammas_of_zero_alone_in_any_part_of_a_file_are_a_slip() -> None:
    part = {"type": "sum", "parts": [{"type": "rbf", "gamma": [0.0, 0.0]}, {"type": "constant", "variance": 1.0}]}
    with pytest.raises(InputError, match=r"kernel\.parts\[0\]\.gamma\[0\] must be positive"):
        Hyperparameters.from_json({"kernel": {"type": "scaled", "scale": 2.0, "kernel": part}, "noise_variance": 0.1})
    isotropic = Hyperparameters(SquaredExponential((0.3,), n_features=3), 0.1)
    assert isotropic.gamma.tolist() == [0.3] * 3


# Training with a kernel that a user wrote starts with a look at its matrix.


def indefinite(s):
    return 1.0 - s if s < 1.0 else 0.0


def test_training_refuses_a_function_that_is_not_positive_definite(tmp_path, rng: np.random.Generator) -> None:
    X = rng.standard_normal((400, 2))
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, X.sum(axis=1))
    kernel = SquaredExponential((0.5, 0.5)) + 2.0 * UserKernel(indefinite, (0.5, 0.5))
    executor = LocalExecutor(1)
    try:
        with pytest.raises(InputError, match="not positive definite: its matrix on 256 samples has the eigenvalue -"):
            train(dataset, kernel, 0.01, executor)
    finally:
        executor.close()
