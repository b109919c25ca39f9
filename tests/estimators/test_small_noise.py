"""Standard deviations where the noise is far below the amplitude: right, or with a warning of how many are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dkgp import GPRegressor
from dkgp.estimators.outputs import outputs
from dkgp.estimators.scikit_learn import ConvergenceWarning
from dkgp.kernels import SquaredExponential
from dkgp.models.prediction.predictor import standardised
from tests.models.variance.variance_problems import VarianceProblem, exact_in_50_digits

KERNEL = SquaredExponential(gamma=(0.5,))


def small(noise_variance: float) -> tuple[GPRegressor, np.ndarray, np.ndarray]:
    """A model of 40 samples, test inputs among them, and the exact deviations."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (40, 1))
    T = X[:4] + 0.05
    model = GPRegressor(KERNEL, noise_variance=noise_variance).fit(X, np.sin(X[:, 0]))
    record = model._fitted.record
    problem = VarianceProblem(standardised(record, X), standardised(record, T), KERNEL, noise_variance)
    latent = np.array([float(value) for value in exact_in_50_digits(problem)])
    return model, T, np.sqrt(latent + noise_variance) * record.standardisation.target_std[0]


@pytest.mark.parametrize(("noise_variance", "rtol"), [(1e-12, 0.02), (1e-10, 2e-3), (1e-8, 1e-3), (1e-4, 1e-3)])
def test_deviations_are_the_exact_ones(noise_variance: float, rtol: float) -> None:
    model, T, exact = small(noise_variance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, std, bounds = model.predict(T, return_std=True, return_bounds=True)
    np.testing.assert_allclose(std, exact, rtol=rtol)
    assert (bounds.variance_lower <= exact**2 * (1.0 + 1e-12)).all()
    assert (exact**2 <= bounds.variance_upper * (1.0 + 1e-12)).all()


def test_intervals_that_are_wider_than_asked_are_told_with_their_share() -> None:
    model, T, _ = small(1e-12)
    with pytest.warns(
        ConvergenceWarning, match=r"100% of the variances are known less closely than variance_gap=0\.02"
    ):
        model.predict(T, return_std=True)
    model, T, _ = small(1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(T, return_std=True)
        model.set_params(variance_gap=0.5).predict(T, return_std=True)


def test_the_share_counts_variances() -> None:
    lower, upper = np.array([[1.0], [0.5], [0.9], [1.0]]), np.array([[1.0], [1.0], [1.0], [1.0]])
    with pytest.warns(ConvergenceWarning, match=r"^25% .* the widest interval is 50% of its upper end"):
        outputs._warn_of_wide_intervals(lower, upper, 0.1)
    with pytest.warns(ConvergenceWarning, match=r"^25% .* the widest interval is 0\.0012% of its upper end"):
        outputs._warn_of_wide_intervals(upper - np.array([[0.0], [1.2e-5], [0.0], [0.0]]), upper, 1e-6)
