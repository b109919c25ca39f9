"""The proven distance of means with neighbours from the exact ones: never passed, and nothing where they are exact."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.kernels import SquaredExponential
from dkgp.models.context import RunContext
from dkgp.models.sparse.vif.distance import certified_weights, mean_distance
from dkgp.models.sparse.vif.objective import Neighbourhood, Neighbours
from dkgp.operators import ArrayInputs
from tests.models.sparse.vif.test_objective import rows
from tests.models.sparse.vif.test_prediction import of_basis


def exact_means(
    X: np.ndarray, Y: np.ndarray, T: np.ndarray, gamma: tuple[float, ...], s2: float | np.ndarray
) -> np.ndarray:
    """Of a squared exponential, in 40 digits."""
    noise = np.broadcast_to(s2, (len(X),))

    def entry(a: np.ndarray, b: np.ndarray) -> mpmath.mpf:
        return mpmath.exp(-sum(mpmath.mpf(g) * (mpmath.mpf(p) - q) ** 2 for g, p, q in zip(gamma, a, b, strict=True)))

    with mpmath.workdps(40):
        Kbar = mpmath.matrix([[entry(a, b) for b in X.tolist()] for a in X.tolist()])
        for i in range(len(X)):
            Kbar[i, i] += mpmath.mpf(float(noise[i]))
        columns = []
        for y in Y.T:
            alpha = mpmath.lu_solve(Kbar, mpmath.matrix(y.tolist()))
            columns.append([float(sum(entry(t, x) * a for x, a in zip(X.tolist(), alpha, strict=True))) for t in T])
        return np.array(columns).T


@pytest.mark.covering
@pytest.mark.parametrize(
    ("leaf", "halo", "size", "farthest"), [(4, 6, 8, np.inf), (1, 0, 0, np.inf), (4, 40, 40, 1e-9)]
)
@pytest.mark.parametrize("by_sample", [False, True])
def test_the_exact_mean_is_within_the_distance(
    leaf: int, halo: int, size: int, farthest: float, by_sample: bool, one_thread: LocalExecutor
) -> None:
    X, Y, Z = rows(40)
    T = np.random.default_rng(3).standard_normal((12, 2))
    gamma, s2 = (1.0, 0.5), 0.02 * (np.linspace(0.5, 2.0, 40) if by_sample else 1.0)
    context = RunContext.of(one_thread)
    with context.operator(SquaredExponential(gamma), s2, ArrayInputs(X)) as operator:
        held = Neighbourhood(operator, Neighbours(leaf, halo))
        model = held.described(operator, Z[:4])
        joint = held.joint(operator, model, Y)
        mean, _ = of_basis(operator, Y, Z[:4], Neighbours(leaf, halo), size)(T)
        weights = held.weights(operator, model, joint, Y)
        distance = mean_distance(operator, certified_weights(operator, weights, Y), weights, T, mean)
    apart = np.abs(mean - exact_means(X, Y, T, gamma, s2))
    assert (apart <= distance).all()
    assert distance.max() < farthest
    if farthest == np.inf:
        assert distance.max() < 200.0 * apart.max()  # worth something: not a number that bounds all
