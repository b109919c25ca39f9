"""Models: what is computed from kernel systems, from hyperparameters to predictions."""

# Hangs on dkgp/models/exact.py.

from __future__ import annotations

from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.exact import TrainedModel, save, train
from dkgp.models.hyperparameters import Hyperparameters, read_hyperparameters, write_hyperparameters
from dkgp.models.prediction import Destination, PredictSummary, predict
from dkgp.models.sparse.settings import SparseSettings
from dkgp.models.sparse.stored import open_sparse, save_sparse
from dkgp.models.sparse.train import train_sparse
from dkgp.models.sparse.update import update_sparse
from dkgp.models.tuned_parameter import TunedParameter
from dkgp.models.tuning.likelihood_search import TuneProgress
from dkgp.models.tuning.marginal_likelihood import projected_peak_bytes
from dkgp.models.tuning.run import projected_tuning_bytes
from dkgp.models.tuning.search_space import LogNormal
from dkgp.models.tuning.tune import tune, tune_dataset
from dkgp.models.update import update
from dkgp.models.variance import VarianceSettings

__all__ = [
    "Certificate",
    "Destination",
    "Hyperparameters",
    "LogNormal",
    "PredictSummary",
    "RunContext",
    "SparseSettings",
    "TrainedModel",
    "TuneProgress",
    "TunedParameter",
    "VarianceSettings",
    "open_sparse",
    "predict",
    "projected_peak_bytes",
    "projected_tuning_bytes",
    "read_hyperparameters",
    "save",
    "save_sparse",
    "train",
    "train_sparse",
    "tune",
    "tune_dataset",
    "update",
    "update_sparse",
    "write_hyperparameters",
]
