from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dkgp.codec import to_json
from dkgp.data import RunningMoments, Standardisation
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
