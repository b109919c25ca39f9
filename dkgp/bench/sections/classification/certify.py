"""`dkgp bench certify`: exact LS-SVMs whose labels are certified, judged by dense solutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench import section
from dkgp.registry import Option


def _run(values: dict[str, Any], reporter: section.Reporter) -> section.Document:
    from dkgp.bench.certify import BenchCertifyJob, run_bench_certify

    return run_bench_certify(BenchCertifyJob(**values), reporter)


section.SECTIONS.add(
    section.Section(
        "certify",
        """Exact LS-SVMs: share of certified labels, error and seconds, and every proof judged by a dense solution.

        Of at most 3,000 samples of each problem the solve is made twice, to the tolerance and cut short, and all
        decisions and certified labels are held against Cholesky in float64.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files with X, y and perhaps test_mask.  [default: generated spirals alone]",
            ),
            Option(
                "problems",
                "A file of the folder by its name, or spirals.  [default: spirals, and adult and usps where they are]",
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
                "One length scale in the features' own units, as of pixels; it and the noise by left-out decisions.",
                type=bool,
                default=False,
            ),
            Option("svm", "Race scikit-learn's SVC on the same samples too.", type=bool, default=False),
            section.SEED,
            section.OUT,
        ),
        examples=(
            "dkgp bench certify",
            "dkgp bench certify --data benchmark-data --problem adult --out certify.json",
            "dkgp bench certify --data benchmark-data --problem usps --own-units --svm",
        ),
        without_null="it counts what holds, and races no copy of itself",
    )
)
