from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[..., Any]


def labelled_csv(path: Path, labels: tuple[str, ...], n: int, seed: int) -> Path:
    """A file of labels that a curve in the first two of three features tells apart, save for a little noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    height = X[:, 0] ** 2 + X[:, 1] + 0.15 * rng.standard_normal(n)
    edges = np.quantile(height, np.arange(1, len(labels)) / len(labels))
    names = np.array(labels)[np.digitize(height, edges)]
    lines = [",".join([*(f"{value:.9g}" for value in row), name]) for row, name in zip(X, names, strict=True)]
    path.write_text("\n".join(["a,b,c,species", *lines]) + "\n")
    return path


@pytest.fixture(scope="session")
def labelled(
    tmp_path_factory: pytest.TempPathFactory, run: Command, document: Command
) -> Callable[[int], dict[str, Any]]:
    """What `dkgp ingest` tells of so many classes' training and test stores, made once."""
    made: dict[int, dict[str, Any]] = {}
    names = {2: ("sit", "run"), 3: ("walk", "sit", "run")}

    def ingested(n_classes: int) -> dict[str, Any]:
        if n_classes not in made:
            folder = tmp_path_factory.mktemp(f"classes{n_classes}")
            csv = labelled_csv(folder / "data.csv", names[n_classes], 450, seed=n_classes)
            command = ("ingest", csv, folder / "train.zarr", "--labels", "species", "--test-fraction", 0.33)
            made[n_classes] = document(run(*command, "--test-out", folder / "test.zarr", "--json"))
        return made[n_classes]

    return ingested
