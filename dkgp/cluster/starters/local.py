"""Clusters on this machine: none at all, in this process, or of worker processes."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from dkgp.cluster.options import ADAPTIVE_LOCALLY, KINDS, ClusterKind, ClusterOptions
from dkgp.cluster.starters.security import PRELOAD, check_settings, parameters
from dkgp.cluster.threads import available_cores
from dkgp.registry import LaterModule

dask: Any = LaterModule("dask")


def local_arguments(options: ClusterOptions, security: Any) -> dict[str, Any]:
    """Return the arguments for dask's LocalCluster."""
    from distributed import LocalCluster, Worker

    from dkgp.cluster.dashboard import LOOPBACK

    in_process = KINDS.find(options.kind).in_process
    known = parameters(LocalCluster.__init__, Worker.__init__)
    check_settings(options.kind, options.settings, known - {"processes", "worker_class", "scheduler_ip", "nthreads"})
    cores = available_cores()
    least = options.adaptive[0] if options.adaptive else None
    preload = [PRELOAD, *dask.config.get("distributed.worker.preload")]
    workers = options.workers or least or (1 if in_process else cores)
    return {
        "n_workers": workers,
        "threads_per_worker": options.threads_per_worker or max(1, cores // max(workers, options.most_workers)),
        "processes": not in_process,
        # Any free port, this machine only; without an address the pages of workers in this process are everybody's.
        "dashboard_address": LOOPBACK,
        **({"worker_dashboard_address": LOOPBACK} if in_process else {"preload": preload}),
        "host": None if in_process else "127.0.0.1",
        # Memory is planned before the run; spilling a stateless task's results helps nobody.
        "memory_limit": options.worker_memory_bytes or 0,
        "silence_logs": logging.ERROR,
        # In one process nothing passes through a socket that could be listened to.
        **({} if in_process or security is None else {"security": security, "protocol": "tls://"}),
        **options.settings,
    }


def _start_local(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    from distributed import LocalCluster

    return stack.enter_context(LocalCluster(**local_arguments(options, security)))


KINDS.add(
    ClusterKind(
        "auto",
        "the scheduler in dask's configuration (DASK_SCHEDULER_ADDRESS), else none for small problems and local for "
        "the rest",
        _start_local,
        in_process=True,
        takes_settings=False,
    )
)
KINDS.add(ClusterKind("none", "this process's threads, no Dask", None, takes_settings=False))
KINDS.add(ClusterKind("local", "a Dask cluster in this process", _start_local, in_process=True))
KINDS.add(
    ClusterKind(
        "processes",
        "worker processes",
        _start_local,
        certificates="given",
        on_this_machine=True,
        adaptive=ADAPTIVE_LOCALLY,
        # Each worker process imports the script that started it.
        failure_hint=". A Python script that starts processes must do its work under `if __name__ == '__main__':`",
    )
)
