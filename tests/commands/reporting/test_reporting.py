"""Reports of commands: tables, documents, plots, record logs and other small files."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from dkgp.codec import to_json
from dkgp.commands.reporting.layout import bounds_of, grid, phases
from dkgp.commands.reporting.outputs import RecordLog, check_output_file, check_side_files, dump, plain, write_text
from dkgp.commands.reporting.plots import plot_classes
from dkgp.commands.reporting.tables import evaluated_class_tables, nothing_wrong, predicted_class_rows, tables
from dkgp.data import dataset_from_arrays, open_dataset
from dkgp.data.remote import storage
from dkgp.data.remote.storage import open_new
from dkgp.errors import InputError, OutputExistsError, StorageError
from dkgp.models.classification.metrics import ClassMetrics, OperatingCurve, operating_curve
from tests.models.classification.problems import class_metrics


def measured(rng: np.random.Generator, count: int, *, probabilities: bool) -> tuple[ClassMetrics, list[OperatingCurve]]:
    codes = rng.permutation(np.arange(20 * count) % count)
    scores = np.where(codes[:, None] == np.arange(count), 1.0, 0.0) + rng.normal(size=(len(codes), count))
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    names = [f"class {number} [of] many" for number in range(count)]
    decisions = scores if count > 2 else scores[:, 1:] - scores[:, :1]
    metrics = class_metrics(
        names,
        codes,
        scores.argmax(axis=1),
        decisions=decisions,
        probabilities=shares if probabilities else None,
        certified=rng.random(len(codes)) < 0.5,
        abstain=True,
    )
    curves = [OperatingCurve(name, *operating_curve(scores[:, c], codes == c)) for c, name in enumerate(names)]
    return metrics, curves


@pytest.mark.long
@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow), 40])
def test_a_panel_for_each_thing_that_is_known(rng: np.random.Generator, tmp_path: Path, count: int) -> None:
    metrics, curves = measured(rng, count, probabilities=True)
    without, _ = measured(rng, count, probabilities=False)
    widths = []
    for number, (figures, shown) in enumerate([(metrics, curves), (without, curves), (without, [])]):
        path = tmp_path / f"{number}.png"
        plot_classes(path, figures, shown, title="classes")
        widths.append(matplotlib.image.imread(path).shape[1])
    assert widths == [3 * widths[2], 2 * widths[2], widths[2]]


@pytest.mark.parametrize(("count", "matrix"), [(2, True), (12, True), (13, False)])
def test_table_has_a_matrix_where_it_can_be_read(rng: np.random.Generator, count: int, matrix: bool) -> None:
    metrics, _ = measured(rng, count, probabilities=True)
    console = Console(width=300, record=True)
    for table in evaluated_class_tables(to_json(metrics)):
        console.print(table)
    text = console.export_text()
    assert ("True labels (rows)" in text) == matrix
    assert ("class 0 [of] ma…" in text) == matrix
    assert f"{metrics.error_rate:.2%}" in text
    assert f"{metrics.abstained:.2%} of all" in text
    assert ("each class against the rest" in text) == (count > 2)


def test_numpy_values_become_plain() -> None:
    document = {"a": np.float64(1.5), "b": np.arange(3), "c": (np.bool_(True), None), "d": Path("x") / "y"}
    assert plain(document) == {"a": 1.5, "b": [0, 1, 2], "c": [True, None], "d": "x/y"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_json_has_no_word_for_becomes_null(value: float) -> None:
    assert json.loads(dump({"value": [value]})) == {"value": [None]}


def test_floats_survive_to_the_last_bit() -> None:
    values = np.random.default_rng(0).standard_normal(100)
    assert np.array(json.loads(dump({"v": values}))["v"]).tobytes() == values.tobytes()


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        plain({"a": object()})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    dataset_from_arrays(tmp_path / "victim.zarr", rng.random((20, 2)), rng.random(20))
    return tmp_path / "victim.zarr"


@pytest.mark.parametrize("name", ["dkgp-manifest.json", "zarr.json", "new.json", "inputs/c/0/0", "some/where/run.json"])
def test_nothing_is_written_inside_a_store(store: Path, tmp_path: Path, name: str) -> None:
    for folder in (store, tmp_path / "link"):
        if not folder.exists():
            folder.symlink_to(store)
        with pytest.raises(InputError, match=r"inside the dkgp store '.*victim\.zarr'"):
            check_output_file(folder / name, replace=True, option="`log_json`")
        with pytest.raises(InputError, match="inside the dkgp store"):
            check_side_files(None, str(folder / name), replace=True)
    (tmp_path / "beside.json").symlink_to(store / name)
    with pytest.raises(InputError, match="inside the dkgp store"):
        check_output_file(tmp_path / "beside.json", replace=True, option="`out`")
    assert open_dataset(store).n_samples == 20


def test_a_store_that_is_being_written_is_one(store: Path) -> None:
    (store / "dkgp-manifest.json").unlink()
    with pytest.raises(InputError, match="inside the dkgp store"):
        check_output_file(store / "run.json", replace=True, option="`log_json`")


@pytest.mark.parametrize(
    ("name", "option", "content"),
    [
        ("run.png", "--plot", b"an important letter"),
        ("run.pdf", "--plot", b"\x89PNG"),
        ("run.svg", "--plot", b"%PDF"),
        ("run.json", "`log_json`", b"s3cr3t-t0ken-of-somebody\n"),
        ("token", "`log_json`", b"s3cr3t-t0ken-of-somebody\n"),
        ("hyper.json", "--out", b"PK\x03\x04"),
    ],
)
def test_only_a_file_of_its_kind_is_replaced(tmp_path: Path, name: str, option: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OutputExistsError, match="is not replaced"):
        check_output_file(tmp_path / name, replace=True, option=option)
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize(
    ("name", "option", "content"),
    [
        ("run.png", "--plot", b"\x89PNG\r\n"),
        ("run.svg", "--plot", b"\n<?xml version"),
        ("run.log", "`log_json`", b'{"kind": "round"}\n'),
        ("run.log", "`log_json`", b""),
        ("pred.csv", "the table", b"row,mean\n"),
    ],
)
def test_what_dkgp_has_written_is_replaced(tmp_path: Path, name: str, option: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    check_output_file(tmp_path / name, replace=True, option=option)
    with pytest.raises(OutputExistsError, match="already exists"):
        check_output_file(tmp_path / name, replace=False, option=option)


def test_what_is_exchanged_for_a_link_after_the_check_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "of-somebody-else"
    victim.write_text('{"precious": 1}')
    for name in ("new.json", "earlier.json", "run.log"):
        place = tmp_path / name
        if name == "earlier.json":
            place.write_text("{}")
        option = "`log_json`" if name == "run.log" else "`out`"
        check_output_file(place, replace=True, option=option)
        place.unlink(missing_ok=True)
        place.symlink_to(victim)
        if option == "`log_json`":
            with RecordLog(place) as log:
                log.write({"iteration": 1})
        else:
            write_text(place, "[]")
        assert not place.is_symlink()
        assert victim.read_text() == '{"precious": 1}'
        assert "precious" not in place.read_text()


@pytest.mark.parametrize("write", [lambda place: write_text(place, "[]"), lambda place: open_new(place).close()])
def test_a_pipe_that_is_exchanged_for_a_link_is_not_written_through(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, place = tmp_path / "of-somebody-else", tmp_path / "pipe.json"
    victim.write_text("precious")
    os.mkfifo(place)
    opened = storage._open_device

    def exchanging(target: Path) -> int:
        place.unlink()
        place.symlink_to(victim)
        return opened(target)

    monkeypatch.setattr(storage, "_open_device", exchanging)
    with pytest.raises(StorageError, match="it was exchanged, and is not written to"):
        write(place)
    assert victim.read_text() == "precious"


def test_pipes_are_written_to(tmp_path: Path) -> None:
    place = tmp_path / "pipe.json"
    os.mkfifo(place)
    with ThreadPoolExecutor() as pool:
        content = pool.submit(place.read_text)
        write_text(place, "[]")
        assert content.result(10) == "[]"
        content = pool.submit(place.read_text)
        with open_new(place) as file:
            file.write("{}")
        assert content.result(10) == "{}"
    assert place.is_fifo()


PREDICTED = {
    "command": "predict",
    "out": "pred.zarr",
    "n_samples": 5000,
    "largest_mean_error_bound": 0.01,
    "seconds": 3.0,
    "variance": None,
}
VARIANCE = {
    "gap": 0.02,
    "met": 4998,
    "unmet": 2,
    "gap_mean": 0.0123,
    "gap_max": 0.0456,
    "column_passes": 1.5,
    "rank": 1200,
    "smooth": False,
    "latent": False,
    "seconds_per_sample": 0.0021,
}
EVALUATED = {
    "command": "evaluate",
    "n": 5000,
    "rmse": 0.1,
    "rmse_raw": 2.0,
    "mae_raw": 1.5,
    "r_squared": 0.987654321,
    "verdict": [],
    "mean_error_bound": 0.001,
    "nlpd": None,
    "coverage_95": None,
}
JUDGED = {
    "nlpd": -0.8123,
    "nlpd_raw": 3.4567,
    "nlpd_raw_range": [3.45671, 3.45673],
    "coverage_95_range": [0.94, 0.951],
    "coverage_95_band": [0.9438, 0.9558],
    "coverage_95": 0.9444,
    "mean_standardised_squared_error": 1.0312,
    "noise_free": False,
    "variance_gap_mean": 0.0123,
    "variance_gap_max": 0.0456,
    "variance_gap_wanted": 0.02,
    "variance_unmet": 2,
}


def shown(document: dict[str, Any], *, verbose: bool = False) -> dict[str, str]:
    """The rows of a document's tables by name."""
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    for part in tables(document, verbose=verbose):
        console.print(part)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


def test_predicted_variances() -> None:
    rows = shown({**PREDICTED, "variance": VARIANCE})
    assert rows["variances of"] == "new observations, noise included"
    assert rows["variances certified within"] == "1.23 % on average, at most 4.56 %"
    assert rows["intervals as narrow as requested"] == "4,998 of 5,000 (requested: within 2 %)"
    assert rows["variances by"] == "a factor of rank 1,200 and conjugate gradients"
    assert "column passes" not in rows
    assert shown({**PREDICTED, "variance": VARIANCE}, verbose=True)["column passes"] == "1.50 per sample"
    assert rows["milliseconds per variance"] == "2.10"


def test_a_factor_alone_and_nothing_computed() -> None:
    alone = {**VARIANCE, "column_passes": 0.0}
    assert shown({**PREDICTED, "variance": alone}, verbose=True)["variances by"] == "a factor of rank 1,200 alone"
    rows = shown({**PREDICTED, "variance": {**alone, "seconds_per_sample": None}}, verbose=True)
    assert rows["intervals as narrow as requested"] == "4,998 of 5,000 (requested: within 2 %)"
    assert "by" not in rows
    assert "milliseconds per variance" not in rows


def test_evaluated_variances() -> None:
    rows = shown({**EVALUATED, **JUDGED})
    assert rows["root mean square error"] == "2"
    assert rows["R²"] == "0.987654"
    # What moves no digit is not told.
    assert rows["negative log predictive density"] == "3.4567 nats per sample"
    moved = "0.9444, expected for a calibrated model 0.944 to 0.956 (exact variances: 0.9400 to 0.9510)"
    assert rows["coverage of 95 % intervals"] == moved
    assert rows["squared error / variance"] == "1.0312 on average, 1 for a calibrated model"
    assert rows["variances certified within"] == "1.23 % on average, at most 4.56 %"
    assert rows["wider than requested"] == "2 of 5,000 (requested: within 2 %)"
    assert shown({**EVALUATED, **JUDGED, "noise_free": True})["variances of"] == "the function"
    assert "wider than requested" not in shown({**EVALUATED, **JUDGED, "variance_unmet": 0})


def test_targets_one_by_one() -> None:
    errors = {"rmse": 0.2, "rmse_raw": 1.25, "mae_raw": 1.0, "r_squared": 0.96}
    judged = {**errors, "nlpd": -1.5, "nlpd_raw": -2.5, "coverage_95": 0.9}
    assert shown({**EVALUATED, "per_target": {"u": errors}})["u"].split() == ["1.25", "1", "0.96"]
    figures = ["1.25", "1", "0.96", "-2.5", "0.9"]
    assert shown({**EVALUATED, **JUDGED, "per_target": {"u": judged}})["u"].split() == figures


TRAINED = {
    "command": "train",
    "out": "model.zarr",
    "n": 100,
    "d": 2,
    "p": 2,
    "converged": True,
    "reason": "max|g| = 7e-05 <= 0.0001",
    "gradient_inf_norm": 7e-5,
    "tolerance": 1e-4,
    "relative_residual": 1e-5,
    "objective": -12.0,
    "iterations": 11,
    "column_passes": 3.06,
    "kernel_evaluations": 30_600,
    "certificate": {"mean_error_bound_at_unit_variance": [0.001, 0.00685]},
    "seconds": 1.0,
    "peak_memory_bytes": 2**20,
    "checkpoint": None,
}
# What takes a word with those who know solvers.
FIGURES = {"ended because", "relative residual", "objective", "rounds, column passes", "kernel entries evaluated"}


def test_a_training_in_plain_words_and_in_figures() -> None:
    plain, verbose = shown(TRAINED), shown(TRAINED, verbose=True)
    assert plain["converged"] == "yes"
    assert plain["largest residual"] == "7e-05, tolerance 0.0001"
    assert (
        plain["mean certified within"]
        == "worst case 0.00685 standard deviations of the target for a prior variance of 1"
    )
    assert set(verbose) - set(plain) == FIGURES
    assert {name: verbose[name] for name in plain} == plain
    assert verbose["kernel entries evaluated"].startswith("30,600, 3.06 times the whole matrix")
    stopped = shown({**TRAINED, "converged": False, "reason": "12 seconds spent"})
    assert stopped["converged"] == "no: 12 seconds spent"


def test_bounds_are_named_worst_case_and_root_mean_square() -> None:
    bounds = {"largest_mean_error_bound": 0.01, "mean_error_bound_rms": 0.004}
    words = "worst case 0.01, root mean square 0.004"
    assert shown({**PREDICTED, **bounds})["mean certified within"] == f"{words} (units of the targets)"
    evaluated = {**EVALUATED, "mean_error_bound": 0.01, "mean_error_bound_rms": 0.004}
    assert shown(evaluated)["mean certified within"] == f"{words} standard deviations of the target"
    sparse = shown({**evaluated, "method": "vfe", "rms_bound": 0.02})["mean certified within"]
    assert sparse.endswith("; root mean square at the training samples 0.02 standard deviations")
    little = {**EVALUATED, "method": "vfe", "mean_error_bound": 3.0, "mean_error_bound_rms": 2.0, "rms_bound": 2.0}
    assert shown(little)["mean certified within"] == "not informative"


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({**TRAINED, "certificate": {"mean_error_bound_at_unit_variance": [0.5, 2.11e7]}}, "mean certified within"),
        ({**PREDICTED, "largest_mean_error_bound": 9.0, "target_std": [2.0, 5.0]}, "mean certified within"),
        ({**EVALUATED, "mean_error_bound": 2.11e7}, "mean certified within"),
        ({**EVALUATED, "mean_error_bound": None, **JUDGED, "variance_gap_mean": 1.0}, "variances certified within"),
        ({**PREDICTED, "variance": {**VARIANCE, "gap_mean": 0.999, "gap_max": 1.0}}, "variances certified within"),
    ],
)
def test_a_bound_that_proves_nothing_is_not_informative(document: dict[str, Any], name: str) -> None:
    assert shown(document)[name] == "not informative"


def test_steps_of_a_second_or_more_are_named_with_units() -> None:
    parts = {"ingest": 0.4, "train": 2.0, "set aside 1": 0.1, "train 1": 42.0}
    text = phases({"seconds": 44.5, "seconds_by_phase": parts})
    assert text == "44.5 s: training 2.0 s, training (model 2) 42.0 s, other 0.5 s"
    assert phases({"seconds": 3.0, "seconds_by_phase": {"train": 3.0}}) == "3.0 s: training 3.0 s"
    assert phases({"seconds": 0.4, "seconds_by_phase": {"ingest": 0.4}}) == "0.4 s"


def test_brackets_in_cells_are_printed() -> None:
    stream = io.StringIO()
    Console(file=stream, width=80).print(grid(("kernel", "NLPD"), [("matern32[east, north]", "0.5")]))
    assert "matern32[east, north]" in stream.getvalue()


def test_equal_bounds_are_printed_once() -> None:
    assert bounds_of(0.25, 0.25, "m") == "worst case 0.25 m"


def test_of_two_bounds_the_informative_one_is_shown() -> None:
    bounds = {"mean_error_bound": 3e4, "mean_error_bound_rms": 0.3, "rmse": 0.8}
    assert (
        shown({**EVALUATED, **bounds})["mean certified within"]
        == "root mean square 0.3 standard deviations of the target"
    )
    # A bound of half the error or more says little.
    assert shown({**EVALUATED, **bounds, "rmse": 0.5})["mean certified within"] == "not informative"
    wide = {"largest_mean_error_bound": 3.0, "target_std": [1e3]}
    assert shown({**PREDICTED, **wide})["mean certified within"] == "worst case 3 (units of the targets)"


def test_bounds_of_classes_that_prove_nothing() -> None:
    classes = {"method": "exact", "counts": {"a": 3, "b": 2}, "certified": 0, "largest_decision_error_bound": 2.11e7}
    classes |= {
        "interval_width_mean": 1.0,
        "interval_width_max": 1.0,
        "latent_variance": {"gap_mean": 1.0, "gap_max": 1.0},
    }
    rows = dict(predicted_class_rows(classes, 5))
    for name in ("decisions", "probabilities", "latent variances"):
        assert rows[f"{name} certified within"] == "not informative"
    good = {**classes, "largest_decision_error_bound": 0.02, "interval_width_mean": 0.01}
    assert dict(predicted_class_rows(good, 5))["decisions certified within"] == "0.02 (labels are -1 and 1)"


def test_bounds_of_transformed_targets_are_on_their_scale() -> None:
    assert shown(PREDICTED)["mean certified within"].endswith("(units of the targets)")
    assert shown({**PREDICTED, "transformed": True})["mean certified within"].endswith(
        "(scale of the transformed targets)"
    )


def test_errors_of_rivals() -> None:
    rows = shown({**EVALUATED, "compare": {"rmse_raw": {"price": {"a linear model": 3.25}}}})
    assert (rows["this model"], rows["a linear model"]) == ("2", "3.25")


def text(document: dict[str, Any]) -> str:
    stream = io.StringIO()
    for part in tables(document):
        Console(file=stream, width=200).print(part)
    return stream.getvalue()


def test_verdict_in_sentences_with_flags() -> None:
    finding = {"kind": "skewed", "text": "It is skewed", "advice": "Ingest with `transform` log, `basis_size` 5"}
    said = text({**EVALUATED, "verdict": [finding]})
    assert "- It is skewed.\n  Ingest with --transform log, --basis-size 5." in said
    assert "- price: It is skewed." in text({**EVALUATED, "verdict": [{"target": "price", **finding}]})
    assert "No problem found on these 5,000 test samples." in text(EVALUATED)
    assert "29 test samples: too few" in text({**EVALUATED, "n": 29})


@pytest.mark.parametrize("document", [PREDICTED, EVALUATED], ids=["predict", "evaluate"])
def test_without_variances_there_is_nothing_of_them(document: dict[str, Any]) -> None:
    assert not [name for name in shown(document) if "variance" in name or "density" in name or "coverage" in name]


@pytest.mark.parametrize(
    ("method", "width", "said"),
    [
        ("gp", 1e-4, "those of the exact Laplace approximation"),
        ("gp", None, "those of the exact mode"),
        ("logistic", None, "those of the exact minimiser of the risk"),
    ],
)
def test_certified_classes_say_what_they_are_those_of(method: str, width: float | None, said: str) -> None:
    found = {"method": method, "counts": {"a": 3, "b": 1}, "certified": 2, "largest_decision_error_bound": 0.5}
    rows = dict(predicted_class_rows({**found, "interval_width_mean": width, "interval_width_max": width}, 4))
    assert rows["certified"] == f"2 of 4 (50.00%): proven to be {said}"


SMALL = {**EVALUATED, **JUDGED, "n": 30, "coverage_95_band": [0.8667, 1.0], "coverage_95": 0.7, "nlpd_raw": 1.0}


def test_a_verdict_contradicts_no_figure_above_it() -> None:
    """Coverage of .70 where .87 to 1.00 is expected is no "sign of nothing", however few samples there are."""
    shown_text = " ".join(text({**SMALL, "effective_samples": 12.3}).split())
    assert "No problem found on" not in shown_text
    assert "The coverage of 70.0% is outside 86.7% to 100.0%" in shown_text
    assert "count as 12 independent ones" in shown_text
    assert "too few to tell a fault from chance" in shown_text
    inside = {**SMALL, "coverage_95": 0.9, "effective_samples": 12.3}
    assert "No problem found with the means" in text(inside)
    assert "too few to judge the error bars" in text(inside)
    assert "No problem found on these 30 test samples." in text({**inside, "effective_samples": 30.0})
    targets = {"u": {"coverage_95": 0.95, "rmse_raw": 1.0}, "v": {"coverage_95": 0.5, "rmse_raw": 1.0}}
    assert "The coverage of 50.0%" in text({**inside, "per_target": targets})
    # Beside findings on other things, but not beside one on the size of error bars, which gives the figure itself.
    tails = {"kind": "heavy tails", "text": "a few are far out", "advice": "check them"}
    assert "The coverage of 70.0% is outside" in text({**SMALL, "verdict": [tails]})
    assert "is outside" not in text({**SMALL, "verdict": [tails, {**tails, "kind": "overconfident"}]})


@pytest.mark.parametrize(
    ("wrong", "words"), [(0.5, "not below the error of always predicting the most frequent"), (0.1, "No problem")]
)
def test_a_verdict_of_labels_contradicts_no_error(wrong: float, words: str) -> None:
    document = {"n": 40, "confusion": [[20, 0], [20, 0]], "error_rate": wrong, "verdict": []}
    assert words in nothing_wrong(document)


@pytest.mark.parametrize(("recognised", "count", "is_told"), [(7, 18, True), (10, 18, False), (0, 4, False)])
def test_a_verdict_without_findings_tells_of_a_rare_class_that_is_mostly_missed(
    recognised: int, count: int, is_told: bool
) -> None:
    confusion = [[recognised, count - recognised], [0, 482]]
    document = {"n": 482 + count, "classes": ["rare", "common"], "confusion": confusion, "verdict": []}
    text = nothing_wrong({**document, "error_rate": (count - recognised - 1) / document["n"]})
    assert ("Only 7 of 18 test samples of the rare class 'rare' are recognised. These" in text) == is_told
    assert ("No problem found" in text) == (not is_told)
    assert ("too few to tell a fault from chance" in text) == is_told
