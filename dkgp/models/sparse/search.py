"""Hyperparameters by a sparse model's evidence on all samples, with a new basis whenever the search has converged.

The basis, and the neighbours of a model that has some, stay fixed while the search goes uphill, so that the evidence is
a smooth function. At the optimum randomly pivoted Cholesky draws another basis, and the neighbours are searched again.
If its evidence is greater, the search goes on with it; after three draws that are no better it ends (Burt, Rasmussen
and van der Wilk 2020 also choose again until the bound does not grow). No gradients with respect to the basis' inputs
are needed.

With neighbours and many samples the search climbs twice: first with fewer neighbours and a smaller basis, whose
evaluations take a third of the time, then with the exact settings from there, by the curvature that the first climb
has measured. The basis of the second climb is drawn by nearly the right kernel. Another one is drawn only if the
kernel has moved since. Both climbs end at a step that gains no more than ten times the tolerance, in
nats a sample: by default a thousandth.

The result depends only on the data, the settings and the seed. The next step of a search depends only on the outcomes
of its evaluations. So a checkpoint holds nothing but these, a few numbers each: a restored search takes the same steps
and looks each outcome up by its basis and parameters. Evaluations that iterate start where the last one ended, which
the checkpoint holds too. Points where rounding exceeds the noise variance have no evidence, and the line search steps
back from them.

References
----------
D. R. Burt, C. E. Rasmussen, M. van der Wilk, Convergence of sparse variational inference in Gaussian processes
regression (2020), section 7.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset
from dkgp.data.remote.storage import is_file, read_object, remove_object
from dkgp.data.stores.checkpoint import Checkpoint, CheckpointStore
from dkgp.data.types import Json
from dkgp.errors import CheckpointError, InputError, NumericalError
from dkgp.models.context import RunContext
from dkgp.models.hyperparameters import Hyperparameters
from dkgp.models.memory import Memory
from dkgp.models.sparse.bases import blind_basis
from dkgp.models.sparse.bound import BoundObjective, BoundValue, slopes_bytes
from dkgp.models.sparse.model import Basis
from dkgp.models.sparse.settings import plan_sparse
from dkgp.models.sparse.vif import NearEvidence, Neighbours, VifObjective, vif_bytes
from dkgp.models.tuning.objectives import DenseObjective
from dkgp.models.tuning.search import Choices, LikelihoodSearch, Optimum, SearchProblem, SearchSettings, SubsetSummary
from dkgp.models.tuning.space import NOISE_NAME
from dkgp.models.tuning.subsets import require_finite
from dkgp.operators.base import FloatArray
from dkgp.progress import Progress
from dkgp.solvers.base import Clock
from dkgp.solvers.driver import Iteration, Loop
from dkgp.solvers.stopping import StopReason


class SearchStore(CheckpointStore):
    """Checkpoints of a search; also reads the file that earlier versions wrote at their place."""

    def load_latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, or the evaluations of an earlier version.

        Raises `CheckpointError`: all checkpoints are damaged, or the file is.
        """
        if not is_file(self.url):
            return super().load_latest()
        try:
            document = json.loads(read_object(self.url))
            evaluations = {key: record and list(record) for key, record in document["evaluations"].items()}
            state = {"iteration": len(evaluations), "evaluations": evaluations, "seconds": 0.0}
            arrays = {}
            if (start := document.get("start")) is not None:
                values = np.frombuffer(base64.b64decode(start["values"], validate=True), dtype="<f4")
                arrays["begin"] = values.reshape(-1, start["columns"])
            return Checkpoint(len(evaluations), arrays, {"identity": document["run"], "solver": {}, "state": state})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"'{self.url}' is no checkpoint of a search, or damaged ({error!r})") from error

    def save(self, sequence_number: int, arrays: Mapping[str, NDArray[Any]], metadata: Json) -> str:
        """Write a checkpoint, in place of the file of an earlier version."""
        self._remove_file()
        return super().save(sequence_number, arrays, metadata)

    def clear(self) -> None:
        """Remove all checkpoints, and the file of an earlier version."""
        self._remove_file()
        super().clear()

    def _remove_file(self) -> None:
        if is_file(self.url):
            remove_object(self.url)


def _key(basis: FloatArray, parameters: FloatArray) -> str:
    return hashlib.blake2b(basis.tobytes() + parameters.tobytes(), digest_size=16).hexdigest()


Evidence: TypeAlias = Literal["bound", "fitc", "vif"]
EVIDENCES: dict[Evidence, str] = {
    "bound": "variational bound",
    "fitc": "FITC likelihood",
    "vif": "likelihood with neighbours",
}
# By default; with neighbours the basis follows only the smooth part.
BASIS_SIZES: dict[Evidence, int] = {"bound": 1000, "fitc": 1000, "vif": 200}
# Draws that must fail to improve on an optimum before the search ends, and bases of one starting point at most.
DRAWS, MOST_BASES = 3, 20
# Sizes of a first climb with neighbours, and the samples from which on it pays.
ROUGH_NEIGHBOURS, ROUGH_BASIS, ROUGH_FROM = Neighbours(64, 64), 64, 4096
# The tolerance then, in nats a sample, in units of the one that is asked for.
LOOSER = 10.0
# The move of a kernel's log parameters, after a first climb, from which on another basis is drawn.
MOVED = 0.5
# A gamma, on the standardised scale, below which its feature hardly matters.
MATTERS = 0.01
# Where the basis leaves more of the samples' variance than this share of the noise, the values found suit this basis
# alone: with kin40k, 500 of 10,000, it is 0.13, and the exact model with them predicts twice as badly; with Friedman's
# function it is 6e-5, and they are right.
MUCH_LEFT = 0.1


@dataclass(frozen=True)
class SearchTargets:
    """Targets as a search knows them."""

    objective: Evidence
    summary: SubsetSummary
    evidence: Callable[[RunContext], BoundObjective | NearEvidence]  # of them all
    title: str  # of the evidence
    advice: str  # where it exists at no starting point
    rough: Callable[[RunContext], NearEvidence] | None = None  # with fewer neighbours, for a first climb

    @classmethod
    def of(cls, dataset: Dataset, objective: Evidence) -> SearchTargets:
        """Return the targets of a regression."""
        targets = dataset.all_targets()
        require_finite("targets", targets, "row")

        def evidence(context: RunContext) -> BoundObjective | NearEvidence:
            if objective == "vif":
                return VifObjective(dataset, targets, context)
            return BoundObjective(dataset, targets, context, fitc=objective == "fitc")

        summary = SubsetSummary(targets.size, DenseObjective.independent(targets), targets.std(axis=0))
        advice = "Raise the noise variance of the start, take fewer basis samples, or give the hyperparameters yourself"
        many = objective == "vif" and dataset.n_samples >= ROUGH_FROM
        rough = partial(VifObjective, dataset, targets, neighbours=ROUGH_NEIGHBOURS) if many else None
        return cls(objective, summary, evidence, EVIDENCES[objective], advice, rough)


@dataclass(frozen=True)
class _DrawnBasis(Basis):
    """A basis, its evidence, and the parameters by whose kernel its neighbours are near, where it has any."""

    ordered_by: FloatArray | None = None
    is_rough: bool = False

    @property
    def key(self) -> FloatArray:
        """Everything that evaluations are told apart by, the point apart."""
        if self.ordered_by is None:
            return self.inputs
        key = np.append(self.inputs, self.ordered_by)
        return np.append(key, 0.0) if self.is_rough else key


@dataclass(frozen=True)
class _Round:
    """The record of a search with one basis."""

    start: int
    value: float
    evaluations: int
    basis_size: int
    values: dict[str, float]

    def __str__(self) -> str:
        """One line for people."""
        shown = ", ".join(f"{name} {value:.3g}" for name, value in list(self.values.items())[-6:])
        more = "..., " if len(self.values) > 6 else ""
        return f"{self.value:.2f} after {self.evaluations} evaluations with {self.basis_size:,} samples: {more}{shown}"


def tune_by_bound(
    dataset: Dataset,
    context: RunContext | BlockExecutor,
    choices: Choices,
    settings: SearchSettings,
    *,
    objective: Evidence | SearchTargets = "bound",
    basis_size: int = BASIS_SIZES["bound"],
    note: Callable[[str], None] | None = None,
) -> Hyperparameters:
    """Find a kernel's hyperparameters and the noise variance by a sparse model's evidence on all samples.

    Raises `InputError`: no targets, NaN or infinity, names that do not exist, settings out of range, or a basis larger
    than the data; `NumericalError`: the evidence existed at no starting point; `InterruptedRunError`: the context asked
    for the end; the evaluations are saved if there are checkpoints.

    Parameters
    ----------
    context : RunContext or BlockExecutor
        Its executor goes through the samples, `within` is called in each pass, `interrupted` may end the search.
        Checkpoints hold the evaluations (`SearchStore`).
    choices, settings
        As for `dkgp.models.tune_dataset`; the seed is that of the bases, too, and `max_evaluations` the limit for each.
    objective : {"bound", "fitc", "vif"} or SearchTargets
        The variational bound, which is never above the exact log marginal likelihood and counts the residual
        of the basis as noise; FITC's likelihood, which tends to too little noise; or the likelihood of the model in
        which the residual of a sample depends on the nearest samples before it (`dkgp.models.sparse.vif`). That one is
        near the exact one for kernels that a basis cannot follow. Or that of other targets than a regression's.
    basis_size : int
        m, at most. One evaluation costs about 5 n m^2 FLOPS, of FITC 8; with neighbours 60 microseconds a sample in 8
        dimensions with a basis of 200.
    note : callable, optional
        Called with a line for each basis.

    Returns
    -------
    Hyperparameters
        On the standardised scale; `sparse` tells of the bases, and names the samples of the last one.
    """
    problem = check_bound(dataset, choices, settings, basis_size)
    targets = objective if isinstance(objective, SearchTargets) else SearchTargets.of(dataset, objective)
    watch = RunContext.of(context)
    loop = Loop(watch, {}, unit="evaluation", waits=False)
    search = BasisSearch(dataset, watch, problem, targets, basis_size, loop, note)
    with closing(search):
        try:
            loop.run(search)
        finally:
            # An error loses no evaluation either.
            if search.iteration > (loop.saved_iteration or 0):
                loop.save(search)
        return search.result()


def check_bound(dataset: Dataset, choices: Choices, settings: SearchSettings, basis_size: int) -> SearchProblem:
    """Check the arguments of `tune_by_bound` before anything is read or started; errors as there."""
    if dataset.n_targets == 0:
        raise InputError(f"'{dataset.url}' has no targets; ingest the data again and name them")
    if dataset.noise_name is not None:
        raise InputError(
            f"the evidence of a sparse model takes one noise variance for all samples, and '{dataset.url}' has a "
            f"column of known noise, '{dataset.noise_name}'. Tune by the `objective` likelihood or loo, which "
            "take it into account"
        )
    if not 1 <= basis_size <= dataset.n_samples:
        raise InputError(f"a basis has 1 to {dataset.n_samples:,} samples here; `basis_size` asks for {basis_size:,}")
    return SearchProblem.of(tuple(dataset.feature_names), choices, settings)


def plan_bound(
    n: int, d: int, m: int, p: int, executor: BlockExecutor, cache_bytes: int, objective: Evidence = "bound"
) -> Memory:
    """Project the memory of a search, as `plan_sparse` does for a fit."""
    fit = plan_sparse(n, d, m, p, executor, cache_bytes)
    if objective == "vif":
        neighbours = vif_bytes(n, d, m, p, executor.threads_per_process, Neighbours())
        return fit.plus(worker_bytes=neighbours)
    return fit.plus(worker_bytes=slopes_bytes(m, executor.threads_per_process))


class BasisSearch(Iteration):
    """The search from all starting points; a round ends with the optimum for one basis.

    - `evaluations`: outcomes by basis and parameters, for `_key`; None where the evidence does not exist.
    - `begin` (n, t) float32: where the next evaluation begins, of those that iterate, for t latent functions.
    """

    saved = ("begin",)
    counted = ("evaluations", "seconds")

    begin: NDArray[np.float32] | None = None

    def __init__(
        self,
        dataset: Dataset,
        context: RunContext,
        problem: SearchProblem,
        targets: SearchTargets,
        basis_size: int,
        loop: Loop,
        note: Callable[[str], None] | None,
    ) -> None:
        self.evaluations: dict[str, list[Any] | None] = {}
        self.clock = Clock()
        self.history: list[_Round] = []
        self._dataset, self._problem, self._watch, self._loop, self._note = dataset, problem, context, loop, note
        self._targets, self._basis_size = targets, basis_size
        # The coordinator needs few inputs: a basis is drawn from some, and the workers read theirs.
        unheld = RunContext(context.executor, within=self._heed, coordinator_input_bytes=0)
        self._evidence = targets.evidence(unheld)
        self._rough = targets.rough(unheld) if targets.rough is not None and problem.space.free.any() else None
        self._basis = _DrawnBasis(np.empty((0, len(problem.feature_names))))
        least = None
        if self._rough is not None:
            settings = replace(problem.settings, tolerance=LOOSER * problem.settings.tolerance)
            problem = self._problem = replace(problem, settings=settings)
            least = settings.tolerance * targets.summary.n_targets
        self._search, self._first = (
            LikelihoodSearch(self._likelihood, problem.space, problem.settings, least) for _ in range(2)
        )
        self._best_basis, self._looked_up = self._basis, 0
        self._rounds = self._climbs()
        self._reason: StopReason | None = None

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """Evaluations done, earlier runs included."""
        return len(self.evaluations)

    def close(self) -> None:
        """Release the neighbours."""
        for evidence in (self._evidence, self._rough):
            if isinstance(evidence, NearEvidence):
                evidence.close()

    def advance(self) -> None:
        """Search with the next basis; an earlier run's outcomes are looked up."""
        if (round_ := next(self._rounds, None)) is None:
            self._reason = StopReason("searched", True, "no other basis has greater evidence")
            if self._search.late or self._first.late:
                self._reason = StopReason("seconds", False, "the time is up")
            return
        self.history.append(round_)
        if self._note is not None:
            self._note(f"{self._targets.title} {round_}")

    def stop(self) -> StopReason | None:
        """Return the reason to stop."""
        return self._reason

    def _climbs(self) -> Iterator[_Round]:
        """Search from each starting point with one basis, and with another one as long as that pays."""
        for start, point in self._problem.starts(self._search, [self._targets.summary]):
            curvature = None
            if self._rough is not None and (basis := self._draw(point, start, 0, 0, is_rough=True)) is not None:
                optimum, round_ = self._climb(self._first, point, curvature, start, basis)
                if optimum is not None and round_ is not None:
                    yield round_
                    point, curvature = optimum.parameters, optimum.inverse_curvature
            if self._first.late:
                break
            basis = self._draw(point, start, 0, 0)
            for number in range(1, MOST_BASES + 1):
                if basis is None:
                    break
                optimum, round_ = self._climb(self._search, point, curvature, start, basis)
                if optimum is None or round_ is None:
                    break
                if optimum is self._search.best:
                    self._best_basis = basis
                yield round_
                if self._search.late:
                    return
                point, curvature = optimum.parameters, optimum.inverse_curvature if self._rough else None
                basis = self._better_basis(optimum, basis, start, number)

    def _climb(
        self, search: LikelihoodSearch, point: FloatArray, curvature: FloatArray | None, start: int, basis: _DrawnBasis
    ) -> tuple[Optimum | None, _Round | None]:
        """Search from a point with one basis."""
        self._basis, before = basis, self._looked_up
        optimum = search.run(point, curvature)
        if optimum is None:
            return None, None
        values = self._problem.space.named(optimum.parameters)
        if self._problem.choices.likelihood is not None:
            del values[NOISE_NAME]
        spent = self._looked_up - before
        return optimum, _Round(start, optimum.log_likelihood, spent, len(basis.inputs), values)

    def _better_basis(self, optimum: Optimum, before: _DrawnBasis, start: int, number: int) -> _DrawnBasis | None:
        """A basis of greater evidence at an optimum; None where no draw is."""
        if not self._problem.space.free.any():
            return None
        tolerance, draws = self._problem.settings.tolerance, DRAWS
        least = optimum.log_likelihood + tolerance * max(1.0, abs(optimum.log_likelihood))
        if self._rough is not None and before.ordered_by is not None:
            # Another basis would only be another draw, unless the kernel is another one.
            least = optimum.log_likelihood + tolerance * self._targets.summary.n_targets
            draws = int(self._has_moved(before.ordered_by, optimum.parameters))
        for draw in range(draws):
            basis = self._draw(optimum.parameters, start, number, draw)
            outcome = None if basis is None else self._evaluate(optimum.parameters, basis)
            if outcome is not None and outcome.value > least:
                return basis
        return None

    def _has_moved(self, old: FloatArray, new: FloatArray) -> bool:
        """Return whether a kernel with other log parameters (q,) has other neighbours and another basis."""
        floor = np.where(self._problem.space.gamma_like, MATTERS, 0.0)
        change = np.log(np.exp(new) + floor) - np.log(np.exp(old) + floor)
        return bool(np.abs(change[:-1]).max(initial=0.0) > MOVED)

    def _draw(self, parameters: FloatArray, *key: int, is_rough: bool = False) -> _DrawnBasis | None:
        """A basis for the kernel of these parameters, and its neighbours; None where it overflows."""
        seed = int(np.random.SeedSequence([self._problem.settings.seed, *key]).generate_state(1)[0])
        kernel, noise_variance = self._problem.point(parameters)
        evidence, size = self._evidence, self._basis_size
        if is_rough and self._rough is not None:
            evidence, size = self._rough, min(size, ROUGH_BASIS)
        try:
            with evidence.operator(kernel, noise_variance) as operator:
                basis = blind_basis(operator, "pivoted", size, seed)
            if not isinstance(evidence, NearEvidence):
                return _DrawnBasis(basis.inputs, basis.indices)
            evidence.hold(kernel)
            if self._note is not None and not is_rough and (unproven := evidence.unproven):
                self._note(f"of {100.0 * unproven:.3g} % of the samples the neighbours may not be the nearest")
            return _DrawnBasis(basis.inputs, basis.indices, parameters, is_rough)
        except (NumericalError, np.linalg.LinAlgError):
            return None

    def _likelihood(self, parameters: FloatArray) -> tuple[float, FloatArray] | None:
        outcome = self._evaluate(parameters, self._basis)
        return None if outcome is None else (outcome.value, self._problem.space.select(outcome.gradient))

    def _evaluate(self, parameters: FloatArray, basis: _DrawnBasis) -> BoundValue | None:
        self._looked_up += 1
        key = _key(basis.key, parameters)
        if key not in self.evaluations:
            self._loop.heed(self)
            evidence = self._rough if basis.is_rough and self._rough is not None else self._evidence
            if isinstance(evidence, NearEvidence):
                # The starting point decides its last bits: take the one of the checkpoint.
                evidence.start = self.begin
            try:
                found = evidence(*self._problem.point(parameters), basis.inputs)
                self.evaluations[key] = [found.value, found.gradient.tolist(), found.unexplained]
            except NumericalError:
                self.evaluations[key] = None
            if isinstance(evidence, NearEvidence):
                self.begin = evidence.start
            self._loop.save_if_due(self)
        record = self.evaluations[key]
        return None if record is None else BoundValue(record[0], np.array(record[1]), record[2])

    def _heed(self, progress: Progress) -> None:
        self._loop.heed(self)
        if self._watch.within is not None:
            self._watch.within(progress)

    def result(self) -> Hyperparameters:
        """Return the best values.

        Raises `NumericalError`: the evidence existed at no starting point.
        """
        best, basis = self._search.best, self._best_basis
        if best is None and self._first.late:
            best, basis = self._first.best, self._basis
        if best is None:
            raise NumericalError(
                f"the {self._targets.title} of {self._basis_size:,} basis samples existed at no starting point: "
                f"rounding exceeds the noise variance, or inputs are not standardised. {self._targets.advice}"
            )
        evaluations = self._looked_up
        kernel, noise_variance = self._problem.point(best.parameters)
        outcome = self._evaluate(best.parameters, basis)
        assert outcome is not None
        further = []
        unexplained = outcome.unexplained * float(np.mean(kernel.diagonal(basis.inputs)))
        if self._targets.objective == "bound" and unexplained > MUCH_LEFT * noise_variance:
            further.append(
                f"{len(basis.inputs):,} basis samples leave {100 * outcome.unexplained:.2g} % of the samples' "
                "variance, "
                f"{unexplained / noise_variance:.2g} of the noise variance: the tuned noise and length scales are too "
                "large for an exact model. For a sparse model of this size they are right; otherwise use a larger "
                "basis, or "
                "another objective"
            )
        return self._problem.hyperparameters(
            best,
            [self._targets.summary],
            further,
            evaluations=evaluations,
            seconds=self.seconds,
            n_samples=self._dataset.n_samples,
            objective=self._targets.objective,
            sparse={
                "value": best.log_likelihood,
                "basis_size": len(basis.inputs),
                "left": outcome.unexplained,
                "samples": None if basis.indices is None else basis.indices.tolist(),
                "rounds": [dict(vars(round_)) for round_ in self.history],
            },
        )
