"""Spherical, cubic and Wendland kernels: where they are covariances, their range, their spectra, and tuning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import jv

from dkgp.errors import InputError
from dkgp.kernels import Cubic, Spherical, TileEvaluator, Wendland, kernel_from_json, parse_kernel
from dkgp.models.prediction.pathwise import draw_prior_functions
from dkgp.models.tuning.families import family_of
from dkgp.models.tuning.objectives import LogMarginalLikelihood

KERNELS = [Spherical, Cubic, Wendland]
every_kernel = pytest.mark.parametrize("kind", KERNELS, ids=lambda kind: kind.type_name)


@every_kernel
@pytest.mark.parametrize("d", [1, 2, 3])
def test_matrices_have_no_negative_eigenvalue(kind: Any, d: int, rng: np.random.Generator) -> None:
    for X in (rng.random((150, d)), np.stack(np.meshgrid(*[np.linspace(0, 1, {1: 150, 2: 12, 3: 5}[d])] * d), -1)):
        for reach in (0.1, 0.6, 5.0):
            K = kind.from_length_scales((reach,) * d)(X.reshape(-1, d), X.reshape(-1, d))
            assert np.linalg.eigvalsh(K).min() > -1e-13 * len(K)


def test_the_spherical_function_is_no_covariance_in_twelve_dimensions() -> None:
    """Its Fourier transform there, an integral of k(r) r^6 J_5(w r), takes negative values."""
    transform = [
        quad(lambda r, w=w: (1.0 - 1.5 * r + 0.5 * r**3) * r**6 * jv(5, w * r), 0.0, 1.0, limit=200)[0]
        for w in np.linspace(1.0, 40.0, 80)
    ]
    assert min(transform) < -1e-4 * max(transform)


@every_kernel
def test_more_than_three_dimensions_are_refused(kind: Any) -> None:
    name = kind.type_name
    pattern = (
        rf"a {name} kernel is no covariance in 4 dimensions, only in up to 3; take matern\d2, or name up to 3 "
        rf"features, as in '{name}\[0, 1\]'"
    )
    with pytest.raises(InputError, match=pattern):
        kind((1.0, 2.0, 3.0, 4.0))
    with pytest.raises(InputError, match=pattern):
        kind((1.0,), n_features=4)
    with pytest.raises(InputError, match=pattern):
        kernel_from_json({"type": name, "variance": 1.0, "gamma": [1.0] * 4})
    with pytest.raises(InputError, match=pattern):
        parse_kernel(f"{name} + rbf", 4)
    assert kind((1.0, 0.0, 3.0, 4.0)).n_features == 4  # one of four is switched off
    assert parse_kernel(f"{name}[0, 3] + rbf", 4).n_features == 4


@every_kernel
def test_the_length_scale_is_the_range(kind: Any, precision: Any) -> None:
    kernel = kind.from_length_scales((2.0, 0.5), variance=3.0)
    assert kernel.ranges == pytest.approx((2.0, 0.5))
    X = np.array([[0.0, 0.0]])
    Z = np.array([[1.999, 0.0], [2.0, 0.0], [0.0, 0.499], [0.0, 0.5], [1.5, 0.4], [1e100, 0.0]])
    evaluator = TileEvaluator(kernel, precision)
    for values in (kernel(X, Z)[0], evaluator.tile(evaluator.prepare(X), evaluator.prepare(Z))[0]):
        assert (values[[0, 2]] > 0.0).all()
        assert (values[[1, 3, 4, 5]] == 0.0).all()
    assert kernel.compiled.support == 1.0


@every_kernel
def test_tiles_are_never_negative(kind: Any, precision: Any, rng: np.random.Generator) -> None:
    evaluator = TileEvaluator(kind.from_length_scales((1.0,)), precision)
    r = np.concatenate([1.0 - np.geomspace(1e-9, 1.0, 500), np.linspace(0.0, 1.2, 500)])[:, None]
    tile = evaluator.tile(evaluator.prepare(r), evaluator.prepare(np.zeros((1, 1))))
    assert (tile >= 0.0).all()
    assert tile.max() == 1.0


@every_kernel
@pytest.mark.parametrize("d", [1, 2, 3])
def test_frequencies_are_of_the_spectrum(kind: Any, d: int) -> None:
    kernel = kind.from_length_scales((0.7, 2.0, 1.3)[:d])
    frequencies = kernel.frequencies(60_000, np.random.default_rng(3))
    assert frequencies.shape == (60_000, d)
    X = np.random.default_rng(4).uniform(-1.0, 1.0, (40, d)) * np.array([0.8, 2.3, 1.5])[:d]
    mean = np.cos(X @ frequencies.T).mean(axis=1)
    # Of means of cosines, whose deviation is at most one: five standard deviations.
    np.testing.assert_allclose(mean, kernel(X, np.zeros((1, d)))[:, 0], atol=5.0 / math.sqrt(60_000))


@every_kernel
def test_radial_frequencies_have_their_density(kind: Any) -> None:
    kernel = kind.from_length_scales((1.0, 1.0, 1.0))
    lengths = np.linalg.norm(kernel.frequencies(40_000, np.random.default_rng(8)), axis=1)
    polynomial = np.polynomial.Polynomial(kind._polynomial)
    for below in (2.0, 5.0, 15.0, 16.5, 40.0):
        # The integral of the density (2 / pi) w I(w) up to a frequency, in closed form in w.
        share = quad(
            lambda r, b=below: 2.0 / math.pi * polynomial(r) * (math.sin(b * r) / r - b * math.cos(b * r)), 0.0, 1.0,
            limit=200,
        )[0]  # fmt: skip
        assert abs((lengths <= below).mean() - share) < 5.0 * math.sqrt(share * (1.0 - share) / 40_000) + 1e-9


def test_frequencies_of_a_switched_off_feature_are_zero() -> None:
    frequencies = Cubic((1.0, 0.0, 2.0, 0.5)).frequencies(10, np.random.default_rng(0))
    assert (frequencies[:, 1] == 0.0).all()
    assert (frequencies[:, [0, 2, 3]] != 0.0).all()


def test_prior_functions_have_the_kernels_covariance(rng: np.random.Generator) -> None:
    kernel = parse_kernel("wendland + 0.3 * spherical(length_scale=1)[0]", 2)
    functions = draw_prior_functions(kernel, 2, 2_000, np.random.default_rng(5), frequencies=512)
    X = rng.standard_normal((12, 2))
    values = functions(X)
    covariance = values @ values.T / values.shape[1]
    assert np.abs(covariance - kernel(X, X)).max() < 0.2


@every_kernel
def test_the_likelihoods_gradient_is_its_difference(kind: Any, rng: np.random.Generator) -> None:
    X = rng.standard_normal((80, 2))
    y = np.sin(2.0 * X[:, :1])
    family = family_of(kind.from_length_scales((2.0, 3.0)), X, True, ("a", "b"))
    likelihood, at = LogMarginalLikelihood(family, y), np.append(family.initial(), math.log(0.1))
    value = likelihood(at)
    assert value is not None
    for index in range(len(at)):
        step = np.zeros(len(at))
        step[index] = 1e-5
        above, below = likelihood(at + step), likelihood(at - step)
        assert above is not None
        assert below is not None
        assert value[1][index] == pytest.approx((above[0] - below[0]) / 2e-5, rel=1e-4, abs=1e-5)
