"""Rounds of an in-process cluster: threads that stay for the next one, errors, and rounds that nobody waits for."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from distributed import Client, LocalCluster

from dkgp.cluster.executors import mailbox
from dkgp.cluster.executors.base import RoundTasks
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.cluster.executors.mailbox import Desk, Mailbox


def squares(group: list[int]) -> list[int]:
    return [number**2 for number in group]


def fail(group: list[int]) -> list[int]:
    raise ValueError(f"no {group[0]}")


def served(desk: Desk, count: int = 1) -> list[threading.Thread]:
    threads = [threading.Thread(target=desk.serve) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_threads_stay_for_the_next_round_and_leave_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(mailbox, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(mailbox, "LINGER_SECONDS", 3600.0)
    desk = Desk()
    first, second, third = (Mailbox(RoundTasks(squares, (), [[number], [number + 1]])) for number in (1, 3, 5))
    assert desk.post(first, 2) == 2
    threads = served(desk, 2)
    assert first.wait(240.0)
    assert desk.post(second, 2) == 0  # they are still there
    assert second.wait(240.0)
    assert [first.take(), second.take()] == [[[1], [4]], [[9], [16]]]
    while any(thread.is_alive() for thread in threads):
        clock[0] += mailbox.LINGER_SECONDS
        with desk._changed:
            desk._changed.notify_all()
        time.sleep(0.01)
    assert desk.post(third, 2) == 2  # they have left
    desk.close()


def test_a_closed_desk_lets_its_threads_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "LINGER_SECONDS", 3600.0)
    desk = Desk()
    desk.post(round_ := Mailbox(RoundTasks(squares, (), [[2]])), 1)
    (thread,) = served(desk)
    assert round_.wait(240.0)
    desk.close()
    thread.join(240.0)
    assert not thread.is_alive()


def test_a_round_that_nobody_waits_for_is_not_worked_on() -> None:
    ran: list[int] = []

    def note(group: list[int]) -> list[None]:
        ran.extend(group)
        return [None for _ in group]

    desk = Desk()
    forgotten, closed, last = (Mailbox(RoundTasks(note, (), [[number]])) for number in (1, 2, 3))
    for each in (forgotten, closed, last):
        desk.post(each, 1)
    del forgotten, each
    gc.collect()
    closed.close()
    served(desk)
    assert last.wait(240.0)
    assert ran == [3]
    desk.close()


@pytest.fixture(scope="module")
def executor() -> Iterator[DaskExecutor]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        found = DaskExecutor(client, in_process=True)
        yield found
        found.close()


def test_an_error_is_its_rounds_own_and_the_threads_go_on(executor: DaskExecutor) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="no 7"):
            executor.submit("fails", fail, (), [[7]]).result()
        assert executor.submit("works", squares, (), [[1, 2], [3]]).result() == [1, 4, 9]


def test_rounds_overlap_and_follow_each_other_after_a_pause(executor: DaskExecutor) -> None:
    pending = [executor.submit("many", squares, (), [[n], [n + 1], [n + 2]]) for n in range(20)]
    assert [each.result() for each in reversed(pending)] == [[n**2, (n + 1) ** 2, (n + 2) ** 2] for n in range(20)][
        ::-1
    ]
    time.sleep(3 * mailbox.LINGER_SECONDS)
    assert executor.submit("later", squares, (), [[4]]).result() == [16]


def test_rounds_in_a_row_are_no_tasks_of_the_scheduler(executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "LINGER_SECONDS", 240.0)
    submitted: list[int] = []
    client = executor._client
    submit = client.submit
    monkeypatch.setattr(client, "submit", lambda *given, **named: submitted.append(1) or submit(*given, **named))
    for number in range(50):
        assert executor.submit("row", squares, (), [[number], [number]]).result() == [number**2] * 2
    assert len(submitted) <= 2
