"""Cokriging by the intrinsic model: several targets with one correlation, cov(f_a(x), f_b(y)) = T_ab c(x - y).

Where all targets are known at all samples, with the noise covariance S between targets, let T = L L' and

    L^-1 S L^-T = Q diag(lambda) Q',     B = L Q,

the rotated targets B^-1 z are independent fields of covariance c with the noise lambda_k: p kriging systems of one
kernel in the place of one of p n rows. The means are B times theirs, the covariance of the targets is B diag(V) B'. If
S is in proportion to T all lambda are equal, and cokriging is kriging of each target alone (Wackernagel 2003, chapters
22 to 24; for noise-free fields of this model, "autokrigeability").

Values that are missing make it one system of all known values, see `dkgp.kriging.gaps`. There a target gains from the
others where it is missing, with any noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.kriging.empirical import empirical_variogram
from dkgp.kriging.gaps import JointField
from dkgp.kriging.grids import Grid
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.rasters import map_of
from dkgp.kriging.samples import covariate_columns
from dkgp.kriging.space import Space, coordinates_of
from dkgp.kriging.variogram import Variogram
from dkgp.models.rounding import outward

NO_GAIN = (
    "the noise of the targets is in proportion to their sills: cokriging equals kriging of each target alone, and "
    "gains nothing"
)
# Relative difference of noises that count as equal, and the least eigenvalue of estimated sills over the largest.
_SAME, _LEAST = 1e-9, 1e-6
# Roundings of a product with B.
_ROUNDING = 16.0 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Cokriged:
    """Predictions of p targets at r points; bounds and intervals are proven but for the rounding of the rotated data.

    Attributes
    ----------
    mean, mean_error_bound : (r, p)
    variance_lower, variance_upper : (r, p), optional
    covariance : (r, p, p), optional
        Of the targets' predictions, at the middle of the rotated variances' intervals.
    """

    mean: FloatArray
    mean_error_bound: FloatArray
    variance_lower: FloatArray | None = None
    variance_upper: FloatArray | None = None
    covariance: FloatArray | None = None


class Cokriging:
    """Cokriging of several targets; some may be missing (NaN) at some samples.

    Parameters
    ----------
    kriging : Kriging
        Not fitted: settings of all targets, and the correlation by its variogram, whose sill and nugget do not count.
    sills : (p, p) array_like, optional
        T, symmetric and positive definite; by default estimated, see `coregionalisation`.
    nuggets : (p, p) or (p,) array_like, optional
        S, the covariance of the measurement errors of the targets at a sample, or their variances. By default estimated
        with `sills`, or zero where `sills` is set. With missing values: variances, positive.

    Attributes
    ----------
    sills_, nuggets_ : (p, p)
    rotation_ : (p, p)
        B.
    noises_ : (p,)
        lambda.
    krigings_ : list of Kriging
        Of the rotated targets; empty with missing values.
    joint_ : JointField, optional
        Of all known values, if some are missing.
    n_missing_ : tuple of int
        Missing values of each target.
    note_ : str, optional
        Says that cokriging gains nothing, where that is so.

    Raises
    ------
    InputError
        A variogram that is no `Variogram`, or a known mean other than 0.
    """

    def __init__(self, kriging: Kriging, sills: ArrayLike | None = None, nuggets: ArrayLike | None = None) -> None:
        if not isinstance(kriging, Kriging):
            raise InputError(f"expected a Kriging that is not fitted, such as Kriging(variogram); got {kriging!r}")
        if not isinstance(kriging.variogram, Variogram):
            raise InputError(f"cokriging needs a Variogram, for its correlation; got {kriging.variogram!r}")
        if kriging.mean not in (None, 0.0):
            raise InputError(f"subtract known means from the data, and pass mean=0; got mean={kriging.mean!r}")
        if sills is None and nuggets is not None:
            raise InputError("`nuggets` are estimated with `sills`; give both, or none")
        self.kriging, self.sills, self.nuggets = kriging, sills, nuggets

    def fit(self, coordinates: Any, data: Sequence[ArrayLike], **settings: Any) -> Self:
        """Krige the rotated targets of samples.

        Parameters
        ----------
        coordinates, **settings
            As for `Kriging.fit`, without `noise` and `weights`.
        data : sequence of p array_like
            Values of each target; NaN where one is missing.

        Raises
        ------
        InputError
            Fewer than two targets, infinite values, matrices that are no covariances of p targets, or correlated
            nuggets with missing values.
        """
        values = [numbers_of(each, f"data {number}") for number, each in enumerate(data)]
        if len(values) < 2 or len({each.shape for each in values}) > 1:
            raise InputError(f"cokriging takes two or more arrays of one shape; got {[each.shape for each in values]}")
        for number, each in enumerate(values):
            if np.isinf(each).any():
                raise InputError(
                    f"data {number} is infinite in {int(np.isinf(each).sum())} rows; NaN is a missing value"
                )
        self.n_missing_ = tuple(int(np.isnan(each).sum()) for each in values)
        has_gaps = any(self.n_missing_)
        if not {"noise", "weights"}.isdisjoint(settings):
            raise InputError("cokriging has the noise of `nuggets`, the same at all samples; leave `noise` out")
        p, variogram = len(values), self.kriging.variogram
        if self.sills is None:
            if self.kriging.time_scale is not None:
                raise InputError("sills are estimated in space alone; pass `sills` for a field in space and time")
            model = self.kriging
            sills, nuggets = coregionalisation(
                coordinates, values, variogram, crs=model.crs, metric=model.metric, correlated=not has_gaps
            )
        else:
            sills = _covariance("sills", self.sills, p)
            nuggets = np.zeros((p, p)) if self.nuggets is None else _covariance("nuggets", self.nuggets, p)
        try:
            lower = np.linalg.cholesky(sills)
        except np.linalg.LinAlgError:
            raise InputError(
                f"`sills` must be positive definite; its eigenvalues are {np.linalg.eigvalsh(sills).tolist()}"
            ) from None
        self.sills_, self.nuggets_, self.note_, self.joint_, self.krigings_ = sills, nuggets, None, None, []
        if has_gaps:
            self.joint_ = self._joint(coordinates, np.stack([each.reshape(-1) for each in values], axis=1), **settings)
            return self
        half = np.linalg.solve(lower, nuggets)
        inside = np.linalg.solve(lower, half.T)
        noises, vectors = np.linalg.eigh(0.5 * (inside + inside.T))
        self.rotation_ = np.asarray(lower @ vectors)
        self.noises_ = np.maximum(noises, 0.0)
        self.note_ = NO_GAIN if np.ptp(noises) <= _SAME * max(float(noises.max()), 1e-300) else None
        rotated = np.linalg.solve(self.rotation_, np.stack([each.reshape(-1) for each in values]))
        for noise, target in zip(self.noises_, rotated, strict=True):
            one = Kriging(**{**self.kriging.get_params(), "variogram": _scaled(variogram, float(noise))})
            self.krigings_.append(one.fit(coordinates, target.reshape(values[0].shape), **settings))
        return self

    def _joint(self, coordinates: Any, values: FloatArray, covariates: Any = None) -> JointField:
        """Solve the system of the known values (n, p)."""
        model, errors = self.kriging, np.diag(self.nuggets_)
        if (self.nuggets_ != np.diag(errors)).any():
            raise InputError(
                "with missing values the targets' measurement errors are independent: `nuggets` are p variances; got "
                f"{self.nuggets_.tolist()}. Pass their diagonal, or leave out the samples with a missing value"
            )
        coordinates, crs = coordinates_of(coordinates, model.crs)
        scale: dict[str, Any] = {} if model.time_scale is None else {"has_time": True, "time_scale": model.time_scale}
        space: Space = Space.of(coordinates, crs, metric=model.metric, earth=model.earth, **scale)
        places = space.places(coordinates)
        columns = covariate_columns(model.drift.columns, covariates, len(places))
        return JointField(model, space, places, values, columns, sills=self.sills_, errors=errors)

    def _jointly(self, coordinates: Any, variance: bool, covariates: Any = None, **unused: Any) -> Cokriged:
        """Predict from the known values; a covariance comes from the variance of the average of two targets."""
        joint, p = self.joint_, len(self.sills_)
        assert joint is not None
        if unused:
            raise InputError(f"cokriging with missing values predicts the signal, without {', '.join(unused)}")
        places = joint.space.places(coordinates_of(coordinates, joint.space.crs)[0])
        columns = covariate_columns(self.kriging.drift.columns, covariates, len(places), "point")
        pairs = [(a, b) for a in range(p) for b in range(a)] if variance else []
        shares = [*np.eye(p), *(0.5 * (np.eye(p)[a] + np.eye(p)[b]) for a, b in pairs)]
        parts = joint.at(places, shares, columns, variance=variance)
        unit = joint.unit
        mean = parts.mean[:, :p] * unit + joint.middle
        slack = _ROUNDING * (np.abs(parts.mean[:, :p]) * unit + np.abs(joint.middle))
        bound = parts.mean_error_bound[:, :p] * unit * (1.0 + _ROUNDING) + slack
        if parts.variance is None or parts.variance_lower is None or parts.variance_upper is None:
            return Cokriged(mean, bound)
        lower, upper = (end[:, :p] * unit**2 for end in (parts.variance_lower, parts.variance_upper))
        lower, upper = outward(lower * (1.0 - _ROUNDING), upper * (1.0 + _ROUNDING))
        scaled = np.zeros((len(places), p, p))
        scaled[:, range(p), range(p)] = parts.variance[:, :p]
        for index, (a, b) in enumerate(pairs):
            both = parts.variance[:, a] + parts.variance[:, b]
            scaled[:, a, b] = scaled[:, b, a] = 2.0 * parts.variance[:, p + index] - 0.5 * both
        return Cokriged(mean, bound, np.maximum(lower, 0.0), upper, scaled * np.outer(unit, unit))

    def kriged(self, coordinates: Any, *, variance: bool = False, **settings: Any) -> Cokriged:
        """Predict all targets at flattened points; `settings` as for `Kriging.kriged`."""
        if self.joint_ is not None:
            return self._jointly(coordinates, variance, **settings)
        parts = [model.kriged(coordinates, variance=variance, **settings) for model in self.krigings_]
        B = self.rotation_
        means = np.column_stack([part.mean[:, 0] for part in parts])
        bounds = np.column_stack([part.mean_error_bound[:, 0] for part in parts])
        bound = (bounds + _ROUNDING * np.abs(means)) @ np.abs(B).T * (1.0 + _ROUNDING)
        if not variance:
            return Cokriged(means @ B.T, bound)
        low, high, middle = (
            np.column_stack([getattr(part, name)[:, 0] for part in parts])
            for name in ("variance_lower", "variance_upper", "variance")
        )
        lower, upper = outward(low @ (B**2).T * (1.0 - _ROUNDING), high @ (B**2).T * (1.0 + _ROUNDING))
        covariance = np.einsum("ak,rk,bk->rab", B, middle, B)
        return Cokriged(means @ B.T, bound, np.maximum(lower, 0.0), upper, covariance)

    def predict(self, coordinates: Any, **settings: Any) -> tuple[FloatArray, ...]:
        """Return the mean of each target, of the coordinates' shape; `settings` as for `Kriging.predict`."""
        if self.joint_ is not None:
            shape = np.shape(coordinates_of(coordinates, self.joint_.space.crs)[0][0])
            return tuple(column.reshape(shape) for column in self._jointly(coordinates, False, **settings).mean.T)
        parts = np.stack([np.asarray(model.predict(coordinates, **settings)) for model in self.krigings_])
        return tuple(np.tensordot(self.rotation_, parts, axes=1))

    def grid(self, *arguments: Any, **settings: Any) -> Any:
        """Return a map of all targets; arguments as for `Kriging.grid`, without `out` and `data_names`.

        Variables are `scalars0`, `scalars0_mean_error_bound`, ..., and with `variance` the ends of intervals. With
        missing values arguments are those of `Grid.of`, `variance` and `covariates`: arrays by name.
        """
        if self.joint_ is not None:
            return self._joint_map(*arguments, **settings)
        maps = [model.grid(*arguments, **settings) for model in self.krigings_]
        result = maps[0].drop_vars(list(maps[0].data_vars))
        for number, row in enumerate(self.rotation_):
            name = f"scalars{number}"
            result[name] = sum(share * one["scalars"] for share, one in zip(row, maps, strict=True))
            sizes = [
                abs(share) * (one["mean_error_bound"] + _ROUNDING * abs(one["scalars"]))
                for share, one in zip(row, maps, strict=True)
            ]
            result[f"{name}_mean_error_bound"] = sum(sizes) * (1.0 + _ROUNDING)
            for end, side in (("variance_lower", -1.0), ("variance", 0.0), ("variance_upper", 1.0)):
                if end in maps[0]:
                    total = sum(share**2 * one[end] for share, one in zip(row, maps, strict=True))
                    result[f"{name}_{end}"] = total * (1.0 + side * _ROUNDING)
        return result

    def _joint_map(
        self, region: Sequence[float], *, variance: bool = False, covariates: Any = None, **axes: Any
    ) -> Any:
        assert self.joint_ is not None
        grid = Grid.of(region, **axes)
        result = self._jointly(np.meshgrid(grid.x, grid.y), variance, covariates)
        ends = {"": result.mean, "_mean_error_bound": result.mean_error_bound}
        if result.covariance is not None and result.variance_lower is not None and result.variance_upper is not None:
            middle = np.diagonal(result.covariance, axis1=1, axis2=2)
            ends |= {"_variance_lower": result.variance_lower, "_variance": middle}
            ends["_variance_upper"] = result.variance_upper
        arrays = {
            f"scalars{number}{end}": values[:, number].reshape(grid.shape)
            for number in range(len(self.sills_))
            for end, values in ends.items()
        }
        return map_of(grid, arrays, self.joint_.space.crs, ("northing", "easting"))


def coregionalisation(
    coordinates: Any,
    data: Sequence[ArrayLike],
    variogram: Variogram,
    *,
    crs: Any = None,
    metric: str = "auto",
    bins: Any = 15,
    correlated: bool = True,
) -> tuple[FloatArray, FloatArray]:
    """Estimate T and S of the intrinsic model from variograms and cross-variograms at one range.

    gamma_ab(h) = S_ab + T_ab (1 - rho(h)) is fitted by least squares with the numbers of pairs as weights, and the
    matrices are moved to the closest positive semidefinite ones (Goulard and Voltz 1992, one step). Cross-variograms
    are those of sums and differences, (gamma_(a+b) - gamma_(a-b)) / 4, of samples with both targets. A drift is not
    taken off.

    Parameters
    ----------
    coordinates, data
        As for `Cokriging.fit`.
    crs, metric
        As for `Kriging`.
    variogram : Variogram
        Its correlation counts, with its anisotropy.
    bins
        As for `dkgp.kriging.empirical_variogram`.
    correlated : bool, default True
        Errors of different targets may be correlated; False: S is diagonal.

    Returns
    -------
    T, S : (p, p)
    """
    values = [numbers_of(each, f"data {number}").reshape(-1) for number, each in enumerate(data)]
    coordinates, crs = coordinates_of(coordinates, crs)
    space: Space = Space.of(coordinates, crs, metric=metric)
    places = variogram.isotropic(space.places(coordinates))
    p = len(values)
    sills, nuggets = np.empty((p, p)), np.empty((p, p))

    def fitted(target: FloatArray, noisy: bool = True) -> FloatArray:
        here = np.isfinite(target)
        empirical = empirical_variogram(tuple(places[here].T), target[here], bins=bins, metric="plane")
        known = empirical.known
        rise = 1.0 - variogram.covariance(empirical.lag[known]) / variogram.field_variance
        root = np.sqrt(empirical.count[known])
        columns = np.column_stack([np.full(len(rise), float(noisy)), rise])
        return np.asarray(np.linalg.lstsq(columns * root[:, None], empirical.gamma[known] * root, rcond=None)[0])

    for a in range(p):
        for b in range(a + 1):
            if a == b:
                fit = fitted(values[a])
            else:
                total, difference = values[a] + values[b], values[a] - values[b]
                fit = 0.25 * (fitted(total, correlated) - fitted(difference, correlated))
            nuggets[a, b] = nuggets[b, a] = fit[0]
            sills[a, b] = sills[b, a] = fit[1]
    return _nearest(sills, _LEAST), _nearest(nuggets, 0.0)


def _nearest(matrix: FloatArray, least: float) -> FloatArray:
    """Return the closest symmetric matrix of eigenvalues of at least a share of the largest."""
    values, vectors = np.linalg.eigh(matrix)
    raised = np.maximum(values, least * max(float(values.max()), 0.0))
    if not raised.max() > 0.0 and least:
        raise InputError("the estimated sills are all negative; pass `sills`, or a variogram of another range")
    return np.asarray((vectors * raised) @ vectors.T)


def _covariance(name: str, matrix: ArrayLike, p: int) -> FloatArray:
    """Return a symmetric matrix (p, p) without negative eigenvalues; `InputError` for others."""
    values = np.asarray(matrix, dtype=np.float64)
    if values.shape == (p,):
        values = np.diag(values)
    if values.shape != (p, p) or not np.isfinite(values).all():
        raise InputError(f"`{name}` is a finite matrix ({p}, {p}), one row per target; got shape {values.shape}")
    if not np.allclose(values, values.T, rtol=1e-12, atol=0.0):
        raise InputError(f"`{name}` must be symmetric; got {values.tolist()}")
    least = float(np.linalg.eigvalsh(values).min())
    if least < -1e-12 * float(np.abs(values).max()):
        raise InputError(f"`{name}` is no covariance: its least eigenvalue is {least:.3g}")
    return 0.5 * (values + values.T)


def _scaled(variogram: Variogram, nugget: float) -> Variogram:
    """Return the variogram of sill 1 with a measurement error."""
    total = variogram.field_variance
    also = tuple(replace(one, psill=one.psill / total) for one in variogram.also)
    return replace(variogram, psill=variogram.psill / total, nugget=(nugget, 0.0), also=also)
