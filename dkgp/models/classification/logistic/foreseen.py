"""Products that minimising a likelihood's risk over all samples will take, foreseen by runs on subsets."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset
from dkgp.kernels import Kernel
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.classification.logistic.stopping import NO_NOISE, RISK_TOLERANCE, RiskError
from dkgp.models.tuning.tune import draw_subset
from dkgp.operators import ArrayInputs
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers import DualityGap, MaxPasses
from dkgp.solvers.auto import Expected
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import RiskMethod, minimise_risk

__all__ = ["FORESEEN_FROM", "foreseen_products"]

# Samples of the runs that products are foreseen from, and products after which one of them is given up.
SUBSETS, MOST_PRODUCTS = (500, 2000), 400.0
# So many samples are worth these runs on the way: their products have a hundredth of the entries at most.
FORESEEN_FROM = 20_000
# Products grow no faster with n than its root, and the count at hand is unsure by so much.
STEEPEST, UNSURE = 0.5, 1.5


def foreseen_products(
    dataset: Dataset,
    labels: Labels,
    kernel: Kernel,
    likelihood: Likelihood,
    *,
    method: str | RiskMethod[Any] = AUTO,
    regularisation: float = 1.0,
    tolerance: float = RISK_TOLERANCE,
    gap: float | None = None,
    seed: int = 0,
) -> Expected:
    """Foresee the products with the whole matrix, float32 ones for the most part.

    They are counted in runs on subsets, and go on with n as they did from the smaller of these to the larger, or up to
    its root; the fewest are also those of Newton's method, which all samples may be handed over to.

    Parameters
    ----------
    kernel : Kernel
        Without white noise.
    method, regularisation, tolerance, gap, seed
        As of `train_logistic`.
    """

    def products(size: int, method: str | RiskMethod[Any]) -> float:
        chosen = draw_subset(dataset.n_samples, size, seed)
        inputs, targets = dataset.input_rows(chosen), likelihood.targets(labels.subset(chosen))
        with (
            closing(LocalExecutor(1)) as executor,
            BlockedKernelOperator(kernel, NO_NOISE, ArrayInputs(inputs), executor) as operator,
        ):
            rule = RiskError(tolerance, float(operator.prior().max())) if gap is None else DualityGap(gap)
            solved = minimise_risk(
                operator,
                targets,
                loss=likelihood.loss,
                regularisation=regularisation,
                method=method,
                stopping=rule | MaxPasses(MOST_PRODUCTS),
                seed=seed,
            )
        return solved.solution.progress.column_passes

    n = dataset.n_samples
    sizes = sorted({min(size, n) for size in SUBSETS})
    counts = [products(size, method) for size in sizes]
    # What goes by conjugate gradients on a subset may be handed over to Newton's method on all samples.
    least = products(sizes[-1], "newton") if method == AUTO else counts[-1]
    growth = 0.0
    if len(sizes) > 1 and counts[0] > 0.0:
        growth = math.log(counts[-1] / counts[0]) / math.log(sizes[-1] / sizes[0])
    ratio, last = n / sizes[-1], max(1.0, counts[-1])
    expected = last * ratio ** min(max(growth, 0.0), STEEPEST)
    return Expected(expected, max(1.0, min(last, least)) / UNSURE, last * ratio**STEEPEST * UNSURE)
