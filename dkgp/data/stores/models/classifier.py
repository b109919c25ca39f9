"""Classifiers in a Zarr store: classes, decisions and the calibration of probabilities; a class for each form.

Decisions are sums over all n training samples, or over m prototypes. A classifier of all samples may refer to the
inputs in the training set's store; one of prototypes needs no training set. Two classes have t = 1 column of decisions,
positive for the second; C > 2 classes have t = C, one each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np

from dkgp.codec import rule
from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.arrays import StoredArray
from dkgp.data.stores.dataset import Dataset
from dkgp.data.stores.manifest import recognise
from dkgp.data.stores.models.model import Layout, ModelAddress, SupportedModel, array, resident_model
from dkgp.data.stores.models.regression import ModelRecord, NearArrays, SparseRecord
from dkgp.data.types import FloatArray, IntArray, Json, Location
from dkgp.errors import InputError, NumericalError

CLASSIFIER_KIND = "classifier"
Classifier = TypeVar("Classifier", bound="ClassifierRecord")
ClassifierForm = Literal["fixed-size", "exact", "logistic", "gp"]
# Points that decisions are sums over; with neighbours, prototypes and the samples near each prediction.
Support = Literal["samples", "prototypes", "neighbours"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierRecord(SupportedModel):
    """A classifier of any form.

    Attributes
    ----------
    classes
        Names of the classes by code, two at least.
    intercept
        Shape (t,).
    likelihood, regularisation
        The likelihood as JSON, and lambda; None for least squares.
    neighbours, search_samples
        As for `NearArrays`; None without neighbours.
    class_weights
        Weight of each class by name; None if they have equal weight.
    calibration
        Map from decisions to probabilities, as JSON; None if there is none.
    path
        Records of the search for the number of prototypes.
    """

    kind = CLASSIFIER_KIND
    title, expected = "A classifier", "a classifier"
    shown = (*SupportedModel.shown, "form", "classes")
    derived: ClassVar[tuple[str, ...]] = ("form",)

    form: ClassVar[ClassifierForm]
    support: ClassVar[Support] = "prototypes"

    classes: tuple[str, ...]
    intercept: FloatArray = field(metadata=array("output"))
    likelihood: Json | None = None
    regularisation: float | None = None
    neighbours: int | None = field(default=None, metadata=rule(omit_default=True))
    search_samples: int | None = field(default=None, metadata=rule(omit_default=True))
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
    def is_sparse(self) -> bool:
        """True for a model of prototypes, which needs no training set."""
        return self.support != "samples"

    @property
    def averages(self) -> bool:
        """Whether probabilities are averages over variances of latent functions."""
        return self.form == "gp"

    @property
    def format_version(self) -> int | None:
        """Format of the store. A dkgp that knows no neighbours would take the basis' weights for the whole model."""
        return 2 if self.neighbours is None else None

    @classmethod
    def _kind_in(cls, content: Json, arrays: Mapping[str, StoredArray]) -> type[Self]:
        support: Support = "prototypes" if "prototypes" in arrays else "samples"
        kind: Any = FORMS.get((content["form"], "neighbours" if "neighbours" in content else support))
        if kind is None or (support == "samples" and not (content.get("by_reference") or "inputs" in arrays)):
            raise ValueError(f"the form {content['form']!r} and the arrays {', '.join(arrays)}")
        found: type[Self] = kind
        return found

    @classmethod
    def _sizes(cls, about: Mapping[str, Any]) -> dict[str, int]:
        outputs = 1 if len(about["classes"]) == 2 else len(about["classes"])
        return {**super()._sizes(about), "output": outputs, "target": outputs}

    def _check(self, by_reference: bool) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise InputError(f"A classifier needs two classes of different names at least; got {list(self.classes)}.")
        super()._check(by_reference)


@dataclass(frozen=True, eq=False, kw_only=True)
class _OfSamples(ClassifierRecord):
    """A classifier whose decisions are sums over all samples, with coefficients `alpha` (n, t)."""

    support = "samples"

    alpha: FloatArray = field(metadata=array("sample", "output"))

    @property
    def coefficients(self) -> FloatArray:
        return self.alpha


@dataclass(frozen=True, eq=False, kw_only=True)
class _OfPrototypes(ClassifierRecord):
    """A classifier whose decisions are sums over prototypes.

    Attributes
    ----------
    prototypes
        Standardised, (m, d).
    weights
        Shape (m, t).
    indices
        Numbers of the training samples that the prototypes are, (m,); None if they are none.
    """

    prototypes: FloatArray = field(metadata=array("basis", "feature"))
    weights: FloatArray = field(metadata=array("basis", "output"))
    indices: IntArray | None = field(default=None, metadata=array("basis"))

    @property
    def coefficients(self) -> FloatArray:
        return self.weights

    @property
    def without_sums(self) -> str | None:
        return f"is a sum over {self.n_support:,} prototypes, which takes no time"

    def inputs(self, start: int, stop: int) -> FloatArray:
        return self.prototypes[start:stop]


@dataclass(frozen=True, eq=False, kw_only=True)
class _OfLikelihood(ClassifierRecord):
    """A classifier that minimises the risk of a likelihood, with the regularisation lambda."""

    likelihood: Json = field()
    regularisation: float = field()

    def _check(self, by_reference: bool) -> None:
        super()._check(by_reference)
        if not (np.isfinite(self.regularisation) and self.regularisation > 0.0):
            raise InputError(f"The regularisation must be finite and positive; got {self.regularisation}.")


@dataclass(frozen=True, eq=False, kw_only=True)
class FixedSizeRecord(_OfPrototypes):
    """A fixed-size LS-SVM."""

    form, called = "fixed-size", "A fixed-size classifier"


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactClassifierRecord(_OfSamples):
    """An exact LS-SVM. `ones` (n,) is the solution of Kbar x = 1, which error bounds use."""

    form, called = "exact", "An exact classifier"

    ones: FloatArray = field(metadata=array("sample"))


@dataclass(frozen=True, eq=False, kw_only=True)
class LogisticRecord(_OfLikelihood, _OfSamples):
    """Kernel logistic regression on all samples."""

    form, called = "logistic", "A logistic classifier of all samples"


@dataclass(frozen=True, eq=False, kw_only=True)
class ProcessRecord(_OfLikelihood, _OfSamples):
    """A Gaussian process of all samples. `curvature` (n, t) is W at the mode, which is nowhere negative."""

    form, called = "gp", "A gp classifier of all samples"

    curvature: FloatArray = field(metadata=array("sample", "output"))

    def _check(self, by_reference: bool) -> None:
        super()._check(by_reference)
        if (np.asarray(self.curvature) < 0.0).any():
            raise NumericalError("'curvature' of the classifier is below zero; the model is not saved.")


@dataclass(frozen=True, eq=False, kw_only=True)
class BasisLogisticRecord(_OfLikelihood, _OfPrototypes):
    """Kernel logistic regression on a basis."""

    form, called = "logistic", "A logistic classifier"


@dataclass(frozen=True, eq=False, kw_only=True)
class BasisProcessRecord(_OfLikelihood, _OfPrototypes):
    """A Gaussian process on a basis.

    Attributes
    ----------
    kernel_lower
        Lower factor of K_mm and its jitter, (m, m).
    posterior_lower
        Lower factors of I + F'W F, (t, m, m). Softmax couples the columns and has one factor, (1, t m, t m).
    """

    form, called = "gp", "A gp classifier"

    kernel_lower: FloatArray = field(metadata=array("basis", "column"))
    posterior_lower: FloatArray = field(metadata=array("output", "basis", "column"))

    @classmethod
    def layouts(cls, about: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Layout]:
        """As for every model; softmax has one factor of all classes' functions."""
        layouts = super().layouts(about, shapes)
        if about["likelihood"]["name"] == "softmax":
            (t, m, _), dimensions = layouts["posterior_lower"]
            layouts["posterior_lower"] = (1, t * m, t * m), dimensions
        return layouts


@dataclass(frozen=True, eq=False, kw_only=True)
class NearProcessRecord(NearArrays, _OfLikelihood, _OfPrototypes):
    """A Gaussian process on a basis with neighbours; `weights` belong to the basis' part alone.

    `kernel_lower` (m, m) is the lower factor of K_mm and its jitter. Each class's function has its own noise.
    """

    form, called = "gp", "A classifier with neighbours"
    support = "neighbours"

    neighbours: int = field()
    kernel_lower: FloatArray = field(metadata=array("basis", "column"))
    near_inputs: FloatArray = field(metadata=array("sample", "feature"))
    near_targets: FloatArray = field(metadata=array("sample", "target"))
    near_noise: FloatArray = field(metadata=array("sample", "target"))
    near_weights: FloatArray = field(metadata=array("basis", "target"))
    near_normal: FloatArray = field(metadata=array("target", "basis", "column"))


_CLASSES: tuple[type[ClassifierRecord], ...] = (
    FixedSizeRecord, ExactClassifierRecord, LogisticRecord, ProcessRecord,
    BasisLogisticRecord, BasisProcessRecord, NearProcessRecord,
)  # fmt: skip
FORMS = {(kind.form, kind.support): kind for kind in _CLASSES}
"""The class of each form's models."""


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


def memory_classifier(record: Classifier, dataset: Dataset | None = None) -> Classifier:
    """Return a classifier with an address in this process; the inputs of one of all samples are the training set's."""
    return record.supported_by(dataset).resident()


AnyModel: TypeAlias = ModelRecord | SparseRecord | ClassifierRecord

_KINDS: tuple[type[AnyModel], ...] = (ModelRecord, SparseRecord, ClassifierRecord)


def find_any_model(address: ModelAddress) -> AnyModel:
    """Return the model of any kind at an address; errors as for `Model.find`."""
    model = resident_model(address.url)
    return model if isinstance(model, _KINDS) else _stored_kind(address.url).find(address)


def open_any_model(url: Location, *, reference: str | None = None) -> AnyModel:
    """Open the store of a model of any kind; parameters and errors as for `Model.open`."""
    return _stored_kind(url).open(url, reference=reference)


def _stored_kind(url: Location) -> type[AnyModel]:
    found = recognise(normalise_url(url))
    return next((kind for kind in _KINDS if kind.kind == found), ModelRecord)
