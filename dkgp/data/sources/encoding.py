"""From a table's columns of text, dates and gaps to features that are numbers, by rules that a store keeps.

`Encoding` holds the rules: a column of categories becomes a column of zeros and ones for each level (or one of ranks),
a date becomes seconds and, on request, positions in the year, the week or the day; gaps are filled in. The rules are
found once, for the training data, and written into the store's manifest; `dkgp ingest --like` applies them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dkgp.data.classes import class_name
from dkgp.data.sources.base import text_error
from dkgp.data.types import FloatArray, Json, quoted
from dkgp.errors import InputError, StoreError, UsageError

Places: TypeAlias = Callable[[int], str]
Unseen: TypeAlias = Literal["refuse", "zeros"]
Cycle: TypeAlias = Literal["year", "week", "day"]

# The level of a gap in a column of categories whose gaps are filled in.
MISSING = "(missing)"
MOST_LEVELS = 1000
ISO = "ISO8601"
# Formats of dates that are tried; where more than one fits all of a column, they must name the same days.
DATE_FORMATS = (ISO, "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y")


class Rule(Protocol):
    """What becomes of one column of a table."""

    def read(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """One number for each row, (rows,), as of `Column.encode`; NaN for a gap, `InputError` for what is none."""

    def names(self, column: str) -> tuple[str, ...]:
        """Names of the features that the column becomes."""

    def features(self, numbers: FloatArray) -> FloatArray:
        """The features (rows, names) of the numbers that `read` gave."""

    def to_json(self) -> Json:
        """The rule as a manifest has it."""


@dataclass(frozen=True)
class Categories:
    """A column of levels, one-hot or, where `ranked`, as ranks 0, 1, ... in the order of `levels`.

    A level that is not among them is refused, or all zeros where `unseen` says so (not of ranks).
    """

    column: str
    levels: tuple[str, ...]
    ranked: bool = False
    unseen: Unseen = "refuse"
    _codes: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_codes", {level: code for code, level in enumerate(self.levels)})

    def read(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """The codes of levels; -1 for one that is not known, where that is allowed."""
        known, fill = self._codes, self._codes.get(MISSING)
        codes = np.full(len(values), np.nan)
        for row, level in enumerate(level_names(values)):
            if level is None:
                codes[row] = np.nan if fill is None else fill
                continue
            code = known.get(level)
            if code is None:
                if self.unseen == "refuse" or self.ranked:
                    raise InputError(
                        f"The column '{self.column}' holds '{level}' in {place(row)}, which is none of its levels "
                        f"{quoted(self.levels)}. "
                        + ("Name it in `ordinal`." if self.ranked else 'Leave that row out, or give `unseen` "zeros".')
                    )
                code = -1
            codes[row] = code
        return codes

    def names(self, column: str) -> tuple[str, ...]:
        """`COLUMN=LEVEL` for each level; of ranks the column's own name."""
        return (column,) if self.ranked else tuple(f"{column}={level}" for level in self.levels)

    def features(self, numbers: FloatArray) -> FloatArray:
        """Ranks as they are, levels one-hot; NaN where there is a gap."""
        if self.ranked:
            return numbers[:, None]
        one_hot: FloatArray = np.equal(numbers[:, None], np.arange(len(self.levels))).astype(np.float64)
        one_hot[np.isnan(numbers)] = np.nan
        return one_hot

    def to_json(self) -> Json:
        """The rule as a manifest has it."""
        return {"levels": list(self.levels), "ranked": self.ranked}


@dataclass(frozen=True)
class Date:
    """A column of dates: seconds since 1970 (UTC), and for each cycle the sine and cosine of the position in it."""

    column: str
    format: str
    cycles: tuple[Cycle, ...] = ()

    def read(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """Seconds since 1970; `InputError` for what is no date of the format."""
        seconds = date_seconds(values, self.format)
        bad = np.isnan(seconds) & ~gaps(values)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"The column '{self.column}' holds '{values[row]}' in {place(row)}, which is no date of the format "
                f"{self.format}. Mend it, or name the format, as in `date` '{self.column}:%d.%m.%Y'."
            )
        return seconds

    def names(self, column: str) -> tuple[str, ...]:
        """The column's own name, then `COLUMN.CYCLE.sin` and `.cos`."""
        return (column, *(f"{column}.{cycle}.{function}" for cycle in self.cycles for function in ("sin", "cos")))

    def features(self, numbers: FloatArray) -> FloatArray:
        """Seconds, then the positions."""
        columns = [numbers]
        for cycle in self.cycles:
            angle = 2.0 * np.pi * cycle_position(numbers, cycle)
            columns += [np.sin(angle), np.cos(angle)]
        return np.stack(columns, axis=1)

    def to_json(self) -> Json:
        """The rule as a manifest has it."""
        return {"format": self.format, "cycles": list(self.cycles)}


@dataclass(frozen=True)
class Number:
    """A column of numbers in which some texts stand for gaps; `fill`, where there is one, takes the gaps' place."""

    column: str
    gap_texts: frozenset[str] = frozenset()
    fill: float | None = None

    def read(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """The numbers, NaN for a gap; `InputError` for any other text."""
        if values.dtype.kind in "biuf":
            return values.astype(np.float64)
        empty = gaps(values, self.gap_texts)
        numbers = pd.to_numeric(pd.Series(np.where(empty, np.nan, values)), errors="coerce").to_numpy(dtype=np.float64)
        bad = np.isnan(numbers) & ~empty
        if bad.any():
            row = int(np.argmax(bad))
            raise text_error(self.column, str(values[row]), place(row))
        return np.asarray(numbers)

    def names(self, column: str) -> tuple[str, ...]:
        """The column's own name."""
        return (column,)

    def features(self, numbers: FloatArray) -> FloatArray:
        """The numbers, gaps filled in."""
        return (numbers if self.fill is None else np.where(np.isnan(numbers), self.fill, numbers))[:, None]

    def to_json(self) -> Json:
        """The rule as a manifest has it."""
        return {"fill": self.fill}


@dataclass(frozen=True)
class Encoding:
    """Rules by column; columns without one are numbers as they stand.

    Attributes
    ----------
    rules
        What becomes of a column, by its name.
    dropped
        Columns that are no features.
    gap_texts
        Texts that stand for a gap, beside empty ones, NA and the like.
    drop_gaps
        Whether rows with a gap that is not filled in are left out.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    gap_texts: tuple[str, ...] = ()
    drop_gaps: bool = False

    def __bool__(self) -> bool:
        return bool(self.rules or self.dropped or self.gap_texts or self.drop_gaps)

    def to_json(self) -> Json:
        """The rules as a manifest has them."""
        kinds: dict[str, Json] = {"categories": {}, "dates": {}, "numbers": {}}
        for name, rule in self.rules.items():
            kind = {Categories: "categories", Date: "dates", Number: "numbers"}[type(rule)]
            kinds[kind][name] = rule.to_json()
        return {
            **kinds,
            "dropped": list(self.dropped),
            "gap_texts": list(self.gap_texts),
            "drop_gaps": self.drop_gaps,
        }

    @classmethod
    def from_json(cls, content: Json, unseen: Unseen = "refuse") -> Encoding:
        """Read the rules of a manifest; `StoreError` where they are of another form."""
        try:
            texts = tuple(map(str, content["gap_texts"]))
            rules: dict[str, Rule] = {
                name: Categories(name, tuple(rule["levels"]), bool(rule["ranked"]), unseen)
                for name, rule in content["categories"].items()
            }
            rules |= {
                name: Date(name, rule["format"], tuple(rule["cycles"])) for name, rule in content["dates"].items()
            }
            rules |= {name: Number(name, frozenset(texts), rule["fill"]) for name, rule in content["numbers"].items()}
            return cls(rules, tuple(content["dropped"]), texts, bool(content["drop_gaps"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"The encoding in the manifest is damaged ({error}); write the store again.") from error


# ------------------------------------------------------------------------------------------------ values as they are


def gaps(values: NDArray[Any], texts: frozenset[str] = frozenset()) -> NDArray[np.bool_]:
    """Where values (rows,) are missing: None, NaN, NaT, blank text or one of the `texts`."""
    empty = np.asarray(pd.isna(values))
    if values.dtype.kind in "OUST":
        as_text = [value.strip() if isinstance(value, str) else None for value in values.tolist()]
        empty |= np.array([text is not None and (not text or text in texts) for text in as_text], dtype=bool)
    return empty


def level_names(values: NDArray[Any], texts: frozenset[str] = frozenset()) -> list[str | None]:
    """Names of levels (rows,), blanks around them left out and whole numbers without a point; None for gaps."""
    empty = gaps(values, texts)
    return [
        None if missing else value.strip() if isinstance(value, str) else class_name(value)
        for value, missing in zip(values.tolist(), empty.tolist(), strict=True)
    ]


def date_seconds(values: NDArray[Any], form: str) -> FloatArray:
    """Seconds since 1970 (UTC) of dates (rows,), text of a format or dates already; NaN for gaps and what is none."""
    if values.dtype.kind in "biuf":
        if form == ISO:  # A number is no date, but may be one of digits: 20240131.
            return np.full(len(values), np.nan)
        values = np.array([None if np.isnan(value) else f"{value:.0f}" for value in values.tolist()], dtype=object)
    try:
        times = pd.to_datetime(pd.Series(values), format=form, utc=True, errors="coerce")
    except (ValueError, TypeError, OverflowError):
        return np.full(len(values), np.nan)
    stamps = times.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / 1e6)


def cycle_position(seconds: FloatArray, cycle: Cycle) -> FloatArray:
    """Position of times in their year, their week from Monday on, or their day, from 0 to 1; NaN for gaps."""
    if cycle == "day":
        return np.asarray(np.mod(seconds / 86400.0, 1.0))
    if cycle == "week":
        return np.asarray(np.mod(seconds / 86400.0 + 3.0, 7.0) / 7.0)  # 1970 began on a Thursday
    stamps = np.where(np.isnan(seconds), 0.0, seconds * 1e6).astype(np.int64).astype("datetime64[us]")
    years = stamps.astype("datetime64[Y]")
    first, following = years.astype("datetime64[us]"), (years + 1).astype("datetime64[us]")
    position = (stamps - first) / (following - first)
    return np.where(np.isnan(seconds), np.nan, position)


# ---------------------------------------------------------------------------------------------- rules, from the data


@dataclass(frozen=True)
class TableOptions:
    """What a user asks for a table's columns to become; see `ingest`.

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
    drop_gaps
        Leave rows with a missing value out.
    impute
        What takes the place of missing values of features: "median", or None.
    """

    categorical: tuple[str, ...] = ()
    ordinal: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: tuple[str, ...] = ()
    cyclic: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    gap_texts: tuple[str, ...] = ()
    drop_gaps: bool = False
    impute: str | None = None

    def __post_init__(self) -> None:
        if self.impute not in (None, "median"):
            raise UsageError(f"`impute` is {self.impute!r}; expected median, which is all there is.")
        asked = [*self.categorical, *self.ordinal, *(name for name, _ in self.date_formats), *self.drop]
        twice = sorted({name for name in asked if asked.count(name) > 1})
        if twice:
            raise UsageError(f"The column '{twice[0]}' is named twice, for different things; choose one.")
        for name, cycles in self.cyclic.items():
            odd = [cycle for cycle in cycles if cycle not in get_args(Cycle)]
            if odd:
                raise UsageError(f"`cyclic` of '{name}' names {odd[0]!r}; expected some of {quoted(get_args(Cycle))}.")
            if name not in dict(self.date_formats):
                raise UsageError(f"`cyclic` names '{name}', which is no date; name it in `date` too.")
        for name, levels in self.ordinal.items():
            if len(set(levels)) != len(levels) or len(levels) < 2:
                raise UsageError(f"`ordinal` of '{name}' needs two different levels or more; got {quoted(levels)}.")

    @property
    def date_formats(self) -> list[tuple[str, str | None]]:
        """Columns of dates, and the format where it is named."""
        pairs = [entry.partition(":") if "%" in entry else (entry, "", "") for entry in self.dates]
        return [(name, form or None) for name, _, form in pairs]

    def __bool__(self) -> bool:
        return self != TableOptions()


class Learner:
    """Looks at the values of one column as they pass, then tells its rule; `__call__` is a `Column.encode`."""

    def __init__(self, column: str, gap_texts: frozenset[str], impute: bool) -> None:
        self.column, self.gap_texts, self.impute = column, gap_texts, impute

    def __call__(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """Take in the next rows; what comes back is not used."""
        self.look(np.asarray(values), place)
        return np.zeros(len(values))

    def look(self, values: NDArray[Any], place: Places) -> None:
        """Take in the next rows."""
        raise NotImplementedError

    def rule(self) -> Rule:
        """The rule, once all is seen; `InputError` where there is none."""
        raise NotImplementedError


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
                self._levels[level] = None

    def rule(self) -> Rule:
        """The levels; a gap is one of its own where gaps are filled in."""
        levels = list(self._levels)
        if not levels:
            raise InputError(f"The column '{self.column}' holds no value at all; drop it.")
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


class MedianLearner(Learner):
    """Finds the median of a column of numbers: of all of them up to a million, beyond it of every second, fourth ..."""

    MOST = 2**20

    def __init__(self, column: str, gap_texts: frozenset[str], impute: bool) -> None:
        super().__init__(column, gap_texts, impute)
        self._values, self._count, self._step, self._seen = [np.empty(0)], 0, 1, 0

    def look(self, values: NDArray[Any], place: Places) -> None:
        """Take in the next rows; `InputError` for a text that is no number."""
        numbers = Number(self.column, self.gap_texts).read(values, place)
        first = -self._seen % self._step
        self._seen += len(numbers)
        numbers = numbers[first :: self._step]
        self._values.append(numbers[np.isfinite(numbers)])
        self._count += len(self._values[-1])
        while self._count > self.MOST:
            self._values = [np.concatenate(self._values)[::2]]
            self._count, self._step = len(self._values[0]), 2 * self._step

    def rule(self) -> Rule:
        """The median in the place of gaps, where they are filled in."""
        values = np.concatenate(self._values)
        if not len(values):
            raise InputError(f"The column '{self.column}' holds no number at all; drop it.")
        return Number(self.column, self.gap_texts, float(np.median(values)) if self.impute else None)
