"""Set-up of a worker that joins: its thread and memory budgets; or its refusal."""

from __future__ import annotations

import copy
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from distributed import WorkerPlugin
from distributed.protocol.pickle import dumps, loads

import dkgp
from dkgp.cluster.arithmetic import Arithmetic
from dkgp.cluster.cache import set_worker_scratch, worker_cache
from dkgp.cluster.threads import limit_blas_threads, require_single_threaded_blas, set_process_threads

_PREFIX = "dkgp-worker-setup-"


class WorkerSetup(WorkerPlugin):
    """Prepares a worker for block tasks, late joiners included: one BLAS thread, a feature cache within a budget.

    While this is registered, a worker with another dkgp or none cannot join, nor one with an unfit processor or
    arithmetic: unpickling raises, which ends the worker before it has taken a task. (An exception of `setup`
    itself in a joining worker is only logged.)

    Prepared features may take `cache_bytes` in the worker's process. With `ignore_interrupts` a terminal's Ctrl-C is
    left to the coordinator, which stops in good order: for processes that it started itself. `client_id` and `run` tell
    the set-ups of runs that share a cluster apart, and whose coordinator is still there.
    """

    idempotent = False

    def __init__(
        self,
        cache_bytes: int,
        *,
        ignore_interrupts: bool = False,
        client_id: str = "",
        run: str = "",
    ) -> None:
        self.name = f"{_PREFIX}{client_id}/{run}"
        self._cache_bytes = cache_bytes
        self._ignore_interrupts = ignore_interrupts
        self._arithmetic: Arithmetic | None = None
        self._coordinator = (socket.gethostname(), os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the call of a function that carries its own code, which compares versions before all else."""
        return loads, (dumps(_Admission(self.__dict__)),)

    def requiring(self, arithmetic: Arithmetic) -> WorkerSetup:
        """Return this set-up for workers of one arithmetic; registered, it replaces this one."""
        setup = copy.copy(self)
        setup._arithmetic = arithmetic
        return setup

    def setup(self, worker: Any) -> None:
        """Set this worker's process up; the coordinator's own keeps its BLAS threads, which a solve limits itself."""
        worker_cache().budget_bytes = self._cache_bytes
        if (socket.gethostname(), os.getpid()) != self._coordinator:
            if self._ignore_interrupts and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            set_process_threads(int(worker.state.nthreads))
            set_worker_scratch(worker.local_directory)
            limit_blas_threads(1)
            require_single_threaded_blas(f"worker {worker.address}")


def forget_orphans(dask_scheduler: Any) -> None:
    """Remove set-ups from a scheduler whose coordinator was killed: they would keep other versions out for ever."""
    for name in list(dask_scheduler.worker_plugins):
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX).partition("/")[0] not in dask_scheduler.clients:
            del dask_scheduler.worker_plugins[name]


class _Admission:
    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return _admission(), (dkgp.__version__, self._state)


def _admission() -> Callable[[str, dict[str, Any]], Any]:
    """Return the function that makes a worker's `WorkerSetup`, or ends a worker that is of another version or unfit.

    It is a closure with its own imports, so that it is pickled whole: a worker without dkgp runs it too.
    """

    def admit(version: str, state: dict[str, Any]) -> Any:
        import logging
        import os
        import threading

        try:
            import dkgp

            installed = f"dkgp {dkgp.__version__}"
        except ImportError:
            installed = "no dkgp"
        if installed == f"dkgp {version}":
            from dkgp.cluster.arithmetic import unfit
            from dkgp.cluster.executors.worker_setup import WorkerSetup

            trouble = unfit(state["_arithmetic"])
            if trouble is None:
                setup = WorkerSetup.__new__(WorkerSetup)
                setup.__dict__.update(state)
                return setup
            message = f"the worker leaves the cluster: {trouble}"
        else:
            message = (
                f"this worker has {installed} and the run's coordinator has dkgp {version}. Results of two versions do "
                "not mix, so the worker leaves the cluster. Start it from the same image or environment as the "
                "coordinator"
            )
        logging.getLogger("distributed.worker").error(message)

        def leave() -> None:
            from distributed import Worker

            if any(worker.nanny for worker in Worker._instances):
                os._exit(1)

        # A worker that fails to start tells its nanny, which does not listen before the worker has started.
        timer = threading.Timer(3.0, leave)
        timer.daemon = True
        timer.start()
        raise RuntimeError(message)

    return admit
