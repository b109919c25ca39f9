"""`dkgp classify --basis-size` killed (kill -9) at any moment, and on other workers: the model's bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import open_classifier
from tests.cli.classify.test_killed import Labelled, Process, classify, killed_after, out
from tests.cli.test_finished import killed_at

__all__ = ["out"]  # a fixture

Command = Callable[..., Any]
# Hyperparameters found beforehand come to the same bits, and are found again on resuming.
LOGISTIC = ("--method", "logistic", "--basis-size", 25, "--regularisation", 0.01, "--tol", 1e-4, "--certify")
PROCESS = ("--method", "gp", "--basis-size", 25, "--basis", "greedy", "--tol", 1e-4)
FORMS = pytest.mark.parametrize("method", [LOGISTIC, PROCESS], ids=["logistic", "gp"])


def same_model(found: Path, expected: Path) -> None:
    """To the last bit, with the same steps to it."""
    one, other = open_classifier(str(found)), open_classifier(str(expected))
    for name in ("prototypes", "weights", "indices", "kernel_lower", "posterior_lower"):
        assert np.asarray(getattr(one, name)).tobytes() == np.asarray(getattr(other, name)).tobytes(), name
    for name in ("kernel", "likelihood", "certificate"):
        assert getattr(one, name) == getattr(other, name), name
    steps = [[(step["iteration"], step["objective"]) for step in record.history] for record in (one, other)]
    assert steps[0] == steps[1]
    assert len(steps[0]) > 4


@pytest.mark.faults
@FORMS
@pytest.mark.parametrize("number", [1, 4])
def test_killed_after_a_step_it_resumes_to_the_same_bits(
    labelled: Labelled,
    process: Process,
    run: Command,
    document: Command,
    out: Path,
    method: tuple[object, ...],
    number: int,
) -> None:
    whole = out.parent / "whole.zarr"
    document(run(*classify(labelled(3), whole, *method)))
    command = classify(labelled(3), out, *method, "--checkpoint-every", 0)
    killed_after(process, "dkgp.data.stores.checkpoint:CheckpointStore.save", number, command)
    assert not out.exists()
    result = run(*command, "--resume")
    document(result)
    assert "resuming after round" in result.stderr
    same_model(out, whole)


@pytest.mark.faults
@pytest.mark.parametrize(
    "place",
    ["dkgp.models.classification.basis.train:certify_basis", "dkgp.data.stores.classifier.classifier_store:commit"],
)
def test_killed_after_the_last_step_it_resumes_to_the_same_bits(
    labelled: Labelled, process: Process, run: Command, document: Command, out: Path, place: str
) -> None:
    whole = out.parent / "whole.zarr"
    document(run(*classify(labelled(2), whole, *LOGISTIC)))
    killed_at(process, place, classify(labelled(2), out, *LOGISTIC))
    document(run(*classify(labelled(2), out, *LOGISTIC, "--resume")))
    same_model(out, whole)


@pytest.mark.slow
@FORMS
def test_worker_processes_come_to_the_same_bits(
    labelled: Labelled, run: Command, document: Command, out: Path, method: tuple[object, ...]
) -> None:
    whole = out.parent / "whole.zarr"
    document(run(*classify(labelled(3), whole, *method, "--cluster", "none")))
    document(run(*classify(labelled(3), out, *method, "--cluster", "processes", "--workers", 2)))
    same_model(out, whole)
