"""Probabilities of decisions: Platt's sigmoid, fitted to cross-validated decisions.

A machine that is trained by least squares has decisions f near -1 and +1, which are no probabilities. Platt (1999)
takes

    p(+1 | f) = 1 / (1 + exp(-(slope f + offset)))

and the slope and offset of greatest likelihood for targets that are held away from 0 and 1: (n+ + 1) / (n+ + 2) where
the label is +1, and 1 / (n- + 2) where it is -1, of n+ and n- samples. They have to be found on decisions at samples
that the machine was not trained on; at its own it is too sure of itself. Lin, Lin and Weng, *A note on Platt's
probabilistic outputs for support vector machines* (2007), say how to do this without overflow: by Newton's iterations.

A slope below zero, of decisions that rank worse than chance, would turn the machine's labels round. Left-out decisions
of a machine that is nearly a constant are such: without a sample of its own class the constant moves away from it.
The likelihood is concave, so that the best slope that is not negative is then zero, and every probability the class's
share.

Several classes: each machine against the rest by itself, and the probabilities divided by their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dkgp.errors import InputError, NumericalError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_STEPS = 100
# Of the mean gradient, on decisions of unit root mean square.
TOLERANCE = 1e-12
# What Lin, Lin and Weng add to the Hessian's diagonal, here of a mean.
RIDGE = 1e-12
LEAST_STEP = 1e-10


@dataclass(frozen=True)
class Calibration:
    """Sigmoids that make probabilities of decisions, one for each column of decisions.

    Attributes
    ----------
    slope, offset : (t,) float64
        p(+1 | f) = 1 / (1 + exp(-(slope f + offset))): Platt's A and B with the other sign.
    """

    slope: FloatArray
    offset: FloatArray

    def __post_init__(self) -> None:
        slope, offset = (np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in (self.slope, self.offset))
        if slope.ndim != 1 or slope.shape != offset.shape or len(slope) == 0:
            raise InputError(f"slope and offset have one value for each column; got {slope.shape} and {offset.shape}")
        object.__setattr__(self, "slope", slope)
        object.__setattr__(self, "offset", offset)

    @property
    def n_outputs(self) -> int:
        """Columns of decisions, t: one for two classes, otherwise as many as classes."""
        return len(self.slope)

    def probabilities(self, decisions: FloatArray) -> FloatArray:
        """Probabilities of the classes at decisions (r, t): (r, C), whose rows sum to one."""
        values = _columns(decisions)
        if values.shape[1] != self.n_outputs:
            raise InputError(f"decisions have shape {values.shape}; expected (r, {self.n_outputs})")
        with np.errstate(over="ignore"):
            z = np.nan_to_num(values * self.slope + self.offset)  # finite: of classes far from likely one is nearest
        if self.n_outputs == 1:
            # expit(-z) and not 1 - expit(z): small probabilities keep their digits.
            return np.concatenate([expit(-z), expit(z)], axis=1)
        # Divided by the largest first: where all classes are far from likely, there is still one that is nearest.
        logs = -np.logaddexp(0.0, -z)
        likelihoods = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=1, keepdims=True))

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON; floats survive to the last bit."""
        return {"slope": self.slope.tolist(), "offset": self.offset.tolist()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return what `to_json` was made of."""
        return cls(np.asarray(document["slope"], dtype=np.float64), np.asarray(document["offset"], dtype=np.float64))


def fit_calibration(decisions: FloatArray, codes: IntArray, weights: FloatArray | None = None) -> Calibration:
    """Fit the sigmoids to decisions (n, t) at samples that the machine of each was not trained on.

    There is one column for two classes, positive for the second, otherwise one for each class against the rest; `codes`
    (n,) are the samples' classes, from 0, and `weights` (n,) say how much each sample counts. `InputError`: shapes that
    do not fit, a decision that is not finite, or labels that are all on one side of a machine. `NumericalError`: no
    maximum was found.
    """
    values, labels = _columns(decisions), np.asarray(codes)
    n, t = values.shape
    if labels.shape != (n,):
        raise InputError(f"codes have shape {labels.shape}; expected ({n},), one for each row of the decisions")
    if not np.isfinite(values).all():
        raise InputError(f"the decision of sample {int(np.argmin(np.isfinite(values).all(axis=1)))} is not finite")
    counts = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    if counts.shape != (n,) or not np.isfinite(counts).all() or (counts < 0.0).any():
        raise InputError(f"weights have shape {counts.shape}; expected ({n},), finite and none below zero")
    classes = 2 if t == 1 else t
    if n and not 0 <= labels.min() <= labels.max() < classes:
        raise InputError(f"codes go from {labels.min()} to {labels.max()}; {t} columns of decisions have {classes}")
    fits = [_rising(values[:, column], labels == (1 if t == 1 else column), counts, column) for column in range(t)]
    return Calibration(np.array([slope for slope, _ in fits]), np.array([offset for _, offset in fits]))


def _columns(decisions: FloatArray) -> FloatArray:
    values = np.asarray(decisions, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] == 0:
        raise InputError(f"decisions have shape {np.shape(decisions)}; expected (r, t)")
    return values


def _rising(f: FloatArray, positive: NDArray[np.bool_], weights: FloatArray, column: int) -> tuple[float, float]:
    """Slope and offset of greatest likelihood among slopes that are not negative."""
    slope, offset = _sigmoid(f, positive, weights, column)
    if slope >= 0.0:
        return slope, offset
    plus, minus = float(weights[positive].sum()), float(weights[~positive].sum())
    on, off = _targets(plus, minus)
    return 0.0, math.log((plus * on + minus * off) / (plus * (1.0 - on) + minus * (1.0 - off)))


def _targets(plus: float, minus: float) -> tuple[float, float]:
    """Platt's targets of weights on both sides, in place of one and zero."""
    return (plus + 1.0) / (plus + 2.0), 1.0 / (minus + 2.0)


def _sigmoid(f: FloatArray, positive: NDArray[np.bool_], weights: FloatArray, column: int) -> tuple[float, float]:
    """Slope and offset of greatest likelihood; Lin, Lin and Weng (2007), algorithm 1, on means instead of sums."""
    plus, minus = float(weights[positive].sum()), float(weights[~positive].sum())
    if plus <= 0.0 or minus <= 0.0:
        raise InputError(
            f"there are decisions for one side only of machine {column} (weights {plus:g} and {minus:g}); "
            "a calibration needs samples of the class and of the rest"
        )
    total = plus + minus
    share = weights / total
    target = np.where(positive, *_targets(plus, minus))
    # Sums of products, not BLAS: the same bits for any number of threads. The likelihood does not depend on the unit of
    # f, steps and tolerances do.
    scale = math.sqrt(float(np.sum(share * f**2))) or 1.0
    unit = f / scale
    slope, offset = 0.0, math.log((plus + 1.0) / (minus + 1.0))
    loss = _loss(slope * unit + offset, target, share)
    for _ in range(MOST_STEPS):
        p = expit(slope * unit + offset)
        residual, curvature = share * (p - target), share * (p * expit(-(slope * unit + offset)))
        gradient = np.array([np.sum(residual * unit), residual.sum()])
        if np.abs(gradient).max() <= TOLERANCE:
            return slope / scale, offset
        cross = float(np.sum(curvature * unit))
        first, last = float(np.sum(curvature * unit**2)) + RIDGE, float(curvature.sum()) + RIDGE
        determinant = first * last - cross * cross
        step = np.array([last * gradient[0] - cross * gradient[1], first * gradient[1] - cross * gradient[0]])
        step /= -determinant
        slopes = float(np.sum(gradient * step))
        length = 1.0
        while length >= LEAST_STEP:
            moved = _loss((slope + length * step[0]) * unit + offset + length * step[1], target, share)
            if moved < loss + 1e-4 * length * slopes:
                break
            length /= 2.0
        else:
            # No step goes down any further: this is the minimum, as far as rounding lets it be seen.
            if np.abs(gradient).max() <= math.sqrt(TOLERANCE):
                return slope / scale, offset
            break
        slope, offset, loss = slope + length * float(step[0]), offset + length * float(step[1]), moved
    if np.abs(gradient).max() <= math.sqrt(TOLERANCE):
        return slope / scale, offset
    raise NumericalError(
        f"the sigmoid of machine {column} was not found: the gradient is {np.abs(gradient).max():.2g} after "
        f"{MOST_STEPS} Newton steps"
    )


def _loss(z: FloatArray, target: FloatArray, share: FloatArray) -> float:
    """Mean cross entropy of p = expit(z): log(1 + exp(z)) - target z, without overflow."""
    return float(np.sum(share * (np.logaddexp(0.0, z) - target * z)))
