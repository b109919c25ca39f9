"""Variances from `predict` to the store, in the targets' units, against a dense Gaussian process on raw data.

Layouts on workers have the same bits; refusals, memory limits, and the factor that is kept with a model.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dkgp.cluster import BlockExecutor, LocalExecutor, PendingRound
from dkgp.codec import to_json
from dkgp.data import ModelRecord, open_dataset, open_factor, open_model, open_prediction
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import ExitCode, InputError, InterruptedRunError, MemoryBudgetError, NumericalError, StoreError
from dkgp.kernels import SquaredExponential
from dkgp.models.context import RunContext
from dkgp.models.exact import save, train
from dkgp.models.prediction.predict import Destination, PredictSummary, predict
from dkgp.models.variance import iterative
from dkgp.models.variance.iterative import BatchLayout, IterativeRun, building_bytes, chosen_rank, decided_batch
from dkgp.models.variance.nystrom import NystromFactor, landmark_jitter
from dkgp.models.variance.settings import VarianceSettings
from dkgp.plan.foreseen import PlannedWorkers
from dkgp.registry import byte_text
from dkgp.solvers import MaxIterations
from dkgp.solvers.conjugate.preconditioner import Batches
from dkgp.solvers.prices import Sizes
from tests.covering import few
from tests.engine.helpers import content
from tests.models.variance.variance_world import KERNEL, NOISE, QUICK, TESTS, Counting, N, World, gaps

pytestmark = pytest.mark.filterwarnings("ignore:The feature:UserWarning")

VARIABLES = ("mean", "mean_error_bound", "variance", "variance_lower", "variance_upper")


@pytest.mark.parametrize(
    ("n_test", "batch"),
    [(0, 1), (1, 1), (1023, 1023), (1024, 512), (2046, 682), (2048, 512), (8193, 2049), (16384, 4096), (16385, 3277)],
)
def test_batches_where_the_factor_decides(n_test: int, batch: int) -> None:
    """Four of 512 or more, none of more than 4,096."""
    assert decided_batch(n_test) == batch


# ------------------------------------------------------------------------------------------------- against the dense GP


@pytest.mark.spread(3)
@pytest.mark.covering
@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"rank": 5}, {"rank": 400}, {"rank": 40, "halo": 60}, {"max_passes": 0, "rank": 30}, {"gap": 1e-5}]
)
def test_intervals_contain_the_dense_gps_variances(
    world: World, executor: BlockExecutor, tmp_path: Path, latent: bool, settings: dict[str, Any]
) -> None:
    asked = VarianceSettings(**{"gap": 0.01, **settings}, latent=latent)
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=asked)
    stored = open_prediction(str(tmp_path / "p"))
    assert stored.variables == VARIABLES
    exact = world.latent + (0.0 if latent else world.noise)
    lower, upper, variance = (stored.read(name) for name in ("variance_lower", "variance_upper", "variance"))
    assert lower.shape == upper.shape == (TESTS, 2)
    assert (lower <= exact * (1 + 1e-9)).all()
    assert (exact <= upper * (1 + 1e-9)).all()
    assert (lower >= (0.0 if latent else world.noise * (1 - 1e-12))).all()
    assert variance.tobytes() == (lower + 0.5 * (upper - lower)).tobytes()
    found = summary.variance
    assert found is not None
    assert found["latent"] is latent
    assert (found["met"], found["unmet"]) == (np.sum(gaps(stored) <= asked.gap), np.sum(gaps(stored) > asked.gap))
    assert (found["unmet"] > 0) == (asked.max_passes == 0)


def test_a_factor_that_has_to_do_is_as_exact_as_it_says(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    """No gap so small that the plan hopes for the factor, no pass allowed: the bound is the factor's, nearly tight."""
    smooth = SquaredExponential((0.01, 0.02, 0.01))
    save(train(world.train, smooth, NOISE, executor, stopping=MaxIterations(1)), str(tmp_path / "m"), world.train)
    settings = VarianceSettings(gap=1e-12, max_passes=0)
    predict(open_model(str(tmp_path / "m")), world.test, str(tmp_path / "p"), executor, variance=settings)
    X, T = world.train.inputs(0, N), world.test.with_standardisation(world.train.standardisation).inputs(0, TESTS)
    k = smooth(X, T)
    exact = 1.0 + NOISE - np.sum(k * np.linalg.solve(smooth(X, X) + NOISE * np.eye(N), k), axis=0)
    stored, scale = open_prediction(str(tmp_path / "p")), world.train.standardisation.target_std**2
    for column in (0, 1):
        assert (stored.read("variance_lower")[:, column] <= exact * scale[column] + 1e-11 * scale[column]).all()
        assert (stored.read("variance_upper")[:, column] >= exact * scale[column] - 1e-11 * scale[column]).all()
    assert gaps(stored).max() < 0.05


@pytest.mark.parametrize(("gamma", "rank"), [(0.02, None), (0.5, 100)], ids=["smooth", "rough"])
def test_relative_error_on_friedman1(executor: BlockExecutor, tmp_path: Path, gamma: float, rank: int | None) -> None:
    """Equation 17 of the GBCD paper at a gap of half a percent, by the factor alone and by conjugate gradients."""
    (X, y), (X_test, y_test) = friedman1(700, n_features=5, seed=1), friedman1(100, n_features=5, seed=1, test=True)
    train_set = dataset_from_arrays(tmp_path / "train", X, y)
    test_set = dataset_from_arrays(tmp_path / "test", X_test, y_test)
    kernel = SquaredExponential((gamma,) * 5)
    save(train(train_set, kernel, 0.05, executor, stopping=MaxIterations(1)), str(tmp_path / "m"), train_set)
    settings = VarianceSettings(gap=0.005, rank=rank, way="iterative")
    summary = predict(
        open_model(str(tmp_path / "m")), test_set, str(tmp_path / "p"), executor, variance=settings
    ).variance
    assert summary is not None
    assert summary["unmet"] == 0
    assert summary["smooth"] is (rank is None)
    Z, Z_test = ((values - X.mean(axis=0)) / X.std(axis=0) for values in (X, X_test))
    k = kernel(Z, Z_test)
    exact = 1.05 - np.sum(k * np.linalg.solve(kernel(Z, Z) + 0.05 * np.eye(700), k), axis=0)
    reported = open_prediction(str(tmp_path / "p")).read("variance")[:, 0] / y.var()
    assert np.sqrt(np.mean(((exact - reported) / exact) ** 2)) <= 1e-3


# ------------------------------------------------------------------------------------------------------------ the store


@pytest.fixture(scope="module")
def whole(world: World, executor: BlockExecutor) -> tuple[Path, PredictSummary]:
    """Return the predictions of an uninterrupted run of QUICK."""
    summary = predict(world.model, world.test, str(world.folder / "whole"), executor, variance=QUICK)
    return world.folder / "whole", summary


def test_attributes_say_how_it_was_made(world: World, whole: tuple[Path, PredictSummary]) -> None:
    attributes = open_prediction(str(whole[0])).attributes
    plan = attributes["variance"]
    asked = {"gap": 0.01, "latent": False, "max_passes": 20.0, "rank": 40, "halo": 50, "batch_size": 30, "seed": 0}
    assert {name: plan[name] for name in asked} == asked
    assert attributes["noise_variance"] == pytest.approx(world.noise)
    # As any reader of Zarr sees them.
    shown = dict(zarr.open_group(str(whole[0]), mode="r").attrs)
    assert json.loads(json.dumps(shown)) == shown


def test_summary_is_what_the_store_says(whole: tuple[Path, PredictSummary]) -> None:
    found, summary = gaps(open_prediction(str(whole[0]))), whole[1].variance
    assert summary is not None
    assert summary["gap_max"] == pytest.approx(found.max())
    assert summary["gap_mean"] == pytest.approx(found.mean())
    assert (summary["met"], summary["unmet"], summary["rank"], summary["batch_size"]) == (TESTS, 0, 40, 30)
    assert 1.0 <= summary["column_passes"] <= 20.0
    assert summary["smooth"] is False
    assert json.loads(json.dumps(to_json(whole[1])))["variance"] == summary


def test_those_that_miss_the_gap_are_counted(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    """Without passes the intervals do not depend on the gap, so it can be put in the middle of what they are."""
    found, summary = np.zeros(0), None
    for number, share in enumerate((0.5, 0.5, 0.1, 0.3)):
        gap = float(np.quantile(found, share)) if number else 0.5
        settings = VarianceSettings(gap=gap, max_passes=0, rank=60)
        summary = predict(
            world.model, world.test, str(tmp_path / str(number)), executor, variance=settings
        ).variance  # fmt: skip
        found = gaps(open_prediction(str(tmp_path / str(number))))
        assert summary is not None
        assert summary["unmet"] == np.sum(found > gap)
        assert summary["met"] + summary["unmet"] == TESTS
    assert summary is not None
    assert 0 < summary["unmet"] < TESTS


def test_means_are_those_of_a_run_without_variances(
    world: World, executor: BlockExecutor, whole: tuple[Path, PredictSummary], tmp_path: Path
) -> None:
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor)
    assert summary.variance is None
    alone = content(tmp_path / "p")
    assert set(alone) == {"mean", "mean_error_bound"}
    assert alone["mean"] == content(whole[0])["mean"]
    # A variance below k(x, x) makes the bound of a mean smaller (Theorem 1c).
    bounds = [np.frombuffer(found["mean_error_bound"]) for found in (content(whole[0]), alone)]
    assert (bounds[0] <= bounds[1]).all()
    assert bounds[0].max() < 0.5 * bounds[1].max()
    assert "variance" not in open_prediction(str(tmp_path / "p")).attributes


def test_the_seed_chooses_the_landmarks(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    stores = []
    for number, seed in enumerate((0, 0, 7)):
        settings = VarianceSettings(gap=0.05, rank=40, batch_size=30, seed=seed)
        predict(world.model, world.test, str(tmp_path / str(number)), executor, variance=settings)
        stores.append(content(tmp_path / str(number)))
    assert stores[0] == stores[1]
    assert stores[0]["variance"] != stores[2]["variance"]


@pytest.mark.spread(2)
@pytest.mark.parametrize("chunk_rows", [7, pytest.param(30, marks=pytest.mark.slow), 45, 1000])
def test_chunks_cut_batches_and_bounds_stay_true(
    world: World, executor: BlockExecutor, tmp_path: Path, chunk_rows: int
) -> None:
    counting, seen = Counting(executor), []
    predict(
        world.model,
        world.test,
        Destination(str(tmp_path / "p"), chunk_rows=chunk_rows),
        RunContext(counting, within=lambda now: seen.append((now.done, now.total))),
        variance=QUICK,
    )
    sizes = [stop - start for start, stop in counting.batches]
    assert sum(sizes) == TESTS
    assert max(sizes) == min(chunk_rows, 30)
    assert seen == [(min(done, TESTS), TESTS) for done in range(chunk_rows, TESTS + chunk_rows, chunk_rows)]
    stored, exact = open_prediction(str(tmp_path / "p")), world.latent + world.noise
    assert (stored.read("variance_lower") <= exact * (1 + 1e-9)).all()
    assert (stored.read("variance_upper") >= exact * (1 - 1e-9)).all()
    assert gaps(stored).max() <= 0.01


def test_the_factor_is_announced(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    notes: list[str] = []
    predict(world.model, world.test, str(tmp_path / "p"), executor, variance=QUICK, note=notes.append)
    assert len(notes) == 1
    assert "rank 40" in notes[0]
    assert "halos of 50" in notes[0]


# ------------------------------------------------------------------------------------------------------------- resuming


def interrupt(world: World, executor: BlockExecutor, url: Path, settings: VarianceSettings = QUICK) -> None:
    asked = iter([False, True])
    with pytest.raises(InterruptedRunError, match="after 30 of 90") as caught:
        predict(
            world.model, world.test, str(url), RunContext(executor, interrupted=lambda: next(asked)), variance=settings
        )
    assert str(caught.value.checkpoint) == str(url)


@pytest.mark.parametrize("settings", [QUICK, VarianceSettings(gap=0.01)], ids=["repeated", "sizes left out"])
def test_an_interrupted_run_goes_on_where_it_was(
    settings: Any, world: World, executor: BlockExecutor, whole: tuple[Path, PredictSummary], tmp_path: Path
) -> None:
    interrupt(world, executor, tmp_path / "p")
    counting, seen = Counting(executor), []
    summary = predict(
        world.model,
        world.test,
        Destination(str(tmp_path / "p"), resume=True),
        RunContext(counting, within=lambda now: seen.append(now.done)),
        variance=settings,
    ).variance
    assert counting.batches == [(30, 60), (60, 90)]
    assert seen == [60, 90]
    assert summary is not None
    assert (summary["computed"], summary["met"]) == (60, 90)
    assert content(tmp_path / "p") == content(whole[0])
    assert open_prediction(str(tmp_path / "p")).attributes == open_prediction(str(whole[0])).attributes


def test_a_failed_run_keeps_what_was_done(
    world: World, executor: BlockExecutor, whole: tuple[Path, PredictSummary], tmp_path: Path
) -> None:
    with pytest.raises(NumericalError, match="on purpose"):
        predict(
            world.model,
            world.test,
            Destination(str(tmp_path / "p"), chunk_rows=30),
            Counting(executor, 2),
            variance=QUICK,
        )
    counting = Counting(executor)
    predict(world.model, world.test, Destination(str(tmp_path / "p"), resume=True), counting, variance=QUICK)
    assert 0 < len(counting.batches) < 3
    assert content(tmp_path / "p") == content(whole[0])


def test_one_that_fails_at_once_leaves_nothing(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    with pytest.raises(NumericalError, match="on purpose"):
        predict(world.model, world.test, str(tmp_path / "p"), Counting(executor, 0), variance=QUICK)
    assert not (tmp_path / "p").exists()


def test_resuming_a_finished_run_computes_nothing(
    world: World, executor: BlockExecutor, whole: tuple[Path, PredictSummary], tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "p")
    counting = Counting(executor)
    predict(world.model, world.test, Destination(str(tmp_path / "p"), resume=True), counting, variance=QUICK)
    assert counting.names == []
    assert content(tmp_path / "p") == content(whole[0])


OTHERS: dict[str, VarianceSettings | None] = {
    "gap": VarianceSettings(gap=0.02, rank=40, batch_size=30),
    "passes": VarianceSettings(gap=0.01, rank=40, batch_size=30, max_passes=19),
    "latent": VarianceSettings(gap=0.01, rank=40, batch_size=30, latent=True),
    "seed": VarianceSettings(gap=0.01, rank=40, batch_size=30, seed=1),
    "rank": VarianceSettings(gap=0.01, rank=41, batch_size=30),
    "halo": VarianceSettings(gap=0.01, rank=40, halo=51, batch_size=30),
    "batch size": VarianceSettings(gap=0.01, rank=40, batch_size=31),
    "no variances": None,
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("other", OTHERS)
def test_resuming_with_other_settings_is_refused(
    world: World, executor: BlockExecutor, tmp_path: Path, other: str
) -> None:
    interrupt(world, executor, tmp_path / "p")
    before = sorted(str(path) for path in (tmp_path / "p").rglob("*"))
    with pytest.raises(InputError, match="`overwrite`"):
        predict(
            world.model, world.test, Destination(str(tmp_path / "p"), resume=True), executor, variance=OTHERS[other]
        )
    assert sorted(str(path) for path in (tmp_path / "p").rglob("*")) == before


def test_adding_variances_to_a_run_without_is_refused(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    predict(world.model, world.test, str(tmp_path / "p"), executor)
    with pytest.raises(InputError, match="`overwrite`"):
        predict(world.model, world.test, Destination(str(tmp_path / "p"), resume=True), executor, variance=QUICK)


# Nothing names a batch size: it is the run's own.
SETTINGS = {
    "by the factor": VarianceSettings(gap=0.3, rank=300),
    "products in float64": VarianceSettings(gap=1e-3, rank=40, halo=0),
    "a held factor": VarianceSettings(gap=1e-3, rank=40, halo=0, memory_bytes=2**28),
    "a search in float32": VarianceSettings(gap=1e-3, rank=40, halo=50),
    "several batches": VarianceSettings(gap=0.01, rank=30, halo=50),
}


def workers(processes: int, threads: int) -> BlockExecutor:
    """Threads of this process that pass for so many workers; none: a run without any."""
    return PlannedWorkers(processes, threads) if processes else LocalExecutor(threads)


def predicted(
    world: World, out: Path | Destination, executor: BlockExecutor, settings: VarianceSettings
) -> tuple[dict[str, bytes], dict]:
    place = out if isinstance(out, Destination) else Destination(str(out))
    said: list[str] = []
    try:
        summary = predict(world.model, world.test, place, executor, variance=settings, note=said.append).variance
    finally:
        executor.close()
    assert summary is not None
    return content(Path(place.url)), {**summary, "said": " ".join(said)}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_bit_depends_on_workers_threads_or_layout(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "several batches":
        monkeypatch.setattr(iterative, "LARGEST_JOINT_BATCH", 40)
    found = []
    for shared, processes, threads in (
        (False, 0, 1), (False, 0, 3), (False, 1, 2), (False, 2, 1), (False, 3, 2), (True, 2, 1), (True, 3, 2),
    ):  # fmt: skip
        monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self, shared=shared: shared))
        bits, summary = predicted(world, tmp_path / str(len(found)), workers(processes, threads), SETTINGS[name])
        found.append((bits, summary["batch_size"]))
        assert summary["shared"] is (shared and name != "by the factor")
        assert summary["unmet"] == 0
    batches = -(-TESTS // found[0][1])
    assert (batches > 1) is (name in ("several batches", "by the factor"))
    for other in found[1:]:
        assert other == found[0]


def test_a_run_that_goes_on_may_be_laid_out_anew(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are the plan's, and the layout is no part of it."""
    settings = VarianceSettings(gap=0.01, rank=30, halo=50, batch_size=30)
    whole, _ = predicted(world, tmp_path / "whole", workers(0, 1), settings)
    solved, collect = [], IterativeRun.collect

    def stops(self: IterativeRun, results: list) -> object:
        solved.append(self.is_shared)
        if len(solved) == 2:
            raise KeyboardInterrupt
        return collect(self, results)

    monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self: True))
    with monkeypatch.context() as patched:
        patched.setattr(IterativeRun, "collect", stops)
        with pytest.raises(KeyboardInterrupt):
            predicted(world, Destination(str(tmp_path / "p")), workers(2, 1), settings)
    assert solved == [True, True]
    monkeypatch.setattr(BatchLayout, "is_shared", property(lambda self: False))
    bits, summary = predicted(world, Destination(str(tmp_path / "p"), resume=True), workers(3, 2), settings)
    assert summary["shared"] is False
    assert bits == whole


def layout(n: int, tests: int, batches: int, workers: int, *, halo: int = 1000) -> BatchLayout:
    counts = Batches(tests, batches, -(-tests // batches), 2000, halo, 1000, False, 4.0 if halo else 0.0, 1.0)
    return BatchLayout.of(Sizes(n, 8, blocks=-(-n // 8192)), counts, workers, 1)


def test_one_large_batch_is_shared_and_many_are_not() -> None:
    assert layout(10**6, 200, 1, 64).is_shared
    assert not layout(10**6, 200, 1, 1).is_shared
    assert not layout(10**5, 64_000, 640, 16).is_shared
    assert not layout(2_000, 90, 1, 2).is_shared  # messages take longer than products
    # A batch on all workers scales with them; one on each does not.
    few, many = layout(10**6, 200, 1, 16), layout(10**6, 200, 1, 64)
    assert many.alone == pytest.approx(few.alone)
    assert many.together < 0.4 * few.together


def test_the_layout_is_said_in_one_line(world: World, tmp_path: Path) -> None:
    settings = VarianceSettings(gap=0.01, rank=30, halo=50)
    _, summary = predicted(world, tmp_path / "p", workers(2, 1), settings)
    assert "1 batch on 2 workers: a batch a worker, about" in summary["said"]
    assert summary["layout"]["shared"] is False
    assert 0.0 < summary["layout"]["alone_seconds"] < summary["layout"]["shared_seconds"]
    _, alone = predicted(world, tmp_path / "q", workers(0, 2), settings)
    assert "batch" not in alone["said"]
    assert np.isfinite(alone["layout"]["alone_seconds"])


@pytest.fixture
def model(world: World, tmp_path: Path) -> ModelRecord:
    """A copy of the model, to be changed."""
    shutil.copytree(world.folder / "model", tmp_path / "model")
    return open_model(str(tmp_path / "model"))


# ------------------------------------------------------------------------------------------------------------- settings

WRONG: list[dict[str, Any]] = [
    *({"gap": gap} for gap in (0.0, -0.01, float("nan"), float("inf"))),
    *({"max_passes": passes} for passes in (-1, -1e-9, float("nan"))),
    *({"rank": rank} for rank in (0, -5)),
    *({"batch_size": size} for size in (0, -1)),
    *({"memory_bytes": size} for size in (0, -1)),
    {"halo": -1},
    {"seed": -1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: "{}={}".format(*next(iter(wrong.items()))))
def test_settings_that_make_no_sense_are_bad_input(wrong: dict[str, Any]) -> None:
    value = str(next(iter(wrong.values())))
    with pytest.raises(InputError, match=f"got {re.escape(value)}") as caught:
        VarianceSettings(**wrong)
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_settings_at_the_edge_are_fine(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    settings = VarianceSettings(gap=5.0, max_passes=0.0, rank=1, batch_size=1000)
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings)
    assert summary.variance is not None
    assert (summary.variance["unmet"], summary.variance["rank"]) == (0, 1)


def test_without_a_limit_on_passes(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    settings = VarianceSettings(gap=1e-3, max_passes=1e9, rank=20)
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings).variance
    assert summary is not None
    assert summary["unmet"] == 0


# --------------------------------------------------------------------------------------------------------------- memory


def test_a_rank_beyond_memory_is_refused_in_numbers(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    asked = VarianceSettings(rank=300, memory_bytes=400_000)
    with pytest.raises(MemoryBudgetError) as caught:
        predict(world.model, world.test, str(tmp_path / "p"), executor, variance=asked)
    message = str(caught.value)
    assert "rank 300" in message
    assert byte_text(building_bytes(N, 300)) in message
    assert not (tmp_path / "p").exists()
    # The rank that it says would fit does.
    fits = int(re.findall(r"`rank` to ([\d,]+)", message)[0])
    assert 10 < fits < 300
    settings = VarianceSettings(rank=fits, memory_bytes=400_000, gap=0.5)
    summary = predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings).variance
    assert summary is not None
    assert summary["rank"] == fits


def test_vectors_beyond_memory_are_refused_in_numbers(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    asked = VarianceSettings(rank=1, memory_bytes=10_000, gap=1e-4)
    with pytest.raises(MemoryBudgetError, match=r"[\d.]+ KiB") as caught:
        predict(world.model, world.test, str(tmp_path / "p"), executor, variance=asked)
    assert "`memory_bytes`" in str(caught.value)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("memory_bytes", [300_000, 1_000_000, 10**9])
def test_what_is_chosen_fits(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    """The factor that is built, and the vectors of the samples solved together."""
    held: list[int] = []
    build = NystromFactor.of

    def measured(source: Any, executor: Any) -> NystromFactor:
        factor = build(source, executor)
        columns = np.zeros(0) if factor.columns is None else factor.columns
        held.append(sum(a.nbytes for a in (columns, factor.lower, factor.gram_lower, factor.residual_diagonal)))
        return factor

    monkeypatch.setattr(NystromFactor, "of", staticmethod(measured))
    settings = VarianceSettings(gap=0.01, memory_bytes=memory_bytes, way="iterative")
    predict(world.model, world.test, str(tmp_path / "p"), executor, variance=settings)
    plan = open_prediction(str(tmp_path / "p")).attributes["variance"]
    together = 8 * N * 4 * min(plan["together"], plan["batch_size"])  # residuals, solutions, directions and images
    assert len(held) == 1
    assert held[0] + together <= memory_bytes
    assert gaps(open_prediction(str(tmp_path / "p"))).max() <= 0.01


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_test_store_with_a_nan_is_refused(
    world: World, executor: BlockExecutor, tmp_path: Path, value: float
) -> None:
    """Ingest lets none through; whoever writes Zarr by hand may, and once a store is open nobody looks at its sizes."""
    shutil.copytree(world.folder / "test", tmp_path / "test")
    test = open_dataset(str(tmp_path / "test"))
    inputs = zarr.open_array(str(tmp_path / "test" / "X"), mode="r+")
    inputs[57, 1] = value
    with pytest.raises(InputError, match="row 57|rows 40 to 79") as caught:
        predict(world.model, test, str(tmp_path / "p"), executor, variance=QUICK)
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert not (tmp_path / "p").exists()


def by_reference(world: World, executor: BlockExecutor, folder: Path) -> tuple[Path, Path]:
    shutil.copytree(world.folder / "train", folder / "train")
    dataset = open_dataset(str(folder / "train"))
    trained = train(dataset, KERNEL, NOISE, executor, stopping=MaxIterations(1))
    save(trained, str(folder / "model"), dataset, by_reference=True)
    return folder / "model", folder / "train"


class Unused(Counting):
    """No task is to be started: on a cluster it would be tried again and again."""

    def submit(self, name: str, *rest: Any) -> PendingRound:
        raise AssertionError(f"{name} was started")


def test_a_model_by_reference_predicts_the_same(world: World, executor: BlockExecutor, tmp_path: Path) -> None:
    model, _ = by_reference(world, executor, tmp_path)
    for name, url in (("a", model), ("b", world.folder / "model")):
        predict(open_model(str(url)), world.test, str(tmp_path / name), executor, variance=QUICK)
    here, there = content(tmp_path / "a"), content(tmp_path / "b")
    assert here["variance_lower"] == there["variance_lower"]
    assert here["variance_upper"] == there["variance_upper"]


@pytest.mark.parametrize("settings", [None, QUICK], ids=["means", "variances"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_model_by_reference_without_its_training_set(
    world: World, executor: BlockExecutor, tmp_path: Path, when: str, settings: VarianceSettings | None
) -> None:
    """Gone before the model is opened, or between that and the prediction."""
    model, training = by_reference(world, executor, tmp_path)
    opened = open_model(str(model))
    shutil.rmtree(training)
    with pytest.raises(StoreError) as caught:
        predict(
            open_model(str(model)) if when == "before" else opened,
            world.test, str(tmp_path / "p"), Unused(executor), variance=settings,
        )  # fmt: skip
    assert caught.value.exit_code is ExitCode.BAD_INPUT
    assert str(training) in str(caught.value)
    assert not (tmp_path / "p").exists()


def test_a_support_chunk_lost_since_the_model_was_opened(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    """Not the first one, which is looked at beforehand."""
    (tmp_path / "model" / "inputs" / "c" / "2" / "0").unlink()
    with pytest.raises(StoreError):
        predict(model, world.test, str(tmp_path / "p"), executor, variance=QUICK)
    assert not (tmp_path / "p").exists()


# ------------------------------------------------------------------------------------------------------ the kept factor

KEPT = VarianceSettings(gap=0.01, rank=40, halo=50, batch_size=30, keep_factor=True)
KEPT_SMOOTH = VarianceSettings(gap=0.5, batch_size=30, keep_factor=True)


def run(
    model: ModelRecord, world: World, executor: BlockExecutor, url: Path, settings: VarianceSettings
) -> tuple[dict[str, bytes], str]:
    """Return the content of the store, and the messages about the factor."""
    notes: list[str] = []
    predict(model, world.test, str(url), executor, variance=settings, note=notes.append)
    return content(url), notes[0]


@pytest.mark.parametrize("settings", [KEPT, KEPT_SMOOTH], ids=["single", "double"])
def test_a_kept_factor_is_loaded_and_gives_the_same(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, settings: VarianceSettings
) -> None:
    first, built = run(model, world, executor, tmp_path / "a", settings)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    assert kept.metadata["precision"] == ("single" if settings is KEPT else "double")
    second, loaded = run(open_model(model.url), world, executor, tmp_path / "b", settings)
    assert first == second
    assert "built" in built
    assert "loaded" in loaded


def test_a_factor_is_kept_only_when_asked(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    run(model, world, executor, tmp_path / "p", QUICK)
    assert open_factor(model.url, fingerprint=model.fingerprint) is None


def test_a_kept_factor_that_was_raised_by_less_than_its_rank_takes_is_not_used(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of older versions, which did not say by how much."""
    run(model, world, executor, tmp_path / "a", KEPT)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    assert kept.metadata["jitter"] == landmark_jitter(KERNEL, model.input_rows(np.asarray(kept.indices))) == 1e-9
    monkeypatch.setattr(iterative, "landmark_jitter", lambda kernel, inputs: 1.1e-9)
    _, note = run(model, world, executor, tmp_path / "b", VarianceSettings(gap=0.01, rank=40, batch_size=30))
    assert "built" in note
    assert "from an older version, which does not count every rounding" in note


def test_a_kept_factor_that_does_not_say_what_it_leaves_is_not_used(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a float32 one of an older version, whose triangle may tell F where it is held alone."""
    expected, _ = run(model, world, executor, tmp_path / "a", KEPT)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    told = {name: value for name, value in kept.metadata.items() if name != "kernel_trace"}
    assert len(told) < len(kept.metadata)
    monkeypatch.setattr(iterative, "open_factor", lambda url, fingerprint: replace(kept, metadata=told))
    found, note = run(model, world, executor, tmp_path / "b", QUICK)
    assert "built" in note
    assert "from an older version and cannot be used" in note
    assert found == expected


@pytest.mark.long
def test_another_rank_is_another_factor(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    run(model, world, executor, tmp_path / "a", KEPT)
    other = VarianceSettings(gap=0.01, rank=25, batch_size=30)
    found, note = run(model, world, executor, tmp_path / "b", other)
    assert "rank 25" in note
    assert "built" in note
    fresh, _ = run(world.model, world, executor, tmp_path / "c", other)
    assert found["variance"] == fresh["variance"]


def test_a_single_precision_factor_is_not_left_to_prove_by_itself(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    run(model, world, executor, tmp_path / "a", KEPT)
    alone = VarianceSettings(gap=0.01, rank=40, batch_size=30, max_passes=0)
    found, _ = run(model, world, executor, tmp_path / "b", alone)
    fresh, _ = run(world.model, world, executor, tmp_path / "c", alone)
    assert found["variance_upper"] == fresh["variance_upper"]
    exact = world.latent + world.noise
    assert (np.frombuffer(found["variance_upper"]).reshape(exact.shape) >= exact * (1 - 1e-9)).all()


@pytest.mark.parametrize("change", few(("kernel", "noise"), "noise"))
def test_an_overwritten_models_factor_is_not_used(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path, change: str
) -> None:
    run(model, world, executor, tmp_path / "a", KEPT)
    kernel = SquaredExponential((0.2, 0.4, 0.2), 1.0) if change == "kernel" else KERNEL
    noise = 0.1 if change == "noise" else NOISE
    trained = train(world.train, kernel, noise, executor, stopping=MaxIterations(1))
    save(trained, model.url, world.train, overwrite=True)
    found, note = run(open_model(model.url), world, executor, tmp_path / "b", QUICK)
    assert "built" in note
    save(trained, str(tmp_path / "fresh"), world.train)
    fresh, _ = run(open_model(str(tmp_path / "fresh")), world, executor, tmp_path / "c", QUICK)
    assert found == fresh


@pytest.mark.long
def test_resuming_with_a_factor_kept_meanwhile(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    """It is the one that the run began with, so the bytes are those of a run that was not interrupted."""
    expected, _ = run(world.model, world, executor, tmp_path / "a", QUICK)
    asked = iter([False, True])
    with pytest.raises(InterruptedRunError):
        predict(
            model, world.test, str(tmp_path / "p"), RunContext(executor, interrupted=lambda: next(asked)), variance=KEPT
        )
    assert open_factor(model.url, fingerprint=model.fingerprint) is not None
    counting = Counting(executor)
    predict(model, world.test, Destination(str(tmp_path / "p"), resume=True), counting, variance=QUICK)
    assert counting.batches == [(30, 60), (60, 90)]
    assert content(tmp_path / "p") == expected


def test_a_damaged_factor_is_built_again(
    world: World, executor: BlockExecutor, model: ModelRecord, tmp_path: Path
) -> None:
    expected, _ = run(model, world, executor, tmp_path / "a", KEPT)
    kept = open_factor(model.url, fingerprint=model.fingerprint)
    assert kept is not None
    Path(kept.url, "columns", "c", "0", "0").unlink()
    found, note = run(model, world, executor, tmp_path / "b", QUICK)
    assert found == expected
    assert "built" in note
    assert "of no use" in note


def test_a_factor_for_few_test_samples_takes_little_work() -> None:
    memory = 8 * 1024**3
    operations = {tests: 2.0 * 14_000 * chosen_rank(14_000, tests, None, memory) ** 2 for tests in (1, 4, 32, 64)}
    assert operations[64] == pytest.approx(iterative.FREE_OPERATIONS, rel=0.01)
    for tests in (4, 32):
        assert operations[tests] == pytest.approx(operations[64] * tests / 64, rel=0.01)
    # Small problems still use the whole matrix, and a requested rank is kept.
    assert chosen_rank(500, 1, None, memory) == 500
    assert chosen_rank(14_000, 1, 900, memory) == 900
