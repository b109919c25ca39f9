"""Links that are put in the place of what a job names, after the roots were asked and before the job opens it."""

from __future__ import annotations

import contextlib
import pickle
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from zarr.core.buffer import default_buffer_prototype

import dkgp.service.roots
from dkgp.data import dataset_from_arrays, open_dataset, open_prediction
from dkgp.data.remote.limits import active, limited_to
from dkgp.data.remote.storage import (
    open_new,
    open_object,
    read_object,
    remove_object,
    remove_tree,
    replaced_file,
    write_object,
)
from dkgp.data.remote.zarr_store import zarr_place
from dkgp.data.sources.formats import open_source
from dkgp.data.stores.tile_store import TileStore
from dkgp.data.stores.writable import ensure_writable
from dkgp.errors import StorageError
from dkgp.service.queue.events import EventWriter
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.roots import Roots
from dkgp.service.running import runner
from tests.service.problem import make_problem

NO_DASK = {"kind": "none"}


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a problem, a model and predictions."""
    folder = tmp_path_factory.mktemp("solved")
    make_problem(folder)
    queue = JobQueue(folder / "queue")
    for command, options in commands(folder).items():
        outcome = run(queue, [str(folder)], command, options)
        assert outcome.state == "done", outcome.error
    queue.close()
    shutil.rmtree(folder / "queue")
    return folder


def commands(folder: Path) -> dict[str, dict[str, Any]]:
    """Options of each command, all of whose places lie directly in one folder."""
    places = {"dataset": str(folder / "train.zarr"), "overwrite": True}
    files = {"plot": str(folder / "plot.svg"), "log_json": str(folder / "log.jsonl")}
    return {
        "train": {
            **places,
            **files,
            "hyper": str(folder / "hyper.json"),
            "out": str(folder / "m.zarr"),
            "solver": {"block_size": 50},
        },
        "predict": {**places, "model": str(folder / "m.zarr"), "out": str(folder / "p.zarr")},
        "evaluate": {**places, "prediction": str(folder / "p.zarr"), "plot": str(folder / "e.svg")},
    }


def run(queue: JobQueue, roots: list[str], command: str, options: dict[str, Any]) -> Any:
    """Run a job in this process, and return its result."""
    return outcome_of(queue, queue.submit(command, options)[0].id, roots)


def outcome_of(queue: JobQueue, job_id: str, roots: list[str]) -> Any:
    with contextlib.closing(EventWriter(queue.folder_of(job_id) / "events.jsonl")) as events:
        return runner._outcome(queue, job_id, 1, 0, events, roots, NO_DASK)


def contents(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """All that lies in a folder, and when it was written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def places(solved: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A folder within the root, and one outside that holds as much, of other numbers."""
    inner, outside = tmp_path / "root" / "inner", tmp_path / "outside"
    shutil.copytree(solved, inner)
    shutil.copytree(solved, outside)
    rng = np.random.default_rng(1)
    dataset_from_arrays(outside / "train.zarr", rng.random((400, 3)), rng.random(400) + 1e6, overwrite=True)
    return inner, outside


def exchange(place: Path, other: Path) -> None:
    """Put a link to another file or folder in the place of one."""
    if place.exists():
        place.rename(place.with_name(place.name + ".hidden"))
    place.symlink_to(other)


def swapped_after_check(monkeypatch: pytest.MonkeyPatch, place: Path, other: Path) -> list[Path]:
    """Have the place exchanged right after the job's process has asked the roots; the list tells that it was."""
    check, done = dkgp.service.roots.check_places, []

    def checked(*arguments: Any) -> None:
        check(*arguments)
        exchange(place, other)
        done.append(place)

    monkeypatch.setattr(dkgp.service.roots, "check_places", checked)
    return done


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "name"),
    [
        *(("train", name) for name in ("", "hyper.json", "train.zarr/X")),
        *(("predict", name) for name in ("", "m.zarr", "m.zarr/alpha/c/0")),
        *(("evaluate", name) for name in ("", "p.zarr")),
        # A store's folder, and an array's, are what a model's are above.
        *(pytest.param(command, "train.zarr", marks=pytest.mark.slow) for command in ("train", "predict", "evaluate")),
        pytest.param("predict", "m.zarr/alpha", marks=pytest.mark.slow),
    ],
)
def test_what_is_exchanged_after_the_check_is_not_read(
    command: str, name: str, places: tuple[Path, Path], queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outside = places
    assert (inner / name).exists()
    before = contents(outside)
    done = swapped_after_check(monkeypatch, inner / name, outside / name)
    outcome = run(queue, [str(inner.parent)], command, commands(inner)[command])
    assert done
    assert (outcome.state, outcome.exit_code) == ("failed", 3), outcome
    # Folders within a store that are links are no part of it.
    assert re.search("leads outside the folders|is missing", outcome.error["message"])
    assert contents(outside) == before


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("train", "m.zarr"),
        ("train", "plot.svg"),
        ("train", "log.jsonl"),
        ("predict", "p.zarr"),
        ("evaluate", "e.svg"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_not_written(
    command: str, name: str, there: bool, places: tuple[Path, Path], queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in the place of an output gives way to the output, or the job is refused."""
    inner, outside = places
    if not there:
        remove_tree(outside / name)
    before = contents(outside)
    done = swapped_after_check(monkeypatch, inner / name, outside / name)
    outcome = run(queue, [str(inner.parent)], command, commands(inner)[command])
    assert done
    assert (outcome.state, outcome.exit_code) in (("done", 0), ("failed", 3)), outcome
    assert outcome.state == "failed" or not (inner / name).is_symlink()
    assert contents(outside) == before


def test_a_file_that_is_being_written_stays_in_its_folder(places: tuple[Path, Path]) -> None:
    """Whatever its folder's name comes to mean while it is written, replaced or removed."""
    inner, outside = places
    before = contents(outside)
    with limited_to(Roots([str(inner.parent)]).limits):
        with replaced_file(inner / "hyper.json") as temporary:
            exchange(inner, outside)
            temporary.write_text("{}")
        zarr_store = zarr_place(str(inner / "train.zarr"))
        for attempt in (
            lambda: zarr_store.get_sync("zarr.json"),
            lambda: zarr_store.set_sync("zarr.json", default_buffer_prototype().buffer.from_bytes(b"{}")),
            lambda: zarr_store.delete_sync("zarr.json"),
            lambda: write_object(inner / "hyper.json", b"{}"),
            lambda: write_object(inner / "new" / "folder" / "hyper.json", b"{}"),
            lambda: remove_tree(inner / "m.zarr"),
            lambda: remove_object(inner / "hyper.json"),
            lambda: open_object(inner / "hyper.json"),
            lambda: open_new(inner / "log.jsonl"),
        ):
            with pytest.raises(StorageError, match="leads outside the folders"):
                attempt()
    assert (inner.parent / "inner.hidden" / "hyper.json").read_text() == "{}"
    assert contents(outside) == before


def test_workers_keep_to_the_limits_of_the_job(places: tuple[Path, Path]) -> None:
    inner, outside = places
    before = contents(outside)
    shutil.copytree(inner / "train.zarr", outside / "train.zarr", dirs_exist_ok=True)
    with limited_to(Roots([str(inner.parent)]).limits):
        sent = pickle.dumps((open_dataset(str(inner / "train.zarr")), TileStore(inner / "tiles")))
    dataset, tiles = pickle.loads(sent)
    (inner / "tiles").mkdir()
    (outside / "tiles").mkdir()
    before = contents(outside)
    tiles.write("0-0", np.ones((2, 2)))
    expected = dataset.inputs(0, 400)
    assert not active()
    dataset, tiles = pickle.loads(sent)
    exchange(inner, outside)
    with pytest.raises(StorageError, match="leads outside the folders"):
        dataset.inputs(0, 400)
    with pytest.raises(StorageError, match="leads outside the folders"):
        tiles.write("0-0", np.ones((2, 2)))
    assert contents(outside) == before
    # Whoever is held to nothing reads what lies there: the very same numbers.
    np.testing.assert_array_equal(open_dataset(str(inner / "train.zarr")).inputs(0, 400), expected)


@pytest.mark.spread(3)
@pytest.mark.parametrize("form", ["c.npy", "fortran.npy", "z.npz", "t.csv", "t.parquet", "t.nc"])
def test_files_of_data_are_read_where_they_lay(form: str, places: tuple[Path, Path]) -> None:
    inner, outside = places
    for folder, offset in ((inner, 0.0), (outside, 1e6)):
        values = np.arange(60.0).reshape(20, 3) + offset
        table = pd.DataFrame(values, columns=["a", "b", "c"])
        np.save(folder / "c.npy", values)
        np.save(folder / "fortran.npy", np.asfortranarray(values))
        np.savez(folder / "z.npz", X=values)
        table.to_csv(folder / "t.csv", index=False)
        table.to_parquet(folder / "t.parquet")
        table.rename_axis("sample").to_xarray().to_netcdf(folder / "t.nc")
    with limited_to(Roots([str(inner.parent)]).limits):
        source = open_source([str(inner / form)], {})
        (block,) = source.blocks(source.positional)
        np.testing.assert_array_equal(block.values, np.arange(60.0).reshape(20, 3))
        exchange(inner / form, outside / form)
        with pytest.raises(StorageError, match="leads outside the folders"):
            list(source.blocks(source.positional))
        with pytest.raises(StorageError, match="leads outside the folders"):
            open_source([str(inner / form)], {})


def test_what_dkgp_keeps_for_itself_is_not_concerned(places: tuple[Path, Path], tmp_path: Path) -> None:
    """Such as tiles that outgrow memory: in the system's temporary folder, and in that of the service."""
    inner, _ = places
    own = tmp_path / "queue"
    own.mkdir()
    with limited_to(Roots([str(inner.parent)], excluded=[str(own)]).limits), tempfile.TemporaryDirectory() as folder:
        for place in (Path(folder), own):
            write_object(place / "note", b"content")
            assert read_object(place / "note") == b"content"
        (Path(folder) / "link").symlink_to(own)
        exchange(inner, own)
        for place in (Path(folder) / "link", inner, Path("/etc/hostname").parent):
            with pytest.raises(StorageError, match="leads outside the folders"):
                read_object(place / ("hostname" if place == Path("/etc") else "note"))


def test_whether_a_place_can_be_written_is_not_tried_outside(tmp_path: Path) -> None:
    """Such a trial leaves its file behind where a link turns between its making and its removal."""
    inner, outside, link = tmp_path / "root" / "inner", tmp_path / "outside", tmp_path / "root" / "link"
    for folder in (inner, outside):
        folder.mkdir(parents=True)
    link.symlink_to(outside)
    before = outside.stat().st_mtime_ns
    with limited_to(Roots([str(tmp_path / "root")]).limits):
        ensure_writable(inner / "p.zarr", overwrite=False)
        with pytest.raises(StorageError, match="leads outside the folders"):
            ensure_writable(link / "p.zarr", overwrite=False)
    assert outside.stat().st_mtime_ns == before


@contextlib.contextmanager
def turned_all_the_time(link: Path, *folders: Path) -> Iterator[list[int]]:
    """Have a thread turn a link from one folder to the next, without a moment in between; a list with how often."""
    stop, times, new = threading.Event(), [0], link.with_name("new-link")

    def work() -> None:
        while not stop.is_set():
            times[0] += 1
            new.symlink_to(folders[times[0] % len(folders)])
            new.replace(link)
            time.sleep(0.0 if times[0] % 100 else 0.1)
        new.symlink_to(folders[0])
        new.replace(link)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


@pytest.mark.long
def test_links_that_turn_all_the_time_lead_nowhere(places: tuple[Path, Path], queue: JobQueue) -> None:
    """Files are read and written as fast as possible for a second, and jobs run."""
    inner, outside = places
    link, roots = inner.with_name("link"), [str(inner.parent)]
    link.symlink_to(inner)
    for folder, text in ((inner, b"inner"), (outside, b"outer")):
        (folder / "read").write_bytes(text)
        (folder / "written").write_bytes(text)
    options = commands(link)["predict"]
    job_id = queue.submit("predict", options)[0].id
    assert outcome_of(queue, job_id, roots).state == "done"
    expected = open_prediction(options["out"]).read("mean").tobytes()
    before, counts = contents(outside), {"read": 0, "written": 0, "refused": 0, "done": 0, "failed": 0}
    limits = Roots(roots).limits
    with turned_all_the_time(link, inner, outside) as times:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            with limited_to(limits):
                for _ in range(200):
                    try:
                        with open_object(link / "read") as file:
                            assert file.read() == b"inner"
                        counts["read"] += 1
                        write_object(link / "written", b"new", synced=False)
                        counts["written"] += 1
                    except StorageError:
                        counts["refused"] += 1
            outcome = outcome_of(queue, job_id, roots)
            assert (outcome.state, outcome.exit_code) in (("done", 0), ("failed", 3)), outcome
            counts[outcome.state] += 1
            if outcome.state == "done":
                assert open_prediction(str(inner / "p.zarr")).read("mean").tobytes() == expected
    print(f"\n{counts}, turned {times[0]} times")
    assert contents(outside) == before
    assert min(counts["read"], counts["written"], counts["refused"], counts["done"] + counts["failed"]) > 0
    assert outcome_of(queue, job_id, roots).state == "done"
    assert open_prediction(options["out"]).read("mean").tobytes() == expected
