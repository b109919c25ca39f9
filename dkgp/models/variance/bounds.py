"""Proven bounds on the exact predictive variance, evaluated in float64 with their own rounding errors added.

The exact variance of the function at x is V = k(x, x) - k_x' Kbar^-1 k_x; a new observation's is s2 more. For any v
with r = k_x - Kbar v,

    V = u - r' Kbar^-1 r,    u = k(x, x) - v'(k_x + r),

so u is never below V. For any weights beta of the landmarks' kernel columns,

    r' Kbar^-1 r <= ||r - K_nI beta||^2 / s2 + beta' K_II beta,                                     (lower bound)

which is Smola and Bartlett's second quadratic form; its minimum over beta is r' (Q + s2 I)^-1 r with the Nystrom
minorant Q <= K. It holds for whatever beta comes out of float32 work. With E = K - Q, a positive semidefinite matrix
with diagonal e, |v' E v| <= (sum |v_i| sqrt(e_i))^2, and therefore, without any product with K,

    k_x' Kbar^-1 k_x >= 2 v'k_x - ||L^-1 K_In v||^2 - s2 ||v||^2 - (sum |v_i| sqrt(e_i))^2.         (upper bound)

Kernel entries are float64 throughout. With the factor's `largest`, its weights w and a test sample's `share`, an entry
of Kbar is at most largest w_i w_j, and k(x, x_i) at most largest share w_i; a sum of products of them with v_j is off
by at most `NystromFactor.unit` times largest w_i sum w_j |v_j|. Nothing is in proportion to s2 alone, so where k(x, x)
is far below it, bounds are as good as elsewhere.

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

# The share of an interval's width that rounding of z is to have for a better z; and samples that tell whether it has.
ROUNDED_SHARE, PROBES = 0.1, 8


@dataclass(frozen=True)
class Queries:
    """Test samples."""

    features: Features  # t of them, prepared in float64
    # (t,) float64: k(x, x), as computed, and what it is at most.
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
        """The chosen ones."""
        return Queries(self.features.take(indices), self.prior[indices], self.highest[indices], self.share[indices])


@dataclass(frozen=True)
class FactorInterval:
    """Bounds that a factor proves of test samples by v = (k_x - F z) / s2."""

    # (t,) float64: lower <= V <= upper, of the function.
    lower: FloatArray
    upper: FloatArray
    excess: FloatArray  # (t,) float64: by how much `upper` may exceed V; an estimate, not a bound
    # (t,) float64: the part of it that is due to z not being the best, to first order; zero, too, where a float32
    # factor proves nothing from above.
    lost: FloatArray

    @property
    def rounded(self) -> NDArray[np.bool_]:
        """True where a better z would make the interval narrower by more than a tenth: (t,)."""
        return np.asarray(self.lost > ROUNDED_SHARE * (self.upper - self.lower))


def plain_weights(factor: NystromFactor, test: Queries) -> FloatArray:
    """Return z = (F'F + s2 I)^-1 F'k_x, with F'k_x = L^-1 K_In k_x summed as it stands: (R, t) float64.

    n R kernel entries, and as many multiply-adds a sample. It loses as many digits as L^-1 amplifies.
    """
    evaluator, features = factor.evaluator, test.features
    projected = np.zeros((factor.rank, features.n))
    for rows, _ in factor.pieces():
        projected += evaluator.tile(rows, factor.landmarks).T @ evaluator.tile(rows, features)
    return factor.preconditioner().weights(whiten(factor.lower, projected, transposed=False))


def best_weights(factor: NystromFactor, test: Queries) -> FloatArray:
    """Return the same z to nearly all of its digits: (R, t) float64.

    It costs n R multiply-adds a sample more.

    Notes
    -----
    With f = L^-1 k_Ix, the row of F that x would have, k_x = F f + e, where e is the column of E = K - Q that x would
    have, and

        z = f + (F'F + s2 I)^-1 (L^-1 K_In e - s2 f).

    Entries of e are as small as the factor is good, and so are the roundings of sums over them.
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
    """True where intervals by `plain_weights` are wide for rounding: a few training samples tell, once for a factor."""
    if factor.whitening is None:
        return False  # there is no upper end to be narrowed
    if factor.loses_digits is None:
        some = np.arange(PROBES) * factor.n // PROBES
        inputs = np.concatenate([factor.context.source.inputs(int(row), int(row) + 1) for row in some])
        test = Queries.of(factor, inputs)
        interval = factor_interval(factor, test, plain_weights(factor, test))
        factor.loses_digits = bool(np.mean(interval.rounded) > 0.5)
    return factor.loses_digits


def factor_interval(factor: NystromFactor, test: Queries, z: FloatArray) -> FactorInterval:
    """Bounds from the factor alone: n R kernel entries and 2 n R multiply-adds a sample, nothing quadratic in n.

    Parameters
    ----------
    test : Queries
        t test samples.
    z : (R, t)
        Near `best_weights`; the bounds hold for any.

    Notes
    -----
    With A = F'F and z off by h, F'v - z = -(A + s2 I) h / s2 = m, and the upper end is too high by v's part of the
    quadratic form that is least for the best z: (F h)' (F F' + s2 I) (F h) / s2^2 = m' A (A + s2 I)^-1 m <= |m|^2. It
    is as small as rounding of z lets it be.
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
        upper = test.highest  # the Q of a float32 L may exceed K: from above it proves nothing
        lost = np.zeros(t)
    else:
        error = unit * np.sqrt(largest) * absolute
        quadratic = factor.whitening.square(factor.lower, image, factor.landmark_scale, np.sqrt(largest), error)
        upper = prior - 2.0 * cross + quadratic + s2 * square + spread**2
        slack = largest * share * (share + absolute) + quadratic + s2 * square + spread**2
        upper += 4.0 * EVALUATION * unit * slack
        miss = whiten(factor.lower, image, transposed=False) - z
        lost = np.einsum("rt,rt->t", miss, miss)
    # The lower bound is the residual's for v = 0, r = k_x; (k_x - K_nI beta) = s2 v as computed.
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
    """Upper bound on r' Kbar^-1 r.

    Parameters
    ----------
    residual : (n, columns) float64
        r as computed.
    z : (R, t)
        What preconditioning r gave; any other makes the bound wider, not wrong.
    rounding : (t,) float64
        By how much entry i of it may miss the exact r, over w_i.
    chosen : (t,) int, optional
        Which columns of `residual` are meant; all by default.
    executor : BlockExecutor, optional
        Shares the work; this thread by default.
    """
    s2, beta = factor.noise_variance, factor.landmark_weights(z)
    some = residual if chosen is None or len(chosen) == residual.shape[1] else residual[:, chosen]
    square = factor.landmark_rows("double", executor or HereExecutor()).misfit(some, beta)
    off = rounding + _column_rounding(factor, beta)
    norm = np.sqrt(square) * (1.0 + factor.unit) + factor.weight_norm * off
    bound: FloatArray = (norm**2 / s2 + _landmark_quadratic(factor, beta)) * (1.0 + 8.0 * EPS)
    return bound


def _landmark_quadratic(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Upper bound on beta' K_II beta: ||L' beta||^2 with a float64 L, since the jitter makes L L' the larger one.

    An entry of L' beta is off by R u (|L|' |beta|), and no row of L is longer than its sqrt(k(x, x)), jitter included.
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
    """Bound on the rounding error of entry i of K_nI beta, over w_i."""
    relative = (factor.rank + 4) * UNIT + factor.entry_error * EPS
    bound: FloatArray = EVALUATION * relative * factor.largest * _scaled_sum(factor, beta)
    return bound


def _scaled_sum(factor: NystromFactor, beta: FloatArray) -> FloatArray:
    """Sum over the landmarks of their scale times |beta|: (t,)."""
    total: FloatArray = factor.landmark_scale @ np.abs(beta)
    return total
