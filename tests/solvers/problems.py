"""Small problems with a dense answer, and ways to run a solver on them round by round."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.operators import ArrayInputs, BlockedKernelOperator, DenseKernelOperator
from dkgp.solvers import GreedyBlockCoordinateDescent
from dkgp.solvers.block_descent.gbcd import BlockState


@dataclass
class Problem:
    """Kbar alpha = y with n small enough for the dense path."""

    kernel: SquaredExponential
    noise_variance: float
    X: np.ndarray
    y: np.ndarray

    @property
    def n(self) -> int:
        return len(self.X)

    @cached_property
    def matrix(self) -> np.ndarray:
        """Kbar."""
        return self.kernel(self.X, self.X) + self.noise_variance * np.eye(self.n)

    @cached_property
    def solution(self) -> np.ndarray:
        """The answer, by Cholesky in float64."""
        factor = np.linalg.cholesky(self.matrix)
        return np.linalg.solve(factor.T, np.linalg.solve(factor, self.y))

    def gradient(self, alpha: np.ndarray) -> np.ndarray:
        return self.matrix @ alpha - self.y

    def objective(self, alpha: np.ndarray) -> float:
        """Equation (3), summed over targets."""
        return float(np.sum(alpha * (0.5 * self.matrix @ alpha - self.y)))

    def risk(self, alpha: np.ndarray) -> float:
        """||y - K alpha||^2 / 2 + s2 alpha' K alpha / 2, summed over targets."""
        function = self.matrix @ alpha - self.noise_variance * alpha
        return float(0.5 * np.sum((self.y - function) ** 2) + 0.5 * self.noise_variance * np.sum(alpha * function))

    def dense(self) -> DenseKernelOperator:
        return DenseKernelOperator(self.kernel, self.noise_variance, self.X)

    def blocked(self, executor: LocalExecutor, **options: Any) -> BlockedKernelOperator:
        return BlockedKernelOperator(self.kernel, self.noise_variance, ArrayInputs(self.X), executor, **options)


def smooth_problem(
    n: int = 300,
    d: int = 3,
    *,
    targets: int = 1,
    noise_variance: float = 0.05,
    gamma: float = 0.3,
    variance: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Smooth functions of Gaussian inputs with noise; sample i is the same whatever the number of targets."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    waves = np.random.default_rng(seed + 1).standard_normal((d, 8))
    noise = np.random.default_rng(seed + 2).standard_normal((n, 8))
    y = np.sin(X @ waves[:, :targets]) + np.sqrt(noise_variance) * noise[:, :targets]
    return Problem(SquaredExponential(gamma=(gamma,) * d, variance=variance), noise_variance, X, y)


def arm_problem(n: int = 1500, seed: int = 0) -> Problem:
    """Like kin40k: how far the end of an eight-jointed arm is from a target, nearly noise-free."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(-np.pi / 4, np.pi / 4, (n, 8))
    reach = np.cumsum(angles, axis=1)
    distance = np.hypot(np.cos(reach).sum(axis=1) - 4.0, np.sin(reach).sum(axis=1))
    distance = (distance - distance.mean()) / distance.std()
    y = distance + 0.1 * rng.standard_normal(n)
    return Problem(SquaredExponential(gamma=(0.1,) * 8), 0.01, angles / angles.std(axis=0), y[:, None])


class StubbornRound:
    """A round that is never done before it is waited for."""

    def __init__(self, pending: Any) -> None:
        self._pending = pending

    def done(self) -> bool:
        return False

    def result(self) -> Any:
        return self._pending.result()


class OverlappingExecutor(LocalExecutor):
    """Behaves towards the solver as a cluster does: the next selection runs while every round is under way.

    `overlap_evaluations` is how much of the coming gradient the solver may compute itself meanwhile.
    """

    overlaps = True
    overlap_evaluations = sys.maxsize

    def submit(self, *arguments: Any) -> Any:
        return StubbornRound(super().submit(*arguments))


def rounds(solver: GreedyBlockCoordinateDescent, operator: Any, y: np.ndarray, count: int) -> Iterator[BlockState]:
    """States before the first round and after each of `count` rounds of the bare method: no refresh, no stopping."""
    chosen = solver.resolved(operator.n, operator.kernel.n_features, y.shape[1])
    state = chosen.start(operator, y)
    yield snapshot(state)
    for _ in range(count):
        chosen.advance(operator, state)
        yield snapshot(state)


def snapshot(state: BlockState) -> BlockState:
    """A state's numbers as they are now."""
    shown = copy.copy(state)
    del shown.blocks
    return copy.deepcopy(shown)
