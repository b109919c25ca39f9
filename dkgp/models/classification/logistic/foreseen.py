"""Products that minimising a likelihood's risk over all samples will take, foreseen by runs on subsets."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

from dkgp.cluster import LocalExecutor
from dkgp.kernels import Kernel
from dkgp.models.classification.labelled import LabelledData
from dkgp.models.classification.logistic.stopping import NO_NOISE, RiskSettings
from dkgp.models.tuning.subsets import draw_subset
from dkgp.operators import ArrayInputs
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers import MaxPasses
from dkgp.solvers.auto import Expected
from dkgp.solvers.registry import AUTO
from dkgp.solvers.risk import Risk, RiskMethod, method_for, minimise_by

# Samples of the runs that products are foreseen from, and products after which one of them is given up.
SUBSETS, MOST_PRODUCTS = (500, 2000), 400.0
# So many samples are worth these runs on the way: their products have a hundredth of the entries at most.
FORESEEN_FROM = 20_000
# Products grow no faster with n than its root, and the count at hand is unsure by so much.
STEEPEST, UNSURE = 0.5, 1.5


def foreseen_products(data: LabelledData, kernel: Kernel, settings: RiskSettings) -> Expected:
    """Foresee the products with the whole matrix, float32 ones for the most part; the kernel has no white noise.

    They are counted in runs on subsets, and go on with n as they did from the smaller of these to the larger, or up to
    its root; the fewest are also those of Newton's method, which all samples may be handed over to.
    """
    n, likelihood = data.n, settings.likelihood

    def products(size: int, method: str | RiskMethod[Any]) -> float:
        subset = draw_subset(n, size, settings.seed)
        inputs, targets = data.dataset.input_rows(subset), likelihood.targets(data.labels.subset(subset))
        with (
            closing(LocalExecutor(1)) as executor,
            BlockedKernelOperator(kernel, NO_NOISE, ArrayInputs(inputs), executor) as operator,
        ):
            minimiser = method_for(Risk(likelihood.loss, settings.regularisation), method, seed=settings.seed)
            rule = settings.converged(float(operator.prior().max()))
            solved = minimise_by(operator, targets, minimiser, stopping=rule | MaxPasses(MOST_PRODUCTS))
        return solved.solution.progress.column_passes

    sizes = sorted({min(size, n) for size in SUBSETS})
    counts = [products(size, settings.method) for size in sizes]
    # What goes by conjugate gradients on a subset may be handed over to Newton's method on all samples.
    least = products(sizes[-1], "newton") if settings.method == AUTO else counts[-1]
    growth = 0.0
    if len(sizes) > 1 and counts[0] > 0.0:
        growth = math.log(counts[-1] / counts[0]) / math.log(sizes[-1] / sizes[0])
    ratio, last = n / sizes[-1], max(1.0, counts[-1])
    expected = last * ratio ** min(max(growth, 0.0), STEEPEST)
    return Expected(expected, max(1.0, min(last, least)) / UNSURE, last * ratio**STEEPEST * UNSURE)
