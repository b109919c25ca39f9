"""A check that a kernel's matrices are positive definite, for kernels that users wrote."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dkgp.errors import InputError
from dkgp.kernels.base import Kernel
from dkgp.kernels.user import UserKernel

__all__ = ["check_positive_definite", "has_user_function"]


def has_user_function(kernel: Kernel) -> bool:
    """True if some part of the kernel is a user's function, so that nobody has proven it positive definite."""
    return any(isinstance(part, UserKernel) for part in kernel.walk())


def check_positive_definite(kernel: Kernel, inputs: ArrayLike, *, samples: int = 256, seed: int = 0) -> None:
    """Make sure that the kernel's matrix on some of the inputs is symmetric and has no negative eigenvalue.

    Passing is no proof; but a kernel that is not positive definite mostly shows it on a few hundred samples.

    Parameters
    ----------
    kernel : Kernel
    inputs : (n, d) array_like
    samples : int, default 256
        How many of the inputs are drawn; all where there are fewer. O(samples^3).
    seed : int
        Of the draw.

    Raises
    ------
    InputError
        The matrix is not finite, not symmetric, or has an eigenvalue below zero by more than rounding, which is taken
        as 100 samples eps times the greatest.
    """
    rows = kernel.one_side(inputs)
    if samples < 1:
        raise InputError(f"samples must be at least 1; got {samples}")
    if rows.shape[0] > samples:
        chosen = np.random.default_rng(seed).choice(rows.shape[0], size=samples, replace=False)
        rows = rows[np.sort(chosen)]
    if not rows.shape[0]:
        return
    K = kernel(rows, rows)
    advice = "Correct the function, or use one that is known to be positive definite"
    if not np.all(np.isfinite(K)):
        i, j = (int(index) for index in np.argwhere(~np.isfinite(K))[0])
        raise InputError(
            f"the kernel is {K[i, j]} between rows {rows[i].tolist()} and {rows[j].tolist()}; expected finite values. "
            f"{advice}"
        )
    largest = float(np.abs(K).max())
    asymmetry = float(np.abs(K - K.T).max())
    if asymmetry > 100.0 * np.finfo(np.float64).eps * largest:
        raise InputError(
            f"the kernel is not symmetric: k(x, x') and k(x', x) differ by up to {asymmetry:.3g}, with values up to "
            f"{largest:.3g}; expected a function that does not mind the order. {advice}"
        )
    eigenvalues = np.linalg.eigvalsh(K)
    smallest, greatest = float(eigenvalues[0]), float(eigenvalues[-1])
    if smallest < -100.0 * len(K) * np.finfo(np.float64).eps * max(greatest, 0.0) or greatest < 0.0:
        raise InputError(
            f"the kernel is not positive definite: its matrix on {len(K)} samples has the eigenvalue {smallest:.3g}, "
            f"{abs(smallest / greatest):.1e} of the greatest, {greatest:.3g}; expected none below zero. {advice}"
        )
