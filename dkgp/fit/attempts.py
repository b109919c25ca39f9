"""The models that a fit tries: the first by forecasts, others if the verdict on the held-out samples calls for them.

A verdict that error bars are too narrow or too wide calls for the model with neighbours (VIF), whose variances are its
own. One that the noise grows with the mean or depends on an input calls for a noise model. Of the models that were
tried, the one with the greatest density of the held-out samples is taken.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from dkgp.commands.reporting.outputs import Document

# Findings that call for other variances, and those that call for a noise model.
SIZE = ("overconfident", "underconfident", "loose intervals")
NOISE = ("noise and mean", "noise and input")


@dataclass(frozen=True)
class Remedy:
    """Another model: its words, its kind, and options of `dkgp tune` if its hyperparameters are tuned anew."""

    words: str
    way: Literal["vif", "same"]
    tuning: tuple[str, ...] = ()
    kernel: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of `TuneJob`."""
        return {"kernel": self.kernel, "noise_model": "auto"}


def remedies(kinds: Collection[str], name: str, kernel: str) -> list[Remedy]:
    """Return the models that findings call for after a first model `name`, with the kernel of the first."""
    wanted = []
    if any(kind in SIZE for kind in kinds) and name != "vif":
        wanted.append(Remedy("the model with neighbours (vif)", "vif"))
    if any(kind in NOISE for kind in kinds):
        wanted.append(Remedy(f"noise that depends on the inputs, {kernel}", "same", ("--noise-model", "auto"), kernel))
    return wanted


@dataclass(frozen=True)
class Attempt:
    """A model that was trained, predicted with and evaluated."""

    way: Document
    trained: Document
    predicted: Document
    evaluated: Document
    seconds: float
    tuning: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the verdict's findings."""
        return tuple(finding["kind"] for finding in self.evaluated.get("verdict") or ())

    @property
    def nlpd(self) -> float:
        """Negative log density of the held-out samples, in nats a sample."""
        value = self.evaluated.get("nlpd_raw")
        return float("inf") if value is None else float(value)

    def row(self) -> Document:
        """Return its figures."""
        more = " ".join(self.tuning)
        figures = {name: self.evaluated.get(name) for name in ("nlpd_raw", "rmse_raw", "coverage_95")}
        words = self.way["words"] + (f", tuned with {more}" if more else "")
        return {"model": words, **figures, "seconds": self.seconds, "findings": list(self.kinds)}


@dataclass(frozen=True)
class Attempts:
    """All models that were tried, in order, and those that were not."""

    tried: list[Attempt]
    not_tried: list[dict[str, str]]

    @property
    def taken(self) -> Attempt:
        """The model with the greatest density of the held-out samples; the first of equals."""
        return min(self.tried, key=lambda attempt: attempt.nlpd)

    def to_json(self) -> Document:
        """Return the table of a fit's document."""
        rows = [attempt.row() for attempt in self.tried]
        return {"tried": rows, "taken": self.tried.index(self.taken), "not_tried": self.not_tried}
