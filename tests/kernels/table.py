"""Every kernel once or more, beside its formula in plain Python and scikit-learn's version where there is one.

A kernel that is added here is tested by all of `test_every_kernel.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process import kernels as sk

from dkgp.kernels import (
    Constant,
    Cubic,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    Spherical,
    SquaredExponential,
    Stable,
    UserKernel,
    Wendland,
    White,
    register_function,
)

Row = Sequence[float]


@register_function("tests_cauchy")
def cauchy(s):
    return 1.0 / (1.0 + s)


def derivative_of_cauchy(s):
    return -1.0 / (1.0 + s) ** 2


@register_function("tests_cauchy_with_derivative", derivative=derivative_of_cauchy)
def cauchy_with_derivative(s):
    return 1.0 / (1.0 + s)


@register_function("tests_min")
def smallest(x, z):
    # Brownian motion in each feature, of inputs from -10 on: positive definite as a product of covariances.
    product = 1.0
    for index in range(len(x)):
        product *= 1.0 + 0.1 * min(x[index] + 10.0, z[index] + 10.0)
    return product


@dataclass(frozen=True)
class Case:
    """A kernel, k(x, z) by its formula, and whether one of its parameters is a factor of the whole."""

    name: str
    kernel: Kernel
    formula: Callable[[Row, Row], float]
    sklearn: sk.Kernel | None = None
    amplitude: bool = True


def squared(gamma: Row, x: Row, z: Row) -> float:
    return sum(g * (a - b) ** 2 for g, a, b in zip(gamma, x, z, strict=True))


def scaled_distance(length_scales: Row, x: Row, z: Row) -> float:
    return math.sqrt(sum(((a - b) / length) ** 2 for length, a, b in zip(length_scales, x, z, strict=True)))


def dot(weights: Row, x: Row, z: Row) -> float:
    return sum(w * a * b for w, a, b in zip(weights, x, z, strict=True))


def waves(length_scales: Row, periods: Row, x: Row, z: Row) -> float:
    return math.exp(
        -2.0
        * sum(
            (math.sin(math.pi * (a - b) / period) / length) ** 2
            for length, period, a, b in zip(length_scales, periods, x, z, strict=True)
        )
    )


def matern32(length_scales: Row, x: Row, z: Row) -> float:
    u = math.sqrt(3.0) * scaled_distance(length_scales, x, z)
    return (1.0 + u) * math.exp(-u)


def matern52(length_scales: Row, x: Row, z: Row) -> float:
    u = math.sqrt(5.0) * scaled_distance(length_scales, x, z)
    return (1.0 + u + u * u / 3.0) * math.exp(-u)


def spherical(ranges: Row, x: Row, z: Row) -> float:
    """The share of a ball of diameter 1 that it has in common with itself moved by u."""
    u = min(scaled_distance(ranges, x, z), 1.0)
    cap = math.pi * (0.5 - u / 2.0) ** 2 * (1.5 - (0.5 - u / 2.0)) / 3.0
    return 2.0 * cap / (math.pi / 6.0)


def cubic(ranges: Row, x: Row, z: Row) -> float:
    u = scaled_distance(ranges, x, z)
    return 1.0 - 7.0 * u**2 + 8.75 * u**3 - 3.5 * u**5 + 0.75 * u**7 if u < 1.0 else 0.0


def wendland(ranges: Row, x: Row, z: Row) -> float:
    u = scaled_distance(ranges, x, z)
    return 1.0 - 10.0 * u**2 + 20.0 * u**3 - 15.0 * u**4 + 4.0 * u**5 if u < 1.0 else 0.0


R3 = (2.5, 5.0, 3.5)
L3 = (0.7, 2.0, 1.3)
ONE3 = (1.5, 1.5, 1.5)
G3 = (0.3, 0.0, 1.2)
PERIODS = (0.9, 3.0, 1.7)

rbf = SquaredExponential.from_length_scales(L3, variance=1.7)
line = Linear(weight=(0.5, 0.1, 2.0), variance=0.6)
wave_of_one = Periodic.from_length_scales(0.8, period=1.9, variance=0.9)

CASES = [
    Case("rbf", rbf, lambda x, z: 1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2), 1.7 * sk.RBF(L3)),
    Case(
        "rbf isotropic",
        SquaredExponential.from_length_scales(1.5, n_features=3),
        lambda x, z: math.exp(-0.5 * scaled_distance(ONE3, x, z) ** 2),
        sk.RBF(1.5),
    ),
    Case("rbf without a feature", SquaredExponential(G3), lambda x, z: math.exp(-squared(G3, x, z))),
    Case(
        "matern12",
        Matern12.from_length_scales(L3, variance=2.0),
        lambda x, z: 2.0 * math.exp(-scaled_distance(L3, x, z)),
        2.0 * sk.Matern(L3, nu=0.5),
    ),
    Case(
        "matern32",
        Matern32.from_length_scales(L3, variance=0.4),
        lambda x, z: 0.4 * matern32(L3, x, z),
        0.4 * sk.Matern(L3, nu=1.5),
    ),
    Case(
        "matern32 isotropic",
        Matern32.from_length_scales(1.5, n_features=3),
        lambda x, z: matern32(ONE3, x, z),
        sk.Matern(1.5, nu=1.5),
    ),
    Case(
        "matern52",
        Matern52.from_length_scales(L3, variance=3.0),
        lambda x, z: 3.0 * matern52(L3, x, z),
        3.0 * sk.Matern(L3, nu=2.5),
    ),
    Case(
        "rq",
        RationalQuadratic(gamma=G3, variance=1.1, alpha=0.6),
        lambda x, z: 1.1 * (1.0 + squared(G3, x, z) / 0.6) ** -0.6,
    ),
    Case(
        "rq isotropic",
        RationalQuadratic.from_length_scales(1.5, n_features=3, alpha=2.5),
        lambda x, z: (1.0 + scaled_distance(ONE3, x, z) ** 2 / 5.0) ** -2.5,
        sk.RationalQuadratic(length_scale=1.5, alpha=2.5),
    ),
    Case(
        "stable",
        Stable.from_length_scales(L3, variance=1.6, alpha=1.3),
        lambda x, z: 1.6 * math.exp(-(scaled_distance(L3, x, z) ** 1.3)),
    ),
    Case(
        "stable isotropic",
        Stable.from_length_scales(1.5, n_features=3, alpha=0.7),
        lambda x, z: math.exp(-(scaled_distance(ONE3, x, z) ** 0.7)),
    ),
    Case(
        "spherical",
        Spherical.from_length_scales(R3, variance=1.3),
        lambda x, z: 1.3 * spherical(R3, x, z),
    ),
    Case(
        "cubic",
        Cubic.from_length_scales(R3, variance=0.8),
        lambda x, z: 0.8 * cubic(R3, x, z),
    ),
    Case(
        "cubic without a feature",
        Cubic.from_length_scales((2.5, math.inf, 3.5)),
        lambda x, z: cubic((2.5, math.inf, 3.5), x, z),
    ),
    Case(
        "wendland isotropic",
        Wendland.from_length_scales(3.0, n_features=3, variance=2.1),
        lambda x, z: 2.1 * wendland((3.0,) * 3, x, z),
    ),
    Case(
        "compact times smooth",
        Wendland.from_length_scales(R3) * rbf,
        lambda x, z: wendland(R3, x, z) * 1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2),
    ),
    Case(
        "periodic",
        Periodic.from_length_scales(L3, period=PERIODS, variance=1.2),
        lambda x, z: 1.2 * waves(L3, PERIODS, x, z),
    ),
    Case(
        "periodic isotropic",
        Periodic.from_length_scales(1.5, period=2.2, n_features=3),
        lambda x, z: waves(ONE3, (2.2,) * 3, x, z),
    ),
    Case(
        "periodic without a feature",
        Periodic(gamma=G3, period=PERIODS),
        lambda x, z: math.exp(
            -4 * sum(g * math.sin(math.pi * (a - b) / p) ** 2 for g, p, a, b in zip(G3, PERIODS, x, z, strict=True))
        ),
    ),
    Case(
        "periodic of one feature",
        wave_of_one,
        lambda x, z: 0.9 * waves((0.8,), (1.9,), x, z),
        0.9 * sk.ExpSineSquared(length_scale=0.8, periodicity=1.9),
    ),
    Case("linear", line, lambda x, z: 0.6 * dot((0.5, 0.1, 2.0), x, z), amplitude=False),
    Case(
        "linear with one weight",
        Linear(variance=1.4, n_features=3) + Constant(0.49),
        lambda x, z: 1.4 * (dot((1.0,) * 3, x, z) + 0.35),
        1.4 * sk.DotProduct(sigma_0=math.sqrt(0.35)),
        amplitude=False,
    ),
    Case(
        "polynomial",
        Polynomial(weight=(0.5, 0.0, 2.0), offset=0.7, degree=3, variance=0.2),
        lambda x, z: 0.2 * (dot((0.5, 0.0, 2.0), x, z) + 0.7) ** 3,
        amplitude=False,
    ),
    Case(
        "polynomial with one weight",
        Polynomial(offset=0.64, degree=2, n_features=3),
        lambda x, z: (dot((1.0,) * 3, x, z) + 0.64) ** 2,
        sk.DotProduct(sigma_0=0.8) ** 2,
    ),
    Case(
        "homogeneous polynomial",
        Polynomial(weight=(0.5, 1.0, 2.0), offset=0.0, degree=2, variance=0.2),
        lambda x, z: 0.2 * dot((0.5, 1.0, 2.0), x, z) ** 2,
        amplitude=False,
    ),
    Case("constant", Constant(0.3), lambda x, z: 0.3, sk.ConstantKernel(0.3)),
    Case(
        "sum",
        rbf + line + 0.5 * Constant(0.6),
        lambda x, z: 1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2) + 0.6 * dot((0.5, 0.1, 2.0), x, z) + 0.3,
        amplitude=False,
    ),
    Case(
        "product",
        rbf * Matern32.from_length_scales(L3, variance=0.4) * Constant(2.0),
        lambda x, z: 1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2) * 0.8 * matern32(L3, x, z),
        1.7 * sk.RBF(L3) * (0.4 * sk.Matern(L3, nu=1.5)) * sk.ConstantKernel(2.0),
    ),
    Case(
        "scaled sum",
        2.5 * (rbf + Matern12.from_length_scales(1.5, n_features=3)),
        lambda x, z: (
            2.5 * (1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2) + math.exp(-scaled_distance(ONE3, x, z)))
        ),
        sk.ConstantKernel(2.5) * (1.7 * sk.RBF(L3) + sk.Matern(1.5, nu=0.5)),
    ),
    Case(
        "active dimensions",
        SquaredExponential.from_length_scales((0.7, 2.0)).on((2, 0), 3) * wave_of_one.on((1,), 3) + line,
        lambda x, z: (
            math.exp(-0.5 * scaled_distance((0.7, 2.0), (x[2], x[0]), (z[2], z[0])) ** 2)
            * 0.9
            * waves((0.8,), (1.9,), x[1:2], z[1:2])
            + 0.6 * dot((0.5, 0.1, 2.0), x, z)
        ),
        amplitude=False,
    ),
    Case(
        "sum times sum",
        (rbf + 0.3 * Constant(2.0)) * (line + Matern52.from_length_scales(1.5, n_features=3)),
        lambda x, z: (
            (1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2) + 0.6)
            * (0.6 * dot((0.5, 0.1, 2.0), x, z) + matern52(ONE3, x, z))
        ),
        amplitude=False,
    ),
    Case(
        "user, of the distance",
        UserKernel(cauchy, gamma=(0.5, 1.0, 0.2), variance=1.3),
        lambda x, z: 1.3 / (1.0 + squared((0.5, 1.0, 0.2), x, z)),
    ),
    Case(
        "user, with a derivative",
        UserKernel.registered("tests_cauchy_with_derivative", gamma=0.5, n_features=3) * Constant(0.5),
        lambda x, z: 0.5 / (1.0 + squared((0.5,) * 3, x, z)),
    ),
    Case(
        "user, of two rows",
        UserKernel(smallest, of="pair", n_features=3, variance=0.1) + rbf,
        lambda x, z: (
            0.1 * math.prod(1.0 + 0.1 * min(a + 10.0, b + 10.0) for a, b in zip(x, z, strict=True))
            + 1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2)
        ),
        amplitude=False,
    ),
]
WITH_WHITE = Case(
    "white",
    0.5 * White(0.4) + rbf,
    lambda x, z: 1.7 * math.exp(-0.5 * scaled_distance(L3, x, z) ** 2) + (0.2 if x is z else 0.0),
    sk.WhiteKernel(0.2) + 1.7 * sk.RBF(L3),
    amplitude=False,
)
ALL = [*CASES, WITH_WHITE]


def features_of(case: Case) -> int:
    return case.kernel.n_features or 3


def double_loop(case: Case, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The formula for each pair; the very same rows where `A` is `B`."""
    left = A.tolist()
    right = left if A is B else B.tolist()
    return np.array([[case.formula(x, z) for z in right] for x in left])
