"""Priors of hyperparameters: log-normal densities, by the names of the parameters."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dkgp.errors import InputError

_FORM = re.compile(r"\s*lognormal\s*\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)\s*", flags=re.IGNORECASE)


@dataclass(frozen=True)
class LogNormal:
    """The logarithm of a parameter is normal around log `median`: 95 % lie within a factor exp(2 sigma) of it.

    The density is taken of the logarithm, on which the search works, so that it is largest at the median.

    Parameters
    ----------
    median : float
        In the parameter's own units on the standardised scale, such as a gamma.
    sigma : float
        Standard deviation of the logarithm.

    Raises
    ------
    InputError
        Values that are not positive and finite.
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        for name, value in (("median", self.median), ("sigma", self.sigma)):
            if not (math.isfinite(value) and value > 0.0):
                raise InputError(f"the {name} of a log-normal prior must be positive and finite; got {value!r}")

    def log_density(self, log_value: float) -> tuple[float, float]:
        """Log density of log(parameter) at `log_value`, and its derivative with respect to it."""
        distance = (log_value - math.log(self.median)) / self.sigma
        value = -0.5 * distance * distance - math.log(self.sigma) - 0.5 * math.log(2.0 * math.pi)
        return value, -distance / self.sigma

    def __str__(self) -> str:
        return f"lognormal({self.median:g}, {self.sigma:g})"


def as_prior(prior: LogNormal | str) -> LogNormal:
    """Return the prior that a text such as "lognormal(0.1, 1)" stands for, median and sigma.

    Raises `InputError`: another text, or values that are not positive.
    """
    if isinstance(prior, LogNormal):
        return prior
    match = _FORM.fullmatch(prior) if isinstance(prior, str) else None
    median, sigma = (None, None) if match is None else (_number(match[1]), _number(match[2]))
    if median is None or sigma is None:
        raise InputError(f"a prior is written lognormal(MEDIAN, SIGMA), such as lognormal(0.1, 1); got {prior!r}")
    return LogNormal(median, sigma)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
