"""Predictions with variances by neighbours: stores, known noise, trends, resumed runs, executors."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor, LocalExecutor
from dkgp.data import Dataset, ModelRecord, open_model, open_prediction
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, NumericalError
from dkgp.kernels import Matern12, SquaredExponential
from dkgp.models.context import RunContext
from dkgp.models.exact import save, train
from dkgp.models.prediction import exact
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.sums import Sums, SupportInputs
from dkgp.models.variance import ways
from dkgp.models.variance.neighbours import run
from dkgp.models.variance.neighbours.samples import Distances
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import Forecast, Measured
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import MaxIterations
from tests.engine.helpers import AfterSubmit, client_of, opened, worker_pids
from tests.models.variance.variance_world import content

N, TESTS, KERNEL, NOISE = 300, 60, Matern12((1.0, 3.0), 1.2), 0.05
SETTINGS = VarianceSettings(gap=0.05, way="neighbours", latent=True, batch_size=25)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset, Dataset]:
    folder, rng = tmp_path_factory.mktemp("neighbours"), np.random.default_rng(3)
    X, T = rng.uniform(0.0, 10.0, (N, 2)), rng.uniform(-1.0, 11.0, (TESTS, 2))
    y = np.sin(X[:, :1]) + X[:, 1:] + 0.1 * rng.standard_normal((N, 1))
    return folder, dataset_from_arrays(folder / "train", X, y), dataset_from_arrays(folder / "test", T, None)


def made(data: tuple[Path, Dataset, Dataset], name: str, executor: BlockExecutor, **options: Any) -> ModelRecord:
    folder, dataset, _ = data
    if not (folder / name).exists():
        trained = train(dataset, KERNEL, NOISE, executor, stopping=MaxIterations(30), **options)
        save(trained, str(folder / name), dataset)
    return open_model(str(folder / name))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of few points, and few samples around each: most of them are far."""
    monkeypatch.setattr(run, "LEAST", {2: 60})
    monkeypatch.setattr(run, "TILE_POINTS", 8)


@pytest.fixture
def one() -> Any:
    executor = LocalExecutor(1)
    yield executor
    executor.close()


@pytest.mark.parametrize("mean", ["centred", "linear"])
@pytest.mark.parametrize("known", [False, True])
def test_stored_intervals_contain_the_exact_variance(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path, few: None, mean: str, known: bool
) -> None:
    own = np.random.default_rng(5).uniform(0.0, 2.0, N) if known else None
    model = made(data, f"{mean}{known}", one, mean=mean, sample_noise=own)
    _, dataset, test = data
    for latent in (True, False):
        out = str(tmp_path / f"p{latent}")
        summary = predict(model, test, out, one, variance=replace(SETTINGS, latent=latent))
        seen = test.as_seen_by(model.feature_names, model.target_names, model.standardisation)
        x, t = dataset.inputs(0, N), seen.inputs(0, TESTS)
        inverse = np.linalg.inv(KERNEL(x, x) + np.diag(NOISE + (np.zeros(N) if own is None else own)))
        k = KERNEL(x, t)
        variance = 1.2 - np.einsum("ij,ij->j", k, inverse @ k) + (0.0 if latent else NOISE)
        if mean == "linear":
            H, h = np.column_stack([np.ones(N), x]), np.column_stack([np.ones(TESTS), t])
            R = h - k.T @ inverse @ H
            variance = variance + np.einsum("ij,ij->i", R, np.linalg.solve(H.T @ inverse @ H, R.T).T)
        variance = variance * float(model.standardisation.target_std[0]) ** 2
        stored = open_prediction(out)
        lower, upper = (stored.read(f"variance_{end}")[:, 0] for end in ("lower", "upper"))
        assert (lower <= variance * (1.0 + 1e-10)).all()
        assert (variance * (1.0 - 1e-10) <= upper).all()
        assert stored.attributes["variance"]["way"] == "neighbours"
        assert summary.variance is not None
        assert summary.variance["met"] + summary.variance["unmet"] == TESTS
        assert np.mean((upper - lower) / upper <= 0.05) > 0.9


@pytest.mark.parametrize("mean", ["centred", "linear"])
def test_means_beside_them_may_be_sums_within_an_error(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mean: str
) -> None:
    model, (_, _, test) = made(data, f"{mean}False", one, mean=mean), data
    predict(model, test, str(tmp_path / "every"), one, variance=SETTINGS)
    monkeypatch.setattr(exact, "chosen_sums", lambda *arguments: Sums(1e-4))
    predict(model, test, str(tmp_path / "within"), one, variance=SETTINGS)
    every, within = open_prediction(str(tmp_path / "every")), open_prediction(str(tmp_path / "within"))
    assert within.attributes["product_error"] == 1e-4
    for name in ("variance_lower", "variance_upper"):
        # Errors of the columns of a linear mean are part of the intervals.
        np.testing.assert_allclose(within.read(name), every.read(name), rtol=1e-3 if mean == "linear" else 0.0)
    difference = np.abs(every.read("mean") - within.read("mean"))
    assert (difference <= every.read("mean_error_bound") + within.read("mean_error_bound")).all()
    assert (within.read("mean_error_bound") > every.read("mean_error_bound")).any()


def test_points_that_miss_the_gap_keep_their_intervals_and_are_counted(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MOST", 5)
    monkeypatch.setattr(run, "LEAST", {2: 5})
    settings = replace(SETTINGS, gap=0.01)
    summary = predict(made(data, "centredFalse", one), data[2], str(tmp_path / "p"), one, variance=settings)
    stored = open_prediction(str(tmp_path / "p"))
    lower, upper = (stored.read(f"variance_{end}")[:, 0] for end in ("lower", "upper"))
    missed = int(((upper - lower) / upper > 0.01).sum())
    assert summary.variance is not None
    assert 0 < missed < TESTS
    assert summary.variance["unmet"] == missed


@pytest.mark.parametrize("way", ["neighbours", "auto"])
def test_too_many_samples_near_are_refused_at_the_start(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(run, "LEAST", {2: 20})
    monkeypatch.setattr(run, "MOST_BESIDE", {2: 30})
    monkeypatch.setattr(ways, "LEAST_NEAR", 100)
    monkeypatch.setattr(Forecast, "whole", lambda self: 1e9)
    monkeypatch.setattr(ways._Choice, "run", lambda self: self._by_whole())
    kernel = Matern12((1e-4, 1e-4))
    model = replace(made(data, "centredFalse", one), kernel=kernel.to_json())
    context = BlockContext(f"near {way}", SupportInputs.of(model, f"near {way}"), kernel, N)
    seen = data[2].as_seen_by(model.feature_names, model.target_names, model.standardisation)
    request = ways.Request(Subject(model, kernel, context), None, seen, one, replace(SETTINGS, gap=1e-6, way=way))
    if way == "auto":
        assert ways.chosen_run(request).plan["way"] == "cholesky"
        return
    with pytest.raises(InputError, match=f"{N} training samples are too near to test samples, at these length scales"):
        ways.chosen_run(request)


@pytest.mark.parametrize(("kind", "workers"), [("none", 3), pytest.param("processes", 2, marks=pytest.mark.long)])
def test_the_same_bits_on_any_workers(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path, kind: str, workers: int
) -> None:
    model = made(data, "centredFalse", one)
    predict(model, data[2], str(tmp_path / "one"), one, variance=SETTINGS)
    with opened(kind, workers) as executor:
        predict(model, data[2], str(tmp_path / "other"), executor, variance=SETTINGS)
    assert content(tmp_path / "one") == content(tmp_path / "other")


@pytest.mark.faults
def test_a_worker_that_is_killed_within_a_batch_changes_no_bit(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path
) -> None:
    model = made(data, "centredFalse", one)
    predict(model, data[2], str(tmp_path / "one"), one, variance=SETTINGS)
    with opened("processes", 2) as executor:
        victim = worker_pids(client_of(executor))[0]
        faulty: Any = AfterSubmit(executor, "kneighbours", 1, lambda: os.kill(victim, signal.SIGKILL))
        predict(model, data[2], str(tmp_path / "other"), faulty, variance=SETTINGS)
        assert victim not in worker_pids(client_of(executor))
    assert faulty.done
    assert content(tmp_path / "one") == content(tmp_path / "other")


class _Failing:
    """An executor that fails after two batches."""

    def __init__(self, executor: BlockExecutor) -> None:
        self._executor, self._count = executor, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(self, name: str, *rest: Any) -> Any:
        self._count += name == "kneighbours"
        if self._count > 2:
            raise NumericalError("on purpose")
        return self._executor.submit(name, *rest)


def test_a_resumed_prediction_has_the_same_bits(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path
) -> None:
    model, out = made(data, "centredFalse", one), str(tmp_path / "resumed")
    predict(model, data[2], str(tmp_path / "whole"), one, variance=SETTINGS)
    with pytest.raises(NumericalError, match="on purpose"):
        predict(model, data[2], out, _Failing(one), variance=SETTINGS)
    resumed = Destination(out, resume=True)
    with pytest.raises(InputError, match="was started with"):
        predict(model, data[2], resumed, one, variance=replace(SETTINGS, gap=0.01))
    predict(model, data[2], resumed, one, variance=SETTINGS)
    assert content(tmp_path / "whole") == content(tmp_path / "resumed")


class _Watched:
    """Counts batches that are reported, and asks for an end after some."""

    def __init__(self, executor: BlockExecutor, most: int | None) -> None:
        self.done: list[int] = []
        self._most = most
        self.context = RunContext(
            executor,
            within=lambda progress: self.done.append(progress.done),
            interrupted=lambda: most is not None and len(self.done) >= most,
        )


def test_a_stop_keeps_the_batches_that_are_done(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 test samples are one region of eight batches; one more is under way when the end is asked for."""
    monkeypatch.setattr(run, "BATCH_POINTS", 8)
    settings = replace(SETTINGS, batch_size=None)
    model, out = made(data, "centredFalse", one), tmp_path / "stopped"
    predict(model, data[2], str(tmp_path / "whole"), one, variance=settings)
    stopped = _Watched(one, 3)
    with pytest.raises(InterruptedRunError, match=r"interrupted after \d+ of 60 test samples"):
        predict(model, data[2], str(out), stopped.context, variance=settings)
    assert len(stopped.done) == 4
    parts = sorted((out / "parts").iterdir())
    assert len(parts) == 4
    damaged = bytearray(parts[0].read_bytes())
    damaged[-1] ^= 1
    parts[0].write_bytes(bytes(damaged))
    resumed = _Watched(one, None)
    predict(model, data[2], Destination(str(out), resume=True), resumed.context, variance=settings)
    assert len(resumed.done) == 8 - 3 + 1  # and once for the region
    assert resumed.done[-1] == 60
    assert content(tmp_path / "whole") == content(out)
    assert not (out / "parts").exists()


def test_batches_are_neighbours_and_as_many_as_counted(rng: np.random.Generator) -> None:
    distances = Distances.of(KERNEL)
    for n in (1, 7, 8, 9, 60, 1001):
        points = rng.uniform(size=(n, 2))
        rows = run._Batches.of(distances, points, 8).rows
        assert len(rows) == run.batch_count(n, 8)
        assert max(len(part) for part in rows) <= 8
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(n))
    widths = [np.ptp(points[part] * distances.metric, axis=0).max() for part in rows]
    assert np.median(widths) < 0.2 * distances.metric.max()


def test_the_number_of_samples_is_tried_between_two_steps(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "WORTH_HALVING", 10)
    monkeypatch.setattr(run, "LEAST", {2: 10})
    monkeypatch.setattr(run, "STEP", 4.0)
    model = made(data, "centredFalse", one)
    monkeypatch.setattr(run, "HALVINGS", 5)
    settings = replace(SETTINGS, gap=1e-3)
    predict(model, data[2], str(tmp_path / "halved"), one, variance=settings)
    monkeypatch.setattr(run, "HALVINGS", 0)
    predict(model, data[2], str(tmp_path / "plain"), one, variance=settings)
    halved, plain = (
        open_prediction(str(tmp_path / name)).attributes["variance"]["neighbours"] for name in ("halved", "plain")
    )
    assert plain / 4.0 < halved < plain


@pytest.mark.parametrize(
    ("others", "quicker", "least", "gap", "way"),
    [
        (1e9, False, 100, 0.05, "neighbours"),
        (1e-9, False, 100, 0.05, "cholesky"),  # a factor of all samples takes less
        (1e9, True, 100, 0.05, "cholesky"),  # another way takes less
        (1e9, False, N + 1, 0.05, "cholesky"),  # too few training samples
        (1e9, False, 100, 1e-13, "cholesky"),  # the trial misses the gap
    ],
)
def test_neighbours_are_chosen_where_they_suffice_and_take_least(
    data: tuple[Path, Dataset, Dataset],
    one: BlockExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: float,
    quicker: bool,
    least: int,
    gap: float,
    way: str,
) -> None:
    monkeypatch.setattr(ways, "LEAST_NEAR", least)
    monkeypatch.setattr(Forecast, "whole", lambda self: others)
    monkeypatch.setattr(ways, "_partial_is_quicker", lambda *arguments: quicker)
    monkeypatch.setattr(ways._Choice, "run", lambda self: self._by_whole())
    notes: list[str] = []
    settings = replace(SETTINGS, way="auto", gap=gap)
    predict(made(data, "centredFalse", one), data[2], str(tmp_path / "p"), one, variance=settings, note=notes.append)
    assert open_prediction(str(tmp_path / "p")).attributes["variance"]["way"] == way
    assert any("samples around each tile" in note for note in notes) == (way == "neighbours")


@pytest.mark.parametrize(
    ("gamma", "seconds", "quicker"), [(0.01, 1e9, True), (100.0, 1e9, False), (0.01, 1e-12, False)]
)
def test_a_partial_factor_of_a_smooth_problem_is_quicker(
    data: tuple[Path, Dataset, Dataset], one: BlockExecutor, gamma: float, seconds: float, quicker: bool
) -> None:
    """It is where it suffices at a rank that takes less than the forecast of neighbours."""
    kernel = SquaredExponential((gamma, gamma))
    model = replace(made(data, "centredFalse", one), kernel=kernel.to_json())
    context = BlockContext(f"quicker {gamma} {seconds}", SupportInputs.of(model, "quicker"), kernel, N)
    request = ways.Request(Subject(model, kernel, context), None, data[2], one, SETTINGS)
    forecast = Forecast(N, 100, 2, 1, True, Measured.nominal(2))
    assert ways._partial_is_quicker(request, forecast, seconds) is quicker


def test_settings_of_the_iterative_way_are_refused() -> None:
    with pytest.raises(InputError, match="'neighbours' is asked for"):
        replace(SETTINGS, rank=5)
