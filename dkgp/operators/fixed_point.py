"""Exact sums of float64 numbers: each number becomes one or two int64 words of fixed weight.

Sums of words are exact, so they depend neither on order nor on grouping, workers or retries. With an upper bound
2^e of a column's total, one word holds x as rint(x S), S = 2^(62 - e). Two words hold it as high = rint(x S) with
S = 2^(51 - e), and low = rint((x S - high) 2^50). Partial sums may wrap; totals do not (docs/proofs.md, Lemma 2a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import NumericalError
from dkgp.kernels.tiles.code_cache import cached_njit
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
