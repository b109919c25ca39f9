"""Lines of progress: in words that every field has, or with `verbose` in figures of those who know solvers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dkgp.commands.reporting.progress import measured
from dkgp.errors import spelled

# What people of any field call what a solve is told to bring down; `MEASURES` are the names that records have.
PLAIN_MEASURES: dict[str, str] = {
    "gradient_inf_norm": "largest error",
    "duality_gap": "distance to the best fit, relative",
    "distance": "largest error",
    "relative_residual": "largest error",
}


def printable(text: str) -> str:
    """The text with what a terminal would obey, or turn around, written as its code: names and files hold anything."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def typed(text: str) -> str:
    """Spell the parameters of any command as flags."""
    return spelled(text, lambda name: "--" + name.replace("_", "-"))


def duration(seconds: float) -> str:
    """Seconds as people say them: 12 s, 3 min 20 s, 2 h 05 min."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def time_left(seconds: float | None) -> str:
    """About how long is left; nothing where that is not known."""
    return "" if seconds is None else f"about {duration(seconds)} left"


def solve_line(event: Mapping[str, Any], *, verbose: bool) -> str:
    """Return how far a solve is.

    Parameters
    ----------
    event : Mapping
        A round's record (`dkgp.solvers.Progress.to_json`), and as far as they are known `measure`, `tolerance`,
        `decades_per_minute` and `seconds_left`.
    verbose : bool
        Rounds, passes and the rate too.
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
            goal = "" if tolerance is None else f", to come down to {tolerance:.0e}"
            parts.append(f"{PLAIN_MEASURES[event.get('measure', 'gradient_inf_norm')]} {value:.1e}{goal}")
    if verbose and rate is not None:
        parts.append(f"{rate:.2f} decades/min")
    # Where it is done there is none left.
    return ", ".join([*parts, *filter(None, [time_left(event.get("seconds_left") or None)])]) or "begun"


def search_line(event: Mapping[str, Any], *, verbose: bool) -> str:
    """Return how far a search for hyperparameters is; `event` as of `dkgp.models.TuneProgress`."""
    likelihood = f"log likelihood {event['best_log_marginal_likelihood']:.2f}"
    tried = event.get("evaluation", 0)
    if not verbose:
        start = f" from starting point {event['start'] + 1}" if event.get("start") else ""
        return f"{tried} {'try' if tried == 1 else 'tries'}{start}, best {likelihood}"
    start = f", start {event['start']}" if "start" in event else ""
    more = "".join(
        f", {name} {event[field]:{form}}"
        for field, name, form in (("gradient_inf_norm", "gradient", ".2g"), ("noise_variance", "s2", ".3g"))
        if event.get(field) is not None
    )
    return f"evaluation {tried}{start}, {likelihood}{more}"


def choice_line(event: Mapping[str, Any], size: int | None, *, verbose: bool) -> str:
    """Return how far the choice of a basis is; `event` as of `dkgp.solvers.greedy_basis.GreedyProgress`."""
    of = "" if size is None else f" of {size:,}"
    gap = event.get("gap")
    if verbose:
        more = f", risk {event['risk']:.6g}" + ("" if gap is None else f", gap {gap:.3g}")
    else:
        more = "" if gap is None else f", {100 * gap:.2g} % from the best fit at most"
    return f"{event['size']:,}{of} basis samples{more}"
