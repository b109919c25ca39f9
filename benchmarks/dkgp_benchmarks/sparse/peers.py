"""Sparse models of other libraries on the same problem, each in a process of an interpreter that has it.

They are given the kernel, the noise variance, and where they take them the inducing points; nothing is trained but what
these determine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, open_dataset
from dkgp.errors import UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.sparse.bases import blind_basis
from dkgp.operators import BlockedKernelOperator
from dkgp_benchmarks.peers.interpreters import run_peer

# Of the samples that peers are given as inducing points, drawn as `basis=uniform` draws them.
BASIS = "uniform"


def peer_model(description: dict[str, Any], dataset: Dataset, found: Hyperparameters) -> dict[str, Any]:
    """A peer's model and predictions, by its own interpreter."""
    if not isinstance(found.kernel, SquaredExponential) or dataset.n_targets != 1:
        raise UsageError("peers are given a squared exponential kernel and one target; this problem has others")
    place = Path(description["predictions"])
    test = open_dataset(description["test"])
    inputs = dataset.inputs(0, dataset.n_samples)
    with BlockedKernelOperator(found.kernel, found.noise_variance, dataset, LocalExecutor(1)) as operator:
        basis = blind_basis(operator, BASIS, description["basis_size"], description["seed"])
    problem = place.with_suffix(".problem.npz")
    np.savez(
        problem,
        X=inputs,
        y=dataset.all_targets()[:, 0],
        Z=basis.inputs,
        T=test.inputs(0, test.n_samples),
        gamma=found.kernel.feature_gamma,
        variance=found.kernel.variance,
        noise=found.noise_variance,
    )
    return run_peer(description["peer"], description["python"], problem, place)
