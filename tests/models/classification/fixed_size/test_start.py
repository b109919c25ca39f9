"""Kernels that a search starts from, and their scale."""

from __future__ import annotations

import numpy as np
import pytest

from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.kernels import Linear, Matern32, SquaredExponential
from dkgp.models.classification.fixed_size.search import scaled
from dkgp.models.classification.fixed_size.train import median_kernel, start_kernel
from dkgp.models.classification.labels import LabelledData, Labels


def test_the_median_distance(rng: np.random.Generator) -> None:
    X = rng.standard_normal((60, 3)) * np.array([1.0, 30.0, 0.01])
    dataset = memory_dataset(X, X[:, 0])
    inputs = dataset.inputs(0, 60)
    squares = [np.sum((inputs[i] - inputs[j]) ** 2) for i in range(60) for j in range(i)]
    kernel = median_kernel(dataset)
    assert isinstance(kernel, SquaredExponential)
    assert kernel.isotropic
    np.testing.assert_allclose(kernel.gamma, [1.0 / np.median(squares)], rtol=1e-10)
    # Samples that are all the same have none.
    assert median_kernel(memory_dataset(np.ones((9, 2)), np.arange(9.0))).parameters()[0].value == 1.0


def test_the_labels_tell_length_scales_where_there_is_something_to_tell(rng: np.random.Generator) -> None:
    X = rng.standard_normal((1100, 4))
    codes = (np.sin(2.0 * X[:, 1]) > 0.0).astype(int)
    dataset, labels = memory_dataset(X, codes.astype(float)), Labels(("a", "b"), codes)
    kernel, how = start_kernel(LabelledData(dataset, labels), isotropic=False)
    assert how == "likelihood"
    assert isinstance(kernel, SquaredExponential)
    assert kernel.gamma[1] > 10.0 * max(kernel.gamma[0], *kernel.gamma[2:])
    assert start_kernel(LabelledData(dataset, labels), isotropic=True) == (median_kernel(dataset), "median")
    few = memory_dataset(X[:300], codes[:300].astype(float))
    assert start_kernel(LabelledData(few, labels.subset(np.arange(300))), isotropic=False)[1] == "median"


def test_a_scale_is_of_inverse_squared_lengths_alone() -> None:
    kernel = Matern32(gamma=(1.0, 0.5), variance=2.0) + SquaredExponential(gamma=(0.1,), n_features=2)
    found = scaled(kernel, 4.0)
    assert found == Matern32(gamma=(4.0, 2.0), variance=2.0) + SquaredExponential(gamma=(0.4,), n_features=2)
    assert scaled(kernel, 1.0) is kernel
    with pytest.raises(InputError, match="the kernel linear has no length scale to search for; choose `search` none"):
        scaled(Linear((1.0, 1.0)), 2.0)
