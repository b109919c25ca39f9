"""Matrix tiles in this process's memory, in the place of a `TileStore`: for threads that share it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dkgp.data.types import Json
from dkgp.errors import StoreError


class Tiles(Protocol):
    """A place for the tiles of a factor: in a folder (`TileStore`), or in memory."""

    url: str

    def create(self, description: Json) -> None:
        """Begin, and say of what the tiles will be."""

    def description(self) -> Json | None:
        """Return what `create` was told; None where there are no tiles to take over."""

    def names(self) -> set[str]:
        """Return the names of the tiles that are there."""

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Write one tile, whole or not at all."""

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read one tile of a known shape; `StoreError` where it is missing or damaged."""

    def remove(self, name: str) -> None:
        """Remove one tile."""

    def drop_temporaries(self) -> None:
        """Remove what killed writers left."""

    def clear(self) -> None:
        """Remove all."""

    def free_bytes(self) -> int | None:
        """Return what there is room for; None where that cannot be known."""


class MemoryTiles:
    """Tiles by name, handed out as they are: nobody changes one after it is written. Not for other processes.

    Parameters
    ----------
    nbytes : int
        What all of them will take.
    """

    url = "memory"

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        self._tiles: dict[str, NDArray[Any]] = {}
        self._description: Json | None = None

    def __reduce__(self) -> str:
        raise TypeError("tiles in memory serve the process that they are in; workers elsewhere need a folder")

    def create(self, description: Json) -> None:
        """Begin anew."""
        self._tiles.clear()
        self.begin(description)

    def begin(self, description: Json) -> None:
        """Say of what the tiles are that are there."""
        self._description = description

    def description(self) -> Json | None:
        """Return what `create` was told; None before."""
        return self._description

    def names(self) -> set[str]:
        """Return the names of the tiles."""
        return set(self._tiles)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Keep one tile."""
        self._tiles[name] = np.ascontiguousarray(values)

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return one tile, the array itself."""
        tile = self._tiles.get(name)
        if tile is None or tile.shape != shape or tile.dtype != dtype:
            raise StoreError(f"there is no tile {name} of shape {shape} in memory")
        return tile

    def remove(self, name: str) -> None:
        """Drop one tile."""
        self._tiles.pop(name, None)

    def drop_temporaries(self) -> None:
        """Nothing is ever half written."""

    def clear(self) -> None:
        """Drop all."""
        self._tiles.clear()
        self._description = None

    def free_bytes(self) -> int | None:
        """Whoever made it has looked at the memory."""
        return None
