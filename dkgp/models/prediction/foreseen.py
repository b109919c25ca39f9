"""Products that predictive variances will take, counted in small.

A random subset of m of the n samples, with halos of s m / n, a rank of R sqrt(m / n) and noise s2 (n / m)^1/4, takes
about as many to the same gap. Of fewer samples less is known, and as gaps are relative to what is not known and the
noise together, there is more of both.

Measured (docs/experiments.md) on kin40k, also with a tenth of its noise and latent, n from 6,000 to 30,000: of 2 to 9
products in float32 all were told within two, and within a factor of two.
"""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.data import Dataset, memory_model, standardised_inputs
from dkgp.kernels import Kernel
from dkgp.models.tuning.subsets import draw_subset
from dkgp.models.variance.batch import BatchOptions, solve_batch
from dkgp.models.variance.landmarks import choose_landmarks
from dkgp.models.variance.nystrom import FactorSource, leaves_of
from dkgp.models.variance.sizes import precision_of
from dkgp.models.variance.variances import VarianceSettings
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.auto import PROBE_SAMPLES, Expected

# Powers of m / n.
RANK_POWER, NOISE_POWER = 0.5, -0.25
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
    few = standardised_inputs(inputs[:m], dataset.feature_names)
    rank, noise_variance = max(1, round(plan["rank"] * (m / n) ** RANK_POWER)), noise_variance * (m / n) ** NOISE_POWER
    model = memory_model(few, kernel=kernel.to_json(), noise_variance=noise_variance, alpha=np.zeros((m, 1)))
    landmarks = choose_landmarks(
        model, kernel, gap=settings.gap, largest_rank=rank, latent=settings.latent, fixed=True, seed=settings.seed
    )
    traces = landmarks.residual_trace, landmarks.kernel_trace
    context, executor = BlockContext(f"small-{uuid.uuid4().hex[:12]}", few, kernel, m), LocalExecutor(1)
    leaves = None
    if plan["halo"]:
        leaves = leaves_of(context, noise_variance, executor, max(1, round(plan["halo"] * m / n)))
    source = FactorSource(
        context,
        noise_variance,
        model.input_rows(landmarks.indices),
        precision_of(False, *traces, noise_variance),
        leaves is None,
        None,
        leaves,
    )
    try:
        tally = solve_batch(
            source.factor(),
            inputs[-tests:],
            BatchOptions(settings.gap, settings.max_passes, settings.latent, factor_first=False),
            source.preconditioner(1),
        ).tally
    finally:
        worker_cache().discard_run(context.run_id)
        executor.close()
    single, double = (columns / tests for columns in (tally.single_columns, tally.double_columns))
    most = settings.max_passes
    return _between(single, most), _between(double, most)


def _between(count: float, most: float) -> Expected:
    """Counts so near, by one or by a factor; none where none are taken."""
    if not count:
        return Expected(0.0, 0.0, 0.0)
    low, high = min(count / SPREAD, count - 1.0), max(count * SPREAD, count + 1.0)
    return Expected(count, max(1.0, low), min(most, high))
