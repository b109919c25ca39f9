"""`dkgp bench scikit`: scikit-learn's Gaussian process classes against dkgp's of the same names."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.commands.reporting.measurements import check_record_file
    from dkgp_benchmarks.scikit import run_bench_scikit

    check_record_file(values["out"])
    return run_bench_scikit(reporter, **values)


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
