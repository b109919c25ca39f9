"""`dkgp bench risk`: methods that minimise a regularised risk, and kernel CG's iterations against the theorem's root.

N. Ratliff, J. A. Bagnell, Kernel Conjugate Gradient for Fast Kernel Machines (2007), section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError, UsageError
from dkgp.operators import BlockedKernelOperator, DenseKernelOperator
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.solvers.risk import RISK_METHODS
from dkgp_benchmarks.classify.problems import PROBLEMS
from dkgp_benchmarks.risk.penalties import SAMPLES as PENALTY_SAMPLES
from dkgp_benchmarks.risk.penalties import small_penalties
from dkgp_benchmarks.risk.problems import RiskProblem, read_problem, with_tuned_kernel
from dkgp_benchmarks.risk.runs import LABELS, LOSSES, RiskRun, RiskWithin, iterations_to, minimise

# Data sets that are used if their files exist, and generated ones.
FILES, GENERATED = ("usps-4", "banana", "adult"), ("made-twonorm", "made-ringnorm")
SAMPLES, FILE_SAMPLES, ROOT_SAMPLES = 2000, 10_000, 2000
RACE_GAP, ROOT_SHARE = 1e-8, 1e-4
LAMBDAS = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)
# Gradients and parameter CG need thousands where the others need dozens; they are cut off and said to be.
MOST_ITERATIONS, MOST_SECONDS = 3000, 120.0
# "the square root" is taken to hold within this factor; the theorem is of bounds, not of runs.
ALLOWED_FACTOR = 2.0
METHODS = (*RISK_METHODS, "auto")
WARM_UP_SAMPLES = 1000

RACE_COLUMNS = (
    Column("problem", "problem", text=True),
    Column("n", "n", ",d"),
    Column("loss", "loss", text=True),
    Column("method", "method", text=True),
    Column("reached", "reached", text=True),
    Column("gap", "gap", ".1e"),
    Column("above", "above best bound", ".1e"),
    Column("iterations", "iterations", ",d"),
    Column("products", "products", ",.1f"),
    Column("entries", "entries / n²", ",.1f"),
    Column("seconds", "seconds", ",.2f"),
    Column("to_best", "time / best", ",.2f"),
    Column("note", "", text=True),
)
ROOT_COLUMNS = (
    Column("problem", "problem", text=True),
    Column("loss", "loss", text=True),
    Column("regularisation", "lambda", "g"),
    Column("kcg", "iterations of kernel CG", ",d"),
    Column("paramcg_shown", "iterations of parameter CG", text=True),
    Column("root_shown", "their square root", text=True),
    Column("factor_shown", "kernel CG / square root", text=True),
    Column("holds", "at most 2", text=True),
    Column("times_shown", "parameter CG / kernel CG", text=True),
)
CAUTIONS = {
    "reached": "A method stops when it proves a lower bound of the minimal risk within the gap of its own risk. "
    "'above best bound': its risk in float64, relative to the best lower bound of all methods, minus 1.",
    "products": "Products with the kernel matrix, as the method counts them. Entries also include those of "
    "preconditioners, dense blocks and float64 verification.",
    "cut off": f"The method reached --max-iterations ({MOST_ITERATIONS:,}) or --max-seconds ({MOST_SECONDS:g}).",
}


@dataclass(frozen=True)
class BenchRiskJob:
    """Settings of `dkgp bench risk`; defaults are those of the command.

    Attributes
    ----------
    data
        Folder of .npz files; by default only generated problems.
    problems, methods, losses
        By default the `FILES` that exist, else the generated problems; all methods; the logistic loss.
    parts
        "methods", all methods to the same gap; "root", iterations for several lambdas; "penalties", twelve problems
        with small lambdas. By default the first two.
    n
        Largest number of samples: 10,000 of a file, 2,000 of generated data and for the root, 1,000 for penalties.
    regularisation, gap
        For "methods".
    lambdas, share
        For "root": the regularisations, and the relative distance from the minimum up to which iterations are counted.
    max_iterations, max_seconds
        Limits of a run.
    subset
        Number of samples that the kernel's length scale is tuned on.
    """

    data: str | None = None
    problems: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    losses: tuple[str, ...] = ("klr",)
    parts: tuple[str, ...] = ()
    n: int | None = None
    regularisation: float = 1.0
    gap: float = RACE_GAP
    lambdas: tuple[float, ...] = LAMBDAS
    share: float = ROOT_SHARE
    max_iterations: int = MOST_ITERATIONS
    max_seconds: float = MOST_SECONDS
    subset: int = 1000
    seed: int = 0
    out: str | None = None

    @property
    def folder(self) -> Path | None:
        """Folder of the data; `InputError` if it does not exist."""
        if self.data is None:
            return None
        path = Path(self.data).expanduser()
        if not path.is_dir():
            raise InputError(f"`data` '{self.data}' is not a folder; expected a folder with .npz files")
        return path

    @property
    def names(self) -> tuple[str, ...]:
        """Problems that are run."""
        if self.problems:
            return tuple(dict.fromkeys(self.problems))
        folder = self.folder
        here = [] if folder is None else [name for name in FILES if (folder / f"{PROBLEMS[name].file}.npz").is_file()]
        return tuple(here) or GENERATED

    def check(self) -> None:
        """Refuse invalid values and unknown names before any work."""
        for name in self.methods:
            if name not in METHODS:
                raise UsageError(f"unknown method '{name}'; available: {', '.join(METHODS)}")
        for name in self.names:
            if name not in PROBLEMS:
                raise UsageError(f"unknown problem '{name}'; available: {', '.join(PROBLEMS)}")
        if not self.lambdas:
            raise UsageError("`lambdas` is empty; give at least one value")
        if self.n is not None and self.n < 2:
            raise UsageError(f"`n` must be at least 2; got {self.n}")
        for name, value in (
            *(("a number of `lambdas`", each) for each in self.lambdas),
            ("`regularisation`", self.regularisation),
            ("`gap`", self.gap),
            ("`share`", self.share),
            ("`max_iterations`", self.max_iterations),
            ("`max_seconds`", self.max_seconds),
        ):
            if not value > 0.0 or not math.isfinite(value):
                raise UsageError(f"{name} must be finite and positive; got {value:g}")


def run_bench_risk(job: BenchRiskJob, reporter: Reporter) -> Document:
    """Race the methods, and count iterations; return both tables.

    Raises
    ------
    UsageError, InputError
        A name is unknown or a value out of range; raised before anything is measured.
    """
    job.check()
    check_record_file(job.out)
    parts = tuple(dict.fromkeys(job.parts or ("methods", "root")))
    document = report(
        "risk",
        f"Methods that minimise a regularised risk (lambda {job.regularisation:g}) to a relative gap of {job.gap:g}",
        RACE_COLUMNS,
        [],
        {},
        asked=plain(asdict(job)),
    )
    sections: list[Document] = []
    document |= {"sections": sections, "cautions": CAUTIONS, "cautions_title": "Notes", "complete": False}
    if "methods" in parts:
        rows = [row for problem in _problems(job, reporter) for row in race(problem, job, reporter)]
        document["rows"] = plain(rows)
        document["figures"] = plain(_race_figures(rows))
        write_record(document, job.out)
    if "root" in parts:
        found = [row for problem in _problems(job, reporter, ROOT_SAMPLES) for row in roots(problem, job, reporter)]
        sections.append(_root_section(found, job.share))
    if "penalties" in parts:
        sections.append(small_penalties(job.n or PENALTY_SAMPLES, job.max_seconds, job.seed, reporter))
    document["warnings"] = list(reporter.warnings)
    document["complete"] = True
    return write_record(document, job.out)


def race(problem: RiskProblem, job: BenchRiskJob, reporter: Reporter) -> list[dict[str, Any]]:
    """Run every method on a problem to the gap, kernel products on all cores; rows of a table."""
    methods = tuple(dict.fromkeys(job.methods)) or METHODS
    executor = LocalExecutor()
    rows: list[dict[str, Any]] = []
    try:
        for loss in job.losses:
            runs: list[RiskRun] = []
            few = ArrayInputs(problem.inputs[:WARM_UP_SAMPLES])
            for method in methods:
                for inputs, targets, warm in (
                    (few, problem.targets[:WARM_UP_SAMPLES], True),
                    (ArrayInputs(problem.inputs), problem.targets, False),
                ):
                    # Compiled code is loaded before a clock starts.
                    with BlockedKernelOperator(problem.found, 1.0, inputs, executor) as operator:
                        run = minimise(
                            operator,
                            targets,
                            LOSSES[loss],
                            job.regularisation,
                            method,
                            reporter,
                            gap=job.gap,
                            max_iterations=4 if warm else job.max_iterations,
                            max_seconds=job.max_seconds,
                            precision="mixed",
                            label=f"{problem.name}: {LABELS[method]}",
                        )
                runs.append(run)
            rows += _race_rows(problem, loss, runs)
    finally:
        executor.close()
    return rows


def roots(problem: RiskProblem, job: BenchRiskJob, reporter: Reporter) -> list[dict[str, Any]]:
    """Iterations of kernel CG and of parameter CG to the same share of the least risk, lambda by lambda.

    In float64, on the matrix in memory.
    """
    operator = DenseKernelOperator(problem.found, 1.0, problem.inputs, compiled=True)
    rows: list[dict[str, Any]] = []
    for loss in job.losses:
        for regularisation in job.lambdas:
            given = operator, problem.targets, LOSSES[loss], regularisation
            limits: dict[str, Any] = {"max_iterations": job.max_iterations, "max_seconds": job.max_seconds}
            label = f"{problem.name}, lambda {regularisation:g}"
            near = minimise(*given, "kcg", reporter, gap=0.01 * job.share, **limits, label=f"{label}: kernel CG")
            least = max(near.least[1], float(near.bound.max(initial=-math.inf)))
            far = minimise(
                *given,
                "paramcg",
                reporter,
                gap=job.share,
                stopping=RiskWithin(least, job.share),
                **limits,
                label=f"{label}: parameter CG",
            )
            kcg, paramcg = (iterations_to(run, run.risk <= least * (1.0 + job.share)) for run in (near, far))
            shared = {"problem": problem.name, "n": problem.n, "loss": loss, "regularisation": regularisation}
            rows.append(shared | compared(kcg, paramcg, cut_off=far.iterations))
    return rows


def compared(kcg: int | None, paramcg: int | None, *, cut_off: int) -> dict[str, Any]:
    """Iterations of both, kernel CG's over the root of the other's, and how many times fewer: bounds where cut off.

    Parameters
    ----------
    kcg, paramcg : int or None
        None where a method did not arrive.
    cut_off : int
        Iterations of parameter CG where it was stopped.
    """
    late = paramcg is None
    taken = cut_off if paramcg is None else paramcg
    root = math.sqrt(taken)
    row: dict[str, Any] = {"kcg": kcg, "paramcg": paramcg, "cut_off": late, "root": root}
    row["paramcg_shown"] = f"> {taken:,}" if late else f"{taken:,}"
    row["root_shown"] = f"> {root:.1f}" if late else f"{root:.1f}"
    row |= {"factor": None, "factor_shown": "-", "times": None, "times_shown": "-", "holds": "-"}
    if kcg is None or not taken:
        return row
    factor, times = kcg / root, taken / kcg
    row |= {"factor": factor, "times": times}
    row["factor_shown"] = f"< {factor:.2f}" if late else f"{factor:.2f}"
    row["times_shown"] = f"> {times:,.1f}" if late else f"{times:,.1f}"
    # A bound from above that is too large decides nothing.
    row["holds"] = "yes" if factor <= ALLOWED_FACTOR else "unknown" if late else "no"
    return row


def _problems(job: BenchRiskJob, reporter: Reporter, most: int | None = None) -> Iterator[RiskProblem]:
    """The problems with their kernels, of at most so many samples."""
    for name in job.names:
        size = job.n or (SAMPLES if PROBLEMS[name].file is None else FILE_SAMPLES)
        n = size if most is None else min(size, most)
        problem = with_tuned_kernel(read_problem(name, job.folder, n, job.seed, whole=True), job.subset, job.seed)
        reporter.note(
            f"{name}: n = {problem.n:,}, d = {problem.inputs.shape[1]}, kernel {problem.found.to_json()['type']}"
        )
        yield problem


def _race_rows(problem: RiskProblem, loss: str, runs: Sequence[RiskRun]) -> list[dict[str, Any]]:
    bound = max(run.least[1] for run in runs)
    arrived = [run.seconds for run in runs if run.solution is not None and run.solution.solution.converged]
    rows = []
    for run in runs:
        risk = run.least[0]
        reached = run.solution is not None and run.solution.solution.converged
        row: dict[str, Any] = {
            "problem": problem.name,
            "n": problem.n,
            "d": problem.inputs.shape[1],
            "loss": loss,
            "method": run.method,
            "reached": "yes" if reached else "no",
            "converged": reached,
            "iterations": run.iterations,
            "entries": run.entries,
            "seconds": run.seconds,
            "products": run.products[-1] if len(run.products) else None,
            "reason": run.reason,
            "note": "" if reached else "cut off",
        }
        if run.solution is not None:
            row |= {"gap": run.solution.solution.progress.duality_gap, "risk": risk, "above": risk / bound - 1.0}
            if run.method == "auto":
                row |= {"note": f"chose {run.solution.method}", "chosen": run.solution.choice}
        else:
            row["note"] = run.reason
        if reached:
            row["to_best"] = run.seconds / min(arrived)
        rows.append(row)
    return rows


def _race_figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    there = [row for row in rows if row["converged"]]
    above = [row["above"] for row in there]
    best = {(row["problem"], row["loss"]): row["method"] for row in there if row.get("to_best") == 1.0}
    automatic = [row["to_best"] for row in there if row["method"] == "auto"]
    return {
        "reached_the_gap": f"{len(there)} of {len(rows)}",
        "largest_relative_distance_from_the_best_bound": max(above) if above else None,
        "fastest_method": ", ".join(f"{problem}: {method}" for (problem, _), method in best.items()) or "none",
        "largest_time_of_auto_over_the_fastest": max(automatic) if automatic else None,
    }


def _root_section(rows: list[dict[str, Any]], share: float) -> Document:
    factors = [row["factor"] for row in rows if row["factor"] is not None]
    times = [row["times"] for row in rows if row["times"] is not None]
    return {
        "section": "root",
        "title": f"Iterations until the risk is within {share:g} of its minimum: kernel CG against parameter CG",
        "columns": [dict(vars(column)) for column in ROOT_COLUMNS],
        "rows": plain(rows),
        "figures": plain(
            {
                "theorem": "kernel CG needs at most about the square root of parameter CG's iterations",
                "largest_ratio_to_the_square_root": max(factors) if factors else None,
                "ratios_of_at_most_2": ", ".join(
                    f"{word}: {sum(row['holds'] == word for row in rows)}" for word in ("yes", "no", "unknown")
                ),
                "mean_ratio_of_parameter_cg_to_kernel_cg": float(np.mean(times)) if times else None,
                "ratios_that_are_only_bounds": sum(row["cut_off"] for row in rows),
            }
        ),
    }
