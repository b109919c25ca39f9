"""Classifiers on a basis as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.data import ClassifierRecord, Dataset
from dkgp.data.stores.model_store import about_model
from dkgp.models.classification.basis.train import TrainedOnBasis
from dkgp.models.classification.labels import Labels
from dkgp.models.classification.records import class_weights
from dkgp.operators.base import FloatArray

__all__ = ["basis_record"]


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
        class_weights=class_weights(labels, weights),
        likelihood=trained.likelihood.to_json(),
        regularisation=trained.regularisation,
        kernel_lower=trained.kernel_lower,
        posterior_lower=trained.posterior_lower,
    )
