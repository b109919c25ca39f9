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
            "friedman1 or a file of --data without .npz, with settings of its own if need be: "
            "kin40k,n=30000,noise=1e-4,kernel=matern32.  [default: friedman1]",
            spellings=("--problem",),
            multiple=True,
            metavar="NAME",
        ),
        Option("fifteen", "Fifteen problems of all kinds: sizes, noise, features, kernels.", type=bool, default=False),
        Option(
            "sizes",
            "Training samples, where a problem names none.",
            type=whole_numbers,
            default="2000,10000",
            metavar="N,N,...",
        ),
        Option(
            "solvers",
            f"What auto is compared with, with options if need be, as in pcg,halo=0; of {', '.join(solver_names())}.  "
            f"[default: {', '.join(rivals())}]",
            spellings=("--solver",),
            multiple=True,
            metavar="NAME",
        ),
        replace(section.REPEATS, help="Of everything, in turns; medians count.", default=1),
        replace(
            section.NULL, help="Run the best of each repeat once more; beside each ratio stands what that comes to."
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
        """Time every solver, and see how near `--solver auto` comes to the best of them.

        Whoever takes longer than four times the best so far is cut off. The time of auto includes its look at the
        problem.
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
