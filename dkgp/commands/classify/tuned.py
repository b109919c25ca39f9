"""Hyperparameters of a classifier that was given none: those that its likelihood finds on a subset."""

from __future__ import annotations

from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset
from dkgp.models import Hyperparameters
from dkgp.models.classification.hyperparameters import tune_labels
from dkgp.models.classification.labels import Labels

__all__ = ["tuned_on_a_subset"]


def tuned_on_a_subset(job: ClassifyJob, dataset: Dataset, labels: Labels, reporter: Reporter) -> Hyperparameters:
    """Find hyperparameters by the marginal likelihood of a subset's labels, and say so."""
    reporter.note("finding hyperparameters by the marginal likelihood of a subset's labels")
    settings = job.settings
    with reporter.search("tune") as progress:
        return tune_labels(dataset, labels, seed=settings.seed, isotropic=settings.isotropic, progress=progress)
