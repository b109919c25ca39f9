"""The n-vectors of a descent: the gradient and the solution after a step, of all samples or of a block.

Element by element, in a fixed order and without contraction, so that a row's value is the same whether all rows are
updated or a few, and wherever they stand in the array.
"""

from __future__ import annotations

import numpy as np

from dkgp.kernels.tiles.code_cache import cached_njit

# Rows worked on at a time: a few of these fit the first-level cache, so a step reads each n-vector once.
CHUNK = 1024
# The memory multiplies old directions by small coefficients round after round; left alone they end as denormal numbers,
# which cost a hundred times a normal one and mean nothing.
NEGLIGIBLE = 1e-200


@cached_njit(nogil=True)
def _combine(out, images, used, coefficients, first, last):  # type: ignore[no-untyped-def]
    """`out[first:last] -= sum_j c_j images[used[j], first:last]`, one j after the other."""
    p = out.shape[1]
    for j in range(used.shape[0]):
        slot = used[j]
        if p == 1:  # one long loop instead of many loops of one
            factor = coefficients[j, 0]
            for i in range(first, last):
                out[i, 0] -= factor * images[slot, i, 0]
        else:
            for i in range(first, last):
                for t in range(p):
                    out[i, t] -= coefficients[j, t] * images[slot, i, t]


@cached_njit(nogil=True)
def _add_scaled(total, step, image, first, last):  # type: ignore[no-untyped-def]
    p = total.shape[1]
    if p == 1:
        factor = step[0]
        for i in range(first, last):
            total[i, 0] += factor * image[i, 0]
    else:
        for i in range(first, last):
            for t in range(p):
                total[i, t] += step[t] * image[i, t]


@cached_njit(nogil=True)
def advance_gradient(gradient, product, images, used, coefficients, step, image_out):  # type: ignore[no-untyped-def]
    """`q = product - sum_j c_j q_j; gradient += step * q`, and q to `image_out`; per target.

    - `gradient`, `product`, `image_out` (n, p): g before (in) and after (out) the step; Kbar[:, B] @ delta; where q
      goes.
    - `images` (memory, n, p): q_j = Kbar p_j of the remembered steps.
    - `used` (k,): which of them take part.
    - `coefficients` (k, p).
    """
    n, p = gradient.shape
    for first in range(0, n, CHUNK):
        last = min(first + CHUNK, n)
        # By loops: what says that two slices do not fit takes seconds to compile.
        for i in range(first, last):
            for t in range(p):
                image_out[i, t] = product[i, t]
        _combine(image_out, images, used, coefficients, first, last)
        _add_scaled(gradient, step, image_out, first, last)


@cached_njit(nogil=True)
def advance_solution(alpha, direction, directions, used, coefficients, step, rows):  # type: ignore[no-untyped-def]
    """`p = delta (on B) - sum_j c_j p_j; alpha += step * p`; per target.

    Return the squared lengths ||step * p||^2, (p,), added up by blocks of so many `rows`.

    - `direction` (n, p): delta on B and zero elsewhere (in), p (out).
    """
    n, p = alpha.shape
    total, moved = np.zeros(p), np.zeros(p)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        moved[:] = 0.0
        for first in range(start, stop, CHUNK):
            last = min(first + CHUNK, stop)
            _combine(direction, directions, used, coefficients, first, last)
            for i in range(first, last):
                for t in range(p):
                    value = direction[i, t]
                    value = value if abs(value) > NEGLIGIBLE else 0.0
                    direction[i, t] = value
                    moved[t] += value * value
            _add_scaled(alpha, step, direction, first, last)
        for t in range(p):
            total[t] += moved[t] * step[t] * step[t]
    return total
