"""`dkgp ingest`: convert files to a dataset store, and optionally a second store for testing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dkgp.codec import rule
from dkgp.commands.reporting.memory import own_peak_bytes
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.warm_up import behind
from dkgp.data import TableOptions, ingest
from dkgp.data.sources.tables.encoding import Unseen
from dkgp.data.stores.standardisation import Scale, TransformName


@dataclass(frozen=True)
class IngestJob:
    """Sources to ingest. Fields match the parameters of `dkgp.data.sources.ingest`; `options` are the format's."""

    sources: tuple[str, ...]
    out: str = ""  # a fit has a place of its own for it
    targets: tuple[str, ...] = ()
    labels: str | None = None
    weights: str | None = None
    features: tuple[str, ...] | None = None
    ids: tuple[str, ...] = ()
    noise_column: str | None = None
    noise_std_column: str | None = None
    test_fraction: float | None = None
    test_out: str | None = None
    test_mask: str | None = None
    stratify: bool | None = None
    seed: int = 0
    chunk_rows: int | None = None
    overwrite: bool = False
    table: TableOptions = field(default_factory=TableOptions)
    like: str | None = None
    unseen: Unseen = "refuse"
    transform: TransformName | None = None
    scale: Scale = field(default="each", metadata=rule(omit_default=True))
    options: Mapping[str, Any] = field(default_factory=dict)


def run_ingest(job: IngestJob, reporter: Reporter) -> Document:
    """Ingest; return urls, n, n_train, n_test, d, p, names, classes, fingerprint, seconds, ... of the stores."""
    with reporter.work("ingest") as progress, behind():
        report = ingest(
            job.sources,
            job.out,
            target=list(job.targets) or None,
            labels=job.labels,
            weights=job.weights,
            features=None if job.features is None else list(job.features),
            ids=list(job.ids),
            noise_column=job.noise_column,
            noise_std_column=job.noise_std_column,
            test_fraction=job.test_fraction,
            test_out=job.test_out,
            test_mask=job.test_mask,
            stratify=job.stratify,
            seed=job.seed,
            overwrite=job.overwrite,
            chunk_rows=job.chunk_rows,
            table=job.table,
            like=job.like,
            unseen=job.unseen,
            transform=job.transform,
            scale=job.scale,
            progress=progress,
            **job.options,
        )
    for message in report.warnings:
        reporter.warn(message)
    return {
        "command": "ingest",
        **report.to_json(),
        "warnings": list(reporter.warnings),
        "peak_memory_bytes": own_peak_bytes(),
    }
