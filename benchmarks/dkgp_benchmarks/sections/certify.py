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
        """Measure the certified labels of exact classifiers, and check every proof.

        The command trains on at most 3,000 samples of each problem (2,000 for logistic and gp), once to the tolerance
        and once with an early stop. It compares all decisions, certified labels and probability intervals with a dense
        float64 solution.
        """,
        _run,
        (
            replace(
                section.DATA_FOLDER,
                help="Folder of .npz files with X, y and optionally test_mask.  [default: only generated spirals]",
            ),
            Option(
                "method",
                "Classifier. ls-svm; logistic: softmax for three or more classes; gp: one class against the rest.",
                default="ls-svm",
                choices=("ls-svm", "logistic", "gp"),
            ),
            Option(
                "problems",
                "Name of a file in --data without its ending, or spirals. May be repeated.  [default: spirals, and "
                "if present adult and usps, for logistic and gp banana, german, thyroid and adult]",
                spellings=("--problem",),
                multiple=True,
                metavar="NAME",
            ),
            Option(
                "tolerance",
                "Tolerance of the decisions.",
                type=float,
                default=1e-3,
                spellings=("--tol",),
            ),
            section.SUBSET,
            Option("isotropic", "Use one length scale for all features.", type=bool, default=False),
            Option(
                "own_units",
                "For ls-svm: use one length scale in the features' own units, as for pixels. It and the noise are "
                "chosen by the leave-one-out decisions.",
                type=bool,
                default=False,
            ),
            Option("svm", "For ls-svm: also measure scikit-learn's SVC on the same samples.", type=bool, default=False),
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
