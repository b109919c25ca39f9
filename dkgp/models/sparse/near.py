"""Predictions of a sparse model with neighbours: each new sample is conditioned on the samples nearest to it.

A new sample is a leaf of one behind its halo J, of all samples: with C = (K - F F')_JJ + S, A = C^-1 (K - F F')_J* and
w = F_* - F_J'A, the mean z and covariance B^-1 of the basis' part give the function at it

    mean = A'Y_J + w'z,      variance = k_** - |F_*|^2 - A'(K - F F')_J* + w'B^-1 w.

Where halos are everything these are the exact model's; without them, FITC's. Targets share C, or each has its own: a
classifier's latent functions, whose noise is the uncertainty that a label leaves (`dkgp.models.classification.near`).

The halo is constant in the new sample's inputs but where two samples are equally near, so that derivatives keep it
fixed. With R = (K - F F')_J*, F_* = L^-1 k_m and q = B^-1 w, both predictions move with k_J and k_m alone:

    mean = k_J'g + k_m'L^-T (z - F_J'g),                                  g = C^-1 (Y_J - F_J z),
    d variance / 2 = d k_** / 2 - dk_J'h + dk_m'L^-T (F_J'h + q - F_*),   h = C^-1 (R + F_J q) = A + C^-1 F_J q.

`near_fields` and `near_of` convert between memory and a store. The phases at the end count the work of training before
it starts: the search for neighbours, and passes over leaves.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.threads import in_parallel, single_threaded_blas
from dkgp.data.stores.models.regression import NearArrays
from dkgp.kernels import Features, Kernel
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from dkgp.models.sparse.bases import blind_basis
from dkgp.models.sparse.vif import LEAF, LeafFactor, Neighbourhood, Neighbours, factored_rows, refuse_leaf
from dkgp.operators.base import FloatArray, Variances, noise_at
from dkgp.operators.block_tasks import ArrayInputs, BlockContext
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.cross.tasks import scratch
from dkgp.operators.low_rank.pivots import whiten
from dkgp.operators.vecchia.halos import OrderedPoints, kd_order, leaf_count, tree_bytes
from dkgp.operators.vecchia.leaves import BUNDLE_ROWS, embed, embed_inputs
from dkgp.solvers.prices import Phase, Work

# Bytes of F, of all samples, up to which a predictor holds its rows once they are made; settled by sizes, not by memory
# at hand, since rows that are made together have other last bits.
MOST_HELD = 1 << 28
# New samples that a thread takes at a time.
ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Near:
    """Samples, and the posterior of the basis' part: the data of predictions beside the basis."""

    inputs: FloatArray  # (n, d): standardised
    targets: FloatArray  # (n, p)
    noise: Variances  # of the samples; (n, p) where each target has its own
    size: int  # neighbours of a new sample, at most
    whitened: FloatArray  # z: (m, p)
    normal: FloatArray  # lower Cholesky factor of B: (m, m), Fortran order; with noise (n, p) one a target, (p, m, m)
    embedding: FloatArray | None = None  # landmarks (e, d) of `dkgp.operators.vecchia.leaves`
    searched: int | None = None  # samples that a search for neighbours looks at, at most; None: as many as it takes

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, and of the samples' points."""
        arrays = [self.inputs, self.targets, self.whitened, self.normal]
        if isinstance(self.noise, np.ndarray):
            # By target, noise and triangles are also in another order.
            arrays += [self.noise] if self.noise.ndim == 1 else [self.noise, self.noise, self.normal]
        held = held_bytes(len(self.inputs), len(self.whitened))
        return sum(array.nbytes for array in arrays) + points_bytes(*self.inputs.shape) + held


def points_bytes(n: int, d: int) -> int:
    """Bytes of the points and features of n samples in kd order, of their order, and of the tree of their leaves."""
    # A periodic kernel has two features for each input; a sum of kernels of all inputs may have more.
    return n * (4 * d + 8 + 8 * (2 * d + 1)) + tree_bytes(leaf_count(n, LEAF), d)


def held_bytes(n: int, m: int) -> int:
    """Bytes of the samples' rows of F, if those that predictions need are held; else 0."""
    return size + n if (size := 8 * n * m) <= MOST_HELD else 0


def near_task_bytes(size: int, d: int, m: int, p: int) -> int:
    """Bytes of a prediction under way."""
    return 8 * (size + 1) * (4 * (m + p) + 5 * d + 6 * (size + 1))


@dataclass(frozen=True)
class FittedNear:
    """The samples that predictions take, and the figures of their fit."""

    near: Near
    log_likelihood: float  # in nats
    unproven: float  # share of samples whose neighbours may not be the nearest

    def summary(self) -> dict[str, Any]:
        """In a record's plain JSON types."""
        return {
            "neighbours": self.near.size,
            "neighbours_unproven": self.unproven,
            "log_likelihood": self.log_likelihood,
        }


def fit_near(
    operator: BlockedKernelOperator, targets: FloatArray, basis: FloatArray, neighbours: Neighbours
) -> FittedNear:
    """Fit a basis (m, d) with neighbours to standardised targets (n, p).

    A new sample gets as many neighbours as a leaf and its halo have together. Raises `NumericalError`: rounding exceeds
    the noise variance.
    """
    n, source = operator.n, operator.context.source
    held = Neighbourhood(operator, neighbours)
    joint = held.joint(operator, held.described(operator, basis), targets)
    size = min(n, neighbours.leaf + neighbours.halo)
    # As a store has them: another order of numbers in memory would be other bits of sums.
    inputs, targets, whitened = map(np.ascontiguousarray, (source.inputs(0, n), targets, joint.whitened))
    near = Near(
        inputs, targets, operator.noise, size, whitened, joint.normal, held.leaves.embedding, neighbours.searched
    )
    return FittedNear(near, joint.value, held.unproven)


def near_predictor(operator: BlockedKernelOperator, targets: FloatArray, size: int, seed: int) -> NearPredictor:
    """Fit standardised targets (n, p) by a pivoted basis of `size` samples and the default number of neighbours."""
    basis = blind_basis(operator, "pivoted", size, seed).inputs
    near = fit_near(operator, targets, basis, Neighbours()).near
    lower = np.asfortranarray(CrossKernel(operator, basis).lower)
    return NearPredictor(operator.context.kernel, basis, lower, near)


@dataclass(frozen=True)
class _Part:
    """Targets that share their noise, and so C and B."""

    targets: slice
    noise: Variances  # of the samples
    least: float  # an observation's: with its noise, no duplicate of a sample is without a variance
    whitened: FloatArray
    normal: FloatArray


def _parts_of(near: Near) -> list[_Part]:
    noise = near.noise
    if isinstance(noise, float) or noise.ndim == 1:
        return [_Part(slice(0, near.targets.shape[1]), noise, float(np.min(noise)), near.whitened, near.normal)]
    # Each as of a model of one target, whose bits are the same.
    parts = []
    for column, (by_sample, normal) in enumerate(zip(np.ascontiguousarray(noise.T), near.normal, strict=True)):
        targets = slice(column, column + 1)
        whitened = np.ascontiguousarray(near.whitened[:, targets])
        parts.append(_Part(targets, by_sample, float(by_sample.min()), whitened, np.asfortranarray(normal)))
    return parts


class NearPredictor:
    """Predicts rows in memory by a basis, its L (m, m), and near samples."""

    def __init__(self, kernel: Kernel, prototypes: FloatArray, lower: FloatArray, near: Near) -> None:
        self._near, self._lower = near, lower
        self._context = BlockContext(f"near-{uuid.uuid4().hex}", ArrayInputs(near.inputs), kernel, len(near.inputs))
        try:
            points = embed(self._context, near.embedding)
        finally:
            worker_cache().discard_run(self._context.run_id)
        order, bounds = kd_order(points, LEAF)
        searched = None if near.searched is None else leaf_count(near.searched, LEAF)
        self._points = OrderedPoints(points[order], order, bounds, searched)
        self._evaluator = self._context.evaluator("double")
        self._features = self._evaluator.prepare(near.inputs[order])
        self._prototypes = self._evaluator.prepare(prototypes) if len(prototypes) else None
        n, m = len(near.inputs), len(prototypes)
        # Rows of F in kd order, and which of them are made.
        self._held = np.empty((n, m)) if held_bytes(n, m) else None
        self._made = np.zeros(n if self._held is not None else 0, dtype=bool)
        self._parts = _parts_of(near)

    def __call__(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means (r, p) and variances (r,) of the function at standardised inputs (r, d); no bit depends on other rows.

        Variances are (r, p) where each target has its own noise. Raises `NumericalError`: rounding exceeds the noise
        variance.
        """
        mean, variance, _ = self.predicted(inputs)
        return mean, variance

    def predicted(
        self, inputs: FloatArray, threads: int | None = 1
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """Return mean, variance, and whether a row's neighbours may not be the nearest; None `threads`: all cores."""
        mean = np.empty((len(inputs), self._near.targets.shape[1]))
        variance = np.empty((len(inputs), len(self._parts)))
        new = self._evaluator.prepare(inputs)
        unproven = self._each(inputs, partial(self._predict, new, mean, variance), threads)
        return mean, variance if np.ndim(self._near.noise) == 2 else variance[:, 0], unproven

    def slopes(
        self, inputs: FloatArray, evaluator: SlopeEvaluator, basis: FloatArray, *, of_variance: bool
    ) -> FloatArray:
        """Derivatives at standardised inputs (r, d), with the neighbours fixed, of targets that share their noise.

        Of the means (r, p, d), or half of the variance's (r, 1, d) without that of k(x, x). `basis` are the basis'
        coordinates from `evaluator`. Raises `NumericalError`: rounding exceeds the noise variance.
        """
        (part,) = self._parts
        weights_of = self._variance_weights if of_variance else self._mean_weights
        result = np.empty((len(inputs), 1 if of_variance else self._near.targets.shape[1], inputs.shape[1]))
        new = self._evaluator.prepare(inputs)

        def differentiate(row: int, places: NDArray[np.int32]) -> None:
            halo, features, right = self._behind(new, row, places)
            leaf = self._leaf(part, halo, features, right)
            columns = np.concatenate([evaluator.coordinates(self._near.inputs[halo]), basis], axis=1)
            result[row] = evaluator.sums(inputs[row : row + 1], columns, weights_of(part, leaf, right))[0]

        self._each(inputs, differentiate, None)
        return result

    def _each(
        self, inputs: FloatArray, work: Callable[[int, NDArray[np.int32]], None], threads: int | None
    ) -> NDArray[np.bool_]:
        """Call `work` with each row's number and its neighbours' places; return which of these may not be nearest."""
        unproven = np.zeros(len(inputs), dtype=bool)
        points = embed_inputs(self._context, self._near.embedding, inputs)

        def take(piece: int) -> None:
            for row in range(piece * ROWS_AT_ONCE, min((piece + 1) * ROWS_AT_ONCE, len(inputs))):
                places, is_proven = self._points.near(points[row], self._near.size)
                unproven[row] = not is_proven
                work(row, places)

        with single_threaded_blas():
            in_parallel(take, -(-len(inputs) // ROWS_AT_ONCE), threads)
        return unproven

    def _behind(
        self, new: Features, row: int, places: NDArray[np.int32]
    ) -> tuple[NDArray[np.intp], Features, FloatArray]:
        """Neighbours' numbers (c,), features of these and one new row, and R of a part, with their rows of F.

        R (c + 1, m + p) is memory of this thread, valid until its next call; its columns of targets are to be written.
        """
        count, (rank, targets) = len(places), self._parts[0].whitened.shape  # each part has as many targets
        # The last one makes room for the new row.
        features = self._features.take(np.append(places, places[-1:] if count else 0).astype(np.intp))
        for values, of_new in zip(features.arrays, (new.values, new.squared_norms), strict=True):
            values[:, count:] = of_new[:, row : row + 1]
        right = scratch("near right", count + 1, rank + targets, np.dtype(np.float64))
        self._write_rows(places, features, new, row, right[:, :rank])
        return self._points.order[places].astype(np.intp), features, right

    def _leaf(self, part: _Part, halo: NDArray[np.intp], features: Features, right: FloatArray) -> LeafFactor:
        """The new sample's leaf; writes the part's targets into R, with zeros for those of the last row."""
        rank, count = len(part.whitened), features.n
        right[:-1, rank:], right[-1, rank:] = self._near.targets[halo, part.targets], 0.0
        noise = part.noise if isinstance(part.noise, float) else np.append(noise_at(part.noise, halo), part.least)
        tile = scratch("near tile", count, features.values.shape[1], np.dtype(np.float64))
        self._evaluator.fill(features, features, tile)
        matrix = scratch("near matrix", count, count, np.dtype(np.float64))
        if rank:
            with np.errstate(over="ignore", invalid="ignore"):
                np.matmul(right[:, :rank], right[:, :rank].T, out=matrix)
                np.subtract(tile[:, :count], matrix, out=matrix)
        else:
            matrix[:] = tile[:, :count]
        rows = factored_rows(matrix, count - 1, noise)
        if rows is None:
            raise refuse_leaf(len(halo), noise)
        return LeafFactor(count - 1, matrix, rows, rows @ right)

    def _predict(
        self, new: Features, mean: FloatArray, variance: FloatArray, row: int, places: NDArray[np.int32]
    ) -> None:
        """Write the means (p,) of one new row, and a variance for each part."""
        halo, features, right = self._behind(new, row, places)
        rank = len(self._near.whitened)
        for number, part in enumerate(self._parts):
            leaf = self._leaf(part, halo, features, right)
            scale = 1.0 / leaf.rows[0, -1]
            means = scale * leaf.images[0, :rank]  # w
            mean[row, part.targets] = means @ part.whitened - scale * leaf.images[0, rank:]
            variance[row, number] = max(scale * scale - part.least, 0.0)
            if rank:
                half = whiten(part.normal, means[:, None], transposed=False)
                variance[row, number] += float(np.sum(half * half))

    def _mean_weights(self, part: _Part, leaf: LeafFactor, right: FloatArray) -> FloatArray:
        """[g; L^-T (z - F_J'g)]: (c + m, p)."""
        rank = len(part.whitened)
        factor, targets = right[:-1, :rank], right[:-1, rank:]
        near = leaf.solved(targets - factor @ part.whitened)
        return self._with_basis(near, part.whitened - factor.T @ near)

    def _variance_weights(self, part: _Part, leaf: LeafFactor, right: FloatArray) -> FloatArray:
        """[-h; L^-T (F_J'h + q - F_*)]: (c + m, 1)."""
        rank = len(part.whitened)
        factor, of_row = right[:-1, :rank], right[-1, :rank, None]
        near = leaf.rows[0, :-1, None] / -leaf.rows[0, -1]  # A
        basis = -of_row
        if rank:
            half = whiten(part.normal, of_row - factor.T @ near, transposed=False)
            q = whiten(part.normal, half, transposed=True)
            near, basis = near + leaf.solved(factor @ q), q - of_row
        return self._with_basis(-near, factor.T @ near + basis)

    def _with_basis(self, near: FloatArray, basis: FloatArray) -> FloatArray:
        """Weights of neighbours (c, t), and below them those of the basis from its whitened ones (m, t)."""
        solved = whiten(self._lower, basis, transposed=True) if len(basis) else basis
        return np.concatenate([near, solved])

    def _write_rows(
        self, places: NDArray[np.int32], features: Features, new: Features, row: int, rows: FloatArray
    ) -> None:
        """Write rows of F for the samples at some places and one new row, whose features these are: (c + 1, m).

        Held rows are made leaf by leaf: by any thread and in any order they are the same.
        """
        if self._held is None:
            rows[:] = self._factor_rows(features)
            return
        made = self._made[places]
        if not made.all():
            bounds = self._points.bounds
            for leaf in np.unique(np.searchsorted(bounds, places[~made], side="right") - 1):
                start, stop = int(bounds[leaf]), int(bounds[leaf + 1])
                self._held[start:stop] = self._factor_rows(self._features.slice(start, stop))
                self._made[start:stop] = True
        rows[:-1] = self._held[places]
        rows[-1:] = self._factor_rows(new.take(np.array([row])))

    def _factor_rows(self, features: Features) -> FloatArray:
        """Rows of F for some samples: (c, m)."""
        if self._prototypes is None:
            return np.empty((features.n, 0))
        return np.asarray(whiten(self._lower, self._evaluator.tile(self._prototypes, features), transposed=False).T)


def near_fields(near: Near) -> dict[str, Any]:
    """The fields of a record that models with neighbours have beside others."""
    return {
        "neighbours": near.size,
        "search_samples": near.searched,
        "near_inputs": near.inputs,
        "near_targets": near.targets,
        "near_noise": None if isinstance(near.noise, float) else near.noise,
        "near_weights": near.whitened,
        "near_normal": near.normal,
        "near_embedding": near.embedding,
    }


def near_of(record: NearArrays, noise: Variances | None = None) -> Near:
    """The samples of a record; `noise` where it has none by sample. `ValueError` where something is missing."""
    size, inputs, targets = record.neighbours, record.near_inputs, record.near_targets
    weights, normal = record.near_weights, record.near_normal
    noise = noise if record.near_noise is None else record.near_noise
    if size is None or inputs is None or targets is None or weights is None or normal is None or noise is None:
        raise ValueError("a model with neighbours without these")
    if not 0 <= size <= len(inputs):
        raise ValueError(f"{size} neighbours of {len(inputs)} samples")
    if record.search_samples is not None and record.search_samples < 1:
        raise ValueError(f"a search of {record.search_samples} samples")
    return Near(inputs, targets, noise, size, weights, normal, record.near_embedding, record.search_samples)


# Rows of F that a bundle makes for each of its own: those of halos are other bundles'.
HALO_SHARE = 2.0
# Operations of matrices as small as a leaf's, and of its triangles, in units of those of large products; and further
# costs of a leaf, gathered rows and calls, in numbers read and written.
SMALL, TRIANGULAR = 2.0, 5.0
MAKING_NUMBERS, FACTOR_NUMBERS = 2e5, 4e5
# Operations for each feature of a distance that a search takes, in units of those of large products.
DISTANCE = 8.0


def search_phase(sizes: Neighbours, n: int, d: int) -> Phase:
    """The order of n samples of d features, and the search for halos."""
    leaves = leaf_count(n, sizes.leaf)
    # Of the leaves before one, as many as a search looks at where no distance spares it any.
    most = min(leaf_count(sizes.searched, sizes.leaf), leaves)
    looked_at = most - most**2 / (2.0 * leaves)
    work = Work(
        operations=DISTANCE * d * n * looked_at * sizes.leaf,
        vectors=2.0 * d * leaves * looked_at * max(1.0, math.log2(leaves / looked_at)),
    )
    return Phase("neighbours", 1.0, work, rounds=2, pieces=_bundles(n))


def leaves_phase(times: float, sizes: Neighbours, n: int, m: int) -> Phase:
    """Residual matrices of leaves, made so often; rows of F are made once for each bundle."""
    rows, leaves = float(min(sizes.leaf + sizes.halo, n)), leaf_count(n, sizes.leaf)
    work = Work(
        double_entries=leaves * rows**2 + HALO_SHARE * n * m,
        double_operations=SMALL * (leaves * rows**2 * m + HALO_SHARE * n * float(m) ** 2),
        vectors=leaves * MAKING_NUMBERS,
    )
    return Phase("leaves", times, work)


def factors_phase(name: str, times: float, sizes: Neighbours, n: int, d: int, m: int, p: int) -> Phase:
    """Passes that factor the leaves for p targets, and sum over them."""
    rows, leaves = min(sizes.leaf + sizes.halo, n), leaf_count(n, sizes.leaf)
    leaf = min(sizes.leaf, n)
    triangles = rows**3 / 3.0 + leaf * float(rows) ** 2
    products = 2.0 * leaf * rows * (m + p) + leaf * float(m + p) ** 2
    return Phase(
        name,
        times,
        Work(double_operations=leaves * (TRIANGULAR * triangles + SMALL * products), vectors=leaves * FACTOR_NUMBERS),
        rounds=1,
        pieces=_bundles(n),
        sent_to_each=8.0 * m * (d + p),
        returned=8.0 * (m + p) ** 2,
    )


def _bundles(n: int) -> int:
    return -(-n // BUNDLE_ROWS)
