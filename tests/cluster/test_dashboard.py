"""Links to Dask's dashboard lead somewhere, and pages that ask nobody for a name stay on this machine."""

from __future__ import annotations

import importlib.util
import os
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import Client

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.dashboard import _AWAY, Dashboard, _listening, find_dashboard
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.cluster.starters.jobqueue import job_arguments
from dkgp.cluster.starters.ssh import ssh_arguments
from tests.cluster.helpers import StartProcess, start_scheduler

StartCluster = Callable[..., Client]
SIZES: dict[str, Any] = {"threads_per_worker": 1, "worker_memory_bytes": 2**30}


@pytest.fixture(autouse=True)
def at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ssh session and no batch job around the tests."""
    for name in _AWAY:
        monkeypatch.delenv(name, raising=False)


class Answering:
    """A client whose scheduler says where its pages listen."""

    cluster = None

    def __init__(self, address: str, listening: tuple[str, str, int] | None) -> None:
        self.scheduler, self._says = type("Address", (), {"address": address}), listening

    _run_on_scheduler = None

    def sync(self, *arguments: Any, **options: Any) -> Any:
        if isinstance(self._says, Exception):
            raise self._says
        return self._says


@pytest.mark.parametrize(
    ("address", "listening", "link"),
    [
        ("tls://10.1.2.3:4567", "127.0.0.1", "http://127.0.0.1:8787/status"),
        ("tls://10.1.2.3:4567", "0.0.0.0", "http://10.1.2.3:8787/status"),
        ("tls://[fd00::3]:4567", "::", "http://[fd00::3]:8787/status"),
        ("tls://10.1.2.3:4567", "192.168.7.7", "http://192.168.7.7:8787/status"),
        ("inproc://10.1.2.3/1/1", "0.0.0.0", "http://127.0.0.1:8787/status"),
    ],
)
def test_a_link_names_the_interface_that_the_pages_listen_on(address: str, listening: str, link: str) -> None:
    with dask.config.set({"distributed.dashboard.link": "{scheme}://{host}:{port}/status"}):
        found = find_dashboard(Answering(address, (socket.gethostname(), listening, 8787)))  # type: ignore[arg-type]
    assert found == Dashboard(link, 8787)
    assert found.tunnel == ""


def test_pages_of_another_machines_loopback_are_forwarded() -> None:
    found = find_dashboard(Answering("tls://10.1.2.3:4567", ("node7", "127.0.0.1", 8787)))  # type: ignore[arg-type]
    assert found is not None
    assert found.link.startswith("http://127.0.0.1:8787")
    assert "`ssh -N -L 8787:127.0.0.1:8787 node7`" in found.tunnel


@pytest.mark.parametrize("name", _AWAY)
def test_a_user_of_ssh_or_a_batch_job_forwards_this_machines_pages(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    host = socket.gethostname()
    client: Any = Answering("tls://10.1.2.3:4567", (host, "127.0.0.1", 8787))
    found = find_dashboard(client)
    assert found is not None
    assert found.tunnel == ""
    monkeypatch.setenv(name, "1")
    found = find_dashboard(client)
    assert found is not None
    assert found.tunnel.endswith(f"`ssh -N -L 8787:127.0.0.1:8787 {host}`")


@pytest.mark.parametrize("answer", [None, ValueError("cannot run functions")])
def test_without_pages_there_is_no_link(answer: Any) -> None:
    assert find_dashboard(Answering("tls://10.1.2.3:4567", answer)) is None  # type: ignore[arg-type]


def test_a_scheduler_tells_of_pages_only_where_bokeh_makes_them() -> None:
    server = type("Server", (), {"address": "127.0.0.1", "port": 8787})

    class BokehTornado: ...

    def scheduler(*pages: object) -> Any:
        application = type("Application", (), {"applications": list(pages)})
        return type("Scheduler", (), {"services": {"dashboard": server}, "http_application": application})

    assert _listening()(scheduler()) is None  # `--no-dashboard`, or no bokeh: the port is open all the same
    assert _listening()(scheduler(BokehTornado())) == (socket.gethostname(), "127.0.0.1", 8787)


def test_a_gateways_link_is_its_own() -> None:
    client = Answering("tls://10.1.2.3:4567", None)
    client.cluster = type("Gateway", (), {"dashboard_link": "https://gateway/clusters/1/status"})()
    assert find_dashboard(client) == Dashboard("https://gateway/clusters/1/status")  # type: ignore[arg-type]


def interfaces() -> set[str]:
    """Addresses that this process listens on."""
    return {
        connection.laddr.ip
        for connection in psutil.Process(os.getpid()).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def test_a_cluster_in_this_process_listens_to_this_machine_only() -> None:
    before = interfaces()
    with open_executor(ClusterOptions(kind="local", workers=2, threads_per_worker=1), 10**6) as executor:
        assert interfaces() - before <= {"127.0.0.1"}
        link = executor.dashboard_link
        assert (link is not None) == (importlib.util.find_spec("bokeh") is not None)
        if link is not None:
            with urllib.request.urlopen(link, timeout=240) as page:
                assert b"Dask" in page.read()


def test_pages_of_workers_on_other_hosts_listen_to_these_hosts_only() -> None:
    job = job_arguments(ClusterOptions(kind="slurm", workers=1, **SIZES))
    extra = job["worker_extra_args"]
    assert extra[extra.index("--dashboard-address") + 1] == "127.0.0.1:0"
    asked = {"worker_extra_args": ["--dashboard-address=:9999"]}
    job = job_arguments(ClusterOptions(kind="slurm", workers=1, settings=asked, **SIZES))
    assert [text for text in job["worker_extra_args"] if "dashboard" in text] == ["--dashboard-address=:9999"]
    hosts = {"hosts": "a,b"}
    arguments = ssh_arguments(ClusterOptions(kind="ssh", settings=hosts), None)
    assert arguments["worker_options"]["dashboard_address"] == "127.0.0.1:0"
    asked = {**hosts, "worker_options": {"dashboard_address": ":9999"}}
    arguments = ssh_arguments(ClusterOptions(kind="ssh", settings=asked), None)
    assert arguments["worker_options"]["dashboard_address"] == ":9999"


@pytest.mark.long
def test_a_scheduler_without_dashboard_has_no_link(start_process: StartProcess, tmp_path: Path) -> None:
    address = start_scheduler(start_process, tmp_path)  # with `--no-dashboard`, and an open port
    with Client(address, timeout=240, set_as_default=False) as client:
        assert client.dashboard_link is not None
        assert find_dashboard(client) is None


def test_a_dashboard_that_is_missing_is_said_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.cluster.executors.dask.find_dashboard", lambda client: None)
    monkeypatch.setattr("dkgp.cluster.executors.dask.find_spec", lambda name: None)
    executor = object.__new__(DaskExecutor)
    executor._client = Answering("tcp://10.1.2.3:4567", None)  # type: ignore[assignment]
    words = "there is no dashboard: where the scheduler runs it takes bokeh, pip install 'dkgp[dashboard]'"
    assert executor.dashboard_tunnel == words
    executor.shares_memory = True  # workers in this process come by default, unasked for
    assert executor.dashboard_tunnel == ""
