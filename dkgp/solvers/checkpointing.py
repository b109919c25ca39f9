"""Checkpoints of a solve: what they must belong to, when they are saved, and what an interruption leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dkgp.cluster.arithmetic import own_arithmetic
from dkgp.data.stores.checkpoint import Checkpoint, CheckpointStore
from dkgp.errors import CheckpointError, InterruptedRunError
from dkgp.solvers.state import SolverState

__all__ = ["Checkpointing", "Checkpoints", "Interruption"]


@dataclass
class Checkpointing:
    """Settings of a solve's checkpoints: the place, how often, and what they must belong to.

    Parameters
    ----------
    store : CheckpointStore
    every_seconds : float
    identity : dict
        What the solve is of (data fingerprint, kernel, noise); compared on resume.
    resume : bool
        Continue from the latest checkpoint where there is one.
    """

    store: CheckpointStore
    every_seconds: float = 30.0
    identity: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    _read: Checkpoint | None = field(default=None, init=False, repr=False, compare=False)

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint to resume, which is read once: who looks at it before the solve leaves it here."""
        if self.resume and self._read is None:
            self._read = self.store.load_latest()
        return self._read

    def take_latest(self) -> Checkpoint | None:
        """Return the checkpoint to resume, and let go of it: its arrays become the state's."""
        found, self._read = self.latest(), None
        return found

    @property
    def held_bytes(self) -> int:
        """Bytes of a checkpoint that was looked at, and waits for its solve."""
        return 0 if self._read is None else sum(array.nbytes for array in self._read.arrays.values())


class Checkpoints:
    """The checkpoints of one solve; without settings there are none.

    A resumed solve must share the solver's settings, `solver`; `loop` tells what the driver keeps beside the state.
    """

    def __init__(
        self, settings: Checkpointing | None, solver: dict[str, Any], loop: Callable[[], dict[str, Any]]
    ) -> None:
        self._settings, self._solver, self._loop = settings, solver, loop
        self._saved = time.perf_counter()

    @property
    def url(self) -> str | None:
        """Place of the checkpoints; None where there are none."""
        return None if self._settings is None else self._settings.store.url

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint to go on from, if there is one.

        Raises
        ------
        CheckpointError
            It belongs to another run.
        """
        found = None if self._settings is None else self._settings.take_latest()
        if self._settings is None or found is None:
            return None
        for name, value in {"identity": self._settings.identity, "solver": self._solver}.items():
            if found.metadata.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint belongs to another run: its {name} is {found.metadata.get(name)!r}; this run's is "
                    f"{value!r}. Resume with the same data and options, or start afresh without `resume`"
                )
        return found

    def save(self, state: SolverState) -> None:
        """Save the state."""
        if self._settings is None:
            return
        metadata = {
            "identity": self._settings.identity,
            "solver": self._solver,
            # The dense algebra is this process's BLAS's: who goes on elsewhere keeps the tolerance, not the bits.
            "arithmetic": own_arithmetic().to_json(),
            "state": state.metadata(),
            "loop": self._loop(),
        }
        self._settings.store.save(state.iteration, state.arrays(), metadata)
        self._saved = time.perf_counter()

    def save_if_due(self, state: SolverState) -> None:
        """Save the state where the last time is long enough ago."""
        if self._settings is not None and time.perf_counter() - self._saved >= self._settings.every_seconds:
            self.save(state)


class Interruption:
    """A wish to end the solve between two rounds, its state saved; `wanted` answers whether there is one."""

    def __init__(self, wanted: Callable[[], bool] | None, checkpoints: Checkpoints) -> None:
        self._wanted, self._checkpoints = wanted, checkpoints

    def heed(self, state: SolverState) -> None:
        """Save the state and raise `InterruptedRunError` where the wish was uttered."""
        if self._wanted is None or not self._wanted():
            return
        self._checkpoints.save(state)
        where = self._checkpoints.url
        saved = "nothing was saved (no checkpoint was asked for)" if where is None else f"state saved in {where}"
        raise InterruptedRunError(f"interrupted after {state.iteration} rounds; {saved}", where)
