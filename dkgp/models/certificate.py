"""Proven bounds of a fitted model, from its float64 residual alone.

For any alpha with residual r = y - Kbar alpha, the error of the predictive mean m(x) = k_x' alpha is k_x' Kbar^-1 r.
Since k_x' Kbar^-1 k_x <= k(x, x) and Kbar^-1 <= I / s2, Cauchy's inequality in the Kbar^-1 inner product gives

    |m(x) - m_exact(x)| <= sqrt(k(x, x)) ||r|| / s,        s2 = s^2 the noise variance,

at every x, without knowing the exact solution. If the noise differs by sample, r'Kbar^-1 r <= sum_i r_i^2 / s2_i. The
formula then holds with s2 the least of the s2_i and with r_i multiplied by sqrt(s2 / s2_i).

The exact model uses the kernel at the standardised inputs rounded to float64, and the targets under their stored
standardisation. The bounds include the roundings of r and of a predicted mean, and the error of an approximate product
if r comes from one.

An entry k(x, x') is at most sqrt(k(x, x) k(x', x')). Its error is at most eps times this bound times the sum of the two
rows' errors (`TileEvaluator.row_errors`). With w_i = sqrt(k(x_i, x_i) / max k), a few outliers with a huge polynomial
kernel do not widen the bounds of the other samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from dkgp.codec import from_json, rule, to_json
from dkgp.errors import InputError
from dkgp.html import html_repr
from dkgp.kernels import Kernel
from dkgp.kernels.tiles.slopes import SlopeSizes
from dkgp.models.rounding import (
    EPS,
    EVALUATION,
    LOST,
    UNIT,
    bounding,
    column_lengths,
    known,
    mean_roundings,
    product_roundings,
    slope_roundings,
    step_roundings,
)
from dkgp.operators.base import FloatArray, Variances

_WRITTEN_BY_OTHERS = "Its file was written by something else than dkgp, or damaged; train again"


class Proof(ABC):
    """Proven bounds: a dataclass of numbers."""

    # Fields with a number for each target or decision function.
    by_target: ClassVar[tuple[str, ...]] = ()

    _repr_html_ = html_repr

    @property
    @abstractmethod
    def statement(self) -> str:
        """The proven statement, in one line."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, including the derived bounds for readers."""
        document: dict[str, Any] = to_json(self)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the certificate that `to_json`, or an older version, wrote; `InputError` for anything else."""
        return from_json(cls, document, older=cls._older, called="a certificate", advice=_WRITTEN_BY_OTHERS)

    def __post_init__(self) -> None:
        self._check()

    @classmethod
    def _older(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Convert a document of an earlier version to the current version."""
        return document

    def _check(self) -> None:
        """Raise `InputError` if fields have numbers for different targets."""
        lengths = {name: len(getattr(self, name)) for name in self.by_target}
        if len(set(lengths.values())) > 1:
            raise InputError(
                f"a certificate has numbers for different targets: {lengths}; expected one count. {_WRITTEN_BY_OTHERS}"
            )


@dataclass(frozen=True)
class Certificate(Proof):
    """Bounds on a solution and on the means predicted from it, on the standardised scale.

    Attributes
    ----------
    noise_variance : float
        s2; the least noise variance of the samples if they differ.
    n : int
        Number of samples.
    residual_norm : tuple of p floats
        ||y_t - Kbar alpha_t|| for each target t, evaluated in float64; with noise by sample, entries are multiplied by
        sqrt(s2 / s2_i).
    residual_rounding : tuple of p floats
        Bound on the norm, with the same weights, of the difference between the exact residual and the evaluated one.
    magnitude : tuple of p floats
        sum_j sqrt(k(x_j, x_j)) |alpha_jt|: the roundings of a mean's sum are in proportion to it.
    spread : tuple of p floats
        The sum of `magnitude` with each term times its row's error.
    product_error : float
        Bound on the error of any entry of Kbar alpha by an approximate operator; 0 where the product was exact.
    product_norm : tuple of p floats
        Bound on the norm, with the same weights, of each column's errors. Empty for exact products and in older stores.
    assumes : str or None
        Unproven assumptions; None if everything is proven.
    rounding, largest
        For certificates of older versions, which do not include every rounding: the bound on the rounding of a mean,
        and the max Kbar_ii that belongs to it if k(x, x) varies. None otherwise.
    """

    by_target: ClassVar = ("residual_norm", "residual_rounding")
    derived: ClassVar = ("mean_error_bound_at_unit_variance", "alpha_error_bound")

    noise_variance: float
    n: int
    residual_norm: tuple[float, ...]
    residual_rounding: tuple[float, ...]
    magnitude: tuple[float, ...]
    spread: tuple[float, ...]
    product_error: float = 0.0
    product_norm: tuple[float, ...] = ()
    assumes: str | None = None
    rounding: tuple[float, ...] | None = field(default=None, metadata=rule(omit_default=True))
    largest: float | None = field(default=None, metadata=rule(omit_default=True))

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # NaN bounds nothing: see `known`
    def of(
        cls,
        alpha: FloatArray,
        gradient: FloatArray,
        targets: FloatArray,
        noise_variance: Variances,
        kernel_diagonal: float | FloatArray,
        row_errors: FloatArray,
        *,
        stepped: FloatArray | None = None,
        product_errors: FloatArray | None = None,
    ) -> Certificate:
        """Certify `alpha` (n, p) by its gradient g = Kbar alpha - y (n, p), evaluated again in float64.

        Parameters
        ----------
        alpha, gradient, targets : (n, p) float64
            Targets standardised.
        noise_variance : float or (n,) float64
            s2, or s2_i of each sample.
        kernel_diagonal : float or (n,) float64
            k(x, x): one number if it is constant, else one number for each sample.
        row_errors : (n,) float64
            Row errors of the samples; see `TileEvaluator.row_errors`.
        stepped : (n, p) float64, optional
            |P| |A|, if g is the gradient before a step P A plus (Kbar P) A, with both products in float64.
        product_errors : (n, p) float64, optional
            Bounds on the errors of the entries of g from an approximate product; None or empty for exact products.
        """
        n, noise = len(alpha), np.asarray(noise_variance)
        least = float(noise.min())
        # Weights of the rows of r, if the noise differs by sample; their relative error is at most 2u.
        weights = np.sqrt(least / noise) if noise.ndim else None

        def weighed(values: FloatArray) -> FloatArray:
            return values if weights is None else (weights * values.T).T

        # The factor covers the error of the computed k(x, x).
        scale = np.sqrt(np.broadcast_to(np.asarray(kernel_diagonal), (n,))) * (1.0 + 2.0 * EPS * row_errors)
        magnitude = scale @ np.abs(alpha)
        spread = (scale * row_errors) @ np.abs(alpha)
        # The terms of g, and their roundings. Without a step the terms are those of alpha. With a step they are those
        # of the earlier alpha, at most |alpha| plus the step's terms, and the step's terms again: these are summed
        # first, and then added.
        terms, roundings = np.abs(alpha), product_roundings(n) * UNIT
        if stepped is not None and stepped.size:
            terms, roundings = terms + 2.0 * stepped, roundings + step_roundings(alpha.shape[1]) * UNIT
        off = column_lengths(weighed(scale * (roundings + EPS * row_errors))) * (scale @ terms)
        off += EPS * column_lengths(weighed(scale)) * ((scale * row_errors) @ terms)
        # s2 alpha is added to the sum over K, the difference g is rounded, and a standardised target has two roundings.
        if weights is None:
            off += roundings * least * column_lengths(terms)
        else:
            off += roundings * column_lengths(weighed((noise * terms.T).T))
        length = column_lengths(weighed(gradient))
        off += (n + (5 if weights is None else 8)) * UNIT * length + 2.0 * UNIT * column_lengths(weighed(targets))
        # Products of the smallest numbers lose an absolute amount.
        off += n * np.sqrt(n) * LOST
        largest, lengths = 0.0, np.zeros(0)
        if product_errors is not None and product_errors.size:
            # The norms are evaluated like that of g.
            largest = float(product_errors.max())
            lengths = known(column_lengths(weighed(product_errors)) * (1.0 + EVALUATION * (n + 8) * UNIT))
        return cls(
            least,
            n,
            residual_norm=tuple(length.tolist()),
            residual_rounding=tuple(known(EVALUATION * off).tolist()),
            magnitude=tuple(known(EVALUATION * magnitude).tolist()),
            spread=tuple(known(EVALUATION * spread).tolist()),
            product_error=largest,
            product_norm=tuple(lengths.tolist()),
        )

    @property
    def complete(self) -> bool:
        """True if every rounding is counted; False for certificates of older stores."""
        return self.rounding is None

    @property
    def product_lengths(self) -> FloatArray:
        """Bounds on the weighted norm of each column's errors by an approximate product: (p,)."""
        if self.product_norm:
            return np.asarray(self.product_norm)
        return np.full(len(self.residual_norm), np.sqrt(self.n) * self.product_error * (1.0 + 2.0 * EPS))

    @property
    def proven_residual_norm(self) -> FloatArray:
        """Upper bounds on the exact weighted ||r_t||, including rounding and the product's error: (p,)."""
        bound: FloatArray = np.asarray(self.residual_norm) + np.asarray(self.residual_rounding) + self.product_lengths
        return bound * (1.0 + 4.0 * EPS)

    @bounding
    def mean_error_bound(self, prior_variance: FloatArray, row_errors: FloatArray | None = None) -> FloatArray:
        """Return bounds on |m(x) - m_exact(x)| at test samples, standardised: (r, p).

        Parameters
        ----------
        prior_variance : (r,) float64
            k(x, x), as computed.
        row_errors : (r,) float64, optional
            Row errors of the test samples; by default the largest weighted average of the training samples' row errors.
        """
        scale, factor = np.sqrt(prior_variance)[:, None], self.proven_residual_norm / np.sqrt(self.noise_variance)
        if self.rounding is not None:
            weight = 1.0 if self.largest is None else scale / np.sqrt(self.largest)
            before: FloatArray = scale * factor + weight * np.asarray(self.rounding)
            return before
        magnitude, spread = np.asarray(self.magnitude), np.asarray(self.spread)
        if row_errors is None:
            typical = float(np.max(np.divide(spread, magnitude, out=np.zeros_like(spread), where=magnitude > 0.0)))
            row_errors = np.full(len(scale), typical)
        errors = row_errors[:, None]
        rounding = (mean_roundings(self.n) * UNIT + EPS * errors) * magnitude + EPS * spread
        return np.asarray(scale * (1.0 + EPS * (2.0 * errors + 8.0)) * (factor + EVALUATION * rounding))

    @bounding
    def by_variance(self, bound: FloatArray, kernel: Kernel, highest: FloatArray) -> FloatArray:
        """Return bounds of means that use the variance at a test sample instead of k(x, x): (r, p).

        With h = Kbar^-1 k_x the error of the mean is h'r, and V(x) >= sum_i s2_i h_i^2. So |h'r| is at most sqrt(V(x))
        ||r|| / s, where Cauchy's inequality in Kbar^-1 has sqrt(k(x, x)). Bounds of a kernel whose k(x, x) varies are
        returned unchanged.

        Parameters
        ----------
        bound : (r, p) float64
            Bounds from `mean_error_bound`.
        kernel : Kernel
        highest : (r,) float64
            Upper bounds on V(x), standardised; upper bounds for new observations are valid too.
        """
        if not (self.complete and kernel.stationary):
            return bound
        prior_variance = kernel.diagonal(np.zeros((1, kernel.n_features)))
        factor = self.proven_residual_norm / np.sqrt(self.noise_variance)
        less = np.sqrt(prior_variance) * (1.0 - 8.0 * EPS) - np.sqrt(np.maximum(highest, 0.0)) * (1.0 + 8.0 * EPS)
        taken = bound - np.maximum(less, 0.0)[:, None] * (factor * (1.0 - 8.0 * EPS))
        # The difference rounds, and the subtracted part was in the bound.
        return np.asarray(np.minimum(bound, np.maximum(taken, 0.0) + 4.0 * EPS * bound))

    @bounding
    def gradient_error_bound(self, sizes: SlopeSizes, columns_errors: float, leaves: int) -> FloatArray:
        """Return bounds on the error of each computed derivative of the mean: (r, p, d).

        Parameters
        ----------
        sizes : SlopeSizes
            Sizes of the test samples.
        columns_errors : float
            The largest e of any training sample; see `SlopeSizes`.
        leaves : int
            Number of leaves of the kernel; see `SlopeEvaluator`.
        """
        distance = self.proven_residual_norm / np.sqrt(self.noise_variance) * (1.0 + 8.0 * EPS)
        bound = sizes.slope[:, None, :] * distance[:, None]
        if not self.complete:
            return np.full_like(bound, np.inf)
        return np.asarray(bound + slope_rounding(sizes, columns_errors, leaves, self.n, np.asarray(self.magnitude)))

    @property
    def alpha_error_bound(self) -> FloatArray:
        """Bound on ||alpha_t - alpha_exact_t|| = ||Kbar^-1 r_t|| <= ||Kbar^-1/2 r_t|| / s <= ||r_t|| / s2: (p,)."""
        bound: FloatArray = self.proven_residual_norm / self.noise_variance * (1.0 + 4.0 * EPS)
        return bound

    @property
    def mean_error_bound_at_unit_variance(self) -> FloatArray:
        """`mean_error_bound` for a prior variance of 1: (p,)."""
        bound: FloatArray = self.mean_error_bound(np.ones(1))[0]
        return bound

    @property
    def statement(self) -> str:
        """The proven statement, in one line."""
        bound = float(self.mean_error_bound_at_unit_variance.max())
        return (
            f"means within {bound:.2g} standard deviations of the targets of the exact ones, for a prior variance of 1"
        )

    @classmethod
    def _older(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Convert a certificate that has one rounding for all entries; its residual rounding is weighted over all rows.

        See `complete`.
        """
        if "magnitude" in document:
            return document
        off = (document.get("weight_norm") or np.sqrt(float(document["n"]))) * np.asarray(document["rounding"])
        return {**document, "residual_rounding": off.tolist(), "magnitude": (), "spread": ()}


def slope_rounding(sizes: SlopeSizes, columns_errors: float, leaves: int, n: int, magnitude: FloatArray) -> FloatArray:
    """Return rounding bounds (r, t, d) of sums of derivatives over n samples, for weights of `magnitude` (t,)."""
    roundings = UNIT * EVALUATION * (slope_roundings(n, leaves) + columns_errors + sizes.errors)
    off: FloatArray = (sizes.terms * roundings[:, None])[:, None, :] * magnitude[:, None]
    return off
