"""A trained classifier of any method, and the model that stores hold."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np

from dkgp.codec import to_json
from dkgp.data import ClassifierRecord
from dkgp.data.stores.models.classifier import FORMS, ClassifierForm, Support
from dkgp.data.stores.models.model import KernelModel, about_model
from dkgp.kernels import Kernel
from dkgp.models.certificate import Proof
from dkgp.models.classification.calibration import Calibration
from dkgp.models.classification.labels import LabelledData
from dkgp.models.classification.likelihoods import Likelihood
from dkgp.operators.base import FloatArray, IndexArray

BasisForm = Literal["logistic", "gp"]
_OF_EVERY_MODEL = {each.name for each in fields(KernelModel)}


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedClassifier:
    """The result of training by any method.

    Attributes
    ----------
    form : {"fixed-size", "exact", "logistic", "gp"}
    kernel : Kernel
        Of the standardised inputs, without white noise.
    noise_variance : float
        s2 of a sample of weight one. Likelihoods have none: 1 stands in stores, which have one of every model.
    classes : tuple of str
    certificate : Proof or None
        Of its decisions; None where nothing is proven.
    calibration : Calibration or None
        From decisions to probabilities, fitted to decisions at samples that were left out.
    history : list of dict
        The search's or the solve's records, in plain JSON types.
    summary : dict
        n, d, classes, method, converged, seconds and so on: see each method.
    """

    form: ClassifierForm
    kernel: Kernel
    noise_variance: float = 1.0
    classes: tuple[str, ...]
    certificate: Proof | None = None
    calibration: Calibration | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    # Points that decisions are sums over.
    support: ClassVar[Support] = "samples"

    def fields(self) -> dict[str, Any]:
        """Return the fields of the stored model that are attributes here, except those of every kernel model."""
        mine = {each.name for each in fields(self)} - _OF_EVERY_MODEL
        stored = [each.name for each in fields(FORMS[self.form, self.support]) if each.name in mine]
        values = {name: getattr(self, name) for name in stored}
        values |= {name: to_json(values[name]) for name in ("calibration", "likelihood") if name in values}
        return {"intercept": np.zeros(1 if len(self.classes) == 2 else len(self.classes)), **values}

    def proofs(self) -> dict[str, Any] | None:
        """Return the certificate as a store has it."""
        return None if self.certificate is None else self.certificate.to_json()

    def record(self, data: LabelledData, summary: dict[str, Any] | None = None) -> ClassifierRecord:
        """Return the model of the data that it was trained on; `summary` takes the place of its own."""
        about = about_model(
            data.dataset,
            kernel=self.kernel.to_json(),
            noise_variance=self.noise_variance,
            history=self.history,
            certificate=self.proofs(),
            summary=self.summary if summary is None else summary,
        )
        return FORMS[self.form, self.support](**about, class_weights=data.class_weights(), **self.fields())


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainedBasis(TrainedClassifier):
    """A classifier of a likelihood on a basis, with neighbours or without.

    Attributes
    ----------
    regularisation : float
        lambda.
    likelihood : Likelihood
    prototypes : (m, d) float64
        Standardised.
    indices : (m,) int or None
        Samples that they are; None where they are none.
    weights : (m, t) float64
        beta; with neighbours, of the basis' part alone.
    kernel_lower : (m, m) float64 or None
        L, of a Gaussian process.
    """

    support: ClassVar[Support] = "prototypes"

    regularisation: float = 1.0
    likelihood: Likelihood
    prototypes: FloatArray
    indices: IndexArray | None
    weights: FloatArray
    kernel_lower: FloatArray | None
