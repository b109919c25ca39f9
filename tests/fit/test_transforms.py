"""The choice of the target's transform: densities in the target's units, gains beyond chance, no false alarm."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from dkgp.data import dataset_from_arrays, memory_dataset, open_dataset
from dkgp.fit import transforms
from dkgp.fit.transforms import Samples, compare_transforms, draw
from dkgp.models import tune

NAMES = ("a", "b")


def samples(rng: np.random.Generator, worth: Any, n: int = 400) -> Samples:
    """Half of n samples to tune on, half to predict; `worth` gives targets of a mean (n,) and a generator."""
    X = rng.uniform(-1.7, 1.7, (n, 2))
    y = worth(np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1], rng)[:, None]
    half = n // 2
    return Samples(X[:half], y[:half], X[half:], y[half:], bool((y > 0.0).all()))


def lognormal(mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 1e4 * np.exp(mean + 0.3 * rng.standard_normal(len(mean)))


def normal(mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 50.0 + 10.0 * (mean + 0.3 * rng.standard_normal(len(mean)))


def compared(case: Samples, **options: Any) -> dict[str, Any]:
    return compare_transforms(case, "rbf", NAMES, seconds=60.0, **options)


def test_noise_that_grows_gets_a_transform_and_both_figures(rng: np.random.Generator) -> None:
    notes: list[str] = []
    found = compared(samples(rng, lognormal), note=notes.append)
    assert found["transform"] in ("log", "yeo-johnson")
    figures = {row["transform"]: row["nlpd"] for row in found["compared"]}
    assert list(figures) == ["none", "log", "yeo-johnson"]
    assert figures[found["transform"]] == min(figures.values()) < figures["none"] - 0.1
    assert (
        f"{figures[found['transform']]:.4g} with {found['transform']}, {figures['none']:.4g} without"
        in (found["reason"])
    )
    assert any("noise grows with the predicted value" in text for text in found["findings"])
    assert len(notes) == 2


def test_a_density_is_of_the_target_in_its_own_units(rng: np.random.Generator) -> None:
    """For the logarithm it is scipy's log-normal density at a dense posterior."""
    case = samples(rng, lognormal)
    found = compared(case)
    logs = np.log(case.targets)
    m, s = logs.mean(), logs.std()
    tuned = tune(case.inputs, (logs - m) / s, feature_names=NAMES)
    K = tuned.kernel.matrix(case.inputs, case.inputs) + tuned.noise_variance * np.eye(len(case.inputs))
    cross = tuned.kernel.matrix(case.inputs, case.new_inputs)
    mean = cross.T @ np.linalg.solve(K, (logs - m) / s)[:, 0]
    variance = 1.0 + tuned.noise_variance - np.sum(cross * np.linalg.solve(K, cross), axis=0)
    density = scipy.stats.lognorm(s=s * np.sqrt(variance), scale=np.exp(m + s * mean))
    expected = -float(np.mean(density.logpdf(case.new_targets[:, 0])))
    [nlpd] = [row["nlpd"] for row in found["compared"] if row["transform"] == "log"]
    assert nlpd == pytest.approx(expected, rel=1e-8)


def test_a_skewed_target_is_compared_although_other_faults_hide_its_noise(rng: np.random.Generator) -> None:
    # The features tell little of the target, so the verdict does not look at the shape of the noise.
    X = rng.standard_normal((500, 2))
    y = np.exp(10.0 + 0.02 * X[:, :1] + 1.2 * rng.standard_normal((500, 1)))
    found = compared(Samples(X[:250], y[:250], X[250:], y[250:], True))
    assert found["findings"] == []
    assert found["transform"] == "log"
    figures = {row["transform"]: row["nlpd"] for row in found["compared"]}
    assert figures["log"] < figures["none"] - 0.5


@pytest.mark.parametrize("seed", range(5))
def test_a_target_that_is_well_as_it_is_stays(seed: int) -> None:
    found = compared(samples(np.random.default_rng(seed), normal))
    assert (found["transform"], found["findings"]) == (None, [])
    assert [row["transform"] for row in found["compared"]] == ["none"]
    assert found["reason"] == "no sign that a transform would help"


def test_what_is_not_positive_has_no_logarithm(rng: np.random.Generator) -> None:
    def shifted(mean: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.sinh(2.0 * mean + 0.4 * generator.standard_normal(len(mean))) + 5.0 * np.exp(mean) - 6.0

    case = samples(rng, shifted)
    assert not case.all_positive
    assert "log" not in [row["transform"] for row in compared(case)["compared"]]


def test_a_gain_that_may_be_chance_is_left(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    case = samples(rng, lognormal)
    gain = compared(case)
    figures = [row["nlpd"] for row in gain["compared"]]
    monkeypatch.setattr(transforms, "LEAST_GAIN", figures[0] - min(figures) + 1e-6)
    found = compared(case)
    assert found["transform"] is None
    assert "; a transform must lower it by more than " in found["reason"]
    monkeypatch.setattr(transforms, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(transforms, "ERRORS", 1e3)
    assert compared(case)["transform"] is None


def test_no_more_time_is_taken_than_there_is(rng: np.random.Generator) -> None:
    found = compare_transforms(samples(rng, lognormal), "rbf", NAMES, seconds=0.0)
    assert found["transform"] is None
    assert [row["transform"] for row in found["compared"]] == ["none"]
    assert found["reason"] == "no transform was tried; no time for log, yeo-johnson"


def test_a_transform_that_would_not_fit_the_time_is_left_out(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second whenever it is looked at: the first has taken 1 s, and 2 s are gone."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(transforms, "time", clock)
    found = compare_transforms(samples(rng, lognormal), "rbf", NAMES, seconds=2.5)
    assert [row["transform"] for row in found["compared"]] == ["none"]
    assert [row["seconds"] for row in found["compared"]] == [1]


def test_residuals_are_in_the_units_of_the_target(rng: np.random.Generator) -> None:
    case = samples(rng, normal)
    scored = transforms._scored(None, case, "rbf", NAMES, 0)
    [residuals] = scored.residuals
    np.testing.assert_array_equal(residuals.truth, case.new_targets[:, 0])
    assert residuals.deviations is not None
    # Noise of 3 in units of 10, and what is not known of the function.
    assert 2.5 < np.median(residuals.deviations) < 4.0
    assert float(np.sqrt(np.mean(residuals.standardised**2))) == pytest.approx(1.0, abs=0.2)
    densities = scipy.stats.norm(residuals.means, residuals.deviations).logpdf(residuals.truth)
    np.testing.assert_allclose(scored.losses, -densities)
    y = case.targets[:, 0]
    tuned = tune(case.inputs, (y - y.mean()) / y.std(), feature_names=NAMES)
    noise = tuned.noise_variance * y.std() ** 2
    assert residuals.latent_share == pytest.approx(float(np.mean(1.0 - noise / residuals.deviations**2)))
    assert 0.0 < residuals.latent_share < 0.5


def test_of_several_targets_the_densities_add_up(rng: np.random.Generator) -> None:
    one = samples(rng, normal)
    two = Samples(one.inputs, np.repeat(one.targets, 2, 1), one.new_inputs, np.repeat(one.new_targets, 2, 1), True)
    [alone], [both] = (compared(case)["compared"] for case in (one, two))
    assert both["nlpd"] == pytest.approx(2.0 * alone["nlpd"], rel=1e-4)


def test_few_samples_are_left_alone(rng: np.random.Generator) -> None:
    found = compared(samples(rng, lognormal, 58))
    assert (found["transform"], found["compared"]) == (None, [])
    assert found["reason"] == "too few samples for a held-out set"


def test_samples_are_of_the_training_set_in_its_units(rng: np.random.Generator, tmp_path: Path) -> None:
    X, y = rng.normal(3.0, 2.0, (90, 2)), rng.uniform(5.0, 9.0, 90)
    dataset_from_arrays(tmp_path / "train.zarr", X, y, chunk_rows=20)
    train = open_dataset(tmp_path / "train.zarr")
    drawn = draw(train, train, 0)
    assert (len(drawn.inputs), len(drawn.new_inputs)) == (45, 45)
    both = np.vstack([drawn.inputs, drawn.new_inputs]) * train.standardisation.input_std
    both += train.standardisation.input_mean
    rows = [int(np.argmin(np.abs(X - row).sum(axis=1))) for row in both]
    assert sorted(rows) == list(range(90))
    np.testing.assert_allclose(np.vstack([drawn.targets, drawn.new_targets])[:, 0], y[rows])
    assert drawn.all_positive
    # Nothing of the test samples but their signs.
    again = draw(train, memory_dataset(X[:30], y[:30] + 100.0), 0)
    np.testing.assert_array_equal(again.targets, drawn.targets)
    # One test sample without a logarithm would stop the ingestion that follows.
    assert not draw(train, memory_dataset(X, np.append(y[1:], 0.0)), 0).all_positive
