"""Probabilities of decisions: Platt's sigmoid, fitted to cross-validated decisions.

A machine that is trained by least squares has decisions f near -1 and +1, which are no probabilities. Platt (1999)
takes

    p(+1 | f) = 1 / (1 + exp(-(slope f + offset)))

and the slope and offset of greatest likelihood for targets that are held away from 0 and 1: (n+ + 1) / (n+ + 2) where
the label is +1, and 1 / (n- + 2) where it is -1, of n+ and n- samples. They have to be found on decisions at samples
that the machine was not trained on; at its own it is too sure of itself. Lin, Lin and Weng, *A note on Platt's
probabilistic outputs for support vector machines* (2007), do this without overflow, by Newton's iterations.

A slope below zero, of decisions that rank worse than chance, would turn the machine's labels round. Left-out decisions
of a machine that is nearly a constant are such: without a sample of its own class the constant moves away from it. The
likelihood is concave, so that the best slope that is not negative is then zero, and every probability the class's
share.

Several classes: each machine against the rest by itself, and the probabilities divided by their sum.

`calibrated` fits them to the left-out decisions of a subset. Left-out decisions of the exact LS-SVM have a closed form.
With C = [[Kbar, 1], [1', 0]] and M the leading n x n part of its inverse, alpha = M y, and the decision at a sample by
all others is y_i - alpha_i / M_ii (Cawley, *Leave-one-out cross-validation based model selection criteria for weighted
LS-SVMs*, 2006). With A = Kbar^-1 and S = 1'A1, M = A - (A1)(A1)'/S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.models.classification.labels import Labels
from dkgp.models.tuning.dense_algebra import invert
from dkgp.operators.base import Variances, noise_at

MOST_STEPS = 100
# Of the mean gradient, on decisions of unit root mean square.
TOLERANCE = 1e-12
# Lin, Lin and Weng add this to the Hessian's diagonal, here to that of a mean.
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
            return np.concatenate([scipy.special.expit(-z), scipy.special.expit(z)], axis=1)
        # Divided by the largest first: where all classes are far from likely, there is still one that is nearest.
        logs = -np.logaddexp(0.0, -z)
        likelihoods = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(likelihoods / likelihoods.sum(axis=1, keepdims=True))


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
        p = scipy.special.expit(slope * unit + offset)
        residual, curvature = share * (p - target), share * (p * scipy.special.expit(-(slope * unit + offset)))
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
    """Mean cross entropy of p = scipy.special.expit(z): log(1 + exp(z)) - target z, without overflow."""
    return float(np.sum(share * (np.logaddexp(0.0, z) - target * z)))


# Of each class, where it has so many.
LEAST_OF_A_CLASS = 5


def calibrated(
    dataset: Dataset,
    labels: Labels,
    kernel: Kernel,
    noise: Variances,
    fit_intercept: bool = True,
    subset: int = 2000,
    seed: int = 0,
) -> Calibration:
    """Fit the map from decisions to probabilities to left-out decisions of a subset.

    The exact LS-SVM of the subset, with the same kernel and noise, tells each of its samples by all others
    (`left_out_decisions`): decisions that have not seen their labels, as those of new samples have not. Errors are
    those of `drawn_by_class` and `left_out_decisions`.
    """
    indices = drawn_by_class(labels, subset, seed)
    inputs, drawn = dataset.input_rows(indices), labels.subset(indices)
    with single_threaded_blas():
        evaluator = TileEvaluator(kernel, "double")
        rows = evaluator.prepare(inputs)
        matrix = np.asfortranarray(evaluator.tile(rows, rows))
        np.einsum("ii->i", matrix)[:] += noise_at(noise, indices)
        decisions = left_out_decisions(matrix, drawn.signs(), fit_intercept=fit_intercept)
    # A class that is rare has more samples in the subset than its share; probabilities are those of all samples.
    weights = (labels.counts() / labels.n_samples / (drawn.counts() / drawn.n_samples))[drawn.codes]
    return fit_calibration(decisions, drawn.codes, weights)


def left_out_decisions(matrix: FloatArray, signs: FloatArray, *, fit_intercept: bool = True) -> FloatArray:
    """Decisions (n, t) at each sample by all others.

    `matrix` is Kbar in Fortran order, and overwritten; `signs` (n, t) are labels, -1 and 1. `NumericalError`: Kbar is
    not numerically positive definite, or without a sample nothing is left to tell the intercept by.
    """
    n, t = signs.shape
    inverse = invert(matrix, np.asfortranarray(np.column_stack([signs, np.ones(n)])))
    if inverse is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite in float64, so that no sample of it can be left "
            "out. Raise the noise variance"
        )
    solved = inverse[0]
    alpha, diagonal = np.array(solved[:, :t]), np.diagonal(matrix).copy()
    if fit_intercept:
        ones, total = solved[:, t], float(solved[:, t].sum())
        alpha -= np.outer(ones, solved[:, :t].sum(axis=0) / total)
        diagonal -= ones**2 / total
    if not (diagonal > 0.0).all():
        raise NumericalError("a sample that is left out leaves nothing to tell the intercept by; take more samples")
    return np.asarray(signs - alpha / diagonal[:, None])


def drawn_by_class(labels: Labels, size: int, seed: int) -> IntArray:
    """Sorted indices of a random subset in which classes have their shares, and a few samples each at least.

    `InputError` for fewer than 4 samples, or a negative seed.
    """
    if size < 4:
        raise InputError(f"a subset of {size} samples is too small to draw from classes; expected at least 4")
    if seed < 0:
        raise InputError(f"the seed must not be negative; got {seed}")
    if size >= labels.n_samples:
        return np.arange(labels.n_samples)
    generator = np.random.default_rng([seed, 3])
    counts = labels.counts()
    sizes = np.minimum(counts, np.maximum(LEAST_OF_A_CLASS, np.rint(counts * (size / labels.n_samples)))).astype(int)
    parts = [
        generator.choice(np.flatnonzero(labels.codes == code), size=int(count), replace=False)
        for code, count in enumerate(sizes)
    ]
    return np.sort(np.concatenate(parts))
