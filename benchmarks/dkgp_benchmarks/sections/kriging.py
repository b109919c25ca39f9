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
        """Compare kriging at points and on a grid with other programs.

        The field is generated, with a trend and gaps. The method is universal kriging with an exponential variogram.
        Each other program runs in a process with limited memory. Its row has the largest difference from dkgp and the
        proven distance from exact kriging, or the error that stopped it. GPBoost, gstlearn and PyKrige's moving window
        use 30 neighbours, and krige the residuals of the known trend.
        """,
        _run,
        (
            Option("n", "Number of samples.", type=int, default=2000, least=20, spellings=("--samples", "--n")),
            Option(
                "n_points", "Number of points to predict at.", type=int, default=200, least=10, spellings=("--points",)
            ),
            Option("cells", "Number of rows and of columns of dkgp's map. 0: no map.", type=int, default=100, least=0),
            Option("areas", "Number of polygons whose averages dkgp predicts. 0: none.", type=int, default=0, least=0),
            Option(
                "peers",
                "Another program to run; may be repeated.",
                spellings=("--peer",),
                multiple=True,
                choices=("pykrige", "gstools", "gpboost", "gstlearn", "pykrige-window"),
            ),
            Option("peer_memory", "Memory limit of another program's process.", type=float, default=8.0, metavar="GIB"),
            section.TOLERANCE,
            Option("means", "Predict only means, without variances.", type=bool, default=False),
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
