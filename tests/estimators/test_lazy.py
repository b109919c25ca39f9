"""Dask arrays and xarray in, the same out: lazily, no model in the graph, one task a chunk for all that is asked."""

from __future__ import annotations

import gc
import pickle
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from dkgp import GPRegressor
from dkgp.data import dataset_from_arrays
from dkgp.errors import ClusterError, InputError
from dkgp.estimators import outputs
from tests.estimators.conftest import KERNEL, NOISE, Problem
from tests.estimators.test_conformance import NAMES, table_of


@pytest.fixture(scope="module")
def labelled(problem: Problem) -> GPRegressor:
    return GPRegressor(KERNEL, noise_variance=NOISE).fit(table_of(problem.X, problem.y), "load")


def test_chunks_of_unknown_size_and_several_targets(problem: Problem) -> None:
    Y = np.column_stack([problem.y, problem.X[:, 2]])
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, Y)
    X = da.from_array(problem.X_new, chunks=(20, 4))
    chosen = X[da.from_array(problem.X_new[:, 0] > 100.0, chunks=20)]
    mean, std = dask.compute(*model.predict(chosen, return_std=True))
    known, _ = model.predict(problem.X_new[problem.X_new[:, 0] > 100.0], return_std=True)
    np.testing.assert_array_equal(mean, known)
    assert std.shape == known.shape


def test_mean_and_variance_come_from_one_task_a_chunk(
    problem: Problem, fitted: GPRegressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    compute = outputs._PredictBlock.__call__

    def counted(self: Any, block: Any) -> Any:
        calls.append(len(block))
        return compute(self, block)

    monkeypatch.setattr(outputs._PredictBlock, "__call__", counted)
    dask.compute(*fitted.predict(da.from_array(problem.X_new, chunks=(20, 4)), return_std=True, return_var=True))
    assert sorted(calls) == [20, 20, 20]


def test_what_is_asked_names_the_graph(problem: Problem, fitted: GPRegressor) -> None:
    X = da.zeros((200_000, 4), chunks=(2_000, 4))
    started = time.perf_counter()
    mean, _ = fitted.predict(X, return_std=True)
    assert time.perf_counter() - started < 1.0
    again, _ = fitted.predict(X, return_std=True)
    assert again.name == mean.name
    assert fitted.predict(X).name != mean.name


@pytest.mark.slow
def test_pickled_graph_computes_elsewhere_while_the_estimator_lives(problem: Problem) -> None:
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y)
    sent = pickle.dumps(model.predict(da.from_array(problem.X_new, chunks=(30, 4)), return_var=True)[0])
    code = "import pickle, sys; pickle.dump(pickle.load(sys.stdin.buffer).compute(), sys.stdout.buffer)"
    answer = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True).stdout
    np.testing.assert_array_equal(pickle.loads(answer), model.predict(problem.X_new))
    del model
    gc.collect()
    with pytest.raises(ClusterError, match="store="):
        pickle.loads(sent).compute()


def test_labelled_targets(problem: Problem) -> None:
    table = table_of(problem.X, problem.y).assign(twice=("time", 2.0 * problem.y))
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(table, ["load", "twice"])
    mean = model.predict(table)
    assert (mean.dims, mean.target.values.tolist()) == (("time", "target"), ["load", "twice"])
    np.testing.assert_allclose(mean.sel(target="twice"), 2.0 * mean.sel(target="load"), rtol=1e-6)
    draws = model.sample_y(table.isel(time=slice(5)), n_samples=3)
    assert draws.dims == ("time", "target", "draw")


def test_what_has_no_place_is_refused(problem: Problem, labelled: GPRegressor) -> None:
    table = table_of(problem.X_new)
    with pytest.raises(InputError, match="no variable 'north'"):
        labelled.predict(table.drop_vars("north"))
    grid = xr.Dataset({name: (("lat", "lon"), np.ones((2, 3))) for name in NAMES})
    with pytest.raises(InputError, match="Stack a grid first"):
        labelled.predict(grid)
    with pytest.raises(InputError, match="no y"):
        GPRegressor().fit(da.zeros((10, 2), chunks=5))
    with pytest.raises(InputError, match="no variable 'price'"):
        GPRegressor().fit(table, "price")


def test_lazy_tables_and_stores_of_features_in_another_order(
    problem: Problem, fitted: GPRegressor, tmp_path: Path
) -> None:
    known = fitted.predict(problem.X_new)
    labelled = GPRegressor(KERNEL, noise_variance=NOISE).fit(table_of(problem.X, problem.y).chunk(time=100), "load")
    np.testing.assert_allclose(labelled.predict(problem.X_new), known, atol=1e-6)
    new = tmp_path / "new.zarr"
    dataset_from_arrays(new, problem.X_new[:, [3, 0, 2]], None, feature_names=["x3", "x0", "x2"], chunk_rows=25)
    mean, std = fitted.predict(new, return_std=True)
    assert isinstance(mean.data, da.Array)
    assert (mean.name, std.name, mean.dims) == ("y", "y_std", ("sample",))
    np.testing.assert_array_equal(mean.values, known)


def test_temporary_store_goes_with_the_estimator(problem: Problem) -> None:
    model = GPRegressor(KERNEL, noise_variance=NOISE).fit(da.from_array(problem.X, chunks=(90, 4)), problem.y)
    folder = Path(model._fitted.dataset.url).parent
    assert folder.is_dir()
    del model
    gc.collect()
    assert not folder.exists()


@pytest.mark.slow
def test_many_rows_take_bounded_memory(problem: Problem, labelled: GPRegressor) -> None:
    n = 200_000
    draws = [da.random.default_rng(column).normal(size=n, chunks=10_000) for column in range(4)]
    columns = {name: ("time", values) for name, values in zip(NAMES, draws, strict=True)}
    table = xr.Dataset(columns, coords={"time": np.arange(n)})
    labelled.predict(table.isel(time=slice(20_000)), return_std=True)[1].compute()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    mean, std = labelled.predict(table, return_std=True)
    lazily = time.perf_counter() - started
    assert lazily < 1.0
    found = dask.compute(mean, std)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(
        f"{n:,} rows: lazy after {lazily:.3f} s, computed after {time.perf_counter() - started:.1f} s, "
        f"peak memory grew by {grown / 1e6:.0f} MB"
    )
    assert all(part.shape == (n,) and np.isfinite(part.values).all() for part in found)
    # The results themselves take 6.4 MB with their coordinate; a chunk and its batches are what else there is.
    assert grown < 150e6
