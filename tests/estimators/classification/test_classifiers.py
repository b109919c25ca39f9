"""`LSSVC` and `FixedSizeLSSVC` on arrays: against dense solutions, labels of all sorts, in scikit-learn's tools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from dkgp import LSSVC, FixedSizeLSSVC
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from tests.estimators.classification.conftest import KERNEL, NAMES, NOISE, Labelled

SMALL: dict[str, Any] = {"noise_variance": NOISE, "pool": 30, "folds": 3, "search": "none"}
EACH = [LSSVC(KERNEL, noise_variance=NOISE), FixedSizeLSSVC(KERNEL, **SMALL)]


def standard(data: Labelled) -> tuple[np.ndarray, np.ndarray]:
    """Inputs as the machines see them: without the feature that is constant."""
    X, new = data.X[:, [0, 2]], data.X_new[:, [0, 2]]
    return (X - X.mean(axis=0)) / X.std(axis=0), (new - X.mean(axis=0)) / X.std(axis=0)


def dense(data: Labelled, signs: np.ndarray, noise: np.ndarray | float = NOISE) -> np.ndarray:
    """Decisions of the LS-SVM's system (equation 23), by a dense solve."""
    X, new = standard(data)
    n = len(X)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = KERNEL(X, X) + np.diag(np.broadcast_to(noise, n))
    system[n, :n] = system[:n, n] = 1.0
    solution = np.linalg.solve(system, np.vstack([signs, np.zeros((1, signs.shape[1]))]))
    return np.asarray(KERNEL(new, X) @ solution[:n] + solution[n])


def test_exact_decisions_are_the_dense_solutions(labelled: Labelled, exact: LSSVC) -> None:
    signs = np.where(labelled.y[:, None] == np.array(NAMES), 1.0, -1.0)
    known = dense(labelled, signs)
    decisions, bounds = exact.decision_function(labelled.X_new, return_bounds=True)
    assert decisions.shape == bounds.shape == (40, 3)
    assert (np.abs(decisions - known) <= bounds).all()
    assert bounds.max() < 1e-6
    labels, certified = exact.predict(labelled.X_new, return_certified=True)
    np.testing.assert_array_equal(labels, np.array(NAMES)[known.argmax(axis=1)])
    assert certified.dtype == bool
    assert certified.all()
    np.testing.assert_array_equal(exact.classes_, NAMES)


def test_what_stops_early_certifies_less_and_nothing_wrong(labelled: Labelled) -> None:
    signs = np.where(labelled.two == "ape", -1.0, 1.0)[:, None]
    known = dense(labelled, signs)[:, 0]
    with pytest.warns(UserWarning, match="not converged"):
        model = LSSVC(KERNEL, noise_variance=NOISE, solver="cg", max_passes=16, tol=1e-8).fit(labelled.X, labelled.two)
    decisions, bounds = model.decision_function(labelled.X_new, return_bounds=True)
    assert decisions.shape == bounds.shape == (40,)
    assert (np.abs(decisions - known) <= bounds).all()
    labels, certified = model.predict(labelled.X_new, return_certified=True)
    assert 0 < certified.sum() < 40
    exact_labels = np.where(known >= 0.0, "other", "ape")
    np.testing.assert_array_equal(labels[certified], exact_labels[certified])


def test_weights_are_those_of_the_squared_errors(labelled: Labelled, rng: np.random.Generator) -> None:
    weight = rng.uniform(0.2, 3.0, size=150)
    by_class = {"ape": 3.0, "other": 0.5}
    model = LSSVC(KERNEL, noise_variance=NOISE, class_weight=by_class, tol=1e-8)
    model.fit(labelled.X, labelled.two, sample_weight=weight)
    total = weight * np.where(labelled.two == "ape", 3.0, 0.5)
    signs = np.where(labelled.two == "ape", -1.0, 1.0)[:, None]
    known = dense(labelled, signs, NOISE / (total / total.mean()))[:, 0]
    np.testing.assert_allclose(model.decision_function(labelled.X_new), known, atol=1e-6)
    ten = LSSVC(KERNEL, noise_variance=NOISE, class_weight=by_class, tol=1e-8)
    ten.fit(labelled.X, labelled.two, sample_weight=10.0 * weight)
    np.testing.assert_allclose(ten.decision_function(labelled.X_new), known, atol=1e-6)


@pytest.mark.parametrize("estimator", EACH)
def test_samples_of_weight_zero_are_not_there(labelled: Labelled, estimator: Any) -> None:
    weight = np.ones(150)
    weight[100:] = 0.0
    found = clone(estimator).fit(labelled.X, labelled.y, sample_weight=weight)
    known = clone(estimator).fit(labelled.X[:100], labelled.y[:100])
    np.testing.assert_allclose(
        found.decision_function(labelled.X_new), known.decision_function(labelled.X_new), atol=1e-8
    )


def test_balanced_weights_find_the_rare_class(rng: np.random.Generator) -> None:
    y = np.where(np.arange(400) % 20 == 0, "rare", "usual")
    X = rng.normal(size=(400, 2)) + np.where(y == "rare", 1.0, 0.0)[:, None]
    for each in (LSSVC(optimizer=None), FixedSizeLSSVC(pool=40, folds=3, search="none")):
        plain = clone(each).fit(X, y).predict(X)
        balanced = clone(each).set_params(class_weight="balanced").fit(X, y).predict(X)
        assert np.mean(balanced[y == "rare"] == "rare") > np.mean(plain[y == "rare"] == "rare") + 0.2


@pytest.mark.parametrize("estimator", EACH)
@pytest.mark.parametrize(
    "values", [[3, -1, 10], [0.0, -1.0, 2.0], ["b", "a", "c"], np.array(["b", "a", "c"], dtype=object)], ids=str
)
def test_labels_come_back_as_they_went_in(labelled: Labelled, estimator: Any, values: Any) -> None:
    y = np.asarray(values)[np.searchsorted(NAMES, labelled.y)]
    model = clone(estimator).fit(labelled.X, y)
    assert model.classes_.tolist() == sorted(values)
    assert model.classes_.dtype == y.dtype
    predicted = model.predict(labelled.X_new)
    assert predicted.dtype == y.dtype
    assert model.score(labelled.X, y) > 0.8
    np.testing.assert_array_equal(model.classes_[model.decision_function(labelled.X_new).argmax(axis=1)], predicted)
    probabilities = model.predict_proba(labelled.X_new)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_allclose(model.predict_log_proba(labelled.X_new), np.log(probabilities))


@pytest.mark.parametrize("estimator", EACH)
def test_booleans_are_two_classes(labelled: Labelled, estimator: Any) -> None:
    model = clone(estimator).fit(labelled.X, labelled.y == "ape")
    decisions = model.decision_function(labelled.X_new)
    assert decisions.shape == (40,)
    predicted = model.predict(labelled.X_new)
    assert predicted.dtype == bool
    np.testing.assert_array_equal(predicted, decisions >= 0.0)
    assert model.intercept_.shape == (1,)


def test_probabilities_tell_more_than_the_share_of_a_class(labelled: Labelled) -> None:
    for each in EACH:
        model = clone(each).fit(labelled.X, labelled.y)
        shares = np.full((40, 3), 1.0 / 3.0)
        found = log_loss(labelled.y_new, model.predict_proba(labelled.X_new))
        assert found < 0.7 * log_loss(labelled.y_new, shares)


def test_without_probabilities_there_is_no_such_method(labelled: Labelled) -> None:
    for each in EACH:
        model = clone(each).set_params(probability=False).fit(labelled.X, labelled.y)
        assert not hasattr(model, "predict_proba")
        assert model.calibration_ is None
        model.probability = True
        with pytest.raises(InputError, match="trained without probabilities"):
            model.predict_proba(labelled.X_new)


@pytest.mark.parametrize("estimator", EACH)
def test_bad_labels_are_refused_in_words(labelled: Labelled, estimator: Any) -> None:
    X, y = labelled.X, labelled.y
    model = clone(estimator)
    with pytest.raises(InputError, match="one class only, 'ape'"):
        model.fit(X, np.full(150, "ape"))
    missing = y.astype(object)
    missing[17] = None
    with pytest.raises(InputError, match="label of sample 17 is missing"):
        model.fit(X, missing)
    for kind in ("string", "category", object):
        given = pd.Series(y.astype(object)).mask(np.arange(150) == 17, pd.NA).astype(kind)
        with pytest.raises(InputError, match="label of sample 17 is missing"):
            model.fit(X, given)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.fit(X, np.where(np.arange(150) == 3, np.nan, np.arange(150) % 2))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(np.where(np.arange(3) == 1, np.nan, X), y)
    with pytest.raises(ValueError, match="Unknown label type"):
        model.fit(X, X[:, 0])
    with pytest.raises(InputError, match="types int, str"):
        model.fit(X, np.array([1, "one"] * 75, dtype=object))
    with pytest.raises(InputError, match=r"sample_weight has shape \(3,\); expected \(150,\)"):
        model.fit(X, y, sample_weight=np.ones(3))
    with pytest.raises(InputError, match="weight of sample 2 is -1"):
        model.fit(X, y, sample_weight=np.where(np.arange(150) == 2, -1.0, 1.0))
    with pytest.raises(InputError, match="'dog'"):
        clone(estimator).set_params(class_weight={"dog": 2.0}).fit(X, y)
    with pytest.raises(InputError, match="class_weight= takes"):
        clone(estimator).set_params(class_weight="equal").fit(X, y)
    assert not hasattr(model, "classes_")


def test_settings_of_prototypes_are_checked(labelled: Labelled) -> None:
    X, y = labelled.X, labelled.y
    with pytest.raises(InputError, match="folds= takes a whole number"):
        FixedSizeLSSVC(folds="many").fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="search= takes 'shared', 'grid', .* or 'none'; got 'best'"):
        FixedSizeLSSVC(search="best").fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"stop= takes \(a whole number, a finite number\) or None; got 5"):
        FixedSizeLSSVC(stop=5).fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="kernel= takes an expression"):
        FixedSizeLSSVC(kernel=3.0).fit(X, y)  # type: ignore[arg-type]
    lonely = np.where(np.arange(150) == 0, "lonely", y)
    with pytest.raises(InputError, match="'lonely' has 1 sample"):
        FixedSizeLSSVC(KERNEL, **SMALL).fit(X, lonely)


def test_path_and_prototypes_are_shown(labelled: Labelled, fixed: FixedSizeLSSVC) -> None:
    assert fixed.n_basis_ == len(fixed.prototypes_) <= 40
    assert fixed.prototype_indices_ is not None
    np.testing.assert_allclose(fixed.prototypes_, labelled.X[fixed.prototype_indices_][:, [0, 2]])
    sizes = [record["cardinality"] for record in fixed.path_]
    assert fixed.n_basis_ in sizes
    assert sizes == sorted(sizes)
    assert fixed.kernel_ == KERNEL
    assert fixed.noise_variance_ == NOISE
    # Of hyperparameters, a kernel and a noise variance at once.
    found = FixedSizeLSSVC(Hyperparameters(KERNEL, NOISE), pool=40, folds=3, search="none")
    found.fit(labelled.X, labelled.y)
    np.testing.assert_array_equal(found.predict_proba(labelled.X_new), fixed.predict_proba(labelled.X_new))
    tried = FixedSizeLSSVC("rbf(isotropic=True)", noise_variance=[0.01, 10.0], pool=20, folds=3, search="none")
    assert tried.fit(labelled.X, labelled.y).noise_variance_ in (0.01, 10.0)


def test_tuning_beats_a_kernel_that_is_off(labelled: Labelled) -> None:
    off = LSSVC(SquaredExponential(gamma=(1e4, 1e4)), noise_variance=NOISE).fit(labelled.X, labelled.y)
    tuned = LSSVC().fit(labelled.X, labelled.y)
    assert tuned.score(labelled.X_new, labelled.y_new) > off.score(labelled.X_new, labelled.y_new) + 0.2
    assert tuned.hyperparameters_.feature_names == ("x0", "x2")


@pytest.mark.parametrize("estimator", EACH)
def test_scikit_learns_tools(labelled: Labelled, estimator: Any) -> None:
    X, y = labelled.X[:90], labelled.y[:90]
    free = clone(estimator).set_params(kernel="rbf(isotropic=True)")
    if isinstance(free, LSSVC):
        free.set_params(optimizer=None)
    pipeline = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=True), free)
    assert pipeline.fit(X, y).score(X, y) > 0.7
    search = GridSearchCV(clone(estimator), {"noise_variance": [NOISE, 1e4]}, cv=3, scoring="neg_log_loss").fit(X, y)
    assert search.best_params_ == {"noise_variance": NOISE}
    assert cross_val_score(search.best_estimator_, X, y, cv=3).min() > 0.6
    calibrated = CalibratedClassifierCV(clone(estimator).set_params(probability=False), cv=3).fit(X, y)
    assert calibrated.predict_proba(X).shape == (90, 3)
