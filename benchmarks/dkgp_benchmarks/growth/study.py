"""`dkgp bench growth`: how the time of training grows with the samples, beside what the processor cannot do without.

The limit of a solve is the kernel entries that it evaluated, times what an entry takes, over the cores: all of it would
be products, with every core at work all the time. Entries in float32 and float64 are told apart, and timed in the same
process. As long as the folder is kept, a size that takes hours goes on where an earlier run was stopped, and one that
is done is not run again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dkgp.bench.problem import PreparedProblem, ProblemJob, prepare_problem
from dkgp.cluster import ClusterOptions
from dkgp.codec import difference
from dkgp.commands.reporting.measurements import ENTRIES, Column, report, write_record
from dkgp.commands.reporting.outputs import Document, dump, plain, write_text
from dkgp.commands.reporting.plots import check_plot_file
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.errors import DkgpError, ExitCode, InputError, InterruptedRunError, NotConvergedError, UsageError
from dkgp.plan.validation import found_environment
from dkgp.solvers import Progress as SolveProgress
from dkgp_benchmarks.growth.plot import plot_growth
from dkgp_benchmarks.growth.run import MODULE

COLUMNS = (
    Column("n", "n", ",d"),
    Column("solver", "solver", text=True),
    Column("seconds", "seconds", ",.1f"),
    Column("product_seconds", "products, s", ",.1f"),
    Column("check_seconds", "float64", ",.1f"),
    Column("factor_seconds", "factor, s", ",.1f"),
    Column("apply_seconds", "preconditioner, s", ",.1f"),
    Column("iterations", "rounds", ",d"),
    Column("refreshes", "float64", "d"),
    ENTRIES,
    Column("limit_seconds", "lower limit, s", ",.1f"),
    Column("seconds_to_limit", "time / limit", ".2f"),
    Column("peak_memory_bytes", "peak memory", "bytes"),
)
# A round's parts, by the names that solvers give them.
PARTS = {
    "product_seconds": ("product", "wait"),
    "check_seconds": ("check",),
    "factor_seconds": ("factor",),
    "apply_seconds": ("precondition",),
}


@dataclass(frozen=True)
class BenchGrowthJob(ProblemJob):
    """A study of one problem at several sizes.

    Attributes
    ----------
    sizes
        Training samples; the smallest comes first.
    cluster
        Where rounds run.
    folder
        Where data, checkpoints, models and records are kept, to go on from; a temporary folder by default.
    plot
        File for the plot.
    """

    sizes: tuple[int, ...] = (10_000, 20_000, 50_000)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    folder: str | None = None
    plot: str | None = None

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 2 or len(set(self.sizes)) != len(self.sizes):
            raise UsageError(
                f"`sizes` must be different numbers of samples, each at least 2, such as 10000,50000; got {self.sizes}"
            )
        if self.problem.n is not None:
            raise UsageError(f"the number of samples is what grows: name `sizes`, not one; got {self.problem.n}")

    def identity(self) -> dict[str, Any]:
        """Everything that the records of a folder must share."""
        problem = {name: value for name, value in asdict(self.problem).items() if name != "n"}
        return dict(plain({"problem": problem, "solver": self.solver.to_json(), "cluster": asdict(self.cluster)}))


def run_bench_growth(job: BenchGrowthJob, reporter: Reporter) -> Document:
    """Measure every size that is not on record; return seconds by part, entries, the limit and memory of each.

    Raises
    ------
    InputError
        A folder of another problem, or with other settings.
    InterruptedRunError
        A signal asked for the end; sizes that are done, and the state of the one under way, are in the folder.
    NotConvergedError
        A size did not reach the tolerance.
    """
    if job.plot is not None:
        check_plot_file(job.plot)
    with _folder(job) as folder:
        rows = [_measured(job, n, folder, reporter) for n in sorted(job.sizes)]
    rows = [_row(figures) for figures in rows]
    last = rows[-1]
    figures = {
        "n": last["n"],
        "seconds_to_limit": last["seconds_to_limit"],
        "entry_ns": last["entry_ns"],
        "entry_double_ns": last["entry_double_ns"],
        "peak_memory_bytes": last["peak_memory_bytes"],
        "gradient_inf_norm": last["gradient_inf_norm"],
    }
    title = (
        f"Growth: {job.problem.data}, seconds to a largest residual of {job.solver.tolerance:g}, and seconds of "
        "the kernel entries alone (lower limit)"
    )
    document = report("growth", title, COLUMNS, rows, figures, **job.identity(), sizes=list(job.sizes))
    document["warnings"] = list(reporter.warnings)
    if job.plot is not None:
        plot_growth(job.plot, rows, title=title)
    return write_record(document, job.out)


@contextmanager
def _folder(job: BenchGrowthJob) -> Iterator[Path]:
    """The folder of data and records, checked to be of this problem; or a temporary one."""
    if job.folder is None:
        with tempfile.TemporaryDirectory(prefix="dkgp-bench-") as name:
            yield Path(name)
        return
    folder = Path(job.folder)
    record = folder / "settings.json"
    if folder.exists() and not record.exists() and any(folder.iterdir()):
        raise InputError(f"'{folder}' holds something else than the records of this benchmark; name another `folder`")
    if record.exists():
        other = difference(json.loads(record.read_text(encoding="utf-8")), job.identity())
        if other is not None:
            raise InputError(f"'{folder}' holds the records of a run with another {other}; name another `folder`")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(record, dump(job.identity()) + "\n")
    yield folder


def _measured(job: BenchGrowthJob, n: int, folder: Path, reporter: Reporter) -> dict[str, Any]:
    """Figures of one size, from its record or by running it."""
    run_folder = folder / f"n-{n}"
    record = run_folder / "figures.json"
    if record.exists():
        reporter.note(f"n = {n:,}: on record")
        return dict(json.loads(record.read_text(encoding="utf-8")))
    prepared = _prepared(job, n, folder, reporter)
    figures = _run(
        {
            **prepared.to_json(),
            "model": str(run_folder / "model.zarr"),
            "solver": job.solver.to_json(),
            "cluster": asdict(job.cluster),
        },
        f"n = {n:,}",
        job.solver.tolerance,
        reporter,
    )
    if not figures["converged"]:
        raise NotConvergedError(f"n = {n:,} did not reach the tolerance; its model is in '{run_folder}'")
    write_text(record, dump(figures) + "\n")
    return figures


def _prepared(job: BenchGrowthJob, n: int, folder: Path, reporter: Reporter) -> PreparedProblem:
    """The stores of one size; hyperparameters are those of the first size that a folder saw."""
    run_folder, hyper = folder / f"n-{n}", folder / "hyper.json"
    done = run_folder / "problem.json"
    if done.exists():
        return PreparedProblem(**json.loads(done.read_text(encoding="utf-8")))
    shutil.rmtree(run_folder, ignore_errors=True)  # what was begun and not finished
    run_folder.mkdir()
    problem = replace(job.problem, n=n, hyper=str(hyper) if hyper.exists() else job.problem.hyper)
    prepared = prepare_problem(problem, run_folder, reporter)
    if not hyper.exists():
        write_text(hyper, Path(prepared.hyper).read_text(encoding="utf-8"))
    write_text(done, dump(prepared.to_json()) + "\n")
    return prepared


def _run(description: dict[str, Any], label: str, tolerance: float, reporter: Reporter) -> dict[str, Any]:
    """Run one size in a process of its own, and show how it gets on; return its figures."""
    with tempfile.TemporaryFile("w+") as errors:
        # In a session of its own: it is for this process to pass a terminal's Ctrl-C on, once.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=found_environment(MODULE),
            start_new_session=True,
        )
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(description))
            child.stdin.close()
            with reporter.solve(label, tolerance) as show:
                try:
                    figures = _follow(child, label, show, reporter)
                except KeyboardInterrupt:
                    child.send_signal(signal.SIGINT)
                    figures = _follow(child, label, show, reporter)
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
    if "figures" in figures:
        return dict(figures["figures"])
    message = f"{label}: {figures.get('error', last[0])}"
    if figures.get("exit_code") == ExitCode.INTERRUPTED:
        raise InterruptedRunError(message, figures["checkpoint"])
    raise DkgpError(message)


def _follow(
    child: subprocess.Popen[str],
    label: str,
    show: Callable[[SolveProgress | WorkProgress], None],
    reporter: Reporter,
) -> dict[str, Any]:
    """Show what a run says of itself until it ends; return the last thing that it said."""
    figures: dict[str, Any] = {}
    assert child.stdout is not None
    for line in child.stdout:
        with contextlib.suppress(ValueError):  # a line that an interruption has torn
            figures = json.loads(line)
            if "round" in figures:
                show(SolveProgress(**figures["round"]))
            elif "within" in figures:
                show(WorkProgress(**figures["within"]))
            elif "note" in figures:
                reporter.note(f"{label}: {figures['note']}")
            elif "warning" in figures:
                reporter.warn(f"{label}: {figures['warning']}")
    child.wait()
    return figures


def _row(figures: dict[str, Any]) -> dict[str, Any]:
    """A row of the table: seconds by part, and what the entries alone would have taken."""
    n, evaluations = figures["n"], figures["kernel_evaluations"]
    double = min(evaluations, figures["refreshes"] * n * n / 2)
    limit = (evaluations - double) * figures["entry_seconds"] + double * figures["entry_double_seconds"]
    limit /= figures["cores"]
    parts = {name: sum(figures["parts"].get(part, 0.0) for part in of) for name, of in PARTS.items()}
    return {
        **{name: figures[name] for name in ("n", "seconds", "iterations", "refreshes", "solver", "gradient_inf_norm")},
        **parts,
        "other_seconds": max(0.0, figures["seconds"] - sum(parts.values())),
        "entries": evaluations / n**2,
        "kernel_evaluations": evaluations,
        "entry_ns": 1e9 * figures["entry_seconds"],
        "entry_double_ns": 1e9 * figures["entry_double_seconds"],
        "cores": figures["cores"],
        "limit_seconds": limit,
        "seconds_to_limit": figures["seconds"] / limit,
        "peak_memory_bytes": figures["peak_memory_bytes"],
        "settings": figures["settings"],
    }
