"""One file per method, settings as frozen dataclasses, one driver that owns the loop."""

# Hangs on dkgp/solvers/driver.py.

from __future__ import annotations

from dkgp.solvers.auto import Choice, choose_solver
from dkgp.solvers.base import Method, Solver
from dkgp.solvers.block_descent.gbcd import GreedyBlockCoordinateDescent
from dkgp.solvers.block_descent.selection import CyclicSelection, GradientSelection, GreedySelection, Selection
from dkgp.solvers.checkpointing import Checkpointing
from dkgp.solvers.cholesky.in_memory import Cholesky
from dkgp.solvers.cholesky.tiled import TiledCholesky
from dkgp.solvers.conjugate.gradient import ConjugateGradient
from dkgp.solvers.conjugate.kernel_cg import KernelConjugateGradient, ParameterConjugateGradient
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning
from dkgp.solvers.driver import Solution
from dkgp.solvers.linear_system import solve
from dkgp.solvers.pursuit.engine import pursue
from dkgp.solvers.pursuit.kernel import KernelSystem
from dkgp.solvers.pursuit.path import PursuitPath
from dkgp.solvers.pursuit.rows import RowSystem
from dkgp.solvers.pursuit.settings import PursuitSettings
from dkgp.solvers.pursuit.systems import GramSystem
from dkgp.solvers.smo import SequentialMinimalOptimization
from dkgp.solvers.stopping import (
    DualityGap,
    GradientInfNorm,
    MaxIterations,
    MaxPasses,
    MaxSeconds,
    ObjectiveGap,
    Progress,
    RelativeResidual,
    StoppingRule,
    StopReason,
)
from dkgp.solvers.watch import Watch

__all__ = [
    "Checkpointing",
    "Choice",
    "Cholesky",
    "ConjugateGradient",
    "CyclicSelection",
    "DualityGap",
    "FactorPreconditioning",
    "GradientInfNorm",
    "GradientSelection",
    "GramSystem",
    "GreedyBlockCoordinateDescent",
    "GreedySelection",
    "KernelConjugateGradient",
    "KernelSystem",
    "MaxIterations",
    "MaxPasses",
    "MaxSeconds",
    "Method",
    "ObjectiveGap",
    "ParameterConjugateGradient",
    "Progress",
    "PursuitPath",
    "PursuitSettings",
    "RelativeResidual",
    "RowSystem",
    "Selection",
    "SequentialMinimalOptimization",
    "Solution",
    "Solver",
    "StopReason",
    "StoppingRule",
    "TiledCholesky",
    "Watch",
    "choose_solver",
    "pursue",
    "solve",
]
