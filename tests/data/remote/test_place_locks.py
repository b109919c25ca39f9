"""Of several writers of one local place one writes, and the others are refused; a lock ends with its process."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import DatasetWriter, dataset_from_arrays, open_dataset
from dkgp.data.remote.claims import PlaceLock, beside, locked
from dkgp.errors import OutputExistsError

X = np.random.default_rng(5).normal(size=(60, 2))
HOLDER = """
import sys, time
from dkgp.data import DatasetWriter
writer = DatasetWriter.create(sys.argv[1], ("a", "b"), ("y",), overwrite=True)
print("writes", flush=True)
time.sleep(60)
"""


def _holder(url: str) -> subprocess.Popen[str]:
    """A process that has begun to write a store and goes on for a minute."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writes\n"
    return process


def _begun(url: str) -> DatasetWriter:
    return DatasetWriter.create(url, ("a", "b"), ("y",), overwrite=True)


def test_a_second_writer_is_refused_and_the_first_one_commits(tmp_path: Path) -> None:
    url = str(tmp_path / "d.zarr")
    dataset_from_arrays(url, X, X[:, 0])
    first = _begun(url)
    first.append(-X, X[:, 0])
    for overwrite in (True, False):
        with pytest.raises(OutputExistsError) as refused:
            dataset_from_arrays(url, 2.0 * X, X[:, 0], overwrite=overwrite)
        if overwrite:
            assert f"Another process ({os.getpid()} on " in str(refused.value)
            assert f"is writing '{url}'. Wait for it, or choose another path." in str(refused.value)
    first.finish()
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), -X)
    dataset_from_arrays(url, 2.0 * X, X[:, 0], overwrite=True)
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), 2.0 * X)
    assert os.listdir(tmp_path) == ["d.zarr"]


def test_a_writer_that_gave_up_does_not_remove_its_successors_store(tmp_path: Path) -> None:
    url = str(tmp_path / "d.zarr")
    first = _begun(url)
    first.abort()
    second = _begun(url)
    second.append(X, X[:, 0])
    first.abort()
    second.finish()
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), X)


def test_a_lock_ends_with_the_process_that_is_killed(tmp_path: Path) -> None:
    url = str(tmp_path / "new" / "d.zarr")
    holder = _holder(url)
    try:
        with pytest.raises(OutputExistsError, match=rf"Another process \({holder.pid} on "):
            dataset_from_arrays(url, X, X[:, 0], overwrite=True)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert ".dkgp-lock-d.zarr" in os.listdir(tmp_path / "new")
    dataset_from_arrays(url, X, X[:, 0], overwrite=True)
    assert os.listdir(tmp_path / "new") == ["d.zarr"]


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
from dkgp.data.remote.claims import PlaceLock
lock = PlaceLock.take(sys.argv[1])
if not os.fork():
    os.close(1)
    time.sleep(60)
print("forked", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    place = str(tmp_path / "d.zarr")
    process = subprocess.Popen(
        [sys.executable, "-c", script, place], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.communicate(timeout=30)[0] == "forked\n"
        PlaceLock.take(place).release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_one_of_many_threads_has_a_place_at_a_time(tmp_path: Path) -> None:
    # The file goes with each release, and is made anew: no two writers may lock two files of one name.
    place, inside, most, turns = str(tmp_path / "d.zarr"), 0, 0, [0] * 6

    def take_turns(index: int) -> None:
        nonlocal inside, most
        for _ in range(150):
            try:
                lock = PlaceLock.take(place)
            except OutputExistsError:
                continue
            inside += 1
            most = max(most, inside)
            turns[index] += 1
            inside -= 1
            lock.release()

    threads = [threading.Thread(target=take_turns, args=(index,)) for index in range(len(turns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert sum(turns) >= 150
    assert os.listdir(tmp_path) == []


def test_code_within_a_lock_has_it_already_and_other_threads_do_not(tmp_path: Path) -> None:
    place = str(tmp_path / "d.zarr")
    refused: list[BaseException] = []

    def other() -> None:
        try:
            dataset_from_arrays(place, X, X[:, 0], overwrite=True)
        except OutputExistsError as error:
            refused.append(error)

    with locked(place, f"{tmp_path}/./d.zarr", "memory://elsewhere/d.zarr"):
        dataset_from_arrays(place, X, X[:, 0])
        with locked(str(tmp_path / "." / "d.zarr")):
            dataset_from_arrays(place, X, X[:, 0], overwrite=True)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    other()
    assert len(refused) == 1


def test_folders_that_were_made_for_a_lock_go_with_it_unless_something_lies_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(str(tmp_path / "a" / "b" / "d.zarr")):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    with locked(str(tmp_path / "a" / "b" / "d.zarr")):
        (tmp_path / "a" / "kept").touch()
    assert sorted(os.listdir(tmp_path / "a")) == ["kept"]


def test_a_place_without_locks_is_written_to_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    dataset_from_arrays(str(tmp_path / "d.zarr"), X, X[:, 0])
    assert os.listdir(tmp_path) == ["d.zarr"]


@pytest.mark.parametrize("length", [200, 240, 255])
def test_hidden_names_beside_a_place_are_no_longer_than_a_file_system_takes(tmp_path: Path, length: int) -> None:
    url = str(tmp_path / ("é" * 20 + "x" * (length - 40)))
    for sign in (1.0, -1.0):
        dataset_from_arrays(url, sign * X, X[:, 0], overwrite=True)
    assert np.array_equal(open_dataset(url).inputs(0, 60, standardised=False), -X)
    assert os.listdir(tmp_path) == [os.path.basename(url)]
    names = {beside(Path(url[:-1] + end), ".dkgp-lock-").name for end in "abc"}
    assert len(names) == 3
    assert all(len(name.encode()) <= 255 for name in names)
