"""scikit-learn's own checks of the sparse estimator, and its place in scikit-learn's tools."""

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

from dkgp import SparseGPRegressor
from tests.estimators.conftest import KERNEL, NOISE, Problem
from tests.estimators.test_check_estimator import name_of

CHECKS = list(estimator_checks_generator(SparseGPRegressor()))
# By the targets, with both of a choice's factors.
CHECKS += list(estimator_checks_generator(SparseGPRegressor(method="sggp", gap=0.05)))


@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=[f"{index}-{name_of(check)}" for index, (_, check) in enumerate(CHECKS)]
)
def test_check_estimator(estimator: SparseGPRegressor, check: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_pipeline_and_grid_search_over_the_basis(problem: Problem) -> None:
    X, y = problem.X[:120], problem.y[:120]
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=True), SparseGPRegressor(optimizer=None))
    assert pipeline.fit(X, y).score(X, y) > 0.8
    mean, std = pipeline.predict(X, return_std=True)
    assert mean.shape == std.shape == (120,)
    search = GridSearchCV(
        SparseGPRegressor(KERNEL, noise_variance=NOISE),
        {"basis_size": [2, 50], "method": ["vfe", "fitc"], "basis": ["uniform", None]},
        cv=3,
    )
    assert search.fit(X, y).best_params_["basis_size"] == 50
    assert cross_val_score(search.best_estimator_, X, y, cv=3).min() > 0.5
    # What goes with samples is split as they are.
    GridSearchCV(SparseGPRegressor(KERNEL, noise_variance=NOISE), {"basis_size": [20]}, cv=3).fit(
        X, y, relative_noise=np.linspace(0.5, 2.0, 120)
    )


def test_clone_and_pickle(problem: Problem, sparse: SparseGPRegressor) -> None:
    copy = clone(sparse)
    assert copy.get_params() == sparse.get_params()
    assert not hasattr(copy, "kernel_")
    again = pickle.loads(pickle.dumps(sparse))
    expected = sparse.predict(problem.X_new, return_std=True)
    for found, known in zip(again.predict(problem.X_new, return_std=True), expected, strict=True):
        np.testing.assert_array_equal(found, known)
    # Basis, weights, two triangles, and the certificate: nothing of the training set.
    assert len(pickle.dumps(sparse)) < 8 * (2 * 60**2 + 60 * 4) + 10_000


def test_a_pickle_predicts_elsewhere(problem: Problem, sparse: SparseGPRegressor) -> None:
    code = (
        "import pickle, sys\n"
        "model, X = pickle.load(sys.stdin.buffer)\n"
        "pickle.dump(model.predict(X, return_std=True, return_bounds=True), sys.stdout.buffer)\n"
    )
    sent = pickle.dumps((sparse, problem.X_new))
    answer = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True).stdout
    known = sparse.predict(problem.X_new, return_std=True, return_bounds=True)
    mean, std, bounds = pickle.loads(answer)
    np.testing.assert_array_equal(mean, known[0])
    np.testing.assert_array_equal(std, known[1])
    np.testing.assert_array_equal(bounds, known[2])


def test_data_frames_keep_their_names(problem: Problem) -> None:
    names = ["east", "unused", "north", "depth"]
    frame, target = pd.DataFrame(problem.X, columns=names), pd.Series(problem.y, name="load")
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=30).fit(frame, target)
    assert model.feature_names_in_.tolist() == names
    assert model.target_names_ == ("load",)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[names[::-1]])


def test_importing_it_needs_scikit_learn() -> None:
    code = (
        "import sys, dkgp\n"
        "sys.modules['sklearn'] = sys.modules['sklearn.base'] = None\n"
        "try:\n    dkgp.SparseGPRegressor\n"
        "except ImportError as error:\n    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'dkgp[sklearn]'" in answer
