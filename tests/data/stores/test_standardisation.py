""""""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dkgp
from dkgp.codec import to_json
from dkgp.data import DatasetWriter, RunningMoments, Standardisation, open_dataset
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.stores.standardisation import TargetTransform, fit_transform
from dkgp.errors import InputError

columns = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 40), st.integers(1, 3)),
    elements=st.floats(-1e6, 1e6, allow_nan=False, width=32),
)


@given(columns, st.lists(st.integers(0, 40), max_size=5))
@settings(deadline=None)
def test_moments_of_any_blocks_are_numpys(values: np.ndarray, cuts: list[int]) -> None:
    moments = RunningMoments(values.shape[1])
    for block in np.split(values, sorted(min(cut, len(values)) for cut in cuts)):
        moments.update(block)
    scale = np.abs(values).max() + 1.0
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-9, atol=1e-12 * scale**2)
    assert moments.count == len(values)
    np.testing.assert_array_equal(moments.constant, np.ptp(values, axis=0) == 0)


@given(columns, st.integers(0, 40))
@settings(deadline=None)
def test_merging_two_halves_is_updating_with_both(values: np.ndarray, cut: int) -> None:
    left, right, both = (RunningMoments(values.shape[1]) for _ in range(3))
    left.update(values[:cut])
    right.update(values[cut:])
    both.update(values[:cut])
    both.update(values[cut:])
    left.merge(right)
    np.testing.assert_array_equal(left.mean, both.mean)
    np.testing.assert_array_equal(left.squared_deviations, both.squared_deviations)


def test_large_mean_does_not_cancel() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=(5000, 1))
    moments = RunningMoments(1)
    for block in np.array_split(values, 7):
        moments.update(block)
    np.testing.assert_allclose(moments.std, values.std(axis=0), rtol=1e-9)


@pytest.mark.parametrize("width", [1e-3, 1e-5])
@pytest.mark.parametrize("offset", [1.6e9, -7.3e8])
@pytest.mark.parametrize("rows", [20_000, 700])
def test_values_near_to_each_other_keep_their_digits(
    width: float, offset: float, rows: int, rng: np.random.Generator
) -> None:
    values = offset + rng.uniform(-width, width, (20_000, 1))
    moments = RunningMoments(1)
    for start in range(0, len(values), rows):
        moments.update(values[start : start + rows])
    # Both are sums of whole numbers of units in the last place, and so is what they are compared with.
    unit = np.spacing(abs(offset) / 2.0)
    steps = [int(step) for step in (values[:, 0] - values[0, 0]) / unit]
    mean = Fraction(sum(steps), len(steps))
    variance = Fraction(sum(step * step for step in steps), len(steps)) - mean * mean
    exact_mean = Fraction(values[0, 0]) + mean * Fraction(unit)
    assert abs(Fraction(moments.mean[0]) - exact_mean) <= Fraction(np.spacing(abs(offset))) * Fraction(51, 100)
    assert moments.std[0] == pytest.approx(math.sqrt(variance) * unit, rel=1e-12)


def test_a_block_far_from_near_values_is_no_harm(rng: np.random.Generator) -> None:
    blocks = [1e8 + rng.uniform(-1e-3, 1e-3, (500, 1)), rng.normal(size=(500, 1)), 3e8 + rng.normal(size=(400, 1))]
    for order in ([0, 1, 2], [1, 0, 2], [2, 0, 1]):
        moments = RunningMoments(1)
        for block in order:
            moments.update(blocks[block])
        values = np.concatenate(blocks).astype(np.longdouble)
        assert moments.mean[0] == pytest.approx(float(values.mean()), rel=1e-14)
        assert moments.std[0] == pytest.approx(float(values.std()), rel=1e-14)


def test_ordinary_values_have_the_bits_of_plain_sums(rng: np.random.Generator) -> None:
    values = np.column_stack([rng.normal(size=3000), 1e3 + rng.normal(size=3000), rng.integers(0, 2, 3000)])
    moments = RunningMoments(3)
    moments.update(values)
    np.testing.assert_array_equal(moments.mean, values.mean(axis=0))
    np.testing.assert_array_equal(moments.std, values.std(axis=0))


def test_a_constant_that_rounds_is_constant() -> None:
    moments = RunningMoments(1)
    for rows in (3, 11, 997):
        moments.update(np.full((rows, 1), 0.1))
    assert moments.constant.all()
    assert moments.variance[0] == 0.0


def _seen(column: np.ndarray) -> RunningMoments:
    moments = RunningMoments(2)
    moments.update(np.column_stack([np.arange(float(len(column))), column]))
    return moments


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (1e200, r"'far' are too large to be standardised \(their variance overflows; they lie between -1e\+200 and 1e"),
        (
            1e-145,
            r"'far' are too near to each other to be standardised \(their variance underflows, it must be at least",
        ),
        (1e-165, r"'far' are .* they lie between -1e-165 and 1e-165\); rescale that column"),
        (1e-310, "'far' are too near to each other"),
    ],
)
def test_columns_whose_variance_is_no_number_are_refused_by_name(scale: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        _seen(np.array([scale, -scale, scale])).require_range(["near", "far"])


@pytest.mark.parametrize("scale", [1e150, 1e-130])
def test_columns_just_within_range_have_all_digits(scale: float) -> None:
    values = np.array([3.0, -1.0, 2.0, 0.5])
    moments = _seen(values * scale)
    moments.require_range(["near", "far"])
    assert moments.std[1] == pytest.approx(values.std() * scale, rel=1e-14)


def test_equal_numbers_of_any_size_are_in_range() -> None:
    for value in (0.0, 5e-324, 1e-200, 1.7e308):
        _seen(np.full(7, value)).require_range(["near", "far"])


@pytest.fixture
def standardisation() -> Standardisation:
    return Standardisation(
        np.array([0.1, 5.0]), np.array([3.0, 1 / 3]), np.array([7.0]), np.array([0.7]), (True, False, True)
    )


def test_map_and_back(standardisation: Standardisation) -> None:
    raw = np.array([[1.0, 99.0, 2.0], [4.0, 99.0, 6.0]])
    np.testing.assert_allclose(standardisation.inputs(raw), [[0.3, -9.0], [1.3, 3.0]])
    targets = np.array([[1.0], [-2.0]])
    np.testing.assert_allclose(standardisation.targets_back(standardisation.targets(targets)), targets)


def test_json_round_trip_keeps_every_bit(standardisation: Standardisation) -> None:
    again = Standardisation.from_json(json.loads(json.dumps(to_json(standardisation))))
    assert again == standardisation
    assert hash(again) == hash(standardisation)
    assert again.input_std.tobytes() == standardisation.input_std.tobytes()


def test_fields_cannot_be_changed(standardisation: Standardisation) -> None:
    with pytest.raises(ValueError, match="read-only"):
        standardisation.input_mean[0] = 3.0


@pytest.mark.parametrize(
    ("mean", "std", "kept"),
    [([0.0], [0.0], [True]), ([np.nan], [1.0], [True]), ([0.0], [1.0], [True, True]), ([0.0, 1.0], [1.0], [True])],
)
def test_impossible_maps_are_refused(mean: list[float], std: list[float], kept: list[bool]) -> None:
    with pytest.raises(InputError):
        Standardisation(np.array(mean), np.array(std), np.zeros(1), np.ones(1), tuple(kept))


def test_wrong_width_is_refused(standardisation: Standardisation) -> None:
    with pytest.raises(InputError, match=r"expected \(rows, 3\)"):
        standardisation.inputs(np.zeros((4, 2)))


# Transforms of targets against scipy's, quadrature and mpmath; and what a store keeps of them.


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
