"""What profiles declare of themselves, against differences of their values and the entries that tiles have."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from dkgp.kernels import TileEvaluator
from dkgp.kernels.program import PROFILES, Profile
from dkgp.kernels.stationary import RATIONAL_QUADRATIC
from tests.kernels.tiles.programs import RADIAL, leaf_kernel

PARAMETERS = (0.3, 2.0, 40.0)


def cases() -> list[tuple[Profile, float]]:
    return [(profile, p) for profile in RADIAL for p in (PARAMETERS if profile is RATIONAL_QUADRATIC else (0.0,))]


def named(value: object) -> str | None:
    return value.name if isinstance(value, Profile) else None


@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_slopes_are_the_greatest_beyond_a_distance(profile: Profile, parameter: float) -> None:
    assert profile.value is not None
    r, step = np.geomspace(1e-3, 30.0, 4000), 1e-6
    above, below = ([profile.value((x + h * x) ** 2, parameter) for x in r] for h in (step, -step))
    slope = (np.array(below) - np.array(above)) / (2.0 * step * r)
    assert (slope >= -1e-8).all()
    for index in range(0, 4000, 250):
        assert profile.steepest(r[index], parameter) == pytest.approx(slope[index:].max(), rel=1e-4, abs=1e-6)
        assert profile.bulge(r[index], parameter) == pytest.approx((0.5 * r * slope)[index:].max(), rel=1e-4, abs=1e-6)
    if profile.slope_at_zero is not None:
        assert profile.slope_at_zero(parameter) == pytest.approx(
            (1.0 - profile.value(1e-10, parameter)) / 1e-10, rel=2e-4
        )


@pytest.mark.parametrize(("profile", "parameter"), cases(), ids=named)
def test_values_are_the_tiles(profile: Profile, parameter: float) -> None:
    assert profile.value is not None
    evaluator = TileEvaluator(
        leaf_kernel(profile, 1, (parameter,) if profile.parameters else (), scale=(1.0,)), "double"
    )
    r = np.linspace(0.0, 6.0, 100)
    tile = evaluator.tile(evaluator.prepare(r[:, None]), evaluator.prepare(np.zeros((1, 1))))[:, 0]
    for x, entry in zip(r, tile, strict=True):
        value = profile.value(x * x, parameter)
        assert abs(entry - value) <= 2.0**-52 * (profile.rounding + 12.0)


def test_a_profile_is_one_object_in_a_process() -> None:
    assert {profile.name for profile in RADIAL} <= set(PROFILES)
    for profile in PROFILES.values():
        assert pickle.loads(pickle.dumps(profile)) is profile


def test_a_kernel_is_encoded_once() -> None:
    one, other = (TileEvaluator(leaf_kernel(RADIAL[1], 3), "single") for _ in range(2))
    assert one.program is other.program
    assert one.program is not TileEvaluator(leaf_kernel(RADIAL[1], 3), "double").program
    assert one.program is not TileEvaluator(leaf_kernel(RADIAL[2], 3), "single").program
