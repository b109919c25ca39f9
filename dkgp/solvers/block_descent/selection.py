"""Selections of the next block's variables: greedy (the paper's), cyclic, and by gradient norm.

A selection fills a `Subproblem`: it chooses the active set B and leaves the minimiser over B behind. The greedy one
interleaves the two, as Algorithm 2 of the GBCD paper does: the next choice depends on the step that the variables
chosen so far would take. Each choice is the best of `Draws` (Algorithm 2, step 6: "randomly choose a subset O of size
kappa from N"): random subsets, without repetition, of the samples that are not chosen yet. Smola and Bartlett's M, a
subset of the samples that have not been selected, is the same.

The subproblem is min over delta of delta' Kbar_BB delta / 2 + g_B' delta, as B grows: equations (6), (11)-(13), with
the incremental Cholesky factor that the paper recommends in place of the explicit inverse. Variables are appended
several at a time, so that the work is triangular solves with many right-hand sides. The factor is kept in float32 if
the noise variance is far enough above float32 rounding: it then takes half the time and half the memory. While B grows
it only steers the selection; the step itself is refined against float64 kernel entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import in_parallel
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, noise_at
from dkgp.solvers.block_descent.block_size import grown_candidates
from dkgp.solvers.cholesky.dense import solve_lower, solve_lower_transposed

# Numbers drawn at a time beyond those that a round was expected to take, at least.
LEAST_MORE = 1024


def round_generator(seed: int, iteration: int) -> np.random.Generator:
    """Return the random numbers of one round: a restored solve draws the same numbers."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, iteration])))


class Draws:
    """The candidates of one round.

    They are dealt from one sequence of uniform sample numbers, by seed and round alone; a sample that is chosen
    already, or in the subset, is passed over. So all subsets of N are as likely, the candidates of a round can be
    foreseen, and a candidate costs a number or a few, for any n.

    - `choices`, `candidates`: subsets that the round will take, and kappa.
    - `sequence` (l,): the expected candidates of the round; further ones are drawn when they are
      needed.
    """

    def __init__(self, n: int, choices: int, candidates: int, seed: int, iteration: int) -> None:
        self._n, self._candidates = n, candidates
        self._generator = round_generator(seed, iteration)
        # On average half of the choices, and half of the subset, are there when a candidate is drawn: allow for both.
        drawn = choices * candidates
        self.sequence = self._more(drawn + drawn * (choices + candidates) // n + 64)
        self._position = 0
        self._marks = np.zeros(n, dtype=np.int32)
        self._subsets = 0

    def take(self, subsets: int, out: NDArray[np.bool_], remaining: int) -> IndexArray:
        """Return the next subsets, one after the other: (subsets * min(kappa, remaining),).

        - `out` (n,): samples that are not in N.
        - `remaining`: how many the others are.
        """
        if remaining <= self._candidates:
            return np.tile(np.flatnonzero(~out).astype(np.intp), subsets)
        dealt = np.empty((subsets, self._candidates), dtype=np.intp)
        held, first = 0, self._subsets + 1
        while True:
            held, self._position = _deal(dealt, held, self.sequence, self._position, out, self._marks, first)
            if held == dealt.size:
                break
            self.sequence = self._more(max(LEAST_MORE, len(self.sequence) // 4))
            self._position = 0
        self._subsets += subsets
        return dealt.ravel()

    def _more(self, count: int) -> IndexArray:
        return self._generator.integers(0, self._n, count, dtype=np.intp)


@cached_njit(nogil=True)
def _deal(dealt, held, sequence, position, out, marks, first):  # type: ignore[no-untyped-def]
    """Fill the rows of `dealt` from `sequence`; return how many numbers they hold, and where the sequence goes on.

    `marks` has for every sample the last subset that it was dealt to; the first row's is `first`.
    """
    length, size = dealt.shape[1], dealt.size
    while held < size and position < sequence.shape[0]:
        sample = sequence[position]
        position += 1
        subset = held // length
        if not out[sample] and marks[sample] != first + subset:
            marks[sample] = first + subset
            dealt[subset, held - subset * length] = sample
            held += 1
    return held, position


# The factor of a matrix with eigenvalues in [s2, c] errs by a few eps c: below this margin float32 would not be a good
# guide.
SINGLE_MARGIN = 20.0
REFINEMENT_TOLERANCE = 1e-7
MOST_REFINEMENTS = 5


LEAST_PARALLEL_WORK = 10_000_000
# A run of rows this long is evaluated by one thread: half a millisecond of work, and a whole number of vectors.
PARALLEL_ROWS = 512


def _largest_eigenvalue(operator: KernelOperator, size: int) -> float:
    """Bound on the eigenvalues of Kbar_BB for any B of so many samples: the largest trace that it may have."""
    diagonal = operator.diagonal()
    if operator.kernel.stationary:
        return float(np.max(diagonal)) * size
    return float(np.sum(np.partition(diagonal, -size)[-size:])) if size else 0.0


def matmat_in_parallel(
    evaluator: TileEvaluator, rows: Features, columns: Features, weights: FloatArray, threads: int | None = None
) -> FloatArray:
    """K(rows, columns) @ weights at the coordinator, its rows shared between threads."""
    if rows.n <= PARALLEL_ROWS:
        return evaluator.matmat(rows, columns, weights)
    result = np.empty((rows.n, weights.shape[1]))

    def work(piece: int) -> None:
        start, stop = piece * PARALLEL_ROWS, min((piece + 1) * PARALLEL_ROWS, rows.n)
        result[start:stop] = evaluator.matmat(rows.slice(start, stop), columns, weights)

    in_parallel(work, -(-rows.n // PARALLEL_ROWS), threads)
    return result


class Subproblem:
    """delta = -Kbar_BB^-1 g_B for a growing active set B.

    - `operator`: gives the evaluators and the noise variance; nothing is computed through it.
    - `capacity`: largest size m of B.
    - `targets`: number p of gradient columns.
    - `single`: keep the factor in float32; decided by the noise variance by default. False means float64 in all that
      concerns the block, scores of candidates included.
    - `typical_entry`: root mean square of K's entries off the diagonal, which bounds the largest eigenvalue of Kbar_BB
      more closely than the diagonal alone.
    - `gradient` (capacity, p): g at the variables appended.
    - `scores_in_double`: whether candidates are to be scored by float64 entries.
    """

    def __init__(
        self,
        operator: KernelOperator,
        capacity: int,
        targets: int,
        *,
        single: bool | None = None,
        typical_entry: float | None = None,
    ) -> None:
        self._operator = operator
        largest = _largest_eigenvalue(operator, capacity)
        # Entries of some samples tell of those of others where k(x, x) is the same everywhere.
        if typical_entry is not None and operator.kernel.stationary:
            # No eigenvalue exceeds the Frobenius norm.
            diagonal = float(np.max(operator.diagonal()))
            largest = min(largest, float(np.hypot(np.sqrt(capacity) * diagonal, capacity * typical_entry)))
        margin = operator.noise_variance / (np.finfo(np.float32).eps * largest)
        self._wants_single = bool(margin >= SINGLE_MARGIN) if single is None else single
        self.scores_in_double = single is False
        self._allocate(self._wants_single, capacity, targets)

    def _allocate(self, single: bool, capacity: int, targets: int) -> None:
        operator = self._operator
        self.single = single
        self._evaluator = operator.single if self.single else operator.double
        dtype = self._evaluator.dtype
        self._factor = np.zeros((capacity, capacity), dtype)
        self._half_solved = np.zeros((targets, capacity), dtype)
        self._indices = np.zeros(capacity, dtype=np.intp)
        self._features = self._evaluator.prepare(np.zeros((capacity, operator.kernel.n_features)))
        self.gradient = np.zeros((capacity, targets))
        self.size = 0

    def reset(self) -> None:
        """Empty the active set; the memory is used again, and float32 tried again where it broke down."""
        if self.single != self._wants_single:
            self._allocate(self._wants_single, *self.gradient.shape)
        self.size = 0

    @property
    def capacity(self) -> int:
        """Largest size of B."""
        return len(self.gradient)

    @property
    def indices(self) -> IndexArray:
        """The active set B in order of selection: (size,)."""
        return self._indices[: self.size]

    @property
    def features(self) -> Features:
        """Features of B in the factor's precision."""
        return self._features.first(self.size)

    def guide(self) -> FloatArray:
        """Return the minimiser over the variables so far, (size, p), as good as the selection needs it."""
        solution = self._half_solved[:, : self.size].copy()
        if self.size:
            solve_lower_transposed(self._factor, self.size, solution)
        return solution.T.astype(np.float64)

    def append(self, indices: IndexArray, gradient: FloatArray) -> None:
        """Add variables to B.

        - `indices` (c,).
        - `gradient` (c, p): g at these variables before the block's step.

        Raises `NumericalError`: Kbar_BB lost positive definiteness in float64.
        """
        old, new = self.size, self.size + len(indices)
        features = self._operator.features(indices, self._evaluator.precision)
        self._indices[old:new] = indices
        self._features.put(old, features)
        self.gradient[old:new] = gradient
        self.size = new
        try:
            self._extend(features, old, new)
        except np.linalg.LinAlgError:
            if not self.single:
                raise NumericalError(
                    f"the active set's matrix is not positive definite at {new} variables with noise variance "
                    f"{self._operator.noise_variance:.3g}: rounding exceeds it. Raise the noise variance, or lower the "
                    "block size"
                ) from None
            self._start_over_in_double(new)

    def _extend(self, features: Features, old: int, new: int) -> None:
        rows = self._factor[old:new]
        corner = np.array(self._evaluator.tile(features, features))
        noise = np.asarray(noise_at(self._operator.noise, self._indices[old:new]), self._evaluator.dtype)
        corner[np.diag_indices(new - old)] += noise
        tail = -self.gradient[old:new].T.astype(rows.dtype)
        if old:
            active = self._features.first(old)
            rows[:, :old] = self._evaluator.tile(features, active)
            self._solve_rows(rows, old)
            corner -= rows[:, :old] @ rows[:, :old].T
            tail = tail - self._half_solved[:, :old] @ rows[:, :old].T
        lower = np.linalg.cholesky(corner)
        # Entries that are not finite, as of an amplitude beyond float32, may pass without a word.
        if not (np.isfinite(lower).all() and (lower.diagonal() > 0.0).all()):
            raise np.linalg.LinAlgError
        rows[:, old:new] = lower
        tail = np.ascontiguousarray(tail)
        solve_lower(rows[:, old:new], new - old, tail)
        self._half_solved[:, old:new] = tail

    def _solve_rows(self, rows: NDArray[Any], order: int) -> None:
        """L^-1 for the new rows, in two halves where there is enough to do for two threads."""
        cuts = [0, len(rows) // 2, len(rows)] if len(rows) * order * order >= LEAST_PARALLEL_WORK else [0, len(rows)]
        in_parallel(
            lambda part: solve_lower(self._factor, order, rows[cuts[part] : cuts[part + 1], :order]), len(cuts) - 1
        )

    def solve(self) -> FloatArray:
        """Return the minimiser over B against float64 kernel entries: (size, p).

        A float32 factor is corrected by iterative refinement, each correction costing one product with Kbar_BB; where
        that does not converge the factor is computed again in float64.
        """
        delta = self.guide()
        if not self.single:
            return delta
        active = self._operator.features(self.indices, "double")
        right = -self.gradient[: self.size]
        target = REFINEMENT_TOLERANCE * float(np.max(np.abs(right), initial=0.0))
        for _ in range(MOST_REFINEMENTS):
            product = matmat_in_parallel(self._operator.double, active, active, delta)
            residual = right - product - self._operator.noise_times(delta, self.indices)
            if not np.isfinite(residual).all():
                break
            correction = np.ascontiguousarray(residual.T, dtype=np.float32)
            solve_lower(self._factor, self.size, correction)
            solve_lower_transposed(self._factor, self.size, correction)
            delta = delta + correction.T
            if float(np.max(np.abs(residual), initial=0.0)) <= target:
                return delta
        fresh = Subproblem(self._operator, self._factor.shape[0], self.gradient.shape[1], single=False)
        for start in range(0, self.size, 64):
            stop = min(start + 64, self.size)
            fresh.append(self._indices[start:stop], self.gradient[start:stop])
        return fresh.solve()

    def _start_over_in_double(self, size: int) -> None:
        """Float32 broke down: keep the variables chosen so far and go on in float64 until the block is complete.

        Which blocks that happens to depends on the blocks alone, so it happens in the same places from a checkpoint on.
        """
        indices, gradient = self._indices[:size].copy(), self.gradient[:size].copy()
        self._allocate(False, *self.gradient.shape)
        for start in range(0, size, 64):
            self.append(indices[start : start + 64], gradient[start : start + 64])

    def rows(self, indices: IndexArray) -> NDArray[Any]:
        """k(x_i, B) for samples i: (len, size) in the factor's precision."""
        return self._evaluator.tile(self._operator.features(indices, self._evaluator.precision), self.features)

    def half_solve(self, kernel_rows: NDArray[Any]) -> NDArray[Any]:
        """L^-1 k for kernel rows k(x, B): (r, size), one a row, for prefitting (equation 7)."""
        # Always a copy: it is solved in place, and "contiguous" leaves odd strides on a single column.
        solved = np.array(kernel_rows, dtype=self._factor.dtype, order="C", copy=True)
        if self.size:
            solve_lower(self._factor, self.size, solved)
        return solved


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


class Turn(NamedTuple):
    """A round's block: its number of variables, and the seed and the iteration that random draws depend on."""

    size: int
    seed: int
    iteration: int


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
    def fill(self, subproblem: Subproblem, operator: KernelOperator, gradient: GradientView, turn: Turn) -> None:
        """Append the turn's number of distinct variables to the empty `subproblem`; draws depend on the turn alone."""

    def announced(self, operator: KernelOperator, turn: Turn) -> IndexArray | None:
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
    One variable of each block is searched exhaustively, as the convergence proof requires (Theorem 2 uses
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

    def _draws(self, operator: KernelOperator, turn: Turn) -> Draws:
        return Draws(operator.n, turn.size, self.candidates, turn.seed, turn.iteration)

    def announced(self, operator: KernelOperator, turn: Turn) -> IndexArray | None:
        """Return the samples that the random candidates of the round are, but for a few that cannot be foreseen."""
        return None if self.exhaustive else self._draws(operator, turn).sequence

    def fill(self, subproblem: Subproblem, operator: KernelOperator, gradient: GradientView, turn: Turn) -> None:
        """Choose `size` variables greedily; see `Selection.fill`."""
        diagonal, steps = operator.diagonal(), self.steps(turn.size)
        search_first = not self.looks_at_few
        taken = np.zeros(operator.n, dtype=bool)
        scorer = _Scorer(self, subproblem, operator)
        draws = None if self.exhaustive else self._draws(operator, turn)
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

    def announced(self, operator: KernelOperator, turn: Turn) -> IndexArray | None:
        """Return the block itself."""
        size = turn.size
        rounds = -(-operator.n // size)
        cycle, position = divmod(turn.iteration, rounds)
        order = round_generator(turn.seed, cycle).permutation(operator.n).astype(np.intp)
        return order[position * size : (position + 1) * size]

    def fill(self, subproblem: Subproblem, operator: KernelOperator, gradient: GradientView, turn: Turn) -> None:
        """Take the next block of the cycle; see `Selection.fill`."""
        picked = self.announced(operator, turn)
        assert picked is not None
        for start in range(0, len(picked), 64):
            append(subproblem, gradient, picked[start : start + 64])


@dataclass(frozen=True)
class GradientSelection(Selection):
    """The samples with the largest gradient (BCDG in the GBCD paper, equation 4)."""

    def fill(self, subproblem: Subproblem, operator: KernelOperator, gradient: GradientView, turn: Turn) -> None:
        """Take the largest; see `Selection.fill`."""
        norms = np.sum(gradient.everywhere() ** 2, axis=1)
        picked = np.argsort(-norms, kind="stable")[: turn.size].astype(np.intp)
        for start in range(0, len(picked), 64):
            append(subproblem, gradient, picked[start : start + 64])
