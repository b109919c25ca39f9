"""Problems that both of this room's estimators are tried on."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def waves(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (120, 2), targets far from zero mean and unit variance, and test inputs (25, 2)."""
    X, X_new = rng.uniform(-3.0, 3.0, (120, 2)), rng.uniform(-4.0, 4.0, (25, 2))
    return X, 5.0 + 3.0 * (np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=120)), X_new
