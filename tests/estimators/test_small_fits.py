"""Fixed costs of small fits, counted: threads, calls of psutil, completed options."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

from dkgp import options
from dkgp.cluster.executors import base
from dkgp.estimators import ConjugateDirectionsPursuit, GPRegressor, SparseGPRegressor
from dkgp.kernels import SquaredExponential
from dkgp.models.sparse.settings import SparseSettings

KERNEL = SquaredExponential((1.0, 1.0))
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "exact": lambda: GPRegressor(KERNEL, noise_variance=0.1, optimizer=None),
    "sparse": lambda: SparseGPRegressor(KERNEL, noise_variance=0.1, optimizer=None, basis_size=10),
    "pursuit": lambda: ConjugateDirectionsPursuit(1),
}


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Count the calls of a function."""
    calls: list[str] = []
    function = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_small_fit_starts_no_thread_and_hardly_asks_for_memory(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = rng.normal(size=(60, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=60)
    ESTIMATORS[name]().fit(X, y)  # compiles
    monkeypatch.setattr(base, "QUICK_SECONDS", 1.0)  # a busy machine's tasks are quick too
    threads, memory = counted(monkeypatch, threading.Thread, "start"), counted(monkeypatch, psutil, "virtual_memory")
    ESTIMATORS[name]().fit(X, y)
    assert not threads
    assert len(memory) <= 2


def test_a_class_completes_its_options_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = options.options_of(SparseSettings)
    completed = counted(monkeypatch, options, "_completed")
    assert options.options_of(SparseSettings) == expected
    assert expected["candidates"].name == "candidates"
    assert not completed
