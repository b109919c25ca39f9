"""Cloud-optimised GeoTIFF of a map, written by windows, with overviews that keep bounds proven.

Numbers are of single precision: ends of intervals and bounds are rounded outward, and the rounding of the mean is added
to its bound. Overviews average means, and take the greatest of bounds and upper ends and the least of lower ends; the
bound of an averaged mean includes its rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.kriging.cells import CellRows

# Side of the tiles. Windows of so many rows have whole cells of every overview, to the level of the side.
SIDE = 512
Kinds = Mapping[str, tuple[int, str]]


class Cells(Protocol):
    """A map that is read by windows; see `dkgp.kriging.rasters.CellMap`."""

    @property
    def rows(self) -> CellRows:
        """The cells."""

    @property
    def variables(self) -> dict[str, tuple[int, str]]:
        """Target and kind of each variable."""

    @property
    def attributes(self) -> dict[str, Any]:
        """Origin of the map."""

    @property
    def crs(self) -> str | None:
        """CRS as WKT."""

    def values(self, first: int, last: int) -> dict[str, FloatArray]:
        """Return the variables of rows from the south, NaN where there is no cell."""


def write_geotiff(cells: Cells, out: Path) -> None:
    """Write a cloud-optimised GeoTIFF with a band for each variable; the folder of `out` has room for its parts."""
    import rasterio
    import rasterio.shutil
    from rasterio.windows import Window

    grid, kinds = cells.rows.grid, cells.variables
    north, east = grid.spacing
    height, width = grid.shape
    corner = float(grid.west - 0.5 * east), float(grid.y[-1] + 0.5 * north)
    levels = [1]
    while max(grid.shape) / levels[-1] > SIDE and levels[-1] < SIDE:
        levels.append(levels[-1] * 2)
    sources = {name: [f"{number}-{level}.tif" for level in levels] for number, name in enumerate(kinds)}
    with ExitStack() as stack:
        files = {}
        for name, paths in sources.items():
            for level, path in zip(levels, paths, strict=True):
                files[name, level] = stack.enter_context(
                    rasterio.open(
                        out.parent / path,
                        "w",
                        driver="GTiff",
                        height=math.ceil(height / level),
                        width=math.ceil(width / level),
                        count=1,
                        dtype="float32",
                        nodata=np.nan,
                        transform=rasterio.Affine(east * level, 0.0, corner[0], 0.0, -north * level, corner[1]),
                        tiled=True,
                        blockxsize=SIDE,
                        blockysize=SIDE,
                        bigtiff="if_safer",
                    )
                )
        for top in range(0, height, SIDE):
            wide = cells.values(max(0, height - top - SIDE), height - top)
            part = {name: values[::-1] for name, values in to_single(kinds, wide).items()}
            for level in levels:
                if level > 1:
                    part = halved(kinds, part)
                for name, values in part.items():
                    rows, columns = values.shape
                    files[name, level].write(values, 1, window=Window(0, top // level, columns, rows))
    described = out.parent / "all.vrt"
    described.write_text(_virtual(grid.shape, sources, (corner[0], east, 0.0, corner[1], 0.0, -north), cells))
    rasterio.shutil.copy(
        described,
        out,
        driver="COG",
        compress="deflate",
        predictor="yes",
        blocksize=SIDE,
        overviews="AUTO",
        bigtiff="if_safer",
    )


def to_single(kinds: Kinds, values: Mapping[str, FloatArray]) -> dict[str, Any]:
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
            single[name] = _upward(wide)
        elif kind == "variance_lower":
            single[name] = -_upward(-wide)
    return single


def halved(kinds: Kinds, values: Mapping[str, Any]) -> dict[str, Any]:
    """Join 2 x 2 cells of variables of single precision; an odd last row or column is joined alone, NaN left out."""
    blocks = {name: _blocks(array) for name, array in values.items()}
    joined, off = {}, {}
    for name, (target, kind) in kinds.items():
        if kind in ("mean", "variance"):
            wide = blocks[name].astype(np.float64)
            with np.errstate(invalid="ignore"):
                mean = np.nansum(wide, axis=0) / np.isfinite(wide).sum(axis=0)
            joined[name] = mean.astype(np.float32)
            if kind == "mean":
                most = np.fmax.reduce(np.abs(wide), axis=0)
                off[target] = np.abs(joined[name].astype(np.float64) - mean) + 8.0 * np.finfo(np.float64).eps * most
        else:
            least = kind in ("variance_lower", "interval_met")
            joined[name] = (np.fmin if least else np.fmax).reduce(blocks[name], axis=0)
    for name, (target, kind) in kinds.items():
        if kind == "mean_error_bound":
            joined[name] = _upward(np.nextafter(joined[name].astype(np.float64) + off[target], np.inf))
    return joined


def _blocks(values: Any) -> Any:
    """Return the four cells of each block: (4, rows, columns)."""
    rows, columns = values.shape
    padded = np.full((rows + rows % 2, columns + columns % 2), np.nan, dtype=np.float32)
    padded[:rows, :columns] = values
    return np.stack([padded[i::2, j::2] for i in (0, 1) for j in (0, 1)])


def _upward(wide: FloatArray) -> Any:
    """Return the least numbers of single precision that are not below."""
    single = wide.astype(np.float32)
    return np.where(single.astype(np.float64) < wide, np.nextafter(single, np.float32(np.inf)), single)


def _virtual(
    shape: tuple[int, int], sources: Mapping[str, list[str]], transform: tuple[float, ...], cells: Cells
) -> str:
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
        f"<GeoTransform>{','.join(map(repr, transform))}</GeoTransform><Metadata>{items}</Metadata>"
        f"{''.join(bands)}</VRTDataset>"
    )
