"""The methods for a risk by the names that users type, with what each holds in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from dkgp.cluster.threads import process_threads
from dkgp.errors import UsageError
from dkgp.operators.low_rank.factor import low_rank_bytes
from dkgp.operators.low_rank.pivots import samples_drawn_from
from dkgp.solvers.registry import AUTO, SolverMemory, build_solver, solver_memory
from dkgp.solvers.risk.auto import RiskAuto
from dkgp.solvers.risk.descent import RiskConjugateGradient, RiskGradientDescent, RiskParameterConjugateGradient
from dkgp.solvers.risk.majorisation import RiskMajorisation
from dkgp.solvers.risk.method import RiskMethod
from dkgp.solvers.risk.newton import RiskNewton
from dkgp.solvers.risk.preconditioner import LARGEST_RANK, affordable_rank
from dkgp.solvers.risk.problem import Risk

__all__ = ["RISK_HELP", "RISK_METHODS", "named_method", "risk_memory"]


@dataclass(frozen=True)
class _Named:
    help: str
    build: Callable[[Risk, Literal["mixed", "double"], int], RiskMethod[Any]]
    # Pairs of n p numbers besides alpha, g and y.
    memory: int


_NAMED = {
    "kcg": _Named(
        "kernel conjugate gradients", lambda risk, precision, seed: RiskConjugateGradient(risk, precision), 4
    ),
    "newton": _Named(
        "Newton's method, its steps by preconditioned conjugate gradients",
        lambda risk, precision, seed: RiskNewton(risk, precision, seed=seed),
        7,
    ),
    "majorisation": _Named(
        "a least squares problem a step, all of one matrix",
        lambda risk, precision, seed: RiskMajorisation(risk, precision),
        7,
    ),
    "gradient": _Named(
        "kernel gradient descent", lambda risk, precision, seed: RiskGradientDescent(risk, precision), 4
    ),
    "paramcg": _Named(
        "conjugate gradients on parameters, kcg's rival",
        lambda risk, precision, seed: RiskParameterConjugateGradient(risk, precision),
        4,
    ),
}
RISK_METHODS = tuple(_NAMED)
RISK_HELP = {name: each.help for name, each in _NAMED.items()}


def named_method(
    name: str, risk: Risk, precision: Literal["mixed", "double"] = "mixed", seed: int = 0
) -> RiskMethod[Any]:
    """Return the method of this name for a risk, "auto" too; `UsageError` lists those that there are."""
    if name == AUTO:
        return RiskAuto(risk, precision, seed=seed)
    if name not in _NAMED:
        raise UsageError(f"there is no method {name!r} for a risk; there are {AUTO}, {', '.join(RISK_METHODS)}")
    return _NAMED[name].build(risk, precision, seed)


def risk_memory(name: str, n: int, p: int, d: int) -> SolverMemory:
    """Return what a method holds besides alpha, g and y, of n samples, p columns and d features.

    Of "auto" it is Newton's method's, the most that it may take.
    """
    held = SolverMemory(memory=7 if name == AUTO else _NAMED[name].memory, repeats_products=True)
    if name == "majorisation":
        step = solver_memory(build_solver("pcg").resolved(n, d, p), n, d)
        return replace(step, memory=held.memory)
    if name in ("newton", AUTO):
        rank = affordable_rank(n, d, p)
        # F'W F of each column, or one of all that are coupled.
        own = 8 * rank * (3 * rank + samples_drawn_from(rank)) + 8 * max(p * rank**2, min(p * rank, LARGEST_RANK) ** 2)
        return replace(held, own_bytes=own, factor_bytes=low_rank_bytes(n, rank, process_threads()))
    return held
