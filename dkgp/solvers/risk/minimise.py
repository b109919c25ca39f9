"""Minimise a regularised risk by any method: names, checks, defaults and the solution."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError, UsageError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.base import as_columns, nothing
from dkgp.solvers.conjugate.kernel_cg import kernel_product
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning
from dkgp.solvers.driver import NOBODY, Watch
from dkgp.solvers.losses import Loss
from dkgp.solvers.method_run import Solution, last_errors, run
from dkgp.solvers.registry import AUTO, SolverMemory, build_solver, solver_memory
from dkgp.solvers.risk.majorisation import RiskMajorisation
from dkgp.solvers.risk.method import (
    RiskConjugateGradient,
    RiskGradientDescent,
    RiskMethod,
    RiskParameterConjugateGradient,
)
from dkgp.solvers.risk.newton import (
    LARGEST_RANK,
    MOST_BYTES,
    AutoState,
    RiskAuto,
    RiskNewton,
    affordable_rank,
    whole_bytes,
)
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.stopping import DualityGap, MaxIterations, StoppingRule

# Of `minimise_risk`.
MOST_ITERATIONS = 1000


@dataclass(frozen=True)
class _Named:
    """A method, with the pairs of n p numbers that it holds besides alpha, g and y."""

    help: str
    method: type[RiskMethod[Any]]
    memory: int


_NAMED = {
    "kcg": _Named("kernel conjugate gradients", RiskConjugateGradient, 4),
    "newton": _Named("Newton's method with preconditioned conjugate gradients", RiskNewton, 7),
    "majorisation": _Named("one least-squares problem per step, all with one matrix", RiskMajorisation, 7),
    "gradient": _Named("kernel gradient descent", RiskGradientDescent, 4),
    "paramcg": _Named(
        "conjugate gradients in the parameters, for comparisons with kcg", RiskParameterConjugateGradient, 4
    ),
}
RISK_METHODS = tuple(_NAMED)
RISK_HELP = {name: named.help for name, named in _NAMED.items()}


def method_for(
    risk: Risk, method: str | RiskMethod[Any], precision: Literal["mixed", "double"] = "mixed", seed: int = 0
) -> RiskMethod[Any]:
    """Return the method of a name, "auto" too, for a risk; or a method as it is, if it is of this very risk.

    `UsageError` of another risk's method, and of a name that is none of `RISK_METHODS`.
    """
    if isinstance(method, RiskMethod):
        if method.risk.settings() != risk.settings():
            raise UsageError(f"the method is for {method.risk.settings()}; the risk to minimise has {risk.settings()}")
        return replace(method, risk=risk)
    if method != AUTO and method not in _NAMED:
        raise UsageError(f"there is no method {method!r} for a risk; there are {AUTO}, {', '.join(RISK_METHODS)}")
    kind = RiskAuto if method == AUTO else _NAMED[method].method
    draws: dict[str, Any] = {"seed": seed} if issubclass(kind, RiskNewton) else {}
    return kind(risk, precision, **draws)


def risk_memory(name: str, n: int, p: int, d: int) -> SolverMemory:
    """Return the memory of a method besides alpha, g and y, for n samples, p columns and d features.

    Of "auto" it is Newton's method's, the most that it may take.
    """
    held = SolverMemory(memory=7 if name == AUTO else _NAMED[name].memory, repeats_products=True)
    if name == "majorisation":
        step = solver_memory(build_solver("pcg").resolved(n, d, p), n, d)
        return replace(step, memory=held.memory)
    if name in ("newton", AUTO):
        rank = affordable_rank(n, d, p)
        factor = FactorPreconditioning(halo=0, rank=rank).memory(n, d)
        # F'W F of each column, or one of all that are coupled.
        grams = 8 * max(p * rank**2, min(p * rank, LARGEST_RANK) ** 2)
        wholes = (whole_bytes(n, p, coupled) for coupled in (False, True) if p > 1 or not coupled)
        grams = max(grams, *(taken if taken <= MOST_BYTES else 0 for taken in wholes), 0)
        return replace(held, own_bytes=factor.own_bytes + grams, factor_bytes=factor.factor_bytes)
    return held


@dataclass(frozen=True)
class RiskSolution:
    """The minimiser found; one number for each problem has shape (q,), q = p, or 1 where the loss couples its columns.

    Attributes
    ----------
    solution : Solution
        Its coefficients alpha, why the search stopped, and the way there: `objective` of a record is the risk,
        `objective_gap_bound` how far it is from the least at most, `duality_gap` that over the larger magnitude of the
        risk and the bound below it. `gradient` is the functional gradient's, w l'(y, values) + lambda alpha.
    values : (n, p) float64
        Its values at the samples: K alpha, evaluated anew in float64 after the last step.
    gradient_image : (n, p) float64
        K times the gradient's coefficients, evaluated in float64.
    risk : (q,) float64
        Its risk; an upper bound where products are approximate.
    lower_bound : (q,) float64
        No function's risk is below it, rounding aside.
    method : str
        The method that was taken.
    choice : dict
        The figures behind a choice by "auto", in plain JSON types; empty where the method was named.
    value_errors, image_errors : (n, p) float64
        Bounds on the errors of the entries of `values` and `gradient_image` beyond rounding; empty where products are
        exact.
    """

    solution: Solution
    values: FloatArray
    gradient_image: FloatArray
    risk: FloatArray
    lower_bound: FloatArray
    method: str
    choice: dict[str, Any] = field(default_factory=dict)
    value_errors: FloatArray = field(default_factory=nothing)
    image_errors: FloatArray = field(default_factory=nothing)

    @property
    def product_error(self) -> float:
        """Greatest of both errors; zero where products are exact."""
        return float(max(self.value_errors.max(initial=0.0), self.image_errors.max(initial=0.0)))

    @property
    def gradient(self) -> FloatArray:
        """Coefficients of the functional gradient, of `values` as they are: (n, p)."""
        return self.solution.gradient


def minimise_risk(
    operator: KernelOperator,
    targets: ArrayLike,
    *,
    loss: Loss,
    regularisation: float,
    weights: ArrayLike | None = None,
    method: str | RiskMethod[Any] = AUTO,
    gap: float = 1e-4,
    initial: ArrayLike | None = None,
) -> RiskSolution:
    """Minimise sum_i w_i l(y_i, f(x_i)) + lambda ||f||^2 / 2; `minimise_by` adds the options of a long run.

    Parameters
    ----------
    operator : KernelOperator
        Its noise plays no part.
    targets : (n,) or (n, p) array_like
        Each column is a problem of its own, unless the loss couples them; kernel products are shared.
    weights : (n,) array_like, optional
        w, how often each sample counts; once by default.
    method : str or RiskMethod
        A name of `RISK_METHODS`, "auto" for the one that should take the least time, or a method of this very risk,
        with a precision and settings of its own.
    gap : float
        Converged when the risk is proven to be within this share of the least; it ends after 1,000 iterations.
    initial : (n,) or (n, p) array_like, optional
        Warm start.

    Raises
    ------
    InputError
        Targets of another shape, not finite or not for this loss; settings out of range.
    UsageError
        No such method, or one of another risk.
    """
    y = as_columns(targets, operator.n, "the targets")
    if not gap > 0.0 or not np.isfinite(gap):
        raise InputError(f"the gap must be finite and positive; got {gap!r}")
    counts = None if weights is None else as_columns(weights, operator.n, "the weights", 1)[:, 0]
    risk = Risk(loss, regularisation, counts)
    risk.check(y)
    stopping = DualityGap(gap) | MaxIterations(MOST_ITERATIONS)
    return minimise_by(operator, y, method_for(risk, method), stopping=stopping, initial=initial)


def minimise_by(
    operator: KernelOperator,
    targets: ArrayLike,
    method: RiskMethod[Any],
    *,
    stopping: StoppingRule,
    initial: ArrayLike | None = None,
    watch: Watch = NOBODY,
) -> RiskSolution:
    """Minimise a method's risk until a rule says stop.

    Parameters
    ----------
    operator, targets, initial
        As of `minimise_risk`.
    method : RiskMethod
        See `method_for`.
    watch : Watch
        Callbacks, checkpoints and interruption; none by default.

    Raises
    ------
    InputError
        Targets of another shape, not finite or not for this loss.
    CheckpointError
        The checkpoint belongs to another run.
    InterruptedRunError
        `watch.interrupted` answered true.
    """
    y = as_columns(targets, operator.n, "the targets")
    method.risk.check(y)
    start = None if initial is None else as_columns(initial, operator.n, "the warm start", y.shape[1])
    resolved = method.resolved(operator.n, operator.kernel.n_features, y.shape[1])
    solution, state = run(operator, y, resolved, stopping, initial=start, watch=watch)
    image, image_errors = state.gradient_image, state.image_errors
    if not image.size:
        image, image_errors = kernel_product(operator, state.gradient, "double"), last_errors(operator)
    choice = state.choice if isinstance(state, AutoState) else {}
    name = choice.get("method", resolved.name)
    values, errors = state.values, state.value_errors
    return RiskSolution(solution, values, image, state.risks, state.bound, name, choice, errors, image_errors)
