"""`dkgp predict --stdin`: lines in, lines out, each answered as soon as it is read. Nothing is written to disk."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TextIO

import numpy as np

from dkgp.commands.predict.columns import LineColumns
from dkgp.commands.predict.job import LinesJob
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import LINEAR_MODEL_KIND, open_any_model, open_linear_model, recognise
from dkgp.data.remote.storage import normalise_url
from dkgp.data.sources.csv import LONGEST_LINE_BYTES
from dkgp.data.types import FloatArray, quoted
from dkgp.errors import InputError
from dkgp.models.prediction.table import RowTable

READ_BYTES = 64 * 1024


def run_lines(job: LinesJob, reporter: Reporter) -> None:
    """Answer the lines of standard input on standard output; see `answer`.

    Raises
    ------
    InputError
        A model that cannot be opened, a header that lacks columns; at the end, lines that could not be predicted.
    MemoryBudgetError
        The model, or its variances, do not fit in memory.
    BrokenPipeError
        Nobody reads the answers any more.
    """
    is_linear = recognise(normalise_url(job.model)) == LINEAR_MODEL_KIND
    model = open_linear_model(job.model) if is_linear else open_any_model(job.model)
    columns, table = LineColumns(model), RowTable(model, job.variance)
    try:
        reporter.note(f"answering lines of {quoted(columns.names)} from standard input")

        def refuse(message: str) -> None:
            print(f"dkgp predict: {message}", file=sys.stderr, flush=True)

        total, bad = answer(columns, table, sys.stdin.buffer, sys.stdout, refuse)
    finally:
        table.close()
    if bad:
        raise InputError(
            f"{bad:,} of {total:,} lines could not be predicted, and were answered by nan; standard error names each"
        )


def answer(
    columns: LineColumns, table: RowTable, source: BinaryIO, out: TextIO, refuse: Callable[[str], None]
) -> tuple[int, int]:
    """Answer line by line: a header by a header, a row by a row of predictions, what is neither by nan and a message.

    What has arrived at once is predicted at once, and written before more is waited for.

    Raises `InputError`: a header that lacks columns, or a line without end.

    Parameters
    ----------
    columns, table
        Of one model.
    source
        Bytes of UTF-8, lines of delimited fields.
    out
        Takes as many lines as come, of comma-separated fields.
    refuse
        Called with what is wrong with a line.

    Returns
    -------
    total, bad
        Lines with values, and those of them that could not be predicted.
    """
    # The first call compiles, and tells what columns there are.
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
    """Answers by the lines' indices, of all that can be predicted."""
    if not rows:
        return {}
    try:
        predicted = table(np.stack(list(rows.values())))
    except InputError as error:
        if len(rows) == 1:
            refuse(f"line {first_number + next(iter(rows))}: {error}")
            return {}
        # One of them is too large to be standardised: which one shows line by line.
        alone = [_predicted(table, {index: row}, first_number, refuse) for index, row in rows.items()]
        return {index: answer for answers in alone for index, answer in answers.items()}
    values = zip(*(column.tolist() for column in predicted.values()), strict=True)
    return {index: list(row) for index, row in zip(rows, values, strict=True)}


def _text(rows: list[list[Any]]) -> str:
    """Rows of fields as lines; a number as the shortest digits that stand for its very bits."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _arrived(source: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Lines as they arrive, as many as there are, and the number of the first of them, from 1."""
    rest, number = b"", 1
    while True:
        piece: bytes = source.read1(READ_BYTES)  # type: ignore[attr-defined]  # what has come, without waiting for more
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
