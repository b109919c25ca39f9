"""Any kernel in the marginal likelihood, against scikit-learn's, the fused squared exponential, and differences."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from dkgp.errors import InputError
from dkgp.kernels import (
    Constant,
    Linear,
    Matern32,
    Periodic,
    RationalQuadratic,
    SquaredExponential,
    White,
    parse_kernel,
)
from dkgp.models.tuning import families
from dkgp.models.tuning.families import ArdSquaredExponential, ComposedFamily, family_bytes, family_of
from dkgp.models.tuning.objectives import LogMarginalLikelihood

NAMES = ("a", "b", "c")
L3 = (0.7, 2.0, 1.3)


@pytest.fixture
def problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((150, 3))
    return X, np.column_stack([np.sin(2.0 * X[:, 0]) + 0.1 * X[:, 1], X @ [0.5, -0.2, 0.1]])


@pytest.fixture(params=[None, 1], ids=["in one block", "in three blocks"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is not None:
        monkeypatch.setattr(families, "_BLOCK_ENTRIES", request.param)


# Ours, scikit-learn's, and our gradient from theirs: rows of (index, factor), as gamma = 1 / (2 length^2).
AGAINST_SKLEARN = {
    "matern32": (
        Matern32.from_length_scales(L3, variance=1.4),
        1.4 * sk.Matern(L3, nu=1.5),
        [[(1, -0.5)], [(2, -0.5)], [(3, -0.5)], [(0, 1.0)]],
    ),
    "rq": (
        RationalQuadratic.from_length_scales(1.5, n_features=3, alpha=0.8, variance=0.9),
        0.9 * sk.RationalQuadratic(length_scale=1.5, alpha=0.8),
        [[(2, -0.5)], [(0, 1.0)], [(1, 1.0)]],
    ),
    "rbf + linear + constant": (
        SquaredExponential.from_length_scales(L3) + Linear(variance=0.3, n_features=3) + Constant(0.3 * 1.44),
        sk.RBF(L3) + 0.3 * sk.DotProduct(sigma_0=1.2),
        # theirs is v (sigma^2 + x x'): v scales both of our parts, sigma the constant alone, squared.
        [[(0, -0.5)], [(1, -0.5)], [(2, -0.5)], None, [(3, 1.0), (4, -0.5)], [(4, 0.5)]],
    ),
    "rbf times matern32": (
        SquaredExponential.from_length_scales(1.5, n_features=3) * (2.0 * Matern32.from_length_scales(L3)),
        sk.RBF(1.5) * (2.0 * sk.Matern(L3, nu=1.5)),
        [[(0, -0.5)], [(1, 1.0)], [(2, -0.5)], [(3, -0.5)], [(4, -0.5)]],
    ),
}


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("name", list(AGAINST_SKLEARN))
def test_likelihood_and_gradient_are_scikit_learns(name: str, problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = problem
    kernel, theirs, mapping = AGAINST_SKLEARN[name]
    likelihood = LogMarginalLikelihood(family_of(kernel, X, True, NAMES), Y)
    values = [parameter.value for parameter in kernel.parameters()]
    found = likelihood(np.log([*values, 0.05]))
    value, gradient = found

    model = GaussianProcessRegressor(theirs + sk.WhiteKernel(0.05), alpha=0.0, optimizer=None).fit(X, Y)
    expected, slopes = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    assert value == pytest.approx(expected, rel=1e-10)
    for ours, rows in zip(gradient, [*mapping, [(len(slopes) - 1, 1.0)]], strict=True):
        if rows is not None:
            assert ours == pytest.approx(sum(factor * slopes[index] for index, factor in rows), rel=1e-7, abs=1e-7)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("learn_variance", [False, True])
def test_squared_exponential_is_the_fused_one(learn_variance: bool, problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = problem
    kernel = SquaredExponential.from_length_scales(L3)
    fused = family_of(kernel, X, learn_variance, NAMES)
    assert isinstance(fused, ArdSquaredExponential)
    composed = ComposedFamily(kernel, X, learn_variance=learn_variance, feature_names=NAMES)
    np.testing.assert_allclose(composed.initial(), fused.initial(), rtol=1e-14)
    np.testing.assert_array_equal(composed.bounds, fused.bounds)
    assert composed.names == fused.names == (*(f"gamma of '{x}'" for x in "abc"), "the amplitude v")[: len(fused.names)]
    at = np.append(fused.initial() + 0.1, math.log(0.1))
    assert composed.kernel(at[:-1]) == fused.kernel(at[:-1])
    (value, gradient), (expected, slopes) = (
        LogMarginalLikelihood(family, Y)(at) or pytest.fail("no likelihood") for family in (composed, fused)
    )
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-9)


def test_default_squared_exponential_starts_as_it_always_did(rng: np.random.Generator) -> None:
    X = rng.standard_normal((5, 3))
    family = family_of(parse_kernel("rbf", 3), X, False, NAMES)
    np.testing.assert_array_equal(
        family.initial(), ArdSquaredExponential(X, learn_variance=False, feature_names=NAMES).initial()
    )


@pytest.mark.covering
@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize(
    "text",
    [
        "rbf['a', 'b'] * periodic['c'](period=1.7) + linear(isotropic=True) + constant",
        "(rbf(isotropic=True) + 0.3 * constant) * (matern52 + polynomial(degree=2))",
    ],
)
def test_gradient_is_the_central_difference(text: str, problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = problem
    likelihood = LogMarginalLikelihood(family := family_of(parse_kernel(text, 3, NAMES), X, True, NAMES), Y)
    at = np.append(family.initial(), math.log(0.2))

    def value(point: np.ndarray) -> float:
        found = likelihood(point)
        return found[0]

    _, gradient = likelihood(at) or pytest.fail("no likelihood")
    step = 1e-3
    expected = [
        sum(w * value(at + k * step * e) for k, w in ((1, 8), (-1, -8), (2, -1), (-2, 1))) / (12.0 * step)
        for e in np.eye(len(at))
    ]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("_blocks")
def test_matrix_has_both_triangles_and_weights_only_the_lower(problem: tuple[np.ndarray, np.ndarray], rng) -> None:
    X, _ = problem
    kernel = parse_kernel("matern12 + linear", 3)
    family = family_of(kernel, X, True, NAMES)
    out = np.full((150, 150), np.nan, order="F")
    family.matrix(family.initial(), out)
    np.testing.assert_allclose(out, kernel(X, X), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(out, out.T)
    half = rng.standard_normal((150, 150))
    symmetric = half + half.T
    lower = np.asfortranarray(np.tril(symmetric) + np.triu(np.full((150, 150), np.nan), 1))
    expected = kernel.contract(X, X, symmetric)
    np.testing.assert_allclose(family.contract(family.initial(), out, lower), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("matern32", "the amplitude v"),
        ("2.0 * matern32", "scale"),
        ("rbf * periodic", "rbf.variance"),
        ("periodic['c']", "the amplitude v"),
    ],
)
def test_amplitude_of_a_stationary_kernel_is_held_by_choice(text: str, held: str, rng: np.random.Generator) -> None:
    X = rng.standard_normal((10, 3))
    kernel = parse_kernel(text, 3, NAMES)
    learnt, not_learnt = (family_of(kernel, X, choice, NAMES) for choice in (True, False))
    assert [name for name in learnt.names if name not in not_learnt.names] == [held]
    assert len(not_learnt.bounds) == len(not_learnt.initial()) == len(not_learnt.names) == len(learnt.names) - 1
    moved = not_learnt.kernel(not_learnt.initial() + 0.5)
    np.testing.assert_allclose(moved.diagonal(X), kernel.diagonal(X), rtol=1e-14)


@pytest.mark.parametrize("text", ["rbf + linear", "linear(isotropic=True)", "rbf * polynomial(isotropic=True)"])
def test_amplitudes_of_other_kernels_are_always_learnt(text: str, rng: np.random.Generator) -> None:
    X = rng.standard_normal((10, 3))
    kernel = parse_kernel(text, 3)
    assert family_of(kernel, X, False, NAMES).names == family_of(kernel, X, True, NAMES).names
    assert len(family_of(kernel, X, False, NAMES).names) == len(kernel.parameters())


def test_names_say_part_and_feature(rng: np.random.Generator) -> None:
    kernel = parse_kernel("rbf['c'] * periodic['a'] + rbf", 3, NAMES)
    assert family_of(kernel, rng.standard_normal((4, 3)), True, NAMES).names == (
        "product.rbf.gamma of 'c'",
        "product.rbf.variance",
        "product.periodic.gamma of 'a'",
        "product.periodic.period of 'a'",
        "rbf.gamma of 'a'",
        "rbf.gamma of 'b'",
        "rbf.gamma of 'c'",
        "rbf.variance",
    )


def test_feature_that_is_switched_off_stays_off(rng: np.random.Generator) -> None:
    family = family_of(SquaredExponential((0.5, 0.0, 0.1)), rng.standard_normal((4, 3)), False, NAMES)
    assert family.names == ("gamma of 'a'", "gamma of 'c'")
    found = family.kernel(np.log([2.0, 3.0]))
    assert isinstance(found, SquaredExponential)
    np.testing.assert_allclose(found.gamma, (2.0, 0.0, 3.0), rtol=1e-15)


def test_variance_that_is_not_learnt_stays(problem: tuple[np.ndarray, np.ndarray]) -> None:
    X, Y = problem
    kernel = SquaredExponential.from_length_scales(L3, variance=2.5)
    fused = family_of(kernel, X, False, NAMES)
    composed = ComposedFamily(kernel, X, learn_variance=False, feature_names=NAMES)
    assert fused.kernel(fused.initial()).variance == 2.5
    at = np.append(fused.initial(), math.log(0.1))
    ours, other = (LogMarginalLikelihood(family, Y)(at) or pytest.fail("no likelihood") for family in (fused, composed))
    assert ours[0] == pytest.approx(other[0], rel=1e-12)
    np.testing.assert_allclose(ours[1], other[1], rtol=1e-9)


def test_white_noise_and_other_features_are_refused(rng: np.random.Generator) -> None:
    X = rng.standard_normal((4, 3))
    with pytest.raises(InputError, match="white noise inside a kernel.*fold_white"):
        family_of(SquaredExponential((1.0, 1.0, 1.0)) + White(0.1), X, True, NAMES)
    with pytest.raises(InputError, match="the kernel has 2 features, but the inputs have 3"):
        family_of(SquaredExponential((1.0, 1.0)), X, True, NAMES)


@pytest.mark.parametrize(
    "kernel",
    [
        parse_kernel("matern32", 3),
        parse_kernel("rbf + linear", 3),
        parse_kernel("rbf * periodic * rq + matern52", 3),
        2.0 * Periodic((1.0, 1.0, 1.0)),
    ],
    ids=["plain", "sum", "product", "periodic"],
)
def test_memory_of_an_evaluation_is_what_was_projected(kernel, rng: np.random.Generator) -> None:
    n = 1200
    family = family_of(kernel, rng.standard_normal((n, 3)), True, NAMES)
    out = np.empty((n, n), order="F")
    weights = np.ones((n, n), order="F")
    tracemalloc.start()
    try:
        family.matrix(family.initial(), out)
        family.contract(family.initial(), out, weights)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.25 * family_bytes(kernel, n) <= peak <= family_bytes(kernel, n)
    assert family_bytes(SquaredExponential((1.0,) * 3), n) == 0
