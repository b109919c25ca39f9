"""The squared exponential as a value: what it admits, what it computes, how it travels."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential, kernel_from_json

finite = st.floats(-10.0, 10.0)


@given(
    gamma=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=4),
    variance=st.floats(1e-3, 1e3),
    data=st.data(),
)
def test_symmetric_bounded_and_maximal_on_the_diagonal(
    gamma: list[float], variance: float, data: st.DataObject
) -> None:
    rows = st.lists(st.tuples(*[finite] * len(gamma)), min_size=1, max_size=5)
    A, B = np.array(data.draw(rows)), np.array(data.draw(rows))
    kernel = SquaredExponential(gamma=tuple(gamma), variance=variance)
    values = kernel(A, B)
    assert values.min() >= 0.0
    assert values.max() <= variance
    np.testing.assert_array_equal(values, kernel(B, A).T)
    np.testing.assert_array_equal(kernel(A, A).diagonal(), kernel.diagonal(A))
    assert np.linalg.eigvalsh(kernel(A, A)).min() >= -1e-12 * variance * len(A)


def test_value_object() -> None:
    kernel = SquaredExponential(gamma=[0.5, 0], variance=2)
    twin = SquaredExponential(gamma=np.array([0.5, 0.0]), variance=2.0)
    assert kernel == twin
    assert hash(kernel) == hash(twin)
    assert kernel != SquaredExponential(gamma=(0.5, 0.1), variance=2.0)
    assert kernel.gamma == (0.5, 0.0)
    assert (kernel.n_features, kernel.variance) == (2, 2.0)
    assert isinstance(kernel.variance, float)
    with pytest.raises(FrozenInstanceError):
        kernel.variance = 3.0  # type: ignore[misc]


def test_a_number_is_the_length_scale_of_one_feature() -> None:
    assert SquaredExponential(gamma=0.5) == SquaredExponential(gamma=(0.5,), variance=1.0)


@pytest.mark.parametrize(
    ("gamma", "variance", "message"),
    [
        ((0.5, -0.1), 1.0, r"gamma\[1\] must be finite and positive; got -0.1"),
        ((math.nan,), 1.0, r"gamma\[0\] must be finite and positive; got nan"),
        ((0.1, math.inf), 1.0, r"gamma\[1\] must be finite and positive; got inf"),
        ((0.1, None), 1.0, r"gamma\[1\] must be a number; got None"),
        (("wide",), 1.0, r"gamma\[0\] must be a number; got 'wide'"),
        ((), 1.0, "gamma needs one value for each feature; got none"),
        ((0.5,), 0.0, "variance must be finite and positive; got 0.0"),
        ((0.5,), -1.0, "variance must be finite and positive; got -1.0"),
        ((0.5,), math.nan, "variance must be finite and positive; got nan"),
        ((0.5,), math.inf, "variance must be finite and positive; got inf"),
    ],
)
def test_inadmissible_parameters_are_named(gamma, variance, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SquaredExponential(gamma=gamma, variance=variance)


def test_json_without_variance_is_the_papers_kernel() -> None:
    assert kernel_from_json({"type": "rbf", "gamma": [0.25]}) == SquaredExponential(gamma=(0.25,), variance=1.0)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"type": "matern", "gamma": [1.0]}, r"unknown kernel type 'matern'; known types: \[.*'rbf'"),
        ({"type": ["rbf"], "gamma": [1.0]}, r"unknown kernel type \['rbf'\]; known types: \[.*'rbf'"),
        ({"gamma": [1.0]}, r'needs a "type".*known types: \[.*\'rbf\''),
        ([1.0], r'needs a "type"'),
        ({"type": "rbf", "variance": 1.0}, 'needs "gamma"'),
        ({"type": "rbf", "gamma": 1.0}, '"gamma" must be a list'),
        ({"type": "rbf", "gamma": "0.5"}, '"gamma" must be a list'),
        ({"type": "rbf", "gamma": []}, "got none"),
        ({"type": "rbf", "gamma": [-1.0]}, r"gamma\[0\] must be finite and positive"),
        ({"type": "rbf", "gamma": [1.0], "variance": None}, "variance must be a number; got None"),
    ],
)
def test_bad_descriptions_say_what_was_expected(document, message: str) -> None:
    with pytest.raises(InputError, match=message):
        kernel_from_json(document)
