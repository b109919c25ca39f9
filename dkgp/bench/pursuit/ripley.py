"""Figures 7 and 8 of the pursuit paper, on Ripley's problem: how many prototypes are enough, and where they lie."""

from __future__ import annotations

from pathlib import Path as File
from typing import TYPE_CHECKING, Any

import numpy as np

from dkgp.bench.pursuit.tuned import Drawing, TunedProblem, path_errors, system_of, tuned
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.measurements import Column, report
from dkgp.models.classification.fixed_size.paths import Draws, Path
from dkgp.models.classification.labels import stratified_folds
from dkgp.models.classification.prototypes import choose_prototypes
from dkgp.operators import BlockedKernelOperator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure_7", "figure_8"]

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 80)
FOLDS, GRID = 10, 200


def figure_7(folder: File | None, executor: BlockExecutor, *, seed: int = 0, repeats: int = 10) -> Drawing:
    """Cross-validated error against the number of k-centre prototypes, all of which the model takes.

    Parameters
    ----------
    folder : path, optional
        With ripley.npz; drawn anew without.
    executor : BlockExecutor
    seed : int
    repeats : int
        Choices of prototypes, each from another first one; boxes are over these and the folds.
    """
    problem = tuned("ripley", folder, executor, seed=seed)
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
                held = folds == fold
                found.append(path_errors(path, columns[held], problem.labels.codes[held], SIZES))
    errors = 100.0 * np.asarray(found)  # (repeats * folds, sizes)
    rows = [
        {
            "prototypes": size,
            "mean": float(errors[:, column].mean()),
            **dict(zip(("lower", "median", "upper"), np.quantile(errors[:, column], (0.25, 0.5, 0.75)), strict=True)),
        }
        for column, size in enumerate(SIZES)
    ]
    means, spread = errors.mean(axis=0), errors.std(axis=0, ddof=1)
    best = int(np.argmin(means))
    enough = SIZES[int(np.argmax(means <= means[best] + 0.1 * spread[best]))]
    columns_shown = (
        Column("prototypes", "prototypes", ",d"),
        Column("mean", "mean, %", ".2f"),
        Column("lower", "lower quartile", ".2f"),
        Column("median", "median", ".2f"),
        Column("upper", "upper quartile", ".2f"),
    )
    document = report(
        "pursuit",
        "Figure 7: cross-validated error against the number of prototypes, ripley",
        columns_shown,
        rows,
        {"enough": enough, "paper": 11, "mean_at_enough": float(means[SIZES.index(enough)])},
        figure=7,
        seed=seed,
        repeats=repeats,
        **_tuned_to(problem),
    )

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
        panel.boxplot(errors, whis=(0, 100), medianprops={"color": "C3"})
        panel.set_xticks(np.arange(1, len(SIZES) + 1), labels=[str(size) for size in SIZES])
        panel.axvline(SIZES.index(enough) + 1, color="grey", linestyle="--", linewidth=1, label=f"{enough} are enough")
        panel.set(xlabel="prototypes", ylabel=f"{FOLDS}-fold cross-validated error, %")
        panel.legend()
        panel.grid(alpha=0.3, axis="y")

    return Drawing(document, draw)


def figure_8(folder: File | None, executor: BlockExecutor, *, seed: int = 0) -> Drawing:
    """The boundary of the tuned sparse model, and its prototypes."""
    problem = tuned("ripley", folder, executor, seed=seed)
    model = problem.trained.model
    rows = [
        {"prototype": number, "x1": point[0], "x2": point[1], "weight": weight}
        for number, (point, weight) in enumerate(zip(_raw(problem, model.prototypes), model.weights[:, 0], strict=True))
    ]
    document = report(
        "pursuit",
        "Figure 8: boundary and prototypes of the sparse model, ripley",
        (
            Column("prototype", "prototype", ",d"),
            Column("x1", "x1", ".3f"),
            Column("x2", "x2", ".3f"),
            Column("weight", "weight", ".4g"),
        ),
        rows,
        {"prototypes": len(rows), "test_error": 100.0 * problem.test_error, "intercept": float(model.intercept[0])},
        figure=8,
        seed=seed,
        **_tuned_to(problem),
    )

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
            own = points[problem.labels.codes == code]
            panel.scatter(
                own[:, 0],
                own[:, 1],
                color=colour,
                marker=marker,
                s=20,
                linewidths=1,
                label=problem.labels.classes[code],
            )
        chosen = _raw(problem, model.prototypes)
        circle: dict[str, Any] = {"facecolors": "none", "edgecolors": "black", "linewidths": 1.5}
        panel.scatter(chosen[:, 0], chosen[:, 1], s=110, label="prototypes", **circle)
        panel.set(
            xlabel="x1", ylabel="x2", title=f"{len(chosen)} prototypes, test error {100 * problem.test_error:.1f} %"
        )
        panel.legend(loc="lower right", fontsize="small")

    return Drawing(document, draw, 7.0, 6.0)


def _raw(problem: TunedProblem, inputs: Any) -> Any:
    """Inputs as they came."""
    standardisation = problem.dataset.standardisation
    return np.asarray(inputs) * standardisation.input_std + standardisation.input_mean


def _tuned_to(problem: TunedProblem) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "n": problem.dataset.n_samples,
        "kernel": problem.kernel.to_json(),
        "noise_variance": problem.noise_variance,
    }
