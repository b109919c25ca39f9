"""A mean h(x)'beta whose coefficients are fitted under the kernel: universal kriging, with proven bounds.

`Drift` is the mean itself: its functions h, and their values. `Trend` are its coefficients in a model. The solve
Kbar A = [y, H] takes the columns H of h(x) as further right-hand sides beside the targets, and beta is such that
H'alpha = 0 for alpha = A_y - A_H beta. With

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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import scipy

from dkgp.codec import Json, from_json, rule
from dkgp.data import Dataset, Standardisation
from dkgp.data.stores.models.model import KernelModel
from dkgp.errors import InputError, NumericalError
from dkgp.models.certificate import Certificate
from dkgp.models.mean_option import DEGREES, MEAN_VALUES, MeanValue
from dkgp.models.rounding import EPS, EVALUATION, UNIT, bounding, column_lengths, known, sum_roundings
from dkgp.operators.base import FloatArray, Variances

# Least eigenvalue of the columns' correlations; below it coefficients would be rounding.
_LEAST_EIGENVALUE = 1e-12
RUN_ROWS = 8192
# Largest relative error of G; beyond it nothing would be proven.
MOST_OFF = 0.5


@dataclass(frozen=True)
class Drift:
    """The mean of the function: a known number, or a polynomial whose coefficients are fitted under the kernel.

    Degree 1 has the columns 1 and x_l, on the standardised scale. From degree 2 on, the columns are all monomials of
    u_l = (x_l - c_l) / w_l up to the degree, where the samples' features lie in c_l - w_l .. c_l + w_l: they are at
    most one at the samples, which keeps the solve well-conditioned.

    Parameters
    ----------
    degree : int, optional
        Degree of the polynomial in all features. None: nothing is fitted.
    value : float, optional
        With no degree, the known mean of every target, in its units. None: the average of the targets.
    columns : tuple of c str
        Names of covariates, which enter linearly beside the polynomial: external drift. Rows of samples hold the d
        features, then the c covariates.
    box : tuple of d pairs of floats
        c_l and w_l from degree 2 on, which `over` takes from the samples; empty: features stay as they are.
    """

    degree: int | None = None
    value: float | None = None
    columns: tuple[str, ...] = ()
    box: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.degree is not None and (self.degree < 0 or self.value is not None):
            raise InputError(f"a mean has a degree of at least 0, or a known value; got {self.degree} and {self.value}")
        if self.value is not None and not math.isfinite(self.value):
            raise InputError(f"`mean` must be finite; got {self.value}")

    @classmethod
    def parse(cls, mean: MeanValue | Drift) -> Drift:
        """Return the drift of a value of the option `mean`; `InputError` for any other value."""
        if isinstance(mean, Drift):
            return mean
        if isinstance(mean, str) and mean in DEGREES:
            return cls(DEGREES[mean])
        if isinstance(mean, int | float | np.number) and not isinstance(mean, bool):
            return cls(value=float(mean))
        raise InputError(f"`mean` is one of {MEAN_VALUES}; got {mean!r}")

    @classmethod
    def from_model(cls, model: KernelModel) -> Drift:
        """Return the drift of a stored model."""
        document = model.summary.get("given_mean") if model.trend is None else model.trend["kind"]
        return CENTRED if document is None else cls.from_json(document)

    @classmethod
    def from_json(cls, document: Json) -> Drift:
        """Return the drift of a document that `to_json` wrote."""
        return cls(**_fields(document)) if isinstance(document, Mapping) else cls.parse(document)

    def to_json(self) -> Json:
        """Return the word of the option, the known number, or for higher degrees an object with degree and box."""
        if self.value is not None:
            return self.value
        if self.columns or self.box or self.degree not in DEGREES.values():
            columns = {"columns": list(self.columns)} if self.columns else {}
            return {"degree": self.degree, **columns, "box": [list(pair) for pair in self.box]}
        return self.word

    @property
    def word(self) -> str:
        """Name of the mean in messages."""
        if self.value is not None:
            return f"{self.value:g}"
        words = {degree: word for word, degree in DEGREES.items()}
        return words.get(self.degree, f"polynomial of degree {self.degree}")

    @property
    def is_fitted(self) -> bool:
        """Whether the mean has coefficients."""
        return self.degree is not None

    def over(self, dataset: Dataset) -> Drift:
        """Return the drift with the covariates of the data set, and its box unless it has one.

        Raises `InputError` if the data set has covariates, and the mean no coefficients.
        """
        names = dataset.covariate_names
        if self.degree is None and names:
            raise InputError(
                f"'{dataset.url}' has the covariates {', '.join(names)}, which enter a mean with coefficients, and "
                f"`mean` is {self.word}. Take `mean` constant or linear, or ingest without `covariates`"
            )
        if names != self.columns:
            return replace(self, columns=names).over(dataset)
        if self.degree is None or self.degree < 2 or self.box:
            return self
        parts = [dataset.inputs(*rows) for rows in dataset.row_chunks()]
        low = np.min([part.min(axis=0) for part in parts if len(part)], axis=0)
        high = np.max([part.max(axis=0) for part in parts if len(part)], axis=0)
        centres, widths = 0.5 * (low + high), np.maximum(0.5 * (high - low), 1e-300)
        return replace(self, box=tuple(zip(centres.tolist(), widths.tolist(), strict=True)))

    def about(self, dataset: Dataset) -> Dataset:
        """Return the data set with targets about a known mean; itself if there is none."""
        return dataset if self.value is None else dataset.about_targets(self.value)

    def count(self, n_features: int) -> int:
        """Return the number of columns q."""
        return 0 if self.degree is None else math.comb(n_features + self.degree, self.degree) + len(self.columns)

    def _monomials(self, n_features: int) -> list[tuple[int, ...]]:
        """Return the features of each column's factors, by degree: (), (0,), (1,), (0, 0), (0, 1), ..."""
        degrees = range(0 if self.degree is None else self.degree + 1)
        return [factors for k in degrees for factors in combinations_with_replacement(range(n_features), k)]

    def _moved(self, inputs: FloatArray) -> FloatArray:
        if not self.box:
            return inputs
        centres, widths = np.array(self.box).T
        return np.asarray((inputs - centres) / widths)

    @property
    def roundings(self) -> float:
        """Relative error of a column and of its derivatives, in units of the last place."""
        return 0.0 if self.degree is None or self.degree < 2 else 3.0 * self.degree

    def features(self, rows: FloatArray) -> FloatArray:
        """Return the features of standardised rows (r, d + c): (r, d)."""
        return np.ascontiguousarray(rows[:, : -len(self.columns)]) if self.columns else rows

    def columns_at(self, rows: FloatArray) -> FloatArray:
        """Return h(x)' at standardised rows (r, d + c): (r, q).

        One is first, then the features, their products, and the covariates.
        """
        ones, inputs = np.ones((len(rows), 1)), self.features(rows)
        covariates = [rows[:, inputs.shape[1] :]] if self.columns else []
        if self.degree is None:
            return ones[:, :0]
        if self.degree == 0:
            return np.column_stack([ones, *covariates]) if covariates else ones
        moved, monomials = self._moved(inputs), self._monomials(inputs.shape[1])
        products = [moved[:, list(factors)].prod(axis=1) for factors in monomials if len(factors) > 1]
        return np.column_stack([ones, moved, *products, *covariates])

    def slopes_at(self, inputs: FloatArray, feature: int) -> FloatArray:
        """Return dh / dx_l' at standardised inputs (r, d), for one feature l: (r, q)."""
        moved, monomials = self._moved(inputs), self._monomials(inputs.shape[1])
        slopes = np.zeros((len(inputs), len(monomials)))
        width = self.box[feature][1] if self.box else 1.0
        for column, factors in enumerate(monomials):
            if feature in factors:
                others = list(factors)
                others.remove(feature)
                slopes[:, column] = factors.count(feature) * moved[:, others].prod(axis=1) / width
        return slopes

    def of(self, dataset: Dataset) -> FloatArray:
        """Return H, the columns of all samples of a data set: (n, q)."""
        return np.concatenate([self.columns_at(dataset.rows(*rows)) for rows in dataset.row_chunks()])

    def names(self, feature_names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns' names: constant, a, b, a^2, a*b, b^2, and those of covariates."""
        monomials = self._monomials(len(feature_names))
        return (*(_monomial_name(factors, feature_names) for factors in monomials), *self.columns)

    def unmoved(self, n_features: int) -> FloatArray:
        """Return the matrix (q, q) that maps coefficients of monomials of u to those of monomials of the features."""
        monomials = self._monomials(n_features)
        place, result = {factors: index for index, factors in enumerate(monomials)}, np.eye(self.count(n_features))
        for column, factors in enumerate(monomials):
            terms: dict[tuple[int, ...], float] = {(): 1.0}
            for feature in factors:
                centre, width = self.box[feature] if self.box else (0.0, 1.0)
                grown: dict[tuple[int, ...], float] = {}
                for term, weight in terms.items():
                    longer = tuple(sorted((*term, feature)))
                    grown[longer] = grown.get(longer, 0.0) + weight / width
                    grown[term] = grown.get(term, 0.0) - weight * centre / width
                terms = grown
            result[:, column] = 0.0
            for term, weight in terms.items():
                result[place[term], column] = weight
        return result

    def units(self, to: Standardisation) -> FloatArray:
        """Return one over the unit of each column: (q,)."""
        over, covariates = 1.0 / np.asarray(to.input_std), [1.0 / covariate.std for covariate in to.covariates]
        return np.array([*(math.prod(over[list(factors)]) for factors in self._monomials(len(over))), *covariates])

    def require_independent(self, columns: FloatArray, feature_names: tuple[str, ...]) -> None:
        """Refuse columns H (n, q) if one is a linear combination of the others; `InputError`."""
        n, q = columns.shape
        if n <= q:
            advice = "a known mean" if q == 1 else "`mean` constant"
            raise InputError(
                f"a mean of {q} coefficient{'s' * (q > 1)} needs more than {q} sample{'s' * (q > 1)}; got {n}. Take "
                f"{advice}, or more samples"
            )
        lengths = np.linalg.norm(columns, axis=0)
        lengths[lengths == 0.0] = 1.0  # a column of zeros, of a coordinate that is the same everywhere
        values, vectors = np.linalg.eigh((columns / lengths).T @ (columns / lengths))
        if values[0] < _LEAST_EIGENVALUE:
            names = ("the constant", *self.names(feature_names)[1:])
            weights = np.abs(vectors[:, 0])
            involved = [names[index] for index in np.flatnonzero(weights > 0.05 * weights.max())]
            if len(involved) == 1:
                raise InputError(
                    f"a {self.word} mean has no coefficient of {involved[0]}, which is the same at all samples. Leave "
                    "this feature out, or take `mean` constant"
                )
            raise InputError(
                f"a {self.word} mean cannot tell {' and '.join(involved)} apart: each is a sum of the others. Leave "
                "one of the features out, or take `mean` constant"
            )


CENTRED = Drift()


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    try:
        box = tuple((float(centre), float(width)) for centre, width in document.get("box", ()))
        columns = tuple(str(name) for name in document.get("columns", ()))
        return {"degree": int(document["degree"]), "columns": columns, "box": box}
    except (KeyError, TypeError, ValueError):
        raise InputError(f"the mean of this model is {dict(document)}, which has no degree; train it again") from None


def _monomial_name(factors: tuple[int, ...], feature_names: tuple[str, ...]) -> str:
    powers = [(feature_names[feature], factors.count(feature)) for feature in dict.fromkeys(factors)]
    return "*".join(name if power == 1 else f"{name}^{power}" for name, power in powers) or "constant"


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
    kind : Drift
        The mean's columns.
    coefficients : tuple of q tuples of p floats
        beta, of each column.
    whitener : tuple of q tuples of q floats
        W, with W G W' nearly the identity: V = |W R|^2, up to the next two.
    off, above : float
        The eigenvalues of W G W' lie between 1 - off and 1 + off + above.
    missed : tuple of p floats
        Bounds on |H'alpha|_G + |r|, of each target.
    """

    kind: Drift = field(metadata=rule(write=Drift.to_json, read=Drift.from_json))
    coefficients: tuple[tuple[float, ...], ...]
    whitener: tuple[tuple[float, ...], ...]
    off: float
    above: float
    missed: tuple[float, ...]

    def __post_init__(self) -> None:
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
        self, mean: FloatArray, bound: FloatArray, rows: FloatArray, product_error: FloatArray | None = None
    ) -> Known:
        """Combine the predictions of all right-hand sides.

        Parameters
        ----------
        mean, bound : (r, p + q) float64
            k_x'A as computed, and its bounds: those of targets by the certificate that `fit_trend` returns.
        rows : (r, d + c) float64
            Standardised features and covariates.
        product_error : (r, p + q) float64, optional
            Part of the bounds: the error of the sums k_x'A where not every entry was added up. The certificate of
            A_y - A_H beta does not include it.
        """
        return self.taken(mean, bound, self.kind.columns_at(rows), product_error)

    def slopes_at(
        self, gradient: FloatArray, bound: FloatArray, inputs: FloatArray, product_error: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Combine the gradients of all right-hand sides: derivatives of the mean and their bounds, (r, p, d) each.

        All formulas hold for derivatives, with dh / dx_l and dk_x / dx_l in the place of h and k_x.

        Parameters
        ----------
        gradient, bound : (r, p + q, d) float64
            d(k_x'A) / dx_l as computed, and its bounds.
        inputs : (r, d) float64
            Standardised.
        product_error : (r, p + q, d) float64, optional
            Part of the bounds; see `at`.
        """
        parts = []
        for feature in range(gradient.shape[2]):
            columns = self.kind.slopes_at(inputs, feature)
            off = None if product_error is None else product_error[:, :, feature]
            parts.append(self.taken(gradient[:, :, feature], bound[:, :, feature], columns, off))
        return np.stack([part.mean for part in parts], axis=2), np.stack([part.bound for part in parts], axis=2)

    @np.errstate(over="ignore", invalid="ignore")  # NaN becomes an infinite bound
    def taken(
        self, mean: FloatArray, bound: FloatArray, columns: FloatArray, product_error: FloatArray | None = None
    ) -> Known:
        """Return `at` for columns (r, q): h, its derivatives, or averages of h for averages of k_x."""
        p, beta = len(self.missed), np.array(self.coefficients)
        # One more rounding: h - k'A_H; products of features have others.
        rests, errors = columns - mean[:, p:], bound[:, p:]
        errors = errors + UNIT * np.abs(rests) + self.kind.roundings * UNIT * EVALUATION * np.abs(columns)
        result = mean[:, :p] + rests @ beta
        whitened = np.linalg.norm(rests @ np.array(self.whitener).T, axis=1)
        astray = self._lengths(rests, errors) + (self.count + 4.0) * EPS * whitened
        outer = (whitened + astray) / np.sqrt(1.0 - self.off) * (1.0 + 8.0 * EPS)
        inner = np.maximum(whitened - astray, 0.0) / np.sqrt(1.0 + self.off + self.above) * (1.0 - 8.0 * EPS)
        sizes = np.abs(mean[:, :p]) + (np.abs(columns) + np.abs(mean[:, p:])) @ np.abs(beta)
        total = bound[:, :p] + outer[:, None] * np.array(self.missed)
        total = total + (self.count + 4.0 + self.kind.roundings) * UNIT * EVALUATION * sizes
        if product_error is not None:
            total = total + product_error[:, p:] @ np.abs(beta)
        return Known(
            result,
            np.nextafter(known(total * (1.0 + 8.0 * EPS)), np.inf),
            np.nan_to_num(inner**2 * (1.0 - 4.0 * EPS), nan=0.0),
            known(outer**2 * (1.0 + 4.0 * EPS)),
        )

    def described(self, dataset: Dataset) -> dict[str, Any]:
        """Return each target's coefficients in its units per unit of the features, with standard errors.

        The constant is the mean at the average of all features, and products are of deviations from these averages.
        """
        to, d = dataset.standardisation, dataset.n_features
        over, unmoved = self.kind.units(to), self.kind.unmoved(d)
        spread = np.linalg.norm(np.array(self.whitener) @ unmoved.T, axis=0) * over  # of targets of unit variance
        targets = {}
        for target, scale, offset, column in zip(
            dataset.target_names, to.target_std, to.target_mean, unmoved.dot(self.coefficients).T, strict=True
        ):
            values = column * over * scale
            values[0] += offset
            targets[target] = {
                name: {"value": float(value), "standard_error": float(error * scale)}
                for name, value, error in zip(self.kind.names(dataset.feature_names), values, spread, strict=True)
            }
        return {"kind": self.kind.to_json(), "coefficients": targets}

    @classmethod
    def held(cls, document: Mapping[str, Any] | None) -> Trend | None:
        """Return the trend of a model's JSON; None for None, `InputError` for another document."""
        return None if document is None else from_json(cls, document, called="the mean", advice="Train the model again")


def fit_trend(
    drift: Drift,
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
        raise _unsolved(drift) from None
    sizes = np.abs(whitener)
    image = whitener @ gram @ whitener.T - np.eye(len(gram))
    roundings = 4.0 * len(gram) * UNIT * EVALUATION
    off = float(np.linalg.norm(image) + np.linalg.norm(sizes @ unsure @ sizes.T))
    off = EVALUATION * (off + roundings * float(np.linalg.norm(sizes @ np.abs(gram) @ sizes.T)))
    above = EVALUATION * float(np.linalg.norm(sizes @ residuals)) ** 2
    if not off <= MOST_OFF:
        raise _unsolved(drift)
    left = cross[:, :p] - cross[:, p:] @ beta
    left_off = rounded[:, :p] + rounded[:, p:] @ np.abs(beta)
    left_off += (len(gram) + 2.0) * UNIT * (np.abs(cross[:, :p]) + np.abs(cross[:, p:]) @ np.abs(beta))
    proven = _combined(certificate, gradient, beta, p, noise)
    of_targets = proven.proven_residual_norm[:p] / deviation
    gradient_off = np.linalg.norm(sizes @ (np.abs(left) + EVALUATION * left_off), axis=0) / np.sqrt(1.0 - off)
    missed = known((of_targets + gradient_off * EVALUATION) * (1.0 + 8.0 * EPS))
    if not (np.isfinite(above) and np.isfinite(missed).all()):
        raise _unsolved(drift)
    trend = Trend(drift, _table(beta), _table(whitener), off, above, tuple(missed.tolist()))
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


def _unsolved(drift: Drift) -> NumericalError:
    return NumericalError(
        f"the solve stopped too far from a solution to tell the coefficients of a {drift.word} mean. Give it more "
        "passes, or seconds, a smaller `tolerance`, or a larger noise variance"
    )


def _table(rows: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in rows)
