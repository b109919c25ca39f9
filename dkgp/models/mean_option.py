"""The option `mean`, apart from `dkgp.models.trend`, which computes with it: help shows only the option."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from dkgp.registry import Option, Values

# Degree of the fitted polynomial by the word of the option; None: nothing is fitted.
DEGREES: dict[str, int | None] = {"centred": None, "constant": 0, "linear": 1, "quadratic": 2}
# The option's value: a word, or the mean itself, in the target's units.
MeanValue: TypeAlias = float | Literal["centred", "constant", "linear", "quadratic"]
MEAN_VALUES = f"{', '.join(map(repr, DEGREES))}, or a number, the known mean"


def is_mean(value: Any) -> bool:
    """Return whether a value is one of the option's."""
    if isinstance(value, str):
        return value in DEGREES
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def read_mean(text: str) -> MeanValue:
    """Read a word or a number: the `type` of the option `mean`."""
    word = text.strip()
    if word in DEGREES:
        return cast(MeanValue, word)
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{text!r} is no mean; expected {MEAN_VALUES}.") from None


MEAN = Option(
    help="Prior mean of the function. centred: the targets' average. constant, linear, quadratic: a polynomial of "
    "degree 0, 1 or 2 in the features, with coefficients fitted in the same solve. It extrapolates, and its "
    "uncertainty is part of every variance. M: a known mean, in the target's units.",
    type=read_mean,
    metavar="centred|constant|linear|quadratic|M",
    values=Values(is_mean, MEAN_VALUES),
)
