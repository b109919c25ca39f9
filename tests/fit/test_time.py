"""The time limit of a fit: shares, attempts, and whole runs whose clock is fast in one step."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.cluster.threads import available_cores
from dkgp.commands.ingest import IngestJob
from dkgp.commands.predict.job import PredictJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.signals import TimeUpError, enforced
from dkgp.commands.tune import TuneJob
from dkgp.data import dataset_from_arrays, open_dataset, open_prediction
from dkgp.errors import InterruptedRunError, MemoryBudgetError
from dkgp.fit.budget import LEAST, Budget
from dkgp.fit.choice import Forecasts
from dkgp.fit.classifiers import LATE, STOPPED
from dkgp.fit.fallbacks import FEW_SAMPLES, Fallbacks, methods_given_up, smaller_subset
from dkgp.fit.job import FitJob
from dkgp.fit.run import _Fit
from dkgp.fit.ways import Way
from dkgp.limits import Deadline, Pace, elapsed_clock, finishing_within, is_over, limited, should_finish
from dkgp.models.tuning.tune import tune
from dkgp.models.variance.settings import VarianceSettings
from tests.fit.html import check_page

# Other tests of this folder run as on an idle machine.
SLOWNESS = Budget.slowness


class Hand:
    """A clock that stands where it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FastIn(SilentReporter):
    """A reporter with a clock that runs `factor` times as fast in one step.

    It counts processor seconds, so that other load on the machine does not end other steps.
    """

    def __init__(self, step: str, factor: float) -> None:
        super().__init__()
        self.step, self.factor, self.rate = step, factor, 1.0
        self.total, self.since, self.lock = 0.0, time.process_time(), threading.Lock()
        self.seconds: dict[str, float] = {}
        self.running = ""

    def __call__(self) -> float:
        with self.lock:
            now = time.process_time()
            self.total, self.since = self.total + self.rate * (now - self.since), now
            return self.total

    def note(self, message: str, figures: str | None = None) -> None:
        if message.startswith("step "):
            self.seconds[self.running] = self() - sum(self.seconds.values())
            self.running = message.partition(": ")[2]
            self.rate = self.factor if self.running == self.step else 1.0


def test_a_deadline_is_read_by_the_work_within_it() -> None:
    clock = Hand()
    assert not should_finish()
    assert not is_over()
    with limited(Deadline(2.0, 5.0, clock)):
        assert elapsed_clock() is clock
        with finishing_within(1.0):
            clock.now = 1.0
            assert should_finish()
        assert not should_finish()
        with limited(Deadline(50.0, 60.0, clock)):
            clock.now = 2.0
            assert should_finish()
            assert not is_over()
        clock.now = 5.0
        assert is_over()
    assert not is_over()


def test_a_measured_speed_ends_work_before_its_deadline() -> None:
    clock = Hand()
    with limited(Deadline(100.0, 100.0, clock)) as deadline:
        pace = Pace(50, 10)
        clock.now = 5.0
        assert not pace.is_too_slow(11)  # too early to tell
        clock.now = 20.0
        assert not pace.is_too_slow(18)
        assert not pace.is_too_slow(10)
        assert pace.is_too_slow(17)
    assert deadline.measured["seconds"] == pytest.approx(20.0 / 7.0 * 40.0)
    assert not Pace(10).is_too_slow(1)


def test_shares_of_the_limit() -> None:
    clock = Hand()
    budget = Budget(100.0, clock)
    assert budget.for_model == pytest.approx(92.0)
    clock.now = 60.0
    assert budget.for_model == pytest.approx(32.0)
    budget.resume(30.0)
    assert budget.elapsed == pytest.approx(90.0)
    assert budget.for_model == pytest.approx(20.0)  # a model is trained all the same
    assert budget.for_predictions == pytest.approx(2.0)


def test_attempts_end_in_an_orderly_way_if_the_work_heeds_the_limit() -> None:
    clock = Hand()
    budget = Budget(100.0, clock)

    def heeding() -> dict[str, Any]:
        clock.now += 50.0
        assert is_over()
        raise InterruptedRunError("interrupted")

    attempt = budget.attempt(heeding, 10.0, 20.0)
    assert attempt.document is None
    assert attempt.seconds == pytest.approx(50.0)
    assert budget.attempt(lambda: {"is_over": is_over()}, 10.0).document == {"is_over": False}

    def failing() -> dict[str, Any]:
        raise ValueError("an error of its own")

    with pytest.raises(ValueError, match="of its own"):
        budget.attempt(failing, 10.0, 20.0)


def test_work_that_does_not_heed_the_limit_is_interrupted_and_others_are_not() -> None:
    began, slept = time.monotonic(), list[bool]()

    def sleep() -> None:
        time.sleep(240.0)
        slept.append(True)

    with pytest.raises(TimeUpError), enforced(Deadline(began + 0.1, began + 0.1)):
        sleep()
    assert not slept
    with enforced(Deadline(began, time.monotonic() + 60.0)):
        time.sleep(0.05)


def test_the_search_for_hyperparameters_ends_at_the_best_so_far(rng: np.random.Generator) -> None:
    inputs = rng.standard_normal((80, 2))
    targets = np.sin(2.0 * inputs[:, 0]) + 0.1 * rng.standard_normal(80)
    whole = tune(inputs, targets)
    clock = Hand()

    def tick(progress: Any) -> None:
        clock.now += 1.0

    with limited(Deadline(4.0, np.inf, clock)):
        ended = tune(inputs, targets, progress=tick)
    assert ended.evaluations == 4 < (whole.evaluations or 0)
    assert not ended.converged
    assert ended.log_marginal_likelihood < whole.log_marginal_likelihood


def test_variances_fall_back_from_narrow_intervals_to_none() -> None:
    way = Way("exact", None, 0.01, 1.0, 1.0, 1)
    todo = way.variants(VarianceSettings(gap=0.01))
    ways = [None if one.variance is None else (one.variance.way, one.variance.gap) for one in todo]
    assert ways == [("auto", 0.01), ("auto", 0.1), ("vif", 0.01), ("vif", 0.01), None, None]
    assert [one.sampled for one in todo] == [False, False, False, True, False, True]
    assert todo[2].words == "variances that are approximate, from neighbours (VIF)"
    sparse = Way("sparse", 100, None, 1.0, 1.0, 1).variants(VarianceSettings())
    assert [one.sampled for one in sparse] == [False, True, False, True]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    inputs = rng.uniform(-2.0, 2.0, (600, 3))
    targets = np.sin(2.0 * inputs[:, 0]) * inputs[:, 1] + 0.1 * rng.standard_normal(600)
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    np.savetxt(path, np.column_stack([inputs, targets]), delimiter=",", header="a,b,c,y", comments="")
    return path


class Steps(Fallbacks):
    """Attempts whose commands end by themselves, after the seconds of the clock that they take."""

    def __init__(self, budget: Budget, clock: Hand, takes: Callable[[Any], float]) -> None:
        super().__init__(budget, 0, SilentReporter())
        self.clock, self.takes, self.jobs = clock, takes, list[Any]()

    def _run(self, job: Any) -> dict[str, Any]:
        self.jobs.append(job)
        pace, took = Pace(100), self.takes(job)
        for number in range(1, 101):
            self.clock.now += took / 100
            if is_over() or pace.is_too_slow(number):
                raise InterruptedRunError("interrupted")
        return {"converged": True, "dataset": getattr(job, "dataset", None)}


def sparse(size: int) -> Way:
    return Way("sparse", size, None, 0.01 * size, 1.0, 1)


@pytest.mark.parametrize(("slowness", "taken"), [(0.5, None), (3.0, 1000), (100.0, 100)])
def test_a_model_that_takes_too_long_gives_way_to_one_that_fits(slowness: float, taken: int | None) -> None:
    clock = Hand()
    budget = Budget(100.0, clock)
    steps = Steps(budget, clock, lambda way: slowness * (60.0 if way.size is None else 0.01 * way.size))
    exact = Way("exact", None, 0.02, 60.0, 20.0, 1)
    others = [sparse(size) for size in (4000, 1000, 100)]
    document = steps.train(
        exact,
        lambda way, first: way,  # type: ignore[arg-type, return-value]
        lambda way: [other for other in others if (other.size or 0) < (way.size or 10_000)],
    )
    assert document["way"].size == taken
    assert len(document["given_up"]) == len(steps.jobs) - 1
    # The smallest model has no alternative, and runs to its end.
    assert clock.now <= 92.0 + (100.0 if taken == 100 else 0.0)
    if taken is not None:
        assert (
            "training of the exact model (variances certified within 2 %) was stopped after"
            in document["given_up"][0]["text"]
        )


@pytest.mark.parametrize(("slowness", "taken"), [(0.5, 1000), (8.0, 250)])
def test_a_classifier_whose_search_takes_too_long_gives_way_to_a_smaller_pool(slowness: float, taken: int) -> None:
    clock = Hand()
    budget = Budget(60.0, clock)
    # The forecasts are almost all fixed costs, and the search takes far longer.
    ways = [Way("fixed-size", size, None, 5.0 + 1e-4 * size, 0.5, 1) for size in (1000, 500, 250)]
    steps = Steps(budget, clock, lambda way: slowness * 0.01 * way.size)
    document = steps.train(
        ways[0],
        lambda way, first: way,  # type: ignore[arg-type, return-value]
        lambda way: [other for other in ways if (other.size or 0) < (way.size or 0)],
    )
    assert document["way"].size == taken
    assert len(document["given_up"]) == len(steps.jobs) - 1
    assert clock.now <= 60.0


def test_a_search_that_ended_early_is_given_up() -> None:
    clock = Hand()
    steps = Steps(Budget(60.0, clock), clock, lambda way: 1.0)
    run = steps._run
    steps._run = lambda job: {**run(job), "ended_early": True}  # type: ignore[method-assign]
    way = Way("fixed-size", 250, None, 5.0, 0.5, 1)
    document = steps.train(way, lambda way, first: way, lambda way: [])  # type: ignore[arg-type, return-value]
    [item] = document["given_up"]
    assert item["step"] == "train"
    assert "the search of the fixed-size classifier (up to 250 prototypes) ended after 1 s; the best" in item["text"]


def test_smaller_subsets_and_methods_that_were_not_compared_are_given_up() -> None:
    words = "the time that is left suffices for a subset of 500 samples, not 2,000"
    assert smaller_subset({"subset_size": 500}, 5000)["given_up"] == [{"step": "tune", "text": words}]
    assert smaller_subset({"subset_size": 2000}, 5000) == smaller_subset({"subset_size": 300}, 300) == {}
    assert smaller_subset(None, 5000) == {}
    short = {"subset_size": 500, "given_up": [{"step": "tune", "text": "tuned on at most 500 samples"}]}
    assert smaller_subset(short, 5000) == {}
    lost = methods_given_up({"left_out": {"logistic": "not positive definite", "gp": LATE}})["given_up"]
    assert lost == [{"step": "compare", "text": "method gp is not compared: too little time"}]
    stopped = methods_given_up({"left_out": dict.fromkeys(("logistic", "gp"), f"{STOPPED} 9 s")})["given_up"]
    text = "the methods were not compared, because the comparison was stopped after 9 s"
    assert stopped == [{"step": "compare", "text": text}]
    assert methods_given_up(None)["given_up"] == []


@pytest.mark.parametrize(("seconds", "variant"), [((20.0,), 0), ((1000.0, 20.0), 1), ((1e3, 1e3, 20.0), 2)])
def test_predictions_fall_back_to_cheaper_ones_in_time(
    seconds: tuple[float, ...], variant: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    dataset_from_arrays(str(tmp_path / "test.zarr"), rng.standard_normal((300, 2)), rng.standard_normal(300))
    clock = Hand()
    steps = Steps(Budget(100.0, clock), clock, lambda job: seconds[len(steps.jobs) - 1])
    job = PredictJob("model", str(tmp_path / "test.zarr"), "out", VarianceSettings())
    way = Way("exact", None, 0.02, 10.0, 20.0, 1)
    document = steps.predict(job, way, str(tmp_path / "sample.zarr"))
    expected = way.variants(VarianceSettings())[variant]
    assert steps.jobs[-1].variance == expected.variance
    assert document["way"].gap == (0.02, 0.1, None)[variant]
    assert document["way"].approximate == (variant == 2)
    assert ("approximate, from neighbours (VIF)" in document["way"].words) == (variant == 2)
    assert document["dataset"] == job.dataset
    assert clock.now < 92.0
    assert len(document["given_up"]) == (0 if variant == 0 else variant + 1)
    if variant:
        assert "at the measured speed it needs" in document["given_up"][0]["text"]


def test_a_wider_gap_is_not_tried_if_preparations_alone_take_too_long(tmp_path: Path, rng: np.random.Generator) -> None:
    dataset_from_arrays(str(tmp_path / "test.zarr"), rng.standard_normal((300, 2)), rng.standard_normal(300))
    clock = Hand()
    steps = Steps(Budget(100.0, clock), clock, lambda job: 1e5 if len(steps.jobs) == 1 else 1.0)
    job = PredictJob("model", str(tmp_path / "test.zarr"), "out", VarianceSettings())
    steps.predict(job, Way("exact", None, 0.02, 1.0, 1.0, 1), str(tmp_path / "sample.zarr"))
    assert [each.variance.way for each in steps.jobs] == ["auto", "vif"]


def test_a_sample_of_the_test_rows_is_as_large_as_the_time_allows(tmp_path: Path, rng: np.random.Generator) -> None:
    inputs, targets = rng.standard_normal((1000, 2)), rng.standard_normal(1000)
    dataset_from_arrays(str(tmp_path / "test.zarr"), inputs, targets)
    clock = Hand()
    rows: list[int] = []

    def takes(job: PredictJob) -> float:
        rows.append(open_dataset(job.dataset).n_samples)
        return 0.1 * rows[-1]

    steps = Steps(Budget(100.0, clock), clock, takes)
    job = PredictJob("model", str(tmp_path / "test.zarr"), "out", VarianceSettings())
    document = steps.predict(job, Way("exact", None, 0.02, 1.0, 1.0, 1), str(tmp_path / "sample.zarr"))
    assert rows[:3] == [1000] * 3
    assert len(rows) == 4
    assert 50 <= rows[3] < 500
    assert clock.now < 92.0
    assert f"{rows[3]:,} of 1,000 rows, drawn at random" in document["given_up"][-1]["text"]
    sample, whole = open_dataset(document["dataset"]), open_dataset(job.dataset)
    known = {(*row, target) for row, target in zip(inputs, targets, strict=True)}
    assert {
        (*row, *target)
        for row, target in zip(
            sample.raw_inputs(0, rows[3]), sample.targets(0, rows[3], standardised=False), strict=True
        )
    } <= known
    np.testing.assert_array_equal(sample.standardisation.input_mean, whole.standardisation.input_mean)


def test_an_attempt_ends_when_memory_is_short_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [100]
    monkeypatch.setattr("dkgp.fit.budget._used_bytes", lambda: used[0] * 2**20)
    budget = Budget(600.0, memory_bytes=1000 * 2**20)

    def growing() -> dict[str, Any]:
        used[0] = 990
        while not is_over():
            time.sleep(0.01)
        raise InterruptedRunError("interrupted")

    attempt = budget.attempt(growing, 10.0, 20.0)
    assert attempt.document is None
    assert attempt.lack == "memory limit, 990.0 MiB in use"

    def refusing() -> dict[str, Any]:
        raise MemoryBudgetError("too large")

    assert budget.attempt(refusing, 10.0, 20.0).lack == "memory limit: too large"
    with pytest.raises(MemoryBudgetError):
        budget.attempt(refusing, 10.0)


LIMIT = 30.0


def fit(table: Path, out: Path, clock: FastIn, **options: Any) -> dict[str, Any]:
    job = FitJob(IngestJob((str(table),), targets=("y",)), out=str(out), seconds=LIMIT, kernel="rbf", **options)
    document = _Fit(job, clock, clock).run()
    check_page(Path(document["report"]).read_text(encoding="utf-8"))
    assert document["evaluation"]["rmse"] < 0.9
    assert (
        open_prediction(document["predict"]["out"]).n_samples == open_dataset(document["predict"]["dataset"]).n_samples
    )
    return document


@pytest.mark.slow
@pytest.mark.parametrize("step", ["transform", "choose", "evaluate", "report"])
def test_a_fit_keeps_its_limit_however_slow_a_step_is(
    step: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "slowness", SLOWNESS)
    clock = FastIn(step, 30.0)
    document = fit(rows, tmp_path / "fit", clock)
    assert clock() <= 1.3 * LIMIT
    print(step, clock(), document["given_up"], document["seconds_by_phase"])
    steps = {item["step"] for item in document["given_up"]}
    assert steps or step in ("choose", "report")
    page = Path(document["report"]).read_text(encoding="utf-8")
    assert ("Left out because of the limits" in page) == bool(steps)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """Rows whose exact model takes some work, and the processor seconds of each step."""
    rng = np.random.default_rng(6)
    inputs = rng.uniform(-2.0, 2.0, (3000, 3))
    targets = np.sin(2.0 * inputs[:, 0]) * inputs[:, 1] + np.sin(3.0 * inputs[:, 2])
    targets += 0.01 * rng.standard_normal(3000)
    path = tmp_path_factory.mktemp("work") / "rows.csv"
    np.savetxt(path, np.column_stack([inputs, targets]), delimiter=",", header="a,b,c,y", comments="")
    with pytest.MonkeyPatch.context() as patch:
        take_the_exact_model(patch)
        for number in range(2):  # the first imports and compiles
            clock = FastIn("", 1.0)
            document = fit(path, path.parent / f"fit-{number}", clock, auto_transform=False)
    assert document["given_up"] == []
    return path, clock.seconds


def take_the_exact_model(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dkgp.fit.run.TuneJob", partial(TuneJob, subset=300, all_samples="none"))
    patch.setattr(Forecasts, "ways", lambda self: iter([Way("exact", None, 0.02, 1.0, 1.0, 1)]))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["tune", "predict"])
def test_a_step_whose_work_takes_the_whole_limit_falls_back(
    step: str, work: tuple[Path, dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "slowness", SLOWNESS)
    take_the_exact_model(monkeypatch)
    path, seconds = work
    clock = FastIn(step, LIMIT / seconds[step])
    document = fit(path, tmp_path / "fit", clock, auto_transform=False)
    print(step, seconds, clock(), document["given_up"], document["seconds_by_phase"])
    assert clock() <= 1.3 * LIMIT
    # A page without pictures makes up for a step that took long.
    steps = {item["step"] for item in document["given_up"]}
    assert step in steps
    assert steps <= {step, "report"}


@pytest.mark.slow
def test_a_large_sparse_model_falls_back_to_a_smaller_one(
    work: tuple[Path, dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "slowness", SLOWNESS)
    take_the_exact_model(monkeypatch)
    monkeypatch.setattr(Forecasts, "ways", lambda self: iter([Way("sparse", 2000, None, 1.0, 0.1, 1)]))
    clock = FastIn("train", 60.0)
    document = fit(work[0], tmp_path / "fit", clock, auto_transform=False)
    print(clock(), document["given_up"], document["seconds_by_phase"])
    assert clock() <= 1.3 * LIMIT
    assert document["given_up"][0]["step"] == "train"
    assert document["train"]["basis_size"] < 2000


@pytest.mark.slow
def test_a_fit_keeps_its_limit_on_a_busy_machine(tmp_path: Path, rng: np.random.Generator) -> None:
    inputs = rng.uniform(-2.0, 2.0, (6000, 3))
    targets = np.sin(2.0 * inputs[:, 0]) * inputs[:, 1] + 0.1 * rng.standard_normal(6000)
    table = tmp_path / "rows.csv"
    np.savetxt(table, np.column_stack([inputs, targets]), delimiter=",", header="a,b,c,y", comments="")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * available_cores())]
    try:
        limit, out = 40.0, tmp_path / "fit"
        began = time.monotonic()
        command = ("-m", "dkgp", "fit", str(table), "--target", "y", "--out", str(out), "--time", f"{limit:g}s")
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        elapsed = time.monotonic() - began
    finally:
        for process in busy:
            process.kill()
            process.wait()
    document = json.loads((out / "fit.json").read_text())
    print(limit, elapsed, document["least_seconds"], document["given_up"], document["seconds_by_phase"])
    # Imports and compilation may take longer than the limit. The fit then says how long, and makes a small model.
    too_short = any("is too short" in item["text"] for item in document["given_up"])
    assert elapsed <= 1.3 * (max(limit, document["least_seconds"]) if too_short else limit)
    assert document["evaluation"]["rmse"] < 0.9


@pytest.mark.long
def test_a_fit_says_at_once_that_its_limit_is_below_its_fixed_costs(rows: Path, tmp_path: Path) -> None:
    reporter = SilentReporter()
    job = FitJob(IngestJob((str(rows),), targets=("y",)), out=str(tmp_path / "fit"), seconds=0.02)
    document = _Fit(job, reporter).run()
    words = [item["text"] for item in document["given_up"] if item["step"] == "fit"]
    assert len(words) == 1
    assert words[0].startswith("the limit of 0.02 s is too short: ")
    assert reporter.warnings[0] == words[0]
    assert document["least_seconds"] > 0.02
    # A model is made all the same; the exact one of few samples takes as little time as any.
    assert document["tune"]["subset_size"] == FEW_SAMPLES
    assert document["choice"]["way"]["name"] == "exact"
    assert document["evaluation"]["rmse"] < 0.9


def test_a_measurement_of_the_load_takes_little_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "slowness", SLOWNESS)
    calls: list[float] = []

    def slow() -> float:
        """Return a time that is 100 s later at each call."""
        calls.append(100.0 * len(calls))
        return calls[-1]

    budget = Budget(1000.0, slow)
    before = len(calls)
    assert budget.slowness() > 1e3
    # Before and after, with a few steps of the least processor time between.
    assert len(calls) - before < 1000


def test_a_fit_starts_without_scikit_learn() -> None:
    code = "import sys, dkgp.fit.run; print(sorted({'sklearn', 'pandas', 'scipy.stats'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_waiting_for_a_processor_counts_as_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "slowness", SLOWNESS)
    counts = np.array([5.0, 1.0])
    monkeypatch.setattr("dkgp.fit.budget._scheduled", counts.copy)
    clock = Hand()
    budget = Budget(100.0, clock)
    budget.counts_waiting = True
    assert budget.slowness() == 1.0
    counts += (0.1, 0.9)
    assert budget.slowness() == 1.0  # measured a moment ago
    clock.now = 50.0
    assert budget.slowness() == pytest.approx(10.0)
    assert budget.least("report") == pytest.approx(10.0 * LEAST["report"])
    assert budget.least("report", 2.0) == pytest.approx(10.0 * (LEAST["report"] + 2.0))
    counts += (1.0, 0.0)
    clock.now = 60.0
    assert budget.slowness() == pytest.approx(1.5 / 1.05)


def test_a_small_model_is_no_alternative_if_fixed_costs_are_the_same(tmp_path: Path) -> None:
    clock = Hand()
    steps = Steps(Budget(100.0, clock), clock, lambda way: 200.0)
    ways = (Way("exact", None, 0.02, 10.0, 1.0, 1), Way("sparse", 100, None, 9.0, 1.0, 1))
    document = steps.train(ways[0], lambda way, first: way, lambda way: ways[1:])  # type: ignore[arg-type, return-value]
    assert document["way"] == ways[0]
    assert document["given_up"] == []


@pytest.mark.long
def test_a_forecast_that_takes_too_long_leaves_the_exact_model_out(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FastIn("", 1.0)

    def endless(forecasts: Forecasts, gap: float) -> Way:
        while True:
            clock.total += 0.1
            time.sleep(0.01)

    monkeypatch.setattr(Forecasts, "_exact", endless)
    monkeypatch.setattr("dkgp.fit.choice.FEW_SAMPLES", 0)
    job = FitJob(IngestJob((str(rows),), targets=("y",)), out=str(tmp_path / "fit"), seconds=20.0, kernel="rbf")
    document = _Fit(job, clock, clock).run()
    assert [item["step"] for item in document["given_up"]] == ["choose"]
    assert document["given_up"][0]["text"].endswith("because its forecast alone takes more than 2 s")
    assert document["choice"]["way"]["name"] != "exact"
    assert document["evaluation"]["rmse"] < 0.9
