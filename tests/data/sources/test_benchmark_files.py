"""The real data sets, where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.data import ingest


def test_kin40k_official_split(benchmark_folder: Path, tmp_path: Path) -> None:
    report = ingest(
        benchmark_folder / "kin40k.npz", tmp_path / "a", target="y", test_mask="test_mask:0", test_out=tmp_path / "b"
    )
    with np.load(benchmark_folder / "kin40k.npz") as source:
        X, y, mask = source["X"], source["y"], source["test_mask"][:, 0]
    assert report.test is not None
    assert (report.train.n_samples, report.test.n_samples) == ((~mask).sum(), mask.sum())
    assert report.train.feature_names == tuple(f"x{index}" for index in range(8))
    np.testing.assert_array_equal(report.train.raw_inputs(0, report.train.n_samples), X[~mask])
    np.testing.assert_array_equal(report.test.targets(0, report.test.n_samples, standardised=False)[:, 0], y[mask])
    np.testing.assert_allclose(report.train.standardisation.input_std, X[~mask].std(axis=0), rtol=1e-12)


def test_all_torques_are_one_target(benchmark_folder: Path, tmp_path: Path) -> None:
    dataset = ingest(benchmark_folder / "sarcos_test4449.npz", tmp_path / "a", target="Y7").train
    assert (dataset.n_samples, dataset.n_features, dataset.n_targets) == (4449, 21, 7)


def test_named_features_and_masks_are_not_features(benchmark_folder: Path, tmp_path: Path) -> None:
    report = ingest(
        benchmark_folder / "adult.npz", tmp_path / "a", target="y", test_mask="test_mask", test_out=tmp_path / "b"
    )
    assert report.train.n_samples == 30_162
    assert len(report.train.raw_feature_names) == 104
    assert "test_mask" not in report.train.raw_feature_names


@pytest.mark.parametrize("name", ["snelson1d", "motorcycle", "dem_bigtujunga"])
def test_sets_with_odd_companions(benchmark_folder: Path, tmp_path: Path, name: str) -> None:
    dataset = ingest(benchmark_folder / f"{name}.npz", tmp_path / "a", target="y").train
    with np.load(benchmark_folder / f"{name}.npz") as source:
        assert dataset.n_samples == len(source["y"])
        assert dataset.n_features == source["X"].shape[1]
        np.testing.assert_array_equal(dataset.raw_inputs(0, 50), source["X"][:50])
