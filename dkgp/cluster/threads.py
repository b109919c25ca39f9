"""The thread budget: BLAS and compiled threads times Dask threads equals the cores, in coordinator and workers alike.

The tile loops are single-threaded and run side by side, one to a core; the coordinator's dense algebra is many small
operations. A BLAS that starts threads of its own inside either makes both several times slower, so it gets one thread
while a solve runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from contextvars import copy_context

from threadpoolctl import LibController, ThreadpoolController

from dkgp.errors import ClusterError
from dkgp.forks import ForkSafePool, fork_safe

_lock = fork_safe(threading.Lock())
# Open contexts of `single_threaded_blas`: of the process, and of this thread.
_depth = 0
_of_thread = threading.local()
_restore: list[tuple[LibController, int]] = []
_controller: ThreadpoolController | None = None


def available_cores() -> int:
    """Cores that this process may run on (its affinity, not the machine's count)."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # macOS and Windows have no affinity call
        return max(1, os.cpu_count() or 1)


_process_threads: int | None = None
_whole_process = fork_safe(threading.RLock())


def process_threads() -> int:
    """Threads that this process may keep busy: a worker's task threads, all cores in a coordinator."""
    return _process_threads or available_cores()


def set_process_threads(threads: int) -> None:
    """Set the number that `process_threads` returns; called in worker processes."""
    global _process_threads
    _process_threads = threads


@contextmanager
def whole_process() -> Iterator[int]:
    """Take turns with this process's other tasks that need its memory or all its threads; yields their number."""
    with _whole_process:
        yield process_threads()


_helpers: ForkSafePool | None = None


def in_parallel(work: Callable[[int], None], count: int, threads: int | None = None) -> None:
    """Call `work(0) .. work(count - 1)`, shared between this thread and the coordinator's helpers.

    The pieces must not depend on each other, and their number must not depend on that of threads, so that the result
    does not either. Calls may nest. When a piece raises, no further ones are begun, and the exception is raised once
    the pieces under way have ended. `work` must release the GIL; `threads` are as many as there are cores by default.
    """
    global _helpers
    helpers = min(threads or available_cores(), count) - 1
    if helpers < 1:
        for index in range(count):
            work(index)
        return
    with _lock:
        if _helpers is None:
            _helpers = ForkSafePool(max(1, available_cores() - 1), "dkgp-helper")
    pieces = iter(range(count))  # next() on it is atomic: threads take pieces as they get to them
    failed = threading.Event()

    def take() -> None:
        try:
            for index in pieces:
                if failed.is_set():
                    return
                work(index)
        except BaseException:
            failed.set()
            raise

    futures = [_helpers.submit(copy_context().run, take) for _ in range(helpers)]
    try:
        take()
    finally:
        # A helper that is busy elsewhere has nothing left to do here, and may be waiting for this very thread.
        started = [future for future in futures if not future.cancel()]
        wait(started)
    for future in started:
        future.result()


def _blas() -> ThreadpoolController:
    global _controller
    if _controller is None:
        import numpy.linalg  # noqa: F401  - both copies of BLAS must be loaded before they can be found
        import scipy.linalg  # noqa: F401

        _controller = ThreadpoolController()
    return _controller


def blas_libraries() -> list[LibController]:
    """Each BLAS that this process has loaded."""
    return [library for library in _blas().lib_controllers if library.user_api == "blas"]


def _set_blas_threads(library: LibController, threads: int) -> None:
    # Recent threadpoolctl lets one thread of the process, the first to try, set OpenBLAS's count and silently ignores
    # all others. A solve may run in any thread; the lock here keeps two from getting into each other's way.
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    library.set_num_threads(threads)
    if release is not None:
        release(force=True)


def limit_blas_threads(threads: int = 1) -> None:
    """Set this process's BLAS thread count for good; called when a worker starts."""
    for library in blas_libraries():
        _set_blas_threads(library, threads)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Give BLAS one thread while the context is open; contexts may nest and overlap across threads.

    BLAS thread counts belong to the process, so the count from before the first context returns when the last one
    closes. threadpoolctl's own context restores the count from its opening, which another context may have set.
    """
    global _depth
    with _lock:
        _depth += 1
        _of_thread.depth = getattr(_of_thread, "depth", 0) + 1
        if _depth == 1:
            for library in blas_libraries():
                if (threads := library.num_threads) != 1:
                    _restore.append((library, threads))
                    _set_blas_threads(library, 1)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            _of_thread.depth -= 1
            _restore_blas_threads()


def _restore_blas_threads() -> None:
    if _depth == 0:
        for library, threads in _restore:
            _set_blas_threads(library, threads)
        _restore.clear()


def _close_contexts_of_other_threads() -> None:
    """In a forked child no other thread will close its context."""
    global _depth
    _depth = getattr(_of_thread, "depth", 0)
    _restore_blas_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_contexts_of_other_threads)


def require_single_threaded_blas(where: str) -> None:
    """Raise `ClusterError` where some BLAS of this process still runs several threads.

    Every task would fight for every core.
    """
    for library in blas_libraries():
        if library.num_threads > 1:
            raise ClusterError(
                f"{where}: BLAS runs {library.num_threads} threads beside the task threads ({library.filepath}); "
                "expected 1. Start workers through dkgp, or set OPENBLAS_NUM_THREADS=1 and MKL_NUM_THREADS=1 for them"
            )
