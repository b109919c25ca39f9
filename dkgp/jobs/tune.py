"""`dkgp tune`: hyperparameters by maximum marginal likelihood on a random subset of a dataset store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dkgp.data import open_dataset
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.jobs.documents import Document
from dkgp.jobs.memory import available_bytes, own_peak_bytes
from dkgp.jobs.outputs import check_output_file
from dkgp.jobs.progress import Reporter
from dkgp.models import projected_peak_bytes, tune_dataset, write_hyperparameters

__all__ = ["TuneJob", "run_tune"]


@dataclass(frozen=True)
class TuneJob:
    """What to tune; the rest as the parameters of `dkgp.models.tune_dataset`."""

    dataset: str
    out: str
    kernel: Literal["rbf"] = "rbf"
    subset: int = 2000
    restarts: int = 1
    learn_variance: bool = False
    tolerance: float = 1e-4
    seed: int = 0
    overwrite: bool = False


def run_tune(job: TuneJob, reporter: Reporter) -> Document:
    """Tune and write the hyperparameter file; return its content and where it is.

    Raises
    ------
    InputError
        A store that cannot be tuned on, or settings out of range.
    MemoryBudgetError
        The subset's matrices exceed the memory available.
    OutputExistsError, StorageError
        The file is there already, or cannot be written.
    """
    check_output_file(job.out, replace=job.overwrite, option="--out", local=False)
    dataset = open_dataset(job.dataset)
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets; ingest the data again with --target")
    size = min(job.subset, dataset.n_samples)
    projected, available = projected_peak_bytes(size, dataset.n_features, dataset.n_targets), available_bytes()
    if projected > available:
        raise MemoryBudgetError(
            f"tuning on {size} samples takes {projected:,} bytes; {available:,} bytes are available. Lower --subset"
        )
    reporter.note(
        f"tuning {dataset.n_features} length scales and the noise on {size:,} of {dataset.n_samples:,} samples"
    )
    with reporter.search("tune") as progress:
        found = tune_dataset(
            dataset,
            subset=job.subset,
            seed=job.seed,
            learn_variance=job.learn_variance,
            tolerance=job.tolerance,
            restarts=job.restarts,
            progress=progress,
        )
    for message in found.warnings:
        reporter.warn(message)
    write_hyperparameters(job.out, found, overwrite=job.overwrite)
    return {
        "command": "tune",
        "out": job.out,
        **found.to_json(),
        "warnings": list(reporter.warnings),
        "peak_memory_bytes": own_peak_bytes(),
    }
