"""Grams of kernel columns by fold, of several kernels in one pass; and a stable triangle of a few of the columns.

A fold's Gram is symmetric, and travels as the lower triangle, row by row: (i, j) stands at i (i + 1) / 2 + j.
A task works on the samples of one fold; a sum is a square in memory only while a unit is worked on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.kernels import Features, Kernel, TileEvaluator
from dkgp.kernels.compiler import cached_njit
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import blas, leading_dimension
from dkgp.operators.block_tasks import BlockContext, centre_of
from dkgp.operators.blocked import BlockedKernelOperator
from dkgp.operators.cross.kernel import summed_units
from dkgp.operators.cross.tasks import WAITING_SUMS, Run, columns_between, piece_rows, runs_of, scratch
from dkgp.operators.exact_sums import MOST_UNITS, RunSums

# Samples of a fold in a unit, about: its triangle takes as long to add as the products of some 50 samples.
FOLD_SAMPLES = 8192


def triangle_numbers(m: int) -> int:
    """Numbers of a lower triangle with its diagonal."""
    return m * (m + 1) // 2


@needs_one_arithmetic
def fold_gram_task(
    context: BlockContext, prototypes: FloatArray, kernels: tuple[Kernel, ...], units: list[tuple[int, Run]]
) -> list[RunSums]:
    """K_v' D K_v as triangles (q, m (m + 1) / 2) and K_v' D V_v (q, m, t), named (v, 0) and (v, 1), for q kernels.

    A unit is a fold v, and a run of its samples; the run's rows are V, `right` (rows, t), and perhaps D, `weights`.
    """
    return [_fold_grams(context, prototypes, kernels, fold, run) for fold, run in units]


def _fold_grams(
    context: BlockContext, prototypes: FloatArray, kernels: tuple[Kernel, ...], fold: int, run: Run
) -> RunSums:
    m, right, weights = len(prototypes), run.rows["right"], run.rows.get("weights")
    grams = np.zeros((len(kernels), triangle_numbers(m)))
    projected = np.zeros((len(kernels), m, right.shape[1]))
    assert run.selected is not None
    starts = [context.bounds(block) for block in run.blocks]
    inputs = np.concatenate(
        [
            context.block_rows_cached(block).values[
                run.selected[slice(*np.searchsorted(run.selected, bounds))] - bounds[0]
            ]
            for block, bounds in zip(run.blocks, starts, strict=True)
        ]
    )
    for number, kernel in enumerate(kernels if len(inputs) else ()):
        evaluator = TileEvaluator(kernel, "double", centre=centre_of(context.source))
        basis, features = evaluator.prepare(prototypes), evaluator.prepare(inputs)
        _add_fold(evaluator, basis, features, right, weights, grams[number], projected[number])
    return RunSums({(fold, 0): grams[None], (fold, 1): projected})  # a triangle is a line


def fold_sums(
    operator: BlockedKernelOperator,
    prototypes: FloatArray,
    kernels: Sequence[Kernel],
    folds: tuple[IndexArray, int],
    vectors: tuple[FloatArray, FloatArray | None],
    phase: str,
) -> tuple[FloatArray, FloatArray]:
    """Return K_v' D K_v as triangles (q, folds, m (m + 1) / 2) and K_v' D V_v (q, folds, m, t), for q kernels.

    `folds` are each sample's fold from 0 (n,), and their number; `vectors` are V (n, t), and perhaps D (n,). Tasks are
    of one fold: their sums are small, and few.
    """
    fold_of, count = folds
    runs = max(1, min(MOST_UNITS, operator.n // (FOLD_SAMPLES * count)))
    units = []
    for fold in range(count):
        members = np.flatnonzero(fold_of == fold).astype(np.intp)
        right, weights = (None if values is None else values[members] for values in vectors)
        rows = {"right": right, "weights": weights}
        units += [(fold, run) for run in runs_of(operator.context, rows, members, runs)]
    arguments = (operator.context, prototypes, tuple(kernels))
    sums = summed_units(operator, "kfolds", phase, fold_gram_task, arguments, units).sums
    return np.stack([grams[0] for grams in sums[0::2]], axis=1), np.stack(sums[1::2], axis=1)


def _add_fold(
    evaluator: TileEvaluator,
    basis: Features,
    rows: Features,
    right: FloatArray,
    weights: FloatArray | None,
    gram: FloatArray,
    projected: FloatArray,
) -> None:
    m, longest, scale = basis.n, piece_rows(basis.n), None if weights is None else np.sqrt(weights)
    square = scratch("fold gram", m, m, np.dtype(np.float64))
    for first in range(0, rows.n, longest):
        last = min(first + longest, rows.n)
        columns = columns_between(evaluator, basis, rows.slice(first, last), "fold columns").T
        targets = right[first:last]
        if scale is not None:
            columns *= scale[first:last]
            targets = scale[first:last, None] * targets
        projected += columns @ targets
        # The upper triangle of BLAS, column by column, is the lower one here, row by row.
        stride = leading_dimension(columns)
        blas("syrk", b"U", b"N", m, last - first, 1.0, columns, stride, float(first > 0), square, m)
    _add_triangle(gram, square)


@cached_njit(nogil=True)
def _add_triangle(packed: FloatArray, square: FloatArray) -> None:
    """Add a square's lower triangle."""
    place = 0
    for i in range(square.shape[0]):
        for j in range(i + 1):
            packed[place + j] += square[i, j]
        place += i + 1


@cached_njit(nogil=True)
def _unpack(packed: FloatArray, square: FloatArray) -> None:
    place = 0
    for i in range(square.shape[0]):
        for j in range(i + 1):
            square[i, j] = packed[place + j]
            square[j, i] = packed[place + j]
        place += i + 1


@cached_njit(nogil=True)
def take_off(packed: FloatArray, square: FloatArray) -> None:
    """Subtract a triangle's symmetric matrix from a square in place."""
    place = 0
    for i in range(square.shape[0]):
        for j in range(i):
            square[i, j] -= packed[place + j]
            square[j, i] -= packed[place + j]
        square[i, i] -= packed[place + i]
        place += i + 1


def unpacked(packed: FloatArray, m: int) -> FloatArray:
    """The symmetric matrix (m, m) of a triangle."""
    square = np.empty((m, m))
    _unpack(packed, square)
    return square


def fold_columns_task(
    context: BlockContext,
    prototypes: tuple[FloatArray, ...],
    weights: tuple[FloatArray, ...],
    folds: IndexArray,
    blocks: list[int],
) -> list[FloatArray]:
    """Each sample's image under its own fold's model, K(x, Z_v) W_v: (b, t) for each block."""
    evaluator, results = context.evaluator("double"), []
    bases = [evaluator.prepare(inputs) for inputs in prototypes]
    for block in blocks:
        start, stop = context.bounds(block)
        fold, features = folds[start:stop], context.block_features(block, "double")
        image = np.zeros((stop - start, weights[0].shape[1]))
        for v, (basis, weight) in enumerate(zip(bases, weights, strict=True)):
            members = np.flatnonzero(fold == v)
            if len(members) and basis.n:
                image[members] = evaluator.matmat(features.take(members), basis, weight)
        results.append(image)
    return results


def fold_errors_task(
    context: BlockContext,
    kernels: tuple[Kernel, ...],
    models: tuple[tuple[tuple[FloatArray, FloatArray, FloatArray], ...], ...],
    folds: IndexArray,
    codes: IndexArray,
    classes: int,
    blocks: list[int],
) -> list[IndexArray]:
    """Samples of each class that the models of several kernels take for another one, (q, C), of all blocks together.

    `models` has of each kernel and fold v the prototypes, the weights (m, t) and the intercept (t,) that were fitted
    without it; `codes` (n,) are the classes.
    """
    wrong = np.zeros((len(kernels), classes), dtype=np.intp)
    evaluators = [TileEvaluator(kernel, "double", centre=centre_of(context.source)) for kernel in kernels]
    bases = [
        [evaluator.prepare(model[0]) for model in of_folds]
        for evaluator, of_folds in zip(evaluators, models, strict=True)
    ]
    for block in blocks:
        start, stop = context.bounds(block)
        fold, labels, inputs = folds[start:stop], codes[start:stop], context.block_rows_cached(block).values
        for number, evaluator in enumerate(evaluators):
            features = evaluator.prepare(inputs)
            for v, (_, weights, intercept) in enumerate(models[number]):
                members = np.flatnonzero(fold == v)
                if not len(members):
                    continue
                image = np.tile(intercept, (len(members), 1))
                if bases[number][v].n:
                    image += evaluator.matmat(features.take(members), bases[number][v], weights)
                decided = image.argmax(axis=1) if image.shape[1] > 1 else (image[:, 0] >= 0.0).astype(np.intp)
                missed = labels[members][decided != labels[members]]
                wrong[number] += np.bincount(missed, minlength=classes)
    return [wrong]


@needs_one_arithmetic
def triangle_task(
    context: BlockContext, prototypes: FloatArray, intercept: bool, runs: list[Run]
) -> list[NDArray[np.float64]]:
    """R of Q R = sqrt(D) [K_nm, 1, V] for each run: (c, c) at most, upper.

    A run's rows are V, `right` (rows, t), and perhaps D, `weights` (rows,). Without `intercept` there is no 1.
    """
    evaluator = context.evaluator("double")
    basis, m, results = evaluator.prepare(prototypes), len(prototypes), []
    for run in runs:
        right, triangle = run.rows["right"], None
        width = m + intercept + right.shape[1]
        for rows, where in run.pieces(context, "double", max(piece_rows(width), 2 * width)):
            held = 0 if triangle is None else len(triangle)
            stacked = np.empty((held + rows.n, width))
            if triangle is not None:
                stacked[:held] = triangle
            stacked[held:, :m] = columns_between(evaluator, basis, rows, "triangle")
            stacked[held:, m : m + intercept] = 1.0
            stacked[held:, m + intercept :] = right[where]
            if "weights" in run.rows:
                stacked[held:] *= np.sqrt(run.rows["weights"][where])[:, None]
            triangle = np.asarray(np.linalg.qr(stacked, mode="r"))
        assert triangle is not None
        results.append(triangle)
    return results


def merge_triangles(upper: NDArray[np.float64], lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R of two triangles, one above the other."""
    return np.asarray(np.linalg.qr(np.concatenate([upper, lower]), mode="r"))


def fold_bytes(n: int, d: int, m: int, t: int, folds: int, kernels: int, width: int) -> tuple[int, int, int]:
    """Bytes of fold Grams: of each thread of a worker, of its process besides, and of the coordinator."""
    sums = 8 * kernels * folds * (triangle_numbers(m) + m * (t + 1))
    features = 8 * min(n, 2 * FOLD_SAMPLES) * (3 * width + d + 3)
    # Digits of tasks of one fold; and sums of all folds as they are put together.
    thread = 2 * sums + 8 * m * m + 8 * (m + 16) * piece_rows(m) + features + 8 * m * (width + 1)
    return thread, WAITING_SUMS * sums, 2 * sums + 8 * n * (t + 4)
