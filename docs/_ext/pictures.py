"""The site's pictures, drawn from dkgp's own results when it is built: some seconds on two cores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sphinx.application import Sphinx

from dkgp import GPRegressor
from dkgp.cluster import LocalExecutor
from dkgp.data import friedman1, memory_dataset, open_model, open_prediction
from dkgp.kernels import parse_kernel
from dkgp.models import VarianceSettings, predict, save, train
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import (
    ConjugateGradient,
    CyclicSelection,
    GradientInfNorm,
    GradientSelection,
    GreedyBlockCoordinateDescent,
    MaxPasses,
    Solver,
    solve,
)

# Legible on the light page and on the dark one.
STYLE = {
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.labelcolor": "#888888",
    "axes.prop_cycle": mpl.cycler(color=["#2f7ed8", "#e07b39", "#3a9b5c", "#9a6fb0"]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.0,
    "grid.color": "#88888844",
    "legend.frameon": False,
    "legend.labelcolor": "#888888",
    "savefig.transparent": True,
    "svg.hashsalt": "dkgp",
    "text.color": "#888888",
    "xtick.color": "#888888",
    "ytick.color": "#888888",
}


@contextmanager
def picture(path: Path, width: float = 7.0, height: float = 3.0, columns: int = 1) -> Iterator[list[Axes]]:
    """Axes side by side, written to `path` at the end."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield list(figure.subplots(1, columns, squeeze=False)[0])
        figure.savefig(path, metadata={"Date": None})


# Training samples of the demo and its peak memory in GiB, all processes; docs/reference/figures.md, November 2026.
MEASURED = ((100_000, 0.59), (1_000_000, 1.2), (3_000_000, 2.4))


def draw_landing(path: Path) -> None:
    """Sixty samples, the mean and 95 % of new observations; beside them the memory of large problems."""
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0.0, 8.0, 60))
    y = np.sin(1.5 * x) * x / 3.0 + rng.normal(0.0, 0.2, 60)
    gp = GPRegressor().fit(x[:, None], y)
    grid = np.linspace(-0.5, 10.5, 300)
    mean, std = gp.predict(grid[:, None], return_std=True)
    with picture(path, columns=2) as (ax, beside):
        ax.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, alpha=0.2, label="95 % of new observations")
        ax.plot(grid, mean, label="mean")
        ax.plot(x, y, ".", color="#888888", label="samples")
        ax.set(title="Predictions with error bars", xlabel="x", ylabel="y", ylim=(-3.5, 6.5))
        ax.legend(loc="upper left")
        beside.loglog([1e4, 4e6], [8e8 / 2**30, 8 * 16e12 / 2**30], color="C1", label="the kernel matrix, 8n² bytes")
        beside.loglog(*zip(*MEASURED, strict=True), "o-", color="C0", label="dkgp, exact model, measured")
        beside.set(title="Memory, GiB", xlabel="training samples n")
        beside.legend(loc="upper left")


def draw_convergence(path: Path) -> None:
    """The gradient over column passes, for four ways to choose what to move."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 4))
    y = np.sin(2.0 * X[:, 0]) * X[:, 1] + np.cos(X[:, 2] + X[:, 3]) + rng.normal(0.0, 0.05, 3000)
    kernel = parse_kernel("rbf(length_scale=1.2)", n_features=4)
    ways: dict[str, Solver] = {
        "greedy block coordinate descent": GreedyBlockCoordinateDescent(block_size=300),
        "steepest blocks": GreedyBlockCoordinateDescent(block_size=300, memory=0, selection=GradientSelection()),
        "cyclic blocks": GreedyBlockCoordinateDescent(block_size=300, memory=0, selection=CyclicSelection()),
        "conjugate gradients": ConjugateGradient(),
    }
    executor = LocalExecutor()
    with picture(path) as (ax,), BlockedKernelOperator(kernel, 0.003, ArrayInputs(X), executor) as operator:
        for name, solver in ways.items():
            found = solve(operator, y, solver=solver, stopping=GradientInfNorm(1e-4) | MaxPasses(30))
            passes = [record.column_passes for record in found.history]
            ax.semilogy(passes, [record.gradient_inf_norm for record in found.history], label=name)
        ax.set(xlabel="passes over the kernel matrix's columns", ylabel="max |gradient|", xlim=(0.0, 30.0))
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    executor.close()


def draw_intervals(path: Path) -> None:
    """Draw the width of the variances' proven intervals after 0, 1, 2 ... passes."""
    X, y = friedman1(2000, noise_std=0.3, seed=1)
    dataset, test = memory_dataset(X, y), memory_dataset(*friedman1(100, noise_std=0.3, seed=1, test=True))
    kernel = parse_kernel("rbf(length_scale=3)", n_features=10)
    executor = LocalExecutor()
    passes, widths = range(7), []
    with tempfile.TemporaryDirectory() as folder:
        save(train(dataset, kernel, 0.02, executor), f"{folder}/model.zarr", dataset)
        for count in passes:
            settings = VarianceSettings(gap=1e-6, max_passes=count, rank=500, halo=0)
            predict(open_model(f"{folder}/model.zarr"), test, f"{folder}/{count}.zarr", executor, variance=settings)
            found = open_prediction(f"{folder}/{count}.zarr")
            upper, lower = found.read("variance_upper"), found.read("variance_lower")
            widths.append((upper - lower) / upper)
    executor.close()
    with picture(path) as (ax,):
        ax.semilogy(passes, [100.0 * np.max(width) for width in widths], "o-", label="widest of 100")
        ax.semilogy(passes, [100.0 * np.median(width) for width in widths], "o-", label="median")
        ax.axhline(2.0, color="#888888", linestyle=":")
        ax.set(xlabel="passes over the kernel matrix", ylabel="width of the interval, %")
        ax.legend()


def draw_kernels(path: Path) -> None:
    """Functions drawn from the priors of six kernels."""
    shown = (
        "rbf(length_scale=1)",
        "matern32(length_scale=1)",
        "matern12(length_scale=1)",
        "periodic(period=3)",
        "rbf(length_scale=1) + linear",
        "rbf(length_scale=3) * periodic(period=1.5)",
    )
    x = np.linspace(-5.0, 5.0, 200)[:, None]
    rng = np.random.default_rng(2)
    with picture(path, height=1.9, columns=len(shown)) as axes:
        for ax, text in zip(axes, shown, strict=True):
            kernel = parse_kernel(text, n_features=1)
            values, vectors = np.linalg.eigh(kernel(x, x))
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            ax.plot(x, root @ rng.standard_normal((200, 3)), linewidth=1.0)
            ax.set(xticklabels=[], yticklabels=[])
            ax.set_title(text.replace(" + ", "\n+ ").replace(" * ", "\n* "), fontsize=6)


PICTURES = {
    "convergence": draw_convergence,
    "intervals": draw_intervals,
    "kernels": draw_kernels,
}


def draw(app: Sphinx) -> None:
    """Draw them before Sphinx reads the pages that show them."""
    folder = Path(app.srcdir, "docs", "generated")
    folder.mkdir(exist_ok=True)
    for name, drawn_by in PICTURES.items():
        drawn_by(folder / f"{name}.svg")


def setup(app: Sphinx) -> dict[str, bool]:
    """Draw them at the start of a build."""
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    # The picture of the README, which a code host shows without building anything.
    draw_landing(Path(__file__).parents[1] / "picture.svg")
