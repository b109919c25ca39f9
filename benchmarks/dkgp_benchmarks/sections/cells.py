"""`dkgp bench cells`: products by cells against exact products and Fourier methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.cells.comparison import BenchCellsJob, run_bench_cells

    return run_bench_cells(
        BenchCellsJob(**{name: value for name, value in values.items() if value not in (None, ())}), reporter
    )


section.SECTIONS.add(
    section.Section(
        "cells",
        "Compare approximate products by cells, for 2 or 3 features, with exact products and Fourier methods.",
        _run,
        (
            Option("dimension", "Number of features.  [default: 2]", type=int, least=2),
            Option("sizes", "Numbers of points.  [default: 100000,300000]", type=whole_numbers, metavar="N,N,..."),
            Option(
                "kernels",
                "Kernel, such as matern32 or spherical. May be repeated.  [default: matern12]",
                multiple=True,
                spellings=("--kernel",),
            ),
            Option(
                "length_scales",
                "Length scale, in sides of the square or cube. May be repeated.  [default: 0.1]",
                type=float,
                multiple=True,
                spellings=("--length-scale",),
            ),
            Option(
                "tolerances",
                "Bound on the error of each entry of the product, relative to the sum of the weights' "
                "magnitudes. May be repeated.  [default: 1e-6 1e-10]",
                type=float,
                multiple=True,
                spellings=("--tolerance", "--tol"),
            ),
            Option(
                "exact_up_to",
                "Largest number of points for which the exact product is measured.  [default: 30000]",
                type=int,
                least=1,
            ),
            Option(
                "fourier_up_to",
                "Largest number of points for which NFFT and EFGP are measured.  [default: 1000000]",
                type=int,
                least=0,
            ),
            Option("check_rows", "Number of rows at which errors are measured.  [default: 24]", type=int, least=1),
            Option("plot", "Plot processor seconds against points into a .png, .pdf or .svg file.", metavar="FILE"),
            replace(section.REPEATS, default=7),
            section.SEED,
            section.OUT,
        ),
        without_null="its exact products are contenders",
        examples=("dkgp bench cells --sizes 100000,300000,1000000 --kernel matern12 --plot cells.png",),
    )
)
