"""Kriging with the names and arguments of PyKrige, for scripts that move to dkgp.

Means and variances are PyKrige's for the models that are covariances: exponential, gaussian and spherical. Of many
samples they are proven to the tolerances of `Kriging`. `exact_values=True` makes the nugget micro-scale variation,
which is known at samples; False makes it a measurement error. Variances are those of an observation, nugget included.

Differences, by design: all samples enter every point; distances of geographic coordinates are chords of the sphere of
6371 km instead of arcs, with ranges in degrees of arc; replicates are merged; and the default model is exponential,
since PyKrige's, linear, has no covariance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.optimize
import scipy.spatial
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.kriging.empirical import empirical_variogram
from dkgp.kriging.kriging import Kriging, points_of_style, shaped_as_style
from dkgp.kriging.space import EARTH_RADIUS, Space
from dkgp.kriging.variogram import FORMS, Variogram, form_name

# Arguments of PyKrige that change nothing here, with the values that may be passed.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "verbose": (False, True),
    "enable_plotting": (False,),
    "enable_statistics": (False,),
    "pseudo_inv": (False,),
    "pseudo_inv_type": ("pinv", "pinvh"),
    "variogram_function": (None,),
    "point_drift": (None,),
}
_ADVICE = {
    "enable_plotting": "plot `variogram` and `empirical` yourself",
    "enable_statistics": "cross-validate `kriging` instead",
    "pseudo_inv": "replicates are merged, and a singular matrix is refused: give a nugget of at least 1e-8 of the sill",
    "variogram_function": "pass a `dkgp.kriging.Variogram`, or a sum of them, as `variogram_model`",
    "point_drift": "pass its logarithms as `specified_drift`",
}
_BACKENDS = ("vectorized", "loop", "C")
_DRIFTS = ("regional_linear", "external_Z", "specified", "functional")
# Samples whose distances are all computed; the largest distance of more is the diagonal of their bounding box.
_MOST_COMPARED = 5_000
_DEGREE = EARTH_RADIUS * math.pi / 180.0


class OrdinaryKriging:
    """Ordinary kriging with PyKrige's arguments.

    Parameters
    ----------
    x, y, z : array_like
        Coordinates of the samples, and their values.
    variogram_model : str, Variogram or a model of GSTools, default "exponential"
        "exponential", "gaussian" or "spherical".
    variogram_parameters : list or dict, optional
        [full sill, range, nugget], or a dict with "sill" or "psill", "range" and "nugget", in PyKrige's convention of
        the range. None: fitted as PyKrige does, by a soft L1 loss, to an empirical variogram of `nlags` bins over all
        distances; `dkgp.kriging.Variogram.fit` has other fits.
    nlags : int, default 6
    weight : bool, default False
        The fit weighs short lags more.
    anisotropy_scaling, anisotropy_angle : float
        Factor of the minor axis; degrees counter-clockwise.
    coordinates_type : {"euclidean", "geographic"}
        Geographic: longitude and latitude.
    exact_values : bool, default True
        The nugget is micro-scale variation; False: a measurement error.
    tolerance, variance_gap, client
        See `dkgp.kriging.Kriging`.
    other
        PyKrige's further arguments, where they ask for nothing that dkgp does otherwise.

    Attributes
    ----------
    kriging : Kriging
        The fitted model, with proven bounds.
    variogram : Variogram
    variogram_model_parameters : list of float
        Partial sill, range in PyKrige's convention, and nugget.

    Raises
    ------
    InputError
        Models without a covariance, or arguments that dkgp does not support.

    Examples
    --------
    >>> x, y = [0.0, 1.0, 0.0, 1.0, 0.4], [0.0, 0.0, 1.0, 1.0, 0.7]
    >>> kriging = OrdinaryKriging(x, y, [1.0, 2.0, 2.0, 3.0, 2.1], "spherical", [1.0, 3.0, 0.0])
    >>> z, ss = kriging.execute("grid", [0.0, 0.5, 1.0], [0.0, 1.0])
    >>> z.shape, [float(round(value, 6)) for value in z[0, ::2]]
    ((2, 3), [1.0, 2.0])
    """

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        z: ArrayLike,
        variogram_model: Any = "exponential",
        variogram_parameters: Any = None,
        *,
        nlags: int = 6,
        weight: bool = False,
        anisotropy_scaling: float = 1.0,
        anisotropy_angle: float = 0.0,
        coordinates_type: str = "euclidean",
        exact_values: bool = True,
        tolerance: Any = "auto",
        variance_gap: float = 0.05,
        client: Any = None,
        **other: Any,
    ) -> None:
        _require_without_effect(other)
        if coordinates_type not in ("euclidean", "geographic"):
            raise InputError(f"`coordinates_type` is euclidean or geographic; got {coordinates_type!r}")
        if coordinates_type == "geographic" and anisotropy_scaling != 1.0:
            raise InputError("anisotropy has no meaning on the globe; leave `anisotropy_scaling` out")
        east, north, values = (_line(each) for each in (x, y, z))
        turned = (anisotropy_scaling, anisotropy_angle)
        self._geographic, self._scaling = coordinates_type == "geographic", anisotropy_scaling
        if variogram_parameters is None and isinstance(variogram_model, str):
            variogram_parameters = self._fit(form_name(variogram_model), (east, north, values), turned, nlags, weight)
        elif self._geographic and variogram_parameters is not None:
            variogram_parameters = _in_km(variogram_model, variogram_parameters)
        self.variogram = _variogram(variogram_model, variogram_parameters, turned, exact_values)
        self._of: Any = "field" if exact_values else "observation"
        self.kriging = Kriging(
            self.variogram,
            metric="sphere" if self._geographic else "plane",
            tolerance=tolerance,
            variance_gap=variance_gap,
            client=client,
            **self._mean(),
        )
        self.kriging.fit((east, north), values, covariates=self._drift_at(east, north, None))

    def _mean(self) -> dict[str, Any]:
        """Return settings of the mean, of `Kriging`."""
        return {}

    def _drift_at(self, x: FloatArray, y: FloatArray, specified: Sequence[FloatArray] | None) -> Any:
        """Return covariates at points (r,), by name; None without."""
        return None

    @property
    def variogram_model_parameters(self) -> list[float]:
        """Partial sill, range in PyKrige's convention and nugget; the range of geographic coordinates in degrees."""
        model = self.variogram
        # A factor below one makes the second axis the main one.
        length = model.range_as("pykrige") * (1.0 / _DEGREE if self._geographic else min(1.0, self._scaling))
        return [model.psill, length, sum(model.nugget)]

    def _fit(
        self, model: str, samples: tuple[FloatArray, ...], turned: tuple[float, float], nlags: int, weight: bool
    ) -> dict[str, float]:
        """Return parameters of PyKrige's fit: its convention of the range, in map units or km."""
        x, y, z = samples
        if not self._geographic:
            turn = math.radians(turned[1])
            x, y = math.cos(turn) * x + math.sin(turn) * y, turned[0] * (math.cos(turn) * y - math.sin(turn) * x)
        space = Space(2, "sphere" if self._geographic else "plane")
        low, high = _distances(space.places((x, y)))
        edges = [*(low + np.arange(nlags) * (high - low) / nlags), high + 0.001]
        self.empirical = empirical_variogram((x, y), z, bins=edges, metric=space.metric)
        known = self.empirical.known
        lag, gamma = self.empirical.lag[known], self.empirical.gamma[known]
        psill, length, nugget = _soft_fit(model, lag, gamma, weight)
        return {"psill": psill, "range": length, "nugget": nugget}

    def execute(
        self,
        style: str,
        xpoints: ArrayLike,
        ypoints: ArrayLike,
        mask: ArrayLike | None = None,
        backend: str = "vectorized",
        n_closest_points: int | None = None,
    ) -> Any:
        """Return means and variances of observations as PyKrige's `execute` does; see `Kriging.execute`.

        `backend` changes nothing.

        Raises
        ------
        InputError
            `n_closest_points`: dkgp takes all samples.
        """
        if n_closest_points is not None:
            raise InputError(f"got n_closest_points={n_closest_points}: dkgp takes all samples; leave it out")
        return self._executed(style, (xpoints, ypoints), mask, backend, None)

    def _executed(self, style: str, axes: tuple[Any, Any], mask: Any, backend: str, specified: Any) -> Any:
        if backend not in _BACKENDS:
            raise InputError(f"`backend` is one of {', '.join(_BACKENDS)}, and changes nothing; got {backend!r}")
        x, y, taken = points_of_style(style, *axes, mask)
        parts = None if specified is None else [_of_shape(part, taken.shape)[taken] for part in specified]
        covariates = self._drift_at(x, y, parts)
        kriged = self.kriging.kriged((x, y), covariates=covariates, variance=True, of=self._of)
        return shaped_as_style(kriged, taken, style)


class SimpleKriging(OrdinaryKriging):
    """Simple kriging: a known `mean`, else as `OrdinaryKriging`.

    Parameters
    ----------
    x, y, z, variogram_model, variogram_parameters
        As for `OrdinaryKriging`.
    mean : float
        The known mean.
    settings
        Further arguments of `OrdinaryKriging`.
    """

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        z: ArrayLike,
        variogram_model: Any = "exponential",
        variogram_parameters: Any = None,
        *,
        mean: float,
        **settings: Any,
    ) -> None:
        self.mean = float(mean)
        super().__init__(x, y, z, variogram_model, variogram_parameters, **settings)

    def _mean(self) -> dict[str, Any]:
        return {"kind": "simple", "mean": self.mean}


class UniversalKriging(OrdinaryKriging):
    """Universal kriging with PyKrige's arguments.

    Parameters
    ----------
    x, y, z, variogram_model, variogram_parameters
        As for `OrdinaryKriging`.
    drift_terms : sequence of str, default ()
        Some of "regional_linear", "external_Z", "specified" and "functional".
    external_drift : (rows, columns) array_like, optional
        A raster with the axes `external_drift_y` and `external_drift_x`, interpolated bilinearly.
    specified_drift : list of array_like, optional
        Values at the samples.
    functional_drift : list of callable, optional
        Functions of x and y, which are turned and scaled about the samples' centre as the anisotropy is.
    settings
        Further arguments of `OrdinaryKriging`.
    """

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        z: ArrayLike,
        variogram_model: Any = "exponential",
        variogram_parameters: Any = None,
        *,
        drift_terms: Sequence[str] | None = None,
        external_drift: ArrayLike | None = None,
        external_drift_x: ArrayLike | None = None,
        external_drift_y: ArrayLike | None = None,
        specified_drift: Sequence[ArrayLike] | None = None,
        functional_drift: Sequence[Callable[..., Any]] | None = None,
        **settings: Any,
    ) -> None:
        self._terms = (drift_terms,) if isinstance(drift_terms, str) else tuple(drift_terms or ())
        if unknown := set(self._terms) - set(_DRIFTS):
            raise InputError(
                f"`drift_terms` has some of {', '.join(_DRIFTS)}; got {', '.join(sorted(map(str, unknown)))}. "
                f"For point_log, {_ADVICE['point_drift']}"
            )
        if settings.get("coordinates_type", "euclidean") != "euclidean":
            raise InputError("universal kriging of PyKrige has no geographic coordinates; use dkgp.kriging.Kriging")
        self._functions = tuple(functional_drift or ()) if "functional" in self._terms else ()
        self._specified = [_line(part) for part in specified_drift or ()] if "specified" in self._terms else []
        self._external = None
        if "external_Z" in self._terms:
            self._external = _raster(external_drift, external_drift_x, external_drift_y)
        for term, present in (("specified", self._specified), ("functional", self._functions)):
            if term in self._terms and not present:
                raise InputError(f"the drift term {term} needs `{term}_drift`, a list of at least one")
        east, north = _line(x), _line(y)
        self._centre = tuple(0.5 * (values.max() + values.min()) for values in (east, north))
        self._turned = (settings.get("anisotropy_scaling", 1.0), math.radians(settings.get("anisotropy_angle", 0.0)))
        super().__init__(east, north, z, variogram_model, variogram_parameters, **settings)

    def _mean(self) -> dict[str, Any]:
        names = [] if self._external is None else ["external_Z"]
        names += [f"specified_{index}" for index in range(len(self._specified))]
        names += [f"functional_{index}" for index in range(len(self._functions))]
        degree = int("regional_linear" in self._terms)
        return {"kind": "universal", "degree": degree, "covariates": tuple(names)} if names or degree else {}

    def _drift_at(self, x: FloatArray, y: FloatArray, specified: Sequence[FloatArray] | None) -> Any:
        parts = [] if self._external is None else [_interpolated(self._external, x, y)]
        values = self._specified if specified is None else specified
        if len(values) != len(self._specified):
            raise InputError(f"the model has {len(self._specified)} specified drifts; got {len(values)}")
        if self._specified and len(values[0]) != len(x):
            raise InputError("pass `specified_drift_arrays`, the values of the specified drifts at the points")
        parts += list(values)
        (scaling, turn), (east, north) = self._turned, (x - self._centre[0], y - self._centre[1])
        along = math.cos(turn) * east + math.sin(turn) * north
        across = scaling * (math.cos(turn) * north - math.sin(turn) * east)
        along, across = along + self._centre[0], across + self._centre[1]
        parts += [np.broadcast_to(np.asarray(function(along, across)), x.shape) for function in self._functions]
        return tuple(parts) or None

    def execute(  # type: ignore[override]  # PyKrige's order of arguments
        self,
        style: str,
        xpoints: ArrayLike,
        ypoints: ArrayLike,
        mask: ArrayLike | None = None,
        backend: str = "vectorized",
        specified_drift_arrays: Sequence[ArrayLike] | None = None,
    ) -> Any:
        """Return means and variances of observations as PyKrige's `execute` does; see `Kriging.execute`.

        `specified_drift_arrays` are the specified drifts at the cells, (rows, columns) each, or at the points.
        """
        return self._executed(style, (xpoints, ypoints), mask, backend, specified_drift_arrays or None)


def _distances(places: FloatArray) -> tuple[float, float]:
    """Return the least and the largest distance of two places; of many places a bound on the largest."""
    least = float(scipy.spatial.cKDTree(places).query(places, k=2)[0][:, 1].min())
    if len(places) <= _MOST_COMPARED:
        return least, float(scipy.spatial.distance.pdist(places).max())
    return least, float(np.linalg.norm(np.ptp(places, axis=0)))


def _soft_fit(model: str, lag: FloatArray, gamma: FloatArray, weight: bool) -> tuple[float, float, float]:
    """Return partial sill, range and nugget by PyKrige's rule: a soft L1 loss, and logistic weights if asked for."""
    form, weights = FORMS[model], np.ones_like(lag)
    factor = form.ranges["pykrige"](None)
    if weight:
        spread = lag.max() - lag.min()
        weights = 1.0 / (1.0 + np.exp(-2.1972 / (0.1 * spread) * (0.7 * spread + lag.min() - lag)))
        weights /= weights.sum()

    def residuals(values: FloatArray) -> FloatArray:
        psill, length, nugget = values
        rise = 1.0 - form.correlation(lag / (length / factor), None)
        return np.asarray((psill * rise + nugget - gamma) * weights)

    most, least = float(gamma.max()), float(gamma.min())
    start = (most - least, 0.25 * float(lag.max()), least)
    limits = ((0.0, 0.0, 0.0), (10.0 * most, float(lag.max()), most))
    result = scipy.optimize.least_squares(residuals, start, bounds=limits, loss="soft_l1").x
    psill, length, nugget = (float(value) for value in result)
    if not psill > 0.0:
        raise InputError("the fitted variogram is a nugget alone: the values have no spatial correlation")
    return psill, length, nugget


def _require_without_effect(other: Mapping[str, Any]) -> None:
    for name, value in other.items():
        if name not in _WITHOUT_EFFECT:
            raise InputError(f"there is no argument {name!r}; see help(dkgp.kriging.OrdinaryKriging)")
        if value not in _WITHOUT_EFFECT[name]:
            raise InputError(f"got {name}={value!r}, which dkgp does not do: {_ADVICE.get(name, 'leave it out')}")


def _variogram(model: Any, parameters: Any, turned: tuple[float, float], exact: bool) -> Variogram:
    """Return the variogram; its nugget is micro-scale variation if values are exact, else a measurement error."""
    if isinstance(model, str):
        return Variogram.from_pykrige(
            model, parameters, anisotropy_scaling=turned[0], anisotropy_angle=turned[1], exact_values=exact
        )
    result = model if isinstance(model, Variogram) else Variogram.from_gstools(model)
    nugget = sum(result.nugget)
    return replace(result, nugget=(0.0, nugget) if exact else (nugget, 0.0))


def _in_km(model: Any, parameters: Any) -> Any:
    """Return parameters of geographic coordinates, whose range is in degrees of arc, with the range in km."""
    if isinstance(model, str) and form_name(model) == "gaussian":
        raise InputError(
            "a gaussian variogram of great-circle distances is no covariance; take exponential, or Kriging with "
            "metric='sphere' and a gaussian Variogram of chords in km"
        )
    if isinstance(parameters, Mapping):
        return {**parameters, "range": parameters["range"] * _DEGREE} if "range" in parameters else parameters
    return [value * _DEGREE if index == 1 else value for index, value in enumerate(parameters)]


def _raster(values: Any, x: Any, y: Any) -> Any:
    """Return a bilinear interpolant of (y, x)."""
    from scipy.interpolate import RegularGridInterpolator

    if values is None or x is None or y is None:
        raise InputError("the drift term external_Z needs `external_drift`, `external_drift_x` and `external_drift_y`")
    raster, east, north = numbers_of(values, "`external_drift`"), _line(x), _line(y)
    if raster.shape != (len(north), len(east)) and raster.shape == (len(east), len(north)):
        raster = raster.T
    if raster.shape != (len(north), len(east)):
        raise InputError(f"`external_drift` has shape {raster.shape}; expected {(len(north), len(east))}, rows of y")
    return RegularGridInterpolator((north, east), raster, bounds_error=False, fill_value=np.nan)


def _interpolated(raster: Any, x: FloatArray, y: FloatArray) -> FloatArray:
    values = np.asarray(raster(np.column_stack([y, x])))
    if np.isnan(values).any():
        at = int(np.argmax(np.isnan(values)))
        raise InputError(
            f"the external drift is missing at {int(np.isnan(values).sum())} of {len(x)} points, first at "
            f"({x[at]:.10g}, {y[at]:.10g}); give a raster that covers them"
        )
    return values


def _line(values: ArrayLike) -> FloatArray:
    return np.atleast_1d(np.squeeze(numbers_of(values, "coordinates")))


def _of_shape(values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    array = numbers_of(values, "a specified drift")
    if array.shape != shape and array.T.shape == shape:
        array = array.T
    if array.shape != shape:
        raise InputError(f"a specified drift has shape {array.shape}; expected {shape}")
    return array
