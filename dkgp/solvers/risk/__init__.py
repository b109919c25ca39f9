"""Methods for a regularised risk of any convex loss, run by the driver that all solvers share.

Newton's method has three forms, since the solution of a step differs, and with it the order of all arithmetic: here by
conjugate gradients whose every product is a round that a killed run may lose; on a basis (`dkgp.solvers.basis_risk`) by
a factor that is kept as the metric of quasi-Newton steps while it serves; in Laplace's evidence
(`dkgp.models.tuning.laplace`) by the factors that its gradient takes as well. Losses and their curvatures
(`dkgp.solvers.losses`) and the risk's dual bound are the same.
"""

# Hangs on dkgp/solvers/driver.py.

from __future__ import annotations

from dkgp.solvers.risk.majorisation import RiskMajorisation
from dkgp.solvers.risk.method import (
    RiskConjugateGradient,
    RiskGradientDescent,
    RiskMethod,
    RiskParameterConjugateGradient,
    RiskState,
)
from dkgp.solvers.risk.minimise import (
    RISK_HELP,
    RISK_METHODS,
    RiskSolution,
    method_for,
    minimise_by,
    minimise_risk,
    risk_memory,
)
from dkgp.solvers.risk.newton import RiskNewton
from dkgp.solvers.risk.problem import Risk

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
