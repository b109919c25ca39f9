"""Objects as notebooks show them: a small panel with sections that fold, as xarray's; all text is escaped.

A panel is one string of HTML without scripts and without anything from elsewhere. Colours are the notebook's own where
it says them (Jupyter, VS Code), so that it goes with dark themes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

# Rows of a section, and characters of a value, beyond which a panel says how many more there are.
MOST_ROWS, MOST_CHARACTERS = 100, 300

_STYLE = """<style>
.dkgp-panel{border:1px solid var(--jp-border-color2,var(--vscode-panel-border,#bdbdbd));border-radius:3px;
max-width:800px;padding:6px 10px;margin:4px 0;font-size:13px;line-height:1.5;
color:var(--jp-content-font-color1,var(--vscode-editor-foreground,inherit));background:transparent}
.dkgp-panel header{border-bottom:1px solid var(--jp-border-color2,#bdbdbd);margin-bottom:4px}
.dkgp-panel summary{cursor:pointer;font-weight:600}
.dkgp-panel table{border-collapse:collapse;font-size:inherit;margin:2px 0 6px 14px}
.dkgp-panel td,.dkgp-panel th{text-align:left;vertical-align:top;padding:1px 14px 1px 0;border:none;
background:transparent;overflow-wrap:anywhere}
.dkgp-panel th{font-weight:normal;opacity:.7}
.dkgp-panel .dkgp-kind{opacity:.7}
</style>"""


@dataclass(frozen=True)
class Section:
    """A part of a panel that folds: rows of texts and numbers, the first of each row its name."""

    title: str
    rows: Sequence[Sequence[Any]]
    heads: Sequence[str] = ()
    opened: bool = False

    @classmethod
    def of(cls, title: str, facts: Mapping[str, Any], *, opened: bool = False) -> Section:
        """A section of names and values; what is None or empty is left out."""
        rows = [(name.replace("_", " "), value) for name, value in facts.items() if value is not None and value != ""]
        return cls(title, rows, opened=opened)


def html_repr(value: Any) -> str:
    """Return the panel of a value for IPython; a class has `_repr_html_ = html_repr`.

    Line and sections are those of the value's method `_panel`. Without one the value is a proof: its `statement`, and
    the figures of its JSON.
    """
    if hasattr(value, "_panel"):
        line, sections = value._panel()
    else:
        line, sections = value.statement, [Section.of("Figures", value.to_json())]
    return panel(type(value).__name__, line, sections)


def panel(kind: str, line: str, sections: Iterable[Section]) -> str:
    """Return HTML: `kind` names what is shown, `line` says which one; sections without rows are left out."""
    parts = "".join(_section(section) for section in sections if section.rows)
    title = f'<span class="dkgp-kind">dkgp.{escape(kind)}</span> <strong>{escape(line)}</strong>'
    return f'{_STYLE}<div class="dkgp-panel"><header>{title}</header>{parts}</div>'


def _section(section: Section) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in section.heads)
    rows = [f"<tr>{heads}</tr>"] if heads else []
    for name, *values in section.rows[:MOST_ROWS]:
        cells = "".join(f"<td>{escape(shown(value))}</td>" for value in values)
        rows.append(f"<tr><th>{escape(shown(name))}</th>{cells}</tr>")
    more = len(section.rows) - MOST_ROWS
    if more > 0:
        rows.append(f"<tr><th>and {more:,} more</th></tr>")
    count = f" ({len(section.rows):,})" if section.heads else ""
    opened = " open" if section.opened else ""
    title = escape(section.title)
    return f"<details{opened}><summary>{title}{count}</summary><table>{''.join(rows)}</table></details>"


def shown(value: Any) -> str:
    """A value in words: few digits, lists and mappings in one line, cut where it is long. Not escaped."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:.6g}" if math.isfinite(value) else str(value)
    elif isinstance(value, Mapping):
        text = ", ".join(f"{name}: {shown(part)}" for name, part in list(value.items())[:MOST_ROWS])
    elif isinstance(value, list | tuple):
        text = ", ".join(shown(part) for part in value[:MOST_ROWS])
    elif value is None:
        text = "none"
    else:
        text = str(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
