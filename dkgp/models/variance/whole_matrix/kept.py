"""A whole factor that stays: with a stored model, in tiles in its folder, or in this process while a model is in use.

The tiles' description says of which inputs, kernel and noise they are; those of another model are never used. Each tile
has its checksum. A model opens the same without them, or with a factor that was never finished.
"""

from __future__ import annotations

import time
from dataclasses import replace

from dkgp.cluster.cache import DEFAULT_BUDGET_BYTES, worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import in_parallel, process_threads, single_threaded_blas
from dkgp.data import ModelRecord, is_resident
from dkgp.data.remote.storage import join
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import CheckpointError, NumericalError, StorageError, StoreError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.support import SupportInputs
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.whole_matrix.factor import whole_layout
from dkgp.models.variance.whole_matrix.run import BUILDING_BYTES
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.cholesky.factor_tasks import TileLayout
from dkgp.solvers.cholesky.memory_tiles import MemoryTiles
from dkgp.solvers.cholesky.tile_factor import BrokenDownError, SystemOf, TileFactor

FOLDER = "variance_tiles"


def held_tiles(context: BlockContext, noise_variance: float) -> MemoryTiles:
    """Tiles of a matrix in this process, filled or not, shared by all who ask for them under a run's name."""
    needed = whole_layout(context.n).disk_bytes
    cache = worker_cache()
    cache.budget_bytes = max(cache.budget_bytes, needed + DEFAULT_BUDGET_BYTES)
    return cache.get((context.run_id, "whole tiles", noise_variance), lambda: MemoryTiles(needed))


def are_held(context: BlockContext) -> bool:
    """True if this process has tiles under this run's name."""
    return worker_cache().bytes_of(context.run_id, "whole tiles") > 0


def forget_tiles(context: BlockContext) -> None:
    """Drop the tiles that this process has under a run's name."""
    worker_cache().discard(context.run_id, "whole tiles")


def kept_tiles(model: ModelRecord) -> str | None:
    """Return the folder of a whole factor that is kept with a model, where all tiles are there; None otherwise."""
    if is_resident(model.url):
        return None
    store, layout = TileStore(join(model.url, FOLDER)), whole_layout(model.n_samples)
    try:
        described = store.description() is not None and len(store.names()) == layout.n_tiles
    except (StoreError, StorageError):
        return None
    return store.url if described else None


def load_tiles(url: str, layout: TileLayout, tiles: MemoryTiles) -> None:
    """Read a factor that is kept into memory.

    Raises
    ------
    StoreError
        A tile is missing or damaged.
    """
    store = TileStore(url)
    description = store.description()
    if description is None:
        raise StoreError(f"there is no factor in '{url}'")
    panels = range(layout.n_panels)
    places = [(i, k) for i in panels for k in panels[: i + 1]]

    def load(index: int) -> None:
        i, k = places[index]
        tiles.write(layout.name(i, k), store.read(layout.name(i, k), layout.shape(i, k), layout.dtype))

    in_parallel(load, len(places), process_threads())
    tiles.begin(description)


def keep_whole(model: ModelRecord, executor: BlockExecutor) -> str:
    """Build the factor of a stored model's whole matrix in its folder, or what is missing of it; say what was done.

    Raises
    ------
    StorageError
        The place cannot be written to, or has no room.
    NumericalError
        The matrix is not positive definite in float64.
    """
    began = time.perf_counter()
    kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
    version = f"keep-{model.fingerprint}-{time.time_ns():x}"
    model = replace(model, noise_variance=noise_variance)
    subject = Subject.of(model, BlockContext(version, SupportInputs.of(model, version), kernel, model.n_samples))
    layout, url = whole_layout(model.n_samples), join(model.url, FOLDER)
    system = SystemOf(executor, subject.context, noise_variance)
    try:
        with single_threaded_blas():
            try:
                factor = TileFactor(system, layout, url, BUILDING_BYTES, None, expanded=False)
            except CheckpointError:
                TileStore(url).clear()  # of the model that was here before
                factor = TileFactor(system, layout, url, BUILDING_BYTES, None, expanded=False)
            factor.complete(layout.n_panels)
    except BrokenDownError as broken:
        TileStore(url).clear()
        raise NumericalError(
            f"the kernel matrix is not positive definite in float64: its Cholesky factor breaks down at sample "
            f"{broken.sample} of {model.n_samples}. Raise the noise variance, or keep no factor"
        ) from broken
    finally:
        worker_cache().discard_run(version)
    return (
        f"Cholesky factor of all {model.n_samples:,} samples ({layout.disk_bytes / 1e6:,.3g} MB) kept with the model, "
        f"built in {time.perf_counter() - began:.1f} s: variances take a solve each"
    )
