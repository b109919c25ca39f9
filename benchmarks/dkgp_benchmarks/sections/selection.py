"""`dkgp bench selection`: ways to choose a block's variables."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option

METHOD = (
    Option(
        "variables_per_step",
        "Number of coefficients that the greedy selection adds between two solves of the block. The paper uses 1.",
        type=int,
        default=1,
        least=1,
        metavar="V",
    ),
    section.TOLERANCE,
    Option(
        "memory", "Number of earlier steps to which each step is made conjugate. The paper uses 0.", type=int, default=0
    ),
    Option("max_passes", "Largest number of passes of each method.", type=float, default=30.0),
)


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.selection import BenchSelectionJob, run_bench_selection

    return section.measure(BenchSelectionJob, run_bench_selection, values, reporter, section.BLOCK_SIZE, *METHOD)


section.SECTIONS.add(
    section.Section(
        "selection",
        "Compare greedy with cyclic and gradient selection in block coordinate descent.",
        _run,
        (
            *section.problem_options(),
            section.BLOCK_SIZE,
            *METHOD,
            Option("plot", "Plot gradient and objective by iteration into a .png, .pdf or .svg file.", metavar="FILE"),
            section.OVERWRITE,
            section.OUT,
        ),
        examples=("dkgp bench selection --samples 5000 --block-size 250 --plot selection.png",),
        on_cluster=True,
        without_null="its methods are compared by rounds and passes, which are the same in every run",
    )
)
