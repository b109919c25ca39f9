"""The way to variances: chosen by forecasts, settings, or the prediction that is resumed.

Forecasts are compared with operations counted here, and with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest

from dkgp.cluster import BlockExecutor
from dkgp.data import open_prediction
from dkgp.data.stores.tile_store import TileStore
from dkgp.errors import InputError, InterruptedRunError, NumericalError, StorageError
from dkgp.models.context import RunContext
from dkgp.models.prediction.predict import Destination, predict
from dkgp.models.variance import ways
from dkgp.models.variance.batch import ProductTally
from dkgp.models.variance.iterative import IterativeRun
from dkgp.models.variance.settings import VarianceSettings
from dkgp.models.variance.ways import FACTOR_EFFICIENCY, Counted, Forecast, Measured
from dkgp.operators import ArrayInputs
from dkgp.operators.block_tasks import BlockContext
from dkgp.solvers.cholesky.tile_factor import BrokenDownError, TileFactor
from dkgp.solvers.prices import Prices
from tests.engine.helpers import content
from tests.models.variance.variance_problems import draw
from tests.models.variance.variance_world import TESTS, World

AUTO = VarianceSettings(gap=0.01, batch_size=30)


def never(*arguments: Any, **options: Any) -> Never:
    raise AssertionError("this should not be needed")


def plan(url: Path) -> dict[str, Any]:
    found: dict[str, Any] = open_prediction(str(url)).attributes["variance"]
    return found


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No problem is too small to look at, and seconds are told of."""
    monkeypatch.setattr(ways, "NO_QUESTION", -1.0)
    measured = Measured(Prices.nominal(3), 1e9)
    monkeypatch.setattr(Measured, "of", classmethod(lambda cls, context: measured))
    return monkeypatch


def predicted(world: World, executor: BlockExecutor, url: Path, settings: VarianceSettings = AUTO) -> list[str]:
    """Predict; the notes."""
    notes: list[str] = []
    predict(world.model, world.test, str(url), executor, variance=settings, note=notes.append)
    return notes


def test_a_small_problem_takes_the_factor_without_a_question(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "choose_landmarks", never)
    (note,) = predicted(world, executor, tmp_path / "p")
    assert plan(tmp_path / "p")["way"] == "cholesky"
    assert "Cholesky factor of all 400 samples" in note


@pytest.mark.spread(2)
@pytest.mark.parametrize("settings", [{"rank": 30}, {"halo": 40}, {"max_passes": 19.0}, {"way": "iterative"}])
def test_settings_of_the_iterative_way_take_it(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(ways, "RowScales", never)
    predicted(world, executor, tmp_path / "p", replace(AUTO, **settings))
    assert "way" not in plan(tmp_path / "p")


def test_a_factor_that_takes_less_than_two_products_is_taken_unasked(
    world: World, executor: BlockExecutor, tmp_path: Path, asking: pytest.MonkeyPatch
) -> None:
    asking.setattr(ways, "judged", lambda landmarks, *rest, **options: (landmarks, False))
    asking.setattr(Forecast, "whole", lambda self: 1e-12)
    asking.setattr(ways, "count_products", never)
    notes = predicted(world, executor, tmp_path / "p")
    assert plan(tmp_path / "p")["way"] == "cholesky"
    assert "however narrow the intervals" in notes[0] or "built" in notes[0]


@pytest.mark.parametrize(
    ("single", "met", "way"), [(3.0, 1.0, "iterative"), (1e9, 1.0, "cholesky"), (3.0, 0.5, "cholesky")]
)
def test_conjugate_gradients_are_counted_and_compared(
    world: World,
    executor: BlockExecutor,
    tmp_path: Path,
    asking: pytest.MonkeyPatch,
    single: float,
    met: float,
    way: str,
) -> None:
    gaps: list[float] = []

    def counted(
        inputs: Any, tests: Any, n: int, kernel: Any, s2: float, settings: VarianceSettings, **sizes: int
    ) -> Any:
        gaps.append(settings.gap)
        assert inputs.shape[1] == tests.shape[1] == 3
        return Counted(single if settings.gap < 0.1 else 1.0, 1.0, met)

    asking.setattr(ways, "judged", lambda landmarks, *rest, **options: (landmarks, False))
    asking.setattr(Forecast, "whole", lambda self: 1.0)
    asking.setattr(ways, "count_products", counted)
    notes = predicted(world, executor, tmp_path / "p")
    assert plan(tmp_path / "p").get("way", "iterative") == way
    assert gaps == ([0.01, 0.1] if way == "iterative" else [0.01])
    if way == "iterative":
        assert "variances of 90 samples to 0.01 take about" in notes[0]
        assert "to 0.1 about" in notes[0]
        assert notes[0].endswith("a Cholesky factor of all samples, 1.7e+07 min")


@pytest.mark.parametrize(("missing", "way"), [(0, "iterative"), (11, "cholesky")])
def test_a_partial_factor_is_tried_on_a_few_samples(
    world: World, executor: BlockExecutor, tmp_path: Path, asking: pytest.MonkeyPatch, missing: int, way: str
) -> None:
    """As where rank 2,758 was expected to suffice, and 342 of 1,979 samples missed the gap."""
    seen: list[int] = []

    def tried(self: IterativeRun, inputs: np.ndarray) -> tuple[np.ndarray, ProductTally]:
        seen.append(len(inputs))
        return np.where(np.arange(len(inputs)) < missing, 0.5, 1e-4), ProductTally()

    asking.setattr(ways, "judged", lambda landmarks, *rest, **options: (landmarks, True))
    asking.setattr(IterativeRun, "tried", tried)
    asking.setattr(Forecast, "whole", lambda self: 2e-4)
    notes = predicted(world, executor, tmp_path / "p", replace(AUTO, gap=0.02))
    assert seen == [64]
    assert plan(tmp_path / "p").get("way", "iterative") == way
    if way == "cholesky":
        assert "suffices for 83% of 64 samples tried; variances of 90 samples take about" in notes[0]


@pytest.mark.parametrize(
    ("single", "missing", "way"), [(2, 0, "iterative"), (10**9, 0, "cholesky"), (2, 9, "cholesky")]
)
def test_conjugate_gradients_that_do_worse_than_was_counted_are_given_up(
    world: World,
    executor: BlockExecutor,
    tmp_path: Path,
    asking: pytest.MonkeyPatch,
    single: int,
    missing: int,
    way: str,
) -> None:
    limits: list[float] = []

    def tried(self: IterativeRun, inputs: np.ndarray, max_passes: float) -> tuple[np.ndarray, ProductTally]:
        limits.append(max_passes)
        count = len(inputs)
        return np.where(np.arange(count) < missing, 0.5, 1e-4), ProductTally(single * count, count)

    asking.setattr(ways, "judged", lambda landmarks, *rest, **options: (landmarks, False))
    asking.setattr(ways, "count_products", lambda *arguments, **sizes: Counted(2.0, 1.0, 1.0))
    asking.setattr(Forecast, "whole", lambda self: 1.0)
    asking.setattr(ways, "LEAST_SHARED", 1)
    asking.setattr(IterativeRun, "tried", tried)
    notes = predicted(world, executor, tmp_path / "p")
    assert plan(tmp_path / "p").get("way", "iterative") == way
    assert limits == [20.0]
    if way == "cholesky":
        assert "in float64 for each, not 2.0 and 1.0, and " in notes[1]
        assert f"{missing / 64:.0%} missed the gap" in notes[1]


def test_what_a_trial_finds_is_what_the_factor_alone_leaves(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[np.ndarray] = []
    whole = IterativeRun.prepare

    def prepare(self: IterativeRun) -> str:
        rows = self.request.rows
        trials.append(self.tried(rows.inputs(0, rows.n_samples))[0])
        return whole(self)

    monkeypatch.setattr(IterativeRun, "prepare", prepare)
    settings = VarianceSettings(gap=0.01, rank=40, max_passes=0)
    predicted(world, executor, tmp_path / "p", settings)
    stored = open_prediction(str(tmp_path / "p"))
    lower, upper = stored.read("variance_lower")[:, 0], stored.read("variance_upper")[:, 0]
    np.testing.assert_allclose(trials[0], (upper - lower) / upper, rtol=1e-9)


# -------------------------------------------------------------------------------------------------------- memory, disk


def test_what_does_not_fit_in_memory_lies_on_disk_to_the_same_bits(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    settings = replace(AUTO, way="cholesky")
    predicted(world, executor, tmp_path / "memory", settings)
    (note,) = predicted(world, executor, tmp_path / "disk", replace(settings, memory_bytes=1000))
    assert f"MiB in '{tmp_path}" in note
    assert content(tmp_path / "disk") == content(tmp_path / "memory")
    assert not list(tmp_path.glob("dkgp-tiles*"))


def test_without_room_the_iterative_way_is_taken_or_the_factor_refused(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TileStore, "free_bytes", lambda self: 5000)
    small = replace(AUTO, memory_bytes=1_200_000)
    with pytest.raises(InputError, match=r"takes 1\.2 MiB; there are 1\.1 MiB of memory for it, and 4\.9 KiB on"):
        predicted(world, executor, tmp_path / "p", replace(small, way="cholesky"))
    assert not (tmp_path / "p").exists()
    predicted(world, executor, tmp_path / "p", small)
    assert "way" not in plan(tmp_path / "p")


def test_a_full_disk_leaves_nothing(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def full(self: TileStore, name: str, values: Any) -> None:
        raise StorageError("no space left on device")

    monkeypatch.setattr(TileStore, "write", full)
    with pytest.raises(StorageError, match="no space left"):
        predicted(world, executor, tmp_path / "p", replace(AUTO, way="cholesky", memory_bytes=1000))
    assert not (tmp_path / "p").exists()
    assert not list(tmp_path.glob("dkgp-tiles*/*.tile"))


def test_a_factor_that_breaks_down_is_left_to_the_iterative_way(
    world: World, executor: BlockExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(world.model, noise_variance=1e-12)

    def broken(self: TileFactor, panels: int) -> None:
        raise BrokenDownError(7)

    monkeypatch.setattr(TileFactor, "complete", broken)
    predict(model, world.test, str(tmp_path / "p"), executor, variance=AUTO)
    assert open_prediction(str(tmp_path / "p")).attributes["variance"].get("way", "iterative") == "iterative"
    with pytest.raises(NumericalError, match="breaks down at sample 7"):
        predict(model, world.test, str(tmp_path / "q"), executor, variance=replace(AUTO, way="cholesky"))


# ------------------------------------------------------------------------------------------------------------- resuming


def interruptible(executor: BlockExecutor, asked: Iterator[bool]) -> RunContext:
    return RunContext(executor, interrupted=lambda: next(asked))


@pytest.mark.parametrize(
    ("started", "way", "other"),
    [(AUTO, "cholesky", "iterative"), (replace(AUTO, way="iterative"), "iterative", "cholesky")],
    ids=["auto", "iterative"],
)
def test_a_resumed_run_keeps_to_the_way_that_it_was_started_by(
    started: VarianceSettings,
    way: str,
    other: Any,
    world: World,
    executor: BlockExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted(world, executor, tmp_path / "whole", started)
    asked, again = iter([False, True]), Destination(str(tmp_path / "p"), resume=True)
    with pytest.raises(InterruptedRunError):
        predict(world.model, world.test, str(tmp_path / "p"), interruptible(executor, asked), variance=started)
    words = f"started with the `way` {way}, not the `way` {other}; leave it out, or `overwrite`"
    with pytest.raises(InputError, match=words):
        predict(world.model, world.test, again, executor, variance=replace(AUTO, way=other))
    with pytest.raises(InputError, match="repeat these, or `overwrite`"):
        predict(world.model, world.test, again, executor, variance=replace(AUTO, gap=0.5))
    monkeypatch.setattr(ways, "_Choice", never)
    summary = predict(world.model, world.test, again, executor, variance=AUTO)
    assert summary.variance is not None
    assert summary.variance["computed"] < TESTS
    assert content(tmp_path / "p") == content(tmp_path / "whole")


MANY = Forecast(20_000, 2_000, 10, 2, True, Measured.nominal(10))


def test_the_factor_takes_its_operations() -> None:
    prices, n, t = MANY.measured.prices, 20_000.0, 2_000.0
    operations = n**3 / (3.0 * FACTOR_EFFICIENCY) + n * n * t
    expected = (prices.double_operations * operations + prices.double_entries * (n * n / 2.0 + n * t)) / 2.0
    assert MANY.whole() == pytest.approx(expected, rel=1e-12)


def test_tiles_on_disk_and_single_samples_take_more() -> None:
    assert replace(MANY, in_memory=False).whole() > 1.2 * MANY.whole()
    one, forty = replace(MANY, tests=1), replace(MANY, tests=40)
    per_sample = MANY.measured.prices.double_operations * 20_000.0**2 / 2.0
    assert one.whole() - replace(MANY, tests=16).whole() > -16 * per_sample + 2.0 * per_sample
    assert forty.whole() < MANY.whole()


def test_a_trial_of_neighbours_takes_a_tenth_of_the_factor_at_most() -> None:
    small, large = (Forecast(n, 1000, 2, 2, True, Measured.nominal(2)) for n in (ways.LEAST_NEAR, 30_000))
    assert small.patience() == pytest.approx(0.1 * 2 * small.whole())
    assert 0.01 < small.patience() < 2.0
    assert large.patience() == 15.0


def test_the_worthwhile_rank_is_where_ways_meet() -> None:
    rank = MANY.worthwhile_rank(20_000)
    assert 1 < rank < 20_000
    assert MANY.alone(rank) <= MANY.whole() < MANY.alone(rank + 1)
    assert MANY.worthwhile_rank(50) == 50


@pytest.mark.parametrize("halo", [0, 2_000])
def test_affordable_products_take_the_seconds(halo: int) -> None:
    seconds = 3.0 * MANY.whole()
    most = MANY.affordable(1_000, halo, seconds)
    single, double = (most, 1.0) if halo else (0.0, most)
    assert MANY.iterative(1_000, halo, single, double) >= 0.9 * seconds
    assert MANY.affordable(1_000, halo, 1e-9) == 2.0


def test_seconds_are_told_as_they_go_by() -> None:
    assert MANY.shown(2.34) == "2.3 s"
    busy = replace(MANY, measured=replace(MANY.measured, slowdown=60.0))
    assert busy.shown(3.0) == "3 min"


def test_prices_are_this_machines() -> None:
    problem = draw(1, 600, 4, gamma=1.0, noise=0.1)
    measured = Measured.of(BlockContext("prices", ArrayInputs(problem.X), problem.kernel, problem.n))
    prices = measured.prices
    assert measured.slowdown >= 1.0
    assert 1e-11 < prices.entries < prices.double_entries * 1.5 < 1e-6
    assert 1e-13 < prices.operations < prices.double_operations < 1e-8
    ratio = prices.double_operations / Measured.nominal(4).prices.double_operations
    np.testing.assert_allclose(prices.vectors, ratio * Measured.nominal(4).prices.vectors)
