"""`dkgp bench prototypes`: ways to choose the prototypes of a fixed-size classifier, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.pursuit.prototypes import BenchPrototypesJob, run_bench_prototypes

    return run_bench_prototypes(BenchPrototypesJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "prototypes",
        """Ways to choose the prototypes of a fixed-size classifier: test error, and seconds that the choice takes.

        Of models of all that were chosen, and of the few that sparse conjugate directions pursuit takes of a pool.
        Kernel and noise are tuned once for each problem.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files with X and y of +-1, such as magic.npz.  [default: a generated problem]",
            ),
            Option(
                "problems",
                "As of `dkgp bench classify`.  [default: magic and adult, where they are in --data]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "methods",
                "How prototypes are chosen: k-centre, pivoted, ...  [default: all]",
                spellings=("--prototypes",),
                multiple=True,
                metavar="NAME",
            ),
            Option("n", "Training samples at most.", type=int, default=4000, spellings=("--samples", "--n")),
            Option("pool", "Prototypes that the pursuit chooses from.", type=int, default=500),
            Option("splits", "Of each problem.", type=int, default=3),
            section.SEED,
            section.OUT,
        ),
        examples=(
            "dkgp bench prototypes --samples 1000 --pool 200 --splits 1",
            "dkgp bench prototypes --data benchmark-data --samples 12680 --pool 1000 --out prototypes.json",
        ),
        without_null="its contenders differ in errors; nothing is raced",
    )
)
