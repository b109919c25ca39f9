"""`dkgp bench scikit`, `dkgp bench gallery`: scikit-learn's Gaussian process classes, and dkgp's of these names."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.commands.reporting.measurements import check_record_file
    from dkgp_benchmarks.scikit import run_bench_scikit

    check_record_file(values["out"])
    return run_bench_scikit(reporter, **values)


def _run_gallery(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.gallery.run import BenchGalleryJob, run_bench_gallery

    return run_bench_gallery(BenchGalleryJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "scikit",
        """scikit-learn's Gaussian process classes against dkgp's of the same names, in memory.

        With the search for hyperparameters and without, of three kernels of four features; then 1,000 predictions.
        Ratios are of processor time, on one BLAS thread.
        """,
        _run,
        (
            Option(
                "sizes",
                "Training samples; the search of 3,000 takes scikit-learn minutes.",
                type=whole_numbers,
                default="100,300,1000",
                metavar="N,N,...",
            ),
            section.REPEATS,
            section.SEED,
            section.NULL,
            section.OUT,
        ),
        examples=("dkgp bench scikit", "dkgp bench scikit --sizes 100,300,1000,3000 --null --out scikit.json"),
    )
)

section.SECTIONS.add(
    section.Section(
        "gallery",
        """scikit-learn's gallery of Gaussian processes by its classes and by dkgp's of the same names.

        Ten examples with one import changed; tells the largest differences of means (in standard deviations of the
        targets), standard deviations (relative), probabilities, logarithms of hyperparameters and log likelihoods.
        """,
        _run_gallery,
        (
            Option(
                "examples",
                "noisy-targets, noise-level, prior-posterior, kernel-ridge, co2, sequences, threshold, iris, "
                "equal-probabilities or exclusive-or.  [default: all]",
                spellings=("--example",),
                multiple=True,
                metavar="NAME",
            ),
            Option("pictures", "Draw each example by both, side by side, into .png files there.", metavar="FOLDER"),
            Option(
                "co2_file",
                "Measurements on Mauna Loa, a CSV file of date and co2.  [default: made ones of their form]",
                spellings=("--co2",),
                metavar="FILE",
            ),
            section.OUT,
        ),
        examples=("dkgp bench gallery --pictures gallery", "dkgp bench gallery --example co2 --co2 co2.csv"),
        without_null="its sides are compared by their results, not by seconds",
    )
)
