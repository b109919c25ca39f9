"""Clusters whose workers are jobs of SLURM, PBS or LSF, through dask-jobqueue."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from contextlib import ExitStack
from typing import Any

from dkgp.cluster.options import ADAPTIVE_LOCALLY, KINDS, ClusterKind, ClusterOptions
from dkgp.cluster.starters.security import PRELOAD, check_settings, in_files, is_in_memory, parameters, refuse_both
from dkgp.errors import ClusterError, UsageError
from dkgp.registry import Extra, LaterModule

dask: Any = LaterModule("dask")

# Of the walltime: a worker's time to start, and to hand over its last results before the queueing system kills it.
_SLACK_SHARE, _LEAST_SLACK_SECONDS, _MOST_SLACK_SECONDS = 0.1, 60.0, 600.0
# A job that is over is replaced within this time (plus dask's own patience with a worker that may come back).
_REPLACE_INTERVAL = "5s"
_SUBMIT_SECONDS = 120.0


def cluster_class(kind: str) -> Any:
    """Return dask-jobqueue's class for the kind."""
    import dask_jobqueue

    return getattr(dask_jobqueue, f"{kind.upper()}Cluster")


def job_arguments(options: ClusterOptions, security: Any = None) -> dict[str, Any]:
    """Return the arguments for dask-jobqueue's class: those of the options, over its own configuration.

    `UsageError` for unknown settings, something given twice, or a size that neither options nor configuration tell.
    """
    from dask_jobqueue import core

    from dkgp.cluster.dashboard import LOOPBACK

    kind, settings = options.kind, dict(options.settings)
    known = parameters(core.JobQueueCluster.__init__, core.Job.__init__, cluster_class(kind).job_cls.__init__)
    check_settings(kind, settings, known - {"job_cls", "scheduler", "scheduler_cls"})
    section = f"jobqueue.{settings.get('config_name', kind)}"
    configured = dask.config.get(section, None)
    if not isinstance(configured, dict):
        raise UsageError(f"dask's configuration has no section {section!r} for the setting config_name")
    # The tile loops run without the GIL: one process with all threads of a job keeps one feature cache, not several.
    processes = _whole("processes", settings.get("processes") or configured.get("processes") or 1)
    arguments: dict[str, Any] = {**settings, "processes": processes}
    if options.threads_per_worker is not None:
        refuse_both(settings, "cores", "`threads_per_worker`")
        arguments["cores"] = options.threads_per_worker * processes
    if options.worker_memory_bytes is not None:
        refuse_both(settings, "memory", "`worker_memory_bytes`")
        arguments["memory"] = f"{options.worker_memory_bytes * processes}B"
    _require_sizes(kind, arguments, configured)
    extra = arguments.get("worker_extra_args")
    extra = list(configured.get("worker-extra-args") or []) if extra is None else list(extra)
    walltime = arguments.get("walltime") or configured.get("walltime")
    if walltime and not any(str(argument).startswith("--lifetime") for argument in extra):
        extra += lifetime_arguments(walltime_seconds(kind, str(walltime)))
    if not any(str(argument).startswith("--dashboard-address") for argument in extra):
        extra += ["--dashboard-address", LOOPBACK]
    if PRELOAD not in extra:
        extra += ["--preload", PRELOAD]
    arguments["worker_extra_args"] = extra
    # Jobs side by side on one login node cannot all have the default port; nor is the page for every user of that node.
    scheduler = arguments.get("scheduler_options") or configured.get("scheduler-options") or {}
    arguments["scheduler_options"] = {"dashboard_address": LOOPBACK, **scheduler}
    if security is not None:
        arguments["security"] = security
    # -P: files in the folder that a job begins in cannot stand in for a module.
    python = settings.get("python") or configured.get("python") or sys.executable
    arguments["python"] = f"{python} -P"
    return arguments


def start_jobqueue(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    """Start a scheduler here and submit the workers; `ClusterError` where no queue takes them."""
    kind, jobqueue = options.kind, cluster_class(options.kind)
    if security is not None and is_in_memory(security):
        # By itself dask-jobqueue leaves the key behind for as long as its own objects live.
        security = stack.enter_context(in_files(security, _shared_folder(options)))
    arguments = job_arguments(options, security)
    command = jobqueue.job_cls.submit_command
    if shutil.which(command.split()[0]) is None:
        raise ClusterError(
            f"`cluster` {kind} submits jobs with `{command}`, which is not on this machine's PATH. Run dkgp on a host "
            "from which jobs can be submitted"
        )
    cluster = stack.enter_context(jobqueue(**arguments))
    least = options.adaptive[0] if options.adaptive else options.workers or 1
    jobs = math.ceil(least / arguments["processes"])
    while len(cluster.worker_spec) < jobs:
        cluster.worker_spec.update(cluster.new_worker_spec())
    try:
        # By itself `scale` submits in the background, and the queueing system's refusal of a job goes to a log.
        cluster.sync(cluster._correct_state, callback_timeout=_SUBMIT_SECONDS)
    except (RuntimeError, OSError, ValueError, TimeoutError) as error:
        reason = _reason(error)
        # Closing checks that no worker is left half started; this error's traceback would keep them.
        error.__traceback__ = None
        raise ClusterError(f"`{command}` did not take the workers' jobs: {reason}") from None
    if options.adaptive is None:
        # Jobs that reach their walltime, or are lost, are submitted again: a "fixed" cluster would melt away.
        size = jobs * arguments["processes"]
        cluster.adapt(minimum=size, maximum=size, interval=_REPLACE_INTERVAL)
    return cluster


def _shared_folder(options: ClusterOptions) -> str:
    """The folder of this run's own certificates, for the workers to read: the nodes of most sites see one home."""
    configured = dask.config.get(f"jobqueue.{options.kind}.shared-temp-directory", None)
    return os.path.expanduser(os.path.expandvars(options.settings.get("shared_temp_directory") or configured or "~"))


def lifetime_arguments(walltime: float) -> list[str]:
    """Return arguments that make workers leave in good order before their jobs are killed, and not all at once."""
    slack = min(max(_SLACK_SHARE * walltime, _LEAST_SLACK_SECONDS), _MOST_SLACK_SECONDS, walltime / 2)
    return ["--lifetime", f"{walltime - slack:.0f}s", "--lifetime-stagger", f"{slack / 2:.0f}s"]


def walltime_seconds(kind: str, walltime: str) -> float:
    """Read a walltime as the queueing system does.

    SLURM: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS; PBS: seconds, MM:SS, HH:MM:SS; LSF: minutes, HH:MM.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+(?:\.\d+)?))?", walltime.strip())
    days = match[1] if match else None
    if match is None or (days is not None and kind != "slurm") or (kind == "lsf" and match[4]):
        raise UsageError(f"{walltime!r} is no walltime that {kind} knows; write it as {_WALLTIMES[kind]}")
    parts = [float(part) for part in match.group(2, 3, 4) if part is not None]
    if days is not None:
        weights: tuple[float, ...] = (3600, 60, 1)
        return 86400 * float(days) + sum(part * weight for part, weight in zip(parts, weights, strict=False))
    last = {"slurm": (60, 1, 1), "pbs": (1, 1, 1), "lsf": (60, 60, 60)}[kind][len(parts) - 1]
    return sum(part * last * 60.0**power for power, part in enumerate(reversed(parts)))


_WALLTIMES = {"slurm": "HH:MM:SS or D-HH:MM:SS", "pbs": "HH:MM:SS", "lsf": "HH:MM"}


def _require_sizes(kind: str, arguments: dict[str, Any], configured: dict[str, Any]) -> None:
    needed = {"cores": "`threads_per_worker` N", "memory": "`worker_memory_bytes` SIZE"}
    missing = [name for name in needed if not (arguments.get(name) or configured.get(name))]
    if missing:
        raise UsageError(
            f"`cluster` {kind} needs the {' and the '.join(missing)} of a job. Give "
            f"{' and '.join(needed[name] for name in missing)}, or set {' and '.join(missing)} under jobqueue.{kind} "
            "in ~/.config/dask/jobqueue.yaml"
        )


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} must be a whole number from 1; got {value!r}")
    return value


def _reason(error: BaseException) -> str:
    """Return the command's own output, out of dask-jobqueue's report of it."""
    text = str(error).partition("stderr:")[2].strip() or str(error).strip()
    return " ".join(text.split()) or type(error).__name__


def _declare(name: str, waiting_jobs: str, output: str) -> None:
    KINDS.add(
        ClusterKind(
            name,
            "workers are jobs of that queueing system",
            start_jobqueue,
            extra=Extra("jobqueue", package="dask-jobqueue", module="dask_jobqueue"),
            certificates="given",
            queues=True,
            adaptive=ADAPTIVE_LOCALLY,
            log_setting=f"jobqueue.{name}.log-directory",
            no_workers=f"look at `{waiting_jobs}` for jobs that wait for their turn, and at the jobs' output ({output}"
            "`settings` log_directory=DIR); `worker_wait_seconds` waits longer",
        )
    )


_declare("slurm", "squeue --me", "slurm-*.out, or ")
_declare("pbs", "qstat -u $USER", "")
_declare("lsf", "bjobs", "")
