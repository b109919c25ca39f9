"""Tables 2 to 5 of the paper from the figures of units, beside the paper's own; nothing here measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.measurements import Column, median, median_ratio
from dkgp.commands.reporting.outputs import Document, plain
from dkgp_benchmarks.classify.methods import MethodSpec
from dkgp_benchmarks.classify.problems import PROBLEMS
from dkgp_benchmarks.classify.published import (
    TABLE_3,
    TABLE_4,
    TABLE_5,
    Published,
    judge_error,
    judge_partition,
    judge_size,
)

FloatArray = NDArray[np.float64]
# Figures of every split that was measured, by problem and method; those that failed are left out.
Figures = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]

# Seconds are compared with those of this method, in the same runs.
BASELINE = "svm"
STANDARD_ERRORS = 2.0

_ERROR = (
    Column("problem", "problem", text=True),
    Column("method", "method", text=True),
    Column("splits", "splits", "d"),
    Column("error", "error, %", ".2f"),
    Column("error_std", "+-", ".2f"),
    Column("paper_error", "paper", ".2f"),
    Column("paper_error_std", "+-", ".2f"),
    Column("accepted", "", text=True),
)
_SIZE = (
    Column("size", "vectors", ",.1f"),
    Column("paper_size", "paper", ",.1f"),
    Column("size_accepted", "", text=True),
)
ERROR_COLUMNS = (
    *_ERROR,
    *_SIZE,
    Column("worst", "worst split, %", ".2f"),
    Column("balanced_error", "balanced error, %", ".2f"),
    Column("tune_seconds", "search, s", ",.2f"),
)
TIME_COLUMNS = (
    Column("problem", "problem", text=True),
    Column("method", "method", text=True),
    Column("grow_ms", "training, processor ms", ",.2f"),
    Column("grow_to_svm", "time / svm", ",.2f"),
    Column("fit_ms", "with choice of size, ms", ",.2f"),
    Column("paper_ms", "paper, ms", ",.2f"),
    Column("paper_to_svm", "time / svm", ",.2f"),
    Column("tune_seconds", "search, s", ",.2f"),
    Column("predict_ms", "testing, ms", ",.2f"),
)
PARTITION_COLUMNS = (
    *_ERROR,
    *_SIZE,
    Column("fit_seconds", "training, s", ",.2f"),
    Column("fit_to_svm", "time / svm", ",.3f"),
    Column("paper_seconds", "paper, s", ",.1f"),
    Column("paper_to_svm", "time / svm", ",.3f"),
    Column("tune_seconds", "search, s", ",.1f"),
    Column("predict_seconds", "testing, s", ",.2f"),
)
ABLATION_COLUMNS = (
    Column("problem", "problem", text=True),
    Column("parameter", "parameter", text=True),
    Column("value", "value", text=True),
    Column("error", "error, %", ".2f"),
    Column("error_std", "+-", ".2f"),
    Column("difference", "difference to default", "+.2f"),
    Column("difference_error", "+-", ".2f"),
    Column("size", "vectors", ",.1f"),
    Column("fit_ms", "training, ms", ",.2f"),
    Column("fit_ratio", "time / default's", ".3f"),
    Column("fit_ratio_error", "+-", ".3f"),
    Column("tune_seconds", "search, s", ",.2f"),
)
MENDED_COLUMNS = (
    Column("problem", "problem", text=True),
    Column("method", "method", text=True),
    Column("error", "error, %", ".2f"),
    Column("error_std", "+-", ".2f"),
    Column("worst", "worst split, %", ".2f"),
    Column("outliers", "outliers", "d"),
    Column("difference", "difference to scdp", "+.2f"),
    Column("difference_error", "+-", ".2f"),
    Column("size", "vectors", ",.1f"),
    Column("paper_error", "paper's method", ".2f"),
)
PROBABILITY_COLUMNS = (
    Column("problem", "problem", text=True),
    Column("method", "method", text=True),
    Column("splits", "splits", "d"),
    Column("n", "train", ",d"),
    Column("n_test", "test", ",d"),
    Column("error", "error, %", ".2f"),
    Column("log_loss", "log loss", ".4f"),
    Column("log_loss_std", "+-", ".4f"),
    Column("brier", "Brier", ".4f"),
    Column("calibration_error", "calibration error, %", ".2f"),
    Column("size", "vectors", ",.0f"),
    Column("tune_seconds", "search, s", ",.1f"),
    Column("fit_seconds", "training, s", ",.1f"),
    Column("fit_core_seconds", "processor s", ",.1f"),
    Column("probability_seconds", "testing, s", ",.1f"),
    Column("probability_core_seconds", "processor s", ",.1f"),
    Column("width_mean", "intervals: mean", ".1e"),
    Column("width_largest", "widest", ".1e"),
)
WIDTHS = ("width_mean", "width_largest")
# A split on which a random choice errs by so many percentage points more than the choice among all is an outlier.
OUTLIER_POINTS = 3.0


def error_table(figures: Figures, same_data: Mapping[str, bool]) -> Document:
    """Table 3: misclassification and size of every method, held against the paper's by the rule of `published`."""
    rows = []
    for (problem, method), runs in figures.items():
        published = TABLE_3.get(PROBLEMS[problem].paper_name, {}).get(method)
        row = _shared(problem, method, runs, published)
        if published is not None:
            row["accepted"] = judge_error(row["error"], published, len(runs), same_data=same_data[problem])
            row["size_accepted"] = judge_size(row["size"], published)
        rows.append(row)
    judged = [row["accepted"] for row in rows if row.get("accepted")]
    missed = [f"{row['problem']} {row['method']}" for row in rows if str(row.get("accepted")).startswith("missed")]
    said = {
        "within_the_band_or_better": f"{sum(each in ('met', 'better') for each in judged)} of {len(judged)}",
        "missed": ", ".join(missed) or "none",
        "sizes_of_the_same_order": _counted(rows, "size_accepted", "same order"),
        **_best(figures),
    }
    title = "Table 3: misclassification on test samples; prototypes or support vectors; the paper's over 100 splits"
    return _section("table_3", title, ERROR_COLUMNS, rows, said)


def time_table(figures: Figures) -> Document:
    """Table 4: processor milliseconds of training with hyperparameters and size known, and with the size's choice.

    Processor time excludes other work on the machine, which distorts ratios of a few milliseconds.
    """
    rows = []
    for (problem, method), runs in figures.items():
        paper = TABLE_4.get(PROBLEMS[problem].paper_name, {})
        row: dict[str, Any] = {"problem": problem, "method": _label(method)}
        row["fit_ms"] = 1e3 * _median(runs, "fit_core_seconds")
        row["predict_ms"] = 1e3 * _median(runs, "predict_seconds")
        row["tune_seconds"] = _median(runs, "tune_seconds")
        row["grow_ms"] = 1e3 * _median(runs, "grow_seconds")
        row["grow_to_svm"] = _to_baseline(figures, problem, method, "grow_seconds")
        if method in paper:
            row |= {"paper_ms": paper[method], "paper_to_svm": paper[method] / paper[BASELINE]}
        rows.append(row)
    title = "Table 4: training with hyperparameters and size known, medians; the paper's in MATLAB and LIBSVM"
    return _section("table_4", title, TIME_COLUMNS, rows, {})


def partition_table(figures: Figures) -> Document:
    """Table 5: the large problems; errors held against the paper's within half a percentage point."""
    rows = []
    for (problem, method), runs in figures.items():
        paper = TABLE_5.get(PROBLEMS[problem].paper_name, {})
        published = paper.get(method)
        row = _shared(problem, method, runs, published)
        row["fit_seconds"] = _median(runs, "fit_seconds")
        row["predict_seconds"] = _median(runs, "predict_seconds")
        row["fit_to_svm"] = _to_baseline(figures, problem, method, "fit_seconds")
        if published is not None and published.seconds is not None:
            base = paper[BASELINE].seconds
            row |= {"paper_seconds": published.seconds, "paper_to_svm": published.seconds / base if base else None}
            row["accepted"] = judge_partition(row["error"], published)
            row["size_accepted"] = judge_size(row["size"], published)
        rows.append(row)
    title = "Table 5: two thirds to train, one third to test; the paper's over 5 partitions"
    return _section("table_5", title, PARTITION_COLUMNS, rows, _best(figures))


def probability_table(figures: Figures) -> Document:
    """Probabilities: log loss, Brier score and calibration error beside the error, means over the splits."""
    rows = []
    for (problem, method), runs in figures.items():
        row: dict[str, Any] = {"problem": problem, "method": _label(method), "splits": len(runs)}
        row |= {name: runs[0][name] for name in ("n", "n_test", "d")}
        row["error"] = 100.0 * float(np.mean([run["error"] for run in runs]))
        for name, factor in (("log_loss", 1.0), ("brier", 1.0), ("calibration_error", 100.0)):
            values = [factor * run[name] for run in runs]
            row[name] = float(np.mean(values))
            row[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
        sizes = [run["size"] for run in runs if run["size"] is not None]
        row["size"] = float(np.mean(sizes)) if sizes else None
        measured = (
            *(f"{name}_seconds" for name in ("tune", "fit", "fit_core", "probability", "probability_core")),
            *WIDTHS,
        )
        row |= {name: _median_of_some(runs, name) for name in measured}
        rows.append(row)
    best = {
        f"least_{name}": ", ".join(
            f"{problem}: {min(own, key=lambda row: row[name])['method']}"
            for problem in dict.fromkeys(row["problem"] for row in rows)
            if (own := [row for row in rows if row["problem"] == problem])
        )
        for name in ("log_loss", "brier", "calibration_error")
    }
    title = "Probabilities on test samples: log loss, Brier score, expected calibration error in 15 bins"
    return _section("table_probabilities", title, PROBABILITY_COLUMNS, rows, best)


def ablation_table(figures: Figures, variants: Iterable[tuple[str, str, str]], default: str) -> Document:
    """Table 2 in figures: one parameter at a time is changed, the others as they come.

    Parameters
    ----------
    figures : Figures
    variants : iterable of (parameter, value, method)
    default : str
        The method with nothing changed.
    """
    rows = []
    for problem in dict.fromkeys(problem for problem, _ in figures):
        for parameter, value, method in variants:
            runs = figures.get((problem, method))
            if runs:
                row = {"problem": problem, "parameter": parameter, "value": value, **_errors(runs)}
                row |= _difference(runs, figures.get((problem, default), ()))
                row |= {"size": _size(runs), "fit_ms": 1e3 * _median(runs, "fit_core_seconds")}
                row |= _ratio(runs, figures.get((problem, default), ()))
                rows.append(row | {"tune_seconds": _median(runs, "tune_seconds")})
    title = "Table 2: the parameters of the pursuit, one changed at a time"
    return _section("table_2", title, ABLATION_COLUMNS, rows, {"default": default})


def mended_table(figures: Figures, baseline: str) -> Document:
    """The random choice of candidates: its outliers, and what keeps them away.

    Parameters
    ----------
    figures : Figures
    baseline : str
        The method that chooses among all.
    """
    rows = []
    for (problem, method), runs in figures.items():
        published = TABLE_3.get(PROBLEMS[problem].paper_name, {}).get(MethodSpec.read(method).name)
        against = figures.get((problem, baseline), ())
        row = {"problem": problem, "method": _label(method), **_errors(runs), **_difference(runs, against)}
        pairs = _pairs(runs, against)
        row["outliers"] = int(np.sum(pairs[0] - pairs[1] > OUTLIER_POINTS)) if len(pairs[0]) else None
        row |= {"size": _size(runs), "worst": float(_percent(runs).max())}
        rows.append(row | {"paper_error": None if published is None else published.error})
    title = f"SCDPP's outliers (more than {OUTLIER_POINTS:g} points above {baseline}), and what mends them"
    return _section("scdpp", title, MENDED_COLUMNS, rows, {})


def _section(
    name: str, title: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], figures: Mapping[str, Any]
) -> Document:
    return {
        "section": name,
        "title": title,
        "columns": [dict(vars(column)) for column in columns],
        "rows": plain(rows),
        "figures": plain(dict(figures)),
    }


def _shared(
    problem: str, method: str, runs: Sequence[Mapping[str, Any]], published: Published | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"problem": problem, "method": _label(method), "key": method, **_errors(runs)}
    row |= {"size": _size(runs), "worst": float(_percent(runs).max())}
    row["balanced_error"] = 100.0 * float(np.mean([run["balanced_error"] for run in runs]))
    row["tune_seconds"] = _median(runs, "tune_seconds")
    if published is not None:
        row |= {"paper_error": published.error, "paper_error_std": published.error_std, "paper_size": published.size}
    return row


def _errors(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    errors = _percent(runs)
    spread = float(errors.std(ddof=1)) if len(errors) > 1 else None
    return {"splits": len(errors), "error": float(errors.mean()), "error_std": spread, "errors": errors.tolist()}


def _difference(runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean difference of errors on the same splits, and its standard error."""
    errors, other = _pairs(runs, others)
    if not len(errors):
        return {}
    difference = errors - other
    error = float(difference.std(ddof=1) / np.sqrt(len(errors))) if len(errors) > 1 else None
    return {"difference": float(difference.mean()), "difference_error": error}


def _ratio(runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric mean of the ratios of training seconds on the same splits, and its standard error."""
    seconds, other = ({run["split"]: run["fit_core_seconds"] for run in each} for each in (runs, others))
    logarithms = np.log([seconds[split] / other[split] for split in seconds if split in other])
    if len(logarithms) < 2:
        return {}
    ratio = float(np.exp(logarithms.mean()))
    error = ratio * float(logarithms.std(ddof=1) / np.sqrt(len(logarithms)))
    return {"fit_ratio": ratio, "fit_ratio_error": error}


def _pairs(runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> tuple[FloatArray, FloatArray]:
    """Errors in percent on the splits that both have."""
    first, second = ({run["split"]: 100.0 * run["error"] for run in each} for each in (runs, others))
    both = [split for split in first if split in second]
    return np.array([first[split] for split in both]), np.array([second[split] for split in both])


def _best(figures: Figures) -> dict[str, str]:
    """For each problem the method of the least mean error, and who is within two standard errors of it."""
    said = {}
    for problem in dict.fromkeys(problem for problem, _ in figures):
        by_method = {method: runs for (name, method), runs in figures.items() if name == problem}
        best = min(by_method, key=lambda method: (_percent(by_method[method]).mean(), method))
        tied = []
        for method, runs in by_method.items():
            difference = _difference(runs, by_method[best])
            error = difference.get("difference_error")
            if method != best and error is not None and difference["difference"] <= STANDARD_ERRORS * error:
                tied.append(_label(method))
        said[f"best_on_{problem}"] = _label(best) + (f"; tied with it: {', '.join(tied)}" if tied else "")
    return said


def _to_baseline(figures: Figures, problem: str, method: str, name: str) -> float | None:
    """Median ratio of training seconds to the baseline's, on the same splits."""
    by_split = {run["split"]: run[name] for run in figures[problem, method]}
    base = {run["split"]: run[name] for run in figures.get((problem, BASELINE), ())}
    both = [split for split in by_split if split in base]
    return median_ratio([by_split[split] for split in both], [base[split] for split in both]) if both else None


def _counted(rows: Sequence[Mapping[str, Any]], name: str, verdict: str) -> str:
    judged = [row[name] for row in rows if row.get(name)]
    return f"{judged.count(verdict)} of {len(judged)}"


def _percent(runs: Sequence[Mapping[str, Any]]) -> FloatArray:
    return 100.0 * np.array([run["error"] for run in runs])


def _median(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    return median([run[name] for run in runs])


def _median_of_some(runs: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The median of a figure that not every method, or record, has; None where no run has it."""
    values = [run for run in runs if run.get(name) is not None]
    return _median(values, name) if values else None


def _size(runs: Sequence[Mapping[str, Any]]) -> float | None:
    sizes = [run["size"] for run in runs if run["size"] is not None]
    return float(np.mean(sizes)) if sizes else None


def _label(method: str) -> str:
    return MethodSpec.read(method).label
