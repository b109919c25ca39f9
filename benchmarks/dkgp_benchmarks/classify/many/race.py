"""`dkgp classify` at its defaults on many classes, beside an SVM with its grid and gradient boosting.

All are run one after the other, in this process, on the same samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.data import memory_dataset
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings
from dkgp.models.classification.fixed_size.train import train_fixed_size
from dkgp.models.classification.labels import LabelledData, decided, stratified_folds
from dkgp_benchmarks.classify.many.problems import MANY, Classes, IntArray, ManyProblem, classes_of
from dkgp_benchmarks.classify.rivals import CACHE_MIB
from dkgp_benchmarks.classify.trial import median_gamma
from dkgp_benchmarks.records import Record

# Of the support vector machine: twelve settings, gamma as factors of one over the median squared distance.
GRID_FOLDS = 3
COSTS, GAMMA_FACTORS = (1.0, 10.0, 100.0), (0.5, 1.0, 2.0, 4.0)

# Of boosting, as it comes.
ROUNDS = 100

COLUMNS = (
    Column("problem", "problem", text=True),
    Column("method", "method", text=True),
    Column("n", "train", ",d"),
    Column("classes", "classes", "d"),
    Column("error", "error, %", ".2f"),
    Column("balanced_error", "balanced error, %", ".2f"),
    Column("seconds", "seconds", ",.1f"),
    Column("cpu_seconds", "processor s", ",.1f"),
    Column("size", "vectors", ",d"),
    Column("remark", "", text=True),
)


def default_classifier(classes: Classes, seed: int) -> tuple[IntArray, dict[str, Any]]:
    """Train as `dkgp classify` does: classes of the test samples, and what was chosen."""
    labels = classes.labels
    dataset = memory_dataset(classes.inputs, labels.codes.astype(np.float64), classes=labels.classes)
    with closing(LocalExecutor(available_cores())) as executor:
        settings = FixedSizeSettings(seed=seed)
        trained = train_fixed_size(LabelledData(dataset, labels), settings, executor)
    summary = trained.summary
    decisions = trained.model.decisions(dataset.standardisation.inputs(classes.test_inputs))
    return decided(decisions), {"size": summary["cardinality"], "remark": f"{summary['passes']} passes"}


def support_vectors(classes: Classes, seed: int) -> tuple[IntArray, dict[str, Any]]:
    """scikit-learn's `SVC`, twelve settings by three folds, and a fit with the best."""
    from sklearn.svm import SVC

    inputs, codes = classes.inputs, classes.labels.codes
    start, parts = median_gamma(inputs, seed), stratified_folds(classes.labels, GRID_FOLDS, seed)
    wrong: dict[tuple[float, float], int] = {}
    for cost in COSTS:
        for factor in GAMMA_FACTORS:
            wrong[cost, factor] = 0
            for part in range(GRID_FOLDS):
                own = parts == part
                model = SVC(C=cost, gamma=factor * start, cache_size=CACHE_MIB).fit(inputs[~own], codes[~own])
                wrong[cost, factor] += int(np.sum(model.predict(inputs[own]) != codes[own]))
    cost, factor = min(wrong, key=lambda place: (wrong[place], *place))
    model = SVC(C=cost, gamma=factor * start, cache_size=CACHE_MIB).fit(inputs, codes)
    chosen = {"size": int(model.n_support_.sum()), "remark": f"C = {cost:g}, gamma = {factor * start:.3g}"}
    return np.asarray(model.predict(classes.test_inputs), dtype=np.int64), chosen


def boosted_trees(classes: Classes, seed: int) -> tuple[IntArray, dict[str, Any]]:
    """scikit-learn's `HistGradientBoostingClassifier` as it comes."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(max_iter=ROUNDS, random_state=seed).fit(classes.inputs, classes.labels.codes)
    return np.asarray(model.predict(classes.test_inputs), dtype=np.int64), {"size": None, "remark": "as it comes"}


CONTENDERS: Mapping[str, Callable[[Classes, int], tuple[IntArray, dict[str, Any]]]] = {
    "dkgp classify": default_classifier,
    "svm with its grid": support_vectors,
    "hist-boosting": boosted_trees,
}


def measure_many(problem: ManyProblem, method: str, folder: Path | None, seed: int) -> dict[str, Any]:
    """Search, train and predict; errors in percent on the test samples, seconds that went by and of all cores."""
    classes = classes_of(problem, folder, seed)
    began, cores = time.perf_counter(), time.process_time()
    predicted, chosen = CONTENDERS[method](classes, seed)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cores
    wrong = predicted != classes.test_codes
    rates = [wrong[classes.test_codes == code].mean() for code in np.unique(classes.test_codes)]
    return {
        "problem": problem.name,
        "method": method,
        "n": len(classes.inputs),
        "classes": classes.labels.n_classes,
        "error": 100.0 * float(wrong.mean()),
        "balanced_error": 100.0 * float(np.mean(rates)),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        **chosen,
    }


def many_table(names: list[str], folder: Path | None, seed: int, record: Record, reporter: Reporter) -> Document:
    """Every contender on every problem that it takes, what is on record left as it is."""
    title = "Many classes, or a rare one: errors on test samples, and seconds of search, fit and prediction"
    units = [(name, method) for name in names for method in CONTENDERS if method not in MANY[name].beyond]

    def measure(name: str, method: str) -> list[dict[str, Any]]:
        return [measure_many(MANY[name], method, folder, seed)]

    return table_of("many", title, COLUMNS, units, measure, record, reporter)


def table_of(
    section: str,
    title: str,
    columns: Sequence[Column],
    units: list[tuple[str, str]],
    measure: Callable[[str, str], list[dict[str, Any]]],
    record: Record,
    reporter: Reporter,
) -> Document:
    """A section of the rows that each unit, a problem and a method, measures; of what is on record no other."""
    rows: list[dict[str, Any]] = []
    with reporter.work(title.partition(":")[0].lower()) as show:
        for number, (name, method) in enumerate(units):
            show(WorkProgress(f"{name}: {method}", number, len(units), "runs"))
            key = f"{name}/{section}/{method}"
            figures = record.get(key)
            if figures is None:
                figures = {"rows": measure(name, method)}
                record.add(key, figures)
            rows += figures["rows"]
    shown = [asdict(column) for column in columns]
    return {"section": section, "title": title, "columns": shown, "rows": plain(rows), "figures": {}}
