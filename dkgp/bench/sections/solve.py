"""`dkgp bench solve`: GBCD against LAPACK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dkgp.bench.section import BLOCK_SIZE, OUT, REPEATS, SECTIONS, TOLERANCE, Section, problem_options, take
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

PROBLEM = problem_options()
PER_STEP = Option(
    "variables_per_step",
    "Variables that gbcd chooses between two solutions of the block.  [default: a 20th of the block]",
    type=int,
    least=1,
    metavar="V",
)


def _run(values: dict[str, Any], reporter: Reporter) -> Document:
    from dkgp.bench.problem import BenchProblem
    from dkgp.bench.solve import BenchSolveJob, run_bench_solve
    from dkgp.commands.solver_options import SolverOptions

    problem = BenchProblem(**take(values, *PROBLEM))
    solver = SolverOptions(**take(values, BLOCK_SIZE, TOLERANCE, PER_STEP), seed=problem.seed)
    return run_bench_solve(BenchSolveJob(problem=problem, solver=solver, **values), reporter)


SECTIONS.add(
    Section(
        "solve",
        """GBCD against LAPACK's Cholesky and one plain NumPy float64 pass over the kernel matrix.

        Every contender runs in a process of its own and takes its turn in every repeat. Cholesky is left out, and that
        is said, where its matrix does not fit the memory available.
        """,
        _run,
        (
            *PROBLEM,
            BLOCK_SIZE,
            PER_STEP,
            TOLERANCE,
            REPEATS,
            Option(
                "with_cholesky",
                "Whether LAPACK takes part.",
                type=bool,
                default=True,
                spellings=("--cholesky/--no-cholesky",),
            ),
            Option(
                "with_plain_pass",
                "Whether the NumPy pass does.",
                type=bool,
                default=True,
                spellings=("--plain-pass/--no-plain-pass",),
            ),
            OUT,
        ),
        examples=(
            "dkgp bench solve --data kin40k.npz --samples 30000 --out solve.json",
            "dkgp bench solve --data friedman1 --samples 100000 --no-cholesky",
        ),
        on_cluster=True,
    )
)
