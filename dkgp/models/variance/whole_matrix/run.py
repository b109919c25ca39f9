"""A prediction's variances by a Cholesky factor of the whole Kbar: built once, in tiles, then a solve for each batch.

Tiles lie in memory where threads share it and it holds them, and in a folder otherwise; their bits, and so those of the
intervals, are the same in either place and on any number of workers.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.errors import NumericalError
from dkgp.models.certificate import Certificate
from dkgp.models.variance.batch import BatchVariance
from dkgp.models.variance.batched import BatchedRun
from dkgp.models.variance.landmarks import SupportSamples
from dkgp.models.variance.row_scales import RowScales
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.models.variance.whole_matrix.factor import WholeFactor, WholeRoundings, whole_layout
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.cholesky.factor_tasks import TileContext
from dkgp.solvers.cholesky.memory_tiles import MemoryTiles, Tiles
from dkgp.solvers.cholesky.tile_factor import BrokenDownError, SystemOf, TileFactor

# Samples of a batch: enough for BLAS, as many numbers as a thread can spare, parts enough for many workers.
LEAST_BATCH, MOST_BATCH, BATCH_NUMBERS, PARTS = 64, 512, 2**24, 16
# What the tasks that build the factor may hold of it besides.
BUILDING_BYTES = 2**30


def whole_batch(n: int, n_test: int) -> int:
    """Test samples of a batch: by these numbers alone, whoever computes."""
    most = min(MOST_BATCH, max(LEAST_BATCH, BATCH_NUMBERS // n))
    return max(1, min(most, max(LEAST_BATCH, math.ceil(n_test / PARTS))))


@dataclass(frozen=True)
class WholeSource:
    """The source of a worker's `WholeFactor`, with the tiles where they are in memory; `threads` share one batch."""

    context: BlockContext
    noise_variance: float
    tiles: TileContext
    gap: float
    latent: bool
    threads: int = 1  # results do not depend on them

    def factor(self) -> WholeFactor:
        """Return the factor, with the weights of its rows from this process's cache."""
        key = (self.context.run_id, "row scales", self.noise_variance)
        scales = worker_cache().get(key, lambda: RowScales.of(self.context, self.noise_variance))
        return WholeFactor(self.tiles, WholeRoundings(self.tiles.layout, scales, self.noise_variance))

    def bounds(self, inputs: FloatArray) -> BatchVariance:
        """Bound the variances at standardised inputs (t, d)."""
        return self.factor().solve(inputs, self.gap, latent=self.latent, threads=self.threads)


class WholeRun(BatchedRun):
    """One prediction's variances by the factor of the whole matrix.

    Parameters
    ----------
    context : BlockContext
        Of the model's support inputs.
    certificate : Certificate or None
        Of the means; None where they are not wanted.
    place : Tiles, str or None
        Where the tiles go: memory, a folder that all workers reach, or one among this machine's temporary files.
    stored : dict, optional
        Plan of the prediction that is resumed.

    Attributes
    ----------
    plan : dict
        What the store records: way, gap, max_passes, latent, seed, tile_rows, batch_size.

    Raises
    ------
    InputError
        Other settings than those of the prediction to resume.
    MemoryBudgetError, StorageError
        Memory or disk do not suffice.
    """

    _label = "kwhole"

    def __init__(
        self,
        context: BlockContext,
        noise_variance: float,
        certificate: Certificate | None,
        test: TestRows,
        executor: BlockExecutor,
        settings: VarianceSettings,
        *,
        place: Tiles | str | None,
        stored: dict[str, Any] | None = None,
        n_test: int | None = None,
    ) -> None:
        super().__init__(certificate, test, executor, settings, n_test)
        layout = whole_layout(context.n)
        batch = settings.batch_size or whole_batch(context.n, self._n_test)
        self.plan = {
            "way": "cholesky",
            **self._requested,
            "tile_rows": layout.rows,
            "batch_size": int(batch),
        }
        self._require_same(stored, self.plan)
        system = SystemOf(executor, context, noise_variance)
        self._factor = TileFactor(system, layout, place, BUILDING_BYTES, None, expanded=False)
        self._source = WholeSource(context, noise_variance, self._factor.tiles, settings.gap, settings.latent)
        self._in_memory = isinstance(place, MemoryTiles)

    def prepare(self, model: SupportSamples) -> str:
        """Have the factor built, but for tiles that are there."""
        started = time.perf_counter()
        loaded = self._factor.is_complete
        layout = self._factor.layout
        try:
            self._factor.complete(layout.n_panels)
        except BrokenDownError as broken:
            raise NumericalError(
                f"the kernel matrix is not positive definite in float64: its Cholesky factor breaks down at sample "
                f"{broken.sample} of {layout.n}. Raise the noise variance, or take the iterative way (`way`)"
            ) from broken
        self._factor_seconds = time.perf_counter() - started
        where = "in memory" if self._in_memory else f"in '{self._factor.url}'"
        return (
            f"Cholesky factor of all {layout.n:,} samples ({layout.disk_bytes / 1e6:,.3g} MB {where}) "
            f"{'loaded' if loaded else 'built'} in {self._factor_seconds:.1f} s; it suffices by itself"
        )

    def factor(self) -> WholeFactor:
        """Return the factor, once it is prepared."""
        return self._source.factor()

    def _way(self, batches: int) -> WholeSource:
        """One batch alone is shared by the threads of its process."""
        return replace(self._source, threads=self._executor.threads_per_process if batches == 1 else 1)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Figures of the samples of this run; those that a resumed run found done are not among them."""
        n = self._factor.layout.n
        return {**super().summary(seconds), "way": "cholesky", "rank": n, "halo": 0, "smooth": False}
