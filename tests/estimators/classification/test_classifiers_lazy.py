"""Classifiers of dask arrays, xarray and stores: lazily, labels in the form in which they were given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.base import collections_to_expr
from distributed import Client

from dkgp import LSSVC, FixedSizeLSSVC
from dkgp.data import ClassifierRecord, DatasetWriter, dataset_from_arrays, open_classifier, save_classifier
from dkgp.errors import InputError
from tests.estimators.classification.conftest import KERNEL, NAMES, NOISE, Labelled

COLUMNS = ["east", "unused", "north"]
OPTIONS: dict[type, dict[str, Any]] = {LSSVC: {"tol": 1e-8}, FixedSizeLSSVC: {"pool": 40, "folds": 3, "search": "none"}}


def table_of(X: np.ndarray, y: np.ndarray | None = None) -> xr.Dataset:
    variables = {name: ("time", X[:, column]) for column, name in enumerate(COLUMNS)}
    table = xr.Dataset(variables, coords={"time": np.arange(len(X)) * 10})
    return table if y is None else table.assign(kind=("time", y))


@pytest.mark.parametrize("name", ["exact", "fixed"])
def test_dask_out_is_what_arrays_give(labelled: Labelled, name: str, request: pytest.FixtureRequest) -> None:
    fitted = request.getfixturevalue(name)
    X = da.from_array(labelled.X_new, chunks=((20, 15, 5), 2))
    label, decision, probability = (
        fitted.predict(X),
        fitted.decision_function(X),
        fitted.predict_proba(X),
    )
    assert all(isinstance(part, da.Array) for part in (label, decision, probability))
    assert label.dtype == fitted.classes_.dtype
    assert (label.chunks, decision.chunks) == (((20, 15, 5),), ((20, 15, 5), (3,)))
    np.testing.assert_array_equal(label.compute(), fitted.predict(labelled.X_new))
    np.testing.assert_array_equal(decision.compute(), fitted.decision_function(labelled.X_new))
    np.testing.assert_array_equal(probability.compute(), fitted.predict_proba(labelled.X_new))


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


@pytest.mark.parametrize("kind", [LSSVC, FixedSizeLSSVC])
def test_xarray_keeps_its_coordinates(labelled: Labelled, kind: Any) -> None:
    fitted = kind(KERNEL, noise_variance=NOISE, **OPTIONS[kind]).fit(table_of(labelled.X, labelled.y), "kind")
    assert fitted.feature_names_in_.tolist() == COLUMNS
    table = table_of(labelled.X_new)
    shuffled = table[["north", "unused", "east"]].assign(other=("time", labelled.X_new[:, 0]))
    label, probability = fitted.predict(shuffled), fitted.predict_proba(shuffled)
    assert (label.name, label.dims) == ("kind", ("time",))
    assert (probability.name, probability.dims) == ("kind_probability", ("time", "class_name"))
    assert probability.class_name.values.tolist() == list(NAMES)
    np.testing.assert_array_equal(label.time, table.time)
    by_array = kind(KERNEL, noise_variance=NOISE, **OPTIONS[kind]).fit(labelled.X, labelled.y)
    np.testing.assert_array_equal(label.values, by_array.predict(labelled.X_new))
    np.testing.assert_array_equal(probability.sel(class_name="bee"), by_array.predict_proba(labelled.X_new)[:, 1])
    chunked = fitted.predict(table.chunk(time=25))
    assert isinstance(chunked.data, da.Array)
    np.testing.assert_array_equal(chunked.values, label.values)
    assert fitted.score(table_of(labelled.X_new, labelled.y_new), "kind") == by_array.score(
        labelled.X_new, labelled.y_new
    )
    if kind is LSSVC:
        _, bounds = fitted.decision_function(table, return_bounds=True)
        assert bounds.name == "kind_decision_error_bound"


@pytest.mark.parametrize("kind", [LSSVC, FixedSizeLSSVC])
def test_training_on_lazy_data_is_training_on_arrays(labelled: Labelled, kind: Any, tmp_path: Path) -> None:
    options = {"noise_variance": NOISE, **OPTIONS[kind]}
    known = kind(KERNEL, **options).fit(labelled.X, labelled.y).decision_function(labelled.X_new)
    X, y = da.from_array(labelled.X, chunks=(60, 3)), da.from_array(labelled.y, chunks=70)
    model = kind(KERNEL, **options, store=str(tmp_path / "mine")).fit(X, y)
    np.testing.assert_allclose(model.decision_function(labelled.X_new), known, atol=1e-6)
    assert model.classes_.tolist() == list(NAMES)
    (store,) = (tmp_path / "mine").iterdir()
    again = kind(KERNEL, **options).fit(store)
    assert again.classes_.tolist() == list(NAMES)
    np.testing.assert_array_equal(again.decision_function(labelled.X_new), model.decision_function(labelled.X_new))
    with pytest.raises(InputError, match="brings its own targets"):
        kind().fit(store, labelled.y)
    with pytest.raises(InputError, match="as many"):
        kind(KERNEL, **options).fit(X, y[:-5])


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LSSVC, FixedSizeLSSVC])
def test_workers_elsewhere_read_the_model_from_a_store(
    labelled: Labelled, kind: Any, outer_client: Client, tmp_path: Path
) -> None:
    options = {"noise_variance": NOISE, **OPTIONS[kind]}
    known = kind(KERNEL, **options).fit(labelled.X, labelled.y)
    model = kind(KERNEL, **options, client=outer_client, store=str(tmp_path)).fit(labelled.X, labelled.y)
    np.testing.assert_allclose(model.predict_proba(labelled.X_new), known.predict_proba(labelled.X_new), atol=1e-9)
    lazy = model.predict(da.from_array(labelled.X_new, chunks=(20, 3)))
    np.testing.assert_array_equal(lazy.compute(scheduler=outer_client), known.predict(labelled.X_new))


def test_models_of_the_command_line_open(labelled: Labelled, exact: LSSVC, tmp_path: Path) -> None:
    """Without what an estimator adds, labels are the classes' names."""
    exact.save(tmp_path / "model.zarr")
    record: ClassifierRecord = open_classifier(tmp_path / "model.zarr")
    bare = replace(record, summary={name: value for name, value in record.summary.items() if name != "estimator"})
    save_classifier(tmp_path / "bare.zarr", bare, dataset=exact._fitted.dataset)
    loaded = LSSVC.load(tmp_path / "bare.zarr")
    np.testing.assert_array_equal(loaded.predict(labelled.X_new), exact.predict(labelled.X_new))
    assert loaded.kernel == KERNEL


@pytest.mark.parametrize("estimator", [LSSVC, FixedSizeLSSVC])
def test_a_stores_own_weights(labelled: Labelled, tmp_path: Path, rng: np.random.Generator, estimator: type) -> None:
    """Those of a store are as if they were given, and those that are given take their place."""
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
