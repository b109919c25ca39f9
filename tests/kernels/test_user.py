"""Kernels that users write: what is checked, compiled, differentiated, named and sent."""

from __future__ import annotations

import math

import cloudpickle
import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import (
    SquaredExponential,
    UserKernel,
    check_positive_definite,
    has_user_function,
    kernel_from_json,
    register_function,
)
from tests.kernels.table import cauchy


def gauss(s):
    return math.exp(-s)


def branching(s):
    # Wendland's function of the distance, zero from 1 on.
    r = math.sqrt(s)
    return 0.0 if r >= 1.0 else (1.0 - r) ** 4 * (4.0 * r + 1.0)


def test_function_of_the_distance_is_the_kernel_that_it_writes_out(rng: np.random.Generator) -> None:
    A, B = rng.standard_normal((20, 3)), rng.standard_normal((15, 3))
    B[3] = A[2]
    ours = UserKernel(gauss, (0.5, 0.2, 0.0), variance=1.5)
    theirs = SquaredExponential((0.5, 0.2, 0.0), variance=1.5)
    weights = rng.standard_normal((20, 15))
    np.testing.assert_allclose(ours(A, B), theirs(A, B), rtol=1e-14)
    np.testing.assert_allclose(ours.matrix(A, B), theirs.matrix(A, B), rtol=1e-13)
    # The derivative by differences: to 1e-10, and where s = 0 exactly nothing.
    np.testing.assert_allclose(ours.contract(A, B, weights), theirs.contract(A, B, weights), rtol=1e-10, atol=1e-11)
    assert ours.stationary


def test_functions_with_branches_and_square_roots(rng: np.random.Generator) -> None:
    kernel = UserKernel(branching, 0.5, n_features=2)
    A = rng.standard_normal((30, 2))
    np.testing.assert_allclose(kernel.matrix(A, A), kernel(A, A), atol=1e-12)
    assert np.all(np.isfinite(kernel.contract(A, A, np.ones((30, 30)))))
    check_positive_definite(kernel, A)


def test_users_derivative_is_used(rng: np.random.Generator) -> None:
    A = rng.standard_normal((6, 1))
    wrong = UserKernel(gauss, (0.5,), derivative=lambda s: 0.0 * s)
    np.testing.assert_array_equal(wrong.contract(A, A, np.ones((6, 6)))[0], 0.0)
    right = UserKernel(gauss, (0.5,), derivative=lambda s: -math.exp(-s))
    expected = SquaredExponential((0.5,)).contract(A, A, np.ones((6, 6)))
    np.testing.assert_allclose(right.contract(A, A, np.ones((6, 6))), expected, rtol=1e-13)


def test_function_of_two_rows(rng: np.random.Generator) -> None:
    def dot(x, z):
        total = 0.0
        for index in range(x.shape[0]):
            total += x[index] * z[index]
        return total

    kernel = UserKernel(dot, of="pair", n_features=3, variance=2.0)
    A, B = rng.standard_normal((5, 3)), rng.standard_normal((4, 3))
    np.testing.assert_allclose(kernel(A, B), 2.0 * A @ B.T, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel.matrix(A[:, ::-1], B[:, ::-1]), 2.0 * A @ B.T, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel.diagonal(A), 2.0 * (A * A).sum(axis=1), rtol=1e-13)
    assert kernel(A, B[:0]).shape == (5, 0)
    assert not kernel.stationary
    assert [parameter.name for parameter in kernel.parameters()] == ["variance"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: UserKernel(3.0, (1.0,)), "a kernel function must be callable; got 3.0"),
        (lambda: UserKernel(gauss, (1.0,), derivative=1), "its derivative must be callable; got 1"),
        (lambda: UserKernel(gauss), "gamma needs one value for each feature; got none"),
        (lambda: UserKernel(gauss, (-1.0,)), r"gamma\[0\] must be finite and positive"),
        (lambda: UserKernel(gauss, (1.0,), variance=0.0), "variance must be finite and positive"),
        (lambda: UserKernel(gauss, (1.0,), of="r2"), '"squared_distance" or "pair"; got \'r2\''),
        (lambda: UserKernel(gauss, of="pair"), "needs n_features, the number of features of a row; got none"),
        (lambda: UserKernel(gauss, (1.0,), of="pair", n_features=1), "has no gamma and no derivative"),
        (lambda: UserKernel(gauss, of="pair", n_features=2), "'gauss' failed at two rows of zeros: TypeError"),
        (lambda: UserKernel(lambda s: 1.0 / s, (1.0,)), "failed at s = 0: ZeroDivisionError.*Expected a number"),
        (lambda: UserKernel(lambda s: "one", (1.0,)), "failed at s = 0: ValueError"),
        (lambda: UserKernel(lambda s: math.inf, (1.0,)), "must be finite and not negative where x = x'; got inf"),
        (lambda: UserKernel(lambda s: -1.0, (1.0,)), "must be finite and not negative where x = x'; got -1.0"),
    ],
)
def test_what_is_no_kernel_function_is_refused(build, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


class Callable:
    def __call__(self, s):
        return 1.0 / (1.0 + s)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda s: float(str(s)) * 0.0 + sum({"a": 1.0}.get(x, s) for x in ["a"]), "."),
        (lambda s: s.nothing if s > 1.0 else 1.0, "nothing"),
        (math.cosh, "not a function"),
        (Callable(), "not a function"),
    ],
    ids=["a generator", "an attribute", "a builtin", "an object"],
)
def test_function_that_cannot_be_compiled_says_so(function, reason: str) -> None:
    kernel = UserKernel(function, (1.0,))
    assert kernel(np.zeros((1, 1)), np.zeros((1, 1)))[0, 0] == 1.0
    with pytest.raises(InputError, match=f"cannot be compiled: .*{reason}.*Write it as a plain function"):
        kernel.matrix(np.zeros((1, 1)), np.zeros((1, 1)))


def test_what_a_compiled_function_raises_is_not_a_number() -> None:
    kernel = UserKernel(lambda s: 1.0 / (1.0 - s) if s < 4.0 else math.log(4.0 - s), (1.0,))
    values = kernel.matrix([[0.0]], [[0.5], [1.0], [3.0]])
    np.testing.assert_allclose(values, [[1.0 / 0.75, math.inf, math.nan]])


def test_files_hold_names_and_never_code() -> None:
    def nameless(s):
        return 1.0 / (1.0 + s)

    kernel = UserKernel(nameless, (0.5, 0.5), variance=2.0)
    with pytest.raises(InputError, match=r"'nameless' has no name that a file could hold.*register_function\("):
        kernel.to_json()
    assert register_function("tests_named_later", nameless) is nameless
    document = kernel.to_json()
    assert document == {
        "type": "user",
        "function": "tests_named_later",
        "of": "squared_distance",
        "variance": 2.0,
        "gamma": [0.5, 0.5],
    }
    assert kernel_from_json(document).function is nameless


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"type": "user", "function": "tests_unheard_of", "gamma": [1.0]},
            r"registered as 'tests_unheard_of'; got .*'tests_cauchy'.*@dkgp.kernels.register_function\(\"tests_unhe",
        ),
        ({"type": "user", "gamma": [1.0]}, 'needs "function", the name of one; got None'),
        ({"type": "user", "function": ["x"], "gamma": [1.0]}, 'needs "function"'),
        ({"type": "user", "function": "tests_cauchy"}, 'needs "gamma"'),
        ({"type": "user", "function": "tests_min", "of": "pair"}, "needs n_features"),
        ({"type": "user", "function": "tests_cauchy", "of": 3, "gamma": [1.0]}, "squared_distance"),
    ],
)
def test_descriptions_that_do_not_do(document, message: str) -> None:
    with pytest.raises(InputError, match=message):
        kernel_from_json(document)


@pytest.mark.parametrize("name", ["two words", "", "a-b", 3, None])
def test_names_are_words(name) -> None:
    with pytest.raises(InputError, match="must be a word of letters, digits and _; got"):
        register_function(name)


def test_only_functions_are_registered() -> None:
    with pytest.raises(InputError, match="a kernel function must be callable; got 3"):
        register_function("tests_three")(3)
    with pytest.raises(InputError, match="a kernel function must be callable; got 3"):
        register_function("tests_three", 3)


def test_name_belongs_to_the_function_registered_last() -> None:
    first = register_function("tests_again")(lambda s: math.exp(-s))
    second = register_function("tests_again")(lambda s: math.exp(-2.0 * s))
    assert UserKernel.registered("tests_again", gamma=(1.0,)).function is second
    assert UserKernel(first, (1.0,)).name is None


def test_function_travels_with_its_kernel(rng: np.random.Generator) -> None:
    def local(s):
        return 1.0 / (1.0 + s) ** 2

    kernel = UserKernel(local, (0.5, 0.1))
    A = rng.standard_normal((4, 2))
    # By value, as Dask sends what is not part of a module: it arrives as another function.
    arrived = cloudpickle.loads(cloudpickle.dumps(kernel))
    assert arrived.function is not local
    np.testing.assert_array_equal(arrived.matrix(A, A), kernel.matrix(A, A))
    named = UserKernel(register_function("tests_that_travels")(local), (0.5, 0.1))
    assert cloudpickle.loads(cloudpickle.dumps(named)).to_json() == named.to_json()


# ------------------------------------------------------------------------------------------------- positive definite


def indefinite(s):
    return 1.0 - s if s < 1.0 else 0.0


def test_kernel_that_is_not_positive_definite_is_found_out(rng: np.random.Generator) -> None:
    kernel = UserKernel(indefinite, (0.5, 0.5))
    X = rng.standard_normal((1000, 2))
    with pytest.raises(InputError, match=r"its matrix on 256 samples has the eigenvalue -\d.*of the greatest"):
        check_positive_definite(kernel, X)
    with pytest.raises(InputError, match="on 50 samples"):
        check_positive_definite(kernel + 0.0001 * SquaredExponential((1.0, 1.0)), X, samples=50, seed=3)


@pytest.mark.parametrize(
    "kernel",
    [
        UserKernel(cauchy, (0.5, 0.5)),
        UserKernel(lambda s: 1.0, (0.5, 0.5)),
        SquaredExponential((1e-6, 1e-6)),
        SquaredExponential((1e6, 1e6), variance=1e-8),
    ],
    ids=["cauchy", "one", "nearly singular", "diagonal"],
)
def test_kernels_that_are_pass(kernel, rng: np.random.Generator) -> None:
    check_positive_definite(kernel, rng.standard_normal((300, 2)))
    check_positive_definite(kernel, rng.standard_normal((1, 2)))
    check_positive_definite(kernel, np.zeros((0, 2)))


def test_matrices_that_are_not_symmetric_or_not_finite_are_found_out(rng: np.random.Generator) -> None:
    X = rng.standard_normal((20, 2))
    with pytest.raises(InputError, match=r"not symmetric: k\(x, x'\) and k\(x', x\) differ by up to"):
        check_positive_definite(UserKernel(lambda x, z: x[0] + 1.0, of="pair", n_features=2), X)
    with pytest.raises(InputError, match="the kernel is nan between rows"):
        check_positive_definite(UserKernel(lambda s: 1.0 if s < 0.5 else math.nan, (1.0, 1.0)), X)
    with pytest.raises(InputError, match="samples must be at least 1; got 0"):
        check_positive_definite(UserKernel(cauchy, (1.0, 1.0)), X, samples=0)


def test_user_functions_are_found_inside_composites() -> None:
    plain = SquaredExponential((1.0, 1.0))
    user = UserKernel(cauchy, (1.0,))
    assert has_user_function(2.0 * (plain + plain * user.on((1,), 2)))
    assert not has_user_function(2.0 * (plain + plain))
