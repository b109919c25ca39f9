"""`dkgp tune` beyond its subset: what is taken, what is not tried, and how the file and the table say so."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkgp.commands import candidates, searches
from dkgp.commands.candidates import (
    LEAST_SEARCH,
    affordable,
    affordable_subset,
    evaluation_seconds,
    forecast,
    judging,
    judging_reserve,
    rougher,
)
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.searches import run_tune
from dkgp.commands.tune import TuneJob
from dkgp.data import ingest, open_dataset
from dkgp.fit.job import candidate_words, unfinished_kernels
from dkgp.kernels import parse_kernel
from dkgp.limits import Deadline, limited
from dkgp.models import tune_dataset
from dkgp.models.refinement.candidates import draw_held_out, held_out_count
from dkgp.models.tuning.subsets import plan_subsets
from tests.cli.invoke import run, run_json


@pytest.mark.parametrize(
    ("n", "seconds", "slowness", "samples"),
    [
        (50_000, None, 1.0, 20_000),
        (8000, None, 5.0, 8000),
        (2500, None, 1.0, 0),  # hardly more than the subset
        (50_000, 60.0, 1.0, 19_200),
        (50_000, 60.0, 3.0, 5866),
        (50_000, 10.0, 1.0, 0),
        (4000, 60.0, 1.0, 4000),
    ],
)
def test_forecasts_decide_on_the_samples(n: int, seconds: float | None, slowness: float, samples: int) -> None:
    assert affordable(n, 2000, seconds, slowness, 1000) == samples
    if seconds is not None and samples:
        assert forecast(samples, n, slowness, 1000) <= seconds * 1.0001


def test_a_search_leaves_time_to_judge_its_result() -> None:
    assert judging_reserve(20_000, 2000) == 0.0
    with limited(Deadline(27.0, 30.0, lambda: 0.0)):
        idle = judging_reserve(20_000, 2000)
        assert judging(19_000, 1.0, 1000) < idle < 2.0
        assert judging_reserve(2500, 2000) == 0.0  # judged by leave-one-out
    with limited(Deadline(27.0, 30.0, lambda: 0.0, slowness=5.0)):
        assert judging_reserve(20_000, 2000) == pytest.approx(5.0 * idle)
    with limited(Deadline(2.0, 30.0, lambda: 0.0, slowness=5.0)):
        assert judging_reserve(20_000, 2000) == 1.0
    with limited(Deadline(-1.0, 30.0, lambda: 0.0)):
        assert judging_reserve(20_000, 2000) == 0.0


@pytest.mark.parametrize(
    ("size", "seconds", "slowness", "taken"),
    [
        (2000, 27.0, 1.0, 2000),
        (2000, 27.0, 9.0, 1000),
        (2000, 27.0, 38.0, 500),
        (2000, 0.0, 1.0, 500),
        (2000, float("inf"), 1e9, 2000),
        (700, 1.0, 10.0, 500),
        (300, 0.0, 1.0, 300),
    ],
)
def test_a_busy_machine_has_a_smaller_subset(size: int, seconds: float, slowness: float, taken: int) -> None:
    assert affordable_subset(size, seconds, slowness) == taken
    if 500 < taken < size:
        assert LEAST_SEARCH * slowness * evaluation_seconds(taken) <= seconds


@pytest.mark.parametrize(("finish", "slowness", "taken"), [(30.0, 1.0, 300), (30.0, 1e3, 100), (0.0, 1.0, 50)])
def test_a_search_with_a_deadline_takes_the_subset_that_it_has_time_for(
    finish: float,
    slowness: float,
    taken: int,
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "SMALLER_SUBSETS", (100, 50))
    train, notes = stored(tmp_path, *surface(300, rng)), list[str]()
    reporter = SilentReporter()
    monkeypatch.setattr(reporter, "note", lambda message, figures=None: notes.append(message))
    job = TuneJob(str(train), str(tmp_path / "a.json"), all_samples="none")
    with limited(Deadline(finish, np.inf, lambda: 0.0, slowness)):
        assert run_tune(job, reporter)["subset_size"] == taken
    words = f"the time that is left suffices for a subset of {taken} samples, not 300"
    assert (words in notes) == (taken < 300)


@pytest.mark.parametrize("finish", [1e6, 1.0])
def test_a_short_search_goes_on_from_the_compared_kernel(
    finish: float, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "SMALLER_SUBSETS", (100, 50))
    monkeypatch.setattr(searches, "COMPARED", 60)
    monkeypatch.setattr(searches, "COMPARED_KERNELS", ("rbf", "rbf + linear"))
    calls: list[dict[str, Any]] = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        calls.append(options)
        return tune_dataset(*arguments, **options)

    monkeypatch.setattr(searches, "tune_dataset", recorded)
    train = stored(tmp_path, *surface(300, rng))
    job = TuneJob(str(train), str(tmp_path / "a.json"), kernel="auto", all_samples="none", kernel_seconds=1e3)
    # A clock on which each call takes a second: the comparison measures evaluations of a second.
    ticks = itertools.count()
    with limited(Deadline(finish, np.inf, lambda: float(next(ticks)) if finish == 1.0 else 0.0)):
        document = run_tune(job, SilentReporter())
    compared = [options["subset"] for options in calls[:-1]]
    assert compared == ([60, 60] if finish > 1.0 else [50])
    assert document["subset_size"] == (300 if finish > 1.0 else 50)
    start = calls[-1]["start"]
    assert (start is None) == (finish > 1.0)
    if start is not None:
        assert document["log_marginal_likelihood"] >= start.log_marginal_likelihood - 1e-6


@pytest.mark.parametrize(
    ("kernel", "other"),
    [
        ("rbf", "matern32"),
        ("matern52", "matern32"),
        ("matern32", "matern12"),
        ("matern12", None),
        ("rbf + linear", None),
    ],
)
def test_a_rougher_kernel_keeps_the_scales(kernel: str, other: str | None) -> None:
    first = parse_kernel(kernel, 3)
    second = rougher(first)
    if other is None:
        assert second is None
        return
    assert second is not None
    assert {**second.to_json(), "type": kernel} == first.to_json()
    assert second.type_name == other


@pytest.mark.parametrize(
    ("changed", "goes"),
    [
        ({}, True),
        ({"kernel": "matern32"}, True),
        ({"all_samples": "none"}, False),
        ({"subset": 1000}, False),
        ({"subsets": 2}, False),
        ({"folds": 5}, False),
        ({"objective": "loo"}, False),
        ({"likelihood": "student-t"}, False),
        ({"noise_model": "auto"}, False),
        ({"mean": "linear"}, False),
    ],
)
def test_options_of_subsets_keep_their_result(changed: dict[str, Any], goes: bool) -> None:
    assert TuneJob("train.zarr", "hyper.json", **changed).goes_beyond == goes


def surface(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Waves that are shorter than the distance of a subset's samples."""
    X = rng.random((n, 2))
    return X, np.sin(25.0 * X[:, 0]) + np.cos(25.0 * X[:, 1]) + 0.05 * rng.standard_normal(n)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default subset of 60 samples, so that some hundred samples are many."""
    monkeypatch.setattr(TuneJob, "goes_beyond", property(lambda job: job.all_samples == "auto"))
    monkeypatch.setattr(candidates, "LEAST_SAMPLES", 20)


def stored(tmp_path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    np.savez(tmp_path / "table.npz", X=X, y=y)
    ingest(str(tmp_path / "table.npz"), str(tmp_path / "train.zarr"), target="y")
    return tmp_path / "train.zarr"


def test_a_surface_is_tuned_on_all_samples(tmp_path: Path, rng: np.random.Generator, small: None) -> None:
    train = stored(tmp_path, *surface(400, rng))
    first = run_json("tune", train, "--out", tmp_path / "a.json", "--subset", 60, "--all-samples", "none")
    document = run_json("tune", train, "--out", tmp_path / "b.json", "--subset", 60)
    assert "candidates" not in first
    record = document["candidates"]
    assert record == json.loads((tmp_path / "b.json").read_text())["candidates"]
    subset, every, *_ = record["candidates"]
    assert [subset["from"], every["from"]] == ["a subset of 60 samples", "the likelihood of 360 samples"]
    assert record["taken"].startswith("the likelihood of 360 samples")
    assert (record["held_out"], record["samples"]) == (40, 360)
    assert every["nlpd"] < subset["nlpd"]
    assert every["rmse"] < subset["rmse"]
    taken = next(row for row in record["candidates"] if row["from"] == record["taken"])
    assert 0.9 <= taken["coverage_95"] <= 1.0
    assert document["noise_variance"] == taken["noise_variance"] != first["noise_variance"]
    shown = run("tune", train, "--out", tmp_path / "b.json", "--subset", 60, "--resume").output
    assert "Candidates on 40 held-out samples, predicted from 360" in shown
    assert "the likelihood of 360 samples *" in shown


def test_a_limit_leaves_the_evidence_out_and_says_so(tmp_path: Path, rng: np.random.Generator, small: None) -> None:
    train = stored(tmp_path, *surface(500, rng))
    limit = ("--all-samples-seconds", 1e-3)
    document = run_json("tune", train, "--out", tmp_path / "a.json", "--subset", 60, *limit)
    plain = run_json("tune", train, "--out", tmp_path / "b.json", "--subset", 60, "--all-samples", "none")
    assert document["kernel"] == plain["kernel"]
    assert document["noise_variance"] == plain["noise_variance"]
    (reason,) = document["candidates"]["not_tried"]
    assert reason["from"] == "the likelihood of all samples"
    assert reason["reason"].endswith("of 0.001 s")


def test_held_out_samples_scale_error_bars_if_the_evidence_of_all_samples_takes_too_long(
    tmp_path: Path, rng: np.random.Generator, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "affordable", lambda *_: 0)
    # From one far side the surface seems smooth: its waves are in the half that the kernel's scales do not suit.
    X = rng.random((500, 1))
    y = np.where(X[:, 0] < 0.8, 0.2 * X[:, 0], np.sin(300.0 * X[:, 0]))
    train = stored(tmp_path, X, y)
    fixed = {"kernel": {"type": "rbf", "variance": 1.0, "gamma": [20.0]}, "noise_variance": 1e-3}
    (tmp_path / "start.json").write_text(json.dumps({**fixed, "feature_names": ["x0"]}))
    monkeypatch.setattr("dkgp.commands.searches.tune_dataset", lambda *_, start, **__: replace(start, subset_size=60))
    words = ("--subset", 60, "--start", tmp_path / "start.json")
    document = run_json("tune", train, "--out", tmp_path / "a.json", *words)
    record = document["candidates"]
    subset, scaled = record["candidates"]
    assert [subset["from"], scaled["from"]] == ["a subset of 60 samples", "a subset of 60 samples, variances scaled"]
    assert (record["taken"], record["samples"], record["learned_from"]) == (scaled["from"], 450, 0)
    assert [row["from"] for row in record["not_tried"]] == ["the likelihood of all samples"]
    assert subset["squared_error"] > 2.0
    assert scaled["squared_error"] == pytest.approx(1.0)
    assert document["noise_variance"] == pytest.approx(1e-3 * subset["squared_error"])
    assert candidate_words(document, 500, 60.0) == ("--all-samples-seconds", "60")


def test_a_judgement_that_might_not_end_in_time_is_left_out(
    tmp_path: Path, rng: np.random.Generator, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "seconds_to_stop", lambda: 1e-6)
    train = stored(tmp_path, *surface(500, rng))
    document = run_json("tune", train, "--out", tmp_path / "a.json", "--subset", 60)
    plain = run_json("tune", train, "--out", tmp_path / "b.json", "--subset", 60, "--all-samples", "none")
    assert document["noise_variance"] == plain["noise_variance"]
    assert not document["candidates"]["candidates"]
    assert [row["from"] for row in document["candidates"]["not_tried"]] == ["the likelihood of all samples"]


@pytest.mark.parametrize(
    ("n", "subset", "count"),
    [(18_000, 2000, 1000), (18_000, 1000, 999), (7200, 500, 499), (3000, 2000, 300), (9, 2000, 0)],
)
def test_fewer_samples_are_held_out_than_the_subset_has(n: int, subset: int, count: int) -> None:
    assert held_out_count(n, subset) == count
    if count:
        rows = draw_held_out(n, subset, 0)
        assert len(np.unique(rows)) == count
        assert not set(rows) & set(plan_subsets(n, subset).subset(0))


def test_few_samples_try_a_free_amplitude(tmp_path: Path, rng: np.random.Generator) -> None:
    # A function of one trend: the likelihood is greatest at long length scales and a large amplitude.
    X = np.sort(rng.random((90, 1)), axis=0)
    y = 2.0 * X[:, 0] ** 2 + X[:, 0] + 0.01 * rng.standard_normal(90)
    train = stored(tmp_path, X, y)
    document = run_json("tune", train, "--out", tmp_path / "a.json")
    first, free, *_ = document["candidates"]["candidates"]
    assert [first["from"], free["from"]] == ["all 90 samples", "all 90 samples, amplitude tuned too"]
    assert (document["candidates"]["held_out"], document["candidates"]["samples"]) == (0, 90)
    assert document["candidates"]["taken"].startswith("all 90 samples, amplitude tuned too")
    assert free["nlpd"] < first["nlpd"] - 0.002
    assert (
        free["noise_variance"]
        == tune_dataset(
            open_dataset(str(train)), start=tune_dataset(open_dataset(str(train))), learn_variance=True
        ).noise_variance
    )
    # A user's choice of parameters is kept, and so is a kernel whose amplitudes are free already.
    for options in (("--fix", "noise_variance=0.001"), ("--kernel", "rbf + linear"), ("--learn-variance",)):
        other = run_json("tune", train, "--out", tmp_path / "b.json", "--overwrite", *options)
        assert not any("amplitude" in row["from"] for row in other.get("candidates", {}).get("candidates", []))
    # Leave-one-out predictions are optimistic if the search has fitted many parameters to the same samples.
    X = rng.standard_normal((80, 9))
    np.savez(tmp_path / "wide.npz", X=X, y=X[:, 0])
    ingest(str(tmp_path / "wide.npz"), str(tmp_path / "wide.zarr"), target="y")
    wide = run_json("tune", tmp_path / "wide.zarr", "--out", tmp_path / "d.json")
    assert wide["candidates"]["not_tried"][0]["reason"] == "it needs at least 10 samples for each feature"
    limited = run_json("tune", train, "--out", tmp_path / "c.json", "--all-samples-seconds", 1e-6)
    (reason,) = limited["candidates"]["not_tried"]
    assert reason == {"from": "all 90 samples, amplitude tuned too", "reason": "the time limit is over"}


@pytest.mark.long
def test_noise_at_its_bound_is_a_warning_and_leads_to_another_candidate(
    tmp_path: Path, rng: np.random.Generator, small: None
) -> None:
    # A smooth function without noise.
    X = rng.random((250, 1))
    train = stored(tmp_path, X, np.sin(9.0 * X[:, 0]))
    document = run_json("tune", train, "--out", tmp_path / "a.json", "--subset", 60, "--kernel", "rbf")
    rows = document["candidates"]["candidates"]
    assert [row["from"].rpartition(", ")[2] for row in rows[:3]] == [
        "a subset of 60 samples",
        "the likelihood of 225 samples",
        "matern32",
    ]
    best = min(row["nlpd"] for row in rows if row["nlpd"] is not None)
    taken = next(row for row in rows if row["from"] == document["candidates"]["taken"])
    assert taken["nlpd"] == pytest.approx(best, abs=0.01)
    assert any("noise_variance" in text and "bound" in text for text in document["warnings"])
    assert len(document["warnings"]) == len(json.loads((tmp_path / "a.json").read_text())["warnings"])


def test_all_samples_in_the_subset_are_predicted_from_each_other(tmp_path: Path, rng: np.random.Generator) -> None:
    X = rng.random((200, 1))
    train = stored(tmp_path, X, np.sin(6.0 * X[:, 0]) + 0.1 * rng.standard_normal(200))
    document = run_json("tune", train, "--out", tmp_path / "a.json", "--kernel", "rbf + linear")
    plain = run_json("tune", train, "--out", tmp_path / "b.json", "--kernel", "rbf + linear", "--all-samples", "none")
    assert document["noise_variance"] == plain["noise_variance"]
    assert "candidates" not in document


def test_a_resumed_comparison_keeps_finished_kernels_and_repeats_none(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = ("rbf", "matern32", "rbf + linear")
    monkeypatch.setattr(searches, "COMPARED_KERNELS", kernels)
    train = stored(tmp_path, *surface(60, rng))
    job = TuneJob(str(train), str(tmp_path / "a.json"), kernel="auto", all_samples="none", kernel_seconds=1e3)
    whole = run_tune(job, SilentReporter())
    assert not Path(job.comparison_url).exists()
    searched: list[str] = []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if options["kernel"] == "rbf + linear":
            raise KeyboardInterrupt
        return tune_dataset(*arguments, **options)

    def recorded(*arguments: Any, **options: Any) -> Any:
        searched.append(options["kernel"])
        return tune_dataset(*arguments, **options)

    monkeypatch.setattr(searches, "tune_dataset", interrupted)
    job = replace(job, out=str(tmp_path / "b.json"))
    with pytest.raises(KeyboardInterrupt):
        run_tune(job, SilentReporter())
    monkeypatch.setattr(searches, "tune_dataset", recorded)
    # Another time limit does not make another comparison, other settings do.
    kept = Path(job.comparison_url).read_bytes()
    other = replace(job, resume=True, kernel_seconds=900.0)
    resumed = run_tune(other, SilentReporter())
    assert searched == ["rbf + linear"]
    for name in ("kernel", "noise_variance", "evaluations"):
        assert resumed[name] == whole[name]
    assert [row["nlpd"] for row in resumed["comparison"]["kernels"]] == [
        row["nlpd"] for row in whole["comparison"]["kernels"]
    ]
    assert not Path(job.comparison_url).exists()
    for damage, options in ((kept, {"seed": 5}), (kept[:-9], {}), (b"{}", {}), (kept, {"resume": False})):
        searched.clear()
        Path(job.comparison_url).write_bytes(damage)
        run_tune(replace(other, overwrite=True, out=job.out, **options), SilentReporter())
        assert searched[:3] == list(kernels)
        Path(job.out).unlink()


def test_a_search_that_is_cut_off_does_not_win_against_complete_ones(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "COMPARED_KERNELS", ("rbf + linear", "matern12", "rbf"))
    train = stored(tmp_path, *surface(60, rng))
    job = TuneJob(str(train), str(tmp_path / "a.json"), kernel="auto", all_samples="none", kernel_seconds=1e3)
    clock = [0.0]

    def timed(*arguments: Any, **options: Any) -> Any:
        cut = options["kernel"] != "matern12"
        if cut:
            clock[0] += 1e6
        with limited(Deadline(clock[0] if cut else np.inf, np.inf, lambda: clock[0])):
            tuned = tune_dataset(*arguments, **options)
        clock[0] -= 1e6 if cut else 0.0
        return replace(tuned, seconds=1e6) if cut else tuned

    monkeypatch.setattr(searches, "tune_dataset", timed)
    monkeypatch.setattr(searches, "REPEATED", np.inf)
    reporter = SilentReporter()
    document = run_tune(job, reporter)
    rows = document["comparison"]["kernels"]
    assert [row.get("cut_off", False) for row in rows] == [True, False, True]
    assert document["comparison"]["kernel"] == "matern12"
    assert any("cut off the search of rbf + linear, rbf; more time" in text for text in reporter.warnings)
    assert unfinished_kernels(document["comparison"]) == "the search of rbf + linear, rbf was cut off"
    # Time that is left repeats such a search, with its result as in a comparison without a limit.
    calls: list[str] = []

    def first_cut(*arguments: Any, **options: Any) -> Any:
        calls.append(options["kernel"])
        return (timed if calls.count(options["kernel"]) == 1 else tune_dataset)(*arguments, **options)

    monkeypatch.setattr(searches, "tune_dataset", first_cut)
    monkeypatch.setattr(searches, "REPEATED", 1.5)
    document = run_tune(replace(job, overwrite=True), SilentReporter())
    assert calls[:5] == ["rbf + linear", "matern12", "rbf", "rbf + linear", "rbf"]
    assert unfinished_kernels(document["comparison"]) == ""
