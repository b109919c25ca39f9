"""The base of every solver: settings, a state to start from or to restore, and one round of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError, UsageError
from dkgp.operators.base import FloatArray, KernelOperator
from dkgp.solvers.prices import Phase, Sizes
from dkgp.solvers.state import SolverState
from dkgp.solvers.stopping import Progress

State = TypeVar("State", bound=SolverState)


class Method(ABC, Generic[State]):
    """An iterative method with its settings.

    Attributes
    ----------
    state_type : type
        Its states' class.
    precision : {"mixed", "double"}
        "mixed" starts with float32 tiles, under a gradient that the driver verifies in float64; "double" takes float64
        tiles throughout.
    """

    state_type: type[State]
    precision: Literal["mixed", "double"] = "mixed"

    def __post_init__(self) -> None:
        """Refuse a precision that there is none of; a subclass that refuses more calls this too."""
        if self.precision not in ("mixed", "double"):
            raise InputError(f"the precision must be 'mixed' or 'double'; got {self.precision!r}")

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name, as on the command line."""

    def resolved(self, n: int, d: int, p: int = 1) -> Self:
        """Return the settings with every automatic choice made for n samples, d features and p targets."""
        return self

    def settings(self) -> dict[str, Any]:
        """Settings that determine the result, in plain JSON types; a checkpoint must match them."""
        return {"solver": self.name, "precision": self.precision}

    def start(
        self,
        operator: KernelOperator,
        rhs: FloatArray,
        initial: FloatArray | None = None,
        gradient: FloatArray | None = None,
    ) -> State:
        """State before the first round; a warm start costs one float64 product where its gradient is not given."""
        alpha = np.zeros_like(rhs) if initial is None else initial.copy()
        state = self.state_type(alpha, alpha, rhs, precision="double" if self.precision == "double" else "single")
        self.equip(operator, state)
        state.begin(operator, initial is not None, gradient)
        return state

    def restore(
        self, operator: KernelOperator, rhs: FloatArray, arrays: dict[str, FloatArray], metadata: dict[str, Any]
    ) -> State:
        """State from a checkpoint, whose arrays are taken over."""
        state = self.state_type(arrays["alpha"], arrays["gradient"], rhs)
        state.read(arrays, metadata)
        self.equip(operator, state)
        return state

    def equip(self, operator: KernelOperator, state: State) -> None:
        """Give a state what it holds besides its numbers."""

    @abstractmethod
    def advance(self, operator: KernelOperator, state: State) -> dict[str, float]:
        """One round, in place; seconds by phase."""

    def renews_in_rounds(self, operator: KernelOperator) -> bool:
        """True if a round can compute the gradient anew on its way: if its product can be one of float64 with alpha."""
        return False

    def renew(
        self, operator: KernelOperator, state: State, moving: Callable[[Progress], bool] | None
    ) -> dict[str, float]:
        """Compute the gradient anew in float64; seconds by phase.

        With `moving` on the way of a round, which takes its step if that says so of where the solve truly stands.
        """
        started = time.perf_counter()
        state.renew_gradient(operator)
        return {"check": time.perf_counter() - started}

    def phases(
        self, sizes: Sizes, count: float, *, checks: float = 1.0, spilled: float = 0.0, kept: float = 0.0
    ) -> list[Phase]:
        """Work of a solve, the settings resolved, that takes `count` products or column passes.

        `checks` are products of float64 that verify the gradient; `spilled` is the share of a factor's leaves that lies
        on disk, `kept` the share of K that workers keep. `UsageError` of a method whose work is not counted.
        """
        raise UsageError(f"a plan knows the solvers gbcd, pcg and cholesky; got `solver` {self.name}")

    def finish(self, state: State) -> None:
        """Give up what is kept outside the state, of a solve that has converged."""


Solver: TypeAlias = Method[Any]
"""A method, whatever its states are."""


class PhaseClock:
    """Seconds of a round by phase: each lap counts towards the phase that it names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def count(self, seconds: dict[str, float]) -> None:
        """Count the time since the last lap by the phases that another clock told apart in it."""
        for phase, spent in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
        self._last = time.perf_counter()


def as_columns(values: ArrayLike, n: int, name: str, p: int | None = None) -> FloatArray:
    """Return vectors as (n, p) float64 numbers; refuse other shapes, and what is not finite."""
    columns = np.array(values, dtype=np.float64)
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2 or columns.shape[0] != n or columns.shape[1] == 0:
        raise InputError(f"{name} must have shape ({n},) or ({n}, p); got {columns.shape}")
    if p is not None and columns.shape[1] != p:
        raise InputError(f"{name} has shape {columns.shape}; expected {(n, p)}")
    if not np.isfinite(columns).all():
        raise InputError(f"{name} must be finite; row {int(np.argwhere(~np.isfinite(columns))[0][0])} is not")
    return columns
