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
        """Compare kernel conjugate gradients with other methods of risk minimisation.

        The problem is kernel logistic regression on labels of -1 and 1, or least squares. Each method stops when its
        duality gap proves that the risk is close to its minimum; the gap is verified in float64. The table has the
        products with the kernel matrix, the evaluated kernel entries and the seconds. --part root compares the
        iterations of kernel conjugate gradients with the square root of those of parameter conjugate gradients.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files such as banana.npz, with X, y and optionally test_mask.  [default: only "
                "generated problems]",
            ),
            Option(
                "problems",
                "Problem of `dkgp bench classify`, or usps-4. May be repeated.  [default: usps-4, banana and adult if "
                "--data has them, else made-twonorm and made-ringnorm]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "methods",
                "Method: kcg, newton, majorisation, gradient, paramcg or auto. May be repeated.  [default: all]",
                spellings=("--method",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "losses",
                "Loss. klr: logistic; rls: squared. May be repeated.  [default: klr]",
                spellings=("--loss",),
                choices=("klr", "rls"),
                multiple=True,
            ),
            Option(
                "parts",
                "Part. methods: compare all methods at the same duality gap; root: iterations for several lambdas; "
                "penalties: seconds of all methods on twelve problems with small lambdas. May be repeated.  "
                "[default: methods and root]",
                spellings=("--part",),
                choices=("methods", "root", "penalties"),
                multiple=True,
            ),
            Option(
                "n",
                "Largest number of samples.  [default: 10000 of a file; 2000 of generated data and for --part root; "
                "1000 for --part penalties]",
                type=int,
                spellings=("--samples", "--n"),
            ),
            Option("regularisation", "For --part methods: regularisation parameter lambda.", type=float, default=1.0),
            Option(
                "gap", "For --part methods: relative duality gap at which a method stops.", type=float, default=1e-8
            ),
            Option(
                "lambdas",
                "For --part root: values of lambda.",
                type=_numbers,
                default="100,10,1,0.1,0.01,0.001",
                metavar="L,L,...",
            ),
            Option(
                "share",
                "For --part root: relative distance from the minimum of the risk up to which iterations are counted.",
                type=float,
                default=1e-4,
            ),
            Option("max_iterations", "Largest number of iterations of a run.", type=int, default=3000),
            Option("max_seconds", "Largest number of seconds of a run.", type=float, default=120.0),
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
        without_null="it compares methods with each other and runs no second copy of a baseline",
    )
)
