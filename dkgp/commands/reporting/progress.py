"""Messages of a running job to its user: the interface, and the silent reporter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from dkgp.data import Progress
from dkgp.errors import spelled

WorkProgress: TypeAlias = Progress

if TYPE_CHECKING:
    from dkgp.cluster import BlockExecutor
    from dkgp.models import TuneProgress
    from dkgp.solvers import Progress as SolveProgress
    from dkgp.solvers.greedy_basis import GreedyProgress as ChoiceProgress

    Work: TypeAlias = AbstractContextManager[Callable[[WorkProgress], None]]
    Search: TypeAlias = AbstractContextManager[Callable[[TuneProgress], None]]
    Solve: TypeAlias = AbstractContextManager[Callable[[SolveProgress | WorkProgress], None]]
    Choice: TypeAlias = AbstractContextManager[Callable[[ChoiceProgress | WorkProgress], None]]

# The beginning of the note with the address of the cluster's dashboard.
DASHBOARD_NOTE = "dashboard: "

# The field of a record that a solve reduces to its tolerance, and its name in messages.
Measure: TypeAlias = Literal["gradient_inf_norm", "duality_gap", "distance", "relative_residual"]
MEASURES: dict[str, str] = {
    "gradient_inf_norm": "max|g|",
    "duality_gap": "relative gap",
    "distance": "distance",
    "relative_residual": "distance",
}


def measured(event: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the name and the value of the measure of a solve's round; None if the event has no measure.

    Parameters
    ----------
    event : Mapping
        A progress event or record; without `measure`, the measure is max |g|.
    """
    measure = event.get("measure", "gradient_inf_norm")
    value = event.get(measure) if isinstance(measure, str) else None
    words = MEASURES.get(measure) if isinstance(measure, str) else None
    return (words, float(value)) if words is not None and isinstance(value, int | float) else None


class Reporter(Protocol):
    """Receiver of messages and progress. By default, progress is not shown."""

    # All warnings so far.
    warnings: list[str]

    def note(self, message: str, figures: str | None = None) -> None:
        """Report information; `figures` is the version for readers who know solvers."""

    def warn(self, message: str) -> None:
        """Report a warning that may need the user's attention, and keep it for the document."""

    def work(self, label: str) -> Work:
        """Open a progress bar for work whose size is known, or found during the work."""
        return nullcontext(lambda progress: None)

    def search(self, label: str) -> Search:
        """Open a display of a hyperparameter search."""
        return nullcontext(lambda progress: None)

    def solve(self, label: str, tolerance: float, measure: Measure = "gradient_inf_norm") -> Solve:
        """Open a display of a solve: rounds, passes, the measure (max |g|) and its tolerance, rate, remaining time.

        It also accepts the progress of work within a round.
        """
        return nullcontext(lambda progress: None)

    def choice(self, label: str, size: int | None) -> Choice:
        """Open a display of the choice of a basis of at most `size` samples (None: unknown): samples, risk, gap.

        It also accepts the progress of work within a round, and of work after the choice.
        """
        return nullcontext(lambda progress: None)


class SilentReporter(Reporter):
    """A reporter that shows nothing and keeps the warnings."""

    def __init__(self) -> None:
        self.warnings = []

    def note(self, message: str, figures: str | None = None) -> None:
        """Discard the message."""

    def warn(self, message: str) -> None:
        """Keep the message."""
        self.warnings.append(message)


def announce(executor: BlockExecutor, reporter: Reporter) -> None:
    """Report where the work runs, and the dashboard's address."""
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


# A round with `seconds`, and with the measure under its name.
Round: TypeAlias = Any

# Gradient norms of a greedy method fall linearly in log space, with jumps. A shorter window would follow the jumps.
_LEAST_WINDOW = 8
# An extrapolation beyond this multiple of the observed time is meaningless.
_FARTHEST = 1e4


class ConvergenceEstimate:
    """Tracks the fall of max |g|, or of another measure, to the tolerance on a logarithmic scale.

    Parameters
    ----------
    tolerance : float
        The solve ends when the measure is at most this.
    measure : str
        A field of the rounds' records, which may be infinite or NaN at first.
    """

    def __init__(self, tolerance: float, measure: str = "gradient_inf_norm") -> None:
        self.tolerance, self._measure = tolerance, measure
        self._seconds: list[float] = []
        self._log_best: list[float] = []

    def update(self, progress: Round) -> None:
        """Add a round's record."""
        value = float(getattr(progress, self._measure))
        if not math.isfinite(value):
            return
        norm = math.log(max(value, 1e-300))
        self._seconds.append(progress.seconds)
        self._log_best.append(min(norm, self._log_best[-1]) if self._log_best else norm)

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the rounds so far, which `solve_line` combines with the last round."""
        return {
            "measure": self._measure,
            "tolerance": self.tolerance,
            "fraction": self.fraction,
            "decades_per_minute": self.decades_per_minute,
            "seconds_left": self.seconds_left,
        }

    @property
    def fraction(self) -> float:
        """Fraction of the way from the first gradient norm to the tolerance, 0 to 1; it never decreases."""
        if not self._log_best:
            return 0.0
        goal = math.log(self.tolerance)
        if self._log_best[-1] <= goal:
            return 1.0
        return (self._log_best[0] - self._log_best[-1]) / (self._log_best[0] - goal)

    @property
    def decades_per_minute(self) -> float | None:
        """Rate over the recent half of the rounds, in decades per minute; None if it is unknown."""
        slope = self._slope()
        return None if slope is None else -60.0 * slope / math.log(10.0)

    @property
    def seconds_left(self) -> float | None:
        """Time to the tolerance at the recent rate; None if the measure does not fall, or falls too slowly."""
        slope = self._slope()
        missing = self._log_best[-1] - math.log(self.tolerance) if self._log_best else math.inf
        if missing <= 0.0:
            return 0.0
        if slope is None or missing > -slope * _FARTHEST * (self._seconds[-1] - self._seconds[0]):
            return None
        return missing / -slope

    def _slope(self) -> float | None:
        """Slope of log max |g| against seconds over the recent half; None if it does not fall."""
        count = max(_LEAST_WINDOW, len(self._seconds) // 2)
        seconds = np.asarray(self._seconds[-count:])
        norms = np.asarray(self._log_best[-count:])
        # The best values never increase. If they are equal, the slope would be a rounding error.
        if len(seconds) < 2 or seconds[-1] <= seconds[0] or norms[-1] >= norms[0]:
            return None
        centred = seconds - seconds.mean()
        slope = float(centred @ (norms - norms.mean()) / (centred @ centred))
        return slope if slope < 0.0 else None


# Names of the solve's measures in everyday words; `MEASURES` has the names in the records.
PLAIN_MEASURES: dict[str, str] = {
    "gradient_inf_norm": "largest residual",
    "duality_gap": "distance to the best fit, relative",
    "distance": "distance to the minimum",
    "relative_residual": "distance to the minimum",
}


def printable(text: str) -> str:
    """Escape characters that control the terminal or reverse text, as names and files may contain any character."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


# Names in backticks that are no parameters of a command: values, types, figures and programs.
_NO_FLAGS = frozenset(
    [
        "auto",
        "bsub",
        "condor_submit",
        "float",
        "int",
        "noise_variance",
        "oarsub",
        "object",
        "predict",
        "qsub",
        "sbatch",
        "sinfo",
        "str",
    ]
)


# Parameters whose flags have other names.
_FLAGS = {"fixed": "fix", "priors": "prior", "targets": "target", "tolerance": "tol"}


def typed(text: str) -> str:
    """Return the text with command parameters spelled as flags."""
    return spelled(text, lambda name: None if name in _NO_FLAGS else "--" + _FLAGS.get(name, name).replace("_", "-"))


# Units of the scores on standardised targets.
STANDARDISED = "targets standardised: RMSE in standard deviations of the target, NLPD in nats per sample"


def scored_by(comparison: Mapping[str, Any]) -> str:
    """Return how kernels were scored: scores in cross-validation are those of all samples."""
    count = comparison["held_out"]
    if count >= comparison["samples"]:
        return f"by cross-validation on {count:,} training samples"
    return f"on {count:,} other, held-out samples"


def duration(seconds: float) -> str:
    """Format seconds as, for example, 12 s, 3 min 20 s or 2 h 05 min."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def time_left(seconds: float | None) -> str:
    """Return the approximate remaining time; empty if it is unknown."""
    return "" if seconds is None else f"about {duration(seconds)} left"


def solve_line(event: Mapping[str, Any], *, verbose: bool) -> str:
    """Return the progress of a solve as one line.

    Parameters
    ----------
    event : Mapping
        A round's record (`dkgp.solvers.Progress.to_json`), with `measure`, `tolerance`, `decades_per_minute` and
        `seconds_left` as far as they are known.
    verbose : bool
        Also show rounds, passes and the rate.
    """
    measure, tolerance, rate = measured(event), event.get("tolerance"), event.get("decades_per_minute")
    parts = []
    if verbose:
        parts += [f"round {event.get('iteration', 0)}", f"{event.get('column_passes', 0.0):.2f} passes"]
    if measure is not None:
        name, value = measure
        if verbose:
            parts.append(f"{name} {value:.2e}" + ("" if tolerance is None else f" -> {tolerance:.0e}"))
        else:
            goal = "" if tolerance is None else f", tolerance {tolerance:.0e}"
            parts.append(f"{PLAIN_MEASURES[event.get('measure', 'gradient_inf_norm')]} {value:.1e}{goal}")
    if verbose and rate is not None:
        parts.append(f"{rate:.2f} decades/min")
    # A finished solve has no remaining time.
    return ", ".join([*parts, *filter(None, [time_left(event.get("seconds_left") or None)])]) or "begun"


def search_line(event: Mapping[str, Any], *, verbose: bool) -> str:
    """Return the progress of a hyperparameter search; `event` has the fields of `dkgp.models.TuneProgress`."""
    likelihood = f"log likelihood {event['best_log_marginal_likelihood']:.2f}"
    tried = event.get("evaluation", 0)
    if not verbose:
        start = f" from starting point {event['start'] + 1}" if event.get("start") else ""
        return f"{tried} evaluation{'s' if tried != 1 else ''}{start}, best {likelihood}"
    start = f", starting point {event['start'] + 1}" if "start" in event else ""
    more = "".join(
        f", {name} {event[field]:{form}}"
        for field, name, form in (("gradient_inf_norm", "gradient", ".2g"), ("noise_variance", "noise variance", ".3g"))
        if event.get(field) is not None
    )
    return f"evaluation {tried}{start}, {likelihood}{more}"


def choice_line(event: Mapping[str, Any], size: int | None, *, verbose: bool) -> str:
    """Return a basis choice's progress; `event` has the fields of `dkgp.solvers.greedy_basis.GreedyProgress`."""
    of = "" if size is None else f" of {size:,}"
    gap = event.get("gap")
    if verbose:
        more = f", risk {event['risk']:.6g}" + ("" if gap is None else f", gap {gap:.3g}")
    else:
        more = "" if gap is None else f", at most {100 * gap:.2g} % above the best fit"
    return f"{event['size']:,}{of} basis samples{more}"


def about_seconds(seconds: float) -> str:
    """Return seconds or minutes, with the precision of a forecast."""
    return f"{max(1.0, seconds):.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"


def width_line(record: Mapping[str, Any]) -> str:
    """Return a width search's progress: pass, length scales, noise variance, error, prototypes, remaining time."""
    most = record.get("passes_at_most")
    at_most = "" if most is None else f" of at most {most}"
    width = record["scale"] ** -0.5
    error = f"squared error {record['score']:.4g}"
    if "error" in record:
        error = f"error {record['error']:.2%}, balanced error {record['balanced_error']:.2%}"
    left = record.get("seconds_left")
    coming = f"; at most {about_seconds(left)} left" if left else ""
    return (
        f"pass {record['pass']}{at_most}: {error} with {record['cardinality']:,} prototypes, length scales {width:.3g} "
        f"times the initial ones and noise variance {record['noise_variance']:.3g}{coming}"
    )
