"""A kriged field: an exact model of samples in map units, and its predictions with proven bounds.

With the nugget t^2 = e + m of measurement error e and micro-scale variation m, a sample i has the noise n_i = e_i + m.
The engine predicts the signal h'beta + f by mu with a bound, and its variance V in an interval. Then

    signal        mu                         V
    field         mu                         V + m                     where no sample lies
                  z_i - e_i / n_i (z_i - mu) e_i - e_i^2 q_i           at sample i, q_i = (n_i - V) / n_i^2
    observation   as the field               the field's + e

since mu(x_i) = z_i - n_i alpha_i and V(x_i) = n_i - n_i^2 q_i. Without a measurement error the field at a sample is its
value, exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from dkgp.data import Dataset, ModelRecord, dataset_from_arrays
from dkgp.data.stores.memory_dataset import assembled_dataset
from dkgp.data.stores.standardisation import Standardisation
from dkgp.data.types import FloatArray, IntArray
from dkgp.errors import InputError, StoreError
from dkgp.estimators.fitted import FittedModel, Workspace
from dkgp.estimators.settings import executor_for, solver_for
from dkgp.estimators.training_set import reads_memory
from dkgp.kriging.samples import Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.context import RunContext
from dkgp.models.exact import train
from dkgp.models.noise import Noise
from dkgp.models.problem import Problem
from dkgp.models.rounding import outward
from dkgp.models.trend import Drift, MeanValue
from dkgp.models.variance.settings import VarianceSettings
from dkgp.operators.product_error import ProductError
from dkgp.solvers import GradientInfNorm

Quantity: TypeAlias = Literal["signal", "field", "observation"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


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
    tolerance : float, default 1e-4
        The solve ends when no entry of the gradient exceeds it, in units of the root of the partial sill.
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

    tolerance: float = 1e-4
    product_error: Any = "auto"
    solver: Any = "auto"
    client: Any = None
    store: str | None = None
    seed: int = 0


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

    # -------------------------------------------------------------------------------------------------------- training

    @classmethod
    def fit(
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
        """Solve the kriging equations of samples, one a place.

        Parameters
        ----------
        samples : Samples
            See `Samples.once_a_place`.
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
            A variogram that is no covariance in so many dimensions, or a mean that the samples do not determine.
        """
        how = solving or Solving()
        unit, scale = variogram.range, float(np.sqrt(variogram.field_variance))
        inputs = variogram.isotropic(samples.places)
        kernel = variogram.to_kernel(space.n_columns, unit=unit, variance=1.0)
        middle = samples.values.mean(axis=0)
        columns, p = inputs.shape[1], len(middle)
        standardisation = Standardisation(
            inputs.mean(axis=0), np.full(columns, unit), middle, np.full(p, scale), (True,) * columns
        )
        workspace = Workspace(how.store)
        dataset = _dataset(inputs, samples.values, standardisation, (names, how.client, workspace))
        noise = samples.noise / variogram.field_variance
        common = float(noise.min())
        by_sample = None if (noise == common).all() else noise - common
        problem = Problem.of(dataset, kernel, Noise(common, by_sample), Drift.parse(mean))
        error = ProductError.of(how.product_error)
        solver, products = solver_for(how.solver, problem, how.tolerance, how.seed, product_error=error)
        with executor_for(how.client, dataset) as executor:
            executor.tiles = replace(executor.tiles, products=products)
            trained = train(
                dataset,
                problem.kernel,
                problem.noise,
                RunContext(executor, product_error=error),
                mean=problem.mean,
                solver=solver,
                stopping=GradientInfNorm(how.tolerance),
            )
        description = {
            "space": _plain(space),
            "variogram": variogram.to_dict(),
            "errors": samples.errors.tolist() if np.ptp(samples.errors) else float(samples.errors[0]),
            "n_merged": samples.n_merged,
            "mean": problem.mean.to_json(),
            **(about or {}),
        }
        settings = {"product_error": how.product_error}
        return cls(FittedModel.of(trained.model(dataset), workspace, {"kriging": description, "settings": settings}))

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

    @property
    def n_samples(self) -> int:
        """Number of places with a sample."""
        return self.record.n_samples

    @cached_property
    def errors(self) -> FloatArray:
        """Variances of the samples' measurement errors, in the target's units squared: (n,)."""
        return np.broadcast_to(np.asarray(self.about["errors"], dtype=np.float64), (self.n_samples,))

    @property
    def unit(self) -> FloatArray:
        """The target's units of the engine's scale: (p,)."""
        return np.asarray(self.record.standardisation.target_std)

    def inputs(self, places: FloatArray) -> FloatArray:
        """Return the engine's inputs of places (r, k), not standardised: (r, k)."""
        return self.variogram.isotropic(places)

    def standard_inputs(self, places: FloatArray) -> FloatArray:
        """Return the engine's standardised inputs of places (r, k): (r, k)."""
        return self.record.standardisation.inputs(self.inputs(places))

    def at(
        self,
        places: FloatArray,
        of: Quantity = "signal",
        *,
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
        columns = posterior(self.inputs(places))
        ends = (columns["variance_lower"], columns["variance_upper"]) if variance else None
        return self.quantity(of, (columns["mean"], columns["mean_error_bound"], ends), lambda: places)

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
        if of == "signal":
            return _kriged(mean, bound, ends, 0)
        row = self.sample_at(places())
        here = np.flatnonzero(row >= 0)
        at_samples, micro = row[here], self.variogram.microscale_variance
        e = self.errors[at_samples][:, None]
        n = e + micro
        share = np.divide(e, n, out=np.zeros_like(n), where=n > 0.0)
        values = self.values[at_samples]
        mean, bound = mean.copy(), bound.copy()
        mean[here] = values - share * (values - mean[here])
        bound[here] *= share
        if ends is None:
            return _kriged(mean, bound, None, len(here))
        # At a sample e - e^2 (n - V) / n^2 = (e / n) m + (e / n)^2 V, for n = e + m.
        at_low, at_high = (share * micro + share**2 * end[here] for end in ends)
        lower, upper = ends[0] + micro, ends[1] + micro
        lower[here], upper[here] = at_low, at_high
        lower, upper = outward(lower, upper)
        if of == "field":
            exact = here[e[:, 0] == 0.0]
            lower[exact], upper[exact] = 0.0, 0.0
        else:
            lower, upper = outward(lower + self.variogram.error_variance, upper + self.variogram.error_variance)
        return _kriged(mean, bound, (np.maximum(lower, 0.0), upper), len(here))

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


def _dataset(
    inputs: FloatArray,
    values: FloatArray,
    standardisation: Standardisation,
    where: tuple[tuple[str, ...], Any, Workspace],
) -> Dataset:
    """Return the training set: in memory, or in a store where workers cannot read this process's memory."""
    names, client, workspace = where
    features = tuple(f"x{column}" for column in range(inputs.shape[1]))
    if not reads_memory(client):
        return dataset_from_arrays(
            workspace.url("training-set"),
            inputs,
            values,
            feature_names=features,
            target_names=names,
            standardisation=standardisation,
        )
    mark = hashlib.sha256(np.ascontiguousarray(inputs).tobytes() + np.ascontiguousarray(values).tobytes()).hexdigest()
    return assembled_dataset(
        standardisation.inputs(inputs), standardisation.targets(values), standardisation, features, names, mark
    )
