"""Least-squares machines against dense solves; class weights, hostile samples, and lazy inputs."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask.base import collections_to_expr
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from dkgp import LSSVC, FixedSizeLSSVC
from dkgp.data import ClassifierRecord, DatasetWriter, dataset_from_arrays, open_classifier, save_classifier
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from tests.cli.invoke import run_json
from tests.estimators.classification.conftest import KERNEL, NAMES, NOISE, Labelled, standard

SMALL: dict[str, Any] = {"noise_variance": NOISE, "pool": 30, "folds": 3, "search": "none"}
EACH = [LSSVC(KERNEL, noise_variance=NOISE), FixedSizeLSSVC(KERNEL, **SMALL)]


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


SETTINGS = {"pool": 50, "probability": False, "random_state": 0}


@pytest.fixture(scope="module")
def rare() -> tuple[np.ndarray, np.ndarray]:
    """Two classes that overlap, one of 6 % of the samples."""
    rng = np.random.default_rng(0)
    codes = (rng.uniform(size=700) < 0.06).astype(np.int64)
    return rng.standard_normal((700, 2)) + 1.6 * codes[:, None], np.array(["common", "rare"])[codes]


def test_a_rare_class_has_no_weight_unless_it_is_given(rare: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = rare
    count = int((y == "rare").sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        default = FixedSizeLSSVC(**SETTINGS).fit(X, y)
        balanced = FixedSizeLSSVC(**SETTINGS, class_weight="balanced").fit(X, y)
    assert default.class_weight is None
    assert default.class_weight_ is None
    weights = balanced.class_weight_
    assert weights["rare"] / weights["common"] == pytest.approx((700 - count) / count)
    recalls = [float(np.mean(model.predict(X)[y == "rare"] == "rare")) for model in (balanced, default)]
    assert recalls[0] > recalls[1] + 0.1
    assert default.score(X, y) > balanced.score(X, y)


def test_the_command_takes_the_same(rare: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    X, y = rare
    names = ("common", "rare")
    dataset_from_arrays(tmp_path / "t.zarr", X, np.searchsorted(names, y).astype(float), classes=names)
    for number, weight in enumerate((None, "balanced")):
        fitted = FixedSizeLSSVC(**SETTINGS, class_weight=weight).fit(X, y)
        command = ("classify", tmp_path / "t.zarr", "--out", tmp_path / f"m{number}.zarr", "--pool", 50)
        words = () if weight is None else ("--class-weight", weight)
        document = run_json(*command, *words, "--no-probability", "--cluster", "none")
        assert document["class_weights"] == fitted.class_weight_
        assert document["misclassification"] == fitted.solution_["misclassification"]


def test_samples_weigh_on_both_sides(rare: tuple[np.ndarray, np.ndarray]) -> None:
    """Weights of samples are in the balanced ones too: what weighs nothing is not there."""
    X, y = rare
    weight = np.ones(len(y))
    weight[::7] = 0.0
    kept = weight > 0.0
    weighted = FixedSizeLSSVC(**SETTINGS, class_weight="balanced").fit(X, y, sample_weight=weight)
    left_out = FixedSizeLSSVC(**SETTINGS, class_weight="balanced").fit(X[kept], y[kept])
    np.testing.assert_allclose(weighted.decision_function(X), left_out.decision_function(X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("value", ["equal", 2.0])
def test_other_words_are_refused(rare: tuple[np.ndarray, np.ndarray], value: object) -> None:
    with pytest.raises(InputError, match=r'class_weight= takes "balanced" or weights by class'):
        FixedSizeLSSVC(**SETTINGS, class_weight=value).fit(*rare)


ODD: dict[str, Any] = {
    "four samples": (np.arange(4.0)[:, None], [0, 1, 1, 0]),
    "inputs all the same": (np.ones((10, 2)), np.arange(10) % 2),
    "repeated, consistent": (np.repeat(np.arange(4.0)[:, None], 10, axis=0), np.repeat([0, 1, 0, 1], 10)),
    "repeated, contradicting": (np.repeat(np.arange(4.0)[:, None], 10, axis=0), np.arange(40) % 2),
    "tiny inputs": (1e-130 * np.sin(np.arange(40.0)).reshape(20, 2), np.arange(20) % 2),
    "more features than samples": (np.sin(np.arange(2000.0)).reshape(20, 100), np.arange(20) % 2),
    "far apart": (
        np.concatenate([np.sin(np.arange(20.0)), 100.0 + np.sin(np.arange(20.0))])[:, None],
        [0] * 20 + [1] * 20,
    ),
    "two of a class": (np.sin(np.arange(80.0)).reshape(40, 2), np.arange(40) < 2),
    "many classes": (np.sin(np.arange(200.0)).reshape(100, 2), np.arange(100) % 20),
}


@pytest.mark.covering
@pytest.mark.parametrize("kind", [LSSVC, FixedSizeLSSVC])
@pytest.mark.parametrize("name", ODD)
def test_answers_are_finite_and_of_the_classes(kind: Any, name: str) -> None:
    X, y = ODD[name][0], np.asarray(ODD[name][1])
    model = kind().fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert (probabilities >= 0.0).all()
    labels = model.predict(X)
    assert set(labels.tolist()) <= set(y.tolist())
    if name in ("repeated, consistent", "far apart"):
        np.testing.assert_array_equal(labels, y)


def test_weights_of_all_magnitudes(rng: np.random.Generator) -> None:
    X, y, weight = rng.normal(size=(60, 2)), np.arange(60) % 2, 10.0 ** rng.uniform(-8.0, 8.0, size=60)
    for kind in (LSSVC, FixedSizeLSSVC):
        model = kind().fit(X, y, sample_weight=weight)
        assert np.isfinite(model.predict_proba(X)).all()
        heavy = int(np.argmax(weight))
        assert model.predict(X[heavy : heavy + 1])[0] == y[heavy]


@pytest.mark.parametrize("kind", [LSSVC, FixedSizeLSSVC])
def test_values_that_overflow_or_underflow_are_refused(kind: Any, rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match="too large to be standardised"):
        kind().fit(1e200 * rng.normal(size=(20, 2)), np.arange(20) % 2)
    with pytest.raises(InputError, match="too near to each other to be standardised"):
        kind().fit(1e-200 * rng.normal(size=(20, 2)), np.arange(20) % 2)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("row", [[0.0], [3.0, -2.0]])
def test_a_kernel_that_is_zero_everywhere_says_zero(row: list[float], fit_intercept: bool) -> None:
    # Equal rows are all zero once they are standardised, and so are all products of them.
    X = np.tile(row, (6, 1))
    model = LSSVC(kernel="linear", fit_intercept=fit_intercept).fit(X, [0, 1, 0, 1, 0, 1])
    decisions, bounds = model.decision_function(X, return_bounds=True)
    assert (np.abs(decisions) <= bounds).all()


COLUMNS = ["east", "unused", "north"]
OPTIONS: dict[type, dict[str, Any]] = {LSSVC: {"tol": 1e-8}, FixedSizeLSSVC: {"pool": 40, "folds": 3, "search": "none"}}


def test_labels_and_certificates_come_from_one_task_a_chunk(labelled: Labelled, exact: LSSVC) -> None:
    X = da.from_array(labelled.X_new, chunks=(20, 3))
    label, certified = exact.predict(X, return_certified=True)
    bounds = exact.decision_function(X, return_bounds=True)[1]
    assert certified.dtype == bool
    known = exact.predict(labelled.X_new, return_certified=True)
    for found, expected in zip(dask.compute(label, certified), known, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(bounds.compute(), exact.decision_function(labelled.X_new, return_bounds=True)[1])
    graph = dict(collections_to_expr((label, certified)).optimize().__dask_graph__())
    assert len([key for key in graph if "dkgp-predict" in str(key)]) <= 2


def test_a_stores_labels_are_matched_by_name(labelled: Labelled, exact: LSSVC, tmp_path: Path) -> None:
    names = ("cat", "bee", "ape")
    codes = np.array([names.index(name) for name in labelled.y_new])
    place = tmp_path / "new.zarr"
    dataset_from_arrays(place, labelled.X_new, codes, target_names=["kind"], classes=names, chunk_rows=25)
    assert exact.score(place) == exact.score(labelled.X_new, labelled.y_new)
    assert isinstance(exact.predict(place).data, da.Array)
    unseen = tmp_path / "unseen.zarr"
    dataset_from_arrays(unseen, labelled.X_new, codes, target_names=["kind"], classes=("dog", "bee", "ape"))
    with pytest.raises(InputError, match="'dog'"):
        exact.score(unseen)


def test_models_of_the_command_line_open(labelled: Labelled, exact: LSSVC, tmp_path: Path) -> None:
    """Without what an estimator adds, labels are the classes' names."""
    exact.save(tmp_path / "model.zarr")
    record: ClassifierRecord = open_classifier(tmp_path / "model.zarr")
    bare = replace(record, summary={name: value for name, value in record.summary.items() if name != "estimator"})
    save_classifier(tmp_path / "bare.zarr", bare, dataset=exact._fitted._training_set())
    loaded = LSSVC.load(tmp_path / "bare.zarr")
    np.testing.assert_array_equal(loaded.predict(labelled.X_new), exact.predict(labelled.X_new))
    assert loaded.kernel == KERNEL


@pytest.mark.parametrize("estimator", [LSSVC, FixedSizeLSSVC])
def test_a_stores_own_weights(labelled: Labelled, tmp_path: Path, rng: np.random.Generator, estimator: type) -> None:
    """Weights of a store act like passed ones, and passed ones replace them."""
    classes, codes = np.unique(labelled.y, return_inverse=True)
    weights = rng.uniform(0.1, 3.0, len(codes))
    names = [str(name) for name in classes]
    with DatasetWriter.create(tmp_path / "w.zarr", COLUMNS, ["kind"], classes=names, weight_name="w") as writer:
        writer.append(labelled.X, codes, weights)
        writer.finish()

    def decisions(*given: Any, **weighed: Any) -> np.ndarray:
        fitted = estimator(kernel=KERNEL, noise_variance=NOISE, **OPTIONS[estimator]).fit(*given, **weighed)
        return np.asarray(fitted.decision_function(np.asarray(labelled.X_new)))

    store, names_given = str(tmp_path / "w.zarr"), np.array(names)[codes]
    own = decisions(store)
    np.testing.assert_array_equal(own, decisions(labelled.X, names_given, sample_weight=weights))
    even = decisions(store, sample_weight=np.ones(len(codes)))
    np.testing.assert_array_equal(even, decisions(labelled.X, names_given, sample_weight=np.ones(len(codes))))
    assert np.abs(own - even).max() > 1e-3
