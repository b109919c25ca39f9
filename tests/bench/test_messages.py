"""`dkgp bench messages`: products whose tasks sleep, against the plan; and slow links, as slow as they say."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.bench.messages import BenchMessagesJob, Lane, SlowLink, run_bench_messages
from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.errors import UsageError


@pytest.fixture
def threads_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads of this process be the workers, who sleep at once."""

    @contextmanager
    def threads(job: BenchMessagesJob, count: int, reporter: Any) -> Iterator[BlockExecutor]:
        executor = LocalExecutor(count)
        yield executor
        executor.close()

    monkeypatch.setattr("dkgp.bench.messages.workers", threads)


@pytest.mark.usefixtures("threads_for_workers")
def test_tasks_sleep_for_their_entries(tmp_path: Path) -> None:
    record = tmp_path / "messages.json"
    job = BenchMessagesJob(
        samples=(20_000, 400_000), workers=(1, 4), entry_ns=0.005, seconds=0.05, repeats=2, out=str(record)
    )
    found = run_bench_messages(job, SilentReporter())
    assert [(row["workers"], row["samples"]) for row in found["rows"]] == [
        (count, n) for count in (1, 4) for n in (20_000, 400_000)
    ]
    for row in found["rows"]:
        asleep = 1e-9 * row["entry_ns"] * row["samples"] ** 2 / 2 / row["workers"]
        assert row["seconds"] >= 0.9 * asleep
        assert row["computing"] >= 0.99 * asleep
        assert row["ratio"] == pytest.approx(row["seconds"] / row["forecast"])
    # The larger one would take 0.4 s of one worker, and is shortened to 0.05.
    assert found["rows"][0]["entry_ns"] == 0.005
    assert found["rows"][1]["entry_ns"] < 0.001
    for count in (1, 4):
        ratios = [row["ratio"] for row in found["rows"] if row["workers"] == count]
        farthest = max(ratios, key=lambda ratio: abs(np.log(ratio)))
        assert found["figures"][f"worst_of_{count}_workers"] == farthest
    assert json.loads(record.read_text()) == json.loads(json.dumps(found))
    assert len(tables(found)) == 2


@pytest.mark.slow
def test_a_slow_link_is_measured_and_forecast() -> None:
    job = BenchMessagesJob(
        samples=(50_000,), workers=(2,), latency_seconds=0.03, bytes_per_second=6e7, repeats=1, seconds=2.0
    )
    found = run_bench_messages(job, SilentReporter())
    (row,), network = found["rows"], found["settings"]["network"]["2"]
    assert network["round_trip_seconds"] > 2 * 0.03
    assert 3e7 < network["bytes_per_second"] < 6.3e7
    assert row["seconds"] > 2 * 0.03 + 0.2e-9 * 50_000**2 / 4
    assert 0.5 < row["ratio"] < 2.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"workers": (2, 0)}, "at least 1"),
        ({"entry_ns": 0.0}, "times above 0"),
        ({"latency_seconds": -0.001}, "at least 0 s .* got -0.001 and none"),
        ({"bytes_per_second": 0}, "above 0 bytes per second; got 0 and 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        BenchMessagesJob(**values)


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """A place that sends back what comes, a connection at a time; its address."""

    def serve() -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:
                return
            with connection:
                while piece := connection.recv(1 << 16):
                    connection.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield door.getsockname()
        door.shutdown(socket.SHUT_RDWR)
        thread.join(5.0)


def there_and_back(port: int, data: bytes) -> tuple[bytes, float]:
    """Return the echo of the data, and the seconds of the round trip."""
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def send() -> None:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

        began = time.perf_counter()
        threading.Thread(target=send).start()
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        return received, time.perf_counter() - began


def test_a_slow_link_passes_everything_on_late_and_in_order() -> None:
    data = np.random.default_rng(0).bytes(1_500_000)
    with echo() as address, SlowLink(address, 0.05, 1e7) as link:
        for message, least in ((b"short", 2 * 0.05), (data, 2 * 0.05 + 0.15), (b"again", 2 * 0.05)):
            received, seconds = there_and_back(link.port, message)
            assert received == message
            assert seconds >= least
    with pytest.raises(OSError, match=r"refused|reset"):
        there_and_back(link.port, b"closed")


def test_connections_share_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    lane = Lane(0.5, 10.0)
    assert [lane.arrival(count) for count in (10, 5, 0)] == [101.5, 102.0, 102.0]
    monkeypatch.setattr("time.perf_counter", lambda: 200.0)
    assert lane.arrival(10) == 201.5
