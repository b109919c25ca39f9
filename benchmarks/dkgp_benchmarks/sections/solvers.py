"""`dkgp bench solvers`: every solver, and how near `auto` comes to the best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _options() -> tuple[Option, ...]:
    from dkgp.solvers.registry import solver_names
    from dkgp_benchmarks.solvers import rivals

    return (
        section.DATA_FOLDER,
        Option(
            "problems",
            "Problem: friedman1 or a file of --data without .npz. Settings follow after commas, as in "
            "kin40k,n=30000,noise=1e-4,kernel=matern32. May be repeated.  [default: friedman1]",
            spellings=("--problem",),
            multiple=True,
            metavar="NAME",
        ),
        Option(
            "fifteen",
            "Measure fifteen problems with different numbers of samples, noise, features and kernels.",
            type=bool,
            default=False,
        ),
        Option(
            "sizes",
            "Numbers of training samples of problems without a setting n.",
            type=whole_numbers,
            default="2000,10000",
            metavar="N,N,...",
        ),
        Option(
            "solvers",
            f"Solver to compare with auto: {', '.join(solver_names())}. Options follow after commas, as in pcg,halo=0. "
            f"May be repeated.  [default: {', '.join(rivals())}]",
            spellings=("--solver",),
            multiple=True,
            metavar="NAME",
        ),
        replace(section.REPEATS, help="Number of repeats of all measurements; medians are reported.", default=1),
        replace(
            section.NULL,
            help="Also measure the fastest solver twice in each repeat. The range of the ratio of both "
            "is printed beside each ratio.",
        ),
        section.SUBSET,
        section.TOLERANCE,
        section.SEED,
        section.OUT,
    )


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.commands.solver_options import SolverOptions
    from dkgp_benchmarks.solvers import FIFTEEN, BenchSolversJob, rivals, run_bench_solvers

    solver = SolverOptions(**section.take(values, section.TOLERANCE))
    values["solvers"] = values["solvers"] or rivals()
    if values.pop("fifteen"):
        values["problems"] = (*FIFTEEN, *values["problems"])
    return run_bench_solvers(BenchSolversJob(solver=solver, **values), reporter)


section.SECTIONS.add(
    section.Section(
        "solvers",
        """Measure the time of every solver, and compare `--solver auto` with the fastest.

        A solver is stopped when it takes four times as long as the fastest one so far. The time of auto includes its
        forecasts.
        """,
        _run,
        _options,
        examples=(
            "dkgp bench solvers --sizes 2000,20000",
            "dkgp bench solvers --data benchmark-data --problem kin40k --problem abalone --repeats 3 --out "
            "solvers.json",
        ),
    )
)
