"""The job of `dkgp tune`, and its options NAME=LOW:HIGH, NAME=VALUE, NAME=lognormal(MEDIAN, SIGMA)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from dkgp.cluster import ClusterOptions
from dkgp.errors import InputError, UsageError
from dkgp.models.refinement.record import RefineSettings
from dkgp.models.sparse.bound.search import Evidence
from dkgp.models.tuning.priors import LogNormal, as_prior
from dkgp.models.tuning.tasks import LabelLikelihood, Objective

__all__ = ["TuneJob", "parse_bounds", "parse_fixed", "parse_priors"]


@dataclass(frozen=True)
class TuneJob:
    """Hyperparameters to tune; the rest as the parameters of `dkgp.models.tune_dataset`.

    Parameters
    ----------
    dataset, out
        The training store, and where the hyperparameter file goes.
    kernel
        An expression (`dkgp.kernels.parse_kernel`); default: the kernel of `start`, else "rbf".
    subset, subsets, objective, restarts, learn_variance, tolerance, seed
        As for `tune_dataset`.
    bounds, fixed, priors
        Texts NAME=LOW:HIGH, NAME=VALUE and NAME=lognormal(MEDIAN, SIGMA).
    likelihood
        Of labels: maximise their evidence by a Gaussian process classifier, in Laplace's approximation. Without it
        labels are tuned as a regression on signs.
    basis_size
        Of the objectives "bound" and "fitc", which are of all samples: m; at most 1,000 by default.
    start
        A hyperparameter file to start from.
    folds, holdout
        How the result is scored; not at all by default.
    refine, refine_only
        How the result is refined on all samples, where it is; without a search on subsets, from the values of `start`.
    plot
        Picture of the length scales.
    overwrite
        Replace outputs that exist.
    resume
        Take the file at `out` for done where the same run has finished it. A search on all samples goes on from its
        checkpoint, to the same bits; one on subsets begins again.
    cluster
        Where the subsets are evaluated.
    """

    dataset: str
    out: str
    kernel: str | None = None
    subset: int = 2000
    subsets: int = 1
    objective: Literal["likelihood", "loo", "bound", "fitc"] = "likelihood"
    likelihood: LabelLikelihood | None = None
    basis_size: int | None = None
    restarts: int = 1
    learn_variance: bool = False
    bounds: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    priors: tuple[str, ...] = ()
    start: str | None = None
    folds: int | None = None
    holdout: float | None = None
    tolerance: float = 1e-4
    seed: int = 0
    refine: RefineSettings | None = None
    refine_only: bool = False
    plot: str | None = None
    overwrite: bool = False
    resume: bool = False
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    @property
    def evidence(self) -> Evidence | None:
        """The sparse model's evidence that is maximised on all samples; None of a search on subsets."""
        return self.objective if self.objective == "bound" or self.objective == "fitc" else None

    @property
    def of_subsets(self) -> Objective:
        """The objective of a search on subsets."""
        return "loo" if self.objective == "loo" else "likelihood"

    @property
    def checkpoint_url(self) -> str | None:
        """The checkpoint's place, of a search on all samples."""
        return None if self.evidence is None else f"{self.out}.checkpoint"

    def named(self) -> dict[str, Any]:
        """Parse the options that name single hyperparameters, for `tune_dataset`; `UsageError` for another form."""
        return {
            "bounds": parse_bounds(self.bounds),
            "fixed": parse_fixed(self.fixed),
            "priors": parse_priors(self.priors),
        }


def parse_bounds(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Read `NAME=LOW:HIGH`; `UsageError` for another form or values that are no bounds."""
    found = {}
    for name, value in _pairs("--bounds", texts, "NAME=LOW:HIGH, such as 'gamma*=0.01:10'"):
        low, separator, high = value.partition(":")
        if not separator:
            raise UsageError(f"--bounds expects NAME=LOW:HIGH, such as 'gamma*=0.01:10'; got '{name}={value}'")
        bounds = _number("--bounds", name, low), _number("--bounds", name, high)
        if not bounds[0] < bounds[1]:
            raise UsageError(f"--bounds {name}: LOW must be below HIGH; got {value}")
        found[name] = bounds
    return found


def parse_fixed(texts: Iterable[str]) -> dict[str, float]:
    """Read `NAME=VALUE`; `UsageError` for another form or a value that is not positive."""
    pairs = _pairs("--fix", texts, "NAME=VALUE, such as noise_variance=0.01")
    return {name: _number("--fix", name, value) for name, value in pairs}


def parse_priors(texts: Iterable[str]) -> dict[str, LogNormal]:
    """Read `NAME=lognormal(MEDIAN, SIGMA)`; `UsageError` for another form or values that are not positive."""
    found = {}
    for name, value in _pairs("--prior", texts, "NAME=lognormal(MEDIAN, SIGMA), such as 'gamma*=lognormal(0.1, 1)'"):
        try:
            found[name] = as_prior(value)
        except InputError as error:
            raise UsageError(f"--prior {name}: {error}") from None
    return found


def _pairs(option: str, texts: Iterable[str], form: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not (name and separator and value):
            raise UsageError(f"{option} expects {form}; got '{text}'")
        if any(name == other for other, _ in pairs):
            raise UsageError(f"{option} is given twice for '{name}'; give it once")
        pairs.append((name, value))
    return pairs


def _number(option: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0.0):
        raise UsageError(f"{option} {name}: expected a positive number; got '{text.strip()}'")
    return number
