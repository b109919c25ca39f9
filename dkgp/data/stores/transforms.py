"""Transforms of targets: a scale on which they are nearer to normal, and the way back.

Yeo and Johnson, *A new family of power transformations to improve normality or symmetry*, Biometrika 87 (2000); lambda
between 0 and 2, so that every number is the transform of some target, and intervals and means come back finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import scipy

from dkgp.data.types import FloatArray
from dkgp.errors import InputError

TransformName: TypeAlias = Literal["log", "yeo-johnson"]
TRANSFORMS: tuple[str, ...] = get_args(TransformName)
LEAST_LAMBDA, MOST_LAMBDA = 0.0, 2.0
# Targets that lambda is found from: of more, every second, third ...
MOST_TARGETS = 2**20
# Of averages: nodes on each side of zero, where the second derivative jumps, and deviations that they reach over.
_NODES, _REACH = 64, 10.0
_AT, _WEIGHTS = np.polynomial.legendre.leggauss(_NODES)
# Unit roundoff, and a few times what a product below the smallest normal number may be off by.
_UNIT, _LOST = 2.0**-53, 2.0**-1070
# Rows whose nodes are held at once.
_ROWS = 4096


@dataclass(frozen=True)
class TargetTransform:
    """One target's transform T, increasing; `parameter` is lambda, and 0 of a logarithm."""

    name: TransformName
    parameter: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in TRANSFORMS or not LEAST_LAMBDA <= self.parameter <= MOST_LAMBDA:
            raise InputError(
                f"Got the transform '{self.name}' with the parameter {self.parameter}; expected "
                f"{' or '.join(TRANSFORMS)}, with one from {LEAST_LAMBDA:g} to {MOST_LAMBDA:g}."
            )

    def forward(self, targets: FloatArray) -> FloatArray:
        """T(y); NaN or minus infinity where a logarithm takes no y."""
        with np.errstate(all="ignore"):
            return np.asarray(np.log(targets) if self.name == "log" else _yeo_johnson(targets, self.parameter))

    def inverse(self, transformed: FloatArray) -> FloatArray:
        """T^-1; infinite where that is beyond float64."""
        with np.errstate(all="ignore"):
            return np.asarray(np.exp(transformed) if self.name == "log" else _inverse(transformed, self.parameter))

    def inverse_error(self, inverse: FloatArray) -> FloatArray:
        """Return by how much results of `inverse` may differ from the exact T^-1, with `parameter` as stored.

        NumPy's exp, expm1 and log1p are within 4 units in the last place, 8 u. The exponent E = log(1 + |y|) has a
        product, log1p, a quotient and 2 - lambda, each of whose relative errors moves E by no more than the same share;
        an error of E moves y by at most (1 + E) times its share. Products below the smallest normal number lose up to
        2^-1075, which a quotient by the power enlarges. See `docs/proofs.md`.
        """
        size = np.abs(inverse)
        with np.errstate(all="ignore"):
            if self.name == "log":
                error = 10.0 * _UNIT * size + _LOST
            else:
                powers = (self.parameter, 2.0 - self.parameter)
                lost = _LOST * (1.0 + sum(1.0 / power for power in powers if power > 0.0))
                error = _UNIT * size * (12.0 * np.log1p(size) + 24.0) + lost * (1.0 + size)
        return np.asarray(np.where(np.isnan(error), np.inf, error))

    def log_slope(self, targets: FloatArray) -> FloatArray:
        """log T'(y), by which a density in y is larger than one in T(y)."""
        with np.errstate(all="ignore"):
            if self.name == "log":
                return np.asarray(-np.log(targets))
            return np.asarray((self.parameter - 1.0) * np.sign(targets) * np.log1p(np.abs(targets)))

    def mean(self, mean: FloatArray, variance: FloatArray) -> FloatArray:
        """E[T^-1(t)] of normal t with this mean and variance, (rows,) each.

        Of a logarithm exp(m + v / 2); else by Gauss-Legendre quadrature on both sides of t = 0.
        """
        if self.name == "log":
            with np.errstate(over="ignore"):
                return np.asarray(np.exp(mean + 0.5 * variance))
        pieces = [slice(start, start + _ROWS) for start in range(0, len(mean), _ROWS)]
        parts = [self._average(mean[rows], np.sqrt(variance[rows])) for rows in pieces]
        return np.concatenate(parts) if parts else np.empty(0)

    def _average(self, mean: FloatArray, deviation: FloatArray) -> FloatArray:
        # Where T^-1 grows as exp, what counts lies `deviation` further out.
        low, high = -_REACH - deviation, _REACH + deviation
        with np.errstate(all="ignore"):
            middle = np.clip(np.nan_to_num(-mean / deviation), low, high)
            total: FloatArray = np.zeros(len(mean))
            for start, stop in ((low, middle), (middle, high)):
                half = 0.5 * (stop - start)
                u = (start + half)[:, None] + half[:, None] * _AT
                density = np.exp(-0.5 * u**2) / np.sqrt(2.0 * np.pi)
                total += half * ((self.inverse(mean[:, None] + deviation[:, None] * u) * density) @ _WEIGHTS)
        return total

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def fit_transform(name: TransformName, targets: FloatArray) -> TargetTransform:
    """The transform of training targets (n,): lambda by maximum likelihood of normal transformed ones.

    Raises `InputError`: targets that are not positive, of a logarithm.
    """
    if name == "log":
        require_positive(targets, "the target")
        return TargetTransform(name)
    signed = np.sign(targets) * np.log1p(np.abs(targets))
    drift = float(np.mean(signed))

    def loss(parameter: float) -> float:
        with np.errstate(all="ignore"):
            spread = float(np.var(_yeo_johnson(targets, parameter)))
            value = 0.5 * np.log(spread) - (parameter - 1.0) * drift
        return float(value) if np.isfinite(value) else 1e300

    best = scipy.optimize.minimize_scalar(loss, bounds=(LEAST_LAMBDA, MOST_LAMBDA), method="bounded")
    ends = [float(best.x), LEAST_LAMBDA, MOST_LAMBDA]
    return TargetTransform(name, min(ends, key=loss))


def require_positive(targets: FloatArray, name: str, place: Callable[[int], str] | None = None) -> None:
    """Refuse targets (rows,) of which there is no logarithm.

    Raises `InputError`, which names the first by `place` of its row; by its number, from 1, without.
    """
    wrong = np.flatnonzero(~(targets > 0.0))
    if len(wrong):
        row = int(wrong[0])
        where = f"row {row + 1}" if place is None else place(row)
        raise InputError(
            f"'{name}' holds {targets[row]:g} in {where}, and a logarithm takes positive numbers only. "
            "Give `transform` yeo-johnson, which takes all numbers, or leave such rows out."
        )


def _yeo_johnson(y: FloatArray, parameter: float) -> FloatArray:
    positive = _power(np.maximum(y, 0.0), parameter)
    return np.asarray(np.where(y >= 0.0, positive, -_power(np.maximum(-y, 0.0), 2.0 - parameter)))


def _power(size: FloatArray, power: float) -> FloatArray:
    """((1 + size)^power - 1) / power, without cancellation; its limit at the power 0."""
    logarithm = np.log1p(size)
    return np.asarray(logarithm if power == 0.0 else np.expm1(power * logarithm) / power)


def _inverse(t: FloatArray, parameter: float) -> FloatArray:
    positive = _root(np.maximum(t, 0.0), parameter)
    return np.asarray(np.where(t >= 0.0, positive, -_root(np.maximum(-t, 0.0), 2.0 - parameter)))


def _root(size: FloatArray, power: float) -> FloatArray:
    """Inverse of `_power`."""
    return np.asarray(np.expm1(size if power == 0.0 else np.log1p(power * size) / power))
