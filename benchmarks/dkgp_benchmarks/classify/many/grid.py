"""A grid of ten widths by ten penalties in five folds: `dkgp classify --search grid`, and scikit-learn's `SVC`.

Both go over the same widths, in factors of two about the median distance between samples, with one length scale for all
features; costs are the inverse of penalties. SVC is as many fits as the grid has places and folds: what it does not
come to within `PEER_SECONDS` is extrapolated, and said to be. The kernel that dkgp found is then solved for with all
samples, and says of which test samples the label is certified to be that solution's.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import memory_dataset
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models import Hyperparameters
from dkgp.models.classification.fixed_size.plans import GridSearch
from dkgp.models.classification.fixed_size.search import GRID
from dkgp.models.classification.fixed_size.settings import FixedSizeSettings, most_widths
from dkgp.models.classification.fixed_size.train import TrainedFixedSize, train_fixed_size
from dkgp.models.classification.labels import LabelledData, decided, stratified_folds
from dkgp_benchmarks.classify.many.problems import MANY, Classes, IntArray, ManyProblem, classes_of
from dkgp_benchmarks.classify.many.race import table_of
from dkgp_benchmarks.classify.rivals import CACHE_MIB
from dkgp_benchmarks.classify.trial import median_gamma
from dkgp_benchmarks.records import Record

FOLDS = 5
# Of the whole grid of `SVC`, seconds that go by; they are looked at after a setting for each core.
PEER_SECONDS = 120.0

COLUMNS = (
    Column("problem", "problem", text=True),
    Column("method", "method", text=True),
    Column("n", "train", ",d"),
    Column("classes", "classes", "d"),
    Column("error", "error, %", ".2f"),
    Column("search_seconds", "search, s", ",.1f"),
    Column("search_cpu_seconds", "processor s", ",.1f"),
    Column("fit_seconds", "fit, s", ",.1f"),
    Column("certified", "certified, %", ".1f"),
    Column("size", "vectors", ",d"),
    Column("remark", "", text=True),
)
GRID_METHODS = ("dkgp, one length scale", "dkgp, one a feature", "SVC")
Figures = dict[str, Any]


@dataclass(frozen=True)
class _Clock:
    """Seconds since it was made: that went by, and of all cores."""

    wall: float
    cores: float

    @classmethod
    def start(cls) -> _Clock:
        return cls(time.perf_counter(), time.process_time())

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, time.process_time() - self.cores


def own_grid(classes: Classes, seed: int, kernel: Kernel | None) -> tuple[TrainedFixedSize, IntArray, Figures]:
    """Search by `--search grid` from a kernel, or the one that it starts with by default; classes of test samples."""
    labels, clock = classes.labels, _Clock.start()
    dataset = memory_dataset(classes.inputs, labels.codes.astype(np.float64), classes=labels.classes)
    settings = FixedSizeSettings(search="grid", folds=FOLDS, seed=seed, probability=False)
    with closing(LocalExecutor(available_cores())) as executor:
        trained = train_fixed_size(LabelledData(dataset, labels), settings, executor, kernel=kernel)
    seconds, cpu_seconds = clock.read()
    predicted = decided(trained.model.decisions(dataset.standardisation.inputs(classes.test_inputs)))
    summary = trained.summary
    figures = {
        "search_seconds": seconds,
        "search_cpu_seconds": cpu_seconds,
        "fit_seconds": None,
        "certified": None,
        "size": summary["cardinality"],
        "remark": f"width {summary['scale'] ** -0.5:.3g}, penalty {trained.noise_variance:.3g}; {summary['passes']} "
        "passes, fit included",
    }
    return trained, predicted, figures


def all_samples(classes: Classes, trained: TrainedFixedSize, seed: int) -> tuple[IntArray, Figures]:
    """The exact LS-SVM with a search's kernel and penalty; classes of test samples, and the share that is certified."""
    from dkgp import LSSVC

    clock = _Clock.start()
    machine = LSSVC(
        kernel=Hyperparameters(trained.kernel, trained.noise_variance), probability=False, random_state=seed
    ).fit(classes.inputs, classes.labels.codes)
    seconds, _ = clock.read()
    predicted, certified = machine.predict(classes.test_inputs, return_certified=True)
    figures = {
        "search_seconds": None,
        "search_cpu_seconds": None,
        "fit_seconds": seconds,
        "certified": 100.0 * float(np.mean(certified)),
        "size": len(classes.inputs),
        "remark": "with the kernel and the penalty of the row above",
    }
    return np.asarray(predicted, dtype=np.int64), figures


def peer_grid(classes: Classes, seed: int, start: float) -> tuple[IntArray, Figures]:
    """`GridSearchCV` of `SVC` over the same grid and folds, fold by fold in random order, as far as seconds go."""
    from joblib import parallel_backend
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    inputs, codes = classes.inputs, classes.labels.codes
    gammas = [start * float(np.exp(place)) for place in _widths()]
    grid = [{"gamma": [gamma], "C": [10.0**-place]} for gamma in gammas for place in GRID]
    order, parts = (
        np.random.default_rng([seed, 17]).permutation(len(grid)),
        stratified_folds(classes.labels, FOLDS, seed),
    )
    right, seen, done, clock = np.zeros(len(grid)), np.zeros(len(grid)), 0, _Clock.start()
    at_once = available_cores()
    with parallel_backend("threading", n_jobs=at_once):
        for part in range(FOLDS):
            fold = [(np.flatnonzero(parts != part), np.flatnonzero(parts == part))]
            for first in range(0, len(grid), at_once):
                which = order[first : first + at_once]
                search = GridSearchCV(SVC(cache_size=CACHE_MIB), [grid[at] for at in which], cv=fold, refit=False)
                search.fit(inputs, codes)
                right[which] += search.cv_results_["split0_test_score"]
                seen[which] += 1
                done += len(which)
                if clock.read()[0] > PEER_SECONDS:
                    break
            else:
                continue
            break
    (seconds, cpu_seconds), of = clock.read(), FOLDS * len(grid)
    best = grid[int(np.argmax(np.where(seen > 0, right / np.maximum(seen, 1), -1.0)))]
    clock = _Clock.start()
    model = SVC(C=best["C"][0], gamma=best["gamma"][0], cache_size=CACHE_MIB).fit(inputs, codes)
    remark = f"C = {best['C'][0]:.3g}, width {(best['gamma'][0] / start) ** -0.5:.3g}"
    if done < of:
        remark += f"; {done} of {of} fits in {seconds:.0f} s, the rest EXTRAPOLATED, best of those"
    figures = {
        "search_seconds": seconds * of / done,
        "search_cpu_seconds": cpu_seconds * of / done,
        "fit_seconds": clock.read()[0],
        "certified": None,
        "size": int(model.n_support_.sum()),
        "remark": remark,
    }
    return np.asarray(model.predict(classes.test_inputs), dtype=np.int64), figures


def _widths() -> list[float]:
    """Logarithms of the grid's scales, as the search asks for them."""
    search, places = GridSearch(most_widths("grid")), list[float]()
    while points := search.ask():
        places += [point[0] for point in points]
        search.tell([0.0] * len(points))
    return places


def measure_grid(problem: ManyProblem, method: str, folder: Path | None, seed: int) -> list[Figures]:
    """Rows of a method: of dkgp's the search, and the solution of all samples by its kernel."""
    classes = classes_of(problem, folder, seed)
    start = median_gamma(classes.inputs, seed)
    if method == "SVC":
        found = [(method, *peer_grid(classes, seed, start))]
    else:
        d = classes.inputs.shape[1]
        trained, predicted, figures = own_grid(
            classes, seed, SquaredExponential((start,) * d) if method == GRID_METHODS[0] else None
        )
        found = [(method, predicted, figures), ("all samples", *all_samples(classes, trained, seed))]
    about = {"problem": problem.name, "n": len(classes.inputs), "classes": classes.labels.n_classes}
    return [
        {**about, "method": name, "error": 100.0 * float(np.mean(predicted != classes.test_codes)), **figures}
        for name, predicted, figures in found
    ]


def grid_table(names: list[str], folder: Path | None, seed: int, record: Record, reporter: Reporter) -> Document:
    """Every method on every problem, what is on record left as it is."""
    title = f"A grid of {most_widths('grid')} widths by {len(GRID)} penalties in {FOLDS} folds: errors on test samples"
    units = [(name, method) for name in names for method in GRID_METHODS]

    def measure(name: str, method: str) -> list[Figures]:
        return measure_grid(MANY[name], method, folder, seed)

    return table_of("grid", title, COLUMNS, units, measure, record, reporter)
