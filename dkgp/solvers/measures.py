"""One pass over the n-vectors of a linear system, for a progress record."""

from __future__ import annotations

import numpy as np

from dkgp.kernels.tiles.code_cache import cached_njit


@cached_njit(nogil=True)
def measures(alpha, gradient, rhs):  # type: ignore[no-untyped-def]
    """Largest gradient, its squared norms and the objective, in one pass.

    These are max |g|, NaN where any g is; squared norms of g by target (p,); and alpha' (g - y) / 2 by target (p,),
    whose sum is the objective (equation 3, since Kbar alpha = g + y).
    """
    n, p = gradient.shape
    largest = 0.0
    squares, objective = np.zeros(p), np.zeros(p)
    for i in range(n):
        for t in range(p):
            value = gradient[i, t]
            if not abs(value) <= largest and largest == largest:  # once NaN, always NaN
                largest = abs(value)
            squares[t] += value * value
            objective[t] += 0.5 * alpha[i, t] * (value - rhs[i, t])
    return largest, squares, objective
