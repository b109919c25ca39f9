"""Settings of variances, and protocols of their test samples."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Protocol

import numpy as np

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.options import SEED, check_ranges, documented
from dkgp.registry import Option, byte_count

# Settings that do not apply with a basis for each sample.
_FACTOR_ONLY = ("max_passes", "rank", "halo", "keep_factor", "way")
# Settings of the iterative method; setting one of them selects that method.
_ITERATIVE_ONLY = ("max_passes", "rank", "halo", "keep_factor")


class TestRows(Protocol):
    """Test samples as a model sees them."""

    @property
    def n_samples(self) -> int:
        """Their number."""

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised features of the rows start:stop."""

    def rows(self, start: int, stop: int) -> FloatArray:
        """Standardised features and covariates of the rows start:stop."""


@dataclass(frozen=True)
class SentRows:
    """A few test samples that are sent with a task: standardised `values` (n, d + c), which any process can read.

    The first `n_features` columns are features, by default all.
    """

    values: FloatArray
    n_features: int | None = None

    @property
    def n_samples(self) -> int:
        """Their number."""
        return len(self.values)

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised features of the rows start:stop."""
        rows = self.values[start:stop]
        if self.n_features is None or self.n_features == rows.shape[1]:
            return rows
        return np.ascontiguousarray(rows[:, : self.n_features])

    def rows(self, start: int, stop: int) -> FloatArray:
        """Standardised features and covariates of the rows start:stop."""
        return self.values[start:stop]


WAYS = ("auto", "cholesky", "iterative", "neighbours", "vif")
WAY = Option(
    help="Method for variances. cholesky: a Cholesky factor of the whole kernel matrix; iterative: conjugate "
    "gradients with a partial factor as preconditioner; neighbours: from the samples near each test sample, for "
    "stationary kernels of one to three features; vif: approximate variances from inducing points and nearby "
    "samples, without proven intervals; auto: the proven method with the shortest forecast time.",
    spellings=("--variance-way",),
    choices=WAYS,
)
GAP = Option(
    help="Requested width of the proven interval of a variance, relative to its upper end.",
    spellings=("--variance-gap",),
    metavar="GAP",
    above=0,
)
LATENT = Option(
    help="Predict variances of the latent function. By default, variances are those of a new observation, which "
    "include the noise.",
    spellings=("--latent",),
)
MAX_PASSES = Option(
    help="Largest number of products with the kernel matrix per batch of test samples. Wider intervals than "
    "requested are then kept and reported. 0: use the partial factor alone.",
    spellings=("--max-passes",),
    least=0,
    shown="20",
)
RANK = Option(
    help="Rank of the partial Cholesky factor of the method iterative.  [default: depends on the problem and memory]",
    spellings=("--variance-rank",),
    metavar="R",
    least=1,
)
HALO = Option(
    help="Number of nearby training samples on which each group of samples is conditioned in the Vecchia factor of "
    "the method iterative. 0: no Vecchia factor.  [default: depends on the problem and memory]",
    spellings=("--variance-halo",),
    metavar="S",
    least=0,
)
GAP_OF_MODEL = replace(GAP, help=f"{GAP.help}  [default: the gap that the model was trained with, otherwise 0.02]")
BATCH_SIZE = Option(
    help="Number of test samples per batch.  [default: by memory]",
    spellings=("--variance-batch",),
    metavar="SAMPLES",
    least=1,
)
MEMORY = Option(
    help="Working memory of a worker process, such as 2GiB.  [default: 704MiB, more for more than 45,000 samples]",
    type=byte_count,
    spellings=("--variance-memory",),
    metavar="SIZE",
    least=1,
)
BASIS = Option(
    help="Bound each variance with a separate set of up to M inducing points, chosen greedily until the bounds on "
    "the reduction of k(x, x) differ by less than `gap` of their mean (Smola and Bartlett). Test samples then "
    "share no computation; for many test samples this is slower.",
    spellings=("--variance-basis",),
    metavar="M",
    least=1,
)
KEEP_FACTOR = Option(help="Store the factor with the model for later predictions.", spellings=("--keep-factor",))


def require_as_begun(before: object, now: object, remedy: str | None = "leave it out") -> None:
    """Raise `InputError` if settings differ from those with which the prediction in the store was begun."""
    if before != now:
        advice = "start afresh with `overwrite`" if remedy is None else f"{remedy}, or `overwrite`"
        raise InputError(f"the prediction to resume was started with {before}, not {now}; {advice}")


@documented
@dataclass(frozen=True)
class VarianceRequest:
    """Settings of variances, in which a gap of None stands for the model's.

    The gap of an interval is (upper - lower) / upper. Half of a worker's memory at most is for the partial Cholesky
    factor while it is made, half for the block-Vecchia factor, the rest for the batches in progress. With a `basis` for
    each sample (`dkgp.models.variance.greedy`), only latent, batch_size, memory_bytes and seed may be set.
    """

    gap: Annotated[float | None, GAP_OF_MODEL] = None
    latent: Annotated[bool, LATENT] = False
    max_passes: Annotated[float, MAX_PASSES] = 20.0
    rank: Annotated[int | None, RANK] = None
    halo: Annotated[int | None, HALO] = None
    batch_size: Annotated[int | None, BATCH_SIZE] = None
    memory_bytes: Annotated[int | None, MEMORY] = None
    basis: Annotated[int | None, BASIS] = None
    keep_factor: Annotated[bool, KEEP_FACTOR] = False
    way: Annotated[str, WAY] = "auto"
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.way not in ("auto", "iterative") and self.is_iterative:
            raise InputError(
                f"{', '.join(f'`{name}`' for name in self._changed(_ITERATIVE_ONLY))} can be set only for the `way` "
                f"'iterative'; got {self.way!r}. Leave one of the two out"
            )
        if self.basis is not None:
            unused = self._changed(_FACTOR_ONLY)
            if unused:
                named = ", ".join(f"`{name}`" for name in unused)
                raise InputError(
                    f"{named} can be set only for a factor that all test samples share, but each sample has its own "
                    "`basis`. Leave one of the two out"
                )

    @property
    def is_iterative(self) -> bool:
        """True if a setting that only applies to the iterative method is set, which selects that method."""
        return bool(self._changed(_ITERATIVE_ONLY))

    @property
    def leaves_sums(self) -> bool:
        """True if variances evaluate no whole columns, so that means may be sums within an error."""
        return self.way in ("neighbours", "vif")

    def _changed(self, names: tuple[str, ...]) -> list[str]:
        default = {each.name: each.default for each in fields(VarianceRequest)}
        return [name for name in names if getattr(self, name) != default[name]]

    def settings(self, gap: float | None) -> VarianceSettings:
        """Return the settings; `gap` is the model's, if it has one."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        resolved = gap if self.gap is None else self.gap
        return VarianceSettings(**{**values, "gap": VarianceSettings.gap if resolved is None else resolved})


@dataclass(frozen=True)
class VarianceSettings(VarianceRequest):
    """Settings of variances whose gap is known."""

    gap: Annotated[float, GAP] = 0.02
