"""Proven bounds, against exact solutions in 50 digits: hand-made attacks, and cases drawn at random.

All by the public path, from raw numbers by training, certificate and prediction to intervals in the targets' units.
"""

from __future__ import annotations

import math
from contextlib import closing
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.errors import DkgpError
from dkgp.kernels import Kernel, Matern52, Periodic, SquaredExponential, UserKernel, parse_kernel, register_function
from dkgp.models import rounding
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import (
    EPS,
    EVALUATION,
    LOST,
    UNIT,
    bounding,
    certified_row_errors,
    column_lengths,
    fixed_roundings,
    highest_prior,
    known,
    mean_in_units,
    mean_roundings,
    outward,
    product_roundings,
    step_roundings,
    sum_roundings,
    variance_in_units,
)
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.exact_sums import Scale
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    MaxPasses,
    Solution,
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


def solved(X: np.ndarray, y: np.ndarray, kernel: Kernel, noise: float, **how: Any) -> tuple[Solution, np.ndarray, Any]:
    """With its true gradient, and errors of rows."""
    with (
        closing(LocalExecutor(1)) as executor,
        BlockedKernelOperator(kernel, noise, ArrayInputs(X), executor) as operator,
    ):
        solution, errors = solve(operator, y, **how), operator.row_errors()
    return solution, exact_gradient(X, y, kernel, noise, solution.alpha), errors


@pytest.mark.parametrize("solver", [Cholesky(), GreedyBlockCoordinateDescent(block_size=20)], ids=lambda s: s.name)
def test_inputs_far_from_the_origin_are_centred(solver: Solver) -> None:
    """The gradient that a solve goes by is the true one, wherever the inputs lie."""
    rng = np.random.default_rng(1)
    X, kernel = 1e6 + rng.standard_normal((60, 10)), SquaredExponential((0.1,) * 10)
    y = np.sin(X[:, :1])
    stopping = GradientInfNorm(1e-6) | MaxPasses(50)
    solution, true, errors = solved(X, y, kernel, 0.01, solver=solver, stopping=stopping)
    assert solution.converged
    assert np.abs(true).max() <= 1e-6 + 1e-12
    certificate = Certificate.of(solution.alpha, solution.gradient, y, 0.01, 1.0, errors)
    assert np.linalg.norm(true - solution.gradient) <= certificate.residual_rounding[0] <= 1e-10


@pytest.mark.long
def test_a_gradient_is_evaluated_anew_before_it_is_reported() -> None:
    rng = np.random.default_rng(2)
    X, kernel = rng.standard_normal((60, 2)), SquaredExponential((1.0, 1.0))
    y = np.sin(3.0 * X[:, :1])
    stopping = GradientInfNorm(1e-12) | MaxPasses(2000)
    solution, true, errors = solved(X, y, kernel, 1e-6, solver=ConjugateGradient(precision="double"), stopping=stopping)
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
    shapes, few = set(), ConjugateGradient(FactorPreconditioning(20, 10, 5))
    # Which of these end in a round that steps too is a matter of roundings, and so of the processor.
    for tolerance in (1e-4, 3e-5, 1e-5, 3e-6, 1e-6):
        solution, true, errors = solved(X, y, kernel, 1e-2, solver=few, stopping=GradientInfNorm(tolerance))
        assert solution.converged
        assert "check" in solution.history[-1].timings
        certificate = Certificate.of(solution.alpha, solution.gradient, y, 1e-2, 1.0, errors, stepped=solution.stepped)
        assert np.abs(true).max() <= tolerance + 1e-10
        assert (np.linalg.norm(true - solution.gradient, axis=0) <= certificate.residual_rounding).all()
        assert max(certificate.residual_rounding) < 1e-8
        shapes.add(solution.stepped.shape)
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
    for unknown in (np.array([np.inf]), np.ones(1)):
        np.testing.assert_array_equal(certificate.by_variance(bound, kernel, unknown), bound)
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


# Terms of proofs that count roundings, against fractions: never too small, and not much larger than they are said.


KERNEL = SquaredExponential((0.4, 0.2), 1.3)
U = Fraction(1, 2**53)


def exact(values: Any) -> list[Fraction]:
    return [Fraction(float(value)) for value in np.ravel(values)]


def test_units() -> None:
    assert np.spacing(1.0) == EPS
    assert Fraction(UNIT) == U
    # What a product of two normal numbers is off by where it is below all of them, a few times.
    smallest = Fraction(5e-324)
    worst = max(abs(Fraction(a * b) - Fraction(a) * Fraction(b)) for a, b in [(1.5e-160, 3.3e-164), (1e-200, 7e-125)])
    assert worst <= smallest / 2
    assert smallest <= Fraction(LOST) <= 64 * smallest
    # k u / (1 - k u) and the evaluation of a sum of so many terms, for any n that can be trained.
    for k in (1, 10**6, 10**9):
        assert Fraction(EVALUATION) * (1 - (k + 100) * U) > 1 / (1 - k * U)


@pytest.mark.parametrize("n", [1, 7, 300, 640, 648, 656, 5000, 65_536, 10**6, 12_345_678])
def test_a_product_is_added_up_by_runs_tiles_and_blocks(n: int) -> None:
    """A term passes through a run of at most 512, the runs of its block, and the blocks; or through all terms."""
    context = BlockContext("run", ArrayInputs(np.zeros((1, 2))), KERNEL, n)
    assert context.block_rows <= 8208
    counted = mean_roundings(n) - 6.0
    assert counted == pytest.approx(min(n, 512 + 8208 / 64 + max(8.0, n / 8192 + 1.0)), rel=1e-15)
    assert counted >= min(n, 512 + context.block_rows / 64 + context.n_blocks)


@pytest.mark.parametrize("n", [1, 7, 300, 640, 648, 5000, 65_536, 10**6, 12_345_678, 10**8, 10**9])
def test_blocks_of_a_product_are_added_as_words(n: int) -> None:
    """A term passes through a run and the runs of its block; the words of all blocks round to little more than once."""
    context = BlockContext("run", ArrayInputs(np.zeros((1, 2))), KERNEL, n)
    blocks, bits = context.n_blocks, Scale.of(np.ones(1), 2, context.n_blocks).low_bits
    # Lemma 2a for a row whose bound is 2^26 1.01 times its own, in units of u.
    words = Fraction(101, 100) * 2**26 * (blocks * Fraction(2) ** (-51 - bits - 1 + 53) + blocks * Fraction(1, 2**52))
    assert 1 + words <= Fraction(fixed_roundings(n)) <= max(2, 1 + 64 * words)
    assert product_roundings(n) == pytest.approx(min(n, 512 + 8208 / 64) + fixed_roundings(n) + 6.0, rel=1e-15)
    assert product_roundings(10**7) < 650


def test_a_step_and_a_sum_are_counted_with_what_comes_to_them() -> None:
    assert [step_roundings(p) for p in (1, 5)] == [7.0, 11.0]
    # Fewer than a run; two runs and a part of one; so many as are said.
    assert [sum_roundings(5, 10), sum_roundings(23, 10), sum_roundings(23, 10, 9)] == [12.0, 19.0, 25.0]


@pytest.mark.parametrize("n", [3, 100, 1000])
def test_sums_by_runs_are_off_by_no_more_than_is_counted(n: int, rng: np.random.Generator) -> None:
    run = 32
    for _ in range(20):
        left, right = rng.normal(size=(2, n)) * 10.0 ** rng.uniform(-8, 8, n)
        total = 0.0
        for start in range(0, n, run):
            part = 0.0
            for a, b in zip(left[start : start + run], right[start : start + run], strict=True):
                part += a * b
            total += part
        true = [a * b for a, b in zip(exact(left), exact(right), strict=True)]
        m = Fraction(sum_roundings(n, run))
        assert abs(Fraction(total) - sum(true)) <= m * U / (1 - m * U) * sum(map(abs, true))


@pytest.mark.parametrize("roundings", [1.0, 3.0, 4.0, 25.0])
def test_the_highest_prior_has_all_its_roundings_and_two(roundings: float) -> None:
    kernel: Any = SimpleNamespace(diagonal_roundings=roundings)
    prior = 2.0 ** np.arange(-3, 4)
    for found, value in zip(exact(highest_prior(kernel, prior)), exact(prior), strict=True):
        assert value * (1 + (Fraction(roundings) + 2) * U) <= found
        assert found <= value * (1 + Fraction(102, 100) * (Fraction(roundings) + 4) * U)
    assert highest_prior(kernel, np.array([np.finfo(float).max])) == [np.inf]


# Of two features: w = 1/2 each, an offset of one, and for a power v = 1/8.
PRIORS: dict[str, Any] = {
    "rbf": lambda square: mpmath.mpf(1),
    "polynomial(degree=3) + linear": lambda square: (square / 2 + 1) ** 3 / 8 + square / 2,
    "2.5 * (matern32 * linear + constant)": lambda square: mpmath.mpf("2.5") * (square / 2 + 1),
}


@pytest.mark.parametrize("text", PRIORS)
def test_no_exact_prior_is_above_it(text: str, rng: np.random.Generator) -> None:
    kernel = parse_kernel(text, 2)
    X = rng.normal(size=(40, 2)) * 10.0 ** rng.uniform(-3, 3, (40, 1))
    prior = kernel.diagonal(X)
    found = highest_prior(kernel, prior)
    with mpmath.workdps(40):
        true = [PRIORS[text](sum(mpmath.mpf(float(x)) ** 2 for x in row)) for row in X]
        assert all(value <= mpmath.mpf(float(high)) for value, high in zip(true, found, strict=True))
    assert (found <= prior * (1.0 + 100.0 * EPS)).all()


@pytest.mark.parametrize("magnitude", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_lengths_of_columns_of_any_magnitude(magnitude: float, rng: np.random.Generator) -> None:
    columns = magnitude * rng.normal(size=(30, 3)) * [1.0, 1e-5, 0.0]
    columns[4] = 0.0
    with mpmath.workdps(40):
        expected = [float(mpmath.sqrt(mpmath.fsum(mpmath.mpf(float(x)) ** 2 for x in column))) for column in columns.T]
    np.testing.assert_allclose(column_lengths(columns), expected, rtol=1e-14)
    assert column_lengths(columns[:, 0]) == pytest.approx(expected[0], rel=1e-14)
    assert column_lengths(np.zeros((0, 2))).tolist() == [0.0, 0.0]
    if magnitude == 1.0:
        np.testing.assert_array_equal(column_lengths(columns), np.linalg.norm(columns, axis=0))


MAGNITUDES = [1e-3, 1.0, 1e6]


@pytest.mark.parametrize("offset_of", [0.0, 1.0, 1e9])
@pytest.mark.parametrize("scale_of", MAGNITUDES)
@pytest.mark.parametrize("size", MAGNITUDES)
def test_means_in_units_miss_by_no_more_than_is_said(
    size: float, scale_of: float, offset_of: float, rng: np.random.Generator
) -> None:
    scale, offset = scale_of * rng.uniform(0.5, 2.0, 2), offset_of * rng.normal(size=2)
    mean, bound = (
        size * rng.normal(size=(60, 2)),
        np.abs(rng.normal(size=(60, 2))) * 10.0 ** rng.uniform(-20, 0, (60, 1)),
    )
    bound[:20] = 0.0
    found, off = mean_in_units(mean, bound, scale, offset)
    for i, t in np.ndindex(60, 2):
        m, b, s, o = exact([mean[i, t], bound[i, t], scale[t], offset[t]])
        missed = abs(m * s + o - Fraction(found[i, t]))
        said, rounded = Fraction(off[i, t]), U * (abs(m * s) + abs(m * s + o))
        assert b * s + missed <= said
        # Every mean within the bound is covered, whatever rounding did: the worst of both.
        assert b * s + rounded * (1 - 4 * U) <= said <= (b * s + rounded * Fraction(102, 100)) * (1 + 12 * U) + LOST_ULP


LOST_ULP = Fraction(10) ** -320


def test_means_beyond_the_largest_number_have_no_bound_and_no_warning() -> None:
    found, off = mean_in_units(np.array([[1e200]]), np.array([[1e-3]]), np.array([1e200]), np.array([0.0]))
    assert (found, off) == (np.inf, np.inf)


@pytest.mark.parametrize("scale", [1e-170, 1e-3, 0.7, 1e5, 1e153])
def test_variances_in_units_are_rounded_outward(scale: float, rng: np.random.Generator) -> None:
    scales = scale * rng.uniform(0.5, 2.0, 2)
    lower = np.r_[0.0, 10.0 ** rng.uniform(-12, 0, 80)]
    upper = lower * np.r_[1.0, rng.uniform(1.0, 2.0, 80)]
    low, high = variance_in_units(lower, upper, scales)
    assert low.shape == high.shape == (81, 2)
    assert (low[0] == 0.0).all()
    for i, t in np.ndindex(81, 2):
        s, least, most = exact([scales[t], lower[i], upper[i]])
        assert 0 <= Fraction(low[i, t]) <= least * s**2
        assert most * s**2 <= Fraction(high[i, t])
        if scale > 1e-100:
            assert least * s**2 * (1 - 16 * U) - LOST_ULP <= Fraction(low[i, t])
            assert Fraction(high[i, t]) <= most * s**2 * (1 + 16 * U) + LOST_ULP


def test_outward_is_one_number_further() -> None:
    low, high = outward(np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    np.testing.assert_array_equal(low, [1.0 - EPS / 2.0, -5e-324])
    np.testing.assert_array_equal(high, [1.0 + EPS, 5e-324])


@pytest.mark.filterwarnings("error")
def test_what_comes_to_no_number_is_no_bound() -> None:
    np.testing.assert_array_equal(known(np.array([np.nan, 1.0, np.inf])), [np.inf, 1.0, np.inf])

    @bounding
    def bound(values: np.ndarray, factor: float) -> np.ndarray:
        return values * factor + 1e308

    np.testing.assert_array_equal(bound(np.array([np.inf, 1e308, 1.0]), factor=0.0), [np.inf, 1e308, 1e308])
    np.testing.assert_array_equal(bound(np.array([1e308]), 1.0), [np.inf])


def test_row_errors_are_those_about_the_centre_of_the_inputs(rng: np.random.Generator) -> None:
    kernel: Kernel = KERNEL
    X = rng.normal(size=(20, 2))
    near = certified_row_errors(kernel, ArrayInputs(X), X)
    far = certified_row_errors(kernel, ArrayInputs(X), X + 1e6)
    assert near.shape == (20,)
    assert (near > 0.0).all()
    assert (far > 1e3 * near).all()


def test_only_users_functions_are_assumed_of() -> None:
    part = SimpleNamespace
    kernel: Any = SimpleNamespace(walk=lambda: [part(unproven="b"), part(unproven=None), part(unproven="a")])
    text = rounding.assumptions(kernel)
    assert text is not None
    assert text.startswith("user function a, b: its positive definiteness was checked")
    assert rounding.assumptions(KERNEL) is None
