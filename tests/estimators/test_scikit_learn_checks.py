"""scikit-learn's own checks of every estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from dkgp import (
    LSSVC,
    ConjugateDirectionsPursuit,
    FixedSizeLSSVC,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    GPClassifier,
    GPRegressor,
    KernelLogisticClassifier,
    SparseGPRegressor,
)

# Checks that are known to fail, each with its reason.
OF_WEIGHTS = "inputs are standardised, and kernel and folds found, by the samples that there are, not by their weights"
OF_PROBABILITIES = (
    "the label is the decision's, which can be certified; a probability, fitted to held-out decisions with an offset "
    "of its own, may place a class second that is ahead by a hair, as SVC's does"
)
OF_AVERAGES = "a probability is averaged over the latent function, whose variance differs from place to place"
# The labels of likelihoods are those of the likeliest class.
OF_LIKELIHOODS = {"check_sample_weight_equivalence_on_dense_data": OF_WEIGHTS}
OF_GPS = {**OF_LIKELIHOODS, "check_decision_proba_consistency": OF_AVERAGES}
OF_MACHINES = {**OF_LIKELIHOODS, "check_classifiers_train": OF_PROBABILITIES}
# Estimator, checks that fail, whether all are slow.
ESTIMATORS: tuple[tuple[Any, dict[str, str], bool], ...] = (
    (GPRegressor(), OF_LIKELIHOODS, False),
    (SparseGPRegressor(), OF_LIKELIHOODS, False),
    # By the targets, with both of a choice's factors.
    (SparseGPRegressor(method="sggp", gap=0.05), OF_LIKELIHOODS, False),
    (ConjugateDirectionsPursuit(), {}, False),
    (LSSVC(), OF_MACHINES, False),
    (FixedSizeLSSVC(), OF_LIKELIHOODS, False),
    (KernelLogisticClassifier(), OF_LIKELIHOODS, False),
    (GPClassifier(), OF_GPS, False),
    (GaussianProcessRegressor(), {}, False),
    (GaussianProcessClassifier(), {}, False),
    (KernelLogisticClassifier(n_basis=20), OF_LIKELIHOODS, True),
    (GPClassifier(n_basis=20), OF_GPS, True),
    (GPClassifier(n_basis=20, neighbours=24), OF_GPS, True),
)


def name_of(check: Callable[..., Any]) -> str:
    return str(getattr(check, "func", check).__name__)


def checks_of(estimator: Any, *, slow: bool = False, **known: Any) -> list[Any]:
    """Estimator and check as parameters of a test, under the check's name."""
    checks: list[Any] = []
    of_copy: set[str] = set()
    for pair in estimator_checks_generator(estimator, **known):
        (copy, check), marks = getattr(pair, "values", pair), tuple(getattr(pair, "marks", ()))
        name = name_of(check)
        # This one takes seconds of a search by cross-validation, and half of one of a likelihood's. There it is not run
        # again on memory that is read only and on single precision, which LSSVC goes through as they do.
        trains = name == "check_classifiers_train"
        again = trains and isinstance(copy, GPClassifier | KernelLogisticClassifier) and name in of_copy
        of_copy.add(name)
        if slow or again or (trains and isinstance(copy, FixedSizeLSSVC)):
            marks = (*marks, pytest.mark.slow)
        checks.append(pytest.param(copy, check, marks=marks, id=f"{len(checks)}-{type(copy).__name__}-{name}"))
    return checks


CHECKS = [
    check
    for estimator, known, slow in ESTIMATORS
    for check in checks_of(estimator, slow=slow, expected_failed_checks=known, mark="xfail")
]
# Without probabilities nothing is left to differ from the label.
WITHOUT = [
    check
    for estimator in (LSSVC(probability=False), FixedSizeLSSVC(probability=False))
    for check in checks_of(estimator)
    if name_of(check.values[1]) == "check_classifiers_train"
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS + WITHOUT)
def test_check_estimator(estimator: Any, check: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_expected_failures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    known = OF_GPS | OF_MACHINES
    with capsys.disabled():
        listed = "".join(f"\n  {name}: {reason}" for name, reason in known.items())
        print(f"\ncheck_estimator: {len(CHECKS)} checks, expected failures: {listed}")
    assert known.keys() <= {name_of(check.values[1]) for check in CHECKS}
    assert len(CHECKS) > 40 * len(ESTIMATORS)
