"""A data set and hyperparameters in a folder, which tests of commands, jobs and processes train on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.data import dataset_from_arrays


def write_hyper(path: Path, gamma: Sequence[float], noise_variance: float, variance: float = 1.0) -> Path:
    """Write hyperparameters of a squared exponential kernel."""
    kernel = {"type": "rbf", "variance": variance, "gamma": list(gamma)}
    path.write_text(json.dumps({"kernel": kernel, "noise_variance": noise_variance}))
    return path


@dataclass(frozen=True)
class Stored:
    """Paths of a data set and of hyperparameters."""

    folder: Path

    @property
    def dataset(self) -> str:
        return str(self.folder / "train.zarr")

    @property
    def hyper(self) -> str:
        return str(self.folder / "hyper.json")

    def training(self, out: object, **more: Any) -> dict[str, Any]:
        """Options of a job that trains on them."""
        return {"dataset": self.dataset, "hyper": self.hyper, "out": str(out), **more}

    def train(self, out: object, *options: object, dataset: object = None) -> list[str]:
        """Arguments of `dkgp` that train on them, or on another data set."""
        given = ("train", dataset or self.dataset, "--hyper", self.hyper, "--out", out, *options)
        return [str(argument) for argument in given]


def store(
    folder: Path, X: np.ndarray, y: np.ndarray, gamma: Sequence[float], noise_variance: float, **options: Any
) -> Stored:
    """Write arrays and hyperparameters."""
    dataset_from_arrays(folder / "train.zarr", X, y, **options)
    write_hyper(folder / "hyper.json", gamma, noise_variance)
    return Stored(folder)
