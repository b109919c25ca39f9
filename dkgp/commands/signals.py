"""Ctrl-C and SIGTERM: the first asks for a checkpoint and an orderly end, the second ends at once.

A process that is supervised may get the same signal twice, from its supervisor and from what ends them both; whoever
means to end it at once has SIGKILL. There only the first counts.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_supervised = False


class Interruption:
    """A flag that a signal raises to ask for the end; calling it answers."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._asked = False

    def __call__(self) -> bool:
        """True if a signal has come."""
        return self._asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        if self._asked:
            if _supervised:
                return
            raise _interrupt(number)
        self._asked = True
        more = "" if _supervised else "; once more ends at once"
        self._announce(f"{_interrupt(number)}: finishing this round and saving a checkpoint{more}")


@contextmanager
def interruptible(announce: Callable[[str], None]) -> Iterator[Interruption]:
    """Handle SIGINT and SIGTERM by an `Interruption` while the context is open.

    Outside the main thread, where Python lets nobody handle signals, the interruption never happens.
    """
    interruption = Interruption(announce)
    with _handlers(interruption.handle):
        yield interruption


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise `KeyboardInterrupt`, as SIGINT does, so that half-written outputs are removed."""
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not (asked and _supervised):
            asked = True
            raise _interrupt(number)

    with _handlers(stop):
        yield


@contextmanager
def first_signal_only() -> Iterator[None]:
    """While the context is open, signals after the first change nothing."""
    global _supervised
    before, _supervised = _supervised, True
    try:
        yield
    finally:
        _supervised = before


def _interrupt(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")


@contextmanager
def _handlers(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
