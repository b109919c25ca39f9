"""Memory that a minimisation of a risk takes, declared as solvers of linear systems declare theirs."""

from __future__ import annotations

from dkgp.solvers.registry import SolverMemory

__all__ = ["risk_memory"]

# Of n-vectors by column besides alpha, g and the targets: values, K g, two directions with their images, roots of the
# curvature, a step under way with its image, as pairs.
PAIRS = 5


def risk_memory() -> SolverMemory:
    """Return what a method holds: vectors of all samples, whichever it is; its products are repeated."""
    return SolverMemory(memory=PAIRS, repeats_products=True)
