"""`dkgp bench variance --table`: Tables 3 and 4 of the GBCD paper, its figures beside those measured here.

L. Bo, C. Sminchisescu, Greedy block coordinate descent for large scale Gaussian process regression (2008), section 3.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dkgp.bench.problem import FRIEDMAN1, BenchProblem, open_whole
from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError
from dkgp_benchmarks.library import PAPER_DATA, Library, PaperData
from dkgp_benchmarks.variance.measure import MeasuredVariances, VarianceTrial, measure_variances

TableNumber = Literal[3, 4]

TABLE_3_SAMPLES = 10_000
PAPER_MACHINE = "3.6 GHz Pentium 4, 2 GB, Windows XP; each system solved to max |g| <= 1e-4, nothing certified"
# Table 4 gives all three sparse methods (SD, SR, MPGP) the same, on every data set.
SPARSE_SECONDS = 0.02
ONLY_SARCOS_TEST = "test file alone"


@dataclass(frozen=True)
class Published:
    """Figures of the paper for one of its data sets.

    Attributes
    ----------
    subset_seconds, subset_rmse
        Table 3, n = 10,000: seconds a variance, relative RMSE (equation 17) against Cholesky.
    full_seconds
        Table 4, all n: seconds a variance.
    """

    subset_seconds: float
    subset_rmse: float
    full_seconds: float


PUBLISHED = {
    "Calhouse": Published(12.0, 0.00004, 19.0),
    "Outaouais": Published(6.0, 0.001, 12.0),
    "Kin40k": Published(20.0, 0.02, 48.0),
    "Sarcos": Published(6.0, 0.002, 31.0),
    "Friedman1": Published(4.0, 0.001, 75.0),
}

_COMMON = (
    Column("data", "data set", text=True),
    Column("n_paper", "paper's n", ",d"),
    Column("n", "n here", ",d"),
    Column("paper_seconds", "paper: s per sample", "g"),
)
_HERE = (
    Column("seconds_per_sample", "here", ".4f"),
    Column("ratio", "paper / here", ",.0f"),
)
COLUMNS: dict[TableNumber, tuple[Column, ...]] = {
    3: (
        *_COMMON,
        *_HERE,
        Column("cholesky_seconds_per_sample", "Cholesky here", ".4f"),
        Column("paper_rmse", "paper: RMSE (17)", "g"),
        Column("relative_rmse", "here", ".5f"),
        Column("gap_max", "largest width", ".2%"),
        Column("samples_outside_interval", "outside their interval", "d"),
        Column("note", "", text=True),
    ),
    4: (
        *_COMMON,
        Column("sparse_seconds", "sparse", "g"),
        *_HERE,
        Column("met_share", "narrow enough", ".1%"),
        Column("gap_max", "largest width", ".2%"),
        Column("peak_memory_bytes", "peak memory", "bytes"),
        Column("seconds_to_plain_pass", "all / NumPy pass", ".2f"),
        Column("note", "", text=True),
    ),
}


@dataclass(frozen=True)
class BenchPaperTableJob:
    """One of the variance paper's tables, and the data to take it from.

    Attributes
    ----------
    table
        3: against Cholesky at n = 10,000. 4: all training samples.
    data_folder
        Where the .npz files of the data sets lie; what is missing is named and left out.
    trial
        How each data set is measured. Its `problem` gives the target, the subset to tune on, the seed, the number of
        test samples at most, and with `n` the number of training samples at most; `settings` has one member.
    only
        Names of data sets, as the paper has them; all of its tables by default.
    """

    table: TableNumber
    data_folder: str | None = None
    trial: VarianceTrial = field(default_factory=VarianceTrial)
    only: tuple[str, ...] = ()
    out: str | None = None


def run_bench_paper_table(job: BenchPaperTableJob, reporter: Reporter) -> Document:
    """Measure each data set there is; return its figures beside the paper's."""
    check_record_file(job.out)
    folder = Path(job.data_folder or ".").expanduser()
    if not folder.is_dir():
        raise InputError(f"--data-folder '{folder}' is no folder")
    rows: list[dict[str, Any]] = []
    runs: dict[str, Any] = {}
    library = Library(folder)
    for paper in PAPER_DATA:
        if paper.name not in PUBLISHED or (job.only and paper.name not in job.only):
            continue
        found = library.found(paper)
        if found is None:
            reporter.warn(f"{paper.name} is left out: there is no {paper.file}.npz in '{folder}'")
            rows.append({**_published(job.table, paper), "note": "not available"})
            continue
        source = FRIEDMAN1 if found == FRIEDMAN1 else str(library.path(found))
        reporter.note(f"{paper.name}: {source}")
        with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
            measured = _measure(job, paper, source, Path(name), reporter)
        runs[paper.name] = measured.runs
        note = ONLY_SARCOS_TEST if found == paper.stand_in else None
        rows.append({**_published(job.table, paper), **_measured(job.table, paper, measured), "note": note})
    trial = job.trial
    title = (
        f"GBCD paper (2008), Table {job.table}: published variance times beside those of dkgp on this machine, "
        f"gap {trial.settings[0].gap:g}, {trial.problem.n_test:,} test samples at most, median of {trial.repeats}"
    )
    document = report(
        f"variance_table_{job.table}",
        title,
        COLUMNS[job.table],
        rows,
        {},
        table=job.table,
        **asdict(trial),
        runs=runs,
    )
    document["figures"] = _cautions(document["machine"])
    document["warnings"] = list(reporter.warnings)
    return write_record(document, job.out)


def _cautions(machine: Document) -> dict[str, str]:
    """Cautions that a reader of both columns must know."""
    hardware = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB"
    return {
        "paper": PAPER_MACHINE,
        "here": f"{hardware}; the time of all samples, the factor included, divided by their number",
        "caution": "the hardware differs by many years, so 'paper / here' is no comparison of methods; Cholesky and "
        "the NumPy pass ran here",
    }


def _measure(
    job: BenchPaperTableJob, paper: PaperData, source: str, folder: Path, reporter: Reporter
) -> MeasuredVariances:
    asked = job.trial.problem
    n_test = asked.n_test if paper.n_test is None else min(asked.n_test, paper.n_test)
    n = min(asked.n or paper.n, TABLE_3_SAMPLES if job.table == 3 else paper.n)
    data = source
    if source != FRIEDMAN1:
        whole = open_whole(BenchProblem(data=source, target=asked.target), folder, reporter)
        n, data = min(n, whole.n_samples - n_test), whole.url
        if n < 2:
            raise InputError(f"'{source}' has {whole.n_samples:,} samples; too few for {n_test:,} of them to test on")
    problem = replace(asked, data=data, n=n, n_test=n_test)
    inner = folder / "measured"
    inner.mkdir()
    return measure_variances(replace(job.trial, problem=problem), inner, reporter)


def _published(table: TableNumber, paper: PaperData) -> dict[str, Any]:
    figures = PUBLISHED[paper.name]
    if table == 3:
        row = {"n_paper": min(TABLE_3_SAMPLES, paper.n), "paper_seconds": figures.subset_seconds}
        return {"data": paper.name, **row, "paper_rmse": figures.subset_rmse}
    row = {"n_paper": paper.n, "paper_seconds": figures.full_seconds}
    return {"data": paper.name, **row, "sparse_seconds": SPARSE_SECONDS}


def _measured(table: TableNumber, paper: PaperData, measured: MeasuredVariances) -> dict[str, Any]:
    figures = measured.figures(measured.intervals[0])
    row = {
        "n": measured.n,
        "d": measured.d,
        "n_test": measured.n_test,
        "kernel": measured.kernel,
        "noise_variance": measured.noise_variance,
        "ratio": _published(table, paper)["paper_seconds"] / figures["seconds_per_sample"],
        **figures,
    }
    if "cholesky" in measured.runs:
        row["cholesky_seconds_per_sample"] = measured.timed("cholesky")["seconds_per_sample"]
    return row
