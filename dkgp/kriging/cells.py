"""The cells of a grid as samples to predict at, tile by tile: made from their numbers when they are read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dkgp.data import Dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.kriging.field import Field
from dkgp.kriging.grids import Grid
from dkgp.kriging.space import Space, crs_of
from dkgp.kriging.variogram import Variogram

# Rows and columns of the tiles that cells are numbered by: neighbours are predicted together.
TILE = (64, 64)


@dataclass(frozen=True)
class CellRows:
    """Inputs of a grid's cells, a row array: the cells of a tile follow each other, row by row.

    Attributes
    ----------
    grid : Grid
    space, variogram
        Of the field.
    crs : str, optional
        CRS of the grid as WKT, if it is not that of the samples: cells are transformed.
    time : float, optional
        The time of the cells, for a field in space and time.
    """

    grid: Grid
    space: Space
    variogram: Variogram
    crs: str | None = None
    time: float | None = None
    tile: tuple[int, int] = TILE

    @property
    def shape(self) -> tuple[int, ...]:
        """(cells, columns)."""
        return (self.grid.n_cells, self.space.n_columns)

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows [start, stop)."""
        return self.rows(np.arange(start, stop))

    def rows(self, indices: IntArray) -> FloatArray:
        """The rows at `indices`, in that order."""
        return self.variogram.isotropic(self.places(indices))

    def reads(self, url: str) -> bool:
        """Return False: the rows are computed."""
        return False

    def places(self, indices: IntArray) -> FloatArray:
        """Return the places of cells by their numbers: (m, columns)."""
        row, column = self.at(indices)
        x, y = self.grid.x[column], self.grid.y[row]
        if self._transformer is not None:
            x, y = self._transformer.transform(x, y)
        return self.space.places((x, y, *(() if self.time is None else (np.full(len(x), self.time),))))

    def at(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Return rows and columns of the grid by the numbers of cells: (m,) each."""
        (rows, columns), (height, width) = self.grid.shape, self.tile
        band, rest = np.divmod(np.asarray(indices, dtype=np.int64), height * columns)
        high = np.minimum(height, rows - band * height)
        tile, rest = np.divmod(rest, high * width)
        wide = np.minimum(width, columns - tile * width)
        row, column = np.divmod(rest, wide)
        return band * height + row, tile * width + column

    @cached_property
    def _transformer(self) -> Any:
        if self.crs is None:
            return None
        import pyproj

        return pyproj.Transformer.from_crs(crs_of(self.crs), crs_of(self.space.crs), always_xy=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the transformer, which another process makes for itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_transformer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def cells_of(field: Field, grid: Grid, *, crs: Any = None, time: float | None = None) -> tuple[Dataset, CellRows]:
    """Return the cells of a grid as a data set to predict at, and their row array.

    `crs` is the grid's, by default that of the samples.
    """
    wkt = None if crs is None else crs_of(crs).to_wkt("WKT2_2019")
    other = wkt is not None and field.space.crs is not None and not crs_of(wkt).equals(crs_of(field.space.crs))
    rows = CellRows(grid, field.space, field.variogram, wkt if other else None, time)
    about = [grid.west, grid.south, *grid.spacing, *grid.shape, rows.crs, time, list(rows.tile)]
    record = field.record
    dataset = Dataset(
        f"{grid.shape[0]:,} x {grid.shape[1]:,} cells",
        {"X": rows},
        feature_names=record.feature_names,
        target_names=(),
        standardisation=record.standardisation,
        fingerprint=hashlib.sha256(json.dumps(about).encode()).hexdigest(),
        n_samples=grid.n_cells,
        chunk_rows=rows.tile[0] * rows.tile[1],
    )
    return dataset, rows
