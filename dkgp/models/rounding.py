"""How far a computed kernel value may be from the exact one: what every proof's rounding terms start from."""

from __future__ import annotations

from dkgp.kernels import Kernel, TileEvaluator

__all__ = ["ENTRY_ERROR", "entry_error"]

# A squared distance of d terms and an exponential, in units of eps * sqrt(k(x, x) k(x', x')).
ENTRY_ERROR = 32.0


def entry_error(kernel: Kernel) -> float:
    """Bound on the error of one entry by differences in float64; never below `ENTRY_ERROR`.

    Parameters
    ----------
    kernel : Kernel
        One of many terms, or of a high power, has larger errors.

    Returns
    -------
    float
        In units of eps * sqrt(k(x, x) k(x', x')).
    """
    evaluator = TileEvaluator(kernel, "double", expanded=False)
    return max(ENTRY_ERROR, float(getattr(evaluator, "entry_error", ENTRY_ERROR)))
