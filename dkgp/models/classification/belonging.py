"""Checkpoints that belong to labels, weights and settings."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import numpy as np

from dkgp.data.types import Json
from dkgp.models.classification.labels import Labels
from dkgp.operators.base import FloatArray
from dkgp.solvers import Checkpointing

__all__ = ["belonging"]


def belonging(
    checkpointing: Checkpointing | None, labels: Labels, weights: FloatArray | None, **settings: Json | bool | float
) -> Checkpointing | None:
    """Checkpoints that belong to these labels, weights and settings too; None where there are to be none."""
    if checkpointing is None:
        return None
    own = {
        "classes": list(labels.classes),
        "labels": sha256(np.ascontiguousarray(labels.codes, dtype="<i8").tobytes()).hexdigest(),
        "weights": None
        if weights is None
        else sha256(np.ascontiguousarray(weights, dtype="<f8").tobytes()).hexdigest(),
        **settings,
    }
    return replace(checkpointing, identity={**checkpointing.identity, **own})
