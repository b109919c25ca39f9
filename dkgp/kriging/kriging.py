"""`Kriging`: interpolation of measurements in space, with a proven error at every point."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dkgp.data import Progress
from dkgp.data.types import FloatArray
from dkgp.errors import InputError, StoreError
from dkgp.estimators.inputs import numbers_of
from dkgp.estimators.scikit_learn import BaseEstimator, check_is_fitted
from dkgp.kriging.candidates import fitted_variogram
from dkgp.kriging.cells import Covariates
from dkgp.kriging.field import QUANTITIES, SURE_NOISE, Equations, Field, Kriged, Quantity, Solving
from dkgp.kriging.grids import Grid
from dkgp.kriging.rasters import MapSettings, computing, map_cells, map_in_memory, write_field
from dkgp.kriging.samples import DUPLICATES, Samples, covariate_columns
from dkgp.kriging.simulation import Simulation, simulate
from dkgp.kriging.space import Space, coordinate_numbers, coordinates_of, region_in
from dkgp.kriging.variogram import Variogram
from dkgp.models.prediction.predict import Destination
from dkgp.models.trend import Drift

KINDS = ("simple", "ordinary", "universal")
# Settings that a store has; the others are the variogram, the CRS, and where things are computed and stored.
STORED = (
    "kind",
    "mean",
    "degree",
    "covariates",
    "of",
    "duplicates",
    "metric",
    "earth",
    "time_scale",
    "tolerance",
    "product_error",
    "variance_gap",
    "random_state",
)


@dataclass(eq=False, repr=False)
class Kriging(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Kriging of scattered samples: simple, ordinary or universal, with proven errors of means and variances.

    Every prediction uses all samples. The methods are those of verde's gridders: `fit`, `predict`, `grid`, `profile`,
    `scatter`, `score`.

    Parameters
    ----------
    variogram : Variogram, str, list of str, dict or a model of GSTools, default "exponential"
        A `Variogram`, or an object that `Variogram.from_gstools` reads. `fit` fits a name to the residuals of the mean:
        to an empirical variogram with Cressie's estimator, with Cressie's weights. Of a list of names, or of all with
        "auto", it takes the best by cross-validation with left-out blocks (`fitted_variogram`).
    kind : {"ordinary", "simple", "universal"}, default "ordinary"
        The mean: an unknown constant, the known `mean`, or a polynomial of the coordinates and the covariates.
    mean : float, optional
        Known mean of simple kriging.
    degree : int, default 0
        Degree of universal kriging's polynomial: 1 or 2; 0 with covariates alone.
    covariates : tuple of str, default ()
        Names of the covariates of an external drift, which are known at all samples and at all predicted points.
    of : {"signal", "field", "observation"}, default "signal"
        The predicted quantity: the field without the nugget; the field with its micro-scale variation; or a new
        measurement, with its error.
    duplicates : {"merge", "keep", "mean", "first", "refuse"}, default "merge"
        Treatment of several samples at one place. "merge" combines them exactly.
    crs : EPSG code, WKT or pyproj.CRS, optional
        Coordinate reference system of the samples.
    metric : {"auto", "plane", "sphere", "wgs84"}, default "auto"
        How distances are measured. "auto": along straight lines through the globe for a geographic CRS, else in the
        plane.
    earth : {"sphere", "wgs84"}, default "sphere"
        Shape of the globe for "auto". Ranges are then in km.
    time_scale : float, optional
        If the last coordinate is time: number of map units that correspond to one unit of time.
    tolerance : float or "auto", default "auto"
        Tolerance of the kriging equations, relative to the square root of the partial sill. "auto": 1e-10 for up to
        4,000 samples, else small enough that bounds of means are about a hundredth of the kriging standard deviation.
    product_error : float or {"auto", "none"}, default "auto"
        See `dkgp.GPRegressor`.
    variance_gap : float, default 0.05
        Requested width of a variance's proven interval, relative to its upper end.
    client : distributed.Client, optional
        Client whose workers compute; see `dkgp.GPRegressor`.
    store : str, optional
        Folder or URL for the training set and the model that all workers can read.
    random_state : int, default 0

    Attributes
    ----------
    variogram_ : Variogram
        In the coordinates' units, or in km on the globe.
    field_ : Field
        The solved equations.
    drift_ : dict
        Coefficients of the mean with their standard errors; empty for simple kriging.
    region_ : tuple of float
        West, east, south and north of the samples.
    n_merged_ : int
        Number of samples that were merged with another one at the same place.
    certificate_ : dict
        Proven bounds, on the standardised scale.

    Examples
    --------
    >>> x, y = np.meshgrid(np.arange(5.0), np.arange(4.0))
    >>> kriging = Kriging(Variogram("spherical", psill=1.0, range=3.0)).fit((x, y), x + y)
    >>> float(kriging.predict((2.0, 1.0))) == 3.0
    True
    """

    variogram: Any = "exponential"
    _: KW_ONLY
    kind: str = "ordinary"
    mean: float | None = None
    degree: int = 0
    covariates: Sequence[str] = ()
    of: str = "signal"
    duplicates: str = "merge"
    crs: Any = None
    metric: str = "auto"
    earth: str = "sphere"
    time_scale: float | None = None
    tolerance: Any = "auto"
    product_error: Any = "auto"
    variance_gap: float = 0.05
    client: Any = None
    store: str | None = None
    random_state: int = 0

    # -------------------------------------------------------------------------------------------------------- training

    def fit(
        self,
        coordinates: Any,
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
            Arrays of one shape, columns of a DataFrame, or points of a GeoSeries or GeoDataFrame, whose CRS counts
            unless `crs` is set. Dates become days.
        data : array_like, or a tuple of them
            Measured values, in the shape of the coordinates. Several targets share one variogram.
        weights : array_like, optional
            Reciprocals of the measurement errors' variances, as in verde, instead of `noise`.
        noise : array_like, optional
            Variance of each sample's measurement error, which is added to the nugget.
        covariates : mapping, DataFrame or tuple of array_like, optional
            Values of the covariates at the samples, by name or in the order of `covariates`.

        Returns
        -------
        Kriging
            The fitted object itself.

        Raises
        ------
        InputError
            Invalid values or settings; the message names them.
        """
        return self.solved(self.equations(coordinates, data, weights, noise=noise, covariates=covariates).solve())

    def equations(
        self,
        coordinates: Any,
        data: Any,
        weights: Any = None,
        *,
        noise: ArrayLike | None = None,
        covariates: Any = None,
    ) -> Equations:
        """Return the equations that `fit` solves, for `solved`; parameters and errors as for `fit`."""
        mean, of = self.drift, self._quantity()
        has_time = self.time_scale is not None
        coordinates, crs = coordinates_of(coordinates, self.crs, data)
        space: Space = Space.of(
            coordinates,
            crs,
            metric=self.metric,
            earth=self.earth,
            has_time=has_time,
            time_scale=self.time_scale if self.time_scale is not None else 1.0,
        )
        places = space.places(coordinates)
        if not len(places):
            raise InputError("there are no samples; expected at least one")
        values, names = _columns(data, len(places), np.shape(coordinates[0]))
        columns = self._covariates_at(covariates, len(places), "sample")
        known = _noise(_in_order_of(data, weights), _in_order_of(data, noise), len(places))
        variogram = self._variogram(places, values, columns, mean, known)
        errors = np.full(len(places), variogram.error_variance) + known
        samples = Samples(places, values, errors, variogram.microscale_variance, columns)
        samples = samples.once_a_place(self.duplicates)  # type: ignore[arg-type]
        solving = Solving(self.tolerance, self.product_error, "auto", self.client, self.store, int(self.random_state))
        x, y = (coordinate_numbers(coordinates[axis]) for axis in (0, min(1, space.dimensions - 1)))
        region = [float(x.min()), float(x.max()), float(y.min()), float(y.max())]
        settings = {name: getattr(self, name) for name in STORED} | {"covariates": list(self._covariate_names)}
        about = {"of": of, "region": region, "settings": settings, "several": isinstance(data, tuple)}
        smooth = "gaussian" in {one.model for one in (variogram, *variogram.also)}
        if smooth and samples.noise.min() < SURE_NOISE * variogram.field_variance:
            warnings.warn(
                "a gaussian variogram without a nugget is ill-conditioned: small errors of values become large ones "
                "between samples. Give a nugget, of 1e-8 of the sill at least",
                stacklevel=3,
            )
        return Equations.of(samples, space, variogram, solving, mean=mean, names=names, about=about)

    def solved(self, field: Field) -> Self:
        """Take the solution of the equations, and return this estimator, fitted."""
        self.field_ = field
        return self._take()

    def _take(self) -> Self:
        """Set the fitted attributes of the field."""
        field = self.field_
        self.variogram_, self.space_ = field.variogram, field.space
        self.n_merged_, self.region_ = int(field.about["n_merged"]), tuple(field.about["region"])
        summary = field.record.summary
        self.drift_ = summary["mean"]["coefficients"] if "mean" in summary else {}
        self.certificate_ = dict(field.record.certificate)
        self._several = bool(field.about.get("several", field.record.n_targets > 1))
        return self

    @property
    def _covariate_names(self) -> tuple[str, ...]:
        names = self.covariates
        return (names,) if isinstance(names, str) else tuple(names)

    @property
    def drift(self) -> Drift:
        """The engine's mean of the kind of kriging."""
        if self.kind not in KINDS:
            raise InputError(f"`kind` is one of {', '.join(KINDS)}; got {self.kind!r}")
        if (self.kind == "simple") != (self.mean is not None):
            raise InputError(
                f"simple kriging has a known `mean`, and no other kind has; got kind={self.kind!r}, mean={self.mean!r}"
            )
        if self.kind != "universal" and (self.degree or self._covariate_names):
            raise InputError(
                f"`degree` and `covariates` belong to universal kriging; got kind={self.kind!r}. Pass kind='universal'"
            )
        if self.kind == "simple":
            try:
                return Drift(value=float(self.mean))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                raise InputError(f"`mean` is one finite number, the known mean; got {self.mean!r}") from None
        if self.kind == "ordinary":
            return Drift(0)
        if self.degree not in (0, 1, 2) or not (self.degree or self._covariate_names):
            raise InputError(
                f"`degree` of universal kriging is 1 or 2, or 0 with `covariates`; got {self.degree!r}"
                f"{'' if self._covariate_names else ' without covariates'}"
            )
        return Drift(int(self.degree), columns=self._covariate_names)

    def _covariates_at(self, covariates: Any, n: int, point: str = "point") -> FloatArray:
        """Return the covariates of n points, in the order of the setting: (n, c)."""
        names = self._covariate_names
        if covariates is not None and not names:
            raise InputError(
                "`covariates` have values here, and the model has none; name them: Kriging(kind='universal', "
                "covariates=['dist'])"
            )
        return covariate_columns(names, covariates, n, point)

    def _variogram(
        self, places: FloatArray, values: FloatArray, covariates: FloatArray, mean: Drift, noise: FloatArray
    ) -> Variogram:
        """Return the variogram of the setting; names are fitted to the samples, beside their known noise."""
        model = self.variogram
        if isinstance(model, Variogram):
            return model
        if isinstance(model, dict):
            return Variogram.from_dict(model)
        if hasattr(model, "len_rescaled"):
            return Variogram.from_gstools(model)
        names = (model,) if isinstance(model, str) else model
        if not (isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names)):
            raise InputError(f"`variogram` is a Variogram, a name, a dict or a model of GSTools; got {model!r}")
        if values.shape[1] > 1 or places.shape[1] > 3:
            raise InputError(
                f"the variogram {model!r} is fitted to one value per sample, in up to 3 dimensions; pass a Variogram"
            )
        return fitted_variogram(
            places,
            values[:, 0],
            model,
            degree=mean.degree or 0,
            covariates=covariates if covariates.size else None,
            noise=noise if noise.any() else None,
            seed=int(self.random_state),
        )

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(
        self,
        coordinates: Any,
        *,
        covariates: Any = None,
        return_bounds: bool = False,
        return_variance: bool = False,
    ) -> Any:
        """Predict at points.

        Parameters
        ----------
        coordinates
            As for `fit`, in any shape.
        covariates
            As for `fit`, at the points.
        return_bounds : bool
            Also return a bound on the mean's error, and with `return_variance` the ends of the variance's interval.
        return_variance : bool
            Also return the variance.

        Returns
        -------
        mean, or the requested ones of (mean, bound, variance, lower, upper)
            Arrays in the shape of the coordinates; for several targets, tuples of them.
        """
        check_is_fitted(self, "field_")
        coordinates = self._in_our_crs(coordinates)
        shape = np.shape(coordinates[0])
        result = self.kriged(coordinates, covariates=covariates, variance=return_variance)
        parts: list[FloatArray | None] = [result.mean]
        if return_bounds:
            parts.append(result.mean_error_bound)
        if return_variance:
            parts.append(result.variance)
            if return_bounds:
                parts += [result.variance_lower, result.variance_upper]
        shaped = [self._shaped(part, shape) for part in parts if part is not None]
        return shaped[0] if len(shaped) == 1 else tuple(shaped)

    def _in_our_crs(self, coordinates: Any, data: Any = None) -> tuple[Any, ...]:
        """Return coordinates as arrays, in the order of data with dimensions; points of another CRS are transformed."""
        return coordinates_of(coordinates, self.space_.crs, data)[0]

    def kriged(
        self,
        coordinates: Any,
        *,
        covariates: Any = None,
        variance: bool = False,
        n_planned: int | None = None,
        of: Quantity | None = None,
    ) -> Kriged:
        """Return predictions of flattened points, with bounds; see `Field.at`. `of` is the setting by default."""
        check_is_fitted(self, "field_")
        places = self.space_.places(self._in_our_crs(coordinates))
        return self.field_.at(
            places,
            of or self._quantity(),
            covariates=self._covariates_at(covariates, len(places)),
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
        covariates: Covariates | None = None,
        dims: tuple[str, str] = ("northing", "easting"),
        data_names: Sequence[str] | None = None,
        mask: Any = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        resume: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> Any:
        """Predict at the cells of a regular grid.

        Parameters
        ----------
        region : (west, east, south, north), optional
            By default the region of the samples.
        shape, spacing, adjust, pixel_register
            As for verde's `grid_coordinates`: (rows, columns), or the distance between neighbouring centres.
        coordinates : (easting, northing), optional
            Evenly spaced centres of columns and rows, instead of a region.
        variance : bool, default False
            Also predict variances in proven intervals.
        crs : optional
            CRS of the grid, by default that of the samples; cells are transformed.
        time : float, optional
            Time of the map, for a field in space and time.
        covariates : mapping, CovariateRasters or callable, optional
            Covariates of an external drift by name: paths of rasters, or (rows, columns) arrays. Or a function of the
            cells' x and y, (m,) each in the grid's CRS, that returns (m, c). Cells without a covariate become NaN.
        dims, data_names
            Names of the dimensions, and of the predicted means (default: "scalars", or "scalars0", ...).
        mask : (rows, columns) array_like of bool, or polygons of shapely or geopandas, optional
            Cells that are false, or whose centre is outside the polygons, are not computed and become NaN.
        out : str, optional
            Write the map to a name ending in .tif, .nc or .zarr, window by window; .zarr also at a remote address.
        overwrite : bool, default False
            Replace `out`.
        resume : bool, default False
            Continue an interrupted map from the finished cells in `out` + ".cells". The result has the same bytes.
        progress : callable, optional
            Called with the number of finished cells.

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
                region_in(self.region_, self.space_.crs, crs) if region is None else region,
                shape=shape,
                spacing=spacing,
                adjust=adjust,
                pixel_register=pixel_register,
            )
        settings = MapSettings(self._quantity(), variance, self.variance_gap, crs, time, mask, covariates)
        with computing(self.field_, self.client, progress=progress) as context:
            if out is not None:
                target = Destination(os.fspath(out), overwrite=overwrite, resume=resume)
                write_field(self.field_, grid, target, settings, context)
                return None
            with tempfile.TemporaryDirectory(prefix="dkgp-") as folder:
                cells = map_cells(self.field_, grid, Destination(f"{folder}/cells.zarr"), settings, context)
                return self._named(map_in_memory(cells, dims), data_names)

    def simulate(
        self,
        n_fields: int,
        *,
        region: Sequence[float] | None = None,
        shape: tuple[int, int] | None = None,
        spacing: Any = None,
        method: str = "auto",
        snap: bool | float = False,
        error: float = 1e-4,
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        resume: bool = False,
        **cells: Any,
    ) -> Any:
        """Draw fields given the samples at the cells of a regular grid: conditional simulation.

        Parameters
        ----------
        n_fields : int
        region, shape, spacing
            As for `grid`.
        method, snap, error, seed
            See `dkgp.kriging.simulation.Simulation`. Field k is the same for every number of fields.
        out : str, optional
            Write the fields to a Zarr store instead of returning arrays.
        overwrite : bool, default False
            Replace `out`.
        resume : bool, default False
            Continue an interrupted simulation with the same arguments from its finished batches of fields. The result
            has the same bytes.
        **cells
            `crs`, `time`, `mask` and `covariates`, as for `grid`.

        Returns
        -------
        xarray.Dataset, or None with `out`
            Fields of the quantity `of`, rows from south to north. Attributes report the method and its proven error.
        """
        check_is_fitted(self, "field_")
        settings = Simulation(n_fields, method, self._quantity(), snap, error, seed=seed)  # type: ignore[arg-type]
        sides = region_in(self.region_, self.space_.crs, cells.get("crs")) if region is None else region
        grid = Grid.of(sides, shape=shape, spacing=spacing)
        with computing(self.field_, self.client) as context:
            target = None if out is None else Destination(os.fspath(out), overwrite=overwrite, resume=resume)
            fields = simulate(self.field_, grid, settings, context, out=target, **cells)
        if fields is None:
            return None
        names = dict(zip(self.field_.record.target_names, self._data_names(None), strict=True))
        return fields.rename({**names, "y": "northing", "x": "easting"})

    def _quantity(self) -> Quantity:
        for quantity in QUANTITIES:
            if self.of == quantity:
                return quantity
        raise InputError(f"`of` is one of {', '.join(QUANTITIES)}; got {self.of!r}")

    def _data_names(self, data_names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of predicted means: by default those of verde."""
        count = self.field_.record.n_targets
        names = (data_names,) if isinstance(data_names, str) else data_names
        if names is None:
            names = ["scalars"] if count == 1 else [f"scalars{index}" for index in range(count)]
        if len(names) != count:
            raise InputError(f"`data_names` names {count} data; got {tuple(names)}")
        return tuple(names)

    def _named(self, dataset: Any, data_names: Sequence[str] | None) -> Any:
        """Return a map with the names of verde."""
        targets, names = self.field_.record.target_names, self._data_names(data_names)
        means = ["mean"] if len(targets) == 1 else [f"{target}_mean" for target in targets]
        return dataset.rename(dict(zip(means, names, strict=True)))

    def _shaped(self, values: FloatArray, shape: tuple[int, ...]) -> Any:
        columns = tuple(column.reshape(shape) for column in values.T)
        return columns if self._several else columns[0]

    def profile(
        self,
        point1: Sequence[float],
        point2: Sequence[float],
        size: int,
        *,
        variance: bool = False,
        covariates: Any = None,
        data_names: Sequence[str] | None = None,
    ) -> Any:
        """Predict at points of even steps on the line between two points.

        Parameters
        ----------
        point1, point2
            Coordinates of both ends, of as many numbers as the samples'.
        size : int
            Number of points, ends included.
        variance : bool, default False
            Also columns with variances and their intervals.
        covariates
            As for `predict`, at the points.
        data_names
            As for `grid`.

        Returns
        -------
        pandas.DataFrame
            Coordinates, the distance from `point1` (in km on the globe), means and their bounds.
        """
        check_is_fitted(self, "field_")
        ends = [np.asarray(point, dtype=np.float64).reshape(-1) for point in (point1, point2)]
        if len(ends[0]) != len(self.space_.names) or len(ends[1]) != len(self.space_.names):
            raise InputError(f"points have {len(self.space_.names)} coordinates, {', '.join(self.space_.names)}")
        if int(size) != size or size < 1:
            raise InputError(f"`size` is a whole number of at least 1; got {size!r}")
        share = np.linspace(0.0, 1.0, int(size))
        points = tuple(low + share * (high - low) for low, high in zip(*ends, strict=True))
        places = self.space_.places(points)[:, : self.space_.n_columns - self.space_.has_time]
        steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
        if self.space_.metric == "plane":
            steps = np.full(len(steps), np.linalg.norm(places[-1] - places[0]) / max(len(steps), 1))
        distance = np.concatenate([[0.0], np.cumsum(steps)])
        return self._table(
            points, {"distance": distance}, self.kriged(points, covariates=covariates, variance=variance), data_names
        )

    def scatter(
        self,
        region: Sequence[float] | None = None,
        size: int = 300,
        random_state: int = 0,
        *,
        variance: bool = False,
        data_names: Sequence[str] | None = None,
    ) -> Any:
        """Predict at random points of a region, by default that of the samples.

        The points are uniform in the coordinates. Fields with covariates, height or time have no such points: use
        `predict`.

        Returns
        -------
        pandas.DataFrame
            Coordinates, means and their bounds; the same seed gives the same points.
        """
        check_is_fitted(self, "field_")
        if len(self.space_.names) != 2:
            raise InputError(f"`scatter` draws points of 2 coordinates; the field has {', '.join(self.space_.names)}")
        west, east, south, north = self.region_ if region is None else region
        draws = np.random.default_rng(random_state).random((2, size))
        points = (west + draws[0] * (east - west), south + draws[1] * (north - south))
        return self._table(points, {}, self.kriged(points, variance=variance), data_names)

    def _table(
        self,
        points: Sequence[FloatArray],
        more: dict[str, FloatArray],
        kriged: Kriged,
        data_names: Sequence[str] | None,
    ) -> Any:
        """Return points with predictions as a DataFrame."""
        import pandas as pd

        columns = {**dict(zip(self.space_.names, points, strict=True)), **more}
        parts = ["mean_error_bound"]
        if kriged.variance is not None:
            parts += ["variance", "variance_lower", "variance_upper"]
        for index, name in enumerate(self._data_names(data_names)):
            columns[name] = kriged.mean[:, index]
            columns |= {f"{name}_{part}": getattr(kriged, part)[:, index] for part in parts}
        return pd.DataFrame(columns)

    def weights(self, coordinates: Sequence[Any], *, covariates: Any = None) -> FloatArray:
        """Return the weights by which the mean of the signal at one point adds up the samples' values: (n,).

        One more solve of the kriging equations, lambda = Kbar^-1 (k + H G^-1 R), with its tolerance. The samples are
        those after merging, in order of first appearance. Without a known mean the weights add up to one.
        """
        check_is_fitted(self, "field_")
        places = self.space_.places(self._in_our_crs(coordinates))
        if len(places) != 1:
            raise InputError(f"weights are those of one point; got {len(places)}")
        return self.field_.weights(places, self._covariates_at(covariates, 1), self.client)

    def execute(self, style: str, xpoints: ArrayLike, ypoints: ArrayLike, mask: ArrayLike | None = None) -> Any:
        """Predict new observations as PyKrige's `execute` does.

        Parameters
        ----------
        style : {"grid", "masked", "points"}
            The grid of both axes; the same without the cells where `mask` is true; or points.
        xpoints, ypoints : array_like
            Axes, or coordinates of the points.
        mask : (rows, columns) array_like of bool, optional
            With the style "masked".

        Returns
        -------
        z, ss : array_like
            Means and variances of observations, (rows, columns) or (points,); masked arrays with a mask.
        """
        points, taken = points_of_style(style, (xpoints, ypoints), mask)
        return shaped_as_style(self.kriged(points, variance=True, of="observation"), taken, style)

    def score(self, coordinates: Any, data: Any, weights: Any = None, *, covariates: Any = None) -> float:
        """Return R^2, the coefficient of determination of the predicted means, averaged over several data."""
        from sklearn.metrics import r2_score

        coordinates = self._in_our_crs(coordinates, data)
        mean = self.kriged(coordinates, covariates=covariates).mean
        values, _ = _columns(data, len(mean), np.shape(coordinates[0]))
        flat = None if weights is None else np.ravel(weights)
        return float(r2_score(values, mean, sample_weight=flat))

    def filter(self, coordinates: Any, data: Any, weights: Any = None, *, covariates: Any = None) -> Any:
        """Fit, predict at the samples, and return coordinates, residuals and weights, as verde's `filter`."""
        self.fit(coordinates, data, weights, covariates=covariates)
        predicted = self.predict(self._in_our_crs(coordinates, data), covariates=covariates)
        if self._several:
            residuals: Any = tuple(np.asarray(one) - other for one, other in zip(data, predicted, strict=True))
        else:
            residuals = np.asarray(data) - predicted
        return coordinates, residuals, weights

    # -------------------------------------------------------------------------------------------------- blocks, checks

    def blocks(
        self,
        geometries: Any = None,
        *,
        spacing: Any = None,
        quadrature: int = 8,
        quadrature_tolerance: float = 0.01,
        covariates: Covariates | None = None,
    ) -> Any:
        """Predict averages of the signal over polygons, rectangles, or the cells of a grid over the samples' region.

        Parameters
        ----------
        geometries : GeoDataFrame, GeoSeries, path, or a sequence of polygons or (west, east, south, north), optional
            Geometries in another CRS are transformed. For a layer of a file, pass the result of `read_polygons`.
        spacing : float or (north, east), optional
            Size of the cells of a grid, instead of `geometries`.
        quadrature : int, default 8
            Initial number of quadrature nodes per side of a block.
        quadrature_tolerance : float, default 0.01
            Largest accepted quadrature error, in units of the square root of the partial sill.
        covariates : mapping, CovariateRasters or callable, optional
            Covariates of an external drift: paths of rasters by name, or a function of x and y, (m,) each, that returns
            (m, c). dkgp averages a covariate over the nodes of a block. No bound includes its variation between
            nodes, so take more nodes per side (`quadrature`) than pixels. Blocks with a node without a value are NaN.

        Returns
        -------
        DataFrame, or a GeoDataFrame for a frame or a file
            mean, mean_error_bound, variance, variance_lower, variance_upper, quadrature_error (the prior deviation of
            the sum over the nodes from the average: the ends of the variance include its square) and area.
        """
        from dkgp.kriging.blocks import block_table

        check_is_fitted(self, "field_")
        with computing(self.field_, self.client, note=warnings.warn) as context:
            settings = (spacing, quadrature, quadrature_tolerance)
            return block_table(self.field_, geometries, self.region_, settings, context, covariates)

    def leave_one_out(self) -> Any:
        """Predict each sample from all others; the mean is fitted again, and the variogram stays.

        Returns
        -------
        DataFrame
            Coordinates, value, prediction, error (value minus prediction) and its variance with their proven ends, and
            the standardised error. `attrs["scores"]` has the figures of `dkgp.kriging.scores`.
        """
        from dkgp.kriging.crossvalidation import left_out_table

        check_is_fitted(self, "field_")
        return left_out_table(self.field_)

    def cross_validate(self, *, blocks: Any = None, folds: int = 10, seed: int = 0) -> Any:
        """Predict each fold of the samples from the others; the mean is fitted again, and the variogram stays.

        Parameters
        ----------
        blocks : float or (north, east), optional
            Size of square blocks whose samples stay in one fold. By default folds consist of single samples.
        folds : int, default 10
        seed : int, default 0
            Seed of the distribution over the folds.

        Returns
        -------
        DataFrame
            As `leave_one_out`, without the ends of intervals, and with the number of the fold.
        """
        from dkgp.kriging.crossvalidation import folds_table

        check_is_fitted(self, "field_")
        return folds_table(self.field_, blocks, folds, seed, self.client)

    # --------------------------------------------------------------------------------------------------------- storage

    def save(self, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted field to a store; `Kriging.load` opens it."""
        check_is_fitted(self, "field_")
        self.field_.save(os.fspath(url), overwrite=overwrite)

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> Self:
        """Open a stored field; `StoreError` for another store."""
        field = Field.open(os.fspath(url))
        settings = field.about.get("settings")
        if settings is None:
            raise StoreError(f"'{os.fspath(url)}' has a field without the settings of Kriging; open it with Field.open")
        settings = settings | {"covariates": tuple(settings["covariates"])}
        kriging = cls(field.variogram, crs=field.space.crs, **settings)
        kriging.field_ = field
        return kriging._take()


def points_of_style(style: str, axes: Sequence[ArrayLike], mask: Any) -> tuple[tuple[FloatArray, ...], Any]:
    """Return the points of a style of PyKrige, x, y and z (r,), and which cells or points they are, of its shape.

    Raises `InputError`: another style, or shapes that do not fit.
    """
    points = [np.atleast_1d(np.squeeze(np.asarray(values, dtype=np.float64))) for values in axes]
    if style == "points":
        if len({values.shape for values in points}) > 1:
            raise InputError(f"points have as many x as y; got {' and '.join(str(values.size) for values in points)}")
    elif style in ("grid", "masked"):
        points = list(np.meshgrid(*points[::-1], indexing="ij"))[::-1]
    else:
        raise InputError(f"`style` is grid, masked or points; got {style!r}")
    shape = points[0].shape
    taken: Any = np.ones(shape, dtype=bool)
    if style == "masked":
        if np.shape(mask) not in (shape, shape[::-1]):
            raise InputError(f"the style masked needs a `mask` of shape {shape}; got {np.shape(mask)}")
        taken = ~np.asarray(mask, dtype=bool)
        taken = taken if taken.shape == shape else taken.T
    return tuple(values[taken] for values in points), taken


def shaped_as_style(kriged: Kriged, taken: Any, style: str) -> tuple[Any, Any]:
    """Return means and variances of one value in the shape of a style of PyKrige."""
    if kriged.mean.shape[1] > 1 or kriged.variance is None:
        raise InputError("`execute` predicts one value; use `predict` for several")
    results: list[Any] = []
    for values in (kriged.mean, kriged.variance):
        whole = np.zeros(taken.shape)
        whole[taken] = values[:, 0]
        results.append(np.ma.array(whole, mask=~taken) if style == "masked" else whole)
    return results[0], results[1]


def _columns(data: Any, n: int, shape: tuple[int, ...] | None = None) -> tuple[FloatArray, tuple[str, ...]]:
    """Return values (n, p), finite, and their names; `InputError` for others, and for another shape than the points'.

    Values of one dimension, and points of one, go with each other in any case.
    """
    parts = data if isinstance(data, tuple) else (data,)
    if any(isinstance(values, str) for values in parts):
        raise InputError(
            f"data are arrays of values; got the text {data!r}. Pass the column itself, such as frame['zinc'], or read "
            "coordinates and values of a table by `read_samples`"
        )
    parts = tuple(_in_order_of(parts[0], each) for each in parts)
    arrays = [numbers_of(values, "data") for values in parts]
    for each in arrays:
        lengths = [[size for size in one if size != 1] for one in (each.shape, shape or ())]
        if each.size == n and min(map(len, lengths)) > 1 and lengths[0] != lengths[1]:
            raise InputError(f"data has shape {each.shape}; expected that of the coordinates, {shape}")
    columns = [each.reshape(-1) for each in arrays]
    names = [values.name for values in parts if isinstance(getattr(values, "name", None), str)]
    if len(set(names)) < len(parts):
        names = ["z"] if len(parts) == 1 else [f"z{index}" for index in range(len(parts))]
    for name, column in zip(names, columns, strict=True):
        if len(column) != n:
            raise InputError(f"data has {len(column)} values; expected {n}, one for each sample")
        if not np.isfinite(column).all():
            row = int(np.argmin(np.isfinite(column)))
            missing = int((~np.isfinite(column)).sum())
            several = ", or take Cokriging, where values may be missing" if len(columns) > 1 else ""
            raise InputError(
                f"data {name} is missing or infinite at {missing:,} of {n:,} samples, first in row {row} "
                f"({column[row]}). Remove these samples, as `read_samples(drop_missing=True)` does{several}"
            )
    return np.column_stack(columns), tuple(map(str, names))


def _in_order_of(data: Any, values: Any) -> Any:
    """Return a DataArray with its dimensions in the order of the data's (the first of several); others as they are."""
    dims = getattr(data[0] if isinstance(data, tuple) else data, "dims", None)
    return values.transpose(*dims) if dims and set(getattr(values, "dims", ())) == set(dims) else values


def _noise(weights: Any, noise: Any, n: int) -> FloatArray:
    """Return variances of measurement errors by sample: (n,)."""
    if isinstance(weights, tuple) and all(one is None for one in weights):
        weights = None  # verde's `cross_val_score` passes (None,)
    if weights is not None and noise is not None:
        raise InputError("give `weights` (reciprocals of variances) or `noise` (variances), not both")
    if weights is None and noise is None:
        return np.zeros(n)
    name, given = ("noise", noise) if weights is None else ("weights", weights)
    values = numbers_of(given, f"`{name}`").reshape(-1)
    low = 0.0 if weights is None else np.nextafter(0.0, 1.0)
    if len(values) != n or not np.isfinite(values).all() or (values < low).any():
        expected = "at least 0" if weights is None else "positive"
        raise InputError(f"`{name}` has a finite number for each of {n} samples, {expected}; got {given!r}")
    return values if weights is None else 1.0 / values


__all__ = ["DUPLICATES", "Grid", "Kriging"]
