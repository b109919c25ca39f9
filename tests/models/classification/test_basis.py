"""Training on a basis as a whole: evidence, variances, weights, resume, what is stored, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.basis import BasisSettings
from dkgp.models.classification.labels import label_weights
from dkgp.models.classification.laplace import BasisPosterior
from dkgp.models.classification.prototypes import BASES
from dkgp.models.memory import TrainingSizes
from tests.models.classification.problems import KERNEL, samples, trained


def posterior_of(found: Any) -> BasisPosterior:
    return BasisPosterior.of(found.kernel_lower, found.posterior_lower, found.weights.shape[1], found.regularisation)


def test_all_samples_give_scikit_learns_laplace(rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 120)
    X = dataset.inputs(0, 120)
    found = trained(dataset, labels, form="gp", size=120, settings={"basis": "uniform"})
    peer = GaussianProcessClassifier(RBF(np.sqrt(0.5 / 0.3)), optimizer=None, max_iter_predict=200).fit(X, labels.codes)
    assert found.summary["evidence"] == pytest.approx(peer.log_marginal_likelihood_value_, abs=1e-5)
    tests = rng.standard_normal((40, 3))
    columns = KERNEL(found.prototypes, tests)
    variances = posterior_of(found).variances(columns, KERNEL.diagonal(tests))[:, 0]
    mean, own = _latent(peer, tests)
    np.testing.assert_allclose((columns.T @ found.weights)[:, 0], mean, atol=1e-5)
    np.testing.assert_allclose(variances, own, atol=1e-6)


def _latent(peer: Any, tests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    own = peer.base_estimator_
    K = own.kernel_(own.X_train_, tests)
    solved = np.linalg.solve(own.L_, own.W_sr_[:, None] * K)
    return K.T @ (own.y_train_ - own.pi_), 1.0 - np.einsum("ij,ij->j", solved, solved)


@pytest.mark.parametrize(("multi_class", "n_classes"), [("ovr", 2), ("ovr", 3), ("softmax", 3)])
def test_variances_are_those_of_dense_algebra(multi_class: str, n_classes: int, rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 200, n_classes)
    X, tests = dataset.inputs(0, 200), rng.standard_normal((20, 3))
    found = trained(dataset, labels, form="gp", size=15, multi_class=multi_class, regularisation=0.5)
    Z, t = found.prototypes, found.weights.shape[1]
    inner = np.linalg.inv(KERNEL(Z, Z))
    K, k = KERNEL(X, Z), KERNEL(tests, Z)
    targets, values = found.likelihood.targets(labels), K @ found.weights
    hessian = np.zeros((t, 15, t, 15))
    for c in range(t):
        unit = np.zeros((200, t))
        unit[:, c] = 1.0
        for other, curved in enumerate(found.likelihood.loss.curvature_times(targets, values, unit).T):
            hessian[c, :, other] = K.T @ (curved[:, None] * K)
        hessian[c, :, c] += 0.5 * KERNEL(Z, Z)
    covariance = np.linalg.inv(hessian.reshape(15 * t, 15 * t)).reshape(t, 15, t, 15)
    expected = np.einsum("ri,cidj,rj->rcd", k, covariance, k)
    left = (KERNEL.diagonal(tests) - np.einsum("ri,ij,rj->r", k, inner, k)) / 0.5
    expected[:, np.arange(t), np.arange(t)] += left[:, None]
    variances = posterior_of(found).variances(k.T, KERNEL.diagonal(tests))
    if multi_class == "ovr":
        expected = np.diagonal(expected, axis1=1, axis2=2)
    np.testing.assert_allclose(variances, expected, atol=1e-6)


def test_a_smaller_basis_is_less_sure_and_has_less_evidence_of_itself(rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 300)
    tests = rng.standard_normal((50, 3))
    means = []
    for size in (5, 40):
        found = trained(dataset, labels, form="gp", size=size)
        variances = posterior_of(found).variances(KERNEL(found.prototypes, tests), KERNEL.diagonal(tests))
        assert (variances <= 1.0 + 1e-9).all()
        means.append((variances.mean(), found.summary["left"], found.summary["risk"]))
    assert all(few > many for few, many in zip(*means, strict=True))


@pytest.mark.spread(3)
@pytest.mark.parametrize("basis", BASES)
def test_every_basis(basis: str, rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 200, 3)
    found = trained(dataset, labels, size=20, multi_class="softmax", settings={"basis": basis})
    assert found.summary["converged"]
    assert found.summary["basis"] == basis
    assert 15 <= len(found.prototypes) <= 20
    if found.indices is not None:
        np.testing.assert_array_equal(dataset.inputs(0, 200)[found.indices], found.prototypes)


def test_a_basis_of_ones_own(rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 200)
    for given in (np.arange(10, 20), rng.standard_normal((7, 3))):
        found = trained(dataset, labels, given=given)
        assert found.summary["basis"] == "given"
        assert len(found.prototypes) == len(given)


def test_a_weight_counts_as_so_many_samples(rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 100)
    times = rng.integers(0, 4, 100)
    X = dataset.inputs(0, 100)
    weighted = trained(dataset, labels, weights=times.astype(np.float64), given=X[:20])
    repeated = exact_repeated(X.repeat(times, axis=0), labels.codes.repeat(times), X[:20])
    np.testing.assert_allclose(weighted.weights[:, 0], repeated, rtol=1e-5, atol=1e-5)
    balanced = trained(dataset, labels, weights=label_weights(labels, "balanced"), given=X[:20])
    assert balanced.summary["converged"]


def exact_repeated(X: np.ndarray, codes: np.ndarray, Z: np.ndarray) -> np.ndarray:
    K, inner, beta = KERNEL(X, Z), KERNEL(Z, Z), np.zeros(len(Z))
    y = 2.0 * codes - 1.0
    for _ in range(60):
        p = 1.0 / (1.0 + np.exp(y * (K @ beta)))
        hessian = K.T @ ((p * (1.0 - p))[:, None] * K) + inner
        beta = beta - np.linalg.solve(hessian, inner @ beta - K.T @ (y * p))
    return beta


def test_what_is_refused(rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 50, 3)
    for words, call in (
        (r"`form` is 'logistic' or 'gp'", lambda: trained(dataset, labels, form="exact")),
        (r"`regularisation` must be positive", lambda: trained(dataset, labels, regularisation=-1.0)),
        (r"unknown prototypes 'nearest'", lambda: BasisSettings(basis="nearest")),
        (r"`size` must be at least 1; got 0", lambda: BasisSettings(0)),
        (r"`tolerance` must be positive", lambda: BasisSettings(tolerance=0.0)),
        (r"features", lambda: trained(dataset, labels, kernel=SquaredExponential((1.0,)))),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_memory_is_planned_and_refused_with_numbers() -> None:
    executor = LocalExecutor(2)
    settings = BasisSettings(2000)
    plans = [
        settings.memory(TrainingSizes(10**6, 10, t, executor, 2**28), coupled=coupled)
        for t, coupled in ((1, False), (5, False), (3, True), (10, True))
    ]
    executor.close()
    assert [plan.about["grams"] for plan in plans] == [1, 5, 6, 1]
    assert plans[0].coordinator_bytes < plans[1].coordinator_bytes < plans[2].coordinator_bytes
    assert plans[3].coordinator_bytes < plans[2].coordinator_bytes
    with pytest.raises(MemoryBudgetError, match=r"2,000 basis samples .* the budget is 1,024 MiB"):
        plans[2].require(2**30)
