"""Bounds on the risk R of a sparse mean from above, and on the least risk of all from below, every rounding counted.

    R(f) = (y - f)' D (y - f) / 2 + |f|_H^2 / 2,   D = diag(1 / s2_i),   min R = q / 2,   q = y' Kbar^-1 y.

R of a sparse mean is evaluated by its residual, never as a difference of larger numbers. From below, for any v,

    q >= 2 v'y - v' Kbar v,    at the best multiple of v    q >= (v'y)^2 / (v' Kbar v),

and v' Kbar v is known, or bounded, in four ways: v on a subset of samples (`subset`); any solver's alpha with its
gradient (`descent`); and by K = F F' + E, |v' E v| <= (sum |v_i| sqrt(e_i))^2, with v the sparse fit's own residual
over the noise (`residual`), or that of a fit with as much noise more as E may come to (`trace`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dkgp.cluster.threads import single_threaded_blas
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import EPS, EVALUATION, UNIT
from dkgp.models.sparse.errors import Points, SampleErrors, sample_sum_roundings
from dkgp.models.variance.whitening import Whitening
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers import Solution


def highest_misfit(
    errors: SampleErrors, weights: FloatArray, squares: FloatArray, targets: FloatArray, noise: Variances
) -> FloatArray:
    """Upper bound on r' D r for r = y - K_nm beta: (p,).

    `weights` (m, p): beta. `squares` (p,): r' D r as computed. `targets` (n, p): y, two roundings off what the stored
    standardisation makes of the raw ones. `noise`: D's inverse.
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
    """Directions v and what is known of them."""

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
