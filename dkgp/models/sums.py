"""Sums over a model's support points at other inputs: K(T, X) V, entry by entry or within a proven error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data.stores.models.model import ModelAddress, SupportedModel
from dkgp.errors import ClusterError, NumericalError
from dkgp.models.certificate import Certificate
from dkgp.models.noise import Noise
from dkgp.models.rounding import certified_row_errors
from dkgp.operators.base import FloatArray, IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.operators.cross_sums import (
    LEAST_ENTRIES,
    REGION_ROWS,
    cross_sums,
    forecast_sums,
    near_order,
    require_cross_sums,
)
from dkgp.operators.cross_sums import PIECE_ROWS as WIDE_PIECE_ROWS
from dkgp.operators.product_error import ProductError

# Rows that a task computes at a time if every entry is evaluated.
PIECE_ROWS = 512
# Errors of sums that a forecast chooses: this share of the bound that a value has without them, at most.
SHARE_OF_BOUND = 0.01


@dataclass(frozen=True)
class Piece:
    """Rows of a region that are predicted together: [first, last) of the order in which its rows are taken."""

    # The region, in rows of the test set.
    start: int
    stop: int
    # Places in the region's order.
    first: int
    last: int


class Rows(Protocol):
    """Protocol of a test set."""

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised inputs [start, stop)."""


@dataclass(frozen=True)
class Sums:
    """A method to compute sums over support points.

    `errors` are proven bounds on the error of each sum, in its units: one for all columns of the weights, or
    one for each. None where every kernel entry is evaluated.
    """

    errors: float | tuple[float, ...] | None = None
    # Whether consecutive rows of the test set are neighbours in space.
    ordered: bool = False

    def products(
        self, context: BlockContext, inputs: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return K(inputs, X) @ weights for standardised inputs (r, d) and weights (n, t), in float64: (r, t).

        The second array bounds the errors of the sums, (r, t): zero for sums of all entries, which only rounding
        separates from the exact ones; None where all are such. With `errors`, `weights` are the same at each call.
        """
        if self.errors is None:
            return cross_products(context, inputs, weights), None
        errors = np.broadcast_to(np.asarray(self.errors, dtype=np.float64), (weights.shape[1],))
        sums, bounds = cross_sums(context, inputs, weights, errors)
        beyond = np.flatnonzero(~(bounds <= errors).all(axis=1))
        for start in range(0, len(beyond), PIECE_ROWS):
            rows = beyond[start : start + PIECE_ROWS]
            sums[rows], bounds[rows] = cross_products(context, inputs[rows], weights), 0.0
        return sums, bounds

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes that a store of predictions records on its sums."""
        if self.errors is None:
            return {}
        return {"product_error": list(self.errors) if isinstance(self.errors, tuple) else self.errors}

    @classmethod
    def of_attributes(cls, attributes: Mapping[str, Any]) -> Sums:
        """Return the sums that a store of predictions was started with."""
        errors = attributes.get("product_error")
        return cls(tuple(float(each) for each in errors) if isinstance(errors, list) else errors)

    @property
    def region_rows(self) -> int | None:
        """Preferred rows of a region of a store; None without a preference."""
        return None if self.errors is None else REGION_ROWS

    def require(self, context: BlockContext, executor: BlockExecutor, weights: FloatArray) -> None:
        """Raise `InputError` for a kernel without a bound on these sums, or errors below their roundings.

        Raise `ClusterError` if the bits of the workers differ.
        """
        if self.errors is not None:
            require_cross_sums(context.kernel, weights, self.errors if isinstance(self.errors, float) else None)
            executor.require_one_arithmetic()

    @property
    def piece_rows(self) -> int:
        """Rows of a piece, at most."""
        return PIECE_ROWS if self.errors is None else WIDE_PIECE_ROWS

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Cut a region into pieces, which depend on nothing else."""
        n, size = stop - start, self.piece_rows
        return [Piece(start, stop, first, min(first + size, n)) for first in range(0, n, size)]

    def read(self, context: BlockContext, test: Rows, piece: Piece) -> tuple[IndexArray, FloatArray]:
        """Return the rows of a piece, counted from the region's first, and their standardised inputs.

        Rows of one piece are neighbours where sums are quicker at these.
        """
        if self.errors is None or self.ordered:
            rows = np.arange(piece.first, piece.last)
            return rows, test.inputs(piece.start + piece.first, piece.start + piece.last)
        inputs = test.inputs(piece.start, piece.stop)
        # The region's other pieces use the same order.
        key = (context.run_id, "order", piece.start, piece.stop)
        rows = worker_cache().get(key, lambda: near_order(context, inputs))[piece.first : piece.last]
        return rows, inputs[rows]


EVERY_ENTRY = Sums()


def chosen_sums(
    context: BlockContext,
    executor: BlockExecutor,
    weights: FloatArray,
    tests: int,
    error: ProductError,
    errors: FloatArray,
    stored: Mapping[str, Any] | None = None,
    note: Callable[[str], None] | None = None,
) -> Sums:
    """Return the way to take sums K(T, X) @ weights at so many `tests`, within an error.

    With "auto" a forecast chooses sums within `errors` (t,) or those of every entry, by model and data alone; a
    prediction that is completed keeps to those of its `stored` attributes.

    Raises
    ------
    InputError
        A number for a kernel without proven bounds, or below the roundings of the sums.
    ClusterError
        The workers' bits differ, and sums within an error are requested or were started.
    """
    if error.value == "none":
        return EVERY_ENTRY
    if error.number is not None or stored is not None:
        sums = Sums(error.number) if stored is None or error.number is not None else Sums.of_attributes(stored)
        sums.require(context, executor, weights)
        return sums
    forecast = forecast_sums(context, tests, np.abs(weights).sum(axis=0), errors)
    if note is not None and forecast.reason is not None:
        note(forecast.reason)
    sums = Sums(tuple(errors.tolist())) if forecast.pays else EVERY_ENTRY
    try:
        sums.require(context, executor, weights)
    except ClusterError:
        if note is not None:
            note("sums evaluate every kernel entry: the workers' processors or libraries differ")
        return EVERY_ENTRY
    return sums


class MemorySums:
    """Choice of the way to take sums over a model's support points at rows in memory, call by call.

    `weights` returns the sums' weights (n, t) and the `errors` (t,) that are allowed to them, when they are first
    needed. With an `error` of "none" every entry is evaluated.
    """

    def __init__(
        self, context: BlockContext, error: ProductError, weights: Callable[[], tuple[FloatArray, FloatArray]]
    ) -> None:
        self._context, self._error, self._weights = context, error, weights
        self._masses: tuple[FloatArray, FloatArray] | None = None

    def at(self, inputs: FloatArray) -> tuple[Sums, IndexArray | None]:
        """Return the method for sums at standardised inputs (r, d), and the order of the inputs, if any."""
        if self._error.value == "none" or self._context.n * len(inputs) < LEAST_ENTRIES:
            return EVERY_ENTRY, None
        if self._masses is None:
            weights, errors = self._weights()
            self._masses = np.abs(weights).sum(axis=0), errors
        masses, errors = self._masses
        if not forecast_sums(self._context, len(inputs), masses, errors).pays:
            return EVERY_ENTRY, None
        return Sums(tuple(errors.tolist()), ordered=True), near_order(self._context, inputs)


def joined(
    results: Sequence[tuple[IndexArray, *tuple[FloatArray, ...]]], order: IndexArray | None = None
) -> list[FloatArray]:
    """Put pieces' values, (k, t) each after the numbers of their rows, in the order of the rows: (r, t) each.

    With an `order`, as by `MemorySums`, row i of the pieces is the row `order[i]` of the results.
    """
    rows = np.concatenate([rows for rows, *_ in results])
    rows = rows if order is None else order[rows]
    values_in_order = []
    for parts in zip(*(values for _, *values in results), strict=True):
        whole = np.concatenate(parts)
        values_in_order.append(np.empty_like(whole))
        values_in_order[-1][rows] = whole
    return values_in_order


def cross_products(context: BlockContext, inputs: FloatArray, weights: FloatArray) -> FloatArray:
    """Return K(inputs, X) @ weights for standardised inputs (rows, d) and weights (n, t), in float64: (rows, t)."""
    evaluator = context.evaluator("double")
    rows = evaluator.prepare(inputs)
    product = np.zeros((rows.n, weights.shape[1]))
    for block in range(context.n_blocks):
        first, last = context.bounds(block)
        product += evaluator.matmat(rows, context.block_features(block, "double"), weights[first:last])
    return finite_sums(product, inputs)


def finite_sums(sums: FloatArray, inputs: FloatArray) -> FloatArray:
    """Return sums (r, t) of kernel entries at standardised inputs (r, d); `NumericalError` where one is not finite."""
    if not np.isfinite(sums).all():
        row, column = np.argwhere(~np.isfinite(sums))[0]
        where = np.array2string(inputs[row], precision=3, threshold=6)
        raise NumericalError(
            f"a sum of kernel entries comes to {sums[row, column]} at the standardised inputs {where}: entries "
            "overflow there. Leave out samples that are so far out, scale the inputs, or choose another kernel"
        )
    return sums


@dataclass(frozen=True)
class _CachedModel:
    record: Any
    nbytes: int


def cached_model(version: str, find: Callable[[], Any]) -> Any:
    """Return the model of a run from this worker's cache; `find` opens it. `version` distinguishes runs."""

    def opened() -> _CachedModel:
        record = find()
        return _CachedModel(record, int(record.coefficients.nbytes))

    return worker_cache().get((version, "model"), opened).record


@dataclass(frozen=True)
class SupportInputs:
    """The support inputs of a stored model as an input source; travels as an address and opens where it is used."""

    kind: type[SupportedModel]
    address: ModelAddress
    version: str  # distinguishes the runs that use an address
    n_samples: int
    n_features: int

    @classmethod
    def of(cls, model: SupportedModel, version: str) -> Self:
        """Return the support inputs of a model that this process has opened."""
        return cls(type(model), model.address, version, model.n_support, model.n_features)

    def record(self) -> Any:
        """Open the model, or take it from this worker's cache."""
        return cached_model(self.version, lambda: self.kind.find(self.address))

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Standardised points start:stop."""
        inputs: FloatArray = self.record().inputs(start, stop)
        return inputs


@dataclass(frozen=True)
class NoisySupport:
    """Rows (x, s) of a model whose samples have known noise, s = sqrt(s2 / s2_i); see `dkgp.models.variance.scaled`."""

    plain: BlockContext  # of the model's support inputs and kernel
    noise_variance: float  # s2, the noise that all samples have

    @property
    def n_samples(self) -> int:
        """Number of samples n."""
        return self.plain.n

    @property
    def n_features(self) -> int:
        """Number of features, s among them."""
        return self.plain.source.n_features + 1

    @property
    def noise(self) -> Noise:
        """Noise of the samples."""
        assert isinstance(self.plain.source, SupportInputs)
        return Noise.of_model(self.plain.source.record(), self.noise_variance)

    def inputs(self, start: int, stop: int) -> FloatArray:
        """Rows start:stop."""
        roots = np.sqrt(self.noise_variance / self.noise.rows(slice(start, stop)).diagonal)
        return np.column_stack([self.plain.source.inputs(start, stop), roots])


def certified_means(
    context: BlockContext, certificate: Certificate, inputs: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return k_x' alpha at standardised inputs (rows, d), and bounds on their errors as means: (rows, p).

    Rows (x, s), where the context is of such.
    """
    means, bounds, _ = bounded_means(context, certificate, inputs, EVERY_ENTRY)
    return means, bounds


def bounded_means(
    context: BlockContext, certificate: Certificate, inputs: FloatArray, sums: Sums
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """Return the results of `certified_means`, and the bounds by `Sums.products` on the sums alone."""
    if isinstance(context.source, NoisySupport):
        context, inputs = context.source.plain, np.ascontiguousarray(inputs[:, :-1])
    assert isinstance(context.source, SupportInputs)
    means, off = sums.products(context, inputs, context.source.record().alpha)
    errors = certified_row_errors(context.kernel, context.source, inputs)
    bounds = certificate.mean_error_bound(context.kernel.diagonal(inputs), errors)
    return means, bounds if off is None else np.nextafter(bounds + off, np.inf), off
