"""The job of `dkgp audit`: options and checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from dkgp.cluster import ClusterOptions
from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.recipe import command
from dkgp.errors import UsageError
from dkgp.kriging.choices import Quantity
from dkgp.kriging.commands.options import DOCUMENT, GAP
from dkgp.options import Checked, Part
from dkgp.registry import FURTHER, Option

MODEL = Option(place="read", reads="model", argument=True)
TABLE = Option(place="read", argument=True)
MEAN = Option(help="Column of the predicted means, in the target's units.", metavar="COLUMN")
VARIANCE = Option(help="Column of the predicted variances, in the target's units squared.", metavar="COLUMN")
STD = Option(help="Column of the predicted standard deviations, instead of `variance`.", metavar="COLUMN")
OF = Option(
    help="The quantity whose variances the table has: signal without the nugget; field, with its "
    "micro-scale part (of kriged fields); observation, with the noise of a measurement, as PyKrige "
    "and GSTools report."
)
MEANS = Option(help="Compare only means. The exact variances are not computed.")
TARGET = Option(help="Name of the target, if the model has several.", metavar="NAME")
PLOT = Option(
    help="Plot histograms of the proven bounds into a .png, .pdf or .svg file.", metavar="FILE", place="write"
)
X, Y, Z, TIME = (
    Option(
        help=f"Column of the coordinate {name} of a kriged field.  [default: by usual names]",
        metavar="COLUMN",
        group=FURTHER,
    )
    for name in ("x", "y", "z", "time")
)


@command(
    """
    MODEL is a kriged field (`dkgp krige fit`) or an exact Gaussian process (`dkgp train`). TABLE contains the
    predictions of another program: a .csv or .parquet file or a GeoPackage with one row per point, the point's features
    or coordinates, and its predicted mean. Coordinates are transformed to the reference system of the field.

    For each point, the command computes proven intervals of three quantities: the difference between the table's mean
    and the exact mean, in the target's units and in exact posterior standard deviations; the ratio of the table's
    variance to the exact variance; and the Kullback-Leibler divergence. It then counts the points that are proven to
    exceed a threshold, those that are proven to be below it, and the undecided ones. The exact Gaussian process has the
    hyperparameters of MODEL.
    """,
    "dkgp audit zinc.zarr theirs.csv --mean pred --variance var --out audit.json",
    "dkgp audit model.zarr theirs.parquet --mean mu --std sigma --of signal --plot audit.png",
)
@dataclass(frozen=True)
class AuditJob(Checked):
    """A model, a table of others' predictions, and the columns of it."""

    model: Annotated[str, MODEL]
    table: Annotated[str, TABLE]
    mean: Annotated[str, MEAN]
    variance: Annotated[str | None, VARIANCE] = None
    std: Annotated[str | None, STD] = None
    of: Annotated[Quantity, OF] = "observation"
    means: Annotated[bool, MEANS] = False
    target: Annotated[str | None, TARGET] = None
    out: Annotated[str | None, DOCUMENT] = None
    plot: Annotated[str | None, PLOT] = None
    gap: Annotated[float, GAP] = 0.05
    overwrite: Annotated[bool, OVERWRITE] = False
    x: Annotated[str | None, X] = None
    y: Annotated[str | None, Y] = None
    z: Annotated[str | None, Z] = None
    time: Annotated[str | None, TIME] = None
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    def check(self) -> None:
        """Refuse two columns for one quantity."""
        if self.variance is not None and self.std is not None:
            raise UsageError("got `variance` and `std`, which are one quantity; give one of them")
        if self.means and (self.variance or self.std):
            raise UsageError("`means` compares no variances; leave it out, or `variance` and `std`")
