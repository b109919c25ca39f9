"""The bounds, against exact solutions and arithmetic in higher precision."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp import LSSVC, GPRegressor, KernelLogisticClassifier, SparseGPRegressor
from dkgp.cluster import LocalExecutor
from dkgp.errors import NumericalError
from dkgp.kernels import Kernel, Linear, Matern32, Periodic, Polynomial, SquaredExponential, TileEvaluator
from dkgp.models.certificate import Certificate
from dkgp.models.classification.certificate import DecisionCertificate, RiskCertificate
from dkgp.models.rounding import LOST, column_lengths, highest_prior, product_roundings, step_roundings
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from tests.models.exact_gp import mp

N, D, NOISE = 300, 3, 0.02
# Of dense matrices by NumPy: what a row's share of an entry's error may be, in units of eps.
ERRORS = np.full(N, 10.0)


@pytest.fixture
def matrix(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, SquaredExponential]:
    X = rng.normal(size=(N, D))
    kernel = SquaredExponential((0.5, 0.3, 0.1), 2.0)
    return X, kernel(X, X) + NOISE * np.eye(N), kernel


@pytest.mark.parametrize("size", [1e-8, 1e-4, 1e-1, 10.0])
def test_bounds_hold_for_any_coefficients(
    matrix: tuple[np.ndarray, np.ndarray, SquaredExponential], rng: np.random.Generator, size: float
) -> None:
    X, Kbar, kernel = matrix
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]])
    exact = scipy.linalg.cho_solve(scipy.linalg.cho_factor(Kbar), y)
    alpha = exact + size * rng.normal(size=exact.shape)
    certificate = Certificate.of(alpha, Kbar @ alpha - y, y, NOISE, 2.0, ERRORS)
    x_new = rng.normal(size=(50, D))
    error = np.abs(kernel(x_new, X) @ (alpha - exact))
    bound = certificate.mean_error_bound(kernel.diagonal(x_new))
    assert bound.shape == error.shape
    assert (error <= bound).all()
    assert (np.linalg.norm(alpha - exact, axis=0) <= certificate.alpha_error_bound).all()


def test_alpha_bound_is_attained(matrix: tuple[np.ndarray, np.ndarray, SquaredExponential]) -> None:
    """An error along the flattest direction of Kbar: no bound by the residual's norm and s2 could be better."""
    _, Kbar, _ = matrix
    values, vectors = np.linalg.eigh(Kbar)
    assert values[0] == pytest.approx(NOISE, rel=1e-6)
    alpha, y = vectors[:, :1], np.zeros((N, 1))
    certificate = Certificate.of(alpha, Kbar @ alpha - y, y, NOISE, 2.0, ERRORS)
    assert 1.0 <= certificate.alpha_error_bound[0] <= 1.0 + 1e-6


def test_rounding_covers_the_tiles(rng: np.random.Generator) -> None:
    """The computed gradient against one in extended precision, with coefficients that cancel heavily."""
    n = 1500
    for features, gamma in ((3, 0.3), (12, 0.05)):  # both forms of the distance
        X = rng.normal(size=(n, features))
        alpha = 1e6 * rng.normal(size=(n, 1))
        kernel = SquaredExponential((gamma,) * features, 1.5)
        executor = LocalExecutor(1)
        with BlockedKernelOperator(kernel, NOISE, ArrayInputs(X), executor) as operator:
            computed, errors = operator.matmat(alpha), operator.row_errors()
        executor.close()
        certificate = Certificate.of(alpha, np.zeros((n, 1)), np.zeros((n, 1)), NOISE, 1.5, errors)
        rows = rng.choice(n, 100, replace=False)
        scaled = X.astype(np.longdouble) * np.sqrt(np.longdouble(gamma))
        squared = ((scaled[rows, None, :] - scaled[None, :, :]) ** 2).sum(axis=2)
        K = np.longdouble(1.5) * np.exp(-squared)
        true = K @ alpha.astype(np.longdouble) + np.longdouble(NOISE) * alpha[rows]
        error = float(np.linalg.norm(computed[rows] - true))
        assert 0.0 < error <= certificate.residual_rounding[0] * np.sqrt(100 / n)


def test_an_exact_solution_has_a_bound_of_rounding_alone(
    matrix: tuple[np.ndarray, np.ndarray, SquaredExponential],
) -> None:
    X, Kbar, _ = matrix
    y = np.sin(X[:, :1])
    alpha = scipy.linalg.cho_solve(scipy.linalg.cho_factor(Kbar), y)
    bound = Certificate.of(alpha, Kbar @ alpha - y, y, NOISE, 2.0, ERRORS).mean_error_bound(np.array([2.0]))
    assert 0.0 < bound[0, 0] < 1e-7


def test_bounds_by_their_formula() -> None:
    certificate = Certificate(0.25, 100, (3.0, 6.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    np.testing.assert_allclose(certificate.mean_error_bound(np.array([1.0, 4.0])), [[6.0, 12.0], [12.0, 24.0]])
    np.testing.assert_allclose(certificate.alpha_error_bound, [12.0, 24.0])
    rounded = Certificate(0.25, 100, (3.0,), (1.0,), (1e14,), (3e14,))
    np.testing.assert_allclose(rounded.proven_residual_norm, [4.0])
    # Sums of a hundred terms and six more, in u = eps / 2; the sample's own error of 5 eps, and those of the others.
    rounding = (53.0 + 5.0 + 3.0) * np.finfo(np.float64).eps * 1e14
    np.testing.assert_allclose(rounded.mean_error_bound(np.ones(1), np.array([5.0])), [[8.0 + 1.01 * rounding]])


def test_a_certificate_from_before_every_rounding_was_counted_is_read_as_what_it_is() -> None:
    older = {"noise_variance": 0.25, "n": 100, "residual_norm": [3.0], "rounding": [0.1], "alpha_error_bound": [16.0]}
    certificate = Certificate.from_json(older)
    assert not certificate.complete
    np.testing.assert_allclose(certificate.proven_residual_norm, [4.0])
    np.testing.assert_allclose(certificate.mean_error_bound(np.ones(1)), [[8.1]])
    varying = Certificate.from_json({**older, "product_error": 0.2, "largest": 4.0, "weight_norm": 5.0})
    np.testing.assert_allclose(varying.proven_residual_norm, [5.5])
    np.testing.assert_allclose(varying.mean_error_bound(np.ones(1)), [[11.05]])
    # Written again it is no more than it was.
    again = Certificate.from_json(json.loads(json.dumps(varying.to_json())))
    assert again == varying
    assert not again.complete


def test_json_round_trip(matrix: tuple[np.ndarray, np.ndarray, SquaredExponential]) -> None:
    X, Kbar, _ = matrix
    alpha = X[:, :2] / 3.0
    certificate = Certificate.of(alpha, Kbar @ alpha, 0.0 * alpha, NOISE, 2.0, ERRORS)
    document = json.loads(json.dumps(certificate.to_json()))
    assert Certificate.from_json(document) == certificate
    assert document["alpha_error_bound"] == certificate.alpha_error_bound.tolist()
    assert document["mean_error_bound_at_unit_variance"] == certificate.mean_error_bound(np.ones(1))[0].tolist()


@pytest.mark.parametrize("scale", [1e-130, 1e-165, 1e-250, 1e-310])
def test_bounds_of_targets_whose_squares_underflow(rng: np.random.Generator, scale: float) -> None:
    """No step was taken: all that there is to know of tiny targets is how long they are."""
    y = np.column_stack([scale * rng.normal(size=N), rng.normal(size=N)])
    certificate = Certificate.of(np.zeros((N, 2)), -y, y, NOISE, 2.0, ERRORS)
    for column, length in enumerate(certificate.residual_norm):
        exact = math.hypot(*y[:, column].tolist())
        assert length == pytest.approx(exact, rel=1e-12 if scale > 1e-300 or column else 1e-6)
        assert exact <= certificate.proven_residual_norm[column] <= exact * (1.0 + 1e-12) + 1e-315
    # The exact mean at a sample of Kbar = (2 + s2) I is 2 y / (2 + s2).
    assert certificate.mean_error_bound(np.array([2.0]))[0, 0] >= 2.0 / (2.0 + NOISE) * np.abs(y[:, 0]).max()


def test_lengths_are_numpys_to_the_bit(rng: np.random.Generator) -> None:
    for columns in (rng.normal(size=(1000, 3)) * [1.0, 1e-40, 1e80], rng.normal(size=777), np.zeros((5, 2))):
        np.testing.assert_array_equal(column_lengths(columns), np.linalg.norm(columns, axis=0))
    np.testing.assert_allclose(
        column_lengths(np.array([[3e-300, 3e300], [4e-300, 4e300]])), [5e-300, 5e300], rtol=1e-15
    )


@pytest.mark.parametrize("with_step", [False, True])
def test_every_term_as_the_proofs_add_them_up(rng: np.random.Generator, with_step: bool) -> None:
    """`docs/proofs.md`, "Means", term by term in 50 digits, where each is a share of the sum that shows."""
    n, p, u = 7, 3, mp.mpf(2) ** -53
    alpha, gradient = rng.normal(size=(n, p)), 10.0 * rng.normal(size=(n, p))
    # What the length of the targets, the noise and the entries' errors add is as large as all the rest, in turn.
    targets = rng.normal(size=(n, p)) * np.array([1.0, 1e3, 1.0])
    noise = rng.uniform(1.0, 20.0, n)
    # So far off that even k(x, x) is not what it was computed as.
    diagonal, errors = rng.uniform(1.0, 4.0, n), 10.0 ** rng.uniform(0.0, 12.0, n)
    stepped = rng.uniform(0.0, 5.0, (n, p)) if with_step else np.empty((0, 0))
    certificate = Certificate.of(alpha, gradient, targets, noise, diagonal, errors, stepped=stepped)

    e = [mp.mpf(float(error)) for error in errors]
    scale = [mp.sqrt(mp.mpf(float(diagonal[i]))) * (1 + 4 * u * e[i]) for i in range(n)]
    # Of the residual's rows.
    s2 = [mp.mpf(float(value)) for value in noise]
    weight = [mp.sqrt(min(s2) / value) for value in s2]
    rho = (mp.mpf(product_roundings(n)) + (mp.mpf(step_roundings(p)) if with_step else 0)) * u
    for t in range(p):
        sizes = [abs(mp.mpf(float(value))) for value in alpha[:, t]]
        terms = [size + 2 * mp.mpf(float(stepped[i, t])) if with_step else size for i, size in enumerate(sizes)]
        off = mp.norm([weight[i] * scale[i] * (rho + 2 * u * e[i]) for i in range(n)]) * mp.fdot(scale, terms)
        rows = mp.norm([weight[i] * scale[i] for i in range(n)])
        off += 2 * u * rows * mp.fsum(scale[i] * e[i] * terms[i] for i in range(n))
        off += rho * mp.norm([weight[i] * s2[i] * terms[i] for i in range(n)])
        length = mp.norm([weight[i] * mp.mpf(float(gradient[i, t])) for i in range(n)])
        off += (n + 8) * u * length
        off += 2 * u * mp.norm([weight[i] * mp.mpf(float(targets[i, t])) for i in range(n)])
        assert certificate.residual_norm[t] == pytest.approx(float(length), rel=1e-13, abs=0)
        # The last bits are not the point: all terms but the one in question are within this of it.
        assert certificate.residual_rounding[t] == pytest.approx(float(mp.mpf("1.01") * off), rel=1e-13, abs=0)
        assert certificate.magnitude[t] == pytest.approx(
            float(mp.mpf("1.01") * mp.fdot(scale, sizes)), rel=1e-13, abs=0
        )
        spread = mp.fsum(scale[i] * e[i] * sizes[i] for i in range(n))
        assert certificate.spread[t] == pytest.approx(float(mp.mpf("1.01") * spread), rel=1e-13, abs=0)
    assert certificate.noise_variance == noise.min()


def test_terms_that_row_errors_outweigh_show_where_there_are_none() -> None:
    """Without errors of entries: sums, the noise's product, the gradient's norm and the targets', in turn."""
    n, u = 9, 2.0**-53
    zero, ones = np.zeros((n, 1)), np.ones((n, 1))
    no_errors, rho = np.zeros(n), product_roundings(n) * u

    def rounding(alpha: np.ndarray, gradient: np.ndarray, targets: np.ndarray, noise: object) -> float:
        return Certificate.of(alpha, gradient, targets, noise, 4.0, no_errors).residual_rounding[0]  # type: ignore[arg-type]

    varying = np.linspace(1e6, 5e6, n)
    of_rows, of_noise = np.sqrt(np.sum(1e6 / varying)), np.sqrt(np.sum(1e6 * varying))
    expected = 1.01 * rho * (2.0 * of_rows * 18.0 + of_noise)
    assert rounding(ones, zero, zero, varying) == pytest.approx(expected, rel=1e-14, abs=0)
    assert rounding(zero, ones, zero, varying) == pytest.approx(1.01 * (n + 8) * u * of_rows, rel=1e-14, abs=0)
    assert rounding(zero, zero, ones, varying) == pytest.approx(1.01 * 2.0 * u * of_rows, rel=1e-14, abs=0)
    assert rounding(-ones, zero, zero, 1e-3) == pytest.approx(1.01 * rho * (6.0 * 18.0 + 3e-3), rel=1e-14, abs=0)
    assert rounding(zero, ones, zero, 1.0) == pytest.approx(1.01 * (n + 5) * u * 3.0, rel=1e-14, abs=0)
    assert rounding(zero, zero, -ones, 1.0) == pytest.approx(1.01 * 2.0 * u * 3.0, rel=1e-14, abs=0)
    # What products of the smallest numbers lose, for each sample, and no more.
    assert rounding(zero, zero, zero, 1.0) == pytest.approx(1.01 * n**1.5 * LOST, rel=1e-2, abs=0)
    two = np.column_stack([ones, ones])
    stepped = Certificate.of(two, 0.0 * two, 0.0 * two, 0.5, 4.0, no_errors, stepped=3.0 * two).residual_rounding
    further = 1.01 * (rho + step_roundings(2) * u) * (6.0 * 2.0 * 9.0 * 7.0 + 0.5 * 3.0 * 7.0)
    assert stepped == pytest.approx((further, further), rel=1e-14, abs=0)


def test_errors_of_rows_that_are_not_known_are_those_of_the_samples() -> None:
    certificate = Certificate(0.25, 100, (3.0, 3.0), (0.0, 0.0), (0.0, 1e14), (0.0, 3e14))
    prior = np.array([1.0, 4.0])
    by_default, typical = certificate.mean_error_bound(prior), certificate.mean_error_bound(prior, np.full(2, 3.0))
    np.testing.assert_array_equal(by_default, typical)
    assert (typical[:, 1] > certificate.mean_error_bound(prior, np.zeros(2))[:, 1] * (1.0 + 1e-3)).all()


# Where nothing is proven: rows so far out that entries may be off without limit, beside sizes of zero.
# Infinity times zero is no number, and no comparison tells it from a bound that is met.


FINE = Periodic(gamma=(0.5,), period=(1e-6,), variance=1.5)
FAR = np.array([[1e12], [-3e12], [1e200]])
PRODUCT_ERRORS = np.array([np.inf, 3.0])
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
        exact = Certificate(0.1, 5, (0.0,), (0.0,), (0.0,), (0.0,)).mean_error_bound(PRIOR, PRODUCT_ERRORS)
        risk = {"none": (0.0,)}
        sparse = SparseCertificate(5, 2, 0.1, (0.0,), (0.0,), risk, (0.0,), (0.0,)).mean_error_bound(
            PRIOR, PRIOR, PRODUCT_ERRORS
        )
        decision = DecisionCertificate(5, (0.0,), (0.0,), (0.0,), (0.0,), intercept=False).decision_error_bound(
            np.zeros((2, 1)), None, PRIOR, PRODUCT_ERRORS
        )
        level = DecisionCertificate(5, (0.0,), (0.0,), (0.0,), (0.0,), ones_sum=(1.0, 1.0)).decision_error_bound(
            np.zeros((2, 1)), np.zeros(2), PRIOR, PRODUCT_ERRORS
        )
        other = RiskCertificate(5, (0.0,), (0.0,), (0.0,)).decision_error_bound(np.zeros((2, 1)), PRIOR, PRODUCT_ERRORS)
    for bound in (exact, sparse, decision, level, other):
        assert bound[0, 0] == np.inf
        assert 0.0 <= bound[1, 0] < 1e-10


def test_a_certificate_of_rows_with_infinite_errors_proves_nothing() -> None:
    zero = np.zeros((2, 1))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = Certificate.of(zero, zero, zero, 0.1, 1.0, PRODUCT_ERRORS)
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
