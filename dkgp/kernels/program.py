"""Programs of kernels for the compiled loops: groups of prepared inputs, and steps that turn them into entries.

A kernel is evaluated one cache-sized tile at a time by a small stack machine. Each leaf of a kernel expression reads
one group of inputs (its features, scaled, in a periodic kernel also mapped to the circle) and pushes a tile of its
values; the other steps combine the tiles on the stack. A sum of two kernels so costs their two evaluations and one
addition within the cache.

A leaf applies its `Profile`, which a kernel's own file declares, to its inputs: the compiled loop over entries, how it
rounds, and how fast it falls. The loops, the bounds on their errors and the fast products read these from the profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import DTypeLike

# By name, of all kernels that are known.
PROFILES: dict[str, Profile] = {}


class Functions(Protocol):
    """Elementary functions of one number type, such as the module `mpmath` has; see `Profile.formula`."""

    sqrt: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    log1p: Callable[[Any], Any]
    ln2: Any


def numpy_functions(dtype: DTypeLike) -> Functions:
    """Return NumPy's functions, with ln 2 in this type: for arrays of real or complex numbers of its precision."""
    ln2 = np.log(np.asarray(2.0, dtype))[()]
    return cast(Functions, SimpleNamespace(sqrt=np.sqrt, exp=np.exp, log1p=np.log1p, ln2=ln2))


@dataclass(frozen=True, eq=False)
class Profile:
    """The scalar function that a leaf applies to s, its group's scaled squared distance, or t, its dot product.

    Constants are folded into the inputs' scale, so that the exponentials are bare powers of two. All functions are
    plain module-level ones of numbers, without closures; Numba compiles them when they are needed.

    Attributes
    ----------
    name : str
        Of the compiled stage; another profile of that name takes its place.
    entries : callable or None
        `entries(values, parameters, floor)` puts the profile in the place of values (count,), which hold -s (a rounding
        above zero at worst) or t, in their own type: the loop becomes vector code. Exponents are held above `floor`.
        None where each leaf brings a user's function.
    rounding : float
        Roundings of a value near one by operations on s after the distance stage: of `exp2` four, of a root or
        logarithm as far as they change the exponential, and of the factors.
    steepest, bulge : callable
        `(r, parameter)` to the greatest |dk/dr|, and the greatest |dk/d log s|, anywhere beyond the distance
        r = sqrt(s): the effects of errors of the distance, and of relative ones of its square. For a profile of
        dot products the latter is |dk/d log t| relative to k, and the former zero.
    value : callable or None
        `(s, parameter)` to k in float64, of a profile that falls as s grows; None of others.
    slope_at_zero : callable or None
        `(parameter)` to |dk/ds| where s is zero, and nowhere more; None where that is infinite, or not known.
    parameters : int
        How many numbers a leaf brings, two at most; functions of one `parameter` are given the first, or zero.
    reads : {"distance", "product", "rows"}
        The quantity of a group: s, t, or, a user's function alone, the two rows themselves.
    multiplies : bool
        Whether f(s) f(s') = f(s + s'), so that a product of leaves is one leaf of all their inputs.
    slopes : callable or None
        `slopes(values, parameters, floor)`, as `entries`, puts dk/ds, or dk/dt, in the place of values: the derivatives
        in inputs are made of it; their bounds presume the inequalities of Lemma 5 (docs/proofs.md), which hold for
        mixtures of exp(-ts), so for all that is positive definite in any number of features, and for cubic and
        Wendland kernels. None of a profile that has no derivative where s is zero, or none that is known.
    formula : callable or None
        `(s, parameter, functions)` to k within the support, by the `functions` of the type of s: numbers or arrays of
        any precision, real or complex. It continues k analytically: to all complex s but the real ones up to `branch`.
        Roots are principal ones.
    modulus : callable or None
        `(re_s, re_root, size, parameter)`, arrays that broadcast, to an upper bound of |formula| over all complex s
        with Re s >= re_s, Re sqrt(s) >= re_root and |sqrt(s)| <= size. Its roundings are counted, so the computed
        number is a bound; infinite where none is known. None of a profile without one: fast products refuse it.
    branch : float
        The greatest s at which the formula is not analytic; minus infinity where it is analytic everywhere.
    support : float
        The distance r from which on k is zero; infinite for most profiles.
    mixture : bool
        True if f(s) is a mixture of exp(-ts), t >= 0, with positive weights: then |f(s)| <= f(Re s) for complex s with
        Re s > 0, which intervals of variances by neighbours rest on.
    """

    name: str
    entries: Callable[..., None] | None
    rounding: float
    steepest: Callable[[float, float], float]
    bulge: Callable[[float, float], float]
    value: Callable[[float, float], float] | None = None
    slope_at_zero: Callable[[float], float] | None = None
    parameters: int = 0
    reads: Literal["distance", "product", "rows"] = "distance"
    multiplies: bool = False
    slopes: Callable[..., None] | None = None
    formula: Callable[[Any, float, Functions], Any] | None = None
    modulus: Callable[[Any, Any, Any, float], Any] | None = None
    branch: float = -math.inf
    support: float = math.inf
    mixture: bool = False

    def __post_init__(self) -> None:
        PROFILES[self.name] = self

    def __reduce__(self) -> tuple[Any, ...]:
        # One object in each process.
        return _profile, (self.name,)


def _profile(name: str) -> Profile:
    return PROFILES[name]


@dataclass(frozen=True)
class InputGroup:
    """Inputs that one leaf reads."""

    features: tuple[int, ...]  # columns of X; none for a leaf whose features all have zero weight
    scale: tuple[float, ...]  # positive factor on each
    periods: tuple[float, ...] | None = None  # feature x becomes the pair scale * (cos, sin)(2 pi x / period)
    product: bool = False  # the profile is of the dot product of two rows instead of their squared distance


@dataclass(frozen=True)
class Leaf:
    """Push `profile` of a group's inputs; unit amplitude."""

    group: int
    profile: Profile
    parameters: tuple[float, ...] = ()
    function: Callable[..., Any] | None = None
    derivative: Callable[..., Any] | None = None  # of a user's function of s

    @property
    def parameter(self) -> float:
        """The first of the parameters, which the profile's slopes depend on."""
        return self.parameters[0] if self.parameters else 0.0

    @property
    def slope_at_zero(self) -> float:
        """|dk/ds| at s = 0: the effect of an absolute error of the squared distance on an entry."""
        slope = self.profile.slope_at_zero
        return math.inf if slope is None else slope(self.parameter)


@dataclass(frozen=True)
class Constant:
    """Push a constant."""

    value: float


@dataclass(frozen=True)
class Scale:
    """Multiply the top of the stack by a constant."""

    factor: float


@dataclass(frozen=True)
class Add:
    """Replace the two topmost tiles by their sum."""


@dataclass(frozen=True)
class Multiply:
    """Replace the two topmost tiles by their product, entry by entry."""


Step = Leaf | Constant | Scale | Add | Multiply


@dataclass(frozen=True)
class TileProgram:
    """k(x, x') = amplitude * (the tile left on the stack after `steps`, in postfix order).

    The amplitude is a factor apart because a product K W can take it into W, free of cost.
    """

    groups: tuple[InputGroup, ...]
    steps: tuple[Step, ...]
    amplitude: float = 1.0


class ProgramBuilder:
    """Puts a program together from the leaves of a kernel expression; a group that two leaves share is prepared once.

    Constant factors never become steps where they can be folded away: into the amplitude of the whole program, into a
    constant, or into another factor.
    """

    def __init__(self) -> None:
        self._groups: dict[InputGroup, int] = {}
        self._steps: list[Step] = []

    def leaf(
        self,
        profile: Profile,
        columns: Sequence[int],
        scale: Sequence[float],
        *,
        periods: Sequence[float] | None = None,
        parameters: tuple[float, ...] = (),
        function: Callable[..., Any] | None = None,
        derivative: Callable[..., Any] | None = None,
    ) -> None:
        """Push a profile of some inputs; columns whose scale is zero are left out."""
        active = [index for index, factor in enumerate(scale) if factor > 0.0]
        group = InputGroup(
            features=tuple(columns[index] for index in active),
            scale=tuple(float(scale[index]) for index in active),
            periods=None if periods is None else tuple(float(periods[index]) for index in active),
            product=profile.reads == "product",
        )
        number = self._groups.setdefault(group, len(self._groups))
        self._steps.append(Leaf(number, profile, parameters, function, derivative))

    def constant(self, value: float) -> None:
        """Push a constant."""
        self._steps.append(Constant(value))

    def scale(self, factor: float) -> None:
        """Multiply the last tile by a factor."""
        last = self._steps[-1]
        if isinstance(last, Constant):
            self._steps[-1] = Constant(last.value * factor)
        elif isinstance(last, Scale):
            self._steps[-1] = Scale(last.factor * factor)
        elif factor != 1.0:
            self._steps.append(Scale(factor))

    def add(self) -> None:
        """Add the two last."""
        self._steps.append(Add())

    def multiply(self) -> None:
        """Multiply the two last, entry by entry."""
        self._steps.append(Multiply())

    def program(self, amplitude: float) -> TileProgram:
        """The program of all steps, times `amplitude`."""
        return TileProgram(tuple(self._groups), tuple(self._steps), amplitude)
