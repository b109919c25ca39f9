"""Products of small matrices as chains of fused multiply-adds, with the same bits on every processor.

Each entry of a product is one chain over the inner index, in its order. Blocks of entries stay in registers; how
many depends on the processor, and no bit does.
"""

from __future__ import annotations

from typing import Any

from dkgp.kernels.compiler import cached_njit, cgutils, intrinsic, ir, types
from dkgp.kernels.vector_math import fma_of, prefer_full_vectors, stay_apart, vector_lanes

# Columns are taken this many at a time: one vector of 512 bits, or two of 256.
LANES = 8


@intrinsic(prefer_literal=True)
def _block(  # type: ignore[no-untyped-def]
    typing_context, rows, C, c_at, c_row, A, a_at, a_inner, a_row, B, b_at, b_inner, count
):
    """Set `LANES` columns of `rows` rows (a literal number) to sums of `count` products; see `set_product`."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    total = rows.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, c, c_at, c_row, a, a_at, a_inner, a_row, b, b_at, b_inner, count = arguments
        c, a, b = (
            context.make_array(signature.args[index])(context, builder, value).data
            for index, value in ((1, c), (4, a), (8, b))
        )
        size, vector = ir.IntType(64), ir.VectorType(ir.DoubleType(), LANES)
        nothing = ir.Constant(vector, [0.0] * LANES)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

        def vector_at(base: Any, place: Any) -> Any:
            return builder.bitcast(builder.gep(base, [place]), vector.as_pointer())

        # Registers for sixteen vectors of 256 bits, or more than enough for eight of 512.
        together = total if vector_lanes(context, types.float64) == LANES else min(total, 4)
        for first in range(0, total, together):
            places = [vector_at(c, builder.add(c_at, builder.mul(c_row, size(first + row)))) for row in range(together)]
            sums = [cgutils.alloca_once(builder, vector) for _ in range(together)]
            for value in sums:
                builder.store(nothing, value)
            with cgutils.for_range(builder, count) as loop:
                columns = builder.load(vector_at(b, builder.add(b_at, builder.mul(loop.index, b_inner))), align=8)
                inner = builder.add(a_at, builder.mul(loop.index, a_inner))
                for row, value in enumerate(sums):
                    at = builder.add(inner, builder.mul(a_row, size(first + row)))
                    factor = builder.load(builder.gep(a, [at]))
                    single = builder.insert_element(ir.Constant(vector, ir.Undefined), factor, ir.IntType(32)(0))
                    all_lanes = builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), lanes)
                    builder.store(fma_of(builder, all_lanes, columns, builder.load(value)), value)
            for place, value in zip(places, sums, strict=True):
                builder.store(builder.load(value), place, align=8)
        return context.get_dummy_value()

    size = types.intp
    if any(array.dtype != types.float64 or array.ndim != 1 for array in (C, A, B)):
        return None
    return types.void(rows, C, size, size, A, size, size, size, B, size, size, size), generate


@cached_njit(nogil=True, no_cpython_wrapper=True)
def set_product(C, c_at, c_row, rows, columns, A, a_at, a_inner, a_row, B, b_at, b_inner, count):  # type: ignore[no-untyped-def]
    """C[m, n] = sum_k A[k, m] B[k, n], `rows` by `columns`, k below `count`; for calls from compiled code.

    Flat arrays: C[m, n] lies at `c_at + m c_row + n`, A[k, m] at `a_at + k a_inner + m a_row`, B[k, n] at
    `b_at + k b_inner + n`. Columns are taken in whole vectors of `LANES`: B and C must have room for these, and the
    columns of C beyond are overwritten.

    Each constant that a caller writes as a plain number makes another version, which takes a third of a second to
    compile and loops a few per cent faster where it is a stride of the loop over k. Callers write others as `np.int64`.
    """
    prefer_full_vectors()
    stay_apart()
    for n in range(0, columns, LANES):
        m, to, of = 0, c_at + n, b_at + n
        while m + 8 <= rows:
            _block(8, C, to + m * c_row, c_row, A, a_at + m * a_row, a_inner, a_row, B, of, b_inner, count)
            m += 8
        if m + 4 <= rows:
            _block(4, C, to + m * c_row, c_row, A, a_at + m * a_row, a_inner, a_row, B, of, b_inner, count)
            m += 4
        if m + 2 <= rows:
            _block(2, C, to + m * c_row, c_row, A, a_at + m * a_row, a_inner, a_row, B, of, b_inner, count)
            m += 2
        if m < rows:
            _block(1, C, to + m * c_row, c_row, A, a_at + m * a_row, a_inner, a_row, B, of, b_inner, count)
