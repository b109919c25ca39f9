"""Meanings of values: each input in each source format is read as its format says, or refused by the column's name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import zarr
from pyarrow import parquet
from scipy.io import netcdf_file

from dkgp.commands.ingest import IngestJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import dataset_from_arrays, ingest, open_dataset
from dkgp.data.sources.base import find_columns
from dkgp.data.sources.formats import open_source
from dkgp.data.sources.tables.learning import EncodedSource, TableOptions, learned_encoding
from dkgp.errors import InputError
from dkgp.fit.job import FitJob
from dkgp.fit.run import _Fit

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N = 24
NAN = np.nan
BIG = 2**53 + 1

# ---------------------------------------------------------------------------------------------------------- the columns
# How each format stores a column `v` of values, with attributes where it has them, beside a target `y`.

Attributes = Mapping[str, Any]


def _target() -> np.ndarray:
    return np.sin(np.arange(N))


def _npy(path: Path, values: Any, attributes: Attributes) -> None:
    np.save(path, np.stack([values, values[::-1]], axis=1))


def _npz(path: Path, values: Any, attributes: Attributes) -> None:
    np.savez(path, v=values, y=_target())


def _csv(path: Path, values: Any, attributes: Attributes) -> None:
    entries = np.asarray(values).tolist() if not isinstance(values, list) else values
    texts = ["" if entry is None or entry != entry else str(entry) for entry in entries]
    lines = [f"{text},{y!r}" for text, y in zip(texts, _target().tolist(), strict=True)]
    path.write_text("\n".join(["v,y", *lines]))


def _parquet(path: Path, values: Any, attributes: Attributes) -> None:
    cells = values if isinstance(values, pa.Array) else pa.array(values)
    parquet.write_table(pa.table({"v": cells, "y": _target()}), path)


def _netcdf_3(path: Path, values: Any, attributes: Attributes) -> None:
    with netcdf_file(path, "w", version=2) as file:
        file.createDimension("sample", N)
        for name, column in (("v", values), ("y", _target())):
            variable = file.createVariable(name, column.dtype, ("sample",))
            variable[:] = column
        for name, value in attributes.items():
            setattr(file.variables["v"], name, value)


def _netcdf_4(path: Path, values: Any, attributes: Attributes) -> None:
    others = dict(attributes)
    with h5netcdf.File(path, "w", invalid_netcdf=values.dtype.kind in "bc") as file:
        file.dimensions = {"sample": N}
        text = h5py.string_dtype() if values.dtype.kind in "OU" else values.dtype
        stored = values.astype(object) if values.dtype.kind == "U" else values
        fill = others.pop("_FillValue", None)
        file.create_variable("v", ("sample",), text, data=stored, fillvalue=fill)
        file.create_variable("y", ("sample",), data=_target())
        for name, value in others.items():
            file.variables["v"].attrs[name] = value


def _zarr(version: int, named: bool) -> Callable[[Path, Any, Attributes], None]:
    def write(path: Path, values: Any, attributes: Attributes) -> None:
        group, others = zarr.create_group(path, zarr_format=version), dict(attributes)
        for name, column in (("v", values), ("y", _target())):
            # xarray writes `_FillValue` as the fill value of version 2.
            as_fill = name == "v" and version == 2 and named and "_FillValue" in others
            fill = others.pop("_FillValue") if as_fill else "" if column.dtype.kind in "US" else 0
            names = {"dimension_names": ["sample"]} if named and version == 3 else {}
            array = group.create_array(
                name,
                shape=(N,),
                dtype=column.dtype,
                chunks=(10,),
                fill_value=None if column.dtype.kind in "mM" else fill,
                **names,
            )
            array[:] = column
            if named and version == 2:
                array.attrs["_ARRAY_DIMENSIONS"] = ["sample"]
        for name, value in others.items():
            group["v"].attrs[name] = value.item() if isinstance(value, np.generic) else np.asarray(value).tolist()

    return write


def _dataset(path: Path, values: Any, attributes: Attributes) -> None:
    dataset_from_arrays(
        path, np.asarray(values, dtype=np.float64)[:, None], _target(), feature_names=["v"], target_names=["y"]
    )


WRITERS: dict[str, tuple[str, Callable[[Path, Any, Attributes], None]]] = {
    "npy": ("d.npy", _npy),
    "npz": ("d.npz", _npz),
    "csv": ("d.csv", _csv),
    "parquet": ("d.parquet", _parquet),
    "netcdf 3": ("d.nc", _netcdf_3),
    "netcdf 4": ("d.nc", _netcdf_4),
    "zarr 2": ("d.zarr", _zarr(2, False)),
    "zarr 2 named": ("d.zarr", _zarr(2, True)),
    "zarr 3": ("d.zarr", _zarr(3, False)),
    "zarr 3 named": ("d.zarr", _zarr(3, True)),
    "dataset": ("d.zarr", _dataset),
}
ZARRS = frozenset({"zarr 2", "zarr 2 named", "zarr 3", "zarr 3 named"})
NUMPYS = frozenset({"npy", "npz"})
NETCDFS = frozenset({"netcdf 3", "netcdf 4"})
# Types that are told; all but CSV and dkgp's own, which has float64 alone.
TYPED = NUMPYS | ZARRS | NETCDFS | {"parquet"}

# ------------------------------------------------------------------------------------------------------------- the rows


@dataclass(frozen=True)
class Row:
    """An input: its values, the formats that can store it, and its meaning, `numbers` or the words of a refusal."""

    values: Any
    forms: frozenset[str]
    numbers: Any = None
    refused: str = ""
    attributes: Attributes = field(default_factory=dict)
    # The numbers, where the column is named as one of dates.
    seconds: Any = None
    classes: tuple[str, ...] = ()


def _cycled(*values: Any, dtype: Any = None) -> np.ndarray:
    """The values again and again, as many as there are samples; of the types of NumPy or objects."""
    return np.array([values[index % len(values)] for index in range(N)], dtype=dtype)


def _same(values: np.ndarray) -> np.ndarray:
    return np.array([float(value) for value in values.tolist()])


ROWS: dict[str, Row] = {}
ROWS["bool"] = Row(
    _cycled(False, True, True), TYPED - {"netcdf 3"} | {"csv"}, _cycled(0.0, 1.0, 1.0), classes=("False", "True")
)
for bits in (8, 16, 32, 64):
    low, high = np.iinfo(f"i{bits // 8}").min, np.iinfo(f"i{bits // 8}").max
    edge = min(high, 2**53)
    signed = _cycled(0, 7, max(low, -(2**53)), edge, dtype=f"i{bits // 8}")
    unsigned = _cycled(0, 7, min(np.iinfo(f"u{bits // 8}").max - 1, 2**53), dtype=f"u{bits // 8}")
    lacking = {"netcdf 3"} if bits == 64 else set()
    ROWS[f"int{bits}"] = Row(signed, (TYPED | {"csv", "dataset"}) - lacking, _same(signed))
    ROWS[f"uint{bits}"] = Row(unsigned, (TYPED | {"csv", "dataset"}) - {"netcdf 3"}, _same(unsigned))
ROWS["int16, big-endian"] = Row(_cycled(0, 258, -3, dtype=">i2"), TYPED - {"parquet"}, _cycled(0.0, 258.0, -3.0))
ROWS["float64, big-endian"] = Row(
    _cycled(0.0, 0.1, -3e300, dtype=">f8"), TYPED - {"parquet"}, _cycled(0.0, 0.1, -3e300)
)
ROWS["float16"] = Row(
    _cycled(0.0, 0.1, -65504.0, dtype="f2"), NUMPYS | ZARRS | {"parquet"}, _same(_cycled(0, 0.1, -65504, dtype="f2"))
)
ROWS["float32"] = Row(_cycled(0.0, 0.1, 3e38, dtype="f4"), TYPED, _same(_cycled(0.0, 0.1, 3e38, dtype="f4")))
ROWS["float64"] = Row(_cycled(0.0, 0.1, 5e-324, -1e300), TYPED | {"csv"}, _cycled(0.0, 0.1, 5e-324, -1e300))
ROWS["float128"] = Row(_cycled(0.0, 0.1, 3.0, dtype=np.longdouble), NUMPYS, _cycled(0.0, 0.1, 3.0))
ROWS["2^60, which float64 holds"] = Row(
    _cycled(0, 2**60, -(2**62)), TYPED - {"netcdf 3"} | {"csv"}, _cycled(0.0, 2.0**60, -(2.0**62))
)
ROWS["int64 beyond 2^53"] = Row(
    _cycled(0, 5, BIG),
    TYPED - {"netcdf 3"} | {"csv"},
    refused=f"whole number {BIG} in (row 3|line 4)",
    classes=("0", "5", str(BIG)),
)
ROWS["uint64 beyond 2^63"] = Row(
    _cycled(0, 2**63 + 1, dtype="u8"),
    TYPED - {"netcdf 3"} | {"csv"},
    refused=f"whole number {2**63 + 1}",
    classes=("0", str(2**63 + 1)),
)
ROWS["text beyond 64 bits"] = Row(
    _cycled("0.5", str(2**64 + 1)).tolist(), frozenset({"csv"}), refused=f"whole number {2**64 + 1}"
)
ROWS["whole numbers among others"] = Row(
    _cycled("0.5", "", str(BIG)).tolist(), frozenset({"csv"}), refused=f"whole number {BIG} in line 4"
)
ROWS["complex"] = Row(_cycled(1 + 2j, 3 - 1j), TYPED - {"parquet", "netcdf 3"}, refused="holds complex numbers")
ROWS["NaN"] = Row(_cycled(0.0, NAN, 2.5), TYPED | {"csv"}, _cycled(0.0, NAN, 2.5))
ROWS["text"] = Row(
    _cycled("a", "b"), NUMPYS | ZARRS | {"parquet", "netcdf 4", "csv"}, refused="holds the text 'a'", classes=("a", "b")
)
ROWS["numbers as text"] = Row(
    _cycled("1", "2"), NUMPYS | ZARRS | {"parquet", "netcdf 4"}, refused="holds the text '1'", classes=("1", "2")
)
ROWS["bytes"] = Row(
    _cycled(b"a", b"bc", dtype="S2"), NUMPYS | {"parquet", "zarr 2"}, refused="holds the text 'a'", classes=("a", "bc")
)

# Missing values of whole numbers and others.
_GAPS = _cycled(0.0, NAN, 9.0)
for name, kind in {
    "int8": pa.int8(),
    "uint16": pa.uint16(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "float": pa.float16(),
}.items():
    present = (
        pa.array(_cycled(0, 1, 9 if name != "bool" else 1).tolist())
        .cast(kind if name != "float" else pa.float32())
        .cast(kind)
    )
    gaps_of = pa.array(_cycled(False, True, False))
    nulled = pa.array(
        [None if gap else value for value, gap in zip(present.to_pylist(), gaps_of.to_pylist(), strict=True)], kind
    )
    ROWS[f"null among {name}"] = Row(nulled, frozenset({"parquet"}), _cycled(0.0, NAN, 9.0 if name != "bool" else 1.0))
ROWS["null among int64 beyond 2^53"] = Row(
    pa.array(_cycled(None, BIG, 3).tolist()), frozenset({"parquet"}), refused=f"whole number {BIG} in row 2"
)
ROWS["dictionary with nulls"] = Row(
    pa.array(_cycled(None, 5, 3).tolist()).dictionary_encode(), frozenset({"parquet"}), _cycled(NAN, 5.0, 3.0)
)
ROWS["null among text"] = Row(
    pa.array(_cycled(None, "a", "b").tolist()), frozenset({"parquet"}), refused="holds the text 'a' in row 2"
)
ROWS["empty field"] = Row(_cycled(0, None, 9).tolist(), frozenset({"csv"}), _GAPS)
ROWS["decimal"] = Row(
    pa.array(_cycled(Decimal("0.1"), Decimal("123456.789"), None).tolist(), pa.decimal128(38, 20)),
    frozenset({"parquet"}),
    _cycled(0.1, 123456.789, NAN),
)
ROWS["whole decimal beyond 2^53"] = Row(
    pa.array(_cycled(Decimal(3), Decimal(BIG)).tolist(), pa.decimal128(38, 0)),
    frozenset({"parquet"}),
    refused=f"whole number {BIG} in row 2",
    classes=("3", str(BIG)),
)
ROWS["list"] = Row(
    pa.array(_cycled(1, 2).reshape(-1, 1).tolist()), frozenset({"parquet"}), refused=r"holds the text '\[1\]'"
)

# Attributes of NetCDF, which Zarr has as well.
CF = NETCDFS | ZARRS


def _packed(dtype: str, *values: int) -> np.ndarray:
    return _cycled(*values, dtype=dtype)


ROWS["_FillValue"] = Row(_packed("i2", 0, -9999, 9), CF, _GAPS, attributes={"_FillValue": np.int16(-9999)})
ROWS["_FillValue of floats"] = Row(_packed("f4", 0, -9999, 9), CF, _GAPS, attributes={"_FillValue": np.float32(-9999)})
ROWS["missing_value"] = Row(_packed("i4", 0, -9999, 9), CF, _GAPS, attributes={"missing_value": np.int32(-9999)})
ROWS["missing_value and _FillValue"] = Row(
    _packed("i4", 0, -9999, 9, -1),
    CF,
    _cycled(0.0, NAN, 9.0, NAN),
    attributes={"missing_value": np.int32(-1), "_FillValue": np.int32(-9999)},
)
ROWS["scale and offset"] = Row(
    _packed("i2", 0, 1, -32768),
    CF,
    _cycled(100.0, 100.25, 100 - 8192),
    attributes={"scale_factor": 0.25, "add_offset": 100.0},
)
ROWS["scale, offset and _FillValue"] = Row(
    _packed("i2", 0, 1, -9999),
    CF,
    _cycled(100.0, 100.25, NAN),
    attributes={"scale_factor": 0.25, "add_offset": 100.0, "_FillValue": np.int16(-9999)},
)
ROWS["a scale that no float32 has"] = Row(
    _packed("i2", 0, 1, 30001), CF, _cycled(0, 1, 30001) * 0.1, attributes={"scale_factor": np.float64(0.1)}
)
ROWS["_Unsigned"] = Row(_packed("i1", 0, -1, 5), CF, _cycled(0.0, 255.0, 5.0), attributes={"_Unsigned": "true"})
ROWS["valid_range"] = Row(_packed("i2", 0, 500, 9), CF, _GAPS, attributes={"valid_range": np.array([0, 100], "i2")})
ROWS["valid_max of packed values"] = Row(
    _packed("i2", 0, 500, 18), CF, _GAPS, attributes={"scale_factor": 0.5, "valid_max": np.int16(100)}
)
ROWS["_FillValue beside numbers beyond 2^53"] = Row(
    _packed("i8", 0, -9999, BIG),
    CF - {"netcdf 3"},
    refused=f"whole number {BIG} in row 3",
    attributes={"_FillValue": np.int64(-9999)},
    classes=("0", str(BIG)),
)
ROWS["NetCDF's own fill values"] = Row(_cycled(0.0, 9.969209968386869e36, 9.0), NETCDFS, _GAPS)
ROWS["NetCDF's own fill values of int32"] = Row(_packed("i4", 0, -2147483647, 9), NETCDFS, _GAPS)
ROWS["zeros, the fill value"] = Row(_packed("i4", 0, 1, 9), ZARRS, _cycled(0.0, 1.0, 9.0))
ROWS["a fill value that no attribute tells"] = Row(_packed("i4", 0, -9999, 9), ZARRS, _cycled(0.0, -9999.0, 9.0))

# Dates and durations.
_DAYS = ["2020-03-01", "1969-12-31", "2100-01-01"]
_SECONDS = _cycled(*(float(np.datetime64(day, "s").astype(int)) for day in _DAYS))
for unit in ("D", "h", "m", "s", "ms", "us", "ns"):
    stamps = _cycled(*(np.datetime64(day, unit) for day in _DAYS), dtype=f"M8[{unit}]")
    ROWS[f"datetime64[{unit}]"] = Row(stamps, NUMPYS | ZARRS, refused=r"holds dates \(", seconds=_SECONDS)
    with_gap = np.where(np.arange(N) % 5 == 1, np.datetime64("NaT"), stamps)
    gapped = np.where(np.arange(N) % 5 == 1, NAN, _SECONDS)
    ROWS[f"NaT among datetime64[{unit}]"] = Row(
        with_gap, frozenset({"npz", "zarr 3 named"}), refused=r"holds dates \(", seconds=gapped
    )
    ROWS[f"timedelta64[{unit}]"] = Row(
        _cycled(1, 2, 3, dtype=f"m8[{unit}]"), NUMPYS | ZARRS, refused=r"holds durations \("
    )
_STAMPS = pa.array(_cycled(*map(np.datetime64, _DAYS)).astype("M8[s]"))
for kind in (
    pa.date32(),
    pa.date64(),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", tz="Asia/Tokyo"),
):
    ROWS[f"{kind}"] = Row(_STAMPS.cast(kind), frozenset({"parquet"}), refused=r"holds dates \(", seconds=_SECONDS)
for kind in (pa.duration("s"), pa.duration("ns"), pa.time32("s"), pa.time64("us")):
    ROWS[f"{kind}"] = Row(
        pa.array(np.arange(N).astype("i4")).cast(pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind),
        frozenset({"parquet"}),
        refused=r"holds durations \(",
    )
ROWS["dates as text"] = Row(
    _cycled(*_DAYS),
    NUMPYS | ZARRS | {"csv", "parquet", "netcdf 4"},
    refused="holds the text '2020-03-01'",
    seconds=_SECONDS,
)
for unit, per_day in {"days": 1, "hours": 24, "seconds": 86400}.items():
    times = (_cycled(*map(np.datetime64, _DAYS)).astype("M8[D]").astype(int) * per_day).astype("f8")
    ROWS[f"{unit} since"] = Row(
        times, CF, refused=r"holds dates \(", seconds=_SECONDS, attributes={"units": f"{unit} since 1970-01-01"}
    )
ROWS["days since, with a gap"] = Row(
    _packed("i4", 0, -1, 9),
    CF,
    refused=r"holds dates \(",
    seconds=_cycled(-2208988800.0, NAN, -2208988800.0 + 9 * 86400),
    attributes={"units": "days since 1900-01-01", "_FillValue": np.int32(-1)},
)
ROWS["a far year"] = Row(
    _packed("i4", 0, 700000, 9),
    CF,
    refused=r"holds dates \(",
    seconds=np.array([-62135596800.0]) + _cycled(0.0, 700000.0, 9.0) * 86400,
    attributes={"units": "days since 0001-01-01", "calendar": "proleptic_gregorian"},
)
ROWS["durations that xarray wrote"] = Row(
    _packed("i4", 0, 3, 9), CF, refused=r"holds durations \(", attributes={"units": "days", "dtype": "timedelta64[ns]"}
)

# One cell of each row, of a format that differs from row to row; all others are slow.
QUICK = {
    name: [form for form in WRITERS if form in row.forms][index % len(row.forms)]
    for index, (name, row) in enumerate(ROWS.items())
}
CELLS = [
    pytest.param(form, row, id=f"{form}: {name}", marks=() if QUICK[name] == form else pytest.mark.slow)
    for name, row in ROWS.items()
    for form in WRITERS
    if form in row.forms
]


def _stored(folder: Path, form: str, row: Row) -> Path:
    file, write = WRITERS[form]
    write(folder / file, row.values, row.attributes)
    return folder / file


def _read(path: Path, form: str, options: TableOptions | None = None, encode: Any = None) -> np.ndarray:
    """The column of values as its source reads it, with dates in seconds where the options say so."""
    source = open_source([str(path)], {})
    if options is not None:
        source = EncodedSource(source, learned_encoding(source, options, (), None))
    column = find_columns(source, _name(form), "feature")[0]
    if encode is not None:
        column = type(column)(column.name, column.array, column.index, encode)
    return np.concatenate([block.values[:, 0] for block in source.blocks([column])])


def _name(form: str) -> str:
    return "x0" if form == "npy" else "v"


@pytest.mark.parametrize(("form", "row"), CELLS)
def test_every_value_is_right_or_refused_by_its_columns_name(tmp_path: Path, form: str, row: Row) -> None:
    path = _stored(tmp_path, form, row)
    if row.refused:
        text = "the text" if form == "csv" and "holds complex" in row.refused else row.refused
        with pytest.raises(InputError, match=f"'{_name(form)}'.*{text}"):
            _read(path, form)
    else:
        np.testing.assert_array_equal(_read(path, form), row.numbers)


@pytest.mark.parametrize(("form", "row"), [cell for cell in CELLS if cell.values[1].seconds is not None])
def test_dates_are_the_same_seconds_in_every_unit(tmp_path: Path, form: str, row: Row) -> None:
    path = _stored(tmp_path, form, row)
    np.testing.assert_array_equal(_read(path, form, TableOptions(dates=(_name(form),))), row.seconds)


@pytest.mark.parametrize(
    ("form", "row"), [cell for cell in CELLS if cell.values[1].classes and cell.values[0] != "npy"]
)
def test_labels_are_classes_of_their_own(tmp_path: Path, form: str, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.data.sources.base.BLOCK_BYTES", 100)
    path, missing = _stored(tmp_path, form, row), "_FillValue" in row.attributes
    table = TableOptions(drop_gaps=True) if missing else None
    train = ingest(path, tmp_path / "o.zarr", labels="v", features=["y"], table=table).train
    assert train.classes == row.classes
    assert train.n_samples == (N - N // 3 if missing else N)


NO_LABELS = [
    cell
    for cell in CELLS
    if re.search("dates|durations|complex", cell.values[1].refused) and cell.values[0] not in ("npy", "csv")
]


@pytest.mark.parametrize(("form", "row"), NO_LABELS)
def test_a_date_a_duration_or_a_complex_number_is_no_label(tmp_path: Path, form: str, row: Row) -> None:
    with pytest.raises(InputError, match="labels 'v' are of type"):
        ingest(_stored(tmp_path, form, row), tmp_path / "o.zarr", labels="v", features=["y"])


# ----------------------------------------------------------------------------------------------------- through commands


@pytest.mark.spread(40)
@pytest.mark.parametrize(("form", "row"), [cell for cell in CELLS if not cell.marks])
def test_ingest_keeps_values_and_names_what_it_refuses(tmp_path: Path, form: str, row: Row) -> None:
    path, name, out = _stored(tmp_path, form, row), _name(form), tmp_path / "o.zarr"
    roles: dict[str, Any] = {"features": [name], "target": "x1" if form == "npy" else "y"}
    refused = row.refused or ("a missing value or NaN in (row|line)" if np.isnan(row.numbers).any() else "")
    if refused:
        with pytest.raises(InputError, match=f"'{name}'.*{refused}"):
            ingest(path, out, **roles)
        assert not out.exists()
    if row.refused and row.seconds is None:
        return
    table = TableOptions(dates=() if row.seconds is None else (name,), drop_gaps=True)
    if max(abs(np.nan_to_num(row.numbers if row.seconds is None else row.seconds))) > 1e100:
        return  # too large to be standardised
    train = ingest(path, out, table=table, **roles).train
    expected = row.numbers if row.seconds is None else row.seconds
    np.testing.assert_array_equal(train.raw_inputs(0, train.n_samples)[:, 0], expected[~np.isnan(expected)])


def _fit(folder: Path, path: Path) -> dict[str, Any]:
    """Return the table that `dkgp fit` reads with the options that it derives."""
    job = FitJob(IngestJob((str(path),), targets=("y",)), out=str(folder / "fit"))
    job.folder.mkdir()
    return {**_Fit(job, SilentReporter())._ingest(), "train": open_dataset(job.place("train.zarr"))}


FITTED = {
    "dates": ("datetime64[ns]", "npz", "--date v"),
    "dates of NetCDF": ("hours since", "netcdf 4", "--date v"),
    "dates of Zarr": ("NaT among datetime64[ns]", "zarr 3 named", "--date v --drop-missing"),
    "date32": ("date32[day]", "parquet", "--date v"),
    "timestamps": ("timestamp[ns]", "parquet", "--date v"),
    "fill values": ("_FillValue", "zarr 2 named", "--impute median"),
    "fill values of arrays": ("missing_value", "zarr 3", "--impute median"),
    "fill values of NetCDF": ("NetCDF's own fill values", "netcdf 3", "--impute median"),
    "zeros": ("zeros, the fill value", "zarr 2 named", None),
    "nulls": ("null among int8", "parquet", "--impute median"),
}


@pytest.mark.parametrize(("name", "form", "suggested"), FITTED.values(), ids=FITTED)
def test_fit_reads_the_same(tmp_path: Path, name: str, form: str, suggested: str | None) -> None:
    row = ROWS[name]
    if row.seconds is not None and np.isnan(row.seconds).any():
        # Few enough to be left out.
        values = np.where(np.arange(N) == 1, np.datetime64("NaT"), np.array(_cycled(*_DAYS), dtype=row.values.dtype))
        row = Row(values, row.forms, seconds=np.where(np.arange(N) == 1, NAN, _SECONDS))
    document = _fit(tmp_path, _stored(tmp_path, form, row))
    assert document["suggested"] == suggested
    expected = row.numbers if row.seconds is None else row.seconds
    present = set(expected[~np.isnan(expected)])
    values = document["train"].raw_inputs(0, document["train"].n_samples)[:, 0]
    median = {float(np.nanmedian(expected))} if suggested == "--impute median" else set()
    assert set(values) <= present | median


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("complex", form) for form in ("npz", "netcdf 4", "zarr 3")),
        *(("timedelta64[ns]", form) for form in ("npz", "zarr 2")),
        *(("durations that xarray wrote", form) for form in ("netcdf 3", "zarr 3 named")),
        *(("int64 beyond 2^53", form) for form in ("npz", "csv", "parquet")),
        ("duration[ns]", "parquet"),
        ("time32[s]", "parquet"),
    ],
)
def test_fit_refuses_the_same(tmp_path: Path, name: str, form: str) -> None:
    with pytest.raises(InputError, match=f"'v' .*{ROWS[name].refused}"):
        _fit(tmp_path, _stored(tmp_path, form, ROWS[name]))


@pytest.mark.parametrize("table", [TableOptions(impute="median"), TableOptions(categorical=("v",))])
@pytest.mark.parametrize("unit", ["s", "ns"])
def test_dates_are_no_numbers_where_gaps_are_filled_in_and_levels_by_name(
    tmp_path: Path, table: TableOptions, unit: str
) -> None:
    for form, values in (("npz", ROWS[f"datetime64[{unit}]"].values), ("parquet", _STAMPS.cast(pa.timestamp(unit)))):
        path = _stored(tmp_path, form, Row(values, frozenset()))
        if table.impute:
            with pytest.raises(InputError, match=r"'v' holds dates \("):
                ingest(path, tmp_path / f"{form}.zarr", target="y", table=table)
        else:
            names = ingest(path, tmp_path / f"{form}.zarr", target="y", table=table).train.feature_names
            assert names == tuple(f"v={day} 00:00:00" for day in sorted(_DAYS))


def test_ids_of_dates_are_their_texts_in_every_unit(tmp_path: Path) -> None:
    texts = {}
    for unit in ("s", "ns"):
        path = tmp_path / f"{unit}.npz"
        np.savez(path, v=ROWS[f"datetime64[{unit}]"].values, a=np.arange(N), y=_target())
        texts[unit] = ingest(path, tmp_path / f"{unit}.zarr", target="y", ids=["v"]).train.ids(0, 3)[:, 0].tolist()
    assert texts["s"] == texts["ns"] == [f"{day} 00:00:00" for day in _DAYS]


def test_a_date_beyond_what_is_counted_is_refused(tmp_path: Path) -> None:
    far = np.array([2**62, *range(1, N)], dtype="M8[D]")
    path = _stored(tmp_path, "npz", Row(far, frozenset()))
    with pytest.raises(InputError, match="'v' holds .* is no date"):
        ingest(path, tmp_path / "o.zarr", target="y", table=TableOptions(dates=("v",)))


# ---------------------------------------------------------------------------------------------------- no columns at all


def test_a_sparse_matrix_is_refused_in_words(tmp_path: Path, rng: np.random.Generator) -> None:
    matrix = scipy.sparse.random_array((N, 4), density=0.3, rng=rng)
    for name in ("csr", "csc", "coo", "bsr", "dia"):
        scipy.sparse.save_npz(tmp_path / f"{name}.npz", matrix.asformat(name))
        with pytest.raises(InputError, match=r"is a sparse matrix of SciPy .*`toarray\(\)`"):
            ingest(tmp_path / f"{name}.npz", tmp_path / "o.zarr", target=-1)


def test_arrays_of_an_npz_that_cannot_be_columns_are_told_of(tmp_path: Path) -> None:
    masked = np.ma.masked_equal(_cycled(0.0, -9999.0), -9999.0)
    with pytest.raises(NotImplementedError):  # NumPy writes no masked array to a file of its own
        np.save(tmp_path / "m.npy", masked)
    objects = np.array([None if gap else 1.5 for gap in masked.mask], dtype=object)
    np.savez(tmp_path / "d.npz", a=np.arange(N), color=objects, y=_target())
    report = ingest(tmp_path / "d.npz", tmp_path / "o.zarr", target="y")
    assert report.train.feature_names == ("a",)
    assert any("'color' of" in warning and "holds Python objects" in warning for warning in report.warnings)
    with pytest.raises(InputError, match="feature 'color' .* holds Python objects"):
        ingest(tmp_path / "d.npz", tmp_path / "p.zarr", target="y", features=["color"])


def test_other_types_of_hdf5_are_refused_by_name(tmp_path: Path) -> None:
    with h5netcdf.File(tmp_path / "d.nc", "w") as file:
        file.dimensions = {"sample": N}
        file.create_variable("y", ("sample",), data=_target())
        file.create_variable("a", ("sample",), data=_target())
    with h5py.File(tmp_path / "d.nc", "a") as file:
        pairs = np.zeros(N, dtype=[("low", "f4"), ("high", "f4")])
        file.create_dataset("pair", data=pairs).dims[0].attach_scale(file["sample"])
        ragged = file.create_dataset("ragged", (N,), dtype=h5py.vlen_dtype(np.float64))
        ragged[:] = [np.arange(2.0)] * N
        ragged.dims[0].attach_scale(file["sample"])
    for name in ("pair", "ragged"):
        with pytest.raises(InputError, match=f"'{name}'"):
            ingest(tmp_path / "d.nc", tmp_path / "o.zarr", target="y", features=[name])


@pytest.mark.parametrize("form", ["netcdf 4", "zarr 2", "zarr 2 named", "zarr 3", "zarr 3 named"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": "a"},
        {"scale_factor": np.array([1.0, 2.0])},
        {"_FillValue": "x"},
        {"units": "days since whenever"},
        {"valid_range": np.array([1.0, 2.0, 3.0])},
        {"valid_min": "low"},
        {"dtype": "timedelta64[weeks]", "units": "fortnights"},
    ],
    ids=str,
)
def test_attributes_that_make_no_sense_are_refused_in_words(
    tmp_path: Path, form: str, attributes: dict[str, Any]
) -> None:
    if "_FillValue" in attributes and form in ("netcdf 4", "zarr 2 named"):
        pytest.skip("cannot be written")
    path = _stored(tmp_path, form, Row(_cycled(0.0, 1.0, 2.0), frozenset(), attributes=attributes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"d\.(nc|zarr)"):
            _read(path, form)


def test_files_with_dates_of_other_units_are_one_column(tmp_path: Path) -> None:
    for form, name in (("netcdf 4", "days since"), ("netcdf 4", "seconds since")):
        (tmp_path / name).mkdir()
        _stored(tmp_path / name, form, ROWS[name])
    files = [tmp_path / name / "d.nc" for name in ("days since", "seconds since")]
    train = ingest(files, tmp_path / "o.zarr", target="y", table=TableOptions(dates=("v",))).train
    np.testing.assert_array_equal(train.raw_inputs(0, 2 * N)[:, 0], np.tile(_SECONDS, 2))


def test_a_table_of_a_data_frame_keeps_nullable_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"v": pd.array([0, None, 9] * (N // 3), dtype="Int64"), "y": _target()})
    frame.to_parquet(tmp_path / "d.parquet")
    np.testing.assert_array_equal(_read(tmp_path / "d.parquet", "parquet"), _GAPS)
