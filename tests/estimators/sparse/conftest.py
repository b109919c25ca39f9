from __future__ import annotations

import pytest

from dkgp import SparseGPRegressor
from tests.estimators.conftest import KERNEL, NOISE, Problem


@pytest.fixture(scope="session")
def sparse(problem: Problem) -> SparseGPRegressor:
    """With hyperparameters that are given; not to be changed by a test."""
    return SparseGPRegressor(KERNEL, noise_variance=NOISE, basis_size=60).fit(problem.X, problem.y)
