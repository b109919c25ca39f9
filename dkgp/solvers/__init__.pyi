from .auto import Choice, choose_solver
from .base import Method, Solver
from .block_descent.gbcd import GreedyBlockCoordinateDescent
from .block_descent.selection import CyclicSelection, GradientSelection, GreedySelection, Selection
from .cholesky.in_memory import Cholesky
from .cholesky.tiled import TiledCholesky
from .conjugate.gradient import ConjugateGradient
from .conjugate.kernel_cg import KernelConjugateGradient, ParameterConjugateGradient
from .conjugate.preconditioner import FactorPreconditioning
from .driver import Checkpointing, Watch
from .linear_system import solve
from .method_run import Solution
from .pursuit.engine import PursuitPath, PursuitSettings, pursue
from .pursuit.systems import GramSystem, KernelSystem, RowSystem
from .smo import SequentialMinimalOptimization
from .stopping import (
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
