"""The job of `dkgp tune`, and its options NAME=LOW:HIGH, NAME=VALUE, NAME=lognormal(MEDIAN, SIGMA)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from dkgp.cluster import ClusterOptions
from dkgp.commands.job_options import DATASET, OVERWRITE
from dkgp.commands.recipe import command
from dkgp.errors import UsageError
from dkgp.models import Hyperparameters
from dkgp.models.mean_option import MEAN, MeanValue
from dkgp.models.refinement.record import RefineSettings
from dkgp.models.sparse.search import EVIDENCES, Evidence
from dkgp.models.tuning.laplace import LabelLikelihood
from dkgp.models.tuning.noise import NoiseKind, NoiseLikelihood
from dkgp.models.tuning.objectives import ObjectiveName
from dkgp.models.tuning.search import Choices, ProgressCallback, SearchSettings
from dkgp.models.tuning.space import NOISE_NAME, matches, parse_bounds, parse_fixed, parse_priors
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.tuning.tune import check_folds
from dkgp.options import SEED, Part
from dkgp.registry import FURTHER, Group, Option

AUTO_KERNEL = "auto"
# In order of trial: a budget that ends early has covered a smooth, a rough and a linear kernel.
COMPARED_KERNELS = ("rbf", "matern32", "rbf + linear", "matern52", "rq", "matern12")
# With fewer held-out samples, a held-out density is unreliable.
LEAST_SAMPLES = 20

VALUES = Group("Constraints on hyperparameters")
OUT = Option(help="JSON file to write the hyperparameters to.", metavar="FILE", place="write")
KERNEL = Option(
    help="Kernel, such as rbf, \"matern32 + linear\" or \"rbf['lat', 'lon'] * periodic['day'] + 0.5 * "
    'constant". auto: the best of a few kernels on held-out samples.  [default: the kernel of `start`, else rbf]',
    metavar="KERNEL",
)
KERNEL_SECONDS = Option(
    help="For `kernel` auto: time limit of the comparison. A search that exceeds its share ends at its best point.",
    above=0,
    group=FURTHER,
)
SUBSET = Option(help="Number of random samples in a subset.")
ALL_SAMPLES = Option(
    help="auto: after the default subset, continue with the likelihood of all samples (at most 20,000), and keep "
    "these values if they predict held-out samples better. Error bars that are too narrow or too wide are "
    "scaled. Only for a regression with the same noise variance for all samples. none: keep the values of the subset. "
    "Options for subsets, such as --subset, imply none.",
    choices=("auto", "none"),
)
ALL_SAMPLES_SECONDS = Option(
    help="For `all_samples` auto: time limit. Forecasts decide on the number of samples.  [default: none]",
    above=0,
    group=FURTHER,
)
SUBSETS = Option(
    help="Number of subsets, whose log likelihoods are added. They are disjoint if there are enough samples."
)
OBJECTIVE = Option(
    help="likelihood: the marginal likelihood of subsets; loo: the predictive likelihood of each sample given the "
    "others of its subset, at twice the cost, for kernels that may not fit the data well. For sparse models, on "
    "all samples: bound: the variational bound on the marginal likelihood; fitc: FITC's likelihood; vif: the "
    "likelihood of the Vecchia-inducing-points model, also for labels (`likelihood` logit or probit).",
)
LIKELIHOOD = Option(
    help="For numbers: distribution of the noise. gaussian (default); student-t: outliers have less influence; auto: "
    "the better of both on held-out samples. For labels: maximise the evidence of a Gaussian process classifier "
    "by Laplace's approximation. logit, probit: each class against the rest; softmax: classes together, which "
    "needs smaller subsets. Without it, labels are tuned as a regression on signs, for an LS-SVM."
)
BASIS_SIZE = Option(
    help="Number of basis samples of the objectives bound, fitc and vif. They are chosen again when the "
    "hyperparameters change.  [default: 1000, for vif 200, or all samples if there are fewer]",
    metavar="M",
    group=FURTHER,
)
RESTARTS = Option(help="Number of random starting points. The best result is kept.")
LEARN_VARIANCE = Option(help="Also tune the amplitude of a plain kernel, instead of fixing it at 1.", group=VALUES)
BOUNDS = Option(
    help="Keep a hyperparameter between LOW and HIGH. NAME may be a pattern: gamma.lat is the gamma of the feature "
    "lat, 'gamma*' those of all features. noise_variance is the noise. May be repeated, like --fix and --prior.",
    metavar="NAME=LOW:HIGH",
    group=VALUES,
)
FIXED = Option(
    help="Fix a hyperparameter at VALUE. May be repeated.", spellings=("--fix",), metavar="NAME=VALUE", group=VALUES
)
PRIORS = Option(
    help="Add the log density of log(NAME), normal around log(MEDIAN) with deviation SIGMA, to the objective.",
    spellings=("--prior",),
    metavar="NAME=lognormal(MEDIAN, SIGMA)",
    group=VALUES,
)
START = Option(help="Start from these hyperparameters, as `dkgp tune` writes them.", metavar="FILE", place="read")
TOLERANCE = Option(help="Tolerance of the optimiser.", spellings=("--tol",), group=FURTHER)
FOLDS = Option(
    help="Also print the F-fold cross-validation score of the result on each subset, without tuning again.",
    metavar="F",
)
HOLDOUT = Option(
    help="Also print the score of the result on samples outside all subsets. FRACTION is their number relative to a "
    "subset.",
    metavar="FRACTION",
)
PLOT = Option(
    help="Plot the length scale of each feature into a .png, .pdf or .svg file.", metavar="FILE", place="write"
)
RESUME = Option(
    help="Skip the work if this command already wrote --out. Otherwise, continue a search on all samples from "
    "OUT.checkpoint, reuse the finished kernels of a comparison from OUT.kernels, and start a search on subsets again."
)
REFINING = Group("With --refine")
REFINE = Part(
    "refine",
    "After the subsets, refine the result on all samples: a few steps along stochastic gradients of the full marginal "
    "likelihood. Held-out samples decide whether the refined values are kept.",
    implied_by=("refine_only",),
    prefix="refine_",
    group=REFINING,
)
NOISE_MODEL = Option(
    help="Let the noise depend on the inputs. linear: the logarithm of its variance is linear in the inputs; gp: it "
    "is a Gaussian process; auto: the best on held-out samples, or no dependence. It is tuned with the kernel on "
    "a subset. `dkgp train` and later commands use it."
)
MEAN_TO_TRAIN = replace(
    MEAN,
    help="Prior mean for `dkgp train --mean`. For a polynomial of degree 0, 1 or 2, tuning maximises the restricted "
    "likelihood, which does not depend on its coefficients. M: the known mean, in the target's units.",
)
REFINE_ONLY = Option(help="Only refine the values of `start`, without a search on subsets.", group=REFINING)

# Ranges that depend on the number of samples are checked for this largest number.
MANY_SAMPLES = 2**31
# Options that apply only to a search on subsets.
OF_SUBSETS = ("subset", "subsets", "folds", "holdout")


@command(
    """
    --objective selects the criterion: the likelihood of subsets, or the likelihood of a sparse model on all samples.
    Length scales and noise refer to standardised features and targets. The command runs on the threads of this process
    unless you select a cluster; the result is bit-identical everywhere.
    """,
    "dkgp tune train.zarr --out hyper.json --kernel rbf --subset 2000",
    "dkgp tune train.zarr --out hyper.json --subsets 4 --plot scales.png --folds 10",
    "dkgp tune train.zarr --out hyper.json --kernel 'matern32 + linear' --objective loo",
    "dkgp tune train.zarr --out hyper.json --bounds 'gamma*=0.001:10' --fix noise_variance=0.01",
    "dkgp tune train.zarr --out better.json --start hyper.json --prior 'gamma*=lognormal(0.1, 1)'",
    "dkgp tune train.zarr --out hyper.json --refine --refine-steps 10",
    "dkgp tune train.zarr --out hyper.json --objective bound --basis-size 500",
    "dkgp tune labelled.zarr --out hyper.json --likelihood logit --folds 10",
)
@dataclass(frozen=True)
class TuneJob:
    """Hyperparameters to tune: the parameters of `dkgp.models.tune_dataset`, and the output."""

    dataset: Annotated[str, DATASET]
    out: Annotated[str, OUT]
    kernel: Annotated[str | None, KERNEL] = None
    kernel_seconds: Annotated[float, KERNEL_SECONDS] = 120.0
    subset: Annotated[int, SUBSET] = 2000
    subsets: Annotated[int, SUBSETS] = 1
    all_samples: Annotated[Literal["auto", "none"], ALL_SAMPLES] = "auto"
    all_samples_seconds: Annotated[float | None, ALL_SAMPLES_SECONDS] = None
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
    mean: Annotated[MeanValue, MEAN_TO_TRAIN] = "centred"
    seed: Annotated[int, SEED] = 0
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    @property
    def evidence(self) -> Evidence | None:
        """The sparse model's evidence to maximise on all samples; None for a search on subsets."""
        name = self.objective
        return name if name == "bound" or name == "fitc" or name == "vif" else None

    @property
    def goes_beyond(self) -> bool:
        """True if other candidates than the subset's optimum are compared on held-out samples."""
        default = type(self)
        plain = all(getattr(self, name) == getattr(default, name) for name in (*OF_SUBSETS, "objective", "likelihood"))
        return (
            self.all_samples == "auto"
            and plain
            and self.refine is None
            and self.noise_model == "none"
            and self.mean == "centred"
        )

    @property
    def of_subsets(self) -> ObjectiveName:
        """The objective of a search on subsets."""
        return "loo" if self.objective == "loo" else "likelihood"

    @property
    def of_labels(self) -> LabelLikelihood | None:
        """The likelihood of labels; None for a regression."""
        name = self.likelihood
        return name if name == "logit" or name == "probit" or name == "softmax" else None

    @property
    def of_noise(self) -> NoiseLikelihood:
        """The distribution of a regression's noise."""
        name = self.likelihood
        return name if name == "student-t" or name == "auto" else "gaussian"

    @property
    def checkpoint_url(self) -> str | None:
        """The checkpoint's URL, for a search on all samples; otherwise None."""
        return None if self.evidence is None else f"{self.out}.checkpoint"

    @property
    def comparison_url(self) -> str:
        """The URL of the finished kernels of a comparison that is not complete."""
        return f"{self.out}.kernels"

    def check(self) -> None:
        """Refuse contradictory or misspelled options; `UsageError`, or `InputError` for a range."""
        self.named()
        self.search()
        plan_subsets(MANY_SAMPLES, self.subset, subsets=self.subsets, seed=self.seed, holdout=self.holdout)
        check_folds(self.folds, self.subset)
        self._check_evidence()
        if self.of_labels is not None and self.objective not in ("likelihood", "vif"):
            raise UsageError(
                f"`objective` {self.objective} is for regressions. For labels, leave it out: `likelihood` maximises "
                f"their evidence, on subsets or by `objective` vif on all samples"
            )
        if self.of_labels == "softmax" and self.evidence is not None:
            raise UsageError(
                "`objective` vif treats each class against the rest, and `likelihood` softmax couples the classes. "
                "Choose `likelihood` logit, or leave `objective` out"
            )
        if self.of_labels is not None and self.refine is not None:
            raise UsageError("`refine` is for regressions; leave it out with the `likelihood` of labels")
        self._check_mean()
        self._check_noise("noise_model", self.noise_model, "none")
        self._check_noise("likelihood", self.of_noise, "gaussian")
        if self.noise_model != "none" and self.of_noise != "gaussian":
            raise UsageError(
                f"`noise_model` {self.noise_model} needs normal noise; leave it out with `likelihood` {self.of_noise}"
            )
        if not self.refine_only:
            return
        if self.refine is None:
            raise UsageError("`refine_only` needs `refine`; give both")
        if self.start is None:
            raise UsageError("`refine_only` refines the values of a file; give it with `start` FILE")
        if self.kernel is not None:
            raise UsageError("`refine_only` refines the kernel of `start`; leave `kernel` out")

    def _check_mean(self) -> None:
        """Refuse a mean other than the average if the objective or the model does not support one."""
        for name, changed in {
            "likelihood": self.likelihood is not None,
            "objective": self.objective != "likelihood",
            "refine": self.refine is not None,
            "noise_model": self.noise_model != "none",
            "folds": self.folds is not None,
            "holdout": self.holdout is not None,
            "kernel": self.kernel == "auto",
        }.items():
            if self.mean != "centred" and changed:
                value = "" if name in ("refine", "folds", "holdout") else f" {getattr(self, name)}"
                raise UsageError(
                    f"`mean` {self.mean} needs the marginal likelihood of subsets; leave out `{name}`{value}, or `mean`"
                )

    def _check_noise(self, name: str, value: str, plain: str) -> None:
        """Refuse non-Gaussian or input-dependent noise for labels, a sparse model's evidence, or fixed noise."""
        if value == plain:
            return
        if self.of_labels is not None:
            raise UsageError(f"`{name}` is for regressions; leave it out with the `likelihood` of labels")
        if self.evidence is not None:
            raise UsageError(
                f"`objective` {self.objective} is for sparse models, which assume normal noise with the same variance "
                f"everywhere; leave it out with `{name}` {value}"
            )
        if any(matches(name, NOISE_NAME) for name in parse_fixed(self.fixed)):
            raise UsageError(f"`{name}` {value} tunes the noise, and `fixed` fixes it; leave one of them out")

    def _check_evidence(self) -> None:
        """Refuse options of subsets for a search on all samples, and vice versa."""
        if self.evidence is None and self.basis_size is not None:
            raise UsageError(
                f"`basis_size` is for the objectives {', '.join(EVIDENCES)}; got {self.objective}, which uses "
                f"subsets. Choose one of them, or leave `basis_size` out"
            )
        for name in OF_SUBSETS if self.evidence is not None else ():
            if getattr(self, name) != getattr(type(self), name):
                raise UsageError(
                    f"`objective` {self.objective} uses all samples; leave out `{name}`, which is for subsets"
                )

    def named(self) -> dict[str, Any]:
        """Parse the options for single hyperparameters, for `tune_dataset`; `UsageError` for a malformed value."""
        return {
            "bounds": parse_bounds(self.bounds),
            "fixed": parse_fixed(self.fixed),
            "priors": parse_priors(self.priors),
        }

    def choices(self, start: Hyperparameters | None) -> Choices:
        """Return the kernel, objective and constraints of a search that starts from these hyperparameters."""
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
        """Return the settings of the search and its progress callback."""
        return SearchSettings(self.seed, self.learn_variance, self.tolerance, self.restarts, progress=progress)
