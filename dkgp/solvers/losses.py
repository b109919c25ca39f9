"""Losses of a regularised risk: value, slope, curvature and conjugate, each convex in its second argument.

Targets and values are (n, p), a column a problem of its own; the columns of a coupled loss are one problem, and one
number for each sample is (n, 1). Curvatures are given as they are, which may be zero where a value is far out: nobody
divides by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray


class CurvatureRoot(Protocol):
    """A root R of the curvature by sample, R R' = W: R = diag(s) (I - u u')."""

    @property
    def spread(self) -> FloatArray:
        """S: (n, p)."""

    @property
    def unit(self) -> FloatArray | None:
        """U, of length one by sample: (n, p); none where no columns are coupled, and R is diag(s)."""

    def times(self, vectors: FloatArray) -> FloatArray:
        """R V for V (n, p)."""

    def transposed_times(self, vectors: FloatArray) -> FloatArray:
        """R' V for V (n, p)."""

    def entries(self, row: int, column: int) -> FloatArray:
        """W's entries for a pair of columns, by sample: (n,)."""


class Loss(Protocol):
    """A loss l(y, z), convex in its second argument, with a slope that is continuous.

    - `coupled`: whether the columns of targets and values are one problem.
    - `curvature_bound`: c: no curvature is above it.
    """

    @property
    def coupled(self) -> bool:
        """True if the columns are one problem."""

    @property
    def curvature_bound(self) -> float:
        """Largest curvature anywhere; of a coupled loss its Hessian's largest eigenvalue."""

    def check(self, targets: FloatArray) -> None:
        """Refuse targets that the loss is not made for."""

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """l(y_i, z_i): (n, p), of a coupled loss (n, 1)."""

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """dl/dz at (y_i, z_i): (n, p)."""

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """sup_z of u_i z - l(y_i, z), as `value`; infinite outside its domain."""

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Second derivative W at (y_i, z_i), of a coupled loss its diagonal: (n, p)."""

    def curvature_times(self, targets: FloatArray, values: FloatArray, vectors: FloatArray) -> FloatArray:
        """W V by sample: (n, p)."""

    def curvature_root(self, targets: FloatArray, values: FloatArray) -> CurvatureRoot:
        """R with R R' = W, by sample."""


class LabelLoss(Loss, Protocol):
    """A loss of labels -1 and 1, with the third derivative that the gradient of an evidence needs."""

    def log_curvature_slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """d log W / dz at (y_i, z_i): (n, p)."""


@dataclass(frozen=True)
class DiagonalRoot:
    """Root of a curvature that couples nothing.

    - `scale` (n, p): sqrt(W).
    """

    scale: FloatArray

    unit = None

    @property
    def spread(self) -> FloatArray:
        """sqrt(W)."""
        return self.scale

    def times(self, vectors: FloatArray) -> FloatArray:
        """sqrt(W) V."""
        return self.scale * vectors

    def transposed_times(self, vectors: FloatArray) -> FloatArray:
        """sqrt(W) V."""
        return self.scale * vectors

    def entries(self, row: int, column: int) -> FloatArray:
        """W, and nothing between two columns."""
        return self.scale[:, row] ** 2 if row == column else np.zeros(len(self.scale))


class SeparateLoss:
    """A loss whose columns are problems of their own."""

    coupled = False

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Second derivative at (y_i, z_i): (n, p)."""
        raise NotImplementedError

    def curvature_times(self, targets: FloatArray, values: FloatArray, vectors: FloatArray) -> FloatArray:
        """W V."""
        return self.curvature(targets, values) * vectors

    def curvature_root(self, targets: FloatArray, values: FloatArray) -> CurvatureRoot:
        """sqrt(W)."""
        return DiagonalRoot(np.sqrt(self.curvature(targets, values)))


@dataclass(frozen=True)
class SquaredLoss(SeparateLoss):
    """(y - z)^2 / 2: regularised least squares, the mean of a Gaussian process (equation 4)."""

    curvature_bound = 1.0

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

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """One."""
        return np.ones_like(values)


@dataclass(frozen=True)
class LogisticLoss(SeparateLoss):
    """log(1 + exp(-y z)) for labels y of -1 and 1 (equation 3)."""

    curvature_bound = 0.25

    def check(self, targets: FloatArray) -> None:
        """Labels must be -1 or 1."""
        _require_signs(targets, "the logistic loss")

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

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """S (1 - s) with s = 1 / (1 + exp(-z))."""
        return np.asarray(scipy.special.expit(values) * scipy.special.expit(-values))

    def log_curvature_slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """1 - 2 s."""
        return np.asarray(-np.tanh(0.5 * values))


# Further out than this, h (h + m) of the probit loss is its series: the difference has lost too many digits.
_PROBIT_SERIES = -200.0


@dataclass(frozen=True)
class ProbitLoss(SeparateLoss):
    """-log Phi(y z) for labels y of -1 and 1, Phi the standard normal distribution function."""

    curvature_bound = 1.0

    def check(self, targets: FloatArray) -> None:
        """Labels must be -1 or 1."""
        _require_signs(targets, "the probit loss")

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """-log Phi(y z)."""
        return np.asarray(-scipy.special.log_ndtr(targets * values))

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """-y h(y z) with the hazard h = phi / Phi."""
        return np.asarray(-targets * _hazard(targets * values))

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """-a m + log Phi(m) with a = -u y >= 0 and h(m) = a; infinite elsewhere."""
        pull = -slopes * targets
        inside = np.maximum(pull, 0.0)
        margin = _margin_of_hazard(inside)
        supremum = np.where(inside > 0.0, scipy.special.log_ndtr(margin) - inside * margin, 0.0)
        return np.where(pull >= 0.0, supremum, np.inf)

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """H (h + m) with m = y z, between 0 and 1."""
        margin = targets * values
        return _hazard_slope(margin, _hazard(margin))

    def log_curvature_slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Y [(1 - W) / (h + m) - (h + m)]; far to the left y 2 / m^3, where that has lost its digits."""
        margin = targets * values
        hazard, tail = _hazard(margin), np.minimum(margin, _PROBIT_SERIES)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            near = (1.0 - _hazard_slope(margin, hazard)) / (hazard + margin) - (hazard + margin)
        return np.asarray(targets * np.where(margin < _PROBIT_SERIES, 2.0 / tail**3, near))


def _hazard(margin: FloatArray) -> FloatArray:
    """phi(m) / Phi(m), which far to the left is nearly -m, and far to the right underflows."""
    with np.errstate(over="ignore"):
        return np.asarray(math.sqrt(2.0 / math.pi) / scipy.special.erfcx(margin * -math.sqrt(0.5)))


def _hazard_slope(margin: FloatArray, hazard: FloatArray) -> FloatArray:
    """-h'(m) = h (h + m); far to the left 1 - 1 / m^2 + 6 / m^4, for there the sum has lost its digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = hazard * (hazard + margin)
        square = np.minimum(margin, _PROBIT_SERIES) ** 2
    far = 1.0 - 1.0 / square + 6.0 / square / square
    return np.clip(np.where(margin < _PROBIT_SERIES, far, near), 0.0, 1.0)


def _margin_of_hazard(hazard: FloatArray) -> FloatArray:
    """m with h(m) = a, for a >= 0: Newton on log h, whose concavity keeps it right of the root, and falling to it."""
    pull = np.maximum(hazard, np.finfo(np.float64).tiny)
    log = np.log(pull)
    # h(m) = -m - 1 / m ... far to the left, and phi(m) < h(m) < 2 phi(m) to the right of 0.
    right = np.sqrt(np.maximum(-2.0 * log - math.log(2.0 * math.pi), 0.0))
    margin = np.where(pull > math.sqrt(2.0 / math.pi), 1.0 / pull - pull, right)
    for _ in range(60):
        reached = _hazard(margin)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            step = (np.log(reached) - log) * reached / _hazard_slope(margin, reached)
        limit = 1.0 + np.abs(margin)
        step = np.where(np.isfinite(step), np.clip(step, -limit, limit), 0.0)
        margin = margin + step
        if (np.abs(step) <= 1e-14 * limit).all():
            break
    return np.asarray(margin)


@dataclass(frozen=True)
class SoftmaxRoot:
    """Root of diag(pi) - pi pi' by sample: R = diag(sqrt(pi)) - pi sqrt(pi)'.

    - `shares` (n, C): pi.
    """

    shares: FloatArray

    @property
    def spread(self) -> FloatArray:
        """sqrt(pi)."""
        return np.sqrt(self.shares)

    @property
    def unit(self) -> FloatArray | None:
        """sqrt(pi), whose squares add up to one."""
        return np.sqrt(self.shares)

    def times(self, vectors: FloatArray) -> FloatArray:
        """R V."""
        root = np.sqrt(self.shares)
        return np.asarray(root * vectors - self.shares * np.sum(root * vectors, axis=1, keepdims=True))

    def transposed_times(self, vectors: FloatArray) -> FloatArray:
        """R' V."""
        return np.asarray(np.sqrt(self.shares) * (vectors - np.sum(self.shares * vectors, axis=1, keepdims=True)))

    def entries(self, row: int, column: int) -> FloatArray:
        """pi_c (1 - pi_c), and -pi_c pi_c' between two classes."""
        if row == column:
            return np.asarray(self.shares[:, row] * np.sum(np.delete(self.shares, row, axis=1), axis=1))
        return -self.shares[:, row] * self.shares[:, column]


# Slopes of a softmax must sum to zero by sample, which rounding lets them do this nearly.
_SUM_TOLERANCE = 1e-12


@dataclass(frozen=True)
class SoftmaxLoss:
    """log sum_c exp(z_c) - z_y of all classes together; targets are 1 in the label's column and 0 elsewhere."""

    coupled = True
    # Boehning (1992): diag(pi) - pi pi' <= 1/2.
    curvature_bound = 0.5

    def check(self, targets: FloatArray) -> None:
        """Each row must have a single 1 and zeros elsewhere, in two columns or more."""
        if targets.shape[1] < 2:
            raise InputError(f"the softmax loss needs a column for each of two classes or more; got {targets.shape[1]}")
        odd = ~(((targets == 0.0) | (targets == 1.0)).all(axis=1) & (targets.sum(axis=1) == 1.0))
        if odd.any():
            raise InputError(
                "the softmax loss needs targets that are 1 in the column of the label and 0 elsewhere; row "
                f"{int(np.argmax(odd))} is not"
            )

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """log sum_c exp(z_c) - z_y: (n, 1)."""
        of_label = np.sum(targets * values, axis=1, keepdims=True)
        return np.asarray(scipy.special.logsumexp(values - of_label, axis=1, keepdims=True))

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Pi - y, that of the label from the others', which keeps its digits where pi is nearly one."""
        shares = np.asarray(scipy.special.softmax(values, axis=1))
        return np.where(targets == 1.0, -_others(shares), shares)

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """sum_c pi_c log pi_c with pi = u + y in the simplex, rounding aside: (n, 1); infinite elsewhere."""
        shares = slopes + targets
        total = np.sum(shares, axis=1, keepdims=True)
        inside = np.maximum(shares, 0.0)
        sound = (np.abs(total - 1.0) <= _SUM_TOLERANCE) & (shares >= -_SUM_TOLERANCE).all(axis=1, keepdims=True)
        inside = inside / np.where(sound, np.sum(inside, axis=1, keepdims=True), 1.0)
        entropy = np.sum(scipy.special.xlogy(inside, inside), axis=1, keepdims=True)
        return np.asarray(np.where(sound, entropy, np.inf))

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """Pi (1 - pi), the diagonal."""
        shares = np.asarray(scipy.special.softmax(values, axis=1))
        return shares * _others(shares)

    def curvature_times(self, targets: FloatArray, values: FloatArray, vectors: FloatArray) -> FloatArray:
        """(diag(pi) - pi pi') V by sample."""
        shares = scipy.special.softmax(values, axis=1)
        return np.asarray(shares * (vectors - np.sum(shares * vectors, axis=1, keepdims=True)))

    def curvature_root(self, targets: FloatArray, values: FloatArray) -> CurvatureRoot:
        """diag(sqrt(pi)) - pi sqrt(pi)'."""
        return SoftmaxRoot(np.asarray(scipy.special.softmax(values, axis=1)))


def _others(shares: FloatArray) -> FloatArray:
    """Sum of the other columns, for each: (n, C), without a difference."""
    sums = np.zeros_like(shares)
    sums[:, 1:] += np.cumsum(shares, axis=1)[:, :-1]
    sums[:, :-1] += np.cumsum(shares[:, ::-1], axis=1)[:, -2::-1]
    return sums


@dataclass(frozen=True)
class SquaredHingeLoss(SeparateLoss):
    """max(0, 1 - y z)^2 / 2 for labels y of -1 and 1: the support vector machine with squared slacks."""

    curvature_bound = 1.0

    def check(self, targets: FloatArray) -> None:
        """Labels must be -1 or 1."""
        _require_signs(targets, "the squared hinge loss")

    def value(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """max(0, 1 - y z)^2 / 2."""
        return 0.5 * np.maximum(1.0 - targets * values, 0.0) ** 2

    def slope(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """-y max(0, 1 - y z)."""
        return -targets * np.maximum(1.0 - targets * values, 0.0)

    def conjugate(self, targets: FloatArray, slopes: FloatArray) -> FloatArray:
        """-a + a^2 / 2 with a = -u y >= 0; infinite elsewhere."""
        pull = -slopes * targets
        return np.where(pull >= 0.0, 0.5 * pull**2 - pull, np.inf)

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """One within the margin, zero beyond it."""
        return np.where(targets * values < 1.0, 1.0, 0.0)


@dataclass(frozen=True)
class HuberLoss(SeparateLoss):
    """(y - z)^2 / 2 up to |y - z| = width, and from there on a straight line: outliers pull no harder than that.

    - `width`: in the units of the standardised targets.
    """

    width: float = 1.0

    curvature_bound = 1.0

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

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """One up to the width, zero beyond it."""
        return np.where(np.abs(targets - values) <= self.width, 1.0, 0.0)


def _require_signs(targets: FloatArray, name: str) -> None:
    odd = targets[(targets != 1.0) & (targets != -1.0)]
    if odd.size:
        raise InputError(f"{name} needs labels of -1 and 1; got {odd[0]:g}")
