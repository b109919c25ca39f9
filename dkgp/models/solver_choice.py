"""`auto` for a dataset: draws the subset that is probed, and says what was chosen."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.kernels import Kernel, fold_white
from dkgp.models.tuning.tune import draw_subset
from dkgp.solvers.auto import DEFAULT_MEMORY_BYTES, PROBE_SAMPLES, Choice, ResidualCurve, _Prices, choose_solver

__all__ = ["Probed", "choose_solver_for", "law_for"]


class Probed(Protocol):
    """A data set, as far as choosing looks at it."""

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
    tolerance: float = 1e-4,
    double: bool = False,
    pruned: bool = False,
    memory_bytes: int | None = None,
    seed: int = 0,
) -> Choice:
    """Choose a solver for a dataset; see `dkgp.solvers.choose_solver`.

    Parameters
    ----------
    dataset : Probed
        Of which at most `PROBE_SAMPLES` rows are read.
    kernel : Kernel
    noise_variance : float
        s2.
    tolerance, double, seed
        As for `choose_solver`.
    pruned : bool
        Products are taken by a tree.
    memory_bytes : int, optional
        What may be used at all; a factor may take a quarter of it, and a gibibyte at most.
    """
    if pruned:
        return Choice(
            "cg", None, "products by a tree cost next to nothing: the method that needs nothing but products", {}
        )
    n = dataset.n_samples
    share = DEFAULT_MEMORY_BYTES if memory_bytes is None else min(DEFAULT_MEMORY_BYTES, memory_bytes // 4)
    rows = draw_subset(n, PROBE_SAMPLES, seed) if n > 1 else np.zeros(1, np.int64)
    kernel, noise_variance = fold_white(kernel, noise_variance)
    return choose_solver(
        kernel,
        noise_variance,
        dataset.input_rows(rows),
        n,
        dataset.n_targets,
        tolerance=tolerance,
        double=double,
        memory_bytes=max(1, share),
        seed=seed,
    )


def law_for(dataset: Probed, kernel: Kernel, noise_variance: float, *, tolerance: float, seed: int) -> _Prices:
    """Probe a dataset; return what foresees iterations and passes."""
    n = dataset.n_samples
    inputs = dataset.input_rows(draw_subset(n, PROBE_SAMPLES, seed) if n > 1 else np.zeros(1, np.int64))
    kernel, noise_variance = fold_white(kernel, noise_variance)
    largest = float(np.max(kernel.diagonal(inputs)))
    curve = ResidualCurve.of(kernel, inputs, seed)
    return _Prices(n, kernel.n_features, dataset.n_targets, noise_variance / largest, tolerance, False, curve)
