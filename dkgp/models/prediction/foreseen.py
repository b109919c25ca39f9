"""Products that predictive variances will take, before there is a model: counted in small."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.data import Dataset
from dkgp.kernels import Kernel
from dkgp.models.tuning.subsets import draw_subset
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import count_products
from dkgp.solvers.auto import PROBE_SAMPLES
from dkgp.solvers.prices import Expected

# Of counts foretold, in most cases.
SPREAD = 2.0
PROBE_TESTS = 64


def foreseen_products(
    dataset: Dataset, kernel: Kernel, noise_variance: float, settings: VarianceSettings, plan: dict[str, Any]
) -> tuple[Expected, Expected]:
    """Foresee the float32 and the float64 products that a sample takes part in, for a run that is planned so.

    Parameters
    ----------
    kernel, noise_variance
        Without white noise in the kernel.
    plan : dict
        `VarianceRun.plan`, of which the rank and the halo count.
    """
    n = dataset.n_samples
    m, tests = min(n, PROBE_SAMPLES), min(n, PROBE_TESTS)
    rng = np.random.default_rng([settings.seed, 5])
    inputs = dataset.input_rows(rng.permutation(draw_subset(n, m + tests, settings.seed)))
    counted = count_products(
        inputs[:m], inputs[-tests:], n, kernel, noise_variance, settings, rank=plan["rank"], halo=plan["halo"]
    )
    most = settings.max_passes
    return _between(counted.single, most), _between(counted.double, most)


def _between(count: float, most: float) -> Expected:
    """Counts so near, by one or by a factor; none where none are taken."""
    if not count:
        return Expected(0.0, 0.0, 0.0)
    low, high = min(count / SPREAD, count - 1.0), max(count * SPREAD, count + 1.0)
    return Expected(count, max(1.0, low), min(most, high))
