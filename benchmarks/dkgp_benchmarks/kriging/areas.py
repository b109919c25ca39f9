"""Block kriging of random polygons beside the averages of point predictions on fine lattices."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dkgp.kriging import Kriging

# Corners of a polygon; lattice points a side of its bounding box.
_CORNERS, _SIDE = 12, 60


def polygons(count: int, seed: int) -> list[Any]:
    """Draw star-shaped polygons in the unit square."""
    import shapely

    rng = np.random.default_rng(seed)
    shapes = []
    for x, y, size in rng.uniform((0.05, 0.05, 0.005), (0.95, 0.95, 0.06), (count, 3)):
        angle, radius = np.sort(rng.uniform(0.0, 2.0 * np.pi, _CORNERS)), size * rng.uniform(0.5, 1.0, _CORNERS)
        shape = shapely.Polygon(np.column_stack([x + radius * np.cos(angle), y + radius * np.sin(angle)]))
        shapes.append(shape if shapely.is_valid(shape) else shape.convex_hull)
    return shapes


def areas_row(kriging: Kriging, count: int, seed: int) -> dict[str, Any]:
    """Return the row of block kriging: seconds, and the largest difference from averages of predictions at points."""
    import shapely

    shapes = polygons(count, seed)
    began = time.perf_counter()
    table = kriging.blocks(shapes)
    seconds = time.perf_counter() - began
    points, block = [], []
    for number, shape in enumerate(shapes):
        west, south, east, north = shape.bounds
        share = (np.arange(_SIDE) + 0.5) / _SIDE
        x, y = (one.reshape(-1) for one in np.meshgrid(west + share * (east - west), south + share * (north - south)))
        inside = shapely.contains_xy(shape, x, y)
        points.append(np.column_stack([x, y])[inside])
        block.append(np.full(int(inside.sum()), number))
    places, number_of = np.concatenate(points), np.concatenate(block)
    began = time.perf_counter()
    mean = kriging.predict(tuple(places.T))
    by_points = time.perf_counter() - began
    averages = np.bincount(number_of, mean) / np.bincount(number_of)
    width = float(np.max((table["variance_upper"] - table["variance_lower"]) / table["variance_upper"]))
    return {
        "program": "dkgp blocks",
        "seconds": seconds,
        "difference": float(np.abs(table["mean"] - averages).max()),
        "bound": float(table["mean_error_bound"].max()),
        "variance_width": width,
        "note": f"{count:,} polygons; means of {len(places):,} points take {by_points:.1f} s. Bounds of means up to "
        f"{table['mean_error_bound'].max():.1e}, intervals of variances up to {100.0 * width:.2g} % wide",
    }
