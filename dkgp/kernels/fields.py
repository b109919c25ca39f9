"""Fields of kernels, each one number for a feature or for all: checks, bounds, JSON, settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.errors import InputError
from dkgp.kernels.base import FloatArray, Kernel, Parameter, Settings, require_positive

# For searches on standardised inputs. A gamma of 1e-8 moves no exponent that matters, and one of 1e4 makes every sample
# an island.
GAMMA_BOUNDS = (1e-8, 1e4)
VARIANCE_BOUNDS = (1e-4, 1e4)
# From a fortieth of a standard deviation to where a period is not seen in full.
PERIOD_BOUNDS = (2.5e-2, 1e2)
# From 1e3 on a rational quadratic is a squared exponential.
SHAPE_BOUNDS = (1e-2, 1e4)


def checked_per_feature(name: str, values: Any, *, zero: bool) -> tuple[float, ...]:
    """Numbers, one for each feature or one for all, as a tuple of positive floats (or zero, where admitted)."""
    items: Sequence[float] = tuple(np.atleast_1d(np.asarray(values, dtype=object)).tolist())
    if not items:
        raise InputError(f"{name} needs one value for each feature; got none")
    return tuple(
        require_positive(f"{name}[{index}]", value, admits=lambda v: v > 0.0 or (zero and v == 0.0))
        for index, value in enumerate(items)
    )


def checked_features(n_features: Any, **per_feature: tuple[float, ...]) -> int:
    """Number of features: `n_features`, or where that is 0 as many as there are values."""
    if isinstance(n_features, bool) or not isinstance(n_features, int | np.integer) or n_features < 0:
        raise InputError(f"n_features must be a whole number from 1, or left out; got {n_features!r}")
    total = int(n_features) or max((len(values) for values in per_feature.values()), default=0)
    for name, values in per_feature.items():
        if len(values) not in (1, total):
            raise InputError(f"{name} needs one value for each of {total} features, or one for all; got {len(values)}")
    return total


def by_feature(values: tuple[float, ...], n_features: int) -> tuple[float, ...]:
    """One value for each feature, where there may be one for all."""
    return values if len(values) == n_features else values * n_features


def feature_parameters(
    name: str, values: tuple[float, ...], bounds: tuple[float, float], n_features: int
) -> list[Parameter]:
    """The positive ones of `values` as parameters; of no feature where there is one for all of several."""
    places = range(n_features) if len(values) == n_features else [None]
    return [Parameter(name, v, *bounds, feature=place) for place, v in zip(places, values, strict=True) if v > 0.0]


def replaced(values: tuple[float, ...], new: Iterable[float]) -> tuple[float, ...]:
    """`values` with the positive ones replaced, in their order; a zero stays zero."""
    supply = iter(new)
    return tuple(next(supply) if value > 0.0 else value for value in values)


def gamma_of_length_scales(length_scales: ArrayLike) -> tuple[float, ...]:
    """gamma_l = 1 / (2 lengthscale_l^2); an infinite length scale switches a feature off."""
    try:
        values = np.atleast_1d(np.asarray(length_scales, dtype=np.float64))
    except (TypeError, ValueError):
        values = np.zeros(1)
    if values.ndim != 1 or not bool(np.all(values > 0.0)):
        raise InputError(f"length scales must be positive, one for each feature or one for all; got {length_scales!r}")
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        gamma = 0.5 / values**2
    wrong = np.isfinite(values) & ~((gamma >= np.finfo(np.float64).tiny) & np.isfinite(gamma))
    if wrong.any():
        raise InputError(
            f"length scales must be between 1e-154 and 1e153, or infinite; got {values[wrong][0]:g}. Scale the inputs"
        )
    return tuple(gamma.tolist())


def length_scales_of_gamma(gamma: tuple[float, ...]) -> tuple[float, ...]:
    """lengthscale_l = 1 / sqrt(2 gamma_l), infinite for a feature that is switched off."""
    return tuple(math.inf if value == 0.0 else 1.0 / math.sqrt(2.0 * value) for value in gamma)


def _value_from_json(document: Mapping[str, Any], name: str, default: Any = None, needs: str = "") -> Any:
    if name not in document and default is None:
        raise InputError(f'a kernel of type "{document["type"]}" needs "{name}"{needs}; got {sorted(document)}')
    return document.get(name, default)


def number_from_json(document: Mapping[str, Any], name: str, called: str, default: float | None = None) -> float:
    """The number `name` of a kernel's description; JSON's true is not 1, and "1" is text."""
    value = _value_from_json(document, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{called} must be a number; got {value!r}")
    return float(value)


def integer_from_json(document: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The whole number `name` of a kernel's description."""
    value = _value_from_json(document, name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f'"{name}" must be a whole number; got {value!r}')
    return value


def list_from_json(document: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """The list `name`, one number for each feature, of a kernel's description."""
    values = _value_from_json(document, name, needs=", one value for each feature")
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(f'"{name}" must be a list with one value for each feature; got {values!r}')
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name}[{index}] must be a number; got {value!r}")
    return tuple(float(value) for value in values)


@dataclass(frozen=True)
class PlainKernel(Kernel):
    """A kernel whose fields are `variance`, `n_features`, other numbers, and tuples of one for each feature or all."""

    # Numbers that a description must give although they have a default.
    required: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """`{"type": ..., "variance": v, "gamma": [...]}` and so on; `n_features` where no list tells."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        document = {"type": self.type_name, "variance": values.pop("variance")}
        total = values.pop("n_features")
        document |= {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        evident = not total or any(isinstance(value, tuple) and len(value) == total for value in values.values())
        return document if evident else {**document, "n_features": total}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`'s form; numbers with a default may be left out, but for those `required`."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            name, default = field.name, None if field.default is MISSING else field.default
            default = None if name in cls.required else default
            if field.type in ("int", int):
                values[name] = integer_from_json(document, name, default)
            elif field.type in ("float", float):
                called = "the kernel's variance" if name == "variance" else name
                values[name] = number_from_json(document, name, called, default)
            else:
                values[name] = list_from_json(document, name)
        return cls(**values)


class LengthScaleKernel(PlainKernel):
    """A stationary kernel with a gamma by feature, or one for all."""

    gamma: tuple[float, ...]

    @property
    def length_scales(self) -> tuple[float, ...]:
        """lengthscale_l = 1 / sqrt(2 gamma_l), as many as there are `gamma`."""
        return length_scales_of_gamma(self.gamma)

    @property
    def feature_gamma(self) -> tuple[float, ...]:
        """gamma_1 .. gamma_d, also where one value serves all."""
        return by_feature(self.gamma, self.n_features)

    @property
    def stationary(self) -> bool:
        """True: k(x, x) is the same everywhere."""
        return True


def centred(left: FloatArray, right: FloatArray, active: NDArray[np.intp], scale: Any) -> tuple[FloatArray, FloatArray]:
    """Both sides' active features off the right side's mean, times `scale`; one array where both sides are one.

    The common centre costs nothing and saves digits where inputs lie far from the origin.
    """
    centre = right[:, active].mean(axis=0) if right.shape[0] else 0.0
    scaled = (right[:, active] - centre) * scale
    return scaled if left is right else (left[:, active] - centre) * scale, scaled


# -------------------------------------------------------------------------------------------- settings of expressions


def gamma_setting(settings: Settings, d: int) -> tuple[float, ...]:
    """Take `length_scale` and `isotropic` out of an expression's settings: gamma, by default 1 / (2 d) each."""
    scales, isotropic = settings.pop("length_scale", None), isotropic_setting(settings)
    if scales is None:
        return (1.0 / (2.0 * d),) * (1 if isotropic else d)
    return per_feature_setting("length_scale", gamma_of_length_scales(scales), d, isotropic)


def isotropic_setting(settings: Settings) -> bool:
    """Take `isotropic` out of an expression's settings: whether one number serves all features."""
    value = settings.pop("isotropic", False)
    if not isinstance(value, bool):
        raise InputError(f"isotropic must be True or False; got {value!r}")
    return value


def per_feature_setting(name: str, values: tuple[float, ...], d: int, isotropic: bool) -> tuple[float, ...]:
    """One value for each feature, where one may have been given for all; a single one where `isotropic`."""
    if len(values) not in (1, d):
        raise InputError(f"{name} takes one value, or one for each of {d} features; got {len(values)}")
    if isotropic and len(values) > 1:
        raise InputError(f"isotropic=True takes one {name}; got {len(values)}")
    return values if isotropic or len(values) == d else values * d


def known_settings(settings: Settings, *known: str) -> Settings:
    """The settings, once none is unknown; every kernel knows `variance`."""
    unknown = [name for name in settings if name not in ("variance", *known)]
    if unknown:
        expected = ", ".join(sorted({"variance", *known}))
        raise InputError(f"unknown setting {', '.join(unknown)}; expected one of {expected}")
    return settings
