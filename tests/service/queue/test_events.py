"""The event file: numbers without gaps or repeats whoever writes, torn lines, and how much progress it takes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from dkgp.commands.reporting.jobs import progress_line
from dkgp.commands.reporting.progress import WorkProgress
from dkgp.models import TuneProgress
from dkgp.service.queue import events as events_module
from dkgp.service.queue.events import EventReader, EventReporter, EventWriter, latest_progress, progress_pace_seconds
from dkgp.solvers import Progress as SolveProgress


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def solve_progress(iteration: int, norm: float = 1.0) -> SolveProgress:
    return SolveProgress(iteration, 0.1 * iteration, 10 * iteration, 1.0 * iteration, norm, norm, norm, -1.0, 1.0, {})


def test_numbers_go_on_across_writers_and_a_torn_line_is_cut_off(path: Path) -> None:
    first = EventWriter(path)
    first.write("note", message="one")
    first.write("note", message="two")
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"sequence": 2, "time": "2026')
    assert [event["sequence"] for event in EventReader(path).read()] == [0, 1]
    second = EventWriter(path)
    second.write("note", message="three")
    second.close()
    assert path.read_bytes().startswith(whole)
    assert [(event["sequence"], event["message"]) for event in written(path)] == [(0, "one"), (1, "two"), (2, "three")]


@pytest.mark.parametrize("content", [b"", b"torn", b"damaged\n", b'{"sequence": 1}\n', b"\n\n"])
def test_a_file_without_a_whole_event_begins_at_zero(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    writer = EventWriter(path)
    writer.write("note", message="first")
    assert [event["sequence"] for event in EventReader(path).read()] == [0]


def test_an_event_longer_than_what_is_read_at_once_is_found_again(path: Path) -> None:
    writer = EventWriter(path)
    writer.write("note", message="before")
    writer.write("document", document={"text": "x" * (3 * events_module.TAIL_BYTES)})
    writer.close()
    later = EventWriter(path)
    later.write("note", message="after")
    assert [event["sequence"] for event in EventReader(path).read()] == [0, 1, 2]


def _write_many(path: Path, who: int, count: int) -> None:
    writer = EventWriter(path)
    for number in range(count):
        writer.write("note", message=f"{who} {number}")
    writer.close()


def test_processes_and_threads_write_to_one_file(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_many, args=(path, who, 50)) for who in range(2)]
    threads = [threading.Thread(target=_write_many, args=(path, who, 50)) for who in (2, 3)]
    for worker in (*processes, *threads):
        worker.start()
    for worker in (*processes, *threads):
        worker.join()
    events = written(path)
    assert [event["sequence"] for event in events] == list(range(200))
    assert {event["message"] for event in events} == {f"{who} {number}" for who in range(4) for number in range(50)}


def test_a_signals_handler_may_write_while_the_same_thread_does(path: Path) -> None:
    writer = EventWriter(path)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: writer.write("note", message="signal"))
    real_write = os.write

    def interrupted_write(handle: int, content: bytes) -> int:
        if b"outer" in content:
            os.kill(os.getpid(), signal.SIGUSR1)
        return real_write(handle, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_module.os, "write", interrupted_write)
        writer.write("note", message="outer")
        patch.setattr(events_module.os, "write", real_write)
    signal.signal(signal.SIGUSR1, before)
    assert [(event["sequence"], event["message"]) for event in written(path)] == [(0, "outer"), (1, "signal")]


def test_what_a_full_disk_refuses_leaves_no_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventWriter(path)
    writer.write("note", message="before")
    real_write = os.write
    monkeypatch.setattr(events_module.os, "write", lambda handle, content: real_write(handle, content[:10]))
    writer.write("note", message="lost")
    monkeypatch.setattr(events_module.os, "write", real_write)
    writer.write("note", message="after")
    assert [(event["sequence"], event["message"]) for event in written(path)] == [(0, "before"), (1, "after")]


def test_a_reader_goes_on_where_it_was_and_can_go_back(path: Path) -> None:
    reader = EventReader(path)
    assert reader.read() == []
    writer = EventWriter(path)
    for number in range(10):
        writer.write("note", message=str(number))
    assert [event["sequence"] for event in reader.read(after=2, limit=3)] == [3, 4, 5]
    assert [event["sequence"] for event in reader.read(after=5)] == [6, 7, 8, 9]
    assert reader.read(after=9) == []
    writer.write("state", state="done")
    assert [event["state"] for event in reader.read(after=9)] == ["done"]
    assert [event["sequence"] for event in reader.read(after=-1)] == list(range(11))


def test_progress_comes_at_its_pace_with_the_first_and_the_last(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(events_module.time, "monotonic", lambda: clock[0])
    reporter = EventReporter(EventWriter(path), lambda link: None)
    with reporter.solve("train", 1e-4) as show:
        for iteration in range(1, 102):
            show(solve_progress(iteration, 10.0 / iteration))
            clock[0] += 0.01
    events = written(path)
    iterations = [event["iteration"] for event in events]
    assert iterations[0] == 1
    assert iterations[-1] == 101
    # A second's worth, five of them a second.
    assert 5 <= len(iterations) <= 8
    assert events[0] | {"label": "train", "tolerance": 1e-4, "gradient_inf_norm": 10.0} == events[0]
    assert events[0]["decades_per_minute"] is None
    assert events[-1]["decades_per_minute"] > 0.0
    assert latest_progress(path) == events[-1]


def test_progress_within_a_round_goes_with_the_round_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(events_module.time, "monotonic", lambda: clock[0])
    with EventReporter(EventWriter(path), lambda link: None).solve("train", 1e-4) as show:
        for report in (
            WorkProgress("product", 1, 4, "pairs"),
            solve_progress(7, 0.5),
            WorkProgress("product", 3, 4, "pairs"),
        ):
            show(report)
            clock[0] += 1.0
    first, then, last = written(path)
    assert first | {"label": "train", "phase": "product", "done": 1, "total": 4} == first
    assert "iteration" not in first
    assert "phase" not in then
    assert last | {"iteration": 7, "gradient_inf_norm": 0.5, "phase": "product", "done": 3} == last
    assert progress_line(first) == "train: product: 1 of 4 (25 %) pairs"
    assert progress_line(last).endswith("largest residual 5.0e-01, tolerance 1e-04; product 75 %")
    of_gap = last | {"measure": "duality_gap", "duality_gap": 0.25}
    assert progress_line(of_gap, verbose=True).endswith("relative gap 2.50e-01 -> 1e-04; product 75 %")
    assert "->" not in progress_line(of_gap | {"duality_gap": None}, verbose=True)


def test_the_longer_the_file_the_rarer_is_progress() -> None:
    paces = [progress_pace_seconds(count) for count in (0, 9_999, 10_000, 15_000, 20_000, 10**9)]
    assert paces == [0.2, 0.2, 1.0, 5.0, 60.0, 60.0]


def test_other_work_notes_and_warnings(path: Path) -> None:
    links: list[str] = []
    reporter = EventReporter(EventWriter(path), links.append)
    reporter.note("dashboard: http://host:8787/status")
    reporter.warn("mind this")
    reporter.warn("mind this")
    with reporter.work("predict") as show:
        show(WorkProgress("samples", 3, None, "samples"))
    with reporter.search("tune") as look:
        look(TuneProgress(1, 300, 0, float("-inf"), -5.0, float("nan"), 0.1, 0.5))
    assert links == ["http://host:8787/status"]
    assert reporter.warnings == ["mind this"]
    note, warning, work, search = written(path)
    assert (note["kind"], warning["kind"], warning["message"]) == ("note", "warning", "mind this")
    assert {name: work[name] for name in ("label", "phase", "done", "total", "unit")} == {
        "label": "predict",
        "phase": "samples",
        "done": 3,
        "total": None,
        "unit": "samples",
    }
    # JSON has no infinities.
    assert search["log_marginal_likelihood"] is None
    assert search["gradient_inf_norm"] is None
    assert search["noise_variance"] == 0.1
