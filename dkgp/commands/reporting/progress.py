"""Messages of a job at work to its user: the interface, and the reporter that keeps quiet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from dkgp.data import Progress as WorkProgress

if TYPE_CHECKING:
    # Whoever asks a service, which needs no models, waits a second less without them.
    from dkgp.cluster import BlockExecutor
    from dkgp.models import TuneProgress
    from dkgp.solvers import Progress as SolveProgress
    from dkgp.solvers.greedy_basis import GreedyProgress as ChoiceProgress

    Work: TypeAlias = AbstractContextManager[Callable[[WorkProgress], None]]
    Search: TypeAlias = AbstractContextManager[Callable[[TuneProgress], None]]
    Solve: TypeAlias = AbstractContextManager[Callable[[SolveProgress | WorkProgress], None]]
    Choice: TypeAlias = AbstractContextManager[Callable[[ChoiceProgress | WorkProgress], None]]

__all__ = [
    "DASHBOARD_NOTE",
    "MEASURES",
    "Measure",
    "Reporter",
    "SilentReporter",
    "WorkProgress",
    "announce",
    "measured",
]

# What a note begins with that tells where the cluster's dashboard is.
DASHBOARD_NOTE = "dashboard: "

# What of a record a solve is told to bring down to its tolerance, and what people call it.
Measure: TypeAlias = Literal["gradient_inf_norm", "duality_gap", "distance", "relative_residual"]
MEASURES: dict[str, str] = {
    "gradient_inf_norm": "max|g|",
    "duality_gap": "relative gap",
    "distance": "distance",
    "relative_residual": "distance",
}


def measured(event: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return what people call the measure of a solve's round, and its value; None where the event has none.

    Parameters
    ----------
    event : Mapping
        A progress event, or such a record; without `measure` it is of max |g|.
    """
    measure = event.get("measure", "gradient_inf_norm")
    value = event.get(measure) if isinstance(measure, str) else None
    words = MEASURES.get(measure) if isinstance(measure, str) else None
    return (words, float(value)) if words is not None and isinstance(value, int | float) else None


class Reporter(Protocol):
    """Takes messages and progress; nothing is shown of what a reporter has no way of its own for."""

    # Everything warned of so far.
    warnings: list[str]

    def note(self, message: str, figures: str | None = None) -> None:
        """Say something worth knowing; `figures`: the same for those who know solvers."""

    def warn(self, message: str) -> None:
        """Say something that may need the user's attention, and remember it for the document."""

    def work(self, label: str) -> Work:
        """Open a bar for work whose size is known or found on the way."""
        return nullcontext(lambda progress: None)

    def search(self, label: str) -> Search:
        """Open a display of a hyperparameter search."""
        return nullcontext(lambda progress: None)

    def solve(self, label: str, tolerance: float, measure: Measure = "gradient_inf_norm") -> Solve:
        """Open a display of a solve: rounds, passes, the measure (max |g|) against the tolerance, rate, time left.

        It also takes the progress of what goes on within a round.
        """
        return nullcontext(lambda progress: None)

    def choice(self, label: str, size: int | None) -> Choice:
        """Open a display of a basis of at most `size` samples (None: as it comes) that is chosen: samples, risk, gap.

        It also takes the progress of what goes on within a round, and of what comes after.
        """
        return nullcontext(lambda progress: None)


class SilentReporter(Reporter):
    """Shows nothing; remembers warnings."""

    def __init__(self) -> None:
        self.warnings = []

    def note(self, message: str, figures: str | None = None) -> None:
        """Drop the message."""

    def warn(self, message: str) -> None:
        """Remember the message."""
        self.warnings.append(message)


def announce(executor: BlockExecutor, reporter: Reporter) -> None:
    """Say where the work runs, and where that can be watched."""
    where = "without Dask" if not executor.overlaps else "on a Dask cluster in this process"
    if not executor.shares_memory:
        where = "on a Dask cluster"
    present = sum(executor.workers.values())
    most = f", at most {executor.parallelism}" if executor.parallelism > present else ""
    reporter.note(f"running {where}, {present} threads{most}")
    link = getattr(executor, "dashboard_link", None)
    if link:
        reporter.note(f"{DASHBOARD_NOTE}{link}")
    if tunnel := getattr(executor, "dashboard_tunnel", ""):
        reporter.note(tunnel)
