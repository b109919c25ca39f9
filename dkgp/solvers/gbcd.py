"""Greedy block coordinate descent (Bo and Sminchisescu 2008, Algorithm 1) with a short memory of conjugate steps.

One round: the selection chooses an active set B and the step delta that minimises the objective over it; the step is
made conjugate to the last few (which costs no kernel evaluation, because their images under Kbar are the updates of
their own rounds) and taken with its exact length; workers compute Kbar[:, B] delta for all rows; the gradient follows.

With `memory=0` and one variable a step this is the paper's method to the letter.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels import Features
from dkgp.kernels.tiles import Precision
from dkgp.operators.base import FloatArray, IndexArray, KernelOperator, PendingColumns
from dkgp.solvers.block_size import automatic_block_size
from dkgp.solvers.recursions import advance_gradient, advance_solution
from dkgp.solvers.selection import GreedySelection, Selection
from dkgp.solvers.state import SolverState
from dkgp.solvers.subproblem import Subproblem

__all__ = ["BlockState", "GreedyBlockCoordinateDescent"]

# A step that the memory all but cancels is worth nothing: drop the memory for it rather than divide by rounding.
LEAST_CONJUGATE_SHARE = 1e-4


@dataclass
class _Step:
    """A block step whose scalars are known: what turns Kbar[:, B] delta into the new gradient."""

    indices: IndexArray
    delta: FloatArray
    used: IndexArray
    coefficients: FloatArray
    step: FloatArray
    slot: int


@dataclass
class BlockState(SolverState):
    """Everything a resumed solve needs, and what is under way.

    `directions` and `images` are ring buffers of the last steps p_j and their q_j = Kbar p_j, (memory, n, p);
    `curvatures` their p_j' q_j, (memory, p); `held` the filled slots, oldest first.
    """

    directions: FloatArray = field(default_factory=lambda: np.zeros((1, 0, 1)))
    images: FloatArray = field(default_factory=lambda: np.zeros((1, 0, 1)))
    curvatures: FloatArray = field(default_factory=lambda: np.zeros((1, 1)))
    held: list[int] = field(default_factory=list)
    block_size: int = 0
    subproblem: Subproblem | None = None
    spare: Subproblem | None = None
    prepared: bool = False

    def arrays(self) -> dict[str, FloatArray]:
        """Arrays of a checkpoint."""
        return super().arrays() | {
            "directions": self.directions[self.held],
            "images": self.images[self.held],
            "curvatures": self.curvatures[self.held],
        }

    def metadata(self) -> dict[str, Any]:
        """Scalars of a checkpoint."""
        return super().metadata() | {"held": len(self.held), "block_size": self.block_size}

    def renew_gradient(self, gradient: FloatArray, precision: Precision) -> None:
        """Continue from a recomputed gradient; the remembered images belong to the old recursion and go."""
        super().renew_gradient(gradient, precision)
        self.held.clear()
        self.prepared = False


@dataclass(frozen=True)
class GreedyBlockCoordinateDescent:
    """Settings of GBCD.

    Parameters
    ----------
    block_size : int or "auto"
        m, variables moved in a round. "auto" weighs kernel updates, selection and dense solves by n and d alone, so
        that a seeded run is the same everywhere.
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

    name = "gbcd"

    def __post_init__(self) -> None:
        if self.block_size != "auto" and not _is_whole(self.block_size, least=1):
            raise InputError(f'the block size must be a positive integer or "auto"; got {self.block_size!r}')
        if not _is_whole(self.memory, least=0):
            raise InputError(f"the memory must be a whole number of steps, zero or more; got {self.memory!r}")
        if self.precision not in ("mixed", "double"):
            raise InputError(f'precision must be "mixed" or "double"; got {self.precision!r}')

    def resolved(self, n: int, d: int, p: int = 1) -> GreedyBlockCoordinateDescent:
        """Return these settings with a concrete block size, not above n."""
        size = self.block_size
        if size == "auto":
            candidates = self.selection.candidates if isinstance(self.selection, GreedySelection) else 0
            size = automatic_block_size(n, d, candidates)
        return replace(self, block_size=min(int(size), n))

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types; a checkpoint must match them."""
        document: dict[str, Any] = {
            "solver": self.name,
            "block_size": self.block_size,
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
        self._complete(operator, state)
        return state

    def restore(
        self, operator: KernelOperator, rhs: FloatArray, arrays: dict[str, FloatArray], metadata: dict[str, Any]
    ) -> BlockState:
        """State from a checkpoint's arrays and metadata."""
        state = BlockState(alpha=arrays["alpha"].copy(), gradient=arrays["gradient"].copy(), rhs=rhs)
        state.read_metadata(metadata)
        state.moved = arrays["moved"].copy()
        self._complete(operator, state)
        held = int(metadata["held"])
        state.directions[:held] = arrays["directions"]
        state.images[:held] = arrays["images"]
        state.curvatures[:held] = arrays["curvatures"]
        state.held = list(range(held))
        return state

    def _complete(self, operator: KernelOperator, state: BlockState) -> None:
        n, p = state.alpha.shape
        size = self.resolved(n, operator.kernel.n_features, p).block_size
        assert isinstance(size, int)
        slots = self.memory + 1  # one more than is remembered: the new step is written while the old ones are read
        state.block_size = size
        state.directions, state.images = np.zeros((slots, n, p)), np.zeros((slots, n, p))
        state.curvatures = np.zeros((slots, p))
        if self.precision == "double":
            state.precision = "double"
        state.subproblem = Subproblem(operator, size, p)
        state.spare = Subproblem(operator, size, p) if operator.overlaps else None

    def advance(self, operator: KernelOperator, state: BlockState) -> dict[str, float]:
        """One round; where the operator overlaps, the next round's selection runs while this one's update is under way.

        Returns
        -------
        dict of str to float
            Seconds spent selecting, updating the coordinator's vectors, and waiting for the workers.
        """
        clock = _Clock()
        if not state.prepared:
            state.prepared = True
            self._select(operator, state, _Settled(state), state.iteration)
        clock.lap("select")
        assert state.subproblem is not None
        indices, delta = state.subproblem.indices.copy(), state.subproblem.solve()
        step = self._scalars(state, indices, delta, state.subproblem.gradient[: len(indices)])
        if not operator.holds_inputs:
            # What this round brings can be looked at once it is back: by the next selection, or, where that runs while
            # the round is under way, by the one after it.
            ahead = 2 if operator.overlaps else 1
            coming = self.selection.announced(operator, state.block_size, self.seed, state.iteration + ahead)
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
        view = _UnderWay(operator, state, step, pending)
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

    def _select(self, operator: KernelOperator, state: BlockState, view: _Settled | _UnderWay, iteration: int) -> None:
        assert state.subproblem is not None
        state.subproblem.reset()
        self.selection.fill(state.subproblem, operator, view, state.block_size, self.seed, iteration)

    def _scalars(self, state: BlockState, indices: IndexArray, delta: FloatArray, gradient: FloatArray) -> _Step:
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
        return _Step(indices, delta, used, coefficients, step, slot)


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


class _Settled:
    """The gradient when nothing is under way."""

    def __init__(self, state: BlockState) -> None:
        self._state = state

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        return self._state.gradient[indices]

    def everywhere(self) -> FloatArray:
        return self._state.gradient


class _UnderWay:
    """The gradient after a step whose update the workers may still be computing.

    At a few samples it is cheaper to evaluate K(candidates, B) delta here than to wait. The tile loops give the same
    bits for a row wherever it is evaluated, so it makes no difference to the result which way a value was had.
    """

    def __init__(self, operator: KernelOperator, state: BlockState, step: _Step, pending: PendingColumns) -> None:
        self._operator, self._state, self._step, self._pending = operator, state, step, pending
        self._settled = False
        self._affordable = operator.overlap_evaluations
        self._columns: Features | None = None

    def at(self, indices: IndexArray, features: Features | None) -> FloatArray:
        operator, state, step = self._operator, self._state, self._step
        self._affordable -= len(indices) * len(step.indices)
        if self._settled or self._affordable < 0 or self._pending.done():
            return self.everywhere()[indices]
        if features is None or state.precision == "double":
            features = operator.features(indices, state.precision)
        if self._columns is None:
            self._columns = operator.features(step.indices, state.precision)
            self._position = np.full(operator.n, -1, dtype=np.intp)
            self._position[step.indices] = np.arange(len(step.indices))
        product = np.ascontiguousarray(operator.evaluator(state.precision).matmat(features, self._columns, step.delta))
        operator.kernel_evaluations += features.n * self._columns.n
        position = self._position[indices]
        inside = position >= 0
        product[inside] += operator.noise_variance * step.delta[position[inside]]
        gradient = state.gradient[indices]
        images = np.ascontiguousarray(state.images[:, indices])
        advance_gradient(gradient, product, images, step.used, step.coefficients, step.step, np.empty_like(gradient))
        return gradient

    def everywhere(self) -> FloatArray:
        self.settle()
        return self._state.gradient

    def settle(self) -> None:
        if not self._settled:
            state, step = self._state, self._step
            product = self._pending.result()
            image = state.images[step.slot]
            advance_gradient(state.gradient, product, state.images, step.used, step.coefficients, step.step, image)
            self._settled = True
