"""The time limit of a fit: the share of each step, and attempts that end in time.

Shares are of the whole limit. A step that ends early leaves its time to later ones. Training, prediction and the last
steps keep a share however long earlier steps took, so the total can exceed the limit by that share.

Imports and compilation cannot be interrupted. Each step therefore has a fixed cost in processor seconds (`LEAST`). The
current load of the machine turns it into time, which earlier steps leave to later ones. A limit below all fixed costs
is too short: the fit then makes the smallest model as soon as possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from dkgp.commands.reporting.outputs import Document
from dkgp.commands.signals import TimeUpError, enforced
from dkgp.data.types import FloatArray
from dkgp.errors import MemoryBudgetError
from dkgp.kernels import SquaredExponential
from dkgp.limits import Clock, Deadline, start_up_seconds
from dkgp.registry import byte_text

# Time by which each step should finish or must stop.
TRANSFORM, TUNE, TUNE_END, CHOOSE = 0.1, 0.45, 0.05, 0.05
# Processor seconds that steps take at least, on an idle machine: imports, and compiled code that is loaded.
LEAST = {"ingest": 0.2, "tune": 0.5, "choose": 0.5, "train": 0.2, "predict": 0.2, "evaluate": 0.1, "report": 0.3}
# A kernel with the least code to compile.
LEAST_KERNEL = SquaredExponential((1.0,))
# The same for comparisons that a fit does without if time is short: with simpler models, and of machine figures.
LEAST_RIVALS, LEAST_MEASUREMENT = 1.0, 1.0
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
# Processor seconds of a measurement of the load; on a busy machine it ends after this share of the limit, or at least.
_PROBE_SECONDS, _PROBE_SHARE, _LEAST_PROBE_SECONDS = 0.05, 0.0025, 1e-3
# Share of the limit after which the load is measured again, and weight of earlier measurements.
_RECENT, _FORGET = 0.02, 0.5
# Share of the memory limit that is near it, and growth below which an attempt is not the cause.
NEAR, LEAST_GROWTH = 0.95, 64 * 1024**2


def _used_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _scheduled() -> FloatArray:
    """Return the seconds that this thread ran and waited for a processor; zeros if the system does not count them."""
    try:
        counts = Path("/proc/thread-self/schedstat").read_text().split()
        return 1e-9 * np.array(counts[:2], dtype=np.float64)
    except (OSError, ValueError):
        return np.zeros(2)


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
        self.start_up = start_up_seconds()
        self._began, self._earlier = clock(), self.start_up
        # Another clock need not advance while the thread waits.
        self.counts_waiting = clock is time.monotonic
        self._slowness: tuple[float, float] | None = None
        self._scheduled = _scheduled() if self.start_up == 0.0 else np.zeros(2)
        self._recent = np.zeros(2)

    def resume(self, earlier: float) -> None:
        """Count seconds of an earlier run."""
        self._earlier = self.start_up + earlier

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
        return self.seconds - max(REPORT * self.seconds, self.least("evaluate")) - self.elapsed

    @property
    def for_pictures(self) -> float:
        """Seconds for the last step, which may exceed the limit a little."""
        return (1.0 + REPORT) * self.seconds - self.elapsed

    def least(self, step: str, code_seconds: float = 0.0) -> float:
        """Return the seconds that this step and all later ones take at least, at the current load.

        `code_seconds` are processor seconds for code that has to be compiled.
        """
        steps = list(LEAST)
        return self.slowness() * (code_seconds + sum(LEAST[name] for name in steps[steps.index(step) :]))

    def attempt(self, work: Callable[[], Document], finish: float, stop: float | None = None) -> Attempt:
        """Run work that should finish after so many seconds and must stop after so many.

        `stop` None: the work has no alternative, and runs to its end.
        """
        began = self.clock()
        end = np.inf if stop is None else max(stop, LEAST_SECONDS)
        deadline = Deadline(began + max(0.0, finish), began + end, self.clock, self.slowness())
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
                lack = f"memory limit, {byte_text(deadline.measured['bytes'])} in use"
        except MemoryBudgetError as error:
            if stop is None:
                raise
            lack = f"memory limit: {error}"
        now = self.clock()
        return Attempt(document, now - began, deadline.measured.get("seconds"), now >= deadline.finish, lack)

    def slowness(self) -> float:
        """Return the wall-clock seconds per processor second at the current load; 1 for an idle machine.

        A thread that has just waited runs at once, so a short measurement alone can miss the load. The time that the
        thread waited for a processor since the last measurement counts too.
        """
        began, own = self.clock(), time.thread_time()
        if self._slowness is not None and began - self._slowness[0] < _RECENT * self.seconds:
            return self._slowness[1]
        values = np.linspace(0.0, 1.0, 4096)
        now, used = began, 0.0
        while used < _LEAST_PROBE_SECONDS or (used < _PROBE_SECONDS and now - began < _PROBE_SHARE * self.seconds):
            np.sin(values)
            now, used = self.clock(), time.thread_time() - own
        ratio = max((now - began) / used, self._waiting() if self.counts_waiting else 1.0)
        self._slowness = now, ratio if ratio > IDLE else 1.0
        return self._slowness[1]

    def _waiting(self) -> float:
        """Return the seconds in which the thread ran or waited for a processor, per second that it ran."""
        now = _scheduled()
        self._recent = _FORGET * self._recent + now - self._scheduled
        self._scheduled = now
        return float(self._recent.sum() / self._recent[0]) if self._recent[0] > 0.0 else 1.0
