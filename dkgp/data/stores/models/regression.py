"""Regressions in a Zarr store: exact models, sparse models and linear models.

An exact model carries its support inputs, so that it predicts without its training set, unless it is saved by
reference. A model that also carries targets and gradient can be trained further. A sparse model predicts from its basis
alone: 8 (2 m^2 + m (d + p)) bytes for m basis samples, and all samples besides if it has neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, Unpack

import numpy as np

from dkgp.codec import rule
from dkgp.data.stores.arrays import StoredArray, target_layout
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.stores.models.model import (
    KernelModel,
    Layout,
    Model,
    SupportedModel,
    TrainingFacts,
    about_model,
    about_training,
    array,
)
from dkgp.data.stores.row_arrays import MemoryArray, RowArray
from dkgp.data.stores.writable import NewStore
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError

MODEL_KIND = "model"
SPARSE_MODEL_KIND = "sparse model"
LINEAR_MODEL_KIND = "linear model"
# The formats of models without an array of known noise, and without coefficients of a mean.
WITHOUT_SAMPLE_NOISE, WITHOUT_TREND = 2, 3


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelRecord(SupportedModel):
    """An exact model.

    Attributes
    ----------
    alpha
        Coefficients, shape (n, p), on the standardised scale; (n, p + q) with those of the q columns of a mean.
    sample_noise
        Known noise variances v_i of the samples, shape (n,), on the same scale: sample i has the noise s2 + v_i. None
        if all samples have s2.
    """

    kind = MODEL_KIND
    title, expected = "An exact model", "an exact one"
    has_variances = True

    alpha: FloatArray = field(metadata=array("sample", "target"))
    sample_noise: FloatArray | None = field(default=None, metadata=array("sample"))
    # Standardised targets y and gradient Kbar alpha - y, if the model has them.
    _targets: RowArray | None = field(default=None, repr=False)
    _gradient: RowArray | FloatArray | None = field(default=None, repr=False)

    @property
    def n_samples(self) -> int:
        """Number of support inputs, n."""
        return int(self.alpha.shape[0])

    @property
    def coefficients(self) -> FloatArray:
        """Coefficients of all samples, `alpha`."""
        return self.alpha

    @property
    def format_version(self) -> int | None:
        """Format of the store. A dkgp that knows no noise by sample, or no mean, must refuse models that have it."""
        if self.trend is not None:
            return None
        return WITHOUT_SAMPLE_NOISE if self.sample_noise is None else WITHOUT_TREND

    @property
    def noise(self) -> float | FloatArray:
        """The noise of the samples, s2 or s2 + v_i (n,)."""
        return self.noise_variance if self.sample_noise is None else self.noise_variance + self.sample_noise

    def training_state(self) -> tuple[Dataset, FloatArray] | None:
        """Return the training set and the float64 gradient Kbar alpha - y, which training goes on from; None without.

        Raises `StoreError` if a chunk is missing or damaged.
        """
        if self._support is None or self._gradient is None:
            return None
        values = self._gradient if isinstance(self._gradient, np.ndarray) else self._gradient.read(0, self.n_samples)
        gradient = values.reshape(self.n_samples, -1)
        if isinstance(self._support, Dataset):
            return self._support, gradient
        if self._targets is None:
            return None
        dataset = assembled_dataset(
            self._support, self._targets, self.standardisation, self.feature_names, self.target_names, self.fingerprint
        )
        return dataset, gradient

    def reads(self, url: str) -> bool:
        """Return True if arrays of the model are read from the store at an address: inputs, or the gradient."""
        return super().reads(url) or (isinstance(self._gradient, StoredArray) and self._gradient.reads(url))

    def in_memory(self) -> Self:
        """Return the model with all its arrays in memory."""
        state = self.training_state()
        if state is None:
            return super().in_memory()
        targets = MemoryArray(state[0].all_targets())
        return replace(super().in_memory(), _targets=targets, _gradient=state[1])

    def alone(self) -> Self:
        """Return the model without its address and its training set, the gradient in memory."""
        state = self.training_state()
        return replace(super().alone(), _targets=None, _gradient=None if state is None else state[1])

    @classmethod
    def layouts(cls, about: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Layout]:
        """Arrays of one target are vectors; the columns of a mean come after the targets'."""
        n, p = shapes.get("alpha", (0,))[0], len(about["target_names"])
        targets = solved = target_layout(n, p)
        if about.get("trend") is not None:
            solved = (n, p + len(about["trend"]["coefficients"])), ("sample", "column")
        return {**super().layouts(about, shapes), "alpha": solved, "gradient": solved, "targets": targets}

    @classmethod
    def _check_description(cls, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super()._check_description(about, arrays)
        if not about.get("by_reference") and "inputs" not in arrays:
            raise KeyError("inputs")

    @classmethod
    def _support_in(
        cls, url: str, content: Json, arrays: Mapping[str, StoredArray], reference: str | None
    ) -> dict[str, Any]:
        support = super()._support_in(url, content, arrays, reference)
        return {**support, "_targets": arrays.get("targets"), "_gradient": arrays.get("gradient")}

    def _check(self, by_reference: bool) -> None:
        super()._check(by_reference)
        finite = np.isfinite(self.alpha).all(axis=1)
        if not finite.all():
            raise NumericalError(
                f"alpha is not finite (row {int(np.argmin(finite))}); the model is not saved. Raise the noise variance."
            )
        if isinstance(self._gradient, np.ndarray) and self._gradient.size != self.alpha.size:
            raise InputError(
                f"The gradient has shape {self._gradient.shape}; expected that of alpha, {self.alpha.shape}."
            )
        if self.sample_noise is not None:
            self._check_sample_noise(self.sample_noise)

    def _check_sample_noise(self, values: FloatArray) -> None:
        if values.shape != (self.n_samples,):
            raise InputError(
                f"sample_noise has shape {values.shape}; expected ({self.n_samples},), a variance for each sample."
            )
        noise = self.noise_variance + values
        if not (np.isfinite(noise) & (noise > 0.0)).all():
            row = int(np.argmin(np.isfinite(noise) & (noise > 0.0)))
            raise InputError(
                f"sample_noise is {values[row]} in row {row}, a noise of {noise[row]} in all; expected a positive one."
            )

    def _write_more(self, store: NewStore, content: Json) -> None:
        state = self.training_state()
        if state is not None:
            dataset, gradient = state
            layouts = self.layouts(vars(self), {"alpha": self.alpha.shape})
            for name, values in (("targets", dataset.all_targets()), ("gradient", gradient)):
                shape, dimensions = layouts[name]
                store.write_array(name, np.asarray(values, dtype=np.float64).reshape(shape), dimensions)
        super()._write_more(store, content)


@dataclass(frozen=True, eq=False, kw_only=True)
class NearArrays(KernelModel):
    """A model that may predict from neighbours; the fields are None if it does not.

    Attributes
    ----------
    neighbours
        Number of samples that a prediction is conditioned on.
    search_samples
        Most samples that a search for neighbours looks at. None, in stores of before there was a limit: any number.
    near_inputs, near_targets
        The training set, standardised, shapes (n, d) and (n, p).
    near_noise
        Its noise variances, shape (n,), or (n, p) if each target has its own; None if all samples have s2.
    near_weights, near_normal
        The posterior of the basis' part given the samples: its mean (m, p) in whitened form, and a triangle of its
        precision, (m, m), or one for each target.
    near_embedding
        Inputs (e, d) that tell which samples are near, for a kernel that is no function of one distance.
    """

    neighbours: int | None = field(default=None, metadata=rule(omit_default=True))
    search_samples: int | None = field(default=None, metadata=rule(omit_default=True))
    near_inputs: FloatArray | None = field(default=None, metadata=array("sample", "feature"))
    near_targets: FloatArray | None = field(default=None, metadata=array("sample", "target"))
    near_noise: FloatArray | None = field(default=None, metadata=array("sample"))
    near_weights: FloatArray | None = field(default=None, metadata=array("basis", "target"))
    near_normal: FloatArray | None = field(default=None, metadata=array("basis", "other", fortran=True))
    near_embedding: FloatArray | None = field(default=None, metadata=array("landmark", "feature"))


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseRecord(NearArrays):
    """A sparse model.

    Attributes
    ----------
    method
        The method's name.
    prototypes
        Basis samples, standardised, shape (m, d).
    weights
        Shape (m, p), on the standardised scale.
    lower, normal
        Triangles, shape (m, m), in Fortran order; a subset of data has no second one.
    indices
        Numbers of the training samples that the basis samples are; None if they are none.
    basis_noise
        Noise of the basis samples, shape (m,); None if all samples have s2, or the basis samples are no samples.
    """

    kind = SPARSE_MODEL_KIND
    title, expected = "A sparse model", "a sparse one"
    has_variances = True
    shown = (*KernelModel.shown, "method")

    method: str
    prototypes: FloatArray = field(metadata=array("basis", "feature"))
    weights: FloatArray = field(metadata=array("basis", "target"))
    lower: FloatArray = field(metadata=array("basis", "other", fortran=True))
    normal: FloatArray | None = field(default=None, metadata=array("basis", "other", fortran=True))
    indices: IntArray | None = field(default=None, metadata=array("basis"))
    basis_noise: FloatArray | None = field(default=None, metadata=array("basis"))

    @property
    def basis_size(self) -> int:
        """Number of basis samples, m."""
        return len(self.prototypes)

    @property
    def coefficients(self) -> FloatArray:
        """Coefficients of the basis samples, `weights`."""
        return self.weights

    @property
    def without_sums(self) -> str | None:
        """Reason why predictions are no sums over all training samples."""
        return f"is a sum over {self.basis_size:,} basis samples, which takes no time"


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearRecord(Model):
    """A linear regression.

    Attributes
    ----------
    coefficients, intercept
        On the standardised scale, shape (d, p) and (p,).
    summary
        The JSON document of `pursue --json`: method, how the cardinality was chosen, the path of each target.
    """

    kind = LINEAR_MODEL_KIND
    title, expected = "A linear regression", "a linear regression"

    coefficients: FloatArray = field(metadata=array("feature", "target"))
    intercept: FloatArray = field(metadata=array("target"))

    @property
    def without_sums(self) -> str | None:
        """Reason why predictions are no sums over all training samples."""
        return "is a linear regression, which has none"


# ----------------------------------------------------------------------------------------------------- public functions


def exact_model(
    dataset: Dataset,
    *,
    alpha: FloatArray,
    gradient: FloatArray | None = None,
    sample_noise: FloatArray | None = None,
    chunk_rows: int | None = None,
    **facts: Unpack[TrainingFacts],
) -> ModelRecord:
    """Return the exact model of a training set; the parameters are those of `save_model`."""
    coefficients = np.asarray(alpha, dtype=np.float64)
    return ModelRecord(
        **about_model(dataset, **facts),
        alpha=coefficients[:, None] if coefficients.ndim == 1 else coefficients,
        sample_noise=None if sample_noise is None else np.asarray(sample_noise, dtype=np.float64),
        chunk_rows=chunk_rows or dataset.chunk_rows,
        by_reference=True,
        _support=dataset,
        _gradient=None if gradient is None else np.asarray(gradient, dtype=np.float64),
    )


def memory_model(dataset: Dataset, **fields: Any) -> ModelRecord:
    """Return an exact model of a training set with an address in this process; parameters as for `exact_model`."""
    return exact_model(dataset, **fields).resident()


def save_model(
    url: Location, *, dataset: Dataset, by_reference: bool = False, overwrite: bool = False, **fields: Any
) -> None:
    """Write the store of an exact model; errors as for `Model.save`.

    Parameters
    ----------
    dataset
        The training set.
    by_reference
        Refer to the training set's store instead of copying its inputs. The model is then of use only as long as
        that store is where it is now, unchanged.
    overwrite
        Replace a model store that is there. Anything else that is there is left alone.
    fields
        `alpha`, coefficients on the standardised scale, shape (n, p) or (n,) for one target, (n, p + q) with a `trend`;
        `gradient`, Kbar alpha - y, of the same shape, with which the model can be trained further; `sample_noise`,
        known noise variances of the samples, shape (n,), beside `noise_variance`; `chunk_rows`, by default the training
        set's; `kernel`, the kernel's JSON; `noise_variance`, s2 on the standardised scale, positive; and, as JSON,
        `history`, a record per round, `certificate`, the proven bounds, `summary`, the document of `train --json`,
        `noise_model`, which gives the known noise, and `trend`, a mean with coefficients.
    """
    model = exact_model(dataset, **fields)
    n, columns = dataset.n_samples, dataset.n_targets + (0 if model.trend is None else len(model.trend["coefficients"]))
    if model.alpha.shape != (n, columns):
        raise InputError(f"alpha has shape {np.shape(fields['alpha'])}; '{dataset.url}' needs ({n}, {columns}).")
    model.save(url, by_reference=by_reference, overwrite=overwrite)


def open_model(url: Location, *, reference: str | None = None) -> ModelRecord:
    """Open the store of an exact model; parameters and errors as for `Model.open`."""
    return ModelRecord.open(url, reference=reference)


def save_sparse_model(url: Location, record: SparseRecord, *, overwrite: bool = False) -> None:
    """Write the store of a sparse model; errors as for `Model.save`."""
    record.save(url, overwrite=overwrite)


def open_sparse_model(url: Location) -> SparseRecord:
    """Open the store of a sparse model; errors as for `Model.open`."""
    return SparseRecord.open(url)


def memory_sparse_model(record: SparseRecord) -> SparseRecord:
    """Return a sparse model with an address in this process; see `Model.resident`."""
    return record.resident()


def save_linear_model(
    url: Location,
    dataset: Dataset,
    coefficients: FloatArray,
    intercept: FloatArray,
    summary: Json,
    *,
    overwrite: bool = False,
) -> None:
    """Write the store of a linear regression; errors as for `Model.save`."""
    model = LinearRecord(**about_training(dataset, summary), coefficients=coefficients, intercept=intercept)
    model.save(url, overwrite=overwrite)


def open_linear_model(url: Location) -> LinearRecord:
    """Open the store of a linear regression; errors as for `Model.open`."""
    return LinearRecord.open(url)
