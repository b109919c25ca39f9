"""One tuning run: from subsets and choices to hyperparameters, over an executor."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor
from dkgp.cluster.threads import available_cores, single_threaded_blas
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel, fold_white, parse_kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.kernel_family import family_bytes, family_of
from dkgp.models.tuning.laplace.scores import label_fold_task, label_holdout_task, label_scores_of
from dkgp.models.tuning.likelihood_search import (
    LikelihoodSearch,
    Optimum,
    SearchSettings,
    fallback_starting_points,
    first_point,
    starting_points,
)
from dkgp.models.tuning.marginal_likelihood import KernelFamily, projected_peak_bytes
from dkgp.models.tuning.priors import LogNormal
from dkgp.models.tuning.scores import check_folds, fold_task, holdout_task, scores_of
from dkgp.models.tuning.search_space import SearchSpace, search_space
from dkgp.models.tuning.subsets import SubsetPlan, Subsets
from dkgp.models.tuning.tasks import (
    LABEL_OBJECTIVES,
    OBJECTIVES,
    LabelLikelihood,
    Objective,
    TuningContext,
    evaluate_task,
    label_evaluate_task,
    summary_task,
)
from dkgp.models.tuning.warnings import is_mere_noise, tuning_warnings

__all__ = ["Choices", "check_tuning", "held_amplitude", "prepared", "projected_tuning_bytes", "run_tuning"]


@dataclass(frozen=True)
class Choices:
    """Choices that `tune` documents under the same names; `InputError` for an objective that does not exist.

    With the `likelihood` of labels their evidence in Laplace's approximation is maximised: the amplitude is then always
    free, since it stands for how steeply probabilities rise, and there is no noise.
    """

    kernel: Kernel | str | None = None
    objective: Objective = "likelihood"
    bounds: Mapping[str, tuple[float, float]] | None = None
    fixed: Mapping[str, float] | None = None
    priors: Mapping[str, LogNormal | str] | None = None
    start: Hyperparameters | None = None
    folds: int | None = None
    likelihood: LabelLikelihood | None = None

    def __post_init__(self) -> None:
        if self.likelihood is not None:
            if self.likelihood not in LABEL_OBJECTIVES:
                known = ", ".join(LABEL_OBJECTIVES)
                raise InputError(f"the likelihood of labels must be one of {known}; got {self.likelihood!r}")
            if self.objective != "likelihood":
                raise InputError(
                    f"the objective {self.objective!r} is of regressions; leave it out with the likelihood of labels"
                )
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}; got {self.objective!r}")


def run_tuning(
    source: Subsets,
    feature_names: tuple[str, ...],
    choices: Choices,
    settings: SearchSettings,
    executor: BlockExecutor | None,
) -> Hyperparameters:
    """Search, score, and say what was found; parameters and errors are those of `tune`."""
    started, plan = time.perf_counter(), source.plan
    check_folds(choices.folds, plan.size)
    of_labels = choices.likelihood is not None
    if of_labels:
        settings = replace(settings, learn_variance=True)
    kernel, family, space, first = prepared(feature_names, choices, settings)
    context = TuningContext(
        f"tune-{uuid.uuid4().hex[:12]}",
        source,
        kernel,
        settings.learn_variance,
        feature_names,
        choices.objective,
        choices.likelihood,
    )
    with ExitStack() as stack:
        # A second BLAS thread gains a tenth; on a busy machine BLAS threads waiting for each other cost many times
        # that.
        stack.enter_context(single_threaded_blas())
        stack.callback(context.forget)
        rounds = _Rounds(context, _own(plan.count, stack) if executor is None else executor)
        summaries = rounds.run(summary_task)
        search = LikelihoodSearch(rounds.likelihood, space, settings)
        for parameters in starting_points(first, space, settings):
            search.run(parameters)
        if is_mere_noise(search.best, summaries):
            for parameters in fallback_starting_points(first, space):
                search.run(parameters)
                if not is_mere_noise(search.best, summaries):
                    break
        best = search.best
        if best is None:
            raise NumericalError(
                "the kernel matrix was not positive definite at any starting point. Look for inputs that are not "
                "standardised, or give the hyperparameters yourself"
            )
        scores = _scores(rounds, best, plan, choices)
    is_likelihood = choices.objective == "likelihood"
    tuned = space.tuned(best.parameters, space.within(first), feature_names)
    messages = tuning_warnings(space, best, summaries, settings, amplitude=held_amplitude(kernel, settings))
    if plan.overlaps:
        messages.append(
            f"{plan.count} subsets of {plan.size} samples share some of the {plan.n_samples} samples; fewer or smaller "
            "subsets would not"
        )
    return Hyperparameters(
        kernel=family.kernel(best.parameters[:-1]),
        noise_variance=math.exp(best.parameters[-1]),
        log_marginal_likelihood=best.log_likelihood if is_likelihood else None,
        evaluations=search.evaluations,
        seconds=time.perf_counter() - started,
        converged=best.converged,
        subset_size=plan.size,
        n_samples=plan.n_samples,
        subsets=plan.count,
        objective=choices.objective,
        likelihood=choices.likelihood,
        leave_one_out_log_likelihood=None if is_likelihood else best.log_likelihood,
        log_prior=best.log_prior if space.priors else None,
        parameters=tuned[:-1] if of_labels else tuned,
        scores=scores or None,
        seed=settings.seed,
        feature_names=feature_names,
        warnings=tuple(messages),
    )


def check_tuning(plan: SubsetPlan, feature_names: tuple[str, ...], choices: Choices, settings: SearchSettings) -> None:
    """Refuse what `tune` would refuse, before anything is read or started; errors as there."""
    check_folds(choices.folds, plan.size)
    prepared(feature_names, choices, settings)


def prepared(
    feature_names: tuple[str, ...], choices: Choices, settings: SearchSettings
) -> tuple[Kernel, KernelFamily, SearchSpace, FloatArray]:
    """Return the kernel to tune, its parameters, what may be moved, and where the search starts; errors of `tune`."""
    kernel, noise_variance = _start(choices, feature_names)
    of_labels = choices.likelihood is not None
    # Names, bounds and starting values do not depend on the rows, which only workers hold.
    learn_variance = settings.learn_variance or of_labels
    family = family_of(kernel, np.zeros((2, len(feature_names))), learn_variance, feature_names)
    space = search_space(
        family,
        feature_names,
        bounds=choices.bounds,
        fixed=choices.fixed,
        priors=choices.priors,
        has_noise=not of_labels,
    )
    return kernel, family, space, first_point(family.initial(), noise_variance)


def projected_tuning_bytes(
    subset_size: int,
    n_targets: int,
    feature_names: tuple[str, ...],
    *,
    kernel: Kernel | str | None = None,
    start: Hyperparameters | None = None,
    objective: Objective = "likelihood",
    likelihood: LabelLikelihood | None = None,
    subsets: int = 1,
    at_once: int = 1,
) -> int:
    """Bytes that `tune` holds at its peak in one process that evaluates `at_once` subsets at the same time.

    The other parameters are those of `tune`, and so are the errors.
    """
    chosen, _ = _start(Choices(kernel, objective, start=start, likelihood=likelihood), feature_names)
    kind = OBJECTIVES[objective] if likelihood is None else LABEL_OBJECTIVES[likelihood]
    matrices = kind.matrices(n_targets)
    common = projected_peak_bytes(
        subset_size, len(feature_names), n_targets, subsets=subsets, at_once=at_once, matrices=matrices
    )
    return common + at_once * family_bytes(chosen, subset_size)


class _Rounds:
    """Runs one task for each subset and hands the results back in the subsets' order."""

    def __init__(self, context: TuningContext, executor: BlockExecutor | None) -> None:
        self._context, self._executor = context, executor
        # Modes of labels travel here and back, so that no bit depends on which worker found them.
        self._modes: tuple[Any, ...] = (None,) * context.source.plan.count

    def run(self, task: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
        """Return one result for each subset."""
        subsets = list(range(self._context.source.plan.count))
        if self._executor is None:
            return task(self._context, *arguments, subsets)
        groups = [[index] for index in subsets]
        name = f"tune-{task.__name__.removesuffix('_task')}"
        return self._executor.submit(name, task, (self._context, *arguments), groups).result()

    def likelihood(self, parameters: FloatArray) -> tuple[float, FloatArray] | None:
        """Sum of the subsets' values and gradients, or None where one of them does not exist."""
        if self._context.likelihood is None:
            outcomes = self.run(evaluate_task, parameters)
        else:
            found = self.run(label_evaluate_task, parameters, self._modes)
            outcomes = [outcome for outcome, _ in found]
            self._modes = tuple(
                before if mode is None else mode for before, (_, mode) in zip(self._modes, found, strict=True)
            )
        if any(outcome is None for outcome in outcomes):
            return None
        value, gradient = outcomes[0]
        for more, its_gradient in outcomes[1:]:
            value, gradient = value + more, gradient + its_gradient
        return value, gradient


def _own(subsets: int, stack: ExitStack) -> BlockExecutor | None:
    """Threads of this process, where there is something to do side by side."""
    threads = min(subsets, available_cores())
    if threads < 2:
        return None
    executor = LocalExecutor(threads)
    stack.callback(executor.close)
    return executor


def _start(choices: Choices, feature_names: tuple[str, ...]) -> tuple[Kernel, float | None]:
    """Return the kernel to tune, whose values are where it starts, and the noise variance to start from, if known.

    Raises `InputError`: a kernel or a start that is for other features, or a start of another kernel.
    """
    start = choices.start
    if start is not None:
        start.check_features(len(feature_names), feature_names)
    if choices.kernel is None:
        if start is not None:
            return start.kernel, start.noise_variance
        return parse_kernel("rbf", len(feature_names)), None
    is_text = isinstance(choices.kernel, str)
    kernel = choices.kernel
    if isinstance(kernel, str):
        kernel = parse_kernel(kernel, len(feature_names), feature_names)
    kernel, white = fold_white(kernel, 0.0)
    if white and choices.likelihood is not None:
        raise InputError("labels have no noise of their own: leave white noise out of the kernel")
    if start is None:
        return kernel, None if is_text or white == 0.0 else white
    if not _same_structure(kernel, start.kernel):
        raise InputError(
            "the start is of another kernel than the one to tune; leave the kernel out to go on with the start's, or "
            "leave the start out"
        )
    return start.kernel, start.noise_variance


def _same_structure(first: Kernel, second: Kernel) -> bool:
    names = [[(item.name, item.feature) for item in kernel.parameters()] for kernel in (first, second)]
    return first.type_name == second.type_name and names[0] == names[1]


def held_amplitude(kernel: Kernel, settings: SearchSettings) -> float | None:
    """Return the amplitude that `learn_variance` would have set free."""
    if settings.learn_variance or not kernel.stationary or kernel.amplitude_index is None:
        return None
    return kernel.parameters()[kernel.amplitude_index].value


def _scores(rounds: _Rounds, best: Optimum, plan: SubsetPlan, choices: Choices) -> dict[str, dict[str, float | int]]:
    found: dict[str, dict[str, float | int]] = {}
    of_labels = choices.likelihood is not None
    in_folds, of_rest, told = (
        (label_fold_task, label_holdout_task, label_scores_of) if of_labels else (fold_task, holdout_task, scores_of)
    )
    if choices.folds is not None:
        parts = rounds.run(in_folds, best.parameters, choices.folds, plan.seed)
        found["folds"] = {"folds": choices.folds, **told(parts)}
    if plan.holdout:
        parts = rounds.run(of_rest, best.parameters)
        found["holdout"] = {"rows": plan.holdout, **told(parts)}
    return found
