"""The job that `dkgp classify` is: what is asked for, and what of it does not go together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from dkgp.commands.job_options import (
    AS_IN_THE_PAPER,
    BY_REFERENCE,
    DATASET,
    MAX_PASSES,
    MAX_SECONDS,
    MODEL_OUT,
    TrainingJob,
)
from dkgp.data.stores.models.classifier import ClassifierForm
from dkgp.errors import InputError, UsageError
from dkgp.models.classification.basis import BASES, DEFAULT_BASIS
from dkgp.models.classification.exact import DECISION_TOLERANCE
from dkgp.models.classification.fixed_size.settings import FIXED_SIZE, FixedSizeSettings
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.likelihoods import Likelihood, Link, MultiClass
from dkgp.models.sparse.vif import SEARCHED
from dkgp.operators.product_error import PRODUCT_ERROR, Value
from dkgp.options import Part
from dkgp.registry import Group, Option
from dkgp.solvers.registry import AUTO, solver_names
from dkgp.solvers.risk import RISK_HELP, RISK_METHODS

BALANCED, UNWEIGHTED = "balanced", "none"
# Methods, and those of them whose model is of all samples or on a basis.
ON_SAMPLES, ON_BASIS = ("logistic", "gp"), ("logistic on a basis", "gp on a basis")
LIKELIHOODS = Group("Options of logistic and gp", (*ON_SAMPLES, *ON_BASIS))
LOGISTIC = Group(LIKELIHOODS.heading, ("logistic", "logistic on a basis"))
SAMPLES = Group("Options of exact, and of logistic and gp on all samples", ("exact", *ON_SAMPLES))
RISKS = Group(SAMPLES.heading, ON_SAMPLES)
TO_SOLVE = Group(SAMPLES.heading, ("exact", *ON_SAMPLES, *ON_BASIS))
BASIS = Group("Options of logistic and gp on a basis (and --tol)", ON_BASIS)


def _solvers() -> dict[str, Any]:
    risks = "of logistic and gp one of " + "; ".join(f"{name}: {words}" for name, words in RISK_HELP.items())
    return {
        "choices": tuple(dict.fromkeys((AUTO, *solver_names(), *RISK_METHODS))),
        "help": f"Who solves for it. Of exact as for `dkgp train`; {risks}. auto: the quickest.",
    }


METHOD = Option(
    help="fixed-size: a sum over a few prototypes, chosen by sparse conjugate directions pursuit; exact: the LS-SVM of "
    "all samples, each decision within a proven bound; logistic: kernel logistic regression, each probability within a "
    "proven interval; gp: Gaussian process classification by Laplace's approximation, probabilities averaged over it.",
)
START = Option(
    help="Hyperparameters to start from, as `dkgp tune` writes them.  [default: found from the labels]",
    metavar="FILE",
    place="read",
)
CLASS_WEIGHT = Option(
    help="What a sample of a class counts: all classes the same together, all samples the same, or each class by name; "
    "repeatable.  [default: the same; fixed-size tries balanced too where a class is rare]",
    metavar="balanced|none|NAME=W",
)
GIVEN_NOISE = Option(
    help="Take the noise variance of `hyper` as it is. Without it, a fixed-size one has its own, by cross-validation.",
    group=FIXED_SIZE,
)
LINK = Option(
    help="Probability of a class by its latent function f: 1 / (1 + exp(-f)), or the normal distribution's.",
    group=LIKELIHOODS,
    decides=False,  # by the likelihood, with the classes there are
)
MULTI_CLASS = Option(
    help="Several classes together, or each against the rest.  [default: softmax of logistic, ovr of gp]",
    group=LIKELIHOODS,
    decides=False,
)
REGULARISATION = Option(
    help="Of logistic: the penalty's weight; hyperparameters that are found from the labels are for 1.",
    metavar="LAMBDA",
    above=0,
    group=LOGISTIC,
)
SOLVER = Option(late=_solvers, group=SAMPLES)
TOLERANCE = Option(
    help="Solve until decisions are about so near to the exact ones (of a basis, to its own best), whose margins are "
    "at -1 and 1; a probability is then within a quarter of it.",
    spellings=("--tol",),
    above=0,
    group=TO_SOLVE,
)
GAP = Option(
    help="Of logistic and gp: stop where the risk is proven to be within this share of the least, instead.",
    metavar="SHARE",
    above=0,
    group=RISKS,
)
BASIS_SIZE = Option(
    help="Train on a basis of so many samples, whose predictions take as many kernel entries.  [default: on all "
    "samples]",
    metavar="M",
    least=1,
    group=BASIS,
)
BASIS_CHOICE = Option(
    help=f"How the basis is chosen among the samples.  [default: {DEFAULT_BASIS}]", choices=BASES, group=BASIS
)
CERTIFY = Option(
    help="Also prove how far decisions are from those of the minimiser over all functions: a product more.",
    group=BASIS,
)
NEAR = Group("Options of gp on a basis", ("gp on a basis",))
NEIGHBOURS = Option(
    help="Also stand each prediction on so many nearest samples: the basis has what reaches far, they what is near.",
    metavar="SAMPLES",
    least=1,
    group=NEAR,
)
SEARCH_SAMPLES = Option(
    help="Of `neighbours`: samples that each search for them looks at, at most, those that seem nearest first.  "
    f"[default: {SEARCHED}]",
    metavar="SAMPLES",
    least=1,
    group=NEAR,
)


@dataclass(frozen=True)
class ClassifyJob(TrainingJob):
    """A classifier to train: labels, method, hyperparameters, and where everything goes.

    `settings` are of a fixed-size one; of an exact one `isotropic`, `intercept` (any but "none" is the one that it
    has), `probability` and `seed` count, of the others `isotropic` and `seed`.
    """

    dataset: Annotated[str, DATASET]
    out: Annotated[str, MODEL_OUT]
    method: Annotated[ClassifierForm, METHOD] = "fixed-size"
    hyper: Annotated[str | None, START] = None
    class_weight: Annotated[tuple[str, ...], CLASS_WEIGHT] = ()
    as_in_the_paper: Annotated[bool | tuple[str, ...], AS_IN_THE_PAPER] = False
    settings: Annotated[FixedSizeSettings, Part()] = field(default_factory=FixedSizeSettings)
    given_noise: Annotated[bool, GIVEN_NOISE] = False
    link: Annotated[Link, LINK] = "logit"
    multi_class: Annotated[MultiClass | None, MULTI_CLASS] = None
    regularisation: Annotated[float, REGULARISATION] = 1.0
    solver: Annotated[str, SOLVER] = AUTO
    tolerance: Annotated[float, TOLERANCE] = DECISION_TOLERANCE
    gap: Annotated[float | None, GAP] = None
    max_passes: Annotated[float | None, replace(MAX_PASSES, group=SAMPLES, decides=False)] = None
    max_seconds: Annotated[float | None, replace(MAX_SECONDS, group=SAMPLES, decides=False)] = None
    # Part of the identity where it changes results: `ClassifyRun.asked`.
    product_error: Annotated[Value, replace(PRODUCT_ERROR, group=SAMPLES, decides=False)] = "auto"
    by_reference: Annotated[bool, replace(BY_REFERENCE, group=SAMPLES, decides=False)] = False
    basis_size: Annotated[int | None, BASIS_SIZE] = None
    basis: Annotated[str | None, BASIS_CHOICE] = None
    certify: Annotated[bool, CERTIFY] = False
    neighbours: Annotated[int | None, NEIGHBOURS] = None
    search_samples: Annotated[int | None, SEARCH_SAMPLES] = None

    @property
    def fit_intercept(self) -> bool:
        """True if there is an intercept."""
        return self.settings.intercept != "none"

    @property
    def weights_by_class(self) -> Literal["balanced"] | dict[str, float] | None:
        """Weights of the classes, as `label_weights` takes them.

        Raises `UsageError` for a text that is no weight, or two for one class.
        """
        if not self.class_weight:
            return None
        for name in (BALANCED, UNWEIGHTED):
            if name in self.class_weight and len(self.class_weight) > 1:
                raise UsageError(f"`class_weight` {name} is for all classes; leave out the others, or {name}")
        if BALANCED in self.class_weight:
            return "balanced"
        if UNWEIGHTED in self.class_weight:
            return None
        weights: dict[str, float] = {}
        for text in self.class_weight:
            # A class may have a "=" in its name; a weight has none.
            name, separator, value = text.rpartition("=")
            try:
                weight = float(value)
            except ValueError:
                separator, weight = "", math.nan
            if not separator:
                raise UsageError(f"`class_weight` is balanced, none, or NAME=WEIGHT such as yes=2.5; got '{text}'")
            if name in weights:
                raise UsageError(f"`class_weight` has the class '{name}' twice; give it once")
            if not (math.isfinite(weight) and weight > 0.0):
                raise InputError(f"`class_weight` must be positive and finite; got {value} for the class '{name}'")
            weights[name] = weight
        return weights

    def likelihood(self, labels: Labels) -> Likelihood:
        """The likelihood of the labels; several classes of a logistic one are softmax unless the job says otherwise.

        Of a Gaussian process each is against the rest, so that its processes are t problems and not one t times the
        size.
        """
        usual: MultiClass = "softmax" if self.method == "logistic" and self.link == "logit" else "ovr"
        return Likelihood.of(self.link, self.multi_class or usual, labels.n_classes)
