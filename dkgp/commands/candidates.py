"""The part of `dkgp tune` that follows the subset: other candidates, and the choice among them by held-out samples.

The order is that of the cost: the subset's optimum, the evidence of all samples (at most `MOST_SAMPLES`) from there,
and another kernel if the noise stopped at its bound or error bars fail. Last, the variances are scaled if that gains.
If the subset has nearly all samples, a free amplitude is the other candidate, and leave-one-out predictions judge.
Without a limit, the evidence of all samples costs about as much as the subset's search, because it has a good start and
a looser tolerance. With one, a forecast decides on the number of samples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.memory import memory_budget
from dkgp.commands.run import Run
from dkgp.data import Dataset
from dkgp.data.types import IntArray
from dkgp.errors import InputError, MemoryBudgetError, NumericalError
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.limits import measured_slowness, seconds_to_finish, seconds_to_stop, should_finish
from dkgp.models import Hyperparameters, RunContext
from dkgp.models.refinement.candidates import (
    MOST_SAMPLES,
    Candidate,
    Judge,
    Judged,
    best_of,
    draw_held_out,
    held_out_count,
    is_at_noise_bound,
    leave_one_out,
)
from dkgp.models.sparse.search import BASIS_SIZES, plan_bound, tune_by_bound
from dkgp.models.tuning.search import SearchSettings
from dkgp.models.tuning.subsets import plan_subsets
from dkgp.models.tuning.tune import tune_dataset
from dkgp.models.warm_up import compile_seconds, pieces_of_model
from dkgp.solvers.base import Clock

# Fewer others than this multiple of the subset add too little to its evidence; fewer samples than these judge nothing.
WORTH, LEAST_SAMPLES = 1.5, 30
# Samples for each feature from which on leave-one-out predictions may judge: with fewer, the search fits them.
LEAST_FOR_FEATURE = 10
# Limits of a search that starts from a good point, and the number of evaluations that a forecast expects.
TOLERANCE, MOST_EVALUATIONS, EVALUATIONS = 1e-3, 60, 30
# Nominal seconds: of an evaluation for each sample, of a judge for each sample and each held-out sample; and of an
# evaluation on a subset of m samples, by m^3 and m^2.
SAMPLE, JUDGING, HELD_OUT = 1e-4, 3e-5, 6e-4
CUBIC, SQUARE = 4.5e-11, 3e-8
# Share of the time until all work ends that a judgement may take, and multiple of its forecast that a search leaves.
JUDGED_SHARE, LEFT = 0.8, 1.5
# Evaluations that a search on a subset should have time for, and the smaller subsets that a time limit leads to.
LEAST_SEARCH, SMALLER_SUBSETS = 10, (1000, 500)
# Kernels that are tried if the noise stopped at its bound or error bars fail: one that is rougher.
ROUGHER = {"matern32": "matern12"}
SIMILAR = ("rbf", "matern12", "matern32", "matern52")


def evaluation_seconds(size: int) -> float:
    """Return the nominal seconds of an evaluation on a subset of this size."""
    return CUBIC * size**3 + SQUARE * size**2


def affordable_subset(size: int, seconds: float, slowness: float) -> int:
    """Return `size`, or the largest smaller subset whose search fits into the time; the smallest if none does.

    `slowness` is the time of evaluations over the nominal one.
    """
    sizes = [size, *(other for other in SMALLER_SUBSETS if other < size)]
    return next((one for one in sizes if LEAST_SEARCH * slowness * evaluation_seconds(one) <= seconds), sizes[-1])


def affordable(n: int, subset: int, seconds: float | None, slowness: float, held_out: int) -> int:
    """Return the number of samples whose evidence fits into the time; 0 if there are too few to be worth it.

    Parameters
    ----------
    n, subset
        Samples besides those held out, and of the subset.
    seconds
        Time limit for the search and two judgements; None for no limit.
    slowness
        Measured time of the subset's evaluations over the nominal one.
    """
    most = min(n, MOST_SAMPLES)
    if seconds is not None:
        most = min(most, int((seconds - 2.0 * judging(n, slowness, held_out)) / (slowness * SAMPLE * EVALUATIONS)))
    return most if most >= WORTH * subset else 0


def judging(n: int, slowness: float, held_out: int) -> float:
    """Return the expected seconds of a judgement of held-out samples by n others."""
    return slowness * (JUDGING * min(n, MOST_SAMPLES) + HELD_OUT * held_out)


def judging_reserve(n: int, subset: int) -> float:
    """Return the seconds that a search on a subset leaves to a judgement: at most half its time, 0 without a limit."""
    remaining, held_out = seconds_to_finish(), held_out_count(n, subset)
    if math.isinf(remaining) or n - held_out < WORTH * subset:
        return 0.0
    return min(LEFT * judging(n - held_out, measured_slowness(), held_out), 0.5 * max(0.0, remaining))


def forecast(samples: int, n: int, slowness: float, held_out: int) -> float:
    """Return the expected seconds of the evidence of so many samples of n, and of two judgements."""
    return slowness * SAMPLE * EVALUATIONS * samples + 2.0 * judging(n, slowness, held_out)


class Choice:
    """Candidates after a subset's optimum, and the choice among them.

    Parameters
    ----------
    run : Run
        The run of `dkgp tune`: its job, its data and its reporter.
    tuned : Hyperparameters
        The optimum of the subset.
    """

    def __init__(self, run: Run, tuned: Hyperparameters, executor: BlockExecutor) -> None:
        self._run, self._job, self._dataset, self._reporter = run, run.job, run.dataset, run.reporter
        self._context, self._clock = RunContext(executor), Clock()
        self._judged: list[Judged] = []
        self._not_tried: list[dict[str, str]] = []
        self._tuned, self._limit = tuned, run.job.all_samples_seconds
        size = tuned.subset_size or 1
        nominal = max(1, tuned.evaluations or 1) * evaluation_seconds(size)
        self._slowness = max(1.0, (tuned.seconds or 0.0) / nominal)

    @property
    def _subset(self) -> str:
        """The first candidate's samples in words."""
        n = self._dataset.n_samples
        size = self._tuned.subset_size or n
        return f"all {n:,} samples" if size >= n else f"a subset of {size:,} samples"

    def best(self) -> Hyperparameters:
        """Return the best candidate, with the record of all."""
        n, size = self._dataset.n_samples, self._tuned.subset_size or self._dataset.n_samples
        first = Candidate(self._tuned, self._subset)
        held_out = held_out_count(n, size)
        if n < LEAST_SAMPLES:
            return self._tuned
        if n - held_out < WORTH * size:
            rows = plan_subsets(n, size, seed=self._job.seed).subset(0)
            self._judged.append(leave_one_out(self._dataset, rows, first))
            self._reporter.note(f"{first.origin}: {figures(self._judged[-1])}")
            self._free_amplitude(rows, first.origin)
            return self._taken(None, len(rows))
        others = n - held_out
        # Held-out samples tell at little cost whether error bars have the size of the errors.
        code = measured_slowness() * compile_seconds(pieces_of_model("vif", self._tuned.kernel))
        expected = judging(others, self._slowness, held_out)
        # A judgement that ends by force would take the subset's result with it.
        limits = math.inf if self._limit is None else self._limit, JUDGED_SHARE * seconds_to_stop() - code
        if expected > min(limits):
            self._skip_all_samples(others, size, held_out)
            return replace(self._tuned, candidates=self._record(None, 0, 0))
        samples = affordable(others, size, self._limit, self._slowness, held_out)
        if not samples:
            self._skip_all_samples(others, size, held_out)
        return self._compared(first, draw_held_out(n, size, self._job.seed), samples)

    def _skip_all_samples(self, others: int, size: int, held_out: int) -> None:
        expected = forecast(int(WORTH * size), others, self._slowness, held_out)
        self._skip("the likelihood of all samples", _too_long(expected, self._limit))

    def _free_amplitude(self, rows: IntArray, origin: str) -> None:
        """Add the subset's optimum with a free amplitude, from the optimum with amplitude 1."""
        job, start, origin = self._job, self._tuned, f"{origin}, amplitude tuned too"
        chosen = job.learn_variance or job.bounds or job.fixed or job.priors
        if chosen or start.kernel.amplitude_index is None or not start.kernel.stationary:
            return
        if len(rows) < LEAST_FOR_FEATURE * self._dataset.n_features:
            self._skip(origin, f"it needs at least {LEAST_FOR_FEATURE} samples for each feature")
            return
        if should_finish() or (self._limit is not None and (start.seconds or 0.0) > self._limit):
            self._skip(origin, "the time limit is over")
            return
        with self._reporter.search("tune the amplitude too") as progress:
            try:
                tuned = tune_dataset(
                    self._dataset,
                    objective=job.of_subsets,
                    executor=self._context.executor,
                    start=start,
                    subset=len(rows),
                    seed=job.seed,
                    learn_variance=True,
                    tolerance=job.tolerance,
                    seconds=self._limit,
                    progress=progress,
                )
            except NumericalError as error:
                self._skip(origin, f"it failed: {error}")
                return
        self._judged.append(leave_one_out(self._dataset, rows, Candidate(tuned, origin)))
        self._reporter.note(f"{origin}: {figures(self._judged[-1])}")

    def _compared(self, first: Candidate, held_out: IntArray, samples: int) -> Hyperparameters:
        judge = Judge.of(self._dataset, held_out, MOST_SAMPLES, self._job.seed)
        self._add(judge, first)
        if not samples:
            return self._taken(judge, samples)
        training = judge.training
        if samples < training.n_samples:
            training = Judge.of(self._dataset, held_out, samples, self._job.seed).training
        self._search(judge, training, self._tuned, "")
        best = best_of(self._judged)
        at_bound = is_at_noise_bound(best.candidate.hyperparameters)
        if at_bound or not (best.rescaled() or best).is_calibrated:
            other = rougher(best.candidate.hyperparameters.kernel)
            if other is not None:
                start = Hyperparameters(other, max(1e-3, best.candidate.hyperparameters.noise_variance))
                start = replace(start, feature_names=self._tuned.feature_names)
                self._search(judge, training, start, f", {other.type_name}")
        return self._taken(judge, samples)

    def _search(self, judge: Judge, training: Dataset, start: Hyperparameters, more: str) -> None:
        """Add the optimum of the evidence of `training`, if time and memory allow it."""
        n, job = training.n_samples, self._job
        origin = f"the likelihood of {n:,} samples{more}"
        size, (resident, budget) = min(BASIS_SIZES["vif"], n), memory_budget()
        left = None if self._limit is None else self._limit - self._clock.seconds
        expected = forecast(n, judge.training.n_samples, self._slowness, len(judge.inputs))
        if should_finish():
            self._skip(origin, "the time limit is over")
            return
        if left is not None and left < 0.5 * expected:
            self._skip(origin, _too_long(expected, left))
            return
        self._reporter.note(f"continuing with {origin}")
        try:
            plan = plan_bound(n, training.n_features, size, judge.targets.shape[1], self._context.executor, 0, "vif")
            plan.require(budget, resident)
            with self._reporter.search("all samples") as progress:
                settings = SearchSettings(
                    job.seed, True, max(TOLERANCE, job.tolerance), 1, MOST_EVALUATIONS, progress, left
                )
                choices = replace(job.choices(start), kernel=None)
                found = tune_by_bound(
                    training,
                    self._context,
                    choices,
                    settings,
                    objective="vif",
                    basis_size=size,
                )
        except MemoryBudgetError as error:
            self._skip(origin, str(error))
        except (InputError, NumericalError) as error:
            self._skip(origin, f"it failed: {error}")
        else:
            # The samples of the basis have other numbers in the data set.
            sparse = None if found.sparse is None else {**found.sparse, "samples": None}
            self._add(judge, Candidate(replace(found, sparse=sparse), origin))

    def _add(self, judge: Judge, candidate: Candidate) -> None:
        judged = judge.judge(candidate, self._context)
        self._judged.append(judged)
        self._reporter.note(f"{candidate.origin}: {figures(judged)}")

    def _skip(self, origin: str, reason: str) -> None:
        self._not_tried.append({"from": origin, "reason": reason})
        self._reporter.note(f"not tried: {origin} ({reason})")

    def _taken(self, judge: Judge | None, samples: int) -> Hyperparameters:
        """Return the best candidate, with its variances scaled if that gains and the user fixed nothing."""
        best, job, held_out = best_of(self._judged), self._job, 0 if judge is None else len(judge.inputs)
        again = None if job.bounds or job.fixed or job.priors else best.rescaled()
        if again is not None:
            best = again
            self._judged.append(again)
        if len(self._judged) == 1 and not held_out and not self._not_tried:
            return self._tuned
        self._reporter.note(f"chosen hyperparameters: '{best.candidate.origin}'{self._because(best)}")
        taken, first = best.candidate.hyperparameters, self._tuned
        kept = {name: getattr(first, name) for name in ("subset_size", "subsets", "n_samples", "comparison", "scores")}
        warnings = list(taken.warnings)
        if is_at_noise_bound(taken) and not any("noise_variance" in text for text in warnings):
            warnings.append(NO_NOISE.format(taken.noise_variance))
        if not best.is_calibrated and best.squared is not None:
            source = "on held-out training samples" if held_out else "in leave-one-out predictions"
            warnings.append(f"error bars may not be calibrated: {figures(best)} {source}; expected coverage 0.95")
        return replace(
            taken,
            **kept,
            seconds=(first.seconds or 0.0) + self._clock.seconds,
            candidates=self._record(best, held_out, samples if judge is None else judge.training.n_samples, samples),
            warnings=tuple(warnings),
        )

    def _because(self, best: Judged) -> str:
        """Return the reason for a choice whose NLPD is not the smallest; empty if it is."""
        smaller = [other for other in self._judged if other.nlpd is not None and other.nlpd < (best.nlpd or math.inf)]
        if not smaller or best.nlpd is None:
            return ""
        least = min(smaller, key=lambda judged: judged.nlpd or 0.0)
        return f". The NLPD of '{least.candidate.origin}' is smaller, {least.nlpd:.4f}, but not clearly"

    def _record(self, best: Judged | None, held_out: int, samples: int, learned_from: int = 0) -> dict[str, Any]:
        return {
            "taken": self._subset if best is None else best.candidate.origin,
            "held_out": held_out,
            "samples": samples,
            "learned_from": learned_from,
            "candidates": [judged.row() for judged in self._judged],
            "not_tried": self._not_tried,
        }


def _too_long(expected: float, remaining: float | None) -> str:
    """Return the reason for a candidate that would exceed the time limit."""
    return f"forecast {expected:.3g} s, more than the remaining time of {max(0.0, remaining or 0.0):.3g} s"


NO_NOISE = (
    "noise_variance stopped at its lower bound, {:.3g}. Either the targets have no noise, or the kernel overfits them; "
    "then error bars between samples are too narrow"
)


def figures(judged: Judged) -> str:
    """Return the figures of a candidate in a few words."""
    if judged.nlpd is None:
        return "could not predict"
    return (
        f"NLPD {judged.nlpd:.4f} nats per sample, RMSE {judged.rmse:.4f} standard deviations of the target, "
        f"coverage of 95 % intervals {judged.coverage_95:.4f}, squared error / variance {judged.squared:.3g} on "
        "average (calibrated: 1)"
    )


def rougher(kernel: Kernel) -> Kernel | None:
    """Return a rougher kernel with the same scales; None for a kernel that has no such sibling."""
    name = ROUGHER.get(kernel.type_name, "matern32")
    if kernel.type_name not in SIMILAR or name == kernel.type_name or kernel.type_name == "matern12":
        return None
    return kernel_from_json({**kernel.to_json(), "type": name})
