"""What a plan is validated by."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

from dkgp.kernels import SquaredExponential
from dkgp.plan.validation.entries import entry_seconds


def test_an_entry_takes_no_longer_than_numpy_needs() -> None:
    kernel = SquaredExponential(gamma=(0.3, 0.3))
    with threadpool_limits(1):
        single, double = (entry_seconds(kernel, precision, 1) for precision in ("single", "double"))
    assert 1e-12 < single < double < 1e-7
