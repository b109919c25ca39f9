"""The solver "auto" for a data set: draw a subset, probe it, choose by what the probe says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.kernels import Kernel, fold_white
from dkgp.models.tuning.subsets import draw_subset
from dkgp.operators.base import Variances, total_noise
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.solvers.auto import Choice, choose_by, choose_solver, probed_samples
from dkgp.solvers.conjugate.preconditioner import FactorPreconditioning, factor_bytes_allowed
from dkgp.solvers.conjugate.probe import Probe


class Probed(Protocol):
    """The part of a data set that the choice of a solver reads."""

    @property
    def n_samples(self) -> int:
        """Number of samples n."""

    @property
    def n_targets(self) -> int:
        """Number of targets p."""

    def input_rows(self, indices: Any, /) -> FloatArray:
        """Rows of the standardised inputs: (len(indices), d)."""


def choose_solver_for(
    dataset: Probed,
    kernel: Kernel,
    noise_variance: float,
    *,
    sample_noise: FloatArray | None = None,
    more_columns: int = 0,
    tolerance: float = 1e-4,
    double: bool = False,
    product_error: ProductError = EVERY_ENTRY,
    memory_bytes: int | None = None,
    one_arithmetic: bool = True,
    seed: int = 0,
) -> Choice:
    """Choose a solver for a dataset; see `dkgp.solvers.choose_solver`.

    Parameters
    ----------
    dataset : Probed
        Of which at most `PROBE_SAMPLES` rows are read.
    sample_noise : (n,) float64, optional
        Known noise of the samples beside it, standardised.
    more_columns : int
        Right-hand sides beside the targets: those of a mean.
    tolerance, double, one_arithmetic, product_error, seed
        As for `choose_solver`.
    memory_bytes : int, optional
        What may be used at all; a factor may take a third of it, and `factor_bytes_allowed` at most.
    """
    share = factor_bytes_allowed(dataset.n_samples)
    if memory_bytes is not None:
        share = min(share, memory_bytes // 3)
    return choose_by(
        probe_of(
            dataset,
            kernel,
            noise_variance,
            sample_noise=sample_noise,
            more_columns=more_columns,
            tolerance=tolerance,
            seed=seed,
        ),
        double=double,
        memory_bytes=max(1, share),
        one_arithmetic=one_arithmetic,
        product_error=product_error,
    )


def probe_of(
    dataset: Probed,
    kernel: Kernel,
    noise_variance: float,
    *,
    sample_noise: FloatArray | None = None,
    more_columns: int = 0,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Probe:
    """Probe a dataset as the choice does; `expected_count` projects a named solver's iterations from it."""
    inputs = _probed(dataset, seed)
    kernel, noise_variance = fold_white(kernel, noise_variance)
    n, p = dataset.n_samples, dataset.n_targets + more_columns
    noise = probed_noise(total_noise(noise_variance, sample_noise, n))
    return Probe(kernel, noise, inputs, n, p, tolerance=tolerance, seed=seed)


def probed_noise(noise: Variances) -> float:
    """The one variance that a problem with noise by sample is probed with: the harmonic mean of the samples' own.

    tr(N^-1 K) is then as large, which is what the least variance, of one sample perhaps, says nothing of.
    """
    return noise if isinstance(noise, float) else float(len(noise) / np.sum(1.0 / noise))


def factor_for(
    dataset: Probed,
    kernel: Kernel,
    noise_variance: float,
    t: int,
    *,
    tolerance: float = 1e-4,
    memory_bytes: int | None = None,
    seed: int = 0,
) -> FactorPreconditioning:
    """Choose the factor for t right-hand sides at once: that of "auto", or its own sizes where auto takes no factor.

    `memory_bytes` is what the factor may take; the others are as for `choose_solver`.
    """
    factor = FactorPreconditioning(memory_bytes=memory_bytes, seed=seed)
    inputs, n = _probed(dataset, seed), dataset.n_samples
    kernel, noise_variance = fold_white(kernel, noise_variance)
    choice = choose_solver(
        kernel, noise_variance, inputs, n, t, tolerance=tolerance, memory_bytes=memory_bytes, seed=seed
    )
    return replace(factor, **choice.options) if choice.solver == "pcg" else factor


def _probed(dataset: Probed, seed: int) -> FloatArray:
    n = dataset.n_samples
    return dataset.input_rows(draw_subset(n, probed_samples(n), seed) if n > 1 else np.zeros(1, np.int64))
