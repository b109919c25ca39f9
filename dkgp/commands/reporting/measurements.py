"""Common ground of the benchmarks: ratios of interleaved runs and their noise, the machine, a benchmark's record.

A ratio of two runs says little without the ratio that the same thing has to itself: where the baseline is raced
against its own copy, in the same turns, every ratio to it carries the range of those (its "null").
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dkgp import __version__
from dkgp.cluster.arithmetic import process_arithmetic
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.outputs import Document, check_output_file, dump, is_document, plain, write_text
from dkgp.kernels.tiles.processor import compilation_target


@dataclass(frozen=True)
class Column:
    """One column of a benchmark's table: the name of the figure in a row, its heading and format."""

    name: str
    title: str
    format: str = ""
    text: bool = False


# All kernel entries that a solve evaluated, those of selection and dense subproblems included.
ENTRIES = Column("entries", "entries / n^2", ",.2f")


class Ratio(float):
    """A ratio that knows what the baseline comes to against its own copy: from least to most, or None."""

    null: tuple[float, float] | None = None


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def median_ratio(
    values: Sequence[float], references: Sequence[float], null: tuple[Sequence[float], Sequence[float]] | None = None
) -> Ratio:
    """Return the median of the ratios within each repeat: what slows the machine for a while slows both sides of it.

    `null` are the figures of the baseline's copy, and of the baseline itself, in the same repeats.
    """
    found = Ratio(median(_ratios(values, references)))
    return found if null is None else with_null(found, *null)


def with_null(value: float, copies: Sequence[float], originals: Sequence[float]) -> Ratio:
    """Return the ratio with its noise: the range of the copy's figures over the original's, repeat by repeat."""
    found, ratios = Ratio(value), _ratios(copies, originals)
    found.null = (min(ratios), max(ratios))
    return found


def _ratios(values: Sequence[float], references: Sequence[float]) -> list[float]:
    return [value / reference for value, reference in zip(values, references, strict=True)]


def check_record_file(path: str | None) -> None:
    """Make sure that the record can be written; an earlier record of a benchmark is replaced, nothing else is."""
    if path is not None:
        check_output_file(path, replace=is_document(path, "bench"), option="`out`")


def report(
    benchmark: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Any],
    **settings: Any,
) -> Document:
    """Return the document of a benchmark: what was measured, on what, and the ratios that count.

    The noise of ratios that know it goes under "null", of the document and of each row, by the figure's name.
    """
    return {
        "command": "bench",
        "benchmark": benchmark,
        "title": title,
        "columns": [dict(vars(column)) for column in columns],
        "rows": [plain({**row, **_nulls(row)}) for row in rows],
        "figures": plain(dict(figures)),
        **plain(_nulls(figures)),
        "settings": plain(_without_secrets(settings)),
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "compiled_for": _compiled_for(),
            "blas": list(process_arithmetic().blas),
            "cores": available_cores(),
            "memory_bytes": int(psutil.virtual_memory().total),
            "python": platform.python_version(),
            "dkgp": __version__,
        },
    }


def write_record(document: Document, path: str | None) -> Document:
    """Write the record, where one was asked for; return it."""
    if path is not None:
        write_text(path, dump(document) + "\n")
    return document


def _nulls(figures: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value.null for name, value in figures.items() if isinstance(value, Ratio) and value.null}
    return {"null": found} if found else {}


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the names alone of what was handed to a cluster's class: among its values may be a password."""
    cluster = settings.get("cluster")
    if not isinstance(cluster, Mapping) or not cluster.get("settings"):
        return dict(settings)
    return {**settings, "cluster": {**cluster, "settings": sorted(cluster["settings"])}}


def _compiled_for() -> str:
    """The processor that compiled code is for, and its widest vectors: what `NUMBA_CPU_NAME` may have changed."""
    _, name, features = compilation_target()
    widest = next((vectors for vectors in ("avx512f", "avx2", "avx") if f"+{vectors}" in features.split(",")), "")
    return f"{name} {widest}".strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
