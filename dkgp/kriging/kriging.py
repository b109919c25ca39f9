"""`Kriging`: interpolation of measurements in space, with a proven error at every point."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data.types import FloatArray
from dkgp.errors import InputError
from dkgp.estimators.scikit_learn import BaseEstimator, check_is_fitted
from dkgp.kriging.field import QUANTITIES, Field, Kriged, Quantity, Solving
from dkgp.kriging.grids import Grid
from dkgp.kriging.rasters import MapSettings, computing, map_cells, map_in_memory, write_field
from dkgp.kriging.samples import DUPLICATES, Samples
from dkgp.kriging.space import Space
from dkgp.kriging.variogram import Variogram
from dkgp.models.prediction.predict import Destination
from dkgp.models.trend import Drift

KINDS = ("simple", "ordinary", "universal")
REFUSED_NEIGHBOURS = "dkgp takes all samples; leave it out"


class Kriging(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Kriging of scattered samples: simple, ordinary or universal, with proven errors of means and variances.

    All samples enter every prediction. The methods are those of verde's gridders: `fit`, `predict`, `grid`, `profile`,
    `scatter`, `score`.

    Parameters
    ----------
    variogram : Variogram, str, dict or a model of GSTools, default "exponential"
        A `Variogram`, or one that `Variogram.from_gstools` reads. A name is fitted to the samples: an empirical
        variogram of Cressie's estimator, by Cressie's weights.
    kind : {"ordinary", "simple", "universal"}, default "ordinary"
        The mean: an unknown constant, the known `mean`, or a polynomial of the coordinates and the covariates.
    mean : float, optional
        Known mean of simple kriging.
    degree : int, default 0
        Of the polynomial of universal kriging: 1, or 2; 0 with covariates alone.
    covariates : tuple of str, default ()
        Names of the covariates of an external drift, known at samples and at every point of a prediction.
    of : {"signal", "field", "observation"}, default "signal"
        The predicted quantity: the field without the nugget; with its micro-scale variation, which is known at samples;
        or a new observation, with its measurement error.
    duplicates : {"merge", "keep", "mean", "first", "refuse"}, default "merge"
        Samples at one place; "merge" is exact.
    crs : EPSG code, WKT or pyproj.CRS, optional
        Reference of the coordinates.
    metric : {"auto", "plane", "sphere", "wgs84"}, default "auto"
        "auto": chords of the globe for a geographic CRS, else the plane.
    earth : {"sphere", "wgs84"}, default "sphere"
        The globe that "auto" takes. Ranges are in km then.
    time_scale : float, optional
        The last coordinate is time; map units of a unit of time.
    tolerance : float, default 1e-4
        Tolerance of the equations, in units of the root of the partial sill.
    product_error : float or {"auto", "none"}, default "auto"
        See `dkgp.GPRegressor`.
    variance_gap : float, default 0.05
        How wide the intervals of variances may be, relative to their upper ends.
    client : distributed.Client, optional
        Whose workers compute; see `dkgp.GPRegressor`.
    store : str, optional
        Folder or URL for the training set and the model, readable by all workers.
    random_state : int, default 0

    Attributes
    ----------
    variogram_ : Variogram
        In the coordinates' units, or km on the globe.
    field_ : Field
        The solved equations.
    drift_ : dict
        Coefficients of the mean with their standard errors; empty for simple kriging.
    region_ : tuple of float
        West, east, south and north of the samples.
    n_merged_ : int
        Samples that were merged into another one at the same place.
    certificate_ : dict
        The engine's proofs, on its own scale.

    Examples
    --------
    >>> x, y = np.meshgrid(np.arange(5.0), np.arange(4.0))
    >>> kriging = Kriging(Variogram("spherical", psill=1.0, range=3.0)).fit((x, y), x + y)
    >>> float(kriging.predict((2.0, 1.0))) == 3.0
    True
    """

    def __init__(
        self,
        variogram: Any = "exponential",
        *,
        kind: str = "ordinary",
        mean: float | None = None,
        degree: int = 0,
        covariates: Sequence[str] = (),
        of: str = "signal",
        duplicates: str = "merge",
        crs: Any = None,
        metric: str = "auto",
        earth: str = "sphere",
        time_scale: float | None = None,
        tolerance: float = 1e-4,
        product_error: Any = "auto",
        variance_gap: float = 0.05,
        client: Any = None,
        store: str | None = None,
        random_state: int = 0,
    ) -> None:
        self.variogram = variogram
        self.kind = kind
        self.mean = mean
        self.degree = degree
        self.covariates = covariates
        self.of = of
        self.duplicates = duplicates
        self.crs = crs
        self.metric = metric
        self.earth = earth
        self.time_scale = time_scale
        self.tolerance = tolerance
        self.product_error = product_error
        self.variance_gap = variance_gap
        self.client = client
        self.store = store
        self.random_state = random_state

    # -------------------------------------------------------------------------------------------------------- training

    def fit(
        self,
        coordinates: Sequence[ArrayLike],
        data: Any,
        weights: Any = None,
        *,
        noise: ArrayLike | None = None,
        covariates: Any = None,
    ) -> Self:
        """Solve the kriging equations of samples.

        Parameters
        ----------
        coordinates : (easting, northing[, up][, time]) or (longitude, latitude)
            Arrays of one shape.
        data : array_like, or a tuple of them
            Measured values of the coordinates' shape; several are kriged with one variogram.
        weights : array_like, optional
            Reciprocals of the measurement errors' variances, as in verde; instead of `noise`.
        noise : array_like, optional
            Variances of the measurement errors by sample, beside the variogram's.
        covariates : mapping, DataFrame or tuple of array_like, optional
            Values of the covariates at the samples, by name or in their order.

        Returns
        -------
        Kriging
            This one.

        Raises
        ------
        InputError
            Values or settings that cannot be worked with; see the class.
        """
        mean = self._drift()
        has_time = self.time_scale is not None
        space: Space = Space.of(
            coordinates,
            self.crs,
            metric=self.metric,
            earth=self.earth,
            has_time=has_time,
            time_scale=self.time_scale if self.time_scale is not None else 1.0,
        )
        places = space.places(coordinates)
        values = _columns(data, len(places))
        drift = self._covariates_at(covariates, len(places))
        variogram = self._variogram(places, values, space)
        errors = np.full(len(places), variogram.error_variance) + _noise(weights, noise, len(places))
        samples = Samples(places, values, errors, variogram.microscale_variance, drift)
        samples = samples.once_a_place(self.duplicates)  # type: ignore[arg-type]
        solving = Solving(self.tolerance, self.product_error, "auto", self.client, self.store, int(self.random_state))
        x, y = (np.asarray(values, dtype=np.float64) for values in (coordinates[0], coordinates[-1 - has_time]))
        region = [float(x.min()), float(x.max()), float(y.min()), float(y.max())]
        about = {"of": self.of, "region": region}
        self.field_ = Field.fit(samples, space, variogram, solving, mean=mean, about=about)
        self._several = isinstance(data, tuple)
        return self._take()

    def _take(self) -> Self:
        """Set the fitted attributes of the field."""
        field = self.field_
        self.variogram_, self.space_ = field.variogram, field.space
        self.n_merged_, self.region_ = int(field.about["n_merged"]), tuple(field.about["region"])
        summary = field.record.summary
        self.drift_ = summary["mean"]["coefficients"] if "mean" in summary else {}
        self.certificate_ = dict(field.record.certificate)
        return self

    def _drift(self) -> Drift:
        """Return the engine's mean of the kind of kriging."""
        if self.kind not in KINDS:
            raise InputError(f"`kind` is one of {', '.join(KINDS)}; got {self.kind!r}")
        if (self.kind == "simple") != (self.mean is not None):
            raise InputError(
                f"simple kriging has a known `mean`, and no other kind has; got kind={self.kind!r}, mean={self.mean!r}"
            )
        if self.kind != "universal" and (self.degree or self.covariates):
            raise InputError(
                f"`degree` and `covariates` belong to universal kriging; got kind={self.kind!r}. Pass kind='universal'"
            )
        if self.kind == "simple":
            return Drift(value=float(self.mean))  # type: ignore[arg-type]
        if self.kind == "ordinary":
            return Drift(0)
        if self.covariates:
            raise InputError("covariates are not available yet")
        if self.degree not in (1, 2):
            raise InputError(f"`degree` of universal kriging is 1 or 2; got {self.degree!r}")
        return Drift(self.degree)

    def _covariates_at(self, covariates: Any, n: int) -> FloatArray:
        if covariates is None:
            return np.zeros((n, 0))
        raise InputError("covariates are not available yet")

    def _variogram(self, places: FloatArray, values: FloatArray, space: Space) -> Variogram:
        """Return the variogram as given."""
        given = self.variogram
        if isinstance(given, Variogram):
            return given
        if isinstance(given, dict):
            return Variogram.from_dict(given)
        raise InputError(f"`variogram` is a Variogram; got {given!r}")

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(
        self,
        coordinates: Sequence[ArrayLike],
        *,
        covariates: Any = None,
        return_bounds: bool = False,
        return_variance: bool = False,
    ) -> Any:
        """Predict at points.

        Parameters
        ----------
        coordinates
            As for `fit`, of any one shape.
        covariates
            As for `fit`, at the points.
        return_bounds : bool
            Also a bound on the mean's error, and the ends of the variance's interval where it is asked for.
        return_variance : bool
            Also the variance.

        Returns
        -------
        mean, or (mean, bound, variance, lower, upper) of those asked for
            Arrays of the coordinates' shape; of several data, tuples of them.
        """
        check_is_fitted(self, "field_")
        shape = np.broadcast_shapes(*(np.shape(values) for values in coordinates))
        result = self.kriged(coordinates, variance=return_variance)
        parts: list[FloatArray | None] = [result.mean]
        if return_bounds:
            parts.append(result.mean_error_bound)
        if return_variance:
            parts.append(result.variance)
            if return_bounds:
                parts += [result.variance_lower, result.variance_upper]
        shaped = [self._shaped(part, shape) for part in parts if part is not None]
        return shaped[0] if len(shaped) == 1 else tuple(shaped)

    def kriged(
        self, coordinates: Sequence[ArrayLike], *, variance: bool = False, n_planned: int | None = None
    ) -> Kriged:
        """Return predictions of flattened points, with bounds; see `Field.at`."""
        places = self.space_.places(coordinates)
        return self.field_.at(
            places,
            self._quantity(),
            variance=variance,
            gap=self.variance_gap,
            n_planned=n_planned,
        )

    def grid(
        self,
        region: Sequence[float] | None = None,
        shape: tuple[int, int] | None = None,
        spacing: Any = None,
        *,
        coordinates: Sequence[ArrayLike] | None = None,
        adjust: str = "spacing",
        pixel_register: bool = False,
        variance: bool = False,
        crs: Any = None,
        time: float | None = None,
        dims: tuple[str, str] = ("northing", "easting"),
        data_names: Sequence[str] | None = None,
        mask: ArrayLike | None = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        resume: bool = False,
    ) -> Any:
        """Predict at the cells of a regular grid.

        Parameters
        ----------
        region : (west, east, south, north), optional
            By default that of the samples.
        shape, spacing, adjust, pixel_register
            As for verde's `grid_coordinates`: (rows, columns), or the distance of centres.
        coordinates : (easting, northing), optional
            Centres of columns and rows, evenly spaced, instead.
        variance : bool, default False
            Variances in proven intervals too.
        crs : optional
            CRS of the grid, by default that of the samples; cells are transformed.
        time : float, optional
            Time of the map, for a field in space and time.
        dims, data_names
            Names of the dimensions, and of the predicted means; by default "scalars", or "scalars0", ...
        mask : (rows, columns) array_like of bool, optional
            Cells that are false are NaN.
        out : str, optional
            Write the map to a name ending in .tif, .nc or .zarr, without holding it in memory where the format allows.
        overwrite : bool, default False
            Replace `out`.
        resume : bool, default False
            Go on with an interrupted map: the cells that are done lie in `out` + ".cells".

        Returns
        -------
        xarray.Dataset, or None with `out`
            Rows from south to north.
        """
        check_is_fitted(self, "field_")
        if coordinates is not None:
            if region is not None or shape is not None or spacing is not None:
                raise InputError("give `coordinates`, or `region` with `shape` or `spacing`, not both")
            x, y = (np.asarray(values, dtype=np.float64) for values in coordinates[:2])
            grid = Grid.of_centres(x[0] if x.ndim == 2 else x, y[:, 0] if y.ndim == 2 else y)
        else:
            grid = Grid.of(
                self.region_ if region is None else region,
                shape=shape,
                spacing=spacing,
                adjust=adjust,
                pixel_register=pixel_register,
            )
        settings = MapSettings(self._quantity(), variance, self.variance_gap, crs, time)
        with computing(self.field_, self.client) as context:
            if out is not None:
                target = Destination(os.fspath(out), overwrite=overwrite, resume=resume)
                write_field(self.field_, grid, target, settings, context)
                return None
            with tempfile.TemporaryDirectory(prefix="dkgp-") as folder:
                cells = map_cells(self.field_, grid, Destination(f"{folder}/cells.zarr"), settings, context)
                return self._named(map_in_memory(cells, dims), data_names, mask)

    def _quantity(self) -> Quantity:
        for quantity in QUANTITIES:
            if self.of == quantity:
                return quantity
        raise InputError(f"`of` is one of {', '.join(QUANTITIES)}; got {self.of!r}")

    def _named(self, dataset: Any, data_names: Sequence[str] | None, mask: ArrayLike | None) -> Any:
        """Return a map with the names of verde, and without masked cells."""
        targets = self.field_.record.target_names
        names = data_names or (["scalars"] if len(targets) == 1 else [f"scalars{i}" for i in range(len(targets))])
        if len(names) != len(targets):
            raise InputError(f"`data_names` names {len(targets)} data; got {tuple(names)}")
        means = ["mean"] if len(targets) == 1 else [f"{target}_mean" for target in targets]
        dataset = dataset.rename(dict(zip(means, names, strict=True)))
        if mask is None:
            return dataset
        inside = np.asarray(mask, dtype=bool)
        shape = tuple(dataset.sizes.values())
        if inside.shape != shape:
            raise InputError(f"`mask` has shape {inside.shape}; expected that of the grid, {shape}")
        return dataset.where((tuple(dataset.sizes), inside))

    def _shaped(self, values: FloatArray, shape: tuple[int, ...]) -> Any:
        columns = tuple(column.reshape(shape) for column in values.T)
        return columns if self._several else columns[0]

    def score(self, coordinates: Sequence[ArrayLike], data: Any, weights: Any = None) -> float:
        """Return R^2, the coefficient of determination of the predicted means, averaged over several data."""
        from sklearn.metrics import r2_score

        values = _columns(data, np.size(coordinates[0]))
        mean = self.kriged(coordinates).mean
        flat = None if weights is None else np.ravel(weights)
        return float(r2_score(values, mean, sample_weight=flat))

    def filter(self, coordinates: Sequence[ArrayLike], data: Any, weights: Any = None) -> Any:
        """Fit, predict at the samples, and return coordinates, residuals and weights, as verde's `filter`."""
        predicted = self.fit(coordinates, data, weights).predict(coordinates)
        if self._several:
            residuals: Any = tuple(np.asarray(one) - other for one, other in zip(data, predicted, strict=True))
        else:
            residuals = np.asarray(data) - predicted
        return coordinates, residuals, weights

    # --------------------------------------------------------------------------------------------------------- storage

    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted field to a store; `Kriging.load` opens it."""
        check_is_fitted(self, "field_")
        self.field_.save(os.fspath(url), overwrite=overwrite)

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> Self:
        """Open a stored field; `StoreError` for another store."""
        field = Field.open(os.fspath(url))
        space = field.space
        mean = Drift.from_json(field.about["mean"])
        kriging = cls(
            field.variogram,
            kind="simple" if not mean.is_fitted else "universal" if mean.degree else "ordinary",
            mean=mean.value,
            degree=mean.degree or 0,
            of=field.about.get("of", "signal"),
            crs=space.crs,
            metric=space.metric,
            time_scale=space.time_scale if space.has_time else None,
        )
        kriging.field_ = field
        kriging._several = field.record.n_targets > 1
        return kriging._take()


def _columns(data: Any, n: int) -> FloatArray:
    """Return values (n, p), finite; `InputError` for others."""
    columns = [
        np.asarray(values, dtype=np.float64).reshape(-1) for values in (data if isinstance(data, tuple) else (data,))
    ]
    for column in columns:
        if len(column) != n:
            raise InputError(f"data has {len(column)} values; expected {n}, one for each sample")
        if not np.isfinite(column).all():
            row = int(np.argmin(np.isfinite(column)))
            missing = int((~np.isfinite(column)).sum())
            raise InputError(f"data is {column[row]} in row {row}, and in {missing} of {n} rows; remove these samples")
    return np.column_stack(columns)


def _noise(weights: Any, noise: Any, n: int) -> FloatArray:
    """Return variances of measurement errors by sample: (n,)."""
    if weights is not None and noise is not None:
        raise InputError("give `weights` (reciprocals of variances) or `noise` (variances), not both")
    if weights is None and noise is None:
        return np.zeros(n)
    name, given = ("noise", noise) if weights is None else ("weights", weights)
    values = np.asarray(given, dtype=np.float64).reshape(-1)
    low = 0.0 if weights is None else np.nextafter(0.0, 1.0)
    if len(values) != n or not np.isfinite(values).all() or (values < low).any():
        expected = "at least 0" if weights is None else "positive"
        raise InputError(f"`{name}` has a finite number for each of {n} samples, {expected}; got {given!r}")
    return values if weights is None else 1.0 / values


__all__ = ["DUPLICATES", "Grid", "Kriging"]
