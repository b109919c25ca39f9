"""Training under Student's t against the same algorithm in dense algebra, turn by turn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor
from dkgp.data import CheckpointStore, Dataset, memory_dataset
from dkgp.errors import InputError, InterruptedRunError
from dkgp.kernels import SquaredExponential
from dkgp.models.context import RunContext
from dkgp.models.exact import WEIGHT_TOLERANCE, TrainedModel, train
from dkgp.models.noise import Noise, StudentT
from dkgp.solvers import Checkpointing, ConjugateGradient, FactorPreconditioning, GradientInfNorm

KERNEL, T = SquaredExponential((0.5, 0.3)), StudentT(3.0, 0.007)
NOISE = Noise(T.least, law=T)


@dataclass(frozen=True)
class Problem:
    """Samples of which one in twenty is an outlier."""

    dataset: Dataset
    function: np.ndarray
    outlier: np.ndarray

    @property
    def scale(self) -> float:
        return float(self.dataset.standardisation.target_std[0])

    def off(self, alpha: np.ndarray) -> float:
        """Root mean square distance from the function at the samples, in units of the targets' deviation."""
        Z = self.dataset.inputs(0, len(self.function))
        mean = KERNEL(Z, Z) @ alpha[:, 0]
        expected = (self.function - self.dataset.standardisation.target_mean[0]) / self.scale
        return float(np.sqrt(np.mean((mean - expected) ** 2)))


@pytest.fixture(scope="module")
def problem() -> Problem:
    rng = np.random.default_rng(3)
    x = rng.uniform(-2.0, 2.0, (300, 2))
    function = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] ** 2
    outlier = rng.random(300) < 0.05
    noise = np.where(outlier, rng.normal(0.0, 2.0, 300), rng.normal(0.0, 0.1, 300))
    return Problem(memory_dataset(x, function + noise), function, outlier)


def naive(problem: Problem) -> tuple[list[np.ndarray], list[float], np.ndarray]:
    """Weights of every turn, minus the log posterior density of each turn's function, and the last alpha."""
    n = len(problem.function)
    Z, y = problem.dataset.inputs(0, n), problem.dataset.all_targets()[:, 0]
    K, w = KERNEL(Z, Z), np.ones(n)
    weights, heights = [], []
    for _ in range(100):
        alpha = np.linalg.solve(K + np.diag(T.scale / w), y)
        left = y - K @ alpha
        heights.append(
            float((T.degrees + 1) / 2 * np.log1p(left**2 / (T.degrees * T.scale)).sum() + 0.5 * alpha @ K @ alpha)
        )
        weights.append(w)
        found = (T.degrees + 1) / (T.degrees + left**2 / T.scale)
        if np.abs(found - w).max() <= WEIGHT_TOLERANCE:
            return weights, heights, alpha
        w = found
    raise AssertionError("no end")


def test_turns_are_those_of_dense_algebra(problem: Problem, executor: BlockExecutor) -> None:
    weights, heights, alpha = naive(problem)
    model = train(problem.dataset, KERNEL, NOISE, executor, stopping=GradientInfNorm(1e-9))
    told = model.summary["weights"]
    assert told["turns"] == len(weights) > 4
    assert model.sample_noise is not None
    np.testing.assert_allclose(T.weights(model.sample_noise), weights[-1], rtol=1e-6)
    np.testing.assert_allclose(model.solution.alpha[:, 0], alpha, atol=1e-6)
    assert told["least"] == pytest.approx(weights[-1].min(), rel=1e-6)
    assert told["below_half"] == int((weights[-1] < 0.5).sum())
    assert model.summary["converged"]
    # Each turn comes nearer to the mode.
    assert (np.diff(heights) < 0.0).all()


def test_the_certificate_is_of_the_last_weights(problem: Problem, executor: BlockExecutor) -> None:
    model = train(problem.dataset, KERNEL, NOISE, executor, stopping=GradientInfNorm(1e-3))
    n = len(problem.function)
    Z, y = problem.dataset.inputs(0, n), problem.dataset.all_targets()[:, 0]
    assert model.sample_noise is not None
    exact = np.linalg.solve(KERNEL(Z, Z) + np.diag(model.noise_variance + model.sample_noise), y)
    off = float(np.linalg.norm(model.solution.alpha[:, 0] - exact))
    assert 0.0 < off <= model.certificate.alpha_error_bound[0]


def test_outliers_weigh_little_and_pull_little(problem: Problem, executor: BlockExecutor) -> None:
    model = train(problem.dataset, KERNEL, NOISE, executor)
    assert model.sample_noise is not None
    weights = T.weights(model.sample_noise)
    assert np.median(weights[problem.outlier]) < 0.1
    assert np.median(weights[~problem.outlier]) > 0.9
    normal = min(
        problem.off(train(problem.dataset, KERNEL, s2, executor).solution.alpha) for s2 in (0.01, 0.03, 0.1, 0.3)
    )
    assert problem.off(model.solution.alpha) < 0.6 * normal


class _StopInTurn:
    """Ends a run within the solve of a turn, which the checkpoint names; the first call comes before the solve."""

    def __init__(self, store: CheckpointStore, turn: int) -> None:
        self._store, self._turn, self._calls = store, turn, 0

    def __call__(self) -> bool:
        latest = self._store.latest_metadata()
        self._calls += latest is not None and int(latest["state"]["number"]) >= self._turn
        return self._calls > 1


def test_an_interrupted_run_goes_on_to_the_same_bits(problem: Problem, executor: BlockExecutor, tmp_path: Path) -> None:
    solver = ConjugateGradient(FactorPreconditioning(0, rank=60))
    options: dict[str, Any] = {"solver": solver, "stopping": GradientInfNorm(1e-3)}
    whole = train(problem.dataset, KERNEL, NOISE, executor, **options)
    store, identity = CheckpointStore(str(tmp_path / "checkpoint")), {"of": "this"}
    watched = RunContext(
        executor, checkpointing=Checkpointing(store, 30.0, identity), interrupted=_StopInTurn(store, 3)
    )
    with pytest.raises(InterruptedRunError, match=r"in turn 4 of weights; state saved in .*checkpoint"):
        train(problem.dataset, KERNEL, NOISE, watched, **options)
    rounds = list[int]()
    on = RunContext(
        executor,
        checkpointing=Checkpointing(store, 30.0, identity, resume=True),
        callback=lambda progress: rounds.append(progress.iteration),
    )
    resumed = train(problem.dataset, KERNEL, NOISE, on, **options)
    assert resumed.solution.alpha.tobytes() == whole.solution.alpha.tobytes()
    assert resumed.summary["weights"] == whole.summary["weights"]
    for name in ("iterations", "column_passes", "kernel_evaluations"):
        assert resumed.summary[name] == whole.summary[name]
    assert rounds[0] > 3
    assert rounds == list(range(rounds[0], resumed.summary["iterations"] + 1))


def test_weights_that_do_not_settle_are_told(
    problem: Problem, executor: BlockExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.models.exact.MOST_TURNS", 2)
    model: TrainedModel = train(problem.dataset, KERNEL, NOISE, executor)
    assert not model.summary["converged"]
    assert "weights still changed by" in model.summary["reason"]
    assert model.summary["weights"]["turns"] == 2


def test_several_targets_are_refused(executor: BlockExecutor) -> None:
    rng = np.random.default_rng(0)
    dataset = memory_dataset(rng.normal(size=(20, 2)), rng.normal(size=(20, 2)))
    with pytest.raises(InputError, match="weighs samples by one target"):
        train(dataset, KERNEL, NOISE, executor)
