"""`dkgp bench boosting`: every contender on every problem, one after the other, and the table of them."""

from __future__ import annotations

from dataclasses import dataclass

from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.errors import UsageError
from dkgp_benchmarks.boosting.problems import PROBLEMS, samples_of
from dkgp_benchmarks.boosting.race import CONTENDERS, available, compared, measure
from dkgp_benchmarks.library import Library
from dkgp_benchmarks.records import Record

COLUMNS = (
    Column("problem", "problem", text=True),
    Column("n", "train", ",d"),
    Column("d", "d", "d"),
    Column("method", "method", text=True),
    Column("rmse", "RMSE", ".4g"),
    Column("nlpd", "NLPD", ".3f"),
    Column("coverage", "coverage of 95 %", ".3f"),
    Column("width", "width of 95 %", ".3g"),
    Column("nlpd_gain", "NLPD gain", "+.3f"),
    Column("nlpd_gain_error", "+-", ".3f"),
    Column("rmse_gain", "RMSE gain %", "+.1f"),
    Column("rmse_gain_error", "+-", ".1f"),
    Column("seconds", "seconds", ",.1f"),
    Column("cpu_seconds", "processor s", ",.1f"),
    Column("remark", "", text=True),
)


@dataclass(frozen=True)
class BenchBoostingJob:
    """Problems by name, files of a folder among them; `n` and `n_test` samples at most, `fit_seconds` for a fit.

    `limit` is the processor time of a contender in seconds. `record` is the file from which a later run continues.
    """

    data: str | None = None
    problems: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    n: int | None = None
    n_test: int = 2000
    fit_seconds: float = 120.0
    limit: int = 1800
    seed: int = 0
    record: str | None = None
    out: str | None = None


def run_bench_boosting(job: BenchBoostingJob, reporter: Reporter) -> Document:
    """Measure all; return a row of each contender on each problem.

    Raises
    ------
    UsageError
        A problem that is not here, or no scikit-learn.
    """
    check_record_file(job.out)
    library = Library.of(job.data)
    files = [] if library.folder is None else sorted(path.stem for path in library.folder.glob("*.npz"))
    unknown = [name for name in job.problems if name not in PROBLEMS and name not in files]
    if unknown:
        raise UsageError(f"there is no problem '{unknown[0]}'; --problem takes {', '.join([*PROBLEMS, *files])}")
    wrong = [name for name in job.methods if name not in CONTENDERS]
    if wrong:
        raise UsageError(f"there is no method '{wrong[0]}'; --method takes {', '.join(CONTENDERS)}")
    names = job.problems or tuple(PROBLEMS)
    units = [(name, method) for method in available(job.methods or tuple(CONTENDERS), reporter.warn) for name in names]
    units.sort(key=lambda unit: names.index(unit[0]))
    shared = ("n", "n_test", "fit_seconds", "limit", "seed")
    record = Record(job.record, {option: getattr(job, option) for option in shared}, "boosting")
    rows = []
    with reporter.work("boosting") as show:
        for number, (name, method) in enumerate(units):
            key = f"{name}: {method}"
            show(WorkProgress(key, number, len(units), "runs"))
            row = record.get(key)
            if row is None:
                samples = samples_of(name, library, job.n, job.n_test, job.seed)
                row = measure(name, method, samples, job.fit_seconds, job.seed, job.limit)
                record.add(key, row)
            rows.append(row)
    title = (
        "dkgp fit beside GPBoost, SVGP, boosting and a linear model: error, density and 95 % intervals on test samples"
    )
    return write_record(report("boosting", title, COLUMNS, compared(rows), {}, **vars(job)), job.out)
