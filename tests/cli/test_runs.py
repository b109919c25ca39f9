"""Every run: interrupted it goes on to the same bits, finished it is recognised, and that of another is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dkgp.commands.signals import Interruption
from dkgp.data import open_prediction
from tests.cli.invoke import document_of, refused, run, run_json
from tests.cli.runs import RUNS, bits

# As many rounds as others, in more time; or another's steps on other numbers.
SLOW = ("gp", "logistic on a basis", "gp on a basis, tuned", "Student's t", "gbcd, linear mean")
SLOW += ("gbcd, known noise", "noise model", "pcg, landmarks", "exact by trees", "greedy basis, neighbours")
SLOW += ("gp with neighbours", "sparse predictions")
# In more time: "grid", "greedy basis", "gp on a basis" and "exact, bounded products" are their quick cases.
LONG = ("fixed-size", "growing basis", "logistic", "gbcd, bounded products")
MARKS = {**dict.fromkeys(SLOW, pytest.mark.slow), **dict.fromkeys(LONG, pytest.mark.long)}
EVERY = pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in RUNS])


@pytest.mark.spread(6)
@EVERY
def test_an_interrupted_run_goes_on_to_the_same_bits(
    name: str, stores: dict[str, Any], whole: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, out, log = RUNS[name], tmp_path / "out", tmp_path / "log.jsonl"
    command = [*kind.typed(stores, out), *(["--log-json", log] if kind.logs else [])]
    looks = iter(range(1, 10**9))

    def asked(interruption: Interruption) -> bool:
        if kind.logs:
            return log.exists() and log.read_bytes().count(b"\n") >= kind.rounds
        return next(looks) == 4

    with monkeypatch.context() as patch:
        patch.setattr(Interruption, "__call__", asked)
        error = document_of(run(*command), 130)["error"]
    assert error["type"] == "InterruptedRunError"
    assert "--resume" in error["message"]
    if kind.logs:
        assert f"{out}.checkpoint. Continue with the same command and --resume" in error["message"]
        assert error["checkpoint"] == f"{out}.checkpoint"
        assert not out.exists()
    refused(run(*command, *kind.other.split(), "--resume"), kind.words)
    resumed = run(*command, "--resume")
    document = document_of(resumed)
    assert bits(out) == bits(whole(name))
    assert {path for path in tmp_path.iterdir() if path != log} == {out}
    if kind.logs:
        assert "resuming after round" in resumed.stderr
        # Rounds that were done twice are logged once; a pass of a search has a line for each of its points.
        rounds = [json.loads(line)["iteration"] for line in log.read_text().splitlines()]
        assert rounds == sorted(rounds if name in ("fixed-size", "grid") else set(rounds))
        assert name != "grid" or rounds == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
        assert rounds[-1] == document.get("iterations", rounds[-1])


@pytest.mark.spread(6)
@EVERY
def test_a_finished_run_is_recognised_and_another_is_left_alone(
    name: str, stores: dict[str, Any], whole: Callable[[str], Path]
) -> None:
    kind, out = RUNS[name], whole(name)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.rglob("*") if path.is_file()}
    command = kind.typed(stores, out)
    done = run(*command, "--resume")
    document_of(done)
    if kind.logs:
        assert "is already complete" in done.stderr
    refused(run(*command, *kind.other.split(), "--resume"), kind.words)
    refused(run(*command), "already exists", "--overwrite")
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.rglob("*") if path.is_file()}
    assert after == before


SLOW_CLASSIFIERS = ("logistic", "gp", "logistic on a basis", "gp on a basis, tuned")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("fixed-size", marks=pytest.mark.long),
        "exact",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_CLASSIFIERS),
    ],
)
@pytest.mark.parametrize(
    "cluster",
    [
        "local --workers 3",
        pytest.param("processes --workers 2", marks=pytest.mark.slow),
        pytest.param("local --workers 5", marks=pytest.mark.slow),
    ],
)
def test_any_workers_come_to_the_same_bits(
    name: str, cluster: str, stores: dict[str, Any], whole: Callable[[str], Path], tmp_path: Path
) -> None:
    other = ("--cluster", *cluster.split())
    run_json(*RUNS[name].typed(stores, tmp_path / "out", *other))
    assert bits(tmp_path / "out") == bits(whole(name))
    # Averages take latent variances, whose bits are those of one plan: what workers share would make the batches.
    plan = ("--variance", "--variance-batch", 40) if name == "gp" else ()
    for out, model, where in (("one", whole(name), ("--cluster", "none")), ("other", tmp_path / "out", other)):
        run_json("predict", model, stores["labels_of_three"], "--out", tmp_path / out, *plan, *where)
    one, several = (open_prediction(str(tmp_path / out)) for out in ("one", "other"))
    assert one.variables == several.variables
    for variable in one.variables:
        assert one.read(variable).tobytes() == several.read(variable).tobytes(), variable
