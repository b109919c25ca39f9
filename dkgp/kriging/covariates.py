"""Rasters of covariates, read at points: at samples, and at the cells of a map."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from dkgp.data.remote.storage import is_file, is_local, normalise_url, open_object, shown
from dkgp.data.sources.base import refused_as
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError, MissingExtraError
from dkgp.kriging.space import crs_of

Method: TypeAlias = Literal["nearest", "bilinear"]
METHODS: tuple[Method, ...] = get_args(Method)
# Pixels of a window that is read at once.
_MOST_PIXELS = 2**23


@dataclass(frozen=True)
class CovariateRasters:
    """Rasters by the names of covariates; made by `CovariateRasters.open`.

    It has no open files, so that it can be pickled and called from any thread; each call opens the rasters. The value
    at a point has the same bits in every set of points.

    Attributes
    ----------
    names, places : tuple of str
        Covariates, and the addresses of their rasters.
    crs : str, optional
        Reference of the points as WKT 2; they are transformed to that of a raster.
    method : {"nearest", "bilinear"}
        The value of the pixel around the point; or the mean of the four nearest ones by distance, which is missing if
        one of them is. Pixels at the edge go on by half a pixel.
    """

    names: tuple[str, ...]
    places: tuple[str, ...]
    crs: str | None = None
    method: Method = "nearest"

    @classmethod
    def open(cls, paths: Mapping[str, Any], *, crs: Any = None, method: str = "nearest") -> Self:
        """Return the rasters at paths or URLs, each looked into.

        Parameters
        ----------
        paths : mapping of names of covariates to rasters
            A raster has one band, or a band with the covariate's name as its description.
        crs : EPSG code, WKT or pyproj.CRS, optional
            Reference of the points; `in_crs` sets it later.
        method : {"nearest", "bilinear"}

        Raises
        ------
        InputError
            A raster that cannot be read or has no CRS, unlike the points.
        MissingExtraError
            rasterio is not installed.
        """
        if method not in METHODS:
            raise InputError(f"`method` is one of {', '.join(METHODS)}; got {method!r}")
        if not paths:
            raise InputError("expected at least one covariate with its raster; got none")
        places = tuple(normalise_url(path) for path in paths.values())
        wkt = None if crs is None else crs_of(crs).to_wkt("WKT2_2019")
        result = cls(tuple(map(str, paths)), places, wkt, method)
        for name, place in zip(result.names, result.places, strict=True):
            with _opened(place) as raster:
                _band(raster, name, place)
                if wkt is not None:
                    result._require_reference(raster, place)
        return result

    def in_crs(self, crs: Any) -> Self:
        """Return these rasters for points in another CRS."""
        return replace(self, crs=None if crs is None else crs_of(crs).to_wkt("WKT2_2019"))

    def select(self, names: Sequence[str]) -> Self:
        """Return the rasters of these covariates, in this order; `InputError` for one that has none."""
        missing = [name for name in names if name not in self.names]
        if missing:
            raise InputError(f"there is no raster of the covariate {missing[0]}; there are {quoted(self.names)}")
        places = dict(zip(self.names, self.places, strict=True))
        return replace(self, names=tuple(names), places=tuple(places[name] for name in names))

    def __call__(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """Return the values at points, (m, covariates); NaN outside a raster and where it has no value."""
        values = np.full((len(x), len(self.names)), np.nan)
        if not len(x):
            return values
        for index, (name, place) in enumerate(zip(self.names, self.places, strict=True)):
            with _opened(place) as raster:
                band = _band(raster, name, place)
                self._require_reference(raster, place)
                east, north = self._transformed(raster, x, y)
                with refused_as(f"'{shown(place)}' cannot be read"):
                    values[:, index] = _values_at(raster, band, east, north, self.method)
        return values

    def _require_reference(self, raster: Any, place: str) -> None:
        name = shown(place).rsplit("/", 1)[-1]
        if raster.crs is None and self.crs is not None:
            raise InputError(
                f"{name} has no CRS; expected {short_name(crs_of(self.crs))} of the samples. Set it with rio edit-info"
            )
        if raster.crs is not None and self.crs is None:
            raise InputError(
                f"{name} is in {short_name(crs_of(raster.crs.to_wkt()))}, and the CRS of the samples is unknown. Give "
                "it as `crs`"
            )

    def _transformed(self, raster: Any, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        if self.crs is None:
            return x, y
        points, target = crs_of(self.crs), crs_of(raster.crs.to_wkt())
        if points.equals(target, ignore_axis_order=True):
            return x, y
        return transformed(x, y, points, target)


def read_at_points(covariates: Any, names: Sequence[str], crs: Any) -> Any:
    """Return covariates as a function of points in a CRS; others than rasters, or their addresses by name, stay."""
    if isinstance(covariates, Mapping) and any(isinstance(one, str | os.PathLike) for one in covariates.values()):
        covariates = CovariateRasters.open(covariates)
    return covariates.select(names).in_crs(crs) if isinstance(covariates, CovariateRasters) else covariates


def transformed(x: FloatArray, y: FloatArray, source: Any, target: Any) -> tuple[FloatArray, FloatArray]:
    """Return coordinates of one pyproj.CRS in another; infinite where it has none."""
    import pyproj

    # Transformers belong to a thread: one is made for each call.
    with refused_as(f"coordinates of {short_name(source)} cannot be transformed to {short_name(target)}"):
        moved = pyproj.Transformer.from_crs(source, target, always_xy=True).transform(x, y)
    return moved[0], moved[1]


def short_name(crs: Any) -> str:
    """Return the code of a pyproj.CRS, or its name."""
    return str(crs.to_string() if crs.to_epsg() else crs.name)


def _opened(place: str) -> Any:
    try:
        import rasterio
    except ImportError as error:
        raise MissingExtraError("rasterio", "geo", "A raster of a covariate") from error
    if not is_file(place):
        raise InputError(f"there is no raster at '{shown(place)}'; check the path")
    with refused_as(f"'{shown(place)}' cannot be read"), open_object(place) as file:
        start = bytes(file.read(64)).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] in (b"<", b"{"):
        raise InputError(
            f"'{shown(place)}' refers to other files; expected a raster that holds its own values, such "
            "as a GeoTIFF. Convert it with gdal_translate"
        )
    with refused_as(f"'{shown(place)}' cannot be read as a raster"):
        return rasterio.open(place if is_local(place) else open_object(place), sharing=False)


def _band(raster: Any, name: str, place: str) -> int:
    """Return the number of the band of a covariate."""
    if raster.count == 1:
        return 1
    described = [str(text) for text in raster.descriptions]
    if described.count(name) == 1:
        return described.index(name) + 1
    raise InputError(
        f"'{shown(place)}' has {raster.count} bands, described as {quoted(described)}; expected one, or "
        f"one described as '{name}'. Extract a band with gdal_translate -b"
    )


def _values_at(raster: Any, band: int, x: FloatArray, y: FloatArray, method: Method) -> FloatArray:
    """Return the values of a band at points in its CRS, window by window."""
    to_map = raster.transform
    with np.errstate(invalid="ignore", over="ignore"):
        # The corner first: its digits would cancel later.
        x, y = x - to_map.c, y - to_map.f
        if to_map.b == to_map.d == 0.0:
            column, row = x / to_map.a, y / to_map.e
        else:
            area = to_map.a * to_map.e - to_map.b * to_map.d
            column, row = (to_map.e * x - to_map.b * y) / area, (to_map.a * y - to_map.d * x) / area
        inside = (column >= 0.0) & (column <= raster.width) & (row >= 0.0) & (row <= raster.height)
    values = np.full(len(x), np.nan)
    where = np.flatnonzero(inside)
    height = max(_MOST_PIXELS // raster.width, 1)
    bands = (np.minimum(row[where], raster.height - 1)).astype(np.int64) // height
    order = np.argsort(bands, kind="stable")
    for part in np.split(where[order], np.flatnonzero(np.diff(bands[order])) + 1):
        if len(part):
            values[part] = _window_values(raster, band, column[part], row[part], method)
    return values


def _window_values(raster: Any, band: int, column: FloatArray, row: FloatArray, method: Method) -> FloatArray:
    """Return the values at fractional columns and rows, from the window around them."""
    from rasterio.windows import Window

    if method == "nearest":
        lines = [(np.floor(column), raster.width), (np.floor(row), raster.height)]
    else:
        lines = [(np.floor(column - 0.5), raster.width), (np.floor(row - 0.5), raster.height)]
    left, top = (np.clip(line, 0, size - 1).astype(np.int64) for line, size in lines)
    if method == "nearest":
        right, bottom = left, top
    else:
        right, bottom = (np.clip(line + 1, 0, size - 1).astype(np.int64) for line, size in lines)
    first_column, first_row = int(left.min()), int(top.min())
    window = Window(first_column, first_row, int(right.max()) - first_column + 1, int(bottom.max()) - first_row + 1)
    masked = raster.read(band, window=window, masked=True)
    pixels = np.where(np.ma.getmaskarray(masked), np.nan, np.ma.getdata(masked).astype(np.float64))
    pixels = pixels * raster.scales[band - 1] + raster.offsets[band - 1]
    left, right, top, bottom = left - first_column, right - first_column, top - first_row, bottom - first_row
    if method == "nearest":
        return np.asarray(pixels[top, left])
    # Beyond the centres of the edge, both pixels are the same one.
    across, down = column - 0.5 - lines[0][0], row - 0.5 - lines[1][0]
    upper = _between(pixels[top, left], pixels[top, right], across)
    lower = _between(pixels[bottom, left], pixels[bottom, right], across)
    return _between(upper, lower, down)


def _between(first: FloatArray, second: FloatArray, share: FloatArray) -> FloatArray:
    """Return the mean of two values by a share; a value of no weight may be missing."""
    mean = first * (1.0 - share) + second * share
    return np.where(share == 0.0, first, np.where(first == second, first, mean))
