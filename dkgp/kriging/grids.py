"""Regular grids of a map: cells in rows from south to north and columns from west to east."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dkgp.data.types import BoolArray, FloatArray
from dkgp.errors import InputError, MissingExtraError

ADJUSTED = ("spacing", "region")
# Most rows or columns, whose coordinates are held in memory, and most cells: half a TiB of each variable.
MOST_ALONG, MOST_CELLS = 2**26, 2**36


@dataclass(frozen=True)
class Grid:
    """The centres of a map's cells, (rows, columns).

    Attributes
    ----------
    west, south : float
        Centre of the first column and of the first row.
    spacing : (float, float)
        Distance between rows (north), and between columns (east).
    shape : (int, int)
        Rows, columns.
    """

    west: float
    south: float
    spacing: tuple[float, float]
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if max(self.shape) > MOST_ALONG or self.n_cells > MOST_CELLS:
            raise InputError(
                f"the grid has {self.shape[0]:,} x {self.shape[1]:,} cells; expected at most {MOST_ALONG:,} rows and "
                f"columns, and {MOST_CELLS:,} cells. Take a larger `spacing`, or a smaller `region`"
            )

    @classmethod
    def of(
        cls,
        region: Sequence[float],
        *,
        shape: tuple[int, int] | None = None,
        spacing: Any = None,
        adjust: str = "spacing",
        pixel_register: bool = False,
    ) -> Self:
        """Return the grid of a region, with the arguments of verde's `grid_coordinates`.

        Parameters
        ----------
        region : (west, east, south, north)
        shape : (rows, columns), optional
        spacing : float or (north, east), optional
            Either `shape` or `spacing`.
        adjust : {"spacing", "region"}
            Which of them changes if the region is no multiple of the spacing.
        pixel_register : bool
            The region is that of the cells' edges; by default that of their centres.

        Raises
        ------
        InputError
            An empty region, both or neither of `shape` and `spacing`, or values out of range.
        """
        if len(region) != 4:
            raise InputError(f"`region` is west, east, south and north, four numbers; got {tuple(region)}")
        west, east, south, north = (float(value) for value in region)
        if not (all(map(math.isfinite, (west, east, south, north))) and west <= east and south <= north):
            raise InputError(
                f"`region` is west, east, south and north, with west <= east and south <= north; got {tuple(region)}"
            )
        if (shape is None) == (spacing is None):
            raise InputError("give either `shape` (rows, columns) or `spacing` of the grid")
        if adjust not in ADJUSTED:
            raise InputError(f"`adjust` is one of {', '.join(ADJUSTED)}; got {adjust!r}")
        steps: tuple[Any, Any] = (None, None)
        if spacing is not None:
            steps = tuple(spacing) if isinstance(spacing, tuple | list) else (spacing, spacing)
        sizes: tuple[Any, Any] = (None, None) if shape is None else shape
        rows = _line(south, north, sizes[0], steps[0], adjust, pixel_register)
        columns = _line(west, east, sizes[1], steps[1], adjust, pixel_register)
        return cls(columns[0], rows[0], (rows[1], columns[1]), (rows[2], columns[2]))

    @classmethod
    def of_centres(cls, x: FloatArray, y: FloatArray) -> Self:
        """Return the grid with these centres of columns and rows; `InputError` if they are not evenly spaced."""
        starts, steps = [], []
        for name, values in (("y", y), ("x", x)):
            gaps = np.diff(values)
            even = values.ndim == 1 and len(values) > 0 and (gaps > 0.0).all()
            step = float((values[-1] - values[0]) / (len(values) - 1)) if even and len(values) > 1 else 1.0
            if not even or np.abs(gaps - step).max(initial=0.0) > 1e-6 * step:
                raise InputError(f"the coordinates {name} of a grid must rise in even steps; got {values[:4].tolist()}")
            starts.append(float(values[0]))
            steps.append(step)
        return cls(starts[1], starts[0], (steps[0], steps[1]), (len(y), len(x)))

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return self.shape[0] * self.shape[1]

    @property
    def x(self) -> FloatArray:
        """Centres of the columns, from west to east."""
        return np.asarray(self.west + self.spacing[1] * np.arange(self.shape[1]), dtype=np.float64)

    @property
    def y(self) -> FloatArray:
        """Centres of the rows, from south to north."""
        return np.asarray(self.south + self.spacing[0] * np.arange(self.shape[0]), dtype=np.float64)

    def inside(self, mask: Any, crs: str | None = None) -> BoolArray:
        """Return the cells of a mask: (rows, columns).

        Parameters
        ----------
        mask : (rows, columns) array_like of bool, shapely geometry, or geometries of geopandas
            Cells whose centre lies in a polygon, or on its edge, are inside. Geometries with a CRS are transformed.
        crs : str, optional
            CRS of the grid.

        Raises
        ------
        InputError
            A mask of another shape, or geometries without area.
        MissingExtraError
            A polygon without shapely.
        """
        if not hasattr(mask, "geom_type"):
            inside = np.asarray(mask)
            if inside.shape != self.shape or inside.dtype != bool:
                raise InputError(
                    f"`mask` has shape {inside.shape} of {inside.dtype}; expected bool of the shape of the grid, "
                    f"{self.shape}, or polygons"
                )
            return inside
        try:
            import shapely
        except ImportError as error:
            raise MissingExtraError("shapely", "geo", "A mask of polygons") from error
        own = getattr(mask, "crs", None)
        if own is not None and crs is not None and not own.equals(crs):
            mask = mask.to_crs(crs)
        geometry = mask if isinstance(mask, shapely.Geometry) else mask.union_all()
        if not geometry.area > 0.0:
            raise InputError(f"`mask` is a {geometry.geom_type} without area; expected polygons")
        shapely.prepare(geometry)
        inside = np.empty(self.shape, dtype=bool)
        for row, y in enumerate(self.y):
            inside[row] = shapely.intersects_xy(geometry, self.x, y)
        return inside


def _line(start: float, stop: float, size: Any, step: Any, adjust: str, pixels: bool) -> tuple[float, float, int]:
    """Return the first centre, the step and the number of centres along an axis."""
    if not math.isfinite(stop - start):
        raise InputError(f"`region` is too wide for float64, from {start:g} to {stop:g}; expected a smaller one")
    if step is None:
        if int(size) != size or size < 1:
            raise InputError(f"`shape` has whole numbers of at least 1; got {size!r}")
        count = int(size)
        step = (stop - start) / count if pixels else (stop - start) / max(count - 1, 1)
    else:
        if not (math.isfinite(step) and step > 0.0):
            raise InputError(f"`spacing` must be positive and finite; got {step!r}")
        cells = max(round(min((stop - start) / step, 1e18)), 1 if pixels else 0)
        if adjust == "spacing" and cells:
            step = (stop - start) / cells
        count = cells if pixels else cells + 1
    if not step:
        step = 1.0
    return (start + 0.5 * step if pixels else start), float(step), count
