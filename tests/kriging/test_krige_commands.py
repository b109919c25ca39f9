"""The commands of `dkgp krige`, end to end on one small set, against dense algebra; and their refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray
from scipy.spatial.distance import cdist

from dkgp.commands.reporting.layout import rows_of
from dkgp.kriging import rasters
from dkgp.kriging.commands.further import tables_krige_blocks
from dkgp.kriging.commands.krige import MAP_FIGURES
from dkgp.kriging.commands.options import CellOptions, round_spacing
from dkgp.kriging.field import Field
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.variogram import Variogram
from tests.cli.invoke import Shell, run_json
from tests.drawing import pictures_are_rendered_once as pictures_are_rendered_once

N = 90
WORDS = ("--target", "zinc")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Samples through all commands: where everything lies, and every command's document."""
    folder, rng = tmp_path_factory.mktemp("krige"), np.random.default_rng(3)
    x, y = rng.random((2, N)) * 1000.0
    zinc = np.sin(x / 150.0) + np.cos(y / 200.0) + 0.1 * rng.standard_normal(N)
    pd.DataFrame({"x": x, "y": y, "zinc": zinc, "none": np.where(x > 900, np.nan, zinc)}).to_csv(
        folder / "soil.csv", index=False
    )
    soil, field = folder / "soil.csv", folder / "zinc.zarr"
    documents = {
        "variogram": run_json(
            "krige", "variogram", soil, *WORDS, "--fit", "spherical,exponential", "--out", folder / "v.json",
            "--plot", folder / "v.png", "--bins", 8,
        ),
        "fit": run_json("krige", "fit", soil, *WORDS, "--variogram", folder / "v.json", "--out", field, "--tol", 1e-9),
        "grid": run_json(
            "krige", "grid", field, "--region", "0,900,0,600", "--shape", "3,4", "--variance", "--variance-gap", 0.01,
            "--of", "observation", "--out", folder / "zinc.nc",
        ),
    }  # fmt: skip
    return {"folder": folder, **documents}


@pytest.fixture
def shell(made: dict[str, Any], tmp_path: Path) -> Shell:
    return Shell(tmp_path, {name: made["folder"] / name for name in ("soil.csv", "v.json", "zinc.zarr", "zinc.nc")})


def test_the_variogram_is_fitted_and_written(made: dict[str, Any]) -> None:
    document = made["variogram"]
    assert json.loads((made["folder"] / "v.json").read_text()) == document
    assert (made["folder"] / "v.png").read_bytes().startswith(b"\x89PNG")
    misfits = [each["misfit"] for each in document["models"]]
    assert misfits == sorted(misfits)
    assert document["variogram"] == document["models"][0]["variogram"]
    assert len(document["empirical"]["gamma"]) == 8


def test_a_map_is_that_of_dense_algebra(made: dict[str, Any]) -> None:
    table = pd.read_csv(made["folder"] / "soil.csv")
    model = Variogram.from_dict(made["fit"]["variogram"])
    X, z, one = table[["x", "y"]].to_numpy(), table["zinc"].to_numpy(), np.ones(N)
    with xarray.open_dataset(made["folder"] / "zinc.nc") as map_:
        P = np.column_stack([axis.ravel() for axis in np.meshgrid(map_.x, map_.y)])
        stored = {name: map_[name].to_numpy().ravel() for name in map_.data_vars if map_[name].ndim == 2}
    assert sorted(set(P[:, 0])) == [0.0, 300.0, 600.0, 900.0]
    k, nugget = model.covariance(cdist(X, P)), model.error_variance + model.microscale_variance
    K = model.covariance(cdist(X, X)) + nugget * np.eye(N)
    a, b, c = np.linalg.solve(K, one), np.linalg.solve(K, z), np.linalg.solve(K, k)
    beta = (one @ b) / (one @ a)
    mean = beta + k.T @ (b - beta * a)
    variance = model.total_sill - np.einsum("ij,ij->j", k, c) + (1.0 - one @ c) ** 2 / (one @ a)
    assert (np.abs(stored["mean"] - mean) <= stored["mean_error_bound"] + 1e-9).all()
    assert (stored["variance_lower"] <= variance * (1 + 1e-9)).all()
    assert (stored["variance_upper"] >= variance * (1 - 1e-9)).all()
    assert made["grid"]["cells"] == 12
    assert made["grid"]["mean_error_bound"] == stored["mean_error_bound"].max()
    assert made["grid"]["intervals_met"] == stored["interval_met"].mean()
    assert made["grid"]["empty_cells"] == 0
    assert made["fit"]["kind"] == "ordinary"


def test_values_of_a_variogram_are_typed(shell: Shell) -> None:
    line = "krige fit @soil.csv --target zinc --model spherical --range 500 --psill 1.5 --nugget 0.02 --degree 1"
    document = shell.json(f"{line} --out @field.zarr --azimuth 30 --ratio 0.5")
    assert document["kind"] == "universal"
    field = Field.open(str(shell.folder / "field.zarr"))
    assert field.variogram == Variogram("spherical", range=500, psill=1.5, nugget=0.02, azimuth=30, ratio=0.5)
    told = shell.told(f"{line} --out @field.zarr --overwrite")
    assert "spherical: partial sill 1.5, range 500, nugget 0.02" in told
    assert shell.json("info @field.zarr")["kind"] == "model"


@pytest.mark.parametrize(
    ("options", "spacing", "region"),
    [
        ({"spacing": 100.0}, (100.0, 100.0), (1000.0, 2000.0, -300.0, 400.0)),
        ({}, (5.0, 5.0), (1025.0, 1995.0, -205.0, 310.0)),
        (
            {"spacing": 100.0, "region": (1030.0, 1990.0, -200.0, 300.0)},
            (100.0, 100.0),
            (1030.0, 2030.0, -200.0, 300.0),
        ),
        ({"shape": (3, 5)}, (257.0, 241.8), (1027.3, 1994.5, -204.0, 310.0)),
    ],
)
def test_cells_are_square_and_of_the_spacing_that_was_asked_for(
    options: dict[str, Any], spacing: tuple[float, float], region: tuple[float, ...]
) -> None:
    cells = CellOptions(**options).grid((1027.3, 1994.5, -204.0, 310.0), 200)
    np.testing.assert_allclose(cells.spacing, spacing, rtol=1e-14)
    np.testing.assert_allclose((cells.x[0], cells.x[-1], cells.y[0], cells.y[-1]), region, rtol=1e-14)


def test_spacings_are_round() -> None:
    steps = {21.1: 20.0, 0.00021: 0.0002, 3.9: 5.0, 3.4: 2.5, 8.0: 10.0, 0.0: 1.0}
    assert {step: round_spacing(step) for step in steps} == pytest.approx(steps)


def test_a_map_in_geotiff_opens_in_rasterio(shell: Shell) -> None:
    rasterio = pytest.importorskip("rasterio")
    document = shell.json("krige grid @zinc.zarr --spacing 300 --out @zinc.tif")
    with rasterio.open(shell.folder / "zinc.tif") as raster:
        assert [raster.height, raster.width] == document["shape"]
        assert raster.descriptions == ("mean", "mean_error_bound")
    shell.refuses("krige grid @zinc.zarr --spacing 300 --out @zinc.tif", "--overwrite")


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("variogram @soil.csv --target lead", 3, ("lead", "zinc")),
        ("variogram @soil.csv --target zinc --fit power", 3, ("power", "no sill")),
        ("variogram @soil.csv --target none", 3, ("none",)),
        ("variogram @soil.csv --target zinc --plot v.txt", 3, (".png",)),
        ("fit @soil.csv --target zinc --range 5 --sill 1 --psill 1 --out @out", 3, ("sill",)),
        ("fit @soil.csv --target zinc --range 5 --sill 1 --nugget 2 --out @out", 3, ("exceeds the sill",)),
        ("fit @soil.csv --target zinc --sill 1 --out @out", 3, ("--range",)),
        ("fit @soil.csv --target zinc --range 5 --psill 1 --angle 3 --azimuth 4 --out @out", 3, ("not both",)),
        ("fit @soil.csv --target zinc --variogram @soil.csv --out @out", 3, ("krige variogram",)),
        ("fit @soil.csv --target zinc --time x --out @out", 3, ("--time-scale",)),
        ("fit @soil.csv --target zinc --mean 1 --degree 1 --out @out", 3, ("universal",)),
        ("fit @soil.csv --target zinc --tol nothing --out @out", 2, ("auto",)),
        ("fit @soil.csv --target zinc --tol -1 --out @out", 3, ("above zero, or auto",)),
        ("grid @zinc.zarr --out @zinc.png", 3, (".tif", "zinc.png")),
        ("grid @zinc.zarr --out @z.zarr --region 0,1,0", 3, ("west, east, south and north",)),
        ("grid @zinc.zarr --out @z.zarr --region a,b", 2, ("0,1000,0,500",)),
        ("grid @zinc.zarr --out @z.zarr --shape 3", 3, ("rows and columns",)),
        ("grid @nowhere.zarr --out @z.zarr", 3, ("nowhere.zarr",)),
        ("grdi @zinc.zarr", 2, ("No such command 'grdi'", "grid")),
    ],
)
def test_refusals_have_words(shell: Shell, line: str, code: int, words: tuple[str, ...]) -> None:
    shell.refuses(f"krige {line}", *words, code=code)
    assert not shell.names


def test_a_model_that_is_no_field_is_refused(shell: Shell, rng: np.random.Generator) -> None:
    from dkgp import GPRegressor
    from dkgp.kernels import SquaredExponential

    kernel = SquaredExponential(gamma=(0.5,), variance=1.0, n_features=2)
    GPRegressor(kernel, noise_variance=0.1).fit(rng.random((9, 2)), rng.random(9)).save(shell.folder / "model.zarr")
    shell.refuses("krige grid @model.zarr --out @z.zarr", "no kriged field")


@pytest.fixture(scope="module")
def mapped(made: dict[str, Any]) -> dict[str, Any]:
    """The document of all steps in one command."""
    folder = made["folder"]
    words = ("--fit", "matern32,exponential", "--shape", "5,6")
    return run_json("krige", folder / "soil.csv", *WORDS, "--out", folder / "all.zarr", *words)


def test_one_command_makes_map_and_report(made: dict[str, Any], mapped: dict[str, Any]) -> None:
    folder = made["folder"]
    models = mapped["variogram"]["models"]
    assert [each["nlpd"] for each in models] == sorted(each["nlpd"] for each in models)
    assert mapped["fit"]["variogram"] == models[0]["variogram"]
    assert mapped["grid"]["shape"] == [5, 6]
    text = (folder / "all.html").read_text()
    assert text.count("<svg") == 2
    for words in (
        "The map uses the first model, which has the lowest NLPD",
        "is proven to be within",
        "zinc: map of 90 samples",
        "dkgp krige fit",
        models[0]["name"],
        "likelihood",
    ):
        assert words in text
    assert json.loads((folder / "all.krige.json").read_text()) == mapped
    # The last command of the report makes the same map.
    line = shlex.split(mapped["commands"][-1])[1:]
    line[line.index("--out") + 1] = str(folder / "again.zarr")
    run_json(*line)
    with xarray.open_zarr(folder / "all.zarr") as first, xarray.open_zarr(folder / "again.zarr") as again:
        assert first.identical(again)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.5, "worst case {bound:.3g}{of} (units of the target)"), (1.0, "not informative"), (np.nan, "not informative")],
)
def test_a_bound_above_the_deviation_of_the_field_is_not_informative(
    made: dict[str, Any], share: float, words: str
) -> None:
    document, title = made["grid"], "mean certified within"
    deviation = Variogram.from_dict(made["fit"]["variogram"]).field_variance ** 0.5
    assert document["prior_deviation"] == pytest.approx(deviation, rel=1e-14)
    bound = share * deviation
    assert dict(rows_of(MAP_FIGURES, {**document, "mean_error_bound": bound}))[title] == words.format(
        bound=bound, of=""
    )
    blocks = {"out": "b.csv", "blocks": 2, "interval_width": 0.1, "seconds": 1.0, "mean_error_bound_of": "north"}
    (sheet,) = tables_krige_blocks({**blocks, "mean_error_bound": bound, "prior_deviation": deviation})
    assert dict(sheet.rows)[title] == words.format(bound=bound, of=" in area north")
    # Documents of earlier versions do not have the deviation.
    earlier = {name: value for name, value in document.items() if name != "prior_deviation"}
    assert dict(rows_of(MAP_FIGURES, earlier))[title].startswith(f"worst case {document['mean_error_bound']:.3g} (")


def test_info_describes_the_field_in_map_units(shell: Shell, made: dict[str, Any]) -> None:
    document = shell.json("info @zinc.zarr")
    assert document["kriging"]["variogram"] == made["fit"]["variogram"]
    assert document["kriging"]["region"] == made["fit"]["region"]
    assert (document["kriging"]["kind"], document["kriging"]["crs"]) == ("ordinary", None)
    pytest.importorskip("pyproj")
    shell.json("krige fit @soil.csv --target zinc --crs EPSG:28992 --range 300 --psill 1 --out @f.zarr")
    told = shell.told("info @f.zarr")
    assert "Amersfoort / RD New" in told
    assert "PROJCRS" not in told


def test_figures_of_text_have_units(shell: Shell) -> None:
    pytest.importorskip("pyproj")
    variogram = "--model spherical --range 300 --psill 12345.678"
    told = shell.told(f"krige fit @soil.csv --target zinc --crs EPSG:2263 {variogram} --out @f.zarr")
    assert "partial sill 12,346, range 300 US ft" in told
    assert "EPSG:2263" in told
    told = shell.told("krige grid @f.zarr --spacing 250 --out @f.nc")
    assert "250 US ft east, 250 US ft north" in told
    told = shell.told("krige variogram @soil.csv --target zinc --crs EPSG:28992 --fit spherical")
    assert "range (m)" in told
    assert "lag (m)" in told


def test_a_map_that_is_done_is_resumed_at_once(shell: Shell, made: dict[str, Any], mapped: dict[str, Any]) -> None:
    folder = made["folder"]
    words = ("--fit", "matern32,exponential", "--shape", "5,6")
    line = ("krige", folder / "soil.csv", *WORDS, "--out", folder / "all.zarr")
    assert run_json(*line, *words, "--resume") == mapped
    shell.refuses(f"krige @soil.csv --target zinc --out {folder}/all.zarr", "--overwrite")
    shell.refuses(f"krige @soil.csv --target zinc --out {folder}/all.zarr --degree 1 --resume", "another cells")


def test_steps_that_are_done_are_not_repeated(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from dkgp.errors import InterruptedRunError
    from dkgp.kriging.commands import krige

    def interrupted(*arguments: Any) -> None:
        raise InterruptedRunError("stopped")

    line = "krige @soil.csv --target zinc --fit exponential --no-variance --shape 4,4 --out @m.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(krige, "write_field", interrupted)
        shell.json(line, code=130)
    record = json.loads((shell.folder / "m.krige.json").read_text())
    assert list(record["phases"]) == ["variogram", "fit"]
    assert not (shell.folder / "m.zarr").exists()
    with monkeypatch.context() as patch:
        patch.setattr(krige.KrigeFitRun, "work", interrupted)
        document = shell.json(f"{line} --resume")
    assert document["finished"]
    assert document["grid"]["variance"] is False
    assert (shell.folder / "m.zarr").exists()


def test_a_drift_leaves_the_variogram_of_residuals(shell: Shell, made: dict[str, Any]) -> None:
    table = pd.read_csv(made["folder"] / "soil.csv")
    table["trend"] = table["zinc"] + 0.05 * table["x"]
    table.to_csv(shell.folder / "trend.csv", index=False)
    line = "krige variogram @trend.csv --target trend --fit exponential --bins 5"
    plain, linear = shell.json(line), shell.json(f"{line} --degree 1")
    assert linear["empirical"]["variance"] < 0.02 * plain["empirical"]["variance"]
    detrended = shell.json("krige variogram @soil.csv --target zinc --fit exponential --bins 5 --degree 1")
    np.testing.assert_allclose(linear["empirical"]["gamma"], detrended["empirical"]["gamma"], rtol=1e-8)


def test_a_warning_is_the_commands_own(shell: Shell, made: dict[str, Any]) -> None:
    """It is printed with the option's flag and without a line of code, and stands in the document."""
    table = pd.read_csv(made["folder"] / "soil.csv")
    table.assign(lon=16.2 + table["x"] / 3e3, lat=48.0 + table["y"] / 3e3).to_csv(shell.folder / "degrees.csv")
    line = "krige variogram @degrees.csv --target zinc --x lon --y lat --bins 5"
    (warning,) = shell.json(line)["warnings"]
    assert warning.startswith("coordinates may be longitude and latitude (16.2..16.5, 48.0..48.3), and are taken as")
    assert warning.endswith("Pass --crs EPSG:4326 if they are degrees, or --metric plane if they are not")
    told = shell.told(line)
    assert f"warning: {warning}" in told
    assert "UserWarning" not in told


def test_blocks_are_averages_of_the_map(shell: Shell, made: dict[str, Any]) -> None:
    document = shell.json("krige blocks @zinc.zarr --spacing 300 --region 150,450,150,450 --out @b.csv")
    table = pd.read_csv(shell.folder / "b.csv")
    assert document["blocks"] == len(table) == 4
    field = Field.open(str(made["folder"] / "zinc.zarr"))
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(2.5, 300.0, 5.0), np.arange(2.5, 300.0, 5.0)))
    points = field.at(field.space.places((x, y))).mean[:, 0]
    assert abs(points.mean() - table["mean"][0]) <= table["mean_error_bound"][0] + 1e-4
    assert (table["variance_lower"] <= table["variance_upper"]).all()
    np.testing.assert_allclose(table["area"], 300.0**2)
    assert table.loc[1, ["west", "east", "south", "north"]].tolist() == [300.0, 600.0, 0.0, 300.0]
    worst = table.loc[table["id"].astype(str) == document["mean_error_bound_of"], "mean_error_bound"].item()
    assert worst == pytest.approx(document["mean_error_bound"])


def test_polygons_are_read_and_written(shell: Shell) -> None:
    geopandas, shapely = pytest.importorskip("geopandas"), pytest.importorskip("shapely")
    squares = [shapely.box(0, 0, 60, 60), shapely.Polygon([(300, 300), (360, 300), (330, 360)])]
    frame = geopandas.GeoDataFrame({"parish": ["west", "east"]}, geometry=squares, crs=None)
    frame.to_file(shell.folder / "parishes.geojson", driver="GeoJSON")
    shell.json("krige blocks @zinc.zarr @parishes.geojson --ids parish --out @p.gpkg")
    written = geopandas.read_file(shell.folder / "p.gpkg")
    assert written["id"].tolist() == ["west", "east"]
    np.testing.assert_allclose(written.geometry.area, [3600.0, 1800.0])
    shell.json("krige blocks @zinc.zarr @parishes.geojson --ids parish --out @p.csv")
    table = pd.read_csv(shell.folder / "p.csv")
    assert table.loc[1, ["west", "east", "south", "north"]].tolist() == [300.0, 360.0, 300.0, 360.0]
    shell.refuses("krige blocks @zinc.zarr @parishes.geojson --out @p.gpkg", "--overwrite")


def test_a_layer_of_a_file_with_several_is_named(shell: Shell, made: dict[str, Any]) -> None:
    geopandas, shapely = pytest.importorskip("geopandas"), pytest.importorskip("shapely")
    table = pd.read_csv(made["folder"] / "soil.csv")
    samples = geopandas.GeoDataFrame(table[["zinc"]], geometry=shapely.points(table[["x", "y"]].to_numpy()))
    square = geopandas.GeoDataFrame({"parish": ["west"]}, geometry=[shapely.box(0, 0, 60, 60)], crs=None)
    for name, frame in (("topsoil", samples), ("parishes", square)):
        frame.to_file(shell.folder / "two.gpkg", layer=name, driver="GPKG")
    shell.refuses("krige fit @two.gpkg --target zinc --out @f.zarr", "2 layers, 'topsoil', 'parishes'", "--layer")
    line = "krige fit @two.gpkg --target zinc --layer topsoil --model spherical --range 300 --psill 1 --out @f.zarr"
    assert shell.json(line)["n"] == N
    shell.refuses("krige blocks @zinc.zarr @two.gpkg --out @p.csv", "--layer")
    assert shell.json("krige blocks @zinc.zarr @two.gpkg --layer parishes --out @p.csv")["blocks"] == 1


def test_fields_are_drawn_around_the_mean(shell: Shell) -> None:
    document = shell.json("krige simulate @zinc.zarr --fields 60 --shape 3,4 --out @s.zarr --method cholesky")
    assert document["simulation"]["method"] == "cholesky"
    shell.json("krige grid @zinc.zarr --shape 3,4 --variance --out @m.zarr")
    with xarray.open_zarr(shell.folder / "s.zarr") as fields, xarray.open_zarr(shell.folder / "m.zarr") as map_:
        (drawn,) = (fields[name] for name in fields.data_vars if fields[name].ndim == 3)
        away = (drawn.mean("field") - map_["mean"]) / np.sqrt(map_["variance_upper"] / 60)
        assert float(np.abs(away).max()) < 4.5
    shell.refuses("krige simulate @zinc.zarr --fields 2 --shape 3,4 --out @s.zarr", "exists", "--overwrite")
    shell.json("krige simulate @zinc.zarr --fields 2 --shape 3,4 --out @s.zarr --overwrite")
    with xarray.open_zarr(shell.folder / "s.zarr") as fields:
        assert fields["zinc"].shape == (2, 3, 4)


def test_samples_are_predicted_from_the_others(shell: Shell, made: dict[str, Any]) -> None:
    document = shell.json("krige check @zinc.zarr --plot @cv.png --out @cv.json")
    assert json.loads((shell.folder / "cv.json").read_text()) == document
    table = pd.read_csv(made["folder"] / "soil.csv")
    model = Variogram.from_dict(made["fit"]["variogram"])
    X, z = table[["x", "y"]].to_numpy(), table["zinc"].to_numpy()
    K = model.covariance(cdist(X, X)) + (model.error_variance + model.microscale_variance) * np.eye(N)
    P = np.linalg.inv(K)
    P -= np.outer(P.sum(axis=1), P.sum(axis=1)) / P.sum()
    error = (P @ z) / P.diagonal()
    figures = document["figures"]["zinc"]
    assert figures["RMSE"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    assert figures["SRMSE"] == pytest.approx(np.sqrt(np.mean(error**2 * P.diagonal())), rel=1e-6)
    blocked = shell.json("krige check @zinc.zarr --blocks 300 --folds 4")
    assert blocked["kind"] == "4 folds of blocks with sides of 300"
    assert blocked["figures"]["zinc"]["RMSE"] > figures["RMSE"]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("blocks @zinc.zarr --out @b.csv", 2, ("--spacing", "--shape", "POLYGONS")),
        ("blocks @zinc.zarr --spacing 300 --out @b.txt", 3, (".gpkg", "b.txt")),
        ("blocks @zinc.zarr --spacing 300", 2, ("--out",)),
        ("blocks @zinc.zarr @nowhere.gpkg --out @b.csv", 3, ("nowhere.gpkg",)),
        ("blocks @zinc.zarr --spacing 300 --quadrature 0 --out @b.csv", 3, ("--quadrature",)),
        ("simulate @zinc.zarr --out @s.nc", 3, (".zarr",)),
        ("simulate @zinc.zarr --shape 3,3 --method circulant --out @s.zarr", 3, ("lattice", "--method fourier")),
        ("check @zinc.zarr --blocks 5000", 3, ("folds",)),
        ("check @zinc.zarr --folds 1", 3, ("--folds",)),
    ],
)
def test_further_refusals_have_words(shell: Shell, line: str, code: int, words: tuple[str, ...]) -> None:
    shell.refuses(f"krige {line}", *words, code=code)
    assert not shell.names


@pytest.mark.parametrize("model", ["spherical", "cubic", "matern32"])
def test_variances_of_many_samples_have_a_way_for_each_model(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    shell.json(f"krige fit @soil.csv --target zinc --model {model} --range 700 --psill 2 --nugget 0.05 --out @f.zarr")
    for name in ("WHOLE", "MOST_WHOLE"):
        monkeypatch.setattr(rasters, name, 10)
    shell.json("krige grid @f.zarr --shape 3,3 --variance --out @m.zarr")
    with xarray.open_zarr(shell.folder / "m.zarr") as map_:
        assert (map_["variance_lower"] <= map_["variance_upper"]).all()


def test_an_external_drift_is_read_from_a_raster(shell: Shell, made: dict[str, Any]) -> None:
    rasterio = pytest.importorskip("rasterio")
    x, y = np.meshgrid(np.arange(-95.0, 1100.0, 10.0), np.arange(1095.0, -100.0, -10.0))
    profile = {"driver": "GTiff", "height": x.shape[0], "width": x.shape[1], "count": 1, "dtype": "float64"}
    place = rasterio.transform.from_origin(-100.0, 1100.0, 10.0, 10.0)
    with rasterio.open(shell.folder / "dist.tif", "w", **profile, transform=place, crs="EPSG:28992") as raster:
        raster.write(np.sin(x / 150.0) + np.cos(y / 200.0), 1)
    line = "--target zinc --crs EPSG:28992 --fit exponential --drift dist=@dist.tif --shape 4,4 --out @m.zarr"
    document = shell.json(f"krige @soil.csv {line}")
    page = (shell.folder / "m.html").read_text()
    assert page.count("<svg") == 2
    for words in ('<th class="number">range (m)', " m east", "EPSG:28992"):
        assert words in page
    coefficients = next(iter(document["fit"]["drift"].values()))
    assert coefficients["dist"]["value"] == pytest.approx(1.0, abs=0.1)
    with xarray.open_zarr(shell.folder / "m.zarr") as map_:
        truth = np.sin(map_.x / 150.0) + np.cos(map_.y / 200.0)
        assert float(np.abs(map_["mean"] - truth).max()) < 0.3
    shell.refuses(f"krige grid {shell.folder}/m.field.zarr --shape 3,3 --covariates dist --out @n.zarr", "NAME=FILE")
    shell.refuses(
        "krige fit @soil.csv --target zinc --drift dist=a.tif,x --range 5 --psill 1 --out @f.zarr",
        "either all columns, or all rasters",
    )


def test_a_map_of_one_time_is_made_and_drawn(shell: Shell, rng: np.random.Generator) -> None:
    x, y, day = rng.random((3, 80)) * np.array([[1000.0], [1000.0], [30.0]])
    zinc = np.sin(x / 200.0) + np.cos(day / 9.0) + 0.05 * rng.standard_normal(80)
    dates = (pd.Timestamp("2024-02-01") + pd.to_timedelta(day, "D")).astype(str)
    pd.DataFrame({"x": x, "y": y, "when": dates, "zinc": zinc}).to_csv(shell.folder / "t.csv", index=False)
    line = "krige @t.csv --target zinc --time when --time-scale 20 --fit exponential --shape 4,5"
    document = shell.json(f"{line} --at-time 2024-02-10 --out @m.zarr")
    assert document["variogram"]["models"]
    # The same map by the last command of the report, and by the engine.
    words = shlex.split(document["commands"][-1])
    days = (pd.Timestamp("2024-02-10") - pd.Timestamp("1970-01-01")).days
    assert float(words[words.index("--time") + 1]) == days
    field = Field.open(str(shell.folder / "m.field.zarr"))
    with xarray.open_zarr(shell.folder / "m.zarr") as map_:
        cells = np.meshgrid(map_.x, map_.y)
        mean = field.at(field.space.places((*cells, np.full((4, 5), float(days))))).mean[:, 0]
        np.testing.assert_allclose(map_["mean"].to_numpy().ravel(), mean, rtol=1e-9)
    page = (shell.folder / "m.html").read_text()
    assert page.count("<figure>") == 2
    shell.refuses(f"{line} --out @n.zarr", "--time", "--at-time")
    shell.refuses(f"{line} --at-time spring --out @n.zarr", "2024-02-01", code=2)


@pytest.mark.parametrize("ending", ["tif", "nc", "zarr"])
def test_the_picture_of_a_map_is_read_from_it(tmp_path: Path, ending: str, rng: np.random.Generator) -> None:
    if ending == "tif":
        pytest.importorskip("rasterio")
    x, y = rng.random((2, 40)) * 100.0
    kriging = Kriging(Variogram("gaussian", psill=1.0, range=40.0, nugget=0.1)).fit((x, y), np.sin(x / 30.0) + y / 50.0)
    kriging.grid((0, 100, 0, 60), shape=(31, 51), variance=True, out=tmp_path / f"m.{ending}")
    grid, layers = rasters.coarse_map(str(tmp_path / f"m.{ending}"), 20)
    assert max(grid.shape) <= 20
    assert list(layers) == ["mean", "variance"]
    here = kriging.predict(tuple(np.meshgrid(grid.x, grid.y)))
    assert np.abs(layers["mean"] - here).max() < (0.1 if ending == "tif" else 1e-9)
