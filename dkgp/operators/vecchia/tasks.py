"""Tasks on bundles of leaves: stateless functions of the recipe, the arrays sent for each bundle, and the bundles.

Vectors come by bundle, its samples' rows alone, or whole where the task runs in the coordinator's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.operators.base import FloatArray, Variances
from dkgp.operators.vecchia.leaves import Bundle, Leaves, OpenBundle
from dkgp.operators.vecchia.products import backward, forward, sweep

Rows: TypeAlias = FloatArray | Mapping[int, FloatArray]
"""Rows of an n-vector: whole, or by bundle those that it needs"""


@needs_one_arithmetic
def order_task(leaves: Leaves, bundles: list[int]) -> list[None]:
    """Bring the samples into kd order."""
    leaves.points()
    return [None for _ in bundles]


@needs_one_arithmetic
def halo_task(leaves: Leaves, bundles: list[int]) -> list[tuple[NDArray[np.int32], int]]:
    """Samples that each bundle needs, and of how many of its own the halo may not be the nearest."""
    return [(bundle.samples, bundle.unproven) for bundle in map(leaves.bundle, bundles)]


@needs_one_arithmetic
def build_task(leaves: Leaves, noise: Variances | Rows, bundles: list[int]) -> list[tuple[int, int, FloatArray, float]]:
    """Make the leaves of each bundle: bytes in memory, bytes on disk, V'V (R, R), and the part of log det T."""
    results = []
    for number in bundles:
        opened = _opened(leaves, number, noise)
        gram = np.zeros((leaves.rank, leaves.rank))
        memory = disk = 0
        log_determinant = 0.0
        for place in range(len(opened.bundle.places)):
            leaf = opened.leaf(place)
            memory, disk = memory + leaf.nbytes * (not leaf.spilled), disk + leaf.nbytes * leaf.spilled
            projected = leaf.projected[:, : leaf.rank].astype(np.float64)
            gram += projected.T @ projected
            log_determinant += leaf.log_determinant
        results.append((memory, disk, gram, log_determinant))
    return results


@needs_one_arithmetic
def sweep_task(leaves: Leaves, vectors: Rows, noise: Variances | Rows, bundles: list[int]) -> list[FloatArray]:
    """T' T r of the leaves of each bundle: rows for its samples (u, t)."""
    results = []
    for number in bundles:
        opened = _opened(leaves, number, noise)
        rows = _rows_of(vectors, number, opened.bundle)
        out = np.zeros(rows.shape, rows.dtype)
        for place, places in enumerate(opened.bundle.places):
            out[places] += sweep(opened.leaf(place), rows[places])
        results.append(out)
    return results


@needs_one_arithmetic
def forward_task(
    leaves: Leaves, vectors: Rows, noise: Variances | Rows, bundles: list[int]
) -> list[tuple[FloatArray, FloatArray]]:
    """q = T r for the own samples of each bundle, and V' q: (own, t) and (R, t)."""
    results = []
    for number in bundles:
        opened = _opened(leaves, number, noise)
        rows = _rows_of(vectors, number, opened.bundle)
        images, total = [], np.zeros((leaves.rank, rows.shape[1]))
        for place, places in enumerate(opened.bundle.places):
            image, projected = forward(opened.leaf(place), rows[places])
            images.append(image)
            total += projected
        results.append((np.concatenate(images), total))
    return results


@needs_one_arithmetic
def probe_task(leaves: Leaves, count: int, seed: int, noise: Variances | Rows, bundles: list[int]) -> list[FloatArray]:
    """T' z of the leaves of each bundle, for `count` columns z of random signs: rows for its samples (u, count)."""
    results = []
    for number in bundles:
        opened, rng = _opened(leaves, number, noise), np.random.default_rng([seed, 6, number])
        out = np.zeros((len(opened.bundle.samples), count))
        for place, places in enumerate(opened.bundle.places):
            signs = rng.choice(np.array([-1.0, 1.0]), (len(places) - opened.bundle.halos[place], count))
            out[places] += backward(opened.leaf(place), signs, np.zeros((leaves.rank, count)))
        results.append(out)
    return results


@needs_one_arithmetic
def backward_task(
    leaves: Leaves,
    images: Mapping[int, FloatArray],
    weights: FloatArray,
    noise: Variances | Rows,
    bundles: list[int],
) -> list[FloatArray]:
    """T' (q - V w) of the leaves of each bundle: rows for its samples (u, t)."""
    results = []
    for number in bundles:
        opened, image = _opened(leaves, number, noise), images[number]
        out, start = np.zeros((len(opened.bundle.samples), image.shape[1])), 0
        for place, places in enumerate(opened.bundle.places):
            stop = start + len(places) - opened.bundle.halos[place]
            out[places] += backward(opened.leaf(place), image[start:stop], weights)
            start = stop
        results.append(out)
    return results


def _opened(leaves: Leaves, number: int, noise: Variances | Rows) -> OpenBundle:
    return leaves.opened(number, noise if isinstance(noise, float) else _rows_of(noise, number, leaves.bundle(number)))


def _rows_of(vectors: Rows, number: int, bundle: Bundle) -> FloatArray:
    return vectors[number] if isinstance(vectors, Mapping) else vectors[bundle.samples]
