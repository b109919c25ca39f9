"""A regression problem: samples, kernel, noise and mean, from which training, tuning and a plan start."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from dkgp.codec import to_json
from dkgp.data import Dataset, ModelRecord
from dkgp.errors import InputError
from dkgp.kernels import Kernel
from dkgp.models.context import RunContext
from dkgp.models.mean_option import MeanValue
from dkgp.models.noise import Noise, StudentT
from dkgp.models.trend import CENTRED, Drift
from dkgp.operators import BlockedKernelOperator
from dkgp.operators.base import FloatArray
from dkgp.operators.product_error import EVERY_ENTRY, ProductError
from dkgp.solvers.cholesky.tile_factor import digest


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples, kernel, noise and mean of a regression; white noise of the kernel is moved into the noise.

    Targets are standardised about the mean if it is a known number.

    Parameters
    ----------
    dataset : Dataset
        The training set, standardised.
    kernel : Kernel
    noise : Noise
        On the scale of the standardised targets.
    mean : Drift
    """

    dataset: Dataset
    kernel: Kernel
    noise: Noise
    mean: Drift = CENTRED

    def __post_init__(self) -> None:
        kernel, noise = self.noise.without_white(self.kernel)
        object.__setattr__(self, "dataset", self.mean.about(self.dataset))
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "noise", noise)

    @classmethod
    def of(cls, dataset: Dataset, kernel: Kernel, noise: float | Noise, mean: Drift | MeanValue = CENTRED) -> Self:
        """Return a checked problem, with the known noise of the data set unless `noise` has its own.

        Raises `InputError`: no targets, white noise that cannot be told from the rest of the kernel, noise that does
        not fit the samples, or an unknown mean.
        """
        if dataset.n_targets == 0:
            raise InputError(
                f"'{dataset.url}' has no targets; training needs at least one. Ingest the data again and name it"
            )
        drift = Drift.parse(mean).over(dataset)
        problem = cls(dataset, kernel, Noise.of(noise), drift)
        return cls(dataset, problem.kernel, problem.noise.beside(dataset).checked(dataset.n_samples), drift)

    @property
    def columns(self) -> int:
        """Number of right-hand sides: p targets and q columns of the mean."""
        return self.dataset.n_targets + self.mean.count(self.dataset.n_features)

    @cached_property
    def targets(self) -> FloatArray:
        """Standardised targets: (n, p)."""
        return self.dataset.all_targets()

    @cached_property
    def right_hand_sides(self) -> FloatArray:
        """[y, H], the targets and the columns of the mean: (n, p + q).

        Raises `InputError` if the columns of the mean depend on each other.
        """
        return np.column_stack([self.targets, self.require_columns()]) if self.mean.is_fitted else self.targets

    def require_columns(self) -> FloatArray:
        """Return H, the columns of the mean (n, q); `InputError` if they depend on each other."""
        columns = self.mean.of(self.dataset)
        self.mean.require_independent(columns, self.dataset.feature_names)
        return columns

    def operator(self, context: RunContext, **options: Any) -> BlockedKernelOperator:
        """Return Kbar of the samples, to be opened by `with`; options as for `RunContext.operator`."""
        return context.operator(self.kernel, self.noise.diagonal, self.dataset, **options)

    def identity(self, product_error: ProductError = EVERY_ENTRY) -> dict[str, Any]:
        """Return the identity of a training run: a checkpoint serves only runs with the same one.

        Known noise is represented by the SHA-256 of its variances, that of Student's t by the distribution.
        """
        law = self.noise.law
        return {
            "fingerprint": self.dataset.fingerprint,
            "kernel": self.kernel.to_json(),
            "noise_variance": float(self.noise.common),
            **({} if self.mean == CENTRED else {"mean": self.mean.to_json()}),
            **({"student_t": to_json(law)} if isinstance(law, StudentT) else _known_noise(self.noise.by_sample)),
            **product_error.record(self.kernel, self.dataset.n_samples),
        }


def stored_identity(model: ModelRecord) -> dict[str, Any]:
    """Return the identity of the problem that a stored exact model solves; see `Problem.identity`."""
    facts = {"fingerprint": model.fingerprint, "kernel": model.kernel, "noise_variance": model.noise_variance}
    student = model.summary.get("student_t")
    facts |= _known_noise(model.sample_noise) if student is None else {"student_t": student}
    mean = Drift.from_model(model)
    return facts | ({} if mean == CENTRED else {"mean": mean.to_json()})


def _known_noise(known: FloatArray | None) -> dict[str, str]:
    return {} if known is None else {"sample_noise": digest(np.ravel(known))}
