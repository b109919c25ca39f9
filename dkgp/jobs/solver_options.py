"""From a command's options to a solver and a stopping rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dkgp.errors import InputError, UsageError
from dkgp.jobs.progress import Reporter
from dkgp.solvers import (
    CyclicSelection,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    MaxPasses,
    MaxSeconds,
    Selection,
    StoppingRule,
)

__all__ = ["SolverOptions"]


@dataclass(frozen=True)
class SolverOptions:
    """How to solve, as the command line says it.

    Attributes
    ----------
    solver
        "gbcd", or the same engine with the GBCD paper's other selections: "bcdc" cyclic, "bcdg" by gradient.
    block_size, memory, precision, seed
        As for `GreedyBlockCoordinateDescent`.
    candidates, exhaustive, prefitting
        As for `GreedySelection`; of "gbcd" alone.
    tolerance
        Converged when max |g| is at or below it.
    max_passes, max_seconds
        Effort after which to stop short of that.
    """

    solver: Literal["gbcd", "bcdc", "bcdg"] = "gbcd"
    block_size: int | Literal["auto"] = "auto"
    candidates: int = 60
    memory: int = 5
    precision: Literal["mixed", "double"] = "mixed"
    exhaustive: bool = False
    prefitting: bool = False
    seed: int = 0
    tolerance: float = 1e-4
    max_passes: float | None = None
    max_seconds: float | None = None

    def build(self, n: int, d: int, p: int, reporter: Reporter) -> GreedyBlockCoordinateDescent:
        """Return the solver with its block size resolved; warns where that had to be reduced.

        Raises
        ------
        InputError, UsageError
            Settings out of range, or that do not belong to the solver chosen.
        """
        if self.seed < 0:
            raise InputError(f"the seed must not be negative; got {self.seed}")
        if self.block_size != "auto" and self.block_size > n:
            reporter.warn(f"the block size {self.block_size:,} exceeds the {n:,} samples; it is reduced to {n:,}")
        settings = GreedyBlockCoordinateDescent(
            block_size=self.block_size,
            memory=self.memory,
            selection=self._selection(),
            precision=self.precision,
            seed=self.seed,
        )
        return settings.resolved(n, d, p)

    def stopping(self) -> StoppingRule:
        """Return the stopping rule; `InputError` for a limit that is not positive."""
        rule: StoppingRule = GradientInfNorm(self.tolerance)
        if self.max_passes is not None:
            rule |= MaxPasses(self.max_passes)
        if self.max_seconds is not None:
            rule |= MaxSeconds(self.max_seconds)
        return rule

    def _selection(self) -> Selection:
        if self.solver == "gbcd":
            return GreedySelection(candidates=self.candidates, exhaustive=self.exhaustive, prefitting=self.prefitting)
        if self.exhaustive or self.prefitting:
            raise UsageError(f"--exhaustive and --prefitting belong to the solver gbcd; got --solver {self.solver}")
        return CyclicSelection() if self.solver == "bcdc" else GradientSelection()
