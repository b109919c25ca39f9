"""Training with approximate products: true certificates, the same bits by any workers, and resumed runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster import LocalExecutor
from dkgp.cluster.cache import worker_cache
from dkgp.data import Dataset, open_model
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.exact import TrainedModel, save, train
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.solver_choice import choose_solver_for
from dkgp.operators.cells.operator import Forecast
from dkgp.operators.product_error import ProductError
from dkgp.solvers import (
    ConjugateGradient,
    FactorPreconditioning,
    GradientInfNorm,
    GreedyBlockCoordinateDescent,
    KernelConjugateGradient,
    MaxIterations,
)
from dkgp.solvers.registry import build_solver
from tests.covering import few
from tests.engine.helpers import opened
from tests.models.exact_gp import ExactGP, decimals, entry, mp, numbers, of_decimals, solved
from tests.resuming import Resuming, require_same_bits
from tests.watching import in_context

NOISE = 0.05
# On standardised coordinates, whose extent is about 3.5: most pairs have nothing to do with each other.
KERNEL = SquaredExponential((60.0, 90.0), 1.2)
TOLERANCE, ERROR = 1e-3, 1e-4
SOLVERS = {
    "gbcd": GreedyBlockCoordinateDescent(block_size=60),
    "gbcd-double": GreedyBlockCoordinateDescent(block_size=60, precision="double"),
    "cg": ConjugateGradient(),
    "pcg": ConjugateGradient(FactorPreconditioning(0, rank=40), "double"),
    "kcg": KernelConjugateGradient(),
}


@pytest.fixture(scope="module")
def terrain(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(11)
    X = rng.uniform(size=(600, 2))
    y = np.sin(X @ rng.standard_normal((2, 2)) * 12.0) + 0.2 * rng.standard_normal((600, 2))
    return dataset_from_arrays(str(tmp_path_factory.mktemp("terrain") / "t.zarr"), X, y, chunk_rows=250)


@pytest.fixture(scope="module")
def dense(terrain: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kbar, the standardised targets and the exact coefficients, by LAPACK."""
    Z, y = terrain.inputs(0, 600), terrain.targets(0, 600)
    Kbar = KERNEL(Z, Z) + NOISE * np.eye(600)
    return Kbar, y, scipy.linalg.cho_solve(scipy.linalg.cho_factor(Kbar), y)


def trained(terrain: Dataset, executor: Any, **options: Any) -> TrainedModel:
    given = {"stopping": GradientInfNorm(TOLERANCE) | MaxIterations(400), "product_error": ERROR, **options}
    return train(terrain, KERNEL, NOISE, in_context(executor, given), **given)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", few(SOLVERS, "gbcd", "cg", "pcg"))
def test_the_certificate_holds_for_the_dense_solution(
    terrain: Dataset, dense: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the leaves that are cheapest for so few samples all pairs are near, and products exact but for roundings.
    monkeypatch.setattr("dkgp.operators.cells.plan.LEAF", (16,))
    Kbar, y, exact = dense
    with opened("none", 2) as executor:
        model = trained(terrain, executor, solver=SOLVERS[name])
    assert model.solution.converged
    assert model.summary["product_error"] == ERROR
    certificate, alpha = model.certificate, model.solution.alpha
    # The gradient was had from approximate products: off by something, and by no more than is said.
    off = np.abs(model.solution.gradient - (Kbar @ alpha - y)).max()
    assert 1e-11 < off <= certificate.product_error <= ERROR * 1.01
    assert model.summary["products"]["proven"] == {
        "largest": certificate.product_error,
        "root_mean_square": pytest.approx(max(certificate.product_norm) / np.sqrt(600.0)),
    }
    assert 0.0 < max(certificate.product_norm) < 0.99 * np.sqrt(600.0) * certificate.product_error
    assert np.abs(Kbar @ alpha - y).max() <= TOLERANCE + ERROR
    assert (np.linalg.norm(Kbar @ alpha - y, axis=0) <= certificate.proven_residual_norm).all()
    assert (np.linalg.norm(alpha - exact, axis=0) <= certificate.alpha_error_bound).all()
    at = np.random.default_rng(3).uniform(-1.7, 1.7, (200, 2))
    error = np.abs(KERNEL(at, terrain.inputs(0, 600)) @ (alpha - exact))
    assert (error <= certificate.mean_error_bound(KERNEL.diagonal(at))).all()


def test_auto_takes_a_factor_that_these_products_are_solved_quickly_with(terrain: Dataset, dense: Any) -> None:
    Kbar, y, _ = dense
    tolerance, error, noise = 1e-4, 1e-5, 1e-3
    Kbar = Kbar + (noise - NOISE) * np.eye(600)
    exact = scipy.linalg.solve(Kbar, y, assume_a="pos")
    choice = choose_solver_for(
        Problem(terrain, KERNEL, Noise(noise)), tolerance=tolerance, product_error=ProductError(error)
    )
    assert choice.solver == "pcg"
    with opened("none", 2) as executor:
        context = RunContext(executor, product_error=ProductError(error))

        def trained(name: str, rounds: int, **options: Any) -> TrainedModel:
            stopping = GradientInfNorm(tolerance) | MaxIterations(rounds)
            return train(terrain, KERNEL, noise, context, solver=build_solver(name, options), stopping=stopping)

        model = trained("pcg", 400, **choice.options)
        assert model.solution.converged
        alpha = model.solution.alpha
        assert np.abs(Kbar @ alpha - y).max() <= tolerance + error
        assert (np.linalg.norm(alpha - exact, axis=0) <= model.certificate.alpha_error_bound).all()
        assert not trained("cg", 5 * model.solution.progress.iteration).solution.converged


def test_a_certificate_without_the_products_error_would_be_wrong() -> None:
    """A gradient that approximate products show as zero says nothing of the residual below their error."""
    alpha, seen = np.zeros((4, 1)), np.zeros((4, 1))
    true = np.full((4, 1), 1e-3)
    given = (alpha, seen, seen, NOISE, 1.0, np.ones(4))
    certificate = replace(Certificate.of(*given), product_error=1e-3)
    assert np.linalg.norm(true) <= certificate.proven_residual_norm[0] <= 1.0001 * np.linalg.norm(true)
    # Nothing but what the smallest numbers may lose.
    assert Certificate.of(*given).proven_residual_norm[0] < 1e-300
    # Of a model that was saved before there were approximate products.
    document = {key: value for key, value in certificate.to_json().items() if key != "product_error"}
    assert Certificate.from_json(document).product_error == 0.0
    assert Certificate.from_json(certificate.to_json()) == certificate


@pytest.mark.parametrize("amplitude", [1.0, 1e-7])
def test_errors_by_row_and_column_are_within_the_certificate_in_fifty_digits(
    amplitude: float, rng: np.random.Generator
) -> None:
    """With noise by sample and three targets, signs chosen to hurt, and a column whose errors are far larger."""
    X, T = rng.uniform(-1.0, 1.0, (12, 2)), rng.uniform(-1.0, 1.0, (3, 2))
    kernel, noise = SquaredExponential((2.0, 2.0), amplitude), 10.0 ** rng.uniform(-2.0, 3.0, 12)
    errors, alpha = 10.0 ** rng.uniform(-6.0, -3.0, (12, 3)) * [1.0, 1e3, 1e-3], rng.standard_normal((12, 3))
    # Errors of samples with much noise count little; with a small amplitude those of the least noise are nearly all.
    errors[np.argmin(noise)] *= 100.0
    signs = np.sign(np.linalg.solve(kernel(X, X) + np.diag(noise), kernel(X, T)))
    problem = ExactGP(X, T, [[mp.mpf(0)] * 3] * 12, kernel, noise)
    images, coefficients = problem.gradient(alpha), numbers(alpha)
    scale, roundings = kernel.diagonal(X), np.full(12, 20.0)
    ratios = []
    for test, x in enumerate(numbers(T)):
        # The evaluated gradient is zero, and the true one is as far from it as it may be.
        off = numbers(errors * signs[:, [test]])
        targets = [[k + e for k, e in zip(*rows, strict=True)] for rows in zip(images, off, strict=True)]
        exact = ExactGP(X, T, targets, kernel, noise)
        rounded = np.array(targets, float)
        certificate = Certificate.of(alpha, np.zeros((12, 3)), rounded, noise, scale, roundings, product_errors=errors)
        mean = [
            mp.fsum(entry(kernel, x, row) * weights[t] for row, weights in zip(numbers(X), coefficients, strict=True))
            for t in range(3)
        ]
        away = np.array([abs(mine - true) for mine, true in zip(mean, exact.mean[test], strict=True)], float)
        assert (away <= certificate.mean_error_bound(kernel.diagonal(T))[test]).all()
        solution = np.array(of_decimals(solved(exact.matrix, decimals(targets))), float)
        lengths = np.linalg.norm(alpha - solution, axis=0)
        ratios.append(lengths / certificate.alpha_error_bound)
    assert np.max(ratios) <= 1.0
    # Nearly all of a bound is reached where the matrix is nearly the noise: one of half the size would be wrong.
    assert amplitude == 1.0 or np.min(ratios) > 0.9
    alone = Certificate.of(
        alpha[:, :1], np.zeros((12, 1)), rounded[:, :1], noise, scale, roundings, product_errors=errors[:, :1]
    )
    np.testing.assert_allclose(alone.product_norm, certificate.product_norm[:1], rtol=1e-14)
    assert Certificate.from_json(certificate.to_json()) == certificate
    # An older store holds the largest error alone, which counts for every row of every column.
    document = {key: value for key, value in certificate.to_json().items() if key != "product_norm"}
    older = Certificate.from_json(document).product_lengths
    np.testing.assert_allclose(older, np.sqrt(12.0) * errors.max(), rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("name", few(SOLVERS, "cg"))
def test_the_same_bits_on_any_number_of_threads(terrain: Dataset, name: str) -> None:
    found = set()
    for threads, options in ((1, {}), (3, {"coordinator_input_bytes": 0})):
        with opened("none", threads) as executor:
            model = trained(terrain, executor, solver=SOLVERS[name], **options)
        found.add((model.solution.alpha.tobytes(), model.solution.gradient.tobytes(), model.certificate))
    assert len(found) == 1


def test_fewer_kernel_entries_are_evaluated(terrain: Dataset) -> None:
    with opened("none", 2, cache_tiles=0) as executor:  # what is kept is not evaluated again
        pruned = trained(terrain, executor, solver=SOLVERS["cg"])
        whole = trained(terrain, executor, solver=SOLVERS["cg"], product_error=None)
    assert whole.certificate.product_error == 0.0
    assert "product_error" not in whole.summary
    assert pruned.summary["kernel_evaluations"] < 0.7 * whole.summary["kernel_evaluations"]


@pytest.mark.long
def test_a_run_goes_on_only_with_the_same_error(terrain: Dataset, tmp_path: Path) -> None:
    def identity(*error: ProductError) -> dict[str, Any]:
        return Problem(terrain, KERNEL, Noise(NOISE)).identity(*error)

    assert identity(ProductError(ERROR))["product_error"] == ERROR
    assert "product_error" not in identity()
    executor = LocalExecutor(2)
    kept = Resuming(
        partial(trained, terrain, executor, solver=SOLVERS["gbcd"]), tmp_path, **identity(ProductError(ERROR))
    )
    kept.interrupt(kept.whole.solution.progress.iteration // 2)
    kept.require_refused("another run", identity=identity(ProductError(ERROR / 2)))
    resumed = kept.resume()
    require_same_bits(resumed.solution, kept.whole.solution)
    assert resumed.certificate.product_error == kept.whole.solution.product_error
    executor.close()


def test_started_at_the_answer_it_does_nothing(terrain: Dataset, dense: Any) -> None:
    with opened("none", 2) as executor:
        model = trained(terrain, executor, initial=dense[2])
    assert model.solution.converged
    assert model.solution.progress.iteration == 0
    assert model.certificate.product_error > 0.0


def test_a_saved_model_keeps_its_certificate(terrain: Dataset, tmp_path: Path) -> None:
    with opened("none", 2) as executor:
        model = trained(terrain, executor)
    save(model, str(tmp_path / "m"), terrain)
    found = open_model(str(tmp_path / "m"))
    assert found.summary["product_error"] == ERROR
    assert Certificate.from_json(dict(found.certificate)) == model.certificate


def test_kernels_without_a_bound_are_refused(terrain: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = dataset_from_arrays(
        str(tmp_path / "wide.zarr"), np.random.default_rng(0).normal(size=(60, 7)), np.ones(60) + np.arange(60.0)
    )
    with opened("none", 1) as executor:
        with pytest.raises(InputError, match="`product_error` 1e-05 asks for a bound that is not known .* has 7. Take"):
            train(wide, SquaredExponential((1.0,) * 7), NOISE, RunContext(executor, product_error=ProductError(1e-5)))
        # With auto every entry is evaluated, and the reason is on record.
        model = train(wide, SquaredExponential((1.0,) * 7), NOISE, executor)
        assert model.summary["products"]["kind"] == "every entry"
        assert "at most 3 features" in model.summary["products"]["reason"]
        assert "product_error" not in model.summary


def test_plans_larger_than_the_cache_are_kept(terrain: Dataset) -> None:
    """One plan a tolerance is made in a run, however small the cache was configured."""
    cache = worker_cache()
    before, cache.budget_bytes = cache.budget_bytes, 20_000
    try:
        with opened("none", 1) as executor:
            misses = cache.misses
            with ProductError(1e-5).operator(KERNEL, NOISE, terrain, executor) as operator:
                for _ in range(3):
                    operator.matmat(np.ones((terrain.n_samples, 1)))
            assert cache.misses == misses + 1
    finally:
        cache.budget_bytes = before


def test_auto_tells_its_choice_and_keeps_to_a_tenth_of_the_tolerance(
    terrain: Dataset, dense: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    with opened("none", 2) as executor:
        few = trained(terrain, executor, solver=SOLVERS["cg"], product_error="auto", note=notes.append)
        assert few.summary["products"]["kind"] == "every entry"
        assert "too few" in few.summary["products"]["reason"]
        assert notes == []  # of so few samples nothing is said
        monkeypatch.setattr("dkgp.operators.cells.operator.choose", lambda kernel, n: Forecast(True, "many samples"))
        monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper", lambda cost, n: True)
        monkeypatch.setattr("dkgp.operators.cells.operator.is_cheaper_in_double", lambda cost, n: True)
        monkeypatch.setattr("dkgp.operators.cells.operator.reaches_sooner", lambda terms, n, tolerance, loose: True)
        model = trained(terrain, executor, solver=SOLVERS["cg"], product_error="auto", note=notes.append)
    assert notes == ["products by cells: many samples"]
    assert model.summary["product_error"] == "auto"
    assert 0.0 < model.certificate.product_error <= 0.1 * TOLERANCE
    Kbar, y, _ = dense
    assert np.abs(Kbar @ model.solution.alpha - y).max() <= TOLERANCE + model.certificate.product_error


def test_auto_falls_back_where_the_first_plan_says_so(terrain: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr("dkgp.operators.cells.operator.choose", lambda kernel, n: Forecast(True, "many samples"))
    with opened("none", 2) as executor:
        exact = trained(terrain, executor, solver=SOLVERS["cg"], product_error="none")
        model = trained(terrain, executor, solver=SOLVERS["cg"], product_error="auto", note=notes.append)
    assert model.summary["products"]["kind"] == "every entry"
    assert len(notes) == 1
    assert "every entry" in notes[0]
    assert model.certificate.product_error == 0.0
    assert model.solution.alpha.tobytes() == exact.solution.alpha.tobytes()
