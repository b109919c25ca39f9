"""Estimators' clients: their own, and the program's default client."""

from __future__ import annotations

import gc
import logging
import pickle
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from distributed import Client
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from dkgp import ConjugateDirectionsPursuit, GaussianProcessRegressor, GPRegressor, KernelLogisticClassifier
from dkgp.cluster.client_executor import client_around, is_in_process, open_client_executor
from dkgp.data import dataset_from_arrays
from dkgp.errors import InputError, UsageError
from dkgp.estimators import settings
from tests.estimators.conftest import KERNEL, NOISE, Problem
from tests.estimators.test_conformance import NAMES, table_of


@pytest.fixture
def clients(outer_client: Client, inner_client: Client) -> dict[str, Client]:
    """Workers in a process of their own, and in this one; neither is the default client."""
    return {"outer": outer_client, "inner": inner_client}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The clients that estimators run on, from now on; what problems are too small for one is forgotten."""
    seen: list[Client] = []
    real = settings.open_client_executor

    def watched(client: Client) -> Any:
        seen.append(client)
        return real(client)

    monkeypatch.setattr(settings, "open_client_executor", watched)
    monkeypatch.setattr(settings, "SMALL_PROBLEM_SAMPLES", 100)
    monkeypatch.setattr(settings, "_LOGGED", {})
    return seen


@pytest.mark.long
@pytest.mark.parametrize("where", ["outer", "inner"])
def test_it_is_used_and_said_once(
    where: str,
    clients: dict[str, Client],
    used: list[Client],
    problem: Problem,
    fitted: GPRegressor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = clients[where]
    caplog.set_level(logging.INFO, logger="dkgp.estimators")
    with client.as_current(), dask.config.set(scheduler="dask.distributed"):
        for _ in range(2):
            model = GPRegressor(KERNEL, noise_variance=NOISE).fit(problem.X, problem.y)
        mean, std = model.predict(problem.X_new, return_std=True)
        lazy = model.predict(da.from_array(problem.X_new, chunks=(30, 4)))
        np.testing.assert_allclose(lazy.compute(), mean, rtol=1e-12)
    known_mean, known_std = fitted.predict(problem.X_new, return_std=True)
    np.testing.assert_allclose(mean, known_mean, atol=1e-6)
    np.testing.assert_allclose(std, known_std, rtol=0.02)
    assert used == [client] * 2
    (message,) = [record.getMessage() for record in caplog.records if record.name == "dkgp.estimators"]
    assert message.startswith(f"using the dask client that is around, of the scheduler at {client.scheduler.address}")
    assert client.status == "running"
    model.update(problem.X_new[:5], problem.y_new[:5])
    assert len(used) == 2, "an update runs where its samples are"


@pytest.mark.long
def test_every_kind_of_estimator_picks_it_up(clients: dict[str, Client], used: list[Client], problem: Problem) -> None:
    labels = np.where(problem.y > np.median(problem.y), "high", "low")
    with clients["outer"].as_current():
        classifier = KernelLogisticClassifier(KERNEL).fit(problem.X, labels)
        pursuit = ConjugateDirectionsPursuit(n_nonzero_coefs=2).fit(problem.X, problem.y)
    assert used == [clients["outer"]] * 2
    assert classifier.score(problem.X, labels) > 0.9
    alone = ConjugateDirectionsPursuit(n_nonzero_coefs=2).fit(problem.X, problem.y)
    np.testing.assert_allclose(pursuit.coef_, alone.coef_, rtol=1e-9)


def test_scikit_learns_class_has_it_beyond_memory(
    clients: dict[str, Client], used: list[Client], problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = problem.X[:, [0, 2]] - 100.0, problem.y - 50.0
    kernel = 100.0 * RBF([2.0, 1.0]) + WhiteKernel(4.0)
    dense = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    monkeypatch.setattr(GaussianProcessRegressor, "dense_bytes", 0)
    with clients["outer"].as_current():
        model = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    assert used == [clients["outer"]]
    mean, std = model.predict(X[:40], return_std=True)
    known_mean, known_std = dense.predict(X[:40], return_std=True)
    np.testing.assert_allclose(mean, known_mean, atol=1e-3)
    np.testing.assert_allclose(std, known_std, rtol=0.01)


def test_small_problems_and_other_schedulers_do_without(
    clients: dict[str, Client], used: list[Client], problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GPRegressor(KERNEL, noise_variance=NOISE)
    with clients["inner"].as_current():
        with dask.config.set(scheduler="threads"):
            model.fit(problem.X, problem.y)
        monkeypatch.setattr(settings, "SMALL_PROBLEM_SAMPLES", 300)
        model.fit(problem.X, problem.y)
    monkeypatch.setattr(settings, "SMALL_PROBLEM_SAMPLES", 100)
    model.fit(problem.X, problem.y)  # no client is around any more
    assert used == []


def test_a_task_does_not_wait_for_its_own_workers(clients: dict[str, Client]) -> None:
    def around() -> bool:
        return client_around() is not None

    client = clients["inner"]
    with client.as_current():
        assert around()
        assert client.submit(around, pure=False).result() is False


def test_workers_without_dkgp_are_not_used(
    clients: dict[str, Client],
    used: list[Client],
    problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = settings.fetch_versions

    def without(client: Client) -> Any:
        software = real(client)
        return replace(software, workers={name: {**of, "dkgp": None} for name, of in software.workers.items()})

    monkeypatch.setattr(settings, "fetch_versions", without)
    model = GPRegressor(KERNEL, noise_variance=NOISE)
    with clients["outer"].as_current():
        model.fit(problem.X, problem.y).fit(problem.X, problem.y)
    assert used == []
    (record,) = [record for record in caplog.records if record.name == "dkgp.estimators"]
    assert record.levelname == "WARNING"
    assert "is not used" in record.getMessage()
    assert "missing" in record.getMessage()
    assert np.isfinite(model.predict(problem.X_new)).all()


def test_workers_that_cannot_read_the_training_set_are_not_used(
    clients: dict[str, Client],
    used: list[Client],
    problem: Problem,
    fitted: GPRegressor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    # A place that is another one for each process.
    model = GPRegressor(KERNEL, noise_variance=NOISE, store="/proc/self/cwd/stores")
    with clients["outer"].as_current():
        model.fit(problem.X, problem.y)
    assert used == []
    assert "cannot read the training set at '/proc/self/cwd/stores" in caplog.text
    np.testing.assert_allclose(model.predict(problem.X_new), fitted.predict(problem.X_new), atol=1e-6)


def test_updates_and_lazy_fits_on_workers_in_other_processes(
    problem: Problem, fitted: GPRegressor, outer_client: Client, tmp_path: Path
) -> None:
    assert not is_in_process(outer_client)
    model = GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client, store=str(tmp_path))
    model.fit(problem.X, problem.y).update(problem.X_new[:5], problem.y_new[:5])
    assert model.predict(problem.X_new).shape == (60,)
    lazily = GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client)
    lazily.fit(da.from_array(problem.X, chunks=(100, 4)), da.from_array(problem.y, chunks=100))
    np.testing.assert_allclose(lazily.predict(problem.X_new), fitted.predict(problem.X_new), atol=1e-6)


def test_something_else_is_refused(problem: Problem) -> None:
    with pytest.raises(UsageError, match="Client"), open_client_executor("tcp://127.0.0.1:1"):  # type: ignore[arg-type]
        pass


@pytest.mark.long
def test_fits_in_threads_give_futures_and_the_same_bits(problem: Problem, outer_client: Client, tmp_path: Path) -> None:
    models = [GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client, store=str(tmp_path / n)) for n in "ab"]
    for name in "ab":
        (tmp_path / name).mkdir()
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(model.fit, problem.X, y) for model, y in zip(models, (problem.y, -problem.y), strict=True)
        ]
        one, other = (future.result() for future in futures)
    np.testing.assert_array_equal(one.predict(problem.X_new), -other.predict(problem.X_new))
    alone = GPRegressor(KERNEL, noise_variance=NOISE, client=outer_client, store=str(tmp_path)).fit(
        problem.X, problem.y
    )
    np.testing.assert_array_equal(alone.predict(problem.X_new), one.predict(problem.X_new))
    assert outer_client.direct_to_workers is None


# Dask arrays and xarray in, the same out: lazily, no model in the graph, one task a chunk for all that is asked.


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


def test_mean_and_variance_come_from_one_task_a_chunk(problem: Problem, fitted: GPRegressor, blocks: list[int]) -> None:
    dask.compute(*fitted.predict(da.from_array(problem.X_new, chunks=(20, 4)), return_std=True, return_var=True))
    assert sorted(blocks) == [20, 20, 20]


def test_what_is_asked_names_the_graph(fitted: GPRegressor, blocks: list[int]) -> None:
    X = da.zeros((200_000, 4), chunks=(2_000, 4))
    mean, _ = fitted.predict(X, return_std=True)
    assert not blocks  # no chunk is computed before the graph is
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
    with pytest.warns(UserWarning, match="The feature"):
        dataset_from_arrays(tmp_path / "train.zarr", problem.X, problem.y)
    mean, std = GPRegressor(KERNEL, noise_variance=NOISE).fit(tmp_path / "train.zarr").predict(new, return_std=True)
    assert isinstance(mean.data, da.Array)
    assert (mean.name, std.name, mean.dims) == ("y", "y_std", ("sample",))
    np.testing.assert_allclose(mean.values, known, atol=1e-6)


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
