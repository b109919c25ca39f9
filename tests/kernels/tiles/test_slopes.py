"""Derivatives of kernels in their inputs: against differences of naive values, and 50 digits with their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import Kernel, Matern12, Periodic, SquaredExponential, UserKernel, parse_kernel
from dkgp.kernels.tiles.slope_loops import SLOPE_COLUMNS
from dkgp.kernels.tiles.slopes import SlopeEvaluator
from tests.kernels.table import CASES, Case, cauchy, derivative_of_cauchy, features_of, smallest
from tests.models.exact_gp import Row, entry, mp, numbers

WITHOUT = {
    "matern12",
    "spherical",
    "stable",
    "stable isotropic",
    "scaled sum",
    "user, of the distance",
    "user, of two rows",
}
SMOOTH = [case for case in CASES if case.name not in WITHOUT]
STEP = mp.mpf(10) ** -15
UNIT = mp.mpf(2) ** -53


def test_only_kernels_without_derivative_are_left_out() -> None:
    for case in CASES:
        if case.name in WITHOUT:
            with pytest.raises(InputError, match="no gradient|no `derivative`|no derivative in its inputs"):
                SlopeEvaluator(case.kernel)
        else:
            SlopeEvaluator(case.kernel)


@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.name)
def test_sums_are_central_differences_of_naive_ones(case: Case, rng: np.random.Generator) -> None:
    """More than one block, several weights, and one row that is also a column."""
    d, n = features_of(case), SLOPE_COLUMNS + 7
    X, Z, weights = rng.standard_normal((3, d)), rng.standard_normal((n, d)), rng.standard_normal((n, 2))
    Z[SLOPE_COLUMNS + 2] = X[1]
    evaluator = SlopeEvaluator(case.kernel)
    sums = evaluator.sums(X, evaluator.coordinates(Z), weights)
    step = 1e-3
    for feature in range(d):
        along = np.zeros(d)
        along[feature] = step
        values = [case.kernel(X + times * along, Z) @ weights for times in (-2, -1, 1, 2)]
        expected = (values[0] - 8.0 * values[1] + 8.0 * values[2] - values[3]) / (12.0 * step)
        # Of these the third derivative is not continuous where the row is a column.
        kinked = case.name.startswith(("cubic", "wendland", "compact")) or "matern32" in case.name
        np.testing.assert_allclose(sums[:, :, feature], expected, atol=3e-3 if kinked else 1e-7)


def derivative(kernel: Kernel, x: Row, z: Row, feature: int) -> Any:
    above, below = list(x), list(x)
    above[feature] += STEP
    below[feature] -= STEP
    return (entry(kernel, above, z) - entry(kernel, below, z)) / (2 * STEP)


def mixed_derivative(kernel: Kernel, x: Row, feature: int) -> Any:
    above, below = list(x), list(x)
    above[feature] += STEP
    below[feature] -= STEP
    return (derivative(kernel, x, above, feature) - derivative(kernel, x, below, feature)) / (2 * STEP)


ATTACKS: dict[str, tuple[Kernel, float]] = {
    **{case.name: (case.kernel, 1.0) for case in SMOOTH if "user" not in case.name},
    "many turns": (Periodic((3.0, 40.0), (0.01, 2.0)), 50.0),
    "steep": (SquaredExponential((4e6, 1.0)), 1e-3),
    "rq of a long tail": (parse_kernel("rq(alpha=0.05)", 3), 100.0),
    "of a high degree": (parse_kernel("polynomial(degree=7, offset=0.1)", 3), 4.0),
    "a product of two that vary": (parse_kernel("linear * polynomial(degree=3, offset=0.2)", 3), 2.0),
    "a product of four": (parse_kernel("rbf * linear * matern32 * periodic(period=0.3) + rq * polynomial", 3), 3.0),
}


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", ATTACKS)
def test_sizes_and_roundings_are_bounded(name: str, rng: np.random.Generator) -> None:
    kernel, spread = ATTACKS[name]
    d = kernel.n_features or 3
    X, Z = spread * rng.standard_normal((3, d)), spread * rng.standard_normal((12, d))
    Z[0], Z[1] = X[0], X[1] + 1e-9
    evaluator = SlopeEvaluator(kernel)
    at_rows, at_columns = evaluator.sizes(X), evaluator.sizes(Z)
    columns = evaluator.coordinates(Z)
    for j, z in enumerate(numbers(Z)):
        only = np.zeros((len(Z), 1))
        only[j] = 1.0
        computed = evaluator.sums(X, columns, only)[:, 0]
        for i, x in enumerate(numbers(X)):
            for feature in range(d):
                exact = derivative(kernel, x, z, feature)
                scale = mp.mpf(float(at_columns.scale[j]))
                # Differences of 50 digits are good to some 1e-28 of the third derivative.
                slack = mp.mpf(10) ** -20 * (1 + abs(exact))
                assert abs(exact) <= mp.mpf(float(at_rows.slope[i, feature])) * scale + slack
                off = abs(mp.mpf(float(computed[i, feature])) - exact)
                errors = mp.mpf(float(at_rows.errors[i] + at_columns.errors[j] + 12.0))
                assert off <= UNIT * errors * mp.mpf(float(at_rows.terms[i, feature])) * scale + slack


FAR = {
    **{text: parse_kernel(text, 2) for text in ("rbf", "matern32", "matern52", "rq", "rq(alpha=0.01)", "rq(alpha=40)")},
    **{text: parse_kernel(text, 2) for text in ("rbf + 2 * matern52", "rbf * linear", "matern32 * rq(alpha=0.3)")},
    "steep": SquaredExponential((4e6, 1.0)),
    "flat": SquaredExponential((1e-250, 1e-250)),
}


@pytest.mark.parametrize("name", FAR)
def test_roundings_are_bounded_however_far_out(name: str) -> None:
    """Up to the largest number: what a floor leaves of an entry is not multiplied by the distance."""
    kernel, z = FAR[name], np.array([[0.3, -0.2]])
    evaluator = SlopeEvaluator(kernel)
    columns, of_column = evaluator.coordinates(z), evaluator.sizes(z)
    with mp.workdps(60):
        for exponent in (1, 2, 5, 20, 76, 120, 150, 153, 154, 155, 200, 270, 280, 300, 307):
            x = np.array([[-(10.0**exponent), 0.4]])
            sizes = evaluator.sizes(x)
            computed = evaluator.sums(x, columns, np.ones((1, 1)))[0, 0]
            assert np.isfinite(computed).all()
            for feature in range(2):
                above, below = list(numbers(x)[0]), list(numbers(x)[0])
                step = abs(above[feature]) * mp.mpf(10) ** -20
                above[feature] += step
                below[feature] -= step
                exact = (entry(kernel, above, numbers(z)[0]) - entry(kernel, below, numbers(z)[0])) / (2 * step)
                bound = UNIT * (sizes.errors[0] + of_column.errors[0] + 12.0)
                bound *= mp.mpf(float(sizes.terms[0, feature])) * mp.mpf(float(of_column.scale[0]))
                # The differences of 60 digits.
                assert abs(mp.mpf(float(computed[feature])) - exact) <= bound + abs(exact) * mp.mpf(10) ** -18


@pytest.mark.parametrize("name", ATTACKS)
def test_norms_of_derivatives_are_the_mixed_ones(name: str, rng: np.random.Generator) -> None:
    """G, A and the derivative of k(x, x) are exact but for a hair; T is nowhere below G."""
    kernel, spread = ATTACKS[name]
    d = kernel.n_features or 3
    X = spread * rng.standard_normal((2, d))
    sizes = SlopeEvaluator(kernel).sizes(X)
    assert (sizes.terms >= sizes.slope * (1.0 - 1e-12)).all()
    for i, x in enumerate(numbers(X)):
        np.testing.assert_allclose(sizes.scale[i], float(mp.sqrt(entry(kernel, x, x))), rtol=1e-12)
        for feature in range(d):
            # Of matern32 the mixed derivative is a limit that differences come near like their step.
            norm = float(mp.sqrt(abs(mixed_derivative(kernel, x, feature))))
            np.testing.assert_allclose(sizes.slope[i, feature], norm, rtol=1e-11, atol=1e-12)
            along = float(derivative(kernel, x, x, feature))
            np.testing.assert_allclose(sizes.along[i, feature], along, rtol=1e-11, atol=1e-12 * max(1.0, norm**2))


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("rbf", (2 + 64) / 2 + 1),
        ("linear(isotropic=True)", (1 * (2 + 8) + 64) / 2 + 1),
        ("rbf * matern32", (2 + 64) + 2 + 1),
        ("rbf + linear(isotropic=True)", (1 * (2 + 8) + 64) / 2 + 1 + 1),
        ("periodic(length_scale=0.5, period=2.0)", (4 + 64) / 2 + 2 * 6 * 2**0.5 * (4 * np.pi * 0.75 + 20) + 1),
    ],
)
def test_errors_are_those_of_the_lemma(text: str, errors: float) -> None:
    """In units of u, the amplitude's own rounding on top; of a circle at 0.75 turns on both axes."""
    sizes = SlopeEvaluator(parse_kernel(text, 2)).sizes(np.array([[1.5, -1.5]]))
    np.testing.assert_allclose(sizes.errors, [errors], rtol=1e-9)


def test_a_users_derivative_is_declared_or_asked_for() -> None:
    with pytest.raises(InputError, match="function 'cauchy' has no `derivative`.* give it, f'\\(s\\), to UserKernel"):
        SlopeEvaluator(UserKernel(cauchy, gamma=(1.0,)))
    with pytest.raises(InputError, match="function of two rows has no derivative .* squared distance"):
        SlopeEvaluator(UserKernel(smallest, of="pair", n_features=1))
    with pytest.raises(InputError, match="derivative of a kernel function is 1.0 at s = 0; expected"):
        SlopeEvaluator(UserKernel(cauchy, gamma=(1.0,), derivative=lambda s: 1.0))
    declared = UserKernel(cauchy, gamma=(2.0,), derivative=derivative_of_cauchy)
    evaluator = SlopeEvaluator(declared)
    x = np.array([[0.5]])
    # d/dx 1 / (1 + 2 x^2) = -4 x / (1 + 2 x^2)^2
    np.testing.assert_allclose(evaluator.sums(x, evaluator.coordinates([[0.0]]), np.ones((1, 1))), -2.0 / 1.5**2)


@pytest.mark.parametrize("kernel", [Matern12((1.0, 1.0)), parse_kernel("rbf + linear * matern12", 2)])
def test_a_kernel_that_is_not_differentiable_is_named(kernel: Kernel) -> None:
    with pytest.raises(
        InputError, match=r"'matern12' has no gradient .* Take matern32, matern52, rbf, rq, cubic or wendland instead"
    ):
        SlopeEvaluator(kernel)


def test_shapes_that_do_not_fit_are_refused(rng: np.random.Generator) -> None:
    evaluator = SlopeEvaluator(SquaredExponential((1.0, 1.0)))
    columns = evaluator.coordinates(rng.standard_normal((5, 2)))
    with pytest.raises(InputError, match=r"weights \(n, t\); got \(2, 5\) and \(4, 1\)"):
        evaluator.sums(np.zeros((1, 2)), columns, np.ones((4, 1)))
    with pytest.raises(InputError, match="rows of 2 features"):
        evaluator.sums(np.zeros((1, 3)), columns, np.ones((5, 1)))
