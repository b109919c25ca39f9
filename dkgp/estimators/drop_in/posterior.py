"""The posterior in memory: means, variances and covariances by a Cholesky factor, and what is proven of them.

With Kbar = K + D, k the column of kernel values of a test sample and w = Kbar^-1 k, the exact mean is k'Kbar^-1 y and
the exact variance k(x, x) - k'Kbar^-1 k. Let alpha and w be what was computed, whatever their errors, and

    r = y - Kbar alpha,   rho = k - Kbar w

their residuals, evaluated in float64 with a bound on their own rounding. Then, s > 0 being the least entry of D,

    k'Kbar^-1 y - k'alpha = w'r + rho'Kbar^-1 r,        |rho'Kbar^-1 r| <= |rho| |r| / s,
    k'Kbar^-1 k = w'k + w'rho + rho'Kbar^-1 rho,        0 <= rho'Kbar^-1 rho <= |rho|^2 / s.

Errors of first order meet a residual of the size of rounding, and what 1 / s multiplies is of second order, so that the
bounds stay small where s is 1e-10. `docs/proofs.md` counts the roundings.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from dkgp.errors import NumericalError
from dkgp.estimators.drop_in.likelihood import OVERFLOWING, Evidence, with_noise
from dkgp.estimators.drop_in.tree import Node, Pair, filled
from dkgp.models.rounding import EVALUATION, LOST, UNIT, column_lengths, outward
from dkgp.models.tuning.dense_algebra import factor, solve_factored, solve_half
from dkgp.operators.base import FloatArray

# Entries of K(X*, X) that are held at a time.
_HELD_ENTRIES = 2**23

# By how much means may miss the exact ones (r, t), and intervals of the exact variances, (r,) each.
Bounds: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
# Means (r, t), variances with the kernel's own noise (r,), and bounds.
Predicted: TypeAlias = tuple[FloatArray, FloatArray | None, Bounds | None]


class DensePosterior:
    """The posterior of samples in memory.

    Parameters
    ----------
    tree : Node
        The kernel.
    evidence : Evidence
        The samples.

    Raises
    ------
    NumericalError
        The kernel matrix, noise included, is not numerically positive definite.

    Attributes
    ----------
    factor : (n, n) float64
        L of Kbar = L L', in Fortran order; what stands above its diagonal means nothing.
    coefficients : (n, t) float64
        alpha = Kbar^-1 y.
    """

    @OVERFLOWING
    def __init__(self, tree: Node, evidence: Evidence) -> None:
        self.tree, self.inputs, self.targets = tree, evidence.pair.left, evidence.targets
        noise = np.asarray(tree.noise(self.inputs) + evidence.alpha, dtype=np.float64)
        self.noise = np.broadcast_to(noise, (len(self.targets),))
        self.factor = with_noise(tree.matrix(evidence.pair), self.noise)
        if not factor(self.factor):
            raise NumericalError("the kernel matrix is not numerically positive definite")
        self.coefficients = solve_factored(self.factor, np.asfortranarray(self.targets))
        if not (np.isfinite(self.coefficients).all() and np.isfinite(np.diagonal(self.factor)).all()):
            raise NumericalError("the kernel matrix is not finite")

    def log_determinant(self) -> float:
        """log det Kbar."""
        return 2.0 * float(np.log(np.diagonal(self.factor)).sum())

    # ----------------------------------------------------------------------------------------------------- predictions

    def _batches(self, rows: Any) -> list[Any]:
        """Test samples, some at a time; all at once where a kernel is called, which may want to see them all."""
        step = max(64, _HELD_ENTRIES // max(1, len(self.targets)))
        if self.tree.unknown or len(rows) <= step:
            return [rows]
        return [rows[start : start + step] for start in range(0, len(rows), step)]

    @OVERFLOWING
    def mean(self, rows: Any) -> FloatArray:
        """Means at test samples: (r, t). Raises `NumericalError` where they are not finite, as all of these do."""
        batches = [self._columns(batch) @ self.coefficients for batch in self._batches(rows)]
        return finite_predictions(np.concatenate(batches))

    @OVERFLOWING
    def mean_and_variance(self, rows: Any) -> tuple[FloatArray, FloatArray]:
        """Means (r, t), and variances (r,) with the kernel's own noise, which rounding may have made negative."""
        means, variances = [], []
        for batch in self._batches(rows):
            columns = self._columns(batch)
            means.append(columns @ self.coefficients)
            solve_half(self.factor, columns.T)
            variances.append(self._prior(batch) - np.einsum("ij,ij->i", columns, columns))
        return finite_predictions(np.concatenate(means)), finite_predictions(np.concatenate(variances))

    @OVERFLOWING
    def mean_and_covariance(self, rows: Any) -> tuple[FloatArray, FloatArray]:
        """Means (r, t), and covariances of all pairs of test samples (r, r) with the kernel's own noise."""
        columns = self._columns(rows)
        mean = columns @ self.coefficients
        solve_half(self.factor, columns.T)
        covariance = self.tree.matrix(Pair(rows, rows))
        covariance -= columns @ columns.T
        covariance.reshape(-1)[:: len(rows) + 1] += self.tree.noise(rows)
        return finite_predictions(mean), finite_predictions(covariance)

    def _columns(self, rows: Any) -> FloatArray:
        """K(X*, X), (r, n), row by row."""
        return np.ascontiguousarray(self.tree.matrix(Pair(rows, self.inputs)))

    def _prior(self, rows: Any) -> FloatArray:
        return filled(self.tree.diagonal(rows) + self.tree.noise(rows), (len(rows),))

    # ---------------------------------------------------------------------------------------------------------- bounds

    def predicted(self, rows: Any, *, variance: bool, bounds: bool) -> Predicted:
        """Means at test samples, and where they are asked for variances, and what is proven."""
        mean, variances = self.mean_and_variance(rows) if variance else (self.mean(rows), None)
        return mean, variances, self.bounds(rows) if bounds else None

    @OVERFLOWING
    def bounds(self, rows: Any) -> Bounds:
        """By how much means may miss the exact ones (r, t), and intervals of the exact variances, (r,) each.

        Infinite, and from zero to infinity, where nothing is proven: a kernel of a class that is not scikit-learn's
        own, one that need not be positive definite, or no noise at all.

        Raises `NumericalError`: an upper end is negative, so that the kernel is not positive definite.
        """
        pair, n = Pair(self.inputs, self.inputs), len(self.targets)
        K = self.tree.matrix(pair)
        sizes = np.abs(K)
        entry_error = self.tree.error(pair, self.tree.largest_diagonal(pair))
        noise_error = self.tree.noise_error(self.inputs) + self.noise  # one rounding more where alpha is added
        least = float(np.min(self.noise - 1.01 * UNIT * noise_error))
        if not least > 0.0:
            least = 0.0  # divided by zero, all ends are infinite
        errors = (entry_error, noise_error)
        y_residual, y_error = self._residual(K, sizes, self.coefficients, self.targets, errors, 0.0)
        ends: list[tuple[FloatArray, ...]] = []
        for batch in self._batches(rows):
            test = Pair(batch, self.inputs)
            columns = self._columns(batch).T  # (n, r)
            test_error = self.tree.error(test, self.tree.largest_diagonal(test))
            w = solve_factored(self.factor, np.asfortranarray(columns))
            rho, rho_error = self._residual(K, sizes, w, columns, errors, test_error)
            # |w'r|, entry by entry, and |rho| |r| / s.
            r_size, rho_size = np.abs(y_residual) + y_error, np.abs(rho) + rho_error
            r_length, rho_length = column_lengths(r_size), column_lengths(rho_size)
            second = rho_length[:, None] * (r_length[None, :] / least)
            products = (n + 6.0) * (np.abs(columns).T @ np.abs(self.coefficients))
            rounded = UNIT * (products + test_error * np.abs(self.coefficients).sum(axis=0))
            mean_error = EVALUATION * (np.abs(w).T @ r_size + second + rounded) + n * LOST
            # w'k as computed, and by how much the exact w'k + w'rho may miss it.
            quadratic = np.einsum("ij,ij->j", w, columns)
            slack = np.einsum("ij,ij->j", np.abs(w), rho_size) + UNIT * (
                (n + 6.0) * np.einsum("ij,ij->j", np.abs(w), np.abs(columns)) + test_error * np.abs(w).sum(axis=0)
            )
            prior, prior_error = self._prior(batch), prior_errors(self.tree, batch)
            slack = EVALUATION * (slack + prior_error + UNIT * (4.0 * prior + 4.0 * np.abs(quadratic))) + n * LOST
            lower = prior - quadratic - slack - EVALUATION * rho_length * (rho_length / least)
            upper = prior - quadratic + slack
            known = np.isfinite(upper) & np.isfinite(lower)
            if (known & (upper < 0.0)).any():
                raise NumericalError(
                    f"the exact variance at a test sample is at most {upper[known].min():.3g}, so that the kernel is "
                    "not positive definite. Choose another kernel, or ask for predictions without `return_bounds`"
                )
            ends.append(
                (
                    np.where(np.isnan(mean_error), math.inf, mean_error),
                    np.where(known, np.maximum(lower, 0.0), 0.0),
                    np.where(known, np.maximum(upper, 0.0), math.inf),
                )
            )
        error, low, high = (np.concatenate(parts) for parts in zip(*ends, strict=True))
        return error, low, high

    def _residual(
        self,
        K: FloatArray,
        sizes: FloatArray,
        solution: FloatArray,
        right: FloatArray,
        errors: tuple[float, FloatArray],
        right_error: float,
    ) -> tuple[FloatArray, FloatArray]:
        """B - Kbar A as computed, and a bound on its error, (n, t) each.

        n products and additions in any order, two more for the noise and one for B; entries of K, the noise and B with
        `errors` of their own.
        """
        entry_error, noise_error = errors
        n, noise, size = len(K), self.noise[:, None], np.abs(solution)
        residual = right - K @ solution - noise * solution
        terms = sizes @ size + noise * size
        rounded = (n + 6.0) * (terms + np.abs(right))
        inherited = entry_error * size.sum(axis=0)[None, :] + noise_error[:, None] * size + right_error
        return residual, EVALUATION * UNIT * (rounded + inherited) + n * LOST


def finite_predictions(values: FloatArray) -> FloatArray:
    """Return predictions of the rows; `NumericalError` where one is not finite."""
    wrong = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if wrong.any():
        raise NumericalError(
            f"the prediction at test sample {int(np.argmax(wrong))} is not finite: entries of the kernel overflow "
            "there, or are no numbers. Scale the inputs, or choose another kernel"
        )
    return values


def prior_errors(tree: Node, rows: Any) -> FloatArray:
    """Return bounds on the error of k(x, x) and its noise together, row by row: (r,)."""
    errors = tree.diagonal_error(rows) + tree.noise_error(rows)
    sizes = np.abs(tree.diagonal(rows)) + np.abs(tree.noise(rows))
    return EVALUATION * UNIT * filled(errors + sizes, (len(rows),)) + LOST


@OVERFLOWING
def prior_interval(tree: Node, rows: Any) -> tuple[FloatArray, FloatArray]:
    """Return an interval of the exact k(x, x) with its noise, (r,) each: infinite above where nothing is proven."""
    prior, error = filled(tree.diagonal(rows) + tree.noise(rows), (len(rows),)), prior_errors(tree, rows)
    lower, upper = outward(prior - error, prior + error)
    known = np.isfinite(upper)
    return np.where(known, np.maximum(lower, 0.0), 0.0), np.where(known, upper, math.inf)
