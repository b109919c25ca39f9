"""Expansions of a kernel between two cells: within their bounds everywhere, in 40 digits; the same bits everywhere."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from dkgp.kernels.program import PROFILES, numpy_functions
from dkgp.operators.cells.proof import Expansion, group_count, groups, rounded_up
from dkgp.operators.cells.roundings import (
    HIGHEST,
    SLICED_ERROR,
    UNIT,
    Extended,
    Roundings,
    cosines,
    extended_functions,
    half_table,
    rounded_product,
    sliced,
    sliced_product,
)
from tests.targets import blas_architectures, environment, inherited, vector_code

CASES = [
    ("power_of_two", 0.0, 1.5, (2, 1), 1e-9),
    ("power_of_two", 0.0, 0.7, (1, 0), 1e-6),
    ("matern12", 0.0, 0.4, (2, 0), 1e-6),
    ("matern12", 0.0, 3.0, (3, 2), 1e-11),
    ("matern32", 0.0, 1.0, (2, 0), 1e-5),
    ("matern52", 0.0, 0.2, (3, 3), 1e-13),
    ("rational_quadratic", 0.3, 2.0, (2, 2), 1e-7),
    ("rational_quadratic", 40.0, 0.05, (2, 0), 1e-10),
    ("matern32", 0.0, 0.5, (2, 0, 0), 1e-4),
    ("matern12", 0.0, 1.0, (3, 2, 1), 1e-5),
    ("power_of_two", 0.0, 0.8, (2, 1, 0), 1e-4),
]


def numbers(x: Extended) -> list[mp.mpf]:
    return [mp.mpf(float(high)) + mp.mpf(float(low)) for high, low in zip(x.high.ravel(), x.low.ravel(), strict=True)]


def kept(expansion: Expansion, t: np.ndarray, u: np.ndarray) -> mp.mpf:
    """sum_ab A_ab T_a(t) T_b(u) with the coefficients as stored, exactly."""

    def polynomials(x: np.ndarray) -> list[mp.mpf]:
        each = [[mp.chebyt(k, mp.mpf(float(value))) for k in range(expansion.order)] for value in x]
        return [mp.fprod(row[k] for row, k in zip(each, index, strict=True)) for index in expansion.kept.T]

    A, T, U = expansion.operator, polynomials(t), polynomials(u)
    assert A is not None
    return mp.fdot(U, [mp.fdot(map(mp.mpf, row), T) for row in A.tolist()])


def kernel(name: str, parameter: float, side: float, offset: tuple[int, ...], w: list[mp.mpf]) -> mp.mpf:
    s = mp.mpf(side) ** 2 * mp.fsum((o + x) ** 2 for o, x in zip(offset, w, strict=True))
    formula = PROFILES[name].formula
    assert formula is not None
    return mp.mpf(formula(s, mp.mpf(parameter), mp))


@pytest.mark.spread(4)
@pytest.mark.parametrize(("name", "parameter", "side", "offset", "tolerance"), CASES)
def test_no_pair_of_points_breaks_the_bound(
    rng: np.random.Generator, name: str, parameter: float, side: float, offset: tuple[int, ...], tolerance: float
) -> None:
    expansion = Expansion(PROFILES[name], parameter, side, offset, tolerance)
    assert expansion.order >= 1
    assert expansion.bound <= tolerance
    d = len(offset)
    corners = [np.array(corner, float) for corner in itertools.product((-1.0, 1.0), repeat=2 * d)]
    near = [np.concatenate([-np.ones(d), np.ones(d)])]  # the closest points, where kernels are roughest
    drawn = [rng.uniform(-1.0, 1.0, 2 * d) for _ in range(4 - d)]
    few = corners[:: len(corners) // (5 - d) + 1]
    allowed = mp.mpf(expansion.bound) + 4 * UNIT * float(np.abs(expansion.operator).sum())
    with mp.workdps(40):
        for point in near + few + drawn:
            t, u = point[:d], point[d:]
            w = [(mp.mpf(a) - mp.mpf(b)) / 2 for a, b in zip(t, u, strict=True)]
            error = abs(kernel(name, parameter, side, offset, w) - kept(expansion, t, u))
            assert error <= allowed


def searched(expansion: Expansion, name: str, parameter: float, rng: np.random.Generator) -> float:
    """Greatest error of an expansion that a search over both cells finds, in long double."""
    d, p = expansion.d, expansion.order
    numbers_ = np.longdouble

    def error(points: np.ndarray) -> np.ndarray:
        t, u = points[:, :d].astype(numbers_), points[:, d:].astype(numbers_)
        s = sum((expansion.side * (o + (t[:, j] - u[:, j]) / 2)) ** 2 for j, o in enumerate(expansion.offset))
        s = np.asarray(s, numbers_)
        profile = PROFILES[name]
        assert profile.formula is not None
        values = profile.formula(s, parameter, numpy_functions(numbers_))

        def tensor(x: np.ndarray) -> np.ndarray:
            out = np.ones((len(x), 1), numbers_)
            for j in range(d):
                T = np.stack([np.cos(k * np.arccos(x[:, j])) for k in range(p)], axis=1)
                out = (out[:, :, None] * T[:, None, :]).reshape(len(x), -1)
            return out[:, np.ravel_multi_index(tuple(expansion.kept), (p,) * d)]

        assert expansion.operator is not None
        inner = tensor(u) @ expansion.operator.astype(numbers_)
        return np.abs(values - (inner * tensor(t)).sum(axis=1)).astype(float)

    points = np.concatenate(
        [
            np.array(list(itertools.product((-1.0, 1.0), repeat=2 * d))),
            np.cos(np.pi * rng.integers(0, p + 1, (500, 2 * d)) / p),
            rng.uniform(-1.0, 1.0, (500, 2 * d)),
        ]
    )
    for width in (0.3, 0.1, 0.03, 0.01):
        best = points[np.argsort(-error(points))[:25]]
        moved = np.clip(np.repeat(best, 20, axis=0) + width * rng.standard_normal((500, 2 * d)), -1.0, 1.0)
        points = np.concatenate([best, moved])
    return float(error(points).max())


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("d", "tolerance"),
    [(2, 1e-3), pytest.param(2, 1e-7, marks=pytest.mark.long), pytest.param(3, 1e-3, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("name", ["power_of_two", "matern12", "matern32", "matern52", "rational_quadratic"])
def test_search_for_the_largest_error(rng: np.random.Generator, name: str, d: int, tolerance: float) -> None:
    closest = 0.0
    offsets = [(2, 0), (2, 2), (3, 1)] if d == 2 else [(2, 0, 0), (3, 2, 1)]
    for offset, side in itertools.product(offsets, (0.1, 1.0, 4.0)):
        expansion = Expansion(PROFILES[name], 0.7, side, offset, tolerance)
        if expansion.order >= 1:
            ratio = searched(expansion, name, 0.7, rng) / expansion.bound
            assert ratio <= 1.0 + 1e-6
            closest = max(closest, ratio)
    assert closest > 0.3  # a bound that is no more than three times the error somewhere


@pytest.mark.parametrize(
    ("name", "parameter", "side", "offset", "tolerance"),
    [case for case in CASES if len(case[3]) == 2 and case[3] != (1, 0)] + [("matern12", 0.0, 0.5, (2, 0, 0), 1e-3)],
)
def test_slopes_of_expansions(
    rng: np.random.Generator,
    name: str,
    parameter: float,
    side: float,
    offset: tuple[int, ...],
    tolerance: float,
) -> None:
    profile, d = PROFILES[name], len(offset)
    expansion = Expansion(profile, parameter, side, offset, tolerance, slopes=True)
    roundings = Roundings(d, expansion.order, expansion.order + 4, 1, 1, 1, 1e-16)
    _, rest = expansion.row_weights(profile, parameter, roundings, 0, 1)
    p = expansion.order
    few = np.ravel_multi_index(tuple(expansion.kept), (p,) * d)
    A = expansion.operator
    assert A is not None

    def polynomials(x: np.ndarray, width: int, derived: int = -1) -> np.ndarray:
        out = np.ones(1, np.longdouble)
        for j, value in enumerate(x):
            angle = np.arccos(np.longdouble(value))
            k = np.arange(width)
            row = np.cos(k * angle)
            if j == derived:
                row = k * np.sin(k * angle) / np.sin(angle)
            out = np.multiply.outer(out, row).ravel()
        return out

    @mp.workdps(40)
    def ratio_to_bound(axis: int, weights: np.ndarray, remainder: float) -> float:
        """Greatest error of the derivative along an axis, relative to its bound."""
        greatest = 0.0
        for _ in range(25):
            t, u = rng.uniform(-0.999, 0.999, d), rng.uniform(-0.999, 0.999, d)
            t[rng.random(d) < 0.4], u[rng.random(d) < 0.4] = -0.999, 0.999
            w = [(mp.mpf(a) - mp.mpf(b)) / 2 for a, b in zip(t, u, strict=True)]

            def along(x: mp.mpf, w: list[mp.mpf] = w) -> mp.mpf:
                return kernel(name, parameter, side, offset, [*w[:axis], x, *w[axis + 1 :]])

            exact = np.longdouble(str(mp.diff(along, w[axis]) / side))
            kept_slope = polynomials(u, p)[few] @ A @ polynomials(t, p, axis)[few] * np.longdouble(2.0 / side)
            moments = np.abs(polynomials(u, roundings.moments))
            sums = np.bincount(
                groups(roundings.moments, d), weights=moments.astype(float), minlength=group_count(roundings.moments, d)
            )
            bound = float(weights @ sums) + remainder
            assert abs(float(kept_slope - exact)) <= bound
            greatest = max(greatest, abs(float(kept_slope - exact)) / bound)
        return greatest

    for axis in (0, 1):
        weights, remainder = expansion.slope_weights(profile, parameter, roundings, 0, 1, axis)
        assert ratio_to_bound(axis, weights, remainder) > 1e-3
        assert remainder > rest / 100.0


def test_pairs_that_are_left_out_are_small(rng: np.random.Generator) -> None:
    profile = PROFILES["matern32"]
    roundings = Roundings(2, 4, 8, 64, 5, 5, 1e-14)
    expansion = Expansion(profile, 0.0, 10.0, (3, 0), 1e-4)
    assert expansion.order == 0
    with mp.workdps(30):
        closest = kernel("matern32", 0.0, 10.0, (3, 0), [mp.mpf(-1), mp.mpf(0)])
    assert float(closest) <= expansion.bound <= 1.01 * float(closest)
    assert expansion.bound < expansion.left_out(profile, 0.0, roundings) <= 1e-4 * 1.001


def test_cells_that_touch_have_no_expansion_of_a_rough_kernel() -> None:
    assert Expansion(PROFILES["matern12"], 0.0, 1.0, (1, 1), 1e-3).order == -1
    assert Expansion(PROFILES["matern12"], 0.0, 1.0, (0, 0, 0), 0.5).order == -1


def test_smaller_tolerances_never_take_lower_orders() -> None:
    orders = [Expansion(PROFILES["matern52"], 0.0, 0.5, (2, 1), 10.0**-k).order for k in range(2, 13)]
    assert orders == sorted(orders)
    assert orders[-1] > orders[0] > 0


def test_numbers_of_twice_the_digits(rng: np.random.Generator) -> None:
    functions = extended_functions()
    x = np.concatenate([rng.uniform(0.0, 30.0, 100), 10.0 ** rng.uniform(-8.0, 2.5, 100), [0.0, 1.0]])
    with mp.workdps(60):
        for computed, exact in (
            (functions.sqrt(Extended(x)), mp.sqrt),
            (functions.exp(Extended(-x)), lambda v: mp.exp(-v)),
            (functions.log1p(Extended(x)), mp.log1p),
            ((Extended(x) + 1.0) / (Extended(x) * 1.1 + 3.0), lambda v: (v + 1) / (v * mp.mpf(1.1) + 3)),
        ):
            for value, number in zip(numbers(computed), x, strict=True):
                target = exact(mp.mpf(float(number)))
                assert abs(value - target) <= 2.0**-82 * max(abs(target), mp.mpf(10) ** -170)
        for count in (5, 24, 56):
            for j, value in enumerate(numbers(cosines(count))):
                assert abs(value - mp.cos(j * mp.pi / (2 * count))) <= 2.0**-105
    assert float(functions.exp(Extended(np.array([-1e6]))).high[0]) == 0.0


def test_products_of_slices(rng: np.random.Generator) -> None:
    A = Extended(rng.standard_normal((6, 56)) * 10.0 ** rng.uniform(-9.0, 9.0, (6, 56)), np.zeros((6, 56)))
    B = Extended(rng.standard_normal((5, 56)), 1e-17 * rng.standard_normal((5, 56)))
    left, right = sliced(A), sliced(B)
    product, rounded = sliced_product(left, right), rounded_product(left, right)
    with mp.workdps(60):
        for i, j in itertools.product(range(6), range(5)):
            exact = mp.fdot(zip(numbers(A[i]), numbers(B[j]), strict=True))
            allowed = 56 * SLICED_ERROR * left.scale[i] * right.scale[j]
            assert abs(numbers(product[i : i + 1, j : j + 1])[0] - exact) <= allowed
            assert abs(mp.mpf(float(rounded[i, j])) - exact) <= allowed + 2 * UNIT * abs(exact)


def test_halves_are_exact() -> None:
    table = half_table(27)
    for place, s in enumerate((-1, 1)):
        for k in (0, 1, 2, 9, 26):
            coefficients = [mp.mpf(float(value)) for value in table[place, k]]
            with mp.workdps(60):
                for t in (mp.mpf("0.3"), mp.mpf(-1), mp.mpf("0.917")):
                    exact = mp.chebyt(k, (t + s) / 2)
                    total = mp.fsum(c * mp.chebyt(j, t) for j, c in enumerate(coefficients))
                    assert abs(total - exact) <= mp.mpf(10) ** -50
    assert HIGHEST >= 27


def test_rounding_up() -> None:
    for value in (1e-300, 0.1, 1.0, 1.0 + 1e-9, 3e7):
        assert value < rounded_up(value) <= value * (1.0 + 2.0**-9)
    assert rounded_up(0.0) == 0.0
    assert rounded_up(float("inf")) == float("inf")


SCRIPT = """
import hashlib
import numpy as np
from dkgp.kernels import Matern32, RationalQuadratic
from dkgp.kernels.program import PROFILES
from dkgp.operators.cells.proof import Expansion
digest = hashlib.sha256()
for name in ("matern32", "rational_quadratic", "power_of_two"):
    for offset in ((2, 0), (3, 1), (2, 1, 0)):
        expansion = Expansion(PROFILES[name], 0.7, 0.6, offset, 1e-5)
        digest.update(expansion.operator.tobytes() + expansion.kept.tobytes())
        digest.update(np.array([expansion.order, expansion.bound]).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.portable
def test_bits_are_the_same_on_every_machine(tmp_path: Path) -> None:
    settings = [{}, *(environment(tmp_path, blas=name) for name in blas_architectures())]
    settings += [environment(tmp_path, without=features) for features in vector_code()]
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=inherited() | each, capture_output=True, text=True, check=True
        ).stdout
        for each in settings
    }
    assert len(digests) == 1


@pytest.mark.parametrize("offset", [(2, 0), (2, 1, 1)])
def test_tables_have_the_same_bits_in_runs_of_few_rows(
    monkeypatch: pytest.MonkeyPatch, offset: tuple[int, ...]
) -> None:
    def numbers_of_an_expansion() -> list[bytes]:
        expansion = Expansion(PROFILES["matern32"], 0.0, 0.5, offset, 1e-4, slopes=True)
        assert expansion.operator is not None
        parts = [expansion.operator, expansion.kept, expansion._dropped, *(steep for steep, _ in expansion._slopes)]
        return [*(part.tobytes() for part in parts), np.array([expansion.bound, expansion._rest]).tobytes()]

    whole = numbers_of_an_expansion()
    monkeypatch.setattr("dkgp.operators.cells.proof._RUN_ENTRIES", 1)
    assert numbers_of_an_expansion() == whole
