"""Cholesky's factorisation out of core: float32 tiles on disk, which precondition conjugate gradients in float64.

The kernel matrix is evaluated tile by tile when its turn comes, and never held. The factor, rounded as it is, solves
nearly: a few steps of conjugate gradients, each a float64 product, take the rest of the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from dkgp.data.remote.storage import normalise_url
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import InputError, NumericalError, StorageError, UsageError
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import KernelOperator
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.solvers.base import Clock, Method
from dkgp.solvers.cholesky.tile_factor import BrokenDownError, TileFactor, TileLayout
from dkgp.solvers.conjugate.gradient import BlockState, iterate
from dkgp.solvers.registry import Need, SolverDeclaration, SolverMemory, register_solver

GIBIBYTE = 1024**3
# Rows of a tile: enough panels to share between workers, tiles large enough for BLAS, and to read and write at ease.
PANELS = 16
LEAST_TILE_ROWS, MOST_TILE_ROWS = 256, 2048
TILE_ROWS_STEP = 64


@dataclass
class TiledCholeskyState(BlockState):
    """A solve between two rounds.

    - `panels`: block columns factored in rounds so far.
    - `tile_precision`: of the tiles on disk.
    - `factor`: the tiles; not part of a checkpoint: those that lie in a named folder are taken over, others computed
      again, to the same bits.
    """

    counted = (*BlockState.counted, "panels", "tile_precision")

    panels: int = 0
    tile_precision: Precision = "single"
    factor: TileFactor | None = None


@dataclass(frozen=True)
class TiledCholesky(Method[TiledCholeskyState]):
    """Factors Kbar = L L' in tiles on disk, block column by block column, and refines the solution.

    One round factors one block column, which leaves the solution as it is; the last of them and each round after it
    takes one step of conjugate gradients in float64, preconditioned by the factor. A target that float32 solves to the
    tolerance needs one or two steps.

    Where float32 tiles break down (little noise beside many samples that are nearly alike), the factorisation starts
    again with float64 tiles, of twice the size and at about twice the cost.

    Parameters
    ----------
    tile_rows : int or "auto"
        Rows and columns of a tile; "auto" takes a sixteenth of n, at most 2,048, less where the memory demands it.
    precision : {"mixed", "double"}
        "mixed" takes float32 tiles for as long as they do; "double" takes float64 tiles at once.
    folder : str, optional
        Where the tiles lie: local folder or fsspec URL. Workers on other machines need one that all of them and this
        process reach under the same name. A factorisation that was stopped or killed goes on from the tiles in its
        folder, which serves one run at a time. By default a folder among the system's temporary files, removed with
        the solve's state, which serves workers on this machine alone.
    memory_bytes : int, default 1 GiB
        Memory limit of the tiles in each process.
    disk_budget_bytes : int, optional
        Limit of the tiles on disk; by default all free space.
    keep : bool
        Leave the tiles in a named folder when the solve is done (see `finish`).

    Raises
    ------
    MemoryBudgetError, StorageError
        Memory or disk do not suffice; before anything is computed.
    CheckpointError
        The folder holds tiles of another matrix.
    NumericalError
        The matrix is not positive definite in float64 either.
    """

    tile_rows: int | Literal["auto"] = "auto"
    precision: Literal["mixed", "double"] = "mixed"
    folder: str | None = None
    memory_bytes: int = GIBIBYTE
    disk_budget_bytes: int | None = None
    keep: bool = False

    name = "tiled-cholesky"
    state_type = TiledCholeskyState

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_rows != "auto" and self.tile_rows < 1:
            raise InputError(f"tile_rows must be 'auto' or at least 1; got {self.tile_rows!r}")
        if self.memory_bytes < 1 or (self.disk_budget_bytes is not None and self.disk_budget_bytes < 1):
            raise InputError(
                f"memory_bytes and disk_budget_bytes must be positive; got {self.memory_bytes}, "
                f"{self.disk_budget_bytes}"
            )
        if self.keep and self.folder is None:
            raise UsageError("to keep the tiles, name the folder they are to lie in")

    def resolved(self, n: int, d: int, p: int = 1) -> TiledCholesky:
        """Return the settings with the tile size chosen for n samples, independent of the workers."""
        if self.tile_rows != "auto":
            return replace(self, tile_rows=min(self.tile_rows, n))
        step = TILE_ROWS_STEP
        rows = min(max(step * math.ceil(n / (PANELS * step)), LEAST_TILE_ROWS), MOST_TILE_ROWS)
        while rows > step and TileLayout(n, rows, "double").task_bytes(1) > self.memory_bytes:
            rows -= step
        return replace(self, tile_rows=min(rows, n))

    def settings(self) -> dict[str, Any]:
        """Settings that determine the result, in plain JSON types."""
        return {**super().settings(), "tile_rows": self.tile_rows}

    def equip(self, operator: KernelOperator, state: TiledCholeskyState) -> None:
        """Open the tiles, budgets checked: those that lie in the folder, or none yet."""
        state.factor = self._open(operator, "double" if self.precision == "double" else state.tile_precision)
        state.precision, state.tile_precision = "double", state.factor.layout.precision

    def advance(self, operator: KernelOperator, state: TiledCholeskyState) -> dict[str, float]:
        """Factor the next block column, or step towards the solution, in place; seconds by phase."""
        factor = state.factor
        assert factor is not None
        clock = Clock()
        if state.panels < factor.layout.n_panels:
            done = self._factor_panel(operator, state, factor)
            clock.lap("factor")
            if not done:
                state.iteration += 1
                return clock.parts
        preconditioned = factor.solve(-state.gradient)
        clock.lap("substitute")
        iterate(operator, state, preconditioned)
        clock.lap("update")
        return clock.parts

    def finish(self, state: TiledCholeskyState) -> None:
        """Remove the tiles of a solve that is done, unless they are to be kept."""
        if state.factor is not None and not self.keep:
            state.factor.remove()

    def _factor_panel(self, operator: KernelOperator, state: TiledCholeskyState, factor: TileFactor) -> bool:
        """Factor one more block column; tell whether that was the last."""
        try:
            factor.complete(state.panels + 1)
        except BrokenDownError as broken:
            if factor.layout.precision == "double":
                raise NumericalError(
                    f"the kernel matrix is not positive definite in float64: its Cholesky factor breaks down at "
                    f"sample {broken.sample} of {operator.n}. Raise the noise variance, and check for samples that "
                    "are nearly equal"
                ) from broken
            factor.remove()
            try:
                state.factor = self._open(operator, "double")
            except (InputError, StorageError) as error:
                raise NumericalError(
                    f"float32 tiles break down at sample {broken.sample} of {operator.n}, and float64 tiles do not "
                    f"fit: {error}. Or raise the noise variance"
                ) from error
            state.panels, state.tile_precision = 0, "double"
            return False
        first, last = factor.layout.bounds(state.panels)
        state.columns += last - first
        state.panels += 1
        return state.panels == factor.layout.n_panels

    def _open(self, operator: KernelOperator, precision: Precision) -> TileFactor:
        if not isinstance(operator, BlockedKernelOperator):
            raise UsageError(f"a tiled factorisation needs a BlockedKernelOperator; got {type(operator).__name__}")
        assert self.tile_rows != "auto"
        folder = None if self.folder is None else normalise_url(self.folder)
        if folder is not None and precision == "single":
            # A run before this one may have found out that float32 does not do.
            description = TileStore(folder).description()
            precision = "double" if description is not None and description.get("precision") == "double" else "single"
        layout = TileLayout(operator.n, self.tile_rows, precision)
        return TileFactor(operator, layout, folder, self.memory_bytes, self.disk_budget_bytes)


register_solver(
    SolverDeclaration(
        "tiled-cholesky",
        "Cholesky factorisation on disk",
        TiledCholesky,
        needs=frozenset({Need.ENTRIES, Need.ROUNDS, Need.FOLDER}),
        memory=lambda solver, n, d: SolverMemory(factor_bytes=solver.memory_bytes),
        bench_turn=4,
    )
)
