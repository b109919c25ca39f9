"""What every estimator keeps to: copied, kept, sent elsewhere and handed workers, it answers the same."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask.base import collections_to_expr
from distributed import Client
from sklearn.base import BaseEstimator, clone, is_classifier

import dkgp.estimators
from dkgp import (
    LSSVC,
    ConjugateDirectionsPursuit,
    FixedSizeLSSVC,
    GPClassifier,
    GPRegressor,
    KernelLogisticClassifier,
    SparseGPRegressor,
)
from dkgp.errors import InputError, OutputExistsError, StoreError
from dkgp.kernels import SquaredExponential
from tests.estimators.classification.conftest import Labelled, make_labelled
from tests.estimators.conftest import Problem, make_problem

OF_THREE, OF_TWO = SquaredExponential((0.8, 0.3, 0.05)), SquaredExponential((0.8, 0.6), 4.0)
ESTIMATORS: dict[str, Any] = {
    "GP": GPRegressor(OF_THREE, noise_variance=0.01, variance_gap=0.05),
    "sparse GP with neighbours": SparseGPRegressor(
        OF_THREE, noise_variance=0.01, method="vif", basis_size=20, neighbours=30
    ),
    "sparse GP": SparseGPRegressor(OF_THREE, noise_variance=0.01, method="sggp", basis_size=50, per_round=5),
    "pursuit": ConjugateDirectionsPursuit(3),
    "LS-SVM": LSSVC(OF_TWO, noise_variance=0.1, tol=1e-8),
    "fixed-size": FixedSizeLSSVC(OF_TWO, noise_variance=0.1, pool=40, folds=3, search="none"),
    "logistic": KernelLogisticClassifier(OF_TWO),
    "logistic on a basis": KernelLogisticClassifier(OF_TWO, n_basis=40),
    "GP classifier": GPClassifier(OF_TWO),
    "GP classifier on a basis": GPClassifier(OF_TWO, n_basis=40),
    "GP classifier with neighbours": GPClassifier(OF_TWO, n_basis=20, neighbours=24),
}
KEPT = [name for name in ESTIMATORS if name != "pursuit"]  # it is a linear model, and has no store of its own
CLASSES = {type(estimator) for estimator in ESTIMATORS.values()}

every = pytest.mark.parametrize("name", ESTIMATORS)
every_kept = pytest.mark.parametrize("name", KEPT)


@pytest.fixture(scope="module")
def samples() -> Callable[[str], Problem | Labelled]:
    """Samples for the estimator of a name, a constant feature among them."""
    numbers, labels = make_problem(300, 60, seed=3), make_labelled(150, 60, seed=5)
    return lambda name: labels if is_classifier(ESTIMATORS[name]) else numbers


@pytest.fixture(scope="module")
def fitted(samples: Callable[[str], Any]) -> Callable[[str], Any]:
    """The estimator of a name, fitted once; not to be changed by a test."""
    models: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in models:
            models[name] = clone(ESTIMATORS[name]).fit(samples(name).X, samples(name).y)
        return models[name]

    return of


def answers(model: Any, X: np.ndarray) -> list[np.ndarray]:
    """All that a model says of samples."""
    if is_classifier(model):
        return [model.predict(X), model.decision_function(X), model.predict_proba(X)]
    if isinstance(model, ConjugateDirectionsPursuit):
        return [model.predict(X)]
    mean, std, bounds = model.predict(X, return_std=True, return_bounds=True)
    return [mean, std, *bounds]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


def test_every_estimator_is_tried() -> None:
    public = [getattr(dkgp.estimators, name) for name in dkgp.estimators.__all__]
    ours = {one for one in public if isinstance(one, type) and issubclass(one, BaseEstimator)}
    # Those that keep to scikit-learn's interface to the letter have neither stores nor clients.
    assert {one for one in ours if ".drop_in." not in one.__module__} == CLASSES


@every
def test_a_clone_and_a_pickle(name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]) -> None:
    model, X_new = fitted(name), samples(name).X_new
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not [attribute for attribute in vars(copy) if attribute.endswith("_")]
    assert_same(answers(pickle.loads(pickle.dumps(model)), X_new), answers(model, X_new))


@every_kept
def test_a_store(name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any], tmp_path: Path) -> None:
    model, X_new = fitted(name), samples(name).X_new
    known, kind = answers(model, X_new), type(fitted(name))
    model.save(tmp_path / "model.zarr")
    with pytest.raises(OutputExistsError):
        model.save(tmp_path / "model.zarr")
    model.save(tmp_path / "model.zarr", overwrite=True)
    loaded = kind.load(tmp_path / "model.zarr")
    assert loaded.get_params() == model.get_params()
    assert loaded.n_features_in_ == model.n_features_in_
    assert_same(answers(loaded, X_new), known)
    for other in CLASSES - {kind, ConjugateDirectionsPursuit}:
        with pytest.raises(
            StoreError, match=r"expected a (sparse model|model|classifier) store|Load it with " + kind.__name__
        ):
            other.load(tmp_path / "model.zarr")
    assert_same(answers(pickle.loads(pickle.dumps(loaded)), X_new), known)
    # It carries all that it needs to another place.
    loaded.save(tmp_path / "again.zarr")
    # Over the store that it reads, as it is and with more samples.
    for more in (None, X_new[:4])[: 2 if hasattr(loaded, "update") and getattr(loaded, "method", None) != "vif" else 1]:
        shown = answers(loaded if more is None else loaded.update(more, more[:, 0]), X_new)
        loaded.save(tmp_path / "model.zarr", overwrite=True)
        for saved in (loaded, kind.load(tmp_path / "model.zarr")):
            assert_same(answers(saved, X_new), shown)
    shutil.rmtree(tmp_path / "model.zarr")
    assert_same(answers(kind.load(tmp_path / "again.zarr"), X_new), known)
    assert clone(loaded).fit(samples(name).X, samples(name).y).kernel_ == model.kernel_
    with pytest.raises(StoreError):
        kind.load(tmp_path / "model.zarr")


def test_pickles_answer_and_are_updated_elsewhere(
    samples: Callable[[str], Any], fitted: Callable[[str], Any], outer_client: Client
) -> None:
    regression, labelled = samples("GP").X_new, samples("LS-SVM").X_new
    models = {name: fitted(name) for name in ESTIMATORS}

    def answered(sent: bytes) -> bytes:
        """By a process that knows nothing of the models but their pickles."""
        shown = {}
        for name, model in pickle.loads(sent).items():
            X, more = (labelled if hasattr(model, "classes_") else regression), regression[:5]
            shown[name] = [getattr(model, how)(X) for how in ("predict", "predict_proba") if hasattr(model, how)]
            if hasattr(model, "update") and getattr(model, "method", None) != "vif":
                shown[name].append(model.update(more, more[:, 0]).predict(X))
        return pickle.dumps(shown)

    assert outer_client.submit(os.getpid).result() != os.getpid()
    answer = outer_client.submit(answered, pickle.dumps(models)).result()
    shown = pickle.loads(answer)
    for name, model in pickle.loads(pickle.dumps(models)).items():
        X = samples(name).X_new
        known = [getattr(model, how)(X) for how in ("predict", "predict_proba") if hasattr(model, how)]
        if hasattr(model, "update") and getattr(model, "method", None) != "vif":
            before = known[0]
            known.append(model.update(regression[:5], regression[:5, 0]).predict(X))
            assert np.abs(known[1] - before).max() > 1e-3
        assert_same(shown[name], known)


@pytest.mark.long
def test_importing_dkgp_takes_no_scikit_learn_and_each_estimator_says_that_it_does() -> None:
    names = sorted(one.__name__ for one in CLASSES)
    code = f"""
import sys, dkgp
assert 'sklearn' not in sys.modules and 'numba' not in sys.modules
sys.modules['sklearn'] = sys.modules['sklearn.base'] = None
for name in {names!r}:
    try:
        getattr(dkgp, name)
    except ImportError as error:
        print(name, error)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    lines = [line for line in answer.splitlines() if "pip install 'dkgp[sklearn]'" in line]
    assert [line.split()[0] for line in lines] == names


@every
@pytest.mark.filterwarnings("ignore:The feature")
def test_data_frames_keep_their_names(name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]) -> None:
    X, y, X_new = samples(name).X, samples(name).y, samples(name).X_new
    names = ["east", "unused", "north", "depth"][: X.shape[1]]
    frame = pd.DataFrame(X, columns=names)
    target = pd.Series(y, name="load", dtype="category" if is_classifier(ESTIMATORS[name]) else None)
    model = clone(ESTIMATORS[name]).fit(frame, target)
    assert model.feature_names_in_.tolist() == names
    if name in KEPT:
        assert model.target_names_ == ("load",)
    new = pd.DataFrame(X_new, columns=names, index=[f"r{row}" for row in range(len(X_new))])
    predicted, plain = model.predict(new), fitted(name).predict(X_new)
    assert isinstance(predicted, pd.Series)
    assert (predicted.name, list(predicted.index)) == ("load", list(new.index))
    assert isinstance(plain, np.ndarray)
    if is_classifier(model):
        np.testing.assert_array_equal(predicted, plain)
        chances = model.predict_proba(new)
        assert isinstance(chances, pd.DataFrame)
        assert list(chances) == list(model.classes_)
        assert list(chances.index) == list(new.index)
        np.testing.assert_allclose(chances, fitted(name).predict_proba(X_new), rtol=1e-6, atol=1e-9)
    else:  # sums over a frame's columns are rounded in another order
        np.testing.assert_allclose(predicted, plain, rtol=1e-9)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(new[names[::-1]])


@every_kept
def test_a_graph_holds_no_model_but_keeps_it(
    name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]
) -> None:
    model, X_new = pickle.loads(pickle.dumps(fitted(name))), samples(name).X_new
    # A hundred tasks; inputs and coefficients have thousands of bytes.
    wide = da.zeros((200_000, X_new.shape[1]), chunks=(2_000, X_new.shape[1]))
    lazy = model.predict(wide)
    assert len(pickle.dumps(dict(collections_to_expr([lazy]).optimize().__dask_graph__()))) < 100 * 1_500
    assert model.predict(wide).name == lazy.name
    lazy = model.predict(da.from_array(X_new, chunks=((20, 25, 15), 2)))
    assert lazy.chunks == ((20, 25, 15),)
    del model
    gc.collect()
    np.testing.assert_array_equal(lazy.compute(), fitted(name).predict(X_new))


@every
def test_a_client_in_this_process(
    name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any], inner_client: Client
) -> None:
    X_new = samples(name).X_new
    model = clone(ESTIMATORS[name]).set_params(client=inner_client).fit(samples(name).X, samples(name).y)
    lazy = model.predict(da.from_array(X_new, chunks=(30, X_new.shape[1])))
    np.testing.assert_array_equal(inner_client.compute(lazy).result(), model.predict(X_new))
    if name == "GP":
        np.testing.assert_allclose(model.predict(X_new), fitted(name).predict(X_new), atol=1e-6)
    else:
        assert_same(answers(model, X_new), answers(fitted(name), X_new))
    if hasattr(model, "update") and getattr(model, "method", None) != "vif":
        model.update(X_new[:5], samples(name).y_new[:5])
        assert model.solution_["n"] == 305
    assert clone(model).client is inner_client
    assert pickle.loads(pickle.dumps(model)).client is None
    assert inner_client.status == "running"


@every
def test_text_is_refused_in_words(name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]) -> None:
    model = fitted(name)
    text = np.array([["a"] * model.n_features_in_, ["b"] * model.n_features_in_])
    with pytest.raises(InputError, match="X holds text where a number belongs.*Encode such columns first"):
        model.predict(text)


@pytest.mark.long
def test_one_estimator_is_loaded_without_what_the_others_take() -> None:
    code = (
        "import gc, sys; from dkgp import GPRegressor; assert gc.isenabled(); "
        "print([name for name in ('distributed', 'xarray', 'matplotlib', 'dkgp.estimators.classifiers', "
        "'dkgp.estimators.pursuit', 'dkgp.estimators.sparse') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'GPR'; it has LSSVC, "):
        dkgp.estimators.GPR  # noqa: B018
