"""Slopes and conjugates of the losses, by their definitions on a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.solvers.losses import HuberLoss, LogisticLoss, SquaredLoss


@pytest.mark.parametrize(
    ("loss", "targets"),
    [(SquaredLoss(), (0.3, -1.7)), (HuberLoss(0.5), (0.3, -1.7)), (LogisticLoss(), (1.0, -1.0))],
    ids=["squared", "huber", "logistic"],
)
def test_slopes_and_conjugates_by_definition(loss: Any, targets: tuple[float, float]) -> None:
    grid = np.linspace(-30.0, 30.0, 60_001)
    for y in targets:
        many = np.full_like(grid, y)
        slope = np.gradient(loss.value(many, grid), grid)
        np.testing.assert_allclose(loss.slope(many, grid)[1:-1], slope[1:-1], atol=1e-3)
        for share in (0.1, 0.4):
            u = -share * y / abs(y)
            largest = np.max(u * grid - loss.value(many, grid))
            assert loss.conjugate(np.array([y]), np.array([u]))[0] == pytest.approx(largest, abs=1e-5)
    assert np.isinf(LogisticLoss().conjugate(np.array([1.0]), np.array([0.1])))[0]
    assert np.isinf(HuberLoss(0.5).conjugate(np.array([1.0]), np.array([0.6])))[0]


def test_a_huber_loss_needs_a_width() -> None:
    with pytest.raises(InputError, match="width of a Huber loss"):
        HuberLoss(0.0)
