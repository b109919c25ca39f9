"""Archives whose members have names of other places: nothing is unpacked to a disk, whatever they are called."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import open_dataset
from tests.cli.invoke import files_below, refused, run

NAMES = ["../escaped", "../../escaped", "/tmp/dkgp-escaped", "..\\escaped", "a/../../escaped"]


def array_bytes(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def write_archive(place: Path, *members: tuple[zipfile.ZipInfo | str, bytes]) -> None:
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_members_with_names_of_other_places_are_written_nowhere(tmp_path: Path, name: str, suffix: str) -> None:
    folder = tmp_path / "deep" / "deeper"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    y = rng.random(20)
    write_archive(
        folder / "data.npz",
        ("X.npy", array_bytes(rng.random((20, 2)))),
        ("y.npy", array_bytes(y)),
        (name + suffix, array_bytes(rng.random(20))),
    )
    before = files_below(tmp_path)
    result = run("ingest", folder / "data.npz", folder / "out.zarr", "--target", "y")
    assert "Traceback" not in result.output
    assert result.exit_code in (0, 2, 3)
    assert not Path("/tmp/dkgp-escaped" + suffix).exists()
    # Nothing but the store, which is whole or not there.
    assert {path for path in files_below(tmp_path) if not path.startswith(str(folder / "out.zarr"))} == set(before)
    assert (folder / "out.zarr").exists() == (result.exit_code == 0)
    if result.exit_code == 0:
        assert open_dataset(str(folder / "out.zarr")).n_samples == 20


def test_a_link_in_an_archive_is_no_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, np.arange(20.0))
    link = zipfile.ZipInfo("y.npy")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    write_archive(tmp_path / "data.npz", ("X.npy", array_bytes(np.ones((20, 2)))), (link, str(secret).encode()))
    refused(run("ingest", tmp_path / "data.npz", tmp_path / "out.zarr", "--target", "y"), "not a whole NPY array")
    assert not (tmp_path / "out.zarr").exists()


def test_a_size_that_is_only_declared_takes_no_room(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**14, 2)})
    write_archive(tmp_path / "data.npz", ("X.npy", header.getvalue()), ("y.npy", array_bytes(np.ones(20))))
    result = run("ingest", tmp_path / "data.npz", tmp_path / "out.zarr", "--target", "y")
    refused(result)
    assert "out of memory" not in result.stderr
    assert not (tmp_path / "out.zarr").exists()
