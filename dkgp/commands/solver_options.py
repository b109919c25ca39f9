"""From a command's options to a solver and a stopping rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset
from dkgp.errors import InputError, UsageError
from dkgp.models import Hyperparameters
from dkgp.models.solver_choice import choose_solver_for
from dkgp.solvers import (
    Choice,
    Cholesky,
    ConjugateGradient,
    CyclicSelection,
    DualityGap,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    GreedySelection,
    KernelConjugateGradient,
    MaxPasses,
    MaxSeconds,
    ParameterConjugateGradient,
    PartialCholesky,
    Selection,
    SequentialMinimalOptimization,
    Solver,
    StoppingRule,
    TiledCholesky,
)

__all__ = ["BLOCK_SOLVERS", "SOLVER_NAMES", "SolverName", "SolverOptions"]

SolverName = Literal["auto", "gbcd", "bcdc", "bcdg", "smo", "cg", "pcg", "kcg", "paramcg", "cholesky", "tiled-cholesky"]
SOLVER_NAMES: tuple[str, ...] = get_args(SolverName)
# Those that take blocks of variables: one engine, three selections.
BLOCK_SOLVERS = ("gbcd", "bcdc", "bcdg")

# Which solvers an option that has been changed belongs to.
_OWNERS = {
    "block_size": BLOCK_SOLVERS,
    "largest_block_size": ("gbcd",),
    "candidates": ("gbcd",),
    "variables_per_step": ("gbcd",),
    "memory": BLOCK_SOLVERS,
    "exhaustive": ("gbcd",),
    "prefitting": ("gbcd",),
    "rank": ("pcg",),
    "landmarks": ("pcg",),
}
# Candidates have their default in benchmarks that compare selections; they do no harm there.
_LENIENT = {"candidates": BLOCK_SOLVERS}


@dataclass(frozen=True)
class SolverOptions:
    """A solver and its options, as the command line says them.

    Attributes
    ----------
    solver
        "auto", which looks at the problem; "gbcd", or the same engine with the GBCD paper's other selections: "bcdc"
        cyclic, "bcdg" by gradient; "smo" in pairs; conjugate gradients: "cg", "pcg" preconditioned, "kcg" in function
        space, "paramcg" on the risk; the factor itself: "cholesky" in memory, "tiled-cholesky" on disk.
    block_size, precision, seed
        As for `GreedyBlockCoordinateDescent`; precision is of all solvers.
    memory
        As there for "gbcd" by default; none for "bcdc" and "bcdg", which have none in the paper.
    largest_block_size
        As for `GreedyBlockCoordinateDescent`; of "gbcd" alone.
    candidates, exhaustive, prefitting, variables_per_step
        As for `GreedySelection`; of "gbcd" alone.
    rank, landmarks
        As for `PartialCholesky`; of "pcg" alone.
    tolerance
        Converged when max |g| is at or below it.
    duality_gap
        Converged, too, when the risk is proven to be within this share of the least; see `DualityGap`.
    max_passes, max_seconds
        Effort after which to stop short of that.
    """

    solver: SolverName = "gbcd"
    block_size: int | Literal["auto"] = "auto"
    candidates: int = 60
    memory: int | None = None
    precision: Literal["mixed", "double"] = "mixed"
    exhaustive: bool = False
    prefitting: bool = False
    seed: int = 0
    tolerance: float = 1e-4
    max_passes: float | None = None
    max_seconds: float | None = None
    rank: int | Literal["auto"] = "auto"
    landmarks: Literal["pivoted", "uniform"] = "pivoted"
    duality_gap: float | None = None
    largest_block_size: int | Literal["auto"] = "auto"
    variables_per_step: int | None = None

    def decided(
        self,
        dataset: Dataset,
        found: Hyperparameters,
        *,
        pruned: bool = False,
        memory_bytes: int | None = None,
    ) -> tuple[SolverOptions, Choice | None]:
        """Return the options with "auto" replaced by the solver it stands for, and why; as they are for any other.

        Parameters
        ----------
        dataset : Dataset
        found : Hyperparameters
        pruned : bool
            Whether products are taken by a tree.
        memory_bytes : int, optional
            What the run may take.
        """
        if self.solver != "auto":
            return self, None
        self.check()
        self.stopping()
        choice = choose_solver_for(
            dataset,
            found.kernel,
            found.noise_variance,
            dataset.n_targets,
            tolerance=self.tolerance,
            double=self.precision == "double",
            pruned=pruned,
            memory_bytes=memory_bytes,
            seed=self.seed,
        )
        return replace(self, solver=cast(SolverName, choice.solver), rank=choice.rank or "auto"), choice

    def build(self, n: int, d: int, p: int, reporter: Reporter, tiles: str | None = None) -> Solver:
        """Return the solver with all that it chooses by itself chosen; warns where the block size had to be reduced.

        `tiles` is where "tiled-cholesky" keeps its factor; a temporary folder by default.

        Raises
        ------
        InputError, UsageError
            Settings out of range, or that do not belong to the solver chosen.
        """
        if self.solver in BLOCK_SOLVERS:
            return self.build_block_solver(n, d, p, reporter)
        self.check()
        if self.solver == "auto":
            raise UsageError("the solver 'auto' needs the data to look at; name a solver here")
        chosen: Solver
        if self.solver == "smo":
            chosen = SequentialMinimalOptimization(precision=self.precision)
        elif self.solver == "cholesky":
            chosen = Cholesky()
        elif self.solver == "tiled-cholesky":
            chosen = TiledCholesky(precision=self.precision, folder=tiles)
        elif self.solver == "kcg":
            chosen = KernelConjugateGradient(self.precision)
        elif self.solver == "paramcg":
            chosen = ParameterConjugateGradient(self.precision)
        else:
            factor = PartialCholesky(self.rank, self.landmarks, seed=self.seed) if self.solver == "pcg" else None
            chosen = ConjugateGradient(factor, self.precision)
        return chosen.resolved(n, d, p)

    def build_block_solver(self, n: int, d: int, p: int, reporter: Reporter) -> GreedyBlockCoordinateDescent:
        """As `build`, for those that need to know about blocks; `UsageError` for any other solver."""
        if self.solver not in BLOCK_SOLVERS:
            raise UsageError(f"this is for the solvers {', '.join(BLOCK_SOLVERS)}; got --solver {self.solver}")
        self.check()
        if self.block_size != "auto" and self.block_size > n:
            reporter.warn(f"the block size {self.block_size:,} exceeds the {n:,} samples; it is reduced to {n:,}")
        settings = GreedyBlockCoordinateDescent(
            block_size=self.block_size,
            memory=self._memory(),
            selection=self._selection(),
            precision=self.precision,
            seed=self.seed,
            largest_block_size=self.largest_block_size,
        )
        return settings.resolved(n, d, p)

    def stopping(self) -> StoppingRule:
        """Return the stopping rule; `InputError` for a limit that is not positive."""
        rule: StoppingRule = GradientInfNorm(self.tolerance)
        if self.duality_gap is not None:
            rule |= DualityGap(self.duality_gap)
        if self.max_passes is not None:
            rule |= MaxPasses(self.max_passes)
        if self.max_seconds is not None:
            rule |= MaxSeconds(self.max_seconds)
        return rule

    def is_met(self, summary: Mapping[str, Any]) -> bool:
        """True if a model that converged, by its training record, would have for these options."""
        gap = summary.get("duality_gap")
        return summary["gradient_inf_norm"] <= self.tolerance or (
            self.duality_gap is not None and gap is not None and gap <= self.duality_gap
        )

    def _memory(self) -> int:
        if self.memory is not None:
            return self.memory
        return GreedyBlockCoordinateDescent.memory if self.solver == "gbcd" else 0

    def _selection(self) -> Selection:
        if self.solver == "gbcd":
            return GreedySelection(self.candidates, self.variables_per_step, self.exhaustive, self.prefitting)
        return CyclicSelection() if self.solver == "bcdc" else GradientSelection()

    def check(self) -> None:
        """Refuse settings that do not belong to the solver; `UsageError` or `InputError`."""
        if self.seed < 0:
            raise InputError(f"the seed must not be negative; got {self.seed}")
        defaults = {field.name: field.default for field in fields(self)}
        for name, owners in _OWNERS.items():
            allowed = _LENIENT.get(name, owners)
            if self.solver not in allowed and getattr(self, name) != defaults[name]:
                raise UsageError(
                    f"--{name.replace('_', '-')} belongs to the solver{'s' if len(owners) > 1 else ''} "
                    f"{', '.join(owners)}; got --solver {self.solver}"
                )
