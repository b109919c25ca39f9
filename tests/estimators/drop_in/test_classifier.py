"""`dkgp.GaussianProcessClassifier` beside scikit-learn's class of that name."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from sklearn.gaussian_process import GaussianProcessClassifier as Theirs
from sklearn.gaussian_process import kernels as sk

from dkgp import GaussianProcessClassifier
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.estimators.drop_in.dense import average_logistic

KERNEL = 4.0 * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.01, (1e-3, 1.0))
BOTH = (GaussianProcessClassifier, Theirs)


@pytest.fixture
def two(waves: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y, X_new = waves
    return X, np.where(y + rng.normal(size=120) > 5.0, "wet", "dry"), X_new


@pytest.fixture
def three(waves: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y, X_new = waves
    return X, np.digitize(y, [4.0, 6.0]), X_new


def test_the_signature() -> None:
    mine, theirs = (kind() for kind in BOTH)
    assert mine.get_params() == theirs.get_params()


@pytest.mark.parametrize("optimizer", [None, "fmin_l_bfgs_b"])
def test_two_classes(optimizer: str | None, two: Any) -> None:
    X, y, X_new = two
    mine, theirs = (kind(KERNEL, optimizer=optimizer, random_state=0).fit(X, y) for kind in BOTH)
    tolerance = 1e-9 if optimizer is None else 1e-3
    np.testing.assert_allclose(mine.kernel_.theta, theirs.kernel_.theta, atol=10.0 * tolerance)
    assert mine.log_marginal_likelihood_value_ == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-7)
    np.testing.assert_allclose(mine.predict_proba(X_new), theirs.predict_proba(X_new), atol=tolerance)
    np.testing.assert_array_equal(mine.predict(X), theirs.predict(X))
    for one, other in zip(mine.latent_mean_and_variance(X_new), theirs.latent_mean_and_variance(X_new), strict=True):
        np.testing.assert_allclose(one, other, atol=30.0 * tolerance)
    theta = theirs.kernel_.theta + 0.1
    for one, other in zip(
        mine.log_marginal_likelihood(theta, eval_gradient=True),
        theirs.log_marginal_likelihood(theta, eval_gradient=True),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    if optimizer is None:
        parts = [model.base_estimator_ for model in (mine, theirs)]
        np.testing.assert_allclose(parts[0].L_, parts[1].L_, atol=1e-9)
        np.testing.assert_allclose(parts[0].pi_, parts[1].pi_, atol=1e-9)


def test_the_gradient_is_that_of_the_evidence(two: Any) -> None:
    X, y, _ = two
    model = GaussianProcessClassifier(KERNEL, optimizer=None).fit(X, y)
    theta, step = KERNEL.theta + 0.2, 1e-5
    gradient = model.log_marginal_likelihood(theta, eval_gradient=True)[1]
    for index, axis in enumerate(np.eye(theta.size) * step):
        rise = model.log_marginal_likelihood(theta + axis) - model.log_marginal_likelihood(theta - axis)
        assert gradient[index] == pytest.approx(rise / (2.0 * step), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("multi_class", ["one_vs_rest", "one_vs_one"])
def test_three_classes(multi_class: str, three: Any) -> None:
    X, y, X_new = three
    mine, theirs = (kind(KERNEL, optimizer=None, multi_class=multi_class).fit(X, y) for kind in BOTH)
    np.testing.assert_array_equal(mine.predict(X_new), theirs.predict(X_new))
    assert isinstance(mine.kernel_, sk.CompoundKernel)
    assert mine.kernel_ == theirs.kernel_
    for theta in (KERNEL.theta - 0.1, mine.kernel_.theta + 0.1):
        assert mine.log_marginal_likelihood(theta) == pytest.approx(theirs.log_marginal_likelihood(theta), rel=1e-7)
    with pytest.raises(NotImplementedError, match="multi-class"):
        mine.log_marginal_likelihood(KERNEL.theta, eval_gradient=True)
    with pytest.raises(InputError, match="Shape of theta must be either 4 or 12. Obtained theta with shape 5"):
        mine.log_marginal_likelihood(np.zeros(5))
    if multi_class == "one_vs_rest":
        np.testing.assert_allclose(mine.predict_proba(X_new), theirs.predict_proba(X_new), atol=1e-8)
    else:
        with pytest.raises(InputError, match="one_vs_one multi-class mode does not support"):
            mine.predict_proba(X_new)


def test_averages_of_the_logistic_function() -> None:
    mean, variance = np.linspace(-6.0, 6.0, 9), np.geomspace(1e-6, 20.0, 9)
    exact = [
        quad(lambda z, m=m, v=v: expit(m + v**0.5 * z) * np.exp(-z * z / 2.0), -12.0, 12.0)[0] / (2.0 * np.pi) ** 0.5
        for m, v in zip(mean, variance, strict=True)
    ]
    np.testing.assert_allclose(average_logistic(mean, variance), exact, atol=5e-4)


def test_a_warm_start_and_a_pickle(two: Any) -> None:
    X, y, X_new = two
    model = GaussianProcessClassifier(KERNEL, warm_start=True, optimizer=None).fit(X, y)
    cold = GaussianProcessClassifier(KERNEL, optimizer=None).fit(X, y)
    once = model.base_estimator_.fit(X, y)  # from the mode: a step or two
    np.testing.assert_allclose(once.predict_proba(X_new), cold.predict_proba(X_new), atol=1e-8)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(cold)).predict_proba(X_new), cold.predict_proba(X_new))


class Small(GaussianProcessClassifier):
    dense_bytes: ClassVar[int] = 2**16


def test_beyond_memory_it_names_the_classifier_that_can(two: Any) -> None:
    with pytest.raises(MemoryBudgetError, match=r"of 120 samples takes [\d.]+ MiB.*Use dkgp\.GPClassifier"):
        Small(KERNEL).fit(*two[:2])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"kernel": sk.CompoundKernel([sk.RBF()])}, "kernel cannot be a CompoundKernel"),
        ({"multi_class": "softmax"}, "multi_class= takes 'one_vs_rest' or 'one_vs_one'; got 'softmax'"),
        ({"max_iter_predict": 0}, "max_iter_predict= takes a whole number from 1; got 0"),
        ({"warm_start": 1}, "warm_start= takes True or False; got 1"),
    ],
)
def test_refused(parameters: dict[str, Any], words: str, two: Any) -> None:
    with pytest.raises(InputError, match=words):
        GaussianProcessClassifier(**parameters).fit(*two[:2])
