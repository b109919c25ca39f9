"""Bounds under roundings: anisotropy at coordinates of millions, and the field at samples, against 60 digits."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dkgp.data.types import FloatArray
from dkgp.kriging import Kriging, Variogram

mp.mp.dps = 60


def _truth(
    model: Variogram, x: FloatArray, z: FloatArray, errors: FloatArray, at: FloatArray, micro: bool
) -> list[Any]:
    """Return mean and variance of ordinary kriging at points; with `micro`, of the field instead of the signal."""
    turn, ratio = mp.mpf(model.angle or 0.0) * mp.pi / 180, mp.mpf(model.ratio[0])

    def covariance(a: FloatArray, b: FloatArray) -> Any:
        d = [mp.mpf(float(p)) - mp.mpf(float(q)) for p, q in zip(a, b, strict=True)]
        along, across = mp.cos(turn) * d[0] + mp.sin(turn) * d[1], (mp.cos(turn) * d[1] - mp.sin(turn) * d[0]) / ratio
        here = mp.mpf(model.microscale_variance) if micro and along == across == 0 else 0
        return here + mp.mpf(model.psill) * mp.exp(-mp.sqrt(along**2 + across**2) / mp.mpf(model.range))

    matrix = mp.matrix([[covariance(a, b) for b in x] for a in x])
    for i, error in enumerate(errors):
        matrix[i, i] += mp.mpf(float(error)) + (0 if micro else mp.mpf(model.microscale_variance))
    inverse, one = matrix**-1, mp.matrix([1] * len(x))
    values = mp.matrix([mp.mpf(float(value)) for value in z])
    gram = (one.T * inverse * one)[0]
    beta = (one.T * inverse * values)[0] / gram
    result = []
    for point in at:
        k = mp.matrix([covariance(point, each) for each in x])
        rest = 1 - (one.T * inverse * k)[0]
        sill = mp.mpf(model.psill) + (mp.mpf(model.microscale_variance) if micro else 0)
        mean = beta + (k.T * inverse * (values - beta * one))[0]
        result.append((mean, sill - (k.T * inverse * k)[0] + rest**2 / gram))
    return result


def _assert_proven(kriging: Kriging, at: FloatArray, truth: list[Any]) -> None:
    mean, bound, _, low, high = kriging.predict((at[:, 0], at[:, 1]), return_bounds=True, return_variance=True)
    for i, (m, v) in enumerate(truth):
        assert abs(mp.mpf(float(mean[i])) - m) <= mp.mpf(float(bound[i])), (i, mean[i], bound[i])
        assert mp.mpf(float(low[i])) <= v <= mp.mpf(float(high[i])), (i, low[i], high[i])


@pytest.mark.parametrize("ratio", [0.5, 0.1])
def test_bounds_of_an_anisotropic_field_hold_at_northings_of_millions(ratio: float, rng: np.random.Generator) -> None:
    x = rng.random((10, 2)) * 1000.0 + [5e5, 4e6]
    z = rng.normal(size=10)
    at = np.vstack([x[0] + [1e-5, 0.0], x[1:3] + 30.0])
    model = Variogram("exponential", psill=1.0, range=300.0, nugget=0.1, ratio=ratio, angle=30.0)
    kriging = Kriging(model).fit((x[:, 0], x[:, 1]), z)
    _assert_proven(kriging, at, _truth(model, x, z, np.full(10, 0.1), at, micro=False))


def test_the_field_at_samples_of_small_errors_is_proven(rng: np.random.Generator) -> None:
    x, z = rng.random((10, 2)) * 100.0, rng.normal(size=10) + 1e3
    errors = 10.0 ** rng.uniform(-6.0, 0.0, 10)
    model = Variogram("exponential", psill=1.0, range=50.0, nugget=0.2, nugget_is="microscale")
    kriging = Kriging(model, of="field").fit((x[:, 0], x[:, 1]), z, noise=errors)
    _assert_proven(kriging, x, _truth(model, x, z, errors, x, micro=True))


def test_exact_values_at_samples_are_within_their_bound(rng: np.random.Generator) -> None:
    x, y = rng.random((2, 10)) * 100.0
    z = np.append(1.2345678e-3, rng.random(9) * 1e7)
    kriging = Kriging(Variogram("exponential", psill=1e12, range=50.0)).fit((x, y), z)
    mean, bound = kriging.predict((x, y), return_bounds=True)
    assert (np.abs(mean - z) <= bound).all()
