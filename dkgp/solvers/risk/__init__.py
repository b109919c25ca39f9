"""Methods for a regularised risk of any convex loss, each a file, through the driver that all solvers share."""

from __future__ import annotations

from dkgp.solvers.risk.descent import RiskConjugateGradient, RiskGradientDescent, RiskParameterConjugateGradient
from dkgp.solvers.risk.method import RiskMethod
from dkgp.solvers.risk.minimise import RISK_METHODS, RiskSolution, minimise_risk
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.risk.state import RiskState

__all__ = [
    "RISK_METHODS",
    "Risk",
    "RiskConjugateGradient",
    "RiskGradientDescent",
    "RiskMethod",
    "RiskParameterConjugateGradient",
    "RiskSolution",
    "RiskState",
    "minimise_risk",
]
