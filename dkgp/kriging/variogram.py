"""Variograms: covariance models in map units, with the conventions of other geostatistical programs.

A field z(x) = h(x)'beta + f(x) + e(x) has the covariance psill rho(r / l) of f and the nugget t^2 of e. Its
semivariogram is gamma(r) = t^2 + psill (1 - rho(r / l)) for r > 0, and gamma(0) = 0. r is a distance after the
geometric anisotropy has been removed:

    x' = diag(1, 1 / ratio) R x,    R the rotation by -angle,

so that l is the length along the main axis, and ratio the minor axis over it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any, Self, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern12, Matern32, Matern52, RationalQuadratic, SquaredExponential, Stable
from dkgp.kernels.compact import Cubic, Spherical, Wendland
from dkgp.kernels.composite import Sum
from dkgp.kernels.stationary import GREATEST
from dkgp.kriging.choices import FIT_WEIGHTS, RANGE_KINDS, RangeKind
from dkgp.kriging.empirical import EmpiricalVariogram

NUGGET_KINDS = ("error", "microscale")
Shape: TypeAlias = float | None


@dataclass(frozen=True)
class Form:
    """A correlation rho(u) of the distance u = r / l, and the meaning of its length elsewhere.

    Attributes
    ----------
    correlation : callable
        rho of distances and the shape.
    kernel : callable
        dkgp's kernel of l for so many dimensions: `kernel(length, dimensions, variance, shape)`.
    ranges : mapping
        The factor of l in each other convention: its range is the factor times l.
    dimensions : int, optional
        Most dimensions in which it is a covariance.
    shape : str, optional
        The name of a further parameter.
    """

    correlation: Callable[[FloatArray, Shape], FloatArray]
    kernel: Callable[[float, int, float, Shape], Kernel]
    ranges: Mapping[str, Callable[[Shape], float]]
    dimensions: int | None = None
    shape: str | None = None


def _simple(kernel: Any) -> Callable[[float, int, float, Shape], Kernel]:
    """Return the maker of a kernel whose length scale is l."""

    def make(length: float, dimensions: int, variance: float, shape: Shape) -> Kernel:
        return kernel(gamma=(0.5 / length**2,), variance=variance, n_features=dimensions)  # type: ignore[no-any-return]

    return make


def _gaussian(length: float, dimensions: int, variance: float, shape: Shape) -> Kernel:
    return SquaredExponential(gamma=(1.0 / length**2,), variance=variance, n_features=dimensions)


def _rational(length: float, dimensions: int, variance: float, shape: Shape) -> Kernel:
    assert shape is not None
    return RationalQuadratic(gamma=(0.5 / length**2,), variance=variance, n_features=dimensions, alpha=shape)


def _stable(length: float, dimensions: int, variance: float, shape: Shape) -> Kernel:
    """Return the kernel; the simpler one that it is for an exponent of 1 or 2."""
    if shape in (1.0, 2.0):
        make = _simple(Matern12) if shape == 1.0 else _gaussian
        return make(length, dimensions, variance, None)
    return Stable(gamma=(0.5 / length**2,), variance=variance, n_features=dimensions, alpha=_given(shape))


def _polynomial(*coefficients: float) -> Callable[[FloatArray, Shape], FloatArray]:
    """Return rho, a polynomial of u with the coefficients of u^0, u^1, ..., zero from u = 1 on."""
    series = np.polynomial.Polynomial(coefficients)
    return lambda u, shape: np.where(u < 1.0, series(np.minimum(u, 1.0)), 0.0)


def _constant(**factors: float) -> dict[str, Callable[[Shape], float]]:
    return {name: (lambda shape, factor=factor: factor) for name, factor in factors.items()}  # type: ignore[misc]


_ROOT_PI = math.sqrt(math.pi)
FORMS: dict[str, Form] = {
    "exponential": Form(
        lambda u, shape: np.exp(-u),
        _simple(Matern12),
        _constant(practical=math.log(20.0), integral=1.0, pykrige=3.0, gstools=1.0, gstat=1.0),
    ),
    "gaussian": Form(
        lambda u, shape: np.exp(-(u * u)),
        _gaussian,
        _constant(
            practical=math.sqrt(math.log(20.0)),
            integral=_ROOT_PI / 2.0,
            pykrige=7.0 / 4.0,
            gstools=_ROOT_PI / 2.0,
            gstat=1.0,
        ),
    ),
    "matern32": Form(
        lambda u, shape: (1.0 + math.sqrt(3.0) * u) * np.exp(-math.sqrt(3.0) * u),
        _simple(Matern32),
        _constant(
            practical=2.7388714566919146,
            integral=2.0 / math.sqrt(3.0),
            gstools=math.sqrt(0.5),
            gstat=1.0 / math.sqrt(3.0),
        ),
    ),
    "matern52": Form(
        lambda u, shape: (1.0 + math.sqrt(5.0) * u + 5.0 / 3.0 * u * u) * np.exp(-math.sqrt(5.0) * u),
        _simple(Matern52),
        _constant(
            practical=2.6469004546668544,
            integral=8.0 / (3.0 * math.sqrt(5.0)),
            gstools=math.sqrt(0.5),
            gstat=1.0 / math.sqrt(5.0),
        ),
    ),
    "rational": Form(
        lambda u, shape: (1.0 + u * u / (2.0 * float(shape or 0.0))) ** -float(shape or 0.0),
        _rational,
        {
            "practical": lambda shape: math.sqrt(2.0 * _given(shape) * (20.0 ** (1.0 / _given(shape)) - 1.0)),
            "integral": lambda shape: (
                math.sqrt(2.0 * _given(shape)) * _ROOT_PI / 2.0 * _gamma_ratio(_given(shape) - 0.5, _given(shape))
            ),
            "gstools": lambda shape: math.sqrt(2.0),
        },
        shape="alpha",
    ),
    "stable": Form(
        lambda u, shape: np.exp(-(u ** _given(shape))),
        _stable,
        {
            "practical": lambda shape: math.log(20.0) ** (1.0 / _given(shape)),
            "integral": lambda shape: math.gamma(1.0 + 1.0 / _given(shape)),
            "gstools": lambda shape: 1.0,
            "gstat": lambda shape: 1.0,
        },
        shape="alpha",
    ),
    "spherical": Form(
        _polynomial(1.0, -1.5, 0.0, 0.5),
        _simple(Spherical),
        _constant(practical=1.0, integral=3.0 / 8.0, pykrige=1.0, gstools=1.0, gstat=1.0),
        dimensions=3,
    ),
    "cubic": Form(
        _polynomial(1.0, 0.0, -7.0, 8.75, 0.0, -3.5, 0.0, 0.75),
        _simple(Cubic),
        _constant(practical=1.0, integral=35.0 / 96.0, gstools=1.0),
        dimensions=3,
    ),
    "wendland": Form(
        _polynomial(1.0, 0.0, -10.0, 20.0, -15.0, 4.0),
        _simple(Wendland),
        _constant(practical=1.0, integral=1.0 / 3.0),
        dimensions=3,
    ),
}
"""Models by name. Practical: the distance where rho is 0.05, or where it becomes zero."""

_ALIASES = {"matern12": "exponential", "rbf": "gaussian", "rational_quadratic": "rational"}
_ALIASES |= {"powered-exponential": "stable", "powered_exponential": "stable"}
_MATERN = {0.5: "exponential", 1.5: "matern32", 2.5: "matern52"}
_WITHOUT_SILL = ("power", "linear")
_HOLES = ("hole-effect", "hole_effect", "hole")


def _given(shape: Shape) -> float:
    assert shape is not None
    return shape


def _gamma_ratio(above: float, below: float) -> float:
    if above <= 0.0:
        raise InputError(f"a rational variogram with alpha={below:g} has no integral scale; alpha must exceed 0.5")
    return float(math.exp(scipy.special.gammaln(above) - scipy.special.gammaln(below)))


def form_name(model: str, nu: float | None = None) -> str:
    """Return the name in `FORMS` of a model; `InputError` for one that is no covariance, or unknown."""
    if model == "matern":
        if nu not in _MATERN:
            raise InputError(
                f"a matern variogram needs nu, one of {', '.join(f'{value:g}' for value in _MATERN)}; got {nu!r}"
            )
        return _MATERN[nu]
    if nu is not None:
        raise InputError(f"`nu` belongs to the model matern; got nu={nu!r} with {model!r}")
    name = _ALIASES.get(model, model)
    if name in _WITHOUT_SILL:
        raise InputError(
            f"a {name} variogram has no sill, so no covariance; take matern32 with a range of several domains"
        )
    if name in _HOLES:
        raise InputError(
            "a hole-effect variogram is a covariance in one dimension only; take exponential, matern32 or gaussian"
        )
    if name not in FORMS:
        raise InputError(f"unknown variogram model {model!r}; available: matern, {', '.join(FORMS)}")
    return name


@dataclass(frozen=True)
class Variogram:
    """A variogram model: partial sill, length, nugget and geometric anisotropy, in map units.

    Parameters
    ----------
    model : str, default "exponential"
        "exponential" ("matern12"), "gaussian", "matern32", "matern52", "matern" with `nu`, "rational" with `alpha`,
        "stable" (powered exponential) with `alpha`, "spherical", "cubic" or "wendland".
    range : float
        The length l along the main axis, in the convention of `range_is`. After construction it is dkgp's l.
    psill : float
        Partial sill: the variance of the field without the nugget. Or `sill`, which includes the nugget.
    nugget : float or (float, float), default 0
        Variance at distance zero: t^2, or its two parts, measurement error and micro-scale variation.
    nugget_is : {"error", "microscale"}, default "error"
        The meaning of a single `nugget`. The measurement error belongs to an observation and is filtered out of
        predictions. The micro-scale variation belongs to the place.
    nu, alpha : float, optional
        Smoothness of "matern" (0.5, 1.5 or 2.5); exponent of "rational", and of "stable", exp(-u^alpha), at most 2.
    ratio : float or (float, float), default 1
        Length along the minor axis over `range`, at most 1; in three dimensions of the second and the third axis.
    angle, azimuth : float, optional
        Direction of the main axis in degrees: from east counter-clockwise, or from north clockwise. Not both.
    angles : (float, float, float), optional
        Yaw, pitch and roll in degrees, in three dimensions.
    range_is : {"scale", "practical", "integral", "pykrige", "gstools", "gstat"}, default "scale"
        The convention of `range`: dkgp's l, the distance where the correlation is 0.05 (or where it becomes zero), the
        integral of the correlation, or the parameter of that program.
    also : tuple of Variogram, default ()
        Further structures of a nested variogram, without nugget and with the same anisotropy; `a + b` makes one.

    Raises
    ------
    InputError
        A model without a covariance, values out of range, or both of two parameters that exclude each other.

    Examples
    --------
    >>> variogram = Variogram("spherical", sill=2.25, nugget=0.25, range=4.0)
    >>> variogram.psill, [round(float(value), 6) for value in variogram([0.0, 2.0, 8.0])]
    (2.0, [0.0, 1.625, 2.25])
    """

    model: str = "exponential"
    sill: InitVar[float | None] = None
    psill: float = math.nan
    range: float = math.nan
    nugget: Any = 0.0
    nugget_is: InitVar[str] = "error"
    nu: InitVar[float | None] = None
    alpha: float | None = None
    ratio: Any = 1.0
    angle: float | None = None
    azimuth: InitVar[float | None] = None
    angles: tuple[float, float, float] | None = None
    range_is: InitVar[str] = "scale"
    also: tuple[Variogram, ...] = ()

    def __post_init__(
        self, sill: float | None, nugget_is: str, nu: float | None, azimuth: float | None, range_is: str
    ) -> None:
        name = form_name(self.model, nu)
        form = FORMS[name]
        if (form.shape is None) != (self.alpha is None):
            raise InputError(
                f"`alpha` is the exponent of a rational or stable variogram; got alpha={self.alpha!r} with "
                f"{self.model!r}"
            )
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0.0):
            raise InputError(f"`alpha` must be positive and finite; got {self.alpha!r}")
        if name == "stable" and _given(self.alpha) > GREATEST:
            raise InputError(f"a stable variogram is a covariance for `alpha` up to {GREATEST:g}; got {self.alpha!r}")
        parts = _nugget_parts(self.nugget, nugget_is)
        psill = _partial_sill(sill, self.psill, sum(parts))
        if not (math.isfinite(self.range) and self.range > 0.0):
            raise InputError(f"`range` must be positive and finite; got {self.range!r}")
        factor = _range_factor(name, range_is, self.alpha)
        canonical = {
            "model": name,
            "psill": psill,
            "range": float(self.range) / factor,
            "nugget": parts,
            "ratio": _checked_ratio(self.ratio),
            "angle": _checked_angle(self.angle, azimuth, self.angles),
        }
        for field, value in canonical.items():
            object.__setattr__(self, field, value)
        for other in self.also:
            if sum(other.nugget) or other.also or not other._turns_as(self):
                raise InputError(
                    "further structures of a nested variogram have no nugget and the anisotropy of the first; got "
                    f"{other!r}. Add variograms by +, which adds the nuggets"
                )

    # ---------------------------------------------------------------------------------------------------------- values

    @property
    def error_variance(self) -> float:
        """The measurement error's part of the nugget."""
        return float(self.nugget[0])

    @property
    def microscale_variance(self) -> float:
        """The micro-scale part of the nugget."""
        return float(self.nugget[1])

    @property
    def field_variance(self) -> float:
        """The partial sill of all structures: the variance of the field without the nugget."""
        return self.psill + sum(other.psill for other in self.also)

    @property
    def total_sill(self) -> float:
        """Partial sill of all structures and nugget together."""
        return self.field_variance + self.error_variance + self.microscale_variance

    def covariance(self, lag: ArrayLike) -> FloatArray:
        """Return the covariance of the field without the nugget at distances along the main axis."""
        distance = np.abs(np.asarray(lag, dtype=np.float64))
        parts = [
            one.psill * FORMS[one.model].correlation(distance / one.range, one.alpha) for one in (self, *self.also)
        ]
        return np.asarray(np.sum(parts, axis=0))

    def __call__(self, lag: ArrayLike) -> FloatArray:
        """Return the semivariances at distances along the main axis: zero at zero, with the nugget elsewhere."""
        lag = np.asarray(lag, dtype=np.float64)
        jump = np.where(lag == 0.0, 0.0, self.error_variance + self.microscale_variance)
        return np.asarray(self.field_variance - self.covariance(lag) + jump)

    def __add__(self, other: Variogram) -> Variogram:
        """Return the nested variogram of both structures; the nuggets add up."""
        if not isinstance(other, Variogram):
            return NotImplemented
        nugget = (self.error_variance + other.error_variance, self.microscale_variance + other.microscale_variance)
        bare = replace(other, nugget=0.0, also=())
        return replace(self, nugget=nugget, also=(*self.also, bare, *other.also))

    def _turns_as(self, other: Variogram) -> bool:
        """True if both have the same anisotropy."""
        mine, theirs = (self.ratio, self.angle or 0.0, self.angles), (other.ratio, other.angle or 0.0, other.angles)
        return mine == theirs or self.ratio == other.ratio == (1.0, 1.0)

    def range_as(self, kind: RangeKind) -> float:
        """Return the length in another convention; `InputError` where that program has no such model."""
        return self.range * _range_factor(self.model, kind, self.alpha)

    # ------------------------------------------------------------------------------------------------------ the engine

    def to_kernel(self, dimensions: int = 2, *, unit: float = 1.0, variance: float | None = None) -> Kernel:
        """Return the kernel of places without anisotropy, in units of `unit`.

        Parameters
        ----------
        dimensions : int
            Coordinates of a place, time included.
        unit : float
            The length that is 1 in the kernel's inputs.
        variance : float, optional
            Amplitude; the partial sill by default.

        Raises
        ------
        InputError
            A model that is no covariance in so many dimensions.
        """
        share = 1.0 if variance is None else variance / self.field_variance
        kernels = []
        for one in (self, *self.also):
            form = FORMS[one.model]
            if form.dimensions is not None and dimensions > form.dimensions:
                raise InputError(
                    f"a {one.model} variogram is no covariance in {dimensions} dimensions (space and time together); "
                    "take exponential or matern"
                )
            amplitude = share * one.psill if variance is None or self.also else variance
            kernels.append(form.kernel(one.range / unit, dimensions, amplitude, one.alpha))
        return kernels[0] if len(kernels) == 1 else Sum(tuple(kernels))

    def isotropic(self, places: FloatArray, origin: FloatArray | None = None) -> FloatArray:
        """Return places (n, k) turned and stretched so that the variogram depends on distances alone: (n, k).

        Columns after the second or third (time) stay as they are. The arithmetic is the same for every row, so equal
        places stay equal. An `origin` (k,) is taken off before places are turned: roundings are those of distances from
        it, not of northings of millions.
        """
        matrix = self.anisotropy(places.shape[1])
        if np.array_equal(matrix, np.eye(len(matrix))):
            return places
        places = places if origin is None else places - origin
        result = np.zeros_like(places)
        for row, weights in enumerate(matrix):
            for column in np.flatnonzero(weights):
                result[:, row] += weights[column] * places[:, column]
        return result

    def anisotropy(self, dimensions: int) -> FloatArray:
        """Return the matrix diag(1, 1 / ratio) R of `isotropic`: (k, k)."""
        result = np.eye(dimensions)
        if self.ratio == (1.0, 1.0):
            return result
        if dimensions < 2 or (dimensions == 2 and self.angles is not None):
            raise InputError(
                f"anisotropy needs at least 2 coordinates, and `angles` 3; got {dimensions}. Leave ratio and angles out"
            )
        if self.angles is None:
            turn = math.radians(self.angle or 0.0)
            result[:2, :2] = [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]
            result[1] /= self.ratio[0]
            if dimensions > 2 and self.ratio[1] != 1.0:
                result[2] /= self.ratio[1]
            return result
        rotation = np.eye(3)
        for sign, plane, turn in zip((-1.0, 1.0, -1.0), ((0, 1), (0, 2), (1, 2)), self.angles, strict=True):
            rotation = rotation @ _plane_rotation(plane, sign * math.radians(turn))
        result[:3, :3] = rotation / np.array([1.0, *self.ratio])[:, None]
        return result

    # ------------------------------------------------------------------------------------------------------ JSON

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; `from_dict` is the inverse."""
        document: dict[str, Any] = {"model": self.model, "psill": self.psill, "range": self.range}
        document["nugget"] = list(self.nugget)
        optional = {
            "alpha": self.alpha,
            "ratio": None if self.ratio == (1.0, 1.0) else list(self.ratio),
            "angle": self.angle,
            "angles": None if self.angles is None else list(self.angles),
            "also": [other.to_dict() for other in self.also] or None,
        }
        return document | {name: value for name, value in optional.items() if value is not None}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the variogram that `to_dict` wrote; `InputError` for another document."""
        known = {"model", "psill", "sill", "range", "nugget", "nugget_is", "nu", "alpha", "ratio", "angle", "azimuth"}
        known |= {"angles", "range_is", "also"}
        if unknown := set(document) - known:
            raise InputError(f"a variogram has no {', '.join(sorted(unknown))}; expected {', '.join(sorted(known))}")
        values: dict[str, Any] = {}
        for name, value in document.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        values["also"] = tuple(cls.from_dict(other) for other in document.get("also", ()))
        try:
            return cls(**values)
        except TypeError as error:
            raise InputError(f"the values of a variogram are numbers and names; got {dict(document)}") from error

    # ------------------------------------------------------------------------------------------------- other programs

    @classmethod
    def from_gstools(cls, model: Any) -> Self:
        """Return the variogram of a covariance model of GSTools, read by its attributes.

        Its nugget is a measurement error here, as for GSTools' kriging by default. A model of longitude and latitude
        needs `geo_scale=gstools.KM_SCALE`, so that its length is in km.
        """
        name = _GSTOOLS.get(type(model).__name__)
        if name is None:
            raise InputError(f"dkgp has no {type(model).__name__} of GSTools; it reads {', '.join(_GSTOOLS)}")
        if getattr(model, "temporal", False):
            raise InputError("a space-time model of GSTools is not read; pass a Variogram and `time_scale`")
        length = float(model.len_rescaled)
        values: dict[str, Any] = {"psill": float(model.var), "nugget": float(model.nugget)}
        if name == "matern":
            return cls(name, range=length * math.sqrt(2.0), nu=float(model.nu), **values, **_gstools_axes(model))
        if name == "rational":
            return cls(name, range=length / math.sqrt(2.0), alpha=float(model.alpha), **values, **_gstools_axes(model))
        alpha = float(model.alpha) if name == "stable" else None
        return cls(name, range=length, alpha=alpha, **values, **_gstools_axes(model))

    @classmethod
    def from_pykrige(
        cls,
        model: Any,
        parameters: Any = None,
        *,
        anisotropy_scaling: float | tuple[float, float] = 1.0,
        anisotropy_angle: float | tuple[float, float, float] = 0.0,
        exact_values: bool = True,
    ) -> Self:
        """Return the variogram of PyKrige's name and parameters, or of an object of PyKrige's classes.

        Parameters
        ----------
        model : str, or a kriging object of PyKrige
            "exponential", "gaussian" or "spherical"; the others have no covariance. An object has all other arguments.
        parameters : list or dict
            [full sill, range, nugget], or a dict with "sill" or "psill", "range" and "nugget".
        anisotropy_scaling, anisotropy_angle
            As PyKrige's: the factor of the minor axis, and degrees counter-clockwise. In three dimensions: factors of y
            and z, and degrees about x, y and z.
        exact_values : bool, default True
            PyKrige's default reproduces the data: its nugget is micro-scale variation. False: a measurement error.
        """
        if hasattr(model, "variogram_model_parameters"):
            return cls._from_pykrige_object(model)
        form_name(model)
        if parameters is None:
            raise InputError(
                "give `parameters`, such as [sill, range, nugget]; or an object of PyKrige's classes alone"
            )
        if isinstance(parameters, Mapping):
            values = dict(parameters)
        elif len(parameters) == 3:
            values = dict(zip(("sill", "range", "nugget"), parameters, strict=True))
        else:
            raise InputError(f"the parameters of PyKrige are [sill, range, nugget]; got {parameters!r}")
        if not np.min(anisotropy_scaling) > 0.0:
            raise InputError(f"`anisotropy_scaling` must be positive; got {anisotropy_scaling!r}")
        if unknown := set(values) - {"sill", "psill", "range", "nugget"}:
            raise InputError(f"PyKrige's parameters are sill or psill, range and nugget; got {', '.join(unknown)}")
        kind = "microscale" if exact_values else "error"
        if isinstance(anisotropy_scaling, tuple) or isinstance(anisotropy_angle, tuple):
            return cls(
                model, nugget_is=kind, range_is="pykrige", **_turned_3d(values, anisotropy_scaling, anisotropy_angle)
            )
        ratio, angle = 1.0 / anisotropy_scaling, anisotropy_angle
        if ratio > 1.0:
            values["range"], ratio, angle = values["range"] * ratio, anisotropy_scaling, angle + 90.0
        turned: dict[str, Any] = {} if ratio == 1.0 else {"ratio": ratio, "angle": angle}
        return cls(model, **values, nugget_is=kind, range_is="pykrige", **turned)

    @classmethod
    def _from_pykrige_object(cls, kriging: Any) -> Self:
        """Return the variogram that an object of PyKrige's classes was fitted with."""
        if getattr(kriging, "coordinates_type", "euclidean") != "euclidean":
            raise InputError(
                "the range of this object is in degrees of arc; pass its data to `dkgp.kriging.OrdinaryKriging` with "
                "coordinates_type='geographic' instead"
            )
        parameters = dict(zip(("psill", "range", "nugget"), kriging.variogram_model_parameters, strict=True))
        names = [("scaling_y", "scaling_z"), ("angle_x", "angle_y", "angle_z")]
        if not hasattr(kriging, "anisotropy_scaling_y"):
            names = [("scaling",), ("angle",)]
        scaling, angle = (tuple(getattr(kriging, f"anisotropy_{name}") for name in group) for group in names)
        return cls.from_pykrige(
            kriging.variogram_model,
            parameters,
            anisotropy_scaling=scaling if len(scaling) > 1 else scaling[0],
            anisotropy_angle=angle if len(angle) > 1 else angle[0],
            exact_values=kriging.exact_values,
        )

    @classmethod
    def from_gstat(
        cls,
        model: str,
        psill: float,
        range: float,
        nugget: float = 0.0,
        *,
        kappa: float = 0.5,
        anis: tuple[float, float] | None = None,
    ) -> Self:
        """Return the variogram of gstat's `vgm(psill, model, range, nugget, kappa=, anis=)`.

        `anis` is (azimuth, ratio). gstat interpolates its nugget exactly at data, as micro-scale variation; its `Err`
        is a measurement error: pass `nugget=` to the constructor for that.
        """
        if model not in _GSTAT:
            raise InputError(f"dkgp has no model {model!r} of gstat; it reads {', '.join(_GSTAT)}")
        turned = {} if anis is None else {"azimuth": float(anis[0]), "ratio": float(anis[1])}
        values: dict[str, Any] = {"psill": psill, "nugget": nugget, "nugget_is": "microscale", **turned}
        if model == "Ste":
            return cls("matern", nu=kappa, range=range * math.sqrt(0.5), **values)
        if model == "Mat":
            return cls("matern", nu=kappa, range=range * math.sqrt(2.0 * kappa), **values)
        if model == "Exc":
            return cls("stable", alpha=kappa, range=range, range_is="gstat", **values)
        return cls(_GSTAT[model], range=range, range_is="gstat", **values)

    # -------------------------------------------------------------------------------------------------------- fitting

    def fit(
        self,
        empirical: EmpiricalVariogram,
        *,
        weights: str = "cressie",
        free: Sequence[str] = ("psill", "range", "nugget"),
    ) -> Self:
        """Return this model with the values that fit an empirical variogram best.

        The sum of w_j (gamma_j - gamma(h_j))^2 is minimised. Nested structures keep their ratios of sills and ranges.

        Parameters
        ----------
        empirical : EmpiricalVariogram
        weights : {"cressie", "pairs", "pairs/h2", "equal"}, default "cressie"
            N_j / gamma(h_j)^2, iterated; N_j; N_j / h_j^2; or 1. The fit methods 2, 1, 7 and 6 of gstat.
        free : sequence of str
            Which of "psill", "range", "nugget" and, for a rational or stable model, "alpha" are fitted. The kinds of
            the nugget keep their shares; a nugget of zero becomes a measurement error.

        Raises
        ------
        InputError
            Fewer bins than values to be fitted, or unknown names.
        """
        known = empirical.known & np.isfinite(empirical.gamma) & (empirical.lag > 0.0)
        lag, gamma = empirical.lag[known], empirical.gamma[known]
        count = empirical.count[known].astype(np.float64)
        if weights not in FIT_WEIGHTS:
            raise InputError(f"`weights` is one of {', '.join(FIT_WEIGHTS)}; got {weights!r}")
        if not set(free) <= {"psill", "range", "nugget", "alpha"} or not free:
            raise InputError(f"`free` has some of psill, range, nugget and alpha; got {tuple(free)}")
        if "alpha" in free and (self.alpha is None or self.also):
            raise InputError(
                f"`alpha` is fitted for a rational or stable variogram of one structure; got {self.model}"
                + (" and others" if self.also else "")
            )
        if len(lag) < max(len(free), 2):
            raise InputError(f"{len(free)} values need at least as many bins with pairs; got {len(lag)}")
        if empirical.direction is not None and self.ratio != (1.0, 1.0):
            turn = math.radians(empirical.direction)
            step = self.anisotropy(2) @ np.array([math.cos(turn), math.sin(turn)])
            lag = lag * float(np.linalg.norm(step))
        if not gamma.max() > 0.0:
            raise InputError(
                "the semivariances are zero in all bins: the values do not vary. A variogram needs values that vary"
            )
        fit = _Fit(self, lag, gamma, tuple(free))
        if weights != "cressie":
            fixed = {"pairs": count, "pairs/h2": count / lag**2, "equal": np.ones_like(lag)}[weights]
            fit, model = fit.best(fixed)
            return replace(self, alpha=fit.start.alpha)._with(*model)
        fit, model = fit.best(count)
        for _ in range(_MOST_REWEIGHTED):
            before, values = (fit.start.alpha or 0.0, *model), fit.gamma_at(*model)
            fit, model = fit.best(count / np.maximum(values, 1e-9 * values.max()) ** 2)
            if np.allclose(before, (fit.start.alpha or 0.0, *model), rtol=1e-6):
                break
        return replace(self, alpha=fit.start.alpha)._with(*model)

    @classmethod
    def fitted(cls, model: str, empirical: EmpiricalVariogram, *, weights: str = "cressie") -> Self:
        """Return a model by name with all values, an exponent too, that fit an empirical variogram; see `fit`."""
        start = cls.start(model, empirical)
        shape = FORMS[start.model].shape
        free = ("psill", "range", "nugget", *(() if shape is None else (shape,)))
        return start.fit(empirical, weights=weights, free=free)

    @classmethod
    def start(cls, model: str, empirical: EmpiricalVariogram) -> Self:
        """Return a model by name from which fits start."""
        name, extent = form_name(model), float(empirical.edges[-1])
        alpha = None if FORMS[name].shape is None else 1.0
        return cls(name, psill=empirical.variance, range=extent / 3.0, alpha=alpha)

    def without_noise(self, variance: float) -> Self:
        """Return the variogram with the mean variance of known measurement errors taken off its nugget's error.

        The semivariances of samples contain it, and kriging adds the errors of the samples to the nugget.
        """
        error, microscale = self.nugget
        return replace(self, nugget=(max(error - variance, 0.0), microscale))

    def misfit(self, empirical: EmpiricalVariogram) -> float:
        """Return the root mean square of the relative differences from an empirical variogram, by pairs."""
        known = empirical.known & np.isfinite(empirical.gamma) & (empirical.lag > 0.0)
        model, count = self(empirical.lag[known]), empirical.count[known]
        return float(np.sqrt(np.average((empirical.gamma[known] / model - 1.0) ** 2, weights=count)))

    def _with(self, psill: float, stretch: float, nugget: float) -> Self:
        """Return this model with another partial sill, lengths times `stretch`, and another nugget."""
        share = psill / self.field_variance
        before = self.error_variance + self.microscale_variance
        parts = (nugget, 0.0) if before == 0.0 else tuple(part * nugget / before for part in self.nugget)
        also = tuple(replace(one, psill=share * one.psill, range=stretch * one.range) for one in self.also)
        return replace(self, psill=share * self.psill, range=stretch * self.range, nugget=parts, also=also)


_MOST_REWEIGHTED = 50
# Lengths over the largest lag among which the search starts.
_STRETCHES = np.geomspace(0.02, 10.0, 60)
# Exponents among which their search starts.
_EXPONENTS = {"stable": (0.25, 0.5, 1.0, 1.5, 2.0), "rational": (0.05, 0.2, 1.0, 5.0, 50.0)}
# A field's variance is positive: its least share of the largest semivariance.
_LEAST_PSILL = 1e-6


@dataclass(frozen=True, eq=False)
class _Fit:
    """Weighted least squares: for each length the best sills are a non-negative linear problem."""

    start: Variogram
    lag: FloatArray
    gamma: FloatArray
    free: tuple[str, ...]

    def best(self, weights: FloatArray) -> tuple[_Fit, tuple[float, float, float]]:
        """Return the fit of the best exponent, and its partial sill, stretch of the lengths, and nugget."""
        root = np.sqrt(weights / weights.max())
        if "alpha" not in self.free:
            return self, self._best_stretch(root)[1]

        def fit(log: float) -> _Fit:
            return replace(self, start=replace(self.start, alpha=min(math.exp(log), exponents[-1])))

        exponents = _EXPONENTS[self.start.model]
        logs = np.log(exponents)
        at = int(np.argmin([fit(log)._best_stretch(root)[0] for log in logs]))
        bounds = logs[max(at - 1, 0)], logs[min(at + 1, len(logs) - 1)]
        result = scipy.optimize.minimize_scalar(
            lambda log: fit(log)._best_stretch(root)[0], bounds=bounds, method="bounded", options={"xatol": 1e-7}
        )
        chosen = min((fit(log) for log in (result.x, logs[at])), key=lambda one: one._best_stretch(root)[0])
        return chosen, chosen._best_stretch(root)[1]

    def _best_stretch(self, root: FloatArray) -> tuple[float, tuple[float, float, float]]:
        """Return the misfit with the best values, and these."""
        if "range" not in self.free:
            return self._sills(1.0, root)
        stretches = _STRETCHES * self.lag.max() / self.start.range
        misfits = [self._sills(stretch, root)[0] for stretch in stretches]
        at = int(np.argmin(misfits))
        low, high = stretches[max(at - 1, 0)], stretches[min(at + 1, len(stretches) - 1)]
        found = scipy.optimize.minimize_scalar(
            lambda log: self._sills(math.exp(log), root)[0],
            bounds=(math.log(low), math.log(high)),
            method="bounded",
            options={"xatol": 1e-10},
        )
        return self._sills(math.exp(found.x), root)

    def gamma_at(self, psill: float, stretch: float, nugget: float) -> FloatArray:
        """Return the model's semivariances."""
        return psill * self._rise(stretch) + nugget

    def _rise(self, stretch: float) -> FloatArray:
        return np.asarray(1.0 - self.start.covariance(self.lag / stretch) / self.start.field_variance)

    def _sills(self, stretch: float, root: FloatArray) -> tuple[float, tuple[float, float, float]]:
        """Return the misfit with the best sills at a length, and the values."""
        fixed = {"psill": self.start.field_variance, "nugget": sum(self.start.nugget)}
        columns = {"psill": self._rise(stretch), "nugget": np.ones_like(self.lag)}
        rest = self.gamma - sum(fixed[name] * columns[name] for name in fixed if name not in self.free)
        names = [name for name in fixed if name in self.free]
        values = dict(fixed)
        if names:
            matrix = np.column_stack([columns[name] for name in names]) * root[:, None]
            values |= dict(zip(names, scipy.optimize.nnls(matrix, rest * root)[0], strict=True))
        values["psill"] = max(values["psill"], _LEAST_PSILL * float(self.gamma.max()))
        model = (float(values["psill"]), stretch, float(values["nugget"]))
        return float(np.sum((root * (self.gamma_at(*model) - self.gamma)) ** 2)), model


_GSTOOLS = {
    "Exponential": "exponential",
    "Gaussian": "gaussian",
    "Matern": "matern",
    "Rational": "rational",
    "Stable": "stable",
    "Spherical": "spherical",
    "Cubic": "cubic",
}
_GSTAT = {"Exp": "exponential", "Exc": "stable", "Gau": "gaussian", "Sph": "spherical"}
_GSTAT |= {"Mat": "matern", "Ste": "matern"}


def _gstools_axes(model: Any) -> dict[str, Any]:
    """Return ratio and angles of a model of GSTools, the longest axis first."""
    ratios = [float(value) for value in np.atleast_1d(model.anis)]
    degrees = [math.degrees(value) for value in np.atleast_1d(model.angles)]
    if getattr(model, "latlon", False) or all(value == 1.0 for value in ratios):
        return {}
    if max(ratios) > 1.0:
        raise InputError(
            f"the main axis of an anisotropic model is the longest one; got anis={ratios}. Turn its angles, and give "
            "the longest length as len_scale"
        )
    if len(ratios) == 1:
        return {"ratio": ratios[0], "angle": degrees[0]}
    return {"ratio": (ratios[0], ratios[1]), "angles": (degrees[0], degrees[1], degrees[2])}


def pykrige_turn(angles: Sequence[float]) -> FloatArray:
    """Return PyKrige's rotation of places by one angle in the plane, or by angles about x, y and z, in degrees."""
    if len(angles) == 1:
        return _plane_rotation((0, 1), -math.radians(angles[0]))[:2, :2]
    x, y, z = (math.radians(angle) for angle in angles)
    return np.asarray(_plane_rotation((0, 1), -z) @ _plane_rotation((0, 2), y) @ _plane_rotation((1, 2), -x))


def _turned_3d(values: dict[str, Any], scaling: Any, angles: Any) -> dict[str, Any]:
    """Return the values of a variogram with PyKrige's anisotropy in three dimensions, the longest axis first."""
    factors = np.array([1.0, *scaling])
    order = np.argsort(factors, kind="stable")
    rotation, factors = pykrige_turn(angles)[order], factors[order]
    if np.linalg.det(rotation) < 0.0:
        rotation[2] *= -1.0
    # Yaw, pitch and roll of the rotation; with a pitch of 90 degrees the roll is taken as zero.
    level = math.hypot(rotation[0, 0], rotation[1, 0])
    pitch = math.atan2(rotation[2, 0], level)
    if level > 1e-12:
        yaw, roll = math.atan2(-rotation[1, 0], rotation[0, 0]), math.atan2(-rotation[2, 1], rotation[2, 2])
    else:
        yaw, roll = math.atan2(rotation[0, 1], rotation[1, 1]), 0.0
    if not np.ptp(factors):
        return {**values, "range": values["range"] / float(factors[0])}
    ratio = tuple(float(factors[0] / factor) for factor in factors[1:])
    angles = tuple(math.degrees(angle) for angle in (yaw, pitch, roll))
    return {**values, "range": values["range"] / float(factors[0]), "ratio": ratio, "angles": angles}


def _plane_rotation(plane: tuple[int, int], angle: float) -> FloatArray:
    """Return the rotation of one coordinate plane by an angle: (3, 3)."""
    first, second = plane
    result = np.eye(3)
    result[first, first] = result[second, second] = math.cos(angle)
    result[first, second], result[second, first] = -math.sin(angle), math.sin(angle)
    return result


def _range_factor(name: str, kind: str, shape: Shape) -> float:
    if kind == "scale":
        return 1.0
    if kind not in RANGE_KINDS:
        raise InputError(f"`range_is` is one of {', '.join(RANGE_KINDS)}; got {kind!r}")
    factors = FORMS[name].ranges
    if kind not in factors:
        raise InputError(f"{kind} has no {name} variogram; give `range` with range_is='scale' or 'practical'")
    return factors[kind](shape)


def _nugget_parts(nugget: Any, nugget_is: str) -> tuple[float, float]:
    if nugget_is not in NUGGET_KINDS:
        raise InputError(f"`nugget_is` is one of {', '.join(NUGGET_KINDS)}; got {nugget_is!r}")
    values = tuple(nugget) if isinstance(nugget, tuple | list) else None
    if values is None:
        values = (float(nugget), 0.0) if nugget_is == "error" else (0.0, float(nugget))
    if len(values) != 2 or not all(math.isfinite(value) and value >= 0.0 for value in values):
        raise InputError(
            f"`nugget` is a variance of at least 0, or a pair (measurement error, micro-scale); got {nugget!r}"
        )
    return float(values[0]), float(values[1])


def _partial_sill(sill: float | None, psill: float, nugget: float) -> float:
    if (sill is None) == math.isnan(psill):
        raise InputError("give `sill` (nugget and partial sill together) or `psill` (without the nugget), one of them")
    if sill is not None:
        if nugget >= sill:
            raise InputError(
                f"the nugget {nugget:g} exceeds the sill {sill:g}; sill= is nugget and partial sill together (psill= "
                "is without)"
            )
        psill = sill - nugget
    if not (math.isfinite(psill) and psill > 0.0):
        raise InputError(f"the partial sill must be positive and finite; got {psill!r}")
    return float(psill)


def _checked_ratio(ratio: Any) -> tuple[float, float]:
    values = tuple(ratio) if isinstance(ratio, tuple | list) else (float(ratio), 1.0)
    if len(values) != 2 or not all(0.0 < value <= 1.0 for value in values):
        raise InputError(
            f"`ratio` is the minor axis over the main axis, above 0 and at most 1; got {ratio!r}. Turn the angle by 90 "
            "degrees, and give the longer range as `range`"
        )
    return float(values[0]), float(values[1])


def _checked_angle(angle: float | None, azimuth: float | None, angles: Any) -> float | None:
    if angle is not None and azimuth is not None:
        raise InputError("give angle= (from east, counter-clockwise) or azimuth= (from north, clockwise), not both")
    if angles is not None and (angle is not None or azimuth is not None):
        raise InputError("give angles= (yaw, pitch, roll) in three dimensions, or one angle, not both")
    result = angle if azimuth is None else 90.0 - azimuth
    for value in (result, *(angles or ())):
        if value is not None and not math.isfinite(value):
            raise InputError(f"angles are finite numbers of degrees; got {value!r}")
    return None if result is None else float(result)
