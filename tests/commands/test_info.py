from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dkgp.commands.info import InfoJob, run_info
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.reporting.tables import tables
from dkgp.data import FactorRecord, FactorWriter, TableOptions, dataset_from_arrays, ingest, open_model, save_model
from dkgp.data.remote.storage import list_object_bytes

N, RANK = 60, 7


@pytest.fixture
def model(tmp_path: Path, rng: np.random.Generator) -> str:
    X = rng.normal(size=(N, 2))
    dataset = dataset_from_arrays(tmp_path / "train.zarr", X, X[:, 0])
    url = str(tmp_path / "model.zarr")
    save_model(url, kernel={"type": "rbf", "gamma": [1.0, 1.0]}, noise_variance=0.01, alpha=X[:, 0], dataset=dataset)
    return url


def _keep(model: str, rng: np.random.Generator) -> FactorRecord:
    metadata = {"fingerprint": open_model(model).fingerprint, "noise_variance": 0.01, "kernel": {}, "seed": 3}
    writer = FactorWriter.create(model, metadata, N, RANK)
    writer.write_columns(0, rng.normal(size=(N, RANK)).astype(np.float32))
    return writer.commit(np.arange(RANK), np.eye(RANK), np.eye(RANK), np.ones(N))


def _info(model: str) -> tuple[dict[str, Any], str]:
    """The document, and what a person sees of it."""
    document = run_info(InfoJob(model), SilentReporter())
    console = Console(width=200)
    with console.capture() as captured:
        console.print(*tables(document))
    return document, captured.get()


def test_a_kept_factor_is_told(model: str, rng: np.random.Generator) -> None:
    before, shown = _info(model)
    assert (before["variance_factor"], before["variance_factor_bytes"]) == (None, 0)
    assert "size of the stored factor" not in shown
    factor = _keep(model, rng)
    document, shown = _info(model)
    assert document["variance_factor"] == {"rank": RANK, "seed": 3}
    size = sum(list_object_bytes(factor.url).values())
    assert document["variance_factor_bytes"] == size > factor.nbytes / 2
    assert document["stored_bytes"] == before["stored_bytes"] + size
    assert {**document, "stored_bytes": 0, "variance_factor": None, "variance_factor_bytes": 0} == {
        **before,
        "stored_bytes": 0,
    }
    assert "rank: 7" in shown or "rank 7" in shown


def test_a_damaged_factor_does_not_hide_the_model(model: str, rng: np.random.Generator) -> None:
    factor = _keep(model, rng)
    (Path(factor.url) / "lower" / "c" / "0" / "0").unlink()
    document, shown = _info(model)
    assert document["n"] == N
    assert "Chunk lower/c/0/0" in document["variance_factor"]["damaged"]
    assert document["variance_factor_bytes"] is None
    assert "damaged: " in shown


def test_an_unfinished_factor_is_none(model: str) -> None:
    FactorWriter.create(model, {"fingerprint": open_model(model).fingerprint}, N, RANK)
    assert _info(model)[0]["variance_factor"] is None


def test_a_dataset_tells_its_ids(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,no,y\n1,p1,2\n2,p2,3\n3,p3,5\n")
    store = tmp_path / "t.zarr"
    ingest(tmp_path / "t.csv", store, target="y", ids=["no"])
    document, shown = _info(str(store))
    assert document["ids"] == ["no"]
    assert "id columns no" in " ".join(shown.split())
    ingest(tmp_path / "t.csv", store, target="y", table=TableOptions(drop=("no",)), overwrite=True)
    assert "ids" not in _info(str(store))[0]
