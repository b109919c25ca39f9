"""A run of `dkgp classify`, and the hooks in which its methods differ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from dkgp.cluster import BlockExecutor
from dkgp.codec import difference, to_json
from dkgp.commands.classify.job import ClassifyJob
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.resuming import checkpointing_of
from dkgp.commands.training import Outcome, TrainingRun
from dkgp.data import ClassifierRecord, open_classifier, open_dataset, save_classifier
from dkgp.data.stores.models.classifier import CLASSIFIER_KIND
from dkgp.errors import UsageError
from dkgp.kernels import fold_white
from dkgp.models import Hyperparameters
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels, label_weights, labels_of, rare_class
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.models.hyperparameters import likelihood_caution
from dkgp.models.tuning.laplace import LabelLikelihood
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import renamed
from dkgp.options import deciding_values
from dkgp.solvers import Checkpointing


class ClassifyRun(TrainingRun):
    """A run of `dkgp classify` by one method.

    Attributes
    ----------
    method
        Its name, by which options say that they belong to it.
    takes_noise
        True if the noise variance of the hyperparameters determines the model too.
    labels
        From `open` on.
    weights : (n,) float64 or None
        Of the samples, None where all count the same; from `prepare` on.
    """

    command, kind = "classify", CLASSIFIER_KIND
    method: ClassVar[str]
    job: ClassifyJob
    labels: Labels
    weights: FloatArray | None = None
    checkpointing: Checkpointing

    @classmethod
    @abstractmethod
    def check_options(cls, job: ClassifyJob) -> None:
        """Refuse what can be seen to be wrong without the data, of the method's options; `InputError`."""

    @property
    def likelihood(self) -> Likelihood | None:
        """The likelihood of the labels; None of a least-squares machine."""
        return None

    @property
    def takes_noise(self) -> bool:
        """True if the noise variance of the hyperparameters determines the model too."""
        return False

    def open(self) -> None:
        """Open data and hyperparameters; `InputError` where there is nothing to tell apart."""
        self.dataset = open_dataset(self.job.dataset)
        self.labels = labels_of(self.dataset)
        self.hyperparameters = None
        if self.job.hyper is not None:
            self.hyperparameters = self.read_hyperparameters(self.job.hyper)
        self.keep_to_products()

    def prepare(self) -> None:
        """Weigh the samples, refuse what does not go with the data, and tell what is odd."""
        self.weights = label_weights(self.labels, self.job.weights_by_class, self.dataset.all_weights())
        self.check_hyperparameters(self.hyperparameters)
        if self.hyperparameters is not None:
            self.caution(self.hyperparameters)

    def check_hyperparameters(self, hyperparameters: Hyperparameters | None) -> None:
        """Refuse hyperparameters, or data, that the method, or `product_error`, cannot serve; `InputError`."""
        if hyperparameters is not None:
            self.product_error.require_kernel(hyperparameters.kernel)

    def caution(self, hyperparameters: Hyperparameters) -> None:
        """Tell of hyperparameters that were found for another likelihood than the method's."""
        caution = likelihood_caution(hyperparameters, self.evidence)
        if caution is not None:
            self.reporter.warn(caution)

    @property
    def data(self) -> LabelledData:
        """The samples with their labels and weights."""
        return LabelledData(self.dataset, self.labels, self.weights)

    @property
    def evidence(self) -> LabelLikelihood | None:
        """The likelihood whose evidence hyperparameters are found by: of softmax that of each class's logit."""
        if self.likelihood is None:
            return None
        return "probit" if self.likelihood.name == "probit" else "logit"

    def kernel_and_noise(self) -> Hyperparameters:
        """Return the job's hyperparameters; where it has none, find them on a subset, and say so."""
        if self.hyperparameters is not None:
            return self.hyperparameters
        by = "marginal likelihood of a subset's labels"
        if self.evidence is not None:
            by = f"evidence of a subset's labels ({self.evidence})"
        self.reporter.note(f"finding hyperparameters by the {by}")
        with self.reporter.search("tune") as progress:
            search = LabelTuning(
                seed=self.job.settings.seed,
                isotropic=self.job.settings.isotropic,
                progress=progress,
                likelihood=self.evidence,
            )
            hyperparameters = tune_labels(self.data, search)
        self.check_hyperparameters(hyperparameters)
        return hyperparameters

    def identity(self) -> dict[str, Any]:
        """Return what determines the model beside data, hyperparameters and weights: options of the method."""
        return deciding_values(self.job, self.method, "settings")

    @property
    def asked(self) -> dict[str, Any]:
        """Everything that determines the model."""
        origin: dict[str, Any] = {"kernel": None, "noise_variance": None}
        if self.hyperparameters is not None:
            noise = self.hyperparameters.noise_variance if self.takes_noise else None
            origin = {"kernel": self.hyperparameters.kernel.to_json(), "noise_variance": noise}
        origin |= {"method": self.job.method, "class_weight": sorted(self.job.class_weight), **self.identity()}
        if self.hyperparameters is not None:
            kernel, _ = fold_white(self.hyperparameters.kernel, 1.0)
            origin |= self.product_error.record(kernel, self.dataset.n_samples)
        everything: dict[str, Any] = plain({"fingerprint": self.dataset.fingerprint, **origin})
        return everything

    def checkpoints(self) -> Checkpointing:
        """Return where the state is saved."""
        return checkpointing_of(self.job, self.asked, None, self.reporter)

    @abstractmethod
    def work(self, executor: BlockExecutor) -> ClassifierRecord:
        """Plan the memory, train, and return the model as it is to be stored."""

    def save(self, trained: ClassifierRecord, measured: Mapping[str, Any], *, overwrite: bool) -> Outcome:
        """Write the model."""
        trained.summary.update({**measured, "asked": self.asked})
        job = self.job
        save_classifier(job.out, trained, dataset=self.dataset, by_reference=job.by_reference, overwrite=overwrite)
        return Outcome(trained, trained.summary, trained.certificate, trained.history)

    def stored(self) -> ClassifierRecord:
        """Open the model at `job.out`."""
        return open_classifier(self.job.out)

    def difference(self, model: ClassifierRecord, converged: bool) -> str | None:
        """Say in which name the stored model's run differs."""
        asked = model.summary.get("asked", {})  # an estimator's has none
        made = {"fingerprint": model.fingerprint, **renamed(asked), "by_reference": model.by_reference}
        return difference(made, {**self.asked, "by_reference": self.job.by_reference})

    def draw(self, outcome: Outcome) -> None:
        """Draw the course of the run."""
        summary, record = outcome.summary, outcome.model
        title = f"{record.form}: n = {summary['n']:,}, d = {summary['d']}, {len(record.classes)} classes"
        assert self.job.plot is not None
        self.plot(self.job.plot, record, title)

    @abstractmethod
    def plot(self, path: str, record: ClassifierRecord, title: str) -> None:
        """Draw the course of a model's training into a file."""

    def described(self, outcome: Outcome) -> Document:
        """Return the model's part of the record."""
        model = outcome.model
        return {
            **plain({name: value for name, value in outcome.summary.items() if name != "asked"}),
            "kernel": plain(model.kernel),
            "noise_variance": model.noise_variance,
            "intercept": plain(model.intercept),
            "class_weights": model.class_weights,
            "probabilities": model.calibration is not None or model.likelihood is not None,
            "likelihood": model.likelihood,
            "path": plain(model.path),
            "certificate": plain(model.certificate),
        }

    def of_rare(self, summary: Mapping[str, Any]) -> str:
        """Say what a user must know of a model where a class is rare."""
        return (
            "a low error rate may hide that it is never found. Look at the balanced error, or give `class_weight` "
            "balanced"
        )

    def warnings(self, outcome: Outcome) -> list[str]:
        """Return what a user must know of a model by any method, in words."""
        summary, messages = outcome.summary, []
        if not summary["converged"]:
            messages.append(f"not converged: {summary['reason']}; {summary['advice']}")
        rarest = rare_class(self.labels)
        if not self.job.class_weight and rarest is not None:
            count, name = summary["counts"][rarest], summary["classes"][rarest]
            messages.append(f"the class '{name}' has {count:,} of {summary['n']:,} samples: {self.of_rare(summary)}")
        return messages


class LikelihoodRun(ClassifyRun):
    """A run of a method with a likelihood: logistic, or a Gaussian process."""

    @classmethod
    def check_options(cls, job: ClassifyJob) -> None:
        """Refuse softmax of probits."""
        if job.link == "probit" and job.multi_class == "softmax":
            raise UsageError(
                "`multi_class` softmax goes with `link` logit; take ovr with probit, one class against the rest"
            )

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the labels."""
        return self.job.likelihood(self.labels)

    def identity(self) -> dict[str, Any]:
        """Return the options of the method, and the likelihood."""
        risk = {"likelihood": to_json(self.likelihood), "regularisation": self.job.regularisation}
        return {**super().identity(), **risk}
