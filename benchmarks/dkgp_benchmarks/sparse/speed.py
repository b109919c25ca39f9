"""`dkgp bench sparse --speed`: training of sparse models against BLAS alone, in seconds of the same turns.

Seconds are compared of bases that are equally large. A greedy choice ends early where a smooth kernel's columns leave
nothing that float64 could tell; so the kernel here is a rough one, unless a user gives another, and whoever chose fewer
samples than were asked for has no ratios.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dkgp.bench.contenders import Runs, copy_of, ratio, take_turns
from dkgp.commands.reporting.measurements import Column, median, median_ratio, report, write_record
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import Dataset
from dkgp.errors import UsageError
from dkgp.kernels import SquaredExponential
from dkgp.models import Hyperparameters
from dkgp_benchmarks.sparse.job import CONTENDERS_MODULE, BenchSparseJob
from dkgp_benchmarks.sparse.specs import SparseSpec

BARE = "bare"
BASELINE = "sr"
# Who is raced unless a user says otherwise, and with how many basis samples.
SPEED_METHODS = ("sr", "sggp,score_rows=2048", "sggp", "mpgp", "mpgp,score_rows=2048")
SPEED_SIZE = 2000
# Of exp(-sum gamma (x - x')^2): (x - x')^2 of standardised features is 2 on average, and so the sum is 4.
ROUGHNESS, NOISE = 2.0, 0.1

COLUMNS = (
    Column("contender", "method", text=True),
    Column("m", "m", ",d"),
    Column("choose_seconds", "choose, s", ".2f"),
    Column("solve_seconds", "solve, s", ".2f"),
    Column("seconds", "both, s", ".2f"),
    Column("to_blas", "time / BLAS and tiles", ".2f"),
    Column("to_sr", "time / SR", ".2f"),
    Column("to_own_blas", "time / own GEMM", ".2f"),
    Column("certify_seconds", "certify, s", ".2f"),
    Column("rounds", "rounds", "d"),
    Column("risk", "risk", ",.1f"),
    Column("peak_memory_bytes", "peak memory", "bytes"),
)


def run_bench_sparse_speed(job: BenchSparseJob, reporter: Reporter) -> Document:
    """Measure; return seconds of each method, and the ratios that count."""
    specs = job.specs(SPEED_METHODS)
    if len(job.sizes) > 1:
        raise UsageError(f"`speed` is measured at one size of the basis; got {len(job.sizes)}")
    size = job.sizes[0] if job.sizes else SPEED_SIZE
    by_name = {spec.text: spec for spec in specs}
    with job.prepared(reporter, _rough) as (prepared, _):
        job.check_sizes((size,), prepared.n)

        def describe(name: str, repeat: int) -> dict[str, Any]:
            if name == BARE:
                scores = {spec.text: _scored(spec, size) for spec in specs if _scores_all(spec)}
                return {"contender": BARE, **prepared.to_json(), "basis_size": size, "scores": scores}
            told = job.describe(by_name[name], size, prepared)
            return {**told, "test": None}

        names = (BARE, *by_name)
        copied = (BARE, *(name for name in by_name if name == BASELINE)) if job.null else ()
        runs = take_turns("bench sparse", names, job.repeats, describe, reporter, CONTENDERS_MODULE, copied=copied)
    rows = [_bare_row(runs, size)] + [_row(spec, runs, size) for spec in specs]
    _warn(rows, size, reporter)
    title = job.title("Sparse models' speed", prepared, f"m = {size:,}, median of {job.repeats}")
    settings = {**job.settings(prepared), "basis_size": size, "repeats": job.repeats, "runs": runs}
    settings["warnings"] = list(reporter.warnings)
    figures: dict[str, Any] = {}
    for row in rows[1:]:
        for name in ("to_blas", "to_sr", "to_own_blas"):
            if row.get(name) is not None:
                figures[f"{row['contender']}_{name}"] = row[name]
    figures["largest_peak_bytes"] = max(row["peak_memory_bytes"] for row in rows[1:])
    figures["blas"] = (
        "2 n m^2 floating-point operations of float64 GEMM and the n m entries' tiles; own GEMM: 2 n k q operations a "
        "round for q scored candidates and k basis samples, and those of the fit"
    )
    return write_record(report("sparse_speed", title, COLUMNS, rows, figures, **settings), job.out)


def _rough(dataset: Dataset) -> Hyperparameters:
    gamma = (ROUGHNESS / dataset.n_features,) * dataset.n_features
    return Hyperparameters(SquaredExponential(gamma=gamma), NOISE)


def _warn(rows: list[dict[str, Any]], size: int, reporter: Reporter) -> None:
    for row in rows:
        if row["m"] < size:
            reporter.warn(
                f"{row['contender']}: {row['m']:,} basis samples instead of {size:,}, as float64 could tell no more "
                "apart; its seconds are of less work, so there are no ratios. Take a rougher kernel, or fewer samples"
            )


def _bare_row(runs: Runs, size: int) -> dict[str, Any]:
    taken = runs[BARE]
    names = ("gemm_seconds", "tile_seconds", "seconds", "peak_memory_bytes")
    row = {name: median([run[name] for run in taken]) for name in names}
    said = f"bare: GEMM {row['gemm_seconds']:.2f} s, tiles {row['tile_seconds']:.2f} s"
    return {"contender": said, "m": size, **row}


def _row(spec: SparseSpec, runs: Runs, size: int) -> dict[str, Any]:
    taken = runs[spec.text]
    names = ("choose_seconds", "solve_seconds", "seconds", "certify_seconds", "rounds", "risk", "peak_memory_bytes")
    row: dict[str, Any] = {"contender": spec.text, **{name: median([run[name] for run in taken]) for name in names}}
    row["rounds"] = int(row["rounds"])
    row["m"] = min(run["m"] for run in taken)
    if row["m"] < size:
        return row
    row["to_blas"] = ratio(runs, spec.text, BARE, "seconds")
    # Of as many samples, too.
    whole = all(run["m"] == size for run in runs.get(BASELINE, ()))
    if BASELINE in runs and spec.text != BASELINE and whole:
        row["to_sr"] = ratio(runs, spec.text, BASELINE, "seconds")
    if _scores_all(spec):

        def own(name: str) -> list[float]:
            return [run["score_seconds"][spec.text] + run["gemm_seconds"] for run in runs[name]]

        copies = (own(copy_of(BARE)), own(BARE)) if copy_of(BARE) in runs else None
        row["to_own_blas"] = median_ratio([run["seconds"] for run in taken], own(BARE), copies)
    return row


def _scores_all(spec: SparseSpec) -> bool:
    """True of a greedy choice whose candidates are scored by products with the basis, on all rows."""
    settings = spec.settings
    return settings.method == "sggp" and settings.score_rows is None and settings.basis_name == "greedy"


def _scored(spec: SparseSpec, size: int) -> tuple[int, int]:
    """Choices of a round, and candidates that are scored for them."""
    greedy = replace(spec.settings, basis_size=size).greedy()
    return greedy.per_round, greedy.per_round * (greedy.screen or greedy.candidates)
