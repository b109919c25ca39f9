"""Options of `dkgp tune` for single hyperparameters: NAME=LOW:HIGH, NAME=VALUE, NAME=lognormal(MEDIAN, SIGMA)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dkgp.errors import InputError, UsageError
from dkgp.models.tuning.priors import LogNormal, as_prior

__all__ = ["parse_bounds", "parse_fixed", "parse_priors"]


def parse_bounds(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Read `NAME=LOW:HIGH`; `UsageError` for another form or values that are no bounds."""
    found = {}
    for name, value in _pairs("--bounds", texts, "NAME=LOW:HIGH, such as 'gamma*=0.01:10'"):
        low, separator, high = value.partition(":")
        if not separator:
            raise UsageError(f"--bounds expects NAME=LOW:HIGH, such as 'gamma*=0.01:10'; got '{name}={value}'")
        bounds = _number("--bounds", name, low), _number("--bounds", name, high)
        if not bounds[0] < bounds[1]:
            raise UsageError(f"--bounds {name}: LOW must be below HIGH; got {value}")
        found[name] = bounds
    return found


def parse_fixed(texts: Iterable[str]) -> dict[str, float]:
    """Read `NAME=VALUE`; `UsageError` for another form or a value that is not positive."""
    pairs = _pairs("--fix", texts, "NAME=VALUE, such as noise_variance=0.01")
    return {name: _number("--fix", name, value) for name, value in pairs}


def parse_priors(texts: Iterable[str]) -> dict[str, LogNormal]:
    """Read `NAME=lognormal(MEDIAN, SIGMA)`; `UsageError` for another form or values that are not positive."""
    found = {}
    for name, value in _pairs("--prior", texts, "NAME=lognormal(MEDIAN, SIGMA), such as 'gamma*=lognormal(0.1, 1)'"):
        try:
            found[name] = as_prior(value)
        except InputError as error:
            raise UsageError(f"--prior {name}: {error}") from None
    return found


def _pairs(option: str, texts: Iterable[str], form: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not (name and separator and value):
            raise UsageError(f"{option} expects {form}; got '{text}'")
        if any(name == other for other, _ in pairs):
            raise UsageError(f"{option} is given twice for '{name}'; give it once")
        pairs.append((name, value))
    return pairs


def _number(option: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise UsageError(f"{option} {name}: expected a positive number; got '{text.strip()}'")
    return number
