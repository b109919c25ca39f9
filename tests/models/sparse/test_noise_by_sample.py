"""Noise by sample, all the way: fit, proofs, store and checkpoints, against dense formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import CheckpointError, InputError
from dkgp.kernels import Matern32
from dkgp.models.sparse.model import METHODS
from dkgp.models.sparse.stored import open_sparse, save_sparse
from dkgp.models.sparse.train import SparseSettings, TrainedSparse, train_sparse
from dkgp.solvers import Checkpointing
from tests.models.sparse.dense_models import Dense
from tests.watching import in_context

N, S2 = 300, 0.03
KERNEL = Matern32(gamma=(0.5, 0.8), variance=1.2)


def problem() -> Dense:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    y = np.sin(2.0 * X[:, :1]) + X[:, 1:] + 0.2 * rng.standard_normal((N, 1))
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean(axis=0)) / y.std(axis=0)
    return Dense(KERNEL, X, y, S2 * rng.uniform(0.1, 10.0, N), X, 1.5 * rng.standard_normal((30, 2)))


def trained(known: Dense, executor: Any, settings: SparseSettings, **options: Any) -> TrainedSparse:
    dataset = memory_dataset(known.X, known.y)
    return train_sparse(
        dataset, KERNEL, S2, in_context(executor, options), settings, relative_noise=known.noise / S2, **options
    )


@pytest.mark.spread(4)
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_takes_it(method: str, one_thread: LocalExecutor, tmp_path: Path) -> None:
    known = problem()
    found = trained(known, one_thread, SparseSettings(method, 40, certify_passes=2.0))
    exact, exact_variance = known.exact()
    chosen = found.basis.indices
    own = Dense(KERNEL, known.X, known.y, known.noise, known.X[chosen], known.T)
    if method == "sd":
        own = Dense(KERNEL, known.X[chosen], known.y[chosen], known.noise[chosen], own.Z, known.T)
    mean, variance = own.exact() if method == "sd" else own.predictive(method)
    np.testing.assert_allclose(found.model.mean(known.T), mean, atol=1e-6)
    np.testing.assert_allclose(found.model.variance(known.T), variance, atol=1e-6)
    # Proofs, of the exact model with that noise, from what a store keeps.
    np.testing.assert_allclose(found.basis_noise, known.noise[chosen], rtol=1e-12)
    assert found.noise_variance == S2
    save_sparse(found, tmp_path / "model.zarr", memory_dataset(known.X, known.y))
    opened = open_sparse(tmp_path / "model.zarr")
    lower, upper = opened.interval()(known.T)
    assert np.all(lower <= exact_variance * (1.0 + 1e-9))
    assert np.all(exact_variance <= upper * (1.0 + 1e-9))
    assert np.mean(upper < 0.5 * 1.2) > 0.3
    distance = np.abs(mean - exact)[:, 0]
    bound = opened.certificate.mean_error_bound(upper, KERNEL.diagonal(known.T), np.zeros(30))[:, 0]
    assert np.all(distance <= bound)
    across = KERNEL(known.X, known.X)
    fitted = across @ np.linalg.solve(across + np.diag(known.noise), known.y)
    off = np.sqrt(np.mean((found.model.mean(known.X) - fitted) ** 2))
    assert off <= found.certificate.rms_bound[0]
    assert found.certificate.largest_noise == known.noise.max()


def test_a_basis_of_other_points_has_no_noise_of_its_own(one_thread: LocalExecutor) -> None:
    assert trained(problem(), one_thread, SparseSettings("vfe", 20, "k-means")).basis_noise is None


def test_a_checkpoint_belongs_to_its_noise(one_thread: LocalExecutor, tmp_path: Path) -> None:
    known, settings = problem(), SparseSettings("sggp", 12, per_round=4)

    def run(known: Dense, **options: Any) -> TrainedSparse:
        return trained(
            known, one_thread, settings, checkpointing=Checkpointing(CheckpointStore(str(tmp_path)), **options)
        )

    first = run(known)
    np.testing.assert_array_equal(run(known, resume=True).model.weights, first.model.weights)
    other = Dense(KERNEL, known.X, known.y, known.noise[::-1].copy(), known.Z, known.T)
    with pytest.raises(CheckpointError, match="noise"):
        run(other, resume=True)


@pytest.mark.parametrize("noise", [np.ones(N - 1), np.zeros(N), np.full(N, np.inf), np.full(N, np.nan), -np.ones(N)])
def test_what_is_no_noise_is_refused(noise: np.ndarray, one_thread: LocalExecutor) -> None:
    known = problem()
    with pytest.raises(InputError, match="`relative_noise`"):
        train_sparse(
            memory_dataset(known.X, known.y), KERNEL, S2, one_thread, SparseSettings(basis_size=9), relative_noise=noise
        )
