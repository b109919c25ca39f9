"""Sums over the samples that candidates for a growing basis are scored by, and that its factor grows by.

A pass returns, for candidates C, a basis S with weights W, and r = V - K_nS W: K_Cn D r and the squares k_c' D k_c,
in float32 where they serve for a choice alone; K_S D K_C' and K_C D K_C'; and r, for a next pass with the same
weights. Columns of the basis stay with the workers from one pass to the next as far as their budget of tiles goes: of
n (q + k) entries n q remain to be evaluated.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import TileBudget
from dkgp.cluster.executors.homes import Homes
from dkgp.errors import InputError
from dkgp.kernels import Features, TileEvaluator
from dkgp.kernels.compiler import cached_njit
from dkgp.kernels.tiles.blocks import TILE_COLUMNS
from dkgp.kernels.tiles.loops import (
    FLUSH_COLUMNS,
    accumulate,
    fill_tile,
    pack_columns,
    pack_rows,
    packed_inputs,
    padded_columns,
)
from dkgp.kernels.vector_math import FAST_MATH, prefer_full_vectors
from dkgp.operators.base import FloatArray, IndexArray, check_indices
from dkgp.operators.blas import blas, leading_dimension
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import prototypes_of, summed_units
from dkgp.operators.cross.tasks import (
    SLAB_COLUMNS,
    Prototypes,
    Run,
    Slab,
    columns_between,
    piece_rows,
    runs_of,
    scratch,
    slabs,
)
from dkgp.operators.exact_sums import RunSums, unit_count
from dkgp.operators.full_products import forget_everywhere
from dkgp.operators.keeping import Keeping


@dataclass(frozen=True)
class CandidateSums:
    """Sums that q candidates are scored by."""

    projected: FloatArray  # K_Cn D r: (q, t)
    squares: FloatArray  # k_c' D k_c: (q,)
    between: FloatArray | None  # K_Sn D K_nC: (k, q)
    inner: FloatArray | None  # K_Cn D K_nC: (q, q)
    misfit: FloatArray  # r' D r: (t,)
    residual: FloatArray  # r of the samples in the sums: (rows, t)


@dataclass(frozen=True)
class CandidatePass:
    """A pass as its tasks see it."""

    candidates: Prototypes  # C
    basis: Prototypes | None  # S, if its columns are needed
    weights: FloatArray | None  # W: (k, t); None where V is r already
    between: bool  # with the products with S
    inner: bool  # with those within C
    single: bool  # in float32
    kept: tuple[str, Keeping] | None  # see `slabs`


class GrowingBasis:
    """Sums for the choices of one basis that grows at its end; `variances` (n,) are D's inverse, D = I without.

    The workers of the operator's executor keep the basis' columns, as far as their budget of tiles goes.
    """

    def __init__(self, operator: BlockedKernelOperator, variances: FloatArray | None = None) -> None:
        self._operator, self._variances = operator, variances
        self._label = f"basis-{uuid.uuid4().hex[:12]}"
        self._homes = Homes(min(operator.context.n_blocks, unit_count(operator.n)))
        self._turns = 0

    def sums(
        self,
        candidates: ArrayLike,
        right: FloatArray,
        basis: ArrayLike | None = None,
        weights: FloatArray | None = None,
        *,
        between: bool = False,
        inner: bool = False,
        single: bool = False,
        samples: IndexArray | None = None,
    ) -> CandidateSums:
        """One pass: n q entries, and n k where the basis' columns are needed and not kept.

        The candidates C (q, d) and the basis S (k, d), which begins with that of the pass before, are inputs; V is
        `right` (n, t), and r = V - K_nS W for `weights` W (k, t), or V. `between` asks for the candidates' products
        with the basis (2 n q k multiply-adds), `inner` for those with each other, `single` for float32 where neither
        is asked for. Sums are over the sorted `samples`, all by default.
        """
        operator = self._operator
        if right.ndim != 2 or len(right) != operator.n:
            raise InputError(f"expected right-hand sides of shape ({operator.n:,}, t); got {right.shape}")
        candidate_prototypes, basis_prototypes = prototypes_of(operator, candidates), None
        if basis is not None and len(np.asarray(basis)) and (between or weights is not None):
            basis_prototypes = prototypes_of(operator, basis)
            expected = (basis_prototypes.count, right.shape[1])
            if weights is not None and weights.shape != expected:
                raise InputError(f"expected weights of shape ({expected[0]:,}, {expected[1]}); got {weights.shape}")
        vectors = {"right": right, "variances": self._variances}
        if samples is not None:
            check_indices(operator.n, samples)
            vectors = {name: None if values is None else values[samples] for name, values in vectors.items()}
        keeps = basis_prototypes is not None and samples is None
        kept = self._keeping() if keeps else None
        weights = None if basis_prototypes is None else weights
        single = single and not (between or inner)
        work = CandidatePass(candidate_prototypes, basis_prototypes, weights, between, inner, single, kept)
        runs = runs_of(operator.context, vectors, samples)
        homes = self._homes if kept else None
        total = summed_units(operator, "kcandidates", "candidates", candidates_task, (work,), runs, homes)
        projected, squares, cross, gram, misfit = total.sums
        assert total.rows is not None
        return CandidateSums(
            projected, squares, cross if between else None, gram if inner else None, misfit, total.rows
        )

    def _keeping(self) -> tuple[str, Keeping] | None:
        """Name and terms of the next pass."""
        executor = self._operator.executor
        if executor.tiles.bytes <= 0:
            return None
        self._turns += 1
        # Reading always pays: it takes a fraction of evaluating a float64 entry for any kernel.
        keeping = Keeping(TileBudget(executor.tiles.bytes), self._turns)
        return self._label, keeping

    def close(self) -> None:
        """Have workers forget the columns."""
        if self._turns:
            forget_everywhere(self._operator.executor, self._label)
            self._turns = 0


@needs_one_arithmetic
def candidates_task(work: CandidatePass, runs: list[Run]) -> list[RunSums]:
    """Sums of a pass for each run, see `CandidateSums`; and r, as the run's rows."""
    return [_candidates(work, run) for run in runs]


def _candidates(work: CandidatePass, run: Run) -> RunSums:
    residual = np.array(run.rows["right"], order="C")
    sums = _in_single(work, run, residual) if work.single else _in_double(work, run, residual)
    return RunSums(sums, residual)


def _basis(work: CandidatePass, run: Run) -> AbstractContextManager[list[Slab]]:
    context = work.candidates.context
    inputs = np.empty((0, context.kernel.n_features)) if work.basis is None else work.basis.inputs
    return slabs(context.evaluator("double"), inputs, work.kept, run.blocks[0], run.samples(context))


def _in_single(work: CandidatePass, run: Run, residual: FloatArray) -> tuple[FloatArray, ...]:
    """K_C D r and the squares from float32 entries; `residual` is r once the basis is subtracted."""
    context = work.candidates.context
    if work.weights is not None:
        with _basis(work, run) as basis:
            for features, where in run.pieces(context, "double", piece_rows(SLAB_COLUMNS)):
                for slab in basis:
                    residual[where] -= slab.columns(features, where) @ work.weights[slab.first : slab.last]
    scale = 1.0 / run.rows["variances"][:, None] if "variances" in run.rows else np.ones((len(residual), 1))
    weighted = residual * scale
    evaluator, q, t = context.evaluator("single"), work.candidates.count, residual.shape[1]
    candidates = evaluator.prepare(work.candidates.inputs)
    projected, squares = np.zeros((q, t)), np.zeros(q)
    for features, where in run.pieces(context, "single", context.block_rows):
        products, lengths = column_moments(evaluator, candidates, features, weighted[where], scale[where, 0])
        projected += products
        squares += lengths
    misfit = np.einsum("it,it->t", residual, weighted)
    return projected, squares, np.zeros((0, 0)), np.zeros((0, 0)), misfit


def _in_double(work: CandidatePass, run: Run, residual: FloatArray) -> tuple[FloatArray, ...]:
    """All sums; `residual` is r once the basis is subtracted."""
    context = work.candidates.context
    evaluator, q, t = context.evaluator("double"), work.candidates.count, residual.shape[1]
    k = 0 if work.basis is None else work.basis.count
    candidates = evaluator.prepare(work.candidates.inputs)
    projected, squares, misfit = np.zeros((q, t)), np.zeros(q), np.zeros(t)
    cross = np.zeros((k, q) if work.between else (0, 0), order="F")
    gram = np.zeros((q, q) if work.inner else (0, 0))
    with _basis(work, run) as basis:
        for features, where in run.pieces(context, "double", piece_rows(q + SLAB_COLUMNS)):
            columns = weighted = columns_between(evaluator, candidates, features, "candidates")
            if "variances" in run.rows:
                weighted = scratch("weighted", len(columns), leading_dimension(columns), columns.dtype)[:, :q]
                np.multiply(columns, 1.0 / run.rows["variances"][where, None], out=weighted)
            for slab in basis:
                of_basis = slab.columns(features, where)
                if work.weights is not None:
                    residual[where] -= of_basis @ work.weights[slab.first : slab.last]
                if work.between:
                    # Row after row is column by column of the transpose: K_S D K_C' of the slab, added in place.
                    sizes = slab.last - slab.first, q, len(of_basis)
                    factors = of_basis, leading_dimension(of_basis), weighted, leading_dimension(weighted)
                    blas("gemm", b"N", b"T", *sizes, 1.0, *factors, 1.0, cross[slab.first :], k)
            right = residual[where]
            projected += weighted.T @ right
            squares += np.einsum("ij,ij->j", columns, weighted)
            if work.inner:
                gram += columns.T @ weighted
            scaled = right / run.rows["variances"][where, None] if "variances" in run.rows else right
            misfit += np.einsum("it,it->t", right, scaled)
    return projected, squares, cross, gram, misfit


def column_moments(
    evaluator: TileEvaluator, prototypes: Features, rows: Features, vectors: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """K(Z, X_b) V for V (b, t), and the columns' squares weighted by `scale` (b,): (m, t) and (m,); no entry is kept.

    As for `TileEvaluator.matmat`, tile sums run in the evaluator's precision, their total in float64.
    """
    evaluator.count(prototypes.n * rows.n)
    amplitude = evaluator.amplitude
    weights = np.concatenate([vectors * amplitude, scale[:, None] * amplitude**2], axis=1).astype(evaluator.dtype)
    out = np.empty((weights.shape[1], prototypes.values.shape[1]))
    _moments(*prototypes.arrays, *rows.arrays, rows.n, weights, out, evaluator.program, evaluator.tile_rows)
    return out[:-1, : prototypes.n].T, out[-1, : prototypes.n]


@cached_njit(fastmath=FAST_MATH, nogil=True)
def _moments(  # type: ignore[no-untyped-def]
    A: NDArray[Any], norms_a, B, norms_b, n_columns, weights, out, program, tile_rows
):
    """`out[t, i] = sum_j k(a_i, b_j) weights[j, t]`, for the last t of the squares of k; see `loops.tile_matmat`."""
    prefer_full_vectors()
    padded, targets = A.shape[1], weights.shape[1]
    n_padded = padded_columns(n_columns)
    stack = np.empty((program[0, 1] * TILE_COLUMNS, tile_rows), A.dtype)
    totals = np.empty((targets, tile_rows), A.dtype)
    rows = np.empty(packed_inputs(program) * tile_rows, A.dtype)
    columns = pack_columns(B, norms_b, n_columns, program)
    for start in range(0, padded, tile_rows):
        count = min(tile_rows, padded - start)
        pack_rows(rows, tile_rows, A, norms_a, start, count, program)
        out[:, start : start + count] = 0.0
        for first in range(0, n_columns, FLUSH_COLUMNS):
            last = min(first + FLUSH_COLUMNS, n_columns)
            totals[:, :] = 0.0
            for column in range(first, last, TILE_COLUMNS):
                width = min(TILE_COLUMNS, last - column)
                fill_tile(stack, width, count, rows, columns, n_padded, column, program)
                for t in range(targets - 1):
                    accumulate(totals, t, stack, width, count, weights, column)
                for j in range(width):
                    for i in range(count):
                        stack[j, i] *= stack[j, i]
                accumulate(totals, targets - 1, stack, width, count, weights, column)
            for t in range(targets):
                for i in range(count):
                    out[t, start + i] += totals[t, i]
