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
        """Measure the time of predictions for one sample at a time.

        The model is loaded, and each call predicts another sample by `Predictor` or `GPRegressor`: its mean with the
        proven bound, its gradient, or its standard deviation. The table has the median and the 99th percentile (p50,
        p99), beside the same computation in NumPy. The first call is listed separately, because it reads the training
        set and builds tables for later calls.
        """,
        _run,
        (
            Option(
                "sizes", "Numbers of training samples.", type=whole_numbers, default="20000,100000", metavar="N,N,..."
            ),
            Option("features", "Number of features.", type=int, default=10, least=1),
            Option(
                "calls",
                "Number of calls of each kind. Standard deviations have fewer calls if their time is limited.",
                type=int,
                default=200,
                least=1,
            ),
            Option(
                "deviation_seconds",
                "Time limit for the standard deviations of each size, without the first call, which builds a factor. "
                "0: no standard deviations.",
                type=float,
                default=30.0,
                metavar="SECONDS",
            ),
            Option(
                "overheads",
                "Measure instead the processor time of commands on 320 rows, and of fits of the sizes.",
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
