"""Samples of a model with neighbours, between memory and a store."""

from __future__ import annotations

from typing import Any

from dkgp.data.stores.models.regression import NearArrays
from dkgp.models.sparse.vif.prediction import Near
from dkgp.operators.base import Variances


def near_fields(near: Near) -> dict[str, Any]:
    """The fields of a record that models with neighbours have beside others."""
    return {
        "neighbours": near.size,
        "search_samples": near.searched,
        "near_inputs": near.inputs,
        "near_targets": near.targets,
        "near_noise": None if isinstance(near.noise, float) else near.noise,
        "near_weights": near.whitened,
        "near_normal": near.normal,
        "near_embedding": near.embedding,
    }


def near_of(record: NearArrays, noise: Variances | None = None) -> Near:
    """The samples of a record; `noise` where it has none by sample. `ValueError` where something is missing."""
    size, inputs, targets = record.neighbours, record.near_inputs, record.near_targets
    weights, normal = record.near_weights, record.near_normal
    noise = noise if record.near_noise is None else record.near_noise
    if size is None or inputs is None or targets is None or weights is None or normal is None or noise is None:
        raise ValueError("a model with neighbours without these")
    if not 0 <= size <= len(inputs):
        raise ValueError(f"{size} neighbours of {len(inputs)} samples")
    if record.search_samples is not None and record.search_samples < 1:
        raise ValueError(f"a search of {record.search_samples} samples")
    return Near(inputs, targets, noise, size, weights, normal, record.near_embedding, record.search_samples)
