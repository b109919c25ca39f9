"""The other half of Smola and Bartlett's gap: samples S* whose own exact model bounds the least risk from below.

Q*(a) = -y'a + a' Kbar a / 2 over a on S* has its minimum at the exact model of S* alone. S* grows by samples that
lower it most, each the best of its own draw, judged after refitting.
"""

from __future__ import annotations

import numpy as np

from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, noise_at
from dkgp.solvers.block_descent.draws import Draws
from dkgp.solvers.block_descent.selection import best_in_groups
from dkgp.solvers.block_descent.subproblem import Subproblem, matmat_in_parallel

# Apart from the draws of the basis itself.
STREAM = 1 << 40


class DualSubset:
    """S*, its alpha, and the bound.

    - `candidates`, `seed`: of each draw.
    """

    def __init__(
        self, operator: KernelOperator, targets: FloatArray, capacity: int, candidates: int, seed: int
    ) -> None:
        self._operator, self._targets = operator, targets
        self._candidates, self._seed = candidates, seed
        self._subproblem = Subproblem(operator, capacity, targets.shape[1], single=False)
        self._taken = np.zeros(operator.n, dtype=bool)

    @property
    def chosen(self) -> IndexArray:
        """S*, in the order of choice."""
        return self._subproblem.indices.copy()

    @property
    def quadratic(self) -> FloatArray:
        """Y' a on S*: by target at most y' Kbar^-1 y, but for roundings (p,)."""
        active = self._subproblem
        return np.asarray(np.sum(active.guide() * self._targets[active.indices], axis=0))

    def take(self, indices: IndexArray) -> None:
        """Add samples, one after the other, as a run did that is resumed."""
        for index in indices:
            self._append(np.asarray([index], dtype=np.intp))

    def grow(self, size: int) -> None:
        """Choose samples until there are so many."""
        active, operator = self._subproblem, self._operator
        while active.size < min(size, active.capacity):
            draws = Draws(operator.n, 1, self._candidates, self._seed + STREAM, active.size)
            drawn = draws.take(1, self._taken, operator.n - active.size)
            error, curvature = -self._targets[drawn], operator.diagonal()[drawn]
            if active.size:
                rows, columns = operator.features(drawn, "double"), active.features
                error = error + matmat_in_parallel(operator.double, rows, columns, active.guide())
                schur = curvature - np.sum(active.half_solve(active.rows(drawn)) ** 2, axis=1)
                # What others leave of a sample's own variance is never less than its noise.
                curvature = np.maximum(schur, noise_at(operator.noise, drawn))
            scores = np.sum(error**2, axis=1) / curvature
            self._append(best_in_groups(scores, drawn, 1, self._taken))

    def _append(self, picked: IndexArray) -> None:
        self._taken[picked] = True
        self._subproblem.append(picked, -self._targets[picked])
