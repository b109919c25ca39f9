"""The choice among models, by the forecasts of `dkgp plan`."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dkgp.cluster import ClusterOptions
from dkgp.cluster.executors.base import LocalExecutor
from dkgp.cluster.threads import available_cores
from dkgp.commands.ingest import IngestJob
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.data import Dataset, memory_dataset, open_dataset, write_friedman1
from dkgp.errors import InputError, MemoryBudgetError
from dkgp.fit.budget import Budget
from dkgp.fit.choice import BASIS_SIZES, PROOF_GAIN, THREADS, Chooser, Forecasts, compare_ways, decide
from dkgp.fit.job import HYPER, TEST, TRAIN, FitJob
from dkgp.fit.ways import GAPS, Way, spoken
from dkgp.kernels import Kernel, SquaredExponential
from dkgp.models import Hyperparameters, tune, write_hyperparameters
from dkgp.models.context import RunContext
from dkgp.models.memory import RUNTIME_BYTES
from dkgp.models.refinement.candidates import Candidate, Judge, Judged, draw_held_out
from dkgp.models.variance.settings import VarianceSettings
from dkgp.plan.machine import ClusterFigures, MachineFigures, write_figures
from dkgp.plan.plan import PlanJob, run_plan
from tests.cli.invoke import run_json
from tests.fit.conftest import PRICE, nominal_machine

GIB = 1024**3
EXACT = Way("exact", None, 0.02, 500.0, 100.0, 3 * GIB)
COARSE = Way("exact", None, 0.1, 500.0, 10.0, 3 * GIB)
LARGE, SMALL = (
    Way("sparse", 2000, None, 60.0, 1.0, 2 * GIB),
    Way("sparse", 100, None, 4.0, 0.5, GIB),
)
WAYS = (EXACT, COARSE, LARGE, SMALL)


@pytest.mark.parametrize(
    ("seconds", "memory", "way"),
    [
        (600.0, 3 * GIB, EXACT),
        (599.9, 3 * GIB, COARSE),
        (509.0, 3 * GIB, LARGE),
        (600.0, 3 * GIB - 1, LARGE),
        (60.9, 3 * GIB, SMALL),
        (600.0, 2 * GIB - 1, SMALL),
    ],
)
def test_the_first_way_that_fits_is_taken(seconds: float, memory: int, way: Way) -> None:
    decision = decide(WAYS, seconds, memory)
    assert decision.way == way
    assert decision.passed_over == WAYS[: WAYS.index(way)]
    assert way.forecast in decision.reason
    passed = decision.passed_over
    assert ("too long" in decision.reason) == bool(passed and passed[-1].seconds > seconds)
    assert ("too much memory" in decision.reason) == bool(passed and passed[-1].memory_bytes > memory)


def test_none_that_fits_is_refused_by_what_is_short() -> None:
    with pytest.raises(
        InputError,
        match=r"sparse model with 100 .* 4.5 s to train and predict, and 1.0 GiB of memory. Only 4 s of the time",
    ):
        decide(WAYS, 4.0, 8 * GIB)
    with pytest.raises(MemoryBudgetError, match=r"least memory is the sparse model with 100 .*The limit is 512.0 MiB"):
        decide(WAYS, 4000.0, GIB // 2)
    # The quickest of those that fit the memory, not of all.
    with pytest.raises(InputError, match=r"the fastest model is the sparse model with 2,000"):
        decide((LARGE, Way("sparse", 100, None, 1.0, 0.0, 9 * GIB)), 30.0, 3 * GIB)
    with pytest.raises(MemoryBudgetError, match="no model fits in"):
        decide((), 30.0, GIB)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0047, "0.005 s"),
        (0.2, "0.2 s"),
        (4.25, "4.2 s"),
        (61.0, "61 s"),
        (93.6, "1.6 min"),
        (150.0, "2.5 min"),
        (300.0, "5 min"),
        (599.0, "10 min"),
        (750.0, "12 min"),
        (7200.0, "2.0 h"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


def test_forecasts_are_those_of_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_url, hyper = str(tmp_path / "train.zarr"), str(tmp_path / "hyper.json")
    write_friedman1(train_url, str(tmp_path / "test.zarr"), 300, 40, seed=0)
    dataset = open_dataset(train_url)
    hyperparameters = Hyperparameters(SquaredExponential(np.full(dataset.n_features, 0.05)), 0.05)
    write_hyperparameters(hyper, hyperparameters)
    reporter, budget = SilentReporter(), 4 * GIB
    nominal = Forecasts(dataset, hyperparameters, 40, budget, 0, ClusterOptions(), reporter)
    with monkeypatch.context() as patch:
        # The choice of the solver and the count of its work share a probe.
        patch.delattr("dkgp.models.solver_choice.probe_of")
        list(nominal.ways())
    # Other prices change no work, so that nothing is counted again.
    with monkeypatch.context() as patch:
        patch.delattr("dkgp.fit.choice.foresee")
        patch.delattr("dkgp.fit.choice.foresee_variances")
        forecasts = nominal.measured()
        ways = list(forecasts.ways())
    smaller = [size for size in BASIS_SIZES if size < 300]
    assert [(way.name, way.size, way.gap) for way in ways] == [
        *(("exact", None, gap) for gap in GAPS),
        ("exact", None, None),
        ("vif", 200, None),
        *(("sparse", size, None) for size in smaller),
    ]
    figures = str(tmp_path / "figures.json")
    write_figures(figures, nominal_machine(dataset, hyperparameters.kernel, hyperparameters.noise_variance))
    threads = available_cores()
    resident = int(psutil.Process().memory_info().rss)
    monkeypatch.setattr(
        "dkgp.plan.plan._measure_cluster", lambda job, reporter: ClusterFigures(THREADS, threads, resident, 0)
    )
    # Variances are not counted if training alone takes too long.
    with monkeypatch.context() as patch:
        patch.delattr("dkgp.fit.choice.foresee_variances")
        hopeless = Forecasts(dataset, hyperparameters, 40, budget, 0, ClusterOptions(), reporter, most_seconds=0.0)
        first, second, *_ = hopeless.ways()
    assert (first.words, second.name) == ("exact model", "vif")
    assert first.train_seconds > first.predict_seconds == 0.0
    widest, approximate, near = ways[len(GAPS) - 1 : len(GAPS) + 2]
    assert [way.words for way in ways if way.approximate] == [
        "exact model (variances approximate, from neighbours (VIF))"
    ]
    assert (approximate.train_seconds, approximate.predict_seconds) == (widest.train_seconds, near.seconds)
    for way in (ways[0], *ways[len(GAPS) + 1 :]):
        job = PlanJob(
            train_url,
            hyper,
            workers=(1,),
            threads_per_worker=threads,
            one_machine=True,
            figures=figures,
            variance=VarianceSettings(gap=GAPS[0]),
            test_samples=40,
            sparse={"exact": None, "vif": "vif", "sparse": "vfe"}[way.name],
            basis_size=way.size,
            memory_limit_bytes=budget,
        )
        plan = run_plan(job, reporter)
        (row,) = plan["workers"]
        if way.size is None:
            assert way.train_seconds == pytest.approx(row["seconds"], rel=1e-9)
            assert way.predict_seconds == pytest.approx(row["variance"]["seconds"], rel=1e-9)
        else:
            assert way.train_seconds == pytest.approx(row["sparse"]["seconds"], rel=1e-9)
            # Beside what the process held, at each of the times that it was asked; libraries count in both processes.
            held = resident + plan["memory_plan"]["resident_bytes"] + RUNTIME_BYTES
            planned = row["sparse"]["worker_memory_bytes"] + row["sparse"]["coordinator_memory_bytes"] - held
            assert way.memory_bytes - forecasts.resident_bytes == planned
    sizes = [way.train_seconds for way in ways[len(GAPS) + 2 :]]
    assert sizes == sorted(sizes, reverse=True)


def test_an_exact_model_beyond_the_memory_is_left_out(tmp_path: Path) -> None:
    train_url = str(tmp_path / "train.zarr")
    write_friedman1(train_url, str(tmp_path / "test.zarr"), 300, 40, seed=0)
    dataset = open_dataset(train_url)
    hyperparameters = Hyperparameters(SquaredExponential(np.full(dataset.n_features, 0.05)), 0.05)
    forecasts = Forecasts(dataset, hyperparameters, 40, 1024**2, 0, ClusterOptions(), SilentReporter())
    ways = list(forecasts.ways())
    assert {way.name for way in ways} == {"vif", "sparse"}
    with pytest.raises(MemoryBudgetError, match="with the least memory"):
        decide(ways, 1e9, 1024**2)


@pytest.mark.long
def test_no_machine_is_measured_where_any_would_do(
    fitted: dict[str, Any], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(dataset: Dataset, kernel: Kernel, noise_variance: float) -> MachineFigures:
        measured.append(dataset.n_samples)
        return nominal_machine(dataset, kernel, noise_variance)

    monkeypatch.setattr("dkgp.fit.choice.measure_machine", measure)
    # Ten minutes are more than twenty times the time that 150 samples take on any machine.
    out = tmp_path / "fit"
    shutil.copytree(fitted["out"], out)
    record = json.loads((out / "fit.json").read_text())
    phases = {"ingest": record["ingest"], "tune": record["tune"]}
    spent = {"ingest": 0.0, "tune": 0.0}

    def chosen_within(seconds: str) -> dict[str, Any]:
        begun = {**record, "finished": False, "phases": dict(phases), "seconds_by_phase": dict(spent)}
        (out / "fit.json").write_text(json.dumps(begun))
        for name in ("model.zarr", "pred.zarr"):
            shutil.rmtree(out / name)
        arguments = ("--target", PRICE, "--drop", "kind", "--out", out, "--time", seconds, "--resume")
        return run_json("fit", table, *arguments)

    assert chosen_within("10min")["choice"]["way"]["name"] == "exact"
    assert measured == []
    monkeypatch.setattr("dkgp.fit.choice.CERTAIN_SHARE", 0.0)
    monkeypatch.setattr("dkgp.fit.choice.FEW_SAMPLES", 0)
    chosen_within("10min")
    assert measured == [fitted["ingest"]["n_train"]]


@pytest.mark.long
def test_a_tuning_that_took_too_long_leaves_a_fifth_of_the_time_to_the_model(
    fitted: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    record = json.loads((Path(fitted["out"]) / "fit.json").read_text())
    out = tmp_path / "fit"
    shutil.copytree(fitted["out"], out, ignore=shutil.ignore_patterns("model.zarr", "pred.zarr"))
    phases = {"ingest": record["ingest"], "tune": record["tune"]}
    begun = {**record, "finished": False, "phases": phases, "seconds_by_phase": {"ingest": 1.0, "tune": 5000.0}}
    (out / "fit.json").write_text(json.dumps(begun))
    document = run_json(
        *("fit", table, "--target", PRICE, "--drop", "kind", "--out", out, "--time", "20min", "--resume")
    )
    assert re.search(r"available: 3\.\d min and", document["choice"]["reason"])


def tuned_job(folder: Path) -> tuple[FitJob, Kernel, float]:
    """Write data and hyperparameters of a fit that has to choose a model; return them with its job."""
    job = FitJob(IngestJob(("rows.csv",), targets=("y",)), out=str(folder))
    write_friedman1(job.place(TRAIN), job.place(TEST), 300, 40, seed=0)
    kernel, noise = SquaredExponential(np.full(10, 0.05)), 0.05
    write_hyperparameters(job.place(HYPER), Hyperparameters(kernel, noise))
    return job, kernel, noise


def test_an_exact_model_whose_forecast_would_take_too_long_is_not_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Forecasts, "_exact")
    monkeypatch.setattr("dkgp.fit.choice.FEW_SAMPLES", 0)
    monkeypatch.setattr(Budget, "slowness", lambda budget: 100.0)
    job = replace(tuned_job(tmp_path)[0], seconds=100.0)
    document = Chooser(job, Budget(100.0), SilentReporter(), 64 * GIB).choose(hurried=False)
    assert document["way"]["name"] != "exact"
    assert document["given_up"][0]["text"].endswith("because its forecast alone takes more than 10 s")


@pytest.mark.parametrize("hurried", [False, True])
@pytest.mark.parametrize("n", [6, 360])
def test_the_exact_model_of_few_samples_needs_no_forecast(
    n: int, hurried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Forecasts, "_exact")
    monkeypatch.setattr("dkgp.fit.choice.compile_seconds", lambda pieces: 0.0)
    monkeypatch.setattr("dkgp.fit.choice.measure_machine", lambda *_: pytest.fail("measured the machine"))
    monkeypatch.setattr(Budget, "slowness", lambda budget: 20.0)
    job = replace(tuned_job(tmp_path)[0], seconds=5.0)
    write_friedman1(job.place(TRAIN), job.place(TEST), n, 1 + n // 10, seed=0, overwrite=True)
    document = Chooser(job, Budget(5.0), SilentReporter(), 64 * GIB).choose(hurried=hurried)
    assert document["way"]["name"] == "exact"
    assert not document.get("given_up")


@pytest.mark.parametrize(("shrinkage", "model"), [(1.0, "exact"), (0.999, "exact"), (0.5, "vif")])
def test_held_out_density_chooses_between_the_exact_model_and_neighbours(
    shrinkage: float, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, kernel, noise = tuned_job(tmp_path)
    dataset = open_dataset(job.place(TRAIN))

    def neighbours(judge: Judge, candidate: Candidate, context: RunContext) -> Judged:
        """Predict as the exact model, with smaller errors."""
        exact = judge.judge_exact(candidate)
        assert exact.predicted is not None
        truth, means = exact.predicted.truth, exact.predicted.means
        return Judged(candidate, replace(exact.predicted, means=truth - shrinkage * (truth - means)), 0.0)

    monkeypatch.setattr(Judge, "judge", neighbours)
    document = Chooser(job, Budget(3600.0), SilentReporter(), 64 * GIB).choose(hurried=False)
    # The choice again, by dense algebra and loops.
    held_out = draw_held_out(300, 300, 0)
    others = np.delete(np.arange(300), held_out)
    inputs, targets = dataset.inputs(0, 300), dataset.all_targets()[:, 0]
    K = kernel.matrix(inputs, inputs) + noise * np.eye(300)
    losses = np.zeros((2, len(held_out)))
    for place, row in enumerate(held_out):
        weights = np.linalg.solve(K[np.ix_(others, others)], K[others, row])
        variance = K[row, row] - weights @ K[others, row]
        error = targets[row] - weights @ targets[others]
        for number, factor in enumerate((1.0, shrinkage)):
            losses[number, place] = 0.5 * np.log(2.0 * np.pi * variance) + 0.5 * (factor * error) ** 2 / variance
    gains = losses[0] - losses[1]
    is_better = gains.mean() > max(PROOF_GAIN, gains.std(ddof=1) / np.sqrt(len(gains)))
    assert ("vif" if is_better else "exact") == model == document["way"]["name"]
    assert [row["nlpd"] for row in document["compared"]] == pytest.approx(losses.mean(axis=1), rel=1e-9)
    exact, near = (f"{loss.mean():.4g}" for loss in losses)
    assert (
        f"is {exact} for the exact model (variances certified within 2 %), {near} for the model with"
        in document["reason"]
    )


def test_a_comparison_that_is_skipped_gives_its_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkgp.fit.choice.SHARE_OF_COMPARISON", 1e-7)
    job = tuned_job(tmp_path)[0]
    document = Chooser(job, Budget(3600.0), SilentReporter(), 64 * GIB).choose(hurried=False)
    assert document["way"]["name"] == "exact"
    expected = (
        r"\. It was not compared with the model with neighbours .*: the comparison may take a tenth of the available "
        r"time \(0\.000\d s\), and its forecast is \S+ \w+"
    )
    assert re.search(expected, document["reason"]), document["reason"]


def test_held_out_samples_compare_a_basis_with_neighbours(rng: np.random.Generator) -> None:
    X = rng.random((500, 2))
    dataset = memory_dataset(X, np.sin(30.0 * X[:, 0]) + np.cos(30.0 * X[:, 1]) + 0.05 * rng.standard_normal(500))
    rough = tune(dataset.inputs(0, 500), dataset.all_targets(), subset=200)
    executor = LocalExecutor(1)
    ways = [Way("vif", 200, None, 1.0, 1.0, 1), *(Way("sparse", size, None, 1.0, 1.0, 1) for size in (20, 450))]
    near, few, every = compare_ways(dataset, rough, ways, executor, 0)
    assert near.beats(few)
    assert near.predicted is not None
    assert few.predicted is not None
    # A tenth, the same samples for both, and a basis of all samples is the exact model.
    np.testing.assert_array_equal(near.predicted.truth, few.predicted.truth)
    assert len(near.predicted.truth) == 50
    assert every.predicted is not None
    np.testing.assert_allclose(every.predicted.means, near.predicted.means, atol=0.05)
    np.testing.assert_allclose(every.predicted.variances, near.predicted.variances, rtol=0.1)
