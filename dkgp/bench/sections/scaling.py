"""`dkgp bench scaling`: more worker processes on this machine."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.scaling import BenchScalingJob, run_bench_scaling

    return section.measure(BenchScalingJob, run_bench_scaling, values, reporter, section.BLOCK_SIZE, section.TOLERANCE)


section.SECTIONS.add(
    section.Section(
        "scaling",
        """The update and the whole solve on 1, 2, ... single-threaded worker processes of this machine.

        Beside the speed-up of a product stands what the machine itself allows: as many threads that evaluate kernel
        entries and do nothing else, against one. The cost model's figures for the same runs are said too.
        """,
        _run,
        (
            *section.problem_options(),
            section.BLOCK_SIZE,
            section.TOLERANCE,
            section.REPEATS,
            section.NULL,
            Option("workers", "Worker processes.", type=whole_numbers, default="1,2", metavar="N,N,..."),
            section.OUT,
        ),
        examples=(
            "dkgp bench scaling --samples 100000 --workers 1,2 --out scaling.json",
            "dkgp bench scaling --data kin40k.npz --samples 30000 --workers 1,2,4",
        ),
    )
)
