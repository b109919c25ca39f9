"""Files beside stores: what may be written where, and what is not replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.outputs import RecordLog, check_output_file, check_side_files, write_text
from dkgp.data import dataset_from_arrays, open_dataset
from dkgp.data.remote import storage
from dkgp.data.remote.storage import open_new
from dkgp.errors import InputError, OutputExistsError, StorageError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    dataset_from_arrays(tmp_path / "victim.zarr", rng.random((20, 2)), rng.random(20))
    return tmp_path / "victim.zarr"


@pytest.mark.parametrize("name", ["dkgp-manifest.json", "zarr.json", "new.json", "inputs/c/0/0", "some/where/run.json"])
def test_nothing_is_written_inside_a_store(store: Path, tmp_path: Path, name: str) -> None:
    for folder in (store, tmp_path / "link"):
        if not folder.exists():
            folder.symlink_to(store)
        with pytest.raises(InputError, match=r"inside the dkgp store '.*victim\.zarr'"):
            check_output_file(folder / name, replace=True, option="`log_json`")
        with pytest.raises(InputError, match="inside the dkgp store"):
            check_side_files(None, str(folder / name), replace=True)
    (tmp_path / "beside.json").symlink_to(store / name)
    with pytest.raises(InputError, match="inside the dkgp store"):
        check_output_file(tmp_path / "beside.json", replace=True, option="`out`")
    assert open_dataset(store).n_samples == 20


def test_a_store_that_is_being_written_is_one(store: Path) -> None:
    (store / "dkgp-manifest.json").unlink()
    with pytest.raises(InputError, match="inside the dkgp store"):
        check_output_file(store / "run.json", replace=True, option="`log_json`")


@pytest.mark.parametrize(
    ("name", "option", "content"),
    [
        ("run.png", "--plot", b"an important letter"),
        ("run.pdf", "--plot", b"\x89PNG"),
        ("run.svg", "--plot", b"%PDF"),
        ("run.json", "`log_json`", b"s3cr3t-t0ken-of-somebody\n"),
        ("token", "`log_json`", b"s3cr3t-t0ken-of-somebody\n"),
        ("hyper.json", "--out", b"PK\x03\x04"),
    ],
)
def test_only_a_file_of_its_kind_is_replaced(tmp_path: Path, name: str, option: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OutputExistsError, match="is not replaced"):
        check_output_file(tmp_path / name, replace=True, option=option)
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize(
    ("name", "option", "content"),
    [
        ("run.png", "--plot", b"\x89PNG\r\n"),
        ("run.svg", "--plot", b"\n<?xml version"),
        ("run.log", "`log_json`", b'{"kind": "round"}\n'),
        ("run.log", "`log_json`", b""),
        ("pred.csv", "the table", b"row,mean\n"),
    ],
)
def test_what_dkgp_has_written_is_replaced(tmp_path: Path, name: str, option: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    check_output_file(tmp_path / name, replace=True, option=option)
    with pytest.raises(OutputExistsError, match="exists already"):
        check_output_file(tmp_path / name, replace=False, option=option)


def test_what_is_exchanged_for_a_link_after_the_check_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "of-somebody-else"
    victim.write_text('{"precious": 1}')
    for name in ("new.json", "earlier.json", "run.log"):
        place = tmp_path / name
        if name == "earlier.json":
            place.write_text("{}")
        option = "`log_json`" if name == "run.log" else "`out`"
        check_output_file(place, replace=True, option=option)
        place.unlink(missing_ok=True)
        place.symlink_to(victim)
        if option == "`log_json`":
            with RecordLog(place) as log:
                log.write({"iteration": 1})
        else:
            write_text(place, "[]")
        assert not place.is_symlink()
        assert victim.read_text() == '{"precious": 1}'
        assert "precious" not in place.read_text()


@pytest.mark.parametrize("write", [lambda place: write_text(place, "[]"), lambda place: open_new(place).close()])
def test_a_pipe_that_is_exchanged_for_a_link_is_not_written_through(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, place = tmp_path / "of-somebody-else", tmp_path / "pipe.json"
    victim.write_text("precious")
    os.mkfifo(place)
    opened = storage._open_device

    def exchanging(target: Path) -> int:
        place.unlink()
        place.symlink_to(victim)
        return opened(target)

    monkeypatch.setattr(storage, "_open_device", exchanging)
    with pytest.raises(StorageError, match="it was exchanged, and is not written to"):
        write(place)
    assert victim.read_text() == "precious"


def test_pipes_are_written_to(tmp_path: Path) -> None:
    place = tmp_path / "pipe.json"
    os.mkfifo(place)
    with ThreadPoolExecutor() as pool:
        content = pool.submit(place.read_text)
        write_text(place, "[]")
        assert content.result(10) == "[]"
        content = pool.submit(place.read_text)
        with open_new(place) as file:
            file.write("{}")
        assert content.result(10) == "{}"
    assert place.is_fifo()
