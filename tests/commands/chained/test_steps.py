"""Steps on record: what is done is not done again, and what was begun goes on from what its command has left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dkgp.commands.chained import Steps, earlier_record
from dkgp.commands.predict.job import PredictJob
from dkgp.commands.reporting.memory import PeakMemory
from dkgp.commands.reporting.progress import SilentReporter
from dkgp.commands.sparse import SparseJob
from dkgp.commands.train import TrainJob
from dkgp.errors import InputError

SETTINGS = {"seed": 0}


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Commands that do nothing, and their inputs; whether each was to resume, by its name."""
    calls: dict[str, bool] = {}
    for name in ("train.zarr", "test.zarr", "model.zarr"):
        (tmp_path / "inputs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inputs")

    def command(name: str) -> Any:
        def run(job: Any, reporter: Any) -> dict[str, Any]:
            calls[name] = job.resume
            return {"command": name}

        return run

    for name in ("train", "sparse", "predict"):
        place = {"train": "tuned", "predict": "predict.run"}.get(name, name)
        monkeypatch.setattr(f"dkgp.commands.{place}.run_{name}", command(name), raising=False)
    return calls


def steps(folder: Path, earlier: dict[str, Any] | None) -> Steps:
    return Steps("fit", folder / "fit.json", SETTINGS, earlier, PeakMemory(), SilentReporter())


def record(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "fit.json").read_text())
    return document


def test_a_step_that_failed_is_done_again_and_its_seconds_add_up(tmp_path: Path) -> None:
    first = steps(tmp_path, None)
    assert first.run("ingest", lambda: {"n": 3}) == {"n": 3}
    with pytest.raises(ZeroDivisionError):
        first.run("tune", lambda: {"n": 1 // 0})
    begun = record(tmp_path)
    assert list(begun["phases"]) == ["ingest"]
    assert begun["seconds_by_phase"]["tune"] > 0.0
    second = steps(tmp_path, begun)
    assert second.run("ingest", lambda: pytest.fail("done again")) == {"n": 3}
    assert second.is_done("ingest")
    assert not second.is_done("tune")
    before = second.seconds["tune"]
    second.run("tune", dict)
    assert second.seconds["tune"] > before
    assert record(tmp_path)["phases"] == {"ingest": {"n": 3}, "tune": {}}


@pytest.mark.parametrize("left", ["model.zarr", "model.zarr.checkpoint", None])
def test_training_goes_on_from_a_checkpoint_or_a_model(
    left: str | None, tmp_path: Path, resumed: dict[str, bool]
) -> None:
    model = str(tmp_path / "model.zarr")
    if left is not None:
        (tmp_path / left).mkdir()
    steps(tmp_path, None).train(TrainJob("train.zarr", "hyper.json", model))
    assert resumed.pop("train") is False  # what lies there is of nobody's run
    begun = {**record(tmp_path), "phases": {}}
    steps(tmp_path, begun).train(TrainJob("train.zarr", "hyper.json", model))
    steps(tmp_path, begun | {"phases": {}}).train(SparseJob("train.zarr", "hyper.json", model))
    assert resumed == {"train": left is not None, "sparse": left is not None}


def test_predictions_go_on_where_some_are_there(tmp_path: Path, resumed: dict[str, bool]) -> None:
    job = PredictJob("model.zarr", "test.zarr", str(tmp_path / "pred.zarr"))
    begun = {**record_of_new(tmp_path), "phases": {}}
    steps(tmp_path, begun).predict(job)
    assert resumed.pop("predict") is False
    (tmp_path / "pred.zarr").mkdir()
    steps(tmp_path, {**begun, "phases": {}}).predict(job)
    assert resumed["predict"] is True


def record_of_new(folder: Path) -> dict[str, Any]:
    steps(folder, None)
    return record(folder)


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    reporter = SilentReporter()
    assert earlier_record("fit", tmp_path / "fit.json", SETTINGS, reporter) is None
    assert reporter.warnings == [f"there is no fit in '{tmp_path}' to resume; the fit starts from the beginning"]
    steps(tmp_path, None)
    assert earlier_record("fit", tmp_path / "fit.json", SETTINGS, reporter) == record(tmp_path)
    assert earlier_record("demo", tmp_path / "fit.json", SETTINGS, reporter) is None
    with pytest.raises(InputError, match=r"has another seed \(its seed: 0; this run's: 1\); repeat its options"):
        earlier_record("fit", tmp_path / "fit.json", {"seed": 1}, reporter)
