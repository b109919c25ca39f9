"""Figures 9 and 10 of the pursuit paper: test error by cardinality, of SCDP and of 50 draws of SCDPP, tuned once.

SCDPP looks at 59 random candidates a step. The paper shows its outliers on ringnorm and titanic, and does not say how
the intercept, column M + 1 of (29), is chosen. Where it must be drawn among the candidates like a prototype, models go
without one for many steps: these are the boxes of "intercept drawn". Where it comes first, there are no outliers;
beside that stand the boxes of three times as many candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dkgp.bench.classify.problems import problem_names
from dkgp.bench.pursuit.tuned import Drawing, TunedProblem, path_errors, system_of, tuned
from dkgp.cluster.executors.base import BlockExecutor
from dkgp.commands.reporting.measurements import Column, report
from dkgp.models.classification.fixed_size.paths import Path, candidate_draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "front_problems", "fronts"]

# Data sets of each figure, as the paper has them and as far as they are here; those generated stand in for none.
FIGURES = {
    9: ("banana", "diabetis", "german", "heart"),
    10: ("ringnorm", "thyroid", "titanic", "twonorm"),
}
STAND_INS = {9: ("made-twonorm",), 10: ("made-ringnorm",)}
CARDINALITIES = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28, 40, 60, 90)
# Name, candidates of a step, and how the intercept is chosen.
VARIANTS = (("59", 59, "first"), ("177", 177, "first"), ("59, intercept drawn", 59, "selected"))
COLUMNS = (
    Column("problem", "data", text=True),
    Column("variant", "candidates", text=True),
    Column("cardinality", "prototypes", ",d"),
    Column("scdp", "SCDP, %", ".2f"),
    Column("lower", "lower quartile", ".2f"),
    Column("median", "median", ".2f"),
    Column("upper", "upper quartile", ".2f"),
    Column("worst", "worst", ".2f"),
)


def front_problems(figure: int, folder: File | None) -> list[str]:
    """Problems of a figure that are here; a generated one where none is."""
    here = set(problem_names(folder, 3))
    return [name for name in FIGURES[figure] if name in here] or list(STAND_INS[figure])


def fronts(
    figure: int,
    folder: File | None,
    executor: BlockExecutor,
    *,
    seed: int = 0,
    repeats: int = 50,
    problems: Sequence[str] = (),
) -> Drawing:
    """Test error by cardinality, of SCDP and of `repeats` draws of SCDPP.

    Parameters
    ----------
    figure : {9, 10}
    folder : path, optional
        Of .npz files.
    executor : BlockExecutor
    seed : int
    repeats : int
        Of SCDPP.
    problems : sequence of str
        In place of the figure's own.
    """
    names = list(problems) or front_problems(figure, folder)
    found = {name: _front(tuned(name, folder, executor, seed=seed), executor, seed, repeats) for name in names}
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    for name, front in found.items():
        best = front["cardinalities"][int(np.argmin(front["scdp"]))]
        figures[f"{name}_best"] = {"cardinality": best, "error": float(np.min(front["scdp"]))}
        for variant, errors in front["draws"].items():
            rows += [
                {"problem": name, "variant": variant, "cardinality": k, "scdp": float(exact), **_box(own)}
                for k, exact, own in zip(front["cardinalities"], front["scdp"], errors.T, strict=True)
            ]
            place = front["cardinalities"].index(best)
            outlying = errors[:, place] > front["scdp"][place] + OUTLYING
            figures[f"{name}_outliers: {variant}"] = float(np.mean(outlying))
    document = report(
        "pursuit",
        f"Figure {figure}: test error by cardinality, SCDP and {repeats} draws of SCDPP",
        COLUMNS,
        rows,
        figures,
        figure=figure,
        seed=seed,
        repeats=repeats,
        outlying_percent=OUTLYING,
    )
    across = min(2, len(names))
    down = -(-len(names) // across)

    def draw(canvas: Figure) -> None:
        panels = canvas.subplots(down, across, squeeze=False).reshape(-1)
        for panel, (name, front) in zip(panels, found.items(), strict=False):
            _panel(panel, name, front)
        for panel in panels[len(found) :]:
            panel.set_visible(False)

    return Drawing(document, draw, 6.5 * across, 4.2 * down + 0.4)


# Per cent beyond SCDP's error at its best cardinality: a draw with another kind of performance.
OUTLYING = 5.0


def _front(problem: TunedProblem, executor: BlockExecutor, seed: int, repeats: int) -> dict[str, Any]:
    _, first = np.unique(problem.inputs, axis=0, return_index=True)
    prototypes = problem.inputs[np.sort(first)]
    system = system_of(problem, prototypes, executor)
    most = min(max(CARDINALITIES), len(prototypes))

    def errors(path: Path, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        path.advance(most)
        # A path that ended before stays what it is.
        return 100.0 * np.asarray(path_errors(path, columns, problem.test_codes, cardinalities))

    exact = Path(system, problem.noise_variance)
    exact.advance(most)
    cardinalities = [k for k in CARDINALITIES if k <= exact.count] or [exact.count]
    draws = {}
    for variant, candidates, intercept in VARIANTS:
        if candidates >= len(problem.inputs):
            continue
        # As the paper's: all samples, duplicates among them, and the intercept's column after them.
        pool = problem.inputs if intercept == "selected" else prototypes
        own = system if intercept == "first" else system_of(problem, pool, executor, intercept=intercept)
        columns = problem.kernel(problem.test_inputs, pool)
        # As many candidates as prototypes: SCDPP is SCDP, once.
        chosen = [candidate_draws(own.size, most, candidates, seed + repeat) for repeat in range(repeats)]
        paths = [Path(own, problem.noise_variance, None, some) for some in chosen]
        draws[variant] = np.stack([errors(path, columns) for path in paths])
    return {
        "cardinalities": cardinalities,
        "scdp": errors(exact, problem.kernel(problem.test_inputs, prototypes)),
        "draws": draws,
    }


def _box(errors: NDArray[np.float64]) -> dict[str, float]:
    names = ("lower", "median", "upper", "worst")
    return dict(zip(names, (float(value) for value in np.quantile(errors, (0.25, 0.5, 0.75, 1.0))), strict=True))


def _panel(panel: Axes, name: str, front: dict[str, Any]) -> None:
    places = np.arange(len(front["cardinalities"]), dtype=np.float64)
    width = 0.8 / len(front["draws"])
    for number, (variant, errors) in enumerate(front["draws"].items()):
        colour = f"C{number}"
        offset = (number - 0.5 * (len(front["draws"]) - 1)) * width
        line = {"color": colour}
        panel.boxplot(
            errors,
            positions=places + offset,
            widths=0.8 * width,
            manage_ticks=False,
            boxprops=line,
            whiskerprops=line,
            capprops=line,
            medianprops=line,
            flierprops={"marker": "+", "markeredgecolor": colour, "markersize": 4},
        )
        panel.plot(
            [], [], color=colour, label=f"SCDPP, {variant} candidates" if variant.isdigit() else f"SCDPP, {variant}"
        )
    panel.plot(places, front["scdp"], "k:", marker=".", label="SCDP")
    panel.set_xticks(places, labels=[str(k) for k in front["cardinalities"]])
    panel.set(title=name, xlabel="prototypes", ylabel="test error, %")
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter("{x:g}")
    panel.grid(alpha=0.3, axis="y", which="both")
    panel.legend(fontsize="small")
