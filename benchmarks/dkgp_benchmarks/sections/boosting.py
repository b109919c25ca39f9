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
        """dkgp fit beside GPBoost, SVGP, gradient boosting and a linear model, on tables of several kinds.

        Every method tunes itself on the training samples alone, boosting six settings by three folds. Generated tables
        are smooth, of few samples, of many features, rough, with outliers, of steps, and of categories.

        Each method runs in its own process with one OpenMP thread. Gains are differences to GPBoost's best setting
        on the same test samples, with their standard errors.
        """,
        _run,
        (
            section.DATA_FOLDER,
            Option(
                "problems",
                "few, smooth, many-features, surface, outliers, steps, categories, or a file of the folder.  [default: "
                "all that are generated]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "methods",
                '"dkgp fit", gpboost, "gpboost vecchia", "gpboost default" (Vecchia, one length scale), svgp '
                "(GPyTorch), boosting (scikit-learn) or linear.  [default: all whose library is installed]",
                spellings=("--method",),
                multiple=True,
                metavar="NAME",
            ),
            Option("n", "Training samples at most.", type=int, least=50, spellings=("--samples", "--n")),
            Option(
                "n_test",
                "Test samples at most.",
                type=int,
                default=2000,
                least=20,
                spellings=("--test-samples", "--n-test"),
            ),
            Option(
                "fit_seconds", "What `dkgp fit` may take, by its forecasts.", type=float, default=120.0, metavar="S"
            ),
            Option(
                "limit",
                "Processor time of a method on a problem; a method that needs more is ended.",
                type=int,
                default=1800,
                least=1,
                metavar="S",
            ),
            section.SEED,
            Option(
                "record",
                "Append each result to this file as soon as it is measured, and measure only those that it lacks.",
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
