"""What a training process takes at its peak, against what was projected before it started."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays

Train = Callable[..., dict[str, Any]]


@pytest.fixture
def train(start_process: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Train:
    """Train in a process of its own, for about a pass and its verification; return the document.

    What is counted for the libraries is for compiling: each process does, and alone. What helpers leave to it chance
    decides, and the document's peak is of all processes.
    """
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}

    def run(n: int, d: int, *options: object) -> dict[str, Any]:
        X, y = friedman1(n, n_features=max(d, 5))
        dataset_from_arrays(str(tmp_path / "train.zarr"), X[:, :d], y)
        hyper = tmp_path / "hyper.json"
        hyper.write_text(
            json.dumps({"kernel": {"type": "rbf", "variance": 1.0, "gamma": [0.3] * d}, "noise_variance": 0.1})
        )
        command = ("train", tmp_path / "train.zarr", "--hyper", hyper, "--out", tmp_path / "model.zarr", "--json")
        alone = "tests.engine.without_helpers"
        process = start_process(alone, *command, *options, stdout=subprocess.PIPE, environment=environment)
        document = json.loads(process.communicate(timeout=200)[0])
        assert process.returncode in (0, 4), document
        return document  # type: ignore[no-any-return]

    return run


def assert_projected(document: dict[str, Any]) -> None:
    """Peak at or below the projection, and the projection within a factor of 2 of it."""
    peak_bytes, projected_bytes = document["peak_memory_bytes"], document["memory_plan"]["coordinator_bytes"]
    assert peak_bytes <= projected_bytes <= 2 * peak_bytes


# Blocks of one size: what is planned for growing ones is not used by a solve that is cut off before they grow.
FIXED = ("--block-size", 1000)


@pytest.mark.portable
def test_small(train: Train) -> None:
    assert_projected(train(20_000, 8, *FIXED, "--max-passes", 0.2, "--cluster", "none"))


@pytest.mark.slow
def test_blocks_that_may_grow_are_planned_for_at_their_largest(train: Train) -> None:
    document = train(6_000, 4, "--block-size", 250, "--largest-block-size", 3000, "--max-passes", 0.1)
    fixed = 2 * 4 * 3000**2  # a float64 triangle, or two in float32, at the least
    assert document["memory_plan"]["block_bytes"] > fixed
    assert document["peak_memory_bytes"] <= document["memory_plan"]["coordinator_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["none", "local"])
@pytest.mark.parametrize(("n", "d"), [(20_000, 8), (60_000, 4), (20_000, 40)])
def test_sizes(train: Train, n: int, d: int, cluster: str) -> None:
    assert_projected(train(n, d, *FIXED, "--max-passes", 1.2, "--cluster", cluster))


@pytest.mark.slow
def test_checkpoints_in_mid_run_are_counted(train: Train) -> None:
    """With many remembered steps, of a hundred rounds, gathering them for a checkpoint is what takes most."""
    document = train(60_000, 4, "--memory", 80, "--block-size", 150, "--max-passes", 0.25, "--checkpoint-every", 1)
    assert document["memory_plan"]["vectors_bytes"] > 150e6
    assert_projected(document)


@pytest.mark.slow
def test_a_run_that_does_little_but_compile(train: Train) -> None:
    assert_projected(train(2000, 4, "--max-passes", 1.2))
