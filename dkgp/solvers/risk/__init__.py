"""Methods for a regularised risk of any convex loss, each a file, through the driver that all solvers share."""

# Hangs on dkgp/solvers/driver.py.

from __future__ import annotations

from dkgp.solvers.risk.descent import RiskConjugateGradient, RiskGradientDescent, RiskParameterConjugateGradient
from dkgp.solvers.risk.majorisation import RiskMajorisation
from dkgp.solvers.risk.method import RiskMethod
from dkgp.solvers.risk.methods import RISK_HELP, RISK_METHODS, method_for, risk_memory
from dkgp.solvers.risk.minimise import RiskSolution, minimise_by, minimise_risk
from dkgp.solvers.risk.newton import RiskNewton
from dkgp.solvers.risk.problem import Risk
from dkgp.solvers.risk.state import RiskState

__all__ = [
    "RISK_HELP",
    "RISK_METHODS",
    "Risk",
    "RiskConjugateGradient",
    "RiskGradientDescent",
    "RiskMajorisation",
    "RiskMethod",
    "RiskNewton",
    "RiskParameterConjugateGradient",
    "RiskSolution",
    "RiskState",
    "method_for",
    "minimise_by",
    "minimise_risk",
    "risk_memory",
]
