from .certificate import Certificate
from .context import RunContext
from .exact import TrainedModel, save, train, update
from .hyperparameters import Hyperparameters, TunedParameter, read_hyperparameters, write_hyperparameters
from .prediction import Destination, PredictSummary, predict
from .sparse.settings import SparseSettings
from .sparse.stored import open_sparse, save_sparse, update_sparse
from .sparse.train import train_sparse
from .tuning.objectives import projected_peak_bytes
from .tuning.search import TuneProgress
from .tuning.space import LogNormal
from .tuning.tune import projected_tuning_bytes, tune, tune_dataset
from .variance import VarianceSettings

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
