"""Classifiers in a Zarr store: classes, decisions and the calibration of probabilities, in one of several forms.

| form | decisions are sums over | arrays, beside `intercept` (t,) |
|---|---|---|
| `fixed-size` | m prototypes | `prototypes` (m, d), `weights` (m, t), `indices` (m,) of samples |
| `exact` | all n samples | `alpha` (n, t), `ones` (n,), `inputs` (n, d) |
| `logistic`, `gp` | all n samples | `alpha` (n, t), `inputs` (n, d); of `gp` also `curvature` (n, t) |
| `logistic`, `gp` | m prototypes | as `fixed-size`; of `gp` also `kernel_lower` (m, m), `posterior_lower` (t, m, m) |
| `gp` | m prototypes, neighbours | as `fixed-size`, `kernel_lower` (m, m), and those of `NearArrays` by column |

Of one with neighbours `weights` are of the basis' part alone, and all samples are in its store. One of all samples may
leave its inputs in the training set's store, by reference; one of prototypes needs no training set. Two classes have t
= 1 column of decisions, positive for the second; C > 2 classes have t = C, one each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import StoredArray
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import recognise
from dkgp.data.stores.models.model import Layout, SupportedModel, array, resident_model
from dkgp.data.stores.models.regression import ModelRecord, NearArrays, SparseRecord
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError

CLASSIFIER_KIND = "classifier"
ClassifierForm = Literal["fixed-size", "exact", "logistic", "gp"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierRecord(NearArrays, SupportedModel):
    """A classifier.

    Attributes
    ----------
    form
        "fixed-size", "exact", "logistic" or "gp": which of the arrays there are.
    classes
        Names of the classes by code, two at least.
    intercept
        Shape (t,).
    prototypes, weights, indices
        Of one that `is_sparse`: standardised prototypes (m, d), weights (m, t), and which training samples they are,
        shape (m,), None where they are none.
    alpha
        Of one of all samples: coefficients (n, t).
    ones
        Of an exact one: the solution of Kbar x = 1, shape (n,), that error bounds take.
    curvature
        Of a Gaussian process of all samples: W at the mode, (n, t), none below zero.
    kernel_lower, posterior_lower
        Of a Gaussian process of prototypes: lower factors of K_mm and its jitter, (m, m), and of I + F'W F, (t, m, m);
        with softmax, whose columns are coupled, (1, t m, t m); none with neighbours.
    likelihood, regularisation
        Of a logistic one or a Gaussian process: the likelihood as JSON, and lambda.
    class_weights
        Weight of each class by name; None where they weigh the same.
    calibration
        How decisions become probabilities, as JSON; None if there are none.
    path
        What was found on the way to the number of prototypes: a record of each.
    """

    kind = CLASSIFIER_KIND
    title, expected = "A classifier", "a classifier"
    shown = (*SupportedModel.shown, "form", "classes")

    form: ClassifierForm
    classes: tuple[str, ...]
    prototypes: FloatArray | None = field(default=None, metadata=array("basis", "feature"))
    weights: FloatArray | None = field(default=None, metadata=array("basis", "output"))
    indices: IntArray | None = field(default=None, metadata=array("basis"))
    alpha: FloatArray | None = field(default=None, metadata=array("sample", "output"))
    ones: FloatArray | None = field(default=None, metadata=array("sample"))
    curvature: FloatArray | None = field(default=None, metadata=array("sample", "output"))
    kernel_lower: FloatArray | None = field(default=None, metadata=array("basis", "column"))
    posterior_lower: FloatArray | None = field(default=None, metadata=array("output", "basis", "column"))
    intercept: FloatArray = field(metadata=array("output"))
    # Each class's function has its own noise.
    near_noise: FloatArray | None = field(default=None, metadata=array("sample", "target"))
    near_normal: FloatArray | None = field(default=None, metadata=array("target", "basis", "column"))
    likelihood: Json | None = None
    regularisation: float | None = None
    class_weights: dict[str, float] | None = None
    calibration: Json | None = None
    path: list[Json] = field(default_factory=list)

    @property
    def n_outputs(self) -> int:
        """Columns of decisions, t."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by code."""
        return self.classes

    @property
    def averages(self) -> bool:
        """Whether probabilities are averages over variances of latent functions."""
        return self.form == "gp"

    @property
    def without_sums(self) -> str | None:
        """Reason if decisions are no sums over all training samples; None if they are."""
        return f"is a sum over {self.n_support:,} prototypes, which takes no time" if self.is_sparse else None

    @property
    def is_sparse(self) -> bool:
        """True for a model of prototypes, which needs no training set."""
        return self.prototypes is not None

    @property
    def n_support(self) -> int:
        """Number of points that a decision is a sum over: m prototypes, or n samples."""
        return len(self.coefficients)

    @property
    def coefficients(self) -> FloatArray:
        """Weights of the kernel's columns, (m, t) or (n, t)."""
        weights = self.weights if self.is_sparse else self.alpha
        assert weights is not None
        return weights

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised points [start, stop) that decisions are sums over, shape (stop - start, d).

        Raises `StoreError` where a chunk is missing or damaged.
        """
        return super().inputs(start, stop) if self.prototypes is None else self.prototypes[start:stop]

    @property
    def format_version(self) -> int | None:
        """Format of the store. A dkgp that knows no neighbours would take the basis' weights for the whole model."""
        return 2 if self.neighbours is None else None

    @classmethod
    def _sizes(cls, about: Mapping[str, Any]) -> dict[str, int]:
        outputs = 1 if len(about["classes"]) == 2 else len(about["classes"])
        return {**super()._sizes(about), "output": outputs, "target": outputs}

    @classmethod
    def layouts(cls, about: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Layout]:
        """As for every model; with softmax all classes' functions share one factor."""
        layouts = super().layouts(about, shapes)
        (t, m, _), dimensions = layouts["posterior_lower"]
        joint = (1, t * m, t * m)
        if shapes.get("posterior_lower") == joint:
            layouts["posterior_lower"] = joint, dimensions
        return layouts

    @classmethod
    def _check_description(cls, about: Mapping[str, Any], arrays: Mapping[str, StoredArray]) -> None:
        super()._check_description(about, arrays)
        if not (about.get("by_reference") or arrays.keys() & {"inputs", "prototypes"}):
            raise ValueError(f"the form {about['form']!r} and the arrays {', '.join(arrays)}")

    def _check(self, by_reference: bool) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise InputError(f"A classifier needs two classes of different names at least; got {list(self.classes)}.")
        if self.form in ("logistic", "gp"):
            if self.likelihood is None or self.regularisation is None:
                raise InputError(f"A {self.form} classifier needs 'likelihood' and 'regularisation'; got none.")
            if not (np.isfinite(self.regularisation) and self.regularisation > 0.0):
                raise InputError(f"The regularisation must be finite and positive; got {self.regularisation}.")
        on_basis = self.form == "fixed-size" or (self.form != "exact" and self.is_sparse)
        for which, names in _needs(self.form, on_basis, self.neighbours is not None):
            if any(getattr(self, name) is None for name in names) or not (on_basis or self._support is not None):
                needed = [f"'{name}'" for name in names] + ([] if on_basis else ["its training set"])
                raise InputError(f"{which} needs {', '.join(needed[:-1])} and {needed[-1]}; got none.")
        if self.curvature is not None and (np.asarray(self.curvature) < 0.0).any():
            raise NumericalError("'curvature' of the classifier is below zero; the model is not saved.")
        if self.posterior_lower is not None:
            m, t = self.n_support, self.n_outputs
            joint = self.likelihood is not None and self.likelihood["name"] == "softmax"
            expected = (1, t * m, t * m) if joint else (t, m, m)
            if self.posterior_lower.shape != expected:
                raise InputError(
                    f"'posterior_lower' of the classifier has shape {self.posterior_lower.shape}; expected {expected}."
                )
        super()._check(by_reference)


def _needs(form: str, on_basis: bool, near: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Return the name of a form in messages, with the arrays that it needs; with neighbours, two such pairs."""
    if not on_basis:
        more = {"exact": ("ones",), "gp": ("curvature",)}.get(form, ())
        return [("An exact classifier" if form == "exact" else f"A {form} classifier of all samples", ("alpha", *more))]
    lower = ("kernel_lower", "posterior_lower") if form == "gp" and not near else ()
    needs = [(f"A {form} classifier", ("prototypes", "weights", *lower))]
    return [*needs, ("A classifier with neighbours", ("kernel_lower", *_NEAR))] if near else needs


_NEAR = ("near_inputs", "near_targets", "near_noise", "near_weights", "near_normal")


def save_classifier(
    url: Location,
    record: ClassifierRecord,
    *,
    dataset: Dataset | None = None,
    by_reference: bool = False,
    overwrite: bool = False,
) -> None:
    """Write the store of a classifier; errors as for `Model.save`.

    Parameters
    ----------
    dataset
        The training set; a classifier of all samples needs it.
    by_reference
        Refer to the training set's store instead of copying its inputs.
    """
    if dataset is not None:
        record = replace(record.supported_by(dataset), chunk_rows=dataset.chunk_rows)
    record.save(url, by_reference=by_reference, overwrite=overwrite)


def open_classifier(url: Location, *, reference: str | None = None) -> ClassifierRecord:
    """Open the store of a classifier; parameters and errors as for `Model.open`."""
    return ClassifierRecord.open(url, reference=reference)


def find_classifier(url: str, *, reference: str | None = None) -> ClassifierRecord:
    """Return the classifier at an address; parameters and errors as for `Model.find`."""
    return ClassifierRecord.find(url, reference=reference)


def memory_classifier(record: ClassifierRecord, dataset: Dataset | None = None) -> ClassifierRecord:
    """Return a classifier with an address in this process; the inputs of one of all samples are the training set's."""
    return record.supported_by(dataset).resident()


AnyModel: TypeAlias = ModelRecord | SparseRecord | ClassifierRecord

_KINDS: tuple[type[AnyModel], ...] = (ModelRecord, SparseRecord, ClassifierRecord)


def find_any_model(url: str, *, reference: str | None = None) -> AnyModel:
    """Return the model of any kind at an address; parameters and errors as for `Model.find`."""
    model = resident_model(url)
    return model if isinstance(model, _KINDS) else open_any_model(url, reference=reference)


def open_any_model(url: Location, *, reference: str | None = None) -> AnyModel:
    """Open the store of a model of any kind; parameters and errors as for `Model.open`."""
    found = recognise(normalise_url(url))
    kind = next((kind for kind in _KINDS if kind.kind == found), ModelRecord)
    return kind.open(url, reference=reference)
