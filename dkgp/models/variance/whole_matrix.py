"""Intervals of variances from a Cholesky factor of the whole Kbar, by a proven bound on its roundings.

A computed float64 factor L is the exact factor of a matrix near Kbar: L L' = Kbar + E, |E_ij| <= eps_L d_i d_j with
d_i = sqrt(largest) w_i, the weights of `RowScales`. Likewise the computed solution f of L f = k_x satisfies L f = k_x +
rho, |rho_i| <= tau d_i. With v = L^-T f, a = sum d_i |v_i| and D^2 = sum d_i^2, Theorem 2 for this v gives

    |f|^2 - 2 tau a - eps_L a^2 <= k_x' Kbar^-1 k_x <= |f|^2 + 2 tau a + eps_L a^2 + D^2 (eps_L a + tau)^2 / s2,

with no kernel entries except those of k_x, and without a product with K. docs/proofs.md has the proof and lists the
roundings. a is at most D |f| / sqrt(s2 - eps_L D^2). If this bound gives too wide an interval, a is computed from v
itself. If that interval is also too wide, or eps_L D^2 is near or above s2, a product with Kbar gives v's residual.

A run builds the factor once, in tiles, and then solves for each batch. Tiles are in memory if threads share it and it
is large enough, and otherwise in a folder. The bits of the tiles and of the intervals are the same in either place and
on any number of workers. A factor can be kept: with a stored model, as tiles in its folder, or in this process while a
model is in use. The tiles' description names the inputs, kernel and noise that they were built from; tiles of another
model are never used. Each tile has a checksum. A model can be opened without tiles, or with an unfinished factor.

References
----------
N. J. Higham, Accuracy and Stability of Numerical Algorithms (2002), lemma 8.4, theorems 8.5 and 10.3.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.threads import in_parallel, process_threads, single_threaded_blas
from dkgp.data import ModelRecord, is_resident
from dkgp.data.remote.storage import join
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import CheckpointError, NumericalError, StorageError, StoreError
from dkgp.forks import DEFAULT_BUDGET_BYTES
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.rounding import EPS, EVALUATION, UNIT, highest_prior
from dkgp.models.sums import SupportInputs
from dkgp.models.variance.batch import BatchVariance, ProductTally, VarianceBounds
from dkgp.models.variance.row_scales import RowScales
from dkgp.models.variance.run import Request, VarianceRun
from dkgp.models.variance.scaled import Subject
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.registry import byte_text
from dkgp.solvers.cholesky.tile_factor import (
    BrokenDownError,
    MemoryTiles,
    SystemOf,
    TileContext,
    TileFactor,
    TileLayout,
    Tiles,
    substitute,
)

# Rows of a tile: the rounding bounds grow with this number, and with n over this number.
TILE_ROWS, LARGE_TILE_ROWS, LARGE_FROM = 512, 1024, 40_000
# Largest number of parts in which BLAS adds a tile's product: its kernels take at least 128 columns at a time.
PARTS = 8
# Terms that a residual's partial sums have, before the partial sums are added.
SUMMED = 32
# Largest bound on the norm of E, over s2, for which the factor proves bounds.
LARGEST_SHARE = 0.1


def whole_layout(n: int) -> TileLayout:
    """Return the tiles of the factor of n samples; they, and so the factor's bits, depend only on n."""
    rows = TILE_ROWS if n < LARGE_FROM else LARGE_TILE_ROWS
    return TileLayout(n, min(rows, n), "double")


@dataclass(frozen=True)
class WholeRoundings:
    """Bounds on a factor's roundings, known before the factor is built.

    Attributes
    ----------
    layout : TileLayout
    scales : RowScales
    noise_variance : float
        s2.
    """

    layout: TileLayout
    scales: RowScales
    noise_variance: float

    @property
    def gamma(self) -> float:
        """Bound on the roundings of a term of an entry of L or of f, for any order of a tile's sums."""
        layout = self.layout
        return EVALUATION * (2.0 * layout.rows + PARTS * layout.n_panels + 8.0) * UNIT

    @property
    def entry(self) -> float:
        """Errors of an entry of Kbar, noise included, in units of d_i d_j."""
        return EVALUATION * (self.scales.entry_error * EPS + UNIT)

    @property
    def backward(self) -> float:
        """eps_L: bound on the error of an entry of L L' as Kbar, in units of d_i d_j."""
        return self.entry + 2.0 * self.gamma

    @property
    def length(self) -> float:
        """D."""
        return float(np.sqrt(self.scales.largest)) * self.scales.norm * EVALUATION

    @property
    def off(self) -> float:
        """Bound on the eigenvalues of L L' - Kbar."""
        return self.backward * self.length**2

    @property
    def least(self) -> float:
        """Lower bound on the eigenvalues of L L'; zero if there is no proof."""
        return self.noise_variance - self.off if self.off <= LARGEST_SHARE * self.noise_variance else 0.0


@dataclass(frozen=True)
class WholeFactor:
    """A complete factor.

    Attributes
    ----------
    tiles : TileContext
    roundings : WholeRoundings
    """

    tiles: TileContext
    roundings: WholeRoundings

    def solve(self, inputs: FloatArray, gap: float, *, latent: bool = False, threads: int = 1) -> BatchVariance:
        """Bound the variances at standardised test inputs (t, d); `passes` are zero."""
        kernel = self.tiles.context.kernel
        prior = np.asarray(kernel.diagonal(inputs), dtype=np.float64)
        highest = highest_prior(kernel, prior)
        known, scales = self.roundings, self.roundings.scales
        noise = 0.0 if latent else known.noise_variance
        bounds = VarianceBounds(highest, noise, gap)
        reported = np.zeros(len(inputs)), ProductTally()
        share = scales.share(highest, inputs) * np.sqrt(scales.largest)
        if known.least > 0.0:
            f = self._columns(inputs, threads)
            substitute(self.tiles, f, threads)
            square = self._squares(f)
            everything = np.arange(len(inputs))
            spread = known.length * np.sqrt(square / known.least) * EVALUATION
            self._tighten(bounds, everything, (prior, highest), square, share, spread)
            wide = bounds.unfinished()
            if len(wide):
                v = np.ascontiguousarray(f[:, wide])
                substitute(self.tiles, v, threads, transposed=True)
                spread = np.fmin(spread[wide], self._spread(v, square[wide]))
                self._tighten(bounds, wide, (prior[wide], highest[wide]), square[wide], share[wide], spread)
        wide = bounds.unfinished()
        if len(wide):
            self._tighten_by_residuals(bounds, wide, inputs, (prior, highest), share, threads)
        return bounds.reported(*reported)

    def weights(self, inputs: FloatArray, *, threads: int = 1) -> tuple[FloatArray, FloatArray]:
        """Return w near Kbar^-1 k_x, (n, t), and bounds on |Kbar w - k_x|, (t,), at standardised inputs (t, d).

        The bounds come from the factor's roundings (docs/proofs.md, Theorem 18), or from a product with Kbar (Lemma
        3a) if the roundings prove nothing.
        """
        known, scales = self.roundings, self.roundings.scales
        highest = highest_prior(self.tiles.context.kernel, np.asarray(self.tiles.context.kernel.diagonal(inputs)))
        share = scales.share(highest, inputs) * np.sqrt(scales.largest)
        if known.least <= 0.0:
            _, w, residual, off, _ = self._residuals(inputs, share, threads)
            return w, EVALUATION * (np.sqrt(self._dots(residual, residual)) + known.length * off)
        w = self._columns(inputs, threads)
        substitute(self.tiles, w, threads)
        tau = (known.entry + known.gamma) * share + known.gamma * np.sqrt(self._squares(w))
        substitute(self.tiles, w, threads, transposed=True)
        spread = np.sqrt(scales.largest) * (scales.weights @ np.abs(w))
        residual = EVALUATION * known.length * ((known.backward + known.gamma) * spread + tau)
        return w, np.asarray(residual)

    def _columns(self, inputs: FloatArray, threads: int) -> FloatArray:
        """Return k_x of the test samples, float64: (n, t)."""
        layout, evaluator = self.tiles.layout, self.roundings.scales.evaluator
        test = evaluator.prepare(inputs)
        columns = np.empty((layout.n, len(inputs)))

        def fill(k: int) -> None:
            columns[slice(*layout.bounds(k))] = evaluator.tile(self.tiles.features(k), test)

        in_parallel(fill, layout.n_panels, threads)
        return columns

    def _squares(self, f: FloatArray) -> FloatArray:
        layout = self.tiles.layout
        parts = [f[slice(*layout.bounds(k))] for k in range(layout.n_panels)]
        return np.asarray(np.sum([np.einsum("it,it->t", part, part) for part in parts], axis=0))

    def _spread(self, v: FloatArray, square: FloatArray) -> FloatArray:
        """Return a bound on a from the computed v, whose error is L^-T times gamma (|L|'|v| + |f|).

        The norm of L^-T is 1 / sqrt(least).
        """
        known, scales = self.roundings, self.roundings.scales
        absolute = np.sqrt(scales.largest) * (scales.weights @ np.abs(v))
        off = known.gamma * (absolute + np.sqrt(square)) / np.sqrt(known.least)
        return np.asarray(EVALUATION * (absolute + known.length * off))

    def _residuals(
        self, inputs: FloatArray, share: FloatArray, threads: int
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return k_x, w near Kbar^-1 k_x, rho = k_x - Kbar w, (n, t) each; eta and a = sum d_i |w_i|, (t,) each.

        All values are as computed. The error of rho_i is at most eta d_i (docs/proofs.md, Lemma 3a). The cost is n^2
        kernel entries, evaluated once for all test samples.
        """
        known, scales = self.roundings, self.roundings.scales
        columns = self._columns(inputs, threads)
        w = columns.copy()
        substitute(self.tiles, w, threads)
        substitute(self.tiles, w, threads, transposed=True)
        residual = columns - self._product(w, threads)
        spread = EVALUATION * np.sqrt(scales.largest) * (scales.weights @ np.abs(w))
        eta = EVALUATION * (known.entry + (self._additions + 2.0) * UNIT) * (spread + share)
        return columns, w, residual, eta, spread

    @property
    def _additions(self) -> float:
        """Roundings of a term of `_product` and `_dots`, including its own product and that of the noise."""
        layout = self.tiles.layout
        return SUMMED + math.ceil(layout.rows / SUMMED) + layout.n_panels + 2.0

    def _product(self, w: FloatArray, threads: int) -> FloatArray:
        """Return Kbar w, (n, t), by partial sums of few terms, since w has both signs and its sums cancel."""
        layout, evaluator = self.tiles.layout, self.roundings.scales.evaluator
        image = np.empty_like(w)

        def fill(i: int) -> None:
            rows, total = slice(*layout.bounds(i)), np.zeros((layout.bounds(i)[1] - layout.bounds(i)[0], w.shape[1]))
            for k in range(layout.n_panels):
                start, stop = layout.bounds(k)
                tile, part = evaluator.tile(self.tiles.features(i), self.tiles.features(k)), np.zeros_like(total)
                for first in range(start, stop, SUMMED):
                    last = min(first + SUMMED, stop)
                    part += tile[:, first - start : last - start] @ w[first:last]
                total += part
            image[rows] = total + self.roundings.noise_variance * w[rows]

        in_parallel(fill, layout.n_panels, threads)
        return image

    def _dots(self, a: FloatArray, b: FloatArray) -> FloatArray:
        """Return a_j'b_j of the columns of two arrays (n, t), by partial sums of few terms: (t,)."""
        layout, total = self.tiles.layout, np.zeros(a.shape[1])
        for k in range(layout.n_panels):
            start, stop = layout.bounds(k)
            starts = range(start, stop, SUMMED)
            pieces = [slice(first, min(first + SUMMED, stop)) for first in starts]
            total += np.sum([np.einsum("it,it->t", a[piece], b[piece]) for piece in pieces], axis=0)
        return total

    def _tighten_by_residuals(
        self,
        bounds: VarianceBounds,
        which: IndexArray,
        inputs: FloatArray,
        priors: tuple[FloatArray, FloatArray],
        share: FloatArray,
        threads: int,
    ) -> None:
        """Tighten by w near Kbar^-1 k_x and its residual (Theorem 16a), so that the factor's errors enter squared."""
        known = self.roundings
        (prior, highest), share = (values[which] for values in priors), share[which]
        columns, w, residual, eta, spread = self._residuals(inputs[which], share, threads)
        quadratic = self._dots(w, columns) + self._dots(w, residual)
        sizes = self._dots(np.abs(w), np.abs(columns)) + self._dots(np.abs(w), np.abs(residual))
        either = spread * (known.entry * share + eta) + (self._additions + 1.0) * UNIT * sizes
        # k(x, x) as computed, and two differences.
        either += (highest - prior) + 4.0 * UNIT * (highest + np.abs(quadratic))
        length = np.sqrt(self._dots(residual, residual)) + known.length * eta
        lower = prior - quadratic - EVALUATION * (either + length**2 / known.noise_variance)
        upper = prior - quadratic + EVALUATION * either
        bounds.tighten(which, lower, upper, upper - lower)

    def _tighten(
        self,
        bounds: VarianceBounds,
        which: IndexArray,
        priors: tuple[FloatArray, FloatArray],
        square: FloatArray,
        share: FloatArray,
        spread: FloatArray,
    ) -> None:
        known, (prior, highest) = self.roundings, priors
        tau = EVALUATION * ((known.entry + known.gamma) * share + known.gamma * np.sqrt(square))
        either = 2.0 * tau * spread + known.backward * spread**2
        either += (self.tiles.layout.rows + self.tiles.layout.n_panels + 6.0) * UNIT * square
        # k(x, x) as computed, and two differences.
        either += (highest - prior) + 4.0 * UNIT * (highest + square)
        residual = (known.length * (known.backward * spread + tau)) ** 2 / known.noise_variance
        lower = prior - square - EVALUATION * (either + residual)
        upper = prior - square + EVALUATION * either
        bounds.tighten(which, lower, upper, upper - lower)


# Samples of a batch: enough for BLAS, few enough for a thread's memory, and enough batches for many workers.
LEAST_BATCH, MOST_BATCH, BATCH_NUMBERS, BATCHES = 64, 512, 2**24, 16
# Most bytes of the factor that the building tasks may hold in addition.
BUILDING_BYTES = 2**30


def whole_batch(n: int, n_test: int) -> int:
    """Return the test samples of a batch, which depend only on n and n_test, not on the workers."""
    most = min(MOST_BATCH, max(LEAST_BATCH, BATCH_NUMBERS // n))
    return max(1, min(most, max(LEAST_BATCH, math.ceil(n_test / BATCHES))))


@dataclass(frozen=True)
class WholeSource:
    """Source of a worker's `WholeFactor`, including tiles that are in memory; `threads` share one batch."""

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


class WholeRun(VarianceRun):
    """Variances by the factor of the whole matrix.

    Parameters
    ----------
    request : Request
    place : Tiles, str or None
        Place of the tiles: memory, a folder that all workers can access, or by default a temporary folder.

    Attributes
    ----------
    plan : dict
        Entries: way, gap, max_passes, latent, seed, tile_rows, batch_size.

    Raises
    ------
    InputError
        The settings differ from those of the stored plan.
    MemoryBudgetError, StorageError
        Memory or disk space is insufficient.
    """

    _label = "kwhole"

    def __init__(self, request: Request, place: Tiles | str | None) -> None:
        super().__init__(request)
        context, s2, settings = request.context, request.model.noise_variance, request.settings
        layout = whole_layout(context.n)
        self._batch = int(settings.batch_size or whole_batch(context.n, self._n_test))
        self.plan = {"way": "cholesky", **self._requested, "tile_rows": layout.rows, "batch_size": self._batch}
        self._require_same(self.plan)
        system = SystemOf(request.executor, context, s2)
        self._factor = TileFactor(system, layout, place, BUILDING_BYTES, None, expanded=False)
        self._source = WholeSource(context, s2, self._factor.tiles, settings.gap, settings.latent)
        self._in_memory = isinstance(place, MemoryTiles)

    def prepare(self) -> str:
        """Build the missing tiles of the factor; return a line on it."""
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
            f"Cholesky factor of all {layout.n:,} samples ({byte_text(layout.disk_bytes)} {where}) "
            f"{'loaded' if loaded else 'built'} in {self._factor_seconds:.1f} s; the variances need no iterations"
        )

    def factor(self) -> WholeFactor:
        """Return the factor, once it is prepared."""
        return self._source.factor()

    def _way(self, batches: int) -> WholeSource:
        """Return the worker's source; if there is only one batch, all threads of its process share it."""
        return replace(self._source, threads=self._executor.threads_per_process if batches == 1 else 1)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the samples that this run computed."""
        n = self._factor.layout.n
        return {**super().summary(seconds), "way": "cholesky", "rank": n, "halo": 0, "smooth": False}


FOLDER = "variance_tiles"


def held_tiles(context: BlockContext, noise_variance: float) -> MemoryTiles:
    """Return this process's tiles of a matrix, filled or not; all callers with the same run's name share them."""
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
    """Return the folder of the whole factor stored with a model, or None if there is no complete factor."""
    if is_resident(model.url):
        return None
    store, layout = TileStore(join(model.url, FOLDER)), whole_layout(model.n_samples)
    try:
        described = store.description() is not None and len(store.names()) == layout.n_tiles
    except (StoreError, StorageError):
        return None
    return store.url if described else None


def load_tiles(url: str, layout: TileLayout, tiles: MemoryTiles) -> None:
    """Read a stored factor into memory.

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
    """Build the missing tiles of the whole matrix's factor in a stored model's folder; return a line on it.

    Raises
    ------
    StorageError
        The folder cannot be written to, or the disk is full.
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
                TileStore(url).clear()  # remove the tiles of the model that was stored here before
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
        f"Cholesky factor of all {model.n_samples:,} samples ({byte_text(layout.disk_bytes)}) kept with the model, "
        f"built in {time.perf_counter() - began:.1f} s: variances take a solve each"
    )
