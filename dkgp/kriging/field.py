"""A kriged field: an exact model of samples in map units, and its predictions with proven bounds.

With the nugget t^2 = e + m of measurement error e and micro-scale variation m, a sample i has the noise n_i = e_i + m.
The engine predicts the signal h'beta + f by mu with a bound, and its variance V in an interval. Then

    signal        mu                         V
    field         mu                         V + m                     where no sample lies
                  z_i - e_i / n_i (z_i - mu) e_i - e_i^2 q_i           at sample i, q_i = (n_i - V) / n_i^2
    observation   as the field               the field's + e

since mu(x_i) = z_i - n_i alpha_i and V(x_i) = n_i - n_i^2 q_i. Without a measurement error the field at a sample is its
value.

The engine's noise is positive. A nugget below 1e-12 of the partial sill is solved as micro-scale variation of that
size, and bounds are those of that process; at samples the signal is their value then. A covariance matrix whose
condition exceeds 1e15 is refused.

The mean's covariates (external drift) are columns after the coordinates.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.spatial

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.data import Dataset, ModelRecord, dataset_from_arrays, is_resident
from dkgp.data.stores.dataset import ColumnNames
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, NumericalError, StoreError
from dkgp.estimators.fitted import FittedModel, Workspace
from dkgp.estimators.settings import executor_for, solver_for
from dkgp.estimators.training_set import reads_memory
from dkgp.kernels import Kernel, kernel_from_json
from dkgp.kriging.choices import QUANTITIES as QUANTITIES
from dkgp.kriging.choices import Quantity as Quantity
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.context import RunContext
from dkgp.models.exact import train
from dkgp.models.mean_option import MeanValue
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.rounding import UNIT, outward
from dkgp.models.sums import SupportInputs
from dkgp.models.trend import Drift
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import ProductError
from dkgp.solvers import GradientInfNorm, Solver, solve

# Least noise of the engine, as a share of the partial sill; below the second a matrix is examined.
LEAST_NOISE, SURE_NOISE = 1e-12, 1e-8
MOST_CONDITION = 1e15
# Samples of a part of the covariance matrix whose eigenvalues are computed: its condition is at most the matrix's.
_EXAMINED = 512
_FACTORED = 4_000


@dataclass(frozen=True)
class Kriged:
    """Predictions at r places, in the target's units: (r, p) each; variances are None where they were not asked for.

    Attributes
    ----------
    mean, mean_error_bound
        The exact mean lies within the bound of the mean.
    variance, variance_lower, variance_upper
        The exact variance lies between the ends; the variance is in the middle.
    at_samples : int
        Places where a sample lies.
    """

    mean: FloatArray
    mean_error_bound: FloatArray
    variance: FloatArray | None = None
    variance_lower: FloatArray | None = None
    variance_upper: FloatArray | None = None
    at_samples: int = 0


@dataclass(frozen=True)
class Solving:
    """Settings of the solve.

    Parameters
    ----------
    tolerance : float or "auto", default "auto"
        The solve ends when no entry of the gradient exceeds it, in units of the root of the partial sill; see
        `tolerance_of`.
    product_error : float or {"auto", "none"}, default "auto"
        See `dkgp.GPRegressor`.
    solver : str, default "auto"
        See `dkgp.GPRegressor`.
    client : distributed.Client, optional
        Whose workers compute; see `dkgp.GPRegressor`.
    store : str, optional
        Folder or URL of the training set and the model, readable by all workers.
    seed : int, default 0
    """

    tolerance: Any = "auto"
    product_error: Any = "auto"
    solver: Any = "auto"
    client: Any = None
    store: str | None = None
    seed: int = 0


def tolerance_of(tolerance: Any, n: int, least_noise: float) -> float:
    """Return the tolerance of a solve with n samples, whose least noise is a share of the partial sill.

    "auto": 1e-10 for up to 4,000 samples, where a factor is exact anyway. Else 0.01 sqrt(least_noise / n), between
    1e-10 and 1e-6. The residual is at most tolerance sqrt(n) long, so the mean is proven to about a hundredth of the
    posterior deviation.

    Raises `InputError` for values that are not positive.
    """
    if isinstance(tolerance, str) and tolerance == "auto":
        return 1e-10 if n <= _FACTORED else min(max(0.01 * math.sqrt(least_noise / n), 1e-10), 1e-6)
    if not (isinstance(tolerance, int | float | np.number) and 0.0 < float(tolerance) < math.inf):
        raise InputError(f"`tolerance` is a positive number or 'auto'; got {tolerance!r}")
    return float(tolerance)


class Field:
    """A kriged field.

    Attributes
    ----------
    space : Space
    variogram : Variogram
    fitted : FittedModel
        The exact model of the engine, on its own scale.
    about : dict
        Description in JSON, which the stored model has as `summary["kriging"]`.
    """

    def __init__(self, fitted: FittedModel) -> None:
        self.fitted = fitted
        about = fitted.about.get("kriging")
        if about is None:
            raise StoreError(
                f"'{fitted.record.url}' is no kriged field, but another model; open it with dkgp.GPRegressor.load"
            )
        self.about: dict[str, Any] = about
        self.space = Space(**about["space"])
        self.variogram = Variogram.from_dict(about["variogram"])
        # Stores of earlier versions have none.
        self.origin = None if "origin" not in about else np.array(about["origin"], dtype=np.float64)

    # -------------------------------------------------------------------------------------------------------- training

    @classmethod
    def fit(
        cls,
        samples: Samples,
        space: Space,
        variogram: Variogram,
        solving: Solving | None = None,
        *,
        context: RunContext | None = None,
        **options: Any,
    ) -> Field:
        """Solve the kriging equations of samples; see `Equations.of`, with its options, and `Equations.solve`."""
        return Equations.of(samples, space, variogram, solving, **options).solve(context)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a stored field; `StoreError` for another store."""
        return cls(FittedModel.load(url, Workspace(None)))

    def save(self, url: str, *, overwrite: bool = False) -> None:
        """Write the field to a store; errors as for `dkgp.GPRegressor.save`."""
        self.fitted.save(url, overwrite=overwrite)

    # ----------------------------------------------------------------------------------------------------- predictions

    @property
    def record(self) -> ModelRecord:
        """The engine's model."""
        return self.fitted.record

    def readable_by(self, executor: BlockExecutor) -> Field:
        """Return the field for tasks: of a stored model where the workers do not share this process's memory."""
        if executor.shares_memory or not is_resident(self.record.url):
            return self
        return type(self).open(self.fitted.readable_url())

    @property
    def source(self) -> Any:
        """The samples as further systems of equations read them: the training set, which all workers can read."""
        state = self.record.training_state()
        return SupportInputs.of(self.record, self.fitted.version) if state is None else state[0]

    @property
    def n_samples(self) -> int:
        """Number of places with a sample."""
        return self.record.n_samples

    @cached_property
    def errors(self) -> FloatArray:
        """Variances of the samples' measurement errors, in the target's units squared: (n,)."""
        more = self.record.sample_noise
        beyond = np.zeros(self.n_samples) if more is None else more * self.variogram.field_variance
        return np.asarray(self.about["error"] + beyond, dtype=np.float64)

    @property
    def unit(self) -> FloatArray:
        """The target's units of the engine's scale: (p,)."""
        return np.asarray(self.record.standardisation.target_std)

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """Names of the mean's covariates."""
        return self.record.standardisation.covariate_names

    def inputs(self, places: FloatArray, covariates: FloatArray | None = None) -> FloatArray:
        """Return the engine's inputs of places (r, k) with covariates (r, c), not standardised: (r, k + c).

        Raises `InputError`: covariates are missing, or the field has none.
        """
        names, inputs = self.covariate_names, self.variogram.isotropic(places, self.origin)
        count = 0 if covariates is None else covariates.shape[1]
        if count != len(names):
            expected = f"the covariates {', '.join(names)}" if names else "no covariates"
            raise InputError(f"this field has {expected} at every point; got {count} columns of `covariates`")
        return inputs if covariates is None or not names else np.column_stack([inputs, covariates])

    def standard_inputs(self, places: FloatArray) -> FloatArray:
        """Return the engine's standardised inputs of places (r, k), without covariates: (r, k)."""
        to = self.record.standardisation
        return np.asarray((self.variogram.isotropic(places, self.origin) - to.input_mean) / to.input_std)

    def at(
        self,
        places: FloatArray,
        of: Quantity = "signal",
        *,
        covariates: FloatArray | None = None,
        variance: bool = False,
        gap: float = 0.05,
        n_planned: int | None = None,
    ) -> Kriged:
        """Predict at places (r, k), in memory.

        Parameters
        ----------
        places : (r, k)
            See `Space.places`.
        of : {"signal", "field", "observation"}
        covariates : (r, c), optional
            Of the mean, in the order of `covariate_names`.
        variance : bool
            Variances in proven intervals too.
        gap : float
            How wide the intervals may be, relative to their upper ends.
        n_planned : int, optional
            Places of all calls together, by which the way to variances is chosen; r by default.
        """
        if of not in QUANTITIES:
            raise InputError(f"`of` is one of {', '.join(QUANTITIES)}; got {of!r}")
        settings = VarianceSettings(gap=gap, latent=True) if variance else None
        posterior = self.fitted.posterior(settings, n_planned or max(1, len(places)))
        columns = posterior(self.inputs(places, covariates))
        ends = (columns["variance_lower"], columns["variance_upper"]) if variance else None
        return self.quantity(of, (columns["mean"], columns["mean_error_bound"], ends), lambda: places)

    def weights(self, place: FloatArray, covariates: FloatArray | None = None, client: Any = None) -> FloatArray:
        """Return the kriging weights of the samples at one place (1, k): (n,).

        lambda = v + A_H G^-1 (h - A_H'k) with Kbar v = k, one solve; A_H = Kbar^-1 H is part of the model.
        """
        record, p = self.record, self.record.n_targets
        row = record.standardisation.keep_rows(self.inputs(place, covariates))
        row = (row - record.standardisation.row_mean) / record.standardisation.row_std
        drift, chunks = Drift.from_model(record), list(record.row_chunks())
        kernel = kernel_from_json(record.kernel)
        k = np.concatenate([kernel.matrix(record.inputs(*rows), drift.features(row)) for rows in chunks])
        state = record.training_state()
        if state is None:
            raise StoreError("this field was stored without its samples; fit it again")
        error, tolerance = self.fitted.product_error, self.about["tolerance"]
        problem = Problem(state[0], kernel, Noise(record.noise_variance, record.sample_noise), drift)
        solver, products = solver_for("auto", problem, tolerance, 0, product_error=error)
        with executor_for(client, record) as executor:
            problem = replace(problem, dataset=self.readable_by(executor).source)
            executor.tiles = replace(executor.tiles, products=products)
            with problem.operator(RunContext(executor, product_error=error), tolerance=tolerance) as operator:
                v = solve(operator, k, solver=solver, stopping=GradientInfNorm(tolerance)).alpha[:, 0]
        if not drift.is_fitted:
            return np.asarray(v)
        solved = record.alpha[:, p:]
        columns = np.concatenate([drift.columns_at(record.rows(*rows)) for rows in chunks])
        gram, rest = columns.T @ solved, drift.columns_at(row)[0] - solved.T @ k[:, 0]
        return np.asarray(v + solved @ np.linalg.solve(0.5 * (gram + gram.T), rest))

    def quantity(
        self,
        of: Quantity,
        signal: tuple[FloatArray, FloatArray, tuple[FloatArray, FloatArray] | None],
        places: Callable[[], FloatArray],
    ) -> Kriged:
        """Return a quantity from the predicted signal: its means, bounds and ends of variances, (r, p) each.

        `places` returns the places (r, k), which the signal itself does not need.
        """
        mean, bound, ends = signal
        if of == "signal" and not self.is_exact:
            return _kriged(mean, bound, ends, 0)
        row = self.sample_at(places())
        here = np.flatnonzero(row >= 0)
        at_samples, micro = row[here], self.variogram.microscale_variance
        e = self.errors[at_samples][:, None]
        n = e + micro
        share = np.divide(e, n, out=np.zeros_like(n), where=n > 0.0)
        values = self.values[at_samples]
        mean, bound = mean.copy(), bound.copy()
        # Values are (z - middle) / scale and back, three roundings of z - middle; the errors as stored are off by
        # 6 u n, the share by 8 u, and the difference, its product and the sum have one rounding each.
        middle = np.abs(self.record.standardisation.target_mean)
        slack = 16.0 * UNIT * (np.abs(values) + np.abs(mean[here]) + middle)
        mean[here] = values - share * (values - mean[here])
        bound[here] = bound[here] * share + slack
        if ends is None:
            return _kriged(mean, bound, None, len(here))
        # At a sample e - e^2 (n - V) / n^2 = (e / n) m + (e / n)^2 V, for n = e + m.
        # The share is off by at most 8 u, which enters with the derivative m + 2 (e / n) V; five operations have u.
        at_low, at_high = (share * micro + share**2 * end[here] for end in ends)
        off = 24.0 * UNIT * (micro + share * ends[1][here])
        lower, upper = ends[0] + micro, ends[1] + micro
        lower[here], upper[here] = np.maximum(at_low - off, 0.0), at_high + off
        lower, upper = outward(lower, upper)
        new = self.variogram.error_variance if of == "observation" else 0.0
        if new:
            lower, upper = outward(lower + new, upper + new)
        else:
            exact = here[e[:, 0] == 0.0]
            lower[exact], upper[exact] = 0.0, 0.0
        return _kriged(mean, bound, (np.maximum(lower, 0.0), upper), len(here))

    @property
    def is_exact(self) -> bool:
        """True without a nugget: the signal at samples is their value."""
        return self.about["error"] == 0.0 and not sum(self.variogram.nugget) and self.record.sample_noise is None

    @cached_property
    def values(self) -> FloatArray:
        """The samples' values, in the target's units: (n, p)."""
        state = self.record.training_state()
        if state is None:
            raise StoreError("this field was stored without its values; fit it again")
        return state[0].all_targets(standardised=False)

    @cached_property
    def sample_inputs(self) -> FloatArray:
        """The engine's standardised inputs of the samples: (n, k)."""
        return np.concatenate([self.record.inputs(*rows) for rows in self.record.row_chunks()])

    def sample_at(self, places: FloatArray) -> IntArray:
        """Return the sample at each place, equal in every bit, or -1: (r,)."""
        table = self._rows_of_samples
        keys = _keys(self.standard_inputs(places))
        return np.array([table.get(key, -1) for key in keys], dtype=np.int64)

    @cached_property
    def _rows_of_samples(self) -> dict[bytes, int]:
        return {key: row for row, key in enumerate(_keys(self.sample_inputs))}


class Equations:
    """The kriging equations of samples, to be solved.

    Attributes
    ----------
    problem : Problem
        The engine's problem, with the samples in memory.
    tolerance : float
        The largest entry of the gradient at the end of the solve.
    product_error : ProductError
        May be set before the solver is asked for.
    """

    def __init__(
        self,
        problem: Problem,
        rows: tuple[FloatArray, FloatArray],
        solving: Solving,
        description: dict[str, Any],
    ) -> None:
        self.problem, self.solving, self._rows = problem, solving, rows
        self.product_error = ProductError.of(solving.product_error)
        self.tolerance = tolerance_of(solving.tolerance, problem.dataset.n_samples, float(problem.noise.common))
        self.about = {**description, "tolerance": self.tolerance}

    @classmethod
    def of(
        cls,
        samples: Samples,
        space: Space,
        variogram: Variogram,
        solving: Solving | None = None,
        *,
        mean: Drift | MeanValue = "constant",
        names: tuple[str, ...] = ("z",),
        about: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the equations of samples.

        Parameters
        ----------
        samples : Samples
            One a place; see `Samples.once_a_place`.
        space, variogram
            Of the samples.
        solving : Solving, optional
        mean : Drift, or a value of `mean` of `dkgp.GPRegressor`
            "constant" for ordinary kriging, "linear" or "quadratic" for universal, a number for simple kriging.
        names : tuple of str
            Names of the values.
        about : mapping, optional
            Joins the description.

        Raises
        ------
        InputError
            A variogram that is no covariance in so many dimensions, a mean that the samples do not determine, or a
            covariance matrix that is singular to float64.
        """
        drift = Drift.parse(mean)
        kernel = variogram.to_kernel(space.n_columns, unit=variogram.range, variance=1.0)
        origin = samples.places.mean(axis=0)
        inputs = np.column_stack([variogram.isotropic(samples.places, origin), samples.covariates])
        standardisation = _standardisation(inputs, samples, (space, variogram), drift.columns)
        rows = inputs, samples.values
        dataset = samples_in_memory(rows, standardisation, (*_axes(space, variogram), *drift.columns), names)
        noise = samples.noise / variogram.field_variance
        if noise.min() < SURE_NOISE:
            _require_condition(kernel, standardisation.inputs(rows[0]), noise)
            noise = np.maximum(noise, LEAST_NOISE)
        common = float(noise.min())
        by_sample = None if (noise == common).all() else noise - common
        problem = Problem.of(dataset, kernel, Noise(common, by_sample), drift)
        description = {
            "space": _plain(space),
            "variogram": variogram.to_dict(),
            "origin": origin.tolist(),
            "error": float(samples.errors.min()),
            "n_merged": samples.n_merged,
            "mean": problem.mean.to_json(),
            **(about or {}),
        }
        return cls(problem, rows, solving or Solving(), description)

    @property
    def solver(self) -> Solver:
        """The solver, with its settings."""
        return self._chosen[0]

    @property
    def products(self) -> float | None:
        """Forecast number of products of the solve."""
        return self._chosen[1]

    @cached_property
    def _chosen(self) -> tuple[Solver, float | None]:
        how = self.solving
        return solver_for(how.solver, self.problem, self.tolerance, how.seed, product_error=self.product_error)

    def solve(self, context: RunContext | None = None, *, training_set: str | None = None) -> Field:
        """Solve the equations.

        Parameters
        ----------
        context : RunContext, optional
            Who computes and who watches, as in `dkgp.models.exact.train`. By default the client of the settings, or
            threads.
        training_set : str, optional
            Store of the samples, for workers that cannot read this process's memory; a data set there is replaced. By
            default a new store in the folder of the settings.

        Raises
        ------
        InputError
            The covariance matrix is singular to float64.
        InterruptedRunError
            The run was interrupted; its state is in the context's checkpoint, if it has one.
        """
        how = self.solving
        workspace = Workspace(how.store)
        if context is not None:
            dataset = self._dataset(workspace, in_memory=context.executor.shares_memory, url=training_set)
            return self._solve(dataset, workspace, context)
        dataset = self._dataset(workspace, in_memory=reads_memory(how.client))
        with executor_for(how.client, dataset) as executor:
            executor.tiles = replace(executor.tiles, products=self.products)
            return self._solve(dataset, workspace, RunContext(executor, product_error=self.product_error))

    def _solve(self, dataset: Dataset, workspace: Workspace, context: RunContext) -> Field:
        problem = self.problem
        try:
            trained = train(
                dataset,
                problem.kernel,
                problem.noise,
                context,
                mean=problem.mean,
                solver=self.solver,
                stopping=GradientInfNorm(self.tolerance),
            )
        except NumericalError as reason:
            if problem.noise.common < SURE_NOISE:
                raise InputError(_SINGULAR) from reason
            raise
        about = {"kriging": self.about, "settings": {"product_error": self.solving.product_error}}
        return Field(FittedModel.of(trained.model(dataset), workspace, about))

    def _dataset(self, workspace: Workspace, *, in_memory: bool, url: str | None = None) -> Dataset:
        """Return the training set: in memory, or in a store where workers cannot read this process's memory."""
        dataset = self.problem.dataset
        if in_memory:
            return dataset
        return dataset_from_arrays(
            url or workspace.url("training-set"),
            *self._rows,
            overwrite=url is not None,
            feature_names=dataset.raw_feature_names,
            target_names=dataset.target_names,
            standardisation=dataset.standardisation,
        )


def _kriged(mean: FloatArray, bound: FloatArray, ends: tuple[FloatArray, FloatArray] | None, at_samples: int) -> Kriged:
    if ends is None:
        return Kriged(mean, bound, at_samples=at_samples)
    lower, upper = ends
    return Kriged(mean, bound, lower + 0.5 * (upper - lower), lower, upper, at_samples)


def _keys(inputs: FloatArray) -> list[bytes]:
    """Return the bytes of each row."""
    rows = np.ascontiguousarray(inputs)
    width = rows.dtype.itemsize * rows.shape[1]
    keys: list[bytes] = np.frombuffer(rows, dtype=np.dtype((np.void, width))).tolist()
    return keys


def _plain(space: Space) -> dict[str, Any]:
    return {name: getattr(space, name) for name in ("dimensions", "metric", "crs", "has_time", "time_scale")}


_SINGULAR = (
    "the covariance matrix is singular to float64 (condition > 1e15); give a nugget of at least 1e-8 of the sill"
)


def _require_condition(kernel: Kernel, inputs: FloatArray, noise: FloatArray) -> None:
    """Refuse a covariance matrix that is singular to float64; of many samples a part that lies close together."""
    rows = np.arange(len(inputs))
    if len(rows) > _EXAMINED:
        tree = scipy.spatial.cKDTree(inputs)
        closest = int(np.argmin(tree.query(inputs, k=2, workers=1)[0][:, 1]))
        rows = np.sort(tree.query(inputs[closest], k=_EXAMINED, workers=1)[1])
    matrix = kernel.matrix(inputs[rows], inputs[rows])
    values = np.linalg.eigvalsh(matrix + np.diag(noise[rows]))
    if not values[0] * MOST_CONDITION > values[-1]:
        raise InputError(_SINGULAR)


def _axes(space: Space, variogram: Variogram) -> tuple[str, ...]:
    """Return names of the engine's coordinates: those of the space unless they are turned or geocentric."""
    if space.metric == "plane" and variogram.ratio == (1.0, 1.0):
        return space.names
    axes = tuple(f"axis{number}" for number in range(1, space.n_columns + 1 - space.has_time))
    return (*axes, "time") if space.has_time else axes


def _standardisation(
    inputs: FloatArray, samples: Samples, metric: tuple[Space, Variogram], covariates: tuple[str, ...]
) -> Standardisation:
    """Return the engine's scales: the range for coordinates, the root of the partial sill for values.

    `inputs` are the places without anisotropy, then the covariates.

    Raises `InputError`: covariates that are constant, or have the name of a coordinate.
    """
    variogram, axes = metric[1], _axes(*metric)
    if samples.covariates.shape[1] != len(covariates):
        raise InputError(
            f"the mean has {len(covariates)} covariates ({', '.join(covariates) or 'none'}); the samples have "
            f"{samples.covariates.shape[1]} columns of them"
        )
    for name, column in zip(covariates, samples.covariates.T, strict=True):
        if name in axes or covariates.count(name) > 1:
            raise InputError(f"the covariate {name} has the name of another column; rename it")
        if np.ptp(column) == 0.0:
            raise InputError(
                f"the covariate {name} is {column[0]:g} at all samples, as the constant of the mean is; leave it out"
            )
    middle, k = samples.values.mean(axis=0), len(axes)
    scale = float(np.sqrt(variogram.field_variance))
    affine = Standardisation(
        inputs.mean(axis=0),
        np.append(np.full(k, variogram.range), samples.covariates.std(axis=0)),
        middle,
        np.full(len(middle), scale),
        (True,) * (k + len(covariates)),
    )
    return affine.with_covariates(covariates, (*axes, *covariates))


def samples_in_memory(
    rows: tuple[FloatArray, FloatArray],
    standardisation: Standardisation,
    features: tuple[str, ...],
    names: tuple[str, ...],
) -> Dataset:
    """Return the training set of inputs with covariates, and values; its fingerprint is that of a store of them."""
    inputs, values = rows
    digest = hashlib.sha256(ColumnNames(features, names).fingerprint_header(len(inputs)))
    for part in rows:
        digest.update(hashlib.sha256(np.ascontiguousarray(part, dtype="<f8").tobytes()).digest())
    kept = tuple(name for name in features if name not in standardisation.covariate_names)
    return assembled_dataset(
        standardisation.rows(inputs),
        standardisation.targets(values),
        standardisation,
        kept,
        names,
        digest.hexdigest(),
        features,
    )
