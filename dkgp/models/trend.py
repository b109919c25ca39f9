"""A mean h(x)'beta whose coefficients are fitted under the kernel: universal kriging, with proven bounds.

The columns h(x) are a constant, and the features. The solve Kbar A = [y, H] takes them as further right-hand sides
beside the targets, and beta is such that H'alpha = 0 for alpha = A_y - A_H beta. With

    G = H'Kbar^-1 H,    R(x) = h(x) - H'Kbar^-1 k_x,    V(x) = R'G^-1 R,

the exact mean is m(x) = h'beta* + k_x'Kbar^-1 (y - H beta*), G beta* = H'Kbar^-1 y, and its variance that of a centred
model and V(x) (Rasmussen and Williams 2006, equations 2.41 and 2.42). For any A with residuals E = H - Kbar A_H, any
beta and r = y - H beta - Kbar alpha,

    m(x) - h'beta - k_x'alpha = k_x'Kbar^-1 r + R'G^-1 (H'alpha + H'Kbar^-1 r),
    G = A_H'H + E'A_H + E'Kbar^-1 E.

So the mean is off by at most sqrt(k(x, x)) |r| + sqrt(V) (|H'alpha|_G + |r|), where the certificate bounds
|r|^2 = r'Kbar^-1 r, and |t|_G^2 = t'G^-1 t; G is known up to a matrix between zero and |e_i| |e_j|. The certificate's
bound on a mean of the right-hand side h_j is one on R_j. `docs/proofs.md` has the whole derivation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.linalg

from dkgp.codec import from_json
from dkgp.data import Dataset
from dkgp.errors import InputError, NumericalError
from dkgp.models.certificate import Certificate
from dkgp.models.rounding import EPS, EVALUATION, UNIT, bounding, column_lengths, known, sum_roundings
from dkgp.operators.base import FloatArray, Variances

# centred: the targets' average is subtracted, and nothing is fitted; the others are fitted under the kernel.
MeanKind: TypeAlias = Literal["centred", "constant", "linear"]
MEAN_KINDS: tuple[MeanKind, ...] = ("centred", "constant", "linear")
CENTRED: MeanKind = "centred"
# Least eigenvalue of the columns' correlations; below it coefficients would be rounding.
_LEAST_EIGENVALUE = 1e-12
RUN_ROWS = 8192
# Largest relative error of G; beyond it nothing would be proven.
MOST_OFF = 0.5


def checked_mean(mean: str) -> MeanKind:
    """Return the kind of a mean; `InputError` for another."""
    for kind in MEAN_KINDS:
        if mean == kind:
            return kind
    raise InputError(f"`mean` is one of {', '.join(MEAN_KINDS)}; got {mean!r}")


def count_of(mean: MeanKind, n_features: int) -> int:
    """Return the number of columns q: 0 for a centred mean, 1 for a constant, d + 1 for a linear one."""
    return {"centred": 0, "constant": 1, "linear": n_features + 1}[mean]


def columns_at(mean: MeanKind, inputs: FloatArray) -> FloatArray:
    """Return h(x)' at standardised inputs (r, d): (r, q), one first, then the features."""
    ones = np.ones((len(inputs), 1))
    return {"centred": ones[:, :0], "constant": ones, "linear": np.column_stack([ones, inputs])}[mean]


def columns_of(mean: MeanKind, dataset: Dataset) -> FloatArray:
    """Return H, the columns of all samples of a data set: (n, q)."""
    return np.concatenate([columns_at(mean, dataset.inputs(*rows)) for rows in dataset.row_chunks()])


def require_independent(columns: FloatArray, feature_names: tuple[str, ...]) -> None:
    """Refuse columns H (n, q) if one is a linear combination of the others; `InputError`."""
    n, q = columns.shape
    if n <= q:
        raise InputError(
            f"a mean of {q} coefficients needs more than {q} samples; got {n}. Take `mean` constant, or more samples"
        )
    lengths = np.linalg.norm(columns, axis=0)
    values, vectors = np.linalg.eigh((columns / lengths).T @ (columns / lengths))
    if values[0] < _LEAST_EIGENVALUE:
        names = ("the constant", *feature_names)
        weights = np.abs(vectors[:, 0])
        involved = [names[index] for index in np.flatnonzero(weights > 0.05 * weights.max())]
        raise InputError(
            f"a linear mean cannot tell {' and '.join(involved)} apart: each is a sum of the others. Leave one of the "
            "features out, or take `mean` constant"
        )


@dataclass(frozen=True)
class Known:
    """Means (r, p) of standardised test samples with their bounds, and the ends of V (r,)."""

    mean: FloatArray
    bound: FloatArray
    lower: FloatArray
    upper: FloatArray

    def widened(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Add V to intervals of variances (r,), rounded outward."""
        with np.errstate(over="ignore"):
            low, high = np.nextafter(lower + self.lower, -np.inf), np.nextafter(upper + self.upper, np.inf)
        return np.maximum(low, 0.0), high


@dataclass(frozen=True)
class Trend:
    """Coefficients of a mean with their proven bounds, on the standardised scale.

    Attributes
    ----------
    kind : {"constant", "linear"}
    coefficients : tuple of q tuples of p floats
        beta, of the constant and then of each feature.
    whitener : tuple of q tuples of q floats
        W, with W G W' nearly the identity: V = |W R|^2, up to the next two.
    off, above : float
        The eigenvalues of W G W' lie between 1 - off and 1 + off + above.
    missed : tuple of p floats
        Bounds on |H'alpha|_G + |r|, of each target.
    """

    kind: MeanKind
    coefficients: tuple[tuple[float, ...], ...]
    whitener: tuple[tuple[float, ...], ...]
    off: float
    above: float
    missed: tuple[float, ...]

    def __post_init__(self) -> None:
        checked_mean(self.kind)
        if {len(row) for row in self.coefficients} != {len(self.missed)} or {len(row) for row in self.whitener} != {
            self.count
        }:
            raise InputError("the mean of this model has tables of unfit shape; train it again")

    @property
    def count(self) -> int:
        """Number of columns q."""
        return len(self.coefficients)

    @bounding
    def _lengths(self, rests: FloatArray, errors: FloatArray) -> FloatArray:
        """Return upper bounds on the error of |W R|, given the computed R and its errors (r, q): (r,)."""
        whitener = np.abs(np.array(self.whitener))
        roundings = (self.count + 2.0) * UNIT * np.abs(rests)
        return EVALUATION * np.asarray(np.linalg.norm((errors * (1.0 + 4.0 * EPS) + roundings) @ whitener.T, axis=1))

    def at(
        self, mean: FloatArray, bound: FloatArray, inputs: FloatArray, product_error: FloatArray | None = None
    ) -> Known:
        """Combine the predictions of all right-hand sides.

        Parameters
        ----------
        mean, bound : (r, p + q) float64
            k_x'A as computed, and its bounds: those of targets by the certificate that `fit_trend` returns.
        inputs : (r, d) float64
            Standardised.
        product_error : (r, p + q) float64, optional
            Part of the bounds: the error of the sums k_x'A where not every entry was added up. The certificate of
            A_y - A_H beta does not include it.
        """
        return self._taken(mean, bound, columns_at(self.kind, inputs), product_error)

    def slopes_at(
        self, gradient: FloatArray, bound: FloatArray, product_error: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Combine the gradients of all right-hand sides: derivatives of the mean and their bounds, (r, p, d) each.

        All formulas hold for derivatives, with dh / dx_l and dk_x / dx_l in the place of h and k_x.

        Parameters
        ----------
        gradient, bound : (r, p + q, d) float64
            d(k_x'A) / dx_l as computed, and its bounds.
        product_error : (r, p + q, d) float64, optional
            Part of the bounds; see `at`.
        """
        parts = []
        for feature in range(gradient.shape[2]):
            columns = np.zeros((len(gradient), self.count))
            columns[:, 1 + feature : 2 + feature] = 1.0  # no column if the mean is a constant
            off = None if product_error is None else product_error[:, :, feature]
            parts.append(self._taken(gradient[:, :, feature], bound[:, :, feature], columns, off))
        return np.stack([part.mean for part in parts], axis=2), np.stack([part.bound for part in parts], axis=2)

    @np.errstate(over="ignore", invalid="ignore")  # NaN becomes an infinite bound
    def _taken(
        self, mean: FloatArray, bound: FloatArray, columns: FloatArray, product_error: FloatArray | None = None
    ) -> Known:
        """Return `at` for the columns h or their derivatives, (r, q)."""
        p, beta = len(self.missed), np.array(self.coefficients)
        # One more rounding: h - k'A_H.
        rests, errors = columns - mean[:, p:], bound[:, p:]
        errors = errors + UNIT * np.abs(rests)
        result = mean[:, :p] + rests @ beta
        whitened = np.linalg.norm(rests @ np.array(self.whitener).T, axis=1)
        astray = self._lengths(rests, errors) + (self.count + 4.0) * EPS * whitened
        outer = (whitened + astray) / np.sqrt(1.0 - self.off) * (1.0 + 8.0 * EPS)
        inner = np.maximum(whitened - astray, 0.0) / np.sqrt(1.0 + self.off + self.above) * (1.0 - 8.0 * EPS)
        sizes = np.abs(mean[:, :p]) + (np.abs(columns) + np.abs(mean[:, p:])) @ np.abs(beta)
        total = bound[:, :p] + outer[:, None] * np.array(self.missed)
        total = total + (self.count + 4.0) * UNIT * EVALUATION * sizes
        if product_error is not None:
            total = total + product_error[:, p:] @ np.abs(beta)
        return Known(
            result,
            np.nextafter(known(total * (1.0 + 8.0 * EPS)), np.inf),
            np.nan_to_num(inner**2 * (1.0 - 4.0 * EPS), nan=0.0),
            known(outer**2 * (1.0 + 4.0 * EPS)),
        )

    def described(self, dataset: Dataset) -> dict[str, Any]:
        """Return each target's coefficients in its units per unit of the feature, with standard errors.

        The constant is the mean at the average of all features.
        """
        to = dataset.standardisation
        names = ("constant", *dataset.feature_names)[: self.count]
        over = np.concatenate([[1.0], 1.0 / np.asarray(to.input_std)])[: self.count]
        spread = np.linalg.norm(np.array(self.whitener), axis=0) * over  # of targets of unit variance
        targets = {}
        for target, scale, offset, column in zip(
            dataset.target_names, to.target_std, to.target_mean, np.array(self.coefficients).T, strict=True
        ):
            values = column * over * scale
            values[0] += offset
            targets[target] = {
                name: {"value": float(value), "standard_error": float(error * scale)}
                for name, value, error in zip(names, values, spread, strict=True)
            }
        return {"kind": self.kind, "coefficients": targets}

    @classmethod
    def held(cls, document: Mapping[str, Any] | None) -> Trend | None:
        """Return the trend of a model's JSON; None for None, `InputError` for another document."""
        return None if document is None else from_json(cls, document, called="the mean", advice="Train the model again")


def mean_kind(document: Mapping[str, Any] | None) -> MeanKind:
    """Return the kind of the mean of a model with this trend in its record; centred without one."""
    return CENTRED if document is None else checked_mean(document["kind"])


def fit_trend(
    kind: MeanKind,
    alpha: FloatArray,
    gradient: FloatArray,
    right: FloatArray,
    p: int,
    noise: Variances,
    certificate: Certificate,
) -> tuple[Trend, Certificate]:
    """Return the trend of a solved system, and the certificate of its predictions.

    Raises `NumericalError`: the solve stopped so far from a solution that G has no bound.

    Parameters
    ----------
    alpha, gradient, right : (n, p + q) float64
        A, Kbar A - [y, H] as evaluated, and [y, H].
    p : int
        Number of targets.
    noise : float or (n,) float64
        s2, or that of each sample.
    certificate : Certificate
        That of all p + q columns.

    Returns
    -------
    Trend
    Certificate
        That of k_x'(A_y - A_H beta), a difference that is never formed, in the place of k_x'A_y; the others unchanged.
    """
    deviation = np.sqrt(certificate.noise_variance)
    residuals = known(certificate.proven_residual_norm[p:] / deviation * (1.0 + 4.0 * EPS))
    gram, unsure = _gram(alpha, gradient, right, p, noise, certificate)
    cross, rounded = _products(right[:, p:], alpha)
    try:
        whitener = scipy.linalg.solve_triangular(np.linalg.cholesky(gram), np.eye(len(gram)), lower=True)
        beta: FloatArray = np.asarray(np.linalg.solve(cross[:, p:], cross[:, :p]), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise _unsolved(kind) from None
    sizes = np.abs(whitener)
    image = whitener @ gram @ whitener.T - np.eye(len(gram))
    roundings = 4.0 * len(gram) * UNIT * EVALUATION
    off = float(np.linalg.norm(image) + np.linalg.norm(sizes @ unsure @ sizes.T))
    off = EVALUATION * (off + roundings * float(np.linalg.norm(sizes @ np.abs(gram) @ sizes.T)))
    above = EVALUATION * float(np.linalg.norm(sizes @ residuals)) ** 2
    if not off <= MOST_OFF:
        raise _unsolved(kind)
    left = cross[:, :p] - cross[:, p:] @ beta
    left_off = rounded[:, :p] + rounded[:, p:] @ np.abs(beta)
    left_off += (len(gram) + 2.0) * UNIT * (np.abs(cross[:, :p]) + np.abs(cross[:, p:]) @ np.abs(beta))
    proven = _combined(certificate, gradient, beta, p, noise)
    of_targets = proven.proven_residual_norm[:p] / deviation
    gradient_off = np.linalg.norm(sizes @ (np.abs(left) + EVALUATION * left_off), axis=0) / np.sqrt(1.0 - off)
    missed = known((of_targets + gradient_off * EVALUATION) * (1.0 + 8.0 * EPS))
    if not (np.isfinite(above) and np.isfinite(missed).all()):
        raise _unsolved(kind)
    trend = Trend(kind, _table(beta), _table(whitener), off, above, tuple(missed.tolist()))
    return trend, proven


def _gram(
    alpha: FloatArray, gradient: FloatArray, right: FloatArray, p: int, noise: Variances, certificate: Certificate
) -> tuple[FloatArray, FloatArray]:
    """Return A_H'H + E'A_H, made symmetric, as the exact one is, and bounds on its entries' errors, (q, q) both."""
    solved, columns = alpha[:, p:], right[:, p:]
    first, first_off = _products(solved, columns)
    second, second_off = _products(-gradient[:, p:], solved)
    # The error of E: rounding, and that of an approximate product.
    unknown = (np.asarray(certificate.residual_rounding) + certificate.product_lengths)[p:]
    weights = np.sqrt(np.broadcast_to(noise, (len(alpha),)) / certificate.noise_variance)
    lengths = column_lengths(solved * weights[:, None]) * (1.0 + len(alpha) * EPS)
    total = first + second
    unsure = first_off + second_off + EVALUATION * np.outer(unknown, lengths) + 3.0 * UNIT * np.abs(total)
    return (total + total.T) / 2.0, (unsure + unsure.T) / 2.0


def _products(left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return left'right, added up by runs of rows, and bounds on the rounding of its entries."""
    result = np.zeros((left.shape[1], right.shape[1]))
    sizes = np.zeros_like(result)
    for start in range(0, len(left), RUN_ROWS):
        rows = slice(start, start + RUN_ROWS)
        result += left[rows].T @ right[rows]
        sizes += np.abs(left[rows]).T @ np.abs(right[rows])
    return result, EVALUATION * sum_roundings(len(left), RUN_ROWS) * UNIT * sizes


def _combined(
    certificate: Certificate, gradient: FloatArray, beta: FloatArray, p: int, noise: Variances
) -> Certificate:
    """Replace the certificate of A_y by that of the columns A_y - A_H beta."""
    size, q = np.abs(beta), len(beta)
    weights = np.sqrt(certificate.noise_variance / np.broadcast_to(noise, (len(gradient),)))
    rest = gradient[:, :p] - gradient[:, p:] @ beta
    length = column_lengths(rest * weights[:, None])
    lengths = column_lengths(gradient * weights[:, None])
    terms = lengths[:p] + lengths[p:] @ size
    rounding, magnitude, spread = (
        np.asarray(values) for values in (certificate.residual_rounding, certificate.magnitude, certificate.spread)
    )
    off = rounding[:p] + rounding[p:] @ size
    off = off + EVALUATION * UNIT * ((q + 3.0) * terms + (len(gradient) + 8.0) * length)
    products = certificate.product_lengths
    products[:p] = known(EVALUATION * (products[:p] + products[p:] @ size))
    return replace(
        certificate,
        residual_norm=(*length.tolist(), *certificate.residual_norm[p:]),
        residual_rounding=(*known(EVALUATION * off).tolist(), *certificate.residual_rounding[p:]),
        product_norm=tuple(products.tolist()) if products.any() else (),
        magnitude=(*known(EVALUATION * (magnitude[:p] + magnitude[p:] @ size)).tolist(), *certificate.magnitude[p:]),
        spread=(*known(EVALUATION * (spread[:p] + spread[p:] @ size)).tolist(), *certificate.spread[p:]),
    )


def _unsolved(kind: str) -> NumericalError:
    return NumericalError(
        f"the solve stopped too far from a solution to tell the coefficients of a {kind} mean. Give it more passes, or "
        "seconds, a smaller `tolerance`, or a larger noise variance"
    )


def _table(rows: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in rows)
