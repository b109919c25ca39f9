"""The leaves of a block-Vecchia factor on a worker: computed from the store, cached, spilled to disk, or recomputed.

A leaf is a function of the store, the kernel, the noise and the settings. A worker that needs a leaf computes the
missing parts: points of all samples, their order, the leaf's halo, its rows of T and V. Leaves are worked on in bundles
of neighbours, whose halos overlap; the cut depends on n and the settings alone. Spilled leaves lie in one file without
a name, which is gone with the process. They are read for each use and not mapped: pages of a mapped file count as the
process's memory.

A leaf G behind its halo J has rows of T from a Cholesky factor of its own. With I = (J, G) and L L' = (Kbar - F F')_II,

    T_GI = [-L22^-1 L21 L11^-1, L22^-1],    V_G = T_GI F_I.

The algebra is in float32 where the noise is not small beside k(x, x), and in float64 elsewhere; leaves are kept in
float32. Matrices lie row by row, and LAPACK sees their transposes: rows of L, its upper half, and of T are whole.

Halos and orders use points whose Euclidean distances show how strongly two samples are correlated. For a kernel that is
one function of one distance the points are its prepared features. For others (sums and products of several distances,
dot products, a user's function) they are rows of a partial Cholesky factor of modest rank, each divided by sqrt k(x,
x): their distances are nearly the kernel's own, |phi(x)/|phi(x)| - phi(x')/|phi(x')||.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache, worker_scratch
from dkgp.cluster.threads import process_threads
from dkgp.errors import NumericalError
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.blas import blas, lapack
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.low_rank.pivots import RandomlyPivotedCholesky, counted, stand_in
from dkgp.operators.low_rank.products import LandmarkTriangle
from dkgp.operators.vecchia.halos import OrderedPoints, kd_order, leaf_count

# Rows of T that are stored with one width; zeros follow a row's last column.
STRIP_ROWS = 64
# Loops take so many rows at a time, and so many numbers of a row: rows and widths are whole multiples, zeros beyond.
ROWS, LANES = 4, 16
_COLUMNS = 256


@dataclass(frozen=True)
class Leaf:
    """Rows of T and V."""

    halo: int  # samples of J
    rows: int  # samples of G
    rank: int  # columns of V
    values: NDArray[np.float32]  # T in strips of `STRIP_ROWS`, row by row, as wide as the strip's last row needs
    projected: NDArray[np.float32]  # V: (padded rows, padded R)
    double: bool = False  # the algebra was in float64: the products by BLAS are, too
    spilled: bool = False  # read from a scratch file

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes + self.projected.nbytes

    @property
    def padded_rows(self) -> int:
        """Rows, zeros included."""
        return _padded(self.rows, ROWS)

    @property
    def width(self) -> int:
        """Numbers of the longest rows."""
        return _padded(self.halo + self.rows, LANES)

    @property
    def log_determinant(self) -> float:
        """Logarithm of the determinant of T_GG, as it is rounded."""
        diagonals = [
            np.diagonal(strip[: min(where.stop, self.rows) - where.start, self.halo + where.start :])
            for where, strip in self.strips()
        ]
        return float(np.log(np.concatenate(diagonals).astype(np.float64)).sum())

    def strips(self) -> list[tuple[slice, NDArray[np.float32]]]:
        """Rows of T: which ones, and their values from the first column on (rows, width)."""
        strips, start = [], 0
        for first, height, width in strip_shapes(self.halo, self.rows):
            stop = start + height * width
            strips.append((slice(first, first + height), self.values[start:stop].reshape(height, width)))
            start = stop
        return strips


def strip_shapes(halo: int, rows: int) -> list[tuple[int, int, int]]:
    """First row, rows and width of each strip of a leaf."""
    return [
        (first, _padded(last - first, ROWS), _padded(halo + last, LANES))
        for first, last in ((first, min(first + STRIP_ROWS, rows)) for first in range(0, rows, STRIP_ROWS))
    ]


def values_held(halo: int, rows: int) -> int:
    """Numbers of T that a leaf keeps."""
    return sum(height * width for _, height, width in strip_shapes(halo, rows))


def _padded(count: int, step: int) -> int:
    return -(-count // step) * step


def takes_double(columns: int, least_noise: float, largest_diagonal: float) -> bool:
    """True if the noise would lose most digits in a float32 Cholesky factor of so many columns."""
    return least_noise < 0.0625 * columns * 2.0**-24 * largest_diagonal


def factor_leaf(
    evaluator: TileEvaluator,
    features: Features,
    halo: int,
    noise: float | FloatArray,
    factor: NDArray[Any] | None,
    jitter: float = 0.0,
) -> Leaf | None:
    """Rows of T and V of one leaf, in the evaluator's precision; None where they need a higher one.

    `features` are of I = (J, G), m samples, the first `halo` of them J; the noise is one number or (m,); `factor` is
    F_I (m, R) in the evaluator's type. `jitter` is a share of the diagonal of K - F F' + noise that is added to it.
    """
    count = features.n
    rows, dtype = count - halo, evaluator.dtype
    matrix, diagonal = lower_half(evaluator, features)
    if dtype == np.float32 and takes_double(count, float(np.min(noise)), float(diagonal.max())):
        return None
    stride = matrix.shape[1]
    diagonal += noise
    if factor is not None:
        blas("syrk", b"U", b"T", count, factor.shape[1], -1.0, factor, factor.shape[1], 1.0, matrix, stride)
    if jitter:
        diagonal += jitter * np.abs(diagonal)
    if lapack("potrf", b"U", count, matrix, stride):
        return None
    corner = matrix[halo:, halo:]
    cross = matrix[halo:]  # rows are columns of L21'
    if halo:
        blas("trsm", b"L", b"U", b"N", b"N", halo, rows, -1.0, matrix, stride, cross, stride)
    if lapack("trtri", b"U", b"N", rows, corner, stride):
        return None
    if halo:
        blas("trmm", b"R", b"U", b"N", b"N", halo, rows, 1.0, corner, stride, cross, stride)
    for row in range(rows):
        corner[row, row + 1 :] = 0.0
    rank = 0 if factor is None else factor.shape[1]
    projected = np.zeros((_padded(rows, ROWS), _padded(rank, LANES)), dtype)
    if factor is not None:
        width = projected.shape[1]
        blas("gemm", b"N", b"N", rank, rows, count, 1.0, factor, rank, cross, stride, 0.0, projected, width)
    leaf = Leaf(
        halo,
        rows,
        rank,
        np.zeros(values_held(halo, rows), np.float32),
        projected.astype(np.float32, copy=False),
        dtype == np.float64,
    )
    for where, strip in leaf.strips():
        last = min(where.stop, rows)
        strip[: last - where.start, : halo + last] = matrix[halo + where.start : halo + last, : halo + last]
    return leaf if np.isfinite(leaf.values).all() else None


def lower_half(evaluator: TileEvaluator, features: Features) -> tuple[NDArray[Any], NDArray[Any]]:
    """K_II with the entries of each row up to the diagonal, (m, padded m); and its diagonal, a view."""
    count, dtype = features.n, evaluator.dtype
    matrix = np.empty((count, features.values.shape[1]), dtype)
    for first in range(0, count, _COLUMNS):
        last = min(first + _COLUMNS, count)
        evaluator.fill(features.slice(0, last), features.slice(first, last), matrix[first:last])
    return matrix, matrix.reshape(-1)[:: matrix.shape[1] + 1][:count]


def refuse(halo: int, rows: int) -> NumericalError:
    """Error of a leaf that no jitter makes positive definite."""
    return NumericalError(
        f"a leaf of {rows:,} samples with a halo of {halo:,} has no Cholesky factor, for all that its diagonal was "
        "raised: the kernel's values are not finite, or far from positive definite. Bring inputs that are far out "
        "closer, or choose another kernel"
    )


# Landmarks of an embedding: enough for distances between samples, not for the kernel itself.
EMBEDDING_RANK = 48
_SEED = 0


def is_one_distance(evaluator: TileEvaluator) -> bool:
    """Return whether the kernel is a function of one distance, that between its prepared features, of at least one."""
    features = evaluator.prepare(np.zeros((1, evaluator.kernel.n_features)))
    return int(evaluator.program[0, 0]) == 1 and features.squared_norms.shape[0] == 1 and len(features.values) > 0


def embedding_landmarks(operator: BlockedKernelOperator) -> FloatArray | None:
    """Inputs (e, d) of samples that the embedding is built on; None where it is the features themselves."""
    if is_one_distance(operator.single):
        return None
    rng = np.random.default_rng(_SEED)
    inputs = operator.inputs(stand_in(operator.n, EMBEDDING_RANK, rng))
    prior = np.asarray(operator.kernel.diagonal(inputs), dtype=np.float64)
    factor = RandomlyPivotedCholesky(
        operator.double, operator.double.prepare(inputs), prior, min(EMBEDDING_RANK, len(inputs)), rng
    )
    while not factor.complete:
        factor.extend()
    return inputs[factor.pivots]


def embed(context: BlockContext, landmarks: FloatArray | None) -> NDArray[np.float32]:
    """Points of all samples, in their order: (n, e)."""
    blocks = range(context.n_blocks)
    if landmarks is None:
        features = [context.block_features(block, "single") for block in blocks]
        return np.concatenate([rows.values[:, : rows.n].T for rows in features])
    evaluator = context.evaluator("double")
    triangle = LandmarkTriangle.of(evaluator, landmarks)
    largest = float(context.kernel.diagonal(landmarks).max())
    points = np.empty((context.n, len(landmarks)), np.float32)
    for block in blocks:
        start, stop = context.bounds(block)
        inputs = context.source.inputs(start, stop)
        prior = counted(np.asarray(context.kernel.diagonal(inputs), dtype=np.float64), largest)
        columns = triangle.columns(evaluator, context.block_features(block, "double"))
        points[start:stop] = (columns / np.sqrt(prior)).T
    return points


def embed_inputs(context: BlockContext, landmarks: FloatArray | None, inputs: FloatArray) -> NDArray[np.float32]:
    """Points of standardised inputs (t, d) that are no samples: (t, e)."""
    if landmarks is None:
        features = context.evaluator("single").prepare(inputs)
        return np.ascontiguousarray(features.values[:, : features.n].T)
    evaluator = context.evaluator("double")
    largest = float(context.kernel.diagonal(landmarks).max())
    prior = counted(np.asarray(context.kernel.diagonal(inputs), dtype=np.float64), largest)
    columns = LandmarkTriangle.of(evaluator, landmarks).columns(evaluator, evaluator.prepare(inputs))
    with np.errstate(over="ignore", invalid="ignore"):
        points = np.ascontiguousarray((columns / np.sqrt(prior)).T, dtype=np.float32)
    # Where k(x, x) overflows, no neighbour is nearer than another.
    return np.nan_to_num(points, nan=0.0, posinf=0.0, neginf=0.0)


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
