""""""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.data import Dataset, TableOptions, ingest, open_dataset, save_model
from dkgp.data.sources.selection import random_mask
from dkgp.data.stores.dataset import ColumnNames, TrainingColumns
from dkgp.data.stores.dataset_writer import DatasetWriter
from dkgp.data.stores.manifest import read_manifest
from dkgp.errors import InputError, OutputExistsError, UsageError
from tests.cli.invoke import run_json


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Samples that are sorted by target, numbered by their first feature."""
    values = np.stack([np.arange(500.0), np.random.default_rng(0).normal(size=500), np.arange(500.0) ** 2], axis=1)
    np.savetxt(tmp_path / "data.csv", values, delimiter=",", fmt="%.17g")
    np.save(tmp_path / "data.npy", values)
    return tmp_path / "data.csv"


def test_a_common_scale_keeps_distances(source: Path, tmp_path: Path) -> None:
    each = ingest(source, tmp_path / "each", target=2).train
    command = ("ingest", source, tmp_path / "common", "--target", "2", "--scale", "common")
    split = ("--test-fraction", "0.5", "--test-out", tmp_path / "test")
    run_json(*command, *split)
    run_json(*command, "--overwrite")
    common, test = open_dataset(tmp_path / "common"), open_dataset(tmp_path / "test")
    np.testing.assert_array_equal(common.standardisation.input_std, [each.standardisation.input_std.max()] * 2)
    np.testing.assert_array_equal(common.standardisation.input_mean, each.standardisation.input_mean)
    assert len(set(test.standardisation.input_std)) == 1
    scale = float(common.standardisation.input_std[0])
    raw, rows = common.inputs(0, 9, standardised=False), common.inputs(0, 9)
    np.testing.assert_allclose(np.diff(rows, axis=0) * scale, np.diff(raw, axis=0), rtol=1e-10)
    # A checkpoint or a warm start under the other scale is of another problem.
    assert common.fingerprint != each.fingerprint


@given(st.integers(1, 3000), st.floats(0.001, 0.999), st.integers(0, 2**40))
def test_fraction_is_met(n: int, fraction: float, seed: int) -> None:
    mask = random_mask(n, fraction, seed)
    assert mask.sum() == max(1, round(n * fraction))
    np.testing.assert_array_equal(mask, random_mask(n, fraction, seed))


@pytest.mark.long
def test_split_depends_on_the_seed_alone(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number, (path, chunk_rows, read_bytes) in enumerate(
        [(source, None, 10**6), (source, 31, 99), (tmp_path / "data.npy", 64, 1)]
    ):
        monkeypatch.setattr("dkgp.data.sources.csv._READ_BYTES", read_bytes)
        report = ingest(
            path,
            tmp_path / f"train{number}",
            target=2,
            test_fraction=0.2,
            test_out=tmp_path / f"test{number}",
            seed=5,
            chunk_rows=chunk_rows,
        )
        assert report.test is not None
        found.append((report.train.fingerprint, report.test.fingerprint))
    assert len(set(found)) == 1
    test = ingest(source, tmp_path / "a", target=2, test_fraction=0.2, test_out=tmp_path / "b", seed=6).test
    assert test is not None
    assert test.fingerprint != found[0][1]


def test_parts_are_disjoint_complete_and_in_order(source: Path, tmp_path: Path) -> None:
    report = ingest(source, tmp_path / "a", target=2, test_fraction=0.25, test_out=tmp_path / "b")
    assert report.test is not None
    train = report.train.inputs(0, 375, standardised=False)[:, 0]
    test = report.test.inputs(0, 125, standardised=False)[:, 0]
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(500))
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()
    assert np.ptp(test) > 400  # not the end of a sorted file


def test_map_is_the_training_sets(source: Path, tmp_path: Path) -> None:
    report = ingest(source, tmp_path / "a", target=2, test_fraction=0.25, test_out=tmp_path / "b")
    assert report.test is not None
    assert report.test.standardisation == report.train.standardisation
    np.testing.assert_allclose(report.train.inputs(0, 375).mean(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(report.train.inputs(0, 375).std(axis=0), 1)
    assert abs(report.test.inputs(0, 125).mean()) > 1e-6
    raw = report.test.targets(0, 125, standardised=False)
    np.testing.assert_allclose(report.test.standardisation.targets_back(report.test.targets(0, 125)), raw, rtol=1e-12)


def test_a_feature_constant_only_in_training_is_dropped_in_both(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    X[:15, 1] = 4.0
    np.savez(tmp_path / "d.npz", X=X, y=X.sum(axis=1), m=np.arange(20) >= 15)
    report = ingest(tmp_path / "d.npz", tmp_path / "a", target="y", test_mask="m", test_out=tmp_path / "b")
    assert report.test is not None
    assert report.train.feature_names == report.test.feature_names == ("x0", "x2")
    assert report.test.inputs(0, 5).shape == (5, 2)
    assert "'x1' is constant" in report.warnings[0]


def test_mask_given_as_column_or_array(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,is_test,y\n1,0,2\n3,1,4\n5,0,7\n6,0,9\n")
    by_name = ingest(tmp_path / "data.csv", tmp_path / "1", target="y", test_mask="is_test", test_out=tmp_path / "2")
    assert by_name.train.feature_names == ("a",)
    assert by_name.test is not None
    np.testing.assert_array_equal(by_name.test.inputs(0, 1, standardised=False), [[3.0]])
    by_array = ingest(
        tmp_path / "data.csv",
        tmp_path / "3",
        target="y",
        features=["a"],
        test_mask=np.array([False, True, False, False]),
        test_out=tmp_path / "4",
    )
    assert by_array.train.fingerprint == by_name.train.fingerprint


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"test_fraction": 0.5, "test_mask": "x1", "test_out": "t"}, UsageError, "both"),
        ({"test_fraction": 0.5}, UsageError, "needs a store"),
        ({"test_out": "t"}, UsageError, "no split"),
        ({"test_fraction": 0.5, "test_out": "d"}, UsageError, "same place"),
        ({"test_fraction": 0.0, "test_out": "t"}, InputError, "between 0 and 1"),
        ({"test_fraction": 1.0, "test_out": "t"}, InputError, "between 0 and 1"),
        ({"test_fraction": float("nan"), "test_out": "t"}, InputError, "between 0 and 1"),
        ({"test_fraction": 0.9999, "test_out": "t"}, InputError, "leaves 0 for training"),
        ({"test_fraction": 0.5, "test_out": "t", "seed": -1}, InputError, "seed"),
        ({"test_mask": "x1", "test_out": "t"}, InputError, "expected 0 or False"),
        ({"test_mask": "m", "test_out": "t"}, InputError, "no test mask 'm'"),
        ({"test_mask": np.zeros(500, bool), "test_out": "t"}, InputError, "500 for training and 0 for testing"),
        ({"test_mask": np.ones(500, bool), "test_out": "t"}, InputError, "0 for training and 500 for testing"),
        ({"test_mask": np.zeros(7, bool), "test_out": "t"}, InputError, r"shape \(7,\)"),
    ],
)
def test_splits_that_cannot_be(
    source: Path, tmp_path: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    if "test_out" in options:
        options = {**options, "test_out": str(tmp_path / str(options["test_out"]))}
    with pytest.raises(error, match=message):
        ingest(source, tmp_path / "d", target=2, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "d").exists()
    assert not (tmp_path / "t").exists()


def test_taken_outputs_are_found_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    ingest(source, tmp_path / "taken", target=2)
    with pytest.raises(OutputExistsError):
        ingest(source, tmp_path / "new", target=2, test_fraction=0.5, test_out=tmp_path / "taken")
    assert not (tmp_path / "new").exists()


def test_failure_of_the_test_store_takes_the_training_store_along(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dkgp.data.stores import writable

    commits: list[str] = []
    commit = writable.commit

    def failing(url: str, *rest: object) -> None:
        if commits:
            raise KeyboardInterrupt
        commits.append(url)
        commit(url, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(writable, "commit", failing)
    with pytest.raises(KeyboardInterrupt):
        ingest(source, tmp_path / "a", target=2, test_fraction=0.5, test_out=tmp_path / "b")
    assert len(commits) == 1
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


# A column of known noise: ingested with its samples, checked, split, and read back.


N = 40
RNG = np.random.default_rng(9)
ROWS = np.column_stack([RNG.normal(size=(N, 2)), 50.0 + 7.0 * RNG.normal(size=N), RNG.uniform(0.0, 3.0, N)])
ROWS[5, 3] = 0.0


def written(folder: Path, rows: np.ndarray = ROWS, header: str = "a,b,y,v") -> Path:
    np.savetxt(folder / "d.csv", rows, delimiter=",", header=header, comments="", fmt="%.17g")
    return folder / "d.csv"


def noise_of(dataset: Dataset) -> np.ndarray:
    noise = dataset.all_sample_noise(standardised=False)
    assert noise is not None
    return noise


@pytest.mark.parametrize("column", ["noise_column", "noise_std_column"])
def test_noise_goes_with_its_samples(tmp_path: Path, column: str) -> None:
    places: dict[str, Any] = {"test_out": tmp_path / "b.zarr", "test_fraction": 0.3, "seed": 3, "chunk_rows": 7}
    report = ingest(written(tmp_path), tmp_path / "a.zarr", target="y", **{column: "v"}, **places)
    assert report.to_json()["noise"] == "v"
    by_input = {row[0]: row[3] if column == "noise_column" else row[3] ** 2 for row in ROWS}
    assert report.test is not None
    for store in (report.train, report.test):
        assert store.noise_name == "v"
        assert store.feature_names == ("a", "b")
        np.testing.assert_array_equal(
            noise_of(store), [by_input[a] for a in store.raw_inputs(0, store.n_samples)[:, 0]]
        )
        scaled = store.sample_noise(2, 9)
        assert scaled is not None
        np.testing.assert_allclose(scaled, noise_of(store)[2:9] / report.train.standardisation.target_std[0] ** 2)
    assert read_manifest(report.train.url, "dataset")["version"] == 4
    # Seen by a model it is on the model's scale; without its target it has none.
    seen = report.test.as_seen_by(("b", "a"), ("y",), report.train.standardisation)
    np.testing.assert_array_equal(seen.all_sample_noise(), report.test.all_sample_noise())
    assert report.test.as_seen_by(("b", "a"), ("z",), report.train.standardisation).all_sample_noise() is None


def test_without_the_column_stores_are_what_they_were(tmp_path: Path) -> None:
    data = written(tmp_path)
    plain = ingest(data, tmp_path / "a.zarr", target="y", features=["a", "b"]).train
    noisy = ingest(data, tmp_path / "b.zarr", target="y", features=["a", "b"], noise_column="v").train
    as_std = ingest(data, tmp_path / "c.zarr", target="y", features=["a", "b"], noise_std_column="v").train
    assert plain.all_sample_noise() is None
    assert read_manifest(plain.url, "dataset")["version"] == 3
    assert len({plain.fingerprint, noisy.fingerprint, as_std.fingerprint}) == 3
    assert "noise" not in ingest(data, tmp_path / "d.zarr", target="y").to_json()


def test_a_store_is_ingested_again(tmp_path: Path) -> None:
    first = ingest(written(tmp_path), tmp_path / "a.zarr", target="y", noise_column="v").train
    again = ingest(tmp_path / "a.zarr", tmp_path / "b.zarr", target="y", noise_column="v").train
    assert again.fingerprint == first.fingerprint
    without = ingest(tmp_path / "a.zarr", tmp_path / "c.zarr", target="y").train
    assert (without.noise_name, without.n_features) == (None, 2)
    assert open_dataset(again.url).noise_name == "v"


def test_gaps_and_categories_leave_noise_alone(tmp_path: Path) -> None:
    lines = ["a,kind,y,v", *(f"{i}.5,{'ab'[i % 2]},{i * i},{i / 10}" for i in range(12)), ",b,7,0.5"]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    table = TableOptions(categorical=("kind",), impute="median")
    store = ingest(tmp_path / "d.csv", tmp_path / "a.zarr", target="y", noise_column="v", table=table).train
    np.testing.assert_allclose(noise_of(store), [*(i / 10 for i in range(12)), 0.5])


@pytest.mark.parametrize(
    ("value", "column", "message"),
    [
        (-1e-3, "noise_column", r"noise 'v' is -0.001 in line 9 .*expected variances, none below zero"),
        (-1.0, "noise_std_column", r"noise 'v' is -1 in line 9 .*expected standard deviations"),
        (1e200, "noise_std_column", r"noise 'v' is 1e\+200 in line 9"),
        (np.nan, "noise_column", r"'v' holds a missing value or NaN in line 9"),
        (np.inf, "noise_std_column", r"'v' holds infinity in line 9"),
    ],
)
def test_noise_that_is_none_is_told_by_its_row(tmp_path: Path, value: float, column: str, message: str) -> None:
    rows = ROWS.copy()
    rows[7, 3] = value
    with pytest.raises(InputError, match=message.replace(" .*", ".*")):
        ingest(written(tmp_path, rows), tmp_path / "a.zarr", target="y", **{column: "v"})  # type: ignore[arg-type]
    assert not (tmp_path / "a.zarr").exists()


def test_the_writer_checks_what_it_is_handed(tmp_path: Path) -> None:
    names = ColumnNames.checked(("a",), ("y",), noise="v")
    for values, message in ((np.array([1.0, -1.0]), "noise variance in row 2 is -1"), (np.ones(3), "3 of noise")):
        with (
            DatasetWriter.of_names(str(tmp_path / "a.zarr"), names) as writer,
            pytest.raises(InputError, match=message),
        ):
            writer.append(np.ones((2, 1)), np.ones(2), values)
        assert not (tmp_path / "a.zarr").exists()
    with pytest.raises(InputError, match="feature name 'a' occurs 2 times"):
        ColumnNames.checked(("a",), ("y",), noise="a")


# New samples for a model: one of them, of one class or with a constant target, where a training set is refused.


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
        ("one", {"target": "y"}, "holds 1 sample; at least 2 are needed.* with `like`"),
        ("constant", {"target": "y"}, "target 'y' is constant: all 2 samples are 7.* with `like`"),
        ("same", {"target": "y"}, r"No feature \(2 in all\) varies over the 2 samples.* with `like`"),
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


@pytest.mark.parametrize("options", [{"target": "y"}, {"labels": "k"}])
def test_samples_that_are_split_are_no_test_samples(training: Path, options: dict[str, Any]) -> None:
    (training / "new.csv").write_text(NEW["constant"])
    table = TableOptions(drop=("k",) if "target" in options else ("y",))
    split = {"test_fraction": 0.5, "test_out": training / "t.zarr"}
    with pytest.raises(InputError, match="choose another") as caught:
        ingest(training / "new.csv", training / "n.zarr", table=table, **options, **split)
    assert "`like`" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "table"),
    [
        ("drop", TableOptions(drop=("k",))),
        ("categorical", TableOptions(categorical=("k",))),
        ("ordinal", TableOptions(ordinal={"k": ("u", "v")})),
        ("dates", TableOptions(dates=("k",))),
    ],
)
def test_options_of_features_refuse_the_labels(training: Path, option: str, table: TableOptions) -> None:
    with pytest.raises(InputError, match=f"'k' is a target, a label or an id, and `{option}` takes only features"):
        ingest(training / "train.csv", training / "n.zarr", labels="k", table=table)


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
