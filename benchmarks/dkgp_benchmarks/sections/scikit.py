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
        """Compare dkgp's Gaussian process classes with scikit-learn's classes of the same names.

        Each class is fitted with three kernels on four features, with and without a search for hyperparameters, and
        then makes 1,000 predictions. Ratios are those of processor time, on one BLAS thread.
        """,
        _run,
        (
            Option(
                "sizes",
                "Numbers of training samples. The search on 3,000 takes scikit-learn minutes.",
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
        """Run scikit-learn's examples of Gaussian processes with its classes and with dkgp's.

        In ten examples, only the import is changed. The table has the largest differences of means (in standard
        deviations of the targets), of standard deviations (relative), probabilities, logarithms of hyperparameters and
        log likelihoods.
        """,
        _run_gallery,
        (
            Option(
                "examples",
                "Example: noisy-targets, noise-level, prior-posterior, kernel-ridge, co2, sequences, threshold, "
                "iris, equal-probabilities or exclusive-or. May be repeated.  [default: all]",
                spellings=("--example",),
                multiple=True,
                metavar="NAME",
            ),
            Option("pictures", "Folder for pictures of each example, by both packages side by side.", metavar="FOLDER"),
            Option(
                "co2_file",
                "CSV file of the Mauna Loa measurements, with columns date and co2.  [default: generated values of "
                "the same form]",
                spellings=("--co2",),
                metavar="FILE",
            ),
            section.OUT,
        ),
        examples=("dkgp bench gallery --pictures gallery", "dkgp bench gallery --example co2 --co2 co2.csv"),
        without_null="its sides are compared by their results, not by seconds",
    )
)
