"""The posterior of a sparse model: the method's own mean and variance, with proofs about the exact model's values.

The mean has a bound on its distance from the exact model's mean. The variance has a proven interval of the exact
variance. Both come from the sparse model alone. With neighbours, the proofs concern the basis' own mean f; |m - f| is
added to the bound of the mean m. A worker's first task opens the model's store, and keeps it for the others. The pieces
of a region do not depend on the worker that computes them, and neither do the bits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import PendingRound
from dkgp.cluster.threads import in_parallel, single_threaded_blas
from dkgp.data import SparseRecord, memory_model
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.model import ModelAddress
from dkgp.data.stores.models.references import referenced_training_set
from dkgp.data.stores.models.regression import NearArrays
from dkgp.errors import InputError, NumericalError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.memory import Memory, Part
from dkgp.models.prediction.posterior import (
    MEANS,
    VARIANCES,
    Columns,
    Pending,
    Posterior,
    Streamed,
    Want,
    pieces_of,
)
from dkgp.models.rounding import EPS, assumptions, mean_in_units, noise_in_units, outward, variance_in_units
from dkgp.models.sparse.bounds import Points
from dkgp.models.sparse.model import method_named
from dkgp.models.sparse.near import held_bytes, near_task_bytes, points_bytes
from dkgp.models.sparse.stored import OpenedSparse, opened_sparse
from dkgp.models.variance.greedy import BasisRun
from dkgp.models.variance.run import Parts, Request
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import TestRows, VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

PIECE_ROWS = 1024
# Settings of variances that only an exact model uses.
_EXACT_ONLY = ("gap", "max_passes", "rank", "halo", "batch_size", "keep_factor", "way")


class SparseEvaluator:
    """Predicts standardised rows by an opened model, in this process.

    `variance`: predict variances too. Bounds on means are then narrower: they use the exact variance's upper end
    instead of k(x, x). `latent`: variances of the function, without the noise. `threads`: all cores by default; results
    do not depend on the number.
    """

    def __init__(self, opened: OpenedSparse, *, variance: bool, latent: bool, threads: int | None = None) -> None:
        self._opened, self._threads = opened, threads
        self._interval = opened.interval() if variance else None
        self._noise = 0.0 if latent else opened.record.noise_variance
        self._near = opened.near_predictor

    @property
    def nbytes(self) -> int:
        """Bytes of the model's arrays and the interval's triangle; never more than a cache would keep."""
        m = self._opened.model.m
        nbytes = self._opened.model.nbytes + (0 if self._interval is None else 8 * m**2)
        nbytes += 0 if self._opened.near is None else self._opened.near.nbytes
        return min(nbytes, worker_cache().budget_bytes)

    def at(self, rows: FloatArray) -> tuple[Columns, int]:
        """Return the columns at standardised inputs (r, d), and the rows whose neighbours may not be the nearest."""
        r, p = len(rows), self._opened.record.n_targets
        mean, bound = np.empty((r, p)), np.empty((r, p))
        variance, lower, upper = np.empty(r), np.empty(r), np.empty(r)

        def work(piece: int) -> None:
            where = slice(piece * PIECE_ROWS, (piece + 1) * PIECE_ROWS)
            parts = (values[where] for values in (rows, mean, bound, variance, lower, upper))
            self._predict(*parts)

        with single_threaded_blas():
            in_parallel(work, -(-r // PIECE_ROWS), self._threads)
        unproven = 0
        if self._near is not None:
            near, variance, missed = self._near.predicted(rows, self._threads)
            unproven = int(missed.sum())
            # Rounding of a difference of two numbers, and of a sum.
            mean, bound = near, (np.abs(near - mean) + bound) * (1.0 + 4.0 * EPS)
        to = self._opened.record.standardisation
        columns = Columns(zip(MEANS, mean_in_units(mean, bound, to.target_std, to.target_mean), strict=True))
        if self._interval is None:
            return columns, unproven
        low, high = outward(lower + self._noise, upper + self._noise)
        with np.errstate(over="ignore"):  # like the interval's ends: infinite beyond the largest number
            columns["variance"] = (variance + self._noise)[:, None] * np.asarray(to.target_std) ** 2
        ends = variance_in_units(np.maximum(low, 0.0), high, to.target_std)
        columns["variance_lower"], columns["variance_upper"] = ends
        return columns, unproven

    def _predict(
        self,
        rows: FloatArray,
        mean: FloatArray,
        bound: FloatArray,
        variance: FloatArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        """Write the basis' predictions at standardised rows into the arrays."""
        model, certificate = self._opened.model, self._opened.certificate
        points = Points.of(model.kernel, model.evaluator(), rows)
        mean[:] = model.mean(rows)
        upper[:] = points.highest
        if self._interval is not None:
            lower[:], upper[:] = self._interval(rows)
            variance[:] = model.variance(rows)
        bound[:] = certificate.mean_error_bound(upper, points.prior, points.errors)


@dataclass(frozen=True)
class SparseSource:
    """Address of a worker's evaluator; travels with tasks. Its other fields have the meaning of `SparseEvaluator`."""

    address: ModelAddress
    version: str  # key of the model's data in the worker's cache
    variance: bool
    latent: bool

    def evaluator(self) -> SparseEvaluator:
        """Return this process's evaluator for calls by single threads. The first call builds it; other calls wait."""
        return worker_cache().get((self.version, "evaluator", self.variance, self.latent), self._make)

    def _make(self) -> SparseEvaluator:
        opened = opened_sparse(SparseRecord.find(self.address))
        return SparseEvaluator(opened, variance=self.variance, latent=self.latent, threads=1)


def sparse_mean_task(source: SparseSource, test: TestRows, pieces: list[tuple[int, int]]) -> list[tuple[Columns, int]]:
    """Return predictions of the test rows of each piece."""
    evaluator = source.evaluator()
    return [evaluator.at(test.inputs(start, stop)) for start, stop in pieces]


@needs_one_arithmetic
def sparse_variance_task(
    source: SparseSource, test: TestRows, pieces: list[tuple[int, int]]
) -> list[tuple[Columns, int]]:
    """Return predictions like `sparse_mean_task`, with variances or neighbours, by LAPACK's triangular solves."""
    return sparse_mean_task(source, test, pieces)


def plan_prediction(
    sizes: tuple[int, int, int],
    threads: int,
    variance: bool,
    near: tuple[int, int] | None = None,
    *,
    by_target: bool = False,
) -> Memory:
    """Project the memory of a worker's process that predicts with a sparse model.

    Parameters
    ----------
    sizes
        Basis samples m, features d and targets p.
    threads
        Concurrent tasks.
    near
        For a model with neighbours: samples, and neighbours of each prediction.
    by_target
        Whether each target has its own noise and triangle, as for a classifier's latent functions.
    """
    m, d, p = sizes
    # Weights, prototypes and two triangles, and the subset's triangle for intervals.
    model = 8 * ((3 if variance else 2) * m**2 + m * (2 * d + p + 4))
    # Chunks, arrays in two orders, and the test of a triangle. The reading thread may hold one more for a moment.
    opening = 8 * m**2 * ((4 if variance else 3) + (p if by_target else 0))
    # A few columns of the basis for the rows of a piece, and the rows.
    task = 8 * PIECE_ROWS * ((5 * m if variance else 0) + 4 * d + 8 * p + 16)
    words = f"predicting with a sparse model of {m:,} basis samples"
    if near is not None:
        n, neighbours = near
        triangles, noise = (2 * p, 2 * p) if by_target else (1, 1)  # two: the second is in another order
        model += 8 * (triangles * m**2 + n * (d + p + noise)) + held_bytes(n, m) + points_bytes(n, d)
        opening += n * (12 * d + 40)  # points and features, before they are in kd order
        task += near_task_bytes(neighbours, d, m, p)
        words += f" and {n:,} samples near"
    parts = {
        "model_bytes": Part(model, "worker", "the model {} (smaller if it is trained with fewer basis samples)"),
        "opening_bytes": Part(opening, "worker", "opening it {}", phase="opening"),
        "tasks_bytes": Part(threads * task, "worker", f"{threads} tasks {{}}", phase="tasks"),
    }
    advice = "" if by_target else f". Raise `memory_bytes`{', or predict means alone' if variance else ''}"
    return Memory(words, parts, True, process="each worker's process", runtime_bytes=0, advice=advice)


def prediction_memory(model: NearArrays, threads: int, variance: bool) -> Memory:
    """Project the memory of a worker's process that predicts with a stored sparse model, or such a classifier."""
    near = None if model.near_inputs is None else (len(model.near_inputs), model.neighbours or 0)
    sizes = model.n_support, model.n_features, model.n_outputs
    return plan_prediction(sizes, threads, variance, near, by_target=model.class_names is not None)


def of_unproven(unproven: int, computed: int, searched: int | None) -> str | None:
    """Return a message on the predictions whose neighbours may not be the nearest; None if there are none."""
    if not unproven:
        return None
    return (
        f"of {100.0 * unproven / computed:.3g} % of these samples the neighbours may not be the nearest: each search "
        f"looked at {searched:,} samples at most, and is exact with more"
    )


def refuse_exact_settings(settings: VarianceSettings) -> None:
    """Raise `InputError` for settings of variances that a sparse model cannot use."""
    default = {field.name: field.default for field in fields(VarianceSettings)}
    unused = [name for name in _EXACT_ONLY if getattr(settings, name) != default[name]]
    if unused:
        named = ", ".join(f"`{name}`" for name in unused)
        values = ", ".join(str(getattr(settings, name)) for name in unused)
        raise InputError(
            f"{named} can be set only for exact models; got {values}. Variances of a sparse model are its method's "
            "own, and their proven intervals as wide as its basis leaves them. Leave this out, or train an exact model"
        )


class SparsePosterior(Posterior[SparseRecord]):
    """Predictions of a sparse model.

    With a `basis` for each variance, the interval is the intersection of the model's own interval and that of bases of
    training samples. The training samples are read from their location at the time of training.

    Parameters
    ----------
    opened : OpenedSparse, optional
        The opened model, for rows in memory.

    Raises
    ------
    InputError
        If this dkgp does not know the method, if settings of variances apply only to an exact model, or if a basis is
        given and the samples have individual noise.
    StoreError
        If a basis is given, and the training set is missing, has changed or may not be named.
    MemoryBudgetError
        If the model does not fit in a worker's memory.
    """

    def __init__(self, model: SparseRecord, want: Want, opened: OpenedSparse | None = None) -> None:
        method, variance = method_named(model.method), want.variance
        self.model, self._want = model, want
        self._computed = self._unproven = 0
        latent = variance is not None and variance.latent
        if variance is not None and want.test is None:
            refuse_exact_settings(variance)
        self._solves = variance is not None or method.neighbours
        if variance is not None and variance.basis is not None and want.test is not None:
            self._refuse_noise()
            variance = VarianceSettings(latent=latent, memory_bytes=variance.memory_bytes)
        self._evaluator: SparseEvaluator | None = None
        if want.test is None:
            of_model, threads = opened or opened_sparse(model), want.executor.parallelism
            self._evaluator = SparseEvaluator(of_model, variance=variance is not None, latent=latent, threads=threads)
            self.nbytes = self._evaluator.nbytes
        else:
            self._require(want, variance)
        self._source = SparseSource(model.address, want.version, variance is not None, latent)
        self.n_support, self.assumes = model.basis_size, assumptions(kernel_from_json(model.kernel))
        self.variables = MEANS if variance is None else VARIANCES
        self.attributes = {} if self.assumes is None else {"assumes": self.assumes}
        self.attributes |= {"method": method.name, "basis_size": model.basis_size}
        scale = np.asarray(model.standardisation.target_std)
        with described_whole(model.url, "train again"):
            distance = np.array(model.certificate["rms_bound"], dtype=np.float64) * scale
        if not method.neighbours:
            # In the targets' units, as in `dkgp info`; the mean of a model with neighbours has none.
            self.attributes["rms_bound_raw"] = distance.tolist()
        if variance is not None:
            self.attributes["variance"] = {"latent": latent, "gap": None}
            self.attributes["noise_variance"] = noise_in_units(model.noise_variance, scale)
        self._bases: BasisRun | None = None
        if want.test is not None and want.variance is not None and want.variance.basis is not None:
            bases = self._bases = BasisRun(self._basis_request(want, want.variance))
            self.attributes["variance"] = bases.plan
            self.depth, self.region_rows = bases.depth, bases.region_rows

    def _require(self, want: Want, variance: VarianceSettings | None) -> None:
        """Refuse inapplicable settings, unlike workers, and a model that does not fit into the workers' memory."""
        if variance is not None:
            refuse_exact_settings(variance)
        if self._solves:
            want.executor.require_one_arithmetic()
        memory = prediction_memory(self.model, want.executor.threads_per_process, variance is not None)
        memory.require(None if variance is None else variance.memory_bytes)

    def _refuse_noise(self) -> None:
        if self.model.basis_noise is not None or "noise_by_sample" in self.model.summary:
            raise InputError(
                f"`basis`: '{self.model.url}' was fitted with a noise of its own for each sample, which it does not "
                "have of all; leave it out"
            )

    def _basis_request(self, want: Want, variance: VarianceSettings) -> Request:
        assert want.test is not None
        training = referenced_training_set(self.model.url, self.model.described(), None)
        kernel, noise_variance = fold_white(kernel_from_json(self.model.kernel), self.model.noise_variance)
        context = BlockContext(want.version, training, kernel, training.n_samples)
        unknown = np.broadcast_to(0.0, (training.n_samples, self.model.n_targets))  # nothing is predicted from it
        samples = memory_model(training, kernel=kernel.to_json(), noise_variance=noise_variance, alpha=unknown)
        subject = Subject(samples, kernel, context, samples)
        return Request(subject, None, want.test, want.executor, variance)

    def prepare(self) -> str | None:
        """Return a message on the cost of the bases."""
        return None if self._bases is None else self._bases.prepare()

    def remark(self) -> str | None:
        """Return a message with the number of samples whose neighbours may not be the nearest, if there are any."""
        return of_unproven(self._unproven, self._computed, self.model.search_samples)

    def submit(self, rows: TestRows, start: int, stop: int, parts: Parts | None = None) -> Pending:
        """Start a region. Rows in memory are one piece, which threads share."""
        if self._evaluator is not None:
            columns, _ = self._evaluator.at(rows.inputs(start, stop))
            return Pending([], lambda results: columns)
        task = sparse_variance_task if self._solves else sparse_mean_task
        rounds: list[PendingRound] = [
            self._start("ksparse", task, (self._source, rows), pieces_of(start, stop, PIECE_ROWS))
        ]
        if self._bases is not None:
            rounds.append(self._bases.submit(rows, start, stop))
        return Pending(rounds, self._joined)

    def _joined(self, results: list[Any]) -> Columns:
        """Join a region's pieces, and bases."""
        pieces = [columns for columns, _ in results[0]]
        columns = Columns({name: np.concatenate([piece[name] for piece in pieces]) for name in self.variables})
        self._computed += len(columns["mean"])
        self._unproven += sum(unproven for _, unproven in results[0])
        if self._bases is not None:
            ends = self._bases.collect(results[1])
            low, high = variance_in_units(ends.lower, ends.upper, self.model.standardisation.target_std)
            low, high = np.maximum(columns["variance_lower"], low), np.minimum(columns["variance_upper"], high)
            if (low > high).any():
                raise NumericalError("bounds on a variance contradict each other: the kernel is not positive definite")
            columns["variance_lower"], columns["variance_upper"] = low, high
        return columns

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """Return figures of the variances and of the bases, including outside (a share), gap_mean and gap_max."""
        if self._want.variance is None or self._want.test is None:
            return None
        return {
            **({} if self._bases is None else self._bases.summary(seconds)),
            "method": self.model.method,
            "latent": self.attributes["variance"]["latent"],
            "outside": streamed.outside / self._want.test.n_samples,
            "seconds_per_sample": seconds / max(1, streamed.computed),
            **streamed.gaps(None),
        }
