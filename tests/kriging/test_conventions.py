"""The conventions of the guides for PyKrige's, GSTools' and gstat's users, against constants that those programs gave.

PyKrige 1.7.3 and GSTools 1.7.0 computed the means and variances of an observation at three points, from six samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy

from dkgp.kriging.kriging import Kriging
from dkgp.kriging.variogram import Variogram

X, Y = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float).T
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
POINTS = np.array([1.0, 2.5, 0.0]), np.array([1.0, 2.0, 0.0])
PARTS: dict[str, Any] = {"psill": 2.0, "nugget": 0.25}
TURNED = (1.840353957013921, 2.37844800282112, 1.137482557976803), (1.965593773699845, 2.143233067897137)
EXPONENTIAL = (1.733621664297351, 2.585965156939239, 1.130652635064537)

# The variogram, and the means and variances of the other program.
SAME: dict[str, tuple[Variogram, tuple[float, ...], tuple[float, ...]]] = {
    "PyKrige, exponential, exact_values": (
        Variogram.from_pykrige("exponential", [2.25, 4.5, 0.25]),
        (1.733621664297351, 2.585965156939239, 1.0),
        (1.557931649401362, 1.578627154276288, 0.0),
    ),
    "PyKrige, exponential": (
        Variogram.from_pykrige("exponential", {"psill": 2.0, "range": 4.5, "nugget": 0.25}, exact_values=False),
        EXPONENTIAL,
        (1.557931649401362, 1.578627154276288, 0.466307595600026),
    ),
    "PyKrige, gaussian": (
        Variogram("gaussian", sill=2.25, range=4.0, nugget=0.25, range_is="pykrige"),
        (1.487122664652984, 2.764991022299126, 1.182935750070045),
        (0.645535699457038, 0.609576821085454, 0.435602166100839),
    ),
    "PyKrige, spherical": (
        Variogram("spherical", sill=2.25, range=4.0, nugget=0.25, range_is="pykrige"),
        (1.573908435592021, 2.691623362885641, 1.137094337762243),
        (1.206031148642334, 1.218061043441344, 0.460059158824999),
    ),
    "PyKrige, anisotropy": (
        Variogram.from_pykrige(
            "exponential", [2.25, 4.5, 0.25], exact_values=False, anisotropy_angle=30, anisotropy_scaling=2
        ),
        *TURNED,
    ),
    "GSTools, anisotropy": (Variogram("exponential", range=1.5, ratio=0.5, angle=30, **PARTS), *TURNED),
    "azimuth": (Variogram("exponential", range=1.5, ratio=0.5, azimuth=60, **PARTS), *TURNED),
    "GSTools, Gaussian": (
        Variogram("gaussian", range=2.0, range_is="gstools", **PARTS),
        (1.488650735185351, 2.764934808080878, 1.181693854612772),
        (0.658157044397305, 0.619647955690459, 0.436596814136612),
    ),
    "GSTools, Matern": (
        Variogram("matern", nu=1.5, range=2.0, range_is="gstools", **PARTS),
        (1.563819570012436, 2.730554249207765, 1.183097511673745),
        (0.56605412147596, 0.567750952384233, 0.423813931100302),
    ),
    "GSTools, Rational": (
        Variogram("rational", alpha=1.0, range=2.0, range_is="gstools", **PARTS),
        (1.584434993608315, 2.726488452238468, 1.173303033105588),
        (0.792517672280681, 0.763863613245504, 0.441825150898014),
    ),
    "GSTools, Spherical": (
        Variogram("spherical", range=2.0, range_is="gstools", **PARTS),
        (1.947892864123284, 2.453747529708178, 1.139423076923071),
        (2.19564079610746, 2.155595381783837, 0.472956730769232),
    ),
    "GSTools, Cubic": (
        Variogram("cubic", range=2.0, range_is="gstools", **PARTS),
        (2.112225742123298, 2.365000916442814, 1.135483135060424),
        (2.372654890777927, 2.356936275830536, 0.474234586042392),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_a_row_of_the_guide_gives_the_numbers_of_the_other_program(case: str) -> None:
    variogram, mean, variance = SAME[case]
    kriging = Kriging(variogram, of="observation", tolerance=1e-13, variance_gap=1e-9).fit((X, Y), Z)
    ours = kriging.predict(POINTS, return_variance=True)
    np.testing.assert_allclose(ours[0][: len(mean)], mean, rtol=1e-12)
    np.testing.assert_allclose(ours[1][: len(variance)], variance, rtol=3e-12, atol=1e-15)


def test_gstools_without_the_nugget_in_its_variance_is_the_signal() -> None:
    kriging = Kriging(Variogram("exponential", range=1.5, **PARTS), tolerance=1e-13, variance_gap=1e-9)
    mean, variance = kriging.fit((X, Y), Z).predict(POINTS, return_variance=True)
    np.testing.assert_allclose(mean, EXPONENTIAL, rtol=1e-12)
    np.testing.assert_allclose(variance, (1.307931649401362, 1.328627154276288, 0.216307595600026), rtol=3e-12)


def test_chords_and_great_circles_differ_in_the_sixth_digit() -> None:
    pytest.importorskip("pyproj")
    places = [(10, 50), (11, 50.5), (12, 49), (9.5, 51), (13, 52), (10.5, 48)]
    longitude, latitude = np.array(places, dtype=float).T
    kriging = Kriging(Variogram("exponential", range=150.0, **PARTS), crs=4326, tolerance=1e-13)
    mean = kriging.fit((longitude, latitude), Z).predict((np.array([11.0, 12.5]), np.array([50.0, 51.0])))
    np.testing.assert_allclose(mean, (1.549791519377123, 2.167602364852075), rtol=1e-12)
    great_circles = (1.549780634819752, 2.167593382137501)
    assert (np.abs(mean - great_circles) > 5e-6).all()
    np.testing.assert_allclose(mean, great_circles, rtol=1e-5)


def gstat_matern(argument: Any, kappa: float) -> Any:
    """Return the Matern correlation of gstat's documentation, of its scaled distance."""
    return argument**kappa * scipy.special.kv(kappa, argument) / (2.0 ** (kappa - 1.0) * math.gamma(kappa))


@pytest.mark.parametrize("kappa", [0.5, 1.5, 2.5])
def test_the_models_of_gstat_are_its_formulas(kappa: float) -> None:
    lag, a = np.array([10.0, 100.0, 500.0]), 120.0
    formulas = {
        "Exp": np.exp(-lag / a),
        "Gau": np.exp(-((lag / a) ** 2)),
        "Sph": np.where(lag < a, 1.0 - 1.5 * lag / a + 0.5 * (lag / a) ** 3, 0.0),
        "Mat": gstat_matern(lag / a, kappa),
        "Ste": gstat_matern(2.0 * math.sqrt(kappa) * lag / a, kappa),
    }
    for name, correlation in formulas.items():
        model = Variogram.from_gstat(name, psill=2.0, range=a, nugget=0.5, kappa=kappa)
        np.testing.assert_allclose(model.covariance(lag), 2.0 * correlation, rtol=1e-12)
        np.testing.assert_allclose(model(lag), 2.5 - 2.0 * correlation, rtol=1e-12)
        assert model.microscale_variance == 0.5
