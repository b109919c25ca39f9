"""Posteriors of rows in memory, as tests of all rooms take them."""

from __future__ import annotations

from typing import Any

from dkgp.data import ClassifierRecord, ModelRecord
from dkgp.models.metrics import outside_interval
from dkgp.models.prediction.classes import ROWS_PLANNED_FOR, ClassPosterior
from dkgp.models.prediction.exact import ExactPosterior
from dkgp.models.prediction.posterior import Columns, Want
from dkgp.models.prediction.sparse import SparsePosterior
from dkgp.models.sparse.stored import OpenedSparse
from dkgp.models.variance.settings import VarianceSettings


def exact_posterior(
    model: ModelRecord, version: str, variance: VarianceSettings | None = None, **options: Any
) -> ExactPosterior:
    return ExactPosterior(model, Want.in_memory(version, variance, **options))


def class_posterior(
    model: ClassifierRecord, version: str, n_test: int = ROWS_PLANNED_FOR, **options: Any
) -> ClassPosterior:
    return ClassPosterior(model, Want.in_memory(version, n_test=n_test, **options))


def sparse_posterior(
    opened: OpenedSparse, *, variance: bool = False, latent: bool = False, threads: int | None = None
) -> SparsePosterior:
    settings = VarianceSettings(latent=latent) if variance else None
    return SparsePosterior(opened.record, Want.in_memory("", settings, threads=threads), opened)


def share_outside(columns: Columns) -> float:
    """Share of samples whose own variance is proven wrong."""
    ends = columns["variance_lower"], columns["variance_upper"]
    return outside_interval(columns["variance"], *ends) / max(1, len(columns["variance"]))
