"""`dkgp train`: with `tune`, first tune the hyperparameters as `dkgp tune` does, then train the model."""

from __future__ import annotations

from dkgp.commands.reporting.outputs import Document, check_output_file, check_side_files
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.searches import run_tune
from dkgp.commands.train import TrainJob, finished_train
from dkgp.commands.train import run_train as run_training
from dkgp.commands.tune import TuneJob
from dkgp.data import ensure_writable
from dkgp.data.stores.models.regression import MODEL_KIND

__all__ = ["TrainJob", "finished_train", "run_train"]


def run_train(job: TrainJob, reporter: Reporter) -> Document:
    """Train; with `tune`, first search for hyperparameters with default settings.

    The record of the search is `tuned` in the model's record.

    A resumed run uses the hyperparameters at `hyper` if the same search wrote them.

    Raises the errors of both steps. Errors in the model's path are raised before the search.
    """
    if not job.tune:
        return run_training(job, reporter)
    if not job.resume:
        ensure_writable(job.out, job.overwrite, MODEL_KIND)
        check_side_files(job.plot, job.log_json, replace=job.overwrite)
        check_output_file(job.hyper, replace=job.overwrite, option="`hyper`", local=False)
    search = TuneJob(
        job.dataset,
        job.hyper,
        seed=job.solver.seed,
        mean=job.mean,
        resume=job.resume,
        overwrite=job.overwrite,
        cluster=job.cluster,
    )
    tuned = run_tune(search, reporter)
    return {**run_training(job, reporter), "tuned": tuned}
