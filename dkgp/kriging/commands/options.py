"""Options that the commands of kriging share: columns of the samples, the variogram, and the region of a map."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from dkgp.commands.reporting.progress import Reporter
from dkgp.data.remote.storage import read_object
from dkgp.errors import InputError
from dkgp.kriging.choices import FORM_NAMES, RANGE_KINDS
from dkgp.options import Checked, arguments_for, check_ranges
from dkgp.registry import Group, Option

if TYPE_CHECKING:
    from dkgp.kriging.grids import Grid
    from dkgp.kriging.tables import SampleTable
    from dkgp.kriging.variogram import Variogram

# Share of a cell by which a multiple of the spacing may be off, from rounding.
_NEARLY = 1e-6
SAMPLES = Group("Columns and coordinates of the samples", place=1)
VARIOGRAM = Group("The variogram", place=1)


def moment(text: str) -> float:
    """Read a number, or a date in days since 1970-01-01 (UTC), as times of samples are read."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a number nor a date such as 2024-02-01.") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() / 86_400.0


SOURCE = Option(place="read", reads="table", argument=True)
FIELD = Option(place="read", reads="model", argument=True)
OF = Option(
    help="The predicted quantity. signal: the field without the nugget; field: the field with its micro-scale "
    "variation (`dkgp krige fit --nugget-is microscale`); observation: a new measurement, with its error."
)
VARIANCE = Option(help="Also predict kriging variances, each with a proven interval.")
DOCUMENT = Option(help="Also write the results as a JSON document.", metavar="FILE.json", place="write")
PLOT = Option(help="Draw a picture of the result into a .png, .pdf or .svg file.", metavar="FILE", place="write")
COVARIATES = Option(
    help="Raster of a covariate of the external drift. May be repeated.",
    metavar="NAME=FILE",
    multiple=True,
)
TIME = Option(
    help="Time of the map, for samples in space and time: a number, or a date such as 2024-02-01.",
    type=moment,
    metavar="TIME",
)
GAP = Option(
    help="Requested width of a variance's proven interval, relative to its upper end.",
    above=0,
    spellings=("--variance-gap",),
)


def names(text: str) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers that are separated by commas or slashes."""
    try:
        return tuple(float(part) for part in text.replace("/", ",").split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 0,1000,0,500.") from None


def named_rasters(texts: Sequence[str]) -> dict[str, str]:
    """Return the paths of rasters by name, of texts NAME=FILE; none if all texts are names of columns."""
    pairs = [text.partition("=") for text in texts]
    if not any(separator for _, separator, _ in pairs):
        return {}
    if not all(name and path for name, _, path in pairs):
        raise InputError(f"covariates are either all columns, or all rasters NAME=FILE; got {tuple(texts)}")
    return {name: path for name, _, path in pairs}


def raster_sources(**fields: Sequence[str]) -> list[tuple[str, str]]:
    """Return the rasters of fields with texts NAME=FILE, each with its field, as a job's `sources`."""
    return [(field, path) for field, texts in fields.items() for path in named_rasters(texts).values()]


def opened_rasters(texts: Sequence[str]) -> Any:
    """Return the `CovariateRasters` of texts NAME=FILE."""
    from dkgp.kriging.covariates import CovariateRasters

    paths = named_rasters(texts)
    if not paths:
        raise InputError(f"`covariates` are NAME=FILE, such as dist=dist.tif; got {tuple(texts)}")
    return CovariateRasters.open(paths)


def covariate_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of covariates, of texts NAME or NAME=FILE."""
    return tuple(text.partition("=")[0] for text in texts)


@dataclass(frozen=True)
class SampleColumns:
    """Columns of the samples, and their coordinates."""

    target: Annotated[str, Option(help="Column of the measured values.", metavar="COLUMN")]
    x: Annotated[
        str | None,
        Option(
            help="Column of the easting or longitude.  [default: easting, x or lon, or the geometry]",
            metavar="COLUMN",
            group=SAMPLES,
        ),
    ] = None
    y: Annotated[str | None, Option(help="Column of the northing or latitude.", metavar="COLUMN", group=SAMPLES)] = None
    z: Annotated[str | None, Option(help="Column of the height.", metavar="COLUMN", group=SAMPLES)] = None
    time: Annotated[
        str | None, Option(help="Column of the time. Dates become days.", metavar="COLUMN", group=SAMPLES)
    ] = None
    crs: Annotated[
        str | None,
        Option(
            help="Coordinate reference system of the samples, such as EPSG:28992.  [default: of the file]",
            metavar="CRS",
            group=SAMPLES,
        ),
    ] = None
    layer: Annotated[
        str | None,
        Option(
            help="Layer to read, if the file has several.  [default: the only one with geometries]",
            metavar="NAME",
            group=SAMPLES,
        ),
    ] = None
    metric: Annotated[
        str,
        Option(
            help="How distances are measured. plane: in the plane; sphere, wgs84: straight lines through the sphere "
            "or the ellipsoid, in km; auto: by the coordinate reference system.",
            choices=("auto", "plane", "sphere", "wgs84"),
            group=SAMPLES,
        ),
    ] = "auto"
    time_scale: Annotated[
        float | None,
        Option(help="With --time: number of map units that correspond to one unit of time.", above=0, group=SAMPLES),
    ] = None
    noise: Annotated[
        str | None,
        Option(
            help="Column of the variances of the measurement errors, which are added to the nugget.",
            metavar="COLUMN",
            group=SAMPLES,
        ),
    ] = None
    drop_missing: Annotated[bool, Option(help="Leave out rows with a missing value.", group=SAMPLES)] = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.time is None) != (self.time_scale is None):
            raise InputError("`time` needs `time_scale` (map units per unit of time), and the reverse; give both")

    def read(self, source: str, reporter: Reporter, covariates: tuple[str, ...] = ()) -> SampleTable:
        """Read the samples, and report the choices that were made; errors as in `read_samples`."""
        from dkgp.kriging.tables import read_samples

        table = read_samples(
            source, **arguments_for(read_samples, self), covariates=named_rasters(covariates) or covariates
        )
        for note in table.notes:
            reporter.note(note)
        return table


@dataclass(frozen=True)
class VariogramOptions(Checked):
    """A variogram: from a file, by its values, or by a name whose values are fitted."""

    variogram: Annotated[
        str | None,
        Option(
            help="File that `dkgp krige variogram --out` wrote. Its first model is used.",
            metavar="FILE",
            place="read",
            group=VARIOGRAM,
        ),
    ] = None
    model: Annotated[
        str,
        Option(
            help="Variogram model. Without --range, range, sill and nugget are fitted to the samples.",
            choices=(*FORM_NAMES, "matern"),
            group=VARIOGRAM,
        ),
    ] = "exponential"
    range: Annotated[
        float | None, Option(help="Range in map units, by the convention of --range-is.", above=0, group=VARIOGRAM)
    ] = None
    sill: Annotated[
        float | None,
        Option(help="Sill, including the nugget, in squared units of the target.", above=0, group=VARIOGRAM),
    ] = None
    psill: Annotated[
        float | None, Option(help="Partial sill: the sill without the nugget.", above=0, group=VARIOGRAM)
    ] = None
    nugget: Annotated[
        float | None,
        Option(help="With --range: nugget, in squared units of the target.  [default: 0.0]", least=0, group=VARIOGRAM),
    ] = None
    nugget_is: Annotated[
        str,
        Option(
            help="Meaning of the nugget. error: measurement error, which predictions filter out; microscale: "
            "variation of the field at distances below those of the samples.",
            choices=("error", "microscale"),
            group=VARIOGRAM,
        ),
    ] = "error"
    range_is: Annotated[
        str,
        Option(
            help="Convention of --range. scale: the length l in the formula of the model, such as exp(-h / l); "
            "practical: the distance at which the correlation is 0.05, or becomes 0; integral: the integral of the "
            "correlation; pykrige, gstools, gstat: the range of that program.",
            choices=RANGE_KINDS,
            group=VARIOGRAM,
        ),
    ] = "scale"
    nu: Annotated[
        float | None, Option(help="Smoothness of the model matern: 0.5, 1.5 or 2.5.", above=0, group=VARIOGRAM)
    ] = None
    alpha: Annotated[
        float | None, Option(help="Exponent of the models rational and stable.", above=0, group=VARIOGRAM)
    ] = None
    ratio: Annotated[
        float,
        Option(
            help="Anisotropy: range along the minor axis over range along the main axis, at most 1.",
            above=0,
            group=VARIOGRAM,
        ),
    ] = 1.0
    angle: Annotated[
        float | None,
        Option(help="Direction of the main axis in degrees, from east counter-clockwise.", group=VARIOGRAM),
    ] = None
    azimuth: Annotated[
        float | None, Option(help="Direction of the main axis in degrees, from north clockwise.", group=VARIOGRAM)
    ] = None

    def made(self) -> Variogram | str:
        """Return the variogram, or the name of a model to fit; `InputError` for contradictory values."""
        given = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
        others = [name for name in given if name not in ("variogram", "model", "range")]
        if self.variogram is not None:
            if others or self.range is not None:
                raise InputError("got `variogram`, a file, and values of a variogram; give one of them")
            return read_variogram(self.variogram)
        if self.range is None:
            if others:
                raise InputError(f"`{others[0]}` needs `range`; give both, or neither to fit the model to the samples")
            return self.model
        values: dict[str, Any] = {"sill": self.sill} if self.psill is None else {"psill": self.psill}
        if self.psill is not None and self.sill is not None:
            values["sill"] = self.sill
        from dkgp.kriging.variogram import Variogram

        return Variogram(
            self.model,
            range=self.range,
            nugget=self.nugget or 0.0,
            nugget_is=self.nugget_is,
            range_is=self.range_is,
            nu=self.nu,
            alpha=self.alpha,
            ratio=self.ratio,
            angle=self.angle,
            azimuth=self.azimuth,
            **values,
        )


def read_variogram(path: str) -> Variogram:
    """Read the best model of a file of `dkgp krige variogram`; `InputError` for another file."""
    from dkgp.kriging.variogram import Variogram

    try:
        return Variogram.from_dict(json.loads(read_object(path))["variogram"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is no file of `dkgp krige variogram --out`: {error}") from error


@dataclass(frozen=True)
class CellOptions(Checked):
    """The cells of a map."""

    spacing: Annotated[
        float | None,
        Option(
            help="Distance between the centres of neighbouring cells, in map units or degrees.  [default: a round "
            "number that gives about 200 cells on the longer side]",
            above=0,
        ),
    ] = None
    shape: Annotated[
        tuple[float, ...] | None,
        Option(help="Number of rows and columns, instead of --spacing.", type=numbers, metavar="ROWS,COLUMNS"),
    ] = None
    region: Annotated[
        tuple[float, ...] | None,
        Option(
            help="West, east, south and north of the outermost centres.  [default: the extent of the samples, "
            "rounded outward to multiples of the spacing]",
            type=numbers,
            metavar="W,E,S,N",
        ),
    ] = None
    pixel_register: Annotated[
        bool, Option(help="--region gives the outer edges of the cells instead of their centres.")
    ] = False

    def grid(self, region: tuple[float, ...], most: int | None = None) -> Grid:
        """Return the grid of the options, by default of the samples' region with about `most` cells a side.

        A spacing stays as it is: without `region` the grid has whole multiples of it and covers the samples; with
        `region` it begins in the south-west. Errors of `Grid.of`.
        """
        rows = None if self.shape is None else tuple(map(int, self.shape))
        if rows is not None and (len(rows) != 2 or rows != self.shape):
            raise InputError(f"`shape` is rows and columns, two whole numbers; got {self.shape}")
        spacing, within = self.spacing, self.region
        sides = within or region
        if rows is None and spacing is None and most is not None and len(sides) == 4:
            spacing = round_spacing(max(sides[1] - sides[0], sides[3] - sides[2]) / (most - 1))
        if rows is None and spacing is not None and within is None:
            within = covering(region, spacing)
        from dkgp.kriging.grids import Grid

        return Grid.of(
            within or region, shape=rows, spacing=spacing, adjust="region", pixel_register=self.pixel_register
        )


def round_spacing(step: float) -> float:
    """Return the closest of 1, 2, 2.5 and 5 times a power of ten; 1 for a step of zero."""
    if not step > 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return float(min((factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0)), key=lambda one: abs(one - step)))


def covering(region: tuple[float, ...], spacing: float) -> tuple[float, float, float, float]:
    """Return the least region of whole multiples of the spacing that contains a region."""
    west, east, south, north = (value / spacing for value in region)
    low = [math.floor(value + _NEARLY) * spacing for value in (west, south)]
    high = [math.ceil(value - _NEARLY) * spacing for value in (east, north)]
    return low[0], high[0], low[1], high[1]
