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
OF_LIKELIHOODS = {f"check_sample_weight_equivalence_on_{kind}_data": OF_WEIGHTS for kind in ("dense", "sparse")}
OF_GPS = {**OF_LIKELIHOODS, "check_decision_proba_consistency": OF_AVERAGES}
OF_MACHINES = {**OF_LIKELIHOODS, "check_classifiers_train": OF_PROBABILITIES}
EVERY = ("check_",)
# Of an estimator that shares its interface with the one before it, the checks of what a fit of its own ends in.
OF_ANOTHER_FIT = (
    "check_regressors_train",
    "check_classifiers_train",
    "check_fit_idempotent",
    "check_estimators_pickle",
)
# Estimator, checks that fail, and those that are not slow.
ESTIMATORS: tuple[tuple[Any, dict[str, str], tuple[str, ...]], ...] = (
    (GPRegressor(), OF_LIKELIHOODS, EVERY),
    (SparseGPRegressor(), OF_LIKELIHOODS, EVERY),
    # By the targets, with both of a choice's factors.
    (SparseGPRegressor(method="sggp", gap=0.05), OF_LIKELIHOODS, OF_ANOTHER_FIT),
    (ConjugateDirectionsPursuit(), {}, EVERY),
    (LSSVC(), OF_MACHINES, EVERY),
    (FixedSizeLSSVC(), OF_LIKELIHOODS, OF_ANOTHER_FIT),
    (KernelLogisticClassifier(), OF_LIKELIHOODS, EVERY),
    (GPClassifier(), OF_GPS, OF_ANOTHER_FIT),
    (GaussianProcessRegressor(), {}, EVERY),
    (GaussianProcessClassifier(), {}, EVERY),
    (KernelLogisticClassifier(n_basis=20), OF_LIKELIHOODS, ()),
    (GPClassifier(n_basis=20), OF_GPS, ()),
    (GPClassifier(n_basis=20, neighbours=24), OF_GPS, ()),
)


def name_of(check: Callable[..., Any]) -> str:
    return str(getattr(check, "func", check).__name__)


def checks_of(estimator: Any, quick: tuple[str, ...] = EVERY, **known: Any) -> list[Any]:
    """Estimator and check as parameters of a test, under its name, which begins like one of `quick`, or is slow."""
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
        if not name.startswith(quick) or again or (trains and isinstance(copy, FixedSizeLSSVC)):
            marks = (*marks, pytest.mark.slow)
        checks.append(pytest.param(copy, check, marks=marks, id=f"{len(checks)}-{type(copy).__name__}-{name}"))
    return checks


CHECKS = [
    check
    for estimator, known, quick in ESTIMATORS
    for check in checks_of(estimator, quick, expected_failed_checks=known, mark="xfail")
]
# Without probabilities nothing is left to differ from the label.
WITHOUT = [
    check
    for estimator in (LSSVC(probability=False), FixedSizeLSSVC(probability=False))
    for check in checks_of(estimator)
    if name_of(check.values[1]) == "check_classifiers_train"
]


@pytest.mark.long
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
