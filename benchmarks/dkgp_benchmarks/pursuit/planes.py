"""Figures 3 and 4: directions in the plane, and how near each method's path comes to the best subsets there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dkgp.cluster.threads import single_threaded_blas
from dkgp.commands.reporting.progress import Reporter
from dkgp.errors import InputError
from dkgp.operators.base import FloatArray
from dkgp.progress import Progress
from dkgp.solvers.greedy_basis import BorderedFactor
from dkgp.solvers.pursuit.engine import PursuitSettings, pursue
from dkgp.solvers.pursuit.rivals import homotopy
from dkgp.solvers.pursuit.systems import PursuitSystem, as_system, right_hand_sides
from dkgp_benchmarks.pursuit.job import BenchPursuitJob, PaperFigure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Figure 3: a system whose ellipses are four times as long as wide, and turned.
PLANE = np.array([[3.0, 1.5], [1.5, 1.0]])
PLANE_RIGHT = np.array([2.6, 0.9])
STEEPEST_TOLERANCE = 1e-2
# Figure 4, as the paper has it.
ROWS, COLUMNS, RIDGE, DRAWS = 20, 15, 1e-9, 100
# Regressors that are the same in all of a run's subsets.
FIXED = 6


def figure_3(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure:
    """Steepest descent, conjugate gradients and conjugate directions in the plane."""
    paths = {
        "steepest descent": _descent(PLANE, PLANE_RIGHT, conjugate=False),
        "conjugate gradient": _descent(PLANE, PLANE_RIGHT, conjugate=True),
        "SCDP": _pursued(PLANE, PLANE_RIGHT),
    }
    solution = np.linalg.solve(PLANE, PLANE_RIGHT)
    rows = [
        {
            "data": "2 x 2",
            "method": name,
            "what": f"steps to |w - w*| <= {STEEPEST_TOLERANCE:g} |w*|",
            "value": len(path) - 1,
            "paper": {"steepest descent": "9", "conjugate gradient": "2", "SCDP": "2"}[name],
        }
        for name, path in paths.items()
    ]
    figures = {f"{row['method']} steps": row["value"] for row in rows}
    figures["first direction of SCDP has nonzero numbers"] = int(np.count_nonzero(paths["SCDP"][1]))
    curves = {name: path.tolist() for name, path in paths.items()}

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        span = 1.25 * np.abs(solution).max() + 0.2
        one, other = np.meshgrid(np.linspace(-0.4, span, 200), np.linspace(-span, 0.6, 200))
        w = np.stack([one, other])
        heights = 0.5 * np.einsum("iab,ij,jab->ab", w, PLANE, w) - np.einsum("i,iab->ab", PLANE_RIGHT, w)
        panel.contour(one, other, heights, 24, colors="0.8", linewidths=0.8)
        styles = {"steepest descent": ":o", "conjugate gradient": "--s", "SCDP": "-^"}
        for name, path in paths.items():
            panel.plot(path[:, 0], path[:, 1], styles[name], label=name, markersize=4)
        panel.plot(*solution, "k*", markersize=11)
        panel.set(xlabel="$w_1$", ylabel="$w_2$")
        panel.legend()

    title = "two steps of conjugate directions, the first along one axis"
    return PaperFigure(title, rows, figures, curves, draw, width=6.0, height=5.0)


def _descent(A: FloatArray, b: FloatArray, conjugate: bool) -> FloatArray:
    """Points of steepest descent or conjugate gradients, with exact steps, until they are near the solution."""
    solution, points = np.linalg.solve(A, b), [np.zeros(len(b))]
    direction = residual = b - A @ points[0]
    while np.linalg.norm(points[-1] - solution) > STEEPEST_TOLERANCE * np.linalg.norm(solution):
        eta = (residual @ direction) / (direction @ A @ direction)
        points.append(points[-1] + eta * direction)
        new = b - A @ points[-1]
        direction = new + (new @ new) / (residual @ residual) * direction if conjugate else new
        residual = new
    return np.asarray(points)


def _pursued(A: FloatArray, b: FloatArray) -> FloatArray:
    path = pursue(A, b)
    return np.asarray([path.solution(k)[:, 0] for k in range(len(path) + 1)])


def figure_4(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure:
    """Squared error by cardinality of SCDP and the LASSO beside that of the best subset of all."""
    draws = job.repeats(DRAWS, DRAWS)
    names = ("Pareto front", "SCDP", "LASSO", "LASSO, de-biased", "OLS")
    errors = {name: np.empty((draws, COLUMNS + 1)) for name in names}
    with reporter.work("figure 4: best subsets") as show:
        for number in range(draws):
            generator = np.random.default_rng([job.seed, 4, number])
            X, y = generator.standard_normal((ROWS, COLUMNS)), generator.standard_normal(ROWS)
            for name, values in _errors(X, y).items():
                errors[name][number] = values
            show(Progress("draws", number + 1, draws, "draws"))
    means = {name: values.mean(axis=0) for name, values in errors.items()}
    rows: list[dict[str, Any]] = []
    for name in names[1:]:
        above = (errors[name] / errors["Pareto front"])[:, 1:COLUMNS]
        rows.append(
            {
                "data": f"{ROWS} x {COLUMNS}, {draws} draws",
                "method": name,
                "what": "error over the front's, mean over cardinalities",
                "value": float(above.mean()),
                "spread": float(above.mean(axis=1).std(ddof=1)) if draws > 1 else None,
                "paper": "nearest" if name == "SCDP" else "",
            }
        )
    inner = slice(1, COLUMNS)
    nearest = all(
        bool(np.all(means["SCDP"][inner] <= means[name][inner] * (1.0 + 1e-9)))
        for name in ("LASSO", "LASSO, de-biased")
    )
    figures = {
        "SCDP nearest to the front at every cardinality, on average": "yes" if nearest else "no",
        "front reached by SCDP, share": float(
            np.mean(errors["SCDP"][:, inner] <= errors["Pareto front"][:, inner] * (1.0 + 1e-9))
        ),
    }
    curves = {name: values.tolist() for name, values in means.items()}

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        styles = dict(zip(names, ("k-", "o-", "s--", "d--", "x:"), strict=True))
        for name, values in means.items():
            panel.plot(range(COLUMNS + 1), values / ROWS, styles[name], label=name, markersize=4)
        panel.set(xlabel="nonzero numbers of w", ylabel="mean squared error")
        panel.grid(alpha=0.3)
        panel.legend()

    title = f"squared error by cardinality, mean of {draws} systems of {ROWS} x {COLUMNS}"
    remarks = [
        "Of several LASSO solutions of a cardinality the best is taken, as in the paper. OLS, by refitting, is ours."
    ]
    return PaperFigure(title, rows, figures, curves, draw, width=7.0, height=5.0, remarks=remarks)


def _errors(X: FloatArray, y: FloatArray) -> dict[str, FloatArray]:
    """Squared errors by cardinality 0, ..., D of one system; of (X'X + RIDGE I) w = X'y."""
    d = X.shape[1]
    A, b = X.T @ X + RIDGE * np.eye(d), X.T @ y

    def error(w: FloatArray) -> float:
        return float(np.sum((X @ w - y) ** 2))

    def pursued(**settings: Any) -> FloatArray:
        path = pursue(A, b, PursuitSettings(**settings))
        return np.asarray([error(path.solution(min(k, len(path)))[:, 0]) for k in range(d + 1)])

    lasso, mended = np.full(d + 1, np.inf), np.full(d + 1, np.inf)
    path = homotopy(A, b)
    for number, at in enumerate(path):
        S = at.support[at.weights != 0.0]
        lasso[len(S)] = min(lasso[len(S)], error(path.solution(number)))
        w = np.zeros(d)
        w[S] = debiased(A, b, S)[:, 0]
        mended[len(S)] = min(mended[len(S)], error(w))
    for values in (lasso, mended):  # a cardinality that the path leaps over: the next smaller one's
        np.minimum.accumulate(values, out=values)
    return {
        "Pareto front": best_subsets(A, b, float(y @ y)),
        "SCDP": pursued(),
        "LASSO": lasso,
        "LASSO, de-biased": mended,
        "OLS": pursued(score="refit"),
    }


def best_subsets(A: FloatArray, b: FloatArray, square: float) -> FloatArray:
    """Least y'y - b_S'A_SS^-1 b_S over all S of each cardinality 0, ..., D: (D + 1,).

    All 2^D subsets in the order of a Gray code, each one regressor apart from the one before: a sweep of the bordered
    matrix [[A, b], [b', y'y]] brings one in, or takes it out again. A few regressors are fixed in a run; runs go side
    by side, and each begins with the matrix as it was given, so that rounding does not grow with the number of subsets.
    """
    d = len(b)
    bordered = np.empty((d + 1, d + 1))
    bordered[:d, :d], bordered[:d, d], bordered[d, :d], bordered[d, d] = A, b, b, square
    inner = max(0, d - FIXED)
    runs = 2 ** (d - inner)
    tables, sizes = np.repeat(bordered[None], runs, axis=0), np.zeros(runs, dtype=np.intp)
    for index in range(inner, d):
        inside = (np.arange(runs) >> (index - inner) & 1).astype(bool)
        tables[inside] = _swept(tables[inside], index, enter=True)
        sizes += inside
    least, member = np.full(d + 1, np.inf), np.zeros(inner, dtype=bool)
    np.minimum.at(least, sizes, tables[:, d, d])
    for count in range(1, 2**inner):
        index = (count & -count).bit_length() - 1
        tables = _swept(tables, index, enter=not member[index])
        member[index] = not member[index]
        np.minimum.at(least, sizes + int(member.sum()), tables[:, d, d])
    return np.asarray(np.maximum(least, 0.0))


def _swept(tables: FloatArray, index: int, *, enter: bool) -> FloatArray:
    """Symmetric matrices with one row and column swept in, or out again."""
    lines = tables[:, index].copy()
    pivots = lines[:, index].copy()
    shares = lines / pivots[:, None]
    swept = tables - lines[:, :, None] * shares[:, None, :]
    swept[:, index] = swept[:, :, index] = shares if enter else -shares
    swept[:, index, index] = -1.0 / pivots
    return swept


def debiased(system: PursuitSystem | ArrayLike, rhs: ArrayLike, support: ArrayLike) -> FloatArray:
    """Least squares on a support: w of A_SS w = b_S in the support's order, zero of regressors in the others' span.

    - `system`, `rhs`: as of `pursue`.
    - `support` (k,): S, distinct.

    Raises `InputError`: the support names a regressor that there is not.
    """
    system, S = as_system(system), np.asarray(support, dtype=np.intp)
    if (wrong := S[(S < 0) | (system.size <= S)]).size:
        raise InputError(f"a support names regressors from 0 to {system.size - 1:,}; got {wrong[0]}")
    b = system.project(right_hand_sides(rhs))
    weights = np.zeros((len(S), b.shape[1]))
    if not len(S):
        return weights
    factor = BorderedFactor(len(S), b.shape[1])
    with single_threaded_blas():
        inner = system.columns(S)[S]
        kept = factor.append(np.zeros((0, len(S))), inner, b[S])
        weights[kept] = factor.solution()
    return weights
