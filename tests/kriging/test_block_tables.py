"""`Kriging.blocks`: tables of polygons, rectangles and grids, against averages of point predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kriging import Kriging, Variogram, read_polygons


def fitted(rng: np.random.Generator, **settings: Any) -> tuple[Kriging, Any]:
    places = rng.uniform(0.0, 10.0, (60, 2))
    values = places[:, 0] + np.sin(places[:, 1])
    variogram = Variogram("matern32", psill=1.0, range=2.0, nugget=0.05)
    return Kriging(variogram, **settings).fit(tuple(places.T), values), places


def inside(shape: Any, size: int) -> Any:
    """Points of a fine lattice in a polygon."""
    import shapely

    west, south, east, north = shape.bounds
    x = west + (np.arange(size) + 0.5) * (east - west) / size
    y = south + (np.arange(size) + 0.5) * (north - south) / size
    x, y = (values.reshape(-1) for values in np.meshgrid(x, y))
    return np.column_stack([x, y])[shapely.contains_xy(shape, x, y)]


def test_polygons_have_the_averages_of_point_predictions(rng: np.random.Generator) -> None:
    geopandas, shapely = pytest.importorskip("geopandas"), pytest.importorskip("shapely")
    kriging, _ = fitted(rng, kind="universal", degree=1)
    shapes = []
    for x, y, radius in rng.uniform((1.0, 1.0, 0.3), (9.0, 9.0, 1.5), (4, 3)):
        ring = shapely.Point(x, y).buffer(radius, quad_segs=3)
        shapes.append(ring.difference(shapely.Point(x, y).buffer(0.4 * radius, quad_segs=3)))
    shapes.append(shapely.MultiPolygon([shapely.box(0.0, 0.0, 1.0, 2.0), shapely.box(30.0, 0.0, 31.0, 1.0)]))
    frame = geopandas.GeoDataFrame({"name": range(5)}, geometry=shapes, index=[f"p{i}" for i in range(5)])
    table = kriging.blocks(frame, quadrature=12, quadrature_tolerance=0.1)
    assert isinstance(table, geopandas.GeoDataFrame)
    assert list(table.index) == list(frame.index)
    assert table["area"].to_numpy() == pytest.approx(frame.area.to_numpy())
    # The last goes past the data: its part there has the full prior's uncertainty.
    assert table["variance"].idxmax() == "p4"
    for index, shape in enumerate(shapes):
        points = inside(shape, 250 if index < 4 else 620)
        average = float(np.mean(kriging.predict(tuple(points.T))))
        row = table.iloc[index]
        # The lattice of points misses a part of the cells along the outline.
        assert row["mean_error_bound"] < 1e-6
        assert abs(row["mean"] - average) <= 1e-3
        assert row["variance_lower"] <= row["variance"] <= row["variance_upper"]
    # Fewer nodes, a wider proof.
    coarse = kriging.blocks(frame, quadrature=2, quadrature_tolerance=10.0)
    assert (coarse["quadrature_error"] > table["quadrature_error"]).all()
    assert (coarse["variance_lower"] <= table["variance_upper"]).all()
    assert (coarse["variance_upper"] >= table["variance_lower"]).all()


def test_grids_and_rectangles_are_the_same_blocks(rng: np.random.Generator) -> None:
    kriging, places = fitted(rng)
    grid = kriging.blocks(spacing=3.0)
    west, south = places.min(axis=0)
    east, north = places.max(axis=0)
    assert grid["area"].sum() == pytest.approx((east - west) * (north - south))
    assert grid["west"].min() == pytest.approx(west)
    assert grid["north"].max() == pytest.approx(north)
    listed = kriging.blocks(list(grid[["west", "east", "south", "north"]].itertuples(index=False, name=None)))
    assert listed["mean"].to_numpy() == pytest.approx(grid["mean"].to_numpy(), abs=1e-12)
    assert listed["variance"].to_numpy() == pytest.approx(grid["variance"].to_numpy(), abs=1e-9)
    # Averages of four quarters are the whole's.
    whole = kriging.blocks([(2.0, 4.0, 2.0, 4.0)])
    quarters = kriging.blocks([(x, x + 1.0, y, y + 1.0) for x in (2.0, 3.0) for y in (2.0, 3.0)])
    assert whole["mean"][0] == pytest.approx(quarters["mean"].mean(), abs=1e-9)
    assert whole["variance"][0] < quarters["variance"].min()


def test_polygons_of_another_crs_and_of_files_are_transformed(rng: np.random.Generator, tmp_path: Path) -> None:
    geopandas, shapely = pytest.importorskip("geopandas"), pytest.importorskip("shapely")
    shift = np.array([500_000.0, 5_500_000.0])
    places = rng.uniform(0.0, 10_000.0, (40, 2)) + shift
    variogram = Variogram("matern32", psill=1.0, range=2_000.0, nugget=0.05)
    kriging = Kriging(variogram, crs=32632).fit(tuple(places.T), np.sin(places[:, 0] / 1_000.0))
    box = shapely.box(*(shift + 3_000.0), *(shift + 4_000.0))
    ours = geopandas.GeoSeries([box], crs=32632)
    theirs = ours.to_crs(4326)
    first, second = kriging.blocks(ours), kriging.blocks(theirs)
    assert second.crs == theirs.crs
    assert second["mean"][0] == pytest.approx(first["mean"][0], abs=1e-3)
    assert second["area"][0] == pytest.approx(1e6, rel=1e-3)
    theirs.to_file(tmp_path / "parishes.geojson")
    third = kriging.blocks(tmp_path / "parishes.geojson")
    read = kriging.blocks(read_polygons(tmp_path / "parishes.geojson"))
    np.testing.assert_array_equal(read["mean"], third["mean"])
    assert third["mean"].iloc[0] == pytest.approx(first["mean"][0], abs=1e-3)
    assert third.crs == ours.crs
    with pytest.raises(InputError, match="has no CRS; expected"):
        kriging.blocks(geopandas.GeoSeries([box]))


def test_blocks_that_cannot_be_kriged_are_refused(rng: np.random.Generator) -> None:
    shapely = pytest.importorskip("shapely")
    kriging, places = fitted(rng)
    bow = shapely.Polygon([(0, 0), (2, 2), (2, 0), (0, 2)])
    for arguments, words in (
        ({}, "give either `geometries`"),
        ({"geometries": [(0, 1, 0, 1)], "spacing": 1.0}, "give either `geometries`"),
        ({"geometries": []}, "`geometries` is empty"),
        ({"geometries": [(0.0, 1.0)]}, r"polygon, or \(west, east, south, north\); got \(0.0, 1.0\)"),
        ({"geometries": [shapely.box(0, 0, 1, 1), bow]}, "the polygon 1 is not valid: Self-intersection"),
        ({"spacing": 1.0, "quadrature": 100}, "`quadrature` must be 1 to 32 nodes per side; got 100"),
    ):
        with pytest.raises(InputError, match=words):
            kriging.blocks(**arguments)
    degrees = tuple(places.T)
    globe = Kriging(Variogram("exponential", psill=1.0, range=100.0, nugget=0.1), crs=4326).fit(degrees, places[:, 0])
    with pytest.raises(InputError, match="needs places in a plane; these are on the globe. Project"):
        globe.blocks([(0.0, 1.0, 0.0, 1.0)])
    with_time = Kriging(Variogram("exponential", psill=1.0, range=2.0, nugget=0.1), time_scale=1.0)
    with_time.fit((*degrees, places[:, 0]), places[:, 1])
    with pytest.raises(InputError, match="these are of 3 coordinates, time included"):
        with_time.blocks(spacing=1.0)
    drift = Kriging(Variogram("exponential", psill=1.0, range=2.0, nugget=0.1), kind="universal", covariates=("dist",))
    drift.fit(degrees, places[:, 0], covariates={"dist": places[:, 1] ** 2})
    with pytest.raises(InputError, match="the field has the covariates dist; pass rasters of them"):
        drift.blocks(spacing=1.0)
    # Cross-validation has no need of them elsewhere.
    assert np.isfinite(drift.leave_one_out()["error"]).all()


@pytest.mark.long
def test_worker_processes_average_a_field_in_a_store(rng: np.random.Generator, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    X, blocks = rng.random((300, 2)), [(0.1, 0.3, 0.1, 0.4), (0.5, 0.8, 0.5, 0.9)]
    variogram = Variogram("exponential", psill=1.0, range=0.3, nugget=0.1)
    samples = (X[:, 0], X[:, 1]), np.sin(5.0 * X[:, 0])
    here = Kriging(variogram).fit(*samples).blocks(blocks)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        cluster.get_client() as client,
    ):
        there = Kriging(variogram, client=client, store=str(tmp_path)).fit(*samples).blocks(blocks)
    for name in ("mean", "variance_lower", "variance_upper"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-9)
