"""Arrays in a process's memory that tasks of the same process share.

They pickle to a token that only the process that holds them can redeem: tasks of an in-process cluster share the array,
and a task that strays to another process says so instead of shipping the array each round.
"""

from __future__ import annotations

import uuid
import weakref
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import ClusterError, InputError

__all__ = ["MemoryArray", "RowArray"]

_RESIDENT: weakref.WeakValueDictionary[str, MemoryArray] = weakref.WeakValueDictionary()


class RowArray(Protocol):
    """Rows of numbers, readable by range and by index; a `StoredArray` is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, columns)."""

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop)."""

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""


class MemoryArray:
    """Rows in this process's memory; `values` (n, columns) are neither copied nor written to."""

    def __init__(self, values: ArrayLike) -> None:
        self._values = np.asarray(values, dtype=np.float64)
        self.shape: tuple[int, ...] = self._values.shape
        self._token = uuid.uuid4().hex
        _RESIDENT[self._token] = self

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop), a view."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise InputError(f"Rows {start} to {stop} were asked for; there are {self.shape[0]} rows.")
        return self._values[start:stop]

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""
        return self._values[np.asarray(indices, dtype=np.intp)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _redeem, (self._token,)


def _redeem(token: str) -> MemoryArray | _Elsewhere:
    return _RESIDENT.get(token) or _Elsewhere()


class _Elsewhere:
    # Raised on use: an error already while the message is being read would cost the worker its connection.
    shape: tuple[int, ...] = (0, 0)
    n_samples = n_features = 0
    centre = None

    def read(self, start: int, stop: int) -> FloatArray:
        raise ClusterError(
            "A task asked for rows that are in another process's memory. Workers in other processes need them in a "
            "store that they can read: ingest the data first, or give the estimator `store=`, a folder or URL."
        )

    def rows(self, indices: IntArray) -> FloatArray:
        return self.read(0, 0)

    inputs = read
