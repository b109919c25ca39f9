"""`dkgp bench tiles`: what a kernel entry costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.tiles import FEATURES, BenchTilesJob, run_bench_tiles

    return run_bench_tiles(BenchTilesJob(**{**values, "features": values["features"] or FEATURES}), reporter)


section.SECTIONS.add(
    section.Section(
        "tiles",
        "Cost of one kernel entry on one core, against NumPy's bare float32 exp, a GEMM-based tile and a broadcast.",
        _run,
        (
            Option("features", "Numbers of features.  [default: 2 8 10 21 90]", type=int, multiple=True),
            replace(section.REPEATS, default=7),
            section.NULL,
            section.OUT,
        ),
        examples=("dkgp bench tiles", "dkgp bench tiles --features 8 --out tiles.json"),
    )
)
