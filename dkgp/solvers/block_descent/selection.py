"""Selections of the next block's variables: greedy (the paper's), cyclic, and by gradient norm.

A selection fills a `Subproblem`: it chooses the active set B and leaves the minimiser over B behind. The greedy one
interleaves the two, as the paper's Algorithm 2 does: what is chosen next depends on the step that the variables
chosen so far would take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels import Features
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator
from dkgp.solvers.block_descent.block_size import grown_candidates
from dkgp.solvers.block_descent.draws import Draws, round_generator
from dkgp.solvers.block_descent.subproblem import Subproblem, matmat_in_parallel

# Solutions of the subproblem in a block: with more, selection takes longer and passes hardly fall.
DEFAULT_STEPS = 20


class GradientView(Protocol):
    """The gradient as a selection may see it: at a few samples, perhaps while the last update is under way."""

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        """G at `indices`: (len, p). `features` are the samples' single-precision features where the caller has them."""

    def everywhere(self) -> FloatArray:
        """g: (n, p); waits for an update that is still under way."""

    def steepest(self, diagonal: FloatArray) -> int:
        """Return the sample with the largest g_i^2 / Kbar_ii; waits for an update that is still under way."""


class Selection(ABC):
    """Chooses the active set of one round.

    Attributes
    ----------
    candidates : int
        kappa of a selection that draws at random for each variable; 0 for others, whose blocks do not grow.
    looks_at_few : bool
        Whether `fill` looks at the gradient at announced samples and at the steepest one alone, but for a few.
    """

    candidates: int = 0
    looks_at_few: bool = False

    @abstractmethod
    def fill(
        self,
        subproblem: Subproblem,
        operator: KernelOperator,
        gradient: GradientView,
        size: int,
        seed: int,
        iteration: int,
    ) -> None:
        """Append `size` distinct variables to the empty `subproblem`; draws depend on (seed, iteration) alone."""

    def announced(self, operator: KernelOperator, size: int, seed: int, iteration: int) -> IndexArray | None:
        """Return the samples that `fill` will look at in this iteration, where they can be known beforehand."""
        return None

    def grown(self, first: int, size: int) -> Selection:
        """Return the selection for blocks that have grown from `first` to `size` variables."""
        return self

    def settings(self) -> dict[str, Any]:
        """Settings that determine the choice, in plain JSON types."""
        return {"selection": type(self).__name__}


@dataclass(frozen=True)
class GreedySelection(Selection):
    """Greedy active-set selection by the exact decrease of the objective (GBCD paper, Algorithm 2).

    Parameters
    ----------
    candidates : int, default 60
        kappa: each variable is the best of its own random draw of this many, without repetition, of those that are
        not in the block.
    variables_per_step : int, optional
        Variables chosen between two solutions of the subproblem. 1 is the paper's, and the default of an exhaustive
        search and of prefitting; otherwise a 20th of the block.
    exhaustive : bool, default False
        Score every sample at every step instead of a random subset (the paper's Algorithm 2 without its random subset).
    prefitting : bool, default False
        Score by the decrease after refitting the whole active set (equation 7) instead of along one variable
        (equation 10). Costs a triangular solve for every candidate; for small problems.
    threads : int, optional
        Threads that score candidates; as many as there are cores by default. The result does not depend on it.

    Notes
    -----
    One variable of each block is searched exhaustively, which is what the convergence proof needs (Theorem 2 uses
    that the variable with the largest g_i^2 / Kbar_ii is in B). With one variable a step it is the first, as in the
    paper; with several it is the last, because it alone needs the gradient everywhere and the rest can be chosen
    while an update is still under way.
    """

    candidates: int = 60
    variables_per_step: int | None = None
    exhaustive: bool = False
    prefitting: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise InputError(f"the number of candidates must be at least 1; got {self.candidates}")
        if self.variables_per_step is None and (self.exhaustive or self.prefitting):
            # These pay for the best choice and get it: none is made by a step that others have outdated.
            object.__setattr__(self, "variables_per_step", 1)
        if self.variables_per_step is not None and self.variables_per_step < 1:
            raise InputError(f"the variables per step must be at least 1; got {self.variables_per_step}")

    def grown(self, first: int, size: int) -> GreedySelection:
        """Return a selection that draws fewer candidates for each variable, and not fewer in all."""
        return replace(self, candidates=grown_candidates(self.candidates, first, size)) if size > first else self

    def settings(self) -> dict[str, Any]:
        """Settings that determine the choice: all but the threads."""
        settings = asdict(self)
        del settings["threads"]
        return {**super().settings(), **settings}

    @property
    def looks_at_few(self) -> bool:  # type: ignore[override]
        """True unless each step, or the first one, looks at all samples."""
        return self.variables_per_step != 1 and not self.exhaustive

    def steps(self, size: int) -> list[int]:
        """Numbers of variables that each selection step of a block of `size` chooses."""
        per_step = self.variables_per_step or max(1, size // DEFAULT_STEPS)
        return [min(per_step, size - start) for start in range(0, size, per_step)]

    def announced(self, operator: KernelOperator, size: int, seed: int, iteration: int) -> IndexArray | None:
        """Return the samples that the random candidates of the round are, but for a few that cannot be foreseen."""
        return None if self.exhaustive else Draws(operator.n, size, self.candidates, seed, iteration).sequence

    def fill(
        self,
        subproblem: Subproblem,
        operator: KernelOperator,
        gradient: GradientView,
        size: int,
        seed: int,
        iteration: int,
    ) -> None:
        """Choose `size` variables greedily; see `Selection.fill`."""
        diagonal, steps = operator.diagonal(), self.steps(size)
        search_first = not self.looks_at_few
        taken = np.zeros(operator.n, dtype=bool)
        scorer = _Scorer(self, subproblem, operator)
        draws = None if self.exhaustive else Draws(operator.n, size, self.candidates, seed, iteration)
        for number, count in enumerate(steps):
            if search_first and number == 0 and count == 1:
                picked = best_in_groups(
                    np.sum(gradient.everywhere() ** 2, axis=1) / diagonal, np.arange(operator.n), 1, taken
                )
            elif draws is None:
                everyone = np.arange(operator.n, dtype=np.intp)
                picked = scorer.best(everyone, gradient, diagonal, taken, groups=1, count=count)
            else:
                drawn = draws.take(count, taken, operator.n - subproblem.size)
                picked = scorer.best(drawn, gradient, diagonal, taken, groups=count, count=count)
            if number == len(steps) - 1 and not search_first:
                picked = _include_steepest(picked, gradient, diagonal, taken)
            append(subproblem, gradient, picked)


class _Scorer:
    """Scores candidates against the active set so far."""

    def __init__(self, settings: GreedySelection, subproblem: Subproblem, operator: KernelOperator) -> None:
        self._settings, self._subproblem, self._operator = settings, subproblem, operator

    def best(
        self,
        candidates: IndexArray,
        gradient: GradientView,
        diagonal: FloatArray,
        taken: np.ndarray,
        groups: int,
        count: int,
    ) -> IndexArray:
        active = self._subproblem
        precision: Precision = "double" if active.scores_in_double else "single"
        features = self._operator.features(candidates, precision)
        error = gradient.at(candidates, features if precision == "single" else None)
        curvature = diagonal[candidates]
        if active.size:
            delta = active.guide()
            columns = self._operator.features(active.indices, precision)
            evaluator = self._operator.evaluator(precision)
            error = error + matmat_in_parallel(evaluator, features, columns, delta, self._settings.threads)
            if self._settings.prefitting:
                rows = active.rows(candidates)
                curvature = curvature - np.sum(active.half_solve(rows) ** 2, axis=1, dtype=np.float64)
        scores = np.sum(error**2, axis=1) / curvature
        if groups == 1 and count > 1:
            order = candidates[np.argsort(-scores, kind="stable")]
            picked = order[~taken[order]][:count]
            taken[picked] = True
            return np.asarray(picked)
        return np.asarray(best_in_groups(scores, candidates, groups, taken))


@cached_njit(nogil=True)
def best_in_groups(scores, candidates, groups, taken):  # type: ignore[no-untyped-def]
    """Return the best candidate of each of `groups` equal runs that is not `taken` yet, and mark it.

    Runs are served in order: a variable that an earlier run took leaves a later one with its next best, or none.
    """
    length = candidates.shape[0] // groups
    picked = np.empty(groups, np.intp)
    count = 0
    for group in range(groups):
        best, best_score = -1, -1.0
        for position in range(group * length, (group + 1) * length):
            variable = candidates[position]
            if scores[position] > best_score and not taken[variable]:
                best, best_score = variable, scores[position]
        if best >= 0:
            taken[best] = True
            picked[count] = best
            count += 1
    return picked[:count]


def _include_steepest(
    picked: IndexArray, gradient: GradientView, diagonal: FloatArray, taken: np.ndarray
) -> IndexArray:
    steepest = gradient.steepest(diagonal)
    if taken[steepest]:
        return picked
    taken[steepest] = True
    return np.append(picked[:-1], steepest) if len(picked) else np.asarray([steepest], dtype=np.intp)


def append(subproblem: Subproblem, gradient: GradientView, picked: IndexArray) -> None:
    """Append variables with their gradient to the subproblem."""
    if len(picked):
        subproblem.append(picked, gradient.at(picked, None))


@dataclass(frozen=True)
class CyclicSelection(Selection):
    """Blocks of a random order of all samples, a fresh order each cycle (BCDC in the GBCD paper)."""

    looks_at_few = True

    def announced(self, operator: KernelOperator, size: int, seed: int, iteration: int) -> IndexArray | None:
        """Return the block itself."""
        rounds = -(-operator.n // size)
        cycle, position = divmod(iteration, rounds)
        order = round_generator(seed, cycle).permutation(operator.n).astype(np.intp)
        return order[position * size : (position + 1) * size]

    def fill(
        self,
        subproblem: Subproblem,
        operator: KernelOperator,
        gradient: GradientView,
        size: int,
        seed: int,
        iteration: int,
    ) -> None:
        """Take the next block of the cycle; see `Selection.fill`."""
        picked = self.announced(operator, size, seed, iteration)
        assert picked is not None
        for start in range(0, len(picked), 64):
            append(subproblem, gradient, picked[start : start + 64])


@dataclass(frozen=True)
class GradientSelection(Selection):
    """The samples with the largest gradient (BCDG in the GBCD paper, equation 4)."""

    def fill(
        self,
        subproblem: Subproblem,
        operator: KernelOperator,
        gradient: GradientView,
        size: int,
        seed: int,
        iteration: int,
    ) -> None:
        """Take the `size` largest; see `Selection.fill`."""
        norms = np.sum(gradient.everywhere() ** 2, axis=1)
        picked = np.argsort(-norms, kind="stable")[:size].astype(np.intp)
        for start in range(0, len(picked), 64):
            append(subproblem, gradient, picked[start : start + 64])
