"""From fields of a line to the inputs of a model: by a header's names, or by the order of the training set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dkgp.data import AnyModel, LinearRecord
from dkgp.data.sources.csv import delimiter_of, is_number, split_fields
from dkgp.data.sources.tables.encoding import Encoding
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError


class LineColumns:
    """The columns that a model's features are made of, and where a line has them.

    Parameters
    ----------
    model
        Its features, and the rules for text, dates and gaps that its training set was ingested by.

    Attributes
    ----------
    names
        The columns, in the training set's order; constant ones are not needed.
    """

    def __init__(self, model: AnyModel | LinearRecord) -> None:
        encoding = Encoding() if model.encoding is None else Encoding.from_json(model.encoding)
        origins = {name: column for column, rule in encoding.rules.items() for name in rule.names(column)}
        made_of = [origins.get(feature, feature) for feature in model.feature_names]
        self.names = tuple(dict.fromkeys(made_of))
        self._features = {
            column: [feature for feature, origin in zip(model.feature_names, made_of, strict=True) if origin == column]
            for column in self.names
        }
        self._notation = encoding.notation
        self._rules = {column: rule for column in self.names if (rule := encoding.rule(column)) is not None}
        # Of tables of numbers a line may have the constant features, too, which have no names here.
        kept = np.flatnonzero(model.standardisation.kept).tolist()
        self._widths = {len(self.names): list(range(len(self.names)))}
        if not encoding.changes_columns:
            self._widths[len(model.standardisation.kept)] = kept
        self._delimiter: str | None = None
        self._positions: dict[str, int] | None = None
        self._width = 0

    def begin(self, line: str) -> bool:
        """Take in the first line, which says the delimiter; True if it is a header.

        Raises `InputError`: a header that lacks columns, or unbalanced quotes.
        """
        self._delimiter = delimiter_of(line, self._notation.decimal)
        fields = [field.strip() for field in self._split(line, "line 1")]
        fields[0] = fields[0].removeprefix("#").strip()
        present = set(self.names) & set(fields)
        numeric = all(is_number(name) for name in self.names)
        if not present or (numeric and fields != list(self.names)):
            return False
        if len(present) < len(self.names):
            if all(is_number(field) or self._notation.number(field) is not None for field in fields):
                return False
            lacking = [name for name in self.names if name not in present]
            raise InputError(
                f"the header in line 1 has no column {quoted(lacking)}; the model takes {quoted(self.names)}. Add "
                "what is missing, or leave the header out and give these columns in this order"
            )
        self._positions = {name: fields.index(name) for name in self.names}
        self._width = len(fields)
        return True

    def inputs(self, line: str, place: str) -> FloatArray:
        """The model's features (d,) in a line; `place`, such as "line 3", is for messages.

        Raises `InputError`: another number of fields, or what is no finite number, level or date.
        """
        if not line.strip():
            raise InputError(f"{place} is empty; expected {self._expected()}")
        fields = self._split(line, place)
        positions = self._positions
        if positions is None:
            columns = self._widths.get(len(fields))
            if columns is None:
                raise InputError(f"{place} has {len(fields)} fields; expected {self._expected()}")
            positions = dict(zip(self.names, columns, strict=True))
        elif len(fields) != self._width:
            raise InputError(f"{place} has {len(fields)} fields; expected {self._width}, as in the header")
        values: list[float] = []
        for name, position in positions.items():
            text = fields[position].strip()
            values += self._values(name, text, place)
        return np.array(values)

    def _values(self, name: str, text: str, place: str) -> Sequence[float]:
        rule = self._rules.get(name)
        if rule is None:
            if not text or not is_number(text):
                raise InputError(f"{place} has '{text[:40]}' for '{name}'; expected a number")
            made = [float(text)]
        else:
            numbers = rule.read(np.array([text or np.nan], dtype=object), lambda row: place, True)
            by_name = dict(zip(rule.names(name), rule.features(numbers)[0].tolist(), strict=True))
            made = [by_name[feature] for feature in self._features[name]]
        if not np.isfinite(made).all():
            raise InputError(f"{place} has '{text[:40]}' for '{name}'; expected a finite value, without gaps")
        return made

    def _split(self, line: str, place: str) -> list[str]:
        return split_fields(line, self._delimiter or ",", place)

    def _expected(self) -> str:
        return f"{' or '.join(map(str, sorted(self._widths)))} fields, of which the model takes {quoted(self.names)}"
