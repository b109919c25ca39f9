"""Users' functions as kernels: compiled where they turn up, once, for both precisions; refused with what is wrong."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys
import threading
from typing import Any

import cloudpickle
import numba
import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import TileEvaluator
from dkgp.kernels.program import Add, InputGroup, Leaf, Multiply, Scale
from dkgp.kernels.stationary import MATERN52
from dkgp.kernels.tiles import user_functions
from dkgp.kernels.user import USER, USER_PAIR
from tests.kernels.tiles.programs import ProgramKernel, kernel_of
from tests.kernels.tiles.test_programs import check, require_row_bits


def cauchy(s: float) -> float:
    return 1.0 / (1.0 + s)


def wendland(s: float) -> float:
    r = math.sqrt(s)
    if r >= 1.0:
        return 0.0
    return (1.0 - r) ** 4 * (4.0 * r + 1.0)


def damped(s: float) -> float:
    return np.exp(-s) * np.cos(0.1 * s)


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    total, left, right = 0.0, 0.0, 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
        left += x[i] ** 2
        right += y[i] ** 2
    return total / math.sqrt((1.0 + left) * (1.0 + right))


def by_arrays(x: np.ndarray, y: np.ndarray) -> float:
    return np.sum(np.minimum(np.abs(x), np.abs(y)))


def alone(function: Any, d: int = 3, *, pair: bool = False) -> ProgramKernel:
    group = InputGroup(tuple(range(d)), (0.6,) * d)
    return kernel_of(d, [group], Leaf(0, USER_PAIR if pair else USER, (), function), amplitude=1.3)


@pytest.mark.covering
@pytest.mark.parametrize("function", [cauchy, wendland, damped], ids=lambda f: f.__name__)
def test_functions_of_the_distance(rng: np.random.Generator, function: Any, precision: str) -> None:
    X = rng.standard_normal((83, 3))
    check(alone(function), X, X[:37], precision, None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "d", "precision"),
    [
        (cosine, 1, "single"),
        pytest.param(cosine, 5, "single", marks=pytest.mark.portable),
        pytest.param(cosine, 1, "double", marks=pytest.mark.portable),
        (cosine, 5, "double"),
        (by_arrays, 5, "double"),
    ],
)
def test_functions_of_two_rows(rng: np.random.Generator, function: Any, d: int, precision: str) -> None:
    X = rng.standard_normal((83, d))
    kernel = alone(function, d, pair=True)
    # By arrays it grows with the number of features; the scale of the check is one.
    check(kernel_of(d, list(kernel.program.groups), *kernel.program.steps, Scale(0.25)), X, X[:37], precision, None)


def test_beside_other_kernels(rng: np.random.Generator, precision: str) -> None:
    groups = [InputGroup((0, 1), (0.5, 0.8)), InputGroup((2,), (0.4,)), InputGroup((0, 2), (1.0, 0.3))]
    steps = (
        Leaf(0, USER, (), cauchy), Leaf(1, MATERN52), Multiply(), Scale(0.7),
        Leaf(2, USER_PAIR, (), cosine), Leaf(2, USER, (), wendland), Multiply(), Add(),
    )  # fmt: skip
    X = rng.standard_normal((60, 3))
    check(kernel_of(3, groups, *steps), X, X[:20], precision, None)


def test_bits_of_a_row_depend_on_nothing_beside_it(rng: np.random.Generator, precision: str) -> None:
    for kernel in (alone(damped), alone(cosine, pair=True)):
        require_row_bits(rng, TileEvaluator(kernel, precision), 3)


def test_division_by_zero_is_an_infinity_as_in_numpy() -> None:
    evaluator = TileEvaluator(alone(lambda s: 1.0 / s), "single")
    tile = evaluator.tile(*[evaluator.prepare([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])] * 2)
    assert np.isinf(tile.diagonal()).all()
    assert np.isfinite(tile[0, 1])


def test_what_a_function_raises_is_a_nan_and_nobody_elses(capfd: pytest.CaptureFixture[str]) -> None:
    def picky(s):  # type: ignore[no-untyped-def]
        if s > 1.0:
            raise ValueError("too far")
        return 1.0 - s

    def choosy(x, y):  # type: ignore[no-untyped-def]
        if x[0] != y[0]:
            raise ValueError
        return 1.0

    for kernel in (alone(picky, 1), alone(choosy, 1, pair=True)):
        evaluator = TileEvaluator(kernel, "double")
        tile = evaluator.tile(*[evaluator.prepare(np.array([[0.0], [7.0], [0.0]]))] * 2)
        np.testing.assert_array_equal(np.isnan(tile), [[False, True, False], [True, False, True], [False, True, False]])
        np.testing.assert_allclose(tile.diagonal(), 1.3)
    assert capfd.readouterr().err == ""


def test_arithmetic_becomes_vector_code() -> None:
    user_functions.user_stage(cauchy, np.float64, pair=False)
    key = user_functions._content(cauchy), np.dtype(float), False
    assert re.search(r"fdiv <\d+ x double>", user_functions._COMPILED[key][0].inspect_llvm())


def test_a_pairs_function_cannot_change_the_inputs() -> None:
    def greedy(x, y):  # type: ignore[no-untyped-def]
        x[0] += 1.0
        return x[0] + y[0]

    evaluator = TileEvaluator(alone(greedy, 1, pair=True), "single")
    A = evaluator.prepare([[1.0], [2.0]])
    np.testing.assert_allclose(evaluator.tile(A, A), 1.3 * (1.0 + 0.6 * np.array([[2.0, 3.0], [3.0, 4.0]])), rtol=1e-6)


def test_functions_compiled_by_their_author(rng: np.random.Generator, precision: str) -> None:
    X = rng.standard_normal((40, 3))
    found = TileEvaluator(alone(numba.njit(cauchy)), precision)
    plain = TileEvaluator(alone(cauchy), precision)
    A = plain.prepare(X)
    np.testing.assert_array_equal(found.tile(A, A), plain.tile(A, A))


def test_a_function_that_calls_another(rng: np.random.Generator) -> None:
    helper = numba.njit(lambda r: math.exp(-r))

    def through(s: float) -> float:
        return helper(math.sqrt(s))

    X = rng.standard_normal((40, 3))
    check(alone(through), X, X, "single", None)


def stretched(by: float) -> Any:
    return lambda s: math.exp(-by * s)


def test_equal_functions_are_compiled_once_and_others_apart(rng: np.random.Generator) -> None:
    def address(function: Any) -> int:
        return user_functions.user_stage(function, np.float64, pair=False)

    first = address(stretched(0.25))
    held = len(user_functions._COMPILED)
    # What a message brings is a copy; what was closed over belongs to the function.
    assert address(cloudpickle.loads(cloudpickle.dumps(stretched(0.25)))) == first
    assert address(stretched(0.25)) == first
    assert len(user_functions._COMPILED) == held
    assert address(stretched(0.5)) != first
    assert len(user_functions._COMPILED) == held + 1
    tiles = []
    for by in (0.25, 0.5):
        evaluator = TileEvaluator(alone(stretched(by)), "double")
        A = evaluator.prepare(np.eye(3))
        tiles.append(evaluator.tile(A, A)[0, 1])
    np.testing.assert_allclose(tiles, [1.3 * math.exp(-0.25 * 0.72), 1.3 * math.exp(-0.5 * 0.72)], rtol=1e-14)


def test_globals_belong_to_the_function() -> None:
    addresses = []
    for width in (1.0, 2.0, 1.0):
        space: dict[str, Any] = {"math": math, "WIDTH": width}
        exec("def shaped(s):\n    return math.exp(-s / WIDTH)", space)
        addresses.append(user_functions.user_stage(space["shaped"], np.float64, pair=False))
    assert addresses[0] == addresses[2] != addresses[1]
    # What it reads may change while the kernel stays the same.
    kernel = alone(space["shaped"])
    entries = []
    for width in (1.0, 2.0):
        space["WIDTH"] = width
        evaluator = TileEvaluator(kernel, "double")
        A = evaluator.prepare(np.eye(3))
        entries.append(evaluator.tile(A, A)[0, 1])
    np.testing.assert_allclose(entries, [1.3 * math.exp(-0.72), 1.3 * math.exp(-0.36)], rtol=1e-14)


def test_several_threads_ask_at_once(rng: np.random.Generator) -> None:
    X = rng.standard_normal((50, 3))
    kernel = alone(lambda s: 1.0 / (1.0 + s + s * s))
    expected, found = kernel(X, X), [None] * 8
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        evaluator = TileEvaluator(kernel, ("single", "double")[number % 2])
        A = evaluator.prepare(X)
        found[number] = evaluator.tile(A, A)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, tile in enumerate(found):
        np.testing.assert_allclose(tile, expected, rtol=(1e-5, 1e-12)[number % 2])


@pytest.mark.portable
def test_another_process_compiles_what_it_is_sent(rng: np.random.Generator) -> None:
    X = rng.standard_normal((20, 3))
    evaluator = TileEvaluator(alone(lambda s: math.exp(-s) / (1.0 + s)), "double")
    A = evaluator.prepare(X)
    expected = evaluator.tile(A, A)
    program = (
        "import sys, cloudpickle\n"
        "evaluator, X = cloudpickle.load(sys.stdin.buffer)\n"
        "A = evaluator.prepare(X)\n"
        "cloudpickle.dump(evaluator.tile(A, A), sys.stdout.buffer)\n"
    )
    message = cloudpickle.dumps((evaluator, X))
    done = subprocess.run([sys.executable, "-c", program], input=message, stdout=subprocess.PIPE, check=True)
    np.testing.assert_array_equal(cloudpickle.loads(done.stdout), expected)


class Shaped:
    def __call__(self, s: float) -> float:
        return 1.0 / (1.0 + s)


def opens_a_file(s: float) -> float:
    with open(str(s)) as file:
        return float(file.read())


def unknown_name(s: float) -> float:
    return s + nowhere_defined  # type: ignore[name-defined]  # noqa: F821  - the mistake that is to be told


def two_values(s: float) -> Any:
    return s, s


def complex_value(s: float) -> Any:
    return s + 1j


def no_value(s: float) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "pair", "why"),
    [
        (opens_a_file, False, "with"),
        (unknown_name, False, "nowhere_defined"),
        (two_values, False, "it returns UniTuple"),
        (complex_value, False, "it returns complex128, not a real number"),
        (no_value, False, "it returns none"),
        (cauchy, True, "argument"),
        (cosine, False, "argument"),
    ],
)
def test_what_cannot_be_compiled_is_told(function: Any, pair: bool, why: str) -> None:
    evaluator = TileEvaluator(alone(function, pair=pair), "double")
    with pytest.raises(InputError, match=f"the kernel function {function.__name__} cannot be compiled: ") as raised:
        evaluator.tile(*[evaluator.prepare(np.zeros((1, 3)))] * 2)
    text = str(raised.value)
    assert why in text
    assert "\x1b" not in text
    assert len(text) < 1000


@pytest.mark.parametrize(
    "function", [functools.partial(pow, 2.0), Shaped(), len, 3.0], ids=["partial", "instance", "builtin", "number"]
)
def test_what_is_no_plain_function_is_told(function: Any) -> None:
    with pytest.raises(InputError, match="cannot be compiled: "):
        user_functions.user_stage(function, np.float64, pair=False)
