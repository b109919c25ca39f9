"""Files beside stores: what may be written where, and what is not replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.commands.reporting.outputs import check_output_file, check_side_files
from dkgp.data import dataset_from_arrays, open_dataset
from dkgp.errors import InputError, OutputExistsError


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
            check_output_file(folder / name, replace=True, option="--log-json")
        with pytest.raises(InputError, match="inside the dkgp store"):
            check_side_files(None, str(folder / name), replace=True)
    (tmp_path / "beside.json").symlink_to(store / name)
    with pytest.raises(InputError, match="inside the dkgp store"):
        check_output_file(tmp_path / "beside.json", replace=True, option="--out")
    assert open_dataset(store).n_samples == 20


def test_a_store_that_is_being_written_is_one(store: Path) -> None:
    (store / "dkgp-manifest.json").unlink()
    with pytest.raises(InputError, match="inside the dkgp store"):
        check_output_file(store / "run.json", replace=True, option="--log-json")


@pytest.mark.parametrize(
    ("name", "option", "content"),
    [
        ("run.png", "--plot", b"an important letter"),
        ("run.pdf", "--plot", b"\x89PNG"),
        ("run.svg", "--plot", b"%PDF"),
        ("run.json", "--log-json", b"s3cr3t-t0ken-of-somebody\n"),
        ("token", "--log-json", b"s3cr3t-t0ken-of-somebody\n"),
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
        ("run.log", "--log-json", b'{"kind": "round"}\n'),
        ("run.log", "--log-json", b""),
        ("pred.csv", "the table", b"row,mean\n"),
    ],
)
def test_what_dkgp_has_written_is_replaced(tmp_path: Path, name: str, option: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    check_output_file(tmp_path / name, replace=True, option=option)
    with pytest.raises(OutputExistsError, match="exists already"):
        check_output_file(tmp_path / name, replace=False, option=option)
