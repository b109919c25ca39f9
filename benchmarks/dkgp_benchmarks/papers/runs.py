"""Solver runs that `dkgp bench papers` compares: each in this process, on the same operator, threads and limits.

Seconds are processor seconds of this process, which other work on the machine distorts less than the time on a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.contenders import assemble, factor_in_place, factored_solve, kernel_product, room_for_cholesky
from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.progress import Reporter, SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.errors import NumericalError
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import KernelOperator
from dkgp.operators.block_tasks import ArrayInputs
from dkgp.solvers import MaxIterations, Progress, Solver, StoppingRule, solve
from dkgp.solvers.base import Method, SolverState
from dkgp.solvers.driver import Watch
from dkgp.solvers.registry import build_solver, declaration_of, owners, solver_names
from dkgp_benchmarks.library import PreparedData

FloatArray = NDArray[np.float64]

# Test errors are taken whenever the iterations have grown by this factor: enough for a curve, and little to keep.
SNAPSHOT_GROWTH = 1.15
# A block of more than this share of the samples would no longer be a small one.
LARGEST_BLOCK_SHARE = 0.25
WARM_UP_SAMPLES = 512
CLOCK_TICK = 1e-6


@dataclass(frozen=True)
class Contender:
    """A solver with its settings, and what it is called in tables and plots.

    Attributes
    ----------
    key, label
    options
        Tolerance and limits, and the solver, unless one is given.
    solver
        One with settings that the options have no word for.
    """

    key: str
    label: str
    options: SolverOptions
    solver: Solver | None = None

    def build(self, n: int, d: int, p: int, reporter: Reporter) -> Solver:
        """Return the solver with all that it chooses by itself chosen."""
        return self.options.build(n, d, p, reporter) if self.solver is None else self.solver.resolved(n, d, p)


@dataclass(frozen=True)
class Exact:
    """Cholesky's solution in memory.

    Attributes
    ----------
    alpha : (n, p) float64
    seconds : float
        Processor seconds of assembly, factorisation and two triangular solves.
    objective : float
        The least there is of alpha' Kbar alpha / 2 - y' alpha, targets added up.
    mean : (t, p) float64
        At the test samples.
    rmse : float
        Equation 16 of the GBCD paper.
    """

    alpha: FloatArray
    seconds: float
    objective: float
    mean: FloatArray
    rmse: float


@dataclass(frozen=True)
class SolverRun:
    """One contender's run: how it ended, its curve, and its errors.

    Attributes
    ----------
    contender : Contender
    converged : bool
    reason : str
        Why it stopped.
    last : Progress or None
        Where it stood at the end, by the float64 gradient; none where it broke down before its first iteration.
    refreshes : int
        Float64 passes of the driver, which are not among the column passes.
    history : list of Progress
    curve : list of dict
        Test errors on the way: iteration, seconds, column_passes, rmse.
    alpha : (n, p) float64 or None
    rmse, mean_difference : float or None
        At the end; the second is the largest difference from Cholesky's mean at the test samples.
    settings : dict
        The solver's own, automatic choices made.
    n : int or None
        Samples.
    phases : dict of str to float
        Processor seconds of each phase of the solver's rounds.
    """

    contender: Contender
    converged: bool
    reason: str
    last: Progress | None
    refreshes: int
    history: list[Progress]
    curve: list[dict[str, float]] = field(default_factory=list)
    alpha: FloatArray | None = None
    rmse: float | None = None
    mean_difference: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    n: int | None = None
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def entries(self) -> float | None:
        """Kernel entries evaluated, selection's and those of dense subproblems included, in units of n^2."""
        return None if self.last is None or self.n is None else self.last.kernel_evaluations / self.n**2

    def to_json(self) -> dict[str, Any]:
        """The figures of its end as JSON, without histories."""
        names = ["iteration", "column_passes", "kernel_evaluations", "seconds", "gradient_inf_norm"]
        names += ["relative_residual", "objective"]
        return {
            "solver": self.contender.label,
            "key": self.contender.key,
            "converged": self.converged,
            "reason": self.reason,
            "refreshes": self.refreshes,
            "entries": self.entries,
            "rmse": self.rmse,
            "mean_difference": self.mean_difference,
            **{name: None if self.last is None else getattr(self.last, name) for name in names},
            "settings": self.settings,
            "phases": self.phases,
        }


@dataclass(frozen=True)
class Recorded(Method[SolverState]):
    """A solver that shows its state after every round: what is in it, the driver does not hand out."""

    solver: Solver
    watch: Callable[[SolverState], None]

    @property
    def name(self) -> str:
        """The solver's own."""
        return str(self.solver.name)

    def resolved(self, n: int, d: int, p: int = 1) -> Recorded:
        """Resolve the solver."""
        return replace(self, solver=self.solver.resolved(n, d, p))

    def settings(self) -> dict[str, Any]:
        """The solver's own."""
        return self.solver.settings()

    def start(self, *arguments: Any) -> SolverState:
        """Start the solver."""
        state: SolverState = self.solver.start(*arguments)
        return state

    def advance(self, operator: KernelOperator, state: SolverState) -> dict[str, float]:
        """Advance the solver, and show the state."""
        timings = self.solver.advance(operator, state)
        self.watch(state)
        return timings


def paper_contenders(options: SolverOptions, n: int) -> list[Contender]:
    """The GBCD paper's iterative methods with its settings, and GBCD as it is here by default.

    Blocks have the size asked for, and at most a quarter of the samples.
    """
    size = options.block_size if options.block_size == "auto" else max(1, options.block_size)
    block = size if size == "auto" else min(size, max(1, int(LARGEST_BLOCK_SHARE * n)))
    contenders: list[Contender] = []
    for name in solver_names():
        declared = declaration_of(name)
        if declared.paper is None:
            continue
        plain = options.changed(solver=name, block_size="auto", memory=None)
        solver_options = plain.changed(block_size=block) if name in owners("block_size") else plain
        solver: Any = build_solver(name, dict(solver_options.own), precision=options.precision, seed=options.seed)
        label = f"{declared.label}, as in the paper" if declared.paper else declared.label
        contenders.append(Contender(name, label, solver_options, replace(solver, **declared.paper)))
        if declared.paper:
            contenders.append(Contender(f"{name}_default", f"{declared.label}, dkgp's default", plain))
    return contenders


class Workbench:
    """One prepared problem and all that has been run on it; nothing runs twice."""

    def __init__(self, data: PreparedData, executor: BlockExecutor, reporter: Reporter) -> None:
        self.data, self.executor, self.reporter = data, executor, reporter
        self._inputs = ArrayInputs(data.inputs)
        self._runs: dict[Contender, SolverRun] = {}
        self._warm: set[Contender] = set()

    def exact(self) -> Exact | None:
        """Cholesky's solution; None, and that is said, where its matrix does not fit."""
        return self._exact

    def run(self, contender: Contender) -> SolverRun:
        """Run a contender, with test errors on the way."""
        if contender not in self._runs:
            self._runs[contender] = self._measured(contender)
        return self._runs[contender]

    def solve(
        self,
        contender: Contender,
        *,
        rhs: FloatArray | None = None,
        stopping: StoppingRule | None = None,
        watch: Callable[[SolverState], None] | None = None,
        operator: KernelOperator | None = None,
    ) -> SolverRun:
        """Solve for the targets, or for another right-hand side; what breaks down is reported, not raised."""
        data, right = self.data, self.data.targets if rhs is None else rhs
        label = contender.label
        p = right.shape[1]
        built = contender.build(data.n, data.inputs.shape[1], p, self.reporter)
        solver: Solver = built if watch is None else Recorded(built, watch)
        self.warm_up(contender)
        history: list[Progress] = []
        with self.reporter.solve(f"{data.name}: {label}", contender.options.tolerance) as show:
            began = time.process_time()

            def callback(progress: Progress) -> None:
                history.append(replace(progress, seconds=time.process_time() - began))
                show(progress)

            def run(on: KernelOperator) -> Any:
                return solve(
                    on,
                    right,
                    solver=solver,
                    stopping=stopping or contender.options.stopping(),
                    watch=Watch(callback=callback),
                )

            try:
                if operator is not None:
                    solution = run(operator)
                else:
                    with self._operator(self._inputs) as blocked:
                        solution = run(blocked)
            except NumericalError as error:
                last = history[-1] if history else None
                return SolverRun(contender, False, str(error), last, 0, history, settings=built.settings(), n=data.n)
            seconds = time.process_time() - began
        # The solver times its phases by the clock.
        share = seconds / max(solution.progress.seconds, CLOCK_TICK)
        return SolverRun(
            contender,
            solution.converged,
            solution.reason.message,
            replace(solution.progress, seconds=seconds),
            solution.refreshes,
            history,
            alpha=solution.alpha,
            settings=solution.solver,
            n=data.n,
            phases={name: share * value for name, value in solution.seconds_by_part.items()},
        )

    def mean(self, coefficients: FloatArray) -> FloatArray:
        """Predictive means at the test samples, (t, m), for coefficients (n, m)."""
        return kernel_product(self.data.test_inputs, self.data.inputs, coefficients, self.data.found)

    def rmse(self, mean: FloatArray) -> float:
        """Equation 16, the mean over targets under the root."""
        return float(np.sqrt(np.mean((mean - self.data.test_targets) ** 2)))

    def _operator(self, inputs: ArrayInputs) -> BlockedKernelOperator:
        hyper = self.data.found
        return BlockedKernelOperator(hyper.kernel, hyper.noise_variance, inputs, self.executor)

    @cached_property
    def _exact(self) -> Exact | None:
        data = self.data
        if not room_for_cholesky(data.n, self.reporter.warn, f"{data.name}: "):
            return None
        began = time.process_time()
        matrix = assemble(data.inputs, data.found)
        factor_in_place(matrix)
        alpha = factored_solve(matrix, data.targets)
        seconds = time.process_time() - began
        del matrix
        mean = self.mean(alpha)
        return Exact(alpha, seconds, -0.5 * float(np.sum(data.targets * alpha)), mean, self.rmse(mean))

    def _measured(self, contender: Contender) -> SolverRun:
        snapshots: list[tuple[int, FloatArray]] = []
        due = [1.0]

        def watch(state: SolverState) -> None:
            if state.iteration >= due[0]:
                snapshots.append((state.iteration, state.alpha.copy()))
                due[0] = max(state.iteration + 1.0, SNAPSHOT_GROWTH * state.iteration)

        run = self.solve(contender, watch=watch)
        if run.alpha is None:
            return run
        p = run.alpha.shape[1]
        means = self.mean(np.hstack([alpha for _, alpha in snapshots] + [run.alpha]))
        of = {progress.iteration: progress for progress in run.history}
        curve = [
            {
                "iteration": float(iteration),
                "seconds": of[iteration].seconds,
                "column_passes": of[iteration].column_passes,
                "rmse": self.rmse(means[:, index * p : (index + 1) * p]),
            }
            for index, (iteration, _) in enumerate(snapshots)
            if iteration in of
        ]
        last, exact = means[:, -p:], self.exact()
        difference = None if exact is None else float(np.max(np.abs(last - exact.mean)))
        return replace(run, curve=curve, rmse=self.rmse(last), mean_difference=difference)

    def warm_up(self, contender: Contender) -> None:
        """Load compiled code before a clock starts: that of the contender's own solver, on a few samples."""
        if contender in self._warm:
            return
        self._warm.add(contender)
        rows = min(WARM_UP_SAMPLES, self.data.n)
        few = ArrayInputs(self.data.inputs[:rows])
        options = contender.options
        size = options.block_size if options.block_size == "auto" else min(options.block_size, rows)
        solver = contender.solver
        if solver is not None and getattr(solver, "block_size", None) not in (None, "auto"):
            solver = replace(cast(Any, solver), block_size=size)
        small = replace(contender, options=options.changed(block_size=size), solver=solver)
        with self._operator(few) as operator:
            built = small.build(rows, few.n_features, self.data.targets.shape[1], SilentReporter())
            with suppress(NumericalError):  # the run itself will say so
                solve(operator, self.data.targets[:rows], solver=built, stopping=options.stopping() | MaxIterations(2))
