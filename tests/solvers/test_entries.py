"""Kernel entries of a whole solve: none is left out, wherever it is evaluated, and none counts twice."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import TileEvaluator
from dkgp.solvers import (
    Cholesky,
    ConjugateGradient,
    CyclicSelection,
    FactorPreconditioning,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxIterations,
    SequentialMinimalOptimization,
    Solver,
    TiledCholesky,
    solve,
)
from tests.solvers.problems import OverlappingExecutor, smooth_problem

PROBLEM = smooth_problem(600, 3, targets=2)
GBCD = GreedyBlockCoordinateDescent

SOLVERS: dict[str, Solver] = {
    "gbcd": GBCD(block_size=60),
    "paper": GBCD(block_size=30, memory=0, selection=GreedySelection(variables_per_step=1)),
    "prefitting": GBCD(block_size=30, selection=GreedySelection(prefitting=True)),
    "cyclic": GBCD(block_size=60, selection=CyclicSelection()),
    "cg": ConjugateGradient(None),
    "pcg": ConjugateGradient(FactorPreconditioning(0, rank=20)),
    "cholesky": Cholesky(),
    "tiled-cholesky": TiledCholesky(),
}


class Witness:
    """Counts what goes in and out of the evaluator's methods, in whatever thread, beside the evaluator's own count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries, self._lock = 0, threading.Lock()
        for name in ("matmat", "pair", "tile"):
            monkeypatch.setattr(TileEvaluator, name, self._watched(getattr(TileEvaluator, name)))
        monkeypatch.setattr(TileEvaluator, "symmetric", self._watched_square(TileEvaluator.symmetric))

    def _watched(self, method: Any) -> Any:
        def watched(evaluator: TileEvaluator, A: Any, B: Any, *more: Any) -> Any:
            with self._lock:
                self.entries += A.n * B.n
            return method(evaluator, A, B, *more)

        return watched

    def _watched_square(self, method: Any) -> Any:
        def watched(evaluator: TileEvaluator, A: Any, *more: Any) -> Any:
            # Tiles across the diagonal whole, those on one side of it, none on the other.
            least, most = A.n * (A.n + 1) // 2, A.n * (A.n + evaluator.tile_rows)
            assert least <= evaluator.entries_of(A) <= most
            with self._lock:
                self.entries += evaluator.entries_of(A)
            return method(evaluator, A, *more)

        return watched


@pytest.mark.covering
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("overlaps", [False, True])
def test_all_that_is_evaluated_is_counted(
    name: str,
    overlaps: bool,
    executor: LocalExecutor,
    overlapping: OverlappingExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = PROBLEM.blocked(overlapping if overlaps else executor)
    witness = Witness(monkeypatch)
    solution = solve(operator, PROBLEM.y, solver=SOLVERS[name], stopping=GradientInfNorm(1e-3) | MaxIterations(20))
    assert solution.progress.kernel_evaluations == operator.kernel_evaluations == witness.entries > 0


def test_pairs_count_the_columns_that_they_evaluate(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """SMO's compiled loop evaluates columns past the evaluator's methods; without room to keep any, all of them."""
    witness = Witness(monkeypatch)
    solver = SequentialMinimalOptimization(steps_per_round=5, cache_bytes=0, precision="double")
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y[:, :1], solver=solver, stopping=MaxIterations(3))
    evaluated = solution.progress.kernel_evaluations - witness.entries
    assert evaluated % PROBLEM.n == 0
    # Two columns a step, but where a step's column is one of the last step's.
    assert 15 * PROBLEM.n <= evaluated <= 30 * PROBLEM.n


@pytest.mark.parametrize("precision", ["mixed", "double"])
@pytest.mark.parametrize("per_step", [1, 5, 20])
def test_what_selection_and_subproblem_evaluate_by_hand(executor: LocalExecutor, per_step: int, precision: Any) -> None:
    n, m, kappa, rounds = PROBLEM.n, 60, 60, 4
    selection = GreedySelection(candidates=kappa, variables_per_step=per_step)
    solver = GBCD(block_size=m, selection=selection, precision=precision)
    solution = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(rounds))
    sizes = range(0, m, per_step)
    # Each step scores kappa candidates for each of its variables against B, and factors its rows of Kbar_BB.
    scored = sum(kappa * per_step * size for size in sizes)
    factored = sum(per_step * per_step + per_step * size for size in sizes)
    typical = (n // 2) ** 2
    assert solution.progress.column_passes == rounds * m / n
    refined = solution.progress.kernel_evaluations - typical - rounds * (n * m + scored + factored)
    refined -= of_a_verification(executor)
    # What is left are products with Kbar_BB in float64: a round's step is refined where its factor is in float32.
    assert refined % m**2 == 0
    least, most = (rounds, 5 * rounds) if precision == "mixed" else (0, 0)
    assert least <= refined // m**2 <= most


def test_a_block_of_a_tenth_takes_three_squares_a_pass_beside_it(executor: LocalExecutor) -> None:
    """What passes alone hide, at kappa = 60 and m = n / 10: 10 rounds of 60 m^2 / 2 candidates' entries."""
    selection = GreedySelection(variables_per_step=1)
    solver = GBCD(block_size=PROBLEM.n // 10, memory=0, selection=selection, precision="double")
    progress = solve(PROBLEM.blocked(executor), PROBLEM.y, solver=solver, stopping=MaxIterations(10)).progress
    assert progress.column_passes == 1.0
    assert 4.0 < (progress.kernel_evaluations - of_a_verification(executor)) / PROBLEM.n**2 < 4.7


def of_a_verification(executor: LocalExecutor) -> int:
    """Entries of one float64 product with Kbar: about half of them, by symmetry."""
    operator = PROBLEM.blocked(executor)
    operator.matmat(np.ones((PROBLEM.n, 1)))
    assert PROBLEM.n**2 / 2 <= operator.kernel_evaluations <= PROBLEM.n**2
    return operator.kernel_evaluations
