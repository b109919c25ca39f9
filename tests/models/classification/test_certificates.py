"""Decision bounds against exact solutions: 50 digits on problems made to break them, dense solves on larger ones.

Bounds of minimisers' decisions against exact ones: 50 digits on problems made to break them.

No function of a basis is farther from the exact minimiser than is proven.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.kernels import Kernel, Linear, Matern12, Matern32, Matern52, SquaredExponential, parse_kernel
from dkgp.models.classification.certificate import DecisionCertificate, certified_labels
from dkgp.models.classification.labels import decided
from dkgp.models.classification.likelihoods import LikelihoodName
from dkgp.operators import BlockedKernelOperator
from dkgp.solvers import Cholesky, ConjugateGradient, FactorPreconditioning, GreedyBlockCoordinateDescent, MaxIterations
from tests.models.classification.problems import LabelProblem, RiskProblem, exact_decisions, samples, trained
from tests.models.classification.references import Approximation, refined_decisions
from tests.models.exact_gp import mp

EARLY: dict[str, Any] = {"solver": ConjugateGradient(None), "tolerance": 1e-300, "limits": MaxIterations(2)}
LATE: dict[str, Any] = {"solver": Cholesky(), "tolerance": 1e-300, "limits": MaxIterations(1)}

ENDS: tuple[dict[str, Any], ...] = (
    {"solver": Cholesky(), "limits": MaxIterations(1)},
    {"solver": ConjugateGradient(None), "limits": MaxIterations(6)},
    {"solver": ConjugateGradient(None), "tolerance": 1e-2, "limits": MaxIterations(60)},
    {"solver": GreedyBlockCoordinateDescent(), "limits": MaxIterations(10)},
    {"solver": ConjugateGradient(FactorPreconditioning()), "limits": MaxIterations(20)},
)


def hostile(X: np.ndarray, codes: np.ndarray) -> dict[str, dict[str, Any]]:
    """Changes of a problem of inputs (n, 2) and labels (n,) that make bounds hard to keep."""
    n, last = len(X), int(codes.max())
    return {
        "plain": {},
        "long length scales": {"kernel": SquaredExponential((1e-6, 1e-6))},
        "nothing is near": {"kernel": SquaredExponential((1e6, 1e6))},
        "amplitude far below": {"kernel": SquaredExponential((0.5, 0.5), 1e-12)},
        "duplicates of all classes": {"X": np.repeat(X[: n // 2], 2, axis=0), "codes": np.arange(n) % (last + 1)},
        "one of a class": {"codes": np.where(np.arange(n) == 3, last, 0)},
        "linear": {"kernel": parse_kernel("linear", 2)},
        "linear beside a constant": {"kernel": parse_kernel("linear + constant", 2)},
        "one sample far out": {
            "X": np.where(np.arange(n)[:, None] == 7, 1e7, X), "kernel": parse_kernel("linear + rbf", 2)
        },
        "rough": {"kernel": Matern12((3.0, 3.0))},
    }  # fmt: skip


# The noise of each, 0.1 elsewhere.
NOISES = {
    "hardly any noise": 1e-10, "long length scales": 1e-8, "nothing is near": 1e-3, "noise far above": 1e8,
    "amplitude far below": 1e-3, "duplicates of all classes": 1e-6, "one of a class": 0.01, "linear": 1.0,
    "linear beside a constant": 1e-4, "one sample far out": 1e-3, "rough": 1e-5,
}  # fmt: skip


@cache
def attacks() -> dict[str, LabelProblem]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 2))
    two, three = (X[:, 0] > 0.2).astype(np.int64), np.digitize(X[:, 0], (-0.4, 0.5))
    common = {
        "X": X, "codes": two, "T": np.vstack([X[:2], rng.normal(size=(2, 2)), [[1e3, -1e3]]]),
        "kernel": SquaredExponential((0.5, 0.5)),
    }  # fmt: skip
    changes: dict[str, dict[str, Any]] = hostile(X, two) | {
        "three classes": {"codes": three},
        "hardly any noise": {},
        "noise far above": {},
        "weights": {"weights": 10.0 ** rng.uniform(-6, 3, 24)},
        "class weights": {"codes": three, "weights": np.array([1.0, 1e-4, 30.0])[three]},
        "no intercept": {"fit_intercept": False},
        "no intercept, weights": {"fit_intercept": False, "weights": 10.0 ** rng.uniform(-3, 3, 24)},
    }
    return {
        f"{what}, {when}": LabelProblem(
            **{**common, "noise_variance": NOISES.get(what, 0.1), "settings": ends, **changed}
        )
        for when, ends in (("early", EARLY), ("late", LATE))
        for what, changed in changes.items()
    }


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", attacks())
def test_attacks(name: str) -> None:
    problem = attacks()[name]
    ratios = problem.digit_ratios()
    assert ratios.max() <= 1.0
    assert np.isfinite(problem.predicted[1]).all()


def clusters(rng: np.random.Generator, n: int, d: int, gamma: float) -> np.ndarray:
    X = 0.7 / math.sqrt(d * gamma) * rng.standard_normal((n, d))
    return np.where(np.arange(n)[:, None] % 2 == 0, X - 1.0, X + 1.0)


@pytest.mark.parametrize("kernel", [SquaredExponential((5e6,) * 4), Matern52((5e5,) * 4)], ids=lambda k: k.type_name)
def test_clusters_far_from_each_other(kernel: Kernel, rng: np.random.Generator) -> None:
    X, T = clusters(rng, 24, 4, kernel.gamma[0]), clusters(rng, 3, 4, kernel.gamma[0])
    problem = LabelProblem(X, rng.integers(0, 2, 24), T, kernel, 0.1, settings=LATE)
    assert problem.digit_ratios().max() <= 1.0


@settings(max_examples=15)
@given(st.data())
def test_random_problems(data: st.DataObject) -> None:
    n, d, n_classes = data.draw(st.integers(3, 14)), data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-2, 2, d)
    if data.draw(st.booleans()):
        X = X[rng.integers(0, max(2, n // 2), n)]
    n_classes = min(n_classes, n)
    codes = rng.permutation(np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, n - n_classes)]))
    gamma = 10.0 ** data.draw(st.floats(-4, 3))
    kind = data.draw(st.sampled_from([SquaredExponential, Matern12, Matern52]))
    kernel = kind((gamma,) * d, 10.0 ** data.draw(st.floats(-3, 3)))
    weights = 10.0 ** rng.uniform(-3, 3, n) if data.draw(st.booleans()) else None
    rounds = data.draw(st.integers(1, 6))
    ends = data.draw(
        st.sampled_from(
            [
                LATE,
                {"solver": ConjugateGradient(None), "tolerance": 1e-300, "limits": MaxIterations(rounds)},
                {
                    "solver": GreedyBlockCoordinateDescent(block_size=3),
                    "tolerance": 1e-300,
                    "limits": MaxIterations(rounds),
                },
            ]
        )
    )
    if np.ptp(X, axis=0).max() == 0.0:
        return
    problem = LabelProblem(
        X,
        codes,
        np.vstack([X[:1], rng.normal(size=(2, d))]),
        kernel,
        10.0 ** data.draw(st.floats(-7, 3)),
        weights=weights,
        fit_intercept=data.draw(st.booleans()),
        settings=ends,
    )
    assert problem.digit_ratios().max() <= 1.0


@pytest.mark.parametrize(
    ("gamma", "noise", "ends"),
    [
        (0.3, 0.1, {}),
        (0.3, 0.1, {"tolerance": 1e-300, "limits": MaxIterations(2), "solver": GreedyBlockCoordinateDescent()}),
        (0.3, 1e-6, {"tolerance": 1e-300, "limits": MaxIterations(20), "solver": ConjugateGradient(None)}),
        (1e-3, 1e-4, {"tolerance": 1e-300, "limits": MaxIterations(5), "solver": ConjugateGradient(None)}),
    ],
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_no_certified_label_is_wrong(
    gamma: float, noise: float, ends: dict[str, Any], n_classes: int, rng: np.random.Generator
) -> None:
    X = rng.standard_normal((700, 3))
    score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(700)
    codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
    problem = LabelProblem(X, codes, rng.standard_normal((300, 3)), SquaredExponential((gamma,) * 3), noise)
    problem.settings = ends
    errors, bounds, wrong = problem.dense_errors()
    assert (errors <= bounds + 1e-12 / noise).all()  # the dense solve's own rounding
    assert not wrong.any()


@pytest.mark.slow
def test_no_certified_label_of_thousands_of_samples_is_wrong() -> None:
    """Ill-conditioned kernels, tiny noise, weights, duplicates of both classes, solves stopped early: counted."""
    rng, counts = np.random.default_rng(0), np.zeros(4, dtype=np.int64)
    cases = [*itertools.product((1000,), (1e-3, 0.3, 30.0), (1e-7, 1e-3, 0.1)), (3000, 0.3, 1e-7), (3000, 0.3, 0.1)]
    for n, gamma, noise in cases:
        X, T = rng.standard_normal((n, 3)), rng.standard_normal((1000, 3))
        score = X[:, 0] + np.sin(2.0 * X[:, 1]) + 0.4 * rng.standard_normal(n)
        for number, ends in enumerate(ENDS):
            n_classes, inputs = 2 + number % 2, X.copy()
            if number >= 2:
                inputs[: n // 4] = inputs[n // 4 : 2 * (n // 4)]
            codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, n_classes + 1)[1:-1]))
            weights = 10.0 ** rng.uniform(-2, 1, n) if number in (1, 4) else None
            problem = LabelProblem(inputs, codes, T, SquaredExponential((gamma,) * 3), noise, weights, settings=ends)
            standard, signs, tests, kernel, each, _ = problem.reference
            assert isinstance(kernel, SquaredExponential)
            exact, change = refined_decisions(standard, signs, tests, kernel, each)
            decisions, bounds = problem.predicted
            if not change.max() <= 1e-3 * bounds.min():
                continue  # too ill-conditioned for the reference
            certified = certified_labels(decisions, bounds)
            wrong = certified & (decided(decisions) != decided(exact))
            beyond = np.abs(decisions - exact) > bounds + change
            counts += [len(T), certified.sum(), wrong.sum(), beyond.sum()]
    print(f"\n{counts[0]:,} labels, {counts[1]:,} certified, {counts[2]} of them wrong, {counts[3]} beyond a bound")
    assert counts[0] >= 50_000
    assert counts[1] >= 10_000
    assert counts[2] == counts[3] == 0


def test_a_converged_solve_certifies_nearly_all_labels(rng: np.random.Generator) -> None:
    X = rng.standard_normal((400, 2))
    codes = (X[:, 0] + 0.3 * rng.standard_normal(400) > 0.0).astype(np.int64)
    problem = LabelProblem(X, codes, rng.standard_normal((500, 2)), SquaredExponential((0.5, 0.5)), 0.2)
    problem.settings = {"solver": ConjugateGradient(None), "tolerance": 1e-3}
    decisions, bounds = problem.predicted
    assert bounds.max() <= 1e-3
    assert certified_labels(decisions, bounds).mean() > 0.99


def test_bounds_allow_for_what_the_ones_are_off_by(rng: np.random.Generator) -> None:
    """An E whose residual is large widens a bound, and its sum's ends hold the true sum."""
    X, codes = rng.normal(size=(20, 2)), np.arange(20) % 2
    kernel = SquaredExponential((0.5, 0.5))
    problem = LabelProblem(X, codes, X[:3], kernel, 0.1, settings=EARLY)
    inputs = problem.dataset.inputs(0, 20)
    true = np.linalg.solve(kernel(inputs, inputs) + 0.1 * np.eye(20), np.ones(20)).sum()
    low, high = problem.trained.certificate.ones_sum
    assert low < true < high
    assert high - low > 1e-9


def hand_made(shift: float, tilt: float) -> tuple[float, float]:
    """Error and bound far from all samples, of E_1 that solves for y - shift 1, and of an intercept off by tilt."""
    n, noise, amplitude = 20, 0.1, 1e-24
    y, kernel = np.where(np.arange(n) < 12, 1.0, -1.0)[:, None], SquaredExponential((1.0,), amplitude)
    inputs = np.linspace(-1.0, 1.0, n)[:, None]
    kbar = kernel(inputs, inputs) + noise * np.eye(n)
    solved = np.linalg.solve(kbar, np.hstack([y - shift, np.ones((n, 1))]))
    gradient = kbar @ solved - np.hstack([y, np.ones((n, 1))])
    intercept = solved[:, :1].sum(axis=0) / solved[:, 1].sum() + tilt
    alpha = solved[:, :1] - solved[:, 1:] * intercept
    certificate = DecisionCertificate.of(
        alpha, intercept, Approximation(solved, gradient), noise, amplitude, np.ones(n)
    )
    decision = intercept[None]
    bound = certificate.decision_error_bound(decision, np.zeros(1), np.full(1, amplitude), np.ones(1))
    return abs(float(decision[0, 0]) - 0.2), float(bound[0, 0])


@pytest.mark.parametrize(("shift", "tilt"), [(1e-3, 0.0), (-1e-3, 0.0), (0.0, 1e-3), (0.0, -1e-3)])
def test_the_bound_is_met_where_hardly_any_kernel_is_left(shift: float, tilt: float) -> None:
    """With k(x, x) -> 0 the exact decision is the mean of the labels, and the bounds' two terms are equalities."""
    error, bound = hand_made(shift, tilt)
    assert error == pytest.approx(1e-3, rel=1e-6)
    assert error <= bound * (1.0 + 1e-12) <= 1.0001 * error


ONCE: dict[str, Any] = {"tolerance": 1e-300, "limits": MaxIterations(1)}
TWICE: dict[str, Any] = {"tolerance": 1e-300, "limits": MaxIterations(2), "precision": "double"}
LOOSE: dict[str, Any] = {"gap": 1e-2}
TIGHT: dict[str, Any] = {"gap": 1e-12, "limits": MaxIterations(300)}
TO_TOLERANCE: dict[str, Any] = {"tolerance": 1e-3, "limits": MaxIterations(300)}
RISK_ENDS = {"once": ONCE, "twice": TWICE, "loose": LOOSE, "tight": TIGHT, "tolerance": TO_TOLERANCE}
NAMES: tuple[LikelihoodName, ...] = ("logit", "probit", "softmax")


def problem(name: LikelihoodName, what: str, end: str, n: int = 24) -> RiskProblem:
    """A problem by a name, the same every time."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, 2))
    codes = np.digitize(X[:, 0] + 0.4 * rng.normal(size=n), (-0.4, 0.5) if name == "softmax" else (0.2,))
    T = np.vstack([X[:2], rng.normal(size=(2, 2)), [[1e3, -1e3]]])
    rbf = SquaredExponential((0.5, 0.5))
    classes = int(codes.max()) + 1
    made: dict[str, dict[str, Any]] = hostile(X, codes) | {
        "amplitude far above": {"kernel": SquaredExponential((0.5, 0.5), 1e6)},
        "one class only": {"codes": np.zeros(n, int)},
        "weights": {"weights": 10.0 ** rng.uniform(-6, 2, n)},
        "weights of zero": {"weights": (np.arange(n) % 3).astype(float)},
    }
    common = {"X": X, "codes": codes, "T": T, "kernel": rbf, "n_classes": classes}
    penalty = PENALTIES.get(what, 1.0)
    return RiskProblem(name=name, settings=RISK_ENDS[end], regularisation=penalty, **(common | made.get(what, {})))


# The penalty of each, 1 elsewhere.
PENALTIES = {
    "hardly any penalty": 1e-6, "little penalty": 1e-3, "much penalty": 10.0, "long length scales": 1e-2,
    "linear beside a constant": 1e-3, "rough": 0.1,
}  # fmt: skip
KINDS = (
    "plain", "hardly any penalty", "little penalty", "much penalty", "long length scales", "nothing is near",
    "amplitude far below", "amplitude far above", "duplicates of all classes", "one of a class", "one class only",
    "weights", "weights of zero", "linear", "linear beside a constant", "one sample far out", "rough",
)  # fmt: skip
# Some kinds in one way here, all in every way in the slow test below.
SOME = [(NAMES[i % 3], what, tuple(RISK_ENDS)[i % 5]) for i, what in enumerate(KINDS) if i % 2 == 1]


def judged(made: RiskProblem) -> None:
    ratios = made.digit_ratios()
    found, (exact, _) = made.predicted, made.digits
    assert ratios.max() <= 1.0
    assert np.isfinite(found["decision_error_bound"]).all()
    labels = decided(np.array([[float(value) for value in row] for row in exact]))
    certified = found["certified"] > 0.0
    np.testing.assert_array_equal(found["class"][certified], labels[certified])
    with mp.workdps(50):
        known = [_probabilities(made.name, row) for row in exact]
    for row, shares in enumerate(known):
        for code, share in enumerate(shares):
            assert mp.mpf(found["probability_lower"][row, code]) <= share
            assert share <= mp.mpf(found["probability_upper"][row, code])


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
def test_attacks_on_risks(name: LikelihoodName, what: str, end: str) -> None:
    judged(problem(name, what, end))


@pytest.mark.slow
@pytest.mark.parametrize("end", RISK_ENDS)
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
        for number, end in enumerate((*RISK_ENDS, "bounded")):
            name: LikelihoodName = "softmax" if number % 2 and n <= 200 else "logit"
            classes, inputs = (3 if name == "softmax" else 2), X.copy()
            if number >= 2:
                inputs[: n // 4] = inputs[n // 4 : 2 * (n // 4)]
            codes = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
            weights = 10.0 ** rng.uniform(-2, 1, n) if number in (1, 4) else None
            made = RiskProblem(inputs, codes, T, SquaredExponential((gamma,) * 3), regularisation, name, weights)
            made.settings = {"product_error": 1e-8, **LOOSE} if end == "bounded" else RISK_ENDS[end]
            made.settings = {"limits": MaxIterations(100), **made.settings}
            errors, bounds, wrong = made.long_errors()
            counts += [len(T), (made.predicted["certified"] > 0.0).sum(), wrong.sum(), (errors > bounds).sum()]
    print(f"\n{counts[0]:,} labels, {counts[1]:,} certified, {counts[2]} of them wrong, {counts[3]} beyond a bound")
    assert counts[0] >= 50_000
    assert counts[1] >= 10_000
    assert counts[2] == counts[3] == 0


KERNELS: list[Kernel] = [
    SquaredExponential((0.3, 0.3, 0.3)),
    SquaredExponential((1e-3,) * 3, variance=50.0),
    Matern32((2.0, 0.5, 1.0), variance=3.0),
]


def errors_and_bounds(
    rng: np.random.Generator, kernel: Kernel, n: int = 150, **more: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Errors at test inputs against the dense minimiser, and their bounds."""
    n_classes = more.pop("n_classes", 2)
    dataset, labels = samples(rng, n, n_classes)
    found = trained(dataset, labels, kernel=kernel, settings={"certify": True, **more.pop("settings", {})}, **more)
    tests = np.concatenate([2.0 * rng.standard_normal((60, 3)), dataset.inputs(0, 20)])
    decisions = kernel(tests, found.prototypes) @ found.weights
    assert found.certificate is not None
    bounds = found.certificate.decision_error_bound(decisions, kernel.diagonal(tests), np.full(len(tests), 64.0))
    exact = exact_decisions(dataset, labels, tests, kernel, found.likelihood, found.regularisation, more.get("weights"))
    return np.abs(decisions - exact), bounds


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=["rbf", "flat", "rough"])
@pytest.mark.parametrize(
    ("link", "multi_class", "n_classes"),
    [("logit", "ovr", 2), ("probit", "ovr", 2), ("logit", "ovr", 3), ("logit", "softmax", 3)],
)
def test_bounds_hold(kernel: Kernel, link: str, multi_class: str, n_classes: int, rng: np.random.Generator) -> None:
    for regularisation, size in ((10.0, 5), (0.1, 40)):
        errors, bounds = errors_and_bounds(
            rng, kernel, n_classes=n_classes, link=link, multi_class=multi_class, regularisation=regularisation,
            size=size,
        )  # fmt: skip
        assert (errors <= bounds * (1.0 + 1e-12) + 1e-9).all()
        assert np.isfinite(bounds).all()


@pytest.mark.parametrize(("multi_class", "n_classes"), [("ovr", 2), ("softmax", 3)])
def test_bounds_hold_of_a_few_samples(multi_class: str, n_classes: int, rng: np.random.Generator) -> None:
    errors, bounds = errors_and_bounds(rng, KERNELS[0], n=60, n_classes=n_classes, multi_class=multi_class, size=10)
    assert (errors <= bounds).all()
    assert 1e-3 < errors.max() < bounds.max() < 10.0


def test_bounds_hold_of_weighted_samples_and_of_fits_that_were_cut_short(rng: np.random.Generator) -> None:
    for steps in (1, 3):
        weights = rng.uniform(0.0, 3.0, 150)
        errors, bounds = errors_and_bounds(
            rng, KERNELS[0], weights=weights, regularisation=0.3, settings={"max_iterations": steps}
        )
        assert (errors <= bounds).all()


def test_all_samples_leave_no_distance(rng: np.random.Generator) -> None:
    errors, bounds = errors_and_bounds(rng, KERNELS[2], size=150, settings={"basis": "uniform", "tolerance": 1e-10})
    assert errors.max() < 1e-7
    # Of what the jitter moves the fit, and of roundings.
    assert bounds.max() < 1e-3
    assert (errors <= bounds).all()


def test_bounds_say_something_where_the_basis_is_good(rng: np.random.Generator) -> None:
    kernel = SquaredExponential((0.05,) * 3)
    errors, bounds = errors_and_bounds(rng, kernel, size=60)
    assert bounds.max() < 0.05
    assert (errors <= bounds).all()


def test_a_kernel_of_little_rank(rng: np.random.Generator) -> None:
    errors, bounds = errors_and_bounds(rng, Linear((0.5,) * 3), size=3, settings={"basis": "uniform"})
    assert (errors <= bounds).all()
    assert errors.max() < 1e-3


def test_bounds_hold_of_problems_drawn_at_random(rng: np.random.Generator) -> None:
    for _ in range(10):
        kernel = SquaredExponential(tuple(10.0 ** rng.uniform(-3, 1, 3)), variance=10.0 ** rng.uniform(-2, 4))
        multi_class, n_classes = [("ovr", 2), ("ovr", 3), ("softmax", 3)][rng.integers(3)]
        link = "logit" if multi_class == "softmax" else ["logit", "probit"][rng.integers(2)]
        weights = 10.0 ** rng.uniform(-6, 2, 40) if rng.random() < 0.5 else None
        regularisation = 10.0 ** rng.uniform(-3, 4)
        errors, bounds = errors_and_bounds(
            rng, kernel, n=40, n_classes=n_classes, link=link, multi_class=multi_class, weights=weights,
            regularisation=regularisation, size=int(rng.integers(1, 41)),
            settings={"basis": ["uniform", "k-means"][rng.integers(2)], "tolerance": 10.0 ** rng.uniform(-9, 1)},
        )  # fmt: skip
        # The dense minimiser has roundings of its own.
        assert (errors <= bounds * (1.0 + 1e-9) + 1e-8 * (1.0 + np.sqrt(kernel.variance))).all()


@pytest.mark.parametrize(("multi_class", "n_classes"), [("ovr", 3), ("softmax", 3)])
def test_the_least_risk_is_not_below_its_bound(multi_class: str, n_classes: int, rng: np.random.Generator) -> None:
    dataset, labels = samples(rng, 80, n_classes)
    X, kernel = dataset.inputs(0, 80), SquaredExponential((0.3,) * 3, variance=25.0)
    found = trained(
        dataset, labels, kernel=kernel, multi_class=multi_class, size=20, settings={"certify": True}, regularisation=0.2
    )
    values = exact_decisions(dataset, labels, X, kernel, found.likelihood, 0.2)
    loss, targets = found.likelihood.loss, found.likelihood.targets(labels)
    alpha = -loss.slope(targets, values) / 0.2
    least = float(loss.value(targets, values).sum() + 0.1 * np.sum(alpha * (kernel(X, X) @ alpha)))
    assert found.summary["risk_lower_bound"] <= least * (1.0 + 1e-10)
    assert least < found.summary["risk"]
    assert found.summary["distance"][0] == pytest.approx(5.0 * found.certificate.radius[0])
    away = np.abs(kernel(X, found.prototypes) @ found.weights - values).max()
    assert 0.0 < away <= max(found.summary["distance"])
    assert found.summary["risk_gap"] == pytest.approx(1.0 - found.summary["risk_lower_bound"] / found.summary["risk"])


def test_the_errors_of_approximate_products_are_in_the_bounds(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The radius is proven by one product with all of K, here off by as much as is said, against the truth."""
    multiply, kernel = BlockedKernelOperator.matmat, KERNELS[0]
    dataset, labels = samples(rng, 150, 2)
    tests = 2.0 * rng.standard_normal((60, 3))
    radius = []
    for error in (0.0, 0.05):

        def off(self: BlockedKernelOperator, V: Any, precision: Any = "double", error: float = error) -> np.ndarray:
            self.error_rows = np.full(V.shape, error)
            return multiply(self, V, precision) - error * np.sign(V)

        monkeypatch.setattr(BlockedKernelOperator, "matmat", off)
        found = trained(dataset, labels, kernel=kernel, size=60, settings={"certify": True})
        assert found.certificate is not None
        radius.append(found.certificate.radius[0])
        decisions = kernel(tests, found.prototypes) @ found.weights
        bounds = found.certificate.decision_error_bound(decisions, kernel.diagonal(tests), np.full(60, 64.0))
        exact = exact_decisions(dataset, labels, tests, kernel, found.likelihood, found.regularisation)
        assert (np.abs(decisions - exact) <= bounds * (1.0 + 1e-12) + 1e-9).all()
    assert radius[0] < radius[1]
