"""`dkgp audit`: judge predictions of another tool by proofs about the exact Gaussian process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.layout import Figure, grid, may, sheet_of, titled
from dkgp.commands.reporting.outputs import Document, check_results, plain, with_results
from dkgp.commands.reporting.plots import drawn
from dkgp.commands.run import Run
from dkgp.commands.signals import interruptible
from dkgp.data import ModelRecord, Progress, open_model
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError, InterruptedRunError
from dkgp.estimators.fitted import FittedModel, Workspace
from dkgp.kriging.audit import LEVELS, Audit, Exact, audit
from dkgp.kriging.commands.audit_job import AuditJob
from dkgp.kriging.commands.points import Points
from dkgp.kriging.field import Field
from dkgp.models.prediction.posterior import Want, forget
from dkgp.models.prediction.predict import posterior_of
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import ProductError

# Points that are predicted together.
BATCH = 16_384
REFERENCE = (
    "the exact Gaussian process with this model's kernel, noise, mean and samples. A tool with other hyperparameters "
    "approximates another Gaussian process"
)
# Negative variances down to this share of the largest one are rounding errors of zero.
_ROUNDING = 1e-10


class _Predicted(NamedTuple):
    result: Audit
    at_samples: int | None
    seconds: float


class AuditRun(Run):
    """A run of `dkgp audit`."""

    command = "audit"
    job: AuditJob
    record: ModelRecord
    field: Field | None

    @property
    def places(self) -> list[str]:
        """Nothing that other runs would write to meanwhile."""
        return []

    @property
    def samples(self) -> int:
        """The number of training samples."""
        return self.record.n_samples

    def check(self) -> None:
        """Refuse contradictory columns, and files that are there."""
        self.job.check()
        check_results(self.job)

    def open(self) -> None:
        """Open the model, and read the table: our inputs and their predictions."""
        job = self.job
        self.record = open_model(job.model)
        kriged = "kriging" in self.record.summary.get("estimator", {})
        self.field = Field(FittedModel(self.record, Workspace(None))) if kriged else None
        self.target = self._target()
        self._refuse_quantity()
        points = Points(job.table)
        self.mean = points.numbers(job.mean)
        self.variance = self._variances(points)
        self.rows, self.at = self._inputs(points)

    def _target(self) -> int:
        names, name = self.record.target_names, self.job.target
        if name is None and len(names) > 1:
            raise InputError(f"the model predicts {quoted(names)}; name one with `target`")
        if name is not None and name not in names:
            raise InputError(f"the model predicts no '{name}'; it predicts {quoted(names)}")
        return 0 if name is None else names.index(name)

    def _refuse_quantity(self) -> None:
        if self.field is None and self.job.of == "field":
            raise InputError("`of` field is for kriged fields, whose nugget may be micro-scale variation; take signal")
        if self.record.standardisation.transforms:
            raise InputError(
                "the model was trained on transformed targets, so its predictions are not normally distributed; "
                "an audit compares normal distributions. Train without `transform`"
            )

    def _variances(self, points: Points) -> FloatArray | None:
        job = self.job
        name = job.variance or job.std
        if name is None:
            return None
        values = points.numbers(name)
        least = -_ROUNDING * float(np.abs(values).max())
        count = int((values < 0.0).sum())
        if count and (job.std is not None or values.min() < least):
            row = int(np.argmin(values))
            raise InputError(
                f"the column '{name}' of '{job.table}' is {values[row]:g} in row {row + 1}, and negative in {count:,} "
                f"of {points.n:,} rows; expected variances of at least 0"
            )
        if count:
            self.reporter.warn(
                f"{count:,} of {points.n:,} variances in '{name}' are negative by rounding (at least "
                f"{values.min():.2g}); they are judged as 0"
            )
        if job.std is None:
            return np.maximum(values, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            squares = np.asarray(values**2)
        # A square that is lost would be judged as 0 or infinity, with proof.
        lost = (values > 0.0) & ~((squares >= np.finfo(np.float64).tiny) & np.isfinite(squares))
        if lost.any():
            row = int(np.argmax(lost))
            raise InputError(
                f"the column '{name}' of '{job.table}' is {values[row]:g} in row {row + 1}, whose square is beyond "
                "float64; expected deviations between 1.5e-154 and 1.3e154, or 0"
            )
        return squares

    def _inputs(self, points: Points) -> tuple[FloatArray, FloatArray | None]:
        """Return the engine's raw inputs, and the places of a kriged field."""
        job = self.job
        if self.field is None:
            return points.features(self.record), None
        coordinates = points.coordinates(self.field.space, (job.x, job.y, job.z, job.time), self.reporter.note)
        places = self.field.space.places(coordinates)
        names = self.field.covariate_names
        covariates = np.column_stack([points.numbers(name) for name in names]) if names else None
        return self.field.inputs(places, covariates), places

    def work(self, executor: BlockExecutor) -> _Predicted:
        """Predict at the points with proofs, and judge."""
        began, job = time.perf_counter(), self.job
        latent = self.field is not None or job.of == "signal"
        settings = None if job.means else VarianceSettings(gap=job.gap, latent=latent)
        version, r = f"audit-{self.record.fingerprint}-{time.time_ns():x}", len(self.rows)
        error = ProductError.of("auto") if self.field is None else self.field.fitted.product_error
        parts: list[Exact] = []
        at_samples = 0
        try:
            want = Want(version, executor, settings, error=error, n_test=r, note=self.reporter.note)
            posterior = posterior_of(self.record, want)
            with self.reporter.work("audit") as show, interruptible(self.reporter.note) as interrupted:
                for start in range(0, r, BATCH):
                    show(Progress("points", start, r, "points"))
                    if interrupted():
                        raise InterruptedRunError("interrupted; nothing was written")
                    columns = posterior(self.rows[start : start + BATCH])
                    part, here = self._exact(columns, slice(start, start + BATCH))
                    parts.append(part)
                    at_samples += here
                show(Progress("points", r, r, "points"))
        finally:
            forget(version)
        exact = Exact(
            *(_joined([getattr(part, name) for part in parts]) for name in ("mean", "bound", "lower", "upper"))
        )
        result = audit(exact, self.mean, self.variance)
        return _Predicted(result, None if self.field is None else at_samples, time.perf_counter() - began)

    def _exact(self, columns: Any, rows: slice) -> tuple[Exact, int]:
        mean, bound = columns["mean"], columns["mean_error_bound"]
        ends = (columns["variance_lower"], columns["variance_upper"]) if "variance_lower" in columns else None
        count = 0
        if self.field is not None:
            assert self.at is not None
            kriged = self.field.quantity(self.job.of, (mean, bound, ends), lambda: self.at[rows])  # type: ignore[index]
            mean, bound, count = kriged.mean, kriged.mean_error_bound, kriged.at_samples
            if kriged.variance_lower is not None and kriged.variance_upper is not None:
                ends = kriged.variance_lower, kriged.variance_upper
        one = self.target
        return Exact(mean[:, one], bound[:, one], *(() if ends is None else (end[:, one] for end in ends))), count

    def conclude(self, result: _Predicted, peak_bytes: int) -> Document:
        """Return the figures; write them, and the picture."""
        job = self.job
        document: Document = plain(
            {
                "command": self.command,
                "model": self.record.url,
                "table": job.table,
                "target": self.record.target_names[self.target],
                "of": job.of,
                "reference": REFERENCE,
                **({} if self.field is None else {"variogram": self.field.variogram.to_dict()}),
                "levels": LEVELS,
                **result.result.summary(),
                **({} if result.at_samples is None else {"points_at_samples": result.at_samples}),
                "variance_gap": job.gap,
                "seconds": result.seconds,
                "peak_memory_bytes": peak_bytes,
                "warnings": list(self.reporter.warnings),
            }
        )
        if job.plot is not None:
            plot_audit(job.plot, result.result, f"{result.result.n:,} points of {job.table}")
        return with_results(document, job)


def _joined(parts: Sequence[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


# ------------------------------------------------------------------------------------------------------------- output


def _range(ends: Document) -> str:
    low, high = ends["at_least"], ends["at_most"]
    texts = ["unknown" if value is None else f"{value:.4g}" for value in (low, high)]
    return f"{texts[0]} to {texts[1]}" if texts[0] != texts[1] else texts[0]


def _optional(title: str, name: str, inner: str | None = None) -> Figure:
    """Return a row of the ends of a figure, which only audits with variances have."""

    def text(document: Document) -> str | None:
        part = document.get(name)
        return None if part is None else _range(part if inner is None else part[inner])

    return Figure(title, text)


_FIGURES = (
    Figure("points", "{points:,} of {table}"),
    may("points at the place of a sample", "{points_at_samples:,}"),
    Figure("quantity", "{of} of {target}, in its units"),
    Figure("distance of the means, root mean square", lambda of: _range(of["mean_rms_error"])),
    Figure("distance of the means, largest", lambda of: _range(of["mean_largest_error"])),
    _optional("distance of the means, largest, in exact standard deviations", "mean_largest_deviation"),
    _optional("variance divided by the exact variance, median", "variance", "median_ratio"),
    may("variances proven too small", "{variance[proven_too_small]:.2%}"),
    may("variances proven too large", "{variance[proven_too_large]:.2%}"),
    _optional("Kullback-Leibler divergence, mean (nats)", "mean_divergence"),
    Figure("compared with", "{reference}"),
    Figure("seconds", "{seconds:.2f}"),
)


def tables_audit(document: Document) -> list[Any]:
    """Return the figures, and the shares of points at each level."""
    parts: list[Any] = [sheet_of("Audit, every range is proven", _FIGURES, document)]
    if "verdicts" in document:
        shares = ("proven_off", "proven_within", "undecided")
        rows = [
            [f"{verdict['level']:g}", *(f"{verdict[name]:.2%}" for name in shares)] for verdict in document["verdicts"]
        ]
        headings = ("distance", "points proven farther away", "points proven nearer", "undecided")
        parts.append(titled("Distance of the means, in exact standard deviations", grid(headings, rows)))
    return parts


def plot_audit(path: str, result: Audit, title: str) -> None:
    """Draw histograms of the proven lower and upper ends: distances of means, ratios of variances, divergences."""
    panels = [("distance of the mean (units)", result.error_lower, result.error_upper)]
    if result.deviation_lower is not None and result.deviation_upper is not None:
        panels = [("distance of the mean (deviations)", result.deviation_lower, result.deviation_upper)]
    if result.ratio_lower is not None and result.ratio_upper is not None:
        panels.append(("variance / exact variance", result.ratio_lower, result.ratio_upper))
    if result.divergence_lower is not None and result.divergence_upper is not None:
        panels.append(("divergence (nats)", result.divergence_lower, result.divergence_upper))
    with drawn(path, 4.5 * len(panels), 4.0, title) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(panels)))
        for axis, (label, low, high) in zip(axes, panels, strict=True):
            both = np.concatenate([low, high])
            some = both[np.isfinite(both) & (both > 0.0)]
            axis.set_xlabel(label)
            axis.set_ylabel("points")
            if not some.size:
                axis.text(0.5, 0.5, "all ends are zero or infinite", ha="center", transform=axis.transAxes)
                continue
            # Ends of zero are drawn at the left edge.
            edges = np.geomspace(max(some.min(), 1e-12 * some.max()) * 0.8, some.max() * 1.25, 41)
            for values, name, colour in ((low, "at least", "#1f5f8b"), (high, "at most", "#c45f1a")):
                shown = np.clip(values[np.isfinite(values)], edges[0], edges[-1])
                axis.hist(shown, bins=edges, label=name, histtype="stepfilled", alpha=0.45, color=colour)
            axis.set_xscale("log")
            axis.legend(fontsize="small")
