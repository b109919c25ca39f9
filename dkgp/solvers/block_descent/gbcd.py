"""Greedy block coordinate descent (Bo and Sminchisescu 2008, Algorithm 1) with a short memory of conjugate steps.

One round: the selection chooses an active set B and the step delta that minimises the objective over it; the step is
made conjugate to the last few (which costs no kernel evaluation, because their images under Kbar are the updates of
their own rounds) and taken with its exact length; workers compute Kbar[:, B] delta for all rows; the gradient follows.

With `memory=0` and one variable a step this is the paper's method to the letter.

What was tried on top of it (tuned kernels, max |g| <= 1e-4, passes over the kernel matrix; one core's two hyperthreads;
"dense" is a NumPy prototype of this method with a tenth of the samples in a block, where not said otherwise):

* Kept: blocks that grow where the gradient falls slowly (`block_size`), and the block's factor in float32
  wherever its largest eigenvalue allows that, not its size. Against blocks that stay as "auto" chose them by n
  and d alone, 750 or 1,000, passes and processor seconds: kin40k n = 10,000 18.7 -> 13.1, 7.6 -> 7.3 s; n = 20,000
  19.3 -> 15.6, 20.5 -> 18.6 s; n = 30,000 20.2 -> 16.5, 44 -> 40 s (wall 31 -> 26 s); sarcos (7 targets, n = 3,949)
  10.6 -> 6.8, 2.8 -> 2.4 s. Friedman1 (also at n = 100,000, 3.0 passes, 3.1), california, pumadyn32nm and
  abalone, which take 3 to 4 passes, keep their time.
* A coarse block whose columns are kept, c landmarks minimised over with every block: kin40k, dense, n = 4,000: 17.7
  passes, 8.9 with c = 400, and 13.4 without one in blocks of 800; california 4.6 -> 3.6, Friedman1 3.3 -> 2.7. The
  first block serves as well as randomly pivoted landmarks. Counting operations, it is slower than a block of m + c: a
  third fewer passes, but a third more rounds, each with nearly as much selection and a factor as large; and reading a
  kept column takes half of what evaluating one does (8 features; a fifth at 90). A selection that ignores the coarse
  block, which would be cheaper, gives away half of what it saves.
* Steps remembered in pieces (8 or 20 parts of a block's step, one kernel product for all), minimised over together with
  the next block: dense kin40k 17.7 -> 12.4 with 200 vectors, 9.9 with 400; 15.2 with 60. Eight columns at once cost
  60 % more to evaluate than one, and 200 vectors are to be read every round: about the time that it saves. Whole steps
  minimised over jointly, instead of being made conjugate: 17.5 with all earlier ones, no gain over conjugacy to five.
* Accelerated (Nesterov) steps, mu from s2 to 130 s2, nu = n / m, restarts when the objective rises (it never did), one
  product a round: dense kin40k, n = 3,000, 24 with greedy blocks and the best mu against 17.1 with the memory of
  five; more than 30 with random blocks; california 4.7 against 4.7.
* Inexact larger blocks: a block solved to 0.1 takes no more passes (16.9 against 17.1), to 0.5 a fifth more. But
  conjugate gradients in a block of 2,000 take 90 to 140 products (6 to 14 with its first 500 variables and the diagonal
  blocks of their complement as preconditioner), each of which reads the block's matrix, and the selection needs the
  block solved 20 times as it grows: no quicker than the factor up to 4,000, by the operations; not built.
* Starting from the Nystrom solution, its full product counted: dense kin40k 17.7 -> 23.8, california 4.6 -> 5.0;
  Friedman1 3.3 -> 1.7 at rank 500, where preconditioned conjugate gradients need two products in all: that is their
  problem.
* Changing to (preconditioned) conjugate gradients at the end: the gradient falls by about the same factor in every pass
  from the second to the last, and dense kin40k takes 112 products at rank 400, 63 at rank 800. There is no point to
  change at.
* Candidates drawn in proportion to |g| of the round before: no gain; of this round, 5 %.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator
from dkgp.solvers.block_descent.block_size import (
    automatic_block_size,
    grown_block_size,
    grown_candidates,
    largest_automatic_block_size,
)
from dkgp.solvers.block_descent.block_state import BlockState, BlockStep, GradientUnderWay, SettledGradient
from dkgp.solvers.block_descent.recursions import advance_solution
from dkgp.solvers.block_descent.selection import GreedySelection, Selection
from dkgp.solvers.block_descent.subproblem import Subproblem

__all__ = ["BlockState", "GreedyBlockCoordinateDescent"]

# A step that the memory all but cancels is worth nothing: drop the memory for it rather than divide by rounding.
LEAST_CONJUGATE_SHARE = 1e-4
# How fast a solve gets on is judged after this share of a column pass, and again after every further one.
REVIEW_PASSES = 0.5


@dataclass(frozen=True)
class GreedyBlockCoordinateDescent:
    """Settings of GBCD.

    Parameters
    ----------
    block_size : int or "auto"
        m, variables moved in a round. "auto" weighs kernel updates, selection and dense solves by n and d alone, so
        that a seeded run is the same everywhere.
    largest_block_size : int or "auto"
        What m may grow to where the gradient falls slowly for the columns spent, with the greedy selection. "auto" lets
        an automatic block grow up to 4,000 variables or half of all, and leaves one that is given as it is.
    memory : int, default 5
        Steps kept to make the next one conjugate; 0 is the paper's method.
    selection : Selection
        How the active set is chosen; greedy with kappa = 60 by default.
    precision : {"mixed", "double"}
        "mixed" runs float32 tiles under float64 vectors and finishes in float64; "double" runs float64 throughout.
    seed : int
        Of all random draws.

    Examples
    --------
    >>> solver = GreedyBlockCoordinateDescent(block_size=1000, memory=0)  # doctest: +SKIP
    >>> solution = solve(operator, y, solver=solver)  # doctest: +SKIP
    """

    block_size: int | Literal["auto"] = "auto"
    memory: int = 5
    selection: Selection = field(default_factory=GreedySelection)
    precision: Literal["mixed", "double"] = "mixed"
    seed: int = 0
    largest_block_size: int | Literal["auto"] = "auto"

    name = "gbcd"

    def __post_init__(self) -> None:
        if self.block_size != "auto" and not _is_whole(self.block_size, least=1):
            raise InputError(f'the block size must be a positive integer or "auto"; got {self.block_size!r}')
        if self.largest_block_size != "auto" and not _is_whole(self.largest_block_size, least=1):
            raise InputError(
                f'the largest block size must be a positive integer or "auto"; got {self.largest_block_size!r}'
            )
        if not _is_whole(self.memory, least=0):
            raise InputError(f"the memory must be a whole number of steps, zero or more; got {self.memory!r}")
        if self.precision not in ("mixed", "double"):
            raise InputError(f'precision must be "mixed" or "double"; got {self.precision!r}')

    def resolved(self, n: int, d: int, p: int = 1) -> GreedyBlockCoordinateDescent:
        """Return these settings with concrete block sizes, not above n."""
        automatic, largest = self.block_size == "auto", self.largest_block_size
        size = min(n, automatic_block_size(n, d, self._candidates) if self.block_size == "auto" else self.block_size)
        if not isinstance(self.selection, GreedySelection):
            largest = size
        elif largest == "auto":
            largest = largest_automatic_block_size(n, size) if automatic else size
        return replace(self, block_size=size, largest_block_size=min(max(largest, size), n))

    @property
    def _candidates(self) -> int:
        return self.selection.candidates if isinstance(self.selection, GreedySelection) else 0

    def grown_selection(self, size: int) -> Selection:
        """Return the selection for blocks of `size`: one that has grown draws fewer candidates for each variable."""
        start = self.block_size
        if not isinstance(self.selection, GreedySelection) or start == "auto" or size <= start:
            return self.selection
        return replace(self.selection, candidates=grown_candidates(self._candidates, start, size))

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types; a checkpoint must match them."""
        document: dict[str, Any] = {
            "solver": self.name,
            "block_size": self.block_size,
            "largest_block_size": self.largest_block_size,
            "memory": self.memory,
            "precision": self.precision,
            "seed": self.seed,
            "selection": type(self.selection).__name__,
        }
        if isinstance(self.selection, GreedySelection):
            document |= {
                "candidates": self.selection.candidates,
                "variables_per_step": self.selection.variables_per_step,
                "exhaustive": self.selection.exhaustive,
                "prefitting": self.selection.prefitting,
            }
        return document

    def start(
        self,
        operator: KernelOperator,
        rhs: FloatArray,
        initial: FloatArray | None = None,
        gradient: FloatArray | None = None,
    ) -> BlockState:
        """State before the first round: alpha = 0, g = -y (Algorithm 1, step 1), or a warm start.

        The gradient of a warm start, (n, p), costs a pass over the kernel matrix where it is not given.
        """
        n, p = rhs.shape
        alpha = np.zeros((n, p)) if initial is None else np.array(initial, dtype=np.float64).reshape(n, p)
        if initial is None:
            gradient = -rhs.copy()
        elif gradient is None:
            gradient = operator.matmat(alpha) - rhs
        else:
            gradient = np.array(gradient, dtype=np.float64).reshape(n, p)
        state = BlockState(alpha=alpha, gradient=gradient, rhs=rhs, exact=True)
        size = self.resolved(n, operator.kernel.n_features, p).block_size
        assert isinstance(size, int)
        self._complete(operator, state, size)
        return state

    def restore(
        self, operator: KernelOperator, rhs: FloatArray, arrays: dict[str, FloatArray], metadata: dict[str, Any]
    ) -> BlockState:
        """State from a checkpoint's arrays and metadata."""
        state = BlockState(alpha=arrays["alpha"].copy(), gradient=arrays["gradient"].copy(), rhs=rhs)
        state.read_metadata(metadata)
        state.moved = arrays["moved"].copy()
        self._complete(operator, state, int(metadata["block_size"]))
        state.review_columns, state.review_norm = int(metadata["review_columns"]), float(metadata["review_norm"])
        held = int(metadata["held"])
        state.directions[:held] = arrays["directions"]
        state.images[:held] = arrays["images"]
        state.curvatures[:held] = arrays["curvatures"]
        state.held = list(range(held))
        return state

    def _complete(self, operator: KernelOperator, state: BlockState, size: int) -> None:
        n, p = state.alpha.shape
        slots = self.memory + 1  # one more than is remembered: the new step is written while the old ones are read
        state.block_size = size
        state.directions, state.images = np.zeros((slots, n, p)), np.zeros((slots, n, p))
        state.curvatures = np.zeros((slots, p))
        if self.precision == "double":
            state.precision = "double"
        state.typical_entry = operator.typical_entry()
        state.subproblem = Subproblem(operator, size, p, typical_entry=state.typical_entry)
        if operator.overlaps:
            state.spare = Subproblem(operator, size, p, typical_entry=state.typical_entry)

    def advance(self, operator: KernelOperator, state: BlockState) -> dict[str, float]:
        """One round; where the operator overlaps, the next round's selection runs while this one's update is under way.

        Returns
        -------
        dict of str to float
            Seconds spent selecting, updating the coordinator's vectors, and waiting for the workers.
        """
        if self.block_size == "auto" or self.largest_block_size == "auto":
            n, p = state.alpha.shape
            return self.resolved(n, operator.kernel.n_features, p).advance(operator, state)
        clock = _Clock()
        if not state.prepared:
            state.prepared = True
            self._select(operator, state, SettledGradient(state), state.iteration)
        clock.lap("select")
        assert state.subproblem is not None
        indices, delta = state.subproblem.indices.copy(), state.subproblem.solve()
        step = self._scalars(state, indices, delta, state.subproblem.gradient[: len(indices)])
        # Before this round's update, which the next selection need not wait for: so that its size does not either.
        self._review(operator, state)
        if not operator.holds_inputs:
            # What this round brings can be looked at once it is back: by the next selection, or, where that runs while
            # the round is under way, by the one after it.
            ahead = 2 if operator.overlaps else 1
            selection = self.grown_selection(state.block_size)
            coming = selection.announced(operator, state.block_size, self.seed, state.iteration + ahead)
            if coming is not None:
                operator.announce(coming)
        evaluated = operator.columns_to_evaluate(indices, state.precision)
        pending = operator.submit_columns(indices, delta, state.precision)
        moved = advance_solution(
            state.alpha,
            indices,
            delta,
            state.directions,
            step.used,
            step.coefficients,
            step.step,
            state.directions[step.slot],
        )
        state.note_step(moved)
        clock.lap("vectors")
        state.iteration += 1
        state.columns += evaluated
        view = GradientUnderWay(operator, state, step, pending)
        state.prepared = False
        if operator.overlaps:
            assert state.spare is not None
            state.subproblem, state.spare = state.spare, state.subproblem
            self._select(operator, state, view, state.iteration)
            state.prepared = True
        clock.lap("select")
        view.settle()
        clock.lap("wait")
        return clock.seconds

    def _select(
        self, operator: KernelOperator, state: BlockState, view: SettledGradient | GradientUnderWay, iteration: int
    ) -> None:
        assert state.subproblem is not None
        if state.subproblem.capacity < state.block_size:
            targets = state.alpha.shape[1]
            state.subproblem = Subproblem(operator, state.block_size, targets, typical_entry=state.typical_entry)
        state.subproblem.reset()
        selection = self.grown_selection(state.block_size)
        selection.fill(state.subproblem, operator, view, state.block_size, self.seed, iteration)

    def _review(self, operator: KernelOperator, state: BlockState) -> None:
        """Let the blocks to come grow where the gradient has fallen slowly since the last time.

        The first half pass is not counted: it reduces the gradient quickly on any problem.
        """
        start, largest = self.block_size, self.largest_block_size
        assert isinstance(start, int)
        assert isinstance(largest, int)
        passes = (state.columns - state.review_columns) / operator.n
        if state.block_size >= largest or passes < REVIEW_PASSES:
            return
        norm = float(np.sqrt(np.max(np.einsum("it,it->t", state.gradient, state.gradient))))
        if state.review_norm > 0.0 and norm > 0.0:
            decades = float(np.log10(state.review_norm / norm))
            state.block_size = grown_block_size(
                operator.n,
                operator.kernel.n_features,
                self._candidates,
                start,
                state.block_size,
                passes / decades if decades > 0.0 else np.inf,
                largest,
            )
        state.review_columns, state.review_norm = state.columns, norm

    def _scalars(self, state: BlockState, indices: IndexArray, delta: FloatArray, gradient: FloatArray) -> BlockStep:
        """Make the step conjugate to the remembered ones, and its length exact, before any update is known.

        p = delta - sum_j c_j p_j with c_j = p_j' Kbar delta / p_j' q_j = q_j[B]' delta / p_j' q_j. Since Kbar_BB
        delta = -g_B, delta' Kbar delta = -g_B' delta; since earlier exact steps left g orthogonal to every p_j, g' p
        = g_B' delta.
        """
        slots, p = state.directions.shape[0], state.alpha.shape[1]
        slope = -np.einsum("bt,bt->t", gradient, delta)
        used = np.asarray(state.held, dtype=np.intp)
        coefficients = np.zeros((len(used), p))
        for row, slot in enumerate(used):
            curvature = state.curvatures[slot]
            along = np.einsum("bt,bt->t", state.images[slot, indices], delta)
            coefficients[row] = np.divide(along, curvature, out=np.zeros(p), where=curvature > 0.0)
        curvature = slope - np.einsum("jt,jt->t", coefficients**2, state.curvatures[used])
        poor = curvature <= LEAST_CONJUGATE_SHARE * slope
        coefficients[:, poor] = 0.0
        curvature = np.where(poor, slope, curvature)
        step = np.divide(slope, curvature, out=np.zeros(p), where=curvature > 0.0)
        slot = next(slot for slot in range(slots) if slot not in state.held)
        state.curvatures[slot] = curvature
        if self.memory:
            if len(state.held) == self.memory:
                state.held.pop(0)
            state.held.append(slot)
        return BlockStep(indices, delta, used, coefficients, step, slot)


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
