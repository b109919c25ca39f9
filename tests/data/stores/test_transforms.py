"""Transforms of targets against scipy's, quadrature and mpmath; and what a store keeps of them."""

from __future__ import annotations

from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import dkgp
from dkgp.codec import to_json
from dkgp.data import DatasetWriter, open_dataset
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.stores.standardisation import Standardisation, TargetTransform, fit_transform
from dkgp.errors import InputError

LAMBDAS = (0.0, 1e-9, 0.37, 1.0, 1.6, 2.0)
SPREAD = np.concatenate([-np.geomspace(1e4, 1e-8, 40), [0.0], np.geomspace(1e-8, 1e4, 40)])


@pytest.mark.parametrize("parameter", LAMBDAS)
def test_yeo_johnson_is_scipys_and_comes_back(parameter: float) -> None:
    transform = TargetTransform("yeo-johnson", parameter)
    np.testing.assert_allclose(transform.forward(SPREAD), scipy.stats.yeojohnson(SPREAD, parameter), rtol=1e-6)
    np.testing.assert_allclose(transform.inverse(transform.forward(SPREAD)), SPREAD, rtol=1e-9)
    assert (np.diff(transform.forward(SPREAD)) > 0.0).all()


@pytest.mark.parametrize("parameter", [0.0, 1e-9, 0.37, 1.6])
def test_values_to_the_last_digits(parameter: float) -> None:
    mpmath.mp.dps = 50
    transform, power = TargetTransform("yeo-johnson", parameter), mpmath.mpf(parameter)
    for y in (1e-8, 0.3, 7.0, 1e6):
        exact = ((1 + mpmath.mpf(y)) ** power - 1) / power if parameter else mpmath.log(1 + mpmath.mpf(y))
        assert float(transform.forward(np.array([y]))[0]) == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize("parameter", LAMBDAS)
def test_slopes_are_those_of_finite_differences(parameter: float) -> None:
    y, h = np.array([-30.0, -0.5, 0.4, 2.0, 500.0]), 1e-6
    for transform in (TargetTransform("yeo-johnson", parameter), TargetTransform("log")):
        at = np.abs(y) if transform.name == "log" else y
        step = h * np.maximum(1.0, np.abs(at))
        slope = (transform.forward(at + step) - transform.forward(at - step)) / (2.0 * step)
        np.testing.assert_allclose(transform.log_slope(at), np.log(slope), atol=1e-7)


@pytest.mark.parametrize("parameter", LAMBDAS)
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.05, 0.3), (-2.0, 1.5), (6.0, 0.01), (3.0, 2.0)])
def test_means_are_those_of_an_adaptive_quadrature(parameter: float, mean: float, deviation: float) -> None:
    transform = TargetTransform("yeo-johnson", parameter)

    def weighted(t: float) -> float:
        return float(transform.inverse(np.array([t]))[0]) * float(scipy.stats.norm.pdf(t, mean, deviation))

    ends = (mean - 15.0 * deviation, mean + 15.0 * deviation)
    places = [min(max(0.0, ends[0]), ends[1]), mean]
    exact = scipy.integrate.quad(weighted, *ends, points=places, epsabs=1e-13, epsrel=1e-12, limit=500)[0]
    computed = transform.mean(np.array([mean]), np.array([deviation**2]))[0]
    size = float(np.abs(transform.inverse(np.array([abs(mean) + deviation]))[0])) + deviation
    assert computed == pytest.approx(exact, rel=1e-9, abs=1e-10 * size)


def test_mean_of_a_logarithm_is_the_lognormals() -> None:
    transform = TargetTransform("log")
    m, s = np.array([0.3, -2.0, 9.0]), np.array([0.1, 1.0, 0.5])
    np.testing.assert_allclose(transform.mean(m, s**2), scipy.stats.lognorm.mean(s, scale=np.exp(m)), rtol=1e-14)
    # No spread, no difference from the median; rows beyond one piece.
    sharp = np.linspace(-3.0, 3.0, 9000)
    of = TargetTransform("yeo-johnson", 0.5)
    np.testing.assert_allclose(of.mean(sharp, np.full(9000, 1e-14)), of.inverse(sharp), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [0.0, 0.4, 1.0])
def test_lambda_has_the_greatest_likelihood(rng: np.random.Generator, shape: float) -> None:
    y = TargetTransform("yeo-johnson", shape).inverse(1.0 + 0.7 * rng.normal(size=4000))
    transform = fit_transform("yeo-johnson", y)
    best = scipy.stats.yeojohnson_llf(transform.parameter, y)
    assert transform.parameter == pytest.approx(shape, abs=0.12)
    assert all(scipy.stats.yeojohnson_llf(other, y) <= best + 1e-6 for other in np.linspace(0.0, 2.0, 41))


@pytest.mark.parametrize("values", [(1.0, 0.0), (2.0, -3.0)])
def test_a_logarithm_takes_positive_numbers(values: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match=r"row 2.*positive.*yeo-johnson"):
        fit_transform("log", np.array(values))


@pytest.mark.parametrize(("name", "parameter"), [("box-cox", 0.0), ("yeo-johnson", 2.5), ("yeo-johnson", np.nan)])
def test_other_transforms_are_refused(name: str, parameter: float) -> None:
    with pytest.raises(InputError, match="expected log or yeo-johnson"):
        TargetTransform(name, parameter)  # type: ignore[arg-type]


def test_data_in_memory_are_seen_by_others_in_their_units(rng: np.random.Generator) -> None:
    """A training set that a model carries, standardised, matched again under the same and under another map."""
    y = np.exp(rng.normal(size=(50, 1)))
    to = Standardisation(
        np.zeros(2), np.ones(2), np.array([0.1]), np.array([0.9]), (True, True), (TargetTransform("log"),)
    )
    dataset = assembled_dataset(rng.normal(size=(50, 2)), to.targets(y), to, ("a", "b"), ("y",), "")
    np.testing.assert_allclose(dataset.targets(0, 50, standardised=False), y, rtol=1e-12)
    np.testing.assert_allclose(dataset.targets(3, 9), (np.log(y[3:9]) - 0.1) / 0.9, rtol=1e-12)
    other = dataset.as_seen_by(("a", "b"), ("y",), Standardisation.identity(2, 1))
    np.testing.assert_allclose(other.targets(3, 9), y[3:9], rtol=1e-12)
    same = dataset.as_seen_by(("a", "b"), ("y",), to)
    np.testing.assert_allclose(same.targets(3, 9), dataset.targets(3, 9), rtol=1e-9, atol=1e-12)


def test_a_store_keeps_targets_as_they_are_and_reads_them_transformed(rng: np.random.Generator, tmp_path: Path) -> None:
    X, y = rng.normal(size=(300, 2)), np.exp(rng.normal(size=(300, 2)) * [1.0, 0.3] + [8.0, 0.0])
    with DatasetWriter.create(tmp_path / "d", ("a", "b"), ("u", "v"), 64) as writer:
        writer.transform = "log"
        for start in range(0, 300, 70):
            writer.append(X[start : start + 70], y[start : start + 70])
        writer.finish()
    dataset = open_dataset(tmp_path / "d")
    assert (dataset.all_targets(standardised=False) == y).all()
    logarithms = np.log(y)
    expected = (logarithms - logarithms.mean(axis=0)) / logarithms.std(axis=0)
    np.testing.assert_allclose(dataset.all_targets(), expected, rtol=1e-10, atol=1e-12)
    to = dataset.standardisation
    np.testing.assert_allclose(to.targets_back(dataset.all_targets()), y, rtol=1e-12)
    assert Standardisation.from_json(to_json(to)) == to
    assert "transforms" not in to_json(Standardisation.identity(2, 2))
    with pytest.raises(InputError, match="ingested with a transform"):
        dkgp.GPRegressor(subset_size=100).fit(str(tmp_path / "d"))
    with pytest.raises(InputError, match="row 2"):
        to.targets(np.array([[1.0, 1.0], [1.0, -1.0]]))
