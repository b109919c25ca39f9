"""Preload module of Dask workers: `dask worker ADDRESS --preload dkgp.operators.preload`.

A worker gets tasks as soon as it has registered, and a round waits for its last task. Imports and the first use of
compiled code take a second of processor time. With this module a worker that joins in mid-run does both before it
registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Modules of the tasks, and of the stores that they read: names of layers, and Zarr, are loaded on first use.
from dkgp.data.remote import zarr_store  # noqa: F401
from dkgp.data.stores import dataset  # noqa: F401
from dkgp.operators import blocked  # noqa: F401
from dkgp.operators.exact_sums import Scale


def dask_setup(worker: Any) -> None:
    """Use a compiled loop once: Numba loads its tables of types and functions with the first."""
    scale = Scale(np.zeros(1, np.int64), 1)
    scale.add(scale.zeros(1), np.zeros((1, 1)))
