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
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize
import scipy.spatial
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.kriging.crossvalidation import sequential_statistics
from dkgp.kriging.empirical import empirical_variogram
from dkgp.kriging.kriging import Kriging, points_of_style, shaped_as_style
from dkgp.kriging.space import EARTH_RADIUS, Space
from dkgp.kriging.variogram import FORMS, Variogram, form_name, pykrige_turn

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
    "enable_statistics": "call `get_statistics`",
    "pseudo_inv": "replicates are merged, and a singular matrix is refused: give a nugget of at least 1e-8 of the sill",
    "variogram_function": "pass a `dkgp.kriging.Variogram`, or a sum of them, as `variogram_model`",
    "point_drift": "pass its logarithms as `specified_drift`",
}
_BACKENDS = ("vectorized", "loop", "C")
# Samples whose distances are all computed; the largest distance of more is the diagonal of their bounding box.
_MOST_COMPARED = 5_000
Axes: TypeAlias = tuple[FloatArray, ...]
_DEGREE = EARTH_RADIUS * math.pi / 180.0


@dataclass(frozen=True)
class _Turn:
    """PyKrige's anisotropy: factors of the axes after the first, and degrees, (x, y, z) in three dimensions."""

    scaling: tuple[float, ...]
    angles: tuple[float, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `Variogram.from_pykrige`."""
        values = (self.scaling, self.angles) if len(self.scaling) > 1 else (self.scaling[0], self.angles[0])
        return dict(zip(("anisotropy_scaling", "anisotropy_angle"), values, strict=True))

    def moved(self, points: Axes, centre: Sequence[float]) -> Axes:
        """Return points turned and stretched about a centre."""
        matrix = pykrige_turn(self.angles)
        offsets = [values - middle for values, middle in zip(points, centre, strict=True)]
        turned = [sum(share * offset for share, offset in zip(row, offsets, strict=True)) for row in matrix]
        factors = (1.0, *self.scaling)
        return tuple(one * factor + middle for one, factor, middle in zip(turned, factors, centre, strict=True))


class _Classes:
    """The body that all classes share."""

    _geographic = False
    # Names of the arguments of anisotropy.
    _anisotropy: tuple[tuple[str, ...], tuple[str, ...]] = (("anisotropy_scaling",), ("anisotropy_angle",))

    def _start(
        self,
        samples: Sequence[ArrayLike],
        model: tuple[Any, Any],
        turn: _Turn,
        *,
        nlags: int = 6,
        weight: bool = False,
        exact_values: bool = True,
        **settings: Any,
    ) -> None:
        """Keep the samples, axes and values, and solve; a model is a variogram and its parameters."""
        known = {name: settings.pop(name) for name in ("tolerance", "variance_gap", "client") if name in settings}
        _require_without_effect(settings)
        parts = tuple(_line(axis) for axis in samples)
        self._places, self._values = parts[:-1], parts[-1]
        self._centre = tuple(0.5 * (axis.max() + axis.min()) for axis in self._places)
        self._exact, self._settings = exact_values, known
        self._of: Any = "field" if exact_values else "observation"
        self._set(*model, turn, nlags, weight)

    def _set(self, model: Any, parameters: Any, turn: _Turn, nlags: int, weight: bool) -> None:
        """Set the variogram, fitted where it has no parameters, and solve the equations."""
        self._turn = turn
        if parameters is None and isinstance(model, str):
            parameters = self._fit(form_name(model), nlags, weight)
        elif self._geographic and parameters is not None:
            parameters = _in_km(model, parameters)
        self.variogram = _variogram(model, parameters, turn, self._exact)
        metric = "sphere" if self._geographic else "plane"
        self.kriging = Kriging(self.variogram, metric=metric, **self._settings, **self._mean())
        self.kriging.fit(self._places, self._values, covariates=self._drift_at(self._places, None))

    def update_variogram_model(
        self,
        variogram_model: Any,
        variogram_parameters: Any = None,
        *,
        nlags: int = 6,
        weight: bool = False,
        **anisotropy: float,
    ) -> None:
        """Take another variogram, and solve the equations again; arguments as for the class, anisotropy as well."""
        scaling, angles = (
            tuple(anisotropy.pop(name, default) for name in names)
            for names, default in zip(self._anisotropy, (1.0, 0.0), strict=True)
        )
        _require_without_effect(anisotropy)
        self._set(variogram_model, variogram_parameters, _Turn(scaling, angles), nlags, weight)

    def _mean(self) -> dict[str, Any]:
        """Return settings of the mean, of `Kriging`."""
        return {}

    def _drift_at(self, points: Axes, specified: Sequence[FloatArray] | None) -> Any:
        """Return covariates at points, (r,) each, by name; None without."""
        return None

    @property
    def variogram_model_parameters(self) -> list[float]:
        """Partial sill, range in PyKrige's convention and nugget; the range of geographic coordinates in degrees."""
        model = self.variogram
        # A factor below one makes another axis the main one.
        length = model.range_as("pykrige") * (1.0 / _DEGREE if self._geographic else min(1.0, *self._turn.scaling))
        return [model.psill, length, sum(model.nugget)]

    def _fit(self, model: str, nlags: int, weight: bool) -> dict[str, float]:
        """Return parameters of PyKrige's fit: its convention of the range, in map units or km."""
        points = self._places if self._geographic else self._turn.moved(self._places, self._centre)
        space = Space(len(points), "sphere" if self._geographic else "plane")
        low, high = _distances(space.places(points))
        edges = [*(low + np.arange(nlags) * (high - low) / nlags), high + 0.001]
        self.empirical = empirical_variogram(points, self._values, bins=edges, metric=space.metric)
        known = self.empirical.known
        lag, gamma = self.empirical.lag[known], self.empirical.gamma[known]
        psill, length, nugget = _soft_fit(model, lag, gamma, weight)
        return {"psill": psill, "range": length, "nugget": nugget}

    def get_statistics(self) -> tuple[float, float, float]:
        """Return Q1, Q2 and cR of ordinary kriging of each sample from those before it (Kitanidis 1997, section 4.3).

        Raises `InputError`: more than 4,096 samples, or a singular matrix; cross-validate `kriging` instead.
        """
        places = self.variogram.isotropic(self.kriging.space_.places(self._places))
        return sequential_statistics(places, self._values, self.variogram)

    def print_statistics(self) -> None:
        """Print Q1, Q2 and cR: the first is near 0, the second near 1, and the last small for a good variogram."""
        for name, value in zip(("Q1", "Q2", "cR"), self.get_statistics(), strict=True):
            print(name, "=", value)

    def _executed(self, style: str, axes: Sequence[Any], mask: Any, backend: str, specified: Any) -> Any:
        if backend not in _BACKENDS:
            raise InputError(f"`backend` is one of {', '.join(_BACKENDS)}, and changes nothing; got {backend!r}")
        points, taken = points_of_style(style, axes, mask)
        parts = None if specified is None else [_of_shape(part, taken.shape)[taken] for part in specified]
        covariates = self._drift_at(points, parts)
        kriged = self.kriging.kriged(points, covariates=covariates, variance=True, of=self._of)
        return shaped_as_style(kriged, taken, style)


class _Drifts(_Classes):
    """The body of universal kriging."""

    _external: Any = None
    _known: tuple[str, ...] = ("regional_linear", "external_Z", "specified", "functional")

    def __init__(
        self,
        *samples: Any,
        drift_terms: Sequence[str] | str | None = None,
        specified_drift: Sequence[ArrayLike] | None = None,
        functional_drift: Sequence[Callable[..., Any]] | None = None,
        **settings: Any,
    ) -> None:
        self._terms = _terms(drift_terms)
        if unknown := set(self._terms) - set(self._known):
            raise InputError(
                f"`drift_terms` has some of {', '.join(self._known)}; got {', '.join(sorted(map(str, unknown)))}. "
                f"For point_log, {_ADVICE['point_drift']}"
            )
        self._functions = tuple(functional_drift or ()) if "functional" in self._terms else ()
        self._specified = [_line(part) for part in specified_drift or ()] if "specified" in self._terms else []
        for term, present in (("specified", self._specified), ("functional", self._functions)):
            if term in self._terms and not present:
                raise InputError(f"the drift term {term} needs `{term}_drift`, a list of at least one")
        super().__init__(*samples, **settings)

    def _mean(self) -> dict[str, Any]:
        names = [] if self._external is None else ["external_Z"]
        names += [f"specified_{index}" for index in range(len(self._specified))]
        names += [f"functional_{index}" for index in range(len(self._functions))]
        degree = int("regional_linear" in self._terms)
        return {"kind": "universal", "degree": degree, "covariates": tuple(names)} if names or degree else {}

    def _drift_at(self, points: Axes, specified: Sequence[FloatArray] | None) -> Any:
        parts = [] if self._external is None else [_interpolated(self._external, *points[:2])]
        values = self._specified if specified is None else specified
        if len(values) != len(self._specified):
            raise InputError(f"the model has {len(self._specified)} specified drifts; got {len(values)}")
        if self._specified and len(values[0]) != len(points[0]):
            raise InputError("pass `specified_drift_arrays`, the values of the specified drifts at the points")
        parts += list(values)
        moved, shape = self._turn.moved(points, self._centre), points[0].shape
        parts += [np.broadcast_to(np.asarray(function(*moved)), shape) for function in self._functions]
        return tuple(parts) or None


class OrdinaryKriging(_Classes):
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
        anisotropy_scaling: float = 1.0,
        anisotropy_angle: float = 0.0,
        coordinates_type: str = "euclidean",
        **settings: Any,
    ) -> None:
        if coordinates_type not in ("euclidean", "geographic"):
            raise InputError(f"`coordinates_type` is euclidean or geographic; got {coordinates_type!r}")
        if coordinates_type == "geographic" and anisotropy_scaling != 1.0:
            raise InputError("anisotropy has no meaning on the globe; leave `anisotropy_scaling` out")
        self._geographic = coordinates_type == "geographic"
        turn = _Turn((anisotropy_scaling,), (anisotropy_angle,))
        self._start((x, y, z), (variogram_model, variogram_parameters), turn, **settings)

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
        _require_all_samples(n_closest_points)
        return self._executed(style, (xpoints, ypoints), mask, backend, None)


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

    def __init__(self, *samples: Any, mean: float, **settings: Any) -> None:
        self.mean = float(mean)
        super().__init__(*samples, **settings)

    def _mean(self) -> dict[str, Any]:
        return {"kind": "simple", "mean": self.mean}


class UniversalKriging(_Drifts, OrdinaryKriging):
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
        *samples: Any,
        external_drift: ArrayLike | None = None,
        external_drift_x: ArrayLike | None = None,
        external_drift_y: ArrayLike | None = None,
        **settings: Any,
    ) -> None:
        if settings.get("coordinates_type", "euclidean") != "euclidean":
            raise InputError("universal kriging of PyKrige has no geographic coordinates; use dkgp.kriging.Kriging")
        if "external_Z" in _terms(settings.get("drift_terms")):
            self._external = _raster(external_drift, external_drift_x, external_drift_y)
        super().__init__(*samples, **settings)

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


class OrdinaryKriging3D(_Classes):
    """Ordinary kriging in three dimensions with PyKrige's arguments.

    Parameters
    ----------
    x, y, z, val : array_like
        Coordinates of the samples, and their values.
    anisotropy_scaling_y, anisotropy_scaling_z : float
        Factors of the second and third axis, after the rotation.
    anisotropy_angle_x, anisotropy_angle_y, anisotropy_angle_z : float
        Degrees counter-clockwise; places turn about x, then y, then z.
    variogram_model, variogram_parameters, nlags, weight, exact_values, other
        As for `OrdinaryKriging`.
    """

    _anisotropy = (
        tuple(f"anisotropy_scaling_{axis}" for axis in "yz"),
        tuple(f"anisotropy_angle_{axis}" for axis in "xyz"),
    )

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        z: ArrayLike,
        val: ArrayLike,
        variogram_model: Any = "exponential",
        variogram_parameters: Any = None,
        *,
        anisotropy_scaling_y: float = 1.0,
        anisotropy_scaling_z: float = 1.0,
        anisotropy_angle_x: float = 0.0,
        anisotropy_angle_y: float = 0.0,
        anisotropy_angle_z: float = 0.0,
        **settings: Any,
    ) -> None:
        angles = (anisotropy_angle_x, anisotropy_angle_y, anisotropy_angle_z)
        turn = _Turn((anisotropy_scaling_y, anisotropy_scaling_z), angles)
        self._start((x, y, z, val), (variogram_model, variogram_parameters), turn, **settings)

    def execute(
        self,
        style: str,
        xpoints: ArrayLike,
        ypoints: ArrayLike,
        zpoints: ArrayLike,
        mask: ArrayLike | None = None,
        backend: str = "vectorized",
        n_closest_points: int | None = None,
    ) -> Any:
        """Return means and variances, (z, y, x) for a grid; see `OrdinaryKriging.execute`."""
        _require_all_samples(n_closest_points)
        return self._executed(style, (xpoints, ypoints, zpoints), mask, backend, None)


class UniversalKriging3D(_Drifts, OrdinaryKriging3D):
    """Universal kriging in three dimensions with PyKrige's arguments.

    Parameters
    ----------
    x, y, z, val, variogram_model, variogram_parameters
        As for `OrdinaryKriging3D`.
    drift_terms : sequence of str, default ()
        Some of "regional_linear", "specified" and "functional".
    specified_drift, functional_drift
        As for `UniversalKriging`; functions are of x, y and z.
    settings
        Further arguments of `OrdinaryKriging3D`.
    """

    _known = ("regional_linear", "specified", "functional")

    def execute(  # type: ignore[override]  # PyKrige's order of arguments
        self,
        style: str,
        xpoints: ArrayLike,
        ypoints: ArrayLike,
        zpoints: ArrayLike,
        mask: ArrayLike | None = None,
        backend: str = "vectorized",
        specified_drift_arrays: Sequence[ArrayLike] | None = None,
    ) -> Any:
        """Return means and variances, (z, y, x) for a grid; see `UniversalKriging.execute`."""
        return self._executed(style, (xpoints, ypoints, zpoints), mask, backend, specified_drift_arrays or None)


def _terms(names: Sequence[str] | str | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _require_all_samples(n_closest_points: int | None) -> None:
    if n_closest_points is not None:
        raise InputError(f"got n_closest_points={n_closest_points}: dkgp takes all samples; leave it out")


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


def _variogram(model: Any, parameters: Any, turn: _Turn, exact: bool) -> Variogram:
    """Return the variogram; its nugget is micro-scale variation if values are exact, else a measurement error."""
    if isinstance(model, str):
        return Variogram.from_pykrige(model, parameters, exact_values=exact, **turn.settings)
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
