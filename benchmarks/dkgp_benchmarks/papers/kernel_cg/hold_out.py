"""Kernel and lambda on a hold-out set, as the kernel CG paper chooses its own."""

from __future__ import annotations

import numpy as np

from dkgp.operators import DenseKernelOperator
from dkgp.solvers.losses import Loss
from dkgp.solvers.risk import minimise_risk
from dkgp_benchmarks.classify.trial import median_gamma
from dkgp_benchmarks.risk.problems import RiskProblem

__all__ = ["GAMMA_STEPS", "LAMBDAS", "held_out"]

# Of log gamma about the median distance's, and of lambda.
GAMMA_STEPS, LAMBDAS = (-2.0, -1.0, 0.0, 1.0, 2.0), (0.01, 0.1, 1.0, 10.0)
SAMPLES, HELD_SHARE = 900, 1.0 / 3.0
# The loss of samples that were left out does not change with the last digits.
GAP, ITERATIONS = 1e-3, 500


def held_out(problem: RiskProblem, loss: Loss, seed: int) -> tuple[RiskProblem, float, float]:
    """Find kernel and lambda by the mean loss of a third of at most 900 training samples.

    A kernel that is known stays. Of equal losses the larger lambda and the smoother kernel count.

    Returns
    -------
    problem, regularisation, loss : RiskProblem, float and float
        With its kernel; lambda; and the mean loss that was left.
    """
    rows = np.random.default_rng([seed, 31]).permutation(problem.n)[:SAMPLES]
    held = max(1, round(HELD_SHARE * len(rows)))
    out, kept = rows[:held], rows[held:]
    gammas: list[float | None] = [None]
    if problem.kernel is None:
        start = median_gamma(problem.inputs[rows], seed)
        gammas = [start * float(np.exp(step)) for step in GAMMA_STEPS]
    best: tuple[float, RiskProblem, float] | None = None
    for gamma in gammas:
        tried = problem if gamma is None else problem.with_gamma(gamma)
        operator = DenseKernelOperator(tried.found, 1.0, problem.inputs[kept], compiled=True)
        across = tried.columns(problem.inputs[out], problem.inputs[kept])
        for regularisation in sorted(LAMBDAS, reverse=True):
            found = minimise_risk(
                operator, problem.targets[kept], loss=loss, regularisation=regularisation,
                method="kcg", gap=GAP, max_iterations=ITERATIONS, precision="double",
            )  # fmt: skip
            left = float(np.mean(loss.value(problem.targets[out], across @ found.solution.alpha)))
            if best is None or left < best[0]:
                best = left, tried, regularisation
    assert best is not None
    return best[1], best[2], best[0]
