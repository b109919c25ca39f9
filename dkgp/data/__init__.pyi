from .remote.storage import exists
from .sources.ingest import IngestReport, ingest
from .sources.synthetic import friedman1, rbf_mixture, write_friedman1, write_rbf_mixture
from .sources.tables.learning import TableOptions
from .stores.checkpoint import Checkpoint, CheckpointStore
from .stores.dataset import Dataset, open_dataset
from .stores.dataset_writer import DatasetWriter, dataset_from_arrays, write_rows
from .stores.factor_store import FactorRecord, FactorWriter, discard_factor, open_factor
from .stores.manifest import is_committed, recognise
from .stores.memory_dataset import append_rows, memory_dataset, standardised_inputs
from .stores.models.classifier import (
    AnyModel,
    ClassifierRecord,
    find_any_model,
    memory_classifier,
    open_any_model,
    open_classifier,
    save_classifier,
)
from .stores.models.model import is_resident
from .stores.models.regression import (
    LINEAR_MODEL_KIND,
    LinearRecord,
    ModelRecord,
    SparseRecord,
    memory_model,
    memory_sparse_model,
    open_linear_model,
    open_model,
    open_sparse_model,
    save_linear_model,
    save_model,
    save_sparse_model,
)
from .stores.prediction_store import Prediction, PredictionWriter, open_prediction
from .stores.standardisation import RunningMoments, Standardisation
from .stores.writable import ensure_writable
from .types import Progress, ProgressCallback

__all__ = [
    "LINEAR_MODEL_KIND",
    "AnyModel",
    "Checkpoint",
    "CheckpointStore",
    "ClassifierRecord",
    "Dataset",
    "DatasetWriter",
    "FactorRecord",
    "FactorWriter",
    "IngestReport",
    "LinearRecord",
    "ModelRecord",
    "Prediction",
    "PredictionWriter",
    "Progress",
    "ProgressCallback",
    "RunningMoments",
    "SparseRecord",
    "Standardisation",
    "TableOptions",
    "append_rows",
    "dataset_from_arrays",
    "discard_factor",
    "ensure_writable",
    "exists",
    "find_any_model",
    "friedman1",
    "ingest",
    "is_committed",
    "is_resident",
    "memory_classifier",
    "memory_dataset",
    "memory_model",
    "memory_sparse_model",
    "open_any_model",
    "open_classifier",
    "open_dataset",
    "open_factor",
    "open_linear_model",
    "open_model",
    "open_prediction",
    "open_sparse_model",
    "rbf_mixture",
    "recognise",
    "save_classifier",
    "save_linear_model",
    "save_model",
    "save_sparse_model",
    "standardised_inputs",
    "write_friedman1",
    "write_rbf_mixture",
    "write_rows",
]
