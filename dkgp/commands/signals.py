"""Stop signals (SIGINT, SIGTERM): the first requests a checkpoint and an orderly end, the second ends at once.

Within rounds a handler only sets a flag, which the solve checks between rounds and as tasks finish. Elsewhere no code
checks a flag, and a system call continues after a handler that returns. The handler therefore raises
`KeyboardInterrupt`. Python drops an exception that is raised in a callback of the garbage collector or in a finaliser.
Such a signal is sent again until its exception has left the callback.

A time limit (`dkgp.limits`) ends work in the same two steps: first the flag, which rounds check, then an exception in
the main thread (`enforced`). The second step is for work that checks no flag.

A supervised process may receive the same signal twice: from its supervisor, and from the program that ends them both.
In such a process, signals after the first have no effect. SIGKILL ends it at once.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from dkgp.errors import DkgpError, ExitCode, InterruptedRunError
from dkgp.limits import Deadline, is_over, limited

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The signal that a thread of this process sends when a time limit is not heeded.
_TIME_UP = signal.SIGUSR2
_POLL_SECONDS, _AGAIN_SECONDS = 0.02, 5.0
# Polls of the clock for each of the memory, and seconds that work has to end by itself when memory is short.
_POLLS_OF_MEMORY, _MEMORY_GRACE_SECONDS = 5, 2.0
# Time that work has to end by itself, as a share of its whole time.
_GRACE_SHARE = 0.05
_ANNOUNCE_SECONDS = 5.0
# Seconds until a dropped signal is sent again, and from one attempt to the next.
_RESEND_SECONDS, _NEXT_RESEND_SECONDS = 0.01, 1.0
_supervised = False
_held: list[int] = []
_open: Interruption | None = None  # that of the innermost open `interruptible`
_dropped: StopSignal | None = None  # the one that Python dropped, until it is raised again
_user_stops = 0  # stop signals so far
_noting = False  # the main thread is noting that: an exception that is raised meanwhile is lost


class StopSignal(KeyboardInterrupt):
    """A stop signal that interrupts the main thread."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class Interruption:
    """A flag that a signal sets to request a stop; calling the object returns the flag."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._asked = False
        self._announced = _thread.allocate_lock()

    def __call__(self) -> bool:
        """Return True if a signal has arrived or the time limit is over."""
        return self._asked or is_over()

    def ask(self, number: int) -> None:
        """Set the flag, and announce the stop in another thread.

        The main thread may be writing to the same stream, and a handler must not re-enter that stream.
        """
        global _user_stops
        self._asked = True
        _user_stops += 1
        more = "" if _supervised else "; a second signal ends the command at once"
        message = f"{StopSignal(number)}: stopping; a command with checkpoints saves its rounds first{more}"
        self._announced.acquire()
        _thread.start_new_thread(self._tell, (message,))

    def wait_announced(self) -> None:
        """Wait until a pending announcement is written."""
        if self._announced.acquire(timeout=_ANNOUNCE_SECONDS):
            self._announced.release()

    def _tell(self, message: str) -> None:
        try:
            with suppress(Exception):  # a closed terminal must not keep the checkpoint from being saved
                self._announce(message)
        finally:
            self._announced.release()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if _taken_back():
            raise StopSignal(number)
        if not self._asked:
            self.ask(number)
        elif not _supervised:
            raise StopSignal(number)


@contextmanager
def interruptible(announce: Callable[[str], None]) -> Iterator[Interruption]:
    """Handle SIGINT and SIGTERM with an `Interruption` while the context is open.

    Python allows signal handlers only in the main thread. In other threads, the interruption never happens.
    """
    global _open
    interruption, before = Interruption(announce), _open
    with _handlers(interruption.handle):
        _open = interruption
        dropped = _dropped
        if dropped is not None and _taken_back():
            interruption.ask(dropped.number)
        try:
            yield interruption
        finally:
            _open = before
            interruption.wait_announced()


def stop_requested() -> bool:
    """Return True if a signal or the time limit has requested the current rounds to stop."""
    return is_over() if _open is None else _open()


class TimeUpError(Exception):
    """The time or the memory of some work is over; it had no result. Only `enforced` raises it."""


@contextmanager
def enforced(deadline: Deadline, used_bytes: Callable[[], int | None] = lambda: None) -> Iterator[None]:
    """Apply a deadline to the work in the context; raise `TimeUpError` if the deadline ended it.

    `used_bytes` is called now and then; it returns the memory in use if that ends the work too.

    Work that checks the deadline ends by itself. Other work is interrupted in the main thread after a grace period,
    except while it imports a module: a module that is half imported would remain unusable.
    """
    stops, began = _user_stops, deadline.clock()
    over, fired = threading.Event(), threading.Event()
    main, grace = threading.main_thread(), _GRACE_SHARE * max(0.0, deadline.stop - began)

    def watch() -> None:
        number, exceeded = 0, 0.0
        while not over.wait(_AGAIN_SECONDS if fired.is_set() else _POLL_SECONDS):
            number += 1
            if not exceeded and number % _POLLS_OF_MEMORY == 0 and (used := used_bytes()) is not None:
                deadline.measured["bytes"], exceeded = used, time.monotonic()
            late = deadline.clock() >= deadline.stop + grace
            if late or (exceeded and time.monotonic() - exceeded >= _MEMORY_GRACE_SECONDS):
                signal.pthread_kill(main.ident or 0, _TIME_UP)

    def handle(number: int, frame: FrameType | None) -> None:
        if not over.is_set() and (_taken_back() or not _is_importing(frame)):
            fired.set()
            raise StopSignal(number)

    watcher = threading.Thread(target=watch, name="dkgp-time-limit", daemon=True)
    try:
        with limited(deadline), _handlers(handle, (_TIME_UP,)):
            if threading.current_thread() is main:
                watcher.start()
            try:
                try:
                    yield
                finally:
                    over.set()
            finally:
                # Its signal would end the process once the handler is gone.
                over.set()
                if watcher.ident is not None:
                    watcher.join()
    except StopSignal as stop:
        if stop.number != _TIME_UP:
            raise
        raise TimeUpError from stop
    except InterruptedRunError as error:
        if _user_stops != stops:
            raise
        raise TimeUpError from error
    except DkgpError:
        raise
    except Exception as error:
        # An exception after the signal comes from code that it interrupted.
        if not fired.is_set():
            raise
        raise TimeUpError from error


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Make SIGTERM raise `KeyboardInterrupt`, as SIGINT does, so that partly written outputs are removed.

    An exception other than `DkgpError` after a signal comes from interrupted code, such as an import. It also becomes
    a `KeyboardInterrupt`.
    """
    asked: int | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if _taken_back() or asked is None or not _supervised:
            asked = number
            raise StopSignal(number)

    with _handlers(stop):
        try:
            if _held:
                asked = _held.pop()
                raise StopSignal(asked)
            yield
        except DkgpError:
            raise
        except Exception as error:
            if asked is None:
                raise
            raise StopSignal(asked) from error


@contextmanager
def held_signals() -> Iterator[None]:
    """Delay a stop signal until `terminate_as_interrupt` opens; a second one ends the process at once.

    This protects a command's imports: extension modules may turn an interruption into an error of their own.
    """

    def hold(number: int, frame: FrameType | None) -> None:
        if _held:
            os._exit(int(ExitCode.INTERRUPTED))
        _held.append(number)

    with _handlers(hold):
        yield


@contextmanager
def first_signal_only() -> Iterator[None]:
    """Ignore signals after the first while the context is open."""
    global _supervised
    before, _supervised = _supervised, True
    try:
        yield
    finally:
        _supervised = before


def _taken_back() -> bool:
    """Return True if the exception of an earlier signal was dropped, and reset that state."""
    global _dropped
    dropped, _dropped = _dropped is not None, None
    return dropped


def _send_again(dropped: StopSignal) -> None:
    time.sleep(_RESEND_SECONDS)
    while _noting:
        time.sleep(_RESEND_SECONDS)
    while _dropped is dropped:
        # Send it to the main thread to interrupt its system call: a signal to the process may reach another thread.
        # A signal that arrives just before a system call does not interrupt it, so one attempt is not enough.
        signal.pthread_kill(threading.main_thread().ident or 0, dropped.number)
        time.sleep(_NEXT_RESEND_SECONDS)


@contextmanager
def _handlers(
    handler: Callable[[int, FrameType | None], Any], signals: tuple[signal.Signals, ...] = _SIGNALS
) -> Iterator[None]:
    """Install the handler for the signals, the stop signals by default; send a signal again if Python drops it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note_dropped(unraisable: sys.UnraisableHookArgs) -> None:
        global _dropped, _noting
        if isinstance(unraisable.exc_value, StopSignal):
            # Another object each time: a thread that sends an earlier one then ends.
            _noting, _dropped = True, StopSignal(unraisable.exc_value.number)
            _thread.start_new_thread(_send_again, (_dropped,))
            _noting = False
        else:
            hook_before(unraisable)

    hook_before, sys.unraisablehook = sys.unraisablehook, note_dropped
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
        sys.unraisablehook = hook_before
