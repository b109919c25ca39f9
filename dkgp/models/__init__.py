"""Models: what is computed from kernel systems, from hyperparameters to predictions."""

from __future__ import annotations

from dkgp.models.hyperparameters import Hyperparameters, read_hyperparameters, write_hyperparameters
from dkgp.models.likelihood_search import TuneProgress
from dkgp.models.marginal_likelihood import projected_peak_bytes
from dkgp.models.tuning import tune, tune_dataset

__all__ = [
    "Hyperparameters",
    "TuneProgress",
    "projected_peak_bytes",
    "read_hyperparameters",
    "tune",
    "tune_dataset",
    "write_hyperparameters",
]
