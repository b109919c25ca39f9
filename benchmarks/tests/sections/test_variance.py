"""`dkgp bench variance` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoke import files_below, refused, run, run_json


@pytest.fixture
def hyper(tmp_path: Path) -> Path:
    path = tmp_path / "hyper.json"
    path.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    return path


@pytest.mark.slow
def test_json_and_record_agree(hyper: Path, tmp_path: Path) -> None:
    sizes = ("--samples", 300, "--test-samples", 30, "--hyper", hyper, "--repeats", 1)
    settings = ("--variance-gap", 0.05, "--max-passes", 6, "--variance-rank", 70, "--no-plain-pass")
    found = run_json("bench", "variance", *sizes, *settings, "--out", tmp_path / "v.json")
    assert [row["contender"] for row in found["rows"]] == ["dkgp, gap 0.05", "Cholesky"]
    assert found["rows"][0]["rank"] == 70
    assert found["rows"][0]["column_passes"] <= 6.0
    assert found["figures"]["samples_outside_interval"] == 0
    assert json.loads((tmp_path / "v.json").read_text()) == found


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--variance-gap", 0), 3, "positive"),
        (("--variance-gap", 0.1, "--variance-gap", 0.1), 2, "differ from each other"),
        (("--table", 3, "--data", "kin40k.npz"), 2, "--table takes"),
        (("--table", 5), 2, "'5' is not one of"),
        (("--data-folder", "."), 2, "goes with --table"),
        (("--model", "m.zarr", "--samples", 100), 2, "leave out --samples"),
        (("--model", "nowhere.zarr"), 3, "nowhere.zarr"),
        (("--plot", "v.doc"), 3, ".png"),
    ],
    ids=["gap", "gaps twice", "table and data", "table 5", "folder alone", "model and samples", "no model", "plot"],
)
def test_bad_input(tmp_path: Path, arguments: tuple[object, ...], exit_code: int, words: str) -> None:
    refused(run("bench", "variance", *arguments), words, exit_code=exit_code)
    assert files_below(tmp_path) == {}
