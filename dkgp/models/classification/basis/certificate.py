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

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.models.rounding import EPS, EVALUATION, UNIT, assumptions, product_roundings
from dkgp.models.sparse.errors import SampleErrors
from dkgp.operators.base import FloatArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.solvers.losses import Loss

__all__ = ["BasisCertificate", "certify_basis"]

# Slopes as computed: in relation to themselves, and to the greatest curvature where they come of differences.
SLOPE_ROUNDINGS = 32.0 * EPS
FEW = 1.0 + 16.0 * EPS


@dataclass(frozen=True)
class BasisCertificate:
    """Bounds on decisions k_m(x)'beta of a basis.

    Attributes
    ----------
    m : int
        Basis samples.
    distance : tuple of t floats
        |f - f*|_H at most, f* the minimiser over all functions.
    excess : tuple of p floats
        R(f) - R(f*) at most.
    magnitude, spread : tuple of t floats
        Sum of sqrt(k(z, z)) |beta|, and the same with each term times its row's error: what the roundings of a
        decision are in proportion to.
    assumes : str or None
        What had to be taken on trust.
    """

    m: int
    distance: tuple[float, ...]
    excess: tuple[float, ...]
    magnitude: tuple[float, ...]
    spread: tuple[float, ...]
    assumes: str | None = None

    def decision_error_bound(
        self, decisions: FloatArray, prior_variance: FloatArray, row_errors: FloatArray
    ) -> FloatArray:
        """Bound on |f(x) - f*(x)| at test samples: (r, t).

        Parameters
        ----------
        decisions : (r, t) float64
            k_m(x)'beta, as computed.
        prior_variance : (r,) float64
            k(x, x), as computed.
        row_errors : (r,) float64
            Of the test samples.
        """
        scale = np.sqrt(prior_variance) * (1.0 + EPS * (2.0 * row_errors + 8.0))
        unit = product_roundings(self.m) * UNIT + EPS * row_errors
        rounding = unit[:, None] * np.asarray(self.magnitude) + EPS * np.asarray(self.spread)
        own = EVALUATION * (scale[:, None] * rounding + UNIT * np.abs(decisions))
        return np.asarray((own + scale[:, None] * np.asarray(self.distance)) * FEW)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        columns = {name: list(getattr(self, name)) for name in ("distance", "excess", "magnitude", "spread")}
        return {"m": self.m, **columns, "assumes": self.assumes}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> BasisCertificate:
        """Rebuild from `to_json`."""
        columns = {name: tuple(document[name]) for name in ("distance", "excess", "magnitude", "spread")}
        return cls(m=int(document["m"]), **columns, assumes=document.get("assumes"))


def certify_basis(
    operator: BlockedKernelOperator,
    cross: CrossKernel,
    weights: FloatArray,
    values: FloatArray,
    targets: FloatArray,
    loss: Loss,
    regularisation: float,
    sample_weights: FloatArray | None = None,
) -> BasisCertificate:
    """Certify a function of a basis; one product with K and one with K_mn.

    Parameters
    ----------
    operator : BlockedKernelOperator
        Its noise variance plays no part.
    cross : CrossKernel
    weights : (m, t) float64
        beta.
    values : (n, t) float64
        f at the samples, as K_nm beta was computed.
    targets : (n, t) float64
    loss : Loss
    regularisation : float
        lambda.
    sample_weights : (n,) float64, optional
        w; ones by default.
    """
    t, lam = values.shape[1], regularisation
    errors = SampleErrors.of(operator, cross.prototypes)
    each = np.ones((len(values), 1)) if sample_weights is None else sample_weights[:, None]
    u = each * loss.slope(targets, values)
    at_samples = lam * values + (operator.matmat(u, "double") - operator.noise_times(u))
    at_basis = lam * cross.inner(weights) + cross.project(u)
    squares = lam * np.einsum("mt,mt->t", weights, at_basis) + np.einsum("nt,nt->t", u, at_samples)
    constant, by_error = errors.products(weights)
    samples, prototypes = errors.samples, errors.prototypes
    # By how much f as computed is off at each sample: (n, t).
    off_values = samples.scale[:, None] * constant + (samples.scale * samples.errors)[:, None] * by_error
    off_products = _product_errors(operator, samples.scale, samples.errors, u, at_samples)
    off_samples = lam * off_values + off_products + 4.0 * UNIT * (lam * np.abs(values) + np.abs(at_samples))
    size, spread = prototypes.size(weights), prototypes.spread(weights)
    inner = (cross.m + 4) * UNIT * size + 2.0 * EPS * (spread + size * float(prototypes.errors.max()))
    off_basis = prototypes.scale[:, None] * (lam * EVALUATION * inner + errors.projections(u))
    off_basis = off_basis + 4.0 * UNIT * np.abs(at_basis)
    summed = (len(u) + cross.m + 8) * UNIT
    off = lam * np.einsum("mt,mt->t", np.abs(weights), off_basis + summed * np.abs(at_basis))
    off += np.einsum("nt,nt->t", np.abs(u), off_samples + summed * np.abs(at_samples))
    # A coupled loss's slope answers to all columns of a sample.
    off_each = np.linalg.norm(off_values, axis=1, keepdims=True) * FEW if loss.coupled else off_values
    slopes = each * loss.curvature_bound * (off_each + SLOPE_ROUNDINGS) + 2.0 * SLOPE_ROUNDINGS * np.abs(u)
    moved = samples.scale @ slopes
    lengths = np.sqrt(np.maximum(squares, 0.0) + EVALUATION * off) * FEW + EVALUATION * moved
    if loss.coupled:
        lengths = np.array([math.sqrt(float(np.sum(lengths**2))) * FEW])
    distance = np.broadcast_to(lengths / lam * FEW, (t,))
    return BasisCertificate(
        cross.m,
        tuple(distance.tolist()),
        tuple((0.5 * lengths**2 / lam * FEW).tolist()),
        tuple((EVALUATION * size).tolist()),
        tuple((EVALUATION * spread).tolist()),
        assumptions(operator.kernel),
    )


def _product_errors(
    operator: BlockedKernelOperator, scale: FloatArray, row_errors: FloatArray, u: FloatArray, images: FloatArray
) -> FloatArray:
    """Bounds on the entries of what K u is off by: (n, t); see `dkgp.models.certificate`."""
    roundings, absolute = product_roundings(len(u)) * UNIT, np.abs(u)
    sizes, spreads = scale @ absolute, (scale * row_errors) @ absolute
    off = (scale * (roundings + EPS * row_errors))[:, None] * sizes + EPS * scale[:, None] * spreads
    noise = np.broadcast_to(np.asarray(operator.noise, dtype=np.float64), (len(u),))[:, None]
    return np.asarray(EVALUATION * (off + (roundings + 4.0 * UNIT) * noise * absolute + 4.0 * UNIT * np.abs(images)))
