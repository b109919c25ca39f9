"""The space of a field: coordinates of any kind, and the places that distances are taken between.

Places are columns in map units: easting and northing of a projected coordinate reference system (CRS), or points on
the globe in kilometres for longitude and latitude, whose distances are chords. Every kernel that is valid in three
dimensions is valid on chords; on great circles few are (Gneiting 2013). Time is a further column, in map units by
`time_scale`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.numbers import array_of
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, MissingExtraError
from dkgp.estimators.inputs import numbers_of

Metric: TypeAlias = Literal["plane", "sphere", "wgs84"]
METRICS: tuple[Metric, ...] = get_args(Metric)
# Of the sphere, in km, and of the ellipsoid WGS 84.
EARTH_RADIUS = 6371.0
_WGS84_AXIS, _WGS84_FLATTENING = 6378.137, 1.0 / 298.257223563
# Coordinates within these that span less than a few degrees are taken for degrees where no CRS says otherwise.
_MOST_DEGREES = 20.0
_UNITS = {"metre": "m", "kilometre": "km", "foot": "ft", "US survey foot": "US ft", "degree": "degrees"}


def crs_of(crs: Any) -> Any:
    """Return pyproj's CRS of an EPSG code, a WKT text or another CRS.

    Raises
    ------
    MissingExtraError
        pyproj is not installed; it is part of the extra `geo`.
    InputError
        Something that is no CRS.
    """
    try:
        import pyproj
    except ImportError as error:
        raise MissingExtraError("pyproj", "geo", "A coordinate reference system") from error
    try:
        return pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError as error:
        raise InputError(f"{crs!r} is no coordinate reference system; expected such as EPSG:32611: {error}") from error


def axis_unit(crs: Any) -> str:
    """Return the unit of a CRS's first axis; empty if it has no axes."""
    axes = crs_of(crs).axis_info
    return _UNITS.get(axes[0].unit_name, str(axes[0].unit_name)) if axes else ""


def region_in(region: Sequence[float], crs: Any, wanted: Any) -> tuple[float, ...]:
    """Return the region (west, east, south, north) of another CRS that contains a region.

    The region stays as it is if either CRS is None. `InputError`: the region lies outside of the other CRS.
    """
    if crs is None or wanted is None or crs_of(crs).equals(crs_of(wanted), ignore_axis_order=True):
        return tuple(region)
    import pyproj

    west, east, south, north = region
    change = pyproj.Transformer.from_crs(crs_of(crs), crs_of(wanted), always_xy=True)
    left, bottom, right, top = change.transform_bounds(west, south, east, north)
    if not (np.isfinite([left, bottom, right, top]).all() and left <= right):
        raise InputError(
            f"the samples' region lies outside of {crs_of(wanted).name}, or across its edge; give the map's `region`"
        )
    return left, right, bottom, top


def coordinates_of(coordinates: Any, crs: Any = None, data: Any = None) -> tuple[tuple[Any, ...], Any]:
    """Return coordinates as a tuple of arrays, and their CRS.

    Parameters
    ----------
    coordinates
        Arrays, columns or DataArrays, which are broadcast by their dimensions; a DataFrame of coordinates alone, in
        order; or points of a GeoSeries or GeoDataFrame.
    crs : optional
        The reference to return: points of another one are transformed. By default the points'.
    data : optional
        Values, or a tuple of them, whose dimensions DataArrays are broadcast to, in their order.

    Raises
    ------
    InputError
        Geometries that are no points.
    """
    geometry = getattr(coordinates, "geometry", None)
    if geometry is not None:
        if not (geometry.geom_type == "Point").all():
            raise InputError(f"samples are points; got {', '.join(sorted(set(geometry.geom_type.dropna())))}")
        if crs is not None and geometry.crs is not None and not crs_of(crs).equals(geometry.crs):
            geometry = geometry.to_crs(crs_of(crs))
        reference = geometry.crs if crs is None else crs
        return (geometry.x.to_numpy(), geometry.y.to_numpy()), reference
    if hasattr(coordinates, "columns"):
        coordinates = [coordinates[name] for name in coordinates.columns]
    if all(hasattr(values, "broadcast_like") for values in coordinates):
        like = data[0] if isinstance(data, tuple) else data
        whole = like if hasattr(like, "broadcast_like") else coordinates[0]
        for values in coordinates:
            whole = whole.broadcast_like(values)
        if hasattr(like, "broadcast_like"):
            whole = whole.transpose(*like.dims, ...)
        coordinates = [values.broadcast_like(whole).transpose(*whole.dims).to_numpy() for values in coordinates]
    if getattr(coordinates, "ndim", 0) == 2 and coordinates.shape[0] > 4 >= coordinates.shape[1]:
        raise InputError(
            f"coordinates are arrays by axis, (easting, northing); got one array of shape {coordinates.shape}. Pass "
            "its columns: tuple(array.T)"
        )
    return tuple(coordinates), crs


@dataclass(frozen=True)
class Space:
    """The space of samples, which makes places of coordinates.

    Parameters
    ----------
    dimensions : int
        Coordinates of a sample in space: 1, 2 or 3. Longitude and latitude are 2.
    metric : {"plane", "sphere", "wgs84"}, default "plane"
        Distances in the plane (or along a line, or in space), or chords of the globe.
    crs : str, optional
        The CRS as WKT 2; None if it is unknown.
    has_time : bool, default False
        A further coordinate is time.
    time_scale : float, default 1
        Map units of a unit of time.
    """

    dimensions: int
    metric: Metric = "plane"
    crs: str | None = None
    has_time: bool = False
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise InputError(f"`metric` is one of {', '.join(('auto', *METRICS))}; got {self.metric!r}")
        if not 1 <= self.dimensions <= 3:
            raise InputError(f"samples have 1, 2 or 3 coordinates in space; got {self.dimensions}")
        if self.metric != "plane" and self.dimensions != 2:
            raise InputError(
                f"distances on the globe need longitude and latitude; got {self.dimensions} coordinates. Pass "
                "metric='plane'"
            )
        if not (np.isfinite(self.time_scale) and self.time_scale > 0.0):
            raise InputError(f"`time_scale` must be positive and finite; got {self.time_scale!r}")

    @classmethod
    def of(
        cls,
        coordinates: Sequence[ArrayLike],
        crs: Any = None,
        *,
        metric: str = "auto",
        earth: str = "sphere",
        has_time: bool = False,
        time_scale: float = 1.0,
    ) -> Self:
        """Return the space of coordinates.

        Parameters
        ----------
        coordinates : sequence of array_like
            Easting, northing, then height and time where there are any; or longitude and latitude, in degrees.
        crs : EPSG code, WKT or pyproj.CRS, optional
        metric : {"auto", "plane", "sphere", "wgs84"}
            "auto": chords for a geographic CRS, the plane otherwise.
        earth : {"sphere", "wgs84"}
            The globe that "auto" takes.
        has_time, time_scale
            See `Space`.

        Raises
        ------
        InputError
            Coordinates that look like degrees without a CRS, or a combination that has no distances.
        MissingExtraError
            A CRS without pyproj.
        """
        dimensions = len(coordinates) - has_time
        reference = None if crs is None else crs_of(crs)
        if metric == "auto":
            geographic = reference is not None and reference.is_geographic
            if reference is None:
                _require_no_degrees(coordinates[:dimensions])
            metric = earth if geographic else "plane"
        wkt = None if reference is None else reference.to_wkt("WKT2_2019")
        return cls(dimensions, metric, wkt, has_time, time_scale)  # type: ignore[arg-type]

    @property
    def n_columns(self) -> int:
        """Columns of a place."""
        return (3 if self.metric != "plane" else self.dimensions) + self.has_time

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates."""
        names = (
            ("longitude", "latitude") if self.metric != "plane" else ("easting", "northing", "up")[: self.dimensions]
        )
        return (*names, "time") if self.has_time else names

    @property
    def unit(self) -> str:
        """Unit of distances: km on the globe, that of the CRS in the plane; empty without a CRS."""
        if self.metric != "plane":
            return "km"
        return "" if self.crs is None else axis_unit(self.crs)

    def places(self, coordinates: Sequence[ArrayLike]) -> FloatArray:
        """Return the places of coordinates of any one shape, flattened: (n, columns).

        Raises `InputError`: another number of coordinates, other shapes, or values that are not finite.
        """
        columns = [coordinate_numbers(values) for values in coordinates]
        if len(columns) != self.dimensions + self.has_time:
            raise InputError(f"expected {len(self.names)} coordinates ({', '.join(self.names)}); got {len(columns)}")
        shapes = {column.shape for column in columns}
        if len(shapes) > 1:
            raise InputError(f"coordinates must have one shape; got {', '.join(map(str, sorted(shapes)))}")
        flat = [column.reshape(-1) for column in columns]
        for name, column in zip(self.names, flat, strict=True):
            if not np.isfinite(column).all():
                row = int(np.argmin(np.isfinite(column)))
                raise InputError(f"the coordinate {name} is {column[row]} in row {row}; expected finite numbers")
        space = flat[: self.dimensions] if self.metric == "plane" else self._on_globe(flat[0], flat[1])
        # Adding zero turns -0.0 into 0.0: equal places have equal bits.
        time = [flat[-1] * self.time_scale] if self.has_time else []
        return np.column_stack([*space, *time]) + 0.0

    def _on_globe(self, longitude: FloatArray, latitude: FloatArray) -> list[FloatArray]:
        """Return geocentric coordinates in km; turns of 360 degrees do not count."""
        if (np.abs(latitude) > 90.0).any():
            row = int(np.argmax(np.abs(latitude) > 90.0))
            raise InputError(
                f"the latitude is {latitude[row]:g} in row {row}; expected -90 to 90. Coordinates are longitude, then "
                "latitude"
            )
        longitude = longitude - 360.0 * np.round(longitude / 360.0)
        east, north = np.radians(longitude), np.radians(latitude)
        # Exact at the poles and at the date line, where sines and cosines of rounded radians are not zero.
        across = np.where(np.abs(latitude) == 90.0, 0.0, np.cos(north))
        sine = np.where(np.abs(longitude) == 180.0, 0.0, np.sin(east))
        if self.metric == "sphere":
            radius, flattened = np.full_like(north, EARTH_RADIUS), 1.0
        else:
            square = _WGS84_FLATTENING * (2.0 - _WGS84_FLATTENING)
            radius, flattened = _WGS84_AXIS / np.sqrt(1.0 - square * np.sin(north) ** 2), 1.0 - square
        return [
            radius * across * np.cos(east),
            radius * across * sine,
            radius * flattened * np.sin(north),
        ]


def coordinate_numbers(values: ArrayLike) -> FloatArray:
    """Return numbers, NaN where they are masked or missing; dates become days since 1970."""
    array = array_of(values)
    if array.dtype.kind == "M":
        dates = np.ma.asarray(array).filled(np.datetime64("NaT"))
        days = (dates - np.datetime64(0, "D")) / np.timedelta64(1, "D")
        return np.where(np.isnat(dates), np.nan, days)
    return numbers_of(array, "a coordinate")


def _require_no_degrees(coordinates: Sequence[ArrayLike]) -> None:
    """Refuse two coordinates that look like longitude and latitude."""
    if len(coordinates) != 2:
        return
    spans = []
    for values, most in zip(coordinates, (180.0, 90.0), strict=True):
        finite = coordinate_numbers(values)
        finite = finite[np.isfinite(finite)]
        if not finite.size or np.abs(finite).max() > most:
            return
        spans.append((float(finite.min()), float(finite.max())))
    if any(high - low > _MOST_DEGREES for low, high in spans):
        return
    ranges = ", ".join(f"{low:.1f}..{high:.1f}" for low, high in spans)
    if all(max(abs(low), abs(high)) > _MOST_DEGREES for low, high in spans):
        raise InputError(
            f"coordinates look like longitude and latitude ({ranges}), and no CRS was given. Pass `crs` EPSG:4326, or "
            "`metric` plane if they are metres"
        )
    if min(map(abs, spans[1])) > _MOST_DEGREES and spans[1][0] * spans[1][1] > 0.0:
        # Longitudes near Greenwich are small numbers, as many local coordinates are.
        warnings.warn(
            f"coordinates may be longitude and latitude ({ranges}), and are taken as a plane. Pass `crs` EPSG:4326 if "
            "they are degrees, or `metric` plane if they are not",
            UserWarning,
            stacklevel=4,
        )
