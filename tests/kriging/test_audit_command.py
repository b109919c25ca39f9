"""`dkgp audit`: proven ends against dense truth, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist

from dkgp import GPRegressor
from dkgp.kernels import SquaredExponential
from dkgp.kriging.field import Field, Solving
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from tests.cli.invoke import Shell, document_of, run

N, R = 80, 30
VARIOGRAM = Variogram("exponential", psill=2.0, range=1.5, nugget=(0.2, 0.1))


def dense(X: Any, z: Any, P: Any) -> tuple[Any, Any]:
    """Mean and variance of an observation by ordinary kriging; the last point is the place of sample 0."""
    K = VARIOGRAM.covariance(cdist(X, X)) + 0.3 * np.eye(len(X))
    k, one = VARIOGRAM.covariance(cdist(X, P)), np.ones(len(X))
    a, b, c = np.linalg.solve(K, one), np.linalg.solve(K, z), np.linalg.solve(K, k)
    beta, rest = (one @ b) / (one @ a), 1.0 - one @ c
    mean, signal = beta + k.T @ (b - beta * a), 2.0 - np.einsum("ij,ij->j", k, c) + rest**2 / (one @ a)
    variance = signal + 0.1
    share = 0.2 / 0.3
    mean[-1] = z[0] - share * (z[0] - mean[-1])
    variance[-1] = share * 0.1 + share**2 * signal[-1]
    return mean, variance + 0.2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A kriged field, and a table of predictions by 12 neighbours, with the exact ones."""
    folder, rng = tmp_path_factory.mktemp("audit"), np.random.default_rng(5)
    X, P = rng.random((N, 2)) * 6.0, rng.random((R, 2)) * 6.0
    z = np.sin(X[:, 0]) + 0.5 * rng.standard_normal(N) + 3.0
    P[-1] = X[0]
    space = Space(2)
    samples = Samples(space.places(tuple(X.T)), z[:, None], np.full(N, 0.2), 0.1, np.zeros((N, 0)))
    field = Field.fit(samples, space, VARIOGRAM, Solving(tolerance=1e-6), names=("zinc",))
    field.save(str(folder / "zinc.zarr"))
    mean, variance = dense(X, z, P)
    near = [np.argsort(cdist(P[[i]], X)[0])[:12] for i in range(R)]
    theirs = [dense(X[rows], z[rows], np.vstack([P[[i]], X[rows[:1]]])) for i, rows in enumerate(near)]
    table = pd.DataFrame(
        {
            "easting": P[:, 0],
            "northing": P[:, 1],
            "pred": [m[0] for m, _ in theirs],
            "var": [v[0] for _, v in theirs],
            "exact": mean,
            "exact_var": variance,
        }
    )
    table.to_csv(folder / "theirs.csv", index=False)
    table.to_parquet(folder / "theirs.parquet")
    return {"folder": folder, "table": table}


@pytest.fixture
def shell(made: dict[str, Any], tmp_path: Path) -> Shell:
    folder = made["folder"]
    places = {name: folder / name for name in ("zinc.zarr", "theirs.csv", "theirs.parquet")}
    return Shell(tmp_path, places)


def test_neighbours_are_judged_as_dense_algebra_has_it(shell: Shell, made: dict[str, Any]) -> None:
    table = made["table"]
    document = shell.json(
        "audit @zinc.zarr @theirs.csv --mean pred --variance var --out @audit.json --plot @audit.png "
        "--variance-gap 0.01"
    )
    error = np.abs(table["pred"] - table["exact"])
    ratio = table["var"] / table["exact_var"]
    divergence = 0.5 * (1.0 / ratio - 1.0 + np.log(ratio) + error**2 / table["var"])
    true = {
        "mean_rms_error": float(np.sqrt(np.mean(error**2))),
        "mean_largest_error": float(error.max()),
        "mean_largest_deviation": float((error / np.sqrt(table["exact_var"])).max()),
        "mean_divergence": float(divergence.mean()),
    }
    for name, value in true.items():
        ends = document[name]
        assert ends["at_least"] <= value <= ends["at_most"]
        assert ends["at_most"] - ends["at_least"] <= 0.05 * value + 1e-3
    assert document["variance"]["median_ratio"]["at_least"] <= np.median(ratio)
    assert document["variance"]["median_ratio"]["at_most"] >= np.median(ratio)
    for verdict in document["verdicts"]:
        off = float((error / np.sqrt(table["exact_var"]) > verdict["level"]).mean())
        assert verdict["proven_off"] <= off <= 1.0 - verdict["proven_within"] + 1e-12
    assert document["points"] == R
    assert document["points_at_samples"] == 1
    assert "approximates another Gaussian process" in document["reference"]
    assert json.loads((shell.folder / "audit.json").read_text()) == document
    assert (shell.folder / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_semicolons_and_decimal_commas_are_read(shell: Shell, made: dict[str, Any]) -> None:
    made["table"].to_csv(shell.folder / "german.csv", index=False, sep=";", decimal=",")
    line = "audit @zinc.zarr {} --mean pred --means"
    german, plain = (shell.json(line.format(table)) for table in ("@german.csv", "@theirs.csv"))
    assert german["mean_rms_error"] == plain["mean_rms_error"]


def test_the_exact_predictions_are_proven_right(shell: Shell) -> None:
    document = shell.json("audit @zinc.zarr @theirs.parquet --mean exact --variance exact_var")
    assert document["verdicts"][0]["proven_within"] == 1.0
    assert document["variance"]["undecided"] == 1.0
    assert document["mean_divergence"]["at_least"] == 0.0
    # Another quantity is another process.
    signal = shell.json("audit @zinc.zarr @theirs.parquet --mean exact --variance exact_var --of signal")
    assert signal["variance"]["proven_too_large"] > 0.9


def test_the_table_says_between_which_ends(shell: Shell) -> None:
    told = shell.told("audit @zinc.zarr @theirs.csv --mean pred --variance var")
    for words in (
        "every range is proven",
        "points 30 of",
        "undecided",
        "approximates another Gaussian process",
    ):
        assert words in told
    only = shell.json("audit @zinc.zarr @theirs.csv --mean pred --means")
    assert "verdicts" not in only


def test_a_regression_of_features_is_audited_by_their_names(shell: Shell, rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 3))
    y = X[:, 0] + 0.1 * rng.standard_normal(60)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    kernel = SquaredExponential(gamma=(0.2,), variance=1.0, n_features=3)
    GPRegressor(kernel, noise_variance=0.1, tol=1e-9).fit(frame, y).save(shell.folder / "model.zarr")
    rows, values = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    columns = np.exp(-0.2 * cdist(rows, rows, "sqeuclidean"))
    inverse = np.linalg.inv(columns + 0.1 * np.eye(60))
    mean = y.mean() + y.std() * (columns @ inverse @ values)
    std = y.std() * np.sqrt(1.1 - np.einsum("ij,jk,ki->i", columns, inverse, columns))
    theirs = frame.assign(mu=mean, sigma=std)[["sigma", "c", "mu", "a", "b"]]
    theirs.to_csv(shell.folder / "theirs.csv", index=False)
    document = Shell(shell.folder).json("audit @model.zarr @theirs.csv --mean mu --std sigma")
    assert document["verdicts"][0]["proven_within"] == 1.0
    assert document["variance"]["undecided"] == 1.0


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--mean nothing", 3, ("no column 'nothing'", "'easting', 'northing', 'pred', 'var'")),
        ("--mean pred --variance v2", 3, ("no column 'v2'", "'easting'")),
        ("--mean pred --variance var --std var", 2, ("--variance", "--std", "one of them")),
        ("--mean pred --variance var --means", 2, ("--means",)),
        ("--mean pred --x nowhere", 3, ("no column 'nowhere'",)),
        ("--mean pred --target lead", 3, ("predicts no 'lead'", "'zinc'")),
        ("--mean pred --of latent", 2, ("signal", "field", "observation")),
        ("--mean pred --variance-gap 0", 3, ("--variance-gap",)),
        ("--mean pred --plot a.txt", 3, (".png", "a.txt")),
    ],
)
def test_refusals_say_which_columns_there_are(shell: Shell, options: str, code: int, words: tuple[str, ...]) -> None:
    shell.refuses(f"audit @zinc.zarr @theirs.csv {options}", *words, code=code)
    assert not shell.names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x,y,pred,var\n1,1,2,0.5\n1,1,,0.5\n", ("'pred'", "row 2", "1 of 2 rows")),
        ("x,y,pred,var\n1,1,two,0.5\n", ("'pred'", "'two' in row 1")),
        ("x,y,pred,var\n1,1,2,-0.5\n", ("'var'", "-0.5 in row 1", "negative in 1 of 1 rows")),
        ("x,y,pred,var\n", ("no rows",)),
        ("", ("is empty",)),
        ("x,pred,var\n1,2,0.5\n", ("coordinate y", "'x', 'pred', 'var'", "--y")),
        ("x,y,pred,var\n1,inf,2,0.5\n", ("'y'", "'inf' in row 1")),
    ],
)
def test_hostile_tables_are_refused(shell: Shell, text: str, words: tuple[str, ...]) -> None:
    (shell.folder / "bad.csv").write_text(text)
    shell.refuses("audit @zinc.zarr @bad.csv --mean pred --variance var --out @audit.json", *words)
    assert shell.names == {"bad.csv"}


@pytest.mark.parametrize("deviation", ["1e-170", "1e170"])
def test_deviations_whose_squares_are_lost_are_refused(shell: Shell, deviation: str) -> None:
    (shell.folder / "bad.csv").write_text(f"x,y,pred,sd\n1,1,2,{deviation}\n")
    words = ("'sd'", f"{float(deviation):g} in row 1", "square is beyond float64")
    shell.refuses("audit @zinc.zarr @bad.csv --mean pred --std sd", *words)


def test_negative_variances_by_rounding_are_zero(shell: Shell) -> None:
    (shell.folder / "bad.csv").write_text("x,y,pred,var\n1,1,2,0.5\n2,2,2,-5.8e-17\n")
    document = shell.json("audit @zinc.zarr @bad.csv --mean pred --variance var")
    assert "1 of 2 variances in 'var' are negative by rounding" in document["warnings"][0]
    assert document["mean_divergence"] == {"at_least": None, "at_most": None}


def test_outputs_are_not_replaced(shell: Shell) -> None:
    (shell.folder / "audit.json").write_text("{}")
    line = "audit @zinc.zarr @theirs.csv --mean pred --means --out @audit.json"
    shell.refuses(line, "--overwrite")
    shell.json(f"{line} --overwrite")
    shell.refuses("audit @nowhere.zarr @theirs.csv --mean pred", "nowhere.zarr")
    shell.refuses("audit @zinc.zarr @nowhere.csv --mean pred", "no table")


def test_points_in_another_crs_are_transformed(tmp_path: Path, rng: np.random.Generator) -> None:
    geopandas, pyproj = pytest.importorskip("geopandas"), pytest.importorskip("pyproj")
    x, y = rng.random((2, 40)) * 1000.0 + np.array([[190_000.0], [450_000.0]])
    kriging = Kriging(Variogram("exponential", psill=1.0, range=500.0, nugget=0.1), crs="EPSG:28992")
    kriging.fit((x, y), np.sin(x / 200.0))
    kriging.save(tmp_path / "field.zarr")
    east, north = x[:9] + 7.0, y[:9]
    table = pd.DataFrame({"pred": kriging.predict((east, north)), "x": east, "y": north})
    lon, lat = pyproj.Transformer.from_crs(28992, 4326, always_xy=True).transform(east, north)
    frame = geopandas.GeoDataFrame(table[["pred"]], geometry=geopandas.points_from_xy(lon, lat), crs=4326)
    frame.to_parquet(tmp_path / "p.parquet")
    frame.to_file(tmp_path / "p.gpkg")
    table.to_csv(tmp_path / "p.csv", index=False)
    shell = Shell(tmp_path)
    words = {
        "p.parquet": "is in EPSG:4326: its coordinates are transformed to EPSG:28992",
        "p.gpkg": "is in EPSG:4326: its coordinates are transformed to EPSG:28992",
        "p.csv": "has no CRS: its coordinates are read as EPSG:28992 of the model",
    }
    for name, note in words.items():
        result = run("audit", tmp_path / "field.zarr", tmp_path / name, "--mean", "pred", "--means", "--json")
        assert note in " ".join(result.stderr.split())
        # There and back, coordinates are off by some 1e-4 m.
        assert document_of(result)["mean_largest_error"]["at_most"] < 1e-5
    shell.refuses("audit @field.zarr @p.csv --mean pred --x nowhere", "no column 'nowhere'")
