"""`dkgp bench solve`, `overhead` and `scaling`: solvers against LAPACK, the cost of Dask, and more worker processes."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers

LIMITS = (
    section.TOLERANCE,
    Option("max_passes", "Largest number of passes of each solver.", type=float),
    Option("max_seconds", "Largest number of seconds of each solver.", type=float),
)


def _options() -> tuple[Option, ...]:
    from dkgp.bench.solve import REFERENCES
    from dkgp.solvers.registry import AUTO, own_options, solver_names

    return (
        *section.problem_options(),
        Option(
            "solvers",
            "Solver to compare, as `dkgp train` runs it. May be repeated.  [default: auto]",
            spellings=("--solver",),
            choices=(AUTO, *(name for name in solver_names() if name not in REFERENCES)),
            multiple=True,
        ),
        *LIMITS,
        section.REPEATS,
        section.NULL,
        Option(
            "with_cholesky",
            "Include LAPACK's Cholesky factorisation.",
            type=bool,
            default=True,
            spellings=("--cholesky/--no-cholesky",),
        ),
        Option(
            "with_plain_pass",
            "Include one NumPy pass over the kernel matrix in float64.",
            type=bool,
            default=True,
            spellings=("--plain-pass/--no-plain-pass",),
        ),
        section.OUT,
        *own_options().values(),
    )


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.solve import BenchSolveJob, run_bench_solve
    from dkgp.solvers.registry import own_options

    values["solvers"] = values["solvers"] or BenchSolveJob.solvers
    return section.measure(BenchSolveJob, run_bench_solve, values, reporter, *LIMITS, *own_options().values())


section.SECTIONS.add(
    section.Section(
        "solve",
        """Compare solvers with LAPACK's Cholesky factorisation.

        A second baseline is one plain NumPy pass over the kernel matrix in float64. Each method runs in its own
        process, once per repeat. The table shows each solver's time and its parts. If the matrix does not fit in
        memory, Cholesky is omitted with a message.
        """,
        _run,
        _options,
        examples=(
            "dkgp bench solve --data kin40k.npz --samples 30000 --repeat 5 --null --out solve.json",
            "dkgp bench solve --data kin40k.npz --samples 30000 --solver auto --solver gbcd --solver pcg",
            "dkgp bench solve --data friedman1 --samples 100000 --no-cholesky",
        ),
        on_cluster=True,
    )
)


def _run_overhead(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.solve import BenchOverheadJob, run_bench_overhead

    return section.measure(
        BenchOverheadJob, run_bench_overhead, values, reporter, section.BLOCK_SIZE, section.TOLERANCE
    )


section.SECTIONS.add(
    section.Section(
        "overhead",
        "Compare one solve without Dask, on a Dask cluster in one process, and on worker processes.",
        _run_overhead,
        (
            *section.problem_options(),
            section.BLOCK_SIZE,
            section.TOLERANCE,
            section.REPEATS,
            section.NULL,
            Option("workers", "Number of workers of both clusters.", type=int),
            section.OUT,
        ),
        examples=("dkgp bench overhead --samples 30000 --out overhead.json",),
    )
)


def _run_scaling(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.solve import BenchScalingJob, run_bench_scaling

    return section.measure(BenchScalingJob, run_bench_scaling, values, reporter, section.BLOCK_SIZE, section.TOLERANCE)


section.SECTIONS.add(
    section.Section(
        "scaling",
        """Measure the speed-up of products and of a whole solve with the number of worker processes.

        The worker processes run on this machine with one thread each. The table compares the speed-up of a product with
        that of as many threads that only evaluate kernel entries. It also shows the forecasts for the same runs.
        """,
        _run_scaling,
        (
            *section.problem_options(),
            section.BLOCK_SIZE,
            section.TOLERANCE,
            section.REPEATS,
            section.NULL,
            Option("workers", "Numbers of worker processes.", type=whole_numbers, default="1,2", metavar="N,N,..."),
            section.OUT,
        ),
        examples=(
            "dkgp bench scaling --samples 100000 --workers 1,2 --out scaling.json",
            "dkgp bench scaling --data kin40k.npz --samples 30000 --workers 1,2,4",
        ),
    )
)
