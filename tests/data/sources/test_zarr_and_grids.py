"""Zarr groups with dimension names, whose zeros are numbers and whose columns have one order, and stacked grids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from dkgp.data import ingest
from dkgp.data.sources.formats import open_source
from dkgp.errors import InputError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N = 30


def _group(path: Path, fill: object = 0, version: int = 2, **columns: np.ndarray) -> None:
    """Arrays along `sample`, in this order, with the fill value that Zarr sets by itself."""
    group = zarr.create_group(path, zarr_format=version)
    for name, values in columns.items():
        names = {"dimension_names": ["sample"]} if version == 3 else {}
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(8,), fill_value=fill, **names)
        array[:] = values
        if version == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = ["sample"]


@pytest.mark.spread(3)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", ">i4"])
def test_zeros_are_numbers_where_the_fill_value_is_0(
    tmp_path: Path, rng: np.random.Generator, version: int, dtype: str
) -> None:
    counts = rng.integers(0, 3, N).astype(dtype)
    _group(tmp_path / "d.zarr", version=version, counts=counts, y=rng.normal(size=N), label=counts)
    report = ingest(tmp_path / "d.zarr", tmp_path / "o.zarr", target="y", features=["counts"])
    np.testing.assert_array_equal(report.train.raw_inputs(0, N)[:, 0], counts)
    assert any("zeros of 'counts', 'label', 'y'" in warning for warning in report.warnings) == (version == 2)
    labels = ingest(tmp_path / "d.zarr", tmp_path / "l.zarr", labels="label", features=["y"]).train
    assert labels.classes == ("0", "1", "2")
    np.testing.assert_array_equal(labels.all_labels(), counts)


def test_the_fill_value_that_xarray_wrote_marks_missing_values(tmp_path: Path, rng: np.random.Generator) -> None:
    depth = rng.integers(0, 9, N).astype(float)
    depth[4] = np.nan
    dataset = xr.Dataset({"depth": ("sample", depth), "y": ("sample", rng.normal(size=N))})
    for version in (2, 3):
        path = tmp_path / f"{version}.zarr"
        encoding = {"depth": {"dtype": "int16", "_FillValue": -9999}}
        dataset.to_zarr(path, zarr_format=version, encoding=encoding, consolidated=False)
        with pytest.raises(
            InputError, match=r"'depth' holds a missing value or NaN in row 5 .*\(1 such value in all\)"
        ):
            ingest(path, tmp_path / "o.zarr", target="y")


@pytest.mark.parametrize("attribute", [-9999.0, "AAAAAICHw8A=", "NaN"])
def test_a_fill_value_of_attributes_is_read_in_each_writers_form(
    tmp_path: Path, rng: np.random.Generator, attribute: object
) -> None:
    values = rng.normal(size=N)
    values[7] = np.nan if attribute == "NaN" else -9999.0
    _group(tmp_path / "d.zarr", version=3, a=values, y=rng.normal(size=N))
    zarr.open_group(tmp_path / "d.zarr")["a"].attrs["_FillValue"] = attribute
    with pytest.raises(InputError, match="'a' holds a missing value or NaN in row 8 "):
        ingest(tmp_path / "d.zarr", tmp_path / "o.zarr", target="y")


@pytest.mark.parametrize("version", [2, 3])
def test_columns_are_in_one_order_whatever_the_disks(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    columns = {name: rng.normal(size=N) for name in ("wind", "b", "a2", "a10", "x")}
    stores, listed = [], zarr.Group.arrays
    for name, order in (("one", columns), ("other", dict(reversed(columns.items())))):
        _group(tmp_path / f"{name}.zarr", fill=None if version == 2 else 0, version=version, **order)
        backwards = name == "one"
        monkeypatch.setattr(zarr.Group, "arrays", lambda group, up=backwards: sorted(listed(group), reverse=up))
        stores.append(ingest(tmp_path / f"{name}.zarr", tmp_path / f"{name}-out.zarr", target=0).train)
    assert [store.feature_names for store in stores] == [("a2", "b", "wind", "x")] * 2
    assert [store.target_names for store in stores] == [("a10",)] * 2
    assert stores[0].fingerprint == stores[1].fingerprint


# --------------------------------------------------------------------------------------------------------------- grids


def _grid(rng: np.random.Generator) -> xr.Dataset:
    return xr.Dataset(
        {
            "temp": (("lat", "lon"), rng.normal(size=(4, 3))),
            "height": (("lon", "lat"), rng.normal(size=(3, 4))),
            "zone": ("lat", np.arange(4.0)),
            "crs": ((), 7),
        },
        coords={"lat": np.linspace(40, 43, 4), "lon": np.linspace(-3, -1, 3)},
    )


def _write(dataset: xr.Dataset, folder: Path, form: str) -> Path:
    path = folder / f"grid.{'zarr' if form == 'zarr' else 'nc'}"
    if form == "zarr":
        dataset.to_zarr(path, zarr_format=3, consolidated=False)
    elif form == "netcdf 3":
        dataset.to_netcdf(path, format="NETCDF3_64BIT", engine="scipy")
    else:
        dataset.to_netcdf(path, engine="h5netcdf")
    return path


every_form = pytest.mark.parametrize("form", ["netcdf", "netcdf 3", "zarr"])


@every_form
@pytest.mark.parametrize("keep", [["temp"], ["temp", "zone"], ["temp", "height", "zone", "crs"]])
def test_a_grid_is_refused_in_words(tmp_path: Path, rng: np.random.Generator, form: str, keep: list[str]) -> None:
    path = _write(_grid(rng)[keep], tmp_path, form)
    with pytest.raises(InputError, match=r"'(temp|height)' of .* is a grid of the dimensions .*'lat'.*`stack`"):
        ingest(path, tmp_path / "o.zarr", target="temp")
    assert not (tmp_path / "o.zarr").exists()


@pytest.mark.spread(3)
@every_form
@pytest.mark.parametrize("block_bytes", [2**20, 40])
def test_a_grid_is_stacked_on_request(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, form: str, block_bytes: int
) -> None:
    monkeypatch.setattr("dkgp.data.sources.base.BLOCK_BYTES", block_bytes)
    grid = _grid(rng)
    path = _write(grid, tmp_path, form)
    store = ingest(
        path, tmp_path / "o.zarr", target="temp", features=["lat", "lon", "height", "zone"], stack=True
    ).train
    # The order is that of the first variable of most dimensions; of a Zarr group, by name.
    order = ["lon", "lat"] if form == "zarr" else ["lat", "lon"]
    frame = grid.drop_vars("crs").to_dataframe(dim_order=order).reset_index()
    np.testing.assert_array_equal(store.raw_inputs(0, 12), frame[["lat", "lon", "height", "zone"]])
    np.testing.assert_array_equal(store.targets(0, 12, standardised=False)[:, 0], frame["temp"])
    with pytest.raises(InputError, match=r"no feature 'crs'|feature 'crs' of .* has the dimensions \(\)"):
        ingest(path, tmp_path / "p.zarr", target="temp", features=["crs"], stack=True)


def test_a_grid_of_dates_and_gaps_is_stacked(tmp_path: Path, rng: np.random.Generator) -> None:
    from dkgp.data.sources.tables.learning import TableOptions

    values = rng.normal(size=(5, 2, 3))
    values[2, 1, 0] = np.nan
    days = np.arange("2020-01-01", "2020-01-06", dtype="M8[D]").astype("M8[ns]")
    grid = xr.Dataset({"temp": (("time", "y", "x"), values)}, coords={"time": days, "y": [10.0, 20.0]})
    path = _write(grid, tmp_path, "netcdf")
    with pytest.raises(InputError, match=r"'time' holds dates .* Name it as a `date`"):
        ingest(path, tmp_path / "o.zarr", target="temp", stack=True)
    table = TableOptions(dates=("time",), drop_gaps=True)
    store = ingest(path, tmp_path / "o.zarr", target="temp", table=table, stack=True).train
    assert store.feature_names == ("time", "y", "x")
    seconds = np.repeat(days.astype("M8[s]").astype(np.int64), 6)
    expected = np.column_stack([seconds, np.tile(np.repeat([10.0, 20.0], 3), 5), np.tile(np.arange(3), 10)])
    np.testing.assert_array_equal(store.raw_inputs(0, 29), np.delete(expected, 15, axis=0))
    np.testing.assert_array_equal(store.targets(0, 29, standardised=False)[:, 0], np.delete(values.ravel(), 15))


def test_each_chunk_of_a_grid_is_read_once(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.data.sources.base.BLOCK_BYTES", 8 * 40)
    values = rng.normal(size=(12, 5))
    grid = xr.Dataset({"v": (("time", "x"), values)}, coords={"time": np.arange(12.0), "x": np.arange(5.0)})
    grid.to_zarr(tmp_path / "g.zarr", zarr_format=3, consolidated=False, encoding={"v": {"chunks": (6, 5)}})
    source = open_source([str(tmp_path / "g.zarr")], {"stack": True})
    blocks = list(source.blocks([column for column in source.columns if column.name == "v"]))
    assert [len(block.values) for block in blocks] == [30, 30]
    np.testing.assert_array_equal(np.concatenate([block.values[:, 0] for block in blocks]), values.ravel())


def test_a_grid_of_names_keeps_them(tmp_path: Path, rng: np.random.Generator) -> None:
    grid = xr.Dataset(
        {
            "cover": (("y", "x"), np.array([["wood", "sea"], ["sea", "field"]])),
            "v": (("y", "x"), rng.normal(size=(2, 2))),
        }
    )
    path = _write(grid, tmp_path, "netcdf 3")
    train = ingest(path, tmp_path / "o.zarr", labels="cover", features=["y", "x", "v"], stack=True).train
    assert [train.classes[code] for code in train.all_labels()] == ["wood", "sea", "sea", "field"]


def test_a_matrix_of_features_is_no_grid(tmp_path: Path, rng: np.random.Generator) -> None:
    spectra = xr.Dataset(
        {"spectra": (("sample", "wavelength"), rng.normal(size=(N, 4))), "y": ("sample", rng.normal(size=N))},
        coords={"sample": np.arange(N), "wavelength": [400.0, 500.0, 600.0, 700.0]},
    )
    path = _write(spectra, tmp_path, "netcdf")
    store = ingest(path, tmp_path / "o.zarr", target="y", features=["spectra"]).train
    np.testing.assert_array_equal(store.raw_inputs(0, N), spectra["spectra"])


def test_grids_beside_vectors_are_told_of(tmp_path: Path, rng: np.random.Generator) -> None:
    mixed = xr.Dataset(
        {"temp": (("time", "y", "x"), rng.normal(size=(N, 2, 2))), "co2": ("time", rng.normal(size=N))},
        coords={"time": np.arange(N), "y": [1.0, 2.0], "x": [1.0, 2.0], "hour": ("time", np.arange(N) % 7)},
    )
    path = _write(mixed, tmp_path, "netcdf")
    report = ingest(path, tmp_path / "o.zarr", target="co2", features=["hour"])
    assert any(
        "'temp' of" in line and "the samples run along 'time'; it is no column" in line for line in report.warnings
    )
    with pytest.raises(InputError, match=r"target 'temp' of .* has the dimensions \('time', 'y', 'x'\)"):
        ingest(path, tmp_path / "p.zarr", target="temp")


def test_stack_goes_with_grids_alone(tmp_path: Path, rng: np.random.Generator) -> None:
    np.savez(tmp_path / "d.npz", X=rng.normal(size=(N, 2)), y=rng.normal(size=N))
    with pytest.raises(UsageError, match="`stack` goes with NetCDF"):
        ingest(tmp_path / "d.npz", tmp_path / "o.zarr", target="y", stack=True)
    xr.Dataset({"a": ("sample", np.arange(5.0))}).to_netcdf(tmp_path / "d.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="no variable of two or more dimensions; leave out `stack`"):
        ingest(tmp_path / "d.nc", tmp_path / "o.zarr", target="a", stack=True)
    group = zarr.create_group(tmp_path / "plain.zarr")
    group.create_array("a", data=np.arange(5.0))
    with pytest.raises(InputError, match="have no dimension names"):
        ingest(tmp_path / "plain.zarr", tmp_path / "o.zarr", target="a", stack=True)
    assert json.loads((tmp_path / "plain.zarr" / "a" / "zarr.json").read_text()).get("dimension_names") is None
