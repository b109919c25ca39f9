"""`dkgp bench chaos`: a solve and variances while workers die, and what that costs."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.chaos.job import BenchChaosJob, run_bench_chaos

    return section.measure(BenchChaosJob, run_bench_chaos, values, reporter, section.TOLERANCE)


section.SECTIONS.add(
    section.Section(
        "chaos",
        """Measure a solve and variances while worker processes fail.

        Each runs first without faults, and then while workers are killed, lose their connection and join, and the
        command itself is killed and resumed. The results must be bit-identical. The ratio of the seconds is the cost
        of the faults. The command takes three to five times as long as the solve.
        """,
        _run,
        (
            *section.problem_options(),
            section.TOLERANCE,
            Option("workers", "Number of worker processes, with one thread each.", type=int, default=4, least=2),
            Option(
                "kill_every",
                "Time between two kills of a worker; another worker then joins.",
                type=float,
                default=4.0,
                metavar="SECONDS",
            ),
            Option(
                "coordinator_kills",
                "Number of times that the command itself is killed, in the solve and in the variances.",
                type=int,
                default=2,
                least=0,
            ),
            Option(
                "variances",
                "Number of test samples whose variances are computed. 0: none.",
                type=int,
                default=200,
                least=0,
            ),
            Option("plot", "Plot the time lines into a .png, .pdf or .svg file.", metavar="FILE"),
            section.OUT,
        ),
        examples=(
            "dkgp bench chaos --samples 20000",
            "dkgp bench chaos --samples 100000 --plot chaos.png --out chaos.json",
        ),
        without_null="each run is compared with one of its own, and its price is far above the noise",
        exit_code=lambda document: 0 if document["figures"]["same_bits"] else 4,
    )
)
