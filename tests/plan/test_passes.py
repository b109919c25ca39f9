"""Passes foreseen: curves carried on, and the subsets they come from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset, dataset_from_arrays, write_friedman1
from dkgp.errors import InputError
from dkgp.models import Hyperparameters, read_hyperparameters
from dkgp.models.exact import train
from dkgp.plan.passes import LARGEST_TRIAL, Trial, estimate_passes, extrapolate, trial_sizes


def trials(passes: dict[int, float], ratio: float) -> list[Trial]:
    return [Trial(n, round(n / ratio), count, 0.2, 2, 1.0) for n, count in passes.items()]


def test_a_constant_is_carried_on_as_it_is() -> None:
    flat = trials({1000: 4.0, 2000: 4.0, 4000: 4.0, 8000: 4.0}, 50.0)
    low, middle, high = extrapolate(flat, 16_000, 50.0)
    assert middle == pytest.approx(4.0)
    assert 0.85 * 4.0 < low < 4.0 < high < 1.15 * 4.0
    # The further it is carried on, the less is known.
    lower, middle, higher = extrapolate(flat, 1_024_000, 50.0)
    assert middle == pytest.approx(4.0)
    assert low / lower == pytest.approx(1.03**6)
    assert higher / high == pytest.approx(1.03**6)


@pytest.mark.parametrize("exponent", [-0.2, -0.05, 0.1])
def test_a_power_law_lies_in_the_interval(exponent: float) -> None:
    sizes = (1000, 2000, 4000, 8000)
    low, middle, high = extrapolate(trials({n: 10 * n**exponent for n in sizes}, 40.0), 100_000, 40.0)
    true = 10 * 100_000**exponent
    assert low <= true <= high
    # Two of the three continuations are the law itself, the third is the last value.
    flat = 10 * 8000**exponent
    assert middle == pytest.approx((true * true * flat) ** (1 / 3), rel=1e-6)


def test_blocks_of_another_share_are_carried_over() -> None:
    found = [Trial(n, 16, 10.0, 0.0, 2, 1.0) for n in (4000, 8000)]  # n / m = 250 and 500
    low, middle, high = extrapolate(found[-1:], 8000, 1000.0)
    assert middle == pytest.approx(10.0 * 2**0.3)
    assert low < 10.0 * 2**0.1 < 10.0 * 2**0.5 < high


@pytest.mark.parametrize(
    ("ratio", "measured", "n", "taken"),
    [
        # Column passes of whole runs: kin40k, California housing, Friedman1.
        (40.0, {1000: 18.4, 2000: 21.5, 4000: 22.025, 8000: 20.825}, 40_000, 14.6),
        (20.0, {1000: 14.3, 2000: 16.4, 4000: 17.35, 8000: 16.6}, 20_000, 13.5),
        (20.0, {1000: 4.85, 2000: 4.55, 4000: 4.15, 8000: 3.85}, 20_000, 3.65),
        (66.67, {1000: 7.035, 2000: 5.73, 4000: 4.875, 8000: 4.2}, 100_000, 3.0),
    ],
)
def test_what_real_data_took(ratio: float, measured: dict[int, float], n: int, taken: float) -> None:
    low, middle, high = extrapolate(trials(measured, ratio), n, ratio)
    assert middle == pytest.approx(taken, rel=0.15)
    assert low <= taken <= high


def test_sizes_of_subsets() -> None:
    assert trial_sizes(500) == [500]
    assert trial_sizes(LARGEST_TRIAL) == [LARGEST_TRIAL]
    assert trial_sizes(10_000) == [625, 1250, 2500, 5000]
    assert trial_sizes(10**7) == [1000, 2000, 4000, 8000]


@pytest.fixture(scope="module")
def hyper(tmp_path_factory: pytest.TempPathFactory) -> Hyperparameters:
    path = tmp_path_factory.mktemp("hyper") / "hyper.json"
    path.write_text(json.dumps({"kernel": {"type": "rbf", "gamma": [0.05] * 10}, "noise_variance": 0.04}))
    return read_hyperparameters(path)


def estimate(dataset: Dataset, found: Hyperparameters, options: SolverOptions) -> tuple[float, object]:
    solver = options.build(dataset.n_samples, dataset.n_features, dataset.n_targets, SilentReporter())
    executor = LocalExecutor(1)
    try:
        result = estimate_passes(dataset, found, options, solver, executor, SilentReporter())
        return result.passes, result
    finally:
        executor.close()


def test_a_small_problem_is_solved_to_find_out(tmp_path: Path, hyper: Hyperparameters) -> None:
    dataset, _ = write_friedman1(tmp_path / "f.zarr", None, 240)
    options = SolverOptions(block_size=24)
    executor = LocalExecutor(1)
    solver = options.build(240, 10, 1, SilentReporter())
    try:
        found = estimate_passes(dataset, hyper, options, solver, executor, SilentReporter())
        trained = train(dataset, hyper.kernel, hyper.noise_variance, executor, solver=solver)
    finally:
        executor.close()
    assert found.exact
    assert found.low == found.passes == found.high == pytest.approx(trained.summary["column_passes"])
    assert found.refreshes == trained.summary["refreshes"]


def test_float64_passes_are_counted(tmp_path: Path, hyper: Hyperparameters) -> None:
    dataset, _ = write_friedman1(tmp_path / "f.zarr", None, 200)
    options = SolverOptions(block_size=40, precision="double")
    executor = LocalExecutor(1)
    try:
        found = estimate_passes(
            dataset, hyper, options, options.build(200, 10, 1, SilentReporter()), executor, SilentReporter()
        )
    finally:
        executor.close()
    assert found.double_passes == pytest.approx(found.passes)
    assert found.refreshes == 1  # the last gradient is evaluated anew, whatever the precision


def test_subsets_keep_the_share_of_a_block(
    tmp_path: Path, hyper: Hyperparameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.plan.passes.LARGEST_TRIAL", 400)
    dataset, _ = write_friedman1(tmp_path / "f.zarr", None, 1200, chunk_rows=300)
    options = SolverOptions(block_size=120)
    executor = LocalExecutor(1)
    try:
        solver = options.build(1200, 10, 1, SilentReporter())
        found = estimate_passes(dataset, hyper, options, solver, executor, SilentReporter())
        taken = train(dataset, hyper.kernel, hyper.noise_variance, executor, solver=solver).summary["column_passes"]
    finally:
        executor.close()
    assert [(trial.n, trial.block_size) for trial in found.trials] == [(100, 16), (200, 20), (400, 40)]
    assert not found.exact
    assert found.low <= taken <= found.high


def test_a_subset_that_takes_too_long_says_what_to_do(
    tmp_path: Path, rng: np.random.Generator, hyper: Hyperparameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.plan.passes.MOST_TRIAL_SECONDS", 1e-6)
    dataset = dataset_from_arrays(tmp_path / "d.zarr", rng.random((300, 10)), rng.standard_normal((300, 1)))
    with pytest.raises(InputError, match="--passes"):
        estimate(dataset, hyper, SolverOptions(block_size=10))
