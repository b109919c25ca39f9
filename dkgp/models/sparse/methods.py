"""Sparse methods as settings of one fit: what each takes for the samples' noise, and for its own variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dkgp.errors import InputError

Variance = Literal["subset", "regressors", "deterministic"]


@dataclass(frozen=True)
class SparseMethod:
    """A sparse method: how its basis is chosen, what noise it fits with, and what its own variance is."""

    name: str
    help: str
    # Of the function at x, with phi = L^-1 k_m(x): the exact one of the basis samples alone; |C^-1 phi|^2, which goes
    # to nothing far from the basis; that and what the basis leaves of k(x, x).
    variance: Variance
    fitc: bool = False  # whether what the basis leaves of each sample's k(x, x) counts as noise of its own
    basis: str = "pivoted"  # how the basis is chosen unless a user says otherwise
    neighbours: bool = False  # whether the nearest samples say what the basis leaves; see `dkgp.models.sparse.vif`

    @property
    def is_bound(self) -> bool:
        """True if the variational bound is this method's evidence: F F' stands for K, and what it leaves is counted."""
        return self.variance != "subset" and not (self.fitc or self.neighbours)

    @property
    def caution(self) -> str | None:
        """A warning of the method's own variances, where they mislead."""
        if self.variance != "regressors":
            return None
        return (
            f"variances by {self.name} are the lower end of what is proven of the exact model's: far from the basis "
            "they go to zero, where nothing is known, and intervals by them hold too few of the targets. Take "
            "variance_upper, or train with vfe or dtc"
        )


_DECLARED = (
    SparseMethod("sd", "the exact model of a subset of the data", "subset", basis="uniform"),
    SparseMethod("sr", "subset of regressors, or Nystrom: variances that are too small", "regressors", basis="uniform"),
    SparseMethod("dtc", "subset of regressors with the variance that the basis leaves", "deterministic"),
    SparseMethod("fitc", "every sample's own share of what the basis leaves is noise", "deterministic", fitc=True),
    SparseMethod("vfe", "the variational bound's model", "deterministic"),
    SparseMethod("vif", "the nearest samples besides, for what the basis leaves", "deterministic", neighbours=True),
    SparseMethod("sggp", "greedy choice by the risk after refitting", "deterministic", basis="greedy"),
    SparseMethod("mpgp", "greedy choice by matching pursuit", "deterministic", basis="greedy"),
)
METHODS: dict[str, SparseMethod] = {method.name: method for method in _DECLARED}


def method_named(name: str) -> SparseMethod:
    """Return a method; `InputError` names those that there are."""
    if name not in METHODS:
        raise InputError(f"unknown sparse method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]
