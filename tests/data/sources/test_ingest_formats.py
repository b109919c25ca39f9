""""""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from dkgp.data import Dataset, Progress, dataset_from_arrays, ingest
from dkgp.errors import InputError, StoreError

Place = Callable[[str], str]

N = 237


@pytest.fixture
def table() -> pd.DataFrame:
    generator = np.random.default_rng(11)
    frame = pd.DataFrame(generator.normal(size=(N, 3)) * [1, 1e-7, 1e12], columns=["a", "b", "c"])
    frame["price"] = frame["a"] + generator.normal(size=N)
    return frame


def _put(url: str, content: bytes) -> str:
    file_system, path = fsspec.core.url_to_fs(url)
    file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
    file_system.pipe_file(path, content)
    return url


def _check(dataset: Dataset, table: pd.DataFrame, features: tuple[str, ...] = ("a", "b", "c")) -> None:
    assert dataset.feature_names == features
    assert dataset.target_names == ("price",)
    np.testing.assert_array_equal(dataset.inputs(0, len(table), standardised=False), table[list(features)])
    np.testing.assert_array_equal(dataset.targets(0, len(table), standardised=False), table[["price"]])


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


# --- delimited text --------------------------------------------------------------------------------------------------

COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_csv_with_header(place: Place, table: pd.DataFrame, suffix: str) -> None:
    content = COMPRESSORS[suffix](table.to_csv(index=False).encode())
    source = _put(place("data.csv" + suffix), content)
    report = ingest(source, place("d.zarr"), target="price")
    _check(report.train, table)
    assert (report.n_samples, report.test, report.warnings) == (N, None, ())


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " ", ", "])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("last_line_ends", [True, False])
def test_csv_without_header(
    tmp_path: Path, table: pd.DataFrame, separator: str, line_end: str, last_line_ends: bool
) -> None:
    lines = [separator.join(map(repr, row)) for row in table.to_numpy().tolist()]
    text = line_end.join(lines) + (line_end if last_line_ends else "")
    (tmp_path / "data.txt").write_bytes(text.encode())
    dataset = ingest(tmp_path / "data.txt", tmp_path / "d.zarr", target=-1).train
    assert (dataset.feature_names, dataset.target_names) == (("x0", "x1", "x2"), ("x3",))
    np.testing.assert_array_equal(dataset.inputs(0, N, standardised=False), table[["a", "b", "c"]])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b,y\n1,2,3\n4,6,5\n", ("a", "b", "y")),
        ('"a, or so","b",y\n1,2,3\n"4",6,5\n', ("a, or so", "b", "y")),
        ("\ufeffa,b,y\r\n1,2,3\r\n\r\n4,6,5\r\n\r\n", ("a", "b", "y")),
        ("# a b y\n1 2 3\n4 6 5\n", ("a", "b", "y")),
        ("#a b y\n1 2 3\n4 6 5\n", ("a", "b", "y")),
        ("1990,b,y\n1,2,3\n4,6,5\n", ("1990", "b", "y")),
        ("1,2,3\n4,6,5\n", ("x0", "x1", "x2")),
        ("0,1,2\n1,2,3\n4,6,5\n", ("0", "1", "2")),
        (",0,1\n1,2,3\n4,6,5\n", ("column_0", "0", "1")),
        ('"","0","1"\n"1",2,3\n"4",6,5\n', ("column_0", "0", "1")),
        ("\n\n1;2;3\n  \n4;6;5", ("x0", "x1", "x2")),
        ("  1  2   3 \n 4\t6 5\n", ("x0", "x1", "x2")),
        ("a,b,y\nTrue,2,3\nFalse,6,5\n", ("a", "b", "y")),
    ],
)
def test_headers_are_recognised(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    (tmp_path / "data.csv").write_bytes(text.encode())
    dataset = ingest(tmp_path / "data.csv", tmp_path / "d.zarr", target=-1).train
    assert (*dataset.feature_names, *dataset.target_names) == names
    np.testing.assert_array_equal(dataset.inputs(0, 1, standardised=False)[0], [1.0, 2.0])
    np.testing.assert_array_equal(dataset.targets(0, 2, standardised=False)[:, 0], [3.0, 5.0])


def test_a_header_of_numbers_that_pandas_writes_is_no_sample(tmp_path: Path, rng: np.random.Generator) -> None:
    values = rng.normal(size=(20, 3))
    pd.DataFrame(values).to_csv(tmp_path / "t.csv")
    dataset = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", features=["0", "1"], target="2").train
    np.testing.assert_array_equal(dataset.raw_inputs(0, 20), values[:, :2])
    pd.Series(values[:, 0]).to_csv(tmp_path / "s.csv")
    assert ingest(tmp_path / "s.csv", tmp_path / "s.zarr", target="0").n_samples == 20


def test_a_first_line_that_may_be_header_or_sample_is_asked_about(tmp_path: Path, rng: np.random.Generator) -> None:
    pd.DataFrame(rng.normal(size=(20, 3)), columns=[2001, 2002, 2004]).to_csv(tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"first line of .*'2001', '2002', '2004': a header, or .* by `header`"):
        ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target=-1)
    assert ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="2004", header=True).n_samples == 20
    (tmp_path / "gap.csv").write_text(",3,2\n1,4,5\n2,0,9\n")
    with pytest.raises(InputError, match="'x0' holds a missing value or NaN in line 1"):
        ingest(tmp_path / "gap.csv", tmp_path / "g.zarr", target=-1)


def test_header_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2,3\n4,6,5\n7,7,9\n")
    dataset = ingest(tmp_path / "data.csv", tmp_path / "d.zarr", target="3", header=True).train
    assert (dataset.feature_names, dataset.target_names, dataset.n_samples) == (("1", "2"), ("3",), 2)
    (tmp_path / "text.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(InputError, match="'x0' holds the text 'a' in line 1"):
        ingest(tmp_path / "text.csv", tmp_path / "e.zarr", target=-1, header=False)


def test_numbers_survive_to_the_last_bit(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0x0010000000000000, 0x5FE0000000000000, size=(500, 2))
    values = bits.astype(np.int64).view(np.float64)
    values = values[(np.abs(values) < 1e100).all(axis=1)]
    text = "\n".join(",".join(map(repr, row)) for row in values.tolist())
    (tmp_path / "data.csv").write_text(text)
    dataset = ingest(tmp_path / "data.csv", tmp_path / "d.zarr", target=1).train
    np.testing.assert_array_equal(dataset.raw_inputs(0, len(values))[:, 0], values[:, 0])


def test_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: pd.DataFrame) -> None:
    monkeypatch.setattr("dkgp.data.sources.csv._READ_BYTES", 150)
    table.to_csv(tmp_path / "data.csv.gz", index=False)
    seen: list[Progress] = []
    report = ingest(tmp_path / "data.csv.gz", tmp_path / "d.zarr", target="price", chunk_rows=50, progress=seen.append)
    _check(report.train, table)
    assert {item.phase for item in seen} == {"check", "write"}
    assert len(seen) > 40
    assert all(0 <= item.done <= (item.total or 0) for item in seen)
    assert seen[-1].done == seen[-1].total == (tmp_path / "data.csv.gz").stat().st_size


def test_a_column_without_a_name_is_remarked_on(tmp_path: Path, table: pd.DataFrame) -> None:
    table.to_csv(tmp_path / "data.csv")
    report = ingest(tmp_path / "data.csv", tmp_path / "d.zarr", target="price")
    assert report.train.feature_names[0] == "column_0"
    assert "has no name" in report.warnings[0]


# --- several files, choices of columns --------------------------------------------------------------------------------


def test_globs_folders_and_lists(place: Place, table: pd.DataFrame) -> None:
    for index in range(4):
        part = table.iloc[index * 60 : (index + 1) * 60]
        _put(place(f"parts/part{index}.csv"), part.to_csv(index=False, columns=list(part)[:: (-1) ** index]).encode())
    for number, sources in enumerate(
        [
            place("parts/part*.csv"),
            place("parts"),
            [place("parts/part[01].csv"), place("parts/part2.csv"), place("parts/part3.csv")],
        ]
    ):
        _check(ingest(sources, place(f"d{number}.zarr"), target="price", features=["a", "b", "c"]).train, table)


def test_files_must_fit_together(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "2.csv").write_text("a,c\n1,2\n3,4\n")
    np.save(tmp_path / "3.npy", np.eye(2))
    with pytest.raises(InputError, match=r"2\.csv' has 2 columns, 'a', 'c'"):
        ingest([tmp_path / "1.csv", tmp_path / "2.csv"], tmp_path / "d", target="a")
    with pytest.raises(InputError, match="differ in format"):
        ingest([tmp_path / "1.csv", tmp_path / "3.npy"], tmp_path / "d", target="a")


def test_targets_and_features_by_name_and_index(tmp_path: Path, table: pd.DataFrame) -> None:
    table.to_csv(tmp_path / "data.csv", index=False)
    dataset = ingest(tmp_path / "data.csv", tmp_path / "1", target=["price", "a"], features=["c", 1]).train
    assert (dataset.feature_names, dataset.target_names) == (("c", "b"), ("price", "a"))
    np.testing.assert_array_equal(dataset.inputs(0, N, standardised=False), table[["c", "b"]])
    np.testing.assert_array_equal(dataset.targets(0, N, standardised=False), table[["price", "a"]])
    dataset = ingest(tmp_path / "data.csv", tmp_path / "2", target=[0, "-1"]).train
    assert (dataset.feature_names, dataset.target_names) == (("b", "c"), ("a", "price"))
    dataset = ingest(tmp_path / "data.csv", tmp_path / "3", target=None, features="b").train
    assert (dataset.feature_names, dataset.n_targets) == (("b",), 0)


# --- binary formats ---------------------------------------------------------------------------------------------------


def test_parquet(place: Place, table: pd.DataFrame) -> None:
    pytest.importorskip("pyarrow")
    file = io.BytesIO()
    table.assign(flag=table["a"] > 0, whole=np.arange(N, dtype=np.int16)).set_index(
        pd.Index(range(N), name=None)
    ).to_parquet(file, row_group_size=50)
    dataset = ingest(_put(place("data.parquet"), file.getvalue()), place("d.zarr"), target="price").train
    assert dataset.feature_names == ("a", "b", "c", "flag", "whole")
    np.testing.assert_array_equal(dataset.inputs(0, N, standardised=False)[:, 3], table["a"] > 0)
    np.testing.assert_array_equal(dataset.inputs(0, N, standardised=False)[:, :3], table[["a", "b", "c"]])


def test_parquet_index_is_no_feature(tmp_path: Path, table: pd.DataFrame) -> None:
    pytest.importorskip("pyarrow")
    table.iloc[::2].to_parquet(tmp_path / "data.parquet", index=True)
    assert ingest(tmp_path / "data.parquet", tmp_path / "d", target="price").train.feature_names == ("a", "b", "c")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, ">f8"])
def test_npy(place: Place, order: str, dtype: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.data.sources.base.BLOCK_BYTES", 1000)
    values = np.array(np.random.default_rng(0).normal(scale=100, size=(N, 4)), dtype=dtype, order=order)  # type: ignore[call-overload]
    dataset = ingest(_put(place("data.npy"), _npy(values)), place("d.zarr"), target=-1).train
    np.testing.assert_array_equal(dataset.raw_inputs(0, N), values[:, :3].astype(float))
    assert dataset.target_names == ("x3",)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(place: Place, table: pd.DataFrame, save: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.data.sources.base.BLOCK_BYTES", 1000)
    mask = np.random.default_rng(5).random((N, 3)) < 0.3
    file = io.BytesIO()
    save(
        file,
        X=np.asfortranarray(table[["a", "b", "c"]].to_numpy()),
        y=table["price"].to_numpy(),
        Y2=table[["price", "a"]].to_numpy(),
        test_mask=mask,
        feature_names=np.array(["a", "b", "c"]),
        grid_shape=np.array([3, 4]),
        X_test=np.zeros((7, 3)),
    )
    source = _put(place("data.npz"), file.getvalue())
    report = ingest(source, place("1"), target="y", test_mask="test_mask:1", test_out=place("2"))
    assert report.test is not None
    assert report.train.feature_names == ("a", "b", "c")
    for dataset, rows in ((report.train, ~mask[:, 1]), (report.test, mask[:, 1])):
        np.testing.assert_array_equal(dataset.raw_inputs(0, dataset.n_samples), table[["a", "b", "c"]][rows])
        np.testing.assert_array_equal(
            dataset.targets(0, dataset.n_samples, standardised=False)[:, 0], table["price"][rows]
        )
    dataset = ingest(source, place("3"), target="Y2").train
    assert dataset.target_names == ("Y2_0", "Y2_1")
    assert ingest(source, place("4"), target="Y2:-1", features=["c"]).train.target_names == ("Y2_1",)
    with pytest.raises(InputError, match=r"available: 'X', 'y', 'Y2', 'test_mask'; the columns are 'a', 'b', 'c'"):
        ingest(source, place("5"), target="price")
    with pytest.raises(InputError, match="has 3 columns; choose one, as in 'test_mask:0'"):
        ingest(source, place("5"), target="y", test_mask="test_mask", test_out=place("6"))


def test_netcdf(place: Place, table: pd.DataFrame, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    columns = {name: ("obs", table[name].to_numpy()) for name in ("a", "b", "price")}
    dataset = xr.Dataset(columns, coords={"c": ("obs", table["c"].to_numpy()), "obs": np.arange(N)})
    dataset.to_netcdf(tmp_path / "raw.nc", engine="h5netcdf")
    source = _put(place("data.nc"), (tmp_path / "raw.nc").read_bytes())
    report = ingest(source, place("d.zarr"), target="price", features=["a", "b", "c"])
    _check(report.train, table)
    assert set(ingest(source, place("e.zarr"), target="price").train.feature_names) == {"a", "b", "c"}


def test_netcdf_with_a_matrix(tmp_path: Path, table: pd.DataFrame) -> None:
    pytest.importorskip("h5py")
    xr.Dataset(
        {"X": (("s", "f"), table[["a", "b", "c"]].to_numpy()), "price": ("s", table["price"].to_numpy())},
        coords={"f": ["a", "b", "c"]},
    ).to_netcdf(tmp_path / "data.nc", engine="h5netcdf")
    _check(ingest(tmp_path / "data.nc", tmp_path / "d", target="price").train, table)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_without_names(place: Place, table: pd.DataFrame, zarr_format: int) -> None:
    group = zarr.open_group(place("source.zarr"), mode="w", zarr_format=zarr_format)  # type: ignore[arg-type]
    group.create_array("X", data=table[["a", "b", "c"]].to_numpy(), chunks=(40, 2))
    group.create_array("y", data=table["price"].to_numpy(), chunks=(70,))
    dataset = ingest(place("source.zarr"), place("d.zarr"), target="y").train
    assert dataset.feature_names == ("x0", "x1", "x2")
    np.testing.assert_array_equal(dataset.raw_inputs(0, N), table[["a", "b", "c"]])
    np.testing.assert_array_equal(dataset.targets(0, N, standardised=False)[:, 0], table["price"])


def test_single_zarr_array(tmp_path: Path, table: pd.DataFrame) -> None:
    zarr.create_array(tmp_path / "source.zarr", data=table.to_numpy(), chunks=(40, 4))
    dataset = ingest(tmp_path / "source.zarr", tmp_path / "d.zarr", target=3).train
    np.testing.assert_array_equal(dataset.raw_inputs(0, N), table[["a", "b", "c"]])


def test_absent_chunks_of_a_foreign_store_are_remarked_on(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(100, 2))
    X[20:40] = 0.0
    group = zarr.open_group(tmp_path / "source.zarr", mode="w")
    group.create_array("X", data=X, chunks=(10, 2))
    group.create_array("y", data=X[:, 0], chunks=(100,))
    report = ingest(tmp_path / "source.zarr", tmp_path / "d.zarr", target="y")
    assert "2 of 10 chunks of the array 'X'" in report.warnings[0]


def test_dkgp_dataset_as_source(place: Place, table: pd.DataFrame) -> None:
    X = np.insert(table[["a", "b", "c"]].to_numpy(), 1, 3.0, axis=1)
    with pytest.warns(UserWarning, match="constant"):
        dataset_from_arrays(
            place("s"), X, table["price"], feature_names=["a", "k", "b", "c"], target_names=["price"], chunk_rows=40
        )
    report = ingest(place("s"), place("d"), target="price")
    _check(report.train, table)
    assert report.train.raw_feature_names == ("a", "k", "b", "c")
    assert "'k' is constant" in report.warnings[0]
    file_system, path = fsspec.core.url_to_fs(place("s"))
    file_system.rm_file(f"{path}/y/c/2")
    with pytest.raises(StoreError, match="Chunk y/c/2"):
        ingest(place("s"), place("e"), target="price")


# Not getrusage: a new process inherits its parent's ru_maxrss.
PEAK = """
import re, sys
from dkgp.data import ingest
for source in sys.argv[2:]:
    ingest(source, sys.argv[1], target="y", overwrite=True)
    print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1)))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure peak memory")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path, importable: dict[str, str]) -> None:
    """A compressed NPZ that unpacks to 51 MB, after a small one has set the level."""
    for name, n in (("small", 100_000), ("large", 400_000)):
        values = np.tile(np.random.default_rng(0).normal(size=(1000, 15)), (n // 1000, 1))
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("X.npy", _npy(values))
            archive.writestr("y.npy", _npy(values[:, 0]))
    found = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "d"), str(tmp_path / "small.npz"), str(tmp_path / "large.npz")],
        env=importable,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    small_bytes, large_bytes = map(int, found.stdout.split())
    assert large_bytes - small_bytes < 20e6


def test_report_is_plain_json(tmp_path: Path, table: pd.DataFrame) -> None:
    table.to_csv(tmp_path / "data.csv", index=False)
    report = ingest(tmp_path / "data.csv", tmp_path / "d", target="price", test_fraction=0.1, test_out=tmp_path / "e")
    content = report.to_json()
    assert (content["n_train"], content["n_test"], content["d"], content["targets"]) == (213, 24, 3, ["price"])


# The real data sets, where they are at hand.


def test_kin40k_official_split(benchmark_folder: Path, tmp_path: Path) -> None:
    report = ingest(
        benchmark_folder / "kin40k.npz", tmp_path / "a", target="y", test_mask="test_mask:0", test_out=tmp_path / "b"
    )
    with np.load(benchmark_folder / "kin40k.npz") as source:
        X, y, mask = source["X"], source["y"], source["test_mask"][:, 0]
    assert report.test is not None
    assert (report.train.n_samples, report.test.n_samples) == ((~mask).sum(), mask.sum())
    assert report.train.feature_names == tuple(f"x{index}" for index in range(8))
    np.testing.assert_array_equal(report.train.raw_inputs(0, report.train.n_samples), X[~mask])
    np.testing.assert_array_equal(report.test.targets(0, report.test.n_samples, standardised=False)[:, 0], y[mask])
    np.testing.assert_allclose(report.train.standardisation.input_std, X[~mask].std(axis=0), rtol=1e-12)


def test_all_torques_are_one_target(benchmark_folder: Path, tmp_path: Path) -> None:
    dataset = ingest(benchmark_folder / "sarcos_test4449.npz", tmp_path / "a", target="Y7").train
    assert (dataset.n_samples, dataset.n_features, dataset.n_targets) == (4449, 21, 7)


def test_named_features_and_masks_are_not_features(benchmark_folder: Path, tmp_path: Path) -> None:
    report = ingest(
        benchmark_folder / "adult.npz", tmp_path / "a", target="y", test_mask="test_mask", test_out=tmp_path / "b"
    )
    assert report.train.n_samples == 30_162
    assert len(report.train.raw_feature_names) == 104
    assert "test_mask" not in report.train.raw_feature_names


@pytest.mark.parametrize("name", ["snelson1d", "motorcycle", "dem_bigtujunga"])
def test_sets_with_odd_companions(benchmark_folder: Path, tmp_path: Path, name: str) -> None:
    dataset = ingest(benchmark_folder / f"{name}.npz", tmp_path / "a", target="y").train
    with np.load(benchmark_folder / f"{name}.npz") as source:
        assert dataset.n_samples == len(source["y"])
        assert dataset.n_features == source["X"].shape[1]
        np.testing.assert_array_equal(dataset.raw_inputs(0, 50), source["X"][:50])
