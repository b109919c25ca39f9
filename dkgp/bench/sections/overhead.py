"""`dkgp bench overhead`: what Dask costs."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.overhead import BenchOverheadJob, run_bench_overhead

    return section.measure(
        BenchOverheadJob, run_bench_overhead, values, reporter, section.BLOCK_SIZE, section.TOLERANCE
    )


section.SECTIONS.add(
    section.Section(
        "overhead",
        "The same solve without Dask, on a Dask cluster in one process, and on worker processes.",
        _run,
        (
            *section.problem_options(),
            section.BLOCK_SIZE,
            section.TOLERANCE,
            section.REPEATS,
            section.NULL,
            Option("workers", "Workers of the two clusters.", type=int),
            section.OUT,
        ),
        examples=("dkgp bench overhead --samples 30000 --out overhead.json",),
    )
)
