"""Predictions of transformed targets, back in units: against sampling and scipy's distributions."""

from __future__ import annotations

from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.stats

from dkgp.codec import to_json
from dkgp.data import Dataset, Prediction, PredictionWriter, dataset_from_arrays
from dkgp.data.stores.standardisation import TargetTransform
from dkgp.errors import InputError
from dkgp.models.metrics import coverage_curve, evaluate
from dkgp.models.target_units import TargetUnits
from dkgp.models.verdict import findings, read_residuals

N, NOISE = 400, 0.09


def stored(
    folder: Path, m: np.ndarray, latent: np.ndarray, transforms: list[TargetTransform], bound: np.ndarray | float = 0.01
) -> Prediction:
    """Predictions of two targets on the transformed scale, with the function's own variances."""
    folder.mkdir(exist_ok=True)
    attributes = {
        "target_std": [0.8, 0.5],
        "variance": {"latent": True, "gap": 0.1},
        "noise_variance": [NOISE, NOISE],
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
    m, latent = rng.normal(size=(N, 2)), np.full((N, 2), 0.04)
    t = m + np.sqrt(0.95 * latent + NOISE) * rng.normal(size=(N, 2))
    y = np.stack([of.inverse(t[:, k]) for k, of in enumerate(transforms)], axis=1)
    dataset = dataset_from_arrays(tmp_path / "test", rng.normal(size=(N, 3)), y, target_names=("u", "v"))
    return m, 0.95 * latent + NOISE, y, stored(tmp_path, m, latent, transforms), dataset


def test_means_medians_and_intervals_are_those_of_many_draws(
    rng: np.random.Generator, tmp_path: Path, transforms: list[TargetTransform]
) -> None:
    m, latent = np.array([[0.5, -0.3], [2.0, 0.02]]), np.full((2, 2), 0.2)
    back = TargetUnits(stored(tmp_path, m, latent, transforms)).read()
    draws = m + np.sqrt(0.95 * latent + NOISE) * rng.normal(size=(400_000, 2, 2))
    y = np.stack([of.inverse(draws[:, :, k]) for k, of in enumerate(transforms)], axis=2)
    error = 5.0 * y.std(axis=0) / np.sqrt(len(y))
    assert back.lower is not None
    assert back.upper is not None
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
    wrong = dataset_from_arrays(tmp_path / "wrong", dataset.inputs(0, N, False), y, target_names=("u", "v"))
    with pytest.raises(InputError, match=r"'u' holds -2 in row 8"):
        evaluate(prediction, wrong)
