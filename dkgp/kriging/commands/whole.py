"""`dkgp krige TABLE`: from samples to a map and a report, each step by its own command."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.commands.chained import Steps, earlier_record
from dkgp.commands.reporting.layout import NOT_INFORMATIVE, Figure, rows_of, sheet_of, titled
from dkgp.commands.reporting.layout import grid as table_grid
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.outputs import Document, check_output_file, is_document, write_text
from dkgp.commands.reporting.progress import Reporter
from dkgp.data.remote.claims import locked
from dkgp.data.remote.storage import exists
from dkgp.errors import OutputExistsError
from dkgp.fit.page import _grid, _list, _rows, _section, inlined, whole_page
from dkgp.kriging.commands.jobs import KrigeMapJob
from dkgp.kriging.commands.krige import (
    DRAWN,
    FIELD_FIGURES,
    FITTED_BY,
    MAP_FIGURES,
    empirical_of,
    figure_text,
    is_compared,
    mean_bound_text,
    model_heads,
    model_rows,
)
from dkgp.kriging.pictures import plot_map, plot_variogram
from dkgp.kriging.rasters import cells_url, coarse_map
from dkgp.kriging.space import axis_unit
from dkgp.kriging.tables import SampleTable
from dkgp.kriging.variogram import Variogram
from dkgp.models.warm_up import helped

# Fewest samples on which models are compared.
LEAST = 50
# Cells of the page's picture on its longer side.
PICTURE = 160


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
            raise OutputExistsError.of(job.out)
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
    return whole_page(title, str(settings["source"]), sections)


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
            "Fitted models, the chosen one first (RMSE and NLPD on left-out blocks)",
            table_grid(
                model_heads(document["variogram"]), model_rows(document["variogram"]), left=("model", "fitted by")
            ),
        ),
        sheet_of("Kriged field", FIELD_FIGURES, document["fit"]),
        sheet_of("Map", MAP_FIGURES, document["grid"]),
        sheet_of("", (Figure("report", "{report}"), Figure("seconds of all steps", "{seconds:.1f}")), document),
    ]
    return parts
