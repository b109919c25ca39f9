"""Predictions of kernel logistic regression: what is stored, in whatever regions, and what is proven of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.data import Dataset, dataset_from_arrays, open_classifier, open_prediction, save_classifier
from dkgp.kernels import SquaredExponential
from dkgp.models.classification.labels import LabelledData, decided, labels_of
from dkgp.models.classification.likelihoods import Likelihood, MultiClass
from dkgp.models.classification.logistic import RiskSettings, train_logistic
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.prediction.predict import Destination, predict
from tests.models.classification.references import dense_minimiser

KERNEL = SquaredExponential((0.4, 0.4, 0.4))
VARIABLES = (
    "decision",
    "decision_error_bound",
    "probability",
    "probability_lower",
    "probability_upper",
    "class",
    "certified",
)
TESTS = 700


@pytest.fixture
def train(rng: np.random.Generator, tmp_path: Path) -> Dataset:
    X = rng.normal(size=(160, 3)) * (1.0, 20.0, 0.1) + (0.0, 5.0, 1.0)
    codes = np.digitize(X[:, 0] + 0.3 * rng.normal(size=160), (-0.5, 0.5))
    return dataset_from_arrays(tmp_path / "train.zarr", X, codes, classes=("a", "b", "c"), chunk_rows=50)


@pytest.fixture
def unseen(rng: np.random.Generator, tmp_path: Path) -> Dataset:
    X = rng.normal(size=(TESTS, 3)) * (1.0, 20.0, 0.1) + (0.0, 5.0, 1.0)
    return dataset_from_arrays(tmp_path / "test.zarr", X, None, chunk_rows=200)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("multi_class", "by_reference"), [("softmax", True), ("ovr", False)])
def test_a_stored_models_predictions_are_those_of_the_dense_minimiser(
    train: Dataset, unseen: Dataset, tmp_path: Path, multi_class: MultiClass, by_reference: bool
) -> None:
    labels, likelihood = labels_of(train), Likelihood.of("logit", multi_class, 3)
    with closing(LocalExecutor(2)) as executor:
        # So far from the minimum that bounds matter.
        data, settings = LabelledData(train, labels), RiskSettings(likelihood, tolerance=0.05)
        record = train_logistic(data, Hyperparameters(KERNEL, 1.0), executor, settings).record(data)
        save_classifier(tmp_path / "model.zarr", record, dataset=train, by_reference=by_reference)
        model = open_classifier(tmp_path / "model.zarr")
        found: list[dict[str, np.ndarray]] = []
        for name, rows in (("one", None), ("few", 100), ("all", TESTS)):
            summary = predict(model, unseen, Destination(str(tmp_path / name), chunk_rows=rows), executor)
            stored = open_prediction(str(tmp_path / name))
            assert stored.variables == VARIABLES
            found.append({variable: stored.read(variable) for variable in VARIABLES})
    for other in found[1:]:
        for variable, values in found[0].items():
            assert values.tobytes() == other[variable].tobytes(), variable
    here = found[0]
    X, Z = train.standardisation.inputs(unseen.raw_inputs(0, TESTS)), train.inputs(0, 160)
    alpha = dense_minimiser(KERNEL(Z, Z), likelihood.targets(labels), likelihood.name, 1.0)
    exact = KERNEL(X, Z) @ alpha
    bounds, certified = here["decision_error_bound"], here["certified"][:, 0] > 0.0
    assert (np.abs(here["decision"] - exact) <= bounds + 1e-11).all()
    assert 0.001 < bounds.max() < 0.06
    assert 0.5 < certified.mean() < 1.0
    np.testing.assert_array_equal(here["class"][:, 0], decided(here["decision"]))
    np.testing.assert_array_equal(here["class"][certified, 0], decided(exact)[certified])
    shares = likelihood.probabilities(exact)
    assert ((here["probability_lower"] <= shares + 1e-12) & (shares <= here["probability_upper"] + 1e-12)).all()
    np.testing.assert_array_equal(here["probability"], likelihood.probabilities(here["decision"]))
    assert summary.classes is not None
    assert summary.classes["certified"] == certified.sum()
    assert summary.classes["largest_decision_error_bound"] == bounds.max()
    assert summary.classes["method"] == "logistic"
