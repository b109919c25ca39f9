"""Gaussian processes in memory: likelihoods with gradients, the search for their maximum, posteriors, and their bounds.

Rasmussen and Williams, *Gaussian processes for machine learning*, 2006. The log marginal likelihood is algorithm 2.1
and equation 5.9: with Kbar = K + diag(noise) and alpha = Kbar^-1 y,

    log p = -y'alpha / 2 - log det Kbar / 2 - n log(2 pi) / 2, summed over targets,
    dlog p / dtheta = sum_ij W_ij dKbar_ij / dtheta,   W = (alpha alpha' - Kbar^-1) / 2.

Kbar, its factor, Kbar^-1 and W lie in one array after another, and the tree pulls W back to theta.

Laplace's approximation (algorithms 3.1, 3.2 and 5.1) is for labels 0 and 1 under the logistic likelihood. At the mode
f, with pi = 1 / (1 + exp(-f)), W = pi (1 - pi), B = I + W^1/2 K W^1/2, g = y - pi and a = K^-1 f, the derivative of
algorithm 5.1 is one sum over pairs:

    dlog Z / dtheta = sum_ij V_ij dK_ij / dtheta,   V = (a a' - R) / 2 + u g',   R = W^1/2 B^-1 W^1/2,
    u = (I - R K) s,   s_i = -(1 - (B^-1)_ii) (1 - 2 pi_i) / 2.

Its s is -Sigma_ii / 2 times the likelihood's third derivative, W_i (1 - 2 pi_i), where Sigma = (K^-1 + W)^-1 has the
diagonal (1 - (B^-1)_ii) / W_i: the values that algorithm 5.1 solves n systems for come with B^-1, which R needs anyway.

Bounds of the posterior: let k be the column of kernel values of a test sample and w = Kbar^-1 k. The exact mean is
k'Kbar^-1 y and the exact variance k(x, x) - k'Kbar^-1 k. Let alpha and w be the computed values, with any errors,
and

    r = y - Kbar alpha,   rho = k - Kbar w

their residuals, evaluated in float64 with a bound on their own rounding. Then, s > 0 being the least noise of a sample,

    k'Kbar^-1 y - k'alpha = w'r + rho'Kbar^-1 r,        |rho'Kbar^-1 r| <= |rho| |r| / s,
    k'Kbar^-1 k = w'k + w'rho + rho'Kbar^-1 rho,        0 <= rho'Kbar^-1 rho <= |rho|^2 / s.

Errors of first order meet a residual of the size of rounding, and 1 / s multiplies a term of second order, so that the
bounds stay small for s = 1e-10. `docs/proofs.md` counts the roundings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize
from scipy.special import erf, expit

from dkgp.errors import InputError, NumericalError
from dkgp.estimators.drop_in.tree import Entries, Node, Pair, filled, tree_of
from dkgp.estimators.scikit_learn import ConvergenceWarning, check_is_fitted
from dkgp.models.memory import mib
from dkgp.models.rounding import EVALUATION, LOST, UNIT, column_lengths, outward
from dkgp.models.tuning.dense_algebra import (
    factor,
    fill_upper,
    invert_factored,
    rank_update,
    solve_factored,
    solve_half,
)
from dkgp.models.tuning.tune import DEFAULT_SUBSET
from dkgp.operators.base import FloatArray

# Entries that overflow, or are no numbers, are refused or make bounds infinite; NumPy's warnings would say it twice.
OVERFLOWING = np.errstate(over="ignore", invalid="ignore", divide="ignore")

Objective: TypeAlias = Callable[..., Any]
"""objective(theta, eval_gradient=True) -> the value to minimise, with its gradient"""


def search_bytes(n: int, tree: Node) -> int:
    """Peak memory of an evaluation of the likelihood with its gradient: the kernel's arrays, and two matrices."""
    return 8 * n * n * (tree.arrays + 2)


def searched_rows(n: int, tree: Node, dense_bytes: int, rng: Any) -> Any:
    """Rows of the samples that hyperparameters are searched on: None for all, where they fit, else drawn.

    Warns of a subset with a `UserWarning` that says why.
    """
    needed = search_bytes(n, tree)
    if needed <= dense_bytes:
        return None
    count = max(2, min(DEFAULT_SUBSET, math.isqrt(dense_bytes * n * n // needed)))
    warnings.warn(
        f"hyperparameters are searched on {count:,} of {n:,} samples, drawn by `random_state`; on all of them an "
        f"evaluation would take {mib(needed)}, and the class attribute `dense_bytes` allows {mib(dense_bytes)}",
        stacklevel=4,
    )
    return np.sort(rng.choice(n, size=count, replace=False))


@dataclass(frozen=True)
class Evidence:
    """Samples in memory, whose likelihood is asked for under one kernel after another.

    Attributes
    ----------
    pair : Pair
        The training inputs with themselves.
    targets : (n, t) float64
    alpha : float or (n,) float64
        Noise that belongs to no kernel.
    """

    pair: Pair
    targets: FloatArray
    alpha: Entries

    @OVERFLOWING
    def __call__(self, tree: Node, *, gradient: bool) -> tuple[float, FloatArray]:
        """Log marginal likelihood, and its gradient (q,), of zeros where none is asked for.

        Minus infinity where the kernel matrix is not positive definite.
        """
        n, t = self.targets.shape
        pull = None
        if gradient:
            dense, pull = tree.linearised(self.pair)
            K = np.array(np.broadcast_to(dense, self.pair.shape), order="C")
        else:
            K = tree.matrix(self.pair)
        noise = np.asarray(tree.noise(self.pair.left) + self.alpha)
        matrix = with_noise(K, noise)
        if not factor(matrix):
            return -math.inf, np.zeros(tree.size)
        solution = solve_factored(matrix, np.asfortranarray(self.targets))
        value = -0.5 * float(np.vdot(self.targets, solution))
        value -= t * (float(np.log(np.diagonal(matrix)).sum()) + 0.5 * n * math.log(2.0 * math.pi))
        if pull is None:
            return value, np.zeros(tree.size)
        invert_factored(matrix)
        rank_update(matrix, solution, scale=0.5, keep=-0.5 * t)
        fill_upper(matrix)
        W = matrix.T  # as good, being symmetric, and row by row
        return value, pull(W) + tree.noise_pullback(self.pair.left, np.diagonal(W))


def with_noise(K: FloatArray, noise: FloatArray) -> FloatArray:
    """K + diag(noise) in the place of the symmetric K, in Fortran order."""
    K.reshape(-1)[:: len(K) + 1] += noise
    return K.T


def search(estimator: Any, tree: Node, evidence: Callable[..., tuple[float, FloatArray]], rng: Any) -> float:
    """Give `kernel_` the numbers of the highest evidence, and return that.

    From the kernel's own theta, and from `n_restarts_optimizer` drawn within its bounds.

    Raises
    ------
    InputError
        Starting points to be drawn between bounds that are not finite.
    """

    def objective(theta: FloatArray, eval_gradient: bool = True) -> Any:
        tree.move(theta)
        value, gradient = evidence(tree, gradient=eval_gradient)
        return (-value, -gradient) if eval_gradient else -value

    kernel, restarts = estimator.kernel_, estimator.n_restarts_optimizer
    bounds = np.asarray(kernel.bounds)
    first = kernel.theta
    if restarts > 0 and not np.isfinite(bounds).all():
        raise InputError(
            "Multiple optimizer restarts (n_restarts_optimizer>0) requires that all bounds are finite; got "
            f"{np.exp(bounds).tolist()}"
        )
    optima = []
    for number in range(restarts + 1):
        start = first if number == 0 else rng.uniform(bounds[:, 0], bounds[:, 1])
        optima.append(_minimum(objective, start, bounds, estimator.optimizer))
    kernel.theta, least = optima[int(np.argmin([value for _, value in optima]))]
    kernel._check_bounds_params()
    return -least


def asked_for(estimator: Any, theta: Any, gradient: bool) -> FloatArray | None:
    """The numbers (q,) whose likelihood is asked for; None where it is that of `kernel_`, which is known."""
    check_is_fitted(estimator)
    if theta is None and gradient:
        raise InputError("Gradient can only be evaluated for theta!=None")
    return None if theta is None else np.asarray(theta, dtype=np.float64)


def tree_under(kernel: Any, theta: FloatArray, *, clone: bool) -> Node:
    """The tree of a kernel with these numbers, which the kernel itself takes where it is not cloned."""
    if clone:
        return tree_of(kernel.clone_with_theta(theta))
    kernel.theta = theta
    return tree_of(kernel)


def _minimum(objective: Objective, start: FloatArray, bounds: FloatArray, optimizer: Any) -> tuple[FloatArray, float]:
    if callable(optimizer):
        theta, least = optimizer(objective, start, bounds=bounds)
        return np.asarray(theta), float(least)
    result = scipy.optimize.minimize(objective, start, method="L-BFGS-B", jac=True, bounds=bounds)
    if result.status != 0:
        warnings.warn(
            f"lbfgs failed to converge after {result.nit} iterations (status={result.status}): {result.message}. "
            "Scale the data, loosen or fix bounds, or start elsewhere",
            ConvergenceWarning,
            stacklevel=4,
        )
    return result.x, float(result.fun)


# Newton's steps end once the objective rises by less.
_LEAST_RISE = 1e-10
# The error functions whose sum scikit-learn takes for the logistic one (Williams and Barber, *Bayesian classification
# with Gaussian processes*, 1998): widths, and weights by which they meet it at 0, 0.6, 2, 3.5, 4.5 and infinity, by
# least squares. Rounded as there, so that a latent mean of zero is below one half, by 5e-9, and of the first class.
_WIDTHS = np.array([0.41, 0.4, 0.37, 0.44, 0.39])
_WEIGHTS = np.array([-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654])


@dataclass(frozen=True)
class Mode:
    """The posterior's mode.

    Attributes
    ----------
    latent : (n,) float64
        f, where Newton's method ended.
    probabilities, root, coefficients : (n,) float64
        pi and W^1/2 of the last step's start, and a, where f = K a.
    factor : (n, n) float64
        L of B = L L', in Fortran order; entries above its diagonal mean nothing.
    evidence : float
        log Z, the approximate log marginal likelihood.
    """

    latent: FloatArray
    probabilities: FloatArray
    root: FloatArray
    coefficients: FloatArray
    factor: FloatArray
    evidence: float


def posterior_mode(K: FloatArray, y: FloatArray, start: FloatArray, max_iterations: int) -> Mode:
    """Newton's method from `start`, at most so many steps (algorithm 3.1).

    Parameters
    ----------
    K : (n, n) float64
        Symmetric, with the kernel's own noise.
    y : (n,) float64
        0 or 1.
    start : (n,) float64

    Raises
    ------
    NumericalError
        Entries that are not finite, so that B has no factor.
    """
    n, f, signs, best = len(y), start, 2.0 * y - 1.0, -math.inf
    B = np.empty((n, n))
    for _ in range(max_iterations):
        pi = expit(f)
        W = pi * (1.0 - pi)
        root = np.sqrt(W)
        np.multiply(K, root, out=B)
        B *= root[:, None]
        lower = with_noise(B, np.ones(n))
        if not factor(lower):
            raise NumericalError("the kernel's matrix has entries that are not finite, or is far from definite")
        b = W * f + (y - pi)
        a = b - root * solve_factored(lower, (root * (K @ b))[:, None])[:, 0]
        f = K @ a
        evidence = -0.5 * float(a @ f) - float(np.logaddexp(0.0, -signs * f).sum())
        evidence -= float(np.log(np.diagonal(lower)).sum())
        mode = Mode(f, pi, root, a, lower, max(best, evidence))
        if evidence - best < _LEAST_RISE:
            break
        best = evidence
    return mode


def evidence_gradient(tree: Node, pair: Pair, pull: Any, K: FloatArray, y: FloatArray, mode: Mode) -> FloatArray:
    """Derivatives of log Z with respect to theta, (q,); takes the place of the mode's factor."""
    pi, root, inverse = mode.probabilities, mode.root, mode.factor
    invert_factored(inverse)
    fill_upper(inverse)
    s = -0.5 * (1.0 - np.diagonal(inverse)) * (1.0 - 2.0 * pi)
    R = inverse.T
    R *= root
    R *= root[:, None]
    u = s - R @ (K @ s)
    R *= -0.5
    R += np.outer(0.5 * mode.coefficients, mode.coefficients)
    R += np.outer(u, y - pi)
    return np.asarray(pull(R) + tree.noise_pullback(pair.left, np.diagonal(R)))


def average_logistic(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """E[1 / (1 + exp(-f))] for f normal, (r,) each, by error functions, whose averages are error functions.

    E[erf(l f)] = erf(l m / sqrt(1 + 2 l^2 v)); the sum of five is within 5e-4 of the logistic function's average.
    """
    widths = _WIDTHS[:, None]
    averages = erf(widths * mean / np.sqrt(1.0 + 2.0 * widths**2 * np.maximum(variance, 0.0)))
    return np.asarray(0.5 * (_WEIGHTS @ averages + _WEIGHTS.sum()))


# Entries of K(X*, X) that are held at a time.
_HELD_ENTRIES = 2**23

# By how much means may miss the exact ones (r, t), and intervals of the exact variances, (r,) each.
Bounds: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
# Means (r, t), variances with the kernel's own noise (r,), and bounds.
Predicted: TypeAlias = tuple[FloatArray, FloatArray | None, Bounds | None]


class DensePosterior:
    """The posterior of samples in memory.

    Parameters
    ----------
    tree : Node
        The kernel.
    evidence : Evidence
        The samples.

    Raises
    ------
    NumericalError
        The kernel matrix, noise included, is not numerically positive definite.

    Attributes
    ----------
    factor : (n, n) float64
        L of Kbar = L L', in Fortran order; entries above its diagonal mean nothing.
    coefficients : (n, t) float64
        alpha = Kbar^-1 y.
    """

    @OVERFLOWING
    def __init__(self, tree: Node, evidence: Evidence) -> None:
        self.tree, self.inputs, self.targets = tree, evidence.pair.left, evidence.targets
        noise = np.asarray(tree.noise(self.inputs) + evidence.alpha, dtype=np.float64)
        self.noise = np.broadcast_to(noise, (len(self.targets),))
        self.factor = with_noise(tree.matrix(evidence.pair), self.noise)
        if not factor(self.factor):
            raise NumericalError("the kernel matrix is not numerically positive definite")
        self.coefficients = solve_factored(self.factor, np.asfortranarray(self.targets))
        if not (np.isfinite(self.coefficients).all() and np.isfinite(np.diagonal(self.factor)).all()):
            raise NumericalError("the kernel matrix is not finite")

    def log_determinant(self) -> float:
        """log det Kbar."""
        return 2.0 * float(np.log(np.diagonal(self.factor)).sum())

    # ----------------------------------------------------------------------------------------------------- predictions

    def _batches(self, rows: Any) -> list[Any]:
        """Batches of test samples; a single one for a kernel that is called, which may depend on all of them."""
        step = max(64, _HELD_ENTRIES // max(1, len(self.targets)))
        if self.tree.unknown or len(rows) <= step:
            return [rows]
        return [rows[start : start + step] for start in range(0, len(rows), step)]

    @OVERFLOWING
    def mean(self, rows: Any) -> FloatArray:
        """Means at test samples: (r, t). Raises `NumericalError` where they are not finite, as all of these do."""
        batches = [self._columns(batch) @ self.coefficients for batch in self._batches(rows)]
        return finite_predictions(np.concatenate(batches))

    @OVERFLOWING
    def mean_and_variance(self, rows: Any) -> tuple[FloatArray, FloatArray]:
        """Means (r, t), and variances (r,) with the kernel's own noise, which rounding may have made negative."""
        means, variances = [], []
        for batch in self._batches(rows):
            columns = self._columns(batch)
            means.append(columns @ self.coefficients)
            solve_half(self.factor, columns.T)
            variances.append(self._prior(batch) - np.einsum("ij,ij->i", columns, columns))
        return finite_predictions(np.concatenate(means)), finite_predictions(np.concatenate(variances))

    @OVERFLOWING
    def mean_and_covariance(self, rows: Any) -> tuple[FloatArray, FloatArray]:
        """Means (r, t), and covariances of all pairs of test samples (r, r) with the kernel's own noise."""
        columns = self._columns(rows)
        mean = columns @ self.coefficients
        solve_half(self.factor, columns.T)
        covariance = self.tree.matrix(Pair(rows, rows))
        covariance -= columns @ columns.T
        covariance.reshape(-1)[:: len(rows) + 1] += self.tree.noise(rows)
        return finite_predictions(mean), finite_predictions(covariance)

    def _columns(self, rows: Any) -> FloatArray:
        """K(X*, X), (r, n), in C order."""
        return np.ascontiguousarray(self.tree.matrix(Pair(rows, self.inputs)))

    def _prior(self, rows: Any) -> FloatArray:
        return filled(self.tree.diagonal(rows) + self.tree.noise(rows), (len(rows),))

    # ---------------------------------------------------------------------------------------------------------- bounds

    def predicted(self, rows: Any, *, variance: bool, bounds: bool) -> Predicted:
        """Means at test samples and, on request, variances and bounds."""
        mean, variances = self.mean_and_variance(rows) if variance else (self.mean(rows), None)
        return mean, variances, self.bounds(rows) if bounds else None

    @OVERFLOWING
    def bounds(self, rows: Any) -> Bounds:
        """By how much means may miss the exact ones (r, t), and intervals of the exact variances, (r,) each.

        Infinite, and from zero to infinity, where nothing is proven: a kernel of a class that is not scikit-learn's
        own, one that need not be positive definite, or no noise at all.

        Raises `NumericalError`: an upper end is negative, so that the kernel is not positive definite.
        """
        pair, n = Pair(self.inputs, self.inputs), len(self.targets)
        K = self.tree.matrix(pair)
        sizes = np.abs(K)
        entry_error = self.tree.error(pair, self.tree.largest_diagonal(pair))
        noise_error = self.tree.noise_error(self.inputs) + self.noise  # one rounding more where alpha is added
        least = float(np.min(self.noise - 1.01 * UNIT * noise_error))
        if not least > 0.0:
            least = 0.0  # divided by zero, all ends are infinite
        errors = (entry_error, noise_error)
        y_residual, y_error = self._residual(K, sizes, self.coefficients, self.targets, errors, 0.0)
        ends: list[tuple[FloatArray, ...]] = []
        for batch in self._batches(rows):
            test = Pair(batch, self.inputs)
            columns = self._columns(batch).T  # (n, r)
            test_error = self.tree.error(test, self.tree.largest_diagonal(test))
            w = solve_factored(self.factor, np.asfortranarray(columns))
            rho, rho_error = self._residual(K, sizes, w, columns, errors, test_error)
            # |w'r|, entry by entry, and |rho| |r| / s.
            r_size, rho_size = np.abs(y_residual) + y_error, np.abs(rho) + rho_error
            r_length, rho_length = column_lengths(r_size), column_lengths(rho_size)
            second = rho_length[:, None] * (r_length[None, :] / least)
            products = (n + 6.0) * (np.abs(columns).T @ np.abs(self.coefficients))
            rounded = UNIT * (products + test_error * np.abs(self.coefficients).sum(axis=0))
            mean_error = EVALUATION * (np.abs(w).T @ r_size + second + rounded) + n * LOST
            # w'k as computed, and by how much the exact w'k + w'rho may miss it.
            quadratic = np.einsum("ij,ij->j", w, columns)
            slack = np.einsum("ij,ij->j", np.abs(w), rho_size) + UNIT * (
                (n + 6.0) * np.einsum("ij,ij->j", np.abs(w), np.abs(columns)) + test_error * np.abs(w).sum(axis=0)
            )
            prior, prior_error = self._prior(batch), prior_errors(self.tree, batch)
            slack = EVALUATION * (slack + prior_error + UNIT * (4.0 * prior + 4.0 * np.abs(quadratic))) + n * LOST
            lower = prior - quadratic - slack - EVALUATION * rho_length * (rho_length / least)
            upper = prior - quadratic + slack
            known = np.isfinite(upper) & np.isfinite(lower)
            if (known & (upper < 0.0)).any():
                raise NumericalError(
                    f"the exact variance at a test sample is at most {upper[known].min():.3g}, so that the kernel is "
                    "not positive definite. Choose another kernel, or ask for predictions without `return_bounds`"
                )
            ends.append(
                (
                    np.where(np.isnan(mean_error), math.inf, mean_error),
                    np.where(known, np.maximum(lower, 0.0), 0.0),
                    np.where(known, np.maximum(upper, 0.0), math.inf),
                )
            )
        error, low, high = (np.concatenate(parts) for parts in zip(*ends, strict=True))
        return error, low, high

    def _residual(
        self,
        K: FloatArray,
        sizes: FloatArray,
        solution: FloatArray,
        right: FloatArray,
        errors: tuple[float, FloatArray],
        right_error: float,
    ) -> tuple[FloatArray, FloatArray]:
        """B - Kbar A as computed, and a bound on its error, (n, t) each.

        n products and additions in any order, two more for the noise and one for B; entries of K, the noise and B with
        `errors` of their own.
        """
        entry_error, noise_error = errors
        n, noise, size = len(K), self.noise[:, None], np.abs(solution)
        residual = right - K @ solution - noise * solution
        terms = sizes @ size + noise * size
        rounded = (n + 6.0) * (terms + np.abs(right))
        inherited = entry_error * size.sum(axis=0)[None, :] + noise_error[:, None] * size + right_error
        return residual, EVALUATION * UNIT * (rounded + inherited) + n * LOST


def finite_predictions(values: FloatArray) -> FloatArray:
    """Return predictions of the rows; `NumericalError` where one is not finite."""
    wrong = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if wrong.any():
        raise NumericalError(
            f"the prediction at test sample {int(np.argmax(wrong))} is not finite: entries of the kernel overflow "
            "there, or are no numbers. Scale the inputs, or choose another kernel"
        )
    return values


def prior_errors(tree: Node, rows: Any) -> FloatArray:
    """Return bounds on the error of k(x, x) and its noise together, row by row: (r,)."""
    errors = tree.diagonal_error(rows) + tree.noise_error(rows)
    sizes = np.abs(tree.diagonal(rows)) + np.abs(tree.noise(rows))
    return EVALUATION * UNIT * filled(errors + sizes, (len(rows),)) + LOST


@OVERFLOWING
def prior_interval(tree: Node, rows: Any) -> tuple[FloatArray, FloatArray]:
    """Return an interval of the exact k(x, x) with its noise, (r,) each: infinite above where nothing is proven."""
    prior, error = filled(tree.diagonal(rows) + tree.noise(rows), (len(rows),)), prior_errors(tree, rows)
    lower, upper = outward(prior - error, prior + error)
    known = np.isfinite(upper)
    return np.where(known, np.maximum(lower, 0.0), 0.0), np.where(known, upper, math.inf)
