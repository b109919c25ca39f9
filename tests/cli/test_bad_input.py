"""Bad input: exit code 3, a message that says what to do, no traceback, and nothing written."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import ClusterOptions
from tests.cli.invoke import document_of, files_below, refused, run
from tests.cli.processes import ENVIRONMENT, PROGRAM

GOOD_ROWS = "1,2,3\n2,3,5\n4,1,9\n3,3,3\n"


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        ("a,b,y\n1,nan,3\n2,3,5\n", ("--target", "y"), ("'b'", "NaN")),
        ("a,b,y\n1,2,3\n2,inf,5\n", ("--target", "y"), ("'b'", "infinity", "line 3")),
        ("a,b,y\n1,2,3\n2,3\n", ("--target", "y"), ("Line 3", "2 fields")),
        ("", ("--target", "y"), ("empty",)),
        ("a,b,y\n1,2,3\n2,red,5\n", ("--target", "y"), ("'b'", "'red'", "line 3")),
        ("a,b,y\n" + GOOD_ROWS, ("--target", "price"), ("'price'", "'a', 'b', 'y'")),
        ("a,b,y\n" + GOOD_ROWS, ("--target", "y", "--features", "a,c"), ("'c'", "feature")),
        ("a,b,y\n" + GOOD_ROWS, ("--target", "y", "--features", "a,y"), ("'y'", "among the features")),
        ("a,b,y\n1,2,3\n", ("--target", "y"), ("at least 2",)),
    ],
    ids=["nan", "infinity", "ragged", "empty", "text", "no target", "no feature", "target as feature", "too few"],
)
def test_ingest_refuses(tmp_path: Path, content: str, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    source = tmp_path / "data.csv"
    source.write_text(content)
    before = files_below(tmp_path)
    refused(run("ingest", source, tmp_path / "train.zarr", *arguments), *words)
    assert files_below(tmp_path) == before
    assert not (tmp_path / "train.zarr").exists()


def train_command(pipeline: dict[str, Any], out: Path, **changed: object) -> list[object]:
    options = {"--hyper": pipeline["tune"]["out"], "--out": out, "--block-size": 50, **changed}
    return ["train", pipeline["ingest"]["train"], *(part for option in options.items() for part in option)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_variance": -0.1}, ("noise_variance", "positive")),
        ({"noise_variance": 0.0}, ("noise_variance", "positive")),
        ({"kernel": {"type": "rbf", "gamma": [1, 1, -1, 1, 1, 1]}}, ("gamma[2]", "positive")),
        ({"kernel": {"type": "rbf", "gamma": [1, 1, 1]}}, ("3 features", "6")),
        ({"kernel": {"type": "quintic", "gamma": [1] * 6}}, ("'quintic'", "rbf")),
    ],
    ids=["negative noise", "no noise", "negative length scale", "wrong length", "unknown kernel"],
)
def test_train_refuses_hyperparameters(
    pipeline: dict[str, Any], tmp_path: Path, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    document = {"kernel": {"type": "rbf", "gamma": [1.0] * 6}, "noise_variance": 0.1, **change}
    (tmp_path / "hyper.json").write_text(json.dumps(document))
    before = files_below(tmp_path)
    refused(run(*train_command(pipeline, tmp_path / "model.zarr", **{"--hyper": tmp_path / "hyper.json"})), *words)
    assert files_below(tmp_path) == before


def test_block_size_above_n_is_reduced_with_a_warning(pipeline: dict[str, Any], tmp_path: Path) -> None:
    result = run(*train_command(pipeline, tmp_path / "model.zarr", **{"--block-size": 10_000}), "--json")
    trained = document_of(result)
    assert trained["settings"]["block_size"] == 600
    assert any("10,000" in message for message in trained["warnings"])
    assert "10,000" in result.stderr


def test_outputs_that_exist_need_overwrite(pipeline: dict[str, Any]) -> None:
    folder, train = pipeline["folder"], pipeline["ingest"]["train"]
    model, prediction = pipeline["train"]["out"], pipeline["predict"]["out"]
    commands: list[list[object]] = [
        ["ingest", folder / "data.csv", train, "--target", "price"],
        ["tune", train, "--out", pipeline["tune"]["out"]],
        train_command(pipeline, model),
        ["predict", model, pipeline["ingest"]["test"], "--out", prediction],
        ["evaluate", prediction, pipeline["ingest"]["test"], "--plot", folder / "fit.png"],
    ]
    for command in commands:
        refused(run(*command), "exists already", "--overwrite")
    assert run(*commands[3], "--overwrite").exit_code == 0


def test_overwrite_does_not_replace_another_kind_of_store(pipeline: dict[str, Any]) -> None:
    train = Path(pipeline["ingest"]["train"])
    refused(run(*train_command(pipeline, train), "--overwrite"), "dataset store", "will not be overwritten")
    assert (train / "X").is_dir()


@pytest.mark.parametrize("place", ["{tmp}/file.txt/model.zarr", "/proc/nowhere/model.zarr"])
def test_places_that_cannot_be_written(pipeline: dict[str, Any], tmp_path: Path, place: str) -> None:
    (tmp_path / "file.txt").write_text("not a folder")
    refused(run(*train_command(pipeline, Path(place.format(tmp=tmp_path)))), "Cannot write")


@pytest.mark.slow
def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((4000, 6)))
    before = files_below(tmp_path)
    finished = subprocess.run(
        [*PROGRAM, "ingest", str(tmp_path / "data.npy"), str(tmp_path / "train.zarr"), "--target", "0"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert finished.returncode == 3, finished.stderr
    assert "Cannot write" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert files_below(tmp_path) == before


def test_stores_that_are_missing_damaged_or_of_another_kind(pipeline: dict[str, Any], tmp_path: Path) -> None:
    train = tmp_path / "train.zarr"
    shutil.copytree(pipeline["ingest"]["train"], train)
    chunk = next(path for path in (train / "X" / "c").rglob("*") if path.is_file())
    content = chunk.read_bytes()
    hyper, out = ("--hyper", pipeline["tune"]["out"]), ("--out", tmp_path / "model.zarr")
    chunk.unlink()
    before = files_below(tmp_path)
    refused(run("train", train, *hyper, *out), "X/c/0", "missing")
    chunk.write_bytes(content[: len(content) // 2])
    refused(run("train", train, *hyper, *out), "X/c/0", "damaged")
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    chunk.write_bytes(bytes(flipped))
    refused(run("train", train, *hyper, *out), "X/c/0")
    chunk.unlink()
    assert files_below(tmp_path) == before
    refused(run("train", tmp_path / "nothing.zarr", *hyper, *out), "no dataset store")
    refused(run("train", pipeline["train"]["out"], *hyper, *out), "model store", "expected a dataset store")
    refused(run("info", tmp_path / "nothing.zarr"), "nothing at")


def test_test_store_with_other_features(pipeline: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b,y\n" + GOOD_ROWS)
    assert run("ingest", tmp_path / "other.csv", tmp_path / "other.zarr", "--target", "y").exit_code == 0
    out = tmp_path / "prediction.zarr"
    refused(
        run("predict", pipeline["train"]["out"], tmp_path / "other.zarr", "--out", out), "lacks the features", "'c'"
    )
    assert not out.exists()
    refused(run("evaluate", pipeline["predict"]["out"], tmp_path / "other.zarr"), "200 samples")


def test_data_without_targets(pipeline: dict[str, Any], tmp_path: Path) -> None:
    assert run("ingest", pipeline["folder"] / "data.csv", tmp_path / "inputs.zarr").exit_code == 0
    hyper, out = ("--hyper", pipeline["tune"]["out"]), ("--out", tmp_path / "model.zarr")
    refused(run("train", tmp_path / "inputs.zarr", *hyper, *out), "no targets", "--target")
    refused(run("tune", tmp_path / "inputs.zarr", "--out", tmp_path / "hyper.json"), "no targets", "--target")
    assert not (tmp_path / "hyper.json").exists()


@pytest.mark.long
def test_unreachable_scheduler_gives_up_in_time(
    pipeline: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A moment, instead of the twenty that a slow network gets.
    monkeypatch.setattr(
        "dkgp.cluster.configuration.ClusterOptions", partial(ClusterOptions, connect_timeout_seconds=1.0)
    )
    began = time.monotonic()
    result = run(*train_command(pipeline, tmp_path / "model.zarr", **{"--scheduler": "tcp://127.0.0.1:9"}), "--json")
    assert time.monotonic() - began < 20.0
    refused(result, "within 1 s", "tcp://127.0.0.1:9", "dask scheduler")
    assert json.loads(result.stdout)["error"]["exit_code"] == 3
    assert files_below(tmp_path) == {}


def test_traceback_only_for_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.commands.info.run_info", lambda *arguments: 1 / 0)
    plain = run("info")
    assert plain.exit_code == 1
    assert "--debug" in plain.stderr
    assert "Traceback" not in plain.output
    assert "Traceback" in run("info", "--debug").stderr
