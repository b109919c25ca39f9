"""Estimators at pandas and dask DataFrames: columns by name, results with their index."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingClassifier, StackingRegressor, VotingClassifier, VotingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.preprocessing import StandardScaler

from dkgp import (
    LSSVC,
    ConjugateDirectionsPursuit,
    FixedSizeLSSVC,
    GPRegressor,
    KernelLogisticClassifier,
    SparseGPRegressor,
)
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from tests.estimators.conftest import KERNEL, NOISE, Problem, make_problem

SMALL = SquaredExponential((0.8, 0.3, 0.05))
NAMES = ["east", "unused", "north", "depth"]


@pytest.fixture(scope="module")
def small() -> Problem:
    return make_problem(60, 20, seed=4)


def frame_of(X: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES, index=pd.date_range("2024-01-01", periods=len(X)))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_all_that_is_asked_for_has_the_index(problem: Problem) -> None:
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(frame_of(problem.X), pd.Series(problem.y, name="price"))
    new = frame_of(problem.X_new)
    asked = {"return_std": True, "return_var": True, "return_bounds": True}
    mean, std, variance, bounds = model.predict(new, **asked)
    plain = model.predict(problem.X_new, **asked)
    for series, values, name in zip(
        (mean, std, variance, *bounds),
        (*plain[:3], *plain[3]),
        ("", "_std", "_variance", "_mean_error", "_variance_lower", "_variance_upper"),
        strict=True,
    ):
        assert isinstance(series, pd.Series)
        assert series.name == f"price{name}"
        assert series.index.equals(new.index)
        np.testing.assert_allclose(series, values, rtol=1e-9)
    # They go into one table as they are.
    table = new.assign(price=mean, std=std)
    np.testing.assert_array_equal(table["std"], std)
    assert (mean + std).loc["2024-01-03"] == mean.iloc[2] + std.iloc[2]
    assert isinstance(model.predict(problem.X_new), np.ndarray)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(new.rename(columns={"east": "west"}))


def test_several_targets_are_a_frame(small: Problem) -> None:
    targets = pd.DataFrame({"a": small.y, "b": -small.y, "c": small.y**2})
    new = frame_of(small.X_new)
    for model in (GPRegressor(SMALL, noise_variance=NOISE), ConjugateDirectionsPursuit(3)):
        predicted = model.fit(frame_of(small.X), targets).predict(new)
        assert isinstance(predicted, pd.DataFrame)
        assert list(predicted) == ["a", "b", "c"]
        assert predicted.index.equals(new.index)
        np.testing.assert_allclose(predicted["b"], -predicted["a"], rtol=1e-6)
    mean, std = GPRegressor(SMALL, noise_variance=NOISE).fit(small.X, targets).predict(new.to_numpy(), return_std=True)
    assert isinstance(mean, np.ndarray)
    assert std.shape == (20, 3)


def test_names_that_the_training_set_had_not_are_the_default_ones(small: Problem) -> None:
    model = GPRegressor(SMALL, noise_variance=NOISE).fit(frame_of(small.X), small.y)
    assert model.predict(frame_of(small.X_new)).name == "y"


def test_labels_and_certificates_have_the_index(small: Problem) -> None:
    labels = pd.Series(np.digitize(small.y, np.quantile(small.y, [0.3, 0.6])), name="grade")
    model = LSSVC(SMALL, noise_variance=0.1).fit(frame_of(small.X), labels)
    new = frame_of(small.X_new)
    decisions, bounds = model.decision_function(new, return_bounds=True)
    predicted, certified = model.predict(new, return_certified=True)
    # What scikit-learn's calibration goes over column by column stays an array.
    assert (type(decisions), type(bounds)) == (np.ndarray, np.ndarray)
    assert (predicted.name, certified.name) == ("grade", "grade_certified")
    assert certified.dtype == bool
    np.testing.assert_array_equal(predicted, decisions.argmax(axis=1))
    np.testing.assert_allclose(np.exp(model.predict_log_proba(new)[1]), model.predict_proba(new)[1], rtol=1e-14)
    assert model.score(new, predicted) == 1.0


def test_what_is_returned_is_pandas_own_in_all_else(small: Problem) -> None:
    labels = pd.Series(small.y > np.median(small.y), name="dear")
    chances = (
        FixedSizeLSSVC(SMALL, noise_variance=0.1, pool=30, folds=3, search="none")
        .fit(frame_of(small.X), labels)
        .predict_proba(frame_of(small.X_new))
    )
    assert chances[True].tolist() == chances[:, 1].tolist() == chances.to_numpy()[:, 1].tolist()
    assert chances.loc["2024-01-05", True] == chances.iloc[4, 1]
    for copied in (copy.deepcopy(chances), pickle.loads(pickle.dumps(chances))):
        assert chances.equals(copied)
    column = GPRegressor(SMALL, noise_variance=NOISE).fit(frame_of(small.X), small.y).predict(frame_of(small.X_new))
    assert column.reshape(-1, 1).shape == column.reshape((-1, 1)).shape == (20, 1)
    assert column.equals(pickle.loads(pickle.dumps(column)))


@pytest.mark.parametrize(
    "around",
    [
        lambda model: TransformedTargetRegressor(model, transformer=StandardScaler()),
        lambda model: TransformedTargetRegressor(model, func=np.log1p, inverse_func=np.expm1, check_inverse=False),
        lambda model: StackingRegressor([("gp", model), ("line", LinearRegression())], cv=2),
        lambda model: VotingRegressor([("gp", model), ("line", LinearRegression())]),
        lambda model: GridSearchCV(model, {"noise_variance": [0.01, 0.1]}, cv=2),
    ],
)
def test_regressors_around_take_frames_as_they_take_arrays(small: Problem, around: Any) -> None:
    y = small.y - small.y.min()
    model = around(GPRegressor(SMALL, noise_variance=NOISE))
    on_frames = model.fit(frame_of(small.X), y).predict(frame_of(small.X_new))
    on_arrays = around(GPRegressor(SMALL, noise_variance=NOISE)).fit(small.X, y).predict(small.X_new)
    np.testing.assert_allclose(on_frames, on_arrays, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_classifiers_around_take_frames_as_they_take_arrays(small: Problem, classes: int) -> None:
    y = np.digitize(small.y, np.quantile(small.y, np.arange(1, classes) / classes))
    model = FixedSizeLSSVC(SMALL, noise_variance=0.1, pool=30, folds=3, search="none")
    frame, new = frame_of(small.X), frame_of(small.X_new)
    for around in (
        CalibratedClassifierCV(model, cv=2, ensemble=False),
        StackingClassifier([("svm", model), ("line", LogisticRegression())], cv=2),
        VotingClassifier([("svm", model), ("line", LogisticRegression())], voting="soft"),
    ):
        on_frames = around.fit(frame, y).predict_proba(new)
        np.testing.assert_allclose(on_frames, around.fit(small.X, y).predict_proba(small.X_new), atol=1e-6)
    for score in ("roc_auc_ovr" if classes > 2 else "roc_auc", "neg_log_loss", "accuracy"):
        on_frames = cross_val_score(model, frame, y, cv=2, scoring=score)
        np.testing.assert_allclose(on_frames, cross_val_score(model, small.X, y, cv=2, scoring=score), atol=1e-6)
    chances = cross_val_predict(model, frame, y, cv=2, method="predict_proba")
    assert chances.shape == (60, classes)


def table_of(X: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES, index=np.arange(len(X)) * 3).assign(load=y)


@pytest.fixture(scope="module")
def frame(problem: Problem) -> dd.DataFrame:
    return dd.from_pandas(table_of(problem.X, problem.y), npartitions=4)


@pytest.fixture(scope="module")
def new(problem: Problem) -> dd.DataFrame:
    return dd.from_pandas(table_of(problem.X_new, problem.y_new), npartitions=3)


@pytest.fixture(scope="module")
def model(frame: dd.DataFrame) -> GPRegressor:
    return GPRegressor(KERNEL, noise_variance=NOISE).fit(frame[NAMES], frame["load"])


def test_it_is_the_model_of_the_arrays(
    model: GPRegressor, new: dd.DataFrame, problem: Problem, fitted: GPRegressor, blocks: list[int]
) -> None:
    assert model.feature_names_in_.tolist() == NAMES
    assert model.target_names_ == ("load",)
    # In another order, beside a column that the model does not know.
    mean, std, bounds = model.predict(new[["load", *NAMES[::-1]]], return_std=True, return_bounds=True)
    assert isinstance(mean, dd.Series)
    assert blocks == []
    mean, std, error = dask.compute(mean, std, bounds.mean_error)
    assert sorted(blocks) == [20, 20, 20], "one task for each partition computes all"
    known, known_std = fitted.predict(problem.X_new, return_std=True)
    np.testing.assert_allclose(mean, known, atol=1e-6)
    np.testing.assert_allclose(std, known_std, rtol=0.02)
    assert (mean.name, std.name, error.name) == ("load", "load_std", "load_mean_error")
    assert mean.index.tolist() == new.index.compute().tolist()
    assert model.score(new[NAMES], new["load"]) == pytest.approx(fitted.score(problem.X_new, problem.y_new), abs=1e-6)


def test_joining_predictions_to_their_frame(model: GPRegressor, new: dd.DataFrame) -> None:
    joined = new.assign(predicted=model.predict(new[NAMES])).compute()
    np.testing.assert_array_equal(joined["predicted"], model.predict(joined[NAMES]))


@pytest.mark.covering
@pytest.mark.parametrize("form", ["series", "array", "pandas"])
@pytest.mark.parametrize("name", ["sample_weight", "sample_noise"])
def test_weights_and_noise_may_be_lazy(problem: Problem, frame: dd.DataFrame, form: str, name: str) -> None:
    values = 1.0 + np.arange(len(problem.X)) % 3
    pandas = pd.Series(values, index=np.arange(len(values)) * 3)
    given = {"series": dd.from_pandas(pandas, npartitions=4), "array": da.from_array(values, 50), "pandas": pandas}[
        form
    ]
    lazily = GPRegressor(KERNEL, noise_variance=NOISE).fit(frame[NAMES], frame["load"], **{name: given})
    known = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y, **{name: values})
    np.testing.assert_allclose(lazily.predict(problem.X_new), known.predict(problem.X_new), atol=1e-5)
    unweighted = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y)
    assert np.abs(known.predict(problem.X_new) - unweighted.predict(problem.X_new)).max() > 0.01


def test_several_targets_come_as_a_frame(frame: dd.DataFrame, new: dd.DataFrame) -> None:
    both = frame.assign(twice=2.0 * frame["load"])[["load", "twice"]]
    mean = GPRegressor(KERNEL, noise_variance=NOISE).fit(frame[NAMES], both).predict(new[NAMES])
    assert isinstance(mean, dd.DataFrame)
    assert list(mean.columns) == ["load", "twice"]
    computed = mean.compute()
    np.testing.assert_allclose(computed["twice"], 2.0 * computed["load"], rtol=1e-6)


def test_classifiers_sparse_models_and_pursuits(frame: dd.DataFrame, new: dd.DataFrame) -> None:
    kinds = (frame["load"] > 70.0).astype(int).replace({0: "low", 1: "high"})
    classifier = KernelLogisticClassifier(KERNEL).fit(frame[NAMES], kinds)
    labels, probabilities = classifier.predict(new[NAMES]), classifier.predict_proba(new[NAMES])
    assert isinstance(labels, dd.Series)
    assert list(probabilities.columns) == ["high", "low"]
    expected = classifier.predict(new[NAMES].compute())
    assert labels.compute().tolist() == expected.tolist()
    assert set(expected) == {"high", "low"}
    sparse = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=50).fit(frame[NAMES], frame["load"])
    assert isinstance(sparse.predict(new[NAMES]), dd.Series)
    pursuit = ConjugateDirectionsPursuit(n_nonzero_coefs=2).fit(frame[NAMES], frame["load"])
    np.testing.assert_allclose(pursuit.predict(new[NAMES]).compute(), pursuit.predict(new[NAMES].compute()), rtol=1e-9)


def test_what_has_no_place_is_refused(model: GPRegressor, frame: dd.DataFrame, new: dd.DataFrame) -> None:
    with pytest.raises(InputError, match=r"no column 'north' in X; it has 'east', 'depth'"):
        model.predict(new[["east", "depth"]])
    with pytest.raises(InputError, match=r"X is a dask Series, 'east'; expected a DataFrame"):
        model.predict(new["east"])
    texts = frame.assign(kind="red")
    with pytest.raises(InputError, match=r"column 'kind' of X is of type .*; expected numbers"):
        GPRegressor().fit(texts[["east", "kind"]], texts["load"])
    weights = (frame["east"] > 100.0).astype(float)
    with pytest.raises(InputError, match="leave such samples out of X"):
        GPRegressor(KERNEL, noise_variance=NOISE).fit(frame[NAMES], frame["load"], sample_weight=weights)


# Each gives the rows of a frame in another order, in other partitions, or only some of them.
OPERATIONS: dict[str, Callable[[dd.DataFrame], dd.DataFrame]] = {
    "repartition": lambda frame: frame.repartition(npartitions=3),
    "concat": lambda frame: dd.concat([frame, frame]),
    "loc": lambda frame: frame.loc[30:120],
    "filter": lambda frame: frame[frame["depth"] > 5.0],
    "shuffle": lambda frame: frame.shuffle("key"),
    "set_index": lambda frame: frame.set_index("key"),
    "sort_values": lambda frame: frame.sort_values("north"),
    "merge": lambda frame: frame.merge(frame[["key"]], on="key"),
    "persist": lambda frame: frame.shuffle("key").persist(),
}


# Those that dask cannot optimise away; the others are long.
QUICK = ("repartition", "loc", "merge")


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in OPERATIONS],
)
def reshaped(request: pytest.FixtureRequest, problem: Problem) -> dd.DataFrame:
    pandas = table_of(problem.X, problem.y).assign(key=np.random.default_rng(1).permutation(len(problem.X)))
    return OPERATIONS[request.param](dd.from_pandas(pandas, npartitions=2))


@pytest.fixture(scope="module")
def classifier(problem: Problem) -> KernelLogisticClassifier:
    labels = np.where(problem.y > 70.0, "high", "low")
    return KernelLogisticClassifier(KERNEL).fit(pd.DataFrame(problem.X, columns=NAMES), labels)


def test_predictions_belong_to_their_rows(
    model: GPRegressor, classifier: KernelLogisticClassifier, reshaped: dd.DataFrame
) -> None:
    mean, std = model.predict(reshaped[NAMES], return_std=True)
    labels, probabilities = classifier.predict(reshaped[NAMES]), classifier.predict_proba(reshaped[NAMES])
    joined = reshaped.assign(mean=mean, std=std, label=labels, high=probabilities["high"]).compute()
    assert len(joined) >= 30
    expected_mean, expected_std = model.predict(joined[NAMES], return_std=True)
    np.testing.assert_array_equal(joined["mean"], expected_mean)
    np.testing.assert_allclose(joined["std"], expected_std, rtol=1e-12)
    assert joined["label"].tolist() == classifier.predict(joined[NAMES]).tolist()
    np.testing.assert_allclose(joined["high"], classifier.predict_proba(joined[NAMES])["high"], rtol=1e-12)
    alone, index = dask.compute(mean, reshaped.index)
    assert sorted(alone.index) == sorted(index)


@pytest.mark.parametrize(
    "reshaped",
    ["merge", *(pytest.param(name, marks=pytest.mark.long) for name in ("repartition", "shuffle"))],
    indirect=True,
)
def test_inputs_targets_and_weights_keep_their_rows_together(reshaped: dd.DataFrame) -> None:
    joined = reshaped.compute()
    weights = 1.0 + np.abs(joined["north"])
    known = GPRegressor(KERNEL, noise_variance=NOISE).fit(joined[NAMES], joined["load"], sample_weight=weights)
    lazily = GPRegressor(KERNEL, noise_variance=NOISE)
    lazily.fit(reshaped[NAMES], reshaped["load"], sample_weight=1.0 + reshaped["north"].abs())
    np.testing.assert_allclose(lazily.predict(joined[NAMES]), known.predict(joined[NAMES]), atol=1e-3)
    # Rows in another order give the targets a score near or below zero.
    expected = known.score(joined[NAMES], joined["load"])
    assert lazily.score(reshaped[NAMES], reshaped["load"]) == pytest.approx(expected, abs=1e-4)
    lazily.update(reshaped[NAMES], reshaped["load"], sample_weight=1.0 + reshaped["north"].abs())
    assert lazily.score(joined[NAMES], joined["load"]) > expected - 0.01


@pytest.mark.long
@pytest.mark.parametrize("reshaped", ["repartition", "shuffle", "merge"], indirect=True)
def test_pursuits_and_labels_keep_their_rows_together(reshaped: dd.DataFrame) -> None:
    joined = reshaped.compute()
    pursuit = ConjugateDirectionsPursuit(n_nonzero_coefs=2)
    expected = pursuit.fit(joined[NAMES], joined["load"]).coef_
    np.testing.assert_allclose(pursuit.fit(reshaped[NAMES], reshaped["load"]).coef_, expected, rtol=1e-6)
    predicted = reshaped.assign(predicted=pursuit.predict(reshaped[NAMES])).compute()
    np.testing.assert_allclose(predicted["predicted"], pursuit.predict(predicted[NAMES].to_numpy()), rtol=1e-9)
    kinds = (reshaped["load"] > 70.0).astype(int)
    classifier = KernelLogisticClassifier(KERNEL).fit(reshaped[NAMES], kinds)
    assert classifier.score(joined[NAMES], (joined["load"] > 70.0).astype(int)) > 0.9
    assert classifier.score(reshaped[NAMES], kinds) > 0.9
