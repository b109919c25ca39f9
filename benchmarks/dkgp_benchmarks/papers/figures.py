"""Figures 1 to 4 of the GBCD paper as tables and curves, over one draw of the samples or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from dkgp.bench.contenders import kernel_columns
from dkgp.commands.reporting.measurements import ENTRIES, Column, median
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.solver_options import SolverOptions
from dkgp.models import Hyperparameters
from dkgp.solvers import GradientInfNorm, MaxIterations
from dkgp.solvers.base import SolverState
from dkgp_benchmarks.papers.runs import Workbench, paper_contenders
from dkgp_benchmarks.papers.tables import draws_said, mean_of, said, section, spread_of
from dkgp_benchmarks.papers.trials import OBJECTIVE_SHARE, RMSE_SHARE, THRESHOLDS, described

FloatArray = NDArray[np.float64]

# As in section 2.3 of the paper.
CORRELATION_SAMPLES, CORRELATION_NEIGHBOURS, CORRELATION_ITERATIONS = 100, 50, 50
CORRELATION_BINS = 20
RANKS = ((1, 5), (6, 10), (11, 20), (21, 50))
# GBCD must not stop before there is something to correlate.
CORRELATION_TOLERANCE = 1e-9

CORRELATION_COLUMNS = (
    Column("system", "right-hand side", text=True),
    Column("pairs", "sample and", text=True),
    Column("count", "pairs", ",d"),
    Column("distance", "median distance", ".3f"),
    Column("mean", "mean correlation", ".3f"),
    Column("mean_spread", "+-", ".3f"),
    Column("magnitude", "mean magnitude", ".3f"),
    Column("magnitude_spread", "+-", ".3f"),
    Column("share", "above 1/2 in magnitude", ".1%"),
    Column("share_spread", "+-", ".1%"),
)
GROWTH_COLUMNS = (
    Column("n", "n", ",d"),
    Column("solver", "solver", text=True),
    Column("converged", "converged", text=True),
    Column("iteration", "iterations", ",.0f"),
    Column("column_passes", "passes", ",.2f"),
    ENTRIES,
    Column("seconds", "seconds", ",.3f"),
    Column("seconds_spread", "+-", ",.3f"),
    Column("seconds_ratio", "seconds / GBCD's", ",.2f"),
    Column("rmse", "RMSE", ".5f"),
    Column("rmse_spread", "+-", ".5f"),
)


def gradient_correlations(bench: Workbench, options: SolverOptions, seed: int) -> Document:
    """Measure Figure 1 on one draw: how the gradients of neighbours move together while GBCD works.

    For y and for k_* on the right. For comparison, pairs drawn at random stand beside the neighbours.
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
    document: Document = plain(
        {
            "problem": described(bench),
            "rows": rows,
            "edges": edges,
            "histograms": histograms,
            "iterations": iterations,
            "samples": len(samples),
            "block_size": contender.options.block_size,
        }
    )
    return document


def correlation_figure(trials: Sequence[Document]) -> Document:
    """Figure 1 from its draws: means, with their standard deviations."""
    first = trials[0]
    rows = []
    for index, row in enumerate(first["rows"]):
        trial_rows = [trial["rows"][index] for trial in trials]
        merged = {"system": row["system"], "pairs": row["pairs"], "count": sum(each["count"] for each in trial_rows)}
        for name in ("distance", "mean", "magnitude", "share"):
            values = [each.get(name) for each in trial_rows]
            merged[name], merged[f"{name}_spread"] = mean_of(values), spread_of(values)
        rows.append(merged)
    histograms: dict[str, list[int]] = {}
    for system in first["histograms"]:
        histograms[system] = np.sum([trial["histograms"][system] for trial in trials], axis=0).tolist()
    shares = {system: _shares(trials, system) for system in histograms}
    problem = first["problem"]
    document = section(
        f"figure_1:{problem['name']}",
        f"Figure 1: {problem['name']}, n = {problem['n']:,}: correlation of g_i and g_j over GBCD's first iterations"
        f"{draws_said(trials)}",
        CORRELATION_COLUMNS,
        rows,
        iterations=first["iterations"],
        samples=first["samples"],
        target=f"1 of {problem['targets']}",
        block_size=first["block_size"],
    )
    return document | {"curves": plain({"edges": first["edges"], "histograms": histograms, "shares": shares})}


def convergence_figure(trials: Sequence[Document], number: int) -> Document:
    """Figure 2 (against seconds) or 3 (against iterations): when each method came how far.

    Both are of the runs of Table 2 (`dkgp_benchmarks.papers.trials.trial`); curves are those of all draws.
    """
    first = trials[0]
    problem = first["problem"]
    against, form = ("seconds", ",.3f") if number == 2 else ("iteration", ",.0f")
    thresholds = [value for value in THRESHOLDS if value >= first["tolerance"]]
    shown = [(f"gradient_{value:g}", f"max |g| <= {value:g}") for value in thresholds]
    shown.append(("objective", f"objective to {OBJECTIVE_SHARE:g}"))
    if number == 2:
        shown.append(("rmse", f"RMSE within {RMSE_SHARE:.0%}"))
    shown.append(("last", "stopped at"))
    rows = []
    for index, run in enumerate(first["runs"]):
        row: dict[str, Any] = {"solver": run["solver"], "key": run["key"]}
        for name, _ in shown:
            values = [trial["runs"][index]["reached"][against].get(name) for trial in trials]
            row[name], row[f"{name}_spread"] = mean_of(values), spread_of(values)
        row[f"last_{against}"] = row["last"]
        rows.append(row)
    columns = [Column("solver", "solver", text=True)]
    for name, title in shown:
        columns.append(Column(name, title, form))
        if len(trials) > 1:
            columns.append(Column(f"{name}_spread", "+-", form))
    what = "seconds" if number == 2 else "iterations"
    document = section(
        f"figure_{number}:{problem['name']}",
        f"Figure {number}: {problem['name']}, n = {problem['n']:,}: {what} until each method came so far; '-' where it "
        f"never did{draws_said(trials)}",
        tuple(columns),
        rows,
        seen_by="each method's own recursion; its last point is verified in float64",
        curves="one draw, and the others faintly" if len(trials) > 1 else "one draw",
        objective_minimum=first["minimum"],
        objective_minimum_from="Cholesky" if first["exact"] is not None else "the best run",
    )
    return document | {"curves": plain({"draws": [_curves(trial, number) for trial in trials]})}


def growth_rows(bench: Workbench, options: SolverOptions) -> list[dict[str, Any]]:
    """Measure cyclic and greedy at one size of Figure 4, on one draw."""
    contenders = [
        each for each in paper_contenders(options, bench.data.n) if each.key in ("gbcd", "gbcd_default", "bcdc")
    ]
    rows: list[dict[str, Any]] = [{"n": bench.data.n, **bench.run(contender).to_json()} for contender in contenders]
    plain_rows: list[dict[str, Any]] = plain(rows)
    return plain_rows


def growth_figure(trials: Sequence[Sequence[Document]], tolerance: float, hyper: Hyperparameters) -> Document:
    """Figure 4 from the rows of its draws: seconds against n, and the exponents of n that fit them best."""
    rows: list[dict[str, Any]] = []
    for index, row in enumerate(trials[0]):
        own = [trial[index] for trial in trials]
        mean: dict[str, Any] = {name: row[name] for name in ("n", "solver", "key", "settings") if name in row}
        mean["converged"] = all(each["converged"] for each in own)
        for name in ("iteration", "column_passes", "entries", "seconds", "rmse"):
            values = [each.get(name) for each in own]
            mean[name], mean[f"{name}_spread"] = mean_of(values), spread_of(values)
        mean["seconds_ratio"] = _to_gbcd(trials, index)
        rows.append(mean)
    exponents = {}
    for solver in dict.fromkeys(row["solver"] for row in rows):
        points = [(row["n"], row["seconds"]) for row in rows if row["solver"] == solver and row["converged"]]
        if len({n for n, _ in points}) > 1:
            logs = np.log(np.asarray(points))
            exponents[solver] = round(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]), 3)
    draws = f", mean of {len(trials)} draws" if len(trials) > 1 else ""
    title = f"Figure 4: Friedman1, d = {hyper.n_features}: training time against n, to max |g| <= {tolerance:g}{draws}"
    figures = {"seconds_grow_as_n_to_the": exponents, "gaussian_process": said(hyper)}
    return section("figure_4", title, GROWTH_COLUMNS, rows, **figures)


def _to_gbcd(trials: Sequence[Sequence[Document]], index: int) -> float | None:
    """The median over draws of a run's seconds over those of GBCD as in the paper, at the same size."""
    ratios = []
    for trial in trials:
        run = trial[index]
        gbcd = next((row for row in trial if (row["n"], row.get("key")) == (run["n"], "gbcd")), None)
        if gbcd is None or not (run["converged"] and gbcd["converged"]):
            return None
        ratios.append(run["seconds"] / gbcd["seconds"])
    return median(ratios)


def _curves(trial: Document, number: int) -> Document:
    runs = {
        run["solver"]: {"history": run["history"], "test": run["curve"] if number == 2 else []} for run in trial["runs"]
    }
    rmse = None if trial["exact"] is None else trial["exact"]["rmse"]
    return {"runs": runs, "minimum": trial["minimum"], "rmse": rmse, "tolerance": trial["tolerance"]}


def _shares(trials: Sequence[Document], system: str) -> list[list[float]]:
    """The histogram of each draw as shares of its pairs: (draws, bins)."""
    counts = np.asarray([trial["histograms"][system] for trial in trials], dtype=np.float64)
    shares: list[list[float]] = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)).tolist()
    return shares


def _neighbours(inputs: FloatArray, samples: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], FloatArray]:
    """Nearest others of each sample, in order, by Euclidean distance of the standardised inputs."""
    away = cdist(inputs[samples], inputs)
    away[np.arange(len(samples)), samples] = np.inf
    nearest = np.argsort(away, axis=1, kind="stable")[:, :count]
    return nearest, np.take_along_axis(away, nearest, axis=1)


def _correlations(tracks: FloatArray, samples: NDArray[np.int64], others: NDArray[np.int64]) -> FloatArray:
    """Correlation over the iterations of each sample's gradient with each of its others': (samples, others)."""
    centred = tracks - tracks.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    products = np.einsum("ts,tso->so", centred[:, samples], centred[:, others])
    scale = norms[samples][:, None] * norms[others]
    correlations = np.divide(products, scale, out=np.full_like(products, np.nan), where=scale > 0.0)
    correlations[others == samples[:, None]] = np.nan
    return np.asarray(np.clip(correlations, -1.0, 1.0))


def _summary(correlations: FloatArray, distances: FloatArray) -> dict[str, Any]:
    is_finite = np.isfinite(correlations)
    if not is_finite.any():
        return {"count": 0}
    values = correlations[is_finite]
    return {
        "count": int(is_finite.sum()),
        "distance": float(np.median(distances[is_finite])),
        "mean": float(values.mean()),
        "magnitude": float(np.abs(values).mean()),
        "share": float(np.mean(np.abs(values) > 0.5)),
    }
