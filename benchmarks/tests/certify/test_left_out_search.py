"""The search of a kernel's common scale and s2 by left-out decisions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.labels import Labels
from dkgp.models.hyperparameters import Hyperparameters
from dkgp_benchmarks.certify.left_out_search import MOST, compass, improved_by_left_out, own_units
from tests.models.classification.references import dense_decisions


def test_the_compass_finds_a_valley() -> None:
    goal = (1.3, -4.0)
    (first, second), evaluations = compass(lambda p: 1.0 + (p[0] - goal[0]) ** 2 + 0.1 * (p[1] - goal[1]) ** 2)
    assert abs(first - goal[0]) < 0.3
    assert abs(second - goal[1]) < 0.8
    assert evaluations <= MOST
    held, _ = compass(lambda p: (p[0] - 1.0) ** 2 + (p[1] - 1.0) ** 2 + 1.0, (False, True))
    assert held[0] == 0.0 != held[1]


def test_the_compass_stays_where_it_is_best_and_leaves_what_cannot_be() -> None:
    assert compass(lambda p: 1.0 + abs(p[0]) + abs(p[1]))[0] == (0.0, 0.0)
    assert compass(lambda p: math.inf if p[0] > 0.1 else 1.0 - p[0])[0] == (0.0, 0.0)
    assert compass(lambda p: math.inf)[0] == (0.0, 0.0)


def left_out(inputs: np.ndarray, signs: np.ndarray, found: Hyperparameters) -> float:
    rest = [np.delete(np.arange(len(inputs)), i) for i in range(len(inputs))]
    decisions = [
        dense_decisions(inputs[r], signs[r], inputs[i : i + 1], found.kernel, found.noise_variance)[0]
        for i, r in enumerate(rest)
    ]
    return float(np.mean((np.array(decisions) - signs) ** 2))


def test_left_out_samples_err_less_by_what_is_found(rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 2))
    codes = (np.sin(2.0 * X[:, 0]) + 0.3 * rng.standard_normal(60) > 0.0).astype(np.int64)
    data, labels = memory_dataset(X, codes.astype(np.float64)), Labels(("a", "b"), codes)
    start = Hyperparameters(SquaredExponential((1e-3, 1e-5)), 10.0)
    found = improved_by_left_out(data, labels, start)
    inputs = data.inputs(0, 60)
    assert left_out(inputs, labels.signs(), found) < 0.7 * left_out(inputs, labels.signs(), start)
    assert found.gamma[0] / found.gamma[1] == pytest.approx(100.0)
    held = improved_by_left_out(data, labels, start, move_noise=False)
    assert held.noise_variance == 10.0
    assert improved_by_left_out(data, labels, found).noise_variance == pytest.approx(found.noise_variance, rel=10.0)


def test_own_units_are_those_of_the_raw_features(rng: np.random.Generator) -> None:
    X = rng.standard_normal((200, 2)) * [1.0, 30.0]
    data = memory_dataset(X, np.arange(200) % 2)
    kernel = own_units(data).kernel
    inputs = data.inputs(0, 5)
    square = ((X[:5, None] - X[None, :5]) ** 2).sum(axis=2)
    ratio = np.log(kernel(inputs, inputs)) / -np.where(square > 0.0, square, 1.0)
    apart = square > 0.0
    np.testing.assert_allclose(ratio[apart], ratio[apart][0])
    with pytest.raises(InputError, match="are alike; there is no scale"):
        own_units(memory_dataset(np.ones((6, 2)), np.arange(6) % 2))
