"""Clusters that a Dask Gateway starts."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dkgp.cluster.options import KINDS, ClusterKind, ClusterOptions
from dkgp.cluster.starters.security import check_settings, refuse_both
from dkgp.errors import UsageError
from dkgp.registry import Extra

_GATEWAY_ADDRESS = ("address", "proxy_address", "public_address", "auth")


def gateway_arguments(options: ClusterOptions, available: list[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments for dask-gateway's Gateway, and those for its `new_cluster`.

    `available` are the options that this gateway offers; None while it has not been asked.
    """
    if options.encrypts:
        raise UsageError("a gateway brings certificates of its own; leave `tls_ca`, `tls_cert` and `tls_key` out")
    settings = options.settings
    check_settings("gateway", settings, set(settings) - {"cluster_options", "asynchronous", "loop"})
    address = {name: settings[name] for name in _GATEWAY_ADDRESS if name in settings}
    cluster_settings = {name: value for name, value in settings.items() if name not in address}
    sizes = {"worker_cores": options.threads_per_worker, "worker_memory": options.worker_memory_bytes}
    for (name, value), option in zip(sizes.items(), ("`threads_per_worker`", "`worker_memory_bytes`"), strict=True):
        if value is not None:
            refuse_both(settings, name, option)
            # The option of that name that gateways offer by custom counts in GiB.
            cluster_settings[name] = value if name == "worker_cores" else value / 2**30
    if available is not None:
        check_settings("gateway", cluster_settings, {*available, "shutdown_on_close"})
    return address, cluster_settings


def _start_gateway(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    from dask_gateway import Gateway

    address, _ = gateway_arguments(options, None)
    gateway = stack.enter_context(Gateway(**address))
    _, cluster_settings = gateway_arguments(options, list(gateway.cluster_options()))
    cluster = stack.enter_context(gateway.new_cluster(**cluster_settings))
    if options.adaptive is None:
        cluster.scale(options.workers)
    return cluster


KINDS.add(
    ClusterKind(
        "gateway",
        "workers of a Dask Gateway",
        _start_gateway,
        extra=Extra("gateway", package="dask-gateway", module="dask_gateway"),
        certificates="own",
        queues=True,
        adaptive={},  # scales by rules of its own
        no_workers="look at the cluster's page of the gateway, and workers' logs; `worker_wait_seconds` waits longer",
    )
)
