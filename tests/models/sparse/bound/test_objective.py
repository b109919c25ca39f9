"""The evidence and its gradient against many digits, against differences for every kernel, and on any executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.cluster.executors.base import BlockExecutor, HereExecutor
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, NumericalError
from dkgp.kernels import Linear, SquaredExponential
from dkgp.models import RunContext
from dkgp.models.sparse import bound as slopes_module
from dkgp.models.sparse.bound import BoundObjective, BoundValue
from dkgp.operators import ArrayInputs
from dkgp.operators.cross import tasks as cross_tasks
from dkgp.progress import Progress
from tests.kernels.table import CASES, Case
from tests.models.sparse.bound.evidence_in_digits import in_digits
from tests.workers import on_dask

N, M = 60, 15


def rows(n: int = N, d: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, two targets, and a basis of samples and of others."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    Y = np.column_stack([np.sin(X[:, 0]) + X[:, -1], X[:, 0] ** 2 - 1.0]) + 0.1 * rng.standard_normal((n, 2))
    return X, Y, np.concatenate([X[:: n // M][: M - 3], rng.standard_normal((3, d))])


@pytest.mark.spread(2)
@pytest.mark.covering
@pytest.mark.parametrize("fitc", [False, True], ids=["bound", "fitc"])
@pytest.mark.parametrize(
    ("gamma", "variance", "s2", "accuracy"),
    [
        ((0.4, 0.9), 1.3, 0.05, 1e-11),
        ((30.0, 20.0), 0.7, 0.01, 1e-11),  # the basis leaves nearly all
        ((1e-3, 2e-3), 2.0, 1e-4, 1e-6),  # K_mm is singular in float64 but for its jitter
        ((0.4, 0.9), 1.0, 1e-8, 1e-6),
    ],
)
def test_value_and_gradient_are_those_in_many_digits(
    gamma: tuple[float, ...], variance: float, s2: float, accuracy: float, fitc: bool, one_thread: LocalExecutor
) -> None:
    X, Y, _ = rows(16, 2)
    Z = np.concatenate([X[::4], [[0.3, -0.2]]])
    found = BoundObjective(ArrayInputs(X), Y, one_thread, fitc=fitc)(SquaredExponential(gamma, variance), s2, Z)
    value, gradient = in_digits(np.array([*gamma, variance, s2]), X, Y, Z, fitc=fitc)
    assert found.value == pytest.approx(value, rel=accuracy)
    np.testing.assert_allclose(found.gradient, gradient, rtol=0.0, atol=accuracy * np.abs(gradient).max())


@pytest.mark.long
@pytest.mark.covering
@pytest.mark.parametrize("fitc", [False, True], ids=["bound", "fitc"])
@pytest.mark.parametrize("case", [case for case in CASES if case.kernel.pairwise], ids=lambda case: case.name)
def test_gradient_of_every_kernel_is_the_slope_of_the_value(
    case: Case, fitc: bool, rng: np.random.Generator, one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along a direction that moves all parameters at once; several tiles of derivatives, and several pieces."""
    monkeypatch.setattr(slopes_module, "TILE_ROWS", 8)
    d = case.kernel.n_features
    if not d:
        pytest.skip("an operator needs features")
    X, Y, Z = rows(d=d)
    objective = BoundObjective(ArrayInputs(X), Y, one_thread, fitc=fitc)
    at = np.log([*(parameter.value for parameter in case.kernel.parameters()), 0.05])
    way = rng.standard_normal(len(at))

    def value(step: float) -> BoundValue:
        moved = np.exp(at + step * way)
        return objective(case.kernel.with_parameters(moved[:-1]), float(moved[-1]), Z)

    h = 1e-4
    before, after = [value(-h).value, value(h).value], [value(-2.0 * h).value, value(2.0 * h).value]
    slope = (8.0 * (before[1] - before[0]) - (after[1] - after[0])) / (12.0 * h)
    gradient = value(0.0).gradient
    assert gradient @ way == pytest.approx(slope, rel=2e-7, abs=1e-6 * float(np.abs(gradient).max()))


@pytest.mark.parametrize("fitc", [False, True], ids=["bound", "fitc"])
def test_with_all_samples_as_the_basis_it_is_the_marginal_likelihood(fitc: bool, one_thread: LocalExecutor) -> None:
    X, Y, _ = rows()
    kernel, s2 = SquaredExponential((0.5, 0.8, 0.3)), 0.07
    Kbar = kernel(X, X) + s2 * np.eye(N)
    exact = -0.5 * (np.sum(Y * np.linalg.solve(Kbar, Y)) + 2 * np.linalg.slogdet(2.0 * np.pi * Kbar)[1])
    found = BoundObjective(ArrayInputs(X), Y, one_thread, fitc=fitc)(kernel, s2, X)
    assert found.value == pytest.approx(exact, abs=1e-5)
    assert found.unexplained < 1e-8
    if not fitc:
        assert found.value <= exact + 1e-9


def test_fitc_is_the_bound_and_what_the_basis_leaves(one_thread: LocalExecutor) -> None:
    """R & W's formulas densely: log N(y; 0, Q + S), once with E's diagonal in it and once its trace taken off."""
    X, Y, Z = rows()
    kernel, s2 = Linear(weight=(1.0, 0.5, 2.0)) + SquaredExponential((0.5, 0.8, 0.3)), 0.07
    Q = kernel(X, Z) @ np.linalg.solve(kernel(Z, Z), kernel(Z, X))
    e = kernel.diagonal(X) - np.diag(Q)
    for fitc, noise, off in ((False, np.full(N, s2), e.sum() / s2), (True, s2 + e, 0.0)):
        S = Q + np.diag(noise)
        value = -0.5 * np.sum(Y * np.linalg.solve(S, Y)) - np.linalg.slogdet(2.0 * np.pi * S)[1] - off
        found = BoundObjective(ArrayInputs(X), Y, one_thread, fitc=fitc)(kernel, s2, Z)
        assert found.value == pytest.approx(value, rel=1e-6)
        assert found.unexplained == pytest.approx(e.sum() / kernel.diagonal(X).sum(), rel=1e-5)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X, Y, _ = rows(2100)
    return dataset_from_arrays(tmp_path_factory.mktemp("bound") / "train.zarr", X, Y, chunk_rows=300)


def everywhere(dataset: Dataset, executor: BlockExecutor) -> list[bytes]:
    Z = dataset.input_rows(np.arange(0, 2100, 42))
    found = []
    for fitc in (False, True):
        for kernel in (SquaredExponential((0.5, 0.8, 0.3)), Linear(weight=(1.0, 0.5, 2.0))):
            objective = BoundObjective(
                dataset, dataset.all_targets(), RunContext(executor, coordinator_input_bytes=0), fitc=fitc
            )
            value = objective(kernel, 0.05, Z if kernel.stationary else Z[:3])
            found.append(np.append(value.gradient, [value.value, value.unexplained]).tobytes())
    return found


@pytest.fixture(scope="module")
def expected(dataset: Dataset) -> list[bytes]:
    executor = LocalExecutor(1)
    found = everywhere(dataset, executor)
    executor.close()
    return found


@pytest.mark.long
def test_any_number_of_threads_gives_the_same_bits(dataset: Dataset, expected: list[bytes]) -> None:
    for executor in (LocalExecutor(2), LocalExecutor(5), HereExecutor(1), HereExecutor(3)):
        assert everywhere(dataset, executor) == expected
        executor.close()


@pytest.mark.parametrize(("workers", "processes"), [(5, False), pytest.param(2, True, marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_bits(
    dataset: Dataset, expected: list[bytes], workers: int, processes: bool
) -> None:
    with on_dask(workers, processes) as (executor, _):
        assert everywhere(dataset, executor) == expected


def test_more_runs_add_up_to_the_same(one_thread: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, Z = rows(2100)
    objective = BoundObjective(ArrayInputs(X), Y, one_thread, fitc=True)
    kernel = SquaredExponential((0.5, 0.8, 0.3))
    expected = objective(kernel, 0.05, Z)
    monkeypatch.setattr(cross_tasks, "unit_count", lambda n: 1)
    monkeypatch.setattr(cross_tasks, "LARGEST_PIECE", 64)
    monkeypatch.setattr(cross_tasks, "SMALLEST_PIECE", 64)
    found = objective(kernel, 0.05, Z)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-10)


def test_rounding_that_exceeds_the_noise_is_refused_and_so_are_targets_of_other_samples(
    one_thread: LocalExecutor,
) -> None:
    X, Y, Z = rows()
    objective = BoundObjective(ArrayInputs(X), Y, one_thread)
    with pytest.raises(NumericalError, match="exceeds the noise variance"):
        objective(SquaredExponential((1e-4,) * 3, variance=1e4), 1e-16, X)
    with pytest.raises(NumericalError, match=r"overflows|not positive definite"):
        objective(Linear(weight=(1e200, 1.0, 1.0), variance=1e200), 0.1, Z[:1])
    with pytest.raises(InputError, match=r"expected targets of shape \(60, p\)"):
        BoundObjective(ArrayInputs(X), Y[:-1], one_thread)


def test_a_pass_can_be_interrupted(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows(2100)

    def watch(progress: Progress) -> None:
        if progress.phase == "slopes":
            raise InterruptedRunError("enough")

    objective = BoundObjective(ArrayInputs(X), Y, RunContext(one_thread, within=watch))
    with pytest.raises(InterruptedRunError, match="enough"):
        objective(SquaredExponential((0.5, 0.8, 0.3)), 0.05, Z)


def test_duplicated_samples_count_twice(one_thread: LocalExecutor) -> None:
    X, Y, Z = rows()
    kernel = replace(SquaredExponential((0.5, 0.8, 0.3)), variance=1.2)
    twice = BoundObjective(ArrayInputs(np.repeat(X, 2, axis=0)), np.repeat(Y, 2, axis=0), one_thread)(kernel, 0.1, Z)
    # A sample that is there twice with the same target is one of half the noise, but for the constant.
    once = BoundObjective(ArrayInputs(X), Y, one_thread)(kernel, 0.05, Z)
    constant = -2 * 0.5 * (2 * N * np.log(2.0 * np.pi * 0.1) - N * np.log(2.0 * np.pi * 0.05))
    assert twice.value == pytest.approx(once.value + constant, rel=1e-9)
    np.testing.assert_allclose(twice.gradient[:-1], once.gradient[:-1], rtol=1e-8)
