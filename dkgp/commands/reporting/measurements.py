"""Common ground of the benchmarks: medians of interleaved runs, the machine, the record of a benchmark."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dkgp import __version__
from dkgp.cluster.arithmetic import own_arithmetic
from dkgp.cluster.threads import available_cores
from dkgp.commands.reporting.documents import Document, dump, is_document, plain
from dkgp.commands.reporting.outputs import check_output_file, write_text
from dkgp.kernels.tiles.processor import compilation_target

__all__ = ["ENTRIES", "Column", "check_record_file", "median", "median_ratio", "report", "write_record"]


@dataclass(frozen=True)
class Column:
    """One column of a benchmark's table: the name of the figure in a row, its heading and format."""

    name: str
    title: str
    format: str = ""
    text: bool = False


# All kernel entries that a solve evaluated, those of selection and dense subproblems included.
ENTRIES = Column("entries", "entries / n^2", ",.2f")


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def median_ratio(values: Sequence[float], references: Sequence[float]) -> float:
    """Return the median of the ratios within each repeat: what slows the machine for a while slows both sides of it."""
    return median([value / reference for value, reference in zip(values, references, strict=True)])


def check_record_file(path: str | None) -> None:
    """Make sure that the record can be written; an earlier record of a benchmark is replaced, nothing else is."""
    if path is not None:
        check_output_file(path, replace=is_document(path, "bench"), option="--out")


def report(
    benchmark: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Any],
    **settings: Any,
) -> Document:
    """Return the document of a benchmark: what was measured, on what, and the ratios that count."""
    return {
        "command": "bench",
        "benchmark": benchmark,
        "title": title,
        "columns": [dict(vars(column)) for column in columns],
        "rows": plain(list(rows)),
        "figures": plain(dict(figures)),
        "settings": plain(_without_secrets(settings)),
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "compiled_for": _compiled_for(),
            "blas": list(own_arithmetic().blas),
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
