"""One hyperparameter at the end of a search: for the file, the table and the picture of a tuning run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from dkgp.errors import InputError

Side: TypeAlias = Literal["lower", "upper"]
# What stands for nothing at its least: a feature that does not matter, a part of a sum that is not needed.
_SWITCHED_OFF = ("gamma", "weight", "variance", "scale", "offset")
_NOTHING = 1e-4
# A gamma whose length scale is 300 deviations: it moves a kernel by 1e-4 between samples four deviations apart.
_FLAT = 1.0 / (2.0 * 300.0**2)


@dataclass(frozen=True)
class TunedParameter:
    """A hyperparameter, where its search started and how far it could go; on the standardised scale.

    Attributes
    ----------
    name : str
        What `bounds`, `fixed` and `priors` address it by, such as `gamma.lat` or `noise_variance`.
    value, start, lower, upper : float
        A value of zero is a gamma's that was switched off.
    feature : str or None
        Name of the feature that it belongs to, where it belongs to one.
    fixed : bool
        Whether it was held at its value.
    bound : {"lower", "upper"} or None
        On which of its bounds the value lies, if on one.
    pressed : bool
        Whether the objective is larger beyond that bound, so that the search was stopped there.
    """

    name: str
    value: float
    start: float
    lower: float
    upper: float
    feature: str | None = None
    fixed: bool = False
    bound: Side | None = None
    pressed: bool = False

    @property
    def idle(self) -> bool:
        """True if the parameter changes next to nothing: on a bound that is as good as none, or on the plain before it.

        The likelihood is flat in a length scale of hundreds of deviations, so whether a search comes to rest there or
        walks on to the bound is for rounding to say.
        """
        if self.fixed or self._kind not in _SWITCHED_OFF:
            return False
        return (self.bound == "lower" and self.value <= 1.001 * _NOTHING) or (self.is_gamma and self.value <= _FLAT)

    @property
    def length_scale(self) -> float | None:
        """1 / sqrt(2 gamma) where the parameter is a gamma, in standard deviations of the feature."""
        return length_scale(self.value) if self.is_gamma else None

    @property
    def words(self) -> str:
        """A word on where it ended; none in the middle of its range."""
        if self.fixed:
            return "fixed"
        if self.idle:
            return "irrelevant" if self.feature is not None else "not needed"
        return "" if self.bound is None else f"{self.bound} bound"

    @property
    def is_gamma(self) -> bool:
        """True if the parameter is an inverse squared length scale."""
        return self._kind == "gamma"

    @property
    def _kind(self) -> str:
        name = self.name if self.feature is None else self.name.removesuffix(f".{self.feature}")
        return name.rpartition(".")[2]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` is the inverse."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}

    @classmethod
    def from_json(cls, document: object) -> TunedParameter:
        """Rebuild from `to_json`'s form; names that are not known are ignored. `InputError` for what does not fit."""
        if not isinstance(document, Mapping):
            raise InputError(f"a tuned parameter must be a JSON object; got {document!r}")
        numbers = {}
        for key in ("value", "start", "lower", "upper"):
            value = document.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f'a tuned parameter needs a finite number "{key}"; got {value!r}')
            numbers[key] = float(value)
        name, feature = document.get("name"), document.get("feature")
        if not isinstance(name, str) or not isinstance(feature, str | None):
            raise InputError(f'a tuned parameter needs text in "name" and "feature"; got {name!r} and {feature!r}')
        bound = document.get("bound")
        if bound is not None and bound not in get_args(Side):
            raise InputError(f'the "bound" of a tuned parameter is lower or upper; got {bound!r}')
        held, pressed = document.get("fixed") is True, document.get("pressed") is True
        return cls(name, feature=feature, fixed=held, bound=bound, pressed=pressed, **numbers)


def stopped(parameters: Iterable[TunedParameter]) -> str:
    """Name in a few words the parameters that bounds kept from an optimum; nothing where there are none."""
    held = [f"{item.name} stopped at its {item.bound} bound, {item.value:.3g}" for item in parameters if item.pressed]
    return ", ".join(held[:2]) + (f", and {len(held) - 2} more" if len(held) > 2 else "")


def with_switched_off(
    parameters: Iterable[TunedParameter], before: Iterable[TunedParameter]
) -> tuple[TunedParameter, ...]:
    """Add the gammas that the search `before`, which this one started from, switched off: they are zero still."""
    tuned, before = list(parameters), list(before)
    moved, places = {item.name for item in tuned}, {item.name: place for place, item in enumerate(before)}
    off = [item for item in before if item.is_gamma and item.value == 0.0 and item.name not in moved]
    return tuple(sorted((*tuned, *off), key=lambda item: places.get(item.name, len(places))))


def length_scale(gamma: float) -> float:
    """1 / sqrt(2 gamma); infinite for a gamma that is switched off."""
    return math.inf if gamma == 0.0 else 1.0 / math.sqrt(2.0 * gamma)
