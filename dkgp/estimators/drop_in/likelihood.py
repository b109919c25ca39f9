"""The log marginal likelihood in memory, its gradient, and the search for its maximum.

Rasmussen and Williams, *Gaussian processes for machine learning*, 2006, algorithm 2.1 and equation 5.9. With
Kbar = K + diag(noise) and alpha = Kbar^-1 y,

    log p = -y'alpha / 2 - log det Kbar / 2 - n log(2 pi) / 2, summed over targets,
    dlog p / dtheta = sum_ij W_ij dKbar_ij / dtheta,   W = (alpha alpha' - Kbar^-1) / 2.

Kbar, its factor, Kbar^-1 and W lie in one array after another, and the tree pulls W back to theta.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize

from dkgp.errors import InputError
from dkgp.estimators.drop_in.leaves import tree_of
from dkgp.estimators.drop_in.tree import Entries, Node, Pair
from dkgp.estimators.scikit_learn import ConvergenceWarning, check_is_fitted
from dkgp.models.tuning.dense_algebra import factor, fill_upper, invert_factored, rank_update, solve_factored
from dkgp.operators.base import FloatArray

# Entries that overflow, or are no numbers, are refused or make bounds infinite; NumPy's warnings would say it twice.
OVERFLOWING = np.errstate(over="ignore", invalid="ignore", divide="ignore")

Objective: TypeAlias = Callable[..., Any]
"""objective(theta, eval_gradient=True) -> what is to be minimised, with its gradient"""


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
