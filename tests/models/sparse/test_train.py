"""Training of sparse models, and its memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import TileBudget, worker_cache
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError
from dkgp.kernels import Matern32, SquaredExponential, White
from dkgp.models.context import RunContext
from dkgp.models.memory import Memory
from dkgp.models.sparse.settings import plan_sparse
from dkgp.models.sparse.train import SparseSettings, TrainedSparse, train_sparse
from dkgp.operators.cross.tasks import SLAB_COLUMNS, slab_bytes
from dkgp.operators.product_error import ProductError
from dkgp.progress import Progress
from dkgp.solvers.greedy_basis import GreedySettings
from tests.resuming import Resuming

N = 500
KERNEL = Matern32(gamma=(0.5, 0.8), variance=1.2)


def trained(executor: Any, kernel: Any = KERNEL, given: Any = None, **settings: Any) -> TrainedSparse:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    y = np.column_stack([np.sin(2.0 * X[:, 0]), X[:, 1]]) + 0.1 * rng.standard_normal((N, 2))
    return train_sparse(memory_dataset(X, y), kernel, 0.02, executor, SparseSettings(**settings), given=given)


@pytest.mark.parametrize(
    ("method", "basis"),
    [
        ("vfe", "pivoted"),
        ("sr", "uniform"),
        ("dtc", "k-means"),
        ("fitc", "entropy"),
        ("sd", "uniform"),
        ("sggp", "greedy"),
        ("mpgp", "greedy"),
    ],
)
def test_every_method_is_trained_and_certified(method: str, basis: str, one_thread: LocalExecutor) -> None:
    found = trained(one_thread, method=method, basis=basis, basis_size=60)
    summary = found.summary
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["method"], summary["basis"], summary["basis_size"]) == (method, basis, 60)
    assert summary["converged"]
    assert found.converged
    assert found.model.m == 60
    assert found.model.weights.shape == (60, 2)
    assert np.isfinite(summary["rms_bound"]).all()
    assert (summary["elbo"] is None) == (method in ("sd", "fitc"))
    assert set(summary["seconds_by_part"]) == {"choice", "fit", "certificate"}


def test_the_methods_own_basis_is_the_default(one_thread: LocalExecutor) -> None:
    found = {name: trained(one_thread, method=name, basis_size=20).summary["basis"] for name in ("sd", "vfe", "mpgp")}
    assert found == {"sd": "uniform", "vfe": "pivoted", "mpgp": "greedy"}


def test_passes_of_descent_are_spent_and_told(one_thread: LocalExecutor) -> None:
    few = trained(one_thread, method="sr", basis_size=40)
    more = trained(one_thread, method="sr", basis_size=40, certify_passes=3.0)
    assert "descent" in more.certificate.least_risk
    assert np.all(more.certificate.excess < few.certificate.excess)
    assert more.summary["best"] == ["descent", "descent"]
    assert "passes" in more.summary["seconds_by_part"]
    # The same fit.
    np.testing.assert_array_equal(few.model.weights, more.model.weights)


def test_passes_of_descent_allow_for_the_errors_of_products(one_thread: LocalExecutor) -> None:
    excess = {}
    for error in ("none", 1e-6):
        context = RunContext(one_thread, product_error=ProductError.of(error))
        found = trained(context, SquaredExponential((80.0, 90.0)), method="sr", basis_size=40, certify_passes=3.0)
        excess[error] = found.certificate.excess
    assert (excess[1e-6] > excess["none"]).all()
    assert (excess[1e-6] < 1.1 * excess["none"]).all()


def test_a_gap_that_is_met_and_one_that_is_not(one_thread: LocalExecutor) -> None:
    met = trained(one_thread, method="sggp", basis_size=300, gap=0.05)
    assert met.converged
    assert met.summary["basis_size"] < 300
    # What was estimated while choosing is proven, but for roundings: for all targets together.
    certificate = met.certificate
    risk, least = sum(certificate.risk), sum(certificate.least_risk["subset"])
    assert 2.0 * (risk - least) / (sum(certificate.target_square) - risk - least) <= 0.05 * (1.0 + 1e-6)
    missed = trained(one_thread, method="sggp", basis_size=10, gap=1e-4)
    assert not missed.converged
    assert not missed.summary["converged"]
    assert "larger basis" in missed.summary["advice"]


def test_a_given_basis_and_white_noise(one_thread: LocalExecutor) -> None:
    chosen = np.arange(0, N, 10)
    found = trained(one_thread, kernel=KERNEL + White(variance=0.01), given=chosen, method="vfe")
    assert found.noise_variance == pytest.approx(0.03)
    assert found.summary["basis"] == "given"
    np.testing.assert_array_equal(found.basis.indices, chosen)


def test_progress_is_told(one_thread: LocalExecutor) -> None:
    told: list[Progress] = []
    rng = np.random.default_rng(0)
    dataset = memory_dataset(rng.standard_normal((N, 2)), rng.standard_normal((N, 1)))
    rounds: list[int] = []
    train_sparse(
        dataset,
        KERNEL,
        0.1,
        RunContext(one_thread, callback=lambda progress: rounds.append(progress.size), within=told.append),
        SparseSettings("sggp", 12, per_round=4),
    )
    assert rounds == [4, 8, 12]
    assert {progress.phase for progress in told} >= {"candidates", "factor", "residual"}


@pytest.mark.parametrize("phase", ["candidates", "factor", "residual"])
def test_it_is_interrupted_in_any_phase_and_resumed(phase: str, one_thread: LocalExecutor, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dataset = memory_dataset(rng.standard_normal((N, 2)), rng.standard_normal((N, 1)))
    rounds, reached = list[int](), list[str]()

    def run(**watch: Any) -> TrainedSparse:
        context = RunContext(one_thread, callback=lambda progress: rounds.append(progress.size), **watch)
        return train_sparse(dataset, KERNEL, 0.1, context, SparseSettings("sggp", 12, per_round=4))

    kept = Resuming(run, tmp_path)
    with pytest.raises(InterruptedRunError, match="interrupted"):
        kept.start(within=lambda progress: reached.append(progress.phase), interrupted=lambda: phase in reached)
    before = len(rounds)
    found = kept.resume()
    # Nothing that was chosen and saved is chosen again.
    assert phase == "candidates" or before == len(rounds) == 3
    np.testing.assert_array_equal(found.model.weights, kept.whole.model.weights)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "nys"}, "`method` must be one of"),
        ({"basis": "best"}, "`basis` must be one of"),
        ({"basis_size": N + 1}, "a basis has 1 to 500 samples here; got 501"),
        ({"method": "vfe", "gap": 0.1}, "a duality gap is reached by a greedy basis; this one is pivoted"),
        ({"certify_passes": -1.0}, "`certify_passes` must not be negative; got -1.0"),
        ({"method": "sggp", "basis_size": N + 1}, "there are 500 samples for the basis; got a size of 501"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, words: str, one_thread: LocalExecutor) -> None:
    with pytest.raises(InputError, match=words):
        trained(one_thread, **settings)


def test_memory_is_planned_and_refused_with_numbers(one_thread: LocalExecutor) -> None:
    plan = SparseSettings("sggp", 2000).memory(100_000, 10, 1, one_thread, 2**30, 10)
    assert plan.coordinator_bytes < 2 * 1024**3
    plan.require(2 * 1024**3)
    with pytest.raises(MemoryBudgetError, match=r"sparse model of 2,000 basis samples .* MiB .* the budget is 512 MiB"):
        plan.require(512 * 1024**2)
    small, large = (plan_sparse(n, 10, 1000, 1, one_thread, 2**28) for n in (10**5, 10**6))
    # But for vectors, and the features that fit the cache, memory does not grow with n.
    assert large.coordinator_bytes - small.coordinator_bytes < 500 * 1024**2
    assert large["matrices_bytes"] == small["matrices_bytes"]


GIBIBYTE = 2**30


def plan(greedy: bool = True, shares_memory: bool = True) -> Memory:
    executor: Any = SimpleNamespace(threads_per_process=2, shares_memory=shares_memory)
    settings = GreedySettings(2000, "refit", candidates=59, per_round=40) if greedy else None
    return plan_sparse(100_000, 10, 2000, 1, executor, 2**28, greedy=settings)


def test_what_is_kept_is_what_is_of_use_and_fits() -> None:
    lean = plan()
    assert lean.useful_bytes == slab_bytes(100_000, 2000) == 8 * 100_000 * 8 * SLAB_COLUMNS
    assert lean["kept_bytes"] == 0
    spare = GIBIBYTE
    budget, auto = lean.coordinator_bytes + spare, TileBudget(64 * GIBIBYTE, measured=True)
    assert lean.with_kept(auto, budget)["kept_bytes"] == spare // 2
    assert lean.with_kept(auto, budget, resident_bytes=spare)["kept_bytes"] == 0
    assert lean.with_kept(auto, 100 * GIBIBYTE)["kept_bytes"] == lean.useful_bytes
    assert lean.with_kept(TileBudget(5 * 2**20), budget)["kept_bytes"] == 5 * 2**20
    fits = lean.with_kept(auto, budget)
    assert fits.coordinator_bytes == lean.coordinator_bytes + fits["kept_bytes"]
    # Elsewhere it takes nothing here, and a budget of this process says nothing of it.
    there = plan(shares_memory=False).with_kept(TileBudget(GIBIBYTE), 2**20)
    assert there["kept_bytes"] == GIBIBYTE
    assert there.coordinator_bytes == plan(shares_memory=False).coordinator_bytes


def test_a_users_own_budget_that_does_not_fit_is_refused() -> None:
    lean = plan()
    with pytest.raises(MemoryBudgetError, match=r"1,024 MiB of the basis' columns to be kept; .* 512 MiB are left"):
        lean.with_kept(TileBudget(GIBIBYTE), lean.coordinator_bytes + GIBIBYTE // 2)


def test_a_basis_that_is_not_greedy_keeps_nothing() -> None:
    assert plan(greedy=False).useful_bytes == 0
    assert plan(greedy=False).with_kept(TileBudget(GIBIBYTE), 100 * GIBIBYTE)["kept_bytes"] == 0


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    folder, rng, found = tmp_path_factory.mktemp("stores"), np.random.default_rng(0), []
    for n in (65_536, 163_840):
        X = rng.standard_normal((n, 4))
        y = np.sin(X[:, :1]) + 0.1 * rng.standard_normal((n, 1))
        found.append(dataset_from_arrays(folder / f"{n}", X, y, chunk_rows=8_192))
    return found


@pytest.mark.slow
def test_memory_of_a_fit_grows_by_vectors_alone(stores: list[Dataset]) -> None:
    """From a store, with the caches of features full: a hundred columns of K would be 79 MB more."""
    peaks, settings = [], SparseSettings("vfe", 100, "uniform")
    before, worker_cache().budget_bytes = worker_cache().budget_bytes, 2**18
    executor = LocalExecutor(2)
    try:
        for dataset in (stores[0], *stores):  # what is made but once is made by the first
            tracemalloc.start()
            train_sparse(
                dataset, Matern32(gamma=(0.3,) * 4), 0.05, RunContext(executor, coordinator_input_bytes=0), settings
            )
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    finally:
        worker_cache().budget_bytes = before
        executor.close()
    small, large = (plan_sparse(dataset.n_samples, 4, 100, 1, executor, 2**18) for dataset in stores)
    assert peaks[2] - peaks[1] < large["vectors_bytes"] - small["vectors_bytes"] < 8 * 98_304 * 20
    assert peaks[2] < 40 * 2**20
