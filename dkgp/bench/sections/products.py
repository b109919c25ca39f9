"""`dkgp bench products` and `tiles`: products with the whole kernel matrix, and the cost of one kernel entry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.products import VECTORS, BenchProductsJob, run_bench_products

    return run_bench_products(BenchProductsJob(**{**values, "vectors": values["vectors"] or VECTORS}), reporter)


section.SECTIONS.add(
    section.Section(
        "products",
        "Measure products with the kernel matrix, evaluated or read from stored tiles.",
        _run,
        (
            Option("samples", "Number of samples.", type=int, default=30_000),
            Option("features", "Number of features.", type=int, default=8),
            Option(
                "vectors",
                "Number of vectors in one product. May be repeated.  [default: 1 4 8]",
                type=int,
                multiple=True,
            ),
            Option("workers", "Number of threads and of worker processes.", type=int, default=2),
            Option(
                "halo",
                "Number of samples on which each group of the Vecchia factor is conditioned. A group has half as many "
                "samples. 0: no Vecchia factor.",
                type=int,
                default=1000,
            ),
            replace(section.REPEATS, default=7),
            section.SEED,
            section.OUT,
        ),
        without_null="its baselines run twice in every repeat in any case",
        examples=(
            "dkgp bench products --samples 30000",
            "dkgp bench products --samples 100000 --vectors 1",
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
