"""`dkgp ingest`: convert files to a dataset store, and optionally a second store for testing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from dkgp.codec import rule
from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.recipe import command
from dkgp.commands.reporting.memory import own_peak_bytes
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.warm_up import behind
from dkgp.data import TableOptions, ingest
from dkgp.data.sources import formats
from dkgp.data.sources.tables.encoding import Unseen
from dkgp.data.sources.tables.learning import COLUMNS, NAMES
from dkgp.data.stores.standardisation import Scale, TransformName
from dkgp.options import SEED, ByName, Part, arguments_for
from dkgp.registry import FURTHER, Option

SOURCES = Option(place="read", argument=True)
OUT = Option(place="write", argument=True, required=True)
TARGETS = Option(
    help="Target column by name, or by index from 0 (negative: from the end). For sources with named arrays: the "
    "array's name, or NAME:COLUMN. May be repeated.",
    spellings=("--target",),
    metavar="NAME",
)
LABELS = Option(
    help="Column of class labels, instead of a target: text or numbers, with at least two classes.",
    metavar="NAME",
)
WEIGHTS = Option(
    help="With `labels`: column of sample weights, which are positive numbers.", metavar="NAME", group=FURTHER
)
NOISE_COLUMN = Option(
    help="Column of the known noise variance of each sample, in the target's units squared.", metavar="NAME"
)
NOISE_STD_COLUMN = Option(
    help="Column of the known noise standard deviation of each sample, in the target's units.", metavar="NAME"
)
FEATURES = replace(
    NAMES,
    help="Feature columns, separated by commas. Put a name with a comma in double quotes.  [default: all "
    "other columns]",
)
IDS = replace(
    NAMES,
    help="Columns that identify the samples. They are not features, but are copied as text into tables of predictions.",
    spellings=("--id",),
    group=COLUMNS,
)
TEST_FRACTION = Option(
    help="Share of the samples that is held out at random for testing.  [default: 0.1 for `dkgp fit`, else none]"
)
TEST_OUT = Option(help="Store to write the test samples to.", metavar="STORE", place="write")
TEST_MASK = Option(help="Column of zeros and ones that marks the test samples.", metavar="NAME[:COLUMN]", group=FURTHER)
STRATIFY = Option(
    help="Hold out the same share of every class with `test_fraction`.  [default: with `labels`]",
    spellings=("--stratify/--no-stratify",),
    group=FURTHER,
)
CHUNK_ROWS = Option(help="Number of rows per chunk of the store.  [default: about 8192]", group=FURTHER)
LIKE = Option(
    help="Encode columns as in this dataset or model store. Use it for new data to predict or evaluate.",
    metavar="STORE",
    place="read",
    group=FURTHER,
)
UNSEEN = Option(
    help="With `like`: treatment of categories that the store does not have. refuse: stop with an error; "
    "zeros: encode them as zeros.",
    group=FURTHER,
)
COVARIATES = replace(
    NAMES,
    help="Columns that are used only in the mean of `dkgp train --mean`, not in the kernel (external drift).",
    group=COLUMNS,
)
SCALE = Option(
    help="Scaling of features. each: divide every feature by its own standard deviation; common: divide all by the "
    "largest standard deviation, which keeps ratios of distances. Use common for coordinates in one unit and a "
    "kernel with one length scale.",
    group=FURTHER,
)
TRANSFORM = Option(
    help="Transform the target. log: its logarithm; yeo-johnson: a power transform with a fitted parameter. "
    "Evaluations are in the target's own units.",
    group=COLUMNS,
)


def format_options() -> list[Option]:
    """Return the options of the sources' formats."""
    return [replace(option, group=FURTHER) for option, _ in formats.format_options().values()]


def _recognised() -> str:
    *most, last = (each.name for each in formats.formats())
    return (
        f"SOURCES are files, globs, folders or URLs in one of these formats, which dkgp recognises by content: "
        f"{', '.join(most)} and {last}. They may be larger than memory. Without --target and --labels, the store has "
        "only features, for predictions. All samples are checked before anything is written."
    )


@command(
    _recognised,
    "dkgp ingest DATA.csv train.zarr --target price --test-fraction 0.1 --test-out test.zarr",
    "dkgp ingest 'part-*.parquet' train.zarr --target 0 --features age,height,weight",
    "dkgp ingest DATA.csv train.zarr --labels species --test-fraction 0.2 --test-out test.zarr",
    "dkgp ingest DATA.npz train.zarr --target y --test-mask test_mask:0 --test-out test.zarr",
    "dkgp ingest DATA.csv train.zarr --target price --categorical cut,color --date sold --drop id --impute median",
    "dkgp ingest NEW.csv new.zarr --like train.zarr",
)
@dataclass(frozen=True)
class IngestJob:
    """Sources to ingest. Fields match the parameters of `dkgp.data.sources.ingest`; `options` are the format's."""

    sources: Annotated[tuple[str, ...], SOURCES]
    out: Annotated[str, OUT] = ""  # a fit has a place of its own for it
    targets: Annotated[tuple[str, ...], TARGETS] = ()
    labels: Annotated[str | None, LABELS] = None
    weights: Annotated[str | None, WEIGHTS] = None
    features: Annotated[tuple[str, ...] | None, FEATURES] = None
    ids: Annotated[tuple[str, ...], IDS] = ()
    noise_column: Annotated[str | None, NOISE_COLUMN] = None
    noise_std_column: Annotated[str | None, NOISE_STD_COLUMN] = None
    test_fraction: Annotated[float | None, TEST_FRACTION] = None
    test_out: Annotated[str | None, TEST_OUT] = None
    test_mask: Annotated[str | None, TEST_MASK] = None
    stratify: Annotated[bool | None, STRATIFY] = None
    seed: Annotated[int, SEED] = 0
    chunk_rows: Annotated[int | None, CHUNK_ROWS] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    table: Annotated[TableOptions, Part()] = field(default_factory=TableOptions)
    like: Annotated[str | None, LIKE] = None
    unseen: Annotated[Unseen, UNSEEN] = "refuse"
    transform: Annotated[TransformName | None, TRANSFORM] = None
    covariates: Annotated[tuple[str, ...], COVARIATES] = field(default=(), metadata=rule(omit_default=True))
    scale: Annotated[Scale, SCALE] = field(default="each", metadata=rule(omit_default=True))
    options: Annotated[Mapping[str, Any], ByName(format_options)] = field(default_factory=dict)


def run_ingest(job: IngestJob, reporter: Reporter) -> Document:
    """Ingest; return urls, n, n_train, n_test, d, p, names, classes, fingerprint, seconds, ... of the stores."""
    with reporter.work("ingest") as progress, behind():
        report = ingest(
            **arguments_for(ingest, job), target=list(job.targets) or None, progress=progress, **job.options
        )
    for message in report.warnings:
        reporter.warn(message)
    return {
        "command": "ingest",
        **report.to_json(),
        "warnings": list(reporter.warnings),
        "peak_memory_bytes": own_peak_bytes(),
    }
