"""Jobs of predictions: from a data set to a store or a table, from single lines, and from a store to a table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from dkgp.cluster import ClusterOptions
from dkgp.commands.job_options import DATASET, OVERWRITE
from dkgp.commands.recipe import command
from dkgp.data.exports import table_suffix
from dkgp.data.remote.storage import exists, is_local
from dkgp.data.stores.manifest import is_committed
from dkgp.models.variance.settings import VarianceRequest
from dkgp.operators.product_error import PRODUCT_ERROR, Value
from dkgp.options import Checked, Part
from dkgp.registry import FURTHER, Group, Option

MODEL = Option(place="read", reads="model", argument=True)
OUT = Option(
    help="Store to write to, or a table if the name ends in .csv, .csv.gz, .parquet or .nc.",
    metavar="PLACE",
    place="write",
)
VARIANCE = Part("variance", "Also predict variances, each with a proven interval.", group=Group("With --variance"))
CHUNK_ROWS = Option(
    help="Number of rows per chunk of the store.  [default: about 8192; with variances one or more batches]",
    least=1,
    group=FURTHER,
)
SUM_ERROR = replace(
    PRODUCT_ERROR,
    help="Allowed error of a sum over all training samples: of a mean (in standard deviations of the targets) or of a "
    "decision. E: a proven error of at most E (for kernels that fall with the distance, and few features). none: "
    "evaluate every kernel entry. auto: the faster of these by a forecast. Bounds include this error.",
)
PLUG_IN = Option(
    help="For a Gaussian process classifier: compute probabilities from the latent means alone, which is faster. By "
    "default, they are averaged over the latent distribution.",
    group=FURTHER,
)
RESUME = Option(help="Continue an interrupted run.")
PREDICTION = Option(place="read", reads="prediction", argument=True)
TABLE = Option(place="write", argument=True)
PREDICTED = Option(
    help="Dataset store of the predictions, whose true targets and id columns (`dkgp ingest --id`) are added to the "
    "table.",
    metavar="STORE",
    place="read",
)


@command(
    """
    --out is a store, which `dkgp evaluate` reads, or a table for other programs (.csv, .csv.gz, .parquet or .nc). Each
    mean of a Gaussian process has a proven bound on its distance from the exact mean.

    With --variance, the exact variance lies between variance_lower and variance_upper; variance is the middle of this
    interval. For a sparse model, variance is the variance of its method, and the interval is that of the exact model.
    If intervals stay wider than --variance-gap, the command prints a warning with their number. The proofs hold for the
    hyperparameters of the model, and assume that a user() function in its kernel is positive definite.

    A classifier predicts decisions, classes and probabilities. If the model is certified, each decision has a proven
    bound and each probability a proven interval, probability_lower to probability_upper.

    With --stdin, the command reads rows from standard input and immediately writes a line with each prediction to
    standard output. If the first line is a header, it names the columns; otherwise they are in the order of the
    training set. Each answer has mean and mean_error_bound, with --variance also std, lower_95 and upper_95. If a line
    is invalid, its answer is nan, a message goes to standard error, and the final exit code is 3.
    """,
    "dkgp predict model.zarr test.zarr --out pred.zarr",
    "dkgp predict model.zarr test.zarr --out pred.zarr --variance --variance-gap 0.02",
    "dkgp predict model.zarr test.zarr --out pred.zarr --variance --resume",
    "dkgp predict model.zarr new.zarr --out pred.csv --variance",
    "tail -f readings.csv | dkgp predict model.zarr --stdin --variance",
    goes_on=True,
)
@dataclass(frozen=True)
class PredictJob(Checked):
    """A prediction to make: model, inputs (their targets are not needed), variances and output."""

    model: Annotated[str, MODEL]
    dataset: Annotated[str, DATASET]
    out: Annotated[str, OUT]
    variance: Annotated[VarianceRequest | None, VARIANCE] = None
    chunk_rows: Annotated[int | None, CHUNK_ROWS] = None
    product_error: Annotated[Value, SUM_ERROR] = "auto"
    plug_in: Annotated[bool, PLUG_IN] = False
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    @property
    def is_table(self) -> bool:
        """True if the output is a table, by the suffix of its name."""
        return table_suffix(self.out) is not None

    @property
    def beside(self) -> str | None:
        """The temporary store beside a table, or beside a store to replace, until it is complete; otherwise None.

        On object storage a store is written in its final place, because objects cannot be moved.
        """
        return f"{self.out}.partial.zarr" if self.is_table or is_local(self.out) else None

    @property
    def store_url(self) -> str:
        """The store to which predictions are currently written: `beside`, or the output itself."""
        if self.beside is None or self.is_table:
            return self.beside or self.out
        begun = (self.overwrite or self.resume) and exists(self.beside)
        return self.beside if begun or (self.overwrite and not self.resume and is_committed(self.out)) else self.out


@dataclass(frozen=True)
class LinesJob:
    """A model that predicts single lines, optionally with variances."""

    model: Annotated[str, MODEL]
    variance: Annotated[VarianceRequest | None, VARIANCE] = None


@command(
    """
    OUT ends in .csv, .csv.gz, .parquet or .nc, and has one row per sample. Its columns are row (from 1), mean, std,
    lower_95, upper_95 and mean_error_bound. std is the square root of the predicted variance. With --dataset, the true
    targets and the columns of `dkgp ingest --id` are added. With several targets, each name starts with the target's
    name and a dot. For a classifier, the columns are class, certified, and a probability and a decision per class.

    If the target has a transform (`dkgp ingest --transform`), the columns are median, median_error_bound and, with
    variances, mean, lower_95 and upper_95. They are in the target's own units; mean is the expectation of a new
    observation.
    """,
    "dkgp export pred.zarr pred.csv --dataset test.zarr",
    "dkgp export pred.zarr pred.parquet",
)
@dataclass(frozen=True)
class ExportJob:
    """A prediction store, the table to write, and the data of the predictions."""

    prediction: Annotated[str, PREDICTION]
    out: Annotated[str, TABLE]
    dataset: Annotated[str | None, PREDICTED] = None
    overwrite: Annotated[bool, OVERWRITE] = False
