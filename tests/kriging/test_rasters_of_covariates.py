"""Rasters of covariates, read at samples and cells."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.interpolate

from dkgp.data.remote.storage import write_object
from dkgp.errors import InputError
from dkgp.kriging.covariates import CovariateRasters
from dkgp.kriging.tables import read_samples

rasterio = pytest.importorskip("rasterio")
RD = "EPSG:28992"
WEST, NORTH, STEP, ROWS, COLUMNS = 181000.0, 334000.0, 40.0, 13, 17


def raster(path: Path, values: Any = None, *, crs: str | None = RD, **profile: Any) -> Path:
    if values is None:
        values = np.random.default_rng(5).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    bands = values if values.ndim == 3 else values[None]
    transform = rasterio.transform.from_origin(WEST, NORTH, STEP, STEP)
    shape = {"count": bands.shape[0], "height": bands.shape[1], "width": bands.shape[2], "dtype": bands.dtype}
    with rasterio.open(path, "w", driver="GTiff", crs=crs, transform=transform, **shape, **profile) as file:
        file.write(bands)
    return path


def points(rng: np.random.Generator, n: int = 500) -> tuple[Any, Any]:
    x = WEST + STEP * COLUMNS * rng.uniform(size=n)
    return x, NORTH - STEP * ROWS * rng.uniform(size=n)


def test_nearest_is_the_pixel_around_a_point(tmp_path: Path, rng: np.random.Generator) -> None:
    path = raster(tmp_path / "dist.tif")
    x, y = points(rng)
    with rasterio.open(path) as file:
        expected = [value[0] for value in file.sample(zip(x, y, strict=True))]
    rasters = CovariateRasters.open({"dist": path}, crs=RD)
    np.testing.assert_array_equal(rasters(x, y)[:, 0], np.array(expected, dtype=np.float64))
    # The far edges belong to the raster.
    edge = rasters(np.array([WEST, WEST + STEP * COLUMNS]), np.array([NORTH, NORTH - STEP * ROWS]))
    assert np.isfinite(edge).all()


def test_bilinear_is_that_of_scipy(tmp_path: Path, rng: np.random.Generator) -> None:
    path = raster(tmp_path / "dist.tif")
    x, y = points(rng)
    with rasterio.open(path) as file:
        values = file.read(1).astype(np.float64)
    rows, columns = (NORTH - y) / STEP - 0.5, (x - WEST) / STEP - 0.5
    rows, columns = np.clip(rows, 0.0, ROWS - 1.0), np.clip(columns, 0.0, COLUMNS - 1.0)
    axes = (np.arange(ROWS), np.arange(COLUMNS))
    expected = scipy.interpolate.interpn(axes, values, np.column_stack([rows, columns]))
    rasters = CovariateRasters.open({"dist": path}, crs=RD, method="bilinear")
    np.testing.assert_allclose(rasters(x, y)[:, 0], expected, rtol=1e-11, atol=1e-12)


def test_turned_rasters(tmp_path: Path, rng: np.random.Generator) -> None:
    path = raster(tmp_path / "dist.tif")
    turned = rasterio.Affine.translation(WEST, NORTH) @ rasterio.Affine.rotation(20.0) @ rasterio.Affine.scale(STEP, 30)
    with rasterio.open(path, "r+") as file:
        file.transform = turned
        values = file.read(1)
    row, column = rng.integers(ROWS, size=200), rng.integers(COLUMNS, size=200)
    at = [turned @ place for place in zip(column + 0.3, row + 0.6, strict=True)]
    x, y = np.array(at).T
    np.testing.assert_array_equal(CovariateRasters.open({"dist": path}, crs=RD)(x, y)[:, 0], values[row, column])


@pytest.mark.parametrize("method", ["nearest", "bilinear"])
def test_a_raster_whose_first_row_is_the_southernmost(tmp_path: Path, rng: np.random.Generator, method: str) -> None:
    values, path = rng.normal(size=(ROWS, COLUMNS)), tmp_path / "south.tif"
    north = CovariateRasters.open({"dist": raster(tmp_path / "north.tif", values)}, crs=RD, method=method)
    with rasterio.open(raster(path, values[::-1].copy()), "r+") as file:
        file.transform = rasterio.Affine(STEP, 0.0, WEST, 0.0, STEP, NORTH - STEP * ROWS)
    south = CovariateRasters.open({"dist": path}, crs=RD, method=method)
    x, y = points(rng)
    np.testing.assert_allclose(south(x, y), north(x, y), rtol=1e-9)


def test_samples_in_feet_read_a_raster_in_metres(tmp_path: Path, rng: np.random.Generator) -> None:
    pytest.importorskip("pyproj")
    metres, foot = "EPSG:32118", 1200.0 / 3937.0
    rasters = CovariateRasters.open({"dist": raster(tmp_path / "dist.tif", crs=metres)}, crs=metres)
    x, y = points(rng)
    # EPSG:2263 is the same projection in feet of the US survey.
    moved = rasters.in_crs("EPSG:2263")(x / foot, y / foot)[:, 0]
    assert (moved == rasters(x, y)[:, 0]).mean() > 0.99


@pytest.mark.parametrize("method", ["nearest", "bilinear"])
def test_values_are_the_same_in_every_set_of_points(
    tmp_path: Path, rng: np.random.Generator, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"dist": raster(tmp_path / "dist.tif"), "h": raster(tmp_path / "h.tif", np.ones((ROWS, COLUMNS), "i2"))}
    rasters = CovariateRasters.open(paths, crs=4326, method=method)
    pyproj = pytest.importorskip("pyproj")
    x, y = pyproj.Transformer.from_crs(RD, 4326, always_xy=True).transform(*points(rng))
    whole = rasters(x, y)
    assert whole.shape == (500, 2)
    again = pickle.loads(pickle.dumps(rasters))
    parts = np.array_split(np.arange(500), 13)
    with ThreadPoolExecutor(4) as pool:
        tiles = list(pool.map(lambda part: again(x[part], y[part]), parts))
    np.testing.assert_array_equal(np.concatenate(tiles), whole)
    # Windows of few rows.
    monkeypatch.setattr("dkgp.kriging.covariates._MOST_PIXELS", 2 * COLUMNS)
    np.testing.assert_array_equal(rasters(x, y), whole)


def test_other_references_are_transformed(tmp_path: Path, rng: np.random.Generator) -> None:
    pyproj = pytest.importorskip("pyproj")
    rasters = CovariateRasters.open({"dist": raster(tmp_path / "dist.tif")}, crs=RD)
    x, y = points(rng)
    degrees = pyproj.Transformer.from_crs(RD, 4326, always_xy=True).transform(x, y)
    moved = rasters.in_crs(4326)(*degrees)[:, 0]
    assert (moved == rasters(x, y)[:, 0]).mean() > 0.99


def test_references_without_a_way_between_them(tmp_path: Path) -> None:
    local = 'LOCAL_CS["mine",UNIT["metre",1]]'
    rasters = CovariateRasters.open({"dist": raster(tmp_path / "dist.tif")}, crs=local)
    with pytest.raises(InputError, match="coordinates of mine cannot be transformed to EPSG:28992"):
        rasters(np.array([WEST]), np.array([NORTH]))


def test_missing_outside_and_at_nodata(tmp_path: Path) -> None:
    values = np.arange(ROWS * COLUMNS, dtype=np.int16).reshape(ROWS, COLUMNS)
    values[0, 1] = -9999
    path = raster(tmp_path / "dist.tif", values, nodata=-9999)
    x = WEST + STEP * np.array([0.5, 1.5, 2.5, -0.1, 0.75])
    y = np.array([NORTH - 0.5 * STEP] * 4 + [NORTH - 0.5 * STEP])
    nearest = CovariateRasters.open({"dist": path}, crs=RD)(x, y)[:, 0]
    np.testing.assert_array_equal(nearest, [0.0, np.nan, 2.0, np.nan, 0.0])
    bilinear = CovariateRasters.open({"dist": path}, crs=RD, method="bilinear")(x, y)[:, 0]
    # At a pixel's centre its neighbours have no weight.
    np.testing.assert_array_equal(bilinear, [0.0, np.nan, 2.0, np.nan, np.nan])


def test_scales_and_bands_by_their_descriptions(tmp_path: Path) -> None:
    path = raster(tmp_path / "both.tif", np.stack([np.ones((ROWS, COLUMNS), "i2"), np.full((ROWS, COLUMNS), 7, "i2")]))
    with pytest.raises(InputError, match=r"both.tif' has 2 bands, .* expected one, or one described as 'dist'"):
        CovariateRasters.open({"dist": path}, crs=RD)
    with rasterio.open(path, "r+") as file:
        file.descriptions = ("height", "dist")
        file.scales, file.offsets = (1.0, 0.5), (0.0, 10.0)
    at = np.array([WEST + 1.0]), np.array([NORTH - 1.0])
    assert CovariateRasters.open({"dist": path, "height": path}, crs=RD)(*at).tolist() == [[13.5, 1.0]]
    rasters = CovariateRasters.open({"dist": path, "height": path}, crs=RD)
    assert rasters.select(["height"])(*at).tolist() == [[1.0]]
    with pytest.raises(InputError, match="there is no raster of the covariate slope; there are 'dist', 'height'"):
        rasters.select(["slope"])


def test_rasters_that_cannot_be_taken(tmp_path: Path) -> None:
    bare = raster(tmp_path / "dist.tif", crs=None)
    words = r"^dist.tif has no CRS; expected EPSG:28992 of the samples. Set it with rio edit-info$"
    with pytest.raises(InputError, match=words):
        CovariateRasters.open({"dist": bare}, crs=RD)
    assert CovariateRasters.open({"dist": bare})(np.array([WEST]), np.array([NORTH])).shape == (1, 1)
    known = raster(tmp_path / "known.tif")
    with pytest.raises(InputError, match="known.tif is in EPSG:28992, and the CRS of the samples is unknown"):
        CovariateRasters.open({"dist": known})(np.array([WEST]), np.array([NORTH]))
    with pytest.raises(InputError, match=r"there is no raster at '.*none.tif'; check the path"):
        CovariateRasters.open({"dist": tmp_path / "none.tif"}, crs=RD)
    (tmp_path / "text.tif").write_text("no raster")
    with pytest.raises(InputError, match=r"text.tif' cannot be read as a raster"):
        CovariateRasters.open({"dist": tmp_path / "text.tif"}, crs=RD)
    (tmp_path / "v.tif").write_text(f"<VRTDataset><SourceFilename>{known}</SourceFilename></VRTDataset>")
    with pytest.raises(InputError, match="refers to other files"):
        CovariateRasters.open({"dist": tmp_path / "v.tif"}, crs=RD)
    with pytest.raises(InputError, match="`method` is one of nearest, bilinear; got 'cubic'"):
        CovariateRasters.open({"dist": known}, crs=RD, method="cubic")
    with pytest.raises(InputError, match="expected at least one covariate with its raster"):
        CovariateRasters.open({}, crs=RD)


def test_remote_rasters(tmp_path: Path, rng: np.random.Generator) -> None:
    local = raster(tmp_path / "dist.tif")
    place = "memory://rasters-of-covariates/dist.tif"
    write_object(place, local.read_bytes())
    x, y = points(rng)
    remote = CovariateRasters.open({"dist": place}, crs=RD)
    np.testing.assert_array_equal(remote(x, y), CovariateRasters.open({"dist": local}, crs=RD)(x, y))


def test_samples_take_covariates_from_rasters(tmp_path: Path) -> None:
    path = raster(tmp_path / "dist.tif", np.arange(ROWS * COLUMNS, dtype=np.float64).reshape(ROWS, COLUMNS))
    x, y = WEST + STEP * np.array([0.5, 1.5, -5.0]), np.full(3, NORTH - 1.5 * STEP)
    table = pd.DataFrame({"x": x, "y": y, "zinc": [1.0, 2.0, 3.0], "e": [0.1, 0.2, 0.3]})
    words = r"covariate dist is missing at 1 of 3 samples, first at \(180800, 333940\); leave these samples out"
    with pytest.raises(InputError, match=words):
        read_samples(table, "zinc", covariates={"dist": path}, crs=RD)
    samples = read_samples(table, "zinc", covariates={"dist": path}, crs=RD, noise="e", drop_missing=True)
    assert samples.covariates["dist"].tolist() == [17.0, 18.0]
    assert samples.n_dropped == 1
    assert samples.values.tolist() == [1.0, 2.0]
    assert samples.ids.tolist() == [0, 1]
    assert samples.notes[-1].endswith("first at (180800, 333940); they are left out")
    rasters = CovariateRasters.open({"dist": path}, crs=RD)
    whole = read_samples(table[:2], "zinc", covariates=rasters, crs=RD)
    assert whole.covariates["dist"].tolist() == [17.0, 18.0]
