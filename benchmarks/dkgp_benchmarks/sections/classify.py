"""`dkgp bench classify`: the tables of the pursuit paper, beside what else a user would classify with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.classify.job import BenchClassifyJob, run_bench_classify

    return run_bench_classify(BenchClassifyJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "classify",
        """Compare fixed-size LS-SVMs with SVM, exact LS-SVM, spSVM and boosting.

        Each method tunes its hyperparameters on the training samples of each split. The tables show errors and model
        sizes beside those of the paper on sparse conjugate directions pursuit. The command lists the values that do not
        reproduce the paper's, with the rule of the comparison.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files such as banana.npz, with X, y of +-1 and optionally test_mask.  [default: "
                "only generated problems]",
            ),
            Option(
                "tables",
                "Table of the paper: 2: effect of the method's parameters; 3: errors and model sizes; 4: training "
                "times; 5: adult and magic; scdpp: outliers of random selection. Other tables: probabilities: log "
                "loss and calibration; many: dkgp classify with its defaults on many classes and a rare one; grid: a "
                "search over ten widths and ten penalties, compared with SVC; tuned: hyperparameters tuned on all "
                "labels with neighbours, compared with those of a subset. May be repeated.  [default: 3 and 4]",
                spellings=("--table",),
                choices=("2", "3", "4", "5", "scdpp", "probabilities", "many", "grid", "tuned"),
                multiple=True,
            ),
            Option(
                "problems",
                "Problem: a data set of the paper, adult-codes, made-twonorm, made-ringnorm, kin40k-sign, "
                "made-covtype, made-letters or made-waves. For the tables many and grid: letter-like, htru2-like, "
                "covtype-like, covtype-large, usps or adult-official. May be repeated.  [default: the table's data "
                "sets that are available and not large; covtype-like for grid]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "methods",
                "Method. For tables 3 to 5: scdp, scdp-pool, scdpp, ls-svm, svm, spsvm or boosting. For the other "
                "tables, except 2: logistic, gp, svc-calibrated, hist-boosting, lightgbm, sklearn-gp or gpboost. "
                "Settings follow after commas, as in scdpp,candidates=118, gp,basis=200,neighbours=128, gp,gap=0.02 "
                "or gpboost,basis=200,python=PATH. May be repeated.  [default: all methods of the table except "
                "gpboost]",
                spellings=("--method", "--methods"),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "splits",
                "Number of random splits per problem.  [default: 20; 5 for table 5 and probabilities, or the split "
                "of the file]",
                type=int,
                least=1,
            ),
            Option(
                "tested",
                "For probabilities: largest number of test samples.  [default: all]",
                type=int,
                least=1,
                spellings=("--test-samples",),
            ),
            Option("full", "Use 100 splits as in the paper, and 5 for table 5.", type=bool, default=False),
            Option(
                "processes",
                "Number of processes that measure small problems at the same time, with one thread each. Use 1 to "
                "compare times.  [default: one per core]",
                type=int,
                least=1,
                spellings=("--processes", "--threads"),
            ),
            section.SEED,
            Option(
                "record",
                "Append each run to this file. Runs that the file already contains are not repeated.",
                metavar="FILE",
            ),
            Option("plot", "Plot the errors by method into a .png, .pdf or .svg file.", metavar="FILE"),
            section.OVERWRITE,
            section.OUT,
        ),
        examples=(
            "dkgp bench classify --splits 5",
            "dkgp bench classify --data benchmark-data --problem banana --method scdp --method svm --splits 10",
            "dkgp bench classify --data benchmark-data --table 3 --full --record table3.jsonl --plot table3.png",
            "dkgp bench classify --data benchmark-data --table scdpp --table 2 --splits 10",
            "dkgp bench classify --data benchmark-data --table 5 --problem magic --out table5.json",
            "dkgp bench classify --table many --problem letter-like --problem htru2-like",
            "dkgp bench classify --table grid",
            "dkgp bench classify --data benchmark-data --table tuned --record tuned.jsonl",
            "dkgp bench classify --data benchmark-data --table probabilities --record adult.jsonl",
            "dkgp bench classify --data benchmark-data --table probabilities --method gp --method gp,gap=0.02 "
            "--test-samples 1000",
        ),
        without_null="its figures stand beside those that the paper prints, not beside a baseline of this run",
    )
)
