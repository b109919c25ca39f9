"""Sequential minimal optimisation: blocks of two, the pair whose gradients are farthest apart, solved in closed form.

Keerthi and Shevade's SMO for least squares SVMs, without the bias and so without its equality constraint: the rival in
the GBCD paper. Hundreds of thousands of tiny steps, each needing two whole kernel columns; so the loop is compiled,
runs at the coordinator with all inputs in memory, and keeps recent columns in a cache of bounded size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dkgp.errors import InputError, UsageError
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.kernels.tiles.features import Features
from dkgp.kernels.tiles.loops import tile_into
from dkgp.operators.base import KernelOperator
from dkgp.solvers.base import Clock, Method, SolverState
from dkgp.solvers.registry import Need, SolverDeclaration, SolverMemory, register_solver

MEBIBYTE = 1024**2
# A round is this share of n steps: measuring and recording it then costs next to nothing.
STEPS_PER_SAMPLE = 0.05


class ColumnCache(NamedTuple):
    """Kernel columns by sample, replaced by the clock algorithm; its content has no influence on any result.

    - `columns` (slots, padded n).
    - `owner` (slots,): sample whose column a slot holds, or -1.
    - `slot_of` (n,): slot of a sample's column, or -1.
    - `used` (slots,): true if the column was wanted since the hand came by.
    - `hand` (1,): the slot that is looked at next.
    """

    columns: NDArray[Any]
    owner: NDArray[np.intp]
    slot_of: NDArray[np.intp]
    used: NDArray[np.bool_]
    hand: NDArray[np.intp]

    @classmethod
    def of(cls, features: Features, cache_bytes: int) -> ColumnCache:
        """Return an empty cache of as many columns as the bytes hold, two at least."""
        padded, dtype = features.values.shape[1], features.values.dtype
        slots = max(2, min(features.n, cache_bytes // (padded * dtype.itemsize)))
        return cls(
            np.empty((slots, padded), dtype),
            np.full(slots, -1, np.intp),
            np.full(features.n, -1, np.intp),
            np.zeros(slots, np.bool_),
            np.zeros(1, np.intp),
        )


class Entries(NamedTuple):
    """The features of all samples, and the kernel's program, from which entries are evaluated."""

    values: NDArray[Any]
    norms: NDArray[Any]
    program: Any


@cached_njit(nogil=True)
def _column(sample, keep, entries, cache):  # type: ignore[no-untyped-def]
    """Slot that holds the column of `sample`, evaluated if need be without evicting slot `keep`; whether it was."""
    slot = cache.slot_of[sample]
    if slot >= 0:
        cache.used[slot] = True
        return slot, 0
    while True:
        slot = cache.hand[0]
        cache.hand[0] = (slot + 1) % cache.owner.shape[0]
        if slot == keep:
            continue
        if not cache.used[slot]:
            break
        cache.used[slot] = False
    if cache.owner[slot] >= 0:
        cache.slot_of[cache.owner[slot]] = -1
    values, norms = entries.values, entries.norms
    table, tile_rows, amplitude = entries.program
    one = np.empty((values.shape[0], 16), values.dtype)
    one_norm = np.empty((norms.shape[0], 16), values.dtype)
    for lane in range(16):
        for group in range(norms.shape[0]):
            one_norm[group, lane] = norms[group, sample]
        for feature in range(values.shape[0]):
            one[feature, lane] = values[feature, sample]
    tile_into(values, norms, one, one_norm, 1, cache.columns[slot : slot + 1], table, tile_rows, amplitude)
    cache.owner[slot], cache.slot_of[sample], cache.used[slot] = sample, slot, True
    return slot, 1


@cached_njit(nogil=True)
def _steps(count, alpha, gradient, noise, entries, cache):  # type: ignore[no-untyped-def]
    """Take `count` steps for one target; columns evaluated, columns used, and the sum of squared steps."""
    n = alpha.shape[0]
    high, low = 0, 0
    for i in range(n):
        if gradient[i] > gradient[high]:
            high = i
        if gradient[i] < gradient[low]:
            low = i
    evaluated, used_columns, moved = 0, 0, 0.0
    for _ in range(count):
        if gradient[high] == 0.0 and gradient[low] == 0.0:
            break
        # Of one type in both calls: a constant would be compiled as another function.
        a, new = _column(np.intp(high), np.intp(-1), entries, cache)
        evaluated += new
        used_columns += 1
        column_a = cache.columns[a]
        if high == low:  # all gradients are equal, as of a single sample
            step_a, step_b = -gradient[high] / (float(column_a[high]) + noise[high]), 0.0
            column_b = column_a
        else:
            b, new = _column(np.intp(low), np.intp(a), entries, cache)
            evaluated += new
            used_columns += 1
            column_b = cache.columns[b]
            aa, bb = float(column_a[high]) + noise[high], float(column_b[low]) + noise[low]
            ab = float(column_a[low])
            determinant = aa * bb - ab * ab
            step_a = (ab * gradient[low] - bb * gradient[high]) / determinant
            step_b = (ab * gradient[high] - aa * gradient[low]) / determinant
            alpha[low] += step_b
            gradient[low] += noise[low] * step_b
        alpha[high] += step_a
        gradient[high] += noise[high] * step_a
        moved += step_a * step_a + step_b * step_b
        largest, smallest = -np.inf, np.inf
        for i in range(n):
            value = gradient[i] + step_a * float(column_a[i]) + step_b * float(column_b[i])
            gradient[i] = value
            if value > largest:
                largest, high = value, i
            if value < smallest:
                smallest, low = value, i
    return evaluated, used_columns, moved


@dataclass
class PairState(SolverState):
    """A solve between two rounds; the inputs and the column cache are made anew after a break."""

    features: Features | None = None
    features_precision: Precision | None = None
    cache: ColumnCache | None = None


@dataclass(frozen=True)
class SequentialMinimalOptimization(Method[PairState]):
    """SMO with the maximal violating pair.

    Parameters
    ----------
    steps_per_round : int or "auto"
        Steps between two looks at the stopping rules; n / 20 by default.
    cache_bytes : int
        Memory limit of the kept kernel columns.
    precision : {"mixed", "double"}
        "mixed" takes float32 columns and lets the driver verify in float64.

    References
    ----------
    S. S. Keerthi and S. K. Shevade, SMO algorithm for least squares SVM formulations, Neural Computation 15 (2003);
    L. Bo and C. Sminchisescu (2008), sections 2 and 5.1.
    """

    steps_per_round: int | Literal["auto"] = "auto"
    cache_bytes: int = 256 * MEBIBYTE
    precision: Literal["mixed", "double"] = "mixed"

    state_type = PairState

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_per_round != "auto" and self.steps_per_round < 1:
            raise InputError(f"steps per round must be 'auto' or at least 1; got {self.steps_per_round!r}")
        if self.cache_bytes < 0:
            raise InputError(f"the column cache cannot take {self.cache_bytes} bytes; give 0 or more")

    name = "smo"

    def resolved(self, n: int, d: int, p: int = 1) -> SequentialMinimalOptimization:
        """Return the settings with the steps of a round chosen."""
        if self.steps_per_round != "auto":
            return self
        return replace(self, steps_per_round=max(1, round(STEPS_PER_SAMPLE * n)))

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""
        return {**super().settings(), "steps_per_round": self.steps_per_round}

    def advance(self, operator: KernelOperator, state: PairState) -> dict[str, float]:
        """One round of steps for every target, in place; seconds by phase."""
        clock = Clock()
        if not operator.holds_inputs:
            raise UsageError(
                f"SMO needs the inputs of all {operator.n:,} samples in the coordinator's memory, and they exceed its "
                "share; take another solver, such as gbcd"
            )
        if state.features is None or state.cache is None or state.features_precision != state.precision:
            state.features_precision = state.precision
            state.features = operator.features(np.arange(operator.n, dtype=np.intp), state.precision)
            state.cache = ColumnCache.of(state.features, self.cache_bytes)
        evaluator = operator.evaluator(state.precision)
        program = (evaluator.program, evaluator.tile_rows, evaluator.dtype.type(evaluator.amplitude))
        entries = Entries(state.features.values, state.features.squared_norms, program)
        steps = 1 if self.steps_per_round == "auto" else self.steps_per_round
        noise = np.full(operator.n, operator.noise)
        moved = np.zeros(state.rhs.shape[1])
        for target in range(state.rhs.shape[1]):
            alpha = np.ascontiguousarray(state.alpha[:, target])
            gradient = np.ascontiguousarray(state.gradient[:, target])
            evaluated, used, moved[target] = _steps(steps, alpha, gradient, noise, entries, state.cache)
            state.alpha[:, target], state.gradient[:, target] = alpha, gradient
            # Passes count the columns that steps are made of, cached or not: a limit on them is to bite.
            state.columns += used
            evaluator.count(evaluated * operator.n)
        state.note_step(moved)
        state.iteration += 1
        return {"update": clock.seconds}


def _memory(solver: SequentialMinimalOptimization, n: int, d: int) -> SolverMemory:
    """Features of one precision after the other, and the columns kept."""
    return SolverMemory(0, own_bytes=8 * n * (d + 2) + max(16 * n, min(solver.cache_bytes, 8 * n * n)))


register_solver(
    SolverDeclaration(
        "smo",
        "sequential minimal optimisation, two coefficients at a time",
        SequentialMinimalOptimization,
        needs=frozenset({Need.ENTRIES, Need.INPUTS}),
        memory=_memory,
        bench_turn=7,
        label="SMO",
        # The paper evaluates columns whenever they are needed, as it would have to where they do not fit.
        paper={"cache_bytes": 0},
        compiles=True,
    )
)
