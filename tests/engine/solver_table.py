"""Every iterative solver, as one says it on the command line, with settings that give many short rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.data import Dataset
from dkgp.models.exact import TrainedModel
from tests.engine.helpers import Problem, hyperparameters

__all__ = ["SOLVERS", "solver_command", "train_with"]

# Enough passes for a kill to come in between; parameter CG would not end by itself.
SOLVERS: dict[str, SolverOptions] = {
    "gbcd": SolverOptions("gbcd", block_size=60, tolerance=1e-3),
    "bcdc": SolverOptions("bcdc", block_size=60, tolerance=1e-2),
    "bcdg": SolverOptions("bcdg", block_size=60, tolerance=1e-2, max_passes=20.0),
    "smo": SolverOptions("smo", tolerance=1e-3),
    "cg": SolverOptions("cg", tolerance=1e-3),
    "pcg": SolverOptions("pcg", halo=40, leaf=30, rank=10, tolerance=1e-6),
    "pcg low rank": SolverOptions("pcg", halo=0, rank=20, tolerance=1e-6),
    "kcg": SolverOptions("kcg", tolerance=1e-4, max_passes=200.0),
    "paramcg": SolverOptions("paramcg", tolerance=1e-4, max_passes=150.0),
    "tiled-cholesky": SolverOptions("tiled-cholesky", tolerance=1e-8),
}


def train_with(problem: Problem, executor: Any, options: SolverOptions, **more: Any) -> TrainedModel:
    """Train in this process."""
    dataset: Dataset = problem.dataset
    solver = options.build(dataset.n_samples, dataset.n_features, dataset.n_targets, SilentReporter())
    more.setdefault("stopping", options.stopping())
    return problem.train(executor, solver=solver, **more)


def solver_command(problem: Problem, folder: Path, options: SolverOptions, *more: object) -> list[str]:
    """The same as a command, without `dkgp`: a checkpoint after every round."""
    given: tuple[object, ...] = ("train", problem.dataset.url, "--hyper", hyperparameters(problem, folder))
    given += ("--out", folder / "model.zarr", "--solver", options.solver, "--tol", options.tolerance)
    for name in ("block_size", "halo", "leaf", "rank", "max_passes"):
        value = getattr(options, name)
        if value not in (None, "auto"):
            given += (f"--{name.replace('_', '-')}", value)
    given += ("--checkpoint-every", 0, "--cluster", "none", "--workers", 1, "--quiet", "--json")
    return [str(argument) for argument in (*given, *more)]
