"""`dkgp predict`: a model store and a dataset store to a prediction store."""

from __future__ import annotations

from dataclasses import dataclass, field

from dkgp.cluster import ClusterOptions, open_executor
from dkgp.data import ensure_writable, open_dataset, open_model
from dkgp.data.prediction_store import PREDICTION_KIND
from dkgp.data.storage import exists
from dkgp.jobs.documents import Document, plain
from dkgp.jobs.memory import PeakMemory
from dkgp.jobs.progress import Reporter, WorkProgress
from dkgp.jobs.signals import interruptible
from dkgp.models.exact import predict

__all__ = ["PredictJob", "run_predict"]


@dataclass(frozen=True)
class PredictJob:
    """What to predict.

    Attributes
    ----------
    model, dataset, out
        Model store, dataset store with the model's features (targets are not needed), and where the predictions go.
    cluster
        Where the work runs.
    chunk_rows
        Rows of a chunk of the prediction store.
    overwrite
        Whether a prediction store that is there may be replaced.
    resume
        Go on with a prediction store that was interrupted.
    """

    model: str
    dataset: str
    out: str
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    chunk_rows: int | None = None
    overwrite: bool = False
    resume: bool = False


def run_predict(job: PredictJob, reporter: Reporter) -> Document:
    """Predict; return the number of samples, seconds, and the largest certified error of the mean.

    Raises
    ------
    InputError
        Stores that do not fit together; nothing has been written.
    InterruptedRunError
        A signal asked for the end.
    ClusterError
        No cluster, or one that was lost.
    """
    if not job.resume:
        ensure_writable(job.out, job.overwrite, PREDICTION_KIND)
    elif not exists(job.out):
        reporter.warn(f"there is no prediction store at '{job.out}' to resume; predicting starts from the beginning")
    model = open_model(job.model)
    dataset = open_dataset(job.dataset)
    with PeakMemory() as memory:
        with (
            open_executor(job.cluster, dataset.n_samples) as executor,
            reporter.work("predict") as show,
            interruptible(reporter.note) as interruption,
        ):
            summary = predict(
                model,
                dataset,
                job.out,
                executor,
                chunk_rows=job.chunk_rows,
                progress=lambda done, total: show(WorkProgress("samples", done, total, "samples")),
                overwrite=job.overwrite,
                resume=job.resume,
                interrupted=interruption,
            )
        peak_bytes = memory.bytes
    return {
        "command": "predict",
        "out": job.out,
        "model": model.url,
        "dataset": dataset.url,
        **plain(summary.to_json()),
        "peak_memory_bytes": peak_bytes,
        "warnings": list(reporter.warnings),
    }
