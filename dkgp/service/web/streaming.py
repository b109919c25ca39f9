"""Streams of a job's events: any number of followers, one thread that looks at the files for all of them.

sse-starlette would replace two lines of this file, the blank line that keeps a silent stream alive. It writes
server-sent events, while callers here read one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dkgp.commands.reporting.progress import measured
from dkgp.service.access import Caller
from dkgp.service.queue.events import EventReader
from dkgp.service.queue.job_queue import JobQueue
from dkgp.service.queue.records import TERMINAL, UnknownJobError

log = logging.getLogger("dkgp.service")

Event = dict[str, Any]

PAGE = 500
POLL_SECONDS = 0.2
STATE_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 10.0
# A job's process may write its last event just after its state.
LAST_EVENT_SECONDS = 2.0
# Of the 500 connections that there are, streams leave some to other calls; and one token's leave some to other tokens.
MOST_FOLLOWERS = 400
MOST_FOLLOWERS_OF_TOKEN = 80
MOST_POINTS = 600


@dataclass
class _Feed:
    job_id: str
    reader: EventReader
    path: Path
    followers: int = 0
    recent: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=2 * PAGE))
    last: int = -1
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    # Of the thread that looks:
    read_up_to: int = -1
    size: int = -1
    looked_at_state: float = float("-inf")
    terminal_since: float | None = None
    end_sent: bool = False

    def look(self, queue: JobQueue, now: float) -> tuple[list[Event], bool]:
        """Read new events, at most the last ones; return them, and whether the job has ended. Runs in a thread."""
        events: deque[Event] = deque(maxlen=self.recent.maxlen)
        if self.terminal_since is None and now - self.looked_at_state >= STATE_SECONDS:
            self._look_at_state(queue, now)
        size = _size(self.path)
        if size != self.size:
            while page := self.reader.read(self.read_up_to, PAGE):
                self.read_up_to = page[-1]["sequence"]
                events.extend(page)
            self.size = size
        if events:
            self.end_sent = _is_end(events[-1])
            if any(event.get("kind") == "state" for event in events):
                self._look_at_state(queue, now)
        silent = self.terminal_since is not None and now - self.terminal_since > LAST_EVENT_SECONDS
        return list(events), silent or (self.terminal_since is not None and self.end_sent)

    def _look_at_state(self, queue: JobQueue, now: float) -> None:
        self.looked_at_state = now
        try:
            is_terminal = queue.has_ended(self.job_id)
        except UnknownJobError:
            is_terminal = True
        if not is_terminal:
            self.terminal_since = None
        elif self.terminal_since is None:
            self.terminal_since = now


class EventHub:
    """Gives out the events of jobs.

    One task looks at the files of all jobs that are followed, in a thread, a few times a second; followers wait for it
    without a thread of their own. A follower that is behind reads pages from the file, a few such readers at a time. A
    stream that is silent for `keep_alive_seconds` says a blank line. Belongs to one event loop.
    """

    def __init__(self, queue: JobQueue, *, keep_alive_seconds: float = KEEP_ALIVE_SECONDS) -> None:
        self._queue = queue
        self._keep_alive_seconds = keep_alive_seconds
        self._feeds: dict[str, _Feed] = {}
        self._of_token: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._readers = asyncio.Semaphore(4)
        self._closed = False

    @property
    def followers(self) -> int:
        """Number of streams that are open."""
        return sum(feed.followers for feed in self._feeds.values())

    def is_full(self, caller: Caller) -> bool:
        """True if another follower of the caller would be one too many; its administrators share one limit with all."""
        is_limited = not caller.is_admin and self._of_token[caller.name] >= MOST_FOLLOWERS_OF_TOKEN
        return is_limited or self.followers >= MOST_FOLLOWERS

    def close(self) -> None:
        """End all streams after the events that were read so far."""
        self._closed = True
        for feed in self._feeds.values():
            _wake(feed)

    async def events(self, job_id: str, after: int) -> AsyncIterator[bytes]:
        """Yield the lines of the events there are, those with a sequence number above `after`."""
        reader = EventReader(_event_file(self._queue, job_id))
        while page := await self._read(reader, after):
            yield b"".join(_line(event) for event in page)
            after = page[-1]["sequence"]

    async def follow(self, job_id: str, after: int, token: str = "") -> AsyncIterator[bytes]:
        """Yield the lines of events as they come, until the job has ended; blank lines in between keep it alive.

        `token` is the name of the token that follows.
        """
        feed = self._feeds.get(job_id)
        if feed is None:
            path = _event_file(self._queue, job_id)
            feed = self._feeds[job_id] = _Feed(job_id, EventReader(path), path)
        feed.followers += 1
        self._of_token[token] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        behind = EventReader(feed.path)
        try:
            while True:
                changed, ended = feed.changed, feed.ended
                if after < feed.last:
                    lines, after = await self._lines(feed, behind, after)
                    yield lines
                elif ended or self._closed:
                    return
                else:
                    try:
                        await asyncio.wait_for(changed.wait(), self._keep_alive_seconds)
                    except TimeoutError:
                        yield b"\n"
        finally:
            feed.followers -= 1
            self._of_token[token] -= 1
            if feed.followers == 0:
                self._feeds.pop(job_id, None)

    async def _lines(self, feed: _Feed, behind: EventReader, after: int) -> tuple[bytes, int]:
        """Read the events after `after`: from memory if they are there, else a page of the file."""
        if feed.recent and after >= feed.recent[0][0] - 1:
            lines = b"".join(line for sequence, line in feed.recent if sequence > after)
            return lines, feed.recent[-1][0]
        page = await self._read(behind, after)
        if not page:
            # The file has gone, with its job: there is nothing more to come.
            return b"", feed.last
        return b"".join(_line(event) for event in page), int(page[-1]["sequence"])

    async def _read(self, reader: EventReader, after: int) -> list[Event]:
        async with self._readers:
            return await asyncio.to_thread(reader.read, after, PAGE)

    async def _watch(self) -> None:
        while self._feeds and not self._closed:
            feeds = [feed for feed in self._feeds.values() if not feed.ended]
            news = await asyncio.to_thread(self._look, feeds)
            for feed, (events, ended) in zip(feeds, news, strict=True):
                for event in events:
                    feed.recent.append((event["sequence"], _line(event)))
                    feed.last = event["sequence"]
                feed.ended = ended
                if events or ended:
                    _wake(feed)
            await asyncio.sleep(POLL_SECONDS)

    def _look(self, feeds: list[_Feed]) -> list[tuple[list[Event], bool]]:
        now = time.monotonic()
        news: list[tuple[list[Event], bool]] = []
        for feed in feeds:
            try:
                news.append(feed.look(self._queue, now))
            except Exception:
                # A queue that is locked for long, say. All followers depend on this task: it must go on.
                log.exception("the events of job %s could not be read", feed.job_id)
                # The events read were not sent.
                feed.read_up_to, feed.size = feed.last, -1
                news.append(([], False))
        return news


def read_curve(queue: JobQueue, job_id: str) -> dict[str, Any]:
    """Return how a job's solve has come along so far, as `JobCurve` describes it.

    "points" are pairs of column passes and of the measure of convergence, thinned to a few hundred; "last"
    is the sequence number of the last event that was looked at.
    """
    reader = EventReader(_event_file(queue, job_id))
    points: list[tuple[float, float]] = []
    tolerance = label = measure = None
    last = -1
    while page := reader.read(last, PAGE):
        last = int(page[-1]["sequence"])
        for event in page:
            passes, measurement = event.get("column_passes"), measured(event)
            if event.get("kind") != "progress" or passes is None or measurement is None:
                continue
            # A run that was resumed repeats the rounds since its checkpoint; another solve begins at none.
            while points and (points[-1][0] >= passes or measure != measurement[0]):
                points.pop()
            measure, value = measurement
            points.append((passes, value))
            tolerance, label = event.get("tolerance", tolerance), event.get("label", label)
            if len(points) >= 2 * MOST_POINTS:
                points = points[:-1:2] + points[-1:]
    return {"points": points, "measure": measure, "tolerance": tolerance, "label": label, "last": last}


def _event_file(queue: JobQueue, job_id: str) -> Path:
    return queue.folder_of(job_id) / "events.jsonl"


def _line(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _is_end(event: Event) -> bool:
    return event.get("kind") == "state" and event.get("state") in TERMINAL


def _wake(feed: _Feed) -> None:
    before, feed.changed = feed.changed, asyncio.Event()
    before.set()
