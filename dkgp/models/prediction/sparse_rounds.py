"""Rounds that predict with a sparse model: a worker's first task opens its store, and keeps it for the others.

Pieces of a region are the same whoever computes them, and so are the bits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import psutil

from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.executors.base import BlockExecutor, PendingRound, split_evenly
from dkgp.data import ClassifierRecord, Dataset, SparseRecord
from dkgp.data.stores.manifest import described_whole
from dkgp.data.stores.models.references import referenced_training_set
from dkgp.errors import InputError, MemoryBudgetError, NumericalError
from dkgp.kernels import fold_white, kernel_from_json
from dkgp.models.prediction.sparse import PIECE_ROWS, SparsePredicted, SparsePredictorSource
from dkgp.models.prediction.streaming import MEANS, VARIANCES, Rounds, Streamed, Together
from dkgp.models.rounding import assumptions, variance_in_units
from dkgp.models.sparse.model import method_named
from dkgp.models.sparse.near import held_bytes, near_task_bytes, points_bytes
from dkgp.models.variance.greedy import BasisRun
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.base import FloatArray
from dkgp.operators.block_tasks import BlockContext

# Settings of variances that only an exact model uses.
_EXACT_ONLY = ("gap", "max_passes", "rank", "halo", "batch_size", "keep_factor")


def sparse_mean_task(
    source: SparsePredictorSource, test: Dataset, pieces: list[tuple[int, int]]
) -> list[SparsePredicted]:
    """Predictions of the test rows of each piece."""
    predictor = source.predictor()
    return [predictor.at(test.inputs(start, stop)) for start, stop in pieces]


@needs_one_arithmetic
def sparse_variance_task(
    source: SparsePredictorSource, test: Dataset, pieces: list[tuple[int, int]]
) -> list[SparsePredicted]:
    """The same with variances, or neighbours, which take triangular solves of LAPACK's."""
    return sparse_mean_task(source, test, pieces)


@dataclass(frozen=True)
class PredictionMemory:
    """Projected bytes of a worker's process that predicts with a sparse model."""

    # Basis samples, features, targets.
    m: int
    d: int
    p: int
    threads: int  # tasks at once
    variance: bool
    # Of a model with neighbours: samples, and neighbours of each prediction
    n: int = 0
    neighbours: int = 0
    by_target: bool = False  # a noise and a triangle for each, as of a classifier's latent functions

    @classmethod
    def of(cls, model: SparseRecord | ClassifierRecord, threads: int, variance: bool) -> PredictionMemory:
        """Of a stored model; of a classifier one with neighbours."""
        n = 0 if model.near_inputs is None else len(model.near_inputs)
        m = model.basis_size if isinstance(model, SparseRecord) else model.n_support
        p = model.n_targets if isinstance(model, SparseRecord) else model.n_outputs
        by_target = isinstance(model, ClassifierRecord)
        return cls(m, model.n_features, p, threads, variance, n, model.neighbours or 0, by_target)

    @property
    def model_bytes(self) -> int:
        """Of the model: weights, prototypes and two triangles, and the subset's for intervals."""
        basis = 8 * ((3 if self.variance else 2) * self.m**2 + self.m * (2 * self.d + self.p + 4))
        if not self.n:
            return basis
        rows = held_bytes(self.n, self.m) + points_bytes(self.n, self.d)
        triangles, noise = (2 * self.p, 2 * self.p) if self.by_target else (1, 1)  # two: also in another order
        return basis + 8 * (triangles * self.m**2 + self.n * (self.d + self.p + noise)) + rows

    @property
    def making_bytes(self) -> int:
        """Further bytes while it is opened: chunks, arrays in two orders, and what judges a triangle."""
        # Points and their features, before they are in kd order.
        triangles = (4 if self.variance else 2) + (self.p if self.by_target else 0)
        return 8 * self.m**2 * triangles + self.n * (12 * self.d + 40)

    @property
    def task_bytes(self) -> int:
        """Of one task: a few columns of the basis by rows of a piece, and the rows."""
        columns = 5 * self.m if self.variance else 0
        basis = 8 * PIECE_ROWS * (columns + 4 * self.d + 8 * self.p + 16)
        return basis + (near_task_bytes(self.neighbours, self.d, self.m, self.p) if self.n else 0)

    @property
    def worker_bytes(self) -> int:
        """Of the process."""
        return self.model_bytes + max(self.making_bytes, self.threads * self.task_bytes)

    def require(self, allowed_bytes: int | None) -> None:
        """Refuse what exceeds the memory that was asked for, or what is free on this machine.

        Raises `MemoryBudgetError`: names the parts.
        """
        budget = int(psutil.virtual_memory().available) if allowed_bytes is None else allowed_bytes
        if self.worker_bytes > budget:
            less = "Train with fewer basis samples"
            if not self.by_target:
                alone = ", predict means alone" if self.variance else ""
                less = f"Raise `memory_bytes`{alone}, or train with fewer basis samples"
            near = f" and {self.n:,} samples near" if self.n else ""
            raise MemoryBudgetError(
                f"predicting with a sparse model of {self.m:,} basis samples{near} takes "
                f"{self.worker_bytes / 1e6:,.4g} MB in each worker's process: "
                f"{self.model_bytes / 1e6:,.4g} MB for the model, "
                f"{self.making_bytes / 1e6:,.4g} MB while it is opened, {self.task_bytes / 1e6:,.4g} MB for each of "
                f"{self.threads} tasks; {budget / 1e6:,.4g} MB are {'free' if allowed_bytes is None else 'allowed'}. "
                f"{less}"
            )


def of_unproven(unproven: int, computed: int, searched: int | None) -> str | None:
    """A line on so many of the predictions computed, whose neighbours may not be the nearest; None where all are."""
    if not unproven:
        return None
    return (
        f"of {100.0 * unproven / computed:.3g} % of these samples the neighbours may not be the nearest: each search "
        f"looked at {searched:,} samples at most, and is exact with more"
    )


class SparseRounds(Rounds):
    """Rounds of a sparse model, which workers' caches keep under `version`; the first task of a worker opens it.

    Raises `InputError` for a method that this dkgp does not know and for settings of variances that only an exact model
    takes, `MemoryBudgetError` where the model does not fit in a worker's memory.
    """

    def __init__(
        self,
        model: SparseRecord,
        test: Dataset,
        executor: BlockExecutor,
        version: str,
        variance: VarianceSettings | None,
    ) -> None:
        method = method_named(model.method)
        self._computed = self._unproven = 0
        self._executor, self._test, self._model = executor, test, model
        self._variance = variance is not None
        latent = variance is not None and variance.latent
        self._solves = self._variance or method.neighbours
        if variance is not None:
            refuse_exact_settings(variance)
        if self._solves:
            executor.require_one_arithmetic()
        memory = PredictionMemory.of(model, executor.threads_per_process, self._variance)
        memory.require(None if variance is None else variance.memory_bytes)
        self._source = SparsePredictorSource(model.url, version, self._variance, latent)
        self.n_support, self.assumes = model.basis_size, assumptions(kernel_from_json(model.kernel))
        self.variables = VARIANCES if self._variance else MEANS
        self.attributes = {} if self.assumes is None else {"assumes": self.assumes}
        with described_whole(model.url, "train again"):
            distance = np.array(model.certificate["rms_bound"], dtype=np.float64) * model.standardisation.target_std
        self.attributes |= {
            "method": method.name,
            "basis_size": model.basis_size,
        }
        if not method.neighbours:
            # In the targets' units, as `dkgp info` has it; of the mean of a model with neighbours there is none.
            self.attributes["rms_bound_raw"] = distance.tolist()
        if variance is not None:
            scale = np.asarray(model.standardisation.target_std)
            self.attributes |= {
                "variance": {"latent": latent, "gap": None},
                "noise_variance": (model.noise_variance * scale**2).tolist(),
            }

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""
        pieces = [(first, min(first + PIECE_ROWS, stop)) for first in range(start, stop, PIECE_ROWS)]
        groups = split_evenly(pieces, self._executor.parallelism)
        task = sparse_variance_task if self._solves else sparse_mean_task
        return self._executor.submit("ksparse", task, (self._source, self._test), groups)

    def conclude(self) -> str | None:
        """Say of how many samples the neighbours may not be the nearest, if of any."""
        return of_unproven(self._unproven, self._computed, self._model.search_samples)

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """Join a region's pieces."""
        self._computed += sum(len(piece.mean) for piece in results)
        self._unproven += sum(piece.unproven for piece in results)
        names = {name: "mean_error" if name == "mean_error_bound" else name for name in self.variables}
        return {name: np.concatenate([getattr(piece, field) for piece in results]) for name, field in names.items()}

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """Figures of the variances: method, latent, outside (a share), gap_mean, gap_max, computed."""
        if not self._variance:
            return None
        return {
            "method": self._model.method,
            "latent": self.attributes["variance"]["latent"],
            "outside": streamed.outside / self._test.n_samples,
            "seconds_per_sample": seconds / max(1, streamed.computed),
            **streamed.gaps(None),
        }


def refuse_exact_settings(settings: VarianceSettings) -> None:
    """Refuse settings of variances that a sparse model has no use for; `InputError`."""
    default = {field.name: field.default for field in fields(VarianceSettings)}
    unused = [name for name in _EXACT_ONLY if getattr(settings, name) != default[name]]
    if unused:
        named = ", ".join(f"`{name}`" for name in unused)
        raise InputError(
            f"{named}: of use with exact models only. Variances of a sparse model are its method's own, and their "
            "proven intervals as wide as its basis leaves them; leave this out, or train an exact model"
        )


class SparseRoundsWithBases(SparseRounds):
    """As `SparseRounds`; the interval is what the model's own and that of bases of training samples have in common.

    A sparse model's store has no training samples: they are read where they were when it was trained.

    Raises `InputError`: noise by sample, which the store does not have of all; `StoreError`: the training set is gone,
    has changed or may not be named.
    """

    def __init__(
        self, model: SparseRecord, test: Dataset, executor: BlockExecutor, version: str, variance: VarianceSettings
    ) -> None:
        if model.basis_noise is not None or "noise_by_sample" in model.summary:
            raise InputError(
                f"`basis`: '{model.url}' was fitted with a noise of its own for each sample, which it does not have of "
                "all; leave it out"
            )
        settings = VarianceSettings(latent=variance.latent, memory_bytes=variance.memory_bytes)
        super().__init__(model, test, executor, version, settings)
        training = referenced_training_set(model.url, model.described(), None)
        kernel, noise_variance = fold_white(kernel_from_json(model.kernel), model.noise_variance)
        context = BlockContext(version, training, kernel, training.n_samples)
        self._bases = BasisRun(context, noise_variance, None, test, executor, variance)
        self.attributes["variance"] = self._bases.plan
        self.depth, self.region_rows = self._bases.depth, self._bases.region_rows

    def prepare(self) -> str | None:
        """Say what the bases will take."""
        return self._bases.prepare()

    def submit(self, start: int, stop: int) -> PendingRound:
        """Start a region."""
        return Together([super().submit(start, stop), self._bases.submit(start, stop)])

    def values(self, results: list[Any]) -> dict[str, FloatArray]:
        """Join a region's pieces and bases."""
        sparse, bases = results
        values = super().values(sparse)
        *_, lower, upper = self._bases.collect(bases)
        low, high = variance_in_units(lower, upper, self._model.standardisation.target_std)
        low, high = np.maximum(values["variance_lower"], low), np.minimum(values["variance_upper"], high)
        if (low > high).any():
            raise NumericalError("bounds on a variance contradict each other: the kernel is not positive definite")
        return {**values, "variance_lower": low, "variance_upper": high}

    def summary(self, seconds: float, streamed: Streamed) -> dict[str, Any] | None:
        """Figures of the variances, and of the bases."""
        return {**self._bases.summary(seconds), **(super().summary(seconds, streamed) or {})}
