"""Kriging at size: dkgp's seconds and memory, other programs beside it as far as they run, and their audits."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.commands.reporting.measurements import Column, check_record_file, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter, WorkProgress
from dkgp.kriging import Kriging, Variogram
from dkgp.kriging.audit import Exact, audit
from dkgp_benchmarks.kriging.areas import areas_row
from dkgp_benchmarks.kriging.contender import RESIDUAL, peak_bytes
from dkgp_benchmarks.kriging.problem import NUGGET, RANGE, SLOPE, Problem, problem

COLUMNS = (
    Column("program", "program", text=True),
    Column("seconds", "seconds", ",.1f"),
    Column("gib", "peak memory, GiB", ",.2f"),
    Column("difference", "largest difference from dkgp's mean", ".1e"),
    Column("variance_difference", "same for variances, relative", ".1e"),
    Column("rmse", "RMSE", ".4f"),
    Column("nlpd", "NLPD", ".4f"),
    Column("off", "RMS distance from exact mean, at least", ".2e"),
    Column("off_most", "at most", ".2e"),
    Column("note", "note", text=True),
)


def run_bench_kriging(
    reporter: Reporter,
    *,
    n: int,
    n_points: int,
    cells: int,
    areas: int,
    peers: Sequence[str],
    peer_memory: float,
    tolerance: float,
    means: bool,
    seed: int,
    out: str | None,
) -> Document:
    """Krige a generated problem by dkgp and other programs; by dkgp also a map of `cells` x `cells`, and polygons.

    Other programs run in processes with `peer_memory` GiB each. The proven distances are those of `dkgp.kriging.audit`
    from exact kriging with the same trend, so those of programs that krige
    residuals of the known trend are from simple or ordinary kriging of them.
    """
    check_record_file(out)
    variances = not means
    made = problem(n, n_points, seed)
    rows: list[dict[str, Any]] = []
    total = 2 + len(peers)
    with reporter.work("kriging") as show, tempfile.TemporaryDirectory(prefix="dkgp-") as folder:
        show(WorkProgress(f"dkgp, {n:,} samples", 0, total, "programs"))
        universal, exact, row = _dkgp(made, tolerance, variances)
        rows.append(row)
        show(WorkProgress(f"dkgp, {cells:,} x {cells:,} cells", 1, total, "programs"))
        if cells:
            rows.append(_map(universal, cells, f"{folder}/map.zarr"))
        if areas:
            show(WorkProgress(f"dkgp, {areas:,} polygons", 1, total, "programs"))
            rows.append(areas_row(universal, areas, seed))
        np.savez(f"{folder}/problem.npz", places=made.places, values=made.values, points=made.points)
        for index, name in enumerate(peers):
            show(WorkProgress(name, 2 + index, total, "programs"))
            rows.append(_peer(name, made, exact, (tolerance, variances), (Path(folder), peer_memory)))
        show(WorkProgress("done", total, total, "programs"))
    figures = {f"seconds_{row['program'].replace(' ', '_')}": row["seconds"] for row in rows if "seconds" in row}
    settings = {
        "n": n,
        "points": n_points,
        "cells": cells,
        "areas": areas,
        "peers": list(peers),
        "tolerance": tolerance,
        "seed": seed,
    }
    document = report("kriging", f"Kriging of {n:,} samples at {n_points:,} points", COLUMNS, rows, figures, **settings)
    return write_record(document, out)


def _dkgp(made: Problem, tolerance: float, variances: bool, kind: str = "universal") -> tuple[Kriging, Exact, Any]:
    """Return dkgp's kriging, its proofs at the points and its row."""
    variogram = Variogram("exponential", psill=1.0, range=RANGE, nugget=NUGGET)
    mean_of: dict[str, dict[str, Any]] = {"simple": {"mean": 0.0}, "universal": {"degree": 1}, "ordinary": {}}
    kriging = Kriging(variogram, kind=kind, of="observation", tolerance=tolerance, **mean_of[kind])
    slope = 0.0 if kind == "universal" else SLOPE
    trend, values = slope * made.points[:, 0], made.values - slope * made.places[:, 0]
    began = time.perf_counter()
    kriging.fit(tuple(made.places.T), values)
    fitted = time.perf_counter()
    mean, bound, *rest = kriging.predict(tuple(made.points.T), return_bounds=True, return_variance=variances)
    seconds = time.perf_counter() - began
    exact = Exact(mean + trend, bound + np.spacing(np.abs(mean + trend)), *rest[1:])
    row = {
        "program": "dkgp",
        "seconds": seconds,
        "gib": peak_bytes() / 2**30,
        **_errors(made, exact.mean, rest[0] if rest else None),
        "off": 0.0,
        "off_most": float(np.sqrt(np.mean(exact.bound**2))),
        "note": f"fit {fitted - began:.1f} s",
    }
    return kriging, exact, row


def _map(kriging: Kriging, cells: int, out: str) -> dict[str, Any]:
    began = time.perf_counter()
    kriging.grid(region=(0.0, 1.0, 0.0, 1.0), shape=(cells, cells), out=out)
    seconds = time.perf_counter() - began
    note = f"means with bounds of {cells:,} x {cells:,} cells, to Zarr"
    return {"program": "dkgp map", "seconds": seconds, "gib": peak_bytes() / 2**30, "note": note}


def _peer(name: str, made: Problem, exact: Exact, how: tuple[float, bool], where: tuple[Path, float]) -> dict[str, Any]:
    """Return the row of another program."""
    folder, limit = where
    predictions = folder / f"{name}.npz"
    command = [sys.executable, "-m", "dkgp_benchmarks.kriging.contender", name, str(folder / "problem.npz")]
    done = subprocess.run([*command, str(predictions), str(limit)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        return {"program": name, "note": f"stopped: {last}"}
    figures = json.loads(done.stdout.splitlines()[-1])
    row: dict[str, Any] = {"program": name, "gib": figures["peak_bytes"] / 2**30}
    if "stopped" in figures:
        return {**row, "note": f"stopped with {limit:g} GiB: {figures['stopped']}"}
    theirs = np.load(predictions)
    mean, variance = theirs["mean"], theirs["variance"]
    if name in RESIDUAL:
        exact = _dkgp(made, *how, RESIDUAL[name])[1]
    judged = audit(exact, mean, variance if exact.lower is not None else None)
    low, high = judged.root_mean_square()
    row |= {"seconds": figures["seconds"], **_errors(made, mean, variance), "off": low, "off_most": high}
    row |= {"difference": float(np.abs(mean - exact.mean).max()), "note": f"{name} {figures['version']}"}
    if exact.lower is not None and exact.upper is not None:
        middle = 0.5 * (exact.lower + exact.upper)
        row["variance_difference"] = float(np.abs(variance / middle - 1.0).max())
        row["audit"] = judged.summary()
    return row


def _errors(made: Problem, mean: Any, variance: Any) -> dict[str, float]:
    """Return the error against the true field, and the density of a new observation of it."""
    errors = {"rmse": float(np.sqrt(np.mean((mean - made.truth) ** 2)))}
    if variance is not None:
        square = (mean - made.truth) ** 2 + NUGGET
        errors["nlpd"] = float(np.mean(0.5 * (np.log(2.0 * np.pi * variance) + square / variance)))
    return errors
