"""`dkgp bench kriging`: kriging at size, beside programs for geostatistics."""

from __future__ import annotations

from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.kriging.run import run_bench_kriging

    return run_bench_kriging(reporter, **values)


section.SECTIONS.add(
    section.Section(
        "kriging",
        """Kriging of a generated field with a trend and gaps, at points and as a map, beside other programs.

        Universal kriging with an exponential variogram. Each other program runs in a process with limited memory; its
        row has the largest difference from dkgp, the proven distance from exact kriging, or the error with which it
        stops. GPBoost, gstlearn and PyKrige's moving window approximate by 30 neighbours, and krige the residuals of
        the known trend.
        """,
        _run,
        (
            Option("n", "Samples.", type=int, default=2000, least=20, spellings=("--samples", "--n")),
            Option("n_points", "Points to predict at.", type=int, default=200, least=10, spellings=("--points",)),
            Option("cells", "Rows and columns of dkgp's map; 0: none.", type=int, default=100, least=0),
            Option("areas", "Polygons whose averages dkgp predicts; 0: none.", type=int, default=0, least=0),
            Option(
                "peers",
                "Another program to run; may be repeated.",
                spellings=("--peer",),
                multiple=True,
                choices=("pykrige", "gstools", "gpboost", "gstlearn", "pykrige-window"),
            ),
            Option("peer_memory", "Memory of another program's process.", type=float, default=8.0, metavar="GIB"),
            section.TOLERANCE,
            Option("means", "Predict means alone, without variances.", type=bool, default=False),
            section.SEED,
            section.OUT,
        ),
        examples=(
            "dkgp bench kriging --peer pykrige --peer gstools",
            "dkgp bench kriging --areas 100",
            "dkgp bench kriging --samples 800000 --cells 2000 --means --out kriging.json",
        ),
        without_null="its programs are compared by their numbers and limits",
    )
)
