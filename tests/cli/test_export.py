"""Predictions as tables: what pandas, pyarrow and xarray read back, interruptions, full disks, names that are slips."""

from __future__ import annotations

import errno
import gzip
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dkgp.codec import to_json
from dkgp.data import Prediction, PredictionWriter, dataset_from_arrays, open_dataset, open_prediction
from dkgp.data.exports import TABLE_FORMATS, write_table
from dkgp.data.remote.storage import replaced_file
from dkgp.data.stores.standardisation import TargetTransform
from dkgp.errors import StorageError
from tests.cli.conftest import labelled_csv
from tests.cli.invoke import files_below, refused, run, run_json

SUFFIXES = [form.suffix for form in TABLE_FORMATS]
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".csv.gz": pd.read_csv,
    ".parquet": pd.read_parquet,
    ".nc": lambda path: xr.load_dataset(path, engine="h5netcdf").to_dataframe(),
}


@pytest.fixture(scope="module")
def predicted(pipeline: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prediction store with variances, of several chunks."""
    out = tmp_path_factory.mktemp("predicted") / "p.zarr"
    run_json("predict", pipeline["train"]["out"], pipeline["ingest"]["test"], "--out", out, *VARIANCE)
    return out


VARIANCE = ("--variance", "--chunk-rows", 50, "--cluster", "none")


def reference(prediction: Prediction, truth: np.ndarray | None) -> dict[str, np.ndarray]:
    """Columns of one target, from the whole arrays."""
    mean, lower, upper, bound = (
        prediction.read(name)[:, 0] for name in ("mean", "variance_lower", "variance_upper", "mean_error_bound")
    )
    std = np.sqrt((lower + upper) / 2)
    known = {} if truth is None else {"price": truth}
    return {
        "row": np.arange(1, len(mean) + 1),
        **known,
        "mean": mean,
        "std": std,
        "lower_95": mean - 1.959963984540054 * std,
        "upper_95": mean + 1.959963984540054 * std,
        "mean_error_bound": bound,
    }


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("with_truth", [True, False])
def test_a_table_holds_the_store_to_the_bit(
    pipeline: dict[str, Any], predicted: Path, tmp_path: Path, suffix: str, with_truth: bool
) -> None:
    test, out = pipeline["ingest"]["test"], tmp_path / f"p{suffix}"
    told = run_json("export", predicted, out, *(("--dataset", test) if with_truth else ()))
    frame = READERS[suffix](out)
    truth = open_dataset(test).all_targets(standardised=False)[:, 0] if with_truth else None
    expected = reference(open_prediction(str(predicted)), truth)
    assert list(frame) == list(expected) == told["columns"]
    for name, values in expected.items():
        if name in {"std", "lower_95", "upper_95"}:  # sums in another order
            np.testing.assert_allclose(frame[name], values, rtol=1e-14)
        else:
            np.testing.assert_array_equal(frame[name], values)
    assert files_below(tmp_path).keys() == {str(out)}


def test_the_middle_of_a_wide_interval_is_what_deviations_are_of(tmp_path: Path) -> None:
    writer = PredictionWriter.create(
        str(tmp_path / "p.zarr"), 2, ["a", "b"], ("mean", "variance", "variance_lower", "variance_upper")
    )
    upper = np.array([[4.0, 9.0], [1.0, 2.0]])
    writer.write(0, mean=np.zeros((2, 2)), variance=upper, variance_upper=upper, variance_lower=upper / 2)
    writer.commit()
    run_json("export", tmp_path / "p.zarr", tmp_path / "p.csv")
    frame = READERS[".csv"](tmp_path / "p.csv")
    assert list(frame) == ["row", *(f"{t}.{q}" for t in "ab" for q in ("mean", "std", "lower_95", "upper_95"))]
    np.testing.assert_array_equal(frame[["a.std", "b.std"]], np.sqrt(0.75 * upper))


def test_a_sparse_method_keeps_its_own_variance(tmp_path: Path) -> None:
    writer = PredictionWriter.create(
        str(tmp_path / "p.zarr"),
        1,
        ["y"],
        ("mean", "variance", "variance_lower", "variance_upper"),
        attributes={"method": "dtc"},
    )
    writer.write(0, mean=np.zeros(1), variance=np.array([9.0]), variance_lower=np.ones(1), variance_upper=np.ones(1))
    writer.commit()
    run_json("export", tmp_path / "p.zarr", tmp_path / "p.csv")
    assert READERS[".csv"](tmp_path / "p.csv")["std"].tolist() == [3.0]


def test_targets_named_as_other_columns_give_way(tmp_path: Path) -> None:
    X = np.arange(3.0)[:, None]
    dataset_from_arrays(tmp_path / "d.zarr", X, X[:, 0], target_names=["mean"])
    writer = PredictionWriter.create(str(tmp_path / "p.zarr"), 3, ["mean"], ("mean",))
    writer.write(0, mean=np.zeros(3))
    writer.commit()
    told = run_json("export", tmp_path / "p.zarr", tmp_path / "p.csv", "--dataset", tmp_path / "d.zarr")
    assert told["columns"] == ["row", "true.mean", "mean"]
    assert READERS[".csv"](tmp_path / "p.csv")["true.mean"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("labels", [("no", "yes"), ("rot", "grün", "a/b")])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_classes_have_their_names(labels: tuple[str, ...], suffix: str, tmp_path: Path) -> None:
    data = labelled_csv(tmp_path / "d.csv", labels, 120, seed=1)
    target = data.read_text().splitlines()[0].split(",")[-1]
    run_json("ingest", data, tmp_path / "d.zarr", "--labels", target)
    run_json("classify", tmp_path / "d.zarr", "--out", tmp_path / "m.zarr", "--pool", 30, "--folds", 3)
    out = tmp_path / f"p{suffix}"
    told = run_json("predict", tmp_path / "m.zarr", tmp_path / "d.zarr", "--out", out)
    run_json("predict", tmp_path / "m.zarr", tmp_path / "d.zarr", "--out", tmp_path / "p.zarr")
    frame, stored = READERS[suffix](out), open_prediction(str(tmp_path / "p.zarr"))
    assert stored.classes is not None
    assert frame[target].tolist() == pd.read_csv(data)[target].tolist()
    assert frame["class"].tolist() == [stored.classes[code] for code in stored.read("class")[:, 0].astype(int)]
    for column, name in enumerate(stored.classes):
        shown = f"probability.{name}".replace("/", "_") if suffix == ".nc" else f"probability.{name}"
        np.testing.assert_array_equal(frame[shown], stored.read("probability")[:, column])
    assert told["columns"][:3] == ["row", target, "class"]
    assert not (tmp_path / f"p{suffix}.partial.zarr").exists()


def interrupt_after(monkeypatch: pytest.MonkeyPatch, regions: int) -> None:
    """Have SIGINT come when so many regions are written."""
    write, written = PredictionWriter.write, []

    def counted(writer: PredictionWriter, start: int, **arrays: np.ndarray) -> None:
        write(writer, start, **arrays)
        written.append(start)
        if len(written) == regions:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(PredictionWriter, "write", counted)


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet"])
def test_an_interrupted_table_is_resumed_to_the_same_bytes(
    pipeline: dict[str, Any], tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("predict", pipeline["train"]["out"], pipeline["ingest"]["test"], *VARIANCE, "--out")
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"p{suffix}"
    run_json(*arguments, whole)
    with monkeypatch.context() as patched:
        interrupt_after(patched, 2)
        result = run(*arguments, out)
    assert result.exit_code == 130
    assert not out.exists()
    refused(run(*arguments, out), "were interrupted", "--resume", "--overwrite")
    resumed = run_json(*arguments, out, "--resume")
    assert resumed["variance"]["computed"] < 200
    assert out.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {out.name, whole.name}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_full_disk_leaves_the_predictions_to_be_resumed(
    pipeline: dict[str, Any], tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("predict", pipeline["train"]["out"], pipeline["ingest"]["test"], *VARIANCE, "--out")
    out = tmp_path / f"p{suffix}"

    @contextmanager
    def full(target: Path) -> Iterator[Path]:
        with replaced_file(target) as temporary:
            yield temporary
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dkgp.data.exports.replaced_file", full)
        refused(run(*arguments, out), "disk is full")
    assert {path.name for path in tmp_path.iterdir()} == {f"p{suffix}.partial.zarr"}
    assert run_json(*arguments, out, "--resume")["variance"]["computed"] == 0
    assert len(READERS[suffix](out)) == 200


def test_a_failure_keeps_the_table_that_was_there(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("mine")

    def blocks() -> Any:
        yield {"a": np.zeros(2)}
        raise StorageError("the store went away")

    with pytest.raises(StorageError, match="went away"):
        write_table(out, blocks())
    assert files_below(tmp_path) == {str(out): 4}


@pytest.mark.parametrize("suffix", SUFFIXES[:3])
def test_blocks_are_written_as_they_come(tmp_path: Path, suffix: str) -> None:
    blocks_alive: list[weakref.ref[np.ndarray]] = []
    most = 0

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        nonlocal most
        for number in range(12):
            values = np.full(1000, float(number))
            blocks_alive.append(weakref.ref(values))
            yield {"a": values}
            del values
            most = max(most, sum(block() is not None for block in blocks_alive))

    write_table(tmp_path / f"t{suffix}", blocks())
    # The first, of which Parquet has the columns' types, and the latest.
    assert most <= 2
    np.testing.assert_array_equal(READERS[suffix](tmp_path / f"t{suffix}")["a"], np.repeat(np.arange(12.0), 1000))


def test_places_that_are_taken_are_left_alone(predicted: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    refused(run("export", predicted, tmp_path / "folder.csv", "--overwrite"), "is a folder")
    refused(run("export", predicted, predicted, "--overwrite"), "ends in one of: .csv, .csv.gz, .parquet, .nc")
    (tmp_path / "t.csv").write_text("mine")
    refused(run("export", predicted, tmp_path / "t.csv"), "exists already", "--overwrite")
    assert (tmp_path / "t.csv").read_text() == "mine"
    run_json("export", predicted, tmp_path / "t.csv", "--overwrite")
    assert (tmp_path / "t.csv").read_text().startswith("row,mean,std")
    refused(run("export", predicted, "s3://bucket/t.csv"), "no local file")


def test_compressed_tables_hold_the_same_text(predicted: Path, tmp_path: Path) -> None:
    for suffix in (".csv", ".csv.gz"):
        run_json("export", predicted, tmp_path / f"t{suffix}")
    assert gzip.decompress((tmp_path / "t.csv.gz").read_bytes()) == (tmp_path / "t.csv").read_bytes()


def test_other_samples_are_refused(pipeline: dict[str, Any], predicted: Path, tmp_path: Path) -> None:
    refused(run("export", predicted, tmp_path / "t.csv", "--dataset", pipeline["ingest"]["train"]), "600")
    assert not list(tmp_path.iterdir())


def test_a_file_where_a_store_belongs_is_told_from_one(pipeline: dict[str, Any], tmp_path: Path) -> None:
    data, model, test = tmp_path / "new data.csv", pipeline["train"]["out"], pipeline["ingest"]["test"]
    data.write_text("a,b\n1,2\n")
    line = f"dkgp ingest '{data}' '{tmp_path / 'new data.zarr'}' --target NAME"
    for command in (
        ("train", data, "--hyper", pipeline["tune"]["out"], "--out", tmp_path / "m.zarr"),
        ("tune", data, "--out", tmp_path / "h.json"),
        ("predict", model, data, "--out", tmp_path / "p.zarr"),
        ("evaluate", pipeline["predict"]["out"], data),
        ("info", data),
        ("plan", data),
        ("sparse", data, "--hyper", pipeline["tune"]["out"], "--out", tmp_path / "m.zarr"),
        ("classify", data, "--out", tmp_path / "m.zarr"),
        ("pursue", data, "--out", tmp_path / "m.zarr"),
    ):
        refused(run(*command), "Run dkgp ingest first", line)
    refused(run("evaluate", data, test), "not a dkgp prediction store but a file", "for other programs")
    refused(run("predict", data, test, "--out", tmp_path / "p.zarr"), "not a dkgp model store but a file", "dkgp train")
    for command in (
        ("ingest", data, tmp_path / "out.csv"),
        ("ingest", data, tmp_path / "out.json"),
        ("train", pipeline["ingest"]["train"], "--hyper", pipeline["tune"]["out"], "--out", tmp_path / "m.parquet"),
    ):
        refused(run(*command), "is the name of a file", ".zarr")
    refused(run("predict", model, test, "--out", tmp_path / "p.xlsx"), "ends in one of: .csv")
    assert files_below(tmp_path).keys() == {str(data)}


def test_transformed_targets_come_back_in_their_own_units(tmp_path: Path) -> None:
    m, b, v = np.array([0.5, 1.5, -1.0]), np.array([0.01, 0.02, 0.03]), np.array([0.2, 0.1, 0.3])
    attributes = {
        "transform": [to_json(TargetTransform("log"))],
        "variance": {"latent": False, "gap": 0.1},
        "noise_variance": [0.05],
    }
    variables = ("mean", "mean_error_bound", "variance", "variance_lower", "variance_upper")
    writer = PredictionWriter.create(tmp_path / "p.zarr", 3, ["price"], variables, attributes=attributes)
    writer.write(0, mean=m, mean_error_bound=b, variance=v + 0.01, variance_lower=v - 0.01, variance_upper=v + 0.01)
    writer.commit()
    run_json("export", tmp_path / "p.zarr", tmp_path / "p.csv")
    table = pd.read_csv(tmp_path / "p.csv")
    assert list(table) == ["row", "mean", "median", "lower_95", "upper_95", "median_error_bound"]
    half = 1.959963984540054 * np.sqrt(v)
    for name, expected in {
        "mean": np.exp(m + v / 2),
        "median": np.exp(m),
        "lower_95": np.exp(m - half),
        "upper_95": np.exp(m + half),
        "median_error_bound": np.exp(m + b) - np.exp(m),
    }.items():
        np.testing.assert_allclose(table[name], expected, rtol=1e-12)
