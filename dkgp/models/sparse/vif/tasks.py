"""Tasks on bundles of leaves: stateless functions of the model's description and a bundle's rows, which return sums.

F is made once for all samples of a bundle, those of its halos among them, and gone with the task: nothing of size n m
is ever held but what a worker has room to keep (`dkgp.models.sparse.vif.kept`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.errors import NumericalError
from dkgp.kernels import Features, Kernel, TileEvaluator, count_entries
from dkgp.models.sparse.bound.slopes import contract_tiles
from dkgp.models.sparse.vif.kept import KeptMatrices, KeptRows, KeptTerms
from dkgp.models.sparse.vif.leaf import LeafFactor, Moved, factored_rows, noise_slopes, slopes, unexplained
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cross.tasks import Prototypes
from dkgp.operators.exact_sums import RunSums, Triangles
from dkgp.operators.vecchia.leaves import Bundle, Leaves, gathered


@dataclass(frozen=True)
class Described:
    """Everything that any leaf of the model can be made of."""

    leaves: Leaves  # which samples are in which leaf, and near it: by the kernel that they were ordered with
    context: BlockContext  # with the kernel that the model has now
    prototypes: Prototypes | None  # None of a model without a basis
    kept: KeptTerms | None = None  # None of a model whose leaves are passed once or twice

    @property
    def rank(self) -> int:
        """Basis samples, m."""
        return 0 if self.prototypes is None else self.prototypes.count

    def factor_rows(self, evaluator: TileEvaluator, features: Features) -> FloatArray:
        """Rows of F for some samples: (c, m)."""
        if self.prototypes is None:
            return np.empty((features.n, 0))
        return np.asarray(self.prototypes.triangle().columns(evaluator, features).T)


@dataclass(frozen=True)
class BundleRows:
    """A bundle, and rows of n-vectors for its samples."""

    number: int
    right: FloatArray  # targets: (u, p)
    noise: Variances


def refuse_leaf(count: int, noise: Variances) -> NumericalError:
    """Error of a leaf, with its halo of so many samples, that has no Cholesky factor."""
    return NumericalError(
        f"what the basis leaves of {count:,} samples is not positive definite with the noise, "
        f"{float(np.min(noise)):.3g}: rounding exceeds it. Raise the noise variance, or take fewer basis samples"
    )


class _Open:
    """A bundle on a worker, with what is kept of it: its features, and R = [F, Y] for all of its samples."""

    def __init__(
        self, model: Described, rows: BundleRows, bundle: Bundle, matrices: KeptMatrices | None, kept: KeptRows | None
    ) -> None:
        self.bundle, self.noise, self.rank = bundle, rows.noise, model.rank
        self.evaluator = model.context.evaluator("double")
        self._model, self._targets, self._matrices, self._kept = model, rows.right, matrices, kept

    @cached_property
    def features(self) -> Features:
        """Of all samples of the bundle."""
        return gathered(self._model.context, self.bundle.samples, "double")

    @cached_property
    def factor(self) -> FloatArray:
        """F: (u, m)."""
        kept = self._matrices
        if kept is not None and kept.filled:
            return kept.factor
        made = self._model.factor_rows(self.evaluator, self.features)
        if kept is not None:
            kept.factor[:] = made
        return made

    @cached_property
    def right(self) -> FloatArray:
        """R: (u, m + p)."""
        return np.concatenate([self.factor, self._targets], axis=1)

    def leaves(self) -> Iterator[tuple[IndexArray, FloatArray, LeafFactor]]:
        """Each leaf: places in the bundle, R at these, and its factor, of which L is there until the next one."""
        for places, halo, right, lower, rows in self._factored():
            yield places, right, LeafFactor(halo, lower, rows, rows @ right)

    def rows(self) -> Iterator[tuple[IndexArray, FloatArray]]:
        """Each leaf: places in the bundle, and T."""
        kept = self._kept
        if kept is not None and kept.noise is not None and np.array_equal(kept.noise, self.noise):
            for number, places in enumerate(self.bundle.places):
                yield places, kept.of(number)
        else:
            for places, *_, rows in self._factored():
                yield places, rows

    def _factored(self) -> Iterator[tuple[IndexArray, int, FloatArray, FloatArray, FloatArray]]:
        """Each leaf: its places, how many of them are its halo's, R, L and T."""
        kept = self._kept
        if kept is not None:
            kept.noise = None
        for number, (places, halo) in enumerate(zip(self.bundle.places, self.bundle.halos, strict=True)):
            right, noise = self.right[places], noise_at(self.noise, places)
            lower = self._unexplained(number, places, right[:, : self.rank])
            rows = factored_rows(lower, halo, noise, None if kept is None else kept.of(number))
            if rows is None:
                raise refuse_leaf(len(places), noise)
            yield places, halo, right, lower, rows
        if self._matrices is not None:
            self._matrices.filled = True
        if kept is not None:
            kept.noise = np.array(self.noise)

    def _unexplained(self, number: int, places: IndexArray, factor: FloatArray) -> FloatArray:
        """K - F F' of a leaf, on its diagonal and below."""
        kept = self._matrices
        if kept is not None and kept.filled:
            return kept.unpacked(number, len(places))
        matrix = unexplained(self.evaluator, self.features.take(places), factor)
        if kept is not None:
            kept.pack(number, matrix)
        return matrix


@contextmanager
def _opened(model: Described, rows: BundleRows) -> Iterator[_Open]:
    """A bundle, and what is kept of it, while the context is open."""
    bundle, terms = model.leaves.bundle(rows.number), model.kept
    with (
        nullcontext() if terms is None else terms.rows(rows.number, bundle) as kept,
        nullcontext() if terms is None else terms.matrices(rows.number, bundle, model.rank) as matrices,
    ):
        yield _Open(model, rows, bundle, matrices, kept)


@needs_one_arithmetic
def vif_sums_task(model: Described, bundles: list[BundleRows]) -> list[RunSums]:
    """Sums over each bundle: W'W (1, m + p, m + p); log|L22|^2 and the part of k(x, x) that the basis explains."""
    results = []
    for rows in bundles:
        images, determinant, explained = [], 0.0, 0.0
        with _opened(model, rows) as opened:
            for _, right, leaf in opened.leaves():
                images.append(leaf.images)
                determinant += leaf.log_determinant
                explained += float(np.sum(right[leaf.halo :, : model.rank] ** 2))
        stacked = np.concatenate(images)
        results.append(RunSums((Triangles((stacked.T @ stacked)[None]), np.array([determinant, explained]))))
    return results


@needs_one_arithmetic
def vif_slopes_task(model: Described, moved: Moved, bundles: list[BundleRows]) -> list[RunSums]:
    """Sums over each bundle of the log likelihood's slopes.

    By the logarithms of the kernel's parameters, but for K_mm (q,); by the noise, (1,); and F' Phi, Phi the slopes by
    F (m, m).
    """
    results = []
    for rows in bundles:
        with _opened(model, rows) as opened:
            results.append(_slopes(model, moved, opened))
    return results


def _slopes(model: Described, moved: Moved, opened: _Open) -> RunSums:
    kernel, rank = model.context.kernel, model.rank
    inputs = gathered_rows(model.context, opened.bundle.samples)
    total, noise = np.zeros(len(kernel.parameters())), 0.0
    by_factor = np.zeros((len(inputs), rank))
    for places, right, leaf in opened.leaves():
        part = slopes(leaf, right, rank, moved)
        total += _contracted(kernel, inputs[places], part.entries)
        noise += float(np.trace(part.entries))
        by_factor[places] += part.factor
    inner = opened.right[:, :rank].T @ by_factor
    if model.prototypes is not None:
        # W_nm = Phi L^-1, of which the transpose is L^-T Phi'.
        lower = model.prototypes.triangle().lower
        blas("trsm", b"L", b"L", b"T", b"N", rank, len(inputs), 1.0, lower, rank, by_factor, rank)
        total += contract_tiles(kernel, inputs, model.prototypes.inputs, by_factor.T)
    return RunSums((total, np.array([noise]), inner))


def _contracted(kernel: Kernel, inputs: FloatArray, weights: FloatArray) -> FloatArray:
    count_entries(weights.size)
    return kernel.contract(inputs, inputs, weights)


@needs_one_arithmetic
def vif_weights_task(model: Described, inner: FloatArray, bundles: list[BundleRows]) -> list[FloatArray]:
    """T'T(Y - F Z) of the leaves of each bundle, Z = `inner` (m, p): rows for its samples (u, p)."""
    results = []
    for rows in bundles:
        out = np.zeros(rows.right.shape)
        with _opened(model, rows) as opened:
            remainder = rows.right - opened.factor @ inner
            for places, triangle in opened.rows():
                out[places] += triangle.T @ (triangle @ remainder[places])
        results.append(out)
    return results


def gathered_rows(context: BlockContext, samples: NDArray[np.int32]) -> FloatArray:
    """Standardised inputs of some samples, in their order: (u, d)."""
    blocks = samples // context.block_rows
    rows = np.empty((len(samples), context.kernel.n_features))
    for block in np.unique(blocks).tolist():
        here = np.flatnonzero(blocks == block)
        rows[here] = context.block_rows_cached(block).values[samples[here] - context.bounds(block)[0]]
    return rows


@needs_one_arithmetic
def vif_noise_slopes_task(model: Described, moved: Moved, bundles: list[BundleRows]) -> list[FloatArray]:
    """Slopes of the log likelihood by the noise of each bundle's samples, from its own leaves: (u, 1)."""
    results = []
    for rows in bundles:
        out = np.zeros((len(rows.right), 1))
        with _opened(model, rows) as opened:
            for places, right, leaf in opened.leaves():
                out[places, 0] += noise_slopes(leaf, right, moved)
        results.append(out)
    return results
