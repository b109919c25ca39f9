"""The fit that is reported: eq. 29 on the chosen prototypes, by triangles, whatever its condition.

Normal equations square the condition; here R of Q R = sqrt(D) [K_nm, 1, Y] is put together from the runs' own triangles
in their order, and [R; sqrt(s2) E], E'E = K_mm, is solved as a least-squares problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.folds import merge_triangles, triangle_task
from dkgp.operators.cross.runs import runs_of

# A column's own share of its length below which the others say all that float64 can tell of it.
LEAST_SHARE = 1e-12
# Runs with triangles of their own, each of so many times as many rows as columns where there are more than a few.
FEWEST_RUNS, MOST_RUNS, RUN_WIDTHS = 2, 64, 8


@dataclass(frozen=True)
class FixedSizeModel:
    """A fixed-size LS-SVM, on the standardised scale: f(x) = k_m(x)' W + b0 (eq. 33).

    Attributes
    ----------
    kernel : Kernel
    noise_variance : float
        s2 = 1 / gamma_K.
    prototypes : (k, d) float64
    weights : (k, t) float64
    intercept : (t,) float64
    centre : (d,) float64 or None
        Of the inputs; see `TileEvaluator`.
    """

    kernel: Kernel
    noise_variance: float
    prototypes: FloatArray
    weights: FloatArray
    intercept: FloatArray
    centre: FloatArray | None = None

    def decisions(self, inputs: FloatArray) -> FloatArray:
        """f at standardised inputs (r, d): (r, t)."""
        if inputs.ndim != 2 or inputs.shape[1] != self.kernel.n_features:
            raise InputError(f"expected inputs of shape (r, {self.kernel.n_features}); got {inputs.shape}")
        evaluator = TileEvaluator(self.kernel, "double", centre=self.centre)
        if not len(inputs):
            return np.zeros((0, len(self.intercept)))
        image = evaluator.matmat(evaluator.prepare(inputs), evaluator.prepare(self.prototypes), self.weights)
        return np.asarray(image + self.intercept)


def fit_triangle(
    operator: BlockedKernelOperator,
    prototypes: FloatArray,
    right: FloatArray,
    weights: FloatArray | None,
    intercept: bool,
) -> FloatArray:
    """Return R of Q R = sqrt(D) [K_nm, 1, V], V = `right`: (c, c) at most, upper. Bits do not depend on the workers.

    Triangles of a few runs at a time come to the coordinator.
    """
    width = len(prototypes) + intercept + right.shape[1]
    most = int(np.clip(operator.n // (RUN_WIDTHS * width), FEWEST_RUNS, MOST_RUNS))
    runs = runs_of(operator.context, {"right": right, "weights": weights}, most=most)
    at_once, parts = operator.executor.parallelism, []
    for first in range(0, len(runs), at_once):
        groups = [[run] for run in runs[first : first + at_once]]
        arguments = (operator.context, prototypes, intercept)
        parts += operator.submit("kqr", triangle_task, arguments, groups).result()
        while len(parts) > 1:
            parts[:2] = [merge_triangles(parts[0], parts[1])]
        operator.tell("fit", first + len(groups), len(runs), "runs")
    return np.asarray(parts[0])


def fit_fixed_size(
    operator: BlockedKernelOperator,
    prototypes: FloatArray,
    signs: FloatArray,
    noise_variance: float,
    *,
    intercept: bool = True,
    weights: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Solve eq. 29 on all samples, in one pass over them: weights (k, t) and the intercept (t,).

    `prototypes` (k, d) are one at least, `signs` (n, t); `weights` (n,) are D. `NumericalError`: prototypes that are
    dependent on each other as far as float64 tells.
    """
    k, columns = len(prototypes), len(prototypes) + intercept
    with single_threaded_blas():
        triangle = fit_triangle(operator, prototypes, signs, weights, intercept)
        features = operator.double.prepare(prototypes)
        matrix = np.asarray(operator.double.tile(features, features))
        values, vectors = scipy.linalg.eigh(0.5 * (matrix + matrix.T), check_finite=False)
        # Eigenvalues that rounding made negative are zero.
        root = np.sqrt(noise_variance * np.maximum(values, 0.0))[:, None] * vectors.T
        stacked = np.concatenate([triangle[:, :columns], np.pad(root, ((0, 0), (0, columns - k)))])
        right = np.concatenate([triangle[:, columns:], np.zeros((k, signs.shape[1]))])
        lengths = np.sqrt(np.einsum("ij,ij->j", stacked, stacked))
        scale = np.where(lengths > 0.0, lengths, 1.0)
        q, r = np.linalg.qr(stacked / scale)
        shares = np.abs(r.diagonal())
        if not (len(shares) and shares.min() > LEAST_SHARE):
            raise NumericalError(
                f"{k:,} prototypes are dependent on each other as far as float64 tells, with noise variance "
                f"{noise_variance:.3g} (a column keeps {shares.min(initial=1.0):.1g} of its length). Take fewer "
                "prototypes, or a larger noise variance"
            )
        solution = scipy.linalg.solve_triangular(r, q.T @ right, check_finite=False) / scale[:, None]
    return solution[:k], solution[k] if intercept else np.zeros(signs.shape[1])
