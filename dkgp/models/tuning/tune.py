"""`tune`: hyperparameters by maximising the likelihood of random subsets (section 3 of the GBCD paper); their scores.

Several subsets' log likelihoods are added. Each evaluation is one task for each subset, in parallel; values and
gradients are summed in the order of the subsets, so that the result has the same bits on any number of workers.

Tasks are stateless functions of (context, arguments, subsets). A worker reads a subset's rows when it first needs them
and keeps them, and the matrices it works in, in its cache; it can read both again at any time.

Scores are k-fold on the subsets that the values were tuned on, and on rows that no subset holds. A label's prediction
is that of a Gaussian process in Laplace's approximation on the other samples, its probability averaged over the latent
functions. With several columns, one against the rest, the averages are divided by their sum.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor, LocalExecutor
from dkgp.cluster.threads import available_cores, process_threads, single_threaded_blas
from dkgp.data import Dataset, Standardisation
from dkgp.data.sources.tables.survey import count_repeated_rows
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import Kernel
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.noise import SAME_NOISE, Noise
from dkgp.models.target_units import NORMAL_95
from dkgp.models.tuning.dense_algebra import solve_factored, solve_half
from dkgp.models.tuning.families import KernelFamily, family_bytes, family_of
from dkgp.models.tuning.laplace import LABEL_OBJECTIVES, SeenSamples
from dkgp.models.tuning.objectives import (
    OBJECTIVES,
    DenseObjective,
    LogMarginalLikelihood,
    ValueAndGradient,
    factored,
    fold_predictions,
    projected_peak_bytes,
)
from dkgp.models.tuning.search import (
    Choices,
    LikelihoodSearch,
    Optimum,
    SearchProblem,
    SearchSettings,
    SubsetSummary,
    TuneOptions,
    switch_off,
)
from dkgp.models.tuning.subsets import SubsetPlan, Subsets, plan_subsets, require_finite
from dkgp.solvers.base import Clock

DEFAULT_SUBSET = 2000


def tune_dataset(
    dataset: Dataset, *, executor: BlockExecutor | None = None, **options: Unpack[TuneOptions]
) -> Hyperparameters:
    """Find a kernel's hyperparameters and the noise variance s2 by maximum likelihood on random subsets.

    Parameters
    ----------
    dataset : Dataset
        The training set, read under its own standardisation; several targets share the hyperparameters.
    kernel : Kernel or str, optional
        A kernel, whose values are where the search starts, or an expression such as "matern32 + linear"
        (`dkgp.kernels.parse_kernel`). By default the squared exponential with one gamma for each feature.
    subset : int, default 2000
        Samples of a subset; all samples if there are fewer. One evaluation costs O(subset^3) for each subset.
    subsets : int, default 1
        Number of subsets, disjoint if the data suffice. Their log likelihoods are added.
    objective : {"likelihood", "loo"}, default "likelihood"
        The log marginal likelihood, or the leave-one-out predictive log likelihood (Rasmussen and Williams 2006,
        section 5.4.2), which takes twice the time and three matrices of a subset's size instead of two.
    seed : int, default 0
        Seed of the draws, of the starting points after the first, and of the folds.
    learn_variance : bool, default False
        Whether the amplitude v of a kernel that is not a sum or product is free; otherwise v = 1.
    bounds, fixed : mapping, optional
        (lower, upper), or a value to hold on to, for parameters by name or pattern: `gamma.lat` is the gamma of the
        feature 'lat', `gamma*` those of all, `noise_variance` the noise.
    priors : mapping, optional
        Log-normal priors by name or pattern, as `LogNormal` or text, "lognormal(0.1, 1)"; their log densities are added
        to the objective.
    start : Hyperparameters, optional
        Hyperparameters to start from; their kernel is the default of `kernel`.
    tolerance : float, default 1e-4
        Stop when one step changes the objective by at most this (relative to its size, where that exceeds 1) and every
        hyperparameter by at most this (relative to its size; for a gamma below 1, absolutely).
    restarts : int, default 1
        Number of starting points; the best optimum is kept. A few more are tried if they find nothing but noise.
    max_evaluations : int, default 300
        Limit for each starting point.
    seconds : float, optional
        Time limit of the search; the best point so far is then taken.
    folds : int, optional
        Score the result by this many folds of each subset, each predicted from the others, without tuning again.
    holdout : float, optional
        Score the result on rows outside all subsets, this fraction of a subset, predicted from each subset.
    sample_noise : (n,) float64, optional
        Known noise variances of the samples beside s2, standardised; by default those of the data set.
    relative_noise : (n,) float64, optional
        The multiple of s2 that each sample has.
    mean : {"centred", "constant", "linear", "quadratic"} or float, default "centred"
        The mean to train with, see `dkgp.models.exact.train`. The restricted likelihood, without its coefficients, is
        maximised; the amplitude is then always free, and there are no scores.
    executor : BlockExecutor, optional
        It evaluates the subsets and stays open; its workers must reach the store. By default this process's threads.
    progress : callable, optional
        Called with a `TuneProgress` after each evaluation.

    Returns
    -------
    Hyperparameters
        On the standardised scale. Not meeting the tolerance is no error: see `converged` and `warnings`.

    Raises
    ------
    InputError
        Subsets with NaN or infinity, names that do not exist, or settings out of range.
    NumericalError
        The kernel matrix was not positive definite at any starting point.
    """
    unknown = options.keys() - TuneOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"tune_dataset() got an unexpected keyword argument '{min(unknown)}'")
    subset, subsets = options.get("subset", DEFAULT_SUBSET), options.get("subsets", 1)
    seed, holdout = options.get("seed", 0), options.get("holdout")
    plan = plan_subsets(dataset.n_samples, subset, subsets=subsets, seed=seed, holdout=holdout)
    settings = SearchSettings(**fields_of(SearchSettings, options))
    choices = Choices(**fields_of(Choices, options))
    if holdout is not None:
        choices.require_centred("a score on a holdout")
    choices = replace(choices, mean=choices.drift.over(dataset))
    dataset = choices.drift.about(dataset)
    source, relative = Subsets(dataset, plan), options.get("relative_noise")
    known = options.get("sample_noise")
    if relative is not None or known is not None:
        noise = replace(SAME_NOISE, by_sample=known, relative=relative).beside(dataset)
        _require_noise(noise, dataset.n_samples)
        source = Subsets.with_noise(dataset, plan, noise)
    return run_tuning(source, tuple(dataset.feature_names), choices, settings, executor)


def _require_noise(noise: Noise, n: int) -> None:
    """Refuse noise of another number of samples, or below zero; `InputError`."""
    for name, values in (("sample_noise", noise.by_sample), ("relative_noise", noise.relative)):
        if values is None:
            continue
        if values.shape != (n,):
            raise InputError(f"`{name}` has shape {values.shape}; expected ({n},), a value for each sample")
        if not (np.isfinite(values) & (values >= 0.0)).all():
            row = int(np.argmin(np.isfinite(values) & (values >= 0.0)))
            raise InputError(f"`{name}` is {values[row]} for sample {row}; expected finite values, none below zero")


def fields_of(part: type[SearchSettings] | type[Choices], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a part of a search."""
    return {item.name: options[item.name] for item in fields(part) if item.name in options}


def tune(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    executor: BlockExecutor | None = None,
    feature_names: Sequence[str] | None = None,
    **settings: Unpack[TuneOptions],
) -> Hyperparameters:
    """Like `tune_dataset`, on arrays: (n, d) standardised inputs and (n,) or (n, p) standardised targets.

    Parameters
    ----------
    inputs, targets : array_like
    executor : BlockExecutor, optional
        As for `tune_dataset`; in this process.
    feature_names : sequence of d str, optional
        Kept in the result and used in messages; x0, x1, ... by default.
    settings
        As for `tune_dataset`.

    Returns
    -------
    Hyperparameters
        As of `tune_dataset`.

    Raises
    ------
    InputError
        Arrays of unfit shape, NaN or infinity anywhere in them, or as `tune_dataset`.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((60, 2))
    >>> found = tune(x, np.sin(2.0 * x[:, 0]))
    >>> bool(found.gamma[0] > 10.0 * found.gamma[1])
    True
    """
    all_inputs, all_targets = np.asarray(inputs, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if all_inputs.ndim != 2 or all_inputs.shape[1] == 0:
        raise InputError(f"inputs must be of shape (n, d) with at least one feature; got {all_inputs.shape}")
    if all_targets.ndim not in (1, 2) or 0 in all_targets.shape[1:]:
        raise InputError(f"targets must be of shape (n,) or (n, p); got {all_targets.shape}")
    if len(all_targets) != len(all_inputs):
        raise InputError(f"inputs have {len(all_inputs)} rows, but targets {len(all_targets)}; expected as many")
    for name, values in (("inputs", all_inputs), ("targets", all_targets)):
        require_finite(name, values.reshape(len(values), -1), "the arrays' row")
    if executor is not None and not executor.shares_memory:
        raise InputError(
            "workers in other processes cannot read arrays of this one; write the data to a store first (dkgp ingest) "
            "and use tune_dataset, or take an executor in this process"
        )
    columns = all_targets[:, None] if all_targets.ndim == 1 else all_targets
    d, p = all_inputs.shape[1], columns.shape[1]
    names = tuple(f"x{index}" for index in range(d)) if feature_names is None else tuple(feature_names)
    if len(names) != d:
        raise InputError(f"inputs have {d} features, but {len(names)} names are given")
    dataset = assembled_dataset(all_inputs, columns, Standardisation.identity(d, p), names, ("",) * p, "")
    return tune_dataset(dataset, executor=executor, **settings)


def run_tuning(
    source: Subsets,
    feature_names: tuple[str, ...],
    choices: Choices,
    settings: SearchSettings,
    executor: BlockExecutor | None,
) -> Hyperparameters:
    """Search and score; parameters and errors are those of `tune`."""
    clock, plan = Clock(), source.plan
    problem = check_tuning(plan, feature_names, choices, settings)
    context = TuningContext(
        f"tune-{uuid.uuid4().hex[:12]}",
        source,
        problem.kernel,
        problem.settings.learn_variance,
        feature_names,
        choices,
    )
    with ExitStack() as stack:
        # A second BLAS thread gains a tenth; on a busy machine BLAS threads that wait for each other cost far more.
        stack.enter_context(single_threaded_blas())
        stack.callback(context.forget)
        rounds = _OnSubsets(context, _local_threads(plan.count, stack) if executor is None else executor)
        summaries = rounds.run(summary_task)
        search = LikelihoodSearch(rounds, problem.space, problem.settings)
        for _, point in problem.starts(search, summaries):
            search.run(point)
            if search.late:
                break
        best = search.best
        if best is None:
            raise NumericalError(
                "the kernel matrix was not positive definite at any starting point. Look for inputs that are not "
                "standardised, or give the hyperparameters yourself"
            )
        best, further_evaluations = switch_off(rounds, problem.space, best, feature_names)
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
        seconds=clock.seconds,
        subset_size=plan.size,
        n_samples=plan.n_samples,
        subsets=plan.count,
        objective=choices.objective,
        scores=scores or None,
    )


def check_tuning(
    plan: SubsetPlan, feature_names: tuple[str, ...], choices: Choices, settings: SearchSettings
) -> SearchProblem:
    """Check everything that `tune` checks before it reads or starts anything; the same errors."""
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
    """Return the bytes that `tune` holds at its peak in a process that evaluates `at_once` subsets at a time.

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


class _OnSubsets:
    """The sum of an objective over all subsets: one task for each, results in the subsets' order."""

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

    def __call__(self, parameters: FloatArray) -> ValueAndGradient:
        """Return the sum of the subsets' values and gradients; None if one of them does not exist."""
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
    """Return threads of this process, if there is more than one subset for them."""
    threads = min(subsets, available_cores())
    if threads < 2:
        return None
    executor = LocalExecutor(threads)
    stack.callback(executor.close)
    return executor


def _scores(rounds: _OnSubsets, best: Optimum, plan: SubsetPlan, choices: Choices) -> dict[str, dict[str, float | int]]:
    scores: dict[str, dict[str, float | int]] = {}
    if choices.folds is not None:
        parts = rounds.run(fold_task, best.parameters, choices.folds, plan.seed)
        scores["folds"] = {"folds": choices.folds, **scores_of(parts)}
    if plan.holdout:
        parts = rounds.run(holdout_task, best.parameters)
        scores["holdout"] = {"rows": plan.holdout, **scores_of(parts)}
    return scores


@dataclass(frozen=True)
class CachedSubset:
    """A subset in a worker's cache."""

    inputs: FloatArray
    targets: FloatArray
    family: KernelFamily
    weights: FloatArray | None
    noise: Noise
    columns: FloatArray | None  # of the mean, (m, q)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, an estimate for the family's own."""
        return 4 * self.inputs.nbytes + self.targets.nbytes


class _Matrices:
    """Lends a set of `count` arrays (n, n) to each thread: new memory would cost as much as a product."""

    def __init__(self, n: int, count: int) -> None:
        self._n, self._count = n, count
        self._free: list[list[FloatArray]] = []

    @property
    def nbytes(self) -> int:
        """Bytes if every thread of this process has a set."""
        return 8 * self._n**2 * self._count * process_threads()

    @contextmanager
    def lent(self) -> Iterator[list[FloatArray]]:
        """Lend a set, not initialised, in Fortran order."""
        try:
            matrices = self._free.pop()  # a list's `pop` and `append` are atomic for threads
        except IndexError:
            matrices = [np.empty((self._n, self._n), order="F") for _ in range(self._count)]
        try:
            yield matrices
        finally:
            self._free.append(matrices)


@dataclass(frozen=True)
class TuningContext:
    """Everything that a task needs besides the parameters; the kernel has the search's starting values."""

    run_id: str
    source: Subsets
    kernel: Kernel
    learn_variance: bool
    feature_names: tuple[str, ...]
    choices: Choices

    @property
    def kind(self) -> type[DenseObjective]:
        """Class of the objective."""
        likelihood = self.choices.likelihood
        return OBJECTIVES[self.choices.objective] if likelihood is None else LABEL_OBJECTIVES[likelihood]

    def family(self, inputs: FloatArray) -> KernelFamily:
        """Return the kernel with its parameters, on these inputs (n, d)."""
        return family_of(self.kernel, inputs, self.learn_variance, self.feature_names)

    def subset(self, index: int) -> CachedSubset:
        """Return a subset's rows, from this worker's cache or their source."""

        def build() -> CachedSubset:
            rows, targets = self.source.rows(index)
            weights, noise = self.source.weights(index), self.source.noise(index)
            inputs, columns = self.choices.drift.features(rows), self.choices.columns(rows, self.feature_names)
            return CachedSubset(inputs, targets, self.family(inputs), weights, noise, columns)

        return worker_cache().get((self.run_id, index), build)

    def matrices(self, n: int) -> _Matrices:
        """Lend this worker's matrices of order n."""
        return worker_cache().get((self.run_id, "matrices", n), lambda: _Matrices(n, self.kind.n_matrices))

    def forget(self) -> None:
        """Empty this process's cache of the run; workers empty theirs when other runs need the memory."""
        worker_cache().discard_run(self.run_id)


@needs_one_arithmetic
def summary_task(context: TuningContext, subsets: list[int]) -> list[SubsetSummary]:
    """Read subsets and summarise their targets; `InputError` for NaN or infinity."""
    summaries = []
    for index in subsets:
        subset = context.subset(index)
        targets = subset.targets
        deviations = targets.std(axis=0) if context.choices.likelihood is None else np.zeros(0)
        if subset.columns is not None:
            independent = LogMarginalLikelihood.independent_about(targets, subset.columns)
        else:
            independent = context.kind.independent(targets, subset.weights)
        copies = count_repeated_rows(np.column_stack([subset.inputs, targets])) or 0
        summaries.append(SubsetSummary(targets.size, independent, deviations, len(targets), copies))
    return summaries


@needs_one_arithmetic
def evaluate_task(
    context: TuningContext, parameters: FloatArray, starts: tuple[FloatArray | None, ...], subsets: list[int]
) -> list[tuple[ValueAndGradient, FloatArray | None]]:
    """Return the objective's value and gradient on each subset, if they exist, and the mode of labels.

    The search for the mode begins at that of an earlier evaluation, one of `starts` for each subset.
    """
    outcomes = []
    for index in subsets:
        subset = context.subset(index)
        with context.matrices(len(subset.inputs)).lent() as matrices:
            objective = context.kind(
                subset.family, subset.targets, matrices, subset.weights, subset.noise, subset.columns
            )
            objective.start = starts[index]
            outcomes.append((objective(parameters), objective.reached))
    return outcomes


LEAST_PROBABILITY = 1e-300
_BLOCK_SHARE = 4  # held-out rows are predicted by blocks of a quarter of the subset


@dataclass(frozen=True)
class ScoreSums:
    """Sums over predictions, which add up over subsets.

    Of `count` predicted values, targets times samples, `covered` lie within their central 95 % interval. Errors are
    those of standardised targets; `log_loss` is the negative log predictive density in nats.
    """

    count: int
    squared_error: float
    log_loss: float
    covered: int

    @classmethod
    def of(cls, truth: FloatArray, mean: FloatArray, variance: FloatArray) -> ScoreSums:
        """Return the sums over `truth` and `mean` (m, p) and variances (m,) of new observations."""
        squares = (truth - mean) ** 2
        ratios = squares / variance[:, None]
        losses = 0.5 * (np.log(2.0 * math.pi * variance)[:, None] + ratios)
        covered = int(np.count_nonzero(ratios <= NORMAL_95**2))
        return cls(squares.size, float(squares.sum()), float(losses.sum()), covered)

    def means(self) -> dict[str, float]:
        """RMSE and NLPD of standardised targets, and the coverage of 95 % intervals."""
        return {
            "rmse": math.sqrt(self.squared_error / self.count),
            "nlpd": self.log_loss / self.count,
            "coverage_95": self.covered / self.count,
        }


def check_folds(folds: int | None, n_samples: int) -> None:
    """Refuse a number of folds that cannot be cut from a subset of n samples; `InputError`."""
    if folds is not None and not 2 <= folds <= n_samples:
        raise InputError(f"`folds` must be from 2 to the number of samples in a subset, {n_samples}; got {folds}")


def cut_folds(inputs: FloatArray, folds: int, seed: int, subset: int) -> list[IntArray]:
    """Return random folds of the samples (n, d), each sample in one of them: sorted indices.

    Samples with equal inputs are in one fold, because they predict each other. Without such samples the sizes differ by
    at most one.
    """
    _, first, group = np.unique(inputs, axis=0, return_index=True, return_inverse=True)
    # Number the groups by their first samples.
    group = first.argsort().argsort()[group.reshape(-1)] if len(first) >= folds else np.arange(len(inputs))
    order = np.random.default_rng([seed, 3, subset]).permutation(int(group.max()) + 1)
    return [np.flatnonzero(np.isin(group, part)) for part in np.array_split(order, folds)]


@dataclass(frozen=True)
class LabelSums:
    """Sums over `count` predicted samples, which add up over subsets: errors, and -log p of the labels in nats."""

    count: int
    errors: int
    log_loss: float

    @classmethod
    def of(cls, probabilities: FloatArray, targets: FloatArray) -> LabelSums:
        """Return the sums over the classes' probabilities (m, C), for `targets` (m, t) of signs."""
        codes = targets.argmax(axis=1) if targets.shape[1] > 1 else (targets[:, 0] > 0.0).astype(np.int64)
        errors = int(np.count_nonzero(probabilities.argmax(axis=1) != codes))
        of_label = probabilities[np.arange(len(codes)), codes]
        return cls(len(codes), errors, float(-np.log(np.maximum(of_label, LEAST_PROBABILITY)).sum()))

    def means(self) -> dict[str, float]:
        """Error rate and mean log loss."""
        return {"error_rate": self.errors / self.count, "log_loss": self.log_loss / self.count}


def scores_of(parts: Sequence[ScoreSums | LabelSums]) -> dict[str, float | int]:
    """Return the number of predictions, and the means over all parts in order."""
    kind, columns = type(parts[0]), zip(*(astuple(part) for part in parts), strict=True)
    total = kind(*(sum(column) for column in columns))
    return {"predictions": total.count, **total.means()}


@needs_one_arithmetic
def fold_task(
    context: TuningContext, parameters: FloatArray, folds: int, seed: int, subsets: list[int]
) -> list[ScoreSums | LabelSums]:
    """Predict each fold of a subset from its other folds.

    Raises `NumericalError`: a kernel matrix of labels is not positive definite.
    """
    predict = _folds if context.choices.likelihood is None else _label_folds
    sums = []
    for index in subsets:
        subset = context.subset(index)
        sums.append(predict(context, subset, parameters, cut_folds(subset.inputs, folds, seed, index)))
    return sums


@needs_one_arithmetic
def holdout_task(context: TuningContext, parameters: FloatArray, subsets: list[int]) -> list[ScoreSums | LabelSums]:
    """Predict the rows outside all subsets from each subset by itself; errors are those of `fold_task`."""
    inputs, targets = context.source.held_out()
    predict = _held_out if context.choices.likelihood is None else _label_held_out
    return [predict(context, context.subset(index), parameters, inputs, targets) for index in subsets]


def _folds(context: TuningContext, subset: CachedSubset, parameters: FloatArray, folds: list[IntArray]) -> ScoreSums:
    with context.matrices(len(subset.inputs)).lent() as matrices:
        mean, variance = fold_predictions(subset.family, parameters, subset.targets, folds, matrices, subset.noise)
    return ScoreSums.of(subset.targets, mean, variance)


def _held_out(
    context: TuningContext, subset: CachedSubset, parameters: FloatArray, inputs: FloatArray, targets: FloatArray
) -> ScoreSums:
    held = context.source.noise(-1).with_common(math.exp(parameters[-1]))
    kernel, noise = subset.family.kernel(parameters[:-1]), np.broadcast_to(held.diagonal, len(targets))
    mean, variance = np.empty_like(targets), np.empty(len(targets))
    with context.matrices(len(subset.inputs)).lent() as matrices:
        lower = factored(subset.family, parameters, matrices[0], subset.noise)
        alpha = solve_factored(lower, np.asfortranarray(subset.targets))
        rows = max(1, len(subset.inputs) // _BLOCK_SHARE)
        for start in range(0, len(inputs), rows):
            block = slice(start, start + rows)
            cross = np.asfortranarray(kernel(subset.inputs, inputs[block]))
            mean[block] = cross.T @ alpha
            solve_half(lower, cross)
            explained = np.einsum("ij,ij->j", cross, cross)
            variance[block] = np.maximum(kernel.diagonal(inputs[block]) - explained, 0.0) + noise[block]
    return ScoreSums.of(targets, mean, variance)


def _label_folds(
    context: TuningContext, subset: CachedSubset, parameters: FloatArray, folds: list[IntArray]
) -> LabelSums:
    n, kernel = len(subset.inputs), subset.family.kernel(parameters[:-1])
    probabilities = np.empty((n, max(2, subset.targets.shape[1])))
    for fold in folds:
        rest = np.setdiff1d(np.arange(n), fold)
        weights = None if subset.weights is None else subset.weights[rest]
        training = subset.inputs[rest], subset.targets[rest], weights
        probabilities[fold] = _predicted(context, kernel, training, subset.inputs[fold])
    return LabelSums.of(probabilities, subset.targets)


def _label_held_out(
    context: TuningContext, subset: CachedSubset, parameters: FloatArray, inputs: FloatArray, targets: FloatArray
) -> LabelSums:
    kernel, training = subset.family.kernel(parameters[:-1]), (subset.inputs, subset.targets, subset.weights)
    return LabelSums.of(_predicted(context, kernel, training, inputs), targets)


def _predicted(
    context: TuningContext, kernel: Kernel, training: tuple[FloatArray, FloatArray, Any], inputs: FloatArray
) -> FloatArray:
    """Return averaged probabilities of the classes at inputs (r, d), from training samples: (r, C)."""
    training_inputs, targets, weights = training
    assert context.choices.likelihood is not None
    matrix = np.asfortranarray(kernel.matrix(training_inputs, training_inputs))
    cross, prior = kernel.matrix(training_inputs, inputs), kernel.diagonal(inputs)
    samples = SeenSamples(matrix, targets, weights, cross, prior)
    probabilities = LABEL_OBJECTIVES[context.choices.likelihood].probabilities(samples)
    if probabilities is None:
        raise NumericalError(
            "the kernel matrix of a subset is not positive definite with the hyperparameters that were found, so that "
            "it cannot be scored. Lower the upper bound of the amplitude"
        )
    return probabilities
