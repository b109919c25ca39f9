"""`dkgp bench sparse`: methods on bases of several sizes, the exact model as the last row, and other libraries' models.

Test errors are on the standardised scale. Intervals are of the observations, or of the function itself where test
targets have no noise (Friedman1). Hyperparameters are the same for all, and so are the test samples.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.contenders import Runs, ratio, take_turns
from dkgp.bench.problem import PreparedProblem
from dkgp.commands.reporting.measurements import Column, median, report, write_record
from dkgp.commands.reporting.outputs import Document, check_side_files
from dkgp.commands.reporting.progress import Reporter
from dkgp.data import open_dataset
from dkgp.errors import InputError, UsageError
from dkgp.kernels import fold_white
from dkgp.models import read_hyperparameters
from dkgp.models.sparse.model import METHODS
from dkgp.models.target_units import NORMAL_95
from dkgp_benchmarks.peers.interpreters import find_interpreters
from dkgp_benchmarks.peers.runner import PEERS
from dkgp_benchmarks.sparse.job import CONTENDERS_MODULE, BenchSparseJob
from dkgp_benchmarks.sparse.plot import plot_sparse
from dkgp_benchmarks.sparse.specs import SparseSpec

FloatArray = NDArray[np.float64]

EXACT = "exact"
SIZES = (200, 500)
# A 95 % interval that covers less than this is said to be too narrow.
LEAST_COVERAGE = 0.90

COLUMNS = (
    Column("model", "model", text=True),
    Column("m", "m", ",d"),
    Column("rmse", "RMSE", ".4f"),
    Column("nlpd", "NLPD", ".3f"),
    Column("coverage", "coverage of 95 %", ".1%"),
    Column("distance", "RMS to exact", ".4f"),
    Column("rms_bound", "proven RMS, training", ".4f"),
    Column("gap", "duality gap", ".3g"),
    Column("choose_seconds", "choose, s", ".2f"),
    Column("solve_seconds", "solve, s", ".2f"),
    Column("certify_seconds", "certify, s", ".2f"),
    Column("predict_seconds", "predict, s", ".3f"),
    Column("processor_seconds", "processor s", ".2f"),
    Column("to_exact", "processor time / exact", ".3f"),
    Column("peak_memory_bytes", "peak memory", "bytes"),
)
TIMED = (
    "choose_seconds",
    "solve_seconds",
    "certify_seconds",
    "predict_seconds",
    "processor_seconds",
    "peak_memory_bytes",
)
KEPT = ("m", "rms_bound", "bound", "gap", "elbo", "risk", "rounds", "note")


def run_bench_sparse(job: BenchSparseJob, reporter: Reporter) -> Document:
    """Measure; return errors, coverage, what is proven, and seconds of each model.

    Raises
    ------
    MissingExtraError
        A peer that is not installed.
    UsageError
        A peer that there is not.
    """
    specs, sizes = job.specs(tuple(METHODS)), job.sizes or SIZES
    peers = job.peer_names or (tuple(PEERS) if job.peers else ())
    if unknown := [name for name in peers if name not in PEERS]:
        raise UsageError(f"there is no peer '{unknown[0]}'; there are {', '.join(PEERS)}")
    interpreters = find_interpreters(peers, job.peer_pythons)
    check_side_files(job.plot, None, replace=job.overwrite)
    with job.prepared(reporter) as (prepared, folder):
        if prepared.test is None:
            raise InputError(f"all {prepared.n:,} samples are trained on; none are left to test on")
        job.check_sizes(sizes, prepared.n)
        models = _models(job, specs, sizes, interpreters, prepared)
        places = list(models)

        def describe(name: str, repeat: int) -> dict[str, Any]:
            return {**models[name], "predictions": str(folder / f"{places.index(name)}-{repeat}.npz")}

        copied = (EXACT,) if job.null and EXACT in models else ()
        runs = take_turns(
            "bench sparse", tuple(models), job.repeats, describe, reporter, CONTENDERS_MODULE, copied=copied
        )
        found = read_hyperparameters(prepared.hyper, n_features=prepared.d)
        noise = 0.0 if job.noise_free else fold_white(found.kernel, found.noise_variance)[1]
        files = {name: folder / f"{places.index(name)}-0.npz" for name in models}
        rows = _rows(files, runs, open_dataset(prepared.test).all_targets(), noise)
        n_test = open_dataset(prepared.test).n_samples
    _warn(rows, reporter)
    title = job.title("Sparse models", prepared, f"{n_test:,} test samples, median of {job.repeats}")
    if job.plot is not None:
        plot_sparse(job.plot, rows, title=title)
    figures = {
        "intervals": "of the function: test targets have no noise" if job.noise_free else "of the observations",
        "hyperparameters": "the same for all, none trained here",
        **{row["model"]: row["note"] for row in rows if row.get("note")},
        **_best(rows),
    }
    settings = {**job.settings(prepared), "sizes": sizes, "repeats": job.repeats, "runs": runs}
    document = report("sparse", title, COLUMNS, rows, figures, **settings)
    document |= {"plot": job.plot, "warnings": list(reporter.warnings)}
    return write_record(document, job.out)


def scores(mean: FloatArray, variance: FloatArray, targets: FloatArray, noise: float) -> dict[str, float]:
    """RMSE, negative log predictive density and coverage of 95 % intervals, on the standardised scale.

    Parameters
    ----------
    mean, targets : (t, p) float64
    variance : (t,) float64
        Of the function; `noise` is added to it.
    """
    # A variance of nothing is one that rounding hides.
    spread = np.maximum(variance + noise, np.finfo(float).eps)[:, None]
    error = targets - mean
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nlpd": float(np.mean(0.5 * np.log(2.0 * np.pi * spread) + 0.5 * error**2 / spread)),
        "coverage": float(np.mean(np.abs(error) <= NORMAL_95 * np.sqrt(spread))),
    }


def _models(
    job: BenchSparseJob,
    specs: list[SparseSpec],
    sizes: tuple[int, ...],
    interpreters: dict[str, str],
    prepared: PreparedProblem,
) -> dict[str, dict[str, Any]]:
    """Description of each row for its process, but for where its predictions go."""
    models: dict[str, dict[str, Any]] = {}
    for size in sizes:
        for spec in specs:
            models[f"{spec.text}, m = {size:,}"] = job.describe(spec, size, prepared)
        for peer, python in interpreters.items():
            told = {"contender": "peer", **prepared.to_json(), "peer": peer, "python": python}
            models[f"{peer}, m = {size:,}"] = {**told, "basis_size": size, "seed": job.problem.seed}
    if job.with_exact:
        models[EXACT] = {"contender": EXACT, **prepared.to_json(), "cluster": asdict(job.cluster)}
    return models


def _rows(files: dict[str, Path], runs: Runs, targets: FloatArray, noise: float) -> list[dict[str, Any]]:
    """A row for each model, the exact one last."""
    predictions = {}
    for name, path in files.items():
        with np.load(path, allow_pickle=False) as archive:
            predictions[name] = archive["mean"], archive["variance"]
    rows = []
    for name, (mean, variance) in predictions.items():
        taken = runs[name]
        row: dict[str, Any] = {"model": name.partition(", m = ")[0]}
        row |= {key: taken[0][key] for key in KEPT if key in taken[0]}
        row |= {key: median([run[key] for run in taken]) for key in TIMED if key in taken[0]}
        row |= scores(mean, variance, targets, noise)
        if EXACT in predictions:
            row["distance"] = float(np.sqrt(np.mean((mean - predictions[EXACT][0]) ** 2)))
            row["to_exact"] = 1.0 if name == EXACT else ratio(runs, name, EXACT, "all_seconds")
        rows.append(row)
    return rows


def _warn(rows: list[dict[str, Any]], reporter: Reporter) -> None:
    """Say whose intervals are too narrow, and why where that is known."""
    for row in rows:
        if row["model"] == EXACT or row["coverage"] >= LEAST_COVERAGE:
            continue
        method = METHODS.get(row["model"].partition(",")[0])
        known = method is not None and method.variance == "regressors"
        why = ": its variances vanish far from the basis, and are never above the exact ones" if known else ""
        reporter.warn(f"{row['model']}, m = {row['m']:,}: 95 % intervals cover {row['coverage']:.1%}{why}")


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """At each size the model of the least test error, and how far it is above the exact one's."""
    exact = next((row["rmse"] for row in rows if row["model"] == EXACT), None)
    figures: dict[str, Any] = {}
    for m in dict.fromkeys(row["m"] for row in rows if row["model"] != EXACT):
        best = min((row for row in rows if row["m"] == m and row["model"] != EXACT), key=lambda row: row["rmse"])
        figures[f"least_rmse_at_{m}"] = best["model"]
        if exact is not None:
            figures[f"least_rmse_at_{m}_to_exact"] = best["rmse"] / exact
    return figures
