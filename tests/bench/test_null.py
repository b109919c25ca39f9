"""The noise of a benchmark's ratios: the baseline raced against its own copy, said beside each ratio and recorded."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dkgp.bench.contenders import copy_of, ratio, take_turns
from dkgp.bench.problem import BenchProblem
from dkgp.bench.solve import BenchOverheadJob, BenchSolveJob, run_bench_overhead, run_bench_solve
from dkgp.bench.tiles import BenchTilesJob, run_bench_tiles
from dkgp.commands.reporting.measurements import Column, median_ratio, report
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.commands.solver_options import SolverOptions
from dkgp.plan.validation import measure_scaling


@pytest.fixture
def problem(tmp_path: Path) -> BenchProblem:
    path = tmp_path / "hyper.json"
    path.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    return BenchProblem(n=300, n_test=30, hyper=str(path))


def printed(document: dict[str, Any]) -> str:
    written = io.StringIO()
    console = Console(file=written, width=300)
    for table in tables(document):
        console.print(table)
    return written.getvalue()


def range_of(copies: list[float], originals: list[float]) -> list[float]:
    ratios = [copy / original for copy, original in zip(copies, originals, strict=True)]
    return [min(ratios), max(ratios)]


def test_a_ratio_is_printed_and_recorded_with_its_noise() -> None:
    known = median_ratio([4.0, 9.0, 4.4], [10.0, 20.0, 10.0], ([9.7, 21.0, 10.0], [10.0, 20.0, 10.0]))
    assert known == pytest.approx(0.44)
    assert known.null == (0.97, 1.05)
    unknown = median_ratio([1.0], [4.0])
    rows = [{"name": "a", "ratio": known}, {"name": "b", "ratio": unknown}]
    columns = (Column("name", "", text=True), Column("ratio", "ratio", ".2f"))
    document = report("x", "X", columns, rows, {"seconds_ours": known, "seconds_theirs": unknown})
    assert document["null"] == {"seconds_ours": [0.97, 1.05]}
    assert [row.get("null") for row in document["rows"]] == [{"ratio": [0.97, 1.05]}, None]
    shown = printed(json.loads(json.dumps(document)))
    assert shown.count("0.44 (null 0.97-1.05)") == 2
    assert shown.count("0.25") == 2
    assert shown.count("null") == 2
    assert "null" not in report("x", "X", columns, rows[1:], {"seconds_theirs": unknown})


def test_copies_take_their_turn_at_the_end_of_each_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def describe(name: str, repeat: int) -> dict[str, Any]:
        asked.append((name, repeat))
        return {"contender": name}

    seconds = iter([3.0, 10.0, 11.0, 5.0, 10.0, 8.0])
    monkeypatch.setattr(
        "dkgp.plan.validation.run_contender",
        lambda description, module, warn: {"seconds": (taken := next(seconds)), "factor": taken / 2.0},
    )
    runs = take_turns("", ("ours", "theirs"), 2, describe, SilentReporter(), copied=("theirs",))
    assert asked == [(name, repeat) for repeat in (0, 1) for name in ("ours", "theirs", "theirs")]
    found = ratio(runs, "ours", "theirs", "seconds")
    assert (found, found.null) == (0.4, (0.8, 1.1))
    found = ratio(runs, "ours", "theirs", "seconds", "factor")
    assert (found, found.null) == (0.8, (0.8, 1.1))
    del runs[copy_of("theirs")]
    assert ratio(runs, "ours", "theirs", "seconds").null is None


@pytest.mark.usefixtures("contenders_in_process")
def test_solve_races_its_references_against_themselves(problem: BenchProblem) -> None:
    job = BenchSolveJob(problem=problem, solvers=("gbcd",), repeats=2, null=True)
    document = run_bench_solve(job, SilentReporter())
    runs = document["settings"]["runs"]
    assert set(runs) == {"gbcd", "cholesky", "plain_pass", "cholesky, again", "plain_pass, again"}
    for name, reference, figure in (
        ("seconds_gbcd_to_cholesky", "cholesky", "seconds"),
        ("seconds_gbcd_to_cholesky_factor_alone", "cholesky", "factor_seconds"),
        ("memory_gbcd_to_cholesky", "cholesky", "peak_memory_bytes"),
        ("seconds_gbcd_to_plain_pass", "plain_pass", "seconds"),
    ):
        again, first = ([run[figure] for run in runs[turn]] for turn in (copy_of(reference), reference))
        assert document["null"][name] == pytest.approx(range_of(again, first))
    assert len(document["null"]) == 4
    assert [row["contender"] for row in document["rows"]] == ["gbcd", "cholesky", "plain_pass"]


@pytest.mark.usefixtures("contenders_in_process")
def test_overhead_races_no_dask_against_itself(problem: BenchProblem) -> None:
    options = SolverOptions("gbcd", block_size=100)
    job = BenchOverheadJob(problem=problem, solver=options, kinds=("none", "local"), repeats=1, null=True)
    document = run_bench_overhead(job, SilentReporter())
    runs = document["settings"]["runs"]
    expected = runs[copy_of("none")][0]["seconds"] / runs["none"][0]["seconds"]
    assert document["null"]["seconds_local_to_none"] == pytest.approx([expected, expected])
    assert "null" not in document["rows"][0]
    assert document["rows"][1]["null"]["ratio"] == pytest.approx([expected, expected])


def test_tiles_race_every_rival_against_itself() -> None:
    job = BenchTilesJob(features=(2,), rows=128, columns=128, repeats=3, pass_seconds=0.0005, null=True)
    document = run_bench_tiles(job, SilentReporter())
    for row in document["rows"]:
        assert set(row["null"]) == {f"dkgp_to_{name}" for name in ("exp", "gemm", "broadcast", "quickest", "parts")}
        assert all(0.0 < least <= most for least, most in row["null"].values())
        assert not any("again" in name for name in row)
    assert set(document["null"]) >= {"worst_dkgp_to_parts", "dkgp_to_exp_d2_single"}
    without = run_bench_tiles(
        BenchTilesJob(features=(2,), rows=64, columns=64, repeats=1, pass_seconds=0.0), SilentReporter()
    )
    assert "null" not in without


def test_scaling_gives_the_first_number_of_workers_a_second_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seconds, spans = iter([10.0, 6.0, 11.0]), iter([1.0, 1.25, 0.5])
    asked: list[int] = []

    def run(description: dict[str, Any], module: str) -> dict[str, Any]:
        asked.append(description["workers"])
        return {"seconds": next(seconds)}

    monkeypatch.setattr("dkgp.plan.validation.run_contender", run)
    monkeypatch.setattr("dkgp.plan.validation.entry_seconds", lambda kernel, precision, count: next(spans))
    hyper = tmp_path / "hyper.json"
    hyper.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05]}, "noise_variance": 0.04}))
    problem = {"train": "", "warm": "", "hyper": str(hyper)}
    scaling = measure_scaling(problem, SolverOptions(), (1, 2), 1, SilentReporter(), null=True)
    assert asked == [1, 2, 1]
    speedup, ceiling = scaling.ratio(2, 1, "seconds"), scaling.ceiling(2, 1)
    assert (speedup, speedup.null) == (10.0 / 6.0, (1.1, 1.1))
    assert (ceiling, ceiling.null) == (1.6, (2.0, 2.0))
