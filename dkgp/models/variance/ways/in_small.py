"""Products that variances take, counted in small: with a random subset of m of the n samples, and a few test samples.

With halos of s m / n, a rank of R sqrt(m / n) and noise s2 (n / m)^1/4 it takes about as many to the same gap. Of fewer
samples less is known, and as gaps are relative to what is not known and the noise together, there is more of both.

Measured (docs/experiments.md) on kin40k, also with a tenth of its noise and latent, n from 6,000 to 30,000: of 2 to 9
products in float32 all were told within two, and within a factor of two.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.data import memory_model, standardised_inputs
from dkgp.kernels import Kernel
from dkgp.models.variance.batch import BatchOptions, relative_gap, solve_batch
from dkgp.models.variance.landmarks import choose_landmarks
from dkgp.models.variance.nystrom import FactorSource, leaves_of
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.sizes import precision_of
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

# Powers of m / n.
RANK_POWER, NOISE_POWER = 0.5, -0.25


@dataclass(frozen=True)
class Counted:
    """Products that a sample takes part in, in float32 and float64, and the share of samples that met the gap."""

    single: float
    double: float
    met: float


def count_products(
    inputs: FloatArray,
    tests: FloatArray,
    n: int,
    kernel: Kernel,
    noise_variance: float,
    settings: VarianceSettings,
    *,
    rank: int,
    halo: int,
) -> Counted:
    """Count the products of a batch in small.

    Parameters
    ----------
    inputs : (m, d) float64
        A random subset of the n samples, standardised.
    tests : (t, d) float64
        Test samples.
    rank, halo : int
        Of the factors of all n.
    """
    m = len(inputs)
    few = standardised_inputs(inputs, [f"x{index}" for index in range(inputs.shape[1])])
    rank, noise_variance = max(1, round(rank * (m / n) ** RANK_POWER)), noise_variance * (m / n) ** NOISE_POWER
    model = memory_model(few, kernel=kernel.to_json(), noise_variance=noise_variance, alpha=np.zeros((m, 1)))
    landmarks = choose_landmarks(
        model, kernel, gap=settings.gap, largest_rank=rank, latent=settings.latent, fixed=True, seed=settings.seed
    )
    traces = landmarks.residual_trace, landmarks.kernel_trace
    context, executor = BlockContext(f"small-{uuid.uuid4().hex[:12]}", few, kernel, m), LocalExecutor(1)
    leaves = leaves_of(context, noise_variance, executor, max(1, round(halo * m / n))) if halo else None
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
        bounds = solve_batch(
            source.factor(),
            tests,
            BatchOptions(settings.gap, settings.max_passes, settings.latent, factor_first=False),
            source.preconditioner(),
        )
    finally:
        worker_cache().discard_run(context.run_id)
        executor.close()
    met = float(np.mean(relative_gap(bounds.lower, bounds.upper) <= settings.gap))
    return Counted(bounds.tally.single_columns / len(tests), bounds.tally.double_columns / len(tests), met)
