"""A risk minimised by keywords alone: those of its method, of its stopping rule and of its watch."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.operators.base import KernelOperator
from dkgp.solvers import DualityGap, MaxIterations, Watch
from dkgp.solvers.losses import Loss
from dkgp.solvers.risk import Risk, RiskSolution, method_for, minimise_by


def minimised_by(
    operator: KernelOperator,
    targets: np.ndarray,
    *,
    loss: Loss,
    regularisation: float = 0.1,
    weights: np.ndarray | None = None,
    method: Any = "auto",
    precision: Any = "mixed",
    gap: float = 1e-4,
    max_iterations: int = 1000,
    initial: np.ndarray | None = None,
    **watch: Any,
) -> RiskSolution:
    chosen = method_for(Risk(loss, regularisation, weights), method, precision)
    stopping = DualityGap(gap) | MaxIterations(max_iterations)
    return minimise_by(operator, targets, chosen, stopping=stopping, initial=initial, watch=Watch(**watch))
