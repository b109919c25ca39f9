"""Kernels and their derivatives by definition: in long double, with bounds on its errors, and exactly in mpmath."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath as mp
import numpy as np

from dkgp.kernels import Kernel

LD = np.longdouble
UNIT = 2.0**-64
# Roundings of an entry, relative to the kernel's magnitude, and of a derivative, relative to the kernel's magnitude
# over its length scale: at most 7 of the squared distance, 15 of the functions' arguments and 8 of their values, times
# s |f'| or sqrt(s) (|f'| + s |f''|), which are below 1 and below 6.
ENTRY_ROUNDINGS, SLOPE_ROUNDINGS = 40.0, 400.0


def leaves(kernel: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a sum with their factors, None for a constant."""
    if kernel.type_name == "constant":
        yield kernel, None
    elif hasattr(kernel, "parts"):
        for part in kernel.parts:
            yield from leaves(part)
    elif hasattr(kernel, "scale"):
        for part, factor in leaves(kernel.kernel):
            yield part, kernel.scale * (1.0 if factor is None else factor)
    else:
        yield kernel, 1.0


def _range_units(s: Any, functions: Any) -> Any:
    """Return the distance in ranges of a compact kernel, at most one."""
    u = functions.sqrt(2 * s)
    return np.minimum(u, 1) if isinstance(u, np.ndarray) else min(u, mp.mpf(1))


def formula(kernel: Any, s: Any, functions: Any) -> Any:
    """Return f of s = sum_l gamma_l (x_l - x'_l)^2, in any arithmetic."""
    name = kernel.type_name
    if name == "rbf":
        return functions.exp(-s)
    if name == "rq":
        return functions.exp(-kernel.alpha * functions.log1p(s / kernel.alpha))
    if name.startswith("matern"):
        u = functions.sqrt({"matern12": 2, "matern32": 6, "matern52": 10}[name] * s)
        return {"matern12": 1, "matern32": 1 + u, "matern52": 1 + u + u * u / 3}[name] * functions.exp(-u)
    u = _range_units(s, functions)
    return {
        "spherical": (1 - u) ** 2 * (1 + u / 2),
        "cubic": (1 - u) ** 4 * (1 + u * (4 + u * (3 + 3 * u / 4))),
        "wendland": (1 - u) ** 4 * (1 + 4 * u),
    }[name]


def derivative(kernel: Any, s: Any, functions: Any) -> Any:
    """Return df/ds of `formula`, for kernels that have one at zero."""
    name = kernel.type_name
    if name == "rbf":
        return -functions.exp(-s)
    if name == "rq":
        logarithm = functions.log1p(s / kernel.alpha)
        return -functions.exp(-kernel.alpha * logarithm - logarithm)
    if name == "matern32":
        return -3 * functions.exp(-functions.sqrt(6 * s))
    if name == "matern52":
        u = functions.sqrt(10 * s)
        return -5 * (1 + u) * functions.exp(-u) / 3
    u = _range_units(s, functions)
    return -((1 - u) ** 3) * {"cubic": 14 + u * (63 + 21 * u) / 4, "wendland": 20}[name]


def dense(kernel: Kernel, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Return K(targets, sources) in long double."""
    K = np.zeros((len(targets), len(sources)), LD)
    for part, factor in leaves(kernel):
        if factor is None:
            K += LD(part.variance)
        else:
            K += LD(factor) * LD(part.variance) * formula(part, _squares(part, targets, sources), np)
    return K


def dense_slopes(kernel: Kernel, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """Return the derivatives of K(targets, sources) in the targets, in long double: (d, r, n)."""
    d = targets.shape[1]
    result = np.zeros((d, len(targets), len(sources)), LD)
    for part, factor in leaves(kernel):
        if factor is None:
            continue
        slopes = LD(factor) * LD(part.variance) * derivative(part, _squares(part, targets, sources), np)
        for feature, gamma in enumerate(part.feature_gamma):
            gap = targets[:, None, feature].astype(LD) - sources[None, :, feature].astype(LD)
            result[feature] += 2 * LD(gamma) * gap * slopes
    return result


def _squares(part: Any, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
    s = np.zeros((len(targets), len(sources)), LD)
    for feature, gamma in enumerate(part.feature_gamma):
        s += LD(gamma) * (targets[:, None, feature].astype(LD) - sources[None, :, feature].astype(LD)) ** 2
    return s


def exact_entry(kernel: Kernel, x: np.ndarray, y: np.ndarray, axis: int | None = None) -> Any:
    """Return k(x, y), or its derivative in a coordinate of x, in the working precision of mpmath."""
    total = mp.mpf(0)
    for part, factor in leaves(kernel):
        if factor is None:
            total += mp.mpf(part.variance) if axis is None else 0
            continue
        gaps = [mp.mpf(float(a)) - mp.mpf(float(b)) for a, b in zip(x, y, strict=True)]
        s = mp.fsum(mp.mpf(gamma) * gap**2 for gamma, gap in zip(part.feature_gamma, gaps, strict=True))
        value = formula(part, s, mp) if axis is None else derivative(part, s, mp)
        if axis is not None:
            value *= 2 * mp.mpf(part.feature_gamma[axis]) * gaps[axis]
        total += mp.mpf(factor) * mp.mpf(part.variance) * value
    return total
