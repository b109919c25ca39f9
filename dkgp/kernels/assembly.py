"""Putting a tile program together from the leaves of a kernel expression.

Constant factors never become steps where they can be folded away: into the amplitude of the whole program, into a
constant, or into another factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dkgp.kernels.program import Add, Constant, InputGroup, Leaf, Multiply, Profile, Scale, Step, TileProgram

__all__ = ["ProgramBuilder"]


class ProgramBuilder:
    """Collects groups and steps; a group that two leaves share is prepared once."""

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
        product: bool = False,
        parameters: tuple[float, ...] = (),
        function: Callable[..., Any] | None = None,
    ) -> None:
        """Push a profile of some inputs; columns whose scale is zero are left out."""
        kept = [index for index, factor in enumerate(scale) if factor > 0.0]
        group = InputGroup(
            features=tuple(columns[index] for index in kept),
            scale=tuple(float(scale[index]) for index in kept),
            periods=None if periods is None else tuple(float(periods[index]) for index in kept),
            product=product,
        )
        number = self._groups.setdefault(group, len(self._groups))
        self._steps.append(Leaf(number, profile, parameters, function))

    def constant(self, value: float) -> None:
        """Push a constant."""
        self._steps.append(Constant(value))

    def scale(self, factor: float) -> None:
        """Multiply what was pushed last by a factor."""
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
        """The whole: what was pushed, times `amplitude`."""
        return TileProgram(tuple(self._groups), tuple(self._steps), amplitude)
