"""`dkgp predict`: predict data to a prediction store or a table; `dkgp export`: convert a store to a table."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.predict.job import ExportJob, PredictJob
from dkgp.commands.reporting.outputs import Document, check_table, plain
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.run import Run
from dkgp.commands.signals import interruptible
from dkgp.data import (
    LINEAR_MODEL_KIND,
    AnyModel,
    LinearRecord,
    ensure_writable,
    open_any_model,
    open_dataset,
    open_linear_model,
    open_prediction,
    recognise,
)
from dkgp.data.remote.storage import exists, normalise_url, remove_tree
from dkgp.data.stores.prediction_store import PREDICTION_KIND
from dkgp.data.stores.writable import take_the_place
from dkgp.errors import OutputExistsError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.context import RunContext
from dkgp.models.prediction.predict import Destination, PredictSummary, predict
from dkgp.models.prediction.table import export
from dkgp.models.sparse.model import method_named
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.warm_up import helped
from dkgp.operators.product_error import EVERY_ENTRY, ProductError


class PredictRun(Run):
    """A run of `dkgp predict`.

    A variance with an interval wider than requested only causes a warning, because the interval is still valid. A
    sparse model's variances also cause one if they are proven wrong or known to be too small.
    """

    command = "predict"
    job: PredictJob
    model: AnyModel | LinearRecord

    def check(self) -> None:
        """Refuse an existing store; warn if there is no store to resume."""
        job, beside = self.job, self.job.beside
        self.product_error = ProductError.of(job.product_error)
        self.store = store = job.store_url
        goes_on = job.resume and exists(store)
        if job.is_table:
            # A resumed prediction checked the path of its table when it began.
            check_table(job.out, replace=job.overwrite or goes_on)
        if not job.resume:
            if not job.is_table:
                ensure_writable(job.out, job.overwrite, PREDICTION_KIND)
            if beside is not None and exists(beside) and not job.overwrite:
                raise OutputExistsError(
                    f"predictions for '{job.out}' were interrupted; the completed part is in '{beside}'. Continue "
                    f"with `resume`, or start again with `overwrite`"
                )
            ensure_writable(store, job.overwrite, PREDICTION_KIND)
        elif not goes_on:
            self.reporter.warn(
                f"there is no prediction store at '{store}' to resume; the prediction starts from the beginning"
            )

    def open(self) -> None:
        """Open the model and the test samples."""
        is_linear = recognise(normalise_url(self.job.model)) == LINEAR_MODEL_KIND
        self.model = open_linear_model(self.job.model) if is_linear else open_any_model(self.job.model)
        self.dataset = open_dataset(self.job.dataset)
        request = self.job.variance
        self.variance = None if request is None else request.settings(self.model.variance_gap)

    def refuse(self) -> None:
        """Refuse an error of sums without a bound here, or with sums that exceed the workers' memory."""
        model: Any = self.model
        error = self.product_error
        variance = self.variance
        whole_columns = variance is not None and not variance.leaves_sums
        if model.without_sums is not None or (model.has_variances and whole_columns):
            return  # no sums over all samples; the prediction itself refuses the option
        kernel, _ = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        error.require_kernel(kernel)
        fits = error.memory(kernel, model.n_support, 1, self.job.cluster.worker_memory_bytes) is not None
        if not (fits or self.job.resume):  # a resumed prediction keeps its kind of sums
            self.product_error = EVERY_ENTRY
            self.reporter.note(
                "sums evaluate every kernel entry, since there is too little memory for approximate sums"
            )

    def compiling(self) -> AbstractContextManager[None]:
        """Compile the kernel's code, if the model has a kernel."""
        kernel = getattr(self.model, "kernel", None)
        return nullcontext() if kernel is None else helped(kernel_from_json(kernel))

    def work(self, executor: BlockExecutor) -> PredictSummary:
        """Predict into the store, region by region."""
        job, note = self.job, self.reporter.note
        with self.reporter.work("predict") as show, interruptible(note) as interruption:
            return predict(
                self.model,
                self.dataset,
                Destination(self.store, job.chunk_rows, overwrite=job.overwrite, resume=job.resume),
                RunContext(
                    executor,
                    product_error=self.product_error,
                    note=note,
                    within=show,
                    interrupted=interruption,
                ),
                variance=self.variance,
                plug_in=job.plug_in,
                note=note,
            )

    def conclude(self, result: PredictSummary, peak_bytes: int) -> Document:
        """Return the number of samples, the seconds, the largest certified error of the mean, and variance figures."""
        job, reporter, figures = self.job, self.reporter, dict(vars(result))
        if result.classes is None:
            figures.pop("classes")
        else:
            _warn_of_latent(result.classes.get("latent_variance"), reporter)
        if self.variance is not None and result.variance is not None:
            if self.variance.basis is not None:
                _warn_of_bases(result.variance, reporter)
            if self.model.is_sparse:
                figures["variance"] = _sparse_variance_figures(result.variance, result.n_samples, reporter)
            else:
                figures["variance"] = _variance_figures(result.variance, self.variance, reporter)
        table: Document = {}
        if job.is_table:
            table["columns"] = export(open_prediction(self.store), self.dataset, job.out)
            remove_tree(self.store)
        elif self.store != job.out:
            take_the_place(self.store, job.out, PREDICTION_KIND)
            figures["url"] = job.out
        return {
            "command": self.command,
            "out": job.out,
            **table,
            "model": self.model.url,
            "dataset": self.dataset.url,
            **plain(figures),
            **({} if isinstance(job.product_error, str) else {"product_error": job.product_error}),
            **({"transformed": True} if self.model.standardisation.transforms else {}),
            "target_std": plain(self.model.standardisation.target_std),
            "peak_memory_bytes": peak_bytes,
            "warnings": list(reporter.warnings),
        }


def run_export(job: ExportJob, reporter: Reporter) -> Document:
    """Export; return the path of the table, its columns and its number of samples.

    Raises
    ------
    InputError
        The suffix is not that of a table, or the predictions were made for other data.
    OutputExistsError
        The file already exists.
    StorageError
        The file cannot be written; no partial file remains.
    """
    check_table(job.out, replace=job.overwrite)
    prediction = open_prediction(job.prediction)
    dataset = None if job.dataset is None else open_dataset(job.dataset)
    columns = export(prediction, dataset, job.out)
    return {
        "command": "export",
        "out": job.out,
        "prediction": prediction.url,
        "dataset": None if dataset is None else dataset.url,
        "n": prediction.n_samples,
        "columns": columns,
        "warnings": list(reporter.warnings),
    }


def _variance_figures(figures: dict[str, Any], settings: VarianceSettings, reporter: Reporter) -> Document:
    """Return figures of the whole store; warn if intervals are wider than requested."""
    if figures.get("approximate"):
        return _told(figures)
    n, unmet, widest = figures["met"] + figures["unmet"], figures["unmet"], figures["gap_max"]
    if unmet and settings.basis is None:
        remedy = f"raise --max-passes (now {settings.max_passes:g}) or --variance-rank (now {figures['rank']:,})"
        if figures.get("way") == "cholesky":
            remedy = "use --variance-way iterative"
        elif figures.get("way") == "neighbours":
            remedy = "use --variance-way iterative or cholesky"
        reporter.warn(
            f"{unmet:,} of {n:,} variances have proven intervals that are wider than the requested relative gap of "
            f"{figures['gap']:g} (at most {widest:.3g}). For narrower intervals {remedy}"
        )
    return _told(figures)


def _warn_of_bases(figures: dict[str, Any], reporter: Reporter) -> None:
    """Warn if a basis ended before it reached its gap; its interval is still valid."""
    if figures["unmet"]:
        reporter.warn(
            f"for {figures['unmet']:,} of {figures['met'] + figures['unmet']:,} test samples, the basis is too "
            "small for "
            f"a gap of {figures['basis_gap']:g} between the bounds. Their intervals are valid but wider. For "
            f"narrower intervals raise --variance-basis (now {figures['basis']:,})"
        )


def _warn_of_latent(figures: dict[str, Any] | None, reporter: Reporter) -> None:
    """Warn if intervals of latent variances, and so of probabilities, are wider than requested."""
    if figures is not None and figures["unmet"]:
        reporter.warn(
            f"The intervals of {figures['unmet']:,} latent variances are wider than the requested relative gap of "
            f"{figures['gap']:g} (at most {figures['gap_max']:.3g}). These intervals and those of the "
            "probabilities are valid. For narrower intervals raise `max_passes` or the variance `rank`"
        )


def _sparse_variance_figures(figures: dict[str, Any], n: int, reporter: Reporter) -> Document:
    """Return figures of the whole store; warn if the method's own variances are proven wrong or misleading."""
    method = method_named(figures["method"])
    if method.caution is not None:
        reporter.warn(method.caution)
    if figures["outside"]:
        reporter.warn(
            f"{round(figures['outside'] * n):,} of {n:,} variances by {method.name} are proven to be wrong: they lie "
            "outside the proven interval of the exact variance, variance_lower to variance_upper. A larger basis "
            "brings them closer"
        )
    return _told(figures)


def _told(figures: dict[str, Any]) -> Document:
    return {**figures, "seconds_per_sample": figures["seconds_per_sample"] if figures["computed"] else None}
