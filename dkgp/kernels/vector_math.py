"""Powers of two and logarithms as short polynomials, so that loops over them become vector code.

A call into the mathematical library would be made entry by entry. These are a few multiply-adds each, their error is a
rounding or two, and at zero they are exact: the kernel of a sample with itself is the amplitude to the bit.

Every multiply-add is written as a fused one. A compiler fuses a product and a sum for one processor and not for
another: the bits of a result would depend on the processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dkgp.kernels.compiler import cgutils, intrinsic, ir, overload, types

# These change no bit of a finite number. No reassociation: the order of a sum is part of the result's definition, and
# the rounding trick in exp2 must survive. No contraction, and no reciprocals for quotients: see above.
FAST_MATH = {"nnan", "ninf"}


def vector_lanes(context: Any, number: Any) -> int:
    """Lanes of the widest vectors of the processor that is compiled for."""
    features = context.codegen().magic_tuple()[2].split(",")
    return (64 if "+avx512f" in features else 32) // (4 if number == types.float32 else 8)


def fma_of(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Write down `a b + c` with one rounding, of numbers or of vectors."""
    if isinstance(a.type, ir.VectorType):
        name = f"llvm.fma.v{a.type.count}{a.type.element.intrinsic_name}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
        return builder.call(function, (a, b, c))
    return builder.fma(a, b, c)


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """`a b + c`, rounded once: the same bits in vectors of any width, and in every processor's own instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return fma_of(builder, *arguments)

    return (a(a, b, c) if a == b == c else None), generate


@intrinsic
def prefer_full_vectors(typing_context: Any) -> Any:
    """Ask LLVM for 512-bit vectors in the calling function; it prefers 256 on most CPUs, which costs a quarter here.

    A hint without effect on machines that have no such registers. Functions that are inlined need it too: loops are
    turned into vector code before their callers see them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def stay_apart(typing_context: Any) -> Any:
    """Keep the calling function from being inlined, where it would lose its hint of full vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


def _exponent_position(number: Any) -> int:
    return 23 if number == types.float32 else 52


@intrinsic
def shift_exponent(typing_context: Any, mantissa: Any, shifted: Any) -> Any:
    """`mantissa * 2**k`, where `shifted` is k + 1.5 * 2**(mantissa bits), so that k sits in its low bits."""
    bits = 32 if mantissa == types.float32 else 64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(bits)
        value = builder.bitcast(arguments[0], integer)
        power = builder.bitcast(arguments[1], integer)
        moved = builder.add(value, builder.shl(power, ir.Constant(integer, _exponent_position(mantissa))))
        return builder.bitcast(moved, arguments[0].type)

    return mantissa(mantissa, shifted), generate


@intrinsic
def split_exponent(typing_context: Any, number: Any) -> Any:
    """(m, k, 2**-k) with `number` = m 2**k, m in [sqrt(1/2), sqrt(2)), k whole, for a number from 1."""
    bits, position = (32, 23) if number == types.float32 else (64, 52)
    half_root, one, above = (0x3F3504F3, 0x3F800000, 0x4B000000) if bits == 32 else (
        0x3FE6A09E667F3BCD, 0x3FF0000000000000, 0x4330000000000000
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer, real = ir.IntType(bits), arguments[0].type
        pattern = builder.bitcast(arguments[0], integer)
        k = builder.lshr(builder.sub(pattern, ir.Constant(integer, half_root)), ir.Constant(integer, position))
        moved = builder.shl(k, ir.Constant(integer, position))
        mantissa = builder.bitcast(builder.sub(pattern, moved), real)
        # As a float by way of the low bits of 2**23 or 2**52: the conversion has no vector instruction everywhere.
        shifted = builder.bitcast(builder.or_(k, ir.Constant(integer, above)), real)
        exponent = builder.fsub(shifted, ir.Constant(real, 2.0**position))
        inverse = builder.bitcast(builder.sub(ir.Constant(integer, one), moved), real)
        return context.make_tuple(builder, signature.return_type, (mantissa, exponent, inverse))

    return types.UniTuple(number, 3)(number), generate


def exp2(power: Any, floor: Any) -> Any:
    """2**max(power, floor) for power <= 0, for one element of a vector loop; a NumPy stand-in for the compiled ones.

    The floor keeps values, and their products with weights or each other, above the denormal numbers, which cost tens
    of normal ones each. With short length scales most entries are that small.
    """
    return np.exp2(np.maximum(power, floor))


def log2_1p(number: Any) -> Any:
    """log2(1 + number) for a number >= 0, to a relative error of a few roundings however small it is; a stand-in."""
    return np.log1p(number) / np.log(2.0)


_F32 = np.float32
_ROUND_F32 = _F32(1.5 * 2**23)
_ROUND_F64 = 1.5 * 2.0**52
# Minimax fit to 2**f on [-1/2, 1/2] in relative error (8.1e-8) with constant term 1, so that k(x, x) is exactly 1.
_P5, _P4, _P3, _P2, _P1, _P0 = (
    _F32(c)
    for c in (
        0.001327463336532476,
        0.009671961679595494,
        0.05550678368720907,
        0.2402223532236195,
        0.693147061560251,
        1.0,
    )
)


def _exp2_float32(power: Any, floor: Any) -> Any:
    bounded = max(power, floor)
    shifted = bounded + _ROUND_F32
    f = bounded - (shifted - _ROUND_F32)
    value = fma(fma(fma(fma(fma(_P5, f, _P4), f, _P3), f, _P2), f, _P1), f, _P0)
    return shift_exponent(value, shifted)


# Minimax fit of degree 11 to 2**f on [-1/2, 1/2]: 3.2e-18 in relative error, the constant term exactly 1.
_T0, _T1, _T2, _T3, _T4, _T5 = (
    1.0,
    0.69314718055994530925,
    0.24022650695910159567,
    0.055504108664821627039,
    0.0096181291075872566681,
    0.0013333558146406470697,
)
_T6, _T7, _T8, _T9, _T10, _T11 = (
    0.00015403530463724354209,
    1.5252733841556772589e-05,
    1.3215432535912376166e-06,
    1.0178057087733941105e-07,
    7.0741942972285210056e-09,
    4.455817908336064493e-10,
)


_FROM_T11_TO_T0 = _T11, _T10, _T9, _T8, _T7, _T6, _T5, _T4, _T3, _T2, _T1, _T0


def _exp2_float64(power: Any, floor: Any) -> Any:
    bounded = max(power, floor)
    shifted = bounded + _ROUND_F64
    f = bounded - (shifted - _ROUND_F64)
    value = fma(fma(fma(fma(fma(_T11, f, _T10), f, _T9), f, _T8), f, _T7), f, _T6)
    value = fma(fma(fma(fma(fma(fma(value, f, _T5), f, _T4), f, _T3), f, _T2), f, _T1), f, _T0)
    return shift_exponent(value, shifted)


@overload(exp2, inline="always")
def _exp2_overload(power: Any, floor: Any) -> Any:
    return _exp2_float32 if power == types.float32 else _exp2_float64


# Vectors of float64 that are under way at a time: a chain of eleven multiply-adds alone waits for itself, which the
# compiler does not see. Float32's of five are no quicker together.
_AT_ONCE = 4


@intrinsic
def _exp2_of_vectors(typing_context: Any, values: Any, floor: Any) -> Any:
    """Put `exp2` of as many float64 values as fill vectors in their place, and return how many these are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        width, index, integer = _AT_ONCE * vector_lanes(context, types.float64), ir.IntType(64), ir.IntType(64)
        vector, integers = ir.VectorType(ir.DoubleType(), width), ir.VectorType(integer, width)

        def all_of(kind: Any, value: Any) -> Any:
            return ir.Constant(kind, [value] * width)

        shift, exponent = all_of(vector, _ROUND_F64), all_of(integers, _exponent_position(types.float64))
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[1], ir.IntType(32)(0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
        lowest = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)
        count = cgutils.unpack_tuple(builder, array.shape)[0]
        done = builder.sub(count, builder.srem(count, index(width)))
        with cgutils.for_range_slice(builder, index(0), done, index(width)) as (place, _):
            pointer = builder.bitcast(builder.gep(array.data, [place]), vector.as_pointer())
            power = builder.load(pointer, align=8)
            # NaN stays NaN, as where values are taken one by one.
            bounded = builder.select(builder.fcmp_ordered("<", power, lowest), lowest, power)
            shifted = builder.fadd(bounded, shift)
            f = builder.fsub(bounded, builder.fsub(shifted, shift))
            value = all_of(vector, _FROM_T11_TO_T0[0])
            for coefficient in _FROM_T11_TO_T0[1:]:
                value = fma_of(builder, value, f, all_of(vector, coefficient))
            moved = builder.shl(builder.bitcast(shifted, integers), exponent)
            result = builder.bitcast(builder.add(builder.bitcast(value, integers), moved), vector)
            builder.store(result, pointer, align=8)
        return done

    return types.intp(values, floor), generate


def exp2_in_place(values: Any, floor: Any) -> None:
    """`exp2` of each of some values, (n,), to the same bits; a NumPy stand-in for the compiled one."""
    values[:] = exp2(values, floor)


@overload(exp2_in_place)
def _exp2_in_place_overload(values: Any, floor: Any) -> Any:
    def of_vectors(values: Any, floor: Any) -> None:
        for i in range(_exp2_of_vectors(values, floor), len(values)):
            values[i] = exp2(values[i], floor)

    def one_by_one(values: Any, floor: Any) -> None:
        for i in range(len(values)):
            values[i] = exp2(values[i], floor)

    return of_vectors if values.dtype == types.float64 and values.layout == "C" else one_by_one


_ONE_F32, _LARGEST_F32 = _F32(1.0), _F32(1e30)
_LARGEST_F64 = 1e300
# Minimax fits to log2(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1], relative errors 4.1e-9 and 7.7e-18. Even and odd
# powers are summed apart: half as long a chain of dependent operations.
_L0, _L1, _L2, _L3, _L4 = (
    _F32(c) for c in (1.4426950408284118, -0.7213473515524737, 0.4808982417212159, -0.360696645523045, 0.28856736706)
)
_L5, _L6, _L7, _L8, _L9 = (
    _F32(c) for c in (-0.2396174552495, 0.2046014487480, -0.1910632396369, 0.1861699276470, -0.1099421102492)
)


def _log2_1p_float32(number: Any) -> Any:
    bounded = min(number, _LARGEST_F32)
    above_one = bounded + _ONE_F32
    lost = bounded - (above_one - _ONE_F32)
    mantissa, exponent, inverse = split_exponent(above_one)
    f = fma(lost, inverse, mantissa - _ONE_F32)
    ff = f * f
    even = fma(fma(fma(fma(_L8, ff, _L6), ff, _L4), ff, _L2), ff, _L0)
    odd = fma(fma(fma(fma(_L9, ff, _L7), ff, _L5), ff, _L3), ff, _L1)
    return fma(f, fma(f, odd, even), exponent)


_M0, _M2, _M4, _M6, _M8, _M10 = (
    1.4426950408889634109,
    0.48089834696298186207,
    0.28853900817922108848,
    0.20609929145676088368,
    0.16029944906027890337,
    0.13115435927237702437,
)
_M12, _M14, _M16, _M18, _M20 = (
    0.11096382056023587974,
    0.096459709064353624999,
    0.081624684076601548446,
    0.094256665921261101269,
    0.037741224514861770656,
)
_M1, _M3, _M5, _M7, _M9 = (
    -0.72134752044448234421,
    -0.36067376022184864615,
    -0.24044917355265565627,
    -0.18033687420464743098,
    -0.14426976931242078118,
)
_M11, _M13, _M15, _M17, _M19 = (
    -0.12021769641349728446,
    -0.10315309888898990906,
    -0.089358469708314940236,
    -0.081931639342544095626,
    -0.086671251962917991749,
)


def _log2_1p_float64(number: Any) -> Any:
    bounded = min(number, _LARGEST_F64)
    above_one = bounded + 1.0
    lost = bounded - (above_one - 1.0)
    mantissa, exponent, inverse = split_exponent(above_one)
    f = fma(lost, inverse, mantissa - 1.0)
    ff = f * f
    even = fma(fma(fma(fma(fma(_M20, ff, _M18), ff, _M16), ff, _M14), ff, _M12), ff, _M10)
    even = fma(fma(fma(fma(fma(even, ff, _M8), ff, _M6), ff, _M4), ff, _M2), ff, _M0)
    odd = fma(fma(fma(fma(fma(_M19, ff, _M17), ff, _M15), ff, _M13), ff, _M11), ff, _M9)
    odd = fma(fma(fma(fma(odd, ff, _M7), ff, _M5), ff, _M3), ff, _M1)
    return fma(f, fma(f, odd, even), exponent)


@overload(log2_1p, inline="always")
def _log2_1p_overload(number: Any) -> Any:
    return _log2_1p_float32 if number == types.float32 else _log2_1p_float64
