"""`dkgp krige blocks` and `dkgp krige simulate`: averages over areas, and conditional simulation."""

from __future__ import annotations

import io
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.cluster import BlockExecutor
from dkgp.commands.reporting.layout import Figure, may, sheet_of
from dkgp.commands.reporting.outputs import Document, check_output_file, plain
from dkgp.commands.signals import interruptible
from dkgp.data.remote.storage import replacing
from dkgp.errors import InputError, MissingExtraError, OutputExistsError, UsageError
from dkgp.kriging.blocks import BlockPredictions, grid_blocks, krige_blocks, rules_of
from dkgp.kriging.commands.jobs import DRIVERS, TABLES, KrigeBlocksJob, KrigeSimulateJob
from dkgp.kriging.commands.krige import MEAN_BOUND, MOST_CELLS_A_SIDE, FieldRun
from dkgp.kriging.commands.options import opened_rasters
from dkgp.kriging.grids import Grid
from dkgp.kriging.simulation import Simulation, simulate
from dkgp.kriging.tables import read_polygons
from dkgp.models.prediction.predict import Destination

# -------------------------------------------------------------------------------------------------------------- blocks


# Width of a variance's interval, of its upper end, that a warning names.
WIDE = 0.05


class KrigeBlocksRun(FieldRun):
    """A run of `dkgp krige blocks`."""

    command = "krige blocks"
    job: KrigeBlocksJob

    def check(self) -> None:
        """Refuse outputs of no known format, and neither or both kinds of areas."""
        job = self.job
        if Path(job.out).suffix not in TABLES:
            raise InputError(f"the name of the table must end in {', '.join(TABLES)}; got '{job.out}'")
        check_output_file(job.out, replace=job.overwrite, option="`out`")
        of_cells = job.cells.spacing is not None or job.cells.shape is not None
        if of_cells == (job.polygons is not None):
            raise UsageError("give either POLYGONS, or `spacing` or `shape` of cells")

    def open(self) -> None:
        """Open the field, and read the areas."""
        super().open()
        job, space = self.job, self.kriging.space_
        if job.polygons is None:
            self.shapes: list[Any] = grid_blocks(job.cells.grid(self.kriging.region_))
            self.ids = [str(number) for number in range(len(self.shapes))]
        else:
            read = read_polygons(job.polygons, ids=job.ids, crs=space.crs, layer=job.layer)
            for note in read.notes:
                self.reporter.note(note)
            self.shapes, self.ids = list(read.shapes), list(read.ids)

    def work(self, executor: BlockExecutor) -> tuple[BlockPredictions, float]:
        """Predict, and write the table."""
        began, job, one = time.perf_counter(), self.job, self.kriging.field_
        rules = rules_of(
            one, self.shapes, order=job.quadrature, tolerance=job.quadrature_tolerance, names=tuple(self.ids)
        )
        with interruptible(self.reporter.note) as interruption:
            rasters = opened_rasters(job.covariates) if job.covariates else None
            blocks = krige_blocks(one, rules, self.context(executor, interruption), covariates=rasters)
        columns: dict[str, Any] = {"id": self.ids}
        for target, name in enumerate(one.record.target_names):
            before = f"{name}_" if one.record.n_targets > 1 else ""
            for figure in ("mean", "mean_error_bound", "variance", "variance_lower", "variance_upper"):
                columns[before + figure] = getattr(blocks, figure)[:, target]
        columns |= {"quadrature_error": blocks.quadrature_error, "area": blocks.area}
        write_areas(job.out, columns, self.shapes, self.kriging.space_.crs)
        return blocks, time.perf_counter() - began

    def conclude(self, result: tuple[BlockPredictions, float], peak_bytes: int) -> Document:
        """Return figures of all areas."""
        blocks, seconds = result
        width = (blocks.variance_upper - blocks.variance_lower) / blocks.variance_upper
        missed = int((width.max(axis=1) > WIDE).sum())
        if missed:
            self.reporter.warn(
                f"the proven variance intervals of {missed:,} of {len(self.ids):,} areas are wider than "
                f"{100 * WIDE:g} % of their upper ends; a smaller `quadrature_tolerance` may narrow them"
            )
        largest = int(np.nanargmax(blocks.mean_error_bound.max(axis=1)))
        document: Document = plain(
            {
                "command": self.command,
                "model": self.job.model,
                "out": self.job.out,
                "blocks": len(self.ids),
                "mean_error_bound": float(blocks.mean_error_bound[largest].max()),
                "mean_error_bound_of": self.ids[largest],
                "quadrature_error": float(blocks.quadrature_error.max()),
                "interval_width": float(np.nanmax(width)),
                **self.cost(seconds, peak_bytes),
            }
        )
        return document


def write_areas(out: str, columns: dict[str, Any], shapes: list[Any], crs: str | None) -> None:
    """Write a table of areas, with their shapes where the format has them; `MissingExtraError` without geopandas.

    A CSV has the bounding boxes.
    """
    import pandas as pd

    suffix = Path(out).suffix
    if suffix == ".csv":
        sides = [shape if isinstance(shape, tuple) else np.array(shape.bounds)[[0, 2, 1, 3]] for shape in shapes]
        columns = columns | dict(zip(("west", "east", "south", "north"), np.array(sides).T, strict=True))
    frame: Any = pd.DataFrame(columns)
    if suffix != ".csv":
        try:
            import geopandas
            import shapely
        except ImportError as error:
            raise MissingExtraError("geopandas", "geo", "Writing areas with their shapes") from error
        geometry = [
            shape if hasattr(shape, "geom_type") else shapely.box(shape[0], shape[2], shape[1], shape[3])
            for shape in shapes
        ]
        frame = geopandas.GeoDataFrame(frame, geometry=geometry, crs=crs)
    # GDAL does not report a full disk: it writes to memory.
    content = io.BytesIO()
    if suffix == ".csv":
        frame.to_csv(content, index=False)
    elif suffix == ".parquet":
        frame.to_parquet(content)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'crs' was not provided", UserWarning)
            frame.to_file(content, driver=DRIVERS[suffix], engine="pyogrio", layer="areas")
    with replacing(Path(out)) as place:
        place.write_bytes(content.getbuffer())


def tables_krige_blocks(document: Document) -> list[Any]:
    """Return figures of all areas."""
    figures = (
        Figure("table", "{out}: {blocks:,} areas"),
        MEAN_BOUND,
        Figure("variances certified within", "at most {interval_width:.2%} of the upper end"),
        Figure("seconds", "{seconds:.1f}"),
    )
    return [sheet_of("Averages over areas", figures, document)]


# ---------------------------------------------------------------------------------------------------------- simulation


class KrigeSimulateRun(FieldRun):
    """A run of `dkgp krige simulate`."""

    command = "krige simulate"
    job: KrigeSimulateJob

    def check(self) -> None:
        """Refuse an existing store."""
        if Path(self.job.out).exists() and not self.job.overwrite:
            raise OutputExistsError.of(self.job.out)
        if not self.job.out.endswith(".zarr"):
            raise InputError(f"the name of the store must end in .zarr; got '{self.job.out}'")

    def work(self, executor: BlockExecutor) -> tuple[Grid, float]:
        """Draw, and write the store."""
        began, job = time.perf_counter(), self.job
        cells = job.cells.grid(self.kriging.region_, MOST_CELLS_A_SIDE)
        settings = Simulation(
            job.fields,
            job.method,  # type: ignore[arg-type]  # a choice of the option
            of=job.of,
            snap=job.snap,
            error=job.error,
            seed=job.seed,
        )
        out = Destination(job.out, overwrite=job.overwrite, resume=job.resume)
        with interruptible(self.reporter.note) as interruption:
            context = self.context(executor, interruption)
            simulate(self.kriging.field_, cells, settings, context, out=out, time=job.time)
        return cells, time.perf_counter() - began

    def conclude(self, result: tuple[Grid, float], peak_bytes: int) -> Document:
        """Return the method, and the error of the covariance."""
        cells, seconds = result
        attributes = json.loads((Path(self.job.out) / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        document: Document = plain(
            {
                "command": self.command,
                "model": self.job.model,
                "out": self.job.out,
                "fields": self.job.fields,
                "shape": list(cells.shape),
                "simulation": attributes,
                **self.cost(seconds, peak_bytes),
            }
        )
        return document


def tables_krige_simulate(document: Document) -> list[Any]:
    """Return the figures of a simulation."""
    figures = (
        Figure("store", "{out}: {fields:,} fields of {shape[0]:,} × {shape[1]:,} cells"),
        may("method", "{simulation[method]}"),
        Figure(
            "largest error of the covariance",
            lambda of: (
                f"{of['simulation']['covariance_error']:.2g} of the partial sill"
                if "covariance_error" in of["simulation"]
                else "not proven for this method"
            ),
        ),
        Figure("seconds", "{seconds:.1f}"),
    )
    return [sheet_of("Simulated fields", figures, document)]
