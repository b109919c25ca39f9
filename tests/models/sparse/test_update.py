"""New samples for a sparse model: the fit to all of them, with proofs that hold, from what the model has of the old."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_sparse_model, save_sparse_model
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern32, SquaredExponential
from dkgp.models.sparse.model import SparseFit
from dkgp.models.sparse.stored import OpenedSparse, opened_sparse, sparse_record, update_sparse
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.models.posteriors import sparse_posterior
from tests.models.sparse.judge import Judged, Problem

NOISE, OLD, NEW, M = 0.05, 20, 5, 7
KERNELS: dict[str, Kernel] = {
    "rough": Matern32(gamma=(0.5, 0.8), variance=1.2),
    "ill-conditioned": SquaredExponential(gamma=(1e-2, 1e-2)),
}


@dataclass
class Case:
    """A model of old samples, and all samples as it sees them."""

    opened: OpenedSparse
    X: np.ndarray
    y: np.ndarray
    parts: list[Dataset]
    all: Dataset


def case(
    folder: Path, executor: LocalExecutor, method: str, kernel: str = "rough", sizes: tuple[int, ...] = (OLD, NEW)
) -> Case:
    rng = np.random.default_rng(3)
    n, ends = sum(sizes), np.cumsum((0, *sizes))
    X = rng.standard_normal((n, 2))
    y = np.column_stack([np.sin(2.0 * X[:, 0]), X[:, 1] ** 2]) + 0.2 * rng.standard_normal((n, 2))
    stored = [
        dataset_from_arrays(folder / f"{start}.zarr", X[start:stop], y[start:stop], target_names=("a", "b"))
        for start, stop in itertools.pairwise(ends)
    ]
    trained = train_sparse(stored[0], KERNELS[kernel], NOISE, executor, SparseSettings(method, M))
    record = sparse_record(trained, stored[0])
    seen = (record.feature_names, record.target_names, record.standardisation)
    whole = dataset_from_arrays(folder / "all.zarr", X, y, target_names=("a", "b")).as_seen_by(*seen)
    parts = [part.as_seen_by(*seen) for part in stored]
    return Case(opened_sparse(record), whole.inputs(0, n), whole.all_targets(), parts, whole)


@pytest.mark.parametrize("method", ["vfe", "sr", "sggp"])
def test_it_is_the_fit_to_all_samples(method: str, tmp_path: Path, one_thread: LocalExecutor) -> None:
    found = case(tmp_path, one_thread, method, sizes=(300, 40, 25))
    updated = found.opened
    for part in found.parts[1:]:
        updated = opened_sparse(update_sparse(updated, part))
    indices = found.opened.record.indices
    settings = SparseSettings(method, M)
    fresh = train_sparse(found.all, found.opened.model.kernel, NOISE, one_thread, settings, given=indices)
    T = np.random.default_rng(0).standard_normal((50, 2))
    np.testing.assert_allclose(updated.model.mean(T), fresh.model.mean(T), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(updated.model.variance(T), fresh.model.variance(T), rtol=1e-7)
    np.testing.assert_allclose(updated.certificate.target_square, fresh.certificate.target_square, rtol=1e-12)
    # What is carried on is no less than what is evaluated anew, and not much more.
    carried, known = updated.certificate.rms_bound, fresh.certificate.rms_bound
    assert (carried >= known * (1.0 - 1e-9)).all()
    assert (carried <= 1.5 * known).all()
    assert updated.record.summary["updated_with"] == 65
    assert updated.record.summary["n"] == updated.certificate.n == 365
    assert updated.record.fingerprint not in (found.opened.record.fingerprint, "")


@pytest.mark.covering(2)
@pytest.mark.parametrize("by_sample", [False, True])
@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("method", ["vfe", "sr"])
def test_its_proofs_hold(method: str, kernel: str, by_sample: bool, tmp_path: Path, one_thread: LocalExecutor) -> None:
    """Against risk, mean and variance of the exact model of all samples in 50 digits."""
    found = case(tmp_path, one_thread, method, kernel)
    relative = np.random.default_rng(1).uniform(0.5, 2.0, NEW) if by_sample else None
    updated = opened_sparse(update_sparse(found.opened, found.parts[1], relative))
    noise = np.concatenate([np.full(OLD, NOISE), NOISE * (np.ones(NEW) if relative is None else relative)])
    T = 1.5 * np.random.default_rng(2).standard_normal((5, 2))
    # Targets are two roundings off the raw ones; what is proven counts them.
    problem = Problem(updated.model.kernel, noise, found.X, found.y, T)
    judged = Judged(problem, method, one_thread, np.arange(M))
    judged.fit, judged.certificate, judged.interval = (
        SparseFit(updated.model, None),
        updated.certificate,
        updated.interval(),
    )
    assert judged.judge().broken == []
    assert {"risk", "root mean square", "mean", "variance from above"} < set(judged.checked)


def test_it_is_saved_and_predicts_without_any_training_set(tmp_path: Path, one_thread: LocalExecutor) -> None:
    found = case(tmp_path, one_thread, "vfe")
    record = update_sparse(found.opened, found.parts[1])
    save_sparse_model(tmp_path / "model.zarr", record)
    again = opened_sparse(open_sparse_model(tmp_path / "model.zarr"))
    T = np.random.default_rng(0).standard_normal((6, 2))
    one, other = (sparse_posterior(each, variance=True)(T) for each in (opened_sparse(record), again))
    for name, values in one.items():
        np.testing.assert_array_equal(other[name], values)
    # Who knows more samples is no less certain.
    assert (again.model.variance(T) <= found.opened.model.variance(T) * (1.0 + 1e-12)).all()


@pytest.mark.parametrize("method", ["sd", "fitc"])
def test_fits_that_are_no_sums_are_refused(method: str, tmp_path: Path, one_thread: LocalExecutor) -> None:
    found = case(tmp_path, one_thread, method)
    with pytest.raises(InputError, match=f"a model by {method} cannot take in new samples"):
        update_sparse(found.opened, found.parts[1])


def test_samples_that_do_not_fit_are_refused(tmp_path: Path, one_thread: LocalExecutor) -> None:
    found = case(tmp_path, one_thread, "vfe")
    record = found.opened.record

    def refused(words: str, **changes: Any) -> None:
        with pytest.raises(InputError, match=words):
            update_sparse(opened_sparse(replace(record, **changes)), found.parts[1])

    refused("the new samples have the features", feature_names=("u", "v"))
    refused("the new samples have the targets", target_names=("u", "v"))
    refused("nothing is proven", certificate={**record.certificate, "normal_share": None})
    for wrong in (np.ones(3), np.zeros(NEW), np.full(NEW, np.nan)):
        with pytest.raises(InputError, match="`relative_noise` (has shape|must be positive)"):
            update_sparse(found.opened, found.parts[1], wrong)
