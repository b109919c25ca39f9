"""Shared parts of the benchmarks: ratios of interleaved runs and their noise, the machine, a benchmark's record.

The ratio of two runs is meaningful only beside the ratio of a run to its own repetition. Some benchmarks therefore run
the baseline and a copy of it in the same turns. The range of their ratios is the "null" of all ratios to the baseline.
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
    """A column of a benchmark's table: the figure's name in a row, the heading and the format."""

    name: str
    title: str
    format: str = ""
    text: bool = False


# All kernel entries that a solve evaluated, including those of selection and dense subproblems.
ENTRIES = Column("entries", "entries / n^2", ",.2f")


class Ratio(float):
    """A ratio with its null: the range of the baseline's ratio to its own copy, or None."""

    null: tuple[float, float] | None = None


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def median_ratio(
    values: Sequence[float], references: Sequence[float], null: tuple[Sequence[float], Sequence[float]] | None = None
) -> Ratio:
    """Return the median of the ratios within each repeat: a temporary slowdown affects both sides of a ratio.

    `null` contains the figures of the baseline's copy, and of the baseline, in the same repeats.
    """
    found = Ratio(median(_ratios(values, references)))
    return found if null is None else with_null(found, *null)


def with_null(value: float, copies: Sequence[float], originals: Sequence[float]) -> Ratio:
    """Return the ratio with its noise: the range of the ratios of copy to original over the repeats."""
    found, ratios = Ratio(value), _ratios(copies, originals)
    found.null = (min(ratios), max(ratios))
    return found


def _ratios(values: Sequence[float], references: Sequence[float]) -> list[float]:
    return [value / reference for value, reference in zip(values, references, strict=True)]


def check_record_file(path: str | None) -> None:
    """Check that the record can be written; only an earlier benchmark record is replaced."""
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
    """Return the document of a benchmark: the measurements, the machine and settings, and the main ratios.

    Ratios with measured noise have it under "null", in the document and in each row, by the figure's name.
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
    """Write the record if there is a path; return it."""
    if path is not None:
        write_text(path, dump(document) + "\n")
    return document


def _nulls(figures: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value.null for name, value in figures.items() if isinstance(value, Ratio) and value.null}
    return {"null": found} if found else {}


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only the names of the settings of a cluster's class, as their values may include a password."""
    cluster = settings.get("cluster")
    if not isinstance(cluster, Mapping) or not cluster.get("settings"):
        return dict(settings)
    return {**settings, "cluster": {**cluster, "settings": sorted(cluster["settings"])}}


def _compiled_for() -> str:
    """Return the target processor of compiled code, and its widest vectors, which `NUMBA_CPU_NAME` may change."""
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
