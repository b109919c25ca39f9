"""The sparse estimator's model elsewhere: in stores, in lazy graphs, on workers, on the command line."""

from __future__ import annotations

import gc
import pickle
import shutil
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner
from distributed import Client

from dkgp import GPRegressor, SparseGPRegressor
from dkgp.cli import main
from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, open_dataset, open_prediction
from dkgp.errors import ClusterError, InputError, OutputExistsError
from dkgp.models import Hyperparameters, write_hyperparameters
from dkgp.models.prediction.sparse import SparsePredictor
from dkgp.models.sparse.stored import open_sparse, save_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.estimators.conftest import KERNEL, NOISE, Problem
from tests.estimators.test_lazy import NAMES, table_of

ALL: dict[str, Any] = {"return_std": True, "return_var": True, "return_bounds": True}


def assert_same(found: Any, known: Any) -> None:
    for mine, theirs in zip((*found[:3], *found[3]), (*known[:3], *known[3]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# ----------------------------------------------------------------------------------------------------------- in stores


def test_a_store_holds_the_certificate(problem: Problem, tmp_path: Path) -> None:
    relative = np.random.default_rng(0).uniform(0.5, 2.0, 300)
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, method="sggp", basis_size=50, per_round=5, store=None)
    model.fit(problem.X, problem.y, relative)
    model.save(tmp_path / "model.zarr")
    loaded = SparseGPRegressor.load(tmp_path / "model.zarr")
    assert_same(loaded.predict(problem.X_new, **ALL), model.predict(problem.X_new, **ALL))
    for name in ("basis_indices_", "basis_inputs_", "distance_", "gap_", "elbo_", "log_evidence_bounds_", "history_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert loaded.certificate_ == model.certificate_
    # Unlike an exact one it needs no training set, so that a pickle needs no store.
    shutil.rmtree(tmp_path / "model.zarr")
    assert_same(pickle.loads(pickle.dumps(loaded)).predict(problem.X_new, **ALL), model.predict(problem.X_new, **ALL))


def test_it_is_what_the_engine_saves_and_opens(problem: Problem, sparse: SparseGPRegressor, tmp_path: Path) -> None:
    sparse.save(tmp_path / "mine.zarr")
    found = SparsePredictor(open_sparse(tmp_path / "mine.zarr"), variance=True)(problem.X_new)
    mean, _, variance, bounds = sparse.predict(problem.X_new, **ALL)
    np.testing.assert_array_equal(found.mean[:, 0], mean)
    np.testing.assert_array_equal(found.variance[:, 0], variance)
    np.testing.assert_array_equal(found.variance_upper[:, 0], bounds.variance_upper)
    names = ["east", "unused", "north", "depth"]
    with pytest.warns(UserWarning, match="The feature"):
        dataset = dataset_from_arrays(
            tmp_path / "train.zarr", problem.X, problem.y, feature_names=names, target_names=["load"]
        )
    trained = train_sparse(dataset, KERNEL, NOISE, LocalExecutor(1), SparseSettings(basis_size=60))
    save_sparse(trained, tmp_path / "engine.zarr", dataset)
    shutil.rmtree(tmp_path / "train.zarr")
    loaded = SparseGPRegressor.load(tmp_path / "engine.zarr")
    assert loaded.target_names_ == ("load",)
    assert (loaded.method, loaded.basis_size, loaded.noise_variance) == ("vfe", 60, NOISE)
    np.testing.assert_array_equal(loaded.predict(problem.X_new), mean)


def test_models_of_another_kind_are_not_replaced(
    problem: Problem, fitted: GPRegressor, sparse: SparseGPRegressor, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "exact.zarr")
    with pytest.raises(OutputExistsError):
        sparse.save(tmp_path / "exact.zarr", overwrite=True)


def test_a_training_set_in_a_temporary_folder_goes_with_the_fit(problem: Problem, tmp_path: Path) -> None:
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        X = da.from_array(problem.X, chunks=(90, 4))
        model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40).fit(X, problem.y)
        gc.collect()
        assert list(tmp_path.iterdir()) == []
    known = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=40).fit(problem.X, problem.y)
    np.testing.assert_allclose(model.predict(problem.X_new), known.predict(problem.X_new), atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- lazily


def test_dask_out_is_what_arrays_give(problem: Problem, sparse: SparseGPRegressor) -> None:
    found = sparse.predict(da.from_array(problem.X_new, chunks=((20, 25, 15), 2)), **ALL)
    assert all(isinstance(part, da.Array) for part in (*found[:3], *found[3]))
    assert all(part.chunks == ((20, 25, 15),) for part in (*found[:3], *found[3]))
    computed, known = dask.compute(*found), sparse.predict(problem.X_new, **ALL)
    np.testing.assert_array_equal(computed[0], known[0])
    for mine, theirs in zip((*computed[1:3], *computed[3]), (*known[1:3], *known[3]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_a_graph_elsewhere_needs_the_model_where_it_was_stored(problem: Problem, sparse: SparseGPRegressor) -> None:
    model = pickle.loads(pickle.dumps(sparse))
    sent = pickle.dumps(model.predict(da.from_array(problem.X_new, chunks=(30, 4)), return_var=True)[0])
    np.testing.assert_array_equal(pickle.loads(sent).compute(), sparse.predict(problem.X_new))
    del model
    gc.collect()
    with pytest.raises(ClusterError, match="store="):
        pickle.loads(sent).compute()


def test_labels_are_kept_and_features_matched_by_name(problem: Problem, sparse: SparseGPRegressor) -> None:
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=60)
    model.fit(table_of(problem.X, problem.y), "load", relative_noise=xr.DataArray(np.ones(300), dims="time"))
    assert model.feature_names_in_.tolist() == NAMES
    known = sparse.predict(problem.X_new)
    shuffled = table_of(problem.X_new)[["depth", "north", "east"]]
    mean, std = model.predict(shuffled, return_std=True)
    assert (mean.name, std.name, mean.dims) == ("load", "load_std", ("time",))
    np.testing.assert_allclose(mean.values, known, rtol=1e-9)
    chunked = model.predict(table_of(problem.X_new).chunk(time=25))
    assert isinstance(chunked.data, da.Array)
    np.testing.assert_array_equal(chunked.values, mean.values)


def test_training_on_a_store(problem: Problem, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="The feature"):
        dataset_from_arrays(tmp_path / "train.zarr", problem.X, problem.y)
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=60).fit(tmp_path / "train.zarr")
    lazily = model.predict(tmp_path / "train.zarr")
    assert isinstance(lazily.data, da.Array)
    model.save(tmp_path / "model.zarr")
    dataset = open_dataset(tmp_path / "train.zarr")
    found = SparsePredictor(open_sparse(tmp_path / "model.zarr"))(problem.X[:, dataset.standardisation.kept])
    np.testing.assert_array_equal(lazily.values, found.mean[:, 0])
    assert model.score(tmp_path / "train.zarr") > 0.9
    with pytest.raises(InputError, match="expected"):
        model.predict(da.zeros((10, 2), chunks=5))


# ----------------------------------------------------------------------------------------------------------- on workers


@pytest.mark.slow
def test_workers_in_other_processes_come_to_the_same_bits(
    problem: Problem, sparse: SparseGPRegressor, outer_client: Client, tmp_path: Path
) -> None:
    parameters: dict[str, Any] = {"kernel": KERNEL, "noise_variance": NOISE, "basis_size": 60}
    model = SparseGPRegressor(**parameters, client=outer_client, store=str(tmp_path))
    model.fit(problem.X, problem.y)
    assert len(list(tmp_path.iterdir())) == 1  # the training set
    found = model.predict(problem.X_new, **ALL)
    assert len(list(tmp_path.iterdir())) == 2  # and the model, now that others have to read it
    for mine, theirs in zip(found[:3], sparse.predict(problem.X_new, **ALL)[:3], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    lazy = model.predict(da.from_array(problem.X_new, chunks=(30, 4)))
    np.testing.assert_array_equal(outer_client.compute(lazy).result(), found[0])
    assert len(list(tmp_path.iterdir())) == 2
    assert outer_client.status == "running"


# ------------------------------------------------------------------------------------------------ on the command line


def test_the_command_line_reads_and_writes_the_same_models(
    problem: Problem, sparse: SparseGPRegressor, tmp_path: Path
) -> None:
    def run(*arguments: Any) -> None:
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output

    names = ["east", "unused", "north", "depth"]
    frame = pd.DataFrame(problem.X, columns=names).assign(load=problem.y)
    frame.to_parquet(tmp_path / "train.parquet")
    pd.DataFrame(problem.X_new, columns=names).to_parquet(tmp_path / "new.parquet")
    for name, more in (("train", ["--target", "load"]), ("new", [])):
        run("ingest", tmp_path / f"{name}.parquet", tmp_path / f"{name}.zarr", *more)
    # What Python saved, predicted by the command.
    model = SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=60).fit(frame[names], frame["load"])
    model.save(tmp_path / "mine.zarr")
    run("predict", tmp_path / "mine.zarr", tmp_path / "new.zarr", "--out", tmp_path / "pred.zarr", "--variance")
    found, (mean, _, variance, bounds) = open_prediction(tmp_path / "pred.zarr"), sparse.predict(problem.X_new, **ALL)
    np.testing.assert_allclose(found.read("mean", 0, 60)[:, 0], mean, rtol=1e-9)
    np.testing.assert_allclose(found.read("variance", 0, 60)[:, 0], variance, rtol=1e-6)
    np.testing.assert_allclose(found.read("variance_upper", 0, 60)[:, 0], bounds.variance_upper, rtol=1e-6)
    # What the command trained, loaded in Python.
    write_hyperparameters(tmp_path / "hyper.json", Hyperparameters(KERNEL, NOISE))
    run(
        "sparse",
        tmp_path / "train.zarr",
        "--hyper",
        tmp_path / "hyper.json",
        "--out",
        tmp_path / "theirs.zarr",
        "--basis-size",
        60,
    )
    loaded = SparseGPRegressor.load(tmp_path / "theirs.zarr")
    assert loaded.target_names_ == ("load",)
    np.testing.assert_allclose(loaded.predict(problem.X_new), mean, rtol=1e-9)
    assert loaded.distance_ == pytest.approx(sparse.distance_, rel=1e-6)
