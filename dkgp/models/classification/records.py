"""Trained classifiers as they are stored."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dkgp.data import ClassifierRecord, Dataset
from dkgp.data.stores.classifier.classifier_store import ClassifierForm
from dkgp.data.stores.model_store import about_model
from dkgp.models.classification.basis.train import TrainedOnBasis
from dkgp.models.classification.exact.train import TrainedExact
from dkgp.models.classification.fixed_size.train import TrainedFixedSize
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.laplace.train import TrainedGP
from dkgp.models.classification.logistic.train import TrainedLogistic
from dkgp.operators.base import FloatArray

__all__ = ["basis_record", "exact_record", "fixed_size_record", "gp_record", "logistic_record"]


def exact_record(
    trained: TrainedExact,
    dataset: Dataset,
    labels: Labels,
    weights: FloatArray | None = None,
    summary: dict[str, Any] | None = None,
) -> ClassifierRecord:
    """Return an exact LS-SVM's record.

    Parameters
    ----------
    trained : TrainedExact
    dataset, labels
        It was trained on.
    weights : (n,) float64, optional
        As of the training.
    summary : dict, optional
        To be stored instead of its own.
    """
    about = about_model(
        dataset,
        kernel=trained.kernel.to_json(),
        noise_variance=trained.noise_variance,
        history=trained.history,
        certificate=trained.certificate.to_json(),
        summary=trained.summary if summary is None else summary,
    )
    return ClassifierRecord(
        **about,
        form="exact",
        classes=trained.classes,
        alpha=trained.alpha,
        ones=trained.ones,
        intercept=trained.intercept,
        class_weights=_class_weights(labels, weights),
        calibration=None if trained.calibration is None else trained.calibration.to_json(),
    )


def fixed_size_record(
    trained: TrainedFixedSize, dataset: Dataset, labels: Labels, weights: FloatArray | None = None
) -> ClassifierRecord:
    """Return a fixed-size LS-SVM's record; parameters as of `exact_record`."""
    model = trained.model
    about = about_model(
        dataset,
        kernel=model.kernel.to_json(),
        noise_variance=model.noise_variance,
        history=trained.history,
        summary={**trained.summary, "counts": labels.counts().tolist(), "converged": True},
    )
    return ClassifierRecord(
        **about,
        form="fixed-size",
        classes=trained.classes,
        intercept=model.intercept,
        prototypes=model.prototypes,
        weights=model.weights,
        indices=trained.indices,
        class_weights=_class_weights(labels, weights),
        calibration=None if trained.calibration is None else trained.calibration.to_json(),
        path=[dict(record) for record in trained.path],
    )


def basis_record(
    trained: TrainedOnBasis,
    dataset: Dataset,
    labels: Labels,
    weights: FloatArray | None = None,
    summary: dict[str, Any] | None = None,
) -> ClassifierRecord:
    """Return the record of a classifier on a basis; parameters as of `exact_record`."""
    about = about_model(
        dataset,
        kernel=trained.kernel.to_json(),
        noise_variance=1.0,
        history=trained.history,
        certificate=None if trained.certificate is None else trained.certificate.to_json(),
        summary=trained.summary if summary is None else summary,
    )
    return ClassifierRecord(
        **about,
        form=trained.form,
        classes=trained.classes,
        intercept=np.zeros(trained.weights.shape[1]),
        prototypes=trained.prototypes,
        weights=trained.weights,
        indices=trained.indices,
        class_weights=_class_weights(labels, weights),
        likelihood=trained.likelihood.to_json(),
        regularisation=trained.regularisation,
        kernel_lower=trained.kernel_lower,
        posterior_lower=trained.posterior_lower,
    )


def logistic_record(
    trained: TrainedLogistic,
    dataset: Dataset,
    labels: Labels,
    weights: FloatArray | None = None,
    summary: dict[str, Any] | None = None,
) -> ClassifierRecord:
    """Return kernel logistic regression's record; parameters as of `exact_record`."""
    return _risk_record(trained, dataset, labels, weights, summary, "logistic")


def gp_record(
    trained: TrainedGP,
    dataset: Dataset,
    labels: Labels,
    weights: FloatArray | None = None,
    summary: dict[str, Any] | None = None,
) -> ClassifierRecord:
    """Return a Gaussian process classifier's record, of all samples; parameters as of `exact_record`."""
    record = _risk_record(trained, dataset, labels, weights, summary, "gp")
    told = [factor if math.isfinite(factor) else None for factor in trained.curvature_factor]
    return replace(record, certificate={**record.certificate, "curvature_factor": told})


def _risk_record(
    trained: TrainedLogistic,
    dataset: Dataset,
    labels: Labels,
    weights: FloatArray | None,
    summary: dict[str, Any] | None,
    form: ClassifierForm,
) -> ClassifierRecord:
    about = about_model(
        dataset,
        kernel=trained.kernel.to_json(),
        # Not that of anything: stores of models have one.
        noise_variance=1.0,
        history=trained.history,
        certificate=trained.certificate.to_json(),
        summary=trained.summary if summary is None else summary,
    )
    return ClassifierRecord(
        **about,
        form=form,
        classes=trained.classes,
        alpha=trained.alpha,
        intercept=np.zeros(trained.likelihood.n_outputs),
        curvature=trained.curvature if form == "gp" else None,
        likelihood=trained.likelihood.to_json(),
        regularisation=trained.regularisation,
        class_weights=_class_weights(labels, weights),
    )


def _class_weights(labels: Labels, weights: FloatArray | None) -> dict[str, float] | None:
    """Mean weight of a class's samples, of mean one over all samples; None where all count the same.

    A class without samples has none.
    """
    if weights is None:
        return None
    of_class = {name: weights[labels.codes == code] for code, name in enumerate(labels.classes)}
    return {name: float(own.mean()) for name, own in of_class.items() if own.size}
