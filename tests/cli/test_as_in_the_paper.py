"""`--as-in-the-paper`: commands and their rivals against naive, dense transcriptions of the papers' algorithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dkgp.cluster import LocalExecutor
from dkgp.commands.presets import settled
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.solver_options import SolverOptions
from dkgp.commands.train import TrainJob
from dkgp.data import dataset_from_arrays, open_classifier, open_dataset, open_model, open_prediction
from dkgp.data.stores.models.regression import open_sparse_model
from dkgp.kernels import SquaredExponential, kernel_from_json
from dkgp.models import Hyperparameters, write_hyperparameters
from dkgp.models.classification.fixed_size.train import START_NOISE
from dkgp.models.classification.labels import labels_of, stratified_folds
from dkgp.operators import ArrayInputs, BlockedKernelOperator
from dkgp.solvers import Solver
from tests.cli.invoke import run, run_json
from tests.models.classification.letter import annealed, rounded
from tests.solvers.paper import block_coordinate_descent, dealt, without
from tests.solvers.problems import rounds
from tests.solvers.rivals import (
    Steps,
    block_descent,
    by_gradient,
    conjugate_gradients,
    cyclic,
    minimal_optimisation,
    parameter_conjugate_gradients,
)
from tests.solvers.test_greedy_basis import SmolaBartlett


class Stored:
    """A regression problem in a store, and as dense arrays."""

    def __init__(self, folder: Path, n: int, gamma: float, noise: float) -> None:
        rng = np.random.default_rng(n)
        X = rng.uniform(-2.0, 2.0, (n, 3))
        y = np.sin(2.0 * X[:, :1]) + X[:, 1:2] * X[:, 2:] + 0.2 * rng.standard_normal((n, 1))
        self.store, self.hyper, self.noise = folder / "train.zarr", folder / "hyper.json", noise
        dataset_from_arrays(self.store, X, y)
        self.kernel = SquaredExponential(gamma=(gamma, 0.7 * gamma, 1.3 * gamma))
        write_hyperparameters(self.hyper, Hyperparameters(self.kernel, noise))
        dataset = open_dataset(str(self.store))
        self.X, self.y = dataset.inputs(0, n), dataset.targets(0, n)
        self.K = self.kernel(self.X, self.X)
        self.Kbar = self.K + noise * np.eye(n)


FloatArray = NDArray[np.float64]


@pytest.mark.long
def test_gbcd_is_algorithms_1_and_2(tmp_path: Path, log: Callable[[], list[dict[str, Any]]]) -> None:
    """Blocks of 500 out of 700, 60 candidates, one variable at a time, until max |g| <= 1e-4, in every round."""
    n, problem = 700, Stored(tmp_path, 700, 0.5, 0.2)
    command = ("train", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--as-in-the-paper")
    found = run_json(*command, "--log-json", tmp_path / "log.jsonl")
    letter, norms = [], []
    for B, alpha, g in block_coordinate_descent(
        problem.Kbar, problem.y[:, 0], 500, (dealt(n, 60, 0, k) for k in count())
    ):
        letter.append((B, alpha, g))
        norms.append(float(np.abs(g).max()))
        if norms[-1] <= 1e-4:
            break
    assert found["converged"]
    assert found["iterations"] == len(letter) > 3
    np.testing.assert_allclose([r["gradient_inf_norm"] for r in log()][-len(norms) :], norms, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(open_model(str(tmp_path / "m.zarr")).alpha[:, 0], letter[-1][1], rtol=0, atol=1e-6)
    job = settled("train", TrainJob(str(problem.store), str(problem.hyper), "-", as_in_the_paper=True))
    solver, executor = job.solver.build(n, 3, 1, SilentReporter()), LocalExecutor(1)
    with BlockedKernelOperator(problem.kernel, problem.noise, ArrayInputs(problem.X), executor) as operator:
        states = list(rounds(solver, operator, problem.y, len(letter)))
    for before, after, (B, alpha, g) in zip(states[:-1], states[1:], letter, strict=True):
        assert set(np.flatnonzero(after.alpha[:, 0] != before.alpha[:, 0])) == set(B)
        np.testing.assert_allclose(after.alpha[:, 0], alpha, rtol=0, atol=1e-6)
        np.testing.assert_allclose(after.gradient[:, 0], g, rtol=0, atol=1e-7)


def test_kernel_cg_is_algorithm_1_to_the_gap(tmp_path: Path, log: Callable[[], list[dict[str, Any]]]) -> None:
    """Functional gradients, exact line searches and directions in the RKHS, until Smola and Bartlett's gap is 0.025."""
    problem = Stored(tmp_path, 160, 0.5, 0.05)
    command = ("train", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--solver", "kcg")
    found = run_json(*command, "--as-in-the-paper", "--log-json", tmp_path / "log.jsonl")
    K, y, s2 = problem.K, problem.y[:, 0], problem.noise
    A = K @ K + s2 * K  # of R(alpha) = |y - K alpha|^2 / 2 + s2 alpha' K alpha / 2
    alpha, gamma = np.zeros(len(y)), -y  # the gradient's coefficients (7)
    h, gaps = -gamma, list[float]()
    while True:
        alpha = alpha - (gamma @ K @ h) / (h @ A @ h) * h
        new = K @ alpha - y + s2 * alpha
        h = -new + ((new - gamma) @ K @ new) / (gamma @ K @ gamma) * h
        gamma = new
        Q = -y @ K @ alpha + 0.5 * alpha @ A @ alpha
        Q_star = -y @ alpha + 0.5 * alpha @ problem.Kbar @ alpha
        half = 0.5 * float(y @ y)
        gaps.append(2.0 * (Q + s2 * Q_star + half) / (-Q + s2 * Q_star + half))
        if gaps[-1] <= 0.025:
            break
    assert found["iterations"] == len(gaps) > 3
    assert [record["duality_gap"] for record in log()][-len(gaps) :] == pytest.approx(gaps, rel=1e-6)
    np.testing.assert_allclose(open_model(str(tmp_path / "m.zarr")).alpha[:, 0], alpha, rtol=0, atol=1e-8)


@pytest.mark.long
def test_sggp_is_smola_and_bartletts_algorithm_1(tmp_path: Path, log: Callable[[], list[dict[str, Any]]]) -> None:
    """One choice a round from 59 of those left, for Q and for Q*, refitted, until gap(alpha, alpha*) is 0.025."""
    problem = Stored(tmp_path, 150, 0.5, 0.2)
    S, _, gaps = SmolaBartlett(problem).run(0.025, seed=0, most=150)
    command = ("sparse", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--as-in-the-paper")
    found = run_json(*command, "--log-json", tmp_path / "log.jsonl")
    assert found["converged"]
    assert found["method"] == "sggp"
    assert [record["gap"] for record in log()] == pytest.approx(gaps, rel=1e-6)
    model = open_sparse_model(str(tmp_path / "m.zarr"))
    assert model.indices is not None
    assert list(model.indices) == S
    np.testing.assert_allclose(model.weights, SmolaBartlett(problem).beta(S), rtol=1e-6, atol=1e-8)


def test_mpgp_is_matching_pursuit_one_choice_a_round(tmp_path: Path) -> None:
    """Pre-backfitting of 59 drawn and the 59 best of before; a size that is given wins over the paper's 2,000."""
    problem, n, m, s2 = Stored(tmp_path, 400, 0.5, 0.2), 400, 24, 0.2
    A, b = problem.K @ problem.K / s2 + problem.K, problem.K @ problem.y[:, 0] / s2
    S, kept = list[int](), list[int]()
    for number in range(m):
        beta = np.linalg.solve(A[np.ix_(S, S)], b[S])
        pool = sorted({*dealt(n, 59, 0, number)(without(S, n)), *kept})
        values = {i: float((b[i] - A[i, S] @ beta) ** 2 / A[i, i]) for i in pool}
        S.append(max(pool, key=values.__getitem__))
        kept = sorted((i for i in pool if i != S[-1]), key=lambda i: -values[i])[:59]
    command = ("sparse", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--as-in-the-paper")
    found = run_json(*command, "--method", "mpgp", "--basis-size", m)
    model = open_sparse_model(str(tmp_path / "m.zarr"))
    assert model.indices is not None
    assert list(model.indices) == S
    assert found["as_in_the_paper"]["otherwise"] == {"basis_size": m}
    assert found["as_in_the_paper"]["set"] == {"candidates": 59, "per_round": 1}


def test_flags_win(tmp_path: Path) -> None:
    problem = Stored(tmp_path, 120, 0.5, 0.2)
    command = ("train", problem.store, "--out", tmp_path / "m.zarr", "--hyper", problem.hyper, "--as-in-the-paper")
    # Those that are given as they are by default, too; and the store knows of it.
    told = run_json(*command, "--precision", "mixed", "--block-size", 40)["as_in_the_paper"]
    assert told == open_model(str(tmp_path / "m.zarr")).summary["as_in_the_paper"]
    assert (told["paper"], told["solver"]) == ("Bo and Sminchisescu 2008", "gbcd")
    assert told["set"] == {"candidates": 60, "variables_per_step": 1, "memory": 0, "tolerance": 1e-4}
    assert told["otherwise"] == {"block_size": 40, "precision": "mixed"}
    # A batch script has the flag, and those that it is given beside.
    script = tmp_path / "job.sbatch"
    options = ("--slurm", "--write-only", script, *command, "--precision", "mixed", "--overwrite")
    assert run("submit", *options).exit_code == 0
    assert "--as-in-the-paper" in script.read_text()
    assert "--precision mixed" in script.read_text()


class FixedSize:
    """Equations 34 to 37 and Algorithm 4 with all samples as prototypes, word by word."""

    def __init__(self, X: FloatArray, y: FloatArray, folds: NDArray[np.intp]) -> None:
        self.X, self.y, self.folds = X, y, folds

    def system(self, K: FloatArray, s2: float, rows: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        """(36) and (37) of those rows; the ridge and nu are of all."""
        wide = np.column_stack([K, np.ones(len(K))])[rows]
        ridge = np.zeros((len(K) + 1, len(K) + 1))
        ridge[:-1, :-1], ridge[-1, -1] = s2 * K, 1e-8
        return wide.T @ wide + ridge, wide.T @ self.y[rows]

    def path(self, A: FloatArray, b: FloatArray, steps: int) -> Iterator[tuple[list[int], FloatArray]]:
        """Algorithm 3's components (19) and its w, by solving with those chosen."""
        c, S = -b, list[int]()
        for _ in range(steps):
            S.append(int(np.argmax(np.where(np.isin(np.arange(len(b)), S), -1.0, np.abs(c)))))
            w = np.linalg.solve(A[np.ix_(S, S)], b[S])
            c = A[:, S] @ w - b
            yield list(S), w

    def errors(self, K: FloatArray, s2: float, steps: int) -> FloatArray:
        """Mean squared error of each held-out fold by cardinality, as far as systems are sound: (k, folds)."""
        found = np.zeros((steps, self.folds.max() + 1))
        wide = np.column_stack([K, np.ones(len(K))])
        for fold in range(found.shape[1]):
            own = self.folds == fold
            A, b = self.system(K, s2, ~own)
            for k, (S, w) in enumerate(self.path(A, b, len(found))):
                if np.linalg.cond(A[np.ix_(S, S)]) > 1e8:
                    found = found[:k]
                    break
                found[k, fold] = np.mean((self.y[own] - wide[own][:, S] @ w) ** 2)
        return found

    def score(self, errors: FloatArray) -> FloatArray:
        """F_cv (35), of each sample."""
        return np.asarray(errors @ np.bincount(self.folds) / len(self.y))


@pytest.mark.long
def test_classify_is_the_pursuit_papers_fixed_size_machine(
    tmp_path: Path, log: Callable[[], list[dict[str, Any]]]
) -> None:
    """Every point of its annealing and the final path by Algorithm 4 with one width; the size by section 4.5."""
    rng, n = np.random.default_rng(5), 90
    X = rng.standard_normal((n, 2))
    dataset_from_arrays(tmp_path / "d.zarr", X, (X[:, 0] * X[:, 1] + 0.2 * rng.standard_normal(n) > 0).astype(float),
                        classes=("no", "yes"))  # fmt: skip
    command = ("classify", tmp_path / "d.zarr", "--out", tmp_path / "m.zarr", "--as-in-the-paper")
    found = run_json(*command, "--log-json", tmp_path / "log.jsonl")
    dataset = open_dataset(str(tmp_path / "d.zarr"))
    labels, Z = labels_of(dataset), dataset.inputs(0, n)
    letter = FixedSize(Z, labels.signs()[:, 0], stratified_folds(labels, 10, 0))
    kernel, history = kernel_from_json(found["kernel"]), log()
    gamma = set(found["kernel"]["gamma"])
    assert len(gamma) == 1  # one width
    # Five probes take 20 steps, then a simplex of two coordinates closes in.
    assert len(history) > 5 * 21
    # The points are those of coupled annealing and a simplex that are told these scores.
    places = [(math.log(record["scale"]), math.log(record["noise_variance"])) for record in history]
    told = {rounded(place): record["score"] for place, record in zip(places, history, strict=True)}
    asked, ahead = list[tuple[float, ...]](), iter(told.values())

    def score(*point: float) -> float:
        asked.append(point)
        return float(next(ahead))

    with suppress(StopIteration):  # a point that it comes back to but for rounding has taken a score
        annealed(score, (0.0, START_NOISE))
    np.testing.assert_allclose(list(told), asked[: len(told)], rtol=0, atol=2e-9)
    assert len(history) - len(told) < 5
    base, compared = gamma.pop() / found["scale"], 0
    for record in [*history[:25], *history[-5:]]:
        K = SquaredExponential(gamma=(base * record["scale"],) * 2)(Z, Z) * found["kernel"].get("variance", 1.0)
        scores = letter.score(letter.errors(K, record["noise_variance"], 30))
        if record["cardinality"] <= len(scores):
            assert record["score"] == pytest.approx(scores[record["cardinality"] - 1], rel=1e-6)
            assert record["score"] == pytest.approx(scores.min(), rel=1e-6)
            compared += 1
    assert compared > 10
    K, s2 = kernel(Z, Z), found["noise_variance"]
    errors = letter.errors(K, s2, 30)
    scores, spread = letter.score(errors), errors.std(axis=1, ddof=1)
    sound = len(scores)
    assert sound > 10
    assert [record["score"] for record in found["path"][1 : sound + 1]] == pytest.approx(scores.tolist(), rel=1e-6)
    best = int(np.argmin(scores))
    size = int(np.argmax(scores <= scores[best] + 0.1 * spread[best])) + 1
    S, w = list(letter.path(*letter.system(K, s2, np.ones(n, dtype=bool)), size))[-1]
    model = open_classifier(str(tmp_path / "m.zarr"))
    assert model.indices is not None
    assert list(model.indices) == [s for s in S if s < n]
    weights = dict(zip(S, w, strict=True))
    np.testing.assert_allclose(model.weights[:, 0], [weights[s] for s in S if s < n], rtol=1e-5, atol=1e-7)
    assert model.intercept[0] == pytest.approx(weights.get(n, 0.0), rel=1e-5, abs=1e-7)


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


@pytest.mark.spread(2)
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
