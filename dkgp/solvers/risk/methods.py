"""The methods for a risk by the names that users type, with what each holds in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from dkgp.errors import UsageError
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning
from dkgp.solvers.registry import AUTO, SolverMemory, build_solver, solver_memory
from dkgp.solvers.risk.auto import RiskAuto
from dkgp.solvers.risk.descent import RiskConjugateGradient, RiskGradientDescent, RiskParameterConjugateGradient
from dkgp.solvers.risk.majorisation import RiskMajorisation
from dkgp.solvers.risk.method import RiskMethod
from dkgp.solvers.risk.newton import RiskNewton
from dkgp.solvers.risk.preconditioner import LARGEST_RANK, affordable_rank
from dkgp.solvers.risk.problem import Risk


@dataclass(frozen=True)
class _Named:
    """A method, with the pairs of n p numbers that it holds besides alpha, g and y."""

    help: str
    method: type[RiskMethod[Any]]
    memory: int


_NAMED = {
    "kcg": _Named("kernel conjugate gradients", RiskConjugateGradient, 4),
    "newton": _Named("Newton's method, its steps by preconditioned conjugate gradients", RiskNewton, 7),
    "majorisation": _Named("a least squares problem a step, all of one matrix", RiskMajorisation, 7),
    "gradient": _Named("kernel gradient descent", RiskGradientDescent, 4),
    "paramcg": _Named("conjugate gradients on parameters, kcg's rival", RiskParameterConjugateGradient, 4),
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
            raise UsageError(
                f"the method is for {method.risk.settings()}; what is to be minimised is {risk.settings()}"
            )
        return method
    if method != AUTO and method not in _NAMED:
        raise UsageError(f"there is no method {method!r} for a risk; there are {AUTO}, {', '.join(RISK_METHODS)}")
    kind = RiskAuto if method == AUTO else _NAMED[method].method
    draws: dict[str, Any] = {"seed": seed} if issubclass(kind, RiskNewton) else {}
    return kind(risk, precision, **draws)


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
        factor = FactorPreconditioning(halo=0, rank=rank).memory(n, d)
        # F'W F of each column, or one of all that are coupled.
        grams = 8 * max(p * rank**2, min(p * rank, LARGEST_RANK) ** 2)
        return replace(held, own_bytes=factor.own_bytes + grams, factor_bytes=factor.factor_bytes)
    return held
