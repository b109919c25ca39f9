"""Dense Laplace approximations: scikit-learn's, a naive Newton, finite differences, and hostile problems."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from dkgp.kernels import SquaredExponential, parse_kernel
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.laplace import LogitEvidence, ProbitEvidence, SeenSamples, column_mode, latent_predictions
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
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("expression", ["rbf", "0.5 * matern32 + linear"])
def test_the_gradient_is_that_of_differences(name, weighted, expression, rng):
    inputs, signs = labelled(rng, 60, 2)
    kernel = parse_kernel(expression, 3)
    weights = rng.uniform(0.0, 3.0, 60) if weighted else None
    evidence = EVIDENCES[name](family(inputs, kernel), signs, None, weights)
    at, step = theta(inputs, kernel) + 0.3, 1e-4
    _, gradient = evidence(at)
    for position in range(len(at) - 1):
        along = np.zeros(len(at))
        along[position] = step
        difference = (evidence(at + along)[0] - evidence(at - along)[0]) / (2.0 * step)
        assert_allclose(gradient[position], difference, rtol=1e-4, atol=1e-5)
    assert gradient[-1] == 0.0


@pytest.mark.parametrize("name", ["logit", "probit"])
def test_whole_weights_are_repeated_samples(name, rng):
    inputs, signs = labelled(rng, 50)
    counts = rng.integers(0, 4, 50)
    again = np.repeat(np.arange(50), counts)
    weighted = EVIDENCES[name](family(inputs), signs, None, counts.astype(np.float64))(theta(inputs))
    repeated = EVIDENCES[name](family(inputs[again]), signs[again])(theta(inputs))
    assert_allclose(weighted[0], repeated[0], rtol=1e-9)
    assert_allclose(weighted[1], repeated[1], rtol=1e-6, atol=1e-8)


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


@pytest.mark.parametrize("name", ["logit", "probit"])
def test_separable_labels_and_huge_amplitudes_do_no_harm(name, rng):
    inputs = rng.standard_normal((80, 3))
    signs = np.where(inputs[:, :1] > 0.0, 1.0, -1.0)
    for variance in (1e-4, 1e4, 1e8):
        kernel = SquaredExponential(gamma=(0.1, 1e-6, 1e-6), variance=variance)
        value, gradient = EVIDENCES[name](family(inputs, kernel), signs)(theta(inputs, kernel))
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert value < 0.0
    same = np.zeros((80, 3))
    assert np.isfinite(EVIDENCES[name](family(same), signs)(theta(same))[0])


def test_curvatures_slope_holds_far_out():
    z = np.array([-1e6, -1e3, -201.0, -199.0, -30.0, -3.0, 0.0, 3.0, 30.0])
    loss = ProbitLoss()
    found = loss.log_curvature_slope(np.ones_like(z), z)
    h = np.maximum(1e-3 * np.abs(z), 1e-3)
    with np.errstate(divide="ignore"):
        logs = [np.log(loss.curvature(np.ones_like(z), z + side * h)) for side in (-1.0, 1.0)]
    assert_allclose(found, (logs[1] - logs[0]) / (2.0 * h), rtol=1e-2, atol=1e-6)
    assert_allclose(loss.log_curvature_slope(-np.ones_like(z), -z), -found)
