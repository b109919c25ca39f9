"""Blocks of what a factor leaves: never less than the exact form, and far less than by single samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.models.variance.bounds import Queries, factor_interval, plain_weights
from dkgp.models.variance.nystrom import GROUP, LARGE_GROUP, NystromFactor, factor_bytes
from tests.models.variance.test_batch import REGIMES, landmarks
from tests.models.variance.variance_problems import VarianceProblem, draw, long_kernel, solve

Long = np.longdouble


def proving(problem: VarianceProblem, rank: int, **options: Any) -> NystromFactor:
    return NystromFactor.of(problem.source(landmarks(problem, rank), precision="double", proves=True, **options))


def left_by(problem: VarianceProblem, factor: NystromFactor) -> np.ndarray:
    """E = K - K_nI (L L')^-1 K_In, by substitution in extended precision."""
    lower = factor.lower.astype(Long)
    kernel = long_kernel(factor._landmark_inputs, problem.X, problem.kernel)
    for row in range(len(lower)):
        kernel[row] = (kernel[row] - lower[row, :row] @ kernel[:row]) / lower[row, row]
    return np.asarray(long_kernel(problem.X, problem.X, problem.kernel) - kernel.T @ kernel)


def spread(factor: NystromFactor, v: np.ndarray, *, grouped: bool = True) -> np.ndarray:
    total = np.zeros(v.shape[1])
    for _, where in factor.pieces():
        single = np.sqrt(factor.residual_diagonal[where])
        assert factor.remainder is not None
        total += factor.remainder.spread(where, v[where], single) if grouped else single @ np.abs(v[where])
    return total**2


@pytest.mark.covering
@pytest.mark.parametrize("group", [7, GROUP, LARGE_GROUP])
@pytest.mark.parametrize("name", REGIMES)
def test_the_bound_is_above_the_form(name: str, group: int) -> None:
    """Along vectors at random, the solutions that it is for, and the blocks' own leading ones."""
    problem = REGIMES[name]
    factor = proving(problem, 30, group=group)
    left = left_by(problem, factor)
    rng = np.random.default_rng(0)
    leading = np.linalg.eigh(left[:group, :group].astype(np.float64))[1]
    v = np.hstack([rng.normal(size=(problem.n, 3)), np.zeros((problem.n, leading.shape[1]))])
    v[: len(leading), 3:] = leading
    exact = np.einsum("it,it->t", v.astype(Long), left @ v.astype(Long))
    bound = spread(factor, v)
    assert np.all(exact <= bound)
    assert np.all(bound <= spread(factor, v, grouped=False) * (1.0 + 1e-12))


@pytest.mark.parametrize("name", REGIMES)
def test_every_interval_contains_the_exact_variance(name: str) -> None:
    problem = REGIMES[name]
    for group in (5, GROUP, LARGE_GROUP):
        for rank in (10, 60):
            factor = proving(problem, min(rank, problem.n), group=group)
            for latent in (False, True):
                problem.assert_holds(solve(problem, factor, gap=1e-3, max_passes=0, latent=latent), latent)


def test_a_smooth_kernels_intervals_are_several_times_narrower() -> None:
    problem = draw(70, 1500, 4, gamma=0.3, noise=0.05, fresh=60)
    factor = proving(problem, 150)
    plain = problem.factor(landmarks(problem, 150), precision="double")
    test = Queries.of(factor, problem.T)
    found, before = (factor_interval(each, test, plain_weights(each, test)) for each in (factor, plain))
    assert np.median((found.upper - found.lower) / (before.upper - found.lower)) < 0.25


@pytest.mark.parametrize("group", [GROUP, LARGE_GROUP])
def test_bytes_are_those_planned_for(group: int) -> None:
    problem = draw(71, 1500, 4, gamma=0.3, noise=0.05, fresh=5)
    for held in (True, False):
        factor = proving(problem, 60, held=held, group=group)
        planned = factor_bytes(1500, 60, "double", held=held, proves=True, group=group)
        assert planned <= factor.nbytes < 1.2 * planned


def test_threads_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw(72, 1300, 4, gamma=0.3, noise=0.05, fresh=20)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr("dkgp.models.variance.nystrom.process_threads", lambda threads=threads: threads)
        factor = proving(problem, 60)
        found.append(solve(problem, factor, gap=1e-3, max_passes=0))
    assert found[0].upper.tobytes() == found[1].upper.tobytes()
