"""The job of `dkgp train`; its run is in `dkgp.commands.tuned`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from dkgp.commands.job_options import (
    AS_IN_THE_PAPER,
    BY_REFERENCE,
    DATASET,
    HYPER,
    MODEL_OUT,
    TrainingJob,
)
from dkgp.commands.recipe import command
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions, check_product_error
from dkgp.data.remote.storage import exists
from dkgp.errors import UsageError, about
from dkgp.models.mean_option import MEAN, MeanValue
from dkgp.models.variance.settings import GAP
from dkgp.operators.product_error import PRODUCT_ERROR, ProductError, Value
from dkgp.options import Part
from dkgp.registry import FURTHER, Instead, Option
from dkgp.solvers.registry import AUTO, Need, said, solvers_that_need


def _tiles() -> dict[str, str]:
    place = f"Where {' or '.join(solvers_that_need(Need.FOLDER))} stores its factor,"
    return {"help": f"{place} so that an interrupted run can continue.  [default: OUT.tiles]"}


TILES = Option(metavar="FOLDER", place="write", late=_tiles, group=FURTHER)
TUNE = Option(
    help="First tune hyperparameters with the defaults of `dkgp tune`, and write them to `hyper`.  [default of "
    "`hyper` then: OUT.hyper.json]"
)
# Without either option, the error message of `dkgp train` names both.
HYPER_OR_TUNE = replace(
    HYPER,
    lacking=f"{HYPER.lacking} Or give --tune, which first tunes them with the defaults of `dkgp tune`.",
    instead=Instead("tune", lambda options: f"{str(options['out']).rstrip('/')}.hyper.json"),
)
WITH_VARIANCES = Option(
    help="Store a Cholesky factor of the kernel matrix with the model, so that each variance takes one triangular "
    "solve. The factor takes 4 n² bytes, and n³/3 operations once.",
)
GAP_OF_PREDICTIONS = replace(
    GAP,
    help="Requested width of a variance's proven interval, relative to its upper end, which `dkgp predict` uses by "
    "default.  [default: 0.02]",
)
WARM_START = Option(
    help="Start from the coefficients of an exact or sparse model of the same samples.",
    metavar="MODEL",
    place="read",
    group=FURTHER,
)


@command(
    """
    The command solves (K + s2 I) alpha = y for the kernel matrix K and the noise variance s2. Iterative solvers never
    store K. A run that stops before its tolerance saves its model, prints a message, and ends with exit code 4.
    --resume continues it from its checkpoint.
    """,
    "dkgp train train.zarr --out model.zarr --hyper hyper.json --tol 1e-4",
    "dkgp train train.zarr --out model.zarr --tune",
    "dkgp train train.zarr --out model.zarr --hyper hyper.json --resume",
    "dkgp train train.zarr --out model.zarr --hyper hyper.json --as-in-the-paper",
    "dkgp train train.zarr --out model.zarr --hyper hyper.json --scheduler tcp://host:8786 --plot run.png",
    must_converge=True,
    goes_on=True,
)
@dataclass(frozen=True)
class TrainJob(TrainingJob):
    """A model to train: data, hyperparameters, solver and outputs."""

    dataset: Annotated[str, DATASET]
    hyper: Annotated[str, HYPER_OR_TUNE]
    out: Annotated[str, MODEL_OUT]
    solver: Annotated[SolverOptions, Part()] = field(default_factory=SolverOptions)
    mean: Annotated[MeanValue, MEAN] = "centred"
    as_in_the_paper: Annotated[bool | tuple[str, ...], AS_IN_THE_PAPER] = False
    tiles: Annotated[str | None, TILES] = None
    product_error: Annotated[Value, PRODUCT_ERROR] = "auto"
    warm_start: Annotated[str | None, WARM_START] = None
    by_reference: Annotated[bool, BY_REFERENCE] = False
    with_variances: Annotated[bool, WITH_VARIANCES] = False
    variance_gap: Annotated[float | None, GAP_OF_PREDICTIONS] = None
    tune: Annotated[bool, TUNE] = False

    @property
    def begun(self) -> bool:
        """True if an earlier run left a checkpoint, its model, or the hyperparameters that it tuned."""
        return super().begun or (self.tune and exists(self.hyper))

    @property
    def tiles_url(self) -> str | None:
        """The URL of the tiles; None for a solver without stored tiles."""
        if not self.solver.needs(Need.FOLDER):
            return None
        return self.tiles or f"{self.out.rstrip('/')}.tiles"

    def check(self) -> None:
        """Refuse contradictory options, as far as possible without data; `UsageError` or `InputError`."""
        with about("solver"):
            self.solver.check()
            if self.solver.solver != AUTO:
                # Whether the memory suffices depends on the data, which are not open yet.
                self.solver.build(1, 1, 1, SilentReporter())
            self.check_tiles()
            self.solver.stopping()
        with about("product_error"):
            check_product_error(ProductError.of(self.product_error), self.solver.tolerance, self.solver.solver)

    def check_tiles(self) -> None:
        """Refuse a path for tiles if the solver stores none; `UsageError`."""
        if self.tiles is not None and self.tiles_url is None:
            named = said(solvers_that_need(Need.FOLDER))
            raise UsageError(f"`tiles` belongs to {named}; got `solver` {self.solver.solver}")
