"""The operator of products by cells: its bounds, the error that it keeps to, and its solves beside exact ones."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.dask import DaskExecutor
from dkgp.data import Dataset, dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import Constant, Kernel, Linear, Matern12, Matern32, Scaled, Spherical, SquaredExponential
from dkgp.kernels.terms import terms_of
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.operators.cells.operator import (
    NEAR_ENTRIES,
    CellKernelOperator,
    choose,
    expected_cost,
    is_cheaper,
    loose_tolerance,
    reaches_sooner,
)
from dkgp.operators.cells.plan import Plan
from dkgp.solvers import ConjugateGradient, FactorPreconditioning, GradientInfNorm, solve
from tests.workers import local_cluster, on_dask

NOISE_VARIANCE = 0.01


@pytest.fixture(name="executor")
def _executor() -> LocalExecutor:
    return LocalExecutor(2)


def ground(n: int = 3000, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1.0, 1.0, (n, d))
    return X, (np.sin(4.0 * X[:, :1]) * np.cos(3.0 * X[:, -1:]) + 0.1 * rng.standard_normal((n, 1))) * 1.3


def gammas(length: float, d: int = 2) -> tuple[float, ...]:
    return (1.0 / (2.0 * length**2),) * d


def by_cells(
    kernel: Kernel, X: np.ndarray, executor: Any, noise: Any = NOISE_VARIANCE, **options: Any
) -> CellKernelOperator:
    return CellKernelOperator(kernel, noise, ArrayInputs(X), executor, **options)


KERNELS = {
    "matern32": Matern32(gammas(0.3)),
    "matern12": Scaled(Matern12(gammas(0.5)), 2.5),
    "rbf": SquaredExponential(gammas(0.4)),
    "sum": Matern32(gammas(0.2)) + 0.5 * SquaredExponential(gammas(1.0)) + Constant(0.3, 2),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", KERNELS)
def test_products_are_within_the_error_and_its_bounds_by_row(name: str, executor: LocalExecutor) -> None:
    X, _ = ground()
    rng, kernel = np.random.default_rng(1), KERNELS[name]
    V = rng.standard_normal((len(X), 3)) * [1.0, 30.0, 1e-3]
    noise = rng.uniform(0.01, 0.02, len(X))
    exact = kernel(X, X) @ V + noise[:, None] * V
    with by_cells(kernel, X, executor, noise, error=1e-6) as operator:
        product = operator.matmat(V)
        assert operator.error_rows.shape == V.shape
        assert (np.abs(product - exact) <= operator.error_rows + 1e-11 * np.abs(V).sum(axis=0)).all()
        assert 0.0 < operator.error_bound <= 1.01e-6
        assert operator.error_bound == operator.error_rows.max()
        tight, loose = operator.error_bound, operator.matmat(V, "single")
        assert operator.error_bound > tight
        assert (np.abs(loose - exact) <= operator.error_rows + 1e-11 * np.abs(V).sum(axis=0)).all()
        assert operator.kernel_evaluations < 2 * len(X) ** 2


def test_the_root_mean_square_of_errors_is_limited_by_itself(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weighed as certificates weigh it: samples with much noise may be off by more."""
    # A first plan is too loose.
    monkeypatch.setattr("dkgp.operators.cells.operator.TYPICAL_MEAN_SHARE", 0.0125)
    X, _ = ground()
    V = np.random.default_rng(1).standard_normal((len(X), 2)) * [1.0, 20.0]
    noise = np.where(np.arange(len(X)) % 10, 1.0, 0.01)
    with by_cells(KERNELS["matern32"], X, executor, noise, error=1e-5, mean_error=2e-7) as operator:
        operator.matmat(V)
        weighed = np.sqrt(0.01 / noise)[:, None] * operator.error_rows
        assert 1e-9 < np.sqrt((weighed**2).mean(axis=0)).max() <= 2e-7 < operator.error_bound <= 1e-5
        assert operator.products["mean_error"] == 2e-7


def test_an_error_that_cells_cannot_prove_takes_every_entry(executor: LocalExecutor) -> None:
    X, V = ground()
    kernel = KERNELS["matern32"]
    with (
        by_cells(kernel, X, executor, error=1e-16) as operator,
        BlockedKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), executor) as blocked,
    ):
        assert np.array_equal(operator.matmat(V), blocked.matmat(V))
        assert operator.error_bound == 0.0
        assert not operator.error_rows.any()
        assert "roundings" in operator.products["every entry"]
        assert operator.kernel_evaluations == blocked.kernel_evaluations > len(X) ** 2 // 2


def test_columns_evaluate_every_entry(executor: LocalExecutor) -> None:
    X, _ = ground()
    kernel, columns = KERNELS["rbf"], np.array([5, 17, 2000])
    delta = np.array([[1.0], [-2.0], [0.5]])
    with (
        by_cells(kernel, X, executor) as operator,
        BlockedKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), executor) as blocked,
    ):
        assert np.array_equal(operator.apply_columns(columns, delta), blocked.apply_columns(columns, delta))


def test_bits_depend_on_the_weights_alone(executor: LocalExecutor) -> None:
    """Neither threads nor earlier products change them, so that a run that resumes ends like one that never stopped."""
    X, _ = ground()
    V = np.random.default_rng(2).standard_normal((len(X), 2))
    kernel = KERNELS["sum"]
    with by_cells(kernel, X, executor, error=1e-7) as operator:
        products = operator.matmat(V), operator.matmat(V, "single")
        operator.matmat(1e6 * V)
        assert np.array_equal(operator.matmat(V), products[0])
    with by_cells(kernel, X, LocalExecutor(1), error=1e-7) as operator:
        assert np.array_equal(operator.matmat(V, "single"), products[1])
        assert np.array_equal(operator.matmat(V), products[0])


def test_columns_that_are_not_finite_stay_apart(executor: LocalExecutor) -> None:
    X, _ = ground(1000)
    V = np.random.default_rng(2).standard_normal((len(X), 3))
    broken = V.copy()
    broken[7, 1], broken[9, 1] = np.inf, np.nan
    with by_cells(KERNELS["rbf"], X, executor) as operator:
        product = operator.matmat(broken)
        assert np.isnan(product[:, 1]).all()
        assert np.isfinite(operator.error_bound)
        assert np.array_equal(product[:, [0, 2]], operator.matmat(np.where([True, False, True], V, 0.0))[:, [0, 2]])
        assert not operator.matmat(np.zeros((len(X), 1))).any()


def test_watchers_hear_of_products_and_end_them(executor: LocalExecutor) -> None:
    X, V = ground()
    phases = []

    def stop(progress: Any) -> None:
        phases.append(progress.phase)
        if progress.phase == "float64 product":
            raise KeyboardInterrupt

    with by_cells(KERNELS["rbf"], X, executor) as operator:
        with operator.watched(stop), pytest.raises(KeyboardInterrupt):
            operator.matmat(V)
        assert phases == ["cells", "float64 product"]
        assert operator.matmat(V).shape == V.shape


@pytest.mark.spread(2)
@pytest.mark.parametrize("halo", [64, 0])
@pytest.mark.parametrize("name", ["matern32", "rbf"])
def test_solves_are_as_with_every_entry(name: str, halo: int, executor: LocalExecutor) -> None:
    X, y = ground(1500)
    kernel = KERNELS[name]
    solver = ConjugateGradient(FactorPreconditioning(halo, 32 if halo else "auto", 0 if halo else 500))
    rule = GradientInfNorm(1e-4)
    with BlockedKernelOperator(kernel, NOISE_VARIANCE, ArrayInputs(X), executor) as blocked:
        expected = solve(blocked, y, solver=solver, stopping=rule)
    with by_cells(kernel, X, executor, error=1e-5) as operator:
        solution = solve(operator, y, solver=solver, stopping=rule)
    assert solution.reason == expected.reason or solution.reason.rule == expected.reason.rule == "gradient_inf_norm"
    assert abs(solution.progress.iteration - expected.progress.iteration) <= 2
    assert 0.0 < solution.product_error <= 1.01e-5
    true = kernel(X, X) @ solution.alpha + NOISE_VARIANCE * solution.alpha - y
    assert np.abs(true).max() <= 1e-4 + solution.product_error
    assert np.abs(true - solution.gradient).max() <= solution.product_error


def test_products_that_cells_reach_later_evaluate_every_entry(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forecast chose cells; they reach an error that the caller names at any cost."""
    X, V = ground(2000)
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper", lambda cost, n: True)
    with (
        by_cells(KERNELS["matern32"], X, executor, forecast="many samples") as chosen,
        by_cells(KERNELS["matern32"], X, executor) as named,
        BlockedKernelOperator(KERNELS["matern32"], NOISE_VARIANCE, ArrayInputs(X), executor) as blocked,
    ):
        assert np.array_equal(chosen.matmat(V), blocked.matmat(V))
        assert chosen.error_bound == 0.0
        assert "take longer" in chosen.products["every entry"]
        chosen.matmat(V, "single")
        named.matmat(V)
        assert min(chosen.error_bound, named.error_bound) > 0.0


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_forecast_takes_cells_where_they_gain_more_than_compiling_takes(d: int) -> None:
    kernel = Matern32(gammas(0.3, d))
    taken = [n for n in (20_000, 50_000, 100_000, 300_000, 1_000_000) if choose(kernel, n).takes_cells]
    assert taken[0] == {1: 100_000, 2: 100_000, 3: 300_000}[d]
    assert taken[-1] == 1_000_000
    # Whole matrices of 20,000 samples take seconds; the share alone would have cells.
    assert d == 3 or choose(kernel, 20_000).share < 0.5
    assert "too few" in choose(kernel, 20_000).reason
    # So are tight products in double precision, once there are enough samples.
    n, terms = 1_000_000, terms_of(kernel)
    at = loose_tolerance(terms)
    loose = expected_cost(terms.terms[0], n, at)
    assert reaches_sooner(terms, n, 1e-12, (at, loose))
    # Not where samples have many more near ones than was expected.
    crowded = replace(loose, near_entries=n * n // 2)
    assert not reaches_sooner(terms, n, 1e-12, (at, crowded))
    assert not is_cheaper(crowded, n)


def test_less_noise_takes_more_accurate_rounds() -> None:
    """Weights grow as 1 / s2, and errors of products with them."""
    terms = terms_of(SquaredExponential((1.0, 1.0)))
    tolerances = [loose_tolerance(terms, s2 / 10**6) for s2 in (1.0, 1e-2, 3e-6, 1e-7, 1e-12, 0.0)]
    assert tolerances == [1e-8, 1e-8, 3e-9, 1e-10, 1e-10, 1e-10]
    assert loose_tolerance(terms) == 1e-8


@pytest.mark.parametrize("share", [0.1, 0.2, 1.0])
def test_a_forecast_counts_pairs_of_leaves_at_the_range_of_a_compact_kernel(share: float) -> None:
    """They grow as n^1.5 in two dimensions, so that products gain less from more samples."""
    X = np.random.default_rng(4).uniform(-np.sqrt(3.0), np.sqrt(3.0), (20_000, 2))
    kernel = Spherical.from_length_scales((share * np.sqrt(12.0),) * 2)
    (term,) = terms_of(kernel).terms
    plan = Plan(term, X, 1e-8)
    assert 0.7 < expected_cost(term, len(X), 1e-8).near_entries / plan.near_entries < 1.8
    few, many = (expected_cost(term, n, 1e-8).near_entries / n - NEAR_ENTRIES[2] for n in (10**5, 10**7))
    assert few > 0.0
    assert many == pytest.approx(10.0 * few, rel=1e-3)
    smooth = choose(Matern32(kernel.feature_gamma), 100_000)
    assert smooth.takes_cells
    assert choose(kernel, 100_000).share > 1.2 * smooth.share
    assert choose(kernel, 10_000_000).takes_cells


def test_a_long_range_in_two_dimensions_takes_every_entry_of_few_samples() -> None:
    kernel = Spherical.from_length_scales((0.2 * np.sqrt(12.0),) * 2)
    forecast = choose(kernel, 50_000)
    assert not forecast.takes_cells
    assert forecast.reason == "50,000 samples in 2 dimensions are too few for a kernel of this range"
    assert choose(kernel, 800_000).takes_cells


def test_refusals_name_the_reason(executor: LocalExecutor) -> None:
    X, _ = ground(10)
    with pytest.raises(InputError, match="finite and positive; got 0"):
        by_cells(KERNELS["rbf"], X, executor, error=0.0)
    with pytest.raises(InputError, match="linear|dot product"):
        by_cells(Linear((1.0, 1.0)), X, executor)


def test_a_forecast_that_does_not_hold_is_given_up(executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    X, V = ground(1000)
    notes: list[str] = []
    # Few samples: their cells have nearly all of the matrix' entries between them.
    with by_cells(KERNELS["rbf"], X, executor, forecast="many samples", note=notes.append) as operator:
        assert operator.approximate
        product = operator.matmat(V, "single")
        assert not operator.approximate
        assert operator.products["kind"] == "every entry"
    with BlockedKernelOperator(KERNELS["rbf"], NOISE_VARIANCE, ArrayInputs(X), executor) as blocked:
        assert np.array_equal(product, blocked.matmat(V, "single"))
    monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper", lambda cost, n: True)
    with by_cells(KERNELS["rbf"], X, executor, forecast="many samples", note=notes.append) as operator:
        operator.matmat(V)
        operator.matmat(V)
        assert operator.approximate
    assert [note.partition(":")[0] for note in notes] == ["products by every entry", "products by cells"]


@pytest.mark.parametrize(("error", "size"), [(5e-324, 1.0), (1e-5, 1e307), (1e-200, 1e-200)])
def test_errors_that_underflow_beside_the_weights_take_every_entry(
    error: float, size: float, executor: LocalExecutor
) -> None:
    X, y = ground(1500)
    with (
        by_cells(KERNELS["matern32"], X, executor, error=error) as operator,
        BlockedKernelOperator(KERNELS["matern32"], NOISE_VARIANCE, ArrayInputs(X), executor) as exact,
        np.errstate(over="ignore", invalid="ignore"),
    ):
        assert np.array_equal(operator.matmat(size * y), exact.matmat(size * y), equal_nan=True)
        assert operator.error_bound == 0.0


@pytest.mark.portable
def test_rounds_that_deceive_take_more_accurate_products(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products that are too loose for the weights become tighter; where they cannot, rounds are of float64."""
    X, y = ground(1500)
    monkeypatch.setattr("dkgp.operators.cells.operator.loose_tolerance", lambda *_: 1e-2)

    def solved(sharpens: bool) -> tuple[Any, CellKernelOperator, int]:
        operator, in_double = by_cells(SquaredExponential(gammas(0.4)), X, executor, 1e-4, error=1e-6), []
        within = operator._within
        monkeypatch.setattr(operator, "_within", lambda V: in_double.append(1) or within(V))
        if not sharpens:
            monkeypatch.setattr(operator, "sharpen", lambda: False)
        method = ConjugateGradient(FactorPreconditioning(32, rank=0))
        with operator:
            return solve(operator, y, solver=method, stopping=GradientInfNorm(1e-5)), operator, len(in_double)

    solution, operator, in_double = solved(sharpens=True)
    assert solution.reason.converged
    assert in_double == solution.refreshes
    assert operator._loose < 1e-3
    others, _, in_double = solved(sharpens=False)
    assert others.reason.converged
    assert in_double > others.refreshes
    np.testing.assert_allclose(solution.alpha, others.alpha, atol=0.2)
    # The least tolerance is an end.
    tolerances = [operator._loose for _ in range(20) if operator.sharpen()]
    assert tolerances == sorted(tolerances, reverse=True)
    assert not operator.sharpen()


# Products by cells on Dask: the same bits for any number of workers, and for those that are killed.


N = 1500
KERNEL = Matern12((8.0, 5.0)) + 0.5 * SquaredExponential((0.3, 0.2))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A store, which worker processes read too."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    return dataset_from_arrays(tmp_path_factory.mktemp("store") / "data", X, np.sin(2.0 * X[:, 0]) + X[:, 1])


def operator(dataset: Dataset, executor: Any) -> CellKernelOperator:
    return CellKernelOperator(KERNEL, 0.05, dataset, executor, error=1e-6)


def products(dataset: Dataset, executor: Any) -> list[np.ndarray]:
    """Products of both precisions, with their bounds, and the count of entries."""
    V = np.random.default_rng(1).standard_normal((N, 2))
    with operator(dataset, executor) as cells:
        loose = cells.matmat(V, "single"), cells.error_rows
        return [*loose, cells.matmat(V), cells.error_rows, np.array(cells.kernel_evaluations)]


@pytest.fixture(scope="module")
def expected(dataset: Dataset) -> list[np.ndarray]:
    """Products by threads of this process."""
    made = products(dataset, LocalExecutor(1))
    worker_cache().clear()
    return made


def is_same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.spread(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_no_bit(workers: int, dataset: Dataset, expected: list[np.ndarray]) -> None:
    with on_dask(workers, processes=False, threads=2) as (executor, _):
        assert is_same(products(dataset, executor), expected)


def test_two_clients_of_one_scheduler_get_the_same_bits(dataset: Dataset, expected: list[np.ndarray]) -> None:
    with local_cluster(2, threads=2) as (cluster, first), Client(cluster, set_as_default=False) as second:
        executors = [DaskExecutor(client) for client in (first, second)]
        with ThreadPoolExecutor(2) as threads:
            for made in threads.map(partial(products, dataset), executors):
                assert is_same(made, expected)
        for executor in executors:
            executor.close()


@pytest.mark.faults
def test_processes_change_no_bit_and_solve_alike(dataset: Dataset, expected: list[np.ndarray]) -> None:
    solver, y = ConjugateGradient(FactorPreconditioning(64, 32, 0)), dataset.targets(0, N)
    with operator(dataset, LocalExecutor(2)) as cells:
        alone = solve(cells, y, solver=solver)
    with on_dask(2, processes=True, threads=2) as (executor, _):
        assert is_same(products(dataset, executor), expected)
        with operator(dataset, executor) as cells:
            assert np.array_equal(solve(cells, y, solver=solver).alpha, alone.alpha)


def doom(name: str) -> None:
    """Have this worker process die where it next calls a function of the operator's module."""
    import dkgp.operators.cells.operator as module

    setattr(module, name, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.faults
@pytest.mark.parametrize("name", ["CellProducts", "up", "join", "finish"])
def test_a_worker_that_is_killed_in_a_phase_changes_no_bit(
    name: str, dataset: Dataset, expected: list[np.ndarray]
) -> None:
    with on_dask(2, processes=True, threads=2) as (executor, client):
        lost = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
        client.run(doom, name, workers=[lost])
        assert is_same(products(dataset, executor), expected)
        assert lost not in client.scheduler_info(n_workers=-1)["workers"]
