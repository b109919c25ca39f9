"""`dkgp bench growth`: training at growing sizes, against the time of its kernel entries."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers

PROBLEM = tuple(option for option in section.problem_options() if option.name not in ("n", "n_test"))


def _options() -> tuple[Option, ...]:
    from dkgp.solvers.registry import AUTO, solver_names

    return (
        *PROBLEM,
        Option(
            "sizes",
            "Numbers of training samples. A million takes most of an hour on two cores.",
            type=whole_numbers,
            default="10000,20000,50000",
            metavar="N,N,...",
        ),
        Option("solver", "Solver for all sizes.", default=AUTO, choices=(AUTO, *solver_names())),
        section.TOLERANCE,
        Option(
            "folder",
            "Folder for data, checkpoints and records. A later run continues from them.  [default: a temporary folder]",
            metavar="DIR",
        ),
        Option("plot", "Plot seconds against samples into a .png, .pdf or .svg file.", metavar="FILE"),
        section.OUT,
    )


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.problem import BenchProblem
    from dkgp.commands.solver_options import SolverOptions
    from dkgp_benchmarks.growth.study import BenchGrowthJob, run_bench_growth

    problem = BenchProblem(**section.take(values, *PROBLEM))
    own = section.take(values, section.TOLERANCE)
    solver = SolverOptions(values.pop("solver"), **own, seed=problem.seed)
    return run_bench_growth(BenchGrowthJob(problem=problem, solver=solver, **values), reporter)


section.SECTIONS.add(
    section.Section(
        "growth",
        """Measure training time at increasing numbers of samples.

        The table compares it with the time that the kernel entries alone would take on all cores. The sizes run one
        after the other, the smallest first, each in its own process and with the same hyperparameters. With --folder,
        the same command continues an interrupted run.
        """,
        _run,
        _options,
        examples=(
            "dkgp bench growth --sizes 10000,20000,50000 --plot growth.png",
            "dkgp bench growth --sizes 10000,100000,1000000 --folder growth --out growth.json",
        ),
        on_cluster=True,
        without_null="each size runs once, against a line that is no run",
    )
)
