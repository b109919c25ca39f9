"""Tables of points: their columns by name, with messages that list the columns of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dkgp.commands.predict.lines import LineColumns
from dkgp.data import ModelRecord
from dkgp.data.remote.storage import exists
from dkgp.data.sources.csv import CsvSource
from dkgp.data.sources.tables.encoding import Encoding
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError, MissingExtraError
from dkgp.kriging.covariates import short_name, transformed
from dkgp.kriging.space import Space, crs_of
from dkgp.kriging.tables import read_samples

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# Vector files, which have points.
FEATURES = (".gpkg", ".geojson", ".fgb", ".shp")
# Names that coordinates are recognised by, in lower case.
_GUESSES = {
    "x": ("x", "easting", "lon", "long", "longitude"),
    "y": ("y", "northing", "lat", "latitude"),
    "z": ("z", "up", "height", "depth"),
    "time": ("time", "t"),
}


class Points:
    """A table of points in a CSV or Parquet file, or in a vector file (`FEATURES`).

    Raises `InputError`: the file is missing, or is no such table, or has no rows.
    """

    def __init__(self, path: str) -> None:
        import pandas as pd

        self.path = path
        if not exists(path):
            raise InputError(f"there is no table '{path}'; expected a .csv, .parquet or vector file")
        try:
            self.frame: DataFrame = (
                self._features()
                if path.endswith(FEATURES)
                else pd.read_parquet(path)
                if path.endswith(".parquet")
                else self._delimited()
            )
        except (ValueError, OSError) as error:
            raise InputError(f"'{path}' cannot be read as a table of .csv or .parquet: {error}") from error
        if not len(self.frame):
            raise InputError(f"'{path}' has no rows; expected one row per point")

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.frame)

    def column(self, name: str) -> Series:
        """Return a column; `InputError`, listing the columns, if there is none of the name."""
        if name not in self.frame:
            raise InputError(
                f"'{self.path}' has no column '{name}'; its columns are {quoted(list(map(str, self.frame)))}"
            )
        return self.frame[name]

    def numbers(self, name: str) -> FloatArray:
        """Return a column of finite numbers; `InputError` for another one."""
        import pandas as pd

        column = self.column(name)
        values = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
        bad = ~np.isfinite(values)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"the column '{name}' of '{self.path}' is '{column.iloc[row]}' in row {row + 1}; expected a "
                f"finite number ({int(bad.sum()):,} of {self.n:,} rows have none). Remove or fill in these rows"
            )
        return values

    def _delimited(self) -> DataFrame:
        """Read a text file with the delimiter and the decimal mark that `dkgp krige` recognises."""
        import pandas as pd

        source = CsvSource(self.path)
        decimal = "," if source.take_decimal_commas() else "."
        return pd.read_csv(self.path, sep=source.delimiter, decimal=decimal, skipinitialspace=True)

    def _features(self) -> DataFrame:
        try:
            import geopandas
        except ImportError as error:
            raise MissingExtraError("geopandas", "geo", "Reading vector files") from error
        frame: DataFrame = geopandas.read_file(self.path)
        return frame

    def coordinates(
        self, space: Space, named: Sequence[str | None], note: Callable[[str], None]
    ) -> tuple[FloatArray, ...]:
        """Return the coordinates of a space, in its CRS: columns `named` for x, y, z and time, or of usual names.

        Points of a geometry serve for x and y without names. Coordinates in another CRS are transformed, and those of a
        table without one are taken to be in the space's; both are noted.
        """
        kinds = ["x", "y", "z"][: space.dimensions] + (["time"] if space.has_time else [])
        names = dict(zip(("x", "y", "z", "time"), named, strict=True))
        in_points = "geometry" in self.frame and names["x"] is None and names["y"] is None
        columns = {kind: names[kind] or self._guess(kind) for kind in kinds if not (in_points and kind in ("x", "y"))}
        numbers = {kind: self.numbers(name) for kind, name in columns.items()}
        reference = None
        if "geometry" in self.frame:
            read = read_samples(self.path, x=columns.get("x"), y=columns.get("y"))
            numbers |= dict(zip(("x", "y"), read.coordinates, strict=True))
            reference = read.crs
        if space.crs is None:
            return tuple(numbers[kind] for kind in kinds)
        if reference is None:
            note(f"'{self.path}' has no CRS: its coordinates are read as {short_name(crs_of(space.crs))} of the model")
        elif not crs_of(reference).equals(crs_of(space.crs), ignore_axis_order=True):
            ours, theirs = crs_of(space.crs), crs_of(reference)
            note(f"'{self.path}' is in {short_name(theirs)}: its coordinates are transformed to {short_name(ours)}")
            numbers["x"], numbers["y"] = transformed(numbers["x"], numbers["y"], theirs, ours)
        return tuple(numbers[kind] for kind in kinds)

    def _guess(self, kind: str) -> str:
        for name in self.frame:
            if str(name).lower() in _GUESSES[kind]:
                return str(name)
        raise InputError(
            f"'{self.path}' has no column of the coordinate {kind}, such as {', '.join(_GUESSES[kind][:3])}; its "
            f"columns are {quoted(list(map(str, self.frame)))}. Name it with `{kind}`"
        )

    def features(self, model: ModelRecord) -> FloatArray:
        """Return the raw features and covariates of a regression model: (r, d + c)."""
        encoding = Encoding() if model.encoding is None else Encoding.from_json(model.encoding)
        to = model.standardisation
        order = [(*model.feature_names, *to.covariate_names)[place] for place in to.raw_order]
        made: dict[str, FloatArray] = {}
        for name in LineColumns(model).names:
            rule = encoding.rule(name)
            if rule is None:
                made[name] = self.numbers(name)
                continue
            values = np.asarray(self.column(name), dtype=object)
            columns = rule.features(rule.read(values, lambda row: f"row {row + 1} of '{self.path}'", True))
            made |= dict(zip(rule.names(name), columns.T, strict=True))
        return np.column_stack([made[name] for name in order])
