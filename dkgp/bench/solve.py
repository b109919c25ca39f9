"""Solves measured by `dkgp bench solve`, `dkgp bench overhead` and `dkgp bench scaling`.

`solve` races solvers against LAPACK's Cholesky and one plain NumPy pass: same data and run, each in its own process.
`overhead` takes the same solve without Dask, on a Dask cluster in one process, and on worker processes. `scaling`
measures products and whole solves on 1, 2, ... worker processes as `dkgp plan --validate` does, and compares them with
the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.bench.contenders import Runs, ratio, room_for_cholesky, take_turns
from dkgp.bench.problem import BenchProblem, ProblemJob
from dkgp.cluster import ClusterOptions, open_executor
from dkgp.commands.reporting.measurements import ENTRIES, Column, median, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import open_dataset
from dkgp.errors import UsageError
from dkgp.models import read_hyperparameters
from dkgp.solvers.registry import AUTO, check_options, declaration_of

REFERENCES = ("cholesky", "plain_pass")
# Settings of a solver that its record's note shows.
SIZES = ("halo", "leaf", "rank", "block_size", "largest_block_size", "tile_rows")

SOLVE_COLUMNS = (
    Column("contender", "method", text=True),
    Column("seconds", "seconds", ".2f"),
    Column("column_passes", "passes", ".2f"),
    Column("refreshes", "float64 checks", "d"),
    ENTRIES,
    Column("peak_memory_bytes", "peak memory", "bytes"),
    Column("rmse", "RMSE", ".6f"),
    Column("gradient_inf_norm", "largest residual", ".2e"),
    Column("note", "", text=True),
)


@dataclass(frozen=True)
class BenchSolveJob(ProblemJob):
    """A comparison of solvers with Cholesky and a plain pass over the kernel matrix, on one problem.

    Attributes
    ----------
    solvers
        By name; "auto" looks at the problem, within its time. Options in `solver` go to those that have them.
    cluster
        Where they run.
    repeats
        Turns that every contender takes; medians are reported.
    null
        Whether Cholesky and the pass are raced against their own copies too, for the noise of the ratios.
    with_cholesky, with_plain_pass
        Whether these contenders take part.
    """

    solvers: tuple[str, ...] = (AUTO,)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    repeats: int = 3
    null: bool = False
    with_cholesky: bool = True
    with_plain_pass: bool = True

    def __post_init__(self) -> None:
        if not self.solvers or set(self.solvers) & set(REFERENCES) or len(set(self.solvers)) < len(self.solvers):
            raise UsageError(
                f"name different solvers, none as the references are ({', '.join(REFERENCES)}); got {self.solvers}"
            )
        for name, value in self.solver.own:
            if not any(name in _known(solver) for solver in self.solvers):
                check_options(self.solvers[0], {name: value})

    def options_of(self, name: str) -> SolverOptions:
        """Options of one of the solvers."""
        option_names = _known(name)
        return self.solver.changed(solver=name, own=tuple(pair for pair in self.solver.own if pair[0] in option_names))


def _known(solver: str) -> set[str]:
    """Names of the options that a solver has, or puts up with."""
    if solver == AUTO:
        return set()
    declared = declaration_of(solver)
    return {option.name for option in declared.options}.union(declared.ignores)


def run_bench_solve(job: BenchSolveJob, reporter: Reporter) -> Document:
    """Measure; return seconds, passes, peak memory and RMSE of each contender, and the ratios."""
    with job.prepared(reporter) as (prepared, folder):
        is_run = (job.with_cholesky and room_for_cholesky(prepared.n, reporter.warn), job.with_plain_pass)
        references = tuple(compress(REFERENCES, is_run))
        contenders = [*job.solvers, *references]

        def describe(name: str, repeat: int) -> dict[str, Any]:
            return {
                "contender": name if name in references else "solve",
                **prepared.to_json(),
                "alpha": str(folder / f"{name}-{repeat}.npy"),
                **({} if name in references else {"solver": job.options_of(name).to_json()}),
                "cluster": asdict(job.cluster),
            }

        runs = take_turns(
            "bench solve", contenders, job.repeats, describe, reporter, copied=references if job.null else ()
        )
        figures = _figures(job.solvers, runs, folder)
    rows = [_row(contender, runs[contender], prepared.n) for contender in contenders]
    title = job.title("Solve", prepared, f"median of {job.repeats}")
    settings = {**job.settings(prepared), "solvers": job.solvers, "repeats": job.repeats, "runs": runs}
    document = report("solve", title, SOLVE_COLUMNS, rows, figures, **settings)
    document["warnings"] = list(reporter.warnings)
    return write_record(document, job.out)


def _row(name: str, runs: list[dict[str, Any]], n: int) -> dict[str, Any]:
    last = runs[-1]
    notes = {
        "cholesky": f"assembly {last.get('assembly_seconds', 0):.2f} s, factor {last.get('factor_seconds', 0):.2f} s",
        "plain_pass": "float64, tiles of 4,096",
    }
    return {
        "contender": name,
        "seconds": median([run["seconds"] for run in runs]),
        "peak_memory_bytes": median([run["peak_memory_bytes"] for run in runs]),
        "column_passes": 1.0 if name == "plain_pass" else last.get("column_passes"),
        "refreshes": last.get("refreshes"),
        "entries": last["kernel_evaluations"] / n**2 if "kernel_evaluations" in last else None,
        "rmse": last.get("rmse"),
        "gradient_inf_norm": last.get("gradient_inf_norm"),
        "note": notes[name] if name in notes else _note_of(runs, n),
    }


def _note_of(runs: list[dict[str, Any]], n: int) -> str:
    """A solver's sizes, where its time went (medians), tiles that it read, and whether it was cut off."""
    last = runs[-1]
    sizes = ", ".join(f"{name} {value:,}" for name, value in _sizes(last["solver"]))
    parts = {name: median([run["seconds_by_part"].get(name, 0.0) for run in runs]) for name in last["seconds_by_part"]}
    spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
    solver = f"{last['solver']['solver']}{f' ({sizes})' if sizes else ''}: {spent} s"
    share, products = last["kept_share"], last["iterations"] - 1
    if share and parts.get("product"):
        # Of the lower half in float32, by every product but the first, which fills it; the time includes the first.
        speed = 1e-9 * share * 2.0 * n * n * products / parts["product"]
        solver += f"; {share:.0%} of K kept, read at {speed:.1f} GB/s or more"
    return solver if last["converged"] else f"cut off: {last['reason']}; {solver}"


def _sizes(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the sizes among a solver's settings, those of its parts included."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _sizes(value)
        elif name in SIZES and isinstance(value, int):
            yield name.replace("_", " "), value


def _figures(solvers: Sequence[str], runs: Runs, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name in solvers:
        if "cholesky" in runs:
            against = f"{name}_to_cholesky"
            figures[f"seconds_{against}"] = ratio(runs, name, "cholesky", "seconds")
            figures[f"seconds_{against}_factor_alone"] = ratio(runs, name, "cholesky", "seconds", "factor_seconds")
            figures[f"memory_{against}"] = ratio(runs, name, "cholesky", "peak_memory_bytes")
            ours, exact = (
                np.load(folder / f"{contender}-0.npy", allow_pickle=False) for contender in (name, "cholesky")
            )
            figures[f"largest_alpha_difference_{against}"] = float(np.max(np.abs(ours - exact)))
            figures[f"alpha_difference_of_{name}_allowed_by_certificate"] = runs[name][0]["alpha_error_bound"]
            if runs[name][0].get("rmse") is not None:
                figures[f"rmse_difference_{against}"] = abs(runs[name][0]["rmse"] - runs["cholesky"][0]["rmse"])
        if "plain_pass" in runs:
            figures[f"seconds_{name}_to_plain_pass"] = ratio(runs, name, "plain_pass", "seconds")
    return figures


KINDS = ("none", "local", "processes")

OVERHEAD_COLUMNS = (
    Column("cluster", "cluster", text=True),
    Column("seconds", "seconds", ".2f"),
    Column("start_seconds", "start, s", ".2f"),
    Column("ratio", "time / time without Dask", ".3f"),
    Column("peak_memory_bytes", "peak memory", "bytes"),
    Column("iterations", "rounds", "d"),
    Column("bit_identical", "same bits as without Dask", text=True),
)


@dataclass(frozen=True)
class BenchOverheadJob(ProblemJob):
    """A comparison of the same solve without Dask and with it; medians of interleaved repeats."""

    workers: int | None = None
    kinds: tuple[str, ...] = KINDS
    repeats: int = 3
    null: bool = False


def run_bench_overhead(job: BenchOverheadJob, reporter: Reporter) -> Document:
    """Measure; return seconds and ratios, and whether alpha is the same to the last bit."""
    with job.prepared(reporter) as (prepared, folder):

        def describe(kind: str, repeat: int) -> dict[str, Any]:
            return {
                "contender": "solve",
                **prepared.to_json(),
                "test": None,
                "alpha": str(folder / f"{kind}-{repeat}.npy"),
                "solver": job.solver.to_json(),
                "cluster": {"kind": kind, "workers": None if kind == "none" else job.workers},
            }

        runs = take_turns("bench overhead", job.kinds, job.repeats, describe, reporter, copied=job.kinds[:1] * job.null)
        alphas = {
            kind: [np.load(folder / f"{kind}-{repeat}.npy", allow_pickle=False) for repeat in range(job.repeats)]
            for kind in job.kinds
        }
    first = job.kinds[0]
    reference = alphas[first][0]
    rows = [
        {
            "cluster": kind,
            "seconds": median([run["seconds"] for run in runs[kind]]),
            "start_seconds": median([run["start_seconds"] for run in runs[kind]]),
            "ratio": 1.0 if kind == first else ratio(runs, kind, first, "seconds"),
            "peak_memory_bytes": median([run["peak_memory_bytes"] for run in runs[kind]]),
            "iterations": runs[kind][-1]["iterations"],
            "bit_identical": all(alpha.tobytes() == reference.tobytes() for alpha in alphas[kind]),
        }
        for kind in job.kinds
    ]
    figures = {f"seconds_{row['cluster']}_to_{first}": row["ratio"] for row in rows[1:]}
    figures["bit_identical"] = all(row["bit_identical"] for row in rows)
    title = job.title("Overhead of Dask", prepared, f"median of {job.repeats}")
    settings = {**job.settings(prepared), "repeats": job.repeats, "runs": runs}
    return write_record(report("overhead", title, OVERHEAD_COLUMNS, rows, figures, **settings), job.out)


SCALING_COLUMNS = (
    Column("workers", "workers", "d"),
    Column("product_seconds", "product, s", ".4f"),
    Column("product_speedup", "speed-up", ".2f"),
    Column("ceiling", "speed-up of bare processes", ".2f"),
    Column("share_of_ceiling", "share of that", ".2f"),
    Column("product_to_model", "measured / forecast", ".2f"),
    Column("seconds", "whole solve, s", ".2f"),
    Column("speedup", "speed-up", ".2f"),
    Column("seconds_to_model", "measured / forecast", ".2f"),
    Column("worker_peak_bytes", "peak memory of a worker", "bytes"),
    Column("worker_memory_to_model", "measured / forecast", ".2f"),
)


@dataclass(frozen=True)
class BenchScalingJob(ProblemJob):
    """A study of one solve on growing numbers of workers.

    Attributes
    ----------
    workers
        Numbers of worker processes; speed-ups refer to the first.
    repeats
        Turns that every number takes; medians are reported.
    null
        Whether the first number takes another turn in each repeat, for the noise of the speed-ups.
    """

    problem: BenchProblem = field(default_factory=lambda: BenchProblem(n=100_000))
    workers: tuple[int, ...] = (1, 2)
    repeats: int = 3
    null: bool = False

    def __post_init__(self) -> None:
        if not self.workers or min(self.workers) < 1 or len(set(self.workers)) != len(self.workers):
            raise UsageError(
                f"--workers needs different numbers of workers, each at least 1, such as 1,2; got {self.workers}"
            )


def run_bench_scaling(job: BenchScalingJob, reporter: Reporter) -> Document:
    """Measure; return seconds, speed-ups, ceilings and how far the cost model was off, for each number of workers."""
    from dkgp.plan.foreseen import foresee
    from dkgp.plan.machine import measure_cluster, measure_machine
    from dkgp.plan.validation import compare_with_model, measure_scaling

    with job.prepared(reporter) as (prepared, _):
        dataset, hyper = open_dataset(prepared.train), read_hyperparameters(prepared.hyper)
        solver, _ = job.solver.decided(dataset, hyper)
        scaling = measure_scaling(prepared.to_json(), solver, job.workers, job.repeats, reporter, null=job.null)
        reporter.note("measuring this machine and its cluster for the cost model")
        with open_executor(ClusterOptions(kind="processes", workers=1, threads_per_worker=1), 0, reporter) as executor:
            cluster = measure_cluster(executor)
            machine = measure_machine(dataset, hyper.kernel, hyper.noise_variance)
        foreseen = foresee(dataset, hyper, solver, SilentReporter())
    rows = compare_with_model(scaling, foreseen, machine, cluster)
    last = rows[-1]
    figures = {
        "product_speedup": last["product_speedup"],
        "ceiling": last["ceiling"],
        "speedup": last["speedup"],
        "column_passes": scaling.runs[job.workers[0]][0]["column_passes"],
        "iterations": scaling.runs[job.workers[0]][0]["iterations"],
    }
    title = job.title("Worker processes", prepared, f"median of {job.repeats}")
    settings = {
        **job.settings(prepared),
        "repeats": job.repeats,
        "runs": scaling.runs,
        "runs_again": scaling.again,
        "entries_per_second": scaling.ceilings,
        "machine_figures": machine.to_json(),
        "network": asdict(cluster.network),
    }
    return write_record(report("scaling", title, SCALING_COLUMNS, rows, figures, **settings), job.out)
