"""Exact sums over samples of float64 numbers: integers that workers add in any order, as words or as digits.

Sums of integers depend neither on order nor on grouping, workers or retries.

**Words** (`Scale`) need an upper bound 2^e of a column's total. One word holds x as rint(x S), S = 2^(62 - e). Two
words hold it as high = rint(x S) with S = 2^(51 - e), and low = rint((x S - high) 2^50). Partial sums may wrap; totals
do not (docs/proofs.md, Lemma 2a).

**Digits** need no bound. The samples are cut into units by their number alone, and a task returns the float64 sums of
each unit. Each number is cut into digits to the base 2^48, with weights 2^(48 b - 20) for whole b, and workers add
digits of one weight as 64-bit integers. The digits of a unit's numbers reach `depth` bits below the largest of their
line, a column for instance (docs/proofs.md, Lemma 2b).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, BlockTask, Rounds, RoundTasks, split_evenly
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.executors.sums import Progress, Totals
from dkgp.errors import NumericalError
from dkgp.kernels.compiler import cached_njit
from dkgp.operators.base import FloatArray

Words = NDArray[np.int64]

# Exponent of a column whose total has no finite bound.
UNBOUNDED = 1 << 20
# Bits of S 2^e with one word and with two, and of the low word.
ONE_WORD_BITS, HIGH_BITS, LOW_BITS = 62, 51, 50
# Additions that a low word of `LOW_BITS` has room for.
FULL_ADDITIONS = 2**13


@dataclass(frozen=True)
class Scale:
    """Weights of the words of columns of numbers.

    Attributes
    ----------
    exponents : (t,) or (r, t) int64
        Exponents e, for columns or for single entries: 2^e is at least the absolute value of the total.
    words : int
        1 (a resolution of 2^(e - 62)) or 2 (2^(e - 101)).
    low_bits : int
        Bits of the low word.
    """

    exponents: NDArray[np.int64]
    words: int
    low_bits: int = LOW_BITS

    @classmethod
    def of(cls, bounds: FloatArray, words: int, additions: int = 1) -> Scale:
        """Return the scale of totals within `bounds` (upper bounds of absolute values, roundings included).

        `additions` is the number of encoded numbers that a total may add up. Zero, subnormal and huge bounds are valid.
        A column with an infinite or NaN bound decodes to NaN.
        """
        bounds = np.asarray(bounds, dtype=np.float64)
        exponents = np.frexp(bounds)[1].astype(np.int64)
        return cls(np.where(np.isfinite(bounds), exponents, UNBOUNDED), words, low_bits(additions))

    @property
    def finite(self) -> bool:
        """True if all totals have finite bounds."""
        return not self._unbounded.any()

    @property
    def _unbounded(self) -> NDArray[np.bool_]:
        return self.exponents > UNBOUNDED // 2

    def shifted(self, bits: NDArray[np.int64]) -> Scale:
        """Return the scale of rows whose exponents are smaller by `bits` (r,)."""
        return replace(self, exponents=self.exponents - bits[:, None])

    def zeros(self, rows: int) -> Words:
        """Return the words of zeros, (words, rows, t); the words of a column lie side by side."""
        return np.zeros((self.words, self.exponents.shape[-1], rows), np.int64).swapaxes(1, 2)

    def encode(self, values: FloatArray) -> Words:
        """Return the words of `values` (r, t): (words, r, t).

        Raises
        ------
        NumericalError
            A number is infinite, NaN or above the bound of its total.
        """
        total = self.zeros(len(values))
        if self.add(total, values).any():
            raise NumericalError(
                "numbers to be summed are infinite, NaN or above the bound of their sum; expected finite numbers. "
                "Check the inputs and weights for such values"
            )
        return total

    def add(self, total: Words, values: FloatArray) -> NDArray[np.int64]:
        """Add the words of `values` (r, t) to `total` (words, r, t).

        Returns
        -------
        (t,) int64
            The count of numbers in each column that are infinite, NaN or above the bound. They are not added.
        """
        refused = np.zeros(values.shape[1], np.int64)
        first, second = self._factors
        limit, weight = 2.0**self._bits, 2.0**self.low_bits
        for column in range(values.shape[1]):
            refused[column] = _add_column(
                total[0, :, column],
                total[-1, :, column],
                values[:, column],
                first[..., column],
                second[..., column],
                limit,
                weight,
                self.words == 2,
            )
        return refused

    def decode(self, total: Words) -> FloatArray:
        """Return totals as float64, (r, t): one rounding, and one of a small part with two words."""
        value = total[0].astype(np.float64)
        if self.words == 2:
            value += np.ldexp(total[1].astype(np.float64), -self.low_bits)
        with np.errstate(over="ignore"):
            result = np.ldexp(value, self.exponents - self._bits)
        return np.where(self._unbounded, np.nan, result)

    @property
    def _bits(self) -> int:
        return ONE_WORD_BITS if self.words == 1 else HIGH_BITS

    @cached_property
    def _factors(self) -> tuple[FloatArray, FloatArray]:
        """Two powers of two whose product is S, both within float64; (1 or r, t)."""
        exponents = np.atleast_2d(np.where(self._unbounded, 0, self._bits - self.exponents)).astype(np.int64)
        first = exponents // 2
        return np.ldexp(1.0, first), np.ldexp(1.0, exponents - first)


def low_bits(additions: int) -> int:
    """Return the bits of a low word that has room for so many additions."""
    return LOW_BITS - max(0, math.ceil(math.log2(max(1, additions) / FULL_ADDITIONS)))


@cached_njit(nogil=True)
def _add_column(
    high: Any, low: Any, values: Any, first: Any, second: Any, limit: float, weight: float, two: bool
) -> int:
    refused, last = 0, first.shape[0] - 1
    for i in range(values.shape[0]):
        s = min(i, last)
        # Exact unless it is far below the resolution: both factors are powers of two.
        x = values[i] * first[s] * second[s]
        if not abs(x) <= limit:
            refused += 1
            continue
        whole = np.rint(x)
        high[i] += np.int64(whole)
        if two:
            low[i] += np.int64(np.rint((x - whole) * weight))
    return refused


# Samples of a unit: the first number up to the first count of units, the second beyond it up to the last count.
SMALL_UNIT, UNIT_SAMPLES, FEWEST_UNITS, SMALL_UNITS, MOST_UNITS = 2048, 8192, 2, 64, 1024
# Tasks that many units are cut into: so many at least, which bounds the time of one, and so many a thread.
FEWEST_TASKS, TASKS_A_THREAD, UNITS_A_TASK = 64, 4, 2
# Bits of a digit, and the exponent of the digit 0. Most sums of standardised data take two digits. There is room for
# the sum of 2^14 digits.
DIGIT_BITS, OFFSET = 48, -20
# Bits below the largest number of a line that digits reach; the second for columns of raw data.
DEPTH, DATA_DEPTH = 62, 100
CHUNK = 1024

Shape: TypeAlias = tuple[int, ...]
# Part of a key: the flags of numbers that are infinite or NaN.
REFUSED = "refused"


@dataclass(frozen=True)
class Triangles:
    """Symmetric matrices (g, m, m) in C order, whose entries on the diagonal and to the right of it hold."""

    squares: FloatArray


@dataclass(frozen=True)
class RunSums:
    """Sums over samples, and perhaps rows of results, one for each sample.

    Digits reach below the largest number of a line: of one-dimensional arrays a number, of two-dimensional ones a
    column, of triangles a row; of other arrays the numbers along the last axis.
    """

    sums: Any  # arrays or `Triangles` in a tuple, or by name; of totals a tuple of arrays
    rows: FloatArray | None = None  # of neighbouring samples, in their order

    def named(self) -> Iterable[tuple[Any, Any]]:
        """Return pairs of a name and a sum."""
        return self.sums.items() if isinstance(self.sums, Mapping) else enumerate(self.sums)


def unit_count(n: int) -> int:
    """Return the number of units that n samples are cut into at most."""
    return max(FEWEST_UNITS, min(SMALL_UNITS, n // SMALL_UNIT), min(MOST_UNITS, n // UNIT_SAMPLES))


def group_units(
    units: Sequence[Any], executor: BlockExecutor, homes: Homes | None = None
) -> tuple[list[list[tuple[int, Any]]], list[str] | None]:
    """Number the units and cut them into tasks, on several workers by their `homes`; return the tasks' owners, too."""
    workers, numbered = executor.workers, list(enumerate(units))
    if homes is None or len(workers) < 2:
        threads = executor.parallelism
        tasks = min(max(FEWEST_TASKS, TASKS_A_THREAD * threads), len(units) // UNITS_A_TASK)
        return split_evenly(numbered, max(tasks, threads)), None
    groups, owners = homes.groups(workers, range(len(units)), TASKS_A_THREAD)
    return [[numbered[number] for number in group] for group in groups], owners


def exact_sums(rounds: Rounds, tasks: RoundTasks, progress: Progress | None = None, depth: int = DEPTH) -> RunSums:
    """Sum the results of a task over all units; rows follow the numbers of the units.

    `tasks.task(*arguments, [unit])` returns `[RunSums]`; `tasks.groups` are of pairs of a number and a unit. Totals of
    numbers that are infinite or NaN are NaN.
    """
    wrapped = replace(tasks, task=unit_sums_task, arguments=(tasks.task, depth, *tasks.arguments))
    return read_sums(rounds.start_total(wrapped).result(progress))


def unit_sums_task(task: BlockTask, depth: int, *arguments: Any) -> list[Totals]:
    """Return the digits of the sums that a task returns for each unit of a group, the last of `arguments`."""
    *common, units = arguments
    digits, totals = Digits(depth), {}
    for number, unit in units:
        (result,) = task(*common, [unit])
        for name, values in result.named():
            digits.add(name, values)
        if result.rows is not None:
            totals["rows", number, result.rows.shape] = np.ascontiguousarray(result.rows).view(np.int64)
        del result
    return [totals | digits.totals()]


class Digits:
    """Sums of arrays by name, as digits that reach `depth` bits below the largest number of a line."""

    def __init__(self, depth: int = DEPTH) -> None:
        self._depth = depth
        # The number of the first digit, and sums of digits from this one on: (digits, numbers).
        self._words: dict[tuple[Hashable, Shape], tuple[int, NDArray[np.int64]]] = {}
        self._refused: Totals = {}

    def add(self, name: Hashable, values: FloatArray | Triangles) -> None:
        """Add an array."""
        lines = _Lines.of(values)
        key = name, lines.shape
        if not lines.numbers:
            self._words[key] = 0, np.zeros((1, 0), np.int64)
            return
        flat = lines.flatten(values)
        firsts = np.empty((2, len(lines.starts)), np.int64)
        first, last = _scan(flat.view(np.int64), lines.starts, lines.lengths, self._depth, firsts)
        if first == _NOT_FINITE:
            finite = np.isfinite(flat)
            refused = lines.pack(~finite).astype(np.int64)
            self._refused[*key, REFUSED] = self._refused.get((*key, REFUSED), 0) + refused
            flat = np.where(finite, flat, 0.0)
            first, last = _scan(flat.view(np.int64), lines.starts, lines.lengths, self._depth, firsts)
        if key not in self._words:
            start, count = (first, max(2, first - last + 1)) if first > -_NOT_FINITE else (0, 1)
            self._words[key] = start, np.zeros((count, lines.numbers), np.int64)
        before, words = self._words[key]
        above, below = max(0, first - before), max(0, before + 1 - len(words) - last)
        if above or below:
            zeros = [np.zeros((count, lines.numbers), np.int64) for count in (above, below)]
            before, words = before + above, np.concatenate([zeros[0], words, zeros[1]])
        self._words[key] = before, words
        _add_digits(flat, (lines.starts, lines.lengths, lines.places), firsts, before, words)

    def totals(self) -> Totals:
        """Return the sums by name, shape and number of the digit."""
        sums = {(*key, first - k): row for key, (first, words) in self._words.items() for k, row in enumerate(words)}
        return sums | self._refused


def read_sums(totals: Totals) -> RunSums:
    """Return the sums of all units as float64: three roundings each, besides the digits that were cut off."""
    digits: defaultdict[tuple[int, Shape], dict[Any, NDArray[np.int64]]] = defaultdict(dict)
    rows = {}
    for key in list(totals):
        name, shape, digit = cast("tuple[Any, Any, Any]", key)
        if name == "rows":
            rows[shape] = totals.pop(key).view(np.float64).reshape(digit)
        else:
            digits[name, shape][digit] = totals.pop(key)
    sums = [_Lines.named(shape).unflatten(_value(words)) for (_, shape), words in sorted(digits.items())]
    return RunSums(tuple(sums), np.concatenate([rows[number] for number in sorted(rows)]) if rows else None)


@dataclass(frozen=True)
class _Lines:
    """Lines of an array's numbers in C order, and their places in its words."""

    shape: Shape  # negative where triangles are meant
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: NDArray[np.int64]
    numbers: int

    @staticmethod
    def of(values: FloatArray | Triangles) -> _Lines:
        shape = (-1, *values.squares.shape[:2]) if isinstance(values, Triangles) else values.shape
        return _Lines.named(shape)

    @staticmethod
    @lru_cache(maxsize=256)
    def named(shape: Shape) -> _Lines:
        if shape[0] < 0:
            _, count, m = shape
            line = np.tile(np.arange(m), count)
            starts, lengths = np.arange(count * m) * m + line, m - line
        else:
            length = 1 if len(shape) == 1 else shape[0] if len(shape) == 2 else shape[-1]
            count = math.prod(shape) // max(1, length)
            starts, lengths = np.arange(count) * length, np.full(count, length)
        ends = np.cumsum(lengths)
        return _Lines(shape, starts, lengths, ends - lengths, int(ends[-1]) if len(ends) else 0)

    def flatten(self, values: FloatArray | Triangles) -> FloatArray:
        """Return the numbers line after line."""
        if isinstance(values, Triangles):
            return values.squares.reshape(-1)
        return np.ascontiguousarray(values.T if values.ndim == 2 else values, dtype=np.float64).reshape(-1)

    def pack(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of the lines alone."""
        if self.shape[0] >= 0:
            return flat
        return flat[np.arange(self.numbers) + np.repeat(self.starts - self.places, self.lengths)]

    def unflatten(self, packed: FloatArray) -> FloatArray:
        """Return an array in C order; matrices whole."""
        shape = self.shape
        if shape[0] >= 0:
            return np.ascontiguousarray(packed.reshape(shape[::-1]).T) if len(shape) == 2 else packed.reshape(shape)
        squares = np.empty(shape[1:] + shape[2:])
        _fill_squares(packed, squares)
        return squares


def _value(words: dict[Any, NDArray[np.int64]]) -> FloatArray:
    """Sums from digits: these are carried, so that all but the first are at least zero, and added from the first."""
    refused = words.pop(REFUSED, None)
    first, last = max(words, default=0), min(words, default=0)
    numbers = len(next(iter(words.values()))) if refused is None else len(refused)
    parts = [
        np.require(words.get(digit, np.zeros(numbers, np.int64)), requirements="W") for digit in range(last, first + 1)
    ]
    for low, high in pairwise(parts):
        _carry(low, high)
    result = np.zeros(numbers)
    for digit, part in zip(range(first, last - 1, -1), reversed(parts), strict=True):
        exponent = DIGIT_BITS * digit + OFFSET
        _add_weighted(result, part, math.ldexp(1.0, exponent // 2), math.ldexp(1.0, exponent - exponent // 2))
    if refused is not None:
        result[refused > 0] = np.nan
    return result


_NOT_FINITE = 1 << 40


@cached_njit(nogil=True)
def _scan(bits: Any, starts: Any, lengths: Any, depth: int, firsts: Any) -> Any:
    """Put the first digit of each line and the count of its digits; return the first and the last digit of all."""
    first, last = np.int64(-_NOT_FINITE), np.int64(_NOT_FINITE)
    for line in range(len(starts)):
        most: Any = np.int64(0)
        for i in range(starts[line], starts[line] + lengths[line]):
            most = max(most, bits[i] & 0x7FFFFFFFFFFFFFFF)
        firsts[1, line] = 0
        if most >= 0x7FF0000000000000:
            return _NOT_FINITE, 0
        if most > 0:
            # All numbers of the line are below 2^exponent.
            exponent = max(most >> 52, 1) - 1022
            firsts[0, line] = (exponent - OFFSET + DIGIT_BITS - 1) // DIGIT_BITS - 1
            used = exponent - (DIGIT_BITS * firsts[0, line] + OFFSET)
            firsts[1, line] = 1 + (depth - used + DIGIT_BITS - 1) // DIGIT_BITS
            first = max(first, firsts[0, line])
            last = min(last, firsts[0, line] - firsts[1, line] + 1)
    return first, last


@cached_njit(nogil=True)
def _add_digits(values: Any, lines: Any, firsts: Any, before: int, words: Any) -> None:
    """Add the digits of all lines; products with powers of two and truncations are exact."""
    rest = np.empty(CHUNK)
    starts, lengths, places = lines
    for line in range(len(starts)):
        exponent = -(DIGIT_BITS * firsts[0, line] + OFFSET) if firsts[1, line] else 0
        factor = math.ldexp(1.0, exponent // 2)
        further = math.ldexp(1.0, exponent - exponent // 2)
        for begin in range(0, lengths[line] if firsts[1, line] else 0, CHUNK):
            size, at = min(CHUNK, lengths[line] - begin), places[line] + begin
            for i in range(size):
                rest[i] = values[starts[line] + begin + i] * factor * further
            for k in range(firsts[1, line]):
                sums = words[before - firsts[0, line] + k]
                for i in range(size):
                    digit = np.int64(rest[i])
                    sums[at + i] += digit
                    rest[i] = (rest[i] - digit) * 2.0**DIGIT_BITS


@cached_njit(nogil=True)
def _carry(low: Any, high: Any) -> None:
    for i in range(len(low)):
        high[i] += low[i] >> DIGIT_BITS
        low[i] &= (1 << DIGIT_BITS) - 1


@cached_njit(nogil=True)
def _add_weighted(result: Any, part: Any, factor: float, further: float) -> None:
    for i in range(len(part)):
        result[i] += np.float64(part[i]) * factor * further


@cached_njit(nogil=True)
def _fill_squares(packed: Any, squares: Any) -> None:
    place = 0
    for g in range(squares.shape[0]):
        for i in range(squares.shape[1]):
            for j in range(i, squares.shape[1]):
                squares[g, i, j] = squares[g, j, i] = packed[place + j - i]
            place += squares.shape[1] - i
