"""Surroundings that a command meets: names that no file system takes, no working folder, full or closed streams."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dkgp.data.remote.storage import normalise_url
from dkgp.errors import InputError
from tests.cli.invoke import refused, run
from tests.cli.processes import ENVIRONMENT, PROGRAM, killed

LONG = "é" * 90 + "x" * 120  # 300 bytes
FULL = Path("/dev/full")


def _process(*command: object, **options: Any) -> tuple[int, str]:
    """Exit code and standard error of a command in a process of its own."""
    result = subprocess.run(
        [*PROGRAM, *map(str, command)], **{"env": ENVIRONMENT, "stdout": subprocess.PIPE, **options},
        stderr=subprocess.PIPE, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "Traceback" not in result.stderr
    assert "bug in dkgp" not in result.stderr
    return result.returncode, result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "ingest {csv} {long}.zarr --target y",
        "ingest {long}.csv new.zarr --target y",
        "train {train} --hyper {long} --out new.zarr",
        "train {train} --hyper {hyper} --out {long}",
        "train {train} --hyper {hyper} --out new.zarr --checkpoint {long}",
        "train {train} --hyper {hyper} --out new.zarr --plot {long}.png",
        "train {train} --hyper {hyper} --out new.zarr --log-json {long}.jsonl",
        "predict {model} {train} --out {long}.csv",
        "tune {train} --out {long}.json",
        "evaluate {long} {train}",
        "export {long} new.csv",
        "info {long}",
        "fit {csv} --target y --out {long}",
    ],
)
def test_a_name_that_is_too_long_is_refused_in_words(
    pipeline: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.csv").write_text("a,y\n" + "".join(f"{i},{i * i % 7}\n" for i in range(40)))
    places = {"csv": "d.csv", "long": LONG, "train": pipeline["ingest"]["train"], "hyper": pipeline["tune"]["out"]}
    result = run(*line.format(**places, model=pipeline["train"]["out"]).split())
    refused(result, "The name 'ééé", " bytes; file systems take 255. Choose a shorter one.")
    assert os.listdir(tmp_path) == ["d.csv"]


def test_names_are_counted_in_bytes_and_paths_too(tmp_path: Path) -> None:
    assert normalise_url(tmp_path / ("é" * 127)).endswith("é" * 127)
    with pytest.raises(InputError, match="has 256 bytes"):
        normalise_url(tmp_path / ("é" * 128))
    with pytest.raises(InputError, match=r"has 5,\d\d\d bytes; the system takes 4,095"):
        normalise_url("/" + "/".join(["y" * 100] * 50))
    with pytest.raises(InputError, match="null character"):
        normalise_url("a\0b")
    assert normalise_url("s3://bucket/" + "k" * 400).endswith("k")  # of a key the store says how long it may be


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.long
@pytest.mark.parametrize("line", ["--version", "train --help", "info {model}", "info {model} --json"])
def test_a_full_standard_output_is_told_in_words(pipeline: dict[str, Any], line: str) -> None:
    with FULL.open("w") as full:
        code, message = _process(*line.format(model=pipeline["train"]["out"]).split(), stdout=full)
    assert code == 3
    assert "cannot write to standard output: no space left on device. Redirect it to another file" in message


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.long
def test_progress_that_cannot_be_shown_ends_no_command(pipeline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "model.zarr"
    line = [*PROGRAM, "train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", str(out)]
    with FULL.open("w") as full:
        result = subprocess.run(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert result.returncode == 0
    assert "converged" in result.stdout
    assert out.exists()


@pytest.mark.long
def test_closed_streams_end_no_command_and_no_file_takes_their_place(pipeline: dict[str, Any], tmp_path: Path) -> None:
    predict = ["predict", pipeline["train"]["out"], pipeline["ingest"]["test"], "--cluster", "none", "--out"]
    expected, table = tmp_path / "expected.csv", tmp_path / "p.csv"
    assert run(*predict, expected).exit_code == 0
    script = 'exec "$@" >&-'
    line = [*PROGRAM, *map(str, predict), str(table)]
    result = subprocess.run(
        ["sh", "-c", script, "sh", *line], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert result.returncode == 0
    assert "standard output is closed; results are not printed" in result.stderr
    assert "Traceback" not in result.stderr
    assert table.read_bytes() == expected.read_bytes()
    table.unlink()
    code = subprocess.call(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *line], env=ENVIRONMENT)
    assert code == 0
    assert table.read_bytes() == expected.read_bytes()


@pytest.mark.long
def test_without_a_working_folder_absolute_paths_do(pipeline: dict[str, Any], tmp_path: Path) -> None:
    def in_removed_folder(*command: object) -> tuple[int, str]:
        gone = tmp_path / "gone"
        gone.mkdir()
        script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
        result = subprocess.run(
            ["sh", "-c", script, "sh", str(gone), *PROGRAM, *map(str, command)],
            env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert "Traceback" not in result.stderr
        return result.returncode, result.stderr

    train = ["train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out"]
    assert in_removed_folder(*train, tmp_path / "model.zarr")[0] == 0
    code, message = in_removed_folder(*train, "model.zarr")
    assert code == 3
    assert "The working folder was removed, and 'model.zarr' is relative to it" in message


@pytest.mark.parametrize("threads", ["0", "-2"])
def test_threads_that_numba_cannot_be_imported_with_are_refused(threads: str) -> None:
    code, message = _process("info", env={**ENVIRONMENT, "NUMBA_NUM_THREADS": threads})
    assert code == 2
    expected = "expected a number above zero. Set such a number, or unset the variable"
    assert message == f"dkgp: NUMBA_NUM_THREADS is {threads}; {expected}\n"


@pytest.mark.faults
@pytest.mark.parametrize("call", [1, 2])
def test_a_table_killed_while_its_store_was_laid_out_is_resumed(
    pipeline: dict[str, Any], tmp_path: Path, call: int
) -> None:
    out, calm = tmp_path / "p.csv", tmp_path / "calm.csv"
    predict = ["predict", pipeline["train"]["out"], pipeline["ingest"]["test"], "--cluster", "none", "--out"]
    assert run(*predict, calm).exit_code == 0
    killed("dkgp.data.stores.writable:create_array", [*predict, out], call=call)
    assert run(*predict, out, "--resume").exit_code == 0
    assert out.read_bytes() == calm.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["calm.csv", "p.csv"]
