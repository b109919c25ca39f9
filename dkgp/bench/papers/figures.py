"""Figures 1 to 4 of the GBCD paper as tables and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from dkgp.bench.papers.runs import Exact, SolverRun, Workbench, paper_contenders
from dkgp.bench.papers.tables import said, section, thinned
from dkgp.bench.references import kernel_columns
from dkgp.commands.reporting.documents import Document, plain
from dkgp.commands.reporting.measurements import ENTRIES, Column
from dkgp.commands.solver_options import SolverOptions
from dkgp.models import Hyperparameters
from dkgp.solvers import GradientInfNorm, MaxIterations
from dkgp.solvers.state import SolverState

__all__ = ["convergence_figure", "gradient_correlations", "growth_figure", "growth_row"]

FloatArray = NDArray[np.float64]

# As in section 2.3 of the paper.
CORRELATION_SAMPLES, CORRELATION_NEIGHBOURS, CORRELATION_ITERATIONS = 100, 50, 50
CORRELATION_BINS = 20
RANKS = ((1, 5), (6, 10), (11, 20), (21, 50))
# GBCD must not stop before there is something to correlate.
CORRELATION_TOLERANCE = 1e-9
THRESHOLDS = (1e-1, 1e-2, 1e-3, 1e-4)
OBJECTIVE_SHARE = 1e-4
RMSE_SHARE = 0.01
MOST_POINTS = 150

CORRELATION_COLUMNS = (
    Column("system", "right-hand side", text=True),
    Column("pairs", "sample and", text=True),
    Column("count", "pairs", ",d"),
    Column("distance", "median distance", ".3f"),
    Column("mean", "mean correlation", ".3f"),
    Column("magnitude", "mean magnitude", ".3f"),
    Column("share", "above 1/2 in magnitude", ".1%"),
)
GROWTH_COLUMNS = (
    Column("n", "n", ",d"),
    Column("solver", "solver", text=True),
    Column("converged", "converged", text=True),
    Column("iteration", "iterations", ",d"),
    Column("column_passes", "passes", ",.2f"),
    ENTRIES,
    Column("seconds", "seconds", ",.3f"),
    Column("seconds_ratio", "seconds / GBCD's", ",.2f"),
    Column("rmse", "RMSE", ".5f"),
)


def gradient_correlations(bench: Workbench, options: SolverOptions, seed: int) -> Document:
    """Figure 1: how the gradients of neighbours move together while GBCD works, for y and for k_* on the right.

    For comparison, pairs drawn at random stand beside the neighbours.
    """
    data = bench.data
    generator = np.random.default_rng(seed)
    count = min(CORRELATION_NEIGHBOURS, data.n - 1)
    samples = np.sort(generator.choice(data.n, min(CORRELATION_SAMPLES, data.n), replace=False))
    neighbours, distances = _neighbours(data.inputs, samples, count)
    strangers = generator.integers(0, data.n, (len(samples), count))
    contender = paper_contenders(options, data.n)[0]
    star = kernel_columns(data.inputs, data.test_inputs[:1], data.found)
    stopping = GradientInfNorm(CORRELATION_TOLERANCE) | MaxIterations(CORRELATION_ITERATIONS)
    rows: list[dict[str, Any]] = []
    histograms: dict[str, list[int]] = {}
    edges = np.linspace(-1.0, 1.0, CORRELATION_BINS + 1)
    iterations = {}
    for system, right in (("y", data.targets[:, :1]), ("k_*", star)):
        gradients: list[FloatArray] = []

        def watch(state: SolverState, gradients: list[FloatArray] = gradients) -> None:
            gradients.append(state.gradient[:, 0].copy())

        bench.solve(replace(contender, label=f"gradients, {system}"), rhs=right, stopping=stopping, watch=watch)
        tracks = np.asarray(gradients)
        near = _correlations(tracks, samples, neighbours)
        iterations[system] = len(tracks)
        for first, last in RANKS:
            if first <= count:
                ranks = slice(first - 1, min(last, count))
                row = {"system": system, "pairs": f"neighbours {first} to {min(last, count)}"}
                rows.append(row | _summary(near[:, ranks], distances[:, ranks]))
        away = np.linalg.norm(data.inputs[samples][:, None] - data.inputs[strangers], axis=2)
        rows.append(
            {"system": system, "pairs": "any other"} | _summary(_correlations(tracks, samples, strangers), away)
        )
        histograms[system] = np.histogram(near[np.isfinite(near)], edges)[0].tolist()
    document = section(
        f"figure_1:{data.name}",
        f"Figure 1: {data.name}, n = {data.n:,}: correlation of g_i and g_j over GBCD's first iterations",
        CORRELATION_COLUMNS,
        rows,
        iterations=iterations,
        samples=len(samples),
        target=f"1 of {data.targets.shape[1]}",
        block_size=contender.options.block_size,
    )
    return document | {"curves": plain({"edges": edges, "histograms": histograms})}


def convergence_figure(bench: Workbench, options: SolverOptions, number: int) -> Document:
    """Figure 2 (against seconds) or 3 (against iterations): when each method came how far.

    Both show the same runs; the curves are those of both.
    """
    data, exact = bench.data, bench.exact()
    runs = [bench.run(contender) for contender in paper_contenders(options, data.n)]
    minimum = _minimum(exact, runs)
    against, form = ("seconds", ".3f") if number == 2 else ("iteration", ",d")
    thresholds = [value for value in THRESHOLDS if value >= options.tolerance] or [options.tolerance]
    columns = [Column("solver", "solver", text=True)]
    columns += [Column(f"gradient_{value:g}", f"max |g| <= {value:g}", form) for value in thresholds]
    columns.append(Column("objective", f"objective to {OBJECTIVE_SHARE:g}", form))
    if number == 2:
        columns.append(Column("rmse", f"RMSE within {RMSE_SHARE:.0%}", form))
    columns.append(Column(f"last_{against}", "stopped at", form))
    goal = None if exact is None else (1.0 + RMSE_SHARE) * exact.rmse
    rows = []
    for run in runs:
        row: dict[str, Any] = {"solver": run.contender.label, "key": run.contender.key}
        for value in thresholds:
            row[f"gradient_{value:g}"] = _when(run, against, "gradient_inf_norm", value)
        row["objective"] = _when(run, against, "objective", minimum + OBJECTIVE_SHARE * abs(minimum))
        if number == 2 and goal is not None:
            row["rmse"] = next((point["seconds"] for point in run.curve if point["rmse"] <= goal), None)
        row[f"last_{against}"] = None if run.last is None else getattr(run.last, against)
        rows.append(row)
    what = "seconds" if number == 2 else "iterations"
    document = section(
        f"figure_{number}:{data.name}",
        f"Figure {number}: {data.name}, n = {data.n:,}: {what} until each method came so far; '-' where it never did",
        tuple(columns),
        rows,
        seen_by="each method's own recursion; its last point is verified in float64",
        objective_minimum=minimum,
        objective_minimum_from="Cholesky" if exact is not None else "the best run",
    )
    curves = {run.contender.label: {"history": _thinned(run), "test": run.curve if number == 2 else []} for run in runs}
    limits = {"minimum": minimum, "rmse": None if exact is None else exact.rmse, "tolerance": options.tolerance}
    return document | {"curves": plain({"runs": curves, **limits})}


def growth_row(bench: Workbench, options: SolverOptions) -> list[dict[str, Any]]:
    """Cyclic and greedy at one size of Figure 4."""
    chosen = [each for each in paper_contenders(options, bench.data.n) if each.key in ("gbcd", "gbcd_default", "bcdc")]
    runs = [bench.run(contender) for contender in chosen]
    rows = []
    for run in runs:
        row = {"n": bench.data.n, **run.to_json()}
        both = run.converged and runs[0].converged and run.last is not None and runs[0].last is not None
        row["seconds_ratio"] = row["seconds"] / runs[0].last.seconds if both and runs[0].last is not None else None
        rows.append(row)
    return rows


def growth_figure(rows: Sequence[dict[str, Any]], tolerance: float, found: Hyperparameters) -> Document:
    """Figure 4: seconds against n, and the exponents of n that fit them best."""
    exponents = {}
    for solver in dict.fromkeys(row["solver"] for row in rows):
        points = [(row["n"], row["seconds"]) for row in rows if row["solver"] == solver and row["converged"]]
        if len({n for n, _ in points}) > 1:
            logs = np.log(np.asarray(points))
            exponents[solver] = round(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]), 3)
    title = f"Figure 4: Friedman1, d = {found.n_features}: training time against n, to max |g| <= {tolerance:g}"
    figures = {"seconds_grow_as_n_to_the": exponents, "gaussian_process": said(found)}
    return section("figure_4", title, GROWTH_COLUMNS, list(rows), **figures)


def _neighbours(inputs: FloatArray, samples: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], FloatArray]:
    """Nearest others of each sample, in order, by Euclidean distance of the standardised inputs."""
    away = cdist(inputs[samples], inputs)
    away[np.arange(len(samples)), samples] = np.inf
    chosen = np.argsort(away, axis=1, kind="stable")[:, :count]
    return chosen, np.take_along_axis(away, chosen, axis=1)


def _correlations(tracks: FloatArray, samples: NDArray[np.int64], others: NDArray[np.int64]) -> FloatArray:
    """Correlation over the iterations of each sample's gradient with each of its others': (samples, others)."""
    centred = tracks - tracks.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    products = np.einsum("ts,tso->so", centred[:, samples], centred[:, others])
    scale = norms[samples][:, None] * norms[others]
    found = np.divide(products, scale, out=np.full_like(products, np.nan), where=scale > 0.0)
    found[others == samples[:, None]] = np.nan
    return np.asarray(np.clip(found, -1.0, 1.0))


def _summary(correlations: FloatArray, distances: FloatArray) -> dict[str, Any]:
    known = np.isfinite(correlations)
    if not known.any():
        return {"count": 0}
    values = correlations[known]
    return {
        "count": int(known.sum()),
        "distance": float(np.median(distances[known])),
        "mean": float(values.mean()),
        "magnitude": float(np.abs(values).mean()),
        "share": float(np.mean(np.abs(values) > 0.5)),
    }


def _minimum(exact: Exact | None, runs: Sequence[SolverRun]) -> float:
    if exact is not None:
        return exact.objective
    return min((run.last.objective for run in runs if run.last is not None), default=float("nan"))


def _when(run: SolverRun, against: str, figure: str, goal: float) -> float | None:
    """The effort or time (`against`) at which a figure first came down to a goal; None where it never did."""
    points = [*run.history, *([run.last] if run.last is not None else [])]
    return next((getattr(point, against) for point in points if getattr(point, figure) <= goal), None)


def _thinned(run: SolverRun) -> list[dict[str, float]]:
    """At most some hundred points of a run, by iterations evenly on a logarithmic scale; the last is always there."""
    names = ("iteration", "seconds", "column_passes", "gradient_inf_norm", "objective")
    points = [run.history[index] for index in thinned(len(run.history), MOST_POINTS)]
    if run.last is not None and run.last is not (points[-1] if points else None):
        points.append(run.last)
    return [{name: float(getattr(point, name)) for name in names} for point in points]
