"""Parts of an input source: all rows but those held out, and a share of them; both travel as a few numbers."""

from __future__ import annotations

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.inputs import InputSource

# Odd multipliers and shifts of the splitmix64 generator (Steele, Lea and Flood 2014).
_INCREMENT, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class ExceptRows:
    """An input source without some rows of another one; the numbers `excluded` (h,) are sorted and distinct."""

    def __init__(self, source: InputSource, excluded: IndexArray) -> None:
        if excluded.size and (np.any(np.diff(excluded) <= 0) or excluded[0] < 0 or excluded[-1] >= source.n_samples):
            raise InputError(f"rows to leave out must be sorted, distinct and in 0..{source.n_samples - 1}")
        self._source, self._excluded = source, excluded
        # How many rows are kept before each excluded one.
        self._kept_before = excluded - np.arange(len(excluded))

    @property
    def n_samples(self) -> int:
        """Number of rows, without the excluded ones."""
        return self._source.n_samples - len(self._excluded)

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self._source.n_features

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop, counted without the excluded ones: (stop - start, d) float64."""
        if start >= stop:
            return self._source.inputs(0, 0)
        first, last = self._position(start), self._position(stop - 1) + 1
        inside = self._excluded[(self._excluded >= first) & (self._excluded < last)] - first
        return np.asarray(np.delete(self._source.inputs(first, last), inside, axis=0))

    def _position(self, row: int) -> int:
        return row + int(np.searchsorted(self._kept_before, row, side="right"))


class SomeRows:
    """One row of every `every` consecutive ones of another source, each drawn at random, and the same for a `seed`."""

    def __init__(self, source: InputSource, every: int, seed: int) -> None:
        self._source, self._every, self._seed = source, every, seed

    @property
    def n_samples(self) -> int:
        """Number of rows, without the last ones that do not fill a group."""
        return self._source.n_samples // self._every

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self._source.n_features

    def rows(self, start: int, stop: int) -> IndexArray:
        """Numbers, in the source, of rows start:stop."""
        groups = np.arange(start, stop, dtype=np.uint64)
        mixed = (groups + np.uint64(self._seed << 40)) * np.uint64(_INCREMENT)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
        offsets = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(self._every)
        return np.asarray(groups * np.uint64(self._every) + offsets, dtype=np.intp)

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop: (stop - start, d) float64."""
        first = start * self._every
        return np.asarray(self._source.inputs(first, stop * self._every)[self.rows(start, stop) - first])
