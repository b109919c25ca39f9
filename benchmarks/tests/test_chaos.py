"""`dkgp bench chaos`: its faults in the order that was said, its wires, and a whole run on few samples."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dkgp.bench.problem import BenchProblem
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.errors import UsageError
from dkgp_benchmarks.chaos.job import BenchChaosJob, Chaos, run_bench_chaos
from dkgp_benchmarks.chaos.wire import Wire


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what comes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := connection.recv(1024):
                connection.sendall(piece)

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_a_wire_passes_on_until_it_is_cut(echo: tuple[str, int]) -> None:
    wire = Wire(echo)
    ends = [socket.create_connection(("127.0.0.1", wire.port), timeout=10.0) for _ in range(2)]
    for number, end in enumerate(ends):
        end.sendall(b"%d" % number)
        assert end.recv(10) == b"%d" % number
    assert wire.cut() == 2
    for end in ends:
        with pytest.raises(ConnectionResetError):  # no orderly end
            end.recv(10)
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", wire.port), timeout=10.0)


class Recorded:
    """A cluster of names."""

    def __init__(self) -> None:
        self.alive, self.deeds, self.count = ["a", "b", "c"], list[tuple[str, str]](), 0

    def join(self) -> str:
        self.count += 1
        self.alive.append(f"new {self.count}")
        return self.alive[-1]

    def __getattr__(self, deed: str) -> Any:
        def do(worker: str) -> None:
            self.alive.remove(worker)
            self.deeds.append((deed, worker))

        return do


def test_faults_come_when_they_are_due() -> None:
    members = Recorded()
    chaos = Chaos(BenchChaosJob(kill_every=4.0, coordinator_kills=2), members, 12.0)  # type: ignore[arg-type]
    coordinator = [second for second in range(25) if chaos.strike(float(second))]
    assert coordinator == [4, 8]
    assert [deed for deed, _ in members.deeds] == [
        "kill", "cut", "kill", "kill", "send_away", "kill", "kill", "cut", "kill"
    ]  # fmt: skip
    assert len(members.alive) == 3
    assert len({worker for _, worker in members.deeds}) == 9
    again = Recorded()
    chaos = Chaos(BenchChaosJob(kill_every=4.0), again, 12.0)  # type: ignore[arg-type]
    for second in range(25):
        chaos.strike(float(second))
    assert again.deeds == members.deeds


@pytest.mark.parametrize("wrong", [{"workers": 1}, {"kill_every": 0.0}, {"coordinator_kills": -1}, {"variances": -1}])
def test_what_cannot_be_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        BenchChaosJob(**wrong)


@pytest.mark.faults
def test_a_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    problem = BenchProblem(n=4000, n_test=60, subset=300)
    out, plot = tmp_path / "chaos.json", tmp_path / "chaos.png"
    job = BenchChaosJob(
        problem, workers=3, kill_every=1.5, coordinator_kills=1, variances=60, out=str(out), plot=str(plot)
    )
    document = run_bench_chaos(job, SilentReporter())
    assert document["figures"]["same_bits"]
    assert [row["task"] for row in document["rows"]] == ["solve", "variances"]
    assert all(row["killed"] >= 1 and row["resumed"] >= 1 for row in document["rows"])
    assert all(row["joined"] >= row["killed"] + row["cut"] + row["sent_away"] for row in document["rows"])
    assert json.loads(out.read_text())["rows"] == document["rows"]
    assert plot.stat().st_size > 10_000
