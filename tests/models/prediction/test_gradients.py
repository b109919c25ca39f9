"""Gradients of predictions against the exact ones in 50 digits, with the bounds that are proven of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tests.kernels.table  # noqa: F401  (registers functions)
from dkgp.cluster.cache import worker_cache
from dkgp.data import ModelRecord
from dkgp.errors import InputError
from dkgp.kernels import Kernel, SquaredExponential, UserKernel, parse_kernel
from dkgp.kernels.tiles.slopes import SlopeEvaluator, SlopeSizes
from dkgp.models.certificate import Certificate, slope_rounding
from dkgp.models.prediction import gradients as module
from dkgp.models.prediction.gradients import DeviationGradients, MeanGradients
from dkgp.models.prediction.posterior import forget
from dkgp.models.rounding import slope_roundings
from dkgp.models.variance.whole_matrix import WholeFactor
from dkgp.operators import cross_sums
from dkgp.operators.cells.cross import SOURCE_LEAF
from dkgp.solvers import GreedyBlockCoordinateDescent
from tests.models.exact_gp import ExactGradients, entry, mp, numbers
from tests.models.proof_problems import Problem
from tests.models.test_proofs import attacks

_VERSIONS = itertools.count()
KERNELS = ("rbf", "matern32", "matern52 + linear", "polynomial(degree=3)", "rq * linear", "periodic * rbf + constant")


def problem(text: str, rng: np.random.Generator, **settings: Any) -> Problem:
    X = rng.normal(size=(24, 2))
    y = np.column_stack([20.0 * np.sin(2.0 * X[:, 0]) + 5.0, X[:, 1] - 3.0])
    T = np.concatenate([rng.normal(size=(2, 2)), X[:1], [[6.0, -7.0]]])
    y = y[:, :1] if "sample_noise" in settings else y
    return Problem(X, y, T, parse_kernel(text, 2), 0.02, **settings)


def ratios(problem: Problem, latent: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Error over bound of each derivative of the mean, and relative errors to the largest of a sample: (t, p, d).

    With `latent` of the deviation.
    """
    version, to = f"gradients-{next(_VERSIONS)}", problem.model.standardisation
    exact = ExactGradients(problem.exact)
    try:
        if latent is None:
            got = MeanGradients(problem.model, version)(problem.T)
            standardised = exact.means
            gradient, error = got.gradient, got.error
        else:
            of = DeviationGradients(problem.model, version, latent=latent)(problem.T)
            rows = exact.deviations(0.0 if latent else problem.model.noise_variance)
            standardised = [[row] * len(to.target_std) for row in rows]
            assert of.error is not None
            gradient, error = of.gradient, of.error
    finally:
        forget(version)
    over, relative = np.empty((2, *gradient.shape))
    for place in np.ndindex(*gradient.shape):
        row, target, feature = place
        true = standardised[row][target][feature] * mp.mpf(float(to.target_std[target]))
        true /= mp.mpf(float(to.input_std[feature]))
        off = abs(mp.mpf(float(gradient[place])) - true)
        over[place] = float(off / mp.mpf(float(error[place])))
        relative[place] = float(off) / (np.abs(gradient[row, target]).max() + 1e-300)
    return over, relative


@pytest.mark.spread(2)
@pytest.mark.parametrize("text", KERNELS)
def test_solutions_that_are_all_but_exact(text: str, rng: np.random.Generator) -> None:
    solved = problem(text, rng)
    over, relative = ratios(solved)
    assert over.max() <= 1.0
    assert relative.max() < 1e-9
    for latent in (False, True):
        over, relative = ratios(solved, latent)
        assert over.max() <= 1.0
        assert relative.max() < 1e-7


@pytest.mark.parametrize("text", ["rbf", "matern32 * linear"])
def test_solves_that_stopped_early(text: str, rng: np.random.Generator) -> None:
    """The solve covers one block of the coordinates: far from the exact solution, and the bound holds."""
    solver = GreedyBlockCoordinateDescent(block_size=4)
    for tolerance in (0.5, 0.05):
        over, relative = ratios(problem(text, rng, solver=solver, tolerance=tolerance))
        assert over.max() <= 1.0
        assert relative.max() > 1e-4


@pytest.mark.parametrize("text", ["rbf", "matern32"])
def test_sums_within_an_error_are_in_the_bound(
    text: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far apart samples, so that some are far from a leaf of one sample."""
    taken = []

    def slopes(*arguments: Any) -> Any:
        taken.append(result := cross_sums.cross_slopes(*arguments))
        return result

    monkeypatch.setattr(cross_sums, "forecast_sums", lambda *_: cross_sums.Forecast(True))
    monkeypatch.setitem(SOURCE_LEAF, 2, 1)
    monkeypatch.setattr(module, "cross_slopes", slopes)
    solver = GreedyBlockCoordinateDescent(block_size=4)
    rough = problem(text, rng, solver=solver, tolerance=0.5)
    over, _ = ratios(rough)
    assert over.max() <= 1.0
    sums, bounds = taken[0]
    assert (bounds > 0.0).any()
    assert np.isfinite(sums).all()


def test_errors_of_sums_do_not_grow_with_the_bound(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a certificate of an earlier version bounds no derivative."""
    asked = []
    monkeypatch.setattr(module, "cross_slopes", lambda *arguments: asked.append(arguments[-1]))
    monkeypatch.setattr(
        Certificate, "gradient_error_bound", lambda _, sizes, *__: np.full((len(sizes.slope), 2, 2), np.inf)
    )
    solved = problem("rbf", rng)
    error = MeanGradients(solved.model, f"gradients-{next(_VERSIONS)}")(solved.T).error
    assert np.isinf(error).all()
    slope = SlopeEvaluator(parse_kernel("rbf", 2)).sizes(np.zeros((1, 2))).slope[0]
    np.testing.assert_allclose(asked[0], np.broadcast_to(0.01 * np.sqrt(0.02) * slope, (4, 2, 2)), rtol=1e-12)


def test_noise_by_sample(rng: np.random.Generator) -> None:
    """Theorem 1a: over eight orders of magnitude, of an early stop and of an exact solution."""
    noise = 10.0 ** rng.uniform(-6.0, 2.0, 24)
    solver = GreedyBlockCoordinateDescent(block_size=4)
    for settings in ({}, {"solver": solver, "tolerance": 0.1}):
        noisy = problem("rbf + linear", np.random.default_rng(1), sample_noise=noise, **settings)
        assert ratios(noisy)[0].max() <= 1.0
        assert ratios(noisy, True)[0].max() <= 1.0
        assert ratios(noisy, False)[1].max() < 1e-6


# Of four kinds of clusters one is enough for every run: in fifty digits each takes more than a second.
HEAVY = [name for name in attacks() if name.startswith("clusters")][1:4]


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in attacks()]
)
def test_attacks(name: str) -> None:
    attacked = attacks()[name]
    for latent in (None, True, False):
        over, _ = ratios(attacked, latent)
        assert over.max() <= 1.0


def test_the_bound_is_near_what_it_bounds() -> None:
    """Half of it is reached, where an eigenvalue of K is the noise and the residual lies along dk."""
    x = np.array([[0.0]])
    X = np.array([[1.0], [-1.0]])
    kernel = SquaredExponential((0.5,))
    evaluator = SlopeEvaluator(kernel)
    dk = np.array([evaluator.sums(x, evaluator.coordinates(row[None]), np.ones((1, 1)))[0, 0, 0] for row in X])
    K = kernel(X, X)
    noise = float(np.linalg.eigvalsh(K)[0])  # of the eigenvector (1, -1), along which dk lies
    alpha = 1e-3 * np.linalg.solve(K + noise * np.eye(2), dk)[:, None]
    y = np.zeros((2, 1))
    gradient = (K + noise * np.eye(2)) @ alpha - y
    certificate = Certificate.of(alpha, gradient, y, noise, 1.0, np.full(2, 20.0))
    bound = certificate.gradient_error_bound(evaluator.sizes(x), 40.0, evaluator.leaves)[0, 0, 0]
    off = abs(float(dk @ alpha[:, 0]))  # the exact mean is zero
    assert 0.25 < off / bound <= 0.5


def test_bounds_are_in_proportion_to_the_units(rng: np.random.Generator) -> None:
    X = rng.normal(size=(40, 2))
    y = np.sin(2.0 * X[:, :1])
    factors, offsets = np.array([1e3, 1e-4]), np.array([7.0, -2.0])
    got = []
    for scaled, targets in ((X, y), (X * factors + offsets, 1e5 * y + 3.0)):
        model = Problem(scaled, targets, scaled, SquaredExponential((0.5, 0.3)), 0.1, tolerance=1e-3).model
        version = f"gradients-{next(_VERSIONS)}"
        got.append(MeanGradients(model, version)(scaled[:5]))
        forget(version)
    np.testing.assert_allclose(got[1].gradient, got[0].gradient * 1e5 / factors, rtol=1e-6)
    np.testing.assert_allclose(got[1].error, got[0].error * 1e5 / factors, rtol=0.01)  # of roundings, which differ


def model_of(kernel: Kernel, rng: np.random.Generator, n: int = 24) -> ModelRecord:
    X = rng.normal(size=(n, 2))
    return Problem(X, np.sin(X[:, :1]), X[:2], kernel, 0.1).model


def test_rows_are_taken_a_piece_at_a_time(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    model, T = model_of(SquaredExponential((0.5, 0.3)), rng, 600), rng.normal(size=(11, 2))
    expected = MeanGradients(model, "gradients-whole")(T), DeviationGradients(model, "gw", latent=True)(T)
    monkeypatch.setattr(module, "PIECE_ROWS", 4)
    monkeypatch.setattr(module, "SOLVED_TOGETHER", 4)
    pieces = MeanGradients(model, "gradients-whole")(T), DeviationGradients(model, "gw", latent=True)(T)
    forget("gradients-whole")
    forget("gw")
    np.testing.assert_array_equal(pieces[0].gradient, expected[0].gradient)
    np.testing.assert_array_equal(pieces[0].error, expected[0].error)
    np.testing.assert_allclose(pieces[1].gradient, expected[1].gradient, rtol=1e-9)


def test_the_bound_of_an_old_certificate_says_nothing(rng: np.random.Generator) -> None:
    model = model_of(SquaredExponential((0.5, 0.3)), rng)
    old = {**model.certificate, "rounding": [1e-12], "largest": 1.0, "magnitude": [], "spread": []}
    got = MeanGradients(replace(model, certificate=old), "gradients-old")(model.inputs(0, 2))
    forget("gradients-old")
    assert np.isinf(got.error).all()
    assert np.isfinite(got.gradient).all()


def test_a_users_function_with_a_derivative(rng: np.random.Generator) -> None:
    declared = UserKernel.registered("tests_cauchy_with_derivative", gamma=(0.5, 0.3))
    rq = parse_kernel("rq(alpha=1.0)", 2).with_parameters([0.5, 0.3, 1.0, 1.0])
    got = []
    for kernel in (declared, rq):  # one and the same
        model = model_of(kernel, np.random.default_rng(2))
        got.append(MeanGradients(model, f"gradients-{kernel.type_name}")(model.inputs(0, 5)))
        forget(f"gradients-{kernel.type_name}")
    np.testing.assert_allclose(got[0].gradient, got[1].gradient, rtol=1e-6)
    assert (got[0].error < 1e-5).all()


def test_what_cannot_be_is_refused(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'matern12' has no gradient"):
        MeanGradients(model_of(parse_kernel("matern12", 2), rng), "gradients-12")
    model = model_of(SquaredExponential((0.5, 0.3)), rng)
    monkeypatch.setattr(module, "MEMORY_SHARE", 0.0)
    with pytest.raises(InputError, match="a Cholesky factor of all 24 samples.* fit a SparseGPRegressor"):
        DeviationGradients(model, "gradients-large", latent=False)


def test_no_factor_is_built_for_the_mean(rng: np.random.Generator) -> None:
    model = model_of(SquaredExponential((0.5, 0.3)), rng)
    MeanGradients(model, "gradients-mean")(model.inputs(0, 3))
    assert worker_cache().bytes_of("gradients-mean", "whole tiles") == 0
    DeviationGradients(model, "gradients-mean", latent=False)
    assert worker_cache().bytes_of("gradients-mean", "whole tiles") > 0
    forget("gradients-mean")
    assert math.isclose(worker_cache().bytes_of("gradients-mean", "whole tiles"), 0.0)


@pytest.mark.long
@pytest.mark.parametrize("text", ["rbf", "matern52 * linear + rq", "periodic(period=0.3) * rbf"])
def test_roundings_of_a_sum_that_cancels_are_counted(text: str, rng: np.random.Generator) -> None:
    """With weights of 1e9 and both signs the sum loses some of the counted digits, and no more."""
    kernel = parse_kernel(text, 2)
    X, T = rng.normal(size=(700, 2)), rng.normal(size=(2, 2))
    weights = 1e9 * rng.normal(size=(700, 1))
    evaluator = SlopeEvaluator(kernel)
    computed = evaluator.sums(T, evaluator.coordinates(X), weights)[:, 0]
    sizes, columns = evaluator.sizes(T), evaluator.sizes(X)
    magnitude = np.array([np.sum(columns.scale * np.abs(weights[:, 0]))])
    bound = slope_rounding(sizes, float(columns.errors.max()), evaluator.leaves, 700, magnitude)[:, 0]
    rows = numbers(X)
    step, ratios = mp.mpf(10) ** -15, []
    for i, x in enumerate(numbers(T)):
        for feature in range(2):
            above, below = list(x), list(x)
            above[feature] += step
            below[feature] -= step
            exact = mp.fsum(
                mp.mpf(float(w)) * (entry(kernel, above, row) - entry(kernel, below, row))
                for w, row in zip(weights[:, 0], rows, strict=True)
            ) / (2 * step)
            ratios.append(float(abs(mp.mpf(float(computed[i, feature])) - exact) / mp.mpf(float(bound[i, feature]))))
    assert 1e-5 < max(ratios) <= 1.0


def test_roundings_are_those_of_the_proof() -> None:
    """Lanes, terms of a block by leaf, blocks and twelve; of few columns no more than there are terms."""
    assert slope_roundings(10, 3) == 30.0 + 12.0
    assert slope_roundings(10**6, 2) == 512.0 + 2.0 * (8208.0 / 512.0 + 1.0) + (10**6 / 8192.0 + 1.0) + 12.0
    assert slope_roundings(20_000, 1) == 512.0 + (8208.0 / 512.0 + 1.0) + 8.0 + 12.0
    sizes = SlopeSizes(np.ones(1), np.array([[2.0]]), np.array([[3.0]]), np.zeros((1, 1)), np.array([5.0]))
    certificate = Certificate(0.25, 10, (1.0,), (0.5,), (7.0,), (1.0,), product_error=0.1)
    rounding = 2.0**-53 * 1.01 * (22.0 + 40.0 + 5.0) * 3.0 * 7.0
    np.testing.assert_allclose(slope_rounding(sizes, 40.0, 1, 10, np.array([7.0])), [[[rounding]]], rtol=1e-14)
    # G |r| / s, |r| with its rounding and the product's error.
    distance = 2.0 * (1.5 + 0.1 * math.sqrt(10.0)) / 0.5
    bound = certificate.gradient_error_bound(sizes, 40.0, 1)
    np.testing.assert_allclose(bound, [[[distance + rounding]]], rtol=1e-13)
    assert bound[0, 0, 0] >= distance + rounding


def test_the_residual_of_the_weights_is_bounded_and_counted(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved = problem("rbf + linear", rng)
    exact, kernel = solved.exact, solved.kernel
    K = kernel(exact.X, exact.X) + solved.model.noise_variance * np.eye(len(exact.X))
    plain, seen = WholeFactor.weights, []

    def rough(self: WholeFactor, inputs: np.ndarray, *, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        w, residual = plain(self, inputs, threads=threads)
        known, scales = self.roundings, self.roundings.scales
        d = math.sqrt(scales.largest) * scales.weights
        f = np.sqrt(np.einsum("nt,nt->t", kernel(exact.X, inputs), w))
        tau = (known.entry + known.gamma) * np.sqrt(kernel.diagonal(inputs)) + known.gamma * f
        of_proof = np.linalg.norm(d) * ((known.backward + known.gamma) * (d @ np.abs(w)) + tau)
        assert (residual >= of_proof * (1.0 - 1e-9)).all()
        assert (residual <= 10.0 * of_proof).all()
        rows, weights = numbers(exact.X), mp.matrix(w.tolist())
        for j, x in enumerate(numbers(inputs)):
            left = [
                mp.fsum(entry(kernel, row, other) * weights[i, j] for i, other in enumerate(rows))
                + mp.mpf(solved.model.noise_variance) * weights[k, j]
                - entry(kernel, row, x)
                for k, row in enumerate(rows)
            ]
            seen.append(float(mp.norm(mp.matrix(left)) / mp.mpf(float(residual[j]))))
        off = 1e-4 * rng.normal(size=w.shape)
        return w + off, residual + 1.000001 * np.linalg.norm(K @ off, axis=0)

    monkeypatch.setattr(WholeFactor, "weights", rough)
    over, relative = ratios(solved, True)
    assert len(seen) == len(solved.T)
    assert 0.0 < max(seen) <= 1.0
    assert over.max() <= 1.0
    assert relative.max() > 1e-6


def test_the_roundings_of_the_deviations_sums_are_counted(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, as the sum is, over twice the deviation."""
    model, T = model_of(SquaredExponential((0.5, 0.3)), rng), rng.normal(size=(3, 2))
    monkeypatch.setattr(module, "slope_rounding", lambda *arguments: np.ones((3, 3, 2)))
    got = DeviationGradients(model, "gradients-counted", latent=True)(T)
    forget("gradients-counted")
    to = model.standardisation
    expected = (to.target_std / got.deviation)[:, :, None] * to.target_std[:, None] / to.input_std
    assert got.error is not None
    np.testing.assert_allclose(got.error, expected, rtol=1e-3)


def test_a_root_is_as_far_off_as_its_interval_lets_it_be() -> None:
    lower, upper, steepness, off = np.array([0.9]), np.array([1.1]), np.array([[2.0, -3.0]]), np.array([[0.1, 0.0]])
    middle, gradient, error = module._of_root(lower, upper, steepness, off)
    np.testing.assert_allclose(middle, [1.0])
    np.testing.assert_allclose(gradient, [[1.0, -1.5]])
    worst = [(2.0 + 0.1) * 0.5 / math.sqrt(0.9) - 1.0, 3.0 * 0.5 / math.sqrt(0.9) - 1.5]
    assert (error[0] >= worst).all()
    np.testing.assert_allclose(error[0], worst, rtol=1e-3)
    assert np.isinf(module._of_root(np.zeros(1), upper, steepness, off)[2][0]).all()


def test_units_round_outward(rng: np.random.Generator) -> None:
    """For exact standardised derivatives the bound covers the two roundings and little else."""
    model = model_of(SquaredExponential((0.5, 0.3)), rng)
    to, standardised = model.standardisation, rng.normal(size=(200, 1, 2))
    gradient, error = module.in_units(model, standardised, np.zeros_like(standardised), 2)
    most = 0.0
    for place in np.ndindex(*gradient.shape):
        exact = mp.mpf(float(standardised[place])) * mp.mpf(float(to.target_std[0]))
        exact /= mp.mpf(float(to.input_std[place[2]]))
        off = abs(mp.mpf(float(gradient[place])) - exact)
        assert off <= mp.mpf(float(error[place]))
        most = max(most, float(off / mp.mpf(float(error[place]))))
    assert most > 0.05
