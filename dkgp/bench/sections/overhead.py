"""`dkgp bench overhead`: what Dask costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dkgp.bench.section import BLOCK_SIZE, OUT, REPEATS, SECTIONS, TOLERANCE, Section, problem_options, take
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

PROBLEM = problem_options()


def _run(values: dict[str, Any], reporter: Reporter) -> Document:
    from dkgp.bench.overhead import BenchOverheadJob, run_bench_overhead
    from dkgp.bench.problem import BenchProblem
    from dkgp.commands.solver_options import SolverOptions

    problem = BenchProblem(**take(values, *PROBLEM))
    solver = SolverOptions(**take(values, BLOCK_SIZE, TOLERANCE), seed=problem.seed)
    return run_bench_overhead(BenchOverheadJob(problem=problem, solver=solver, **values), reporter)


SECTIONS.add(
    Section(
        "overhead",
        "The same solve without Dask, on a Dask cluster in one process, and on worker processes.",
        _run,
        (
            *PROBLEM,
            BLOCK_SIZE,
            TOLERANCE,
            REPEATS,
            Option("workers", "Workers of the two clusters.", type=int),
            OUT,
        ),
        examples=("dkgp bench overhead --samples 30000 --out overhead.json",),
    )
)
