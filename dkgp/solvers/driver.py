"""The loop that every solver shares: stopping, float64 verification, history, progress, checkpoints, interrupts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.arithmetic import own_arithmetic
from dkgp.cluster.threads import require_single_threaded_blas, single_threaded_blas
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import CheckpointError, InputError, InterruptedRunError, NumericalError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.block_descent.gbcd import GreedyBlockCoordinateDescent
from dkgp.solvers.block_descent.recursions import measures
from dkgp.solvers.state import SolverState
from dkgp.solvers.stopping import GradientInfNorm, Progress, StoppingRule, StopReason

__all__ = ["Checkpointing", "Solution", "Solver", "solve"]

# A float32 recursion's gradient drifts from the true one by about 2.3e-7 times the rms kernel entry times the norm of
# all steps taken, and by about five times that at the worst sample: measured on kin40k and Friedman1, n = 10,000 to
# 40,000.
DRIFT_PER_STEP = 5 * 2.3e-7
# Nearly all of alpha's length is walked in the first rounds. Once the gradient has fallen to ten times their drift it
# is computed anew, and what the remaining, short steps add to it stays far below.
LARGEST_DRIFT_SHARE = 0.1
# A verification in float64 that does not take the gradient below this share of the last one's has met its rounding.
LEAST_GAIN = 0.5


class Solver(Protocol):
    """An iterative method: how to start, and one round."""

    @property
    def name(self) -> str:
        """Short name, as on the command line."""

    def resolved(self, n: int, d: int, p: int = 1) -> Solver:
        """Return the settings with every automatic choice made."""

    def settings(self) -> dict[str, Any]:
        """Settings in plain JSON types."""

    def start(self, operator: KernelOperator, rhs: FloatArray, initial: FloatArray | None = None) -> Any:
        """State before the first round."""

    def restore(
        self, operator: KernelOperator, rhs: FloatArray, arrays: dict[str, FloatArray], metadata: dict[str, Any]
    ) -> Any:
        """State from a checkpoint."""

    def advance(self, operator: KernelOperator, state: Any) -> dict[str, float]:
        """One round, in place; seconds by phase."""


@dataclass(frozen=True)
class Checkpointing:
    """Where and how often a solve saves its state, and what it must belong to.

    Parameters
    ----------
    store : CheckpointStore
    every_seconds : float
    identity : dict
        What the solve is of (data fingerprint, kernel, noise); compared on resume.
    resume : bool
        Continue from the latest checkpoint where there is one.
    """

    store: CheckpointStore
    every_seconds: float = 30.0
    identity: dict[str, Any] = field(default_factory=dict)
    resume: bool = False


@dataclass(frozen=True)
class Solution:
    """What a solve returns.

    Attributes
    ----------
    alpha : (n, p) float64
    gradient : (n, p) float64
        Kbar alpha - y, evaluated anew in float64 after the last step.
    reason : StopReason
        Why it stopped; `reason.converged` says whether the tolerance was met by the float64 gradient.
    progress : Progress
        The last record, from the float64 gradient.
    history : list of Progress
    solver : dict
        Settings, automatic choices made.
    refreshes : int
        Full float64 passes that were needed.
    product_error : float
        Bound on the error of an entry of `gradient`, where the operator is approximate (tree sums); 0 elsewhere.
    """

    alpha: FloatArray
    gradient: FloatArray
    reason: StopReason
    progress: Progress
    history: list[Progress]
    solver: dict[str, Any]
    refreshes: int
    product_error: float = 0.0

    @property
    def converged(self) -> bool:
        """Whether the tolerance was met."""
        return self.reason.converged


def solve(
    operator: KernelOperator,
    rhs: ArrayLike,
    *,
    solver: Solver | None = None,
    stopping: StoppingRule | None = None,
    initial: ArrayLike | None = None,
    initial_gradient: ArrayLike | None = None,
    callback: Callable[[Progress], None] | None = None,
    checkpointing: Checkpointing | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> Solution:
    """Solve Kbar alpha = y.

    Parameters
    ----------
    operator : KernelOperator
    rhs : (n,) or (n, p) array_like
        y, standardised; several targets share kernel columns.
    solver : Solver, optional
        Greedy block coordinate descent by default.
    stopping : StoppingRule, optional
        max |g| <= 1e-4 by default, the paper's.
    initial : (n,) or (n, p) array_like, optional
        Warm start.
    initial_gradient : (n,) or (n, p) array_like, optional
        Kbar alpha - y of the warm start, every contribution evaluated in float64, where the caller knows it. Greedy
        block coordinate descent then starts without a pass over the kernel matrix; other solvers make one all the same.
    callback : callable, optional
        Called with a `Progress` after every round.
    checkpointing : Checkpointing, optional
    interrupted : callable, optional
        Asked between rounds; when it answers true the state is saved and `InterruptedRunError` raised.

    Returns
    -------
    Solution

    Raises
    ------
    InputError
        Shapes that do not fit, or values that are not finite.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        `interrupted` answered true.
    """
    y = _right_hand_side(rhs, operator.n)
    start = None if initial is None else _right_hand_side(initial, operator.n, "the warm start")
    if start is not None and start.shape != y.shape:
        raise InputError(f"the warm start has shape {start.shape}; expected {y.shape}")
    known = None
    if initial_gradient is not None:
        known = _right_hand_side(initial_gradient, operator.n, "the warm start's gradient")
        if start is None or known.shape != y.shape:
            raise InputError(f"the warm start's gradient has shape {known.shape}; expected a warm start and {y.shape}")
    chosen = (solver or GreedyBlockCoordinateDescent()).resolved(operator.n, operator.kernel.n_features, y.shape[1])
    with single_threaded_blas():
        require_single_threaded_blas("the coordinator")
        loop = _Loop(operator, y, chosen, stopping or GradientInfNorm(), callback, checkpointing, interrupted)
        loop.initial_gradient = known
        return loop.run(start)


class _Loop:
    def __init__(
        self,
        operator: KernelOperator,
        rhs: FloatArray,
        solver: Solver,
        stopping: StoppingRule,
        callback: Callable[[Progress], None] | None,
        checkpointing: Checkpointing | None,
        interrupted: Callable[[], bool] | None,
    ) -> None:
        self.operator, self.rhs, self.solver, self.stopping = operator, rhs, solver, stopping
        self.callback, self.checkpointing, self.interrupted = callback, checkpointing, interrupted
        self.history: list[Progress] = []
        self.scale = np.linalg.norm(rhs, axis=0)
        self.refreshes = 0
        self.typical_entry: float | None = None
        self.initial: FloatArray | None = None
        self.initial_gradient: FloatArray | None = None
        self.single_failed = False
        self.verified = math.inf
        self.start_objective = self.true_objective = 0.0
        self.seconds_before = 0.0
        self.evaluations_before = 0
        self.started = time.perf_counter()
        self.evaluations_at_start = operator.kernel_evaluations
        self.saved = self.started

    def run(self, initial: FloatArray | None) -> Solution:
        self.initial = initial
        state: SolverState = self._begin(initial)
        progress = self._measure(state, {})
        if not math.isfinite(progress.gradient_inf_norm) or not math.isfinite(progress.relative_residual):
            raise InputError("the right-hand side or warm start is too large to work with; standardise the targets")
        reason = self.stopping.check(progress)
        while True:
            while reason is None:
                if self.interrupted is not None and self.interrupted():
                    self._stop_interrupted(state)
                timings = self.solver.advance(self.operator, state)
                progress = self._measure(state, timings)
                if not self._sound(progress):
                    state = self._restart_in_double(state, progress)
                    progress = self._measure(state, timings)
                self.history.append(progress)
                if self.callback is not None:
                    self.callback(progress)
                reason = self.stopping.check(progress)
                if reason is None and self._drifted(state, progress):
                    self._refresh(state, "single")
                self._maybe_save(state)
            # Before the gradient is verified: whoever goes on from here ends in the bits of a run that never stopped.
            stopped_short = not reason.converged
            if stopped_short:
                self._save(state)
            # The errors of an approximate operator's products have added up in the recursion; those of one are bounded.
            if state.exact and not self.operator.approximate:
                break
            self._refresh(state, state.precision)
            progress = self._measure(state, {})
            verified = self.stopping.check(progress)
            if verified is not None or not reason.converged:
                reason = verified or reason
                break
            reason = self._stalled(state, progress)
        if not reason.converged and not stopped_short:
            self._save(state)
        finish = getattr(self.solver, "finish", None)
        if finish is not None and reason.converged:  # what a method keeps outside its state has served
            finish(state)
        return Solution(
            state.alpha,
            state.gradient,
            reason,
            progress,
            self.history,
            self.solver.settings(),
            self.refreshes,
            # Of the last product, which was with alpha.
            self.operator.error_bound,
        )

    def _refresh(self, state: SolverState, precision: Precision) -> None:
        """Compute the gradient in float64; where float32 rounds achieved nothing since the last time, stay in float64.

        On nearly equal samples with little noise, float32 kernel entries need not form a positive definite matrix with
        s2 on its diagonal, and descent along its columns need not descend.
        """
        state.renew_gradient(self.operator.matmat(state.alpha) - self.rhs, precision)
        self.refreshes += 1
        objective = self._measure(state, {}).objective
        if not objective < self.true_objective:
            self.single_failed = True
        self.true_objective = objective
        if self.single_failed:
            state.precision = "double"

    def _sound(self, progress: Progress) -> bool:
        """Whether the recursion's numbers can be true: finite, and an objective not above the start's."""
        highest = self.start_objective + 1e-6 * abs(self.start_objective) + 1e-9 * self.rhs.size
        return math.isfinite(progress.gradient_inf_norm) and progress.objective <= highest

    def _restart_in_double(self, state: SolverState, progress: Progress) -> SolverState:
        """Float32 broke down altogether: begin again in float64, the rounds so far counted.

        Raises
        ------
        NumericalError
            It was float64 that broke down.
        """
        if state.precision == "double":
            raise NumericalError(
                f"the solve broke down in float64 after {state.iteration} rounds (max|g| = "
                f"{progress.gradient_inf_norm:.3g}, objective {progress.objective:.3g}). Raise the noise variance, and "
                "check that inputs and targets are standardised"
            )
        self.single_failed = True
        fresh: SolverState = self.solver.start(self.operator, self.rhs, self.initial)
        fresh.iteration, fresh.columns, fresh.precision = state.iteration, state.columns, "double"
        return fresh

    def _drifted(self, state: SolverState, progress: Progress) -> bool:
        """Whether float32 rounding has grown to a tenth of the gradient."""
        if self.typical_entry is None:
            self.typical_entry = self.operator.typical_entry()
        drift = DRIFT_PER_STEP * self.typical_entry * math.sqrt(float(np.max(state.moved)))
        return drift > LARGEST_DRIFT_SHARE * progress.gradient_inf_norm

    def _stalled(self, state: SolverState, true: Progress) -> StopReason | None:
        """After a verification that failed: go on in float64 where float32 comes no closer; give up where it does not.

        Float32 it may be that does not, too, because what the solver knows of the risk was evaluated in it.
        """
        before, self.verified = self.verified, true.gradient_norm
        if true.gradient_norm < LEAST_GAIN * before:
            return None
        if state.precision == "single":
            state.precision, self.verified = "double", math.inf
            return None
        return StopReason(
            "rounding",
            False,
            f"float64 does not come closer: max|g| = {true.gradient_inf_norm:.3g}, evaluated anew, is above the "
            "tolerance, though the solver's own recursion is below it",
            "raise the tolerance, or the noise variance",
        )

    def _begin(self, initial: FloatArray | None) -> SolverState:
        if self.checkpointing is not None and self.checkpointing.resume:
            found = self.checkpointing.store.load_latest()
            if found is not None:
                expected = {"identity": self.checkpointing.identity, "solver": self.solver.settings()}
                for name, value in expected.items():
                    if found.metadata.get(name) != value:
                        raise CheckpointError(
                            f"the checkpoint belongs to another run: its {name} is {found.metadata.get(name)!r}; "
                            f"this run's is {value!r}. Resume with the same data and options, or start afresh "
                            "without `resume`"
                        )
                loop = found.metadata["loop"]
                self.history = [Progress(**record) for record in loop["history"]]
                self.refreshes = loop["refreshes"]
                self.single_failed = loop["single_failed"]
                self.verified = math.inf if loop.get("verified") is None else loop["verified"]
                self.start_objective, self.true_objective = loop["start_objective"], loop["true_objective"]
                self.seconds_before = loop["seconds"]
                self.evaluations_before = loop["kernel_evaluations"]
                self.typical_entry = loop.get("typical_entry")
                state: SolverState = self.solver.restore(
                    self.operator, self.rhs, dict(found.arrays), found.metadata["state"]
                )
                # What restoring takes, the run that was interrupted has counted when it started.
                self.evaluations_at_start = self.operator.kernel_evaluations
                return state
        fresh: SolverState
        if self.initial_gradient is not None and isinstance(self.solver, GreedyBlockCoordinateDescent):
            fresh = self.solver.start(self.operator, self.rhs, initial, self.initial_gradient)
        else:
            fresh = self.solver.start(self.operator, self.rhs, initial)
        self.start_objective = self.true_objective = self._measure(fresh, {}).objective
        return fresh

    def _measure(self, state: SolverState, timings: dict[str, float]) -> Progress:
        largest, squares, objective = measures(state.alpha, state.gradient, self.rhs)
        norms = np.sqrt(squares)
        # Bounds on the least of Q = R - ||y||^2 / 2, targets added up; half the squared gradient lies between them.
        lower = -self.operator.noise_variance * float(np.sum(objective)) - 0.5 * float(np.sum(self.scale**2))
        width = 0.5 * float(np.sum(squares))
        if state.risk_width < width:
            lower, width = lower + (width - state.risk_width), state.risk_width
        middle = 0.5 * (abs(lower) + abs(lower + width))
        return Progress(
            iteration=state.iteration,
            column_passes=state.columns / self.operator.n,
            kernel_evaluations=self._evaluations(),
            seconds=self._seconds(),
            gradient_inf_norm=float(largest),
            gradient_norm=float(np.max(norms, initial=0.0)),
            relative_residual=float(
                np.max(np.divide(norms, self.scale, out=np.zeros_like(norms), where=self.scale > 0.0))
            ),
            objective=float(np.sum(objective)),
            objective_gap_bound=float(np.sum(squares)) / (2.0 * self.operator.noise_variance),
            timings=timings,
            duality_gap=width / middle if middle > 0.0 else (0.0 if width == 0.0 else math.inf),
        )

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def _evaluations(self) -> int:
        return self.evaluations_before + self.operator.kernel_evaluations - self.evaluations_at_start

    def _maybe_save(self, state: SolverState) -> None:
        if self.checkpointing is not None and time.perf_counter() - self.saved >= self.checkpointing.every_seconds:
            self._save(state)

    def _save(self, state: SolverState) -> None:
        if self.checkpointing is None:
            return
        metadata = {
            "identity": self.checkpointing.identity,
            "solver": self.solver.settings(),
            # The dense algebra is this process's BLAS's: who goes on elsewhere keeps the tolerance, not the bits.
            "arithmetic": own_arithmetic().to_json(),
            "state": state.metadata(),
            "loop": {
                "history": [progress.to_json() for progress in self.history],
                "refreshes": self.refreshes,
                "single_failed": self.single_failed,
                "verified": self.verified if math.isfinite(self.verified) else None,
                "start_objective": self.start_objective,
                "true_objective": self.true_objective,
                "seconds": self._seconds(),
                "kernel_evaluations": self._evaluations(),
                "typical_entry": self.typical_entry,
            },
        }
        self.checkpointing.store.save(state.iteration, state.arrays(), metadata)
        self.saved = time.perf_counter()

    def _stop_interrupted(self, state: SolverState) -> None:
        self._save(state)
        where = None if self.checkpointing is None else self.checkpointing.store.url
        saved = "nothing was saved (no checkpoint was asked for)" if where is None else f"state saved in {where}"
        raise InterruptedRunError(f"interrupted after {state.iteration} rounds; {saved}", where)


def _right_hand_side(values: ArrayLike, n: int, name: str = "the right-hand side") -> FloatArray:
    y = np.array(values, dtype=np.float64)
    if y.ndim == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[0] != n or y.shape[1] == 0:
        raise InputError(f"{name} must have shape ({n},) or ({n}, p); got {y.shape}")
    if not np.isfinite(y).all():
        raise InputError(f"{name} must be finite; row {int(np.argwhere(~np.isfinite(y))[0][0])} is not")
    return y
