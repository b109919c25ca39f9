"""The log likelihood of a sparse model with neighbours on all samples, and its gradient, out of core.

With Q = F F' = K_nm (L L')^-1 K_mn, samples in kd order in leaves, and T as below, the samples' covariance is

    Sigma = T^-1 T^-T + F F',     |Sigma| = |L22|^2 of all leaves times |B|,     B = I + V'V,  V = T F:

the part of a leaf that the basis does not explain, noise included, depends on its halo alone among all samples before
it. Without a basis this is Vecchia's likelihood, with one sample a leaf and no halos FITC's, and with halos of all
samples the exact one. For p targets that share the hyperparameters, with q = T Y and z = B^-1 V'q,

    2 log p(Y) = -p n log 2 pi - p log|Sigma| - tr(q'q - z'V'q),

which moves by <H, d(W'W)> / 2 - p d log|L22|, W = [V, q], for

    H = [-p B^-1 - z z',  z;  z',  -I];

and if the trace is weighted, tr(M (q'q - z'V'q)) for a symmetric M, and the determinant counts c in place of p,

    H = [-c B^-1 - z M z',  z M;  M z',  -M].

One evaluation is two passes over the leaves. Order and halos stay those of the kernel given to `hold`: so the
likelihood is a smooth function of the hyperparameters.

A leaf has samples G behind their halo J. With I = (J, G), h samples of J and g of G, f_i the rows of F, and
L L' = C = (K - F F')_II + S,

    T = [-L22^-1 L21 L11^-1, L22^-1],      W = T R,      R = [F, Y]_I,

G's part of the log likelihood is a function of W'W and of log|L22|. If the whole function moves by <H, d(W'W)> / 2 for
a symmetric H, A = W H, and by -p d log|L22|, it moves with C and R by <-(X + X') / 2, dC> + <T'A, dR>,

    X = T'((A W' + p I) T / 2 + P),      P = A R_J' C_JJ^-1  (columns of J, zeros elsewhere),

since W'W = R'(C^-1 - C_JJ^-1) R and 2 log|L22| = log|C| - log|C_JJ|. C depends on F: dC = dK - dF F' - F dF'; noise by
sample stands on its diagonal. p is the number of targets, or the factor of the determinant. Arrays lie row by row;
LAPACK reads them as their transposes.

Tasks on bundles of leaves are stateless functions of the model's description and a bundle's rows, and return sums. F is
made once for all samples of a bundle, those of its halos included, and freed with the task. From one step of a
classifier's mode (`dkgp.models.classification.near`) to the next only the noise of a leaf changes: F and the lower half
of K - F F' are made once, and T once a step. Workers keep them in `worker_tiles`, within the executor's budget, T
first, since it is small for the time that it saves. Matrices without room are made again, with the same bits.

References
----------
T. Gyger, R. Furrer, F. Sigrist, Vecchia-inducing-points full-scale approximations for Gaussian processes (2025).
J. Guinness, Permutation and grouping methods for sharpening Gaussian process approximations (2018): by leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Features, Kernel, TileEvaluator, count_entries
from dkgp.kernels.tiles.evaluator import fresh_array
from dkgp.models.context import RunContext
from dkgp.models.sparse.bound import BoundValue, contract_tiles
from dkgp.operators.base import FloatArray, IndexArray, Variances, noise_at
from dkgp.operators.blas import blas, lapack
from dkgp.operators.block_tasks import BlockContext, InputSource
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import CrossKernel, prototypes_of, summed_units
from dkgp.operators.cross.tasks import Prototypes, scratch
from dkgp.operators.exact_sums import RunSums, Triangles
from dkgp.operators.keeping import Keeping, TileRequest, worker_tiles
from dkgp.operators.low_rank.pivots import jitter, regularised_factor, whiten
from dkgp.operators.vecchia.factor import halo_task, order_task
from dkgp.operators.vecchia.halos import leaf_count, search_bytes, tree_bytes
from dkgp.operators.vecchia.leaves import Bundle, Leaves, bundle_leaves, embedding_landmarks, gathered


@dataclass(frozen=True)
class LeafFactor:
    """T and W of one leaf."""

    halo: int  # h
    lower: FloatArray  # L, below its diagonal and on it: (h + g, h + g)
    rows: FloatArray  # T: (g, h + g)
    images: FloatArray  # W: (g, m + p)

    @property
    def log_determinant(self) -> float:
        """2 log|L22|."""
        return 2.0 * float(np.log(self.lower.diagonal()[self.halo :]).sum())

    def solved(self, right: FloatArray) -> FloatArray:
        """C_JJ^-1 B for columns B (h, t)."""
        across = np.array(right.T, order="C")
        _solve_halo(self.lower, self.halo, across)
        return across.T


def unexplained(evaluator: TileEvaluator, features: Features, factor: FloatArray) -> FloatArray:
    """K - F F' of some samples, by their features and rows of F (c, m): (c, c); not finite where it overflows."""
    matrix = np.ascontiguousarray(evaluator.tile(features, features))
    if factor.shape[1]:
        with np.errstate(over="ignore", invalid="ignore"):
            matrix -= factor @ factor.T
    return matrix


def factored_rows(matrix: FloatArray, halo: int, noise: Variances, rows: FloatArray | None = None) -> FloatArray | None:
    """T of one leaf, (g, h + g), in memory of its own or in `rows`; None where C is not positive definite in float64.

    `matrix` is K - F F' of I, read on and below the diagonal; L of C takes its place.
    """
    count = len(matrix)
    matrix.reshape(-1)[:: count + 1] += noise
    # NaN and infinity reach the diagonal, which sums all squares of a row.
    if lapack("potrf", b"U", count, matrix, count) or not np.isfinite(matrix.diagonal()).all():
        return None
    rows = np.empty((count - halo, count)) if rows is None else rows
    rows[:] = 0.0
    rows[:, halo:].flat[:: count - halo + 1] = 1.0
    blas("trsm", b"L", b"U", b"N", b"N", count, count - halo, 1.0, matrix, count, rows, count)
    return rows


def factor_leaf(
    evaluator: TileEvaluator, features: Features, halo: int, noise: Variances, right: FloatArray, rank: int
) -> LeafFactor | None:
    """Factor one leaf; None where C is not positive definite in float64.

    `features` are of I = (J, G), `halo` of them of J; the noise is one number or (h + g,); `right` is R (h + g,
    m + p), whose first `rank` columns are F.
    """
    matrix = unexplained(evaluator, features, right[:, :rank])
    rows = factored_rows(matrix, halo, noise)
    return None if rows is None else LeafFactor(halo, matrix, rows, rows @ right)


@dataclass(frozen=True)
class LeafSlopes:
    """Slopes of the log likelihood by one leaf's entries."""

    entries: FloatArray  # by C, and so by K_II; its trace by the noise: (h + g, h + g)
    factor: FloatArray  # by F_I, all ways: (h + g, m)


@dataclass(frozen=True)
class Moved:
    """Slopes of the log likelihood by the sums over all leaves."""

    images: FloatArray  # H, by W'W: (m + p, m + p)
    determinants: float  # by -log|L22|


def noise_slopes(leaf: LeafFactor, right: FloatArray, moved: Moved) -> FloatArray:
    """Slopes by the noise of one leaf's samples: (h + g,)."""
    *_, inner = _inner(leaf, right, moved)
    return np.asarray(-np.einsum("ij,ij->j", leaf.rows, inner))


def slopes(leaf: LeafFactor, right: FloatArray, rank: int, moved: Moved) -> LeafSlopes:
    """Slopes of one leaf; `right` and `rank` as for `factor_leaf`."""
    halo, count, T, W = leaf.halo, leaf.lower.shape[0], leaf.rows, leaf.images
    A, across, half, inner = _inner(leaf, right, moved)
    X = T.T @ inner
    factor = np.empty((count, 0))
    if rank:
        F, V = right[:, :rank], W[:, :rank]
        # T'A_F + (X + X') F, with T F = V.
        factor = T.T @ (A[:, :rank] + 2.0 * (half @ V) + across @ F[:halo])
        factor[:halo] += across.T @ V
    return LeafSlopes(-0.5 * (X + X.T), factor)


def _inner(leaf: LeafFactor, right: FloatArray, moved: Moved) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """A, the columns of P, (A W' + p I) / 2 made symmetric, and the factor right of T' in X."""
    halo, T, W = leaf.halo, leaf.rows, leaf.images
    A = W @ moved.images
    across = np.ascontiguousarray(A @ right[:halo].T)  # P
    _solve_halo(leaf.lower, halo, across)
    half = 0.5 * (A @ W.T)
    half[np.diag_indices(len(T))] += 0.5 * moved.determinants
    half = 0.5 * (half + half.T)
    inner = half @ T
    inner[:, :halo] += across
    return A, across, half, inner


def _solve_halo(lower: FloatArray, halo: int, across: FloatArray) -> None:
    """Overwrite rows B' (t, h), C-contiguous, with B' C_JJ^-1."""
    if halo and len(across):
        shape = halo, len(across), 1.0, lower, len(lower), across, halo
        blas("trsm", b"L", b"U", b"T", b"N", *shape)
        blas("trsm", b"L", b"U", b"N", b"N", *shape)


# Of a bundle's number: which of the two is meant.
ROWS, MATRICES = 0, 1


@dataclass
class KeptMatrices:
    """Kept matrices of a bundle: F of all its samples (u, m), and the lower half of K - F F' of each leaf, by rows."""

    factor: FloatArray
    entries: FloatArray
    bounds: list[int]
    filled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.factor.nbytes + self.entries.nbytes

    @classmethod
    def of(cls, bundle: Bundle, rank: int) -> KeptMatrices:
        """Room for them."""
        bounds = _bounds(len(places) * (len(places) + 1) // 2 for places in bundle.places)
        u = len(bundle.samples)
        return cls(fresh_array(u * rank, np.float64).reshape(u, rank), fresh_array(bounds[-1], np.float64), bounds)

    def pack(self, number: int, matrix: FloatArray) -> None:
        """Keep the lower half of a leaf's matrix (c, c)."""
        count = len(matrix)
        lapack("trttp", b"U", count, matrix, count, self._half(number))

    def unpacked(self, number: int, count: int) -> FloatArray:
        """A leaf's matrix (c, c), above its diagonal other numbers; valid until this thread's next call."""
        matrix = scratch("leaf", count, count, np.dtype(np.float64))
        lapack("tpttr", b"U", count, self._half(number), matrix, count)
        return matrix

    def _half(self, number: int) -> FloatArray:
        return self.entries[self.bounds[number] : self.bounds[number + 1]]


@dataclass
class KeptRows:
    """Kept matrices of a bundle: T of each leaf, and the noise that they were made with; None until all are there."""

    entries: FloatArray
    bounds: list[int]
    shapes: list[tuple[int, int]]
    noise: FloatArray | None = None
    filled = False  # they are made anew in every step, by one thread at a time

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.entries.nbytes

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> KeptRows:
        """Room for them."""
        shapes = [(len(places) - halo, len(places)) for places, halo in zip(bundle.places, bundle.halos, strict=True)]
        bounds = _bounds(rows * count for rows, count in shapes)
        return cls(fresh_array(bounds[-1], np.float64), bounds, shapes)

    def of(self, number: int) -> FloatArray:
        """T of a leaf, or room for it: (g, h + g)."""
        return self.entries[self.bounds[number] : self.bounds[number + 1]].reshape(self.shapes[number])


@dataclass(frozen=True)
class KeptTerms:
    """Terms on which workers keep them for one model, and how much of their budget T of a worker's leaves takes."""

    label: str
    keeping: Keeping
    rows_bytes: int

    def rows(self, number: int, bundle: Bundle) -> AbstractContextManager[KeptRows | None]:
        """T of a bundle, for this thread alone while the context is open."""
        request = TileRequest(self.label, (number, ROWS), self.keeping, lambda: KeptRows.of_bundle(bundle))
        return worker_tiles().lent(request)

    def matrices(self, number: int, bundle: Bundle, rank: int) -> AbstractContextManager[KeptMatrices | None]:
        """F and K - F F' of a bundle, filled or to be filled."""
        request = TileRequest(self.label, (number, MATRICES), self.keeping, lambda: KeptMatrices.of(bundle, rank))
        # In the first step T of other bundles is still to come.
        reserved = self.rows_bytes if self.keeping.turn == 1 else 0
        return worker_tiles().lent(request, max(0, self.keeping.budget.bytes - reserved))


def rows_bytes(n: int, leaves: Leaves) -> int:
    """Bytes of T of all leaves, at most."""
    return 8 * n * (min(n, leaves.leaf) + min(n, leaves.halo))


def _bounds(sizes: Iterable[int]) -> list[int]:
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    return bounds


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
        f"the residual covariance of {count:,} samples is not positive definite with the noise "
        f"{float(np.min(noise)):.3g}: rounding exceeds the noise. Raise the noise variance, or take fewer basis samples"
    )


class _Open:
    """A bundle on a worker, with its kept matrices: its features, and R = [F, Y] for all of its samples."""

    def __init__(
        self, model: Described, rows: BundleRows, bundle: Bundle, matrices: KeptMatrices | None, kept: KeptRows | None
    ) -> None:
        self.bundle, self.noise, self.rank = bundle, rows.noise, model.rank
        self.evaluator = model.context.evaluator("double")
        self._model, self._targets, self._matrices, self._kept = model, rows.right, matrices, kept

    @cached_property
    def features(self) -> Features:
        """Rows of all samples of the bundle."""
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
        """Each leaf: places in the bundle, R at these, and its factor, whose L is valid until the next one."""
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
    """A bundle and its kept matrices, while the context is open."""
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
        # W_nm = Phi L^-1, with the transpose L^-T Phi'.
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


# Samples of a leaf, and of its halo: see `docs/experiments.md`.
LEAF, HALO = 32, 96
# Samples that a search for neighbours looks at, at most.
SEARCHED = 32_768
# Of a leaf's size squared, while its slopes are taken: C, G, X, and those of a kernel's derivatives.
ARRAYS_OF_LEAF = 16


@dataclass(frozen=True)
class Neighbours:
    """Sizes of leaves and of their halos, at most, and how many samples a search for a halo looks at, at most."""

    leaf: int = LEAF
    halo: int = HALO
    searched: int = SEARCHED

    def __post_init__(self) -> None:
        if self.halo < 0 or self.leaf < 1:
            raise InputError(
                "a model with neighbours needs a halo of at least 0 samples, and leaves of at least 1; got "
                f"{self.halo} and {self.leaf}"
            )

    @classmethod
    def of(cls, count: int, searched: int = SEARCHED) -> Neighbours:
        """A leaf and its halo of so many samples together, a quarter of them the leaf's."""
        leaf = max(1, count // 4)
        return cls(leaf, count - leaf, searched)


def vif_bytes(n: int, d: int, m: int, p: int, threads: int, neighbours: Neighbours) -> int:
    """Bytes of a worker's process beside those of a whitened Gram: points, bundles, rows, its tasks' F, Phi and W."""
    leaf, halo = min(neighbours.leaf, n), min(neighbours.halo, n)
    bundle = _bundle_samples(n, leaf, halo)
    task = 8 * bundle * (4 * (m + p) + 2 * d) + 8 * (m + p) ** 2 * 3 + ARRAYS_OF_LEAF * 8 * (leaf + halo) ** 2
    leaves = leaf_count(n, leaf)
    task += search_bytes(leaves, d, leaf_count(neighbours.searched, leaf)) + 16 * min(n, neighbours.searched)
    order = n * (12 * d + 16) + 12 * leaves * (leaf + halo) + tree_bytes(leaves, d)
    return order + 8 * n * d + threads * task


def kept_bytes(n: int, m: int, neighbours: Neighbours) -> int:
    """Bytes of all that workers can keep of a basis' leaves (`dkgp.models.sparse.vif`), at most."""
    leaf, halo = min(neighbours.leaf, n), min(neighbours.halo, n)
    leaves = leaf_count(n, leaf)
    samples = -(-leaves // bundle_leaves(n, leaf)) * _bundle_samples(n, leaf, halo)
    count = leaf + halo
    return 8 * (n * count + samples * m + leaves * count * (count + 1) // 2)


def _bundle_samples(n: int, leaf: int, halo: int) -> int:
    """Samples of a bundle with those of its halos, at most."""
    return min(n, bundle_leaves(n, leaf) * (leaf + halo))


@dataclass(frozen=True)
class Joint:
    """All leaves of a model of some samples, together."""

    normal: FloatArray  # lower Cholesky factor of B: (m, m), Fortran order
    whitened: FloatArray  # z: (m, p)
    value: float  # log p(Y), summed over targets, in nats
    explained: float  # of the samples' k(x, x), by the basis

    def moved(self, between: FloatArray | None = None, determinants: float | None = None) -> Moved:
        """H, by M = `between` (p, p) and c = `determinants`; by default I and p."""
        m, p = self.whitened.shape
        c = float(p) if determinants is None else determinants
        weighted = self.whitened if between is None else self.whitened @ between
        H = np.empty((m + p, m + p))
        inverse = scipy.linalg.cho_solve((self.normal, True), np.eye(m), check_finite=False) if m else np.empty((0, 0))
        H[:m, :m] = -c * inverse - weighted @ self.whitened.T
        H[:m, m:], H[m:, :m], H[m:, m:] = weighted, weighted.T, -np.eye(p) if between is None else -between
        return Moved(H, c)


class Neighbourhood:
    """Samples in kd order, their leaves and halos, by an operator's kernel; tasks on them go by other kernels, too."""

    def __init__(self, operator: BlockedKernelOperator, neighbours: Neighbours) -> None:
        executor = operator.executor
        executor.require_one_arithmetic()
        context, n = operator.context, operator.n
        halo, leaf = min(neighbours.halo, n), min(neighbours.leaf, n)
        none = np.empty((0, context.kernel.n_features))
        searched = leaf_count(neighbours.searched, leaf)
        label = f"vif-{halo}-{leaf}-{searched}"
        self.leaves = Leaves(context, halo, leaf, none, embedding_landmarks(operator), label, searched)
        self._homes = Homes(self.leaves.n_bundles)
        with single_threaded_blas():
            operator.tell("order", 0, n, "samples")
            operator.submit("kvorder", order_task, (self.leaves,), [[0]]).result()
            groups = [[number] for number in range(self.leaves.n_bundles)]
            found = operator.submit("kvhalo", halo_task, (self.leaves,), groups).result()
        self.samples: list[IndexArray] = [samples for samples, _ in found]
        self.unproven = (
            sum(unproven for _, unproven in found) / n
        )  # share of samples; others' neighbours are the nearest

    def described(self, operator: BlockedKernelOperator, basis: FloatArray | None) -> Described:
        """The model of an operator's kernel and a basis (m, d)."""
        prototypes = None
        if basis is not None and len(basis):
            CrossKernel(operator, basis).lower  # noqa: B018  - refuse a matrix here, in words, that no worker could factor
            prototypes = prototypes_of(operator, basis)
        return Described(self.leaves, operator.context, prototypes)

    def runs(self, targets: FloatArray, noise: Variances) -> list[list[BundleRows]]:
        """Each bundle with its rows of the targets (n, p) and of the noise."""
        return [
            [BundleRows(number, targets[samples], noise_at(noise, samples))]
            for number, samples in enumerate(self.samples)
        ]

    def _owners(self, operator: BlockedKernelOperator, model: Described) -> list[str] | None:
        """The worker that keeps the matrices of each bundle."""
        workers = operator.executor.workers
        return None if model.kept is None or len(workers) < 2 else self._homes.owners(workers)

    def summed(
        self,
        operator: BlockedKernelOperator,
        name: str,
        phase: str,
        task: Callable[..., list[RunSums]],
        model: Described,
        arguments: tuple[Any, ...],
        targets: FloatArray,
    ) -> RunSums:
        """Sum the results of a task of the model, further arguments and bundles."""
        runs = [run for (run,) in self.runs(targets, operator.noise)]
        homes = None if model.kept is None else self._homes
        return summed_units(operator, name, phase, task, (model, *arguments), runs, homes)

    def weights(
        self, operator: BlockedKernelOperator, model: Described, joint: Joint, targets: FloatArray
    ) -> FloatArray:
        """Sigma^-1 Y: (n, p)."""
        return self._by_sample(operator, "kvifweights", vif_weights_task, model, joint.whitened, targets)

    def noise_slopes(
        self, operator: BlockedKernelOperator, model: Described, moved: Moved, targets: FloatArray
    ) -> FloatArray:
        """Slopes of the log likelihood by each sample's noise: (n,)."""
        return self._by_sample(operator, "kvifnoise", vif_noise_slopes_task, model, moved, targets)[:, 0]

    def _by_sample(
        self,
        operator: BlockedKernelOperator,
        name: str,
        task: Callable[..., list[FloatArray]],
        model: Described,
        argument: FloatArray | Moved,
        targets: FloatArray,
    ) -> FloatArray:
        """Add up rows that a task makes of bundles: (n, any)."""
        with single_threaded_blas():
            runs, owners = self.runs(targets, operator.noise), self._owners(operator, model)
            parts = operator.submit(name, task, (model, argument), runs, owners).result()
        out = np.zeros((len(targets), parts[0].shape[1]))
        for samples, part in zip(self.samples, parts, strict=True):
            out[samples] += part
        return out

    def slopes(
        self, operator: BlockedKernelOperator, model: Described, moved: Moved, targets: FloatArray
    ) -> tuple[FloatArray, float]:
        """Slopes of the log likelihood: by the logarithms of the kernel's parameters (q,), and by the noise."""
        total, (noise,), inner = self.summed(
            operator, "kvifslopes", "slopes", vif_slopes_task, model, (moved,), targets
        ).sums
        if model.prototypes is not None:
            # F = K_nm L^-T goes with L, whose own slopes by K_mm are those of a Cholesky factor.
            lower, basis, m = model.prototypes.triangle().lower, model.prototypes.inputs, model.rank
            with single_threaded_blas():
                half = whiten(lower, -0.25 * (inner + inner.T), transposed=True)
                matrix = whiten(lower, np.asfortranarray(half.T), transposed=True)
                share = jitter(m, 1.0, 2.0 * float(operator.double.row_errors(basis).max()))
                matrix[np.diag_indices(m)] *= 1.0 + share
                total = total + operator.kernel.contract(basis, basis, np.ascontiguousarray(matrix))
        return total, float(noise)

    def joint(self, operator: BlockedKernelOperator, model: Described, targets: FloatArray) -> Joint:
        """B, z and the log likelihood; `NumericalError` where rounding exceeds the noise, or sums overflow."""
        (n, p), m = targets.shape, model.rank
        sums = self.summed(operator, "kvifsums", "factor", vif_sums_task, model, (), targets).sums
        (gram,), (determinant, explained) = sums
        if not np.isfinite(gram).all():
            raise NumericalError("the model with neighbours overflows: bring inputs that are far out closer")
        quadratic = float(np.trace(gram[m:, m:]))
        z, normal = np.empty((0, p)), np.empty((0, 0), order="F")
        if m:
            with single_threaded_blas():
                normal = regularised_factor(np.asfortranarray(gram[:m, :m]), 1.0)
                z = np.asarray(scipy.linalg.cho_solve((normal, True), gram[:m, m:], check_finite=False))
            determinant += 2.0 * float(np.log(normal.diagonal()).sum())
            quadratic -= float(np.sum(z * gram[:m, m:]))
        value = -0.5 * (p * (n * math.log(2.0 * math.pi) + float(determinant)) + quadratic)
        return Joint(normal, z, value, float(explained))


class NearEvidence:
    """Evidence of a model with neighbours of some samples, as one point after another is evaluated.

    `source` has standardised inputs. The context's `within` hears the progress of each pass; an exception in it ends
    the evaluation. `start` is where an evaluation that iterates begins, and is left where the next one may.
    """

    start: NDArray[np.float32] | None = None

    def __init__(
        self, source: InputSource, context: RunContext | BlockExecutor, neighbours: Neighbours | None = None
    ) -> None:
        self._source, self._context = source, RunContext.of(context)
        self._neighbours = neighbours or Neighbours()
        self._held: Neighbourhood | None = None
        self._operator_held: BlockedKernelOperator | None = None

    @contextmanager
    def operator(self, kernel: Kernel, noise_variance: float) -> Iterator[BlockedKernelOperator]:
        """Kbar of the samples, watched by the context."""
        context = self._context
        with context.operator(kernel, noise_variance, self._source) as operator, operator.watched(context.within):
            yield operator

    def hold(self, kernel: Kernel) -> None:
        """Order the samples by a kernel, from now on; `NumericalError` as of an operator's."""
        self.close()
        operator = self._context.operator(kernel, 1.0, self._source)
        with operator.watched(self._context.within):
            self._held, self._operator_held = Neighbourhood(operator, self._neighbours), operator

    @property
    def unproven(self) -> float:
        """Share of samples whose neighbours may not be the nearest, of the order that is held."""
        return 0.0 if self._held is None else self._held.unproven

    def close(self) -> None:
        """Forget the order."""
        if self._operator_held is not None:
            self._operator_held.close()
        self._held = self._operator_held = None

    def __call__(self, kernel: Kernel, noise_variance: float, basis: FloatArray) -> BoundValue:
        """The evidence and its gradient for a basis (m, d), which is held; by the order that is.

        Raises `NumericalError`: rounding exceeds the noise variance, or the value overflows.
        """
        if self._held is None:
            self.hold(kernel)
        held = self._held
        assert held is not None
        with self.operator(kernel, noise_variance) as operator:
            value, gradient, explained = self._evaluated(held, operator, held.described(operator, basis))
            unexplained = 1.0 - explained / float(operator.prior().sum())
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            raise NumericalError("the likelihood with neighbours overflows: bring inputs that are far out closer")
        return BoundValue(value, gradient, unexplained)

    def _evaluated(
        self, held: Neighbourhood, operator: BlockedKernelOperator, model: Described
    ) -> tuple[float, FloatArray, float]:
        """The evidence, its gradient, and the part of the samples' k(x, x) that the basis explains."""
        raise NotImplementedError


class VifObjective(NearEvidence):
    """Log likelihood of targets (n, p)."""

    def __init__(
        self,
        source: InputSource,
        targets: FloatArray,
        context: RunContext | BlockExecutor,
        neighbours: Neighbours | None = None,
    ) -> None:
        if targets.ndim != 2 or len(targets) != source.n_samples or not targets.shape[1]:
            raise InputError(f"expected targets of shape ({source.n_samples:,}, p); got {targets.shape}")
        super().__init__(source, context, neighbours)
        self._targets = targets

    def _evaluated(
        self, held: Neighbourhood, operator: BlockedKernelOperator, model: Described
    ) -> tuple[float, FloatArray, float]:
        joint = held.joint(operator, model, self._targets)
        with single_threaded_blas():
            moved = joint.moved()
        total, noise = held.slopes(operator, model, moved, self._targets)
        return joint.value, np.append(total, operator.noise_variance * noise), joint.explained
