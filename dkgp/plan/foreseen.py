"""A training run foreseen: the solver it would take, the work that waits for it, and the memory.

The solver is the one that is named, or the one that `auto` takes. How many products or column passes it takes comes
from the same probe and the same laws that `auto` chooses by, between bounds as wide as these were seen to err.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import psutil

from dkgp.cluster.cache import TileBudget
from dkgp.commands.reporting.memory import available_bytes
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset
from dkgp.models import Hyperparameters
from dkgp.models.memory import MemoryPlan, Processes, plan_within, tiles_that_fit
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.solver_choice import probe_of
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.keeping import READ_TOGETHER, bytes_that_pay, saved_share
from dkgp.solvers import Choice, Solver
from dkgp.solvers.prices import Phase, Prices, Sizes, Work, core_seconds
from dkgp.solvers.registry import Need, SolverMemory, solver_memory

# Full products in float64 of a run whose tiles are float32: one that verifies, and often one on the way.
CHECKS, CHECKS_IN_DOUBLE = 2.0, 1.0


@dataclass(frozen=True)
class Counts:
    """Numbers of the things that a solve spends its time on."""

    unit: str  # "products" with the kernel matrix, "column passes", or "factor"
    # Their number, and between which it should lie; equal where it is known.
    expected: float
    low: float
    high: float
    checks: float  # products in float64 besides, which verify the gradient


@dataclass(frozen=True)
class Tiles:
    """Tiles of K that workers keep between products."""

    bytes: int = 0  # in each worker's process
    share: float = 0.0  # of K's entries, by all workers together
    most_bytes: int = 0  # what they may come to where prices turn out other than foreseen


@dataclass(frozen=True)
class Foreseen:
    """A run, before it starts."""

    # With all that it chooses by itself chosen, and the options that make it.
    solver: Solver
    options: SolverOptions
    choice: Choice | None  # why it is that one; None where it was named
    # What it works on, and how often.
    sizes: Sizes
    counts: Counts
    memory: SolverMemory  # what it declares that it holds
    width: int  # the kernel's `feature_width`
    tiles_bytes: int  # all tiles of K's lower half, as they would be kept
    needs_inputs: str | None  # the solver's name, where it needs all inputs at the coordinator

    def phases(self, count: float, *, spilled: float = 0.0, kept: float = 0.0) -> list[Phase]:
        """Return the work of a run that takes so many products or passes.

        Parameters
        ----------
        spilled, kept : float
            Share of its factor's leaves that lies on disk; share of K that workers keep.
        """
        return self.solver.phases(self.sizes, count, checks=self.counts.checks, spilled=spilled, kept=kept)

    def memory_plan(
        self, cache_bytes: int, budget_bytes: int | None, workers: int = 1, *, resident_bytes: int | None = None
    ) -> MemoryPlan:
        """Project the memory, workers being processes of their own; `MemoryBudgetError` where `train` would refuse.

        Parameters
        ----------
        cache_bytes : int
            Of each worker's cache.
        budget_bytes : int, optional
            What the coordinator may take; by default what is free here.
        workers : int
            So many share a factor out between them.
        resident_bytes : int, optional
            What the coordinator holds before; by default what this process does now.
        """
        resident = resident_bytes or int(psutil.Process().memory_info().rss)
        held = replace(self.memory, cached_bytes=-(-self.memory.cached_bytes // workers))
        if not held.cached_bytes:  # rows of a low-rank factor; otherwise what making leaves takes, of each
            held = replace(held, factor_bytes=-(-held.factor_bytes // workers))
        return plan_within(
            budget_bytes or resident + available_bytes(),
            self.sizes.n,
            self.sizes.d,
            self.sizes.p,
            held,
            Processes(resident, shares_process=False, overlaps=True, cache_bytes=cache_bytes),
            needs_inputs=self.needs_inputs,
            width=self.width,
        )

    def spilled(self, cache_bytes: int, workers: int) -> float:
        """Share of a factor's leaves for which so many workers' caches have no room beside the features."""
        kept = self.solver.leaf_bytes(self.sizes.n, self.width)
        if not kept:
            return 0.0
        room = max(0, cache_bytes - 16 * self.sizes.n * (self.width + 1)) * workers
        return max(0.0, 1.0 - room / kept)

    def tiles(self, wanted: TileBudget, workers: int, prices: Prices) -> Tiles:
        """Return what so many workers keep of K, each within its budget, where the run keeps anything at all."""
        if self.sizes.double or not self.memory.repeats_products:
            return Tiles()
        wanted = replace(wanted, products=None if self.choice is None else self.choice.products)
        part = -(-self.tiles_bytes // workers)
        most = min(part, tiles_that_fit(wanted, self.sizes.n, None))
        each = most
        if wanted.measured:
            using = 4.0 * self.sizes.p  # an entry of a pair serves its row and its column
            kinds = (Work(entries=1.0), Work(filled=1.0), Work(kept=1.0))
            evaluating, keeping, reading = (prices.seconds(replace(work, operations=using)) for work in kinds)
            saved = saved_share(self.counts.expected, evaluating, keeping, READ_TOGETHER * reading)
            each = bytes_that_pay(replace(wanted, bytes=most), part, saved, self._share_of_products(prices))
        return Tiles(each, min(1.0, workers * each / self.tiles_bytes), most)

    def _share_of_products(self, prices: Prices) -> float:
        """Share of the run that float32 products take, evaluated."""
        phases = self.phases(self.counts.expected)
        return core_seconds([each for each in phases if each.name == "products"], prices) / core_seconds(phases, prices)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "solver": self.solver.name,
            "settings": self.solver.settings(),
            "auto": None if self.choice is None else self.choice.to_json(),
            "counts": asdict(self.counts),
        }


def foresee(
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    options: SolverOptions,
    reporter: Reporter,
    *,
    count: float | None = None,
    memory_bytes: int | None = None,
) -> Foreseen:
    """Settle the solver as `train` would, and foresee how long its way is.

    Parameters
    ----------
    count : float, optional
        Products or column passes, where they are known.
    memory_bytes : int, optional
        What the run may take.

    Raises
    ------
    InputError, UsageError, MemoryBudgetError
        As `train` would; and `UsageError` for a solver whose work is not counted here.
    """
    n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
    options.stopping()
    named, choice = options.decided(dataset, hyperparameters, memory_bytes=memory_bytes)
    solver = named.build(n, d, p, reporter)
    double = named.precision == "double"
    context = BlockContext("plan", dataset, hyperparameters.kernel, n)
    sizes = Sizes(n, d, p, double, context.n_blocks)
    width = feature_width(hyperparameters.kernel)
    return Foreseen(
        solver,
        named,
        choice,
        sizes,
        _counts(solver, dataset, hyperparameters, options, count, CHECKS_IN_DOUBLE if double else CHECKS),
        solver_memory(solver, n, width),
        width,
        _tiles_bytes(context),
        solver.name if named.needs(Need.INPUTS) else None,
    )


def _tiles_bytes(context: BlockContext) -> int:
    """Bytes of the tiles of all pairs of blocks: only the last block is of another size."""
    evaluator, others = context.evaluator("single"), context.n_blocks - 1
    start, stop = context.bounds(others)
    full, last = (
        evaluator.prepare(np.zeros((rows, context.kernel.n_features))) for rows in (context.block_rows, stop - start)
    )
    pairs = others * (others - 1) // 2 * evaluator.room(full, full).nbytes + others * evaluator.room(last, full).nbytes
    return pairs + others * evaluator.room(full).nbytes + evaluator.room(last).nbytes


def _counts(
    solver: Solver,
    dataset: Dataset,
    hyperparameters: Hyperparameters,
    options: SolverOptions,
    known: float | None,
    checks: float,
) -> Counts:
    unit = solver.counted_in
    if unit == "factor":
        return Counts(unit, 1.0, 1.0, 1.0, CHECKS_IN_DOUBLE)
    if known is not None:
        return Counts(unit, known, known, known, checks)
    noise = Noise(hyperparameters.noise_variance).beside(dataset)
    probe = probe_of(Problem(dataset, hyperparameters.kernel, noise), tolerance=options.tolerance, seed=options.seed)
    expected = solver.expected(probe)
    return Counts(unit, *expected.products, checks)
