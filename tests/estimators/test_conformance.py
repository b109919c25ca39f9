"""Conformance of estimators: a copied, stored, pickled or distributed estimator answers the same."""

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

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
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
from dkgp.errors import ClusterError, InputError, OutputExistsError, StoreError
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

NAMES = ["east", "unused", "north", "depth"]
# Batches of variances are cut by the chunks, and their intervals are as wide as asked for.
BY_BATCHES = ("GP", "GP classifier")

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


def means(model: Any, X: Any) -> np.ndarray:
    return np.asarray((model.decision_function if is_classifier(model) else model.predict)(X))


def table_of(X: np.ndarray, y: np.ndarray | None = None) -> xr.Dataset:
    """A table with coordinates; the second feature is constant."""
    variables = {name: ("time", X[:, column]) for column, name in enumerate(NAMES[: X.shape[1]])}
    coordinates = {"time": np.arange(len(X)) * 10, "site": ("time", np.arange(len(X)) % 3)}
    table = xr.Dataset(variables, coords=coordinates)
    return table if y is None else table.assign(load=("time", y))


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


@pytest.mark.spread(4)
@every_kept
def test_a_store(name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any], tmp_path: Path) -> None:
    model, X_new = fitted(name), samples(name).X_new
    known, kind = answers(model, X_new), type(fitted(name))
    model.save(tmp_path / "model.zarr")
    with pytest.raises(OutputExistsError):
        model.save(tmp_path / "model.zarr")
    with pytest.raises(OutputExistsError):  # of another kind
        fitted("sparse GP" if name == "GP" else "GP").save(tmp_path / "model.zarr", overwrite=True)
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


@pytest.mark.spread(4)
@every
@pytest.mark.filterwarnings("ignore:The feature")
def test_data_frames_keep_their_names(name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]) -> None:
    X, y, X_new = samples(name).X, samples(name).y, samples(name).X_new
    names = NAMES[: X.shape[1]]
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


@pytest.mark.spread(3)
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
    lazy, known = model.predict(da.from_array(X_new, chunks=((20, 25, 15), 2))), fitted(name).predict(X_new)
    sent = pickle.dumps(lazy)
    del model
    gc.collect()
    np.testing.assert_array_equal(lazy.compute(), known)
    np.testing.assert_array_equal(pickle.loads(sent).compute(), known)
    del lazy
    gc.collect()
    with pytest.raises(ClusterError, match="store="):
        pickle.loads(sent).compute()


@every
def test_dask_out_is_what_arrays_give(name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]) -> None:
    X_new = samples(name).X_new
    lazily = answers(fitted(name), da.from_array(X_new, chunks=((20, 25, 15), 2)))
    assert all(isinstance(part, da.Array) and part.chunks[0] == (20, 25, 15) for part in lazily)
    first, *others = zip(dask.compute(*lazily), answers(fitted(name), X_new), lazily, strict=True)
    if name == "pursuit":  # whose sums are BLAS'
        np.testing.assert_allclose(*first[:2], rtol=1e-12)
    else:
        np.testing.assert_array_equal(*first[:2])
    assert all(found.dtype == known.dtype == lazy.dtype for found, known, lazy in (first, *others))
    close = {"rtol": 0.06, "atol": 1e-3} if name in BY_BATCHES else {"rtol": 1e-9}
    for found, known, _ in others:
        np.testing.assert_allclose(found, known, **({"rtol": 0.0} if name in ("LS-SVM", "fixed-size") else close))
    if name == "GP":
        (lower, upper), (low, high) = dask.compute(*lazily[3:]), answers(fitted(name), X_new)[3:]
        assert (lower <= high).all()
        assert (upper >= low).all()


@pytest.mark.spread(4)
@every
def test_coordinates_are_kept_and_features_matched_by_name(
    name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]
) -> None:
    one = samples(name)
    model, table = clone(ESTIMATORS[name]).fit(table_of(one.X, one.y), "load"), table_of(one.X_new)
    names = NAMES[: one.X.shape[1]]
    assert model.feature_names_in_.tolist() == names
    known = fitted(name).predict(one.X_new)
    # A constant feature may be missing where it is of no account.
    shuffled = table[[each for each in reversed(names) if each != "unused" or name not in KEPT]]
    matrix = table[names[::-1]].to_dataarray("feature").transpose("time", "feature")
    chunked = model.predict(table.chunk(time=25))
    assert isinstance(chunked.data, da.Array)
    assert chunked.data.chunks == ((25, 25, 10),)
    found = model.predict(shuffled.assign(other=("time", one.X_new[:, 0])))
    assert (found.name, found.dims) == ("load", ("time",))
    xr.testing.assert_identical(found.coords.to_dataset(), table.coords.to_dataset())
    for predicted in (found, chunked, model.predict(matrix)):
        if is_classifier(model):
            np.testing.assert_array_equal(predicted.values, known)
        else:
            np.testing.assert_allclose(predicted.values, known, rtol=1e-9)
    assert model.score(table_of(one.X_new, one.y_new), "load") == pytest.approx(
        fitted(name).score(one.X_new, one.y_new), rel=1e-9
    )
    if is_classifier(model):
        chances = model.predict_proba(shuffled)
        assert (chances.name, chances.dims) == ("load_probability", ("time", "class_name"))
        assert chances.class_name.values.tolist() == list(model.classes_)
        np.testing.assert_allclose(chances.values, fitted(name).predict_proba(one.X_new), rtol=1e-9)
        if name == "LS-SVM":
            assert model.decision_function(table, return_bounds=True)[1].name == "load_decision_error_bound"
    elif name in KEPT:
        std = model.predict(shuffled, return_std=True)[1]
        assert (std.name, std.dims) == ("load_std", ("time",))


@pytest.mark.spread(4)
@every_kept
def test_training_on_lazy_data_or_a_store_is_training_on_arrays(
    name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any], tmp_path: Path
) -> None:
    one, estimator = samples(name), clone(ESTIMATORS[name])
    X, y = da.from_array(one.X, chunks=(90, 3)), da.from_array(one.y, chunks=70)
    model = clone(estimator).set_params(store=str(tmp_path / "mine")).fit(X, y)
    np.testing.assert_allclose(means(model, one.X_new), means(fitted(name), one.X_new), atol=1e-6)
    (store,) = (tmp_path / "mine").iterdir()
    again = clone(estimator).fit(store)
    np.testing.assert_array_equal(means(again, one.X_new), means(model, one.X_new))
    of_store = again.predict(store)
    assert isinstance(of_store.data, da.Array)
    assert of_store.dims == ("sample",)
    np.testing.assert_array_equal(of_store.values, again.predict(one.X))
    assert again.score(store) > 0.7
    if is_classifier(model):
        assert again.classes_.tolist() == model.classes_.tolist() == np.unique(one.y).tolist()
    with pytest.raises(InputError, match="brings its own targets"):
        clone(estimator).fit(store, one.y)
    with pytest.raises(InputError, match="as many"):
        clone(estimator).fit(X, y[:-5])
    with pytest.raises(InputError, match="expected"):
        model.predict(da.zeros((10, 2), chunks=5) if X.shape[1] > 3 else da.zeros((10, 7), chunks=5))


@every_kept
def test_rows_do_not_depend_on_their_neighbours(
    name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any]
) -> None:
    model, X_new = fitted(name), samples(name).X_new
    together = model.predict(X_new)
    np.testing.assert_array_equal([model.predict(row[None])[0] for row in X_new[:7]], together[:7])


@pytest.mark.parametrize(
    "name", [name if name == "GP" else pytest.param(name, marks=pytest.mark.slow) for name in KEPT]
)
def test_workers_in_other_processes_get_what_they_need_from_stores(
    name: str, samples: Callable[[str], Any], fitted: Callable[[str], Any], outer_client: Client, tmp_path: Path
) -> None:
    one = samples(name)
    model = clone(ESTIMATORS[name]).set_params(client=outer_client, store=str(tmp_path)).fit(one.X, one.y)
    assert len(list(tmp_path.iterdir())) == 1  # the training set
    np.testing.assert_allclose(means(model, one.X_new), means(fitted(name), one.X_new), atol=1e-6)
    for found, known in zip(answers(model, one.X_new)[1:], answers(fitted(name), one.X_new)[1:], strict=True):
        np.testing.assert_allclose(found, known, rtol=0.06, atol=1e-6)
    lazy = model.predict(da.from_array(one.X_new, chunks=(30, one.X.shape[1])))
    np.testing.assert_array_equal(outer_client.compute(lazy).result(), model.predict(one.X_new))
    assert len(list(tmp_path.iterdir())) == 2  # and the model, which others have to read
    assert outer_client.status == "running"


@pytest.mark.spread(4)
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
