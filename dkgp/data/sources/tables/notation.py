"""Numbers written for people: decimal commas, marks between thousands, units, currencies, negatives in parentheses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from dkgp.errors import UsageError

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
        sides = ((self.before, "in front"), (self.after, "behind"))
        return " and ".join(f"'{text}' {side}" for text, side in sides if text)


def around(text: str) -> tuple[Unit, str, bool] | None:
    """Split a text into its unit, its number, and whether parentheses make that negative; None for no number.

    A minus sign before a currency goes to the number. A sign within parentheses makes it no number.
    """
    text = text.strip()
    if len(text) > _MOST_CHARACTERS:
        return None
    negative = text.startswith("(") and text.endswith(")")
    found = _AROUND.fullmatch(text[1:-1].strip() if negative else text)
    if found is None:
        return None
    sign, before, core, after = found.group("sign", "before", "core", "after")
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
