"""`dkgp bench selection`: ways to choose a block's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dkgp.bench.section import BLOCK_SIZE, OUT, OVERWRITE, SECTIONS, TOLERANCE, Section, problem_options, take
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter

PROBLEM = problem_options()
METHOD = (
    Option(
        "variables_per_step",
        "Variables that the greedy selection takes between two solutions of the block; 1 as in the paper.",
        type=int,
        default=1,
        least=1,
        metavar="V",
    ),
    TOLERANCE,
    Option("memory", "Conjugate steps; 0 as in the paper.", type=int, default=0),
    Option("max_passes", "Where each method is cut off.", type=float, default=30.0),
)


def _run(values: dict[str, Any], reporter: Reporter) -> Document:
    from dkgp.bench.problem import BenchProblem
    from dkgp.bench.selection import BenchSelectionJob, run_bench_selection
    from dkgp.commands.solver_options import SolverOptions

    problem = BenchProblem(**take(values, *PROBLEM))
    solver = SolverOptions(**take(values, BLOCK_SIZE, *METHOD), seed=problem.seed)
    return run_bench_selection(BenchSelectionJob(problem=problem, solver=solver, **values), reporter)


SECTIONS.add(
    Section(
        "selection",
        "Greedy against cyclic and gradient selection with the same block size, iteration by iteration.",
        _run,
        (
            *PROBLEM,
            BLOCK_SIZE,
            *METHOD,
            Option("plot", "Draw gradient and objective by iteration into a .png, .pdf or .svg.", metavar="FILE"),
            OVERWRITE,
            OUT,
        ),
        examples=("dkgp bench selection --samples 5000 --block-size 250 --plot selection.png",),
        on_cluster=True,
    )
)
