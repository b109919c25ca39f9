"""Likelihoods of labels: how latent functions become probabilities, and how sure of these one can be.

| name | p(class) | columns t |
|---|---|---|
| `logit` | 1 / (1 + exp(-f)) of its own function | one for two classes, else one a class, against the rest |
| `probit` | Phi(f) of its own function | the same |
| `softmax` | exp(f_c) / sum_j exp(f_j) | one a class, C > 2, that hang together |

Of more than two classes, one against the rest, the probabilities are divided by their sum. Two classes have one
function, positive for the second; softmax of two is logit.

All three rise in the class's own function and fall in the others', so that a box of functions has its least and
greatest probability at two of its corners. `Likelihood.intervals` evaluates those, with every rounding and the error of
the library's functions counted outward (theorem 13 of `docs/proofs.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np
import scipy

from dkgp.errors import InputError
from dkgp.models.classification.labels import Labels
from dkgp.models.rounding import EPS
from dkgp.operators.base import FloatArray
from dkgp.solvers import losses
from dkgp.solvers.losses import Loss

LikelihoodName = Literal["logit", "probit", "softmax"]
Link = Literal["logit", "probit"]
MultiClass = Literal["softmax", "ovr"]

# Relative error of exp, expit and ndtr, and of the logarithms of the last two, at most: against mpmath
# they are within 2.3 eps; ndtr and its logarithm where Phi's tail is within that times 1 + z^2, z up to 38, for that is
# the effect of an argument's rounding there. Seven times that is allowed. Beyond, and where a value is near the
# smallest normal number, `TINY` is more than the value.
LIBRARY = 16.0 * EPS
TAIL = 38.6
TINY = 2.0**-1021
LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class _Functions:
    """A likelihood by its own function f: all that one of another loss has to say.

    Attributes
    ----------
    loss
        -log p(y | f), as a risk's loss.
    rising, logarithm
        A class's likelihood by f, and its logarithm, up to a term that all classes share.
    tail
        Whether the library's functions lose digits in proportion to 1 + f^2, far out.
    """

    loss: Callable[[], Loss]
    rising: Callable[[FloatArray], FloatArray]
    logarithm: Callable[[FloatArray], FloatArray]
    tail: bool = False


# `scipy.special` is imported at the first call: the options of `dkgp classify` need only names.
_FUNCTIONS: dict[str, _Functions] = {
    "logit": _Functions(losses.LogisticLoss, lambda f: scipy.special.expit(f), lambda f: scipy.special.log_expit(f)),
    "probit": _Functions(
        losses.ProbitLoss, lambda f: scipy.special.ndtr(f), lambda f: scipy.special.log_ndtr(f), tail=True
    ),
    "softmax": _Functions(losses.SoftmaxLoss, np.exp, np.asarray),
}


@dataclass(frozen=True)
class Likelihood:
    """A likelihood of labels of C classes.

    Parameters
    ----------
    name : {"logit", "probit", "softmax"}
    n_classes : int
        C, two at least; of softmax three.
    """

    name: LikelihoodName
    n_classes: int

    def __post_init__(self) -> None:
        if self.name not in get_args(LikelihoodName):
            raise InputError(f"the likelihood is '{self.name}'; expected one of {', '.join(get_args(LikelihoodName))}")
        least = 3 if self.name == "softmax" else 2
        if self.n_classes < least:
            raise InputError(f"a likelihood '{self.name}' of {self.n_classes} classes; expected {least} or more")

    @classmethod
    def of(cls, link: Link, multi_class: MultiClass, n_classes: int) -> Self:
        """The likelihood of a link, and of a way with several classes, which is of no account for two.

        `InputError`: softmax of probits, a name that is none, fewer than two classes.
        """
        if link not in get_args(Link):
            raise InputError(f"the link is '{link}'; expected one of {', '.join(get_args(Link))}")
        if multi_class not in get_args(MultiClass):
            raise InputError(f"`multi_class` is '{multi_class}'; expected one of {', '.join(get_args(MultiClass))}")
        if multi_class == "softmax" and n_classes > 2:
            if link != "logit":
                raise InputError("softmax goes with the link 'logit'; take `multi_class` 'ovr' with 'probit'")
            return cls("softmax", n_classes)
        return cls(link, n_classes)

    @property
    def n_outputs(self) -> int:
        """Latent functions, t: one for two classes, else one for each."""
        return 1 if self.n_classes == 2 else self.n_classes

    @property
    def coupled(self) -> bool:
        """True where the columns are one problem together."""
        return self.name == "softmax"

    @property
    def loss(self) -> Loss:
        """-log p(y | f), as a risk's loss."""
        return _FUNCTIONS[self.name].loss()

    def targets(self, labels: Labels) -> FloatArray:
        """Targets that the loss takes, (n, t): signs, +1 for the class; of softmax, one for the class and zeros."""
        if labels.n_classes != self.n_classes:
            raise InputError(f"there are {labels.n_classes} classes; the likelihood is of {self.n_classes}")
        signs = labels.signs()
        return np.asarray(0.5 * (signs + 1.0)) if self.coupled else signs

    def curvature(self, targets: FloatArray, values: FloatArray) -> FloatArray:
        """W = -d2 log p / df2 at each sample, (n, t); of softmax its diagonal."""
        return np.asarray(self.loss.curvature(targets, values))

    def probabilities(self, decisions: FloatArray) -> FloatArray:
        """Probabilities of the classes where the latent functions are these, (r, t): (r, C), whose rows sum to one."""
        values = self._columns(decisions)
        if self.n_outputs == 1:
            # p(-f) and not 1 - p(f): small probabilities keep their digits.
            return np.concatenate([self._rising(-values), self._rising(values)], axis=1)
        logs = np.maximum(self._logarithm(values), -LARGEST)
        # Divided by the largest first: where no class is near to likely, there is still one that is nearest.
        with np.errstate(over="ignore"):
            likelihoods = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=1, keepdims=True))

    def intervals(self, decisions: FloatArray, bounds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Ends between which the probabilities lie for all functions within `bounds` of `decisions`: (r, C) both.

        Proven, roundings included; they hold `probabilities(decisions)` too. A bound may be infinite, and then tells
        nothing.
        """
        values, away = self._columns(decisions), self._columns(bounds)
        # fl(f - b) is off by half a unit in its last place: the next number is on the safe side.
        with np.errstate(over="ignore"):
            low, high = np.nextafter(values - away, -np.inf), np.nextafter(values + away, np.inf)
        if self.n_outputs == 1:
            lower = np.concatenate([self._rising(-high), self._rising(low)], axis=1)
            upper = np.concatenate([self._rising(-low), self._rising(high)], axis=1)
            off = np.maximum(self._off(low), self._off(high))
            return _outward(lower, upper, off)
        least, most = self._logarithms(low, -1.0), self._logarithms(high, 1.0)
        off = np.full((1, 1), LIBRARY + self.n_classes * EPS)
        return _outward(_share(least, most), _share(most, least), off)

    def slopes(self, targets: FloatArray, values: FloatArray, bounds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Ends between which the loss' slopes dl/df lie for all functions within `bounds` of `values`: (n, t) both.

        Proven, roundings included; `targets` are those of `targets`, the others as of `intervals`.
        """
        if self.coupled:
            lower, upper = self.intervals(values, bounds)
            return np.nextafter(lower - targets, -np.inf), np.nextafter(upper - targets, np.inf)
        margins = targets * self._columns(values)
        with np.errstate(over="ignore"):
            low, high = np.nextafter(margins - bounds, -np.inf), np.nextafter(margins + bounds, np.inf)
        # -y h(y f) with an h > 0 that falls: 1 - p, or phi / Phi.
        least, most = (-self.loss.slope(np.ones_like(ends), ends) for ends in (high, low))
        least = np.maximum(least * (1.0 - self._off(high)) - TINY, 0.0)
        most = most * (1.0 + self._off(low)) + TINY
        return np.where(targets > 0.0, -most, least), np.where(targets > 0.0, -least, most)

    def _columns(self, values: FloatArray) -> FloatArray:
        columns = np.asarray(values, dtype=np.float64)
        if columns.ndim != 2 or columns.shape[1] != self.n_outputs:
            raise InputError(f"decisions or bounds have shape {columns.shape}; expected (r, {self.n_outputs})")
        return columns

    def _rising(self, values: FloatArray) -> FloatArray:
        return np.asarray(_FUNCTIONS[self.name].rising(values))

    def _off(self, values: FloatArray) -> FloatArray:
        """Share of a likelihood at these values, or of its logarithm, that the library may be off by."""
        if not _FUNCTIONS[self.name].tail:
            return np.full(values.shape, LIBRARY)
        return LIBRARY * (1.0 + np.minimum(np.abs(values), TAIL) ** 2)

    def _logarithms(self, ends: FloatArray, side: float) -> FloatArray:
        """Logarithms at the ends of intervals, moved down (side -1) or up (1).

        By the library's share, and by that once more, which exceeds the rounding of the difference of two logarithms.
        """
        logs = self._logarithm(ends)
        if side > 0.0:
            logs = np.maximum(logs, -LARGEST)
        with np.errstate(over="ignore"):
            return np.asarray(logs + side * (2.0 * self._off(ends) * np.abs(logs) + TINY))

    def _logarithm(self, values: FloatArray) -> FloatArray:
        """Logarithm of a class's likelihood by its own function, up to a term that all classes share."""
        return np.asarray(_FUNCTIONS[self.name].logarithm(values))


def _share(own: FloatArray, others: FloatArray) -> FloatArray:
    """1 / (1 + sum_{j != c} exp(others_j - own_c)) for each class c: (r, C)."""
    result = np.empty_like(own)
    with np.errstate(over="ignore"):
        for column in range(own.shape[1]):
            away = np.delete(others, column, axis=1) - own[:, column : column + 1]
            result[:, column] = 1.0 / (1.0 + np.exp(away).sum(axis=1))
    return result


def _outward(lower: FloatArray, upper: FloatArray, off: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Ends (r, C) of intervals that the share `off` of each, and `TINY`, makes wider; within 0 and 1."""
    return np.clip(lower * (1.0 - off) - TINY, 0.0, 1.0), np.clip(upper * (1.0 + off) + TINY, 0.0, 1.0)
