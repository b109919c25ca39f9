"""Noise models as values: variances by their formula, their ends, and files that are no noise model."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from dkgp.errors import InputError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.noise.model import NoiseModel

LINEAR = NoiseModel("linear", -2.0, (0.5, -1.0), lowest=0.01, highest=1.5)
GP = NoiseModel(
    "gp",
    -1.0,
    (0.7, -0.4, 0.1),
    lowest=0.02,
    highest=3.0,
    kernel=SquaredExponential(gamma=(0.3, 0.1)),
    basis=((0.0, 0.0), (1.0, -1.0), (0.5, 2.0)),
)


def by_formula(model: NoiseModel, x: np.ndarray) -> float:
    log_variance = model.offset
    for j, weight in enumerate(model.weights):
        if model.basis is None:
            log_variance += weight * x[j]
        else:
            (p, q), z = (0.3, 0.1), model.basis[j]
            log_variance += weight * math.exp(-p * (x[0] - z[0]) ** 2 - q * (x[1] - z[1]) ** 2)
    return min(max(math.exp(log_variance), model.lowest), model.highest)


@pytest.mark.parametrize("model", [LINEAR, GP])
def test_variances_are_those_of_the_formula(model: NoiseModel, rng: np.random.Generator) -> None:
    inputs = 3.0 * rng.standard_normal((5000, 2))
    variances = model.variances(inputs)
    np.testing.assert_allclose(variances, [by_formula(model, x) for x in inputs], rtol=1e-12)
    assert model.lowest <= variances.min() < variances.max() <= model.highest
    np.testing.assert_array_equal(model.beyond_least(inputs), variances - model.lowest)
    # No bit of a row depends on which rows are asked for together.
    np.testing.assert_array_equal(model.variances(inputs[4000:4700]), variances[4000:4700])


def test_a_linear_model_does_not_run_away() -> None:
    ends = LINEAR.variances(np.array([[-1e6, 1e6], [1e6, -1e6], [1e308, -1e308]]))
    np.testing.assert_allclose(ends, [0.01, 1.5, 1.5])


@pytest.mark.parametrize("model", [LINEAR, GP])
def test_it_travels_with_hyperparameters_as_json(model: NoiseModel) -> None:
    hyperparameters = Hyperparameters(SquaredExponential(gamma=(1.0, 2.0)), 0.1, noise_model=model)
    again = Hyperparameters.from_json(json.loads(json.dumps(hyperparameters.to_json(), allow_nan=False)))
    assert again == hyperparameters
    assert "noise_model" not in Hyperparameters(hyperparameters.kernel, 0.1).to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "cubic"}, "linear, gp, student-t; got 'cubic'"),
        ({"offset": math.inf}, "must be finite"),
        ({"weights": [0.1, math.nan]}, "must be finite"),
        ({"weights": ["much"]}, "must be numbers"),
        ({"lowest": 0.0}, "must be positive"),
        ({"lowest": 2.0}, "at most its greatest; got 2 and 1.5"),
        ({"kind": "gp"}, "needs a kernel"),
        ({"offset": None}, "must be numbers"),
    ],
)
def test_what_is_no_noise_model_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        NoiseModel.from_json({**LINEAR.to_json(), **change})


def test_missing_names_and_other_features_are_told() -> None:
    with pytest.raises(InputError, match="needs offset, weights"):
        NoiseModel.from_json({"kind": "linear", "lowest": 1.0, "highest": 2.0})
    with pytest.raises(InputError, match="object; got list"):
        NoiseModel.from_json([])
    with pytest.raises(InputError, match="is of 2 features; got inputs of shape"):
        LINEAR.variances(np.zeros((3, 5)))
    with pytest.raises(InputError, match="is of 2 features, the kernel of 3"):
        Hyperparameters(SquaredExponential(gamma=(1.0,) * 3), 0.1, noise_model=LINEAR)
    with pytest.raises(InputError, match="as many points of its features as its 3 weights"):
        NoiseModel.from_json({**GP.to_json(), "basis": [[0.0, 0.0]]})
