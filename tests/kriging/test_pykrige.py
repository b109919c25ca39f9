"""The classes with PyKrige's arguments, against numbers of PyKrige 1.7.3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging import OrdinaryKriging, SimpleKriging, UniversalKriging, Variogram

X = np.array([(0, 0), (1, 0), (0, 2), (3, 1), (2, 3), (4, 4)], dtype=float)
Z = np.array([1, 2, 0.5, 3, 2.5, 4])
AXIS = np.array([0, 1, 3, 4.0])
RASTER = np.array([[0, 1, 0.3, 2], [1.5, 0.2, 0.8, 1], [2, 2.2, 0.1, 0], [0.4, 0.5, 3, 1]])
DISTANCE = np.array([0, 1, 0.3, 2, 1.7, 2.9])
LIST: list[Any] = ["exponential", [2.25, 4.5, 0.25]]
TURNED: dict[str, Any] = {"anisotropy_scaling": 2.0, "anisotropy_angle": 30.0}

# Arguments, then means and variances at (1, 1), (2.5, 2) and the sample (0, 0).
CASES: dict[str, tuple[Any, list[Any], dict[str, Any], list[float], list[float]]] = {
    "exact": (
        OrdinaryKriging,
        LIST,
        {},
        [1.7336216642973512, 2.585965156939239, 1.0],
        [1.5579316494013618, 1.5786271542762877, 0.0],
    ),
    "filtered": (
        OrdinaryKriging,
        LIST,
        {"exact_values": False},
        [1.7336216642973512, 2.585965156939239, 1.1306526350645372],
        [1.5579316494013618, 1.5786271542762877, 0.46630759560002616],
    ),
    "gaussian, dict": (
        OrdinaryKriging,
        ["gaussian", {"psill": 2.0, "range": 3.0, "nugget": 0.1}],
        {},
        [1.557009794865487, 2.7705231442974014, 1.0],
        [0.8109619614544487, 0.7165055526197887, 0.0],
    ),
    "spherical, turned": (
        OrdinaryKriging,
        ["spherical", [2.25, 4.0, 0.25]],
        TURNED,
        [1.6792482962392157, 2.4718517715834416, 1.0],
        [1.8289747582125648, 2.157005929167852, 0.0],
    ),
    "spherical, squeezed": (
        OrdinaryKriging,
        ["spherical", {"sill": 2.25, "range": 4.0, "nugget": 0.25}],
        {"anisotropy_scaling": 0.5, "anisotropy_angle": 30.0},
        [1.5522531625824176, 2.722138723932538, 1.0],
        [0.9226917895420358, 0.7876442711039888, 0.0],
    ),
    "fitted": (
        OrdinaryKriging,
        ["exponential", None],
        {"nlags": 4},
        [1.6692825168966683, 2.650730100684866, 1.0],
        [1.607232725553823, 1.612247512098771, 0.0],
    ),
    "fitted, weighted": (
        OrdinaryKriging,
        ["spherical", None],
        {"nlags": 4, "weight": True},
        [2.1760344667400546, 2.2211467770720037, 1.0],
        [1.4345669340228033, 1.4416427725024747, 0.0],
    ),
    "linear drift": (
        UniversalKriging,
        LIST,
        {"drift_terms": ["regional_linear"]},
        [1.6768187729535975, 2.7786442361339714, 1.0],
        [1.559024099860617, 1.5915248410307834, 0.0],
    ),
    "no drift": (
        UniversalKriging,
        LIST,
        {},
        [1.7336216642973512, 2.585965156939239, 1.0],
        [1.5579316494013618, 1.5786271542762877, 0.0],
    ),
    "external drift": (
        UniversalKriging,
        LIST,
        {
            "drift_terms": ["external_Z"],
            "external_drift": RASTER,
            "external_drift_x": AXIS,
            "external_drift_y": AXIS,
        },
        [1.8375790174507747, 2.632731860973662, 1.0],
        [2.235176240189943, 1.7156864969744983, 0.0],
    ),
    "functions": (
        UniversalKriging,
        LIST,
        {"drift_terms": ["functional"], "functional_drift": [lambda x, y: x * y], **TURNED},
        [1.6708469937447927, 2.2851277022274594, 1.0],
        [1.9836226254897174, 2.1486975025848833, 0.0],
    ),
    "specified drift": (
        UniversalKriging,
        LIST,
        {"drift_terms": ["specified"], "specified_drift": [DISTANCE]},
        [1.562535190310394, 2.456980462468451, 1.0],
        [1.566661080943181, 1.5835888596294283, 0.0],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_pykrige(case: str) -> None:
    form, arguments, settings, means, variances = CASES[case]
    more = {"specified_drift_arrays": [np.array([0.8, 1.6, 0.0])]} if case == "specified drift" else {}
    z, ss = form(*X.T, Z, *arguments, **settings).execute("points", [1.0, 2.5, 0.0], [1.0, 2.0, 0.0], **more)
    np.testing.assert_allclose(z, means, rtol=1e-8)
    np.testing.assert_allclose(ss, variances, rtol=1e-8, atol=1e-12)


def test_a_grid_and_a_masked_grid() -> None:
    kriging = OrdinaryKriging(*X.T, Z, "spherical", [2.25, 4.0, 0.25])
    z, ss = kriging.execute("grid", [0.0, 1.5], [1.0, 2.0, 3.0])
    means = [
        [1.0105686617225436, 1.9489564383826843],
        [0.5, 1.8924360045265383],
        [1.3459095249962392, 2.109297456553298],
    ]
    variances = [
        [1.110294659688562, 1.2709318610513436],
        [0.0, 1.2717918026942314],
        [1.5839633884972568, 1.022061676650382],
    ]
    np.testing.assert_allclose(z, means, rtol=1e-10)
    np.testing.assert_allclose(ss, variances, rtol=1e-10, atol=1e-12)
    mask = np.array([[True, False], [False, False], [False, True]])
    for given in (mask, mask.T):
        masked, variance = kriging.execute("masked", [0.0, 1.5], [1.0, 2.0, 3.0], mask=given)
        assert (masked.mask == mask).all()
        assert (variance.mask == mask).all()
        np.testing.assert_array_equal(masked.compressed(), z[~mask])


def test_simple_kriging_with_a_known_mean() -> None:
    z, ss = SimpleKriging(*X.T, Z, *LIST, mean=2.0).execute("points", [1.0, 2.5], [1.0, 2.0])
    np.testing.assert_allclose(z, (1.6968260156356807, 2.536838503061036), rtol=1e-11)
    np.testing.assert_allclose(ss - 0.25, (1.2975331422071683, 1.3100913071640088), rtol=1e-11)


def test_geographic_coordinates_are_those_of_chords() -> None:
    places = np.array([(10, 50), (11, 50.5), (12, 49), (9.5, 51), (13, 52), (10.5, 48)], dtype=float)
    degrees = np.degrees(3 * 150.0 / 6371.0)
    kriging = OrdinaryKriging(*places.T, Z, "exponential", [2.25, degrees, 0.25], coordinates_type="geographic")
    z, ss = kriging.execute("points", [11, 12.5], [50, 51])
    np.testing.assert_allclose(z, (1.5497915193771, 2.1676023648521), rtol=3e-13)
    np.testing.assert_allclose(ss, (1.1518173431694, 1.6671890476036), rtol=3e-12)
    # PyKrige's arcs differ in the sixth digit.
    np.testing.assert_allclose(z, (1.5497806348198, 2.1675933821375), rtol=1e-5)
    np.testing.assert_allclose(kriging.variogram_model_parameters, [2.0, degrees, 0.25], rtol=1e-12)


def test_parameters_are_in_the_conventions_of_pykrige() -> None:
    for scaling in (1.0, 3.0, 0.4):
        kriging = OrdinaryKriging(*X.T, Z, "gaussian", [2.0, 3.0, 0.5], anisotropy_scaling=scaling)
        np.testing.assert_allclose(kriging.variogram_model_parameters, [1.5, 3.0, 0.5], rtol=1e-14)


def test_a_variogram_takes_the_place_of_a_name() -> None:
    variogram = Variogram("matern32", psill=2.0, range=1.5, nugget=0.25)
    exact, filtered = (OrdinaryKriging(*X.T, Z, variogram, exact_values=exact) for exact in (True, False))
    assert exact.variogram.nugget == (0.0, 0.25)
    assert filtered.variogram.nugget == (0.25, 0.0)
    z, ss = filtered.execute("points", [1.0, 2.5], [1.0, 2.0])
    np.testing.assert_allclose(z, (1.6133749657989, 2.6996833171162), rtol=1e-12)
    np.testing.assert_allclose(ss, (1.1322790382387, 1.1047196037849), rtol=1e-12)


REFUSED: dict[str, tuple[Any, list[Any], dict[str, Any], str]] = {
    "linear": (OrdinaryKriging, ["linear"], {}, "a linear variogram has no sill, so no covariance; take matern32"),
    "power": (OrdinaryKriging, ["power", [1, 1, 0]], {}, "a power variogram has no sill"),
    "hole-effect": (OrdinaryKriging, ["hole-effect", [1, 1, 0]], {}, "a covariance in one dimension only"),
    "pseudo-inverse": (OrdinaryKriging, LIST, {"pseudo_inv": True}, "got pseudo_inv=True, .*give a nugget"),
    "plots": (OrdinaryKriging, LIST, {"enable_plotting": True}, "enable_plotting=True, which dkgp does not do: plot"),
    "unknown": (OrdinaryKriging, LIST, {"nlag": 3}, "there is no argument 'nlag'"),
    "metric": (OrdinaryKriging, LIST, {"coordinates_type": "polar"}, "euclidean or geographic; got 'polar'"),
    "arcs": (
        OrdinaryKriging,
        ["gaussian", [1, 3, 0]],
        {"coordinates_type": "geographic"},
        "a gaussian variogram of great-circle distances is no covariance; take exponential",
    ),
    "turned globe": (
        OrdinaryKriging,
        LIST,
        {"coordinates_type": "geographic", "anisotropy_scaling": 2.0},
        "anisotropy has no meaning on the globe",
    ),
    "wells": (UniversalKriging, LIST, {"drift_terms": ["point_log"]}, "got point_log. For point_log, pass"),
    "no raster": (UniversalKriging, LIST, {"drift_terms": ["external_Z"]}, "external_Z needs `external_drift`"),
    "no functions": (UniversalKriging, LIST, {"drift_terms": ["functional"]}, "needs `functional_drift`"),
    "small raster": (
        UniversalKriging,
        LIST,
        {
            "drift_terms": ["external_Z"],
            "external_drift": RASTER,
            "external_drift_x": AXIS,
            "external_drift_y": AXIS / 2,
        },
        r"the external drift is missing at 2 of 6 points, first at \(2, 3\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_without_a_meaning_here_are_refused(case: str) -> None:
    form, arguments, settings, words = REFUSED[case]
    with pytest.raises(InputError, match=words):
        form(*X.T, Z, *arguments, **settings)


EXECUTED: dict[str, tuple[dict[str, Any], str]] = {
    "neighbours": ({"n_closest_points": 4}, "n_closest_points=4: dkgp takes all samples; leave it out"),
    "style": ({"style": "cells"}, "`style` is grid, masked or points; got 'cells'"),
    "no mask": ({"style": "masked"}, r"needs a `mask` of shape \(2, 3\); got \(\)"),
    "points": ({"style": "points"}, "points have as many x as y; got 3 and 2"),
    "backend": ({"backend": "gpu"}, "`backend` is one of vectorized, loop, C"),
}


@pytest.mark.parametrize("case", EXECUTED)
def test_searches_and_other_styles_are_refused(case: str) -> None:
    settings, words = EXECUTED[case]
    kriging = OrdinaryKriging(*X.T, Z, *LIST)
    with pytest.raises(InputError, match=words):
        kriging.execute(**{"style": "grid", "xpoints": [0, 1, 2], "ypoints": [0, 1], **settings})


def test_specified_drifts_are_asked_for_at_points() -> None:
    kriging = UniversalKriging(*X.T, Z, *LIST, drift_terms=["specified"], specified_drift=[DISTANCE])
    with pytest.raises(InputError, match="pass `specified_drift_arrays`"):
        kriging.execute("points", [1.0], [1.0])
    with pytest.raises(InputError, match=r"a specified drift has shape \(2,\); expected \(1,\)"):
        kriging.execute("points", [1.0], [1.0], specified_drift_arrays=[np.zeros(2)])
