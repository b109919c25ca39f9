"""Softmax in Laplace's approximation: the matrices of order C n, spelled out; differences; logit for two."""

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.special
from numpy.testing import assert_allclose

from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.models.tuning.expectation import averaged_softmax
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.laplace import LogitEvidence, SeenSamples, SoftmaxEvidence, softmax_mode

NAMES = ("a", "b", "c")
KERNEL = SquaredExponential(gamma=(0.5, 0.2, 0.1), variance=3.0)


def labelled(rng, n, classes=3):
    inputs = rng.standard_normal((n, 3))
    codes = np.argmax(2.0 * inputs[:, :1] * np.arange(classes) + rng.gumbel(size=(n, classes)), axis=1)
    codes[:classes] = np.arange(classes)
    return inputs, np.where(codes[:, None] == np.arange(classes), 1.0, -1.0)


def evidence(inputs, signs, weights=None, kernel=KERNEL):
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


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_mode_evidence_and_predictions_are_those_of_the_whole_matrix(weighted, rng):
    n, classes = 30, 3
    inputs, signs = labelled(rng, n)
    weights = rng.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    one_hot, K = (signs > 0.0).astype(float), KERNEL(inputs, inputs)
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
    cross = KERNEL(inputs, test)
    inner = W @ np.linalg.inv(np.eye(classes * n) + whole @ W)
    expected = np.empty((6, classes, classes))
    for row in range(6):
        spread = scipy.linalg.block_diag(*[cross[:, [row]]] * classes)
        expected[row] = np.eye(classes) * 3.0 - spread.T @ inner @ spread
    samples = SeenSamples(np.asfortranarray(K), signs, weights if weighted else None, cross, KERNEL.diagonal(test))
    ours = SoftmaxEvidence.probabilities(samples)
    assert_allclose(ours, averaged_softmax(cross.T @ mode.alpha, expected), rtol=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("expression", ["rbf", "0.5 * matern32 + linear"])
def test_the_gradient_is_that_of_differences(weighted, expression, rng):
    inputs, signs = labelled(rng, 40, 4)
    weights = rng.uniform(0.0, 3.0, 40) if weighted else None
    found, at = evidence(inputs, signs, weights, parse_kernel(expression, 3))
    at = at + 0.3
    _, gradient = found(at)
    for position in range(len(at) - 1):
        along = np.zeros(len(at))
        along[position] = 1e-4
        difference = (found(at + along)[0] - found(at - along)[0]) / 2e-4
        assert_allclose(gradient[position], difference, rtol=1e-4, atol=1e-5)
    assert gradient[-1] == 0.0


def test_two_classes_are_logit_of_the_difference(rng):
    """f_2 - f_1 has twice the covariance; what is along f_1 + f_2 the labels do not tell."""
    inputs, signs = labelled(rng, 40, 2)
    value, _ = evidence(inputs, signs)[0](evidence(inputs, signs)[1])
    doubled = SquaredExponential(gamma=KERNEL.gamma, variance=6.0)
    family = family_of(doubled, inputs, True, NAMES)
    logit, _ = LogitEvidence(family, signs[:, 1:])(np.append(family.initial(), 0.0))
    assert_allclose(value, logit, rtol=1e-9)


def test_huge_amplitudes_do_no_harm(rng):
    inputs, signs = labelled(rng, 40)
    for variance in (1e-4, 1e4):
        kernel = SquaredExponential(gamma=(0.1, 0.1, 0.1), variance=variance)
        found, at = evidence(inputs, signs, None, kernel)
        value, gradient = found(at)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
