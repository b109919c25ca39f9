"""Hyperparameters: the kernel, the noise variance, the record of their tuning, and their file format.

The file is JSON, on the standardised scale: `{"kernel": {"type": "rbf", "variance": 1.0, "gamma": [...]},
"noise_variance": 0.01, "log_marginal_likelihood": ..., ...}`. Only the kernel and the noise variance are required, so
a file can be written by hand.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.codec import from_json, rule, to_json
from dkgp.data.remote.storage import exists, read_object, write_object
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import MOST_DESCRIPTION_BYTES
from dkgp.data.types import Location
from dkgp.errors import InputError, OutputExistsError, StorageError
from dkgp.kernels import Kernel, SquaredExponential, fold_white
from dkgp.models.noise import Noise, NoiseModel, StudentT

Side: TypeAlias = Literal["lower", "upper"]
# Parameters whose least value switches off a feature or a part of a sum.
_SWITCHED_OFF = ("gamma", "weight", "variance", "scale", "offset")
_NOTHING = 1e-4
# A gamma whose length scale is 300 deviations: it moves a kernel by 1e-4 between samples four deviations apart.
_FLAT = 1.0 / (2.0 * 300.0**2)


@dataclass(frozen=True)
class TunedParameter:
    """A hyperparameter, where its search started and how far it could go; on the standardised scale.

    Attributes
    ----------
    name : str
        Name of the parameter in `bounds`, `fixed` and `priors`, such as `gamma.lat` or `noise_variance`.
    value, start, lower, upper : float
        A value of zero means a gamma that was switched off.
    feature : str or None
        Name of the parameter's feature, if it has one.
    fixed : bool
        Whether it was fixed at its value.
    bound : {"lower", "upper"} or None
        The bound that the value lies on, if any.
    pressed : bool
        Whether the objective increases beyond that bound, so that the bound stopped the search.
    """

    omits_none: ClassVar = True

    name: str
    value: float
    start: float
    lower: float
    upper: float
    feature: str | None = None
    fixed: bool = field(default=False, metadata=rule(omit_default=True))
    bound: Side | None = None
    pressed: bool = field(default=False, metadata=rule(omit_default=True))

    def __post_init__(self) -> None:
        for name in ("value", "start", "lower", "upper"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"a tuned parameter needs a finite number `{name}`; got {getattr(self, name)!r}")

    @property
    def idle(self) -> bool:
        """True if the parameter has almost no effect: it is on a bound near zero, or in the flat region before it.

        The likelihood is flat in a length scale of hundreds of deviations, so rounding decides whether a search stops
        there or continues to the bound.
        """
        if self.fixed or self._kind not in _SWITCHED_OFF:
            return False
        return (self.bound == "lower" and self.value <= 1.001 * _NOTHING) or (self.is_gamma and self.value <= _FLAT)

    @property
    def length_scale(self) -> float | None:
        """1 / sqrt(2 gamma) where the parameter is a gamma, in standard deviations of the feature."""
        return length_scale(self.value) if self.is_gamma else None

    @property
    def words(self) -> str:
        """Short description of the value's position; empty in the middle of its range."""
        if self.fixed:
            return "fixed"
        if self.idle:
            return "irrelevant" if self.feature is not None else "not needed"
        return "" if self.bound is None else f"{self.bound} bound"

    @property
    def is_gamma(self) -> bool:
        """True if the parameter is an inverse squared length scale."""
        return self._kind == "gamma"

    @property
    def _kind(self) -> str:
        name = self.name if self.feature is None else self.name.removesuffix(f".{self.feature}")
        return name.rpartition(".")[2]


def stopped(parameters: Iterable[TunedParameter]) -> str:
    """Name in a few words the parameters that bounds kept from an optimum; empty if there are none."""
    held = [f"{item.name} stopped at its {item.bound} bound, {item.value:.3g}" for item in parameters if item.pressed]
    return ", ".join(held[:2]) + (f", and {len(held) - 2} more" if len(held) > 2 else "")


def with_switched_off(
    parameters: Iterable[TunedParameter], before: Iterable[TunedParameter]
) -> tuple[TunedParameter, ...]:
    """Add the gammas that the search `before`, which this one started from, switched off: they are zero still."""
    tuned, before = list(parameters), list(before)
    moved, places = {item.name for item in tuned}, {item.name: place for place, item in enumerate(before)}
    off = [item for item in before if item.is_gamma and item.value == 0.0 and item.name not in moved]
    return tuple(sorted((*tuned, *off), key=lambda item: places.get(item.name, len(places))))


def length_scale(gamma: float) -> float:
    """1 / sqrt(2 gamma); infinite for a gamma that is switched off."""
    return math.inf if gamma == 0.0 else 1.0 / math.sqrt(2.0 * gamma)


@dataclass(frozen=True)
class Hyperparameters:
    """A kernel and a noise variance on the standardised scale, and how they were found.

    Parameters
    ----------
    kernel : Kernel
        The covariance function of the standardised inputs. White noise in it is folded into `noise_variance`.
    noise_variance : float
        s2, the variance of the noise on standardised targets.
    log_marginal_likelihood : float, optional
        Summed over the subsets and the targets, in nats; None where another objective was maximised. This and the
        fields below are None (or empty) where the values were given by hand instead of tuned.
    evaluations : int, optional
        How many times likelihood and gradient were computed.
    seconds : float, optional
        How long tuning took.
    converged : bool, optional
        Whether the tolerance was met, at a point that no bound keeps from being an optimum.
    projected_gradient : float, optional
        The largest derivative by a logarithm, in nats, without those that point out of a bound.
    subset_size, n_samples : int, optional
        How many samples a subset has, and of how many they were drawn.
    subsets : int, optional
        How many subsets' log likelihoods were added.
    objective : str, optional
        Objective that was maximised: "likelihood", or "loo" for the leave-one-out predictive likelihood. For a sparse
        model of all samples it is "bound", the variational bound, or "fitc" or "vif", the model's likelihood.
    likelihood : str, optional
        Of labels, "logit", "probit" or "softmax", whose evidence in Laplace's approximation was maximised; the noise
        variance is then 1 and means nothing. None of a regression.
    leave_one_out_log_likelihood : float, optional
        Summed over the subsets and the targets, in nats, where that was maximised.
    log_prior : float, optional
        Logarithm of the priors at these values, if there were priors.
    parameters : tuple of TunedParameter, optional
        Each of the hyperparameters by name, with its start, its bounds and whether it was fixed.
    scores : dict, optional
        How the values predict: under "folds" and "holdout" each a dict of `rmse`, `nlpd`, `coverage_95` (of
        standardised targets) and `predictions`, their number.
    refinement : dict, optional
        Record of the refinement on all samples: steps, figures of the held-out samples, which values were kept.
    sparse : dict, optional
        Of a sparse model's evidence, where that was maximised: `value` in nats, the `basis_size`, the `samples` that
        are the basis, the share of the samples' variance that it has `left`, and `rounds`, one for each basis.
    comparison : dict, optional
        If the kernel was chosen by held-out samples: that `kernel`, how many `samples` each was tuned on and how
        many were `held_out`, and `kernels`, of each the scores and seconds, and `cut_off` if a time limit ended its
        search; `not_tried`: kernels without a search, if there are any.
    candidates : dict, optional
        If values were chosen by held-out samples: how many were `held_out` (0: leave-one-out predictions judged), the
        `samples` that predicted them, where the values `taken` come from, `candidates`, of each the scores and seconds,
        and `not_tried`, of each the reason.
    noise_model : NoiseModel, optional
        How the noise depends on the inputs; `noise_variance` is then its mean over the subset, for methods without
        noise models.
    student_t : StudentT, optional
        The distribution of the noise, where it is no normal one; `noise_variance` is then its variance.
    noise_comparison : dict, optional
        If the noise model, or its distribution, was chosen by held-out samples: the `kind` taken, how many `samples`
        it was found from and how many were `held_out`, and `kinds`, of each the scores.
    seed : int, optional
        With which they were drawn.
    feature_names : tuple of d str, optional
        The features that `kernel` expects, in its order.
    run : dict, optional
        Fingerprint of the data, and settings other than the defaults: a later run knows by them that all is done.
    warnings : tuple of str
        Messages for the user, such as a parameter on its bound or a tolerance that was not met.

    Raises
    ------
    InputError
        A noise variance that is not positive and finite, a distance in a kernel whose gammas are all zero, white noise
        that cannot be separated from the rest of the kernel, or as many names as the kernel does not have features.
    """

    omits_none: ClassVar = True

    kernel: Kernel
    noise_variance: float
    log_marginal_likelihood: float | None = None
    evaluations: int | None = None
    seconds: float | None = None
    converged: bool | None = None
    projected_gradient: float | None = None
    subset_size: int | None = None
    n_samples: int | None = None
    subsets: int | None = None
    objective: str | None = None
    likelihood: str | None = None
    leave_one_out_log_likelihood: float | None = None
    log_prior: float | None = None
    parameters: tuple[TunedParameter, ...] | None = None
    scores: dict[str, dict[str, Any]] | None = field(default=None, hash=False)
    refinement: dict[str, Any] | None = field(default=None, hash=False)
    sparse: dict[str, Any] | None = field(default=None, hash=False)
    comparison: dict[str, Any] | None = field(default=None, hash=False)
    candidates: dict[str, Any] | None = field(default=None, hash=False)
    noise_model: NoiseModel | None = None
    student_t: StudentT | None = None
    noise_comparison: dict[str, Any] | None = field(default=None, hash=False)
    seed: int | None = None
    feature_names: tuple[str, ...] | None = None
    run: dict[str, Any] | None = field(default=None, hash=False)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kernel, noise_variance = fold_white(self.kernel, _positive("noise_variance", self.noise_variance))
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "noise_variance", noise_variance)
        _require_positive(kernel.to_json())  # a file with other numbers could be written, but not read
        if self.feature_names is not None and len(self.feature_names) != self.n_features:
            raise InputError(
                f"the kernel has {self.n_features} features, but {len(self.feature_names)} feature names are given; "
                "expected one name for each"
            )
        if self.noise_model is not None and self.n_features not in (0, self.noise_model.n_features):
            raise InputError(
                f"the noise model is of {self.noise_model.n_features} features, the kernel of "
                f"{self.n_features}; expected the same. Tune again"
            )

    @property
    def n_features(self) -> int:
        """Number of features d that the kernel expects."""
        return self.kernel.n_features

    @property
    def gamma(self) -> NDArray[np.float64]:
        """gamma_1 .. gamma_d of a squared exponential: (d,) float64. `InputError` for another kernel."""
        if not isinstance(self.kernel, SquaredExponential):
            raise InputError(f"a kernel of type {self.kernel.type_name!r} has no gamma; only 'rbf' has")
        return np.asarray(self.kernel.feature_gamma)

    def noise_of(self, dataset: Dataset) -> Noise:
        """Return the noise to train a data set under; see `dkgp.models.exact.train`.

        Under a noise model s2 is its least variance, and known noise of the data set is added to the model's. Under
        Student's t the noise is that of the first turn of weights, the same for all samples.
        """
        known, model, student = dataset.all_sample_noise(), self.noise_model, self.student_t
        if student is not None:
            return Noise(student.least, np.full(dataset.n_samples, student.scale - student.least), law=student)
        if model is None:
            return Noise(self.noise_variance, known)
        beyond = model.beyond_least_of(dataset)
        return Noise(model.lowest, beyond if known is None else beyond + known, law=model)

    def check_features(self, n_features: int, feature_names: Sequence[str] | None = None) -> None:
        """Make sure that these hyperparameters belong to data with the given features.

        Raises
        ------
        InputError
            Another number of features or, where both sides have names, other names or another order.
        """
        if self.n_features != n_features:
            raise InputError(
                f"the hyperparameters are for {self.n_features} features, but the data have {n_features}"
                f"{_listed(feature_names)}; expected the features that ingestion kept. "
                "Tune on this data set, or give its own hyperparameters"
            )
        if feature_names is None or self.feature_names is None:
            return
        for position, (ours, theirs) in enumerate(zip(self.feature_names, feature_names, strict=True)):
            if ours != theirs:
                raise InputError(
                    f"the hyperparameters were tuned on other features than the data have: at position {position} got "
                    f"'{ours}', expected '{theirs}'. Tune on this data set, or bring the columns into the same order"
                )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` is the inverse. Fields that are None are left out."""
        document: dict[str, Any] = to_json(self)
        return document

    @classmethod
    def from_json(cls, document: object) -> Hyperparameters:
        """Return the hyperparameters that `to_json` wrote, or a user; unknown names are ignored.

        Raises
        ------
        InputError
            A required name is missing, the kernel's type is unknown, or a value is not admissible.
        """
        if isinstance(document, Mapping) and isinstance(document.get("kernel"), Mapping):
            _require_positive(document["kernel"])
        return from_json(cls, document, called="hyperparameters")


def read_hyperparameters(
    location: Location, *, n_features: int | None = None, feature_names: Sequence[str] | None = None
) -> Hyperparameters:
    """Read a hyperparameter file and check it.

    Parameters
    ----------
    location
        A local path or an fsspec URL.
    n_features, feature_names
        The features of the data that the hyperparameters are for; checked where given.

    Raises
    ------
    InputError
        The file is missing, is not JSON, or `Hyperparameters.from_json` or `check_features` rejects its content. The
        message names the file.
    """
    try:
        content = read_object(location, MOST_DESCRIPTION_BYTES)
    except FileNotFoundError:
        raise InputError(
            f"there is no hyperparameter file '{os.fspath(location)}'; write one with `dkgp tune`"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot read the hyperparameter file '{os.fspath(location)}': {error}") from error
    try:
        document = json.loads(content)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            f"the hyperparameter file '{os.fspath(location)}' is not JSON: {error}. Expected a file that `dkgp tune` "
            "writes"
        ) from error
    if isinstance(document, dict) and "command" in document and "kernel" not in document:
        raise InputError(
            f"'{os.fspath(location)}' is the record of a command, not a hyperparameter file. Expected a file that "
            "`dkgp tune` writes"
        )
    try:
        hyperparameters = Hyperparameters.from_json(document)
        expected = len(feature_names) if n_features is None and feature_names is not None else n_features
        if expected is not None:
            hyperparameters.check_features(expected, feature_names)
    except InputError as error:
        raise InputError(f"hyperparameter file '{os.fspath(location)}': {error}") from error
    return hyperparameters


def write_hyperparameters(location: Location, hyperparameters: Hyperparameters, *, overwrite: bool = False) -> None:
    """Write a hyperparameter file; a crash leaves it whole or as it was before.

    Raises
    ------
    OutputExistsError
        The file is there already and `overwrite` is False.
    StorageError
        The storage refused the write.
    """
    if not overwrite and exists(location):
        raise OutputExistsError(
            f"the output '{os.fspath(location)}' already exists. Choose another path, or give `overwrite` to replace it"
        )
    write_object(
        location, (json.dumps(hyperparameters.to_json(), indent=2, allow_nan=False) + "\n").encode(), replace=overwrite
    )


def likelihood_caution(hyperparameters: Hyperparameters, likelihood: str | None) -> str | None:
    """Return a warning if the values were tuned for another likelihood than the given one; None if they fit.

    `likelihood` is "logit", "probit" or "softmax"; None for a regression, such as an LS-SVM.
    """
    tuned = hyperparameters.likelihood
    if hyperparameters.parameters is None or tuned == likelihood:
        return None  # given by hand: only the user knows their purpose
    if likelihood is None:
        return (
            f"the hyperparameters were found for the labels' likelihood '{tuned}', which has no noise: as a "
            f"regression's, with a noise variance of {hyperparameters.noise_variance:g}, they are a guess. Tune "
            "without `likelihood`"
        )
    objective = "a regression on signs" if tuned is None else f"the likelihood '{tuned}'"
    return (
        f"the hyperparameters were found for {objective}; probabilities by the likelihood '{likelihood}' may be too "
        f"sure, or not sure enough. Tune with `likelihood` {likelihood}"
    )


def _positive(name: str, value: object) -> float:
    # JSON's true would pass for 1, and the text "1" for a number.
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise InputError(f"{name} must be a number; got {value!r}")
    number = float(value)
    if not math.isfinite(number) or number <= 0.0:
        raise InputError(f"{name} must be positive and finite; got {number!r}")
    return number


def _require_positive(kernel: Mapping[str, Any]) -> None:
    """Raise `InputError` where a number in the description of a kernel is zero, or negative, and must not be."""
    for parameter in _numbers_of(kernel):
        _positive(*parameter)


def _numbers_of(kernel: Mapping[str, Any], path: str = "") -> list[tuple[str, object]]:
    """Numbers that must be positive in the description of a kernel and of its parts, by name.

    These are amplitudes, and gammas, except zeros, which switch their features off; not all of them may be zero.
    """
    gamma = kernel.get("gamma", [])
    numbers: list[tuple[str, object]] = []
    if isinstance(gamma, list):
        some = any(value != 0 for value in gamma)
        numbers += [(f"{path}gamma[{k}]", value) for k, value in enumerate(gamma) if value != 0 or not some]
    if "variance" in kernel:
        numbers.append((f"{path}variance" if path else "the kernel's variance", kernel["variance"]))
    parts = kernel.get("parts")
    inner = [(f"{path}parts[{index}].", part) for index, part in enumerate(parts if isinstance(parts, list) else [])]
    for place, part in [*inner, (f"{path}kernel.", kernel.get("kernel"))]:
        if isinstance(part, Mapping):
            numbers += _numbers_of(part, place)
    return numbers


def _listed(names: Sequence[str] | None, limit: int = 12) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:limit])
    return f" ({shown}{', ...' if len(names) > limit else ''})"
