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
        """Measure the cost of messages with many worker processes, and compare it with the forecast.

        Tasks sleep as long as they would compute. Two cores therefore suffice to measure the time of scheduler,
        messages and coordinator with 16 or 64 workers.
        """,
        _run,
        (
            Option("samples", "Numbers of samples.", type=whole_numbers, default="100000,1000000", metavar="N,N,..."),
            Option(
                "workers",
                "Numbers of workers, with one thread each.",
                type=whole_numbers,
                default="2,4,16",
                metavar="N,N,...",
            ),
            Option(
                "threads",
                "Number of workers per process.  [default: 1 for up to 16 workers, 16 for more]",
                type=int,
                least=1,
            ),
            Option("entry_ns", "Nanoseconds that a task sleeps for each kernel entry.", type=float, default=0.2),
            Option("seconds", "Shorten the computing time of a product to this many seconds.", type=float, default=5.0),
            Option(
                "latency_seconds",
                "Simulated one-way latency between this process and the scheduler.",
                type=float,
                default=0.0,
                spellings=("--latency",),
                metavar="SECONDS",
            ),
            Option(
                "bytes_per_second",
                "Simulated bandwidth of that connection per second and direction, such as 119MiB for 1 Gbit/s.  "
                "[default: unlimited]",
                type=byte_count,
                spellings=("--bandwidth",),
                metavar="SIZE",
            ),
            replace(section.REPEATS, default=3),
            section.OUT,
        ),
        without_null="it compares with a forecast, not with a contender",
        examples=(
            "dkgp bench messages --workers 2,16",
            "dkgp bench messages --samples 10000000 --workers 16,64",
            "dkgp bench messages --workers 16 --latency 0.001 --bandwidth 119MiB",
        ),
    )
)
