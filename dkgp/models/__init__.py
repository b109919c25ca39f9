"""Models: what is computed from kernel systems, from hyperparameters to predictions."""

from __future__ import annotations

from dkgp.models.hyperparameters import Hyperparameters, read_hyperparameters, write_hyperparameters
from dkgp.models.likelihood_search import TuneProgress
from dkgp.models.marginal_likelihood import projected_peak_bytes
from dkgp.models.priors import LogNormal
from dkgp.models.tuned_parameter import TunedParameter
from dkgp.models.tuning import tune, tune_dataset
from dkgp.models.tuning_run import projected_tuning_bytes

__all__ = [
    "Hyperparameters",
    "LogNormal",
    "TuneProgress",
    "TunedParameter",
    "projected_peak_bytes",
    "projected_tuning_bytes",
    "read_hyperparameters",
    "tune",
    "tune_dataset",
    "write_hyperparameters",
]
