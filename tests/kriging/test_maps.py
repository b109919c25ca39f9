"""Maps of a field: their bytes, their files as other programs read them, and the cells that are left out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from dkgp.cluster.executors.base import LocalExecutor
from dkgp.errors import InputError, InterruptedRunError, OutputExistsError, StorageError
from dkgp.kriging import geotiff, rasters
from dkgp.kriging.covariates import CovariateRasters
from dkgp.kriging.field import Field, Solving
from dkgp.kriging.geotiff import halved, to_single
from dkgp.kriging.grids import Grid
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.rasters import MapSettings, map_cells, map_in_memory, write_field
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.context import RunContext
from dkgp.models.prediction.predict import Destination
from dkgp.models.trend import Drift

KINDS = {name: (0, name) for name in (*rasters.MEANS, *rasters.VARIANCES)}


MODELS = ("exponential", "spherical", "cubic", "gaussian", "matern52", "stable")


def field_of(
    rng: Any,
    n: int = 60,
    *,
    crs: str | None = "EPSG:32611",
    drift: bool = False,
    time: bool = False,
    model: str = "exponential",
) -> Field:
    coordinates = tuple(rng.uniform(0, 100, size=n) for _ in range(3 if time else 2))
    space = Space.of(coordinates, crs, has_time=time, time_scale=0.5 if time else 1.0)
    values = rng.normal(size=(n, 1)) + 0.05 * coordinates[0][:, None]
    model, *further = model.split(" + ")
    variogram = Variogram(model, psill=2.0, range=20.0, nugget=0.25, alpha=1.4 if model == "stable" else None)
    variogram = sum((Variogram(name, psill=0.5, range=30.0) for name in further), variogram)
    covariates = _hill(*coordinates[:2]) if drift else np.zeros((n, 0))
    samples = Samples(space.places(coordinates), values, np.full(n, 0.25), 0.0, covariates)
    mean: Any = Drift(0, columns=("hill",)) if drift else "constant"
    return Field.fit(samples, space, variogram, Solving(tolerance=1e-8), mean=mean)


def _hill(x: Any, y: Any) -> Any:
    return np.column_stack([np.hypot(x - 50.0, y - 30.0) / 20.0])


def written(field: Field, grid: Grid, out: Any, settings: MapSettings, *, resume: bool = False, **watch: Any) -> None:
    executor = LocalExecutor(1)
    try:
        write_field(field, grid, Destination(str(out), resume=resume), settings, RunContext(executor, **watch))
    finally:
        executor.close()


def in_memory(field: Field, grid: Grid, folder: Path, settings: MapSettings, **watch: Any) -> Any:
    executor = LocalExecutor(1)
    try:
        return map_in_memory(
            map_cells(field, grid, Destination(str(folder / "cells")), settings, RunContext(executor, **watch))
        )
    finally:
        executor.close()


def bytes_of(path: Path) -> str:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(path)).encode() + file.read_bytes())
    return digest.hexdigest()


GRID = Grid.of((0.0, 100.0, 10.0, 90.0), shape=(66, 75))


@pytest.mark.parametrize("name", ["map.zarr", "map.tif"])
def test_an_interrupted_map_ends_in_the_same_bytes(tmp_path: Path, name: str) -> None:
    pytest.importorskip("rasterio")
    field, settings = field_of(np.random.default_rng(5)), MapSettings(variance=True)
    written(field, GRID, tmp_path / f"whole-{name}", settings)
    asked: list[int] = []
    with pytest.raises(InterruptedRunError):
        written(field, GRID, tmp_path / name, settings, interrupted=lambda: asked.append(1) or len(asked) > 3)
    with pytest.raises(OutputExistsError, match="cells of an unfinished map lie in .*; pass `resume`"):
        written(field, GRID, tmp_path / name, settings)
    # A script that is run again fits its field again.
    written(field_of(np.random.default_rng(5)), GRID, tmp_path / name, settings, resume=True)
    assert bytes_of(tmp_path / name) == bytes_of(tmp_path / f"whole-{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"whole-{name}"])


@pytest.mark.parametrize(
    ("model", "nugget", "n", "way"),
    [
        ("exponential", 0.25, 5_000, "cholesky"),
        ("exponential", 0.25, 5_001, "neighbours"),
        ("exponential", 0.0, 20_000, "cholesky"),
        ("exponential", 0.0, 20_001, "neighbours"),
        ("stable 1.5", 0.25, 5_001, "neighbours"),
        ("stable 1.9", 0.25, 5_001, "iterative"),
        ("gaussian", 0.25, 5_001, "iterative"),
        ("gaussian", 0.0, 5_001, "cholesky"),
        ("spherical", 0.25, 20_000, "cholesky"),
        ("spherical", 0.25, 20_001, "neighbours"),
        ("cubic", 0.0, 20_001, "neighbours"),
        ("gaussian + exponential", 0.25, 5_001, "neighbours"),
        ("gaussian + rational 2", 0.25, 5_001, "iterative"),
        ("gaussian + spherical", 0.25, 20_000, "cholesky"),
        ("gaussian + spherical", 0.25, 20_001, "neighbours"),
    ],
)
def test_the_way_to_variances_follows_from_the_field_alone(model: str, nugget: float, n: int, way: str) -> None:
    record = SimpleNamespace(noise_variance=nugget / 2.0)
    parts = []
    for part in model.split(" + "):
        name, *alpha = part.split()
        parts.append(Variogram(name, psill=2.0, range=20.0, alpha=float(alpha[0]) if alpha else None))
    variogram = sum(parts[1:], replace(parts[0], nugget=nugget))
    field: Any = SimpleNamespace(n_samples=n, record=record, variogram=variogram, space=Space(2))
    chosen = rasters._variances(field, MapSettings(variance=True))
    assert chosen is not None
    assert chosen.way == way
    # By default a partial factor takes a share of the memory that is free now.
    assert (chosen.memory_bytes is not None) == (way == "iterative")


@pytest.mark.long
@pytest.mark.parametrize("model", [*MODELS, "exponential + spherical"])
def test_variances_of_many_samples_agree_with_a_whole_factor(
    rng: Any, tmp_path: Path, model: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(rasters, "WHOLE", 100)
    monkeypatch.setattr(rasters, "MOST_WHOLE", 100)
    field, grid = field_of(rng, 400, model=model), Grid.of((0.0, 100.0, 10.0, 90.0), shape=(6, 7))
    result = in_memory(field, grid, tmp_path / "a", MapSettings(variance=True))
    exact = in_memory(field, grid, tmp_path / "b", MapSettings(variance=True, way="cholesky"))
    assert (result["variance_lower"] <= exact["variance_upper"]).all()
    assert (result["variance_upper"] >= exact["variance_lower"]).all()
    assert result["interval_met"].values.all()


def test_variances_that_neighbours_refuse_come_from_a_partial_factor(
    rng: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    for name in ("WHOLE", "MOST_WHOLE"):
        monkeypatch.setattr(rasters, name, 20)
    coordinates = tuple(rng.uniform(0, 100, (2, 80)))
    variogram = Variogram("exponential", psill=2.0, range=20.0, nugget=0.25)
    monkeypatch.setattr("dkgp.models.variance.neighbours.run.NeighbourRun._chosen_count", refused)
    kriging = Kriging(variogram, variance_gap=0.2).fit(coordinates, rng.normal(size=80))
    field, settings, notes = kriging.field_, MapSettings(variance=True, gap=0.2), []
    grid = Grid.of((0.0, 100.0, 10.0, 90.0), shape=(6, 7))
    with pytest.raises(InputError, match="variances by neighbours"):
        in_memory(field, grid, tmp_path / "refused", replace(settings, way="neighbours"))
    written(field, grid, tmp_path / "map.zarr", settings, note=notes.append)
    assert sum("variances are proven by a partial factor: variances by neighbours" in line for line in notes) == 1
    with pytest.raises(InterruptedRunError):
        written(field, grid, tmp_path / "again.zarr", settings, interrupted=lambda: True)
    written(field, grid, tmp_path / "again.zarr", settings, resume=True)
    assert bytes_of(tmp_path / "again.zarr") == bytes_of(tmp_path / "map.zarr")
    exact = in_memory(field, grid, tmp_path / "b", replace(settings, way="cholesky"))
    result = in_memory(field, grid, tmp_path / "c", settings)
    assert (result["variance_lower"] <= exact["variance_upper"]).all()
    assert (result["variance_upper"] >= exact["variance_lower"]).all()


def refused(*arguments: Any) -> int:
    raise InputError("variances by neighbours are of no use here")


def test_finished_cells_are_not_computed_again(rng: Any, tmp_path: Path, monkeypatch: Any) -> None:
    field, settings, out = field_of(rng), MapSettings(), tmp_path / "map.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(rasters, "write_map", lambda *arguments: None)
        patch.setattr(rasters, "remove_tree", lambda url: None)
        written(field, GRID, out, settings)
    monkeypatch.setattr(rasters, "predict", None)
    written(field, GRID, out, settings, resume=True)
    assert out.is_dir()
    with pytest.raises(OutputExistsError, match="already exists. Choose another path, or give `overwrite`"):
        written(field, GRID, out, settings, resume=True)


def test_cells_of_another_map_are_refused(rng: Any, tmp_path: Path, monkeypatch: Any) -> None:
    field, out = field_of(rng), tmp_path / "map.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(rasters, "write_map", lambda *arguments: None)
        patch.setattr(rasters, "remove_tree", lambda url: None)
        written(field, GRID, out, MapSettings())
    for grid, settings in ((GRID, MapSettings(variance=True)), (Grid.of((0, 1, 0, 1), shape=(4, 4)), MapSettings())):
        with pytest.raises(InputError, match="are of another field, grid or gap; start afresh with `overwrite`"):
            written(field, grid, out, settings, resume=True)
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("map.png", r"end in \.tif, \.tiff, \.nc, \.zarr; got"),
        ("s3://bucket/map.tif", r"a map at a remote address is a Zarr store, whose name ends in \.zarr; got 's3://"),
    ],
)
def test_wrong_addresses_are_refused_before_the_work(rng: Any, name: str, message: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(rasters, "map_cells", None)
    with pytest.raises(InputError, match=message):
        written(field_of(rng, 10), GRID, name, MapSettings())


def test_a_missing_library_is_named_before_the_work(rng: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(rasters, "map_cells", None)
    monkeypatch.setattr(rasters.importlib.util, "find_spec", lambda name: None)
    for name, extra in (("map.tif", "geo"), ("map.nc", "netcdf")):
        with pytest.raises(ImportError, match=extra):
            written(field_of(rng, 10), GRID, tmp_path / name, MapSettings())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(rng: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(rasters, "map_cells", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot write .*map.zarr.: File exists"):
        written(field_of(rng, 10), GRID, tmp_path / "file" / "map.zarr", MapSettings())


# ----------------------------------------------------------------------------------------------------- cells left out


def test_masked_cells_are_neither_computed_nor_written(rng: Any, tmp_path: Path) -> None:
    field, settings = field_of(rng), MapSettings(variance=True)
    inside = rng.random(GRID.shape) < 0.3
    inside[:64] = False  # a whole band of tiles
    whole = in_memory(field, GRID, tmp_path / "whole", settings)
    done: list[int] = []
    masked = in_memory(
        field, GRID, tmp_path / "masked", MapSettings(variance=True, mask=inside), within=lambda p: done.append(p.total)
    )
    assert set(done) == {int(inside.sum())}
    for name in rasters.MEANS:
        assert_allclose(masked[name].values[inside], whole[name].values[inside], rtol=1e-9, atol=1e-9)
        assert np.isnan(masked[name].values[~inside]).all()
    assert masked["interval_met"].dtype == np.uint8
    assert not masked["interval_met"].values[~inside].any()


def test_polygons_are_masks_by_centres(tmp_path: Path) -> None:
    geopandas, shapely = pytest.importorskip("geopandas"), pytest.importorskip("shapely")
    disc = shapely.Point(50.0, 50.0).buffer(20.0, quad_segs=90)
    x, y = np.meshgrid(GRID.x, GRID.y)
    assert (GRID.inside(disc) == (np.hypot(x - 50.0, y - 50.0) < 20.0)).mean() > 0.999
    square = shapely.box(20.0, 20.0, GRID.x[40], 50.0)
    assert_array_equal(GRID.inside(square), (x >= 20.0) & (x <= GRID.x[40]) & (y >= 20.0) & (y <= 50.0))
    series = geopandas.GeoSeries([disc, square], crs="EPSG:32611")
    assert_array_equal(GRID.inside(series, "EPSG:32611"), GRID.inside(disc) | GRID.inside(square))
    away = geopandas.GeoSeries([shapely.box(*series.to_crs("EPSG:4326").total_bounds)], crs="EPSG:4326")
    assert (GRID.inside(away, "EPSG:32611") >= GRID.inside(disc)).all()
    with pytest.raises(InputError, match="a LineString without area"):
        GRID.inside(shapely.LineString([(0, 0), (1, 1)]))
    with pytest.raises(InputError, match=r"`mask` has shape \(3, 3\) of bool; expected bool of the shape of the grid"):
        GRID.inside(np.ones((3, 3), dtype=bool))


def test_a_mask_without_cells_is_refused(rng: Any, tmp_path: Path) -> None:
    settings = MapSettings(mask=np.zeros(GRID.shape, dtype=bool))
    with pytest.raises(InputError, match="none of 4,950 cells lies inside the `mask`"):
        in_memory(field_of(rng, 10), GRID, tmp_path, settings)


@pytest.mark.parametrize("as_arrays", [True, False])
def test_covariates_of_cells_enter_and_missing_ones_are_counted(rng: Any, tmp_path: Path, as_arrays: bool) -> None:
    field = field_of(rng, drift=True)
    grid = Grid.of((0.0, 100.0, 0.0, 90.0), shape=(10, 11))
    x, y = np.meshgrid(grid.x, grid.y)
    hill = _hill(x.ravel(), y.ravel()).reshape(grid.shape)
    hill[2, 3:6] = np.nan

    def read(east: Any, north: Any) -> Any:
        columns = np.searchsorted(grid.x, east), np.searchsorted(grid.y, north)
        return hill[columns[1], columns[0]][:, None]

    notes: list[str] = []
    covariates: Any = {"hill": hill} if as_arrays else read
    result = in_memory(field, grid, tmp_path, MapSettings(covariates=covariates), note=notes.append)
    assert "covariate hill is missing at 3 of 110 cells, first at (30, 20); they are left empty" in notes
    known = np.isfinite(hill)
    assert_array_equal(np.isfinite(result["mean"].values), known)
    places = field.space.places((x[known], y[known]))
    expected = field.at(places, covariates=hill[known][:, None])
    assert_allclose(result["mean"].values[known], expected.mean[:, 0], rtol=1e-9)


def test_rasters_of_covariates_are_read_at_the_cells_of_a_grid_in_another_crs(rng: Any, tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    profile = {"driver": "GTiff", "height": 6, "width": 8, "count": 1, "dtype": "float64", "crs": "EPSG:32611"}
    values = rng.random((6, 8))
    origin = rasterio.Affine(30.0, 0.0, 400_000.0, 0.0, -30.0, 3_800_180.0)
    with rasterio.open(tmp_path / "hill.tif", "w", transform=origin, **profile) as file:
        file.write(values, 1)
    easting, northing = rng.uniform(400_000, 400_240, 50), rng.uniform(3_800_000, 3_800_180, 50)
    read = CovariateRasters.open({"hill": tmp_path / "hill.tif"}, crs="EPSG:32611")
    kriging = Kriging(
        Variogram("exponential", psill=2.0, range=90.0, nugget=0.2), kind="universal", covariates=("hill",)
    )
    kriging.set_params(crs="EPSG:32611").fit((easting, northing), rng.random(50), covariates=read(easting, northing))
    pyproj = pytest.importorskip("pyproj")
    to_degrees = pyproj.Transformer.from_crs("EPSG:32611", "EPSG:4326", always_xy=True)
    (west, east), (south, north) = to_degrees.transform([399_950, 400_290], [3_799_950, 3_800_230])
    region = (west, east, south, north)
    with pytest.warns(UserWarning, match="cells") as caught:
        result = kriging.grid(region, (9, 8), crs="EPSG:4326", covariates={"hill": str(tmp_path / "hill.tif")})
    words = [str(warning.message) for warning in caught]
    assert any("the grid is in EPSG:4326, the samples in EPSG:32611: cells are transformed" in line for line in words)
    x, y = np.meshgrid(result["easting"].values, result["northing"].values)
    known = read.in_crs("EPSG:4326")(x.ravel(), y.ravel())[:, 0].reshape(x.shape)
    missing = int(np.isnan(known).sum())
    assert 0 < missing < known.size
    assert any(f"covariate hill is missing at {missing} of 72 cells, first at (" in line for line in words)
    assert_array_equal(np.isnan(result["scalars"].values), np.isnan(known))


def test_covariates_that_do_not_fit_are_refused(rng: Any, tmp_path: Path) -> None:
    field, plain = field_of(rng, drift=True), field_of(rng, 10)
    for one, covariates, message in (
        (field, None, "the field has the covariates hill; give their values at the cells by `covariates`"),
        (plain, {"hill": np.zeros(GRID.shape)}, "the field has no covariates; leave out `covariates`"),
        (field, {"dale": np.zeros(GRID.shape)}, "the covariates hill of cells are missing; got dale"),
        (field, {"hill": np.zeros((2, 2))}, r"covariate hill has shape \(2, 2\); expected that of the grid, \(66, 75"),
        (field, lambda x, y: x, r"covariates of 4,800 cells have shape \(4800,\); expected \(4800, 1\)"),
    ):
        with pytest.raises(InputError, match=message):
            in_memory(one, GRID, tmp_path, MapSettings(covariates=covariates))


def test_a_map_at_one_time_is_that_of_the_points(rng: Any, tmp_path: Path) -> None:
    field = field_of(rng, time=True)
    grid = Grid.of((0.0, 100.0, 0.0, 90.0), shape=(5, 6))
    result = in_memory(field, grid, tmp_path, MapSettings(variance=True, time=33.0))
    x, y = np.meshgrid(grid.x, grid.y)
    expected = field.at(field.space.places((x.ravel(), y.ravel(), np.full(x.size, 33.0))), variance=True)
    assert_allclose(result["mean"].values.ravel(), expected.mean[:, 0], rtol=1e-9)
    assert_allclose(result["variance"].values.ravel(), expected.variance[:, 0], rtol=1e-6)
    with pytest.raises(InputError, match="`time` is the time of the map of a field in space and time; got None for a"):
        in_memory(field, grid, tmp_path, MapSettings())


# ---------------------------------------------------------------------------------------------------------- the files


@pytest.fixture
def small_tiles(monkeypatch: Any) -> None:
    """Tiles of 16 cells: overviews of small maps."""
    monkeypatch.setattr(geotiff, "SIDE", 16)
    monkeypatch.setattr(rasters, "TILE", (16, 16))


def test_a_geotiff_is_that_of_other_programs(rng: Any, tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    field, settings = field_of(rng), MapSettings(variance=True, mask=rng.random((600, 530)) < 0.9)
    grid = Grid.of((300.0, 829.0, 100.0, 699.0), shape=(600, 530))
    settings = MapSettings(mask=settings.mask)
    written(field, grid, tmp_path / "map.tif", settings)
    expected = in_memory(field, grid, tmp_path, settings)
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.crs.to_epsg() == 32611
        assert file.descriptions == rasters.MEANS
        assert file.dtypes == ("float32", "float32")
        assert np.isnan(file.nodata)
        assert file.block_shapes == [(512, 512)] * 2
        assert file.overviews(1) == [2]
        assert (file.bounds.left, file.bounds.top) == (299.5, 699.5)
        assert file.tags()["of"] == "signal"
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert file.index(301.0, 103.0) == (596, 1)  # of row 3 from the south
        bands = file.read()
        with rasterio.open(tmp_path / "map.tif", overview_level=0) as lesser:
            overview = lesser.read()
    assert_array_equal(bands[0], expected["mean"].values[::-1].astype(np.float32))
    assert_array_equal(bands[1] >= expected["mean_error_bound"].values[::-1], ~np.isnan(bands[1]))
    blocks = bands[1].reshape(300, 2, 265, 2)
    with np.errstate(invalid="ignore"):
        greatest = np.nanmax(np.where(np.isnan(blocks), -1.0, blocks), axis=(1, 3))
    assert (overview[1] >= np.where(greatest < 0, 0, greatest)).sum() == (greatest >= 0).sum()
    centres = np.nanmean(bands[0].astype(float).reshape(300, 2, 265, 2)[:, :, 7, :], axis=(1, 2))
    assert_allclose(overview[0][:, 7], centres, rtol=1e-6)


@pytest.mark.usefixtures("small_tiles")
def test_overviews_of_variances_are_proven_at_each_level(rng: Any, tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    field, settings = field_of(rng), MapSettings(variance=True)
    grid = Grid.of((0.0, 100.0, 0.0, 90.0), shape=(37, 50))
    written(field, grid, tmp_path / "map.tif", settings)
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.descriptions == (*rasters.MEANS, *rasters.VARIANCES)
        full, levels = file.read(), file.overviews(1)
        assert levels == [2, 4]
    for index, level in enumerate(levels):
        with rasterio.open(tmp_path / "map.tif", overview_level=index) as file:
            part = file.read()
        assert part.shape == (6, -(-37 // level), -(-50 // level))
        for row in range(part.shape[1]):
            for column in range(part.shape[2]):
                block = full[:, row * level : (row + 1) * level, column * level : (column + 1) * level].astype(float)
                assert part[1, row, column] >= block[1].max()
                assert part[3, row, column] == block[3].min()
                assert part[4, row, column] == block[4].max()
                assert part[5, row, column] == block[5].min()
    block = full[:, :2, :2].astype(float)
    with rasterio.open(tmp_path / "map.tif", overview_level=0) as file:
        assert_allclose(file.read()[[0, 2], 0, 0], block[[0, 2]].mean(axis=(1, 2)), rtol=1e-6)


@pytest.mark.parametrize("name", ["map.zarr", "map.nc"])
def test_xarray_reads_maps_with_their_crs(rng: Any, tmp_path: Path, name: str) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    field = field_of(rng)
    settings = MapSettings(of="observation", variance=True, mask=rng.random(GRID.shape) < 0.8)
    written(field, GRID, tmp_path / name, settings)
    expected = in_memory(field, GRID, tmp_path, settings)
    open_it: Callable[..., Any] = xarray.open_zarr if name.endswith("zarr") else xarray.open_dataset
    with open_it(tmp_path / name, decode_coords="all") as result:
        for variable in (*rasters.MEANS, *rasters.VARIANCES):
            assert_array_equal(result[variable].values, expected[variable].values)
            assert result[variable].dims == ("y", "x")
        assert result["interval_met"].dtype == np.uint8
        assert "32611" in result["spatial_ref"].attrs["crs_wkt"]
        assert result["x"].attrs["standard_name"] == "projection_x_coordinate"
        assert result["mean_error_bound"].attrs["long_name"] == "proven bound on the error of the mean"
        assert (np.diff(result["y"]) > 0).all()
        assert result.attrs["of"] == "observation"
        assert result.attrs["model_fingerprint"] == field.record.fingerprint
        assert result.attrs["variance_gap"] == 0.05
        if hasattr(result, "rio"):
            assert result.rio.crs.to_epsg() == 32611


# ------------------------------------------------------------------------------------------------------------ numbers

HARD = [0.0, 5e-324, 1e-46, 7e-46, 1.1754943508222875e-38, 1.0 + 2.0**-24, 1.0 + 2.0**-24 + 2.0**-52, 3.4028235e38]
HARD += [3.4028235677973366e38, 3.5e38, 16777217.0, 1e300]
numbers = st.sampled_from(HARD) | st.floats(0.0, allow_nan=False, allow_infinity=False)


@given(arrays(np.float64, (4, 7), elements=numbers), st.lists(st.booleans(), min_size=7, max_size=7))
def test_single_precision_is_rounded_outward(values: Any, signs: list[bool]) -> None:
    lower, upper = np.minimum(values[2], values[3]), np.maximum(values[2], values[3])
    wide = {
        "mean": np.where(signs, values[0], -values[0]),
        "mean_error_bound": values[1],
        "variance_lower": lower,
        "variance_upper": upper,
    }
    with np.errstate(over="ignore", invalid="ignore"):
        single = to_single({name: KINDS[name] for name in wide}, wide)
    for index in range(7):
        parts = {name: single[name][index] for name in wide}
        assert all(part.dtype == np.float32 for part in parts.values())
        assert parts["variance_lower"] <= lower[index]
        assert parts["variance_upper"] >= upper[index]
        if not np.isfinite(parts["mean"]):
            assert parts["mean_error_bound"] == np.inf
        elif np.isfinite(parts["mean_error_bound"]):
            off = abs(Fraction(float(parts["mean"])) - Fraction(float(wide["mean"][index])))
            assert Fraction(float(parts["mean_error_bound"])) >= Fraction(float(values[1][index])) + off


singles = st.floats(width=32, allow_infinity=False) | st.sampled_from([1.0, -1.0, 2.0**-149, 3e38, 16777216.0])


@given(arrays(np.float32, (2, 3, 5), elements=singles))
def test_bounds_of_overviews_hold_for_averages(values: Any) -> None:
    mean, bound = values[0], np.where(np.isnan(values[0]), np.float32(np.nan), np.abs(np.nan_to_num(values[1])))
    with np.errstate(over="ignore", invalid="ignore"):
        part = halved({name: KINDS[name] for name in rasters.MEANS}, {"mean": mean, "mean_error_bound": bound})
    for row in range(2):
        for column in range(3):
            block = mean[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].ravel()
            known = block[~np.isnan(block)]
            bounds = bound[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].ravel()
            if not len(known):
                assert np.isnan(part["mean"][row, column])
                assert np.isnan(part["mean_error_bound"][row, column])
            elif np.isfinite(part["mean"][row, column]) and np.isfinite(part["mean_error_bound"][row, column]):
                average = sum(Fraction(float(value)) for value in known) / len(known)
                off = abs(Fraction(float(part["mean"][row, column])) - average)
                least = Fraction(float(np.nanmax(bounds))) + off
                assert Fraction(float(part["mean_error_bound"][row, column])) >= least


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857"])
def test_a_map_in_another_crs_covers_the_samples(rng: Any, crs: str) -> None:
    pyproj = pytest.importorskip("pyproj")
    # The numbers of these places are a place in the Atlantic in EPSG:3857, where every mean is the constant.
    x, y = rng.uniform((178_000.0, 330_000.0), (181_000.0, 334_000.0), (80, 2)).T
    values = np.sin(x / 500.0) + np.cos(y / 700.0)
    kriging = Kriging(Variogram("matern32", psill=1.0, range=800.0, nugget=0.01), crs="EPSG:28992").fit((x, y), values)
    with pytest.warns(UserWarning, match="cells are transformed"):
        map_ = kriging.grid(shape=(7, 6), crs=crs)
    back = pyproj.Transformer.from_crs(crs, "EPSG:28992", always_xy=True)
    easting, northing = back.transform(*np.meshgrid(map_["easting"], map_["northing"]))
    assert_allclose([easting.min(), easting.max()], [x.min(), x.max()], atol=150.0)
    assert_allclose([northing.min(), northing.max()], [y.min(), y.max()], atol=150.0)
    assert_allclose(map_["scalars"], kriging.predict((easting, northing)), atol=1e-6)
    assert np.ptp(map_["scalars"].to_numpy()) > 1.0
    fields = kriging.simulate(1, shape=(3, 3), crs=crs, method="cholesky")
    assert_allclose(fields["easting"][[0, -1]], map_["easting"][[0, -1]])


@pytest.mark.parametrize(("dimensions", "names"), [(1, "easting"), (3, "easting, northing, up")])
def test_maps_of_other_dimensions_are_refused_with_advice(rng: Any, dimensions: int, names: str) -> None:
    samples = tuple(rng.uniform(0.0, 10.0, (dimensions, 20)))
    kriging = Kriging(Variogram("exponential", psill=1.0, range=3.0, nugget=0.1)).fit(samples, samples[0])
    with pytest.raises(InputError, match=rf"the samples have {dimensions} \({names}\).*numpy.meshgrid.*`predict`"):
        kriging.grid(shape=(2, 2))
