"""Kernels none of whose entries is negative, wherever: so that sums of their sizes are products."""

from __future__ import annotations

from dkgp.kernels import (
    ActiveDimensions,
    Constant,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
)

__all__ = ["entries_not_negative"]

_LEAVES = (Constant, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, SquaredExponential)
_MADE_OF_THEM = (ActiveDimensions, Product, Scaled, Sum)


def entries_not_negative(kernel: Kernel) -> bool:
    """True if it is known that k(x, x') >= 0 for all x and x'."""
    return all(isinstance(part, (*_LEAVES, *_MADE_OF_THEM)) for part in kernel.walk())
