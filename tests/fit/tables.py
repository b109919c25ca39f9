"""Tables as people have them: text, dates, gaps, repeats, an id, a skewed target whose noise grows with it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

CUTS = ("fair", "good", "ideal")
HOSTILE = "<script>alert('carat')</script>"


def write_messy(
    path: Path, n: int = 240, *, carat: str = "carat", price: str = "price", seed: int = 0, noise: float = 0.05
) -> Path:
    """Write a CSV of n rows and some repeats, with a skewed positive target, and a label of two kinds.

    The target's noise has the deviation `noise` times what is expected of it.
    """
    rng = np.random.default_rng(seed)
    size, depth = rng.lognormal(0.0, 0.4, n), rng.normal(60.0, 2.0, n)
    cut, day = rng.integers(0, 3, n), rng.integers(0, 365, n)
    worth = np.exp(6.0 + 1.3 * np.log(size) + 0.2 * cut) * np.maximum(1.0 + noise * rng.standard_normal(n), 0.05)
    rows = []
    for i in range(n):
        date = np.datetime64("2021-01-01") + int(day[i])
        gap = "" if i % 29 == 5 else f"{depth[i]:.2f}"
        kind = "dear" if worth[i] > np.median(worth) else "cheap"
        rows.append([i + 1, f"{size[i]:.4f}", CUTS[cut[i]], gap, str(date), kind, f"{worth[i]:.2f}"])
    rows += rows[:5]
    for number, row in enumerate(rows):
        rows[number] = [number + 1, *row[1:]]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", carat, "cut", "depth", "sold", "kind", price])
        writer.writerows(rows)
    return path
