"""Tables of predictions and evaluations: what they say of variances, and that they say nothing without them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dkgp.commands.reporting.tables import nothing_wrong, predicted_class_rows, tables

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
    assert rows["variances certified within"] == "1.23 % on average, 4.56 % at most"
    assert rows["as narrow as wanted"] == "4,998 of 5,000 (relative gap 0.02)"
    assert rows["by"] == "a factor of rank 1,200 and conjugate gradients"
    assert "column passes" not in rows
    assert shown({**PREDICTED, "variance": VARIANCE}, verbose=True)["column passes"] == "1.50 a sample"
    assert rows["milliseconds a variance"] == "2.10"


def test_a_factor_alone_and_nothing_computed() -> None:
    alone = {**VARIANCE, "column_passes": 0.0}
    assert shown({**PREDICTED, "variance": alone}, verbose=True)["by"] == "a factor of rank 1,200 alone"
    rows = shown({**PREDICTED, "variance": {**alone, "seconds_per_sample": None}}, verbose=True)
    assert rows["as narrow as wanted"] == "4,998 of 5,000 (relative gap 0.02)"
    assert "by" not in rows
    assert "milliseconds a variance" not in rows


def test_evaluated_variances() -> None:
    rows = shown({**EVALUATED, **JUDGED})
    assert rows["root mean square error"] == "2"
    assert rows["R²"] == "0.987654"
    # What moves no digit is not told.
    assert rows["negative log predictive density"] == "3.4567"
    moved = "0.9444, of a calibrated model 0.944 to 0.956 (exact variances: 0.9400 to 0.9510)"
    assert rows["coverage of 95 % intervals"] == moved
    assert rows["squared error / variance"] == "1.0312"
    assert rows["variances certified within"] == "1.23 % on average, 4.56 % at most"
    assert rows["wider than wanted"] == "2 of 5,000 (relative gap 0.02)"
    assert shown({**EVALUATED, **JUDGED, "noise_free": True})["variances of"] == "the function"
    assert "wider than wanted" not in shown({**EVALUATED, **JUDGED, "variance_unmet": 0})


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
    assert plain["largest error"] == "7e-05, tolerance 0.0001"
    assert plain["mean certified within"] == "worst case 0.00685 standard deviations of the target (at amplitude 1)"
    assert set(verbose) - set(plain) == FIGURES
    assert {name: verbose[name] for name in plain} == plain
    assert verbose["kernel entries evaluated"].startswith("3.06 n² = 3.06e+04")
    stopped = shown({**TRAINED, "converged": False, "reason": "12 seconds spent"})
    assert stopped["converged"] == "no: 12 seconds spent"


def test_bounds_are_named_worst_case_and_root_mean_square() -> None:
    bounds = {"largest_mean_error_bound": 0.01, "mean_error_bound_rms": 0.004}
    words = "worst case 0.01, root mean square 0.004"
    assert shown({**PREDICTED, **bounds})["mean certified within"] == f"{words} (units of the targets)"
    evaluated = {**EVALUATED, "mean_error_bound": 0.01, "mean_error_bound_rms": 0.004}
    assert shown(evaluated)["mean certified within"] == f"{words} standard deviations of the target"
    sparse = shown({**evaluated, "method": "vfe", "rms_bound": 0.02})["mean certified within"]
    assert sparse.endswith("(at the training samples root mean square 0.02)")


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
    assert "No sign of anything wrong in these 5,000 test samples." in text(EVALUATED)
    assert "29 test samples are too few" in text({**EVALUATED, "n": 29})


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
    assert "No sign" not in shown_text
    assert "A coverage of 70.0% is outside of 86.7% to 100.0%" in shown_text
    assert "count as 12 independent ones" in shown_text
    assert "too few to tell a fault from chance" in shown_text
    inside = {**SMALL, "coverage_95": 0.9, "effective_samples": 12.3}
    assert "No sign of anything wrong with the means" in text(inside)
    assert "too few to judge the error bars" in text(inside)
    assert "No sign of anything wrong in these 30 test samples." in text({**inside, "effective_samples": 30.0})
    targets = {"u": {"coverage_95": 0.95, "rmse_raw": 1.0}, "v": {"coverage_95": 0.5, "rmse_raw": 1.0}}
    assert "A coverage of 50.0%" in text({**inside, "per_target": targets})


@pytest.mark.parametrize(("wrong", "words"), [(0.5, "no smaller than that of naming the commonest"), (0.1, "No sign")])
def test_a_verdict_of_labels_contradicts_no_error(wrong: float, words: str) -> None:
    document = {"n": 40, "confusion": [[20, 0], [20, 0]], "error_rate": wrong, "verdict": []}
    assert words in nothing_wrong(document)
