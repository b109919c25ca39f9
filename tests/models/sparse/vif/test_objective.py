"""The likelihood with neighbours against its definition, its limits, and its slopes against differences."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models.sparse.bound import BoundObjective
from dkgp.models.sparse.vif import Neighbours, VifObjective
from dkgp.operators import ArrayInputs
from tests.kernels.table import CASES, Case
from tests.models.sparse.vif.dense_vif import covariance, log_likelihood
from tests.workers import on_dask

N = 50
KERNEL, S2 = SquaredExponential((2.0, 0.7), 1.3), 0.05


def rows(n: int = N, d: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, d))
    Y = np.column_stack([np.sin(2.0 * X[:, 0]) + X[:, -1], X[:, 0] ** 2 - 1.0]) + 0.1 * rng.standard_normal((n, 2))
    return X, Y, np.concatenate([X[::9][:6], rng.standard_normal((2, d))])


def objective(X: np.ndarray, Y: np.ndarray, executor: LocalExecutor, leaf: int, halo: int) -> VifObjective:
    return VifObjective(ArrayInputs(X), Y, executor, Neighbours(leaf, halo))


def leaves_of(held: VifObjective) -> list[tuple[np.ndarray, np.ndarray]]:
    """Halo and own samples of each leaf."""
    assert held._held is not None
    leaves = []
    for number in range(held._held.leaves.n_bundles):
        bundle = held._held.leaves.bundle(number)
        for places, halo in zip(bundle.places, bundle.halos, strict=True):
            leaves.append((bundle.samples[places[:halo]], bundle.samples[places[halo:]]))
    return leaves


@pytest.mark.parametrize("basis", [0, 8])
@pytest.mark.parametrize(("leaf", "halo"), [(1, 5), (8, 12), (N, 0), (5, 0)])
def test_value_is_that_of_the_definition(leaf: int, halo: int, basis: int, one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    tried = objective(X, Y, one_thread, leaf, halo)
    value = tried(KERNEL, S2, Z[:basis])
    leaves = leaves_of(tried)
    # Every sample is in one leaf, and its halo comes before.
    order = np.concatenate([own for _, own in leaves])
    assert sorted(order.tolist()) == list(range(N))
    place = np.argsort(order)
    assert all(place[before].max(initial=-1) < place[own].min() for before, own in leaves)
    expected = log_likelihood(covariance(KERNEL, S2, X, Z[:basis], leaves), Y)
    assert value.value == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("basis", [0, 8])
def test_with_all_samples_before_it_is_the_exact_likelihood(basis: int, one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    value = objective(X, Y, one_thread, 8, N)(KERNEL, S2, Z[:basis])
    exact = log_likelihood(np.asarray(KERNEL(X, X)) + S2 * np.eye(N), Y)
    assert value.value == pytest.approx(exact, rel=1e-10)


def test_without_neighbours_it_is_fitc_value_and_slopes(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    value = objective(X, Y, one_thread, 1, 0)(KERNEL, S2, Z)
    fitc = BoundObjective(ArrayInputs(X), Y, one_thread, fitc=True)(KERNEL, S2, Z)
    assert value.value == pytest.approx(fitc.value, rel=1e-10)
    np.testing.assert_allclose(value.gradient, fitc.gradient, rtol=1e-8)
    assert value.unexplained == pytest.approx(fitc.unexplained, rel=1e-8)


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize(("leaf", "halo", "basis"), [(8, 12, 8), (1, 6, 8), (8, 12, 0), (6, N, 8)])
@pytest.mark.parametrize("case", [case for case in CASES if case.kernel.pairwise], ids=lambda case: case.name)
def test_gradient_of_every_kernel_is_the_slope_of_the_value(
    case: Case, leaf: int, halo: int, basis: int, rng: np.random.Generator, one_thread: LocalExecutor
) -> None:
    """Along a direction that moves all parameters at once, in the order of where it begins."""
    d = case.kernel.n_features
    if not d:
        pytest.skip("an operator needs features")
    X, Y, Z = rows(d=d)
    tried = objective(X, Y, one_thread, leaf, halo)
    at = np.log([*(parameter.value for parameter in case.kernel.parameters()), 0.05])
    way = rng.standard_normal(len(at))
    tried.hold(case.kernel)

    def value(step: float) -> float:
        moved = np.exp(at + step * way)
        return tried(case.kernel.with_parameters(moved[:-1]), float(moved[-1]), Z[:basis]).value

    h = 1e-4
    slope = (8.0 * (value(h) - value(-h)) - (value(2.0 * h) - value(-2.0 * h))) / (12.0 * h)
    gradient = tried(case.kernel, 0.05, Z[:basis]).gradient
    assert gradient @ way == pytest.approx(slope, rel=1e-6, abs=1e-6 * float(np.abs(gradient).max()))


def test_order_is_held_and_made_anew_on_request(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    tried, other = objective(X, Y, one_thread, 4, 6), SquaredExponential((0.01, 9.0), 1.3)
    first = tried(KERNEL, S2, Z).value
    held = tried(other, S2, Z).value
    assert tried(KERNEL, S2, Z).value == first
    tried.hold(other)
    assert tried(other, S2, Z).value != held


def test_bits_do_not_depend_on_who_computes(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows(600)
    here = objective(X, Y, one_thread, 8, 16)(KERNEL, S2, Z)
    with on_dask(2, processes=False) as (executor, _):
        there = VifObjective(ArrayInputs(X), Y, executor, Neighbours(8, 16))(KERNEL, S2, Z)
    assert here.value == there.value
    np.testing.assert_array_equal(here.gradient, there.gradient)


def test_refusals(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    with pytest.raises(InputError, match="a halo of at least 0 samples, and leaves of at least 1; got -1 and 4"):
        Neighbours(4, -1)
    with pytest.raises(InputError, match=r"expected targets of shape \(50, p\); got \(50,\)"):
        VifObjective(ArrayInputs(X), Y[:, 0], one_thread)
    doubled = np.concatenate([X, X])
    tried = VifObjective(ArrayInputs(doubled), np.concatenate([Y, Y]), one_thread, Neighbours(4, 20))
    with pytest.raises(NumericalError, match="not positive definite with the noise, 1e-30: rounding exceeds it"):
        tried(KERNEL, 1e-30, Z)
