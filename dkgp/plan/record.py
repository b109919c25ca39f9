"""Figures from files: this machine's own, kept for the next plan, and what `dkgp bench` has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.commands.reporting.documents import Document, dump
from dkgp.commands.reporting.measurements import Column, report
from dkgp.commands.reporting.outputs import write_text
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError
from dkgp.plan.figures import MachineFigures

BENCHMARK = "machine"
COLUMNS = (
    Column("d", "features", "d"),
    Column("entries", "entry, s", ".3e"),
    Column("double_entries", "float64 entry, s", ".3e"),
    Column("filled", "kept entry, s", ".3e"),
    Column("kept", "read entry, s", ".3e"),
    Column("operations", "operation, s", ".3e"),
    Column("double_operations", "float64 operation, s", ".3e"),
    Column("bytes", "byte, s", ".3e"),
)


def read_figures(path: str, d: int, reporter: Reporter) -> MachineFigures | None:
    """Return the figures that a file holds for d features; None where it has none or is not there.

    Figures that another processor took are used, and that is said.

    Raises
    ------
    InputError
        The file is something else.
    """
    document = _read(path, "figures")
    if document is None:
        return None
    if document.get("benchmark") != BENCHMARK:
        raise InputError(f"'{path}' (`figures`) holds no figures of a machine; expected a file that `dkgp plan` wrote")
    for row in document["rows"]:
        machine = MachineFigures.from_json(row)
        if machine.d == d:
            taken_on, here = document["machine"]["processor"], _machine()["processor"]
            if taken_on != here:
                reporter.warn(f"the figures in '{path}' were taken on another processor ({taken_on}; this is {here})")
            return machine
    return None


def write_figures(path: str, machine: MachineFigures) -> None:
    """Add figures to a file, or begin one; those of another machine are dropped."""
    document = _read(path, "figures")
    rows: list[dict[str, Any]] = []
    if document is not None and document["machine"]["processor"] == _machine()["processor"]:
        rows = [row for row in document["rows"] if row["d"] != machine.d]
    rows = sorted([*rows, machine.to_json()], key=lambda row: row["d"])
    figures = {"speedups": rows[-1]["speedups"]}
    write_text(path, dump(report(BENCHMARK, "Figures of this machine", COLUMNS, rows, figures)) + "\n")


def read_bench(path: str) -> Document:
    """Read a record of `dkgp bench` that a plan can use: of `tiles`, or of `scaling`.

    Raises
    ------
    InputError
        No such record.
    """
    document = _read(path, "bench")
    if document is None:
        raise InputError(f"the file '{path}' (`bench`) does not exist; write one with `dkgp bench tiles --out {path}`")
    if document.get("benchmark") not in ("tiles", "scaling"):
        raise InputError(
            f"'{path}' (`bench`) is a record of `dkgp bench {document.get('benchmark')}`, which says nothing about the "
            "cost of a kernel entry; expected one of `dkgp bench tiles` or `dkgp bench scaling`"
        )
    return document


def with_bench(figures: MachineFigures, document: Mapping[str, Any]) -> MachineFigures:
    """Replace measured figures by those of a benchmark's record.

    `scaling` holds a machine's figures as a plan takes them. `tiles` holds nanoseconds of an entry by number of
    features and precision: between two numbers of features they lie on a line.
    """
    try:
        if document["benchmark"] == "scaling":
            machine = MachineFigures.from_json(document["settings"]["machine_figures"])
            if machine.d != figures.d:
                raise InputError(
                    f"the record of `dkgp bench scaling` is for {machine.d} features; the data set has {figures.d}"
                )
            return machine
        entries = {}
        for precision in ("single", "double"):
            rows = sorted((row["d"], row["dkgp_ns"]) for row in document["rows"] if row["precision"] == precision)
            entries[precision] = 1e-9 * float(np.interp(figures.d, [row[0] for row in rows], [row[1] for row in rows]))
            if not entries[precision] > 0.0:
                raise ValueError(f"{entries[precision]} seconds for an entry")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the record of a benchmark (`bench`) is damaged: {error}") from None
    prices = replace(figures.prices, entries=entries["single"], double_entries=entries["double"])
    return replace(figures, prices=prices)


def _machine() -> dict[str, Any]:
    machine: dict[str, Any] = report("", "", (), (), {})["machine"]
    return machine


def _read(path: str, option: str) -> Document | None:
    """Return a benchmark's record, None where there is no file."""
    try:
        document = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' (`{option}`) cannot be read as JSON: {error}") from None
    if (
        not isinstance(document, dict)
        or document.get("command") != "bench"
        or not isinstance(document.get("rows"), list)
        or not isinstance(document.get("machine"), dict)
        or not document["machine"].get("processor")
    ):
        raise InputError(
            f"'{path}' (`{option}`) is no record of dkgp's benchmarks; nothing was changed. Name another file"
        )
    return document
