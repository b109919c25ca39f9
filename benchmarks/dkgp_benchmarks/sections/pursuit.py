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
        """Figures 3 to 13 of the paper on sparse conjugate directions pursuit: paths, sensing, kernel models.

        All of them, or those that are named, as one picture each and one record.
        """,
        _run,
        (
            Option(
                "figures",
                "Number of a figure.  [default: all]",
                spellings=("--figure",),
                choices=tuple(str(number) for number in range(3, 14)),
                multiple=True,
            ),
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files with X, y (+-1) and perhaps test_mask, such as magic.npz and adult.npz.  "
                "[default: problems of the same kind are generated, and said to be]",
            ),
            Option(
                "problems",
                "Files of --data, without .npz, in place of the paper's.",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option("draws", "Random repeats.  [default: each figure's own]", type=int),
            Option("full", "The paper's own repeats and sizes.", type=bool, default=False),
            Option(
                "n",
                "Training samples at most, in figures 11 to 13, and the signal's numbers in figure 6.  [default: each "
                "figure's own]",
                type=int,
                spellings=("--samples", "--n"),
            ),
            Option("pool", "Prototypes to choose from in figures 11 to 13.  [default: each figure's own]", type=int),
            section.SEED,
            Option("plots", "Draw each figure into this folder.", spellings=("--plots", "--plot"), metavar="DIR"),
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
