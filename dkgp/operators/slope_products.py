"""Products with the kernel matrix's derivatives in its parameters, by central differences of products with K.

Where a product with K takes far less than n^2 evaluations, so does its derivative along the logarithm of a parameter:

    dK W / d log theta ~= (K(theta e^h) W - K(theta e^-h) W) / 2h,

for any kernel, with the products that it has. The truncation error is h^2 / 6 times the third derivative: at h = 0.01
1.7e-5 of the derivative for an amplitude, and about 2.5e-5 for a length scale (squared exponential, Matern, rational
quadratic). An error e of the products adds e / h. An amplitude of the whole kernel needs no difference: the derivative
is K itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dkgp.data.types import BoolArray
from dkgp.kernels import Kernel
from dkgp.operators.base import FloatArray

# h, on a logarithmic scale.
STEP = 0.01


def slope_products(
    product: Callable[[Kernel], FloatArray], kernel: Kernel, moved: BoolArray
) -> Iterator[tuple[int, FloatArray]]:
    """Yield each moved parameter's index and dK W / d log(parameter), (n, t).

    Parameters
    ----------
    product : callable
        Returns K W, without noise, for a kernel; the array may be written to.
    moved : (q,) bool
        Parameters of `kernel` whose derivatives are needed.
    """
    values = np.array([parameter.value for parameter in kernel.parameters()])
    amplitude = kernel.amplitude_index
    for index in np.flatnonzero(moved):
        if values[index] == 0.0:  # a feature that is switched off has no logarithm to move
            continue
        if index == amplitude:
            yield int(index), product(kernel)
            continue
        shifts = np.zeros(len(values))
        shifts[index] = STEP
        slopes = product(kernel.with_parameters(values * np.exp(shifts)))
        slopes -= product(kernel.with_parameters(values * np.exp(-shifts)))
        slopes /= 2.0 * STEP
        yield int(index), slopes
