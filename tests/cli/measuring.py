"""A plan's measurements of the machine, in no time."""

from __future__ import annotations

import pytest


def measure_little(patch: pytest.MonkeyPatch) -> None:
    """Measure little, and in this process."""
    patch.setattr("dkgp.plan.machine.SELECTION_SIZES", (50, 100, 150))
    patch.setattr("dkgp.plan.machine.LEAST_SECONDS", 0.001)
    patch.setattr("dkgp.plan.machine.TILE_SHAPE", (512, 256))
    patch.setattr("dkgp.plan.machine.LEAVES", 2)
    patch.setattr("dkgp.plan.machine.MATRIX_ORDER", 64)
    patch.setattr("dkgp.plan.machine.measure_speedups", lambda kernel: (1.0, 1.5))
