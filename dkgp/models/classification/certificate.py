"""Proven bounds of decisions, from float64 products and residuals alone.

A decision k_x'alpha is off by roundings in proportion to sqrt(k(x, x)) sum_j sqrt(k(x_j, x_j)) |alpha_j|; the second
factor is its column's magnitude, and its spread the same with each term times its row's error. `docs/proofs.md` has the
proofs (theorems 10 to 12), and where each rounding is counted.

A regularised risk's approximate minimiser
------------------------------------------
R[f] = sum_i w_i l(y_i, f(x_i)) + lambda |f|^2 / 2 has one minimiser f*. For any f = sum_i alpha_i k(x_i, .), whose
gradient is grad = sum_i g_i k(x_i, .) with g_i = w_i l'(y_i, f(x_i)) + lambda alpha_i, f* lies in the ball around f -
grad / (2 lambda) of the radius |grad| / (2 lambda), |grad|^2 = g'K g. So, for any function s,

    |s(x) - f*(x)| <= sqrt(k(x, x)) (|s - f + grad / (2 lambda)| + |grad| / (2 lambda)).

Columns of a loss that couples them are one function of several values: the lengths are those of all together.

An exact LS-SVM
---------------
With S = diag(s2_i), Kbar = K + S and E* = Kbar^-1 1, the exact decision is f*(x) = k_x'alpha* + b*, where Kbar alpha* +
b* 1 = y and 1'alpha* = 0 (Karsmakers, Pelckmans, De Brabanter, Van Hamme and Suykens, *Sparse conjugate directions
pursuit*, 2011, equations 21 to 23). For any alpha and b, with r = y - b 1 - Kbar alpha and c = 1'alpha,

    |f(x) - f*(x)| <= sqrt(r'S^-1 r) sqrt(V_b(x)) + |c| |1 - k_x'E*| / (1'E*),
    V_b(x) = k(x, x) - k_x'Kbar^-1 k_x + (1 - k_x'E*)^2 / (1'E*) <= k(x, x) + (1 - 2 k_x'E*) / (1'E*),

the last by (k_x'E*)^2 <= (k_x'Kbar^-1 k_x) (1'E*). E is an approximation of E*, with rho = 1 - Kbar E:

    |k_x'E - k_x'E*| <= sqrt(k(x, x)) sqrt(rho'S^-1 rho),
    1'E + E'rho <= 1'E* <= 1'E + E'rho + rho'S^-1 rho.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dkgp.codec import finite, infinite, rule
from dkgp.data.types import BoolArray
from dkgp.models.certificate import Proof
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.rounding import (
    EPS,
    EVALUATION,
    UNIT,
    bounding,
    certified_row_errors,
    mean_roundings,
    product_roundings,
    step_roundings,
)
from dkgp.models.sums import EVERY_ENTRY, Sums
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import Solution

# K V in float64 of V, and bounds on its entries' errors beside rounding, by row and column or for all.
Multiply = Callable[[FloatArray], tuple[FloatArray, FloatArray | float]]
# Rows that are evaluated together, so that their arrays stay small; a sum over them is rounded as often.
PIECE_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Minimum:
    """The result of minimising a risk: a function, and its evaluated arrays, (n, t) float64 each.

    Attributes
    ----------
    regularisation : float
        lambda.
    alpha : (n, t)
    values : (n, t)
        K alpha.
    gradient : (n, t)
        g as evaluated; its error is bounded from `alpha` and `values`.
    gradient_image : (n, t)
        K g of that very g.
    product_error : (n, t) or float
        Bounds on the errors of the entries of `values` beside rounding.
    image_error : (n, t) or float, optional
        Those of `gradient_image`; by default `product_error`.
    noise : float
        Noise on the operator's diagonal during the products, which was subtracted afterwards.
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
        The length of its difference from the gradient in real numbers.
    coupled : bool
        Whether both are of all columns together, the same in each.
    """

    length: tuple[float, ...]
    off: tuple[float, ...]
    coupled: bool

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # a NaN bounds nothing: see `bounding`
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
            whose entries is negative. Two further products then bound the roundings by the entries themselves;
            otherwise each entry is taken to be as large as the diagonal allows.
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
        # `off` is itself a bound with a percent to spare, more than any sum of it rounds.
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
class RiskCertificate(Proof):
    """Bounds on decisions k_x'alpha: all of it proven, roundings included.

    Attributes
    ----------
    n : int
        Points that a decision is a sum over.
    radius : tuple of t floats
        Distance of the function from the exact minimiser in the kernel's space, at most: of each column, of a loss
        that couples them of all columns together.
    magnitude, spread : tuple of t floats
        sum_j sqrt(k(x_j, x_j)) |alpha_jt|, and the same with each term times its row's error: the roundings of a
        decision's sum are in proportion to them.
    coupled : bool
        Whether the radius is of all columns together.
    assumes : str or None
        Assumptions; None where everything is proven.
    """

    by_target: ClassVar = ("radius", "magnitude", "spread")

    n: int
    radius: tuple[float, ...] = field(metadata=rule(write=finite, read=infinite))
    magnitude: tuple[float, ...]
    spread: tuple[float, ...]
    coupled: bool = False
    assumes: str | None = None

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # a NaN bounds nothing: see `bounding`
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
            And their `decision_error_bound`.
        prior_variance, row_errors : (r,) float64
            As there.
        """
        if not self.coupled:
            return certified_labels(decisions, bounds)
        # At most the radius' part in each of the two bounds.
        with np.errstate(invalid="ignore", over="ignore"):  # nothing is shared where that is no number
            shared = np.sqrt(prior_variance) * (1.0 - EPS * (2.0 * row_errors + 8.0)) * self.radius[0]
        less = np.where(
            np.isfinite(shared), np.maximum(shared, 0.0) * ((2.0 - math.sqrt(2.0)) * (1.0 - 16.0 * EPS)), 0.0
        )
        return certified_labels(decisions, bounds, less[:, None])

    @property
    def statement(self) -> str:
        """The proven statement, in one line."""
        return f"decisions of {self.n:,} points within bounds of the exact minimiser's"


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
    """Bound the errors of the gradient's entries, for values within `away` of the true ones: (r, t)."""
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
    """A product K v of one column as it was evaluated, and bounds on its errors.

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
        """Return a product for each column of vectors and images, (n, t)."""
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
        """Return the rows' part of v'K v, and of the error of the sum of all rows."""
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


# Factor for a few rounded operations on bounds.
FEW = 1.0 + 16.0 * EPS


@dataclass(frozen=True)
class SampleSizes:
    """Sizes of samples' entries: `scale` (n,) is sqrt(k(x_i, x_i)) at most. A column at a time, for n may be large."""

    scale: FloatArray
    row_errors: FloatArray

    def magnitude(self, column: FloatArray) -> float:
        """sum_j sqrt(k(x_j, x_j)) |alpha_j| at most."""
        return float(EVALUATION * (self.scale @ np.abs(column)))

    def spread(self, column: FloatArray) -> float:
        """Return the magnitude with each term times its row's error."""
        return float(EVALUATION * ((self.scale * self.row_errors) @ np.abs(column)))


def upward(prior_variance: FloatArray, row_errors: FloatArray) -> FloatArray:
    """sqrt(k(x, x)) at most, of k(x, x) as computed: (r,)."""
    return np.asarray(np.sqrt(prior_variance) * (1.0 + EPS * (2.0 * row_errors + 8.0)))


def sum_roundings(
    n: int, row_errors: FloatArray, magnitude: tuple[float, ...], spread: tuple[float, ...]
) -> FloatArray:
    """Roundings of sums of n terms at test samples, (r, t), in units of sqrt(k(x, x))."""
    unit = mean_roundings(n) * UNIT + EPS * row_errors
    return np.asarray(unit[:, None] * np.asarray(magnitude) + EPS * np.asarray(spread))


def certified_labels(decisions: FloatArray, bounds: FloatArray, shared: FloatArray | float = 0.0) -> BoolArray:
    """True where the label is proven to be the exact model's: (r,), of decisions and bounds (r, t).

    Of one column, where |f| exceeds its bound; of one column for each class, where the largest is ahead of every other
    by more than both bounds, less the part `shared` by the two, (r, 1). NaN is never certified.
    """
    if decisions.shape[1] == 1:
        return np.asarray(np.abs(decisions[:, 0]) > bounds[:, 0])
    rows, first = np.arange(len(decisions)), np.argmax(decisions, axis=1)
    ahead = decisions[rows, first][:, None] - decisions
    clear = ahead > (bounds + bounds[rows, first][:, None]) * FEW - shared
    clear[rows, first] = True
    return np.asarray(clear.all(axis=1))


@dataclass(frozen=True)
class DecisionCertificate(Proof):
    """Bounds on decisions k_x'alpha + b: all of it proven, roundings included."""

    by_target: ClassVar = ("residual", "imbalance", "magnitude", "spread")

    n: int  # samples
    # Of each column of decisions, at most: sqrt(r'S^-1 r), r the exact one of the stored alpha and b; |1'alpha|
    residual: tuple[float, ...]
    imbalance: tuple[float, ...]
    # sum_j sqrt(k(x_j, x_j)) |alpha_jt|, and the same with each term times its row's error: the roundings of a
    # decision's sum are in proportion to
    magnitude: tuple[float, ...]
    spread: tuple[float, ...]
    intercept: bool = True  # whether there is one; without, b is zero and nothing of the following counts
    ones_residual: float = 0.0  # sqrt(rho'S^-1 rho), at most
    # Interval of 1'E*; None in a document without an intercept
    ones_sum: tuple[float, float] = field(
        default=(math.inf, math.inf),
        metadata=rule(
            write=lambda ends: None if ends == (math.inf, math.inf) else ends,
            read=lambda ends: (math.inf, math.inf) if ends is None else ends,
        ),
    )
    # As `magnitude` and `spread`, of E
    ones_magnitude: float = 0.0
    ones_spread: float = 0.0
    assumes: str | None = None  # assumptions; None where everything is proven

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # a NaN bounds nothing: see `bounding`
    def of(
        cls,
        alpha: FloatArray,
        intercept: FloatArray,
        solution: Solution,
        noise: Variances,
        kernel_diagonal: float | FloatArray,
        row_errors: FloatArray,
        assumes: str | None = None,
    ) -> DecisionCertificate:
        """Certify alpha (n, t) and b (t,), made of the solution E (n, t + 1) of Kbar E = [Y, 1].

        Parameters
        ----------
        alpha : (n, t) float64
            E_1 - E_2 b', rounded; E itself where there is no intercept.
        intercept : (t,) float64
            b.
        solution : Solution
            E, of t columns without an intercept. Labels in Y are -1 and 1.
        noise : float or (n,) float64
            s2, or that of each sample.
        kernel_diagonal : float or (n,) float64
            k(x, x): one number where it is the same everywhere, one for each sample elsewhere.
        row_errors : (n,) float64
            Of the samples; see `TileEvaluator.row_errors`.
        assumes : str, optional
            See `dkgp.models.rounding.assumptions`.
        """
        n, t = alpha.shape
        solved, gradient, stepped = solution.alpha, solution.gradient, solution.stepped
        noise = np.broadcast_to(np.asarray(noise, dtype=np.float64), (n,))
        sizes = _Sizes.of(n, solved.shape[1], kernel_diagonal, row_errors, noise)

        def off(column: int) -> FloatArray:
            step = stepped[:, column] if stepped.size else None
            rounded = sizes.product_errors(solved[:, column], gradient[:, column], step)
            return rounded + solution.product_errors[:, column] if solution.product_errors.size else rounded

        common: dict[str, Any] = {
            "n": n,
            "magnitude": tuple(sizes.magnitude(column) for column in alpha.T),
            "spread": tuple(sizes.spread(column) for column in alpha.T),
            "assumes": assumes,
        }
        if solved.shape[1] == t:
            residual = tuple(sizes.length(gradient[:, column], off(column)) for column in range(t))
            return cls(residual=residual, imbalance=(0.0,) * t, intercept=False, **common)
        ones, ones_gradient, ones_off = solved[:, t], gradient[:, t], off(t)
        residuals = []
        for column, share in enumerate(intercept.tolist()):
            # r = r_1 - b rho - Kbar eta: eta, the roundings of alpha; and those of the difference of the gradients.
            moved = UNIT * (2.0 * np.abs(alpha[:, column]) + abs(share) * np.abs(ones))
            residual_of = gradient[:, column] - share * ones_gradient
            more = UNIT * (2.0 * np.abs(residual_of) + abs(share) * np.abs(ones_gradient))
            more += sizes.scale * float(sizes.scale @ moved) + noise * moved
            residuals.append(sizes.length(residual_of, off(column) + abs(share) * ones_off + EVALUATION * more))
        ones_residual = sizes.length(ones_gradient, ones_off)
        return cls(
            residual=tuple(residuals),
            imbalance=tuple(abs(math.fsum(column.tolist())) * FEW for column in alpha.T),
            ones_residual=ones_residual,
            ones_sum=_ones_sum(ones, ones_gradient, ones_off, sizes, ones_residual),
            ones_magnitude=sizes.magnitude(ones),
            ones_spread=sizes.spread(ones),
            **common,
        )

    @property
    def n_columns(self) -> int:
        """Columns of decisions, t."""
        return len(self.residual)

    @bounding
    def decision_error_bound(
        self,
        decisions: FloatArray,
        ones: FloatArray | None,
        prior_variance: FloatArray,
        row_errors: FloatArray,
        product_error: FloatArray | None = None,
    ) -> FloatArray:
        """Bound on |f(x) - f*(x)| at test samples: (r, t).

        Parameters
        ----------
        decisions : (r, t) float64
            k_x'alpha + b, as computed.
        ones : (r,) float64 or None
            k_x'E, as computed; None without an intercept.
        prior_variance : (r,) float64
            k(x, x), as computed.
        row_errors : (r,) float64
            Of the test samples.
        product_error : (r, t + 1) float64, optional
            By how much k_x'alpha and k_x'E, as computed, may miss the exact sums, rounding apart; (r, t) without an
            intercept. Nothing where every entry was added up.
        """
        scale = upward(prior_variance, row_errors)
        length, imbalance = np.asarray(self.residual), np.asarray(self.imbalance)
        unit = mean_roundings(self.n) * UNIT + EPS * row_errors
        rounding = sum_roundings(self.n, row_errors, self.magnitude, self.spread)
        bound: FloatArray = EVALUATION * (scale[:, None] * rounding + UNIT * np.abs(decisions))
        if product_error is not None:
            bound += product_error[:, : self.n_columns]
        if not self.intercept:
            bound += scale[:, None] * length
            return bound * FEW
        if ones is None:
            raise ValueError("a model with an intercept takes k_x'E, `ones`, for its bound; got None")
        ones_rounding = EVALUATION * (unit * self.ones_magnitude + EPS * self.ones_spread)
        slack = scale * (ones_rounding + self.ones_residual)
        if product_error is not None:
            slack += product_error[:, self.n_columns]
        low, high = self.ones_sum
        # 1 - 2 p at most, divided by the end of 1'E* that leaves more; terms of both signs, each rounded a few times.
        rest = 1.0 - 2.0 * (ones - slack)
        rounded = 8.0 * EPS * (1.0 + 2.0 * np.abs(ones) + 2.0 * slack)
        with np.errstate(divide="ignore", over="ignore"):
            rest = np.where(rest > 0.0, rest / low, rest / high)
            variance = scale * scale * FEW + rest + (rounded + 8.0 * EPS * np.abs(rest)) / low
            away = (np.abs(1.0 - ones) * FEW + slack) / low
        bound += np.sqrt(np.maximum(variance, 0.0))[:, None] * length + away[:, None] * imbalance
        return bound * FEW

    @property
    def statement(self) -> str:
        """The proven statement, in one line."""
        return f"decisions of {self.n:,} samples within bounds of the exact machine's"


def certified_decisions(
    context: BlockContext,
    certificate: DecisionCertificate,
    alpha: FloatArray,
    ones: FloatArray,
    intercept: FloatArray,
    inputs: FloatArray,
    sums: Sums = EVERY_ENTRY,
) -> tuple[FloatArray, FloatArray]:
    """k_x'alpha + b at standardised inputs, and by how much each may miss the exact decision: (r, t) both.

    One product with all columns, so that each kernel entry is evaluated once; `context` is of the support inputs.
    `ones` is E, which is not looked at where the certificate is of a model without intercept.
    """
    t = alpha.shape[1]
    weights = np.column_stack([alpha, ones]) if certificate.intercept else alpha
    products, off = sums.products(context, inputs, weights)
    decisions = products[:, :t] + intercept
    bounds = certificate.decision_error_bound(
        decisions,
        products[:, t] if certificate.intercept else None,
        context.kernel.diagonal(inputs),
        certified_row_errors(context.kernel, context.source, inputs),
        off,
    )
    return decisions, bounds


@dataclass(frozen=True)
class _Sizes(SampleSizes):
    """Sizes for samples with noise (n,) and a solution of so many columns."""

    noise: FloatArray
    columns: int

    @classmethod
    def of(
        cls, n: int, columns: int, kernel_diagonal: float | FloatArray, row_errors: FloatArray, noise: FloatArray
    ) -> _Sizes:
        scale = np.sqrt(np.broadcast_to(np.asarray(kernel_diagonal), (n,))) * (1.0 + 2.0 * EPS * row_errors)
        return cls(scale, row_errors, noise, columns)

    def product_errors(self, solved: FloatArray, gradient: FloatArray, stepped: FloatArray | None) -> FloatArray:
        """Bound the errors of a gradient's entries (n,); `Certificate.of` has their length."""
        terms, roundings = np.abs(solved), product_roundings(len(solved)) * UNIT
        if stepped is not None:
            terms, roundings = terms + 2.0 * stepped, roundings + step_roundings(self.columns) * UNIT
        scale = self.scale
        off: FloatArray = scale * (roundings + EPS * self.row_errors) * float(scale @ terms)
        off += EPS * scale * float((scale * self.row_errors) @ terms)
        off += roundings * self.noise * terms + 2.0 * UNIT * np.abs(gradient)
        return EVALUATION * off

    def length(self, residual: FloatArray, off: FloatArray) -> float:
        """sqrt(r'S^-1 r) at most, for r (n,) that is off by `off`."""
        largest = (np.abs(residual) + off) / np.sqrt(self.noise)
        return float(np.linalg.norm(largest)) * (1.0 + (len(residual) + 16.0) * UNIT)


def _ones_sum(
    ones: FloatArray, gradient: FloatArray, off: FloatArray, sizes: _Sizes, residual: float
) -> tuple[float, float]:
    """Numbers between which 1'Kbar^-1 1 lies: 1'E + E'rho and that plus rho'S^-1 rho, and (1'1)^2 / (1'Kbar 1)."""
    products, total = ones * gradient, math.fsum(ones.tolist())
    less = math.fsum(products.tolist())
    unsure = float(EVALUATION * (np.abs(ones) @ off + UNIT * np.abs(products).sum()))
    unsure += 4.0 * EPS * (abs(total) + abs(less))
    n = float(len(ones))
    # Cauchy's inequality in Kbar for v = 1, whose every k(x, x') is at most the geometric mean of the diagonal's.
    least = n * n / (float(sizes.scale.sum()) ** 2 + float(sizes.noise.sum())) * (1.0 - (4.0 * n + 16.0) * EPS)
    low = max(total - less - unsure, least)
    return low, max(total - less + unsure + residual * residual * FEW, low)
