"""Sums over the samples that candidates for a growing basis are scored by, and that its factor grows by.

A pass returns, for candidates C, a basis S with weights W, and r = V - K_nS W: K_Cn D r and the squares k_c' D k_c,
in float32 where they are looked at for no more than a choice; K_S D K_C' and K_C D K_C'; and r, so that a pass that
follows with the same weights need not find it again. Columns of the basis stay with the workers from one pass to the
next as far as their budget of tiles goes: of n (q + k) entries n q are left to evaluate.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.homes import Homes
from dkgp.cluster.tile_budget import TileBudget
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray, check_indices
from dkgp.operators.blas import blas
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.columns import SLAB_COLUMNS, Slab, columns_between, scratch, slabs
from dkgp.operators.cross.kernel import prototypes_of, summed
from dkgp.operators.cross.moments import column_moments
from dkgp.operators.cross.runs import MOST_RUNS, Run, RunSums, piece_rows
from dkgp.operators.cross.tasks import Prototypes
from dkgp.operators.full_products import forget_everywhere
from dkgp.operators.keeping import Keeping

__all__ = ["CandidateSums", "GrowingBasis", "candidates_task"]


@dataclass(frozen=True)
class CandidateSums:
    """Sums that q candidates are scored by.

    Attributes
    ----------
    projected : (q, t) float64
        K_Cn D r.
    squares : (q,) float64
        k_c' D k_c.
    between : (k, q) float64 or None
        K_Sn D K_nC.
    inner : (q, q) float64 or None
        K_Cn D K_nC.
    misfit : (t,) float64
        r' D r.
    residual : (rows, t) float64
        r, of the samples that were summed over.
    """

    projected: FloatArray
    squares: FloatArray
    between: FloatArray | None
    inner: FloatArray | None
    misfit: FloatArray
    residual: FloatArray


@dataclass(frozen=True)
class CandidatePass:
    """A pass as its tasks see it.

    Attributes
    ----------
    candidates : Prototypes
        C.
    basis : Prototypes or None
        S, where its columns are wanted.
    weights : (k, t) float64 or None
        W; None where V is r already.
    between, inner, single : bool
        Whether the products with S, and within C, are wanted, and whether float32 is good enough.
    kept : (str, Keeping) or None
        See `slabs`.
    """

    candidates: Prototypes
    basis: Prototypes | None
    weights: FloatArray | None
    between: bool
    inner: bool
    single: bool
    kept: tuple[str, Keeping] | None


class GrowingBasis:
    """Sums for the choices of one basis that grows at its end.

    Parameters
    ----------
    operator : BlockedKernelOperator
        Its executor's workers keep the basis' columns, as far as their budget of tiles goes.
    variances : (n,) float64, optional
        D's inverse; D = I by default.
    """

    def __init__(self, operator: BlockedKernelOperator, variances: FloatArray | None = None) -> None:
        self._operator, self._variances = operator, variances
        self._label = f"basis-{uuid.uuid4().hex[:12]}"
        self._homes = Homes(min(operator.context.n_blocks, MOST_RUNS))
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
        """One pass: n q entries, and n k where the basis' columns are wanted and not kept.

        Parameters
        ----------
        candidates : (q, d) array_like
            C.
        right : (n, t) float64
            V.
        basis : (k, d) array_like, optional
            S: what an earlier pass had, and what came after it.
        weights : (k, t) float64, optional
            W of the basis: r = V - K_nS W; V itself by default.
        between, inner : bool
            Whether the candidates' products with the basis (2 n q k multiply-adds), and with each other, are wanted.
        single : bool
            Whether float32 will do for what is left then.
        samples : (s,) int, optional
            Sum over these alone, sorted.
        """
        operator = self._operator
        if right.ndim != 2 or len(right) != operator.n:
            raise InputError(f"expected right-hand sides of shape ({operator.n:,}, t); got {right.shape}")
        chosen, others = prototypes_of(operator, candidates), None
        if basis is not None and len(np.asarray(basis)) and (between or weights is not None):
            others = prototypes_of(operator, basis)
            if weights is not None and weights.shape != (others.count, right.shape[1]):
                raise InputError(f"expected weights of shape ({others.count:,}, {right.shape[1]}); got {weights.shape}")
        vectors = {"right": right, "variances": self._variances}
        if samples is not None:
            check_indices(operator.n, samples)
            vectors = {name: None if values is None else values[samples] for name, values in vectors.items()}
        kept, owners = self._keeping() if others is not None and samples is None else (None, None)
        work = CandidatePass(
            chosen, others, None if others is None else weights, between, inner, single and not (between or inner), kept
        )
        found = summed(operator, "kcandidates", "candidates", candidates_task, (work,), vectors, samples, owners)
        projected, squares, cross, gram, misfit = found.sums
        assert found.rows is not None
        return CandidateSums(
            projected, squares, cross if between else None, gram if inner else None, misfit, found.rows
        )

    def _keeping(self) -> tuple[tuple[str, Keeping] | None, list[str] | None]:
        """Terms of the next pass, and who has which run's columns."""
        executor = self._operator.executor
        if executor.tiles.bytes <= 0:
            return None, None
        self._turns += 1
        workers = executor.workers
        # That reading pays need not be found out: it is a fraction of evaluating a float64 entry for any kernel.
        keeping = Keeping(TileBudget(executor.tiles.bytes), self._turns)
        return (self._label, keeping), self._homes.owners(workers) if len(workers) > 1 else None

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
    left = np.array(run.rows["right"], order="C")
    sums = _looked_at(work, run, left) if work.single else _in_double(work, run, left)
    return RunSums(sums, left)


def _basis(work: CandidatePass, run: Run) -> AbstractContextManager[list[Slab]]:
    context = work.candidates.context
    inputs = np.empty((0, context.kernel.n_features)) if work.basis is None else work.basis.inputs
    return slabs(context.evaluator("double"), inputs, work.kept, run.blocks[0], run.samples(context))


def _looked_at(work: CandidatePass, run: Run, left: FloatArray) -> tuple[FloatArray, ...]:
    """K_C D r and the squares from float32 entries; `left` is r once its basis has been taken off."""
    context = work.candidates.context
    if work.weights is not None:
        with _basis(work, run) as basis:
            for features, where in run.pieces(context, "double", piece_rows(SLAB_COLUMNS)):
                for slab in basis:
                    left[where] -= slab.columns(features, where) @ work.weights[slab.first : slab.last]
    scale = 1.0 / run.rows["variances"][:, None] if "variances" in run.rows else np.ones((len(left), 1))
    weighted = left * scale
    evaluator, q, t = context.evaluator("single"), work.candidates.count, left.shape[1]
    chosen = evaluator.prepare(work.candidates.inputs)
    projected, squares = np.zeros((q, t)), np.zeros(q)
    for features, where in run.pieces(context, "single", context.block_rows):
        products, lengths = column_moments(evaluator, chosen, features, weighted[where], scale[where, 0])
        projected += products
        squares += lengths
    misfit = np.einsum("it,it->t", left, weighted)
    return projected, squares, np.zeros((0, 0)), np.zeros((0, 0)), misfit


def _in_double(work: CandidatePass, run: Run, left: FloatArray) -> tuple[FloatArray, ...]:
    """All sums; `left` is r once its basis has been taken off."""
    context = work.candidates.context
    evaluator, q, t = context.evaluator("double"), work.candidates.count, left.shape[1]
    k = 0 if work.basis is None else work.basis.count
    chosen = evaluator.prepare(work.candidates.inputs)
    projected, squares, misfit = np.zeros((q, t)), np.zeros(q), np.zeros(t)
    cross = np.zeros((k, q) if work.between else (0, 0), order="F")
    gram = np.zeros((q, q) if work.inner else (0, 0))
    with _basis(work, run) as basis:
        for features, where in run.pieces(context, "double", piece_rows(q + SLAB_COLUMNS)):
            own = weighted = columns_between(evaluator, chosen, features, "candidates")
            if "variances" in run.rows:
                weighted = scratch("weighted", len(own), own.strides[0] // own.itemsize, own.dtype)[:, :q]
                np.multiply(own, 1.0 / run.rows["variances"][where, None], out=weighted)
            for slab in basis:
                columns = slab.columns(features, where)
                if work.weights is not None:
                    left[where] -= columns @ work.weights[slab.first : slab.last]
                if work.between:
                    # Row after row is column by column of the transpose: K_S D K_C' of the slab, added in place.
                    blas(
                        "gemm", b"N", b"T", slab.last - slab.first, q, len(columns), 1.0, columns, _stride(columns),
                        weighted, _stride(weighted), 1.0, cross[slab.first :], k,
                    )  # fmt: skip
            right = left[where]
            projected += weighted.T @ right
            squares += np.einsum("ij,ij->j", own, weighted)
            if work.inner:
                gram += own.T @ weighted
            scaled = right / run.rows["variances"][where, None] if "variances" in run.rows else right
            misfit += np.einsum("it,it->t", right, scaled)
    return projected, squares, cross, gram, misfit


def _stride(rows: FloatArray) -> int:
    """Numbers from one row to the next."""
    return rows.strides[0] // rows.itemsize
