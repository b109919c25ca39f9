"""Computations that are interrupted or killed and resumed: all must end in the bits of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pytest

from dkgp.data.stores.checkpoint import CheckpointStore
from dkgp.errors import CheckpointError, InterruptedRunError
from dkgp.solvers import Checkpointing

NEVER = 1e9
# A resumed run spends other times, and may evaluate entries again.
UNLIKE = {"seconds", "timings", "kernel_evaluations", "entries", "seconds_by_part"}
T = TypeVar("T")


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Return all that a result holds, by its place, to the bit, but times and counts of kernel entries."""
    if isinstance(value, np.ndarray | np.generic):
        return {place: (value.shape, value.tobytes())}
    if isinstance(value, float):
        return {place: value.hex()}
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {place: value}
    parts = {name: item for name, item in value.items() if name not in UNLIKE}
    return {path: leaf for name, item in parts.items() for path, leaf in leaves(item, f"{place}.{name}").items()}


def require_same_bits(found: Any, expected: Any) -> None:
    """Require that two results are the same to the bit, but for times and counts of kernel entries."""
    one, other = leaves(found), leaves(expected)
    assert one.keys() == other.keys()
    assert [place for place in one if one[place] != other[place]] == []


class Resuming(Generic[T]):
    """Runs of one computation that keep their state in one folder.

    `run` takes the keywords of a `Watch`, and perhaps other options. `identity` is that of the checkpoints.
    """

    def __init__(self, run: Callable[..., T], folder: Path, **identity: Any) -> None:
        self.store = CheckpointStore(folder / "checkpoints")
        self._run, self._identity = run, identity

    @cached_property
    def whole(self) -> T:
        """The result of a run that nothing ends."""
        return self._run()

    def start(self, every_seconds: float = NEVER, **options: Any) -> T:
        """Run from the beginning, with checkpoints."""
        self.store.clear()
        return self._run(checkpointing=Checkpointing(self.store, every_seconds, self._identity), **options)

    def interrupt(self, rounds: int, *, again: bool = False, **options: Any) -> InterruptedRunError:
        """Interrupt a run as Ctrl-C does, once so many rounds are done; with `again` one that goes on."""
        done = [0]

        def count(progress: Any) -> None:
            done[0] = progress.iteration if hasattr(progress, "iteration") else progress.round

        begin = self.resume if again else self.start
        with pytest.raises(InterruptedRunError) as caught:
            begin(callback=count, interrupted=lambda: done[0] >= rounds, **options)
        assert caught.value.checkpoint == self.store.url
        assert "saved in" in str(caught.value)
        return caught.value

    def resume(self, identity: dict[str, Any] | None = None, every_seconds: float = NEVER, **options: Any) -> T:
        """Go on from the latest checkpoint."""
        expected = self._identity if identity is None else identity
        checkpointing = Checkpointing(self.store, every_seconds, expected, resume=True)
        return self._run(checkpointing=checkpointing, **options)

    def require_same(self, whole: T | None = None, **options: Any) -> T:
        """Go on, and require the bits of the whole run; return the result."""
        resumed = self.resume(**options)
        require_same_bits(resumed, self.whole if whole is None else whole)
        return resumed

    def require_refused(self, words: str, **options: Any) -> None:
        """Require that another run is not gone on with."""
        with pytest.raises(CheckpointError, match=words):
            self.resume(**options)


def kill(script: str, *arguments: object) -> None:
    """Run a script that kills its own process."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    root = Path(__file__).parents[1]
    died = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, check=False, timeout=120
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()


class Wish:
    """Asks for the end after so many questions."""

    def __init__(self, after: int) -> None:
        self._remaining = after

    def __call__(self) -> bool:
        self._remaining -= 1
        return self._remaining < 0
