"""Stores that are read while another process writes over them: the old, or the new, or an error; never some of each."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.data import dataset_from_arrays, open_dataset, open_model, open_prediction, save_model
from dkgp.data.stores.arrays import StoredArray
from dkgp.data.stores.manifest import MANIFEST_NAME
from dkgp.errors import StoreError
from tests.cli.invoke import refused, run, run_json
from tests.cli.processes import ENVIRONMENT

FEATURES = ("a", "b", "c", "d", "e", "f")
ROWS, CHUNK = 600, 40


def write_inputs(place: Path, seed: int) -> None:
    """One of two data sets that differ in every number, in nothing that describes them."""
    rng = np.random.default_rng(seed)
    X, y = rng.random((ROWS, 6)), rng.random(ROWS)
    dataset_from_arrays(
        str(place), X, y, feature_names=FEATURES, target_names=("price",), chunk_rows=CHUNK, overwrite=True
    )


def swap_for_ever(place: str, model: str, others: tuple[str, ...], until: float) -> None:
    """Write one data set and the other, one model and the other, over what lies there."""
    rng = np.random.default_rng(5)
    records = [open_model(other) for other in others]
    sets = [open_dataset(record.training_url) for record in records]
    number = 0
    while time.time() < until:
        number += 1
        write_inputs(Path(place), number % 2)
        record = records[number % 2]
        save_model(
            model, alpha=record.alpha, dataset=sets[number % 2], kernel=record.kernel, chunk_rows=CHUNK,
            noise_variance=record.noise_variance, history=record.history, certificate=record.certificate,
            summary=record.summary, overwrite=True,
        )  # fmt: skip
        # As long as a command takes, about: some are done in between.
        time.sleep(rng.uniform(0.0, 0.3))


@pytest.fixture(scope="module")
def places(pipeline: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two models of the same size, and the four sets of predictions for the two data sets."""
    folder = tmp_path_factory.mktemp("overwritten")
    models = []
    for seed in (0, 1):
        data, model = folder / f"data-{seed}.zarr", folder / f"model-{seed}.zarr"
        write_inputs(data, seed + 7)
        run_json("train", data, "--out", model, "--hyper", pipeline["tune"]["out"], "--cluster", "none")
        models.append(model)
    whole = set()
    for model in models:
        for seed in (0, 1):
            write_inputs(folder / "test.zarr", seed)
            whole.add(predicted(model, folder / "test.zarr", folder / "whole.zarr"))
    assert len(whole) == 4
    return {"folder": folder, "models": models, "whole": whole}


def predicted(model: Path, test: Path, out: Path) -> bytes | None:
    """The bits of the predictions; None where the command said what is wrong."""
    result = run("predict", model, test, "--out", out, "--overwrite", "--cluster", "none", "--chunk-rows", CHUNK)
    if result.exit_code != 0:
        refused(result)
        return None
    prediction = open_prediction(str(out))
    return b"".join(prediction.read(name).tobytes() for name in sorted(prediction.variables))


def read_all_the_time(places: dict[str, Any], folder: Path, seconds: float) -> dict[str, int]:
    """Predict, evaluate and ask while there is time, and until a prediction came; how many reads came to what."""
    test, model, out = folder / "test.zarr", folder / "model.zarr", folder / "out.zarr"
    counts: dict[str, int] = {"predicted": 0, "evaluated": 0, "shown": 0, "told": 0}
    until = time.monotonic() + seconds
    while time.monotonic() < until or not (counts["predicted"] and counts["shown"]):
        bits = predicted(model, test, out)
        assert bits is None or bits in places["whole"], "a mixture"
        counts["told" if bits is None else "predicted"] += 1
        for name, *command in (("evaluated", "evaluate", out, test), ("shown", "info", model), ("shown", "info", test)):
            result = run(*command)
            if result.exit_code:
                refused(result)
            counts["told" if result.exit_code else name] += 1
    return counts


@contextmanager
def in_a_thread(*arguments: Any) -> Iterator[None]:
    thread = threading.Thread(target=swap_for_ever, args=arguments)
    thread.start()
    yield
    thread.join()


@contextmanager
def in_a_process(*arguments: Any) -> Iterator[None]:
    code = f"from tests.cli.test_overwritten import swap_for_ever; swap_for_ever(*{arguments!r})"
    process = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT)
    yield
    assert process.wait() == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("beside", "seconds"),
    [
        (in_a_thread, 0.5),
        pytest.param(in_a_process, 15.0, marks=[pytest.mark.faults, pytest.mark.timeout(180)]),
    ],
)
def test_what_is_read_is_the_old_or_the_new(
    beside: Callable[..., Any], seconds: float, places: dict[str, Any], tmp_path: Path
) -> None:
    place, model = str(tmp_path / "test.zarr"), str(tmp_path / "model.zarr")
    models = tuple(map(str, places["models"]))
    swap_for_ever(place, model, models, time.time() + 0.01)
    with beside(place, model, models, time.time() + seconds):
        counts = read_all_the_time(places, tmp_path, seconds)
    print(f"\n{counts}")
    # When all is quiet again all is whole.
    assert predicted(tmp_path / "model.zarr", tmp_path / "test.zarr", tmp_path / "out.zarr") in places["whole"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("number", [1, 5, ROWS // CHUNK])
def test_a_store_that_is_replaced_between_two_chunks_is_told(
    number: int, places: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, out, reads = tmp_path / "test.zarr", tmp_path / "out.zarr", []
    write_inputs(test, 0)
    read = StoredArray._get

    def swapping(self: StoredArray, selection: Any) -> Any:
        if self.url == str(test) and self.name == "X":
            reads.append(selection)
            if len(reads) == number:
                write_inputs(test, 1)
        return read(self, selection)

    monkeypatch.setattr(StoredArray, "_get", swapping)
    result = run("predict", places["models"][0], test, "--out", out, "--cluster", "none", "--chunk-rows", CHUNK)
    refused(result, f"'{test}' was overwritten or removed while it was read", "Run the command again")
    assert len(reads) >= number


def test_a_copy_of_a_store_is_the_same_store(tmp_path: Path) -> None:
    place = tmp_path / "data.zarr"
    write_inputs(place, 0)
    opened = open_dataset(str(place))
    before = opened.inputs(0, ROWS)
    manifest = place / "dkgp-manifest.json"
    content = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(StoreError, match="overwritten or removed"):
        opened.inputs(0, ROWS)
    manifest.write_bytes(content)
    np.testing.assert_array_equal(opened.inputs(0, ROWS), before)


def killed_while_written(place: Path, earlier: Path, new: Path) -> None:
    shutil.copytree(earlier, place)
    shutil.copytree(new, place.with_name(f".dkgp-new-{place.name}"))
    (place.with_name(f".dkgp-new-{place.name}") / MANIFEST_NAME).unlink()


def killed_between_the_moves(place: Path, earlier: Path, new: Path) -> None:
    shutil.copytree(earlier, place.with_name(f".dkgp-replaced-{place.name}"))
    shutil.copytree(new, place.with_name(f".dkgp-new-{place.name}"))


def killed_after_the_moves(place: Path, earlier: Path, new: Path) -> None:
    shutil.copytree(earlier, place.with_name(f".dkgp-replaced-{place.name}"))
    shutil.copytree(new, place)


def killed_in_an_earlier_version(place: Path, earlier: Path, new: Path) -> None:
    killed_after_the_moves(place, earlier, new)
    (place / MANIFEST_NAME).unlink()


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("kill", "stays"),
    [
        (killed_while_written, 0),
        (killed_between_the_moves, 0),
        (killed_after_the_moves, 1),
        (killed_in_an_earlier_version, 0),
    ],
)
def test_the_remains_of_a_killed_overwriting_are_put_back_or_removed(
    kill: Callable[[Path, Path, Path], None], stays: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    place, stores = folder / "data.zarr", [tmp_path / f"{seed}.zarr" for seed in range(2)]
    for seed, store in enumerate(stores):
        write_inputs(store, seed)
    contents = [open_dataset(str(store)).inputs(0, ROWS) for store in stores]
    kill(place, *stores)
    with monkeypatch.context() as patch:
        patch.setattr("dkgp.data.stores.writable.commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_inputs(place, 2)
    np.testing.assert_array_equal(open_dataset(str(place)).inputs(0, ROWS), contents[stays])
    write_inputs(place, 2)
    assert all((open_dataset(str(place)).inputs(0, ROWS) != content).all() for content in contents)
    assert [path.name for path in folder.iterdir()] == ["data.zarr"]


def overwrite_for_ever(place: str, first: int, begun: Event) -> None:
    begun.set()
    for number in itertools.count(first):
        write_inputs(Path(place), number % 2)


def save_over_itself_for_ever(place: str, first: int, begun: Event) -> None:
    begun.set()
    while True:
        open_model(place).save(place, overwrite=True)


def write_model(place: str, folder: Path) -> None:
    write_inputs(folder / "train.zarr", 0)
    dataset = open_dataset(str(folder / "train.zarr"))
    alpha, kernel = dataset.all_targets(), {"type": "rbf", "variance": 1.0, "gamma": [1.0] * 6}
    save_model(place, dataset=dataset, alpha=alpha, gradient=alpha, kernel=kernel, noise_variance=0.1)


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["data set", "model over itself"])
def test_a_kill_at_any_moment_leaves_a_whole_store(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    place, aside = folder / "a.zarr", folder / ".dkgp-replaced-a.zarr"
    if kind == "data set":
        writes, opens, kinds = overwrite_for_ever, open_dataset, 2
        for seed in (1, 0):
            write_inputs(place, seed)
            if seed:
                whole = {open_dataset(str(place)).inputs(0, ROWS).tobytes()}
    else:
        writes, opens, kinds = save_over_itself_for_ever, open_model, 1
        write_model(str(place), tmp_path)
        whole = set()
    whole.add(opens(str(place)).inputs(0, ROWS).tobytes())
    assert len(whole) == kinds
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.cli.test_overwritten"])
    begun = 0
    for number in range(40):
        process = context.Process(target=writes, args=(str(place), number, started := context.Event()))
        process.start()
        assert started.wait(240)
        time.sleep(rng.uniform(0.05, 0.4))
        process.kill()
        process.join()
        begun += len(list(folder.iterdir())) > 1
        there = place if (place / MANIFEST_NAME).exists() else aside
        assert opens(str(there)).inputs(0, ROWS).tobytes() in whole
        if there == aside:  # as the next writer does
            assert not place.exists()
            aside.rename(place)
    assert begun, "some kills came while a store was written"
    if kind == "data set":
        write_inputs(place, 0)
    else:
        open_model(str(place)).save(str(place), overwrite=True)
    assert opens(str(place)).inputs(0, ROWS).tobytes() in whole
    assert [path.name for path in folder.iterdir()] == ["a.zarr"]


def test_where_folders_cannot_be_moved_a_store_is_overwritten_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the file system of a container, for folders of its image."""
    place = tmp_path / "data.zarr"
    write_inputs(place, 0)
    before = open_dataset(str(place)).inputs(0, ROWS)

    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if source == place:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        rename(source, target)

    monkeypatch.setattr("dkgp.data.stores.writable.os.rename", refuse)
    write_inputs(place, 1)
    assert (open_dataset(str(place)).inputs(0, ROWS) != before).all()
    assert [path.name for path in tmp_path.iterdir()] == ["data.zarr"]


@pytest.mark.parametrize("another_reads", [False, True])
def test_rows_that_were_read_between_two_copies_are_read_again(
    another_reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store is replaced by another one, which is read, and comes back before the reader looks for its manifest.

    Another thread may read the copy, and know its manifest, before this one looks.
    """
    place = tmp_path / "data.zarr"
    write_inputs(place, 0)
    opened = open_dataset(str(place))
    expected = open_dataset(str(place)).raw_inputs(0, ROWS)
    read, reads = StoredArray._get, list[int]()

    def between_copies(array: StoredArray, selection: Any) -> Any:
        reads.append(len(reads))
        if len(reads) > 1:
            return read(array, selection)
        write_inputs(place, 1)
        block = read(array, selection)
        write_inputs(place, 0)
        if another_reads:
            np.testing.assert_array_equal(opened.raw_inputs(0, ROWS), expected)
        return block

    monkeypatch.setattr(StoredArray, "_get", between_copies)
    np.testing.assert_array_equal(opened.raw_inputs(0, ROWS), expected)
    assert len(reads) > 1
