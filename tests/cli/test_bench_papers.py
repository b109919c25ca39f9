"""`dkgp bench papers` as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SMALL = ("--samples", 120, "--test-samples", 30, "--subset", 60, "--block-size", 20, "--max-passes", 6)


@pytest.fixture
def data(tmp_path: Path, rng: np.random.Generator) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    X = rng.random((200, 2))
    np.savez(folder / "abalone.npz", X=X, y=np.sin(6.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(200))
    return folder


def test_json_and_record_agree(
    run: Callable[..., Any], document: Callable[..., dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    parts = ("--table", 2, "--figure", "kcg", "--problem", "abalone")
    found = document(run("bench", "papers", "--data", data, *parts, *SMALL, "--out", tmp_path / "p.json", "--json"))
    assert [section["section"] for section in found["sections"]] == ["table_2:abalone", "figure_kcg:abalone"]
    assert found["benchmark"] == "papers"
    assert json.loads((tmp_path / "p.json").read_text()) == found


def test_tables_for_people(run: Callable[..., Any]) -> None:
    result = run("bench", "papers", "--figure", 4, "--sizes", "60,120", *SMALL)
    assert result.exit_code == 0, result.stderr
    for words in ("absent", "Outaouais", "Figure 4", "GBCD, as in the paper", "What differs from the papers"):
        assert words in result.stdout


def test_variances_are_those_of_the_other_benchmark(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pretend(job: Any, reporter: Any) -> dict[str, Any]:
        asked.append(job)
        return {"title": "Table 3", "columns": [], "rows": [], "figures": {}}

    monkeypatch.setattr("dkgp.bench.papers.papers.run_bench_paper_table", pretend)
    result = run("bench", "papers", "--table", 3, *SMALL)
    assert result.exit_code == 0, result.stderr
    assert "Table 3" in result.stdout
    assert (asked[0].table, asked[0].trial.problem.n, asked[0].trial.repeats) == (3, 120, 1)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--problem", "kin40k"), 2, "Kin40k of the paper is absent"),
        (("--problem", "nonesuch"), 2, "friedman1"),
        (("--table", 5), 2, "'5' is not one of"),
        (("--figure", "5"), 2, "'5' is not one of"),
        (("--data", "nowhere"), 3, "nowhere"),
        (("--sizes", "1,x"), 2, "whole numbers"),
        (("--tol", 0), 3, "tolerance"),
        (("--block-size", 0), 3, "--block-size"),
    ],
    ids=["absent", "unknown", "table", "figure", "folder", "sizes", "tolerance", "block"],
)
def test_bad_input(refuses: Callable[..., None], arguments: tuple[object, ...], exit_code: int, words: str) -> None:
    refuses("bench", "papers", *arguments, words=words, exit_code=exit_code)
