"""Laplace approximations: scikit-learn's, a general minimiser, the matrices of order C n spelled out, logit for two."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.special
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from dkgp.kernels import SquaredExponential
from dkgp.models.tuning.expectation import averaged_softmax
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.laplace import (
    LogitEvidence,
    ProbitEvidence,
    SeenSamples,
    SoftmaxEvidence,
    column_mode,
    latent_predictions,
    softmax_mode,
)
from dkgp.solvers.losses import LogisticLoss, ProbitLoss

NAMES = ("a", "b", "c")

SCALES, AMPLITUDE = np.array([1.0, 1.5, 2.0]), 4.0

KERNEL = SquaredExponential(gamma=tuple(1.0 / (2.0 * SCALES**2)), variance=AMPLITUDE)

EVIDENCES = {"logit": LogitEvidence, "probit": ProbitEvidence}


def labelled(rng, n, columns=1):
    inputs = rng.standard_normal((n, 3))
    latent = np.sin(2.0 * inputs[:, :1]) + inputs[:, 1:2] + rng.standard_normal((n, columns))
    return inputs, np.where(latent > 0.0, 1.0, -1.0)


def family(inputs, kernel=KERNEL):
    return family_of(kernel, inputs, True, NAMES)


def theta(inputs, kernel=KERNEL):
    return np.append(family(inputs, kernel).initial(), 0.0)


def test_mode_evidence_gradient_and_probabilities_are_scikit_learns(rng):
    inputs, signs = labelled(rng, 500)
    theirs = GaussianProcessClassifier(
        ConstantKernel(AMPLITUDE) * RBF(SCALES), optimizer=None, max_iter_predict=10_000
    ).fit(inputs, signs[:, 0])
    value, gradient = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    found, slopes = LogitEvidence(family(inputs), signs)(theta(inputs))
    assert_allclose(found, value, rtol=1e-8)
    # Their parameters: the amplitude, and length scales, of which gamma's logarithm is -2 times theirs.
    assert_allclose(slopes[3], gradient[0], rtol=1e-6, atol=1e-6)
    assert_allclose(-2.0 * slopes[:3], gradient[1:], rtol=1e-6, atol=1e-5)
    matrix, work = np.asfortranarray(KERNEL(inputs, inputs)), np.empty((500, 500), order="F")
    mode = column_mode(matrix, signs[:, 0], LogisticLoss(), work)
    assert_allclose(mode.values, theirs.base_estimator_.f_cached, atol=1e-6)
    test = rng.standard_normal((200, 3))
    ours = LogitEvidence.probabilities(SeenSamples(matrix, signs, None, KERNEL(inputs, test), KERNEL.diagonal(test)))
    assert_allclose(ours, theirs.predict_proba(test), atol=1e-3)


@pytest.mark.parametrize("name", ["logit", "probit"])
def test_a_start_nearby_saves_steps_and_one_far_off_does_no_harm(name, rng):
    inputs, signs = labelled(rng, 80)
    matrix, work = np.asfortranarray(KERNEL(inputs, inputs)), np.empty((80, 80), order="F")
    loss = EVIDENCES[name].loss
    cold = column_mode(matrix, signs[:, 0], loss, work)
    warm = column_mode(matrix, signs[:, 0], loss, work, None, 1.01 * cold.alpha)
    wild = column_mode(matrix, signs[:, 0], loss, work, None, 1e3 * rng.standard_normal(80))
    assert warm.steps < cold.steps == wild.steps
    assert_allclose(warm.values, cold.values, atol=1e-6)
    assert column_mode(matrix, signs[:, 0], loss, work, None, cold.alpha).steps == 0


@pytest.mark.parametrize(("name", "log_p"), [("logit", scipy.special.log_expit), ("probit", scipy.special.log_ndtr)])
def test_the_mode_and_the_evidence_are_those_of_a_general_minimiser(name, log_p, rng):
    inputs, signs = labelled(rng, 40)
    y, weights = signs[:, 0], rng.uniform(0.2, 3.0, 40)
    K = KERNEL(inputs, inputs) + 1e-10 * np.eye(40)
    root = np.linalg.cholesky(K)

    def psi(u):
        return 0.5 * u @ u - weights @ log_p(y * (root @ u))

    found = scipy.optimize.minimize(psi, np.zeros(40), method="BFGS", options={"gtol": 1e-9})
    f = root @ found.x
    h = 1e-4
    curvature = -weights * (log_p(y * (f + h)) - 2.0 * log_p(y * f) + log_p(y * (f - h))) / h**2
    expected = -psi(found.x) - 0.5 * np.linalg.slogdet(np.eye(40) + K * curvature)[1]
    value, _ = EVIDENCES[name](family(inputs), signs, None, weights)(theta(inputs))
    assert_allclose(value, expected, rtol=1e-6)


def test_latent_predictions_are_those_of_the_normal_approximation(rng):
    inputs, signs = labelled(rng, 50)
    test = rng.standard_normal((7, 3))
    K, cross = KERNEL(inputs, inputs), KERNEL(inputs, test)
    work = np.empty((50, 50), order="F")
    mode = column_mode(np.asfortranarray(K), signs[:, 0], ProbitLoss(), work)
    mean, variance = latent_predictions(mode, work, cross, KERNEL.diagonal(test))
    assert_allclose(mean, cross.T @ np.linalg.solve(K + 1e-12 * np.eye(50), mode.values), rtol=1e-4, atol=1e-6)
    inner = np.linalg.inv(K + np.diag(1.0 / mode.curvature))
    assert_allclose(variance, KERNEL.diagonal(test) - np.einsum("ij,ik,kj->j", cross, inner, cross), rtol=1e-8)


def test_curvatures_slope_holds_far_out():
    z = np.array([-1e6, -1e3, -201.0, -199.0, -30.0, -3.0, 0.0, 3.0, 30.0])
    loss = ProbitLoss()
    found = loss.log_curvature_slope(np.ones_like(z), z)
    h = np.maximum(1e-3 * np.abs(z), 1e-3)
    with np.errstate(divide="ignore"):
        logs = [np.log(loss.curvature(np.ones_like(z), z + side * h)) for side in (-1.0, 1.0)]
    assert_allclose(found, (logs[1] - logs[0]) / (2.0 * h), rtol=1e-2, atol=1e-6)
    assert_allclose(loss.log_curvature_slope(-np.ones_like(z), -z), -found)


SOFTMAX_KERNEL = SquaredExponential(gamma=(0.5, 0.2, 0.1), variance=3.0)


def labelled_classes(rng, n, classes=3):
    inputs = rng.standard_normal((n, 3))
    codes = np.argmax(2.0 * inputs[:, :1] * np.arange(classes) + rng.gumbel(size=(n, classes)), axis=1)
    codes[:classes] = np.arange(classes)
    return inputs, np.where(codes[:, None] == np.arange(classes), 1.0, -1.0)


def evidence(inputs, signs, weights=None, kernel=SOFTMAX_KERNEL):
    family = family_of(kernel, inputs, True, NAMES)
    return SoftmaxEvidence(family, signs, None, weights), np.append(family.initial(), 0.0)


def curvature(probabilities, weights):
    """W, (C n, C n), class by class."""
    n, classes = probabilities.shape
    W = np.zeros((classes * n, classes * n))
    for i in range(n):
        block = weights[i] * (np.diag(probabilities[i]) - np.outer(probabilities[i], probabilities[i]))
        W[np.ix_(i + n * np.arange(classes), i + n * np.arange(classes))] = block
    return W


@pytest.mark.long
@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_mode_evidence_and_predictions_are_those_of_the_whole_matrix(weighted, rng):
    n, classes = 30, 3
    inputs, signs = labelled_classes(rng, n)
    weights = rng.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    one_hot, K = (signs > 0.0).astype(float), SOFTMAX_KERNEL(inputs, inputs)
    whole = scipy.linalg.block_diag(*[K] * classes)
    root = np.linalg.cholesky(whole + 1e-10 * np.eye(classes * n))

    def psi(u):
        f = (root @ u).reshape(classes, n).T
        return 0.5 * u @ u - weights @ ((one_hot * f).sum(axis=1) - scipy.special.logsumexp(f, axis=1))

    best = scipy.optimize.minimize(psi, np.zeros(classes * n), method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-8})
    f = (root @ best.x).reshape(classes, n).T
    mode = softmax_mode(np.asfortranarray(K), one_hot, weights if weighted else None)
    assert_allclose(mode.values, f, atol=2e-4)
    assert_allclose(mode.objective, -best.fun, rtol=1e-9)
    assert_allclose(mode.alpha, weights[:, None] * (one_hot - mode.probabilities), atol=1e-6)
    W = curvature(mode.probabilities, weights)
    value, _ = evidence(inputs, signs, weights if weighted else None)[0](evidence(inputs, signs)[1])
    assert_allclose(value, mode.objective - 0.5 * np.linalg.slogdet(np.eye(classes * n) + whole @ W)[1], rtol=1e-9)
    test = rng.standard_normal((6, 3))
    cross = SOFTMAX_KERNEL(inputs, test)
    inner = W @ np.linalg.inv(np.eye(classes * n) + whole @ W)
    expected = np.empty((6, classes, classes))
    for row in range(6):
        spread = scipy.linalg.block_diag(*[cross[:, [row]]] * classes)
        expected[row] = np.eye(classes) * 3.0 - spread.T @ inner @ spread
    samples = SeenSamples(
        np.asfortranarray(K), signs, weights if weighted else None, cross, SOFTMAX_KERNEL.diagonal(test)
    )
    ours = SoftmaxEvidence.probabilities(samples)
    assert_allclose(ours, averaged_softmax(cross.T @ mode.alpha, expected), rtol=1e-7)


def test_two_classes_are_logit_of_the_difference(rng):
    """f_2 - f_1 has twice the covariance; what is along f_1 + f_2 the labels do not tell."""
    inputs, signs = labelled_classes(rng, 40, 2)
    value, _ = evidence(inputs, signs)[0](evidence(inputs, signs)[1])
    doubled = SquaredExponential(gamma=SOFTMAX_KERNEL.gamma, variance=6.0)
    family = family_of(doubled, inputs, True, NAMES)
    logit, _ = LogitEvidence(family, signs[:, 1:])(np.append(family.initial(), 0.0))
    assert_allclose(value, logit, rtol=1e-9)
