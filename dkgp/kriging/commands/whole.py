"""`dkgp krige TABLE`: from samples to a map and a report, each step by its own command."""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from dkgp.cluster import ClusterOptions
from dkgp.commands.chained import Steps, earlier_record
from dkgp.commands.job_options import OVERWRITE
from dkgp.commands.recipe import command
from dkgp.commands.reporting.layout import NOT_INFORMATIVE, Figure, rows_of, sheet_of, titled
from dkgp.commands.reporting.layout import grid as table_grid
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import Document, check_output_file, is_document, plain, write_text
from dkgp.commands.reporting.progress import Reporter
from dkgp.data.remote.claims import locked
from dkgp.data.remote.storage import exists, is_local
from dkgp.errors import InputError, OutputExistsError
from dkgp.fit.page import STYLE, _grid, _list, _rows, _section, inlined
from dkgp.kriging.commands.krige import (
    DEGREE,
    DRAWN,
    DRIFT,
    FIELD_FIGURES,
    FITTED_BY,
    MAP_FIGURES,
    MODELS,
    RESUME,
    KrigeFitJob,
    KrigeGridJob,
    KrigeVariogramJob,
    empirical_of,
    figure_text,
    is_compared,
    mean_bound_text,
    model_heads,
    model_rows,
)
from dkgp.kriging.commands.options import (
    COVARIATES,
    GAP,
    OF,
    SOURCE,
    TIME,
    CellOptions,
    SampleColumns,
    VariogramOptions,
    named_rasters,
    names,
    raster_sources,
)
from dkgp.kriging.field import Quantity
from dkgp.kriging.pictures import plot_map, plot_variogram
from dkgp.kriging.rasters import FORMATS, cells_url, coarse_map, format_of
from dkgp.kriging.space import axis_unit
from dkgp.kriging.tables import SampleTable
from dkgp.kriging.variogram import Variogram
from dkgp.models.warm_up import helped
from dkgp.options import SEED, Part, check_ranges
from dkgp.registry import Option

# Fewest samples on which models are compared.
LEAST = 50
# Cells of the page's picture on its longer side.
PICTURE = 160
MAP = Option(
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
    out: Annotated[str, MAP]
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
        stem = next(self.out.removesuffix(one) for one in FORMATS if self.out.endswith(one))
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
        columns = _words(self.samples, ("target",))
        kriging = ["--degree", str(self.degree)] if self.degree else []
        kriging += ["--drift", ",".join(self.drift)] if self.drift else []
        seed = ["--seed", str(self.seed)] if self.seed else []
        cells = [word for name in self.grid_job().covariates for word in ("--covariates", name)]
        cells += [] if self.at_time is None else ["--time", f"{self.at_time!r}"]
        cells += ["--of", self.of] if self.of != "signal" else []
        cells += ["--variance", "--variance-gap", f"{self.gap:g}"] if self.variance else []
        fit = ["--fit", ",".join(self.fit), *(["--compare"] if compare else [])]
        variogram, fitted = self.place(".variogram.json"), self.place(".field.zarr")
        lines = [
            ["variogram", self.source, *columns, *kriging, *fit, "--out", variogram, *seed],
            ["fit", self.source, *columns, "--variogram", variogram, *kriging, "--out", fitted, *seed],
            ["grid", fitted, *_words(self.cells), *cells, "--out", self.out],
        ]
        return [shlex.join(("dkgp", "krige", *line)) for line in lines]


def _words(part: Any, always: tuple[str, ...] = ()) -> list[str]:
    """Return the options of a part that are set, as words of a command line."""
    words = []
    for name, value in vars(part).items():
        default = None if name in always else type(part).__dataclass_fields__[name].default
        if value == default:
            continue
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        else:
            text = ",".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)
            words += [flag, text]
    return words


def run_krige_map(job: KrigeMapJob, reporter: Reporter) -> Document:
    """Make a map from samples; errors as in the commands of its steps."""
    with locked(job.out):
        return _run(job, reporter)


def _run(job: KrigeMapJob, reporter: Reporter) -> Document:
    record = Path(job.store_url)
    earlier = earlier_record("krige map", record, job.settings(), reporter) if job.resume else None
    if earlier is not None and earlier["finished"]:
        reporter.note(f"the map '{job.out}' is already complete")
        return earlier
    if earlier is None:
        replaceable = job.overwrite or is_document(record, "krige map")
        if exists(job.out) and not job.overwrite:
            raise OutputExistsError(f"'{job.out}' exists; pass `overwrite` to replace it, or another name")
        for ending in (".variogram.json", ".krige.json", ".html"):
            check_output_file(job.place(ending), replace=replaceable, option="`out`")
    table = job.samples.read(job.source, reporter, job.drift)
    with PeakMemory() as memory, helped():
        steps = Steps("krige map", record, job.settings(), earlier, memory, reporter)
        compared = steps.command("variogram", job.variogram_job(compare=table.n >= LEAST))
        fit = job.fit_job()
        fitted = steps.command("fit", replace(fit, resume=steps.goes_on and fit.begun))
        going_on = steps.goes_on and exists(cells_url(job.out))
        mapped = steps.command("grid", replace(job.grid_job(), resume=going_on))
        document: Document = {
            "command": "krige map",
            "finished": True,
            "out": job.out,
            "settings": job.settings(),
            "variogram": compared,
            "fit": fitted,
            "grid": mapped,
            "commands": job.commands(compare=table.n >= LEAST),
            "report": job.place(".html"),
            "seconds_by_phase": steps.seconds,
        }
        steps.run("report", lambda: _write_page(job, table, document))
    document["seconds"] = sum(steps.seconds.values())
    document["peak_memory_bytes"] = steps.peak_bytes
    document["warnings"] = list(reporter.warnings)
    return steps.finish(document)


# ------------------------------------------------------------------------------------------------------------ the page


def _write_page(job: KrigeMapJob, table: SampleTable, document: Document) -> Document:
    """Write the report; return where it is, and whether it has pictures."""
    drawable = importlib.util.find_spec("matplotlib") is not None
    pictures = _pictures(job, table, document) if drawable else {}
    write_text(job.place(".html"), page(document, pictures))
    return {"page": job.place(".html"), "pictures": len(pictures)}


def _pictures(job: KrigeMapJob, table: SampleTable, document: Document) -> dict[str, str]:
    """Return the variogram, and the map of the mean and of the deviation in coarse cells; SVG by title."""
    empirical = empirical_of(table, job.samples, job.variogram_job(compare=False))
    models = {
        f"{each['name']}, {FITTED_BY[each['fit']]}": Variogram.from_dict(each["variogram"])
        for each in document["variogram"]["models"][:DRAWN]
    }
    pictures = {
        "Semivariances of the samples by distance, and the models": inlined(
            lambda path: plot_variogram(path, empirical, models, "variogram"), "variogram"
        )
    }
    grid, layers = coarse_map(job.out, PICTURE)
    if "variance" in layers:
        layers["standard deviation"] = np.sqrt(layers.pop("variance"))
    samples = (table.coordinates[0], table.coordinates[1])
    target, unit = job.samples.target, axis_unit(table.crs) if table.crs else ""
    labels = tuple(f"{name}{f' ({unit})' if unit else ''}" for name in table.coordinate_names[:2])
    ends = [
        f"the {name} is {figure_text(np.nanmin(each))} to {figure_text(np.nanmax(each))}"
        for name, each in layers.items()
    ]
    bound = mean_bound_text(document["grid"])
    title = f"The map in coarse cells, samples as dots: {' and '.join(ends)} in units of {target}"
    if bound != NOT_INFORMATIVE:
        title += f". Each mean is proven to be within {bound} of exact kriging with this variogram"
    pictures[title] = inlined(
        lambda path: plot_map(path, grid, layers, samples, target, unit=target, axes=labels), "map"
    )
    return pictures


def page(document: Document, pictures: dict[str, str]) -> str:
    """Return the page of a map; all text is escaped, SVG stands as it is."""
    settings, fitted = document["settings"], document["fit"]
    title = f"{fitted['target']}: map of {fitted['n']:,} samples"
    figures = "".join(
        f"<figure>\n<figcaption>{escape(name)}</figcaption>\n{svg}\n</figure>\n" for name, svg in pictures.items()
    )
    lines = escape("\n".join(document["commands"]))
    sections = [
        _section("Map", _rows(rows_of(MAP_FIGURES, document["grid"]))),
        _section("Pictures", figures or "<p>No pictures, because matplotlib is not installed.</p>\n"),
        _section(
            "Variogram",
            _grid(model_heads(document["variogram"]), model_rows(document["variogram"])) + _models_note(document),
        ),
        _section("Field", _rows(rows_of(FIELD_FIGURES, fitted))),
        _section("Warnings", _list(dict.fromkeys([*fitted["warnings"], *document["grid"]["warnings"]]))),
        _section("Commands", f"<p>The same steps as single commands:</p>\n<pre>{lines}</pre>\n"),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(str(settings["source"]))}</p>\n</header>\n'
        + "".join(sections)
        + "</main>\n</body>\n</html>\n"
    )


def _models_note(document: Document) -> str:
    """Return a paragraph on the columns of the models."""
    compared = is_compared(document["variogram"])
    order = (
        "RMSE and NLPD are the root mean square error and the mean negative log predictive density on left-out "
        "blocks of samples. The map uses the first model, which has the lowest NLPD."
        if compared
        else "The map uses the first model, which has the lowest misfit. Cross-validation with left-out blocks needs "
        f"at least {LEAST} samples."
    )
    return (
        f"<p>{order} Sills and nuggets are in squared units of {escape(document['fit']['target'])}. The range is the "
        "length in the formula of the model; at the practical range the correlation is 0.05, or becomes 0. The "
        "misfit is the root mean square relative difference from the semivariances.</p>\n"
    )


def tables_krige_map(document: Document) -> list[Any]:
    """Return the models, the field, the map, and the report."""
    parts: list[Any] = [
        titled(
            "Fitted models, the chosen one first",
            table_grid(
                model_heads(document["variogram"]), model_rows(document["variogram"]), left=("model", "fitted by")
            ),
        ),
        sheet_of("Kriged field", FIELD_FIGURES, document["fit"]),
        sheet_of("Map", MAP_FIGURES, document["grid"]),
        sheet_of("", (Figure("report", "{report}"), Figure("seconds of all steps", "{seconds:.1f}")), document),
    ]
    return parts
