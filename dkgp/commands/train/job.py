"""The job that `dkgp train` is."""

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
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions, check_product_error
from dkgp.data.remote.storage import exists
from dkgp.errors import UsageError, about
from dkgp.models.trend import CENTRED, MeanKind
from dkgp.operators.product_error import PRODUCT_ERROR, ProductError, Value
from dkgp.options import Part
from dkgp.registry import FURTHER, Instead, Option
from dkgp.solvers.registry import AUTO, Need, said, solvers_that_need


def _tiles() -> dict[str, str]:
    place = f"Where {' or '.join(solvers_that_need(Need.FOLDER))} keeps its factor"
    return {"help": f"{place}, to go on with after an interruption.  [default: OUT.tiles]"}


TILES = Option(metavar="FOLDER", place="write", late=_tiles, group=FURTHER)
TUNE = Option(
    help="Find hyperparameters first, as `dkgp tune` does at its defaults, and write them to `hyper`.  [default of "
    "`hyper` then: OUT.hyper.json]"
)
# What `dkgp train` without either says names both.
HYPER_OR_TUNE = replace(
    HYPER,
    lacking=f"{HYPER.lacking} Or give --tune, which finds them, at the defaults of `dkgp tune`, before it trains.",
    instead=Instead("tune", lambda options: f"{str(options['out']).rstrip('/')}.hyper.json"),
)
WITH_VARIANCES = Option(
    help="Keep with the model a Cholesky factor of all samples, by which each variance takes one solve: 4 n^2 bytes, "
    "and n^3/3 operations once.",
)
MEAN = Option(
    help="What the function varies about: the targets' average (centred); or a constant, or a linear function of the "
    "features, with coefficients found in the same solve, which extrapolates and has its part in every variance.",
)
WARM_START = Option(
    help="Start from a model of the same data, exact or sparse.", metavar="MODEL", place="read", group=FURTHER
)


@dataclass(frozen=True)
class TrainJob(TrainingJob):
    """A model to train: data, hyperparameters, solver, and where everything goes."""

    dataset: Annotated[str, DATASET]
    hyper: Annotated[str, HYPER_OR_TUNE]
    out: Annotated[str, MODEL_OUT]
    solver: Annotated[SolverOptions, Part()] = field(default_factory=SolverOptions)
    mean: Annotated[MeanKind, MEAN] = CENTRED
    as_in_the_paper: Annotated[bool | tuple[str, ...], AS_IN_THE_PAPER] = False
    tiles: Annotated[str | None, TILES] = None
    product_error: Annotated[Value, PRODUCT_ERROR] = "auto"
    warm_start: Annotated[str | None, WARM_START] = None
    by_reference: Annotated[bool, BY_REFERENCE] = False
    with_variances: Annotated[bool, WITH_VARIANCES] = False
    tune: Annotated[bool, TUNE] = False

    @property
    def begun(self) -> bool:
        """True if an earlier run left something to go on from; the hyperparameters that it found, too."""
        return super().begun or (self.tune and exists(self.hyper))

    @property
    def tiles_url(self) -> str | None:
        """The place of tiles; None for a solver that has none."""
        if not self.solver.needs(Need.FOLDER):
            return None
        return self.tiles or f"{self.out.rstrip('/')}.tiles"

    def check(self) -> None:
        """Refuse options that contradict each other, as far as no data are needed; `UsageError` or `InputError`."""
        with about("solver"):
            self.solver.check()
            if self.solver.solver != AUTO:
                # Whether the memory suffices depends on the data.
                self.solver.build(1, 1, 1, SilentReporter())
            self.check_tiles()
            self.solver.stopping()
        with about("product_error"):
            check_product_error(ProductError.of(self.product_error), self.solver.tolerance, self.solver.solver)

    def check_tiles(self) -> None:
        """Refuse a place for tiles where the solver has none; `UsageError`."""
        if self.tiles is not None and self.tiles_url is None:
            named = said(solvers_that_need(Need.FOLDER))
            raise UsageError(f"`tiles` belongs to {named}; got `solver` {self.solver.solver}")
