"""`dkgp bench pursuit`: the figures of the paper on sparse conjugate directions pursuit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.pursuit.job import BenchPursuitJob
    from dkgp_benchmarks.pursuit.run import run_bench_pursuit

    return run_bench_pursuit(BenchPursuitJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "pursuit",
        """Reproduce figures 3 to 13 of the paper on sparse conjugate directions pursuit.

        The figures show solution paths, compressed sensing and kernel models.
        """,
        _run,
        (
            Option(
                "figures",
                "Figure of the paper. May be repeated.  [default: all]",
                spellings=("--figure",),
                choices=tuple(str(number) for number in range(3, 14)),
                multiple=True,
            ),
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files with X, y (+-1) and optionally test_mask, such as magic.npz and adult.npz.  "
                "[default: similar problems are generated]",
            ),
            Option(
                "problems",
                "File of --data without .npz, instead of the paper's data set. May be repeated.",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option("draws", "Number of random repeats.  [default: depends on the figure]", type=int),
            Option("full", "Use the numbers of repeats and samples of the paper.", type=bool, default=False),
            Option(
                "n",
                "Largest number of training samples in figures 11 to 13, and length of the signal in figure 6.  "
                "[default: depends on the figure]",
                type=int,
                spellings=("--samples", "--n"),
            ),
            Option(
                "pool",
                "Number of prototypes to choose from in figures 11 to 13.  [default: depends on the figure]",
                type=int,
            ),
            section.SEED,
            Option("plots", "Plot each figure into this folder.", spellings=("--plots", "--plot"), metavar="DIR"),
            section.OVERWRITE,
            section.OUT,
        ),
        examples=(
            "dkgp bench pursuit --data benchmark-data --plots figures --out pursuit.json",
            "dkgp bench pursuit --figure 4 --draws 100 --plots figures",
            "dkgp bench pursuit --figure 5 --figure 6 --plots figures --out sensing.json",
            "dkgp bench pursuit --data benchmark-data --figure 12 --figure 13 --plots figures",
        ),
        without_null="its figures stand beside those that the paper prints, not beside a baseline of this run",
    )
)
