"""References in a store are opened only if they are plain places on storage within the limits."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from jinja2.exceptions import SecurityError
from packaging.version import Version

from dkgp.data import dataset_from_arrays, open_model, save_model
from dkgp.data.stores.models.references import limited_references, named_training_set, require_reference
from dkgp.errors import InputError, StoreError
from tests.data.stores.kinds import KERNEL
from tests.data.stores.references import knocks, point_elsewhere, shell_reference

Arrays = tuple[object, object]


@pytest.fixture
def model(tmp_path: Path, arrays: Arrays) -> Path:
    """A model by reference."""
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)  # type: ignore[arg-type]
    alpha = dataset.targets(0, dataset.n_samples)
    save_model(
        tmp_path / "model.zarr", kernel=KERNEL, noise_variance=0.1, alpha=alpha, dataset=dataset, by_reference=True
    )
    return tmp_path / "model.zarr"


@pytest.mark.parametrize(
    "written",
    [
        "http://127.0.0.1:{port}/train.zarr",
        "HTTP://127.0.0.1:{port}/train.zarr",
        "simplecache::http://127.0.0.1:{port}/train.zarr",
        "filecache::http://127.0.0.1:{port}/train.zarr",
        "file:///tmp/x::http://127.0.0.1:{port}/train.zarr",
        "webhdfs://127.0.0.1:{port}/train.zarr",
        "ftp://127.0.0.1:{port}/train.zarr",
        "sftp://127.0.0.1:{port}/train.zarr",
        "github://a:b@main/train.zarr",
        "local-but-not://train.zarr",
        "train.zarr",
        "~/train.zarr",
        "file://train.zarr",
        "/train.zarr\nx",
        "",
        None,
        7,
        ["/train.zarr"],
    ],
)
def test_what_is_no_plain_place_is_not_opened(model: Path, written: object) -> None:
    with knocks() as inner:
        url = written.format(port=inner.port) if isinstance(written, str) else written
        point_elsewhere(model, url)
        with pytest.raises(StoreError, match="names a training set that is not opened"):
            open_model(model)
        assert inner.count == 0


def test_a_chain_that_runs_a_command_does_not(model: Path, tmp_path: Path) -> None:
    point_elsewhere(model, shell_reference(tmp_path))
    with pytest.raises(StoreError, match="chains file systems"):
        open_model(model)
    assert not (tmp_path / "it-ran").exists()


def test_fsspec_confines_the_templates_of_references(tmp_path: Path) -> None:
    """A user may give such an address as an argument: with no release that is allowed does it run what a file says."""
    with pytest.raises((FileNotFoundError, SecurityError)), fsspec.open(shell_reference(tmp_path)) as file:
        file.read()
    assert not (tmp_path / "it-ran").exists()

    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    (floor,) = (line for line in project["dependencies"] if line.startswith("fsspec"))
    assert Version(floor.removeprefix("fsspec>=")) >= Version("2026.6")


def test_credentials_in_a_store_are_not_repeated(model: Path) -> None:
    point_elsewhere(model, "s3://user:hunter2@bucket/train.zarr")
    with pytest.raises(InputError) as caught:
        open_model(model)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["/data/train.zarr", "s3://b/t.zarr", "gs://b/t", "az://c/t", "abfs://c/t", "memory://t"]
)
def test_plain_places(url: str) -> None:
    assert require_reference(url, "model") == url


def test_limits_hold_for_what_is_named_and_end_with_their_block(model: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def refuse(place: str) -> None:
        seen.append(place)
        raise InputError("beyond the limits")

    with limited_references(refuse), pytest.raises(InputError, match="beyond the limits"):
        open_model(model)
    assert seen == [str(tmp_path / "train.zarr")]
    assert open_model(model).by_reference


def test_a_worker_opens_what_its_coordinator_has_checked_and_nothing_else(model: Path, tmp_path: Path) -> None:
    """Between the two the store may have been changed."""
    from dkgp.models.sums import SupportInputs

    found = SupportInputs.of(open_model(model), "version")
    assert found.address.reference == str(tmp_path / "train.zarr")
    (tmp_path / "train.zarr").rename(tmp_path / "other.zarr")
    point_elsewhere(model, str(tmp_path / "other.zarr"))
    assert open_model(model).reference == str(tmp_path / "other.zarr")
    with pytest.raises(StoreError, match="changed while it was used"):
        found.record()
    with pytest.raises(StoreError, match="changed while it was used"):
        open_model(model, reference="")


def test_a_worker_opens_the_model_that_its_coordinator_has_opened_and_no_other(model: Path, tmp_path: Path) -> None:
    """Two models of one training set: weights of one under the scale of the other would be predictions of neither."""
    from dkgp.models.sums import SupportInputs

    before = open_model(model).in_memory()
    before.save(model, overwrite=True)
    found = SupportInputs.of(open_model(model), "opened before both")
    before.save(model, overwrite=True)
    assert found.record().fingerprint == before.fingerprint, "a copy of the store is the same store"
    replace(before, summary={"again": True}).save(model, overwrite=True)
    assert open_model(model).fingerprint == before.fingerprint
    with pytest.raises(StoreError, match="was changed while it was used. Run the command again"):
        replace(found, version="opened after the second").record()


def test_a_model_is_not_saved_by_a_reference_that_would_not_be_opened(tmp_path: Path, arrays: Arrays) -> None:
    dataset = dataset_from_arrays(tmp_path / "train.zarr", *arrays)  # type: ignore[arg-type]
    dataset.url = "https://example.org/train.zarr"
    alpha = dataset.targets(0, dataset.n_samples)
    with pytest.raises(InputError, match="cannot refer to the training set 'https://example.org/train.zarr'"):
        save_model(
            tmp_path / "m.zarr", kernel=KERNEL, noise_variance=0.1, alpha=alpha, dataset=dataset, by_reference=True
        )
    assert not (tmp_path / "m.zarr").exists()


def test_what_a_model_names_is_told_without_opening_it(model: Path, tmp_path: Path) -> None:
    assert named_training_set(str(model)) == str(tmp_path / "train.zarr")
    assert named_training_set(str(tmp_path / "train.zarr")) is None
    assert named_training_set(str(tmp_path / "nothing")) is None


def test_a_manifest_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:

    os.mkfifo(tmp_path / "dkgp-manifest.json")
    assert named_training_set(str(tmp_path)) is None
