"""scikit-learn's own checks, and that estimators work in its tools."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import estimator_checks_generator

from dkgp import GPRegressor
from tests.estimators.conftest import KERNEL, NOISE, Problem

# Checks that are known to fail, each with its reason.
EXPECTED_FAILURES: dict[str, str] = {}
CHECKS = list(estimator_checks_generator(GPRegressor(), expected_failed_checks=EXPECTED_FAILURES, mark="xfail"))


def name_of(check: Callable[..., Any]) -> str:
    return str(getattr(check, "func", check).__name__)


@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=[f"{index}-{name_of(check)}" for index, (_, check) in enumerate(CHECKS)]
)
def test_check_estimator(estimator: GPRegressor, check: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_expected_failures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        listed = "".join(f"\n  {name}: {reason}" for name, reason in EXPECTED_FAILURES.items())
        print(f"\ncheck_estimator: {len(CHECKS)} checks, expected failures: {listed or 'none'}")
    assert set(EXPECTED_FAILURES) <= {name_of(check) for _, check in CHECKS}
    assert len(CHECKS) > 40


def test_pipeline_and_grid_search(problem: Problem) -> None:
    X, y = problem.X[:80], problem.y[:80]
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=True), GPRegressor(optimizer=None))
    assert pipeline.fit(X, y).score(X, y) > 0.8
    mean, std = pipeline.predict(X, return_std=True)
    assert mean.shape == std.shape == (80,)
    search = GridSearchCV(GPRegressor(KERNEL), {"noise_variance": [NOISE, 1e3]}, cv=3).fit(X, y)
    assert search.best_params_ == {"noise_variance": NOISE}
    assert cross_val_score(search.best_estimator_, X, y, cv=3).min() > 0.5


def test_clone_and_pickle(problem: Problem, fitted: GPRegressor) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "kernel_")
    again = pickle.loads(pickle.dumps(fitted))
    expected = fitted.predict(problem.X_new, return_std=True)
    for found, known in zip(again.predict(problem.X_new, return_std=True), expected, strict=True):
        np.testing.assert_array_equal(found, known)


def test_pickle_predicts_and_updates_elsewhere(problem: Problem, fitted: GPRegressor) -> None:
    code = (
        "import pickle, sys, numpy as np\n"
        "model, X, X_new, y_new = pickle.load(sys.stdin.buffer)\n"
        "before = model.predict(X)\n"
        "pickle.dump((before, model.update(X_new, y_new).predict(X)), sys.stdout.buffer)\n"
    )
    sent = pickle.dumps((fitted, problem.X_new, problem.X_new[:5], problem.y_new[:5]))
    answer = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True).stdout
    before, after = pickle.loads(answer)
    np.testing.assert_array_equal(before, fitted.predict(problem.X_new))
    assert np.abs(after[:5] - problem.y_new[:5]).mean() < np.abs(before[:5] - problem.y_new[:5]).mean()


def test_data_frames_keep_their_names(problem: Problem) -> None:
    names = ["east", "unused", "north", "depth"]
    frame, target = pd.DataFrame(problem.X, columns=names), pd.Series(problem.y, name="load")
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(frame, target)
    assert model.feature_names_in_.tolist() == names
    assert model.target_names_ == ("load",)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[names[::-1]])


def test_importing_dkgp_does_not_import_scikit_learn() -> None:
    code = (
        "import sys, dkgp\n"
        "assert 'sklearn' not in sys.modules and 'numba' not in sys.modules\n"
        "sys.modules['sklearn'] = sys.modules['sklearn.base'] = None\n"
        "try:\n    dkgp.GPRegressor\n"
        "except ImportError as error:\n    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'dkgp[sklearn]'" in answer
