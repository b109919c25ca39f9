"""Settings of a fixed-size LS-SVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.models.classification.fixed_size.memory import FixedSizeMemory, plan_fixed_size
from dkgp.models.classification.fixed_size.validation import CARDINALITY_RULES, Stop, stop_rule
from dkgp.models.classification.prototypes import DEFAULT_PROTOTYPES, PROTOTYPES
from dkgp.options import SEED, check_ranges, documented
from dkgp.registry import Group, Option

__all__ = ["FIXED_SIZE", "INTERCEPTS", "SEARCHES", "FixedSizeSettings"]

SEARCHES = ("profile", "annealing", "none")
INTERCEPTS = ("first", "selected", "none")

FIXED_SIZE = Group("Options of fixed-size", ("fixed-size",))
MACHINES = Group("Options of fixed-size and exact", ("fixed-size", "exact"))


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 0.01,0.1,1.") from None


POOL = Option(help="Prototypes to choose among.", metavar="M", least=1, group=FIXED_SIZE)
POOL_CHOICE = Option(
    help="How the pool is chosen among the samples; greedy alone looks at the labels.",
    choices=PROTOTYPES,
    group=FIXED_SIZE,
)
MAX_BASIS = Option(
    help="Choose so many prototypes at most.  [default: the pool]", metavar="K", least=1, group=FIXED_SIZE
)
CANDIDATES = Option(
    help="Look at so many of the pool, drawn at random, in each step; 59 in the paper.  [default: all]",
    metavar="RHO",
    least=1,
    group=FIXED_SIZE,
)
FOLDS = Option(help="Of cross-validation, stratified.", least=2, group=FIXED_SIZE)
SEARCH = Option(
    help="For the scale of the kernel's length scales. profile: a line search; annealing: coupled simulated annealing "
    "and Nelder-Mead, the paper's; none: the kernel as it starts.",
    choices=SEARCHES,
    group=FIXED_SIZE,
)
NOISE_VARIANCES = Option(
    help="Noise variances 1 / gamma to choose among.  [default: decades, finer about the best]",
    type=numbers,
    metavar="S2,...",
    group=FIXED_SIZE,
)
CARDINALITY = Option(
    help="How many prototypes: the fewest within a tenth of the folds' standard deviation of the least score; those of "
    "the least score; the fewest within one standard error.",
    choices=tuple(CARDINALITY_RULES),
    group=FIXED_SIZE,
)
STOP = Option(
    help="End a path once so many steps improved the score by less than this share.",
    type=stop_rule,
    metavar="STEPS,SHARE|none",
    shown="10,0.001",
    group=FIXED_SIZE,
)
ISOTROPIC = Option(help="One length scale for all features, where hyperparameters are found.")
INTERCEPT = Option(
    help="first: before any prototype; selected: competing with them; none.", choices=INTERCEPTS, group=MACHINES
)
PROBABILITY = Option(
    help="Decisions and classes alone, without the map to probabilities.",
    spellings=("--no-probability",),
    group=MACHINES,
)


@documented
@dataclass(frozen=True)
class FixedSizeSettings:
    """Settings of a fixed-size LS-SVM (Table 2 of the paper, and the search).

    In the paper's letters the pool holds M prototypes, `max_basis` is k_m, `candidates` rho of SCDPP, `stop` Delta and
    epsilon of rule (38), whose absence goes through all cardinalities; noise variances are 1 / gamma_K. Cross-validated
    decisions are taken, and probabilities fitted to them, where `probability` is asked for.
    """

    pool: Annotated[int, POOL] = 2000
    prototypes: Annotated[str, POOL_CHOICE] = DEFAULT_PROTOTYPES
    max_basis: Annotated[int | None, MAX_BASIS] = None
    candidates: Annotated[int | None, CANDIDATES] = None
    folds: Annotated[int, FOLDS] = 10
    search: Annotated[str, SEARCH] = "profile"
    noise_variances: Annotated[tuple[float, ...] | None, NOISE_VARIANCES] = None
    cardinality: Annotated[str, CARDINALITY] = "tenth"
    stop: Annotated[tuple[int, float] | None, STOP] = (10, 1e-3)
    isotropic: Annotated[bool, ISOTROPIC] = False
    intercept: Annotated[str, INTERCEPT] = "first"
    probability: Annotated[bool, PROBABILITY] = True
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.noise_variances is not None:
            values = np.asarray(self.noise_variances, dtype=np.float64)
            if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values > 0.0)).all():
                raise InputError(
                    f"`noise_variances` must be positive and finite, one at least; got {self.noise_variances}"
                )
        if self.stop is not None and np.shape(self.stop) != (2,):
            raise InputError(f"`stop` takes a window and a share, such as (10, 1e-3), or none; got {self.stop!r}")
        self.rule()

    def memory(
        self,
        n: int,
        d: int,
        t: int,
        executor: BlockExecutor,
        cache_bytes: int,
        width: int | None = None,
        *,
        together: int = 3,
        budget_bytes: int | None = None,
    ) -> FixedSizeMemory:
        """Project what training takes; see `plan_fixed_size`."""
        return plan_fixed_size(
            n,
            d,
            t,
            pool=self.pool,
            max_basis=self.max_basis,
            folds=self.folds,
            together=1 if self.search == "none" else together,
            threads=executor.threads_per_process,
            shares_process=executor.shares_memory,
            cache_bytes=cache_bytes,
            width=width,
            copies=1 + (self.intercept == "selected"),
            budget_bytes=budget_bytes,
        )

    def rule(self) -> Stop | None:
        """Rule (38), where there is one."""
        return None if self.stop is None else Stop(*self.stop)
