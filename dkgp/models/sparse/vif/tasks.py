"""Tasks on bundles of leaves: stateless functions of the model's description and a bundle's rows, which return sums.

F is made once for all samples of a bundle, those of its halos among them, and gone with the task: nothing of size n m
is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.errors import NumericalError
from dkgp.kernels import Features, Kernel, TileEvaluator, count_entries
from dkgp.models.sparse.bound.slopes import contract_tiles
from dkgp.models.sparse.vif.leaf import LeafFactor, Moved, factor_leaf, noise_slopes, slopes
from dkgp.operators.base import FloatArray, IndexArray, Noise, noise_at
from dkgp.operators.blas import blas
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cross.runs import RunSums
from dkgp.operators.cross.tasks import Prototypes
from dkgp.operators.vecchia.leaves import Leaves, gathered


@dataclass(frozen=True)
class Described:
    """Everything that any leaf of the model can be made of."""

    leaves: Leaves  # which samples are in which leaf, and near it: by the kernel that they were ordered with
    context: BlockContext  # with the kernel that the model has now
    prototypes: Prototypes | None  # None of a model without a basis

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
    noise: Noise


def refuse_leaf(count: int, noise: Noise) -> NumericalError:
    """Error of a leaf, with its halo of so many samples, that has no Cholesky factor."""
    return NumericalError(
        f"what the basis leaves of {count:,} samples is not positive definite with the noise, "
        f"{float(np.min(noise)):.3g}: rounding exceeds it. Raise the noise variance, or take fewer basis samples"
    )


class _Open:
    """A bundle on a worker: its features, and R = [F, Y] for all of its samples."""

    def __init__(self, model: Described, rows: BundleRows) -> None:
        self.bundle, self.noise = model.leaves.bundle(rows.number), rows.noise
        self.evaluator, self.rank = model.context.evaluator("double"), model.rank
        self.features = gathered(model.context, self.bundle.samples, "double")
        self.right = np.concatenate([model.factor_rows(self.evaluator, self.features), rows.right], axis=1)

    def leaves(self) -> Iterator[tuple[IndexArray, FloatArray, LeafFactor]]:
        """Each leaf: places in the bundle, R at these, and its factor."""
        for places, halo in zip(self.bundle.places, self.bundle.halos, strict=True):
            right, noise = self.right[places], noise_at(self.noise, places)
            leaf = factor_leaf(self.evaluator, self.features.take(places), halo, noise, right, self.rank)
            if leaf is None:
                raise refuse_leaf(len(places), noise)
            yield places, right, leaf


@needs_one_arithmetic
def vif_sums_task(model: Described, bundles: list[BundleRows]) -> list[RunSums]:
    """Sums over each bundle: W'W (m + p, m + p); log|L22|^2 and what the basis explains of k(x, x), of own samples."""
    results = []
    for rows in bundles:
        opened = _Open(model, rows)
        images, determinant, explained = [], 0.0, 0.0
        for _, right, leaf in opened.leaves():
            images.append(leaf.images)
            determinant += leaf.log_determinant
            explained += float(np.sum(right[leaf.halo :, : model.rank] ** 2))
        stacked = np.concatenate(images)
        results.append(RunSums((stacked.T @ stacked, np.array([determinant, explained]))))
    return results


@needs_one_arithmetic
def vif_slopes_task(model: Described, moved: Moved, bundles: list[BundleRows]) -> list[RunSums]:
    """Sums over each bundle of the log likelihood's slopes.

    By the logarithms of the kernel's parameters, but for K_mm (q,); by the noise, (1,); and F' Phi, Phi the slopes by
    F (m, m).
    """
    return [_slopes(model, moved, rows) for rows in bundles]


def _slopes(model: Described, moved: Moved, rows: BundleRows) -> RunSums:
    opened, kernel, rank = _Open(model, rows), model.context.kernel, model.rank
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
    """T'(Q - V Z) of the leaves of each bundle, [V, Q] = W and Z = `inner` (m, p): rows for its samples (u, p)."""
    results = []
    for rows in bundles:
        opened = _Open(model, rows)
        out = np.zeros(rows.right.shape)
        for places, _, leaf in opened.leaves():
            images = leaf.images[:, model.rank :] - leaf.images[:, : model.rank] @ inner
            out[places] += leaf.rows.T @ images
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
        opened = _Open(model, rows)
        out = np.zeros((len(rows.right), 1))
        for places, right, leaf in opened.leaves():
            out[places, 0] += noise_slopes(leaf, right, moved)
        results.append(out)
    return results
