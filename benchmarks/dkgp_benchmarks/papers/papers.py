"""`dkgp bench papers`: the experiments of four papers, measured here; `published` has the papers.

Which there are is declared in `dkgp_benchmarks.papers.parts`. Here they are chosen, and run one after the other; with a
folder for it `dkgp_benchmarks.report` runs the same ones, and makes a page of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dkgp.commands.reporting.measurements import check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.errors import InputError, UsageError
from dkgp_benchmarks.library import DATA_COLUMNS, Library, data_rows
from dkgp_benchmarks.papers.part import PARTS, Part, Unit
from dkgp_benchmarks.papers.plots import check_plot_folder, draw
from dkgp_benchmarks.papers.published import PAPERS
from dkgp_benchmarks.sparse.specs import SparseSpec

# Options by their names in the parts' settings; the others choose parts or say where things go.
GIVEN = ("n", "n_test", "subset", "seed", "sizes", "basis_size", "draws", "methods", "block_size", "tolerance")
LIMITS = ("max_passes", "max_seconds")
LEAST = {"n": 2, "n_test": 1, "subset": 2, "basis_size": 1, "draws": 1, "block_size": 1}
FLAGS = {"n": "--samples", "n_test": "--test-samples"}


@dataclass(frozen=True)
class BenchPapersJob:
    """The parts to run, and what their settings are to be in place of their own.

    Attributes
    ----------
    data
        Folder of .npz files; without it what is generated alone is there.
    tables, figures, parts
        Which, by the papers' numbers or by name, "NAME:DATA" for one data set; all where none is named.
    problems
        Data sets; by default those that the papers use as far as they, or what stands in, are here.
    full
        The papers' own sizes and draws; settings of minutes otherwise.
    n, n_test, subset, seed, sizes, basis_size, draws, methods, block_size, tolerance, max_passes, max_seconds
        In place of the settings of the same names of all parts that have them.
    report, records, verdicts
        Folder of the report, for `dkgp_benchmarks.report`; compact records that it goes on from; files of its verdicts.
    plots, overwrite, out
        Folder of pictures, whether what is there is replaced, file of the record.
    """

    data: str | None = None
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    full: bool = False
    n: int | None = None
    n_test: int | None = None
    subset: int | None = None
    seed: int = 0
    sizes: tuple[int, ...] | None = None
    basis_size: int | None = None
    draws: int | None = None
    methods: tuple[str, ...] = ()
    block_size: int | str | None = None
    tolerance: float | None = None
    max_passes: float | None = None
    max_seconds: float | None = None
    report: str | None = None
    records: str | None = None
    verdicts: tuple[str, ...] = ()
    plots: str | None = None
    overwrite: bool = False
    out: str | None = None

    def check(self) -> None:
        """Refuse, before any work, numbers that make no sense."""
        for name, least in LEAST.items():
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise InputError(
                    f"{FLAGS.get(name, '--' + name.replace('_', '-'))} must be at least {least}; got {value}"
                )
        if self.sizes is not None and min(self.sizes, default=0) < 2:
            raise InputError(f"--sizes must be at least 2; got {min(self.sizes, default=0)}")
        limits = {name: getattr(self, name) for name in LIMITS}
        SolverOptions(tolerance=1e-4 if self.tolerance is None else self.tolerance, **limits).stopping()
        for text in self.methods:
            SparseSpec.read(text)

    @property
    def named(self) -> bool:
        """True if parts were asked for by name or number."""
        return bool(self.tables or self.figures or self.parts)

    def given(self) -> dict[str, Any]:
        """Settings that stand in place of the parts' own, in JSON types."""
        values = {name: getattr(self, name) for name in (*GIVEN, *LIMITS)}
        options = {name: value for name, value in values.items() if value is not None and value != ()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


@dataclass(frozen=True)
class Chosen:
    """Parts that a job comes to.

    Attributes
    ----------
    units
        To be run, in order.
    missing
        Parts that nothing is here for, and why.
    """

    units: tuple[Unit, ...]
    missing: tuple[tuple[Part, str], ...] = ()


def items_of(kind: str) -> tuple[str, ...]:
    """Return the numbers of all parts' tables, or figures: what `--table` and `--figure` take."""
    items = [item for part in PARTS.all().values() for item in part.items if item.startswith(f"{kind} ")]
    return tuple(dict.fromkeys(item.removeprefix(f"{kind} ") for item in items))


def choose(job: BenchPapersJob, library: Library) -> Chosen:
    """Find the parts that are asked for, and the data sets of each.

    Raises
    ------
    UsageError
        What is named is not here; before anything is computed.
    """
    items = [f"table {name}" for name in job.tables] + [f"figure {name}" for name in job.figures]
    named = {name.partition(":")[0]: PARTS.find(name.partition(":")[0]) for name in job.parts}
    units: list[Unit] = []
    missing: list[tuple[Part, str]] = []
    for problem in job.problems:
        _check_problem(problem, library)
    for part in PARTS.all().values():
        chosen_items = tuple(item for item in part.items if item in items)
        if job.named and not chosen_items and part.name not in named:
            continue
        settings = part.settings(full=job.full, given=job.given())
        variants = part.variants(library, job.problems)
        if job.named and not variants and part.variants(library, ()) == ("",):
            variants = ("",)  # it has a data set of its own, and is asked for
        if not job.full and not job.problems and not any(":" in name for name in job.parts):
            short = tuple(variant for variant in variants if variant in part.few) or variants
            if left := [variant for variant in variants if variant not in short]:
                missing.append((part, f"left out of the short form: {', '.join(left)}; with --full they take part"))
            variants = short
        units_of_part = [Unit(part, variant, settings, chosen_items) for variant in variants]
        asked = [name for name in job.parts if name.partition(":")[0] == part.name]
        if asked and part.name not in asked and not chosen_items:
            names = {unit.name for unit in units_of_part}
            if unknown := [name for name in asked if name not in names]:
                raise UsageError(
                    f"there is no part '{unknown[0]}' here; there are {', '.join(sorted(names)) or 'none'}"
                )
            units_of_part = [unit for unit in units_of_part if unit.name in asked]
        if not units_of_part and job.named:
            raise UsageError(part.missing)
        if not units_of_part and not job.problems:
            missing.append((part, part.missing))
        units += units_of_part
    if job.problems and not units:
        raise UsageError(f"no part takes {', '.join(job.problems)}")
    _check_given(job, units)
    return Chosen(tuple(units), tuple(missing))


def run_bench_papers(job: BenchPapersJob, reporter: Reporter) -> Document:
    """Run what was asked for; Table 1, with what is absent, is always there.

    Raises
    ------
    UsageError, InputError
        A data set that is not here, or settings out of range; before anything is computed.
    """
    job.check()
    if job.records is not None or job.verdicts:
        raise UsageError("`records` and `verdicts` are of a report: name its folder, `report`")
    check_record_file(job.out)
    library = Library.of(job.data)
    chosen = choose(job, library)
    if job.plots is not None:
        kinds = [item.replace(" ", "_") for unit in chosen.units for item in unit.items or unit.part.items]
        check_plot_folder(job.plots, list(dict.fromkeys(kinds)), replace=job.overwrite)
    document = table_1(job, library)
    sections: list[Document] = []
    plots: list[str] = []
    data: dict[str, Document] = {}
    cautions: dict[str, str] = {}
    document |= {"sections": sections, "problems": data, "cautions": cautions, "plots": plots, "complete": False}
    for part, why in chosen.missing:
        reporter.warn(f"{part.name} is left out: {why}")
    for unit in chosen.units:
        cautions |= PAPERS[unit.part.paper].cautions()
        with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
            for shown in unit.run(library, Path(name), reporter):
                if "problem" in shown.section:
                    data[shown.section["problem"].get("name", unit.variant)] = shown.section["problem"]
                sections.append(shown.section)
                # Parts may take long: what is done is not lost where a later one is interrupted.
                write_record(document, job.out)
                if job.plots is not None and (drawn := draw(job.plots, shown)) is not None:
                    plots.append(str(drawn))
                    reporter.note(f"drawn: {drawn}")
    document["warnings"] = list(reporter.warnings)
    document["complete"] = True
    return write_record(document, job.out)


def table_1(job: BenchPapersJob, library: Library) -> Document:
    """Return the document with Table 1: the papers' data sets, here, replaced or absent."""
    others = tuple(name for name in (library.known(problem) for problem in job.problems) if name is not None)
    rows = data_rows(library, others)
    return report(
        "papers",
        "Table 1: data sets of the papers, what is here and what is absent",
        DATA_COLUMNS,
        rows,
        {"absent": ", ".join(row["data"] for row in rows if row["status"] == "absent") or "none"},
        asked=asdict(job),
    )


def _check_problem(problem: str, library: Library) -> None:
    """Raise `UsageError` for what neither a regression nor a classification of the papers has."""
    from dkgp_benchmarks.classify.problems import PROBLEMS

    if problem not in PROBLEMS or PROBLEMS[problem].file is not None:
        name = library.resolve(PROBLEMS[problem].file or problem) if problem in PROBLEMS else library.resolve(problem)
        if name != "friedman1":
            library.shape(name)


def _check_given(job: BenchPapersJob, units: list[Unit]) -> None:
    """Raise `UsageError` for an option that none of the parts has."""
    names: set[str] = {name for unit in units for name in unit.settings}
    given: Mapping[str, Any] = job.given()
    for name in given:
        if name not in names and units:
            flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(f"{flag} is no setting of {', '.join(dict.fromkeys(unit.part.name for unit in units))}")
