"""The operator interface: what a solver may ask of Kbar = K + s2 I without anyone holding it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dkgp.data.types import Progress, ProgressCallback
from dkgp.errors import InputError
from dkgp.kernels import EntryCount, Features, Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision

__all__ = ["FloatArray", "IndexArray", "KernelOperator", "PendingColumns", "ReadyColumns"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]


class PendingColumns(Protocol):
    """A column product that was started."""

    def done(self) -> bool:
        """True if `result` would return without waiting."""

    def result(self) -> FloatArray:
        """Kbar[:, B] @ delta: (n, t) float64."""


class ReadyColumns:
    """A column product that needed no waiting."""

    def __init__(self, value: FloatArray) -> None:
        self._value = value

    def done(self) -> bool:
        """Return True."""
        return True

    def result(self) -> FloatArray:
        """Kbar[:, B] @ delta."""
        return self._value


class KernelOperator(ABC):
    """Kbar = K + s2 I of n samples.

    Parameters
    ----------
    kernel : Kernel
    noise_variance : float
        s2, on the scale of the standardised targets.
    n : int
        Number of samples.
    centre : (d,) float64, optional
        Taken off inputs of which only differences matter; see `TileEvaluator`.

    Attributes
    ----------
    single, double : TileEvaluator
        The kernel's tiles in float32 and float64. `features` prepares rows for one of them.
    holds_inputs : bool
        Whether the coordinator has all inputs at hand; where it has not, `announce` saves round trips.
    entries : EntryCount
        Kernel entries evaluated for this operator so far, here and by the tasks of its rounds.
    approximate : bool
        Whether products in double precision are off by more than rounding.
    error_bound : float
        Of an operator that is `approximate`: proven bound on the entries' errors in the last product. Zero elsewhere,
        where rounding is all there is.
    """

    approximate: ClassVar[bool] = False
    holds_inputs: bool = True
    error_bound: float = 0.0
    _watchers: tuple[ProgressCallback, ...] = ()

    def __init__(self, kernel: Kernel, noise_variance: float, n: int, centre: FloatArray | None = None) -> None:
        if not np.isfinite(noise_variance) or noise_variance <= 0.0:
            raise InputError(f"the noise variance must be finite and positive; got {noise_variance!r}")
        self.kernel = kernel
        self.noise_variance = float(noise_variance)
        self.n = int(n)
        self.entries = EntryCount()
        self.single = TileEvaluator(kernel, "single", entries=self.entries, centre=centre)
        self.double = TileEvaluator(kernel, "double", entries=self.entries, centre=centre)
        self._typical_entries: dict[int, float] = {}

    @property
    def kernel_evaluations(self) -> int:
        """Kernel entries evaluated so far: all of them, what selection and dense subproblems take included.

        A product with a symmetric matrix evaluates about half of its entries.
        """
        return self.entries.value

    def evaluator(self, precision: Precision) -> TileEvaluator:
        """Return the tile evaluator of a precision."""
        return self.single if precision == "single" else self.double

    @property
    def overlaps(self) -> bool:
        """True if work done between `submit_columns` and its result is free (see `BlockExecutor.overlaps`)."""
        return False

    @property
    def overlap_evaluations(self) -> int:
        """Kernel entries worth evaluating here instead of waiting (see `BlockExecutor.overlap_evaluations`)."""
        return 0

    @abstractmethod
    def diagonal(self) -> FloatArray:
        """Kbar's diagonal, k(x_i, x_i) + s2: (n,) float64."""

    @abstractmethod
    def row_errors(self) -> FloatArray:
        """Errors that the samples' own rounding adds to float64 entries of K: (n,); see `TileEvaluator.row_errors`."""

    @abstractmethod
    def features(self, indices: IndexArray, precision: Precision = "single") -> Features:
        """Prepared features of the samples `indices`, in that order, at the coordinator."""

    def announce(self, indices: IndexArray) -> None:  # noqa: B027  - most operators have them at hand
        """Say whose features will be asked for next, so that an out-of-core operator can bring them with a round."""

    @abstractmethod
    def submit_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> PendingColumns:
        """Start Kbar[:, B] @ delta for the columns B = `indices` (m,), distinct; `delta` is (m, t)."""

    def columns_to_evaluate(self, indices: IndexArray, precision: Precision = "single") -> int:
        """Number of these columns that a product with them would evaluate: all, unless an operator keeps columns."""
        return len(indices)

    def apply_columns(self, indices: IndexArray, delta: FloatArray, precision: Precision = "single") -> FloatArray:
        """Kbar[:, B] @ delta: (n, t) float64; see `submit_columns`."""
        return self.submit_columns(indices, delta, precision).result()

    @abstractmethod
    def matmat(self, V: FloatArray, precision: Precision = "double") -> FloatArray:
        """Kbar @ V for V (n, t): one full pass over the kernel matrix."""

    def submatrix(self, rows: IndexArray, columns: IndexArray) -> FloatArray:
        """Kbar[rows, columns] in float64, s2 included where a row meets its own column."""
        left, right = self.features(rows, "double"), self.features(columns, "double")
        block = np.array(self.double.tile(left, right))
        block[rows[:, None] == columns[None, :]] += self.noise_variance
        return block

    def typical_entry(self, sample: int = 512) -> float:
        """Root mean square of K's off-diagonal entries, from a seeded sample of rows and columns; found once."""
        if sample in self._typical_entries:
            return self._typical_entries[sample]
        chosen = np.random.default_rng(0).choice(self.n, min(2 * sample, self.n), replace=False).astype(np.intp)
        half = max(1, len(chosen) // 2)
        entries = self.single.tile(self.features(chosen[:half]), self.features(chosen[-half:]))
        self._typical_entries[sample] = float(np.sqrt(np.mean(entries.astype(np.float64) ** 2)))
        return self._typical_entries[sample]

    @contextmanager
    def watched(self, *watchers: ProgressCallback | None) -> Iterator[None]:
        """Have work that may take minutes tell these of its progress while the context is open.

        Whoever is told may raise, which ends that work at once.
        """
        before, self._watchers = self._watchers, tuple(watcher for watcher in watchers if watcher is not None)
        try:
            yield
        finally:
            self._watchers = before

    def tell(self, phase: str, done: int, total: int, unit: str) -> None:
        """Tell how far a long piece of work has come, as often as it takes a moment: one product, one factor."""
        for watcher in self._watchers:
            watcher(Progress(phase, done, total, unit))

    def close(self) -> None:  # noqa: B027  - some hold nothing
        """Release threads and caches held for this operator."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_indices(n: int, indices: IndexArray) -> None:
    """Refuse samples that are not there: compiled code would read past its arrays."""
    if indices.ndim != 1 or (indices.size and (indices.min() < 0 or indices.max() >= n)):
        found = f"{indices.min()}..{indices.max()}" if indices.size else f"an array of shape {indices.shape}"
        raise InputError(f"sample indices must lie in 0..{n - 1}; got {found}")


def check_columns(n: int, indices: IndexArray, delta: FloatArray) -> None:
    """Refuse shapes that would only fail, or worse not fail, on a worker."""
    if indices.ndim != 1 or delta.ndim != 2 or delta.shape[0] != indices.shape[0]:
        raise InputError(f"expected indices (m,) and delta (m, t); got {indices.shape} and {delta.shape}")
    if indices.size and (indices.min() < 0 or indices.max() >= n):
        raise InputError(f"column indices must lie in 0..{n - 1}; got {indices.min()}..{indices.max()}")
