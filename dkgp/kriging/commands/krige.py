"""`dkgp krige variogram`, `fit` and `grid`: from samples to a variogram, a kriged field and a map."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.codec import difference
from dkgp.commands.reporting.layout import NOT_INFORMATIVE, Figure, grid, may, plain_number, proven, sheet_of, titled
from dkgp.commands.reporting.layout import names as listed
from dkgp.commands.reporting.outputs import Document, check_results, plain, with_results
from dkgp.commands.reporting.plots import plot_convergence
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.resuming import checkpointing_of
from dkgp.commands.run import Run
from dkgp.commands.signals import interruptible
from dkgp.commands.solving import input_bytes, planned_solve, solving
from dkgp.commands.training import Outcome, TrainingRun
from dkgp.data import ModelRecord, recognise
from dkgp.data.remote.storage import exists, is_file, remove_tree
from dkgp.data.stores.dataset import DATASET_KIND
from dkgp.errors import InputError
from dkgp.kriging.candidates import FITS, Candidates, candidates_table
from dkgp.kriging.choices import format_of
from dkgp.kriging.commands.jobs import KrigeFitJob, KrigeGridJob, KrigeVariogramJob
from dkgp.kriging.commands.options import (
    SampleColumns,
    covariate_names,
)
from dkgp.kriging.covariates import short_name
from dkgp.kriging.empirical import EmpiricalVariogram, empirical_variogram
from dkgp.kriging.kriging import Kriging
from dkgp.kriging.pictures import plot_variogram
from dkgp.kriging.rasters import write_field
from dkgp.kriging.space import Space, axis_unit, crs_of, region_in
from dkgp.kriging.tables import SampleTable
from dkgp.kriging.variogram import Variogram
from dkgp.models import Hyperparameters
from dkgp.models.context import RunContext
from dkgp.models.memory import Memory
from dkgp.models.prediction.predict import Destination
from dkgp.models.problem import stored_identity
from dkgp.operators.block_tasks import feature_width
from dkgp.options import arguments_for
from dkgp.solvers import Checkpointing
from dkgp.solvers.registry import Need, solver_memory, solvers_that_need

# Models of a picture.
DRAWN = 5


# ---------------------------------------------------------------------------------------------------------- variograms


def run_krige_variogram(job: KrigeVariogramJob, reporter: Reporter) -> Document:
    """Estimate and fit a variogram; errors as in `read_samples`, `empirical_variogram` and `Variogram.fit`."""
    check_results(job)
    began = time.perf_counter()
    table = job.samples.read(job.source, reporter, job.drift)
    empirical = empirical_of(table, job.samples, job)
    if table.noise is not None:
        reporter.note(
            f"the nuggets are without the samples' noise, whose mean is {np.mean(table.noise):.4g}; the likelihood has "
            "that of each sample"
        )
    models = compared_models(table, job) if job.compare else fitted_models(empirical, job, table.noise)
    document: Document = plain(
        {
            "command": "krige variogram",
            "source": job.source,
            "target": job.samples.target,
            "n": table.n,
            "empirical": empirical.to_dict(),
            "unit": empirical.unit,
            "models": [{**figures, "variogram": figures["variogram"].to_dict()} for figures in models],
            **({"variogram": models[0]["variogram"].to_dict()} if models else {}),
            "seconds": time.perf_counter() - began,
            "warnings": list(reporter.warnings),
        }
    )
    if job.plot is not None:
        labelled = {
            f"{figures['name']}, {FITTED_BY[figures['fit']]}": figures["variogram"] for figures in models[:DRAWN]
        }
        plot_variogram(Path(job.plot), empirical, labelled, f"{job.samples.target} of {job.source}")
    return with_results(document, job)


def empirical_of(table: SampleTable, columns: SampleColumns, job: Any) -> EmpiricalVariogram:
    """Return the empirical variogram of samples, with the settings of a job; times are in map units."""
    coordinates, crs, metric = table.coordinates, table.crs, columns.metric
    if columns.time is not None:
        space = _space(table, columns)
        if space.n_columns > 3:
            raise InputError(
                "a variogram in space and time is estimated of places in a plane; leave `time` out, and krige with a "
                "variogram in map units"
            )
        coordinates, crs, metric = tuple(space.places(coordinates).T), None, "plane"
    settings = arguments_for(empirical_variogram, job) | {"covariates": _covariates(table, job) if job.drift else None}
    return empirical_variogram(coordinates, table.values, crs=crs, metric=metric, **settings)


def _covariates(table: SampleTable, job: Any) -> Any:
    return np.column_stack([np.zeros((table.n, 0)), *(table.covariates[name] for name in covariate_names(job.drift))])


def _space(table: SampleTable, columns: SampleColumns) -> Space:
    time = columns.time_scale
    coordinates, has_time = table.coordinates, time is not None
    return Space.of(coordinates, table.crs, metric=columns.metric, has_time=has_time, time_scale=time or 1.0)


def fitted_models(empirical: EmpiricalVariogram, job: KrigeVariogramJob, noise: Any) -> list[Document]:
    """Return models that are fitted to an empirical variogram, the best fit first.

    The mean of the samples' known noise is taken off the nuggets.
    """
    if not np.isfinite(empirical.variance) or empirical.variance == 0.0:
        raise InputError("the values do not vary; a variogram of them is zero")
    rows: list[Document] = []
    for name in job.fit:
        fitted = Variogram.fitted(name, empirical, weights=job.weights)
        figures = {"name": name, "fit": "weights", "misfit": fitted.misfit(empirical)}
        rows.append({**figures, "variogram": fitted.without_noise(0.0 if noise is None else float(np.mean(noise)))})
    return sorted(rows, key=lambda figures: float(figures["misfit"]))


def compared_models(table: SampleTable, job: KrigeVariogramJob) -> list[Document]:
    """Return fits by weights and by likelihood, the best predictions first; see `compare_variograms`."""
    places = _space(table, job.samples).places(table.coordinates)
    covariates = _covariates(table, job)
    samples = Candidates.of(
        places, table.values, degree=job.degree, covariates=covariates, noise=table.noise, seed=job.seed
    )
    rows = candidates_table(samples, job.fit, FITS, None).to_dict("records")
    return [
        {
            "name": row["model"],
            **{name: row[name] for name in ("fit", "misfit", "RMSE", "SRMSE", "coverage95", "variogram")},
            "nlpd": -row["log_score"],
        }
        for row in rows
    ]


def tables_krige_variogram(document: Document) -> list[Any]:
    """Return the bins, and the models."""
    bins = document["empirical"]
    is_random = any(bins["sampling_error"])
    rows = [
        [
            f"{figure_text(low)} to {figure_text(high)}",
            figure_text(lag),
            figure_text(gamma),
            *([plain_number(error, 2)] if is_random else []),
            f"{count:,}",
        ]
        for low, high, lag, gamma, error, count in zip(
            bins["edges"],
            bins["edges"][1:],
            bins["lag"],
            bins["gamma"],
            bins["sampling_error"],
            bins["count"],
            strict=False,
        )
        if gamma is not None
    ]
    unit = f" ({document['unit']})" if document["unit"] else ""
    heads = (
        f"lag{unit}",
        "mean lag",
        "semivariance",
        *(["standard error from random pairs"] if is_random else []),
        "pairs",
    )
    along = "" if bins["direction"] is None else f", {bins['direction']:g} degrees from east"
    title = f"Variogram of {document['target']} by distance (lag){along}"
    title += f": {document['n']:,} samples, estimator {bins['estimator']}"
    parts: list[Any] = [titled(f"{title}, random pairs" if is_random else title, grid(heads, rows))]
    if document["models"]:
        parts.append(
            titled(
                f"Fitted models, the lowest {'NLPD on left-out blocks' if is_compared(document) else 'misfit'} first",
                grid(model_heads(document), model_rows(document), left=("model", "fitted by")),
            )
        )
    return parts


# The names of the fits in tables.
FITTED_BY = {"weights": "least squares", "likelihood": "likelihood"}


def model_heads(document: Document) -> tuple[str, ...]:
    """Return the headings of `model_rows`."""
    unit = f" ({document['unit']})" if document["unit"] else ""
    scores = ("RMSE", "NLPD") if is_compared(document) else ()
    return "model", "fitted by", "nugget", "partial sill", f"range{unit}", f"practical range{unit}", "misfit", *scores


def is_compared(document: Document) -> bool:
    """Return True if cross-validation ranked the models."""
    return "nlpd" in document["models"][0]


def figure_text(value: float) -> str:
    """Return a number of four digits, without an exponent below a thousand million."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def model_rows(document: Document) -> list[list[str]]:
    """Return a row for each fitted model."""
    rows = []
    for each in document["models"]:
        model = Variogram.from_dict(each["variogram"])
        nugget = model.error_variance + model.microscale_variance
        sizes = (nugget, model.psill, model.range, model.range_as("practical"))
        scores = [figure_text(each[name]) for name in ("RMSE", "nlpd") if name in each]
        texts = [*map(figure_text, sizes), f"{each['misfit']:.1%}", *scores]
        rows.append([model.model, FITTED_BY[each["fit"]], *texts])
    return rows


# -------------------------------------------------------------------------------------------------------------- fields


class KrigeFitRun(TrainingRun):
    """A run of `dkgp krige fit`."""

    command, record = "krige fit", ModelRecord
    job: KrigeFitJob

    @property
    def training_set_url(self) -> str:
        """The store of the samples during the run, for workers in other processes."""
        return f"{self.job.out.rstrip('/')}.training-set"

    @property
    def places(self) -> list[str]:
        """The paths of the field, of its checkpoints and of the training set."""
        return [*super().places, self.training_set_url]

    def run(self) -> Document:
        """Run the job; see `Run.run`."""
        try:
            return super().run()
        finally:
            if exists(self.training_set_url) and recognise(self.training_set_url) == DATASET_KIND:
                remove_tree(self.training_set_url)

    def check(self) -> None:
        """Refuse values that are no variogram."""
        self.job.variogram.made()

    def open(self) -> None:
        """Read the samples, and set up their equations."""
        import pandas as pd

        job, table = self.job, self.job.samples.read(self.job.source, self.reporter, self.job.drift)
        self.table, self.kriging = table, job.kriging(table)
        values = pd.Series(table.values, name=job.samples.target)
        self.equations = self.kriging.equations(
            table.coordinates, values, noise=table.noise, covariates=table.covariates or None
        )
        problem = self.equations.problem
        self.dataset = problem.dataset
        self.hyperparameters = Hyperparameters(problem.kernel, float(problem.noise.common))
        self.keep_to_products()
        self.equations.product_error = self.product_error

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a checkpoint must share, except those of the solver."""
        return self.equations.problem.identity(self.product_error)

    def checkpoints(self) -> Checkpointing:
        """Return the checkpoints of the solve."""
        return checkpointing_of(self.job, self.identity, self.equations.solver.settings(), self.reporter)

    def work(self, executor: BlockExecutor) -> Memory:
        """Plan the memory and solve."""
        one = self.equations
        kernel, solver = one.problem.kernel, one.solver
        plan = planned_solve(
            self,
            kernel,
            one.problem.columns,
            solver_memory(solver, self.dataset.n_samples, feature_width(kernel)),
            executor,
            needs_inputs=solver.name if solver.name in solvers_that_need(Need.INPUTS) else None,
            products=one.products,
        )
        with solving(self, executor, input_bytes(plan), one.tolerance) as context:
            self.kriging.solved(one.solve(context, training_set=self.training_set_url))
        return plan

    def conclude(self, result: Memory, peak_bytes: int) -> Document:
        """Save the field, and report."""
        return self.report(self.save(result, {"peak_memory_bytes": peak_bytes}, overwrite=self._overwrite))

    def save(self, trained: Memory, measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the field, even if the solve stopped short."""
        fitted = self.kriging.field_.fitted
        fitted.record = replace(fitted.record, summary={**fitted.record.summary, **measured})
        self.kriging.save(self.job.out, overwrite=overwrite)
        record = fitted.record
        return Outcome(record, record.summary, record.certificate, record.history, trained.to_json())

    def difference(self, model: ModelRecord, converged: bool) -> str | None:
        """Return the name of a difference to the stored run: samples, settings or solver; None if none differs."""
        summary = model.summary
        made = {**stored_identity(model), **summary.get("settings", {})}
        made |= {name: summary[name] for name in ("product_error",) if name in summary}
        about: Document = plain(self.equations.about)
        kriging = summary.get("estimator", {}).get("kriging")
        expected = {**self.identity, **self.equations.solver.settings(), "kriging": about}
        return difference({**made, "kriging": kriging}, expected)

    def draw(self, outcome: Outcome) -> None:
        """Plot the convergence if the solver has rounds."""
        if self.job.plot is not None and outcome.history:
            title = f"{self.job.samples.target}: {self.table.n:,} samples"
            plot_convergence(self.job.plot, outcome.history, tolerance=self.equations.tolerance, title=title)

    def described(self, outcome: Outcome) -> Document:
        """Return the figures of the field."""
        summary = outcome.summary
        cost = {name: summary[name] for name in ("seconds", "peak_memory_bytes") if name in summary}
        kriging = Kriging.load(self.job.out)
        return {**field_figures(self.job, self.table, kriging), **cost, "memory_plan": outcome.memory_plan}


def field_figures(job: KrigeFitJob, table: SampleTable, kriging: Kriging) -> Document:
    """Return the figures of a kriged field."""
    summary = kriging.field_.record.summary
    document: Document = plain(
        {
            "command": "krige fit",
            "out": job.out,
            "source": job.source,
            "target": job.samples.target,
            "n": table.n,
            "n_merged": kriging.n_merged_,
            "n_dropped": table.n_dropped,
            "kind": kriging.kind,
            "coordinates": list(table.coordinate_names),
            "crs": kriging.space_.crs,
            "metric": kriging.space_.metric,
            "unit": kriging.space_.unit,
            "region": list(kriging.region_),
            "variogram": kriging.variogram_.to_dict(),
            "drift": kriging.drift_,
            "tolerance": job.tolerance,
            "converged": summary.get("converged", True),
            "certificate": kriging.certificate_,
        }
    )
    return document


def _variogram_text(document: Document) -> str:
    model = Variogram.from_dict(document["variogram"])
    nugget = model.error_variance + model.microscale_variance
    more = "" if model.ratio == (1.0, 1.0) else f", ratio {model.ratio[0]:.3g} at {model.angle or 0.0:.4g} degrees"
    unit = f" {document['unit']}" if document.get("unit") else ""
    parts = []
    for one in (model, *model.also):
        practical = one.range_as("practical")
        also = "" if practical == one.range else f" (practical range {figure_text(practical)}{unit})"
        text = f"partial sill {figure_text(one.psill)}, range {figure_text(one.range)}{unit}{also}"
        parts.append(f"{one.model}: {text}")
    return f"{' + '.join(parts)}{more}, nugget {figure_text(nugget)}"


def reference_text(document: Document) -> str | None:
    """Return the code or the name of the CRS of a document; None without one."""
    return short_name(crs_of(document["crs"])) if document.get("crs") else None


def _drift_text(document: Document) -> str | None:
    coefficients = list(document["drift"].values()) if document["drift"] else []
    if not coefficients:
        return None
    return listed(
        [
            f"{name} {plain_number(item['value'])} ± {plain_number(item['standard_error'], 2)}"
            for name, item in coefficients[0].items()
        ]
    )


FIELD_FIGURES = (
    Figure("store", "{out}"),
    Figure("samples", "{n:,} values of {target}"),
    Figure(
        "samples merged with another at the same place", lambda of: f"{of['n_merged']:,}" if of["n_merged"] else None
    ),
    Figure(
        "samples left out because of missing values", lambda of: f"{of['n_dropped']:,}" if of["n_dropped"] else None
    ),
    Figure("coordinate reference system", reference_text),
    Figure("kriging", "{kind}"),
    Figure("variogram", _variogram_text),
    Figure("drift coefficients ± standard errors", _drift_text),
    Figure("seconds", "{seconds:.1f}"),
    may("peak memory, all processes", "{peak_memory_bytes:size}"),
)


def tables_krige_fit(document: Document) -> list[Any]:
    """Return the figures of the field."""
    return [sheet_of("Kriged field", FIELD_FIGURES, document)]


# ---------------------------------------------------------------------------------------------------------------- maps

# Cells of a map without options for them: the longer side, about.
MOST_CELLS_A_SIDE = 200


class FieldRun(Run):
    """A run that reads a kriged field."""

    kriging: Kriging

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.kriging.field_.n_samples

    def open(self) -> None:
        """Open the field."""
        if is_file(self.job.model):
            raise InputError(f"'{self.job.model}' is a file; expected the store of a field. Run `dkgp krige fit` first")
        self.kriging = Kriging.load(self.job.model)

    def context(self, executor: BlockExecutor, interruption: Any, within: Any = None) -> RunContext:
        """Return the context of computations with the field; `within` is called with their progress."""
        return RunContext(
            executor,
            product_error=self.kriging.field_.fitted.product_error,
            note=self.reporter.note,
            within=within,
            interrupted=interruption,
        )

    def cost(self, seconds: float, peak_bytes: int) -> Document:
        """Return the last figures of a document, and the field's deviation without samples, the scale of bounds."""
        return {
            "prior_deviation": math.sqrt(self.kriging.variogram_.field_variance),
            "seconds": seconds,
            "peak_memory_bytes": peak_bytes,
            "warnings": list(self.reporter.warnings),
        }


class KrigeGridRun(FieldRun):
    """A run of `dkgp krige grid`."""

    command = "krige grid"
    job: KrigeGridJob

    def check(self) -> None:
        """Refuse an output of no known format."""
        format_of(self.job.out)

    def open(self) -> None:
        """Open the field, and set up the grid."""
        super().open()
        region = region_in(self.kriging.region_, self.kriging.space_.crs, self.job.crs)
        self.grid = self.job.cells.grid(region, MOST_CELLS_A_SIDE)
        self.settings = self.job.settings

    def work(self, executor: BlockExecutor) -> Document:
        """Predict, and write the map."""
        began, job = time.perf_counter(), self.job
        target = Destination(job.out, overwrite=job.overwrite, resume=job.resume)
        with self.reporter.work(self.command) as show, interruptible(self.reporter.note) as interruption:
            context = replace(self.context(executor, interruption, show), unit="cells")
            summary = write_field(self.kriging.field_, self.grid, target, self.settings, context)
        return {**summary, "seconds": time.perf_counter() - began}

    def conclude(self, result: Document, peak_bytes: int) -> Document:
        """Return the map's figures."""
        job, one = self.job, self.grid
        document: Document = plain(
            {
                "command": self.command,
                "out": job.out,
                "format": format_of(job.out),
                "model": job.model,
                "of": job.of,
                "shape": list(one.shape),
                "spacing": list(one.spacing),
                "region": [float(one.x[0]), float(one.x[-1]), float(one.y[0]), float(one.y[-1])],
                "cells": one.n_cells,
                "crs": job.crs or self.kriging.space_.crs,
                "variance": job.variance,
                **({"variance_gap": job.gap} if job.variance else {}),
                **result,
                **self.cost(result["seconds"], peak_bytes),
            }
        )
        return document


def tables_krige_grid(document: Document) -> list[Any]:
    """Return the map's figures."""
    return [sheet_of("Map", MAP_FIGURES, document)]


def _spacing_text(document: Document) -> str:
    """Return the spacing with the unit of the map's own coordinates."""
    unit = axis_unit(document["crs"]) if document["crs"] else ""
    north, east = (f"{step:.6g}{f' {unit}' if unit else ''}" for step in document["spacing"])
    return f"{east} east, {north} north"


def _variances_text(document: Document) -> str:
    if not document["variance"]:
        return "no variances (use --variance)"
    share = document["intervals_met"]
    if share is None:
        return "no cells"
    return f"{share:.2%} of the cells (requested: within {100 * document['variance_gap']:.3g} %)"


def mean_bound_text(document: Document) -> str:
    """Return the largest bound of a mean, with its area's name; "not informative" beside the root of the sill."""
    bound, deviation = document["mean_error_bound"], document.get("prior_deviation")
    of = f" in area {document['mean_error_bound_of']}" if "mean_error_bound_of" in document else ""
    return proven(f"{bound:.3g}{of}", bound / deviation if deviation else 0.0)


QUANTITIES = {
    "signal": "signal, without the nugget",
    "field": "field, with micro-scale variation",
    "observation": "observation, with measurement error",
}


def _mean_bound_row(document: Document) -> str:
    bound = mean_bound_text(document)
    return bound if bound == NOT_INFORMATIVE else f"worst case {bound} (units of the target)"


MEAN_BOUND = Figure("mean certified within", _mean_bound_row)
MAP_FIGURES = (
    Figure("map", "{out} ({format})"),
    Figure("predicted quantity", lambda of: QUANTITIES[of["of"]]),
    Figure("cells", "{cells:,}: {shape[0]:,} rows, {shape[1]:,} columns"),
    Figure("spacing", _spacing_text),
    Figure("coordinate reference system", reference_text),
    Figure("cells left empty", lambda of: f"{of['empty_cells']:,}" if of["empty_cells"] else None),
    MEAN_BOUND,
    Figure("intervals as narrow as requested", _variances_text),
    Figure("seconds", "{seconds:.1f}"),
    may("peak memory, all processes", "{peak_memory_bytes:size}"),
)
