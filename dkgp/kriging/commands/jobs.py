"""The jobs of `dkgp krige`: options and checks. The other modules of this room run them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dkgp.cluster import ClusterOptions
from dkgp.commands.job_options import OVERWRITE, TrainingJob
from dkgp.commands.recipe import command, command_words
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.data.remote.storage import is_local
from dkgp.errors import InputError
from dkgp.kriging.choices import (
    ESTIMATORS,
    FIT_WEIGHTS,
    MAP_FORMATS,
    SIMULATION_METHODS,
    Duplicates,
    Quantity,
    format_of,
)
from dkgp.kriging.commands.options import (
    COVARIATES,
    DOCUMENT,
    FIELD,
    GAP,
    OF,
    PLOT,
    SAMPLES,
    SOURCE,
    TIME,
    VARIANCE,
    CellOptions,
    SampleColumns,
    VariogramOptions,
    covariate_names,
    named_rasters,
    names,
    opened_rasters,
    raster_sources,
)
from dkgp.operators.product_error import PRODUCT_ERROR, Value
from dkgp.options import SEED, Checked, Part, check_ranges
from dkgp.registry import FURTHER, Option, Values

if TYPE_CHECKING:
    from dkgp.kriging.kriging import Kriging
    from dkgp.kriging.rasters import MapSettings
    from dkgp.kriging.tables import SampleTable
    from dkgp.kriging.variogram import Variogram

# Models that are fitted and compared by default.
MODELS = ("exponential", "spherical", "matern32", "gaussian")
ESTIMATOR = Option(
    help="Estimator of the semivariances. matheron: half the mean squared difference; cressie, dowd, genton: robust "
    "against outliers.",
    choices=ESTIMATORS,
)
DEGREE = Option(help="Degree of the drift in the coordinates: 0, 1 or 2.", least=0)
DRIFT = Option(
    help="Covariates of an external drift, separated by commas: columns of SOURCE, or rasters NAME=FILE.",
    type=names,
    metavar="NAMES",
    spellings=("--drift",),
)


# ----------------------------------------------------------------------------------------------------------- variograms


@command(
    """
    SOURCE is a table of samples (CSV, Parquet, GeoPackage, GeoParquet, NetCDF and others). The command sorts
    pairs of samples into bins by their distance (lag). It prints the semivariance and the number of pairs of each bin,
    and the fitted models, the best one first. With --degree or --drift it uses the residuals of a least-squares fit of
    the drift. `dkgp krige fit --variogram` reads the file that --out writes.
    """,
    "dkgp krige variogram soil.csv --target zinc --estimator cressie --fit exponential,spherical,matern32 --out v.json",
    "dkgp krige variogram soil.gpkg --target zinc --direction 45 --plot v.png",
)
@dataclass(frozen=True)
class KrigeVariogramJob:
    """Samples, the bins of an empirical variogram, and models to fit."""

    source: Annotated[str, SOURCE]
    samples: Annotated[SampleColumns, Part()]
    estimator: Annotated[str, ESTIMATOR] = "cressie"
    fit: Annotated[
        tuple[str, ...], Option(help="Variogram models to fit, separated by commas.", type=names, metavar="NAMES")
    ] = MODELS
    weights: Annotated[
        str,
        Option(
            help="Weight of a bin in the least-squares fit, for N pairs at the mean lag h. cressie: N / gamma(h)^2, "
            "where gamma is the fitted model; pairs: N; pairs/h2: N / h^2; equal: 1.",
            choices=FIT_WEIGHTS,
        ),
    ] = "cressie"
    bins: Annotated[int, Option(help="Number of bins.", least=1)] = 15
    max_lag: Annotated[
        float | None,
        Option(
            help="Largest distance of a pair.  [default: a third of the diagonal of the samples' bounding box]", above=0
        ),
    ] = None
    direction: Annotated[
        float | None, Option(help="Use only pairs along this direction: degrees from east, counter-clockwise.")
    ] = None
    angle_tolerance: Annotated[
        float, Option(help="With --direction: largest deviation of a pair's direction, in degrees.", above=0)
    ] = 22.5
    bandwidth: Annotated[
        float | None,
        Option(
            help="With --direction: largest distance of a pair's second sample from the line through the first one.",
            above=0,
        ),
    ] = None
    pairs: Annotated[
        int,
        Option(
            help="Number of random pairs per bin if there are more than 20 million pairs. The table then has the "
            "standard error of each semivariance that this choice causes.",
            least=100,
        ),
    ] = 100_000
    degree: Annotated[int, DEGREE] = 0
    drift: Annotated[tuple[str, ...], DRIFT] = ()
    compare: Annotated[
        bool,
        Option(
            help="Also fit each model by restricted maximum likelihood, and rank all fits by cross-validation with "
            "left-out blocks on at most 2,000 samples. The best fit to the semivariances is not always the best "
            "predictor."
        ),
    ] = False
    plot: Annotated[str | None, PLOT] = None
    out: Annotated[str | None, DOCUMENT] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        from dkgp.kriging.variogram import form_name

        for name in self.fit:
            form_name(name)


# --------------------------------------------------------------------------------------------------------------- fields


def _tolerance(text: str) -> float | Literal["auto"]:
    try:
        return "auto" if text == "auto" else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a number nor 'auto'.") from None


TOLERANCE = Option(
    help="Tolerance of the kriging equations, relative to the square root of the partial sill. auto: small enough that "
    "the proven error of a mean is a small share of the kriging standard deviation.",
    type=_tolerance,
    values=Values(lambda value: value == "auto" or value > 0.0, "above zero, or auto"),
    metavar="E",
    spellings=("--tol",),
    group=FURTHER,
)


@command(
    """
    SOURCE is a table of samples. The command solves the kriging equations of all samples, without a search
    neighbourhood, and writes the kriged field to a store. `dkgp krige grid` makes a map of this field; `dkgp audit` and
    `dkgp info` read it too. Kriging is ordinary by default, simple with --mean, and universal with --degree or --drift.
    """,
    "dkgp krige fit soil.csv --target zinc --variogram v.json --out zinc.zarr",
    "dkgp krige fit soil.gpkg --target zinc --model spherical --range 900 --psill 0.6 --nugget 0.05 --out zinc.zarr",
    "dkgp krige fit soil.csv --target zinc --variogram v.json --out zinc.zarr --resume",
    goes_on=True,
)
@dataclass(frozen=True)
class KrigeFitJob(TrainingJob):
    """Samples, a variogram and a mean."""

    source: Annotated[str, SOURCE]
    samples: Annotated[SampleColumns, Part()]
    out: Annotated[str, Option(help="Store to write the field to.", metavar="STORE", place="write")]
    variogram: Annotated[VariogramOptions, Part()] = field(default_factory=VariogramOptions)
    mean: Annotated[float | None, Option(help="Known mean, for simple kriging.")] = None
    degree: Annotated[int, DEGREE] = 0
    drift: Annotated[tuple[str, ...], DRIFT] = ()
    duplicates: Annotated[
        Duplicates,
        Option(
            help="Treatment of several samples at one place. merge: combine them exactly, weighted by their "
            "measurement errors; keep: keep all; mean: average them; first: keep the first one; refuse: stop with an "
            "error.",
            group=SAMPLES,
        ),
    ] = "merge"
    tolerance: Annotated[float | Literal["auto"], TOLERANCE] = "auto"
    product_error: Annotated[Value, PRODUCT_ERROR] = "auto"
    seed: Annotated[int, SEED] = 0

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Files that the job reads beside the samples, each with its field."""
        file = self.variogram.variogram
        return [*([] if file is None else [("variogram", file)]), *raster_sources(drift=self.drift)]

    def kriging(self, table: SampleTable, variogram: Variogram | None = None) -> Kriging:
        """Return the settings of the estimator, with another variogram if one is passed."""
        from dkgp.kriging.kriging import Kriging

        if self.mean is not None and (self.degree or self.drift):
            raise InputError("`mean` is for simple kriging, `degree` and `drift` for universal kriging; give one kind")
        kind = "simple" if self.mean is not None else "universal" if self.degree or self.drift else "ordinary"
        return Kriging(
            variogram or self.variogram.made(),
            kind=kind,
            mean=self.mean,
            degree=self.degree,
            covariates=covariate_names(self.drift),
            duplicates=self.duplicates,
            crs=table.crs,
            metric=self.samples.metric,
            time_scale=self.samples.time_scale,
            tolerance=self.tolerance,
            product_error=self.product_error,
            random_state=self.seed,
        )


# ----------------------------------------------------------------------------------------------------------------- maps


MAP = Option(help="File or store to write the map to: .tif, .nc or .zarr.", metavar="PLACE", place="write")
RESUME = Option(help="Continue an interrupted run. Completed work is not repeated.")


@command(
    """
    MODEL is a store of `dkgp krige fit`. Each cell of a regular grid gets the kriged mean and a proven bound on its
    error, with --variance also the kriging variance in a proven interval. A GeoTIFF is cloud-optimised and stores
    single precision, with bounds rounded outward. The first row of a GeoTIFF is the northernmost; the first row of
    NetCDF and Zarr is the southernmost.
    """,
    "dkgp krige grid zinc.zarr --spacing 40 --out zinc.tif",
    "dkgp krige grid zinc.zarr --spacing 40 --of field --variance --out zinc.tif --resume",
    goes_on=True,
)
@dataclass(frozen=True)
class KrigeGridJob(Checked):
    """A field and the cells of a map."""

    model: Annotated[str, FIELD]
    out: Annotated[str, MAP]
    cells: Annotated[CellOptions, Part()] = field(default_factory=CellOptions)
    of: Annotated[Quantity, OF] = "signal"
    variance: Annotated[bool, VARIANCE] = False
    gap: Annotated[float, GAP] = 0.05
    crs: Annotated[
        str | None,
        Option(help="Coordinate reference system of the map.  [default: of the samples]", metavar="CRS", group=FURTHER),
    ] = None
    time: Annotated[float | None, TIME] = None
    covariates: Annotated[tuple[str, ...], COVARIATES] = ()
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    @property
    def store_url(self) -> str:
        """The cells of a map that is not finished."""
        from dkgp.kriging.rasters import cells_url

        return cells_url(self.out)

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Files that the job reads beside the field, each with its field."""
        return raster_sources(covariates=self.covariates)

    @property
    def settings(self) -> MapSettings:
        """Settings of the map; `InputError` for rasters without a name."""
        from dkgp.kriging.rasters import MapSettings

        values: dict[str, Any] = {"of": self.of, "variance": self.variance, "gap": self.gap}
        values |= {"crs": self.crs, "time": self.time}
        if self.covariates:
            values["covariates"] = opened_rasters(self.covariates)
        return MapSettings(**values)


# ---------------------------------------------------------------------------------------------------------------- areas


DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON"}
TABLES = (".csv", ".parquet", *DRIVERS)


@command(
    """
    MODEL is a store of `dkgp krige fit`. The command predicts the average of the field over each polygon of POLYGONS
    (GeoPackage, GeoJSON, shapefile, GeoParquet), or over each cell of a grid (--spacing or --shape). Each mean has a
    proven bound on its error and each variance a proven interval; both include the error of the numerical quadrature.
    Measurement errors and micro-scale variation average to zero over an area. Covariates of an external drift are
    averaged over the quadrature nodes; no bound includes their variation between nodes.
    """,
    "dkgp krige blocks zinc.zarr parishes.gpkg --out p.gpkg",
    "dkgp krige blocks zinc.zarr --spacing 500 --out blocks.csv",
)
@dataclass(frozen=True)
class KrigeBlocksJob(Checked):
    """A field, and areas."""

    model: Annotated[str, FIELD]
    polygons: Annotated[str | None, Option(place="read", argument=True)] = None
    out: Annotated[
        str,
        Option(help=f"Table with one row per area: {', '.join(TABLES)}.", metavar="FILE", required=True, place="write"),
    ] = ""
    ids: Annotated[str | None, Option(help="Column with the names of the polygons.", metavar="COLUMN")] = None
    layer: Annotated[
        str | None,
        Option(
            help="Layer of POLYGONS, if the file has several.  [default: the only one with geometries]", metavar="NAME"
        ),
    ] = None
    cells: Annotated[CellOptions, Part()] = field(default_factory=CellOptions)
    quadrature: Annotated[int, Option(help="Initial number of quadrature nodes per side of an area.", least=1)] = 8
    quadrature_tolerance: Annotated[
        float,
        Option(
            help="Largest accepted quadrature error, in standard deviations of the field. dkgp adds nodes until the "
            "error is smaller.",
            above=0,
        ),
    ] = 0.01
    covariates: Annotated[tuple[str, ...], COVARIATES] = ()
    overwrite: Annotated[bool, OVERWRITE] = False
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Files that the job reads beside the field, each with its field."""
        return raster_sources(covariates=self.covariates)


# ----------------------------------------------------------------------------------------------------------- simulation


@command(
    """
    MODEL is a store of `dkgp krige fit`. The command draws fields at the cells of a grid, conditional on the samples,
    and writes them to a Zarr store. It prints the method, and how far the covariance of the fields is from the model's.
    """,
    "dkgp krige simulate zinc.zarr --fields 100 --spacing 40 --out sims.zarr",
)
@dataclass(frozen=True)
class KrigeSimulateJob(Checked):
    """A field, the cells of a grid, and settings of the simulation."""

    model: Annotated[str, FIELD]
    out: Annotated[str, Option(help="Zarr store to write the simulated fields to.", metavar="STORE", place="write")]
    fields: Annotated[int, Option(help="Number of fields.", least=1)] = 100
    cells: Annotated[CellOptions, Part()] = field(default_factory=CellOptions)
    method: Annotated[
        str,
        Option(
            help="Method of the simulation. circulant: circulant embedding, exact in distribution, for regular grids; "
            "cholesky: Cholesky factorisation, exact, for few cells; fourier: Fourier series with a proven error of "
            "the covariance; features: random Fourier features. auto: the first of these methods that is applicable.",
            choices=SIMULATION_METHODS,
        ),
    ] = "auto"
    of: Annotated[Quantity, OF] = "signal"
    snap: Annotated[
        bool, Option(help="Move each sample to the nearest grid cell for the unconditional simulation.")
    ] = False
    error: Annotated[
        float, Option(help="Largest accepted error of the covariance, relative to the partial sill.", above=0)
    ] = 1e-4
    time: Annotated[float | None, TIME] = None
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    seed: Annotated[int, SEED] = 0
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    @property
    def store_url(self) -> str:
        """The fields of a simulation that is not finished."""
        from dkgp.kriging.layers import part_of

        return str(part_of(Path(self.out)))


# ----------------------------------------------------------------------------------------------------- cross-validation


@command(
    """
    MODEL is a store of `dkgp krige fit`. The command predicts each sample from all other samples. With --blocks it
    divides the map into square blocks and these into folds, and predicts the samples of a fold from the other folds, so
    that close neighbours do not help. The variogram is not fitted again. The standardised error of a sample is its
    error divided by its kriging standard deviation.
    """,
    "dkgp krige check zinc.zarr",
    "dkgp krige check zinc.zarr --blocks 500 --folds 10 --plot cv.png",
)
@dataclass(frozen=True)
class KrigeCheckJob(Checked):
    """A field, and the folds of its cross-validation."""

    model: Annotated[str, FIELD]
    blocks: Annotated[
        float | None,
        Option(help="Leave out square blocks of this side, in map units, instead of single samples.", above=0),
    ] = None
    folds: Annotated[int, Option(help="With --blocks: number of folds, each of many blocks.", least=2)] = 10
    plot: Annotated[str | None, PLOT] = None
    out: Annotated[str | None, DOCUMENT] = None
    overwrite: Annotated[bool, OVERWRITE] = False
    seed: Annotated[int, SEED] = 0
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)


# ------------------------------------------------------------------------------------------------- a map in one command


WHOLE_MAP = Option(
    help="File or store to write the map to: .tif, .nc or .zarr. The variogram, the kriged field, a record and the "
    "report get the same name with other endings.",
    metavar="PLACE",
    place="write",
)


@command(
    """
    The command estimates the variogram of the samples, fits several models by weighted least squares and by restricted
    maximum likelihood, and takes the one that predicts left-out blocks best. It then kriges all samples, and writes the
    map and a report. The report, OUT with the ending .html, contains the commands that reproduce the map.
    `dkgp krige SOURCE ...` is the same command.
    """,
    "dkgp krige soil.gpkg --target zinc --out zinc.tif",
    "dkgp krige map soil.csv --target zinc --crs EPSG:28992 --spacing 40 --out zinc.zarr --resume",
    goes_on=True,
)
@dataclass(frozen=True)
class KrigeMapJob:
    """Samples to krige, and the map."""

    source: Annotated[str, SOURCE]
    samples: Annotated[SampleColumns, Part()]
    out: Annotated[str, WHOLE_MAP]
    cells: Annotated[CellOptions, Part()] = field(default_factory=CellOptions)
    fit: Annotated[
        tuple[str, ...],
        Option(help="Variogram models to compare, separated by commas.", type=names, metavar="NAMES"),
    ] = MODELS
    degree: Annotated[int, DEGREE] = 0
    drift: Annotated[tuple[str, ...], DRIFT] = ()
    covariates: Annotated[tuple[str, ...], COVARIATES] = ()
    of: Annotated[Quantity, OF] = "signal"
    variance: Annotated[
        bool,
        Option(
            help="Also predict kriging variances, each with a proven interval.",
            spellings=("--variance/--no-variance",),
            shown="variance",
        ),
    ] = True
    gap: Annotated[float, GAP] = 0.05
    at_time: Annotated[float | None, TIME] = None
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False
    seed: Annotated[int, SEED] = 0
    cluster: Annotated[ClusterOptions, Part()] = field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        check_ranges(self)
        format_of(self.out)
        if (self.samples.time is None) != (self.at_time is None):
            raise InputError("`time` names the column of the samples' times, `at_time` is the map's time; give both")
        if not is_local(self.out):
            raise InputError(
                f"`out` is a map on this machine; got '{self.out}'. For other places run the commands one by one"
            )

    def place(self, ending: str) -> str:
        """Return the address of a file beside the map."""
        stem = next(self.out.removesuffix(one) for one in MAP_FORMATS if self.out.endswith(one))
        return f"{stem}{ending}"

    @property
    def store_url(self) -> str:
        """The record of the steps."""
        return self.place(".krige.json")

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Files that the job reads beside the samples, each with its field."""
        return raster_sources(drift=self.drift, covariates=self.covariates)

    def settings(self) -> Document:
        """Settings that a resumed run must share."""
        values = plain(replace(self, cluster=ClusterOptions(), resume=False, overwrite=False))
        return {name: value for name, value in values.items() if name not in ("cluster", "resume", "overwrite")}

    def variogram_job(self, *, compare: bool) -> KrigeVariogramJob:
        """Return the first step."""
        return KrigeVariogramJob(
            self.source,
            self.samples,
            fit=self.fit,
            degree=self.degree,
            drift=self.drift,
            compare=compare,
            out=self.place(".variogram.json"),
            overwrite=True,
            seed=self.seed,
        )

    def fit_job(self) -> KrigeFitJob:
        """Return the second step."""
        return KrigeFitJob(
            self.source,
            self.samples,
            self.place(".field.zarr"),
            VariogramOptions(self.place(".variogram.json")),
            degree=self.degree,
            drift=self.drift,
            overwrite=True,
            seed=self.seed,
            cluster=self.cluster,
        )

    def grid_job(self) -> KrigeGridJob:
        """Return the third step."""
        return KrigeGridJob(
            self.place(".field.zarr"),
            self.out,
            self.cells,
            of=self.of,
            variance=self.variance,
            gap=self.gap,
            time=self.at_time,
            covariates=self.covariates or (self.drift if named_rasters(self.drift) else ()),
            overwrite=True,
            cluster=self.cluster,
        )

    def commands(self, *, compare: bool) -> list[str]:
        """Return the steps as command lines."""
        job = replace(self, cluster=ClusterOptions())
        steps = (job.variogram_job(compare=compare), job.fit_job(), job.grid_job())
        return [shlex.join(command_words(step, without=("overwrite",))) for step in steps]
