"""The engine of greedy bases: draw candidates, score them by sums over the samples, refit, and again.

Every score is a function of four things: c_i, A_ii, A_Si and the factor of A_SS (see `scores`), where A = K_mn D K_nm +
K_mm and D the inverse of the noise. Passes over the samples bring them (see `sums`); what is of size m is the
coordinator's. The basis' columns stay with the workers where they have room (see `GrowingBasis`). Where the score takes
A_SC, a round of few candidates is one pass; otherwise a second one for the chosen brings what the factor grows by.
What is looked at for `single` alone is looked at in float32.

References
----------
A. J. Smola, P. Bartlett, Sparse greedy Gaussian process regression (2001), algorithm 1.
S. S. Keerthi, W. Chu, A matching pursuit approach to sparse Gaussian process regression (2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import CheckpointError, InputError, NumericalError
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.base import Clock
from dkgp.solvers.block_descent.draws import Draws, round_generator
from dkgp.solvers.block_descent.selection import best_in_groups
from dkgp.solvers.block_descent.subproblem import Subproblem, matmat_in_parallel
from dkgp.solvers.driver import NOBODY, Iteration, Loop, Watch
from dkgp.solvers.greedy_basis.bordered import BorderedFactor
from dkgp.solvers.greedy_basis.scores import Score, needs_basis_products, score
from dkgp.solvers.greedy_basis.settings import GreedyBasis, GreedyProgress, GreedySettings
from dkgp.solvers.greedy_basis.sums import Sums, SystemSums
from dkgp.solvers.stopping import StopReason

# Candidates whose products with the basis are found at a time; with each other, where there are no more than this.
CANDIDATES_AT_ONCE = 2048
MOST_JOINED = 128
# Rounds in a row whose candidates are all of the basis' span: the kernel's numerical rank, or so, is reached.
MOST_EMPTY = 5
# Random numbers apart from the draws of the basis itself: of S*, and of rows.
DUAL_STREAM, ROWS_STREAM = 1 << 40, 1 << 41


class DualSubset:
    """The other half of Smola and Bartlett's gap: samples S* whose own exact model bounds the least risk from below.

    Q*(a) = -y'a + a' Kbar a / 2 over a on S* has its minimum at the exact model of S* alone. S* grows by samples that
    lower it most, each the best of its own draw, judged after refitting.

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
    def indices(self) -> IndexArray:
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
            draws = Draws(operator.n, 1, self._candidates, self._seed + DUAL_STREAM, active.size)
            drawn = draws.take(1, self._taken, operator.n - active.size)
            error, curvature = -self._targets[drawn], operator.diagonal()[drawn]
            if active.size:
                rows, columns = operator.features(drawn, "double"), active.features
                error = error + matmat_in_parallel(operator.double, rows, columns, active.guide())
                schur = curvature - np.sum(active.half_solve(active.rows(drawn)) ** 2, axis=1)
                # What others leave of a sample's own variance is never less than its noise.
                curvature = np.maximum(schur, noise_at(operator.noise, drawn))
            scores = np.sum(error**2, axis=1) / curvature
            picked = best_in_groups(scores, drawn, 1, self._taken)
            if not len(picked):
                raise NumericalError(
                    f"the bound on the duality gap takes no sample beyond {active.size:,}: none of those drawn has a "
                    "score that is a number. Bring inputs and targets that are far out closer, or leave `gap` out"
                )
            self._append(picked)

    def _append(self, picked: IndexArray) -> None:
        self._taken[picked] = True
        self._subproblem.append(picked, -self._targets[picked])


class GreedyEngine(Iteration):
    """A choice under way, resumed to the same bits with the same settings.

    With a larger `size` it goes on from where it ended, with all that was chosen. It is the choice of that size from
    the start, too, unless the smaller one cut its last round short.

    - `targets` (n, p): standardised.
    - `kept`: the best earlier candidates that were not chosen.
    - `empty`: rounds in a row in which no sample joined.
    """

    saved = ("chosen", "out", "kept", "dual")
    counted = ("iteration", "empty")
    recorded: ClassVar[Mapping[str, type]] = {"history": GreedyProgress}
    parts = ("factor",)

    def __init__(self, operator: BlockedKernelOperator, targets: FloatArray, settings: GreedySettings) -> None:
        if targets.ndim != 2 or len(targets) != operator.n:
            raise InputError(f"expected targets of shape ({operator.n:,}, p); got {targets.shape}")
        self._n = operator.n
        self.settings = settings.checked(operator.n)
        size, p = settings.size, targets.shape[1]
        self.factor = BorderedFactor(size, p)
        self._dual = (
            DualSubset(operator, targets, size, settings.candidates, settings.seed) if settings.tracks_gap else None
        )
        self._sums = Sums(operator, targets, size)
        self._out = np.zeros(operator.n, dtype=bool)  # chosen, or of the basis' span
        self.kept = np.empty(0, dtype=np.intp)
        self.history: list[GreedyProgress] = []
        self.empty = 0

    @property
    def chosen(self) -> IndexArray:
        """The basis so far, in the order of choice."""
        return self._sums.indices

    @chosen.setter
    def chosen(self, indices: IndexArray) -> None:
        if len(indices) > self.settings.size:
            raise CheckpointError(
                f"the checkpoint is of a basis that has {len(indices):,} samples already; {self.settings.size:,} were "
                "asked for. Allow as many, or start afresh without `resume`"
            )
        self._sums.take(np.asarray(indices, dtype=np.intp))

    @property
    def out(self) -> IndexArray:
        """Samples that are chosen, or in the span of the basis."""
        return np.flatnonzero(self._out)

    @out.setter
    def out(self, indices: IndexArray) -> None:
        self._out[indices] = True

    @property
    def dual(self) -> IndexArray:
        """S*, in the order of choice; empty without a gap."""
        return np.empty(0, dtype=np.intp) if self._dual is None else self._dual.indices

    @dual.setter
    def dual(self, indices: IndexArray) -> None:
        if self._dual is not None:
            self._dual.take(np.asarray(indices, dtype=np.intp))

    @property
    def weights(self) -> FloatArray:
        """Beta: (k, p)."""
        return self.factor.solution()

    def advance(self) -> None:
        """Draw candidates, score them, and append the best to the basis."""
        clock, settings = Clock(), self.settings
        with single_threaded_blas():
            before = self.factor.size
            choices = min(settings.per_round, settings.size - before)
            candidates, groups = self._candidates(choices)
            if not len(candidates):
                self.empty = MOST_EMPTY
                return
            weights, screened = self.weights, candidates
            looked = self._looked_at("single" if settings.screen else settings.score, candidates, weights)
            if settings.screen:
                assert looked is not None
                screened = self._screened(candidates, looked, groups)
            pool, sums, values = screened, None, looked
            if settings.screen or looked is None:
                pool, sums, values = self._scored(screened, weights)
            assert values is not None
            picked = best_in_groups(values, screened, groups, self._out)
            self._keep(candidates, values if looked is None else looked)
            joined = self._join(picked, pool, sums, weights)
            self.iteration += 1
            self.empty = 0 if joined else self.empty + 1
            self._record(before, clock.seconds)

    def _candidates(self, wanted: int) -> tuple[IndexArray, int]:
        """Candidates in equal runs, one for each choice, of those that are not out; and the number of runs."""
        settings, n = self.settings, self._n
        remaining = n - int(np.count_nonzero(self._out))
        if not remaining:
            return np.empty(0, dtype=np.intp), 0
        if settings.exhaustive:
            return np.tile(np.flatnonzero(~self._out).astype(np.intp), wanted), wanted
        draws = Draws(n, wanted, settings.candidates, settings.seed, self.iteration)
        runs = draws.take(wanted, self._out, remaining).reshape(wanted, -1)
        kept = self.kept[~self._out[self.kept]]
        return np.concatenate([runs, np.tile(kept, (wanted, 1))], axis=1).ravel(), wanted

    def _looked_at(self, kind: Score, candidates: IndexArray, weights: FloatArray) -> FloatArray | None:
        """Scores without products with the basis; None of a kind that takes them.

        Those that screen may be of a fresh sample of rows.
        """
        if needs_basis_products(kind):
            return None
        settings, n = self.settings, self._n
        rows = None
        if settings.screen and settings.score_rows is not None and settings.score_rows < n:
            generator = round_generator(settings.seed + ROWS_STREAM, self.iteration)
            rows = np.sort(generator.choice(n, settings.score_rows, replace=False)).astype(np.intp)
        pool, places = np.unique(candidates, return_inverse=True)
        sums = SystemSums.joined(
            [
                self._sums.of(pool[start : start + CANDIDATES_AT_ONCE], weights, single=kind == "single", samples=rows)
                for start in range(0, max(1, len(pool)), CANDIDATES_AT_ONCE)
            ]
        )
        return score(kind, sums.gradient, sums.residual, sums.diagonal, None)[places]

    def _screened(self, candidates: IndexArray, values: FloatArray, groups: int) -> IndexArray:
        """The best of each run, so many as are asked for; a run leaves out whom an earlier one took, as far as may be.

        Candidates that were kept are in every run: they would leave nobody else in any.
        """
        taken, best = np.zeros(self._n, dtype=bool), []
        for run, scores in zip(candidates.reshape(groups, -1), values.reshape(groups, -1), strict=True):
            free = np.where(taken[run], -1.0, scores)
            for _ in range(self.settings.screen):
                one = run[np.argmax(free)]
                best.append(one)
                free[run == one] = -2.0
                taken[one] = True
        return np.asarray(best, dtype=np.intp)

    def _scored(self, candidates: IndexArray, weights: FloatArray) -> tuple[IndexArray, SystemSums, FloatArray]:
        """Candidates, once each, their sums, and the scores of all."""
        kind = self.settings.score
        pool, places = np.unique(candidates, return_inverse=True)
        few, parts = len(pool) <= MOST_JOINED, []
        between = few or needs_basis_products(kind)
        for start in range(0, max(1, len(pool)), CANDIDATES_AT_ONCE):
            part = pool[start : start + CANDIDATES_AT_ONCE]
            parts.append(self._sums.of(part, weights, between=between, inner=few))
        sums = SystemSums.joined(parts)
        schur = None if sums.between is None else self.factor.schur(sums.between, sums.diagonal)
        values = score(kind, sums.gradient, sums.residual, sums.diagonal, schur)
        self._out[pool[values < 0.0]] = True
        return pool, sums, values[places]

    def _join(self, picked: IndexArray, pool: IndexArray, sums: SystemSums | None, weights: FloatArray) -> int:
        """Append to the factor what it can take; how many that is."""
        if not len(picked):
            return 0
        places = np.searchsorted(pool, picked)
        if sums is None or sums.between is None:
            sums, places = self._sums.of(picked, weights, between=True, inner=True), np.arange(len(picked))
        between, inner = sums.between, sums.inner
        inner = self._sums.of(picked, weights, inner=True).inner if inner is None else inner[np.ix_(places, places)]
        assert between is not None
        assert inner is not None
        joined = self.factor.append(between[:, places], inner, sums.gradient[places])
        self._out[np.delete(picked, joined)] = True  # of the others' span
        self._sums.take(picked[joined])
        return len(joined)

    def _keep(self, candidates: IndexArray, values: FloatArray) -> None:
        """Remember the best that were not chosen."""
        if self.settings.kept:
            order = np.argsort(-values, kind="stable")
            best = candidates[order]
            _, first = np.unique(best, return_index=True)
            best = best[np.sort(first)]
            self.kept = np.sort(best[~self._out[best]][: self.settings.kept])

    def _record(self, before: int, seconds: float) -> None:
        """Note the risk after the round: that before it, by residuals, less the known fall."""
        risk = self._sums.risk - 0.5 * float(np.sum(self.factor.half[:, before:] ** 2))
        least = gap = None
        if self._dual is not None:
            self._dual.grow(self.factor.size)
            least = 0.5 * float(self._dual.quadratic.sum())
            gap = self.settings.gap_between(risk, least, self._sums.square)
        seconds += self.history[-1].seconds if self.history else 0.0
        self.history.append(GreedyProgress(self.iteration, self.factor.size, risk, least, gap, round(seconds, 6)))

    def close(self) -> None:
        """Have the workers forget what they keep for this choice."""
        self._sums.close()

    def stop(self) -> StopReason | None:
        """Return the reason to stop, if there is one."""
        settings, size = self.settings, self.factor.size
        gap = self.history[-1].gap if self.history else None
        if settings.gap is not None and gap is not None and gap <= settings.gap:
            return StopReason("gap", True, f"duality gap {gap:.3g} <= {settings.gap:.3g} with {size:,} basis samples")
        if size >= settings.size:
            reached = settings.gap is None
            message = "" if gap is None else f"; the duality gap is {gap:.3g}"
            advice = "" if reached else "allow a larger basis, or a larger gap"
            return StopReason("size", reached, f"{size:,} basis samples chosen{message}", advice)
        if self.empty >= MOST_EMPTY:
            reached = settings.gap is None
            message = f"no sample has anything to add to {size:,} basis samples that sums in float64 could tell"
            return StopReason(
                "dependent", reached, message, "" if reached else "raise the noise variance, or ask for less"
            )
        return None

    def result(self, reason: StopReason) -> GreedyBasis:
        """Return the choice."""
        return GreedyBasis(self.chosen, self.weights, self.dual, reason, self.history, self.factor.system)


def choose_greedily(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    settings: GreedySettings,
    *,
    watch: Watch = NOBODY,
) -> GreedyBasis:
    """Choose basis samples for standardised targets (n, p) until the size, the gap, or the samples' span is reached.

    - `targets` (n, p).
    - `watch`: callbacks, checkpoints and interruption. A choice that is resumed ends in the same bits.

    Raises `InputError`: a basis larger than the data, or too few rows for scores; `CheckpointError`: the checkpoint
    belongs to another run; `InterruptedRunError`: `watch.interrupted` answered true; the rounds so far are saved where
    there are checkpoints.
    """
    loop = Loop(watch, settings.identity())
    with operator.watched(loop.heed_within, watch.within):
        engine = GreedyEngine(operator, targets, settings)
        try:
            return engine.result(loop.run(engine))
        finally:
            engine.close()
