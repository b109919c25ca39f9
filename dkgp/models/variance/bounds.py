"""Proven bounds on the exact predictive variance, evaluated in float64 with their own rounding errors added.

The exact variance of the function at x is V = k(x, x) - k_x' Kbar^-1 k_x; a new observation's is s2 more. For any v
with r = k_x - Kbar v,

    V = u - r' Kbar^-1 r,    u = k(x, x) - v'(k_x + r),

so u is never below V. For any weights beta of the landmarks' kernel columns,

    r' Kbar^-1 r <= ||r - K_nI beta||^2 / s2 + beta' K_II beta,                                     (lower bound)

which is Smola and Bartlett's second quadratic form; its minimum over beta is r' (Q + s2 I)^-1 r with the Nystrom
minorant Q <= K. The bound holds for any beta, so beta may come from float32 work. E = K - Q is a positive semidefinite
matrix with diagonal e, so |v' E v| <= (sum |v_i| sqrt(e_i))^2. Therefore, without any product with K,

    k_x' Kbar^-1 k_x >= 2 v'k_x - ||L^-1 K_In v||^2 - s2 ||v||^2 - (sum |v_i| sqrt(e_i))^2.         (upper bound)

Kernel entries are float64 throughout. With the factor's `largest`, its weights w and a test sample's `share`, an entry
of Kbar is at most largest w_i w_j, and k(x, x_i) at most largest share w_i. The error of a sum of their products with
v_j is at most `NystromFactor.unit` times largest w_i sum w_j |v_j|. No error is in proportion to s2 alone, so the
bounds are equally good where k(x, x) is far below s2.

References
----------
A. J. Smola, P. Bartlett, Sparse greedy Gaussian process regression (2001), section 3, theorem 1 and equation (10).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor, HereExecutor
from dkgp.kernels import Features
from dkgp.models.rounding import EPS, EVALUATION, UNIT, highest_prior
from dkgp.models.variance.nystrom import PIECE_ROWS, NystromFactor
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.low_rank.pivots import whiten

# A better z is computed if the rounding of z causes more than this share of an interval's width; and the number of
# samples on which that is tested.
ROUNDED_SHARE, PROBES = 0.1, 8


@dataclass(frozen=True)
class Queries:
    """Prepared test samples."""

    features: Features  # t of them, prepared in float64
    # (t,) float64: k(x, x) as computed, and an upper bound on it.
    prior: FloatArray
    highest: FloatArray
    share: FloatArray  # (t,) float64: see `RowScales.share`

    @classmethod
    def of(cls, factor: NystromFactor, inputs: FloatArray) -> Queries:
        """Prepare standardised inputs (t, d)."""
        prior = np.asarray(factor.context.kernel.diagonal(inputs), dtype=np.float64)
        highest = highest_prior(factor.context.kernel, prior)
        return cls(factor.evaluator.prepare(inputs), prior, highest, factor.scales.share(highest, inputs))

    def take(self, indices: IndexArray) -> Queries:
        """Return the test samples at the given indices."""
        return Queries(self.features.take(indices), self.prior[indices], self.highest[indices], self.share[indices])


@dataclass(frozen=True)
class FactorInterval:
    """Bounds that a factor proves for test samples with v = (k_x - F z) / s2."""

    # (t,) float64: lower <= V <= upper, bounds on the variance of the function.
    lower: FloatArray
    upper: FloatArray
    excess: FloatArray  # (t,) float64: estimate of `upper` - V, not a bound
    # (t,) float64: the part of `excess` that is due to the error of z, to first order. It is also zero where a float32
    # factor proves no upper bound.
    lost: FloatArray

    @property
    def rounded(self) -> NDArray[np.bool_]:
        """True where a better z would make the interval narrower by more than a tenth: (t,)."""
        return np.asarray(self.lost > ROUNDED_SHARE * (self.upper - self.lower))


def plain_weights(factor: NystromFactor, test: Queries) -> FloatArray:
    """Return z = (F'F + s2 I)^-1 F'k_x, with F'k_x = L^-1 K_In k_x summed as it stands: (R, t) float64.

    The cost is n R kernel entries, and as many multiply-adds per sample. The result loses as many digits as L^-1
    amplifies.
    """
    evaluator, features = factor.evaluator, test.features
    projected = np.zeros((factor.rank, features.n))
    for rows, _ in factor.pieces():
        projected += evaluator.tile(rows, factor.landmarks).T @ evaluator.tile(rows, features)
    return factor.preconditioner().weights(whiten(factor.lower, projected, transposed=False))


def best_weights(factor: NystromFactor, test: Queries) -> FloatArray:
    """Return z = (F'F + s2 I)^-1 F'k_x to nearly all of its digits: (R, t) float64.

    The cost is n R multiply-adds per sample more than that of `plain_weights`.

    Notes
    -----
    Let f = L^-1 k_Ix be the row of F for x, and e the column of E = K - Q for x. Then k_x = F f + e, and

        z = f + (F'F + s2 I)^-1 (L^-1 K_In e - s2 f).

    The better the factor, the smaller are the entries of e and the roundings of sums over them.
    """
    evaluator, features = factor.evaluator, test.features
    f = whiten(factor.lower, evaluator.tile(factor.landmarks, features), transposed=False)
    beta = factor.landmark_weights(f)
    projected = np.zeros((factor.rank, features.n))
    for rows, _ in factor.pieces():
        columns = evaluator.tile(rows, factor.landmarks)
        projected += columns.T @ (evaluator.tile(rows, features) - columns @ beta)
    towards = whiten(factor.lower, projected, transposed=False) - factor.noise_variance * f
    return np.asarray(f + factor.preconditioner().weights(towards), dtype=np.float64)


def loses_digits(factor: NystromFactor) -> bool:
    """Return True if rounding makes the intervals by `plain_weights` wide; test a few training samples once."""
    if factor.whitening is None:
        return False  # there is no upper bound to tighten
    if factor.loses_digits is None:
        some = np.arange(PROBES) * factor.n // PROBES
        inputs = np.concatenate([factor.context.source.inputs(int(row), int(row) + 1) for row in some])
        test = Queries.of(factor, inputs)
        interval = factor_interval(factor, test, plain_weights(factor, test))
        factor.loses_digits = bool(np.mean(interval.rounded) > 0.5)
    return factor.loses_digits


def factor_interval(factor: NystromFactor, test: Queries, z: FloatArray) -> FactorInterval:
    """Return bounds from the factor alone: n R kernel entries and 2 n R multiply-adds per sample, linear in n.

    Parameters
    ----------
    test : Queries
        t test samples.
    z : (R, t)
        Weights near `best_weights`; the bounds hold for any z.

    Notes
    -----
    Let A = F'F and let h be the error of z. Then F'v - z = -(A + s2 I) h / s2 = m. The upper bound exceeds its minimum,
    which the best z attains, by (F h)' (F F' + s2 I) (F h) / s2^2 = m' A (A + s2 I)^-1 m <= |m|^2. The rounding of z
    limits how small this excess is.
    """
    evaluator, s2, t = factor.evaluator, factor.noise_variance, test.features.n
    beta = factor.landmark_weights(z)
    square, cross, spread, absolute = np.zeros(t), np.zeros(t), np.zeros(t), np.zeros(t)
    image = np.zeros((factor.rank, t))
    for rows, where in factor.pieces():
        columns = evaluator.tile(rows, factor.landmarks)
        kernel = evaluator.tile(rows, test.features)
        v = kernel - columns @ beta
        v /= s2
        square += np.einsum("it,it->t", v, v)
        cross += np.einsum("it,it->t", v, kernel)
        single = np.sqrt(factor.residual_diagonal[where])
        np.abs(v, out=kernel)
        spread += single @ kernel if factor.remainder is None else factor.remainder.spread(where, v, single)
        absolute += factor.weights[where] @ kernel
        image += columns.T @ v
    largest, prior, share, unit = factor.largest, test.prior, test.share, factor.unit
    if factor.whitening is None:
        upper = test.highest  # the Q of a float32 L may exceed K, so it proves no upper bound
        lost = np.zeros(t)
    else:
        error = unit * np.sqrt(largest) * absolute
        quadratic = factor.whitening.square(factor.lower, image, factor.landmark_scale, np.sqrt(largest), error)
        upper = prior - 2.0 * cross + quadratic + s2 * square + spread**2
        slack = largest * share * (share + absolute) + quadratic + s2 * square + spread**2
        upper += 4.0 * EVALUATION * unit * slack
        miss = whiten(factor.lower, image, transposed=False) - z
        lost = np.einsum("rt,rt->t", miss, miss)
    # The lower bound is that of the residual r = k_x for v = 0; (k_x - K_nI beta) = s2 v as computed.
    left = s2 * np.sqrt(square) * (1.0 + unit)
    left += factor.weight_norm * (_column_rounding(factor, beta) + EVALUATION * unit * largest * share)
    lower = prior - (left**2 / s2 + _landmark_quadratic(factor, beta)) * (1.0 + 8.0 * EPS)
    lower -= 4.0 * EVALUATION * unit * largest * share**2
    return FactorInterval(lower, upper, spread**2 + lost, lost)


def residual_bound(
    factor: NystromFactor,
    residual: FloatArray,
    z: FloatArray,
    rounding: FloatArray,
    chosen: IndexArray | None = None,
    executor: BlockExecutor | None = None,
) -> FloatArray:
    """Return an upper bound on r' Kbar^-1 r.

    Parameters
    ----------
    residual : (n, columns) float64
        r as computed.
    z : (R, t)
        Weights from preconditioning r; any other z makes the bound wider, not wrong.
    rounding : (t,) float64
        Bound on the error of entry i of the residual, over w_i.
    chosen : (t,) int, optional
        Columns of `residual` to use; all by default.
    executor : BlockExecutor, optional
        Executor of the tasks; this thread by default.
    """
    s2, beta = factor.noise_variance, factor.landmark_weights(z)
    some = residual if chosen is None or len(chosen) == residual.shape[1] else residual[:, chosen]
    square = factor.landmark_rows("double", executor or HereExecutor()).misfit(some, beta)
    off = rounding + _column_rounding(factor, beta)
    norm = np.sqrt(square) * (1.0 + factor.unit) + factor.weight_norm * off
    bound: FloatArray = (norm**2 / s2 + _landmark_quadratic(factor, beta)) * (1.0 + 8.0 * EPS)
    return bound


def _landmark_quadratic(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Return an upper bound on beta' K_II beta: ||L' beta||^2 with a float64 L, since the jitter makes L L' >= K_II.

    The error of an entry of L' beta is R u (|L|' |beta|), and the norm of a row of L is at most its sqrt(k(x, x)),
    jitter included.
    """
    if factor.lower.dtype == np.float64:
        off = (factor.rank + 2) * UNIT * np.sqrt(factor.largest) * _scaled_sum(factor, beta)
        length = np.linalg.norm(factor.lower.T @ beta, axis=0) * (1.0 + (factor.rank + 4) * UNIT)
        squared: FloatArray = (length + EVALUATION * off) ** 2
        return squared
    quadratic = np.zeros(beta.shape[1])
    for start in range(0, factor.rank, PIECE_ROWS):
        stop = min(start + PIECE_ROWS, factor.rank)
        columns = factor.evaluator.tile(factor.landmarks.slice(start, stop), factor.landmarks)
        quadratic += np.einsum("rt,rt->t", beta[start:stop], columns @ beta)
    bound: FloatArray = quadratic + 2.0 * _column_rounding(factor, beta) * _scaled_sum(factor, beta)
    return bound


def _column_rounding(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Return a bound on the rounding error of entry i of K_nI beta, over w_i."""
    relative = (factor.rank + 4) * UNIT + factor.entry_error * EPS
    bound: FloatArray = EVALUATION * relative * factor.largest * _scaled_sum(factor, beta)
    return bound


def _scaled_sum(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Return the sum over the landmarks of their scale times |beta|: (t,)."""
    total: FloatArray = factor.landmark_scale @ np.abs(beta)
    return total
