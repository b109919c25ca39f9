"""`dkgp bench pursuit`: figures as pictures and one record, what is absent said, what makes no sense refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import InputError, OutputExistsError
from dkgp_benchmarks.pursuit import planes
from dkgp_benchmarks.pursuit.job import BenchPursuitJob
from dkgp_benchmarks.pursuit.run import FIGURES, run_bench_pursuit


def test_pictures_and_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(planes, "COLUMNS", 8)
    reporter = SilentReporter()
    folder, record = tmp_path / "empty", tmp_path / "record.json"
    folder.mkdir()
    job = BenchPursuitJob(
        figures=("4", "3", "13"), data=str(folder), draws=2, plots=str(tmp_path / "plots"), out=str(record)
    )
    document = run_bench_pursuit(job, reporter)
    assert json.loads(record.read_text())["figures"] == document["figures"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["figure_3.png", "figure_4.png"]
    assert document["absent"] == ["13"]
    assert any("figure 13 is left out" in warning for warning in reporter.warnings)
    assert [row["figure"] for row in document["rows"]] == ["3"] * 3 + ["4"] * 4
    with pytest.raises(OutputExistsError, match=r"figure_3\.png"):
        run_bench_pursuit(job, reporter)


def test_figures_that_are_done_survive_one_that_breaks_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Any, reporter: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(planes, "figure_4", broken)
    record = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        run_bench_pursuit(BenchPursuitJob(figures=("3", "4"), out=str(record)), SilentReporter())
    assert {row["figure"] for row in json.loads(record.read_text())["rows"]} == {"3"}


def test_every_figure_of_the_paper_has_its_function() -> None:
    assert list(FIGURES) == [str(number) for number in range(3, 14)]


@pytest.mark.parametrize(("wrong", "words"), [({"draws": 0}, "`draws`"), ({"n": 5}, "`n`"), ({"pool": 1}, "`pool`")])
def test_numbers_that_make_no_sense(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run_bench_pursuit(BenchPursuitJob(**wrong), SilentReporter())
