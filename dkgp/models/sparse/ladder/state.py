"""A ladder under way: the current rung, what is known of the least risk, and what a checkpoint keeps of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dkgp.data.types import ProgressCallback
from dkgp.models.sparse.bases import blind_basis
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.fit import Basis, SparseFit, fit_sparse
from dkgp.models.sparse.ladder.costs import rung_seconds
from dkgp.models.sparse.ladder.plan import LadderPlan, Move
from dkgp.models.sparse.ladder.target import Rung, Step
from dkgp.models.sparse.problem import SparseProblem, TrainedSparse
from dkgp.models.sparse.start import residual_start
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.solvers import GradientInfNorm, GreedyBlockCoordinateDescent, MaxPasses, Solver, StoppingRule, solve
from dkgp.solvers.base import Clock
from dkgp.solvers.driver import Iteration, Watch
from dkgp.solvers.greedy_basis import GreedyBasis, GreedyEngine, GreedyProgress
from dkgp.solvers.prices import ROUND_SECONDS
from dkgp.solvers.registry import build_solver
from dkgp.solvers.stopping import StopReason

ENGINE = "choice_"
# Rounds of tasks of a fit and its certificate: most of the time that a small problem takes.
ROUNDS_OF_A_FIT = 6


class Ladder(Iteration):
    """The finished rungs, and the one that is being climbed.

    A round of the ladder is a round of the greedy choice, a fit with its certificate, a step that raises the bound, or
    the step to the next rung. A checkpoint holds no fit: a resumed rung is fitted again, to the same bits.

    - `within`: called during long work, and may end it.
    - `leave_callback`: called with each finished rung.
    - `rungs`: the finished ones.
    """

    def __init__(
        self,
        problem: SparseProblem,
        operator: BlockedKernelOperator,
        plan: LadderPlan,
        within: ProgressCallback,
        leave_callback: Callable[[Rung], None] | None = None,
    ) -> None:
        self._problem, self._operator, self._plan, self._within = problem, operator, plan, within
        self._leave_callback = leave_callback
        self._size, self._steps_done = plan.first, 0
        self._engine = self._engine_of(self._size)
        self._least: dict[str, list[float]] = {}
        self._solution: tuple[FloatArray, FloatArray] | None = None
        self._raised: list[Step] = []
        self._residual: tuple[FloatArray, FloatArray] | None = None
        self._basis = Basis(np.empty((0, operator.kernel.n_features)))
        self._greedy: GreedyBasis | None = None
        self._system: FloatArray | None = None
        self._fit: SparseFit | None = None
        self._certificate: SparseCertificate | None = None
        self._clock, self._entries = Clock("choice", "fit", "certificate", "bound"), 0
        self._nominal = 0.0  # what the last fit and certificate were projected to take, and what they took
        self._took = 0.0
        self.rungs: list[Rung] = []
        self._move: Move | None = None  # the next step of a fitted rung
        self._reason: StopReason | None = None

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """Steps of the ladder, and rounds of its choice."""
        return self._steps_done + (0 if self._engine is None else self._engine.iteration)

    @property
    def history(self) -> list[GreedyProgress]:  # type: ignore[override]
        """Records of the choice."""
        return [] if self._engine is None else self._engine.history

    def stop(self) -> StopReason | None:
        """Return the reason to stop."""
        return self._reason

    def advance(self) -> None:
        """Do the next round of the choice, or the next step of the rung."""
        move, self.save_now = self._move, True
        if move is None:
            if self._engine is not None and (reason := self._engine.stop()) is None:
                with self._clock.measured("choice"):
                    self._engine.advance()
                # The fit that follows the last round may take as long as the choice.
                self.save_now = self._engine.stop() is not None
                return
            self._take_basis(None if self._engine is None else reason)
            self._fit_rung()
            self.save_now = False
        elif move == "product" or move == "solve":
            self._raise_bound(move)
        else:
            self._leave(move)
            return
        self._move = self._next_move()

    def close(self) -> None:
        """Have the workers forget what they keep for the choice."""
        if self._engine is not None:
            self._engine.close()

    def _take_basis(self, reason: StopReason | None) -> None:
        """Take the basis that the greedy choice ended with, or choose one blindly."""
        settings = self._plan.settings
        with self._clock.measured("choice"):
            if self._engine is None:
                self._basis = blind_basis(self._operator, settings.basis_name, self._size, settings.seed)
                return
            assert reason is not None
            self._engine.close()
            greedy = self._engine.result(reason)
            self._greedy, self._system = replace(greedy, system=None), greedy.system
            self._basis = Basis(self._operator.inputs(greedy.indices), greedy.indices)

    def _fit_rung(self) -> None:
        """Fit and certify; bounds on the least risk that are known from below the rung count as well."""
        operator, problem, plan, before = self._operator, self._problem, self._plan, self._clock.total
        with self._clock.measured("fit"):
            method = plan.settings.sparse_method
            self._fit = fit_sparse(operator, problem.targets, self._basis, method, self._system)
            self._system = None
        with self._clock.measured("certificate"):
            certificate = problem.certify(operator, self._fit, self._basis, self._greedy)
        self._took = self._clock.total - before
        size, d = len(self._basis.inputs), operator.kernel.n_features
        self._nominal = rung_seconds(operator.n, d, size) + ROUNDS_OF_A_FIT * ROUND_SECONDS
        for name, values in self._least.items():
            certificate = certificate.with_bound(name, 2.0 * np.asarray(values))
        self._know(certificate)
        self._residual = None
        if plan.target.missed(certificate) > 1.0:
            with self._clock.measured("bound"):
                self._residual = residual_start(operator, problem.targets, self._fit.model, plan.settings.seed)

    def _next_move(self) -> Move:
        full = len(self._basis.inputs) < self._size
        remaining_excess = np.inf
        if self._residual is not None:
            # R above the value that the dual takes at the residual.
            remaining_excess = float(np.sum(np.maximum(np.asarray(self.certificate.risk) - self._residual[1], 0.0)))
        return self._plan.move(self.rungs, self.certificate, self._raised, full, remaining_excess)

    def _raise_bound(self, kind: Literal["product", "solve"]) -> None:
        """Take a product with the rung's residual, or go on with the exact model's solve; note what that proves."""
        operator, exact = self._operator, self._plan.exact.choice
        before, passes = self.certificate.least.sum(), 1.0
        alpha, gradient = (None, None) if self._solution is None else self._solution
        solver: Solver = GreedyBlockCoordinateDescent()
        stopping: StoppingRule = GradientInfNorm(sys.float_info.max)  # the start's own gradient is all that is wanted
        with self._clock.measured("bound"):
            if kind == "product":
                assert self._residual is not None
                alpha, gradient = self._residual[0], None
            else:
                passes = self._plan.next_passes(self._raised)
                solver = build_solver(exact.solver, exact.options, precision=exact.precision)
                stopping = MaxPasses(passes)
            solution = solve(
                operator,
                self._problem.targets,
                solver=solver,
                stopping=stopping,
                initial=alpha,
                initial_gradient=gradient,
                watch=Watch(within=self._within),
            )
            self._solution = solution.alpha, solution.gradient
            self._know(self._problem.with_descent(operator, self.certificate, self.fitted.model, solution))
        self._raised.append(Step(kind, self.certificate.m, passes, float(self.certificate.least.sum() - before)))
        self._steps_done += 1

    def _leave(self, move: Move) -> None:
        """Record the rung, and go on to the next one, or stop."""
        self._move = None
        passes = sum(step.passes for step in self._raised)
        entries = self._entries + self._operator.kernel_evaluations
        self.rungs.append(Rung.of(self.certificate, passes, entries, self._clock.seconds))
        if self._leave_callback is not None:
            self._leave_callback(self.rungs[-1])
        if isinstance(move, StopReason):
            self._reason = move
            return
        self._size = self._plan.next_of(self._size)
        self._steps_done += 1
        if self._engine is not None:
            below, self._engine = self._engine, self._engine_of(self._size)
            assert self._engine is not None
            self._engine.restore(below.arrays(), below.metadata())

    @property
    def certificate(self) -> SparseCertificate:
        """Of the current rung."""
        assert self._certificate is not None
        return self._certificate

    @property
    def fitted(self) -> SparseFit:
        """The rung's fit."""
        assert self._fit is not None
        return self._fit

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        engine = {} if self._engine is None else self._engine.arrays()
        arrays = {f"{ENGINE}{name}": array for name, array in engine.items()}
        if self._solution is not None:
            arrays["alpha"], arrays["gradient"] = self._solution
        return arrays

    def metadata(self) -> dict[str, Any]:
        """Return the rest in plain JSON types; a resumed run fits the last rung again and then leaves it."""
        below = self.rungs if self._reason is None else self.rungs[:-1]
        return {
            "iteration": self.iteration,
            "size": self._size,
            "steps": self._steps_done,
            "least": self._least,
            "raised": [asdict(step) for step in self._raised],
            "rungs": [rung.to_json() for rung in below],
            "choice": None if self._engine is None else self._engine.metadata(),
            "seconds": self._clock.seconds,
            "entries": self._entries + self._operator.kernel_evaluations,
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        self._size, self._steps_done = int(metadata["size"]), int(metadata["steps"])
        self._least = {name: list(values) for name, values in metadata["least"].items()}
        self._raised = [Step(**step) for step in metadata["raised"]]
        self.rungs = [Rung(**rung) for rung in metadata["rungs"]]
        self._clock.resume(float(metadata["seconds"]))
        self._entries = int(metadata["entries"])
        if "alpha" in arrays:
            self._solution = arrays["alpha"], arrays["gradient"]
        self._engine = self._engine_of(self._size)
        if self._engine is not None:
            engine = {name.removeprefix(ENGINE): array for name, array in arrays.items() if name.startswith(ENGINE)}
            self._engine.restore(engine, metadata["choice"])

    def trained(self, reason: StopReason) -> TrainedSparse:
        """Return the last rung's model, with all rungs in its summary."""
        plan, last = self._plan, self.rungs[-1]
        record = {
            **reason.summary(),
            "ladder": {
                "target": plan.target.to_json(),
                "rungs": [rung.to_json() for rung in self.rungs],
                "exact": self._exact(),
            },
            "kernel_evaluations": last.entries,
            "seconds": last.seconds,
            "seconds_by_part": self._clock.rounded(),
        }
        settings = plan.settings_of(self._size)
        return self._problem.trained(settings, self.fitted, self._basis, self._greedy, self.certificate, record)

    def _exact(self) -> dict[str, Any]:
        """Cost and gain of the exact model: in seconds as this machine took them for the last fit."""
        exact, m, n = self._plan.exact, len(self._basis.inputs), self._operator.n
        seconds, distance = exact.core_seconds * self._took / self._nominal, float(self.certificate.rms_bound.max())
        words = (
            f"the exact model ({exact.choice.solver}) would take about {_about(seconds)} s and "
            f"{exact.memory_bytes / 2**20:,.0f} MiB; its mean is within {distance:.3g} of this one's at the training "
            "samples (root mean square, in standard deviations of the target), and a prediction takes "
            f"{n / m:,.0f} times the kernel entries"
        )
        return {**exact.to_json(), "seconds": round(seconds, 3), "distance": distance, "words": words}

    def _know(self, certificate: SparseCertificate) -> None:
        self._certificate = certificate
        self._least = {name: list(values) for name, values in certificate.least_risk.items()}

    def _engine_of(self, size: int) -> GreedyEngine | None:
        settings = self._plan.greedy_of(size)
        return None if settings is None else GreedyEngine(self._operator, self._problem.targets, settings)


def _about(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10.0 else f"{seconds:.2g}"
