"""One minimisation of a risk with its way there: bounds on the least risk by iteration, products, entries, seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import NumericalError
from dkgp.operators.base import KernelOperator
from dkgp.solvers import MaxIterations, MaxSeconds, Progress, StoppingRule, StopReason
from dkgp.solvers.driver import Watch
from dkgp.solvers.losses import LogisticLoss, Loss, SquaredLoss
from dkgp.solvers.risk import Risk, RiskSolution, method_for, minimise_by
from dkgp.solvers.stopping import DualityGap

FloatArray = NDArray[np.float64]

LOSSES: dict[str, Loss] = {"klr": LogisticLoss(), "rls": SquaredLoss()}
# The paper's PCG is conjugate gradients on the parameters; dkgp's `pcg` is something else.
LABELS = {
    "kcg": "kernel CG",
    "paramcg": "parameter CG",
    "gradient": "kernel gradient",
    "newton": "Newton",
    "majorisation": "majorisation",
    "auto": "auto",
}


@dataclass(frozen=True)
class RiskWithin(StoppingRule):
    """Converged when the risk is within a share of a bound that no function's risk is below.

    Parameters
    ----------
    least : float
        The bound, targets added up.
    share : float
    """

    least: float
    share: float

    def check(self, progress: Progress) -> StopReason | None:
        """Compare the risk, which is the objective."""
        distance = progress.objective / self.least - 1.0
        if not distance <= self.share:
            return None
        return StopReason("risk_within", True, f"the risk is within {distance:.3g} of the least")


@dataclass(frozen=True)
class RiskRun:
    """A method's run.

    Attributes
    ----------
    method
        As it was named.
    solution
        None where it broke down.
    reason
        Why it stopped.
    seconds
        Of all of it, verification included.
    entries
        Kernel entries that were evaluated, over n^2.
    iteration, risk, bound, products, clock : (k,) float64
        After each iteration: its number, the risk and the bound from below that was known then, kernel products, and
        seconds.
    """

    method: str
    solution: RiskSolution | None
    reason: str
    seconds: float
    entries: float
    iteration: FloatArray
    risk: FloatArray
    bound: FloatArray
    products: FloatArray
    clock: FloatArray

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return int(self.iteration[-1]) if len(self.iteration) else 0

    @property
    def gap(self) -> FloatArray:
        """Relative duality gap after each iteration, by the best risk and the best bound so far: (k,)."""
        if not len(self.risk):
            return np.zeros(0)
        risk, bound = np.minimum.accumulate(self.risk), np.maximum.accumulate(self.bound)
        size = np.maximum(np.maximum(np.abs(risk), np.abs(bound)), np.finfo(np.float64).tiny)
        return np.asarray(np.where(np.isfinite(size), (risk - bound) / size, np.inf))

    @property
    def least(self) -> tuple[float, float]:
        """The least risk that was reached and the best bound from below, verified; targets added up."""
        if self.solution is None:
            return math.inf, -math.inf
        return float(np.sum(self.solution.risk)), float(np.sum(self.solution.lower_bound))


def iterations_to(run: RiskRun, met: NDArray[np.bool_]) -> int | None:
    """Number of the iteration after which something first held, or None."""
    return int(run.iteration[int(np.argmax(met))]) if met.any() else None


def minimise(
    operator: KernelOperator,
    targets: FloatArray,
    loss: Loss,
    regularisation: float,
    method: str,
    reporter: Reporter,
    *,
    gap: float,
    stopping: StoppingRule | None = None,
    max_iterations: int = 1000,
    max_seconds: float | None = None,
    precision: Literal["mixed", "double"] = "double",
    label: str = "",
    count: Callable[[], int] | None = None,
) -> RiskRun:
    """Run a method to a relative gap or another rule; what breaks down is reported, not raised.

    Parameters
    ----------
    operator : KernelOperator
    targets : (n, p) float64
    loss, regularisation, method, gap, precision
        See `dkgp.solvers.risk.minimise_risk`.
    stopping : StoppingRule, optional
        In place of the gap.
    max_iterations : int
        Where the run is cut off.
    max_seconds : float, optional
        Where the run is cut off.
    label : str
        Of its progress.
    count : callable, optional
        Kernel entries evaluated so far; the operator's own count by default.
    """
    history: list[Progress] = []
    clock: list[float] = []
    rule: StoppingRule = (DualityGap(gap) if stopping is None else stopping) | MaxIterations(max_iterations)
    if max_seconds is not None:
        rule |= MaxSeconds(max_seconds)
    counted = count or (lambda: operator.kernel_evaluations)
    before, began = counted(), time.perf_counter()
    solution: RiskSolution | None = None
    with reporter.solve(label or LABELS.get(method, method), gap) as show:

        def callback(progress: Progress) -> None:
            history.append(progress)
            clock.append(time.perf_counter() - began)
            show(progress)

        try:
            solution = minimise_by(
                operator,
                targets,
                method_for(Risk(loss, regularisation), method, precision),
                stopping=rule,
                watch=Watch(callback=callback),
            )
            reason = solution.solution.reason.message
        except NumericalError as error:
            reason = str(error)
    seconds = time.perf_counter() - began
    figures = [
        (p.iteration, p.objective, p.objective - p.objective_gap_bound, p.column_passes) for p in history if p.iteration
    ]
    taken = [at for p, at in zip(history, clock, strict=True) if p.iteration]
    columns = np.asarray(figures, dtype=np.float64).reshape(-1, 4).T
    entries = (counted() - before) / operator.n**2
    iteration, risk, bound, products = columns
    return RiskRun(
        method, solution, reason, seconds, entries, iteration, risk, bound, products, np.asarray(taken, dtype=float)
    )
