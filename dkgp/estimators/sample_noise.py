"""Known noise variances, or weights, of the samples that `fit` and `update` are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.data import Dataset, ModelRecord
from dkgp.data.stores.standardisation import standardised_noise
from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.inputs import is_dask, is_dask_frame, is_plain, numbers_of, take_rows
from dkgp.models.noise import Noise, NoiseModel, check_relative

BOTH = "noise is told of the samples, and reckoned by a noise model or Student's t; leave one of them out"

# A sample's noise s2 / w is kept as a difference from s2, so that rounding changes it by up to w 2^-52 of itself.
LARGEST_WEIGHT = 1e12


@dataclass(frozen=True)
class SampleNoise:
    """Known noise variances (n,), in the target's units squared, or what s2 is multiplied by (n,): one over weights.

    None of what is not told. A weight of zero is an infinite multiple.
    """

    variances: FloatArray | None = None
    relative: FloatArray | None = None

    @classmethod
    def of(cls, sample_noise: Any = None, sample_weight: Any = None, relative_noise: Any = None) -> SampleNoise:
        """Check variances, weights, or one over weights; `InputError` for wrong values, or several of these."""
        if relative_noise is not None:
            if sample_noise is not None or sample_weight is not None:
                raise InputError(
                    "relative_noise is one over sample_weight, and sample_noise the variances themselves; give one of "
                    "them"
                )
            relative = numbers_of(relative_noise, "relative_noise")
            check_relative(relative, relative.size)
            return cls(None, relative)
        if sample_noise is not None and sample_weight is not None:
            raise InputError(
                "sample_noise and sample_weight both tell the samples' noise: the first as variances, the second as "
                "what divides the common one. Leave one of them out"
            )
        variances = _checked(sample_noise, "sample_noise", "variances in the target's units squared")
        weights = _checked(sample_weight, "sample_weight", "weights")
        if weights is not None and weights.size and not weights.any():
            raise InputError("sample_weight is zero for every sample; expected a positive weight for some")
        if weights is None:
            return cls(variances)
        with np.errstate(divide="ignore", over="ignore"):
            return cls(None, 1.0 / weights)

    def without_weightless(self, X: Any, y: Any) -> tuple[Any, Any, SampleNoise]:
        """Inputs and targets without the samples of weight zero, and the noise of the others.

        Raises `InputError` for labelled inputs and stores, of which none can be left out here.
        """
        if self.relative is None or np.isfinite(self.relative).all():
            return X, y, self
        if is_dask_frame(X) or not (is_plain(X) or is_dask(X)):
            raise InputError(
                f"sample_weight is zero for sample {int(np.argmax(self.relative))}; leave such samples out of X, which "
                f"is of type {type(X).__name__}, or give them as arrays"
            )
        self.require(np.shape(X)[0])
        kept = np.flatnonzero(np.isfinite(self.relative))
        return take_rows(X, kept), take_rows(y, kept), SampleNoise(None, self.relative[kept])

    def require(self, n: int) -> None:
        """Refuse noise of another number of samples; `InputError`."""
        for name, values in (("sample_noise", self.variances), ("sample_weight", self.relative)):
            if values is not None and values.shape != (n,):
                raise InputError(f"{name} has shape {values.shape}; expected ({n},), a value for each sample")

    def require_one_target(self, n_targets: int) -> None:
        """Refuse variances of several targets, `InputError`."""
        if self.variances is not None and n_targets != 1:
            raise InputError(
                f"sample_noise is in the units of one target, and there are {n_targets}, each with its own scale. Give "
                "(n, p), a column for each, or sample_weight, which has no units"
            )

    def of_dataset(self, dataset: Dataset) -> None:
        """Check against a training set; `InputError`."""
        self.require(dataset.n_samples)
        self.require_one_target(dataset.n_targets)
        if self.relative is not None and dataset.noise_name is not None:
            raise InputError(
                f"'{dataset.url}' has a column of known noise, '{dataset.noise_name}'; leave sample_weight out"
            )

    def known(self, target_std: FloatArray) -> FloatArray | None:
        """The variances, standardised: (n,)."""
        return None if self.variances is None else standardised_noise(self.variances, target_std)

    @property
    def multiples(self) -> FloatArray | None:
        """The multiple of s2 that each sample has; None where that is one for all."""
        return None if self.relative is None or (self.relative == 1.0).all() else self.relative

    def beside(self, noise_variance: float, target_std: FloatArray) -> FloatArray | None:
        """Return each sample's noise less s2, standardised, below zero for a weight above one: (n,).

        Raises `InputError` for weights whose noise float64 does not keep as a difference from s2.
        """
        if self.relative is None:
            return self.known(target_std)
        if self.multiples is None:
            return None
        with np.errstate(over="ignore"):
            noise = noise_variance * self.multiples
            weights = 1.0 / self.multiples
        if (beyond := (weights > LARGEST_WEIGHT) | np.isinf(noise)).any():
            row = int(np.argmax(beyond))
            raise InputError(
                f"sample_weight is {weights[row]:.3g} for sample {row}; expected weights of at most "
                f"{LARGEST_WEIGHT:g}, and noise_variance / sample_weight within float64 (noise_variance is "
                f"{noise_variance:.3g}). A larger weight leaves no digits of the sample's noise beside noise_variance. "
                "Divide all weights by a common number, and give noise_variance divided by the same number"
            )
        return np.asarray(noise_variance * (self.multiples - 1.0))

    def appended(self, record: ModelRecord, dataset: Dataset) -> Noise:
        """Return the noise of a model's samples and, after them, of the new samples that this noise is for.

        Raises `InputError` where the user gives it and the model has a noise model.
        """
        known, noise = self.beside(record.noise_variance, record.standardisation.target_std), Noise.of_model(record)
        n, law = record.n_samples, noise.law
        if isinstance(law, NoiseModel):
            if known is not None:
                raise InputError(BOTH)
            known = law.beyond_least(dataset.inputs(n, dataset.n_samples))
        return noise.append(n, known, dataset.n_samples - n)


def _checked(values: Any, name: str, what: str) -> FloatArray | None:
    if values is None:
        return None
    array = numbers_of(values, name)
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; expected (n,), a value for each sample")
    odd = ~(np.isfinite(array) & (array >= 0.0))
    if odd.any():
        row = int(np.argmax(odd))
        raise InputError(
            f"{name} is {array[row]} for sample {row}; expected {what}, finite and not negative. Leave samples out "
            "that nothing is known of"
        )
    return array
