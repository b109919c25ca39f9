"""Products of kernels that float64 loses on the way: refused by name, since no bound knows of what underflows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dkgp.errors import InputError
from dkgp.kernels.base import Kernel
from dkgp.kernels.composite import Product, Scaled
from dkgp.kernels.user import UserKernel

__all__ = ["require_digits"]

# Entries of a smaller kernel may be no numbers of sixteen digits any more.
LEAST_PRODUCT = 1e-280


def require_digits(kernel: Kernel) -> None:
    """Refuse products and multiples, anywhere in a kernel, that may come so near to zero on their way that digits go.

    Magnitudes are k(x, x) at inputs of one standard deviation each. Profiles, weights and amplitudes are multiplied in
    an order of their own; the least that any order comes to is the product of what is below one.

    Raises
    ------
    InputError
        Names the parts' magnitudes.
    """
    for each in kernel.walk():
        if isinstance(each, Product):
            _require("the parts of a product", [_magnitude(part) for part in each.parts])
        elif isinstance(each, Scaled):
            _require("a kernel and its scale", [_magnitude(each.kernel), each.scale])


def _magnitude(kernel: Kernel) -> float:
    """k(x, x) at a row of ones; of a user's function of two rows, which is what it is there, its factor."""
    children = [_magnitude(child) for child in kernel.children]
    if isinstance(kernel, Product):
        return math.prod(children)
    if isinstance(kernel, Scaled):
        return kernel.scale * children[0]
    if children:
        return math.fsum(children)
    if isinstance(kernel, UserKernel) and not kernel.stationary:
        return kernel.variance
    return float(kernel.diagonal(np.ones((1, kernel.n_features)))[0])


def _require(what: str, magnitudes: Sequence[float]) -> None:
    small = [magnitude for magnitude in magnitudes if magnitude < 1.0]
    if len(small) > 1 and math.prod(small) < LEAST_PRODUCT:
        told = ", ".join(f"{magnitude:.3g}" for magnitude in magnitudes)
        raise InputError(
            f"{what} have the magnitudes {told} at inputs of one standard deviation; those below one come to "
            f"{math.prod(small):.3g}, and float64 keeps the digits of what is above {LEAST_PRODUCT:g}. Choose other "
            "variances, scales or weights"
        )
