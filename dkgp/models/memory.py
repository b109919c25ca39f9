"""Memory plans: the projected peak of a run, and an error with numbers if it exceeds the memory limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import psutil

from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import MemoryBudgetError
from dkgp.operators.blocked import DEFAULT_COORDINATOR_INPUT_BYTES, coordinator_input_bytes_needed
from dkgp.operators.keeping import kept_bytes_of, most_bytes
from dkgp.solvers.registry import SolverMemory

MEBIBYTE = 1024**2
# Compiled code, thread stacks and the scheduler of an in-process cluster add 80 to 130 MiB, measured, once a solve
# runs, 100 to 160 in the first run of an installation, which compiles.
RUNTIME_BYTES = 256 * MEBIBYTE
READ_BUFFER_ROWS = 16_384


def mib(count: int) -> str:
    """Format a number of bytes in MiB for messages."""
    size = count / MEBIBYTE
    return f"{size:,.0f} MiB" if abs(size) >= 10 else f"{size:.3g} MiB"


# m x m matrices at the coordinator, in a refusal.
MATRICES = "matrices of that size {} (a quarter with half the `basis_size`)"


@dataclass(frozen=True)
class TrainingSizes:
    """Sizes that the memory of training a classifier depends on, for all settings.

    `n`, `d`, `t`: samples, features, columns of decisions. `executor`: its threads are at work in one process, which
    may be the coordinator's. `cache_bytes`: budget of a worker's feature cache. `feature_width`: the kernel's.
    """

    n: int
    d: int
    t: int
    executor: BlockExecutor
    cache_bytes: int
    feature_width: int | None = None

    @property
    def width(self) -> int:
        """The kernel's `feature_width`; d by default."""
        return self.feature_width or self.d


@dataclass(frozen=True)
class Part:
    """A part of a computation's memory.

    Attributes
    ----------
    bytes
        Its projected size.
    place
        The coordinator's process, or each worker's.
    words
        Its name in a refusal, and the settings that make it smaller; "{}" stands for the size. A part without words is
        not listed.
    phase
        The phase of the computation in which it exists; all by default. Parts of different phases do not coexist.
    """

    bytes: int
    place: Literal["coordinator", "worker"] = "coordinator"
    words: str = ""
    phase: str = ""


@dataclass(frozen=True)
class Memory:
    """Projected peak memory of a computation, in named parts.

    Attributes
    ----------
    computation
        The computation in a few words, as a refusal begins.
    parts
        The parts by name. "kept_bytes" or "tiles_bytes" are kernel entries that a worker may keep, "resident_bytes" the
        memory that the coordinator's process used when the plan was made.
    shares_process
        Whether the workers share the coordinator's process.
    about
        Sizes that the JSON repeats.
    kept
        The entries of the part "kept_bytes", in words.
    useful_bytes
        Most bytes of that part that are of use.
    process
        The process that a refusal names.
    runtime_bytes
        Bytes of libraries and compiled code.
    advice
        The end of a refusal.
    """

    computation: str
    parts: Mapping[str, Part]
    shares_process: bool
    about: Mapping[str, int] = field(default_factory=dict)
    kept: str = ""
    useful_bytes: int = 0
    process: str = "the coordinator's process"
    runtime_bytes: int = RUNTIME_BYTES
    advice: str = ""

    def __getitem__(self, name: str) -> int:
        """Return the bytes of a part."""
        return self.parts[name].bytes

    def _peak(self, *places: str) -> int:
        """Return the largest sum over the phases of the parts in some processes."""
        sums: Counter[str] = Counter({"": 0})
        for part in self.parts.values():
            if part.place in places:
                sums[part.phase] += part.bytes
        always = sums.pop("")
        return always + max(sums.values(), default=0)

    @property
    def worker_parts(self) -> int:
        """Bytes of each worker's parts."""
        return self._peak("worker")

    @property
    def coordinator_bytes(self) -> int:
        """Projected peak of the coordinator's process; with the workers' parts where they share it."""
        return self.runtime_bytes + self._peak("coordinator", *(("worker",) if self.shares_process else ()))

    def worker_process_bytes(self, resident_bytes: int) -> int:
        """Return the projected peak of a worker process that uses `resident_bytes` before any work."""
        return resident_bytes + self.runtime_bytes + self.worker_parts

    def spare_bytes(self, budget_bytes: int, resident_bytes: int = 0) -> int | None:
        """Return the remaining bytes for the workers; None for workers in other processes."""
        return budget_bytes - resident_bytes - self.coordinator_bytes if self.shares_process else None

    def plus(self, **more_bytes: int) -> Memory:
        """Return the plan with more bytes in the named parts, or of `useful_bytes`."""
        useful = self.useful_bytes + more_bytes.pop("useful_bytes", 0)
        larger = {name: replace(self.parts[name], bytes=self[name] + more) for name, more in more_bytes.items()}
        return replace(self, parts={**self.parts, **larger}, useful_bytes=useful)

    def with_kept(self, wanted: TileBudget, budget_bytes: int, resident_bytes: int = 0) -> Memory:
        """Return the plan with memory for kept entries: the least of the requested, the useful and the free bytes.

        Raises `MemoryBudgetError` if a user's own figure does not fit.
        """
        spare_bytes = self.spare_bytes(budget_bytes, resident_bytes)
        return self.plus(kept_bytes=kept_that_fits(wanted, self.useful_bytes, spare_bytes, self.kept))

    def with_tiles(self, wanted: TileBudget, n: int, budget_bytes: int) -> Memory:
        """Return the plan with memory for kept tiles of n samples; as `with_kept`."""
        return self.plus(tiles_bytes=tiles_that_fit(wanted, n, self.spare_bytes(budget_bytes)))

    def require(self, budget_bytes: int | None, resident_bytes: int = 0) -> None:
        """Raise `MemoryBudgetError` if the computation and the process's current memory exceed the limit.

        By default the limit is the free memory. The error names the parts and the settings that make them smaller.
        """
        needed = resident_bytes + self.coordinator_bytes
        budget_bytes = int(psutil.virtual_memory().available) if budget_bytes is None else budget_bytes
        if needed <= budget_bytes:
            return
        here = [part for part in self.parts.values() if part.place == "coordinator" or self.shares_process]
        listed = [part.words.format(mib(part.bytes)) for part in here if part.words]
        if self.runtime_bytes:
            resident_bytes += self["resident_bytes"] if "resident_bytes" in self.parts else 0
            listed += [
                f"libraries and compiled code {mib(self.runtime_bytes)}",
                f"in use already {mib(resident_bytes)}",
            ]
        advice = self.advice
        if self.shares_process and not advice:
            advice = ". On a Dask cluster, the part of the workers is in their own processes"
        raise MemoryBudgetError(
            f"{self.computation} is projected to need {mib(needed)} in {self.process}; the budget is "
            f"{mib(budget_bytes)}. Parts: {', '.join(listed)}{advice}"
        )

    def to_json(self) -> dict[str, int | bool]:
        """Plain JSON types."""
        return {
            **self.about,
            **({"useful_bytes": self.useful_bytes} if self.kept else {}),
            **{name: part.bytes for name, part in self.parts.items()},
            "shares_process": self.shares_process,
            "coordinator_bytes": self.coordinator_bytes,
        }


def tiles_that_fit(wanted: TileBudget, n: int, spare_bytes: int | None) -> int:
    """Return the bytes that each worker process may use for tiles of K, at most those of its lower half."""
    whole = kept_bytes_of(n)
    within = kept_that_fits(wanted, whole, spare_bytes, "the kernel matrix")
    return most_bytes(replace(wanted, bytes=within), whole, wanted.products)


def kept_that_fits(wanted: TileBudget, useful_bytes: int, spare_bytes: int | None, what: str) -> int:
    """Return the bytes in which each worker process may keep entries: the requested bytes, up to the useful bytes.

    A figure that dkgp measured (`measured`) is limited to half of the spare memory, so that the machine stays usable. A
    user's figure that does not fit is refused (`MemoryBudgetError`). `spare_bytes` is None for other processes.
    """
    kept = min(wanted.bytes, useful_bytes)
    if spare_bytes is None:
        return kept
    if wanted.measured:
        return max(0, min(kept, spare_bytes // 2))
    if kept > spare_bytes:
        raise MemoryBudgetError(
            f"`cache_tiles` asks for {mib(kept)} of {what} to be kept; beside all else that this run is projected "
            f"to need {mib(max(0, spare_bytes))} are left. Give that much or less, or auto"
        )
    return kept


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as far as its memory depends on them."""

    resident_bytes: int  # used by the coordinator before the run
    shares_process: bool  # whether the workers share its process
    overlaps: bool  # whether the executor overlaps rounds
    cache_bytes: int  # budget of a worker's feature cache


def plan_training(
    n: int,
    d: int,
    p: int,
    solver: SolverMemory,
    processes: Processes,
    *,
    holds_inputs: bool,
    width: int | None = None,
) -> Memory:
    """Project the peak of a training run on n samples of d features and p targets.

    `solver` is the solver's declared memory; `holds_inputs` is True for a coordinator with the inputs of all
    samples; `width` is the kernel's `feature_width`, d by default.
    """
    width = width or d
    vector = 8 * n * p
    # alpha, g, y; directions and images with one spare slot each; on top either a round's result in pieces, joined, and
    # added up, and measuring, or a checkpoint, which gathers the remembered steps.
    memory, block_size = solver.memory, solver.block_size
    vectors = vector * (3 + 2 * (memory + 1) + max(4, 2 * memory + 1))
    inputs = coordinator_input_bytes_needed(n, d, width) if holds_inputs else 0
    subproblems = (2 if processes.overlaps else 1) * 4 * block_size**2
    drawn = block_size * solver.candidates * (8 + (0 if holds_inputs else 16 * d + 8 * width))
    features = min(processes.cache_bytes, 12 * n * (width + 1) + solver.cached_bytes)
    block = 2 * subproblems + 2 * drawn + solver.own_bytes
    smaller_block = "less with a smaller `block_size`, `largest_block_size` or `candidates`"
    parts = {
        "resident_bytes": Part(processes.resident_bytes),
        "vectors_bytes": Part(vectors, words="solver vectors {} (fewer with a smaller `memory`)"),
        "inputs_bytes": Part(inputs, words="inputs {}"),
        "block_bytes": Part(block, words=f"block and candidates {{}} ({smaller_block})"),
        "worker_bytes": Part(features + 16 * READ_BUFFER_ROWS * d + solver.factor_bytes, "worker", "workers {}"),
        "tiles_bytes": Part(0, "worker"),
    }
    return Memory("this run", parts, processes.shares_process)


def plan_within(
    budget_bytes: int,
    n: int,
    d: int,
    p: int,
    solver: SolverMemory,
    processes: Processes,
    *,
    needs_inputs: str | None = None,
    width: int | None = None,
) -> Memory:
    """Project the peak of a training run whose coordinator holds all inputs if these fit its budget as well.

    `needs_inputs` names a solver that cannot do without them. Raises `MemoryBudgetError` where it fits neither way.
    """
    needed = coordinator_input_bytes_needed(n, d, width)
    if needed <= DEFAULT_COORDINATOR_INPUT_BYTES:
        holding = plan_training(n, d, p, solver, processes, holds_inputs=True, width=width)
        if holding.coordinator_bytes <= budget_bytes or needs_inputs:
            holding.require(budget_bytes)
            return holding
    elif needs_inputs:
        raise MemoryBudgetError(
            f"the solver {needs_inputs} needs the inputs of all samples in the coordinator's memory: {needed:,} bytes "
            f"for {n:,} samples, and they may take {DEFAULT_COORDINATOR_INPUT_BYTES:,}. Choose another `solver`"
        )
    lean = plan_training(n, d, p, solver, processes, holds_inputs=False, width=width)
    lean.require(budget_bytes)
    return lean
