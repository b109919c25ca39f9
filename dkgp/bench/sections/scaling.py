"""`dkgp bench scaling`: more worker processes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dkgp.bench.section import BLOCK_SIZE, OUT, REPEATS, SECTIONS, TOLERANCE, Section, problem_options, take
from dkgp.registry import Option, whole_numbers

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

PROBLEM = problem_options()


def _run(values: dict[str, Any], reporter: Reporter) -> Document:
    from dkgp.bench.problem import BenchProblem
    from dkgp.bench.scaling.study import BenchScalingJob, run_bench_scaling
    from dkgp.commands.solver_options import SolverOptions

    problem = BenchProblem(**take(values, *PROBLEM))
    solver = SolverOptions(**take(values, BLOCK_SIZE, TOLERANCE), seed=problem.seed)
    return run_bench_scaling(BenchScalingJob(problem=problem, solver=solver, **values), reporter)


SECTIONS.add(
    Section(
        "scaling",
        """The update and the whole solve on 1, 2, ... single-threaded worker processes of this machine.

        Beside the update's speed-up stands what the machine itself allows: as many independent processes on the same
        kernel entries, against one. The cost model's figures for the same runs are said too.
        """,
        _run,
        (
            *PROBLEM,
            BLOCK_SIZE,
            TOLERANCE,
            REPEATS,
            Option("workers", "Worker processes.", type=whole_numbers, default="1,2", metavar="N,N,..."),
            OUT,
        ),
        examples=(
            "dkgp bench scaling --samples 100000 --workers 1,2 --out scaling.json",
            "dkgp bench scaling --data kin40k.npz --samples 30000 --workers 1,2,4",
        ),
    )
)
