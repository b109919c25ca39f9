"""`dkgp bench products`: products with the whole kernel matrix."""

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
        "Products with the whole matrix: evaluated or read from kept tiles, by cluster, workers and vectors.",
        _run,
        (
            Option("samples", "Number of samples.", type=int, default=30_000),
            Option("features", "Number of features.", type=int, default=8),
            Option("vectors", "Vectors at a time.  [default: 1 4 8]", type=int, multiple=True),
            Option("workers", "Threads, and worker processes.", type=int, default=2),
            Option(
                "halo",
                "Of the block-Vecchia factor that worker processes build, with leaves of half of it; 0 for none.",
                type=int,
                default=1000,
            ),
            replace(section.REPEATS, default=7),
            section.SEED,
            section.OUT,
        ),
        without_null="its baselines run twice in every repeat in any case",
        examples=("dkgp bench products --samples 30000", "dkgp bench products --samples 100000 --vectors 1"),
    )
)
