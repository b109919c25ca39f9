"""`dkgp predict`, `evaluate` and `info` on sparse models: what is told, warned of and refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import dataset_from_arrays, open_dataset, open_prediction, save_sparse_model
from dkgp.kernels import Matern32
from dkgp.models.exact import save, train
from dkgp.models.sparse.stored import sparse_record
from dkgp.models.sparse.train import SparseSettings, train_sparse
from tests.cli.invoke import refused, run, run_json

N, M, TESTS, NOISE = 900, 12, 1500, 0.02
KERNEL = Matern32(gamma=(3.0, 3.0), variance=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models by method of a function that is far too rough for the basis, a training set, and a test set."""
    folder, rng = tmp_path_factory.mktemp("sparse"), np.random.default_rng(0)

    def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, 2))
        return X, 1e3 + 50.0 * (np.sin(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + 0.1 * rng.standard_normal(n))

    dataset = dataset_from_arrays(folder / "train.zarr", *arrays(N), target_names=("height",))
    dataset_from_arrays(folder / "test.zarr", *arrays(TESTS), target_names=("height",), chunk_rows=400)
    executor = LocalExecutor(1)
    for method in ("vfe", "sr", "sggp"):
        trained = train_sparse(dataset, KERNEL, NOISE, executor, SparseSettings(method, M))
        save_sparse_model(folder / f"{method}.zarr", sparse_record(trained, dataset))
    save(train(dataset, KERNEL, NOISE, executor), str(folder / "exact.zarr"), dataset)
    executor.close()
    # A sparse model needs no training set.
    shutil.move(folder / "train.zarr", folder / "moved.zarr")
    return folder


def predicted(folder: Path, out: Path, method: str, *more: object) -> dict[str, Any]:
    command = ("predict", folder / f"{method}.zarr", folder / "test.zarr", "--out", out, "--cluster", "none", *more)
    return run_json(*command)  # type: ignore[no-any-return]


def test_subset_of_regressors_is_overconfident_and_said_to_be(folder: Path, tmp_path: Path) -> None:
    told, found = {}, {}
    for method in ("vfe", "sr"):
        out = tmp_path / f"{method}.zarr"
        told[method] = predicted(folder, out, method, "--variance")
        found[method] = run_json("evaluate", out, folder / "test.zarr")
        assert told[method]["n_support"] == M
        assert found[method]["method"] == method
        # Nobody's variance is wrong by what is proven: the subset of regressors' is the proven lower end itself.
        assert told[method]["variance"]["outside"] == found[method]["variance_outside"] == 0.0
    assert found["vfe"]["coverage_95"] > 0.9
    assert found["sr"]["coverage_95"] < found["vfe"]["coverage_95"] - 0.3
    assert found["sr"]["nlpd"] > found["vfe"]["nlpd"]
    for said in (told, found):
        assert said["vfe"]["warnings"] == []
        assert any("variances by sr are the lower end" in warning for warning in said["sr"]["warnings"])
    stored = open_prediction(str(tmp_path / "sr.zarr"))
    own, lower, upper = (stored.read(name) for name in ("variance", "variance_lower", "variance_upper"))
    np.testing.assert_allclose(own, lower, rtol=1e-6)
    assert np.mean(upper / own) > 2.0
    # Means alone mislead nobody.
    assert predicted(folder, tmp_path / "means.zarr", "sr")["warnings"] == []
    shown = run("evaluate", tmp_path / "sr.zarr", folder / "test.zarr")
    assert "sr; 0.00% of them proven wrong" in shown.stdout
    assert "variances by sr" in shown.stderr


def test_the_distance_that_is_reported_is_no_less_than_that_of_the_exact_model(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "moved.zarr", folder / "train.zarr", dirs_exist_ok=True)
    exact = predicted(folder, tmp_path / "exact.zarr", "exact", "--variance")
    assert "method" not in run_json("evaluate", tmp_path / "exact.zarr", folder / "test.zarr")
    predicted(folder, tmp_path / "p.zarr", "vfe", "--variance")
    found = run_json("evaluate", tmp_path / "p.zarr", folder / "test.zarr")
    means = [open_prediction(str(tmp_path / f"{name}.zarr")).read("mean") for name in ("p", "exact")]
    std = float(open_dataset(folder / "train.zarr").standardisation.target_std[0])
    off = np.abs(means[0] - means[1]) / std
    slack = exact["largest_mean_error_bound"] / std
    assert np.sqrt(np.mean(off**2)) <= found["mean_error_bound_rms"] + slack
    assert off.max() <= found["mean_error_bound"] + slack
    assert found["mean_error_bound_rms"] <= found["mean_error_bound"]
    proven = run_json("info", folder / "vfe.zarr")
    assert found["rms_bound"] == pytest.approx(proven["rms_bound"][0])
    assert open_prediction(str(tmp_path / "p.zarr")).attributes["rms_bound_raw"] == proven["rms_bound_raw"]
    ends = [open_prediction(str(tmp_path / "p.zarr")).read(f"variance_{end}") for end in ("lower", "upper")]
    other = [open_prediction(str(tmp_path / "exact.zarr")).read(f"variance_{end}") for end in ("lower", "upper")]
    assert (ends[0] <= other[1]).all()
    assert (other[0] <= ends[1]).all()


def test_a_dataset_is_no_model(folder: Path, tmp_path: Path) -> None:
    refused(run("predict", folder / "test.zarr", folder / "test.zarr", "--out", tmp_path / "p.zarr"), "dataset store")
    assert not (tmp_path / "p.zarr").exists()


def test_info_tells_what_is_proven(folder: Path) -> None:
    found = run_json("info", folder / "sggp.zarr")
    assert (found["kind"], found["method"], found["basis"], found["basis_size"]) == (
        "sparse model",
        "sggp",
        "greedy",
        M,
    )
    assert (found["n"], found["d"], found["p"], found["targets"]) == (N, 2, 1, ["height"])
    std = open_dataset(folder / "moved.zarr").standardisation.target_std
    np.testing.assert_allclose(found["rms_bound_raw"], np.asarray(found["rms_bound"]) * std, rtol=1e-12)
    assert found["rms_bound"] == found["summary"]["rms_bound"] == found["certificate"]["rms_bound"]
    assert found["gap"] == found["summary"]["gap"]
    assert found["elbo"] <= found["evidence_upper"] <= found["elbo"] + found["divergence"] + 1e-6
    assert found["best"][0] in found["certificate"]["least_risk"]
    assert found["rounds"] == M == found["last_round"]["round"]
    assert 8 * (2 * M**2 + M * 3) < found["stored_bytes"] < 40_000
    shown = run("info", folder / "sggp.zarr").stdout
    for words in ("sggp, 12 samples (greedy)", "distance to the exact mean", "duality gap", "KL from the exact"):
        assert words in shown
