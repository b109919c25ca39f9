"""New samples for a trained model: the dense answer, for a fraction of a fresh fit's passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, append_rows, memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.exact import TrainedModel, train, update
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import GradientInfNorm, GreedyBlockCoordinateDescent, solve

N, NEW = 1000, 10
KERNEL = SquaredExponential(gamma=(0.8, 0.6, 0.4, 0.2))
NOISE = 0.01
SOLVER = GreedyBlockCoordinateDescent(block_size=100)


@pytest.fixture(scope="module")
def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    X = rng.normal(size=(N + NEW, 4))
    return X, np.sin(2 * X[:, 0]) * X[:, 1] + X[:, 2] + 0.1 * rng.normal(size=N + NEW)


@pytest.fixture(scope="module")
def trained(samples: tuple[np.ndarray, np.ndarray]) -> tuple[Dataset, TrainedModel]:
    X, y = samples
    dataset = memory_dataset(X[:N], y[:N])
    return dataset, train(dataset, KERNEL, NOISE, LocalExecutor(2), solver=SOLVER)


def updated(
    samples: tuple[np.ndarray, np.ndarray], trained: tuple[Dataset, TrainedModel], **options: Any
) -> TrainedModel:
    X, y = samples
    dataset, model = trained
    more = append_rows(dataset, X[N:], y[N:])
    solution = model.solution
    return update(more, KERNEL, NOISE, LocalExecutor(2), (solution.alpha, solution.gradient), solver=SOLVER, **options)


@pytest.mark.spread(1)
@pytest.mark.parametrize("columns_bytes", [None, 0], ids=["columns kept", "columns not kept"])
def test_solution_is_the_dense_one(
    samples: tuple[np.ndarray, np.ndarray], trained: tuple[Dataset, TrainedModel], columns_bytes: int | None
) -> None:
    model = updated(samples, trained, columns_bytes=columns_bytes)
    more = append_rows(trained[0], samples[0][N:], samples[1][N:])
    inputs, targets = more.inputs(0, N + NEW), more.targets(0, N + NEW)
    matrix = KERNEL(inputs, inputs) + NOISE * np.eye(N + NEW)
    gradient = matrix @ model.solution.alpha - targets
    assert model.summary["converged"]
    assert np.abs(gradient).max() <= 1.01e-4
    np.testing.assert_allclose(model.solution.gradient, gradient, atol=1e-9)
    exact = np.linalg.solve(matrix, targets)
    assert np.all(np.linalg.norm(model.solution.alpha - exact, axis=0) <= model.certificate.alpha_error_bound)


@pytest.mark.slow
def test_one_per_cent_more_costs_a_fifth_of_a_fresh_fit(
    samples: tuple[np.ndarray, np.ndarray], trained: tuple[Dataset, TrainedModel]
) -> None:
    dataset, _ = trained
    more = append_rows(dataset, samples[0][N:], samples[1][N:])
    fresh = train(more, KERNEL, NOISE, LocalExecutor(2), solver=SOLVER).summary["column_passes"]
    assert fresh > 5.5
    assert updated(samples, trained).summary["column_passes"] <= min(1.0, fresh / 5)
    assert updated(samples, trained, columns_bytes=0).summary["column_passes"] < 0.9 * fresh


def test_a_known_gradient_saves_the_pass_that_finds_it(samples: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = samples[0][:300], samples[1][:300]
    with BlockedKernelOperator(KERNEL, NOISE, ArrayInputs(X), LocalExecutor(2)) as operator:
        answer = solve(operator, y, solver=SOLVER)
        taken = []
        for known in ({"initial_gradient": answer.gradient}, {}):
            before = operator.kernel_evaluations
            again = solve(operator, y, solver=SOLVER, initial=answer.alpha, stopping=GradientInfNorm(1e-6), **known)
            taken.append(operator.kernel_evaluations - before)
            assert again.converged
            assert again.progress.iteration > 0
        assert taken[0] <= taken[1] - 300 * 300 / 2
        # Where there is nothing to do, it is not taken on trust.
        off = answer.gradient + 1e-6
        again = solve(operator, y, initial=answer.alpha, initial_gradient=off, stopping=GradientInfNorm(1e-3))
        assert again.progress.iteration == 0
        np.testing.assert_allclose(again.gradient, answer.gradient, atol=1e-12)
        with pytest.raises(InputError, match="no warm start; give both, or none"):
            solve(operator, y, initial_gradient=answer.gradient, stopping=GradientInfNorm(1e-3))


def test_nothing_new_is_refused(samples: tuple[np.ndarray, np.ndarray], trained: tuple[Dataset, TrainedModel]) -> None:
    dataset, model = trained
    with pytest.raises(InputError, match="samples after them"):
        update(dataset, KERNEL, NOISE, LocalExecutor(1), (model.solution.alpha, model.solution.gradient))
