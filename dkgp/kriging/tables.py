"""Tables of samples and of polygons: coordinates, values and their CRS from files and from frames in memory.

CSV, Parquet, NetCDF and Zarr are read by `dkgp.data.sources`; GeoPackage, GeoJSON, FlatGeobuf, shapefiles and
GeoParquet by geopandas. A file is recognised by its content, so that GDAL never sees one that names other files.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.remote.storage import is_file, is_local, normalise_url, open_object, read_object, shown
from dkgp.data.sources.base import (
    Block,
    Column,
    ConcatenatedSource,
    Source,
    column_values,
    find_columns,
    refused_as,
    row_places,
    text_error,
)
from dkgp.data.sources.csv import CsvSource, is_number
from dkgp.data.sources.formats import expand_locations, open_source
from dkgp.data.sources.labelled import is_labelled
from dkgp.data.sources.tables.encoding import ISO, date_seconds, gaps
from dkgp.data.sources.xarray import XarraySource
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError, MissingExtraError
from dkgp.kriging.covariates import CovariateRasters, short_name, transformed
from dkgp.kriging.space import crs_of

# Pairs of names that are coordinates, in lower case; those of degrees first.
_DEGREES = (("lon", "lat"), ("long", "lat"), ("lng", "lat"), ("longitude", "latitude"))
_PAIRS = (
    *_DEGREES,
    *(("easting", "northing"), ("eastings", "northings"), ("east", "north"), ("x", "y"), ("e", "n")),
    *(("x_utm", "y_utm"), ("utm_x", "utm_y"), ("utm_e", "utm_n"), ("utm_easting", "utm_northing")),
    *(("x_coord", "y_coord"), ("xcoord", "ycoord"), ("coord_x", "coord_y"), ("point_x", "point_y"), ("x_m", "y_m")),
)
# Attributes of the CF conventions that name pairs of coordinates, the most telling ones first.
_CF = (
    ("standard_name", ("projection_x_coordinate", "projection_y_coordinate")),
    ("standard_name", ("longitude", "latitude")),
    ("units", ("degrees_east", "degrees_north")),
    ("axis", ("x", "y")),
)
# First bytes of the vector formats that geopandas reads here, and their names.
_VECTORS = {
    b"SQLite format 3\0": "GeoPackage",
    b"\0\0\x27\x0a": "shapefile",
    b"fgb": "FlatGeobuf",
    b"{": "GeoJSON",
}
# JSON of this kind makes GDAL run the commands in it.
_COMMANDS = b"gdal_streamed_alg"
_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Samples as read from a table, n rows.

    Attributes
    ----------
    coordinates : tuple of (n,)
        x, y, then z and time where they were named.
    data : tuple of (n,)
        Values by target.
    noise : (n,), optional
        Variances of the measurement errors.
    covariates : dict of (n,)
    crs : str, optional
        Reference of the coordinates as WKT 2; None if it is unknown.
    names : tuple of str
        The targets.
    coordinate_names : tuple of str
    ids : (n,)
        Feature ids of a vector file, the index of a frame, or row numbers from 0.
    notes : tuple of str
        Sentences on choices that were made for the user.
    n_dropped : int
        Rows that were left out because a value is missing.
    """

    coordinates: tuple[FloatArray, ...]
    data: tuple[FloatArray, ...]
    noise: FloatArray | None
    covariates: dict[str, FloatArray]
    crs: str | None
    names: tuple[str, ...]
    coordinate_names: tuple[str, ...]
    ids: NDArray[Any]
    notes: tuple[str, ...] = ()
    n_dropped: int = 0

    def __repr__(self) -> str:
        return f"SampleTable({self.n:,} samples of {', '.join(self.names)} at {', '.join(self.coordinate_names)})"

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.coordinates[0])

    @property
    def values(self) -> Any:
        """The array of a single target, or the tuple of several, as `Kriging.fit` takes them."""
        return self.data[0] if len(self.data) == 1 else self.data


@dataclass(frozen=True, eq=False)
class Polygons:
    """Polygons to predict averages over: shapely geometries, the ids of their features, and their CRS as WKT 2."""

    shapes: tuple[Any, ...]
    ids: tuple[str, ...]
    crs: str | None
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class _Table:
    """Columns of a table, with geometries and a CRS where it has them."""

    source: Source
    crs: Any = None
    geometry: Any = None
    ids: NDArray[Any] | None = None
    # Values of a grid may be missing: those are to be predicted.
    is_grid: bool = False
    # Attributes of columns, of formats that have them.
    attributes: dict[str, Mapping[Any, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.source.by_name)


# ------------------------------------------------------------------------------------------------------------- samples


def read_samples(
    source: Any,
    target: str | Sequence[str] | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    z: str | None = None,
    time: str | None = None,
    crs: Any = None,
    noise: str | None = None,
    covariates: Sequence[str] | Mapping[str, Any] = (),
    layer: str | None = None,
    drop_missing: bool = False,
    **options: Any,
) -> SampleTable:
    """Read the samples of a field, or points to predict at.

    Parameters
    ----------
    source
        Path or URL (or several) of CSV, Parquet, GeoParquet, GeoPackage, GeoJSON, FlatGeobuf, shapefile, NetCDF or
        Zarr; a DataFrame, GeoDataFrame, or xarray Dataset or DataArray. Each point of a grid is a sample where it has a
        value.
    target : str or sequence of str, optional
        Columns of the measured values; none for points to predict at.
    x, y : str, optional
        Columns of easting and northing, or of longitude and latitude. By default the points of the geometry, or the one
        pair of columns with usual names.
    z, time : str, optional
        Columns of height, and of time: numbers, or dates, which become days since 1970-01-01 (UTC).
    crs : EPSG code, WKT or pyproj.CRS, optional
        By default that of the file. Coordinates in another one are transformed.
    noise : str, optional
        Column of the variances of the measurement errors.
    covariates : sequence of str, or mapping of names to rasters
        Columns, or rasters that are read at the samples (see `CovariateRasters`; a `CovariateRasters` itself too).
    layer : str, optional
        Layer of a file with several; by default the only one with geometries.
    drop_missing : bool, default False
        Leave out rows with a missing value; by default they are refused.
    **options
        Of the format, as `dkgp.data.sources.ingest` takes them: `header` and `encoding` of CSV, `stack` of NetCDF.

    Returns
    -------
    SampleTable

    Raises
    ------
    InputError
        Unknown or ambiguous columns, geometries that are no points, values that are no finite numbers.
    MissingExtraError
        A format or a CRS whose library is not installed.
    """
    rasters = not isinstance(covariates, Sequence)
    columns = [] if rasters else [covariates] if isinstance(covariates, str) else list(covariates)
    targets = [] if target is None else [target] if isinstance(target, str) else list(target)
    table = _open(source, layer, options, targets[0] if targets else None)
    pair = _coordinate_columns(table, x, y, {*targets, *columns, noise, z, time})
    roles = dict.fromkeys((*(pair or ()), *((z,) if z else ())), "coordinate")
    roles |= dict.fromkeys(targets, "target") | dict.fromkeys(columns, "covariate")
    roles |= {noise: "column of noise"} if noise else {}
    clock = _Clock()
    chosen = {name: find_columns(table.source, name, role) for name, role in roles.items()}
    if time is not None:
        chosen[time] = tuple(replace(one, encode=clock) for one in find_columns(table.source, time, "time"))
    for name, parts in chosen.items():
        if len(parts) != 1:
            raise InputError(f"'{name}' of '{table.source.url}' has {len(parts)} columns; expected one")
    values, places = _values(table.source, [parts[0] for parts in chosen.values()])
    read = dict(zip(chosen, values, strict=True))
    if pair is None:
        pair = ("geometry x", "geometry y")
        read |= dict(zip(pair, _points(table), strict=True))
    if not read or not len(next(iter(read.values()))):
        raise InputError(f"'{table.source.url}' has no rows; expected samples")
    kept = _complete(table, read, places, drop_missing, targets)
    read = {name: column[kept] for name, column in read.items()}
    ids = (np.arange(len(kept)) if table.ids is None else table.ids)[kept]
    if clock.kinds == {"date"}:
        table.notes.append(f"the dates of '{time}' are days since 1970-01-01 (UTC)")
    coordinates, reference = _referenced(table, read[pair[0]], read[pair[1]], crs)
    if reference is None and x is None and _are_degrees(table, pair):
        _refuse_degrees(table, pair, coordinates)
    if noise is not None and (read[noise] < 0.0).any():
        row = int(np.argmax(read[noise] < 0.0))
        raise InputError(
            f"the column '{noise}' holds the noise variance {read[noise][row]:g} in "
            f"{places(int(np.flatnonzero(kept)[row]))}; expected numbers of at least 0"
        )
    dropped = 0 if table.is_grid else int(len(kept) - kept.sum())
    further = {name: read[name] for name in (z, time) if name is not None}
    result = SampleTable(
        (*coordinates, *further.values()),
        tuple(read[name] for name in targets),
        None if noise is None else read[noise],
        {name: read[name] for name in columns},
        None if reference is None else reference.to_wkt("WKT2_2019"),
        tuple(targets),
        (*pair, *further),
        ids,
        tuple(table.notes),
        dropped,
    )
    return _with_rasters(result, covariates, drop_missing) if rasters else result


def _with_rasters(table: SampleTable, rasters: Any, drop: bool) -> SampleTable:
    """Return the samples with the values of rasters at them."""
    reader = rasters if isinstance(rasters, CovariateRasters) else CovariateRasters.open(rasters, crs=table.crs)
    reader = reader.in_crs(table.crs)
    x, y = table.coordinates[:2]
    values = reader(x, y)
    known = ~np.isnan(values).any(axis=1)
    notes = list(table.notes)
    for name, column in zip(reader.names, values.T, strict=True):
        lacks = np.isnan(column)
        if not lacks.any():
            continue
        row = int(np.argmax(lacks))
        text = (
            f"covariate {name} is missing at {lacks.sum():,} of {table.n:,} samples, first at "
            f"({x[row]:.10g}, {y[row]:.10g})"
        )
        if not drop:
            raise InputError(f"{text}; leave these samples out by `drop_missing`, or take a larger raster")
        notes.append(f"{text}; they are left out")
    return replace(
        table,
        coordinates=tuple(column[known] for column in table.coordinates),
        data=tuple(column[known] for column in table.data),
        noise=None if table.noise is None else table.noise[known],
        covariates=dict(zip(reader.names, values[known].T, strict=True)),
        ids=table.ids[known],
        notes=tuple(notes),
        n_dropped=table.n_dropped + int((~known).sum()),
    )


def _coordinate_columns(table: _Table, x: str | None, y: str | None, taken: set[Any]) -> tuple[str, str] | None:
    """Return the names of the two columns of coordinates; None where the geometry has them."""
    if (x is None) != (y is None):
        raise InputError(f"give both `x` and `y`, or none of them; got `x` {x!r}, `y` {y!r}")
    if x is not None and y is not None:
        if x == y:
            raise InputError(f"`x` and `y` are both '{x}'; expected two columns")
        return x, y
    if table.geometry is not None:
        return None
    lower: dict[str, list[str]] = {}
    for name in table.names:
        lower.setdefault(name.strip().lower(), []).append(name)
    pairs = [
        (east, north)
        for first, second in _PAIRS
        for east in lower.get(first, ())
        for north in lower.get(second, ())
        if not {east, north} & taken
    ]
    if len(pairs) == 1:
        return pairs[0]
    if not pairs and (labelled := _labelled_pair(table, taken)):
        return labelled
    listed = f"the columns of '{table.source.url}' are {quoted(table.names)}"
    if not pairs:
        raise InputError(f"no columns have usual names of coordinates, such as x and y; {listed}. Give `x` and `y`")
    shown_pairs = "; ".join(f"{east} and {north}" for east, north in pairs)
    raise InputError(f"several pairs of columns may be the coordinates ({shown_pairs}); {listed}. Give `x` and `y`")


def _labelled_pair(table: _Table, taken: set[Any]) -> tuple[str, str] | None:
    """Return the only pair of columns whose attributes of the CF conventions say that they are coordinates."""
    for attribute, words in _CF:
        pair = [
            [
                name
                for name in table.names
                if name not in taken and str(table.attributes.get(name, {}).get(attribute, "")).lower() == word
            ]
            for word in words
        ]
        if len(pair[0]) == len(pair[1]) == 1:
            table.notes.append(
                f"{pair[0][0]} and {pair[1][0]} are the coordinates, by their attribute {attribute} ({words[0]}, "
                f"{words[1]})"
            )
            return pair[0][0], pair[1][0]
    return None


def _are_degrees(table: _Table, pair: tuple[str, str]) -> bool:
    """True for columns with names of longitude and latitude, or in degrees by their attributes."""
    units = [str(table.attributes.get(name, {}).get("units", "")) for name in pair]
    return (pair[0].lower(), pair[1].lower()) in _DEGREES or all(unit.startswith("degree") for unit in units)


def _points(table: _Table) -> tuple[FloatArray, FloatArray]:
    """Return x and y of the points of a table; NaN where there is none."""
    import shapely

    shapes = np.asarray(table.geometry)
    kinds = shapely.get_type_id(shapes)
    other = (kinds != shapely.GeometryType.POINT) & (kinds != -1)
    if other.any():
        row = int(np.argmax(other))
        assert table.ids is not None
        raise InputError(
            f"the feature {table.ids[row]} of '{table.source.url}' is a {shapes[row].geom_type}; expected points. "
            "Take its parts (explode) or its centroid first, or name columns of coordinates as `x` and `y`"
        )
    return shapely.get_x(shapes), shapely.get_y(shapes)


def _values(source: Source, columns: Sequence[Column]) -> tuple[list[FloatArray], Callable[[int], str]]:
    """Return the values of columns, and the place of a row in words."""
    if not columns:
        return [], lambda row: f"row {row + 1} of '{source.url}'"
    starts: list[int] = [0]
    parts: list[FloatArray] = []
    placed: list[Callable[[int], str]] = []
    for block in source.blocks(columns):
        parts.append(block.values)
        placed.append(block.place)
        starts.append(starts[-1] + len(block.values))
    values = [
        np.concatenate([part[:, index] for part in parts]) if parts else np.zeros(0) for index in range(len(columns))
    ]

    def place(row: int) -> str:
        index = int(np.searchsorted(starts, row, side="right")) - 1
        return placed[index](row - starts[index])

    return values, place


def _complete(
    table: _Table, read: Mapping[str, FloatArray], places: Callable[[int], str], drop: bool, targets: Sequence[str]
) -> NDArray[np.bool_]:
    """Return the rows without a missing value; refuse infinite values, and missing ones unless they are dropped."""
    n = len(next(iter(read.values())))
    kept = np.ones(n, dtype=bool)
    if table.is_grid:
        for name in targets:
            kept &= ~np.isnan(read[name])
        if not kept.all():
            table.notes.append(f"{n - kept.sum():,} of {n:,} points of the grid have no value and are no samples")
    gridded = kept.copy()
    counts = {}
    for name, column in read.items():
        if np.isinf(column).any():
            row = int(np.argmax(np.isinf(column)))
            raise InputError(f"the column '{name}' holds {column[row]} in {places(row)}; expected finite numbers")
        lacks = np.isnan(column) & gridded
        if not lacks.any():
            continue
        if not drop:
            row = int(np.argmax(lacks))
            raise InputError(
                f"the column '{name}' holds a missing value or NaN in {places(row)} (missing in {lacks.sum():,} of "
                f"{gridded.sum():,} rows). Fill them in, or leave these rows out by `drop_missing`"
            )
        counts[name] = int(lacks.sum())
        kept &= ~lacks
    if counts:
        listed = ", ".join(f"{name}: {count:,}" for name, count in counts.items())
        table.notes.append(
            f"left out {gridded.sum() - kept.sum():,} of {gridded.sum():,} rows, in which a value is missing ({listed})"
        )
    if not kept.any():
        raise InputError(f"no row of '{table.source.url}' has all values of {quoted(list(read))}")
    return kept


class _Clock:
    """Encodes a column of time: numbers as they are, dates as days since 1970."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()

    def __call__(self, values: NDArray[Any], place: Callable[[int], str], untyped: bool = False) -> FloatArray:
        if values.dtype.kind == "M":
            return self._of_kind("date", np.where(np.isnat(values), np.nan, _days(values)), place)
        if values.dtype.kind in "biuf":
            return self._of_kind("number", values.astype(np.float64), place)
        empty = gaps(values)
        texts = [None if missing else value for value, missing in zip(values.tolist(), empty.tolist(), strict=True)]
        if all(text is None or is_number(str(text)) for text in texts):
            numbers = np.array([np.nan if text is None else float(text) for text in texts])
            return self._of_kind("number", numbers, place)
        days = date_seconds(np.array(texts, dtype=object), ISO) / 86400.0
        wrong = np.isnan(days) & ~empty
        if wrong.any():
            row = int(np.argmax(wrong))
            raise text_error("time", str(values[row]), place(row), "a number or a date such as 2024-01-31")
        return self._of_kind("date", days, place)

    def _of_kind(self, kind: str, numbers: FloatArray, place: Callable[[int], str]) -> FloatArray:
        if not np.isnan(numbers).all():
            self.kinds.add(kind)
        if len(self.kinds) > 1:
            raise InputError(
                f"the column of time holds dates and numbers, the other kind from {place(0)} on; expected one"
            )
        return numbers


def _days(dates: NDArray[Any]) -> FloatArray:
    return np.asarray((dates - np.datetime64(0, "D")) / np.timedelta64(1, "D"))


# ---------------------------------------------------------------------------------------------------------- references


def _referenced(table: _Table, x: FloatArray, y: FloatArray, crs: Any) -> tuple[tuple[FloatArray, FloatArray], Any]:
    """Return the coordinates in `crs`, by default that of the table, and this reference."""
    wanted = None if crs is None else crs_of(crs)
    if table.crs is None or wanted is None:
        return (x, y), table.crs if wanted is None else wanted
    if table.crs.equals(wanted, ignore_axis_order=True):
        return (x, y), wanted
    table.notes.append(
        f"'{table.source.url}' is in {short_name(table.crs)}: its coordinates are transformed to {short_name(wanted)}"
    )
    moved = transformed(x, y, table.crs, wanted)
    lost = ~(np.isfinite(moved[0]) & np.isfinite(moved[1]))
    if lost.any():
        row = int(np.argmax(lost))
        raise InputError(
            f"the point ({x[row]:.10g}, {y[row]:.10g}) of '{table.source.url}' lies outside {short_name(wanted)}; "
            f"check `crs`, and that the coordinates are in {short_name(table.crs)}"
        )
    return moved, wanted


def _refuse_degrees(table: _Table, pair: tuple[str, str], coordinates: Sequence[FloatArray]) -> None:
    """Refuse columns named longitude and latitude without a CRS, if their values are degrees."""
    if np.abs(coordinates[0]).max() > 360.0 or np.abs(coordinates[1]).max() > 90.0:
        return
    ranges = ", ".join(f"{column.min():.1f}..{column.max():.1f}" for column in coordinates)
    raise InputError(
        f"the columns {pair[0]} and {pair[1]} of '{table.source.url}' look like longitude and latitude ({ranges}), and "
        "no CRS was given. Pass `crs` EPSG:4326, or name them by `x` and `y` if they are metres"
    )


def _reference_in(attributes: Sequence[Mapping[Any, Any]]) -> Any:
    """Return the CRS in the attributes of variables, by the conventions of CF; None where there is none."""
    references: list[Any] = []
    for each in attributes:
        text = each.get("crs_wkt") or each.get("spatial_ref")
        if isinstance(text, bytes | str) and text:
            one = crs_of(text.decode() if isinstance(text, bytes) else text)
        elif each.get("grid_mapping_name"):
            one = _from_cf(each)
        else:
            continue
        if one not in references:
            references.append(one)
    if len(references) > 1:
        raise InputError(
            f"the data are in several CRS, {quoted([short_name(one) for one in references])}; expected one"
        )
    return references[0] if references else None


def _from_cf(attributes: Mapping[Any, Any]) -> Any:
    crs_of("EPSG:4326")  # raises MissingExtraError without pyproj
    import pyproj

    with refused_as("the grid mapping of the data is no coordinate reference system"):
        return pyproj.CRS.from_cf(dict(attributes))


# ------------------------------------------------------------------------------------------------------------- reading


class _ArraySource(Source):
    """Named arrays (n,) in memory."""

    def __init__(self, label: str, arrays: Mapping[str, NDArray[Any]], n: int) -> None:
        super().__init__(label)
        self._arrays = dict(arrays)
        self.columns = tuple(Column(name, name, 0) for name in arrays)
        self.positional, self.total = self.columns, n

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples, of the chosen columns."""
        place = row_places(self.url, 0)
        values = np.empty((self.total, len(columns)))
        for index, column in enumerate(columns):
            values[:, index] = column_values(self._arrays[column.array], column, place)
        yield Block(values, place, self.total)


def _open(source: Any, layer: str | None, options: Mapping[str, Any], target: str | None) -> _Table:
    """Return the table of a file or of an object in memory."""
    if is_labelled(source):
        return _of_labelled(source, target)
    if hasattr(source, "to_pandas") and not hasattr(source, "iloc"):
        source = source.to_pandas()
    if hasattr(source, "to_crs") and hasattr(source, "geometry"):
        return _of_features(source, "GeoDataFrame")
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return _of_frame(source, "DataFrame")
    if not isinstance(source, str | os.PathLike | list | tuple):
        raise InputError(
            f"samples are read from paths, DataFrames, GeoDataFrames and xarray objects; got {type(source).__name__}"
        )
    urls = expand_locations(source)
    kind = _vector_kind(urls[0]) if is_file(urls[0]) else None
    if kind is not None:
        if len(urls) > 1:
            raise InputError(f"got {len(urls)} files, the first a {kind}; vector files are read one by one")
        if options:
            raise InputError(f"`{next(iter(options))}` is no option of a {kind}; leave it out")
        return _of_features(_read_features(urls[0], kind, layer), shown(urls[0]))
    if layer is not None:
        raise InputError(f"`layer` belongs to vector files such as GeoPackage; '{shown(urls[0])}' is none")
    opened, is_grid = _open_source(urls, options)
    parts = opened.parts if isinstance(opened, ConcatenatedSource) else (opened,)
    attributes: list[tuple[str, Mapping[Any, Any]]] = []
    for part in parts:
        if isinstance(part, XarraySource):
            with part._opened() as raw:
                attributes += [(str(name), dict(variable.attrs)) for name, variable in raw.variables.items()]
    reference = _reference_in([each for _, each in attributes])
    commas = [part.url for part in parts if isinstance(part, CsvSource) and part.take_decimal_commas()]
    notes = [*opened.warnings, *(f"the numbers of '{url}' have decimal commas" for url in commas)]
    return _Table(opened, reference, is_grid=is_grid, attributes=dict(attributes), notes=notes)


def _open_source(urls: Sequence[str], options: Mapping[str, Any]) -> tuple[Source, bool]:
    """Return the source, and True if its samples are the points of a grid."""
    try:
        return open_source(urls, options), bool(options.get("stack"))
    except InputError as error:
        if "`stack`" not in str(error) or "stack" in options:
            raise
    return open_source(urls, {**options, "stack": True}), True


def _of_frame(frame: Any, label: str) -> _Table:
    """Return the table of a pandas DataFrame."""
    columns: dict[str, NDArray[Any]] = {}
    for index, name in enumerate(frame.columns):
        if str(name) in columns:
            raise InputError(f"the column name '{name}' occurs twice in '{label}'; names must differ")
        columns[str(name)] = _plain(frame.iloc[:, index])
    return _Table(_ArraySource(label, columns, len(frame)), ids=np.asarray(frame.index))


def _plain(series: Any) -> NDArray[Any]:
    """Return a column of pandas as a plain array; missing values of its extension types are NaN, NaT or None."""
    import pandas as pd

    if isinstance(series.dtype, pd.DatetimeTZDtype):
        return np.asarray(series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy())
    if pd.api.types.is_extension_array_dtype(series.dtype):
        if pd.api.types.is_numeric_dtype(series.dtype):
            return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        values = np.array(series.to_numpy(), dtype=object)
        values[pd.isna(series).to_numpy()] = None
        return values
    return np.asarray(series.to_numpy())


def _of_features(features: Any, label: str) -> _Table:
    """Return the table of a GeoDataFrame."""
    shape_columns = [name for name, kind in features.dtypes.items() if str(kind) == "geometry"]
    table = _of_frame(features.drop(columns=shape_columns), label)
    table.geometry, table.crs = features.geometry.array, features.crs
    return table


def _of_labelled(data: Any, target: str | None) -> _Table:
    """Return the table of an xarray Dataset or DataArray: points of its target's dimensions."""
    label = type(data).__name__
    if not hasattr(data, "data_vars"):
        data = data.to_dataset(name=data.name if data.name is not None else (target or "value"))
    if target is not None and target not in data.variables:
        available = quoted([str(name) for name in data.variables])
        raise InputError(f"There is no target '{target}' in '{label}'; available: {available}.")
    if not data.variables:
        raise InputError(f"the {label} has no variables; expected coordinates and values")
    whole = data[target] if target is not None else max(data.variables.values(), key=lambda one: one.ndim)
    dims = whole.dims
    shape = tuple(data.sizes[dim] for dim in dims)
    columns = {}
    for name, variable in data.variables.items():
        if variable.dims and set(variable.dims) <= set(dims):
            axes = [variable.dims.index(dim) for dim in dims if dim in variable.dims]
            sizes = [data.sizes[dim] if dim in variable.dims else 1 for dim in dims]
            values = np.asarray(variable.values).transpose(axes).reshape(sizes)
            columns[str(name)] = np.broadcast_to(values, shape).reshape(-1)
    n = int(np.prod(shape))
    attributes = {str(name): variable.attrs for name, variable in data.variables.items()}
    reference = _reference_in(list(attributes.values()))
    return _Table(_ArraySource(label, columns, n), reference, is_grid=len(dims) > 1, attributes=attributes)


# ------------------------------------------------------------------------------------------------------ vector formats


def _vector_kind(url: str) -> str | None:
    """Return the vector format of a file by its content; None for another one."""
    with refused_as(f"'{shown(url)}' cannot be read"), open_object(url) as file:
        start = bytes(file.read(_HEAD_BYTES))
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip() if start[:1] in b"\xef{ \r\n\t" else start
    for magic, kind in _VECTORS.items():
        if start.startswith(magic):
            if _COMMANDS in start:
                raise InputError(f"'{shown(url)}' holds commands of GDAL, which are not run; expected GeoJSON")
            return kind
    if start.startswith(b"PAR1"):
        return "GeoParquet" if _is_geoparquet(url) else None
    return None


def _is_geoparquet(url: str) -> bool:
    try:
        from pyarrow import parquet
    except ImportError:
        return False  # opening the source names the missing extra
    with refused_as(f"'{shown(url)}' is not a whole Parquet file"), open_object(url) as file:
        return b"geo" in (parquet.ParquetFile(file).metadata.metadata or {})


def _read_features(url: str, kind: str, layer: str | None) -> Any:
    """Return the features of a vector file as a GeoDataFrame, with their ids as its index."""
    try:
        import geopandas
        import pyogrio
    except ImportError as error:
        raise MissingExtraError("geopandas", "geo", f"Reading {kind} files") from error
    unreadable = f"'{shown(url)}' cannot be read as {kind}"
    if kind == "GeoParquet":
        if layer is not None:
            raise InputError(f"`layer` belongs to files with several; '{shown(url)}' is GeoParquet. Leave it out")
        with refused_as(unreadable), open_object(url) as file:
            return geopandas.read_parquet(file)
    if kind == "shapefile" and not is_local(url):
        raise InputError(
            f"'{shown(url)}' is a shapefile, which needs the files beside it; copy all of them here, or save it as a "
            "GeoPackage"
        )
    content: Any = normalise_url(url) if kind == "shapefile" else read_object(url)
    with refused_as(unreadable), warnings.catch_warnings():
        # GDAL misses the ending of a file in memory.
        warnings.simplefilter("ignore", RuntimeWarning)
        listed = pyogrio.list_layers(content).tolist()
        layers = [str(name) for name, _ in listed]
        # Tables without geometries, such as the styles that QGIS stores, are no candidates.
        mapped = [str(name) for name, geometry in listed if geometry is not None]
        if layer is None and len(mapped) == 1:
            layer = mapped[0]
        if layer is None and len(layers) > 1:
            raise InputError(f"'{shown(url)}' has {len(layers)} layers, {quoted(layers)}; name one as `layer`")
        if layer is not None and layer not in layers:
            raise InputError(f"'{shown(url)}' has no layer '{layer}'; it has {quoted(layers)}")
        frame = pyogrio.read_dataframe(content, layer=layer, fid_as_index=True)
    if not hasattr(frame, "geometry"):
        return geopandas.GeoDataFrame(frame)
    return frame


def read_polygons(source: Any, *, ids: str | None = None, crs: Any = None, layer: str | None = None) -> Polygons:
    """Read polygons to predict averages over.

    Parameters
    ----------
    source
        Path or URL of a GeoPackage, GeoJSON, FlatGeobuf, shapefile or GeoParquet file; or a GeoDataFrame or GeoSeries.
    ids : str, optional
        Column that names the features; by default their ids.
    crs : EPSG code, WKT or pyproj.CRS, optional
        Reference of the samples: the corners of polygons in another one are transformed.
    layer : str, optional
        Layer of a file with several; by default the only one with geometries.

    Raises
    ------
    InputError
        Features that are no polygons, that have no area or cross themselves, by their ids; another CRS than expected.
    """
    label, frame = type(source).__name__, source
    if not hasattr(source, "to_crs"):
        urls = expand_locations(source)
        kind = _vector_kind(urls[0])
        if kind is None or len(urls) > 1:
            raise InputError(
                f"polygons are read from one file of {', '.join((*_VECTORS.values(), 'GeoParquet'))}; got "
                f"{quoted([shown(url) for url in urls])}"
            )
        label, frame = shown(urls[0]), _read_features(urls[0], kind, layer)
    import shapely

    geometry, notes = frame.geometry, []
    names = tuple(str(one) for one in frame.index)
    if ids is not None:
        if ids not in frame.columns:
            available = quoted([str(name) for name in frame])
            raise InputError(f"There is no column of ids '{ids}' in '{label}'; available: {available}.")
        names = tuple(str(one) for one in frame[ids])
    if not len(names):
        raise InputError(f"'{label}' has no features; expected polygons")
    for name, shape in zip(names, geometry, strict=True):
        where = f"the feature {name} of '{label}'"
        if shape is None or shape.is_empty or shape.geom_type not in ("Polygon", "MultiPolygon"):
            found = "empty" if shape is None or shape.is_empty else f"a {shape.geom_type}"
            raise InputError(f"{where} is {found}; expected a polygon")
        if not shapely.is_valid(shape):
            reason = shapely.is_valid_reason(shape)
            raise InputError(f"{where} is no valid polygon: {reason}. Mend it by shapely.make_valid")
        if not shape.area > 0.0:
            raise InputError(f"{where} has no area; expected a polygon with an area")
    wanted = None if crs is None else crs_of(crs)
    if wanted is not None and geometry.crs is None:
        raise InputError(
            f"'{label}' has no CRS; expected {short_name(wanted)} of the samples. Set it by geopandas' set_crs"
        )
    if wanted is not None and not geometry.crs.equals(wanted, ignore_axis_order=True):
        notes.append(f"'{label}' is in {short_name(geometry.crs)}: its corners are transformed to {short_name(wanted)}")
        with refused_as(f"the corners of '{label}' cannot be transformed to {short_name(wanted)}"):
            geometry = geometry.to_crs(wanted)
    reference = geometry.crs
    return Polygons(tuple(geometry), names, None if reference is None else reference.to_wkt("WKT2_2019"), tuple(notes))
