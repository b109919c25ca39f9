"""Figures 7 and 8 of the pursuit paper, on Ripley's problem: how many prototypes are enough, and where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.progress import Reporter
from dkgp.models.classification.fixed_size.paths import Draws, Path
from dkgp.models.classification.labels import stratified_folds
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.operators import BlockedKernelOperator
from dkgp_benchmarks.pursuit.job import BenchPursuitJob, PaperFigure
from dkgp_benchmarks.pursuit.tuned import TunedProblem, folder_of, path_errors, system_of, tuned, working

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 11, 13, 15, 20, 25, 30, 40, 60)
PAPER = 11
FOLDS, GRID = 10, 200
WHAT = "cross-validated error, %"


def figure_7(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure:
    """Cross-validated error against the number of k-centre prototypes, all of which the model takes.

    Boxes are over the folds and over choices of prototypes, each from another first one. Without ripley.npz the problem
    is drawn anew.
    """
    with working() as executor:
        return _figure_7(job, executor)


def _figure_7(job: BenchPursuitJob, executor: BlockExecutor) -> PaperFigure:
    seed, repeats = job.seed, job.repeats(10, 10)
    problem = tuned("ripley", folder_of(job), executor, seed=seed)
    folds = stratified_folds(problem.labels, FOLDS, seed)
    found: list[list[float]] = []  # by repeat and fold
    with BlockedKernelOperator(problem.kernel, 1.0, problem.dataset, executor) as operator:
        for repeat in range(repeats):
            _, prototypes = choose_prototypes("k-centre", operator, max(SIZES), seed + repeat)
            system = system_of(problem, prototypes, executor, folds)
            # One candidate a step: the order is that of the traversal.
            draws = Draws(np.arange(len(prototypes), dtype=np.int32)[None], 1)
            columns = problem.kernel(problem.inputs, prototypes)
            for fold in range(FOLDS):
                path = Path(system, problem.noise_variance, fold, draws)
                path.advance(len(prototypes))
                test = folds == fold
                found.append(path_errors(path, columns[test], problem.labels.codes[test], SIZES))
    errors = 100.0 * np.asarray(found)  # (repeats * folds, sizes)
    means, spread = errors.mean(axis=0), errors.std(axis=0, ddof=1)
    best = int(np.argmin(means))
    enough = SIZES[int(np.argmax(means <= means[best] + 0.1 * spread[best]))]
    quartiles = np.quantile(errors, (0.25, 0.5, 0.75), axis=0)
    rows = [
        {
            "data": problem.name,
            "method": f"{size} prototype{'s' if size > 1 else ''}",
            "what": WHAT,
            "value": means[place],
            "spread": spread[place],
        }
        for place, size in enumerate(SIZES)
    ]
    curves = {
        "prototypes": list(SIZES),
        "mean": means.tolist(),
        **dict(zip(("lower", "median", "upper"), quartiles.tolist(), strict=True)),
        **problem.parameters,
        "repeats": repeats,
    }
    figures = {"prototypes that are enough": enough, "error with these, %": float(means[SIZES.index(enough)])}
    if PAPER in SIZES:
        rows[SIZES.index(PAPER)]["paper"] = "enough"

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        panel.boxplot(errors, whis=(0, 100), medianprops={"color": "C3"})
        panel.set_xticks(np.arange(1, len(SIZES) + 1), labels=[str(size) for size in SIZES])
        panel.axvline(SIZES.index(enough) + 1, color="grey", linestyle="--", linewidth=1, label=f"{enough} are enough")
        panel.set(xlabel="prototypes", ylabel=f"{FOLDS}-fold cross-validated error, %")
        panel.legend()
        panel.grid(alpha=0.3, axis="y")

    title = "cross-validated error against the number of prototypes, ripley"
    return PaperFigure(title, rows, figures, curves, draw, 9.0, 5.0)


def figure_8(job: BenchPursuitJob, reporter: Reporter) -> PaperFigure:
    """The boundary of the tuned sparse model, and its prototypes."""
    with working() as executor:
        problem = tuned("ripley", folder_of(job), executor, seed=job.seed)
    model = problem.trained.model
    count = len(model.prototypes)
    rows = [
        {"data": problem.name, "method": "SCDP", "what": "prototypes", "value": count},
        {"data": problem.name, "method": "SCDP", "what": "test error, %", "value": 100.0 * problem.test_error},
    ]
    curves = {
        "prototypes": _raw(problem, model.prototypes).tolist(),
        "weights": model.weights[:, 0].tolist(),
        "intercept": float(model.intercept[0]),
        **problem.parameters,
    }

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        points = _raw(problem, problem.inputs)
        low, high = points.min(axis=0) - 0.1, points.max(axis=0) + 0.1
        axes = [np.linspace(low[axis], high[axis], GRID) for axis in range(2)]
        grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
        values = model.decisions(problem.dataset.standardisation.inputs(grid)).reshape(GRID, GRID)
        panel.contourf(*axes, values, levels=[-np.inf, 0.0, np.inf], colors=["C0", "C1"], alpha=0.15)
        panel.contour(*axes, values, levels=[0.0], colors="black", linewidths=1.5)
        for code, (colour, marker) in enumerate((("C0", "x"), ("C1", "+"))):
            class_points = points[problem.labels.codes == code]
            panel.scatter(
                class_points[:, 0],
                class_points[:, 1],
                color=colour,
                marker=marker,
                s=20,
                linewidths=1,
                label=problem.labels.classes[code],
            )
        prototypes = _raw(problem, model.prototypes)
        circle: dict[str, Any] = {"facecolors": "none", "edgecolors": "black", "linewidths": 1.5}
        panel.scatter(prototypes[:, 0], prototypes[:, 1], s=110, label="prototypes", **circle)
        panel.set(
            xlabel="x1", ylabel="x2", title=f"{len(prototypes)} prototypes, test error {100 * problem.test_error:.1f} %"
        )
        panel.legend(loc="lower right", fontsize="small")

    figures = {"prototypes": count, "test error, %": 100.0 * problem.test_error}
    return PaperFigure("boundary and prototypes of the sparse model, ripley", rows, figures, curves, draw, 7.0, 6.0)


def _raw(problem: TunedProblem, inputs: Any) -> Any:
    """Inputs as they came."""
    standardisation = problem.dataset.standardisation
    return np.asarray(inputs) * standardisation.input_std + standardisation.input_mean
