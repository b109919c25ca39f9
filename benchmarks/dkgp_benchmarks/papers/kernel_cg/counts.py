"""Table 2 of the kernel CG paper: iterations to convergence of kernel CG and of parameter CG, both losses.

What it prints is cut off in the text that can be had, but for the mean: kernel CG is 54 times faster over its data
sets. Hyperparameters are chosen on a hold-out set, as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dkgp.commands.reporting.measurements import Column
from dkgp.commands.reporting.outputs import Document
from dkgp.commands.reporting.progress import Reporter
from dkgp.operators import DenseKernelOperator
from dkgp.solvers.stopping import DualityGap
from dkgp_benchmarks.classify.problems import PROBLEMS
from dkgp_benchmarks.papers.kernel_cg.hold_out import held_out
from dkgp_benchmarks.papers.tables import section
from dkgp_benchmarks.risk.job import compared
from dkgp_benchmarks.risk.problems import read_problem
from dkgp_benchmarks.risk.runs import LOSSES, RiskWithin, iterations_to, minimise

# The paper's only number.
MEAN_FACTOR = 54.0
# Smola and Bartlett's criterion, and how near the least risk "the same performance" is.
GAP, SHARE = 0.025, 1e-3
# Every set of two classes here; generated ones where there is no folder.
PROBLEM_NAMES = (
    "banana", "ripley", "titanic", "heart", "german", "diabetis", "thyroid", "ringnorm", "twonorm", "magic", "adult",
    "usps-4",
)  # fmt: skip
GENERATED = ("made-twonorm", "made-ringnorm")

COLUMNS = (
    Column("problem", "problem", text=True),
    Column("loss", "loss", text=True),
    Column("n", "n", ",d"),
    Column("gamma", "gamma", ".3g"),
    Column("regularisation", "lambda", "g"),
    Column("kcg", "kernel CG", ",d"),
    Column("paramcg_shown", "parameter CG", text=True),
    Column("times_shown", "times fewer", text=True),
    Column("factor_shown", "/ root", text=True),
    Column("same_kcg", "to the same risk", ",d"),
    Column("same_paramcg_shown", "parameter CG", text=True),
    Column("same_times_shown", "times fewer", text=True),
    Column("same_factor_shown", "/ root", text=True),
)


def counted_problems(folder: Path | None) -> tuple[str, ...]:
    """Problems that are here, else the generated ones."""
    names = [name for name in PROBLEM_NAMES if folder is not None and (folder / f"{PROBLEMS[name].file}.npz").is_file()]
    return tuple(names) or GENERATED


def count_row(
    name: str,
    loss: str,
    folder: Path | None,
    *,
    n: int,
    max_iterations: int,
    max_seconds: float,
    seed: int,
    reporter: Reporter,
) -> dict[str, Any]:
    """Iterations of both to the gap, and to the same risk; bounds where parameter CG was cut off.

    Parameters
    ----------
    name, loss : str
    n : int
        Training samples at most.
    max_iterations, max_seconds : int and float
        Where a run is cut off.
    """
    read = read_problem(name, folder, n, seed)
    problem, regularisation, held_out_loss = held_out(read, LOSSES[loss], seed)
    operator = DenseKernelOperator(problem.found, 1.0, problem.inputs, compiled=True)
    given = operator, problem.targets, LOSSES[loss], regularisation
    limits: dict[str, Any] = {"max_iterations": max_iterations, "max_seconds": max_seconds}
    label = f"{name}, {loss}"
    near = minimise(*given, "kcg", reporter, gap=0.01 * SHARE, label=f"{label}: kernel CG", **limits)
    least = max(near.least[1], float(near.bound.max(initial=-math.inf)))
    far = minimise(
        *given, "paramcg", reporter, gap=GAP, stopping=RiskWithin(least, SHARE) & DualityGap(GAP),
        label=f"{label}: parameter CG", **limits,
    )  # fmt: skip
    row: dict[str, Any] = {"problem": name, "loss": loss, "n": problem.n, "regularisation": regularisation}
    # The paper's kernel, which is a squared exponential.
    row |= {"gamma": float(problem.found.feature_gamma[0]), "held_out_loss": held_out_loss}  # type: ignore[attr-defined]
    row |= compared(*(iterations_to(run, run.gap <= GAP) for run in (near, far)), cut_off=far.iterations)
    same = (iterations_to(run, run.risk <= least * (1.0 + SHARE)) for run in (near, far))
    row |= {f"same_{key}": value for key, value in compared(*same, cut_off=far.iterations).items()}
    return row | {"reason": far.reason}


def counts_section(rows: Sequence[dict[str, Any]]) -> Document:
    """The table, the mean factor beside the paper's."""
    figures: dict[str, Any] = {}
    for key, words in (("", "to the gap"), ("same_", "to the same risk")):
        times = [row[f"{key}times"] for row in rows if row[f"{key}times"] is not None]
        late = sum(row[f"{key}cut_off"] for row in rows)
        factors = [row[f"{key}factor"] for row in rows if row[f"{key}factor"] is not None and not row[f"{key}cut_off"]]
        name = words.replace(" ", "_")
        figures |= {
            f"mean_times_fewer_{name}": _said(float(np.mean(times)), late) if times else None,
            f"median_times_fewer_{name}": _said(float(np.median(times)), late) if times else None,
            f"cut_off_{name}": f"{late} of {len(rows)}",
            f"largest_of_kernel_cg_over_the_root_{name}": max(factors, default=None),
        }
    return section(
        "table_kcg",
        f"Kernel CG paper, Table 2: iterations to a relative duality gap of {GAP:g}, and to within {SHARE:g} of the "
        "least risk",
        COLUMNS,
        list(rows),
        paper_mean_times_fewer=MEAN_FACTOR,
        **figures,
        hyperparameters="on a hold-out set, as in the paper, for each loss",
        compared_by="parameter CG's gradient is K g, so that g itself, and with it the gap, may stay out of its reach "
        "where K is nearly singular: beside it stand iterations to the same risk",
    )


def _said(value: float, late: int) -> str:
    return f"> {value:,.1f}" if late else f"{value:,.1f}"
