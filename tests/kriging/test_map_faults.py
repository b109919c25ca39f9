"""Maps of killed runs, at remote addresses and on clusters: the bytes of a run in this process that nothing ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dkgp.data.remote.storage import exists, list_object_bytes, read_object
from dkgp.errors import InterruptedRunError, OutputExistsError, StorageError
from dkgp.kriging import rasters
from dkgp.kriging.field import Field
from dkgp.kriging.grids import Grid
from dkgp.kriging.rasters import MapSettings, computing, map_cells, map_in_memory
from dkgp.models.prediction.predict import Destination
from tests.full_disk import fill, mounted
from tests.kriging.test_maps import GRID, bytes_of, field_of, written
from tests.resuming import kill
from tests.s3 import s3_server, use_s3
from tests.workers import local_cluster

# Kills its process at the call by number of the writer of regions, of the pieces kept, or of windows of the map.
KILLED = """
import os, signal, sys
from dkgp.cluster.executors.base import LocalExecutor
from dkgp.data import PredictionWriter
from dkgp.kriging.field import Field
from dkgp.kriging.grids import Grid
from dkgp.kriging.rasters import CellMap, MapSettings, write_field
from dkgp.models.context import RunContext
from dkgp.models.prediction.predict import Destination

url, out, name, last, way = sys.argv[1:]
owner = {"prepare": PredictionWriter, "write": PredictionWriter, "values": CellMap}[name]
name = "pending_regions" if name == "prepare" else name
original, calls = getattr(owner, name), []

def counted(*arguments, **options):
    calls.append(1)
    if len(calls) > int(last):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)

setattr(owner, name, counted)
grid = Grid.of((0.0, 100.0, 10.0, 90.0), shape=(66, 75))
write_field(Field.open(url), grid, Destination(out), MapSettings(variance=True, way=way), RunContext(LocalExecutor(1)))
"""


@pytest.mark.faults
@pytest.mark.parametrize("way", ["auto", "neighbours"])
def test_a_map_of_a_killed_run_ends_in_the_same_bytes(rng: Any, tmp_path: Path, way: str) -> None:
    field, settings = field_of(rng), MapSettings(variance=True, way=way)
    field.save(str(tmp_path / "field.zarr"))
    field = Field.open(str(tmp_path / "field.zarr"))
    for ending in ("zarr", "tif"):
        whole = tmp_path / f"whole.{ending}"
        written(field, GRID, whole, settings)
        # Before the first region, later, and in the writing of the map.
        for name, last in (("prepare", 0), ("write", 0), ("write", 2), ("values", 0)):
            if way == "neighbours" and (name, last) == ("write", 2):
                continue  # one region
            out = tmp_path / f"{name}{last}.{ending}"
            kill(KILLED, tmp_path / "field.zarr", out, name, last, way)
            assert not out.exists()
            written(field, GRID, out, settings, resume=True)
            assert bytes_of(out) == bytes_of(whole), (ending, name, last)
            assert not list(tmp_path.glob(f".{out.name}*")), "temporary files of the killed run"


@pytest.mark.faults
@pytest.mark.parametrize("late", [False, True], ids=["cells", "map"])
def test_a_map_whose_disk_fills_up_is_resumed_to_the_same_bytes(
    rng: Any, tmp_path: Path, late: bool, monkeypatch: Any
) -> None:
    field, settings, grid = field_of(rng), MapSettings(), Grid.of((0.0, 100.0, 10.0, 90.0), shape=(200, 300))
    with mounted(tmp_path / "disk", "12m") as disk:
        for ending in ("zarr", "tif", "nc"):
            out, whole = disk / f"map.{ending}", tmp_path / f"map.{ending}"
            written(field, grid, whole, settings)
            with monkeypatch.context() as patch:
                if late:
                    write = rasters.write_map
                    patch.setattr(rasters, "write_map", lambda *parts, to=write: [fill(disk, 16 * 1024), to(*parts)])
                else:
                    fill(disk, 128 * 1024)
                with pytest.raises(StorageError, match="Cannot write .*disk is full"):
                    written(field, grid, out, settings)
            assert not out.exists()
            (disk / "ballast").unlink()
            written(field, grid, out, settings, resume=True)
            assert bytes_of(out) == bytes_of(whole)
            assert [path.name for path in disk.iterdir()] == [out.name]
            shutil.rmtree(out) if out.is_dir() else out.unlink()


def _objects(url: str) -> dict[str, bytes]:
    return {name: read_object(f"{url}/{name}") for name in list_object_bytes(url)}


def test_a_map_at_a_remote_address_has_the_bytes_of_a_local_one(rng: Any, tmp_path: Path) -> None:
    _require_remote(rng, tmp_path, f"memory://{tmp_path.name}/map.zarr")


@pytest.mark.long
def test_a_map_in_an_object_store(rng: Any, tmp_path: Path, monkeypatch: Any) -> None:
    with s3_server() as server:
        use_s3(monkeypatch, server)
        _require_remote(rng, tmp_path, server.url("maps/map.zarr"))


def _require_remote(rng: Any, tmp_path: Path, url: str) -> None:
    field, settings, grid = field_of(rng), MapSettings(), Grid.of((0, 100, 0, 100), shape=(70, 33))
    written(field, grid, tmp_path / "map.zarr", settings)
    with pytest.raises(InterruptedRunError):
        written(field, grid, url, settings, interrupted=lambda: True)
    written(field, grid, url, settings, resume=True)
    local = {
        str(path.relative_to(tmp_path / "map.zarr")): path.read_bytes()
        for path in (tmp_path / "map.zarr").rglob("*")
        if path.is_file()
    }
    assert _objects(url) == local
    assert not exists(f"{url}.cells")
    with pytest.raises(OutputExistsError, match="already exists. Choose another path, or give `overwrite`"):
        written(field, grid, url, settings)


@pytest.mark.long
def test_worker_processes_compute_the_same_bits(rng: Any, tmp_path: Path) -> None:
    field_of(rng, drift=True).save(str(tmp_path / "field.zarr"))
    field = Field.open(str(tmp_path / "field.zarr"))
    mask = np.random.default_rng(0).random(GRID.shape) < 0.7
    with local_cluster(2, processes=True) as (_, client):
        for way in ("auto", "neighbours"):
            settings = MapSettings(variance=True, mask=mask, covariates=hill, way=way)
            results = []
            for name, workers in (("workers", client), ("here", None)):
                place = Destination(str(tmp_path / f"{way}-{name}"))
                with computing(field, workers) as context:
                    results.append(map_in_memory(map_cells(field, GRID, place, settings, context)))
            for name in results[0].data_vars:
                assert_array_equal(results[0][name].values, results[1][name].values)


def hill(x: Any, y: Any) -> Any:
    """Return the covariate of `field_of`."""
    return np.column_stack([np.hypot(x - 50.0, y - 30.0) / 20.0])
