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
        """Compare the methods that choose the prototypes of a fixed-size classifier.

        The table has the test errors and the seconds of the choice, for models of all chosen prototypes and for models
        of the few that sparse conjugate directions pursuit selects from them. Kernel and noise are tuned once for each
        problem.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files with X and y of +-1, such as magic.npz.  [default: a generated problem]",
            ),
            Option(
                "problems",
                "Problem, as for `dkgp bench classify`. May be repeated.  [default: magic and adult if --data has "
                "them]",
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
            Option("n", "Largest number of training samples.", type=int, default=4000, spellings=("--samples", "--n")),
            Option("pool", "Number of prototypes from which the pursuit selects.", type=int, default=500),
            Option("splits", "Number of random splits per problem.", type=int, default=3),
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
