"""`dkgp predict --stdin`: answers of every kind of model against `dkgp predict` and `export`, and what is no row."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from dkgp.cli import main
from dkgp.data import open_dataset
from tests.cli.conftest import friedman_csv
from tests.cli.invoke import files_below, refused, run, run_json
from tests.cli.processes import ENVIRONMENT, PROGRAM


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
        "line 2 has 2 fields; expected 6 fields, of which the model takes 'a', 'b', 'c', 'd', 'e', 'f'",
        "line 3 is empty",
        "line 4 has 'x' for 'c'; expected a number",
        "line 5 has '' for 'c'; expected a number",
        "line 6 has 'inf' for 'c'; expected a finite value",
        "line 7: the feature 'a' is 1e+308",
        "line 8 has 1 fields",
        "7 of 9 lines could not be predicted",
    )
    assert files_below(tmp_path) == {}


def test_a_header_that_lacks_a_column_is_refused_at_once(stores: dict[str, Any]) -> None:
    result = answered("a,b,c,d,e\n1,2,3,4,5\n", stores["model"])
    refused(result, "the header in line 1 has no column 'f'", "leave the header out")
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
        ("{model} {test}", 2, "got DATASET beside it"),
        ("{model} --out p.csv", 2, "got --out beside it"),
        ("{model} --resume", 2, "got --resume beside it"),
        ("{model} --cluster none", 2, "got --cluster beside it"),
        ("{model} --json", 2, "--json prints one document"),
        ("{model} --variance-gap 0.1", 2, "--variance-gap belongs to --variance"),
        ("{model} --variance --variance-basis 5", 3, "--variance-basis is of predictions in a store"),
        ("{model} --variance --keep-factor", 3, "--keep-factor is of predictions in a store"),
        ("{sparse} --variance --variance-rank 5", 3, "--variance-rank: of use with exact models only"),
        ("{gp} --variance", 3, "is a classifier. Leave it out"),
        ("{test}", 3, "model"),
    ],
)
def test_what_lines_have_no_use_for_is_refused(
    options: str, exit_code: int, words: str, stores: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(answered("", *options.format(**stores).split()), words, exit_code=exit_code)
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
        assert process.stdin is not None
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
        assert (process.wait(timeout=60), process.stderr.read()) == (0, "")
