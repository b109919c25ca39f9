"""The operator interface: products with Kbar = K + s2 I, and its parts, without Kbar in memory."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dkgp.errors import InputError
from dkgp.kernels import EntryCount, Features, Kernel, TileEvaluator
from dkgp.kernels.tiles.evaluator import Precision
from dkgp.progress import Progress, ProgressCallback

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
# Noise variances on the diagonal beside K: s2, or s2_i of each sample (n,).
Variances = float | FloatArray


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
    """Kbar = K + s2 I of n samples, or K + diag(s2_i) where the noise is given by sample.

    Parameters
    ----------
    noise_variance : float or (n,) array_like
        s2, or s2_i of each sample, on the scale of the standardised targets.
    n : int
        Number of samples.
    centre : (d,) float64, optional
        Subtracted from inputs where only differences matter; see `TileEvaluator`.

    Attributes
    ----------
    noise : float or (n,) float64
        The noise variances on the diagonal beside K; read-only.
    noise_variance : float
        The least of it: no eigenvalue of Kbar is below, so bounds divide by it.
    single, double : TileEvaluator
        The kernel's tiles in float32 and float64. `features` prepares rows for one of them.
    holds_inputs : bool
        Whether the coordinator holds all inputs; elsewhere `announce` saves round trips.
    entries : EntryCount
        Kernel entries evaluated for this operator so far, here and by the tasks of its rounds.
    approximate : bool
        Whether products in double precision are off by more than rounding.
    kept_share : float
        Share of K's entries that the last product in single precision read from tiles that are kept.
    error_rows : (n, t) float64
        Proven bounds on the errors of the last product's entries, where the operator is `approximate`. Empty, or zero,
        where products are exact but for rounding.
    products : Mapping
        Kind of products that are taken, and why, in plain JSON types; empty where nothing was to be chosen.
    """

    approximate: bool = False
    kept_share: float = 0.0
    holds_inputs: bool = True
    error_rows: FloatArray = np.zeros((0, 0))
    products: Mapping[str, Any] = MappingProxyType({})
    _watchers: tuple[ProgressCallback, ...] = ()

    def __init__(
        self, kernel: Kernel, noise_variance: float | ArrayLike, n: int, centre: FloatArray | None = None
    ) -> None:
        self.kernel = kernel
        self.n = int(n)
        self.noise = _checked_noise(noise_variance, self.n)
        self.noise_variance = float(np.min(self.noise))
        self.entries = EntryCount()
        self.single = TileEvaluator(kernel, "single", entries=self.entries, centre=centre)
        self.double = TileEvaluator(kernel, "double", entries=self.entries, centre=centre)
        self._typical_entries: dict[int, float] = {}

    @property
    def error_bound(self) -> float:
        """Greatest of `error_rows`, columns that are not finite apart; zero where products are exact."""
        return float(np.fmax.reduce(self.error_rows, axis=None, initial=0.0))

    @property
    def kept(self) -> dict[str, Any]:
        """Bytes kept of K between products, and why so many or so few; empty where nothing ever is."""
        return {}

    def foresee(self, done: int, remaining: float) -> None:  # noqa: B027  - most operators keep nothing
        """Tell the operator, before a round, how many rounds are done, and how many are foreseen, this one included."""

    @property
    def kernel_evaluations(self) -> int:
        """Kernel entries evaluated so far, those of selection and dense subproblems included.

        A product with a symmetric matrix evaluates about half of its entries.
        """
        return self.entries.value

    def noise_times(self, vectors: FloatArray, indices: IndexArray | None = None) -> FloatArray:
        """D V, the noise's part of a product, for V (n, t); or D_B V for the samples B = `indices` (m,), V (m, t)."""
        return np.asarray(column_of(self.noise, indices) * vectors)

    def with_noise(self, noise_variance: float | ArrayLike) -> Self:
        """Return the same K beside another noise; tiles, counts and watchers are shared.

        It is not closed: its memory goes with this operator's.
        """
        other = copy.copy(self)
        other.noise = _checked_noise(noise_variance, self.n)
        other.noise_variance = float(np.min(other.noise))
        return other

    def evaluator(self, precision: Precision) -> TileEvaluator:
        """Return the tile evaluator of a precision."""
        return self.single if precision == "single" else self.double

    @property
    def overlaps(self) -> bool:
        """True if work done between `submit_columns` and its result is free (see `BlockExecutor.overlaps`)."""
        return False

    @property
    def distributed(self) -> bool:
        """True where products are computed by other processes, and vectors travel to them and back."""
        return False

    @property
    def overlap_evaluations(self) -> int:
        """Kernel entries worth evaluating here instead of waiting (see `BlockExecutor.overlap_evaluations`)."""
        return 0

    @abstractmethod
    def diagonal(self) -> FloatArray:
        """Kbar's diagonal, k(x_i, x_i) + s2_i: (n,) float64."""

    @abstractmethod
    def row_errors(self) -> FloatArray:
        """Errors that the samples' own rounding adds to float64 entries of K: (n,); see `TileEvaluator.row_errors`."""

    @abstractmethod
    def features(self, indices: IndexArray, precision: Precision = "single") -> Features:
        """Prepared features of the samples `indices`, in that order, at the coordinator."""

    def announce(self, indices: IndexArray) -> None:  # noqa: B027  - most operators hold them
        """Name the samples whose features are needed next, which an out-of-core operator brings with a round."""

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
        """Kbar[rows, columns] in float64, the noise included where a row meets its own column."""
        left, right = self.features(rows, "double"), self.features(columns, "double")
        block = np.array(self.double.tile(left, right))
        row, column = np.nonzero(rows[:, None] == columns[None, :])
        block[row, column] += noise_at(self.noise, rows[row])
        return block

    def sharpen(self) -> bool:
        """Make the products of a solver's rounds more accurate by a digit; return whether they can be."""
        return False

    def typical_entry(self, sample: int = 512) -> float:
        """Root mean square of K's off-diagonal entries, from a seeded sample of rows and columns, kept."""
        if sample in self._typical_entries:
            return self._typical_entries[sample]
        samples = np.random.default_rng(0).choice(self.n, min(2 * sample, self.n), replace=False).astype(np.intp)
        half = max(1, len(samples) // 2)
        entries = self.single.tile(self.features(samples[:half]), self.features(samples[-half:]))
        self._typical_entries[sample] = float(np.sqrt(np.mean(entries.astype(np.float64) ** 2)))
        return self._typical_entries[sample]

    @contextmanager
    def watched(self, *watchers: ProgressCallback | None) -> Iterator[None]:
        """Have long work call these watchers with its progress while the context is open.

        A watcher may raise, which ends that work at once.
        """
        before, self._watchers = self._watchers, tuple(watcher for watcher in watchers if watcher is not None)
        try:
            yield
        finally:
            self._watchers = before

    def tell(self, phase: str, done: int, total: int, unit: str) -> None:
        """Report the progress of a long piece of work, such as one product or one factor, to the watchers."""
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


def column_of(noise: Variances, samples: IndexArray | slice | None = None) -> Variances:
    """Return noise variances in the shape that scales vectors (m, t): s2, or a column (m, 1) of some or all samples."""
    if isinstance(noise, float):
        return noise
    return (noise if samples is None else noise[samples])[:, None]


def noise_at(noise: Variances, samples: IndexArray | slice) -> Variances:
    """Return the noise of some samples, where it is by sample; the one variance that all have elsewhere."""
    return noise if isinstance(noise, float) else noise[samples]


def _checked_noise(noise: float | ArrayLike, n: int) -> Variances:
    """One variance, or those of n samples: finite and positive, in a read-only copy."""
    values = np.array(noise, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise InputError(
            f"the noise variance must be a number, or one for each of {n:,} samples; got shape {values.shape}"
        )
    invalid = ~(np.isfinite(values) & (values > 0.0))
    if not values.ndim:
        if invalid:
            raise InputError(f"the noise variance must be finite and positive; got {noise!r}")
        return float(values)
    if invalid.any():
        row = int(np.argmax(invalid))
        raise InputError(f"noise variances must be finite and positive; got {values[row]} for sample {row}")
    values.flags.writeable = False
    return values


def check_indices(n: int, indices: IndexArray) -> None:
    """Refuse samples that are not there: compiled code would read past its arrays."""
    if indices.ndim != 1 or (indices.size and (indices.min() < 0 or indices.max() >= n)):
        got = f"{indices.min()}..{indices.max()}" if indices.size else f"an array of shape {indices.shape}"
        raise InputError(f"sample indices must lie in 0..{n - 1}; got {got}")


def check_columns(n: int, indices: IndexArray, delta: FloatArray) -> None:
    """Refuse shapes that would only fail, or worse not fail, on a worker."""
    if indices.ndim != 1 or delta.ndim != 2 or delta.shape[0] != indices.shape[0]:
        raise InputError(f"expected indices (m,) and delta (m, t); got {indices.shape} and {delta.shape}")
    if indices.size and (indices.min() < 0 or indices.max() >= n):
        raise InputError(f"column indices must lie in 0..{n - 1}; got {indices.min()}..{indices.max()}")


def check_vectors(n: int, V: FloatArray) -> None:
    """Refuse vectors of another shape than (n, t)."""
    if V.ndim != 2 or V.shape[0] != n:
        raise InputError(f"expected an array of shape ({n}, t); got {V.shape}")
