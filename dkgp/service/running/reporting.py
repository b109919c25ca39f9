"""The reporter of a job that a service runs: what a terminal would show goes into the job's event file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dkgp.commands.reporting.convergence import ConvergenceEstimate
from dkgp.commands.reporting.progress import (
    DASHBOARD_NOTE,
    Measure,
    WorkProgress,
)
from dkgp.service.queue.events import EventWriter, progress_pace_seconds

if TYPE_CHECKING:
    from dkgp.models import TuneProgress
    from dkgp.solvers import Progress as SolveProgress
    from dkgp.solvers.greedy_basis.settings import GreedyProgress as ChoiceProgress


class EventReporter:
    """Writes notes, warnings and progress as events; `on_dashboard` is called with the link to the cluster's."""

    def __init__(self, events: EventWriter, on_dashboard: Callable[[str], None]) -> None:
        self.warnings: list[str] = []
        self._events, self._on_dashboard = events, on_dashboard

    def note(self, message: str, figures: str | None = None) -> None:
        """Write a note, in figures where there are some."""
        self._events.write("note", message=figures or message)
        if message.startswith(DASHBOARD_NOTE):
            self._on_dashboard(message.removeprefix(DASHBOARD_NOTE).strip())

    def warn(self, message: str) -> None:
        """Write a warning, the same one once, and remember it."""
        if message not in self.warnings:
            self.warnings.append(message)
            self._events.write("warning", message=message)

    @contextmanager
    def work(self, label: str) -> Iterator[Callable[[WorkProgress], None]]:
        """Report {done, total, unit, phase}."""
        with self._paced() as show:

            def update(progress: WorkProgress) -> None:
                show(label=label, **vars(progress))

            yield update

    @contextmanager
    def search(self, label: str) -> Iterator[Callable[[TuneProgress], None]]:
        """Report the evaluations of a hyperparameter search."""
        with self._paced() as show:

            def update(progress: TuneProgress) -> None:
                show(label=label, done=progress.evaluation, total=None, unit="evaluations", **vars(progress))

            yield update

    @contextmanager
    def solve(
        self, label: str, tolerance: float, measure: Measure = "gradient_inf_norm"
    ) -> Iterator[Callable[[SolveProgress | WorkProgress], None]]:
        """Report rounds: figures, tolerance, rate and time left; and how far the work within a round has come."""
        estimate = ConvergenceEstimate(tolerance, measure)
        latest: dict[str, Any] = {}
        with self._paced() as show:

            def update(progress: SolveProgress | WorkProgress) -> None:
                if isinstance(progress, WorkProgress):
                    show(label=label, **latest, **vars(progress))
                    return
                estimate.update(progress)
                latest.update(progress.to_json(), **estimate.to_json())
                del latest["timings"]
                show(label=label, **latest)

            yield update

    @contextmanager
    def choice(self, label: str, size: int | None) -> Iterator[Callable[[ChoiceProgress | WorkProgress], None]]:
        """Report the basis so far, its risk and gap; and how far the work beside the rounds has come."""
        with self._paced() as show:

            def update(progress: ChoiceProgress | WorkProgress) -> None:
                if isinstance(progress, WorkProgress):
                    show(label=label, **vars(progress))
                    return
                show(label=label, done=progress.size, total=size, unit="basis samples", **progress.to_json())

            yield update

    @contextmanager
    def _paced(self) -> Iterator[Callable[..., None]]:
        """Hold progress back that comes too fast; the first and the last are always written."""
        pending: list[dict[str, Any]] = []
        due = 0.0

        def show(**content: Any) -> None:
            nonlocal due
            pending[:] = [content]
            now = time.monotonic()
            if now >= due:
                due = now + progress_pace_seconds(self._events.next_sequence)
                self._events.write("progress", **content)
                pending.clear()

        try:
            yield show
        finally:
            for content in pending:
                self._events.write("progress", **content)
