"""A mistake in dkgp's own lines is told as one; what is wrong with a file or store is told as that, whatever raises."""

from __future__ import annotations

import io
import json
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dkgp.data import dataset_from_arrays
from dkgp.data.sources import parquet as parquet_source
from dkgp.data.sources.base import refused_as
from dkgp.data.stores import arrays as stored_arrays
from dkgp.data.stores.manifest import described_whole
from dkgp.errors import InputError, StoreError
from tests.cli.invoke import refused, run
from tests.data.stores.kinds import rewrite_manifest

MISTAKES = (AttributeError, IndexError, KeyError, NameError, TypeError, ZeroDivisionError)


def mistaken(module: Any, mistake: type[Exception]) -> Callable[..., Any]:
    """A function whose line is one of a module's, as far as Python knows, and raises."""
    scope: dict[str, Any] = {"mistake": mistake}
    exec(compile("def function(*arguments, **more): raise mistake('of ours')", module.__file__, "exec"), scope)
    return scope["function"]  # type: ignore[no-any-return]


def told_as_a_bug(*command: object, mistake: type[Exception]) -> None:
    result = run(*command)
    assert result.exit_code == 1, result.stderr
    assert f"{mistake.__name__}: " in result.stderr
    assert "This is a bug in dkgp" in result.stderr


@pytest.fixture
def data(tmp_path: Path, rng: np.random.Generator) -> Path:
    X = rng.normal(size=(60, 2))
    dataset_from_arrays(tmp_path / "data.zarr", X, X.sum(axis=1))
    return tmp_path / "data.zarr"


@pytest.fixture
def model(tmp_path: Path, data: Path) -> Path:
    options = ("--max-passes", 30, "--cluster", "none")
    hyper = tmp_path / "hyper.json"
    hyper.write_text(
        json.dumps({"kernel": {"type": "rbf", "variance": 1.0, "gamma": [0.5, 0.5]}, "noise_variance": 0.1})
    )
    result = run("train", data, "--hyper", hyper, "--out", tmp_path / "model.zarr", *options)
    assert result.exit_code == 0, result.stderr
    return tmp_path / "model.zarr"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_reading_a_store_is_a_bug(
    model: Path, data: Path, mistake: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stored_arrays.StoredArray, "_handle", mistaken(stored_arrays, mistake))
    command = ("predict", model, data, "--out", tmp_path / "out.zarr", "--cluster", "none")
    told_as_a_bug(*command, mistake=mistake)
    assert not (tmp_path / "out.zarr").exists()


def test_a_mistake_beyond_a_chunk_is_a_bug(model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the values of a whole chunk are looked at, while a model is opened.
    monkeypatch.setattr(stored_arrays, "_holds_fill_value", mistaken(stored_arrays, TypeError))
    told_as_a_bug("predict", model, data, "--out", model.with_name("out.zarr"), mistake=TypeError)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_reading_a_table_is_a_bug(
    tmp_path: Path, mistake: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    pd.DataFrame({"a": [1.0, 2.0], "y": [0.0, 1.0]}).to_parquet(tmp_path / "whole.parquet")
    monkeypatch.setattr(parquet_source, "_numeric", mistaken(parquet_source, mistake))
    told_as_a_bug("ingest", tmp_path / "whole.parquet", tmp_path / "data.zarr", "--target", "y", mistake=mistake)


def test_a_signal_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd.DataFrame({"a": [1.0, 2.0], "y": [0.0, 1.0]}).to_parquet(tmp_path / "whole.parquet")
    command = ("ingest", tmp_path / "whole.parquet", tmp_path / "data.zarr", "--target", "y")
    monkeypatch.setattr(parquet_source, "_numeric", lambda *_: signal.raise_signal(signal.SIGINT))
    refused(run(*command), "dkgp ingest: interrupted by SIGINT", exit_code=130)
    monkeypatch.setattr(parquet_source, "_numeric", lambda *_: signal.raise_signal(signal.SIGTERM))
    for more in ((), ("--json",)):
        # It was the tests that were to end.
        with pytest.raises(pytest.exit.Exception, match="SIGTERM"):
            run(*command, *more)
    assert not (tmp_path / "data.zarr").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["metadata"].pop("kernel"),
        lambda manifest: manifest["metadata"].update(history=3),
        lambda manifest: manifest["metadata"].update(chunk_rows="some"),
        lambda manifest: manifest["metadata"].update(standardisation=[]),
        lambda manifest: manifest["metadata"].update(trend="up"),
        lambda manifest: manifest["metadata"].update(certificate={"rounding": "none"}),
        lambda manifest: manifest["arrays"].pop("alpha"),
        lambda manifest: manifest["arrays"].pop("inputs"),
    ],
)
def test_what_a_manifest_gets_wrong_is_bad_input(model: Path, data: Path, change: Callable[[Any], Any]) -> None:
    rewrite_manifest(model, change)
    refused(run("predict", model, data, "--out", model.with_name("out.zarr"), "--cluster", "none"), "manifest of")


@pytest.mark.parametrize(
    "read",
    [
        lambda: zipfile.ZipFile(io.BytesIO(b"none")),
        lambda: zipfile.ZipFile(io.BytesIO(), "w").read("of no such name"),
        lambda: json.loads("{"),
        lambda: json.loads(object()),  # type: ignore[arg-type]
        lambda: np.load(io.BytesIO(b"none")),
        lambda: b"\xff".decode(),
    ],
)
def test_what_a_library_raises_of_a_file_is_bad_input(read: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=r"^the file is damaged: "), refused_as("the file is damaged"):
        read()


def test_errors_of_dkgp_stay_what_they_are() -> None:
    with pytest.raises(StoreError, match="^of a store$"), refused_as("the file is damaged"):
        raise StoreError("of a store")


def test_only_json_is_blamed_on_a_manifest() -> None:
    content: Any = {"names": "some"}
    wrong = pytest.raises(StoreError, match=r"'str' object has no attribute 'keys'.*train again")
    with wrong, described_whole("model.zarr", "train again"):
        content["names"].keys()
    record: Any = np.zeros(3)
    with pytest.raises(AttributeError, match="no attribute 'reshaped'"), described_whole("model.zarr", "train again"):
        record.reshaped(3)
