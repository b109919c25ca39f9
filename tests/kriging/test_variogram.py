"""Variogram models against GSTools 1.7.0 and PyKrige 1.7.3: conventions, fits and refusals."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging import Kriging
from dkgp.kriging.choices import FORM_NAMES
from dkgp.kriging.empirical import empirical_variogram
from dkgp.kriging.variogram import FORMS, Variogram

LAGS = np.array([0.5, 1.0, 2.0, 4.0])
# GSTools' `variogram` of var=2, len_scale=1.5, nugget=0.25, and PyKrige's functions of [2, 4, 0.25], at these lags.
GSTOOLS: dict[str, tuple[dict[str, float], tuple[float, ...]]] = {
    "Exponential": ({}, (0.8169373788524215, 1.223165761934816, 1.7228057237685466, 2.111033097554397)),
    "Gaussian": ({}, (0.41713426397728415, 0.8393066372393507, 1.7549597571521687, 2.24249290289956)),
    "Matern": ({"nu": 1.5}, (0.37755422955764373, 0.644299210789824, 1.2213211570883022, 1.9244260743500634)),
    "Rational": ({"alpha": 1.7}, (0.4540820112541466, 0.9024093075196287, 1.657647733907314, 2.128033374097888)),
    "Stable": (
        {"alpha": 0.6},
        (1.057722525007112, 1.3368960058757589, 1.640584183216004, 1.9198251349585425),
    ),
    "Spherical": ({}, (1.212962962962963, 1.9537037037037037, 2.25, 2.25)),
    "Cubic": ({}, (1.185528120713306, 2.1210562414266114, 2.25, 2.25)),
}
MATERN52 = (0.3377049681885189, 0.5601079480779656, 1.1350947134655265, 1.9212555912001195)
NAMES = {"Rational": "rational", "Matern": "matern32"}
PYKRIGE = {
    "exponential": (0.8754214424180555, 1.3052668945179706, 1.8037396797031404, 2.150425863264272),
    "gaussian": (0.34344944324985693, 0.5984059200997986, 1.3199136237318876, 2.156458755232082),
    "spherical": (0.623046875, 0.984375, 1.625, 2.25),
}
# Length of GSTools' Gaussian and rational models after their rescaling.
RESCALED = {"Gaussian": 1.5 * 2.0 / math.sqrt(math.pi)}


def gstools_model(name: str, **values: Any) -> Any:
    """Return an object with the attributes of a GSTools model."""
    length = RESCALED.get(name, 1.5)
    return type(name, (SimpleNamespace,), {})(
        var=2.0, nugget=0.25, len_rescaled=length, anis=[1.0], angles=[0.0], **values
    )


@pytest.mark.parametrize("name", GSTOOLS)
def test_models_of_gstools_have_their_values(name: str) -> None:
    values, expected = GSTOOLS[name]
    np.testing.assert_allclose(Variogram.from_gstools(gstools_model(name, **values))(LAGS), expected, rtol=1e-9)
    alpha: Any = values if "alpha" in values else {}
    model: Any = NAMES.get(name, name.lower())
    np.testing.assert_allclose(
        Variogram(model, psill=2, range=1.5, nugget=0.25, range_is="gstools", **alpha)(LAGS), expected, rtol=1e-9
    )


def test_a_stable_model_of_gstat_has_its_exponent() -> None:
    stable = Variogram.from_gstat("Exc", 2.0, 1.5, 0.25, kappa=0.6)
    assert (stable.model, stable.alpha) == ("stable", 0.6)
    np.testing.assert_allclose(stable(LAGS), GSTOOLS["Stable"][1], rtol=1e-13)


def test_matern52_has_the_values_of_gstools() -> None:
    np.testing.assert_allclose(Variogram.from_gstools(gstools_model("Matern", nu=2.5))(LAGS), MATERN52, rtol=1e-9)


@pytest.mark.parametrize("name", PYKRIGE)
def test_models_of_pykrige_have_their_values(name: str) -> None:
    for parameters in ([2.25, 4.0, 0.25], {"psill": 2.0, "range": 4.0, "nugget": 0.25}):
        np.testing.assert_allclose(Variogram.from_pykrige(name, parameters)(LAGS), PYKRIGE[name], rtol=1e-12)


def test_gstat_and_pykrige_axes_are_turned() -> None:
    gstat = Variogram.from_gstat("Exp", 2.0, 3.0, 0.1, anis=(60.0, 0.5))
    assert gstat.angle == 30.0
    assert gstat.ratio == (0.5, 1.0)
    assert gstat.nugget == (0.0, 0.1)
    # PyKrige's scaling below 1 stretches: the minor axis becomes the main one.
    stretched = Variogram.from_pykrige("spherical", [2.0, 4.0, 0.0], anisotropy_scaling=0.5, anisotropy_angle=30.0)
    assert (stretched.range, stretched.ratio, stretched.angle) == (8.0, (0.5, 1.0), 120.0)
    whittle = Variogram.from_gstat("Mat", 1.0, 2.0, kappa=1.5)
    u = 1.3 / 2.0  # gstat: (1 + h / a) exp(-h / a) for kappa = 1.5
    assert whittle.covariance(1.3) == pytest.approx((1.0 + u) * math.exp(-u), rel=1e-14)


# GSTools' `vario_spatial` of Exponential(var=2, len_scale=1.5).
PLANE = (0.5, 0.5236, ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), (1.17202368, 1.39872487, 1.28827341))
SPACE = (
    (0.5, 0.3),
    (0.4, 0.2, -0.7),
    ((1.0, 0.0, 0.0), (0.0, 1.0, 0.5), (1.0, 1.0, -1.0)),
    (1.18957445, 1.80510108, 1.58311345),
)


@pytest.mark.parametrize("case", [PLANE, SPACE])
def test_axes_are_those_of_gstools(case: Any) -> None:
    ratio, turned, steps, expected = case
    angles: dict[str, Any] = (
        {"angle": math.degrees(turned)} if np.isscalar(turned) else {"angles": tuple(map(math.degrees, turned))}
    )
    variogram = Variogram("exponential", psill=2, range=1.5, ratio=ratio, **angles)
    lags = np.linalg.norm(variogram.isotropic(np.array(steps)), axis=1)
    np.testing.assert_allclose(variogram(lags), expected, rtol=1e-8)


@pytest.mark.parametrize("name", FORMS)
def test_practical_and_integral_ranges_have_their_meaning(name: str) -> None:
    alpha = {"alpha": 1.7} if FORMS[name].shape else {}
    variogram = Variogram(name, psill=1.0, range=1.0, **alpha)
    practical = variogram.range_as("practical")
    compact = name in ("spherical", "cubic", "wendland")
    assert variogram.covariance(practical) == pytest.approx(0.0 if compact else 0.05, rel=1e-12, abs=1e-15)
    lags = np.geomspace(1e-6, 1e5, 400_000)
    integral = np.trapezoid(variogram.covariance(lags), lags) + lags[0]
    assert variogram.range_as("integral") == pytest.approx(integral, rel=1e-3)
    again = Variogram(name, psill=1.0, range=practical, range_is="practical", **alpha)
    assert again.range == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("name", FORMS)
def test_kernels_have_the_covariance_of_the_variogram(name: str) -> None:
    alpha = {"alpha": 1.7} if FORMS[name].shape else {}
    variogram = Variogram(name, psill=2.0, range=3.0, **alpha)
    x = np.random.default_rng(0).random((6, 2)) * 5.0
    lags = np.linalg.norm(x[:, None] - x[None], axis=2)
    kernel = variogram.to_kernel(2, unit=1.5)
    np.testing.assert_allclose(kernel.matrix(x / 1.5, x / 1.5), variogram.covariance(lags), rtol=1e-12, atol=1e-14)


def test_a_document_gives_the_same_variogram() -> None:
    nested = Variogram("spherical", psill=1.0, range=4.0, nugget=(0.1, 0.2), ratio=0.5, azimuth=30.0) + Variogram(
        "rational", psill=0.5, range=9.0, alpha=2.0, ratio=0.5, angle=60.0
    )
    assert Variogram.from_dict(nested.to_dict()) == nested
    assert nested(0.0) == 0.0
    assert nested.total_sill == pytest.approx(1.8)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    (
        {"sill": 0.6, "nugget": 0.9, "range": 1.0},
        "the nugget 0.9 exceeds the sill 0.6; sill= is nugget and partial sill together (psill= is without)",
    ),
    ({"psill": 1.0, "range": 0.0}, "`range` must be positive and finite; got 0"),
    ({"psill": 1.0, "range": -3.0}, "`range` must be positive and finite; got -3"),
    ({"psill": 1.0, "range": math.nan}, "`range` must be positive and finite"),
    ({"psill": -1.0, "range": 1.0}, "the partial sill must be positive and finite"),
    ({"range": 1.0}, "give `sill` (nugget and partial sill together) or `psill`"),
    ({"psill": 1.0, "range": 1.0, "nugget": -0.1}, "`nugget` is a variance of at least 0"),
    ({"psill": 1.0, "range": 1.0, "nugget_is": "noise"}, "`nugget_is` is one of error, microscale"),
    (
        {"model": "power", "psill": 1.0, "range": 1.0},
        "a power variogram has no sill, so no covariance; take matern32 with a range of several domains",
    ),
    ({"model": "linear", "psill": 1.0, "range": 1.0}, "a linear variogram has no sill, so no covariance"),
    (
        {"model": "hole-effect", "psill": 1.0, "range": 1.0},
        "a hole-effect variogram is a covariance in one dimension only; take exponential, matern32 or gaussian",
    ),
    ({"model": "stable", "psill": 1.0, "range": 1.0}, "`alpha` is the exponent of a rational or stable variogram"),
    (
        {"model": "stable", "psill": 1.0, "range": 1.0, "alpha": 2.1},
        "a stable variogram is a covariance for `alpha` up to 2; got 2.1",
    ),
    (
        {"model": "circular", "psill": 1.0, "range": 1.0},
        "unknown variogram model 'circular'; available: matern, exponential",
    ),
    ({"model": "matern", "nu": 0.7, "psill": 1.0, "range": 1.0}, "a matern variogram needs nu, one of 0.5, 1.5, 2.5"),
    ({"nu": 1.5, "psill": 1.0, "range": 1.0}, "`nu` belongs to the model matern"),
    ({"model": "rational", "psill": 1.0, "range": 1.0}, "`alpha` is the exponent of a rational or stable variogram"),
    (
        {"psill": 1.0, "range": 1.0, "angle": 30.0, "azimuth": 60.0},
        "give angle= (from east, counter-clockwise) or azimuth= (from north, clockwise), not both",
    ),
    ({"psill": 1.0, "range": 1.0, "ratio": 2.0}, "`ratio` is the minor axis over the main axis"),
    ({"psill": 1.0, "range": 1.0, "range_is": "sill"}, "`range_is` is one of scale, practical, integral"),
    ({"model": "cubic", "psill": 1.0, "range": 1.0, "range_is": "pykrige"}, "pykrige has no cubic variogram"),
]


@pytest.mark.parametrize(("values", "message"), REFUSALS)
def test_refusals_say_the_fault_and_the_remedy(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        Variogram(**values)
    assert message in str(refused.value)


def test_spherical_is_refused_in_four_dimensions() -> None:
    spherical = Variogram("spherical", psill=1.0, range=1.0)
    spherical.to_kernel(3)
    with pytest.raises(InputError, match=r"a spherical variogram is no covariance in 4 dimensions \(space and time"):
        spherical.to_kernel(4)


# --------------------------------------------------------------------------------------------------------------- fits


def exact_empirical(variogram: Variogram) -> Any:
    """Return an empirical variogram without sampling error."""
    lag = np.linspace(0.5, 12.0, 15)
    return SimpleNamespace(
        lag=lag,
        gamma=variogram(lag),
        count=np.arange(15) + 100,
        known=np.ones(15, dtype=bool),
        direction=None,
        edges=np.linspace(0.0, 12.0, 16),
        variance=2.0,
    )


@pytest.mark.parametrize("weights", ["cressie", "pairs", "pairs/h2", "equal"])
@pytest.mark.parametrize("name", ["exponential", "spherical", "gaussian"])
def test_a_fit_recovers_the_variogram(name: str, weights: str) -> None:
    truth = Variogram(name, psill=2.0, range=5.0, nugget=0.3)
    fitted = Variogram(name, psill=1.0, range=1.0).fit(exact_empirical(truth), weights=weights)
    assert fitted.psill == pytest.approx(2.0, rel=1e-6)
    assert fitted.range == pytest.approx(5.0, rel=1e-6)
    assert fitted.error_variance == pytest.approx(0.3, rel=1e-5)
    assert fitted.misfit(exact_empirical(truth)) < 1e-6


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "alpha"), [("stable", 0.6), ("stable", 1.5), ("stable", 2.0), ("rational", 0.7)])
def test_a_fit_recovers_the_exponent(name: str, alpha: float) -> None:
    truth = Variogram(name, psill=2.0, range=3.0, nugget=0.3, alpha=alpha)
    fitted = Variogram.fitted(name, exact_empirical(truth))
    assert fitted.alpha == pytest.approx(alpha, rel=1e-3)
    assert fitted.range == pytest.approx(3.0, rel=1e-2)
    assert fitted.misfit(exact_empirical(truth)) < 1e-4
    start = Variogram(name, psill=1.0, range=1.0, alpha=alpha)
    assert start.fit(exact_empirical(truth)).alpha == alpha
    with pytest.raises(InputError, match="`alpha` is fitted for a rational or stable variogram of one structure"):
        Variogram("exponential", psill=1.0, range=1.0).fit(exact_empirical(truth), free=("alpha",))


def test_fixed_values_stay_and_the_fit_is_the_least_misfit() -> None:
    empirical = exact_empirical(Variogram("exponential", psill=2.0, range=5.0, nugget=0.3))
    start = Variogram("spherical", psill=1.0, range=9.0, nugget=0.1, nugget_is="microscale")
    fitted = start.fit(empirical, weights="equal", free=("psill",))
    assert (fitted.range, fitted.error_variance) == (9.0, 0.0)
    assert fitted.microscale_variance == pytest.approx(0.1, rel=1e-15)
    rise = 1.0 - start.covariance(empirical.lag)
    assert fitted.psill == pytest.approx(float(rise @ (empirical.gamma - 0.1) / (rise @ rise)), rel=1e-12)


def test_fits_refuse_data_without_variation_and_too_few_bins() -> None:
    x = np.random.default_rng(0).random((2, 30))
    start = Variogram("exponential", psill=1.0, range=1.0)
    with pytest.raises(InputError, match="the semivariances are zero in all bins: the values do not vary"):
        start.fit(empirical_variogram(tuple(x), np.ones(30)))
    with pytest.raises(InputError, match="3 values need at least as many bins with pairs; got 1"):
        start.fit(empirical_variogram(tuple(x), x[0], bins=1))
    with pytest.raises(InputError, match="`weights` is one of cressie, pairs"):
        start.fit(empirical_variogram(tuple(x), x[0]), weights="none")


@pytest.mark.parametrize("exact", [True, False])
def test_an_object_of_pykrige_has_its_variogram(exact: bool) -> None:
    turned = {"anisotropy_scaling": 2.0, "anisotropy_angle": 30.0}
    psill, length, nugget = 2.0, 4.5, 0.25
    kriging = SimpleNamespace(
        variogram_model="exponential", variogram_model_parameters=[psill, length, nugget], exact_values=exact, **turned
    )
    expected = Variogram.from_pykrige("exponential", [psill + nugget, length, nugget], exact_values=exact, **turned)
    assert Variogram.from_pykrige(kriging) == expected
    with pytest.raises(InputError, match="the range of this object is in degrees of arc"):
        Variogram.from_pykrige(SimpleNamespace(**vars(kriging), coordinates_type="geographic"))
    with pytest.raises(InputError, match="give `parameters`"):
        Variogram.from_pykrige("exponential")


def test_a_fitted_object_of_pykrige_predicts_the_same(rng: np.random.Generator) -> None:
    pykrige = pytest.importorskip("pykrige")
    x, y = rng.uniform(0.0, 10.0, (2, 40))
    theirs = pykrige.OrdinaryKriging(
        x, y, np.sin(x) + y, variogram_model="exponential", anisotropy_scaling=3.0, anisotropy_angle=20.0
    )
    mean, variance = theirs.execute("points", x + 0.3, y)
    ours = Kriging(Variogram.from_pykrige(theirs), of="observation").fit((x, y), np.sin(x) + y)
    np.testing.assert_allclose(ours.predict((x + 0.3, y), return_variance=True), (mean, variance), rtol=1e-6, atol=1e-8)


def test_options_name_all_forms() -> None:
    assert tuple(FORMS) == FORM_NAMES
