"""Maps of a field: predictions of all cells of a grid, in Zarr, NetCDF or GeoTIFF, or in memory.

The cells are predicted to a prediction store, region by region: a run that was killed goes on where it was. The map is
made of the finished store, by windows of whole rows.

The way to variances follows from the field and the grid alone: a run that is resumed, also from the beginning, ends in
the same bytes.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dkgp import __version__
from dkgp.data import Dataset, Prediction, PredictionWriter, Progress, open_prediction
from dkgp.data.remote.addresses import is_local, shown
from dkgp.data.remote.claims import locked
from dkgp.data.remote.storage import exists, remove_tree, translate_write_errors
from dkgp.data.remote.zarr_store import zarr_place
from dkgp.data.stores.manifest import is_committed
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, MissingExtraError, OutputExistsError
from dkgp.estimators.settings import executor_for
from dkgp.kriging.cells import CellRows, Covariates, cells_of
from dkgp.kriging.choices import format_of
from dkgp.kriging.field import Field, Kriged, Quantity
from dkgp.kriging.geotiff import write_geotiff
from dkgp.kriging.grids import Grid
from dkgp.kriging.held_file import HeldFile
from dkgp.kriging.space import crs_of
from dkgp.kriging.variogram import Variogram
from dkgp.models.context import RunContext
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.variance.iterative import LEAST_MEMORY_BYTES, MEMORY_BYTES_PER_SAMPLE
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import ProductError

MEANS = ("mean", "mean_error_bound")
VARIANCES = ("variance", "variance_lower", "variance_upper", "interval_met")
# Rows and columns of a chunk of a map.
TILE = (512, 512)
# Structures whose variances the samples near a tile prove, in so many dimensions, with a nugget of at least this share
# of the partial sill (lower ends divide by the noise); smooth ones, which a partial factor suffices for; and those that
# are zero from a distance on, whose kinks take more samples near a tile.
NEAR, MOST_COLUMNS, LEAST_NUGGET = ("exponential", "matern32", "stable", "spherical", "cubic"), 3, 1e-5
SMOOTH, COMPACT = ("gaussian", "rational", "matern52"), ("spherical", "cubic")
# A stable variogram is as smooth ones are above this exponent.
ROUGH_EXPONENT = 1.8
# Samples up to which a whole factor is taken in any case, and where nothing else is known to do; most working memory of
# a partial factor.
WHOLE, MOST_WHOLE, MOST_MEMORY_BYTES = 5_000, 20_000, 2 * 2**30
# Free bytes below which a write without another reason failed on a full disk.
LEAST_FREE = 2**20
_LONG_NAMES = {
    "mean": "predicted mean",
    "mean_error_bound": "proven bound on the error of the mean",
    "variance": "variance of the prediction",
    "variance_lower": "proven lower end of the variance",
    "variance_upper": "proven upper end of the variance",
    "interval_met": "1 where the interval is as narrow as requested",
}


@dataclass(frozen=True)
class MapSettings:
    """The quantity of a map, and its cells.

    Parameters
    ----------
    of : {"signal", "field", "observation"}
    variance : bool, default False
        Variances in proven intervals too.
    gap : float, default 0.05
        How wide the intervals may be, relative to their upper ends.
    crs : optional
        CRS of the grid; by default the samples'.
    time : float, optional
        Time of the map, for a field in space and time.
    mask : optional
        Cells that are predicted: an array of bool, or polygons; see `Grid.inside`. Others are NaN.
    covariates : optional
        Covariates of the cells; see `dkgp.kriging.cells.Covariates`.
    way : str, default "auto"
        Way to variances, of `dkgp.models.variance.settings.WAYS`. "auto" follows from the field alone: a whole factor
        of few samples, else the samples near each tile, or a partial factor of smooth variograms.
    """

    of: Quantity = "signal"
    variance: bool = False
    gap: float = 0.05
    crs: Any = None
    time: float | None = None
    mask: Any = None
    covariates: Covariates | None = None
    way: str = "auto"


@dataclass(frozen=True, eq=False)
class CellMap:
    """A finished prediction of all cells, from which maps are made tile by tile."""

    field: Field
    rows: CellRows
    prediction: Prediction
    settings: MapSettings

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables of one target."""
        return (*MEANS, *VARIANCES) if self.settings.variance else MEANS

    @property
    def variables(self) -> dict[str, tuple[int, str]]:
        """Target and name of each variable: named after the target where there are several."""
        targets = self.field.record.target_names
        if len(targets) == 1:
            return {name: (0, name) for name in self.names}
        return {f"{target}_{name}": (index, name) for index, target in enumerate(targets) for name in self.names}

    @property
    def attributes(self) -> dict[str, Any]:
        """Origin of the map, as text and numbers."""
        about = self.field.about
        return {
            "source": f"dkgp {__version__}",
            "of": self.settings.of,
            "variogram": str(about["variogram"]),
            "drift": str(about["mean"]),
            "n_samples": self.field.n_samples,
            "model_fingerprint": self.field.record.fingerprint,
            **({"variance_gap": self.settings.gap} if self.settings.variance else {}),
        }

    @property
    def crs(self) -> str | None:
        """CRS of the grid as WKT."""
        return self.rows.crs or self.field.space.crs

    def windows(self, height: int = TILE[0]) -> Iterator[tuple[int, dict[str, FloatArray]]]:
        """Iterate over windows of whole rows of the grid from the south: the first row, and `values` of each."""
        rows = self.rows.grid.shape[0]
        for first in range(0, rows, height):
            yield first, self.values(first, min(first + height, rows))

    def values(self, first: int, last: int) -> dict[str, FloatArray]:
        """Return the variables of the rows [first, last) of the grid; NaN where a cell was not predicted."""
        columns, height = self.rows.grid.shape[1], self.rows.tile[0]
        bands = first // height, -(-last // height)
        start, stop = self.rows.band(*bands)
        shape = bands[1] * height - bands[0] * height, columns
        results = {name: np.full(shape, np.nan) for name in self.variables}
        if stop > start:
            indices = np.arange(start, stop)
            row, column = self.rows.at(self.rows.numbers(indices))
            kriged = self._kriged(start, stop, indices)
            for name, (target, kind) in self.variables.items():
                results[name][row - bands[0] * height, column] = _variable(kriged, kind, self.settings.gap)[:, target]
        inside = slice(first - bands[0] * height, last - bands[0] * height)
        return {name: values[inside] for name, values in results.items()}

    def summary(self) -> dict[str, Any]:
        """Return the cells' figures, by windows.

        `mean_error_bound` is the largest one, `intervals_met` the share of the predicted variances whose interval is as
        narrow as asked for (None without variances), and `empty_cells` the number of cells that were not predicted.
        """
        bound, met, empty = 0.0, 0, 0
        for _, values in self.windows():
            for name, (_, kind) in self.variables.items():
                if kind == "mean_error_bound":
                    bound = max(bound, float(np.nanmax(values[name], initial=0.0)))
                    empty += int(np.isnan(values[name]).sum())
                elif kind == "interval_met":
                    met += int(np.nansum(values[name]))
        targets = len(self.field.record.target_names)
        empty //= targets
        predicted = (self.rows.grid.n_cells - empty) * targets
        share = met / predicted if self.settings.variance and predicted else None
        return {"mean_error_bound": bound, "intervals_met": share, "empty_cells": empty}

    def _kriged(self, start: int, stop: int, indices: Any) -> Kriged:
        """Return the predictions of cells by number, of the quantity that the settings ask for."""
        read = self.prediction.read
        ends = None
        if self.settings.variance:
            ends = read("variance_lower", start, stop), read("variance_upper", start, stop)
        mean, bound = read("mean", start, stop), read("mean_error_bound", start, stop)
        return self.field.quantity(self.settings.of, (mean, bound, ends), lambda: self.rows.places(indices))


def _variable(kriged: Kriged, name: str, gap: float) -> FloatArray:
    if name != "interval_met":
        values: FloatArray = getattr(kriged, name)
        return values
    assert kriged.variance_lower is not None
    assert kriged.variance_upper is not None
    met = kriged.variance_upper - kriged.variance_lower <= gap * kriged.variance_upper
    return met.astype(np.float64)


@contextmanager
def computing(
    field: Field,
    client: Any = None,
    note: Callable[[str], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Iterator[RunContext]:
    """Run tasks on a client's workers, or as suits the field, with the product error that the field was solved with."""
    with executor_for(client, field.record) as executor:
        yield RunContext(
            executor, product_error=ProductError.of(field.fitted.product_error), note=note, within=progress
        )


def map_cells(field: Field, grid: Grid, out: Destination, settings: MapSettings, context: RunContext) -> CellMap:
    """Predict at all cells of a grid, into a prediction store.

    Parameters
    ----------
    field, grid, settings
    out : Destination
        The prediction store.
    context : RunContext
        Who computes, and who watches.

    Raises
    ------
    OutputExistsError
        A store is there.
    InputError
        A store of another map is resumed.
    InterruptedRunError
        The regions that are done stay, to be resumed.
    """
    note = context.note or (lambda words: warnings.warn(words, UserWarning, stacklevel=4))
    dataset, rows = cells_of(
        field,
        grid,
        crs=settings.crs,
        time=settings.time,
        mask=settings.mask,
        covariates=settings.covariates,
        note=note,
    )
    if out.resume and is_committed(out.url):
        _require_made_of(open_prediction(out.url), field, dataset, settings)
    else:
        _predict(field, dataset, out, settings, context, note)
    return CellMap(field, rows, open_prediction(out.url), settings)


def _predict(
    field: Field,
    dataset: Dataset,
    out: Destination,
    settings: MapSettings,
    context: RunContext,
    note: Callable[[str], None],
) -> None:
    """Predict the cells; where the samples near a tile prove no variances, a partial factor does."""
    model = field.readable_by(context.executor).record
    begun = PredictionWriter.begun(out.url) if out.resume and settings.variance else None
    way = settings.way
    if begun is not None and way == "auto":
        way = begun.attributes.get("variance", {}).get("way", way)
    variance = _variances(field, settings, way)
    try:
        predict(model, dataset, out, context, variance=variance, note=context.note)
    except InputError as error:
        if begun is not None or way != "auto" or variance is None or variance.way != "neighbours":
            raise
        note(f"variances are proven by a partial factor: {error}")
        variance = _variances(field, settings, "iterative")
        predict(model, dataset, out, context, variance=variance, note=context.note)


def _roughness(structure: Variogram) -> str:
    """Return a structure's name; that of a smooth one if it is as smooth."""
    is_smooth = structure.model == "stable" and (structure.alpha or 0.0) > ROUGH_EXPONENT
    return "gaussian" if is_smooth else structure.model


def _variances(field: Field, settings: MapSettings, way: str | None = None) -> VarianceSettings | None:
    """Return the settings of variances; the way that "auto" takes depends neither on seconds nor on free memory."""
    if not settings.variance:
        return None
    n, way, variogram = field.n_samples, way or settings.way, field.variogram
    if way == "auto":
        names = {_roughness(one) for one in (variogram, *variogram.also)}
        near = not names.isdisjoint(NEAR) and field.space.n_columns <= MOST_COLUMNS
        is_noisy = field.record.noise_variance >= LEAST_NUGGET
        whole = WHOLE if is_noisy and (near or names.issubset(SMOOTH)) and names.isdisjoint(COMPACT) else MOST_WHOLE
        way = "cholesky" if n <= whole else "neighbours" if near else "iterative"
    memory = None
    if way == "iterative":
        memory = max(LEAST_MEMORY_BYTES, min(MEMORY_BYTES_PER_SAMPLE * n, MOST_MEMORY_BYTES))
    return VarianceSettings(gap=settings.gap, latent=True, way=way, memory_bytes=memory)


def _require_made_of(prediction: Prediction, field: Field, dataset: Dataset, settings: MapSettings) -> None:
    """Refuse finished cells of another field, grid or gap."""
    about = prediction.attributes
    made = about["model_fingerprint"], about["data_fingerprint"], about.get("variance", {}).get("gap")
    if made != (field.record.fingerprint, dataset.fingerprint, settings.gap if settings.variance else None):
        raise InputError(
            f"the cells in '{prediction.url}' are of another field, grid or gap; start afresh with `overwrite`"
        )


# ------------------------------------------------------------------------------------------------------------- outputs


def require_writable(out: Destination) -> str:
    """Return the format of a map's address; refuse one that could not be written, before the work starts.

    Raises
    ------
    InputError
        An ending of no format, or a remote address of another format than Zarr.
    MissingExtraError
        A library of the format is not installed.
    OutputExistsError
        A map is there, and `overwrite` is false; or unfinished cells, and neither `overwrite` nor `resume` is true.
    StorageError
        The folder cannot be made.
    """
    form, url = format_of(out.url), out.url
    if form != "Zarr" and not is_local(url):
        raise InputError(f"a map at a remote address is a Zarr store, whose name ends in .zarr; got {url!r}")
    needed = {"GeoTIFF": ("rasterio", "geo"), "NetCDF": ("h5netcdf", "netcdf")}
    if form in needed and importlib.util.find_spec(needed[form][0]) is None:
        raise MissingExtraError(*needed[form], f"Writing {form}")
    cells = exists(cells_url(url))
    # A remote store is written in place, by a run that may have been killed.
    if exists(url) and not (out.overwrite or (out.resume and cells and not is_local(url))):
        raise OutputExistsError.of(shown(url))
    if cells and not (out.resume or out.overwrite):
        raise OutputExistsError(
            f"cells of an unfinished map lie in '{shown(cells_url(url))}'; pass `resume` to go on with them, or "
            "`overwrite` to start afresh"
        )
    if is_local(url):
        with translate_write_errors(url):
            Path(url).parent.mkdir(parents=True, exist_ok=True)
    return form


def cells_url(url: str) -> str:
    """Return the address of the cells of an unfinished map."""
    return f"{url}.cells"


def write_map(cells: CellMap, out: Destination) -> None:
    """Write a map in the format of the ending of its address; errors as for `require_writable`.

    A local map takes its place when it is whole. A remote one is whole when its consolidated metadata are there.
    """
    form = require_writable(replace(out, resume=True))
    with locked(out.url), translate_write_errors(out.url):
        if not is_local(out.url):
            remove_tree(out.url)
            _write_zarr(cells, zarr_place(out.url))
            return
        target = Path(out.url)
        folder = target.parent / f".{target.name}.writing"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            made = folder / target.name
            {"GeoTIFF": write_geotiff, "NetCDF": _write_netcdf, "Zarr": _write_zarr}[form](cells, made)
            if target.is_dir():
                shutil.rmtree(target)
            made.replace(target)
        except OSError as error:
            # GDAL does not name the reason.
            if error.errno is None and shutil.disk_usage(folder).free < LEAST_FREE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def write_field(
    field: Field, grid: Grid, out: Destination, settings: MapSettings, context: RunContext
) -> dict[str, Any]:
    """Predict at all cells of a grid and write the map; return `CellMap.summary`. See `map_cells` and `write_map`.

    The cells lie in `out` + ".cells" until the map is whole; a run with `resume` goes on with them.
    """
    with locked(out.url):
        require_writable(out)
        store = Destination(cells_url(out.url), overwrite=not out.resume, resume=out.resume)
        cells = map_cells(field, grid, store, settings, context)
        write_map(cells, out)
        summary = cells.summary()
        remove_tree(store.url)
        return summary


def coarse_map(url: str, most: int) -> tuple[Grid, dict[str, FloatArray]]:
    """Read a map of one target in coarse cells, at most `most` a side: their grid, the mean, and the variance if any.

    A GeoTIFF is read by its overviews, which are averages; of other maps every k-th cell is read.
    """
    if format_of(url) == "GeoTIFF":
        import rasterio

        with rasterio.open(url) as raster:
            step = -(-max(raster.shape) // most)
            shape = -(-raster.height // step), -(-raster.width // step)
            bands = {name: number for number, name in enumerate(raster.descriptions, 1) if name in ("mean", "variance")}
            layers = {name: raster.read(band, out_shape=shape)[::-1] for name, band in bands.items()}
            bounds = raster.bounds
        region = (bounds.left, bounds.right, bounds.bottom, bounds.top)
        return Grid.of(region, shape=shape, pixel_register=True), layers
    import xarray

    engine = "zarr" if format_of(url) == "Zarr" else "h5netcdf"
    with xarray.open_dataset(url, engine=engine) as whole:
        step = -(-max(whole.sizes.values()) // most)
        part = whole.isel(x=slice(None, None, step), y=slice(None, None, step))
        layers = {name: part[name].to_numpy() for name in ("mean", "variance") if name in part}
        return Grid.of_centres(part["x"].to_numpy(), part["y"].to_numpy()), layers


def map_in_memory(cells: CellMap, dims: tuple[str, str] = ("y", "x")) -> Any:
    """Return a map as an xarray Dataset of rows from south to north."""
    grid = cells.rows.grid
    arrays: dict[str, Any] = {
        name: np.empty(grid.shape, dtype=_dtype(kind)) for name, (_, kind) in cells.variables.items()
    }
    for first, values in cells.windows():
        for name, window in values.items():
            arrays[name][first : first + len(window)] = _stored(window, arrays[name].dtype)
    return map_of(grid, arrays, cells.crs, dims, cells.attributes)


def map_of(
    grid: Grid,
    arrays: Mapping[str, FloatArray],
    crs: str | None,
    dims: tuple[str, str],
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Return variables by name, (rows, columns) each, as an xarray Dataset."""
    import xarray

    variables = {name: (dims, values, _attributes(name)) for name, values in arrays.items()}
    dataset = xarray.Dataset(variables, coords={dims[0]: grid.y, dims[1]: grid.x}, attrs=attributes)
    return with_reference(dataset, crs, dims)


def _dtype(kind: str) -> Any:
    return np.dtype(np.uint8 if kind == "interval_met" else np.float64)


def _stored(window: FloatArray, dtype: Any) -> Any:
    """Return numbers as they are stored: a flag is 0 where there is no cell."""
    return window if dtype == np.float64 else np.nan_to_num(window).astype(dtype)


def _attributes(name: str) -> dict[str, str]:
    for kind, text in _LONG_NAMES.items():
        if name == kind or name.endswith(f"_{kind}"):
            return {"long_name": text}
    return {}


def with_reference(dataset: Any, crs: str | None, dims: tuple[str, str]) -> Any:
    """Return the dataset with the conventions of CF for its CRS."""
    for axis, dimension in zip("YX", dims, strict=True):
        dataset[dimension].attrs["axis"] = axis
    if crs is None:
        return dataset
    reference = crs_of(crs)
    dataset.coords["spatial_ref"] = ((), 0, {**reference.to_cf(), "crs_wkt": crs})
    for described, dimension in zip(reference.cs_to_cf(), (dims[1], dims[0]), strict=False):
        dataset[dimension].attrs |= {name: value for name, value in described.items() if name != "axis"}
    for name in dataset.data_vars:
        dataset[name].attrs["grid_mapping"] = "spatial_ref"
    return dataset


def _write_zarr(cells: CellMap, out: Any) -> None:
    """Write a Zarr store, a path or a store of Zarr's."""
    import xarray
    import zarr

    grid = cells.rows.grid
    empty = xarray.Dataset(coords={"y": grid.y, "x": grid.x}, attrs=cells.attributes)
    empty = with_reference(empty, cells.crs, ("y", "x"))
    empty.to_zarr(out, mode="w", consolidated=False, zarr_format=3)
    group = zarr.open_group(out, mode="r+", use_consolidated=False)
    sizes = dict(zip(("y", "x"), grid.shape, strict=True))
    arrays = {
        name: new_array(group, name, sizes, cells.crs, _dtype(kind), _attributes(name))
        for name, (_, kind) in cells.variables.items()
    }
    for first, values in cells.windows():
        for name, window in values.items():
            arrays[name][first : first + len(window)] = _stored(window, arrays[name].dtype)
    consolidate(out)


def new_array(
    group: Any,
    name: str,
    sizes: Mapping[str, int],
    crs: str | None,
    dtype: Any = np.float64,
    attributes: Mapping[str, str] | None = None,
) -> Any:
    """Return a new array of a Zarr group, with a chunk a tile of a layer; each chunk has a checksum.

    `sizes` are those of its dimensions, by name; the last two are the rows and columns of the grid.
    """
    import zarr.codecs

    shape = tuple(sizes.values())
    sides = (*(1 for _ in shape[:-2]), *TILE)
    return group.create_array(
        name,
        shape=shape,
        chunks=tuple(min(size, side) for size, side in zip(sides, shape, strict=True)),
        dtype=np.dtype(dtype).name,
        compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
        fill_value=np.nan if dtype == np.float64 else 0,
        dimension_names=tuple(sizes),
        attributes={**(attributes or {}), **({} if crs is None else {"grid_mapping": "spatial_ref"})},
    )


def consolidate(store: Any) -> None:
    """Put the metadata of all arrays of a Zarr store together, so that xarray opens it in one read."""
    import zarr

    with warnings.catch_warnings():
        # Not in the specification of Zarr v3 yet.
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store)


def _write_netcdf(cells: CellMap, out: Path) -> None:
    """Write NetCDF 4 by windows, a chunk a tile."""
    import h5netcdf
    import xarray

    grid = cells.rows.grid
    axes = with_reference(xarray.Dataset(coords={"y": grid.y, "x": grid.x}), cells.crs, ("y", "x"))
    chunks = tuple(min(size, side) for size, side in zip(TILE, grid.shape, strict=True))
    with HeldFile(out) as place, h5netcdf.File(place, "w") as file:
        file.attrs.update(cells.attributes)
        file.dimensions = dict(axes.sizes)
        for name, axis in axes.coords.items():
            file.create_variable(name, axis.dims, axis.dtype, data=axis.values).attrs.update(axis.attrs)
        for name, (_, kind) in cells.variables.items():
            dtype = _dtype(kind)
            fill = {"fillvalue": np.nan} if dtype == np.float64 else {}
            variable = file.create_variable(
                name, ("y", "x"), dtype, chunks=chunks, compression="gzip", compression_opts=4, **fill
            )
            variable.attrs.update(_attributes(name))
            if cells.crs is not None:
                variable.attrs.update({"grid_mapping": "spatial_ref", "coordinates": "spatial_ref"})
        for first, values in cells.windows():
            for name, window in values.items():
                variable = file.variables[name]
                variable[first : first + len(window)] = _stored(window, variable.dtype)
                place.check()
