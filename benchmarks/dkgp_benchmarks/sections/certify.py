"""`dkgp bench certify`: classifiers whose labels are certified, judged by dense solutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp_benchmarks.certify.job import run_bench_certify
    from dkgp_benchmarks.certify.problems import BenchCertifyJob

    return run_bench_certify(BenchCertifyJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "certify",
        """Exact classifiers: share of certified labels, error and seconds, and every proof judged by a dense solution.

        Of at most 3,000 samples of each problem (of logistic and gp 2,000) the solve is made twice, to the tolerance
        and cut short, and all decisions, certified labels and intervals of probabilities are held against a solution
        by dense factors in float64.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files with X, y and perhaps test_mask.  [default: generated spirals alone]",
            ),
            Option(
                "method",
                "ls-svm, logistic (of several classes softmax) or gp (one against the rest).",
                default="ls-svm",
                choices=("ls-svm", "logistic", "gp"),
            ),
            Option(
                "problems",
                "A file of the folder by its name, or spirals.  [default: spirals, and adult and usps where they are; "
                "of logistic and gp banana, german, thyroid and adult]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "tolerance",
                "Decisions are solved for to within about this.",
                type=float,
                default=1e-3,
                spellings=("--tol",),
            ),
            section.SUBSET,
            Option("isotropic", "One length scale for all features.", type=bool, default=False),
            Option(
                "own_units",
                "One length scale in the features' own units, as of pixels; it and the noise by left-out decisions; of "
                "ls-svm.",
                type=bool,
                default=False,
            ),
            Option("svm", "Race scikit-learn's SVC on the same samples too, of ls-svm.", type=bool, default=False),
            section.SEED,
            section.OUT,
        ),
        examples=(
            "dkgp bench certify",
            "dkgp bench certify --data benchmark-data --problem adult --out certify.json",
            "dkgp bench certify --data benchmark-data --problem usps --own-units --svm",
            "dkgp bench certify --data benchmark-data --method logistic",
        ),
        without_null="it counts what holds, and races no copy of itself",
    )
)
