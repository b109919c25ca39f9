"""The classes with PyKrige's arguments, against numbers of PyKrige 1.7.3.

Where PyKrige fitted the variogram, both have the parameters at which it ended; another test compares the fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging import (
    OrdinaryKriging,
    OrdinaryKriging3D,
    SimpleKriging,
    UniversalKriging,
    UniversalKriging3D,
    Variogram,
)
from dkgp.kriging.crossvalidation import sequential_statistics

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
        ["exponential", {"psill": 2.933687367154414, "range": 5.328427124746189, "nugget": 0.0}],
        {},
        [1.6692825168966683, 2.650730100684866, 1.0],
        [1.607232725553823, 1.612247512098771, 0.0],
    ),
    "fitted, weighted": (
        OrdinaryKriging,
        ["spherical", {"psill": 1.1491044612669852, "range": 1.3321067811865475, "nugget": 0.10840608166336453}],
        {},
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


X3 = np.array([(0, 0, 0), (1, 0, 0.5), (0, 2, 1), (3, 1, 0.2), (2, 3, 1.5), (4, 4, 0.8), (1.5, 1, 2)])
Z3 = np.array([1, 2, 0.5, 3, 2.5, 4, 1.7])
DISTANCE_3D = np.array([0, 1, 0.3, 2, 1.7, 2.9, 0.6])
ANGLES: dict[str, Any] = {"anisotropy_angle_x": 20.0, "anisotropy_angle_y": 35.0, "anisotropy_angle_z": 50.0}
STRETCHED: dict[str, Any] = {"anisotropy_scaling_y": 2.0, "anisotropy_scaling_z": 3.0, **ANGLES}

# As above in three dimensions, at (1, 1, .5), (2.5, 2, 1.2) and the sample (0, 0, 0); then Q1, Q2 and cR.
CASES_3D: dict[str, tuple[Any, list[Any], dict[str, Any], list[float], list[float], list[float]]] = {
    "exact": (
        OrdinaryKriging3D,
        LIST,
        {},
        [1.7007571005022664, 2.455515845586109, 1.0],
        [1.5361731879488572, 1.6393200810136959, 0.0],
        [0.5208419665511103, 0.7363969546575316, 1.8860429527902967],
    ),
    "turned": (
        OrdinaryKriging3D,
        ["spherical", {"psill": 2.0, "range": 5.0, "nugget": 0.25}],
        {"exact_values": False, **STRETCHED},
        [1.6350509033615312, 2.661541633824399, 1.1040783556254279],
        [1.5560601398218437, 1.6353375177101799, 0.47390440705915293],
        [0.49055248319230704, 0.7027494250311552, 2.056561856560031],
    ),
    "squeezed": (
        OrdinaryKriging3D,
        ["gaussian", [2.25, 4.0, 0.25]],
        {"anisotropy_scaling_y": 0.5, "anisotropy_scaling_z": 1.6, **ANGLES},
        [1.4117475771821566, 2.627761783318705, 1.0],
        [0.5554334261035339, 0.5132166460378726, 0.0],
        [0.33167107409300334, 0.8115110474765711, 1.640988415672529],
    ),
    "a quarter turn": (
        OrdinaryKriging3D,
        LIST,
        {
            "anisotropy_scaling_y": 1.5,
            "anisotropy_scaling_z": 0.4,
            "anisotropy_angle_y": 90.0,
            "anisotropy_angle_z": -70.0,
        },
        [1.8193343590284852, 1.9800300159914885, 1.0],
        [1.355262416333192, 1.5006099617350226, 0.0],
        [0.6297733321267138, 0.9343323283383891, 2.227896691055037],
    ),
    "fitted": (
        OrdinaryKriging3D,
        ["exponential", {"psill": 1.0958180022015929, "range": 7.108581192955379, "nugget": 0.0}],
        STRETCHED,
        [1.7124362087461273, 2.609702926095687, 1.0],
        [0.7006719910919864, 0.7414440135419191, 0.0],
        [0.6535927138002289, 1.4785976917954238, 1.8654990173405774],
    ),
    "linear drift": (
        UniversalKriging3D,
        LIST,
        {"drift_terms": ["regional_linear"]},
        [1.6655296725947528, 2.7174439536268804, 1.0],
        [1.6172974195296814, 1.6813368117617333, 0.0],
        [0.5208419665511103, 0.7363969546575316, 1.8860429527902967],
    ),
    "functions": (
        UniversalKriging3D,
        LIST,
        {"drift_terms": ["functional"], "functional_drift": [lambda x, y, z: x * y + z**2], **STRETCHED},
        [1.995102971477715, 2.392597555505462, 1.0],
        [2.1878984577408676, 2.0789724606816202, 0.0],
        [0.4842190606479229, 0.7254478702506117, 2.1373987849203373],
    ),
    "specified drift": (
        UniversalKriging3D,
        LIST,
        {"drift_terms": ["specified"], "specified_drift": [DISTANCE_3D]},
        [1.635563997672564, 2.523071085194349, 1.0],
        [1.5374251858019086, 1.6406644496081992, 0.0],
        [0.5208419665511103, 0.7363969546575316, 1.8860429527902967],
    ),
}


@pytest.mark.parametrize("case", CASES_3D)
def test_numbers_in_three_dimensions_are_those_of_pykrige(case: str) -> None:
    form, arguments, settings, means, variances, statistics = CASES_3D[case]
    kriging = form(*X3.T, Z3, *arguments, **settings)
    more = {"specified_drift_arrays": [np.array([0.8, 1.6, 0.0])]} if case == "specified drift" else {}
    z, ss = kriging.execute("points", [1.0, 2.5, 0.0], [1.0, 2.0, 0.0], [0.5, 1.2, 0.0], **more)
    np.testing.assert_allclose(z, means, rtol=1e-8)
    np.testing.assert_allclose(ss, variances, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(kriging.get_statistics(), statistics, rtol=1e-10)


def _cost(kriging: Any, psill: float, length: float, nugget: float, weight: bool) -> float:
    """PyKrige's loss: soft L1 of the residuals, with logistic weights of the lags."""
    lag, gamma = kriging.empirical.lag, kriging.empirical.gamma
    if kriging.variogram.model == "exponential":
        model = psill * (1.0 - np.exp(-3.0 * lag / length)) + nugget
    else:
        short = np.minimum(lag / length, 1.0)
        model = psill * (1.5 * short - 0.5 * short**3) + nugget
    weights = np.ones_like(lag)
    if weight:
        spread = np.ptp(lag)
        weights = 1.0 / (1.0 + np.exp(-2.1972 / (0.1 * spread) * (0.7 * spread + lag.min() - lag)))
        weights /= weights.sum()
    return float((np.sqrt(1.0 + ((model - gamma) * weights) ** 2) - 1.0).sum())


@pytest.mark.parametrize(
    ("form", "model", "settings", "cases", "case"),
    [
        (OrdinaryKriging, "exponential", {}, CASES, "fitted"),
        (OrdinaryKriging, "spherical", {"weight": True}, CASES, "fitted, weighted"),
        (OrdinaryKriging3D, "exponential", {"weight": True, **STRETCHED}, CASES_3D, "fitted"),
    ],
)
def test_fits_end_where_those_of_pykrige_end(
    form: Any, model: str, settings: dict[str, Any], cases: dict[str, Any], case: str
) -> None:
    samples = (*X.T, Z) if form is OrdinaryKriging else (*X3.T, Z3)
    kriging = form(*samples, model, nlags=4, **settings)
    expected = list(cases[case][1][1].values())
    # The loss is flat at its minimum: the ends of two optimisers differ by more than their losses.
    np.testing.assert_allclose(kriging.variogram_model_parameters, expected, rtol=1e-6, atol=1e-12)
    weight = settings.get("weight", False)
    cost = _cost(kriging, *kriging.variogram_model_parameters, weight)
    assert cost == pytest.approx(_cost(kriging, *expected, weight), rel=1e-12)
    assert cost < _cost(kriging, *np.multiply(expected, (1.01, 1.0, 1.0)), weight)
    assert cost < _cost(kriging, *np.multiply(expected, (0.99, 1.0, 1.0)), weight)


def test_a_grid_in_three_dimensions() -> None:
    kriging = OrdinaryKriging3D(*X3.T, Z3, *LIST)
    z, ss = kriging.execute("grid", [0.0, 1.5], [1.0, 2.0, 3.0], [0.5, 1.0])
    means = [
        [[1.2752011534037824, 1.9861897535616828], [1.110280077862023, 1.9924531977653408], [1.5904876048491958] * 2],
        [[1.2718945834644058, 1.9141450515476959], [0.5, 1.9423770366683328], [1.5360986374768675] * 2],
    ]
    means[0][2][1], means[1][2][1] = 2.175750925032783, 2.1752744266138784
    np.testing.assert_allclose(z, means, rtol=1e-10)
    assert ss[1, 1, 0] == 0.0
    assert ss[0, 2, 1] == pytest.approx(1.7959415223081985, rel=1e-10)
    mask = np.zeros((1, 3, 2), dtype=bool)
    mask[0, 1, 1] = True
    for shown in (mask, mask.T):
        masked, _ = kriging.execute("masked", [0.0, 1.5], [1.0, 2.0, 3.0], [0.5], mask=shown)
        assert (masked.mask == mask).all()
        np.testing.assert_allclose(masked.compressed(), z[:1][~mask], rtol=1e-14)
    with pytest.raises(InputError, match="n_closest_points=3: dkgp takes all samples"):
        kriging.execute("points", [0.0], [0.0], [0.0], n_closest_points=3)
    with pytest.raises(InputError, match=r"`drift_terms` has some of regional_linear, specified, functional; got ext"):
        UniversalKriging3D(*X3.T, Z3, *LIST, drift_terms=["external_Z"])
    with pytest.raises(InputError, match="there is no argument 'anisotropy_scaling'"):
        OrdinaryKriging3D(*X3.T, Z3, *LIST, anisotropy_scaling=2.0)


def test_an_updated_variogram_is_that_of_a_new_object(capsys: Any) -> None:
    kriging = OrdinaryKriging(*X.T, Z, *LIST)
    kriging.update_variogram_model("spherical", [2.25, 4.0, 0.25], **TURNED)
    means, variances = CASES["spherical, turned"][3:]
    z, ss = kriging.execute("points", [1.0, 2.5, 0.0], [1.0, 2.0, 0.0])
    np.testing.assert_allclose(z, means, rtol=1e-8)
    np.testing.assert_allclose(ss, variances, rtol=1e-8, atol=1e-12)
    kriging.print_statistics()
    printed = [line.split(" = ") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in printed] == ["Q1", "Q2", "cR"]
    values = [float(value) for _, value in printed]
    np.testing.assert_allclose(values, (0.7749969936076083, 0.9278205531960362, 2.595684522058395), rtol=1e-10)
    new = OrdinaryKriging3D(*X3.T, Z3, *LIST, **STRETCHED)
    kriging = OrdinaryKriging3D(*X3.T, Z3, "gaussian", [3.0, 2.0, 1.0])
    kriging.update_variogram_model(*LIST, **STRETCHED)
    assert kriging.variogram == new.variogram
    assert kriging.get_statistics() == new.get_statistics()
    with pytest.raises(InputError, match="there is no argument 'anisotropy_angle'"):
        kriging.update_variogram_model(*LIST, anisotropy_angle=3.0)


def test_statistics_leave_out_later_samples_at_one_place() -> None:
    order = [0, 1, 6, 2, 3, 4, 5]
    places, values = np.vstack([X, X[1]])[order], np.append(Z, 2.4)[order]
    kriging = OrdinaryKriging(*places.T, values, *LIST, exact_values=False)
    expected = (0.6656112563877425, 0.8652132998717814, 2.262173236285377)
    np.testing.assert_allclose(kriging.get_statistics(), expected, rtol=1e-12)
    with pytest.raises(InputError, match=r"statistics are of at most 4,096 samples; got 5,000. Use `kriging.cross_"):
        sequential_statistics(np.zeros((5000, 2)), np.zeros(5000), kriging.variogram)


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
