"""The time limit of a fit: the share of each step, and attempts that end in time.

Shares are of the whole limit. A step that ends early leaves its time to later ones. Training, prediction and the last
steps keep a share however long earlier steps took, so the total can exceed the limit by that share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.signals import TimeUpError, enforced
from dkgp.errors import MemoryBudgetError
from dkgp.limits import Clock, Deadline

# Time by which each step should finish or must stop.
TRANSFORM, TUNE, TUNE_END, CHOOSE = 0.1, 0.45, 0.05, 0.05
# Kept for evaluation and page.
REPORT = 0.08
# Left for the model and its predictions at least, if earlier steps took longer than their shares.
MODEL = 0.2
# Share of the remaining time that a forecast may take, and limits of the share that the first model gets for training.
FORECAST, LEAST_TRAINING, MOST_TRAINING = 0.85, 0.3, 0.75
# Share of the remaining time for each further attempt.
ATTEMPT = 0.5
# Seconds that every attempt has at least: a limit of milliseconds ends in a refusal, not in interrupted steps.
LEAST_SECONDS = 1.0
# Less wall-clock time per processor second counts as an idle machine.
IDLE = 1.25
_PROBE_SECONDS = 0.05
# Share of the memory limit that is near it, and growth below which an attempt is not the cause.
NEAR, LEAST_GROWTH = 0.95, 64 * 1024**2


def _used_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


@dataclass(frozen=True)
class Attempt:
    """An attempt that ended: its document, or None if the time was over.

    Attributes
    ----------
    seconds
        Time that it took.
    needed
        Time that it would have taken by its measured speed, if that is known.
    finished_early
        Whether its time to finish had come before it ended.
    lack
        The limit that ended it, in words; empty for an attempt with a document.
    """

    document: Document | None
    seconds: float
    needed: float | None
    finished_early: bool
    lack: str = ""


class Budget:
    """The time of a fit.

    Parameters
    ----------
    seconds : float
        The limit.
    clock : callable
        Clock of the limit.
    memory_bytes : int, optional
        Memory limit. Attempts end if this process comes near it.
    """

    def __init__(self, seconds: float, clock: Clock = time.monotonic, memory_bytes: int | None = None) -> None:
        self.seconds, self.clock, self.memory_bytes = seconds, clock, memory_bytes
        self._began, self._earlier = clock(), 0.0

    def resume(self, earlier: float) -> None:
        """Count seconds of an earlier run."""
        self._earlier = earlier

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return self._earlier + self.clock() - self._began

    @property
    def for_model(self) -> float:
        """Seconds for training and predicting."""
        return max(self.for_predictions, MODEL * self.seconds)

    @property
    def for_predictions(self) -> float:
        """Seconds until evaluation and page."""
        return (1.0 - REPORT) * self.seconds - self.elapsed

    @property
    def for_pictures(self) -> float:
        """Seconds for the last step, which may exceed the limit a little."""
        return (1.0 + REPORT) * self.seconds - self.elapsed

    def attempt(self, work: Callable[[], Document], finish: float, stop: float | None = None) -> Attempt:
        """Run work that should finish after so many seconds and must stop after so many.

        `stop` None: the work has no alternative, and runs to its end.
        """
        began = self.clock()
        end = np.inf if stop is None else max(stop, LEAST_SECONDS)
        deadline = Deadline(began + max(0.0, finish), began + end, self.clock)
        document, lack, least = None, "", _used_bytes() + LEAST_GROWTH

        def used() -> int | None:
            """Return the memory in use if it is near the limit and this attempt has taken some of it."""
            bytes_now = _used_bytes()
            near = self.memory_bytes is not None and bytes_now >= max(least, NEAR * self.memory_bytes)
            return bytes_now if near else None

        try:
            with enforced(deadline, lambda: None if stop is None else used()):
                document = work()
        except TimeUpError:
            lack = "time limit"
            if "bytes" in deadline.measured:
                lack = f"memory limit, {deadline.measured['bytes'] / 1024**3:.2f} GiB in use"
        except MemoryBudgetError as error:
            if stop is None:
                raise
            lack = f"memory limit: {error}"
        now = self.clock()
        return Attempt(document, now - began, deadline.measured.get("seconds"), now >= deadline.finish, lack)

    def slowness(self) -> float:
        """Return the wall-clock seconds per processor second at the current load; 1 for an idle machine."""
        values = np.linspace(0.0, 1.0, 4096)
        began, own = self.clock(), time.thread_time()
        while time.thread_time() - own < _PROBE_SECONDS:
            np.sin(values)
        ratio = (self.clock() - began) / (time.thread_time() - own)
        return ratio if ratio > IDLE else 1.0
