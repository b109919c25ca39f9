"""A model of 1,000 samples, and a variance factor to keep with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dkgp.data import Dataset, FactorRecord, FactorWriter, open_factor, open_model, save_model
from dkgp.data.remote.storage import list_object_bytes

N, RANK, CHUNK_ROWS = 1000, 40, 130
METADATA: dict[str, Any] = {"rank": RANK, "seed": np.int64(4), "kernel": {"type": "rbf"}, "reason": "rank reached"}

Factor = dict[str, np.ndarray]


def random_factor(rng: np.random.Generator) -> Factor:
    return {
        "columns": rng.normal(size=(N, RANK)).astype(np.float32),
        "indices": rng.choice(N, RANK, replace=False),
        "lower": np.tril(rng.normal(size=(RANK, RANK))),
        "gram_lower": np.tril(rng.normal(size=(RANK, RANK))),
        "residual_diagonal": rng.uniform(size=N),
    }


def small(factor: Factor) -> Factor:
    """Return the arguments of `commit` without the columns."""
    return {name: values for name, values in factor.items() if name != "columns"}


def save(url: str, dataset: Dataset, noise_variance: float = 0.01, by_reference: bool = False) -> str:
    save_model(
        url,
        kernel={"type": "rbf"},
        noise_variance=noise_variance,
        alpha=np.zeros((N, 1)),
        dataset=dataset,
        by_reference=by_reference,
        overwrite=True,
    )
    return url


def begin(model: str | Path, **metadata: Any) -> FactorWriter:
    content = {**METADATA, "fingerprint": open_model(model).fingerprint, **metadata}
    return FactorWriter.create(model, content, N, RANK, chunk_rows=CHUNK_ROWS)


def keep(model: str | Path, factor: Factor, **metadata: Any) -> FactorRecord:
    writer = begin(model, **metadata)
    for first, stop in writer.row_chunks():
        writer.write_columns(first, factor["columns"][first:stop])
    return writer.commit(**small(factor))


def found(model: str | Path) -> FactorRecord | None:
    return open_factor(model, fingerprint=open_model(model).fingerprint)


def opened(model: str | Path) -> FactorRecord:
    record = found(model)
    assert record is not None
    return record


def folders(model: str | Path) -> set[str]:
    """The folders of factors, whatever their state, inside a model's."""
    names = {name.split("/")[0] for name in list_object_bytes(model)}
    return {name for name in names if name.startswith("variance_factor")}
