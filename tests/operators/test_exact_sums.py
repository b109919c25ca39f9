"""Exact sums: the same bits in any order, cut and number of workers, within the bound of the proof."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import RoundTasks, split_evenly
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.executors.sums import Totals, add_totals
from dkgp.errors import NumericalError
from dkgp.operators.exact_sums import (
    DATA_DEPTH,
    DEPTH,
    DIGIT_BITS,
    FULL_ADDITIONS,
    HIGH_BITS,
    LOW_BITS,
    MOST_UNITS,
    Digits,
    RunSums,
    Scale,
    Triangles,
    exact_sums,
    group_units,
    low_bits,
    read_sums,
    unit_count,
)

U = Fraction(1, 2**53)
SHAPES = [(7,), (40, 3), (1, 1), (2, 3, 5), (2, 2, 4, 3), (0, 4), (3, 0), (0,)]


def digits_of(*values: Any, depth: int = DEPTH) -> Totals:
    digits = Digits(depth)
    for each in values:
        digits.add(0, each)
    return digits.totals()


def total_of(*parts: Totals) -> NDArray[np.float64]:
    (result,) = read_sums(add_totals(*parts)).sums
    return np.asarray(result)


def lines_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest number of each number's line."""
    sizes = np.abs(values)
    if values.ndim == 1:
        return sizes
    return np.broadcast_to(sizes.max(axis=0 if values.ndim == 2 else -1, initial=0.0, keepdims=True), values.shape)


def check(parts: list[NDArray[np.float64]], found: NDArray[np.float64], depth: int) -> None:
    """Lemma 2b, number by number, in exact arithmetic."""
    lines = [lines_of(part) for part in parts]
    for place in np.ndindex(found.shape):
        exact = sum((Fraction(float(part[place])) for part in parts), Fraction(0))
        cut = sum((Fraction(float(line[place])) for line in lines), Fraction(0)) * Fraction(2) ** (1 - depth)
        result = Fraction(float(found[place]))
        assert abs(result - exact) <= 3 * U * (abs(result) + cut) + cut + Fraction(2) ** -1074


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_those_of_fractions_in_any_order(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    parts = [rng.standard_normal(shape) * 10.0 ** rng.uniform(-12, 12) for _ in range(9)]
    found = total_of(*(digits_of(part) for part in parts))
    assert found.shape == shape
    check(parts, found, DEPTH)
    for _ in range(3):
        rng.shuffle(parts)  # type: ignore[arg-type]
        cut = int(rng.integers(1, 8))
        again = total_of(digits_of(*parts[cut:]), digits_of(*parts[:cut]))
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("depth", [DEPTH, DATA_DEPTH])
@pytest.mark.parametrize("kind", ["weights", "alternating", "borders", "subnormal", "largest"])
def test_hostile_numbers(rng: np.random.Generator, kind: str, depth: int) -> None:
    n, t = 40, 4
    values = rng.standard_normal((n, 6, t))
    if kind == "weights":  # over 300 orders of magnitude: within columns, between columns, between units
        values *= 10.0 ** rng.uniform(-150, 150, (n, 6, t))
    elif kind == "alternating":  # nearly all of it cancels
        values[1::2] = -values[::2] * (1.0 + 2.0**-52)
        values *= 10.0 ** rng.integers(-140, 140, (1, 1, t))
    elif kind == "borders":  # at and beside powers of two, where digits end
        values = np.ldexp(1.0 + 2.0**-52 * rng.integers(-1, 2, values.shape), rng.integers(-100, 100, values.shape))
        values *= rng.choice([-1.0, 1.0], values.shape)
    elif kind == "subnormal":
        values = np.ldexp(values, -1060)
    else:
        values = np.clip(values, -0.9, 0.9) * np.finfo(float).max
        values[1::2] = -values[::2]
        values[0] /= 2.0
    parts = list(values)
    found = total_of(digits_of(*parts, depth=depth))
    check(parts, found, depth)
    np.testing.assert_array_equal(total_of(*(digits_of(part, depth=depth) for part in reversed(parts))), found)


def test_a_column_has_the_same_bits_beside_others(rng: np.random.Generator) -> None:
    parts = [rng.standard_normal((30, 3)) * [1e-200, 1.0, 1e200] for _ in range(5)]
    found = total_of(digits_of(*parts))
    for column in range(3):
        np.testing.assert_array_equal(
            total_of(digits_of(*(part[:, [column]] for part in parts)))[:, 0], found[:, column]
        )


def test_numbers_far_below_the_largest_of_their_column_are_kept_to_the_depth() -> None:
    """Relative to the largest number, not to themselves; alone in a column they are kept whole."""
    small = 2.0**-45 * (1.0 + 2.0**-50)
    found = total_of(digits_of(np.array([[1.0], [small]])))
    assert 0.0 < abs(found[1, 0] - small) <= 2.0 ** (1 - DEPTH)
    assert total_of(digits_of(np.array([[1.0], [small]]), depth=DATA_DEPTH))[1, 0] == small
    assert total_of(digits_of(np.array([[1.0, small]])))[0, 1] == small
    assert total_of(digits_of(np.array([1.0, small])))[1] == small


def test_triangles_are_symmetric_matrices(rng: np.random.Generator) -> None:
    squares = [rng.standard_normal((2, 6, 6)) for _ in range(4)]
    symmetric = [np.triu(each) + np.triu(each, 1).transpose(0, 2, 1) for each in squares]
    # Numbers below the diagonal do not count.
    for each in squares:
        each[:, np.tril_indices(6, -1)[0], np.tril_indices(6, -1)[1]] = np.nan
    found = total_of(digits_of(*map(Triangles, squares)))
    np.testing.assert_array_equal(found, found.transpose(0, 2, 1))
    np.testing.assert_allclose(found, sum(symmetric), rtol=0.0, atol=1e-14)
    assert sum(words.size for words in digits_of(Triangles(squares[0])).values()) <= 3 * 2 * 21


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("triangles", [False, True])
def test_numbers_that_are_not_finite_are_nan_and_change_no_other(
    rng: np.random.Generator, bad: float, triangles: bool
) -> None:
    wrap: Any = (lambda array: Triangles(array[None])) if triangles else (lambda array: array)
    parts = [rng.standard_normal((5, 5)) for _ in range(3)]
    expected = total_of(digits_of(*map(wrap, parts)))
    damaged = [part.copy() for part in parts]
    damaged[1][1, 3] = bad
    found = total_of(digits_of(wrap(damaged[0])), digits_of(*map(wrap, damaged[1:])))
    expected[(0, [1, 3], [3, 1]) if triangles else (1, 3)] = np.nan
    # The damaged number is zero to the others of its line, whose largest it may have been.
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert not np.isfinite(total_of(digits_of(*[np.full((1, 1), 1.7e308)] * 3)))


def test_as_many_units_as_there_may_be_do_not_overflow() -> None:
    """All digits as large as they get, of one sign and of both."""
    largest = np.array([np.nextafter(2.0 ** (DIGIT_BITS - 20), 0.0)])
    for sign in (1.0, -1.0):
        one = digits_of(sign * largest)
        many = {key: words * 2**14 for key, words in one.items()}
        assert total_of(many)[0] == sign * largest[0] * 2**14
    assert MOST_UNITS <= 2**14


class Unit:
    """Rows of samples."""

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self.rows = rows


def moments(power: int, units: list[Unit]) -> list[RunSums]:
    return [RunSums(((each.rows**power).sum(axis=0), each.rows.T @ each.rows), 2.0 * each.rows) for each in units]


def test_units_are_cut_by_the_samples_alone() -> None:
    assert [unit_count(n) for n in (1, 500_000, 600_000, 10**7, 10**9)] == [2, 64, 73, 1024, 1024]


def test_bits_depend_neither_on_threads_nor_on_cuts_nor_on_homes(rng: np.random.Generator) -> None:
    units = [Unit(rng.standard_normal((int(size), 3)) * 10.0**size) for size in rng.integers(1, 9, 37)]
    expected: RunSums | None = None
    for threads, cut in itertools.product((1, 2, 3), (1, 5, 37)):
        executor = LocalExecutor(threads)
        groups = split_evenly(list(enumerate(units)), cut)
        rng.shuffle(groups)  # type: ignore[arg-type]
        told: list[tuple[int, int]] = []
        tasks = RoundTasks(moments, (3,), groups)
        found = exact_sums(executor, tasks, lambda done, of, told=told: told.append((done, of)))
        executor.close()
        assert told[-1] == (len(groups), len(groups))
        assert found.rows is not None
        np.testing.assert_array_equal(found.rows, np.concatenate([2.0 * unit.rows for unit in units]))
        if expected is not None:
            for mine, theirs in zip(found.sums, expected.sums, strict=True):
                np.testing.assert_array_equal(mine, theirs)
        expected = found
    assert expected is not None
    exact = [math.fsum((unit.rows**3).sum(axis=0)[j] for unit in units) for j in range(3)]
    np.testing.assert_allclose(expected.sums[0], exact, rtol=4e-16)


def test_groups_follow_the_homes_of_their_units() -> None:
    class Two(LocalExecutor):
        workers = {"a": 2, "b": 1}  # noqa: RUF012

    executor = Two(1)
    units = [str(number) for number in range(200)]
    homes = Homes(200)
    groups, owners = group_units(units, executor, homes)
    home = dict(enumerate(homes.owners(executor.workers)))
    assert owners is not None
    assert all(home[number] == owner for group, owner in zip(groups, owners, strict=True) for number, _ in group)
    assert sorted(pair for group in groups for pair in group) == sorted((n, str(n)) for n in range(200))
    alone, nobody = group_units(units, executor)
    assert nobody is None
    assert [pair for group in alone for pair in group] == list(enumerate(units))
    assert len(alone) == 64
    executor.close()


# Fixed-point words: exact sums in any order, within the bound that Lemma 2a states, for any size of numbers.


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
