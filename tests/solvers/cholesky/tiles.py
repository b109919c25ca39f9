"""A small tiled factorisation, and a count of the tiles that it writes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from dkgp.data.stores.tile_store import TileStore
from dkgp.solvers import GradientInfNorm, Solution, TiledCholesky, solve
from dkgp.solvers.driver import Watch
from tests.solvers.problems import Problem, smooth_problem

# Five panels, the last of 44.
PROBLEM = smooth_problem(300, 3, targets=2)
SOLVER = TiledCholesky(tile_rows=64)
N_TILES = 15


class Writes:
    """Counts the tiles that are written; fails instead of writing another, once `allowed` were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: Counter[str] = Counter()
        self.allowed = 10**9
        original = TileStore.write

        def write(store: TileStore, name: str, values: np.ndarray) -> None:
            if self.names.total() >= self.allowed:
                raise KeyboardInterrupt
            self.names[name] += 1
            original(store, name, values)

        monkeypatch.setattr(TileStore, "write", write)


def solved(
    executor: Any,
    solver: TiledCholesky = SOLVER,
    problem: Problem = PROBLEM,
    tolerance: float = 1e-9,
    stopping: Any = None,
    initial: Any = None,
    **watch: Any,
) -> Solution:
    rule, operator = stopping or GradientInfNorm(tolerance), problem.blocked(executor)
    return solve(operator, problem.y, solver=solver, stopping=rule, initial=initial, watch=Watch(**watch))
