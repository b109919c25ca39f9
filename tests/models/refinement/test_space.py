"""What a refinement may move, for kernels of all kinds."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.kernels import Kernel, SquaredExponential, parse_kernel
from dkgp.models import Hyperparameters
from dkgp.models.refinement.refine import RefineSpace

NAMES = ("lat", "lon")
ARD = SquaredExponential((0.4, 0.7), 1.7)
SUM = parse_kernel("rbf['lat'] * periodic['lon'] + 0.5 * matern32 + linear", 2, NAMES)


def space(kernel: Kernel, **options: object) -> RefineSpace:
    return RefineSpace.of_start(Hyperparameters(kernel, 0.3), NAMES, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", [ARD, SUM, parse_kernel("matern52", 2)], ids=["ard", "sum", "matern"])
@pytest.mark.parametrize("learn_variance", [False, True])
def test_its_first_point_stands_for_the_start(kernel: Kernel, learn_variance: bool) -> None:
    found = space(kernel, learn_variance=learn_variance)
    same = found.point(found.first)[0]
    X = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(same(X, X), kernel(X, X), rtol=1e-12)
    assert found.point(found.first)[1] == pytest.approx(0.3)
    assert found.space.names[-1] == "noise_variance"
    assert found.space.named(found.first)["noise_variance"] == pytest.approx(0.3)


def test_an_amplitude_moves_only_where_it_is_learnt() -> None:
    held, learnt = space(ARD), space(ARD, learn_variance=True)
    assert held.space.names == ("gamma.lat", "gamma.lon", "noise_variance")
    assert learnt.space.names == ("gamma.lat", "gamma.lon", "variance", "noise_variance")
    up = held.point(held.first + 1.0)[0]
    assert isinstance(up, SquaredExponential)
    assert up.variance == 1.7
    np.testing.assert_allclose(up.gamma, np.e * np.array(ARD.gamma))
    # Of all four of the kernel's derivatives and the noise's, those of what moves.
    np.testing.assert_array_equal(held.space.select(np.array([1.0, 2.0, 3.0, 4.0])), [1.0, 2.0, 4.0])
    np.testing.assert_array_equal(learnt.space.select(np.array([1.0, 2.0, 3.0, 4.0])), [1.0, 2.0, 3.0, 4.0])


def test_each_parameter_of_a_composite_is_its_own() -> None:
    found = space(SUM)
    assert len(found.space.names) == len(SUM.parameters()) + 1 == len(set(found.space.names))
    for index in range(len(SUM.parameters())):
        moved = found.first.copy()
        moved[index] += 0.1
        before, after = ([parameter.value for parameter in k.parameters()] for k in (SUM, found.point(moved)[0]))
        changed = np.flatnonzero(~np.isclose(before, after, rtol=1e-9))
        assert changed.tolist() == [index]


def test_the_start_is_returned_as_it_was_unless_it_breaks_a_bound() -> None:
    found = space(ARD)
    unmoved = found.unmoved()
    assert unmoved.kernel == ARD
    assert [parameter.feature for parameter in unmoved.parameters] == ["lat", "lon", None]
    limited = space(ARD, bounds={"gamma.*": (0.5, 2.0)}, fixed={"noise_variance": 0.1}).unmoved()
    np.testing.assert_allclose(limited.gamma, [0.5, 0.7])
    assert limited.noise_variance == pytest.approx(0.1)
    assert [parameter.fixed for parameter in limited.parameters] == [False, False, True]


def test_a_length_scale_that_is_switched_off_stays_so() -> None:
    found = space(SquaredExponential((0.5, 0.0)))
    assert found.space.names == ("gamma.lat", "noise_variance")
    moved = found.point(found.first + 0.5)[0]
    assert isinstance(moved, SquaredExponential)
    assert moved.gamma[1] == 0.0
