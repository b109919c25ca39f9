"""Simpler models against their references: NumPy's least squares, scikit-learn's boosting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from dkgp.data import PredictionWriter, dataset_from_arrays, save_model
from dkgp.errors import StoreError
from dkgp.models import verdict
from dkgp.models.verdict import fit_rivals

NAMES = ("u", "v")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Boosting's own threads spin while they wait: beside other busy processes ten seconds for two hundred rows."""
    with threadpool_limits(1, "openmp"):
        yield


@pytest.fixture
def world(rng: np.random.Generator, tmp_path: Path):  # type: ignore[no-untyped-def]
    """A training set of which a column is the sum of two others, a test set, a model by name, a prediction."""
    X = rng.normal(size=(700, 4)) * [1.0, 5.0, 0.1, 1.0] + [3.0, 0.0, 0.0, 1.0]
    X[:, 3] = X[:, 0] + X[:, 1]
    y = np.stack([X @ [1.0, -2.0, 4.0, 0.5], np.abs(X[:, 1])], axis=1) + 0.3 * rng.normal(size=(700, 2)) + 100.0
    train = dataset_from_arrays(tmp_path / "train", X[:500], y[:500], target_names=NAMES, chunk_rows=64)
    test = dataset_from_arrays(tmp_path / "test", X[500:], y[500:], target_names=NAMES, chunk_rows=64)
    save_model(tmp_path / "model", alpha=np.zeros((500, 2)), dataset=train, kernel={"type": "rbf"}, noise_variance=1.0)
    about = {"model": str(tmp_path / "model"), "model_fingerprint": train.fingerprint}
    writer = PredictionWriter.create(tmp_path / "p", 200, NAMES, ("mean",), attributes=about)
    writer.write(0, mean=np.zeros((200, 2)))
    return X, y, train, test, writer.commit()


def test_errors_are_those_of_the_references(world, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    X, y, _, test, prediction = world
    monkeypatch.setattr(verdict, "MOST_ROWS", 170)
    notes: list[str] = []
    fitted = fit_rivals(prediction, test, notes.append)
    design = np.c_[np.ones(700), X]
    weights = np.linalg.lstsq(design[:500], y[:500], rcond=None)[0]
    third = slice(0, 500, 3)
    for t, name in enumerate(NAMES):
        boosting = HistGradientBoostingRegressor(random_state=0).fit(X[:500][third], y[:500, t][third]).predict(X[500:])
        expected = {
            verdict.MEAN: y[:500, t].mean(),
            verdict.LINEAR: design[500:] @ weights[:, t],
            verdict.BOOSTING: boosting,
        }
        for rival, means in expected.items():
            error = np.sqrt(np.mean((y[500:, t] - means) ** 2))
            # Trees split between standardised values, which are rounded.
            assert fitted.errors[name][rival] == pytest.approx(error, rel=1e-3 if rival == verdict.BOOSTING else 1e-9)
    assert (fitted.training_rows, fitted.boosting_rows) == (500, 167)
    assert "167 training rows" in notes[0]


def test_without_scikit_learn_there_is_no_boosting(world, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    *_, test, prediction = world
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert set(fit_rivals(prediction, test, print).errors["u"]) == {verdict.MEAN, verdict.LINEAR}


def test_a_training_set_that_has_changed_is_refused(world, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    X, y, _, test, prediction = world
    dataset_from_arrays(tmp_path / "train", X[:400], y[:400], target_names=NAMES, overwrite=True)
    with pytest.raises(StoreError, match="changed since"):
        fit_rivals(prediction, test, print)
