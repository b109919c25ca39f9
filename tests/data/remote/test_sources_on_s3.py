"""Sources on an object store are checked as local ones are."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from dkgp.data import ingest
from dkgp.data.remote.storage import write_object
from dkgp.errors import InputError
from tests.s3 import S3Server, use_s3


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, which this process works with."""
    use_s3(monkeypatch, server)
    return server


def upload(folder: Path, server: S3Server) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            write_object(server.url(path.relative_to(folder.parent).as_posix()), path.read_bytes())
    return server.url(folder.name)


@pytest.mark.long
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_group_is_read_and_its_codecs_are_checked(tmp_path: Path, s3: S3Server, zarr_format: int) -> None:
    folder = tmp_path / f"group-{zarr_format}.zarr"
    group = zarr.create_group(folder, zarr_format=zarr_format)
    group.create_array("X", data=np.arange(20.0).reshape(10, 2), chunks=(5, 2))
    group.create_array("y", data=np.arange(10.0), chunks=(5,))
    url = upload(folder, s3)
    dataset = ingest(url, tmp_path / "d.zarr", target="y").train
    np.testing.assert_array_equal(dataset.raw_inputs(0, 10), np.arange(20.0).reshape(10, 2))
    name, field, codec = (
        (".zarray", "filters", {"id": "pickle"}) if zarr_format == 2 else ("zarr.json", "codecs", "own")
    )
    document = json.loads((folder / "X" / name).read_text())
    document[field] = [*(document[field] or []), codec]
    write_object(f"{url}/X/{name}", json.dumps(document).encode())
    with pytest.raises(InputError, match="names the codec '(pickle|own)'"):
        ingest(url, tmp_path / "e.zarr", target="y")


def test_an_hdf5_file_that_names_a_local_one_is_refused(tmp_path: Path, s3: S3Server) -> None:
    (tmp_path / "token").write_bytes(b"secret" * 10)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["y"] = np.arange(60.0)
        file.create_dataset("a", (60,), "u1", external=[(str(tmp_path / "token"), 0, 60)])
    write_object(s3.url("a.h5"), (tmp_path / "a.h5").read_bytes())
    with pytest.raises(InputError, match="the values of the variable '/a' lie in external files"):
        ingest(s3.url("a.h5"), tmp_path / "d.zarr", target="y")
