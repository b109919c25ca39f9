"""Verdicts, and the rules that several parts share.

Verdicts are computed from the tables that a record keeps, never typed in: a record that was made before a rule was
changed has the new rule's. Only the reason of a miss is prose, which the part declares.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Document = dict[str, Any]

# States: as in the paper, better, worse; not run far enough to decide.
MET, BEYOND, MISSED, OPEN = "equal", "better", "worse", "not run"
UNEXPLAINED = "Not known."
# Figures of the same order differ by less than this factor: half an order of magnitude either way.
SAME_ORDER = math.sqrt(10.0)
# Of the rounding of decimal figures: the edges of a band belong to it.
HAIR = 1e-9


@dataclass(frozen=True)
class Verdict:
    """One figure, or one claim, of a paper.

    Attributes
    ----------
    what
        Of which it is.
    paper, here
        In the paper, and ours, as they are shown.
    verdict
        `MET`, `BEYOND`, `MISSED` or `OPEN`.
    """

    what: str
    paper: str
    here: str
    verdict: str


@dataclass(frozen=True)
class Judge:
    """The rule by which a part's figures are held against the paper's.

    Attributes
    ----------
    rule
        In words.
    judged
        The verdicts, from the sections of a record and the data set that it is of.
    reasons
        Why something is missed or open: a regular expression that "DATA: WHAT" is searched for, with " (open)" behind
        it where that is so, and prose. The first that fits counts.
    """

    rule: str
    judged: Callable[[Sequence[Document], str], Iterable[Verdict]]
    reasons: tuple[tuple[str, str], ...] = ()

    def verdicts(self, sections: Sequence[Document], variant: str) -> list[Document]:
        """Return the verdicts as JSON, those that are missed or open with their reason under `why`."""
        verdicts = []
        for verdict in self.judged(sections, variant):
            label = f"{variant}: {verdict.what}" + (" (open)" if verdict.verdict == OPEN else "")
            why = "" if verdict.verdict in (MET, BEYOND) else self.reason(label)
            verdicts.append({**asdict(verdict), "why": why})
        return verdicts

    def reason(self, what: str) -> str:
        """Return the first reason that fits, or `UNEXPLAINED`."""
        return next((prose for pattern, prose in self.reasons if re.search(pattern, what)), UNEXPLAINED)


def near(here: float, paper: float, band: float, *, less_is_better: bool = True) -> str:
    """Judge a figure within an absolute band about the paper's: outside it is better or worse."""
    difference = here - paper if less_is_better else paper - here
    if difference > band + HAIR * abs(paper):
        return MISSED
    return BEYOND if difference < -band - HAIR * abs(paper) else MET


def same_order(here: float, paper: float, *, less_is_better: bool = True) -> str:
    """Judge a figure that is to be of the paper's order of magnitude."""
    return near(math.log(here), math.log(paper), math.log(SAME_ORDER), less_is_better=less_is_better)


def claim(what: str, paper: str, here: str, holds: bool | None) -> Verdict:
    """Judge a claim that a paper makes in words, or shows in a plot; None where it is not decided."""
    return Verdict(what, paper, here, OPEN if holds is None else MET if holds else MISSED)


def sections_of(sections: Sequence[Document], name: str) -> list[Document]:
    """Tables of that name, of whatever data set."""
    return [section for section in sections if str(section["section"]).partition(":")[0] == name]


def rows_by(section: Mapping[str, Any], name: str) -> dict[Any, Document]:
    """Rows of a table by one of their columns."""
    return {row[name]: row for row in section["rows"] if row.get(name) is not None}
