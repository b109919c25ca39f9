"""Bounds of minimisers' decisions against exact ones: 50 digits on problems made to break them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dkgp.kernels import Matern12, SquaredExponential, parse_kernel
from dkgp.models.classification.labels import decided
from dkgp.models.classification.likelihoods import LikelihoodName
from dkgp.solvers import MaxIterations
from tests.models.classification.logistic.problems import RiskProblem
from tests.models.exact_gp import mp

ONCE: dict[str, Any] = {"tolerance": 1e-300, "limits": MaxIterations(1)}
TWICE: dict[str, Any] = {"tolerance": 1e-300, "limits": MaxIterations(2), "precision": "double"}
LOOSE: dict[str, Any] = {"gap": 1e-2}
TIGHT: dict[str, Any] = {"gap": 1e-12, "limits": MaxIterations(300)}
TO_TOLERANCE: dict[str, Any] = {"tolerance": 1e-3, "limits": MaxIterations(300)}
ENDS = {"once": ONCE, "twice": TWICE, "loose": LOOSE, "tight": TIGHT, "tolerance": TO_TOLERANCE}
NAMES: tuple[LikelihoodName, ...] = ("logit", "probit", "softmax")


def problem(name: LikelihoodName, what: str, end: str, n: int = 24) -> RiskProblem:
    """A problem by a name, the same every time."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, 2))
    codes = np.digitize(X[:, 0] + 0.4 * rng.normal(size=n), (-0.4, 0.5) if name == "softmax" else (0.2,))
    T = np.vstack([X[:2], rng.normal(size=(2, 2)), [[1e3, -1e3]]])
    rbf = SquaredExponential((0.5, 0.5))
    made: dict[str, dict[str, Any]] = {
        "plain": {},
        "hardly any penalty": {"regularisation": 1e-6},
        "little penalty": {"regularisation": 1e-3},
        "much penalty": {"regularisation": 10.0},
        "long length scales": {"kernel": SquaredExponential((1e-6, 1e-6)), "regularisation": 1e-2},
        "nothing is near": {"kernel": SquaredExponential((1e6, 1e6))},
        "amplitude far below": {"kernel": SquaredExponential((0.5, 0.5), 1e-12)},
        "amplitude far above": {"kernel": SquaredExponential((0.5, 0.5), 1e6)},
        "duplicates of all classes": {
            "X": np.repeat(X[: n // 2], 2, axis=0),
            "codes": np.arange(n) % (codes.max() + 1),
        },
        "one of a class": {"codes": np.where(np.arange(n) == 3, codes.max(), 0), "n_classes": int(codes.max()) + 1},
        "one class only": {"codes": np.zeros(n, int), "n_classes": int(codes.max()) + 1},
        "weights": {"weights": 10.0 ** rng.uniform(-6, 2, n)},
        "weights of zero": {"weights": (np.arange(n) % 3).astype(float)},
        "linear": {"kernel": parse_kernel("linear", 2)},
        "linear beside a constant": {"kernel": parse_kernel("linear + constant", 2), "regularisation": 1e-3},
        "one sample far out": {
            "X": np.where(np.arange(n)[:, None] == 7, 1e7, X),
            "kernel": parse_kernel("linear + rbf", 2),
        },
        "rough": {"kernel": Matern12((3.0, 3.0)), "regularisation": 0.1},
    }
    settings = {"X": X, "codes": codes, "T": T, "kernel": rbf, "regularisation": 1.0, **made[what]}
    return RiskProblem(name=name, settings=ENDS[end], **settings)


KINDS = (
    "plain",
    "hardly any penalty",
    "little penalty",
    "much penalty",
    "long length scales",
    "nothing is near",
    "amplitude far below",
    "amplitude far above",
    "duplicates of all classes",
    "one of a class",
    "one class only",
    "weights",
    "weights of zero",
    "linear",
    "linear beside a constant",
    "one sample far out",
    "rough",
)
# Some kinds in one way here, all in every way in the slow test below.
SOME = [(NAMES[i % 3], what, tuple(ENDS)[i % 5]) for i, what in enumerate(KINDS) if i % 2 == 1]


def judged(made: RiskProblem) -> None:
    ratios = made.digit_ratios()
    found, (exact, _) = made.predicted, made.digits
    assert ratios.max() <= 1.0
    assert np.isfinite(found.bounds).all()
    labels = decided(np.array([[float(value) for value in row] for row in exact]))
    np.testing.assert_array_equal(found.code[found.certified], labels[found.certified])
    with mp.workdps(50):
        known = [_probabilities(made.name, row) for row in exact]
    for row, shares in enumerate(known):
        for code, share in enumerate(shares):
            assert mp.mpf(found.probability_lower[row, code]) <= share <= mp.mpf(found.probability_upper[row, code])


def _probabilities(name: str, row: list[Any]) -> list[Any]:
    if name == "softmax":
        each = [mp.exp(value - max(row)) for value in row]
        return [value / mp.fsum(each) for value in each]
    single = (
        (lambda value: mp.erfc(-value / mp.sqrt(2)) / 2)
        if name == "probit"
        else (lambda value: 1 / (1 + mp.exp(-value)))
    )
    return [single(-row[0]), single(row[0])]


@pytest.mark.parametrize(("name", "what", "end"), SOME)
def test_attacks(name: LikelihoodName, what: str, end: str) -> None:
    judged(problem(name, what, end))


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_all_attacks(name: LikelihoodName, what: str, end: str) -> None:
    judged(problem(name, what, end))


@pytest.mark.slow
def test_no_certified_label_of_many_samples_is_wrong() -> None:
    """Five ways to stop, lambda from 1e-6 to 10, weights, duplicates, float32 rounds, bounded products: counted."""
    rng, counts = np.random.default_rng(0), np.zeros(4, dtype=np.int64)
    cases = [*itertools.product((200,), (1e-3, 0.3, 30.0), (1e-6, 1e-3, 0.1, 10.0)), (1200, 0.3, 0.1)]
    for n, gamma, regularisation in cases:
        X, T = rng.standard_normal((n, 3)), rng.standard_normal((1000, 3))
        score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(n)
        for number, end in enumerate((*ENDS, "bounded")):
            name: LikelihoodName = "softmax" if number % 2 and n <= 200 else "logit"
            classes, inputs = (3 if name == "softmax" else 2), X.copy()
            if number >= 2:
                inputs[: n // 4] = inputs[n // 4 : 2 * (n // 4)]
            codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
            weights = 10.0 ** rng.uniform(-2, 1, n) if number in (1, 4) else None
            made = RiskProblem(inputs, codes, T, SquaredExponential((gamma,) * 3), regularisation, name, weights)
            made.settings = {"product_error": 1e-8, **LOOSE} if end == "bounded" else ENDS[end]
            made.settings = {"limits": MaxIterations(100), **made.settings}
            errors, bounds, wrong = made.long_errors()
            counts += [len(T), made.predicted.certified.sum(), wrong.sum(), (errors > bounds).sum()]
    print(f"\n{counts[0]:,} labels, {counts[1]:,} certified, {counts[2]} of them wrong, {counts[3]} beyond a bound")
    assert counts[0] >= 50_000
    assert counts[1] >= 10_000
    assert counts[2] == counts[3] == 0
