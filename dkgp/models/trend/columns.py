"""Columns h(x) of a parametric mean: a constant, and the features.

They stand beside the targets as further right-hand sides of the one solve.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError

# centred: the targets' average is taken off, and that is all; the others are found under the kernel.
MeanKind: TypeAlias = Literal["centred", "constant", "linear"]
MEAN_KINDS: tuple[MeanKind, ...] = ("centred", "constant", "linear")
CENTRED: MeanKind = "centred"
# Squared cosine-like share of a column that the others leave: below, coefficients would be rounding.
_LEAST_EIGENVALUE = 1e-12


def checked_mean(mean: str) -> MeanKind:
    """Return the kind of a mean; `InputError` for another."""
    for kind in MEAN_KINDS:
        if mean == kind:
            return kind
    raise InputError(f"`mean` is one of {', '.join(MEAN_KINDS)}; got {mean!r}")


def count_of(mean: MeanKind, n_features: int) -> int:
    """Number of columns q: none of a centred mean, one of a constant, d + 1 of a linear one."""
    return {"centred": 0, "constant": 1, "linear": n_features + 1}[mean]


def columns_at(mean: MeanKind, inputs: FloatArray) -> FloatArray:
    """h(x)' at standardised inputs (r, d): (r, q), one first, then the features."""
    ones = np.ones((len(inputs), 1))
    return {"centred": ones[:, :0], "constant": ones, "linear": np.column_stack([ones, inputs])}[mean]


def columns_of(mean: MeanKind, dataset: Dataset) -> FloatArray:
    """H of all samples of a data set: (n, q)."""
    return np.concatenate([columns_at(mean, dataset.inputs(*rows)) for rows in dataset.row_chunks()])


def right_sides(mean: MeanKind, dataset: Dataset) -> FloatArray:
    """[y, H], the right-hand sides of a training solve: (n, p + q), for a centred mean the targets alone.

    Raises `InputError` where the columns of the mean depend on each other.
    """
    targets = dataset.all_targets()
    if mean == CENTRED:
        return targets
    columns = columns_of(mean, dataset)
    require_independent(columns, dataset.feature_names)
    return np.column_stack([targets, columns])


def require_independent(columns: FloatArray, feature_names: tuple[str, ...]) -> None:
    """Refuse columns H (n, q) of which one is a sum of the others; `InputError`."""
    n, q = columns.shape
    if n <= q:
        raise InputError(
            f"a mean of {q} coefficients needs more than {q} samples; got {n}. Take `mean` constant, or more samples"
        )
    lengths = np.linalg.norm(columns, axis=0)
    values, vectors = np.linalg.eigh((columns / lengths).T @ (columns / lengths))
    if values[0] < _LEAST_EIGENVALUE:
        names = ("the constant", *feature_names)
        weights = np.abs(vectors[:, 0])
        involved = [names[index] for index in np.flatnonzero(weights > 0.05 * weights.max())]
        raise InputError(
            f"a linear mean cannot tell {' and '.join(involved)} apart: each is a sum of the others. Leave one of the "
            "features out, or take `mean` constant"
        )
