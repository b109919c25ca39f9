"""The space of a search for hyperparameters: names, bounds, values held fixed, priors.

All on the logarithms of the parameters, the kernel's in the order of its family and the noise variance last. A
parameter is addressed by its name or by a pattern with * and ?: `gamma.lat` is the gamma of the feature 'lat', `gamma*`
those of all features, `noise_variance` the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, UsageError
from dkgp.models.hyperparameters import Side, TunedParameter
from dkgp.models.tuning.families import KernelFamily


@dataclass(frozen=True)
class LogNormal:
    """The logarithm of a parameter is normal around log `median`: 95 % lie within a factor exp(2 sigma) of it.

    It is the density of the logarithm, on which the search works, so that it is largest at the median.

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
        """Return the log density of log(parameter) at `log_value`, and its derivative."""
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
    text = prior.strip() if isinstance(prior, str) else ""
    name, _, values = text.removesuffix(")").partition("(")
    median, sigma = map(_float_or_none, values.partition(",")[::2])
    if name.rstrip().lower() != "lognormal" or not text.endswith(")") or median is None or sigma is None:
        raise InputError(f"a prior is written lognormal(MEDIAN, SIGMA), such as lognormal(0.1, 1); got {prior!r}")
    return LogNormal(median, sigma)


def _float_or_none(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


NOISE_NAME = "noise_variance"
NOISE_VARIANCE_BOUNDS = (1e-6, 4.0)
_MOST_NAMES = 12
_BOUND_MARGIN = 1e-3  # in log space: nearer to a bound than a tenth of a per cent is on it
_SIDES: dict[int, Side | None] = {-1: "lower", 0: None, 1: "upper"}
# Parameters without effect near zero: for an irrelevant feature the search would move them towards zero for ever.
_GAMMA_LIKE = ("gamma", "weight")


@dataclass(frozen=True)
class SearchSpace:
    """All q parameters of a search, fixed ones included.

    Arrays are (q,), `bounds` (q, 2); all hold logarithms.
    """

    names: tuple[str, ...]  # names by which users address parameters
    labels: tuple[str, ...]  # names in messages
    features: tuple[int | None, ...]  # the feature of a parameter, if it has one
    bounds: FloatArray
    # Inverse squared length scales and weights: below 1 their absolute change matters, not the relative one.
    gamma_like: NDArray[np.bool_]
    fixed: FloatArray  # value of a fixed parameter, NaN of a free one
    # Positions among all `parameters` of the kernel, (q - 1,): without an amplitude that is not learnt.
    positions: IntArray
    priors: tuple[tuple[int, LogNormal], ...] = field(default=())  # by position
    restricted: frozenset[int] = frozenset()  # positions with bounds, a prior or a value of the user's

    @property
    def free(self) -> NDArray[np.bool_]:
        """Mask of the free parameters: (q,)."""
        return np.isnan(self.fixed)

    def full(self, free_parameters: FloatArray) -> FloatArray:
        """Return all q parameters, given the free ones in order."""
        parameters = self.fixed.copy()
        parameters[self.free] = free_parameters
        return parameters

    def select(self, values: FloatArray) -> FloatArray:
        """Select the search's parameters, (q,), from values of all the kernel's parameters and, last, of the noise."""
        return np.append(values[:-1][self.positions], values[-1])

    def named(self, parameters: FloatArray) -> dict[str, float]:
        """Return values by name, at log parameters (q,)."""
        return dict(zip(self.names, np.exp(parameters).tolist(), strict=True))

    def within(self, parameters: FloatArray) -> FloatArray:
        """Return the nearest point that respects bounds and fixed values: (q,)."""
        inside = np.clip(parameters, self.bounds[:, 0], self.bounds[:, 1])
        return np.where(self.free, inside, self.fixed)

    def sides(self, parameters: FloatArray) -> NDArray[np.int8]:
        """Return -1 for free log parameters (q,) on their lower bounds, 1 on their upper, 0 elsewhere: (q,)."""
        lower, upper = (np.abs(parameters - self.bounds[:, side]) <= _BOUND_MARGIN for side in (0, 1))
        return np.where(self.free, upper.astype(np.int8) - lower.astype(np.int8), 0).astype(np.int8)

    def tuned(
        self, parameters: FloatArray, starts: FloatArray, feature_names: Sequence[str]
    ) -> tuple[TunedParameter, ...]:
        """Return all q parameters by name, given log `parameters` (q,) and the log `starts` (q,) of the search."""
        values, begun, bounds = (np.exp(logs).tolist() for logs in (parameters, starts, self.bounds))
        features = [None if feature is None else feature_names[feature] for feature in self.features]
        held, sides = (~self.free).tolist(), [_SIDES[side] for side in self.sides(parameters).tolist()]
        return tuple(
            TunedParameter(name, value, start, lower, upper, feature, fixed, side)
            for name, value, start, (lower, upper), feature, fixed, side in zip(
                self.names, values, begun, bounds, features, held, sides, strict=True
            )
        )

    def log_prior(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        """Return the sum of the log densities at all q parameters, and its gradient (q,)."""
        value, gradient = 0.0, np.zeros(len(parameters))
        for position, prior in self.priors:
            density, derivative = prior.log_density(float(parameters[position]))
            value += density
            gradient[position] += derivative
        return value, gradient


def search_space(
    family: KernelFamily,
    feature_names: Sequence[str],
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    fixed: Mapping[str, float] | None = None,
    priors: Mapping[str, LogNormal | str] | None = None,
    has_noise: bool = True,
) -> SearchSpace:
    """Return the space of a family's parameters and the noise variance.

    Without noise (`has_noise` False, a likelihood of labels) the noise variance is held at 1, and has no name.

    `bounds`, `fixed` and `priors` are by name or pattern: (lower, upper), a value, a prior; on the parameters
    themselves, not on logarithms. If several patterns fit one name, the last one counts.

    Raises `InputError`: a pattern that fits no parameter, values that are not positive, bounds in the wrong order, or a
    parameter that is both fixed and given bounds or a prior.
    """
    kernel = family.kernel(family.initial())
    parameters = kernel.parameters()
    positions = np.arange(len(parameters))
    if kernel.amplitude_index is not None and len(parameters) == len(family.names) + 1:
        positions = np.delete(positions, kernel.amplitude_index)  # held
    names, features, gamma_like = [], [], []
    for parameter in (parameters[position] for position in positions):
        suffix = "" if parameter.feature is None else f".{feature_names[parameter.feature]}"
        names.append(f"{parameter.name}{suffix}")
        features.append(parameter.feature)
        gamma_like.append(parameter.name.rpartition(".")[2] in _GAMMA_LIKE)
    if has_noise:
        names.append(NOISE_NAME)
    logs = np.vstack([family.bounds, np.log(np.array([NOISE_VARIANCE_BOUNDS]))])
    held = np.full(len(logs), np.nan)
    if not has_noise:
        held[-1] = 0.0
    restricted: dict[int, str] = {}
    for pattern, (lower, upper) in (bounds or {}).items():
        low, high = _positive("bounds", pattern, lower), _positive("bounds", pattern, upper)
        if not low < high:
            raise InputError(f"the bounds of '{pattern}' must be low:high with low < high; got {low:g}:{high:g}")
        for position in _matching(pattern, names):
            logs[position] = math.log(low), math.log(high)
            restricted[position] = "bounds"
    densities: dict[int, LogNormal] = {}
    for pattern, prior in (priors or {}).items():
        for position in _matching(pattern, names):
            densities[position] = as_prior(prior)
            restricted[position] = "a prior"
    for pattern, value in (fixed or {}).items():
        number = _positive("value", pattern, value)
        for position in _matching(pattern, names):
            if position in restricted:
                raise InputError(
                    f"'{names[position]}' is held fixed and also given {restricted[position]}; choose one of the two"
                )
            held[position] = math.log(number)
    return SearchSpace(
        names=tuple(names) if has_noise else (*names, NOISE_NAME),
        labels=(*family.names, "the noise variance"),
        features=(*features, None),
        bounds=logs,
        gamma_like=np.array([*gamma_like, False]),
        fixed=held,
        positions=positions,
        priors=tuple(sorted(densities.items(), key=lambda item: item[0])),
        restricted=frozenset(restricted) | frozenset(np.flatnonzero(~np.isnan(held)).tolist()),
    )


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern stands for the name: as `fnmatch.fnmatchcase`, with *, ? and sets such as [a-c].

    `fnmatch` translates a pattern in a time that grows with the square of its length, and patterns come from users.
    """
    tokens = _tokens(pattern)
    read = start = position = 0
    star = -1
    while position < len(name):
        token = tokens[read] if read < len(tokens) else ""
        if token == "*":
            # Match nothing for now; backtrack with one character more if the rest does not match.
            star, start, read = read, position, read + 1
        elif token in ("?", name[position]) or (len(token) > 1 and _is_in(token, name[position])):
            read, position = read + 1, position + 1
        elif star >= 0:
            start += 1
            read, position = star + 1, start
        else:
            return False
    return all(token == "*" for token in tokens[read:])


def _tokens(pattern: str) -> list[str]:
    """Split a pattern into characters and sets; a bracket that nothing closes is a character."""
    tokens: list[str] = []
    position, last_end = 0, pattern.rfind("]")
    while (opening := pattern.find("[", position, last_end)) >= 0:
        tokens.extend(pattern[position:opening])
        first = opening + 1 + pattern.startswith("!", opening + 1)
        position = (pattern.index("]", first + 1) if first < last_end else opening) + 1
        tokens.append(pattern[opening:position])
    return [*tokens, *pattern[position:]]


def _is_in(letters: str, letter: str) -> bool:
    """Return whether a set in brackets has the letter."""
    is_negated = letters.startswith("[!")
    content, position, is_there = letters[1 + is_negated : -1], 0, False
    while position < len(content):
        is_range = content.startswith("-", position + 1) and position + 2 < len(content)
        is_there |= content[position] <= letter <= content[position + 2 * is_range]
        position += 1 + 2 * is_range
    return is_there != is_negated


def _matching(pattern: str, names: Sequence[str]) -> list[int]:
    positions = [position for position, name in enumerate(names) if name == pattern or matches(pattern, name)]
    if not positions:
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        raise InputError(f"there is no hyperparameter '{pattern}'; available: {shown}")
    return positions


def _positive(what: str, name: str, value: float) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0.0):
        raise InputError(f"the {what} of '{name}' must be positive and finite; got {value!r}")
    return number


def parse_bounds(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Read `NAME=LOW:HIGH`; `UsageError` for another form or values that are no bounds."""
    parsed = {}
    for name, value in _pairs("bounds", texts, "NAME=LOW:HIGH, such as 'gamma*=0.01:10'").items():
        low, separator, high = value.partition(":")
        if not separator:
            raise UsageError(f"`bounds` expects NAME=LOW:HIGH, such as 'gamma*=0.01:10'; got '{name}={value}'")
        bounds = _number("bounds", name, low), _number("bounds", name, high)
        if not bounds[0] < bounds[1]:
            raise UsageError(f"`bounds` {name}: LOW must be below HIGH; got {value}")
        parsed[name] = bounds
    return parsed


def parse_fixed(texts: Iterable[str]) -> dict[str, float]:
    """Read `NAME=VALUE`; `UsageError` for another form or a value that is not positive."""
    pairs = _pairs("fixed", texts, "NAME=VALUE, such as noise_variance=0.01")
    return {name: _number("fixed", name, value) for name, value in pairs.items()}


def parse_priors(texts: Iterable[str]) -> dict[str, LogNormal]:
    """Read `NAME=lognormal(MEDIAN, SIGMA)`; `UsageError` for another form or values that are not positive."""
    parsed = {}
    form = "NAME=lognormal(MEDIAN, SIGMA), such as 'gamma*=lognormal(0.1, 1)'"
    for name, value in _pairs("priors", texts, form).items():
        try:
            parsed[name] = as_prior(value)
        except InputError as error:
            raise UsageError(f"`priors` {name}: {error}") from None
    return parsed


def _pairs(option: str, texts: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not (name and separator and value):
            raise UsageError(f"`{option}` expects {form}; got '{text}'")
        if name in pairs:
            raise UsageError(f"`{option}` is given twice for '{name}'; give it once")
        pairs[name] = value
    return pairs


def _number(option: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise UsageError(f"`{option}` {name}: expected a positive number; got '{text.strip()}'")
    return number
