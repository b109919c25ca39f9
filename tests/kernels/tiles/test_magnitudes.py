"""Products of kernels that underflow on the way are refused by name; what does not is as a hundred digits have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

from dkgp import GPRegressor
from dkgp.errors import InputError
from dkgp.kernels import Constant, Kernel, Linear, SquaredExponential, TileEvaluator, UserKernel, register_function
from dkgp.kernels.tiles.encoding import require_digits


def se(variance: float) -> Kernel:
    return SquaredExponential((0.5,), variance=variance, n_features=2)


@register_function("tests_tiny_at_ones")
def tiny_at_ones(x, z):
    return 1.0 if x[0] < 0.5 and z[0] < 0.5 else 1e-250


def linear(weight: float) -> Kernel:
    return Linear(weight=(weight,), n_features=2)


# Each is of 1e-100 at ordinary inputs, and came to 0.
LOST: dict[str, Callable[[], Kernel]] = {
    "product": lambda: se(1e-200) * se(1e-200) * se(1e300),
    "product, the large one first": lambda: se(1e300) * linear(1e-200) * linear(1e-200),
    "multiple of a product": lambda: 1e300 * (se(1e-200) * se(1e-200)),
    "multiple of a multiple": lambda: 1e300 * (1e-200 * se(1e-200)),
    "constants": lambda: Constant(1e-200) * Constant(1e-200) * se(1e300),
    "weights": lambda: linear(1e-200) * linear(1e-200) * se(1e300),
    "within a sum": lambda: se(1.0) + 1e300 * (se(1e-200) * se(1e-200)),
    "of some features": lambda: (se(1e-200) * se(1e-200)).on((0, 1), 3) * Constant(1e300),
}


@pytest.mark.parametrize("name", LOST)
def test_what_underflows_on_the_way_is_refused(name: str) -> None:
    kernel = LOST[name]()
    for precision in ("single", "double"):
        with pytest.raises(InputError, match=r"magnitudes .*e-200.* come to 0, and float64 keeps the digits"):
            TileEvaluator(kernel, precision)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", ["gbcd", "cholesky", "cg"])
def test_no_solver_takes_it(solver: str, rng: np.random.Generator) -> None:
    kernel = LOST["within a sum"]()
    X = rng.normal(size=(9, kernel.n_features))
    with pytest.raises(InputError, match="Choose other variances, scales or weights"):
        GPRegressor(kernel, noise_variance=1e-3, solver=solver).fit(X, X[:, 0])


@pytest.mark.parametrize(
    "kernel",
    [
        se(1e-90) * se(1e-90) * se(1e150),
        1e200 * (se(1e-130) * se(1e-130)),
        linear(1e-130) * linear(1e-130) * se(1e250),
    ],
)
def test_what_keeps_its_digits_is_taken(kernel: Kernel) -> None:
    X = np.random.default_rng(1).normal(size=(7, 2))
    evaluator = TileEvaluator(kernel, "double")
    features = evaluator.prepare(X)
    found = np.asarray(evaluator.tile(features, features))
    exact = np.array([[float(_exact(kernel, a, b)) for b in X] for a in X])
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    np.testing.assert_allclose(kernel(X, X), exact, rtol=1e-12)


def test_functions_of_two_rows_count_by_their_factor() -> None:
    mine = UserKernel(tiny_at_ones, of="pair", n_features=2)
    require_digits(1e-200 * mine)
    require_digits(mine * se(1e-200))
    with pytest.raises(InputError, match="0, and float64"):
        require_digits(replace(mine, variance=1e-200) * se(1e-200))


def _exact(kernel: Kernel, a: np.ndarray, b: np.ndarray) -> mp.mpf:
    parts = getattr(kernel, "parts", None)
    with mp.workdps(100):
        if parts is not None:
            values = [_exact(part, a, b) for part in parts]
            return mp.fsum(values) if type(kernel).__name__ == "Sum" else mp.fprod(values)
        if hasattr(kernel, "scale"):
            return mp.mpf(kernel.scale) * _exact(kernel.kernel, a, b)
        if isinstance(kernel, Linear):
            return mp.fsum(mp.mpf(kernel.weight[0]) * mp.mpf(x) * mp.mpf(z) for x, z in zip(a, b, strict=True))
        assert isinstance(kernel, SquaredExponential)
        squares = mp.fsum((mp.mpf(x) - mp.mpf(z)) ** 2 for x, z in zip(a, b, strict=True))
        return mp.mpf(kernel.variance) * mp.exp(-mp.mpf(kernel.gamma[0]) * squares)
