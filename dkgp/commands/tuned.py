"""`dkgp train`: with `tune` the hyperparameters are found first, as `dkgp tune` finds them, and then the model."""

from __future__ import annotations

from dkgp.commands.reporting.outputs import Document, check_side_files
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.train import TrainJob
from dkgp.commands.train import run_train as run_training
from dkgp.commands.tune import TuneJob, run_tune
from dkgp.data import ensure_writable
from dkgp.data.stores.models.regression import MODEL_KIND

__all__ = ["TrainJob", "run_train"]


def run_train(job: TrainJob, reporter: Reporter) -> Document:
    """Train, with `tune` after a search for hyperparameters at its defaults; its record is the model's `tuned`.

    A run that is resumed takes the hyperparameters at `hyper` where the same search wrote them.

    Errors as of both; what can be refused of the model's place is refused before the search.
    """
    if not job.tune:
        return run_training(job, reporter)
    if not job.resume:
        ensure_writable(job.out, job.overwrite, MODEL_KIND)
        check_side_files(job.plot, job.log_json, replace=job.overwrite)
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
