"""The kd order of points: samples that are near each other become neighbours, in leaves of about one size.

Points are cut in two at the median of their widest feature, again and again. Equal values are ordered by the sample's
number, so that the cut is the same in every process, duplicates included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.operators.base import IndexArray

# Points that the widest feature is estimated from.
_SAMPLED = 4096


def leaf_count(n: int, leaf: int) -> int:
    """Leaves of at most `leaf` samples."""
    return -(-n // leaf)


def kd_order(points: NDArray[np.float32], leaf: int) -> tuple[NDArray[np.int32], IndexArray]:
    """Order points (n, e) by median splits on the widest feature, into leaves of at most `leaf` samples, nearly equal.

    Returns the sample at each place (n,), ascending within a leaf, and the places where leaves begin, and n.
    """
    n = len(points)
    order = np.arange(n, dtype=np.int32)
    bounds = [0]
    pending = [(0, n, leaf_count(n, leaf))]
    while pending:
        start, stop, leaves = pending.pop()
        if leaves == 1:
            bounds.append(stop)
            continue
        samples = order[start:stop].copy()
        below = leaves // 2
        size = (stop - start) * below // leaves
        sampled = points[samples[:: -(-len(samples) // _SAMPLED)]]
        keys = _keys(points[samples, int(sampled.var(axis=0, dtype=np.float64).argmax())])
        first = keys < np.partition(keys, size)[size]
        order[start : start + size], order[start + size : stop] = samples[first], samples[~first]
        pending += [(start + size, stop, leaves - below), (start, start + size, below)]
    return order, np.asarray(bounds, dtype=np.intp)


def _keys(values: NDArray[np.float32]) -> NDArray[Any]:
    """Integers that are ordered as values (m,) are, equal ones by their place."""
    bits = (values + np.float32(0.0)).view(np.uint32)  # minus zero is zero
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64)
    return (ascending << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
