"""New samples for a model: one of them, of one class or with a constant target, where a training set is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dkgp.data import Dataset, TableOptions, ingest, open_dataset, save_model
from dkgp.data.stores.dataset import TrainingColumns
from dkgp.errors import InputError
from tests.cli.invoke import run_json

# One sample, a constant target (and class), and samples of the same inputs.
NEW = {"one": "b,a,y,k\n2,1,7,u\n", "constant": "a,b,y,k\n1,2,7,v\n3,4,7,v\n", "same": "a,b,y,k\n1,2,7,u\n1,2,8,v\n"}


@pytest.fixture
def training(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A table with a constant feature, and its dataset stores of numbers and of labels."""
    a, b = rng.normal(3.0, 2.0, (2, 30))
    frame = pd.DataFrame({"a": a, "c": 1.0, "b": b, "y": a * b, "k": np.where(a > 3.0, "u", "v")})
    frame.to_csv(tmp_path / "train.csv", index=False)
    ingest(tmp_path / "train.csv", tmp_path / "y.zarr", target="y", table=TableOptions(drop=("k", "c")))
    ingest(tmp_path / "train.csv", tmp_path / "k.zarr", labels="k", table=TableOptions(drop=("y",)))
    return tmp_path


def model_of(train: Dataset, url: Path) -> Path:
    """A model store of a training set."""
    facts: Any = {"kernel": {"type": "rbf", "length_scales": [1.0] * train.n_features}, "noise_variance": 0.1}
    save_model(url, alpha=np.zeros((train.n_samples, 1)), dataset=train, **facts)
    return url


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("of_model", [False, True])
def test_new_samples_take_the_standardisation_of_the_training_set(training: Path, name: str, of_model: bool) -> None:
    train = open_dataset(training / "y.zarr")
    like = model_of(train, training / "m.zarr") if of_model else training / "y.zarr"
    (training / "new.csv").write_text(NEW[name])
    report = ingest(training / "new.csv", training / "n.zarr", target="y", like=like)
    new, frame = report.train, pd.read_csv(training / "new.csv")
    assert report.warnings == ()
    seen = new.as_seen_by(train.feature_names, train.target_names, train.standardisation)
    for dataset in (new, seen):
        np.testing.assert_array_equal(dataset.all_targets(standardised=False)[:, 0], frame["y"])
    of_training = pd.read_csv(training / "train.csv")[["a", "b"]]
    expected = ((frame[["a", "b"]] - of_training.mean()) / of_training.std(ddof=0)).to_numpy()
    np.testing.assert_allclose(seen.inputs(0, len(frame)), expected, rtol=1e-12)
    np.testing.assert_array_equal(new.inputs(0, len(frame)), seen.inputs(0, len(frame)))


@pytest.mark.parametrize("name", ["one", "constant"])
def test_new_labels_of_one_class_take_the_classes_of_the_training_set(training: Path, name: str) -> None:
    (training / "new.csv").write_text(NEW[name].replace("b", "b,c", 1).replace("2,", "2,1,").replace("4,", "4,1,"))
    new = ingest(training / "new.csv", training / "n.zarr", labels="k", like=training / "k.zarr").train
    assert new.classes == ("u", "v")
    assert [new.classes[code] for code in new.all_labels()] == pd.read_csv(training / "new.csv")["k"].tolist()
    (training / "new.csv").write_text((training / "new.csv").read_text().replace("u", "w").replace("v", "w"))
    with pytest.raises(InputError, match="The column 'k' holds the class 'w', which the training set has not"):
        ingest(training / "new.csv", training / "o.zarr", labels="k", like=training / "k.zarr")
    assert not (training / "o.zarr").exists()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("one", {"target": "y"}, "holds 1 sample; at least 2 are needed. Samples to evaluate a model on are read with"),
        ("constant", {"target": "y"}, "target 'y' is constant: all 2 samples hold 7.* with `like`"),
        ("same", {"target": "y"}, "All 2 features are constant over the 2 samples.* with `like`"),
        ("constant", {"labels": "k"}, "one class only: all 2 samples are 'v'.* with `like`"),
    ],
)
def test_without_a_training_set_the_refusal_names_the_way(
    training: Path, name: str, options: dict[str, Any], words: str
) -> None:
    (training / "new.csv").write_text(NEW[name])
    drop = ("k",) if "target" in options else ("y",)
    with pytest.raises(InputError, match=words):
        ingest(training / "new.csv", training / "n.zarr", table=TableOptions(drop=drop), **options)


def test_a_training_set_of_other_columns_is_named(training: Path) -> None:
    (training / "new.csv").write_text("a,b,y,z\n1,2,7,3\n")
    with pytest.raises(InputError, match="holds 1 sample.*has the features 'a', 'b' and the targets 'y'"):
        ingest(training / "new.csv", training / "n.zarr", target="z", like=training / "y.zarr")


def test_columns_are_mapped_by_name(training: Path) -> None:
    columns = TrainingColumns.read(training / "k.zarr")
    assert columns.standardisation.kept == (True, False, True)
    mapped = columns.standardisation_of(("b", "c", "a"), ("k",))
    assert mapped is not None
    assert mapped.kept == (True, False, True)
    np.testing.assert_array_equal(mapped.input_mean, columns.standardisation.input_mean[::-1])
    assert columns.standardisation_of(("b", "c"), ("k",)) is None


@pytest.mark.long
@pytest.mark.parametrize(("name", "role"), [("one", "y"), ("constant", "y"), ("one", "k"), ("constant", "k")])
def test_new_samples_are_predicted_and_evaluated(training: Path, name: str, role: str) -> None:
    line = NEW[name].replace("b", "b,c", 1).replace("2,", "2,1,").replace("4,", "4,1,")
    (training / "new.csv").write_text(line)
    store, model, target = training / f"{role}.zarr", training / "m.zarr", "--target" if role == "y" else "--labels"
    if role == "y":
        run_json("train", store, "--tune", "--out", model, "--cluster", "none")
    else:
        run_json("classify", store, "--out", model, "--cluster", "none", "--folds", "3")
    run_json("ingest", training / "new.csv", training / "n.zarr", target, role, "--like", model)
    variance = ["--variance"] if role == "y" else []
    run_json("predict", model, training / "n.zarr", "--out", training / "p.zarr", "--cluster", "none", *variance)
    document = run_json("evaluate", training / "p.zarr", training / "n.zarr")
    assert document["n"] == line.count("\n") - 1
    if role == "y":
        assert document["r_squared"] is None
        assert np.isfinite([document["rmse"], document["rmse_raw"], document["nlpd"]]).all()
    else:
        assert document["error_rate"] in (0.0, 0.5, 1.0)
