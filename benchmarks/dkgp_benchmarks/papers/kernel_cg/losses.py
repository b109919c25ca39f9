"""Figure 1 of the kernel CG paper on labels: risk and its bound by iteration for kernel CG, parameter CG and gradients.

Both losses, logistic (KLR) and squared (RLS); the right-most plots, iterations of parameter CG for what kernel CG
reached after each of its own. The paper's PCG is conjugate gradients on the parameters, `paramcg` here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document, plain
from dkgp.commands.reporting.progress import Reporter
from dkgp.operators import DenseKernelOperator
from dkgp.solvers.risk import RiskSolution
from dkgp.solvers.stopping import DualityGap, StoppingRule
from dkgp_benchmarks.papers.tables import section, thinned
from dkgp_benchmarks.risk.job import compared
from dkgp_benchmarks.risk.problems import RiskProblem
from dkgp_benchmarks.risk.runs import LABELS, LOSSES, RiskRun, RiskWithin, iterations_to, minimise

FloatArray = NDArray[np.float64]

LOSS_NAMES = {"klr": "kernel logistic regression", "rls": "regularised least squares"}
# Shares of the way from the risk of f = 0 down to the least that is known, at which iterations are compared.
SHARES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
GAPS = (0.025, 1e-3, 1e-4)
MOST_POINTS = 300
# The least risk is known better than the last share, where it can be had.
REFERENCE_GAP = 1e-8

COLUMNS = (
    Column("goal", "goal", text=True),
    Column("kcg", "kernel CG", ",d"),
    Column("paramcg_shown", "parameter CG", text=True),
    Column("gradient_shown", "kernel gradient", text=True),
    Column("root_shown", "root of parameter CG's", text=True),
    Column("factor_shown", "kernel CG / that root", text=True),
    Column("holds", "within 2", text=True),
)


def loss_figure(
    problem: RiskProblem,
    loss: str,
    regularisation: float,
    *,
    max_iterations: int,
    max_seconds: float,
    reporter: Reporter,
) -> Document:
    """Run kernel CG, parameter CG and kernel gradient descent for so long; count iterations to the same risks.

    In float64, on the matrix in memory: what is compared are iterations.

    Parameters
    ----------
    problem : RiskProblem
    loss : {"klr", "rls"}
    regularisation : float
        lambda.
    max_iterations, max_seconds : int and float
        Where each is cut off.
    """
    operator = DenseKernelOperator(problem.found, 1.0, problem.inputs, compiled=True)
    limits: dict[str, Any] = {"max_iterations": max_iterations, "max_seconds": max_seconds}
    title = f"{problem.name}, {LOSS_NAMES[loss]}, lambda = {regularisation:g}"
    targets = problem.targets
    start = float(np.sum(LOSSES[loss].value(targets, np.zeros_like(targets))))

    def run(method: str, gap: float, rule: StoppingRule | None = None) -> RiskRun:
        return minimise(
            operator, targets, LOSSES[loss], regularisation, method, reporter,
            gap=gap, stopping=rule, label=f"{title}: {LABELS[method]}", **limits,
        )  # fmt: skip

    runs = {"kcg": run("kcg", REFERENCE_GAP)}
    reached = float(runs["kcg"].risk.min(initial=math.inf))
    # The others need not come as far as that, but as far as they are compared.
    share = max(SHARES[-1] * (start - reached) / reached, np.finfo(np.float64).eps) if reached > 0.0 else SHARES[-1]
    far = RiskWithin(reached, share) & DualityGap(GAPS[-1])
    runs |= {method: run(method, GAPS[-1], far) for method in ("paramcg", "gradient")}
    bound = max(float(run.bound.max(initial=-math.inf)) for run in runs.values())
    least = min(float(run.risk.min(initial=math.inf)) for run in runs.values())
    rows = [_row(f"{share:g} of the way left", share * (start - least) + least, runs) for share in SHARES]
    for gap in GAPS:
        met = {key: iterations_to(run, run.gap <= gap) for key, run in runs.items()}
        rows.append(_with_counts(f"relative gap {gap:g}", met, runs))
    judged = [row["factor"] for row in rows if row["factor"] is not None and not row["cut_off"]]
    errors = {f"{key}_test_error": _test_error(problem, run.solution) for key, run in runs.items()}
    document = section(
        f"figure_kcg-losses:{problem.name}-{loss}-{regularisation:g}",
        f"Kernel CG paper, Figure 1: {title}, n = {problem.n:,}, d = {problem.inputs.shape[1]}: iterations to a goal",
        COLUMNS,
        rows,
        theorem="kernel CG needs at most about the square root of parameter CG's iterations",
        largest_factor_where_parameter_cg_arrived=max(judged, default=None),
        risk_of_zero=start,
        least_risk_known=least,
        bound_from_below=bound,
        least_risk_is_known_to=(least - bound) / max(abs(least), abs(bound)) if math.isfinite(bound) else None,
        **{f"{key}_stopped": f"after {run.iterations:,} iterations: {run.reason}" for key, run in runs.items()},
        **errors,
        note=problem.remark,
    )
    curves = {key: _curve(run) for key, run in runs.items()}
    return document | {"curves": plain({"runs": curves, "least": least, "start": start})}


def _row(goal: str, risk: float, runs: dict[str, RiskRun]) -> dict[str, Any]:
    return _with_counts(goal, {key: iterations_to(run, run.risk <= risk) for key, run in runs.items()}, runs)


def _with_counts(goal: str, met: dict[str, int | None], runs: dict[str, RiskRun]) -> dict[str, Any]:
    row = {
        "goal": goal,
        "gradient": met["gradient"],
        **compared(met["kcg"], met["paramcg"], cut_off=runs["paramcg"].iterations),
    }
    gradient, most = met["gradient"], runs["gradient"].iterations
    row["gradient_shown"] = f"> {most:,}" if gradient is None else f"{gradient:,}"
    return row


def _test_error(problem: RiskProblem, solution: RiskSolution | None) -> float | None:
    """Share of wrong labels at the test samples."""
    if solution is None or not len(problem.test_inputs):
        return None
    values = problem.columns(problem.test_inputs, problem.inputs) @ solution.solution.alpha
    return float(np.mean(np.where(values >= 0.0, 1.0, -1.0) != problem.test_targets))


def _curve(run: RiskRun) -> dict[str, Any]:
    rows = thinned(len(run.risk), MOST_POINTS)
    bound = np.maximum.accumulate(run.bound) if len(run.bound) else run.bound
    return {
        "label": LABELS[run.method],
        "iteration": run.iteration[rows],
        "upper": run.risk[rows],
        "lower": bound[rows],
    }
