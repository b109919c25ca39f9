"""A survey of every column of a source: the obstacles to a data set, and the options that solve them.

Ingestion reads numbers; the first text, date or gap stops it. `survey` then reads the whole source,
so that one message lists every obstacle and ends with a line to paste.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.data.sources.base import MISSING_TEXTS, OTHER_KINDS, Column, Source
from dkgp.data.sources.tables.encoding import (
    NOTATIONS,
    PLAIN,
    Notation,
    Number,
    NumberTexts,
    Places,
    common,
    date_seconds,
    gaps,
    level_names,
    may_be_date,
    texts_of,
)
from dkgp.data.sources.tables.learning import DATE_FORMATS, MOST_LEVELS, TableOptions
from dkgp.data.types import FloatArray, joined
from dkgp.errors import InputError
from dkgp.progress import Progress, ProgressCallback

# Texts among numbers that people write for a gap.
_GAP_TEXTS = frozenset({"?", "-", "--", ".", "*", "na", "n/a", "nan", "none", "null", "missing", "unknown", "nil"})
# Columns of at most so many levels are categories to be one-hot; of more they are named, and better dropped.
_MOST_ONE_HOT = 50
# Different texts of a column of numbers, such as error codes, that are taken for missing values where they are rare.
_MOST_ODD_TEXTS = 20
# Of rows: where gaps touch no more, their rows are left out; where they touch more, gaps are filled in.
_MOST_GAPS_DROPPED = 0.05
# Values of a column that are looked at for dates, and rows that are looked at for repeats.
_DATES_TRIED = 1000
_MOST_ROWS_COMPARED = 500_000
_ROWS_HASHED = 4096


@dataclass
class ColumnSurvey:
    """Counts of the values of a column, as they pass; `__call__` is a `Column.encode` that refuses nothing."""

    name: str
    rows: int = 0
    missing: int = 0
    infinite: int = 0
    texts: int = 0
    first_text: str = ""
    first_text_place: str = ""
    first_gap_place: str = ""
    lowest: float = np.inf
    highest: float = -np.inf
    # "dates", "durations" or "complex numbers", where the source tells types.
    kind: str = ""
    levels: dict[str, int] = field(default_factory=dict)
    # Different numbers of the beginnings of blocks, counted up to `_MOST_ONE_HOT` and one more.
    different: set[float] = field(default_factory=set)
    formats: list[str] = field(default_factory=lambda: list(DATE_FORMATS))
    counts_rows: bool = True
    # In which numbers are read so far, and how the texts among them are written.
    notation: Notation = PLAIN
    written: NumberTexts = field(default_factory=NumberTexts)
    gap_levels: dict[str, int] = field(default_factory=dict)
    # Texts of `MISSING_TEXTS` that stand for missing values, and how often.
    missing_texts: Counter[str] = field(default_factory=Counter)
    not_missing: frozenset[str] = frozenset()

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """Count the next rows (rows,); text comes back as a number that is its own."""
        import pandas as pd

        values = np.asarray(values)
        if untyped:
            values = self._without_missing(values)
        empty = gaps(values)
        if values.dtype.kind in OTHER_KINDS:
            self.kind, _ = OTHER_KINDS[values.dtype.kind]
            values, numbers = texts_of(values), np.full(len(values), np.nan)
        elif values.dtype.kind not in "biuf":
            values = values.astype(object)
            read = Number(self.name, notation=self.notation).coerced(values)
            numbers = pd.to_numeric(pd.Series(np.where(empty, np.nan, read)), errors="coerce").to_numpy(np.float64)
            self.written.look_at_plain(text for text in values[~np.isnan(numbers)].tolist() if isinstance(text, str))
        else:
            numbers = values.astype(np.float64)
        text = np.isnan(numbers) & ~empty
        self._count(values, numbers, empty, text, place)
        if not text.any():
            return np.asarray(numbers)
        hashed = pd.util.hash_array(np.array([str(value) for value in values[text].tolist()], dtype=object))
        numbers = numbers.copy()
        numbers[text] = (hashed >> np.uint64(12)).astype(np.float64)
        return np.asarray(numbers)

    def _without_missing(self, values: NDArray[Any]) -> NDArray[Any]:
        """Count texts that stand for missing values, and return the values with NaN in their place."""
        texts = MISSING_TEXTS - self.not_missing
        found = [value if isinstance(value, str) and value in texts else None for value in values.tolist()]
        self.missing_texts.update(text for text in found if text is not None)
        return np.where([text is not None for text in found], np.nan, values)

    def _count(
        self, values: NDArray[Any], numbers: FloatArray, empty: NDArray[Any], text: NDArray[Any], place: Places
    ) -> None:
        infinite = np.isinf(numbers)
        finite = numbers[np.isfinite(numbers)]
        if empty.any() and not self.missing:
            self.first_gap_place = place(int(np.argmax(empty)))
        if text.any():
            if not self.texts:
                row = int(np.argmax(text))
                self.first_text, self.first_text_place = str(values[row]), place(row)
            if not self.kind:
                self._count_texts(values[text])
        if len(finite):
            self.lowest, self.highest = min(self.lowest, finite.min()), max(self.highest, finite.max())
            if len(self.different) <= _MOST_ONE_HOT:
                self.different.update(finite[: 4 * _MOST_ONE_HOT].tolist())
        following = np.arange(self.rows, self.rows + len(numbers), dtype=np.float64)
        steps = numbers - following
        self.counts_rows &= bool(len(steps) == 0 or (np.all(steps == steps[0]) and steps[0] in (0.0, 1.0)))
        self.rows += len(numbers)
        self.missing += int(empty.sum())
        self.infinite += int(infinite.sum())
        self.texts += int(text.sum())

    def _count_texts(self, texts: NDArray[Any]) -> None:
        names = [name for name in level_names(texts) if name is not None]
        for level in names:
            if level in self.levels or len(self.levels) <= MOST_LEVELS:
                self.levels[level] = self.levels.get(level, 0) + 1
            if level.lower() in _GAP_TEXTS:
                self.gap_levels[level] = self.gap_levels.get(level, 0) + 1
        self.written.look(name for name in names if name.lower() not in _GAP_TEXTS)
        if self.formats and isinstance(texts[0], str):
            self.formats = [form for form in self.formats if may_be_date(texts[0], form)]
        tried = texts[:_DATES_TRIED]
        self.formats = [form for form in self.formats if not np.isnan(date_seconds(tried, form)).any()]

    @property
    def numbers(self) -> int:
        """Rows that hold a number, infinite ones included."""
        return self.rows - self.missing - self.texts

    @property
    def gap_texts(self) -> list[str]:
        """Texts that look like a gap, where they are few and all others are numbers."""
        if self.reads_like_numbers:
            return list(self.gap_levels)
        if not self.texts or self.texts > 0.5 * self.rows or not self.numbers:
            return []
        return list(self.levels) if all(level.lower() in _GAP_TEXTS for level in self.levels) else []

    @property
    def odd_texts(self) -> list[str]:
        """Few texts, such as 'ERROR', among numbers that are too many for categories."""
        is_rare = 0 < self.texts <= _MOST_GAPS_DROPPED * self.rows and self.n_levels <= _MOST_ODD_TEXTS
        return list(self.levels) if is_rare and not self.kind and len(self.different) > _MOST_ONE_HOT else []

    @property
    def is_date(self) -> bool:
        """True of texts that are dates, all of them as far as they were tried."""
        return self.kind == "dates" or (not self.kind and self.texts > 0 and self.numbers == 0 and bool(self.formats))

    @property
    def reads_like_numbers(self) -> bool:
        """True of texts that are numbers written for people, but for some that look like a gap."""
        return self.texts > sum(self.gap_levels.values()) and not self.is_date and self.written.are_numbers

    @property
    def is_constant(self) -> bool:
        """True if all rows hold one value."""
        if self.missing or self.infinite:
            return False
        return len(self.levels) == 1 if self.texts == self.rows else not self.texts and self.lowest == self.highest

    @property
    def is_empty(self) -> bool:
        """True if no row holds a value."""
        return self.missing == self.rows > 0

    @property
    def n_levels(self) -> int:
        """Different texts, counted up to `MOST_LEVELS` and one more."""
        return len(self.levels)


@dataclass(frozen=True)
class Survey:
    """Counts of the values of all columns of a source.

    Attributes
    ----------
    columns
        Of each column that was read.
    targets
        Names of those that are no features.
    repeated
        Rows that repeat an earlier one to the last bit; None where there were too many rows to compare.
    rows_with_gaps
        Rows with a missing value in any of the columns.
    """

    columns: tuple[ColumnSurvey, ...]
    targets: tuple[str, ...]
    repeated: int | None
    rows_with_gaps: int

    @property
    def rows(self) -> int:
        """Rows that were read."""
        return self.columns[0].rows if self.columns else 0

    def notation(self, chosen: TableOptions) -> tuple[Notation | None, str | None]:
        """Return the notation of all numbers; None where columns differ, or where a mark, the second, has two readings.

        Columns that were chosen for something else have no part in it.
        """
        aside = {*chosen.categorical, *chosen.ordinal, *dict(chosen.date_formats), *chosen.drop}
        columns = [column for column in self.columns if column.name not in aside]
        if not any(column.reads_like_numbers for column in columns):
            return chosen.notation, None
        numeric = [column.written for column in columns if column.reads_like_numbers or column.numbers == column.rows]
        left, mark = common(numeric)
        return (left[0] if left and mark is None else None), mark

    def unclear(self, chosen: TableOptions) -> list[str]:
        """Return columns that read like numbers in a notation that the values do not tell."""
        notation, _ = self.notation(chosen)
        return [
            column.name
            for column in self.columns
            if notation is None and column.reads_like_numbers and PLAIN not in column.written.notations
        ]

    def options(self, chosen: TableOptions | None = None) -> dict[str, list[str]]:
        """Options of `ingest` that solve the obstacles, by name."""
        chosen = chosen or TableOptions()
        names = ("id", "categorical", "date", "number", "decimal", "thousands", "drop", "missing")
        options: dict[str, list[str]] = {name: [] for name in names}
        targets, unclear = set(self.targets), set(self.unclear(chosen))
        for column in self.columns:
            if column.name in unclear or (column.kind and not column.is_date):
                continue
            if column.reads_like_numbers and column.written.needs_unit:
                options["number"].append(column.name)
            if column.name in targets or column.gap_texts or column.reads_like_numbers:
                options["missing"] += column.gap_texts
            elif column.is_date:
                options["date"].append(column.name)
            elif column.odd_texts:
                options["missing"] += column.odd_texts
            elif column.texts:
                is_category = column.n_levels <= _MOST_ONE_HOT
                options["categorical" if is_category else _aside(column.name)].append(column.name)
            elif column.counts_rows and column.rows > 2 and _names_rows(column.name):
                options[_aside(column.name)].append(column.name)
            elif column.is_empty:
                options["drop"].append(column.name)
        notation, _ = self.notation(chosen)
        if notation is not None:
            options["decimal"] = [notation.decimal] if notation.decimal != chosen.notation.decimal else []
            options["thousands"] = [notation.thousands] if notation.thousands != chosen.notation.thousands else []
        options["missing"] = sorted(set(options["missing"]))
        put_aside = {*options["id"], *options["drop"]}
        gaps_left = sum(column.missing for column in self.columns if column.name not in put_aside)
        if gaps_left or options["missing"]:
            few = self.rows_with_gaps <= _MOST_GAPS_DROPPED * self.rows and not options["missing"]
            options["drop_missing"] = ["yes"] if few or self._target_gaps else []
            options["impute"] = [] if few else ["median"]
        return {name: values for name, values in options.items() if values}

    def more(self, chosen: TableOptions, ids: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
        """Return the options beyond those that were chosen; columns that already have a role keep it."""
        named = {*ids, *_columns_of(chosen)}
        taken: dict[str, set[str]] = {"missing": set(chosen.gap_texts), "decimal": set(), "thousands": set()}
        more = {
            name: tuple(text for text in texts if text not in taken.get(name, named))
            for name, texts in self.options(chosen).items()
        }
        if chosen.drop_gaps or (chosen.impute is not None and not self._target_gaps):
            more.pop("drop_missing", None)
        if chosen.impute is not None or chosen.drop_gaps:
            more.pop("impute", None)
        return {name: texts for name, texts in more.items() if texts}

    def table(self, chosen: TableOptions) -> TableOptions:
        """Return these options beside those that were chosen."""
        more = self.more(chosen)
        return replace(
            chosen,
            categorical=(*chosen.categorical, *more.get("categorical", ())),
            dates=(*chosen.dates, *more.get("date", ())),
            drop=(*chosen.drop, *more.get("drop", ())),
            gap_texts=(*chosen.gap_texts, *more.get("missing", ())),
            drop_gaps=chosen.drop_gaps or "drop_missing" in more,
            impute=chosen.impute or ("median" if "impute" in more else None),
            numbers=(*chosen.numbers, *more.get("number", ())),
            decimal=next(iter(more.get("decimal", ())), chosen.decimal),
            thousands=next(iter(more.get("thousands", ())), chosen.thousands),
        )

    def ids(self, chosen: TableOptions, ids: Sequence[str]) -> tuple[str, ...]:
        """Return columns that identify samples beside the `ids` that were chosen; none that is chosen for something."""
        return (*ids, *self.more(chosen, ids).get("id", ()))

    def line(self, chosen: TableOptions, ids: Sequence[str] = ()) -> str:
        """The options beyond those that were chosen, as they are typed beside them."""
        words = []
        for name, values in self.more(chosen, ids).items():
            flag = f"--{name.replace('_', '-')}"
            value = values[0] if name in ("decimal", "thousands") else joined(values)
            words.append(flag if name == "drop_missing" else f"{flag} {shlex.quote(value)}")
        return " ".join(words)

    def report(self, chosen: TableOptions) -> list[str]:
        """A line for each column with an obstacle that the chosen options leave, or with a remark."""
        settled, unclear = set(_columns_of(chosen)), set(self.unclear(chosen))
        notation, mark = self.notation(chosen)
        lines = []
        for column in self.columns:
            words = self._words(column, column.name in settled)
            if column.name in unclear:
                words.insert(0, _unclear_words(column, mark))
            elif column.reads_like_numbers and column.name not in settled:
                words.insert(0, _number_words(column, notation or PLAIN))
            if words:
                lines.append(f"'{column.name}': {'; '.join(words)}")
        if self.repeated:
            lines.append(
                f"{self.repeated:,} of the {self.rows:,} rows repeat an earlier one in all of these columns; they "
                "count as further observations"
            )
        infinite = [f"'{column.name}'" for column in self.columns if column.infinite]
        if infinite:
            lines.append(f"no option reads infinite values: remove those rows, or leave out {', '.join(infinite)}")
        return lines

    @property
    def _target_gaps(self) -> bool:
        """True where a target is missing, which is never filled in."""
        of_targets = [column for column in self.columns if column.name in self.targets]
        return any(column.missing or column.gap_texts for column in of_targets)

    def _words(self, column: ColumnSurvey, settled: bool) -> list[str]:
        """Words on a column; of one that is `settled` only on its gaps and infinite values."""
        words = []
        if settled:
            pass
        elif column.gap_texts:
            shown = ", ".join(f"'{text}'" for text in column.gap_texts[:5])
            count = sum(column.gap_levels.values())
            words.append(f"{count:,} times {shown} among numbers, which reads like a missing value")
        elif column.reads_like_numbers:
            pass  # with the notation of all columns
        elif column.is_date:
            words.append(f"dates, such as '{column.first_text}'" if column.first_text else "dates")
        elif column.kind:
            words.append(f"{column.kind}, such as '{column.first_text}', which no option reads")
        elif column.texts:
            levels = f"{column.n_levels:,}" if column.n_levels <= MOST_LEVELS else f"more than {MOST_LEVELS:,}"
            mixed = f" in {column.texts:,} of {column.rows:,} rows, with" if column.numbers else " of"
            values = f"{levels} different value{'' if levels == '1' else 's'}"
            words.append(f"text{mixed} {values}, first '{_short(column.first_text)}' in {column.first_text_place}")
            if column.odd_texts:
                words.append("numbers otherwise, so that such text is read as a missing value")
            if column.written.notations and len(column.written.units) > 1:
                units = [unit.words or "none" for unit in column.written.units]
                words.append(f"reads like numbers of different units ({', '.join(units)}), which no option reads")
        if column.is_empty:
            words.append("no value in any row")
        elif column.missing:
            share = column.missing / column.rows
            words.append(
                f"{column.missing:,} missing ({100.0 * share:.2g} % of the rows), first in {column.first_gap_place}"
            )
            if column.missing_texts and column.texts and not column.numbers:
                text, count = column.missing_texts.most_common(1)[0]
                words[-1] += (
                    f", {'all' if count == column.missing else f'{count:,}'} written '{text}': if that is a value, "
                    "name it in `not_missing`"
                )
        if column.infinite:
            words.append(f"{column.infinite:,} infinite")
        if settled:
            return words
        if column.is_constant:
            words.append("the same value in all rows, so that it is left out without an option")
        elif column.counts_rows and column.rows > 2 and not column.texts and _names_rows(column.name):
            words.append("numbers the rows, which predicts nothing for new rows")
        return words


class RefusedColumnsError(InputError):
    """Columns hold text, dates or gaps that no option sees to; `survey` tells of all columns."""

    def __init__(self, message: str, survey: Survey) -> None:
        super().__init__(message)
        self.survey = survey


def survey(
    source: Source,
    columns: Sequence[Column],
    targets: Sequence[Column],
    progress: ProgressCallback | None = None,
    chosen: TableOptions | None = None,
    labels: Sequence[Column] = (),
) -> Survey:
    """Read the columns of a source and refuse no value; those of `targets` are no features, `labels` are no numbers.

    Numbers are read in the notation that was `chosen`. Memory stays at some tens of MiB, and 8 bytes a row of up to
    half a million. Raises `InputError` where the source is damaged.
    """
    chosen = chosen or TableOptions()
    notations = [
        of for of in NOTATIONS if chosen.decimal in (None, of.decimal) and chosen.thousands in (None, of.thousands)
    ]
    surveys = [
        ColumnSurvey(column.name, notation=chosen.notation, written=NumberTexts(() if column in labels else notations))
        for column in columns
    ]
    repeats, rows, rows_with_gaps = RepeatedRows(), 0, 0
    read = [
        replace(column, encode=counted, not_missing=MISSING_TEXTS)
        for column, counted in zip(columns, surveys, strict=True)
    ]
    for block in source.blocks(read):
        values = block.values
        rows += len(values)
        for position, counted in enumerate(surveys):
            if counted.rows < rows:  # a source of plain numbers does not know that it is asked
                counted(values[:, position], block.place)
        rows_with_gaps += int(np.isnan(values).any(axis=1).sum())
        repeats.update(values)
        if progress is not None:
            progress(Progress("check columns", block.position, source.total, source.unit))
    names = tuple(column.name for column in targets)
    return Survey(tuple(surveys), names, repeats.count(), rows_with_gaps)


class RepeatedRows:
    """Counts rows that repeat an earlier one, by hashes of 64 bits: 8 bytes a row, up to half a million rows."""

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.uint64]] | None = []
        self._rows = 0

    def update(self, values: FloatArray) -> None:
        """Take in the next rows, (rows, columns)."""
        self._rows += len(values)
        if self._hashes is None or self._rows > _MOST_ROWS_COMPARED:
            self._hashes = None
            return
        for start in range(0, len(values), _ROWS_HASHED):  # piece by piece, so that temporaries stay small
            self._hashes.append(_row_hashes(values[start : start + _ROWS_HASHED]))

    def count(self) -> int | None:
        """Rows that repeat an earlier one; None where there were too many rows to compare."""
        if self._hashes is None:
            return None
        return self._rows - len(np.unique(np.concatenate(self._hashes))) if self._hashes else 0


def count_repeated_rows(values: FloatArray) -> int | None:
    """Count rows (rows, columns) that repeat an earlier one; None of more than half a million."""
    repeats = RepeatedRows()
    repeats.update(values)
    return repeats.count()


def _row_hashes(values: FloatArray) -> NDArray[np.uint64]:
    """Hashes (rows,) of rows, for which the two zeros are one, and so are all NaN."""
    bits = np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)
    odd = np.random.default_rng(0).integers(1, 2**63, bits.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = (bits ^ (bits >> np.uint64(29))) * odd
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(np.bitwise_xor.reduce(mixed, axis=1) + mixed.sum(axis=1, dtype=np.uint64))


def _columns_of(chosen: TableOptions) -> tuple[str, ...]:
    """Columns that options of a user name."""
    return (*chosen.categorical, *chosen.ordinal, *dict(chosen.date_formats), *chosen.drop, *chosen.numbers)


def _number_words(column: ColumnSurvey, notation: Notation) -> str:
    """Return the words on a column of numbers that are written for people."""
    marks = "" if PLAIN in column.written.notations else notation.words(column.written.marks)
    return f"reads like numbers with {' and '.join(filter(None, (marks, column.written.words)))}, such as " + (
        f"'{_short(column.first_text)}'"
    )


def _unclear_words(column: ColumnSurvey, mark: str | None) -> str:
    """Return the words on a column of numbers whose notation is not known."""
    such = f"such as '{_short(column.first_text)}' in {column.first_text_place}"
    if mark is None:
        words = column.written.notations[0].words(column.written.marks)
        return f"reads like numbers with {words}, {such}, unlike other columns: write all numbers of the table alike"
    name = {",": "commas", ".": "points"}[mark]
    return (
        f"reads like numbers, {such}, whose {name} are decimal marks or stand between thousands; name which, by "
        f"`decimal` or `thousands` '{mark}'"
    )


def _names_rows(name: str) -> bool:
    word = name.strip().lower().replace("-", "_")
    return word in {"id", "index", "row", "no", "nr", "number", "column_0", "unnamed: 0"} or word.endswith(
        ("_id", "id_")
    )


def _aside(name: str) -> str:
    """The option that leaves a column out of the features: it is kept where its name says that it identifies."""
    word = name.strip().lower().replace("-", "_")
    return "id" if word in {"id", "uuid", "guid"} or word.endswith(("_id", "id_")) else "drop"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
