"""`dkgp bench latency`: one sample's prediction, and its gradient, of a loaded model."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option, whole_numbers


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.latency import BenchLatencyJob, run_bench_latency

    return run_bench_latency(BenchLatencyJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "latency",
        """One sample at a time from a loaded model: its mean with the proven bound, its gradient, its deviation.

        p50 and p99 of many calls, each of another sample, by `Predictor` and `GPRegressor`, in turns with the same sums
        written plainly in NumPy. The first call stands by itself: it reads the training inputs and builds what is kept.
        """,
        _run,
        (
            Option("sizes", "Training samples.", type=whole_numbers, default="20000,100000", metavar="N,N,..."),
            Option("features", "Number of features.", type=int, default=10, least=1),
            Option("calls", "Of each kind, but of deviations as time allows.", type=int, default=200, least=1),
            Option(
                "deviation_seconds",
                "Spent on deviations of each size, beyond the first call, which builds a factor; 0 for none.",
                type=float,
                default=30.0,
                metavar="SECONDS",
            ),
            Option(
                "overheads",
                "Measure commands on 320 rows, and fits of `sizes` samples, instead. In processor time.",
                type=bool,
                default=False,
            ),
            section.SEED,
            section.NULL,
            section.OUT,
        ),
        examples=(
            "dkgp bench latency --sizes 20000,100000",
            "dkgp bench latency --sizes 20000 --deviation-seconds 0",
            "dkgp bench latency --overheads --sizes 300,1000",
        ),
    )
)
