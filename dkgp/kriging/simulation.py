"""Conditional simulation: fields drawn from the posterior, by Matheron's rule.

A draw of the prior f0 is corrected by the samples,

    f(x) = f0(x) + h(x)'beta + k_x'w,     Kbar w = z - f0(X) - m - e - H beta,     H'w = 0,

with micro-scale variation m and measurement errors e drawn at the samples (Matheron; Chiles and Delfiner 2012, section
7.3). beta is that of generalised least squares, so that the drift's uncertainty is drawn along. The field with its
micro-scale variation at sample i is z_i - e_i - s_i w_i, s_i the variance of its error: z_i itself without errors.

The conditional mean is exact for any f0 of mean zero. Where covariances of f0 are off by at most eps, the conditional
variance at x is off by at most eps (1 + |lambda|_1)^2, with the kriging weights lambda of x: expand the variance of
f0(x) - lambda'(f0(X) + m + e). Samples that are moved by at most delta to the nodes of a lattice, for f0 alone, change
the conditional deviation by at most |lambda|_1 sqrt(2 gamma(delta)), gamma without the nugget.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dkgp import __version__
from dkgp.cluster.arithmetic import needs_one_arithmetic
from dkgp.cluster.cache import worker_cache
from dkgp.cluster.executors.base import RoundTasks, split_evenly
from dkgp.cluster.threads import single_threaded_blas
from dkgp.data import Dataset
from dkgp.data.remote.claims import locked
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, OutputExistsError
from dkgp.kernels import kernel_from_json
from dkgp.kriging.cells import CellRows, cells_of
from dkgp.kriging.choices import SIMULATION_METHODS as METHODS
from dkgp.kriging.choices import SimulationMethod as Method
from dkgp.kriging.field import Field, Quantity
from dkgp.kriging.functionals import solver_of
from dkgp.kriging.grids import Grid
from dkgp.kriging.layers import Layers, Store
from dkgp.kriging.priors import (
    AT_NODE,
    CirculantPrior,
    FeaturePrior,
    FourierPrior,
    JointPrior,
    Lattice,
    Prior,
    box_of,
    series_for,
)
from dkgp.models.context import RunContext
from dkgp.models.noise import Noise
from dkgp.models.prediction.pathwise import MOST_JOINT_SAMPLES, SOLVED_TOGETHER
from dkgp.models.prediction.predict import Destination
from dkgp.models.sums import Piece, Rows, Sums, chosen_sums
from dkgp.models.trend import Drift
from dkgp.operators.base import IndexArray
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import GradientInfNorm, Solver, solve

# Bytes of the fields that are kept in memory at a time, and cells whose kriging weights are examined.
BATCH_BYTES, EXAMINED_CELLS = 2**29, 8
# Allowed error of sums over samples, as a share of the tolerance, and pieces of cells that a thread sums at in a round.
_SHARE, _PIECES = 0.01, 4
# Streams of a field: its prior, its errors at samples, and its nugget at cells.
_PRIOR, _ERRORS, _NUGGET = 0, 1, 2


@dataclass(frozen=True)
class Simulation:
    """Settings of a simulation.

    Parameters
    ----------
    n_fields : int
    method : {"auto", "circulant", "fourier", "features", "cholesky"}, default "auto"
        See `dkgp.kriging.priors`. "auto" takes the first that fits: circulant where samples and cells lie on one
        lattice, cholesky for few points, fourier where its covariance error is small enough, features.
    of : {"signal", "field", "observation"}, default "signal"
        Without the nugget; with its micro-scale variation; or with measurement errors too, drawn anew for every cell.
    snap : bool or float, default False
        Move samples to the nodes of the grid's lattice for the prior's draw, by at most so much; True for any distance.
    error : float, default 1e-4
        Largest accepted bound on the covariance error, relative to the partial sill.
    tolerance : float, default 1e-6
        Of the equations of a field, in units of the root of the partial sill.
    seed : int, default 0
        Field k is drawn from stream k: the same for every number of fields, to within the tolerance.
    """

    n_fields: int
    method: Method = "auto"
    of: Quantity = "signal"
    snap: bool | float = False
    error: float = 1e-4
    tolerance: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"`method` is one of {', '.join(METHODS)}; got {self.method!r}")
        if isinstance(self.n_fields, bool) or int(self.n_fields) != self.n_fields or self.n_fields < 1:
            raise InputError(f"`n_fields` is a whole number of at least 1; got {self.n_fields!r}")
        for name in ("error", "tolerance"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise InputError(f"`{name}` must be positive and finite; got {value!r}")


def simulate(
    field: Field,
    grid: Grid,
    settings: Simulation,
    context: RunContext,
    *,
    out: Destination | str | None = None,
    **cells: Any,
) -> Any:
    """Draw fields at the cells of a grid, given the samples.

    Parameters
    ----------
    field, grid, settings
    context : RunContext
        Who computes; see `dkgp.kriging.rasters.computing`.
    out : Destination or str, optional
        Write to a Zarr store, a chunk a tile, field by field. With `resume` the batches of fields that an interrupted
        run has finished are not drawn again; the store ends in the same bytes.
    **cells
        `crs`, `time`, `mask` and `covariates`, as for `dkgp.kriging.cells.cells_of`.

    Returns
    -------
    xarray.Dataset, or None with `out`
        Fields by rows from south to north. Its attributes report the method and the covariance error, relative to the
        partial sill; `conditional_variance_error` is that of the variance at some cells, in the target's units squared.

    Raises
    ------
    InputError
        A method that the samples or the grid do not allow, a covariance error above the accepted one, or fields of
        another run to be resumed.
    OutputExistsError
        `out` exists, and `overwrite` is false; or another process writes it.
    StorageError
        `out` cannot be written, such as on a full disk.
    """
    out = Destination(out) if isinstance(out, str) else out
    with locked(*([] if out is None else [out.url])):
        return _simulated(field, grid, settings, context, out, cells)


def _simulated(
    field: Field,
    grid: Grid,
    settings: Simulation,
    context: RunContext,
    out: Destination | None,
    cells: Mapping[str, Any],
) -> Any:
    """Draw fields; see `simulate`."""
    if out is not None and Path(out.url).exists() and not out.overwrite:
        raise OutputExistsError.of(out.url)
    dataset, rows = cells_of(field, grid, note=context.note, **cells)
    field = field.readable_by(context.executor)
    run, names = _Run(field, dataset, rows, settings, context), field.record.target_names
    layers = Layers("field", np.arange(settings.n_fields), grid, rows.crs or field.space.crs)
    if out is not None:
        origin = {"model": field.record.fingerprint, "cells": dataset.fingerprint, "settings": asdict(settings)}
        with Store(layers, names, Path(out.url), origin, resume=out.resume) as store:

            def write(number: int, target: int, values: FloatArray) -> None:
                store.write(number, target, run.on_grid(values))

            run.draw(write, store.n_finished, store.finish)
            store.attributes = run.attributes
        return None
    arrays = {name: np.empty((settings.n_fields, *grid.shape)) for name in names}

    def keep(number: int, target: int, values: FloatArray) -> None:
        arrays[names[target]][number] = run.on_grid(values)

    run.draw(keep)
    return layers.dataset(arrays, run.attributes)


def sums_task(
    context: BlockContext, sums: Sums, test: Rows, values: Mapping[str, FloatArray], pieces: list[Piece]
) -> list[tuple[IndexArray, FloatArray]]:
    """Return the rows of each piece, and their sums k_x'w for the columns of `weights`: (rows, t), float64."""
    results = []
    for piece in pieces:
        rows, inputs = sums.read(context, test, piece)
        results.append((rows, sums.products(context, inputs, values["weights"])[0]))
    return results


@needs_one_arithmetic
def bounded_sums_task(
    context: BlockContext, sums: Sums, test: Rows, values: Mapping[str, FloatArray], pieces: list[Piece]
) -> list[tuple[IndexArray, FloatArray]]:
    """Sums as by `sums_task`, within an error, whose tables come from NumPy and whose products from BLAS."""
    return sums_task(context, sums, test, values, pieces)


class _Run:
    """The fields of one call."""

    def __init__(
        self, field: Field, dataset: Dataset, rows: CellRows, settings: Simulation, context: RunContext
    ) -> None:
        self.field, self.rows, self.settings, self.context = field, rows, settings, context
        record = field.record
        self.kernel, self.noise = Noise.of_model(record).without_white(kernel_from_json(record.kernel))
        self.cells = dataset.as_seen_by(record.feature_names, (), record.standardisation)
        self.drift = Drift.from_model(record)
        cells = np.arange(rows.shape[0])
        self.places, self.numbers = rows.places(cells), rows.numbers(cells)
        self.row, self.column = rows.at(self.numbers)
        self.inputs = record.standardisation.rows(rows.rows(cells))
        to = record.standardisation
        turned = (field.sample_inputs * to.input_std + to.input_mean).T
        matrix = field.variogram.anisotropy(len(turned))
        self.samples: FloatArray = np.linalg.solve(matrix, turned).T.astype(np.float64)
        if field.origin is not None and not np.array_equal(matrix, np.eye(len(matrix))):
            self.samples += field.origin
        # Distance of the farthest sample from its node.
        self.moved = 0.0
        self.notes: dict[str, Any] = {}
        self.prior = self._prior()

    # ------------------------------------------------------------------------------------------------------- the prior

    def _prior(self) -> Prior:
        method = self.settings.method
        if method == "auto":
            return self._chosen()
        if method == "circulant":
            prior: Prior = CirculantPrior(self.field.variogram, self._lattice())
        elif method == "fourier":
            prior = self._series()
        elif method == "features":
            return FeaturePrior(self.kernel, self.field.sample_inputs, self.drift.features(self.inputs))
        else:
            return JointPrior(self.kernel, self.field.sample_inputs, self.drift.features(self.inputs))
        if prior.error > self.settings.error:
            raise InputError(
                f"the covariance of `method` {method} is proven within {prior.error:.2g} of the partial sill, and "
                f"`error` {self.settings.error:g} is accepted at most. Pass a larger `error`, or `method` "
                f"{'fourier' if method == 'circulant' else 'features, or circulant with `snap`'}"
            )
        return prior

    def _chosen(self) -> Prior:
        """Return the first prior that fits."""
        try:
            lattice = self._lattice()
        except InputError:
            if self.settings.snap is not False:
                raise
        else:
            circulant = CirculantPrior(self.field.variogram, lattice)
            if circulant.error <= self.settings.error:
                return circulant
        inputs = self.drift.features(self.inputs)
        if len(inputs) + self.field.n_samples <= MOST_JOINT_SAMPLES:
            return JointPrior(self.kernel, self.field.sample_inputs, inputs)
        try:
            series = self._series()
        except InputError as error:
            self._say(f"fields are drawn by random frequencies: {error}")
        else:
            if series.error <= self.settings.error:
                return series
            self._say(
                f"fields are drawn by random frequencies: a Fourier series has a covariance error of {series.error:.2g}"
            )
        return FeaturePrior(self.kernel, self.field.sample_inputs, inputs)

    def _say(self, text: str) -> None:
        if self.context.note is not None:
            self.context.note(text)

    def _series(self) -> FourierPrior:
        series = series_for(self.field.variogram, box_of([self.samples, self.places]), self.settings.error)
        return FourierPrior(series, self.samples, self.places)

    def _lattice(self) -> Lattice:
        """Return the lattice of the grid that samples lie on, or are moved to; `InputError` for other samples."""
        grid, space = self.rows.grid, self.field.space
        if space.metric != "plane" or space.n_columns != 2 or self.rows.crs is not None:
            raise InputError(
                "`method` circulant needs samples and grid in one plane, without time; take `method` fourier"
            )
        spacing = np.array(grid.spacing)
        index = (self.samples[:, ::-1] - (grid.south, grid.west)) / spacing
        nodes = np.rint(index)
        off = np.abs(index - nodes).max(axis=1)
        snap, apart = self.settings.snap, int((off > AT_NODE).sum())
        if apart and snap is False:
            raise InputError(
                f"the data do not lie on the grid's lattice ({apart:,} of {len(off):,} do not); take `method` fourier, "
                "or `snap`"
            )
        step = ((index - nodes) * spacing)[:, ::-1]
        if snap is not False and snap is not True and apart:
            farthest = float(np.sqrt((step**2).sum(axis=1)).max())
            if farthest > float(snap):
                raise InputError(
                    f"a sample lies {farthest:g} from its node, and `snap` {float(snap):g} is accepted at most. Take a "
                    "narrower spacing, or `snap` True"
                )
        self.moved = float(np.sqrt(((step @ self.field.variogram.anisotropy(2).T) ** 2).sum(axis=1)).max())
        samples = nodes.astype(np.int64)
        first = np.minimum(samples.min(axis=0), 0)
        last = np.maximum(samples.max(axis=0), np.array(grid.shape) - 1)
        rows, columns = (int(size) for size in last - first + 1)
        cells = np.column_stack([self.row, self.column]) - first
        return Lattice((grid.spacing[0], grid.spacing[1]), (rows, columns), samples - first, cells)

    # ------------------------------------------------------------------------------------------------------ the fields

    def on_grid(self, values: FloatArray) -> FloatArray:
        """Return values of the cells in rows and columns of the grid; NaN in cells without a prediction."""
        result = np.full(self.rows.grid.shape, np.nan)
        result[self.row, self.column] = values
        return result

    def draw(
        self,
        take: Callable[[int, int, FloatArray], None],
        n_finished: int = 0,
        finish: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Draw the fields from number `n_finished`, where a batch begins.

        `take` gets the number of a field, of a target, and the values at the cells; `finish`, after each batch, the
        number of finished fields. The fields of a batch share a solve, which their last bits depend on.
        """
        n, m, p = self.field.n_samples, len(self.inputs), self.field.record.n_targets
        together = int(np.clip(BATCH_BYTES // (8 * p * max(n, m)), 1, SOLVED_TOGETHER))
        # Workers of other processes can read a training set, and not a model in this one's memory.
        with self.context.operator(
            self.kernel, self.noise.diagonal, self.field.source, tolerance=self.settings.tolerance
        ) as operator:
            count = min(together, self.settings.n_fields) * p
            solver = solver_of(self.field, self.context, count, self.settings.tolerance)
            if not math.isnan(self.prior.error) or self.moved:
                self._examine(operator, solver)
            for first in range(n_finished, self.settings.n_fields, together):
                batch = range(first, min(first + together, self.settings.n_fields))
                for (number, target), values in self._batch(operator, solver, batch):
                    take(number, target, values)
                finish(batch.stop)

    def _batch(self, operator: Any, solver: Solver | None, batch: range) -> Any:
        """Iterate over the fields of a batch: (number, target), values at the cells."""
        record, field = self.field.record, self.field
        p, measured = record.n_targets, field.errors / field.variogram.field_variance
        # The engine's noise beyond the errors is micro-scale variation.
        share, micro = np.sqrt(measured), np.sqrt(np.maximum(self.noise.diagonal - measured, 0.0))
        keys = [(number, target) for number in batch for target in range(p)]
        cells = np.empty((len(self.inputs), len(keys)))
        right, errors = np.empty((field.n_samples, len(keys))), np.empty((field.n_samples, len(keys)))
        for index, key in enumerate(keys):
            right[:, index], cells[:, index] = self.prior.draw(self._stream(key, _PRIOR))
            rng = self._stream(key, _ERRORS)
            errors[:, index] = share * rng.standard_normal(len(right))
            right[:, index] += errors[:, index] + micro * rng.standard_normal(len(right))
        stopping = GradientInfNorm(self.settings.tolerance)
        solved = solve(operator, right, solver=solver, stopping=stopping, watch=self.context).alpha
        weights = record.alpha[:, [target for _, target in keys]] - solved
        if self.drift.is_fitted:
            columns, of_columns = self._columns_of_samples(), record.alpha[:, p:]
            beta = np.linalg.solve(columns.T @ of_columns, columns.T @ weights)
            weights = weights - of_columns @ beta
            cells += self.drift.columns_at(self.inputs) @ beta
        self._add_sums(cells, weights)
        to = record.standardisation
        here, which = self._at_samples
        for index, key in enumerate(keys):
            target = key[1]
            values = cells[:, index] * to.target_std[target] + to.target_mean[target]
            if len(here):
                drawn = errors[which, index] * to.target_std[target]
                pulled = field.errors[which] * weights[which, index] / to.target_std[target]
                values[here] = field.values[which, target] - drawn - pulled
            yield key, self._with_nugget(values, key, here)

    def _with_nugget(self, values: FloatArray, key: tuple[int, int], here: Any) -> FloatArray:
        """Add the nugget of the quantity at the cells: micro-scale variation is known at samples."""
        variogram, of = self.field.variogram, self.settings.of
        if of == "signal":
            return values
        # Numbers of all cells of the grid: those of a cell do not depend on a mask.
        rng, cells = self._stream(key, _NUGGET), self.rows.grid.n_cells
        if variogram.microscale_variance:
            micro = math.sqrt(variogram.microscale_variance) * rng.standard_normal(cells)[self.numbers]
            micro[here] = 0.0
            values += micro
        if of == "observation" and variogram.error_variance:
            values += math.sqrt(variogram.error_variance) * rng.standard_normal(cells)[self.numbers]
        return values

    @property
    def _at_samples(self) -> tuple[Any, Any]:
        """Cells at the place of a sample, and these samples, where the quantity is known from the sample's value."""
        if self.settings.of == "signal" and not self.field.is_exact:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        row = self.field.sample_at(self.places)
        here = np.flatnonzero(row >= 0)
        return here, row[here]

    def _stream(self, key: tuple[int, int], part: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.settings.seed, spawn_key=(*key, part)))

    def _columns_of_samples(self) -> FloatArray:
        record = self.field.record
        return np.concatenate([self.drift.columns_at(record.rows(*rows)) for rows in record.row_chunks()])

    def _add_sums(self, cells: FloatArray, weights: FloatArray) -> None:
        """Add k_x'w to the values at cells, for all columns."""
        # Ready points are kept by name, with their weights.
        name, executor = f"{self.field.fitted.version}-{uuid.uuid4().hex}", self.context.executor
        context = BlockContext(name, self.field.source, self.kernel, self.field.n_samples)
        errors = np.full(weights.shape[1], _SHARE * self.settings.tolerance)
        sums = chosen_sums(context, executor, weights, len(cells), self.context.product_error, errors)
        # Cells are numbered tile by tile.
        sums = replace(sums, ordered=True)
        task = sums_task if sums.errors is None else bounded_sums_task
        pieces = sums.pieces(0, len(cells))
        step = _PIECES * executor.parallelism
        with single_threaded_blas():
            for first in range(0, len(pieces), step):
                groups = split_evenly(pieces[first : first + step], executor.parallelism)
                needs = [["weights"]] * len(groups)
                tasks = RoundTasks(task, (context, sums, self.cells), groups, None, "ksum", {"weights": weights}, needs)
                for rows, values in executor.start(tasks).result():
                    cells[rows] += values
        worker_cache().discard_run(name)

    def _examine(self, operator: Any, solver: Solver | None) -> None:
        """Report how far conditional variances may be off, by the kriging weights of some cells."""
        record, p = self.field.record, self.field.record.n_targets
        chosen = np.unique(np.linspace(0, len(self.inputs) - 1, EXAMINED_CELLS).astype(np.int64))
        rows = self.inputs[chosen]
        points = self.drift.features(rows)
        k = np.concatenate([self.kernel.matrix(record.inputs(*chunk), points) for chunk in record.row_chunks()])
        weights = solve(operator, k, solver=solver, stopping=GradientInfNorm(self.settings.tolerance)).alpha
        if self.drift.is_fitted:
            columns, of_columns = self._columns_of_samples(), record.alpha[:, p:]
            rest = self.drift.columns_at(rows).T - of_columns.T @ k
            weights = weights + of_columns @ np.linalg.solve(columns.T @ of_columns, rest)
        length, sill = float(np.abs(weights).sum(axis=0).max()), self.field.variogram.field_variance
        self.notes["weights_length"] = length
        if not math.isnan(self.prior.error):
            self.notes["conditional_variance_error"] = sill * self.prior.error * (1.0 + length) ** 2
        if self.moved and self.prior.method == "circulant":
            rise = sill - float(self.field.variogram.covariance(self.moved))
            self.notes["snap_distance"] = self.moved
            self.notes["snap_deviation"] = math.sqrt(2.0 * max(rise, 0.0))
            self.notes["conditional_deviation_error"] = length * self.notes["snap_deviation"]

    @property
    def attributes(self) -> dict[str, Any]:
        """Origin of the fields, as text and numbers."""
        about, settings = self.field.about, self.settings
        exact = {} if math.isnan(self.prior.error) else {"covariance_error": self.prior.error}
        return {
            "source": f"dkgp {__version__}",
            "of": settings.of,
            "method": self.prior.method,
            **exact,
            **self.notes,
            "tolerance": settings.tolerance,
            "seed": settings.seed,
            "variogram": str(about["variogram"]),
            "drift": str(about["mean"]),
            "n_samples": self.field.n_samples,
            "model_fingerprint": self.field.record.fingerprint,
        }
