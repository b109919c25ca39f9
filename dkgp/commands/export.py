"""`dkgp export`: a prediction store to a table for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.reporting.documents import Document
from dkgp.commands.reporting.outputs import check_table
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import open_dataset, open_prediction
from dkgp.models.prediction.table import export
from dkgp.registry import Option

PREDICTION = Option(place="read", argument=True)
OUT = Option(place="write", argument=True)
DATASET = Option(
    help="The data that the predictions were made for: adds the true targets, and the columns kept by --id.",
    metavar="STORE",
    place="read",
)


@dataclass(frozen=True)
class ExportJob:
    """A prediction store, the table that is made of it, and the data that it was made for."""

    prediction: Annotated[str, PREDICTION]
    out: Annotated[str, OUT]
    dataset: Annotated[str | None, DATASET] = None
    overwrite: Annotated[bool, OVERWRITE] = False


def run_export(job: ExportJob, reporter: Reporter) -> Document:
    """Export; return where the table is, its columns and how many samples it has.

    Raises
    ------
    InputError
        A suffix that is no table's, or data that the predictions were not made for.
    OutputExistsError
        The file is there already.
    StorageError
        It cannot be written; nothing is left behind.
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
