"""Proven bounds of the decisions of a regularised risk's approximate minimiser, from float64 products alone.

R[f] = sum_i w_i l(y_i, f(x_i)) + lambda |f|^2 / 2 has one minimiser f*. For any f = sum_i alpha_i k(x_i, .), whose
gradient is grad = sum_i g_i k(x_i, .) with g_i = w_i l'(y_i, f(x_i)) + lambda alpha_i, f* lies in the ball around
f - grad / (2 lambda) of the radius |grad| / (2 lambda), |grad|^2 = g'K g. So, for any function s,

    |s(x) - f*(x)| <= sqrt(k(x, x)) (|s - f + grad / (2 lambda)| + |grad| / (2 lambda)).

Columns of a loss that couples them are one function of several values: the lengths are those of all together.
`docs/proofs.md` has the proofs (theorem 12), and where each rounding is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data.stores.manifest import columns_of
from dkgp.data.types import BoolArray
from dkgp.html import ProofShown
from dkgp.models.classification.bounds import FEW, SampleSizes, certified_labels, sum_roundings, upward
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.rounding import EPS, EVALUATION, UNIT, bounding, product_roundings
from dkgp.operators.base import FloatArray

# K V in float64 of V, and bounds on its entries' errors beside rounding, by row and column or for all.
Multiply = Callable[[FloatArray], tuple[FloatArray, FloatArray | float]]
# Rows that are looked at together, so that what is made of them stays small; a sum over them is rounded as often.
PIECE_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Minimum:
    """A function that a minimisation of a risk found, and what was evaluated of it, (n, t) float64 each.

    Attributes
    ----------
    regularisation : float
        lambda.
    alpha : (n, t)
    values : (n, t)
        K alpha.
    gradient : (n, t)
        g, as nearly as may be: what it is off by is found from `alpha` and `values`.
    gradient_image : (n, t)
        K g of that very g.
    product_error : (n, t) or float
        Bounds on the errors of the entries of `values` beside rounding.
    image_error : (n, t) or float, optional
        Those of `gradient_image`; by default `product_error`.
    noise : float
        What an operator had on its diagonal when it took the products, and was taken off again.
    """

    regularisation: float
    alpha: FloatArray
    values: FloatArray
    gradient: FloatArray
    gradient_image: FloatArray
    product_error: FloatArray | float = 0.0
    image_error: FloatArray | float | None = None
    noise: float = 0.0

    def stepped(self, share: float) -> FloatArray:
        """Coefficients of f - share grad / lambda, rounded: (n, t)."""
        return self.alpha - (share / self.regularisation) * self.gradient if share else self.alpha

    def stepped_values(self, share: float) -> FloatArray:
        """Its values at the samples, nearly: (n, t)."""
        return self.values - (share / self.regularisation) * self.gradient_image if share else self.values


@dataclass(frozen=True)
class GradientLength:
    """Length of a risk's gradient in the kernel's space, at most: of a column, or of all where the loss couples them.

    Attributes
    ----------
    length : tuple of t floats
        sqrt(g'K g) of the g that was evaluated.
    off : tuple of t floats
        That of what it differs by from the gradient in real numbers.
    coupled : bool
        Whether both are of all columns together, the same in each.
    """

    length: tuple[float, ...]
    off: tuple[float, ...]
    coupled: bool

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # what comes to no number bounds nothing: see `bounding`
    def of(
        cls,
        minimum: Minimum,
        targets: FloatArray,
        likelihood: Likelihood,
        kernel_diagonal: float | FloatArray,
        row_errors: FloatArray,
        weights: FloatArray | None = None,
        multiply: Multiply | None = None,
    ) -> GradientLength:
        """Evaluate it.

        Parameters
        ----------
        minimum : Minimum
        targets : (n, t) float64
            As of `Likelihood.targets`.
        likelihood : Likelihood
        kernel_diagonal : float or (n,) float64
            k(x, x): one number where it is the same everywhere, one for each sample elsewhere.
        row_errors : (n,) float64
            Of the samples; see `TileEvaluator.row_errors`.
        weights : (n,) float64, optional
            w, not negative.
        multiply : callable, optional
            Takes V (n, t) to K V in float64 and bounds on its entries' errors beside rounding, of a kernel none of
            whose entries is negative. Two further products then tell what roundings come to for the entries that there
            are, where otherwise each is taken to be as large as the diagonal lets it be.
        """
        n, t = minimum.alpha.shape
        sizes = _sizes_of(n, kernel_diagonal, row_errors)
        around: tuple[FloatArray | None, FloatArray | None] = (None, None)
        if multiply is not None:
            both = _around(np.concatenate([minimum.alpha, minimum.gradient], axis=1), sizes, minimum.noise, multiply)
            around = both[:, :t], both[:, t:]
        noise, error = minimum.noise, minimum.product_error
        image_error = error if minimum.image_error is None else minimum.image_error
        of_alpha = _Product.of_columns(minimum.alpha, minimum.values, sizes, noise, error, around[0])
        of_gradient = _Product.of_columns(
            minimum.gradient, minimum.gradient_image, sizes, noise, image_error, around[1]
        )
        squares, off = np.zeros(t), np.zeros(t)
        errors = np.empty((n if multiply is not None else 0, t))
        for rows in _pieces(n):
            away = np.column_stack([product.off(rows) for product in of_alpha])
            entries = _gradient_errors(rows, minimum, away, targets, likelihood, weights)
            off += sizes.scale[rows] @ entries
            squares += [product.square(rows) for product in of_gradient]
            if multiply is not None:
                errors[rows] = entries
        # What is off is itself a bound that may be a percent more; so much no sum of it rounds.
        lengths, off = np.sqrt(np.maximum(squares, 0.0)) * FEW, EVALUATION * off
        if multiply is not None:
            image, more = multiply(errors)
            products = _Product.of_columns(errors, image, sizes, noise, more)
            sums = np.array([sum(product.square(rows) for rows in _pieces(n)) for product in products])
            off = np.minimum(off, np.sqrt(np.maximum(sums, 0.0)) * FEW)
        if likelihood.coupled:
            lengths, off = (np.full(t, np.linalg.norm(values) * (1.0 + t * EPS)) for values in (lengths, off))
        return cls(tuple(lengths.tolist()), tuple(off.tolist()), likelihood.coupled)


@dataclass(frozen=True)
class RiskCertificate(ProofShown):
    """Bounds on decisions k_x'alpha: all of it proven, roundings included.

    Attributes
    ----------
    n : int
        Points that a decision is a sum over.
    radius : tuple of t floats
        Distance of the function from the exact minimiser in the kernel's space, at most: of each column, of a loss
        that couples them of all columns together.
    magnitude, spread : tuple of t floats
        sum_j sqrt(k(x_j, x_j)) |alpha_jt|, and the same with each term times its row's error: what the roundings of
        a decision's sum are in proportion to.
    coupled : bool
        Whether the radius is of all columns together.
    assumes : str or None
        What had to be taken on trust; None where everything is proven.
    """

    n: int
    radius: tuple[float, ...]
    magnitude: tuple[float, ...]
    spread: tuple[float, ...]
    coupled: bool = False
    assumes: str | None = None

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # what comes to no number bounds nothing: see `bounding`
    def of(
        cls,
        minimum: Minimum,
        gradient: GradientLength,
        share: float,
        kernel_diagonal: float | FloatArray,
        row_errors: FloatArray,
        assumes: str | None = None,
    ) -> RiskCertificate:
        """Certify `minimum.stepped(share)`.

        Parameters
        ----------
        minimum : Minimum
        gradient : GradientLength
            Of it.
        share : float
            As of `Minimum.stepped`, at most 1/2.
        kernel_diagonal, row_errors
            As of `GradientLength.of`.
        assumes : str, optional
            See `dkgp.models.rounding.assumptions`.
        """
        stored = minimum.stepped(share)
        sizes = _sizes_of(len(stored), kernel_diagonal, row_errors)
        moved = np.zeros(stored.shape[1])
        if share:
            for rows in _pieces(len(stored)):
                step = np.abs(minimum.gradient[rows]) * (share / minimum.regularisation)
                # The quotient, the product with g, the difference.
                moved += sizes.scale[rows] @ (UNIT * (2.0 * step + np.abs(stored[rows])))
        if gradient.coupled:
            moved = np.full(len(moved), np.linalg.norm(moved))
        length, off = np.asarray(gradient.length), np.asarray(gradient.off)
        # From s to the centre f - grad / (2 lambda), and the radius; `off` is in both by half.
        radius = ((abs(0.5 - share) + 0.5) * length + off) / minimum.regularisation + EVALUATION * moved
        radius = np.where(np.isfinite(radius), radius * FEW, math.inf)
        return cls(
            n=len(stored),
            radius=tuple(radius.tolist()),
            magnitude=tuple(sizes.magnitude(column) for column in stored.T),
            spread=tuple(sizes.spread(column) for column in stored.T),
            coupled=gradient.coupled,
            assumes=assumes,
        )

    @property
    def n_columns(self) -> int:
        """Columns of decisions, t."""
        return len(self.radius)

    @bounding
    def decision_error_bound(
        self,
        decisions: FloatArray,
        prior_variance: FloatArray,
        row_errors: FloatArray,
        product_error: FloatArray | float = 0.0,
    ) -> FloatArray:
        """Bound on |f(x) - f*(x)| at test samples: (r, t).

        Parameters
        ----------
        decisions : (r, t) float64
            k_x'alpha, as computed.
        prior_variance : (r,) float64
            k(x, x), as computed.
        row_errors : (r,) float64
            Of the test samples.
        product_error : (r, t) float64 or float
            Bound on the decisions' errors beside rounding.
        """
        scale = upward(prior_variance, row_errors)
        rounding = sum_roundings(self.n, row_errors, self.magnitude, self.spread)
        bound = scale[:, None] * (np.asarray(self.radius) + EVALUATION * rounding)
        bound += EVALUATION * UNIT * np.abs(decisions) + product_error
        return np.asarray(bound * FEW)

    def certified(
        self, decisions: FloatArray, bounds: FloatArray, prior_variance: FloatArray, row_errors: FloatArray
    ) -> BoolArray:
        """Tell which labels are proven to be the exact minimiser's: (r,).

        As `certified_labels`. Of coupled columns the distance of all is within the radius, so that of two together it
        is within sqrt(2) times it at most, and not twice.

        Parameters
        ----------
        decisions, bounds : (r, t) float64
            And what `decision_error_bound` says of them.
        prior_variance, row_errors : (r,) float64
            As there.
        """
        if not self.coupled:
            return certified_labels(decisions, bounds)
        # At most what is in each of the two bounds of the radius.
        with np.errstate(invalid="ignore", over="ignore"):  # nothing is shared where that is no number
            shared = np.sqrt(prior_variance) * (1.0 - EPS * (2.0 * row_errors + 8.0)) * self.radius[0]
        less = np.where(
            np.isfinite(shared), np.maximum(shared, 0.0) * ((2.0 - math.sqrt(2.0)) * (1.0 - 16.0 * EPS)), 0.0
        )
        return certified_labels(decisions, bounds, less[:, None])

    def _proven(self) -> str:
        return f"decisions of {self.n:,} points within bounds of the exact minimiser's"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {**plain, "radius": [length if math.isfinite(length) else None for length in self.radius]}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RiskCertificate:
        """Rebuild from `to_json`."""
        radius = [math.inf if length is None else length for length in document["radius"]]
        return cls(
            n=int(document["n"]),
            **columns_of({**document, "radius": radius}, "radius", "magnitude", "spread"),
            coupled=bool(document["coupled"]),
            assumes=document.get("assumes"),
        )


def _pieces(n: int) -> Iterator[slice]:
    return (slice(start, start + PIECE_ROWS) for start in range(0, n, PIECE_ROWS))


def _gradient_errors(
    rows: slice,
    minimum: Minimum,
    away: FloatArray,
    targets: FloatArray,
    likelihood: Likelihood,
    weights: FloatArray | None,
) -> FloatArray:
    """Bounds on what entries of the gradient are off by, where values are within `away` of the true ones: (r, t)."""
    low, high = likelihood.slopes(targets[rows], minimum.values[rows], away)
    if weights is not None:
        counts = weights[rows, None]
        with np.errstate(invalid="ignore"):
            low, high = (np.where(counts > 0.0, counts * ends, 0.0) for ends in (low, high))
    penalty, gradient = minimum.regularisation * minimum.alpha[rows], minimum.gradient[rows]
    farthest = np.maximum(np.abs(low + penalty - gradient), np.abs(high + penalty - gradient))
    # Each of the two is made by four operations.
    roundings = np.maximum(np.abs(low), np.abs(high)) + np.abs(penalty) + np.abs(gradient)
    return np.asarray(farthest * FEW + 4.0 * UNIT * EVALUATION * roundings)


def _sizes_of(n: int, kernel_diagonal: float | FloatArray, row_errors: FloatArray) -> SampleSizes:
    diagonal = np.broadcast_to(np.asarray(kernel_diagonal, dtype=np.float64), (n,))
    return SampleSizes(upward(diagonal, row_errors), row_errors)


@dataclass(frozen=True)
class _Product:
    """A product K v of one column as it was evaluated, and what it may be off by.

    Attributes
    ----------
    vector, image : (n,) float64
        v, and K v as computed.
    magnitude, spread : float
        Of v.
    sizes : SampleSizes
    noise : float
        As of `Minimum`.
    product_error : (n,) float64
        Bounds on the errors of the entries of `image` beside rounding.
    around : (n,) float64 or None
        K |v| at most, of a kernel none of whose entries is negative.
    """

    vector: FloatArray
    image: FloatArray
    magnitude: float
    spread: float
    sizes: SampleSizes
    noise: float
    product_error: FloatArray
    around: FloatArray | None

    @classmethod
    def of_columns(
        cls,
        vectors: FloatArray,
        images: FloatArray,
        sizes: SampleSizes,
        noise: float,
        product_error: FloatArray | float,
        around: FloatArray | None = None,
    ) -> list[_Product]:
        """Of each column of vectors and images, (n, t)."""
        errors = np.broadcast_to(product_error, images.shape)
        return [
            cls(
                vector,
                images[:, column],
                sizes.magnitude(vector),
                sizes.spread(vector),
                sizes,
                noise,
                errors[:, column],
                None if around is None else around[:, column],
            )
            for column, vector in enumerate(vectors.T)
        ]

    def off(self, rows: slice) -> FloatArray:
        """Bounds on the errors of the entries, (r,)."""
        sizes, roundings = self.sizes, product_roundings(len(self.vector)) * UNIT
        scale = sizes.scale[rows]
        # Sums of |k v| are rounded in proportion to; entries in proportion to the diagonal, however small they are.
        rounded = scale * self.magnitude if self.around is None else self.around[rows]
        off = roundings * rounded + EPS * scale * (sizes.row_errors[rows] * self.magnitude + self.spread)
        off += roundings * self.noise * np.abs(self.vector[rows]) + 2.0 * UNIT * np.abs(self.image[rows])
        return np.asarray(EVALUATION * off + self.product_error[rows])

    def square(self, rows: slice) -> float:
        """The rows' part of v'K v, and of what the sum of all rows may be off by."""
        terms, sizes = self.vector[rows] * self.image[rows], np.abs(self.vector[rows])
        additions = (len(terms) + len(self.vector) / PIECE_ROWS + 8.0) * UNIT
        return float(terms.sum() + EVALUATION * (additions * np.abs(terms).sum() + sizes @ self.off(rows)))


def _around(vectors: FloatArray, sizes: SampleSizes, noise: float, multiply: Multiply) -> FloatArray:
    """K |V| at most, (n, t)."""
    positive = np.abs(vectors)
    image, error = multiply(positive)
    for column, product in enumerate(_Product.of_columns(positive, image, sizes, noise, error)):
        for rows in _pieces(len(vectors)):
            image[rows, column] += product.off(rows)
    # As evaluated entries are, that differ from K's, once more.
    return np.asarray(image * FEW)
