"""Evaluation against direct formulas, with training and test sets that are standardised differently."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
from scipy.stats import binom, norm
from sklearn.metrics import r2_score

from dkgp.codec import to_json
from dkgp.data import Dataset, Prediction, PredictionWriter
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.data.stores.standardisation import Standardisation, TargetTransform
from dkgp.errors import ExitCode, InputError
from dkgp.models.metrics import coverage_curve, evaluate
from dkgp.models.target_units import TargetUnits
from dkgp.models.verdict import findings, read_residuals

TRAIN_STD = np.array([40.0, 0.03])
N = 90


@pytest.fixture
def y(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(N, 2)) * [50.0, 0.02] + [1000.0, -3.0]


@pytest.fixture
def dataset(rng: np.random.Generator, y: np.ndarray, tmp_path: Path) -> Dataset:
    return dataset_from_arrays(tmp_path / "test", rng.normal(size=(N, 3)), y, target_names=("a", "b"), chunk_rows=40)


def written(
    folder: Path, dataset: Dataset, arrays: dict[str, np.ndarray], *, names: tuple[str, ...] = ("a", "b"), **more: Any
) -> Prediction:
    attributes = {"target_std": TRAIN_STD[: len(names)].tolist(), "data_fingerprint": dataset.fingerprint, **more}
    attributes = {key: value for key, value in attributes.items() if value is not None}
    n = len(arrays["mean"])
    writer = PredictionWriter.create(folder / "prediction", n, names, tuple(arrays), 25, attributes, overwrite=True)
    for start in range(0, n, 25):
        writer.write(start, **{name: values[start : start + 25] for name, values in arrays.items()})
    return writer.commit()


def test_means_alone(rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    mean = y + rng.normal(size=y.shape) * [5.0, 0.01]
    bound = np.abs(rng.normal(size=y.shape)) * [0.1, 0.001]
    found = evaluate(written(tmp_path, dataset, {"mean": mean, "mean_error_bound": bound}), dataset)
    rmse = np.sqrt(np.mean((y - mean) ** 2 / TRAIN_STD**2, axis=0))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2 / TRAIN_STD**2)))
    assert found["rmse_raw"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert found["mae_raw"] == pytest.approx(np.mean(np.abs(y - mean)))
    assert found["mean_error_bound"] == pytest.approx(np.max(bound / TRAIN_STD))
    assert found["mean_error_bound_rms"] == pytest.approx(np.sqrt(np.mean((bound / TRAIN_STD) ** 2)))
    assert "method" not in found
    assert [found["per_target"][name]["rmse"] for name in "ab"] == pytest.approx(rmse.tolist())
    assert (found["n"], found["nlpd"], found["coverage_95"]) == (N, None, None)
    json.dumps(found)


def test_of_a_sparse_model(rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    """Distances in the training targets' deviations, and samples whose own variance lies outside of the interval."""
    lower = np.exp(rng.normal(size=y.shape))
    upper, variance = lower * 2.0, lower * 1.5
    variance[:7, 1] = upper[:7, 1] * 1.01
    variance[5:9, 0] = lower[5:9, 0] * 0.99
    arrays = {"mean": y, "variance": variance, "variance_lower": lower, "variance_upper": upper}
    more: dict[str, Any] = {"method": "dtc", "basis_size": 3, "rms_bound_raw": [4.0, 0.009]}
    more |= {"variance": {"latent": False, "gap": None}, "noise_variance": [1.0, 1.0]}
    found = evaluate(written(tmp_path, dataset, arrays, **more), dataset)
    assert (found["method"], found["variance_outside"]) == ("dtc", 9 / N)
    assert found["rms_bound"] == pytest.approx(np.sqrt((0.1**2 + 0.3**2) / 2.0))
    assert found["variance_gap_mean"] == pytest.approx(0.5)
    assert found["variance_unmet"] is None


def test_with_variances(rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    std = np.exp(rng.normal(size=y.shape)) * [5.0, 0.01]
    mean = y + 1.3 * std * rng.normal(size=y.shape)
    found = evaluate(written(tmp_path, dataset, {"mean": mean, "variance": std**2}), dataset)
    # The density of the targets on the standardised scale, where a change of units makes no difference.
    density = norm.logpdf(y / TRAIN_STD, mean / TRAIN_STD, std / TRAIN_STD)
    assert found["nlpd"] == pytest.approx(-np.mean(density))
    low, high = norm.interval(0.95, mean, std)
    inside = np.mean((low <= y) & (y <= high))
    assert 0.5 < inside < 0.95
    assert found["coverage_95"] == pytest.approx(inside)


# ---------------------------------------------------------------------------------- variances as `predict` stores them

NOISE = np.array([30.0, 2e-4])


@dataclass(frozen=True)
class Certified:
    """Means and latent variances of two targets, and a store of them with or without the noise."""

    folder: Path
    dataset: Dataset
    y: np.ndarray
    mean: np.ndarray
    latent: np.ndarray
    gap: np.ndarray

    def store(self, *, latent: bool, wanted: float = 0.02) -> Prediction:
        upper = self.latent + (0.0 if latent else NOISE)
        lower = upper * (1.0 - self.gap[:, None])
        arrays = {"mean": self.mean, "variance": upper, "variance_lower": lower, "variance_upper": upper}
        about = {"variance": {"gap": wanted, "latent": latent}, "noise_variance": NOISE.tolist()}
        return written(self.folder / f"{latent}", self.dataset, arrays, **about)


@pytest.fixture
def certified(rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path) -> Certified:
    latent = np.exp(rng.normal(size=y.shape)) * [25.0, 1e-4]
    mean = y + np.sqrt(latent + NOISE) * rng.normal(size=y.shape)
    return Certified(tmp_path, dataset, y, mean, latent, np.linspace(0.001, 0.03, N))


def naive_density(certified: Certified, variance: np.ndarray) -> float:
    """Mean negative log density on the standardised scale, sample by sample."""
    total = 0.0
    for i in range(N):
        for t in range(2):
            std = np.sqrt(variance[i, t]) / TRAIN_STD[t]
            total -= norm.logpdf(certified.y[i, t] / TRAIN_STD[t], certified.mean[i, t] / TRAIN_STD[t], std)
    return total / (2 * N)


@pytest.mark.covering
@pytest.mark.parametrize("noise_free", [False, True])
@pytest.mark.parametrize("stored_latent", [False, True])
def test_the_targets_decide_which_variance_counts(certified: Certified, stored_latent: bool, noise_free: bool) -> None:
    found = evaluate(certified.store(latent=stored_latent), certified.dataset, noise_free=noise_free)
    # The middle of what is stored, with or without the noise.
    stored = certified.latent + (0.0 if stored_latent else NOISE)
    middle = stored * (1.0 - 0.5 * certified.gap[:, None])
    variance = middle + NOISE * (float(stored_latent) - float(noise_free))
    variance = np.maximum(variance, np.finfo(float).eps * NOISE)
    assert found["noise_free"] is noise_free
    assert found["nlpd"] == pytest.approx(naive_density(certified, variance), rel=1e-9)
    z = (certified.y - certified.mean) ** 2 / variance
    assert found["mean_standardised_squared_error"] == pytest.approx(np.mean(z))
    inside = np.sqrt(z.ravel()) < norm.ppf(0.975)
    assert found["coverage_95"] == pytest.approx(np.mean(inside))
    assert found["per_target"]["b"]["coverage_95"] == pytest.approx(np.mean(inside[1::2]))
    assert found["nlpd"] == pytest.approx(np.mean([found["per_target"][name]["nlpd"] for name in "ab"]))
    json.dumps(found)


def test_what_the_exact_variances_may_make_of_the_scores(certified: Certified) -> None:
    """Ends of all figures, sample by sample; any variances within the intervals come to figures between them."""
    prediction = certified.store(latent=True)
    found = evaluate(prediction, certified.dataset)
    lower, upper = (prediction.read(f"variance_{end}") + NOISE for end in ("lower", "upper"))
    squared = (certified.y - certified.mean) ** 2
    best, worst, covered, z = 0.0, 0.0, [0, 0], [0.0, 0.0]
    for i, t in np.ndindex(N, 2):
        unit = TRAIN_STD[t] ** 2
        ends = [lower[i, t], upper[i, t]]
        scores = [0.5 * (np.log(2.0 * np.pi * v / unit) + squared[i, t] / v) for v in ends]
        inside = min(max(squared[i, t], ends[0]), ends[1])
        best += 0.5 * (np.log(2.0 * np.pi * inside / unit) + squared[i, t] / inside)
        worst += max(scores)
        covered = [count + (squared[i, t] <= norm.ppf(0.975) ** 2 * v) for count, v in zip(covered, ends, strict=True)]
        z = [total + squared[i, t] / v for total, v in zip(z, reversed(ends), strict=True)]
    m = 2 * N
    assert found["nlpd_range"] == pytest.approx([best / m, worst / m], rel=1e-12)
    shift = float(np.mean(np.log(TRAIN_STD)))
    assert found["nlpd_raw_range"] == pytest.approx([best / m + shift, worst / m + shift])
    assert found["coverage_95_range"] == [count / m for count in covered]
    assert found["mean_standardised_squared_error_range"] == pytest.approx([total / m for total in z])
    for weight in (0.0, 0.3, 0.7, 1.0):
        within = naive_density(certified, lower + weight * (upper - lower))
        assert found["nlpd_range"][0] - 1e-12 <= within <= found["nlpd_range"][1] + 1e-12
    assert found["nlpd_range"][0] < found["nlpd"] < found["nlpd_range"][1]


def test_a_sparse_methods_variances_are_taken_as_they_are(certified: Certified) -> None:
    upper = certified.latent + NOISE
    arrays = {"mean": certified.mean, "variance": 0.9 * upper, "variance_lower": 0.5 * upper, "variance_upper": upper}
    about = {"variance": {"gap": None, "latent": False}, "noise_variance": NOISE.tolist()}
    about |= {"method": "vfe", "rms_bound_raw": [1.0, 1.0]}
    found = evaluate(written(certified.folder, certified.dataset, arrays, **about), certified.dataset)
    assert found["nlpd"] == pytest.approx(naive_density(certified, 0.9 * upper), rel=1e-12)
    assert not [name for name in found if name.endswith("_range")]


def test_figures_in_the_targets_units(certified: Certified) -> None:
    found = evaluate(certified.store(latent=False, wanted=0.5), certified.dataset)
    y, mean = certified.y, certified.mean
    explained = [r2_score(y[:, t], mean[:, t]) for t in range(2)]
    assert found["r_squared"] == pytest.approx(np.mean(explained))
    assert [found["per_target"][name]["r_squared"] for name in "ab"] == pytest.approx(explained)
    std = np.sqrt((certified.latent + NOISE) * (1.0 - 0.5 * certified.gap[:, None]))
    assert found["nlpd_raw"] == pytest.approx(-np.mean(norm.logpdf(y, mean, std)))
    assert found["coverage_95_band"] == [quantile / N for quantile in binom.interval(0.95, N, 0.95)]


def test_constant_targets_have_no_share_explained(rng: np.random.Generator, tmp_path: Path) -> None:
    identity = Standardisation.identity(2, 1)
    flat = dataset_from_arrays(tmp_path / "flat", rng.normal(size=(N, 2)), np.ones(N), standardisation=identity)
    found = evaluate(written(tmp_path, flat, {"mean": np.full((N, 1), 1.5)}, names=("y",)), flat)
    assert (found["r_squared"], found["mae_raw"]) == (None, 0.5)


@pytest.mark.parametrize("latent", [False, True])
def test_gaps_are_of_what_is_stored(certified: Certified, latent: bool) -> None:
    prediction = certified.store(latent=latent)
    found = evaluate(prediction, certified.dataset, noise_free=True)
    assert found["variance_gap_mean"] == pytest.approx(np.mean(certified.gap))
    assert found["variance_gap_max"] == pytest.approx(0.03)
    assert found["variance_gap_wanted"] == 0.02
    assert found["variance_unmet"] == sum(gap > 0.02 for gap in certified.gap) > 0


def test_a_gap_at_the_limit_is_met_whatever_the_units(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    upper = np.linspace(0.1, 0.9, 2 * N).reshape(N, 2) * TRAIN_STD**2
    arrays = {"mean": y, "variance": upper, "variance_lower": 0.98 * upper, "variance_upper": upper}
    about = {"variance": {"gap": 0.02, "latent": False}, "noise_variance": NOISE.tolist()}
    assert evaluate(written(tmp_path, dataset, arrays, **about), dataset)["variance_unmet"] == 0


def test_a_variance_that_is_all_noise_is_not_taken_for_zero(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    variance = np.broadcast_to(NOISE, y.shape)
    arrays = {"mean": y + 1e-12, "variance": variance, "variance_lower": variance, "variance_upper": variance}
    about = {"variance": {"gap": 0.02, "latent": False}, "noise_variance": NOISE.tolist()}
    found = evaluate(written(tmp_path, dataset, arrays, **about), dataset, noise_free=True)
    assert np.isfinite(found["nlpd"])
    assert found["variance_gap_max"] == 0.0


def test_without_knowing_of_the_noise_it_cannot_be_taken_off(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    prediction = written(tmp_path, dataset, {"mean": y, "variance": np.ones_like(y)})
    with pytest.raises(InputError, match="contain the noise"):
        evaluate(prediction, dataset, noise_free=True)


def test_coverage_at_every_level(certified: Certified) -> None:
    curve = coverage_curve(certified.store(latent=True), certified.dataset)
    assert (curve.n, curve.target_names) == (N, ("a", "b"))
    np.testing.assert_allclose(curve.levels, np.arange(101) / 100)
    std = np.sqrt(certified.latent * (1.0 - 0.5 * certified.gap[:, None]) + NOISE)
    for index in (1, 30, 68, 99):
        low, high = norm.interval(curve.levels[index], certified.mean, std)
        inside = (low <= certified.y) & (certified.y <= high)
        np.testing.assert_allclose(curve.observed[index], inside.mean(axis=0))
    assert (curve.observed[-1] == 1.0).all()
    assert (np.diff(curve.observed, axis=0) >= 0.0).all()
    narrower = coverage_curve(certified.store(latent=True, wanted=0.5), certified.dataset, noise_free=True)
    assert narrower.observed[50].sum() < curve.observed[50].sum()


def test_coverage_needs_variances(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="predict it again with variances"):
        coverage_curve(written(tmp_path, dataset, {"mean": y}), dataset)


# ----------------------------------------------------------------------------------------------------------- edge cases


def test_perfect_predictions(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    found = evaluate(written(tmp_path, dataset, {"mean": y}), dataset)
    assert (found["rmse"], found["rmse_raw"], found["mae_raw"]) == (0.0, 0.0, 0.0)


def test_one_target(rng: np.random.Generator, y: np.ndarray, tmp_path: Path) -> None:
    single = dataset_from_arrays(tmp_path / "single", rng.normal(size=(N, 2)), y[:, 0], target_names=("a",))
    found = evaluate(written(tmp_path, single, {"mean": y[:, :1] + 20.0}, names=("a",)), single)
    assert found["rmse"] == pytest.approx(0.5)
    assert found["rmse_raw"] == pytest.approx(20.0)
    assert "per_target" not in found


def test_predicting_the_training_mean_is_an_rmse_of_one(rng: np.random.Generator, tmp_path: Path) -> None:
    y = rng.normal(size=2000) * 40.0 + 7.0
    dataset = dataset_from_arrays(tmp_path / "large", rng.normal(size=(2000, 1)), y, target_names=("a",))
    found = evaluate(written(tmp_path, dataset, {"mean": np.full((2000, 1), 7.0)}, names=("a",)), dataset)
    assert found["rmse"] == pytest.approx(1.0, abs=0.06)


def test_without_the_training_deviation_the_datasets_own_is_used(
    y: np.ndarray, dataset: Dataset, tmp_path: Path
) -> None:
    found = evaluate(written(tmp_path, dataset, {"mean": y + y.std(axis=0)}, target_std=None), dataset)
    assert found["rmse"] == pytest.approx(1.0)


def test_other_numbers_of_samples_are_refused(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    shorter = written(tmp_path, dataset, {"mean": y[:75]}, data_fingerprint=None)
    with pytest.raises(InputError, match=r"has 75 samples, .* has 90") as caught:
        evaluate(shorter, dataset)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_other_data_of_the_same_length_are_refused(y: np.ndarray, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="other data"):
        evaluate(written(tmp_path, dataset, {"mean": y}, data_fingerprint="0" * 64), dataset)


@pytest.mark.parametrize("names", [("a", "c"), ("b", "a")])
def test_other_targets_are_refused(y: np.ndarray, dataset: Dataset, tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="targets"):
        evaluate(written(tmp_path, dataset, {"mean": y}, names=names), dataset)


def test_data_without_targets_are_refused(
    rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path
) -> None:
    blind = dataset_from_arrays(tmp_path / "blind", rng.normal(size=(N, 3)), None)
    with pytest.raises(
        InputError, match=r"no true values to compare with. Read the samples again with `targets` \(`labels`"
    ):
        evaluate(written(tmp_path, dataset, {"mean": y}), blind)


@pytest.mark.parametrize("size", [1e-200, 1e160, 1e250])
def test_errors_whose_squares_overflow(size: float, rng: np.random.Generator, tmp_path: Path) -> None:
    """Or underflow: right, and without a warning."""
    y = np.zeros((N, 1))
    y[::2] = 1.0
    dataset = dataset_from_arrays(tmp_path / "far", rng.normal(size=(N, 2)), y, target_names=("a",))
    errors, bound = size * (1.0 + rng.random((N, 1))), size * rng.random((N, 1))
    mean = np.where(y == 0.0, errors, y) if size < 1.0 else y - errors
    errors = np.abs(y - mean)
    arrays = {"mean": mean, "mean_error_bound": bound, "variance": np.full((N, 1), 4.0)}
    attributes = {"variance": {"latent": False}, "noise_variance": [0.5]}
    store = written(tmp_path, dataset, arrays, names=("a",), **attributes)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = evaluate(store, dataset)
    exact = size * float(np.sqrt(np.mean((errors / size) ** 2)))
    assert found["rmse_raw"] == pytest.approx(exact, rel=1e-12, abs=0.0)
    assert found["rmse"] == pytest.approx(exact / TRAIN_STD[0], rel=1e-12, abs=0.0)
    assert found["mae_raw"] == pytest.approx(size * float(np.mean(errors / size)), rel=1e-12, abs=0.0)
    bounds = size * float(np.sqrt(np.mean((bound / size) ** 2)))
    assert found["mean_error_bound_rms"] == pytest.approx(bounds / TRAIN_STD[0], rel=1e-12, abs=0.0)
    assert found["coverage_95"] == (1.0 if size < 1.0 else 0.0)


def test_no_bit_of_ordinary_errors_changes(
    rng: np.random.Generator, y: np.ndarray, dataset: Dataset, tmp_path: Path
) -> None:
    mean = y + rng.normal(size=y.shape) * [5.0, 0.01]
    bound, variance = np.abs(rng.normal(size=y.shape)), np.exp(rng.normal(size=y.shape)) * TRAIN_STD**2
    attributes = {"variance": {"latent": False}, "noise_variance": (0.1 * TRAIN_STD**2).tolist()}
    arrays = {"mean": mean, "mean_error_bound": bound, "variance": variance}
    found = evaluate(written(tmp_path, dataset, arrays, **attributes), dataset)
    squared, squared_bound, likelihood, standardised = (np.zeros(2) for _ in range(4))
    for start in range(0, N, 25):
        rows = slice(start, start + 25)
        error, z = (y - mean)[rows], (y - mean)[rows] ** 2 / variance[rows]
        squared += np.sum(error**2, axis=0)
        squared_bound += np.sum((bound[rows] / TRAIN_STD) ** 2, axis=0)
        likelihood += np.sum(0.5 * (np.log(2.0 * np.pi * variance[rows] / TRAIN_STD**2) + z), axis=0)
        standardised += np.sum(z, axis=0)
    raw = np.sqrt(squared / N)
    assert found["rmse_raw"] == np.sqrt(np.mean(raw**2))
    assert found["rmse"] == np.sqrt(np.mean((raw / TRAIN_STD) ** 2))
    assert found["mean_error_bound_rms"] == np.sqrt(np.mean(squared_bound / N))
    assert found["nlpd"] == np.mean(likelihood / N)
    assert found["mean_standardised_squared_error"] == np.mean(standardised / N)
    assert [found["per_target"][name]["rmse_raw"] for name in "ab"] == raw.tolist()


# Predictions of transformed targets, back in units: against sampling and scipy's distributions.


UNITS_N, UNITS_NOISE = 400, 0.09


def stored(
    folder: Path, m: np.ndarray, latent: np.ndarray, transforms: list[TargetTransform], bound: np.ndarray | float = 0.01
) -> Prediction:
    """Predictions of two targets on the transformed scale, with the function's own variances."""
    folder.mkdir(exist_ok=True)
    attributes = {
        "target_std": [0.8, 0.5],
        "variance": {"latent": True, "gap": 0.1},
        "noise_variance": [UNITS_NOISE, UNITS_NOISE],
        "transform": to_json(transforms),
    }
    names = ("mean", "mean_error_bound", "variance", "variance_lower", "variance_upper")
    writer = PredictionWriter.create(folder / "p", len(m), ("u", "v"), names, attributes=attributes)
    bound = np.broadcast_to(bound, m.shape)
    writer.write(0, mean=m, mean_error_bound=bound, variance=latent, variance_lower=0.9 * latent, variance_upper=latent)
    return writer.commit()


@pytest.fixture
def transforms() -> list[TargetTransform]:
    return [TargetTransform("log"), TargetTransform("yeo-johnson", 0.4)]


@pytest.fixture
def world(
    rng: np.random.Generator, tmp_path: Path, transforms: list[TargetTransform]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Prediction, Dataset]:
    m, latent = rng.normal(size=(UNITS_N, 2)), np.full((UNITS_N, 2), 0.04)
    t = m + np.sqrt(0.95 * latent + UNITS_NOISE) * rng.normal(size=(UNITS_N, 2))
    y = np.stack([of.inverse(t[:, k]) for k, of in enumerate(transforms)], axis=1)
    dataset = dataset_from_arrays(tmp_path / "test", rng.normal(size=(UNITS_N, 3)), y, target_names=("u", "v"))
    return m, 0.95 * latent + UNITS_NOISE, y, stored(tmp_path, m, latent, transforms), dataset


def test_means_medians_and_intervals_are_those_of_many_draws(
    rng: np.random.Generator, tmp_path: Path, transforms: list[TargetTransform]
) -> None:
    m, latent = np.array([[0.5, -0.3], [2.0, 0.02]]), np.full((2, 2), 0.2)
    back = TargetUnits(stored(tmp_path, m, latent, transforms)).read()
    draws = m + np.sqrt(0.95 * latent + UNITS_NOISE) * rng.normal(size=(400_000, 2, 2))
    y = np.stack([of.inverse(draws[:, :, k]) for k, of in enumerate(transforms)], axis=2)
    error = 5.0 * y.std(axis=0) / np.sqrt(len(y))
    assert back.lower is not None
    assert back.upper is not None
    assert back.mean is not None
    assert (np.abs(back.mean - y.mean(axis=0)) < error).all()
    np.testing.assert_allclose(back.median, np.median(y, axis=0), rtol=0.02, atol=0.01)
    np.testing.assert_allclose(back.lower, np.quantile(y, 0.025, axis=0), rtol=0.02, atol=0.01)
    np.testing.assert_allclose(back.upper, np.quantile(y, 0.975, axis=0), rtol=0.02, atol=0.01)
    for k, of in enumerate(transforms):
        ends = of.inverse(m[:, k] + 0.01), of.inverse(m[:, k] - 0.01)
        furthest = np.maximum(*(np.abs(end - of.inverse(m[:, k])) for end in ends))
        assert back.median_error_bound is not None
        np.testing.assert_allclose(back.median_error_bound[:, k], furthest, rtol=1e-12)


def exact_inverse(of: TargetTransform, t: mpmath.mpf) -> mpmath.mpf:
    """T^-1 in real numbers, for lambda as stored."""
    if of.name == "log":
        return mpmath.exp(t)
    power = mpmath.mpf(of.parameter) if t >= 0 else 2 - mpmath.mpf(of.parameter)
    size = abs(t)
    exponent = size if power == 0 else mpmath.log1p(power * size) / power
    return mpmath.sign(t) * mpmath.expm1(exponent)


@pytest.mark.spread(10)
@pytest.mark.parametrize("parameter", [None, 0.0, 1e-300, 1e-9, 0.0517, 0.37, 1.0, 1.6, 2.0 - 2.0**-52, 2.0])
@pytest.mark.parametrize("bound", [0.0, 1e-17, 1e-12, 1e-3])
def test_bounds_of_medians_hold_in_fifty_digits(
    rng: np.random.Generator, tmp_path: Path, parameter: float | None, bound: float
) -> None:
    of = TargetTransform("log") if parameter is None else TargetTransform("yeo-johnson", parameter)
    sizes = 10.0 ** rng.uniform(-6.0, 2.0, 60)
    m = np.concatenate([sizes * rng.choice([-1.0, 1.0], 60), [0.0, 1e-310, -1e-310, 700.0, -700.0, 1e-160]])
    m = np.stack([m, m], axis=1)
    back = TargetUnits(stored(tmp_path, m, np.full_like(m, 0.2), [of, of], bound)).read()
    assert back.median_error_bound is not None
    with mpmath.workdps(400 if parameter == 1e-300 else 50):
        for mean, median, error in zip(m[:, 0], back.median[:, 0], back.median_error_bound[:, 0], strict=True):
            ends = [exact_inverse(of, mpmath.mpf(mean) + side * mpmath.mpf(bound)) for side in (-1, 0, 1)]
            if not np.isfinite(median):
                assert error == np.inf
                continue
            furthest = max(abs(end - mpmath.mpf(median)) for end in ends)
            assert furthest <= error
            # No wider than some hundred roundings of the median and of T itself.
            room = 2e-14 * abs(mpmath.mpf(median)) * (1 + mpmath.log1p(abs(median))) + mpmath.mpf(2) ** -1000
            slope = abs(ends[2] - ends[0]) + mpmath.mpf(10) ** -15 * abs(mpmath.mpf(mean)) * (1 + abs(median))
            assert error <= 1.001 * furthest + room + slope or parameter in (1e-300, 2.0 - 2.0**-52)


def test_scores_are_of_targets_in_their_units(
    world: tuple[np.ndarray, np.ndarray, np.ndarray, Prediction, Dataset], transforms: list[TargetTransform]
) -> None:
    m, variance, y, prediction, dataset = world
    scores = evaluate(prediction, dataset)
    # Of the logarithm scipy has the density of y itself; of the other it is that of T(y) times a numerical slope.
    s = np.sqrt(variance)
    log_density = scipy.stats.lognorm.logpdf(y[:, 0], s[:, 0], scale=np.exp(m[:, 0]))
    step = 1e-6 * np.maximum(1.0, np.abs(y[:, 1]))
    ends = [scipy.stats.yeojohnson(y[:, 1] + side * step, 0.4) for side in (1.0, -1.0)]
    slope = np.log((ends[0] - ends[1]) / (2.0 * step))
    other = scipy.stats.norm.logpdf(scipy.stats.yeojohnson(y[:, 1], 0.4), m[:, 1], s[:, 1]) + slope
    per_target = scores["per_target"]
    assert per_target["u"]["nlpd_raw"] == pytest.approx(-np.mean(log_density), rel=1e-9)
    assert per_target["v"]["nlpd_raw"] == pytest.approx(-np.mean(other), abs=1e-6)
    assert scores["nlpd_raw"] == pytest.approx(np.mean([per_target[name]["nlpd_raw"] for name in "uv"]))
    means = np.exp(m[:, 0] + 0.5 * variance[:, 0])
    assert per_target["u"]["rmse_raw"] == pytest.approx(np.sqrt(np.mean((y[:, 0] - means) ** 2)), rel=1e-12)
    assert per_target["u"]["mae_raw"] == pytest.approx(np.mean(np.abs(y[:, 0] - means)), rel=1e-12)
    # Normalised errors, and coverage, are those of the scale of the model.
    assert per_target["u"]["rmse"] == pytest.approx(np.sqrt(np.mean((np.log(y[:, 0]) - m[:, 0]) ** 2)) / 0.8)
    back = TargetUnits(prediction).read()
    assert back.lower is not None
    assert back.upper is not None
    inside = (back.lower <= y) & (y <= back.upper)
    assert scores["coverage_95"] == pytest.approx(inside.mean())
    assert coverage_curve(prediction, dataset).observed[95].mean() == pytest.approx(inside.mean(), abs=1e-9)
    assert scores["transform"] == to_json(transforms)


def test_residuals_are_judged_on_the_scale_on_which_they_are_normal(
    world: tuple[np.ndarray, np.ndarray, np.ndarray, Prediction, Dataset], transforms: list[TargetTransform]
) -> None:
    m, variance, y, prediction, dataset = world
    for k, (residuals, of) in enumerate(zip(read_residuals(prediction, dataset).values(), transforms, strict=True)):
        z = (of.forward(y[:, k]) - m[:, k]) / np.sqrt(variance[:, k])
        np.testing.assert_allclose(residuals.standardised, z, rtol=1e-10)
        assert (residuals.truth == y[:, k]).all()
        assert findings(residuals) == []


def test_targets_that_a_logarithm_does_not_take_are_refused(
    world: tuple[np.ndarray, np.ndarray, np.ndarray, Prediction, Dataset], tmp_path: Path
) -> None:
    _, _, y, prediction, dataset = world
    y[7, 0] = -2.0
    wrong = dataset_from_arrays(tmp_path / "wrong", dataset.inputs(0, UNITS_N, False), y, target_names=("u", "v"))
    with pytest.raises(InputError, match=r"'u' holds -2 in row 8"):
        evaluate(prediction, wrong)
