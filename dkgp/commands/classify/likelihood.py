"""The likelihood that a job of `dkgp classify` asks for, and hyperparameters that were found for another one."""

from __future__ import annotations

from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import UsageError
from dkgp.models import Hyperparameters
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.likelihoods import Likelihood, MultiClass
from dkgp.models.hyperparameters import likelihood_caution
from dkgp.models.tuning.tasks import LabelLikelihood

__all__ = ["cautioned", "check_likelihood", "evidence_of", "likelihood_of"]


def check_likelihood(job: ClassifyJob) -> None:
    """Refuse softmax of probits."""
    if job.link == "probit" and job.multi_class == "softmax":
        raise UsageError(
            "`multi_class` softmax goes with `link` logit; take ovr with probit, one class against the rest"
        )


def likelihood_of(job: ClassifyJob, labels: Labels) -> Likelihood:
    """Return the likelihood of a job's labels; several classes of a logistic one are softmax unless it says otherwise.

    Of a Gaussian process each is against the rest, so that its processes are t problems and not one t times the size.
    """
    usual: MultiClass = "softmax" if job.method == "logistic" and job.link == "logit" else "ovr"
    return Likelihood.of(job.link, job.multi_class or usual, labels.n_classes)


def evidence_of(likelihood: Likelihood) -> LabelLikelihood:
    """Return the likelihood whose evidence hyperparameters are found by: of softmax that of each class's logit."""
    return "probit" if likelihood.name == "probit" else "logit"


def cautioned(found: Hyperparameters, wanted: LabelLikelihood | None, reporter: Reporter | None) -> None:
    """Tell of hyperparameters that were found for another likelihood than the wanted one; None is of an LS-SVM."""
    caution = likelihood_caution(found, wanted)
    if caution is not None and reporter is not None:
        reporter.warn(caution)
