"""The job that `dkgp classify` is: what is asked for, and what of it does not go together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from dkgp.cluster import ClusterOptions
from dkgp.data.stores.classifier.classifier_store import ClassifierForm
from dkgp.errors import InputError, UsageError
from dkgp.models.classification.exact.train import DECISION_TOLERANCE
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.likelihoods import Link, MultiClass
from dkgp.solvers.registry import AUTO

__all__ = ["BALANCED", "ClassifyJob"]

BALANCED = "balanced"


@dataclass(frozen=True)
class ClassifyJob:
    """A classifier to train: labels, method, hyperparameters, and where everything goes.

    Attributes
    ----------
    dataset, out
        Dataset store with labels, and where the model goes.
    method
        "fixed-size" (LS-SVM of a few prototypes), "exact" (LS-SVM of all samples), "logistic" (kernel logistic
        regression) or "gp" (Gaussian process classification), of all samples or on a basis.
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
        Of one of all samples: the name of a solver of its method or "auto", how near decisions are to be to the exact
        ones, and effort after which to stop short of that.
    tree_error
        Of one of all samples: take kernel products by a tree, each entry good to this.
    by_reference
        Let one of all samples refer to the dataset store instead of copying its inputs.
    link, multi_class
        Of a logistic one or a Gaussian process: "logit" or "probit"; "softmax" or "ovr" for several classes, by default
        the first for "logistic" and the second for "gp".
    regularisation
        Of a logistic one: lambda.
    gap
        Of a logistic one or a Gaussian process of all samples: a proven relative gap of the risk to stop at instead of
        `tolerance`.
    basis_size, basis, certify
        Of a logistic one or a Gaussian process on a basis: how many samples it has, which, and whether the distance to
        the minimiser over all functions is proven.
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
    as_in_the_paper
        Take a fixed-size one's settings from its paper: true for all that are at their defaults, or those that it
        decides; see `dkgp.commands.presets`.
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
    tree_error: float | None = None
    link: Link = "logit"
    multi_class: MultiClass | None = None
    regularisation: float = 1.0
    gap: float | None = None
    basis_size: int | None = None
    basis: str | None = None
    certify: bool = False
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    checkpoint: str | None = None
    checkpoint_seconds: float = 30.0
    resume: bool = False
    memory_limit_bytes: int | None = None
    plot: str | None = None
    log_json: str | None = None
    overwrite: bool = False
    as_in_the_paper: bool | tuple[str, ...] = False

    @property
    def checkpoint_url(self) -> str:
        """The place of checkpoints."""
        return self.checkpoint or f"{self.out.rstrip('/')}.checkpoint"

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
