"""`dkgp bench messages`: rounds of many worker processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, byte_count, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.messages import BenchMessagesJob, run_bench_messages

    return run_bench_messages(BenchMessagesJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "messages",
        """Rounds of many worker processes, whose tasks sleep for what they would compute, against the plan's forecast.

        What scheduler, messages and coordinator take for 16 or 64 workers can so be measured on two cores.
        """,
        _run,
        (
            Option("samples", "Samples.", type=whole_numbers, default="100000,1000000", metavar="N,N,..."),
            Option("workers", "Workers of a thread each.", type=whole_numbers, default="2,4,16", metavar="N,N,..."),
            Option(
                "threads",
                "Workers that share a process.  [default: 1 up to 16 workers, 16 beyond]",
                type=int,
                least=1,
            ),
            Option("entry_ns", "Nanoseconds of a kernel entry, asleep.", type=float, default=0.2),
            Option("seconds", "Computing of a product is shortened to so many.", type=float, default=5.0),
            Option(
                "latency_seconds",
                "Of a link between this process and the scheduler, one way.",
                type=float,
                default=0.0,
                spellings=("--latency",),
                metavar="SECONDS",
            ),
            Option(
                "bytes_per_second",
                "Bytes a second of that link in each direction, such as 119MiB for 1 Gbit/s.  [default: unlimited]",
                type=byte_count,
                spellings=("--bandwidth",),
                metavar="SIZE",
            ),
            replace(section.REPEATS, default=3),
            section.OUT,
        ),
        without_null="it races a forecast",
        examples=(
            "dkgp bench messages --workers 2,16",
            "dkgp bench messages --samples 10000000 --workers 16,64",
            "dkgp bench messages --workers 16 --latency 0.001 --bandwidth 119MiB",
        ),
    )
)
