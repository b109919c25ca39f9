"""Tuning on samples whose noise is known: dense transcriptions, gradients by differences, scores, what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import Dataset, dataset_from_arrays, ingest, memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern52, SquaredExponential, parse_kernel
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import Noise
from dkgp.models.refinement.record import RefineSettings
from dkgp.models.refinement.refine import RefineSpace, refine
from dkgp.models.sparse.search import check_bound
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.objectives import fold_predictions
from dkgp.models.tuning.search import Choices, SearchSettings
from dkgp.models.tuning.tune import tune, tune_dataset
from tests.models.refinement.refine_problems import dense_gradient

N = 60

RNG = np.random.default_rng(17)

X = RNG.normal(size=(N, 2))

Y = np.column_stack([np.sin(2.0 * X[:, 0]), X[:, 1] ** 2 - 1.0])

NOISES = {
    "known": Noise(1.0, RNG.uniform(0.0, 0.5, N)),
    "relative": Noise(1.0, relative=RNG.uniform(0.1, 9.0, N)),
    "both": Noise(1.0, np.where(np.arange(N) % 4 == 0, 1e4, 0.0), RNG.uniform(0.1, 9.0, N)),
}

KERNELS: dict[str, Kernel] = {
    "rbf": SquaredExponential((0.6, 0.3), 1.2),
    "composed": parse_kernel("matern52 + 0.5 * linear", 2),
}

every_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


@every_noise
def test_folds_are_predicted_with_their_own_noise(noise: Noise) -> None:
    kernel = KERNELS["rbf"]
    family = family_of(kernel, X, True, ("a", "b"))
    at = np.append(family.initial(), math.log(0.07))
    folds = np.array_split(np.random.default_rng(1).permutation(N), 4)
    mean, variance = fold_predictions(family, at, Y, folds, noise=noise)
    matrix = family.kernel(at[:-1])(X, X) + np.diag(noise.with_common(0.07).diagonal)
    for fold in folds:
        rest = np.setdiff1d(np.arange(N), fold)
        weights = np.linalg.solve(matrix[np.ix_(rest, rest)], matrix[np.ix_(rest, fold)])
        np.testing.assert_allclose(mean[fold], weights.T @ Y[rest], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(
            variance[fold], np.diagonal(matrix[np.ix_(fold, fold)] - matrix[np.ix_(fold, rest)] @ weights), rtol=1e-8
        )


def noisy_problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    inputs = rng.uniform(-2.0, 2.0, (500, 2))
    known = np.where(np.arange(500) % 2 == 0, 0.8, 0.0)
    targets = np.sin(2.0 * inputs[:, 0]) + np.sqrt(0.01 + known) * rng.normal(size=500)
    return inputs, targets, known


@pytest.mark.long
@pytest.mark.parametrize("objective", ["likelihood", pytest.param("loo", marks=pytest.mark.slow)])
def test_what_is_tuned_is_the_common_part(objective: Any) -> None:
    inputs, targets, known = noisy_problem()
    told = tune(inputs, targets, objective=objective, sample_noise=known)
    untold = tune(inputs, targets, objective=objective)
    assert 0.005 < told.noise_variance < 0.02
    assert untold.noise_variance > 0.2
    by_share = tune(inputs, targets, objective=objective, relative_noise=(0.01 + known) / 0.01)
    assert 0.007 < by_share.noise_variance < 0.014


def test_scores_are_of_observations_with_their_own_noise() -> None:
    inputs, targets, known = noisy_problem()
    told = tune(inputs, targets, sample_noise=known, subset=300, folds=4, holdout=0.3)
    untold = tune(inputs, targets, subset=300, folds=4, holdout=0.3)
    assert told.scores is not None
    assert untold.scores is not None
    for name in ("folds", "holdout"):
        assert told.scores[name]["nlpd"] < untold.scores[name]["nlpd"] - 0.3
        assert 0.9 < told.scores[name]["coverage_95"] <= 1.0


def test_a_store_brings_its_noise_to_the_same_bits(tmp_path: Path) -> None:
    inputs, targets, known = noisy_problem()
    rows = np.column_stack([inputs, targets, known])
    np.savetxt(tmp_path / "d.csv", rows, delimiter=",", header="a,b,y,v", comments="", fmt="%.17g")
    stored = ingest(tmp_path / "d.csv", tmp_path / "d.zarr", target="y", noise_column="v").train
    plain = dataset_from_arrays(tmp_path / "e.zarr", inputs, targets, feature_names=("a", "b"))
    scaled = known / plain.standardisation.target_std[0] ** 2
    one = tune_dataset(stored, subset=200, subsets=2)
    other = tune_dataset(plain, subset=200, subsets=2, sample_noise=scaled)
    assert one.kernel == other.kernel
    assert one.noise_variance == other.noise_variance


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"sample_noise": np.ones(499)}, r"`sample_noise` has shape \(499,\); expected \(500,\)"),
        ({"relative_noise": np.r_[np.ones(499), -1.0]}, r"`relative_noise` is -1.0 for sample 499"),
        ({"sample_noise": np.r_[np.nan, np.ones(499)]}, r"`sample_noise` is nan for sample 0"),
    ],
)
def test_noise_that_is_none_is_refused(told: dict[str, Any], message: str) -> None:
    inputs, targets, _ = noisy_problem()
    with pytest.raises(InputError, match=message):
        tune(inputs, targets, **told)


@pytest.fixture
def with_column(tmp_path: Path) -> Dataset:
    inputs, targets, known = noisy_problem()
    np.savetxt(
        tmp_path / "d.csv", np.column_stack([inputs, targets, known]), delimiter=",", header="a,b,y,v", comments=""
    )
    return ingest(tmp_path / "d.csv", tmp_path / "d.zarr", target="y", noise_column="v").train


@pytest.mark.long
def test_refining_on_all_samples_knows_their_noise(with_column: Dataset, executor: Any) -> None:
    """The gradient on all samples, by dense algebra, is near zero where the refinement ended."""
    known = with_column.all_sample_noise()
    inputs, y = with_column.inputs(0, with_column.n_samples), with_column.all_targets()
    start = Hyperparameters(Matern52((0.5, 0.5)), 0.1)
    settings = RefineSettings(steps=20, probes=100, held_out=0)
    refined = refine(
        with_column, RefineSpace.of_start(start, with_column.feature_names), RunContext(executor), settings
    )
    tuned = refined.hyperparameters
    before = dense_gradient(start.kernel, 0.1, inputs, y, known)
    after = dense_gradient(tuned.kernel, tuned.noise_variance, inputs, y, known)
    free = [0, 1, 3]  # all but the variance, which is held
    assert np.linalg.norm(after[free]) < 0.05 * np.linalg.norm(before[free])
    # Who takes the noise for one variance ends elsewhere.
    assert np.linalg.norm(dense_gradient(tuned.kernel, tuned.noise_variance, inputs, y)[free]) > 10.0


def test_the_evidence_of_a_basis_refuses_a_column_of_known_noise(with_column: Dataset) -> None:
    with pytest.raises(InputError, match="evidence of a sparse model takes one noise variance .* 'v'"):
        check_bound(with_column, Choices(), SearchSettings(0), 10)
    assert memory_dataset(*noisy_problem()[:2]).all_sample_noise() is None
