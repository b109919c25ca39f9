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
        """Fixed-size LS-SVM by sparse conjugate directions pursuit, beside SVM, exact LS-SVM, spSVM and boosting.

        Every method searches its hyperparameters anew on every split, on training samples alone. Errors and sizes stand
        beside the paper's, with the rule by which they are held against them; misses are printed.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files such as banana.npz, with X, y of +-1 and perhaps test_mask.  [default: "
                "generated problems alone]",
            ),
            Option(
                "tables",
                "Of the paper: 2, what its parameters do; 3, errors and sizes; 4, milliseconds of training; 5, adult "
                "and magic; or scdpp, the outliers of a random choice and what mends them. Not of the paper: "
                "probabilities, log loss and calibration on adult's own split or any problem; many, dkgp classify at "
                "its defaults on many classes and a rare one; grid, its search over ten widths by ten penalties, "
                "beside SVC over the same; tuned, kernels by the evidence of all labels with neighbours, beside a "
                "subset's.  [default: 3 and 4]",
                spellings=("--table",),
                choices=("2", "3", "4", "5", "scdpp", "probabilities", "many", "grid", "tuned"),
                multiple=True,
            ),
            Option(
                "problems",
                "A data set of the paper, adult-codes, made-twonorm, made-ringnorm, kin40k-sign, made-covtype, "
                "made-letters, made-waves, or of many "
                "and grid letter-like, htru2-like, covtype-like, covtype-large, usps, adult-official.  [default: those "
                "of the table that are here and not large; of grid covtype-like]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "methods",
                "In Tables 3 to 5: scdp, scdp-pool, scdpp, ls-svm, svm, spsvm or boosting, with settings of its own if "
                "need be, as in scdpp,candidates=118. With probabilities, and in all but Table 2: logistic, gp, either "
                "of a basis as in gp,basis=2000, gp of one with neighbours as in gp,basis=200,neighbours=128, with all "
                "variances to a gap as in gp,gap=0.02, svc-calibrated, hist-boosting, lightgbm, sklearn-gp or, by an "
                "interpreter that has it, gpboost,basis=200,neighbours=30,inversion=iterative,python=PATH.  "
                "[default: all of the table but gpboost]",
                spellings=("--method", "--methods"),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "splits",
                "Of each problem.  [default: 20; 5 in Table 5 and of probabilities, or the file's one]",
                type=int,
                least=1,
            ),
            Option(
                "tested",
                "Test samples of probabilities at most, the first of a split.  [default: all]",
                type=int,
                least=1,
                spellings=("--test-samples",),
            ),
            Option("full", "100 splits, as in the paper; 5 in Table 5.", type=bool, default=False),
            Option(
                "processes",
                "Runs of small problems that go on at once, one thread each; 1 for times worth comparing.  [default: "
                "one for each core]",
                type=int,
                least=1,
                spellings=("--processes", "--threads"),
            ),
            section.SEED,
            Option(
                "record",
                "File that every run is added to as it is done; what is in it is not run again.",
                metavar="FILE",
            ),
            Option("plot", "Draw errors by method into a .png, .pdf or .svg.", metavar="FILE"),
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
