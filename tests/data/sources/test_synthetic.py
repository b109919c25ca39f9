from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dkgp.data import Progress, friedman1, rbf_mixture, write_friedman1, write_rbf_mixture
from dkgp.data.sources.synthetic import RBFMixture
from dkgp.errors import InputError, OutputExistsError

Place = Callable[[str], str]


def _naive_friedman1(x: np.ndarray) -> float:
    return float(10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4])


def test_friedman1_is_the_formula() -> None:
    X, y = friedman1(200, noise_std=0.0, seed=4)
    assert X.shape == (200, 10)
    assert 0 <= X.min() < 0.01 < 0.99 < X.max() < 1
    np.testing.assert_allclose(y, [_naive_friedman1(x) for x in X], rtol=1e-13)


def test_noise_has_the_variance_asked_for() -> None:
    X, y = friedman1(40_000, noise_std=1.0, seed=1)
    noise = y - friedman1(40_000, noise_std=0.0, seed=1)[1]
    assert abs(noise.std() - 1.0) < 0.02
    assert abs(np.corrcoef(noise, X[:, 0])[0, 1]) < 0.03


def test_streams_and_seeds_differ_and_repeat() -> None:
    X, y = friedman1(10_000, seed=0)
    np.testing.assert_array_equal(friedman1(10_000, seed=0)[1], y)
    np.testing.assert_array_equal(friedman1(9_000, seed=0)[0], X[:9_000])
    assert not np.isin(friedman1(10_000, seed=1)[0][:, 0], X[:, 0]).any()
    assert not np.isin(friedman1(10_000, seed=0, test=True)[0][:, 0], X[:, 0]).any()
    assert not np.isin(X[8192:, 0], X[:8192, 0]).any()


def test_stores_hold_the_same_samples_and_clean_test_targets(place: Place) -> None:
    seen: list[Progress] = []
    train, test = write_friedman1(place("a"), place("b"), 20_000, 500, seed=3, chunk_rows=3000, progress=seen.append)
    assert test is not None
    X, y = friedman1(20_000, seed=3)
    np.testing.assert_array_equal(train.inputs(0, 20_000, standardised=False), X)
    np.testing.assert_array_equal(train.targets(0, 20_000, standardised=False)[:, 0], y)
    raw = test.inputs(0, 500, standardised=False)
    np.testing.assert_allclose(test.targets(0, 500, standardised=False)[:, 0], [_naive_friedman1(x) for x in raw])
    assert test.standardisation == train.standardisation
    assert seen[-1] == Progress("test samples", 500, 500, "rows")
    assert [item.done for item in seen if item.phase == "training samples"] == [8192, 16384, 20_000]


def test_rbf_mixture_is_the_formula() -> None:
    X, y = rbf_mixture(50, noise_variance=0.0, seed=2)
    function = RBFMixture(seed=2)
    assert function.centres.shape == (200, 20)
    expected = [
        sum(
            c * np.exp(-np.sum((x - z) ** 2) / 40) for c, z in zip(function.coefficients, function.centres, strict=True)
        )
        for x in X
    ]
    np.testing.assert_allclose(y, expected, rtol=1e-10)
    noisy = rbf_mixture(20_000, seed=2)[1]
    clean = rbf_mixture(20_000, noise_variance=0.0, seed=2)[1]
    assert abs((noisy - clean).var() - 0.1) < 0.005
    assert not np.array_equal(RBFMixture(seed=3).centres, function.centres)


def test_rbf_mixture_store(tmp_path: Path) -> None:
    train, test = write_rbf_mixture(tmp_path / "a", None, 300, seed=5)
    assert test is None
    np.testing.assert_array_equal(train.targets(0, 300, standardised=False)[:, 0], rbf_mixture(300, seed=5)[1])


def test_what_cannot_be_generated(tmp_path: Path) -> None:
    for call in (
        lambda: friedman1(10, n_features=4),
        lambda: friedman1(0),
        lambda: friedman1(10, noise_std=-1.0),
        lambda: friedman1(10, seed=-1),
        lambda: rbf_mixture(10, width=0.0),
        lambda: rbf_mixture(10, noise_variance=-0.1),
        lambda: write_friedman1(tmp_path / "a", tmp_path / "b", 1, 10),
        lambda: write_friedman1(tmp_path / "a", tmp_path / "a", 10, 10),
    ):
        with pytest.raises(InputError):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_taken_test_store_is_found_before_the_training_store_is_written(tmp_path: Path) -> None:
    write_friedman1(tmp_path / "b", None, 10)
    with pytest.raises(OutputExistsError):
        write_friedman1(tmp_path / "a", tmp_path / "b", 10, 10)
    assert not (tmp_path / "a").exists()
