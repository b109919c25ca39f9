"""`dkgp bench papers --report`: the parts one after the other, each recorded when it is done, and the page of all."""

from __future__ import annotations

import shlex
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dkgp import __version__
from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.plots import check_plot_file
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import DkgpError, ExitCode, MissingExtraError, UsageError
from dkgp_benchmarks.library import Library
from dkgp_benchmarks.papers.papers import BenchPapersJob, Chosen, choose, table_1
from dkgp_benchmarks.papers.part import PARTS, Unit
from dkgp_benchmarks.papers.plots import draw, file_name
from dkgp_benchmarks.report.folder import DONE, FAILED, MISSING, ReportFolder, digest_of
from dkgp_benchmarks.report.page import Entry, page
from dkgp_benchmarks.report.verdicts import WORDS, check_verdict_file, take_records, write_verdicts

UNFORESEEN = 1
COLUMNS = (
    Column("part", "part", text=True),
    Column("status", "status", text=True),
    Column("seconds", "seconds", ",.1f"),
    Column("tables", "tables", "d"),
    Column("pictures", "pictures", "d"),
    *(Column(word.replace(" ", "_"), word, "d") for word in WORDS),
    Column("note", "", text=True),
)


@dataclass(frozen=True)
class _Run:
    """Things that all steps of a run share."""

    job: BenchPapersJob
    library: Library
    folder: ReportFolder
    units: tuple[Unit, ...]
    everything: Chosen
    reporter: Reporter
    clock: Callable[[], float]

    def write_page(self) -> Path:
        """Write the page as things stand."""
        entries = []
        wanted = {unit.name: unit for unit in self.units}
        for unit in self.everything.units:
            record = self.folder.record(unit.name)
            current = wanted.get(unit.name)
            if record is not None and current is not None and not self.counts(current, record):
                record = None
            command = command_of(self.job, unit.name)
            entries.append(Entry(unit, record, asked=current is not None, command=command))
        # What earlier runs with other data left.
        known = {unit.name for unit in self.everything.units}
        for record in self.folder.recorded():
            if record["name"] not in known and record["part"] in PARTS.all():
                unit = Unit(PARTS.find(record["part"]), record["variant"], record["asked"]["settings"])
                entries.append(Entry(unit, record, asked=False, command=command_of(self.job, unit.name)))
        table = table_1(self.job, self.library)
        return self.folder.write_page(page(entries, self.everything.missing, table, self.job, self.clock()))

    def counts(self, unit: Unit, record: Document) -> bool:
        """True if a record answers what is asked; one that failed does not, but is shown until it is begun again.

        A record of the papers' sizes is not given up for one of minutes.
        """
        if record["digest"] == digest_of(unit.asked(self.library)):
            return True
        if self.job.full or not record["full"] or self.job.overwrite:
            return False
        full = replace(unit, settings=unit.part.settings(full=True, given=self.job.given()))
        return bool(record["digest"] == digest_of(full.asked(self.library)))

    def is_done(self, unit: Unit) -> bool:
        """True if nothing is left to do for it."""
        record = self.folder.record(unit.name)
        done = record is not None and record["status"] == DONE
        return done and record is not None and self.counts(unit, record) and self.folder.whole(record)


def run_report(job: BenchPapersJob, reporter: Reporter, clock: Callable[[], float] = time.time) -> Document:
    """Make the report; return what became of each part, and the exit code that it means.

    Parts that an earlier run has done, with the same settings, data and version, are taken over; a part that fails is
    reported and the others go on.

    Parameters
    ----------
    clock : callable
        Seconds since 1970.

    Raises
    ------
    UsageError, InputError, MissingExtraError
        What is asked for is not here, a folder that holds something else, no matplotlib; before anything is computed.
    """
    job.check()
    if job.report is None or job.plots is not None:
        raise UsageError("`report` brings its own pictures: leave out `plots`")
    for path in job.verdicts:
        check_verdict_file(path)
    check_plot_file("any.png")
    check_record_file(job.out)
    library = Library.of(job.data)
    chosen = choose(job, library)
    units = tuple(replace(unit, items=()) for unit in chosen.units)
    everything = choose(replace(job, parts=(), tables=(), figures=()), library) if job.named else chosen
    folder = ReportFolder(job.report, anew=job.overwrite)
    try:
        folder.begin(asdict(job))
        if job.records is not None:
            reporter.note(f"{take_records(folder, job.records)} records are taken over from {job.records}")
        run = _Run(job, library, folder, units, everything, reporter, clock)
        _judge_anew(run)
        return _finished(run, _measured(run))
    finally:
        folder.close()


def _judge_anew(run: _Run) -> None:
    """Bring the verdicts of records up to date: rules may have changed since they were measured."""
    for record in run.folder.recorded():
        if record["part"] in PARTS.all() and record["status"] == DONE:
            verdicts = PARTS.find(record["part"]).verdicts(record["sections"], record["variant"])
            if verdicts != record.get("verdicts"):
                run.folder.write_record({**record, "verdicts": verdicts})


def _measured(run: _Run) -> list[str]:
    """Measure what is not done; return the names of what was taken over."""
    taken = []
    run.write_page()
    for number, unit in enumerate(run.units, start=1):
        of = f"part {number} of {len(run.units)}: {unit.name}"
        if run.is_done(unit):
            run.reporter.note(f"{of} is there already")
            taken.append(unit.name)
            continue
        run.reporter.note(of)
        run.folder.finish(_record(run, unit))
        run.write_page()
    return taken


def _record(run: _Run, unit: Unit) -> Document:
    """Measure a part; what it fails with is its record, too."""
    began, warned = run.clock(), len(run.reporter.warnings)
    asked = unit.asked(run.library)
    document: Document = {
        "command": "bench",
        "benchmark": "papers",
        "name": unit.name,
        "part": unit.part.name,
        "variant": unit.variant,
        "paper": unit.part.paper,
        "title": unit.title,
        "full": run.job.full,
        "asked": asked,
        "digest": digest_of(asked),
        "dkgp": __version__,
        "machine": report("papers", "", (), (), {})["machine"],
        "began": began,
    }
    sections: list[Document] = []
    pictures: list[Document] = []
    verdicts: list[Document] = []
    outcome: Document = {"status": DONE}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name,
            run.folder.partial(unit.name, asked) as (keep, record),
        ):
            for shown in unit.run(run.library, Path(name), run.reporter, keep, record):
                sections.append(plain(shown.section))
                if shown.drawing is not None:
                    # By the part's name: two parts may call their pictures the same.
                    called = f"{file_name(unit.name)}-{len(pictures) + 1}"
                    drawing = replace(shown.drawing, name=called)
                    draw(run.folder.pictures, replace(shown, drawing=drawing))
                    pictures.append({"section": shown.section["section"], "file": f"pictures/{called}.png"})
        verdicts = unit.part.verdicts(sections, unit.variant)
    except MissingExtraError as error:
        outcome = {"status": MISSING, "error": _said(error)}
        run.reporter.warn(f"{unit.name} is left out: {error}")
    except Exception as error:  # whatever it is, the other parts go on, and the page says it
        outcome = {"status": FAILED, "error": _said(error)}
        run.reporter.warn(f"{unit.name} failed: {type(error).__name__}: {error}")
    found: Document = plain(
        {
            **document,
            **outcome,
            "seconds": run.clock() - began + _spent(run, unit),
            "verdicts": verdicts,
            "sections": sections,
            "pictures": pictures,
            "warnings": list(run.reporter.warnings)[warned:],
        }
    )
    return found


def _spent(run: _Run, unit: Unit) -> float:
    """Seconds of the draws that a record of fewer draws has, which this one went on with."""
    record = run.folder.record(unit.name)
    if record is None or record["status"] != DONE or "draws" not in unit.settings:
        return 0.0
    asked = record["asked"]
    fewer = asked["settings"].get("draws", 0) < unit.settings["draws"]
    same = {**asked, "settings": {**asked["settings"], "draws": unit.settings["draws"]}} == unit.asked(run.library)
    return float(record["seconds"]) if fewer and same and record["dkgp"] == __version__ else 0.0


def _said(error: Exception) -> Document:
    said: dict[str, Any] = {"type": type(error).__name__, "message": str(error), "traceback": ""}
    if isinstance(error, DkgpError):
        return said | {"exit_code": int(error.exit_code)}
    memory = int(ExitCode.BAD_INPUT) if isinstance(error, MemoryError) else UNFORESEEN
    return said | {"exit_code": memory, "traceback": "".join(traceback.format_exception(error))}


def _finished(run: _Run, taken: list[str]) -> Document:
    rows = []
    failed: list[Document] = []
    for unit in run.units:
        record = run.folder.record(unit.name)
        assert record is not None
        failed += [record] if record["status"] == FAILED else []
        note = record["error"]["message"] if "error" in record else "taken over" if unit.name in taken else ""
        verdicts = [found["verdict"] for found in record.get("verdicts", ())]
        rows.append(
            {
                "part": unit.name,
                "status": record["status"],
                "seconds": record["seconds"],
                "tables": len(record["sections"]),
                "pictures": len(record["pictures"]),
                **{word.replace(" ", "_"): verdicts.count(word) for word in WORDS},
                "note": note,
            }
        )
    if not run.job.named:
        rows += [{"part": part.name, "status": MISSING, "note": why} for part, why in run.everything.missing]
    index = run.write_page()
    for path in run.job.verdicts:
        write_verdicts(path, run.folder.recorded(), partial(command_of, run.job))
    figures = {"page": str(index), "failed": ", ".join(record["name"] for record in failed) or "none"}
    document = report("papers", f"Report: {index}", COLUMNS, rows, figures, asked=asdict(run.job))
    document |= {"report": str(index), "warnings": list(run.reporter.warnings), "complete": not failed}
    document["exit_code"] = failed[0]["error"]["exit_code"] if failed else int(ExitCode.DONE)
    return write_record(document, run.job.out)


def command_of(job: BenchPapersJob, name: str) -> str:
    """The command that makes one part of the report alone."""
    words = ["dkgp", "bench", "papers", "--report", str(job.report)]
    words += ["--data", job.data] if job.data is not None else []
    words += ["--full"] if job.full else []
    for option, value in job.given().items():
        flag = {"n": "samples", "n_test": "test-samples", "tolerance": "tol", "methods": "method"}.get(option, option)
        if option == "methods":
            words += [word for method in value for word in ("--method", method)]
        elif not (option == "seed" and value == 0):
            shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{flag.replace('_', '-')}", shown]
    return shlex.join([*words, "--part", name])
