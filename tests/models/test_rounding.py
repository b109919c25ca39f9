"""Terms of proofs that count roundings, against fractions: never too small, and not much larger than they are said."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest

from dkgp.kernels import Kernel, SquaredExponential, parse_kernel
from dkgp.models import rounding
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
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.exact_sums import Scale

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
