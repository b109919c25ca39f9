"""The base of every linear solver: a method's settings, its state between two rounds, and where a solve stands.

`Saved` declares which attributes a checkpoint holds; `Clock` measures wall time. Sums over the samples are added up
block by block, as `dkgp.operators.block_tasks` cuts the samples: the bits are the same whether one process holds the
vectors, or workers hold blocks of them.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.codec import to_json
from dkgp.data.types import block_rows
from dkgp.errors import InputError, UsageError
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, KernelOperator, Variances
from dkgp.solvers.prices import Expected, Phase, Sizes
from dkgp.solvers.stopping import Progress


class Clock:
    """Wall time of a run: in total, earlier runs of the same computation included, and by part in `parts`.

    `parts` names parts that are reported even if they take no time.
    """

    def __init__(self, *parts: str) -> None:
        self.parts: dict[str, float] = dict.fromkeys(parts, 0.0)
        self._before, self._began = 0.0, time.perf_counter()
        self._last = self._began

    @property
    def seconds(self) -> float:
        """Seconds since the start, earlier runs included."""
        return self._before + time.perf_counter() - self._began

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.parts.values())

    def add_earlier(self, seconds: float) -> None:
        """Add the seconds of the runs before this one."""
        self._before = seconds

    def lap(self, part: str) -> float:
        """Count the time since the last lap towards a part, and return it."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self.parts[part] = self.parts.get(part, 0.0) + seconds
        return seconds

    def count(self, parts: Mapping[str, float]) -> None:
        """Count the time since the last lap by the parts that another clock measured."""
        for part, seconds in parts.items():
            self.parts[part] = self.parts.get(part, 0.0) + seconds
        self._last = time.perf_counter()

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """Count the time of the enclosed statements towards a part."""
        began = time.perf_counter()
        yield
        self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - began

    def rounded(self) -> dict[str, float]:
        """Return the seconds of each part, to milliseconds."""
        return {part: round(seconds, 3) for part, seconds in self.parts.items()}


class Saved:
    """State that a checkpoint holds, declared by the names of its attributes.

    - `saved`: arrays; an attribute that is None is left out, and is None again when it is restored.
    - `counted`: values of plain JSON types.
    - `recorded`: lists of records, each with the dataclass of its records.
    - `parts`: attributes that are `Saved` themselves, or None: their arrays have the prefix `<name>_`, the rest lies
      under <name>.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[tuple[str, ...]] = ("iteration",)
    recorded: ClassVar[Mapping[str, type]] = {}
    parts: ClassVar[tuple[str, ...]] = ()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a checkpoint."""
        arrays = {name: value for name in self.saved if (value := getattr(self, name)) is not None}
        for part in self._present():
            arrays |= {f"{part}_{name}": array for name, array in getattr(self, part).arrays().items()}
        return arrays

    def metadata(self) -> dict[str, Any]:
        """Return the rest of a checkpoint, in plain JSON types."""
        values = {name: getattr(self, name) for name in self.counted}
        values |= {name: to_json(getattr(self, name)) for name in self.recorded}
        return values | {part: document for part in self._present() if (document := getattr(self, part).metadata())}

    def restore(self, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
        """Take over the arrays and the values of a checkpoint."""
        for name in self.saved:
            setattr(self, name, arrays.get(name))
        for name in self.counted:
            setattr(self, name, metadata[name])
        for name, record in self.recorded.items():
            setattr(self, name, [record(**document) for document in metadata[name]])
        for part in self._present():
            prefix = f"{part}_"
            its = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            getattr(self, part).restore(its, metadata.get(part, {}))

    def _present(self) -> list[str]:
        return [part for part in self.parts if getattr(self, part) is not None]


NO_WEIGHT = np.zeros(0)


@dataclass(frozen=True)
class Sums:
    """Sums over the samples, or over a block of them.

    - `largest`: max |g|, NaN where any g is.
    - `squares`, `weighed` (p,): sums of g_i^2, and of w_i g_i^2 with w_i = s2 / s2_i, by target.
    - `objective` (p,): alpha' (g - y) / 2, whose sum is the objective (equation 3, since Kbar alpha = g + y).
    """

    largest: float
    squares: FloatArray
    weighed: FloatArray
    objective: FloatArray

    @classmethod
    def of(cls, alpha: FloatArray, gradient: FloatArray, rhs: FloatArray, weight: FloatArray) -> Sums:
        """Return the sums over all rows; `weight` is (n,), or empty where all weights are one."""
        largest, squares, weighed, objective = measures(alpha, gradient, rhs, weight, block_rows(len(rhs)))
        return cls(float(largest), squares, weighed, objective)

    @classmethod
    def of_block(cls, alpha: FloatArray, gradient: FloatArray, rhs: FloatArray, weight: FloatArray) -> Sums:
        """Return the sums over the rows of one block."""
        largest, squares, weighed, objective = measures(alpha, gradient, rhs, weight, len(rhs))
        return cls(float(largest), squares, weighed, objective)


def steepness(gradient: FloatArray, diagonal: FloatArray) -> FloatArray:
    """Return g_i^2 / Kbar_ii of each row: (n,)."""
    return np.asarray(np.sum(gradient**2, axis=1) / diagonal)


def weight_of(noise: Variances, least: float) -> FloatArray:
    """Return w_i = s2 / s2_i, s2 the `least` noise variance: (n,); empty where the noise is one variance."""
    return NO_WEIGHT if isinstance(noise, float) else np.asarray(least / noise)


@cached_njit(nogil=True)
def measures(alpha, gradient, rhs, weight, rows):  # type: ignore[no-untyped-def]
    """Return the numbers of `Sums` in one pass, added up by blocks of so many rows."""
    n, p = gradient.shape
    largest = 0.0
    squares, weighed, objective = np.zeros(p), np.zeros(p), np.zeros(p)
    block_squares, block_weighed, block_objective = np.zeros(p), np.zeros(p), np.zeros(p)
    for first in range(0, n, rows):
        for t in range(p):
            block_squares[t] = block_weighed[t] = block_objective[t] = 0.0
        for i in range(first, min(first + rows, n)):
            for t in range(p):
                value = gradient[i, t]
                if not abs(value) <= largest and largest == largest:  # once NaN, always NaN
                    largest = abs(value)
                block_squares[t] += value * value
                if weight.shape[0]:
                    block_weighed[t] += weight[i] * (value * value)
                block_objective[t] += 0.5 * alpha[i, t] * (value - rhs[i, t])
        for t in range(p):
            squares[t] += block_squares[t]
            weighed[t] += block_weighed[t] if weight.shape[0] else block_squares[t]
            objective[t] += block_objective[t]
    return largest, squares, weighed, objective


def nothing() -> FloatArray:
    """An array that is not there yet."""
    return np.zeros((0, 0))


@dataclass
class SolverState(Saved):
    """A solve between two rounds.

    - `saved`, `counted`: the arrays and the numbers that a checkpoint holds, by the name of their attribute.
    - `alpha`, `gradient`, `rhs` (n, p): the solution so far, g = Kbar alpha - y by the solver's recursion, and y.
    - `iteration`, `columns`: rounds done and kernel columns evaluated for them.
    - `precision`: of the tiles of the coming rounds.
    - `exact`: whether `gradient` is one float64 product with alpha as it is, or with alpha before a step that a product
      in the same pass gave the share of, and no other step's share was added to it since.
    - `stepped` (n, p): |P| |A| of that step P A, for the roundings that it adds; empty where there was none.
    - `moved` (p,): sum of squared float32 steps in alpha since the gradient was last computed in float64; its
      drift grows with it.
    - `risk_width`: how far the regularised risk is from its least at most, by a bound that the solver knows of besides
      ||g||^2 / 2, targets added up; infinite where it knows of none.
    - `verified`: where the solve stood, before any step that came with it, when a recursion's gradient was last
      computed anew.
    - `stuck`: whether the last round, in float64, changed nothing that a next one would start from.
    - `needed_fall`: by how much the gradient must still fall, as the driver notes before a round; see
      `StoppingRule.needed_fall`.
    """

    saved: ClassVar[tuple[str, ...]] = ("alpha", "gradient", "moved")
    counted: ClassVar[tuple[str, ...]] = ("iteration", "columns", "precision", "exact", "risk_width")

    alpha: FloatArray
    gradient: FloatArray
    rhs: FloatArray
    iteration: int = 0
    columns: int = 0
    precision: Precision = "single"
    exact: bool = False
    stepped: FloatArray = field(default_factory=nothing)
    moved: FloatArray = field(default_factory=lambda: np.zeros(1))
    risk_width: float = math.inf
    verified: Progress | None = None
    stuck: bool = False
    needed_fall: float = math.inf

    def begin(self, operator: KernelOperator, warm: bool, gradient: FloatArray | None) -> None:
        """Find the gradient at the start: -y at alpha = 0; at a warm start a float64 product where it is not given."""
        if not warm:
            self.gradient = -self.rhs
        else:
            self.gradient = operator.matmat(self.alpha) - self.rhs if gradient is None else gradient.copy()
        self.moved = np.zeros(self.rhs.shape[1])
        # A given gradient may be the sum of several products, in any order.
        self.exact = not warm or gradient is None

    def note_step(self, squared_norm: FloatArray) -> None:
        """Count a step in alpha, squared norms (p,), towards the gradient's drift, where its image is float32.

        In float64 a recursion drifts too, if far less, and no bound on it is kept.
        """
        self.exact, self.stepped = False, nothing()
        if self.precision == "single":
            self.moved = self.moved + squared_norm

    def arrays(self) -> dict[str, FloatArray]:
        """Return the arrays of a checkpoint."""
        return super().arrays() | ({"stepped": self.stepped} if self.stepped.size else {})

    def metadata(self) -> dict[str, Any]:
        """Return the numbers of a checkpoint."""
        return {**super().metadata(), "risk_width": self.risk_width if math.isfinite(self.risk_width) else None}

    def restore(self, arrays: Mapping[str, FloatArray], metadata: Mapping[str, Any]) -> None:
        """Take over a checkpoint; numbers of a method that an older checkpoint lacks keep their start values."""
        for name in self.saved:
            setattr(self, name, arrays[name])
        self.stepped = arrays.get("stepped", self.stepped)
        numbers = {"risk_width": None, **metadata}
        for name in self.counted:
            if name in numbers or name in SolverState.counted:
                setattr(self, name, numbers[name])
        if numbers["risk_width"] is None:
            self.risk_width = math.inf

    def renew_gradient(self, operator: KernelOperator) -> None:
        """Compute the gradient anew in float64; it stays exact until a step."""
        self.take_gradient(operator, operator.matmat(self.alpha) - self.rhs)

    def take_gradient(self, operator: KernelOperator, gradient: FloatArray) -> None:
        """Go on from a gradient that was computed anew in float64, and note where that says the solve stood."""
        recursion = not self.exact
        if self.precision == "single":  # the solver's own bound was evaluated in float32 too
            self.risk_width = math.inf
        self.gradient = gradient
        self.moved = np.zeros(gradient.shape[1])
        self.exact, self.stepped = True, nothing()
        self.verified = self.measured(operator) if recursion else None

    def sums(self, operator: KernelOperator) -> Sums:
        """Return the sums over the samples that tell where the solve stands."""
        weight = weight_of(operator.noise, operator.noise_variance)
        return Sums.of(self.alpha, self.gradient, self.rhs, weight)

    def measured(self, operator: KernelOperator) -> Progress:
        """Return where the solve stands; seconds and kernel entries are the record's to count."""
        sums = self.sums(operator)
        squares, weighed, objective = sums.squares, sums.weighed, sums.objective
        norms, scale = np.sqrt(squares), self._scale
        # Bounds on the least of Q = R - ||y||^2 / 2, targets added up; half the squared gradient lies between them.
        # By sample, the noise weighs the squares: R = (y - f)' W (y - f) / 2 + s2 alpha' K alpha / 2, s2 its least and
        # W = diag(s2 / s2_i), so that y - f = D alpha - g gives R + s2 f(alpha) = g' W g / 2, as with one variance.
        weight = weight_of(operator.noise, operator.noise_variance)
        at_zero = weight @ self.rhs**2 if weight.size else scale**2
        lower = -operator.noise_variance * float(np.sum(objective)) - 0.5 * float(np.sum(at_zero))
        width = 0.5 * float(np.sum(weighed))
        if self.risk_width < width:
            lower, width = lower + (width - self.risk_width), self.risk_width
        middle = 0.5 * (abs(lower) + abs(lower + width))
        return Progress(
            iteration=self.iteration,
            column_passes=self.columns / operator.n,
            kernel_evaluations=0,
            seconds=0.0,
            gradient_inf_norm=sums.largest,
            gradient_norm=float(np.max(norms, initial=0.0)),
            relative_residual=float(np.max(np.divide(norms, scale, out=np.zeros_like(norms), where=scale > 0.0))),
            objective=float(np.sum(objective)),
            objective_gap_bound=float(np.sum(weighed)) / (2.0 * operator.noise_variance),
            duality_gap=width / middle if middle > 0.0 else (0.0 if width == 0.0 else math.inf),
        )

    @cached_property
    def _scale(self) -> FloatArray:
        return np.asarray(np.linalg.norm(self.rhs, axis=0))


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
        state.restore(arrays, metadata)
        self.equip(operator, state)
        return state

    def equip(self, operator: KernelOperator, state: State) -> None:
        """Attach the helpers of a state that are not part of a checkpoint."""

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
        clock = Clock()
        state.renew_gradient(operator)
        return {"check": clock.seconds}

    def phases(
        self, sizes: Sizes, count: float, *, checks: float = 1.0, spilled: float = 0.0, kept: float = 0.0
    ) -> list[Phase]:
        """Work of a solve, the settings resolved, that takes `count` products or column passes.

        `checks` are products of float64 that verify the gradient; `spilled` is the share of a factor's leaves that lies
        on disk, `kept` the share of K that workers keep. `UsageError` of a method whose work is not counted.
        """
        raise UsageError(f"a plan knows the solvers gbcd, pcg and cholesky; got `solver` {self.name}")

    @property
    def counted_in(self) -> str:
        """Unit of the counts of `phases` and `expected`; `UsageError` of a method whose work is not counted."""
        raise UsageError(f"a plan knows the solvers gbcd, pcg and cholesky; got `solver` {self.name}")

    def expected(self, probe: Any) -> Expected:
        """Extrapolate a probe (`dkgp.solvers.conjugate.probe`) to the count of a solve, the settings resolved.

        Raises `InputError`: a method whose count a probe does not tell.
        """
        raise InputError(f"a probe foretells gbcd, pcg and cholesky; got the solver {self.name}")

    def leaf_bytes(self, n: int, width: int) -> int:
        """Bytes of a factor's leaves that workers keep, or else read from disk; 0 of a method without leaves."""
        return 0

    def finish(self, state: State) -> None:
        """Release everything kept outside the state, once the solve has converged."""


Solver: TypeAlias = Method[Any]
"""A method with any type of state."""


def as_columns(values: ArrayLike, n: int, name: str, p: int | None = None) -> FloatArray:
    """Return vectors as (n, p) float64 numbers; refuse other shapes, NaN and infinity."""
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
