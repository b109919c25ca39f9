from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkgp.data import ingest
from dkgp.data.sources.selection import random_mask
from dkgp.errors import InputError, OutputExistsError, UsageError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Samples that are sorted by target, numbered by their first feature."""
    values = np.stack([np.arange(500.0), np.random.default_rng(0).normal(size=500), np.arange(500.0) ** 2], axis=1)
    np.savetxt(tmp_path / "data.csv", values, delimiter=",", fmt="%.17g")
    np.save(tmp_path / "data.npy", values)
    return tmp_path / "data.csv"


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
        ({"test_fraction": 0.5}, UsageError, "needs a place"),
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
