"""The coordinator's n-vectors: the gradient and the solution after a step.

Element by element, in a fixed order and without contraction, so that a row's value is the same whether all rows are
updated or a few, and wherever they stand in the array.
"""

from __future__ import annotations

from numba import njit

__all__ = ["advance_gradient", "advance_solution"]


@njit(nogil=True, cache=True)
def _subtract_scaled(total, images, used, coefficients):  # type: ignore[no-untyped-def]
    n, p = total.shape
    for j in range(used.shape[0]):
        slot = used[j]
        if p == 1:  # one long loop instead of n loops of one
            factor = coefficients[j, 0]
            for i in range(n):
                total[i, 0] -= factor * images[slot, i, 0]
        else:
            for i in range(n):
                for t in range(p):
                    total[i, t] -= coefficients[j, t] * images[slot, i, t]


@njit(nogil=True, cache=True)
def _add_scaled(total, step, image):  # type: ignore[no-untyped-def]
    n, p = total.shape
    if p == 1:
        factor = step[0]
        for i in range(n):
            total[i, 0] += factor * image[i, 0]
    else:
        for i in range(n):
            for t in range(p):
                total[i, t] += step[t] * image[i, t]


@njit(nogil=True, cache=True)
def advance_gradient(gradient, product, images, used, coefficients, step, image_out):  # type: ignore[no-untyped-def]
    """`q = product - sum_j c_j q_j; gradient += step * q`, and q to `image_out`; per target.

    Parameters
    ----------
    gradient, product, image_out : (n, p) float64
        g before (in) and after (out) the step; Kbar[:, B] @ delta; where q goes.
    images : (memory, n, p) float64
        q_j = Kbar p_j of the remembered steps.
    used : (k,) intp
        Which of them take part.
    coefficients : (k, p) float64
    step : (p,) float64
    """
    image_out[:, :] = product
    _subtract_scaled(image_out, images, used, coefficients)
    _add_scaled(gradient, step, image_out)


@njit(nogil=True, cache=True)
def advance_solution(alpha, indices, delta, directions, used, coefficients, step, direction_out):  # type: ignore[no-untyped-def]
    """`p = delta (on B) - sum_j c_j p_j; alpha += step * p`, and p to `direction_out`; per target."""
    direction_out[:, :] = 0.0
    _subtract_scaled(direction_out, directions, used, coefficients)
    for position in range(indices.shape[0]):
        for t in range(alpha.shape[1]):
            direction_out[indices[position], t] += delta[position, t]
    _add_scaled(alpha, step, direction_out)
