"""Dask's dashboard of a cluster: whether there is one, where it listens, and how to reach it.

Dask makes the link from the scheduler's address and the port of its HTTP server. That server also runs without a
dashboard, and it may listen on another interface.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributed import Client
from distributed.deploy.cluster import Cluster
from distributed.utils import format_dashboard_link

# Pages of schedulers and workers that are started here listen there: they ask nobody for a name.
LOOPBACK = "127.0.0.1:0"
ANSWER_SECONDS = 10.0
# In an ssh session and in a batch job the user's browser is on another machine.
_AWAY = ("SSH_CONNECTION", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


@dataclass(frozen=True)
class Dashboard:
    """The link to a dashboard; `machine` if it listens on the loopback interface of another than the user's."""

    link: str
    port: int = 0
    machine: str = ""

    @property
    def tunnel(self) -> str:
        """Words on how to reach it from here; empty if the link is enough."""
        if not self.machine:
            return ""
        return (
            f"the dashboard listens on the loopback interface of {self.machine} only; forward it with `ssh -N -L "
            f"{self.port}:127.0.0.1:{self.port} {self.machine}`"
        )


def find_dashboard(client: Client) -> Dashboard | None:
    """Return the dashboard of a client's scheduler; None if it has none or does not tell."""
    cluster: Any = client.cluster
    if cluster is not None and getattr(type(cluster), "dashboard_link", None) is not Cluster.dashboard_link:
        # Through a gateway or into Kubernetes a link has its own way.
        return Dashboard(cluster.dashboard_link) if cluster.dashboard_link else None
    try:
        listening: tuple[str, str, int] | None = client.sync(
            client._run_on_scheduler, _listening(), callback_timeout=ANSWER_SECONDS
        )
    except Exception:  # some schedulers run no code of others; a link that leads nowhere helps nobody
        return None
    if listening is None:
        return None
    machine, host, port = listening
    address = ipaddress.ip_address(host.split("%")[0])
    if address.is_loopback:
        away = machine != socket.gethostname() or any(name in os.environ for name in _AWAY)
        return Dashboard(format_dashboard_link(_in_link(host), port), port, machine if away else "")
    if address.is_unspecified:
        scheduler: Any = client.scheduler
        protocol, _, rest = str(scheduler.address).rpartition("://")
        host = "127.0.0.1" if protocol == "inproc" else rest.rpartition(":")[0].strip("[]")
    return Dashboard(format_dashboard_link(_in_link(host), port), port)


def _in_link(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listening() -> Callable[..., tuple[str, str, int] | None]:
    """Return a function for the scheduler; a closure is pickled whole, so a scheduler without dkgp runs it too."""

    def listening(dask_scheduler: Any) -> tuple[str, str, int] | None:
        import socket

        server = dask_scheduler.services.get("dashboard")
        pages = any("bokeh" in str(page).lower() for page in dask_scheduler.http_application.applications)
        return (socket.gethostname(), str(server.address), int(server.port)) if server and pages else None

    return listening
