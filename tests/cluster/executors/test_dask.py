"""Rounds on Dask: order, release, deadlines, errors as themselves, and workers that are set up whenever they join."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, get_worker
from threadpoolctl import threadpool_info

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.client_executor import open_client_executor
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.errors import ClusterError, ExitCode, InterruptedRunError, StorageError, StoreError
from dkgp.operators import ArrayInputs

StartCluster = Callable[..., Client]
released = threading.Event()
noted: list[int] = []
running: list[int] = []


def late_first(factor: int, group: list[int]) -> list[int]:
    time.sleep(0.05 if 0 in group else 0.0)
    return [factor * item for item in group]


def until_released(group: list[int]) -> list[int]:
    released.wait(240.0)
    return group


def raising(error: Exception, group: list[int]) -> list[int]:
    if 1 in group:
        raise error
    return group


def note(group: list[int]) -> list[int]:
    noted.extend(group)
    return group


def die(group: list[int]) -> list[int]:
    os._exit(1)


def read(source: ArrayInputs, group: list[int]) -> list[Any]:
    return [source.inputs(item, item + 1) for item in group]


def forgotten(client: Client, within_seconds: float = 120.0) -> bool:
    """Whether the scheduler gets to hold no task at all."""
    until = time.monotonic() + within_seconds
    while time.monotonic() < until:
        if client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)) == 0:
            return True
        time.sleep(0.02)
    return False


def test_results_come_in_block_order(client: Client) -> None:
    pending = DaskExecutor(client).submit("blocks", late_first, (10,), [[0, 1], [2], [3, 4, 5], [6]])
    assert pending.result() == [0, 10, 20, 30, 40, 50, 60]


def test_done_needs_no_waiting(client: Client) -> None:
    released.clear()
    pending = DaskExecutor(client).submit("blocks", until_released, (), [[1]])
    assert not pending.done()
    released.set()
    until = time.monotonic() + 240.0
    while not pending.done():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert pending.result() == [1]


def test_rounds_leave_nothing_on_the_scheduler(client: Client) -> None:
    executor = DaskExecutor(client)
    for _ in range(10):
        executor.submit("blocks", late_first, (1,), [[1], [2]]).result()
    assert forgotten(client)


def test_equal_rounds_are_computed_each_time(client: Client) -> None:
    """Results by the hash of their arguments would come from a round that is being released."""
    executor = DaskExecutor(client)
    noted.clear()
    assert [executor.submit("blocks", note, (), [[1]]).result() for _ in range(3)] == [[1]] * 3
    assert noted == [1, 1, 1]


def late_from_the_sixth(group: list[int]) -> list[int]:
    time.sleep(0.05)
    if group[0] >= 6:
        released.wait(240.0)
    return group


@pytest.mark.long
@pytest.mark.parametrize("takes_too_long", [False, True])
def test_results_are_fetched_once_and_while_the_rest_is_computed(client: Client, takes_too_long: bool) -> None:
    """A fetch that takes too long is repeated."""
    released.clear()
    pending: Any = DaskExecutor(client).submit("blocks", late_from_the_sixth, (), [[item] for item in range(12)])
    gather, asked = client.gather, []

    async def watched(futures: list[Any], **options: Any) -> list[Any]:
        asked.append([future.key[4] for future in futures])
        if len(asked) == 1:  # one of a later call would go off in the next test
            threading.Timer(0.6, released.set).start()
            if takes_too_long:
                raise TimeoutError
        results: list[Any] = await gather(futures, **options)
        return results

    client.gather = watched  # type: ignore[method-assign]
    try:
        assert pending.result() == list(range(12))
    finally:
        del client.gather  # type: ignore[method-assign]
    together = [index for indices in asked[takes_too_long:] for index in indices]
    assert 1 <= len(asked[0]) <= 6
    assert sorted(together) == list(range(12))
    assert forgotten(client)


def test_two_executors_on_one_client_do_not_meet(client: Client) -> None:
    pending = [DaskExecutor(client).submit("blocks", late_first, (factor,), [[0], [1]]) for factor in (1, 2, 3)]
    assert [round_.result() for round_ in pending] == [[0, 1], [0, 2], [0, 3]]


def test_a_round_that_hangs_is_an_error_by_its_deadline(client: Client) -> None:
    released.clear()
    executor = DaskExecutor(client, round_deadline_seconds=0.5)
    pending = executor.submit("blocks", until_released, (), [[1], [2]])
    # The tasks wait until they are released, so only the deadline can end the round.
    with pytest.raises(ClusterError, match=r"did not finish a task within [01] s") as caught:
        pending.result()
    released.set()
    assert "2 workers" in str(caught.value)
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    assert forgotten(client)
    assert executor.submit("blocks", late_first, (1,), [[1]]).result() == [1]


@pytest.mark.parametrize(
    "error",
    [
        StoreError("chunk 3 of X is damaged"),
        StorageError("the disk is full"),
        ClusterError("an array of another process"),
        FileNotFoundError("X/c/3"),
        TimeoutError("the object store took too long"),
        ZeroDivisionError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_task_raises_comes_through_as_itself(client: Client, error: Exception) -> None:
    executor = DaskExecutor(client)
    with pytest.raises(type(error)) as caught:
        executor.submit("blocks", raising, (error,), [[0], [1], [2]]).result()
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    del caught
    assert forgotten(client)


def test_a_fetch_ends_as_soon_as_a_result_is_lost(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client goes on trying to connect to a killed worker, for longer than others take to compute it again."""
    gather, lost = client.gather, list[Any]()

    async def hang(futures: list[Any]) -> None:
        for future in futures:
            future._state.lose()
        lost.extend(futures)
        asyncio.get_running_loop().call_later(0.3, lambda: [future._state.finish() for future in futures])
        await asyncio.Event().wait()

    monkeypatch.setattr(
        client, "gather", lambda futures, **how: gather(futures, **how) if lost else hang(list(futures))
    )
    # Only the end of the fetch that waits for ever lets the round go on.
    assert DaskExecutor(client).submit("blocks", late_first, (10,), [[0], [1]]).result() == [0, 10]
    assert len(lost) == 2


def test_a_round_whose_results_are_lost_is_computed_again(client: Client) -> None:
    executor = DaskExecutor(client)
    pending = executor.submit("blocks", late_first, (1,), [[0], [1]])
    client.cancel(list(pending._futures.values()))  # type: ignore[attr-defined]
    assert pending.result() == [0, 1]
    assert forgotten(client)


def test_a_round_that_is_lost_again_and_again_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = DaskExecutor(client).submit("blocks", late_first, (1,), [[0], [1]])
    submit, attempts = pending._submit, []  # type: ignore[attr-defined]

    def lost(places: set[int]) -> None:
        attempts.append(1)
        submit(places)
        client.cancel(list(pending._futures.values()))  # type: ignore[attr-defined]

    monkeypatch.setattr(pending, "_submit", lost)
    client.cancel(list(pending._futures.values()))  # type: ignore[attr-defined]
    with pytest.raises(ClusterError, match="the cluster was lost"):
        pending.result()
    assert 1 < len(attempts) < 10


def plugins(dask_worker: Any) -> list[str]:
    return sorted(dask_worker.plugins)


def test_workers_that_join_late_are_set_up(start_cluster: StartCluster) -> None:
    client = start_cluster(processes=False)
    executor = DaskExecutor(client, cache_bytes=worker_cache().budget_bytes)
    assert executor.parallelism == 1
    client.cluster.scale(3)
    client.wait_for_workers(3, timeout=240)
    found = client.run(plugins)
    assert len(found) == 3
    assert all(any(name.startswith("dkgp-worker-setup") for name in names) for names in found.values())


def test_parallelism_follows_the_cluster(start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.cluster.executors.dask.PARALLELISM_REFRESH_SECONDS", 0.0)
    client = start_cluster(processes=False)
    executor = DaskExecutor(client)
    assert executor.parallelism == 1
    client.cluster.scale(3)
    client.wait_for_workers(3, timeout=240)
    assert executor.parallelism == 3


def test_a_scheduler_that_does_not_tell_of_its_workers_is_said_to_be_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> dict[str, int]:
        raise ConnectionResetError("Connection reset by peer")

    executor = DaskExecutor(client)
    monkeypatch.setattr("dkgp.cluster.executors.dask.threads_by_worker", cut)
    executor._threads.clear()
    with pytest.raises(ClusterError, match="no longer answers: Connection reset by peer; the last checkpoint can be"):
        executor.parallelism  # noqa: B018


def test_a_lost_scheduler_is_a_cluster_error(start_cluster: StartCluster) -> None:
    client = start_cluster(processes=False)
    client._timeout = 1.0  # it was found within longer
    executor = DaskExecutor(client)
    released.clear()
    pending = executor.submit("blocks", until_released, (), [[1]])
    time.sleep(0.1)
    released.set()
    client.cluster.close()
    with pytest.raises(ClusterError):
        pending.result()
    with pytest.raises(ClusterError):
        executor.submit("blocks", late_first, (1,), [[1]]).result()


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def setup_of(dask_worker: Any) -> tuple[set[int], int, bool]:
    return blas_threads(), worker_cache().budget_bytes, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.faults
def test_worker_processes(start_cluster: StartCluster) -> None:
    """One cluster for all that needs processes: they take seconds to start."""
    threads = {f"{library}_NUM_THREADS": "2" for library in ("OPENBLAS", "MKL", "OMP")}
    client = start_cluster(
        processes=True,
        settings={"distributed.nanny.pre-spawn-environ": threads, "distributed.scheduler.allowed-failures": 0},
    )
    executor = DaskExecutor(client, cache_bytes=12_345, owns_workers=True)
    before = (blas_threads(), worker_cache().budget_bytes)
    client.cluster.scale(2)
    client.wait_for_workers(2, timeout=240)
    # Workers that were there and workers that joined: one BLAS thread, the budget, deaf to the terminal's Ctrl-C.
    assert list(client.run(setup_of).values()) == [({1}, 12_345, True)] * 2
    assert (blas_threads(), worker_cache().budget_bytes) == before

    # An array of this process is refused there with an explanation.
    source = ArrayInputs(np.ones((4, 2)))
    with pytest.raises(ClusterError, match="another process.s memory"):
        executor.submit("blocks", read, (source,), [[0], [1]]).result()

    # A worker that is there but frozen.
    hurried = DaskExecutor(client, cache_bytes=12_345, owns_workers=True, round_deadline_seconds=2.0)
    frozen = psutil.Process(next(iter(client.run(os.getpid).values())))
    frozen.suspend()
    try:
        with pytest.raises(ClusterError, match="did not finish a task within 2 s"):
            hurried.submit("blocks", late_first, (1,), [[0], [1], [2], [3]]).result()
    finally:
        frozen.resume()

    # A task that kills its worker is given up, and the next round finds new workers, set up like the old.
    with pytest.raises(ClusterError, match="keep dying on the same task") as caught:
        executor.submit("blocks", die, (), [[0]]).result()
    assert caught.value.exit_code is ExitCode.CLUSTER_LOST
    assert executor.submit("blocks", late_first, (1,), [[0], [1]]).result() == [0, 1]
    client.wait_for_workers(2, timeout=240)
    assert list(client.run(setup_of).values()) == [({1}, 12_345, True)] * 2
    assert forgotten(client)


def where(group: list[int]) -> list[str]:
    time.sleep(0.05)
    return [get_worker().address for _ in group]


def test_a_task_runs_on_its_owner_and_elsewhere_when_that_one_is_gone(client: Client) -> None:
    executor = DaskExecutor(client)
    first, second = executor_workers = list(client.scheduler_info()["workers"])
    for owner in executor_workers:
        assert executor.submit("hints", where, (), [[0]], [owner]).result() == [owner]
    (found,) = executor.submit("hints", where, (), [[0]], ["tcp://127.0.0.1:1"]).result()
    assert found in (first, second)
    (found,) = executor.submit("hints", where, (), [[0]], [""]).result()
    assert found in (first, second)


def test_workers_are_told_by_address_and_are_one_in_this_process(client: Client) -> None:
    assert dict(DaskExecutor(client).workers) == dict.fromkeys(client.scheduler_info()["workers"], 1)
    assert dict(DaskExecutor(client, in_process=True).workers) == {"": 2}


def test_a_round_without_workers_ends_when_it_is_asked_to(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.cluster.executors.dask.DESERTED_SECONDS", 0.2)
    monkeypatch.setattr("dkgp.cluster.executors.dask.WATCH_SECONDS", 0.05)
    client, asked = start_cluster(processes=False), threading.Event()
    executor = DaskExecutor(client, interrupted=asked.is_set)
    asked.set()  # as long as there are workers the round goes on to its end
    assert executor.submit("blocks", late_first, (10,), [[0], [1]]).result() == [0, 10]
    asked.clear()
    client.cluster.scale(0)
    while client.ncores():
        time.sleep(0.02)
    pending = executor.submit("blocks", late_first, (10,), [[0], [1]])
    threading.Timer(0.5, asked.set).start()
    with pytest.raises(InterruptedRunError, match="while the cluster had no workers") as caught:
        pending.result()
    assert asked.is_set()
    assert caught.value.exit_code is ExitCode.INTERRUPTED
    assert forgotten(client)


def note_running(group: list[int]) -> list[str]:
    worker = get_worker()
    running.append(worker.state.executing_count)
    time.sleep(0.05)
    running.append(worker.state.executing_count)
    return [str(worker.name) for _ in group]


def test_tasks_take_resources_of_workers_that_have_them(start_cluster: StartCluster) -> None:
    client = start_cluster(processes=False, n_workers=0)
    for name, resources in (("plain", None), ("reserved", {"dkgp": 5.0})):
        options = {**client.cluster.new_spec["options"], "nthreads": 4, "resources": resources}
        client.cluster.worker_spec[name] = {**client.cluster.new_spec, "options": options}
    client.cluster.sync(client.cluster._correct_state)
    client.wait_for_workers(2, timeout=240)
    assert DaskExecutor(client).parallelism == 8
    executor = DaskExecutor(client, resources={"dkgp": 2.0})
    with (
        dask.config.set({"dkgp": {"cluster": {"resources": {"dkgp": 2}}}}),
        open_client_executor(client) as configured,
    ):
        assert configured.parallelism == 2
    assert list(executor.workers.values()) == [2]  # 5 are enough for two tasks at once
    running.clear()
    results = executor.submit("blocks", note_running, (), [[item] for item in range(8)]).result()
    assert results == ["reserved"] * 8
    assert max(running) == 2
