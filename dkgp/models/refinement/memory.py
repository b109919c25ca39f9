"""The memory of a refinement, planned before it is used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.models.memory import Memory, mib
from dkgp.models.refinement.record import RefineSettings
from dkgp.models.refinement.validation import held_out_samples, variance_batch_bytes
from dkgp.models.variance.nystrom import factor_bytes
from dkgp.operators.blocked import coordinator_input_bytes_needed
from dkgp.operators.contract_tasks import tiles_bytes
from dkgp.operators.low_rank.pivots import samples_drawn_from
from dkgp.operators.product_error import ProductMemory

# (n, t) arrays of a solve: right-hand sides, start, solutions of the step before, alpha, g, P, Q, M^-1 r, what is
# remembered, a product on its way in two halves, and one in passing.
ARRAYS_OF_A_SOLVE = 12


@dataclass(frozen=True)
class RefineMemory(Memory):
    """Projected peak of a refinement, in bytes.

    The first four are the coordinator's, the next three the workers'.
    """

    resident_bytes: int  # what this process held when the plan was made
    vectors_bytes: int  # arrays of the solves and contractions
    inputs_bytes: int
    landmarks_bytes: int  # what landmarks are drawn with, and their factor
    factor_bytes: int  # the factors that precondition and bound variances
    batch_bytes: int  # batches of variances, or tiles of derivatives
    cache_bytes: int  # features and inputs
    shares_process: bool  # whether the workers share the coordinator's process
    tiles_bytes: int = 0  # tiles of the kernel matrix that each worker's process may keep
    products_bytes: int = 0  # plans of products within a bound, and a product's work

    process: ClassVar[str] = "this process"

    @property
    def computation(self) -> str:
        """The refinement."""
        return "refining"

    @property
    def coordinator_parts(self) -> int:
        """Bytes at the coordinator, with those that it held before."""
        return self.resident_bytes + self.vectors_bytes + self.inputs_bytes + self.landmarks_bytes

    @property
    def worker_parts(self) -> int:
        """Bytes of factors, batches, features, products, and tiles that are kept."""
        return self.factor_bytes + self.batch_bytes + self.cache_bytes + self.tiles_bytes + self.products_bytes

    def with_products(self, memory: ProductMemory | None) -> RefineMemory:
        """Add the memory of products within a bound; the operators of a step and of a shift both keep plans."""
        return self if memory is None else replace(self, products_bytes=2 * memory.kept_bytes + memory.work_bytes)

    def advice(self, resident_bytes: int) -> str:
        """The parts, and the settings of a refinement that make them smaller."""
        return (
            f"Vectors {mib(self.vectors_bytes)} (fewer with a smaller `refine_probes`), inputs "
            f"{mib(self.inputs_bytes)}, landmarks {mib(self.landmarks_bytes)} and factors {mib(self.factor_bytes)} "
            "(smaller with `refine_halo`, `refine_rank` and `refine_memory`), batches "
            f"{mib(self.batch_bytes)} (none with `refine_holdout` 0), workers' inputs {mib(self.cache_bytes)}; "
            "factors, batches and workers' inputs lie elsewhere on a cluster "
            "of processes or at a scheduler"
        )


def plan_refinement(
    n: int,
    d: int,
    p: int,
    settings: RefineSettings,
    executor: BlockExecutor,
    *,
    resident_bytes: int,
    holds_inputs: bool,
    cache_bytes: int,
) -> RefineMemory:
    """Project the peak of a refinement.

    `resident_bytes` is what this process holds now, `holds_inputs` whether the coordinator holds all inputs,
    `cache_bytes` the budget of a worker's cache.

    Raises `InputError` for a factor that does not fit the memory that the settings give the preconditioner.
    """
    factor = settings.preconditioner().resolved(n, d).memory(n, d)
    rank = int(settings.landmarks().resolved(n, d).rank)
    t, threads = p + settings.probes_for(n), executor.threads_per_process
    held_out = held_out_samples(n, settings.held_out)
    contraction = 2 * t + settings.probes_for(n)
    return RefineMemory(
        resident_bytes=resident_bytes,
        vectors_bytes=8 * n * (ARRAYS_OF_A_SOLVE * t + contraction + p),
        inputs_bytes=coordinator_input_bytes_needed(n, d) if holds_inputs else 0,
        landmarks_bytes=max(factor.own_bytes, 8 * rank * (4 * rank + samples_drawn_from(rank)) if held_out else 0),
        factor_bytes=factor.factor_bytes + factor.cached_bytes + (factor_bytes(n, rank, "double") if held_out else 0),
        batch_bytes=max(tiles_bytes(threads), variance_batch_bytes(n, held_out, threads) if held_out else 0),
        cache_bytes=min(cache_bytes, 12 * n * (d + 1) + 8 * n * d),
        shares_process=executor.shares_memory,
    )
