"""`dkgp bench boosting`: where a Gaussian process is the better choice, and where not."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.boosting.job import BenchBoostingJob, run_bench_boosting

    return run_bench_boosting(BenchBoostingJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "boosting",
        """Compare `dkgp fit` with GPBoost, SVGP, gradient boosting and a linear model on several tables.

        Each method tunes itself on the training samples. Gradient boosting chooses among six settings by three-fold
        cross-validation. Each method runs in its own process with one OpenMP thread. The table has the differences to
        GPBoost's best setting on the same test samples, with their standard errors.
        """,
        _run,
        (
            section.DATA_FOLDER,
            Option(
                "problems",
                "Table to use: few (samples), smooth, many-features, surface, outliers, steps or categories, which "
                "are generated, or a file of --data. May be repeated.  [default: all generated tables]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "methods",
                'Method: "dkgp fit", gpboost, "gpboost vecchia", "gpboost default" (Vecchia with one length scale), '
                "svgp (GPyTorch), boosting (scikit-learn) or linear. May be repeated.  [default: all whose library "
                "is installed]",
                spellings=("--method",),
                multiple=True,
                metavar="NAME",
            ),
            Option("n", "Largest number of training samples.", type=int, least=50, spellings=("--samples", "--n")),
            Option(
                "n_test",
                "Largest number of test samples.",
                type=int,
                default=2000,
                least=20,
                spellings=("--test-samples", "--n-test"),
            ),
            Option("fit_seconds", "Time limit of `dkgp fit`.", type=float, default=120.0, metavar="S"),
            Option(
                "limit",
                "Limit on the processor time of a method on one table, in seconds. Slower methods are stopped.",
                type=int,
                default=1800,
                least=1,
                metavar="S",
            ),
            section.SEED,
            Option(
                "record",
                "Append each result to this file. Results that the file already contains are not measured again.",
                metavar="FILE.jsonl",
            ),
            section.OUT,
        ),
        examples=(
            "dkgp bench boosting",
            "dkgp bench boosting --data benchmark-data --problem california --problem abalone",
            'dkgp bench boosting --data benchmark-data --problem kin40k --method "dkgp fit" --method gpboost',
        ),
        without_null="its contenders are compared by errors, not by seconds",
    )
)
