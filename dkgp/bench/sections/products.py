"""`dkgp bench products` and `tiles`: products with the whole kernel matrix, and the cost of one kernel entry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.errors import UsageError
from dkgp.registry import Option, whole_numbers

CELLS = (
    Option("dimension", "For --cells: number of features.  [default: 2]", type=int, least=2),
    Option("sizes", "For --cells: numbers of points.  [default: 100000,300000]", type=whole_numbers, metavar="N,N,..."),
    Option(
        "kernels",
        "For --cells: kernel, such as matern32 or spherical. May be repeated.  [default: matern12]",
        multiple=True,
        spellings=("--kernel",),
    ),
    Option(
        "length_scales",
        "For --cells: length scale, in sides of the square or cube. May be repeated.  [default: 0.1]",
        type=float,
        multiple=True,
        spellings=("--length-scale",),
    ),
    Option(
        "tolerances",
        "For --cells: bound on the error of each entry of the product, relative to the sum of the weights' "
        "magnitudes. May be repeated.  [default: 1e-6 1e-10]",
        type=float,
        multiple=True,
        spellings=("--tolerance", "--tol"),
    ),
    Option(
        "exact_up_to",
        "For --cells: largest number of points for which the exact product is measured.  [default: 30000]",
        type=int,
        least=1,
    ),
    Option(
        "fourier_up_to",
        "For --cells: largest number of points for which NFFT and EFGP are measured.  [default: 1000000]",
        type=int,
        least=0,
    ),
    Option("check_rows", "For --cells: number of rows at which errors are measured.  [default: 24]", type=int, least=1),
    Option(
        "plot", "For --cells: plot processor seconds against points into a .png, .pdf or .svg file.", metavar="FILE"
    ),
)

OTHERS = (
    Option("samples", "Number of samples.", type=int, default=30_000),
    Option("features", "Number of features.", type=int, default=8),
    Option("vectors", "Number of vectors in one product. May be repeated.  [default: 1 4 8]", type=int, multiple=True),
    Option("workers", "Number of threads and of worker processes.", type=int, default=2),
    Option(
        "halo",
        "Number of samples on which each group of the Vecchia factor is conditioned. A group has half as many "
        "samples. 0: no Vecchia factor.",
        type=int,
        default=1000,
    ),
)


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.cells import BenchCellsJob, run_bench_cells
    from dkgp.bench.products import VECTORS, BenchProductsJob, run_bench_products

    of_cells = {name: value for name, value in section.take(values, *CELLS).items() if value not in (None, ())}
    if values.pop("cells"):
        others = [each.name for each in OTHERS if values[each.name] not in (each.default, None, ())]
        if others:
            raise UsageError(
                f"`{min(others)}` is no option of products by cells, whose points are `sizes`; leave it or `cells` out"
            )
        common = {option.name: values[option.name] for option in (section.REPEATS, section.SEED, section.OUT)}
        return run_bench_cells(BenchCellsJob(**of_cells, **common), reporter)
    if of_cells:
        raise UsageError(f"`{min(of_cells)}` is an option of products by cells; set `cells` too, or leave it out")
    return run_bench_products(BenchProductsJob(**{**values, "vectors": values["vectors"] or VECTORS}), reporter)


section.SECTIONS.add(
    section.Section(
        "products",
        "Measure products with the kernel matrix, evaluated or read from stored tiles.",
        _run,
        (
            Option(
                "cells",
                "Instead compare approximate products by cells, for 2 or 3 features, with exact products.",
                type=bool,
                default=False,
            ),
            *CELLS,
            *OTHERS,
            replace(section.REPEATS, default=7),
            section.SEED,
            section.OUT,
        ),
        without_null="its baselines run twice in every repeat in any case",
        examples=(
            "dkgp bench products --samples 30000",
            "dkgp bench products --samples 100000 --vectors 1",
            "dkgp bench products --cells --sizes 100000,300000,1000000 --kernel matern12 --plot cells.png",
        ),
    )
)


def _run_tiles(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.tiles import FEATURES, BenchTilesJob, run_bench_tiles

    return run_bench_tiles(BenchTilesJob(**{**values, "features": values["features"] or FEATURES}), reporter)


section.SECTIONS.add(
    section.Section(
        "tiles",
        "Compare the time of one kernel entry on one core with NumPy's bare float32 exp, a GEMM-based tile and a "
        "broadcast.",
        _run_tiles,
        (
            Option(
                "features", "Number of features. May be repeated.  [default: 2 8 10 21 90]", type=int, multiple=True
            ),
            replace(section.REPEATS, default=7),
            section.NULL,
            section.OUT,
        ),
        examples=("dkgp bench tiles", "dkgp bench tiles --features 8 --out tiles.json"),
    )
)
