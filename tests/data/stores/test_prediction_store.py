from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dkgp.data import CheckpointStore, PredictionWriter, open_prediction
from dkgp.data.stores.prediction_store import CLASS_VARIABLES
from dkgp.errors import CheckpointError, InputError, NumericalError, StoreError
from tests.data.stores.kinds import CLASSES, class_values, target_values

Place = Callable[[str], str]
VARIABLES = ("mean", "mean_error_bound", "variance")


@pytest.mark.parametrize("p", [1, 3])
def test_round_trip_in_any_order(place: Place, p: int) -> None:
    targets = [f"t{index}" for index in range(p)]
    writer = PredictionWriter.create(place("p.zarr"), 95, targets, VARIABLES, 10, {"model": "abc"})
    values = target_values(95, p)
    for start, stop in [(90, 95), (20, 60), (0, 20), (60, 90)]:
        copy = pickle.loads(pickle.dumps(writer))
        copy.write(start, **{name: block[start:stop] for name, block in values.items()})
    prediction = writer.commit()
    for name, block in values.items():
        np.testing.assert_array_equal(prediction.read(name), block)
        np.testing.assert_array_equal(prediction.read(name, 33, 71), block[33:71])
    again = open_prediction(place("p.zarr"))
    assert (again.n_samples, again.n_targets, again.target_names) == (95, p, tuple(targets))
    assert again.attributes == {"model": "abc"}
    assert again.row_chunks()[-1] == (90, 95)
    assert xr.open_zarr(place("p.zarr"))["mean"].dims == (("sample",) if p == 1 else ("sample", "target"))


def test_resume_knows_what_is_done(place: Place) -> None:
    values = target_values(50, 1)
    writer = PredictionWriter.create(place("p.zarr"), 50, ["y"], VARIABLES, 10, {"model": "abc"})
    writer.write(10, **{name: block[10:30] for name, block in values.items()})
    writer.write(40, mean=values["mean"][40:])
    with pytest.raises(StoreError, match="interrupted"):
        open_prediction(place("p.zarr"))
    resumed = PredictionWriter.open_to_resume(place("p.zarr"))
    assert resumed.attributes == {"model": "abc"}
    assert resumed.done_regions() == [(10, 30)]
    assert resumed.done_regions(["mean"]) == [(10, 30), (40, 50)]
    assert resumed.pending_regions() == [(0, 10), (30, 50)]
    with pytest.raises(StoreError, match="lacks 30 of 50 rows, the first of them rows 0 to 9"):
        resumed.commit()
    for start, stop in resumed.pending_regions():
        resumed.write(start, **{name: block[start:stop] for name, block in values.items()})
    assert resumed.pending_regions() == []
    prediction = resumed.commit()
    np.testing.assert_array_equal(prediction.read("variance"), values["variance"])


def test_a_finished_store_is_left_alone(place: Place) -> None:
    writer = PredictionWriter.create(place("p.zarr"), 5, ["y"], ["mean"], 10)
    writer.write(0, mean=np.arange(5.0))
    writer.commit()
    again = PredictionWriter.open_to_resume(place("p.zarr"))
    assert again.pending_regions() == []
    with pytest.raises(StoreError, match="is finished"):
        again.write(0, mean=np.zeros(5))
    np.testing.assert_array_equal(again.commit().read("mean")[:, 0], np.arange(5.0))


@given(st.integers(1, 60), st.integers(1, 25), st.sets(st.integers(0, 60)))
@settings(deadline=None, max_examples=25)
def test_done_and_pending_regions_share_out_the_rows(n: int, chunk_rows: int, chosen: set[int]) -> None:
    writer = PredictionWriter.create("memory://regions.zarr", n, ["y"], ["mean"], chunk_rows, overwrite=True)
    n_chunks = -(-n // chunk_rows)
    expected = np.zeros(n, dtype=bool)
    for index in sorted({chunk % n_chunks for chunk in chosen}):
        start, stop = index * chunk_rows, min((index + 1) * chunk_rows, n)
        writer.write(start, mean=np.zeros(stop - start))
        expected[start:stop] = True
    for regions, value in ((writer.done_regions(), True), (writer.pending_regions(), False)):
        covered = np.zeros(n, dtype=bool)
        for start, stop in regions:
            assert start % chunk_rows == 0
            assert not covered[start:stop].any()
            covered[start:stop] = True
        np.testing.assert_array_equal(covered, expected == value)


def test_a_region_whose_chunk_is_gone_is_not_done(tmp_path: Path) -> None:
    writer = PredictionWriter.create(tmp_path / "p.zarr", 30, ["y"], ["mean"], 10)
    writer.write(0, mean=np.zeros(30))
    (tmp_path / "p.zarr" / "mean" / "c" / "1").unlink()
    assert writer.pending_regions() == [(10, 20)]


def test_processes_write_side_by_side(tmp_path: Path, importable: dict[str, str]) -> None:
    PredictionWriter.create(tmp_path / "p.zarr", 400, ["y"], ["mean"], 10)
    code = (
        "import sys, numpy as np\nfrom dkgp.data import PredictionWriter\n"
        "writer = PredictionWriter.open_to_resume(sys.argv[1])\n"
        "for start in range(int(sys.argv[2]), 400, 20): writer.write(start, mean=np.arange(start, start + 10.0))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "p.zarr"), "0"], env=importable)
    writer = PredictionWriter.open_to_resume(tmp_path / "p.zarr")
    for start in range(10, 400, 20):
        writer.write(start, mean=np.arange(start, start + 10.0))
    assert process.wait(timeout=240) == 0
    prediction = PredictionWriter.open_to_resume(tmp_path / "p.zarr").commit()
    np.testing.assert_array_equal(prediction.read("mean")[:, 0], np.arange(400.0))


@pytest.mark.parametrize(
    ("start", "arrays", "error", "message"),
    [
        (5, {"mean": np.zeros(10)}, InputError, "not made of whole chunks"),
        (0, {"mean": np.zeros(7)}, InputError, "not made of whole chunks"),
        (40, {"mean": np.zeros(10)}, InputError, "not made of whole chunks"),
        (-10, {"mean": np.zeros(10)}, InputError, "not made of whole chunks"),
        (0, {"mean": np.zeros((10, 2))}, InputError, "expected"),
        (0, {"median": np.zeros(10)}, InputError, "no variable 'median'"),
        (0, {"mean": np.zeros(10), "variance": np.zeros(20)}, InputError, "differ in length"),
        (0, {"mean": np.full(10, np.nan)}, NumericalError, "NaN in row 0"),
    ],
)
def test_regions_that_do_not_fit(
    tmp_path: Path, start: int, arrays: dict[str, np.ndarray], error: type[Exception], message: str
) -> None:
    writer = PredictionWriter.create(tmp_path / "p.zarr", 45, ["y"], VARIABLES, 10)
    with pytest.raises(error, match=message):
        writer.write(start, **arrays)
    assert writer.done_regions() == []


def test_stores_that_cannot_be_made_or_read(place: Place) -> None:
    with pytest.raises(InputError, match="expected some of mean"):
        PredictionWriter.create(place("p.zarr"), 10, ["y"], ["median"])
    with pytest.raises(InputError, match="at least one sample"):
        PredictionWriter.create(place("p.zarr"), 0, ["y"])
    with pytest.raises(StoreError, match="to resume"):
        PredictionWriter.open_to_resume(place("p.zarr"))
    writer = PredictionWriter.create(place("p.zarr"), 20, ["y"], ["mean"], 10)
    writer.write(0, mean=np.zeros(20))
    prediction = writer.commit()
    with pytest.raises(InputError, match="no variable 'variance'"):
        prediction.read("variance")
    with pytest.raises(InputError, match="has no variable 'class'; it has mean"):
        prediction.labels()
    file_system, path = fsspec.core.url_to_fs(place("p.zarr"))
    file_system.rm_file(f"{path}/mean/c/1")
    with pytest.raises(StoreError, match="Chunk mean/c/1"):
        prediction.read("mean")


# Predictions of classes: decisions, probabilities, classes and certificates, by regions, resumed, shown by xarr.


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_round_trip_in_any_order(place: Place, n_classes: int) -> None:
    values, classes = class_values(45, n_classes), CLASSES[:n_classes]
    writer = PredictionWriter.create(place("c.zarr"), 45, ["income"], CLASS_VARIABLES, 10, classes=classes)
    for start, stop in [(40, 45), (10, 30), (0, 10), (30, 40)]:
        copy = pickle.loads(pickle.dumps(writer))
        copy.write(start, **{name: block[start:stop] for name, block in values.items()})
    found = writer.commit()
    assert found.classes == classes
    for name, block in values.items():
        np.testing.assert_array_equal(found.read(name), block.reshape(45, -1))
    np.testing.assert_array_equal(found.labels(7, 33), values["class"][7:33])
    np.testing.assert_array_equal(found.certified(), values["certified"])
    assert (found.labels().dtype, found.certified().dtype) == (np.int64, np.bool_)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_xarray_names_the_dimension(place: Place, n_classes: int) -> None:
    values, classes = class_values(30, n_classes), CLASSES[:n_classes]
    writer = PredictionWriter.create(place("c.zarr"), 30, ["income"], CLASS_VARIABLES, 10, classes=classes)
    writer.write(0, **values)
    writer.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = xr.open_zarr(place("c.zarr"))
    assert shown["certified"].dims == ("sample",)
    assert shown["class"].dtype.kind == "i"
    assert shown["class_name"].values.tolist() == list(classes) == shown["class"].attrs["classes"]
    np.testing.assert_array_equal(shown["probability"].sel(class_name=classes[1]).values, values["probability"][:, 1])
    named = shown["class_name"].isel(class_name=shown["class"].compute())
    assert named.values.tolist() == [classes[code] for code in values["class"]]


def test_who_resumes_knows_the_classes_and_a_lost_name_is_told(place: Place) -> None:
    writer = PredictionWriter.create(place("c.zarr"), 50, ["y"], CLASS_VARIABLES, 10, classes=CLASSES)
    writer.write(10, **{name: block[10:] for name, block in class_values(50, 3).items()})
    resumed = PredictionWriter.open_to_resume(place("c.zarr"))
    assert (resumed.classes, resumed.pending_regions()) == (CLASSES, [(0, 10)])
    resumed.write(0, **{name: block[:10] for name, block in class_values(50, 3).items()})
    resumed.commit()
    file_system, path = fsspec.core.url_to_fs(place("c.zarr"))
    file_system.rm_file(f"{path}/class_name/c/0")
    with pytest.raises(StoreError, match="class_name/c/0.*missing"):
        open_prediction(place("c.zarr"))


@pytest.mark.parametrize(
    ("variables", "targets", "classes", "message"),
    [
        (["class"], ["y"], None, "0 classes; expected one target and the names"),
        (["mean", "decision"], ["y", "z"], CLASSES, "of 2 targets"),
        (["class"], ["y"], ["only"], "one class only, 'only'"),
        (["class", "label"], ["y"], CLASSES, "expected some of mean, .*certified"),
    ],
)
def test_plans_that_are_refused(
    tmp_path: Path, variables: list[str], targets: list[str], classes: list[str] | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        PredictionWriter.create(tmp_path / "c.zarr", 30, targets, variables, classes=classes)
    assert not (tmp_path / "c.zarr").exists()


@pytest.mark.parametrize(
    ("name", "block", "error", "message"),
    [
        ("class", np.full(5, 3), InputError, "is 3; expected a class's number, 0 to 2"),
        ("class", np.full(5, -1), InputError, "is -1"),
        ("certified", np.full(5, 2), InputError, "0 to 1"),
        ("probability", np.full((5, 3), 1.5), NumericalError, r"1\.5.* in row 0; expected 0 to 1"),
        ("probability", np.full((5, 2), 0.5), InputError, r"expected \(rows, 3\)"),
        ("probability_lower", np.full((5, 3), -0.5), NumericalError, r"'probability_lower' holds .*-0\.5"),
        ("latent_variance_upper", np.full((5, 3), np.nan), NumericalError, "NaN in row 0"),
        ("decision", np.full((5, 3), np.nan), NumericalError, "NaN in row 0"),
    ],
)
def test_values_that_are_refused(
    tmp_path: Path, name: str, block: np.ndarray, error: type[Exception], message: str
) -> None:
    writer = PredictionWriter.create(tmp_path / "c.zarr", 5, ["y"], CLASS_VARIABLES, classes=CLASSES)
    with pytest.raises(error, match=message):
        writer.write(0, **{name: block})
    assert writer.done_regions([name]) == []


def test_round_trip(place: Place) -> None:
    store = CheckpointStore(place("checkpoints"))
    assert store.load_latest() is None
    arrays = {
        "alpha": np.random.default_rng(0).normal(size=(50, 2)),
        "active": np.arange(7, dtype=np.int32)[::2],
        "flags": np.array([True, False]),
        "tiles": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "empty": np.empty((0, 4)),
        "scalar": np.array(2.5),
        "big_endian": np.array([1.5, -2.0], dtype=">f8"),
    }
    store.save(3, arrays, {"seed": 5, "generator": {"state": 2**127 - 1}, "gradient": np.float64(0.1)})
    found = CheckpointStore(place("checkpoints")).load_latest()
    assert found is not None
    assert found.sequence_number == 3
    assert found.metadata == {"seed": 5, "generator": {"state": 2**127 - 1}, "gradient": 0.1}
    assert found.skipped == ()
    assert set(found.arrays) == set(arrays)
    for name, values in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], values)
        assert found.arrays[name].shape == values.shape
        assert found.arrays[name].dtype == values.dtype.newbyteorder("=")
    found.arrays["alpha"][0] = 1.0  # writable


@given(
    st.dictionaries(
        st.text(max_size=5),
        hnp.arrays(
            st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.complex128]), hnp.array_shapes(max_dims=3)
        ),
        max_size=3,
    )
)
@settings(deadline=None, max_examples=30)
def test_any_arrays_come_back_bit_for_bit(arrays: dict[str, np.ndarray]) -> None:
    store = CheckpointStore("memory://checkpoint-property")
    store.save(0, arrays, {})
    found = store.load_latest()
    assert found is not None
    assert {name: values.tobytes() for name, values in found.arrays.items()} == {
        name: values.tobytes() for name, values in arrays.items()
    }


def test_the_last_two_are_kept(place: Place) -> None:
    store = CheckpointStore(place("checkpoints"))
    for number in range(5):
        store.save(number, {"a": np.full(3, number)}, {})
        found = store.load_latest()
        assert found is not None
        assert found.sequence_number == number
    assert sorted(number for number, _ in store._names()) == [3, 4]
    store.clear()
    assert store.load_latest() is None


def test_checkpoints_of_an_abandoned_future_go(place: Place) -> None:
    store = CheckpointStore(place("checkpoints"))
    for number in (7, 8):
        store.save(number, {}, {"run": "old"})
    store.save(2, {}, {"run": "new"})
    found = store.load_latest()
    assert found is not None
    assert found.metadata == {"run": "new"}


@pytest.fixture
def two(tmp_path: Path) -> tuple[CheckpointStore, Path, Path]:
    store = CheckpointStore(tmp_path)
    older, newer = (Path(store.save(number, {"a": np.arange(100.0) + number}, {"n": number})) for number in (1, 2))
    return store, older, newer


@pytest.mark.parametrize("kept_bytes", [0, 7, 20, 100, 700, -1])
def test_a_torn_checkpoint_is_skipped(two: tuple[CheckpointStore, Path, Path], kept_bytes: int) -> None:
    store, _, newer = two
    newer.write_bytes(newer.read_bytes()[:kept_bytes])
    found = store.load_latest()
    assert found is not None
    assert found.sequence_number == 1
    assert found.arrays["a"][0] == 1.0
    assert found.skipped == (newer.name,)


@pytest.mark.parametrize("position", [0, 9, 30, 200, -1])
def test_a_flipped_bit_is_skipped(two: tuple[CheckpointStore, Path, Path], position: int) -> None:
    store, _, newer = two
    content = bytearray(newer.read_bytes())
    content[position] ^= 1
    newer.write_bytes(bytes(content))
    found = store.load_latest()
    assert found is not None
    assert found.metadata == {"n": 1}


def test_a_renamed_checkpoint_is_not_believed(two: tuple[CheckpointStore, Path, Path]) -> None:
    store, older, _ = two
    older.rename(older.with_name("checkpoint-0000000009.dkgp"))
    found = store.load_latest()
    assert found is not None
    assert found.sequence_number == 2


def test_none_whole_is_an_error_that_says_why(two: tuple[CheckpointStore, Path, Path]) -> None:
    store, older, newer = two
    older.write_bytes(b"")
    newer.write_bytes(newer.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"No checkpoint .* is whole.*checksum does not match.*truncated"):
        store.load_latest()


def test_what_a_killed_writer_left_is_swept(two: tuple[CheckpointStore, Path, Path]) -> None:
    store, older, _ = two
    (older.parent / ".dkgp-temporary-abc").write_bytes(b"half")
    (older.parent / "notes.txt").write_text("mine")
    found = store.load_latest()
    assert found is not None
    assert found.sequence_number == 2
    store.save(3, {}, {})
    assert sorted(os.listdir(older.parent)) == ["checkpoint-0000000002.dkgp", "checkpoint-0000000003.dkgp", "notes.txt"]
    (older.parent / ".dkgp-temporary-def").write_bytes(b"half")
    store.clear()
    assert os.listdir(older.parent) == ["notes.txt"]


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(InputError, match="expected numbers"):
        store.save(0, {"a": np.array([object()])}, {})
    with pytest.raises(InputError, match="negative"):
        store.save(-1, {}, {})
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        store.save(0, {}, {"a": object()})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("header", [b"[1]", b"{}", b"not json", b""])
@pytest.mark.parametrize("length", [None, 2**63])
def test_metadata_of_a_damaged_header_are_those_of_the_one_before(
    tmp_path: Path, header: bytes, length: int | None
) -> None:
    store = CheckpointStore(str(tmp_path))
    assert store.latest_metadata() is None
    store.save(1, {"a": np.arange(3.0)}, {"identity": {"n": 3}})
    start = next(tmp_path.iterdir()).read_bytes()[:-1]
    magic = start[: start.index(b"{") - 8]
    count = len(header) if length is None else length
    (tmp_path / "checkpoint-0000000002.dkgp").write_bytes(magic + count.to_bytes(8, "little") + header)
    assert store.latest_metadata() == {"identity": {"n": 3}}
