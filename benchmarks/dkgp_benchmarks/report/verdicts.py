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
from dkgp.data.remote.storage import write_object
from dkgp.errors import InputError
from dkgp_benchmarks.papers.part import PARTS, Part
from dkgp_benchmarks.papers.published import PAPERS
from dkgp_benchmarks.papers.verdicts.verdict import BEYOND, MET, MISSED, OPEN, UNEXPLAINED
from dkgp_benchmarks.report.folder import DONE, ReportFolder

WORDS = (MET, BEYOND, MISSED, OPEN)
# Left out of compact records: what draws a curve.
CURVES = "curves"
KINDS = (".md", ".json")
# Of the tables of compact records: more than any column shows.
DIGITS = 8
INTRODUCTION = """\
`dkgp bench papers` writes this page from its [records](records/papers-full.json). Only rules and reasons are typed in.
Each row is a figure or a claim of a paper. Its state follows from the rule of its part:

- **equal**: as in the paper
- **better**, **worse**: outside the rule's band
- **not run**: the run was too short to decide

A number behind a state refers to the reason below the table. To repeat a part or to add draws, run"""
NOT_MEASURED = "No record exists; the command above measures this part."
# Placeholder of a part's name in the command.
PLACEHOLDER = "PART"


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
    """Return the JSON document with fewer digits; whole numbers keep all of theirs."""
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and not value.is_integer() else value


def _markdown(records: Sequence[Document], command: Callable[[str], str]) -> str:
    machines = dict.fromkeys(
        f"{machine['processor']}, {machine['cores']} core{'s'[: machine['cores'] - 1]}, Python {machine['python']}"
        for machine in (record["machine"] for record in records)
    )
    lines = ["# The papers' figures, and ours", "", INTRODUCTION, "", "```sh", command(PLACEHOLDER), "```", ""]
    lines += [f"Machine: {'; '.join(machines)}; shared with other work, so that seconds are rough.", ""]
    papers = [key for key in PAPERS if any(record["paper"] == key for record in records)]
    lines += _titles("paper", *WORDS)
    for key in papers:
        lines.append(_line([PAPERS[key].short, *_counts([record for record in records if record["paper"] == key])]))
    lines.append(_line(["all", *_counts(records)]))
    for key in papers:
        lines += _paper(key, [record for record in records if record["paper"] == key])
    return "\n".join(lines)


def _counts(records: Sequence[Document]) -> list[str]:
    rows = summary(records)
    return [str(sum(row[word] for row in rows)) for word in WORDS]


def _paper(key: str, records: Sequence[Document]) -> list[str]:
    """Return the section of a paper: one table of its figures, their reasons, and one table of its parts."""
    lines = ["", f"## {PAPERS[key].short}", "", f"{PAPERS[key].reference}.", ""]
    measured = {record["part"] for record in records}
    absent = [part for part in PARTS.all().values() if part.paper == key and part.name not in measured]
    judged = [(record["name"], verdict) for record in records for verdict in record.get("verdicts", ())]
    missing = {"paper": "", "here": "", "verdict": OPEN}
    judged += [(part.name, {**missing, "what": part.title, "why": _why_absent(part)}) for part in absent]
    # Many rows share a reason: it has a number.
    reasons = list(dict.fromkeys(verdict["why"] for _, verdict in judged if verdict["why"]))
    lines += _titles("part", "figure or claim", "the paper", "here", "state")
    for name, verdict in judged:
        number = f" ({reasons.index(verdict['why']) + 1})" if verdict["why"] else ""
        word = verdict["verdict"] if verdict["verdict"] == MET else f"**{verdict['verdict']}**"
        lines.append(_line([f"`{name}`", verdict["what"], verdict["paper"], verdict["here"], f"{word}{number}"]))
    lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))]
    lines += ["", *_titles("part", "equal if", "size here", "measured in", "hours left for all draws")]
    for record in records:
        part = PARTS.find(record["part"])
        rule = "no figures printed" if part.judge is None else part.judge.rule
        is_first = record is next(each for each in records if each["part"] == part.name)
        size = of_another_size(record) or "the paper's"
        cells = [f"`{record['name']}`", rule if is_first else "as above", size, duration(record["seconds"])]
        lines.append(_line([*cells, hours_left(record)]))
    return lines


def _why_absent(part: Part) -> str:
    reason = UNEXPLAINED if part.judge is None else part.judge.reason(f": {part.title} (open)")
    return NOT_MEASURED if reason == UNEXPLAINED else reason


def _titles(*titles: str) -> list[str]:
    return [_line(titles), "|" + "---|" * len(titles)]


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
