"""`python -m dkgp_benchmarks.kriging`: small by default; 800,000 samples with `--samples 800000 --cells 2000`."""

from __future__ import annotations

import argparse

from dkgp.commands.reporting.measurements import check_record_file
from dkgp.commands.reporting.progress import SilentReporter
from dkgp_benchmarks.kriging.run import PEERS, run_bench_kriging


def main() -> None:
    """Parse the options, run the benchmark, and print its rows."""
    parser = argparse.ArgumentParser(prog="python -m dkgp_benchmarks.kriging", description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--cells", type=int, default=100, help="rows and columns of dkgp's map; 0: none")
    parser.add_argument("--peer", action="append", default=[], choices=list(PEERS))
    parser.add_argument("--peer-memory", type=float, default=8.0, metavar="GIB")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--means", action="store_true", help="no variances")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE")
    args = parser.parse_args()
    check_record_file(args.out)
    document = run_bench_kriging(
        SilentReporter(),
        n=args.samples,
        n_points=args.points,
        cells=args.cells,
        peers=args.peer,
        peer_memory=args.peer_memory,
        tolerance=args.tolerance,
        variances=not args.means,
        seed=args.seed,
        out=args.out,
    )
    print(document["title"])
    for row in document["rows"]:
        print(
            "; ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
                if name != "audit"
            )
        )


if __name__ == "__main__":
    main()
