"""Bounds on the risk and on the evidence of sparse models, with every rounding counted.

Roundings of sums with K(X, Z) (`Points`, `SampleErrors`): an entry k(x, z) is at most s_x s_z, s the root of k at a
point, and off by at most eps s_x s_z (e_x + e_z), e from `TileEvaluator.row_errors`. A sum of m products, in any order,
is off by (m + 2) u times the sum of their sizes.

The risk R of a sparse mean is bounded from above, and the least risk of all from below:

    R(f) = (y - f)' D (y - f) / 2 + |f|_H^2 / 2,   D = diag(1 / s2_i),   min R = q / 2,   q = y' Kbar^-1 y.

R is evaluated by the residual, never as a difference of larger numbers. From below, for any v,

    q >= 2 v'y - v' Kbar v,    at the best multiple of v    q >= (v'y)^2 / (v' Kbar v),

and v' Kbar v is known, or bounded, in four ways: v on a subset of samples (`subset`); any solver's alpha with its
gradient (`descent`); and by K = F F' + E, |v' E v| <= (sum |v_i| sqrt(e_i))^2, with v the sparse fit's own residual
over the noise (`residual`), or that of a fit with as much additional noise as E may amount to (`trace`).

The evidence log p(y) of the exact model is bounded by a sparse fit, from below by the variational bound.

With Q = F F' <= K and E = K - Q,

    log N(y; 0, Q + S) - tr(S^-1 E) / 2  <=  log p(y)  <=  -n log(2 pi) / 2 - log|Q + S| / 2 - q_low / 2,

S the noise and q_low <= y' Kbar^-1 y. Their difference bounds the divergence of the sparse posterior from the exact
one. y' (Q + S)^-1 y is twice the least risk on the columns' span, with L L' for K_mm, so it is bounded by the risk of
the fitted weights; log|Q + S| = log|S| + log|I + F'DF| follows from the factor as computed and a bound on its error:

- a symmetric error of norm at most h < 1 moves log|I + F'DF| by at most -m log(1 - h), since no eigenvalue is below 1;
- rows of F that are off by g_i in length move it by at most sqrt(m) (sum D_i g_i^2)^(1/2): the derivative along the way
  is 2 tr(A^-1 F'D dF), and |D^(1/2) F A^-1| <= sqrt(m) / 2 in Frobenius' norm for A = I + F'DF.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data.types import LEAST_BLOCKS
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import BLOCK_ROWS, EPS, EVALUATION, UNIT, highest_prior, sum_roundings
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.tasks import LARGEST_PIECE, SMALLEST_PIECE
from dkgp.operators.exact_sums import DEPTH, UNIT_SAMPLES, unit_count
from dkgp.solvers import Solution


@dataclass(frozen=True)
class Points:
    """Sizes of points in bounds on roundings: k(x, x), and the errors of their rows."""

    prior: FloatArray  # (r,): k(x, x), as computed
    errors: FloatArray  # (r,): see `TileEvaluator.row_errors`
    highest: FloatArray  # (r,): upper bounds on k(x, x)

    @classmethod
    def of(cls, kernel: Kernel, evaluator: TileEvaluator, inputs: FloatArray) -> Points:
        """Return the sizes of inputs (r, d)."""
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
        """Return the sizes of an operator's samples: one round, and no kernel entries."""
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

    Units are added exactly; three for the sum of digits, including room for the digits that are cut off
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
    # `fmax` replaces NaN by 0: nothing is known there.
    least = np.fmax(length * (1.0 - (errors.m + 4) * UNIT) - off, 0.0)
    return np.maximum(samples.highest - least**2 * (1.0 - 4.0 * EPS), 0.0), off


def highest_misfit(
    errors: SampleErrors, weights: FloatArray, squares: FloatArray, targets: FloatArray, noise: Variances
) -> FloatArray:
    """Upper bound on r' D r for r = y - K_nm beta: (p,).

    `weights` (m, p): beta. `squares` (p,): r' D r as computed. `targets` (n, p): y, two roundings off the exactly
    standardised raw ones. `noise`: D's inverse.
    """
    n, samples = len(targets), errors.samples
    root = np.sqrt(1.0 / np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,)))
    constant, by_error = errors.products(weights)
    length = np.sqrt(squares) * (1.0 + sample_sum_roundings(n) * UNIT)
    length += constant * np.linalg.norm(root * samples.scale)
    length += by_error * np.linalg.norm(root * samples.scale * samples.errors)
    length += 2.0 * UNIT * (length + 2.0 * np.linalg.norm(root[:, None] * targets, axis=0))
    return np.asarray(length**2 * (1.0 + (n + 16) * UNIT))


def highest_penalty(errors: SampleErrors, weights: FloatArray, inner: FloatArray) -> FloatArray:
    """Upper bound on beta' K_mm beta by K_mm beta, `inner`, as computed: (p,)."""
    size, spread = errors.prototypes.size(weights), errors.prototypes.spread(weights)
    off = size * ((2 * errors.m + 8) * UNIT * size + 2.0 * EPS * spread)
    return np.asarray(np.maximum(np.einsum("mp,mp->p", weights, inner), 0.0) + EVALUATION * off)


def highest_whitened_penalty(lower: FloatArray, weights: FloatArray) -> FloatArray:
    """Upper bound on beta' L L' beta: (p,)."""
    m = len(lower)
    length = np.linalg.norm(lower.T @ weights, axis=0) * (1.0 + (m + 4) * UNIT)
    length += EVALUATION * (m + 2) * UNIT * (np.linalg.norm(lower, axis=1) @ np.abs(weights))
    return np.asarray(length**2 * (1.0 + 4.0 * EPS))


@dataclass(frozen=True)
class Directions:
    """Directions v and their products."""

    vectors: FloatArray  # (n, t): v
    projected: FloatArray  # (m, t): K_mn v, as computed


def direction_bound(
    errors: SampleErrors,
    lower: FloatArray,
    whitening: Whitening,
    residual_diagonal: FloatArray,
    directions: Directions,
    targets: FloatArray,
    noise: Variances,
) -> FloatArray:
    """Lower bound on q from directions v, t = p of them, without a product with K: (p,).

    `lower` (m, m): L, and its `whitening` with the prototypes' s. `residual_diagonal` (n,): upper bounds on e.
    """
    v = directions.vectors
    absolute = np.abs(v)
    quadratic = whitening.square(lower, directions.projected, errors.prototypes.scale, 1.0, errors.projections(v))
    unexplained = np.sqrt(residual_diagonal) @ absolute
    of_noise = np.sum(np.broadcast_to(np.asarray(noise, dtype=np.float64), (len(v),))[:, None] * v**2, axis=0)
    highest = (quadratic + unexplained**2 + of_noise) * (1.0 + (2 * len(v) + 16) * UNIT)
    return _quotient(v, targets, highest)


def subset_bound(operator: BlockedKernelOperator, samples: IndexArray, targets: FloatArray) -> FloatArray:
    """Lower bound on q from the exact model of a subset of samples (m,): (p,)."""
    matrix = operator.submatrix(samples, samples)
    subset_targets = targets[samples]
    with single_threaded_blas():
        factor = scipy.linalg.lu_factor(matrix, check_finite=False)
        solved = np.asarray(scipy.linalg.lu_solve(factor, subset_targets, check_finite=False))
        images = matrix @ solved
    inputs = operator.inputs(samples)
    points = Points.of(operator.kernel, operator.double, inputs)
    size, spread, m = points.size(solved), points.spread(solved), len(samples)
    noise = np.sum(np.asarray(noise_at(operator.noise, samples)) * (solved**2).T, axis=-1)
    off = (2 * m + 10) * UNIT * (size**2 + noise) + 2.0 * EPS * size * spread
    highest = np.einsum("mp,mp->p", solved, images) + EVALUATION * off
    return _quotient(solved, subset_targets, highest)


def descent_bound(
    operator: BlockedKernelOperator, solution: Solution, targets: FloatArray, errors: SampleErrors
) -> FloatArray:
    """Lower bound on q from a solver's alpha and its float64 gradient: (p,)."""
    alpha, gradient = solution.alpha, solution.gradient
    certificate = Certificate.of(
        alpha,
        gradient,
        targets,
        # The plain length of the residual's rounding is wanted, by the largest noise.
        float(np.max(operator.noise)),
        errors.samples.prior,
        errors.samples.errors,
        stepped=solution.stepped,
        product_errors=solution.product_errors,
    )
    off = np.asarray(certificate.residual_rounding) + certificate.product_lengths
    images = gradient + targets
    highest = np.einsum("np,np->p", alpha, images) + EVALUATION * (
        np.linalg.norm(alpha, axis=0) * off
        + (len(alpha) + 4) * UNIT * np.einsum("np,np->p", np.abs(alpha), np.abs(images))
    )
    return _quotient(alpha, targets, highest)


def _quotient(vectors: FloatArray, targets: FloatArray, highest: FloatArray) -> FloatArray:
    """(v'y)^2 over an upper bound on v' Kbar v, never too large; zero where nothing is known."""
    product = np.einsum("np,np->p", vectors, targets)
    off = (len(vectors) + 6) * UNIT * np.einsum("np,np->p", np.abs(vectors), np.abs(targets))
    least = np.maximum(np.abs(product) - EVALUATION * off, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.where(highest > 0.0, least**2 / highest * (1.0 - 8.0 * EPS), 0.0)
    return np.where(np.isfinite(bound), bound, 0.0)


@dataclass(frozen=True)
class LogDeterminant:
    """Bounds on log|Q + S|."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Evidence:
    """Bounds on log p(y), summed over targets, in nats of the standardised targets."""

    lower: float  # the ELBO, at most
    ceiling: float  # upper bound on log p(y) with y' Kbar^-1 y left out
    trace: float  # tr(S^-1 E), at most: the samples' unexplained variances in units of their noise

    @classmethod
    def of(cls, n: int, determinant: LogDeterminant, highest_quadratic: FloatArray, trace: float) -> Evidence:
        """From upper bounds on y'(Q + S)^-1 y, (p,)."""
        p = len(highest_quadratic)
        constant = p * n * float(np.log(2.0 * np.pi))
        lower = -0.5 * (constant + p * determinant.upper + float(highest_quadratic.sum()) + p * trace)
        ceiling = -0.5 * (constant + p * determinant.lower)
        off = 16.0 * UNIT * (constant + abs(lower) + abs(ceiling))
        return cls(lower - off, ceiling + off, trace)

    def upper(self, least_quadratic: FloatArray) -> float:
        """The upper bound, from lower bounds on y' Kbar^-1 y: (p,)."""
        total = 0.5 * float(least_quadratic.sum())
        return self.ceiling - total + 8.0 * UNIT * (total + abs(self.ceiling))


def normal_error(normal: FloatArray, n: int) -> float:
    """Bound on the distance in norm of C C' from I + F^'DF^, of the rows F^ as computed: (m, m) C.

    C C' is off by (m + 2) u |C||C|' (Higham 2002, theorem 10.3), of norm at most (m + 2) u tr(C C'); F^'DF^ was summed
    over n samples, with a few roundings of each row's scale. The digits of a row that are cut off come to at most
    2^-61 of its units' largest numbers (Lemma 2b), in norm to 2^-61 m of the trace.
    """
    trace, cut = float(np.sum(normal**2)), 2.0 ** (1 - DEPTH) * len(normal)
    return float(EVALUATION * ((len(normal) + sample_sum_roundings(n) + 12.0) * UNIT + cut) * trace)


def log_determinant(
    normal: FloatArray, noise: Variances, n: int, row_error: float, further: float = 0.0
) -> LogDeterminant | None:
    """Bounds on log|Q + S| by C C' = I + F'DF as computed; None where it may be singular for all that is known.

    `normal` (m, m): C. `row_error`: (sum D_i g_i^2)^(1/2), g_i bounds on how far the computed rows of F are off.
    `further`: error of F'DF in norm, beside its sums' roundings; see `RegressorFit.off`.
    """
    m = len(normal)
    logs = np.log(normal.diagonal())
    noise_logs = np.log(np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,)))
    # A logarithm as computed is taken to be within four units in the last place; sums are in any order.
    least = float(noise_logs.sum()) - EVALUATION * (n + 10) * UNIT * float(np.abs(noise_logs).sum())
    most = float(noise_logs.sum()) + EVALUATION * (n + 10) * UNIT * float(np.abs(noise_logs).sum())
    share = normal_error(normal, n) + further
    if share >= 1.0:
        return None
    value = 2.0 * float(logs.sum())
    off = EVALUATION * (
        2.0 * (m + 10) * UNIT * float(np.abs(logs).sum()) - m * float(np.log1p(-share)) + np.sqrt(m) * row_error
    )
    # No eigenvalue of I + F'DF is below one.
    return LogDeterminant(least + max(value - off, 0.0), most + value + off)
