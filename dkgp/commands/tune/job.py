"""The job of `dkgp tune`, and its options NAME=LOW:HIGH, NAME=VALUE, NAME=lognormal(MEDIAN, SIGMA)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from dkgp.cluster import ClusterOptions
from dkgp.commands.job_options import DATASET, OVERWRITE
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters
from dkgp.models.refinement.record import RefineSettings
from dkgp.models.sparse.search import EVIDENCES, Evidence
from dkgp.models.trend import CENTRED, MeanKind
from dkgp.models.tuning.laplace import LabelLikelihood
from dkgp.models.tuning.noise import NoiseKind, NoiseLikelihood
from dkgp.models.tuning.objectives import ObjectiveName
from dkgp.models.tuning.search import Choices, ProgressCallback, SearchSettings
from dkgp.models.tuning.space import NOISE_NAME, LogNormal, as_prior, matches
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.tuning.tune import check_folds
from dkgp.options import SEED, Part
from dkgp.registry import FURTHER, Group, Option

VALUES = Group("What values hyperparameters may have")
OUT = Option(help="Where the hyperparameters go, as JSON.", metavar="FILE", place="write")
KERNEL = Option(
    help="Kernel, such as rbf, \"matern32 + linear\" or \"rbf['lat', 'lon'] * periodic['day'] + 0.5 * constant\". "
    "auto: the best of a few on held-out samples.  [default: that of `start`, else rbf]",
    metavar="TEXT",
)
KERNEL_SECONDS = Option(
    help="Of `kernel` auto: compare no further kernel that would end later.", above=0, group=FURTHER
)
SUBSET = Option(help="Samples of a subset, drawn at random.")
SUBSETS = Option(
    help="How many subsets; disjoint where the data suffice. Their log likelihoods are added, each computed by a task "
    "of its own."
)
OBJECTIVE = Option(
    help="likelihood: the marginal likelihood; loo: the predictive likelihood of each sample given the subset's "
    "others, at twice the cost, where the kernel may not fit the data well. For a sparse model, on all samples: bound, "
    "the variational bound on the marginal likelihood; fitc, FITC's likelihood; vif, the likelihood where what the "
    "basis leaves of a sample depends on its nearest neighbours, of numbers or, with `likelihood` logit or probit, of "
    "labels.",
)
LIKELIHOOD = Option(
    help="Of numbers, the distribution of their noise: student-t, under which outliers count for less; auto: what "
    "held-out samples say, that or the normal one (gaussian, the default). Of labels: maximise their evidence by a "
    "Gaussian process classifier, in Laplace's approximation; several classes each against the rest, or coupled by "
    "softmax, which takes smaller subsets. Without it labels are tuned as a regression on signs, for an LS-SVM."
)
BASIS_SIZE = Option(
    help="Basis samples of the objectives bound, fitc and vif; they are chosen again as the hyperparameters move.  "
    "[default: 1000, of vif 200, or all]",
    metavar="M",
    group=FURTHER,
)
RESTARTS = Option(help="Starting points; the best result is kept.")
LEARN_VARIANCE = Option(help="Tune the amplitude of a plain kernel too, instead of fixing it at 1.", group=VALUES)
BOUNDS = Option(
    help="Keep a hyperparameter between LOW and HIGH. NAME may be a pattern: gamma.lat is the gamma of the feature "
    "lat, 'gamma*' those of all; noise_variance is the noise. May be repeated, as --fix and --prior may.",
    metavar="NAME=LOW:HIGH",
    group=VALUES,
)
FIXED = Option(help="Hold a hyperparameter at VALUE.", spellings=("--fix",), metavar="NAME=VALUE", group=VALUES)
PRIORS = Option(
    help="Add the log density of log(NAME), normal around log(MEDIAN) with deviation SIGMA, to the objective.",
    spellings=("--prior",),
    metavar="NAME=lognormal(MEDIAN, SIGMA)",
    group=VALUES,
)
START = Option(help="Start from these hyperparameters, as `dkgp tune` writes them.", metavar="FILE", place="read")
TOLERANCE = Option(help="Of the search.", spellings=("--tol",), group=FURTHER)
FOLDS = Option(
    help="Score the result by F folds of each subset, each predicted from its others, without tuning again.",
    metavar="F",
)
HOLDOUT = Option(
    help="Score the result on rows that no subset holds, as many as this fraction of a subset.", metavar="FRACTION"
)
PLOT = Option(help="Draw the length scales by feature into a .png, .pdf or .svg.", metavar="FILE", place="write")
RESUME = Option(
    help="Take the file at `out` for done where this same command wrote it; otherwise a search on all samples goes on "
    "from OUT.checkpoint, to the bit-same result, and one on subsets starts from the beginning. For batch systems that "
    "run a command again."
)
REFINING = Group("With --refine")
REFINE = Part(
    "refine",
    "Go on from the subsets' result on all samples: a few steps on stochastic gradients of the full marginal "
    "likelihood. Samples held out of it decide which values are kept.",
    implied_by=("refine_only",),
    prefix="refine_",
    group=REFINING,
)
NOISE_MODEL = Option(
    help="Let the noise depend on the inputs, and move the kernel with it, on a subset: the logarithm of its variance "
    "linear in the inputs, or a Gaussian process (gp); auto: what held-out samples say, none included. `dkgp train` "
    "and what follows it then know it."
)
MEAN = Option(
    help="The mean that `dkgp train --mean` is to take, whose coefficients are left out of the likelihood: a constant, "
    "or a linear function of the features.",
)
REFINE_ONLY = Option(help="Refine the values of `start`; no search on subsets.", group=REFINING)

# Ranges that depend on the number of samples are checked for the largest possible one.
MANY_SAMPLES = 2**31
# Options that a search on all samples has no use for.
OF_SUBSETS = ("subset", "subsets", "folds", "holdout")


@dataclass(frozen=True)
class TuneJob:
    """Hyperparameters to tune; the parameters of `dkgp.models.tune_dataset`, and where the result goes."""

    dataset: Annotated[str, DATASET]
    out: Annotated[str, OUT]
    kernel: Annotated[str | None, KERNEL] = None
    kernel_seconds: Annotated[float, KERNEL_SECONDS] = 120.0
    subset: Annotated[int, SUBSET] = 2000
    subsets: Annotated[int, SUBSETS] = 1
    objective: Annotated[Literal["likelihood", "loo", "bound", "fitc", "vif"], OBJECTIVE] = "likelihood"
    likelihood: Annotated[Literal["logit", "probit", "softmax", "gaussian", "student-t", "auto"] | None, LIKELIHOOD] = (
        None
    )
    basis_size: Annotated[int | None, BASIS_SIZE] = None
    restarts: Annotated[int, RESTARTS] = 1
    learn_variance: Annotated[bool, LEARN_VARIANCE] = False
    bounds: Annotated[tuple[str, ...], BOUNDS] = ()
    fixed: Annotated[tuple[str, ...], FIXED] = ()
    priors: Annotated[tuple[str, ...], PRIORS] = ()
    start: Annotated[str | None, START] = None
    tolerance: Annotated[float, TOLERANCE] = 1e-4
    folds: Annotated[int | None, FOLDS] = None
    holdout: Annotated[float | None, HOLDOUT] = None
    plot: Annotated[str | None, PLOT] = None
    resume: Annotated[bool, RESUME] = False
    refine: Annotated[RefineSettings | None, REFINE] = None
    refine_only: Annotated[bool, REFINE_ONLY] = False
    noise_model: Annotated[NoiseKind, NOISE_MODEL] = "none"
    mean: Annotated[MeanKind, MEAN] = CENTRED
    seed: Annotated[int, SEED] = 0
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    @property
    def evidence(self) -> Evidence | None:
        """The sparse model's evidence that is maximised on all samples; None of a search on subsets."""
        name = self.objective
        return name if name == "bound" or name == "fitc" or name == "vif" else None

    @property
    def of_subsets(self) -> ObjectiveName:
        """The objective of a search on subsets."""
        return "loo" if self.objective == "loo" else "likelihood"

    @property
    def of_labels(self) -> LabelLikelihood | None:
        """The likelihood of labels; None of a regression."""
        name = self.likelihood
        return name if name == "logit" or name == "probit" or name == "softmax" else None

    @property
    def of_noise(self) -> NoiseLikelihood:
        """The distribution of a regression's noise."""
        name = self.likelihood
        return name if name == "student-t" or name == "auto" else "gaussian"

    @property
    def checkpoint_url(self) -> str | None:
        """The checkpoint's place, of a search on all samples."""
        return None if self.evidence is None else f"{self.out}.checkpoint"

    def check(self) -> None:
        """Refuse options that contradict each other or are misspelled; `UsageError`, or `InputError` for a range."""
        self.named()
        self.search()
        plan_subsets(MANY_SAMPLES, self.subset, subsets=self.subsets, seed=self.seed, holdout=self.holdout)
        check_folds(self.folds, self.subset)
        self._check_evidence()
        if self.of_labels is not None and self.objective not in ("likelihood", "vif"):
            raise UsageError(
                f"`objective` {self.objective} is of regressions; leave it out with the `likelihood` of labels, whose "
                "evidence is maximised: on subsets, or by `objective` vif on all samples"
            )
        if self.of_labels == "softmax" and self.evidence is not None:
            raise UsageError(
                "`objective` vif takes each class against the rest, and `likelihood` softmax couples them; choose "
                "`likelihood` logit, or leave `objective` out"
            )
        if self.of_labels is not None and self.refine is not None:
            raise UsageError("`refine` is of regressions; leave it out with the `likelihood` of labels")
        self._check_mean()
        self._check_noise("noise_model", self.noise_model, "none")
        self._check_noise("likelihood", self.of_noise, "gaussian")
        if self.noise_model != "none" and self.of_noise != "gaussian":
            raise UsageError(
                f"`noise_model` {self.noise_model} is of noise with a normal distribution; leave it out with "
                f"`likelihood` {self.of_noise}"
            )
        if not self.refine_only:
            return
        if self.refine is None:
            raise UsageError("`refine_only` needs the settings of a refinement; give `refine` too")
        if self.start is None:
            raise UsageError("`refine_only` refines the values of a file; name it with `start` FILE")
        if self.kernel is not None:
            raise UsageError("`refine_only` refines the kernel of `start`; leave `kernel` out")

    def _check_mean(self) -> None:
        """Refuse a mean with coefficients where another objective, or another model, has no place for it."""
        for name, changed in {
            "likelihood": self.likelihood is not None,
            "objective": self.objective != "likelihood",
            "refine": self.refine is not None,
            "noise_model": self.noise_model != "none",
            "folds": self.folds is not None,
            "holdout": self.holdout is not None,
            "kernel": self.kernel == "auto",
        }.items():
            if self.mean != CENTRED and changed:
                value = "" if name in ("refine", "folds", "holdout") else f" {getattr(self, name)}"
                raise UsageError(
                    f"`mean` {self.mean} is tuned with by the marginal likelihood of subsets alone; leave out "
                    f"`{name}`{value}, or `mean`"
                )

    def _check_noise(self, name: str, value: str, plain: str) -> None:
        """Refuse other noise than the plain one of labels, of a sparse model's evidence, or where it is held fixed."""
        if value == plain:
            return
        if self.of_labels is not None:
            raise UsageError(f"`{name}` is of regressions; leave it out with the `likelihood` of labels")
        if self.evidence is not None:
            raise UsageError(
                f"`objective` {self.objective} is of sparse models, which take the noise for normal and the same "
                f"everywhere; leave it out with `{name}` {value}"
            )
        if any(matches(name, NOISE_NAME) for name in parse_fixed(self.fixed)):
            raise UsageError(f"`{name}` {value} finds the noise, which `fixed` holds; leave one of them out")

    def _check_evidence(self) -> None:
        """Refuse options of subsets where all samples are looked at, and of these where subsets are."""
        if self.evidence is None and self.basis_size is not None:
            raise UsageError(
                f"`basis_size` is of the objectives {', '.join(EVIDENCES)}; this one, {self.objective}, looks at a "
                "subset. Choose one of them, or leave it out"
            )
        for name in OF_SUBSETS if self.evidence is not None else ():
            if getattr(self, name) != getattr(type(self), name):
                raise UsageError(
                    f"`objective` {self.objective} looks at all samples; leave out `{name}`, which is of subsets"
                )

    def named(self) -> dict[str, Any]:
        """Parse the options that name single hyperparameters, for `tune_dataset`; `UsageError` for another form."""
        return {
            "bounds": parse_bounds(self.bounds),
            "fixed": parse_fixed(self.fixed),
            "priors": parse_priors(self.priors),
        }

    def choices(self, start: Hyperparameters | None) -> Choices:
        """Return what is searched for, from these hyperparameters on."""
        return Choices(
            self.kernel,
            self.of_subsets,
            start=start,
            folds=self.folds,
            likelihood=self.of_labels,
            mean=self.mean,
            **self.named(),
        )

    def search(self, progress: ProgressCallback | None = None) -> SearchSettings:
        """Return how it is searched for, and who watches."""
        return SearchSettings(self.seed, self.learn_variance, self.tolerance, self.restarts, progress=progress)


def parse_bounds(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Read `NAME=LOW:HIGH`; `UsageError` for another form or values that are no bounds."""
    parsed = {}
    for name, value in _pairs("bounds", texts, "NAME=LOW:HIGH, such as 'gamma*=0.01:10'").items():
        low, separator, high = value.partition(":")
        if not separator:
            raise UsageError(f"`bounds` expects NAME=LOW:HIGH, such as 'gamma*=0.01:10'; got '{name}={value}'")
        bounds = _number("bounds", name, low), _number("bounds", name, high)
        if not bounds[0] < bounds[1]:
            raise UsageError(f"`bounds` {name}: LOW must be below HIGH; got {value}")
        parsed[name] = bounds
    return parsed


def parse_fixed(texts: Iterable[str]) -> dict[str, float]:
    """Read `NAME=VALUE`; `UsageError` for another form or a value that is not positive."""
    pairs = _pairs("fixed", texts, "NAME=VALUE, such as noise_variance=0.01")
    return {name: _number("fixed", name, value) for name, value in pairs.items()}


def parse_priors(texts: Iterable[str]) -> dict[str, LogNormal]:
    """Read `NAME=lognormal(MEDIAN, SIGMA)`; `UsageError` for another form or values that are not positive."""
    parsed = {}
    form = "NAME=lognormal(MEDIAN, SIGMA), such as 'gamma*=lognormal(0.1, 1)'"
    for name, value in _pairs("priors", texts, form).items():
        try:
            parsed[name] = as_prior(value)
        except InputError as error:
            raise UsageError(f"`priors` {name}: {error}") from None
    return parsed


def _pairs(option: str, texts: Iterable[str], form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not (name and separator and value):
            raise UsageError(f"`{option}` expects {form}; got '{text}'")
        if name in pairs:
            raise UsageError(f"`{option}` is given twice for '{name}'; give it once")
        pairs[name] = value
    return pairs


def _number(option: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise UsageError(f"`{option}` {name}: expected a positive number; got '{text.strip()}'")
    return number
