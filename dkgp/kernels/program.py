"""Programs of kernels for the compiled loops: groups of prepared inputs, and steps that make entries of them.

A kernel is evaluated one cache-sized tile at a time by a small stack machine. Each leaf of a kernel expression reads
one group of inputs (its features, scaled, in a periodic kernel also mapped to the circle) and pushes a tile of its
values; the other steps combine the tiles on the stack. A sum of two kernels so costs their two evaluations and one
addition within the cache, and no kernel needs compiling of its own but those that users write themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = ["Add", "Constant", "InputGroup", "Leaf", "Multiply", "Profile", "Scale", "Step", "TileProgram"]


class Profile(IntEnum):
    """The scalar function that a leaf applies to s, its group's scaled squared distance, or t, its dot product.

    Constants are folded into the inputs' scale, so that the exponentials are bare powers of two.
    """

    EXP2 = 0
    """2**-s"""
    MATERN12 = 1
    """2**-u, u = sqrt(s)"""
    MATERN32 = 2
    """(1 + v) 2**-u, u = sqrt(s), v = u ln 2"""
    MATERN52 = 3
    """(1 + v + v**2 / 3) 2**-u, u = sqrt(s), v = u ln 2"""
    RATIONAL_QUADRATIC = 4
    """(1 + s)**-a; the first parameter is a"""
    POLYNOMIAL = 5
    """(t + c)**p; the parameters are p, a whole number from 1, and c; linear for p = 1, c = 0"""
    USER = 6
    """A user's function of s"""
    USER_PAIR = 7
    """A user's function of the two rows of the group's scaled inputs"""


@dataclass(frozen=True)
class InputGroup:
    """Inputs that one leaf reads.

    Attributes
    ----------
    features : tuple of int
        Columns of X; none for a leaf whose features all have zero weight.
    scale : tuple of float
        Factor on each; positive.
    periods : tuple of float, optional
        Where given, feature x becomes the pair `scale * (cos, sin)(2 pi x / period)`.
    product : bool
        The leaf's profile is given the dot product of two rows of inputs instead of their squared distance.
    """

    features: tuple[int, ...]
    scale: tuple[float, ...]
    periods: tuple[float, ...] | None = None
    product: bool = False


@dataclass(frozen=True)
class Leaf:
    """Push `profile` of a group's inputs; unit amplitude."""

    group: int
    profile: Profile
    parameters: tuple[float, ...] = ()
    function: Callable[..., Any] | None = None


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
