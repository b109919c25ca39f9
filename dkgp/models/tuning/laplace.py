"""Evidence of labels in Laplace's approximation, its mode and its gradient, by dense algebra on a subset.

Logit and probit: latent functions that are independent. For labels y of -1 and 1 with the losses
l(y, f) = -log p(y | f), a Gaussian process with covariance K, and each column of labels by itself (one against the
rest), with g = -l'(y, f), W = diag l''(y, f) and B = I + W^1/2 K W^1/2:

    mode:      f = K a, a = g, the maximum of Psi(f) = -f'K^-1 f / 2 - sum_i l(y_i, f_i), by Newton's iterations
               a <- b - W^1/2 B^-1 W^1/2 K b,  b = W f + g                       (Rasmussen and Williams 2006, Alg. 3.1)
    evidence:  log q(y) = Psi(f) - log|B| / 2                                                           (equation 3.32)
    gradient:  sum_ij G_ij dK_ij,  G = [a a' - R + u a' + a u'] / 2,  R = W^1/2 B^-1 W^1/2,
               u = (I - R K) s,  s_i = -S_ii l'''_i / 2,  S = (K^-1 + W)^-1                                  (Alg. 5.1)

K^-1 is not needed, and neither is S: S_ii W_ii = 1 - (B^-1)_ii, so that s_i = -(1 - (B^-1)_ii) d log W_i / df / 2. The
gradient takes the inverse of B alone; losses whose curvature underflows do no harm. Samples may have weights w_i:
w_i l stands for l everywhere.

Softmax: latent functions that are coupled. For C classes with one covariance K, one-hot labels y_c, probabilities pi_c
and D_c = diag(w pi_c), w the samples' weights, the curvature of sample i is w_i (diag(pi_i) - pi_i pi_i'). With

    B_c = I + D_c^1/2 K D_c^1/2,  E_c = D_c^1/2 B_c^-1 D_c^1/2,  S = sum_c E_c = M M',  V_c = M^-1 E_c

all matrices of order C n reduce to matrices of order n (Rasmussen and Williams 2006, Alg. 3.3 and 3.4):

    R = (W^-1 + K)^-1,  R_cc' = E_c delta_cc' - V_c' V_c',    log|I + K W| = sum_c log|B_c| + log|S| - sum_i log w_i.

The gradient of the evidence is one weighted sum of dK: with a_c = w (y_c - pi_c), f_c = K a_c at the mode,

    G = 1/2 sum_c [a_c a_c' - R_cc + u_c a_c' + a_c u_c'],   u = s - R K s,
    s_ic = -1/2 w_i sum_b P_bc (T_bb - 2 (T pi)_b),   P = diag(pi) - pi pi',   T = K - K R K, the block of sample i.

It holds 2 C + 5 matrices of order n. Larger problems take classes one against the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import scipy

from dkgp.data.types import FloatArray
from dkgp.errors import NumericalError
from dkgp.models.tuning.dense_algebra import (
    add_outer_products,
    factor,
    fill_upper,
    invert_factored,
    rank_update,
    solve_factored,
    solve_half,
    symmetric_product,
)
from dkgp.models.tuning.expectation import averaged_sigmoid, averaged_softmax
from dkgp.models.tuning.objectives import DenseObjective, ValueAndGradient
from dkgp.solvers.losses import LabelLoss, LogisticLoss, Loss, ProbitLoss

LabelLikelihood: TypeAlias = Literal["logit", "probit", "softmax"]
LEAST_SUM = 1e-300
MOST_STEPS, MOST_HALVINGS = 100, 40
# Least relative gain of Psi: a full step gains half the squared distance to the mode, in the norm of K^-1 + W.
LEAST_GAIN = 1e-14

Mode = TypeVar("Mode")


@dataclass(frozen=True)
class ColumnMode:
    """The mode of one column of labels."""

    # (n,): f and a, f = K a
    values: FloatArray
    alpha: FloatArray
    curvature: FloatArray  # (n,): W at the mode, weights included
    objective: float  # Psi
    steps: int  # Newton's


def newton_ascent(
    matrix: FloatArray,
    psi: Callable[[FloatArray, FloatArray], float],
    zero: FloatArray,
    start: FloatArray | None,
    expand: Callable[[FloatArray, FloatArray, float, int], tuple[Mode, FloatArray] | None],
) -> Mode | None:
    """Climb Psi from zero, or a better `start`, by Newton's steps, each half as far until Psi does not fall.

    `psi` takes coefficients a and values f = K a. `expand` takes these, Psi there and the number of steps; it returns
    the mode, if this is it, and the target of Newton's step. It returns None if a matrix is not positive definite, and
    then the result is None.

    The Newton methods of `dkgp.solvers` serve other problems: here a step is exact, by factors that the evidence and
    its gradient need too, so that halving it is the whole line search.
    """
    alpha = values = zero
    objective = psi(zero, zero)
    if start is not None:
        image = matrix @ start
        if (better := psi(start, image)) > objective:
            alpha, values, objective = start, image, better
    for steps in range(MOST_STEPS + 1):
        expanded = expand(alpha, values, objective, steps) if math.isfinite(objective) else None
        if expanded is None:
            return None
        mode, target = expanded
        towards, change = target - alpha, matrix @ target - values
        length, reached = 1.0, psi(alpha + towards, values + change)
        for _ in range(MOST_HALVINGS):
            if reached >= objective:
                break
            length *= 0.5
            reached = psi(alpha + length * towards, values + length * change)
        # The factors belong to the point before the step: the last step is not taken.
        if steps == MOST_STEPS or reached - objective <= LEAST_GAIN * max(1.0, abs(objective)):
            return mode
        alpha, values, objective = alpha + length * towards, values + length * change, reached
    raise AssertionError("unreachable")


def column_mode(
    matrix: FloatArray,
    targets: FloatArray,
    loss: Loss,
    work: FloatArray,
    weights: FloatArray | None = None,
    alpha: FloatArray | None = None,
) -> ColumnMode | None:
    """Return the mode, and leave the lower Cholesky factor of its B in `work`; None if B is not positive definite.

    `matrix` (n, n): K, both triangles. `targets` (n,): labels -1 and 1. `work` (n, n): in Fortran order; overwritten.
    `weights` (n,): those of the samples. `alpha` (n,): a start, if it is better than zero.
    """
    w = np.ones(len(targets)) if weights is None else weights

    def psi(coefficients: FloatArray, values: FloatArray) -> float:
        return float(-0.5 * coefficients @ values - w @ loss.value(targets, values))

    def expand(a: FloatArray, f: FloatArray, objective: float, steps: int) -> tuple[ColumnMode, FloatArray] | None:
        curvature = w * loss.curvature(targets, f)
        root = np.sqrt(curvature)
        np.multiply(matrix, root[:, None], out=work)
        np.multiply(work, root, out=work)
        np.einsum("ii->i", work)[:] += 1.0
        if not factor(work):
            return None
        b = curvature * f - w * loss.slope(targets, f)
        right = np.asfortranarray((root * (matrix @ b))[:, None])
        return ColumnMode(f, a, curvature, objective, steps), b - root * solve_factored(work, right)[:, 0]

    return newton_ascent(matrix, psi, np.zeros(len(targets)), alpha, expand)


def latent_predictions(
    mode: ColumnMode, lower: FloatArray, cross: FloatArray, prior: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of the latent function at r samples (Alg. 3.2): (r,) both.

    `lower` (n, n): Cholesky's factor of B, as `column_mode` leaves it. `cross` (n, r): k(x_i, x). `prior` (r,): k(x,
    x).
    """
    half = np.asfortranarray(cross * np.sqrt(mode.curvature)[:, None])
    solve_half(lower, half)
    return cross.T @ mode.alpha, np.maximum(prior - np.einsum("ij,ij->j", half, half), 0.0)


class SeenSamples(NamedTuple):
    """Kernel matrices of n labelled samples, and of r samples to classify."""

    matrix: FloatArray  # (n, n): K
    targets: FloatArray  # (n, t)
    weights: FloatArray | None  # (n,)
    cross: FloatArray  # (n, r): k(x_i, x)
    prior: FloatArray  # (r,): k(x, x)


class LabelEvidence(DenseObjective):
    """log q(Y | X, theta) of labels; the last parameter, the noise, has no effect."""

    @classmethod
    def probabilities(cls, samples: SeenSamples) -> FloatArray | None:
        """Return averaged probabilities of the classes at r samples, (r, C); None if K is not positive definite."""
        raise NotImplementedError


class _ColumnEvidence(LabelEvidence):
    """The evidence of columns of signs, one class against the rest, added up."""

    n_matrices = 3
    loss: ClassVar[LabelLoss]
    likelihood: ClassVar[Literal["logit", "probit"]]

    @classmethod
    def probabilities(cls, samples: SeenSamples) -> FloatArray | None:
        """Return averaged probabilities; those of several columns are divided by their sum."""
        matrix, targets, weights, cross, prior = samples
        work = np.empty(matrix.shape, order="F")
        positive, negative = np.empty((2, len(prior), targets.shape[1]))
        for column in range(targets.shape[1]):
            mode = column_mode(matrix, targets[:, column], cls.loss, work, weights)
            if mode is None:
                return None
            latent = latent_predictions(mode, work, cross, prior)
            positive[:, column], negative[:, column] = averaged_sigmoid(cls.likelihood, *latent)
        if targets.shape[1] == 1:
            return np.concatenate([negative, positive], axis=1)
        return np.asarray(positive / np.maximum(positive.sum(axis=1, keepdims=True), LEAST_SUM))

    @staticmethod
    def independent(targets: FloatArray, weights: FloatArray | None = None) -> float:
        """Return the log likelihood of each column's class shares."""
        counts = np.ones(len(targets)) if weights is None else weights
        total = float(counts.sum())
        shares = (counts @ (targets > 0.0)) / total
        return float(total * (scipy.special.xlogy(shares, shares) + scipy.special.xlog1py(1 - shares, -shares)).sum())

    def __call__(self, parameters: FloatArray) -> ValueAndGradient:
        """Take a Cholesky factorisation for each of Newton's steps, and an inverse, for each column."""
        matrix, work, total = self._kernel_matrix, self._work, self._more[0]
        self._family.matrix(parameters[:-1], matrix)
        value, reached = 0.0, np.empty(self._targets.shape)
        for column, targets in enumerate(self._targets.T):
            start = None if self.start is None else self.start[:, column]
            mode = column_mode(matrix, targets, self.loss, work, self._weights, start)
            if mode is None:
                return None
            reached[:, column] = mode.alpha
            value += mode.objective - float(np.log(np.diagonal(work)).sum())
            self._slope_weights(mode, targets, work)
            if column == 0:
                np.copyto(total, work)
            else:
                total += work
        if not math.isfinite(value):
            return None
        self.reached = reached
        return value, np.append(self._family.contract(parameters[:-1], matrix, total), 0.0)

    def _slope_weights(self, mode: ColumnMode, targets: FloatArray, work: FloatArray) -> None:
        """Replace the factor of a column's B by its G, in the lower triangle."""
        if not invert_factored(work):
            raise NumericalError("B = I + W^1/2 K W^1/2 has a zero on the diagonal of its factor; this cannot be")
        spread = 1.0 - np.diagonal(work)
        s = -0.5 * spread * self.loss.log_curvature_slope(targets, mode.values)
        root = np.sqrt(mode.curvature)
        work *= root[:, None]
        work *= root
        right = np.asfortranarray((self._kernel_matrix @ s)[:, None])
        u = np.asfortranarray(s[:, None] - symmetric_product(work, right))
        a = np.asfortranarray(mode.alpha[:, None])
        rank_update(work, a, scale=0.5, keep=-0.5)
        add_outer_products(work, u, a, scale=0.5)


class LogitEvidence(_ColumnEvidence):
    """The evidence of the logistic likelihood."""

    loss = LogisticLoss()
    likelihood = "logit"


class ProbitEvidence(_ColumnEvidence):
    """The evidence of the probit likelihood."""

    loss = ProbitLoss()
    likelihood = "probit"


# Weight of a sample that does not count; its logarithm must exist.
LEAST_WEIGHT = 1e-12


@dataclass(frozen=True)
class SoftmaxMode:
    """The mode, with factors of its curvature for the evidence and predictions."""

    # (n, C): f, a and pi; f = K a
    values: FloatArray
    alpha: FloatArray
    probabilities: FloatArray
    inner: FloatArray  # (C, n, n): E_c
    root: FloatArray  # (n, n): M
    # Psi, and log|I + K W|
    objective: float
    log_determinant: float
    steps: int  # Newton's

    def whitened(self, right: FloatArray) -> FloatArray:
        """Return M^-1 times the right side (n, t)."""
        return np.asarray(scipy.linalg.solve_triangular(self.root, right, lower=True, check_finite=False))

    def solved(self, right: FloatArray) -> FloatArray:
        """Return R times the right side (n, C)."""
        separate = np.column_stack([inner @ column for inner, column in zip(self.inner, right.T, strict=True)])
        shared = scipy.linalg.cho_solve((self.root, True), separate.sum(axis=1), check_finite=False)
        return np.asarray(separate - np.column_stack([inner @ shared for inner in self.inner]))


def softmax_mode(
    matrix: FloatArray, one_hot: FloatArray, weights: FloatArray | None = None, alpha: FloatArray | None = None
) -> SoftmaxMode | None:
    """Return the mode, by Newton's iterations; None if a matrix is not positive definite.

    `matrix` (n, n): K, both triangles. `one_hot` (n, C). `weights` (n,). `alpha` (n, C): a start, if it is
    better than zero.
    """
    n, n_classes = one_hot.shape
    w = np.ones(n) if weights is None else np.maximum(weights, LEAST_WEIGHT)

    def psi(coefficients: FloatArray, values: FloatArray) -> float:
        fit = np.einsum("ic,ic->i", one_hot, values) - scipy.special.logsumexp(values, axis=1)
        return float(-0.5 * np.vdot(coefficients, values) + w @ fit)

    inner, root = np.empty((n_classes, n, n)), np.empty((n, n))

    def expand(a: FloatArray, f: FloatArray, objective: float, steps: int) -> tuple[SoftmaxMode, FloatArray] | None:
        probabilities = scipy.special.softmax(f, axis=1)
        logs = _inner(matrix, w[:, None] * probabilities, inner)
        np.sum(inner, axis=0, out=root)
        lower = np.asfortranarray(root)
        if logs is None or not factor(lower):
            return None
        determinant = logs + 2.0 * float(np.log(np.diagonal(lower)).sum()) - float(np.log(w).sum())
        mode = SoftmaxMode(f, a, probabilities, inner, np.tril(lower), objective, determinant, steps)
        mean = np.einsum("ic,ic->i", probabilities, f)
        b = w[:, None] * (probabilities * (f - mean[:, None]) + one_hot - probabilities)
        return mode, b - mode.solved(matrix @ b)

    return newton_ascent(matrix, psi, np.zeros((n, n_classes)), alpha, expand)


def _inner(matrix: FloatArray, curvature: FloatArray, out: FloatArray) -> float | None:
    """Fill in E_c of all classes; return the sum of log|B_c|, or None if one is not positive definite."""
    logs = 0.0
    for column, target in zip(curvature.T, out, strict=True):
        root = np.sqrt(column)
        work = np.asfortranarray(matrix * root * root[:, None])
        np.einsum("ii->i", work)[:] += 1.0
        if not factor(work):
            return None
        logs += 2.0 * float(np.log(np.diagonal(work)).sum())
        if not invert_factored(work):
            return None
        fill_upper(work)
        np.multiply(work, root, out=target)
        target *= root[:, None]
    return logs


class SoftmaxEvidence(LabelEvidence):
    """The evidence of three or more classes that softmax couples; targets (n, C) are signs."""

    n_matrices = 2

    @classmethod
    def matrices(cls, n_targets: int) -> int:
        """Return the number of matrices of order n that an evaluation holds."""
        return 2 * n_targets + 5

    @staticmethod
    def independent(targets: FloatArray, weights: FloatArray | None = None) -> float:
        """Return the log likelihood of the classes' shares."""
        counts = np.ones(len(targets)) if weights is None else weights
        totals = counts @ (targets > 0.0)
        return float((scipy.special.xlogy(totals, totals / totals.sum())).sum())

    @classmethod
    def probabilities(cls, samples: SeenSamples) -> FloatArray | None:
        """Return averaged probabilities, by `averaged_softmax`."""
        matrix, targets, weights, cross, prior = samples
        mode = softmax_mode(matrix, (targets > 0.0).astype(np.float64), weights)
        if mode is None:
            return None
        covariance = np.empty((len(prior), len(mode.inner), len(mode.inner)))
        halves = [mode.whitened(inner @ cross) for inner in mode.inner]
        for c, inner in enumerate(mode.inner):
            for other in range(c + 1):
                shared = np.einsum("ij,ij->j", halves[c], halves[other])
                covariance[:, c, other] = covariance[:, other, c] = shared
            covariance[:, c, c] += prior - np.einsum("ij,ij->j", cross, inner @ cross)
        return averaged_softmax(cross.T @ mode.alpha, covariance)

    def __call__(self, parameters: FloatArray) -> ValueAndGradient:
        """Take the time of two inverses a class for each of Newton's steps, and of four products."""
        matrix, total = self._kernel_matrix, self._work
        self._family.matrix(parameters[:-1], matrix)
        one_hot = (self._targets > 0.0).astype(np.float64)
        mode = softmax_mode(matrix, one_hot, self._weights, self.start)
        if mode is None:
            return None
        value = mode.objective - 0.5 * mode.log_determinant
        if not math.isfinite(value):
            return None
        self.reached = mode.alpha
        w = np.ones(len(one_hot)) if self._weights is None else np.maximum(self._weights, LEAST_WEIGHT)
        total[...] = 0.0
        spread, halves = np.empty((len(one_hot), len(mode.inner), len(mode.inner))), np.empty_like(mode.inner)
        for c, inner in enumerate(mode.inner):
            half = mode.whitened(inner)
            total += 0.5 * (half.T @ half - inner)
            np.matmul(half, matrix, out=halves[c])
            for other in range(c + 1):
                shared = np.einsum("ij,ij->j", halves[c], halves[other])
                spread[:, c, other] = spread[:, other, c] = shared
            spread[:, c, c] += np.diagonal(matrix) - np.einsum("ij,ij->j", matrix, inner @ matrix)
        pi = mode.probabilities
        towards = np.einsum("icc->ic", spread) - 2.0 * np.einsum("icb,ib->ic", spread, pi)
        s = -0.5 * w[:, None] * pi * (towards - np.einsum("ic,ic->i", pi, towards)[:, None])
        u = s - mode.solved(matrix @ s)
        total += 0.5 * (mode.alpha @ mode.alpha.T + u @ mode.alpha.T + mode.alpha @ u.T)
        return value, np.append(self._family.contract(parameters[:-1], matrix, total), 0.0)


# Evidence of labels, in Laplace's approximation.
LABEL_OBJECTIVES: dict[LabelLikelihood, type[LabelEvidence]] = {
    "logit": LogitEvidence,
    "probit": ProbitEvidence,
    "softmax": SoftmaxEvidence,
}
