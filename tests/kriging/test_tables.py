"""Samples and polygons read from tables of every format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dkgp.data.remote.storage import write_object
from dkgp.errors import InputError, MissingExtraError
from dkgp.kriging.tables import SampleTable, _Clock, read_polygons, read_samples

X = np.array([181072.0, 181025.0, 181165.0, 181298.0])
Y = np.array([333611.0, 333558.0, 333537.0, 333484.0])
ZINC = np.array([1022.0, 1141.0, 640.0, 257.0])
DIST = np.array([0.0013, 0.0122, 0.103, 0.1901])
RD = "EPSG:28992"


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": X, "y": Y, "zinc": ZINC, "dist": DIST} | columns)


def geo(**columns: Any) -> Any:
    geopandas = pytest.importorskip("geopandas")
    table = frame(**columns)
    return geopandas.GeoDataFrame(
        table.drop(columns=["x", "y"]), geometry=geopandas.points_from_xy(table.x, table.y), crs=RD
    )


def check(table: SampleTable, *, crs: str | None = None) -> None:
    np.testing.assert_array_equal(table.coordinates, [X, Y])
    np.testing.assert_array_equal(table.data, [ZINC])
    np.testing.assert_array_equal(table.values, ZINC)
    assert table.names == ("zinc",)
    assert list(table.covariates) == ["dist"]
    np.testing.assert_array_equal(table.covariates["dist"], DIST)
    assert len(table.ids) == table.n == 4
    assert table.n_dropped == 0
    if crs is None:
        assert table.crs is None
    else:
        import pyproj

        assert pyproj.CRS(table.crs).equals(crs)


# ------------------------------------------------------------------------------------------------------------- formats


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "meuse.csv"
    frame().to_csv(path, index=False)
    check(read_samples(path, "zinc", covariates="dist"))
    frame().rename(columns={"x": "Easting", "y": "NORTHING"}).to_csv(path, index=False, sep=";")
    table = read_samples(path, "zinc", covariates=("dist",))
    check(table)
    assert table.coordinate_names == ("Easting", "NORTHING")


def test_parquet_with_types_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "meuse.parquet"
    frame(zinc=ZINC.astype(np.int32)).to_parquet(path)
    check(read_samples(str(path), "zinc", covariates=["dist"]))
    check(read_samples([str(path)], ["zinc"], x="x", y="y", covariates=["dist"]))


def test_frames_in_memory() -> None:
    check(read_samples(frame(), "zinc", covariates=["dist"]))
    check(read_samples(frame(zinc=pd.array(ZINC.astype(int), dtype="Int64")), "zinc", covariates=["dist"]))
    pyarrow = pytest.importorskip("pyarrow")
    check(read_samples(pyarrow.Table.from_pandas(frame()), "zinc", covariates=["dist"]))
    indexed = read_samples(frame().set_index(pd.Index(list("abcd"))), "zinc")
    assert list(indexed.ids) == list("abcd")


def test_geodataframe_takes_points_and_reference() -> None:
    check(read_samples(geo(), "zinc", covariates=["dist"]), crs=RD)
    # The points of the geometry come before columns that are called x and y.
    check(read_samples(geo().assign(x=X + 1.0, y=Y), "zinc", covariates=["dist"]), crs=RD)
    named = read_samples(geo().assign(x=X + 1.0, y=Y), "zinc", x="x", y="y")
    np.testing.assert_array_equal(named.coordinates[0], X + 1.0)


@pytest.mark.parametrize("name", ["m.gpkg", "m.geojson", "m.shp", "m.fgb"])
def test_vector_files(tmp_path: Path, name: str) -> None:
    path, features = tmp_path / name, geo()
    if name.endswith("geojson"):
        features = features.to_crs("EPSG:4326")
    features.to_file(path, **({"SPATIAL_INDEX": "NO"} if name.endswith("fgb") else {}))
    table = read_samples(path, "zinc", covariates=["dist"])
    if name.endswith("geojson"):
        assert np.abs(table.coordinates[0] - 5.76).max() < 0.01
        assert np.abs(table.coordinates[1] - 50.99).max() < 0.01
        np.testing.assert_array_equal(table.values, ZINC)
    else:
        check(table, crs=RD)
    if name.endswith("gpkg"):
        assert list(table.ids) == [1, 2, 3, 4]


def test_geoparquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "meuse.parquet"
    geo().to_parquet(path)
    check(read_samples(path, "zinc", covariates=["dist"]), crs=RD)


def labelled(dims: bool = False) -> Any:
    import xarray

    pyproj = pytest.importorskip("pyproj")
    data = xarray.Dataset({name: ("sample", column.to_numpy()) for name, column in frame().items()})
    if dims:
        values = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]])
        data = xarray.Dataset({"zinc": (("y", "x"), values)}, coords={"x": X[:3], "y": Y[:2]})
    return data.assign_coords(spatial_ref=((), 0, pyproj.CRS(RD).to_cf()))


def test_netcdf_and_xarray_keep_their_reference(tmp_path: Path) -> None:
    pytest.importorskip("h5netcdf")
    data = labelled()
    check(read_samples(data, "zinc", covariates=["dist"]), crs=RD)
    data.to_netcdf(tmp_path / "m.nc", engine="h5netcdf")
    check(read_samples(tmp_path / "m.nc", "zinc", covariates=["dist"]), crs=RD)
    data.to_zarr(tmp_path / "m.zarr", consolidated=False)
    check(read_samples(tmp_path / "m.zarr", "zinc", covariates=["dist"]), crs=RD)


ATTRIBUTES = {
    "standard_name": ("projection_x_coordinate", "projection_y_coordinate"),
    "axis": ("X", "Y"),
    "units": ("degrees_east", "degrees_north"),
}


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_attributes_of_the_cf_conventions_name_coordinates(tmp_path: Path, attribute: str) -> None:
    pytest.importorskip("h5netcdf")
    data = labelled().rename({"x": "rechts", "y": "hoch"})
    with pytest.raises(InputError, match="no columns have usual names of coordinates"):
        read_samples(data, "zinc")
    for name, word in zip(("rechts", "hoch"), ATTRIBUTES[attribute], strict=True):
        data[name].attrs[attribute] = word
    data.to_netcdf(tmp_path / "m.nc", engine="h5netcdf")
    for source in (data, tmp_path / "m.nc"):
        table = read_samples(source, "zinc", covariates=["dist"])
        check(table, crs=RD)
        assert table.coordinate_names == ("rechts", "hoch")
        assert any(f"by their attribute {attribute}" in note for note in table.notes)
    two = data.assign(other=data["rechts"])
    two["other"].attrs[attribute] = ATTRIBUTES[attribute][0]
    with pytest.raises(InputError, match="no columns have usual names of coordinates"):
        read_samples(two, "zinc")


def test_attributes_in_degrees_need_a_reference() -> None:
    data = labelled().drop_vars("spatial_ref").rename({"x": "rechts", "y": "hoch"})
    data["rechts"], data["hoch"] = data["rechts"] / 1e5, data["hoch"] / 1e5
    data["rechts"].attrs["units"], data["hoch"].attrs["units"] = "degrees_east", "degrees_north"
    with pytest.raises(InputError, match="look like longitude and latitude"):
        read_samples(data, "zinc")


def test_gaps_of_a_grid_are_no_samples(tmp_path: Path) -> None:
    pytest.importorskip("h5netcdf")
    data = labelled(dims=True)
    data.to_netcdf(tmp_path / "g.nc", engine="h5netcdf")
    for source in (data, data.zinc, tmp_path / "g.nc"):
        table = read_samples(source, "zinc")
        np.testing.assert_array_equal(table.coordinates[0], [*X[[0, 2]], *X[:3]])
        np.testing.assert_array_equal(table.coordinates[1], [*Y[[0, 0]], *Y[[1, 1, 1]]])
        np.testing.assert_array_equal(table.values, [1.0, 3.0, 4.0, 5.0, 6.0])
        assert "1 of 6 points of the grid have no value and are no samples" in table.notes
        assert table.crs is not None


def test_grids_in_time(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    values = np.arange(24.0).reshape(2, 3, 4)
    axes = {"time": pd.date_range("2020-01-01", periods=2), "y": Y[:3], "x": X}
    data = xarray.Dataset({"t": (("time", "y", "x"), values)}, coords=axes)
    data.to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    for source in (data, tmp_path / "t.nc"):
        table = read_samples(source, "t", time="time")
        np.testing.assert_array_equal(table.values, np.arange(24.0))
        np.testing.assert_array_equal(table.coordinates[0], np.tile(X, 6))
        np.testing.assert_array_equal(table.coordinates[2], np.repeat([18262.0, 18263.0], 12))


def test_remote_files(tmp_path: Path) -> None:
    pytest.importorskip("geopandas")
    frame().to_csv(tmp_path / "m.csv", index=False)
    geo().to_file(tmp_path / "m.gpkg")
    geo().to_file(tmp_path / "m.shp")
    for name in ("m.csv", "m.gpkg", "m.shp"):
        write_object(f"memory://kriging-tables/{name}", (tmp_path / name).read_bytes())
    check(read_samples("memory://kriging-tables/m.csv", "zinc", covariates=["dist"]))
    check(read_samples("memory://kriging-tables/m.gpkg", "zinc", covariates=["dist"]), crs=RD)
    with pytest.raises(InputError, match="is a shapefile, which needs the files beside it; copy all of them here"):
        read_samples("memory://kriging-tables/m.shp", "zinc")
    with pytest.raises(InputError, match="There is no file or folder at"):
        read_samples(tmp_path / "none.csv", "zinc")


def test_options_go_to_the_format(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("x;y;größe\n1;2;3\n4;5;6\n".encode("latin-1"))
    assert read_samples(path, "größe", encoding="latin-1").values.tolist() == [3.0, 6.0]
    pytest.importorskip("geopandas")
    geo().to_file(tmp_path / "m.gpkg")
    with pytest.raises(InputError, match="`encoding` is no option of a GeoPackage; leave it out"):
        read_samples(tmp_path / "m.gpkg", "zinc", encoding="latin-1")
    with pytest.raises(InputError, match="got 2 files, the first a GeoPackage; vector files are read one by one"):
        read_samples([tmp_path / "m.gpkg", path], "zinc")


def test_a_table_of_samples_is_printed_in_a_line() -> None:
    assert repr(read_samples(frame(), "zinc")) == "SampleTable(4 samples of zinc at x, y)"


def test_points_without_a_target() -> None:
    table = read_samples(frame())
    assert table.data == ()
    np.testing.assert_array_equal(table.coordinates, [X, Y])
    table = read_samples(geo())
    np.testing.assert_array_equal(table.coordinates, [X, Y])


def test_several_targets_height_and_noise() -> None:
    table = read_samples(frame(lead=2.0 * ZINC, h=DIST, e=0.1 * ZINC), ["zinc", "lead"], z="h", noise="e")
    np.testing.assert_array_equal(table.data, [ZINC, 2.0 * ZINC])
    np.testing.assert_array_equal(table.coordinates, [X, Y, DIST])
    assert table.coordinate_names == ("x", "y", "h")
    np.testing.assert_array_equal(table.noise, 0.1 * ZINC)
    assert table.values == table.data


# -------------------------------------------------------------------------------------------------------------- time


def test_dates_become_days(tmp_path: Path) -> None:
    texts = ["2024-01-31", "2024-02-01", "2024-02-01T12:00:00", "1970-01-02"]
    dates = pd.to_datetime(pd.Series(texts), format="ISO8601")
    days = [19753.0, 19754.0, 19754.5, 1.0]
    frame(day=texts).to_csv(tmp_path / "d.csv", index=False)
    tables = [frame(day=texts), frame(day=dates), frame(day=dates.dt.tz_localize("UTC")), tmp_path / "d.csv"]
    for source in tables:
        table = read_samples(source, "zinc", time="day")
        np.testing.assert_array_equal(table.coordinates[2], days)
        assert "the dates of 'day' are days since 1970-01-01 (UTC)" in table.notes
    # The facade makes the same numbers of dates.
    from dkgp.kriging.space import Space

    places = Space(2, has_time=True).places((X, Y, dates.to_numpy()))
    np.testing.assert_array_equal(places[:, 2], days)


def test_numbers_of_time_stay(tmp_path: Path) -> None:
    frame(year=[2001, 2002, 2003, 2004]).to_csv(tmp_path / "d.csv", index=False)
    table = read_samples(tmp_path / "d.csv", "zinc", time="year")
    np.testing.assert_array_equal(table.coordinates[2], [2001, 2002, 2003, 2004])
    assert table.notes == ()


def test_texts_that_are_no_dates_are_refused() -> None:
    with pytest.raises(InputError, match=r"'time' holds the text 'soon' in row 2 .* expected a number or a date"):
        read_samples(frame(day=["2024-01-31", "soon", "2024-01-31", "2024-01-31"]), "zinc", time="day")


def test_dates_and_numbers_of_time_do_not_mix() -> None:
    clock = _Clock()
    clock(np.array(["2024-01-31"], dtype=object), str)
    with pytest.raises(InputError, match="the column of time holds dates and numbers, the other kind from 0 on"):
        clock(np.array(["7"], dtype=object), str)


# ------------------------------------------------------------------------------------------------------------- columns


def test_unknown_and_ambiguous_columns_are_listed() -> None:
    with pytest.raises(InputError, match="There is no target 'zn' in 'DataFrame'; available: 'x', 'y', 'zinc', 'dist'"):
        read_samples(frame(), "zn")
    plain = frame().rename(columns={"x": "a", "y": "b"})
    with pytest.raises(InputError, match="no columns have usual names of coordinates, such as x and y; the columns of"):
        read_samples(plain, "zinc")
    with pytest.raises(
        InputError, match=r"\(longitude and latitude; x and y\); the columns of 'DataFrame' are 'x', 'y',"
    ):
        read_samples(frame(longitude=X, latitude=Y), "zinc")
    with pytest.raises(InputError, match="give both `x` and `y`, or none of them; got `x` 'a', `y` None"):
        read_samples(plain, "zinc", x="a")
    with pytest.raises(InputError, match="`x` and `y` are both 'a'; expected two columns"):
        read_samples(plain, "zinc", x="a", y="a")
    np.testing.assert_array_equal(read_samples(plain, "zinc", x="a", y="b").coordinates, [X, Y])
    with pytest.raises(InputError, match="the column name 'x' occurs twice"):
        read_samples(pd.concat([frame(), frame()], axis=1), "zinc")
    with pytest.raises(InputError, match="samples are read from paths, DataFrames, GeoDataFrames and xarray"):
        read_samples(3.0, "zinc")
    import xarray

    with pytest.raises(InputError, match="There is no target 'zn' in 'Dataset'; available: 'a'"):
        read_samples(xarray.Dataset({"a": ("n", X)}), "zn")
    with pytest.raises(InputError, match="the Dataset has no variables; expected coordinates and values"):
        read_samples(xarray.Dataset())


def test_text_is_refused_by_column_and_row() -> None:
    with pytest.raises(InputError, match="The column 'zinc' holds the text 'low' in row 3 of 'DataFrame'"):
        read_samples(frame(zinc=[1.0, 2.0, "low", 3.0]), "zinc")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("93,8", "number with a decimal comma; save the file with decimal points"),
        ("<5", "measurement beyond a detection limit; write a number, or leave the field empty"),
        ("n. d.", "Write a number, leave the field empty if the value is missing"),
    ],
)
def test_texts_of_measured_values_are_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(InputError, match=advice):
        read_samples(frame(zinc=[1.0, 2.0, text, 3.0]), "zinc")


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_commas_are_read_where_they_are_unambiguous(tmp_path: Path, delimiter: str, rng: Any) -> None:
    table = pd.DataFrame(
        {"x": 1e5 * rng.random(50), "y": -rng.random(50), "zinc": np.arange(50), "dist": rng.random(50)}
    )
    table["zinc"] = table["zinc"].astype(str).where(table["zinc"] != 7, "2,5e3")
    path = tmp_path / "points.csv"
    table.to_csv(path, sep=delimiter, decimal=",", index=False)
    samples = read_samples(path, "zinc", covariates=["dist"])
    for values, name in (
        (samples.coordinates[0], "x"),
        (samples.coordinates[1], "y"),
        (samples.covariates["dist"], "dist"),
    ):
        np.testing.assert_array_equal(values, table[name])
    assert samples.values[7] == 2500.0
    assert samples.notes == (f"the numbers of '{path}' have decimal commas",)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,5;2,5;3,5", "1,5;3,5;4.5"], "holds the text"),  # both marks
        (["1,500;2,500;3", "4,500;6,500;9"], "holds the text '1,500'"),  # thousands, perhaps
        (
            [*["1,5;2,5;3,5"] * 30, "1,5;2,5;1.500"],
            r"holds the text '1.500' in line 32 .*; expected a number with a dec",
        ),
        ([*["1,5;2,5;3,5"] * 30, "1,5;2,5;1.500,5"], "holds the text '1.500,5'"),
        (["1;2;3", "1;3;low"], "holds the text 'low'"),
    ],
)
def test_ambiguous_decimal_marks_are_refused(tmp_path: Path, rows: list[str], words: str) -> None:
    path = tmp_path / "points.csv"
    path.write_text("\n".join(["x;y;zinc", *rows]) + "\n")
    with pytest.raises(InputError, match=words):
        read_samples(path, "zinc")


def test_missing_values_are_refused_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    zinc, dist = ZINC.copy(), DIST.copy()
    zinc[1] = dist[1] = dist[3] = np.nan
    frame(zinc=zinc, dist=dist).to_csv(path, index=False)
    with pytest.raises(
        InputError, match=r"'zinc' holds a missing value or NaN in line 3 of .* \(missing in 1 of 4 rows"
    ):
        read_samples(path, "zinc")
    table = read_samples(path, "zinc", covariates=["dist"], drop_missing=True)
    np.testing.assert_array_equal(table.values, ZINC[[0, 2]])
    np.testing.assert_array_equal(table.ids, [0, 2])
    assert table.n_dropped == 2
    assert "left out 2 of 4 rows, in which a value is missing (zinc: 1, dist: 2)" in table.notes
    with pytest.raises(InputError, match="the column 'zinc' holds inf in row 2"):
        read_samples(frame(zinc=[1.0, np.inf, 2.0, 3.0]), "zinc", drop_missing=True)
    with pytest.raises(InputError, match="no row of 'DataFrame' has all values of 'x', 'y', 'zinc'"):
        read_samples(frame(zinc=np.full(4, np.nan)), "zinc", drop_missing=True)
    with pytest.raises(InputError, match="'DataFrame' has no rows; expected samples"):
        read_samples(frame()[:0], "zinc")


def test_noise_is_no_negative_number() -> None:
    with pytest.raises(InputError, match="'e' holds the noise variance -1 in row 2 of .*; expected numbers of at"):
        read_samples(frame(e=[0.0, -1.0, 1.0, 1.0]), "zinc", noise="e")


# ------------------------------------------------------------------------------------------------------------ geometry


def test_other_geometries_are_refused_by_id(tmp_path: Path) -> None:
    geopandas = pytest.importorskip("geopandas")
    import shapely

    shapes = [shapely.Point(0, 1), shapely.LineString([(0, 0), (1, 1)])]
    path = tmp_path / "lines.gpkg"
    geopandas.GeoDataFrame({"zinc": [1.0, 2.0]}, geometry=shapes, crs=RD).to_file(path)
    with pytest.raises(InputError, match=r"the feature 2 of '.*lines.gpkg' is a LineString; expected points"):
        read_samples(path, "zinc")
    several = geopandas.GeoDataFrame({"zinc": [1.0]}, geometry=[shapely.MultiPoint([(0, 0), (1, 1)])], index=["a"])
    with pytest.raises(InputError, match="the feature a of 'GeoDataFrame' is a MultiPoint; expected points"):
        read_samples(several, "zinc")


def test_features_without_a_point_lack_a_value() -> None:
    table = geo()
    table.loc[1, "geometry"] = None
    with pytest.raises(InputError, match="'geometry x' holds a missing value or NaN in row 2"):
        read_samples(table, "zinc")
    assert read_samples(table, "zinc", drop_missing=True).n == 3


def test_layers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "two.gpkg"
    geo().to_file(path, layer="topsoil")
    geo().to_file(path, layer="subsoil")
    with pytest.raises(InputError, match="two.gpkg' has 2 layers, 'topsoil', 'subsoil'; name one as `layer`"):
        read_samples(path, "zinc")
    check(read_samples(path, "zinc", covariates=["dist"], layer="subsoil"), crs=RD)
    with pytest.raises(InputError, match="has no layer 'rock'; it has 'topsoil', 'subsoil'"):
        read_samples(path, "zinc", layer="rock")
    frame().to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(InputError, match="`layer` belongs to vector files such as GeoPackage; '.*m.csv' is none"):
        read_samples(tmp_path / "m.csv", "zinc", layer="rock")


def test_tables_without_geometries_are_no_layers_to_choose(tmp_path: Path) -> None:
    # QGIS stores styles in such a table, beside the samples.
    pyogrio, path = pytest.importorskip("pyogrio"), tmp_path / "qgis.gpkg"
    geo().to_file(path, layer="samples")
    pyogrio.write_dataframe(pd.DataFrame({"styleName": ["red"]}), path, layer="layer_styles", append=True)
    assert len(pyogrio.list_layers(path)) == 2
    check(read_samples(path, "zinc", covariates=["dist"]), crs=RD)


def test_files_that_name_other_files_are_not_opened(tmp_path: Path) -> None:
    pytest.importorskip("geopandas")
    geo().to_file(tmp_path / "secret.gpkg")
    virtual = f'<OGRVRTDataSource><OGRVRTLayer name="s"><SrcDataSource>{tmp_path}/secret.gpkg</SrcDataSource>'
    (tmp_path / "v.gpkg").write_text(f"{virtual}</OGRVRTLayer></OGRVRTDataSource>")
    with pytest.raises(InputError):
        read_samples(tmp_path / "v.gpkg", "zinc")
    command = f'{{"type": "gdal_streamed_alg", "command_line": "gdal vector pipeline ! read {tmp_path}/secret.gpkg"}}'
    (tmp_path / "c.gdalg.json").write_text(command)
    with pytest.raises(InputError, match="holds commands of GDAL, which are not run; expected GeoJSON"):
        read_samples(tmp_path / "c.gdalg.json", "zinc")
    (tmp_path / "d.gpkg").write_bytes((tmp_path / "secret.gpkg").read_bytes()[:5000])
    with pytest.raises(InputError, match=r"d.gpkg' cannot be read as GeoPackage"):
        read_samples(tmp_path / "d.gpkg", "zinc")


# ---------------------------------------------------------------------------------------------------------- references


def test_reference_that_is_asked_for() -> None:
    pyproj = pytest.importorskip("pyproj")
    check(read_samples(frame(), "zinc", covariates=["dist"], crs=RD), crs=RD)
    check(read_samples(geo(), "zinc", covariates=["dist"], crs=pyproj.CRS(RD).to_wkt()), crs=RD)
    table = read_samples(geo(), "zinc", crs=4326)
    moved = pyproj.Transformer.from_crs(RD, 4326, always_xy=True).transform(X, Y)
    np.testing.assert_array_equal(table.coordinates, moved)
    assert table.notes == (f"'GeoDataFrame' is in {RD}: its coordinates are transformed to EPSG:4326",)
    with pytest.raises(InputError, match="'nonsense' is no coordinate reference system"):
        read_samples(frame(), "zinc", crs="nonsense")


def test_references_that_cannot_be_used() -> None:
    geopandas, pyproj = pytest.importorskip("geopandas"), pytest.importorskip("pyproj")
    beyond = geopandas.GeoDataFrame({"zinc": [1.0, 2.0]}, geometry=geopandas.points_from_xy([5, 5], [50, 95]), crs=4326)
    with pytest.raises(InputError, match=r"the point \(5, 95\) of 'GeoDataFrame' lies outside EPSG:3857; check `crs`"):
        read_samples(beyond, "zinc", crs=3857)
    data = labelled()
    two = data.assign_coords(other=((), 0, {"crs_wkt": "EPSG:4326"}))
    with pytest.raises(InputError, match="the data are in several CRS, 'EPSG:28992', 'EPSG:4326'; expected one"):
        read_samples(two, "zinc")
    # Attributes of CF alone.
    utm = pyproj.CRS("EPSG:32631").to_cf()
    bare = {name: value for name, value in utm.items() if name != "crs_wkt"}
    table = read_samples(data.assign_coords(spatial_ref=((), 0, bare)), "zinc")
    assert pyproj.CRS(table.crs).to_cf()["longitude_of_central_meridian"] == 3.0
    wrong = data.assign_coords(spatial_ref=((), 0, {"grid_mapping_name": "moon"}))
    with pytest.raises(InputError, match="the grid mapping of the data is no coordinate reference system"):
        read_samples(wrong, "zinc")


def test_degrees_without_a_reference_are_refused() -> None:
    table = frame(x=X / 1e5 - 118.0, y=Y / 1e5 + 31.0).rename(columns={"x": "lon", "y": "lat"})
    words = r"lon and lat of 'DataFrame' look like longitude and latitude \(-116.2..-116.2, 34.3..34.3\), and no CRS"
    with pytest.raises(InputError, match=words):
        read_samples(table, "zinc")
    assert read_samples(table, "zinc", x="lon", y="lat").crs is None
    pytest.importorskip("pyproj")
    assert read_samples(table, "zinc", crs=4326).crs is not None


# ------------------------------------------------------------------------------------------------------------ polygons


def parishes(shapes: list[Any], **columns: Any) -> Any:
    geopandas = pytest.importorskip("geopandas")
    return geopandas.GeoDataFrame({"name": [f"p{i}" for i in range(len(shapes))]} | columns, geometry=shapes, crs=RD)


def test_polygons_keep_their_ids(tmp_path: Path) -> None:
    pytest.importorskip("geopandas")
    import shapely

    shapes = [shapely.box(0, 0, 2, 1), shapely.MultiPolygon([shapely.box(3, 0, 4, 1)])]
    parishes(shapes).to_file(tmp_path / "p.gpkg")
    polygons = read_polygons(tmp_path / "p.gpkg", crs=RD)
    assert polygons.ids == ("1", "2")
    assert [shape.area for shape in polygons.shapes] == [2.0, 1.0]
    assert polygons.notes == ()
    assert read_polygons(tmp_path / "p.gpkg", ids="name").ids == ("p0", "p1")
    assert read_polygons(parishes(shapes)).ids == ("0", "1")
    moved = read_polygons(parishes(shapes), crs=4326)
    assert moved.notes == (f"'GeoDataFrame' is in {RD}: its corners are transformed to EPSG:4326",)
    assert moved.shapes[0].bounds[0] == pytest.approx(3.3136, abs=1e-3)
    with pytest.raises(InputError, match="There is no column of ids 'nom' in 'GeoDataFrame'; available: 'name', 'geom"):
        read_polygons(parishes(shapes), ids="nom")


def test_polygons_that_are_none_are_refused_by_id(tmp_path: Path) -> None:
    shapely = pytest.importorskip("shapely")
    good, bow = shapely.box(0, 0, 1, 1), shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])
    for bad, words in (
        (shapely.Point(0, 0), "is a Point; expected a polygon"),
        (shapely.Polygon(), "is empty; expected a polygon"),
        (None, "is empty; expected a polygon"),
        (bow, "is no valid polygon: Self-intersection"),
        (shapely.Polygon([(0, 0), (1, 1), (2, 2)]), "valid|no area"),
    ):
        with pytest.raises(InputError, match="the feature 1 of 'GeoDataFrame'.*") as raised:
            read_polygons(parishes([good, bad]))
        assert any(word in str(raised.value) for word in words.split("|"))
    with pytest.raises(InputError, match="'GeoDataFrame' has no CRS; expected EPSG:28992 of the samples"):
        read_polygons(parishes([good]).set_crs(None, allow_override=True), crs=RD)
    with pytest.raises(InputError, match="'GeoDataFrame' has no features; expected polygons"):
        read_polygons(parishes([good])[:0])
    frame().to_csv(tmp_path / "m.csv")
    with pytest.raises(InputError, match="polygons are read from one file of GeoPackage, .* GeoParquet; got "):
        read_polygons(tmp_path / "m.csv")


def test_libraries_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("geopandas")
    geo().to_file(tmp_path / "m.gpkg")
    frame().to_csv(tmp_path / "m.csv", index=False)
    for name in ("geopandas", "pyogrio", "pyproj", "rasterio", "shapely"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"Reading GeoPackage files needs the package 'geopandas'.*dkgp\[geo\]"):
        read_samples(tmp_path / "m.gpkg", "zinc")
    with pytest.raises(MissingExtraError, match="A coordinate reference system needs the package 'pyproj'"):
        read_samples(tmp_path / "m.csv", "zinc", crs=RD)
    with pytest.raises(MissingExtraError, match="A raster of a covariate needs the package 'rasterio'"):
        read_samples(tmp_path / "m.csv", "zinc", covariates={"dist": tmp_path / "m.csv"})
    check(read_samples(tmp_path / "m.csv", "zinc", covariates=["dist"]))
