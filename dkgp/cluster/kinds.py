"""The kinds of cluster that can be started: which there are, and what each one is like.

A kind is declared in the file that starts it: `KINDS.add(ClusterKind(...))` at the end of a module of
`dkgp.cluster.starters`, or of a module that an installed package names in the entry point group `dkgp.clusters`. The
command line, the checks of `ClusterOptions` and what is done with a cluster once it runs follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dkgp.registry import Extra, Registry

# Arguments of `dkgp.cluster.elastic.RoundAdaptive`, which itself keeps workers through the pauses between rounds.
ADAPTIVE_LOCALLY: Mapping[str, Any] = {"interval": "1s", "wait_count": 1}


@dataclass(frozen=True)
class ClusterKind:
    """A way to get workers; `name` and `help` are for the command line."""

    name: str
    help: str
    # Called with the `ClusterOptions`, the certificates to use (`distributed.Security` or None) and an `ExitStack` that
    # is to close the cluster; returns one of dask's cluster objects. None where no cluster is needed at all.
    start: Callable[..., Any] | None
    extra: Extra | None = None
    # "given": the user's, or some made for the run, are handed to it; "own": it brings its own; "none": it has none.
    certificates: Literal["given", "own", "none"] = "none"
    # Its workers are this process; or processes that this one starts.
    in_process: bool = False
    on_this_machine: bool = False
    # Workers wait for their turn: they get more time, and their number must be given.
    queues: bool = False
    # Further arguments for the cluster's `adapt` where this process decides on its size; none where its service does;
    # None where its size cannot follow the work.
    adaptive: Mapping[str, Any] | None = None
    takes_settings: bool = True
    # Key in dask's configuration of the folder for its workers' output; the setting "log_directory" overrides it, and
    # the current folder is the default.
    log_setting: str | None = None
    # Advice where workers do not come, and what to add to an error of starting it.
    no_workers: str = "see the messages above"
    failure_hint: str = ""


KINDS: Registry[ClusterKind] = Registry("cluster kind", "dkgp.cluster.starters", "dkgp.clusters")


def cluster_kinds() -> list[ClusterKind]:
    """Return all kinds by name, those first that need nothing installed."""
    return sorted(KINDS.all().values(), key=lambda kind: (kind.extra is not None, kind.name))


def kinds_that(accepts: Callable[[ClusterKind], object]) -> str:
    """Return the names of the kinds that are accepted, for a message."""
    return ", ".join(kind.name for kind in cluster_kinds() if accepts(kind))
