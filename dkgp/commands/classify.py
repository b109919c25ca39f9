"""The job of `dkgp classify`: its options and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
from dkgp.commands.recipe import command
from dkgp.commands.solver_options import check_product_error
from dkgp.data.stores.models.classifier import ClassifierForm
from dkgp.errors import InputError, UsageError
from dkgp.models.classification.exact import DECISION_TOLERANCE
from dkgp.models.classification.fixed_size.settings import FIXED_SIZE, FixedSizeSettings
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.likelihoods import Likelihood, Link, MultiClass
from dkgp.models.classification.prototypes import BASES, DEFAULT_BASIS
from dkgp.models.sparse.vif import SEARCHED
from dkgp.operators.product_error import PRODUCT_ERROR, ProductError, Value
from dkgp.options import Declared, Part, foreign_options
from dkgp.registry import Group, Option
from dkgp.solvers.registry import AUTO, solver_names
from dkgp.solvers.risk import RISK_HELP, RISK_METHODS

BALANCED, UNWEIGHTED = "balanced", "none"
# Methods, by whether their model uses all samples or a basis.
ON_SAMPLES, ON_BASIS = ("logistic", "gp"), ("logistic on a basis", "gp on a basis")
LIKELIHOODS = Group("Options of logistic and gp", (*ON_SAMPLES, *ON_BASIS))
LOGISTIC = Group(LIKELIHOODS.heading, ("logistic", "logistic on a basis"))
SAMPLES = Group("Options of exact, and of logistic and gp on all samples", ("exact", *ON_SAMPLES))
RISKS = Group(SAMPLES.heading, ON_SAMPLES)
TO_SOLVE = Group(SAMPLES.heading, ("exact", *ON_SAMPLES, *ON_BASIS))
BASIS = Group("Options of logistic and gp on a basis (and --tol)", ON_BASIS)


def _solvers() -> dict[str, Any]:
    risks = "For logistic and gp: " + "; ".join(f"{name}: {words}" for name, words in RISK_HELP.items())
    return {
        "choices": tuple(dict.fromkeys((AUTO, *solver_names(), *RISK_METHODS))),
        "help": f"Solver. For exact: as for `dkgp train`. {risks}. auto: the fastest.",
    }


METHOD = Option(
    help="Model. fixed-size: LS-SVM on a few prototypes, chosen by sparse conjugate directions pursuit; exact: "
    "LS-SVM on all samples, with a proven bound on each decision; logistic: kernel logistic regression, with a "
    "proven interval for each probability; gp: Gaussian process classification by Laplace's approximation, with "
    "averaged probabilities.",
)
START = Option(
    help="Initial hyperparameters, a file of `dkgp tune`.  [default: tuned on the labels]",
    metavar="FILE",
    place="read",
)
CLASS_WEIGHT = Option(
    help="Weight of the samples of a class. balanced: all classes have the same total weight; none: all samples have "
    "the same weight; NAME=WEIGHT: one class. May be repeated.  [default: none]",
    metavar="balanced|none|NAME=W",
)
GIVEN_NOISE = Option(
    help="Use the noise variance of `hyper` unchanged. By default, fixed-size chooses its own noise variance by "
    "cross-validation.",
    group=FIXED_SIZE,
)
LINK = Option(
    help="Probability of a class as a function of its latent function f. logit: 1 / (1 + exp(-f)); probit: the normal "
    "distribution function.",
    group=LIKELIHOODS,
    decides=False,  # the likelihood decides, together with the classes of the data
)
MULTI_CLASS = Option(
    help="Treatment of three or more classes. softmax: one model for all classes; ovr: one model per class, against "
    "the rest.  [default: softmax for logistic, ovr for gp]",
    group=LIKELIHOODS,
    decides=False,
)
REGULARISATION = Option(
    help="Factor of the regularisation term of logistic. Hyperparameters that were tuned on the labels assume 1.",
    metavar="LAMBDA",
    above=0,
    group=LOGISTIC,
)
SOLVER = Option(late=_solvers, group=SAMPLES)
TOLERANCE = Option(
    help="Tolerance: solve until each decision is within about this distance of the exact decision (with "
    "--basis-size: of the optimum for this basis). The sign of a decision is the predicted class; for exact, labels "
    "are coded as -1 and 1. The error of a probability is at most a quarter of the tolerance.",
    spellings=("--tol",),
    above=0,
    group=TO_SOLVE,
)
GAP = Option(
    help="Stop when the regularised risk is proven to be within this relative distance of its minimum, instead of at "
    "--tol.",
    metavar="SHARE",
    above=0,
    group=RISKS,
)
BASIS_SIZE = Option(
    help="Train a sparse model on a basis of this number of samples. A prediction then evaluates one kernel entry "
    "per basis sample.  [default: all samples]",
    metavar="M",
    least=1,
    group=BASIS,
)
BASIS_CHOICE = Option(
    help=f"How the basis is chosen from the samples.  [default: {DEFAULT_BASIS}]", choices=BASES, group=BASIS
)
CERTIFY = Option(
    help="Also prove how far the decisions are from those of the exact model on all samples. This takes one more "
    "product with the kernel matrix.",
    group=BASIS,
)
NEAR = Group("Options of gp on a basis", ("gp on a basis",))
NEIGHBOURS = Option(
    help="Number of nearest samples that each prediction uses in addition to the basis. The basis covers long-range "
    "dependence, the neighbours short-range dependence.",
    metavar="SAMPLES",
    least=1,
    group=NEAR,
)
SEARCH_SAMPLES = Option(
    help=f"Largest number of samples that each search for `neighbours` looks at, nearest first.  [default: {SEARCHED}]",
    metavar="SAMPLES",
    least=1,
    group=NEAR,
)


@command(
    """
    --method selects the model. fixed-size and exact are least-squares support vector machines (LS-SVM). fixed-size
    chooses kernel, noise and prototypes by cross-validation, and predicts from the prototypes alone. exact uses all
    samples, and its labels can be certified. Both calibrate their probabilities on held-out samples.

    logistic (kernel logistic regression) and gp (Gaussian process classification) model the probabilities directly. On
    all samples, each probability has a proven interval; with --basis-size it has none. Without --hyper, the kernel
    maximises the marginal likelihood of the labels of a subset.

    A run that stops before its tolerance saves its model, prints a message, and ends with exit code 4. --resume
    continues an interrupted run; the result is bit-identical.
    """,
    "dkgp classify train.zarr --out model.zarr",
    "dkgp classify train.zarr --out model.zarr --class-weight balanced --plot path.png",
    "dkgp classify train.zarr --out model.zarr --as-in-the-paper",
    "dkgp classify train.zarr --out model.zarr --pool 3000 --prototypes entropy --search annealing --isotropic",
    "dkgp classify train.zarr --out model.zarr --method exact --hyper hyper.json --resume",
    "dkgp classify train.zarr --out model.zarr --method logistic --plot gap.png",
    "dkgp classify train.zarr --out model.zarr --method gp --basis-size 1000 --link probit",
    must_converge=True,
    goes_on=True,
)
@dataclass(frozen=True)
class ClassifyJob(TrainingJob):
    """A classifier to train: labels, method, hyperparameters and outputs.

    `settings` apply to a fixed-size classifier. An exact one uses only `isotropic`, `intercept` (any value but "none"
    gives it its intercept), `probability` and `seed`. The other methods use only `isotropic` and `seed`.
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
    # Part of the identity if it changes results; see `ClassifyRun.asked`.
    product_error: Annotated[Value, replace(PRODUCT_ERROR, group=SAMPLES, decides=False)] = "auto"
    by_reference: Annotated[bool, replace(BY_REFERENCE, group=SAMPLES, decides=False)] = False
    basis_size: Annotated[int | None, BASIS_SIZE] = None
    basis: Annotated[str | None, BASIS_CHOICE] = None
    certify: Annotated[bool, CERTIFY] = False
    neighbours: Annotated[int | None, NEIGHBOURS] = None
    search_samples: Annotated[int | None, SEARCH_SAMPLES] = None

    @property
    def fit_intercept(self) -> bool:
        """True if the model has an intercept."""
        return self.settings.intercept != "none"

    @property
    def weights_by_class(self) -> Literal["balanced"] | dict[str, float] | None:
        """Class weights in the form that `label_weights` expects.

        Raises `UsageError` for a text that is not a weight, or for two weights of one class.
        """
        if not self.class_weight:
            return None
        for name in (BALANCED, UNWEIGHTED):
            if name in self.class_weight and len(self.class_weight) > 1:
                raise UsageError(
                    f"`class_weight` {name} applies to all classes. Leave out the other weights, or {name}"
                )
        if BALANCED in self.class_weight:
            return "balanced"
        if UNWEIGHTED in self.class_weight:
            return None
        weights: dict[str, float] = {}
        for text in self.class_weight:
            # The name of a class may contain "="; a weight does not.
            name, separator, value = text.rpartition("=")
            try:
                weight = float(value)
            except ValueError:
                separator, weight = "", math.nan
            if not separator:
                raise UsageError(f"`class_weight` must be balanced, none, or NAME=WEIGHT such as yes=2.5; got '{text}'")
            if name in weights:
                raise UsageError(f"`class_weight` names the class '{name}' twice; give it once")
            if not (math.isfinite(weight) and weight > 0.0):
                raise InputError(f"`class_weight` must be positive and finite; got {value} for the class '{name}'")
            weights[name] = weight
        return weights

    def likelihood(self, labels: Labels) -> Likelihood:
        """The likelihood of the labels. By default, logistic regression on several classes uses softmax.

        A Gaussian process models each class against the rest by default. It then solves t problems of size n instead
        of one of size t n.
        """
        usual: MultiClass = "softmax" if self.method == "logistic" and self.link == "logit" else "ovr"
        return Likelihood.of(self.link, self.multi_class or usual, labels.n_classes)


def _check_fixed_size(job: ClassifyJob) -> None:
    """Refuse contradictory noise options; the settings check themselves."""
    if job.given_noise and job.hyper is None:
        raise UsageError("`given_noise` uses the noise variance of `hyper`; give `hyper`, or leave `given_noise` out")
    if job.given_noise and job.settings.noise_variances is not None:
        raise UsageError("`given_noise` and `noise_variances` both set the noise; leave one of them out")


def _check_exact(job: ClassifyJob) -> None:
    """Refuse a selected intercept, solvers of other methods, and `product_error` where it has no effect."""
    if job.settings.intercept == "selected":
        raise UsageError(
            "`intercept` selected is for prototypes, and `method` exact has no prototypes. Choose "
            "`intercept` first or none"
        )
    _check_solver(job, solver_names())
    check_product_error(ProductError.of(job.product_error), job.tolerance, job.solver)


def _check_solver(job: ClassifyJob, names: Iterable[str]) -> None:
    if job.solver not in (AUTO, *names):
        listed = ", ".join((AUTO, *names))
        raise InputError(f"`solver` must be one of {listed} for `method` {job.method}; got '{job.solver}'")


def _check_likelihood(job: ClassifyJob) -> None:
    """Refuse softmax with the probit link."""
    if job.link == "probit" and job.multi_class == "softmax":
        raise UsageError("`multi_class` softmax needs `link` logit. With probit, use ovr (one class against the rest)")


def _check_risk(job: ClassifyJob) -> None:
    """Refuse solvers of other methods, a `product_error` without effect, and softmax with the probit link."""
    _check_likelihood(job)
    _check_solver(job, RISK_METHODS)
    if job.gap is not None and job.tolerance != DECISION_TOLERANCE:
        raise UsageError("`gap` and `tolerance` both set when to stop; leave one of them out")
    tolerance = job.tolerance if job.gap is None else math.inf
    check_product_error(ProductError.of(job.product_error), tolerance, job.solver)


def _check_gp_on_basis(job: ClassifyJob) -> None:
    """Refuse options that need neighbours without them, and options that exclude neighbours with them."""
    _check_likelihood(job)
    if job.neighbours is None:
        if job.search_samples is not None:
            raise UsageError("`search_samples` needs `neighbours`; give both, or leave it out")
    elif job.certify:
        raise UsageError("there are no proofs for a basis with `neighbours`. Leave out `certify`, or the neighbours")
    elif job.multi_class == "softmax":
        raise UsageError(
            "`neighbours` need one latent function for each class, and softmax couples the classes. Use `multi_class` "
            "ovr, or leave out the neighbours"
        )


# The methods, with the checks of their options that need no data.
CHECKS: dict[str, Callable[[ClassifyJob], None]] = {
    "fixed-size": _check_fixed_size,
    "exact": _check_exact,
    "logistic": _check_risk,
    "logistic on a basis": _check_likelihood,
    "gp": _check_risk,
    "gp on a basis": _check_gp_on_basis,
}


def check_classify(job: ClassifyJob) -> None:
    """Refuse contradictory options, as far as possible without data; `UsageError` or `InputError`."""
    for option in foreign_options(job, method_of(job)):
        raise UsageError(_refusal(job, option))
    CHECKS[method_of(job)](job)
    _ = job.weights_by_class


def method_of(job: ClassifyJob) -> str:
    """Return the job's method in the table. A method without a basis variant stays plain; its basis options fail."""
    on_basis = f"{job.method} on a basis"
    return on_basis if job.basis_size is not None and on_basis in CHECKS else job.method


def _refusal(job: ClassifyJob, declared: Declared) -> str:
    """Return the message for an option that does not apply to the job's method; it names the right method."""
    option, on_basis = declared.option, job.basis_size is not None
    methods = () if option.group is None else option.group.methods
    if (job.method if on_basis else f"{job.method} on a basis") in methods:
        if on_basis:
            return f"`{option.name}` is for a model of all samples, `basis_size` for a model on a basis; leave one out"
        size = "set its number of samples with `basis_size`"
        return f"`{option.name}` is for a model on a basis; {size}, or leave it out"
    names = [name for name in CHECKS if name in methods and name not in ON_BASIS]
    names = names or [name.removesuffix(" on a basis") for name in methods]
    owners = " or ".join(", ".join(part) for part in (names[:-1], names[-1:]) if part)
    return f"`{option.name}` belongs to `method` {owners}; choose that, or leave it out"
