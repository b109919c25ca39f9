"""Kriging of six samples against values computed with PyKrige, GSTools and NumPy, to 13 digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.kriging.field import Field, Solving
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
P = np.array([(1, 1), (2.5, 2), (0, 0)], dtype=float)
EXPONENTIAL = Variogram("exponential", psill=2, range=1.5, nugget=0.25)
GEOGRAPHIC = np.array([(10, 50), (11, 50.5), (12, 49), (9.5, 51), (13, 52), (10.5, 48)], dtype=float)


def kriged(variogram: Any, mean: Any, of: Any = "signal", *, extra: tuple[Any, ...] = ()) -> Any:
    X_all, Z_all = np.vstack([X, *(place for place, _ in extra)]), np.append(Z, [value for _, value in extra])
    space, n = Space(2), len(Z_all)
    errors = np.full(n, variogram.error_variance)
    samples = Samples(
        space.places(tuple(X_all.T)), Z_all[:, None], errors, variogram.microscale_variance, np.zeros((n, 0))
    )
    field = Field.fit(samples.once_a_place(), space, variogram, Solving(tolerance=1e-13), mean=mean)
    return field.at(space.places(tuple(P.T)), of, variance=True, gap=1e-6)


CASES = {
    "ordinary": (
        (EXPONENTIAL, "constant"),
        (1.7336216642973514, 2.5859651569392383, 1.130652635064538),
        (1.3079316494013618, 1.3286271542762882, 0.216307595600027),
    ),
    "ordinary, micro-scale": (
        (Variogram("exponential", psill=2, range=1.5, nugget=0.25, nugget_is="microscale"), "constant", "field"),
        (1.7336216642973514, 2.5859651569392383, 1.0),
        (1.5579316494013618, 1.5786271542762884, 0.0),
    ),
    "ordinary, micro-scale, observation": (
        (Variogram("exponential", psill=2, range=1.5, nugget=0.25, nugget_is="microscale"), "constant", "observation"),
        (1.7336216642973514, 2.5859651569392383, 1.0),
        (1.5579316494013618, 1.5786271542762884, 0.0),
    ),
    "simple": (
        (EXPONENTIAL, 2.0),
        (1.6968260156356807, 2.536838503061036, 1.1131054490557273),
        (1.2975331422071683, 1.3100913071640088, 0.2139428031536126),
    ),
    "universal": (
        (EXPONENTIAL, "linear"),
        (1.6768187729535975, 2.778644236133971, 0.996448284370925),
        (1.3090240998606175, 1.3415248410307838, 0.2231900229023364),
    ),
    "anisotropic": (
        (Variogram("exponential", psill=2, range=1.5, nugget=0.25, angle=30, ratio=0.5), "constant", "observation"),
        (1.8403539570139, 2.3784480028211),
        (1.9655937736998, 2.1432330678971),
    ),
    "anisotropic by azimuth": (
        (Variogram("exponential", psill=2, range=1.5, nugget=0.25, azimuth=60, ratio=0.5), "constant", "observation"),
        (1.8403539570139, 2.3784480028211),
        (1.9655937736998, 2.1432330678971),
    ),
    "spherical": (
        (Variogram("spherical", psill=2, range=4, nugget=0.25), "constant", "observation"),
        (1.573908435592, 2.6916233628856),
        (1.2060311486423, 1.2180610434413),
    ),
    "gaussian of GSTools": (
        (Variogram("gaussian", psill=2, range=1.5, range_is="gstools", nugget=0.25), "constant", "observation"),
        (1.5666011747586, 2.7455295031032),
        (1.0489318695741, 0.9635182809897),
    ),
    "stable of GSTools, 0.6": (
        (Variogram("stable", alpha=0.6, psill=2, range=1.5, nugget=0.25), "constant"),
        (1.835971891758597, 2.4877804094941025, 1.134818470578898),
        (1.4081787298513235, 1.4423250745122613, 0.21736028380963224),
    ),
    "stable of GSTools, 1.5": (
        (Variogram("stable", alpha=1.5, psill=2, range=1.5, nugget=0.25), "constant"),
        (1.6602971127904533, 2.662944655579292, 1.140137754963386),
        (1.1710710028300522, 1.1449913993292058, 0.21371850664317527),
    ),
    "matern32": (
        (Variogram("matern", nu=1.5, psill=2, range=1.5, nugget=0.25), "constant", "observation"),
        (1.6133749657989, 2.6996833171162),
        (1.1322790382387, 1.1047196037849),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_means_and_variances_are_those_of_other_programs(case: str) -> None:
    arguments, mean, variance = CASES[case]
    result = kriged(*arguments)
    np.testing.assert_allclose(result.mean[: len(mean), 0], mean, rtol=3e-13)
    np.testing.assert_allclose(result.variance[: len(mean), 0], variance, rtol=3e-12)
    assert (np.abs(result.mean[: len(mean), 0] - mean) <= result.mean_error_bound[: len(mean), 0] + 1e-13).all()


def test_a_replicate_is_merged_exactly() -> None:
    result = kriged(EXPONENTIAL, "constant", extra=(((1.0, 0.0), 2.6),))
    np.testing.assert_allclose(result.mean[:2, 0], (1.8500066133232, 2.6107782013262), rtol=3e-13)
    np.testing.assert_allclose(result.variance[:2, 0], (1.2926851666875, 1.3279341496575), rtol=3e-12)


def test_coefficients_of_drifts() -> None:
    space = Space(2)
    samples = Samples(space.places(tuple(X.T)), Z[:, None], np.full(6, 0.25), 0.0, np.zeros((6, 0)))
    field = Field.fit(samples, space, EXPONENTIAL, Solving(tolerance=1e-13), mean="constant")
    constant = field.record.summary["mean"]["coefficients"]["z"]["constant"]["value"]
    assert constant == pytest.approx(2.2909977770307557, rel=1e-13)


def test_distances_on_the_globe_are_chords() -> None:
    space = Space(2, "sphere")
    variogram = Variogram("exponential", psill=2, range=150.0, nugget=0.25)
    samples = Samples(space.places(tuple(GEOGRAPHIC.T)), Z[:, None], np.full(6, 0.25), 0.0, np.zeros((6, 0)))
    field = Field.fit(samples, space, variogram, Solving(tolerance=1e-13))
    result: Any = field.at(space.places(([11, 12.5], [50, 51])), "observation", variance=True, gap=1e-6)
    np.testing.assert_allclose(result.mean[:, 0], (1.5497915193771, 2.1676023648521), rtol=3e-13)
    np.testing.assert_allclose(result.variance[:, 0], (1.1518173431694, 1.6671890476036), rtol=3e-12)
