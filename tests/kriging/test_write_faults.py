"""Maps, averages and simulated fields on full and read-only disks, beside a second writer, and killed at any moment."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import PredictionWriter
from dkgp.errors import OutputExistsError, StorageError
from dkgp.kriging import Kriging, Variogram, simulation
from dkgp.kriging.commands import further
from dkgp.kriging.held_file import HeldFile
from dkgp.kriging.layers import Store, part_of
from tests.cli.invoke import Shell, run
from tests.full_disk import fill, mounted, read_only
from tests.kriging.test_maps import bytes_of

GRID: dict[str, Any] = {"region": (0.0, 30.0, 0.0, 30.0), "spacing": 0.5}
FULL = "Cannot write .*the disk is full"
BLOCKS = "krige blocks @field.zarr --spacing 5 --region 2.5,27.5,2.5,27.5 --out"


@pytest.fixture
def kriging(rng: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kriging:
    """A field that is stored, whose simulated fields are batches."""
    monkeypatch.setattr(simulation, "BATCH_BYTES", 1)
    x, y = rng.integers(0, 60, (2, 40)) / 2.0
    variogram = Variogram("matern32", psill=1.0, range=4.0, nugget=0.1)
    fitted = Kriging(variogram, crs="EPSG:32611").fit((x, y), np.sin(x) + 0.1 * rng.standard_normal(40))
    fitted.save(tmp_path / "field.zarr")
    return Kriging.load(tmp_path / "field.zarr")


def shell_in(folder: Path, tmp_path: Path) -> Shell:
    return Shell(folder, {"field.zarr": tmp_path / "field.zarr"})


def test_a_file_that_is_held_reads_as_if_it_were_written(rng: Any, tmp_path: Path, monkeypatch: Any) -> None:
    put, places = os.pwrite, [0]

    def limited(handle: int, content: Any, place: int) -> int:
        """Write at most 100 bytes, and none beyond 1,000."""
        if place >= 1000:
            raise OSError(28, "No space left on device")
        return put(handle, content[: min(100, 1000 - place)], place)

    monkeypatch.setattr(os, "pwrite", limited)
    expected, file = bytearray(3000), HeldFile(tmp_path / "file")
    for _ in range(40):
        place, content = int(rng.integers(0, 2500)), rng.bytes(int(rng.integers(1, 500)))
        expected[place : place + len(content)] = content
        file.seek(place)
        assert file.write(content) == len(content)
        places.append(place + len(content))
        file.seek(0)
        assert file.read(4000) == bytes(expected[: max(places)])
    assert file.seek(0, os.SEEK_END) == max(places)
    with pytest.raises(OSError, match="No space"):
        file.check()
    with pytest.raises(OSError, match="No space"), file:
        pass
    assert file.closed


@pytest.mark.faults
def test_simulated_fields_whose_disk_fills_up_are_resumed_to_the_same_bytes(kriging: Kriging, tmp_path: Path) -> None:
    whole = tmp_path / "whole.zarr"
    kriging.simulate(4, out=whole, **GRID)
    size = sum(file.stat().st_size for file in whole.rglob("*") if file.is_file())
    with mounted(tmp_path / "disk", "8m") as disk:
        out = disk / "fields.zarr"
        for share in (0.0, 0.3, 0.6):
            ballast = fill(disk, int(share * size))
            with pytest.raises(StorageError, match=FULL):
                kriging.simulate(4, out=out, **GRID)
            assert not out.exists()
            ballast.unlink()
            kriging.simulate(4, out=out, resume=True, **GRID)
            assert bytes_of(out) == bytes_of(whole)
            assert list(disk.iterdir()) == [out]
            shutil.rmtree(out)


@pytest.mark.faults
@pytest.mark.parametrize("ending", ["csv", "parquet", "geojson", "gpkg"])
def test_averages_on_a_full_disk_leave_nothing(kriging: Kriging, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("geopandas")
    here = shell_in(tmp_path, tmp_path)
    here.json(f"{BLOCKS} @blocks.{ending}")
    with mounted(tmp_path / "disk", "8m") as disk:
        shell, ballast = shell_in(disk, tmp_path), fill(disk, 0)
        shell.refuses(f"{BLOCKS} @blocks.{ending}", "Cannot write", "the disk is full")
        assert shell.names == {"ballast"}
        ballast.unlink()
        shell.json(f"{BLOCKS} @blocks.{ending}")
        # A GeoPackage has the time of its last change.
        assert ending == "gpkg" or shell[f"blocks.{ending}"].read_bytes() == here[f"blocks.{ending}"].read_bytes()


@pytest.mark.faults
def test_a_read_only_disk_is_named(kriging: Kriging, tmp_path: Path) -> None:
    words = "Cannot write", "the file system is read-only"
    with mounted(tmp_path / "disk", "8m") as disk, read_only(disk):
        shell = shell_in(disk, tmp_path)
        for ending in ("tif", "nc", "zarr"):
            shell.refuses(f"krige grid @field.zarr --shape 3,4 --out @map.{ending}", *words)
        shell.refuses("krige simulate @field.zarr --fields 2 --shape 3,4 --out @fields.zarr", *words)
        for ending in ("csv", "gpkg"):
            shell.refuses(f"{BLOCKS} @blocks.{ending}", *words)
        assert shell.names == set()


def meanwhile(call: Callable[[], Any]) -> list[BaseException]:
    """Return the errors of a call in a thread of its own."""
    errors: list[BaseException] = []

    def called() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    return errors


@pytest.mark.parametrize("name", ["fields.zarr", "map.zarr", "map.nc"])
def test_a_second_writer_is_refused_and_the_first_one_ends(
    kriging: Kriging, tmp_path: Path, name: str, monkeypatch: Any
) -> None:
    def write(out: Path, **options: Any) -> None:
        if name.startswith("map"):
            kriging.grid(out=str(out), **GRID, **options)
        else:
            kriging.simulate(2, out=str(out), **GRID, **options)

    write(tmp_path / f"whole-{name}")
    owner: Any = PredictionWriter if name.startswith("map") else Store
    original, errors = owner.write, list[BaseException]()

    def disturbed(self: Any, *arguments: Any, **values: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(owner, "write", original)
            for options in ({}, {"resume": True}, {"overwrite": True}):
                errors.extend(meanwhile(lambda: write(tmp_path / name, **options)))  # noqa: B023
        original(self, *arguments, **values)

    monkeypatch.setattr(owner, "write", disturbed)
    write(tmp_path / name)
    assert len(errors) >= 3
    assert all(isinstance(error, OutputExistsError) and "is writing" in str(error) for error in errors)
    assert bytes_of(tmp_path / name) == bytes_of(tmp_path / f"whole-{name}")


def test_a_second_command_for_averages_is_refused(kriging: Kriging, tmp_path: Path, monkeypatch: Any) -> None:
    shell, results = shell_in(tmp_path, tmp_path), list[Any]()
    predict = further.krige_blocks

    def disturbed(*arguments: Any, **options: Any) -> Any:
        line = shell.typed(f"{BLOCKS} @blocks.csv --overwrite")
        assert not meanwhile(lambda: results.append(run(*line)))
        return predict(*arguments, **options)

    monkeypatch.setattr(further, "krige_blocks", disturbed)
    shell.json(f"{BLOCKS} @blocks.csv")
    (result,) = results
    assert result.exit_code != 0
    assert "is writing" in " ".join(result.stderr.split())


def killed_after(seconds: float, work: Callable[[], Any]) -> bool:
    """Run work in a child process that the system ends after so much processor time; return True if it was ended."""
    child = os.fork()
    if not child:
        # The default action of the signal ends the process at once, as SIGKILL does.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.faults
def test_simulated_fields_of_runs_that_are_killed_at_any_moment_end_in_the_same_bytes(
    kriging: Kriging, tmp_path: Path, rng: Any
) -> None:
    whole, out = tmp_path / "whole.zarr", tmp_path / "fields.zarr"
    began = time.process_time()
    kriging.simulate(6, out=whole, **GRID)
    seconds, ended = time.process_time() - began, 0
    for _ in range(40):
        ended += killed_after(
            float(rng.uniform(0.02, 0.3)) * seconds, lambda: kriging.simulate(6, out=out, resume=True, **GRID)
        )
        if out.exists():
            break
    assert ended
    if not out.exists():
        kriging.simulate(6, out=out, resume=True, **GRID)
    assert bytes_of(out) == bytes_of(whole)
    assert not part_of(out).exists() or not (part_of(out) / "layers.zarr").exists()


@pytest.mark.faults
def test_averages_of_commands_that_are_killed_at_any_moment_are_whole_or_missing(
    kriging: Kriging, tmp_path: Path, rng: Any
) -> None:
    shell = shell_in(tmp_path, tmp_path)
    began = time.process_time()
    shell.json(f"{BLOCKS} @whole.csv")
    seconds, ended = time.process_time() - began, 0
    for _ in range(6):
        line = shell.typed(f"{BLOCKS} @blocks.csv --overwrite")
        ended += killed_after(float(rng.uniform(0.1, 1.0)) * seconds, lambda: run(*line))  # noqa: B023
        assert not shell["blocks.csv"].exists() or shell["blocks.csv"].read_bytes() == shell["whole.csv"].read_bytes()
    assert ended
    shell.json(f"{BLOCKS} @blocks.csv --overwrite")
    assert shell["blocks.csv"].read_bytes() == shell["whole.csv"].read_bytes()
