"""The stable kernel: its modulus, its bounds next to zero, its spectrum and fast products."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.errors import InputError
from dkgp.kernels import Matern12, SquaredExponential, Stable, TileEvaluator, kernel_from_json, parse_kernel
from dkgp.kernels.program import numpy_functions
from dkgp.kernels.stationary import STABLE
from dkgp.operators import ArrayInputs, ProductError

EXPONENTS = (0.3, 0.8, 1.0, 1.2, 1.7, 2.0)


def test_its_exponents_one_and_two_are_known_kernels(rng: np.random.Generator) -> None:
    X, Z = rng.standard_normal((30, 2)), rng.standard_normal((20, 2))
    one, two = (Stable((0.3, 1.1), 1.7, alpha=alpha)(X, Z) for alpha in (1.0, 2.0))
    np.testing.assert_allclose(one, Matern12((0.3, 1.1), 1.7)(X, Z), rtol=1e-13)
    np.testing.assert_allclose(two, SquaredExponential((0.6, 2.2), 1.7)(X, Z), rtol=1e-13)


def test_it_has_a_fixed_exponent() -> None:
    kernel = parse_kernel("stable(length_scale=2, alpha=0.7)", 2)
    assert kernel == Stable.from_length_scales((2.0, 2.0), alpha=0.7)
    assert kernel_from_json(kernel.to_json()) == kernel
    assert [parameter.name for parameter in kernel.parameters()] == ["gamma", "gamma", "variance"]
    with pytest.raises(InputError, match=r"a stable kernel is a covariance for alpha up to 2; got 2\.5"):
        Stable((1.0,), alpha=2.5)
    with pytest.raises(InputError, match="alpha must be finite and positive; got 0"):
        Stable((1.0,), alpha=0.0)


@pytest.mark.parametrize("alpha", EXPONENTS)
def test_the_modulus_bounds_the_continued_kernel(alpha: float, rng: np.random.Generator) -> None:
    assert STABLE.formula is not None
    assert STABLE.modulus is not None
    radius = 10.0 ** rng.uniform(-3.0, 1.2, 4000)
    q = radius * np.exp(1j * 0.5 * np.pi * rng.uniform(-0.999, 0.999, 4000))
    value = np.abs(STABLE.formula(q * q, alpha, numpy_functions(np.complex128)))
    exact = np.exp(-((q * q) ** (0.5 * alpha)).real)
    np.testing.assert_allclose(value, exact, rtol=1e-10)
    # Regions that contain the point, also next to the line and the arc.
    for share, more in ((1.0, 1.0), (0.7, 1.3), (0.0, 2.0)):
        bound = STABLE.modulus((q * q).real - (1.0 - share) * radius**2, share * q.real, more * radius, alpha)
        assert (bound >= exact * (1.0 - 1e-13)).all()
        assert np.isfinite(bound[radius < 3.0]).all()


@pytest.mark.parametrize("alpha", EXPONENTS)
def test_its_formula_is_exact_next_to_zero(alpha: float) -> None:
    assert STABLE.formula is not None
    s = 10.0 ** np.linspace(-30.0, 4.0, 60)
    found = STABLE.formula(s, alpha, numpy_functions(np.float64))
    with mp.workdps(40):
        exact = np.array([float(1 - mp.exp(-(mp.mpf(x) ** (mp.mpf(alpha) / 2)))) for x in s])
    assert np.abs(1.0 - found - exact).max() <= 1e-14


@pytest.mark.spread(3)
@pytest.mark.parametrize("alpha", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_errors_of_rounded_inputs_are_bounded_where_it_is_infinitely_steep(
    alpha: float, precision: str, rng: np.random.Generator
) -> None:
    X = rng.uniform(-30.0, 30.0, (60, 1))
    Z = X[:40] + 10.0 ** rng.uniform(-16.0, -3.0, (40, 1))
    kernel = Stable((0.7,), alpha=alpha)
    evaluator = TileEvaluator(kernel, precision)  # type: ignore[arg-type]
    tile = evaluator.tile(evaluator.prepare(X), evaluator.prepare(Z)).astype(float)
    with mp.workdps(40):
        gamma, power = mp.mpf(kernel.gamma[0]), mp.mpf(alpha) / 2
        exact = np.array(
            [[float(mp.exp(-((2 * gamma * (mp.mpf(x) - mp.mpf(z)) ** 2) ** power))) for z in Z[:, 0]] for x in X[:, 0]]
        )
    allowed = np.finfo(evaluator.dtype).eps * (evaluator.row_errors(X)[:, None] + evaluator.row_errors(Z))
    error = np.abs(tile - exact)
    assert (error <= allowed).all()
    assert error.max() > 1e-15
    if precision == "double":
        assert allowed.max() <= 40.0 * (60.0 * 2.0**-53) ** alpha


@pytest.mark.parametrize("alpha", EXPONENTS)
def test_its_frequencies_have_its_characteristic_function(alpha: float, rng: np.random.Generator) -> None:
    kernel = Stable.from_length_scales((0.7, 2.0), alpha=alpha)
    w = kernel.frequencies(200_000, rng)
    steps = np.array([[0.3, 0.0], [0.5, 1.0], [0.0, 3.0], [1.5, -1.0]])
    mean = np.cos(w @ steps.T).mean(axis=0)
    np.testing.assert_allclose(mean, kernel(steps, np.zeros((1, 2)))[:, 0], atol=5.0 / np.sqrt(len(w)))


@pytest.mark.spread(2)
@pytest.mark.parametrize("alpha", [0.6, 1.3, 1.9])
@pytest.mark.parametrize("d", [1, 2])
def test_fast_products_keep_their_error(alpha: float, d: int, rng: np.random.Generator) -> None:
    X, V = rng.uniform(-1.0, 1.0, (1500, d)), rng.standard_normal((1500, 2))
    kernel, tolerance = Stable.from_length_scales([0.15] * d, variance=1.3, alpha=alpha), 1e-5
    with ProductError(tolerance).operator(kernel, 0.01, ArrayInputs(X), LocalExecutor(1)) as operator:
        error = np.abs(operator.matmat(V) - kernel(X, X) @ V - 0.01 * V)
    assert error.max() <= 1.3 * tolerance * np.abs(V).sum(axis=0).max()
    assert operator.products["error"] is not None
