"""What is handed to dask's SSHCluster, and what is refused before any host is asked."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.cluster.starters.security import security_from
from dkgp.cluster.starters.ssh import ssh_arguments
from dkgp.errors import ClusterError, UsageError
from tests.cluster.helpers import Certificates

GIB = 2**30
SIZES: dict[str, Any] = {"workers": 3, "threads_per_worker": 4, "worker_memory_bytes": 8 * GIB}


def ssh(**options: Any) -> dict[str, Any]:
    from distributed import SSHCluster

    found = ssh_arguments(ClusterOptions(kind="ssh", **options), None)
    inspect.signature(SSHCluster).bind(**found)
    return found


def test_a_cluster_over_ssh() -> None:
    found = ssh(
        settings={"hosts": "head, node1,node2", "connect_options": {"username": "gp"}}, **{**SIZES, "workers": 4}
    )
    assert found["hosts"] == ["head", "node1", "node2"]
    sizes = {"nthreads": 4, "memory_limit": 8 * GIB, "n_workers": 2}
    assert found["worker_options"] == {
        **sizes,
        "dashboard_address": "127.0.0.1:0",
        "preload": ["dkgp.operators.preload"],
    }
    assert found["connect_options"] == {"username": "gp"}


def test_workers_over_ssh_import_nothing_from_the_folder_they_start_in() -> None:
    assert ssh(settings={"hosts": ["a", "b"]})["remote_python"] == f"{sys.executable} -P"
    assert ssh(settings={"hosts": ["a", "b"], "remote_python": "python3.12"})["remote_python"] == "python3.12 -P"
    listed = {"hosts": ["a", "b"], "remote_python": ["python3.11", "python3.12"]}
    assert ssh(settings=listed)["remote_python"] == ["python3.11 -P", "python3.12 -P"]


def test_certificates_over_ssh(certificates: Certificates) -> None:
    options = ClusterOptions(kind="ssh", settings={"hosts": ["a", "b"]}, **certificates.options())
    found = ssh_arguments(options, security_from(options))
    assert found["worker_options"]["protocol"] == found["scheduler_options"]["protocol"] == "tls://"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs hosts"),
        ({"settings": {"hosts": "one"}}, "got ['one']"),
        ({"settings": {"hosts": ["a", "b", "c"]}, "workers": 3}, "3 workers cannot be shared out evenly over 2 hosts"),
        ({"settings": {"hosts": ["a", "b", "c"]}, "workers": 1}, "1 workers cannot be shared out"),
        ({"settings": {"hosts": ["a", "b"], "worker_options": {"nthreads": 2}}, "threads_per_worker": 1}, "'nthreads'"),
        ({"settings": {"hosts": ["a", "b"], "nthreads": 2}}, "has no setting 'nthreads'"),
        ({"settings": {"hots": ["a", "b"]}}, "did you mean hosts?"),
    ],
)
def test_settings_of_ssh_that_cannot_be_used(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ssh(**options)
    assert words in str(caught.value)


def test_hosts_that_cannot_be_reached_are_a_cluster_error_without_secrets() -> None:
    settings = {"hosts": ["127.0.0.1"] * 2, "connect_options": {"port": 1, "password": "hunter2", "known_hosts": None}}
    options = ClusterOptions(kind="ssh", settings=settings)
    with pytest.raises(ClusterError, match="the ssh cluster could not be started") as caught, open_executor(options, 1):
        pass
    assert "hunter2" not in str(caught.value)
