"""Hyperparameters of a classifier that was given none: those that its labels find on a subset."""

from __future__ import annotations

from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.classify.likelihood import evidence_of
from dkgp.commands.classify.method import Prepared
from dkgp.commands.reporting.progress import Reporter
from dkgp.models import Hyperparameters
from dkgp.models.classification.hyperparameters import tune_labels
from dkgp.models.classification.likelihoods import Likelihood

__all__ = ["found_or_tuned"]


def found_or_tuned(
    job: ClassifyJob, prepared: Prepared, reporter: Reporter, likelihood: Likelihood | None = None
) -> Hyperparameters:
    """Return a job's hyperparameters; where it has none, find them on a subset, and say so.

    By the labels' evidence in Laplace's approximation for a likelihood, by the marginal likelihood of their signs
    without one.
    """
    if prepared.hyperparameters is not None:
        return prepared.hyperparameters
    by = "marginal likelihood of a subset's labels"
    evidence = None if likelihood is None else evidence_of(likelihood)
    if evidence is not None:
        by = f"evidence of a subset's labels ({evidence})"
    reporter.note(f"finding hyperparameters by the {by}")
    settings = job.settings
    with reporter.search("tune") as progress:
        return tune_labels(
            prepared.dataset,
            prepared.labels,
            seed=settings.seed,
            isotropic=settings.isotropic,
            progress=progress,
            likelihood=evidence,
            weights=None if evidence is None else prepared.weights,
        )
