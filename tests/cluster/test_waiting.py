"""Waiting for workers: how many, how long, and what is said meanwhile and afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from distributed import Client

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.errors import ClusterError, ExitCode
from tests.cluster.helpers import Listener

StartCluster = Callable[..., Client]


@pytest.mark.long
def test_the_number_asked_for_is_waited_for(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=1)
    later = threading.Timer(1.2, own.cluster.scale, (3,))
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


@pytest.mark.long
def test_a_scheduler_that_goes_away_meanwhile_is_an_error(start_cluster: StartCluster) -> None:
    own = start_cluster(processes=False, protocol="tcp", n_workers=0)
    threading.Timer(0.3, own.cluster.close).start()
    started = time.monotonic()
    options = ClusterOptions(scheduler=own.scheduler.address, worker_wait_seconds=120.0, connect_timeout_seconds=2.0)
    with (
        pytest.raises(ClusterError, match="stopped answering while workers were waited for"),
        open_executor(options, 1),
    ):
        pass
    assert time.monotonic() - started < 60.0
