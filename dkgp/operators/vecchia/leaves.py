"""The leaves of a factor as a worker has them: made from the store, kept in its cache, spilled to disk, or made again.

A leaf is a function of the store, the kernel, the noise and the settings. A worker that needs a leaf makes what it
lacks: points of all samples, their order, the leaf's halo, its rows of T and V. Leaves are worked on in bundles of
neighbours, whose halos overlap; the cut depends on n and the settings alone.

Spilled leaves lie in one file without a name, which is gone with the process. They are read for each use and not
mapped: pages of a mapped file count as the process's memory.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache, worker_scratch
from dkgp.cluster.threads import process_threads
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.low_rank.products import LandmarkTriangle
from dkgp.operators.vecchia.embedding import embed
from dkgp.operators.vecchia.halos import OrderedPoints, kd_order, leaf_count
from dkgp.operators.vecchia.leaf import Leaf, factor_leaf, refuse

# Samples of a bundle, about; less where there would be fewer bundles than this.
BUNDLE_ROWS = 8192
LEAST_BUNDLES = 32
# Shares of the diagonal, added where a leaf's matrix is indefinite even in float64: the least that helps.
JITTERS = (0.0, 1e-13, 1e-10, 1e-7, 1e-4)


@dataclass(frozen=True)
class Bundle:
    """Samples of some neighbouring leaves and of their halos."""

    samples: NDArray[np.int32]  # in kd order, the leaves' own last: (u,)
    unproven: int  # of the leaves' own, whose halo may not be the nearest
    first: int  # number of the first leaf
    places: tuple[IndexArray, ...]  # of each leaf, places in `samples` of its halo and then its own samples: (m,)
    halos: tuple[int, ...]  # samples of each leaf's halo

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.samples.nbytes + sum(places.nbytes for places in self.places)


@dataclass(frozen=True)
class Leaves:
    """Everything that any leaf can be made of; a few hundred bytes on the wire, and the landmarks' inputs."""

    context: BlockContext
    halo: int  # samples of a halo, at most
    leaf: int  # samples of a leaf, at most
    landmark_inputs: FloatArray  # of F: (R, d)
    embedding: FloatArray | None  # inputs (e, d) of the landmarks of `embed`; None for distances between features
    label: str  # tells factors of one run apart
    searched: int | None = None  # leaves that a search for a halo looks at, at most; None: as many as it takes

    @property
    def rank(self) -> int:
        """Landmarks, R."""
        return len(self.landmark_inputs)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return leaf_count(self.context.n, self.leaf)

    @property
    def leaves_by_bundle(self) -> int:
        """Leaves of a bundle."""
        return bundle_leaves(self.context.n, self.leaf)

    @property
    def n_bundles(self) -> int:
        """Number of bundles."""
        return -(-self.n_leaves // self.leaves_by_bundle)

    @cached_property
    def width(self) -> int:
        """Numbers of a sample's features, or of its point where those are more."""
        return max(feature_width(self.context.kernel), 0 if self.embedding is None else len(self.embedding))

    def points(self) -> OrderedPoints:
        """The samples' points in kd order."""

        def build() -> OrderedPoints:
            # A factor that is built anew, with larger halos, takes the place of the one before.
            worker_cache().discard(self.context.run_id, "vecchia", but=self.label)
            points = embed(self.context, self.embedding)
            order, bounds = kd_order(points, self.leaf)
            return OrderedPoints(points[order], order, bounds, self.searched)

        return worker_cache().get(self.key("points"), build)

    def bundle(self, number: int) -> Bundle:
        """Samples of a bundle."""

        def build() -> Bundle:
            points = self.points()
            first = number * self.leaves_by_bundle
            leaves = range(first, min(first + self.leaves_by_bundle, self.n_leaves))
            start, stop = points.bounds[leaves[0]], points.bounds[leaves[-1] + 1]
            halos, proven = zip(*(points.searched_halo(leaf, self.halo) for leaf in leaves), strict=True)
            union = np.union1d(np.concatenate(halos), np.arange(start, stop, dtype=np.int32))
            members = [np.arange(points.bounds[leaf], points.bounds[leaf + 1], dtype=np.int32) for leaf in leaves]
            places = tuple(np.searchsorted(union, np.concatenate(pair)) for pair in zip(halos, members, strict=True))
            unproven = sum(len(own) for own, is_proven in zip(members, proven, strict=True) if not is_proven)
            return Bundle(points.order[union], unproven, first, places, tuple(len(halo) for halo in halos))

        return worker_cache().get(self.key("bundle", number), build)

    def opened(self, number: int, noise: Variances) -> OpenBundle:
        """A bundle with its leaves; `noise` is that of its samples, in their order."""
        return OpenBundle(self, self.bundle(number), noise)

    def key(self, *parts: Hashable) -> tuple[Hashable, ...]:
        """Key of something in a worker's cache."""
        return (self.context.run_id, "vecchia", self.label, *parts)

    def has_room(self, leaf: Leaf) -> bool:
        """True if the leaf may stay in memory, beside all else that is cached and would push it out."""
        features = self.context.n * 16 * (self.width + 1)
        bundles = 12 * self.n_leaves * (self.halo + self.leaf)
        besides = features + bundles + 8 * self.rank * (self.rank + self.width + 1)
        cache = worker_cache()
        return cache.bytes_of(*self.key("leaf")) + process_threads() * leaf.nbytes + besides <= cache.budget_bytes


class OpenBundle:
    """A bundle and its leaves: from this worker's cache, its scratch file, or made, with the noise of its samples."""

    def __init__(self, leaves: Leaves, bundle: Bundle, noise: Variances) -> None:
        self.bundle = bundle
        self._leaves, self._noise = leaves, noise
        self._prepared: dict[Precision, Features] = {}

    def leaf(self, place: int) -> Leaf:
        """Leaf number `place` of the bundle."""
        leaves = self._leaves

        def build() -> Leaf | SpilledLeaf:
            leaf = self._made(place)
            if not leaves.has_room(leaf):
                # On a full disk it is made again whenever it is needed.
                with suppress(OSError):
                    return worker_cache().get(leaves.key("scratch"), ScratchFile).append(leaf)
            return leaf

        cached: Leaf | SpilledLeaf = worker_cache().get(
            leaves.key("leaf", self.bundle.first + place),
            build,
            keep=lambda leaf: isinstance(leaf, SpilledLeaf) or leaves.has_room(leaf),
        )
        if isinstance(cached, Leaf):
            return cached
        try:
            return cached.read()
        except OSError:
            return self._made(place)

    def _made(self, place: int) -> Leaf:
        places, halo = self.bundle.places[place], self.bundle.halos[place]
        factor, noise = self._factor_rows(places), noise_at(self._noise, places)
        leaf = self._attempt("single", places, halo, noise, factor)
        for jitter in JITTERS:
            if leaf is not None:
                return leaf
            leaf = self._attempt("double", places, halo, noise, factor, jitter)
        if leaf is None:
            raise refuse(halo, len(places) - halo)
        return leaf

    def _attempt(
        self,
        precision: Precision,
        places: IndexArray,
        halo: int,
        noise: Variances,
        factor: FloatArray | None,
        jitter: float = 0.0,
    ) -> Leaf | None:
        evaluator = self._leaves.context.evaluator(precision)
        rows = None if factor is None else factor.astype(evaluator.dtype)
        return factor_leaf(evaluator, self._features(precision).take(places), halo, noise, rows, jitter)

    def _factor_rows(self, places: IndexArray) -> FloatArray | None:
        """F_I: (m, R)."""
        leaves = self._leaves
        if not leaves.rank:
            return None
        evaluator = leaves.context.evaluator("double")
        triangle = LandmarkTriangle.cached(leaves.context, leaves.landmark_inputs, "vecchia", leaves.label)
        return np.ascontiguousarray(triangle.columns(evaluator, self._features("double").take(places)).T)

    def _features(self, precision: Precision) -> Features:
        """Prepared features of the bundle's samples, gathered from their blocks when a first leaf is made."""
        features = self._prepared.get(precision)
        if features is None:
            features = self._prepared[precision] = gathered(self._leaves.context, self.bundle.samples, precision)
        return features


def bundle_leaves(n: int, leaf: int) -> int:
    """Leaves of a bundle, of n samples in leaves of at most `leaf`."""
    return max(1, min(leaf_count(n, leaf) // LEAST_BUNDLES, BUNDLE_ROWS // leaf))


def gathered(context: BlockContext, samples: NDArray[np.int32], precision: Precision) -> Features:
    """Prepared features of some samples, in their order, from their blocks."""
    blocks = samples // context.block_rows
    order = np.argsort(blocks, kind="stable")
    names, starts = np.unique(blocks[order], return_index=True)
    parts = [
        context.block_features(int(block), precision).take((members - context.bounds(int(block))[0]).astype(np.intp))
        for block, members in zip(names, np.split(samples[order], starts[1:]), strict=True)
    ]
    values = np.concatenate([part.values[:, : part.n] for part in parts], axis=1)
    norms = np.concatenate([part.squared_norms[:, : part.n] for part in parts], axis=1)
    back = np.empty(len(samples), np.intp)
    back[order] = np.arange(len(samples))
    return Features(values, norms, len(samples)).take(back)


class ScratchFile:
    """A file that leaves are appended to; no other process sees it, and it goes with this one however that ends."""

    # For the cache, which weighs its content; a file without references is closed, and gone.
    nbytes = 1

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="dkgp-leaves-", dir=worker_scratch())  # noqa: SIM115
        self._lock = threading.Lock()
        self._end = 0

    def append(self, leaf: Leaf) -> SpilledLeaf:
        """Write a leaf; `OSError` where the disk is full, which leaves the file as it was."""
        with self._lock:
            start = end = self._end
            try:
                for array in (leaf.values, leaf.projected):
                    end = self._write(array, end)
            except OSError:
                os.ftruncate(self._file.fileno(), start)
                raise
            self._end = end
        empty = np.empty(0, np.float32)
        shapes = (leaf.values.shape, leaf.projected.shape)
        return SpilledLeaf(self, start, shapes, replace(leaf, values=empty, projected=empty, spilled=True))

    def _write(self, array: NDArray[np.float32], place: int) -> int:
        remaining = _bytes_of(array)
        while remaining:
            written = os.pwrite(self._file.fileno(), remaining, place)
            remaining, place = remaining[written:], place + written
        return place

    def read(self, place: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Read an array; `OSError` where it is not all there."""
        array = np.empty(shape, np.float32)
        remaining = _bytes_of(array)
        while remaining:
            count = os.preadv(self._file.fileno(), [remaining], place)
            if not count:
                raise OSError(f"a scratch file of leaves ends at byte {place}; it was longer when it was written")
            remaining, place = remaining[count:], place + count
        return array


@dataclass(frozen=True)
class SpilledLeaf:
    """A leaf in a scratch file."""

    file: ScratchFile
    start: int
    shapes: tuple[tuple[int, ...], ...]
    leaf: Leaf
    nbytes: int = 1

    def read(self) -> Leaf:
        """The leaf, in memory."""
        values = self.file.read(self.start, self.shapes[0])
        return replace(self.leaf, values=values, projected=self.file.read(self.start + values.nbytes, self.shapes[1]))


def _bytes_of(array: NDArray[np.float32]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
