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
        """Return a section of names and values, without those that are None or empty."""
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
    """Return HTML: `kind` is the class, `line` identifies the object; sections without rows are left out."""
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


Panel = tuple[str, list[Section]]

# Fields of a model's description that have sections of their own, or are for programs.
_ELSEWHERE = ("feature_names", "target_names", "standardisation", "history", "certificate", "summary", "versions")


def dataset_panel(dataset: Any) -> Panel:
    """Return samples, features with mean and deviation, targets and further facts of a `Dataset`."""
    n, d, p = dataset.n_samples, dataset.n_features, dataset.n_targets
    to = dataset.standardisation
    means, spreads = to.input_mean.tolist(), to.input_std.tolist()
    features = list(zip(dataset.feature_names, means, spreads, strict=True))
    dropped = [
        name for name in dataset.raw_feature_names if name not in {*dataset.feature_names, *dataset.covariate_names}
    ]
    if dataset.classes is not None:
        counts = dataset.class_counts or ("",) * len(dataset.classes)
        labels = list(zip(dataset.classes, counts, strict=True))
        targets = Section(f"Classes of {dataset.target_names[0]}", labels, ("class", "samples"), opened=True)
    else:
        columns: list[Any] = [dataset.target_names, to.target_mean.tolist(), to.target_std.tolist()]
        heads = ["target", "mean", "deviation"]
        if to.transforms:
            columns.append([of.name for of in to.transforms])
            heads.append("transform")
        targets = Section("Targets", list(zip(*columns, strict=True)), heads, opened=True)
    about = {
        "place": dataset.url,
        "constant features, left out": dropped or None,
        "ids": list(dataset.id_names) or None,
        "weights": dataset.weight_name,
        "known noise": dataset.noise_name,
        "text, dates and gaps": dataset.encoding,
        "chunks": f"{len(dataset.row_chunks()):,} of {dataset.chunk_rows:,} rows",
        "bytes in memory": dataset.n_bytes,
        "fingerprint": dataset.fingerprint,
    }
    line = f"{n:,} samples, {d:,} features, {p:,} target{'' if p == 1 else 's'}"
    found = Section("Features", features, ("feature", "mean", "deviation"), opened=d <= 10)
    return line, [targets, found, Section.of("About", about)]


def prediction_panel(prediction: Any) -> Panel:
    """Targets and variables of a `Prediction`, and the model that they are by."""
    classes = None if prediction.classes is None else list(prediction.classes)
    facts = {"targets": list(prediction.target_names), "classes": classes, "variables": list(prediction.variables)}
    about = {"place": prediction.url, "chunk rows": prediction.chunk_rows, **prediction.attributes}
    sections = [Section.of("Predicted", facts, opened=True), Section.of("About", about)]
    return f"{prediction.n_samples:,} samples", sections


def model_panel(record: Any) -> Panel:
    """Return kernel and noise of a `Model`, its training and its proofs."""
    facts = {
        "features": list(record.feature_names),
        "targets": list(record.target_names),
        **{name: value for name, value in record.described().items() if name not in _ELSEWHERE},
    }
    training = {name: value for name, value in record.summary.items() if name not in ("estimator", "warnings")}
    names = "', '".join(record.target_names)
    return f"of '{names}', {record.n_features:,} features", [
        Section.of("Model", {"place": "in memory" if "memory://" in record.url else record.url, **facts}, opened=True),
        Section.of("Training", training),
        Section.of("Proven", dict(getattr(record, "certificate", {}) or {})),
        Section.of("Versions", dict(record.versions)),
    ]
