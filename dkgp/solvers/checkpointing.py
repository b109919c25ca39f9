"""Checkpoints of a solve: what they must belong to, when they are saved, and what an interruption leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.data.stores.checkpoint import Checkpoint, CheckpointStore
from dkgp.data.types import Progress
from dkgp.errors import CheckpointError, InterruptedRunError
from dkgp.solvers.stopping import StopReason


class Saved(Protocol):
    """The thing that a checkpoint is of: a solver's state, or a choice under way."""

    @property
    def iteration(self) -> int:
        """Rounds done."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of a checkpoint."""

    def metadata(self) -> dict[str, Any]:
        """The rest, in plain JSON types; `iteration` is part of it."""


class Rounds(Saved, Protocol):
    """A choice under way, round by round."""

    history: list[Any]

    def stops(self) -> StopReason | None:
        """Return the reason to stop, if there is one."""

    def advance(self) -> int:
        """One round; return how many joined."""


@dataclass
class Checkpointing:
    """Settings of a solve's checkpoints: the place, how often, and what they must belong to.

    Parameters
    ----------
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
        checkpoint, self._read = self.latest(), None
        return checkpoint

    @property
    def held_bytes(self) -> int:
        """Bytes of a checkpoint that was looked at, and waits for its solve."""
        return 0 if self._read is None else sum(array.nbytes for array in self._read.arrays.values())


class Checkpoints:
    """The checkpoints of one solve; without settings there are none.

    A resumed solve must share the solver's settings, `solver`; `loop` tells what the driver keeps beside the state.

    - `saved_iteration`: rounds that the latest one tells of.
    """

    def __init__(
        self, settings: Checkpointing | None, solver: dict[str, Any], loop: Callable[[], dict[str, Any]]
    ) -> None:
        self._settings, self._solver, self._loop = settings, solver, loop
        self._saved = time.perf_counter()
        self.saved_iteration: int | None = None

    @property
    def url(self) -> str | None:
        """Place of the checkpoints; None where there are none."""
        return None if self._settings is None else self._settings.store.url

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint to go on from, if there is one.

        Raises `CheckpointError`: it belongs to another run.
        """
        checkpoint = None if self._settings is None else self._settings.take_latest()
        if self._settings is None or checkpoint is None:
            return None
        for name, value in {"identity": self._settings.identity, "solver": self._solver}.items():
            if checkpoint.metadata.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint belongs to another run: its {name} is {checkpoint.metadata.get(name)!r}; this "
                    f"run's is {value!r}. Resume with the same data and options, or start afresh without `resume`"
                )
        self.saved_iteration = int(checkpoint.metadata["state"]["iteration"])
        return checkpoint

    def save(self, state: Saved) -> None:
        """Save the state."""
        if self._settings is None:
            return
        metadata = {
            "identity": self._settings.identity,
            "solver": self._solver,
            # The dense algebra is this process's BLAS's: who goes on elsewhere keeps the tolerance, not the bits.
            "arithmetic": process_arithmetic().to_json(),
            "state": state.metadata(),
            "loop": self._loop(),
        }
        self._settings.store.save(state.iteration, state.arrays(), metadata)
        self._saved, self.saved_iteration = time.perf_counter(), state.iteration

    def save_if_due(self, state: Saved) -> None:
        """Save the state where the last time is long enough ago."""
        if self._settings is not None and time.perf_counter() - self._saved >= self._settings.every_seconds:
            self.save(state)


def interrupted(when: str, url: str | None, what: str = "state") -> InterruptedRunError:
    """The error that ends a run as was asked for: `when` that was, and `what` is saved in `url`, where there is one."""
    saved = "nothing was saved" if url is None else f"{what} saved in {url}"
    return InterruptedRunError(f"interrupted {when}; {saved}", url)


class Interruption:
    """The end of a solve that `wanted` asks for, its state saved.

    It is heeded between two rounds. Rounds of minutes are saved one by one, and those are not waited for: the round
    under way is lost, and no other.
    """

    def __init__(self, wanted: Callable[[], bool] | None, checkpoints: Checkpoints) -> None:
        self._wanted, self._checkpoints = wanted, checkpoints
        self._state: Saved | None = None

    def heed(self, state: Saved) -> None:
        """Save the state and raise `InterruptedRunError` if `wanted` answers true."""
        self._state = state
        if self._wanted is not None and self._wanted():
            self._checkpoints.save(state)
            raise interrupted(f"after {state.iteration} rounds", self._url)

    def heed_within(self, progress: Progress) -> None:
        """Raise `InterruptedRunError` in the course of a round, where the rounds before it are saved, or cannot be."""
        if self._wanted is None or not self._wanted():
            return
        done = 0 if self._state is None else self._state.iteration
        if done == (self._checkpoints.saved_iteration or 0) or self._checkpoints.url is None:
            raise interrupted(f"in round {done + 1}", self._url)

    @property
    def _url(self) -> str | None:
        """Place of what is saved, if anything is."""
        return None if self._checkpoints.saved_iteration is None else self._checkpoints.url


def run_rounds(
    choice: Rounds,
    checkpoints: Checkpoints,
    interruption: Interruption,
    callback: Callable[[Any], None] | None = None,
    saved: Saved | None = None,
) -> StopReason:
    """Advance a choice to its end; checkpoints are of `saved`, a run that it is part of, or of the choice itself."""
    saved = choice if saved is None else saved
    while (reason := choice.stops()) is None:
        interruption.heed(saved)
        choice.advance()
        if callback is not None and choice.history:
            callback(choice.history[-1])
        checkpoints.save_if_due(saved)
    # What comes after a choice may take as long as it.
    if checkpoints.saved_iteration != saved.iteration:
        checkpoints.save(saved)
    return reason
