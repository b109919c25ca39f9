"""Columns of text, dates and gaps of a table become features that are numbers, by rules that a store keeps.

`Encoding` holds the rules: a column of categories becomes a column of zeros and ones for each level (or one of ranks).
A date becomes seconds and, on request, positions in the year, the week or the day. Gaps are filled in. Numbers may be
written for people: with decimal commas, marks between thousands, units, currencies, or negatives in parentheses. The
rules are learnt once, from the training data, and written into the store's manifest; `dkgp ingest --like` applies them
again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dkgp.data.classes import class_name
from dkgp.data.sources.base import OTHER_KINDS, numbers, require_whole, text_error
from dkgp.data.types import FloatArray, Json, quoted
from dkgp.errors import InputError, StoreError, UsageError

# Decimal marks, and marks between thousands with the characters that are taken for them.
DECIMALS = (".", ",")
THOUSANDS = {"": "", ",": ",", ".": ".", " ": " \u00a0\u2009\u202f", "'": "'\u2019"}
MINUS = "\u2212"
_SIGN = rf"[+\-{MINUS}]"
# Longer texts are no numbers; it bounds the time of every pattern below.
_MOST_CHARACTERS = 400
# A column of more units than these holds codes.
_MOST_UNITS = 3
_CURRENCIES = "[$€£¥₹₩₽₺₫₱฿¢₪₴]"
_CODES = "USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|RUB|TRY|KRW|Rs|Fr|kr"
_UNIT = rf"(?:[^\W\d_]|[%‰°]|{_CURRENCIES})[^\s,;()]{{0,12}}"
_AROUND = re.compile(
    rf"(?P<sign>{_SIGN}?)(?P<before>(?:[A-Z]{{0,2}}{_CURRENCIES}|{_CODES})?)\s*"
    rf"(?P<core>{_SIGN}?[0-9.,'\u2019 \u00a0\u2009\u202f]*[0-9][.,]?(?:[eE][+\-]?[0-9]+)?)\s*"
    rf"(?P<after>(?:{_UNIT}(?: {_UNIT})?)?)"
)


@dataclass(frozen=True)
class Notation:
    """The decimal mark of numbers, and the mark between their thousands ("" for none).

    Raises `UsageError` for other marks than those of `DECIMALS` and `THOUSANDS`, and for one mark in both places.
    """

    decimal: str = "."
    thousands: str = ""

    def __post_init__(self) -> None:
        if self.decimal not in DECIMALS:
            raise UsageError(f"`decimal` is {self.decimal!r}; expected a point or a comma.")
        if self.thousands not in THOUSANDS:
            raise UsageError(f"`thousands` is {self.thousands!r}; expected ',', '.', ' ' or an apostrophe.")
        if self.decimal == self.thousands:
            raise UsageError(f"`decimal` and `thousands` are both {self.decimal!r}; expected two different marks.")

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        whole = r"\d+"
        if self.thousands:
            # Groups of three; of two in India, but for the last.
            mark, group = f"[{THOUSANDS[self.thousands]}]", r"\d{2,3}" if self.thousands == "," else r"\d{3}"
            whole = rf"(?:\d{{1,3}}(?:{mark}{group})*{mark}\d{{3}}|\d+)"
        decimal = re.escape(self.decimal)
        return re.compile(
            rf"{_SIGN}?(?:{whole}(?:{decimal}\d*)?|{decimal}\d+)(?:e{_SIGN}?\d+)?|{_SIGN}?inf(?:inity)?",
            re.ASCII | re.IGNORECASE,
        )

    @cached_property
    def _python(self) -> dict[int, str | None]:
        return str.maketrans({**dict.fromkeys(THOUSANDS[self.thousands]), self.decimal: ".", MINUS: "-"})

    def number(self, text: str) -> float | None:
        """Return the number that a text is in this notation; None for any other text."""
        text = text.strip()
        if len(text) > _MOST_CHARACTERS or self._pattern.fullmatch(text) is None:
            return None
        return float(text.translate(self._python))

    def words(self, marks: Iterable[str] = (*DECIMALS, *THOUSANDS)) -> str:
        """Return those of the marks in words that this notation has and a programming language has not."""
        between = {",": "commas", ".": "points", " ": "blanks", "'": "apostrophes"}
        present = set(marks)
        parts = ["a decimal comma"] if self.decimal == "," and "," in present else []
        if self.thousands and self.thousands in present:
            parts.append(f"{between[self.thousands]} between thousands")
        return " and ".join(parts)


PLAIN = Notation()
# Those that are looked for, the plainest first.
NOTATIONS = tuple(
    Notation(decimal, thousands) for decimal in DECIMALS for thousands in THOUSANDS if decimal != thousands
)


@dataclass(frozen=True)
class Unit:
    """The texts before and after the numbers of a column, such as "$" and "kg"."""

    before: str = ""
    after: str = ""

    @property
    def words(self) -> str:
        """The texts as messages name them."""
        sides = ((self.before, "in front"), (self.after, "at the end"))
        return " and ".join(f"'{text}' {side}" for text, side in sides if text)


def around(text: str) -> tuple[Unit, str, bool] | None:
    """Split a text into its unit, its number, and whether parentheses make that negative; None for no number.

    A minus sign before a currency goes to the number. A sign within parentheses makes it no number.
    """
    text = text.strip()
    if len(text) > _MOST_CHARACTERS:
        return None
    negative = text.startswith("(") and text.endswith(")")
    match = _AROUND.fullmatch(text[1:-1].strip() if negative else text)
    if match is None:
        return None
    sign, before, core, after = match.group("sign", "before", "core", "after")
    signed = bool(sign) or not (core[0].isdigit() or core[0] in ".,")
    if (negative and signed) or (sign and not (core[0].isdigit() or core[0] in ".,")):
        return None
    return Unit(before, after), sign + core, negative


class NumberTexts:
    """Collects how the texts of a column are written, as long as all of them may be numbers.

    Attributes
    ----------
    notations
        In which all texts so far are numbers; empty where some text is none, or there are too many units.
    marks
        Of the texts, a blank for all kinds of blanks.
    units
        With the first text of each.
    needs_unit
        Whether some text is a number only without its unit, its parentheses or its typographic minus.
    """

    def __init__(self, notations: Iterable[Notation] = NOTATIONS) -> None:
        self.notations = tuple(notations)
        self.marks: set[str] = set()
        self.units: dict[Unit, str] = {}
        self.needs_unit = False
        self._unsigned = False

    def look(self, texts: Iterable[str]) -> None:
        """Take in texts that are no numbers to Python."""
        for text in set(texts):
            if not self.notations:
                return
            parts = around(text)
            if parts is None:
                self.notations = ()
                return
            unit, core, negative = parts
            self.units.setdefault(unit, text)
            self.needs_unit |= unit != Unit() or negative or MINUS in core
            self._unsigned |= not negative
            self._fit(core)
            if len(self.units) > _MOST_UNITS:
                self.notations = ()

    def look_at_plain(self, texts: Iterable[str]) -> None:
        """Take in texts that are numbers to Python, whose points may stand between thousands."""
        numbers = set(texts)
        if numbers:
            self._unsigned = True
            self.units.setdefault(Unit(), "")
        for text in numbers:
            if not any(notation.decimal == "," for notation in self.notations):
                return
            if "." in text:
                self._fit(text)

    def _fit(self, text: str) -> None:
        marks = {mark for mark, characters in THOUSANDS.items() if not set(characters).isdisjoint(text)}
        if marks:
            self.marks |= marks
            self.notations = tuple(of for of in self.notations if of.number(text) is not None)

    @property
    def are_numbers(self) -> bool:
        """True if all texts are numbers of one unit, and not all of them in parentheses."""
        return bool(self.notations) and len(self.units) == 1 and self._unsigned

    @property
    def words(self) -> str:
        """The unit and other signs beside the numbers, in words."""
        unit = next(iter(self.units), Unit())
        return unit.words or ("negative ones in parentheses or with a typographic minus" if self.needs_unit else "")


def common(columns: Iterable[NumberTexts]) -> tuple[tuple[Notation, ...], str | None]:
    """Return the notations of all of the columns, and a mark that two of these read differently, None for none.

    Where the plain notation is among them, it is the only one.
    """
    several = list(columns)
    left = tuple(of for of in NOTATIONS if all(of in column.notations for column in several))
    if PLAIN in left:
        return (PLAIN,), None
    marks = sorted({mark for column in several for mark in column.marks})
    roles = {of.decimal for of in left}, {of.thousands for of in left}
    return left, next((mark for mark in marks if all(mark in role for role in roles)), None)


Places: TypeAlias = Callable[[int], str]
Unseen: TypeAlias = Literal["refuse", "zeros"]
Cycle: TypeAlias = Literal["year", "week", "day"]

# Units of dates without a time of day, and those that pandas has.
_UNITS_OF_DAYS = frozenset({"Y", "M", "W", "D"})
_UNITS_OF_TIME = frozenset({"h", "m", "s", "ms", "us", "ns"})
# The level of a gap in a column of categories whose gaps are filled in.
MISSING = "(missing)"
ISO = "ISO8601"


class Rule(Protocol):
    """A rule for one column of a table: the numbers that become of it."""

    def read(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """One number for each row, (rows,), as of `Column.encode`; NaN for a gap, `InputError` for any other value."""

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
                        + (
                            "Name it in `ordinal`."
                            if self.ranked
                            else 'Leave that row out, or ingest the table with `unseen` "zeros".'
                        )
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
        """Seconds since 1970; `InputError` for text that is no date of the format."""
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
    """A column of numbers, with or without gaps.

    Attributes
    ----------
    column
        Its name.
    gap_texts
        Texts that stand for a missing value.
    fill
        Takes the place of missing values; None where they stay missing.
    notation
        Of the numbers that are text.
    unit
        The texts around each number, and parentheses around negative ones; None where numbers stand alone.
    """

    column: str
    gap_texts: frozenset[str] = frozenset()
    fill: float | None = None
    notation: Notation = PLAIN
    unit: Unit | None = None

    def read(self, values: NDArray[Any], place: Places, untyped: bool = False) -> FloatArray:
        """The numbers, NaN for a gap; `InputError` for any other text."""
        if values.dtype.kind not in "OUST":
            return numbers(values, self.column, place)
        import pandas as pd  # a quarter of a second, of those who have text alone

        empty = gaps(values, self.gap_texts)
        present = np.where(empty, np.nan, self.coerced(values).astype(object))
        floats: FloatArray = pd.to_numeric(pd.Series(present), errors="coerce").to_numpy(dtype=np.float64)
        bad = np.isnan(floats) & ~empty | np.array([isinstance(value, complex) for value in present.tolist()])
        if bad.any():
            row = int(np.argmax(bad))
            raise text_error(self.column, str(values[row]), place(row), self._expected)
        require_whole(present, floats, self.column, place)
        return floats

    def coerced(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values with numbers in the place of texts that are written for people; others stay."""
        if self.notation == PLAIN and self.unit is None:
            return values
        return np.array([self._number(value) for value in values.tolist()], dtype=object)

    def _number(self, value: Any) -> Any:
        """Return the number that a text is; the value as it is where it is no text or no number."""
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if not isinstance(value, str):
            return value
        if self.unit is None:
            number = self.notation.number(value)
            return value if number is None else number
        parts = around(value)
        if parts is None or parts[0] != self.unit:
            return value
        number = self.notation.number(parts[1])
        return value if number is None else -number if parts[2] else number

    @property
    def _expected(self) -> str:
        marks, unit = self.notation.words(), "" if self.unit is None else self.unit.words
        return "a number" + "".join(f" with {words}" for words in (marks, unit) if words)

    def names(self, column: str) -> tuple[str, ...]:
        """The column's own name."""
        return (column,)

    def features(self, numbers: FloatArray) -> FloatArray:
        """The numbers, gaps filled in."""
        return (numbers if self.fill is None else np.where(np.isnan(numbers), self.fill, numbers))[:, None]

    def to_json(self) -> Json:
        """The rule as a manifest has it; the notation is the encoding's."""
        return {"fill": self.fill, **({} if self.unit is None else {"unit": [self.unit.before, self.unit.after]})}


@dataclass(frozen=True)
class Encoding:
    """Rules by column; columns without one are numbers as they stand.

    Attributes
    ----------
    rules
        The rule of each column, by its name.
    dropped
        Columns that are no features.
    gap_texts
        Texts that stand for a gap, beside empty ones, NA and the like.
    drop_gaps
        Whether rows with a gap that is not filled in are left out.
    ids
        Columns that identify samples, which are kept as text.
    notation
        Of numbers that are text, in all columns of numbers.
    not_missing
        Texts that are values of labels and categories although they read like a missing one.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    gap_texts: tuple[str, ...] = ()
    drop_gaps: bool = False
    ids: tuple[str, ...] = ()
    notation: Notation = PLAIN
    not_missing: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ids) or self.changes_columns

    @property
    def changes_columns(self) -> bool:
        """True if anything but the ids is not as it stands in the source."""
        of_texts = self.gap_texts or self.not_missing or self.notation != PLAIN
        return bool(self.rules or self.dropped or self.drop_gaps or of_texts)

    def rule(self, column: str) -> Rule | None:
        """Return the rule for a column; None where its numbers are read as they stand."""
        rule = self.rules.get(column)
        if rule is None and (self.gap_texts or self.notation != PLAIN):
            return Number(column, frozenset(self.gap_texts), notation=self.notation)
        return rule

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
            **({"ids": list(self.ids)} if self.ids else {}),
            **({"notation": [self.notation.decimal, self.notation.thousands]} if self.notation != PLAIN else {}),
            **({"not_missing": list(self.not_missing)} if self.not_missing else {}),
        }

    @classmethod
    def from_json(cls, content: Json, unseen: Unseen = "refuse") -> Encoding:
        """Read the rules of a manifest; `StoreError` where they are of another form."""
        try:
            texts = tuple(map(str, content["gap_texts"]))
            notation = Notation(*content.get("notation", ()))
            rules: dict[str, Rule] = {
                name: Categories(name, tuple(rule["levels"]), bool(rule["ranked"]), unseen)
                for name, rule in content["categories"].items()
            }
            rules |= {
                name: Date(name, rule["format"], tuple(rule["cycles"])) for name, rule in content["dates"].items()
            }
            for name, rule in content["numbers"].items():
                unit = Unit(*rule["unit"]) if "unit" in rule else None
                rules[name] = Number(name, frozenset(texts), rule["fill"], notation, unit)
            ids = tuple(map(str, content.get("ids", ())))
            not_missing = tuple(map(str, content.get("not_missing", ())))
            return cls(rules, tuple(content["dropped"]), texts, bool(content["drop_gaps"]), ids, notation, not_missing)
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            raise StoreError(f"The encoding in the manifest is damaged ({error}); write the store again.") from error


# ------------------------------------------------------------------------------------------------ values as they are


def gaps(values: NDArray[Any], texts: frozenset[str] = frozenset()) -> NDArray[np.bool_]:
    """True where a value (rows,) is missing: None, NaN, NaT, blank text or one of the `texts`."""
    import pandas as pd

    empty = np.asarray(pd.isna(values))
    if values.dtype.kind in "OUST":
        as_text = [value.strip() if isinstance(value, str) else None for value in values.tolist()]
        empty |= np.array([text is not None and (not text or text in texts) for text in as_text], dtype=bool)
    return empty


def texts_of(values: NDArray[Any]) -> NDArray[np.object_]:
    """Return texts (rows,) of dates, durations or complex numbers; of an instant the same in every unit below a day."""
    import pandas as pd

    unit = "" if values.dtype.kind == "c" else np.datetime_data(values.dtype)[0]
    if unit in _UNITS_OF_DAYS and values.dtype.kind == "M":
        values = values.astype("datetime64[D]")
    elif unit in _UNITS_OF_TIME:
        return np.array([str(value) for value in pd.Series(values).tolist()], dtype=object)
    return values.astype(str).astype(object)


def level_names(values: NDArray[Any], texts: frozenset[str] = frozenset()) -> list[str | None]:
    """Names of levels (rows,), blanks around them left out and whole numbers without a point; None for gaps."""
    empty = gaps(values, texts)
    if values.dtype.kind in OTHER_KINDS:
        values = texts_of(values)
    return [
        None if missing else value.strip() if isinstance(value, str) else class_name(value)
        for value, missing in zip(values.tolist(), empty.tolist(), strict=True)
    ]


def may_be_date(text: str, form: str) -> bool:
    """False for a text that `date_seconds` does not read, by the standard library, which takes microseconds for it."""
    if form == ISO:
        return any(character.isdigit() for character in text)
    try:
        datetime.strptime(text.strip(), form)
    except ValueError:
        return False
    return True


def date_seconds(values: NDArray[Any], form: str) -> FloatArray:
    """Seconds since 1970 (UTC) of dates (rows,), text of a format or dates already; NaN for gaps and other values."""
    import pandas as pd

    if values.dtype.kind == "M":
        return _seconds_of(values)
    if values.dtype.kind in "biuf":
        if form == ISO:  # A number is no date, but may be one of digits: 20240131.
            return np.full(len(values), np.nan)
        values = np.array([None if np.isnan(value) else f"{value:.0f}" for value in values.tolist()], dtype=object)
    try:
        times = pd.to_datetime(pd.Series(values), format=form, utc=True, errors="coerce")
    except (ValueError, TypeError, OverflowError):
        return np.full(len(values), np.nan)
    return _seconds_of(times.dt.tz_localize(None).to_numpy())


def _seconds_of(stamps: NDArray[Any]) -> FloatArray:
    """Seconds since 1970 of datetime64 (rows,) of any unit, to the microsecond; NaN for NaT and beyond 64 bits."""
    per_second = 1 if np.datetime_data(stamps.dtype)[0] in {*_UNITS_OF_DAYS, "h", "m", "s"} else 1_000_000
    whole = stamps.astype("datetime64[s]" if per_second == 1 else "datetime64[us]")
    is_finer = np.promote_types(stamps.dtype, whole.dtype) == stamps.dtype
    unknown = np.isnat(stamps) | ((whole.astype(stamps.dtype) != stamps) & (not is_finer))
    return np.where(unknown, np.nan, whole.astype(np.int64) / per_second)


def cycle_position(seconds: FloatArray, cycle: Cycle) -> FloatArray:
    """Position of times in their year, their week from Monday on, or their day, from 0 to 1; NaN for gaps."""
    if cycle == "day":
        return np.asarray(np.mod(seconds / 86400.0, 1.0))
    if cycle == "week":
        return np.asarray(np.mod(seconds / 86400.0 + 3.0, 7.0) / 7.0)  # 1970 began on a Thursday
    stamps = np.where(np.isnan(seconds), 0.0, seconds * 1e6).astype(np.int64).astype("datetime64[us]")
    years = stamps.astype("datetime64[Y]")
    first, following = years.astype("datetime64[us]"), (years + np.timedelta64(1, "Y")).astype("datetime64[us]")
    position = (stamps - first) / (following - first)
    return np.where(np.isnan(seconds), np.nan, position)
