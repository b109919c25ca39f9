"""Sparse conjugate directions pursuit (SCDP), of all regressors or of random draws of them (SCDPP).

Algorithm 3 of the paper keeps directions p^(k), conjugate and with k nonzero numbers, and the triangle B = P A_SS that
the next one is found by (18). Here A_SS = L L' grows by rows: P = L^-T but for the directions' lengths, B = L' but for
those of its rows, a pivot that rounding has eaten is seen, and g = A w - b is found anew from the columns that are kept
rather than by recursion. Algorithm 3's line for s^(k+1) reads g before the step; (19) and the text mean the gradient
after it, which this module uses.

References
----------
P. Karsmakers, K. Pelckmans, K. De Brabanter, H. Van hamme, J. A. K. Suykens, Sparse conjugate directions pursuit with
application to fixed-size kernel models, Machine Learning 85 (2011).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import identity, rule
from dkgp.errors import CheckpointError, InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.solvers.base import Clock
from dkgp.solvers.block_descent.selection import best_in_groups, round_generator
from dkgp.solvers.cholesky.dense import solve_lower_transposed
from dkgp.solvers.driver import NOBODY, Iteration, Loop, Watch
from dkgp.solvers.greedy_basis import LEAST_PIVOT, SCORES, BorderedFactor, Score, score
from dkgp.solvers.pursuit.systems import PursuitSystem, as_system, columns_that_fit, right_hand_sides
from dkgp.solvers.stopping import StopReason


@dataclass(frozen=True)
class PursuitSettings:
    """Settings that determine a path.

    Parameters
    ----------
    size : int, optional
        Nonzero numbers at most; all D by default.
    candidates : int, optional
        rho: each choice is the best of its own random draw of so many regressors that are not chosen yet (SCDPP). By
        default the best of all (SCDP). 59 are the paper's.
    per_round : int, default 1
        Choices a round, by the gradient before it. 1 is the paper's; more spare passes over data.
    score : {"gradient", "single", "refit"}, default "gradient"
        Sizes that the best is chosen by, see `dkgp.solvers.greedy_basis`: the gradient, the paper's (19) and
        orthogonal matching pursuit's; its fall of the objective with the others held; or refitted, which is orthogonal
        least squares.
    first : tuple of int
        Regressors that the path begins with, in this order, in one round: an intercept.
    residual : float, optional
        Stop where the squared residual, summed over right-hand sides, is at most this.
    tolerance : float, optional
        Stop where max |g| is; of a pursuit without random draws.
    stagnation : (int, float), optional
        Stop by (38): where the last score differs from the mean of so many before it by less than this share of it.
        Scores are squared residuals, or those of the `judge` of `pursue`.
    memory_bytes : int, optional
        Memory limit of the columns of A at the coordinator; by default half of the free memory.
    seed : int
        Of draws: they depend on it and on the round alone, so that folds and hyperparameters share them (Remark 8).
    """

    size: int | None = field(default=None, metadata=rule(decides=False))
    candidates: int | None = None
    per_round: int = 1
    score: Score = "gradient"
    first: tuple[int, ...] = ()
    residual: float | None = field(default=None, metadata=rule(decides=False))
    tolerance: float | None = field(default=None, metadata=rule(decides=False))
    stagnation: tuple[int, float] | None = field(default=None, metadata=rule(decides=False))
    memory_bytes: int | None = field(default=None, metadata=rule(decides=False))
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("candidates", 1), ("per_round", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, Integral) or int(value) < least):
                raise InputError(f"`{name}` must be a whole number, at least {least}; got {value!r}")
        if self.score not in SCORES or self.score == "residual":
            raise InputError(f"`score` must be gradient, single or refit; got {self.score!r}")
        for name in ("residual", "tolerance"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0.0):
                raise InputError(f"`{name}` must be a number that is not negative; got {value}")
        if self.tolerance is not None and self.candidates is not None:
            raise InputError(
                "`tolerance` bounds the whole gradient, and random `candidates` show only a part of it; leave out "
                "one of them"
            )
        if self.stagnation is not None:
            window: Any = self.stagnation[0]
            share = self.stagnation[1]
            if not isinstance(window, Integral) or int(window) < 1:
                raise InputError(f"`stagnation` looks back at least 1 step, a whole number of them; got {window!r}")
            if not (np.isfinite(share) and share >= 0.0):
                raise InputError(f"`stagnation` has a share that is a number and not negative; got {share}")
        object.__setattr__(self, "first", tuple(int(index) for index in self.first))
        if len(set(self.first)) < len(self.first):
            raise InputError(f"`first` names a regressor twice: {self.first}")

    def most(self, size: int) -> int:
        """Nonzero numbers at most, of `size` regressors.

        Raises
        ------
        InputError
            More than there are regressors, or than come first, were asked for.
        """
        most = size if self.size is None else self.size
        if most > size:
            raise InputError(f"there are {size:,} regressors; got a path of {most:,} nonzero numbers")
        if len(self.first) > most:
            raise InputError(f"{len(self.first)} regressors come first; the path ends after {most}")
        if any(not 0 <= index < size for index in self.first):
            raise InputError(f"`first` names regressors {self.first}; expected numbers from 0 to {size - 1:,}")
        return most


@dataclass(frozen=True)
class PursuitProgress:
    """State after a round.

    - `round`, `size`: rounds done, nonzero numbers.
    - `objective`: w'A w / 2 - b'w, summed over right-hand sides.
    - `residual`: squared residual, where the system knows it.
    - `steepest`: max |g| of the other regressors; None with random draws.
    - `score`: the path was judged by this, where it was.
    """

    round: int
    size: int
    objective: float
    residual: float | None
    steepest: float | None
    score: float | None
    seconds: float


def drawn(seed: int, number: int, groups: int, candidates: int, out: Any) -> IndexArray:
    """Candidates of a round in equal runs, each sorted: of those that are not `out` (D,) bool, without replacement.

    A random key of each regressor depends on the seed and the round alone: paths with different choices see the
    same draws, apart from these.
    """
    runs = []
    generator = round_generator(seed, number)
    remaining = np.flatnonzero(~out)
    count = min(candidates, len(remaining))
    for _ in range(groups):
        keys = generator.random(len(out))[remaining]
        subset = remaining[np.argpartition(keys, count - 1)[:count]] if count else remaining
        runs.append(np.sort(subset))
    return np.concatenate(runs).astype(np.intp) if runs else np.empty(0, dtype=np.intp)


def stagnates(scores: Any, window: int, share: float) -> bool:
    """True if (38) holds: |mean(f^(k-1), ..., f^(k-window)) - f^(k)| < share |f^(k)|; not before there are so many."""
    if len(scores) <= window:
        return False
    last = float(scores[-1])
    return bool(abs(float(np.mean(np.asarray(scores[-1 - window : -1]))) - last) < share * abs(last))


@dataclass(frozen=True)
class PursuitPath:
    """Solutions w^(k) of A_SS w_S = b_S for the first k regressors of an order, k = 0, 1, ...

    With A_SS = L L' the conjugate directions are the columns of L^-T times L's diagonal: p^(k) has its last entry 1,
    and p^(i)' A p^(j) = 0 for i != j. So w^(k) is the sum of eta^(j) p^(j), j <= k (equations 8 and 18).

    Attributes
    ----------
    size : int
        Regressors, D.
    order : (k,) int
        Those of the path, in the order of choice.
    lower : (k, k) float64
        L.
    half : (t, k) float64
        L^-1 b_S by right-hand side.
    square : (t,) float64 or None
        Squared length of the right-hand side that the residual is of, where the system knows it.
    history : list of PursuitProgress
    misfits : dict of int to float
        Squared residuals that were found from residuals, by cardinality; others are differences.
    """

    size: int
    order: IndexArray
    lower: FloatArray
    half: FloatArray
    square: FloatArray | None
    reason: StopReason
    history: list[PursuitProgress] = field(default_factory=list)
    misfits: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """Regressors of the path."""
        return len(self.order)

    @property
    def directions(self) -> FloatArray:
        """Conjugate directions as columns, in the order's coordinates: (k, k), upper triangular with ones."""
        rows = np.diag(np.diagonal(self.lower)).copy()
        if len(rows):
            solve_lower_transposed(np.ascontiguousarray(self.lower), len(rows), rows)
        return rows.T

    @property
    def steps(self) -> FloatArray:
        """Eta: (t, k)."""
        return np.asarray(self.half / np.diagonal(self.lower))

    @property
    def curvatures(self) -> FloatArray:
        """p' A p of each direction: (k,)."""
        return np.asarray(np.diagonal(self.lower) ** 2)

    @property
    def objectives(self) -> FloatArray:
        """w'A w / 2 - b'w of k = 0, 1, ..., summed over right-hand sides: (k + 1,)."""
        return np.concatenate([[0.0], -0.5 * np.cumsum(np.sum(self.half**2, axis=0))])

    @property
    def residuals(self) -> FloatArray | None:
        """Squared residuals of k = 0, 1, ..., summed over right-hand sides: (k + 1,); None where they are not known."""
        if self.square is None:
            return None
        residuals = np.maximum(float(self.square.sum()) + 2.0 * self.objectives, 0.0)
        for size, value in self.misfits.items():
            residuals[size] = value
        return residuals

    def weights_at(self, k: int) -> FloatArray:
        """w of the first k regressors of the order: (k, t).

        Raises
        ------
        InputError
            The path is shorter.
        """
        if not 0 <= k <= len(self):
            raise InputError(f"the path has cardinalities from 0 to {len(self):,}; got {k}")
        weights = np.ascontiguousarray(self.half[:, :k]).copy()
        if k:
            solve_lower_transposed(np.ascontiguousarray(self.lower), k, weights)
        return weights.T

    def solution(self, k: int | None = None) -> FloatArray:
        """w of cardinality k, the path's last by default, with its zeros: (D, t)."""
        k = len(self) if k is None else k
        full = np.zeros((self.size, len(self.half)))
        full[self.order[:k]] = self.weights_at(k)
        return full


Judge = Callable[[PursuitPath], float]
"""A score of the path so far, such as an error in cross-validation; the smaller the better"""

# Rounds in a row whose choices all lie in the path's span: the numerical rank is reached.
MOST_EMPTY = 5
# A gradient of this many units of b's largest entry is rounding.
SOLVED_UNITS = 8.0
# Of |y|^2: a residual below is found from residuals, since the difference of squares says nothing of it.
DIFFERENCE_SHARE = 1e-10


class Pursuit(Iteration):
    """A pursuit under way, resumed to the same bits for the same system and right-hand sides.

    A checkpoint holds the columns too: a pass over data would bring them back with other bits.

    - `empty`: rounds in a row in which no regressor joined.
    - `scores`: scores of the path after each round; `misfits`: exact squared residuals by cardinality.
    - `rhs` (r, t): targets; the system's right-hand sides b are their projections. The t columns share one order: a
      choice is the best by the sum of their scores.
    """

    saved = ("order", "out")
    counted = ("iteration", "empty", "scores")
    recorded: ClassVar[Mapping[str, type]] = {"history": PursuitProgress}
    parts = ("factor",)

    def __init__(
        self, system: PursuitSystem, rhs: FloatArray, settings: PursuitSettings, judge: Judge | None = None
    ) -> None:
        self._system, self._rhs, self._judge = system, rhs, judge
        self.settings = settings
        self._most = settings.most(system.size)
        self._all = settings.candidates is None
        if self._all:
            self._most = columns_that_fit(system.size, self._most, settings.memory_bytes, settings.size is not None)
        self._b = system.project(rhs)
        self._square = system.square(rhs)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = [np.sum(self._b**2), 0.0 if self._square is None else np.sum(self._square)]
        if not np.isfinite(squares).all():
            raise InputError("the right-hand sides overflow, or their squares do; scale the targets down")
        # A power of two: scores are compared with each other alone, and squares of tiny gradients would all be zero.
        self._unit = float(2.0 ** -max(-1000, int(np.frexp(np.abs(self._b).max(initial=0.0))[1])))
        if settings.residual is not None and self._square is None:
            raise InputError("`residual` needs to know |y|^2: give the system its `square`, or its rows")
        if settings.stagnation is not None and self._square is None and judge is None:
            raise InputError("`stagnation` needs scores: give the system its `square`, or a `judge` of the path")
        targets = self._b.shape[1]
        self.factor = BorderedFactor(self._most, targets)
        self._order: list[int] = []
        self._out = np.zeros(system.size, dtype=bool)  # chosen, or of the path's span
        self._diagonal = system.diagonal() if settings.score != "gradient" and self._all else None
        # Rows: columns of A; and L^-1 of them, where scores take it.
        self._columns = np.empty((self._most if self._all else 0, system.size))
        self._solved = np.empty((self._most if self._all and settings.score == "refit" else 0, system.size))
        self._remaining = self._b.copy() if self._all else None  # b - A w
        self.empty = 0
        self.scores: list[float] = []
        self._misfits: dict[int, float] = {}
        self.history: list[PursuitProgress] = []

    @property
    def order(self) -> IndexArray:
        """The path so far."""
        return np.asarray(self._order, dtype=np.intp)

    @order.setter
    def order(self, order: IndexArray) -> None:
        if len(order) > self._most:
            raise CheckpointError(
                f"the checkpoint is of a path of {len(order):,} regressors; got {self._most:,}. Allow as "
                "many, or start afresh without `resume`"
            )
        self._order = order.tolist()

    @property
    def out(self) -> IndexArray:
        """Regressors that are chosen, or in the span of the path."""
        return np.flatnonzero(self._out)

    @out.setter
    def out(self, indices: IndexArray) -> None:
        self._out[indices] = True

    def advance(self) -> None:
        """Append the regressors with the best scores to the path."""
        clock = Clock()
        with single_threaded_blas():
            choices = min(self.settings.per_round, self._most - self.factor.size)
            first = self.settings.first if self.iteration == 0 else ()
            joined = self._of_all(choices, first) if self._all else self._of_draws(choices, first)
        self.iteration += 1
        self.empty = 0 if joined else self.empty + 1
        self._record(clock.seconds)

    # ------------------------------------------------------------------------------------------------ rounds

    def _of_all(self, choices: int, first: tuple[int, ...]) -> int:
        assert self._remaining is not None
        picked = np.asarray(first, dtype=np.intp)
        if not len(picked):
            values = np.where(self._out, -1.0, self._values())
            picked = np.argsort(-values, kind="stable")[:choices].astype(np.intp)
            picked = picked[values[picked] > 0.0]
        if not len(picked):
            return 0
        columns = self._system.columns(picked)
        joined = self._append(picked, columns[self.order], columns[picked], self._remaining[picked])
        if not len(joined):
            return 0
        before = self.factor.size - len(joined)
        for number, place in enumerate(joined, before):
            self._columns[number] = columns[:, place]
        self._settle(before)
        return len(joined)

    def _settle(self, first: int) -> None:
        """Find L^-1 of the columns from number `first` on, where scores take it, and b - A w."""
        k = self.factor.size
        for number in range(first, k if self.settings.score == "refit" else first):
            lower = self.factor.lower[number]
            row = self._columns[number] - lower[:number] @ self._solved[:number]
            self._solved[number] = row / lower[number]
        self._remaining = self._b - self._columns[:k].T @ self.factor.solution()

    def _values(self) -> FloatArray:
        """Scores of all regressors."""
        assert self._remaining is not None
        gradient = self._unit * self._remaining
        if self._diagonal is None:
            return score("gradient", gradient, gradient, self._b[:, 0], None)
        schur = None
        if self.settings.score == "refit":
            schur = self._diagonal - np.einsum("kj,kj->j", *(self._solved[: self.factor.size],) * 2)
            schur = np.where(schur > LEAST_PIVOT * self._diagonal, schur, 0.0)
        return score(self.settings.score, gradient, gradient, self._diagonal, schur)

    def _of_draws(self, choices: int, first: tuple[int, ...]) -> int:
        settings, groups = self.settings, 1 if first else choices
        assert settings.candidates is not None
        candidates = (
            np.asarray(first, dtype=np.intp)
            if first
            else drawn(settings.seed, self.iteration, choices, settings.candidates, self._out)
        )
        if not len(candidates):
            self.empty = MOST_EMPTY
            return 0
        pool, order = np.unique(candidates), self.order
        products = self._system.candidates(self._rhs, pool, order, self.factor.solution())
        picked = candidates
        if not first:
            diagonal = np.diagonal(products.inner)
            schur = self.factor.schur(products.between, diagonal) if settings.score == "refit" else None
            gradient = self._unit * products.gradient
            values = score(settings.score, gradient, gradient, diagonal, schur)
            values = np.where(values > 0.0, values, -1.0)[np.searchsorted(pool, candidates)]
            picked = best_in_groups(values, candidates, groups, self._out.copy())
        places = np.searchsorted(pool, picked)
        inner = products.inner[np.ix_(places, places)]
        return len(self._append(picked, products.between[:, places], inner, products.gradient[places]))

    def _append(self, picked: IndexArray, between: FloatArray, inner: FloatArray, gradient: FloatArray) -> list[int]:
        """Append to the factor, and return the places of `picked` that it accepted."""
        if not (np.isfinite(inner).all() and np.isfinite(between).all()):
            raise InputError(
                "the system's columns overflow, or are not numbers; leave out or scale down such regressors"
            )
        joined = self.factor.append(between, inner, gradient)
        self._out[picked] = True
        self._order += picked[joined].tolist()
        return joined

    def _record(self, seconds: float) -> None:
        k = self.factor.size
        residual = self._residual()
        steepest = None if self._remaining is None else self._steepest(self._remaining)
        judged = None
        if self._judge is not None:
            judged = float(self._judge(self.path(None)))
        if judged is not None or residual is not None:
            self.scores.append(judged if judged is not None else float(residual or 0.0))
        objective = -0.5 * float(np.sum(self.factor.half**2))
        seconds += self.history[-1].seconds if self.history else 0.0
        self.history.append(
            PursuitProgress(self.iteration, k, objective, residual, steepest, judged, round(seconds, 6))
        )

    def _steepest(self, remaining: FloatArray) -> float:
        """max |g| of the regressors that are not chosen."""
        return float(np.abs(remaining[~self._out]).max(initial=0.0))

    def _residual(self) -> float | None:
        """Squared residual: a difference of squares, or from residuals where that difference says too little."""
        if self._square is None:
            return None
        square, limit = float(self._square.sum()), self.settings.residual
        difference = square - float(np.sum(self.factor.half**2))
        if limit is not None and difference <= max(limit, DIFFERENCE_SHARE * square):
            with single_threaded_blas():
                exact = self._system.misfit(self._rhs, self.order, self.factor.solution())
            if exact is not None:
                self._misfits[self.factor.size] = exact
                return exact
        return max(difference, 0.0)

    # ------------------------------------------------------------------------------------------------ ends

    def stop(self) -> StopReason | None:
        """Return the reason to stop, if there is one."""
        settings, k = self.settings, self.factor.size
        if k < len(settings.first) and self.iteration == 0:
            return None
        last = self.history[-1] if self.history else None
        residual = self._residual() if last is None else last.residual
        if settings.residual is not None and residual is not None and residual <= settings.residual:
            return StopReason("residual", True, f"squared residual {residual:.3g} <= {settings.residual:.3g} by {k:,}")
        if k == self._system.size:
            return StopReason("size", True, f"all {k:,} regressors chosen")
        if self._remaining is not None:
            steepest = self._steepest(self._remaining)
            floor = SOLVED_UNITS * float(np.finfo(float).eps) * float(np.abs(self._b).max(initial=0.0))
            if steepest <= (settings.tolerance or 0.0):
                return StopReason("gradient", True, f"max |g| = {steepest:.3g} of all that is not chosen, by {k:,}")
            if steepest <= floor:
                return StopReason("solved", True, f"max |g| = {steepest:.3g} is rounding: solved by {k:,} regressors")
        if settings.stagnation is not None and stagnates(self.scores, *settings.stagnation):
            window, share = settings.stagnation
            return StopReason("stagnation", True, f"the score changes by less than {share:g} of it in {window} steps")
        if k >= self._most:
            asked = settings.residual is None and settings.tolerance is None and settings.stagnation is None
            advice = "" if asked else "allow more nonzero numbers, or ask for less"
            return StopReason("size", asked, f"{k:,} regressors chosen", advice)
        if self.empty >= MOST_EMPTY or self._out.all():
            return StopReason("dependent", True, f"{k:,} regressors: further regressors change nothing in float64")
        return None

    def path(self, reason: StopReason | None) -> PursuitPath:
        """Return the path so far."""
        factor = self.factor.arrays()
        reason = StopReason("under way", False, "") if reason is None else reason
        return PursuitPath(
            self._system.size,
            self.order,
            np.tril(factor["lower"]),
            factor["half"].copy(),
            self._square,
            reason,
            list(self.history),
            dict(self._misfits),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        return {**super().arrays(), "columns": self._columns[: self.factor.size]}

    def metadata(self) -> dict[str, Any]:
        """Return the rest of a checkpoint."""
        return {**super().metadata(), "misfits": {str(size): value for size, value in self._misfits.items()}}

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        super().restore(arrays, metadata)
        self._misfits = {int(size): float(value) for size, value in metadata["misfits"].items()}
        if self._all:
            self._columns[: self.factor.size] = arrays["columns"]
            with single_threaded_blas():
                self._settle(0)


def pursue(
    system: PursuitSystem | ArrayLike,
    rhs: ArrayLike,
    settings: PursuitSettings | None = None,
    *,
    judge: Judge | None = None,
    watch: Watch = NOBODY,
) -> PursuitPath:
    """Solve A w = b with ever more nonzero numbers, each the one of the largest gradient; return the whole path.

    Parameters
    ----------
    system : PursuitSystem or (D, D) array_like
        A, given (`GramSystem`), as X'X of rows that are read block by block (`RowSystem`), or of a kernel and a pool of
        prototypes (`KernelSystem`).
    rhs : (r,) or (r, t) array_like
        b of a given A (r = D); the targets y of rows or samples. Several columns share one order.
    settings : PursuitSettings, optional
    judge : callable, optional
        Scores the path so far, once a round; for `stagnation`.
    watch : Watch
        Callbacks, checkpoints and interruption. A path that is resumed ends in the same bits.

    Raises
    ------
    InputError
        Values that are not finite, shapes that do not fit, or settings that contradict each other.
    MemoryBudgetError
        The path's columns take more than they may.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        `watch.interrupted` answered true; the rounds so far are saved where there are checkpoints.
    """
    settings = PursuitSettings() if settings is None else settings
    pursuit = Pursuit(as_system(system, settings.memory_bytes), right_hand_sides(rhs), settings, judge)
    return pursuit.path(Loop(watch, identity(settings)).run(pursuit))
