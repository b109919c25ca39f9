"""The compiled loops over one cache-sized tile: pack its inputs, call a kernel's stages, multiply with the weights.

They take plain arrays and numbers, which Numba compiles best.

A tile holds `TILE_COLUMNS` kernel columns by up to `tile_rows` rows and never leaves the core's cache. A kernel comes
as a table of stages (`dkgp.kernels.tiles.encoding`), functions that are called by their address one after the other on
a small stack of tiles; its last tile is the kernel. Measured against a single fused loop this costs a few
percent and buys that kernels add and multiply freely, and that users' functions need no loops of their own.

Rows are the vector dimension and each row's value is a chain of fused multiply-adds over the columns in the order
given. Row counts are padded to whole panels (`LANES`). The bits of an entry, and of a row's product, so depend on its
rows, the kernel and the precision alone: not on the rows it shares a tile with, the vectors' width or the processor.
The distributed engine's bit-reproducibility rests on this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.kernels.compiler import cached_njit, intrinsic, ir, njit, types
from dkgp.kernels.tiles.blocks import LANES, TILE_COLUMNS, multiply_one, multiply_two, stream_one, stream_two
from dkgp.kernels.tiles.stages import PARAMETERS
from dkgp.kernels.vector_math import FAST_MATH, fma, prefer_full_vectors

FLUSH_COLUMNS = 128
# Where the entries of `tile_pair` come from.
EVALUATED, KEPT, READ = range(3)

# A kernel's program as the loops read it: one table of int64, since every array that a call takes costs its share
# of a small one. Row 0: number of groups, tiles on the stack. A row for each group: first row of features, inputs, row
# of norms or -1, first packed row, packed rows. A row for each step: address of its stage, tile on the stack, group or
# -1, and its parameters, the bits of float64.
PROGRAM_WIDTH = 3 + PARAMETERS


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def _call(builder: Any, address: Any, arguments: list[Any]) -> None:
    function = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(builder.inttoptr(address, function.as_pointer()), arguments)


@intrinsic
def call_distance_stage(  # type: ignore[no-untyped-def]
    typing_context, address, stack, tile_at, stride, width, count, rows, rows_at, d, columns, columns_at
):
    """Call a distance stage on parts of the arrays, each given by an offset."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, stack, tile_at, stride, width, count, rows, rows_at, d, columns, columns_at = arguments
        _, stack_type, _, _, _, _, rows_type, _, _, columns_type, _ = signature.args
        tile = _pointer(context, builder, stack_type, stack, tile_at)
        packed_rows = _pointer(context, builder, rows_type, rows, rows_at)
        packed_columns = _pointer(context, builder, columns_type, columns, columns_at)
        _call(builder, function, [tile, stride, width, count, packed_rows, d, packed_columns])
        return context.get_dummy_value()

    size = types.intp
    return types.void(size, stack, size, size, size, size, rows, size, size, columns, size), generate


@intrinsic
def call_entry_stage(  # type: ignore[no-untyped-def]
    typing_context, address, stack, tile_at, stride, width, count, program, parameters_at
):
    """Call an entry stage on one tile of the stack."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, stack, tile_at, stride, width, count, program, parameters_at = arguments
        tile = _pointer(context, builder, signature.args[1], stack, tile_at)
        constants = _pointer(context, builder, signature.args[6], program, parameters_at)
        constants = builder.bitcast(constants, ir.DoubleType().as_pointer())
        _call(builder, function, [tile, stride, width, count, constants])
        return context.get_dummy_value()

    size = types.intp
    return types.void(size, stack, size, size, size, size, program, size), generate


@njit(nogil=True, forceinline=True)
def fill_tile(stack, width, count, rows, columns, n_padded, first_column, program):  # type: ignore[no-untyped-def]
    """Leave the kernel's entries of unit amplitude in the stack's first tile: `stack[j, i] = k(a_i, b_j)`."""
    stride = stack.shape[1]
    for step in range(1 + program[0, 0], program.shape[0]):
        address, tile_at, group = program[step, 0], program[step, 1] * TILE_COLUMNS * stride, program[step, 2]
        if group >= 0:
            first, inputs = program[1 + group, 3], program[1 + group, 4]
            columns_at = n_padded * first + first_column * inputs
            call_distance_stage(
                address, stack, tile_at, stride, width, count, rows, first * stride, inputs, columns, columns_at
            )
        else:
            call_entry_stage(address, stack, tile_at, stride, width, count, program, step * PROGRAM_WIDTH + 3)


@njit(nogil=True, forceinline=True)
def padded_columns(n_columns):  # type: ignore[no-untyped-def]
    """The number of columns in whole tiles."""
    return -(-n_columns // TILE_COLUMNS) * TILE_COLUMNS


@njit(nogil=True, forceinline=True)
def packed_inputs(program):  # type: ignore[no-untyped-def]
    """The number of packed rows of all groups."""
    last = program[0, 0]
    return program[last, 3] + program[last, 4] if last > 0 else 0


@njit(nogil=True, forceinline=True)
def pack_columns(B, norms_b, n_columns, program):  # type: ignore[no-untyped-def]
    """Columns of K, each group's next to each other: `b`, or `(2 b, |b|^2)` for the expanded form; zero-padded."""
    padded = padded_columns(n_columns)
    columns = np.zeros(padded * packed_inputs(program), B.dtype)
    for group in range(1, 1 + program[0, 0]):
        first, d, norm, width = program[group, 0], program[group, 1], program[group, 2], program[group, 4]
        base = padded * program[group, 3]
        for f in range(d):
            for j in range(n_columns):
                value = B[first + f, j]
                columns[base + j * width + f] = value + value if norm >= 0 else value
        if norm >= 0:
            for j in range(n_columns):
                columns[base + j * width + d] = norms_b[norm, j]
    return columns


@njit(nogil=True, forceinline=True)
def pack_rows(rows, tile_rows, A, norms_a, start, count, program):  # type: ignore[no-untyped-def]
    """Copy a tile's rows in panels of `LANES`, feature by feature: `a`, or `(a, |a|^2)` for the expanded form."""
    for group in range(1, 1 + program[0, 0]):
        first, d, norm, width = program[group, 0], program[group, 1], program[group, 2], program[group, 4]
        base = program[group, 3] * tile_rows
        for panel in range(0, count, LANES):
            at = base + panel * width
            for f in range(d):
                for lane in range(LANES):
                    rows[at + f * LANES + lane] = A[first + f, start + panel + lane]
            if norm >= 0:
                for lane in range(LANES):
                    rows[at + d * LANES + lane] = norms_a[norm, start + panel + lane]


@njit(fastmath=FAST_MATH, nogil=True, forceinline=True)
def accumulate(totals, target, tile, width, count, weights, first_column):  # type: ignore[no-untyped-def]
    """Product stage: `totals[target] += tile' weights[first_column:, target]`, by four columns, in their order."""
    prefer_full_vectors()
    j = 0
    while j + 4 <= width:
        c = first_column + j
        w0, w1, w2, w3 = weights[c, target], weights[c + 1, target], weights[c + 2, target], weights[c + 3, target]
        for i in range(count):
            total = fma(tile[j + 1, i], w1, fma(tile[j, i], w0, totals[target, i]))
            totals[target, i] = fma(tile[j + 3, i], w3, fma(tile[j + 2, i], w2, total))
        j += 4
    while j < width:
        w0 = weights[first_column + j, target]
        for i in range(count):
            totals[target, i] = fma(tile[j, i], w0, totals[target, i])
        j += 1


@cached_njit(fastmath=FAST_MATH, nogil=True)
def tile_matmat(A, norms_a, B, norms_b, n_columns, weights, out, program, tile_rows):  # type: ignore[no-untyped-def]
    """`out[t, i] = sum_j k(a_i, b_j) weights[j, t]` for all padded rows i of A and the first `n_columns` rows of B.

    Sums run in the tile's precision over `FLUSH_COLUMNS` columns and are then added to the float64 result, so the
    rounding error does not grow with the number of columns.
    """
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
        for t in range(targets):
            out[t, start : start + count] = 0.0
        for first in range(0, n_columns, FLUSH_COLUMNS):
            last = min(first + FLUSH_COLUMNS, n_columns)
            totals[:, :] = 0.0
            for column in range(first, last, TILE_COLUMNS):
                width = min(TILE_COLUMNS, last - column)
                fill_tile(stack, width, count, rows, columns, n_padded, column, program)
                for t in range(targets):
                    accumulate(totals, t, stack, width, count, weights, column)
            for t in range(targets):
                for i in range(count):
                    out[t, start + i] += totals[t, i]


@cached_njit(fastmath=FAST_MATH, nogil=True)
def tile_matmat_few(A, norms_a, n_rows, B, norms_b, n_columns, weights, out, program):  # type: ignore[no-untyped-def]
    """`tile_matmat` for the first `n_rows` of A, up to `TILE_COLUMNS`, to the same bits, without the padding's work.

    Tiles have the columns of K as their rows: an entry is a chain over the features on either side, and a
    row's sum goes over its columns in the same order. Chains of `FLUSH_COLUMNS` columns, which are apart until they are
    added up, are taken four at a time: each alone would wait for itself.
    """
    prefer_full_vectors()
    length = 4 * FLUSH_COLUMNS
    padded, targets = B.shape[1], weights.shape[1]
    n_padded = padded_columns(n_rows)
    stack = np.empty((program[0, 1] * TILE_COLUMNS, length), A.dtype)
    rows = np.empty(packed_inputs(program) * length, A.dtype)
    columns = pack_columns(A, norms_a, n_rows, program)
    zero = stack.dtype.type(0.0)
    out[:, :] = 0.0
    for start in range(0, n_columns, length):
        count, last = min(length, padded - start), min(length, n_columns - start)
        pack_rows(rows, length, B, norms_b, start, count, program)
        fill_tile(stack, n_rows, count, rows, columns, n_padded, 0, program)
        for t in range(targets):
            for i in range(n_rows):
                if last == length:
                    a, b, c, d = zero, zero, zero, zero
                    for k in range(FLUSH_COLUMNS):
                        at = start + k
                        a = fma(stack[i, k], weights[at, t], a)
                        b = fma(stack[i, FLUSH_COLUMNS + k], weights[at + FLUSH_COLUMNS, t], b)
                        c = fma(stack[i, 2 * FLUSH_COLUMNS + k], weights[at + 2 * FLUSH_COLUMNS, t], c)
                        d = fma(stack[i, 3 * FLUSH_COLUMNS + k], weights[at + 3 * FLUSH_COLUMNS, t], d)
                    out[t, i] += a
                    out[t, i] += b
                    out[t, i] += c
                    out[t, i] += d
                else:
                    for first in range(0, last, FLUSH_COLUMNS):
                        a = zero
                        for k in range(first, min(first + FLUSH_COLUMNS, last)):
                            a = fma(stack[i, k], weights[start + k, t], a)
                        out[t, i] += a


@cached_njit(fastmath=FAST_MATH, nogil=True)
def tile_pair(  # type: ignore[no-untyped-def]
    A, norms_a, B, norms_b, n_columns, across, along, out_a, out_b, program, tile_rows, diagonal, tiles, form
):
    """Both products of one block of a symmetric matrix from one look at its entries.

    `out_a[t, i] = sum_j k(a_i, b_j) across[t, j]` and `out_b[t, j] = sum_i k(a_i, b_j) along[t, i]`. Sums run over
    tiles in the tile's precision, those along its rows in `LANES` chains, and between tiles in float64.

    Of a `diagonal` block, whose rows are its columns, tiles above the diagonal are left to those below it, and those
    that it passes through count for `out_a` alone: the product is the sum of both.

    `form` says where entries come from: they are evaluated (`EVALUATED`), evaluated and left in `tiles` (`KEPT`), or
    read from there (`READ`). `tiles` holds `pair_entries` entries, tile after tile as they are walked.
    """
    prefer_full_vectors()
    padded, targets = A.shape[1], across.shape[0]
    n_padded = padded_columns(n_columns)
    stack = np.empty((program[0, 1] * TILE_COLUMNS, tile_rows), A.dtype)
    local_along = np.empty((targets, tile_rows), A.dtype)
    totals = np.empty((targets, tile_rows), A.dtype)
    rows = np.empty(packed_inputs(program) * tile_rows, A.dtype)
    columns = pack_columns(B, norms_b, n_columns if form != READ else 0, program)
    nowhere = np.zeros((targets, n_columns if diagonal else 0), out_b.dtype)
    out_b[:, :] = 0.0
    at = 0
    for start in range(0, padded, tile_rows):
        count = min(tile_rows, padded - start)
        if form != READ:
            pack_rows(rows, tile_rows, A, norms_a, start, count, program)
        for t in range(targets):
            out_a[t, start : start + count] = 0.0
            # By loop: the check that two slices fit takes seconds to compile.
            for i in range(count):
                local_along[t, i] = along[t, start + i]
        end = min(n_columns, start + count) if diagonal else n_columns
        for first in range(0, end, FLUSH_COLUMNS):
            last = min(first + FLUSH_COLUMNS, end)
            totals[:, :] = 0.0
            for column in range(first, last, TILE_COLUMNS):
                width = min(TILE_COLUMNS, last - column)
                out = nowhere if diagonal and column >= start else out_b
                if form == READ:
                    for t in range(0, targets - 1, 2):
                        stream_two(totals, out, tiles, at, count, count, width, across, column, local_along, t, column)
                    if targets % 2:
                        t = targets - 1
                        stream_one(totals, out, tiles, at, count, count, width, across, column, local_along, t, column)
                else:
                    fill_tile(stack, width, count, rows, columns, n_padded, column, program)
                    if form == KEPT:
                        for j in range(width):
                            for i in range(count):
                                tiles[at + j * count + i] = stack[j, i]
                    for t in range(0, targets - 1, 2):
                        multiply_two(
                            totals, out, stack, 0, tile_rows, count, width, across, column, local_along, t, column
                        )
                    if targets % 2:
                        t = targets - 1
                        multiply_one(
                            totals, out, stack, 0, tile_rows, count, width, across, column, local_along, t, column
                        )
                at += width * count
            for t in range(targets):
                for i in range(count):
                    out_a[t, start + i] += totals[t, i]


def pair_entries(padded: int, n_columns: int, tile_rows: int, diagonal: bool) -> int:
    """The number of entries that `tile_pair` looks at, those of padded rows included."""
    if not diagonal:
        return padded * n_columns
    ends = range(tile_rows, padded + tile_rows, tile_rows)
    return sum((min(end, padded) - end + tile_rows) * min(end, n_columns) for end in ends)


@cached_njit(fastmath=FAST_MATH, nogil=True)
def tile_into(A, norms_a, B, norms_b, n_columns, out, program, tile_rows, amplitude):  # type: ignore[no-untyped-def]
    """`out[j, i] = amplitude k(a_i, b_j)`: the kernel itself, for all padded rows i of A and `n_columns` rows of B."""
    prefer_full_vectors()
    padded = A.shape[1]
    n_padded = padded_columns(n_columns)
    stack = np.empty((program[0, 1] * TILE_COLUMNS, tile_rows), A.dtype)
    rows = np.empty(packed_inputs(program) * tile_rows, A.dtype)
    columns = pack_columns(B, norms_b, n_columns, program)
    for start in range(0, padded, tile_rows):
        count = min(tile_rows, padded - start)
        pack_rows(rows, tile_rows, A, norms_a, start, count, program)
        for column in range(0, n_columns, TILE_COLUMNS):
            width = min(TILE_COLUMNS, n_columns - column)
            fill_tile(stack, width, count, rows, columns, n_padded, column, program)
            for j in range(width):
                for i in range(count):
                    out[column + j, start + i] = amplitude * stack[j, i]


@cached_njit(nogil=True)
def squared_norms(values, out):  # type: ignore[no-untyped-def]
    """`out[i] = sum_l values[l, i]^2`, in feature order, so that a row's norm is the same wherever it stands."""
    out[:] = 0.0
    for f in range(values.shape[0]):
        for i in range(values.shape[1]):
            out[i] = fma(values[f, i], values[f, i], out[i])


@cached_njit(nogil=True)
def gather_columns(A, indices, out):  # type: ignore[no-untyped-def]
    """Copy the features of chosen rows (columns of the feature-major `A`) and pad with the last one."""
    count = indices.shape[0]
    for feature in range(A.shape[0]):
        source, target = A[feature], out[feature]
        for i in range(count):
            target[i] = source[indices[i]]
        for i in range(count, out.shape[1]):
            target[i] = target[count - 1]
