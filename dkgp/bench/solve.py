"""`dkgp bench solve`: solvers against LAPACK's Cholesky and one plain NumPy pass: same data and run, own processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.bench.contenders import Runs, ratio, room_for_cholesky, take_turns
from dkgp.bench.problem import ProblemJob
from dkgp.cluster import ClusterOptions
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.measurements import ENTRIES, Column, median, report, write_record
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.errors import UsageError
from dkgp.solvers.registry import AUTO, check_options, declaration_of

REFERENCES = ("cholesky", "plain_pass")
# Of a solver's settings, what its record's note shows.
SIZES = ("halo", "leaf", "rank", "block_size", "largest_block_size", "tile_rows")

COLUMNS = (
    Column("contender", "contender", text=True),
    Column("seconds", "seconds", ".2f"),
    Column("column_passes", "passes", ".2f"),
    Column("refreshes", "checks", "d"),
    ENTRIES,
    Column("peak_memory_bytes", "peak memory", "bytes"),
    Column("rmse", "RMSE", ".6f"),
    Column("gradient_inf_norm", "max |g|", ".2e"),
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
    document = report("solve", title, COLUMNS, rows, figures, **settings)
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
        # Of the lower half in float32, by every product but the first, which fills it: what it took is in the time.
        speed = 1e-9 * share * 2.0 * n * n * products / parts["product"]
        solver += f"; {share:.0%} of K kept, read at {speed:.1f} GB/s or more"
    return solver if last["converged"] else f"cut off: {last['reason']}; {solver}"


def _sizes(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The sizes among a solver's settings, those of what it is made of included."""
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
