"""Units of `dkgp bench classify`: one method on one split, tuned, trained with what was found, and tested.

Units of small problems may run in several processes, one thread each; which ran where changes no error.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.errors import NumericalError
from dkgp.models.classification.metrics import ClassTally
from dkgp_benchmarks.classify.methods import MethodSpec
from dkgp_benchmarks.classify.problems import PROBLEMS, ClassProblem, Samples, load, splits
from dkgp_benchmarks.classify.trial import Classifier, Trial, trial_of
from dkgp_benchmarks.peers.interpreters import PeerError
from dkgp_benchmarks.records import Record

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Training with tuned hyperparameters is repeated until so many seconds or repeats are spent; the median counts.
REPEATS, QUICK_SECONDS = 10, 1.0


@dataclass(frozen=True)
class Unit:
    """A method on a split of a problem.

    Attributes
    ----------
    problem, split, method
        Names, and the split's index.
    folder
        Of the problem's file.
    seed
        Of splits and of all that methods draw.
    threads
        Of BLAS.
    tested
        Test samples at most, the first ones.
    """

    problem: str
    split: int
    method: str
    folder: str | None
    seed: int
    threads: int | None = 1
    tested: int | None = None

    @property
    def key(self) -> str:
        """In a record."""
        few = "" if self.tested is None else f"/{self.tested}"
        return f"{self.problem}/{self.split}/{self.method}{few}"


def measure(unit: Unit) -> dict[str, Any]:
    """Tune, train, test; return error rates, size, and seconds of each part."""
    problem = PROBLEMS[unit.problem]
    samples = _samples(problem, unit.folder, unit.seed, unit.split if problem.is_fresh else 0)
    (split,) = splits(problem, samples, [unit.split], unit.seed)
    if unit.tested is not None:
        split = replace(split, test=split.test[: unit.tested])
    trial = trial_of(samples, split, unit.seed)
    method = MethodSpec.read(unit.method).made()
    with threadpool_limits(unit.threads):
        began = time.perf_counter()
        tuning = method.tune(trial)
        tune_seconds = time.perf_counter() - began
        classifier, fit_seconds, fit_core_seconds = _timed(method.fit, trial, tuning)
        grow = getattr(method, "grow", None)
        grow_seconds = fit_core_seconds if grow is None else _timed(grow, trial, tuning)[2]
        began = time.perf_counter()
        decisions = classifier.decide(trial.test_inputs)
        predict_seconds = time.perf_counter() - began
        probable, within = getattr(classifier, "probable", None), getattr(classifier, "within", None)
        began, cores_began = time.perf_counter(), time.process_time()
        probabilities = widths = None
        if within is not None:
            probabilities, widths = within(trial.test_inputs)
        elif probable is not None:
            probabilities = probable(trial.test_inputs)
        probability_seconds = time.perf_counter() - began
        core_seconds = time.process_time() - cores_began
    return {
        **asdict(unit),
        "folder": None,
        "n": trial.n,
        "n_test": len(trial.test_codes),
        "d": trial.inputs.shape[1],
        **scores(decisions, trial.test_codes),
        **({} if probabilities is None else probability_scores(probabilities, trial.test_codes)),
        "size": classifier.size,
        "tune_seconds": tune_seconds,
        "fit_seconds": fit_seconds,
        "fit_core_seconds": fit_core_seconds,
        "grow_seconds": grow_seconds,
        "predict_seconds": predict_seconds,
        "probability_seconds": None if probabilities is None else probability_seconds,
        "probability_core_seconds": None if probabilities is None else core_seconds,
        "width_mean": None if widths is None else float(widths.mean()),
        "width_largest": None if widths is None else float(widths.max()),
        "found": tuning,
        **getattr(classifier, "figures", {}),
    }


def _timed(
    train: Callable[[Trial, dict[str, Any]], Classifier], trial: Trial, tuning: dict[str, Any]
) -> tuple[Classifier, float, float]:
    """The classifier, and the medians of the seconds that it took: by the clock, and of this process's cores."""
    seconds: list[float] = []
    core_seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < QUICK_SECONDS:
        began, cores_began = time.perf_counter(), time.process_time()
        classifier = train(trial, tuning)
        seconds.append(time.perf_counter() - began)
        core_seconds.append(time.process_time() - cores_began)
    return classifier, float(np.median(seconds)), float(np.median(core_seconds))


def scores(decisions: FloatArray, codes: IntArray) -> dict[str, float]:
    """Error rate and balanced error rate of decisions (t,); class 1 where they are not negative."""
    wrong = (decisions >= 0.0) != (codes == 1)
    rates = [float(np.mean(wrong[codes == code])) for code in np.unique(codes)]
    return {"error": float(np.mean(wrong)), "balanced_error": float(np.mean(rates))}


def probability_scores(probabilities: FloatArray, codes: IntArray) -> dict[str, float | None]:
    """Log loss, Brier score and expected calibration error of probabilities of class 1 (t,), the last in 15 bins."""
    both = np.column_stack([1.0 - probabilities, probabilities])
    tally = ClassTally(("-1", "+1"))
    tally.add(codes, (probabilities >= 0.5).astype(np.int64), probabilities=both)
    metrics = tally.metrics()
    return {"log_loss": metrics.log_loss, "brier": metrics.brier, "calibration_error": metrics.ece}


def measure_all(
    units: Sequence[Unit], record: Record, processes: int, reporter: Reporter, label: str
) -> dict[str, dict[str, Any]]:
    """Measure what is not on record; return figures of all units by key.

    A method that fails on a split has "failed" with the reason in place of its figures, and is warned of.
    """
    found = {unit.key: earlier for unit in units if (earlier := record.get(unit.key)) is not None}
    if found:
        reporter.note(f"{label}: {len(found):,} of {len(units):,} on record")
    with reporter.work(label) as show:
        show(WorkProgress("begun", len(found), len(units), "runs"))
        for unit, figures in _run([unit for unit in units if unit.key not in found], processes):
            if "failed" in figures:
                reporter.warn(f"{unit.key}: {figures['failed']}")
            else:
                record.add(unit.key, figures)
            found[unit.key] = figures
            show(WorkProgress(unit.key, len(found), len(units), "runs"))
    return found


def _run(units: list[Unit], processes: int) -> Iterator[tuple[Unit, dict[str, Any]]]:
    if processes < 2 or len(units) < 2:
        for unit in units:
            yield unit, _guarded(unit)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(units)), mp_context=context) as pool:
        waiting: dict[Future[dict[str, Any]], Unit] = {pool.submit(_guarded, unit): unit for unit in units}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _guarded(unit: Unit) -> dict[str, Any]:
    """A unit whose method or peer breaks down does not take the table down; bad input and missing extras do."""
    try:
        return measure(unit)
    except (NumericalError, PeerError, np.linalg.LinAlgError) as error:
        return {**asdict(unit), "failed": f"{type(error).__name__}: {error}"}


@lru_cache(maxsize=2)
def _samples(problem: ClassProblem, folder: str | None, seed: int, split: int) -> Samples:
    return load(problem, None if folder is None else Path(folder), seed, split)
