"""Where nothing is proven: rows so far out that entries may be off without limit, beside sizes of zero.

Infinity times zero is no number, and no comparison tells it from a bound that is met.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dkgp import LSSVC, GPRegressor, KernelLogisticClassifier, SparseGPRegressor
from dkgp.errors import NumericalError
from dkgp.kernels import Kernel, Linear, Matern32, Periodic, Polynomial, SquaredExponential, TileEvaluator
from dkgp.models.certificate import Certificate
from dkgp.models.classification.certificate import DecisionCertificate, RiskCertificate
from dkgp.models.rounding import highest_prior
from dkgp.models.sparse.certificate import SparseCertificate

FINE = Periodic(gamma=(0.5,), period=(1e-6,), variance=1.5)
FAR = np.array([[1e12], [-3e12], [1e200]])
ERRORS = np.array([np.inf, 3.0])
PRIOR = np.array([1.0, 1.0])


def test_the_errors_of_rows_far_out_are_infinite() -> None:
    for kernel in (
        FINE,
        SquaredExponential(gamma=(1e300,)),
        Linear() * SquaredExponential(gamma=(0.5,)),
        Matern32((1.0,)),
    ):
        wide = kernel.on([0], 1) if kernel.n_features == 0 else kernel
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            errors = TileEvaluator(wide, "double").row_errors(np.array([[1e300], [0.3]]))
        assert errors[0] == np.inf
        assert errors[1] >= 0.0


def test_no_bound_is_no_number() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        exact = Certificate(0.1, 5, (0.0,), (0.0,), (0.0,), (0.0,)).mean_error_bound(PRIOR, ERRORS)
        risk = {"none": (0.0,)}
        sparse = SparseCertificate(5, 2, 0.1, (0.0,), (0.0,), risk, (0.0,), (0.0,)).mean_error_bound(
            PRIOR, PRIOR, ERRORS
        )
        decision = DecisionCertificate(5, (0.0,), (0.0,), (0.0,), (0.0,), intercept=False).decision_error_bound(
            np.zeros((2, 1)), None, PRIOR, ERRORS
        )
        level = DecisionCertificate(5, (0.0,), (0.0,), (0.0,), (0.0,), ones_sum=(1.0, 1.0)).decision_error_bound(
            np.zeros((2, 1)), np.zeros(2), PRIOR, ERRORS
        )
        other = RiskCertificate(5, (0.0,), (0.0,), (0.0,)).decision_error_bound(np.zeros((2, 1)), PRIOR, ERRORS)
    for bound in (exact, sparse, decision, level, other):
        assert bound[0, 0] == np.inf
        assert 0.0 <= bound[1, 0] < 1e-10


def test_a_certificate_of_rows_with_infinite_errors_proves_nothing() -> None:
    zero = np.zeros((2, 1))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = Certificate.of(zero, zero, zero, 0.1, 1.0, ERRORS)
    assert found.residual_rounding == (math.inf,)
    assert found.mean_error_bound(PRIOR, PRIOR).tolist() == [[math.inf], [math.inf]]


@pytest.mark.parametrize("estimator", [GPRegressor, SparseGPRegressor])
def test_means_far_out_are_bounded_by_infinity_and_variances_by_the_prior(
    rng: np.random.Generator, estimator: Any
) -> None:
    X = rng.normal(size=(12, 1))
    options: dict[str, Any] = {"basis_size": 4} if estimator is SparseGPRegressor else {}
    model = estimator(FINE, noise_variance=0.1, **options).fit(X, np.sin(X[:, 0]))
    _, bounds = model.predict(FAR, return_bounds=True)
    scale = np.sin(X[:, 0]).std()
    assert (bounds.mean_error == np.inf).all()
    np.testing.assert_allclose(bounds.variance_upper, 1.6 * scale**2, rtol=1e-12)
    assert (bounds.variance_lower >= 0.1 * scale**2 * (1.0 - 1e-12)).all()
    _, bounds = model.predict(FAR, return_bounds=True, latent=True)
    assert (bounds.variance_upper <= 1.5 * scale**2 * (1.0 + 1e-14)).all()


@pytest.mark.parametrize("classifier", [LSSVC, KernelLogisticClassifier])
def test_labels_far_out_are_certified_by_nothing(rng: np.random.Generator, classifier: Any) -> None:
    X = rng.normal(size=(12, 1))
    noise = {"noise_variance": 0.1} if classifier is LSSVC else {"regularisation": 0.1}
    model = classifier(FINE, **noise).fit(X, np.arange(12) % 2)
    decisions, bounds = model.decision_function(FAR, return_bounds=True)
    assert np.isfinite(decisions).all()
    assert (bounds == np.inf).all()


@pytest.mark.parametrize(
    "kernel",
    [
        SquaredExponential(gamma=(0.5,), variance=0.3),
        Periodic(gamma=(0.5,), period=(1e-9,), variance=1.7),
        Polynomial(weight=(0.7,), offset=1.3, degree=7, variance=0.9),
        2.0 * (Linear(weight=(0.3,)) * Matern32((1.0,), variance=0.7) + SquaredExponential((1.0,), variance=1e-3)),
    ],
)
def test_what_k_is_at_most_is_above_it_and_near(kernel: Kernel, rng: np.random.Generator) -> None:
    """In long doubles: a sum and product of numbers that are not negative, wherever x is."""
    for X in (rng.normal(size=(50, 1)), 1e9 * rng.normal(size=(50, 1)), 1e-9 * rng.normal(size=(50, 1))):
        prior = kernel.diagonal(X)
        highest = highest_prior(kernel, prior)
        x = X[:, 0].astype(np.longdouble)
        exact = {
            "rbf": lambda x: np.longdouble(0.3) + 0.0 * x,
            "periodic": lambda x: np.longdouble(1.7) + 0.0 * x,
            "polynomial": lambda x: np.longdouble(0.9) * (np.longdouble(0.7) * x * x + np.longdouble(1.3)) ** 7,
            "scaled": lambda x: 2 * (np.longdouble(0.3) * x * x * np.longdouble(0.7) + np.longdouble(1e-3)),
        }[kernel.type_name](x)
        assert (highest >= exact).all()
        assert (highest <= exact * (1.0 + 1e-13)).all()


def test_sums_that_overflow_are_refused_in_words(rng: np.random.Generator) -> None:
    X = rng.normal(size=(12, 1))
    model = GPRegressor(Polynomial(weight=(1.0,), degree=4), noise_variance=0.1).fit(X, X[:, 0])
    with pytest.raises(NumericalError, match=r"comes to .* at the standardised inputs \[.*\]: entries overflow there"):
        model.predict([[1e100]])
