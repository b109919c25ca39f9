"""Predictions with variances by neighbours: stores, known noise, trends, resumed runs, executors."""

from __future__ import annotations

import itertools
import os
import signal
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor
from dkgp.data import Dataset, ModelRecord, open_model, open_prediction
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, MemoryBudgetError
from dkgp.kernels import (
    ActiveDimensions,
    Constant,
    Cubic,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Spherical,
    SquaredExponential,
    Stable,
    Sum,
)
from dkgp.models.context import RunContext
from dkgp.models.exact import save, train
from dkgp.models.prediction import exact
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.sums import Sums, SupportInputs
from dkgp.models.variance import ways
from dkgp.models.variance.neighbours import run, samples
from dkgp.models.variance.neighbours.run import NeighbourOptions, batch_bounds
from dkgp.models.variance.neighbours.samples import Boxes, Distances, Samples, basis, nodes
from dkgp.models.variance.scaled import Subject
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import Forecast, Measured
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers import MaxIterations
from tests.engine.helpers import AfterSubmit, client_of, content, opened, worker_pids
from tests.models.exact_gp import ExactGP, mp

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
def one(one_thread: BlockExecutor) -> BlockExecutor:
    return one_thread


@pytest.mark.spread(2)
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
    with pytest.raises(InputError, match="was started with"):
        predict(model, data[2], Destination(str(out), resume=True), one, variance=replace(settings, gap=0.01))
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
    assert any("samples around it; a bound covers all other samples" in note for note in notes) == (way == "neighbours")


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
    with pytest.raises(InputError, match="got 'neighbours'"):
        replace(SETTINGS, rank=5)


# Intervals by neighbours against the exact variance in extended precision and in 50 digits.


Long = np.longdouble
_RUNS = itertools.count()
KINDS = ("uniform", "clusters", "grid", "duplicates", "collinear", "outliers")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Few samples make many boxes, expansions are rough, and far samples may cost as much as they like."""
    monkeypatch.setattr(samples, "LEAF", {1: 4, 2: 8, 3: 8})
    monkeypatch.setattr(samples, "ORDER", {1: 3, 2: 3, 3: 2})
    monkeypatch.setattr(samples, "SUMMED", 20)
    monkeypatch.setattr(run, "SOURCE_ORDER", {1: 4, 2: 4, 3: 3})
    monkeypatch.setattr(run, "FAR_SHARE", 1e3)
    monkeypatch.setattr(run, "MOST_FITTED", 9)
    monkeypatch.setattr(run, "TILE_POINTS", 6)
    return monkeypatch


@dataclass(frozen=True)
class Problem:
    """Samples with their noise variances (n,), test points, a kernel."""

    X: np.ndarray
    T: np.ndarray
    kernel: Any
    noise: np.ndarray

    @classmethod
    def draw(cls, seed: int, n: int, d: int, kind: str, kernel: type[Any], noise: float, **shape: float) -> Problem:
        """Draw samples; the noise of every second problem goes over four decades."""
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1.7, 1.7, (n, d))
        if kind == "clusters":
            X = rng.normal(size=(4, d))[rng.integers(0, 4, n)] + 1e-2 * X
        elif kind == "grid":
            X = np.round(4.0 * X) / 4.0
        elif kind == "duplicates":
            X = X[rng.integers(0, n // 3, n)]
        elif kind == "collinear":
            X = X[:, :1] * rng.normal(size=(1, d))
        elif kind == "outliers":
            X[::7] *= 50.0
        kernel_drawn = kernel(tuple(0.5 / 10.0 ** rng.uniform(-2.0, 1.0, d)), 10.0 ** rng.uniform(-1.0, 1.0), **shape)
        s2 = noise * kernel_drawn.variance
        noises = np.full(n, s2) if seed % 2 else s2 * 10.0 ** rng.uniform(0.0, 4.0, n)
        T = np.concatenate([X[:3], X[3:5] + 1e-6, rng.uniform(-2.0, 2.0, (6, d)), np.full((1, d), 30.0)])
        return cls(X, T, kernel_drawn, noises)

    def samples(self, monkeypatch: pytest.MonkeyPatch) -> Samples:
        context = BlockContext(f"neighbours {next(_RUNS)}", ArrayInputs(self.X), self.kernel, len(self.X))
        monkeypatch.setattr(samples, "noise_variances", lambda *arguments: self.noise.copy())
        return Samples.of(context, float(self.noise.min()))

    def exact(self) -> np.ndarray:
        """Variances of the function, by elimination in extended precision: (t,)."""
        K, R = self._entries(self.X, self.X), self._entries(self.X, self.T)
        K[np.diag_indices(len(K))] += self.noise
        explained = np.zeros(len(self.T), Long)
        for j in range(len(K)):
            explained += R[j] ** 2 / K[j, j]
            share = K[j + 1 :, j] / K[j, j]
            K[j + 1 :, j + 1 :] -= np.outer(share, K[j, j + 1 :])
            R[j + 1 :] -= np.outer(share, R[j])
        return Long(self.kernel.variance) - explained

    def _entries(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        kernel = self.kernel
        s = np.zeros((len(A), len(B)), Long)
        for feature, gamma in enumerate(kernel.gamma):
            s += Long(gamma) * (A.astype(Long)[:, None, feature] - B.astype(Long)[None, :, feature]) ** 2
        if isinstance(kernel, SquaredExponential):
            f = np.exp(-s)
        elif isinstance(kernel, Stable):
            f = np.exp(-((2 * s) ** (Long(kernel.alpha) / 2)))
        elif isinstance(kernel, Spherical | Cubic):
            u = np.minimum(np.sqrt(2 * s), 1)
            f = 1 - 1.5 * u + u**3 / 2
            if isinstance(kernel, Cubic):
                f = 1 - 7 * u**2 + 8.75 * u**3 - 3.5 * u**5 + 0.75 * u**7
        elif isinstance(kernel, RationalQuadratic):
            f = (1 + s / Long(kernel.alpha)) ** -Long(kernel.alpha)
        else:
            twice_nu = {Matern12: 1, Matern32: 3, Matern52: 5}[type(kernel)]
            u = np.sqrt(2 * twice_nu * s)
            f = np.exp(-u) * {1: 1, 3: 1 + u, 5: 1 + u + u * u / 3}[twice_nu]
        return np.asarray(Long(kernel.variance) * f)


def bounds_of(problem: Problem, monkeypatch: pytest.MonkeyPatch, count: int, gap: float = 0.02) -> Any:
    with np.errstate(all="ignore"):
        return batch_bounds(problem.samples(monkeypatch), problem.T, 0.0, NeighbourOptions(gap, True, count))


KERNELS: tuple[tuple[type[Any], dict[str, float]], ...] = (
    (SquaredExponential, {}),
    (Matern12, {}),
    (Matern32, {}),
    (Matern52, {}),
    (RationalQuadratic, {"alpha": 0.7}),
    (Stable, {"alpha": 0.7}),
    (Stable, {"alpha": 1.4}),
    (Spherical, {}),
    (Cubic, {}),
)


@pytest.mark.spread(10)
@pytest.mark.covering(2)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda pair: pair[0].__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_contain_the_exact_variance(
    kind: str, kernel: tuple[type[Any], dict[str, float]], d: int, small: pytest.MonkeyPatch
) -> None:
    seed = KINDS.index(kind) * 15 + KERNELS.index(kernel) * 3 + d
    problem = Problem.draw(seed, 60, d, kind, kernel[0], 10.0 ** -(seed % 5), **kernel[1])
    exact = problem.exact()
    for count in (3, 25):
        small.setattr(run, "ATTEMPTS", 0)
        bounds = bounds_of(problem, small, count)
        assert (bounds.lower <= exact).all()
        assert (exact <= bounds.upper).all()


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", range(6))
def test_intervals_hold_in_50_digits(seed: int, small: pytest.MonkeyPatch) -> None:
    kernel, shape = KERNELS[seed % len(KERNELS)]
    problem = Problem.draw(seed, 30, 1 + seed % 3, KINDS[seed], kernel, 10.0**-seed, **shape)
    gp = ExactGP(problem.X, problem.T, [[mp.mpf(0)]] * 30, problem.kernel, problem.noise)
    _, exact = gp._solved
    for count in (4, 15, 30):
        bounds = bounds_of(problem, small, count)
        for lower, upper, variance in zip(bounds.lower, bounds.upper, exact, strict=True):
            assert mp.mpf(float(lower)) <= variance <= mp.mpf(float(upper))


@pytest.mark.parametrize(
    ("kernel", "count", "widest"),
    [(Matern12, 60, 0.02), (Matern32, 200, 0.02), (Spherical, 200, 0.02), (Cubic, 400, 0.02)],
)
def test_a_part_of_the_samples_gives_narrow_intervals(
    kernel: type[Any], count: int, widest: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 1200
    X, T = rng.uniform(0.0, 1.0, (n, 2)), rng.uniform(0.45, 0.55, (12, 2))
    problem = Problem(X, T, kernel((50.0, 50.0)), np.full(n, 0.01))
    monkeypatch.setattr(run, "ATTEMPTS", 0)
    bounds = bounds_of(problem, monkeypatch, count)
    assert bounds.gaps(np.arange(12)).max() < widest
    K = problem.kernel(X, X) + 0.01 * np.eye(n)
    columns = problem.kernel(X, T)
    exact = 1.0 - np.einsum("it,it->t", columns, np.linalg.solve(K, columns))
    assert (bounds.lower <= exact + 1e-12).all()
    assert (exact - 1e-12 <= bounds.upper).all()


# ------------------------------------------------------------------------------------------------------- mutations


@pytest.mark.spread(1)
@pytest.mark.parametrize("mutation", ["nothing", "far samples", "error of far samples"])
def test_a_proof_without_one_of_its_terms_breaks(mutation: str, small: pytest.MonkeyPatch) -> None:
    """The tests above see each term: without it some interval no longer contains the exact variance."""
    small.setattr(run, "ATTEMPTS", 0)
    plain = run.Tile._far
    if mutation == "far samples":
        small.setattr(run.Tile, "_far", lambda *arguments: None)
    elif mutation == "error of far samples":
        small.setattr(run, "SOURCE_ORDER", {1: 2, 2: 2})
        small.setattr(run.Tile, "_far", lambda self, *rest: _without_error(plain(self, *rest)))
    broken = 0
    for seed in range(12):
        problem = Problem.draw(seed, 80, 1 + seed % 2, ("uniform", "clusters", "duplicates")[seed % 3], Matern52, 0.1)
        broken += int((bounds_of(problem, small, 6).lower > problem.exact()).sum())
    assert (broken > 0) == (mutation != "nothing")


def test_boxes_that_only_their_points_are_far_from_count_by_these(small: pytest.MonkeyPatch) -> None:
    """Without expansions of a tile, boxes apart from it are taken by their points; they and their error count."""
    small.setattr(run, "ATTEMPTS", 0)
    small.setattr(run, "SOURCE_ORDER", {1: 7, 2: 7})
    errors, plain = Distances.errors, run.Tile._split

    def none_of_tiles(self: Distances, centres: Any, halves: Any, others: Boxes, order: int) -> Any:
        made = errors(self, centres, halves, others, order)
        return np.full(len(made), np.inf) if order == 7 else made

    def without(change: dict[str, Any], taken: list[int]) -> Any:
        def split(self: Any, box: Boxes, tolerance: float) -> Any:
            made = plain(self, box, tolerance)
            taken.append(len(made.near))
            return replace(made, **change)

        return split

    small.setattr(Distances, "errors", none_of_tiles)
    for kind in ("uniform", "clusters", "duplicates"):
        problem, lower = Problem.draw(2, 80, 2, kind, Matern52, 0.1), []
        taken: list[int] = []
        for change in ({}, {"near_error": 0.0}, {"near": np.zeros(0, dtype=np.intp), "near_error": 0.0}):
            small.setattr(run.Tile, "_split", without(change, taken))
            lower.append(bounds_of(problem, small, 6).lower)
        assert sum(taken) > 0
        assert (lower[0] <= problem.exact()).all()
        assert (lower[0] <= lower[1]).all()
        assert (lower[0] < lower[1]).any()
        assert (lower[1] != lower[2]).any()


def test_more_samples_than_are_taken_one_by_one_have_rougher_expansions_or_no_lower_end(
    small: pytest.MonkeyPatch,
) -> None:
    small.setattr(run, "ATTEMPTS", 0)
    small.setattr(run, "FAR_SHARE", 1e-12)
    problem = Problem.draw(1, 80, 2, "uniform", Matern12, 0.1)
    exact, plain = problem.exact(), bounds_of(problem, small, 12)
    small.setattr(run, "MOST_BESIDE", {2: 40})
    rough = bounds_of(problem, small, 12)
    small.setattr(run, "LOOSENED", 0)
    none = bounds_of(problem, small, 12)
    for bounds in (plain, rough, none):
        assert (bounds.lower <= exact).all()
        assert (exact <= bounds.upper).all()
    assert (rough.lower < plain.lower).any()
    assert (none.lower == 0.0).any()
    assert (rough.upper == none.upper).all()


def test_samples_that_are_added_up_in_pieces_count_as_those_that_are_held(small: pytest.MonkeyPatch) -> None:
    """Weights from a few of them are no better than weights from all: lower ends may only fall."""
    small.setattr(run, "ATTEMPTS", 0)
    small.setattr(run, "FAR_SHARE", 1e-12)
    small.setattr(run, "PIECE", 16)
    fell = 0
    for seed in range(4):
        problem = Problem.draw(seed, 80, 2, ("uniform", "clusters")[seed % 2], Matern12, 0.1)
        small.setattr(run, "MOST_FITTED", 80)
        held = bounds_of(problem, small, 12)
        small.setattr(run, "MOST_FITTED", 7)
        added = bounds_of(problem, small, 12)
        assert (added.lower <= held.lower * (1.0 + 1e-6) + 1e-9).all()
        assert (added.lower <= problem.exact()).all()
        assert (added.upper == held.upper).all()
        fell += int((added.lower < held.lower).sum())
    assert fell > 0


def _without_error(far: Any) -> Any:
    return None if far is None else replace(far, error=0.0)


# ---------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(("d", "n", "count"), [(1, 3000, 96), (2, 6000, 300), (3, 4000, 300)])
def test_memory_is_what_is_counted(
    d: int, n: int, count: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, T = rng.uniform(0.0, 1.0, (n, d)), rng.uniform(0.4, 0.5, (100, d))
    made = Problem(X, T, Matern12((30.0,) * d), np.full(n, 0.01)).samples(monkeypatch)
    assert 0.4 < made.nbytes / samples.held_bytes(n, d) <= 1.0
    some = run.Tile.of(made, T)
    some.ends(count, 0.05)
    tracemalloc.start()
    some.ends(count, 0.05)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.1 < peak / run.working_bytes(100, count, d) <= 1.0


def test_the_number_of_samples_keeps_within_the_memory() -> None:
    for memory in (100_000_000, 300_000_000):
        most = run.largest_count(memory, 100_000, 2, 2)
        sizes = [samples.held_bytes(100_000, 2) + 2 * run.working_bytes(256, each, 2) for each in (most, most + 1)]
        assert sizes[0] <= memory < sizes[1]
    with pytest.raises(MemoryBudgetError, match=r"take .* MiB at least in a process of 16 threads; .* is 95.4 MiB"):
        run.largest_count(100_000_000, 100_000, 2, 16)


# ------------------------------------------------------------------------------------------------------ expansions


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda pair: pair[0].__name__)
def test_interpolation_errors_are_bounds(
    kernel: tuple[type[Any], dict[str, float]], d: int, rng: np.random.Generator
) -> None:
    tightest = np.inf
    for _ in range(60):
        made: Any = kernel[0](tuple(10.0 ** rng.uniform(-2.0, 1.0, d)), 1.7, **kernel[1])
        order, half = int(rng.integers(2, 8)), rng.uniform(0.01, 1.0, d)
        other = Boxes(rng.uniform(-4.0, 4.0, d), rng.uniform(0.0, 0.5, d))
        (bound,) = Distances.of(made).errors(np.zeros((1, d)), half, other, order)
        box = Boxes(np.zeros(d), half)
        x = np.concatenate([rng.uniform(-1.0, 1.0, (60, d)) * half, half * np.ones((1, d))])
        y = other.centre + rng.uniform(-1.0, 1.0, (40, d)) * other.half
        y = np.concatenate([y, other.centre - np.sign(other.centre) * other.half * np.ones((1, d))])
        off = np.abs(basis(x, box, order) @ made(nodes(box, order), y) - made(x, y)).max()
        assert off <= bound * (1.0 + 1e-9) + 1e-12
        if np.isfinite(bound):
            tightest = min(tightest, bound / max(off, 1e-300))
    assert tightest < 1e3


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_weighted_points_of_a_box_bound_sums_of_squares(
    kind: str, d: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For polynomials of the degree that counts, from the eigenvectors that come closest among others."""
    monkeypatch.setattr(samples, "LEAF", {1: 4, 2: 8, 3: 8})
    monkeypatch.setattr(samples, "ORDER", {1: 4, 2: 3, 3: 2})
    monkeypatch.setattr(samples, "SUMMED", 40)
    made = Problem.draw(2 * d, 150, d, kind, Matern12, 0.1).samples(monkeypatch)
    assert (made.child >= 0).any()
    for box in np.flatnonzero(made.child >= 0):
        rows = slice(made.start[box], made.stop[box])
        values = basis(made.points[rows], Boxes(made.box.centre[box], made.box.half[box]), made.order)
        exact = values.T @ (values / made.noise[rows, None])
        weights = made.weights[box]
        vectors = np.linalg.eigh(exact / np.sqrt(np.outer(weights, weights)))[1] / np.sqrt(weights)[:, None]
        h = np.concatenate([vectors, rng.normal(size=(len(weights), 8))], axis=1)
        assert (np.einsum("at,ab,bt->t", h, exact, h) <= (weights @ h**2) * (1.0 + 1e-9)).all()
        assert made.mass[box] >= (1.0 / made.noise[rows]).sum() * (1.0 - 1e-12)


# --------------------------------------------------------------------------------------------------------- kernels


def test_a_sum_of_kernels_of_different_features_is_bounded(small: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    kernel = Sum(
        (
            ActiveDimensions(Matern12((2.0,), 0.7), (0,), 3),
            ActiveDimensions(Matern52((0.5, 3.0), 0.4), (0, 2), 3),
            Constant(0.3, 3),
        )
    )
    X, T = rng.uniform(-1.0, 1.0, (40, 3)), rng.uniform(-1.2, 1.2, (8, 3))
    context = BlockContext(f"neighbours {next(_RUNS)}", ArrayInputs(X), kernel, 40)
    made = Samples.of(context, 0.01)
    assert made.distances.features == (0, 2)
    with np.errstate(all="ignore"):
        bounds = batch_bounds(made, T, 0.0, NeighbourOptions(0.02, True, 12))
    gp = ExactGP(X, T, [[mp.mpf(0)]] * 40, kernel, 0.01)
    for lower, upper, variance in zip(bounds.lower, bounds.upper, gp._solved[1], strict=True):
        assert mp.mpf(float(lower)) <= variance <= mp.mpf(float(upper))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Matern12((1.0,) * 4), "at most 3 features"),
        (Linear((1.0, 1.0)), "one scaled distance"),
        (Periodic((1.0, 1.0), (1.0, 1.0)), "periodic"),
    ],
)
def test_other_kernels_are_refused(kernel: Kernel, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Distances.of(kernel)
