"""`dkgp bench classify`: classification by the fixed-size LS-SVM and its rivals, in the tables of the pursuit paper.

P. Karsmakers et al., Sparse conjugate directions pursuit with application to fixed-size kernel models (2011), sections
4.6, 5.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dkgp import __version__
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document, check_side_files
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError, MissingExtraError, UsageError
from dkgp_benchmarks.classify.many.grid import grid_table
from dkgp_benchmarks.classify.many.problems import MANY, many_problems
from dkgp_benchmarks.classify.many.race import many_table
from dkgp_benchmarks.classify.many.tuned import tuned_problems, tuned_table
from dkgp_benchmarks.classify.measure import Unit, measure_all
from dkgp_benchmarks.classify.methods import ABLATION, ABLATION_DEFAULT, DEFAULT_METHODS, PROBABILITIES, MethodSpec
from dkgp_benchmarks.classify.plot import plot_errors
from dkgp_benchmarks.classify.problems import PROBLEMS, load, problem_names
from dkgp_benchmarks.classify.published import TABLE_3
from dkgp_benchmarks.classify.rivals import boosting_library
from dkgp_benchmarks.classify.tables import (
    Figures,
    ablation_table,
    error_table,
    mended_table,
    partition_table,
    probability_table,
    time_table,
)
from dkgp_benchmarks.records import Record

SPLITS, FULL_SPLITS, PARTITIONS = 20, 100, 5
# Tables of problems of any number of classes, and the problems of each where none is named.
MANY_TABLES = {"many": many_table, "grid": grid_table, "tuned": tuned_table}
GRID_PROBLEMS = ("covtype-like",)
# Of the table of probabilities, where no problem is named: a file with a split of its own, else what is generated.
PROBABLE, PROBABLE_MADE = "adult-official", "made-ringnorm"

COLUMNS = (
    Column("problem", "problem", text=True),
    Column("here", "samples", ",d"),
    Column("d", "d", "d"),
    Column("n", "train", ",d"),
    Column("n_test", "test", ",d"),
    Column("realisation", "split 0", text=True),
    Column("remark", "", text=True),
)
CAUTIONS = {
    "splits": "The paper has 100 realisations of Mika et al. (2000). Split 0 is their first where the file carries it; "
    "all others are drawn here, of the same sizes.",
    "hyperparameters": "Searched anew on every split, by all methods, on training samples alone: squared error for "
    "scdp and ls-svm, misclassification for svm, spsvm and boosting, as in the paper.",
    "acceptance": "Within 2 std / sqrt(splits) + std / 2 of the paper's mean where the samples are the paper's, within "
    "one std where they were prepared in another way; half a point in Table 5. Nothing is tuned to it.",
    "seconds": "Of this machine, with other work on it perhaps; the paper's are of MATLAB and LIBSVM on a Core 2 Quad. "
    "Compare the ratios to svm.",
}


@dataclass(frozen=True)
class BenchClassifyJob:
    """Tables, problems, methods and splits.

    Attributes
    ----------
    data
        Folder of .npz files; without it the generated problems alone are there.
    tables
        Of the paper; 3 and 4 where none is named.
    problems, methods
        By default all of a table that are here.
    splits, full
        How many splits of each problem; by default 20, or 100 if `full`, and 5 of the problems of Table 5.
    tested
        Test samples of probabilities at most, the first of a split.
    processes
        Units of Tables 2 to 4 that run at once, one thread each; by default one for each core.
    seed
        Of splits and of all that methods draw.
    record
        File that every unit is added to; what is in it is not measured again.
    plot
        Where errors by method are drawn.
    """

    data: str | None = None
    tables: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    splits: int | None = None
    tested: int | None = None
    full: bool = False
    processes: int | None = None
    seed: int = 0
    record: str | None = None
    plot: str | None = None
    overwrite: bool = False
    out: str | None = None

    @property
    def folder(self) -> Path | None:
        """Folder of the data; `InputError` where it is none."""
        if self.data is None:
            return None
        path = Path(self.data).expanduser()
        if not path.is_dir():
            raise InputError(f"`data` '{self.data}' is no folder; expected one that holds .npz files")
        return path

    def check(self) -> None:
        """Refuse, before any work, what makes no sense or is not here."""
        if self.full and self.splits is not None:
            raise UsageError(f"`full` is {FULL_SPLITS} splits; got `splits` {self.splits}, too: give one of them")
        for name, value in (("splits", self.splits), ("tested", self.tested), ("processes", self.processes)):
            if value is not None and value < 1:
                raise UsageError(f"`{name}` must be at least 1; got {value}")
        for problem in self.problems:
            if problem not in PROBLEMS and problem not in MANY:
                raise UsageError(f"unknown problem '{problem}'; there are {', '.join((*PROBLEMS, *MANY))}")
        if len(set(self.methods)) < len(self.methods):
            raise UsageError(f"name different methods; got {', '.join(self.methods)}")
        for method in self.methods:
            MethodSpec.read(method).require()


def run_bench_classify(job: BenchClassifyJob, reporter: Reporter) -> Document:
    """Measure all units that are not on record; return the tables.

    Raises
    ------
    UsageError, InputError, MissingExtraError
        What is asked for is not here; before anything is measured.
    """
    job.check()
    check_record_file(job.out)
    check_side_files(job.plot, None, replace=job.overwrite)
    folder, tables = job.folder, tuple(dict.fromkeys(job.tables or ("3", "4")))
    many = {table: _many_problems(job, folder, table) for table in tables if table in MANY_TABLES}
    tables_of_two = tuple(table for table in tables if table not in MANY_TABLES)
    problems = {table: _problems(job, folder, table) for table in tables_of_two}
    methods = {table: _methods(job, table) for table in tables_of_two}
    rows = [_here(name, folder, job.seed) for name in dict.fromkeys(chain.from_iterable(problems.values()))]
    record = Record(job.record, {"seed": job.seed, "version": __version__, "boosting": boosting_library()})
    asked: dict[str, Any] = {"problems": problems, "methods": methods, "seed": job.seed, "splits": _count(job, "3")}
    title = "Classification: problems of the pursuit paper, and generated ones"
    document = report("classify", title, COLUMNS, rows, {}, **asked)
    sections: list[Document] = []
    document |= {"sections": sections, "cautions": CAUTIONS, "plot": None, "complete": False}
    measured: dict[str, Figures] = {}
    for table in tables:
        if table in MANY_TABLES:
            sections.append(MANY_TABLES[table](many[table], folder, job.seed, record, reporter))
            write_record(document, job.out)
            continue
        kind = "3" if table == "4" else table
        if kind not in measured:
            measured[kind] = _measured(job, kind, problems[table], methods[table], record, reporter)
        sections.append(_section(table, measured[kind]))
        # Parts may take long: what is done is not lost where a later one is interrupted.
        write_record(document, job.out)
    if job.plot is not None:
        plotted = [
            row for section in sections if section["section"] in ("table_3", "table_5") for row in section["rows"]
        ]
        if plotted:
            plot_errors(job.plot, plotted, title="Errors on test samples, and the paper's (grey)")
            document["plot"] = job.plot
    document["warnings"] = list(reporter.warnings)
    document["complete"] = True
    return write_record(document, job.out)


def _problems(job: BenchClassifyJob, folder: Path | None, table: str) -> list[str]:
    two_classes = [name for name in dict.fromkeys(job.problems) if name in PROBLEMS]
    if table == PROBABILITIES:
        file = folder is not None and (folder / f"{PROBLEMS[PROBABLE].file}.npz").is_file()
        return two_classes or [PROBABLE if file else PROBABLE_MADE]
    of = 5 if table == "5" else 3
    here = problem_names(folder, of)
    if table == "scdpp":
        here = [name for name in here if TABLE_3[PROBLEMS[name].paper_name]["scdpp"].fails]
    named = [name for name in two_classes if PROBLEMS[name].table == of]
    if job.problems and not named:
        raise UsageError(f"table {table} has the problems {', '.join(here)}; got {', '.join(job.problems)}")
    if not named and not here:
        raise UsageError(f"table {table} needs adult.npz or magic.npz in the folder `data`; without them there is 3")
    return named or here


def _many_problems(job: BenchClassifyJob, folder: Path | None, table: str) -> list[str]:
    here = tuned_problems(folder) if table == "tuned" else many_problems(folder)
    named = [name for name in dict.fromkeys(job.problems) if name in here]
    if job.problems and not named:
        raise UsageError(f"table {table} has the problems {', '.join(here)}; got {', '.join(job.problems)}")
    if named or table == "tuned":
        return named or here
    return [name for name in here if (name in GRID_PROBLEMS if table == "grid" else not MANY[name].large)]


def _methods(job: BenchClassifyJob, table: str) -> list[str]:
    if table == "2":
        return [method for _, _, method in ABLATION]
    if table == PROBABILITIES:
        return _probable(job)
    named = job.methods or DEFAULT_METHODS["3" if table == "4" else table]
    methods = [name for name in named if table != "5" or MethodSpec.read(name).takes_table_5]
    if not methods:
        raise UsageError(f"none of {', '.join(job.methods)} takes the problems of table 5")
    for name in methods:
        MethodSpec.read(name).require()
    return methods


def _probable(job: BenchClassifyJob) -> list[str]:
    """Methods that have probabilities; of those that nobody named, as far as their packages are here."""
    if job.methods:
        names = [name for name in job.methods if MethodSpec.read(name).is_probable]
        if not names:
            raise UsageError(f"none of {', '.join(job.methods)} has probabilities")
        return names
    names = []
    for name in DEFAULT_METHODS[PROBABILITIES]:
        with suppress(MissingExtraError):
            MethodSpec.read(name).require()
            names.append(name)
    return names


def _count(job: BenchClassifyJob, table: str, problem: str = "") -> int:
    if table == PROBABILITIES and job.splits is None:
        # A split of the file's own is the only one of its kind.
        return 1 if PROBLEMS[problem].table == 0 else PARTITIONS
    if table == "5":
        return job.splits or PARTITIONS
    return job.splits or (FULL_SPLITS if job.full else SPLITS)


def _measured(
    job: BenchClassifyJob,
    table: str,
    problems: Sequence[str],
    methods: Sequence[str],
    record: Record,
    reporter: Reporter,
) -> Figures:
    large = table in ("5", PROBABILITIES)
    folder = None if job.folder is None else str(job.folder)
    units = [
        Unit(
            problem,
            split,
            method,
            folder,
            job.seed,
            None if large else 1,
            job.tested if table == PROBABILITIES else None,
        )
        for problem in problems
        for split in range(_count(job, table, problem))
        for method in methods
    ]
    processes = 1 if large else job.processes or available_cores()
    figures_by_key = measure_all(units, record, processes, reporter, f"table {table}")
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for problem in problems:
        for method in methods:
            own = [figures_by_key[unit.key] for unit in units if (unit.problem, unit.method) == (problem, method)]
            if own := [figures for figures in own if "failed" not in figures]:
                grouped[problem, method] = own
    return grouped


def _section(table: str, figures: Figures) -> Document:
    if table == "2":
        return ablation_table(figures, ABLATION, ABLATION_DEFAULT)
    if table == "scdpp":
        return mended_table(figures, DEFAULT_METHODS["scdpp"][0])
    if table == "4":
        return time_table(figures)
    if table == "5":
        return partition_table(figures)
    if table == PROBABILITIES:
        return probability_table(figures)
    return error_table(figures, {name: problem.same_data for name, problem in PROBLEMS.items()})


def _here(name: str, folder: Path | None, seed: int) -> dict[str, Any]:
    problem = PROBLEMS[name]
    samples = load(problem, folder, seed)
    return {
        "problem": name,
        "here": len(samples.inputs),
        "d": samples.inputs.shape[1],
        "n": problem.n,
        "n_test": problem.n_test,
        "realisation": "drawn" if samples.realisation is None else "the paper's first",
        "remark": problem.remark,
    }
