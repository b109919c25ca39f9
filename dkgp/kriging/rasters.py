"""Maps of a field: predictions of all cells of a grid, in Zarr, NetCDF or GeoTIFF, or in memory.

The cells are predicted to a prediction store, region by region: a run that was killed goes on where it was. The map is
made of the finished store. A GeoTIFF has numbers of single precision: ends of intervals and bounds are rounded outward,
and the rounding of the mean is added to its bound.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dkgp import __version__
from dkgp.data import Prediction, open_prediction
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, MissingExtraError, OutputExistsError
from dkgp.estimators.settings import executor_for
from dkgp.kriging.cells import CellRows, cells_of
from dkgp.kriging.field import Field, Kriged, Quantity
from dkgp.kriging.grids import Grid
from dkgp.kriging.space import crs_of
from dkgp.models.context import RunContext
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import ProductError

MEANS = ("mean", "mean_error_bound")
VARIANCES = ("variance", "variance_lower", "variance_upper", "interval_met")
# Rows and columns of a chunk of a map.
TILE = (512, 512)
FORMATS = {".tif": "GeoTIFF", ".tiff": "GeoTIFF", ".nc": "NetCDF", ".zarr": "Zarr"}
# Overviews: how each variable is joined over 2 x 2 cells.
_JOINED: dict[str, Callable[..., Any]] = {
    "mean": np.nanmean,
    "mean_error_bound": np.nanmax,
    "variance": np.nanmean,
    "variance_lower": np.nanmin,
    "variance_upper": np.nanmax,
    "interval_met": np.nanmin,
}
_LONG_NAMES = {
    "mean": "predicted mean",
    "mean_error_bound": "proven bound on the error of the mean",
    "variance": "variance of the prediction",
    "variance_lower": "proven lower end of the variance",
    "variance_upper": "proven upper end of the variance",
    "interval_met": "1 where the interval is as narrow as asked for",
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
    """

    of: Quantity = "signal"
    variance: bool = False
    gap: float = 0.05
    crs: Any = None
    time: float | None = None


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

    def bands(self) -> Iterator[tuple[slice, dict[str, FloatArray]]]:
        """Iterate over bands of whole rows of the grid: the rows, and each variable (rows, columns)."""
        (rows, columns), height = self.rows.grid.shape, self.rows.tile[0]
        for first in range(0, rows, height):
            count = min(height, rows - first)
            start = first * columns
            indices = np.arange(start, start + count * columns)
            row, column = self.rows.at(indices)
            kriged = self._kriged(start, start + count * columns, indices)
            values = {}
            for name, (target, kind) in self.variables.items():
                band = np.empty((count, columns))
                band[row - first, column] = _variable(kriged, kind, self.settings.gap)[:, target]
                values[name] = band
            yield slice(first, first + count), values

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
def computing(field: Field, client: Any = None, note: Callable[[str], None] | None = None) -> Iterator[RunContext]:
    """Run tasks on a client's workers, or as suits the field, with the product error that the field was solved with."""
    with executor_for(client, field.record) as executor:
        yield RunContext(executor, product_error=ProductError.of(field.fitted.product_error), note=note)


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
    dataset, rows = cells_of(field, grid, crs=settings.crs, time=settings.time)
    if rows.crs is not None and context.note is not None:
        context.note(
            f"the grid is in {_short(rows.crs)}, the samples in {_short(field.space.crs)}: cells are transformed"
        )
    variance = VarianceSettings(gap=settings.gap, latent=True) if settings.variance else None
    predict(field.record, dataset, out, context, variance=variance, note=context.note)
    return CellMap(field, rows, open_prediction(out.url), settings)


# ------------------------------------------------------------------------------------------------------------- outputs


def format_of(out: str) -> str:
    """Return the format of an output by its ending; `InputError` for another one."""
    for ending, name in FORMATS.items():
        if out.endswith(ending):
            return name
    raise InputError(f"a map is written to a name ending in {', '.join(FORMATS)}; got {out!r}")


def write_map(cells: CellMap, out: str, *, overwrite: bool = False) -> None:
    """Write a map in the format of the ending of `out`.

    Raises
    ------
    OutputExistsError
        Something is there, and `overwrite` is false.
    MissingExtraError
        A library of the format is not installed.
    """
    form = format_of(out)
    target = Path(out)
    if target.exists() and not overwrite:
        raise OutputExistsError(f"'{out}' exists; pass `overwrite` to replace it, or another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        made = folder / target.name
        {"GeoTIFF": _write_geotiff, "NetCDF": _write_netcdf, "Zarr": _write_zarr}[form](cells, made)
        if target.is_dir():
            shutil.rmtree(target)
        made.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_field(field: Field, grid: Grid, out: Destination, settings: MapSettings, context: RunContext) -> None:
    """Predict at all cells of a grid and write the map; see `map_cells` and `write_map`.

    The cells lie in `out` + ".cells" until the map is whole; a run with `resume` goes on with them.
    """
    format_of(out.url)
    if Path(out.url).exists() and not out.overwrite:
        raise OutputExistsError(f"'{out.url}' exists; pass `overwrite` to replace it, or another name")
    store = Destination(f"{out.url}.cells", overwrite=not out.resume, resume=out.resume)
    cells = map_cells(field, grid, store, settings, context)
    write_map(cells, out.url, overwrite=out.overwrite)
    shutil.rmtree(store.url, ignore_errors=True)


def map_in_memory(cells: CellMap, dims: tuple[str, str] = ("y", "x")) -> Any:
    """Return a map as an xarray Dataset of rows from south to north."""
    import xarray

    grid = cells.rows.grid
    arrays = {name: np.empty(grid.shape) for name in cells.variables}
    for rows, values in cells.bands():
        for name, band in values.items():
            arrays[name][rows] = band
    coordinates = {dims[0]: grid.y, dims[1]: grid.x}
    variables = {name: (dims, values, _attributes(name)) for name, values in arrays.items()}
    dataset = xarray.Dataset(variables, coords=coordinates, attrs=cells.attributes)
    return _with_reference(dataset, cells.crs, dims)


def _attributes(name: str) -> dict[str, str]:
    for kind, text in _LONG_NAMES.items():
        if name == kind or name.endswith(f"_{kind}"):
            return {"long_name": text}
    return {}


def _with_reference(dataset: Any, crs: str | None, dims: tuple[str, str]) -> Any:
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


def _write_zarr(cells: CellMap, out: Path) -> None:
    """Write a Zarr store with a chunk a tile; each chunk has a checksum."""
    import xarray
    import zarr.codecs

    grid = cells.rows.grid
    empty = xarray.Dataset(
        coords={"y": grid.y, "x": grid.x},
        attrs=cells.attributes,
    )
    empty = _with_reference(empty, cells.crs, ("y", "x"))
    empty.to_zarr(out, mode="w", consolidated=False, zarr_format=3)
    group = zarr.open_group(out, mode="r+", use_consolidated=False)
    chunks = tuple(min(size, side) for size, side in zip(TILE, grid.shape, strict=True))
    arrays = {}
    for name, (_, kind) in cells.variables.items():
        flag = kind == "interval_met"
        arrays[name] = group.create_array(
            name,
            shape=grid.shape,
            chunks=chunks,
            dtype="uint8" if flag else "float64",
            compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
            fill_value=0 if flag else np.nan,
            dimension_names=("y", "x"),
            attributes={**_attributes(name), **({} if cells.crs is None else {"grid_mapping": "spatial_ref"})},
        )
    for rows, values in _taller(cells.bands(), TILE[0]):
        for name, band in values.items():
            arrays[name][rows] = band
    zarr.consolidate_metadata(out)


def _taller(
    bands: Iterator[tuple[slice, dict[str, FloatArray]]], height: int
) -> Iterator[tuple[slice, dict[str, FloatArray]]]:
    """Join bands into bands of whole chunks, of so many rows."""
    kept: list[tuple[slice, dict[str, FloatArray]]] = []
    for rows, values in bands:
        kept.append((rows, values))
        if rows.stop % height == 0:
            yield _joined(kept)
            kept = []
    if kept:
        yield _joined(kept)


def _joined(bands: list[tuple[slice, dict[str, FloatArray]]]) -> tuple[slice, dict[str, FloatArray]]:
    rows = slice(bands[0][0].start, bands[-1][0].stop)
    return rows, {name: np.concatenate([values[name] for _, values in bands]) for name in bands[0][1]}


def _write_netcdf(cells: CellMap, out: Path) -> None:
    try:
        import h5netcdf  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("h5netcdf", "netcdf", "Writing NetCDF") from error
    dataset = map_in_memory(cells)
    encoding = {name: {"zlib": True, "complevel": 4} for name in cells.variables}
    dataset.to_netcdf(out, engine="h5netcdf", encoding=encoding)


def _write_geotiff(cells: CellMap, out: Path) -> None:
    """Write a cloud-optimised GeoTIFF of all variables as bands, with overviews that keep bounds proven."""
    try:
        import rasterio
        import rasterio.shutil
    except ImportError as error:
        raise MissingExtraError("rasterio", "geo", "Writing a GeoTIFF") from error
    grid, names = cells.rows.grid, list(cells.variables)
    north, east = grid.spacing
    transform = rasterio.transform.from_origin(grid.west - 0.5 * east, grid.y[-1] + 0.5 * north, east, north)
    crs = None if cells.crs is None else rasterio.crs.CRS.from_wkt(cells.crs)
    full = {name: np.empty(grid.shape, dtype=np.float32) for name in names}
    for rows, values in cells.bands():
        single = to_single({name: cells.variables[name] for name in names}, values)
        for name in names:
            full[name][rows] = single[name]
    levels = [1]
    while max(grid.shape) / levels[-1] > TILE[0]:
        levels.append(levels[-1] * 2)
    sources: dict[str, list[str]] = {}
    for name in names:
        part, kind = full.pop(name)[::-1], cells.variables[name][1]
        sources[name] = []
        for level in levels:
            if level > 1:
                part = _halved(part, kind)
            path = f"{out.parent}/{name}-{level}.tif"
            profile = {"driver": "GTiff", "height": part.shape[0], "width": part.shape[1], "count": 1}
            tiled = {"tiled": True, "blockxsize": TILE[1], "blockysize": TILE[0], "compress": "deflate"}
            scaled = transform * transform.scale(level)
            with rasterio.open(
                path, "w", **profile, **tiled, dtype="float32", nodata=np.nan, crs=crs, transform=scaled
            ) as file:
                file.write(part, 1)
            sources[name].append(path)
    described = Path(f"{out.parent}/all.vrt")
    described.write_text(_virtual(grid.shape, sources, transform, cells))
    rasterio.shutil.copy(
        described, out, driver="COG", compress="deflate", predictor="yes", blocksize=TILE[0], overviews="AUTO"
    )


def to_single(kinds: Mapping[str, tuple[int, str]], values: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Return variables as numbers of single precision, with bounds rounded outward.

    `kinds` are the target and the kind of each variable, as `CellMap.variables`.
    """
    single = {name: np.asarray(values[name], dtype=np.float32) for name in values}
    off = {
        kinds[name][0]: np.abs(single[name].astype(np.float64) - values[name])
        for name in values
        if kinds[name][1] == "mean"
    }
    for name, (target, kind) in kinds.items():
        wide = values[name]
        if kind == "mean_error_bound":
            # The difference is exact where both are close (Sterbenz); the sum may round.
            wide = np.nextafter(wide + off[target], np.inf)
        if kind in ("mean_error_bound", "variance_upper"):
            low = single[name] = wide.astype(np.float32)
            single[name] = np.where(low.astype(np.float64) < wide, np.nextafter(low, np.float32(np.inf)), low)
        elif kind == "variance_lower":
            high = single[name]
            single[name] = np.where(high.astype(np.float64) > wide, np.nextafter(high, np.float32(-np.inf)), high)
    return single


def _halved(values: Any, kind: str) -> Any:
    """Join 2 x 2 cells; an odd last row or column is joined alone."""
    rows, columns = values.shape
    padded = np.full((rows + rows % 2, columns + columns % 2), np.nan, dtype=np.float32)
    padded[:rows, :columns] = values
    blocks = padded.reshape(padded.shape[0] // 2, 2, padded.shape[1] // 2, 2)
    with np.errstate(invalid="ignore"):
        return _JOINED[kind](blocks, axis=(1, 3)).astype(np.float32)


def _virtual(shape: tuple[int, int], sources: Mapping[str, list[str]], transform: Any, cells: CellMap) -> str:
    """Return GDAL's description of the bands and their overviews."""
    from xml.sax.saxutils import escape

    reference = "" if cells.crs is None else f"<SRS>{escape(cells.crs)}</SRS>"
    items = "".join(f'<MDI key="{escape(key)}">{escape(str(value))}</MDI>' for key, value in cells.attributes.items())
    bands = []
    for number, (name, (full, *overviews)) in enumerate(sources.items(), 1):
        file = '<SourceFilename relativeToVRT="1">{}</SourceFilename><SourceBand>1</SourceBand>'
        lesser = "".join(f"<Overview>{file.format(Path(path).name)}</Overview>" for path in overviews)
        bands.append(
            f'<VRTRasterBand dataType="Float32" band="{number}"><Description>{escape(name)}</Description>'
            f"<NoDataValue>nan</NoDataValue><SimpleSource>{file.format(Path(full).name)}</SimpleSource>{lesser}"
            "</VRTRasterBand>"
        )
    return (
        f'<VRTDataset rasterXSize="{shape[1]}" rasterYSize="{shape[0]}">{reference}'
        f"<GeoTransform>{','.join(map(repr, transform.to_gdal()))}</GeoTransform><Metadata>{items}</Metadata>"
        f"{''.join(bands)}</VRTDataset>"
    )


def _short(wkt: str | None) -> str:
    if wkt is None:
        return "an unknown CRS"
    reference = crs_of(wkt)
    return str(reference.to_string() if reference.to_epsg() else reference.name)
