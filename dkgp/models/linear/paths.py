"""Paths of A w = b by cardinality, alike for the pursuit and its rivals: weights just before one more would be used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.pursuit.engine import PursuitSettings, pursue
from dkgp.solvers.pursuit.rivals import HomotopyPath, homotopy, matching_pursuit
from dkgp.solvers.pursuit.systems import PursuitSystem

METHODS = {
    "scdp": "sparse conjugate directions pursuit: the feature of the largest gradient joins, all that joined are "
    "refitted",
    "omp": "orthogonal matching pursuit, another way to the same path",
    "mp": "matching pursuit: one weight a step, nothing is refitted",
    "lars": "least angle regression",
    "lasso": "least squares with a penalty on the sum of |weights|, as it falls",
}
# Steps of matching pursuit, and the share of the first gradient at which it is done: it only ever comes nearer.
MOST_STEPS, SETTLED = 20_000, 1e-6


@dataclass(frozen=True)
class LinearPath:
    """Weights by cardinality."""

    # Features with a weight, by cardinality 0, 1, ...; fewer than that many where two joined, or one left, at once
    supports: list[IndexArray]
    weights: list[FloatArray]
    reason: str  # why it ends, in words

    @property
    def longest(self) -> int:
        """The last cardinality."""
        return len(self.supports) - 1

    def at(self, k: int) -> tuple[IndexArray, FloatArray]:
        """Features and weights of cardinality k; the last of the path where it is shorter."""
        k = min(k, self.longest)
        return self.supports[k], self.weights[k]

    def solution(self, k: int, size: int) -> FloatArray:
        """w of cardinality k with its zeros: (size,)."""
        full = np.zeros(size)
        support, weights = self.at(k)
        full[support] = weights
        return full

    def errors(self, A: FloatArray, b: FloatArray, square: float, of: IndexArray) -> FloatArray:
        """Squared errors y'y - 2 w'b + w'A w by cardinality, of A (q, q) and b (q,) of the features `of`, sorted."""
        errors = np.empty(len(self.supports))
        for k, (support, weights) in enumerate(zip(self.supports, self.weights, strict=True)):
            places = np.searchsorted(of, support)
            quadratic = weights @ A[np.ix_(places, places)] @ weights
            errors[k] = square - 2.0 * (weights @ b[places]) + quadratic
        return np.maximum(errors, 0.0)

    def used(self) -> IndexArray:
        """All features that have a weight somewhere on it, sorted."""
        return np.unique(np.concatenate(self.supports)).astype(np.intp)


def follow(
    method: str, system: PursuitSystem, rhs: FloatArray, most: int, *, candidates: int | None = None, seed: int = 0
) -> LinearPath:
    """Follow a path up to a number of nonzero weights.

    `method`: of `METHODS`. `system`, `rhs`: as of `dkgp.solvers.pursue`, with one right-hand side. `candidates`,
    `seed`: of `scdp`: as of `PursuitSettings`.

    Raises `InputError`, `MemoryBudgetError`: as of `dkgp.solvers.pursue`.
    """
    if method in ("scdp", "omp"):
        path = pursue(system, rhs, PursuitSettings(most, candidates=candidates, seed=seed))
        supports = [path.order[:k] for k in range(len(path) + 1)]
        return LinearPath(supports, [path.weights_at(k)[:, 0] for k in range(len(path) + 1)], path.reason.message)
    if method == "mp":
        least = SETTLED * float(np.abs(system.project(rhs)).max(initial=0.0))
        steps = matching_pursuit(system, rhs, most=most, iterations=MOST_STEPS, tolerance=least)
        count = len(steps.order)
        reason = f"{count:,} features used"
        if steps.iterations and steps.iterations[-1] == MOST_STEPS:
            reason = f"{MOST_STEPS:,} steps taken; the path may end short of its last weights"
        return LinearPath([steps.order[:k] for k in range(count + 1)], [np.empty(0), *steps.weights], reason)
    return _by_cardinality(homotopy(system, rhs, drops=method == "lasso", most=most))


def _by_cardinality(path: HomotopyPath) -> LinearPath:
    """A homotopy by cardinality: of each, the last break before one more feature joins."""
    supports: list[IndexArray] = []
    weights: list[FloatArray] = []
    for at in path:
        some = at.weights != 0.0
        active = len(at.support)  # up to here: a weight that has just come to zero is among them
        while len(supports) < active:  # two joined at once: what came before them stands for the first
            supports.append(supports[-1])
            weights.append(weights[-1])
        if len(supports) > active:
            del supports[-1], weights[-1]
        supports.append(at.support[some])
        weights.append(at.weights[some])
    return LinearPath(supports, weights, f"{len(supports) - 1:,} features used")
