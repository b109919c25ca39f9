"""Fixed-point words: exact sums in any order, within the bound that Lemma 2a states, for any size of numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.errors import NumericalError
from dkgp.operators.fixed_point import FULL_ADDITIONS, HIGH_BITS, LOW_BITS, Scale, low_bits

U = Fraction(1, 2**53)


def exact_sum(values: np.ndarray) -> Fraction:
    return sum((Fraction(float(value)) for value in values), Fraction(0))


def error_bound(scale: Scale, additions: int, result: float) -> Fraction:
    """The bound of Lemma 2a: half a unit of the last word each, one rounding of the result, and one of the low word."""
    (exponent,) = scale.exponents.tolist()
    top = Fraction(2) ** exponent
    subnormal = Fraction(1, 2**1075)
    if scale.words == 1:
        return additions * top / 2**63 + U * top + subnormal
    low = additions * top / 2 ** (HIGH_BITS + 1)
    return additions * top / 2 ** (HIGH_BITS + scale.low_bits + 1) + U * low + U * abs(Fraction(result)) + subnormal


ATTACKS: dict[str, Any] = {
    "alternating signs": lambda rng, n: np.where(np.arange(n) % 2 == 0, 1.0, -1.0) * (1.0 + 1e-15 * rng.random(n)),
    "300 orders of magnitude": lambda rng, n: rng.standard_normal(n) * 10.0 ** rng.uniform(-150, 150, n),
    "one sign": lambda rng, n: rng.random(n),
    "huge": lambda rng, n: rng.standard_normal(n) * 1e300,
    "subnormal": lambda rng, n: rng.integers(-9, 10, n) * 5e-324,
    "largest but one": lambda rng, n: np.full(n, np.nextafter(1.0, 0.0)),
    "zeros": lambda rng, n: np.zeros(n),
}


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS)
def test_sums_are_within_the_lemma_and_the_same_in_any_order(attack: str, words: int, rng: np.random.Generator) -> None:
    n = 400
    values = ATTACKS[attack](rng, n)
    scale = Scale.of(np.array([float(np.sum(np.abs(values)) * 1.01)]), words, n)
    found = set()
    for parts in (1, 7, n):
        total = scale.zeros(1)
        for part in np.array_split(rng.permutation(n), parts):
            mine = scale.zeros(1)
            for at in part:
                assert not scale.add(mine, values[at].reshape(1, 1)).any()
            total += mine
        found.add(scale.decode(total).tobytes())
    assert len(found) == 1
    result = float(scale.decode(total)[0, 0])
    assert abs(Fraction(result) - exact_sum(values)) <= error_bound(scale, n, result)


@pytest.mark.parametrize("words", [1, 2])
def test_ten_million_numbers_of_one_sign_do_not_overflow(words: int) -> None:
    """Each word passes through as many additions as blocks of ten million samples: simulated by multiples of words."""
    blocks = 10_000_000 // 8192 + 1
    values = np.full((1, 1), np.nextafter(1.0, 0.0))
    scale = Scale.of(np.array([blocks * 1.01]), words, blocks)
    (word,) = {scale.encode(values).tobytes()}
    total = np.frombuffer(word, np.int64).reshape(words, 1, 1) * blocks
    assert all(abs(int(each)) * blocks < 2**63 for each in np.frombuffer(word, np.int64))
    result = float(scale.decode(total)[0, 0])
    assert abs(Fraction(result) - blocks * Fraction(float(values[0, 0]))) <= error_bound(scale, blocks, result)


def test_partial_sums_may_wrap() -> None:
    scale = Scale.of(np.array([1.0]), 1)
    total = scale.zeros(1)
    for value in (0.9, 0.9, 0.9, 0.9, 0.9, -0.9, -0.9, -0.9, -0.9):
        scale.add(total, np.array([[value]]))
    assert scale.decode(total)[0, 0] == pytest.approx(0.9, rel=1e-15)


@given(st.integers(1, 2**40))
def test_the_low_word_has_room_for_all_additions(additions: int) -> None:
    bits = low_bits(additions)
    assert bits <= LOW_BITS
    assert additions * 2 ** (bits - 1) <= 2**62
    assert bits == LOW_BITS or additions * 2**bits > 2**62
    assert low_bits(FULL_ADDITIONS) == LOW_BITS


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2))
def test_one_number_comes_back(value: float, words: int) -> None:
    scale = Scale.of(np.array([abs(value)]), words)
    back = float(scale.decode(scale.encode(np.array([[value]])))[0, 0])
    assert abs(Fraction(back) - Fraction(value)) <= error_bound(scale, 1, back)
    if words == 2:
        assert back == value


def test_columns_and_rows_have_weights_of_their_own(rng: np.random.Generator) -> None:
    values = rng.standard_normal((5, 3)) * [1e-200, 1.0, 1e200]
    together = Scale.of(np.abs(values).max(axis=0), 2)
    for column in range(3):
        alone = Scale.of(np.abs(values[:, [column]]).max(axis=0), 2)
        np.testing.assert_array_equal(alone.encode(values[:, [column]]), together.encode(values)[:, :, [column]])
    bits = np.array([0, 3, 90, 0, 1])
    shifted = together.shifted(bits)
    small = np.ldexp(values, -bits[:, None])
    np.testing.assert_array_equal(shifted.encode(small), together.encode(values))
    np.testing.assert_array_equal(shifted.decode(shifted.encode(small)), small)


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.5, -1e308])
def test_numbers_without_a_word_are_counted_and_left_out(value: float, words: int) -> None:
    scale = Scale.of(np.array([1.0, 0.9]), words)
    values, total = np.array([[0.5, 0.25], [0.5, value]]), scale.zeros(2)
    assert scale.add(total, values).tolist() == [0, 1]
    np.testing.assert_array_equal(scale.decode(total), [[0.5, 0.25], [0.5, 0.0]])
    with pytest.raises(NumericalError, match=r"infinite, NaN or above the bound .* Check the inputs and weights"):
        scale.encode(values)


@pytest.mark.parametrize("bound", [np.nan, np.inf])
def test_totals_without_a_finite_bound_are_nan(bound: float) -> None:
    scale = Scale.of(np.array([1.0, bound]), 2)
    assert not scale.finite
    assert Scale.of(np.array([0.0, math.ulp(0.0), 1.7e308]), 2).finite
    found = scale.decode(scale.zeros(2))
    assert (found[:, 0] == 0.0).all()
    assert np.isnan(found[:, 1]).all()
