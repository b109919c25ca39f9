"""Progress: live lines on a terminal, a rewritten line in a notebook, and occasional plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from dkgp.commands.reporting.progress import (
    ConvergenceEstimate,
    Measure,
    WorkProgress,
    choice_line,
    search_line,
    solve_line,
    time_left,
)

if TYPE_CHECKING:
    from dkgp.models import TuneProgress
    from dkgp.solvers import Progress as SolveProgress
    from dkgp.solvers.greedy_basis import GreedyProgress as ChoiceProgress

PLAIN_LINE_SECONDS = 10.0
# Seconds between two updates of a notebook's line.
UPDATE_SECONDS = 0.25
# A rate measured over a shorter time is unreliable.
LEAST_RATE_SECONDS = 1.0


class TerminalReporter:
    """A reporter that writes to standard error, never to standard output.

    Parameters
    ----------
    quiet : bool
        Show warnings only.
    verbose : bool
        Show solver figures instead of plain words.
    console : rich.console.Console, optional
        The console to use instead of standard error.
    plain_line_seconds : float
        Minimum time between two plain lines, in seconds.
    wording : callable, optional
        A function that converts each message to its displayed form.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        console: Console | None = None,
        plain_line_seconds: float = PLAIN_LINE_SECONDS,
        wording: Callable[[str], str] = str,
    ) -> None:
        self.warnings: list[str] = []
        self._quiet, self._verbose, self._wording = quiet, verbose, wording
        self._console = console or Console(stderr=True, highlight=False)
        self._plain_line_seconds = plain_line_seconds

    def note(self, message: str, figures: str | None = None) -> None:
        """Print the message, or its figures in verbose mode."""
        if not self._quiet:
            self._print(self._wording(figures if self._verbose and figures else message))

    def warn(self, message: str) -> None:
        """Print the message and remember it."""
        message = self._wording(message)
        if message not in self.warnings:
            self.warnings.append(message)
            self._print(f"warning: {message}", style="yellow")

    def _print(self, message: str, style: str | None = None) -> None:
        # A signal handler may write while this stream is being written to.
        with suppress(RuntimeError):
            self._console.print(message, style=style, markup=False, soft_wrap=True)

    @contextmanager
    def work(self, label: str) -> Iterator[Callable[[WorkProgress], None]]:
        """Open a bar."""
        pace = _Pace()
        with self._display(label) as show:

            def update(progress: WorkProgress) -> None:
                fraction = progress.done / progress.total if progress.total else None
                title = label if progress.phase == progress.unit else f"{label}: {progress.phase}"
                show(title, fraction, _amount(progress) + pace.update(progress))

            yield update

    @contextmanager
    def search(self, label: str) -> Iterator[Callable[[TuneProgress], None]]:
        """Open the display of a hyperparameter search."""
        with self._display(label) as show:

            def update(progress: TuneProgress) -> None:
                show(label, None, search_line(vars(progress), verbose=self._verbose))

            yield update

    @contextmanager
    def solve(
        self, label: str, tolerance: float, measure: Measure = "gradient_inf_norm"
    ) -> Iterator[Callable[[SolveProgress | WorkProgress], None]]:
        """Open the display of a solve; work within a round is shown if it takes long enough to read."""
        estimate, pace = ConvergenceEstimate(tolerance, measure), _Pace()
        reached = ""
        with self._display(label) as show:

            def update(progress: SolveProgress | WorkProgress) -> None:
                nonlocal reached
                if isinstance(progress, WorkProgress):
                    if progress.total and pace.rate(progress) is not None:
                        share = f"{progress.phase} {100 * progress.done / progress.total:.0f} %"
                        show(label, estimate.fraction, f"{reached}{share}{pace.left(progress)}")
                    return
                estimate.update(progress)
                details = solve_line(vars(progress) | estimate.to_json(), verbose=self._verbose)
                show(label, estimate.fraction, details)
                reached = f"{details}; "

            yield update

    @contextmanager
    def choice(self, label: str, size: int | None) -> Iterator[Callable[[ChoiceProgress | WorkProgress], None]]:
        """Open the display of a basis choice; work between its rounds is shown if it takes long enough."""
        pace = _Pace()
        with self._display(label) as show:

            def update(progress: ChoiceProgress | WorkProgress) -> None:
                if isinstance(progress, WorkProgress):
                    if progress.total and pace.rate(progress) is not None:
                        fraction = progress.done / progress.total
                        show(f"{label}: {progress.phase}", fraction, _amount(progress) + pace.left(progress))
                    return
                details = choice_line(vars(progress), size, verbose=self._verbose)
                show(f"{label}: choice", None if size is None else progress.size / size, details)

            yield update

    @contextmanager
    def _display(self, label: str) -> Iterator[Callable[[str, float | None, str], None]]:
        """Open one live line or occasional plain ones; the yielded function takes label, fraction done and details."""
        if self._quiet:
            yield lambda label, fraction, details: None
        elif (display := notebook_display()) is None and self._console.is_terminal:
            with _LiveLine(self._console, label) as line:
                yield line.show
        else:
            if display is None:
                lines = _HeldLine(self._print, time.monotonic() + self._plain_line_seconds, self._plain_line_seconds)
            else:
                lines = _HeldLine(_written_anew(display), 0.0, UPDATE_SECONDS)
            yield lines.show
            lines.finish()


class _LiveLine:
    def __init__(self, console: Console, label: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[details]}"),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=4,
            transient=False,
        )
        self._task: TaskID = self._progress.add_task(label, total=None, details="")

    def __enter__(self) -> _LiveLine:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, label: str, fraction: float | None, details: str) -> None:
        total = None if fraction is None else 1.0
        self._progress.update(self._task, description=label, total=total, completed=fraction or 0.0, details=details)


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` in a notebook kernel, otherwise None. This never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    display: Callable[..., Any] = sys.modules["IPython.display"].display
    return display


def _written_anew(display: Callable[..., Any]) -> Callable[[str], None]:
    """Return a function that writes a notebook's output line in place of the previous one."""
    handle: Any = None

    def write(line: str) -> None:
        nonlocal handle
        content: Any = {"text/plain": line}
        if handle is None:
            handle = display(content, raw=True, display_id=True)
        else:
            handle.update(content, raw=True)

    return write


class _HeldLine:
    """A line that is written at intervals after a delay; the last one is written at the end."""

    def __init__(self, write: Callable[[str], None], first: float, every_seconds: float) -> None:
        self._write, self._next, self._every_seconds = write, first, every_seconds
        self._held: str | None = None

    def show(self, label: str, fraction: float | None, details: str) -> None:
        share = "" if fraction is None else f" {100 * fraction:3.0f} %,"
        self._held = f"{label}:{share} {details}"
        if time.monotonic() >= self._next:
            self.finish()

    def finish(self) -> None:
        """Write the last line if it was delayed."""
        if self._held is not None:
            self._write(self._held)
            self._held, self._next = None, time.monotonic() + self._every_seconds


class _Pace:
    """Rate and remaining time of each phase of some work, counted from the phase's first report.

    Progress before that report is ignored: an earlier run, or set-up that all later parts share, had another rate.
    """

    def __init__(self) -> None:
        self._phase: str | None = None
        self._first_done, self._first_seconds = 0, 0.0
        self._rate: float | None = None

    def update(self, progress: WorkProgress) -> str:
        """Return rate and remaining time, as far as they are known."""
        rate = self.rate(progress)
        if rate is None:
            return ""
        figure, unit = (rate / 2**20, "MiB") if progress.unit == "bytes" else (rate, progress.unit)
        return f", {figure:,.{1 if figure < 10 else 0}f} {unit}/s{self.left(progress)}"

    def rate(self, progress: WorkProgress) -> float | None:
        """Record a report; return the rate in units per second once it can be measured."""
        now = time.monotonic()
        # A repeated phase starts at its previous starting point, or before it.
        if progress.phase != self._phase or progress.done <= self._first_done:
            self._phase, self._first_done, self._first_seconds = progress.phase, progress.done, now
        done, seconds = progress.done - self._first_done, now - self._first_seconds
        self._rate = None if done <= 0 or seconds < LEAST_RATE_SECONDS else done / seconds
        return self._rate

    def left(self, progress: WorkProgress) -> str:
        """Return the remaining time at the rate of the last report."""
        if progress.total is None or self._rate is None or progress.done >= progress.total:
            return ""
        return f", {time_left((progress.total - progress.done) / self._rate)}"


def _amount(progress: WorkProgress) -> str:
    if progress.unit == "bytes":
        scale, unit = (2**10, "KiB") if max(progress.done, progress.total or 0) < 2**20 else (2**20, "MiB")
        total = "" if progress.total is None else f" of {progress.total / scale:,.1f}"
        return f"{progress.done / scale:,.1f}{total} {unit}"
    of = "" if progress.total is None else f" of {progress.total:,}"
    return f"{progress.done:,}{of} {progress.unit}"
