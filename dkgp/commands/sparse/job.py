"""The job that `dkgp sparse` is: what is asked for, and what of it does not go together."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from dkgp.commands.job_options import AS_IN_THE_PAPER, DATASET, HYPER, MODEL_OUT, TrainingJob
from dkgp.errors import InputError, UsageError
from dkgp.models.sparse.ladder import LadderPlan, LadderTarget
from dkgp.models.sparse.settings import GREEDY, NEAR_SETTINGS, SparseSettings
from dkgp.operators.product_error import PRODUCT_ERROR, Value
from dkgp.options import Part, options_of
from dkgp.registry import FURTHER, Option

DEFAULTS = {each.name: each.default for each in fields(SparseSettings)}


def size_or_auto(text: str) -> int | Literal["auto"]:
    """Read a basis size, or "auto"."""
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ValueError(f"{text!r} is no number of basis samples, and not auto.") from None


BASIS_SIZE = Option(
    help="Basis samples. auto: as many as `target_distance` or `gap` takes.  [default: 1000, or all of fewer]",
    type=size_or_auto,
    metavar="M|auto",
    least=1,
)
LARGEST_BASIS = Option(
    help="Of `basis_size` auto: grow up to M samples, whatever the exact model costs.  [default: while it is cheaper "
    "than the exact model]",
    metavar="M",
    group=FURTHER,
)
GIVEN_BASIS = Option(
    help="Take this basis: a table of inputs in the features' own units, or of sample numbers from 0, in any format "
    "that `dkgp ingest` reads; a dataset store; the basis of another sparse model; or that of `hyper`'s file, where "
    "`dkgp tune --objective bound` wrote it: the bound is this basis'.",
    metavar="FILE",
    place="read",
    group=FURTHER,
)
GAP = Option(
    help="Smola and Bartlett's duality gap that a greedy basis, or `basis_size` auto, is to reach; exit code 4 where "
    "it does not.",
    group=GREEDY,
)
TARGET_DISTANCE = Option(
    help="Root-mean-square distance to the exact mean over the training samples that is to be proven, in standard "
    "deviations of the targets; exit code 4 where it is not.",
    metavar="SHARE",
    above=0,
)

PASSES_ERROR = replace(
    PRODUCT_ERROR,
    help="Of `certify_passes`: allowed error of an entry of a product with the kernel matrix. E: at most E, proven "
    "(kernels that fall with the distance, few features). auto, none: every kernel entry is evaluated. The certificate "
    "allows for it.",
)


@dataclass(frozen=True)
class SparseJob(TrainingJob):
    """A sparse model to train: data, hyperparameters, method and basis, and where everything goes.

    `basis_size` and `gap` are those of the settings where they are None; the settings' default size stands for all
    samples where there are fewer.
    """

    dataset: Annotated[str, DATASET]
    hyper: Annotated[str, HYPER]
    out: Annotated[str, MODEL_OUT]
    settings: Annotated[SparseSettings, Part()] = field(default_factory=SparseSettings)
    basis_size: Annotated[int | Literal["auto"] | None, BASIS_SIZE] = None
    largest_basis: Annotated[int | None, LARGEST_BASIS] = None
    given_basis: Annotated[str | None, GIVEN_BASIS] = None
    gap: Annotated[float | None, GAP] = None
    target_distance: Annotated[float | None, TARGET_DISTANCE] = None
    as_in_the_paper: Annotated[bool | tuple[str, ...], AS_IN_THE_PAPER] = False
    product_error: Annotated[Value, PASSES_ERROR] = "auto"

    @property
    def is_greedy(self) -> bool:
        """True if the basis is chosen greedily."""
        return self.given_basis is None and self.settings.basis_name == "greedy"

    @property
    def grows(self) -> bool:
        """True if the basis grows, round by round or rung by rung: then there are checkpoints and a plot."""
        return self.is_greedy or self.basis_size == "auto"

    @property
    def target(self) -> LadderTarget | None:
        """The target of a basis that grows by itself; None of one whose size was given."""
        if self.basis_size != "auto":
            return None
        return LadderTarget(self.target_distance, self._gap, self.largest_basis)

    @property
    def _gap(self) -> float | None:
        return self.settings.gap if self.gap is None else self.gap

    @property
    def solver_settings(self) -> dict[str, Any]:
        """The settings that a checkpoint must share, of a job that is sized."""
        if self.target is None:
            return self.settings.greedy().identity()
        return LadderPlan.identity(self.settings, self.target)

    def check(self) -> None:
        """Refuse what can be seen to be wrong without the data.

        Raises
        ------
        UsageError
            Options that do not go together.
        InputError
            A value out of range.
        """
        if self.basis_size != "auto" and self.largest_basis is not None:
            raise UsageError("`largest_basis` belongs to a basis that grows; give `basis_size` auto, or leave it out")
        if self.basis_size == "auto" and self.target_distance is None and self._gap is None:
            raise UsageError("`basis_size` auto grows until `target_distance` or `gap` is met; give one of them")
        if self.given_basis is not None:
            other = {"basis_size": self.basis_size, "basis": self.settings.basis, "gap": self._gap}
            for name, value in other.items():
                if value is not None:
                    raise UsageError(f"`given_basis` is the basis as it stands; leave out `{name}`, or `given_basis`")
        if not isinstance(self.product_error, str) and not self.settings.certify_passes:
            raise UsageError(
                "`product_error` is of the products of `certify_passes`, and there are none; give `certify_passes`, or "
                "leave it out"
            )
        if self.basis_size == "auto" or self.target_distance is not None:
            self.settings.refuse_target()
        settled = self._settled(self.settings.basis_size)
        if self.is_greedy:
            settled.greedy()
        else:
            for name, option in options_of(SparseSettings).items():
                if option.group == GREEDY and getattr(self.settings, name) != option.default:
                    raise UsageError(f"`{name}` belongs to a greedy basis; choose `basis` greedy, or leave it out")
            if self.plot is not None and not self.grows:
                raise UsageError("`plot` shows a basis as it grows, greedily or by `basis_size` auto; leave it out")

    def sized(self, n: int, given: int | None = None) -> SparseJob:
        """Return the job with the size that it means for n samples, or that of a given basis.

        Raises
        ------
        InputError
            More basis samples were asked for than there are samples.
        """
        if given is not None:
            return replace(self, settings=self._settled(given))
        if self.basis_size == "auto":
            return replace(self, settings=self._settled(min(n, self.largest_basis or n)))
        size = self.settings.basis_size if self.basis_size is None else self.basis_size
        if size > n:
            if self.basis_size is not None or size != DEFAULTS["basis_size"]:
                raise InputError(
                    f"a basis of {size:,} samples was asked for; there are {n:,}. Give `basis_size` {n} at most"
                )
            size = n
        return replace(self, settings=self._settled(size))

    def _settled(self, size: int) -> SparseSettings:
        """The settings with this size, and with the gap where the choice is to reach it: a ladder's is its target's."""
        return replace(self.settings, basis_size=size, gap=self._gap if self.target is None else None)

    def identity(self, given_digest: str | None) -> dict[str, Any]:
        """Return what determines the model beside data and hyperparameters, once the job is sized."""
        settings = asdict(self.settings)
        if not self.settings.sparse_method.neighbours:
            # Models that were stored before there were any do not have these.
            for name in NEAR_SETTINGS:
                del settings[name]
        return {
            **settings,
            "gap": self._gap,
            "given_basis": given_digest,
            "target_distance": self.target_distance,
            "largest_basis": self.largest_basis,
            "auto": self.basis_size == "auto",
        }
