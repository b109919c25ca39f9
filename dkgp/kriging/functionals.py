"""Predictions of averages of a field, with proven bounds: linear functionals L f = sum_q w_q f(z_q).

With k_L = sum_q w_q k(., z_q), h_L and c_LL in the place of k_x, h(x) and k(x, x) all formulas of a prediction hold.
The system Kbar v = k_L is solved for many functionals together. With the residual r = k_L - Kbar v,

    k_L'Kbar^-1 k_L = v'k_L + v'r + r'Kbar^-1 r,     0 <= r'Kbar^-1 r <= sum_i r_i^2 / s2_i,

and a mean k_L'A from the stored solution A is off by k_L'Kbar^-1 R, R its residual. Of this v'R is added to the mean,
and r'Kbar^-1 R_j <= |r| |R_j| / s2 is in the bound. The average over a block has an exact k_L (`outlines`), and c_LL in
an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import ModelRecord
from dkgp.data.types import FloatArray
from dkgp.errors import ClusterError
from dkgp.kernels import kernel_from_json
from dkgp.kriging.field import Field
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.rounding import (
    EPS,
    EVALUATION,
    UNIT,
    certified_row_errors,
    column_lengths,
    mean_in_units,
    sum_roundings,
    variance_in_units,
)
from dkgp.models.solver_choice import factor_for
from dkgp.models.trend import RUN_ROWS, Trend
from dkgp.operators.base import column_of
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers import ConjugateGradient, GradientInfNorm, Solver, solve

# Widths of c_LL, of the posterior variance: wider ones are narrowed; and of the prior variance: none is asked for.
GAP, LEAST = 0.02, 1e-8


@dataclass(frozen=True, eq=False)
class Averages:
    """Predictions of B functionals, in the target's units: (B, p) each. The exact values lie within the bounds."""

    mean: FloatArray
    bound: FloatArray
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True, eq=False)
class Integrals:
    """The exact k_L of B functionals, (n, B), on the engine's scale, and the ends of c_LL: (B,) each.

    Attributes
    ----------
    off : (B,)
        Bounds on the lengths of the errors of the columns.
    missed, moved : (B, p + q)
        Bounds on the errors of k_L'A, A the stored solutions, and on its change for the functional that is predicted.
    astray : (B,)
        Bounds on the prior deviations of the functionals from those that are predicted.
    narrowed : callable
        From a functional's number and a width: the ends of its c_LL, so far apart where that can be had.
    """

    columns: FloatArray
    off: FloatArray
    missed: FloatArray
    moved: FloatArray
    low: FloatArray
    high: FloatArray
    astray: FloatArray
    narrowed: Callable[[int, float], tuple[float, float]]


def averages(
    field: Field,
    rows: FloatArray,
    weights: FloatArray,
    context: RunContext,
    *,
    tolerance: float | None = None,
    integrals: Integrals | None = None,
) -> Averages:
    """Predict weighted averages of the signal.

    Parameters
    ----------
    field : Field
    rows : (m, d + c) float64
        The engine's standardised inputs of the nodes, and covariates.
    weights : (m, B) float64
        Of each functional: nonnegative, of sum 1.
    context : RunContext
        Who computes. Memory in this process: some six arrays of n x B numbers.
    tolerance : float, optional
        Largest entry of the residual of the systems; by default one at which a variance is known to 1e-8 of the prior.
    integrals : Integrals, optional
        The averages are these functionals; the nodes serve the mean's columns alone.
    """
    field = field.readable_by(context.executor)
    model, trend = field.record, Trend.held(field.record.trend)
    kernel, noise = Noise.of_model(model).without_white(kernel_from_json(model.kernel))
    nodes = np.ascontiguousarray(rows[:, : model.n_features])
    source = field.source
    if tolerance is None:
        tolerance = 1e-4 * float(np.sqrt(np.min(noise.diagonal) / model.n_samples))
    with single_threaded_blas(), context.operator(kernel, noise.diagonal, source, tolerance=tolerance) as operator:
        columns = CrossKernel(operator, nodes).columns(weights) if integrals is None else integrals.columns
        solver = solver_of(field, context, columns.shape[1], tolerance)
        solution = solve(operator, columns, solver=solver, stopping=GradientInfNorm(tolerance), watch=context)
        samples = operator.row_errors()
        certificate = Certificate.of(
            solution.alpha,
            solution.gradient,
            columns,
            operator.noise,
            kernel.diagonal(nodes[:1])[0],
            samples,
            stepped=solution.stepped,
            product_errors=solution.product_errors,
        )
    off: float | FloatArray
    if integrals is None:
        low, high = prior_variances(field, nodes, weights)
        errors = float(certified_row_errors(kernel, source, nodes).max()) + len(nodes)
        # Entries are off by their rows' errors, sums over nodes by a rounding a term.
        off = EVALUATION * (EPS * (float(samples.max()) + errors + 8.0) * np.sqrt(len(columns)))
    else:
        low, high, off, errors = integrals.low, integrals.high, integrals.off, 0.0
    taken = _quadratic_forms(solution.alpha, solution.gradient, columns, noise, certificate, off)
    if integrals is not None:
        low, high = low.copy(), high.copy()
        for index in np.flatnonzero(high - low > GAP * (high - taken[0])):
            ends = integrals.narrowed(int(index), GAP * max(float(low[index] - taken[1][index]), LEAST))
            low[index], high[index] = max(low[index], ends[0]), min(high[index], ends[1])
    lower = np.maximum(low * (1.0 - 4.0 * EPS) - taken[1], 0.0)
    upper = high * (1.0 + 4.0 * EPS) - taken[0]
    stored = Certificate.from_json(dict(model.certificate))
    n = model.n_samples
    mean = np.zeros((columns.shape[1], model.alpha.shape[1]))
    for start in range(0, n, RUN_ROWS):
        mean += columns[start : start + RUN_ROWS].T @ model.alpha[start : start + RUN_ROWS]
    row = np.full(len(mean), errors + sum_roundings(n, RUN_ROWS) + 8.0)
    # The solve's part is in proportion to the functional's prior deviation, and not to that of a point.
    nothing = (0.0,) * mean.shape[1]
    roundings = replace(stored, residual_norm=nothing, residual_rounding=nothing, product_error=0.0, product_norm=())
    unsolved = np.sqrt(high)[:, None] * (1.0 + 16.0 * EPS) * _distances(stored)
    shift, corrected = _correction(model, noise, solution.alpha, (stored, certificate), off)
    is_better = corrected < unsolved
    mean += np.where(is_better, shift, 0.0)
    bound = roundings.mean_error_bound(np.ones(len(mean)), row) + np.where(is_better, corrected, unsolved)
    bound += 4.0 * UNIT * np.abs(mean)
    product_error = np.zeros_like(bound)
    if integrals is not None:
        moved = np.minimum(integrals.moved, integrals.astray[:, None] * _norms(model, noise, stored))
        product_error = integrals.missed + moved + integrals.astray[:, None] * _distances(stored)
    bound = bound + product_error
    to = model.standardisation
    if trend is not None:
        values = trend.kind.columns_at(rows)
        # Averages of the mean's columns have a rounding a node.
        off_columns = EVALUATION * (len(nodes) + 4.0) * UNIT * (weights.T @ np.abs(values))
        bound[:, len(trend.missed) :] += off_columns
        product_error = product_error.copy()
        product_error[:, len(trend.missed) :] += off_columns
        known = trend.taken(mean, bound, weights.T @ values, product_error)
        mean, bound = known.mean, known.bound
        lower, upper = known.widened(lower, upper)
    if integrals is not None:
        lower = np.maximum(np.sqrt(lower) * (1.0 - 4.0 * EPS) - integrals.astray, 0.0) ** 2 * (1.0 - 4.0 * EPS)
        upper = (np.sqrt(np.maximum(upper, 0.0)) * (1.0 + 4.0 * EPS) + integrals.astray) ** 2 * (1.0 + 4.0 * EPS)
    mean, bound = mean_in_units(mean, bound, to.target_std, to.target_mean)
    # The targets' offset is added once, and weights add up to one but for their roundings.
    astray = np.abs(weights.sum(axis=0) - 1.0) + (len(nodes) + 2.0) * UNIT * EVALUATION
    bound = np.nextafter(bound + astray[:, None] * np.abs(to.target_mean), np.inf)
    return Averages(mean, bound, *variance_in_units(lower, np.maximum(upper, 0.0), to.target_std))


def solver_of(field: Field, context: RunContext, count: int, tolerance: float) -> Solver | None:
    """Return the solver of `count` systems of a field: conjugate gradients, where all workers compute alike."""
    try:
        context.executor.require_one_arithmetic()
    except ClusterError:
        return None
    model = field.record
    kernel, noise = Noise.of_model(model).without_white(kernel_from_json(model.kernel))
    return ConjugateGradient(factor_for(model, kernel, noise, count, tolerance=tolerance))


def _distances(certificate: Certificate) -> FloatArray:
    """Return bounds on the root of r'Kbar^-1 r of each column."""
    return np.asarray(certificate.proven_residual_norm / np.sqrt(certificate.noise_variance) * (1.0 + 4.0 * EPS))


def _norms(model: ModelRecord, noise: Noise, stored: Certificate) -> FloatArray:
    """Return bounds on the norms of the functions k_x'A in the kernel's space; infinite where they are not known.

    That of a solution a of Kbar a = y + g, g the stored gradient, is at most the root of a'(y + g).
    """
    norms, state = np.full(model.alpha.shape[1], np.inf), model.training_state()
    if state is None:
        return norms
    right = state[0].all_targets()
    n, p = right.shape
    right = right + state[1][:, :p]
    weights, alpha = np.sqrt(np.broadcast_to(noise.diagonal, (n,)) / stored.noise_variance), model.alpha[:, :p]
    unknown = (np.asarray(stored.residual_rounding) + stored.product_lengths)[:p]
    slack = column_lengths(column_of(weights) * alpha) * unknown + (n + 8.0) * UNIT * (
        np.abs(alpha) * np.abs(right)
    ).sum(0)
    norms[:p] = np.sqrt((alpha * right).sum(axis=0) + EVALUATION * slack) * (1.0 + 4.0 * EPS)
    return norms


def _correction(
    model: ModelRecord,
    noise: Noise,
    v: FloatArray,
    certificates: tuple[Certificate, Certificate],
    off: float | FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return v'r, r the stored solution's residual, and the bound on its distance from k_L'Kbar^-1 r: (B, p + q) each.

    It is |v| times the residual's own errors, and the product of both residuals' lengths in Kbar^-1. Infinite for a
    model without its residual. The certificates are those of the stored solution and of v.
    """
    stored, certificate = certificates
    state, shape = model.training_state(), (v.shape[1], len(stored.residual_norm))
    if state is None:
        return np.zeros(shape), np.full(shape, np.inf)
    gradient, n = state[1], len(v)
    weights = np.sqrt(np.broadcast_to(noise.diagonal, (n,)) / stored.noise_variance)
    lengths = column_lengths(column_of(weights) * v) * (1.0 + n * UNIT)
    unknown = np.asarray(stored.residual_rounding) + stored.product_lengths
    rest = _distances(certificate) + off / np.sqrt(certificate.noise_variance)
    error = lengths[:, None] * unknown + (n + 8.0) * UNIT * (np.abs(v).T @ np.abs(gradient))
    return -(v.T @ gradient), EVALUATION * (error + rest[:, None] * _distances(stored))


def _quadratic_forms(
    alpha: FloatArray,
    gradient: FloatArray,
    columns: FloatArray,
    noise: Noise,
    certificate: Certificate,
    off: float | FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the ends of k_L'Kbar^-1 k_L: (B,) each. `off` bounds the lengths of the errors of k_L."""
    least = certificate.noise_variance
    form = np.einsum("nb,nb->b", alpha, columns) - np.einsum("nb,nb->b", alpha, gradient)
    weights = np.sqrt(np.broadcast_to(noise.diagonal, (len(alpha),)) / least)
    unknown = np.asarray(certificate.residual_rounding) + certificate.product_lengths
    sizes = np.einsum("nb,nb->b", np.abs(alpha), np.abs(columns) + np.abs(gradient))
    slack = column_lengths(column_of(weights) * alpha) * unknown * (1.0 + len(alpha) * UNIT)
    slack = EVALUATION * (slack + (len(alpha) + 8.0) * UNIT * sizes)
    low = np.maximum(form - slack, 0.0)
    high = form + slack + certificate.proven_residual_norm**2 / least * (1.0 + 4.0 * EPS)
    # The computed k_L is off: its length in Kbar^-1 by at most that of the error over s.
    change = off / np.sqrt(least)
    return (
        np.maximum(np.sqrt(low) * (1.0 - 2.0 * EPS) - change, 0.0) ** 2 * (1.0 - 4.0 * EPS),
        (np.sqrt(high) * (1.0 + 2.0 * EPS) + change) ** 2 * (1.0 + 4.0 * EPS),
    )


def prior_variances(field: Field, nodes: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of c_LL of each sum over nodes: (B,) each."""
    kernel = kernel_from_json(field.record.kernel)
    prior = np.empty(weights.shape[1])
    for index, column in enumerate(weights.T):
        own = np.flatnonzero(column)
        prior[index] = column[own] @ np.asarray(kernel(nodes[own], nodes[own])) @ column[own]
    # All terms are positive: entries have some roundings of 1, the largest, and the sum one a term.
    unsure = EVALUATION * (len(nodes) + 64.0) * EPS
    return prior - unsure, prior + unsure
