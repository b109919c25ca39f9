"""The cells of a grid as samples to predict at, tile by tile: made from their numbers when they are read.

Cells outside of a mask, and those without a value of a covariate, are no samples: nothing is computed for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import BoolArray, FloatArray, IntArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import numbers_of
from dkgp.kriging.covariates import CovariateRasters, read_at_points
from dkgp.kriging.field import Field
from dkgp.kriging.grids import Grid
from dkgp.kriging.space import Space, crs_of
from dkgp.kriging.variogram import Variogram

# Rows and columns of the tiles that cells are numbered by: neighbours are predicted together.
TILE = (64, 64)
# Covariates of cells: rasters; their addresses, or arrays (rows, columns), by name; or a function of x and y of cells,
# (m,) each, in the CRS of the grid, that returns (m, c) in the order of the field's covariates, NaN without a value.
Covariates: TypeAlias = CovariateRasters | Mapping[str, Any] | Callable[[FloatArray, FloatArray], FloatArray]
Note: TypeAlias = Callable[[str], None] | None


@dataclass(frozen=True, eq=False)
class CellRows:
    """Inputs of a grid's cells, a row array: the cells of a tile follow each other, row by row.

    Covariates enter the mean alone, which the coordinator adds. They do not travel: rows in another process have NaN.

    Attributes
    ----------
    grid : Grid
    space, variogram, origin
        Of the field.
    crs : str, optional
        CRS of the grid as WKT, if it is not that of the samples: cells are transformed.
    time : float, optional
        The time of the cells, for a field in space and time.
    covariates : (rows, columns, c) array or function, optional
        See `Covariates`.
    n_covariates : int
    kept : bytes, optional
        Bits of the cells that are predicted, in the order of their numbers; all cells by default.
    """

    grid: Grid
    space: Space
    variogram: Variogram
    crs: str | None = None
    time: float | None = None
    covariates: FloatArray | Callable[[FloatArray, FloatArray], FloatArray] | None = None
    n_covariates: int = 0
    kept: bytes | None = None
    origin: FloatArray | None = None
    tile: tuple[int, int] = TILE

    @property
    def shape(self) -> tuple[int, ...]:
        """(predicted cells, columns)."""
        return (self._stops[-1], self.space.n_columns + self.n_covariates)

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop)."""
        return self.rows(np.arange(start, stop))

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""
        inputs = self.variogram.isotropic(self.places(indices), self.origin)
        if not self.n_covariates:
            return inputs
        return np.column_stack([inputs, self.drift(*self.at(self.numbers(indices)))])

    def reads(self, url: str) -> bool:
        """Return False: the rows are computed."""
        return False

    def numbers(self, indices: IntArray) -> IntArray:
        """Return the numbers of the cells of rows."""
        return np.asarray(indices, dtype=np.int64) if self._kept is None else self._kept[indices]

    def band(self, first: int, last: int) -> tuple[int, int]:
        """Return the rows [start, stop) of the cells in bands [first, last) of tiles."""
        return self._stops[first], self._stops[last]

    def places(self, indices: IntArray) -> FloatArray:
        """Return the places of the cells of rows: (m, columns)."""
        row, column = self.at(self.numbers(indices))
        x, y = self.grid.x[column], self.grid.y[row]
        if self._transformer is not None:
            x, y = self._transformer.transform(x, y)
        return self.space.places((x, y, *(() if self.time is None else (np.full(len(x), self.time),))))

    def drift(self, row: IntArray, column: IntArray) -> FloatArray:
        """Return the covariates of cells by their rows and columns in the grid: (m, c)."""
        if self.covariates is None:
            return np.full((len(row), self.n_covariates), np.nan)
        if not callable(self.covariates):
            return np.asarray(self.covariates)[row, column]
        values = np.asarray(self.covariates(self.grid.x[column], self.grid.y[row]), dtype=np.float64)
        if values.shape != (len(row), self.n_covariates):
            raise InputError(
                f"covariates of {len(row):,} cells have shape {values.shape}; expected {(len(row), self.n_covariates)}"
            )
        return values

    def at(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return rows and columns of the grid by the numbers of cells: (m,) each."""
        (rows, columns), (height, width) = self.grid.shape, self.tile
        band, rest = np.divmod(np.asarray(numbers, dtype=np.int64), height * columns)
        high = np.minimum(height, rows - band * height)
        tile, rest = np.divmod(rest, high * width)
        wide = np.minimum(width, columns - tile * width)
        row, column = np.divmod(rest, wide)
        return band * height + row, tile * width + column

    def bands(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Iterate over bands of tiles from the south: rows and columns of all their cells, by number."""
        step = self.tile[0] * self.grid.shape[1]
        for start in range(0, self.grid.n_cells, step):
            yield self.at(np.arange(start, min(start + step, self.grid.n_cells)))

    @cached_property
    def _kept(self) -> IntArray | None:
        if self.kept is None:
            return None
        return np.flatnonzero(np.unpackbits(np.frombuffer(self.kept, np.uint8), count=self.grid.n_cells))

    @cached_property
    def _stops(self) -> list[int]:
        """Row of the first cell of each band of tiles, and the number of rows."""
        step, n = self.tile[0] * self.grid.shape[1], self.grid.n_cells
        ends = np.array([*range(0, n, step), n])
        return [int(row) for row in (ends if self._kept is None else np.searchsorted(self._kept, ends))]

    @cached_property
    def _transformer(self) -> Any:
        if self.crs is None:
            return None
        import pyproj

        return pyproj.Transformer.from_crs(crs_of(self.crs), crs_of(self.space.crs), always_xy=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out covariates, and the transformer and the numbers, which another process makes for itself."""
        derived = ("_transformer", "_kept", "_stops")
        state = {name: value for name, value in self.__dict__.items() if name not in derived}
        return {**state, "covariates": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def cells_of(
    field: Field,
    grid: Grid,
    *,
    crs: Any = None,
    time: float | None = None,
    mask: Any = None,
    covariates: Covariates | None = None,
    note: Note = None,
) -> tuple[Dataset, CellRows]:
    """Return the cells of a grid as a data set to predict at, and their row array.

    Parameters
    ----------
    field, grid
    crs : optional
        That of the grid, by default the samples'.
    time : float, optional
        For a field in space and time.
    mask : optional
        See `Grid.inside`.
    covariates : optional
        See `Covariates`.
    note : callable, optional
        Called with a line on cells that are transformed or left empty.

    Raises
    ------
    InputError
        Covariates or a time that the field does not have, or needs; or no cell to predict.
    """
    wkt = None if crs is None else crs_of(crs).to_wkt("WKT2_2019")
    other = wkt is not None and field.space.crs is not None and not crs_of(wkt).equals(crs_of(field.space.crs))
    names = tuple(field.record.standardisation.covariate_names)
    if field.space.dimensions != 2:
        coordinates = ", ".join(field.space.names[: field.space.dimensions])
        raise InputError(
            f"maps are of two coordinates, and the samples have {field.space.dimensions} ({coordinates}); make arrays "
            "of the points that you want by numpy.meshgrid, and pass them to `predict`"
        )
    if (time is None) == field.space.has_time:
        raise InputError(
            f"`time` is the time of the map of a field in space and time; got {time!r} for a field "
            f"{'with' if field.space.has_time else 'without'} time"
        )
    if (covariates is None) == bool(names):
        raise InputError(
            f"the field has {'the covariates ' + ', '.join(names) if names else 'no covariates'}; "
            f"{'give their values at the cells by `covariates`' if names else 'leave out `covariates`'}"
        )
    values = read_at_points(covariates, names, wkt or field.space.crs)
    if isinstance(values, Mapping):
        values = _stacked(values, names, grid)
    reference = wkt if other else None
    rows = CellRows(grid, field.space, field.variogram, reference, time, values, len(names), origin=field.origin)
    if other and note is not None:
        note(f"the grid is in {_short(wkt)}, the samples in {_short(field.space.crs)}: cells are transformed")
    digest = hashlib.sha256()
    if mask is not None or names:
        inside = None if mask is None else grid.inside(mask, wkt or field.space.crs)
        rows = replace(rows, kept=_kept(rows, inside, names, digest, note))
        digest.update(rows.kept or b"")
    about = [grid.west, grid.south, *grid.spacing, *grid.shape, rows.crs, time, list(rows.tile), digest.hexdigest()]
    record = field.record
    dataset = Dataset(
        f"{grid.shape[0]:,} x {grid.shape[1]:,} cells",
        {"X": rows},
        feature_names=(*record.feature_names, *names),
        target_names=(),
        standardisation=record.standardisation,
        fingerprint=hashlib.sha256(json.dumps(about).encode()).hexdigest(),
        n_samples=rows.shape[0],
        chunk_rows=rows.tile[0] * rows.tile[1],
    )
    return dataset, rows


def _stacked(covariates: Mapping[str, FloatArray], names: tuple[str, ...], grid: Grid) -> FloatArray:
    """Return covariates by name as one array (rows, columns, c)."""
    missing = [name for name in names if name not in covariates]
    if missing:
        raise InputError(f"the covariates {', '.join(missing)} of cells are missing; got {', '.join(covariates)}")
    arrays = [numbers_of(covariates[name], f"the covariate {name}") for name in names]
    for name, array in zip(names, arrays, strict=True):
        if array.shape != grid.shape:
            raise InputError(f"covariate {name} has shape {array.shape}; expected that of the grid, {grid.shape}")
    return np.stack(arrays, axis=-1)


def _kept(rows: CellRows, inside: BoolArray | None, names: tuple[str, ...], digest: Any, note: Note) -> bytes:
    """Return the bits of the cells that are inside and have all covariates; these enter the digest."""
    kept, missing = [], np.zeros(len(names), dtype=np.int64)
    first = np.full((len(names), 2), np.nan)
    for row, column in rows.bands():
        here = np.ones(len(row), dtype=bool) if inside is None else inside[row, column]
        if names:
            values = np.full((len(row), len(names)), np.nan)
            if here.any():
                values[here] = rows.drift(row[here], column[here])
            empty = ~np.isfinite(values) & here[:, None]
            for index in np.flatnonzero((missing == 0) & empty.any(axis=0)):
                cell = int(np.argmax(empty[:, index]))
                first[index] = rows.grid.x[column[cell]], rows.grid.y[row[cell]]
            missing += empty.sum(axis=0)
            here = here & ~empty.any(axis=1)
            digest.update(np.ascontiguousarray(values[here]).tobytes())
        kept.append(here)
    of = rows.grid.n_cells if inside is None else int(inside.sum())
    for index in np.flatnonzero(missing):
        if note is not None:
            x, y = first[index]
            note(
                f"covariate {names[index]} is missing at {missing[index]:,} of {of:,} cells, first at ({x:.12g}, "
                f"{y:.12g}); they are left empty"
            )
    cells = np.concatenate(kept)
    if not cells.any():
        raise InputError(
            f"none of {rows.grid.n_cells:,} cells lies inside the `mask` and has all covariates; check their CRS and "
            "their region"
        )
    return np.packbits(cells).tobytes()


def _short(wkt: str | None) -> str:
    if wkt is None:
        return "an unknown CRS"
    reference = crs_of(wkt)
    return str(reference.to_string() if reference.to_epsg() else reference.name)
