"""Stacks of maps: a layer a simulated field or a threshold, in memory or in a Zarr store."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.kriging.grids import Grid
from dkgp.kriging.rasters import TILE, with_reference


@dataclass(frozen=True, eq=False)
class Layers:
    """The axes of a stack: `name` and `labels` of its layers, the cells' grid, and its CRS as WKT."""

    name: str
    labels: Any
    grid: Grid
    crs: str | None

    def dataset(self, arrays: Mapping[str, FloatArray] | None = None, attributes: Any = None) -> Any:
        """Return an xarray Dataset of arrays (layers, rows, columns)."""
        import xarray

        variables = {name: ((self.name, "y", "x"), values) for name, values in (arrays or {}).items()}
        coordinates = {self.name: self.labels, "y": self.grid.y, "x": self.grid.x}
        return with_reference(xarray.Dataset(variables, coords=coordinates, attrs=attributes), self.crs, ("y", "x"))


def layered(cells: Any, labels: Any, arrays: Mapping[str, FloatArray], like: str) -> Any:
    """Return layers by threshold, (thresholds, rows, columns) each, with the axes of a variable of a map."""
    import xarray

    variables = {name: (("threshold", *cells[like].dims), values) for name, values in arrays.items()}
    coordinates = {"threshold": np.asarray(labels, dtype=np.float64), **cells.coords}
    return xarray.Dataset(variables, coords=coordinates, attrs=cells.attrs)


@dataclass
class Store:
    """A Zarr store of layers, a chunk a tile of a layer. It has its name once it is whole: when the block ends."""

    layers: Layers
    names: tuple[str, ...]
    out: Path
    attributes: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Make the store, under a name of its own."""
        import zarr
        import zarr.codecs

        self._part = self.out.with_name(f".{self.out.name}.part")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.layers.dataset().to_zarr(self._part, mode="w", consolidated=False, zarr_format=3)
        self._group = zarr.open_group(self._part, mode="r+", use_consolidated=False)
        shape = self.layers.grid.shape
        self._arrays = [
            self._group.create_array(
                name,
                shape=(len(self.layers.labels), *shape),
                chunks=(1, *(min(size, side) for size, side in zip(TILE, shape, strict=True))),
                dtype="float64",
                compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
                fill_value=np.nan,
                dimension_names=(self.layers.name, "y", "x"),
                attributes={} if self.layers.crs is None else {"grid_mapping": "spatial_ref"},
            )
            for name in self.names
        ]
        return self

    def write(self, number: int, variable: int, values: FloatArray) -> None:
        """Write a layer of a variable, both by number: (rows, columns)."""
        self._arrays[variable][number] = values

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the store its name, or remove it after an error."""
        import zarr

        if kind is not None:
            shutil.rmtree(self._part, ignore_errors=True)
            return
        self._group.attrs.update(self.attributes)
        with warnings.catch_warnings():
            # Not in the specification of Zarr v3 yet, but xarray opens such a store in one read.
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(self._part)
        self._part.replace(self.out)
