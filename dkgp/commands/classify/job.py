"""The job that `dkgp classify` is: what is asked for, and what of it does not go together."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from dkgp.cluster import ClusterOptions
from dkgp.data.stores.classifier.classifier_store import ClassifierForm
from dkgp.errors import InputError, UsageError
from dkgp.models.classification.exact.train import DECISION_TOLERANCE
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.prototypes import PROTOTYPES
from dkgp.solvers.registry import AUTO, solver_names

__all__ = ["BALANCED", "FIXED_SIZE_ALONE", "ClassifyJob"]

BALANCED = "balanced"
METHODS: tuple[str, ...] = get_args(ClassifierForm)
# Settings that an exact one has no use for.
FIXED_SIZE_ALONE = (
    "pool",
    "prototypes",
    "max_basis",
    "candidates",
    "folds",
    "search",
    "cardinality",
    "noise_variances",
    "stop",
)
DEFAULTS = {each.name: each.default for each in fields(FixedSizeSettings)}


@dataclass(frozen=True)
class ClassifyJob:
    """A classifier to train: labels, method, hyperparameters, and where everything goes.

    Attributes
    ----------
    dataset, out
        Dataset store with labels, and where the model goes.
    method
        "fixed-size" (a few prototypes) or "exact" (all samples).
    hyper
        Hyperparameter file; None: found from the labels.
    given_noise
        Take the noise variance of `hyper` as it is, of a fixed-size one; otherwise the kernel alone.
    settings
        Of a fixed-size one; of an exact one `isotropic`, `intercept` (any but "none" is the one that it has),
        `probability` and `seed` count.
    class_weight
        "balanced" alone, or "NAME=W" for classes of a weight other than one.
    solver, tolerance, max_passes, max_seconds
        Of an exact one: a solver's name or "auto", how near decisions are to be to the exact ones, and effort after
        which to stop short of that.
    by_reference
        Let an exact one refer to the dataset store instead of copying its inputs.
    cluster
        Where the work runs.
    checkpoint, checkpoint_seconds, resume
        Where (default: `OUT.checkpoint`) and how often to save the state; whether to go on from what is there.
    memory_limit_bytes
        What the processes on this machine may take; default: what is available.
    plot, log_json
        Files for the plot and the records of the run.
    overwrite
        Whether outputs that are there may be replaced.
    """

    dataset: str
    out: str
    method: ClassifierForm = "fixed-size"
    hyper: str | None = None
    given_noise: bool = False
    settings: FixedSizeSettings = field(default_factory=FixedSizeSettings)
    class_weight: tuple[str, ...] = ()
    solver: str = AUTO
    tolerance: float = DECISION_TOLERANCE
    max_passes: float | None = None
    max_seconds: float | None = None
    by_reference: bool = False
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    checkpoint: str | None = None
    checkpoint_seconds: float = 30.0
    resume: bool = False
    memory_limit_bytes: int | None = None
    plot: str | None = None
    log_json: str | None = None
    overwrite: bool = False

    @property
    def checkpoint_url(self) -> str:
        """The place of checkpoints."""
        return self.checkpoint or f"{self.out.rstrip('/')}.checkpoint"

    @property
    def is_exact(self) -> bool:
        """True for a model of all samples."""
        return self.method == "exact"

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
        if BALANCED in self.class_weight:
            if len(self.class_weight) > 1:
                raise UsageError("`class_weight` balanced weighs all classes; leave out the others, or balanced")
            return "balanced"
        found: dict[str, float] = {}
        for text in self.class_weight:
            # A class may have a "=" in its name; a weight has none.
            name, separator, value = text.rpartition("=")
            try:
                weight = float(value)
            except ValueError:
                separator, weight = "", math.nan
            if not separator:
                raise UsageError(f"`class_weight` is balanced, or NAME=WEIGHT such as yes=2.5; got '{text}'")
            if name in found:
                raise UsageError(f"`class_weight` has the class '{name}' twice; give it once")
            if not (math.isfinite(weight) and weight > 0.0):
                raise InputError(f"`class_weight` must be positive and finite; got {value} for the class '{name}'")
            found[name] = weight
        return found

    def check(self) -> None:
        """Refuse what can be seen to be wrong without the data.

        Raises
        ------
        UsageError
            Options that do not go together.
        InputError
            A value out of range.
        """
        if self.method not in METHODS:
            raise InputError(f"`method` must be one of {', '.join(METHODS)}; got '{self.method}'")
        if self.settings.prototypes not in PROTOTYPES:
            raise InputError(f"`prototypes` must be one of {', '.join(PROTOTYPES)}; got '{self.settings.prototypes}'")
        if self.settings.seed < 0:
            raise InputError(f"`seed` must not be negative; got {self.settings.seed}")
        if self.solver not in (AUTO, *solver_names()):
            raise InputError(f"`solver` must be one of {', '.join((AUTO, *solver_names()))}; got '{self.solver}'")
        if not (math.isfinite(self.tolerance) and self.tolerance > 0.0):
            raise InputError(f"`tolerance` must be positive and finite; got {self.tolerance}")
        for name in ("max_passes", "max_seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0.0:
                raise InputError(f"`{name}` must be positive; got {limit}")
        if self.given_noise and self.hyper is None:
            raise UsageError("`given_noise` is that of `hyper`; give it, or leave `given_noise` out")
        if self.given_noise and self.settings.noise_variances is not None:
            raise UsageError("`given_noise` and `noise_variances` both say which noise to take; leave one of them out")
        other = {
            "solver": self.solver != AUTO,
            "tolerance": self.tolerance != DECISION_TOLERANCE,
            "max_passes": self.max_passes is not None,
            "max_seconds": self.max_seconds is not None,
            "by_reference": self.by_reference,
        }
        if self.is_exact:
            other = {name: getattr(self.settings, name) != DEFAULTS[name] for name in FIXED_SIZE_ALONE}
            other["given_noise"] = self.given_noise
            if self.settings.intercept == "selected":
                raise UsageError("`intercept` selected competes with prototypes; `method` exact has none of them")
        for name, given in other.items():
            if given:
                method = "fixed-size" if self.is_exact else "exact"
                raise UsageError(f"`{name}` belongs to `method` {method}; choose that, or leave it out")
        _ = self.weights_by_class

    def identity(self) -> dict[str, Any]:
        """Return what determines the model beside data and hyperparameters."""
        settings = asdict(self.settings)
        if self.is_exact:
            kept = {name: settings[name] for name in ("isotropic", "probability", "seed")}
            own = {**kept, "intercept": self.fit_intercept, "tolerance": self.tolerance, "solver": self.solver}
        else:
            own = {**settings, "given_noise": self.given_noise}
        return {"method": self.method, "class_weight": sorted(self.class_weight), **own}
