"""Grams of kernel columns by fold, of several kernels in one pass; and a stable triangle of a few of the columns.

A fold's Gram is symmetric, and travels as the lower triangle, row by row: (i, j) stands at i (i + 1) / 2 + j.
The rows of a block are grouped by fold, so that BLAS adds up each fold's product at once; a sum is a square in memory
only while its block is worked on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.kernels import Features, Kernel, TileEvaluator
from dkgp.kernels.tiles.code_cache import cached_njit
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.blas import blas, leading_dimension
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cross.columns import columns_between, scratch
from dkgp.operators.cross.runs import MOST_RUNS, Run, RunSums, piece_rows
from dkgp.operators.inputs import centre_of


def triangle_numbers(m: int) -> int:
    """Numbers of a lower triangle with its diagonal."""
    return m * (m + 1) // 2


@needs_one_arithmetic
def fold_gram_task(
    context: BlockContext, prototypes: FloatArray, kernels: tuple[Kernel, ...], folds: int, runs: list[Run]
) -> list[RunSums]:
    """K_v' D K_v as triangles (q, folds, m (m + 1) / 2) and K_v' D V_v (q, folds, m, t), for q kernels and each fold v.

    A run's rows are V, `right` (rows, t), `folds` (rows,), each sample's fold from 0, and perhaps D, `weights` (rows,).
    """
    return [_fold_grams(context, prototypes, kernels, folds, run) for run in runs]


def _fold_grams(
    context: BlockContext, prototypes: FloatArray, kernels: tuple[Kernel, ...], folds: int, run: Run
) -> RunSums:
    m, right = len(prototypes), run.rows["right"]
    grams = np.zeros((len(kernels), folds, triangle_numbers(m)))
    projected = np.zeros((len(kernels), folds, m, right.shape[1]))
    done = 0
    for block in run.blocks:
        start, stop = context.bounds(block)
        where = slice(done, done + stop - start)
        done += stop - start
        inputs = context.block_rows_cached(block).values
        fold = run.rows["folds"][where].astype(np.intp)
        targets, weights = right[where], run.rows["weights"][where] if "weights" in run.rows else None
        for number, kernel in enumerate(kernels):
            evaluator = TileEvaluator(kernel, "double", centre=centre_of(context.source))
            features, basis = evaluator.prepare(inputs), evaluator.prepare(prototypes)
            for v in range(folds):
                members = np.flatnonzero(fold == v)
                if len(members):
                    _add_fold(
                        evaluator, basis, features.take(members), targets[members],
                        None if weights is None else weights[members], grams[number, v], projected[number, v],
                    )  # fmt: skip
    return RunSums((grams, projected))


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


def merged_triangles(upper: NDArray[np.float64], lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """R of two triangles, one above the other."""
    return np.asarray(np.linalg.qr(np.concatenate([upper, lower]), mode="r"))


def fold_bytes(n: int, d: int, m: int, t: int, folds: int, kernels: int, width: int) -> tuple[int, int, int]:
    """Bytes of fold Grams: of each thread of a worker, of its process besides, and of the coordinator."""
    sums = 8 * kernels * folds * (triangle_numbers(m) + m * (t + 1))
    levels = max(1, (MOST_RUNS - 1).bit_length())
    block = min(n, max(256, min(8192 + 64, -(-n // 8))))
    features = 8 * block * (3 * width + d + 3)
    thread = 2 * sums + 8 * m * m + 8 * (m + 16) * piece_rows(m) + features + 8 * m * (width + 1)
    return thread, levels * sums, 2 * sums + 8 * n * (t + 4)
