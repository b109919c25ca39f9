"""`dkgp predict`: lines of standard input, earlier predictions that are overwritten, and variances."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner, Result
from scipy.stats import norm

from dkgp.cli import main
from dkgp.commands.predict import lines
from dkgp.data import PredictionWriter, open_dataset, open_prediction
from dkgp.data.remote.storage import remove_tree
from dkgp.data.stores import writable
from dkgp.data.stores.manifest import MANIFEST_NAME, checksum
from dkgp.errors import ClusterError, NumericalError
from dkgp.models import read_hyperparameters
from dkgp.models.prediction.table import RowTable
from tests.cli.conftest import friedman_csv
from tests.cli.invoke import Places, Shell, document_of, files_below, refused, run, run_json
from tests.cli.processes import ENVIRONMENT, PROGRAM, killed
from tests.cli.test_against_dense import Dense, dense


def answered(text: str | bytes, *arguments: object) -> Result:
    command = ["predict", *map(str, arguments), "--stdin", "--quiet"]
    return CliRunner().invoke(main, command, input=text)


def lines_of(rows: np.ndarray, names: Sequence[str] = ()) -> str:
    header = [",".join(names)] if names else []
    return "\n".join([*header, *(",".join(map(repr, row)) for row in rows.tolist())]) + "\n"


def raw(url: Any, rows: int = 60) -> tuple[np.ndarray, tuple[str, ...]]:
    """Raw inputs of a store, and their names."""
    dataset = open_dataset(str(url))
    standardisation = dataset.standardisation
    inputs = dataset.inputs(0, rows) * standardisation.input_std + standardisation.input_mean
    return inputs, dataset.feature_names


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "data", "options"),
    [
        ("model", "test", ()),
        ("model", "test", ("--variance", "--variance-way", "cholesky")),
        ("model", "test", ("--variance", "--latent")),
        ("sparse", "test", ()),
        ("sparse", "test", ("--variance",)),
        ("logistic", "labels", ()),
        ("gp", "labels", ()),
        ("few", "labels", ()),
    ],
)
def test_answers_are_those_that_are_exported(
    stores: dict[str, Any], tmp_path: Path, model: str, data: str, options: tuple[str, ...]
) -> None:
    out = tmp_path / "p.csv"
    run_json("predict", stores[model], stores[data], "--out", out, "--cluster", "none", *options)
    rows, names = raw(stores[data])
    result = answered(lines_of(rows, names), stores[model], *options)
    assert result.exit_code == 0, result.stderr
    told, expected = pd.read_csv(io.StringIO(result.stdout)), pd.read_csv(out)[:60]
    expected = expected.drop(columns=["row", *open_dataset(str(stores[data])).target_names])
    assert list(told) == list(expected)
    for name in told:
        if told[name].dtype.kind != "f":
            assert told[name].tolist() == expected[name].tolist()
        elif "latent" in name or name.startswith("std") or "95" in name:
            # Ends of intervals depend on what is solved for together; those of either hold the exact ones.
            np.testing.assert_allclose(told[name], expected[name], rtol=0.02)
        else:
            np.testing.assert_allclose(told[name], expected[name], rtol=0.02 if "_" in name else 1e-9, atol=1e-9)


def test_columns_go_by_a_header_or_by_their_order(stores: dict[str, Any]) -> None:
    rows, names = raw(stores["test"], 5)
    plain = answered(lines_of(rows), stores["model"])
    assert plain.stdout.count("\n") == 5, "no header was asked for"
    headed = answered(lines_of(rows, names), stores["model"]).stdout
    assert headed == "mean,mean_error_bound\n" + plain.stdout
    # In another order, beside a column that the model does not know, with tabs and carriage returns.
    other = pd.DataFrame(rows, columns=list(names))[list(reversed(names))]
    other.insert(2, "when", "today")
    assert answered(other.to_csv(sep="\t", index=False, lineterminator="\r\n"), stores["model"]).stdout == headed


def test_a_line_that_is_no_row_has_its_own_answer(stores: dict[str, Any], tmp_path: Path) -> None:
    rows, _names = raw(stores["test"], 2)
    first, second = lines_of(rows).splitlines()
    bad = ["1,2", "", "1,2,x,4,5,6", "1,2,,4,5,6", "1,2,inf,4,5,6", "1e308,2,3,4,5,6", "\xff\xfe"]
    result = answered("\n".join([first, *bad, second]), stores["model"])
    good = answered(lines_of(rows), stores["model"]).stdout.splitlines()
    assert result.stdout.splitlines() == [good[0], *["nan,nan"] * len(bad), good[1]]
    refused(
        result,
        "line 2 has 2 fields; expected 6 fields; the model uses 'a', 'b', 'c', 'd', 'e', 'f'",
        "line 3 is empty",
        "line 4 has 'x' for 'c'; expected a number",
        "line 5 has '' for 'c'; expected a number",
        "line 6 has 'inf' for 'c'; expected a finite number",
        "line 7: the feature 'a' is 1e+308",
        "line 8 has 1 fields",
        "7 of 9 lines could not be predicted",
    )
    assert files_below(tmp_path) == {}


def test_a_header_that_lacks_a_column_is_refused_at_once(stores: dict[str, Any]) -> None:
    result = answered("a,b,c,d,e\n1,2,3,4,5\n", stores["model"])
    refused(result, "the header in line 1 has no column 'f'", "leave out the header")
    assert result.stdout == ""


def test_text_and_dates_are_read_by_the_rules_of_the_training_set(tmp_path: Path, rng: np.random.Generator) -> None:
    n = 120
    kinds = rng.choice(["red", "blue"], n)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, n), unit="D")
    frame = pd.DataFrame({"kind": kinds, "day": days.strftime("%Y-%m-%d"), "x": rng.random(n), "same": 7.0})
    frame["y"] = frame["x"] + (kinds == "red") + rng.normal(0, 0.05, n)
    frame.to_csv(tmp_path / "d.csv", index=False)
    columns = ("--target", "y", "--categorical", "kind", "--date", "day")
    run_json("ingest", tmp_path / "d.csv", tmp_path / "d.zarr", *columns)
    run_json("train", tmp_path / "d.zarr", "--tune", "--out", tmp_path / "m.zarr")
    run_json("predict", tmp_path / "m.zarr", tmp_path / "d.zarr", "--out", tmp_path / "p.csv", "--cluster", "none")
    expected = pd.read_csv(tmp_path / "p.csv")["mean"][:9]
    asked = frame[["x", "day", "kind"]][:9].to_csv(index=False)
    told = answered(asked, tmp_path / "m.zarr")
    np.testing.assert_allclose(pd.read_csv(io.StringIO(told.stdout))["mean"], expected, rtol=1e-9)
    in_order = frame[["kind", "day", "x"]][:9].to_csv(index=False, header=False)
    assert answered(in_order, tmp_path / "m.zarr").stdout == told.stdout.split("\n", 1)[1]
    refused(answered("green,2024-03-01,1\nred,tomorrow,1\n", tmp_path / "m.zarr"), "'green' in line 1", "in line 2")


def test_features_that_were_constant_may_stay(tmp_path: Path) -> None:
    friedman_csv(tmp_path / "d.csv", 80, seed=3)
    frame = pd.read_csv(tmp_path / "d.csv")
    frame.insert(2, "same", 4.0)
    frame.to_csv(tmp_path / "d.csv", index=False)
    run_json("ingest", tmp_path / "d.csv", tmp_path / "d.zarr", "--target", "price")
    run_json("pursue", tmp_path / "d.zarr", "--out", tmp_path / "m.zarr", "--cardinality", 6, "--cluster", "none")
    whole = frame.drop(columns="price")[:4]
    told = answered(whole.to_csv(index=False, header=False), tmp_path / "m.zarr")
    assert told.exit_code == 0, told.stderr
    assert (
        told.stdout
        == answered(whole.drop(columns="same").to_csv(index=False, header=False), tmp_path / "m.zarr").stdout
    )
    run_json("predict", tmp_path / "m.zarr", tmp_path / "d.zarr", "--out", tmp_path / "p.csv", "--cluster", "none")
    np.testing.assert_allclose([float(v) for v in told.stdout.split()], pd.read_csv(tmp_path / "p.csv")["mean"][:4])


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        ("@model @test", 2, "got DATASET as well"),
        ("@model --out p.csv", 2, "got --out as well"),
        ("@model --resume", 2, "got --resume as well"),
        ("@model --cluster none", 2, "got --cluster as well"),
        ("@model --json", 2, "--json prints one document"),
        ("@model --variance-gap 0.1", 2, "--variance-gap belongs to --variance"),
        ("@model --variance --variance-basis 5", 3, "--variance-basis is of predictions in a store"),
        ("@model --variance --keep-factor", 3, "--keep-factor is of predictions in a store"),
        ("@sparse --variance --variance-rank 5", 3, "--variance-rank can be set only for exact models"),
        ("@sparse --variance --variance-way vif", 3, "--variance-way can be set only for exact models; got vif"),
        ("@gp --variance", 3, "is a classifier. Leave it out"),
        ("@test", 3, "model"),
    ],
)
def test_what_lines_have_no_use_for_is_refused(
    options: str, exit_code: int, words: str, stores: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(answered("", *Shell(tmp_path, stores).typed(options)), words, exit_code=exit_code)
    assert files_below(tmp_path) == {}


def test_without_it_data_and_output_are_asked_for_as_ever(stores: dict[str, Any]) -> None:
    refused(run("predict", stores["model"]), "Missing argument 'DATASET'", exit_code=2)
    refused(run("predict", stores["model"], stores["test"]), "Missing option '--out'", exit_code=2)
    refused(run("submit", "predict", stores["model"], "--stdin"), "No such option", "--stdin", exit_code=2)


def test_a_line_that_is_not_as_the_header_is_told_of(stores: dict[str, Any]) -> None:
    rows, names = raw(stores["test"], 3)
    result = answered(lines_of(rows, names) + "1,2\n", stores["model"], "--variance")
    assert result.stdout.startswith("mean,std,lower_95,upper_95,mean_error_bound\n")
    assert result.stdout.endswith("\nnan,nan,nan,nan,nan\n")
    refused(result, "dkgp predict: line 5 has 2 fields; expected 6, as in the header", "1 of 4 lines")


@pytest.mark.long
def test_each_line_is_answered_before_the_next_is_written_and_nobody_who_reads_on_is_no_error(
    stores: dict[str, Any],
) -> None:
    rows, _ = raw(stores["test"], 20)
    command = [*PROGRAM, "predict", str(stores["model"]), "--stdin", "--variance", "--quiet"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, bufsize=1, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in lines_of(rows[:3]).splitlines():
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline().split(",")
            assert len(answer) == 5
            assert np.isfinite([float(value) for value in answer]).all()
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(lines_of(rows[3:]))
            process.stdin.close()
        assert (process.wait(timeout=240), process.stderr.read()) == (0, "")


# ------------------------------------------------------------------------------------- earlier predictions, overwritten


# Regions: 200 samples in chunks of 50. Earlier predictions have no variances.
EARLIER = "predict @model @test --chunk-rows 50 --cluster none --out @pred.zarr"
LATER = f"{EARLIER} --variance"


def bits(place: Path) -> bytes:
    prediction = open_prediction(str(place))
    return b"".join(prediction.read(name).tobytes() for name in sorted(prediction.variables))


@pytest.fixture(scope="module")
def made(stores: Places, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with earlier predictions, and the bits of the later ones."""
    shell = Shell(tmp_path_factory.mktemp("made"), stores)
    shell.json(LATER.replace("@pred", "@whole"))
    shell.json(EARLIER)
    whole = bits(shell["whole.zarr"])
    shutil.rmtree(shell["whole.zarr"])
    return shell.folder, whole


@dataclass
class Again:
    """Earlier predictions in a folder, over which a command writes others."""

    shell: Shell
    whole: bytes

    def __post_init__(self) -> None:
        self.out = self.shell["pred.zarr"]
        self.earlier = bits(self.out)

    def stays(self) -> None:
        assert bits(self.out) == self.earlier

    def only_the_new(self) -> None:
        assert bits(self.out) == self.whole != self.earlier
        assert self.shell.names == {"pred.zarr"}


@pytest.fixture
def again(shell: Shell, made: tuple[Path, bytes]) -> Again:
    shutil.copytree(made[0], shell.folder, dirs_exist_ok=True)
    return Again(shell, made[1])


def stop_after(patched: pytest.MonkeyPatch, regions: int, error: BaseException) -> None:
    write, written = PredictionWriter.write, list[Any]()

    def counted(self: PredictionWriter, *args: Any, **arrays: Any) -> None:
        if len(written) == regions:
            raise error
        write(self, *args, **arrays)
        written.append(args)

    patched.setattr(PredictionWriter, "write", counted)


def test_the_earlier_are_read_while_the_new_are_made(again: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = PredictionWriter.write, []

    def watched(self: PredictionWriter, *args: Any, **arrays: Any) -> None:
        read.append(bits(again.out))
        write(self, *args, **arrays)

    monkeypatch.setattr(PredictionWriter, "write", watched)
    document = again.shell.json(f"{LATER} --overwrite")
    assert len(read) >= 2
    assert set(read) == {again.earlier}
    assert document["out"] == document["url"] == str(again.out)
    again.only_the_new()


@pytest.mark.covering
@pytest.mark.parametrize(
    ("error", "exit_code"), [(NumericalError("none"), 3), (ClusterError("lost"), 5), (ZeroDivisionError("none"), 1)]
)
@pytest.mark.parametrize("regions", [0, 2])
def test_what_stops_midway_leaves_the_earlier_and_goes_on(
    again: Again, error: Exception, exit_code: int, regions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, regions, error)
        assert again.shell.run(f"{LATER} --overwrite").exit_code == exit_code
    again.stays()
    again.shell.refuses(LATER, "already exists", "--overwrite")
    if not regions:
        assert again.shell.names == {"pred.zarr"}, "there is nothing to go on from"
        again.shell.refuses(f"{LATER} --resume", "or with other settings", "--overwrite")
        return
    # Means alone are other predictions than those that were begun.
    again.shell.refuses(f"{EARLIER} --resume", "or with other settings", "--overwrite")
    again.stays()
    assert again.shell.json(f"{LATER} --resume")["variance"]["computed"] == 200 - 50 * regions
    again.only_the_new()


def test_an_interrupted_one_starts_afresh_where_that_is_asked_for(
    again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 2, KeyboardInterrupt())
        assert again.shell.run(f"{LATER} --overwrite").exit_code == 130
    again.stays()
    assert again.shell.json(f"{LATER} --overwrite")["variance"]["computed"] == 200
    again.only_the_new()


@pytest.mark.long
@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_a_kill_while_places_are_exchanged_is_made_up_for(
    again: Again, renamed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead after so many of the two renamings: nothing is done any more from there on."""
    move, moved = writable._move, list[Path]()

    def moves(store: Path, place: Path) -> None:
        if len(moved) == renamed:
            raise SystemExit(137)
        moved.append(store)
        move(store, place)

    def removes(place: str) -> None:
        if len(moved) == 2:
            raise SystemExit(137)
        remove_tree(place)

    with monkeypatch.context() as patched:
        patched.setattr(writable, "_move", moves)
        patched.setattr(writable, "remove_tree", removes)
        assert again.shell.run(f"{LATER} --overwrite").exit_code == 137
    out, beside, aside = "pred.zarr", "pred.zarr.partial.zarr", ".dkgp-replaced-pred.zarr"
    assert again.shell.names == [{out, beside}, {aside, beside}, {aside, out}][renamed]
    again.shell.refuses(LATER, ("already exists", "were interrupted", "already exists")[renamed])
    assert again.shell.json(f"{LATER} --resume")["variance"]["computed"] == 0
    assert bits(again.out) == again.whole
    again.shell.json(f"{LATER} --overwrite")
    again.only_the_new()


def test_where_the_new_cannot_take_the_place_both_stay(again: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    move = writable._move

    def full(store: Path, place: Path) -> None:
        if store == again.shell["pred.zarr.partial.zarr"]:
            raise OSError(28, "No space left on device")
        move(store, place)

    with monkeypatch.context() as patched:
        patched.setattr(writable, "_move", full)
        again.shell.refuses(f"{LATER} --overwrite", "disk is full")
    again.stays()
    again.shell.json(f"{LATER} --resume")
    again.only_the_new()


@pytest.mark.faults
def test_killed_midway(again: Again) -> None:
    killed("dkgp.data:PredictionWriter.write", again.shell.typed(f"{LATER} --overwrite"), call=2, after=True)
    again.stays()
    assert again.shell.json(f"{LATER} --resume")["variance"]["computed"] == 100
    again.only_the_new()


# ----------------------------------------------------------------------------------------------------------- variances


# Too few landmarks and no passes: gaps stay wide.
WIDE = "--variance-rank 40 --max-passes 0"


@pytest.fixture(scope="module")
def exact(stores: Places) -> Dense:
    return dense(Shell(Path(), stores))


PREDICT = "predict @model @test --out @p"


def test_evaluate_judges_the_variances(shell: Shell, exact: Dense) -> None:
    shell.json(f"{PREDICT} --variance --variance-gap 1e-4")
    evaluated = shell.json("evaluate @p @test --plot @fit.png")
    spread = np.sqrt(exact.latent + exact.noise)
    # Compared on the standardised scale, where a change of units makes no difference.
    density = norm.logpdf(exact.truth / exact.scale, exact.mean / exact.scale, spread / exact.scale)
    assert evaluated["nlpd"] == pytest.approx(-np.mean(density), abs=1e-3)
    inside = np.mean(np.abs(exact.truth - exact.mean) <= norm.ppf(0.975) * spread)
    assert evaluated["coverage_95"] == pytest.approx(inside, abs=0.006)
    assert 0.85 < evaluated["coverage_95"] < 1.0
    assert 0.0 < evaluated["variance_gap_mean"] <= evaluated["variance_gap_max"] <= 1e-4
    assert (evaluated["variance_gap_wanted"], evaluated["variance_unmet"]) == (1e-4, 0)
    assert shell["fit.png"].read_bytes().startswith(b"\x89PNG")
    without = shell.json("evaluate @p @test --noise-free")
    assert without["coverage_95"] < evaluated["coverage_95"]
    assert without["rmse"] == evaluated["rmse"]
    table = shell.run("evaluate @p @test --noise-free").stdout
    assert "the function" in table
    assert "coverage of 95 %" in table
    # Noise cannot be taken off means alone.
    plain, free = (shell.json(f"evaluate @prediction @test {option}") for option in ("", "--noise-free"))
    assert plain == free
    assert plain["nlpd"] is None


def test_what_was_not_reached_is_said_and_not_hidden(shell: Shell, exact: Dense) -> None:
    result = shell.run(f"{PREDICT} --variance --variance-gap 1e-3 {WIDE} --json")
    predicted = document_of(result)
    unmet = predicted["variance"]["unmet"]
    assert unmet > 100
    assert predicted["variance"]["met"] + unmet == 200
    (warning,) = predicted["warnings"]
    gap = f"{predicted['variance']['gap_max']:.3g}"
    for word in (f"{unmet} of 200", "0.001", gap, "--max-passes", "--variance-rank"):
        assert word in warning
    assert f"{unmet} of 200" in result.stderr
    lower, upper = (open_prediction(shell["p"]).read(f"variance_{end}")[:, 0] for end in ("lower", "upper"))
    assert (lower <= exact.latent + exact.noise).all()
    assert (exact.latent + exact.noise <= upper).all()
    assert shell.json("evaluate @p @test")["variance_unmet"] == unmet


def test_resuming_tells_of_the_whole_store(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"predict @model @test --variance --variance-gap 1e-3 {WIDE} --chunk-rows 50 --cluster none --out"
    with monkeypatch.context() as patch:
        # What a run has computed itself it does not read back.
        patch.delattr(sys.modules["dkgp.models.prediction.predict"], "open_prediction")
        whole = shell.json(f"{line} @whole")
    assert whole["variance"]["computed"] == 200
    asked = iter([False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr("dkgp.commands.predict.run.interruptible", lambda announce: nullcontext(lambda: next(asked)))
        shell.refuses(f"{line} @p", "--resume", code=130)
    resumed, again = (shell.json(f"{line} @p --resume") for _ in range(2))
    assert 0 < resumed["variance"]["computed"] < 200
    assert again["variance"]["computed"] == 0
    assert again["variance"]["seconds_per_sample"] is None
    for later in (resumed, again):
        assert later["warnings"] == whole["warnings"] != []
        for name in ("met", "unmet", "gap_mean", "gap_max"):
            assert later["variance"][name] == whole["variance"][name]
    stored = [open_prediction(shell[name]).read("variance") for name in ("p", "whole")]
    np.testing.assert_array_equal(*stored)
    assert "200" in shell.run(f"{line} @p --resume").stdout


def test_training_with_variances_keeps_what_they_take(shell: Shell, exact: Dense) -> None:
    shell.json("train @train --hyper @hyper --out @m --with-variances")
    assert (shell["m"] / "variance_tiles" / "tiles.json").exists()
    result = shell.run("predict @m @test --out @p --variance --latent")
    assert result.exit_code == 0
    assert "loaded in" in result.stderr
    assert "a Cholesky factor of all samples" in result.stdout
    np.testing.assert_allclose(open_prediction(shell["p"]).read("variance")[:, 0], exact.latent, rtol=1e-4)


def broken_copy(source: Path, target: Path, value: float) -> None:
    """A dataset store with one bad input in its last row, whole in every other respect."""
    shutil.copytree(source, target)
    array = zarr.open_array(target / "X", mode="r+")
    array[-1, 2] = value
    manifest = json.loads((target / MANIFEST_NAME).read_text())
    manifest.pop("checksum")
    entry = manifest["arrays"]["X"]
    entry["chunk_bytes"] = [
        (target / "X" / f"c/{index}/0").stat().st_size for index in range(len(entry["chunk_bytes"]))
    ]
    manifest["checksum"] = checksum(manifest)
    (target / MANIFEST_NAME).write_text(json.dumps(manifest))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_test_store_with_what_is_no_number(shell: Shell, value: float) -> None:
    broken_copy(shell["test"], shell["bad.zarr"], value)
    for options in ("", "--variance"):
        shell.refuses(f"predict @model @bad.zarr --out @p --chunk-rows 50 {options}", "bad.zarr")
        assert shell.names == {"bad.zarr"}
    # Nor is overwriting begun with it.
    assert shell.run(PREDICT).exit_code == 0
    before = open_prediction(shell["p"]).read("mean")
    shell.refuses("predict @model @bad.zarr --out @p --variance --overwrite")
    shell.refuses(f"{PREDICT} --variance --variance-gap 0 --overwrite")
    np.testing.assert_array_equal(open_prediction(shell["p"]).read("mean"), before)


def test_a_model_whose_support_inputs_are_gone(shell: Shell) -> None:
    shutil.copytree(shell["train"], shell["train.zarr"])
    shell.json("train @train.zarr --hyper @hyper --out @m --block-size 300 --by-reference")
    shutil.move(shell["train.zarr"], shell["elsewhere.zarr"])
    shell.refuses("predict @m @test --out @p --variance", "refers to its training set", "train.zarr")
    assert shell.names == {"m", "elsewhere.zarr"}
    shutil.move(shell["elsewhere.zarr"], shell["train.zarr"])
    assert shell.run("predict @m @test --out @p --variance").exit_code == 0


def test_a_map_by_neighbours_from_the_command_line(shell: Shell) -> None:
    rng = np.random.default_rng(6)
    X = rng.uniform(0.0, 10.0, (300, 2))
    table = np.column_stack([X, np.sin(X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(300)])
    np.savetxt(shell["t.csv"], table, delimiter=",", header="a,b,price", comments="")
    cells = np.stack(np.meshgrid(np.arange(10.0), np.arange(12.0)), -1).reshape(-1, 2)
    np.savetxt(shell["map.csv"], cells, delimiter=",", header="a,b", comments="")
    shell.json("ingest @t.csv @t.zarr --target price")
    shell.json("ingest @map.csv @map.zarr")
    shell.json("tune @t.zarr --out @hyper.json --subset 100 --kernel matern32")
    shell.json("train @t.zarr --out @m --hyper @hyper.json")
    line = "predict @m @map.zarr --variance --variance-gap 0.05 --variance-way neighbours --latent --out"
    figures = shell.json(f"{line} @p")["variance"]
    assert (figures["way"], figures["met"] + figures["unmet"]) == ("neighbours", 120)
    found, train = read_hyperparameters(shell["hyper.json"]), open_dataset(shell["t.zarr"])
    seen = open_dataset(shell["map.zarr"]).as_seen_by(train.feature_names, (), train.standardisation)
    x, t = train.inputs(0, 300), seen.inputs(0, 120)
    k = found.kernel(x, t)
    inverse = np.linalg.inv(found.kernel(x, x) + found.noise_variance * np.eye(300))
    variance = found.kernel.diagonal(t) - np.einsum("ij,ij->j", k, inverse @ k)
    variance = variance * float(train.standardisation.target_std[0]) ** 2
    lower, upper = (open_prediction(shell["p"]).read(f"variance_{end}")[:, 0] for end in ("lower", "upper"))
    assert (lower <= variance * (1.0 + 1e-9)).all()
    assert (variance * (1.0 - 1e-9) <= upper).all()
    shell.refuses(f"{line} @q --variance-rank 20", "got 'neighbours'")


def test_predictions_have_the_gap_of_the_model_unless_an_option_sets_one(shell: Shell) -> None:
    shell.json("train @train --hyper @hyper --out @loose --variance-gap 0.3 --cluster none")
    line = "predict @loose @test --variance --variance-way iterative --cluster none --out"
    assert shell.json(f"{line} @of_model")["variance"]["gap"] == 0.3
    assert shell.json(f"{line} @of_option --variance-gap 0.05")["variance"]["gap"] == 0.05
    assert shell.json("predict @model @test --variance --cluster none --out @default")["variance"]["gap"] == 0.02
    # A prediction that goes on keeps the gap.
    again = shell.json(f"{line} @of_model --resume")["variance"]
    assert (again["gap"], again["computed"]) == (0.3, 0)
    # Training that is repeated with another gap is not the same run.
    shell.refuses(
        "train @train --hyper @hyper --out @loose --variance-gap 0.2 --cluster none --resume", "variance gap: 0.3"
    )


def test_lines_have_the_gap_of_the_model(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.json("train @train --hyper @hyper --out @loose --variance-gap 0.3 --cluster none")
    gaps: list[float] = []

    class Recorded(RowTable):
        def __init__(self, model: Any, variance: Any = None) -> None:
            gaps.append(variance.gap)
            super().__init__(model, variance)

    monkeypatch.setattr(lines, "RowTable", Recorded)
    shell.run("predict @loose --stdin --variance")
    assert gaps == [0.3]
