"""Starting a cluster of whatever kind: what is the same for all of them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from dkgp.cluster.kinds import KINDS
from dkgp.cluster.options import ClusterOptions
from dkgp.errors import ClusterError, DkgpError, UsageError


def start_cluster(options: ClusterOptions, security: Any, stack: ExitStack) -> Any:
    """Start the cluster that the options ask for, to be closed with the stack.

    `UsageError` for settings that the cluster's class does not take; `ClusterError` where it could not be started.
    """
    kind = KINDS.find(options.kind)
    if kind.start is None:
        raise UsageError(f"`cluster` {kind.name} starts no cluster")
    if not kind.in_process:
        _leave_folders_out(stack)
    if kind.queues and options.workers is None and options.adaptive is None:
        raise UsageError(f"`cluster` {kind.name} needs the number of workers: give `workers` N or `adaptive` MIN MAX")
    if kind.extra is not None:
        kind.extra.require(f"`cluster` {kind.name}")
    try:
        cluster = kind.start(options, security, stack)
        if options.adaptive is not None:
            least, most = options.adaptive
            cluster.adapt(minimum=least, maximum=most, **(kind.adaptive or {}))
        return cluster
    except DkgpError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        settings = f" (settings: {', '.join(sorted(options.settings))})" if options.settings else ""
        raise UsageError(f"`cluster` {kind.name} could not be started as asked for{settings}: {error}") from error
    except Exception as error:  # each of these packages raises what it likes
        raise ClusterError(
            f"the {kind.name} cluster could not be started: {_text(error)}{kind.failure_hint}"
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


def _text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text.rstrip(".") or type(error).__name__
