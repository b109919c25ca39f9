"""Sums over the features, and over the columns, of a block of tile entries that stays in the processor's registers.

One entry is one chain of fused multiply-adds over the features in their order, and so is one row's product with a tile
over its columns. A fused multiply-add is rounded once, by the definition of IEEE 754, and lanes of a vector never meet:
so the bits of a chain are those of its operands, whatever the width of the vectors, the number of chains that are run
side by side, or the processor. The shape of a block is chosen for the processor that the code is compiled for, and is
no part of any result.

The blocks are written as vector instructions: left to the compiler, a loop over entries reads and writes the tile once
for every few features. Rows lie in panels of `LANES`, feature by feature: one panel's features follow each other in
memory, which no two of a power of two apart can do without evicting each other from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dkgp.kernels.vector_math import fma_of

__all__ = ["LANES", "TILE_COLUMNS", "column_sums", "fill_differences", "fill_expanded", "fill_products"]

# Rows of a panel, and lanes of the sums along a tile: of every processor's vectors a whole number.
LANES = 16
# Columns of a tile: of every block a whole number.
TILE_COLUMNS = 16

Kind = Literal["differences", "expanded", "products"]


def _vector_lanes(context: Any, number: Any) -> int:
    """Lanes of the widest vectors of the processor that is compiled for."""
    features = context.codegen().magic_tuple()[2].split(",")
    return (64 if "+avx512f" in features else 32) // (4 if number == types.float32 else 8)


def block_shape(context: Any, number: Any) -> tuple[int, int]:
    """Rows and columns of a block: two vectors by as many columns as the registers hold, four without AVX-512."""
    lanes = _vector_lanes(context, number)
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
    lanes = min(_vector_lanes(context, number), rows)
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
        here = builder.load(place)
        end = here if last and ceiling else builder.add(here, _index(size - 1))
        builder.cbranch(builder.icmp_signed("<", end, count), inside, after)
        builder.position_at_end(inside)
        body(here, size)
        builder.store(builder.add(here, _index(size)), place)
        builder.branch(test)
        builder.position_at_end(after)


fill_differences = _tile_stage("differences")
fill_expanded = _tile_stage("expanded")
fill_products = _tile_stage("products")


@intrinsic
def column_sums(typing_context, sums, tile, count, weights, target):  # type: ignore[no-untyped-def]
    """`sums[j] = sum_i tile[j, i] weights[target, i]` over a tile's first `count` rows, for all of its columns.

    In `LANES` chains, one for each place in a panel, that are added up by halves.
    """
    number = tile.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, tile, count, weights, target = arguments
        array = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(
                (signature.args[0], signature.args[1], signature.args[3]), (out, tile, weights), strict=True
            )
        ]
        at_sums, at_tile, at_weights = (one.data for one in array)
        (_, stride), (_, weights_stride) = (cgutils.unpack_tuple(builder, one.shape) for one in array[1:])
        at_weights = builder.gep(at_weights, [builder.mul(target, weights_stride)])
        block = _Block(context, builder, number, LANES)
        columns = 8 * _vector_lanes(context, number) // LANES
        with cgutils.for_range_slice(builder, _index(0), _index(TILE_COLUMNS), _index(columns)) as (first, _):
            totals = [cgutils.alloca_once(builder, block.vector) for _ in range(columns)]
            starts = [builder.mul(builder.add(first, _index(c)), stride) for c in range(columns)]
            for total in totals:
                builder.store(block.zero, total)
            with cgutils.for_range_slice(builder, _index(0), count, _index(LANES)) as (row, _):
                weight = block.load(at_weights, row)
                for start, total in zip(starts, totals, strict=True):
                    entries = block.load(at_tile, builder.add(start, row))
                    builder.store(block.fma(entries, weight, builder.load(total)), total)
            for c, total in enumerate(totals):
                place = builder.gep(at_sums, [builder.add(first, _index(c))])
                builder.store(_sum_of_lanes(builder, builder.load(total)), place)
        return context.get_dummy_value()

    return types.void(sums, tile, types.intp, weights, types.intp), generate


def _sum_of_lanes(builder: Any, vector: Any) -> Any:
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
