"""The compiled power of two over its whole range, seen through tiles of points at chosen distances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit

from dkgp.kernels import SquaredExponential, TileEvaluator
from dkgp.kernels.vector_math import FAST_MATH, exp2, exp2_in_place

# The smallest normal number: what the profile gives for anything farther away.
FLOOR = {"single": 2.0**-96, "double": 2.0**-960}
EPSILON = {"single": 2.0**-24, "double": 2.0**-53}


def powers_of_two(precision: str, expanded: bool, distances: np.ndarray) -> np.ndarray:
    """2**(-r^2) from one column at the origin; gamma = ln 2 makes the exponential a bare power of two."""
    evaluator = TileEvaluator(SquaredExponential(gamma=(math.log(2.0),)), precision, expanded=expanded)
    return evaluator.tile(evaluator.prepare(distances[:, None]), evaluator.prepare([[0.0]]))[:, 0].astype(np.float64)


def test_accuracy_over_the_whole_range(precision: str, expanded: bool) -> None:
    last = -math.log2(FLOOR[precision])
    squared = np.linspace(0.0, last, 20_011)
    found = powers_of_two(precision, expanded, np.sqrt(squared))
    expected = np.exp2(-squared)
    # The polynomial's own error, and the rounding of r^2, which the exponential turns into a relative error.
    allowed = (4.0 + 4.0 * squared) * EPSILON[precision] * expected + FLOOR[precision]
    assert np.all(np.abs(found - expected) <= allowed)


def test_near_one_the_error_is_a_rounding(precision: str, expanded: bool) -> None:
    squared = np.linspace(0.0, 1.0, 10_007)
    found = powers_of_two(precision, expanded, np.sqrt(squared))
    assert np.max(np.abs(found - np.exp2(-squared))) <= 4 * EPSILON[precision]
    assert found[0] == 1.0


@pytest.mark.parametrize("last", [60.0, 96.0])
def test_strictly_decreasing(precision: str, expanded: bool, last: float) -> None:
    squared = np.arange(0.0, last, 1e-3)
    assert np.all(np.diff(powers_of_two(precision, expanded, np.sqrt(squared))) < 0.0)


def test_whole_powers_by_differences_are_exact(precision: str) -> None:
    # r^2 is exact for r = 1, 2, 3, ...
    distances = np.arange(0.0, 12.0 if precision == "single" else 32.0)
    np.testing.assert_allclose(
        powers_of_two(precision, False, distances)[:10], np.exp2(-(distances**2))[:10], rtol=2 * EPSILON[precision]
    )


def test_far_points_are_nothing_and_never_less(precision: str, expanded: bool) -> None:
    distances = np.concatenate([np.linspace(11.0, 60.0, 999), np.logspace(1.8, 15.0, 999)])
    found = powers_of_two(precision, expanded, distances)
    assert not np.isnan(found).any()
    assert found.min() >= 0.0
    beyond = distances**2 > -math.log2(FLOOR[precision])
    assert beyond.any()
    assert found[beyond].max() <= FLOOR[precision]
    assert np.all(np.diff(found) <= 0.0)


def test_far_points_add_nothing_to_a_product(precision: str, expanded: bool) -> None:
    evaluator = TileEvaluator(SquaredExponential(gamma=(1.0, 1.0), variance=5.0), precision, expanded=expanded)
    near, far = np.zeros((20, 2)), np.full((20, 2), 1e6)
    columns = evaluator.prepare(np.concatenate([near, far]))
    weights = np.concatenate([np.ones((20, 1)), np.full((20, 1), 1e6)])
    product = evaluator.matmat(evaluator.prepare(near), columns, weights)
    np.testing.assert_array_equal(product, np.full((20, 1), 100.0))


@njit(fastmath=FAST_MATH)
def _in_place(values, floor):  # type: ignore[no-untyped-def]
    exp2_in_place(values, floor)


@njit(fastmath=FAST_MATH)
def _one_by_one(values, floor):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        values[i] = exp2(values[i], floor)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_have_the_bits_of_single_values(dtype: type) -> None:
    """Of any length, a piece of an array and one with strides among them, the floor and what lies below it too."""
    floor = -math.log2(1.0 / FLOOR["single" if dtype == np.float32 else "double"])
    hard = [0.0, -0.0, -0.5, np.nextafter(-0.5, 0.0), -1.0, floor, floor - 0.25, 10.0 * floor, -np.inf, np.nan]
    powers = np.concatenate([hard, floor * np.random.default_rng(3).random(151)]).astype(dtype)
    for values in (*(powers[:count] for count in (0, 1, 7, 31, 32, 33, 64, 160)), powers[3:100], powers[::3]):
        expected, found = values.copy(), powers.copy()
        _one_by_one(expected, dtype(floor))
        # The very memory that `values` is a view of, in a copy.
        start = (values.__array_interface__["data"][0] - powers.__array_interface__["data"][0]) // powers.itemsize
        step = values.strides[0] // powers.itemsize
        view = found[start : start + step * len(values) : step]
        _in_place(view, dtype(floor))
        np.testing.assert_array_equal(view, expected)
        untouched = np.delete(np.arange(len(powers)), np.arange(start, start + step * len(values), step))
        np.testing.assert_array_equal(found[untouched], powers[untouched])
