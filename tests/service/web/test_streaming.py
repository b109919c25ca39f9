"""Streams of events: whole, in order, to many followers at once, and to an end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from dkgp.errors import StorageError
from dkgp.service.web import streaming
from dkgp.service.web.streaming import EventHub
from tests.service.stage import BEARER, DEADLINE_SECONDS, Stage, served

FOLLOWERS = 200


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def sequences(lines: bytes | str) -> list[int]:
    return [json.loads(line)["sequence"] for line in lines.splitlines() if line.strip()]


def test_events_so_far(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PAGE", 7)
    job_id = stage.submit()["id"]
    with contextlib.closing(stage.events(job_id)) as writer:
        for i in range(30):
            writer.write("note", message=f"note {i}")
    response = stage.client.get(f"/v1/jobs/{job_id}/events")
    assert response.headers["content-type"].startswith("application/x-ndjson")
    events = [json.loads(line) for line in response.text.splitlines()]
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert [event["message"] for event in events if event["kind"] == "note"] == [f"note {i}" for i in range(30)]
    last = events[-1]["sequence"]
    assert sequences(stage.client.get(f"/v1/jobs/{job_id}/events?after={last - 3}").text) == [last - 2, last - 1, last]
    assert stage.client.get(f"/v1/jobs/{job_id}/events?after={last}").text == ""
    for bad in ("after=x", "after=-2", "follow=maybe", f"after={2**60}"):
        assert stage.client.get(f"/v1/jobs/{job_id}/events?{bad}").status_code == 422


@pytest.mark.long
def test_a_follower_sees_what_comes_until_the_end(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    writer = stage.events(job_id)
    with (
        served(stage) as url,
        httpx.Client(base_url=url, headers=BEARER, timeout=DEADLINE_SECONDS, trust_env=False) as client,
        client.stream("GET", f"/v1/jobs/{job_id}/events?follow=true") as response,
    ):
        lines = response.iter_lines()
        first = json.loads(next(lines))
        assert (first["kind"], first["state"]) == ("state", "queued")
        for i in range(3):
            # Each is here before the next is written.
            writer.write("note", message=f"note {i}")
            assert json.loads(next(line for line in lines if line))["message"] == f"note {i}"
        client.post(f"/v1/jobs/{job_id}/cancel")
        rest = [json.loads(line) for line in lines if line]
        assert rest[-1]["state"] == "cancelled"
    writer.close()
    assert stage.service.hub.followers == 0


def test_many_followers_share_one_look_at_the_file(stage: Stage) -> None:
    """All get everything, wherever they begin, and no thread is taken for each."""
    job_id = stage.submit()["id"]
    writer = stage.events(job_id)
    for i in range(50):
        writer.write("note", message=f"before {i}")
    found: dict[int, bytes] = {}

    async def follow(hub: EventHub, number: int, after: int) -> None:
        async for lines in hub.follow(job_id, after):
            found[number] = found.get(number, b"") + lines

    async def run() -> int:
        hub = EventHub(stage.queue, keep_alive_seconds=0.05)
        followers = [asyncio.create_task(follow(hub, i, i % 40 - 1)) for i in range(FOLLOWERS)]
        async with asyncio.timeout(DEADLINE_SECONDS):
            # Silence is broken by blank lines.
            while len(found) < FOLLOWERS or not any(b"\n\n" in lines for lines in found.values()):
                await asyncio.sleep(0.01)
            assert hub.followers == FOLLOWERS
            for i in range(20):
                await asyncio.to_thread(writer.write, "note", message=f"after {i}")
            threads = threading.active_count()
            await asyncio.to_thread(stage.queue.request_cancel, job_id)
            await asyncio.gather(*followers)
        assert hub.followers == 0
        return threads

    before = threading.active_count()
    threads = asyncio.run(run())
    writer.close()
    last = sequences(stage.client.get(f"/v1/jobs/{job_id}/events").text)[-1]
    for i in range(FOLLOWERS):
        assert sequences(found[i]) == list(range(i % 40, last + 1))
    # The loop's own pool, which does not grow with the followers.
    assert threads - before < 40


def test_one_that_is_far_behind_reads_the_file(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """More events than memory holds: from the file first, then live, none twice and none left out."""
    monkeypatch.setattr(streaming, "PAGE", 5)
    job_id = stage.submit()["id"]
    writer = stage.events(job_id)
    for i in range(200):
        writer.write("note", message=str(i))

    async def run() -> bytes:
        hub = EventHub(stage.queue)
        found = b""
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for lines in hub.follow(job_id, -1):
                found += lines
                number = len(sequences(found))
                if number in (50, 201):
                    await asyncio.to_thread(writer.write, "note", message="more")
                if number >= 202:
                    with contextlib.suppress(Exception):
                        await asyncio.to_thread(stage.queue.request_cancel, job_id)
        return found

    found = asyncio.run(run())
    writer.close()
    assert sequences(found) == sequences(stage.client.get(f"/v1/jobs/{job_id}/events").text)


def test_followers_that_leave_are_forgotten(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    with served(stage) as url:
        for _ in range(3):
            with httpx.stream(
                "GET", f"{url}/v1/jobs/{job_id}/events?follow=true", headers=BEARER, timeout=DEADLINE_SECONDS
            ) as response:
                lines = response.iter_lines()
                next(lines)
                assert stage.service.hub.followers >= 1
        until(lambda: stage.service.hub.followers == 0, "followers that have left are still counted")


def test_streams_end_when_the_service_stops(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    with (
        served(stage) as url,
        httpx.stream(
            "GET", f"{url}/v1/jobs/{job_id}/events?follow=true", headers=BEARER, timeout=DEADLINE_SECONDS
        ) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        # The loop is another thread's here; in the service itself it is the one that asks.
        stage.service.close()
        assert not any('"error"' in line for line in lines)
    until(lambda: stage.service.hub.followers == 0, "followers of a stopped service are still counted")
    assert stage.service.hub.followers == 0


def test_a_look_that_fails_is_made_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = stage.submit()["id"]
    has_ended, failures = stage.queue.has_ended, iter([True, True])

    def sometimes(wanted: str) -> bool:
        if threading.current_thread() is not threading.main_thread() and next(failures, False):
            raise StorageError("the queue is locked")
        return has_ended(wanted)

    async def run() -> bytes:
        found = b""
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for lines in EventHub(stage.queue).follow(job_id, -1):
                found += lines
        return found

    stage.queue.request_cancel(job_id)
    monkeypatch.setattr(stage.queue, "has_ended", sometimes)
    assert sequences(asyncio.run(run())) == [0, 1]
    assert next(failures, None) is None
    assert "the queue is locked" in caplog.text


def test_too_many_followers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = stage.submit()["id"]
    monkeypatch.setattr(streaming, "MOST_FOLLOWERS", 0)
    response = stage.client.get(f"/v1/jobs/{job_id}/events?follow=true")
    assert response.status_code == 503
    assert stage.client.get(f"/v1/jobs/{job_id}/events").status_code == 200


def test_a_job_whose_last_word_is_missing_ends_all_the_same(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LAST_EVENT_SECONDS", 0.1)
    job_id = stage.submit()["id"]
    stage.queue.request_cancel(job_id)
    path = stage.queue.folder_of(job_id) / "events.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + b'{"sequence": 1, "ki')
    lines = stage.client.get(f"/v1/jobs/{job_id}/events?follow=true").content
    assert sequences(lines) == [0]


def progress(passes: float, gradient: float | None, **more: Any) -> dict[str, Any]:
    return {"label": "train", "column_passes": passes, "gradient_inf_norm": gradient, "tolerance": 1e-3, **more}


def test_the_curve(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    empty = stage.client.get(f"/v1/jobs/{job_id}/curve").json()
    assert (empty["points"], empty["tolerance"]) == ([], None)
    with contextlib.closing(stage.events(job_id)) as writer:
        writer.write("note", message="no point")
        writer.write("progress", label="reading", done=1, total=2, unit="chunks")
        for i in range(1, 6):
            writer.write("progress", **progress(float(i), 10.0**-i))
        # Killed, and gone on from the checkpoint at three passes.
        writer.write("progress", **progress(4.0, 0.5))
        writer.write("progress", **progress(4.5, None))
    found = stage.client.get(f"/v1/jobs/{job_id}/curve").json()
    assert found["points"] == [[1.0, 0.1], [2.0, 0.01], [3.0, 0.001], [4.0, 0.5]]
    assert (found["tolerance"], found["label"], found["measure"]) == (1e-3, "train", "max|g|")
    assert found["last"] == sequences(stage.client.get(f"/v1/jobs/{job_id}/events").text)[-1]


def test_the_curve_is_of_what_is_brought_down(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    with contextlib.closing(stage.events(job_id)) as writer:
        writer.write("progress", **progress(1.0, 0.5))
        for passes, distance in ((2.0, np.inf), (3.0, 0.25), (4.0, 0.125)):
            writer.write("progress", **progress(passes, 7.0, measure="distance", distance=distance))
        writer.write("progress", **progress(5.0, 7.0, measure="no such", distance=0.5))
    found = stage.client.get(f"/v1/jobs/{job_id}/curve").json()
    assert found["points"] == [[3.0, 0.25], [4.0, 0.125]]
    assert (found["measure"], found["tolerance"]) == ("distance", 1e-3)


def test_a_long_curve_is_thinned_to_its_shape(stage: Stage) -> None:
    job_id = stage.submit()["id"]
    with contextlib.closing(stage.events(job_id)) as writer:
        for i in range(3000):
            writer.write("progress", **progress(i / 10, 1.0 / (i + 1)))
    points = stage.client.get(f"/v1/jobs/{job_id}/curve").json()["points"]
    assert 300 <= len(points) < 1200
    assert (points[0], points[-1]) == ([0.0, 1.0], [299.9, 1 / 3000])
    passes = [point[0] for point in points]
    assert passes == sorted(passes)
    assert max(later - earlier for earlier, later in pairwise(passes)) < 3.0
