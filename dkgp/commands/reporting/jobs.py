"""Jobs of the service as text: a table of jobs, one job in full, and its events as lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dkgp.commands.reporting.layout import figure, table_of
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import duration, search_line, solve_line, typed
from dkgp.registry import byte_text

_STYLES = {"running": "cyan", "done": "green", "not_converged": "yellow", "failed": "red", "cancelled": "dim"}


def jobs_tables(document: Document, *, verbose: bool = False) -> list[RenderableType]:
    """Return the table of `dkgp jobs`, and the number of jobs in each state."""
    table = Table(box=None, pad_edge=False)
    for title in ("id", "command", "name", "state", "submitted", "running time", "progress"):
        # These columns shrink if the terminal is narrow; `dkgp status` shows them in full.
        table.add_column(title, no_wrap=title not in ("name", "progress"))
    for job in document["jobs"]:
        table.add_row(
            job["id"],
            job["command"],
            _cut(job.get("name") or ""),
            Text(_state(job), style=_STYLES.get(job["state"], "")),
            _time(job["created"], "%b %d %H:%M"),
            _took(job),
            _cut(_short(job, verbose=verbose)),
        )
    counts = ", ".join(f"{count:,} {state}" for state, count in document["counts"].items() if count)
    return [table, Text(counts or "no jobs", style="dim")]


def job_tables(
    record: Document,
    *,
    verbose: bool = False,
    layout: Callable[[Document], list[RenderableType]] | None = None,
    flags: Mapping[str, tuple[str, ...]] | None = None,
) -> list[RenderableType]:
    """Return a job's state, progress and result, in the `Recipe.layout` and with the `Recipe.flags` of its command."""
    rows = [
        ("state", _state(record)),
        ("command", record["command"]),
        *((name, str(record[name])) for name in ("name", "owner") if record.get(name)),
        ("submitted", _time(record["created"])),
        *((name, _time(record[name])) for name in ("started", "finished") if record.get(name)),
    ]
    if took := _took(record):
        rows.append(("running time", took))
    if record["attempt"] > 1:
        rows.append(("attempt", str(record["attempt"])))
    if record.get("deadline_seconds"):
        rows.append(("time limit", duration(record["deadline_seconds"])))
    if record.get("memory_bytes"):
        rows.append(("memory limit", f"{record['memory_bytes'] / 2**30:.3g} GiB"))
    if record.get("progress") and record["state"] == "running":
        rows.append(("progress", progress_line(record["progress"], verbose=verbose)))
    if record.get("dashboard_link") and record["state"] == "running":
        rows.append(("dashboard", record["dashboard_link"]))
    if record.get("error"):
        rows.append(("error", typed(f"{record['error']['type']}: {record['error']['message']}")))
        if record["error"].get("checkpoint"):
            rows.append(("checkpoint", f"{record['error']['checkpoint']} (continue with `dkgp resume {record['id']}`)"))
    rows += _typed(record.get("options") or {}, flags or {})
    shown: list[RenderableType] = [table_of(f"Job {record['id']}", [(name, _printable(value)) for name, value in rows])]
    if record.get("document"):
        from dkgp.commands.reporting.tables import tables  # a job without a document needs no import of models

        shown += tables(record["document"], verbose=verbose, layout=layout)
    return shown


def event_line(event: Document, *, verbose: bool = False) -> str | None:
    """Return an event as one line; None for an event that users need not see."""
    line = _event_text(event, verbose=verbose)
    return None if line is None else f"{_time(event['time'], '%H:%M:%S')} {_printable(line)}"


def progress_line(event: Document, *, verbose: bool = False) -> str:
    """Return a progress event in a few words; with `verbose` in solver figures."""
    label = event.get("label", "")
    if event.get("gradient_inf_norm") is not None and "column_passes" in event:
        within = f"; {event['phase']} {100 * event['done'] / event['total']:.0f} %" if event.get("total") else ""
        return f"{label}: {solve_line(event, verbose=verbose)}{within}"
    if event.get("best_log_marginal_likelihood") is not None:
        return f"{label}: {search_line(event, verbose=verbose)}"
    if "done" in event:
        total, unit = event.get("total"), event.get("unit") or ""
        share = "" if not total else f" of {total:,} ({100 * event['done'] / total:.0f} %)"
        phase = f"{event['phase']}: " if event.get("phase") not in (None, "", label, unit) else ""
        return f"{label}: {phase}{event['done']:,}{share} {unit}".rstrip()
    skipped = ("sequence", "time", "kind", "label")
    figures = ", ".join(
        f"{name.replace('_', ' ')} {figure(item)}" for name, item in event.items() if name not in skipped
    )
    return f"{label}: {figures}" if figures else label


def _event_text(event: Document, *, verbose: bool) -> str | None:
    kind = event["kind"]
    if kind == "progress":
        return progress_line(event, verbose=verbose)
    if kind == "state":
        return f"-- {event['state']}" + (f", attempt {event['attempt']}" if event.get("attempt", 1) > 1 else "")
    if kind == "log":
        return str(event["message"])
    if kind in ("note", "warning"):
        return ("warning: " if kind == "warning" else "") + typed(str(event["message"]))
    if kind == "error":
        error = event.get("error", event)
        return typed(f"error: {error.get('type', 'Error')}: {error.get('message', '')}")
    # `status` shows the document. Event kinds of a newer service appear with --json.
    return None


def _state(job: Document) -> str:
    state = str(job["state"]).replace("_", " ")
    if job["state"] == "running" and job.get("cancel_requested"):
        return "being cancelled"
    if job["state"] == "queued" and job.get("resume"):
        return "queued to resume"
    return state


def _short(job: Document, *, verbose: bool) -> str:
    if job.get("error"):
        return typed(str(job["error"]["message"]).splitlines()[0])
    if job["state"] == "running" and job.get("progress"):
        return progress_line(job["progress"], verbose=verbose)
    return ""


def _cut(text: str) -> Text:
    """Return the text as one line, cut to the available width."""
    return Text(_printable(text), no_wrap=True, overflow="ellipsis")


def _printable(text: str) -> str:
    """Return the text without terminal control characters, as other users choose job names."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _took(job: Document) -> str:
    if not job.get("started") or not job.get("finished"):
        return ""
    seconds = (_moment(job["finished"]) - _moment(job["started"])).total_seconds()
    return duration(max(0.0, seconds))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _time(text: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return the time in the local time zone."""
    return _moment(text).astimezone().strftime(form)


def _typed(options: Document, flags: Mapping[str, tuple[str, ...]], path: str = "") -> list[tuple[str, str]]:
    """Return options as they are typed on the command line; options without a flag keep the name of their field."""
    rows: list[tuple[str, str]] = []
    for name, value in options.items():
        names = flags.get(path + name, (name,))
        if isinstance(value, bool):
            is_typed = value or names[-1].startswith("--no-")
            rows.append((names[0 if value else -1], "yes" if is_typed else "no"))
        elif isinstance(value, dict):
            is_part = path + name not in flags
            pairs = ", ".join(f"{key} {figure(item)}" for key, item in value.items())
            rows += _typed(value, flags, f"{path}{name}.") if is_part else [(names[0], pairs)]
        elif isinstance(value, list):
            rows.append((names[0], ", ".join(map(figure, value))))
        elif isinstance(value, int | float) and name.endswith("bytes"):
            rows.append((names[0], byte_text(value)))
        else:
            rows.append((names[0], figure(value) + (" s" if name.endswith("seconds") else "")))
    return rows
