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
        """A solve and a batch of variances while workers are killed, cut off and join, and the command is killed too.

        Each runs undisturbed first, on as many worker processes, and then again under faults: the result must be the
        same to the bit, and the ratio of the seconds is what the faults cost. Takes three to five times a quiet solve.
        """,
        _run,
        (
            *section.problem_options(),
            section.TOLERANCE,
            Option("workers", "Worker processes, of one thread each.", type=int, default=4, least=2),
            Option("kill_every", "A worker is killed, and another joins.", type=float, default=4.0, metavar="SECONDS"),
            Option(
                "coordinator_kills", "Kills of the command itself, in each of the two.", type=int, default=2, least=0
            ),
            Option(
                "variances", "Test samples whose variances are computed; 0 for none.", type=int, default=200, least=0
            ),
            Option("plot", "Draw the time lines into a .png, .pdf or .svg.", metavar="FILE"),
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
