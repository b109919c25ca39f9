"""`dkgp bench papers` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invoke import files_below, refused, run, run_json

SIZES = ("--samples", 120, "--test-samples", 30, "--subset", 60)
SMALL = (*SIZES, "--block-size", 20, "--max-passes", 6, "--draws", 1)


@pytest.fixture
def data(tmp_path: Path, rng: np.random.Generator) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    X = rng.random((200, 2))
    np.savez(folder / "abalone.npz", X=X, y=np.sin(6.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(200))
    return folder


@pytest.mark.long
def test_json_and_record_agree(data: Path, tmp_path: Path) -> None:
    parts = ("--table", 2, "--figure", "kcg", "--problem", "abalone")
    found = run_json("bench", "papers", "--data", data, *parts, *SMALL, "--out", tmp_path / "p.json")
    assert [section["section"] for section in found["sections"]] == ["table_2:abalone", "figure_kcg:abalone"]
    assert found["benchmark"] == "papers"
    assert json.loads((tmp_path / "p.json").read_text()) == found


def test_tables_for_people() -> None:
    few = ("--test-samples", 30, "--subset", 60, "--block-size", 20, "--max-passes", 6, "--draws", 1)
    result = run("bench", "papers", "--figure", 4, "--sizes", "60,120", *few)
    assert result.exit_code == 0, result.stderr
    for words in ("absent", "Outaouais", "Figure 4", "GBCD, as in the paper", "Differences from the papers"):
        assert words in result.stdout


def test_variances_are_those_of_the_other_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pretend(job: Any, reporter: Any) -> dict[str, Any]:
        asked.append(job)
        return {"rows": [{"data": "Friedman1", "paper_rmse": 0.001, "note": "pretended"}], "figures": {}}

    monkeypatch.setattr("dkgp_benchmarks.variance.paper_tables.run_bench_paper_table", pretend)
    found = run_json("bench", "papers", "--table", 3, *SIZES, "--draws", 2)
    (section,) = found["sections"]
    assert section["title"].startswith("Table 3: friedman1")
    assert section["rows"][0]["note"] == "pretended"
    assert (asked[0].table, asked[0].trial.problem.n, asked[0].trial.repeats) == (3, 120, 1)
    assert [job.trial.problem.seed for job in asked] == [0, 1]
    assert asked[0].only == ("Friedman1",)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--problem", "kin40k"), 2, "Kin40k of the paper is absent"),
        (("--problem", "nonesuch"), 2, "friedman1"),
        (("--table", 6), 2, "'6' is not one of"),
        (("--table", 5), 2, "HumanEva itself cannot be had"),
        (("--part", "gbcd"), 2, "unknown part of a paper 'gbcd'"),
        (("--report", "folder", "--plots", "other"), 2, "leave out --plots"),
        (("--figure", "5"), 2, "'5' is not one of"),
        (("--data", "nowhere"), 3, "nowhere"),
        (("--sizes", "1,x"), 2, "whole numbers"),
        (("--tol", 0), 3, "tolerance"),
        (("--block-size", 0), 3, "--block-size"),
    ],
    ids=[
        "absent",
        "unknown",
        "table",
        "missing",
        "part",
        "pictures",
        "figure",
        "folder",
        "sizes",
        "tolerance",
        "block",
    ],
)
def test_bad_input(tmp_path: Path, arguments: tuple[object, ...], exit_code: int, words: str) -> None:
    refused(run("bench", "papers", *arguments), words, exit_code=exit_code)
    assert files_below(tmp_path) == {}


def test_a_report_of_one_part(tmp_path: Path) -> None:
    few = ("--test-samples", 30, "--subset", 60, "--block-size", 20, "--max-passes", 6, "--draws", 1)
    part = ("--part", "gbcd-figure-4", "--sizes", "60,120", *few)
    found = run_json("bench", "papers", "--report", tmp_path / "report", *part)
    assert [(row["part"], row["status"], row["pictures"]) for row in found["rows"]] == [("gbcd-figure-4", "done", 1)]
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Figure 4: Friedman1, d = 10" in page
    assert "--sizes 60,120" in page
    kept = json.loads((tmp_path / "report" / "records" / "gbcd-figure-4.json").read_text())
    assert {row["n"] for row in kept["sections"][0]["rows"]} == {60, 120}
    again = run("bench", "papers", "--report", tmp_path / "report", *part)
    assert again.exit_code == 0
    assert "part 1 of 1: gbcd-figure-4 is there already" in again.stderr
