"""`KernelLogisticClassifier` and `GPClassifier` on arrays: against dense minimisers and scikit-learn's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dkgp import GPClassifier, KernelLogisticClassifier
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.searches import run_tune
from dkgp.commands.tune import TuneJob
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.classification.likelihoods import Link
from tests.covering import few
from tests.estimators.classification.conftest import NAMES, Labelled, standard

KERNEL = SquaredExponential((0.8, 0.6), 4.0)
EACH = [
    KernelLogisticClassifier(KERNEL),
    GPClassifier(KERNEL),
    KernelLogisticClassifier(KERNEL, n_basis=40),
    GPClassifier(KERNEL, n_basis=40),
    GPClassifier(KERNEL, n_basis=20, neighbours=40),
]
IDS = ["logistic", "gp", "logistic-basis", "gp-basis", "gp-near"]
every = pytest.mark.parametrize("estimator", EACH, ids=IDS)


def dense(data: Labelled, one_hot: np.ndarray, penalty: float, weights: np.ndarray) -> np.ndarray:
    """Latent functions at the new points of the softmax risk's minimiser, by L-BFGS in whitened coordinates."""
    X, new = standard(data)
    K = KERNEL(X, X)
    lower = np.linalg.cholesky(K + 1e-12 * np.eye(len(X)))
    shape = one_hot.shape

    def risk(flat: np.ndarray) -> tuple[float, np.ndarray]:
        z = flat.reshape(shape)
        f = lower @ z
        log_sum = scipy.special.logsumexp(f, axis=1, keepdims=True)
        value = float(weights @ (log_sum[:, 0] - (one_hot * f).sum(axis=1))) + 0.5 * penalty * float((z * z).sum())
        slope = weights[:, None] * (np.exp(f - log_sum) - one_hot)
        return value, (lower.T @ slope + penalty * z).ravel()

    found = scipy.optimize.minimize(
        risk, np.zeros(one_hot.size), jac=True, method="L-BFGS-B", options={"maxiter": 20000, "ftol": 0, "gtol": 1e-9}
    )
    z = found.x.reshape(shape)
    return np.asarray(KERNEL(new, X) @ np.linalg.solve(lower.T, z))


@pytest.mark.long
@pytest.mark.parametrize("link", few(("logit", "probit"), "logit"))
def test_kernels_by_the_evidence_of_all_labels_are_those_of_the_search(
    link: Link, tmp_path: Path, labelled: Labelled
) -> None:
    X, y = labelled.X[:, [0, 2]], (labelled.y == NAMES[0]).astype(int)
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, y, target_names=["kind"], classes=("0", "1"))
    job = TuneJob(dataset.url, str(tmp_path / "hyper.json"), likelihood=link, objective="vif", basis_size=150)
    run_tune(job, SilentReporter())
    known = read_hyperparameters(job.out)
    model = GPClassifier(optimizer="vif", link=link, n_basis=20, neighbours=40).fit(dataset.url)
    assert model.hyperparameters_.kernel.to_json() == known.kernel.to_json()
    assert model.hyperparameters_.sparse is not None


def test_softmax_is_the_dense_minimiser(labelled: Labelled) -> None:
    one_hot = (labelled.y[:, None] == np.array(NAMES)).astype(float)
    known = dense(labelled, one_hot, 0.5, np.ones(150))
    model = KernelLogisticClassifier(KERNEL, regularisation=0.5, tol=1e-6).fit(labelled.X, labelled.y)
    decisions, bounds = model.decision_function(labelled.X_new, return_bounds=True)
    assert decisions.shape == bounds.shape == (40, 3)
    assert bounds.max() < 1e-5
    assert (np.abs(decisions - known) <= bounds + 1e-6).all()
    p, lower, upper = model.predict_proba(labelled.X_new, return_intervals=True)
    exact = scipy.special.softmax(known, axis=1)
    assert ((lower - 1e-7 <= exact) & (exact <= upper + 1e-7) & (lower <= p) & (p <= upper)).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    labels, certified = model.predict(labelled.X_new, return_certified=True)
    np.testing.assert_array_equal(labels, np.array(NAMES)[exact.argmax(axis=1)])
    assert certified.all()
    assert (model.regularisation_, model.likelihood_.name, model.n_basis_) == (0.5, "softmax", None)


def test_weights_are_those_of_the_losses(labelled: Labelled, rng: np.random.Generator) -> None:
    weight = rng.uniform(0.2, 3.0, size=150)
    by_class = {"ape": 3.0, "other": 0.5}
    total = weight * np.where(labelled.two == "ape", 3.0, 0.5)
    one_hot = np.stack([labelled.two == "ape", labelled.two != "ape"], axis=1).astype(float)
    # Softmax of two functions f and -f is the logistic loss of 2 f, whose penalty counts twice.
    known = dense(labelled, one_hot, 2.0, total / total.mean())
    model = KernelLogisticClassifier(KERNEL, class_weight=by_class, tol=1e-6)
    model.fit(labelled.X, labelled.two, sample_weight=weight)
    np.testing.assert_allclose(model.decision_function(labelled.X_new), known[:, 1] - known[:, 0], atol=1e-5)


def test_what_stops_early_certifies_less_and_nothing_wrong(labelled: Labelled) -> None:
    one_hot = np.stack([labelled.two == "ape", labelled.two != "ape"], axis=1).astype(float)
    known = dense(labelled, one_hot, 2.0, np.ones(150))
    exact = known[:, 1] - known[:, 0]
    with pytest.warns(UserWarning, match="not converged"):
        model = KernelLogisticClassifier(KERNEL, solver="kcg", max_passes=8, tol=1e-9).fit(labelled.X, labelled.two)
    decisions, bounds = model.decision_function(labelled.X_new, return_bounds=True)
    assert (np.abs(decisions - exact) <= bounds).all()
    labels, certified = model.predict(labelled.X_new, return_certified=True)
    assert 0 < certified.sum() < 40
    np.testing.assert_array_equal(labels[certified], np.where(exact >= 0.0, "other", "ape")[certified])
    _, lower, upper = model.predict_proba(labelled.X_new, return_intervals=True)
    p = scipy.special.expit(exact)
    assert ((lower[:, 1] <= p) & (p <= upper[:, 1])).all()


def test_the_gaussian_process_is_scikit_learns(labelled: Labelled) -> None:
    X, new = standard(labelled)
    length = 1.0 / np.sqrt(2.0 * np.array([0.8, 0.6]))
    known = GaussianProcessClassifier(ConstantKernel(4.0) * RBF(length), optimizer=None).fit(X, labelled.two)
    model = GPClassifier(KERNEL, tol=1e-6).fit(labelled.X, labelled.two)
    expected = known.predict_proba(new)
    found, lower, upper = model.predict_proba(labelled.X_new, return_intervals=True)
    np.testing.assert_allclose(found, expected, atol=1e-3)  # its integral is a sum of five error functions
    assert ((lower <= found) & (found <= upper)).all()
    assert (upper - lower).max() < 0.05
    np.testing.assert_array_equal(model.predict(labelled.X_new), known.predict(new))


def test_averaging_makes_probabilities_modest(labelled: Labelled) -> None:
    model = GPClassifier(KERNEL).fit(labelled.X, labelled.y)
    far = np.array([[1e5, 7.0, 1e3]])
    np.testing.assert_allclose(model.predict_proba(far), 1.0 / 3.0, atol=1e-6)
    plain = KernelLogisticClassifier(KERNEL, multi_class="ovr").fit(labelled.X, labelled.y)
    np.testing.assert_allclose(
        model.decision_function(labelled.X_new), plain.decision_function(labelled.X_new), atol=2e-3
    )
    assert (
        model.predict_proba(labelled.X_new).max(axis=1).mean() < plain.predict_proba(labelled.X_new).max(axis=1).mean()
    )


@every
def test_tools_of_scikit_learn(labelled: Labelled, estimator: Any) -> None:
    scores = cross_val_score(
        make_pipeline(StandardScaler(), clone(estimator).set_params(kernel="rbf", optimizer=None)),
        labelled.X,
        labelled.y,
        cv=2,
    )
    assert scores.min() > 0.7


def test_a_basis_certifies_nothing(labelled: Labelled) -> None:
    model = KernelLogisticClassifier(KERNEL, n_basis=40).fit(labelled.X, labelled.y)
    assert model.n_basis_ == 40
    for ask in (
        lambda: model.predict(labelled.X_new, return_certified=True),
        lambda: model.predict_proba(labelled.X_new, return_intervals=True),
        lambda: model.decision_function(labelled.X_new, return_bounds=True),
    ):
        with pytest.raises(InputError, match="no proven|proves nothing"):
            ask()
    whole = KernelLogisticClassifier(KERNEL).fit(labelled.X, labelled.y)
    np.testing.assert_allclose(model.predict_proba(labelled.X_new), whole.predict_proba(labelled.X_new), atol=0.05)


def test_neighbours_come_near_to_the_model_of_all_samples(labelled: Labelled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probabilities and classes; nothing of them is proven, and a basis is needed."""
    whole = GPClassifier(KERNEL).fit(labelled.X, labelled.y)
    off = []
    for n_basis, neighbours in ((10, None), (10, 40), (10, 1000)):
        model = GPClassifier(KERNEL, n_basis=n_basis, neighbours=neighbours).fit(labelled.X, labelled.y)
        off.append(np.abs(model.predict_proba(labelled.X_new) - whole.predict_proba(labelled.X_new)).max())
    assert off[0] > 2.0 * off[1] > 2.0 * off[2]
    assert off[2] < 2e-3
    assert model.n_basis_ == 10
    with pytest.raises(InputError, match="no proven"):
        model.predict_proba(labelled.X_new, return_intervals=True)
    for settings, said in (
        ({"neighbours": 8}, "neighbours=8 is of a basis: give n_basis="),
        ({"n_basis": 10, "neighbours": 0}, "neighbours= takes a whole number from 1 or None; got 0"),
        ({"n_basis": 10, "neighbours": 8, "certify": True}, "there are no proofs for a basis with `neighbours`"),
        ({"n_basis": 10, "neighbours": 8, "multi_class": "softmax"}, "softmax couples the classes"),
    ):
        monkeypatch.setattr("dkgp.estimators.classifiers.tune_labels", None)  # before anything is tuned
        with pytest.raises(InputError, match=said):
            GPClassifier("rbf", **settings).fit(labelled.X, labelled.y)


def test_kernels_are_tuned_by_the_evidence_of_labels(labelled: Labelled) -> None:
    model = GPClassifier(subset_size=100).fit(labelled.X, labelled.two)
    assert isinstance(model.hyperparameters_, Hyperparameters)
    assert model.hyperparameters_.likelihood == "logit"
    assert model.score(labelled.X_new, np.where(labelled.y_new == "ape", "ape", "other")) > 0.7


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"solver": "gbcd"}, "solver= takes 'auto', 'kcg'"),
        ({"regularisation": 0.0}, "regularisation"),
        ({"multi_class": "all"}, "softmax.*ovr|ovr.*softmax"),
        ({"basis": "none", "n_basis": 5}, "none"),
        ({"n_basis": 0}, "n_basis= takes a whole number from 1 or None; got 0"),
        ({"optimizer": "loo"}, "laplace"),
        ({"kernel": "rbf", "optimizer": "loo"}, "laplace"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(labelled: Labelled, settings: dict[str, Any], said: str) -> None:
    kernel = settings.pop("kernel", "rbf")
    with pytest.raises(InputError, match=said):
        KernelLogisticClassifier(kernel, **{"optimizer": None, **settings}).fit(labelled.X, labelled.y)


def test_a_probit_link_has_no_softmax(labelled: Labelled) -> None:
    with pytest.raises(InputError, match="probit"):
        GPClassifier(KERNEL, link="probit", multi_class="softmax").fit(labelled.X, labelled.y)
    two = GPClassifier(KERNEL, link="probit").fit(labelled.X, labelled.two)
    assert two.likelihood_.name == "probit"


def test_softmax_averages_are_of_a_basis(labelled: Labelled) -> None:
    with pytest.raises(InputError, match="give n_basis="):
        GPClassifier(KERNEL, multi_class="softmax").fit(labelled.X, labelled.y)
    few = GPClassifier(KERNEL, multi_class="softmax", n_basis=30).fit(labelled.X, labelled.y)
    assert few.likelihood_.name == "softmax"
    np.testing.assert_allclose(few.predict_proba(labelled.X_new).sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("n_basis", [None, 30])
def test_decisions_and_classes_of_two_take_no_variance(
    labelled: Labelled, monkeypatch: pytest.MonkeyPatch, n_basis: int | None
) -> None:
    model = GPClassifier(KERNEL, n_basis=n_basis).fit(labelled.X, labelled.two)
    expected = model.classes_[model.predict_proba(labelled.X_new).argmax(axis=1)]
    decisions = model.decision_function(labelled.X_new)

    def never(*given: Any, **named: Any) -> Any:
        raise AssertionError("a variance was computed")

    monkeypatch.setattr("dkgp.models.prediction.classes.ClassVariances", never)
    monkeypatch.setattr("dkgp.models.prediction.classes._basis_variances", never)
    again = clone(model).fit(labelled.X, labelled.two)
    np.testing.assert_array_equal(again.predict(labelled.X_new), expected)
    np.testing.assert_array_equal(again.decision_function(labelled.X_new), decisions)
    with pytest.raises(AssertionError, match="a variance was computed"):
        again.predict_proba(labelled.X_new)


def test_classes_of_several_functions_are_the_most_likely_on_average(labelled: Labelled) -> None:
    model = GPClassifier(KERNEL).fit(labelled.X, labelled.y)
    most = model.predict_proba(labelled.X_new).argmax(axis=1)
    np.testing.assert_array_equal(model.predict(labelled.X_new), model.classes_[most])
