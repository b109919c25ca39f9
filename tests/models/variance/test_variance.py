"""Variances from `predict` to the store, in the targets' units: against a dense Gaussian process on raw data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dkgp.cluster import BlockExecutor
from dkgp.codec import to_json
from dkgp.data import open_model, open_prediction
from dkgp.data.sources.synthetic import friedman1
from dkgp.data.stores.dataset_writer import dataset_from_arrays
from dkgp.errors import InputError, InterruptedRunError, NumericalError
from dkgp.kernels import SquaredExponential
from dkgp.models.context import RunContext
from dkgp.models.exact import save, train
from dkgp.models.prediction.predict import Destination, PredictSummary, predict
from dkgp.models.variance.iterative import decided_batch
from dkgp.models.variance.settings import VarianceSettings
from dkgp.solvers import MaxIterations
from tests.models.variance.variance_world import NOISE, QUICK, TESTS, Counting, N, World, content, gaps

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
    """What an undisturbed run makes of QUICK."""
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


def test_an_interrupted_run_goes_on_where_it_was(
    world: World, executor: BlockExecutor, whole: tuple[Path, PredictSummary], tmp_path: Path
) -> None:
    interrupt(world, executor, tmp_path / "p")
    counting, seen = Counting(executor), []
    summary = predict(
        world.model,
        world.test,
        Destination(str(tmp_path / "p"), resume=True),
        RunContext(counting, within=lambda now: seen.append(now.done)),
        variance=QUICK,
    ).variance
    assert counting.batches == [(30, 60), (60, 90)]
    assert seen == [60, 90]
    assert summary is not None
    assert (summary["computed"], summary["met"]) == (60, 90)
    assert content(tmp_path / "p") == content(whole[0])
    assert open_prediction(str(tmp_path / "p")).attributes == open_prediction(str(whole[0])).attributes


def test_sizes_left_out_are_those_of_the_run_to_resume(
    world: World, executor: BlockExecutor, whole: tuple[Path, PredictSummary], tmp_path: Path
) -> None:
    interrupt(world, executor, tmp_path / "p")
    predict(
        world.model,
        world.test,
        Destination(str(tmp_path / "p"), resume=True),
        executor,
        variance=VarianceSettings(gap=0.01),
    )
    assert content(tmp_path / "p") == content(whole[0])


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
