"""Clusters on hosts that are reached over ssh."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import dask.config

from dkgp.cluster.kinds import KINDS, ClusterKind
from dkgp.cluster.options import ClusterOptions
from dkgp.cluster.starters.security import is_in_memory
from dkgp.cluster.starters.settings import check_settings, parameters, refuse_both
from dkgp.cluster.starters.ssh_certificates import certificates_on_hosts
from dkgp.errors import UsageError
from dkgp.registry import Extra

__all__ = ["ssh_arguments"]


def ssh_arguments(options: ClusterOptions, security: Any) -> dict[str, Any]:
    """Return the arguments for dask's SSHCluster; the number of workers must share out evenly over the hosts."""
    from distributed import SSHCluster

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
        each, left = divmod(options.workers, len(hosts) - 1)
        if left or not each:
            raise UsageError(
                f"{options.workers} workers cannot be shared out evenly over {len(hosts) - 1} hosts; give a multiple "
                f"of {len(hosts) - 1}, or leave `workers` out for one on each"
            )
        worker["n_workers"] = each
    scheduler = {"dashboard_address": "127.0.0.1:0", **(settings.get("scheduler_options") or {})}
    python = settings.get("remote_python") or sys.executable
    arguments = {**settings, "hosts": hosts, "worker_options": worker, "scheduler_options": scheduler}
    # -P: what lies in the folder that a login begins in cannot stand in for a module.
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
            # What is in memory would travel in a command line, for all users of these hosts to read.
            place = stack.enter_context(certificates_on_hosts(arguments, security))
            tls = {"cert": place, "key": place}
            found = {"ca-file": place}
        else:
            tls, found = {}, {"ca-file": security.tls_ca_file}
        for role in ("client", "scheduler", "worker"):
            files = tls or security.get_tls_config_for_role(role)
            found |= {f"{role}.cert": files["cert"], f"{role}.key": files["key"]}
        keys = {f"distributed.comm.tls.{name}": value for name, value in found.items()}
        stack.enter_context(dask.config.set({**keys, "distributed.comm.require-encryption": True}))
    return stack.enter_context(SSHCluster(**arguments))


KINDS.add(
    ClusterKind(
        "ssh",
        "workers are started on hosts",
        _start_ssh,
        # dask's class fails without it after its scheduler was announced.
        extra=Extra("ssh", package="asyncssh", module="asyncssh"),
        certificates="given",
        no_workers="look at what `dask worker` says when it is started by hand on one of the hosts",
    )
)
