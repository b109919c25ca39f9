"""A DataFrame in, Series and DataFrames with its index out; and scikit-learn's own estimators around such ones."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingClassifier, StackingRegressor, VotingClassifier, VotingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.preprocessing import StandardScaler

from dkgp import LSSVC, ConjugateDirectionsPursuit, FixedSizeLSSVC, GPRegressor
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
