"""Waiting for workers: how many, how long, and what is said meanwhile and afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client

from dkgp.cluster import ClusterOptions, connect, open_executor
from dkgp.cluster.kinds import cluster_kinds
from dkgp.errors import ClusterError, ExitCode
from tests.cluster.helpers import Listener

StartCluster = Callable[..., Client]


def test_the_number_asked_for_is_waited_for(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=1)
    later = threading.Timer(1.5, own.cluster.scale, (3,))
    later.start()
    listener = Listener()
    options = ClusterOptions(scheduler=own.scheduler.address, workers=3, worker_wait_seconds=60.0)
    with open_executor(options, 1, listener) as executor:
        assert executor.parallelism == 3
    assert listener.warnings == []
    assert listener.notes[0].startswith("waiting for workers: 1 of 3, at most")
    assert listener.notes[-1].startswith("3 of 3 workers are there after")


def test_fewer_than_asked_for_are_gone_on_with(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=2)
    listener = Listener()
    options = ClusterOptions(scheduler=own.scheduler.address, workers=5, worker_wait_seconds=0.3)
    with open_executor(options, 1, listener) as executor:
        assert executor.parallelism == 2
    (warning,) = listener.warnings
    assert "2 of 5 workers came within 0 s; going on with these" in warning


def test_none_at_all_is_an_error(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=0)
    started = time.monotonic()
    options = ClusterOptions(scheduler=own.scheduler.address, worker_wait_seconds=0.3)
    with pytest.raises(ClusterError, match="no workers") as caught, open_executor(options, 1):
        pass
    assert time.monotonic() - started < 20.0
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST


def test_a_scheduler_that_goes_away_meanwhile_is_an_error(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=0)
    threading.Timer(1.0, own.cluster.close).start()
    started = time.monotonic()
    options = ClusterOptions(scheduler=own.scheduler.address, worker_wait_seconds=120.0, connect_timeout_seconds=2.0)
    with (
        pytest.raises(ClusterError, match="stopped answering while workers were waited for"),
        open_executor(options, 1),
    ):
        pass
    assert time.monotonic() - started < 60.0


class NoWorkers:
    """A client whose scheduler has no workers."""

    class scheduler:  # noqa: N801
        address = "tcp://10.0.0.1:1"
        ncores = None

    def sync(self, *arguments: Any, **options: Any) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("kind", "look"),
    [
        ("slurm", "squeue --me"),
        ("pbs", "qstat"),
        ("lsf", "bjobs"),
        ("kubernetes", "kubectl get pods"),
        ("gateway", "workers' logs"),
        ("ssh", "on one of the hosts"),
    ],
)
def test_what_to_look_at_depends_on_the_kind(kind: Any, look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "WORKERS_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(connect, "QUEUE_WAIT_SECONDS", 0.1)
    with pytest.raises(ClusterError) as caught:
        connect._wait_for_workers(NoWorkers(), ClusterOptions(kind=kind, workers=2), None, Listener())  # type: ignore[arg-type]
    assert look in str(caught.value)


def test_queues_are_given_more_time_than_processes() -> None:
    assert connect.WORKERS_WAIT_SECONDS == 120.0
    assert connect.QUEUE_WAIT_SECONDS == 600.0
    queueing = [kind for kind in cluster_kinds() if kind.queues]
    assert {kind.name for kind in queueing} == {"slurm", "pbs", "lsf", "kubernetes", "gateway"}
    assert all("`worker_wait_seconds`" in kind.no_workers for kind in queueing)
