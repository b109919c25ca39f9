"""A = X'X and b = X'y of rows that are read block by block: a pass for each product, and A never formed.

Sums over the rows are added up on the workers as digits: the same bits for any number of workers
(`dkgp.operators.exact_sums`). A pass brings the columns X'X_S of what was chosen, or, for random draws C, no more than
X_C'r, X_S'X_C and X_C'X_C with r = y - X_S w.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, RoundTasks, split_evenly
from dkgp.cluster.executors.sums import Progress
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.exact_sums import DATA_DEPTH, RunSums, exact_sums, group_units, unit_count
from dkgp.operators.inputs import ArrayInputs, InputSource
from dkgp.solvers.pursuit.systems import CandidateProducts

# Numbers of a block: 16 MiB; a task holds one at a time, or finds it in its worker's cache.
BLOCK_NUMBERS, FEWEST_ROWS, MOST_ROWS = 2**21, 16, 8192
LEAST_BLOCKS = 8


@dataclass(frozen=True)
class RowBlock:
    """Rows of X as a worker keeps them."""

    values: FloatArray

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes


@dataclass(frozen=True)
class RowView:
    """X as tasks see it: rows of a source, shifted and scaled by column; small on the wire.

    - `run_id`: of what workers keep.
    - `shift`, `scale` (D,): columns are (x - shift) * scale.
    """

    run_id: str
    source: InputSource
    shift: FloatArray | None
    scale: FloatArray | None

    @property
    def block_rows(self) -> int:
        """Rows of a block: by the shape of X alone."""
        n, d = self.source.n_samples, self.source.n_features
        rows = min(BLOCK_NUMBERS // d, -(-n // LEAST_BLOCKS))
        return int(np.clip(rows, FEWEST_ROWS, MOST_ROWS))

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.source.n_samples // self.block_rows)

    def block(self, number: int) -> FloatArray:
        """A block's rows, from this worker's cache or read anew."""
        if self.shift is None and self.scale is None and isinstance(self.source, ArrayInputs):
            return self.read(number)  # in this process's memory already
        return worker_cache().get((self.run_id, number, "regressors"), lambda: RowBlock(self.read(number))).values

    def read(self, number: int) -> FloatArray:
        """A block's rows, read anew."""
        start = number * self.block_rows
        values = self.source.inputs(start, min(start + self.block_rows, self.source.n_samples))
        if self.shift is not None:
            values = values - self.shift
        return values if self.scale is None else values * self.scale


@dataclass(frozen=True)
class RowRun:
    """Neighbouring blocks, a unit's work, and the rows of y that are theirs."""

    blocks: list[int]
    rows: FloatArray | None

    def pieces(self, view: RowView, keep: bool = True) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Rows of X, and of y where there is one, block by block; kept in the worker's cache for a later pass."""
        done = 0
        for number in self.blocks:
            values = view.block(number) if keep else view.read(number)
            targets = np.zeros((len(values), 0)) if self.rows is None else self.rows[done : done + len(values)]
            done += len(values)
            yield values, targets


def row_moments_task(view: RowView, first: FloatArray, runs: list[RowRun]) -> list[RunSums]:
    """Sums of each column of X - 1 `first`', and a number that is finite where all of them are."""
    results = []
    for run in runs:
        sums, check = np.zeros(view.source.n_features), np.zeros(1)
        for values, _ in run.pieces(view):
            sums += (values - first).sum(axis=0)
            check += np.abs(values).max(initial=0.0)
        results.append(RunSums((sums, check)))
    return results


@needs_one_arithmetic
def row_project_task(view: RowView, runs: list[RowRun]) -> list[RunSums]:
    """X'V, and the squared length of each column of X."""
    results = []
    for run in runs:
        assert run.rows is not None
        d = view.source.n_features
        projected, squares = np.zeros((d, run.rows.shape[1])), np.zeros(d)
        for values, targets in run.pieces(view):
            with np.errstate(over="ignore", invalid="ignore"):  # told by who adds up
                projected += values.T @ targets
                squares += np.einsum("ij,ij->j", values, values)
        results.append(RunSums((projected, squares)))
    return results


@needs_one_arithmetic
def row_columns_task(view: RowView, which: IndexArray, runs: list[RowRun]) -> list[RunSums]:
    """X'X_S for the columns S = `which`: (D, c)."""
    results = []
    for run in runs:
        total = np.zeros((view.source.n_features, len(which)))
        for values, _ in run.pieces(view):
            total += values.T @ values[:, which]
        results.append(RunSums((total,)))
    return results


@needs_one_arithmetic
def row_candidates_task(
    view: RowView, which: IndexArray, path: IndexArray, weights: FloatArray, runs: list[RowRun]
) -> list[RunSums]:
    """X_C'r, X_S'X_C, X_C'X_C and r'r for C = `which`, S = `path`, r = y - X_S w."""
    results = []
    for run in runs:
        q, k, t = len(which), len(path), weights.shape[1]
        gradient, between, inner, misfit = np.zeros((q, t)), np.zeros((k, q)), np.zeros((q, q)), np.zeros(t)
        for values, targets in run.pieces(view):
            basis, new = values[:, path], values[:, which]
            residual = targets - basis @ weights
            gradient += new.T @ residual
            between += basis.T @ new
            inner += new.T @ new
            misfit += np.einsum("it,it->t", residual, residual)
        results.append(RunSums((gradient, between, inner, misfit)))
    return results


@needs_one_arithmetic
def row_sums_task(view: RowView, groups: int, runs: list[RowRun]) -> list[RunSums]:
    """Z'Z of the rows Z = [1, X, y] of each group, whose number is the last column of what stands for y."""
    results = []
    for run in runs:
        assert run.rows is not None
        width = view.source.n_features + run.rows.shape[1]
        total = np.zeros((groups, width, width))
        for values, targets in run.pieces(view, keep=False):
            rows = np.column_stack([np.ones(len(values)), values, targets[:, :-1]])
            for group in range(groups):
                members = rows[targets[:, -1] == group]
                with np.errstate(over="ignore", invalid="ignore"):  # told by who adds up
                    total[group] += members.T @ members
        results.append(RunSums((total,)))
    return results


class RowSystem:
    """X'X and X'y by products over row blocks.

    Parameters
    ----------
    source : InputSource
        The rows of X, (n, D): `ArrayInputs` of an array in memory, a `Dataset`, or anything that reads a range of rows.
    executor : BlockExecutor
        Reads the rows and adds up.
    shift, scale : (D,) array_like, optional
        The regressors are (x - shift) * scale.
    told : callable, optional
        Hears, within a pass, how many of its tasks are done, and of how many; what it raises ends the pass.

    Attributes
    ----------
    n, size : int
        Rows, and regressors D.
    passes : int
        Times that all rows were gone through.

    Raises
    ------
    InputError
        A shift or scale of another length.
    """

    def __init__(
        self,
        source: InputSource,
        executor: BlockExecutor,
        *,
        shift: FloatArray | None = None,
        scale: FloatArray | None = None,
        told: Progress | None = None,
    ) -> None:
        self.n, self.size = int(source.n_samples), int(source.n_features)
        for name, numbers in (("shift", shift), ("scale", scale)):
            if numbers is not None and np.shape(numbers) != (self.size,):
                raise InputError(f"`{name}` has shape {np.shape(numbers)}; expected ({self.size},)")
        self._view = RowView(f"rows-{uuid.uuid4().hex[:12]}", source, shift, scale)
        self._executor, self._told = executor, told
        self._squares: FloatArray | None = None
        self.passes = 0
        executor.require_one_arithmetic()

    @property
    def block_bytes(self) -> int:
        """Of the rows that a task reads at a time."""
        return 8 * self._view.block_rows * self.size

    def means(self) -> FloatArray:
        """Mean of each column: (D,); of a constant one its value to the bit, so that centring leaves nothing of it.

        Raises
        ------
        InputError
            X is not finite.
        """
        first = self._view.block(0)[0]
        with np.errstate(invalid="ignore", over="ignore"):
            sums, check = self._sum("pmoments", row_moments_task, (first,))
        if not np.isfinite(check).all() or not np.isfinite(sums).all():
            where = np.flatnonzero(~np.isfinite(sums))
            named = f" in column {where[0]}" if len(where) else ""
            raise InputError(f"X has numbers that are not finite, or too large{named}; leave out such rows")
        return np.asarray(first + sums / self.n)

    def project(self, rhs: FloatArray) -> FloatArray:
        """X'y."""
        if len(rhs) != self.n:
            raise InputError(f"expected targets of shape ({self.n:,}, t), a row for each of X; got {rhs.shape}")
        projected, self._squares = self._sum("pproject", row_project_task, (), rhs)
        if not np.isfinite(self._squares).all():
            raise InputError(
                f"column {np.flatnonzero(~np.isfinite(self._squares))[0]} of X is not finite, or overflows; leave out "
                "rows that are not numbers, or scale the column down"
            )
        return np.asarray(projected)

    def sums_by_group(self, rhs: FloatArray, group_of: IndexArray, groups: int) -> FloatArray:
        """Z'Z of Z = [1, X, y] for each group of rows, in one pass: (groups, 1 + D + t, 1 + D + t).

        Parameters
        ----------
        rhs : (n, t) float64
            y.
        group_of : (n,) int
            Which group a row is of, from 0.

        Raises
        ------
        InputError
            X or y is not finite, or overflows.
        """
        (sums,) = self._sum("psums", row_sums_task, (groups,), np.column_stack([rhs, group_of]))
        squares = np.einsum("gii->i", sums)
        if not np.isfinite(squares).all():
            place = int(np.flatnonzero(~np.isfinite(squares))[0]) - 1
            culprit = f"column {place} of X" if place < self.size else "a target"
            raise InputError(
                f"{culprit} is not finite, or overflows; leave out rows that are not numbers, or scale it down"
            )
        return np.asarray(sums)

    def square(self, rhs: FloatArray) -> FloatArray | None:
        """|y|^2."""
        return np.asarray(np.einsum("it,it->t", rhs, rhs))

    def diagonal(self) -> FloatArray:
        """Squared lengths of X's columns; known once there was a projection."""
        if self._squares is None:
            self.project(np.zeros((self.n, 1)))
        assert self._squares is not None
        return self._squares

    def columns(self, which: IndexArray) -> FloatArray:
        """X'X_S: one pass."""
        (columns,) = self._sum("pcolumns", row_columns_task, (which,))
        return np.asarray(columns)

    def candidates(
        self, rhs: FloatArray, which: IndexArray, path: IndexArray, weights: FloatArray
    ) -> CandidateProducts:
        """One pass, which multiplies candidates and path alone."""
        gradient, between, inner, _ = self._sum("pcandidates", row_candidates_task, (which, path, weights), rhs)
        return CandidateProducts(gradient, between, inner)

    def misfit(self, rhs: FloatArray, path: IndexArray, weights: FloatArray) -> float | None:
        """|y - X_S w|^2: one pass."""
        nobody = np.empty(0, dtype=np.intp)
        *_, misfit = self._sum("pcandidates", row_candidates_task, (nobody, path, weights), rhs)
        return float(misfit.sum())

    def close(self) -> None:
        """Forget the rows that this process keeps; other workers' caches give way to what is used."""
        worker_cache().discard_run(self._view.run_id)

    def _sum(
        self,
        name: str,
        task: Callable[..., list[RunSums]],
        arguments: tuple[Any, ...],
        rhs: FloatArray | None = None,
    ) -> tuple[FloatArray, ...]:
        view, rows = self._view, self._view.block_rows
        runs = [
            RowRun(blocks, None if rhs is None else rhs[blocks[0] * rows : (blocks[-1] + 1) * rows])
            for blocks in split_evenly(range(view.n_blocks), unit_count(self.n))
        ]
        self.passes += 1
        tasks = RoundTasks(task, (view, *arguments), group_units(runs, self._executor)[0], None, name)
        with single_threaded_blas():
            sums: tuple[FloatArray, ...] = exact_sums(self._executor, tasks, self._told, DATA_DEPTH).sums
        return sums
