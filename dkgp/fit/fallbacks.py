"""Steps of a fit that end in time: each tries the best way first, and falls back to a cheaper one.

| step | falls back to |
|---|---|
| tune | the best values so far, then few samples and one kernel |
| train | a looser tolerance or the best values so far, then the next smaller model |
| predict | a wider gap of variances, then approximate ones (VIF), then a sample of the test rows, then means alone |

The document of a step lists everything that was given up, in `given_up`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dkgp.commands.predict.job import PredictJob
from dkgp.commands.recipe import recipe_of
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.commands.tune import AUTO_KERNEL, TuneJob
from dkgp.data import open_dataset, write_rows
from dkgp.data.remote.storage import exists
from dkgp.fit.budget import ATTEMPT, LEAST, LEAST_KERNEL, LEAST_TRAINING, MOST_TRAINING, TUNE, TUNE_END, Attempt, Budget
from dkgp.fit.classifiers import LATE, STOPPED
from dkgp.fit.job import unfinished_kernels
from dkgp.fit.ways import TrainingJob, Way, spoken
from dkgp.models.tuning.tune import DEFAULT_SUBSET
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.warm_up import compile_seconds, pieces_of_model

# Samples and kernel of the fallback of tuning.
FEW_SAMPLES, FEW_SAMPLES_KERNEL = 500, "rbf"
# Largest gradient of a solve that ended early, in standard deviations of the target, whose model is used.
LOOSEST = 0.02
# Share of the time to stop at which a solve should finish.
FINISH = 0.85
# Test samples of a sample, if the speed is unknown, and at least.
SAMPLED, FEWEST_SAMPLED = 200, 50
# Share of the remaining time for the first variances, and for the means of a sample, which have no alternative.
FIRST_VARIANCES = 0.6
# A smaller model is an alternative if its training takes at most this share. Small models share the fixed costs.
QUICKER = 0.8
# Seconds of the limit that predictions have at least, however long training took.
LEAST_PREDICTING = 0.05


class Fallbacks:
    """The steps of a fit that have alternatives.

    Parameters
    ----------
    budget : Budget
        The time of the fit.
    seed : int
        Seed of samples of the test rows.
    """

    def __init__(self, budget: Budget, seed: int, reporter: Reporter) -> None:
        self._budget, self._seed, self._reporter = budget, seed, reporter
        self._given_up: list[dict[str, str]] = []

    def tune(self, job: TuneJob) -> Document:
        """Tune within the share of the time; on few samples if there is no result by then."""
        budget, limit = self._budget, self._budget.seconds
        # Leave later steps the time that they take at least.
        least = budget.least("choose", compile_seconds(pieces_of_model("sparse", LEAST_KERNEL)))
        finish = min(TUNE * limit, (TUNE + TUNE_END) * limit - budget.elapsed, limit - least - budget.elapsed)
        shortest = budget.slowness() * LEAST["tune"]
        if job.resume and exists(job.comparison_url):
            finish = max(finish, shortest)  # finished kernels need no search
        if finish < shortest:
            self._give_up("tune", f"hyperparameters are tuned on at most {FEW_SAMPLES} samples")
            return self._tune_on_few(job, shortest)
        attempt = budget.attempt(lambda: self._run(job), finish, finish + TUNE_END * limit)
        if attempt.document is None:
            self._give_up(
                "tune",
                f"tuning was stopped after {spoken(attempt.seconds)} without a result ({attempt.lack}); "
                f"the hyperparameters are from a short search on {FEW_SAMPLES} samples",
            )
            return self._tune_on_few(job, max(shortest, TUNE_END * limit))
        if attempt.finished_early and not attempt.document["converged"]:
            text = (
                f"the search for hyperparameters ended after {attempt.document['evaluations']} evaluations and "
                f"{spoken(attempt.seconds)}; the best values so far are used"
            )
            self._given_up.append({"step": "tune", "text": text})  # the search has warned of it
        unfinished = unfinished_kernels(attempt.document.get("comparison") or {"kernels": []})
        if unfinished:  # the search has warned of it
            self._given_up.append({"step": "tune", "text": f"the comparison of kernels is incomplete: {unfinished}"})
        return self._ended(attempt)

    def _tune_on_few(self, job: TuneJob, seconds: float) -> Document:
        """Search one kernel on few samples, without the evidence of all samples."""
        kernel = FEW_SAMPLES_KERNEL if job.kernel == AUTO_KERNEL else job.kernel
        small = replace(job, kernel=kernel, subset=FEW_SAMPLES, all_samples="none", resume=False)
        return self._ended(self._budget.attempt(lambda: self._run(small), seconds))

    def train(
        self, way: Way, training: Callable[[Way, bool], TrainingJob], smaller: Callable[[Way], Sequence[Way]]
    ) -> Document:
        """Train the model of a way, or a smaller one; the document has the `way` that was taken.

        Parameters
        ----------
        training : callable
            Returns the job of a way, and whether it is the first attempt.
        smaller : callable
            Returns the smaller ways with forecasts for the current load, largest first.
        """
        budget = self._budget
        share, first = way.train_seconds / max(way.seconds, 1e-9), True
        while True:
            others = [other for other in smaller(way) if _is_quicker(other, way)]
            stop = (min(MOST_TRAINING, max(LEAST_TRAINING, share)) if first else ATTEMPT) * budget.for_model
            job = training(way, first)
            attempt = budget.attempt(partial(self._run, job), FINISH * stop, stop if others else None)
            document = attempt.document
            if document is not None and (not others or _is_usable(document, attempt)):
                if attempt.finished_early and not document["converged"]:
                    self._give_up(
                        "train",
                        f"training of the {way.words} was stopped after {spoken(attempt.seconds)}, before it "
                        "reached its tolerance"
                        + (
                            f"; the largest residual is {document['gradient_inf_norm']:.2g}"
                            if _gradient(document)
                            else ""
                        ),
                    )
                if document.get("ended_early"):
                    self._give_up(
                        "train",
                        f"the search of the {way.words} ended after {spoken(attempt.seconds)}; the best values so far "
                        "are used",
                    )
                return {**self._ended(attempt), "way": way}
            slowness = max(1.0, attempt.seconds / max(way.train_seconds, 1e-9))
            needed = max(attempt.seconds, way.train_seconds)
            taken = next((w for w in others if w.seconds * slowness <= ATTEMPT * budget.for_model), others[-1])
            self._give_up(
                "train",
                f"training of the {way.words} was stopped after {spoken(attempt.seconds)} of at least {spoken(needed)}"
                f"{f' ({attempt.lack})' if attempt.lack else ''}; the next model is the {taken.words}",
            )
            way, first = taken, False

    def predict(self, job: PredictJob, way: Way, sample: str) -> Document:
        """Predict; the document has the `way` of the variances, and the `dataset` that was predicted.

        Parameters
        ----------
        sample : str
            Where to write a sample of the test rows.
        """
        budget, tests = self._budget, open_dataset(job.dataset).n_samples
        assert job.variance is None or isinstance(job.variance, VarianceSettings)
        todo = way.variants(job.variance)
        needed: float | None = None
        for number, variant in enumerate(todo):
            if number and needed is None and variant.needs_factor:
                continue  # preparations alone took too long, and a wider gap has the same
            left = max(budget.for_predictions, LEAST_PREDICTING * budget.seconds)
            stop, least = (ATTEMPT if number else FIRST_VARIANCES) * left, budget.slowness() * LEAST["predict"]
            last = number == len(todo) - 1
            if number and not last and stop < least:
                continue  # the fixed costs alone take longer
            stop = max(stop, least)
            now = replace(job, variance=variant.variance, resume=job.resume and number == 0)
            if variant.sampled:
                count = SAMPLED if needed is None else int(ATTEMPT * stop / needed * tests)
                count = min(tests, max(FEWEST_SAMPLED, count))
                rows = np.sort(np.random.default_rng([self._seed, 11]).permutation(tests)[:count])
                now = replace(now, dataset=write_rows(open_dataset(job.dataset), rows, sample).url)
            attempt = budget.attempt(partial(self._run, now), stop, None if last else stop)
            if attempt.document is not None:
                if number:
                    rows_words = f" ({count:,} of {tests:,} rows, drawn at random)" if variant.sampled else ""
                    self._give_up("predict", f"the fit predicted {variant.words}{rows_words}")
                return {**self._ended(attempt), "way": way.predicting(variant.variance)}
            needed = attempt.needed
            expected = "" if needed is None else f"; at the measured speed it needs {spoken(needed)}"
            self._give_up(
                "predict",
                f"predicting {variant.words} was stopped after {spoken(attempt.seconds)} ({attempt.lack}){expected}",
            )
        raise AssertionError("the last variant has no limit")

    def _run(self, job: Any) -> Document:
        document: Document = recipe_of(job).run(job, self._reporter)
        return document

    def _give_up(self, step: str, text: str) -> None:
        self._reporter.warn(f"time limit: {text}")
        self._given_up.append({"step": step, "text": text})

    def _ended(self, attempt: Attempt) -> Document:
        """Return the document of an attempt, with everything that the step gave up."""
        assert attempt.document is not None
        given_up, self._given_up = self._given_up, []
        return {**attempt.document, "given_up": given_up}


def given_up(documents: Sequence[Document | None]) -> Iterator[dict[str, str]]:
    """Yield everything that the steps gave up."""
    for document in documents:
        yield from (document or {}).get("given_up", [])


def _is_quicker(other: Way, way: Way) -> bool:
    """Return True for an alternative; a smaller pool is one even if the forecasts are almost all fixed costs."""
    if way.name == other.name == "fixed-size":
        return True
    return other.train_seconds <= QUICKER * way.train_seconds


def smaller_subset(tuned: Document | None, n: int) -> Document:
    """Return the entry of a search that had time for a smaller subset only, in the words of its note."""
    size, wanted = (tuned or {}).get("subset_size"), min(n, DEFAULT_SUBSET)
    if tuned is None or size is None or size >= wanted or _fell_back(tuned):
        return {}
    text = f"the time that is left suffices for a subset of {size:,} samples, not {wanted:,}"
    return {"given_up": [{"step": "tune", "text": text}]}


def _fell_back(tuned: Document) -> bool:
    """Return True if tuning ended in the short search, whose entry names its samples."""
    return any(f"{FEW_SAMPLES} samples" in item["text"] for item in tuned.get("given_up") or ())


def methods_given_up(methods: Document | None) -> Document:
    """Return the entries of the methods of classifiers that were not compared for lack of time."""
    left_out = dict((methods or {}).get("left_out") or {})
    texts = [f"method {name} is not compared: {LATE}" for name, reason in left_out.items() if reason == LATE]
    stopped = dict.fromkeys(reason for reason in left_out.values() if reason.startswith(STOPPED))
    texts += [f"the methods were not compared, because {reason}" for reason in stopped]
    return {"given_up": [{"step": "compare", "text": text} for text in texts]}


def _gradient(document: Document) -> float | None:
    gradient = document.get("gradient_inf_norm")
    return None if gradient is None else float(gradient)


def _is_usable(document: Document, attempt: Attempt) -> bool:
    """Return True for a model that a fit goes on with; only time may end a solve in a model that is not."""
    if document["converged"] or not attempt.finished_early:
        return True
    return (_gradient(document) or math.inf) <= LOOSEST
