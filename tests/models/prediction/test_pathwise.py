"""Functions from the posterior: their mean and covariance against the dense ones, and that they are functions."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import ModelRecord, memory_dataset, memory_model
from dkgp.errors import ClusterError, InputError
from dkgp.kernels import Constant, Kernel, Linear, Polynomial, SquaredExponential, parse_kernel
from dkgp.models.prediction.pathwise import MOST_JOINT_SAMPLES, PosteriorFunctions, draw_prior_functions

NOISE = 0.05
SPECTRAL = (
    "rbf",
    "matern12",
    "matern32",
    "matern52",
    "rq(alpha=0.7)",
    "periodic(period=2.5, length_scale=0.8)",
    "2.5 * rbf[0] + 0.3 * constant + linear",
    "rbf[0] * periodic[1](period=1.5) + matern32[1]",
    "(rbf[0] + 0.5 * constant) * (matern52[1] + 0.2 * constant)",
)


@pytest.mark.spread(3)
@pytest.mark.parametrize("text", SPECTRAL)
def test_prior_functions_have_the_kernel_as_covariance(text: str, rng: np.random.Generator) -> None:
    kernel = parse_kernel(text, 2)
    points = rng.normal(size=(12, 2))
    functions = draw_prior_functions(kernel, 2, 3_000, np.random.default_rng(5), frequencies=1024)
    assert functions is not None
    values = functions(points)
    exact = kernel(points, points)
    scale = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    # Monte Carlo over 3,000 functions (2.6 % at most) and over 1,024 frequencies (2.2 %), at four standard deviations.
    np.testing.assert_allclose((values @ values.T / 3_000) / scale, exact / scale, atol=0.14)
    np.testing.assert_allclose(values.mean(axis=1) / np.sqrt(exact.diagonal()), 0.0, atol=0.08)


def test_error_of_the_frequencies_is_as_documented(rng: np.random.Generator) -> None:
    kernel = SquaredExponential(gamma=(0.3,) * 6)
    points = rng.normal(size=(60, 6))
    exact = kernel(points, points)
    errors = []
    for seed in range(5):
        functions = draw_prior_functions(kernel, 6, 1, np.random.default_rng(seed))
        assert functions is not None
        features = functions.parts[0].features(points)
        covariance = features @ features.T
        np.testing.assert_allclose(covariance.diagonal(), 1.0, rtol=1e-12)
        errors.append((covariance - exact)[~np.eye(60, dtype=bool)])
    assert np.std(errors) < 1.0 / np.sqrt(2 * 4096)
    assert np.std(errors) > 0.2 / np.sqrt(2 * 4096)


def model_of(kernel: Kernel, rng: np.random.Generator, n: int = 80) -> tuple[ModelRecord, np.ndarray, np.ndarray]:
    X = rng.uniform(-2, 2, size=(n, 2))
    y = 30.0 + 5.0 * (np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n))
    dataset = memory_dataset(X, y)
    inputs = dataset.inputs(0, n)
    alpha = np.linalg.solve(kernel(inputs, inputs) + NOISE * np.eye(n), dataset.targets(0, n))
    record = memory_model(dataset, kernel=kernel.to_json(), noise_variance=NOISE, alpha=alpha)
    points = np.vstack([rng.uniform(-2, 2, size=(8, 2)), [[4.0, 4.0]]])
    return record, X, points


@pytest.mark.parametrize(
    "kernel",
    [SquaredExponential(gamma=(1.0, 0.5)), Polynomial(weight=(0.3, 0.3), offset=1.0, degree=2)],
    ids=["functions", "joint draws"],
)
def test_samples_have_the_posterior_mean_and_covariance(kernel: Kernel, rng: np.random.Generator) -> None:
    record, _, points = model_of(kernel, rng)
    inputs = record.inputs(0, record.n_samples)
    matrix = kernel(inputs, inputs) + NOISE * np.eye(len(inputs))
    cross = kernel(points, inputs)
    mean = (cross @ record.alpha)[:, 0]
    covariance = kernel(points, points) - cross @ np.linalg.solve(matrix, cross.T)
    functions = PosteriorFunctions(record, record.url, count=2000, seed=1)
    assert functions.is_function == isinstance(kernel, SquaredExponential)
    std, middle = record.standardisation.target_std[0], record.standardisation.target_mean[0]
    values = (functions(points)[:, 0, :] - middle) / std
    prior = kernel.diagonal(points)
    sigma = np.sqrt(covariance.diagonal())
    np.testing.assert_allclose(values.mean(axis=1), mean, atol=float(5 * np.max(sigma / np.sqrt(2000)) + 1e-3))
    found = np.cov(values)
    # Monte Carlo (2.2 % to 3.2 % a standard deviation), and far from the samples the frequencies (1.1 % of the prior).
    slack = 0.14 * np.outer(sigma, sigma) + 0.02 * np.sqrt(np.outer(prior, prior)) * np.outer(sigma, sigma).clip(max=1)
    assert np.all(np.abs(found - covariance) <= slack + 1e-9)


def test_a_function_is_the_same_wherever_it_is_evaluated(rng: np.random.Generator) -> None:
    record, _, points = model_of(SquaredExponential(gamma=(1.0, 0.5)), rng)
    functions = PosteriorFunctions(record, record.url, count=3, seed=7)
    together = functions(points)
    apart = np.concatenate([functions(points[[index]]) for index in range(len(points))])
    np.testing.assert_allclose(apart, together, rtol=1e-12)
    again = PosteriorFunctions(record, "again", count=3, seed=7)
    np.testing.assert_array_equal(again(points), together)
    assert np.abs(PosteriorFunctions(record, record.url, count=3, seed=8)(points) - together).max() > 0.01


def test_joint_draws_beyond_their_limit_are_refused(rng: np.random.Generator) -> None:
    record, _, _ = model_of(Linear(weight=(1.0, 1.0)) * Constant(2.0), rng)
    functions = PosteriorFunctions(record, record.url, count=1, seed=0)
    assert not functions.is_function
    with pytest.raises(InputError, match=r"at most 4,000 samples and points together; got 80 and 4,000"):
        functions(np.zeros((MOST_JOINT_SAMPLES, 2)))
    with pytest.raises(InputError, match="at least 1"):
        PosteriorFunctions(record, record.url, count=0, seed=0)


def test_functions_solved_for_in_batches_are_the_same(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _, points = model_of(SquaredExponential(gamma=(1.0, 0.5)), rng)
    together = PosteriorFunctions(record, record.url, count=5, seed=7, tolerance=1e-8)(points)
    monkeypatch.setattr("dkgp.models.prediction.pathwise.SOLVED_TOGETHER", 2)
    apart = PosteriorFunctions(record, record.url, count=5, seed=7, tolerance=1e-8)(points)
    np.testing.assert_allclose(apart, together, rtol=0, atol=1e-5)


def test_workers_that_differ_take_the_solver_that_may_mix(rng: np.random.Generator) -> None:
    class Mixed(LocalExecutor):
        def require_one_arithmetic(self) -> None:
            raise ClusterError("the workers' processors differ")

    record, _, points = model_of(SquaredExponential(gamma=(1.0, 0.5)), rng)
    mixed = Mixed(2)
    found = PosteriorFunctions(record, record.url, count=3, seed=7, executor=mixed)(points)
    mixed.close()
    expected = PosteriorFunctions(record, record.url, count=3, seed=7)(points)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.01)
