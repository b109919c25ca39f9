"""Stacks of maps: a layer a simulated field or a threshold, in memory or in a Zarr store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dkgp.data.remote.storage import replaced_file, translate_write_errors
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.kriging.grids import Grid
from dkgp.kriging.rasters import consolidate, new_array, with_reference


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


def part_of(out: Path) -> Path:
    """Return the folder of an unfinished store."""
    return out.with_name(f".{out.name}.part")


@dataclass
class Store:
    """A Zarr store of layers, a chunk a tile of a layer. It has its name once it is whole: when the block ends.

    Until then it lies in a folder beside, where finished layers stay after an error or a kill.

    Attributes
    ----------
    layers : Layers
    names : tuple of str
        Variables of a layer.
    out : Path
    origin : dict
        Settings that a resumed run must share, in JSON.
    resume : bool
        Keep the finished layers of an interrupted run.
    attributes : dict
        Of the whole store.
    n_finished : int
        Layers that are finished.
    """

    layers: Layers
    names: tuple[str, ...]
    out: Path
    origin: dict[str, Any]
    resume: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    n_finished: int = 0

    def __enter__(self) -> Self:
        """Make the store in a folder beside, or open that of an interrupted run; `StorageError` if that fails."""
        with translate_write_errors(self.out):
            return self._begun()

    def _begun(self) -> Self:
        import zarr

        self._folder = part_of(self.out)
        self._part, self._state = self._folder / "layers.zarr", self._folder / "state.json"
        if self.resume and self._state.exists() and self._part.exists():
            origin, finished = json.loads(self._state.read_text())
            if origin != json.loads(self._identity):
                raise InputError(
                    f"the unfinished fields of '{self.out}' are of another model, grid or settings; pass the same, or "
                    "leave `resume` out to start afresh"
                )
            self.n_finished = finished
            # Chunks that a kill left half written.
            for chunk in self._part.rglob("*.partial"):
                chunk.unlink()
            self._group = zarr.open_group(self._part, mode="r+", use_consolidated=False)
            self._arrays: list[Any] = [self._group[name] for name in self.names]
            return self
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._create()
        return self

    @property
    def _identity(self) -> str:
        return json.dumps(self.origin, default=float)

    def _create(self) -> None:
        import zarr

        self.layers.dataset().to_zarr(self._part, mode="w", consolidated=False, zarr_format=3)
        self._group = zarr.open_group(self._part, mode="r+", use_consolidated=False)
        rows, columns = self.layers.grid.shape
        sizes = {self.layers.name: len(self.layers.labels), "y": rows, "x": columns}
        self._arrays = [new_array(self._group, name, sizes, self.layers.crs) for name in self.names]

    def finish(self, count: int) -> None:
        """Note that so many layers, from the first on, are written."""
        with translate_write_errors(self.out), replaced_file(self._state) as place:
            place.write_text(f"[{self._identity}, {count}]")
        self.n_finished = count

    def write(self, number: int, variable: int, values: FloatArray) -> None:
        """Write a layer of a variable, both by number: (rows, columns)."""
        with translate_write_errors(self.out):
            self._arrays[variable][number] = values

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the store its name; after an error, remove it if no layer is finished."""
        if kind is None:
            with translate_write_errors(self.out):
                self._conclude()
        elif not self.n_finished:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _conclude(self) -> None:
        self._group.attrs.update(self.attributes)
        consolidate(self._part)
        shutil.rmtree(self.out, ignore_errors=True)
        self._part.replace(self.out)
        shutil.rmtree(self._folder)
