"""One draw of Table 2 and Figures 1 to 3 of the GBCD paper, as plain JSON: what tables over several draws are made of.

A draw has training and test samples of its own, and its seed is the methods'. Hyperparameters are tuned on the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.solver_options import SolverOptions
from dkgp_benchmarks.papers.runs import SolverRun, Workbench, paper_contenders
from dkgp_benchmarks.papers.tables import thinned

Trials = Sequence[Document]

MOST_POINTS = 150
OBJECTIVE_SHARE = 1e-4
RMSE_SHARE = 0.01
THRESHOLDS = (1e-1, 1e-2, 1e-3, 1e-4)


def trial(bench: Workbench, options: SolverOptions) -> Document:
    """Run every method of Table 2; return all that its tables and curves show.

    Returns
    -------
    dict
        `problem` (sizes and hyperparameters), `exact` (Cholesky's figures, or None), `minimum` of the objective, and
        `runs`, each with the figures of its end, `reached` (where each threshold was), `history` and `curve`.
    """
    exact = bench.exact()
    runs = [bench.run(contender) for contender in paper_contenders(options, bench.data.n)]
    lowest = min((run.last.objective for run in runs if run.last is not None), default=float("nan"))
    minimum = lowest if exact is None else exact.objective
    goal = None if exact is None else (1.0 + RMSE_SHARE) * exact.rmse
    figures = {} if exact is None else {"seconds": exact.seconds, "rmse": exact.rmse}
    document = {
        "problem": described(bench),
        "tolerance": options.tolerance,
        "exact": figures or None,
        "minimum": minimum,
        "runs": [
            {**run.to_json(), "reached": _reached(run, minimum, goal), "history": _thinned(run), "curve": run.curve}
            for run in runs
        ],
    }
    record: Document = plain(document)
    return record


def described(bench: Workbench) -> Document:
    """Name, sizes and hyperparameters of a problem."""
    return {"name": bench.data.name, **bench.data.to_json()}


def _reached(run: SolverRun, minimum: float, goal: float | None) -> dict[str, dict[str, float | None]]:
    """The seconds and the iteration at which a run first came to each threshold; None where it never did."""
    objective = minimum + OBJECTIVE_SHARE * abs(minimum)
    reached: dict[str, dict[str, float | None]] = {}
    for against in ("seconds", "iteration"):
        times = {f"gradient_{value:g}": _when(run, against, "gradient_inf_norm", value) for value in THRESHOLDS}
        times |= {"objective": _when(run, against, "objective", objective)}
        times["last"] = None if run.last is None else float(getattr(run.last, against))
        reached[against] = times
    if goal is not None:
        reached["seconds"]["rmse"] = next((point["seconds"] for point in run.curve if point["rmse"] <= goal), None)
    return reached


def _when(run: SolverRun, against: str, figure: str, goal: float) -> float | None:
    points = [*run.history, *([run.last] if run.last is not None else [])]
    return next((float(getattr(point, against)) for point in points if getattr(point, figure) <= goal), None)


def _thinned(run: SolverRun) -> list[dict[str, Any]]:
    """At most some hundred points of a run, by iterations evenly on a logarithmic scale; the last is always there."""
    names = ("iteration", "seconds", "column_passes", "gradient_inf_norm", "objective")
    points = [run.history[index] for index in thinned(len(run.history), MOST_POINTS)]
    if run.last is not None and run.last is not (points[-1] if points else None):
        points.append(run.last)
    return [{name: float(getattr(point, name)) for name in names} for point in points]
