"""Samples of a field: places with values and their noise, one sample a place.

Replicates j at one place have the same field and micro-scale variation. Their merged sample gives the same posterior of
f: the mean value, weighted by 1 / e_j for measurement errors of variance e_j, with the error 1 / sum_j (1 / e_j). The
micro-scale variance is not averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.kriging.choices import DUPLICATES as DUPLICATES
from dkgp.kriging.choices import Duplicates as Duplicates


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples with their measurement errors.

    Attributes
    ----------
    places : (n, k)
        See `Space.places`; before the anisotropy is removed.
    values : (n, p)
    errors : (n,)
        Variances of the measurement errors.
    microscale : float
        Variance of the micro-scale variation.
    covariates : (n, c)
    n_merged : int
        Samples that were merged into another one.
    """

    places: FloatArray
    values: FloatArray
    errors: FloatArray
    microscale: float
    covariates: FloatArray
    n_merged: int = 0

    @property
    def noise(self) -> FloatArray:
        """The noise of each sample: measurement error and micro-scale variation (n,)."""
        return self.errors + self.microscale

    def once_a_place(self, how: Duplicates = "merge") -> Samples:
        """Return the samples with one a place, in order of first appearance.

        Parameters
        ----------
        how : {"merge", "keep", "mean", "first", "refuse"}
            "merge": exactly, by the errors; "keep": leave them as they are; "mean": take the mean as one sample with
            the mean error; "first": drop the later ones; "refuse": raise an error.

        Raises
        ------
        InputError
            Replicates with "refuse"; other values at one place without a measurement error; other covariates at one
            place; "keep" with micro-scale variation, which replicates share.
        """
        if how not in DUPLICATES:
            raise InputError(f"`duplicates` is one of {', '.join(DUPLICATES)}; got {how!r}")
        first, group = groups_of(self.places)
        n, m = len(self.places), len(first)
        if n == m:
            return self
        if how == "refuse":
            row = int(np.setdiff1d(np.arange(n), first)[0])
            raise InputError(
                f"{n - m} of {n} samples lie at the place of another one, first in row {row}, at "
                f"{_shown(self.places[row])}. Pass `duplicates` merge to merge them"
            )
        if how == "keep":
            if self.microscale:
                raise InputError(
                    "`duplicates` keep treats the micro-scale variation of replicates as independent, but they share "
                    "it; pass `duplicates` merge"
                )
            self._require_agreement(first, group)
            return self
        kept = replace(
            self,
            places=self.places[first],
            values=self.values[first],
            errors=self.errors[first],
            covariates=self.covariates[first],
            n_merged=n - m,
        )
        if how == "first":
            return kept
        if (self.covariates != kept.covariates[group]).any():
            row = int(np.argmax((self.covariates != kept.covariates[group]).any(axis=1)))
            raise InputError(
                f"samples at {_shown(self.places[row])} have different covariates; expected one value per place"
            )
        count = np.bincount(group, minlength=m)
        if how == "mean":
            return replace(kept, values=_sums(self.values, group, m) / count[:, None], errors=_mean(self.errors, group))
        self._require_agreement(first, group)
        certain = self.errors == 0.0
        weights = np.where(certain, 0.0, 1.0 / np.where(certain, 1.0, self.errors))
        # A place with an observation without error has its value.
        exact = np.zeros(m, dtype=bool)
        exact[group[certain]] = True
        weights = np.where(exact[group], certain.astype(np.float64), weights)
        total = np.bincount(group, weights=weights, minlength=m)
        single = (count == 1)[:, None]
        values = np.where(single, kept.values, _sums(self.values * weights[:, None], group, m) / total[:, None])
        errors = np.where(exact, 0.0, 1.0 / total)
        return replace(kept, values=values, errors=np.where(count == 1, kept.errors, errors))

    def _require_agreement(self, first: IntArray, group: IntArray) -> None:
        """Refuse observations without error that contradict each other at one place."""
        certain = np.flatnonzero(self.errors == 0.0)
        order = certain[np.argsort(group[certain], kind="stable")]
        same = group[order][1:] == group[order][:-1]
        differs = (self.values[order][1:] != self.values[order][:-1]).any(axis=1)
        if (same & differs).any():
            at = int(np.argmax(same & differs))
            one, other = self.values[order[at], 0], self.values[order[at + 1], 0]
            reason = "the nugget is all micro-scale" if self.microscale else "they have no measurement error"
            raise InputError(
                f"2 samples at {_shown(self.places[order[at]])} have values {one:g} and {other:g}, and {reason}: no "
                "field passes through both. Give `noise`, or `duplicates` merge with a measurement error"
            )


def covariate_columns(names: Sequence[str], values: Any, n: int, point: str = "sample") -> FloatArray:
    """Return the covariates of n points, in the order of their names: (n, c).

    Parameters
    ----------
    names : sequence of str
    values : mapping, DataFrame, or sequence of array_like
        By name, or in the order of the names.
    n : int
    point : str
        The points' name in messages.

    Raises
    ------
    InputError
        Names that are missing, or values that are missing or not finite.
    """
    if not names:
        return np.zeros((n, 0))
    if values is None:
        raise InputError(f"`covariates` has values of {', '.join(names)} at every {point}; got none")
    if isinstance(values, list | tuple | np.ndarray):
        parts = list(values.T) if isinstance(values, np.ndarray) and values.ndim == 2 else list(values)
        if isinstance(values, np.ndarray) and values.ndim < 2:
            parts = [values]
        if len(parts) != len(names):
            raise InputError(f"`covariates` has {len(names)} columns, {', '.join(names)}; got {len(parts)}")
    else:
        missing = [name for name in names if name not in values]
        if missing:
            known = ", ".join(map(str, values))
            raise InputError(f"there is no {', '.join(missing)} among `covariates`; got {known or 'none'}")
        parts = [values[name] for name in names]
    columns = [numbers_of(part, f"the covariate {name}").reshape(-1) for name, part in zip(names, parts, strict=True)]
    for name, column in zip(names, columns, strict=True):
        if len(column) != n:
            raise InputError(f"the covariate {name} has {len(column)} values; expected {n}, one for each {point}")
        absent = ~np.isfinite(column)
        if absent.any():
            raise InputError(
                f"the covariate {name} is missing at {int(absent.sum())} of {n:,} {point}s, first in row "
                f"{int(np.argmax(absent))}; remove these {point}s"
            )
    return np.column_stack(columns)


def groups_of(places: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the first row of each place, in order of appearance, and each row's place: (m,) and (n,)."""
    rows = np.ascontiguousarray(places).view([("", places.dtype)] * places.shape[1]).reshape(-1)
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse.reshape(-1)]


def _sums(values: FloatArray, group: IntArray, m: int) -> FloatArray:
    return np.column_stack([np.bincount(group, weights=column, minlength=m) for column in values.T])


def _mean(values: FloatArray, group: IntArray) -> FloatArray:
    return np.asarray(np.bincount(group, weights=values) / np.bincount(group))


def _shown(place: FloatArray) -> str:
    return f"({', '.join(f'{value:.10g}' for value in place)})"
