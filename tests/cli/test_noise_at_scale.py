"""Known noise of 100,000 samples, by the commands: bounds beside a solve far tighter, and what the column is worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dkgp.data import open_prediction
from tests.cli.invoke import run_json
from tests.problem import write_hyper

N, TESTS = 100_000, 500
# As `dkgp tune` finds them with the column and without it; irrelevant features as it leaves them.
GAMMA = [0.13, 0.13, 0.06, 0.013, 0.006, *[1e-8] * 5]
NOISE = {"known": 1.5e-6, "common": 0.1}


def friedman(X: np.ndarray) -> np.ndarray:
    wave = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2
    return np.asarray(wave + 10.0 * X[:, 3] + 5.0 * X[:, 4])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_known_noise_of_a_hundred_thousand_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    X, T = rng.uniform(size=(N, 10)), rng.uniform(size=(TESTS, 10))
    deviations = np.exp(rng.uniform(np.log(0.2), np.log(4.0), N))
    y = friedman(X) + deviations * rng.standard_normal(N)
    columns = {f"x{column}": X[:, column] for column in range(10)}
    np.savez(tmp_path / "known.npz", **columns, y=y, deviation=deviations)
    np.savez(tmp_path / "common.npz", **columns, y=y)
    np.savez(tmp_path / "test.npz", **{f"x{column}": T[:, column] for column in range(10)}, y=friedman(T))
    run_json("ingest", tmp_path / "test.npz", tmp_path / "test.zarr", "--target", "y")
    scores = {}
    for kind, noise in NOISE.items():
        column = ("--noise-std-column", "deviation") if kind == "known" else ()
        run_json("ingest", tmp_path / f"{kind}.npz", tmp_path / f"{kind}.zarr", "--target", "y", *column)
        write_hyper(tmp_path / f"{kind}.json", GAMMA, noise)
        train = ["train", tmp_path / f"{kind}.zarr", "--hyper", tmp_path / f"{kind}.json", "--solver", "pcg"]
        trained = run_json(*train, "--out", tmp_path / f"{kind}-model.zarr")
        assert trained["converged"]
        assert trained["column_passes"] < 6.0
        out = tmp_path / f"{kind}-pred.zarr"
        run_json("predict", tmp_path / f"{kind}-model.zarr", tmp_path / "test.zarr", "--out", out)
        scores[kind] = run_json("evaluate", out, tmp_path / "test.zarr")["rmse_raw"]
        if kind == "known":
            tight = tmp_path / "tight.zarr"
            warm = ("--warm-start", tmp_path / "known-model.zarr", "--tol", "1e-8", "--out", tight)
            run_json(*train, *warm)
            run_json("predict", tight, tmp_path / "test.zarr", "--out", tmp_path / "tight-pred.zarr")
    assert scores["known"] < 0.05
    assert scores["known"] < 0.6 * scores["common"]
    rough, tight_one = (open_prediction(str(tmp_path / f"{name}-pred.zarr")) for name in ("known", "tight"))
    bound, its_bound = (each.read("mean_error_bound", 0, TESTS) for each in (rough, tight_one))
    error = np.abs(rough.read("mean", 0, TESTS) - tight_one.read("mean", 0, TESTS))
    assert error.max() > 0.0
    assert (error <= bound + its_bound).all()
    assert its_bound.max() < 0.2 * bound.max() < 0.1
