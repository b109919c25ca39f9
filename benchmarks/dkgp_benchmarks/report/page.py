"""The page of a report: what each part shows, ours beside the paper's, what is missing and why; nothing from elsewhere.

Jinja2 fills `page.html` and escapes all that comes from records, and the style stands in the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from dkgp import __version__
from dkgp.commands.reporting.layout import figure
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.tables import cell
from dkgp_benchmarks.library import PAPER_DATA
from dkgp_benchmarks.papers.papers import BenchPapersJob
from dkgp_benchmarks.papers.part import PARTS, Part, Unit
from dkgp_benchmarks.papers.published import PAPERS
from dkgp_benchmarks.report.folder import DONE, FAILED, MISSING
from dkgp_benchmarks.report.verdicts import WORDS, duration, of_another_size, summary

TO_COME, NOT_ASKED = "to come", "not asked for"
# Columns that stand for a paper's figures begin so.
PAPER = "paper"
# The title of a column of standard deviations.
SPREAD = "+-"
_LONGEST_VALUE = 400


@dataclass(frozen=True)
class Entry:
    """A part on one data set, and what it came to.

    Attributes
    ----------
    unit
    record
        None where it is not done.
    asked
        Whether this run is to make it.
    command
        Makes it alone.
    """

    unit: Unit
    record: Document | None
    asked: bool
    command: str

    @property
    def status(self) -> str:
        """In a word or two."""
        if self.record is not None:
            return str(self.record["status"])
        return TO_COME if self.asked else NOT_ASKED


def page(
    entries: Sequence[Entry],
    missing: Sequence[tuple[Part, str]],
    table_1: Document,
    job: BenchPapersJob,
    now: float,
) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    entries
        All parts there are, in any order.
    missing
        Parts that nothing is here for, and why.
    table_1
        The data sets.
    now
        Seconds since 1970.
    """
    order = {name: number for number, name in enumerate(PARTS.all())}
    ordered = sorted(entries, key=lambda entry: order[entry.unit.part.name])
    done = [entry for entry in ordered if entry.status == DONE]
    failed = [entry for entry in ordered if entry.status == FAILED]
    coming = [entry for entry in ordered if entry.status == TO_COME]
    papers = [
        {
            "key": key,
            "paper": paper,
            "cautions": paper.cautions(),
            "entries": [_shown(entry) for entry in ordered if entry.unit.part.paper == key],
        }
        for key, paper in PAPERS.items()
    ]
    return _template().render(
        style=_text("page.css"),
        version=__version__,
        made=_date(now),
        full=job.full,
        data=job.data,
        done=len(done),
        total=len(done) + len(failed) + len(coming),
        failed=[_anchor(entry) for entry in failed],
        coming=len(coming),
        seconds=duration(sum(entry.record["seconds"] for entry in done if entry.record is not None)),
        machines=_machines(ordered),
        papers=papers,
        words=WORDS,
        verdicts=summary([entry.record for entry in done if entry.record is not None]),
        anchors={entry.unit.name: _anchor(entry)["id"] for entry in done},
        table_1=table_1,
        absent=_absent(ordered, missing, table_1),
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(cell=_cell, is_paper=_is_paper)
    return environment.from_string(_text("page.html"))


def _shown(entry: Entry) -> dict[str, Any]:
    record, unit = entry.record, entry.unit
    shown: dict[str, Any] = {
        **_anchor(entry),
        "shows": unit.part.shows,
        "status": entry.status,
        "badge": entry.status.replace(" ", "-"),
        "command": entry.command,
        "settings": _pairs(unit.settings if record is None else record["asked"]["settings"]),
        "sections": [],
        "record": None,
        "error": None,
        "warnings": [],
        "meta": "",
        "rule": None if unit.part.judge is None else unit.part.judge.rule,
        "verdicts": [],
    }
    if record is None:
        return shown
    pictures: dict[str, list[str]] = {}
    for picture in record["pictures"]:
        pictures.setdefault(picture["section"], []).append(picture["file"])
    shown["sections"] = [
        {
            "title": section["title"],
            "columns": _columns(section),
            "rows": section["rows"],
            "figures": _pairs(section["figures"]),
            "pictures": pictures.get(section["section"], []),
        }
        for section in record["sections"]
    ]
    machine = record["machine"]
    size = "short form"
    if record["full"]:
        size = of_another_size(record) or "the paper's sizes"
    shown["verdicts"] = record.get("verdicts", [])
    shown["meta"] = (
        f"{size}; {duration(record['seconds'])} on {_date(record['began'])}; {_machine(machine)}; dkgp {record['dkgp']}"
    )
    shown["record"] = f"records/{unit.name.replace(':', '_').replace('/', '_')}.json"
    shown["error"] = record.get("error")
    shown["warnings"] = record["warnings"]
    return shown


def _anchor(entry: Entry) -> dict[str, str]:
    unit = entry.unit
    return {"id": unit.name.replace(":", "-").replace("/", "-"), "name": unit.name, "title": unit.title}


def _columns(section: Document) -> list[Document]:
    """Columns that are used, each with that of its spread as `spread`, which stands in the same cell."""
    columns: list[Document] = []
    for column in section["columns"]:
        if not _is_used(column, section["rows"]):
            continue
        if column["title"] == SPREAD and columns and not columns[-1].get("text"):
            columns[-1] = {**columns[-1], "spread": column}
        else:
            columns.append(column)
    return columns


def _cell(row: Document, column: Document) -> str:
    """Return the text of a cell, with its spread."""
    spread, value = column.get("spread"), row.get(column["name"])
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = cell(row, column)
    return text if spread is None or row.get(spread["name"]) is None else f"{text} ± {cell(row, spread)}"


def _is_used(column: Document, rows: Sequence[Document]) -> bool:
    """A column that is empty throughout, such as the spread of one draw, is left out."""
    return column["name"].startswith(PAPER) or any(row.get(column["name"]) not in (None, "") for row in rows)


def _is_paper(column: Document) -> bool:
    return bool(column["name"].startswith(PAPER))


def _pairs(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _value(value)) for name, value in figures.items()]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_value(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = figure(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} ..."


def _absent(
    entries: Sequence[Entry], missing: Sequence[tuple[Part, str]], table_1: Document
) -> list[tuple[str, str, str]]:
    """Rows of what is missing: paper, what, why."""
    rows = [(PAPERS[part.paper].short, part.title, why) for part, why in missing]
    rows += [
        (PAPERS[entry.unit.part.paper].short, entry.unit.title, entry.record["error"]["message"])
        for entry in entries
        if entry.status == MISSING and entry.record is not None
    ]
    papers = {paper.name: paper for paper in PAPER_DATA}
    for row in table_1["rows"]:
        paper = papers.get(row["data"])
        if paper is None or row["status"] == "here":
            continue
        said = (
            f"{row['here']}; {row['remark']}"
            if row["status"] == "stand-in"
            else row["remark"] or "its file is not here"
        )
        rows.append((PAPERS[paper.paper.lower()].short, f"data set {paper.name}", said))
    rows += [(paper.short, what, why) for paper in PAPERS.values() for what, why in paper.absent]
    return rows


def _machines(entries: Sequence[Entry]) -> list[str]:
    machines = [_machine(entry.record["machine"]) for entry in entries if entry.record is not None]
    return list(dict.fromkeys(machines))


def _machine(machine: Document) -> str:
    memory = machine["memory_bytes"] / 2**30
    return f"{machine['processor']}, {machine['cores']} cores, {memory:.0f} GiB, Python {machine['python']}"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _text(name: str) -> str:
    return (files("dkgp_benchmarks.report") / name).read_text(encoding="utf-8")
