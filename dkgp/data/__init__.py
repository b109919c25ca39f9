"""Stores and sources: everything that dkgp reads from or writes to disks and object stores."""

from __future__ import annotations

from dkgp.data._manifest import is_committed, recognise
from dkgp.data._types import Progress, ProgressCallback
from dkgp.data.checkpoint import Checkpoint, CheckpointStore
from dkgp.data.dataset import Dataset, open_dataset
from dkgp.data.dataset_writer import DatasetWriter, dataset_from_arrays
from dkgp.data.factor_store import FactorRecord, FactorWriter, discard_factor, open_factor
from dkgp.data.ingest import IngestReport, ingest
from dkgp.data.memory_dataset import append_rows, memory_dataset, standardised_inputs
from dkgp.data.memory_model import find_model, memory_model
from dkgp.data.model_store import ModelRecord, open_model, save_model
from dkgp.data.prediction_store import Prediction, PredictionWriter, open_prediction
from dkgp.data.standardisation import RunningMoments, Standardisation
from dkgp.data.storage import exists
from dkgp.data.synthetic import friedman1, rbf_mixture, write_friedman1, write_rbf_mixture
from dkgp.data.writable import ensure_writable

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Dataset",
    "DatasetWriter",
    "FactorRecord",
    "FactorWriter",
    "IngestReport",
    "ModelRecord",
    "Prediction",
    "PredictionWriter",
    "Progress",
    "ProgressCallback",
    "RunningMoments",
    "Standardisation",
    "append_rows",
    "dataset_from_arrays",
    "discard_factor",
    "ensure_writable",
    "exists",
    "find_model",
    "friedman1",
    "ingest",
    "is_committed",
    "memory_dataset",
    "memory_model",
    "open_dataset",
    "open_factor",
    "open_model",
    "open_prediction",
    "rbf_mixture",
    "recognise",
    "save_model",
    "standardised_inputs",
    "write_friedman1",
    "write_rbf_mixture",
]
