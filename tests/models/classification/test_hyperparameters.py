"""Hyperparameters of labels: the marginal likelihood of centred signs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkgp.data import Dataset
from dkgp.data.stores.memory_dataset import memory_dataset
from dkgp.errors import InputError
from dkgp.models.classification import hyperparameters
from dkgp.models.classification.hyperparameters import LabelTuning, tune_labels
from dkgp.models.classification.labels import LabelledData, Labels
from dkgp.models.tuning.subsets import draw_subset
from dkgp.models.tuning.tune import tune


def labelled(rng: np.random.Generator, n: int = 200) -> tuple[Dataset, Labels]:
    X = rng.standard_normal((n, 3))
    codes = (np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(n) > 0.0).astype(np.int64)
    return memory_dataset(X, codes.astype(np.float64)), Labels(("no", "yes"), codes)


def test_as_tuning_on_centred_signs(rng: np.random.Generator) -> None:
    data, labels = labelled(rng)
    found = tune_labels(LabelledData(data, labels))
    signs = labels.signs()
    expected = tune(data.inputs(0, 200), signs - signs.mean(), tolerance=1e-3, max_evaluations=200)
    assert found.kernel.to_json() == expected.kernel.to_json()
    assert found.noise_variance == expected.noise_variance
    assert found.gamma[0] > 5.0 * max(found.gamma[1:])


def test_a_subset_of_many_samples(rng: np.random.Generator) -> None:
    data, labels = labelled(rng, 400)
    found = tune_labels(LabelledData(data, labels), LabelTuning(100, 3, isotropic=True))
    assert (found.subset_size, found.n_samples) == (100, 400)
    assert len(set(found.gamma)) == 1


def test_what_is_refused(rng: np.random.Generator) -> None:
    data, _ = labelled(rng)
    with pytest.raises(InputError, match="are of one class only; expected at least two"):
        tune_labels(LabelledData(data, Labels(("no", "yes"), np.zeros(200, dtype=np.int64))))


@pytest.mark.parametrize(("rare", "expected"), [(1, 1), (5, 5), (12, 5)])
def test_a_class_that_a_random_subset_would_miss_is_in_it(
    rng: np.random.Generator, rare: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 4000
    codes = np.zeros(n, dtype=np.int64)
    codes[rng.choice(np.setdiff1d(np.arange(n), draw_subset(n, 60, 0)), rare, replace=False)] = 1
    X = rng.standard_normal((n, 2)) + 3.0 * codes[:, None]
    seen: list[np.ndarray] = []

    def noted(inputs: np.ndarray, targets: np.ndarray, **settings: Any) -> Any:
        seen.append(targets)
        return tune(inputs, targets, **settings)

    monkeypatch.setattr(hyperparameters, "tune", noted)
    data = LabelledData(memory_dataset(X, codes.astype(np.float64)), Labels(("no", "yes"), codes))
    found = tune_labels(data, LabelTuning(60))
    assert np.count_nonzero(seen[0] > 0.0) == expected
    assert found.subset_size == len(seen[0]) == 60 + expected
