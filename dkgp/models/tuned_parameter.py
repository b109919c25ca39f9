"""One hyperparameter at the end of a search: for the file, the table and the picture of a tuning run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dkgp.errors import InputError


@dataclass(frozen=True)
class TunedParameter:
    """A hyperparameter, where its search started and how far it could go; on the standardised scale.

    Attributes
    ----------
    name : str
        What `bounds`, `fixed` and `priors` address it by, such as `gamma.lat` or `noise_variance`.
    value, start, lower, upper : float
    feature : str or None
        Name of the feature that it belongs to, where it belongs to one.
    fixed : bool
        Whether it was held at its value.
    """

    name: str
    value: float
    start: float
    lower: float
    upper: float
    feature: str | None = None
    fixed: bool = False

    @property
    def length_scale(self) -> float | None:
        """1 / sqrt(2 gamma) where the parameter is a gamma, in standard deviations of the feature."""
        return length_scale(self.value) if self.is_gamma else None

    @property
    def is_gamma(self) -> bool:
        """True if the parameter is an inverse squared length scale."""
        name = self.name if self.feature is None else self.name.removesuffix(f".{self.feature}")
        return name.rpartition(".")[2] == "gamma"

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
        return cls(name, feature=feature, fixed=document.get("fixed") is True, **numbers)


def length_scale(gamma: float) -> float:
    """1 / sqrt(2 gamma)."""
    return 1.0 / math.sqrt(2.0 * gamma)
