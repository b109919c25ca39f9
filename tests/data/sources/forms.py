"""Files and folders in every source format, and in the forms that a format takes, written from one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
import zarr


@dataclass(frozen=True)
class Form:
    """Form of a table as a source: `format` is its declared format, `named` tells if columns keep their names."""

    format: str
    file: str
    write: Callable[[pd.DataFrame, Path], object]
    named: bool = True


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False)


def _column(frame: pd.DataFrame, name: object) -> np.ndarray:
    return np.array(frame[name].tolist())


def _labelled(frame: pd.DataFrame) -> xr.Dataset:
    return xr.Dataset({name: ("sample", _column(frame, name)) for name in frame})


def _netcdf_3(frame: pd.DataFrame, path: Path) -> None:
    """Text is a matrix of characters there, and truth a small number that is said to be one."""
    _labelled(frame).to_netcdf(path, format="NETCDF3_64BIT", engine="scipy")


def _categorical(frame: pd.DataFrame, path: Path) -> None:
    text = {name: "category" for name in frame if frame[name].dtype.kind not in "fiu"}
    frame.astype(text).to_parquet(path)


def _zarr_arrays(frame: pd.DataFrame, path: Path) -> None:
    group = zarr.create_group(path, zarr_format=3)
    for name in frame:
        values = _column(frame, name)
        dtype = "string" if values.dtype.kind == "U" else values.dtype
        array = group.create_array(str(name), shape=values.shape, dtype=dtype, chunks=(17,))
        array[:] = values.astype(object) if dtype == "string" else values


FORMS = {
    "csv": Form("CSV and other delimited text", "d.csv", write_csv),
    "gzipped csv": Form("CSV and other delimited text", "d.csv.gz", write_csv),
    "parquet": Form("Parquet", "d.parquet", lambda frame, path: frame.to_parquet(path, row_group_size=50)),
    "categories": Form("Parquet", "d.parquet", _categorical),
    "npy": Form("NPY", "d.npy", lambda frame, path: np.save(path, np.ascontiguousarray(frame)), named=False),
    "npz": Form("NPZ", "d.npz", lambda frame, path: np.savez(path, **{name: _column(frame, name) for name in frame})),
    "netcdf": Form("NetCDF", "d.nc", lambda frame, path: _labelled(frame).to_netcdf(path, engine="h5netcdf")),
    "netcdf 3": Form("NetCDF 3", "d.nc", _netcdf_3),
    "zarr": Form("Zarr", "d.zarr", lambda frame, path: _labelled(frame).chunk(sample=50).to_zarr(path, zarr_format=2)),
    "zarr arrays": Form("Zarr", "d.zarr", _zarr_arrays),
}
