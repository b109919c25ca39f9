"""A basis of the user's own, read from a file or store: inputs in the units of the features, or sample numbers.

| what is given | is |
|---|---|
| a table with columns of the features' names | inputs |
| one with a column `index`, or one column alone where the data have several features | sample numbers, from 0 |
| one with as many columns as the data have features | inputs, by position |
| a dataset store | its inputs |
| a sparse model's store | its basis |
| a file of hyperparameters by a sparse model's evidence on the same data | the samples that this was maximised with |
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from dkgp.data import Dataset, open_dataset, recognise
from dkgp.data.remote.storage import normalise_url
from dkgp.data.sources.base import Column, Source
from dkgp.data.sources.formats import expand_locations, open_source
from dkgp.data.stores.dataset import DATASET_KIND
from dkgp.data.stores.models.regression import SPARSE_MODEL_KIND, open_sparse_model
from dkgp.errors import InputError
from dkgp.models import read_hyperparameters
from dkgp.operators.base import FloatArray, IndexArray

INDEX = "index"


def read_given_basis(location: str, dataset: Dataset) -> IndexArray | FloatArray:
    """Read a given basis for a training set: sample numbers (m,), or standardised inputs (m, d).

    Raises `InputError`: nothing there, a number that is missing or not finite, other features, a sample that does not
    exist.
    """
    location = normalise_url(location)
    kind = recognise(location)
    if kind == SPARSE_MODEL_KIND:
        return _of_model(location, dataset)
    if kind == DATASET_KIND:
        seen = open_dataset(location).as_seen_by(dataset.feature_names, (), dataset.standardisation)
        return seen.inputs(0, seen.n_samples)
    if location.endswith(".json"):
        return _tuned(location, dataset)
    places = expand_locations(location)
    if places != [location]:
        # Whoever limits where a job may read has judged this place, and not what a pattern leads to.
        raise InputError(f"a basis is one file or store; '{location}' stands for what it leads to")
    source = open_source(places, {})
    by_name, expected = {column.name: column for column in source.columns}, len(dataset.raw_feature_names)
    if set(dataset.feature_names) <= by_name.keys():
        raw = _values(source, [by_name[name] for name in dataset.feature_names])
        return np.asarray((raw - dataset.standardisation.input_mean) / dataset.standardisation.input_std)
    if INDEX in by_name or (len(source.positional) == 1 and expected > 1):
        return _indices(_values(source, [by_name.get(INDEX, source.positional[0])])[:, 0], location, dataset)
    if len(source.positional) != expected:
        raise InputError(
            f"the basis in '{source.url}' has {len(source.positional)} columns; expected the {expected} features "
            f"{', '.join(dataset.raw_feature_names)}, or one column of sample numbers"
        )
    return dataset.standardisation.inputs(_values(source, source.positional))


def digest(basis: IndexArray | FloatArray | None) -> str | None:
    """Return a name for the numbers of a given basis."""
    return None if basis is None else hashlib.sha256(np.ascontiguousarray(basis).tobytes()).hexdigest()[:32]


def _tuned(location: str, dataset: Dataset) -> IndexArray:
    hyperparameters = read_hyperparameters(location, n_features=dataset.n_features, feature_names=dataset.feature_names)
    samples = (hyperparameters.sparse or {}).get("samples")
    if not samples:
        raise InputError(
            f"the hyperparameters in '{location}' name no basis: `dkgp tune --objective bound` writes one with them"
        )
    return _indices(np.asarray(samples, dtype=np.float64), location, dataset)


def _of_model(location: str, dataset: Dataset) -> IndexArray | FloatArray:
    record = open_sparse_model(location)
    if record.fingerprint == dataset.fingerprint:
        return record.prototypes if record.indices is None else np.asarray(record.indices, dtype=np.intp)
    if record.feature_names != dataset.feature_names:
        raise InputError(
            f"the sparse model '{location}' has the features {', '.join(record.feature_names)}; "
            f"'{dataset.url}' has {', '.join(dataset.feature_names)}"
        )
    source, target = record.standardisation, dataset.standardisation
    raw = record.prototypes * source.input_std + source.input_mean
    return np.asarray((raw - target.input_mean) / target.input_std)


def _values(source: Source, columns: Sequence[Column]) -> FloatArray:
    """All rows of some columns; `InputError` names the row of a number that is none."""
    parts = []
    for block in source.blocks(columns):
        bad = np.argwhere(~np.isfinite(block.values))
        if len(bad):
            row, column = bad[0]
            raise InputError(
                f"a basis has finite numbers alone; column '{columns[column].name}' has {block.values[row, column]} in "
                f"{block.place(int(row))}"
            )
        parts.append(block.values)
    values = np.concatenate(parts) if parts else np.empty((0, len(columns)))
    if not len(values):
        raise InputError(f"the basis in '{source.url}' has no rows; expected at least one")
    return values


def _indices(values: FloatArray, location: str, dataset: Dataset) -> IndexArray:
    n, rows = dataset.n_samples, np.arange(len(values))
    wrong = rows[(values != np.floor(values)) | (values < 0) | (values >= n)]
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"row {row + 1} of the basis '{location}' is {values[row]:g}; expected sample numbers from 0 to {n - 1:,}"
        )
    return np.asarray(values, dtype=np.intp)
