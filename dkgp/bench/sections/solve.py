"""`dkgp bench solve`: GBCD against LAPACK."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option

PER_STEP = Option(
    "variables_per_step",
    "Variables that gbcd chooses between two solutions of the block.  [default: a 20th of the block]",
    type=int,
    least=1,
    metavar="V",
)


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.solve import BenchSolveJob, run_bench_solve

    return section.measure(
        BenchSolveJob, run_bench_solve, values, reporter, section.BLOCK_SIZE, section.TOLERANCE, PER_STEP
    )


section.SECTIONS.add(
    section.Section(
        "solve",
        """GBCD against LAPACK's Cholesky and one plain NumPy float64 pass over the kernel matrix.

        Every contender runs in a process of its own and takes its turn in every repeat. Cholesky is left out, and that
        is said, where its matrix does not fit the memory available.
        """,
        _run,
        (
            *section.problem_options(),
            section.BLOCK_SIZE,
            PER_STEP,
            section.TOLERANCE,
            section.REPEATS,
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
            section.OUT,
        ),
        examples=(
            "dkgp bench solve --data kin40k.npz --samples 30000 --out solve.json",
            "dkgp bench solve --data friedman1 --samples 100000 --no-cholesky",
        ),
        on_cluster=True,
    )
)
