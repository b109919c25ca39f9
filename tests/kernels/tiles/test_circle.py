"""Cosine and sine of turns: against extended precision, at the places where they are exact, and far out."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.kernels.tiles.features import cosine_and_sine

# 2 pi to 64 bits; a constant of float64 would be off by more than what is measured here.
TURN = np.longdouble("6.283185307179586476925286766559005768394")


def within(turns: np.ndarray) -> np.ndarray:
    """Turns less their whole number, exactly."""
    return turns - np.rint(turns)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")
def test_within_two_units_in_the_last_place(rng: np.random.Generator) -> None:
    turns = np.concatenate([rng.uniform(-0.5, 0.5, 200_000), rng.uniform(-1e6, 1e6, 20_000), 0.125 * np.arange(-8, 9)])
    # Around its zeros an angle's rounding would be the sine's and the cosine's whole error: turned to the nearest axis.
    quarters = np.rint(4.0 * within(turns))
    rest = (within(turns) - 0.25 * quarters).astype(np.longdouble) * TURN
    sine, cosine = np.sin(rest), np.cos(rest)
    odd = np.abs(quarters) == 1.0
    exact_cosine = np.where(odd, -quarters * sine, np.where(quarters == 0.0, cosine, -cosine))
    exact_sine = np.where(odd, quarters * cosine, np.where(quarters == 0.0, sine, -sine))
    for found, exact in zip(cosine_and_sine(turns), (exact_cosine, exact_sine), strict=True):
        units = np.abs(found - exact) / np.spacing(np.abs(exact.astype(np.float64)))
        assert 0.5 < units.max() < 2.0


def test_exact_where_it_can_be() -> None:
    cosine, sine = cosine_and_sine(np.array([0.0, 0.25, 0.5, -0.25, -0.5, 3.0, 1e15 + 0.5, 2.0**60]))
    np.testing.assert_array_equal(cosine, [1.0, 0.0, -1.0, 0.0, -1.0, 1.0, -1.0, 1.0])
    np.testing.assert_array_equal(sine, [0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0])


def test_a_turn_more_changes_nothing(rng: np.random.Generator) -> None:
    turns = rng.integers(-(2**30), 2**30, 1000) / 2.0**31
    for whole in (1.0, -3.0, 2.0**20):
        np.testing.assert_array_equal(cosine_and_sine(turns + whole), cosine_and_sine(turns))


def test_what_is_not_finite_is_nowhere_on_the_circle() -> None:
    for values in cosine_and_sine(np.array([np.inf, -np.inf, np.nan])):
        assert np.isnan(values).all()


def test_bits_do_not_depend_on_place(rng: np.random.Generator) -> None:
    turns = rng.uniform(-2.0, 2.0, 1000)
    whole = np.stack(cosine_and_sine(turns))
    for start, step in ((0, 1), (1, 1), (3, 7)):
        np.testing.assert_array_equal(np.stack(cosine_and_sine(turns[start::step])), whole[:, start::step])
