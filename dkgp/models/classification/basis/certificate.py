"""Proven distance of a basis' function to the one that is best of all, roundings counted.

The regularised risk R(f) = sum_i w_i l(y_i, f(x_i)) + lambda |f|_H^2 / 2 is lambda-strongly convex over all of H. With
its gradient at any f of H, G = lambda f + sum_i u_i k(x_i, .), u_i = w_i l'(y_i, f(x_i)), and f* its minimiser,

    lambda |f - f*|_H^2 <= <G, f - f*>,    so that    |f - f*|_H <= |G|_H / lambda    and
    |f(x) - f*(x)| <= sqrt(k(x, x)) |G|_H / lambda,    R(f) - R(f*) <= |G|_H^2 / (2 lambda),

which is the duality gap R(f) - D(u) of u: the same bound, without logarithms. For f = sum_j beta_j k(z_j, .)

    |G|_H^2 = lambda beta'(lambda K_mm beta + K_mn u) + u'(lambda f(X) + K u),

a product with K, in which each bracket is small where f is good, so that what cancels, cancels first. Slopes that are
off by delta move G by no more than sum_i |delta_i| sqrt(k(x_i, x_i)). The classes of a coupled loss are one function of
values in R^C, and share one bound.

There is no bound on the root mean square over the samples that is better than this one: a loss that is not strongly
convex does not see by how much the values differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.models.classification.bounds import FEW
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.certificate import RiskCertificate
from dkgp.models.rounding import EPS, EVALUATION, UNIT, assumptions, product_roundings
from dkgp.models.sparse.errors import SampleErrors
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel


@dataclass(frozen=True)
class CertifiedBasis:
    """Proofs of a basis' function: of its decisions, and R(f) - R(f*) at most, of each problem.

    The certificate's radius is the distance to the minimiser over all functions.
    """

    certificate: RiskCertificate
    excess: tuple[float, ...]


@np.errstate(over="ignore", invalid="ignore")  # what comes to no number bounds nothing: see `bounding`
def certify_basis(
    operator: BlockedKernelOperator,
    cross: CrossKernel,
    weights: FloatArray,
    values: FloatArray,
    targets: FloatArray,
    likelihood: Likelihood,
    regularisation: float,
    sample_weights: FloatArray | None = None,
) -> CertifiedBasis:
    """Certify f = K_nm beta; one product with K and one with K_mn. The operator's noise variance plays no part.

    `weights` (m, t) are beta, `values` (n, t) f at the samples, as K_nm beta was computed; `regularisation` is lambda,
    and `sample_weights` (n,) are w, ones by default.
    """
    t, lam = values.shape[1], regularisation
    errors = SampleErrors.of(operator, cross.prototypes)
    counts = np.ones((len(values), 1)) if sample_weights is None else sample_weights[:, None]
    u = counts * likelihood.loss.slope(targets, values)
    at_samples = lam * values + (operator.matmat(u, "double") - operator.noise_times(u))
    at_basis = lam * cross.inner(weights) + cross.project(u)
    squares = lam * np.einsum("mt,mt->t", weights, at_basis) + np.einsum("nt,nt->t", u, at_samples)
    constant, by_error = errors.products(weights)
    samples, prototypes = errors.samples, errors.prototypes
    # By how much f as computed is off at each sample: (n, t).
    off_values = samples.scale[:, None] * constant + (samples.scale * samples.errors)[:, None] * by_error
    off_products = _product_errors(operator, samples.scale, samples.errors, u, at_samples) + operator.error_bound
    off_samples = lam * off_values + off_products + 4.0 * UNIT * (lam * np.abs(values) + np.abs(at_samples))
    size, spread = prototypes.size(weights), prototypes.spread(weights)
    inner = (cross.m + 4) * UNIT * size + 2.0 * EPS * (spread + size * float(prototypes.errors.max()))
    off_basis = prototypes.scale[:, None] * (lam * EVALUATION * inner + errors.projections(u))
    off_basis = off_basis + 4.0 * UNIT * np.abs(at_basis)
    summed = (len(u) + cross.m + 8) * UNIT
    off = lam * np.einsum("mt,mt->t", np.abs(weights), off_basis + summed * np.abs(at_basis))
    off += np.einsum("nt,nt->t", np.abs(u), off_samples + summed * np.abs(at_samples))
    # The slopes at f lie between these; the product with a weight is one rounding.
    low, high = likelihood.slopes(targets, values, off_values)
    slopes = np.maximum(np.abs(counts * low - u), np.abs(counts * high - u)) + 4.0 * UNIT * np.abs(u)
    lengths = np.sqrt(np.maximum(squares, 0.0) + EVALUATION * off) * FEW + EVALUATION * (samples.scale @ slopes)
    if likelihood.coupled:
        lengths = np.full(t, np.linalg.norm(lengths) * FEW)
    certificate = RiskCertificate(
        n=cross.m,
        radius=tuple((lengths / lam * FEW).tolist()),
        magnitude=tuple((EVALUATION * size).tolist()),
        spread=tuple((EVALUATION * spread).tolist()),
        coupled=likelihood.coupled,
        assumes=assumptions(operator.kernel),
    )
    excess = 0.5 * lengths[: 1 if likelihood.coupled else t] ** 2 / lam * FEW
    return CertifiedBasis(certificate, tuple(excess.tolist()))


def _product_errors(
    operator: BlockedKernelOperator, scale: FloatArray, row_errors: FloatArray, u: FloatArray, images: FloatArray
) -> FloatArray:
    """Bounds on the entries of what K u is off by: (n, t); see `dkgp.models.certificate`."""
    roundings, absolute = product_roundings(len(u)) * UNIT, np.abs(u)
    sizes, spreads = scale @ absolute, (scale * row_errors) @ absolute
    off = (scale * (roundings + EPS * row_errors))[:, None] * sizes + EPS * scale[:, None] * spreads
    noise = np.broadcast_to(np.asarray(operator.noise, dtype=np.float64), (len(u),))[:, None]
    return np.asarray(EVALUATION * (off + (roundings + 4.0 * UNIT) * noise * absolute + 4.0 * UNIT * np.abs(images)))
