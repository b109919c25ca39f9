"""`dkgp predict --stdin`: read lines, and write the prediction of each as soon as it is read. No file is written.

The names in a header, or the order of the training set, assign the fields of a line to the inputs of a model.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TextIO

import numpy as np

from dkgp.commands.predict.job import LinesJob
from dkgp.commands.reporting.progress import Reporter, typed
from dkgp.data import LINEAR_MODEL_KIND, AnyModel, LinearRecord, open_any_model, open_linear_model, recognise
from dkgp.data.remote.storage import normalise_url
from dkgp.data.sources.csv import LONGEST_LINE_BYTES, delimiter_of, is_number, split_fields
from dkgp.data.sources.tables.encoding import Encoding
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError
from dkgp.models.prediction.table import RowTable


class LineColumns:
    """The columns from which a model's features are built, and their positions in a line.

    Parameters
    ----------
    model
        The model, with its features and its training set's rules for text, dates and gaps.

    Attributes
    ----------
    names
        The columns, in the training set's order; constant columns are not needed.
    """

    def __init__(self, model: AnyModel | LinearRecord) -> None:
        encoding = Encoding() if model.encoding is None else Encoding.from_json(model.encoding)
        origins = {name: column for column, rule in encoding.rules.items() for name in rule.names(column)}
        to = model.standardisation
        of_model = (*model.feature_names, *to.covariate_names)
        columns = [of_model[place] for place in to.raw_order]
        made_of = [origins.get(feature, feature) for feature in columns]
        self.names = tuple(dict.fromkeys(made_of))
        self._features = {
            column: [feature for feature, origin in zip(columns, made_of, strict=True) if origin == column]
            for column in self.names
        }
        self._notation = encoding.notation
        self._rules = {column: rule for column in self.names if (rule := encoding.rule(column)) is not None}
        # For tables of numbers a line may contain the constant features too, which have no names here.
        needed = sorted([*np.flatnonzero(to.kept).tolist(), *(covariate.column for covariate in to.covariates)])
        self._widths = {len(self.names): list(range(len(self.names)))}
        if not encoding.changes_columns:
            self._widths[len(to.kept)] = needed
        self._delimiter: str | None = None
        self._positions: dict[str, int] | None = None
        self._width = 0

    def begin(self, line: str) -> bool:
        """Read the first line, which determines the delimiter; return True if it is a header.

        Raises `InputError`: a header without all columns, or unbalanced quotes.
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
                f"the header in line 1 has no column {quoted(lacking)}; the model takes {quoted(self.names)}. Add the "
                f"missing columns, or leave out the header and give these columns in this order"
            )
        self._positions = {name: fields.index(name) for name in self.names}
        self._width = len(fields)
        return True

    def inputs(self, line: str, place: str) -> FloatArray:
        """Return the model's features and covariates (d + c,) of a line; messages name its `place`, such as "line 3".

        Raises `InputError`: a wrong number of fields, or a field that is not a finite number, a level or a date.
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
            raise InputError(f"{place} has '{text[:40]}' for '{name}'; expected a finite number")
        return made

    def _split(self, line: str, place: str) -> list[str]:
        return split_fields(line, self._delimiter or ",", place)

    def _expected(self) -> str:
        return f"{' or '.join(map(str, sorted(self._widths)))} fields; the model uses {quoted(self.names)}"


READ_BYTES = 64 * 1024


def run_lines(job: LinesJob, reporter: Reporter) -> None:
    """Predict the lines of standard input on standard output; see `answer`.

    Raises
    ------
    InputError
        The model cannot be opened, or the header lacks columns; at the end, if some lines failed.
    MemoryBudgetError
        The model or its variances exceed the memory.
    BrokenPipeError
        The reader of the predictions has closed the pipe.
    """
    is_linear = recognise(normalise_url(job.model)) == LINEAR_MODEL_KIND
    model = open_linear_model(job.model) if is_linear else open_any_model(job.model)
    variance = None if job.variance is None else job.variance.settings(model.variance_gap)
    columns, table = LineColumns(model), RowTable(model, variance)
    try:
        reporter.note(f"reading lines with the columns {quoted(columns.names)} from standard input")

        def refuse(message: str) -> None:
            print(f"dkgp predict: {typed(message)}", file=sys.stderr, flush=True)

        total, bad = answer(columns, table, sys.stdin.buffer, sys.stdout, refuse)
    finally:
        table.close()
    if bad:
        raise InputError(
            f"{bad:,} of {total:,} lines could not be predicted; their answers are nan. Standard error has a "
            "message for each of these lines"
        )


def answer(
    columns: LineColumns, table: RowTable, source: BinaryIO, out: TextIO, refuse: Callable[[str], None]
) -> tuple[int, int]:
    """Answer each line: a header by a header, a row by predictions, an invalid line by nan and a message.

    Lines that arrive together are predicted together, and their answers are written before the next read.

    Raises `InputError`: a header without all columns, or a line that does not end.

    Parameters
    ----------
    columns, table
        Columns and predictions of the same model.
    source
        A stream of delimited lines in UTF-8.
    out
        A stream for the answers, one line of comma-separated fields per line of input.
    refuse
        A callback for the error message of a line.

    Returns
    -------
    total, bad
        The number of lines with values, and the number of these that failed.
    """
    # The first call compiles, and its result has the output columns.
    example = table(table.middle[None])
    unknown = [np.nan if values.dtype.kind == "f" else "" for values in example.values()]
    total = bad = 0
    begun = False
    for first_number, lines in _arrived(source):
        rows: dict[int, FloatArray] = {}
        answers: dict[int, list[Any]] = {}
        for index, line in enumerate(lines):
            if not begun and line.strip():
                begun = True
                if columns.begin(line):
                    answers[index] = list(example)
                    total -= 1
                    continue
            try:
                rows[index] = columns.inputs(line, f"line {first_number + index}")
            except InputError as error:
                refuse(str(error))
        answers |= _predicted(table, rows, first_number, refuse)
        out.write(_text([answers.get(index, unknown) for index in range(len(lines))]))
        out.flush()
        total, bad = total + len(lines), bad + len(lines) - len(answers)
    return total, bad


def _predicted(
    table: RowTable, rows: Mapping[int, FloatArray], first_number: int, refuse: Callable[[str], None]
) -> dict[int, list[Any]]:
    """Return the answers by line index, for all lines without an error."""
    if not rows:
        return {}
    try:
        predicted = table(np.stack(list(rows.values())))
    except InputError as error:
        if len(rows) == 1:
            refuse(f"line {first_number + next(iter(rows))}: {error}")
            return {}
        # One row is too large to be standardised: predict the rows one by one to find it.
        alone = [_predicted(table, {index: row}, first_number, refuse) for index, row in rows.items()]
        return {index: answer for answers in alone for index, answer in answers.items()}
    values = zip(*(column.tolist() for column in predicted.values()), strict=True)
    return {index: list(row) for index, row in zip(rows, values, strict=True)}


def _text(rows: list[list[Any]]) -> str:
    """Return rows of fields as lines; each number has the shortest digits that restore its exact value."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _arrived(source: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Yield batches of lines as they arrive, with the number of the first line of each, from 1."""
    rest, number = b"", 1
    while True:
        piece: bytes = source.read1(READ_BYTES)  # type: ignore[attr-defined]  # available bytes, without waiting for more
        if number == 1 and not rest:
            piece = piece.removeprefix(b"\xef\xbb\xbf")
        whole = rest + piece
        lines = whole.split(b"\n")
        rest = lines.pop() if piece else b""
        if not piece and not lines[-1]:
            lines.pop()
        if len(rest) > LONGEST_LINE_BYTES:
            raise InputError(f"line {number} is longer than 64 MiB; expected delimited fields")
        if lines:
            yield number, [line.removesuffix(b"\r").decode(errors="replace") for line in lines]
            number += len(lines)
        if not piece:
            return
