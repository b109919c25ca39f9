"""Greedy choice of basis samples: one engine; sparse greedy and matching pursuit are settings of it.

Each round draws candidates, scores them by sums over the samples, appends the best to the basis, and refits. Every
score is a function of four things: c_i, A_ii, A_Si and the factor of A_SS, where A = K_mn D K_nm + K_mm, b = K_mn D y,
D the inverse of the noise, and c_i = b_i - A_iS beta the gradient's negative on the pool. Methods of the papers differ
in the score alone:

- `refit`: c_i^2 / (A_ii - |L^-1 A_Si|^2), twice the fall of the risk when all are refitted: sparse greedy GPs,
  orthogonal least squares, post-backfitting;
- `single`: c_i^2 / A_ii, twice its fall with the others held: matching pursuit with pre-backfitting;
- `gradient`: c_i^2: orthogonal matching pursuit, sparse conjugate directions;
- `residual`: (y_i - k_iS beta)^2: the basic kernel matching pursuit.

Scores of several targets are summed.

Passes over the samples bring these numbers (`Sums`). Kernel entries between candidates and basis are the coordinator's,
all else comes from the workers. The basis' columns stay with the workers if they have room (`GrowingBasis`). If the
score takes A_SC, a round of few candidates is one pass; otherwise a second one brings the new rows of the
factor. Candidates that only `single` screens are evaluated in float32.

The factor grows by rows (`BorderedFactor`): A_SS = L L', L eta = b_S, A_SS beta = b_S. With the gradient
c_i = b_i - A_iS beta of a new variable, its eta is c_i / sqrt(d_i), d_i = A_ii - |L^-1 A_Si|^2 its Schur complement:
the least value of -b'beta + beta'A beta / 2 falls by exactly c_i^2 / (2 d_i).

References
----------
A. J. Smola, P. Bartlett, Sparse greedy Gaussian process regression (2001), algorithm 1.
S. S. Keerthi, W. Chu, A matching pursuit approach to sparse Gaussian process regression (2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from dkgp.cluster.threads import single_threaded_blas
from dkgp.codec import identity, rule
from dkgp.errors import CheckpointError, InputError, NumericalError
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, noise_at
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.candidates import CandidateSums, GrowingBasis
from dkgp.solvers.base import Clock, Saved
from dkgp.solvers.block_descent.selection import Draws, Subproblem, best_in_groups, matmat_in_parallel, round_generator
from dkgp.solvers.cholesky.dense import solve_lower, solve_lower_transposed
from dkgp.solvers.driver import NOBODY, Iteration, Loop, Watch
from dkgp.solvers.stopping import StopReason

# A variable with less than this share of A_ii outside the others' span counts as part of that span in float64: a sum
# over the samples is off by up to some 1,200 u, a tenth of it. The factor makes more of that where others' weights are
# large, so that near the limit its solutions are good for scores, and for no more.
LEAST_PIVOT = 1e-12


class BorderedFactor(Saved):
    """L and eta; and A_SS itself, above L's diagonal and in a vector."""

    saved = ("lower", "diagonal", "half")
    counted = ()

    def __init__(self, capacity: int, targets: int) -> None:
        self._lower = np.zeros((capacity, capacity))
        self._diagonal = np.zeros(capacity)
        self._half = np.zeros((targets, capacity))
        self.size = 0

    @property
    def system(self) -> FloatArray:
        """A_SS as it was given: (k, k), Fortran order."""
        system = np.array(self._lower[: self.size, : self.size], order="F")
        for i in range(self.size):
            system[i, i] = self._diagonal[i]
            system[i + 1 :, i] = system[i, i + 1 :]
        return system

    @property
    def lower(self) -> FloatArray:
        """L, where its lower triangle is read; A's entries lie above: (k, k)."""
        return self._lower[: self.size, : self.size]

    @property
    def diagonal(self) -> FloatArray:
        """The diagonal of A_SS: (k,)."""
        return self._diagonal[: self.size]

    @property
    def half(self) -> FloatArray:
        """Eta by target: (p, k)."""
        return self._half[:, : self.size]

    def solution(self) -> FloatArray:
        """Beta: (k, p)."""
        solution = self._half[:, : self.size].copy()
        if self.size:
            solve_lower_transposed(self._lower, self.size, solution)
        return solution.T

    def rows(self, between: FloatArray) -> FloatArray:
        """L^-1 A_SC for A_SC (k, q), one candidate a row: (q, k)."""
        rows = np.array(between.T, order="C")
        if self.size:
            solve_lower(self._lower, self.size, rows)
        return rows

    def schur(self, between: FloatArray, diagonal: FloatArray) -> FloatArray:
        """d of candidates with A_SC (k, q) and A_cc (q,): (q,); zero where others leave nothing of one."""
        rows = self.rows(between)
        schur = diagonal - np.einsum("qk,qk->q", rows, rows)
        return np.asarray(np.where(schur > LEAST_PIVOT * diagonal, schur, 0.0))

    def append(self, between: FloatArray, inner: FloatArray, gradient: FloatArray) -> list[int]:
        """Add variables C, one after the other, and return which: those that others leave something of.

        - `between` (k, c): A_SC.
        - `inner` (c, c): A_CC.
        - `gradient` (c, p): b_C - A_CS beta, before any of them.
        """
        old, rows = self.size, self.rows(between)
        corner, remaining = inner - rows @ rows.T, np.array(gradient)
        kept: list[int] = []
        for i in range(len(inner)):
            if not corner[i, i] > LEAST_PIVOT * inner[i, i]:
                continue
            pivot = np.sqrt(corner[i, i])
            column, eta = corner[:, i] / pivot, remaining[i] / pivot
            new = self.size
            self._lower[new, :old] = rows[i]
            # In the columns of those before it lies their share of it.
            self._lower[new, old:new] = corner[i, kept]
            self._lower[new, new] = pivot
            self._lower[:old, new] = between[:, i]
            self._lower[old:new, new] = inner[kept, i]
            self._diagonal[new] = inner[i, i]
            self._half[:, new] = eta
            kept.append(i)
            self.size += 1
            later = slice(i + 1, None)
            corner[later, later] -= np.outer(column[later], column[later])
            remaining[later] -= np.outer(column[later], eta)
            corner[later, i] = column[later]
        return kept

    def restore(self, arrays: Mapping[str, FloatArray], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        self.size = len(arrays["lower"])
        self.lower[:], self.diagonal[:], self.half[:] = (arrays[name] for name in self.saved)


Score = Literal["refit", "single", "gradient", "residual"]
SCORES: tuple[str, ...] = get_args(Score)


def needs_basis_products(kind: Score) -> bool:
    """True if candidates' products with the basis, A_SC, enter: 2 n k multiply-adds for each."""
    return kind == "refit"


def score(
    kind: Score, gradient: FloatArray, residual: FloatArray, diagonal: FloatArray, schur: FloatArray | None
) -> FloatArray:
    """Scores of q candidates: (q,); -1 of one that the basis is known to leave nothing of.

    - `gradient`, `residual` (q, p): c, and y - K_CS beta.
    - `diagonal` (q,): A_ii.
    - `schur` (q,): A_ii - |L^-1 A_Si|^2, zero where nothing is left; for `refit`.
    """
    if kind == "residual":
        return np.asarray(np.sum(residual**2, axis=1))
    squares = np.asarray(np.sum(gradient**2, axis=1))
    if kind == "gradient":
        return squares
    below = diagonal if kind == "single" else schur
    assert below is not None
    return np.where(below > 0.0, squares / np.where(below > 0.0, below, 1.0), -1.0)


# Best of so many drawn at random is one of the best 5 % with a probability of 95 %: ceil(log .05 / log .95);
# section 3.5.2 of the pursuit paper.
CANDIDATES = 59


@dataclass(frozen=True)
class GreedySettings:
    """Settings that determine a choice.

    - `size`: basis samples at most, m.
    - `candidates`: kappa: each choice is the best of its own random draw of this many.
    - `per_round`: choices a round, each from its own draw by the weights before the round. 1 is the papers'; more spare
      rounds.
    - `exhaustive`: score every sample at every choice; for small n.
    - `kept`: best of earlier candidates that were not chosen, scored again in every round.
    - `screen`: of each draw, score no more than this many, the best by `single`, which takes no products with the
      basis.
    - `score_rows`: screen by a fresh random sample of so many rows instead of all; `screen` is one at least then.
    - `gap`: stop at this duality gap; choosing S* for it takes entries here, and none elsewhere.
    - `gap_of`: the denominator of the two bounds' difference: Smola and Bartlett's gap takes the log posterior's size,
      or over the mean of the bounds on the least risk. That is half of y' Kbar^-1 y, which a variance subtracts if
      y is a kernel column: their error bars are judged by it.
    - `dual`: find the gap in any case.
    """

    size: int = field(metadata=rule(decides=False))  # a choice goes on from a smaller one
    score: Score = "refit"
    candidates: int = CANDIDATES
    per_round: int = 1
    exhaustive: bool = False
    kept: int = 0
    screen: int = 0
    score_rows: int | None = None
    gap: float | None = None
    gap_of: Literal["posterior", "risk"] = "posterior"
    dual: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("size", "candidates", "per_round"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be at least 1; got {getattr(self, name)}")
        if self.score not in SCORES:
            raise InputError(f"`score` must be one of {', '.join(SCORES)}; got {self.score!r}")
        if self.gap_of not in ("posterior", "risk"):
            raise InputError(f"`gap_of` must be posterior or risk; got {self.gap_of!r}")
        for name in ("kept", "screen"):
            if getattr(self, name) < 0:
                raise InputError(f"`{name}` must be at least 0; got {getattr(self, name)}")
        if self.score_rows is not None and self.score_rows < 2:
            raise InputError(f"`score_rows` must be at least 2; got {self.score_rows}")
        if self.score_rows is not None and not self.screen:
            object.__setattr__(self, "screen", 1)
        if self.gap is not None and not (np.isfinite(self.gap) and self.gap > 0.0):
            raise InputError(f"the duality gap must be positive; got {self.gap}")

    def checked(self, n: int) -> GreedySettings:
        """Return the settings for n samples; `InputError` where the basis would have more."""
        if self.size > n:
            raise InputError(f"there are {n:,} samples for the basis; got a size of {self.size:,}")
        return self

    def gap_between(self, risk: float, least: float, square: float) -> float:
        """The gap of bounds on the least risk, for y' D y = `square`."""
        middle = square - risk - least if self.gap_of == "posterior" else risk + least
        return 2.0 * (risk - least) / max(middle, float(np.finfo(float).tiny))

    @property
    def tracks_gap(self) -> bool:
        """True if S* is chosen, too."""
        return self.dual or self.gap is not None


@dataclass(frozen=True)
class GreedyProgress:
    """State after a round.

    - `round`, `size`: rounds done, basis samples.
    - `risk`: R of the refitted weights, summed over targets: evaluated for the weights before the round, less
      the known decrease of the round.
    - `least`: min R is at least this, by S*, but for roundings.
    - `gap`: see `GreedySettings.gap_of`.
    """

    round: int
    size: int
    risk: float
    least: float | None
    gap: float | None
    seconds: float


@dataclass(frozen=True)
class GreedyBasis:
    """A basis that was chosen.

    - `indices` (m,): in the order of choice: any first part is the basis that a smaller m would have had, if chosen one
      a round.
    - `weights` (m, p): by the factor that grew with it; a fit in whitened form is more accurate.
    - `dual` (m*,): S*, empty where it was not asked for.
    - `system` (m, m): A_SS = K_mn D K_nm + K_mm as it was summed; None once a fit has had it.
    """

    indices: IndexArray
    weights: FloatArray
    dual: IndexArray
    reason: StopReason
    history: list[GreedyProgress] = field(default_factory=list)
    system: FloatArray | None = None


@dataclass(frozen=True)
class SystemSums:
    """Sums for q candidates C, and a basis S with weights beta; A = K_mn D K_nm + K_mm.

    - `gradient` (q, p): c = b_C - A_CS beta.
    - `residual` (q, p): y_C - K_CS beta.
    - `diagonal` (q,): A_ii.
    - `between` (k, q): A_SC.
    - `inner` (q, q): A_CC.
    """

    gradient: FloatArray
    residual: FloatArray
    diagonal: FloatArray
    between: FloatArray | None
    inner: FloatArray | None

    @classmethod
    def joined(cls, parts: list[SystemSums]) -> SystemSums:
        """Join the sums of candidates in several parts; products between parts are not known."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.between for part in parts if part.between is not None]
        return cls(
            np.concatenate([part.gradient for part in parts]),
            np.concatenate([part.residual for part in parts]),
            np.concatenate([part.diagonal for part in parts]),
            np.concatenate(columns, axis=1) if columns else None,
            None,
        )


class Sums:
    """Passes over the samples for a basis that grows.

    - `targets` (n, p).
    - `square`: y' D y.
    - `risk`: R of the weights of the last pass over all samples, by residuals; of none before.
    """

    def __init__(self, operator: BlockedKernelOperator, targets: FloatArray, capacity: int) -> None:
        self._operator, self._targets = operator, targets
        noise = operator.noise
        self._variances = None if isinstance(noise, float) else np.asarray(noise)
        self._scale = 1.0 / noise if isinstance(noise, float) else 1.0
        weighted = targets**2 * (self._scale if self._variances is None else 1.0 / self._variances[:, None])
        self.square = float(weighted.sum())
        self.risk = 0.5 * self.square
        self._columns = GrowingBasis(operator, self._variances)
        self._left: FloatArray | None = None
        self._chosen: list[int] = []
        # Of the basis: fetched once where the coordinator does not hold all inputs.
        self._inputs = np.empty((capacity, operator.kernel.n_features))

    @property
    def indices(self) -> IndexArray:
        """The basis so far, in the order of choice."""
        return np.asarray(self._chosen, dtype=np.intp)

    def take(self, joined: IndexArray) -> None:
        """Note samples that joined the basis."""
        before = len(self._chosen)
        self._chosen += joined.tolist()
        if len(joined):
            self._left = None
            self._inputs[before : len(self._chosen)] = self._operator.inputs(joined)

    def of(
        self,
        which: IndexArray,
        weights: FloatArray,
        *,
        between: bool = False,
        inner: bool = False,
        single: bool = False,
        samples: IndexArray | None = None,
    ) -> SystemSums:
        """Sums that candidates are scored by; of `samples` an estimate, but for the candidates' own rows.

        `between` and `inner` are found where they are asked for; `single` has float32 do where they are not.
        """
        operator, basis, inputs = self._operator, self._inputs[: len(self._chosen)], self._operator.inputs(which)
        features, basis_features = operator.double.prepare(inputs), operator.double.prepare(basis)
        sums = self._pass(inputs, weights, between, inner, single, samples)
        if samples is None:
            assert self._left is not None
            image = self._targets[which] - self._left[which]
        else:
            image = (
                operator.double.matmat(features, basis_features, weights) if len(basis) else np.zeros((len(which), 1))
            )
        residual, prior = self._targets[which] - image, np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
        scale, products = self._scale, None
        if sums.between is not None:
            products = np.zeros((0, len(which)))
            if len(basis):
                products = scale * sums.between + operator.double.tile(basis_features, features)
        projected, squares = scale * sums.projected, scale * sums.squares
        if samples is not None:
            # A candidate's own row is the largest term of its sums: known, and the others' are estimated.
            own_scale = scale if self._variances is None else 1.0 / self._variances[which]
            term, square = (own_scale * prior)[:, None] * residual, own_scale * prior**2
            sampled = np.isin(which, samples)
            share = (operator.n - 1.0) / (len(samples) - sampled)
            projected = share[:, None] * (projected - np.where(sampled[:, None], term, 0.0)) + term
            squares = share * (squares - np.where(sampled, square, 0.0)) + square
        return SystemSums(
            projected - image,
            residual,
            squares + prior,
            products,
            None if sums.inner is None else scale * sums.inner + operator.double.tile(features, features),
        )

    def _pass(
        self,
        inputs: FloatArray,
        weights: FloatArray,
        between: bool,
        inner: bool,
        single: bool,
        samples: IndexArray | None,
    ) -> CandidateSums:
        """A pass over the samples, which finds r where it is not known, or over some of them, which always does."""
        known = None if samples is not None else self._left
        sums = self._columns.sums(
            inputs,
            self._targets if known is None else known,
            self._inputs[: len(self._chosen)],
            weights if known is None else None,
            between=between,
            inner=inner,
            single=single,
            samples=samples,
        )
        if samples is None and known is None:
            self._left = sums.residual
            penalty = float(np.sum(weights * (self._targets[self.indices] - self._left[self.indices])))
            self.risk = 0.5 * (self._scale * float(sums.misfit.sum()) + penalty)
        return sums

    def close(self) -> None:
        """Have workers forget the basis' columns."""
        self._columns.close()


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
        """Add the samples of a checkpoint, one after the other."""
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
                # A sample's conditional variance is never less than its noise.
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
                f"the checkpoint is of a basis that has {len(indices):,} samples already; got a size of "
                f"{self.settings.size:,}. Allow as many, or start again without `resume`"
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
        """The best of each run, as many as requested; a run leaves out those that an earlier one took, if it can.

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
        """Append the variables that the factor accepts; return their number."""
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
        """Release the columns that workers keep for this choice."""
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
            message = f"{size:,} basis samples: further samples change nothing in float64"
            return StopReason(
                "dependent", reached, message, "" if reached else "raise the noise variance, or request less accuracy"
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
    loop = Loop(watch, identity(settings))
    with operator.watched(loop.pass_on):
        engine = GreedyEngine(operator, targets, settings)
        try:
            return engine.result(loop.run(engine))
        finally:
            engine.close()
