"""The leaves of a factor as a worker has them: made from the store, kept in its cache, spilled to disk, or made again.

Everything here is a function of the store, the kernel, the noise and the settings. A worker that is asked for a leaf
makes what it lacks: points of all samples, their order, the leaf's halo, its rows of T and V. Leaves are worked on in
bundles of neighbours, whose halos overlap; the cut depends on n and the settings alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import process_threads
from dkgp.kernels import Features
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.operators.base import FloatArray, IndexArray, Noise, noise_at
from dkgp.operators.block_tasks import BlockContext, feature_width
from dkgp.operators.low_rank.products import LandmarkTriangle
from dkgp.operators.vecchia.embedding import embed
from dkgp.operators.vecchia.halos import OrderedPoints
from dkgp.operators.vecchia.leaf import Leaf, factor_leaf, refuse, takes_double
from dkgp.operators.vecchia.order import kd_order, leaf_count
from dkgp.operators.vecchia.scratch import ScratchFile, SpilledLeaf

__all__ = ["Bundle", "Leaves"]

# Samples of a bundle, about; less where there would be fewer bundles than this.
BUNDLE_ROWS = 8192
LEAST_BUNDLES = 32
# Of a diagonal, added where even float64 finds a leaf's matrix indefinite.
JITTERS = (1e-13, 1e-10, 1e-7, 1e-4)


@dataclass(frozen=True)
class Bundle:
    """Samples of some neighbouring leaves and of their halos.

    Attributes
    ----------
    samples : (u,) int32
        In kd order; the leaves' own come last.
    own : int
        How many those are.
    first : int
        Number of the first leaf.
    places : tuple of (m,) intp
        Of each leaf, places in `samples` of its halo and then its own samples.
    halos : tuple of int
        Samples of each leaf's halo.
    """

    samples: NDArray[np.int32]
    own: int
    first: int
    places: tuple[IndexArray, ...]
    halos: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.samples.nbytes + sum(places.nbytes for places in self.places)


@dataclass(frozen=True)
class Leaves:
    """Everything that any leaf can be made of; a few hundred bytes on the wire, and the landmarks' inputs.

    Attributes
    ----------
    context : BlockContext
    halo, leaf : int
        Samples of a halo and of a leaf, at most.
    landmark_inputs : (R, d) float64
        Of F; none where R is zero.
    embedding : (e, d) float64, optional
        Inputs of the landmarks that distances are taken by; None where they are taken between features.
    label : str
        Tells factors of one run apart.
    """

    context: BlockContext
    halo: int
    leaf: int
    landmark_inputs: FloatArray
    embedding: FloatArray | None
    label: str

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
        return max(1, min(self.n_leaves // LEAST_BUNDLES, BUNDLE_ROWS // self.leaf))

    @property
    def n_bundles(self) -> int:
        """Number of bundles."""
        return -(-self.n_leaves // self.leaves_by_bundle)

    def points(self) -> OrderedPoints:
        """The samples' points in kd order."""

        def build() -> OrderedPoints:
            # A factor that is built anew, with larger halos, takes the place of the one before.
            worker_cache().discard(*self._family)
            points = embed(self.context, self.embedding)
            order, bounds = kd_order(points, self.leaf)
            return OrderedPoints(points[order], order, bounds)

        return worker_cache().get(self._key("points"), build)

    def bundle(self, number: int) -> Bundle:
        """Samples of a bundle."""

        def build() -> Bundle:
            points = self.points()
            first = number * self.leaves_by_bundle
            leaves = range(first, min(first + self.leaves_by_bundle, self.n_leaves))
            start, stop = points.bounds[leaves[0]], points.bounds[leaves[-1] + 1]
            halos = [points.halo(leaf, self.halo) for leaf in leaves]
            union = np.union1d(np.concatenate(halos), np.arange(start, stop, dtype=np.int32))
            owns = [np.arange(points.bounds[leaf], points.bounds[leaf + 1], dtype=np.int32) for leaf in leaves]
            places = tuple(np.searchsorted(union, np.concatenate(pair)) for pair in zip(halos, owns, strict=True))
            sizes = tuple(len(halo) for halo in halos)
            return Bundle(points.order[union], int(stop - start), first, places, sizes)

        return worker_cache().get(self._key("bundle", number), build)

    def leaf_of(self, bundle: Bundle, place: int, noise: Noise) -> Leaf:
        """A bundle's leaf number `place`, from this worker's cache, its scratch file, or made anew.

        `noise` is that of the bundle's samples, in their order.
        """

        def build() -> Leaf | SpilledLeaf:
            leaf = self._made(bundle, place, noise)
            if not self._has_room(leaf):
                # On a full disk it is made again whenever it is needed.
                with suppress(OSError):
                    return worker_cache().get(self._key("scratch"), ScratchFile).append(leaf)
            return leaf

        found: Leaf | SpilledLeaf = worker_cache().get(
            self._key("leaf", bundle.first + place),
            build,
            keep=lambda leaf: isinstance(leaf, SpilledLeaf) or self._has_room(leaf),
        )
        if isinstance(found, Leaf):
            return found
        try:
            return found.read()
        except OSError:
            return self._made(bundle, place, noise)

    def _key(self, *parts: Hashable) -> tuple[Hashable, ...]:
        return (*self._family, self.label, *parts)

    @property
    def _family(self) -> tuple[Hashable, ...]:
        return (self.context.run_id, "vecchia")

    def _has_room(self, leaf: Leaf) -> bool:
        """True if the leaf may stay in memory, beside all else that is cached and would push it out."""
        context, cache = self.context, worker_cache()
        width = max(feature_width(context.kernel), 0 if self.embedding is None else len(self.embedding))
        features = context.n * (12 * (feature_width(context.kernel) + 1) + 4 * (width + 1))
        bundles = 12 * self.n_leaves * (self.halo + self.leaf)
        besides = features + bundles + 8 * self.rank * (self.rank + width + 1)
        held = cache.bytes_of(self._key("leaf"))
        return held + process_threads() * leaf.nbytes + besides <= cache.budget_bytes

    def _made(self, bundle: Bundle, place: int, noise: Noise) -> Leaf:
        places, halo = bundle.places[place], bundle.halos[place]
        samples = bundle.samples[places].astype(np.intp)
        own = noise_at(noise, places)
        largest = float(np.max(self._diagonal(samples)))
        double = takes_double(len(samples), float(np.min(own)), largest)
        factor = self._factor_rows(samples)
        for precision in ("single", "double")[double:]:
            leaf = self._attempt(precision, samples, halo, own, factor)  # type: ignore[arg-type]
            if leaf is not None:
                return leaf
        for jitter in JITTERS:
            leaf = self._attempt("double", samples, halo, own, factor, jitter)
            if leaf is not None:
                return leaf
        raise refuse(halo, len(samples) - halo)

    def _attempt(
        self,
        precision: Precision,
        samples: IndexArray,
        halo: int,
        noise: Noise,
        factor: FloatArray | None,
        jitter: float = 0.0,
    ) -> Leaf | None:
        evaluator = self.context.evaluator(precision)
        rows = None if factor is None else factor.astype(evaluator.dtype)
        return factor_leaf(evaluator, self._features(samples, precision), halo, noise, rows, jitter)

    def _factor_rows(self, samples: IndexArray) -> FloatArray | None:
        """F_I: (m, R)."""
        if not self.rank:
            return None
        evaluator = self.context.evaluator("double")
        triangle = worker_cache().get(
            self._key("triangle"), lambda: LandmarkTriangle.of(evaluator, self.landmark_inputs)
        )
        return np.ascontiguousarray(triangle.columns(evaluator, self._features(samples, "double")).T)

    def _features(self, samples: IndexArray, precision: Precision) -> Features:
        """Prepared features of some samples, gathered from their blocks."""
        context = self.context
        blocks = samples // context.block_rows
        order = np.argsort(blocks, kind="stable")
        parts = []
        for block in np.unique(blocks):
            own = samples[order][blocks[order] == block] - context.bounds(int(block))[0]
            parts.append(context.block_features(int(block), precision).take(own))
        back = np.argsort(order, kind="stable")
        values = np.concatenate([part.values[:, : part.n] for part in parts], axis=1)
        norms = np.concatenate([part.squared_norms[:, : part.n] for part in parts], axis=1)
        return Features(values, norms, len(samples)).take(back.astype(np.intp))

    def _diagonal(self, samples: IndexArray) -> FloatArray:
        """k(x, x)."""
        context = self.context
        if context.kernel.stationary:
            return np.asarray(context.kernel.diagonal(np.zeros((1, context.kernel.n_features))))
        inputs = np.empty((len(samples), context.kernel.n_features))
        blocks = samples // context.block_rows
        for block in np.unique(blocks):
            taken = blocks == block
            rows = context.block_rows_cached(int(block)).values
            inputs[taken] = rows[samples[taken] - context.bounds(int(block))[0]]
        return np.asarray(context.kernel.diagonal(inputs))
