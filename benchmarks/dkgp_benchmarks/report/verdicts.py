"""Verdicts of a report: one table of all parts, as Markdown, and compact records with which another machine goes on.

    dkgp bench papers --report DIR --full --verdicts verdicts.md --verdicts records.json

A compact record is a part's, without curves and pictures: what its tables show, to eight digits, what determined it,
and its verdicts. It has a line to itself, so that one that is made anew is one line of a difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dkgp import __version__
from dkgp.commands.reporting.outputs import Document, dump
from dkgp.commands.reporting.tables import cell
from dkgp.data.remote.storage import write_object
from dkgp.errors import InputError
from dkgp_benchmarks.papers.part import PARTS, Part
from dkgp_benchmarks.papers.published import PAPERS
from dkgp_benchmarks.papers.verdicts.verdict import BEYOND, MET, MISSED, OPEN
from dkgp_benchmarks.report.folder import DONE, ReportFolder

WORDS = (MET, BEYOND, MISSED, OPEN)
# Left out of compact records: what draws a curve.
CURVES = "curves"
KINDS = (".md", ".json")
# Of the tables of compact records: more than any column shows.
DIGITS = 8
INTRODUCTION = (
    "Made by `dkgp bench papers --report ... --verdicts`: nothing here is typed in but rules and reasons. "
    '"Met" is as in the paper, "beyond" better, "missed" worse, each by the rule of its part; "open" is what a run '
    'that was cut off leaves undecided. Where the size is not the paper\'s, "hours left" is what the missing draws '
    "would take on the same machine, by the part's own command, which goes on with those that there are."
)


def check_verdict_file(path: str) -> None:
    """Raise `InputError` for a file of another kind."""
    if not path.endswith(KINDS):
        raise InputError(f"`verdicts` needs a file that ends in {' or '.join(KINDS)}; got '{path}'")


def of_another_size(record: Document) -> str:
    """In which settings a record differs from the paper's size, in words; nothing where in none."""
    part = PARTS.find(record["part"])
    full, asked = part.settings(full=True, given={}), record["asked"]["settings"]
    differing = [name for name in full if name != "seed" and asked.get(name) != full[name]]
    return ", ".join(f"{name} {_said(asked.get(name))} of {_said(full[name])}" for name in differing)


def hours_left(record: Document) -> str:
    """Hours that the paper's draws would still take on the same machine, in words; none where it is not of draws.

    Where other settings are not the paper's, all draws are to be made anew, and take longer than these did.
    """
    part, asked = PARTS.find(record["part"]), record["asked"]["settings"]
    full = part.settings(full=True, given={})
    draws, done = full.get("draws"), asked.get("draws")
    if not draws or not done:
        return ""
    others = any(asked.get(name) != value for name, value in full.items() if name not in ("draws", "seed"))
    missing = draws if others else draws - done
    hours = record["seconds"] * missing / done / 3600.0
    return f"{'> ' if others else ''}{hours:.1f}" if missing > 0 else ""


def summary(records: Sequence[Document]) -> list[Document]:
    """Verdicts by part and data set: how many of each."""
    rows = []
    for record in records:
        counts = {word: sum(found["verdict"] == word for found in record.get("verdicts", ())) for word in WORDS}
        rows.append({"name": record["name"], "title": record["title"], **counts, "size": of_another_size(record)})
    return rows


def write_verdicts(path: str, records: Sequence[Document], command: Callable[[str], str]) -> None:
    """Write the verdicts of all parts that are done, as Markdown or as compact records.

    Parameters
    ----------
    path
        Ends in .md or .json.
    records
        In any order.
    command
        From a part's name to the command that makes it alone.
    """
    order = {name: number for number, name in enumerate(PARTS.all())}
    done = [record for record in records if record["status"] == DONE and record["part"] in order]
    done.sort(key=lambda record: (order[record["part"]], record["variant"]))
    # The page is of the compact records, too: whoever makes it of their file gets the same digits.
    compact = [_compact(record) for record in done]
    if path.endswith(".json"):
        head = dump({"command": "bench", "benchmark": "papers", "dkgp": __version__}, indent=None)
        lines = ",\n".join(dump(record, indent=None) for record in compact)
        text = f'{head[:-1]}, "records": [\n{lines}\n]}}'
    else:
        text = _markdown(compact, command)
    write_object(path, (text.rstrip() + "\n").encode())


def take_records(folder: ReportFolder, path: str) -> int:
    """Take over the compact records of a file that the folder has no records of; return how many.

    Raises
    ------
    InputError
        It is no such file.
    """
    try:
        found = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))["records"]
        new = [record for record in found if folder.record(record["name"]) is None]
        for record in new:
            folder.write_record({**record, "pictures": []})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"`records` '{path}' holds no records of a report: {error!r}") from error
    return len(new)


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _compact(record: Mapping[str, Any]) -> Document:
    kept = {name: value for name, value in record.items() if name not in ("pictures", "format")}
    kept["sections"] = [
        {name: _rounded(value) for name, value in section.items() if name != CURVES} for section in record["sections"]
    ]
    kept["verdicts"] = PARTS.find(record["part"]).verdicts(kept["sections"], record["variant"])
    return kept


def _rounded(value: Any) -> Any:
    """The same JSON with fewer digits; whole numbers, counts among them, keep theirs."""
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and not value.is_integer() else value


def _markdown(records: Sequence[Document], command: Callable[[str], str]) -> str:
    machines = dict.fromkeys(
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}"
        for machine in (record["machine"] for record in records)
    )
    said = f"Seconds are of {'; '.join(machines)}, with whatever else ran on it."
    lines = ["# The papers' figures, and ours", "", INTRODUCTION, "", said, ""]
    lines += ["| part | size | seconds | met | beyond | missed | open | hours left |", "|" + "---|" * 8]
    for record, row in zip(records, summary(records), strict=True):
        cells = [f"`{row['name']}`", row["size"] or "the paper's", duration(record["seconds"])]
        lines.append(_line([*cells, *(str(row[word]) for word in WORDS), hours_left(record)]))
    totals = [sum(row[word] for row in summary(records)) for word in WORDS]
    lines.append(_line(["all", "", duration(sum(record["seconds"] for record in records)), *map(str, totals), ""]))
    if absent := [f"`{name}`" for name in PARTS.all() if name not in {record["part"] for record in records}]:
        lines += ["", f"Not run: {', '.join(absent)}."]
    for key, paper in PAPERS.items():
        own = [record for record in records if record["paper"] == key]
        if own:
            lines += ["", f"## {paper.short}", "", f"{paper.reference}."]
        for name in dict.fromkeys(record["part"] for record in own):
            lines += _part(PARTS.find(name), [record for record in own if record["part"] == name], command)
    return "\n".join(lines)


def _part(part: Part, records: Sequence[Document], command: Callable[[str], str]) -> list[str]:
    lines = ["", f"### {part.title}", "", part.shows]
    if part.judge is None:
        lines += ["", "The paper prints no figures of it."]
    else:
        lines += ["", f"*Rule.* {part.judge.rule}"]
    judged = [(record, verdict) for record in records for verdict in record.get("verdicts", ())]
    with_data = any(record["variant"] for record in records)
    if judged:
        titles = [*(["data"] if with_data else []), "what", "the paper", "here", "verdict"]
        lines += ["", _line(titles), "|" + "---|" * len(titles)]
        # Reasons stand below, by number: many misses have the same.
        reasons = list(dict.fromkeys(verdict["why"] for _, verdict in judged if verdict["why"]))
        for record, verdict in judged:
            number = f" ({reasons.index(verdict['why']) + 1})" if verdict["why"] else ""
            word = verdict["verdict"] if verdict["verdict"] == MET else f"**{verdict['verdict']}**"
            cells = [verdict["what"], verdict["paper"], verdict["here"], f"{word}{number}"]
            lines.append(_line([*([record["variant"]] if with_data else []), *cells]))
        lines += [""] if reasons else []
        lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    for record in records:
        for section in record["sections"]:
            kind = str(section["section"]).partition(":")[0].replace("_", " ")
            if kind in part.printed:
                lines += _table(section)
    names = [part.name] if len(records) > 1 else [records[0]["name"]]
    lines += ["", *(f"`{command(name)}`" for name in names)]
    return lines


def _table(section: Document) -> list[str]:
    """A table as the terminal shows it; columns that no row has are left out."""
    rows = section["rows"]
    columns = [
        column for column in section["columns"] if any(row.get(column["name"]) not in (None, "") for row in rows)
    ]
    lines = ["", f"**{section['title']}**", "", _line([column["title"] for column in columns])]
    lines.append("|" + "---|" * len(columns))
    return lines + [_line([_cell(row, column) for column in columns]) for row in rows]


def _cell(row: Document, column: Document) -> str:
    value = row.get(column["name"])
    return ("yes" if value else "no") if isinstance(value, bool) else str(cell(row, column))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(str(text).replace("|", "&#124;") for text in cells) + " |"


def _said(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_said, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
