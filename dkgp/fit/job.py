"""The job that `dkgp fit` is: a table, what to predict, and what may be spent on it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from dkgp.cluster import ClusterOptions
from dkgp.commands.ingest import IngestJob
from dkgp.commands.reporting.documents import Document, plain
from dkgp.data.remote.storage import is_local
from dkgp.errors import InputError, UsageError
from dkgp.registry import Option

RECORD, PAGE = "fit.json", "report.html"
TRAIN, TEST, HYPER, MODEL, PREDICTIONS = "train.zarr", "test.zarr", "hyper.json", "model.zarr", "pred.zarr"
STORES = (TRAIN, TEST, HYPER, MODEL, PREDICTIONS, PAGE)
OUT = Option(help="Folder for everything, on this machine.", place="write")
DEFAULT_TEST_FRACTION, DEFAULT_SECONDS = 0.1, 600.0


@dataclass(frozen=True)
class FitJob:
    """A table to fit.

    Attributes
    ----------
    ingestion
        The sources, their columns, the part that is held out and the seed; its places are in `out`.
    out
        A folder on this machine.
    seconds
        What all of it may take, as far as it can be foreseen.
    memory_bytes
        What it may take; by default what is available.
    kernel
        Of a regression; "auto" compares a few.
    auto_columns
        Whether columns of text, dates and gaps become what a look at all of them suggests.
    auto_transform
        Whether transforms of the target are tried where its noise asks for one; not where `ingestion` names one.
    """

    ingestion: IngestJob
    out: Annotated[str, OUT] = "fit"
    seconds: float = DEFAULT_SECONDS
    memory_bytes: int | None = None
    kernel: str = "auto"
    auto_columns: bool = True
    auto_transform: bool = True
    resume: bool = False
    overwrite: bool = False
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    @property
    def folder(self) -> Path:
        """The folder for everything."""
        return Path(self.out)

    @property
    def seed(self) -> int:
        """Of all random draws."""
        return self.ingestion.seed

    def place(self, name: str) -> str:
        """Return where a part of the result lies."""
        return str(self.folder / name)

    def check(self) -> None:
        """Refuse what can be seen to be wrong without the data.

        Raises
        ------
        UsageError
            Nothing to predict, or two kinds of it.
        InputError
            A budget that is none, or a folder that is not on this machine.
        """
        if not self.ingestion.targets and self.ingestion.labels is None:
            raise UsageError("name the column to predict: `targets` of numbers, or `labels` of classes")
        if self.ingestion.targets and self.ingestion.labels is not None:
            raise UsageError("got `targets` and `labels`; a fit is of numbers or of classes: choose one")
        if not (math.isfinite(self.seconds) and self.seconds > 0.0):
            raise InputError(f"`seconds` must be positive and finite; got {self.seconds}")
        if not is_local(self.out):
            raise InputError(f"`out` is a folder on this machine; got '{self.out}'")

    def ingest_job(self) -> IngestJob:
        """Return the ingestion into the folder, with a part held out."""
        held_out = self.ingestion.test_fraction
        if held_out is None and self.ingestion.test_mask is None:
            held_out = DEFAULT_TEST_FRACTION
        return replace(
            self.ingestion,
            out=self.place(TRAIN),
            test_out=self.place(TEST),
            test_fraction=held_out,
            overwrite=True,
        )

    def settings(self) -> Document:
        """All that a fit that is resumed must share; budgets may change while nothing was chosen by them."""
        ingestion = asdict(self.ingest_job())
        for name in ("out", "test_out", "overwrite"):
            del ingestion[name]
        automatic = {"auto_columns": self.auto_columns, "auto_transform": self.auto_transform}
        return dict(plain({**ingestion, "kernel": self.kernel, **automatic}))
