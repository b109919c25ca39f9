"""Rows of numbers, readable by range and by index: in memory, of a data set, appended to others, in source units."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import ClusterError, InputError

_IN_MEMORY: weakref.WeakValueDictionary[str, MemoryArray] = weakref.WeakValueDictionary()


class RowArray(Protocol):
    """Rows of numbers, readable by range and by index; a `StoredArray` is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, columns)."""

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop)."""

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""

    def reads(self, url: str) -> bool:
        """Return True if rows lie in the store at an address."""


class MemoryArray:
    """Rows in this process's memory; `values` (n, columns) are neither copied nor written to.

    It pickles to a token of a few bytes that only this process can redeem: tasks of an in-process cluster share the
    rows, and a task in another process gets an error when it reads them.
    """

    def __init__(self, values: ArrayLike) -> None:
        self._values = np.asarray(values, dtype=np.float64)
        self.shape: tuple[int, ...] = self._values.shape

    def __reduce__(self) -> tuple[Any, ...]:
        token = self.__dict__.setdefault("_token", uuid.uuid4().hex)
        _IN_MEMORY[token] = self
        return _redeem, (token,)

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop), a view."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise InputError(f"There are {self.shape[0]} rows; got the rows {start} to {stop}.")
        return self._values[start:stop]

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""
        return self._values[np.asarray(indices, dtype=np.intp)]

    def reads(self, url: str) -> bool:
        """Return False: the rows lie in memory."""
        return False


def _redeem(token: str) -> MemoryArray | _Elsewhere:
    return _IN_MEMORY.get(token) or _Elsewhere()


class _Elsewhere:
    # Raised on use: an error already while the message is being read would cost the worker its connection.
    shape = (0,)
    n_samples = n_features = 0
    centre = None

    def read(self, *rows: Any) -> NoReturn:
        raise ClusterError(
            "A task asked for rows that are in another process's memory. Workers in other processes need them in a "
            "store that they can read: ingest the data first, or give the estimator `store=`, a folder or URL."
        )

    inputs = rows = read


class AppendedRows:
    """The rows of two arrays, one after the other."""

    def __init__(self, first: RowArray, second: RowArray) -> None:
        self.first, self.second = first, second
        self._cut = first.shape[0]
        self.shape: tuple[int, ...] = (self._cut + second.shape[0], *first.shape[1:])

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop)."""
        if stop <= self._cut:
            return self.first.read(start, stop)
        if start >= self._cut:
            return self.second.read(start - self._cut, stop - self._cut)
        return np.concatenate([self.first.read(start, self._cut), self.second.read(0, stop - self._cut)])

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""
        ordered = np.asarray(indices)
        result = np.empty((len(ordered), *self.shape[1:]))
        early = ordered < self._cut
        result[early] = self.first.rows(ordered[early])
        result[~early] = self.second.rows(ordered[~early] - self._cut)
        return result

    def reads(self, url: str) -> bool:
        """Return True if rows of either array lie in the store at an address."""
        return self.first.reads(url) or self.second.reads(url)


class InSourceUnits:
    """Rows in the units of their source, to rounding: standardised rows, which `back` maps to so many `columns`."""

    def __init__(self, rows: RowArray, back: Callable[[FloatArray], FloatArray], columns: int) -> None:
        self._rows, self._back = rows, back
        self.shape: tuple[int, ...] = (rows.shape[0], columns)

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop)."""
        return self._mapped(self._rows.read(start, stop))

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""
        return self._mapped(self._rows.rows(indices))

    def reads(self, url: str) -> bool:
        """Return True if rows lie in the store at an address."""
        return self._rows.reads(url)

    def _mapped(self, values: FloatArray) -> FloatArray:
        return self._back(values.reshape(len(values), -1))
