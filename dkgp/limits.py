"""Time limits of the work in progress, which loops read.

A run that has a limit opens a `Deadline` around each of its steps (`limited`). Loops read it without an argument:

- from `finish` on, a loop that has a usable result ends with it (`should_finish`);
- from `stop` on, all work ends, as if a signal had asked for it (`is_over`);
- work of known size ends as soon as its measured speed shows that it would miss `stop` (`Pace`).

Without a deadline nothing ends early. Deadlines hold in the thread that opens them, which is the coordinator's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True)
class Deadline:
    """Times of `clock`, in seconds, at which work should finish and at which it must stop.

    Attributes
    ----------
    slowness
        Measured time per processor second of this thread, when the work began; 1 for an idle machine.
    measured : dict
        "seconds": the time that work which was too slow would have taken, by its measured speed. "bytes": the memory
        that ended the work.
    """

    finish: float
    stop: float
    clock: Clock = time.monotonic
    slowness: float = 1.0
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the work must stop."""
        return self.stop - self.clock()


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def limited(deadline: Deadline) -> Iterator[Deadline]:
    """Apply a deadline to the work in the context, within that of an outer context."""
    outer = _current.get()
    if outer is not None:
        deadline = replace(deadline, finish=min(deadline.finish, outer.finish), stop=min(deadline.stop, outer.stop))
    token = _current.set(deadline)
    try:
        yield deadline
    finally:
        _current.reset(token)


@contextmanager
def finishing_within(seconds: float) -> Iterator[None]:
    """Let the work in the context finish after so many seconds, if there is a deadline at all."""
    outer = _current.get()
    if outer is None:
        yield
        return
    with limited(replace(outer, finish=outer.clock() + seconds)):
        yield


_is_command = False


def count_start_up() -> None:
    """Count the start of this process within a command's time limit."""
    global _is_command
    _is_command = True


def start_up_seconds() -> float:
    """Return the seconds since this process started; 0 if it does not run a command."""
    if not _is_command:
        return 0.0
    import psutil  # help does not need it

    return max(0.0, time.time() - float(psutil.Process().create_time()))


def should_finish() -> bool:
    """Return True if work with a usable result should end with it."""
    deadline = _current.get()
    return deadline is not None and deadline.clock() >= deadline.finish


def current_finish() -> Callable[[], bool]:
    """Return `should_finish` of the current deadline, for threads of other contexts."""
    deadline = _current.get()
    return lambda: deadline is not None and deadline.clock() >= deadline.finish


def seconds_to_finish() -> float:
    """Return the time until work with a usable result should end with it; infinite without a deadline."""
    deadline = _current.get()
    return math.inf if deadline is None else deadline.finish - deadline.clock()


def seconds_to_stop() -> float:
    """Return the time until all work ends; infinite without a deadline."""
    deadline = _current.get()
    return math.inf if deadline is None else deadline.left


def measured_slowness() -> float:
    """Return the deadline's `slowness`; 1 without a deadline."""
    deadline = _current.get()
    return 1.0 if deadline is None else deadline.slowness


def is_over() -> bool:
    """Return True if work must stop."""
    deadline = _current.get()
    return deadline is not None and (deadline.left <= 0.0 or "bytes" in deadline.measured)


def elapsed_clock() -> Clock:
    """Return the clock of the deadline, or the process's."""
    deadline = _current.get()
    return time.perf_counter if deadline is None else deadline.clock


# Share of the time until the stop after which a measured speed decides.
TRUSTED_SHARE = 0.1


class Pace:
    """The measured speed of work of `total` units; `done` units are complete when it starts."""

    def __init__(self, total: float, done: float = 0.0) -> None:
        self._total, self._before = total, done
        self._deadline = _current.get()
        self._began = 0.0 if self._deadline is None else self._deadline.clock()

    def is_too_slow(self, done: float) -> bool:
        """Return True if the remaining units would miss the stop at the speed of those that are done."""
        deadline, units = self._deadline, done - self._before
        if deadline is None or units <= 0.0:
            return False
        elapsed, time_left = deadline.clock() - self._began, deadline.left
        if elapsed < TRUSTED_SHARE * (elapsed + time_left):
            return False
        remaining = (self._total - done) * elapsed / units
        if remaining > time_left:
            deadline.measured["seconds"] = elapsed + remaining
        return remaining > time_left
