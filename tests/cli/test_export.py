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
from tests.cli.invoke import Places, Shell, files_below

SUFFIXES = [form.suffix for form in TABLE_FORMATS]
READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": pd.read_csv,
    ".csv.gz": pd.read_csv,
    ".parquet": pd.read_parquet,
    ".nc": lambda path: xr.load_dataset(path, engine="h5netcdf").to_dataframe(),
}


PREDICT = "predict @model @test --variance --chunk-rows 50 --cluster none --out"


def store(shell: Shell, targets: list[str], attributes: dict[str, Any] | None = None, **arrays: Any) -> None:
    """Predictions with these arrays, as `@p`."""
    n = len(next(iter(arrays.values())))
    writer = PredictionWriter.create(str(shell["p"]), n, targets, tuple(arrays), attributes=attributes or {})
    writer.write(0, **{name: np.asarray(values) for name, values in arrays.items()})
    writer.commit()


@pytest.fixture(scope="module")
def predicted(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prediction store with variances, of several chunks."""
    shell = Shell(tmp_path_factory.mktemp("predicted"), stores)
    shell.json(f"{PREDICT} @p.zarr")
    return shell["p.zarr"]


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


@pytest.mark.spread(4)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("with_truth", [True, False])
def test_a_table_holds_the_store_to_the_bit(shell: Shell, predicted: Path, suffix: str, with_truth: bool) -> None:
    told = shell.json(f"export {predicted} @p{suffix} {'--dataset @test' if with_truth else ''}")
    frame = READERS[suffix](shell[f"p{suffix}"])
    truth = open_dataset(shell["test"]).all_targets(standardised=False)[:, 0] if with_truth else None
    expected = reference(open_prediction(str(predicted)), truth)
    assert list(frame) == list(expected) == told["columns"]
    for name, values in expected.items():
        if name in {"std", "lower_95", "upper_95"}:  # sums in another order
            np.testing.assert_allclose(frame[name], values, rtol=1e-14)
        else:
            np.testing.assert_array_equal(frame[name], values)
    assert shell.names == {f"p{suffix}"}


def test_the_middle_of_a_wide_interval_is_what_deviations_are_of(shell: Shell) -> None:
    upper = np.array([[4.0, 9.0], [1.0, 2.0]])
    store(shell, ["a", "b"], mean=np.zeros((2, 2)), variance=upper, variance_lower=upper / 2, variance_upper=upper)
    shell.json("export @p @p.csv")
    frame = READERS[".csv"](shell["p.csv"])
    assert list(frame) == ["row", *(f"{t}.{q}" for t in "ab" for q in ("mean", "std", "lower_95", "upper_95"))]
    np.testing.assert_array_equal(frame[["a.std", "b.std"]], np.sqrt(0.75 * upper))


def test_a_sparse_method_keeps_its_own_variance(shell: Shell) -> None:
    store(shell, ["y"], {"method": "dtc"}, mean=[0.0], variance=[9.0], variance_lower=[1.0], variance_upper=[1.0])
    shell.json("export @p @p.csv")
    assert READERS[".csv"](shell["p.csv"])["std"].tolist() == [3.0]


def test_targets_named_as_other_columns_give_way(shell: Shell) -> None:
    X = np.arange(3.0)[:, None]
    dataset_from_arrays(shell["d"], X, X[:, 0], target_names=["mean"])
    store(shell, ["mean"], mean=np.zeros(3))
    assert shell.json("export @p @p.csv --dataset @d")["columns"] == ["row", "true.mean", "mean"]
    assert READERS[".csv"](shell["p.csv"])["true.mean"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("labels", [("no", "yes"), ("rot", "grün", "a/b")])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_classes_have_their_names(labels: tuple[str, ...], suffix: str, shell: Shell) -> None:
    data = labelled_csv(shell["d.csv"], labels, 120, seed=1)
    target = data.read_text().splitlines()[0].split(",")[-1]
    shell.json(f"ingest @d.csv @d --labels {target}")
    shell.json("classify @d --out @m --pool 30 --folds 3")
    told = shell.json(f"predict @m @d --out @p{suffix}")
    shell.json("predict @m @d --out @p.zarr")
    frame, stored = READERS[suffix](shell[f"p{suffix}"]), open_prediction(shell["p.zarr"])
    assert frame[target].tolist() == pd.read_csv(data)[target].tolist()
    assert frame["class"].tolist() == [stored.classes[code] for code in stored.read("class")[:, 0].astype(int)]
    for column, name in enumerate(stored.classes):
        shown = f"probability.{name}".replace("/", "_") if suffix == ".nc" else f"probability.{name}"
        np.testing.assert_array_equal(frame[shown], stored.read("probability")[:, column])
    assert told["columns"][:3] == ["row", target, "class"]
    assert f"p{suffix}.partial.zarr" not in shell.names


@pytest.mark.spread(1)
@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet"])
def test_an_interrupted_table_is_resumed_to_the_same_bytes(
    shell: Shell, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.json(f"{PREDICT} @whole{suffix}")
    line, write, written = f"{PREDICT} @p{suffix}", PredictionWriter.write, list[int]()

    def counted(writer: PredictionWriter, start: int, **arrays: np.ndarray) -> None:
        write(writer, start, **arrays)
        written.append(start)
        if len(written) == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(PredictionWriter, "write", counted)
        assert shell.run(line).exit_code == 130
    assert f"p{suffix}" not in shell.names
    shell.refuses(line, "were interrupted", "--resume", "--overwrite")
    assert shell.json(f"{line} --resume")["variance"]["computed"] < 200
    assert shell[f"p{suffix}"].read_bytes() == shell[f"whole{suffix}"].read_bytes()
    assert shell.names == {f"p{suffix}", f"whole{suffix}"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_full_disk_leaves_the_predictions_to_be_resumed(
    shell: Shell, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(target: Path) -> Iterator[Path]:
        with replaced_file(target) as temporary:
            yield temporary
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dkgp.data.exports.replaced_file", full)
        shell.refuses(f"{PREDICT} @p{suffix}", "disk is full")
    assert shell.names == {f"p{suffix}.partial.zarr"}
    assert shell.json(f"{PREDICT} @p{suffix} --resume")["variance"]["computed"] == 0
    assert len(READERS[suffix](shell[f"p{suffix}"])) == 200


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


def test_places_that_are_taken_are_left_alone(predicted: Path, shell: Shell) -> None:
    shell["folder.csv"].mkdir()
    shell["t.csv"].write_text("mine")
    for line, words in (
        ("@folder.csv --overwrite", ("is a folder",)),
        (f"{predicted} --overwrite", ("ends in one of: .csv, .csv.gz, .parquet, .nc",)),
        ("@t.csv", ("already exists", "--overwrite")),
        ("s3://bucket/t.csv", ("no local file",)),
        ("@u.csv --dataset @train", ("600",)),
    ):
        shell.refuses(f"export {predicted} {line}", *words)
    assert shell["t.csv"].read_text() == "mine"
    assert shell.names == {"folder.csv", "t.csv"}
    shell.json(f"export {predicted} @t.csv --overwrite")
    assert shell["t.csv"].read_text().startswith("row,mean,std")
    # Compressed tables hold the same text.
    shell.json(f"export {predicted} @t.csv.gz")
    assert gzip.decompress(shell["t.csv.gz"].read_bytes()) == shell["t.csv"].read_bytes()


def test_a_file_where_a_store_belongs_is_told_from_one(shell: Shell) -> None:
    shell["new data.csv"].write_text("a,b\n1,2\n")
    data = f"'{shell['new data.csv']}'"
    line = f"dkgp ingest {data} '{shell['new data.zarr']}' --target NAME"
    for command in (
        f"train {data} --hyper @hyper --out @m.zarr",
        f"tune {data} --out @h.json",
        f"predict @model {data} --out @p.zarr",
        f"evaluate @prediction {data}",
        f"info {data}",
        f"plan {data}",
        f"sparse {data} --hyper @hyper --out @m.zarr",
        f"classify {data} --out @m.zarr",
        f"pursue {data} --out @m.zarr",
    ):
        shell.refuses(command, "Run dkgp ingest first", line)
    for command, *words in (
        (f"evaluate {data} @test", "not a dkgp prediction store but a file", "for other programs"),
        (f"predict {data} @test --out @p.zarr", "not a dkgp model store but a file", "dkgp train"),
        (f"ingest {data} @out.csv", "is the name of a file", ".zarr"),
        (f"ingest {data} @out.json", "is the name of a file", ".zarr"),
        ("train @train --hyper @hyper --out @m.parquet", "is the name of a file", ".zarr"),
        ("predict @model @test --out @p.xlsx", "ends in one of: .csv"),
    ):
        shell.refuses(command, *words)
    assert shell.names == {"new data.csv"}


def test_transformed_targets_come_back_in_their_own_units(shell: Shell) -> None:
    m, b, v = np.array([0.5, 1.5, -1.0]), np.array([0.01, 0.02, 0.03]), np.array([0.2, 0.1, 0.3])
    attributes = {
        "transform": [to_json(TargetTransform("log"))],
        "variance": {"latent": False, "gap": 0.1},
        "noise_variance": [0.05],
    }
    ends = {"variance": v + 0.01, "variance_lower": v - 0.01, "variance_upper": v + 0.01}
    store(shell, ["price"], attributes, mean=m, mean_error_bound=b, **ends)
    shell.json("export @p @p.csv")
    table = pd.read_csv(shell["p.csv"])
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


def test_the_mean_of_a_transformed_target_needs_variances(shell: Shell) -> None:
    m, b = np.array([0.5, 1.5, -1.0]), np.array([0.01, 0.02, 0.03])
    store(shell, ["price"], {"transform": [to_json(TargetTransform("log"))]}, mean=m, mean_error_bound=b)
    shell.json("export @p @p.csv")
    table = pd.read_csv(shell["p.csv"])
    assert list(table) == ["row", "median", "median_error_bound"]
    np.testing.assert_allclose(table["median"], np.exp(m), rtol=1e-12)
