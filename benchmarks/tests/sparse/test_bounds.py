"""`dkgp bench sparse --bounds`: what it counts, that it can fail, and that nothing is broken where it should not be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkgp.bench.problem import BenchProblem
from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.sparse.certificate import SparseCertificate
from dkgp.models.sparse.train import SparseSettings
from dkgp_benchmarks.sparse import bounds
from dkgp_benchmarks.sparse.job import BenchSparseJob


@pytest.mark.parametrize("p", [1, 3])
def test_the_reference_is_the_exact_model(p: int) -> None:
    rng = np.random.default_rng(0)
    dataset = memory_dataset(rng.standard_normal((80, 2)), rng.standard_normal((80, p)))
    kernel, T = SquaredExponential(gamma=(0.5, 0.5)), rng.standard_normal((5, 2))
    found = bounds.Reference.of(dataset, Hyperparameters(kernel, 0.1), T)
    X, y = dataset.inputs(0, 80), dataset.all_targets()
    K, across = kernel(X, X) + 0.1 * np.eye(80), kernel(T, X)
    np.testing.assert_allclose(found.mean, across @ np.linalg.solve(K, y), rtol=1e-8)
    np.testing.assert_allclose(found.at_samples, (K - 0.1 * np.eye(80)) @ np.linalg.solve(K, y), atol=1e-8)
    explained = np.einsum("tn,nt->t", across, np.linalg.solve(K, across.T))
    np.testing.assert_allclose(found.variance, 1.0 - explained, atol=1e-8)
    quadratic = np.trace(y.T @ np.linalg.solve(K, y))
    evidence = -0.5 * (p * (80 * np.log(2.0 * np.pi) + np.linalg.slogdet(K)[1]) + quadratic)
    assert found.evidence == pytest.approx(evidence, rel=1e-10)


def test_what_is_false_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    dataset = memory_dataset(rng.standard_normal((120, 2)), rng.standard_normal((120, 1)))
    found = Hyperparameters(SquaredExponential(gamma=(0.5, 0.5)), 0.1)
    reference = bounds.Reference.of(dataset, found, rng.standard_normal((7, 2)))
    executor, settings = LocalExecutor(1), SparseSettings("vfe", 10)
    row = bounds.judge(reference, dataset, settings, executor)
    # 7 means, 7 variances, 4 bounds on the risk, and distance, gap, both ends of the evidence, divergence.
    assert (row["statements"], row["broken"]) == (23, [])
    assert row["rms"] <= row["rms_bound"]
    assert row["divergence"] <= row["divergence_bound"]
    monkeypatch.setattr(SparseCertificate, "excess", property(lambda self: np.zeros(len(self.risk))))
    row = bounds.judge(reference, dataset, settings, executor)
    executor.close()
    assert row["broken"].count("mean") == 7
    assert {"distance", "gap"} <= set(row["broken"])


@pytest.mark.long
def test_a_folder_of_data_sets_and_an_ill_conditioned_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("abalone", "airfoil", "another"):
        X = rng.standard_normal((200, 3))
        np.savez(tmp_path / f"{name}.npz", X=X, y=np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200))
    problem = BenchProblem(data=str(tmp_path), n=150, n_test=20, subset=100)
    out = tmp_path / "bounds.json"
    job = BenchSparseJob(problem=problem, methods=("vfe", "vif", "sggp"), sizes=(10, 40), out=str(out))
    document = bounds.run_bench_sparse_bounds(job, SilentReporter())
    assert [row["data"] for row in document["rows"]] == [
        n for n in ("abalone", "airfoil", "ill-conditioned") for _ in "123456"
    ]
    assert document["figures"]["broken"] == 0
    assert document["figures"]["mean_holds"] == f"{18 * 20} of {18 * 20}"
    assert document["figures"]["mean_with_neighbours_holds"] == f"{6 * 20} of {6 * 20}"
    assert document["figures"]["statements"] == sum(row["statements"] for row in document["rows"])
    assert out.is_file()
    alone = replace(job, problem=replace(problem, data=str(tmp_path / "another.npz")), out=None, methods=("sd",))
    rows = bounds.run_bench_sparse_bounds(alone, SilentReporter())["rows"]
    assert [row["data"] for row in rows] == ["another", "another", "ill-conditioned", "ill-conditioned"]
