"""Time of kernel entries in pairs of blocks while all cores are at it: what the machine allows."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dkgp.cluster.threads import available_cores
from dkgp.kernels import Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision

# Rows of the pair of blocks that is timed, and for how long: a block of the products themselves.
PAIR_ROWS, LEAST_SECONDS = 8192, 0.5


def entry_seconds(kernel: Kernel, precision: Precision, cores: int | None = None) -> float:
    """Seconds of one core for an entry that serves its row and its column, while so many cores are at it.

    Parameters
    ----------
    precision : {"single", "double"}
        Of the tiles.
    cores : int, optional
        What this process may use by default.
    """
    cores = cores or available_cores()
    evaluator = TileEvaluator(kernel, precision)
    rng = np.random.default_rng(0)
    left, right = (evaluator.prepare(rng.standard_normal((PAIR_ROWS, kernel.n_features))) for _ in range(2))
    weights = np.ones((PAIR_ROWS, 1))

    def work(_: int) -> int:
        count, until = 0, time.perf_counter() + LEAST_SECONDS
        while time.perf_counter() < until:
            evaluator.pair(left, right, weights, weights)
            count += 1
        return count

    evaluator.pair(left, right, weights, weights)  # compiled, and in the caches
    with ThreadPoolExecutor(cores) as pool:
        began = time.perf_counter()
        pairs = sum(pool.map(work, range(cores)))
        return (time.perf_counter() - began) * cores / (pairs * PAIR_ROWS**2)
