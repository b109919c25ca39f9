"""`dkgp bench risk`: minimisers of a regularised risk raced to one gap, and kernel CG against a root."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 10,1,0.1.") from None


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.risk.job import BenchRiskJob, run_bench_risk

    return run_bench_risk(BenchRiskJob(**{**values, "losses": values["losses"] or ("klr",)}), reporter)


section.SECTIONS.add(
    section.Section(
        "risk",
        """Kernel CG, Newton, majorisation and others to the same risk; kernel CG's iterations against a root.

        Kernel logistic regression on labels of -1 and 1, or least squares. Every method is stopped by its own proof of
        how near the least risk it is, verified in float64; products, entries and seconds are counted.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files such as banana.npz, with X, y and perhaps test_mask.  [default: generated "
                "problems alone]",
            ),
            Option(
                "problems",
                "As of `dkgp bench classify`, and usps-4.  [default: usps-4, banana and adult where they are, else "
                "made-twonorm and made-ringnorm]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "methods",
                "kcg, newton, majorisation, gradient, paramcg or auto.  [default: all]",
                spellings=("--method",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "losses",
                "klr, the logistic one, or rls, the squared one.  [default: klr]",
                spellings=("--loss",),
                choices=("klr", "rls"),
                multiple=True,
            ),
            Option(
                "parts",
                "methods, the race; root, iterations over a table of lambdas; or penalties, twelve problems of small "
                "lambdas, seconds of all methods.  [default: methods and root]",
                spellings=("--part",),
                choices=("methods", "root", "penalties"),
                multiple=True,
            ),
            Option(
                "n",
                "Samples at most.  [default: 10000 of a file, 2000 of what is generated and for the root, 1000 of "
                "small penalties]",
                type=int,
                spellings=("--samples", "--n"),
            ),
            Option("regularisation", "Lambda of the race.", type=float, default=1.0),
            Option("gap", "Relative duality gap of the race.", type=float, default=1e-8),
            Option(
                "lambdas",
                "Of the root.",
                type=_numbers,
                default="100,10,1,0.1,0.01,0.001",
                metavar="L,L,...",
            ),
            Option("share", "How near the least risk iterations are counted to.", type=float, default=1e-4),
            Option("max_iterations", "Where a run is cut off.", type=int, default=3000),
            Option("max_seconds", "The same in seconds.", type=float, default=120.0),
            replace(section.SUBSET, default=1000),
            section.SEED,
            section.OUT,
        ),
        examples=(
            "dkgp bench risk",
            "dkgp bench risk --data benchmark-data --part methods --out risk.json",
            "dkgp bench risk --part penalties",
            "dkgp bench risk --data benchmark-data --problem banana --part root --loss klr --loss rls",
        ),
        without_null="its rows stand beside each other, and it races no copy of itself",
    )
)
