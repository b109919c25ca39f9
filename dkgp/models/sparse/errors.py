"""Roundings of sums with K(X, Z): sizes of what is summed, by samples and by prototypes.

An entry k(x, z) is at most s_x s_z, s the root of k at a point, and off by at most eps s_x s_z (e_x + e_z), e from
`TileEvaluator.row_errors`. A sum of m products, in any order, is off by (m + 2) u times the sum of their sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dkgp.data.types import LEAST_BLOCKS
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.rounding import BLOCK_ROWS, EPS, EVALUATION, UNIT, highest_prior, sum_roundings
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.tasks import LARGEST_PIECE, SMALLEST_PIECE
from dkgp.operators.exact_sums import UNIT_SAMPLES, unit_count


@dataclass(frozen=True)
class Points:
    """Sizes of points in bounds on roundings: k(x, x), and the errors of their rows."""

    prior: FloatArray  # (r,): k(x, x), as computed
    errors: FloatArray  # (r,): see `TileEvaluator.row_errors`
    highest: FloatArray  # (r,): upper bounds on k(x, x)

    @classmethod
    def of(cls, kernel: Kernel, evaluator: TileEvaluator, inputs: FloatArray) -> Points:
        """Of inputs (r, d)."""
        prior = np.asarray(kernel.diagonal(inputs), dtype=np.float64)
        return cls(prior, evaluator.row_errors(inputs), highest_prior(kernel, prior))

    @cached_property
    def scale(self) -> FloatArray:
        """s: (r,)."""
        return np.asarray(np.sqrt(self.highest) * (1.0 + EPS))

    def size(self, weights: FloatArray) -> FloatArray:
        """Sum s |w| for weights (r, t): (t,)."""
        return np.asarray(self.scale @ np.abs(weights))

    def spread(self, weights: FloatArray) -> FloatArray:
        """Sum s e |w|: (t,)."""
        return np.asarray((self.scale * self.errors) @ np.abs(weights))


@dataclass(frozen=True)
class SampleErrors:
    """All samples and the prototypes of one model."""

    samples: Points
    prototypes: Points

    @classmethod
    def of(cls, operator: BlockedKernelOperator, prototypes: FloatArray) -> SampleErrors:
        """Of an operator's samples: one round, and no kernel entries."""
        prior = operator.prior()
        return cls(
            Points(prior, operator.row_errors(), highest_prior(operator.kernel, prior)),
            Points.of(operator.kernel, operator.double, prototypes),
        )

    @property
    def m(self) -> int:
        """Prototypes."""
        return len(self.prototypes.prior)

    def products(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Bound on errors of K_nm W for W (m, t), as a(t) s + b(t) s e over the samples: (t,) and (t,)."""
        size, spread = self.prototypes.size(weights), self.prototypes.spread(weights)
        return EVALUATION * ((self.m + 4) * UNIT * size + EPS * spread), EVALUATION * EPS * size

    def projections(self, vectors: FloatArray) -> FloatArray:
        """Bound on errors of K_mn V for V (n, t), over s of each prototype: (t,)."""
        size, spread = self.samples.size(vectors), self.samples.spread(vectors)
        largest_error = float(self.prototypes.errors.max())
        relative = sample_sum_roundings(len(vectors)) * UNIT + EPS * largest_error
        return np.asarray(EVALUATION * (relative * size + EPS * spread))


def sample_sum_roundings(n: int) -> float:
    """Roundings on the way of a term into a sum over n samples: in a piece, in any order, of the pieces of a unit.

    Units are added exactly; three for the sum of digits, the last of which has room for the digits that are cut off
    (Lemma 2b).
    """
    blocks = math.ceil(max(LEAST_BLOCKS, math.ceil(n / UNIT_SAMPLES)) / unit_count(n))
    pieces = min(math.ceil(n / SMALLEST_PIECE) + LEAST_BLOCKS, math.ceil(BLOCK_ROWS / SMALLEST_PIECE) * blocks)
    return sum_roundings(n, LARGEST_PIECE, pieces + 3)


def largest_residual_diagonal(
    errors: SampleErrors, whitening: Whitening, squares: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Upper bounds on e = k(x, x) - |f|^2 of all samples, and on how far each row f of F is off: (n,) and (n,).

    `whitening`: of L, with the prototypes' s. `squares` (n,): |f|^2, as computed.
    """
    samples = errors.samples
    length = np.sqrt(squares)
    off = EVALUATION * (
        whitening.solving * length
        + whitening.entries * EPS * samples.scale * (samples.errors + float(errors.prototypes.errors.max()))
    )
    # `fmax` takes 0 for what is no number: nothing is known of it.
    least = np.fmax(length * (1.0 - (errors.m + 4) * UNIT) - off, 0.0)
    return np.maximum(samples.highest - least**2 * (1.0 - 4.0 * EPS), 0.0), off
