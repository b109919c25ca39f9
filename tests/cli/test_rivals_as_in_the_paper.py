"""`--as-in-the-paper` of the solvers and sparse models that the papers compare with, against naive transcriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import LocalExecutor
from dkgp.commands.presets import settled
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.train import TrainJob
from dkgp.data import open_dataset, open_model, open_prediction
from dkgp.data.stores.models.regression import open_sparse_model
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import Solver
from tests.cli.invoke import run, run_json
from tests.cli.stored import Stored
from tests.solvers.rivals import (
    Steps,
    block_descent,
    by_gradient,
    conjugate_gradients,
    cyclic,
    minimal_optimisation,
    parameter_conjugate_gradients,
)

Log = Callable[[], list[dict[str, Any]]]
# Samples, gamma, noise variance: with much noise and with little; rough, since CG's rounding grows with the condition.
PROBLEMS = [(60, 1.2, 0.2), (150, 3.0, 0.1), (240, 2.0, 0.4)]
M = 25  # in place of 500, which are all of so few samples


def letter_of(name: str, problem: Stored) -> Steps:
    """The paper's steps."""
    Kbar, y = problem.Kbar, problem.y[:, 0]
    return {
        "bcdc": lambda: block_descent(Kbar, y, cyclic(len(y), M, 0)),
        "bcdg": lambda: block_descent(Kbar, y, by_gradient(M)),
        "smo": lambda: minimal_optimisation(Kbar, y),
        "cg": lambda: conjugate_gradients(Kbar, y),
        "paramcg": lambda: parameter_conjugate_gradients(problem.K, problem.noise, y),
    }[name]()


def solver_of(name: str, problem: Stored) -> Solver:
    """The solver that the preset comes to, but for blocks of so few."""
    job = TrainJob(str(problem.store), str(problem.hyper), "-", SolverOptions(solver=name), as_in_the_paper=True)
    options = settled("train", job).solver
    assert options.precision == "double"
    if name in ("bcdc", "bcdg"):
        assert (options.block_size, options.memory) == (500, 0)
        options = options.changed(block_size=M)
    return options.build(len(problem.y), 3, 1, SilentReporter())


def objective(problem: Stored, alpha: np.ndarray) -> float:
    """Equation (3)."""
    return float(alpha @ (0.5 * problem.Kbar @ alpha - problem.y[:, 0]))


@pytest.mark.covering
@pytest.mark.parametrize(("n", "gamma", "noise"), PROBLEMS)
@pytest.mark.parametrize("name", ["bcdc", "bcdg", "smo", "cg", "paramcg"])
def test_every_round_is_the_papers(name: str, n: int, gamma: float, noise: float, tmp_path: Path) -> None:
    """Variables moved, alpha and gradient, round by round and SMO pair by pair."""
    problem, count = Stored(tmp_path, n, gamma, noise), {"smo": 150, "cg": 12, "paramcg": 8}.get(name, 20)
    solver: Any = solver_of(name, problem)
    if name == "smo":
        solver = replace(solver, steps_per_round=1)
    moved = list[list[int]]()
    with BlockedKernelOperator(problem.kernel, noise, ArrayInputs(problem.X), LocalExecutor(1)) as operator:
        solver = solver.resolved(n, 3)
        state = solver.start(operator, problem.y)
        for B, alpha, g in islice(letter_of(name, problem), count):
            before = state.alpha.copy()
            solver.advance(operator, state)
            moved.append(np.flatnonzero(state.alpha != before).tolist())
            assert moved[-1] == sorted(B)
            np.testing.assert_allclose(state.alpha[:, 0], alpha, rtol=0, atol=1e-8 * np.abs(alpha).max())
            np.testing.assert_allclose(state.gradient[:, 0], g, rtol=0, atol=1e-8 * np.abs(problem.y).max())
    if name in ("bcdg", "smo"):
        assert len({tuple(B) for B in moved}) > count // 4


@pytest.mark.covering
@pytest.mark.parametrize(("n", "gamma", "noise"), PROBLEMS)
@pytest.mark.parametrize("name", ["bcdc", "bcdg", "smo", "cg"])
def test_dense_rivals_end_where_the_gbcd_paper_ends_them(
    name: str, n: int, gamma: float, noise: float, tmp_path: Path, log: Log
) -> None:
    """Section 3: "converged when the infinite norm of gradient is within 1e-4", looked at in every round."""
    problem = Stored(tmp_path, n, gamma, noise)
    command = ["train", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--as-in-the-paper"]
    command += ["--solver", name, "--log-json", tmp_path / "log.jsonl", "--json"]
    command += ["--block-size", M] if name.startswith("bcd") else []
    found = run_json(*command)
    # SMO's rounds are n / 20 pairs.
    stride = round(n / 20) if name == "smo" else 1
    rounds, alpha = list[tuple[float, float]](), np.zeros(n)
    for _, alpha, g in islice(letter_of(name, problem), stride - 1, None, stride):
        rounds.append((float(np.abs(g).max()), objective(problem, alpha)))
        if rounds[-1][0] <= 1e-4:
            break
    assert found["converged"]
    assert found["tolerance"] == 1e-4
    assert "max|g|" in found["reason"]
    # CG's last round, of one product, shows that the tolerance is met, and takes no step.
    checks = 1 if name == "cg" else 0
    assert found["iterations"] == len(rounds) + checks > 2
    told = log()[-len(rounds) - checks :]
    if checks:
        assert told[-1]["objective"] == pytest.approx(told[-2]["objective"], rel=1e-12)
        assert told.pop()["gradient_inf_norm"] == pytest.approx(told[-1]["gradient_inf_norm"], rel=1e-6)
    norms, objectives = zip(*rounds, strict=True)
    np.testing.assert_allclose([record["gradient_inf_norm"] for record in told], norms, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose([record["objective"] for record in told], objectives, rtol=1e-9)
    np.testing.assert_allclose(open_model(str(tmp_path / "m.zarr")).alpha[:, 0], alpha, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("n", "gamma", "noise"), PROBLEMS)
def test_parameter_cg_ends_by_the_gap(n: int, gamma: float, noise: float, tmp_path: Path, log: Log) -> None:
    """Theorem 1 with the dual alpha* = (y - K alpha) / s2 of its own function one step before, or alpha, if nearer."""
    problem = Stored(tmp_path, n, gamma, noise)
    command = ("train", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--as-in-the-paper")
    found = run_json(*command, "--solver", "paramcg", "--log-json", tmp_path / "log.jsonl")
    K, y, s2 = problem.K, problem.y[:, 0], problem.noise
    half = 0.5 * float(y @ y)

    def risk(alpha: np.ndarray) -> float:
        return float(-y @ K @ alpha + 0.5 * alpha @ (s2 * K + K @ K) @ alpha)  # Q (5)

    def least(dual: np.ndarray) -> float:
        return -half - s2 * float(-y @ dual + 0.5 * dual @ problem.Kbar @ dual)  # (7) with Q* (6)

    gaps, before, alpha = list[float](), np.zeros(n), np.zeros(n)
    for _, alpha, _ in parameter_conjugate_gradients(K, s2, y):
        Q = risk(alpha)
        width = min(Q - least(alpha), risk(before) - least((y - K @ before) / s2))
        gaps.append(width / (0.5 * (abs(Q) + abs(Q - width))))
        before = alpha
        if gaps[-1] <= 0.025:
            break
    assert found["converged"]
    assert "duality gap" in found["reason"]
    assert found["iterations"] == len(gaps) > 2
    assert [record["duality_gap"] for record in log()][-len(gaps) :] == pytest.approx(gaps, rel=1e-5)
    np.testing.assert_allclose(open_model(str(tmp_path / "m.zarr")).alpha[:, 0], alpha, rtol=0, atol=1e-7)


@pytest.mark.covering
@pytest.mark.parametrize(("n", "gamma", "noise"), PROBLEMS)
@pytest.mark.parametrize("method", ["sr", "sd"])
def test_subsets_are_random_and_their_models_the_papers(
    method: str, n: int, gamma: float, noise: float, tmp_path: Path
) -> None:
    """SD "estimates a GPR predictor based on a subset", SR "only uses a random subset of regressors" (section 3.2)."""
    problem, m = Stored(tmp_path, n, gamma, noise), n // 4
    command = ("sparse", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--as-in-the-paper")
    found = run_json(*command, "--method", method, "--basis-size", m)
    model = open_sparse_model(str(tmp_path / "m.zarr"))
    # A random order of the samples; its first m.
    S = np.random.default_rng(0).permutation(n)[:m]
    assert model.indices is not None
    assert model.indices.tolist() == S.tolist()
    K, y = problem.K, problem.y[:, 0]
    K_mm, K_mn = K[np.ix_(S, S)], K[S]
    normal = K_mm + noise * np.eye(m) if method == "sd" else K_mn @ K_mn.T + noise * K_mm
    weights = np.linalg.solve(normal, y[S] if method == "sd" else K_mn @ y)
    np.testing.assert_allclose(K_mn.T @ model.weights[:, 0], K_mn.T @ weights, rtol=0, atol=1e-7)
    # The variances of section 3.2's comparison: SD's exact ones of the subset, SR's degenerate ones.
    assert run("predict", tmp_path / "m.zarr", problem.store, "--out", tmp_path / "p.zarr", "--variance").exit_code == 0

    scale = float(open_dataset(str(problem.store)).standardisation.target_std[0])
    variance = open_prediction(str(tmp_path / "p.zarr")).read("variance", 0, n)[:, 0] / scale**2
    exact = np.einsum("ni,in->n", K_mn.T, np.linalg.solve(normal, K_mn))
    np.testing.assert_allclose(variance - noise, 1.0 - exact if method == "sd" else noise * exact, rtol=0, atol=1e-7)
    assert found["as_in_the_paper"]["otherwise"] == {"basis_size": m}
