"""Losses of a regularised risk: value, slope and conjugate, each convex and differentiable in its second argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.special

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray

__all__ = ["HuberLoss", "LogisticLoss", "Loss", "SquaredLoss"]


class Loss(Protocol):
    """A loss l(y, z), convex and differentiable in its second argument."""

    def check(self, targets: FloatArray) -> None:
        """Refuse targets that the loss is not made for."""

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """l(y_i, z_i)."""

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """dl/dz at (y_i, z_i)."""

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """sup_z of u_i z - l(y_i, z); infinite outside its domain."""


@dataclass(frozen=True)
class SquaredLoss:
    """(y - z)^2 / 2: regularised least squares, the mean of a Gaussian process (equation 4)."""

    def check(self, targets: FloatArray) -> None:
        """Any targets will do."""

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """(y - z)^2 / 2."""
        return 0.5 * (targets - values) ** 2

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Z - y."""
        return values - targets

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """U y + u^2 / 2."""
        return slopes * targets + 0.5 * slopes**2


@dataclass(frozen=True)
class LogisticLoss:
    """log(1 + exp(-y z)) for labels y of -1 and 1 (equation 3)."""

    def check(self, targets: FloatArray) -> None:
        """Labels must be -1 or 1."""
        odd = targets[(targets != 1.0) & (targets != -1.0)]
        if odd.size:
            raise InputError(f"the logistic loss needs labels of -1 and 1; got {odd[0]:g}")

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """log(1 + exp(-y z))."""
        return np.logaddexp(0.0, -targets * values)

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """-y / (1 + exp(y z)) (equation 6)."""
        return np.asarray(-targets * scipy.special.expit(-targets * values))

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """S log s + (1 - s) log(1 - s) with s = -u y in [0, 1]; infinite elsewhere."""
        share = -slopes * targets
        inside = np.clip(share, 0.0, 1.0)
        entropy = scipy.special.xlogy(inside, inside) + scipy.special.xlog1py(1.0 - inside, -inside)
        return np.where((share >= 0.0) & (share <= 1.0), entropy, np.inf)


@dataclass(frozen=True)
class HuberLoss:
    """(y - z)^2 / 2 up to |y - z| = width, and from there on a straight line: outliers pull no harder than that.

    Parameters
    ----------
    width : float
        In the units of the standardised targets.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        if not self.width > 0.0 or not np.isfinite(self.width):
            raise InputError(f"the width of a Huber loss must be finite and positive; got {self.width!r}")

    def check(self, targets: FloatArray) -> None:
        """Any targets will do."""

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Huber's function of y - z."""
        return np.asarray(scipy.special.huber(self.width, targets - values))

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Z - y, clipped to the width."""
        return np.clip(values - targets, -self.width, self.width)

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """U y + u^2 / 2 for |u| <= width; infinite elsewhere."""
        return np.where(np.abs(slopes) <= self.width, slopes * targets + 0.5 * slopes**2, np.inf)
