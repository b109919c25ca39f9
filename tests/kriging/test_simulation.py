"""Conditional simulation: covariances of priors against the model's, and fields against kriging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError, OutputExistsError
from dkgp.kriging import Kriging, Variogram, empirical_variogram, simulation
from dkgp.kriging.layers import Store
from dkgp.kriging.priors import CirculantPrior, FourierPrior, Lattice, Series, series_for
from tests.kriging.test_maps import bytes_of
from tests.resuming import kill

SMOOTH = {
    "gaussian": Variogram("gaussian", psill=2.0, range=0.2),
    "matern32": Variogram("matern32", psill=2.0, range=0.2),
    "matern52": Variogram("matern52", psill=2.0, range=0.2),
    "rational": Variogram("rational", alpha=3.0, psill=2.0, range=0.2),
    "cubic": Variogram("cubic", psill=2.0, range=0.4),
    "wendland": Variogram("wendland", psill=2.0, range=0.4),
    "turned": Variogram("matern52", psill=2.0, range=0.3, ratio=0.5, angle=30.0),
    "nested": Variogram("gaussian", psill=1.0, range=0.3) + Variogram("matern52", psill=0.5, range=0.2),
}
# Rough at zero: their spectra fall slowly.
ROUGH = {
    "exponential": Variogram("exponential", psill=2.0, range=0.2),
    "spherical": Variogram("spherical", psill=2.0, range=0.4),
}


def covariance_of(series: Series, lags: Any) -> Any:
    """The covariance of a series, by its definition."""
    waves = [
        np.exp(2j * np.pi / period * np.multiply.outer(lags[:, axis], np.arange(0 if axis == 0 else -top, top + 1)))
        for axis, (period, top) in enumerate(zip(series.periods, series.highest, strict=True))
    ]
    if len(waves) == 1:
        return (waves[0] @ series.weights).real
    return np.einsum("pi,pi->p", waves[0] @ series.weights, waves[1]).real


@pytest.mark.parametrize("name", [*SMOOTH, *ROUGH])
def test_the_covariance_of_a_series_is_within_its_proven_error(name: str, rng: Any) -> None:
    variogram, wanted = {**SMOOTH, **ROUGH}[name], 1e-3 if name in SMOOTH else 0.05
    series = series_for(variogram, np.array([1.0, 0.7]), wanted)
    assert series.error <= wanted
    lags = np.concatenate([rng.uniform(-1, 1, (200, 2)) * (1.0, 0.7), [(0, 0), (1, 0.7), (1, -0.7), (0, 1e-3)]])
    true = variogram.covariance(np.linalg.norm(lags @ variogram.anisotropy(2).T, axis=1)) / variogram.field_variance
    off = np.abs(covariance_of(series, lags) - true)
    assert off.max() <= series.error
    # The bound is no guess of another size.
    assert off.max() >= 1e-3 * series.error


@pytest.mark.parametrize("model", ["matern52", "wendland", "spherical"])
def test_series_on_a_line(model: str) -> None:
    variogram = Variogram(model, psill=1.0, range=0.3)
    series = series_for(variogram, np.array([1.0]), 5e-3)
    lags = np.linspace(-1, 1, 101)[:, None]
    off = np.abs(covariance_of(series, lags) - variogram.covariance(lags[:, 0]))
    assert off.max() <= series.error <= 5e-3


def test_an_interpolated_series_is_the_sum_of_its_waves(rng: Any) -> None:
    variogram, points = SMOOTH["turned"], rng.random((80, 2))
    series = series_for(variogram, np.ptp(points, axis=0), 1e-2)
    prior = FourierPrior(series, points[:50], points[50:])
    drawn = np.concatenate(prior.draw(np.random.default_rng(3)))
    first, second = np.random.default_rng(3).standard_normal((2, *series.weights.shape))
    coefficients = (first - 1j * second) * np.sqrt(series.weights)
    steps = points - points.min(axis=0)
    waves = [
        np.exp(2j * np.pi / period * np.multiply.outer(column, np.arange(0 if axis == 0 else -top, top + 1)))
        for axis, (period, top, column) in enumerate(zip(series.periods, series.highest, steps.T, strict=True))
    ]
    expected = np.einsum("pi,pi->p", waves[0] @ coefficients, waves[1]).real
    np.testing.assert_allclose(drawn, expected, atol=1e-8)


def test_a_series_in_three_dimensions(rng: Any) -> None:
    variogram, points = Variogram("gaussian", psill=1.0, range=0.7), rng.random((40, 3))
    series = series_for(variogram, np.ptp(points, axis=0), 0.02)
    prior = FourierPrior(series, points[:20], points[20:])
    fields = np.array([np.concatenate(prior.draw(np.random.default_rng(k))) for k in range(400)])
    true = variogram.covariance(np.linalg.norm(points[:, None] - points, axis=2))
    # Five standard errors of products of normal numbers, and the proven error.
    assert np.abs(fields.T @ fields / 400 - true).max() <= 5.5 * np.sqrt(2 / 400) + series.error


def lattice(shape: tuple[int, int]) -> Lattice:
    rows, columns = (part.reshape(-1) for part in np.indices(shape))
    nodes = np.column_stack([rows, columns])
    return Lattice((0.1, 0.2), shape, nodes[:3], nodes)


@pytest.mark.parametrize("name", ["exponential", "spherical", "turned", "cubic"])
def test_circulant_fields_have_the_covariance_of_the_model(name: str) -> None:
    variogram, place = {**SMOOTH, **ROUGH}[name], lattice((6, 5))
    prior = CirculantPrior(variogram, place)
    assert prior.error <= 1e-13
    fields = np.array([prior.draw(np.random.default_rng(k))[1] for k in range(2000)])
    points = place.cells[:, ::-1] * (0.2, 0.1)
    lags = (points[:, None] - points) @ variogram.anisotropy(2).T
    true = variogram.covariance(np.linalg.norm(lags, axis=2)) / 2.0
    # The deviation of a mean of 2,000 products is at most sqrt(2 / 2000).
    assert np.abs(fields.T @ fields / 2000 - true).max() <= 5.0 * np.sqrt(2 / 2000)


def test_negative_eigenvalues_are_reported() -> None:
    """With ranges far beyond the lattice no embedding of 4 doublings is positive."""
    prior = CirculantPrior(Variogram("gaussian", psill=1.0, range=40.0), lattice((6, 5)))
    assert 1e-6 < prior.error < 1.0


@pytest.fixture
def samples(rng: Any) -> tuple[Any, Any]:
    x, y = rng.integers(0, 16, (2, 30)) / 2.0
    return (x, y), np.sin(x) + 0.3 * y + 0.1 * rng.standard_normal(30)


VARIOGRAM = Variogram("matern32", psill=1.0, range=2.0, nugget=0.1)
GRID: dict[str, Any] = {"region": (0.0, 7.5, 0.0, 7.5), "spacing": 0.5}


METHODS = [(method, kind) for method in ("circulant", "fourier", "cholesky") for kind in ("ordinary", "simple")]


@pytest.mark.spread(3)
@pytest.mark.parametrize(("method", "kind"), [*METHODS, ("features", "ordinary")])
def test_fields_have_the_mean_and_variance_of_kriging(method: str, kind: str, samples: Any) -> None:
    known: dict[str, Any] = {"mean": 1.0} if kind == "simple" else {}
    kriging = Kriging(VARIOGRAM, kind=kind, tolerance=1e-8, variance_gap=1e-3, **known).fit(*samples)
    count = {"fourier": 100, "features": 25}.get(method, 400)
    fields = kriging.simulate(count, method=method, seed=1, error=5e-3, **GRID)
    values = fields["scalars"].values.reshape(count, -1)
    x, y = np.meshgrid(fields["easting"], fields["northing"])
    mean, variance = kriging.predict((x.ravel(), y.ravel()), return_variance=True)
    # Correlated cells: some 100 independent ones, within five standard errors.
    assert np.abs((values.mean(axis=0) - mean) / np.sqrt(variance / count)).max() <= 5.0
    ratio = values.var(axis=0, ddof=1) / variance
    assert np.abs(ratio - 1.0).max() <= 5.0 * np.sqrt(2.0 / count)
    assert fields.attrs["method"] == method
    if method != "features":
        assert fields.attrs["conditional_variance_error"] < 0.2


@pytest.mark.parametrize(("nugget", "of"), [(0.2, "field"), (0.0, "signal")])
def test_fields_without_errors_pass_through_the_samples(nugget: float, of: str, samples: Any) -> None:
    variogram = Variogram("exponential", psill=1.0, range=2.0, nugget=nugget, nugget_is="microscale")
    (x, y), z = samples
    kriging = Kriging(variogram, of=of, duplicates="first").fit((x, y), z)
    fields = kriging.simulate(3, seed=2, **GRID)
    assert fields.attrs["method"] == "circulant"
    values = kriging.field_.values[:, 0]
    at = kriging.field_.space.places((x, y))
    for place, row in zip(at, kriging.field_.sample_at(at), strict=True):
        here = fields["scalars"].sel(easting=place[0], northing=place[1])
        assert (here.values == values[row]).all()
    # Elsewhere the fields differ.
    assert fields["scalars"].std("field").max() > 0.5


def test_a_field_is_the_same_for_every_number_of_fields(samples: Any) -> None:
    kriging = Kriging(VARIOGRAM).fit(*samples)
    few, many = (kriging.simulate(count, seed=5, **GRID)["scalars"].values for count in (2, 4))
    np.testing.assert_allclose(few, many[:2], atol=1e-4)
    assert np.abs(many[0] - many[1]).max() > 0.5
    other = kriging.simulate(1, seed=6, **GRID)["scalars"].values
    assert np.abs(other[0] - many[0]).max() > 0.5


def test_a_store_has_the_same_bits(samples: Any, tmp_path: Path) -> None:
    import xarray

    kriging = Kriging(VARIOGRAM).fit(*samples)
    out = tmp_path / "fields.zarr"
    assert kriging.simulate(2, out=out, **GRID) is None
    stored = xarray.open_zarr(out)
    expected = kriging.simulate(2, **GRID)
    assert (stored["z"].values == expected["scalars"].values).all()
    assert stored.attrs["method"] == "circulant"
    with pytest.raises(OutputExistsError, match="already exists. Choose another path, or give `overwrite`"):
        kriging.simulate(2, out=out, **GRID)
    kriging.simulate(2, out=out, overwrite=True, seed=1, **GRID)
    assert xarray.open_zarr(out).attrs["seed"] == 1
    assert list(tmp_path.iterdir()) == [out]


def test_an_interrupted_simulation_ends_in_the_same_bytes(samples: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(simulation, "BATCH_BYTES", 1)  # a field a batch
    kriging = Kriging(VARIOGRAM).fit(*samples)
    out, whole, written = tmp_path / "fields.zarr", tmp_path / "whole.zarr", []
    kriging.simulate(3, out=whole, **GRID)
    write = Store.write

    def stopping(store: Store, number: int, *arguments: Any) -> None:
        written.append(number)
        if written == [0, 1]:
            raise KeyboardInterrupt
        write(store, number, *arguments)

    monkeypatch.setattr(Store, "write", stopping)
    with pytest.raises(KeyboardInterrupt):
        kriging.simulate(3, out=out, **GRID)
    with pytest.raises(InputError, match="the unfinished fields of .* are of another model, grid or settings"):
        kriging.simulate(3, out=out, resume=True, seed=1, **GRID)
    kriging.simulate(3, out=out, resume=True, **GRID)
    assert written == [0, 1, 1, 2]
    assert bytes_of(out) == bytes_of(whole)
    assert sorted(tmp_path.iterdir()) == [out, whole]


# Kills its process at the call by number of a method of the store.
KILLED = """
import os, signal, sys
import dkgp.kriging.simulation as simulation
from dkgp.kriging import Kriging
from dkgp.kriging.layers import Store

url, out, name, last = sys.argv[1:]
simulation.BATCH_BYTES = 1
original, calls = getattr(Store, name), []

def counted(*arguments, **options):
    calls.append(1)
    if len(calls) > int(last):
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)

setattr(Store, name, counted)
Kriging.load(url).simulate(3, region=(0.0, 9.0, 0.0, 9.0), spacing=0.5, out=out)
"""


@pytest.mark.faults
@pytest.mark.parametrize(("name", "last"), [("write", 0), ("write", 2), ("finish", 1), ("__exit__", 0)])
def test_a_killed_simulation_ends_in_the_same_bytes(
    samples: Any, tmp_path: Path, monkeypatch: Any, name: str, last: int
) -> None:
    monkeypatch.setattr(simulation, "BATCH_BYTES", 1)
    Kriging(VARIOGRAM).fit(*samples).save(tmp_path / "field")
    kriging = Kriging.load(tmp_path / "field")
    grid: dict[str, Any] = {"region": (0.0, 9.0, 0.0, 9.0), "spacing": 0.5}
    kriging.simulate(3, out=tmp_path / "whole.zarr", **grid)
    out = tmp_path / "fields.zarr"
    kill(KILLED, tmp_path / "field", out, name, last)
    assert not out.exists()
    kriging.simulate(3, out=out, resume=True, **grid)
    assert bytes_of(out) == bytes_of(tmp_path / "whole.zarr")


def test_methods_are_refused_where_they_do_not_apply(samples: Any) -> None:
    (x, y), z = samples
    kriging = Kriging(Variogram("exponential", psill=1.0, range=2.0, nugget=0.1)).fit((x + 0.1 * (y > 4.0), y), z)
    count = int((np.unique(np.column_stack([x, y]), axis=0)[:, 1] > 4.0).sum())
    with pytest.raises(
        InputError, match=f"lie on the grid's lattice \\({count} of .* do not\\); take `method` fourier"
    ):
        kriging.simulate(1, method="circulant", **GRID)
    with pytest.raises(InputError, match="covariance of `method` fourier is proven within .* `error` 0.0001"):
        kriging.simulate(1, method="fourier", **GRID)
    with pytest.raises(InputError, match="at most 4,000 samples and cells together"):
        kriging.simulate(1, method="cholesky", region=GRID["region"], spacing=0.1)
    with pytest.raises(InputError, match="lies 0.1 from its node, and `snap` 0.05"):
        kriging.simulate(1, snap=0.05, **GRID)
    with pytest.raises(InputError, match="`method` is one of auto, circulant"):
        kriging.simulate(1, method="turning-bands", **GRID)
    snapped = kriging.simulate(1, snap=True, **GRID)
    assert snapped.attrs["snap_deviation"] == pytest.approx(np.sqrt(2.0 * (1.0 - np.exp(-0.05))))


def test_the_variogram_of_simulated_fields_is_the_models() -> None:
    """100 fields of an exponential variogram, far from their samples: the mean of their empirical variograms."""
    variogram = Variogram("exponential", psill=1.0, range=3.0)
    kriging = Kriging(variogram, kind="simple", mean=0.0).fit(([-100.0, -101.0], [0.0, 0.0]), np.array([0.0, 0.1]))
    fields = kriging.simulate(100, region=(0.0, 24.0, 0.0, 24.0), spacing=1.0, method="circulant", seed=0)
    x, y = (part.ravel() for part in np.meshgrid(fields["easting"], fields["northing"]))
    empirical = [
        empirical_variogram((x, y), values.ravel(), bins=np.arange(0.5, 9.0, 2.0), metric="plane")
        for values in fields["scalars"].values
    ]
    gamma = np.array([one.gamma for one in empirical])
    error = gamma.std(axis=0, ddof=1) / 10.0
    exact = variogram(empirical[0].lag)
    # The mean over a bin's lags is not the value at its mean lag: 2 % here at most.
    assert (np.abs(gamma.mean(axis=0) - exact) <= 4.0 * error + 0.02 * exact).all()


def test_masks_and_covariates(samples: Any) -> None:
    """Cells outside a mask are empty, the others have the same values; the drift follows its covariate."""
    (x, y), z = samples
    kriging = Kriging(VARIOGRAM, of="observation").fit((x, y), z)
    mask = np.arange(256).reshape(16, 16) % 3 > 0
    masks: list[dict[str, Any]] = [{}, {"mask": mask}]
    whole, part = (
        kriging.simulate(1, seed=4, method="circulant", **GRID, **more)["scalars"].values[0] for more in masks
    )
    assert (np.isnan(part) == ~mask).all()
    np.testing.assert_allclose(part[mask], whole[mask], atol=1e-4)
    slope = np.add.outer(np.arange(16.0), np.zeros(16)) ** 2
    drifting = Kriging(VARIOGRAM, kind="universal", covariates=["slope"])
    drifting.fit((x, y), z + 100.0 * y**2, covariates={"slope": (2.0 * y) ** 2})
    fields = drifting.simulate(40, method="circulant", covariates={"slope": slope}, **GRID)["scalars"].values
    mean = drifting.grid(covariates={"slope": slope}, **GRID)["scalars"].values
    assert np.abs(fields.mean(axis=0) - mean).max() < 5.0 * 1.2 / np.sqrt(40)


def test_a_wrong_prior_changes_conditional_variances_within_the_bound(rng: Any) -> None:
    """The variance of fields of a coarse series, from dense matrices, against that of kriging."""
    variogram, points = ROUGH["exponential"], rng.random((40, 2))
    at, cells = points[:25], points[25:]
    series = series_for(variogram, np.ptp(points, axis=0), 0.05)

    def conditional(covariance: Any) -> Any:
        K, k = covariance(at[:, None] - at), covariance(at[:, None] - cells)
        return 1.0 - 2.0 * (weights * k).sum(axis=0) + np.einsum("nr,nm,mr->r", weights, K + 0.05 * np.eye(25), weights)

    def exact(lags: Any) -> Any:
        return variogram.covariance(np.linalg.norm(lags, axis=-1)) / 2.0

    def drawn(lags: Any) -> Any:
        return covariance_of(series, lags.reshape(-1, 2)).reshape(lags.shape[:-1])

    weights = np.linalg.solve(exact(at[:, None] - at) + 0.05 * np.eye(25), exact(at[:, None] - cells))
    off = np.abs(conditional(drawn) + drawn(np.zeros((1, 2)))[0] - 1.0 - conditional(exact))
    bound = series.error * (1.0 + np.abs(weights).sum(axis=0)) ** 2
    assert (off <= bound).all()
    assert (off > 1e-3 * bound).any()
