"""Processes that evaluate a product's tasks and do nothing else, without Dask: what a machine's cores allow.

They hold the vectors already, and return nothing; the tasks are shared out as workers would have them.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Self

import numpy as np

from dkgp.cluster.threads import limit_blas_threads
from dkgp.data import open_dataset
from dkgp.errors import DkgpError
from dkgp.kernels import Kernel
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.full_products import RangeRows, cut_of, matmat_task, scale_of

STOP_SECONDS = 5.0


class BareProcesses(ExitStack):
    """So many processes, started once; each call evaluates K V for the samples of the store at `url`."""

    def __init__(self, count: int, url: str, kernel: Kernel, V: FloatArray) -> None:
        super().__init__()
        self._count, self._work = count, (url, kernel, V)
        self._ends: list[Connection] = []

    def __enter__(self) -> Self:
        start = multiprocessing.get_context("spawn")
        for share in range(self._count):
            near, far = start.Pipe()
            process = start.Process(target=_serve, args=(far, share, self._count, *self._work), daemon=True)
            process.start()
            far.close()
            self.callback(process.join, STOP_SECONDS)
            self.callback(near.close)
            self._ends.append(near)
        self()  # compiled code is loaded, features are there
        return self

    def __call__(self) -> int:
        """Evaluate; return the number of tasks."""
        try:
            for end in self._ends:
                end.send(True)
            return sum(end.recv() for end in self._ends)
        except (EOFError, OSError) as error:
            raise DkgpError(f"a process of the benchmark ended by itself: {error!r}") from error


def _serve(end: Connection, share: int, of: int, url: str, kernel: Kernel, V: FloatArray) -> None:
    limit_blas_threads(1)
    dataset = open_dataset(url)
    context = BlockContext(f"bare-{os.getpid()}", dataset, kernel, dataset.n_samples)
    cut = cut_of(context.n_blocks, of)
    mine = share_of(len(cut.tasks), share, of)
    rows = [(context.bounds(first)[0], context.bounds(last - 1)[1]) for first, last in map(cut.blocks, cut.names)]
    ranges = [RangeRows(cut.blocks(name), np.ascontiguousarray(V[slice(*rows[name])])) for name in cut.names]
    work = [({name: ranges[name] for name in cut.needs[task]}, cut.tasks[task]) for task in mine]
    scale = scale_of(V, np.ones(context.n), "single", context.n_blocks)
    try:
        while end.recv():
            for needed, squares in work:
                matmat_task(context, scale, "single", None, needed, squares)
            end.send(len(work))
    except (EOFError, OSError, KeyboardInterrupt):
        pass


def share_of(tasks: int, share: int, of: int) -> range:
    """Return the tasks of one of so many workers of a thread each."""
    return range(share, tasks, of)
