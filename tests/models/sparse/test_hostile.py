"""Sparse models of hostile problems: right within what is proven of them, in 50 digits, or refused in words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkgp.cluster import LocalExecutor
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import (
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    SquaredExponential,
)
from dkgp.models.sparse.bases import blind_basis
from dkgp.models.sparse.model import require_range
from dkgp.models.sparse.train import SparseSettings, TrainedSparse, train_sparse
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from tests.models.sparse.judge import Judged, Problem

N, M = 20, 9


def se(gamma: float, variance: float = 1.0, d: int = 2) -> SquaredExponential:
    return SquaredExponential(gamma=(gamma,) * d, variance=variance)


def problem(
    kernel: Kernel,
    noise: Any = 0.05,
    change: Callable[[np.ndarray], np.ndarray] = lambda X: X,
    *,
    y: float = 1.0,
    p: int = 1,
) -> Problem:
    rng = np.random.default_rng(5)
    d = kernel.n_features
    X, T = change(rng.standard_normal((N, d))), change(1.3 * rng.standard_normal((N, d)))[-2:]
    targets = np.sin(2.0 * rng.standard_normal((N, 1)) + np.arange(p)) + 0.1 * rng.standard_normal((N, p))
    return Problem(kernel, noise, X, y * targets, T)


def first(rows: int, factor: float) -> Callable[[np.ndarray], np.ndarray]:
    """The first rows, farther out."""
    return lambda X: np.concatenate([factor * X[:rows], X[rows:]])


LINEAR = Linear(weight=(1.0, 0.5))
CASES: dict[str, Callable[[], Problem]] = {
    "three targets": lambda: problem(se(0.5), p=3),
    "noise by sample, of ten orders": lambda: problem(se(0.5), np.logspace(-10.0, 0.0, N), p=2),
    "noise 1e-12": lambda: problem(se(0.3), 1e-12),
    "noise 1e-12 and rough": lambda: problem(Matern12(gamma=(1.0, 1.0)), 1e-12),
    "noise 1e-20": lambda: problem(Matern32(gamma=(1.0, 1.0)), 1e-20),
    "noise 1e-20 and smooth": lambda: problem(se(0.3), 1e-20),
    "K nearly one": lambda: problem(se(1e-12), 1e-7),
    "K nearly I": lambda: problem(se(1e12), 1e-7),
    "targets of 1e8": lambda: problem(se(0.5), y=1e8),
    "targets of 1e-8": lambda: problem(se(0.5), y=1e-8),
    "constant targets": lambda: problem(se(0.5), y=0.0),
    "amplitude 1e12": lambda: problem(se(0.5, 1e12)),
    "amplitude 1e-12": lambda: problem(se(0.5, 1e-12)),
    "inputs spread over 1e6": lambda: problem(se(1e-6), change=lambda X: 1e6 * X),
    "inputs 1e6 away": lambda: problem(se(0.5), change=lambda X: X + 1e6),
    "five samples far out": lambda: problem(se(0.5), change=first(5, 1e6)),
    "a constant feature": lambda: problem(se(0.5), change=lambda X: X * [1.0, 0.0]),
    "one row n times, d = 1": lambda: problem(se(0.5, d=1), 1e-9, change=lambda X: 0.0 * X + 0.3),
    "all within 1e-9": lambda: problem(se(0.5), 1e-6, change=lambda X: 1e-9 * X),
    "linear, two samples at zero": lambda: problem(LINEAR, change=first(2, 0.0)),
    "polynomial, samples far out": lambda: problem(
        Polynomial(weight=(1.0, 0.5), offset=1.0, degree=4), change=first(4, 1e2)
    ),
    "periodic": lambda: problem(Periodic(gamma=(0.5, 0.5), period=(1.0, 2.0))),
    "sum of products": lambda: problem(
        se(0.4) * LINEAR + Matern52(gamma=(0.3, 2.0)) + RationalQuadratic(gamma=(0.5, 0.5), alpha=0.7), 1e-6
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_what_is_said_holds_or_is_refused_in_words(name: str, one_thread: LocalExecutor) -> None:
    found, refused, checked = CASES[name](), list[str](), 0
    for method, m in (("sd", M), ("sr", 1), ("vfe", M), ("fitc", M), ("vfe", N)):
        judged = Judged(found, method, one_thread, np.sort(np.random.default_rng(m).permutation(N)[:m]))
        try:
            judged.judge()
        except NumericalError as error:
            refused.append(str(error))
            continue
        assert judged.broken == [], (method, m)
        checked += sum(judged.checked.values())
    # With more basis functions than float64 can tell apart at so little noise, no fit is near the best one.
    wanted = {
        "1e-20 and smooth": "rounding exceeds the noise variance 1e-20. Raise it",
        "zero": "is zero at all of the 1",
    }
    words = [text for part, text in wanted.items() if part in name]
    assert all(text in told for text in words for told in refused)
    assert len(refused) == len(words)
    print(f"\n{name}: {checked} statements hold, {len(refused)} models refused")


@pytest.mark.long
@settings(max_examples=15)
@given(
    st.integers(0, 10**6),
    st.floats(-6.0, 6.0),
    st.floats(-10.0, 1.0),
    st.floats(-8.0, 8.0),
    st.integers(1, 14),
    st.sampled_from(["sr", "fitc", "sd"]),
    st.sampled_from([Matern12, Matern32, Matern52, SquaredExponential]),
)
def test_problems_drawn_at_random(
    seed: int, log_gamma: float, log_noise: float, log_scale: float, m: int, method: str, kind: Any
) -> None:
    """Three targets and noise by sample, of any scale, some samples more than once."""
    rng, executor = np.random.default_rng(seed), LocalExecutor(1)
    X = rng.standard_normal((14, 2))[rng.integers(0, 14, 14)]
    kernel = kind(gamma=(10.0**log_gamma,) * 2, variance=10.0 ** rng.uniform(-3.0, 3.0))
    y, noise = 10.0**log_scale * rng.standard_normal((14, 3)), 10.0**log_noise * rng.uniform(0.1, 10.0, 14)
    judged = Judged(Problem(kernel, noise, X, y, rng.standard_normal((2, 2))), method, executor, np.arange(m))
    with contextlib.suppress(NumericalError):  # rounding exceeds the noise variance
        judged.judge()
    executor.close()
    assert judged.broken == []


def trained(executor: Any, X: np.ndarray, y: np.ndarray, kernel: Kernel, noise: float, **chosen: Any) -> TrainedSparse:
    return train_sparse(memory_dataset(X, y), kernel, noise, executor, SparseSettings(**chosen))


@pytest.mark.parametrize(
    ("kernel", "noise", "words"),
    [
        (se(0.5), 5e-324, "the noise variance is 4.94e-324; expected a value between 1e-100 and"),
        (se(0.5, 1e300), 0.1, r"the largest k\(x, x\) is 1e\+300"),
        (se(0.5, 1e80), 1e-30, r"k\(x, x\) over the noise variance is 1e\+110"),
        (se(0.5, 1e-300), 0.1, r"the largest k\(x, x\) is 1e-300"),
    ],
)
@pytest.mark.parametrize("method", ["vfe", "sd", "sggp"])
def test_what_sums_would_overflow_with_is_refused_before_work(
    method: str, kernel: Kernel, noise: float, words: str, one_thread: LocalExecutor
) -> None:
    X = np.random.default_rng(0).standard_normal((40, 2))
    with pytest.raises(NumericalError, match=words):
        trained(one_thread, X, X[:, :1], kernel, noise, method=method, basis_size=5)


@pytest.mark.parametrize("columns", [(1e-200, 1e-200), (1.0, 1e-200), (1.0, 1e-60), (1.0, 1e200)])
def test_targets_whose_squares_sums_would_lose_are_refused(
    columns: tuple[float, float], one_thread: LocalExecutor
) -> None:
    X = np.random.default_rng(0).standard_normal((40, 2))
    with BlockedKernelOperator(se(0.5), 0.1, ArrayInputs(X), one_thread) as operator:
        with pytest.raises(NumericalError, match="expected a value between 1e-100 and 1e"):
            require_range(operator, X * columns)
        require_range(operator, X * [0.0, 1.0])
        require_range(operator, 0.0 * X)


@pytest.mark.parametrize("noise", [0.0, -1.0, np.nan, np.inf])
def test_noise_that_is_none_is_refused(noise: float, one_thread: LocalExecutor) -> None:
    X = np.random.default_rng(0).standard_normal((40, 2))
    with pytest.raises(InputError, match="the noise variance must be finite and positive; got"):
        trained(one_thread, X, X[:, :1], se(0.5), noise, basis_size=5)


@pytest.mark.parametrize("basis", ["uniform", "entropy", "k-means", "pivoted", "k-centre", "variance", "greedy"])
def test_a_basis_of_duplicates_is_what_is_distinct_and_says_so(basis: str, one_thread: LocalExecutor) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    X[20:] = X[0]  # 20 distinct ones, most samples the same
    y = rng.standard_normal((300, 1))
    assert trained(one_thread, X, y, se(2.0), 0.1, basis=basis, method="sr", basis_size=15).model.m == 15
    found = trained(one_thread, X, y, se(2.0), 0.1, basis=basis, method="sr", basis_size=30)
    assert found.model.m == 20
    assert "20 basis samples" in found.summary["reason"]
    assert "further samples change nothing in float64" in found.summary["reason"]
    assert "of at most 30" in found.summary["reason"] or basis == "greedy"


def test_samples_without_a_variance_are_no_basis_by_variance(one_thread: LocalExecutor) -> None:
    """k(x, x) = 0 at the origin of a linear kernel: no sample's share of nothing is the largest."""
    X = np.random.default_rng(0).standard_normal((40, 2))
    X[:7] = 0.0
    operator = BlockedKernelOperator(LINEAR, 0.1, ArrayInputs(X), one_thread)
    found = blind_basis(operator, "variance", 5)
    assert len(found.indices) == 2  # the kernel's rank
    assert np.all(found.indices >= 7)


def test_bounds_that_say_nothing_are_no_numbers(one_thread: LocalExecutor) -> None:
    """The gap of a mean that is worse than none, whose posterior may be below that of no function at all."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    found = trained(one_thread, X, np.sin(3.0 * X[:, :1]), se(1e-3), 1e-9, method="sd", basis_size=10)
    assert found.certificate.gap.tolist() == [np.inf]
    assert found.certificate.total_gap == np.inf
    assert found.summary["gap"] == [None]
    json.dumps([found.summary, found.certificate.to_json()], allow_nan=False)
    constant = trained(one_thread, X, np.full((200, 1), 7.0), se(0.5), 0.1, method="sr", basis_size=5)
    assert constant.summary["gap"] == [0.0]
    assert constant.summary["rms_bound"] == [0.0]


def test_a_gap_is_met_where_it_is_proven_and_not_where_it_was_estimated(one_thread: LocalExecutor) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 2))
    y = np.sin(2.0 * X[:, :1]) + 0.03 * rng.standard_normal((150, 1))
    smooth: dict[str, Any] = {"method": "sggp", "basis_size": 150, "per_round": 1}
    found = trained(one_thread, X, y, se(0.05), 1e-3, gap=1e-3, **smooth)
    # The choice had nobody left to add; what is proven of its fit is enough.
    assert found.certificate.total_gap <= 1e-3
    assert found.converged
    assert found.summary["converged"]
    assert "<= 0.001 is proven" in found.summary["reason"]
    out_of_reach = trained(one_thread, X, y, se(0.05), 1e-3, gap=1e-14, **smooth)
    assert not out_of_reach.converged
    assert not out_of_reach.summary["converged"]
    assert out_of_reach.summary["advice"]


def test_an_exhaustive_choice_is_planned_with_all_its_sums(one_thread: LocalExecutor) -> None:
    few, every = (
        SparseSettings("sggp", 1000, exhaustive=exhaustive).memory(10**6, 10, 1, one_thread, 2**28, 10)
        for exhaustive in (False, True)
    )
    # k sums for each of n candidates, held once in parts and once together.
    assert every["choice_bytes"] - few["choice_bytes"] > 2 * 8 * 10**6 * 1000 * 0.99
