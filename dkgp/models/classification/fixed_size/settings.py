"""Settings of a fixed-size LS-SVM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import InputError
from dkgp.models.classification.fixed_size.memory import FixedSizeMemory, plan_fixed_size
from dkgp.models.classification.fixed_size.validation import CARDINALITY_RULES, Stop
from dkgp.models.classification.prototypes import PROTOTYPES

__all__ = ["INTERCEPTS", "SEARCHES", "FixedSizeSettings"]

SEARCHES = ("profile", "annealing", "none")
INTERCEPTS = ("first", "selected", "none")


@dataclass(frozen=True)
class FixedSizeSettings:
    """Settings of a fixed-size LS-SVM (Table 2 of the paper, and the search).

    Parameters
    ----------
    pool : int, default 2000
        Prototypes that the pursuit chooses from, M at most.
    prototypes : str, default "k-centre"
        The pool's choice: one of `dkgp.models.classification.prototypes.PROTOTYPES`.
    max_basis : int, optional
        k_m, the largest cardinality; the pool's by default.
    candidates : int, optional
        rho of SCDPP: each step looks at so many drawn at random (59 in the paper); at all by default.
    folds : int, default 10
    search : {"profile", "annealing", "none"}
        For the scale of the kernel's length scales; "none" takes the kernel as it starts.
    cardinality : {"tenth", "best", "one-standard-error"}
        See `dkgp.models.classification.fixed_size.validation.chosen_cardinality`.
    noise_variances : sequence of float, optional
        s2 = 1 / gamma_K that are tried; decades, and finer about the best, by default.
    isotropic : bool
        One length scale for all features, as in the paper.
    intercept : {"first", "selected", "none"}
        Taken out beforehand, so that cardinality counts prototypes alone; chosen like a prototype; or none.
    stop : (int, float) or None
        Delta and eps of rule (38); None goes through all cardinalities.
    probability : bool
        Whether cross-validated decisions are taken, and probabilities fitted to them.
    seed : int
    """

    pool: int = 2000
    prototypes: str = "k-centre"
    max_basis: int | None = None
    candidates: int | None = None
    folds: int = 10
    search: str = "profile"
    cardinality: str = "tenth"
    noise_variances: tuple[float, ...] | None = None
    isotropic: bool = False
    intercept: str = "first"
    stop: tuple[int, float] | None = (10, 1e-3)
    probability: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (
            ("search", SEARCHES),
            ("prototypes", PROTOTYPES),
            ("cardinality", tuple(CARDINALITY_RULES)),
            ("intercept", INTERCEPTS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise InputError(f"`{name}` must be one of {', '.join(known)}; got {value!r}")
        for name, least in (("pool", 1), ("folds", 2), ("max_basis", 1), ("candidates", 1)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise InputError(f"`{name}` must be at least {least}; got {number}")
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
