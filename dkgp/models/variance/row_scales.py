"""Weights of the training samples, which bound the entries of Kbar and their errors in all proofs.

An entry k(x, x') is at most sqrt(k(x, x) k(x', x')). Its error is at most eps times this bound times the sum of the two
rows' errors (`TileEvaluator.row_errors`). Weights cover both bounds. Let t be the rows' errors, t_0 their median and m
= max(t / t_0, 1), so that t + t' <= 2 t_0 m m'. With the weights w_i = sqrt(Kbar_ii / max Kbar) m_i, an entry of Kbar
is at most largest w_i w_j. Its error is at most `entry_error` eps largest w_i w_j, entry_error = 2 t_0. Outliers, or
samples with a huge polynomial kernel, therefore do not widen the bounds of the other samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.kernels import TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.models.rounding import EPS
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext, centre_of


@dataclass(frozen=True)
class RowScales:
    """Weights of n training samples.

    Attributes
    ----------
    evaluator : TileEvaluator
        Evaluates the kernel in float64.
    prior : (n,) float64
        k(x, x) of the training samples.
    weights : (n,) float64
        w_i; see above.
    largest : float
        Upper bound on the entries of Kbar.
    typical_error : float
        t_0.
    """

    evaluator: TileEvaluator
    prior: FloatArray
    weights: FloatArray
    largest: float
    typical_error: float

    @classmethod
    def of(cls, context: BlockContext, noise_variance: float) -> RowScales:
        """Build the weights of a model's support inputs."""
        evaluator = differences(context)
        blocks = [context.bounds(block) for block in range(context.n_blocks)]
        errors = np.concatenate([evaluator.row_errors(context.source.inputs(*rows)) for rows in blocks])
        typical = float(np.median(errors))
        prior = priors(context)
        diagonal = prior * (1.0 + 2.0 * EPS * errors)
        largest = float(diagonal.max()) + noise_variance
        weights = np.sqrt((diagonal + noise_variance) / largest) * np.maximum(errors / typical, 1.0)
        return cls(evaluator, prior, np.asarray(weights), largest, typical)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.prior.nbytes + self.weights.nbytes

    @property
    def entry_error(self) -> float:
        """Bound on an entry's rounding error, in units of eps largest w_i w_j."""
        return 2.0 * self.typical_error

    @property
    def norm(self) -> float:
        """Length of the vector of weights."""
        return float(np.linalg.norm(self.weights))

    def excess(self, inputs: FloatArray) -> FloatArray:
        """Return m of rows of inputs: (t,)."""
        return np.asarray(np.maximum(self.evaluator.row_errors(inputs) / self.typical_error, 1.0))

    def share(self, highest: FloatArray, inputs: FloatArray) -> FloatArray:
        """Return the weights `share` of test samples whose k(x, x) is at most `highest`: (t,).

        |k(x, x_i)| is at most largest share w_i, and its error at most `entry_error` eps times this bound.
        """
        return np.asarray(np.sqrt(highest / self.largest) * self.excess(inputs))


def differences(context: BlockContext, precision: Precision = "double") -> TileEvaluator:
    """Return the evaluator of proofs, without the expanded form, whose error of |x|^2 eps the bounds do not include."""
    return TileEvaluator(context.kernel, precision, expanded=False, centre=centre_of(context.source))


@dataclass(frozen=True)
class ProofContext(BlockContext):
    """Context whose tasks evaluate entries as proofs do; it shares the features of the original context."""

    @classmethod
    def of(cls, context: BlockContext) -> ProofContext:
        """Return the context of proofs on the same samples."""
        return cls(context.run_id, context.source, context.kernel, context.n)

    def evaluator(self, precision: Precision) -> TileEvaluator:
        """Return the evaluator of differences."""
        return differences(self, precision)


def priors(context: BlockContext) -> FloatArray:
    """Return k(x, x) of all training samples: (n,)."""
    kernel = context.kernel
    if kernel.stationary:
        return np.full(context.n, float(kernel.diagonal(np.zeros((1, kernel.n_features)))[0]))
    bounds = [context.bounds(block) for block in range(context.n_blocks)]
    return np.concatenate([kernel.diagonal(context.source.inputs(*rows)) for rows in bounds])
