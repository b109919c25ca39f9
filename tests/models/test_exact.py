"""Train, save, open, predict, evaluate: against a dense Gaussian process written out in NumPy, on raw units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from dkgp.cluster import BlockExecutor, LocalExecutor, PendingRound
from dkgp.data import Dataset, ModelRecord, open_model, open_prediction
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models.certificate import Certificate
from dkgp.models.context import RunContext
from dkgp.models.exact import TrainedModel, save, train
from dkgp.models.metrics import evaluate
from dkgp.models.noise import Noise
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.problem import Problem
from dkgp.solvers import GradientInfNorm, GreedyBlockCoordinateDescent, MaxIterations, Progress
from tests.watching import in_context

pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")

FloatArray = np.ndarray
NAMES = ("temperature", "pressure", "unused", "humidity", "wind")
TARGETS = ("power", "cost")
VARIANCE, NOISE, GAMMA = 1.3, 0.05, (0.3, 0.2, 0.1, 0.05)
SOLVER = GreedyBlockCoordinateDescent(block_size=80)


def dense_gp(X: FloatArray, y: FloatArray, X_new: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Predictive means in the units of y, and the coefficients on the standardised scale; nothing of dkgp in it."""
    mean, std, target_mean, target_std = X.mean(axis=0), X.std(axis=0), y.mean(axis=0), y.std(axis=0)
    Z, Z_new = (X - mean) / std, (X_new - mean) / std

    def k(A: FloatArray, B: FloatArray) -> FloatArray:
        distance = sum(g * (A[:, None, l] - B[None, :, l]) ** 2 for l, g in enumerate(GAMMA))
        return VARIANCE * np.exp(-distance)

    alpha = scipy.linalg.solve(k(Z, Z) + NOISE * np.eye(len(Z)), (y - target_mean) / target_std, assume_a="pos")
    return k(Z_new, Z) @ alpha * target_std + target_mean, alpha


@dataclass(frozen=True)
class World:
    """Raw data with a constant feature and scales far apart, in stores; and what a dense GP makes of them."""

    folder: Path
    train: Dataset
    test: Dataset
    X_test: FloatArray
    y_test: FloatArray
    y_train: FloatArray
    mean: FloatArray
    alpha: FloatArray


def draw(n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 5)) * [8.0, 1500.0, 0.0, 0.1, 3.0] + [20.0, 1e5, 7.0, 0.5, -2.0]
    Z = (X - [20.0, 1e5, 7.0, 0.5, -2.0]) / [8.0, 1500.0, 1.0, 0.1, 3.0]
    power = np.sin(1.5 * Z[:, 0]) + Z[:, 1] * Z[:, 3] + 0.2 * generator.normal(size=n)
    cost = np.cos(Z[:, 4]) + 0.5 * Z[:, 0] + 0.2 * generator.normal(size=n)
    return X, np.column_stack([300.0 * power + 5000.0, 0.01 * cost])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    (X, y), (X_test, y_test) = draw(600, 1), draw(230, 2)
    names = {"feature_names": NAMES, "target_names": TARGETS}
    train_set = dataset_from_arrays(folder / "train.zarr", X, y, chunk_rows=170, **names)
    # Ingested by itself: its own means and deviations differ, and must not matter.
    test_set = dataset_from_arrays(folder / "test.zarr", X_test, y_test, chunk_rows=100, **names)
    kept = [0, 1, 3, 4]
    mean, alpha = dense_gp(X[:, kept], y, X_test[:, kept])
    return World(folder, train_set, test_set, X_test, y_test, y, mean, alpha)


@pytest.fixture(scope="module")
def kernel() -> SquaredExponential:
    return SquaredExponential(GAMMA, VARIANCE)


def trained_to(tolerance: float, world: World, executor: BlockExecutor) -> TrainedModel:
    kernel = SquaredExponential(GAMMA, VARIANCE)
    return train(world.train, kernel, NOISE, executor, solver=SOLVER, stopping=GradientInfNorm(tolerance))


@pytest.fixture(scope="module")
def tight(world: World, executor: BlockExecutor) -> TrainedModel:
    return trained_to(1e-9, world, executor)


@pytest.fixture(scope="module")
def model(world: World, tight: TrainedModel) -> ModelRecord:
    url = str(world.folder / "model.zarr")
    save(tight, url, world.train)
    return open_model(url)


def predicted(url: Path, variable: str = "mean") -> FloatArray:
    return open_prediction(str(url)).read(variable)


# ------------------------------------------------------------------------------------------------- against the dense GP


def test_means_are_the_dense_gps(world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path) -> None:
    summary = predict(model, world.test, str(tmp_path / "p"), executor)
    mean, bound = predicted(tmp_path / "p"), predicted(tmp_path / "p", "mean_error_bound")
    scale = world.y_train.std(axis=0)
    np.testing.assert_allclose(mean / scale, world.mean / scale, atol=1e-7, rtol=0)
    assert (np.abs(mean - world.mean) <= bound + 1e-9 * scale).all()
    assert (summary.n_samples, summary.n_support) == (230, 600)
    assert summary.largest_mean_error_bound == bound.max()


def test_coefficients_are_the_dense_gps(world: World, tight: TrainedModel) -> None:
    np.testing.assert_allclose(tight.solution.alpha, world.alpha, atol=1e-6)
    assert tight.solution.converged


@pytest.mark.long
def test_targets_solved_together_or_alone_agree(world: World, tight: TrainedModel, executor: BlockExecutor) -> None:
    for column, name in enumerate(TARGETS):
        raw = np.concatenate([world.train.raw_inputs(*rows) for rows in world.train.row_chunks()])
        url = world.folder / f"{name}.zarr"
        alone = dataset_from_arrays(url, raw, world.y_train[:, column], feature_names=NAMES, target_names=(name,))
        kernel = SquaredExponential(GAMMA, VARIANCE)
        trained = train(alone, kernel, NOISE, executor, solver=SOLVER, stopping=GradientInfNorm(1e-9))
        assert trained.solution.alpha.shape == (600, 1)
        np.testing.assert_allclose(trained.solution.alpha[:, 0], tight.solution.alpha[:, column], atol=1e-6)


@pytest.mark.spread(2)
@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-4])
def test_error_bounds_hold_and_are_not_absurd(
    world: World, executor: BlockExecutor, tmp_path: Path, tolerance: float
) -> None:
    trained = trained_to(tolerance, world, executor)
    save(trained, str(tmp_path / "m"), world.train)
    predict(open_model(str(tmp_path / "m")), world.test, str(tmp_path / "p"), executor)
    error = np.abs(predicted(tmp_path / "p") - world.mean)
    bound = predicted(tmp_path / "p", "mean_error_bound")
    assert (error <= bound).all()
    # The residual is far from zero here, so the bound says something; Cauchy's inequality costs it a factor.
    assert (error.max(axis=0) > 1e-7 * world.y_train.std(axis=0)).all()
    assert (bound.max(axis=0) < 300 * error.max(axis=0)).all()
    distance = np.linalg.norm(trained.solution.alpha - world.alpha, axis=0)
    alpha_bound = trained.certificate.alpha_error_bound
    assert (distance <= alpha_bound).all()
    assert (alpha_bound < 3 * distance).all()


def test_evaluation_is_equation_16(world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path) -> None:
    predict(model, world.test, Destination(str(tmp_path / "p"), chunk_rows=64), executor)
    found = evaluate(open_prediction(str(tmp_path / "p")), world.test)
    squared = (world.y_test - world.mean) ** 2
    per_target = np.sqrt(np.mean(squared / world.y_train.var(axis=0), axis=0))
    for column, name in enumerate(TARGETS):
        assert found["per_target"][name]["rmse"] == pytest.approx(per_target[column], rel=1e-6)
        assert found["per_target"][name]["rmse_raw"] == pytest.approx(np.sqrt(squared[:, column].mean()), rel=1e-6)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(per_target**2)), rel=1e-6)
    assert found["n"] == 230
    # By the test set's own deviation it would be another number.
    own = np.sqrt(np.mean(squared / world.y_test.var(axis=0), axis=0))
    assert np.abs(own - per_target).min() > 1e-4 * per_target.max()


# ----------------------------------------------------------------------------------------------------------- the record


def test_what_was_saved_comes_back(world: World, model: ModelRecord, tight: TrainedModel) -> None:
    assert model.alpha.tobytes() == tight.solution.alpha.tobytes()
    assert Certificate.from_json(dict(model.certificate)) == tight.certificate
    assert (model.feature_names, model.target_names) == (("temperature", "pressure", "humidity", "wind"), TARGETS)
    assert model.summary == tight.summary
    assert len(model.history) == tight.summary["iterations"]
    assert model.fingerprint == world.train.fingerprint
    assert SquaredExponential.from_json(model.kernel) == SquaredExponential(GAMMA, VARIANCE)


def test_summary_tells_the_truth(tight: TrainedModel) -> None:
    summary, solution = tight.summary, tight.solution
    assert (summary["n"], summary["d"], summary["p"], summary["solver"]) == (600, 4, 2, "gbcd")
    assert summary["converged"] is True
    assert summary["gradient_inf_norm"] == np.abs(solution.gradient).max() <= 1e-9
    assert summary["column_passes"] == pytest.approx(summary["iterations"] * 80 / 600)
    assert summary["kernel_evaluations"] > summary["column_passes"] * 600**2


def test_by_reference_predicts_the_same(
    world: World, model: ModelRecord, tight: TrainedModel, executor: BlockExecutor, tmp_path: Path
) -> None:
    save(tight, str(tmp_path / "m"), world.train, by_reference=True)
    predict(open_model(str(tmp_path / "m")), world.test, str(tmp_path / "a"), executor)
    predict(model, world.test, str(tmp_path / "b"), executor)
    assert predicted(tmp_path / "a").tobytes() == predicted(tmp_path / "b").tobytes()


def test_identity_tells_runs_apart(world: World, kernel: SquaredExponential) -> None:
    first = Problem(world.train, kernel, Noise(NOISE)).identity()
    assert first == Problem(world.train, SquaredExponential(GAMMA, VARIANCE), Noise(NOISE)).identity()
    others = [
        Problem(world.test, kernel, Noise(NOISE)).identity(),
        Problem(world.train, SquaredExponential(GAMMA, 1.0), Noise(NOISE)).identity(),
        Problem(world.train, kernel, Noise(0.06)).identity(),
    ]
    assert all(other != first for other in others)


# ------------------------------------------------------------------------------------------------------------- training


def test_starting_at_the_answer_takes_no_round(
    world: World, tight: TrainedModel, executor: BlockExecutor, kernel: SquaredExponential
) -> None:
    again = train(world.train, kernel, NOISE, executor, solver=SOLVER, initial=tight.solution.alpha)
    assert again.summary["iterations"] == 0
    assert again.summary["converged"]
    assert again.solution.alpha.tobytes() == tight.solution.alpha.tobytes()


def test_stopping_short_is_said(world: World, executor: BlockExecutor, kernel: SquaredExponential) -> None:
    records: list[Progress] = []
    options = {"solver": SOLVER, "stopping": GradientInfNorm(1e-9) | MaxIterations(3), "callback": records.append}
    trained = train(world.train, kernel, NOISE, in_context(executor, options), **options)
    assert not trained.summary["converged"]
    assert "3 iterations" in trained.summary["reason"]
    assert trained.summary["advice"]
    assert [record.iteration for record in records] == [1, 2, 3]


def test_interrupted_training_says_so(world: World, executor: BlockExecutor, kernel: SquaredExponential) -> None:
    asked = iter([False, False, True])
    with pytest.raises(InterruptedRunError, match="after 2 rounds"):
        train(world.train, kernel, NOISE, RunContext(executor, interrupted=lambda: next(asked)), solver=SOLVER)


def test_no_targets_is_bad_input(
    world: World, executor: BlockExecutor, kernel: SquaredExponential, tmp_path: Path
) -> None:
    inputs = dataset_from_arrays(tmp_path / "inputs", draw(50, 3)[0], None, feature_names=NAMES)
    with pytest.raises(InputError, match="Ingest the data again"):
        train(inputs, kernel, NOISE, executor)


def test_a_kernel_for_other_features_is_bad_input(world: World, executor: BlockExecutor) -> None:
    with pytest.raises(InputError, match="the kernel is of 3 features, the data have 4"):
        train(world.train, SquaredExponential((1.0, 1.0, 1.0)), NOISE, executor)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf")])
def test_a_noise_variance_that_is_none_is_bad_input(
    world: World, executor: BlockExecutor, kernel: SquaredExponential, noise: float
) -> None:
    with pytest.raises(InputError, match="noise variance"):
        train(world.train, kernel, noise, executor)


# ----------------------------------------------------------------------------------------------------------- predicting


@pytest.fixture(scope="module")
def expected(world: World, model: ModelRecord) -> FloatArray:
    single = LocalExecutor(1)
    predict(model, world.test, str(world.folder / "expected"), single)
    single.close()
    return predicted(world.folder / "expected")


def test_a_feature_that_varied_in_training_only_still_counts(
    world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path
) -> None:
    """Constant on the test set, it is dropped from that store's own features; the model must see its value."""
    same_wind = world.X_test.copy()
    same_wind[:, 4] = 2.5
    dataset = dataset_from_arrays(tmp_path / "d", same_wind, world.y_test, feature_names=NAMES, target_names=TARGETS)
    assert "wind" not in dataset.feature_names
    predict(model, dataset, str(tmp_path / "p"), executor)
    X, y = draw(600, 1)
    mean, _ = dense_gp(X[:, [0, 1, 3, 4]], y, same_wind[:, [0, 1, 3, 4]])
    scale = y.std(axis=0)
    np.testing.assert_allclose(predicted(tmp_path / "p") / scale, mean / scale, atol=1e-7, rtol=0)


def test_progress_counts_up_to_all(world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    predict(
        model,
        world.test,
        Destination(str(tmp_path / "p"), chunk_rows=64),
        RunContext(executor, within=lambda now: seen.append((now.done, now.total))),
    )
    assert seen == [(64, 230), (128, 230), (192, 230), (230, 230)]


class Counting:
    """An executor that notes the test rows asked for, and may fail after so many rounds."""

    def __init__(self, executor: BlockExecutor, fail_after: int | None = None) -> None:
        self._executor, self._fail_after = executor, fail_after
        self.rows: list[tuple[int, int]] = []
        self.rounds = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(
        self, name: str, task: Any, arguments: tuple[Any, ...], groups: Sequence[Any], *hints: Any
    ) -> PendingRound:
        if self.rounds == self._fail_after:
            raise NumericalError("on purpose")
        self.rounds += 1
        self.rows += [(piece.start, piece.stop) for group in groups for piece in group]
        return self._executor.submit(name, task, arguments, groups, *hints)


def test_an_interrupted_prediction_goes_on_where_it_was(
    world: World, model: ModelRecord, executor: BlockExecutor, expected: FloatArray, tmp_path: Path
) -> None:
    url = str(tmp_path / "p")
    asked = iter([False, False, True])
    with pytest.raises(InterruptedRunError, match="after 128 of 230") as caught:
        predict(
            model, world.test, Destination(url, chunk_rows=64), RunContext(executor, interrupted=lambda: next(asked))
        )
    assert str(caught.value.checkpoint) == url
    counting, seen = Counting(executor), []
    predict(
        model, world.test, Destination(url, resume=True), RunContext(counting, within=lambda now: seen.append(now.done))
    )
    assert counting.rows == [(128, 192), (192, 230)]
    assert seen == [192, 230]
    assert predicted(tmp_path / "p").tobytes() == expected.tobytes()


def test_a_failed_prediction_keeps_what_was_done(
    world: World, model: ModelRecord, executor: BlockExecutor, expected: FloatArray, tmp_path: Path
) -> None:
    url = str(tmp_path / "p")
    with pytest.raises(NumericalError):
        predict(model, world.test, Destination(url, chunk_rows=100), Counting(executor, fail_after=1))
    counting = Counting(executor)
    predict(model, world.test, Destination(url, resume=True), counting)
    assert counting.rows == [(100, 200), (200, 230)]
    assert predicted(tmp_path / "p").tobytes() == expected.tobytes()


def test_a_prediction_that_fails_at_once_leaves_nothing(
    world: World, model: ModelRecord, executor: BlockExecutor, tmp_path: Path
) -> None:
    with pytest.raises(NumericalError):
        predict(model, world.test, str(tmp_path / "p"), Counting(executor, fail_after=0))
    assert not (tmp_path / "p").exists()


def test_resuming_a_finished_prediction_computes_nothing(
    world: World, model: ModelRecord, executor: BlockExecutor, expected: FloatArray, tmp_path: Path
) -> None:
    predict(model, world.test, str(tmp_path / "p"), executor)
    counting = Counting(executor)
    predict(model, world.test, Destination(str(tmp_path / "p"), resume=True), counting)
    assert counting.rounds == 0
    assert predicted(tmp_path / "p").tobytes() == expected.tobytes()


def test_resuming_with_other_data_or_model_is_refused(
    world: World, model: ModelRecord, tight: TrainedModel, executor: BlockExecutor, tmp_path: Path
) -> None:
    url = str(tmp_path / "p")
    predict(model, world.test, url, executor)
    before = predicted(tmp_path / "p").tobytes()
    with pytest.raises(InputError, match="other data"):
        predict(model, world.train, Destination(url, resume=True), executor)
    save(tight, str(tmp_path / "m"), world.train)
    with pytest.raises(InputError, match="another model"):
        predict(open_model(str(tmp_path / "m")), world.test, Destination(url, resume=True), executor)
    assert predicted(tmp_path / "p").tobytes() == before
