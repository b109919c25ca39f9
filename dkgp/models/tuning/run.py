"""One tuning run on subsets: the sum of their objectives is maximised over an executor, and the result is scored.

Each evaluation is one task for each subset, in parallel; values and gradients are summed in the order of the subsets,
so that the result has the same bits on any number of workers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor
from dkgp.cluster.threads import available_cores, single_threaded_blas
from dkgp.data.types import FloatArray
from dkgp.errors import NumericalError
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.tuning.kernel_family import family_bytes
from dkgp.models.tuning.likelihood_search import LikelihoodSearch, Optimum, SearchSettings
from dkgp.models.tuning.marginal_likelihood import projected_peak_bytes
from dkgp.models.tuning.problem import Choices, SearchProblem
from dkgp.models.tuning.rest import switch_off
from dkgp.models.tuning.scores import check_folds, fold_task, holdout_task, scores_of
from dkgp.models.tuning.subsets import SubsetPlan, Subsets
from dkgp.models.tuning.tasks import (
    LABEL_OBJECTIVES,
    OBJECTIVES,
    TuningContext,
    evaluate_task,
    summary_task,
)


def run_tuning(
    source: Subsets,
    feature_names: tuple[str, ...],
    choices: Choices,
    settings: SearchSettings,
    executor: BlockExecutor | None,
) -> Hyperparameters:
    """Search and score; parameters and errors are those of `tune`."""
    started, plan = time.perf_counter(), source.plan
    problem = check_tuning(plan, feature_names, choices, settings)
    context = TuningContext(
        f"tune-{uuid.uuid4().hex[:12]}",
        source,
        problem.kernel,
        problem.settings.learn_variance,
        feature_names,
        choices.objective,
        choices.likelihood,
        choices.mean,
    )
    with ExitStack() as stack:
        # A second BLAS thread gains a tenth; on a busy machine BLAS threads waiting for each other cost many times
        # that.
        stack.enter_context(single_threaded_blas())
        stack.callback(context.forget)
        rounds = _Rounds(context, _local_threads(plan.count, stack) if executor is None else executor)
        summaries = rounds.run(summary_task)
        search = LikelihoodSearch(rounds.likelihood, problem.space, problem.settings)
        best = problem.maximise(search, lambda _, point: search.run(point), summaries)
        if best is None:
            raise NumericalError(
                "the kernel matrix was not positive definite at any starting point. Look for inputs that are not "
                "standardised, or give the hyperparameters yourself"
            )
        best, further_evaluations = switch_off(rounds.likelihood, problem.space, best, feature_names)
        scores = _scores(rounds, best, plan, choices)
    further = []
    if plan.overlaps:
        further.append(
            f"{plan.count} subsets of {plan.size} samples share some of the {plan.n_samples} samples; fewer or smaller "
            "subsets would not"
        )
    is_likelihood = choices.objective == "likelihood"
    return problem.hyperparameters(
        best,
        summaries,
        further,
        log_marginal_likelihood=best.log_likelihood if is_likelihood else None,
        leave_one_out_log_likelihood=None if is_likelihood else best.log_likelihood,
        evaluations=search.evaluations + further_evaluations,
        seconds=time.perf_counter() - started,
        subset_size=plan.size,
        n_samples=plan.n_samples,
        subsets=plan.count,
        objective=choices.objective,
        scores=scores or None,
    )


def check_tuning(
    plan: SubsetPlan, feature_names: tuple[str, ...], choices: Choices, settings: SearchSettings
) -> SearchProblem:
    """Refuse what `tune` would refuse, before anything is read or started; errors as there."""
    check_folds(choices.folds, plan.size)
    return SearchProblem.of(feature_names, choices, settings)


def projected_tuning_bytes(
    subset_size: int,
    n_targets: int,
    feature_names: tuple[str, ...],
    *,
    subsets: int = 1,
    at_once: int = 1,
    **choices: Any,
) -> int:
    """Bytes that `tune` holds at its peak in one process that evaluates `at_once` subsets at the same time.

    The other parameters are those of `tune`, and so are the errors: `choices` are `kernel`, `start`, `objective` and,
    of labels, `likelihood`.
    """
    search = Choices(**choices)
    kernel, _ = search.initial(feature_names)
    kind = OBJECTIVES[search.objective] if search.likelihood is None else LABEL_OBJECTIVES[search.likelihood]
    matrices = kind.matrices(n_targets)
    common = projected_peak_bytes(
        subset_size, len(feature_names), n_targets, subsets=subsets, at_once=at_once, matrices=matrices
    )
    return common + at_once * family_bytes(kernel, subset_size)


class _Rounds:
    """Runs one task for each subset and hands the results back in the subsets' order."""

    def __init__(self, context: TuningContext, executor: BlockExecutor | None) -> None:
        self._context, self._executor = context, executor
        # Modes of labels travel to workers and back, so that no bit depends on which worker reached them.
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
        results = self.run(evaluate_task, parameters, self._modes)
        self._modes = tuple(
            before if mode is None else mode for before, (_, mode) in zip(self._modes, results, strict=True)
        )
        outcomes = [outcome for outcome, _ in results]
        if any(outcome is None for outcome in outcomes):
            return None
        value, gradient = outcomes[0]
        for more, its_gradient in outcomes[1:]:
            value, gradient = value + more, gradient + its_gradient
        return value, gradient


def _local_threads(subsets: int, stack: ExitStack) -> BlockExecutor | None:
    """Threads of this process, where there is something to do side by side."""
    threads = min(subsets, available_cores())
    if threads < 2:
        return None
    executor = LocalExecutor(threads)
    stack.callback(executor.close)
    return executor


def _scores(rounds: _Rounds, best: Optimum, plan: SubsetPlan, choices: Choices) -> dict[str, dict[str, float | int]]:
    scores: dict[str, dict[str, float | int]] = {}
    if choices.folds is not None:
        parts = rounds.run(fold_task, best.parameters, choices.folds, plan.seed)
        scores["folds"] = {"folds": choices.folds, **scores_of(parts)}
    if plan.holdout:
        parts = rounds.run(holdout_task, best.parameters)
        scores["holdout"] = {"rows": plan.holdout, **scores_of(parts)}
    return scores
