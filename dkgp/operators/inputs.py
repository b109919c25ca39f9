"""Sources of the rows of X: anything that can read a range of standardised rows."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.data.stores.row_arrays import MemoryArray
from dkgp.errors import InputError


class InputSource(Protocol):
    """Rows of standardised inputs, readable by range. Must pickle to something small: it travels with every task."""

    @property
    def n_samples(self) -> int:
        """Number of rows n."""

    @property
    def n_features(self) -> int:
        """Number of features d."""

    def inputs(self, start: int, stop: int) -> NDArray[np.float64]:
        """Rows start:stop: (stop - start, d) float64."""


def centre_of(source: InputSource) -> NDArray[np.float64] | None:
    """The point taken off a source's rows before distances are; None where their mean is zero, as a data set's.

    It belongs to the source, so that every process evaluates an entry to the same bits.
    """
    centre: NDArray[np.float64] | None = getattr(source, "centre", None)
    return centre


class ArrayInputs(MemoryArray):
    """An array in this process's memory as an input source.

    Parameters
    ----------
    X : (n, d) array_like
        Already standardised; finite.

    Attributes
    ----------
    centre : (d,) float64 or None
        The features' means, zero where a mean lies within the feature's spread and nothing is gained; None for all so.
    """

    def __init__(self, X: ArrayLike) -> None:
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or 0 in values.shape:
            raise InputError(f"inputs must be an array of shape (n, d) with n, d >= 1; got shape {values.shape}")
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise InputError(f"inputs must be finite; got {values[row, column]} in row {row}, column {column}")
        super().__init__(values)
        self.centre = _centre(values)

    @property
    def n_samples(self) -> int:
        """Number of rows n."""
        return self.shape[0]

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self.shape[1]

    def inputs(self, start: int, stop: int) -> NDArray[np.float64]:
        """Rows start:stop, a view."""
        return self.read(start, stop)


def _centre(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0)
        far = np.isfinite(mean) & (np.abs(mean) > np.abs(values - mean).max(axis=0))
    return np.where(far, mean, 0.0) if far.any() else None
