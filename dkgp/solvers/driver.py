"""The loop of every iterative computation: round after round, with checkpoints, until a rule stops it.

An `Iteration` defines a round, when to stop and which of its attributes a checkpoint holds. `Loop` runs it: it restores
the latest checkpoint, reports each round, saves the state from time to time, and ends the run when the user interrupts
it. It knows no method and no problem. Linear systems and risks (`dkgp.solvers.method_run`), choices of a basis,
pursuits, growing models and searches are all run by it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.data.stores.checkpoint import Checkpoint, CheckpointStore
from dkgp.errors import CheckpointError, InterruptedRunError
from dkgp.progress import Progress, ProgressCallback
from dkgp.solvers.base import Clock, Saved
from dkgp.solvers.stopping import StopReason


@dataclass
class Checkpointing:
    """Settings of a run's checkpoints: the place, how often, and the run that they must belong to.

    Parameters
    ----------
    identity : dict
        Data fingerprint, kernel and noise of the run; compared on resume.
    resume : bool
        Continue from the latest checkpoint if there is one.
    """

    store: CheckpointStore
    every_seconds: float = 30.0
    identity: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    _read: Checkpoint | None = field(default=None, init=False, repr=False, compare=False)

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint to resume; it is read once and kept until `take_latest`."""
        if self.resume and self._read is None:
            self._read = self.store.load_latest()
        return self._read

    def take_latest(self) -> Checkpoint | None:
        """Return the checkpoint to resume, and keep no reference: its arrays become those of the state."""
        checkpoint, self._read = self.latest(), None
        return checkpoint

    @property
    def held_bytes(self) -> int:
        """Bytes of a checkpoint that was read and not yet taken."""
        return 0 if self._read is None else sum(array.nbytes for array in self._read.arrays.values())


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The calls that a solve, or another long search, makes on its way.

    Parameters
    ----------
    callback : callable, optional
        Called after every round with its record: a `dkgp.solvers.Progress` of a solve.
    within : callable, optional
        Called with a `dkgp.data.Progress` during long work within a round, such as a product.
    checkpointing : Checkpointing, optional
        Where the state is saved, how often, and whether to resume from there.
    interrupted : callable, optional
        Called between rounds, and within a round if the last one is saved; if it returns true the state is saved and
        `InterruptedRunError` raised.
    """

    callback: Callable[[Any], None] | None = None
    within: ProgressCallback | None = None
    checkpointing: Checkpointing | None = None
    interrupted: Callable[[], bool] | None = None


NOBODY = Watch()


class Iteration(Saved, ABC):
    """A computation in rounds: it advances in place, and `Saved` declares its state.

    - `iteration`: rounds done; the number of a checkpoint, so it never falls.
    - `history`: records of the rounds; the loop passes each new one to the callback.
    - `clock`: measures the run, for computations whose checkpoints hold the `seconds`.
    - `keeps_last`: the last state is saved even if the computation converged, since long work follows it.
    - `save_now`: the round just done is saved, however recent the last checkpoint is.
    """

    keeps_last: ClassVar[bool] = True
    save_now: bool = False
    iteration: int = 0
    history: list[Any]
    clock: Clock

    @property
    def seconds(self) -> float:
        """Wall time, earlier runs of the same computation included."""
        return self.clock.seconds

    @seconds.setter
    def seconds(self, earlier: float) -> None:
        self.clock.add_earlier(earlier)

    def start(self) -> None:
        """Prepare the first round of a run that resumes no checkpoint."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same problem and settings: to the same bits."""
        self.restore(checkpoint.arrays, checkpoint.metadata["state"])

    @abstractmethod
    def advance(self) -> None:
        """Do one round, in place."""

    @abstractmethod
    def stop(self) -> StopReason | None:
        """Return the reason to stop, or None to go on."""

    def verify(self, reason: StopReason) -> StopReason | None:
        """Check a reason to stop, which may replace it; return None if more rounds are needed after all."""
        return reason

    def finish(self, reason: StopReason) -> None:
        """Release everything kept outside the state, once the computation has ended for good."""

    def loop_metadata(self) -> dict[str, Any]:
        """Return the loop's own part of a checkpoint, beside the state."""
        return {}


class Loop:
    """The loop of one run, with its checkpoints and its end.

    - `settings`: settings that determine the result; a checkpoint must match them.
    - `unit`: the name of a round in messages.
    - `waits`: an interruption within a round waits for the end of the round, unless the rounds before it are saved.
      Rounds of minutes are saved one by one and not waited for. Without `waits` an interruption always ends the run at
      once.
    - `saved_iteration`: rounds of the latest checkpoint; None without one.
    """

    def __init__(self, watch: Watch, settings: dict[str, Any], *, unit: str = "round", waits: bool = True) -> None:
        self.saved_iteration: int | None = None
        self._watch, self._checkpointing, self._settings = watch, watch.checkpointing, settings
        self._unit, self._waits = unit, waits
        self._iteration: Iteration | None = None
        self._opened = False
        self._saved_at = time.perf_counter()

    def run(self, iteration: Iteration) -> StopReason:
        """Advance to the end; restore the latest checkpoint first, unless the caller has taken it by `latest`.

        Raises `CheckpointError`: the checkpoint belongs to another run; `InterruptedRunError`: the user ended the run.
        """
        checkpoint = None if self._opened else self.latest()
        if checkpoint is not None:
            iteration.resume(checkpoint)
        reported = len(iteration.history)
        if checkpoint is None and self.saved_iteration is None:
            iteration.start()
        del checkpoint  # its arrays are those of the state now
        self._iteration = iteration
        reported = self._report(iteration, reported)
        while True:
            while (reason := iteration.stop()) is None:
                self.heed(iteration)
                iteration.advance()
                reported = self._report(iteration, reported)
                self.save(iteration) if iteration.save_now else self.save_if_due(iteration)
            # Before the verification: a run that resumes from here ends in the bits of one that never stopped.
            if not reason.converged or (iteration.keeps_last and self.saved_iteration != iteration.iteration):
                self.save(iteration)
            verified = iteration.verify(reason)
            reported = self._report(iteration, reported)
            if verified is not None:
                break
            self.save_if_due(iteration)
        if reason.converged and not verified.converged and not iteration.keeps_last:
            self.save(iteration)
        iteration.finish(verified)
        return verified

    def _report(self, iteration: Iteration, reported: int) -> int:
        if self._watch.callback is not None:
            for record in iteration.history[reported:]:
                self._watch.callback(record)
        return len(iteration.history)

    # ---------------------------------------------------------------------------------------------- checkpoints

    @property
    def url(self) -> str | None:
        """Place of the checkpoints; None without any."""
        return None if self._checkpointing is None else self._checkpointing.store.url

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint to resume, if there is one.

        Raises `CheckpointError`: it belongs to another run.
        """
        self._opened = True
        checkpoint = None if self._checkpointing is None else self._checkpointing.take_latest()
        if self._checkpointing is None or checkpoint is None:
            return None
        for name, value in {"identity": self._checkpointing.identity, "solver": self._settings}.items():
            if checkpoint.metadata.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint belongs to another run: its {name} is {checkpoint.metadata.get(name)!r}; this "
                    f"run's is {value!r}. Resume with the same data and options, or start afresh without `resume`"
                )
        self.saved_iteration = int(checkpoint.metadata["state"]["iteration"])
        return checkpoint

    def save(self, iteration: Iteration) -> None:
        """Save the state, if the run has checkpoints."""
        if self._checkpointing is None:
            return
        metadata = {
            "identity": self._checkpointing.identity,
            "solver": self._settings,
            # Dense algebra is that of this process's BLAS: a run resumed elsewhere keeps the tolerance, not the bits.
            "arithmetic": process_arithmetic().to_json(),
            "state": {"iteration": iteration.iteration, **iteration.metadata()},
            "loop": iteration.loop_metadata(),
        }
        self._checkpointing.store.save(iteration.iteration, iteration.arrays(), metadata)
        self._saved_at, self.saved_iteration = time.perf_counter(), iteration.iteration

    def save_if_due(self, iteration: Iteration) -> None:
        """Save the state if the last checkpoint is old enough."""
        if self._checkpointing is None:
            return
        if time.perf_counter() - self._saved_at >= self._checkpointing.every_seconds:
            self.save(iteration)

    # --------------------------------------------------------------------------------------------- interruption

    def heed(self, iteration: Iteration) -> None:
        """Between two rounds: if the user asks for the end, save the state and raise `InterruptedRunError`."""
        if self._asked():
            self.save(iteration)
            done = f"{iteration.iteration} {self._units}"
            raise interrupted(f"after {done}", self._saved_url, "state" if self._waits else f"{done} are")

    def heed_within(self, progress: Progress | None = None) -> None:
        """During a round: raise `InterruptedRunError` if the user asks for the end and no other round is lost by it."""
        if not self._asked():
            return
        if not self._waits:
            place = self._unit if progress is None else progress.phase
            raise interrupted(f"in the {place}", self._saved_url, f"{self.saved_iteration} {self._units} are")
        done = 0 if self._iteration is None else self._iteration.iteration
        if done == (self.saved_iteration or 0) or self.url is None:
            raise interrupted(f"in {self._unit} {done + 1}", self._saved_url)

    def pass_on(self, progress: Progress) -> None:
        """During a round: heed an interruption (`heed_within`), and pass the progress of the work to the watch."""
        self.heed_within(progress)
        if self._watch.within is not None:
            self._watch.within(progress)

    @property
    def _units(self) -> str:
        return self._unit + ("es" if self._unit.endswith("s") else "s")

    def _asked(self) -> bool:
        return self._watch.interrupted is not None and self._watch.interrupted()

    @property
    def _saved_url(self) -> str | None:
        """Place of the latest checkpoint of this run; None without one."""
        return None if self.saved_iteration is None else self.url


def interrupted(when: str, url: str | None, saved: str = "state") -> InterruptedRunError:
    """Build the error of a run that the user ended: `when`, and which progress is `saved` in `url`, if anything is."""
    words = "nothing was saved" if url is None else f"{saved} saved in {url}"
    return InterruptedRunError(f"interrupted {when}; {words}", url)
