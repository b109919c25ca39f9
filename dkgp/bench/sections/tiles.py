"""`dkgp bench tiles`: what a kernel entry costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dkgp.bench.section import OUT, REPEATS, SECTIONS, Section
from dkgp.registry import Option

if TYPE_CHECKING:
    from dkgp.commands.reporting.documents import Document
    from dkgp.commands.reporting.progress import Reporter


def _run(values: dict[str, Any], reporter: Reporter) -> Document:
    from dkgp.bench.tiles import FEATURES, BenchTilesJob, run_bench_tiles

    return run_bench_tiles(BenchTilesJob(**{**values, "features": values["features"] or FEATURES}), reporter)


SECTIONS.add(
    Section(
        "tiles",
        "Cost of one kernel entry on one core, against NumPy's bare float32 exp, a GEMM-based tile and a broadcast.",
        _run,
        (
            Option("features", "Numbers of features.  [default: 2 8 10 21 90]", type=int, multiple=True),
            replace(REPEATS, default=7),
            OUT,
        ),
        examples=("dkgp bench tiles", "dkgp bench tiles --features 8 --out tiles.json"),
    )
)
