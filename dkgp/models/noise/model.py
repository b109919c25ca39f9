"""Noise that depends on the inputs: its variance at any input, as a value that hyperparameters and models carry.

log s2(x) = b + x'w, or with a Gaussian process's mean in the place of x'w, b + sum_j a_j k(x, z_j). Outside of what the
samples showed it stays at the ends of what they showed: an exponential must not run away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.models.rounding import outward

# Those that are looked for, and what Student's t makes of new observations: the same everywhere.
KINDS = ("linear", "gp")
ALL_KINDS = (*KINDS, "student-t")
_PIECE_ROWS = 4096


@dataclass(frozen=True)
class NoiseModel:
    """The variance of the noise at standardised inputs, on the scale of standardised targets.

    Parameters
    ----------
    kind : {"linear", "gp", "student-t"}
        Whether log s2 is a linear function of the inputs, or the mean of a Gaussian process; or that of
        `StudentT.of_observations`, a linear one whose weights are zero.
    offset : float
        b.
    weights : tuple of float
        w (d,), or a (q,) of a Gaussian process.
    lowest, highest : float
        The least and the greatest variance: of the samples that it was found from.
    kernel : Kernel, optional
        k of a Gaussian process.
    basis : tuple of q tuples, optional
        Its points z_j, (q, d).

    Raises
    ------
    InputError
        Another kind, numbers that are not finite, or shapes that do not go together.
    """

    kind: str
    offset: float
    weights: tuple[float, ...]
    lowest: float
    highest: float
    kernel: Kernel | None = None
    basis: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in ALL_KINDS:
            raise InputError(f"a noise model's kind is one of {', '.join(ALL_KINDS)}; got {self.kind!r}")
        numbers = [self.offset, *self.weights, self.lowest, self.highest, *(z for row in self.basis or () for z in row)]
        if not all(map(math.isfinite, numbers)):
            raise InputError("a noise model's numbers must be finite; tune again to have it written anew")
        if not 0.0 < self.lowest <= self.highest:
            raise InputError(
                f"a noise model's least variance must be positive and at most its greatest; got {self.lowest:g} and "
                f"{self.highest:g}"
            )
        if self.kind == "gp" and (
            self.kernel is None
            or self.basis is None
            or len(self.basis) != len(self.weights)
            or {len(row) for row in self.basis} != {self.kernel.n_features}
        ):
            raise InputError(
                f"a noise model of kind gp needs a kernel, and as many points of its features as its "
                f"{len(self.weights)} weights; tune again to have it written anew"
            )

    @property
    def n_features(self) -> int:
        """Number of features d that it expects."""
        return len(self.weights) if self.kernel is None else self.kernel.n_features

    def variances(self, inputs: FloatArray) -> FloatArray:
        """The noise variances s2(x) at standardised inputs (m, d): (m,)."""
        if inputs.ndim != 2 or inputs.shape[1] != self.n_features:
            raise InputError(f"the noise model is of {self.n_features} features; got inputs of shape {inputs.shape}")
        result = np.empty(len(inputs))
        for start in range(0, len(inputs), _PIECE_ROWS):
            rows = slice(start, start + _PIECE_ROWS)
            result[rows] = self._in_piece(np.asarray(inputs[rows], dtype=np.float64))
        return result

    def beyond_least_of(self, dataset: Dataset) -> FloatArray:
        """As `beyond_least`, of all samples of a data set, read chunk by chunk: (n,)."""
        return np.concatenate([self.beyond_least(dataset.inputs(*rows)) for rows in dataset.row_chunks()])

    def beyond_least(self, inputs: FloatArray) -> FloatArray:
        """By how much the variances at inputs (m, d) exceed `lowest`, the noise that all samples have: (m,), >= 0."""
        return np.asarray(np.maximum(self.variances(inputs) - self.lowest, 0.0))

    def widened(self, lower: FloatArray, upper: FloatArray, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Intervals of variances at inputs (m, d) with the noise there in the place of `lowest`: (m,) both."""
        beyond = self.beyond_least(inputs)
        less, more = outward(beyond, beyond)
        return outward(lower + less, upper + more)

    def _in_piece(self, inputs: FloatArray) -> FloatArray:
        columns = inputs if self.kernel is None else self.kernel.matrix(inputs, np.array(self.basis))
        log_variance = np.full(len(inputs), self.offset)
        # Column by column: no bit of a row depends on the rows beside it.
        for column, weight in zip(columns.T, self.weights, strict=True):
            log_variance += weight * column
        inside = np.clip(log_variance, math.log(self.lowest), math.log(self.highest))
        return np.asarray(np.clip(np.exp(inside), self.lowest, self.highest))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` is the inverse."""
        document: dict[str, Any] = {
            "kind": self.kind,
            "offset": self.offset,
            "weights": list(self.weights),
            "lowest": self.lowest,
            "highest": self.highest,
        }
        if self.kernel is not None and self.basis is not None:
            document |= {"kernel": self.kernel.to_json(), "basis": [list(row) for row in self.basis]}
        return document

    @classmethod
    def from_json(cls, document: object) -> NoiseModel:
        """Rebuild from `to_json`'s form; `InputError` for another."""
        if not isinstance(document, Mapping):
            raise InputError(f"a noise model must be a JSON object; got {type(document).__name__}")
        missing = [name for name in ("kind", "offset", "weights", "lowest", "highest") if name not in document]
        if missing:
            raise InputError(f"a noise model needs {', '.join(missing)}, too; got {', '.join(sorted(document))}")
        try:
            numbers = {name: float(document[name]) for name in ("offset", "lowest", "highest")}
            weights, basis = _row(document["weights"]), document.get("basis")
            points = None if basis is None else tuple(_row(row) for row in basis)
        except (TypeError, ValueError) as error:
            raise InputError(f"a noise model's offset, weights, bounds and basis must be numbers: {error}") from None
        kernel = None if document.get("kernel") is None else kernel_from_json(document["kernel"])
        return cls(str(document["kind"]), weights=weights, kernel=kernel, basis=points, **numbers)

    @classmethod
    def held(cls, document: object) -> NoiseModel | None:
        """As `from_json`; None of None."""
        return None if document is None else cls.from_json(document)


def _row(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
