"""Kernel and lambda on a hold-out set, as the kernel CG paper chooses its own."""

from __future__ import annotations

import numpy as np

from dkgp.operators import DenseKernelOperator
from dkgp.solvers import DualityGap, MaxIterations
from dkgp.solvers.losses import Loss
from dkgp.solvers.risk import Risk, method_for, minimise_by
from dkgp_benchmarks.classify.trial import median_gamma
from dkgp_benchmarks.risk.problems import RiskProblem

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
    test_size = max(1, round(HELD_SHARE * len(rows)))
    out, train = rows[:test_size], rows[test_size:]
    gammas: list[float | None] = [None]
    if problem.kernel is None:
        start = median_gamma(problem.inputs[rows], seed)
        gammas = [start * float(np.exp(step)) for step in GAMMA_STEPS]
    best: tuple[float, RiskProblem, float] | None = None
    for gamma in gammas:
        tried = problem if gamma is None else problem.with_gamma(gamma)
        operator = DenseKernelOperator(tried.found, 1.0, problem.inputs[train], compiled=True)
        across = tried.columns(problem.inputs[out], problem.inputs[train])
        for regularisation in sorted(LAMBDAS, reverse=True):
            method = method_for(Risk(loss, regularisation), "kcg", "double")
            stopping = DualityGap(GAP) | MaxIterations(ITERATIONS)
            found = minimise_by(operator, problem.targets[train], method, stopping=stopping)
            test_loss = float(np.mean(loss.value(problem.targets[out], across @ found.solution.alpha)))
            if best is None or test_loss < best[0]:
                best = test_loss, tried, regularisation
    assert best is not None
    return best[1], best[2], best[0]
