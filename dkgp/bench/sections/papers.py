"""`dkgp bench papers`: the tables and figures of the papers, on data sets that a user has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers

LIMITS = (
    replace(
        section.BLOCK_SIZE,
        help="Variables in a round of the paper's block methods; at most a quarter of the samples.",
        default="500",
    ),
    section.TOLERANCE,
    Option(
        "max_passes",
        "Where each method is cut off, and said to be.  [default: 1000; 20000 for kcg]",
        type=float,
    ),
    Option("max_seconds", "The same in seconds of each run.", type=float),
)


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.papers.papers import BenchPapersJob, run_bench_papers
    from dkgp.commands.solver_options import SolverOptions

    solver = SolverOptions("gbcd", **section.take(values, *LIMITS), seed=values["seed"])
    return run_bench_papers(BenchPapersJob(solver=solver, **values), reporter)


section.SECTIONS.add(
    section.Section(
        "papers",
        """Tables and figures of the GBCD paper, the kernel CG paper and Smola and Bartlett's, on data that you have.

        All solvers run in this process, one after the other, with the same hyperparameters, threads and limits. Data
        sets that are absent are named, and so is what stands in for them.
        """,
        _run,
        (
            section.DATA_FOLDER,
            Option(
                "tables",
                "Of the GBCD paper, or of Smola and Bartlett's: Table 2, its test errors, its mixture; 3 as "
                "`dkgp bench variance --table` has it.  [default: 1 and 2]",
                spellings=("--table",),
                choices=("1", "2", "3", "4", "sb", "sb-errors", "sb-mixture"),
                multiple=True,
            ),
            Option(
                "figures",
                "Of the GBCD paper, or Figure 1 of the kernel CG paper or of Smola and Bartlett's.  [default: all but "
                "the last, unless a table is named]",
                spellings=("--figure",),
                choices=("1", "2", "3", "4", "kcg", "sb"),
                multiple=True,
            ),
            Option(
                "problems",
                "friedman1 or a file of --data without .npz; NAME:TARGET for another target than y, such as a matrix.  "
                "[default: those of the papers that are here]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "n",
                "Training samples at most.  [default: 10000; 3133 for kcg; the paper's in Table 4]",
                type=int,
                spellings=("--samples", "--n"),
            ),
            Option("n_test", "At most.", type=int, default=5000, spellings=("--test-samples", "--n-test")),
            section.SUBSET,
            Option(
                "sizes",
                "Samples of Friedman1 in Figure 4.",
                type=whole_numbers,
                default="1000,2000,4000,8000",
                metavar="N,N,...",
            ),
            Option("basis_size", "Regressors in Table 4; at most a quarter of the samples.", type=int, default=2000),
            Option("draws", "Of the samples in Table 4, and of what Smola and Bartlett average.", type=int, default=10),
            Option(
                "methods",
                "Sparse methods in Table 4, as `dkgp bench sparse` takes them.  [default: sd, sr, mpgp, sggp]",
                spellings=("--method",),
                multiple=True,
                metavar="NAME",
            ),
            *LIMITS,
            section.SEED,
            Option("plots", "Draw each figure into this folder.", metavar="DIR"),
            section.OVERWRITE,
            section.OUT,
        ),
        examples=(
            "dkgp bench papers --samples 2000",
            "dkgp bench papers --data benchmark-data --table 2 --problem kin40k --problem california --out table2.json",
            "dkgp bench papers --data benchmark-data --figure kcg --problem abalone --plots figures",
            "dkgp bench papers --data benchmark-data --table 2 --problem sarcos_test4449:Y7",
            "dkgp bench papers --data benchmark-data --table 4 --problem california --samples 10000 --basis-size 500",
            "dkgp bench papers --data benchmark-data --table sb --table sb-errors --table sb-mixture --figure sb",
        ),
        without_null="its figures stand beside those that the papers print, not beside a baseline of this run",
    )
)
