"""Decision bounds against exact solutions: 50 digits on problems made to break them, dense solves on larger ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.kernels import Kernel, Matern12, Matern52, SquaredExponential, parse_kernel
from dkgp.models.classification.certificate import DecisionCertificate, certified_labels
from dkgp.models.classification.labels import decided
from dkgp.solvers import Cholesky, ConjugateGradient, FactorPreconditioning, GreedyBlockCoordinateDescent, MaxIterations
from tests.models.classification.exact.dense_lssvm import Approximation, refined_decisions
from tests.models.classification.exact.problems import LabelProblem

EARLY: dict[str, Any] = {"solver": ConjugateGradient(None), "tolerance": 1e-300, "limits": MaxIterations(2)}
LATE: dict[str, Any] = {"solver": Cholesky(), "tolerance": 1e-300, "limits": MaxIterations(1)}

ENDS: tuple[dict[str, Any], ...] = (
    {"solver": Cholesky(), "limits": MaxIterations(1)},
    {"solver": ConjugateGradient(None), "limits": MaxIterations(6)},
    {"solver": ConjugateGradient(None), "tolerance": 1e-2, "limits": MaxIterations(60)},
    {"solver": GreedyBlockCoordinateDescent(), "limits": MaxIterations(10)},
    {"solver": ConjugateGradient(FactorPreconditioning()), "limits": MaxIterations(20)},
)


def attacks() -> dict[str, LabelProblem]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 2))
    two, three = (X[:, 0] > 0.2).astype(np.int64), np.digitize(X[:, 0], (-0.4, 0.5))
    T, rbf = np.vstack([X[:2], rng.normal(size=(2, 2)), [[1e3, -1e3]]]), SquaredExponential((0.5, 0.5))
    found: dict[str, LabelProblem] = {}
    for when, ends in (("early", EARLY), ("late", LATE)):
        found |= {
            f"plain, {when}": LabelProblem(X, two, T, rbf, 0.1, settings=ends),
            f"three classes, {when}": LabelProblem(X, three, T, rbf, 0.1, settings=ends),
            f"hardly any noise, {when}": LabelProblem(X, two, T, rbf, 1e-10, settings=ends),
            f"long length scales, {when}": LabelProblem(
                X, two, T, SquaredExponential((1e-6, 1e-6)), 1e-8, settings=ends
            ),
            f"nothing is near, {when}": LabelProblem(X, two, T, SquaredExponential((1e6, 1e6)), 1e-3, settings=ends),
            f"noise far above, {when}": LabelProblem(X, two, T, rbf, 1e8, settings=ends),
            f"amplitude far below, {when}": LabelProblem(
                X, two, T, SquaredExponential((0.5, 0.5), 1e-12), 1e-3, settings=ends
            ),
            f"duplicates of both classes, {when}": LabelProblem(
                np.repeat(X[:12], 2, axis=0), np.tile([0, 1], 12), T, rbf, 1e-6, settings=ends
            ),
            f"one of a class, {when}": LabelProblem(
                X, (np.arange(24) == 3).astype(np.int64), T, rbf, 0.01, settings=ends
            ),
            f"weights, {when}": LabelProblem(
                X, two, T, rbf, 0.1, weights=10.0 ** rng.uniform(-6, 3, 24), settings=ends
            ),
            f"weights of classes, {when}": LabelProblem(
                X, three, T, rbf, 0.1, weights=np.array([1.0, 1e-4, 30.0])[three], settings=ends
            ),
            f"no intercept, {when}": LabelProblem(X, two, T, rbf, 0.1, fit_intercept=False, settings=ends),
            f"no intercept, weights, {when}": LabelProblem(
                X, two, T, rbf, 0.1, weights=10.0 ** rng.uniform(-3, 3, 24), fit_intercept=False, settings=ends
            ),
            f"linear, {when}": LabelProblem(X, two, T, parse_kernel("linear", 2), 1.0, settings=ends),
            f"linear beside a constant, {when}": LabelProblem(
                X, two, T, parse_kernel("linear + constant", 2), 1e-4, settings=ends
            ),
            f"one sample far out, {when}": LabelProblem(
                np.where(np.arange(24)[:, None] == 7, 1e7, X),
                two,
                T,
                parse_kernel("linear + rbf", 2),
                1e-3,
                settings=ends,
            ),
            f"rough, {when}": LabelProblem(X, two, T, Matern12((3.0, 3.0)), 1e-5, settings=ends),
        }
    return found


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


def test_the_margin_of_every_other_class_counts() -> None:
    decisions = np.array([[0.5, 0.1, -0.9], [0.5, 0.45, -0.9], [np.nan, 0.5, 0.1]])
    assert certified_labels(decisions, np.full((3, 3), 0.1)).tolist() == [True, False, False]
    assert certified_labels(np.array([[0.2], [-0.2], [0.1], [np.nan]]), np.full((4, 1), 0.1)).tolist() == [
        True,
        True,
        False,
        False,
    ]
    # A third class whose own bound is wide: the two largest alone would be certified.
    wide = np.array([[0.1, 0.1, 3.0]])
    assert certified_labels(decisions[:1], wide).tolist() == [False]


def test_json_and_back(rng: np.random.Generator) -> None:
    X = rng.normal(size=(20, 2))
    for intercept in (True, False):
        problem = LabelProblem(X, np.arange(20) % 3, X[:3], SquaredExponential((1.0, 1.0)), 0.1, None, intercept)
        certificate = problem.trained.certificate
        assert DecisionCertificate.from_json(certificate.to_json()) == certificate
