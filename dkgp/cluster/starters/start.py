"""Starting clusters: on this machine, through a queueing system, on Kubernetes, by a gateway, over ssh."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from typing import Any

import dask.config

from dkgp.cluster.options import ClusterOptions
from dkgp.cluster.starters.jobqueue import JOBQUEUE_KINDS, start_jobqueue
from dkgp.cluster.starters.security import is_in_memory
from dkgp.cluster.starters.settings import check_settings, parameters, refuse_both
from dkgp.cluster.starters.ssh_certificates import certificates_on_hosts
from dkgp.cluster.threads import available_cores
from dkgp.errors import ClusterError, DkgpError, MissingExtraError, UsageError

__all__ = [
    "NO_WORKERS_HINTS",
    "gateway_arguments",
    "kube_arguments",
    "local_arguments",
    "ssh_arguments",
    "start_cluster",
]

# What to look at where a cluster's workers do not come.
NO_WORKERS_HINTS = {
    "local": "see the messages above",
    "processes": "see the messages above",
    "slurm": "look at `squeue --me` for jobs that wait for their turn, and at the jobs' output (slurm-*.out, or "
    "--cluster-option log_directory=DIR); --worker-wait waits longer",
    "pbs": "look at `qstat -u $USER` for jobs that wait for their turn, and at the jobs' output (--cluster-option "
    "log_directory=DIR); --worker-wait waits longer",
    "lsf": "look at `bjobs` for jobs that wait for their turn, and at the jobs' output (--cluster-option "
    "log_directory=DIR); --worker-wait waits longer",
    "kubernetes": "look at `kubectl get pods -l dask.org/component=worker` for pods that wait or fail, and at "
    "`kubectl logs` of one; --worker-wait waits longer",
    "gateway": "look at the cluster's page of the gateway and its workers' logs; --worker-wait waits longer",
    "ssh": "look at what `dask worker` says when it is started by hand on one of the hosts",
}

# An adaptive cluster grows where a round keeps its workers busy for longer than this, and gives a worker back that has
# been of no use for so many intervals on end: rounds are short, and so is the pause between two of them.
_ADAPTIVE = {"interval": "5s", "wait_count": 60, "target_duration": "500ms"}
_CLOSE_SECONDS = 120
# Each worker process imports the script that started it.
_SCRIPTS = {"processes": ". A Python script that starts processes must do its work under `if __name__ == '__main__':`"}
_GATEWAY_ADDRESS = ("address", "proxy_address", "public_address", "auth")


def start_cluster(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    """Start what the options ask for, to be closed with the stack.

    Raises
    ------
    UsageError
        Settings that the cluster's class does not take.
    MissingExtraError
        The package that starts such clusters is not installed.
    ClusterError
        It could not be started.
    """
    kind = "local" if options.kind == "auto" else options.kind
    if kind != "local":
        _leave_folders_out(stack)
    start = {"kubernetes": _start_kubernetes, "gateway": _start_gateway, "ssh": _start_ssh}
    if kind in JOBQUEUE_KINDS:
        start[kind] = start_jobqueue
    if (
        options.workers is None
        and options.adaptive is None
        and (kind in JOBQUEUE_KINDS or kind in ("kubernetes", "gateway"))
    ):
        raise UsageError(f"--cluster {kind} needs the number of workers: give --workers N or --adaptive MIN MAX")
    try:
        cluster = start.get(kind, _start_local)(options, security, stack)
        if options.adaptive is not None:
            least, most = options.adaptive
            more = {} if kind in ("kubernetes", "gateway") else _ADAPTIVE  # these two scale by rules of their own
            cluster.adapt(minimum=least, maximum=most, **more)
        return cluster
    except DkgpError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        given = f" (settings: {', '.join(sorted(options.settings))})" if options.settings else ""
        raise UsageError(f"--cluster {kind} could not be started as asked for{given}: {error}") from error
    except Exception as error:  # each of these packages raises what it likes
        raise ClusterError(
            f"the {kind} cluster could not be started: {_said(error)}{_SCRIPTS.get(kind, '')}"
        ) from error


def _leave_folders_out(stack: ExitStack) -> None:
    """Have processes that are started from here not import from the folder that they are started in.

    It may be one of data, and a `struct.py` that lies in it somebody else's. Where this process's own path names the
    folder, its workers still get it from there.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    stack.callback(lambda: _set_variable("PYTHONSAFEPATH", before))


def _set_variable(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


# --------------------------------------------------------------------------------------------------------- this machine


def local_arguments(options: ClusterOptions, security: Any) -> dict[str, Any]:
    """Return the arguments for dask's LocalCluster."""
    from distributed import LocalCluster, Worker

    in_process = options.kind != "processes"
    known = parameters(LocalCluster.__init__, Worker.__init__)
    check_settings(options.kind, options.settings, known - {"processes", "worker_class", "scheduler_ip", "nthreads"})
    cores = available_cores()
    least = options.adaptive[0] if options.adaptive else None
    workers = options.workers or least or (1 if in_process else cores)
    return {
        "n_workers": workers,
        "threads_per_worker": options.threads_per_worker or max(1, cores // workers),
        "processes": not in_process,
        "dashboard_address": "127.0.0.1:0",  # any free port, this machine only
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


# ----------------------------------------------------------------------------------------------------------- Kubernetes


def kube_arguments(options: ClusterOptions) -> dict[str, Any]:
    """Return the arguments for dask-kubernetes' KubeCluster.

    A DaskCluster of the same name that is there already is neither taken over nor deleted, unless the settings say so.
    """
    try:
        from dask_kubernetes.operator.kubecluster.kubecluster import CreateMode, KubeCluster
    except ImportError:
        raise MissingExtraError("dask-kubernetes", "kubernetes", "--cluster kubernetes") from None
    settings = options.settings
    check_settings("kubernetes", settings, parameters(KubeCluster.__init__) | {"scheduler_sync_interval"})
    if options.encrypts:
        raise UsageError(
            "dask-kubernetes starts clusters without TLS. Restrict who reaches them by a network policy and give "
            "--plain-text instead of --tls-ca, --tls-cert and --tls-key; or deploy a scheduler with certificates and "
            "give --scheduler"
        )
    arguments: dict[str, Any] = {"quiet": True, **settings}
    if not settings.get("custom_cluster_spec"):
        environment = settings.get("env") or {}
        # As for every process that is started here: see `_leave_folders_out`.
        safe = {"PYTHONSAFEPATH": "1"}
        given = isinstance(environment, dict)
        arguments["env"] = {**safe, **environment} if given else [*map(_kube_variable, safe.items()), *environment]
    mode = str(settings.get("create_mode", CreateMode.CREATE_ONLY.value))
    if mode not in CreateMode.__members__:
        raise UsageError(f"create_mode must be one of {', '.join(CreateMode.__members__)}; got {mode!r}")
    arguments["create_mode"] = CreateMode[mode]
    arguments.setdefault("shutdown_on_close", arguments["create_mode"] is CreateMode.CREATE_ONLY)
    own_image = settings.get("image") or settings.get("custom_cluster_spec") or _configured_image()
    if not own_image and arguments["create_mode"] is not CreateMode.CONNECT_ONLY:
        raise UsageError(
            "--cluster kubernetes needs an image that holds dkgp, which Dask's own does not: give --cluster-option "
            "image=REGISTRY/dkgp:TAG, or a DaskCluster's manifest with --cluster-option custom_cluster_spec=FILE"
        )
    if not options.plain_text and arguments["create_mode"] is not CreateMode.CONNECT_ONLY:
        raise UsageError(
            "dask-kubernetes starts clusters without TLS: whoever reaches their ports can run code there. Restrict "
            "that by a network policy and give --plain-text; or deploy a scheduler with certificates and give "
            "--scheduler"
        )
    arguments["n_workers"] = options.adaptive[0] if options.adaptive else options.workers
    sizes = {"cpu": options.threads_per_worker, "memory": options.worker_memory_bytes}
    asked = {name: str(value) for name, value in sizes.items() if value is not None}
    if asked:
        for name in ("resources", "custom_cluster_spec"):
            refuse_both(settings, name, "--threads-per-worker or --worker-memory")
        arguments["resources"] = {"requests": asked, "limits": dict(asked)}
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


# -------------------------------------------------------------------------------------------------------------- Gateway


def gateway_arguments(options: ClusterOptions, available: list[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments for dask-gateway's Gateway, and those for its `new_cluster`.

    `available` are the options that this gateway offers; None while it has not been asked.
    """
    if options.encrypts:
        raise UsageError("a gateway brings certificates of its own; leave --tls-ca, --tls-cert and --tls-key out")
    settings = options.settings
    check_settings("gateway", settings, set(settings) - {"cluster_options", "asynchronous", "loop"})
    address = {name: settings[name] for name in _GATEWAY_ADDRESS if name in settings}
    wanted = {name: value for name, value in settings.items() if name not in address}
    sizes = {"worker_cores": options.threads_per_worker, "worker_memory": options.worker_memory_bytes}
    for (name, value), option in zip(sizes.items(), ("--threads-per-worker", "--worker-memory"), strict=True):
        if value is not None:
            refuse_both(settings, name, option)
            # The option of that name that gateways offer by custom counts in GiB.
            wanted[name] = value if name == "worker_cores" else value / 2**30
    if available is not None:
        check_settings("gateway", wanted, {*available, "shutdown_on_close"})
    return address, wanted


def _start_gateway(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    try:
        from dask_gateway import Gateway
    except ImportError:
        raise MissingExtraError("dask-gateway", "gateway", "--cluster gateway") from None
    address, _ = gateway_arguments(options, None)
    gateway = stack.enter_context(Gateway(**address))
    _, wanted = gateway_arguments(options, list(gateway.cluster_options()))
    cluster = stack.enter_context(gateway.new_cluster(**wanted))
    if options.adaptive is None:
        cluster.scale(options.workers)
    return cluster


# ------------------------------------------------------------------------------------------------------------------ ssh


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
            "--cluster ssh needs hosts, the scheduler's first and then the workers' (the same host may come again): "
            f"--cluster-option hosts=head,node1,node2; got {hosts!r}"
        )
    worker = dict(settings.get("worker_options") or {})
    for name, value, option in (
        ("nthreads", options.threads_per_worker, "--threads-per-worker"),
        ("memory_limit", options.worker_memory_bytes, "--worker-memory"),
    ):
        if value is not None:
            refuse_both(worker, name, option)
            worker[name] = value
    if options.workers is not None:
        refuse_both(worker, "n_workers", "--workers")
        each, left = divmod(options.workers, len(hosts) - 1)
        if left or not each:
            raise UsageError(
                f"{options.workers} workers cannot be shared out evenly over {len(hosts) - 1} hosts; give a multiple "
                f"of {len(hosts) - 1}, or leave --workers out for one on each"
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
    try:
        import asyncssh  # noqa: F401  - dask's class fails without it after its scheduler was announced
    except ImportError:
        raise MissingExtraError("asyncssh", "ssh", "--cluster ssh") from None
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


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text.rstrip(".") or type(error).__name__
