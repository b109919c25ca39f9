"""Stored sparse models: reading and writing, starts of the exact solve, and updates."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_sparse_model, save_sparse_model
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern32, SquaredExponential
from dkgp.models.exact import train
from dkgp.models.sparse import stored as start
from dkgp.models.sparse.model import SparseFit, interval_of
from dkgp.models.sparse.stored import (
    OpenedSparse,
    SparseStart,
    open_sparse,
    opened_sparse,
    save_sparse,
    sparse_record,
    start_from_sparse,
    update_sparse,
)
from dkgp.models.sparse.train import SparseSettings, train_sparse
from dkgp.solvers import ConjugateGradient, GradientInfNorm, GreedyBlockCoordinateDescent
from tests.models.posteriors import sparse_posterior
from tests.models.sparse.judge import Judged, Problem

KERNEL = Matern32(gamma=(0.5, 0.8), variance=1.2)


@pytest.mark.parametrize(("method", "basis"), [("vfe", None), ("sd", None), ("dtc", "k-means"), ("sggp", None)])
def test_what_was_saved_predicts_the_same(
    method: str, basis: str | None, tmp_path: Path, one_thread: LocalExecutor
) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(400))
    trained = train_sparse(dataset, KERNEL, 0.05, one_thread, SparseSettings(method, 30, basis))
    save_sparse(trained, tmp_path / "model.zarr", dataset)
    shutil.rmtree(tmp_path / "train.zarr")
    found, T = open_sparse(tmp_path / "model.zarr"), 1.5 * rng.standard_normal((20, 2))
    np.testing.assert_array_equal(found.model.mean(T), trained.model.mean(T))
    np.testing.assert_array_equal(found.model.variance(T), trained.model.variance(T))
    assert found.certificate == trained.certificate
    assert found.model.method is trained.model.method
    noise = None if basis == "k-means" else 0.05
    expected = interval_of(trained.model, noise, trained.certificate.normal_share)(T)
    for mine, theirs in zip(found.interval()(T), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(found.record.history) == (30 if method == "sggp" else 0)
    assert found.record.summary == trained.summary


N, S2 = 1200, 0.05
SMOOTH: Kernel = SquaredExponential(gamma=(0.3, 0.2))
ROUGH: Kernel = Matern32(gamma=(40.0, 40.0))


def problem() -> Dataset:
    rng = np.random.default_rng(8)
    X = rng.standard_normal((N, 2))
    y = np.column_stack([np.sin(2.0 * X[:, 0]), X[:, 1] ** 2]) + 0.2 * rng.standard_normal((N, 2))
    return memory_dataset(X, y)


def sparse(executor: Any, dataset: Dataset, kernel: Kernel, m: int = 100) -> OpenedSparse:
    trained = train_sparse(dataset, kernel, S2, executor, SparseSettings(basis_size=m))
    return opened_sparse(sparse_record(trained, dataset))


def share(dataset: Dataset, opened: OpenedSparse, kernel: Kernel) -> np.ndarray:
    """By dense algebra, over the sparse mean's own bound."""
    X, y = dataset.inputs(0, N), dataset.all_targets()
    alpha = (y - opened.model.mean(X)) / S2
    matrix = kernel(X, X) + S2 * np.eye(N)
    gained = 2.0 * np.sum(alpha * y, axis=0) - np.sum(alpha * (matrix @ alpha), axis=0)
    return np.asarray(1.0 - gained / (2.0 * np.asarray(opened.certificate.risk)))


@pytest.mark.parametrize("kernel", [SMOOTH, ROUGH])
def test_the_objective_is_that_of_the_residual(
    kernel: Kernel, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = problem()
    opened = sparse(one_thread, dataset, kernel)
    whole = start_from_sparse(dataset, opened, kernel, S2)
    assert whole.rows == N
    np.testing.assert_allclose(whole.share, share(dataset, opened, kernel), rtol=1e-8, atol=1e-10)
    # A part of the rows comes to the same, or so.
    monkeypatch.setattr(start, "ROWS", 400)
    part = start_from_sparse(dataset, opened, kernel, S2)
    assert part.rows == 400
    np.testing.assert_array_equal(part.pays, whole.pays)
    np.testing.assert_allclose(1.0 - part.share, 1.0 - whole.share, rtol=0.5)


@pytest.mark.parametrize("solver", [ConjugateGradient(), GreedyBlockCoordinateDescent(block_size=100)])
def test_a_smooth_problem_starts_near_its_solution(solver: Any, one_thread: LocalExecutor) -> None:
    dataset = problem()
    found = start_from_sparse(dataset, sparse(one_thread, dataset, SMOOTH), SMOOTH, S2)
    assert np.all(found.share < 0.1)

    def passes(initial: Any) -> float:
        trained = train(dataset, SMOOTH, S2, one_thread, solver=solver, stopping=GradientInfNorm(1e-4), initial=initial)
        assert trained.solution.converged
        return trained.solution.progress.column_passes

    # Half of the work at least.
    assert passes(found.alpha) <= 0.5 * passes(None)


def test_a_rough_problem_starts_from_zero(one_thread: LocalExecutor) -> None:
    dataset = problem()
    found = start_from_sparse(dataset, sparse(one_thread, dataset, ROUGH, 30), ROUGH, S2)
    assert found.alpha is None
    assert not found.pays.any()
    assert np.all(found.share >= 1.0)


def test_each_target_starts_where_it_pays() -> None:
    found = SparseStart(None, np.asarray([0.2, 3.0]), 10)
    np.testing.assert_array_equal(found.pays, [True, False])


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


@pytest.mark.spread(3)
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
