"""The job of `dkgp fit`: a table, the column to predict, and limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from dkgp.cluster import ClusterOptions
from dkgp.commands.ingest import TRANSFORM, IngestJob
from dkgp.commands.recipe import command
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.data.remote.storage import is_local
from dkgp.errors import InputError, UsageError
from dkgp.options import Checked, Part, options_of
from dkgp.registry import Option, byte_count

RECORD, PAGE = "fit.json", "report.html"
TRAIN, TEST, HYPER, MODEL, PREDICTIONS = "train.zarr", "test.zarr", "hyper.json", "model.zarr", "pred.zarr"
# Held-out samples that are predicted if there is no time for all.
TEST_SAMPLE = "test-sample.zarr"
STORES = (TRAIN, TEST, HYPER, MODEL, PREDICTIONS, PAGE, TEST_SAMPLE)
DEFAULT_TEST_FRACTION, DEFAULT_SECONDS = 0.1, 600.0
# Options of an ingestion that a fit decides itself, or has in another form.
WITHOUT = ("out", "test_out", "overwrite", "like", "unseen", "chunk_rows", "transform", "covariates", "scale")
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Read a duration, such as 90, 90s, 5m, 5min, 2h or 1d; return seconds."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text.strip()[len(number) :] or "s"
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is not a duration; expected one such as 90s, 5m, 5min, 2h or 1d.") from None


def _transforms(choice: str) -> dict[str, Any]:
    name = None if choice in ("auto", "none") else choice
    return {"auto_transform": choice == "auto", "ingestion.transform": name}


OUT = Option(
    help="Folder for all outputs: train.zarr, test.zarr, hyper.json, model.zarr, pred.zarr, report.html.",
    metavar="DIR",
    place="write",
)
SECONDS = Option(
    help="Time limit for all steps, such as 90s, 5m, 2h or 1d. Forecasts decide between the exact model and smaller "
    "ones. A step that exceeds its share of the limit ends with a cheaper result, and the report lists such "
    "steps.",
    type=duration,
    spellings=("--time",),
    metavar="TIME",
    above=0,
    shown="10min",
)
MEMORY = Option(
    help="Memory limit, such as 8GiB.  [default: available memory]",
    type=byte_count,
    spellings=("--memory",),
    metavar="SIZE",
)
KERNEL = Option(
    help="Kernel of a regression, as for `dkgp tune`. auto: the best of a few kernels on held-out samples.",
    metavar="TEXT",
)
AUTO_COLUMNS = Option(
    help="If the table has text, dates or missing values: choose the treatment of all columns automatically, and "
    "print it.",
    spellings=("--auto-columns/--no-auto-columns",),
    shown="auto-columns",
)
AUTO_TRANSFORM = replace(
    TRANSFORM,
    name="transform",
    help="Transform of the target. log: its logarithm; yeo-johnson: a power transform with a fitted parameter; none: "
    "no transform; auto: try both if the noise is skewed or grows with the mean, and use one if it predicts "
    "clearly better. All results are in the target's own units.",
    choices=("auto", "none", "log", "yeo-johnson"),
    sets=_transforms,
    shown="auto",
)
RESUME = Option(help="Continue an interrupted fit. Completed steps are not repeated.")
OVERWRITE = Option(help="Replace an earlier fit in the folder.")


@command(
    """
    SOURCES are files, globs, folders or URLs. The command holds out a tenth of the rows, tunes hyperparameters, chooses
    a model by the limits on time and memory, trains it, and tests it on the held-out rows. With --labels the model is a
    classifier. The report, OUT/report.html, explains the choice and ends with the commands that reproduce the fit.
    """,
    "dkgp fit DATA.csv --target price",
    "dkgp fit DATA.csv --target price --time 5min --memory 8GiB --out prices",
    "dkgp fit DATA.csv --labels species",
    "dkgp fit DATA.csv --target price --categorical cut,color --date sold --drop id --impute median",
    "dkgp fit DATA.csv --target price --resume",
    must_converge=True,
    goes_on=True,
)
@dataclass(frozen=True)
class FitJob(Checked):
    """A table to fit; `ingestion` holds its sources, their columns, the held-out part and the seed."""

    ingestion: Annotated[IngestJob, Part(without=WITHOUT)]
    out: Annotated[str, OUT] = "fit"
    seconds: Annotated[float, SECONDS] = DEFAULT_SECONDS
    memory_bytes: Annotated[int | None, MEMORY] = None
    kernel: Annotated[str, KERNEL] = "auto"
    auto_columns: Annotated[bool, AUTO_COLUMNS] = True
    auto_transform: Annotated[bool, AUTO_TRANSFORM] = True
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part(without=tuple(options_of(ClusterOptions)))] = field(
        default_factory=ClusterOptions
    )

    @property
    def folder(self) -> Path:
        """The folder for everything."""
        return Path(self.out)

    @property
    def seed(self) -> int:
        """Seed of all random draws."""
        return self.ingestion.seed

    def place(self, name: str) -> str:
        """Return where a part of the result lies."""
        return str(self.folder / name)

    def check(self) -> None:
        """Refuse mistakes that can be seen without the data.

        Raises
        ------
        UsageError
            Nothing to predict, or two kinds of it.
        InputError
            A folder that is not on this machine.
        """
        if not self.ingestion.targets and self.ingestion.labels is None:
            raise UsageError("name the column to predict: `targets` for numbers, or `labels` for classes")
        if self.ingestion.targets and self.ingestion.labels is not None:
            raise UsageError("got both `targets` (numbers) and `labels` (classes); give one of them")
        if not is_local(self.out):
            raise InputError(f"`out` is a folder on this machine; got '{self.out}'")

    def check_first(self) -> None:
        """Apply `check`, and refuse names of columns that the sources on this machine do not have."""
        from dkgp.data.sources.base import find_columns
        from dkgp.data.sources.formats import expand_locations, open_source

        self.check()
        ingestion = self.ingestion
        if self.resume or not all(is_local(source) for source in ingestion.sources):
            return
        source = open_source(expand_locations(ingestion.sources), ingestion.options)
        for target in ingestion.targets:
            find_columns(source, target, "target")
        if ingestion.labels is not None:
            find_columns(source, ingestion.labels, "column of labels")

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


def candidate_words(tuned: Document | None, n: int, seconds: float) -> tuple[str, ...]:
    """Return the words of `dkgp tune` that repeat the choice among candidates of n samples, within `seconds`."""
    # The help of all commands imports this module.
    from dkgp.models.refinement.candidates import MOST_SAMPLES
    from dkgp.models.tuning.tune import DEFAULT_SUBSET

    if tuned is None:
        return ()
    if tuned.get("given_up"):
        return ("--all-samples-seconds", f"{seconds:g}")
    record, size = tuned.get("candidates"), tuned.get("subset_size") or n
    smaller = ("--subset", str(size)) if size < min(n, DEFAULT_SUBSET) else ()
    if record is None:
        return smaller
    if not record["candidates"] or record["taken"] == record["candidates"][0]["from"]:
        return smaller or ("--all-samples", "none")
    limited = record["held_out"] > 0 and record["learned_from"] < min(n - record["held_out"], MOST_SAMPLES)
    return ("--all-samples-seconds", f"{seconds:g}") if limited or smaller else ()


def chosen_kernel(kernel: str, tuned: Document | None) -> str:
    """Return the kernel that tuning chose, or that it tuned without a choice for lack of time; else the given one."""
    comparison = (tuned or {}).get("comparison") or (tuned or {}).get("run") or {}
    return str(comparison.get("kernel", kernel))


def unfinished_kernels(comparison: Document) -> str:
    """Return in words the kernels that a time limit cut off or left out; empty if there are none."""
    cut_off = [row["kernel"] for row in comparison["kernels"] if row.get("cut_off")]
    not_tried = comparison.get("not_tried", [])
    parts = [
        *([f"the search of {', '.join(cut_off)} was cut off"] if cut_off else []),
        *([f"not tried: {', '.join(not_tried)}"] if not_tried else []),
    ]
    return "; ".join(parts)
