"""Sums over the features, and over the columns, of a block of tile entries that stays in the processor's registers.

One entry is one chain of fused multiply-adds over the features in their order, and so is one row's product with a tile
over its columns. A fused multiply-add is rounded once, by the definition of IEEE 754, and lanes of a vector never meet:
so the bits of a chain are those of its operands, with any width of the vectors, any number of chains that are run
side by side, or the processor. The shape of a block is chosen for the processor that the code is compiled for, and is
no part of any result.

The blocks are written as vector instructions: left to the compiler, a loop over entries reads and writes the tile once
for every few features. Rows lie in panels of `LANES`, feature by feature: one panel's features follow each other in
memory, which no two of a power of two apart can do without evicting each other from the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

from dkgp.kernels.compiler import cgutils, intrinsic, ir, types
from dkgp.kernels.vector_math import fma_of, vector_lanes

# Rows of a panel, and lanes of the sums along a tile: of every processor's vectors a whole number.
LANES = 16
# Columns of a tile: of every block a whole number.
TILE_COLUMNS = 16

Kind = Literal["differences", "expanded", "products"]


def block_shape(context: Any, number: Any) -> tuple[int, int]:
    """Rows and columns of a block: two vectors by as many columns as the registers hold, four without AVX-512."""
    lanes = vector_lanes(context, number)
    return 2 * lanes, 8 if 2 * lanes * (4 if number == types.float32 else 8) == 128 else 4


class _Block:
    """A block while it is written down: its vectors' type and its arithmetic."""

    def __init__(self, context: Any, builder: Any, number: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.scalar = context.get_value_type(number)
        self.bytes = 4 if number == types.float32 else 8
        self.vector = ir.VectorType(self.scalar, lanes)
        self.zero = ir.Constant(self.vector, [0.0] * lanes)

    def load(self, base: Any, offset: Any) -> Any:
        pointer = self.builder.bitcast(self.builder.gep(base, [offset]), self.vector.as_pointer())
        return self.builder.load(pointer, align=self.bytes)

    def store(self, value: Any, base: Any, offset: Any) -> None:
        pointer = self.builder.bitcast(self.builder.gep(base, [offset]), self.vector.as_pointer())
        self.builder.store(value, pointer, align=self.bytes)

    def broadcast(self, base: Any, offset: Any) -> Any:
        value = self.builder.load(self.builder.gep(base, [offset]), align=self.bytes)
        first = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), value, ir.IntType(32)(0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, ir.Constant(self.vector, ir.Undefined), lanes)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return fma_of(self.builder, a, b, c)


def _index(value: int) -> Any:
    return ir.IntType(64)(value)


def _write_block(
    kind: Kind, context: Any, builder: Any, number: Any, shape: tuple[int, int], pointers: Any, sizes: Any
) -> None:
    """Write down one block of `shape` = (rows, columns): its sums start, run over the features, are stored."""
    rows, columns = shape
    lanes = min(vector_lanes(context, number), rows)
    block = _Block(context, builder, number, lanes)
    tile, packed_rows, packed_columns = pointers
    stride, width, d = sizes
    # Where each vector's rows lie in their panel, and that panel's begin.
    panel = builder.mul(width, _index(LANES))
    places = [
        builder.add(builder.mul(panel, _index(first // LANES)), _index(first % LANES))
        for first in range(0, rows, lanes)
    ]
    starts = [builder.mul(width, _index(c)) for c in range(columns)]
    sums = [[cgutils.alloca_once(builder, block.vector) for _ in places] for _ in starts]
    at_norm = builder.mul(d, _index(LANES))
    for c, start in enumerate(starts):
        norm = block.broadcast(packed_columns, builder.add(start, d)) if kind == "expanded" else None
        for place, total in zip(places, sums[c], strict=True):
            first = block.zero
            if norm is not None:
                of_row = block.load(packed_rows, builder.add(place, at_norm))
                first = builder.fneg(builder.fadd(of_row, norm))
            builder.store(first, total)
    with cgutils.for_range(builder, d) as loop:
        at_feature = builder.mul(loop.index, _index(LANES))
        values = [block.load(packed_rows, builder.add(place, at_feature)) for place in places]
        for start, totals in zip(starts, sums, strict=True):
            weight = block.broadcast(packed_columns, builder.add(start, loop.index))
            for value, total in zip(values, totals, strict=True):
                if kind == "differences":
                    difference = builder.fsub(value, weight)
                    term = block.fma(builder.fneg(difference), difference, builder.load(total))
                else:
                    term = block.fma(value, weight, builder.load(total))
                builder.store(term, total)
    for c, totals in enumerate(sums):
        for k, total in enumerate(totals):
            place = builder.add(builder.mul(stride, _index(c)), _index(k * lanes))
            block.store(builder.load(total), tile, place)


def _tile_stage(kind: Kind) -> Any:
    @intrinsic
    def fill(typing_context, tile_at, stride, width, count, rows_at, packed, columns_at):  # type: ignore[no-untyped-def]
        number = tile_at.dtype

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            tile, stride, width, count, rows, packed, columns = arguments
            d = builder.sub(packed, _index(1)) if kind == "expanded" else packed
            most_rows, most_columns = block_shape(context, number)

            def column_blocks(first_row: Any, height: int) -> None:
                # A row's panel begins at the row's number times the packed features: panels hold LANES rows.
                of_rows = builder.gep(rows, [_row_offset(builder, first_row, packed)])
                of_tile = builder.gep(tile, [first_row])

                def one(first_column: Any, breadth: int) -> None:
                    pointers = (
                        builder.gep(of_tile, [builder.mul(first_column, stride)]),
                        of_rows,
                        builder.gep(columns, [builder.mul(first_column, packed)]),
                    )
                    _write_block(kind, context, builder, number, (height, breadth), pointers, (stride, packed, d))

                _in_blocks(builder, width, sorted({most_columns, 4}, reverse=True), one, ceiling=True)

            heights = [most_rows] if most_rows <= LANES else [most_rows, LANES]
            _in_blocks(builder, count, heights, column_blocks)
            return context.get_dummy_value()

        size = types.intp
        return types.void(tile_at, size, size, size, rows_at, size, columns_at), generate

    return fill


def _row_offset(builder: Any, row: Any, packed: Any) -> Any:
    """Offset of a row's first feature: panels of LANES rows by `packed` features before it, then its lane."""
    lane = builder.and_(row, _index(LANES - 1))
    return builder.add(builder.mul(builder.sub(row, lane), packed), lane)


def _in_blocks(
    builder: Any, count: Any, sizes: list[int], body: Callable[[Any, int], None], *, ceiling: bool = False
) -> None:
    """Loop over `count` in blocks of the first size while they fit, then of the next; the last may reach beyond."""
    place = cgutils.alloca_once_value(builder, _index(0))
    for size in sizes:
        last = size == sizes[-1]
        test = builder.append_basic_block("test")
        inside = builder.append_basic_block("block")
        after = builder.append_basic_block("after")
        builder.branch(test)
        builder.position_at_end(test)
        start = builder.load(place)
        end = start if last and ceiling else builder.add(start, _index(size - 1))
        builder.cbranch(builder.icmp_signed("<", end, count), inside, after)
        builder.position_at_end(inside)
        body(start, size)
        builder.store(builder.add(start, _index(size)), place)
        builder.branch(test)
        builder.position_at_end(after)


fill_differences = _tile_stage("differences")
fill_expanded = _tile_stage("expanded")
fill_products = _tile_stage("products")


# The farthest level of the processor's caches that tiles in memory are fetched to ahead of their turn: the second.
_NEAR = 2


def _both_products(vectors: int, *, ahead: bool) -> Any:
    """Both products of a tile with `vectors` vectors from one look at its entries.

    For k = `vector` and the `vectors - 1` after it, over `count` rows and `width` columns of the tile that begins at
    `tile[at]`, a column every `stride` entries:

        totals[k, i] += sum_j tile[j, i] across[k, column + j],    in one chain of the columns' order,
        out[k, place + j] += sum_i tile[j, i] along[k, i],         in `LANES` chains that are added up by halves.

    With `ahead`, the memory behind the tile is fetched while this one is worked on.
    """

    @intrinsic
    def add(typing_context, totals, out, tile, at, stride, count, width, across, column, along, vector, place):  # type: ignore[no-untyped-def]
        number = tile.dtype

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            totals, out, tile, at, stride, count, width, across, column, along, vector, place = arguments
            kinds = [signature.args[k] for k in (0, 1, 2, 7, 9)]
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(kinds, (totals, out, tile, across, along), strict=True)
            ]

            def row(array: Any, number: int, offset: Any) -> Any:
                length = cgutils.unpack_tuple(builder, array.shape)[1]
                return builder.gep(
                    array.data, [builder.add(builder.mul(builder.add(vector, _index(number)), length), offset)]
                )

            of_totals, of_out, of_tile, of_across, of_along = arrays
            at_tile = builder.gep(of_tile.data, [at])
            numbers = range(vectors)
            at_totals, at_along = ([row(array, k, _index(0)) for k in numbers] for array in (of_totals, of_along))
            at_across, at_out = (
                [row(array, k, first) for k in numbers] for array, first in ((of_across, column), (of_out, place))
            )
            block = _Block(context, builder, number, LANES)
            # As many chains along the columns as registers hold beside the rest.
            lanes = vector_lanes(context, number)
            most = max(1, (8 * vectors if lanes * block.bytes == 64 else 8) * lanes // (LANES * vectors))
            fetch = builder.mul(stride, _index(TILE_COLUMNS)) if ahead else None

            def some(first: Any, columns: int) -> None:
                chains = [[cgutils.alloca_once(builder, block.vector) for _ in range(columns)] for _ in numbers]
                starts = [builder.mul(builder.add(first, _index(c)), stride) for c in range(columns)]
                weights = [
                    [block.broadcast(at_across[k], builder.add(first, _index(c))) for c in range(columns)]
                    for k in numbers
                ]
                for chain in itertools.chain(*chains):
                    builder.store(block.zero, chain)
                with cgutils.for_range_slice(builder, _index(0), count, _index(LANES)) as (panel, _):
                    of_rows = [block.load(pointer, panel) for pointer in at_along]
                    sums = [block.load(pointer, panel) for pointer in at_totals]
                    for c, start in enumerate(starts):
                        where = builder.add(start, panel)
                        entries = block.load(at_tile, where)
                        if fetch is not None:
                            _prefetch(builder, builder.gep(at_tile, [builder.add(where, fetch)]))
                        for k in numbers:
                            sums[k] = block.fma(entries, weights[k][c], sums[k])
                            builder.store(block.fma(entries, of_rows[k], builder.load(chains[k][c])), chains[k][c])
                    for pointer, total in zip(at_totals, sums, strict=True):
                        block.store(total, pointer, panel)
                for k in numbers:
                    for c, chain in enumerate(chains[k]):
                        pointer = builder.gep(at_out[k], [builder.add(first, _index(c))])
                        total = sum_of_lanes(builder, builder.load(chain))
                        if number == types.float32:
                            total = builder.fpext(total, ir.DoubleType())
                        builder.store(builder.fadd(builder.load(pointer), total), pointer)

            _in_blocks(builder, width, sorted({most, 1}, reverse=True), some)
            return context.get_dummy_value()

        size = types.intp
        arrays = (totals, out, tile, size, size, size, size, across, size, along, size, size)
        return types.void(*arrays), generate

    return add


def _prefetch(builder: Any, pointer: Any) -> None:
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [builder.bitcast(pointer, byte), number(0), number(_NEAR), number(1)])


# Of a tile in the core's cache, and of one that comes from memory.
multiply_one, multiply_two = (_both_products(vectors, ahead=False) for vectors in (1, 2))
stream_one, stream_two = (_both_products(vectors, ahead=True) for vectors in (1, 2))


def sum_of_lanes(builder: Any, vector: Any) -> Any:
    """Add the upper half of a vector to the lower one until a single number is left."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        halves = [
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(first, first + lanes)))
            )
            for first in (0, lanes)
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.IntType(32)(0))
