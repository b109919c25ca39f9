"""What is proven, against exact solutions in 50 digits: hand-made attacks, and cases drawn at random.

All by the public path, from raw numbers by training, certificate and prediction to intervals in the targets' units.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.errors import DkgpError
from dkgp.kernels import Kernel, Matern52, Periodic, SquaredExponential, UserKernel, parse_kernel, register_function
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import mean_in_units, variance_in_units
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    MaxPasses,
    Solver,
    solve,
)
from dkgp.solvers.conjugate.gradient import iterate
from tests.models.exact_gp import ExactGP, mp, numbers
from tests.models.proof_problems import Problem

# ------------------------------------------------------------------------------------------------------------- attacks


def clusters(rng: np.random.Generator, n: int, d: int, gamma: float) -> np.ndarray:
    """Two of them at -1 and 1, each as wide as the length scale: near pairs whose norms are huge beside it."""
    X = 0.7 / math.sqrt(d * gamma) * rng.standard_normal((n, d))
    return np.where(np.arange(n)[:, None] % 2 == 0, X - 1.0, X + 1.0)


def attacks() -> dict[str, Problem]:
    rng = np.random.default_rng(0)
    found = {}
    for gamma in (5e5, 5e6):
        X, T = clusters(rng, 36, 8, gamma), clusters(rng, 3, 8, gamma)
        for kernel in (SquaredExponential((gamma,) * 8), Matern52((gamma,) * 8)):
            found[f"clusters, {kernel.type_name}, {gamma:g}"] = Problem(X, rng.normal(size=(36, 1)), T, kernel, 0.1)
    X = rng.normal(size=(30, 3)) + 1e3 * (np.arange(30)[:, None] % 2)
    waves = SquaredExponential((1e6,) * 3) * Periodic((1.0,) * 3, (2.0,) * 3)
    found["clusters, rbf * periodic"] = Problem(X, rng.normal(size=(30, 1)), X[:3] + 0.01, waves, 0.1)
    x, T, rbf = np.linspace(0.0, 1.0, 20)[:, None], rng.uniform(0.0, 1.0, (4, 1)), SquaredExponential((1.0,))
    y = np.sin(6.0 * x)
    found["targets about 1e9"] = Problem(x, 1e9 + y, T, rbf, 0.01)
    found["targets about 1e6, a thousandth wide"] = Problem(x, 1e6 + 1e-3 * y, T, rbf, 0.01)
    found["three targets"] = Problem(x, np.hstack([y, 1e-9 * y + 3.0, 1e3 * y]), T, rbf, 0.01)
    X = rng.normal(size=(20, 2))
    found["linear, next to the mean"] = Problem(
        X, X[:, :1], X.mean(axis=0)[None] + 1e-9, parse_kernel("linear", 2), 1.0
    )
    found["amplitude far below the noise"] = Problem(
        X, X[:, :1], X[:3] + 0.1, SquaredExponential((1.0, 1.0), 1e-12), 1.0
    )
    far = np.where(np.arange(20)[:, None] == 7, 1e7, X)
    found["one sample far out"] = Problem(far, X[:, :1], X[:3], parse_kernel("linear + rbf", 2), 1e-3)
    return found


@pytest.mark.parametrize("name", attacks())
def test_attacks(name: str) -> None:
    problem = attacks()[name]
    for latent, max_passes in ((True, 20.0), (True, 0.0), (False, 20.0)):
        predicted = problem.predicted(latent=latent, max_passes=max_passes)
        wrong, _ = problem.variance_violations(predicted, latent)
        assert wrong.max() <= 0.0
    assert problem.mean_ratios(predicted).max() <= 1.0


def test_the_interval_of_a_variance_far_below_the_noise_is_narrow_too() -> None:
    for name in ("linear, next to the mean", "amplitude far below the noise"):
        predicted = attacks()[name].predicted(latent=True, gap=1e-6)
        assert (predicted["variance_lower"] > 0.0).all()
        assert (predicted["variance_upper"] <= (1.0 + 1e-6) * predicted["variance_lower"]).all()


def exact_gradient(X: np.ndarray, y: np.ndarray, kernel: Kernel, noise: float, alpha: np.ndarray) -> np.ndarray:
    gp = ExactGP(X, X[:1], numbers(y), kernel, noise)
    return np.array([[float(value) for value in row] for row in gp.gradient(alpha)])


@pytest.mark.parametrize("solver", [Cholesky(), GreedyBlockCoordinateDescent(block_size=20)], ids=lambda s: s.name)
def test_inputs_far_from_the_origin_are_centred(solver: Solver) -> None:
    """The gradient that a solve goes by is the true one, wherever the inputs lie."""
    rng = np.random.default_rng(1)
    X, kernel = 1e6 + rng.standard_normal((60, 10)), SquaredExponential((0.1,) * 10)
    y = np.sin(X[:, :1])
    executor = LocalExecutor(1)
    with BlockedKernelOperator(kernel, 0.01, ArrayInputs(X), executor) as operator:
        solution = solve(operator, y, solver=solver, stopping=GradientInfNorm(1e-6) | MaxPasses(50))
        errors = operator.row_errors()
    executor.close()
    true = exact_gradient(X, y, kernel, 0.01, solution.alpha)
    assert solution.converged
    assert np.abs(true).max() <= 1e-6 + 1e-12
    certificate = Certificate.of(solution.alpha, solution.gradient, y, 0.01, 1.0, errors)
    assert np.linalg.norm(true - solution.gradient) <= certificate.residual_rounding[0] <= 1e-10


def test_a_gradient_is_evaluated_anew_before_it_is_reported() -> None:
    rng = np.random.default_rng(2)
    X, kernel = rng.standard_normal((60, 2)), SquaredExponential((1.0, 1.0))
    y = np.sin(3.0 * X[:, :1])
    executor = LocalExecutor(1)
    with BlockedKernelOperator(kernel, 1e-6, ArrayInputs(X), executor) as operator:
        solution = solve(
            operator,
            y,
            solver=ConjugateGradient(precision="double"),
            stopping=GradientInfNorm(1e-12) | MaxPasses(2000),
        )
        errors = operator.row_errors()
    executor.close()
    true = exact_gradient(X, y, kernel, 1e-6, solution.alpha)
    certificate = Certificate.of(solution.alpha, solution.gradient, y, 1e-6, 1.0, errors)
    assert np.linalg.norm(true) <= certificate.proven_residual_norm[0]
    assert np.linalg.norm(true - solution.gradient) <= certificate.residual_rounding[0]


@pytest.mark.parametrize("targets", [1, 3])
def test_a_step_that_comes_with_the_gradient_is_counted(targets: int) -> None:
    """From coefficients of 1e9 back to ordinary ones, in the round that computes the gradient anew."""
    rng = np.random.default_rng(3)
    X, kernel = rng.standard_normal((50, 2)), SquaredExponential((1.0, 1.0))
    y = np.sin(3.0 * X[:, :1]) * np.arange(1.0, targets + 1)
    far = 1e9 * rng.standard_normal((50, targets))
    executor = LocalExecutor(1)
    with BlockedKernelOperator(kernel, 0.01, ArrayInputs(X), executor) as operator:
        state = ConjugateGradient().start(operator, y, far)
        state.exact = False
        iterate(operator, state, -far, lambda stands: True)
        errors = operator.row_errors()
    executor.close()
    assert state.exact
    assert np.abs(state.alpha).max() < 1e4
    true = exact_gradient(X, y, kernel, 0.01, state.alpha)
    counted, not_counted = (
        Certificate.of(state.alpha, state.gradient, y, 0.01, 1.0, errors, stepped=stepped)
        for stepped in (state.stepped, None)
    )
    off = np.linalg.norm(true - state.gradient, axis=0)
    assert (off <= counted.residual_rounding).all()
    assert (off > not_counted.residual_rounding).all()
    # What a mean's own sum rounds has nothing to do with it.
    assert counted.magnitude == not_counted.magnitude


def test_a_mixed_solve_is_certified_by_a_round_that_computes_its_gradient() -> None:
    rng = np.random.default_rng(4)
    X, kernel = rng.standard_normal((60, 2)), SquaredExponential((1.0, 1.0))
    y = np.hstack([np.sin(3.0 * X[:, :1]), X[:, 1:] ** 2])
    executor, shapes, few = LocalExecutor(1), set(), ConjugateGradient(FactorPreconditioning(20, 10, 5))
    # Which of these end in a round that steps too is a matter of roundings, and so of the processor.
    for tolerance in (1e-4, 3e-5, 1e-5, 3e-6, 1e-6):
        with BlockedKernelOperator(kernel, 1e-2, ArrayInputs(X), executor) as operator:
            solution = solve(operator, y, solver=few, stopping=GradientInfNorm(tolerance))
            errors = operator.row_errors()
        assert solution.converged
        assert "check" in solution.history[-1].timings
        true = exact_gradient(X, y, kernel, 1e-2, solution.alpha)
        certificate = Certificate.of(solution.alpha, solution.gradient, y, 1e-2, 1.0, errors, stepped=solution.stepped)
        assert np.abs(true).max() <= tolerance + 1e-10
        assert (np.linalg.norm(true - solution.gradient, axis=0) <= certificate.residual_rounding).all()
        assert max(certificate.residual_rounding) < 1e-8
        shapes.add(solution.stepped.shape)
    executor.close()
    assert y.shape in shapes


@register_function("tests_proofs_cosine")
def cosine(s):
    return math.exp(-s) * math.cos(math.sqrt(s))


def test_the_bound_of_a_mean_by_its_variance_is_reached() -> None:
    """At a sample with little noise, far from others, whose residual is all there is."""
    noise, kernel = np.array([1e-4, 0.02, 5.0]), SquaredExponential((1.0,))
    x = np.array([[0.0], [100.0], [200.0]])
    residual = np.array([[1e-3], [0.0], [0.0]])
    certificate = Certificate.of(np.zeros((3, 1)), -residual, residual, noise, 1.0, np.ones(3))
    away = np.linalg.solve(kernel(x, x) + np.diag(noise), residual)[:1] * kernel(x[:1], x[:1])
    variance = noise[:1] / (1.0 + noise[:1])
    bound = certificate.mean_error_bound(np.ones(1), np.ones(1))
    by_variance = certificate.by_variance(bound, kernel, variance)
    assert 0.9999 * by_variance <= away <= by_variance
    assert bound > 99.0 * by_variance
    # Variances that are unknown, or as large as k(x, x), say nothing; nor do those of a kernel that varies.
    for known in (np.array([np.inf]), np.ones(1)):
        np.testing.assert_array_equal(certificate.by_variance(bound, kernel, known), bound)
    np.testing.assert_array_equal(certificate.by_variance(bound, parse_kernel("linear", 1), variance), bound)


def test_what_a_users_function_leaves_unproven_is_said() -> None:
    X = np.random.default_rng(3).normal(size=(20, 1))
    kernel = UserKernel.registered("tests_proofs_cosine", gamma=(0.5,))
    problem = Problem(X, X, X[:2], kernel + parse_kernel("rbf", 1), 0.1)
    said = problem.trained.certificate.assumes
    assert said is not None
    assert "tests_proofs_cosine: its positive definiteness was checked on a sample" in said
    assert problem.trained.certificate.to_json()["assumes"] == said == problem.trained.summary["assumes"]
    assert Certificate.from_json(problem.trained.certificate.to_json()).assumes == said
    assert Problem(X, X, X[:2], parse_kernel("rbf", 1), 0.1).trained.certificate.assumes is None


@given(
    mean=st.floats(-1e3, 1e3),
    bound=st.floats(0.0, 1.0),
    scale=st.floats(1e-200, 1e200),
    offset=st.floats(-1e200, 1e200),
    lower=st.floats(0.0, 1.0),
)
def test_the_way_back_to_the_targets_units_is_outward(
    mean: float, bound: float, scale: float, offset: float, lower: float
) -> None:
    array = np.array
    raw, raw_bound = mean_in_units(array([[mean]]), array([[bound]]), array([scale]), array([offset]))
    exact = mp.mpf(mean) * mp.mpf(scale) + mp.mpf(offset)
    for end in (exact - mp.mpf(bound) * mp.mpf(scale), exact + mp.mpf(bound) * mp.mpf(scale)):
        assert abs(mp.mpf(float(raw[0, 0])) - end) <= mp.mpf(float(raw_bound[0, 0]))
    low, high = variance_in_units(array([lower]), array([2.0 * lower]), array([min(scale, 1e100)]))
    squared = mp.mpf(min(scale, 1e100)) ** 2
    assert mp.mpf(float(low[0, 0])) <= mp.mpf(lower) * squared
    assert mp.mpf(2.0 * lower) * squared <= mp.mpf(float(high[0, 0]))


# ---------------------------------------------------------------------------------------------------------- at random

KERNELS = [
    "rbf",
    "matern12",
    "matern32",
    "matern52",
    "rq",
    "periodic",
    "linear",
    "polynomial(degree=3)",
    "rbf + linear",
    "rbf * periodic + 0.3 * constant",
    "(linear + matern32) * rbf",
    "polynomial * matern12 + rq",
]
SOLVERS = [None, ConjugateGradient(precision="double"), GreedyBlockCoordinateDescent(block_size=8)]


def drawn(rng: np.random.Generator) -> tuple[Problem, dict[str, Any]]:
    """Any kernel, scales, offsets, duplicates, noise, ranks and numbers of targets; mostly few samples."""
    n = int(rng.choice([1, 2, 3, 5, 8, 12, 24], p=[0.02, 0.08, 0.2, 0.3, 0.25, 0.12, 0.03])) + 1
    d = int(rng.choice([1, 2, 3, 9]))
    X = rng.normal(size=(n, d))
    kind = rng.choice(["plain", "duplicates", "clusters", "outlier"])
    if kind == "duplicates":
        X = X[rng.integers(0, max(1, n // 2), n)]
        X[0] += 1.0
    elif kind == "clusters":
        X = 10.0 ** rng.uniform(-6.0, 0.0) * X + 10.0 * (np.arange(n)[:, None] % 2)
    elif kind == "outlier":
        X[0] *= 10.0 ** rng.uniform(0.0, 6.0)
    X = X * 10.0 ** rng.uniform(-5.0, 5.0) + float(rng.choice([0.0, 1.0, 1e6])) * rng.normal()
    kernel = parse_kernel(str(rng.choice(KERNELS)), d)
    values = [parameter.value * 10.0 ** rng.uniform(-1.5, 1.5) for parameter in kernel.parameters()]
    if rng.random() < 0.3:  # short length scales, small and large amplitudes
        values = [value * 10.0 ** rng.uniform(-6.0, 6.0) for value in values]
    y = rng.normal(size=(n, int(rng.choice([1, 1, 3])))) * 10.0 ** rng.uniform(-8.0, 8.0)
    y = y + float(rng.choice([0.0, 1.0, 1e9])) * rng.normal()
    T = np.concatenate([X[:1], X[-1:] + 1e-3 * rng.normal(size=(1, d)), X.mean(axis=0)[None] * (1.0 + 1e-9)])
    noise = 10.0 ** rng.uniform(-10.0, 2.0)
    rank, max_passes = int(rng.integers(1, n + 1)), float(rng.choice([0.0, 1.0, 20.0]))
    variance = {"rank": rank, "max_passes": max_passes, "latent": bool(rng.random() < 0.5), "gap": 1e-6}
    solver = SOLVERS[int(rng.choice(3, p=[0.6, 0.2, 0.2]))]
    return Problem(X, y, T, kernel.with_parameters(values), noise, solver, tolerance=1e-6), variance


def judged(seed: int) -> tuple[np.ndarray, np.ndarray, bool] | None:
    """Bound over error of the means, excess of the upper ends, whether it is an ordinary case; None where refused."""
    rng = np.random.default_rng(seed)
    problem, variance = drawn(rng)
    if len(np.unique(problem.X, axis=0)) < 2:
        return None
    try:
        predicted = problem.predicted(**variance)
    except DkgpError:
        return None
    ratios = problem.mean_ratios(predicted)
    wrong, above = problem.variance_violations(predicted, variance["latent"])
    assert ratios.max() <= 1.0, f"seed {seed}: a mean misses by {ratios.max():.3g} times its bound"
    assert wrong.max() <= 0.0, f"seed {seed}: an interval misses by {wrong.max():.3g}"
    # The theorem's own factor is sqrt(k(x, x)) / s: large where the noise is small, whatever is counted.
    ordinary = problem.noise_variance >= 1e-3 * float(np.max(problem.kernel.diagonal(problem.exact.T)))
    with np.errstate(divide="ignore"):
        # Where few passes were allowed, it is the factor's rank that leaves an interval wide, not its roundings.
        narrow = above.ravel() if variance["max_passes"] == 20.0 else np.empty(0)
        return np.minimum(1.0 / ratios.ravel(), 1e300), narrow, ordinary


def judge_many(cases: int, first: int = 0) -> None:
    """Judge as many cases, and print what soundness costs: how far bounds are above what they bound.

    Half of the seeds are hypothesis's own choice; the medians are taken of the other half, which is always the same.
    """
    found: list[tuple[np.ndarray, np.ndarray, bool]] = []
    refused = 0

    @settings(max_examples=cases - cases // 2, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**31))
    def check(seed: int) -> None:
        judged(first + seed)

    check()
    for seed in np.random.default_rng(first).integers(0, 2**31, cases // 2):
        one = judged(first + int(seed))
        if one is None:
            refused += 1
        else:
            found.append(one)
    of_all = float(np.median(np.concatenate([one[0] for one in found])))
    ratio = float(np.median(np.concatenate([one[0] for one in found if one[2]])))
    excess = float(np.median(np.concatenate([one[1] for one in found])))
    print(
        f"{len(found)} cases, {refused} refused: median of bound / error {of_all:.3g}, {ratio:.3g} where the noise is "
        f"no less than a thousandth of k(x, x); upper ends above by {excess:.3g}"
    )
    assert refused <= 0.2 * (refused + len(found))
    assert ratio <= 1000.0
    assert excess <= 1e-3


def test_directions_that_say_nothing_any_more_end_a_batch() -> None:
    # P' Kbar P became singular here: the bounds stand as they are, whatever was hoped for.
    assert judged(12 * 2**32 + 40089965) is not None


@pytest.mark.long
def test_any_small_problem() -> None:
    judge_many(50)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("piece", range(20))
def test_ten_thousand_small_problems(piece: int) -> None:
    judge_many(500, first=(piece + 1) * 2**32)
