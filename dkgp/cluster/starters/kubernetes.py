"""Clusters of pods, through the Dask operator (dask-kubernetes)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dkgp.cluster.options import KINDS, ClusterKind, ClusterOptions
from dkgp.cluster.starters.security import check_settings, parameters, refuse_both
from dkgp.errors import UsageError
from dkgp.registry import Extra, LaterModule

dask: Any = LaterModule("dask")

_CLOSE_SECONDS = 120


def kube_arguments(options: ClusterOptions) -> dict[str, Any]:
    """Return the arguments for dask-kubernetes' KubeCluster.

    A DaskCluster of the same name that is there already is neither taken over nor deleted, unless the settings say so.
    """
    from dask_kubernetes.operator.kubecluster.kubecluster import CreateMode, KubeCluster

    settings = options.settings
    check_settings("kubernetes", settings, parameters(KubeCluster.__init__) | {"scheduler_sync_interval"})
    if options.encrypts:
        raise UsageError(
            "dask-kubernetes starts clusters without TLS. Restrict who reaches them by a network policy and give "
            "`plain_text` instead of `tls_ca`, `tls_cert` and `tls_key`; or deploy a scheduler with certificates and "
            "give `scheduler`"
        )
    arguments: dict[str, Any] = {"quiet": True, **settings}
    if not settings.get("custom_cluster_spec"):
        environment = settings.get("env") or {}
        # As for every process that is started here: see `dkgp.cluster.connect`.
        safe = {"PYTHONSAFEPATH": "1"}
        is_mapping = isinstance(environment, dict)
        arguments["env"] = {**safe, **environment} if is_mapping else [*map(_kube_variable, safe.items()), *environment]
    mode = str(settings.get("create_mode", CreateMode.CREATE_ONLY.value))
    if mode not in CreateMode.__members__:
        raise UsageError(f"create_mode must be one of {', '.join(CreateMode.__members__)}; got {mode!r}")
    arguments["create_mode"] = CreateMode[mode]
    arguments.setdefault("shutdown_on_close", arguments["create_mode"] is CreateMode.CREATE_ONLY)
    own_image = settings.get("image") or settings.get("custom_cluster_spec") or _configured_image()
    if not own_image and arguments["create_mode"] is not CreateMode.CONNECT_ONLY:
        raise UsageError(
            "`cluster` kubernetes needs an image that holds dkgp, which Dask's own does not: give `settings` "
            "image=REGISTRY/dkgp:TAG, or a DaskCluster's manifest with `settings` custom_cluster_spec=FILE"
        )
    if not options.plain_text and arguments["create_mode"] is not CreateMode.CONNECT_ONLY:
        raise UsageError(
            "dask-kubernetes starts clusters without TLS: everyone who reaches their ports can run code there. "
            "Restrict "
            "access by a network policy and give `plain_text`; or deploy a scheduler with certificates and give "
            "`scheduler`"
        )
    arguments["n_workers"] = options.adaptive[0] if options.adaptive else options.workers
    sizes = {"cpu": options.threads_per_worker, "memory": options.worker_memory_bytes}
    resources = {name: str(value) for name, value in sizes.items() if value is not None}
    if resources:
        for name in ("resources", "custom_cluster_spec"):
            refuse_both(settings, name, "`threads_per_worker` or `worker_memory_bytes`")
        arguments["resources"] = {"requests": resources, "limits": dict(resources)}
    if options.threads_per_worker is not None:
        command = settings.get("worker_command") or dask.config.get("kubernetes.worker-command")
        words = command.split() if isinstance(command, str) else list(command)
        arguments["worker_command"] = [*words, "--nthreads", str(options.threads_per_worker)]
    return arguments


def _configured_image() -> str | None:
    image = dask.config.get("kubernetes.image", None)
    return None if image is None or str(image).startswith("ghcr.io/dask/dask:") else str(image)


def _kube_variable(variable: tuple[str, str]) -> dict[str, str]:
    return {"name": variable[0], "value": variable[1]}


def _start_kubernetes(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    arguments = kube_arguments(options)
    from dask_kubernetes.operator import KubeCluster

    cluster = KubeCluster(**arguments)
    stack.callback(cluster.close, timeout=_CLOSE_SECONDS)  # its own default is an hour
    if options.adaptive is None and options.workers is not None:
        cluster.scale(options.workers)
    return cluster


KINDS.add(
    ClusterKind(
        "kubernetes",
        "workers are pods of the Dask operator",
        _start_kubernetes,
        extra=Extra("kubernetes", package="dask-kubernetes", module="dask_kubernetes"),
        queues=True,
        adaptive={},  # scales by rules of its own
        no_workers="look at `kubectl get pods -l dask.org/component=worker` for pods that wait or fail, and at "
        "`kubectl logs` of one; `worker_wait_seconds` waits longer",
    )
)
