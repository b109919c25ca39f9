"""Rules for a table's columns, learnt from the user's options and from the values; and a source that applies them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dkgp.data.sources.base import MISSING_TEXTS, Block, Column, ColumnError, Source, find_columns
from dkgp.data.sources.selection import IdTexts
from dkgp.data.sources.tables.encoding import (
    ISO,
    MISSING,
    PLAIN,
    Categories,
    Cycle,
    Date,
    Encoding,
    Notation,
    Number,
    Places,
    Rule,
    Unit,
    around,
    date_seconds,
    gaps,
    level_names,
)
from dkgp.data.types import FloatArray, IntArray, joined, quoted, split_names
from dkgp.errors import InputError, UsageError
from dkgp.progress import Progress, ProgressCallback
from dkgp.registry import Group, Option

MOST_LEVELS = 1000
# Stands for bytes that are no text in the encoding that was read.
UNREADABLE = "\ufffd"
# Formats of dates that are tried; where more than one fits all of a column, they must name the same days.
DATE_FORMATS = (ISO, "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y")


# Conversion of columns into features.
COLUMNS = Group("Treatment of columns")


def listed(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the names in texts that separate them by commas."""
    return tuple(name for text in texts for name in split_names(text))


def _by_name(option: str) -> Callable[[Sequence[str]], dict[str, tuple[str, ...]]]:
    """Return a function that reads texts NAME=A,B into values by name, and raises `UsageError` for other texts."""

    def read(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
        for text in texts:
            if "=" not in text:
                raise UsageError(f"`{option}` is '{text}'; expected a column's name and values, as in NAME=A,B,C.")
        return {name: listed([values]) for name, _, values in (text.partition("=") for text in texts)}

    return read


def _written_by_name(values: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}={joined(texts)}" for name, texts in values.items()]


# An option that takes names, separated by commas, and may be repeated.
NAMES = Option(metavar="NAMES", multiple=True, collect=listed, written=lambda names: [joined(names)])
_NAMES = replace(NAMES, group=COLUMNS)

CATEGORICAL = replace(_NAMES, help="Columns of categories. Each category becomes a column of 0 and 1.")
ORDINAL = Option(
    help="Column of ordered categories, lowest first: size=small,medium,large becomes 0, 1, 2. May be repeated.",
    metavar="NAME=LEVELS",
    multiple=True,
    collect=_by_name("ordinal"),
    written=_written_by_name,
    group=COLUMNS,
)
DATES = replace(
    _NAMES,
    help="Columns of dates, which become seconds since 1970. The format is detected, or given as in sold:%d.%m.%Y.",
    spellings=("--date",),
)
CYCLIC = replace(
    ORDINAL,
    help="Add the position of a date in the year, week or day as sine and cosine, as in sold=year,week.",
    metavar="NAME=CYCLES",
    collect=_by_name("cyclic"),
)
DROP = replace(_NAMES, help="Columns to ignore, such as row numbers.")
NUMBERS = replace(
    _NAMES,
    help="Columns of numbers with a unit, a currency or a per cent sign, which is removed: '3.5 kg', '$1.20', '12 %'. "
    "(1.5) is read as -1.5.",
    spellings=("--number",),
)
DECIMAL = Option(
    help="Decimal mark of all numbers: a point or a comma.  [default: a point]", metavar="MARK", group=COLUMNS
)
THOUSANDS = Option(
    help="Mark between the thousands of all numbers: ',', '.', ' ' or an apostrophe.  [default: none]",
    metavar="MARK",
    group=COLUMNS,
)
GAP_TEXTS = replace(_NAMES, name="missing", help="Texts that mean a missing value, such as '?'.", metavar="TEXTS")
NOT_MISSING = replace(
    _NAMES,
    help="Texts such as NA that are values of labels or categories, and not missing.",
    metavar="TEXTS",
)
DROP_GAPS = Option("drop_missing", "Leave out rows with a missing value.", group=COLUMNS)
IMPUTE = Option(
    help="Replace missing values of features by the median. A categorical column gets a category for them.",
    choices=("median",),
    group=COLUMNS,
)


@dataclass(frozen=True)
class TableOptions:
    """Choices of a user for a table's columns; see `ingest`.

    Attributes
    ----------
    categorical
        Columns of categories, one-hot.
    ordinal
        Columns whose levels have an order: the column's name and the levels, least first.
    dates
        Columns of dates, `NAME` or `NAME:FORMAT`.
    cyclic
        Cycles that a date's position is given in, by column.
    drop
        Columns that are no features.
    gap_texts
        Texts that stand for a missing value.
    not_missing
        Texts that are values of labels and categories although they read like a missing one, such as NA.
    drop_gaps
        Leave rows with a missing value out.
    impute
        Replacement of missing values of features: "median", or None.
    numbers
        Columns of numbers with a unit, a currency or a per cent sign beside them, or with negative ones in parentheses.
        The numbers are read without the text around them. Targets may be among them.
    decimal, thousands
        The decimal mark of all numbers, "." (the default) or ",", and the mark between their thousands, ",", ".", " "
        or "'", none by default. A blank stands for the narrow and the no-break space, too.
    """

    categorical: Annotated[tuple[str, ...], CATEGORICAL] = ()
    ordinal: Annotated[Mapping[str, tuple[str, ...]], ORDINAL] = field(default_factory=dict)
    dates: Annotated[tuple[str, ...], DATES] = ()
    cyclic: Annotated[Mapping[str, tuple[str, ...]], CYCLIC] = field(default_factory=dict)
    drop: Annotated[tuple[str, ...], DROP] = ()
    gap_texts: Annotated[tuple[str, ...], GAP_TEXTS] = ()
    drop_gaps: Annotated[bool, DROP_GAPS] = False
    impute: Annotated[str | None, IMPUTE] = None
    numbers: Annotated[tuple[str, ...], NUMBERS] = ()
    decimal: Annotated[str | None, DECIMAL] = None
    thousands: Annotated[str | None, THOUSANDS] = None
    not_missing: Annotated[tuple[str, ...], NOT_MISSING] = ()

    def __post_init__(self) -> None:
        if self.impute not in (None, "median"):
            raise UsageError(f"`impute` is {self.impute!r}; expected median.")
        dates = dict(self.date_formats)
        times = Counter([*self.categorical, *self.ordinal, *(name for name, _ in self.date_formats)])
        times.update([*self.drop, *self.numbers])
        twice = sorted(name for name, count in times.items() if count > 1)
        if twice:
            raise UsageError(f"The column '{twice[0]}' is named twice, for different things; choose one.")
        for name, cycles in self.cyclic.items():
            odd = [cycle for cycle in cycles if cycle not in get_args(Cycle)]
            if odd:
                raise UsageError(f"`cyclic` of '{name}' names {odd[0]!r}; expected some of {quoted(get_args(Cycle))}.")
            if name not in dates:
                raise UsageError(f"`cyclic` names '{name}', which is no date; name it in `date` too.")
        for name, levels in self.ordinal.items():
            if len(set(levels)) != len(levels) or len(levels) < 2:
                raise UsageError(f"`ordinal` of '{name}' needs two different levels or more; got {quoted(levels)}.")
        _ = self.notation  # refuses other marks

    @property
    def date_formats(self) -> list[tuple[str, str | None]]:
        """Columns of dates, and the format where it is named."""
        pairs = [entry.partition(":") if "%" in entry else (entry, "", "") for entry in self.dates]
        return [(name, form or None) for name, _, form in pairs]

    @property
    def notation(self) -> Notation:
        """Notation of the numbers."""
        return Notation(self.decimal or PLAIN.decimal, self.thousands or PLAIN.thousands)

    def __bool__(self) -> bool:
        return self != TableOptions()


class Learner(ABC):
    """Looks at the values of one column as they pass, then tells its rule; `__call__` is a `Column.encode`."""

    def __init__(self, column: str, gap_texts: frozenset[str], impute: bool) -> None:
        self.column, self.gap_texts, self.impute = column, gap_texts, impute

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """Take in the next rows; the result is not used."""
        self.look(np.asarray(values), place)
        return np.zeros(len(values))

    @abstractmethod
    def look(self, values: NDArray[Any], place: Places) -> None:
        """Take in the next rows."""

    @abstractmethod
    def rule(self) -> Rule:
        """The rule, once all is seen; `InputError` where there is none."""


class LevelLearner(Learner):
    """Collects the levels of a column of categories: numbers in their order, all else in that of text."""

    def __init__(self, column: str, gap_texts: frozenset[str], impute: bool) -> None:
        super().__init__(column, gap_texts, impute)
        self._levels: dict[str, None] = {}
        self._has_gaps = False

    def look(self, values: NDArray[Any], place: Places) -> None:
        """Take in the next rows; `InputError` beyond `MOST_LEVELS` levels."""
        for row, level in enumerate(level_names(values, self.gap_texts)):
            if level is None:
                self._has_gaps = True
            elif level not in self._levels:
                if len(self._levels) == MOST_LEVELS:
                    raise InputError(
                        f"The column '{self.column}' has more than {MOST_LEVELS} different values (up to "
                        f"{place(row)}), so these are no categories. Drop the column, or turn it into numbers."
                    )
                if UNREADABLE in level:
                    raise InputError(
                        f"The column '{self.column}' holds '{level}' in {place(row)}, which was written in another "
                        "encoding than it is read in; name its `encoding`, such as latin-1."
                    )
                self._levels[level] = None

    def rule(self) -> Rule:
        """The levels; a gap is one of its own where gaps are filled in."""
        levels = list(self._levels)
        if not levels:
            raise ColumnError(f"The column '{self.column}' holds no value at all; drop it.")
        try:
            levels.sort(key=float)
        except ValueError:
            levels.sort()
        return Categories(self.column, (*levels, *([MISSING] if self._has_gaps and self.impute else [])))


class DateLearner(Learner):
    """Finds the format of a column of dates: the one that fits all of them."""

    def __init__(self, column: str, gap_texts: frozenset[str], form: str | None, cycles: Sequence[Any]) -> None:
        super().__init__(column, gap_texts, impute=False)
        self._formats = list(DATE_FORMATS) if form is None else [form]
        self._cycles = tuple(cycles)
        self._differ: tuple[str, str] | None = None

    def look(self, values: NDArray[Any], place: Places) -> None:
        """Keep the formats that fit; `InputError` where none does."""
        present = values[~gaps(values, self.gap_texts)]
        if not len(present):
            return
        read = {form: date_seconds(present, form) for form in self._formats}
        fits = [form for form in self._formats if not np.isnan(read[form]).any()]
        if not fits:
            worst = max(self._formats, key=lambda form: int(np.argmax(np.isnan(read[form]))))
            bad = present[int(np.argmax(np.isnan(read[worst])))]
            raise InputError(
                f"The column '{self.column}' holds '{bad}' ({place(0)} or after), which is no date of the format "
                f"{worst}. Name the format, as in `date` '{self.column}:%d.%m.%Y', or drop the column."
            )
        self._formats = fits
        unlike = [form for form in fits[1:] if not np.array_equal(read[form], read[fits[0]])]
        self._differ = (fits[0], unlike[0]) if unlike else None if len(fits) == 1 else self._differ

    def rule(self) -> Rule:
        """The format; `InputError` where two fit that name different days."""
        if self._differ is not None and set(self._differ) <= set(self._formats):
            first, second = self._differ
            raise InputError(
                f"The dates of '{self.column}' may be of the format {first} or {second}, which differ; name it, as in "
                f"`date` '{self.column}:{first}'."
            )
        return Date(self.column, self._formats[0], self._cycles)


class NumberLearner(Learner):
    """Finds the unit of a column of numbers, where it has one, and the median, where missing values are filled in.

    The median is of all numbers up to a million, beyond it of every second, fourth, ... of them.
    """

    MOST = 2**20

    def __init__(
        self, column: str, gap_texts: frozenset[str], impute: bool, notation: Notation = PLAIN, has_unit: bool = False
    ) -> None:
        super().__init__(column, gap_texts, impute)
        self._notation, self._has_unit, self._unit = notation, has_unit, Unit() if has_unit else None
        self._values, self._count, self._step, self._seen = [np.empty(0)], 0, 1, 0
        self._is_empty = True

    def look(self, values: NDArray[Any], place: Places) -> None:
        """Take in the next rows; `InputError` for a text that is no number, or has another unit than the first."""
        if self._has_unit:
            present = values[~gaps(values, self.gap_texts)]
            if len(present):
                parts = around(str(present[0]))
                self._unit = Unit() if parts is None else parts[0]
                self._has_unit = False
        numbers = Number(self.column, self.gap_texts, None, self._notation, self._unit).read(values, place)
        self._is_empty &= not np.isfinite(numbers).any()
        if not self.impute:
            return
        first = -self._seen % self._step
        self._seen += len(numbers)
        numbers = numbers[first :: self._step]
        self._values.append(numbers[np.isfinite(numbers)])
        self._count += len(self._values[-1])
        while self._count > self.MOST:
            self._values = [np.concatenate(self._values)[::2]]
            self._count, self._step = len(self._values[0]), 2 * self._step

    def rule(self) -> Rule:
        """The unit, and the median in the place of missing values, where they are filled in."""
        if self._is_empty:
            raise ColumnError(f"The column '{self.column}' holds no number at all; drop it.")
        fill = float(np.median(np.concatenate(self._values))) if self.impute else None
        return Number(self.column, self.gap_texts, fill, self._notation, self._unit)


Encode: TypeAlias = Callable[..., FloatArray]


class EncodedSource(Source):
    """The columns of `source` after an encoding; rows with gaps are left out where it says so.

    Raises `InputError` where the encoding names a column that is not there.
    """

    def __init__(self, source: Source, encoding: Encoding) -> None:
        self.source, self.encoding = source, encoding
        self.url, self.unit, self.total, self.warnings = source.url, source.unit, source.total, source.warnings
        # Rows with gaps that the last pass left out, of those that it read, and where the first one stands.
        self.rows_left_out, self.rows_read, self.first_left_out = 0, 0, ""
        self.left_out = {**source.left_out, **dict.fromkeys(encoding.dropped, "was dropped")}
        present = {column.name for column in source.columns}
        missing = [name for name in (*encoding.rules, *encoding.dropped) if name not in present]
        if missing:
            raise InputError(
                f"'{source.url}' has no column {quoted(missing[:5])}, which the dataset store or model needs; "
                f"available: "
                f"{quoted([column.name for column in source.columns])}."
            )
        self._origins: dict[Column, tuple[Column, int]] = {}
        dropped = set(encoding.dropped)
        made = {column: self._made_of(column) for column in source.columns if column.name not in dropped}
        self.columns = tuple(column for columns in made.values() for column in columns)
        self.positional = tuple(column for origin in source.positional for column in made.get(origin, ()))
        self.groups = {
            name: tuple(made_column for column in columns for made_column in made.get(column, ()))
            for name, columns in source.groups.items()
        }
        # A name that is no longer a column's own stands for all that became of it.
        names = {column.name for column in self.columns}
        self.groups |= {origin.name: columns for origin, columns in made.items() if origin.name not in names}

    def _made_of(self, origin: Column) -> tuple[Column, ...]:
        rule = self.encoding.rules.get(origin.name)
        names = (origin.name,) if rule is None else rule.names(origin.name)
        columns = tuple(
            Column(name, origin.array if rule is None else origin.name, origin.index if rule is None else position)
            for position, name in enumerate(names)
        )
        self._origins |= {column: (origin, position) for position, column in enumerate(columns)}
        return columns

    def blocks(self, columns: Sequence[Column]) -> Iterator[Block]:
        """All the samples that are kept, of the chosen columns."""
        wanted = [self._origins[column] for column in columns]
        encoders = {self._origins[column]: column.encode for column in columns}
        origins = list(dict.fromkeys(origin for origin, _ in wanted))
        read = {origin: self._reading(origin, encoders.get((origin, 0))) for origin in origins}
        self.rows_left_out = self.rows_read = 0
        for block in self.source.blocks([self._asked(origin, encode) for origin, encode in read.items()]):
            made = {
                origin: self._features(origin, _numbers(encode, block, position))
                for position, (origin, encode) in enumerate(read.items())
            }
            values = np.stack([made[origin][:, position] for origin, position in wanted], axis=1)
            rows = np.arange(len(values))
            if self.encoding.drop_gaps:
                empty = np.isnan(values).any(axis=1)
                rows = np.flatnonzero(~empty)
                if not self.rows_left_out and empty.any():
                    self.first_left_out = block.place(int(np.argmax(empty)))
                self.rows_left_out += int(empty.sum())
            self.rows_read += len(values)
            yield Block(values[rows], _places(block, rows), block.position)

    def _reading(self, origin: Column, encode: Encode | None) -> Encode | None:
        """Return the encoder of a column: of labels their own, of other columns their rule."""
        texts = frozenset(self.encoding.gap_texts)
        if isinstance(encode, IdTexts):
            return _Asked(encode)  # a gap is a text, too
        if encode is not None:
            return _Labels(encode, texts)
        rule = self.encoding.rule(origin.name)
        return None if rule is None else _Asked(rule.read)

    def _asked(self, origin: Column, encode: Encode | None) -> Column:
        """Return the column of the source with its encoder, and the texts that are no missing values of it."""
        kept: frozenset[str] = frozenset()
        if isinstance(encode, _Asked) and isinstance(encode.encode, IdTexts):
            kept = MISSING_TEXTS
        elif isinstance(encode, _Labels) or isinstance(self.encoding.rules.get(origin.name), Categories):
            kept = frozenset(self.encoding.not_missing)
        return replace(origin, encode=encode, not_missing=kept)

    def _features(self, origin: Column, numbers: FloatArray) -> FloatArray:
        rule = self.encoding.rule(origin.name)
        return numbers[:, None] if rule is None else rule.features(numbers)


class _Asked:
    """Tells whether a source applied `encode`: one of plain numbers does not know that it may be asked to."""

    def __init__(self, encode: Encode) -> None:
        self.encode, self.rows = encode, 0

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        self.rows += len(values)
        return self.encode(np.asarray(values), place, untyped)


class _Labels:
    """Encode the labels; NaN for missing ones."""

    def __init__(self, encode: Encode, texts: frozenset[str]) -> None:
        self.encode, self.texts = encode, texts

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        values = np.asarray(values)
        rows = np.flatnonzero(~gaps(values, self.texts))
        codes = np.full(len(values), np.nan)
        codes[rows] = self.encode(values[rows], lambda row: place(int(rows[row])), untyped)
        return codes


def _numbers(encode: Encode | None, block: Block, position: int) -> FloatArray:
    """A column's numbers in a block, after `encode` also where the source did not apply it."""
    values = block.values[:, position]
    if isinstance(encode, _Asked):
        applied, encode.rows = encode.rows >= len(values), 0
        return values if applied else encode.encode(values, block.place, False)
    return values


def _places(block: Block, rows: IntArray) -> Callable[[int], str]:
    return lambda row: block.place(int(rows[row]))


def learned_encoding(
    source: Source, options: TableOptions, targets: Sequence[Column], progress: ProgressCallback | None
) -> Encoding:
    """Find the rules that a user asked for, in one pass over the columns that they are about.

    `targets` are the columns that are no features (targets, labels, weights, ids, mask): their gaps are not filled in.
    `InputError` where a column is missing, is a target, or does not hold values of its kind.
    """
    texts, impute = frozenset(options.gap_texts), options.impute is not None
    aside, with_unit = set(targets), set(options.numbers)
    learners: dict[str, Learner] = {name: LevelLearner(name, texts, impute) for name in options.categorical}
    for name, form in options.date_formats:
        learners[name] = DateLearner(name, texts, form, options.cyclic.get(name, ()))
    named = {name: _column(source, name) for name in (*learners, *options.ordinal, *options.drop)}
    taken = [name for name, column in named.items() if column in aside]
    if taken:
        of_features = {"categorical": options.categorical, "ordinal": options.ordinal, "drop": options.drop}
        option = next((option for option, names in of_features.items() if taken[0] in names), "dates")
        raise InputError(
            f"The column '{taken[0]}' is a target, a label or an id, and `{option}` takes only features. Remove it "
            f"from `{option}`."
        )
    numeric = {name: _column(source, name) for name in options.numbers}
    if impute:
        features = [column for column in source.positional if column not in aside and column.name not in named]
        numeric |= {column.name: column for column in features}
    for name, column in numeric.items():
        filled, has_unit = impute and column not in aside, name in with_unit
        learners[name] = NumberLearner(name, texts, filled, options.notation, has_unit)
    named |= numeric
    if learners:
        asked = {name: _Asked(learner) for name, learner in learners.items()}
        kept = {name: frozenset(options.not_missing) for name in options.categorical}
        columns = [
            replace(named[name], encode=encode, not_missing=kept.get(name, frozenset()))
            for name, encode in asked.items()
        ]
        for block in source.blocks(columns):
            for position, encode in enumerate(asked.values()):
                _numbers(encode, block, position)
            if progress is not None:
                progress(Progress("encode", block.position, source.total, source.unit))
    rules: dict[str, Rule] = {name: Categories(name, levels, ranked=True) for name, levels in options.ordinal.items()}
    rules |= {name: learner.rule() for name, learner in learners.items()}
    return Encoding(
        rules, options.drop, options.gap_texts, options.drop_gaps, (), options.notation, options.not_missing
    )


def settled_options(encoding: Encoding) -> TableOptions:
    """Return options that name the columns which an encoding has rules for, so that a survey leaves them alone."""
    return TableOptions(
        categorical=tuple(name for name in encoding.rules if name not in encoding.dropped),
        drop=encoding.dropped,
        gap_texts=encoding.gap_texts,
        drop_gaps=encoding.drop_gaps,
        decimal=encoding.notation.decimal,
        thousands=encoding.notation.thousands,
        not_missing=encoding.not_missing,
    )


def _column(source: Source, name: str) -> Column:
    columns = find_columns(source, name, "column")
    if len(columns) != 1:
        raise InputError(f"'{name}' stands for {len(columns)} columns; name one.")
    return columns[0]
