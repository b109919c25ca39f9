"""Clusters on hosts that are reached over ssh."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from dkgp.cluster.options import KINDS, ClusterKind, ClusterOptions
from dkgp.cluster.starters.security import PRELOAD, check_settings, is_in_memory, parameters, pem_of, refuse_both
from dkgp.errors import ClusterError, UsageError
from dkgp.registry import Extra, LaterModule

dask: Any = LaterModule("dask")

_CERTIFICATE = "certificate.pem"
_CONNECT_SECONDS = 60.0


def ssh_arguments(options: ClusterOptions, security: Any) -> dict[str, Any]:
    """Return the arguments for dask's SSHCluster; the number of workers must share out evenly over the hosts."""
    from distributed import SSHCluster

    from dkgp.cluster.dashboard import LOOPBACK

    settings = options.settings
    known = parameters(SSHCluster) | {"shutdown_on_close", "silence_logs", "scheduler_sync_interval"}
    check_settings("ssh", settings, known)
    hosts = settings.get("hosts")
    hosts = [host.strip() for host in hosts.split(",")] if isinstance(hosts, str) else hosts
    if not isinstance(hosts, list) or len(hosts) < 2:
        raise UsageError(
            "`cluster` ssh needs hosts, the scheduler's first and then the workers' (the same host may come again): "
            f"`settings` hosts=head,node1,node2; got {hosts!r}"
        )
    worker = dict(settings.get("worker_options") or {})
    for name, value, option in (
        ("nthreads", options.threads_per_worker, "`threads_per_worker`"),
        ("memory_limit", options.worker_memory_bytes, "`worker_memory_bytes`"),
    ):
        if value is not None:
            refuse_both(worker, name, option)
            worker[name] = value
    if options.workers is not None:
        refuse_both(worker, "n_workers", "`workers`")
        workers_per_host, remainder = divmod(options.workers, len(hosts) - 1)
        if remainder or not workers_per_host:
            raise UsageError(
                f"{options.workers} workers cannot be shared out evenly over {len(hosts) - 1} hosts; give a multiple "
                f"of {len(hosts) - 1}, or leave `workers` out for one on each"
            )
        worker["n_workers"] = workers_per_host
    worker.setdefault("dashboard_address", LOOPBACK)
    worker.setdefault("preload", [PRELOAD])
    scheduler = {"dashboard_address": LOOPBACK, **(settings.get("scheduler_options") or {})}
    python = settings.get("remote_python") or sys.executable
    arguments = {**settings, "hosts": hosts, "worker_options": worker, "scheduler_options": scheduler}
    # -P: files in the folder that a login begins in cannot stand in for a module.
    arguments["remote_python"] = [f"{path} -P" for path in python] if isinstance(python, list) else f"{python} -P"
    if security is not None:
        worker["protocol"] = scheduler["protocol"] = "tls://"
        arguments["security"] = security
    return arguments


def _start_ssh(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    from distributed import SSHCluster

    arguments = ssh_arguments(options, security)
    if security is not None:
        # Processes on other hosts get this process's configuration, and find the certificates at the same places there.
        if is_in_memory(security):
            # Certificates in memory would travel in a command line, for all users of these hosts to read.
            place = stack.enter_context(certificates_on_hosts(arguments, security))
            tls = {"cert": place, "key": place}
            files = {"ca-file": place}
        else:
            tls, files = {}, {"ca-file": security.tls_ca_file}
        for role in ("client", "scheduler", "worker"):
            pair = tls or security.get_tls_config_for_role(role)
            files |= {f"{role}.cert": pair["cert"], f"{role}.key": pair["key"]}
        keys = {f"distributed.comm.tls.{name}": value for name, value in files.items()}
        stack.enter_context(dask.config.set({**keys, "distributed.comm.require-encryption": True}))
    return stack.enter_context(SSHCluster(**arguments))


@contextmanager
def certificates_on_hosts(arguments: Mapping[str, Any], security: Any) -> Iterator[str]:
    """Lay the certificate of this run and its key down on all hosts of an SSHCluster; remove them at the end.

    They go through ssh itself, into a file that its owner alone can read, at the same place everywhere: authority,
    certificate and key in one. By dask's own way certificates in memory would put the key into the command line of each
    process, where every user of the host sees it. `ClusterError` where a host does not take it.
    """
    # Nobody can have guessed the name, so an existing folder is this run's: two of the names may mean one host.
    folder = f"/tmp/dkgp-{secrets.token_hex(16)}"
    content = pem_of(security)
    places = _places(arguments)
    try:
        _run_on_all(places, f"umask 077 && mkdir -p {folder} && cat > {folder}/{_CERTIFICATE}", content)
        yield f"{folder}/{_CERTIFICATE}"
    finally:
        _run_on_all(places, f"rm -rf {folder}", None)


def _places(arguments: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The hosts, each once for each way to connect to it."""
    hosts, options = arguments["hosts"], arguments.get("connect_options") or {}
    ways = options if isinstance(options, list) else [options] * len(hosts)
    places: list[tuple[str, dict[str, Any]]] = []
    for place in zip(hosts, ways, strict=False):
        if place not in places:
            places.append(place)
    return places


def _run_on_all(places: list[tuple[str, dict[str, Any]]], command: str, content: str | None) -> None:
    import asyncssh

    async def run(host: str, options: dict[str, Any]) -> None:
        async with asyncssh.connect(host, **options) as connection:
            result = await connection.run(command, input=content or "")
        # Nothing to remove is no failure; nothing to go on with is.
        if content is not None and result.exit_status != 0:
            raise ClusterError(
                f"the host {host} did not take the certificate of this run (exit status {result.exit_status}); see "
                "whether its /tmp can be written to, or give `tls_ca`, `tls_cert` and `tls_key`"
            )

    async def run_all() -> list[BaseException | None]:
        tasks = (asyncio.wait_for(run(host, options), _CONNECT_SECONDS) for host, options in places)
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    # In a thread of its own: this one may be running an event loop, as a notebook's does.
    with ThreadPoolExecutor(1) as pool:
        outcomes = pool.submit(asyncio.run, run_all()).result()
    if content is not None:
        for outcome in outcomes:
            if outcome is not None:
                raise outcome


KINDS.add(
    ClusterKind(
        "ssh",
        "workers are started on hosts",
        _start_ssh,
        # dask's class fails without it after its scheduler was announced.
        extra=Extra("ssh", package="asyncssh", module="asyncssh"),
        certificates="given",
        no_workers="start `dask worker` by hand on one of the hosts and read its messages",
    )
)
