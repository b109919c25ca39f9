"""Bad input, mistakes of dkgp's own and bad surroundings: an exit code, words that say what to do, nothing written."""

from __future__ import annotations

import io
import json
import resource
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dkgp.cluster import ClusterOptions
from dkgp.data.remote.storage import normalise_url
from dkgp.data.sources import parquet as parquet_source
from dkgp.data.sources.base import refused_as
from dkgp.data.stores import arrays as stored_arrays
from dkgp.data.stores.manifest import described_whole
from dkgp.errors import InputError, StoreError
from tests.cli.invoke import Shell, document_of, files_below, refused, run
from tests.cli.processes import ENVIRONMENT, PROGRAM, killed
from tests.data.stores.kinds import rewrite_manifest

GOOD_ROWS = "1,2,3\n2,3,5\n4,1,9\n3,3,3\n"
TRAIN = "train @train --hyper @hyper --block-size 50 --out @m"


# ------------------------------------------------------------------------------------------------- files and stores


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("a,b,y\n1,nan,3\n2,3,5\n", "--target y", ("'b'", "NaN")),
        ("a,b,y\n1,2,3\n2,inf,5\n", "--target y", ("'b'", "infinity", "line 3")),
        ("a,b,y\n1,2,3\n2,3\n", "--target y", ("Line 3", "2 fields")),
        ("", "--target y", ("empty",)),
        ("a,b,y\n1,2,3\n2,red,5\n", "--target y", ("'b'", "'red'", "line 3")),
        ("a,b,y\n" + GOOD_ROWS, "--target price", ("'price'", "'a', 'b', 'y'")),
        ("a,b,y\n" + GOOD_ROWS, "--target y --features a,c", ("'c'", "feature")),
        ("a,b,y\n" + GOOD_ROWS, "--target y --features a,y", ("'y'", "among the features")),
        ("a,b,y\n1,2,3\n", "--target y", ("at least 2",)),
    ],
    ids=["nan", "infinity", "ragged", "empty", "text", "no target", "no feature", "target as feature", "too few"],
)
def test_ingest_refuses(tmp_path: Path, content: str, options: str, words: tuple[str, ...]) -> None:
    shell = Shell(tmp_path)
    shell["data.csv"].write_text(content)
    before = files_below(tmp_path)
    shell.refuses(f"ingest @data.csv @d {options}", *words)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_variance": -0.1}, ("noise_variance", "positive")),
        ({"noise_variance": 0.0}, ("noise_variance", "positive")),
        ({"kernel": {"type": "rbf", "gamma": [1, 1, -1, 1, 1, 1]}}, ("gamma[2]", "positive")),
        ({"kernel": {"type": "rbf", "gamma": [1, 1, 1]}}, ("3 features", "6")),
        ({"kernel": {"type": "quintic", "gamma": [1] * 6}}, ("'quintic'", "rbf")),
    ],
    ids=["negative noise", "no noise", "negative length scale", "wrong length", "unknown kernel"],
)
def test_train_refuses_hyperparameters(shell: Shell, change: dict[str, Any], words: tuple[str, ...]) -> None:
    document = {"kernel": {"type": "rbf", "gamma": [1.0] * 6}, "noise_variance": 0.1, **change}
    shell["h.json"].write_text(json.dumps(document))
    shell.refuses(TRAIN.replace("@hyper", "@h.json"), *words)
    assert shell.names == {"h.json"}


def test_block_size_above_n_is_reduced_with_a_warning(shell: Shell) -> None:
    result = shell.run(f"{TRAIN} --block-size 10000 --json")
    trained = document_of(result)
    assert trained["settings"]["block_size"] == 600
    assert any("10,000" in message for message in trained["warnings"])
    assert "10,000" in result.stderr


def test_outputs_that_exist_need_overwrite(pipeline: dict[str, Any], shell: Shell) -> None:
    predict = "predict @model @test --out @prediction"
    for line in (
        f"ingest {pipeline['folder']}/data.csv @train --target price",
        "tune @train --out @hyper",
        TRAIN.replace("@m", "@model"),
        predict,
        f"evaluate @prediction @test --plot {pipeline['folder']}/fit.png",
    ):
        shell.refuses(line, "exists", "--overwrite")
    assert shell.run(f"{predict} --overwrite").exit_code == 0
    # But never another kind of store.
    shell.refuses(f"{TRAIN.replace('@m', '@train')} --overwrite", "dataset store", "will not be overwritten")
    assert (shell["train"] / "X").is_dir()


@pytest.mark.parametrize("place", ["@file.txt/model.zarr", "/proc/nowhere/model.zarr"])
def test_places_that_cannot_be_written(shell: Shell, place: str) -> None:
    shell["file.txt"].write_text("not a folder")
    shell.refuses(TRAIN.replace("@m", place), "Cannot write")


@pytest.mark.slow
def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((4000, 6)))
    before = files_below(tmp_path)
    finished = subprocess.run(
        [*PROGRAM, "ingest", str(tmp_path / "data.npy"), str(tmp_path / "train.zarr"), "--target", "0"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert finished.returncode == 3, finished.stderr
    assert "Cannot write" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert files_below(tmp_path) == before


def test_stores_that_are_missing_damaged_or_of_another_kind(shell: Shell) -> None:
    shutil.copytree(shell["train"], shell["d"])
    chunk = next(path for path in (shell["d"] / "X" / "c").rglob("*") if path.is_file())
    content, line = chunk.read_bytes(), TRAIN.replace("@train", "@d")
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    for damaged, words in (
        (None, ("X/c/0", "missing")),
        (content[: len(content) // 2], ("X/c/0", "damaged")),
        (bytes(flipped), ("X/c/0",)),
    ):
        chunk.unlink()
        if damaged is not None:
            chunk.write_bytes(damaged)
        before = files_below(shell.folder)
        shell.refuses(line, *words)
        assert files_below(shell.folder) == before
        chunk.touch()
    shell.refuses(TRAIN.replace("@train", "@nothing"), "no dataset store")
    shell.refuses(TRAIN.replace("@train", "@model"), "model store", "expected a dataset store")
    shell.refuses("info @nothing", "no file or folder at")


def test_data_of_other_features_or_without_targets(pipeline: dict[str, Any], shell: Shell) -> None:
    shell["other.csv"].write_text("a,b,y\n" + GOOD_ROWS)
    shell.json("ingest @other.csv @other --target y")
    shell.json(f"ingest {pipeline['folder']}/data.csv @inputs")
    before = shell.names
    shell.refuses("predict @model @other --out @p", "lacks the features", "'c'")
    shell.refuses("evaluate @prediction @other", "200 samples")
    shell.refuses(TRAIN.replace("@train", "@inputs"), "no targets", "--target")
    shell.refuses("tune @inputs --out @h.json", "no targets", "--target")
    assert shell.names == before


# ------------------------------------------------------------------------------------------------------ surroundings


@pytest.mark.long
def test_unreachable_scheduler_gives_up_in_time(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # A moment, instead of the twenty that a slow network gets.
    monkeypatch.setattr(
        "dkgp.cluster.configuration.ClusterOptions", partial(ClusterOptions, connect_timeout_seconds=1.0)
    )
    result = shell.run(f"{TRAIN} --scheduler tcp://127.0.0.1:9 --json")
    refused(result, "within 1 s", "tcp://127.0.0.1:9", "dask scheduler")
    assert json.loads(result.stdout)["error"]["exit_code"] == 3
    assert shell.names == set()


LONG = "é" * 90 + "x" * 120  # 300 bytes
FULL = Path("/dev/full")
NO_FULL = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def process(command: list[str], script: str = "", **options: Any) -> tuple[int, str, str]:
    """Exit code and streams of a command in a process of its own, within a line of shell."""
    line = ["sh", "-c", script, "sh", *options.pop("first", ())] if script else []
    given: dict[str, Any] = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    result = subprocess.run([*line, *PROGRAM, *command], **given, text=True, check=False)
    assert "Traceback" not in (result.stderr or "")
    assert "bug in dkgp" not in (result.stderr or "")
    return result.returncode, result.stdout or "", result.stderr or ""


@pytest.mark.parametrize(
    "line",
    [
        "ingest {csv} {long}.zarr --target y",
        "ingest {long}.csv new.zarr --target y",
        "train @train --hyper {long} --out new.zarr",
        "train @train --hyper @hyper --out {long}",
        "train @train --hyper @hyper --out new.zarr --checkpoint {long}",
        "train @train --hyper @hyper --out new.zarr --plot {long}.png",
        "train @train --hyper @hyper --out new.zarr --log-json {long}.jsonl",
        "predict @model @train --out {long}.csv",
        "tune @train --out {long}.json",
        "evaluate {long} @train",
        "export {long} new.csv",
        "info {long}",
        "fit {csv} --target y --out {long}",
    ],
)
def test_a_name_that_is_too_long_is_refused_in_words(shell: Shell, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(shell.folder)
    shell["d.csv"].write_text("a,y\n" + "".join(f"{i},{i * i % 7}\n" for i in range(40)))
    line = line.replace("{csv}", "d.csv").replace("{long}", LONG)
    shell.refuses(line, "The name 'ééé", " bytes; file systems take 255. Choose a shorter one.")
    assert shell.names == {"d.csv"}


def test_names_are_counted_in_bytes_and_paths_too(tmp_path: Path) -> None:
    assert normalise_url(tmp_path / ("é" * 127)).endswith("é" * 127)
    with pytest.raises(InputError, match="has 256 bytes"):
        normalise_url(tmp_path / ("é" * 128))
    with pytest.raises(InputError, match=r"has 5,\d\d\d bytes; the system takes 4,095"):
        normalise_url("/" + "/".join(["y" * 100] * 50))
    with pytest.raises(InputError, match="null character"):
        normalise_url("a\0b")
    assert normalise_url("s3://bucket/" + "k" * 400).endswith("k")  # of a key the store says how long it may be


@NO_FULL
@pytest.mark.long
@pytest.mark.parametrize("line", ["--version", "train --help", "info @model", "info @model --json"])
def test_a_full_standard_output_is_told_in_words(shell: Shell, line: str) -> None:
    with FULL.open("w") as full:
        code, _, message = process(shell.typed(line), stdout=full)
    assert code == 3
    assert "cannot write to standard output: no space left on device. Redirect it to another file" in message


@NO_FULL
@pytest.mark.long
def test_progress_that_cannot_be_shown_ends_no_command(shell: Shell) -> None:
    with FULL.open("w") as full:
        code, shown, _ = process(shell.typed(TRAIN), stderr=full)
    assert code == 0
    assert "converged" in shown
    assert shell["m"].exists()


@pytest.mark.long
def test_closed_streams_end_no_command_and_no_file_takes_their_place(shell: Shell) -> None:
    line = "predict @model @test --cluster none --out"
    assert shell.run(f"{line} @expected.csv").exit_code == 0
    for closed in (">&-", "<&- >&- 2>&-"):
        code, _, told = process(shell.typed(f"{line} @p.csv"), f'exec "$@" {closed}', stdout=None)
        assert code == 0
        assert "<" in closed or "standard output is closed; results are not printed" in told
        assert shell["p.csv"].read_bytes() == shell["expected.csv"].read_bytes()
        shell["p.csv"].unlink()


@pytest.mark.long
def test_without_a_working_folder_absolute_paths_do(shell: Shell) -> None:
    script, gone = 'cd "$1" && rmdir "$1" && shift && exec "$@"', shell["gone"]
    for place, expected in (("@m", 0), ("model.zarr", 3)):
        gone.mkdir()
        code, _, message = process(shell.typed(TRAIN.replace("@m", place)), script, first=[str(gone)])
        assert code == expected
    assert "The working folder was removed, and 'model.zarr' is relative to it" in message


@pytest.mark.parametrize("threads", ["0", "-2"])
def test_threads_that_numba_cannot_be_imported_with_are_refused(threads: str) -> None:
    code, _, message = process(["info"], env={**ENVIRONMENT, "NUMBA_NUM_THREADS": threads})
    assert code == 2
    expected = "expected a number above zero. Set such a number, or unset the variable"
    assert message == f"dkgp: NUMBA_NUM_THREADS is {threads}; {expected}\n"


@pytest.mark.faults
@pytest.mark.parametrize("call", [1, 2])
def test_a_table_killed_while_its_store_was_laid_out_is_resumed(shell: Shell, call: int) -> None:
    line = "predict @model @test --cluster none --out"
    assert shell.run(f"{line} @calm.csv").exit_code == 0
    killed("dkgp.data.stores.writable:create_array", shell.typed(f"{line} @p.csv"), call=call)
    assert shell.run(f"{line} @p.csv --resume").exit_code == 0
    assert shell["p.csv"].read_bytes() == shell["calm.csv"].read_bytes()
    assert shell.names == {"calm.csv", "p.csv"}


# ---------------------------------------------------------------------------------------------- mistakes of dkgp's own


def test_traceback_only_for_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkgp.commands.info.run_info", lambda *arguments: 1 / 0)
    plain = run("info")
    assert plain.exit_code == 1
    assert "--debug" in plain.stderr
    assert "Traceback" not in plain.output
    assert "Traceback" in run("info", "--debug").stderr


MISTAKES = (AttributeError, IndexError, KeyError, NameError, TypeError, ZeroDivisionError)
INGEST, PREDICT = "ingest @whole.parquet @d --target y", "predict @model @test --out @p --cluster none"


@pytest.fixture
def whole(shell: Shell) -> None:
    """A table that is whole, as `@whole.parquet`."""
    pd.DataFrame({"a": [1.0, 2.0], "y": [0.0, 1.0]}).to_parquet(shell["whole.parquet"])


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    ("module", "place", "line", "mistakes"),
    [
        (stored_arrays, "StoredArray._handle", PREDICT, MISTAKES),
        # Where the values of a whole chunk are looked at, while a model is opened.
        (stored_arrays, "_holds_fill_value", PREDICT, (TypeError,)),
        (parquet_source, "_numeric", INGEST, MISTAKES),
    ],
)
def test_a_mistake_in_reading_is_a_bug(
    shell: Shell, module: Any, place: str, line: str, mistakes: tuple[type[Exception], ...], monkeypatch: Any
) -> None:
    """A line is one of a module's, as far as Python knows, and raises."""
    for mistake in mistakes:
        scope: dict[str, Any] = {"mistake": mistake}
        exec(compile("def function(*_, **__): raise mistake('of ours')", module.__file__, "exec"), scope)
        with monkeypatch.context() as patch:
            patch.setattr(f"{module.__name__}.{place}", scope["function"])
            result = shell.run(line)
        assert result.exit_code == 1, result.stderr
        assert f"{mistake.__name__}: " in result.stderr
        assert "This is a bug in dkgp" in result.stderr
        assert shell.names == {"whole.parquet"}


@pytest.mark.usefixtures("whole")
def test_a_signal_is_told_by_its_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_source, "_numeric", lambda *_: signal.raise_signal(signal.SIGINT))
    shell.refuses(INGEST, "dkgp ingest: interrupted by SIGINT", code=130)
    monkeypatch.setattr(parquet_source, "_numeric", lambda *_: signal.raise_signal(signal.SIGTERM))
    for more in ("", "--json"):
        # It was the tests that were to end.
        with pytest.raises(pytest.exit.Exception, match="SIGTERM"):
            shell.run(f"{INGEST} {more}")
    assert shell.names == {"whole.parquet"}


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["metadata"].pop("kernel"),
        lambda manifest: manifest["metadata"].update(history=3),
        lambda manifest: manifest["metadata"].update(chunk_rows="some"),
        lambda manifest: manifest["metadata"].update(standardisation=[]),
        lambda manifest: manifest["metadata"].update(trend="up"),
        lambda manifest: manifest["metadata"].update(certificate={"rounding": "none"}),
        lambda manifest: manifest["arrays"].pop("alpha"),
        lambda manifest: manifest["arrays"].pop("inputs"),
    ],
)
def test_what_a_manifest_gets_wrong_is_bad_input(shell: Shell, change: Callable[[Any], Any]) -> None:
    shutil.copytree(shell["model"], shell["m"])
    rewrite_manifest(shell["m"], change)
    shell.refuses(PREDICT.replace("@model", "@m"), "manifest of")


@pytest.mark.parametrize(
    "read",
    [
        lambda: zipfile.ZipFile(io.BytesIO(b"none")),
        lambda: zipfile.ZipFile(io.BytesIO(), "w").read("of no such name"),
        lambda: json.loads("{"),
        lambda: json.loads(object()),  # type: ignore[arg-type]
        lambda: np.load(io.BytesIO(b"none")),
        lambda: b"\xff".decode(),
    ],
)
def test_what_a_library_raises_of_a_file_is_bad_input(read: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=r"^the file is damaged: "), refused_as("the file is damaged"):
        read()


def test_errors_of_dkgp_stay_what_they_are() -> None:
    with pytest.raises(StoreError, match="^of a store$"), refused_as("the file is damaged"):
        raise StoreError("of a store")


def test_only_json_is_blamed_on_a_manifest() -> None:
    content: Any = {"names": "some"}
    wrong = pytest.raises(StoreError, match=r"'str' object has no attribute 'keys'.*train again")
    with wrong, described_whole("model.zarr", "train again"):
        content["names"].keys()
    record: Any = np.zeros(3)
    with pytest.raises(AttributeError, match="no attribute 'reshaped'"), described_whole("model.zarr", "train again"):
        record.reshaped(3)
