"""The report of the papers: two parts of its own making, on a clock of its own, and what becomes of their page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.errors import InputError, MissingExtraError, NumericalError, UsageError
from dkgp_benchmarks.papers.papers import BenchPapersJob
from dkgp_benchmarks.papers.part import PARTS, Drawing, Part, Shown, Work
from dkgp_benchmarks.papers.tables import section
from dkgp_benchmarks.report import run as report_module
from dkgp_benchmarks.report.folder import ReportFolder
from dkgp_benchmarks.report.run import run_report

COLUMNS = (
    Column("what", "what", text=True),
    Column("ours", "here", ".3f"),
    Column("ours_spread", "+-", ".1f"),
    Column("paper", "the paper", ".3f"),
    Column("ratio", "ratio", ".2f"),
)
EVIL = "<script>alert('x')</script> & \"quotes\""


@dataclass
class Clock:
    """Ten seconds pass whenever it is looked at."""

    now: float = 1_790_000_000.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


@dataclass
class Stage:
    """Parts that note their runs, and fail when they are told to."""

    runs: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    fail: dict[str, BaseException] = field(default_factory=dict)
    title: str = "A table"

    def run(self, work: Work, name: str) -> Iterator[Shown]:
        self.runs.append(f"{name}{':' if work.variant else ''}{work.variant}")

        def make() -> dict[str, Any]:
            self.made.append(name)
            return {"value": 2.0 * work.settings["n"] + work.seed}

        kept = work.keep("draw-0", make)
        if (failure := self.fail.pop(name, None)) is not None:
            raise failure
        rows = [
            {
                "what": f"seed {work.seed}",
                "ours": kept["value"],
                "ours_spread": 0.5,
                "paper": 100.0,
                "ratio": kept["value"] / 100.0,
            }
        ]
        shown = section(f"table_{name}", f"{self.title} of {name}", COLUMNS, rows, remark=EVIL)
        yield Shown(shown, Drawing("any", lambda figure: None) if name == "second" else None)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Two parts, the second of which has a picture and reads a file, instead of those of the papers."""
    own = Stage()

    def part(name: str, paper: str, **more: Any) -> Part:
        def run(work: Work) -> Iterator[Shown]:
            return own.run(work, name)

        sizes = {"quick": {"n": 60}, "full": {"n": 6000}}
        return Part(name, paper, f"Part {name}", f"It shows {name}.", (f"table {name}",), run, **sizes, **more)

    PARTS.all()
    second = part("second", "sb", reads=lambda variant: ("abalone",))
    monkeypatch.setattr(PARTS, "_found", {"first": part("first", "gbcd"), "second": second})

    def draw(folder: Path, shown: Shown) -> Path:
        assert shown.drawing is not None
        folder.mkdir(exist_ok=True)
        (folder / f"{shown.drawing.name}.png").write_bytes(b"\x89PNG")
        return folder / shown.drawing.name

    monkeypatch.setattr(report_module, "draw", draw)
    return own


@pytest.fixture
def job(tmp_path: Path) -> BenchPapersJob:
    return BenchPapersJob(report=str(tmp_path / "report"))


class Reader(HTMLParser):
    """All that a page refers to, its ids, and that every element is closed in turn."""

    VOID = ("meta", "img", "link", "br", "hr")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("href", "src", "action", "srcset", "data"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(job: BenchPapersJob) -> Reader:
    assert job.report is not None
    html = (Path(job.report) / "index.html").read_text(encoding="utf-8")
    page = Reader(html)
    # Nothing from elsewhere: links are within the page or to files beside it.
    assert "url(" not in html
    assert "@import" not in html
    for link in page.links:
        assert not link.startswith(("http", "//", "/", "data:", "javascript:")), link
        if link.startswith("#"):
            assert link[1:] in page.ids
        else:
            assert (Path(job.report) / link).is_file(), link
    assert len(set(page.ids)) == len(page.ids)
    return page


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {row["part"]: row["status"] for row in document["rows"]}


def records(job: BenchPapersJob) -> dict[str, bytes]:
    assert job.report is not None
    return {path.stem: path.read_bytes() for path in (Path(job.report) / "records").iterdir()}


def test_the_page_has_ours_beside_the_papers(stage: Stage, job: BenchPapersJob) -> None:
    document = run_report(job, SilentReporter(), clock=Clock())
    assert statuses(document) == {"first": "done", "second": "done"}
    assert (document["exit_code"], document["complete"]) == (0, True)
    assert tables(document)
    page = read(job)
    words = " ".join(" ".join(page.text).split())
    for shown in (
        "2 of 2 parts",
        "20.0 s of measuring",  # ten each, by the clock
        "It shows first.",
        "A table of second",
        "120.000 ± 0.5 100.000 1.20",
        "the paper",
        "short form",
        "data generated, since no folder was given",
        "dkgp bench papers --report",
        "--part second",
        "What is missing, and why",
        "Outaouais",
        "HumanEva",
        "3.6 GHz Pentium 4",
        EVIL.replace("  ", " "),
    ):
        assert shown in words, shown
    assert "script" not in page.tags
    assert "pictures/second-1.png" in page.links
    assert "records/first.json" in page.links
    record = json.loads(records(job)["second"])
    assert (record["status"], record["seconds"], record["asked"]["settings"]) == ("done", 10.0, {"seed": 0, "n": 60})
    assert record["asked"]["data"] == {"abalone": None}
    assert record["machine"]["dkgp"] == record["dkgp"]
    assert not list((Path(str(job.report)) / "partial").iterdir())


def test_an_interrupted_report_goes_on_where_it_was(stage: Stage, job: BenchPapersJob) -> None:
    stage.fail["second"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_report(job, SilentReporter(), clock=Clock())
    words = " ".join(read(job).text)
    assert "1 of 2 parts, 1 to come" in words
    assert "to come" in words
    before = records(job)
    assert set(before) == {"first"}
    reporter = SilentReporter()
    document = run_report(job, reporter, clock=Clock())
    assert statuses(document) == {"first": "done", "second": "done"}
    assert document["rows"][0]["note"] == "taken over"
    assert stage.runs == ["first", "second", "second"]
    assert stage.made == ["first", "second"]  # what the second had kept on its way is not made again
    assert records(job)["first"] == before["first"]
    assert "2 of 2 parts" in " ".join(read(job).text)


def test_more_draws_go_on_with_those_that_there_are(
    stage: Stage, job: BenchPapersJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(work: Work) -> Iterator[Shown]:
        def make(draw: int) -> dict[str, Any]:
            stage.made.append(str(draw))
            return {"draw": draw}

        draws = [work.keep(f"draw-{draw}", partial(make, draw)) for draw in range(work.settings["draws"])]
        yield Shown(section("table_first", f"{len(draws)} draws", COLUMNS, []))

    sizes: dict[str, Any] = {"quick": {"n": 60, "draws": 2}, "full": {"n": 6000, "draws": 100}}
    monkeypatch.setitem(PARTS._found, "first", replace(PARTS.find("first"), run=run, **sizes))
    for draws, made in ((2, ["0", "1"]), (4, ["2", "3"]), (3, []), (4, [])):
        stage.made.clear()
        run_report(replace(job, draws=draws, parts=("first",)), SilentReporter(), clock=Clock())
        assert stage.made == made
        assert f"{draws} draws" in " ".join(read(job).text)
    # Another question has other draws.
    run_report(replace(job, draws=1, n=70, parts=("first",)), SilentReporter(), clock=Clock())
    assert stage.made == ["0"]


def test_other_settings_data_or_versions_are_measured_anew(
    stage: Stage, job: BenchPapersJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(job: BenchPapersJob) -> list[str]:
        stage.runs.clear()
        run_report(job, SilentReporter(), clock=Clock())
        return list(stage.runs)

    both = ["first", "second"]
    assert runs(job) == both
    assert runs(job) == []
    assert runs(replace(job, seed=1)) == both
    assert "seed 1" in " ".join(read(job).text)
    (tmp_path / "data").mkdir()
    job = replace(job, seed=1, data=str(tmp_path / "data"))
    assert runs(job) == []
    np.savez(tmp_path / "data" / "abalone.npz", X=np.eye(3), y=np.arange(3))
    assert runs(job) == ["second"]
    assert runs(replace(job, overwrite=True)) == both
    monkeypatch.setattr("dkgp_benchmarks.report.folder.__version__", "99")
    assert runs(job) == both


def test_what_the_papers_sizes_took_is_not_given_up_for_minutes(stage: Stage, job: BenchPapersJob) -> None:
    run_report(job, SilentReporter(), clock=Clock())
    run_report(replace(job, full=True, parts=("first",)), SilentReporter(), clock=Clock())
    assert stage.runs == ["first", "second", "first"]
    stage.runs.clear()
    run_report(job, SilentReporter(), clock=Clock())
    assert stage.runs == []
    assert "12000.000" in " ".join(read(job).text)
    run_report(replace(job, overwrite=True), SilentReporter(), clock=Clock())
    assert stage.runs == ["first", "second"]


def test_a_part_that_fails_is_told_and_the_others_go_on(stage: Stage, job: BenchPapersJob) -> None:
    stage.fail["first"] = NumericalError(f"it broke down at {EVIL}")
    document = run_report(job, SilentReporter(), clock=Clock())
    assert statuses(document) == {"first": "failed", "second": "done"}
    assert (document["exit_code"], document["complete"]) == (3, False)
    assert "first failed: NumericalError" in document["warnings"][0]
    page = read(job)
    words = " ".join(" ".join(page.text).split())
    assert f"NumericalError: it broke down at {EVIL}" in words
    assert "1 failed" in words
    assert "script" not in page.tags
    # A bug has its traceback on the page, and code 1; and what failed is tried again.
    stage.fail["first"] = ZeroDivisionError("by nothing")
    document = run_report(job, SilentReporter(), clock=Clock())
    assert document["exit_code"] == 1
    assert "Traceback (most recent call last)" in " ".join(read(job).text)
    assert run_report(job, SilentReporter(), clock=Clock())["exit_code"] == 0
    assert stage.runs == ["first", "second", "first", "first"]


def test_a_package_that_is_not_there_is_no_failure(stage: Stage, job: BenchPapersJob) -> None:
    stage.fail["second"] = MissingExtraError("scikit-learn", "sklearn", "The part")
    document = run_report(job, SilentReporter(), clock=Clock())
    assert statuses(document) == {"first": "done", "second": "missing"}
    assert document["exit_code"] == 0
    assert "pip install 'dkgp[sklearn]'" in " ".join(read(job).text)


def test_one_part_alone_leaves_the_others_as_they_were(stage: Stage, job: BenchPapersJob) -> None:
    run_report(replace(job, parts=("second",)), SilentReporter(), clock=Clock())
    assert stage.runs == ["second"]
    assert "not asked for" in " ".join(read(job).text)
    run_report(replace(job, tables=("first",)), SilentReporter(), clock=Clock())
    assert stage.runs == ["second", "first"]
    words = " ".join(read(job).text)
    assert "not asked for" not in words
    assert "A table of second" in words


def test_damaged_records_and_lost_pictures_are_made_anew(stage: Stage, job: BenchPapersJob) -> None:
    run_report(job, SilentReporter(), clock=Clock())
    folder = Path(str(job.report))
    (folder / "records" / "first.json").write_bytes(records(job)["first"][:-40])
    (folder / "pictures" / "second-1.png").unlink()
    stage.runs.clear()
    run_report(job, SilentReporter(), clock=Clock())
    assert stage.runs == ["first", "second"]
    read(job)


def test_records_of_data_that_are_gone_stay_on_the_page(
    stage: Stage, job: BenchPapersJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_data(names: tuple[str, ...]) -> None:
        changed = replace(PARTS.find("first"), variants=lambda library, problems: names, missing="it needs kin40k")
        monkeypatch.setitem(PARTS._found, "first", changed)

    by_data(("kin40k", "california"))
    run_report(job, SilentReporter(), clock=Clock())
    assert stage.runs == ["first:kin40k", "first:california", "second"]
    by_data(("california",))
    run_report(job, SilentReporter(), clock=Clock())
    assert "first-kin40k" in read(job).ids
    by_data(())
    document = run_report(job, SilentReporter(), clock=Clock())
    assert {"part": "first", "status": "missing", "note": "it needs kin40k"} in document["rows"]
    assert len(stage.runs) == 3


def test_the_short_form_takes_few_data_sets_and_says_which_not(
    stage: Stage, job: BenchPapersJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def variants(library: Any, problems: tuple[str, ...]) -> tuple[str, ...]:
        return problems or ("a", "b", "c")

    changed = replace(PARTS.find("first"), variants=variants, few=("b",))
    monkeypatch.setitem(PARTS._found, "first", changed)
    run_report(replace(job, parts=("first",)), SilentReporter(), clock=Clock())
    assert stage.runs == ["first:b"]
    assert "left out of the short form: a, c" in " ".join(read(job).text)
    run_report(replace(job, parts=("first:c",)), SilentReporter(), clock=Clock())
    run_report(replace(job, parts=("first",), full=True), SilentReporter(), clock=Clock())
    assert stage.runs[1:] == ["first:c", "first:a", "first:b", "first:c"]


def test_folders_of_others_are_refused(stage: Stage, job: BenchPapersJob, tmp_path: Path) -> None:
    folder = Path(str(job.report))
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"holds something else than a report \(thesis.tex\)"):
            run_report(replace(job, overwrite=overwrite), SilentReporter())
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    (folder / "report.json").write_text('{"benchmark": "papers"}')
    with pytest.raises(InputError, match="something else than a report"):
        run_report(job, SilentReporter())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        run_report(replace(job, report=str(tmp_path / "file")), SilentReporter())
    with pytest.raises(InputError, match="on this machine"):
        run_report(replace(job, report="s3://bucket/report"), SilentReporter())
    with pytest.raises(UsageError, match="brings its own pictures"):
        run_report(replace(job, plots="plots"), SilentReporter())
    assert stage.runs == []


def test_two_processes_do_not_make_one_report(stage: Stage, job: BenchPapersJob) -> None:
    held = ReportFolder(str(job.report))
    with pytest.raises(InputError, match="another process is making the report"):
        run_report(job, SilentReporter())
    held.close()
    run_report(job, SilentReporter(), clock=Clock())
    # What a report's own users put beside it stays, even where it is begun anew.
    notes = Path(str(job.report)) / "notes.txt"
    notes.write_text("mine")
    run_report(replace(job, overwrite=True), SilentReporter(), clock=Clock())
    assert notes.read_text() == "mine"


def test_what_was_kept_counts_for_the_same_question_alone(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path / "report"))
    made: list[int] = []

    def make(value: int) -> Callable[[], dict[str, Any]]:
        return lambda: made.append(value) or {"value": value}  # type: ignore[func-returns-value]

    one, two = ({"part": "part", "settings": {"n": n, "draws": 1}} for n in (1, 2))
    with folder.partial("part:a", one) as (keep, _):
        assert keep("x", make(1)) == {"value": 1}
    with folder.partial("part:a", one) as (keep, _):
        assert keep("x", make(2)) == {"value": 1}
        (tmp_path / "report" / "partial" / "part_a" / "x.json").write_text("{")  # half written by a lesser writer
        assert keep("x", make(3)) == {"value": 3}
    with folder.partial("part:a", two) as (keep, _):
        assert keep("x", make(4)) == {"value": 4}
    assert made == [1, 3, 4]
    # None of the draws depends on how many there are to be.
    with folder.partial("part:a", {**two, "settings": {"n": 2, "draws": 9}}) as (keep, _):
        assert keep("x", make(5)) == {"value": 4}
    # What is under way outlives an earlier record that is written anew, and goes when the part is done.
    record = {"name": "part:a", "asked": {"part": "part", "settings": {"n": 1}}}
    kept = tmp_path / "report" / "partial" / "part_a" / "x.json"
    folder.write_record(record)
    assert kept.is_file()
    folder.finish({**record, "asked": {"settings": {"draws": 3}}})
    assert kept.is_file()
    folder.finish(record)
    assert not kept.exists()
    folder.close()


def test_a_report_that_was_moved_goes_on(stage: Stage, job: BenchPapersJob, tmp_path: Path) -> None:
    run_report(job, SilentReporter(), clock=Clock())
    shutil.move(str(job.report), str(tmp_path / "elsewhere"))
    moved = replace(job, report=str(tmp_path / "elsewhere"))
    stage.runs.clear()
    run_report(moved, SilentReporter(), clock=Clock())
    assert stage.runs == []
    read(moved)
