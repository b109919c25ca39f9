"""Systems A w = b that a pursuit takes columns of: A as an array, X'X of rows, and the system of a kernel.

`RowSystem`: A = X'X and b = X'y of rows that are read block by block. Every product is a pass, and A is never formed.
Sums over the rows are added up on the workers as digits: the same bits for any number of workers
(`dkgp.operators.exact_sums`). A pass brings the columns X'X_S of the path, or, for random draws C, no more than X_C'r,
X_S'X_C and X_C'X_C with r = y - X_S w.

`KernelSystem`: the system (29) of a kernel, a pool of prototypes and an intercept, by blocks of samples,

    [ K_mn D K_nm + K_mm   K_mn D 1 ] (beta)   (K_mn D y)
    [ 1'D K_nm             1'D 1 + nu ] (b0)   = (1'D y  )

with D the inverse of the noise (s2 = 1 / gamma_K), so that it is (29) over s2. No kernel entry is kept: a pass
evaluates those of the pool, n m of them, for SCDP, and those of candidates and path for SCDPP.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import psutil
from numpy.typing import ArrayLike

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, RoundTasks, split_evenly
from dkgp.cluster.executors.sums import Progress
from dkgp.cluster.threads import single_threaded_blas
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import ArrayInputs, CachedRows, InputSource
from dkgp.operators.cross.candidates import GrowingBasis
from dkgp.operators.cross.kernel import CrossKernel
from dkgp.operators.exact_sums import DATA_DEPTH, RunSums, exact_sums, group_units, unit_count


@dataclass(frozen=True)
class CandidateProducts:
    """Products of q candidates C with a path S and its weights w.

    - `gradient` (q, t): b_C - A_CS w.
    - `between` (k, q): A_SC.
    - `inner` (q, q): A_CC.
    """

    gradient: FloatArray
    between: FloatArray
    inner: FloatArray


class PursuitSystem(Protocol):
    """A symmetric positive semidefinite matrix A (D, D) that need not exist, and b = `project(rhs)`."""

    @property
    def size(self) -> int:
        """Regressors, D."""

    def project(self, rhs: FloatArray) -> FloatArray:
        """Return b (D, t): from b itself, or from targets y (n, t)."""

    def square(self, rhs: FloatArray) -> FloatArray | None:
        """|y|^2 (t,), where b is a projection of targets."""

    def diagonal(self) -> FloatArray:
        """A's diagonal: (D,)."""

    def columns(self, which: IndexArray) -> FloatArray:
        """A's columns: (D, c)."""

    def candidates(
        self, rhs: FloatArray, which: IndexArray, path: IndexArray, weights: FloatArray
    ) -> CandidateProducts:
        """Products of candidates (q,) with each other, a path (k,), and its residual."""

    def misfit(self, rhs: FloatArray, path: IndexArray, weights: FloatArray) -> float | None:
        """Squared residual of weights (k, t), from residuals; None where only differences are to be had."""


class GramSystem:
    """A as it is given.

    Parameters
    ----------
    matrix : (D, D) array_like
        A, symmetric; it is neither copied nor written to where it is float64.
    square : float or (t,) array_like, optional
        |y|^2, where b = X'y: residuals are known then.
    memory_bytes : int, optional
        Memory limit of A; by default the free memory. A larger A is refused.

    Raises
    ------
    InputError
        Not a square, symmetric and finite matrix, negative numbers on the diagonal, or others of more than the
        geometric mean of theirs.
    MemoryBudgetError
        A takes more than it may.
    """

    def __init__(
        self, matrix: ArrayLike, square: float | ArrayLike | None = None, memory_bytes: int | None = None
    ) -> None:
        shape = np.shape(matrix)
        if len(shape) != 2 or shape[0] != shape[1] or not shape[0]:
            raise InputError(f"expected a system of shape (D, D) with D >= 1; got {shape}")
        if not (isinstance(matrix, np.ndarray) and matrix.dtype == np.float64):
            _require_memory(8 * shape[0] ** 2, memory_bytes, f"a system of {shape[0]:,} x {shape[0]:,} numbers")
        self._matrix = np.asarray(matrix, dtype=np.float64)
        self.size = int(shape[0])
        self._square = None if square is None else np.atleast_1d(np.asarray(square, dtype=np.float64))
        diagonal = np.diagonal(self._matrix)
        if not np.isfinite(diagonal).all() or (diagonal < 0.0).any():
            wrong = int(np.flatnonzero(~(diagonal >= 0.0) | ~np.isfinite(diagonal))[0])
            raise InputError(
                f"a system's diagonal is finite and not negative; got {diagonal[wrong]} in row {wrong}. Leave out rows "
                "that are not numbers"
            )
        # By strips: no second matrix is made for the sake of a check.
        for start in range(0, self.size, 256):
            strip = self._matrix[start : start + 256]
            other = self._matrix[:, start : start + 256].T
            if not np.isfinite(strip).all():
                row, column = np.argwhere(~np.isfinite(strip))[0]
                raise InputError(f"a system is finite; got {strip[row, column]} in row {start + row}, column {column}")
            limit = 1e-300 + np.sqrt(np.outer(diagonal[start : start + 256], diagonal))
            far = np.abs(strip - other) > 1e-8 * limit
            if far.any():
                row, column = np.argwhere(far)[0]
                raise InputError(
                    f"a system is symmetric; got {strip[row, column]} in row {start + row}, column {column}, and "
                    f"{other[row, column]} across the diagonal"
                )
            # Float32's rounding of twins' products is let through.
            large = np.abs(strip) > (1.0 + 1e-5) * limit
            if large.any():
                row, column = np.argwhere(large)[0]
                raise InputError(
                    f"a system is positive semidefinite; got {strip[row, column]} in row {start + row}, column "
                    f"{column}, and {diagonal[start + row]} and {diagonal[column]} on the diagonal"
                )

    def project(self, rhs: FloatArray) -> FloatArray:
        """b as it is."""
        if len(rhs) != self.size:
            raise InputError(f"expected right-hand sides of shape ({self.size:,}, t); got {rhs.shape}")
        return rhs

    def square(self, rhs: FloatArray) -> FloatArray | None:
        """As it was given."""
        if self._square is not None and self._square.shape != (rhs.shape[1],):
            raise InputError(f"expected `square` of shape ({rhs.shape[1]},); got {self._square.shape}")
        return self._square

    def diagonal(self) -> FloatArray:
        """A's diagonal."""
        return np.diagonal(self._matrix).copy()

    def columns(self, which: IndexArray) -> FloatArray:
        """A's columns, by its rows, which lie together: (D, c)."""
        return np.asarray(self._matrix[which].T)

    def candidates(
        self, rhs: FloatArray, which: IndexArray, path: IndexArray, weights: FloatArray
    ) -> CandidateProducts:
        """See `PursuitSystem`."""
        between = self._matrix[np.ix_(which, path)].T
        return CandidateProducts(rhs[which] - between.T @ weights, between, self._matrix[np.ix_(which, which)])

    def misfit(self, rhs: FloatArray, path: IndexArray, weights: FloatArray) -> float | None:
        """None: there is no residual without targets."""
        return None


def as_system(system: PursuitSystem | ArrayLike, memory_bytes: int | None = None) -> PursuitSystem:
    """A system as it is, or of an array."""
    if hasattr(system, "columns") and hasattr(system, "project"):
        return system  # type: ignore[return-value]
    return GramSystem(system, memory_bytes=memory_bytes)


def right_hand_sides(values: ArrayLike) -> FloatArray:
    """Right-hand sides (r, t), of (r,) or (r, t); `InputError` where they are not finite."""
    rhs = np.asarray(values, dtype=np.float64)
    rhs = rhs[:, None] if rhs.ndim == 1 else rhs
    if rhs.ndim != 2 or 0 in rhs.shape:
        raise InputError(f"expected right-hand sides of shape (r,) or (r, t); got {np.shape(values)}")
    if not np.isfinite(rhs).all():
        row, column = np.argwhere(~np.isfinite(rhs))[0]
        raise InputError(f"right-hand sides must be finite; got {rhs[row, column]} in row {row}, column {column}")
    return rhs


def columns_that_fit(size: int, most: int, memory_bytes: int | None, asked: bool) -> int:
    """Columns of length `size` that a path may keep: `most`, or fewer where nobody asked for so many.

    Raises `MemoryBudgetError`: they take more than they may.
    """
    budget = memory_bytes if memory_bytes is not None else psutil.virtual_memory().available // 2
    fit = int(budget // (8 * (size + most)))
    if fit >= most:
        return most
    if asked or fit < 1:
        _require_memory(8 * most * (size + most), int(budget), f"{most:,} columns of {size:,} numbers, and a factor,")
    return fit


def _require_memory(bytes_needed: int, memory_bytes: int | None, what: str) -> None:
    budget = int(psutil.virtual_memory().available if memory_bytes is None else memory_bytes)
    if bytes_needed > budget:
        raise MemoryBudgetError(
            f"{what} take {bytes_needed / 2**20:,.0f} MiB, more than the {budget / 2**20:,.0f} MiB that they may; "
            "give X by its rows, which are never held together, ask for a shorter path, or draw random "
            "`candidates`, which keep no columns"
        )


# Numbers of a block: 16 MiB; a task holds one at a time, or finds it in its worker's cache.
BLOCK_NUMBERS, FEWEST_ROWS, MOST_ROWS = 2**21, 16, 8192
LEAST_BLOCKS = 8


@dataclass(frozen=True)
class RowView:
    """X as tasks see it: rows of a source, shifted and scaled by column; small on the wire.

    - `run_id`: of the blocks that workers keep.
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
        return worker_cache().get((self.run_id, number, "regressors"), lambda: CachedRows(self.read(number))).values

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
    """Z'Z of the rows Z = [1, X, y] of each group, whose number is the last column of the targets."""
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
        Called within a pass with the numbers of finished and of all tasks; an exception ends the pass.

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
        """Bytes of the rows that a task reads at a time."""
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
        """Forget the rows that this process keeps; other workers' caches evict them when needed."""
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


# nu of Theorem 2, which makes (29) positive definite: of 1'D 1.
INTERCEPT_SHARE = 1e-8


class KernelSystem:
    """A fixed-size kernel model's normal equations.

    Parameters
    ----------
    cross : CrossKernel
        Of the samples and the pool; its operator's noise is D's inverse.
    intercept : bool, default True
        Whether there is one: the regressor after the pool's, number m.

    Attributes
    ----------
    size : int
        Regressors: m, and the intercept.
    """

    def __init__(self, cross: CrossKernel, intercept: bool = True) -> None:
        self._cross = cross
        self._pool, self._intercept = cross.m, intercept
        self.size = cross.m + intercept
        noise = cross.operator.noise
        # D of all samples, or by sample.
        self._by_sample = None if isinstance(noise, float) else np.asarray(noise)
        self._scale = 1.0 / noise if isinstance(noise, float) else 1.0
        self._basis = GrowingBasis(cross.operator, self._by_sample)
        self._ones: FloatArray | None = None  # K_mn D 1

    @property
    def _total(self) -> float:
        """1'D 1."""
        return self._cross.n * self._scale if self._by_sample is None else float(np.sum(1.0 / self._by_sample))

    def _weighted(self, rhs: FloatArray) -> FloatArray:
        return self._scale * rhs if self._by_sample is None else rhs / self._by_sample[:, None]

    def project(self, rhs: FloatArray) -> FloatArray:
        """K_mn D y, and 1'D y: one pass, which brings K_mn D 1 as well."""
        if len(rhs) != self._cross.n:
            raise InputError(f"expected targets of shape ({self._cross.n:,}, t); got {rhs.shape}")
        t, weighted = rhs.shape[1], self._weighted(np.column_stack([rhs, np.ones(len(rhs))]))
        projected = self._cross.project(weighted)
        self._ones = projected[:, t]
        if not self._intercept:
            return projected[:, :t]
        return np.vstack([projected[:, :t], weighted[:, :t].sum(axis=0)])

    def square(self, rhs: FloatArray) -> FloatArray | None:
        """y'D y: a path subtracts its part, and leaves the weighted residual and the penalty."""
        return np.asarray(np.einsum("it,it->t", rhs, self._weighted(rhs)))

    def _intercept_products(self) -> FloatArray:
        if self._ones is None:
            self.project(np.zeros((self._cross.n, 1)))
        assert self._ones is not None
        return self._ones

    def diagonal(self) -> FloatArray:
        """A's diagonal: a pass of sums of squares."""
        prior = np.asarray(self._cross.operator.kernel.diagonal(self._cross.prototypes), dtype=np.float64)
        sums = self._basis.sums(self._cross.prototypes, np.zeros((self._cross.n, 1)))
        diagonal = self._scale * sums.squares + prior
        return np.append(diagonal, self._total * (1.0 + INTERCEPT_SHARE)) if self._intercept else diagonal

    def columns(self, which: IndexArray) -> FloatArray:
        """A's columns: one pass over the pool's entries, none for the intercept's."""
        inner, columns = which < self._pool, np.empty((self.size, len(which)))
        prototypes = which[inner]
        if len(prototypes):
            unit_vectors = np.zeros((self._pool, len(prototypes)))
            unit_vectors[prototypes, np.arange(len(prototypes))] = 1.0
            products = self._scale * self._cross.normal(unit_vectors, self._by_sample) + self._cross.inner(unit_vectors)
            columns[: self._pool, inner] = products
        if self._intercept:
            ones = self._intercept_products()
            columns[self._pool, inner] = ones[prototypes]
            columns[: self._pool, ~inner] = ones[:, None]
            columns[self._pool, ~inner] = self._total * (1.0 + INTERCEPT_SHARE)
        return columns

    def candidates(
        self, rhs: FloatArray, which: IndexArray, path: IndexArray, weights: FloatArray
    ) -> CandidateProducts:
        """One pass over the entries of candidates, and of the path as far as workers do not keep them."""
        Z, k, t = self._cross.prototypes, len(path), rhs.shape[1]
        ones = self._intercept_products()
        is_basis, is_candidate = path < self._pool, which < self._pool
        residual = rhs if is_basis.all() else rhs - weights[~is_basis]
        basis, new = Z[path[is_basis]], Z[which[is_candidate]]
        gradient, between, inner = np.empty((len(which), t)), np.empty((k, len(which))), np.empty((len(which),) * 2)
        beta = weights[is_basis]
        if len(new):
            sums = self._basis.sums(new, residual, basis, beta, between=True, inner=True)
            assert sums.between is not None
            assert sums.inner is not None
            double = self._cross.operator.double
            basis_features, features = double.prepare(basis) if len(basis) else None, double.prepare(new)
            prior = np.zeros((0, len(new))) if basis_features is None else double.tile(basis_features, features)
            gradient[is_candidate] = self._scale * sums.projected - prior.T @ beta
            between[np.ix_(is_basis, is_candidate)] = self._scale * sums.between + prior
            inner[np.ix_(is_candidate, is_candidate)] = self._scale * sums.inner + double.tile(features, features)
        if not is_candidate.all():
            # Its gradient by sums that are known: 1'D y - 1'D K_nS beta - nu b0.
            total = self._weighted(rhs).sum(axis=0)
            of_basis = ones[path[is_basis]] @ beta
            nu = self._total * (1.0 + INTERCEPT_SHARE)
            gradient[~is_candidate] = total - of_basis - nu * weights[~is_basis].sum(axis=0)
            between[np.ix_(is_basis, ~is_candidate)] = ones[path[is_basis], None]
            between[np.ix_(~is_basis, ~is_candidate)] = nu
            inner[np.ix_(is_candidate, ~is_candidate)] = ones[which[is_candidate], None]
            inner[np.ix_(~is_candidate, is_candidate)] = ones[None, which[is_candidate]]
            inner[np.ix_(~is_candidate, ~is_candidate)] = nu
        between[np.ix_(~is_basis, is_candidate)] = ones[None, which[is_candidate]]
        return CandidateProducts(gradient, between, inner)

    def misfit(self, rhs: FloatArray, path: IndexArray, weights: FloatArray) -> float | None:
        """(y - f)'D(y - f) + beta'K beta + nu b0^2, from residuals: one pass over the path's entries."""
        inner = path < self._pool
        intercept = weights[~inner].sum(axis=0)
        nu = INTERCEPT_SHARE * self._total * float(np.sum(intercept**2))
        residual = rhs - intercept
        if not inner.any():
            return float(np.sum(residual * self._weighted(residual))) + nu
        beta = np.ascontiguousarray(weights[inner])
        cross = CrossKernel(self._cross.operator, self._cross.prototypes[path[inner]])
        squares = cross.residual(beta, residual, self._by_sample).squares
        return float(self._scale * squares.sum() + np.sum(beta * cross.inner(beta))) + nu

    def close(self) -> None:
        """Have workers forget the path's columns."""
        self._basis.close()
