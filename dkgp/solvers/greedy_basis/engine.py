"""The engine of greedy bases: draw candidates, score them by sums over the samples, refit, and again.

Every score is a function of four things: c_i, A_ii, A_Si and the factor of A_SS (see `scores`), where A = K_mn D K_nm +
K_mm and D the inverse of the noise. Workers return sums over the samples, K_C D r, the squares and K_S D K_C, with the
residual r of the weights at hand made where it is used; kernel entries between candidates and basis, and all of size
m, are the coordinator's. A round of one choice is one pass over n (q + k) entries. One of several choices, or one whose
score does not need A_SC, takes a second one for the chosen, whose sums over all samples are what the factor grows by.

References
----------
A. J. Smola, P. Bartlett, Sparse greedy Gaussian process regression (2001), algorithm 1.
S. S. Keerthi, W. Chu, A matching pursuit approach to sparse Gaussian process regression (2006).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.threads import single_threaded_blas
from dkgp.data.types import ProgressCallback
from dkgp.errors import CheckpointError, InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import candidate_sums
from dkgp.solvers.block_descent.selection import best_in_groups, round_generator
from dkgp.solvers.checkpointing import Checkpointing, Checkpoints, Interruption, Saved
from dkgp.solvers.greedy_basis.bordered import BorderedFactor
from dkgp.solvers.greedy_basis.dual import DualSubset
from dkgp.solvers.greedy_basis.scores import needs_basis_products, score
from dkgp.solvers.greedy_basis.settings import GreedyBasis, GreedyProgress, GreedySettings
from dkgp.solvers.stopping import StopReason

__all__ = ["GreedyEngine", "choose_greedily", "run_rounds"]

# Candidates whose products with the basis are found at a time; with each other, where there are no more than this.
CANDIDATES_AT_ONCE = 2048
MOST_JOINED = 128
# Rounds in a row whose candidates are all of the basis' span: the kernel's numerical rank, or so, is reached.
MOST_EMPTY = 5
ROWS_STREAM = 1 << 41


@dataclass(frozen=True)
class _Sums:
    """A's entries for candidates, and their gradient."""

    gradient: FloatArray
    residual: FloatArray
    diagonal: FloatArray
    between: FloatArray | None
    inner: FloatArray | None
    misfit: FloatArray

    @classmethod
    def joined(cls, parts: list[_Sums]) -> _Sums:
        between = None if parts[0].between is None else np.concatenate([p.between for p in parts], axis=1)
        return cls(
            np.concatenate([part.gradient for part in parts]),
            np.concatenate([part.residual for part in parts]),
            np.concatenate([part.diagonal for part in parts]),
            between,
            None,
            parts[0].misfit,
        )


class GreedyEngine:
    """A choice under way.

    Parameters
    ----------
    operator : BlockedKernelOperator
    targets : (n, p) float64
        Standardised.
    settings : GreedySettings

    Attributes
    ----------
    iteration : int
        Rounds done.
    history : list of GreedyProgress
    """

    def __init__(self, operator: BlockedKernelOperator, targets: FloatArray, settings: GreedySettings) -> None:
        if targets.ndim != 2 or len(targets) != operator.n:
            raise InputError(f"expected targets of shape ({operator.n:,}, p); got {targets.shape}")
        self._operator, self._targets = operator, targets
        self.settings = settings.checked(operator.n)
        size, p = settings.size, targets.shape[1]
        noise = operator.noise
        self._variances = None if isinstance(noise, float) else np.asarray(noise)
        self._scale = 1.0 / noise if isinstance(noise, float) else 1.0
        weighted = targets**2 * (self._scale if self._variances is None else 1.0 / self._variances[:, None])
        self._square = float(weighted.sum())
        self._factor = BorderedFactor(size, p)
        self._dual = (
            DualSubset(operator, targets, size, settings.candidates, settings.seed) if settings.tracks_gap else None
        )
        self._chosen: list[int] = []
        # Of the basis: fetched once where the coordinator does not hold all inputs.
        self._inputs = np.empty((size, operator.kernel.n_features))
        self._out = np.zeros(operator.n, dtype=bool)  # chosen, or of the basis' span
        self._kept = np.empty(0, dtype=np.intp)
        self.iteration = 0
        self.history: list[GreedyProgress] = []
        self._empty = 0  # rounds that ended with nobody joining, one after the other

    @property
    def indices(self) -> IndexArray:
        """The basis so far, in the order of choice."""
        return np.asarray(self._chosen, dtype=np.intp)

    @property
    def weights(self) -> FloatArray:
        """Beta: (k, p)."""
        return self._factor.solution()

    def advance(self) -> int:
        """One round; return how many samples joined the basis."""
        began, settings = time.perf_counter(), self.settings
        with single_threaded_blas():
            before = self._factor.size
            wanted = min(settings.per_round, settings.size - before)
            candidates, groups = self._candidates(wanted)
            if not len(candidates):
                self._empty = MOST_EMPTY
                return 0
            weights = self.weights
            looked_at, first_values = candidates, None
            if settings.screen:
                first_values = self._screening(candidates, weights)
                candidates = _screened(candidates, first_values, groups, settings.screen)
            pool, sums, values = self._scored(candidates, weights)
            picked = best_in_groups(values, candidates, groups, self._out)
            self._keep(looked_at, values if first_values is None else first_values)
            gained, misfit = self._join(picked, np.searchsorted(pool, picked), sums, weights)
            self.iteration += 1
            self._empty = 0 if gained else self._empty + 1
            self._record(weights, before, misfit, time.perf_counter() - began)
        return gained

    def _candidates(self, wanted: int) -> tuple[IndexArray, int]:
        """Candidates in equal runs, one for each choice, those that are out among them; and the number of runs."""
        settings, n = self.settings, self._operator.n
        if settings.exhaustive:
            left = np.flatnonzero(~self._out).astype(np.intp)
            return (np.tile(left, wanted), wanted) if len(left) else (left, 0)
        draws = round_generator(settings.seed, self.iteration).integers(
            0, n, wanted * settings.candidates, dtype=np.intp
        )
        runs = draws.reshape(wanted, settings.candidates)
        if self._out[draws].all():
            # So many are chosen that a draw may hold nobody else: whoever is left then.
            left = np.flatnonzero(~self._out)[: settings.candidates].astype(np.intp)
            return (np.tile(left, wanted), wanted) if len(left) else (left, 0)
        kept = self._kept[~self._out[self._kept]]
        return np.concatenate([runs, np.tile(kept, (wanted, 1))], axis=1).ravel(), wanted

    def _screening(self, candidates: IndexArray, weights: FloatArray) -> FloatArray:
        """Scores by `single`, on a fresh sample of rows where one is asked for; -1 of candidates that are out."""
        settings, n = self.settings, self._operator.n
        rows = None
        if settings.score_rows is not None and settings.score_rows < n:
            generator = round_generator(settings.seed + ROWS_STREAM, self.iteration)
            rows = np.sort(generator.choice(n, settings.score_rows, replace=False)).astype(np.intp)
        inside = ~self._out[candidates]
        pool, values = np.unique(candidates[inside]), np.full(len(candidates), -1.0)
        sums = self._sums(pool, weights, samples=rows)
        found = score("single", sums.gradient, sums.residual, sums.diagonal, None)
        values[inside] = found[np.searchsorted(pool, candidates[inside])]
        return values

    def _scored(self, candidates: IndexArray, weights: FloatArray) -> tuple[IndexArray, _Sums, FloatArray]:
        """Candidates that are not out, once each, their sums, and the scores of all."""
        kind, inside = self.settings.score, ~self._out[candidates]
        pool = np.unique(candidates[inside])
        few = len(pool) <= MOST_JOINED
        between, parts = few or needs_basis_products(kind), []
        for start in range(0, max(1, len(pool)), CANDIDATES_AT_ONCE):
            some = pool[start : start + CANDIDATES_AT_ONCE]
            parts.append(self._sums(some, weights, between=between, inner=few))
        sums = parts[0] if len(parts) == 1 else _Sums.joined(parts)
        schur = None if sums.between is None else self._factor.schur(sums.between, sums.diagonal)
        found = score(kind, sums.gradient, sums.residual, sums.diagonal, schur)
        self._out[pool[found < 0.0]] = True
        values = np.full(len(candidates), -1.0)
        values[inside] = found[np.searchsorted(pool, candidates[inside])]
        return pool, sums, values

    def _sums(
        self,
        which: IndexArray,
        weights: FloatArray,
        *,
        between: bool = False,
        inner: bool = False,
        samples: IndexArray | None = None,
    ) -> _Sums:
        """Sums that candidates are scored by; of `samples` an estimate, but for the candidates' own rows."""
        operator, basis, inputs = self._operator, self._inputs[: len(self._chosen)], self._operator.inputs(which)
        own, theirs = operator.double.prepare(inputs), operator.double.prepare(basis)
        found = candidate_sums(
            operator,
            inputs,
            self._targets,
            (basis, weights) if len(basis) else None,
            self._variances,
            between=between,
            inner=inner,
            samples=samples,
        )
        image = np.zeros((len(which), weights.shape[1]))
        if len(basis):
            image = operator.double.matmat(own, theirs, weights)
        residual, prior = self._targets[which] - image, np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
        scale, products = self._scale, None
        if found.between is not None:
            products = np.zeros((0, len(which)))
            if len(basis):
                products = scale * found.between + operator.double.tile(theirs, own)
        projected, squares = scale * found.projected, scale * found.squares
        if samples is not None:
            # A candidate's own row is the largest term of its sums: known, and the others' are estimated.
            own_scale = scale if self._variances is None else 1.0 / self._variances[which]
            term, square = (own_scale * prior)[:, None] * residual, own_scale * prior**2
            there = np.isin(which, samples)
            share = (operator.n - 1.0) / (len(samples) - there)
            projected = share[:, None] * (projected - np.where(there[:, None], term, 0.0)) + term
            squares = share * (squares - np.where(there, square, 0.0)) + square
        return _Sums(
            projected - image,
            residual,
            squares + prior,
            products,
            None if found.inner is None else scale * found.inner + operator.double.tile(own, own),
            scale * found.misfit,
        )

    def _join(self, picked: IndexArray, places: IndexArray, sums: _Sums, weights: FloatArray) -> tuple[int, FloatArray]:
        """Append to the factor what it can take; how many, and r' D r over all samples before."""
        if not len(picked):
            return 0, sums.misfit
        gradient, between, inner = sums.gradient[places], sums.between, sums.inner
        if between is not None and inner is not None:
            between, inner = between[:, places], inner[np.ix_(places, places)]
        elif between is not None and len(picked) == 1:
            between, inner = between[:, places], sums.diagonal[places][:, None]
        else:
            exact = self._sums(picked, weights, between=True, inner=True)
            gradient, between, inner = exact.gradient, exact.between, exact.inner
        assert between is not None
        assert inner is not None
        joined = self._factor.append(between, inner, gradient)
        self._out[np.delete(picked, joined)] = True  # of the others' span
        self._take(picked[joined])
        return len(joined), sums.misfit

    def _take(self, joined: IndexArray) -> None:
        """Note samples that joined the basis."""
        before = len(self._chosen)
        self._chosen += joined.tolist()
        if len(joined):
            self._inputs[before : len(self._chosen)] = self._operator.inputs(joined)

    def _keep(self, candidates: IndexArray, values: FloatArray) -> None:
        """Remember the best that were not chosen."""
        if self.settings.kept:
            order = np.argsort(-values, kind="stable")
            best = candidates[order]
            _, first = np.unique(best, return_index=True)
            best = best[np.sort(first)]
            self._kept = np.sort(best[~self._out[best]][: self.settings.kept])

    def _record(self, weights: FloatArray, before: int, misfit: FloatArray, seconds: float) -> None:
        """Note the risk after the round: that before it, by residuals, less the known fall."""
        penalty = 0.0
        if before:
            features = self._operator.double.prepare(self._inputs[:before])
            penalty = float(np.sum(weights * self._operator.double.matmat(features, features, weights)))
        fall = float(np.sum(self._factor.half[:, before:] ** 2))
        risk = 0.5 * (float(misfit.sum()) + penalty - fall)
        least = gap = None
        if self._dual is not None:
            self._dual.grow(self._factor.size)
            least = 0.5 * float(self._dual.quadratic.sum())
            gap = self.settings.gap_between(risk, least, self._square)
        seconds += self.history[-1].seconds if self.history else 0.0
        self.history.append(GreedyProgress(self.iteration, self._factor.size, risk, least, gap, round(seconds, 6)))

    def stops(self) -> StopReason | None:
        """Return the reason to stop, if there is one."""
        settings, size = self.settings, self._factor.size
        gap = self.history[-1].gap if self.history else None
        if settings.gap is not None and gap is not None and gap <= settings.gap:
            return StopReason("gap", True, f"duality gap {gap:.3g} <= {settings.gap:.3g} with {size:,} basis samples")
        if size >= settings.size:
            reached = settings.gap is None
            told = "" if gap is None else f"; the duality gap is {gap:.3g}"
            advice = "" if reached else "allow a larger basis, or a larger gap"
            return StopReason("size", reached, f"{size:,} basis samples chosen{told}", advice)
        if self._empty >= MOST_EMPTY:
            reached = settings.gap is None
            told = f"no sample has anything to add to {size:,} basis samples that sums in float64 could tell"
            return StopReason(
                "dependent", reached, told, "" if reached else "raise the noise variance, or ask for less"
            )
        return None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""
        return {
            "chosen": self.indices,
            "out": np.flatnonzero(self._out),
            "kept": self._kept,
            "dual": np.empty(0, dtype=np.intp) if self._dual is None else self._dual.chosen,
            **{f"factor_{name}": value for name, value in self._factor.arrays().items()},
        }

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types."""
        history = [record.to_json() for record in self.history]
        return {"iteration": self.iteration, "empty": self._empty, "history": history}

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same operator and targets: to the same bits, with the same settings.

        With a larger `size` it goes on from where it ended, with all that was chosen. It is the choice of that size
        from the start, too, unless the smaller one cut its last round short.
        """
        held, size = len(arrays["chosen"]), self.settings.size
        if held > size:
            raise CheckpointError(
                f"the checkpoint is of a basis that has {held:,} samples already; {size:,} were asked for. Allow as "
                "many, or start afresh without `resume`"
            )
        self._take(np.asarray(arrays["chosen"], dtype=np.intp))
        self._out[arrays["out"]] = True
        self._kept = np.asarray(arrays["kept"], dtype=np.intp)
        self._factor.restore(arrays["factor_lower"], arrays["factor_half"])
        if self._dual is not None:
            self._dual.take(np.asarray(arrays["dual"], dtype=np.intp))
        self.iteration, self._empty = int(metadata["iteration"]), int(metadata["empty"])
        self.history = [GreedyProgress(**record) for record in metadata["history"]]

    def result(self, reason: StopReason) -> GreedyBasis:
        """Return the choice."""
        dual = np.empty(0, dtype=np.intp) if self._dual is None else self._dual.chosen
        return GreedyBasis(self.indices, self.weights, dual, reason, self.history)


def _screened(candidates: IndexArray, values: FloatArray, groups: int, count: int) -> IndexArray:
    """The best of each run that no run before it has, `count` each; its best in any case where too few are left.

    Runs share what was kept: with the same best of it for all, but one of them could choose.
    """
    order = np.argsort(-values.reshape(groups, -1), axis=1, kind="stable")
    found: list[int] = []
    for run in np.take_along_axis(candidates.reshape(groups, -1), order, axis=1).tolist():
        had = set(found)
        own = list(dict.fromkeys(index for index in run if index not in had))
        found += (own + run)[:count]
    return np.asarray(found, dtype=np.intp)


def choose_greedily(
    operator: BlockedKernelOperator,
    targets: FloatArray,
    settings: GreedySettings,
    *,
    callback: Callable[[GreedyProgress], None] | None = None,
    within: ProgressCallback | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> GreedyBasis:
    """Choose basis samples for standardised targets (n, p) until the size, the gap, or the samples' span is reached.

    Parameters
    ----------
    operator : BlockedKernelOperator
    targets : (n, p) float64
    settings : GreedySettings
    callback : callable, optional
        Called after every round.
    within, checkpointing, interrupted
        See `dkgp.solvers.solve`. A choice that is resumed ends in the same bits.

    Raises
    ------
    InputError
        A basis larger than the data, or too few rows for scores.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        As was wished; the rounds so far are saved where there are checkpoints.
    """
    checkpoints = Checkpoints(checkpointing, settings.identity(), dict)
    interruption = Interruption(interrupted, checkpoints)
    with operator.watched(interruption.heed_within, within):
        engine = GreedyEngine(operator, targets, settings)
        found = checkpoints.latest()
        if found is not None:
            engine.restore(found.arrays, found.metadata["state"])
        return run_rounds(engine, engine, checkpoints, interruption, callback)


def run_rounds(
    engine: GreedyEngine,
    saved: Saved,
    checkpoints: Checkpoints,
    interruption: Interruption,
    callback: Callable[[GreedyProgress], None] | None = None,
) -> GreedyBasis:
    """Advance a choice to its end; `saved` is what checkpoints are of, the engine or a run that it is part of."""
    while (reason := engine.stops()) is None:
        interruption.heed(saved)
        engine.advance()
        if callback is not None and engine.history:
            callback(engine.history[-1])
        checkpoints.save_if_due(saved)
    # What comes after a choice may take as long as it.
    if checkpoints.saved_iteration != saved.iteration:
        checkpoints.save(saved)
    return engine.result(reason)
