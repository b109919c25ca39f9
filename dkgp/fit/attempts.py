"""The models that a fit tries: the first by forecasts, others if the verdict on the held-out samples calls for them.

Proven intervals that say little call for approximate variances of the same model, from neighbours (VIF). A verdict that
error bars are too narrow or too wide calls for tuning to go on, if a time limit ended it before held-out training
samples could judge; and for the model with neighbours, whose variances are its own. One that the noise grows with the
mean or depends on an input calls for a noise model. Another model replaces the earlier one if the held-out samples have
a greater density under it, without more error or a worse coverage: a noise model can gain density by taking structure
for noise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from dkgp.commands.reporting.outputs import Document
from dkgp.fit.job import HYPER
from dkgp.fit.ways import APPROXIMATE
from dkgp.models.refinement.candidates import LEAST_GAIN
from dkgp.models.verdict import LOOSE, SIZES, TUNE

# Findings that call for a noise model; those of size call for other variances.
NOISE = ("noise and mean", "noise and input")
# A model that replaces an earlier one may have this multiple of its RMSE, and this distance of the coverage from .95.
MOST_ERROR, COVERAGE_DISTANCE = 1.02, 0.02
# Share of the first search that one which starts from its result takes, before it goes on to all samples.
CONTINUED = 0.2


@dataclass(frozen=True)
class Remedy:
    """Another model: its words, its kind, and options of `dkgp tune` if its hyperparameters are tuned anew.

    The kind "approximate" is the first model with other variances. With `continues`, tuning starts from the first
    model's hyperparameters and has half of the remaining time.
    """

    words: str
    way: Literal["approximate", "vif", "same"]
    tuning: tuple[str, ...] = ()
    kernel: str | None = None
    continues: bool = False

    def options(self, start: str, seconds: float) -> dict[str, Any]:
        """Return the options of `TuneJob`: hyperparameters to start from, and the time that it may take."""
        if self.continues:
            return {"start": start, "all_samples_seconds": max(1e-3, seconds)}
        return {"kernel": self.kernel, "noise_model": "auto"}

    def price(self, tuned: float) -> float:
        """Return the expected seconds of tuning, by those of the first model's."""
        return CONTINUED * tuned if self.continues else tuned if self.tuning else 0.0


def remedies(kinds: Collection[str], name: str, kernel: str, *, judged: bool = True) -> list[Remedy]:
    """Return the models that findings call for after a first model `name`, with the kernel of the first.

    `judged` says whether held-out training samples judged the first hyperparameters and the size of error bars.
    """
    wanted = []
    if not judged and any(kind in SIZES[:2] for kind in kinds):
        words = "hyperparameters from a longer search, with error bars scaled on held-out training samples"
        wanted.append(Remedy(words, "same", continues=True))
    if LOOSE in kinds and name == "exact":
        wanted.append(Remedy(f"the exact model with variances that are {APPROXIMATE}", "approximate"))
    if any(kind in SIZES for kind in kinds) and name != "vif":
        wanted.append(Remedy("the model with neighbours (vif)", "vif"))
    if any(kind in NOISE for kind in kinds):
        wanted.append(Remedy(f"noise that depends on the inputs, {kernel}", "same", ("--noise-model", "auto"), kernel))
    return wanted


# Phrases of a verdict's advice that name options of other commands, and the phrases for a user of `fit`.
PHRASES = (
    ("run `dkgp ingest` again with", "fit again with"),
    ("Run `dkgp ingest` again with", "Fit again with"),
    ("; or let the noise depend on the inputs: run `dkgp tune` with `noise_model` auto", ""),
    (
        "Run `dkgp tune` with `noise_model` auto, so that the noise depends on the inputs, or transform the target",
        "Fit again with another `transform`",
    ),
    (TUNE, "Fit again with a longer `time` or another `kernel`"),
    ("run `dkgp tune` again with `kernel` rbf+linear", "fit again with `kernel` rbf+linear"),
    (
        "Run `dkgp tune` again with `kernel` matern12 or matern32, or with a larger `subset`",
        "Fit again with `kernel` matern12 or matern32, or with a longer `time`",
    ),
    (
        "Run `dkgp tune` again with `objective` loo and a larger `subset`",
        "Fit again with a longer `time` or another `kernel`",
    ),
    (
        "See the other findings, and run `dkgp tune` again with a larger `subset`",
        "Fit again with another `transform` or `kernel`",
    ),
    (
        "Run `dkgp tune` with `likelihood` student-t, which gives them less weight",
        "To give them less weight, add `--likelihood student-t` to `dkgp tune` in the commands of the report",
    ),
    (
        "Run `dkgp predict` again with a smaller `variance_gap`",
        "Run `dkgp predict` of the report's commands again with `--variance-gap 0.01`",
    ),
    (
        "run `dkgp classify` again with `class_weight` balanced",
        "add `--class-weight balanced` to `dkgp classify` in the commands of the report",
    ),
    (
        "Run `dkgp classify` with `method` gp, which averages probabilities over the model's uncertainty, or "
        "`dkgp tune` with `likelihood`",
        "Run `dkgp classify` of the report's commands with `--method gp`, which averages probabilities over the "
        "model's uncertainty",
    ),
)


def with_advice_for_fit(evaluated: Document) -> Document:
    """Return an evaluation whose verdict advises options of `fit`."""
    verdict = []
    for finding in evaluated.get("verdict") or ():
        advice = finding.get("advice", "")
        for phrase, other in PHRASES:
            advice = advice.replace(phrase, other)
        verdict.append({**finding, "advice": advice})
    return {**evaluated, "verdict": verdict} if "verdict" in evaluated else evaluated


@dataclass(frozen=True)
class Attempt:
    """A model that was trained, predicted with and evaluated."""

    way: Document
    trained: Document
    predicted: Document
    evaluated: Document
    seconds: float
    tuning: tuple[str, ...] = ()
    hyper: str = HYPER

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the verdict's findings, and `LOOSE` if the exact model's intervals miss their gap on average."""
        kinds = [finding["kind"] for finding in self.evaluated.get("verdict") or ()]
        variance = self.predicted.get("variance") or {}
        gap, width = variance.get("gap"), variance.get("gap_mean")
        if LOOSE not in kinds and gap is not None and width is not None and width > gap:
            kinds.append(LOOSE)
        return tuple(kinds)

    @property
    def nlpd(self) -> float:
        """Negative log density of the held-out samples, in nats a sample."""
        value = self.evaluated.get("nlpd_raw")
        return float("inf") if value is None else float(value)

    def gains_over(self, other: Attempt) -> bool:
        """True if this model has a clearly greater density than the other one."""
        return self.nlpd < other.nlpd - LEAST_GAIN

    def beats(self, other: Attempt) -> bool:
        """True if this model gains over the other one, without more error or a worse coverage."""
        error, others_error = (of.evaluated.get("rmse_raw") or 0.0 for of in (self, other))
        distance, others_distance = (abs((of.evaluated.get("coverage_95") or 0.0) - 0.95) for of in (self, other))
        return (
            self.gains_over(other)
            and error <= MOST_ERROR * others_error
            and distance <= max(COVERAGE_DISTANCE, others_distance)
        )

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
        """The first model that no later one beats."""
        best = self.tried[0]
        for attempt in self.tried[1:]:
            if attempt.beats(best):
                best = attempt
        return best

    @property
    def choice(self) -> Document:
        """Return the way that is taken, and the reason if it is not that of the first model."""
        first, taken = self.tried[0], self.taken
        if taken is first:
            return {"way": taken.way}
        reason = (
            f"The evaluation found a problem with the first model ({first.way['words']}). The NLPD of the held-out "
            f"samples is {first.nlpd:.4g} nats per sample with it, and {taken.nlpd:.4g} with this model"
        )
        return {"way": taken.way, "reason": reason}

    def to_json(self) -> Document:
        """Return the table of a fit's document."""
        rows = [attempt.row() for attempt in self.tried]
        return {"tried": rows, "taken": self.tried.index(self.taken), "not_tried": self.not_tried}
